//! The levers: what can be changed in a job so that it needs less memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How far results stay the same under a lever; the later, the less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Results {
    /// Bitwise the same on the same kernels.
    Exact,
    /// The same mathematics in another order: equal to rounding.
    Rounding,
    /// Other numerics: another precision, or compressed state.
    Numerics,
}

/// A floating-point type of fewer bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the types' own names")]
pub enum Dtype {
    #[default]
    Bf16,
    Fp16,
}

impl Dtype {
    /// As plan files and `--json` have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        }
    }

    /// PyTorch's name.
    pub const fn torch(self) -> &'static str {
        match self {
            Self::Bf16 => "torch.bfloat16",
            Self::Fp16 => "torch.float16",
        }
    }
}

/// A kernel of `scaled_dot_product_attention`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "PyTorch's own names")]
pub enum Attention {
    Flash,
    Efficient,
    Cudnn,
}

/// How an optimizer goes over its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerStep {
    /// One kernel for many tensors, without temporaries.
    Fused,
    /// One parameter after the other.
    SingleTensor,
}

/// How linear layers with weights of 8 bits multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Int8 {
    /// The weights are made wide for the product.
    WeightOnly,
    /// The inputs are rounded to 8 bits too, and integers multiplied.
    Dynamic,
}

/// One change. Modules are named as `oomph run` names them: the class of the outermost module,
/// then the path as in `named_modules()`, such as `GPT.blocks.3`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum Lever {
    /// Settings of PyTorch's allocator, as in `PYTORCH_CUDA_ALLOC_CONF`.
    Allocator {
        /// `key:value` pairs, separated by commas.
        conf: String,
    },
    /// `torch.backends.cudnn.benchmark`.
    CudnnBenchmark {
        /// Whether cuDNN tries kernels.
        enabled: bool,
    },
    /// TF32 in matrix products and convolutions.
    Tf32 {
        /// Whether it is allowed.
        enabled: bool,
    },
    /// `zero_grad(set_to_none=True)`.
    SetToNone {},
    /// Another implementation of the optimizer's step.
    OptimizerStep {
        /// Which.
        kind: OptimizerStep,
    },
    /// No graph while the model evaluates.
    NoGradEval {},
    /// Activation functions write over their inputs.
    InplaceActivations {
        /// The activation modules.
        modules: Vec<String>,
    },
    /// Modules of several operators become one kernel.
    FusedModules {
        /// Activations and normalizations.
        modules: Vec<String>,
    },
    /// A batch in `parts` micro-batches, with the gradients accumulated.
    MicroBatch {
        /// How many.
        parts: u32,
    },
    /// Autocast around the forward pass; with gradient scaling for fp16.
    MixedPrecision {
        /// The lower precision.
        dtype: Dtype,
    },
    /// Attention that never writes the matrix of scores.
    Attention {
        /// The kernel to prefer.
        backend: Attention,
    },
    /// Cross-entropy over a large vocabulary, a part of the rows at a time.
    ChunkedCrossEntropy {
        /// How many parts.
        chunks: u32,
    },
    /// Inference with those logits over a vocabulary only that are looked at, a part at a time.
    ChunkedLogits {},
    /// Results of cheap modules are computed again in the backward pass.
    Recompute {
        /// Whose results are not kept.
        modules: Vec<String>,
    },
    /// The inside of modules is computed again in the backward pass.
    Checkpoint {
        /// Whose inside is not kept.
        modules: Vec<String>,
    },
    /// Saved activations wait in pinned host memory.
    OffloadActivations {
        /// Whose activations.
        modules: Vec<String>,
    },
    /// Each parameter steps as soon as its gradient is there, which is then freed.
    StepInBackward {},
    /// The optimizer's state in 8 bits.
    #[serde(rename = "optimizer_8bit")]
    Optimizer8bit {},
    /// The optimizer's state in host memory.
    OptimizerOnCpu {},
    /// Inference without a graph.
    InferenceMode {},
    /// Inference with weights and activations in 16 bits.
    HalfWeights {
        /// The type.
        dtype: Dtype,
    },
    /// Inference with the weights of linear layers in 8 bits.
    Int8Linear {
        /// How they multiply.
        kind: Int8,
    },
    /// Inference with a part of the batch at a time.
    SplitBatch {
        /// How many parts.
        parts: u32,
    },
    /// Generation with a cache of keys and values in few bits.
    KvCache {
        /// How many.
        bits: u32,
    },
    /// Inference with modules' weights in host memory, brought ahead of their use.
    StreamWeights {
        /// The modules.
        modules: Vec<String>,
    },
    /// Checkpoints are read into host memory, and models cast before they are moved.
    LoadOnCpu {
        /// The type to cast to.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        dtype: Option<Dtype>,
    },
    /// Models compiled by `torch.compile`.
    Compile {},
    /// Several GPUs train together, each with its part of every batch.
    Shard {
        /// How many, one rank each.
        gpus: u32,
        /// How many of them hold the model together: 1 is data parallelism, all of them full
        /// sharding, less are groups that are replicas of each other.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        shards: u32,
        /// The blocks whose parameters are gathered one at a time.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        modules: Vec<String>,
        /// Whether they are dropped again after their forward pass.
        #[serde(default = "yes", skip_serializing_if = "is_yes")]
        reshard: bool,
        /// What parameters are gathered and computed in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dtype: Option<Dtype>,
        /// Whether parameters, gradients and optimizer state lie in host memory.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        offload: bool,
        /// Whether some parameters get no gradient in some steps.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unused: bool,
    },
}

