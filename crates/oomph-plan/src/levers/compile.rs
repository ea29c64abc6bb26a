//! `compile`: models compiled by `torch.compile`.
//!
//! Only on request (`oomph fit --compile`): what is compiled depends on the model, and a run tells what
//! it does. Results: to rounding.

use serde::{Deserialize, Serialize};

use crate::by_hand::Script;
use crate::lever::{Facets, Results, Stage};
use crate::sharding::Sharing;

/// Models compiled by `torch.compile`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Compile {}

impl Facets for Compile {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        "torch.compile".to_owned()
    }

    fn order() -> u32 {
        90 // after all that replaces parts of the model
    }

    fn stage() -> Stage {
        Stage::Asked
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn snippet(&self) -> String {
        "once the model is on the GPU:\nmodel.compile()".to_owned()
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["cuda", "to"])
    }
}
