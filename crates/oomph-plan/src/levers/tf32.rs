//! `tf32`: products of fp32 matrices on the tensor cores, with 10 bits of mantissa.
//!
//! Memory: none. Time: it buys back what other levers cost, where the GPU has the cores (compute
//! capability 8.0 and later) and the script leaves them unused. Results: other numerics.

use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, settings};
use crate::draft::{Draft, Precision};
use crate::lever::{Facets, Group, Results, Stage, Switches, on, python};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;

/// Less of a step is not worth other numerics.
const LEAST_GAIN: f64 = 0.05;

/// TF32 in matrix products and convolutions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tf32 {
    /// Whether it is allowed.
    pub enabled: bool,
}

impl Facets for Tf32 {
    fn results(&self) -> Results {
        Results::Numerics
    }

    fn label(&self) -> String {
        format!("TF32 {}", on(self.enabled))
    }

    fn is_only_on_gpu(&self) -> bool {
        true
    }

    fn stage() -> Stage {
        Stage::Time
    }

    /// Where a step would be quicker by more than a little.
    fn candidates(model: &Model, options: &Options) -> Vec<Self> {
        let (busy, quicker) = model.work.iter().fold((0.0, 0.0), |sum, work| {
            (sum.0 + work.busy, sum.1 + work.tf32)
        });
        let offered = options.tf32 && !model.facts.tf32 && quicker < busy * (1.0 - LEAST_GAIN);
        let allowed = Self { enabled: true };
        offered.then_some(allowed).into_iter().collect()
    }

    fn goes_with(&self, others: &[Lever]) -> bool {
        // Nothing is left in fp32 that would be worth it.
        !others
            .iter()
            .any(|lever| lever.stage() == Stage::Combined(Group::Precision))
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        if self.enabled && draft.precision == Precision::AsRecorded {
            draft.set_precision(Precision::Tf32);
        }
    }

    fn snippet(&self) -> String {
        let value = python(self.enabled);
        let precision = if self.enabled { "tf32" } else { "ieee" };
        format!(
            "after the imports:\ntorch.backends.cuda.matmul.allow_tf32 = {value}\ntorch.backends.cudnn.allow_tf32 = {value}\n# or, where the script sets fp32_precision: torch.backends.fp32_precision = \"{precision}\""
        )
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        settings::tf32(work, self.enabled)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.last_import.map(|stmt| script.line(stmt))
    }

    fn switches(&self) -> Switches {
        Switches {
            huggingface: Some(("tf32", python(self.enabled).to_owned())),
            ..Switches::default()
        }
    }
}
