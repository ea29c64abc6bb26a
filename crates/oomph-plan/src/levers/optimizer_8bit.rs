//! `optimizer_8bit`: the optimizer's state in blocks of 8-bit values with a scale each.
//!
//! Memory: a quarter of the state, and a scale of 4 bytes for each 256 values. Time: small, not
//! counted. Results: close.

use serde::{Deserialize, Serialize};

use oomph_trace::Category;

use crate::by_hand::{Script, Work, optimizer};
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage, StepChange, Switches};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;
use crate::sharding::Sharing;

/// Values with one scale.
const BLOCK: u64 = 256;
/// State of fewer values stays as it is.
const LEAST_VALUES: u64 = 4096;

/// The optimizer's state in 8 bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Optimizer8bit {}

impl Facets for Optimizer8bit {
    fn results(&self) -> Results {
        Results::Numerics
    }

    fn label(&self) -> String {
        "8-bit optimizer state".to_owned()
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Optimizer)
    }

    /// Where all optimizers have an 8-bit twin.
    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let optimizers = &model.facts.optimizers;
        let offered = model.trains
            && !optimizers.is_empty()
            && optimizers
                .iter()
                .all(|optimizer| matches!(optimizer.kind.as_str(), "Adam" | "AdamW"));
        offered.then_some(Self {}).into_iter().collect()
    }

    fn goes_with_sharing(&self, sharing: Sharing) -> bool {
        // It knows of plain tensors only.
        sharing.is_whole()
    }

    fn step(&self) -> Option<StepChange> {
        Some(StepChange::Replaced)
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        for tensor in &mut draft.template.tensors {
            // State is as wide as its parameter: 4 bytes, or 2.
            if tensor.category == Category::OptimizerState && tensor.bytes / 4 >= LEAST_VALUES {
                let values = tensor.bytes / 4;
                tensor.bytes = values + values.div_ceil(BLOCK) * 4;
            }
        }
    }

    fn snippet(&self) -> String {
        "where the optimizer is made (pip install torchao; Adam and AdamW only):\nfrom torchao.optim import AdamW8bit\noptimizer = AdamW8bit(model.parameters(), ...)".to_owned()
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        optimizer::eight_bits(work)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.optimizer_line()
    }

    fn switches(&self) -> Switches {
        Switches {
            huggingface: Some(("optim", "\"adamw_torch_8bit\"".to_owned())),
            ..Switches::default()
        }
    }
}
