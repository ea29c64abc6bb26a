//! `half_weights`: inference with weights and activations in 16 bits.
//!
//! Offered where weights have 32 bits and no autocast runs. Memory: about a half; a run tells.
//! Results: other numerics.

use serde::{Deserialize, Serialize};

use crate::by_hand::Script;
use crate::lever::{Dtype, Facets, Results, Stage};
use crate::model::Model;
use crate::search::Options;

/// Inference with weights and activations in 16 bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HalfWeights {
    /// The type.
    pub dtype: Dtype,
}

impl Facets for HalfWeights {
    fn results(&self) -> Results {
        Results::Numerics
    }

    fn label(&self) -> String {
        format!("weights in {}", self.dtype.name())
    }

    fn order() -> u32 {
        40
    }

    fn stage() -> Stage {
        Stage::Ladder
    }

    fn candidates(model: &Model, options: &Options) -> Vec<Self> {
        let offered = !model.trains && model.is_fp32() && model.facts.autocast.is_empty();
        let dtype = options.dtype;
        offered.then_some(Self { dtype }).into_iter().collect()
    }

    fn snippet(&self) -> String {
        format!(
            "where the model is made, before it goes to the GPU:\nmodel = model.to({0})\n# and for what it is called with:\noutputs = model(inputs.to({0}))",
            self.dtype.torch()
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["cuda", "to"])
    }
}
