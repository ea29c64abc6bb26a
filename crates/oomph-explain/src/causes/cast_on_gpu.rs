//! `cast_on_gpu`: a model was moved to the GPU in fp32 and cast to 16 bits there.

use oomph_trace::{Bytes, Category};

use super::{Basis, Cause, Evidence, Fix, stack_evidence, user_line};
use crate::facts::Facts;
use crate::lever;

/// Weights below this share of what was needed are not why memory ran out.
const DECISIVE: f64 = 0.5;

pub(super) fn check(facts: &Facts) -> Option<Cause> {
    let casts = |stack| facts.stacks.get(stack).casts_module();
    let narrow: u64 = facts
        .program
        .allocations
        .iter()
        .filter(|allocation| casts(allocation.stack))
        .map(|allocation| allocation.requested)
        .sum();
    let first = facts
        .program
        .allocations
        .iter()
        .find(|allocation| casts(allocation.stack))?;
    let wide: u64 = facts
        .live
        .iter()
        .filter(|block| block.category == Category::Parameter && !casts(block.stack))
        .map(|block| block.bytes)
        .sum();
    // The weights at the peak are those that were cast, then or later: half of their bytes, or less
    // where it failed on the way.
    let on_the_way = facts.failure_stack().casts_module();
    let share = facts.share(wide);
    if share < DECISIVE || !(on_the_way || narrow.saturating_mul(3) >= wide) {
        return None;
    }
    let place =
        user_line(facts, first.stack).map_or_else(String::new, |line| format!(" at {line}"));
    let mut evidence = vec![
        Evidence::of(wide, "weights in fp32 at the peak".to_owned()),
        Evidence::of(narrow, "the same in 16 bits, made on the GPU".to_owned())
            .at(facts, first.stack),
    ];
    evidence.extend(stack_evidence(facts, |block| {
        block.category == Category::Parameter && !casts(block.stack)
    }));
    Some(Cause {
        id: "cast_on_gpu",
        confidence: 0.92,
        verdict: format!(
            "the model was moved to the GPU in fp32, {}, and cast to 16 bits there{place}",
            Bytes(wide)
        ),
        evidence,
        fixes: vec![
            Fix::lever(
                lever::LOAD_ON_CPU,
                "cast the model before moving it to the GPU",
                wide / 2,
                Basis::Counted,
                "exact",
            )
            .apply("model = model.half().cuda()"),
        ],
    })
}
