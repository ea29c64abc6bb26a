//! `inference_mode`: inference without a graph.
//!
//! Offered where a job that infers saved something for a backward pass. Memory: that is not there; a
//! run tells how much. Time: none. Results: exact.

use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, settings};
use crate::lever::{Facets, Results, Stage};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;

/// Inference without a graph.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InferenceMode {}

impl Facets for InferenceMode {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        "no graph".to_owned()
    }

    fn order() -> u32 {
        5
    }

    fn stage() -> Stage {
        Stage::Free
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = !model.trains && model.facts.graph > 0;
        offered.then_some(Self {}).into_iter().collect()
    }

    fn snippet(&self) -> String {
        "around the loop that infers:\nwith torch.inference_mode():\n    ...".to_owned()
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        // From here on; a context around the loop would need its lines to move.
        work.edit(|script| settings::after_imports(script, &["torch.set_grad_enabled(False)"]))
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.last_import.map(|stmt| script.line(stmt))
    }
}
