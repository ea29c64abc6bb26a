//! `missing_no_grad`: evaluation or inference builds a graph that no backward ever frees.

use oomph_trace::Bytes;

use super::graph_retained::{confidence, growth_evidence, is_graph};
use super::{Basis, Cause, Fix, user_line};
use crate::facts::Facts;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let growth = &facts.growth;
    let confidence = confidence(facts)?;
    if !is_graph(growth) || growth.with_backward {
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
        fixes: vec![
            Fix::advice(
                "no_grad",
                "run the loop under torch.inference_mode() (or torch.no_grad())",
                // The outputs that are collected stay.
                growth.bytes,
                Basis::Counted,
                "exact",
            )
            .apply("with torch.inference_mode():"),
        ],
    })
}
