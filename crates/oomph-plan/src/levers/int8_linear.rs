//! `int8_linear`: inference with the weights of linear layers in 8 bits.
//!
//! Offered where those are a part of the weights that is worth a change. Memory: a quarter of what
//! they have in 32 bits, half of 16; a run tells. Results: other numerics.

use serde::{Deserialize, Serialize};

use crate::by_hand::Script;
use crate::lever::{Facets, Results, Stage};
use crate::model::Model;
use crate::search::Options;

/// A part of the weights below which those of linear layers are not worth a change.
const WORTH: f64 = 0.2;

/// How linear layers with weights of 8 bits multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The weights are made wide for the product.
    WeightOnly,
    /// The inputs are rounded to 8 bits too, and integers multiplied.
    Dynamic,
}

/// Inference with the weights of linear layers in 8 bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Int8Linear {
    /// How they multiply.
    pub kind: Kind,
}

impl Facets for Int8Linear {
    fn results(&self) -> Results {
        Results::Numerics
    }

    fn label(&self) -> String {
        match self.kind {
            Kind::WeightOnly => "int8 weights",
            Kind::Dynamic => "int8 weights and products",
        }
        .to_owned()
    }

    fn order() -> u32 {
        30 // before the cast to 16 bits: rounded once
    }

    fn stage() -> Stage {
        Stage::Ladder
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        if model.trains || model.facts.compiled || linear_share(model) < WORTH {
            return Vec::new();
        }
        [Kind::WeightOnly, Kind::Dynamic]
            .map(|kind| Self { kind })
            .into()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        model.compiled(false)
    }

    fn snippet(&self) -> String {
        let config = match self.kind {
            Kind::WeightOnly => "Int8WeightOnlyConfig",
            Kind::Dynamic => "Int8DynamicActivationInt8WeightConfig",
        };
        format!(
            "where the model is made, before it goes to the GPU (pip install torchao):\nfrom torchao.quantization import quantize_, {config}\nquantize_(model, {config}())"
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["cuda", "to"])
    }
}

/// The part of the weights that is linear layers'.
fn linear_share(model: &Model) -> f64 {
    let of = |linear: bool| -> u64 {
        model
            .modules
            .iter()
            .filter(|module| !linear || Model::is_linear(module))
            .map(|module| module.parameters)
            .sum()
    };
    of(true) as f64 / of(false).max(1) as f64
}
