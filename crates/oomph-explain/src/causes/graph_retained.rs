//! `graph_retained`: activations of old steps stay alive because something refers to their graph
//! (`total += loss`, hidden state that is not detached, `retain_graph=True`).

use oomph_trace::Bytes;

use super::{Basis, Cause, Evidence, Fix, stack_evidence};
use crate::facts::{Facts, Growth};

/// Growth below this share of what was needed is not why memory ran out.
pub(super) const DECISIVE: f64 = 0.15;
/// A graph keeps at least this share of what forward made; a few kept results are less.
const GRAPH_SHARE: f64 = 0.25;
/// A graph has at least this many blocks.
const GRAPH_BLOCKS: f64 = 3.0;

/// Whether the blocks of old steps are whole graphs, not single results.
pub(super) fn is_graph(growth: &Growth) -> bool {
    growth.in_modules && growth.blocks_per_step >= GRAPH_BLOCKS && growth.kept_share >= GRAPH_SHARE
}

/// Evidence for blocks that grow from step to step.
pub(super) fn growth_evidence(facts: &Facts) -> Vec<Evidence> {
    let growth = &facts.growth;
    let mut evidence = vec![Evidence::of(
        growth.bytes,
        format!(
            "made in {} earlier steps and still alive: about {:.0} blocks and {} more in every step",
            growth.steps,
            growth.blocks_per_step,
            Bytes(growth.per_step)
        ),
    )];
    evidence.extend(stack_evidence(facts, |block| {
        growth.stacks.binary_search(&block.stack).is_ok()
    }));
    evidence
}

/// How sure growth makes a cause.
pub(super) fn confidence(facts: &Facts) -> Option<f64> {
    let share = facts.share(facts.growth.bytes);
    if facts.growth.steps == 0 || share < DECISIVE {
        return None;
    }
    Some((0.75 + share / 4.0).min(0.97))
}

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let growth = &facts.growth;
    let confidence = confidence(facts)?;
    if !is_graph(growth) || !growth.with_backward {
        return None;
    }
    Some(Cause {
        id: "graph_retained",
        confidence,
        verdict: format!(
            "the graphs of {} earlier steps are still alive: {} that grow by {} a step",
            growth.steps,
            Bytes(growth.bytes),
            Bytes(growth.per_step)
        ),
        evidence: growth_evidence(facts),
        fixes: vec![
            Fix::advice(
                "detach",
                "keep numbers, not tensors with a graph: `total += loss.item()`, \
                 `hidden = hidden.detach()`; drop `retain_graph=True`",
                growth.bytes,
                Basis::Counted,
                "exact",
            )
            .apply("loss.item()  # or loss.detach()"),
        ],
    })
}
