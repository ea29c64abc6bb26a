//! `mitigation_inert`: checkpointing is switched on but does not keep memory down.
//!
//! Where it works, forward keeps the inputs of the checkpointed blocks only, and backward has one
//! block's activations at a time. Repeated blocks run the same lines, so a line inside of them that
//! holds memory many times over shows that many blocks are alive at once.

use std::collections::HashMap;

use oomph_trace::{Bytes, Phase, StackId};

use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::Facts;

/// Memory below this share of what was needed is not why memory ran out.
const DECISIVE: f64 = 0.5;
/// A line that one block runs holds a few tensors at a time: q, k, v, or the heads of a loop.
const REPEATED: usize = 8;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    facts.failure?;
    let mut by_stack: HashMap<StackId, usize> = HashMap::new();
    for block in &facts.live {
        if facts.stacks.get(block.stack).in_checkpoint() {
            *by_stack.entry(block.stack).or_default() += 1;
        }
    }
    let piles = |stack: StackId| by_stack.get(&stack).is_some_and(|&count| count >= REPEATED);
    let mut kept = 0_u64;
    let mut recomputed = 0_u64;
    let mut count = 0_usize;
    for block in facts.live.iter().filter(|block| piles(block.stack)) {
        if block.phase == Phase::Forward {
            kept += block.bytes;
        } else if facts.stacks.get(block.stack).recomputes() {
            recomputed += block.bytes;
        } else {
            continue;
        }
        count += 1;
    }
    if facts.share(kept + recomputed) < DECISIVE {
        return None;
    }
    let (what, verdict) = if kept > recomputed {
        (
            "activations made inside checkpointed blocks are alive",
            format!(
                "activation checkpointing is on, but {} made inside its blocks are kept all the \
                 same",
                Bytes(kept)
            ),
        )
    } else {
        (
            "recomputed activations of many blocks are alive at once",
            format!(
                "activation checkpointing is on, but {} that it recomputed are alive at once: one \
                 checkpoint covers many blocks, or something inside keeps them",
                Bytes(recomputed)
            ),
        )
    };
    let mut evidence = vec![Evidence::of(kept + recomputed, format!("{count} {what}"))];
    evidence.extend(stack_evidence(facts, |block| piles(block.stack)));
    Some(Cause {
        id: "mitigation_inert",
        confidence: 0.85,
        verdict,
        evidence,
        fixes: vec![Fix::advice(
            "checkpoint_each_block",
            "checkpoint each repeated block by itself, and keep nothing made inside (outputs stored \
             on the module, hooks, hidden states) unless detached",
            (kept + recomputed) / 10 * 8,
            Basis::Estimated,
            "exact",
        )],
    })
}
