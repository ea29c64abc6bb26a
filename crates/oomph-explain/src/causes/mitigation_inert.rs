//! `mitigation_inert`: checkpointing is switched on but keeps nothing from being saved.

use oomph_trace::{Bytes, Category, Phase};

use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::Facts;

/// Activations below this share of what was needed are not why memory ran out.
const DECISIVE: f64 = 0.5;
/// A block that is recomputed keeps its input: this share of what it makes, at most.
const WORKING: f64 = 0.5;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    facts.failure?;
    let inside = |stack| facts.stacks.get(stack).in_checkpoint();
    // What forward made inside of checkpointed blocks, and what of it is alive. At most the last
    // block may still be at work.
    let mut kept = 0_u64;
    let mut count = 0_usize;
    for block in &facts.live {
        if inside(block.stack)
            && block.category == Category::Activation
            && block.phase == Phase::Forward
        {
            kept += block.bytes;
            count += 1;
        }
    }
    let activations = facts.bytes_of(Category::Activation);
    if activations == 0
        || facts.share(activations) < DECISIVE
        || (kept as f64) < activations as f64 * WORKING
        || count < 32
    {
        return None;
    }
    let mut evidence = vec![Evidence::of(
        kept,
        format!("{count} activations made inside checkpointed blocks are alive"),
    )];
    evidence.extend(stack_evidence(facts, |block| inside(block.stack)));
    Some(Cause {
        id: "mitigation_inert",
        confidence: 0.7,
        verdict: format!(
            "activation checkpointing is on, but {} made inside its blocks are kept all the same",
            Bytes(kept)
        ),
        evidence,
        fixes: vec![Fix::new(
            "checkpoint_inputs",
            "use_reentrant=False; with frozen inputs call enable_input_require_grads(); set \
             use_cache=False",
            kept / 10 * 8,
            Basis::Estimated,
            "exact",
        )],
    })
}
