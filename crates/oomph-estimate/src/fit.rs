//! How much memory a model needs to run, and the GPUs that hold it.

use oomph_gpus::{Gpu, GpuSpec, catalogue};

use crate::adapter::ADAPTER_BYTES;
use crate::dtype::DType;
use crate::model::{Format, Model};
use crate::network::{AdapterSetting, Setting, tape};
use crate::structure::Structure;
use crate::tape::Pass;
use crate::training::{Training, optimizer_bytes};

/// How to run the model.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Sequences, images or samples at once.
    pub batch: u64,
    /// Tokens per sequence; `None` for the model's longest, up to [`Workload::DEFAULT_TOKENS`].
    pub tokens: Option<u64>,
    /// Cast floating weights to this type.
    pub dtype: Option<DType>,
    /// Type of the KV cache; that of the computation if `None`.
    pub kv_dtype: Option<DType>,
    /// Compute in this type beside weights that stay in theirs.
    pub autocast: Option<DType>,
    /// Train the model instead of running it.
    pub training: Option<Training>,
    /// Bytes that cuBLAS takes for each thread that computes: [`workspace_bytes`].
    pub workspace_bytes: u64,
}

/// What cuBLAS gets from PyTorch on a GPU of this compute capability (`None`: the newest).
pub fn workspace_bytes(gpu: Option<&Gpu>) -> u64 {
    match gpu {
        Some(gpu) if gpu.compute_capability.0 < 9 => 8_519_680,
        _ => 32 << 20,
    }
}

/// cuBLASLt's own.
const LT_WORKSPACE: u64 = 1 << 20;

impl Workload {
    /// Default tokens per sequence.
    pub const DEFAULT_TOKENS: u64 = 4096;
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            batch: 1,
            tokens: None,
            dtype: None,
            kv_dtype: None,
            autocast: None,
            training: None,
            workspace_bytes: workspace_bytes(None),
        }
    }
}

/// Where the figure for intermediate values comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The shapes in an ONNX file.
    Shapes,
    /// The operators of a known family, as transformers runs it.
    Operators,
    /// The layers' widths: a rough figure.
    Widths,
    /// There is none: the figure is 0 and the total lacks it.
    LeftOut,
}

impl Basis {
    /// As in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Shapes => "shapes",
            Self::Operators => "operators",
            Self::Widths => "widths",
            Self::LeftOut => "left_out",
        }
    }
}

/// The device memory to run the model, without the CUDA context.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Needs {
    /// All weights, in the type in which they run.
    pub weight_bytes: u64,
    /// Type of the computation: that of the cast, or that of most of the weights.
    pub compute_dtype: DType,
    /// Tokens per sequence that the cache and the activations are for.
    pub tokens: Option<u64>,
    /// KV cache of one token of one sequence; `None` where the model keeps none or it is unknown.
    pub kv_bytes_per_token: Option<u64>,
    /// KV cache of the whole workload.
    pub kv_bytes: u64,
    /// Intermediate values, if known; in training those of forward and backward, with the
    /// gradients as they come.
    pub activation_bytes: u64,
    /// Where that figure comes from.
    pub basis: Basis,
    /// Why there is none.
    pub left_out: Option<String>,
    /// Gradients of everything that is trained.
    pub gradient_bytes: u64,
    /// What the optimizer keeps.
    pub optimizer_bytes: u64,
    /// Gradients, and what the optimizer's step needs beside them.
    pub step_bytes: u64,
    /// What cuBLAS takes.
    pub workspace_bytes: u64,
    /// The most of it at one moment: a step of training is either computing or stepping.
    pub total_bytes: u64,
}

