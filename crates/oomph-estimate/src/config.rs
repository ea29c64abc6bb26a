//! Hugging Face's `config.json`: the number of parameters and the KV cache, by the layer
//! structure of each model family.
//!
//! Every formula here is checked against the parameter count of the family's own implementation
//! (`tests/parameter_counts.rs`). A family without a formula gives no parameter count, and says so.

use serde_json::{Map, Value};

use crate::dtype::DType;
use crate::error::EstimateError;
use crate::structure::Structure;

/// Real models stay far below; products of four fit into 128 bits.
const MAX_DIMENSION: u64 = 1 << 31;

/// What a configuration says about a model's size.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// `llama`, `gpt2`, …
    pub model_type: String,
    /// Number of parameters, where the family is known or weights were read.
    pub parameters: Option<u64>,
    /// The type in which the weights are meant to be loaded.
    pub dtype: Option<DType>,
    /// Layers.
    pub layers: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width inside the feed-forward blocks.
    pub intermediate: Option<u64>,
    /// Size of the vocabulary.
    pub vocabulary: Option<u64>,
    /// Longest sequence that the model is made for.
    pub max_positions: Option<u64>,
    /// What the KV cache holds; `None` for models that keep none (encoders).
    pub attention: Option<Attention>,
    /// How its layers compute, where the family is known.
    pub structure: Option<Structure>,
    /// What of it is not known otherwise.
    pub unknown: Option<String>,
    /// What could not be considered.
    pub notes: Vec<String>,
}

/// What generation keeps of each token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attention {
    /// Elements of keys and values together, over all layers, for one token.
    pub elements_per_token: u64,
    /// Tokens that layers with a sliding window look back.
    pub sliding_window: Option<u64>,
}

/// Reads a `config.json`.
pub fn parse_config(text: &str) -> Result<ModelConfig, EstimateError> {
    let value: Value = serde_json::from_str(text).map_err(|error| EstimateError::Config {
        problem: format!("not JSON: {error}"),
    })?;
    let Value::Object(root) = &value else {
        return Err(EstimateError::Config {
            problem: "expected an object".to_owned(),
        });
    };
    // Models with several modalities keep the language model's settings in an object of its own.
    let (object, part) = ["text_config", "llm_config", "language_config"]
        .into_iter()
        .find_map(|key| match root.get(key) {
            Some(Value::Object(inner)) if !root.contains_key("hidden_size") => Some((inner, key)),
            _ => None,
        })
        .map_or((root, None), |(inner, key)| (inner, Some(key)));
    let fields = Fields { object, root };
    let mut config = fields.config()?;
    if let Some(part) = part {
        config.notes.push(format!(
            "only the language model (`{part}`) is counted; other modalities add to it"
        ));
    }
    if root.contains_key("quantization_config") {
        config.notes.push(
            "quantization_config is ignored: quantized weights take less than this estimate"
                .to_owned(),
        );
    }
    Ok(config)
}

struct Fields<'a> {
    object: &'a Map<String, Value>,
    root: &'a Map<String, Value>,
}

/// The dimensions of a transformer, as 128-bit numbers so that products cannot overflow.
struct Sizes {
    layers: u128,
    hidden: u128,
    heads: u128,
    kv_heads: u128,
    head: u128,
    intermediate: u128,
    vocabulary: u128,
    positions: u128,
}

