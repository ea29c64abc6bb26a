//! The structure of a network whose operators oomph knows, from its `config.json`.

use serde_json::{Map, Value};

/// More layers than this are not played operator by operator.
const MAX_LAYERS: u64 = 1024;

/// What a pass through the network depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct Structure {
    pub(crate) hidden: f64,
    pub(crate) layers: u64,
    pub(crate) heads: f64,
    pub(crate) kv_heads: f64,
    /// Width of one head.
    pub(crate) head: f64,
    pub(crate) intermediate: f64,
    pub(crate) vocabulary: f64,
    /// Positions with an embedding of their own.
    pub(crate) positions: f64,
    pub(crate) activation: Activation,
    /// Probability of dropout in the residual stream.
    pub(crate) dropout: f64,
    pub(crate) attention_bias: bool,
    pub(crate) output_bias: bool,
    pub(crate) feed_bias: bool,
    /// Experts, and how many work on a token.
    pub(crate) experts: Option<(f64, f64)>,
    pub(crate) head_kind: Head,
    pub(crate) body: Body,
}

/// A kind of network.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Body {
    /// Rotary positions and gated blocks; `norms` are those of queries and keys.
    Decoder {
        bias: bool,
        norms: bool,
    },
    Gpt2,
    /// `types`: entries of the embedding of token types.
    Bert {
        types: f64,
    },
    /// `patch_inputs`: numbers in a patch; `patches` in an image.
    Vit {
        patch_inputs: f64,
        patches: f64,
    },
    T5 {
        decoder_layers: u64,
        gated: bool,
        buckets: f64,
    },
    Whisper {
        decoder_layers: u64,
        decoder_inner: f64,
        frames: f64,
        bins: f64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    Gelu,
    NewGelu,
    Relu,
}

/// What stands on top of the layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Head {
    /// A word for each token; `upcast` where the loss makes a copy in fp32.
    Language { tied: bool, upcast: bool },
    /// A word for each token, after a layer of its own.
    Masked { tied: bool },
    /// Classes of each token.
    TokenLabels { count: f64 },
    /// Classes of whole inputs; 0 for none.
    Labels { pooler: bool, count: f64 },
}

impl Structure {
    /// Tokens of one input where the model says so, whatever the workload.
    pub(crate) fn fixed_tokens(&self) -> Option<f64> {
        match self.body {
            Body::Vit { patches, .. } => Some(patches + 1.0),
            _ => None,
        }
    }

    /// The structure of a known family, or why there is none.
    pub(crate) fn of(config: &Map<String, Value>, labels: f64) -> Result<Self, String> {
        Reader { config, labels }.structure()
    }
}

struct Reader<'a> {
    config: &'a Map<String, Value>,
    labels: f64,
}

