//! `load_on_cpu`: checkpoints are read into host memory, and models cast before they are moved.
//!
//! Offered where an inference script reads a checkpoint to the GPU, or casts there. Memory: weights
//! are on the GPU once, in the type that they have in the end; a run tells. Results: exact.

use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, settings};
use crate::lever::{Dtype, Facets, Results, Stage};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;

/// Checkpoints are read into host memory, and models cast before they are moved.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadOnCpu {
    /// The type to cast to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dtype: Option<Dtype>,
}

impl Facets for LoadOnCpu {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        match self.dtype {
            Some(dtype) => format!("load on the CPU, cast to {}", dtype.name()),
            None => "load on the CPU".to_owned(),
        }
    }

    fn order() -> u32 {
        35 // before the casts and moves of other levers
    }

    fn stage() -> Stage {
        Stage::Free
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let facts = &model.facts;
        if model.trains || facts.loaded_on_gpu == 0 && facts.cast_on_gpu.is_empty() {
            return Vec::new();
        }
        let dtype = match facts.cast_on_gpu.as_str() {
            "bf16" => Some(Dtype::Bf16),
            "fp16" => Some(Dtype::Fp16),
            _ => None,
        };
        vec![Self { dtype }]
    }

    fn snippet(&self) -> String {
        let cast = self.dtype.map_or_else(String::new, |dtype| {
            format!("\nmodel = model.to({}).cuda()", dtype.torch())
        });
        format!(
            "where weights are read:\nstate = torch.load(path, map_location=\"cpu\", mmap=True)\nmodel.load_state_dict(state){cast}"
        )
    }

    /// Checkpoints to the CPU, where the script says to which device.
    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        if self.dtype.is_some() {
            return None;
        }
        settings::read_to_cpu(work)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["torch.load", "load_file", "from_pretrained"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_cast_on_the_gpu_is_cast_before() {
        let mut model = Model::default();
        let offered = |model: &Model| LoadOnCpu::candidates(model, &Options::default());
        assert!(offered(&model).is_empty());
        model.facts.cast_on_gpu = "fp16".to_owned();
        let dtype = Some(Dtype::Fp16);
        assert_eq!(offered(&model), [LoadOnCpu { dtype }]);
        model.trains = true;
        assert!(offered(&model).is_empty());
    }
}
