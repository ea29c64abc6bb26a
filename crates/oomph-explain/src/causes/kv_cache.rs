//! `kv_cache`: generation keeps keys and values of every token.

use oomph_trace::{Bytes, Phase, StackId};

use std::collections::{HashMap, HashSet};

use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::Facts;
use crate::lever;

/// A cache below this share of what was needed is not why memory ran out.
const DECISIVE: f64 = 0.3;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let joined = joined(facts);
    let in_cache = |stack| facts.stacks.get(stack).in_kv_cache() || joined.contains(&stack);
    let cached: u64 = facts
        .live
        .iter()
        .filter(|block| in_cache(block.stack))
        .map(|block| block.bytes)
        .sum();
    let share = facts.share(cached);
    if share < DECISIVE {
        return None;
    }
    let mut evidence = vec![Evidence::of(
        cached,
        "keys and values of the tokens so far".to_owned(),
    )];
    evidence.extend(stack_evidence(facts, |block| in_cache(block.stack)));
    Some(Cause {
        id: "kv_cache",
        confidence: 0.6 + share / 3.0,
        verdict: format!(
            "the KV cache holds {} and grows with every token",
            Bytes(cached)
        ),
        evidence,
        fixes: vec![
            Fix::lever(
                lever::KV_CACHE,
                "store the cache in 8 bits (cache_implementation=\"quantized\")",
                cached / 2,
                Basis::Estimated,
                "numerics change",
            ),
            Fix::advice(
                "smaller_batch",
                "generate for half as many sequences at once",
                cached / 2,
                Basis::Estimated,
                "exact",
            ),
        ],
    })
}

/// Stacks of a cache that is written by hand: in inference they join tensors again and again, each
/// time a longer one.
fn joined(facts: &Facts) -> HashSet<StackId> {
    const TIMES: usize = 4;
    let mut sizes: HashMap<StackId, Vec<u64>> = HashMap::new();
    for allocation in &facts.program.allocations {
        if facts.holds(allocation, true).1 == Phase::Inference
            && facts.operator_of(allocation).ends_with("::cat")
        {
            sizes
                .entry(allocation.stack)
                .or_default()
                .push(allocation.requested);
        }
    }
    sizes.retain(|_, sizes| {
        sizes.dedup();
        sizes.len() >= TIMES && sizes.is_sorted()
    });
    sizes.into_keys().collect()
}