const fn one() -> u32 {
    1
}

const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_one(number: &u32) -> bool {
    *number == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_yes(value: &bool) -> bool {
    *value
}

/// Names of all levers, in the order in which they are applied and listed.
pub const NAMES: [&str; 28] = [
    "allocator",
    "cudnn_benchmark",
    "tf32",
    "load_on_cpu",
    "set_to_none",
    "optimizer_step",
    "no_grad_eval",
    "inference_mode",
    "inplace_activations",
    "fused_modules",
    "attention",
    "chunked_cross_entropy",
    "chunked_logits",
    "mixed_precision",
    "half_weights",
    "int8_linear",
    "kv_cache",
    "checkpoint",
    "offload_activations",
    "recompute",
    "micro_batch",
    "split_batch",
    "step_in_backward",
    "optimizer_8bit",
    "optimizer_on_cpu",
    "stream_weights",
    "compile",
    "shard",
];

impl Lever {
    /// Its name, as in plan files and `--allow`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Allocator { .. } => "allocator",
            Self::CudnnBenchmark { .. } => "cudnn_benchmark",
            Self::Tf32 { .. } => "tf32",
            Self::SetToNone {} => "set_to_none",
            Self::OptimizerStep { .. } => "optimizer_step",
            Self::NoGradEval {} => "no_grad_eval",
            Self::InplaceActivations { .. } => "inplace_activations",
            Self::FusedModules { .. } => "fused_modules",
            Self::MicroBatch { .. } => "micro_batch",
            Self::MixedPrecision { .. } => "mixed_precision",
            Self::Attention { .. } => "attention",
            Self::ChunkedCrossEntropy { .. } => "chunked_cross_entropy",
            Self::ChunkedLogits {} => "chunked_logits",
            Self::Recompute { .. } => "recompute",
            Self::Checkpoint { .. } => "checkpoint",
            Self::OffloadActivations { .. } => "offload_activations",
            Self::StepInBackward {} => "step_in_backward",
            Self::Optimizer8bit {} => "optimizer_8bit",
            Self::OptimizerOnCpu {} => "optimizer_on_cpu",
            Self::InferenceMode {} => "inference_mode",
            Self::HalfWeights { .. } => "half_weights",
            Self::Int8Linear { .. } => "int8_linear",
            Self::SplitBatch { .. } => "split_batch",
            Self::KvCache { .. } => "kv_cache",
            Self::StreamWeights { .. } => "stream_weights",
            Self::LoadOnCpu { .. } => "load_on_cpu",
            Self::Compile {} => "compile",
            Self::Shard { .. } => "shard",
        }
    }

    /// How far the job's results stay the same.
    pub fn results(&self) -> Results {
        match self {
            Self::Allocator { .. }
            | Self::SetToNone {}
            | Self::NoGradEval {}
            | Self::InplaceActivations { .. }
            | Self::Recompute { .. }
            | Self::Checkpoint { .. }
            | Self::OffloadActivations { .. }
            | Self::InferenceMode {}
            | Self::StreamWeights { .. }
            | Self::LoadOnCpu { .. }
            | Self::StepInBackward {} => Results::Exact,
            Self::CudnnBenchmark { .. }
            | Self::OptimizerStep { .. }
            | Self::FusedModules { .. }
            | Self::MicroBatch { .. }
            | Self::Attention { .. }
            | Self::ChunkedCrossEntropy { .. }
            | Self::ChunkedLogits {}
            | Self::SplitBatch { .. }
            | Self::Compile {}
            | Self::Shard { dtype: None, .. }
            | Self::OptimizerOnCpu {} => Results::Rounding,
            Self::Tf32 { .. }
            | Self::MixedPrecision { .. }
            | Self::HalfWeights { .. }
            | Self::Int8Linear { .. }
            | Self::KvCache { .. }
            | Self::Shard { dtype: Some(_), .. }
            | Self::Optimizer8bit {} => Results::Numerics,
        }
    }
}

