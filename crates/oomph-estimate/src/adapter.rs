//! Low-rank adapters as peft saves them: `adapter_config.json` beside a file of tensors.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::EstimateError;
use crate::model::{Model, Tensor};

/// A LoRA adapter.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Adapter {
    /// Its matrices.
    pub tensors: Vec<Tensor>,
    /// Width between the two matrices of each layer.
    pub rank: u64,
    /// Last parts of the names of the adapted modules: `q_proj`.
    pub modules: BTreeSet<String>,
    /// Whether its inputs go through dropout in training.
    pub dropout: bool,
    /// The model that it was made for.
    pub base: Option<String>,
}

/// Adapters are kept in fp32 whatever the model is in: peft casts them.
pub(crate) const ADAPTER_BYTES: u64 = 4;

impl Adapter {
    /// Elements of all matrices.
    pub fn elements(&self) -> u64 {
        self.tensors
            .iter()
            .fold(0, |sum: u64, tensor| sum.saturating_add(tensor.elements))
    }

    /// Puts together what `adapter_config.json` and the file of tensors say.
    pub fn new(config: &str, tensors: Model) -> Result<Self, EstimateError> {
        let settings = AdapterSettings::parse(config)?;
        let modules: BTreeSet<String> = tensors
            .tensors
            .iter()
            .filter_map(|tensor| {
                let (module, _) = tensor.name.split_once(".lora_A")?;
                Some(module.rsplit('.').next().unwrap_or(module).to_owned())
            })
            .collect();
        if modules.is_empty() {
            return Err(EstimateError::Config {
                problem: "expected tensors of a LoRA adapter (…lora_A.weight), found none".into(),
            });
        }
        Ok(Self {
            tensors: tensors.tensors,
            rank: settings.rank,
            modules,
            dropout: settings.dropout,
            base: settings.base,
        })
    }
}

/// What `adapter_config.json` says.
#[derive(Debug)]
pub struct AdapterSettings {
    rank: u64,
    dropout: bool,
    /// The model that it was made for.
    pub base: Option<String>,
}

impl AdapterSettings {
    /// Reads the file's text.
    pub fn parse(config: &str) -> Result<Self, EstimateError> {
        let refuse = |problem: String| EstimateError::Config { problem };
        let value: Value =
            serde_json::from_str(config).map_err(|error| refuse(format!("not JSON: {error}")))?;
        let kind = value.get("peft_type").and_then(Value::as_str);
        if kind != Some("LORA") {
            return Err(refuse(format!(
                "expected an adapter of peft_type LORA, found {}",
                kind.unwrap_or("none")
            )));
        }
        let rank = value
            .get("r")
            .and_then(Value::as_u64)
            .filter(|rank| (1..=1 << 20).contains(rank))
            .ok_or_else(|| refuse("no `r`, the rank of the adapter".to_owned()))?;
        Ok(Self {
            rank,
            dropout: value
                .get("lora_dropout")
                .and_then(Value::as_f64)
                .is_some_and(|probability| probability > 0.0),
            base: value
                .get("base_model_name_or_path")
                .and_then(Value::as_str)
                .map(ToOwned::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lora_is_taken() {
        let problem = |text: &str| AdapterSettings::parse(text).expect_err(text).to_string();
        assert!(problem(r#"{"peft_type":"IA3"}"#).contains("found IA3"));
        assert!(problem(r#"{"peft_type":"LORA"}"#).contains("`r`"));
        assert!(problem("[").contains("not JSON"));
        let settings = AdapterSettings::parse(
            r#"{"peft_type":"LORA","r":8,"lora_dropout":0.1,"base_model_name_or_path":"x/y"}"#,
        )
        .expect("settings");
        assert_eq!((settings.rank, settings.dropout), (8, true));
        assert_eq!(settings.base.as_deref(), Some("x/y"));
    }
}
