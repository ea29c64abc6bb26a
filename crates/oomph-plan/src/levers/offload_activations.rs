//! `offload_activations`: what chosen modules save for the backward pass waits in pinned host
//! memory.
//!
//! Memory: a saved tensor is freed when its copy is done, taken to be when the next chosen module
//! is through, and is back one module before its own backward. Time: the link's, as far as the
//! work meanwhile does not hide it. Results: exact.

use std::collections::HashSet;

use oomph_trace::Phase;

use crate::draft::Draft;
use crate::levers::blocks::{self, Edits};
use crate::model::Event;

/// Smaller tensors stay: a copy of theirs costs more than it saves.
const LEAST_BYTES: u64 = 1 << 20;

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>, modules: &[String]) {
    let (found, positions) = blocks::find(draft, modules);
    let mut edits = Edits::default();
    let mut moved: u64 = 0;
    for (index, block) in found.iter().enumerate() {
        let casts: HashSet<u32> = block.casts.iter().copied().collect();
        let results: HashSet<u32> = draft
            .model
            .calls
            .get(block.call as usize)
            .map(|call| call.outputs.iter().copied().collect())
            .unwrap_or_default();
        let next = found.get(index + 1);
        let away = next.map_or(block.forward.end, |next| next.forward.end);
        let back = next.map_or(block.backward.start, |next| {
            next.backward.start.min(block.backward.start)
        });
        for &number in &block.saved {
            let Some(tensor) = draft.template.tensors.get(number as usize).copied() else {
                continue;
            };
            if tensor.bytes < LEAST_BYTES || casts.contains(&number) || results.contains(&number) {
                continue;
            }
            let Some(&freed) = positions.frees.get(&number) else {
                continue;
            };
            if away >= back {
                continue;
            }
            let Some(copy) = blocks::again(&mut draft.template, number) else {
                continue;
            };
            edits.insert(away, Event::Free(number));
            edits.insert(back, Event::Alloc(copy));
            edits.replace(freed, Event::Free(copy));
            moved += tensor.bytes;
        }
    }
    draft.template.body = edits.apply(&draft.template.body);
    let link = moved as f64 / draft.pace().link_bytes_per_s * 1e9;
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