impl Fields<'_> {
    fn get(&self, names: &[&str]) -> Option<&Value> {
        names
            .iter()
            .find_map(|name| self.object.get(*name))
            .filter(|value| !value.is_null())
    }

    fn number(&self, names: &[&str]) -> Result<Option<u64>, EstimateError> {
        let Some(value) = self.get(names) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(number) if number <= MAX_DIMENSION => Ok(Some(number)),
            _ => Err(EstimateError::Config {
                problem: format!(
                    "`{}` is {value}; expected a whole number up to {MAX_DIMENSION}",
                    names[0]
                ),
            }),
        }
    }

    fn required(&self, names: &[&str]) -> Result<u64, EstimateError> {
        self.number(names)?.ok_or_else(|| EstimateError::Config {
            problem: format!(
                "no `{}`{}; is this the config.json of a model?",
                names[0],
                if names.len() > 1 {
                    format!(" (or `{}`)", names[1..].join("`, `"))
                } else {
                    String::new()
                }
            ),
        })
    }

    fn flag(&self, name: &str, default: bool) -> bool {
        self.object
            .get(name)
            .and_then(Value::as_bool)
            .unwrap_or(default)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.object
            .get(name)
            .or_else(|| self.root.get(name))
            .and_then(Value::as_str)
    }

    fn tied(&self, default: bool) -> bool {
        self.object
            .get("tie_word_embeddings")
            .or_else(|| self.root.get("tie_word_embeddings"))
            .and_then(Value::as_bool)
            .unwrap_or(default)
    }

    /// Whether the configuration is of a class whose name ends so.
    fn class_ends(&self, suffix: &str) -> bool {
        self.root
            .get("architectures")
            .and_then(Value::as_array)
            .and_then(|names| names.first())
            .and_then(Value::as_str)
            .is_some_and(|name| name.ends_with(suffix))
    }

    fn config(&self) -> Result<ModelConfig, EstimateError> {
        let model_type = self
            .object
            .get("model_type")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let layers = self.required(&[
            "num_hidden_layers",
            "n_layer",
            "n_layers",
            "num_layers",
            "decoder_layers",
        ])?;
        let hidden = self.required(&["hidden_size", "n_embd", "d_model", "dim"])?;
        let heads = self.required(&[
            "num_attention_heads",
            "n_head",
            "n_heads",
            "num_heads",
            "decoder_attention_heads",
        ])?;
        if layers == 0 || hidden == 0 || heads == 0 {
            return Err(EstimateError::Config {
                problem: format!(
                    "{layers} layers of width {hidden} with {heads} heads; each must be at least 1"
                ),
            });
        }
        let multi_query = self.flag("multi_query", false);
        let kv_heads = self
            .number(&["num_key_value_heads", "num_kv_heads"])?
            .unwrap_or(if multi_query { 1 } else { heads });
        let head = self
            .number(&["head_dim", "d_kv"])?
            .unwrap_or(hidden / heads);
        let intermediate = self.number(&[
            "intermediate_size",
            "n_inner",
            "ffn_dim",
            "d_ff",
            "hidden_dim",
        ])?;
        let vocabulary = self.number(&["vocab_size"])?;
        let max_positions = self.number(&[
            "max_position_embeddings",
            "n_positions",
            "n_ctx",
            "max_seq_len",
        ])?;
        let mut notes = Vec::new();
        let sizes = Sizes {
            layers: layers.into(),
            hidden: hidden.into(),
            heads: heads.into(),
            kv_heads: kv_heads.into(),
            head: head.into(),
            intermediate: intermediate
                .unwrap_or_else(|| hidden.saturating_mul(4))
                .into(),
            vocabulary: vocabulary.unwrap_or(0).into(),
            positions: max_positions.unwrap_or(0).into(),
        };
        let parameters = self
            .parameters(&model_type, &sizes)?
            .and_then(|count| u64::try_from(count).ok());
        if parameters.is_none() {
            notes.push(format!(
                "no formula for the parameters of model_type `{model_type}`; give the weights' file for their size"
            ));
        }
        let encoder = matches!(
            model_type.as_str(),
            "bert" | "roberta" | "xlm-roberta" | "distilbert" | "vit" | "electra" | "deberta-v2"
        );
        let attention = if encoder {
            None
        } else {
            Some(self.attention(layers, kv_heads, head, &model_type, &mut notes)?)
        };
        // A language model inside another is only a part of what runs.
        let structure = if std::ptr::eq(self.object, self.root) {
            Structure::of(self.object, self.labels() as f64)
        } else {
            Err("how the parts of a model with several modalities work together".to_owned())
        };
        let unknown = structure.as_ref().err().cloned();
        Ok(ModelConfig {
            structure: structure.ok(),
            unknown,
            dtype: self
                .text("dtype")
                .or_else(|| self.text("torch_dtype"))
                .and_then(DType::float_by_name),
            model_type,
            parameters,
            layers,
            hidden,
            intermediate,
            vocabulary,
            max_positions,
            attention,
            notes,
        })
    }

    fn attention(
        &self,
        layers: u64,
        kv_heads: u64,
        head: u64,
        model_type: &str,
        notes: &mut Vec<String>,
    ) -> Result<Attention, EstimateError> {
        // Latent attention caches one compressed vector and the rotary part of the keys.
        let latent = self.number(&["kv_lora_rank"])?;
        let per_layer = match latent {
            Some(rank) => {
                rank.saturating_add(self.number(&["qk_rope_head_dim"])?.unwrap_or_default())
            }
            None => kv_heads.saturating_mul(head).saturating_mul(2),
        };
        let window = self
            .number(&["sliding_window"])?
            .filter(|_| self.flag("use_sliding_window", model_type != "qwen2"));
        if window.is_some() {
            notes.push(
                "layers with a sliding window count as if they kept every token; a cache that drops old ones is smaller".to_owned(),
            );
        }
        if model_type == "t5" || self.flag("is_encoder_decoder", false) {
            notes.push(
                "the cache counts the decoder's own tokens; keys and values of the encoder's output add as much per input token".to_owned(),
            );
        }
        Ok(Attention {
            elements_per_token: per_layer.saturating_mul(layers),
            sliding_window: window,
        })
    }

    fn parameters(&self, model_type: &str, s: &Sizes) -> Result<Option<u128>, EstimateError> {
        let h = s.hidden;
        let i = s.intermediate;
        let count = match model_type {
            "llama" | "mistral" | "qwen2" | "qwen3" | "gemma" | "gemma2" | "gemma3_text"
            | "phi3" | "granite" | "mixtral" | "qwen2_moe" | "qwen3_moe" => {
                self.decoder(model_type, s)?
            }
            "gpt2" => {
                let layer = 4 * h + attention_block(h) + mlp(h, i);
                s.vocabulary * h + s.positions * h + s.layers * layer + 2 * h
            }
            "gpt_neox" => {
                let layer = 4 * h + attention_block(h) + mlp(h, i);
                let head = if self.tied(false) {
                    0
                } else {
                    s.vocabulary * h
                };
                s.vocabulary * h + s.layers * layer + 2 * h + head
            }
            "phi" => {
                let kv = s.kv_heads * s.head;
                let layer = 2 * h + (h * h + h) * 2 + (h * kv + kv) * 2 + mlp(h, i);
                s.vocabulary * h + s.layers * layer + 2 * h + s.vocabulary * h + s.vocabulary
            }
            "bloom" => {
                let layer = 4 * h + attention_block(h) + mlp(h, 4 * h);
                s.vocabulary * h + 2 * h + s.layers * layer + 2 * h
            }
            "opt" => {
                let projection = u128::from(
                    self.number(&["word_embed_proj_dim"])?
                        .unwrap_or(s.hidden as u64),
                );
                let project = if projection == h {
                    0
                } else {
                    2 * h * projection
                };
                let last = if self.flag("do_layer_norm_before", true)
                    && !self.flag("_remove_final_layer_norm", false)
                {
                    2 * h
                } else {
                    0
                };
                let layer = 4 * h + attention_block(h) + mlp(h, i);
                s.vocabulary * projection
                    // Positions begin at 2.
                    + (s.positions + 2) * h
                    + project
                    + s.layers * layer
                    + last
            }
            "bert" | "roberta" | "xlm-roberta" => {
                let types = u128::from(self.number(&["type_vocab_size"])?.unwrap_or(2));
                let layer = 4 * h + attention_block(h) + mlp(h, i);
                let base = (s.vocabulary + s.positions + types) * h + 2 * h + s.layers * layer;
                let labels = self.labels();
                let roberta = model_type != "bert";
                if self.class_ends("ForMaskedLM") {
                    base + h * h + h + 2 * h + s.vocabulary
                } else if self.class_ends("ForSequenceClassification") {
                    // RoBERTa's classifier has its own dense layer in the pooler's place.
                    base + h * h + h + labels * h + labels
                } else if self.class_ends("ForTokenClassification")
                    || self.class_ends("ForQuestionAnswering")
                {
                    base + labels * h + labels
                } else if roberta || !self.class_ends("ForCausalLM") {
                    base + h * h + h
                } else {
                    return Ok(None);
                }
            }
            "distilbert" => {
                let layer = 4 * h + attention_block(h) + mlp(h, i);
                let base = (s.vocabulary + s.positions) * h + 2 * h + s.layers * layer;
                let labels = self.labels();
                if self.class_ends("ForMaskedLM") {
                    base + h * h + h + 2 * h + s.vocabulary
                } else if self.class_ends("ForSequenceClassification") {
                    base + h * h + h + labels * h + labels
                } else {
                    base
                }
            }
            "vit" => {
                let image = u128::from(self.number(&["image_size"])?.unwrap_or(224));
                let patch = u128::from(self.number(&["patch_size"])?.unwrap_or(16));
                let channels = u128::from(self.number(&["num_channels"])?.unwrap_or(3));
                if patch == 0 {
                    return Err(EstimateError::Config {
                        problem: "`patch_size` is 0; expected at least 1".to_owned(),
                    });
                }
                let patches = (image / patch) * (image / patch);
                let labels = self.labels();
                let layer = 4 * h + attention_block(h) + mlp(h, i);
                let base = patch * patch * channels * h
                    + h
                    + h
                    + (patches + 1) * h
                    + s.layers * layer
                    + 2 * h;
                if self.class_ends("ForImageClassification") {
                    base + labels * h + labels
                } else {
                    base + h * h + h
                }
            }
            "t5" => self.t5(s)?,
            _ => return Ok(None),
        };
        Ok(Some(count))
    }

    /// Decoders with rotary positions, RMS norms and gated feed-forward blocks.
    fn decoder(&self, model_type: &str, s: &Sizes) -> Result<u128, EstimateError> {
        let h = s.hidden;
        let q = s.heads * s.head;
        let kv = s.kv_heads * s.head;
        let mut layer = h * q + 2 * h * kv + q * h;
        match model_type {
            "qwen2" | "qwen2_moe" if self.flag("qkv_bias", true) => layer += q + 2 * kv,
            "llama" | "qwen3" | "qwen3_moe" | "gemma" | "gemma2" | "gemma3_text" | "granite"
                if self.flag("attention_bias", false) =>
            {
                layer += q + 2 * kv + h;
            }
            _ => {}
        }
        if matches!(model_type, "qwen3" | "qwen3_moe" | "gemma3_text") {
            layer += 2 * s.head;
        }
        let norms = if matches!(model_type, "gemma2" | "gemma3_text") {
            4
        } else {
            2
        };
        layer += norms * h;
        let i = s.intermediate;
        let mut dense = 3 * h * i;
        if matches!(model_type, "llama" | "granite") && self.flag("mlp_bias", false) {
            dense += 2 * i + h;
        }
        let mut total = s.layers * layer;
        total += match model_type {
            "mixtral" => {
                let experts = u128::from(self.required(&["num_local_experts"])?);
                s.layers * (experts * dense + experts * h)
            }
            "qwen2_moe" | "qwen3_moe" => {
                let experts = u128::from(self.required(&["num_experts", "num_local_experts"])?);
                let inner = u128::from(self.required(&["moe_intermediate_size"])?);
                let mut sparse = experts * 3 * h * inner + experts * h;
                if model_type == "qwen2_moe" {
                    let shared = u128::from(self.required(&["shared_expert_intermediate_size"])?);
                    sparse += 3 * h * shared + h;
                }
                let step = self.number(&["decoder_sparse_step"])?.unwrap_or(1);
                let dense_layers: Vec<u64> = self
                    .get(&["mlp_only_layers"])
                    .and_then(Value::as_array)
                    .map(|layers| layers.iter().filter_map(Value::as_u64).collect())
                    .unwrap_or_default();
                (0..s.layers.min(u128::from(MAX_DIMENSION)))
                    .map(|index| {
                        let index = index as u64;
                        let is_sparse = experts > 0
                            && step > 0
                            && (index + 1).is_multiple_of(step)
                            && !dense_layers.contains(&index);
                        if is_sparse { sparse } else { dense }
                    })
                    .sum()
            }
            _ => s.layers * dense,
        };
        let tied = self.tied(matches!(model_type, "gemma" | "gemma2" | "gemma3_text"));
        let head = if tied { 0 } else { s.vocabulary * h };
        Ok(total + s.vocabulary * h + h + head)
    }

    fn t5(&self, s: &Sizes) -> Result<u128, EstimateError> {
        let h = s.hidden;
        let inner = s.heads * s.head;
        let gated = self.flag("is_gated_act", false)
            || self
                .text("feed_forward_proj")
                .is_some_and(|name| name.starts_with("gated"));
        let feed = if gated { 3 } else { 2 } * h * s.intermediate + h;
        let attention = 4 * h * inner + h;
        let buckets = u128::from(
            self.number(&["relative_attention_num_buckets"])?
                .unwrap_or(32),
        );
        let decoder_layers = u128::from(
            self.number(&["num_decoder_layers"])?
                .unwrap_or(s.layers as u64),
        );
        let encoder = s.layers * (attention + feed) + buckets * s.heads + h;
        let decoder = decoder_layers * (2 * attention + feed) + buckets * s.heads + h;
        let head = if self.tied(true) || self.class_ends("T5Model") {
            0
        } else {
            s.vocabulary * h
        };
        Ok(s.vocabulary * h + encoder + decoder + head)
    }

    fn labels(&self) -> u128 {
        self.root
            .get("id2label")
            .and_then(Value::as_object)
            .map(|labels| labels.len() as u128)
            .or_else(|| {
                self.root
                    .get("num_labels")
                    .and_then(Value::as_u64)
                    .map(u128::from)
            })
            .unwrap_or(2)
    }
}

