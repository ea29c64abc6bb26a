//! `attention_scores`: eager attention keeps (heads × length²) per layer.

use std::collections::{HashMap, HashSet};

use oomph_allocator::program::NO_ROW;
use oomph_trace::{Bytes, Phase, StringId};

use super::{Basis, Cause, Evidence, Fix, largest_line, stack_evidence, top_stacks, user_line};
use crate::facts::{Facts, Live};
use crate::lever;

/// Scores below this share of what was needed are not why memory ran out.
const DECISIVE: f64 = 0.25;

/// A softmax of fewer bytes has short sequences, or is no attention.
const MIN_SCORES: u64 = 1 << 20;

/// Scores are at least this many times the product with the values that follows: as many as the length is times a head's width.
const BROUGHT_BACK: u64 = 6;
/// A vector for a pair of places is at least so many times its score.
const PAIR: u64 = 8;
/// That product is one of the next few; scores may be sums of several.
const NEXT_PRODUCTS: usize = 4;

/// Operators that make scores, or the next copy of them.
const ON_SCORES: [&str; 17] = [
    "exp",
    "relu",
    "square",
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
    let (written_out, additive) = written_out(facts);
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
        !facts.is_left_behind(block)
            && (facts.stacks.get(block.stack).in_eager_attention() && is_score(block)
                || written_out.contains(&block.id))
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
    let confidence = (0.7 + share / 3.0).min(0.95);
    let split = facts.split(in_attention);
    let unfused = unfused_modules(facts);
    let of_unfused: u64 = facts
        .live
        .iter()
        .filter(|block| in_attention(block) && unfused.contains(&facts.module(block)))
        .map(|block| block.bytes)
        .sum();
    let is_unfused = of_unfused * 2 > scores;
    if is_unfused {
        evidence.push(Evidence::new(
            "scaled_dot_product_attention was called, and ran none of its fused kernels",
        ));
    }
    // The script lets a fused kernel run, and gives it what none takes.
    let in_vain = is_unfused && facts.options.seen.fused_attention;
    Some(Cause {
        id: if in_vain {
            "mitigation_inert"
        } else {
            "attention_scores"
        },
        confidence,
        verdict: format!(
            "attention{place} keeps {} of scores, which grow with the square of the length",
            Bytes(scores)
        ),
        evidence,
        fixes: vec![
            if is_unfused {
                fuse(split.saves(0.0))
            } else if additive {
                Fix::advice(
                    "products",
                    "score each pair by a product (scaled_dot_product_attention): a sum of both keeps a vector for each pair",
                    split.saves(0.0),
                    Basis::Estimated,
                    "another model",
                )
            } else {
                fix(split.saves(0.0))
            },
            Fix::advice(
                "shorter_sequences",
                "half the length needs a quarter of the scores",
                split.saves(0.25),
                Basis::Estimated,
                "other inputs",
            ),
        ],
    })
}

/// The line of the user's own attention that keeps its scores, whether or not memory ran out, and what a fused
/// kernel in its place would save.
pub(crate) fn of_own_code(facts: &Facts) -> Option<(String, u64)> {
    let ((written_out, additive), unfused) = (written_out(facts), unfused_modules(facts));
    let stacks = top_stacks(facts, |block| {
        written_out.contains(&block.id) && !unfused.contains(&facts.module(block))
    });
    let scores: u64 = stacks.iter().map(|&(_, bytes, _)| bytes).sum();
    if additive || facts.share(scores) < DECISIVE {
        return None;
    }
    let is_own = |stack| {
        let found = facts.stacks.get(stack);
        found.python == found.user
    };
    let &(stack, ..) = stacks.iter().find(|&&(stack, ..)| is_own(stack))?;
    Some((user_line(facts, stack)?, fix(scores).saves_bytes))
}

