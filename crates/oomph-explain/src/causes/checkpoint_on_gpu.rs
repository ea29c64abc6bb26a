//! `checkpoint_on_gpu`: `torch.load` put a checkpoint on the GPU, and the dictionary is kept.

use oomph_trace::{Bytes, Category};

use super::stale_model::shortest_period;
use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::Facts;
use crate::lever;

/// A checkpoint below this share of what was needed is not why memory ran out.
const DECISIVE: f64 = 0.2;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let loaded_by = |stack| facts.stacks.get(stack).loads_file();
    let loaded: u64 = facts
        .live
        .iter()
        .filter(|block| loaded_by(block.stack))
        .map(|block| block.bytes)
        .sum();
    let share = facts.share(loaded);
    // Weights that were loaded straight to the GPU and are used there are no copy; several files of the same
    // sizes are.
    let others: u64 = facts
        .live
        .iter()
        .filter(|block| block.category == Category::Parameter && !loaded_by(block.stack))
        .map(|block| block.bytes)
        .sum();
    let mut blocks: Vec<(u32, u64)> = facts
        .live
        .iter()
        .filter(|block| loaded_by(block.stack))
        .map(|block| (block.id, block.bytes))
        .collect();
    blocks.sort_unstable();
    let sizes: Vec<u64> = blocks.into_iter().map(|(_, bytes)| bytes).collect();
    let several = shortest_period(&sizes).is_some();
    if share < DECISIVE || (others.saturating_mul(4) < loaded && !several) {
        return None;
    }
    let mut evidence = vec![Evidence::of(
        loaded,
        "put on the GPU by torch.load and still alive".to_owned(),
    )];
    evidence.extend(stack_evidence(facts, |block| loaded_by(block.stack)));
    Some(Cause {
        id: "checkpoint_on_gpu",
        confidence: (0.8 + share / 3.0).min(0.95),
        verdict: format!(
            "a checkpoint of {} was loaded to the GPU and kept",
            Bytes(loaded)
        ),
        evidence,
        fixes: vec![fix(loaded)],
    })
}

pub(super) fn fix(loaded: u64) -> Fix {
    Fix::lever(
        lever::LOAD_ON_CPU,
        "load to the CPU and delete the dictionary after load_state_dict",
        loaded,
        Basis::Counted,
        "exact",
    )
    .apply("torch.load(path, map_location=\"cpu\")")
}
