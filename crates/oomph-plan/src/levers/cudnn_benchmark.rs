//! `cudnn_benchmark`: whether cuDNN tries its kernels for each new shape of a convolution.
//!
//! Offered where a script turns it on. Memory: what is tried needs work spaces that cuDNN's own rules
//! would not choose; a run tells how large. Time: not known. Results: to rounding.

use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, settings};
use crate::lever::{Facets, Results, Stage, Switches, on, python};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;

/// `torch.backends.cudnn.benchmark`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CudnnBenchmark {
    /// Whether cuDNN tries kernels.
    pub enabled: bool,
}

impl Facets for CudnnBenchmark {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        format!("cuDNN benchmark {}", on(self.enabled))
    }

    fn is_only_on_gpu(&self) -> bool {
        true
    }

    fn stage() -> Stage {
        Stage::Measured
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = model.trains && model.facts.benchmark;
        let off = Self { enabled: false };
        offered.then_some(off).into_iter().collect()
    }

    fn unknown(&self) -> Option<&'static str> {
        (!self.enabled).then_some("how much slower cuDNN's own choices are is not known")
    }

    fn snippet(&self) -> String {
        format!(
            "after the imports:\ntorch.backends.cudnn.benchmark = {}",
            python(self.enabled)
        )
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        settings::flag(work, "torch.backends.cudnn.benchmark", self.enabled)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.last_import.map(|stmt| script.line(stmt))
    }

    fn switches(&self) -> Switches {
        Switches {
            lightning: Some(("benchmark", python(self.enabled).to_owned())),
            ..Switches::default()
        }
    }
}