/// The modules in which scaled_dot_product_attention ran and PyTorch chose none of its fused kernels: only their substitute takes this
/// softmax.
fn unfused_modules(facts: &Facts) -> HashSet<StringId> {
    let Some(labels) = &facts.trace.labels else {
        return HashSet::new();
    };
    facts
        .program
        .allocations
        .iter()
        .filter(|allocation| bare(facts.operator_of(allocation)) == "safe_softmax")
        .map(|allocation| labels.get(allocation.alloc_row as usize).module)
        .collect()
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

/// The same where the script calls for it already.
fn fuse(scores: u64) -> Fix {
    Fix::advice(
        "fused_attention",
        "let scaled_dot_product_attention run a fused kernel: do not choose the math kernel, give no mask that needs a \
         gradient, use fp32 or 16 bits and heads whose width is a multiple of 8",
        scores,
        Basis::Estimated,
        "exact to rounding",
    )
}

/// Blocks of attention that is written out: what has the size of the scores, or of their mask, or in another precision.
///
/// In a module, scores are what a batch of products and a softmax make in the same size; or what a softmax or a batch of
/// products makes, and a product that follows brings back to a small part of it. The second is whether there are vectors for pairs. Labels name operators and modules; without them
/// nothing is found.
fn written_out(facts: &Facts) -> (HashSet<u32>, bool) {
    let Some(labels) = &facts.trace.labels else {
        return (HashSet::new(), false);
    };
    let strings = &facts.trace.strings;
    let mut calls: HashMap<StringId, Vec<(&str, u64)>> = HashMap::new();
    for allocation in &facts.program.allocations {
        if allocation.alloc_row == NO_ROW {
            continue;
        }
        let label = labels.get(allocation.alloc_row as usize);
        if !matches!(label.phase, Phase::Backward | Phase::Optimizer) {
            calls
                .entry(label.module)
                .or_default()
                .push((bare(strings.get(label.op)), allocation.requested));
        }
    }
    let mut additive = false;
    let scores: HashMap<&str, HashSet<u64>> = calls
        .into_iter()
        .map(|(module, calls)| {
            let (sizes, of_pairs) = score_sizes(&calls);
            additive |= of_pairs;
            (strings.get(module), sizes)
        })
        .filter(|(_, sizes)| !sizes.is_empty())
        .collect();
    let found = facts
        .every()
        .filter(|block| {
            let row = facts.row_of(block);
            if row == NO_ROW {
                return false;
            }
            let label = labels.get(row as usize);
            // A module of attention may have one for its dropout or its softmax.
            let module = strings.get(label.module);
            let around = || {
                module
                    .rsplit_once('.')
                    .and_then(|(around, _)| scores.get(around))
            };
            let Some(sizes) = scores.get(module).or_else(around) else {
                return false;
            };
            is_on_scores(strings.get(label.op))
                && sizes.iter().any(|&size| {
                    [size, size / 2, size * 2, size / 4]
                        .iter()
                        .any(|&like| facts.config.round_size(like) == block.bytes)
                })
        })
        .map(|block| block.id);
    (found.collect(), additive)
}

/// The sizes of scores among what a module's operators made, in their order, and whether some are vectors for pairs.
fn score_sizes(calls: &[(&str, u64)]) -> (HashSet<u64>, bool) {
    let products: HashSet<u64> = calls
        .iter()
        .filter(|(operator, _)| matches!(*operator, "bmm" | "baddbmm"))
        .map(|&(_, size)| size)
        .collect();
    let (mut found, mut of_pairs) = (HashSet::new(), false);
    for (index, &(operator, size)) in calls.iter().enumerate() {
        if size < MIN_SCORES {
            continue;
        }
        // A product in 16 bits may have a softmax in 32.
        let of_products = || {
            [size, size / 2, size * 2]
                .iter()
                .any(|size| products.contains(size))
        };
        let brought_back = |names: &[&str]| {
            let later = calls.iter().skip(index + 1);
            later
                .filter(|(operator, _)| names.contains(operator))
                .take(NEXT_PRODUCTS)
                .any(|&(_, product)| product.saturating_mul(BROUGHT_BACK) <= size)
        };
        // Additive attention has a vector for each pair until a layer makes a score of it.
        let pairs: Vec<u64> = (calls.iter().take(index).rev())
            .filter(|(_, earlier)| *earlier >= MIN_SCORES)
            .take_while(|(name, earlier)| {
                !products.contains(earlier)
                    && is_on_scores(name)
                    && earlier % size == 0
                    && earlier / size >= PAIR
            })
            .map(|&(_, earlier)| earlier)
            .collect();
        let follows = |name: &str| calls.iter().skip(index + 1).any(|call| call.0 == name);
        let is_scores = match operator {
            "softmax" if !pairs.is_empty() && follows("bmm") => {
                found.extend(pairs);
                of_pairs = true;
                true
            }
            "softmax" => of_products() || brought_back(&["bmm", "baddbmm", "mm"]),
            "bmm" | "baddbmm" => brought_back(&["bmm", "baddbmm"]),
            _ => false,
        };
        if is_scores {
            found.insert(size);
        }
    }
    (found, of_pairs)
}