/// Query, key, value and output projections with biases.
fn attention_block(h: u128) -> u128 {
    4 * (h * h + h)
}

/// Two projections with biases.
fn mlp(h: u128, i: u128) -> u128 {
    2 * h * i + i + h
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_llama() {
        let config = parse_config(
            r#"{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"tie_word_embeddings":false,"torch_dtype":"bfloat16","max_position_embeddings":8192}"#,
        )
        .expect("config");
        assert_eq!(config.parameters, Some(8_030_261_248));
        assert_eq!(config.dtype, Some(DType::BF16));
        // 32 layers x 8 heads x 128 x 2: 128 KiB in bf16.
        assert_eq!(
            config.attention.expect("attention").elements_per_token,
            65_536
        );
    }

    #[test]
    fn an_unknown_family_says_so() {
        let config = parse_config(
            r#"{"model_type":"newnet","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4}"#,
        )
        .expect("config");
        assert_eq!(config.parameters, None);
        assert!(config.notes[0].contains("newnet"), "{:?}", config.notes);
        assert!(config.attention.is_some());
    }

    #[test]
    fn nonsense_is_refused() {
        for (text, problem) in [
            ("", "not JSON"),
            ("[]", "expected an object"),
            ("{}", "num_hidden_layers"),
            (
                r#"{"hidden_size":0,"num_hidden_layers":1,"num_attention_heads":1}"#,
                "at least 1",
            ),
            (
                r#"{"hidden_size":-5,"num_hidden_layers":1,"num_attention_heads":1}"#,
                "-5",
            ),
            (
                r#"{"hidden_size":99999999999999,"num_hidden_layers":1,"num_attention_heads":1}"#,
                "whole number up to",
            ),
            (
                r#"{"hidden_size":"64","num_hidden_layers":1,"num_attention_heads":1}"#,
                "\"64\"",
            ),
        ] {
            let error = parse_config(text).expect_err(text).to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
