//! `kv_cache`: generation keeps keys and values of every token.

use oomph_trace::Bytes;

use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::Facts;
use crate::lever;

/// A cache below this share of what was needed is not why memory ran out.
const DECISIVE: f64 = 0.3;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let in_cache = |stack| facts.stacks.get(stack).in_kv_cache();
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
