//! `split_batch`: a job that infers runs a part of the batch at a time.
//!
//! Memory: what flows through the models is a part's, but for what goes into them and comes out.
//! Time: as many times the launches. Results: to rounding.

use rustc_hash::FxHashSet as HashSet;
use serde::{Deserialize, Serialize};

use oomph_trace::Category;

use crate::by_hand::Script;
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage};
use crate::model::Model;
use crate::search::Options;

/// Into how many parts a batch may go.
const PARTS: [u32; 4] = [2, 4, 8, 16];

/// Inference with a part of the batch at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SplitBatch {
    /// How many parts.
    pub parts: u32,
}

impl Facets for SplitBatch {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        format!("the batch in {} parts", self.parts)
    }

    fn order() -> u32 {
        8 // outside of whatever else is done to a model's forward
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Batch)
    }

    /// The numbers of parts that could be chosen.
    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let splits = !model.trains && !model.facts.compiled && !model.facts.cache;
        PARTS
            .into_iter()
            .filter(|&parts| splits && u64::from(parts) <= model.batch)
            .map(|parts| Self { parts })
            .collect()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        model.compiled(false)
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let model = draft.model;
        let parts = u64::from(self.parts.max(1));
        let whole: HashSet<u32> = model
            .calls
            .iter()
            .filter(|call| model.is_outermost(call))
            .flat_map(|call| call.inputs.iter().chain(&call.outputs))
            .copied()
            .collect();
        for (number, tensor) in (0..).zip(&mut draft.template.tensors) {
            if tensor.batched
                && tensor.call != 0
                && tensor.category != Category::Input
                && !whole.contains(&number)
            {
                tensor.bytes = tensor.bytes.div_ceil(parts);
            }
        }
        draft.repeats *= parts as f64;
        let more = (parts - 1) as f64 * draft.body.launches;
        draft.body.launches += more;
        draft.body.calls *= parts as f64;
        draft.body.busy += more * draft.pace().launch_ns;
    }

    fn snippet(&self) -> String {
        format!(
            "where the model is called:\noutputs = torch.cat([model(part) for part in inputs.chunk({})])",
            self.parts
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["no_grad", "model"])
    }
}
