//! `tensors_kept`: outputs, features or metrics are collected on the GPU.

use oomph_trace::{Bytes, Phase};

use std::collections::HashMap;

use super::graph_retained::{DECISIVE, confidence, growth_evidence, is_graph};
use super::{Basis, Cause, Evidence, Fix, stack_evidence, top_stacks, user_line};
use crate::facts::{Facts, Live};
use crate::repeats::{self, Join};

/// Results of a loop below this share of what was needed are not why memory ran out.
const DOMINANT: f64 = 0.5;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    if super::kv_cache::check(facts).is_some() {
        return None;
    }
    collected(facts)
        .or_else(|| joined(facts))
        .or_else(|| computed(facts))
}

/// Results that a loop without steps keeps: no module is called, or none that is known.
fn computed(facts: &Facts) -> Option<Cause> {
    if facts.failure_phase() != Phase::Setup {
        return None;
    }
    let pile = repeats::results_of_a_loop(facts)?;
    let share = facts.share(pile.bytes);
    if share < DOMINANT {
        return None;
    }
    let kept = |block: &Live| pile.blocks.contains(&block.id);
    let place = top_stacks(facts, kept)
        .first()
        .and_then(|&(stack, ..)| user_line(facts, stack))
        .map_or_else(String::new, |line| format!(" at {line}"));
    Some(Cause {
        id: "tensors_kept",
        // Above a model that is too large: what computes is none.
        confidence: (0.88 + share / 10.0).min(0.97),
        verdict: format!(
            "results that a loop made{place} are kept on the GPU: {} in {} of them",
            Bytes(pile.bytes),
            pile.iterations
        ),
        evidence: stack_evidence(facts, kept),
        fixes: vec![fix(pile.bytes)],
    })
}

/// A tensor that is joined with something new again and again: a queue, predictions.
fn joined(facts: &Facts) -> Option<Cause> {
    let mut joins: HashMap<_, Join> = repeats::joins(facts);
    joins.retain(|_, join| join.is_steady());
    let in_buffer = |block: &Live| joins.contains_key(&block.stack);
    let held = repeats::bytes(facts, in_buffer);
    let share = facts.share(held);
    if share < DECISIVE {
        return None;
    }
    let (stack, ..) = *top_stacks(facts, in_buffer).first()?;
    let join = joins.get(&stack)?;
    let (first, last) = (join.sizes.first()?, join.sizes.last()?);
    let place = user_line(facts, stack).map_or_else(String::new, |line| format!(" at {line}"));
    let mut evidence = vec![Evidence::of(
        held,
        format!(
            "in tensors that are joined longer and longer, {} times so far, and in their copies",
            join.sizes.len()
        ),
    )];
    evidence.extend(stack_evidence(facts, in_buffer));
    Some(Cause {
        id: "tensors_kept",
        // Below what fragmentation has if a replay shows that it is enough.
        confidence: (0.76 + share / 5.0).min(0.93),
        verdict: format!(
            "a tensor{place} is joined longer and longer, from {} to {}, and every time the old and \
             the new one are alive: {}",
            Bytes(*first),
            Bytes(*last),
            Bytes(held)
        ),
        evidence,
        fixes: vec![
            Fix::advice(
                "to_cpu",
                "join on the CPU, or keep only as much as is used",
                held,
                Basis::Counted,
                "exact",
            )
            .apply("kept.append(output.detach().cpu())"),
        ],
    })
}

fn collected(facts: &Facts) -> Option<Cause> {
    let growth = &facts.growth;
    let confidence = confidence(facts)?;
    if is_graph(growth) {
        return None;
    }
    let largest = top_stacks(facts, |block| {
        growth.stacks.binary_search(&block.stack).is_ok()
    });
    let place = largest
        .first()
        .and_then(|&(stack, ..)| user_line(facts, stack))
        .map_or_else(String::new, |line| format!(" at {line}"));
    // A few blocks a step from the script itself are also how fragmentation begins; that cause
    // has its own evidence.
    Some(Cause {
        id: "tensors_kept",
        confidence,
        verdict: format!(
            "results made{place} are kept on the GPU: {} after {} steps, {} more in every step",
            Bytes(growth.bytes),
            growth.steps,
            Bytes(growth.per_step)
        ),
        evidence: growth_evidence(facts),
        fixes: vec![fix(growth.bytes)],
    })
}

pub(super) fn fix(bytes: u64) -> Fix {
    Fix::advice(
        "to_cpu",
        "move what you collect to the CPU, or reduce it to the number that you need",
        bytes,
        Basis::Counted,
        "exact",
    )
    .apply("preds.append(output.detach().cpu())")
}
