//! `batch_too_large`: the job simply needs more memory; nothing is wrong with it.

use oomph_trace::{Bytes, Category, Phase};

use super::graph_retained::DECISIVE;
use super::{Cause, Evidence, activation_fixes, stack_evidence};
use crate::facts::Facts;
use crate::stacks::frame_line;
use crate::steps::step_of;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let failure = facts.failure?;
    let phase = facts.failure_phase();
    let activations = facts.bytes_of(Category::Activation)
        + facts.bytes_of(Category::Temporary)
        + facts.bytes_of(Category::Input)
        + if matches!(phase, Phase::Forward | Phase::Backward) {
            facts.request
        } else {
            0
        };
    let share = facts.share(activations);
    if activations == 0 {
        return None;
    }
    let grows = facts.share(facts.growth.bytes) >= DECISIVE;
    let user = facts.stacks.get(failure.stack).user;
    let place = user.map_or_else(String::new, |frame| {
        format!(" at {}", frame_line(facts.trace, frame))
    });
    let when = match phase {
        Phase::Backward => "in backward",
        Phase::Optimizer => "in the optimizer's step",
        Phase::Setup => "outside of any model",
        _ => "in forward",
    };
    let steps = match step_of(&facts.steps, failure.alloc_row) {
        None | Some(0) => "in the first step".to_owned(),
        Some(step) => format!("in step {} of those recorded", step + 1),
    };
    let mut evidence = vec![
        Evidence::of(
            activations,
            format!(
                "activations and other memory of this step, {:.0} % of everything needed",
                share * 100.0
            ),
        ),
        Evidence::of(facts.asked, format!("asked for {when}, {steps}")).at(facts, failure.stack),
    ];
    if !grows {
        evidence.push(Evidence::new(if facts.steps.len() > 2 {
            "nothing grows from step to step"
        } else {
            "too few steps for anything to have grown"
        }));
    }
    evidence.extend(stack_evidence(facts, |block| {
        block.category == Category::Activation
    }));
    Some(Cause {
        id: "batch_too_large",
        confidence: if grows {
            0.15
        } else {
            // The remaining explanation; the more activations dominate, the likelier it is.
            0.45 + share * 0.3
        },
        verdict: format!(
            "the job needs more memory than there is: {} for the activations and other tensors of a step, and it ran out {when}{place}",
            Bytes(activations)
        ),
        evidence,
        fixes: activation_fixes(facts),
    })
}
