//! What each lever does to a job's memory and time: one file each, named as in
//! `python/oomph/levers/`.
//!
//! A file says when its lever can be offered (`offered`), and changes a [`Draft`] (`apply`): the
//! events of its template and the work of its step. What that does to the peak, only playing the
//! template through the allocator tells.

pub(crate) mod allocator;
pub(crate) mod attention;
pub(crate) mod blocks;
pub(crate) mod checkpoint;
pub(crate) mod chunked_cross_entropy;
pub(crate) mod fused_modules;
pub(crate) mod inplace_activations;
pub(crate) mod micro_batch;
pub(crate) mod mixed_precision;
pub(crate) mod offload_activations;
pub(crate) mod optimizer_8bit;
pub(crate) mod optimizer_on_cpu;
pub(crate) mod optimizer_step;
pub(crate) mod recompute;
pub(crate) mod set_to_none;
pub(crate) mod split_batch;
pub(crate) mod step_in_backward;
pub(crate) mod stream_weights;
pub(crate) mod tf32;

use crate::draft::Draft;
use crate::lever::Lever;

/// Changes `draft` as `lever` would change the job.
pub fn apply(draft: &mut Draft<'_>, lever: &Lever) {
    match lever {
        Lever::Allocator { .. } => allocator::apply(draft),
        Lever::SetToNone {} => set_to_none::apply(draft),
        Lever::OptimizerStep { kind } => optimizer_step::apply(draft, *kind),
        Lever::InplaceActivations { modules } => inplace_activations::apply(draft, modules),
        Lever::MicroBatch { parts } => micro_batch::apply(draft, *parts),
        Lever::MixedPrecision { .. } => mixed_precision::apply(draft),
        Lever::Attention { .. } => attention::apply(draft),
        Lever::ChunkedCrossEntropy { chunks } => chunked_cross_entropy::apply(draft, *chunks),
        Lever::Recompute { modules } => recompute::apply(draft, modules),
        Lever::Checkpoint { modules } => checkpoint::apply(draft, modules),
        Lever::OffloadActivations { modules } => offload_activations::apply(draft, modules),
        Lever::StepInBackward {} => step_in_backward::apply(draft),
        Lever::Optimizer8bit {} => optimizer_8bit::apply(draft),
        Lever::OptimizerOnCpu {} => optimizer_on_cpu::apply(draft),
        Lever::SplitBatch { parts } => split_batch::apply(draft, *parts),
        Lever::Tf32 { enabled: true } => tf32::apply(draft),
        Lever::StreamWeights { modules } => stream_weights::apply(draft, modules),
        // They change times, or what happens outside of training steps, or a run shows what they do.
        Lever::CudnnBenchmark { .. }
        | Lever::Tf32 { enabled: false }
        | Lever::NoGradEval {}
        | Lever::FusedModules { .. }
        | Lever::InferenceMode {}
        | Lever::HalfWeights { .. }
        | Lever::Int8Linear { .. }
        | Lever::KvCache { .. }
        | Lever::LoadOnCpu { .. }
        | Lever::Compile {} => {}
    }
}
