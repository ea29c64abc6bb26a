//! `stale_model`: an earlier model or optimizer is still referenced: several generations of
//! parameter blocks of the same sizes.

use std::collections::HashMap;

use oomph_allocator::program::NO_ROW;
use oomph_trace::{Bytes, Category, StringId};

use super::{Basis, Cause, Evidence, Fix, largest_line, stack_evidence};
use crate::facts::{Facts, Live};
use crate::repeats;

/// Parameters below this share of what was needed are not why memory ran out.
const DECISIVE: f64 = 0.3;
/// Copies of the model beside it from which on they are too many.
const COPIES: u64 = 2;
/// Blocks from here on are compared: small ones repeat by chance.
const MIN_SIZE: u64 = 64 << 10;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    replaced(facts)
        .or_else(|| idle(facts))
        .or_else(|| copied(facts))
        .or_else(|| repeated(facts))
}

/// What the stacks say: copies of a model that `copy.deepcopy` made, beyond the one that an average, a target
/// or a teacher needs.
fn copied(facts: &Facts) -> Option<Cause> {
    let is_copy = |block: &Live| facts.stacks.get(block.stack).copies_parameter();
    let copies = repeats::bytes(facts, is_copy);
    let originals = repeats::bytes(facts, |block| {
        block.category == Category::Parameter && !is_copy(block)
    });
    let share = facts.share(copies);
    if share < DECISIVE || copies < originals.saturating_mul(COPIES) {
        return None;
    }
    let place = largest_line(facts, is_copy).map_or_else(String::new, |line| format!(" at {line}"));
    let mut evidence = vec![Evidence::of(
        copies,
        format!(
            "parameters that copy.deepcopy made, of a model of {}",
            Bytes(originals)
        ),
    )];
    evidence.extend(stack_evidence(facts, is_copy));
    Some(cause(
        copies,
        0.98,
        format!(
            "copies of the model that were made{place} are still referenced: {} beside its own {}",
            Bytes(copies),
            Bytes(originals)
        ),
        evidence,
    ))
}

/// What the recorder saw: models that are alive and were not called again after another one of their
/// kind was.
fn replaced(facts: &Facts) -> Option<Cause> {
    let is_stale = |block: &Live| facts.options.seen.replaced.contains(&facts.row_of(block));
    let stale: u64 = facts
        .live
        .iter()
        .filter(|block| is_stale(block))
        .map(|block| block.bytes)
        .sum();
    if !facts.is_decisive(stale, DECISIVE) {
        return None;
    }
    let place =
        largest_line(facts, is_stale).map_or_else(String::new, |line| format!(" (made at {line})"));
    let mut evidence = vec![Evidence::of(
        stale,
        "parameters, gradients and optimizer state of models that were replaced".to_owned(),
    )];
    evidence.extend(stack_evidence(facts, is_stale));
    Some(cause(
        stale,
        0.93,
        format!(
            "an earlier model{place} is still referenced although another one took its place: {}",
            Bytes(stale)
        ),
        evidence,
    ))
}

/// What the recorder saw: weights, gradients and state of optimizers that nothing has read since before this step, and that
/// nothing reads afterwards.
fn idle(facts: &Facts) -> Option<Cause> {
    let current = facts.current_step()?;
    let is_idle = |block: &Live| {
        matches!(
            block.category,
            Category::Parameter | Category::Gradient | Category::OptimizerState
        ) && (facts.module(block) != StringId::EMPTY
            || facts.stacks.get(block.stack).copies_parameter())
            && !facts.stacks.get(block.stack).loads_file()
            // Gradients, and what an optimizer notes for one step, are there until the next ones are; what `step` itself keeps is not.
            && (block.category == Category::Parameter
                || block.category == Category::OptimizerState && facts.stacks.get(block.stack).in_optimizer()
                || block.step.is_none_or(|step| step + 1 < current))
            && facts.is_idle(block)
    };
    let in_use = in_use_since(facts);
    let is_part = |block: &Live| {
        let beside = in_use.get(root(facts, block)).zip(facts.last_read(block));
        beside.is_some_and(|(&made, last)| made < last)
    };
    let is_idle = |block: &Live| is_idle(block) && !is_part(block);
    let stale = repeats::bytes(facts, is_idle);
    if !facts.is_decisive(stale, DECISIVE) {
        return None;
    }
    let place =
        largest_line(facts, is_idle).map_or_else(String::new, |line| format!(" (made at {line})"));
    let mut evidence = vec![Evidence::of(
        stale,
        "parameters, gradients and optimizer state that nothing uses any more".to_owned(),
    )];
    evidence.extend(stack_evidence(facts, is_idle));
    Some(cause(
        stale,
        0.92,
        format!(
            "a model{place} is still referenced although nothing uses it any more: {}",
            Bytes(stale)
        ),
        evidence,
    ))
}