/// Works out what a workload needs.
pub fn needs(model: &Model, workload: &Workload) -> Needs {
    let adapter_bytes = model.adapter.as_ref().map_or(0, |adapter| {
        adapter.elements().saturating_mul(ADAPTER_BYTES)
    });
    let weight_bytes = workload
        .dtype
        .map_or_else(
            || model.weight_bytes(),
            |dtype| model.weight_bytes_as(dtype),
        )
        .saturating_add(adapter_bytes);
    let compute_dtype = compute_dtype(model, workload.dtype);
    let config = model.config.as_ref();
    let structure = config.and_then(|config| config.structure.as_ref());
    let fixed = structure.and_then(Structure::fixed_tokens);
    let tokens = fixed
        .map(|tokens| tokens as u64)
        .or(workload.tokens)
        .or_else(|| {
            config.map(|config| {
                config
                    .max_positions
                    .unwrap_or(Workload::DEFAULT_TOKENS)
                    .min(Workload::DEFAULT_TOKENS)
            })
        });
    let kv_bytes_per_token = config
        .and_then(|config| config.attention)
        .filter(|_| workload.training.is_none())
        .and_then(|attention| {
            workload
                .kv_dtype
                .unwrap_or(compute_dtype)
                .bytes_for(attention.elements_per_token)
        });
    let kv_bytes = kv_bytes_per_token.zip(tokens).map_or(0, |(bytes, tokens)| {
        bytes.saturating_mul(tokens).saturating_mul(workload.batch)
    });
    let mut needs = Needs {
        weight_bytes,
        compute_dtype,
        tokens,
        kv_bytes_per_token,
        kv_bytes,
        activation_bytes: 0,
        basis: Basis::LeftOut,
        left_out: None,
        gradient_bytes: 0,
        optimizer_bytes: 0,
        step_bytes: 0,
        workspace_bytes: 0,
        total_bytes: 0,
    };
    needs.activations(model, workload);
    if let Some(training) = workload.training {
        needs.training(model, workload, training);
    }
    needs.total_bytes = [
        needs.weight_bytes,
        needs.kv_bytes,
        needs.activation_bytes.max(needs.step_bytes),
        needs.optimizer_bytes,
        needs.workspace_bytes,
    ]
    .into_iter()
    .fold(0, u64::saturating_add);
    needs
}

impl Needs {
    fn activations(&mut self, model: &Model, workload: &Workload) {
        let config = model.config.as_ref();
        let structure = config.and_then(|config| config.structure.as_ref());
        let training = workload.training.is_some();
        match (model.activations, structure, config, self.tokens) {
            (Some(activations), ..) if !training => {
                self.activation_bytes = activations.peak_bytes;
                self.basis = Basis::Shapes;
            }
            (None, Some(structure), _, Some(tokens)) if model.is_floating() => {
                self.play(model, workload, structure, tokens);
            }
            (None, _, Some(config), Some(tokens)) if model.format == Format::Gguf && !training => {
                self.estimate_by_widths(config, tokens, workload.batch);
            }
            (_, None, Some(config), _) => {
                self.left_out = config
                    .unknown
                    .clone()
                    .map(|what| format!("oomph does not know {what}"));
            }
            (_, Some(_), ..) => {
                self.left_out = Some("the weights are quantized".to_owned());
            }
            _ => {
                self.left_out = Some("there is no config.json".to_owned());
            }
        }
    }

    /// One layer at a time over all tokens, as llama.cpp and its kin run it: the residual stream
    /// and a normalized copy, and three buffers of the feed-forward width. Attention by a fused
    /// kernel; logits in fp32 for the last token only.
    fn estimate_by_widths(&mut self, config: &crate::config::ModelConfig, tokens: u64, batch: u64) {
        let inner = config
            .intermediate
            .unwrap_or_else(|| config.hidden.saturating_mul(4));
        let per_token = config
            .hidden
            .saturating_mul(2)
            .saturating_add(inner.saturating_mul(3));
        let rows = tokens.saturating_mul(batch);
        let buffers = self
            .compute_dtype
            .bytes_for(per_token.saturating_mul(rows))
            .unwrap_or(u64::MAX);
        let logits = config
            .vocabulary
            .unwrap_or(0)
            .saturating_mul(batch)
            .saturating_mul(4);
        self.activation_bytes = buffers.saturating_add(logits);
        self.basis = Basis::Widths;
    }

