//! `int8_frozen`: a job that trains keeps weights of linear layers that are not trained in 8 bits.
//!
//! Memory: a byte for each of these weights, with a scale for each output; one layer's is wide at a time. Time: they are made wide in the
//! forward and in the backward pass. Results: other numerics.

use rustc_hash::FxHashSet as HashSet;
use serde::{Deserialize, Serialize};

use oomph_trace::Phase;

use crate::blocks;
use crate::by_hand::Script;
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage};
use crate::model::{Event, Model, Tensor};
use crate::search::Options;
use crate::sharding::Sharing;
use crate::streamed::frozen;

/// Less than this part of the budget is not worth it.
const WORTH: u64 = 20;
/// Fewer bytes are a bias, or less than the scales are worth.
const LEAST_BYTES: u64 = 128 << 10;
/// Bytes of wide weights at a time, as in `python/oomph/levers/_shared/quantized_linear.py`.
const AT_ONCE: u64 = 64 << 20;
/// Nanoseconds of the host for a layer in a step, beside its launches: 64 layers took 13 ms more of a host-bound step beside an H100
/// (`bench/gpu/results/h100_long.jsonl`).
const HOST_NS: f64 = 120_000.0;
/// How often making weights wide goes over them: written, scaled in place, and read as 8 bits.
const PASSES: f64 = 3.5;

/// Training with frozen weights of linear layers in 8 bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Int8Frozen {}

impl Facets for Int8Frozen {
    fn results(&self) -> Results {
        Results::Numerics
    }

    fn label(&self) -> String {
        "frozen weights in 8 bits".to_owned()
    }

    fn order() -> u32 {
        30 // as `int8_linear`
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Weights)
    }

    fn candidates(model: &Model, options: &Options) -> Vec<Self> {
        // Until it has been tried on more jobs, `--allow` must name it.
        if !options.names("int8_frozen") {
            return Vec::new();
        }
        let bytes: u64 = of(model)
            .iter()
            .map(|(_, bytes, each)| bytes - bytes / each)
            .sum();
        let offered = model.trains && !model.facts.compiled && bytes > options.budget / WORTH;
        offered.then_some(Self {}).into_iter().collect()
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn lessens_evaluation(&self) -> bool {
        true
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let model = draft.model;
        let found = of(model);
        let (mut largest, mut wide) = (0, 0);
        for &(number, bytes, each) in &found {
            if let Some(tensor) = draft.template.tensors.get_mut(number as usize) {
                tensor.bytes = bytes / each;
                largest = largest.max(bytes.min(AT_ONCE));
                wide += bytes;
            }
        }
        // Autocast has nothing left to keep in 16 bits.
        let frozen = frozen(model);
        let tensors = (0..).zip(&draft.template.tensors);
        let casts: HashSet<u32> = tensors
            .filter(|(_, tensor)| {
                let call = model.calls.get(tensor.call as usize);
                call.is_some_and(|call| frozen.contains(call.module.as_str()))
                    && blocks::is_cast_of_weight(model, tensor)
            })
            .map(|(number, _)| number)
            .collect();
        draft.template.body.retain(|event| match event {
            Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                !casts.contains(number)
            }
            Event::EmptyCache => true,
        });
        // A layer's wide weights where the backward pass begins, which holds the most.
        let tensors = &mut draft.template.tensors;
        let begins = draft.template.body.iter().position(|event| {
            let Event::Alloc(number) = event else {
                return false;
            };
            let tensor = tensors.get(*number as usize);
            tensor.is_some_and(|tensor| tensor.phase == Phase::Backward)
        });
        if let (Some(begins), Some(&(number, ..))) = (begins, found.first())
            && let Some(&tensor) = tensors.get(number as usize)
        {
            let number = tensors.len() as u32;
            let bytes = largest;
            tensors.push(Tensor { bytes, ..tensor });
            let wide = [Event::Alloc(number), Event::Free(number)];
            draft.template.body.splice(begins..begins, wide);
        }
        let launches = 4.0 * found.len() as f64;
        draft.body.launches += launches;
        draft.body.lever += HOST_NS * found.len() as f64;
        draft.body.busy += 2.0 * PASSES * wide as f64 / draft.pace().memory_bytes_per_s * 1e9
            + launches * draft.pace().launch_ns;
    }

    fn snippet(&self) -> String {
        "where the adapters are added, before the model goes to the GPU (pip install torchao; frozen linear layers only):\nfrom torchao.quantization import Int8WeightOnlyConfig, quantize_\nquantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda module, name: isinstance(module, torch.nn.Linear) and not module.weight.requires_grad)".to_owned()
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["cuda", "to"])
    }
}

/// The weights that it is for: number, bytes, and bytes of each value.
fn of(model: &Model) -> Vec<(u32, u64, u64)> {
    let frozen = frozen(model);
    let linear = model
        .modules
        .iter()
        .filter(|module| Model::is_linear(module));
    let each = |name: &str| {
        let module = linear.clone().find(|module| module.name == name)?;
        let bytes: u64 = model.parameter_sizes.get(name)?.iter().sum();
        let each = bytes / module.parameters.max(1);
        (each > 1).then_some(each)
    };
    let mut seen = HashSet::default();
    let own = model
        .parameters
        .iter()
        .filter(|(owner, _)| frozen.contains(owner.as_str()));
    own.filter_map(|(owner, number)| {
        let bytes = model.template.tensors.get(*number as usize)?.bytes;
        (bytes >= LEAST_BYTES && seen.insert(*number)).then_some((*number, bytes, each(owner)?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Pace;
    use oomph_run::record::Module;
    use oomph_trace::Category;

    const MIB: u64 = 1 << 20;

    #[test]
    fn frozen_linear_layers_take_a_byte_for_each_value() {
        let mut model = Model {
            trains: true,
            ..Model::default()
        };
        for (name, kind, bytes, trained) in [
            ("Net.words", "Embedding", 100, 0),
            ("Net.base", "Linear", 200, 0),
            ("Net.half", "Linear", 100, 0),
            ("Net.head", "Linear", 100, 1),
        ] {
            let parameters = bytes * MIB / if name == "Net.half" { 2 } else { 4 };
            model.modules.push(Module {
                name: name.to_owned(),
                kind: kind.to_owned(),
                parameters,
                trained: trained * parameters,
                ..Module::default()
            });
            let number = model.template.tensors.len() as u32;
            let sizes = model.parameter_sizes.entry(name.to_owned());
            sizes.or_default().push(bytes * MIB);
            model.parameters.push((name.to_owned(), number));
            model.template.setup.push(Event::Alloc(number));
            model.template.tensors.push(Tensor {
                bytes: bytes * MIB,
                stream: 0,
                category: Category::Parameter,
                phase: Phase::Load,
                call: 0,
                op: 0,
                scope: 0,
                batched: false,
            });
        }
        let offered = |budget| {
            let options = Options {
                budget: budget * MIB,
                allow: Some(vec!["int8_frozen".to_owned()]),
                ..Options::default()
            };
            Int8Frozen::candidates(&model, &options)
        };
        assert_eq!(offered(2000), [Int8Frozen {}]);
        assert!(offered(8000).is_empty());
        let mut draft = Draft::new(&model, Pace::default());
        Int8Frozen {}.apply(&mut draft);
        let sizes = draft.template.tensors.iter().map(|tensor| tensor.bytes);
        let sizes: Vec<u64> = sizes.map(|bytes| bytes / MIB).collect();
        assert_eq!(sizes, [100, 50, 50, 100]);
        assert!(draft.body.busy > 0.0);
    }
}
