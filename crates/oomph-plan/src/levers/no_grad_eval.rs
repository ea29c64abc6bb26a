//! `no_grad_eval`: no graph while the model evaluates.
//!
//! Offered where an evaluation made one. Memory: what evaluations save for a backward pass that never
//! comes is not there; a run tells how much. Time: none. Results: exact.

use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, settings};
use crate::lever::{Facets, Results, Stage};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;

/// No graph while the model evaluates.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoGradEval {}

impl Facets for NoGradEval {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        "no_grad in evaluation".to_owned()
    }

    fn stage() -> Stage {
        Stage::Free
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = model.trains && model.facts.graph_in_evaluation;
        offered.then_some(Self {}).into_iter().collect()
    }

    fn snippet(&self) -> String {
        "around the loop that evaluates:\nwith torch.no_grad():\n    ...".to_owned()
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        settings::evaluation_without_graph(work)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.evaluation_line()
    }
}
