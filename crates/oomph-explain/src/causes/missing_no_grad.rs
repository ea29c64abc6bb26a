//! `missing_no_grad`: evaluation or inference builds a graph that no backward ever frees.

use std::collections::HashSet;

use oomph_trace::{Bytes, Category, StringId};

use super::graph_retained::{confidence, growth_evidence, is_before_training, is_graph};
use super::{Basis, Cause, Evidence, Fix, calling_line, stack_evidence, top_stacks, user_line};
use crate::facts::{Facts, Live};

/// Training steps that each leave a graph.
const STEPS: usize = 3;
/// The confidence beside what keeps graphs of training.
const BESIDE: f64 = 0.74;
/// Activations below this share of what was needed are not why memory ran out.
const DECISIVE: f64 = 0.25;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    unused(facts).or_else(|| growing(facts))
}

/// What the recorder saw: graphs that no backward pass needs.
fn unused(facts: &Facts) -> Option<Cause> {
    let is_unused = |block: &Live| {
        block.category == Category::Activation
            && facts
                .options
                .seen
                .unused_graphs
                .contains(&facts.row_of(block))
    };
    let mut sizes: Vec<u64> = facts
        .live
        .iter()
        .filter(|block| is_unused(block))
        .map(|block| block.bytes)
        .collect();
    sizes.sort_unstable();
    let kept: u64 = sizes.iter().sum();
    let share = facts.share(kept);
    if !facts.is_decisive(kept, DECISIVE) {
        return None;
    }
    // Without a graph, an operator's input and output are alive.
    let saved = facts
        .saves(is_unused)
        .saturating_sub(sizes.iter().rev().take(2).sum());
    let place = top_stacks(facts, is_unused)
        .first()
        .and_then(|&(stack, ..)| calling_line(facts, stack))
        .map_or_else(String::new, |line| format!(" at {line}"));
    let what = if facts.trains() {
        "an evaluation or a teacher"
    } else {
        "inference"
    };
    let mut evidence = vec![Evidence::of(
        kept,
        "kept for a graph that no backward pass uses".to_owned(),
    )];
    evidence.extend(stack_evidence(facts, is_unused));
    Some(Cause {
        id: "missing_no_grad",
        confidence: if is_of_training(facts, is_unused) || is_before_training(facts) {
            // What keeps them comes first; either fix helps.
            BESIDE
        } else {
            (0.85 + share / 5.0).min(0.98)
        },
        verdict: format!(
            "{what} without no_grad: {} are kept for a graph of the pass{place} that no backward \
             pass uses",
            Bytes(kept)
        ),
        evidence,
        fixes: vec![fix(saved, Basis::Estimated)],
    })
}

/// Whether most of these graphs are of passes in training, one in every step, and kept: a graph that something refers to. An
/// evaluation sets the model to evaluate, or comes once in many steps.
fn is_of_training(facts: &Facts, is_unused: impl Fn(&Live) -> bool) -> bool {
    let Some(current) = facts.current_step() else {
        return false;
    };
    let evaluates = |block: &Live| facts.options.seen.evaluating.contains(&facts.row_of(block));
    let (mut all, mut of_steps) = (0, 0);
    let mut steps = HashSet::new();
    for block in facts.live.iter().filter(|block| is_unused(block)) {
        all += block.bytes;
        if let Some(step) = block.step
            && step < current
            && facts.module(block) != StringId::EMPTY
            && !evaluates(block)
        {
            of_steps += block.bytes;
            steps.insert(step);
        }
    }
    let trains = facts.growth.with_backward;
    of_steps * 2 > all && trains && steps.len() >= STEPS && steps.len() * 2 > current
}

pub(super) fn fix(saved: u64, basis: Basis) -> Fix {
    Fix::advice(
        "no_grad",
        "run the pass under torch.inference_mode() (or torch.no_grad())",
        saved,
        basis,
        "exact",
    )
    .apply("with torch.inference_mode():")
}

fn growing(facts: &Facts) -> Option<Cause> {
    let growth = &facts.growth;
    let confidence = confidence(facts)?;
    // A recorder knows which graphs no backward pass uses.
    let recorded = facts.trace.labels.is_some() && facts.trains();
    if !is_graph(growth) || growth.with_backward || recorded {
        return None;
    }
    let place = growth
        .stacks
        .first()
        .and_then(|&stack| user_line(facts, stack))
        .map_or_else(String::new, |line| format!(" at {line}"));
    Some(Cause {
        id: "missing_no_grad",
        confidence,
        verdict: format!(
            "the loop{place} keeps the activations of every forward, {} a step, and runs no \
             backward: evaluation without no_grad",
            Bytes(growth.per_step)
        ),
        evidence: growth_evidence(facts),
        // The outputs that are collected stay.
        fixes: vec![fix(growth.bytes, Basis::Counted)],
    })
}
