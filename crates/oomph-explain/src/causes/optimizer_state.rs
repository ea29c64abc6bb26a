//! `optimizer_state`: the first `step()` allocates the optimizer's state.

use oomph_trace::{Bytes, Category, Phase};

use super::{Basis, Cause, Evidence, Fix, stack_evidence, user_line};
use crate::facts::Facts;
use crate::lever;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let failure = facts.failure?;
    let stack = facts.failure_stack();
    if !stack.in_optimizer() && facts.failure_phase() != Phase::Optimizer {
        return None;
    }
    let state = facts.bytes_of(Category::OptimizerState);
    let parameters = facts.bytes_of(Category::Parameter);
    let place = user_line(facts, failure.stack).map_or_else(String::new, |l| format!(" ({l})"));
    let mut evidence = vec![
        Evidence::of(facts.asked, "requested inside optimizer.step".to_owned())
            .at(facts, failure.stack),
        Evidence::of(
            state,
            format!(
                "optimizer state so far, for {} of parameters",
                Bytes(parameters)
            ),
        ),
    ];
    evidence.extend(stack_evidence(facts, |block| {
        block.category == Category::OptimizerState
    }));
    // Adam keeps two values per parameter. A run without a limit has them all.
    let whole = if facts.request == 0 {
        state
    } else {
        state.max(parameters.saturating_mul(2))
    };
    Some(Cause {
        id: "optimizer_state",
        confidence: 0.9,
        verdict: format!(
            "memory ran out inside optimizer.step{place}: its state needs about {} for {} of \
             parameters",
            Bytes(whole),
            Bytes(parameters)
        ),
        evidence,
        fixes: vec![
            Fix::lever(
                lever::OPTIMIZER_8BIT,
                "an optimizer that keeps its state in 8 bits (torchao, bitsandbytes)",
                whole / 4 * 3,
                Basis::Estimated,
                "close",
            ),
            Fix::lever(
                lever::OPTIMIZER_ON_CPU,
                "keep the state in host memory",
                whole,
                Basis::Estimated,
                "exact",
            ),
            Fix::lever(
                lever::OPTIMIZER_STEP,
                "fused=True or foreach=False: no temporaries as large as the parameters",
                parameters,
                Basis::Estimated,
                "exact to rounding",
            ),
            Fix::lever(
                lever::STEP_IN_BACKWARD,
                "step inside backward, so that gradients are never all alive",
                facts.bytes_of(Category::Gradient) / 10 * 9,
                Basis::Estimated,
                "exact without clipping or accumulation",
            ),
        ],
    })
}
