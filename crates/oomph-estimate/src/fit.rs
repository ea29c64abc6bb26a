//! How much memory a model needs to run, and the GPUs that hold it.

use oomph_gpus::{Gpu, GpuSpec, catalogue};

use crate::dtype::DType;
use crate::model::Model;

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
}

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
    /// Intermediate values, if known.
    pub activation_bytes: u64,
    /// Whether `activation_bytes` comes from shapes in the file (otherwise from the layers'
    /// widths, or it is unknown and 0).
    pub activations_from_shapes: bool,
    /// Sum of the above.
    pub total_bytes: u64,
}

/// Works out what a workload needs.
pub fn needs(model: &Model, workload: &Workload) -> Needs {
    let weight_bytes = workload.dtype.map_or_else(
        || model.weight_bytes(),
        |dtype| model.weight_bytes_as(dtype),
    );
    let compute_dtype = compute_dtype(model, workload.dtype);
    let config = model.config.as_ref();
    let tokens = workload.tokens.or_else(|| {
        config.map(|config| {
            config
                .max_positions
                .unwrap_or(Workload::DEFAULT_TOKENS)
                .min(Workload::DEFAULT_TOKENS)
        })
    });
    let kv_bytes_per_token = config
        .and_then(|config| config.attention)
        .and_then(|attention| {
            workload
                .kv_dtype
                .unwrap_or(compute_dtype)
                .bytes_for(attention.elements_per_token)
        });
    let kv_bytes = kv_bytes_per_token.zip(tokens).map_or(0, |(bytes, tokens)| {
        bytes.saturating_mul(tokens).saturating_mul(workload.batch)
    });
    let (activation_bytes, activations_from_shapes) = match (model.activations, config, tokens) {
        (Some(activations), _, _) => (activations.peak_bytes, true),
        (None, Some(config), Some(tokens)) => {
            // One layer at a time over all tokens: the residual stream and a normalized copy,
            // and three buffers of the feed-forward width. Attention by a fused kernel; logits in
            // fp32 for the last token only.
            let inner = config
                .intermediate
                .unwrap_or_else(|| config.hidden.saturating_mul(4));
            let per_token = config
                .hidden
                .saturating_mul(2)
                .saturating_add(inner.saturating_mul(3));
            let rows = tokens.saturating_mul(workload.batch);
            let buffers = compute_dtype
                .bytes_for(per_token.saturating_mul(rows))
                .unwrap_or(u64::MAX);
            let logits = config
                .vocabulary
                .unwrap_or(0)
                .saturating_mul(workload.batch)
                .saturating_mul(4);
            (buffers.saturating_add(logits), false)
        }
        _ => (0, false),
    };
    Needs {
        weight_bytes,
        compute_dtype,
        tokens,
        kv_bytes_per_token,
        kv_bytes,
        activation_bytes,
        activations_from_shapes,
        total_bytes: weight_bytes
            .saturating_add(kv_bytes)
            .saturating_add(activation_bytes),
    }
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
            needs.weight_bytes + needs.kv_bytes + needs.activation_bytes
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
