//! `stream_weights`: weights of chosen modules wait in host memory, and are brought ahead of use.
//!
//! Memory: the weights go, and memory for two of the modules stays. Time: the link's, for each time
//! that the modules run, as far as computing does not hide it. Results: exact.

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::by_hand::Script;
use crate::draft::Draft;
use crate::lever::{Facets, Results, Stage, places};
use crate::model::{Event, Model, Tensor};
use crate::units::{self, Sequence};

/// Modules whose weights are on the GPU at a time, as in `python/oomph/levers/stream_weights.py`.
pub(crate) const SLOTS: usize = 2;
/// Smaller tensors stay, as there.
const SMALLEST: u64 = 4 << 10;

/// Inference with modules' weights in host memory, brought ahead of their use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamWeights {
    /// The modules.
    pub modules: Vec<String>,
}

impl Facets for StreamWeights {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        format!("stream weights of {}", places(&self.modules))
    }

    fn order() -> u32 {
        60 // after what changes the weights
    }

    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        Some(&mut self.modules)
    }

    fn stage() -> Stage {
        Stage::Modules
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        model.compiled(false)
    }

    fn sequence(draft: &Draft<'_>) -> Sequence {
        if draft.model.trains || draft.model.facts.compiled {
            return Sequence::default();
        }
        units::last_to_first(draft.model)
    }

    fn of_modules(modules: Vec<String>) -> Option<Self> {
        Some(Self { modules })
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let held = take(draft, &self.modules, |_| true);
        let mut runs: HashMap<&str, f64> = HashMap::default();
        for call in &draft.model.calls {
            *runs.entry(call.module.as_str()).or_default() += 1.0;
        }
        let bytes: f64 = held
            .iter()
            .filter_map(|(block, bytes)| {
                let runs = runs.get(self.modules.get(*block)?.as_str())?;
                Some(*bytes as f64 * runs)
            })
            .sum();
        // Each part of a batch needs all of them.
        let link = draft.repeats * bytes / draft.pace().link_bytes_per_s * 1e9;
        let computing = draft.body.time(draft.pace());
        draft.waits += (link - computing).max(0.0);
    }

    fn snippet(&self) -> String {
        format!(
            "instead of moving these modules to the GPU (pip install accelerate; it copies without overlap):\nfrom accelerate import cpu_offload\nfor name in names:\n    cpu_offload(model.get_submodule(name), execution_device=\"cuda\")\n{}",
            self.modules.join("\n")
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["cuda", "to"])
    }
}

/// Which of `modules` a module is, or is inside of.
pub(crate) fn inside(modules: &[String], owner: &str) -> Option<usize> {
    let mut modules = modules.iter();
    modules.position(|module| units::is_inside(owner, module))
}

/// Takes parameters of `modules` from the GPU, where their owner is `chosen`, and puts memory for two of the modules there. The bytes of
/// each.
pub(crate) fn take(
    draft: &mut Draft<'_>,
    modules: &[String],
    chosen: impl Fn(&str) -> bool,
) -> HashMap<usize, u64> {
    let mut held: HashMap<usize, u64> = HashMap::default();
    let mut gone: HashSet<u32> = HashSet::default();
    for (owner, number) in &draft.model.parameters {
        if let Some(block) = inside(modules, owner)
            && chosen(owner)
            && let Some(tensor) = draft.template.tensors.get(*number as usize)
            && tensor.bytes >= SMALLEST
            && gone.insert(*number)
        {
            *held.entry(block).or_default() += tensor.bytes;
        }
    }
    for events in [&mut draft.template.setup, &mut draft.template.body] {
        events.retain(|event| match event {
            Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                !gone.contains(number)
            }
            Event::EmptyCache => true,
        });
    }
    for _ in 0..SLOTS {
        let number = draft.template.tensors.len() as u32;
        draft.template.tensors.push(Tensor {
            bytes: held.values().copied().max().unwrap_or(0),
            stream: 0,
            category: Category::Parameter,
            phase: Phase::Load,
            call: 0,
            op: u32::MAX,
            scope: u32::MAX,
            batched: false,
        });
        // Before the first of the modules runs; what is trained keeps them for all steps.
        if draft.model.trains {
            draft.template.setup.push(Event::Alloc(number));
        } else {
            draft.template.body.insert(0, Event::Alloc(number));
        }
    }
    held
}
