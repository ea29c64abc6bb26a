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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the types' own names")]
pub enum Dtype {
    Bf16,
    Fp16,
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
}

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
            Self::MicroBatch { .. } => "micro_batch",
            Self::MixedPrecision { .. } => "mixed_precision",
            Self::Attention { .. } => "attention",
            Self::ChunkedCrossEntropy { .. } => "chunked_cross_entropy",
            Self::Recompute { .. } => "recompute",
            Self::Checkpoint { .. } => "checkpoint",
            Self::OffloadActivations { .. } => "offload_activations",
            Self::StepInBackward {} => "step_in_backward",
            Self::Optimizer8bit {} => "optimizer_8bit",
            Self::OptimizerOnCpu {} => "optimizer_on_cpu",
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
            | Self::StepInBackward {} => Results::Exact,
            Self::CudnnBenchmark { .. }
            | Self::OptimizerStep { .. }
            | Self::MicroBatch { .. }
            | Self::Attention { .. }
            | Self::ChunkedCrossEntropy { .. }
            | Self::OptimizerOnCpu {} => Results::Rounding,
            Self::Tf32 { .. } | Self::MixedPrecision { .. } | Self::Optimizer8bit {} => {
                Results::Numerics
            }
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
            Self::Recompute { modules } => write!(out, "recompute {}", places(modules)),
            Self::Checkpoint { modules } => write!(out, "checkpoint {}", places(modules)),
            Self::OffloadActivations { modules } => {
                write!(out, "offload activations of {}", places(modules))
            }
            Self::StepInBackward {} => write!(out, "step inside backward"),
            Self::Optimizer8bit {} => write!(out, "8-bit optimizer state"),
            Self::OptimizerOnCpu {} => write!(out, "optimizer state on the CPU"),
        }
    }
}

fn on(enabled: bool) -> &'static str {
    if enabled { "on" } else { "off" }
}

/// `GPT.blocks[0:6]` for consecutive numbers, else the first name and how many more.
fn places(modules: &[String]) -> String {
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
    fn consecutive_modules_are_a_range() {
        let names = |numbers: &[u32]| -> Vec<String> {
            numbers.iter().map(|n| format!("GPT.blocks.{n}")).collect()
        };
        assert_eq!(places(&names(&[0, 1, 2])), "GPT.blocks[0:3]");
        assert_eq!(places(&names(&[0, 2])), "GPT.blocks.0 and 1 more");
        assert_eq!(places(&names(&[4])), "GPT.blocks.4");
    }
}
