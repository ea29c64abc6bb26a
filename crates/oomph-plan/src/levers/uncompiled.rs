//! `uncompiled`: a script that compiles runs without `torch.compile`.
//!
//! What is compiled is not taken apart, so the levers that step in around modules leave it alone; and each run of it compiles
//! again. Without it they all apply. Memory and time: those of the operators by themselves, which a run shows. Results: to rounding,
//! as fused kernels round otherwise.

use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, settings};
use crate::lever::{Facets, Results, Stage};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;
use crate::sharding::Sharing;

/// The call that does it.
const CALL: &str = "torch.compiler.set_stance(\"force_eager\")";

/// `torch.compiler.set_stance("force_eager")`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Uncompiled {}

impl Facets for Uncompiled {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        "without torch.compile".to_owned()
    }

    fn order() -> u32 {
        1 // the others ask whether anything is compiled
    }

    fn stage() -> Stage {
        Stage::Measured
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = model.trains && model.facts.compiled;
        offered.then_some(Self {}).into_iter().collect()
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn unknown(&self) -> Option<&'static str> {
        Some("the time of compiled kernels, which this is compared with, is a rough estimate")
    }

    fn snippet(&self) -> String {
        format!("after the imports:\n{CALL}")
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        work.edit(|script| settings::after_imports(script, &[CALL]))
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.last_import.map(|stmt| script.line(stmt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_for_what_is_compiled_and_trains() {
        let mut model = Model::default();
        let offered = |model: &Model| Uncompiled::candidates(model, &Options::default()).len();
        model.trains = true;
        assert_eq!(offered(&model), 0);
        model.facts.compiled = true;
        assert_eq!(offered(&model), 1);
        model.trains = false;
        assert_eq!(offered(&model), 0);
    }
}
