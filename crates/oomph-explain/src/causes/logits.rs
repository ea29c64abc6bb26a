//! `logits`: the loss over a large vocabulary makes several copies of (tokens × vocabulary).

use std::collections::HashSet;

use oomph_allocator::program::NO_ROW;
use oomph_trace::{Bytes, Category, Phase};

use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::Facts;
use crate::lever;

/// The copies below this share of what was needed are not why memory ran out.
const DECISIVE: f64 = 0.35;
/// The copies that a loss makes which is written by hand are at least this share of what was needed, and so many.
const DOMINANT: f64 = 0.5;
const COPIES: usize = 3;
/// The confidence in these.
const BY_HAND: f64 = 0.77;
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
        .max()
        .filter(|&largest| largest >= MIN_COPY);
    let by_hand = largest_in_loss.is_none();
    let largest_in_loss = largest_in_loss.or_else(|| last_product(facts))?;
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
        .filter(|block| is_copy(block.bytes) && !facts.is_left_behind(block))
        .map(|block| block.bytes)
        .sum::<u64>()
        + if failed_for_copy { facts.request } else { 0 };
    let share = facts.share(copies);
    if !failed_for_copy || share < DECISIVE {
        return None;
    }
    if by_hand && !is_loss(facts, share, is_copy) {
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
        confidence: if by_hand {
            BY_HAND
        } else {
            (0.75 + share / 4.0).min(0.95)
        },
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

/// The size of what the last layer of the model gave, if that is large: nothing but the loss comes after it.
fn last_product(facts: &Facts) -> Option<u64> {
    let before = facts.program.allocations.iter().rev().filter(|one| {
        !one.failed
            && one.alloc_row != NO_ROW
            && one.alloc_row < facts.row as u32
            && facts.holds(one, true).1 == Phase::Forward
    });
    let is_layer = |operator: &str| {
        ["mm", "convolution", "attention", "rnn"]
            .iter()
            .any(|part| operator.contains(part))
    };
    let last = before
        .map(|one| (facts.operator_of(one), one))
        .find(|(operator, _)| is_layer(operator))?;
    let (operator, product) = last;
    let size = facts.config.round_size(product.requested);
    let single = operator.ends_with("::mm") || operator.ends_with("::addmm");
    (single && size >= MIN_COPY).then_some(size)
}

/// Whether a loss of the script's own makes the copies, by operators that say nothing: most of what is needed is as large as what the
/// last layer gave, and what it is compared with is not (as it is where something is to be restored).
fn is_loss(facts: &Facts, share: f64, is_copy: impl Fn(u64) -> bool) -> bool {
    let copies = facts.live.iter().filter(|block| is_copy(block.bytes));
    let restores = facts.every().any(|block| {
        is_copy(block.bytes) && matches!(block.category, Category::Input | Category::Unknown)
    });
    copies.count() >= COPIES && share >= DOMINANT && !restores
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
