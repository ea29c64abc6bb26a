//! `tensors_kept`: outputs, features or metrics are collected on the GPU.

use std::collections::{HashMap, HashSet};

use oomph_trace::{Bytes, Category, Phase, StringId};

use super::graph_retained::{DECISIVE, confidence, growth_evidence, is_graph};
use super::{
    Basis, Cause, Evidence, Fix, fits_without, largest_line, stack_evidence, top_stacks, user_line,
};
use crate::facts::{Facts, Live};
use crate::repeats::{self, Join};

/// Results of a loop below this share of what was needed are not why memory ran out.
const DOMINANT: f64 = 0.5;
/// Data below this share of what was needed are not why memory ran out.
const DATA: f64 = 0.3;
/// What a step makes is at most one part in as many of data that it uses a part of.
const SMALL_PART: u64 = 4;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    if super::kv_cache::check(facts).is_some() {
        return None;
    }
    collected(facts)
        .or_else(|| joined(facts))
        .or_else(|| computed(facts))
        .or_else(|| idle(facts))
}

/// What the recorder saw: results and data of earlier steps that nothing reads in this step or afterwards.
fn idle(facts: &Facts) -> Option<Cause> {
    // What the step before gave has a name until the same line runs again: one of it is no collection.
    let current = facts.current_step()?;
    let is_idle = |block: &Live| {
        block.step.is_none_or(|step| step + 1 < current)
            && matches!(
                block.category,
                Category::Activation | Category::Input | Category::Temporary | Category::Unknown
            )
            && !facts.stacks.get(block.stack).loads_file()
            && !(facts.options.seen.unused_graphs).contains(&facts.row_of(block))
            && facts.is_idle(block)
    };
    let kept = repeats::bytes(facts, is_idle);
    // What a graph keeps, Python does not refer to.
    if !facts.is_decisive(kept, DATA) || is_graph(&facts.growth) {
        return None;
    }
    let place = largest_line(facts, is_idle).map_or_else(String::new, |line| format!(" at {line}"));
    Some(Cause {
        id: "tensors_kept",
        confidence: 0.86,
        verdict: format!(
            "tensors made{place} in earlier steps are kept on the GPU, and nothing reads them any more: {}",
            Bytes(kept)
        ),
        evidence: stack_evidence(facts, is_idle),
        fixes: vec![fix(kept)],
    })
}

/// Data that the script put on the GPU before its first step and keeps there, although each step uses a small part of it.
pub(super) fn data_on_gpu(cut: &Facts, whole: &Facts) -> Option<Cause> {
    let owned = |block: &Live| whole.module(block) != StringId::EMPTY;
    let (mut models, mut sizes) = (false, HashSet::new());
    for block in &whole.live {
        if block.category == Category::Parameter && owned(block) {
            models = true;
            sizes.insert(block.bytes);
        }
    }
    let is_data = |block: &Live| {
        let stack = whole.stacks.get(block.stack);
        block.phase == Phase::Setup
            && matches!(
                block.category,
                Category::Input | Category::Parameter | Category::Unknown
            )
            && !owned(block)
            // A state that is written by hand.
            && !sizes.contains(&block.bytes)
            && !stack.loads_file()
            && !stack.copies_parameter()
            && !stack.casts_module()
    };
    let data = repeats::bytes(whole, is_data);
    let largest_result = whole
        .program
        .allocations
        .iter()
        .filter(|allocation| {
            matches!(
                whole.holds(allocation, true).1,
                Phase::Forward | Phase::Inference
            )
        })
        .map(|allocation| allocation.requested)
        .max()?;
    let share = whole.share(data);
    // What no step has come to, or comes to again, is known to be a large part.
    let idle = repeats::bytes(whole, |block| is_data(block) && whole.is_idle(block));
    let uses_part = largest_result.saturating_mul(SMALL_PART) <= data || idle * 2 > data;
    if !models
        || !whole.trains()
        || share < DATA
        || !uses_part
        || check(whole).is_some()
        || fits_without(cut, whole, data) != Some(true)
    {
        return None;
    }
    let place = largest_line(whole, is_data).map_or_else(String::new, |line| format!(" at {line}"));
    Some(Cause {
        id: "tensors_kept",
        confidence: 0.8 + share / 10.0,
        verdict: format!(
            "data of {} are put on the GPU{place} before the first step and stay there, where each step uses a small part",
            Bytes(data)
        ),
        evidence: stack_evidence(whole, is_data),
        fixes: vec![
            Fix::advice(
                "to_cpu",
                "keep the data in host memory (pinned), and move each batch to the GPU",
                data,
                Basis::Counted,
                "exact",
            )
            .apply("batch = batch.to(\"cuda\", non_blocking=True)"),
        ],
    })
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
    let place = largest_line(facts, kept).map_or_else(String::new, |line| format!(" at {line}"));
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
    let grows = |block: &Live| facts.grows(block);
    let place = largest_line(facts, grows).map_or_else(String::new, |line| format!(" at {line}"));
    // A few blocks a step from the script itself are also how fragmentation begins; that cause
    // has its own evidence.
    Some(Cause {
        id: "tensors_kept",
        confidence,
        verdict: format!(
            "results made{place} are kept on the GPU: {} after {} {}, {} more in every {}",
            Bytes(growth.bytes),
            growth.steps,
            growth.units(),
            Bytes(growth.per_step),
            growth.unit(),
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
