//! Saved tensors that wait in host memory: when their memory is free on the GPU, and when they are back
//! (`python/oomph/levers/_shared/host_copies.py`).

use oomph_trace::Phase;

use crate::blocks::{self, Edits};
use crate::draft::Draft;
use crate::model::Event;

/// Smaller tensors stay, as there.
pub(crate) const LEAST_BYTES: u64 = 256 << 10;
/// Bytes under way at a time, as there.
pub(crate) const IN_FLIGHT: u64 = 128 << 20;

/// Nanoseconds of the host for each of them, both ways: Python keeps account of it (`bench/gpu/results/h100_plans_sampled.jsonl`).
const HOST_NS: f64 = 64_000.0;

/// A saved tensor that leaves.
pub(crate) struct Moved {
    /// The tensor.
    pub(crate) number: u32,
    /// Its size in a part of the batch.
    pub(crate) bytes: u64,
    /// Where it is saved, and its copy begins.
    pub(crate) made: usize,
    /// Until where others hold it.
    pub(crate) held: usize,
    /// Where the backward pass has used it.
    pub(crate) freed: usize,
}

/// Each is gone when those after it, in the order in which they are saved, fill what may be under way;
/// the last ones after all blocks.
pub(crate) fn leave(moved: &mut [Moved], last: usize, in_flight: u64, edits: &mut Edits) {
    let mut under_way = 0;
    let mut next = 0;
    for index in 0..moved.len() {
        under_way += moved[index].bytes;
        while under_way > in_flight && next < index {
            let at = moved[index].made.max(moved[next].held);
            edits.insert(at, Event::Free(moved[next].number));
            under_way -= moved[next].bytes;
            next += 1;
        }
    }
    for left in &moved[next..] {
        edits.insert(last.max(left.held), Event::Free(left.number));
    }
}

/// Each is fetched when the backward pass needs it, and with it those that it needs next, as far as
/// they may be under way.
pub(crate) fn come_back(
    draft: &mut Draft<'_>,
    moved: &mut [Moved],
    backward: usize,
    in_flight: u64,
    edits: &mut Edits,
) {
    draft.body.lever += HOST_NS * moved.len() as f64;
    moved.sort_by_key(|moved| moved.freed);
    let mut fetched = 0;
    let mut copies: Vec<Option<u32>> = vec![None; moved.len()];
    for index in 0..moved.len() {
        let at = match index.checked_sub(1) {
            Some(before) => moved[before].freed,
            None => backward,
        };
        let mut ahead = 0;
        let mut until = index + 1;
        while until < moved.len() && (ahead == 0 || ahead + moved[until].bytes <= in_flight) {
            ahead += moved[until].bytes;
            until += 1;
        }
        for next in fetched..until {
            if let Some(copy) = blocks::again(&mut draft.template, moved[next].number) {
                edits.insert(at, Event::Alloc(copy));
                copies[next] = Some(copy);
            }
        }
        fetched = fetched.max(until);
        if let Some(copy) = copies[index] {
            edits.replace(moved[index].freed, Event::Free(copy));
        }
    }
}

/// Nanoseconds that a step waits for `bytes` that go to the host and come back, where a part `hidden` of its passes
/// hides their copies.
pub(crate) fn wait(draft: &Draft<'_>, bytes: u64, hidden: f64) -> f64 {
    let link = bytes as f64 / draft.pace().link_bytes_per_s * 1e9;
    let forward = forward(draft);
    let backward = (draft.body.busy - forward).max(0.0);
    (link - forward * hidden).max(0.0) + (link - backward * hidden).max(0.0)
}

/// Nanoseconds that the GPU is busy with the forward passes.
pub(crate) fn forward(draft: &Draft<'_>) -> f64 {
    let works = draft.model.work.iter();
    works
        .filter(|work| work.phase == Phase::Forward)
        .map(|work| work.busy)
        .sum()
}
