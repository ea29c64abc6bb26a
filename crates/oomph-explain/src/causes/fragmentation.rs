//! `fragmentation`: enough memory is reserved, but no hole is large enough.
//!
//! Verified by replay: a setting is named only if the simulated allocator, with the recorded
//! requests and the same memory, serves the request that failed.

use oomph_allocator::{Device, search};
use oomph_trace::{Bytes, Category};

use super::graph_retained::DECISIVE;
use super::{Basis, Cause, Evidence, Fix};
use crate::facts::Facts;
use crate::lever;
use crate::steps::step_of;

/// Below this share of the memory, fragmentation is the ordinary loss of rounding and caching:
/// the failed jobs that have another cause lose 1 to 5 %.
const ORDINARY: f64 = 0.12;
/// A request of at least this share of all free memory fails because of the holes alone.
const LARGE_REQUEST: f64 = 0.25;
/// Below this, it is a handful of half-used segments of 20 MiB, as every job has.
const A_FEW_SEGMENTS: u64 = 8 * (20 << 20);

/// A request that was served in as many earlier steps would be served again.
const STEPS_BEFORE: usize = 3;
/// Workspaces of more than this share of what was needed explain the holes between them.
const WORKSPACES: f64 = 0.5;
/// A job that uses more of the memory than this needs to be smaller, not only better packed.
const TIGHT: f64 = 0.9;

/// The confidence where holes are ordinary, but a replay without them fits.
pub(super) const FITS: f64 = 0.5;

pub(super) fn check(facts: &Facts, whole: &Facts) -> Option<Cause> {
    let failure = facts.failure?;
    let room = facts.room?;
    let unused = facts.unused();
    let memory = room.at_least.max(facts.reserved);
    let share = unused as f64 / memory.max(1) as f64;
    // Without fragmentation the request would have fitted.
    if facts.needed() > memory {
        return None;
    }
    let few = share < ORDINARY || unused < A_FEW_SEGMENTS;
    // What the whole run has alive is more than there is, without any hole.
    let too_much = whole.needed() > memory;
    // Only a run to the script's end shows that ordinary holes are what is missing.
    let to_the_end = whole.room.is_none() && !whole.options.seen.stopped;
    if few && (too_much || !to_the_end && !is_bounded(facts)) {
        return None;
    }
    let device = Device {
        limit: Some(room.at_least),
        ..Device::UNLIMITED
    };
    // What the job goes on to request must be served, too: of a run without a limit, all of it.
    let trials = search::search(&whole.program, facts.version, device);
    let best = trials.iter().find(|trial| trial.predicted.fits());
    let bounded = is_bounded(facts);
    // What never has more alive than fits with room to spare lacks nothing but a piece large enough.
    let fits_packed = (to_the_end || bounded) && whole.needed() as f64 <= memory as f64 * TIGHT;
    if few && best.is_none() && !fits_packed {
        return None;
    }
    let mut evidence = vec![
        Evidence::of(
            unused,
            format!(
                "reserved but free at the failure: {:.0} % of the memory that PyTorch could have",
                share * 100.0
            ),
        ),
        Evidence::of(
            facts.segment,
            "requested in one piece, more than any free block".to_owned(),
        )
        .at(facts, failure.stack),
        Evidence::of(
            facts.needed(),
            "alive, including the request: it would fit without holes".to_owned(),
        ),
    ];
    let grows = facts.share(facts.growth.bytes) >= DECISIVE
        && ((facts.segment as f64) < unused as f64 * LARGE_REQUEST || served_before(facts));
    // That every request is served in a run that was ended early says nothing of what grows on.
    let grows = grows || whole.options.seen.stopped && super::tensors_kept::check(whole).is_some();
    // So would a cache that grows with every token.
    let grows = grows || super::kv_cache::check(whole).is_some();
    let tight = whole.needed() as f64 > memory as f64 * TIGHT;
    let mut fixes = Vec::new();
    if let Some(trial) = best {
        let needs = trial.needs.unwrap_or(trial.predicted.stats.reserved_peak);
        evidence.push(Evidence::of(
            needs,
            format!(
                "replayed with {}: every request is served within the same {}",
                trial.conf,
                Bytes(room.at_least)
            ),
        ));
        let would_need = search::smallest(&whole.program, &facts.config)
            .unwrap_or(facts.needed().saturating_add(unused));
        fixes.push(
            Fix::lever(
                lever::ALLOCATOR,
                format!("set {} before the first use of CUDA", trial.conf),
                facts
                    .reserved
                    .saturating_add(facts.segment)
                    .max(would_need)
                    .max(whole.program.recorded_peak_reserved)
                    .saturating_sub(needs),
                Basis::Replayed,
                "exact",
            )
            .apply(format!("PYTORCH_CUDA_ALLOC_CONF={}", trial.conf)),
        );
    }
    fixes.push(Fix::advice(
        "steady_sizes",
        "make sizes repeat (pad to a few lengths, allocate growing buffers once)",
        unused,
        Basis::Estimated,
        "exact",
    ));
    Some(Cause {
        id: "fragmentation",
        confidence: match (best, grows || tight) {
            _ if too_much => 0.3,
            // Each stream's workspace lies in a segment of its own: fewer of them is what helps.
            _ if facts.share(facts.bytes_of(Category::Workspace)) > WORKSPACES => 0.6,
            // What is kept has long stopped growing: a cache with a bound.
            _ if fits_packed && bounded => 0.98,
            // Ordinary holes, which yet are what is missing.
            _ if few => FITS,
            // No setting packs what stays scattered; not to scatter it would do.
            (None, false) if fits_packed => 0.9,
            (Some(_), false) => 0.95,
            // Holes smaller than ever smaller requests, between blocks that a leak leaves behind:
            // the leak would fill them, too.
            (Some(_), true) => 0.6,
            // No setting is enough: the job needs more than there is, whatever the holes.
            (None, _) => 0.45,
        },
        verdict: format!(
            "{} of {} reserved by PyTorch are free, but in pieces too small for the request of {}",
            Bytes(unused),
            Bytes(facts.reserved),
            Bytes(facts.segment)
        ),
        evidence,
        fixes,
    })
}

/// Whether what steps leave behind has stopped becoming more: the last of many steps left far less than as many do on average.
fn is_bounded(facts: &Facts) -> bool {
    /// Fewer steps than these tell little.
    const LAST: usize = 12;
    const MANY: usize = 48;
    let ends: Vec<u64> = facts.steps.iter().map(|step| step.live_at_end).collect();
    // The step that failed has no end.
    let (Some(&first), [.., before, _], many) = (ends.first(), ends.as_slice(), ends.len() >= MANY)
    else {
        return false;
    };
    let last = (ends.len() / 10).max(LAST);
    let Some(&earlier) = ends.iter().rev().nth(1 + last) else {
        return false;
    };
    let on_average = before.saturating_sub(first) / ends.len() as u64 * last as u64;
    many && before.saturating_sub(earlier) < on_average / 4
}

/// Whether the line that failed had the same request served in earlier steps: then what has grown since took
/// its room, not sizes that vary.
fn served_before(facts: &Facts) -> bool {
    let (Some(failure), Some(current)) = (facts.failure, facts.current_step()) else {
        return false;
    };
    let mut steps: Vec<usize> = facts
        .program
        .allocations
        .iter()
        .filter(|one| {
            !one.failed && one.stack == failure.stack && one.requested >= failure.requested
        })
        .filter_map(|one| step_of(&facts.steps, one.alloc_row))
        .filter(|&step| step < current)
        .collect();
    steps.dedup();
    steps.len() >= STEPS_BEFORE
}
