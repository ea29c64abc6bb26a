//! `stream_weights`: weights of chosen modules wait in host memory, and are brought ahead of use.
//!
//! Memory: the weights go, and memory for two of the modules stays. Time: the link's, for each time
//! that the modules run, as far as computing does not hide it. Results: exact.

use rustc_hash::FxHashMap as HashMap;
use serde::{Deserialize, Serialize};

use crate::by_hand::Script;
use crate::draft::Draft;
use crate::lever::{Facets, Results, Stage, comments, places};
use crate::model::Model;
use crate::streamed::{SMALLEST, take};
use crate::units::{self, Sequence};

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
        let held = take(draft, &self.modules, SMALLEST, |_| true);
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
            comments(&self.modules)
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["cuda", "to"])
    }
}
