//! `outside_allocator`: this process itself holds much memory outside of PyTorch's allocator.

use oomph_trace::Bytes;

use super::other_process::foreign;
use super::{Basis, Cause, Evidence, Fix};
use crate::facts::{CONTEXT, Facts};

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let room = facts.room?;
    if !room.by_device {
        return None;
    }
    let outside = facts
        .trace
        .context
        .outside
        .map(|bytes| bytes.0)
        .or(facts.options.process_outside);
    let (bytes, confidence) = match (outside, foreign(facts)) {
        // Somebody measured it: beyond context and kernels.
        (Some(outside), _) if outside > 2 * CONTEXT => (outside, 0.7),
        (Some(_), _) | (None, None) => return None,
        // The snapshot cannot tell this process's libraries from other processes.
        (None, Some((bytes, _))) => (bytes, 0.4),
    };
    Some(Cause {
        id: "outside_allocator",
        confidence,
        verdict: format!(
            "{} of the GPU are held outside of PyTorch's allocator, perhaps by another library of \
             this process",
            Bytes(bytes)
        ),
        evidence: vec![
            Evidence::of(
                room.device_free,
                "free on the device at the failure".to_owned(),
            ),
            Evidence::of(facts.reserved, "held by PyTorch's allocator".to_owned()),
        ],
        fixes: vec![Fix::new(
            "fewer_communicators",
            "fewer NCCL communicators and smaller buffers; keep other frameworks from taking the \
             GPU (XLA_PYTHON_CLIENT_PREALLOCATE=false, TF_FORCE_GPU_ALLOW_GROWTH=true)",
            bytes / 2,
            Basis::Estimated,
            "exact",
        )],
    })
}