impl Reader<'_> {
    fn number(&self, name: &str) -> Option<f64> {
        self.config.get(name).and_then(Value::as_f64)
    }

    fn required(&self, name: &str) -> Result<f64, String> {
        self.number(name)
            .filter(|number| (1.0..=2_147_483_648.0).contains(number))
            .ok_or_else(|| format!("`{name}` is missing or no size"))
    }

    fn flag(&self, name: &str, default: bool) -> bool {
        self.config
            .get(name)
            .and_then(Value::as_bool)
            .unwrap_or(default)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.config.get(name).and_then(Value::as_str)
    }

    fn class(&self) -> &str {
        self.config
            .get("architectures")
            .and_then(Value::as_array)
            .and_then(|names| names.first())
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn layers(&self, name: &str) -> Result<u64, String> {
        let layers = self.required(name)? as u64;
        if layers > MAX_LAYERS {
            return Err(format!("{layers} layers; oomph plays at most {MAX_LAYERS}"));
        }
        Ok(layers)
    }

    fn activation(&self, names: [&str; 2], default: &str) -> Result<Activation, String> {
        let name = names.iter().find_map(|name| self.text(name));
        Ok(match name.unwrap_or(default) {
            "silu" | "swish" => Activation::Silu,
            "gelu" | "gelu_pytorch_tanh" => Activation::Gelu,
            "gelu_new" => Activation::NewGelu,
            "relu" => Activation::Relu,
            other => return Err(format!("activation function `{other}`")),
        })
    }

    fn structure(&self) -> Result<Structure, String> {
        let model_type = self.text("model_type").unwrap_or_default();
        match model_type {
            "llama" | "mistral" | "qwen2" | "qwen3" | "mixtral" => self.decoder(model_type),
            "gpt2" => self.gpt2(),
            "bert" => self.bert(),
            "vit" => self.vit(),
            "t5" => self.t5(),
            "whisper" => self.whisper(),
            _ => Err(format!("model_type `{model_type}`")),
        }
    }

    /// Fields of most families; heads and the like are for the caller to change.
    fn common(&self, names: &Names, body: Body) -> Result<Structure, String> {
        let hidden = self.required(names.hidden)?;
        let heads = self.required(names.heads)?;
        Ok(Structure {
            hidden,
            layers: self.layers(names.layers)?,
            heads,
            kv_heads: heads,
            head: hidden / heads,
            intermediate: self.number(names.intermediate).unwrap_or(4.0 * hidden),
            vocabulary: self.number("vocab_size").unwrap_or(0.0),
            positions: 0.0,
            activation: Activation::Gelu,
            dropout: 0.0,
            attention_bias: true,
            output_bias: true,
            feed_bias: true,
            experts: None,
            head_kind: Head::Labels {
                pooler: false,
                count: 0.0,
            },
            body,
        })
    }

    fn causal(&self, tied: bool) -> Result<Head, String> {
        match self.class() {
            class if class.ends_with("ForCausalLM") || class.ends_with("LMHeadModel") => {
                Ok(Head::Language { tied, upcast: true })
            }
            "" => Ok(Head::Language { tied, upcast: true }),
            class => Err(format!("the head of `{class}`")),
        }
    }

    fn decoder(&self, model_type: &str) -> Result<Structure, String> {
        let bias = model_type == "qwen2" || self.flag("attention_bias", false);
        let mut structure = self.common(
            &NAMES,
            Body::Decoder {
                bias,
                norms: model_type == "qwen3",
            },
        )?;
        structure.kv_heads = self
            .number("num_key_value_heads")
            .unwrap_or(structure.heads);
        structure.head = self.number("head_dim").unwrap_or(structure.head);
        structure.activation = self.activation(["hidden_act", "hidden_activation"], "silu")?;
        structure.output_bias = model_type != "qwen2" && bias;
        structure.feed_bias = self.flag("mlp_bias", false);
        if model_type == "mixtral" {
            structure.experts = Some((
                self.required("num_local_experts")?,
                self.required("num_experts_per_tok")?,
            ));
        }
        structure.head_kind = self.causal(self.flag("tie_word_embeddings", false))?;
        Ok(structure)
    }

    fn gpt2(&self) -> Result<Structure, String> {
        let names = Names {
            hidden: "n_embd",
            layers: "n_layer",
            heads: "n_head",
            intermediate: "n_inner",
        };
        let mut structure = self.common(&names, Body::Gpt2)?;
        structure.positions = self.number("n_positions").unwrap_or(1024.0);
        structure.activation = self.activation(["activation_function", ""], "gelu_new")?;
        structure.dropout = self.number("resid_pdrop").unwrap_or(0.1);
        structure.head_kind = self.causal(self.flag("tie_word_embeddings", true))?;
        Ok(structure)
    }

    fn bert(&self) -> Result<Structure, String> {
        let types = self.number("type_vocab_size").unwrap_or(2.0);
        let mut structure = self.common(&NAMES, Body::Bert { types })?;
        structure.positions = self.number("max_position_embeddings").unwrap_or(512.0);
        structure.activation = self.activation(["hidden_act", ""], "gelu")?;
        structure.dropout = self.number("hidden_dropout_prob").unwrap_or(0.1);
        let pooled = |count| Head::Labels {
            pooler: true,
            count,
        };
        structure.head_kind = match self.class() {
            "BertForSequenceClassification" => pooled(self.labels),
            "" | "BertModel" => pooled(0.0),
            "BertForMaskedLM" => Head::Masked {
                tied: self.flag("tie_word_embeddings", true),
            },
            "BertForTokenClassification" => Head::TokenLabels { count: self.labels },
            class => return Err(format!("the head of `{class}`")),
        };
        Ok(structure)
    }

    fn vit(&self) -> Result<Structure, String> {
        let side = (self.number("image_size").unwrap_or(224.0)
            / self.number("patch_size").unwrap_or(16.0).max(1.0))
        .floor();
        let patch = self.number("patch_size").unwrap_or(16.0);
        let channels = self.number("num_channels").unwrap_or(3.0);
        let body = Body::Vit {
            patch_inputs: patch * patch * channels,
            patches: side * side,
        };
        let mut structure = self.common(&NAMES, body)?;
        structure.activation = self.activation(["hidden_act", ""], "gelu")?;
        structure.dropout = self.number("hidden_dropout_prob").unwrap_or(0.0);
        structure.attention_bias = self.flag("qkv_bias", true);
        let classifies = match self.class() {
            class if class.ends_with("ForImageClassification") => true,
            "" | "ViTModel" => false,
            class => return Err(format!("the head of `{class}`")),
        };
        structure.head_kind = Head::Labels {
            pooler: !classifies,
            count: if classifies { self.labels } else { 0.0 },
        };
        Ok(structure)
    }

    fn t5(&self) -> Result<Structure, String> {
        let names = Names {
            hidden: "d_model",
            layers: "num_layers",
            heads: "num_heads",
            intermediate: "d_ff",
        };
        let feed = self.text("feed_forward_proj").unwrap_or("relu");
        let body = Body::T5 {
            decoder_layers: if self.config.contains_key("num_decoder_layers") {
                self.layers("num_decoder_layers")?
            } else {
                self.layers("num_layers")?
            },
            gated: feed.starts_with("gated-"),
            buckets: self
                .number("relative_attention_num_buckets")
                .unwrap_or(32.0),
        };
        let mut structure = self.common(&names, body)?;
        structure.head = self.number("d_kv").unwrap_or(structure.head);
        let plain = feed.trim_start_matches("gated-");
        structure.activation = match self.text("dense_act_fn").unwrap_or(plain) {
            "relu" => Activation::Relu,
            "gelu_new" => Activation::NewGelu,
            "gelu" if feed.starts_with("gated-") => Activation::NewGelu,
            "gelu" => Activation::Gelu,
            "silu" => Activation::Silu,
            other => return Err(format!("activation function `{other}`")),
        };
        structure.dropout = self.number("dropout_rate").unwrap_or(0.1);
        structure.attention_bias = false;
        structure.output_bias = false;
        structure.feed_bias = false;
        structure.head_kind = self.generating(self.flag("tie_word_embeddings", true))?;
        Ok(structure)
    }

    fn generating(&self, tied: bool) -> Result<Head, String> {
        match self.class() {
            class if class.is_empty() || class.ends_with("ForConditionalGeneration") => {
                Ok(Head::Language {
                    tied,
                    upcast: false,
                })
            }
            class => Err(format!("the head of `{class}`")),
        }
    }

    fn whisper(&self) -> Result<Structure, String> {
        let names = Names {
            hidden: "d_model",
            layers: "encoder_layers",
            heads: "encoder_attention_heads",
            intermediate: "encoder_ffn_dim",
        };
        let body = Body::Whisper {
            decoder_layers: self.layers("decoder_layers")?,
            decoder_inner: self.required("decoder_ffn_dim")?,
            frames: self.number("max_source_positions").unwrap_or(1500.0),
            bins: self.number("num_mel_bins").unwrap_or(80.0),
        };
        let mut structure = self.common(&names, body)?;
        structure.positions = self.number("max_target_positions").unwrap_or(448.0);
        structure.activation = self.activation(["activation_function", ""], "gelu")?;
        structure.dropout = self.number("dropout").unwrap_or(0.0);
        structure.head_kind = self.generating(true)?;
        Ok(structure)
    }
}

struct Names {
    hidden: &'static str,
    layers: &'static str,
    heads: &'static str,
    intermediate: &'static str,
}

const NAMES: Names = Names {
    hidden: "hidden_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    intermediate: "intermediate_size",
};