/// A few words for a table.
impl fmt::Display for Lever {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocator { conf } => write!(out, "allocator {conf}"),
            Self::CudnnBenchmark { enabled } => write!(out, "cuDNN benchmark {}", on(*enabled)),
            Self::Tf32 { enabled } => write!(out, "TF32 {}", on(*enabled)),
            Self::SetToNone {} => write!(out, "zero_grad to none"),
            Self::OptimizerStep { kind } => match kind {
                OptimizerStep::Fused => write!(out, "fused optimizer"),
                OptimizerStep::SingleTensor => write!(out, "single-tensor optimizer"),
            },
            Self::NoGradEval {} => write!(out, "no graph in evaluation"),
            Self::InplaceActivations { modules } => {
                write!(out, "in-place activations in {}", places(modules))
            }
            Self::FusedModules { modules } => write!(out, "one kernel for {}", places(modules)),
            Self::MicroBatch { parts } => write!(out, "micro-batches: {parts} a batch"),
            Self::MixedPrecision { dtype } => match dtype {
                Dtype::Bf16 => write!(out, "bf16 autocast"),
                Dtype::Fp16 => write!(out, "fp16 autocast with scaling"),
            },
            Self::Attention { backend } => match backend {
                Attention::Flash => write!(out, "flash attention"),
                Attention::Efficient => write!(out, "memory-efficient attention"),
                Attention::Cudnn => write!(out, "cuDNN attention"),
            },
            Self::ChunkedCrossEntropy { chunks } => {
                write!(out, "cross-entropy in {chunks} chunks")
            }
            Self::ChunkedLogits {} => write!(out, "logits in chunks"),
            Self::Recompute { modules } => write!(out, "recompute {}", places(modules)),
            Self::Checkpoint { modules } => write!(out, "checkpoint {}", places(modules)),
            Self::OffloadActivations { modules } => {
                write!(out, "offload activations of {}", places(modules))
            }
            Self::StepInBackward {} => write!(out, "step inside backward"),
            Self::Optimizer8bit {} => write!(out, "8-bit optimizer state"),
            Self::OptimizerOnCpu {} => write!(out, "optimizer state on the CPU"),
            Self::InferenceMode {} => write!(out, "no graph"),
            Self::HalfWeights { dtype } => write!(out, "weights in {}", dtype.name()),
            Self::Int8Linear { kind } => match kind {
                Int8::WeightOnly => write!(out, "int8 weights"),
                Int8::Dynamic => write!(out, "int8 weights and products"),
            },
            Self::SplitBatch { parts } => write!(out, "the batch in {parts} parts"),
            Self::KvCache { bits } => write!(out, "{bits}-bit cache of keys and values"),
            Self::StreamWeights { modules } => {
                write!(out, "stream weights of {}", places(modules))
            }
            Self::LoadOnCpu { dtype } => match dtype {
                Some(dtype) => write!(out, "load on the CPU, cast to {}", dtype.name()),
                None => write!(out, "load on the CPU"),
            },
            Self::Compile {} => write!(out, "torch.compile"),
            Self::Shard {
                gpus,
                shards,
                reshard,
                dtype,
                offload,
                ..
            } => {
                write!(out, "{gpus} GPUs: ")?;
                if *shards == 1 {
                    return write!(out, "data parallel");
                }
                if shards == gpus {
                    write!(out, "sharded")?;
                } else {
                    write!(out, "sharded over {shards}, {} replicas", gpus / shards)?;
                }
                if let Some(dtype) = dtype {
                    write!(out, " in {}", dtype.name())?;
                }
                if !reshard {
                    write!(out, ", kept gathered")?;
                }
                if *offload {
                    write!(out, ", on the CPU")?;
                }
                Ok(())
            }
        }
    }
}

fn on(enabled: bool) -> &'static str {
    if enabled { "on" } else { "off" }
}

/// `GPT.blocks[0:6]` for consecutive numbers, else the first name and how many more.
#[must_use]
pub fn places(modules: &[String]) -> String {
    let split: Option<Vec<(&str, u32)>> = modules
        .iter()
        .map(|name| {
            let (stem, number) = name.rsplit_once('.')?;
            Some((stem, number.parse().ok()?))
        })
        .collect();
    if let Some(numbered) = split
        && let [(stem, first), .., (_, last)] = numbered[..]
        && numbered
            .iter()
            .zip(first..)
            .all(|((other, number), expected)| *other == stem && *number == expected)
    {
        return format!("{stem}[{first}:{}]", last + 1);
    }
    match modules {
        [] => "nothing".to_owned(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lever_has_its_place_in_the_order() {
        for lever in [
            Lever::InferenceMode {},
            Lever::StreamWeights { modules: vec![] },
            Lever::KvCache { bits: 8 },
            Lever::ChunkedLogits {},
            Lever::OptimizerOnCpu {},
            crate::sharding::data_parallel(8),
        ] {
            assert!(NAMES.contains(&lever.name()), "{}", lever.name());
        }
    }

    #[test]
    fn consecutive_modules_are_a_range() {
        let names = |numbers: &[u32]| -> Vec<String> {
            numbers.iter().map(|n| format!("GPT.blocks.{n}")).collect()
        };
        assert_eq!(places(&names(&[0, 1, 2])), "GPT.blocks[0:3]");
        assert_eq!(places(&names(&[0, 2])), "GPT.blocks.0 and 1 more");
        assert_eq!(places(&names(&[4])), "GPT.blocks.4");
    }
}
