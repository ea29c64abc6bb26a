//! `model_too_large`: parameters, gradients and optimizer state alone do not fit.

use oomph_trace::{Bytes, Category, Phase};

use super::{Basis, Cause, Evidence, Fix, enough_parts, stack_evidence};
use crate::facts::{Facts, Live};
use crate::lever;

/// From this share on, what stays between steps is the reason.
const DOMINANT: f64 = 0.8;

/// The same where not even a small part of the batch would fit.
const MOST: f64 = 0.5;

/// Whether the job would fit with a small part of its batch, as far as is known.
fn fits_one_sample(facts: &Facts) -> bool {
    let of_batch = |block: &Live| {
        matches!(
            block.category,
            Category::Activation | Category::Temporary | Category::Input
        )
    };
    facts
        .short
        .is_none_or(|short| facts.saves(of_batch) >= short)
}

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let failure = facts.failure?;
    let in_setup = matches!(facts.failure_phase(), Phase::Setup | Phase::Load);
    let mut persistent = facts.persistent();
    if in_setup {
        persistent += facts.request;
    }
    let share = facts.share(persistent);
    let least = if fits_one_sample(facts) {
        DOMINANT
    } else {
        MOST
    };
    if share < least {
        return None;
    }
    let parameters = facts.bytes_of(Category::Parameter);
    let split = facts.split(|block| {
        matches!(
            block.category,
            Category::Parameter | Category::Gradient | Category::OptimizerState
        )
    });
    let parts = enough_parts(facts, &split);
    let mut evidence = vec![
        Evidence::of(
            persistent,
            format!(
                "parameters, gradients and optimizer state, {:.0} % of everything needed",
                share * 100.0
            ),
        ),
        Evidence::of(facts.asked, "asked for at the failure".to_owned()).at(facts, failure.stack),
    ];
    evidence.extend(stack_evidence(facts, |block| {
        block.category == Category::Parameter
    }));
    Some(Cause {
        id: "model_too_large",
        confidence: if in_setup { 0.9 } else { 0.65 },
        verdict: if in_setup {
            format!(
                "the model does not fit: memory ran out while it was built, with {} of parameters",
                Bytes(parameters)
            )
        } else {
            format!(
                "the model does not fit: {} of {} needed stay between steps",
                Bytes(persistent),
                Bytes(facts.needed())
            )
        },
        evidence,
        fixes: vec![
            Fix::advice(
                "lower_precision",
                "parameters in bf16",
                parameters / 2,
                Basis::Estimated,
                "numerics change",
            ),
            Fix::lever(
                lever::OPTIMIZER_8BIT,
                "8-bit or offloaded optimizer state",
                facts.bytes_of(Category::OptimizerState) / 4 * 3,
                Basis::Estimated,
                "close",
            ),
            Fix::lever(
                lever::SHARD,
                match parts {
                    2 => "shard over two GPUs (fully_shard)".to_owned(),
                    _ => format!("shard over {parts} GPUs (fully_shard)"),
                },
                split.saves(1.0 / parts as f64),
                Basis::Estimated,
                "exact to rounding",
            ),
        ],
    })
}
