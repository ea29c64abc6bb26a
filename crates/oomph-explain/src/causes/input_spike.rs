//! `input_spike`: one batch is much larger than the rest.

use std::collections::HashMap;

use oomph_allocator::program::{Allocation, NO_ROW};
use oomph_trace::{Bytes, Category, StackId, StringId};

use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::Facts;
use crate::lever;
use crate::steps::step_of;

/// Complete steps that must have gone well before.
const MIN_STEPS: usize = 3;
/// How far above the steps' working memory the failing step must be.
const FAR_ABOVE: f64 = 1.3;
/// A spike below this share of what was needed is not why memory ran out.
const DECISIVE: f64 = 0.2;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    facts.failure?;
    let current = facts.current_step()?;
    let before: Vec<_> = facts.steps.iter().take(current).collect();
    // The first step may lack optimizer state; peaks count above what stays between steps.
    if before.len() < MIN_STEPS {
        return None;
    }
    let working = |peak: u64, floor: u64| peak.saturating_sub(floor);
    let highest = before
        .windows(2)
        .filter_map(|pair| Some(working(pair.last()?.peak, pair.first()?.live_at_end)))
        .max()?;
    let floor = before.last()?.live_at_end;
    let now = working(facts.needed(), floor);
    if (now as f64) < highest as f64 * FAR_ABOVE
        || facts.share(now.saturating_sub(highest)) < DECISIVE
    {
        return None;
    }
    // The same lines of code must have requested more than ever before.
    let ratio = size_ratio(facts, current)?;
    if ratio < FAR_ABOVE {
        return None;
    }
    // A leak would raise the floor from step to step instead.
    let grown = facts.share(facts.growth.bytes);
    let mut evidence = vec![
        Evidence::of(
            now,
            format!(
                "working memory of this step until it failed; the {} steps before needed at most {}",
                before.len(),
                Bytes(highest)
            ),
        ),
        Evidence::new(format!(
            "the same lines request {ratio:.1} times as much as before"
        )),
    ];
    evidence.extend(stack_evidence(facts, |block| {
        block.step == Some(current) && block.category == Category::Activation
    }));
    Some(Cause {
        id: "input_spike",
        confidence: (0.9 - grown).max(0.2),
        verdict: format!(
            "this step's input is about {ratio:.1} times larger than any before it: {} were \
             enough for {} steps, this one had {} when it failed",
            Bytes(highest),
            before.len(),
            Bytes(now)
        ),
        evidence,
        fixes: vec![
            Fix::advice(
                "cap_input",
                "cap or split the largest inputs, or batch by size; run the largest batch first",
                now.saturating_sub(highest),
                Basis::Counted,
                "other batches",
            ),
            Fix::lever(
                lever::CHECKPOINT,
                "recompute activations in backward (torch.utils.checkpoint)",
                facts.bytes_of(Category::Activation) / 10 * 6,
                Basis::Estimated,
                "exact",
            ),
        ],
    })
}

/// What requests memory in every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Place {
    Line(StackId),
    /// A module's operator.
    Module(StringId, StringId),
}

/// How much more the failing step's lines request than their earlier maximum: the median over
/// the stacks that matter.
fn size_ratio(facts: &Facts, current: usize) -> Option<f64> {
    const MIN_SIZE: u64 = 64 << 10;
    // An evaluation runs the same modules from another line.
    let place = |allocation: &Allocation| match &facts.trace.labels {
        Some(labels) if allocation.alloc_row != NO_ROW => {
            let label = labels.get(allocation.alloc_row as usize);
            match label.module {
                StringId::EMPTY => Place::Line(allocation.stack),
                module => Place::Module(module, label.op),
            }
        }
        _ => Place::Line(allocation.stack),
    };
    let mut largest: HashMap<Place, (u64, u64)> = HashMap::new();
    for allocation in &facts.program.allocations {
        let Some(step) = step_of(&facts.steps, allocation.alloc_row) else {
            continue;
        };
        if allocation.stack == StackId::NONE {
            continue;
        }
        let entry = largest.entry(place(allocation)).or_default();
        if step == current {
            entry.1 = entry.1.max(allocation.requested);
        } else if step < current {
            entry.0 = entry.0.max(allocation.requested);
        }
    }
    // Weights and their workspaces do not change with the input: only what differs counts,
    // weighed by bytes.
    let mut ratios: Vec<(f64, u64)> = largest
        .values()
        .filter(|&&(before, now)| before > 0 && now >= MIN_SIZE)
        .map(|&(before, now)| (now as f64 / before as f64, now))
        .collect();
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: u64 = ratios.iter().map(|&(_, weight)| weight).sum();
    let mut sum = 0;
    for (ratio, weight) in ratios {
        sum += weight;
        if sum * 2 >= total {
            return Some(ratio);
        }
    }
    None
}