    /// The pass operator by operator.
    fn play(&mut self, model: &Model, workload: &Workload, structure: &Structure, tokens: u64) {
        let size = bytes_of(self.compute_dtype);
        let training = workload.training;
        let setting = Setting {
            batch: workload.batch as f64,
            tokens: tokens as f64,
            size,
            autocast: workload.autocast.map(bytes_of),
            train: training.is_some(),
            checkpointing: training.is_some_and(|training| training.checkpointing),
            adapter: model.adapter.as_ref().map(|adapter| AdapterSetting {
                rank: adapter.rank as f64,
                modules: adapter.modules.iter().cloned().collect(),
                dropout: adapter.dropout,
            }),
        };
        let tape = tape(structure, &setting);
        let peak = match training {
            None => {
                // The cache is listed apart, in its own type.
                let cache = self.kv_bytes_per_token.map_or(0.0, |_| {
                    let attention = model.config.as_ref().and_then(|config| config.attention);
                    attention.map_or(0.0, |attention| {
                        attention.elements_per_token as f64
                            * workload.batch as f64
                            * tokens as f64
                            * setting.autocast.unwrap_or(size)
                    })
                });
                tape.peak(Pass::Inference, false) - cache
            }
            Some(training) => {
                let first = tape.peak(Pass::First, training.checkpointing);
                let gradients = gradient_bytes(model, self.compute_dtype) as f64;
                if training.accumulation > 1 {
                    first.max(tape.peak(Pass::Later, training.checkpointing) + gradients)
                } else {
                    first
                }
            }
        };
        self.activation_bytes = peak.max(0.0) as u64;
        self.basis = Basis::Operators;
        // The backward pass runs in a thread of its own.
        let threads = if training.is_some() { 2 } else { 1 };
        self.workspace_bytes = workload.workspace_bytes * threads + LT_WORKSPACE;
    }

    fn training(&mut self, model: &Model, workload: &Workload, training: Training) {
        let trained = model
            .adapter
            .as_ref()
            .map_or(&model.tensors, |adapter| &adapter.tensors);
        let size = match model.adapter {
            Some(_) => ADAPTER_BYTES as f64,
            None => bytes_of(workload.dtype.unwrap_or(self.compute_dtype)),
        };
        self.gradient_bytes = gradient_bytes(model, self.compute_dtype);
        let (state, scratch) = optimizer_bytes(training.optimizer, trained, size);
        self.optimizer_bytes = state as u64;
        self.step_bytes = self.gradient_bytes.saturating_add(scratch as u64);
    }
}

/// Bytes of the gradients of all that is trained.
fn gradient_bytes(model: &Model, dtype: DType) -> u64 {
    match &model.adapter {
        Some(adapter) => adapter.elements().saturating_mul(ADAPTER_BYTES),
        None => model.weight_bytes_as(dtype),
    }
}

fn bytes_of(dtype: DType) -> f64 {
    dtype.bytes_for(1).unwrap_or(4) as f64
}

/// The type that computation runs in: the cast's; else the 16- or 32-bit type of most weights;
/// else half precision, in which quantised weights are usually multiplied.
fn compute_dtype(model: &Model, cast: Option<DType>) -> DType {
    let runs = |dtype: &DType| matches!(*dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16);
    if let Some(dtype) = cast.filter(runs) {
        return dtype;
    }
    let weights = model.weights();
    let total = model.weight_bytes();
    let most = weights
        .iter()
        .filter(|(dtype, _)| runs(dtype))
        .max_by_key(|(_, group)| group.bytes);
    match most {
        // Norms in fp32 beside quantised matrices do not make an fp32 model.
        Some((dtype, group)) if group.bytes >= total / 2 => *dtype,
        _ => model
            .config
            .as_ref()
            .and_then(|config| config.dtype)
            .unwrap_or(DType::F16),
    }
}

/// A GPU and whether it holds the workload.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Candidate {
    /// The GPU.
    pub gpu: &'static Gpu,
    /// What it leaves beside its CUDA context.
    pub usable_bytes: u64,
    /// What would remain; `None` where it does not fit.
    pub spare_bytes: Option<u64>,
}

