//! `outside_allocator`: this process itself holds much memory outside PyTorch's allocator.

use oomph_trace::Bytes;

use super::other_process::foreign;
use super::{Basis, Cause, Evidence, Fix};
use crate::facts::{CONTEXT, Facts};

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let room = facts.room?;
    if !room.by_device {
        return None;
    }
    let (bytes, confidence) = match (facts.outside(), foreign(facts)) {
        // It was measured, and exceeds context and kernels. As much as PyTorch itself
        // holds explains the failure; less contributes to another cause.
        (Some(outside), _) if outside > 2 * CONTEXT => {
            let decides = outside >= facts.reserved;
            (outside, if decides { 0.9 } else { 0.6 })
        }
        (Some(_), _) | (None, None) => return None,
        // The snapshot cannot tell this process's libraries from other processes.
        (None, Some((bytes, _))) => (bytes, 0.4),
    };
    Some(Cause {
        id: "outside_allocator",
        confidence,
        verdict: format!(
            "{} of the GPU are held outside PyTorch's allocator by {} of this process",
            Bytes(bytes),
            if confidence < 0.5 {
                "other processes, or other libraries"
            } else {
                "other libraries"
            }
        ),
        evidence: vec![
            Evidence::of(
                room.device_free,
                "free on the device at the failure".to_owned(),
            ),
            Evidence::of(facts.reserved, "held by PyTorch's allocator".to_owned()),
        ],
        fixes: vec![Fix::advice(
            "fewer_communicators",
            "fewer NCCL communicators and smaller buffers; keep other frameworks from taking the \
             GPU (XLA_PYTHON_CLIENT_PREALLOCATE=false, TF_FORCE_GPU_ALLOW_GROWTH=true)",
            bytes / 2,
            Basis::Estimated,
            "exact",
        )],
    })
}
