//! `offload_activations`: what chosen modules save for the backward pass waits in pinned host
//! memory.
//!
//! Memory: a saved tensor is freed once its copy is done; so many bytes are under way at a time,
//! and as many are fetched ahead of the backward pass. Time: the link's, as far as the work
//! meanwhile does not hide it. Results: exact.

use rustc_hash::FxHashSet as HashSet;

use oomph_trace::Phase;

use crate::draft::Draft;
use crate::levers::blocks::{self, Edits};
use crate::model::Event;

/// Smaller tensors stay, as in `python/oomph/levers/offload_activations.py`.
const LEAST_BYTES: u64 = 256 << 10;
/// Bytes under way at a time, as there.
const IN_FLIGHT: u64 = 128 << 20;

/// A saved tensor that leaves.
struct Moved {
    number: u32,
    bytes: u64,
    made: usize,
    freed: usize,
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>, modules: &[String]) {
    let (found, positions) = blocks::find(draft, modules);
    let mut results: HashSet<u32> = HashSet::default();
    for block in &found {
        if let Some(call) = draft.model.calls.get(block.call as usize) {
            results.extend(&call.outputs);
        }
    }
    let mut made: rustc_hash::FxHashMap<u32, usize> = rustc_hash::FxHashMap::default();
    for (at, event) in draft.template.body.iter().enumerate() {
        if let Event::Alloc(number) = event {
            made.insert(*number, at);
        }
    }
    let mut moved: Vec<Moved> = Vec::new();
    for block in &found {
        for &number in &block.saved {
            let Some(tensor) = draft.template.tensors.get(number as usize) else {
                continue;
            };
            // Results of modules are arguments of others, which hold them while they run.
            if tensor.bytes < LEAST_BYTES || results.contains(&number) {
                continue;
            }
            if let (Some(&made), Some(&freed)) = (made.get(&number), positions.frees.get(&number)) {
                moved.push(Moved {
                    number,
                    bytes: tensor.bytes,
                    made,
                    freed,
                });
            }
        }
    }
    let mut edits = Edits::default();
    moved.sort_by_key(|moved| moved.made);
    let backward = |moved: &Moved| positions.backward_after(moved.made);
    // Those of one backward pass after those of the other.
    for pass in moved.chunk_by_mut(|a, b| backward(a) == backward(b)) {
        let begins = pass.first().map_or(0, backward);
        leave(pass, begins, &mut edits);
        come_back(draft, pass, begins, &mut edits);
    }
    draft.template.body = edits.apply(&draft.template.body);
    let total: u64 = moved.iter().map(|moved| moved.bytes).sum();
    let link = total as f64 / draft.pace().link_bytes_per_s * 1e9;
    let forward: f64 = draft
        .model
        .work
        .iter()
        .filter(|work| work.phase == Phase::Forward)
        .map(|work| work.busy)
        .sum();
    let backward = (draft.body.busy - forward).max(0.0);
    draft.waits += (link - forward).max(0.0) + (link - backward).max(0.0);
}

/// Each is gone when those after it, in the order in which they were made, fill what may be under
/// way; the last ones by the backward pass.
fn leave(moved: &mut [Moved], backward: usize, edits: &mut Edits) {
    let mut under_way = 0;
    let mut next = 0;
    for index in 0..moved.len() {
        under_way += moved[index].bytes;
        while under_way > IN_FLIGHT && next < index {
            edits.insert(moved[index].made, Event::Free(moved[next].number));
            under_way -= moved[next].bytes;
            next += 1;
        }
    }
    for left in &moved[next..] {
        edits.insert(backward, Event::Free(left.number));
    }
}

/// Each is fetched when those that the backward pass needs before it leave room.
fn come_back(draft: &mut Draft<'_>, moved: &mut [Moved], backward: usize, edits: &mut Edits) {
    moved.sort_by_key(|moved| moved.freed);
    let mut ahead = 0;
    let mut fetched = 0;
    let mut copies: Vec<Option<u32>> = vec![None; moved.len()];
    for index in 0..moved.len() {
        let at = match index.checked_sub(1) {
            Some(before) => moved[before].freed,
            None => backward,
        };
        while fetched < moved.len()
            && (fetched <= index || ahead + moved[fetched].bytes <= IN_FLIGHT)
        {
            if let Some(copy) = blocks::again(&mut draft.template, moved[fetched].number) {
                edits.insert(at, Event::Alloc(copy));
                copies[fetched] = Some(copy);
            }
            ahead += moved[fetched].bytes;
            fetched += 1;
        }
        if let Some(copy) = copies[index] {
            edits.replace(moved[index].freed, Event::Free(copy));
        }
        ahead -= moved[index].bytes;
    }
}