/// Every known GPU, cheapest first: by indicative hourly cost, those without one (laptop parts)
/// after the others, then by memory.
pub fn candidates(total_bytes: u64) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = catalogue()
        .iter()
        .map(|gpu| {
            let usable_bytes = gpu.usable_bytes();
            Candidate {
                gpu,
                usable_bytes,
                spare_bytes: usable_bytes.checked_sub(total_bytes),
            }
        })
        .collect();
    candidates.sort_by(|a, b| {
        let cost = |candidate: &Candidate| {
            candidate
                .gpu
                .cost
                .rank_usd_per_hour()
                .unwrap_or(f64::INFINITY)
        };
        cost(a)
            .total_cmp(&cost(b))
            .then(a.usable_bytes.cmp(&b.usable_bytes))
            .then_with(|| a.gpu.id.cmp(&b.gpu.id))
    });
    candidates
}

/// Whether the GPUs that were asked for hold the workload.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AskedGpu {
    /// Which, and how many.
    pub spec: GpuSpec,
    /// Share of one GPU if the workload is divided evenly.
    pub share_bytes: u64,
    /// What one leaves beside its CUDA context.
    pub usable_bytes: u64,
    /// Whether it fits.
    pub fits: bool,
}

impl AskedGpu {
    /// Divides `needs` among the GPUs.
    pub fn new(spec: GpuSpec, needs: &Needs) -> Self {
        let share_bytes = needs.total_bytes.div_ceil(u64::from(spec.count));
        let usable_bytes = spec.found.gpu.usable_bytes();
        Self {
            share_bytes,
            usable_bytes,
            fits: share_bytes <= usable_bytes,
            spec,
        }
    }

    /// The first cast of the weights with which it would fit, and what is needed with it in all.
    pub fn cast_that_fits(&self, model: &Model, needs: &Needs) -> Option<(&'static str, u64)> {
        [DType::BF16, DType::F8_E4M3, DType::I4]
            .into_iter()
            .zip(["bf16", "int8", "int4"])
            .find_map(|(dtype, name)| {
                let weights = model.weight_bytes_as(dtype);
                if weights >= needs.weight_bytes {
                    return None;
                }
                let total = needs.total_bytes - needs.weight_bytes + weights;
                (total.div_ceil(u64::from(self.spec.count)) <= self.usable_bytes)
                    .then_some((name, total))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_config;

    fn llama_8b() -> Model {
        Model::from_config(
            parse_config(
                r#"{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"torch_dtype":"bfloat16","max_position_embeddings":8192}"#,
            )
            .expect("config"),
        )
    }

    #[test]
    fn weights_cache_and_activations_add_up() {
        let needs = needs(
            &llama_8b(),
            &Workload {
                batch: 2,
                tokens: Some(1024),
                ..Workload::default()
            },
        );
        assert_eq!(needs.weight_bytes, 2 * 8_030_261_248);
        assert_eq!(needs.kv_bytes_per_token, Some(128 << 10));
        assert_eq!(needs.kv_bytes, 2 * 1024 * (128 << 10));
        assert_eq!(
            needs.total_bytes,
            needs.weight_bytes + needs.kv_bytes + needs.activation_bytes + needs.workspace_bytes
        );
    }

    #[test]
    fn an_8b_model_in_bf16_fits_24_gb_and_not_12() {
        let needs = needs(&llama_8b(), &Workload::default());
        let all = candidates(needs.total_bytes);
        let fits = |id: &str| {
            all.iter()
                .find(|candidate| candidate.gpu.id == id)
                .and_then(|candidate| candidate.spare_bytes)
                .is_some()
        };
        assert!(fits("rtx-4090") && fits("l4") && fits("h200"));
        assert!(!fits("rtx-3060") && !fits("rtx-4080") && !fits("t4"));
        // Sorted by cost, unknown last.
        let costs: Vec<f64> = all
            .iter()
            .map(|candidate| {
                candidate
                    .gpu
                    .cost
                    .rank_usd_per_hour()
                    .unwrap_or(f64::INFINITY)
            })
            .collect();
        assert!(costs.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn huge_workloads_saturate() {
        let needs = needs(
            &llama_8b(),
            &Workload {
                batch: u64::MAX,
                tokens: Some(u64::MAX),
                ..Workload::default()
            },
        );
        assert_eq!(needs.total_bytes, u64::MAX);
        assert!(
            candidates(needs.total_bytes)
                .iter()
                .all(|candidate| candidate.spare_bytes.is_none())
        );
    }
}
