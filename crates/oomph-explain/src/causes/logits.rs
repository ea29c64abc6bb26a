//! `logits`: the loss over a large vocabulary makes several copies of (tokens × vocabulary).

use std::collections::HashSet;

use oomph_trace::{Bytes, Phase};

use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::Facts;
use crate::lever;

/// The copies below this share of what was needed are not why memory ran out.
const DECISIVE: f64 = 0.35;
/// Operators that take what one layer gave: probabilities, and the loss over labels of which several are right.
const LOSSES: [&str; 2] = ["softmax", "binary_cross_entropy_with_logits"];
/// A single copy must be this large to be worth a fused loss.
const MIN_COPY: u64 = 128 << 20;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let failure = facts.failure?;
    let products = products(facts);
    let largest_in_loss = facts
        .program
        .allocations
        .iter()
        .filter(|allocation| {
            // A loss that is written out calls an operator, of which stacks show nothing.
            facts.stacks.get(allocation.stack).in_loss()
                || facts.operator_of(allocation).ends_with("log_softmax")
                || facts.operator_of(allocation).ends_with("logsumexp")
                // Probabilities of what one layer gave: attention's come of products of batches.
                || LOSSES
                    .iter()
                    .any(|loss| facts.operator_of(allocation).ends_with(loss))
                    && products.contains(&allocation.requested)
        })
        .map(|allocation| facts.config.round_size(allocation.requested))
        .max()?;
    if largest_in_loss < MIN_COPY {
        return None;
    }
    // The copies differ in data type only: bf16 or fp32 (and one row less where labels shift).
    let is_copy = |bytes: u64| {
        [1.0, 0.5, 2.0].iter().any(|factor| {
            let ratio = bytes as f64 / (largest_in_loss as f64 * factor);
            (0.97..=1.03).contains(&ratio)
        })
    };
    // Of a run without a limit, what is alive decides.
    let failed_for_copy = facts.request == 0 || is_copy(facts.request);
    let copies: u64 = facts
        .live
        .iter()
        .filter(|block| is_copy(block.bytes))
        .map(|block| block.bytes)
        .sum::<u64>()
        + if failed_for_copy { facts.request } else { 0 };
    let share = facts.share(copies);
    if !failed_for_copy || share < DECISIVE {
        return None;
    }
    let mut evidence = vec![
        Evidence::of(
            facts.asked,
            "asked for around the loss, a copy of the logits".to_owned(),
        )
        .at(facts, failure.stack),
        Evidence::of(
            copies,
            format!(
                "in copies of the logits, {:.0} % of everything needed",
                share * 100.0
            ),
        ),
    ];
    evidence.extend(stack_evidence(facts, |block| is_copy(block.bytes)));
    let split = facts.split(|block| is_copy(block.bytes));
    Some(Cause {
        id: "logits",
        confidence: (0.75 + share / 4.0).min(0.95),
        verdict: format!(
            "the loss over the vocabulary needs {} for copies of the logits, {:.0} % of everything",
            Bytes(copies),
            share * 100.0
        ),
        evidence,
        fixes: vec![
            Fix::lever(
                lever::CHUNKED_CROSS_ENTROPY,
                "a fused or chunked cross-entropy, which never holds all logits",
                split.saves(0.1),
                Basis::Estimated,
                "exact to rounding",
            ),
            Fix::lever(
                lever::MICRO_BATCH,
                "half as many tokens at once, with accumulation",
                split.saves(0.5),
                Basis::Estimated,
                "exact with the right denominator",
            ),
        ],
    })
}

/// The sizes of what single matrix products gave in forward: layers without a batch of matrices. Backward's products have the
/// sizes of what they are gradients of.
fn products(facts: &Facts) -> HashSet<u64> {
    facts
        .program
        .allocations
        .iter()
        .filter(|allocation| {
            let operator = facts.operator_of(allocation);
            (operator.ends_with("::mm") || operator.ends_with("::addmm"))
                && facts.holds(allocation, true).1 != Phase::Backward
        })
        .map(|allocation| allocation.requested)
        .collect()
}
