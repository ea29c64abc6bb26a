//! `attention_scores`: eager attention keeps (heads × length²) per layer.

use oomph_trace::Bytes;

use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::Facts;
use crate::lever;

/// Scores below this share of what was needed are not why memory ran out.
const DECISIVE: f64 = 0.35;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let in_attention = |stack| facts.stacks.get(stack).in_eager_attention();
    let scores: u64 = facts
        .live
        .iter()
        .filter(|block| in_attention(block.stack))
        .map(|block| block.bytes)
        .sum();
    let share = facts.share(scores);
    if !facts.failed() || share < DECISIVE {
        return None;
    }
    let layers = facts
        .live
        .iter()
        .filter(|block| in_attention(block.stack))
        .count();
    let mut evidence = vec![Evidence::of(
        scores,
        format!("{layers} blocks inside attention that keeps its scores"),
    )];
    evidence.extend(stack_evidence(facts, |block| in_attention(block.stack)));
    Some(Cause {
        id: "attention_scores",
        confidence: (0.6 + share / 3.0).min(0.9),
        verdict: format!(
            "attention keeps {} of scores that grow with the square of the length",
            Bytes(scores)
        ),
        evidence,
        fixes: vec![
            Fix::lever(
                lever::ATTENTION,
                "scaled_dot_product_attention (attn_implementation=\"sdpa\"), which keeps no scores",
                scores / 10 * 9,
                Basis::Estimated,
                "exact to rounding",
            ),
            Fix::advice(
                "shorter_sequences",
                "half the length needs a quarter of the scores",
                scores / 4 * 3,
                Basis::Estimated,
                "other inputs",
            ),
        ],
    })
}
