//! `checkpoint_on_gpu`: `torch.load` put a checkpoint on the GPU, and the dictionary is kept.

use oomph_trace::{Bytes, Category, StringId};

use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::{Facts, Live};
use crate::lever;
use crate::repeats;

/// A checkpoint below this share of what was needed is not why memory ran out.
const DECISIVE: f64 = 0.2;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    // A recorder knows what models have; the rest of a file is used by none on the GPU.
    let owned = |block: &Live| facts.module(block) != StringId::EMPTY;
    let models = facts
        .live
        .iter()
        .any(|block| block.category == Category::Parameter && owned(block));
    let loads =
        |block: &Live| facts.stacks.get(block.stack).loads_file() && !(models && owned(block));
    let sizes = repeats::sizes(facts, loads);
    let loaded: u64 = sizes.iter().sum();
    let share = facts.share(loaded);
    if !facts.is_decisive(loaded, DECISIVE) {
        return None;
    }
    // Weights that were loaded straight to the GPU and are used there are no copy; several files of the same
    // sizes are.
    let others = repeats::bytes(facts, |block| {
        block.category == Category::Parameter && !loads(block)
    });
    if !models && others.saturating_mul(4) < loaded && repeats::shortest_period(&sizes).is_none() {
        return None;
    }
    let mut evidence = vec![Evidence::of(
        loaded,
        "put on the GPU by torch.load and still alive".to_owned(),
    )];
    evidence.extend(stack_evidence(facts, loads));
    Some(Cause {
        id: "checkpoint_on_gpu",
        confidence: (0.8 + share / 3.0).min(0.95),
        verdict: format!(
            "a checkpoint of {} was loaded to the GPU and kept",
            Bytes(loaded)
        ),
        evidence,
        fixes: vec![fix(facts.saves(loads))],
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
