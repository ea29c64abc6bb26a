//! `micro_batch`: a batch in parts, one after the other, with the gradients accumulated.
//!
//! Memory: what grows with the batch shrinks to the largest part's; gradients stay from the first
//! part on. Time: each kernel once a part, on fewer samples, and the gradients added. Results: to
//! rounding for losses that are means over samples; not where a layer looks at the whole batch.

use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, loops};
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage, Switches};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;

/// The most parts.
const MOST: u64 = 64;

/// A batch in `parts` micro-batches, with the gradients accumulated.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MicroBatch {
    /// How many.
    pub parts: u32,
}

impl Facets for MicroBatch {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        format!("micro-batches: {} a batch", self.parts)
    }

    fn order() -> u32 {
        10
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Batch)
    }

    /// The numbers of parts that are worth trying: each makes the largest part smaller.
    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        if !model.trains
            || model.batch < 2
            || model.facts.closure
            || model.facts.compiled
            || model.couples_samples()
        {
            return Vec::new();
        }
        let mut parts = Vec::new();
        let mut size = model.batch;
        for count in 2..=model.batch.min(MOST) {
            let largest = model.batch.div_ceil(count);
            if largest < size {
                size = largest;
                // Steps of a quarter or more, as every part costs launches.
                if parts
                    .last()
                    .is_none_or(|last: &Self| count * 4 >= u64::from(last.parts) * 5)
                {
                    parts.push(Self {
                        parts: count as u32,
                    });
                }
            }
        }
        parts
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        let facts = &model.facts;
        if !model.trains {
            None
        } else if model.batch == 0 {
            Some(
                "the script has no DataLoader whose batches could be split: split them in the loop and accumulate gradients",
            )
        } else if facts.closure {
            Some("an optimizer steps with a closure: accumulate inside it")
        } else if model.couples_samples() {
            Some(
                "batch normalization would see micro-batches: put it into evaluation mode or use another normalization",
            )
        } else {
            model.compiled(true)
        }
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        draft.template.parts = self.parts.max(1);
    }

    fn micro_batches(&self) -> Option<u32> {
        Some(self.parts)
    }

    fn snippet(&self) -> String {
        format!(
            "in the loop over batches, with the batch's tensors in {} parts (of a loss that is a mean over samples; a mean over tokens counts by targets not ignored):\noptimizer.zero_grad()\nfor part in parts_of(batch):\n    loss = loss_of(part) * len(part) / len(batch)\n    loss.backward()\noptimizer.step()",
            self.parts
        )
    }

    fn place(&self, work: &mut Work<'_>, levers: &[Lever]) -> Option<()> {
        loops::place(work, &self.clone().into(), levers)
    }

    fn switches(&self) -> Switches {
        Switches {
            needs_run: true,
            ..Switches::default()
        }
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.training_line()
    }
}
