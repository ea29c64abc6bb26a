//! `activation_memory_budget`: of what compiled models keep for the backward pass, a share.
//!
//! Offered where a script compiles what it trains. Memory and time: AOTAutograd's partitioner decides what
//! is computed again, which a run shows; at most the forward pass of what is compiled, once more. Results:
//! to rounding, as Inductor may fuse what is computed again into other kernels.

use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, settings};
use crate::lever::{Facets, Results, Stage};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;
use crate::sharding::Sharing;

/// What is tried, the gentlest first.
const PERCENTS: [u32; 4] = [70, 50, 30, 10];
/// PyTorch's name of the setting.
const SETTING: &str = "torch._functorch.config.activation_memory_budget";

/// `torch._functorch.config.activation_memory_budget`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ActivationMemoryBudget {
    /// Of what would be kept without it. 0 keeps what checkpointing all that is compiled would.
    #[schemars(range(min = 0, max = 100))]
    pub percent: u32,
}

impl ActivationMemoryBudget {
    /// As PyTorch has it.
    fn share(&self) -> String {
        // With a decimal point, always.
        format!("{:?}", f64::from(self.percent) / 100.0)
    }
}

impl Facets for ActivationMemoryBudget {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        format!("activation memory budget {}", self.share())
    }

    fn stage() -> Stage {
        Stage::Measured
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = model.trains && model.facts.compiled;
        let all = PERCENTS.into_iter().filter(|_| offered);
        all.map(|percent| Self { percent }).collect()
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn unknown(&self) -> Option<&'static str> {
        Some("the time of compiled kernels is a rough estimate")
    }

    fn snippet(&self) -> String {
        format!(
            "before the first call of what torch.compile returns:\nimport torch._functorch.config\n{SETTING} = {}",
            self.share()
        )
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        settings::value(
            work,
            SETTING,
            &self.share(),
            Some("import torch._functorch.config"),
        )
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
        let offered = |model: &Model| -> Vec<String> {
            let all = ActivationMemoryBudget::candidates(model, &Options::default());
            all.iter().map(ActivationMemoryBudget::share).collect()
        };
        model.trains = true;
        assert!(offered(&model).is_empty());
        model.facts.compiled = true;
        assert_eq!(offered(&model), ["0.7", "0.5", "0.3", "0.1"]);
        model.trains = false;
        assert!(offered(&model).is_empty());
    }
}