/// Where nothing trains: when the first weights were made that are in use, by the class of their model. One that was called after that
/// is a part beside them, whose turn is over.
fn in_use_since<'a>(facts: &'a Facts) -> HashMap<&'a str, u32> {
    let mut since = HashMap::new();
    let weights = facts.live.iter().filter(|block| {
        !facts.trains() && block.category == Category::Parameter && !facts.is_idle(block)
    });
    for block in weights {
        let made = facts.row_of(block);
        let first = since.entry(root(facts, block)).or_insert(made);
        *first = made.min(*first);
    }
    since
}

/// The class of the outermost model that a block belongs to; empty if it is none's.
fn root<'a>(facts: &'a Facts, block: &Live) -> &'a str {
    let module = facts.trace.strings.get(facts.module(block));
    module.split('.').next().unwrap_or(module)
}

/// What the sizes say: parameters of a second model repeat those of the first.
fn repeated(facts: &Facts) -> Option<Cause> {
    // Parameters of a second model repeat the sizes of the first.
    // Files that were read to the GPU have a cause of their own.
    let is_parameter = |block: &Live| {
        block.category == Category::Parameter
            && block.bytes >= MIN_SIZE
            && !facts.stacks.get(block.stack).loads_file()
    };
    let sizes = repeats::sizes(facts, is_parameter);
    let period = repeats::shortest_period(&sizes)?;
    if are_one_model(facts, is_parameter, period) {
        return None;
    }
    // The last one may still be in the making.
    let generations = sizes.len().div_ceil(period);
    let one: u64 = sizes.iter().take(period).sum();
    let stale = one.saturating_mul(generations as u64 - 1);
    let share = facts.share(stale);
    if share < DECISIVE {
        return None;
    }
    // The layers of one model also repeat; a whole model has sizes that occur once in it.
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for &size in sizes.iter().take(period) {
        *counts.entry(size).or_insert(0) += 1;
    }
    if !counts.values().any(|&count| count == 1) {
        return None;
    }
    let mut evidence = vec![Evidence::of(
        stale,
        format!("{generations} generations of {period} parameter blocks of the same sizes"),
    )];
    evidence.extend(stack_evidence(facts, |block| {
        block.category == Category::Parameter
    }));
    Some(cause(
        stale,
        0.6 + share / 4.0,
        format!(
            "{generations} copies of the model are alive, {} each: earlier ones are still \
             referenced",
            Bytes(one)
        ),
        evidence,
    ))
}

/// Whether blocks that repeat after `period` belong to modules of different names, as a recorder knows them: layers of one
/// model do, where another model of the same class has the same names.
fn are_one_model(facts: &Facts, wanted: impl Fn(&Live) -> bool, period: usize) -> bool {
    let Some(labels) = &facts.trace.labels else {
        return false;
    };
    let owners: Vec<StringId> = facts
        .live
        .iter()
        .filter(|block| wanted(block))
        .map(|block| match facts.row_of(block) {
            NO_ROW => StringId::EMPTY,
            row => labels.get(row as usize).module,
        })
        .collect();
    let pairs = owners.iter().zip(owners.iter().skip(period));
    let known = pairs.filter(|&(&a, &b)| a != StringId::EMPTY && b != StringId::EMPTY);
    let (mut alike, mut all) = (0_usize, 0_usize);
    for (a, b) in known {
        alike += usize::from(a == b);
        all += 1;
    }
    all > 0 && alike * 2 < all
}

fn cause(stale: u64, confidence: f64, verdict: String, evidence: Vec<Evidence>) -> Cause {
    Cause {
        id: "stale_model",
        confidence,
        verdict,
        evidence,
        fixes: vec![Fix::advice(
            "drop_references",
            "delete what refers to the earlier model, its optimizer and its outputs (also \
             exceptions and notebook outputs), then torch.cuda.empty_cache()",
            stale,
            Basis::Counted,
            "exact",
        )],
    }
}
