//! What is tried on a job that infers.
//!
//! Such a job has few levers, and a run of it is quick: what they do is measured, not predicted.
//! [`ladder`] says which runs to make. Parts of a batch and streamed weights come in degrees; those
//! are predicted on top of each run and verified like any other plan.

use crate::lever::{Int8, Lever};
use crate::model::Model;
use crate::search::Options;

/// A part of the weights below which those of linear layers are not worth a change.
const WORTH: f64 = 0.2;
/// A head's logits below which there is little to save: half of the lever's own bound, which counts
/// numbers, as they may have 16 bits.
const LOGITS: u64 = 32 << 20;

/// The levers that keep results exactly and cost nothing: every plan begins with them.
pub fn free(model: &Model, options: &Options) -> Vec<Lever> {
    let mut levers = Vec::new();
    let facts = &model.facts;
    if facts.loaded_on_gpu > 0 || !facts.cast_on_gpu.is_empty() {
        let dtype = match facts.cast_on_gpu.as_str() {
            "bf16" => Some(crate::Dtype::Bf16),
            "fp16" => Some(crate::Dtype::Fp16),
            _ => None,
        };
        levers.push(Lever::LoadOnCpu { dtype });
    }
    if facts.graph > 0 {
        levers.push(Lever::InferenceMode {});
    }
    levers.retain(|lever| options.permits(lever));
    levers
}

/// Levers to run the job with, each step on top of the one before: first those that cost nothing,
/// then what changes numerics, the least first. A step has alternatives.
pub fn ladder(model: &Model, options: &Options) -> Vec<Vec<Lever>> {
    let facts = &model.facts;
    let mut steps: Vec<Vec<Lever>> = Vec::new();
    if has_large_head(model) && !facts.compiled {
        steps.push(vec![Lever::ChunkedLogits {}]);
    }
    if is_wide(model) && facts.autocast.is_empty() {
        steps.push(vec![Lever::HalfWeights {
            dtype: options.dtype,
        }]);
    }
    if linear_share(model) >= WORTH && !facts.compiled {
        steps.push(vec![
            Lever::Int8Linear {
                kind: Int8::WeightOnly,
            },
            Lever::Int8Linear {
                kind: Int8::Dynamic,
            },
        ]);
    }
    if facts.cache && !facts.compiled {
        steps.push(vec![Lever::KvCache { bits: 8 }]);
    }
    for step in &mut steps {
        step.retain(|lever| options.permits(lever));
    }
    steps.retain(|step| !step.is_empty());
    steps
}

/// Whether a linear layer that is no part of a numbered block gives much at once.
fn has_large_head(model: &Model) -> bool {
    let heads: Vec<&str> = model
        .modules
        .iter()
        .filter(|module| is_linear(&module.kind))
        .map(|module| module.name.as_str())
        .filter(|name| !name.split('.').any(|part| part.parse::<u32>().is_ok()))
        .collect();
    model.template.tensors.iter().any(|tensor| {
        let call = model.calls.get(tensor.call as usize);
        tensor.bytes >= LOGITS && call.is_some_and(|call| heads.contains(&call.module.as_str()))
    })
}

fn is_linear(kind: &str) -> bool {
    matches!(kind, "Linear" | "Conv1D")
}

/// Whether the weights have 4 bytes each.
fn is_wide(model: &Model) -> bool {
    let parameters: u64 = model.modules.iter().map(|module| module.parameters).sum();
    let bytes: u64 = model.parameter_sizes.values().flatten().sum();
    // Tied ones are counted twice among the modules.
    bytes * 2 > parameters * 5
}

/// The part of the weights that is linear layers'.
fn linear_share(model: &Model) -> f64 {
    let of = |linear: bool| -> u64 {
        model
            .modules
            .iter()
            .filter(|module| !linear || is_linear(&module.kind))
            .map(|module| module.parameters)
            .sum()
    };
    of(true) as f64 / of(false).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Call, Tensor};
    use oomph_run::record::Module;
    use oomph_trace::{Category, Phase};

    fn model() -> Model {
        let mut model = Model::default();
        for (kind, parameters) in [("Embedding", 100), ("Linear", 900)] {
            model.modules.push(Module {
                kind: kind.to_owned(),
                parameters,
                ..Module::default()
            });
        }
        model.parameter_sizes.insert("Net".to_owned(), vec![4000]);
        model
    }

    #[test]
    fn numerics_change_the_least_first() {
        let mut model = model();
        let options = Options::default();
        let names = |model: &Model| -> Vec<&str> {
            ladder(model, &options)
                .iter()
                .map(|step| step[0].name())
                .collect()
        };
        assert_eq!(names(&model), ["half_weights", "int8_linear"]);
        model.facts.cache = true;
        model.parameter_sizes.insert("Net".to_owned(), vec![2000]);
        assert_eq!(names(&model), ["int8_linear", "kv_cache"]);
        let exact = Options {
            keep_results: true,
            ..options.clone()
        };
        assert!(ladder(&model, &exact).is_empty());
    }

    #[test]
    fn logits_in_chunks_come_before_what_changes_numerics() {
        let mut model = model();
        let options = Options {
            keep_results: true,
            ..Options::default()
        };
        model.modules[1].name = "Net.head".to_owned();
        model.calls = vec![Call::default(), Call::default()];
        model.calls[1].module = "Net.head".to_owned();
        let tensor = Tensor {
            bytes: LOGITS,
            stream: 0,
            category: Category::Activation,
            phase: Phase::Forward,
            call: 1,
            op: 0,
            scope: 0,
            batched: true,
        };
        model.template.tensors = vec![tensor];
        assert_eq!(ladder(&model, &options), [[Lever::ChunkedLogits {}]]);
        // A layer of a block widens for what comes next.
        for name in ["Net.blocks.0.up", "Net.other"] {
            model.modules[1].name = name.to_owned();
            model.calls[1].module = "Net.blocks.0.up".to_owned();
            assert!(ladder(&model, &options).is_empty());
        }
    }

    #[test]
    fn a_model_that_is_cast_on_the_gpu_is_cast_before() {
        let mut model = model();
        let options = Options::default();
        assert!(free(&model, &options).is_empty());
        model.facts.graph = 3;
        model.facts.cast_on_gpu = "fp16".to_owned();
        let found = free(&model, &options);
        assert_eq!(found.len(), 2);
        assert!(matches!(
            found[0],
            Lever::LoadOnCpu {
                dtype: Some(crate::Dtype::Fp16)
            }
        ));
    }
}
