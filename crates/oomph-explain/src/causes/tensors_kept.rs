//! `tensors_kept`: outputs, features or metrics are collected on the GPU.

use oomph_trace::Bytes;

use super::graph_retained::{confidence, growth_evidence, is_graph};
use super::{Basis, Cause, Fix, top_stacks, user_line};
use crate::facts::Facts;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let growth = &facts.growth;
    let confidence = confidence(facts)?;
    if is_graph(growth)
        || growth
            .stacks
            .iter()
            .all(|&stack| facts.stacks.get(stack).in_kv_cache())
    {
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
        fixes: vec![
            Fix::advice(
                "to_cpu",
                "move what you collect to the CPU, or reduce it to the number that you need",
                growth.bytes,
                Basis::Counted,
                "exact",
            )
            .apply("preds.append(output.detach().cpu())"),
        ],
    })
}
