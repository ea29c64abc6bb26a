//! `other_process`: another process holds the GPU.

use oomph_trace::Bytes;

use super::{Basis, Cause, Evidence, Fix};
use crate::facts::{CONTEXT, Facts};

/// Memory that CUDA's context, kernels, NCCL and other libraries of a job take at most: reports
/// of several communicators reach 6 GB.
pub(super) const LIBRARIES: u64 = 8 << 30;
/// What GPUs have, in GiB as the driver reports it or a little more. A device that is full while
/// PyTorch holds far less than any of these has another user.
const SIZES: [u64; 22] = [
    4, 6, 8, 10, 11, 12, 15, 16, 20, 22, 24, 32, 40, 44, 48, 64, 80, 94, 96, 141, 180, 192,
];
/// The part of a GPU's nominal memory that a process can use, at least.
const USABLE: f64 = 0.88;

/// Memory of the device that is neither free nor PyTorch's nor explained by the libraries of one
/// job; with whether the device's size is known.
pub(super) fn foreign(facts: &Facts) -> Option<(u64, bool)> {
    let room = facts.room?;
    if !room.by_device {
        return None;
    }
    // Memory that this process is known to hold outside the allocator belongs to no other process.
    let accounted = facts
        .reserved
        .saturating_add(room.device_free)
        .saturating_add(facts.outside().unwrap_or(0));
    let total = facts
        .options
        .device_total
        .or(facts.trace.context.device_total.map(|b| b.0));
    if let Some(total) = total {
        let rest = total.saturating_sub(accounted);
        let share = rest as f64 / total.max(1) as f64;
        return (rest > LIBRARIES || (rest > 2 * CONTEXT && share > 0.25)).then_some((rest, true));
    }
    // The snapshot does not name the device: is there one that this could be?
    let with_context = accounted.saturating_add(CONTEXT / 2);
    let plausible = SIZES.iter().any(|gib| {
        let size = gib << 30;
        with_context <= size && with_context as f64 >= size as f64 * USABLE
    });
    if plausible {
        return None;
    }
    let smallest = SIZES
        .iter()
        .map(|gib| gib << 30)
        .find(|&size| size > with_context)?;
    Some((smallest - accounted, false))
}

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let (bytes, known) = foreign(facts)?;
    let room = facts.room?;
    let amount = if known {
        format!("{}", Bytes(bytes))
    } else {
        format!("at least {}", Bytes(bytes))
    };
    let mut evidence = vec![
        Evidence::of(
            room.device_free,
            "free on the device at the failure: the device was full; the process was not at its limit"
                .to_owned(),
        ),
        Evidence::of(
            facts.reserved,
            "held by PyTorch's allocator in this process".to_owned(),
        ),
    ];
    if !known {
        evidence.push(Evidence::new(
            "no GPU is as small as what PyTorch holds and a context together; the snapshot does \
             not say how large this one is",
        ));
    }
    Some(Cause {
        id: "other_process",
        // If the device is full and PyTorch holds little of it, that explains the failure whatever the job did.
        confidence: if known { 0.98 } else { 0.96 },
        verdict: format!(
            "the GPU is full although PyTorch holds only {}: {amount} are held by another process, \
             or by another library of this one",
            Bytes(facts.reserved)
        ),
        evidence,
        fixes: vec![
            Fix::advice(
                "free_the_gpu",
                "find the process that holds it and end it (a notebook, a zombie, ranks that all use GPU 0)",
                bytes,
                Basis::Counted,
                "exact",
            )
            .apply("nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv"),
            Fix::advice(
                "other_device",
                "choose another GPU before the first use of CUDA",
                bytes,
                Basis::Counted,
                "exact",
            )
            .apply("CUDA_VISIBLE_DEVICES=1"),
        ],
    })
}
