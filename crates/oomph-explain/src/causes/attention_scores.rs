//! `attention_scores`: eager attention keeps (heads × length²) per layer.

use oomph_trace::Bytes;

use std::collections::{HashMap, HashSet};

use super::{Basis, Cause, Evidence, Fix, largest_line, stack_evidence, top_stacks, user_line};
use crate::facts::{Facts, Live};
use crate::lever;

/// Scores below this share of what was needed are not why memory ran out.
const DECISIVE: f64 = 0.25;

/// A softmax of fewer bytes has short sequences, or is no attention.
const MIN_SCORES: u64 = 1 << 20;

/// Operators that make scores, or the next copy of them.
const ON_SCORES: [&str; 14] = [
    "bmm",
    "baddbmm",
    "softmax",
    "mul",
    "div",
    "add",
    "masked_fill",
    "where",
    "dropout",
    "clone",
    "copy",
    "tanh",
    "sub",
    "sigmoid",
];

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let written_out = written_out(facts);
    // Attention's functions also make queries, keys, values and outputs, whether or not scores are kept.
    let sizes = facts.trace.labels.as_ref().map(|_| eager_sizes(facts));
    let is_score = |block: &Live| {
        let operator = facts.operator(block);
        sizes.as_ref().is_none_or(|sizes| {
            bare(operator).ends_with("attention_math")
                || is_on_scores(operator) && sizes.contains(&block.bytes)
        })
    };
    let in_attention = |block: &Live| {
        facts.stacks.get(block.stack).in_eager_attention() && is_score(block)
            || written_out.contains(&block.id)
    };
    let scores: u64 = facts
        .live
        .iter()
        .filter(|block| in_attention(block))
        .map(|block| block.bytes)
        .sum();
    let share = facts.share(scores);
    if !facts.failed() || share < DECISIVE {
        return None;
    }
    let layers = facts
        .live
        .iter()
        .filter(|block| in_attention(block))
        .count();
    let place =
        largest_line(facts, in_attention).map_or_else(String::new, |line| format!(" at {line}"));
    let mut evidence = vec![Evidence::of(
        scores,
        format!("{layers} blocks inside attention that keeps its scores"),
    )];
    evidence.extend(stack_evidence(facts, in_attention));
    Some(Cause {
        id: "attention_scores",
        confidence: (0.7 + share / 3.0).min(0.95),
        verdict: format!(
            "attention{place} keeps {} of scores, which grow with the square of the length",
            Bytes(scores)
        ),
        evidence,
        fixes: vec![
            fix(scores),
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

/// The line of the user's own attention that keeps its scores, whether or not memory ran out, and what a fused
/// kernel in its place would save.
pub(crate) fn of_own_code(facts: &Facts) -> Option<(String, u64)> {
    let written_out = written_out(facts);
    let stacks = top_stacks(facts, |block| written_out.contains(&block.id));
    let scores: u64 = stacks.iter().map(|&(_, bytes, _)| bytes).sum();
    if facts.share(scores) < DECISIVE {
        return None;
    }
    let is_own = |stack| {
        let found = facts.stacks.get(stack);
        found.python == found.user
    };
    let &(stack, ..) = stacks.iter().find(|&&(stack, ..)| is_own(stack))?;
    Some((user_line(facts, stack)?, fix(scores).saves_bytes))
}

/// Whether an operator makes scores, or the next copy of them.
fn is_on_scores(operator: &str) -> bool {
    let name = bare(operator);
    ON_SCORES
        .iter()
        .any(|part| name.starts_with(part) || name.ends_with(part))
}

/// The sizes that scores have in functions of eager attention, as they are rounded: those of its softmaxes, in other precisions
/// and as masks, too. Fused attention has no softmax.
fn eager_sizes(facts: &Facts) -> HashSet<u64> {
    facts
        .program
        .allocations
        .iter()
        .filter(|allocation| {
            facts.stacks.get(allocation.stack).in_eager_attention()
                && bare(facts.operator_of(allocation)).ends_with("softmax")
        })
        .flat_map(|allocation| {
            let size = allocation.requested;
            [size, size / 2, size * 2, size / 4]
        })
        .map(|size| facts.config.round_size(size))
        .collect()
}

/// An operator's name without its namespace.
fn bare(operator: &str) -> &str {
    operator
        .rsplit("::")
        .next()
        .unwrap_or(operator)
        .trim_matches('_')
}

pub(super) fn fix(scores: u64) -> Fix {
    Fix::lever(
        lever::ATTENTION,
        "scaled_dot_product_attention (attn_implementation=\"sdpa\"), which keeps no scores",
        scores,
        Basis::Estimated,
        "exact to rounding",
    )
}

/// Blocks of attention that is written out: in a module that multiplies batches of matrices and takes a
/// softmax, and in its own dropout, what has the size of the softmax (or of its mask, or in another precision).
///
/// Labels name operators and modules; without them nothing is found.
fn written_out(facts: &Facts) -> HashSet<u32> {
    let Some(labels) = &facts.trace.labels else {
        return HashSet::new();
    };
    let strings = &facts.trace.strings;
    let operator = |row: u32| bare(strings.get(labels.get(row as usize).op));
    let module = |row: u32| strings.get(labels.get(row as usize).module);
    // By module: the sizes of products and of softmaxes.
    let mut products: HashSet<(&str, u64)> = HashSet::new();
    let mut softmaxes: HashMap<&str, HashSet<u64>> = HashMap::new();
    for allocation in &facts.program.allocations {
        if allocation.alloc_row == oomph_allocator::program::NO_ROW
            || allocation.requested < MIN_SCORES
        {
            continue;
        }
        let module = module(allocation.alloc_row);
        match operator(allocation.alloc_row) {
            "bmm" | "baddbmm" => {
                products.insert((module, allocation.requested));
            }
            "softmax" => {
                softmaxes
                    .entry(module)
                    .or_default()
                    .insert(allocation.requested);
            }
            _ => {}
        }
    }
    for (module, sizes) in &mut softmaxes {
        // A product in 16 bits may have a softmax in 32.
        sizes.retain(|&size| {
            [size, size / 2, size * 2]
                .iter()
                .any(|&size| products.contains(&(*module, size)))
        });
    }
    facts
        .live
        .iter()
        .filter(|block| {
            let row = facts.row_of(block);
            if row == oomph_allocator::program::NO_ROW {
                return false;
            }
            let name = module(row);
            let around = name.rsplit_once('.').map(|(around, _)| around);
            let of_dropout = around.filter(|_| operator(row).contains("dropout"));
            let own = softmaxes.get(name);
            let Some(sizes) = own.or_else(|| softmaxes.get(of_dropout?)) else {
                return false;
            };
            is_on_scores(operator(row))
                && sizes.iter().any(|&size| {
                    [size, size / 2, size * 2, size / 4]
                        .iter()
                        .any(|&like| facts.config.round_size(like) == block.bytes)
                })
        })
        .map(|block| block.id)
        .collect()
}
