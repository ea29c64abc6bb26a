//! `optimizer_state`: the first `step()` allocates the optimizer's state.

use std::collections::{HashMap, HashSet};

use oomph_allocator::program::Allocation;
use oomph_trace::{Bytes, Category, Phase, StringId};

use super::{Basis, Cause, Evidence, Fix, fits_without, stack_evidence, user_line};
use crate::facts::{Facts, Live};
use crate::lever;
use crate::repeats;
use crate::steps::step_of;

/// State below this share of what was needed is not why memory ran out elsewhere.
const DECISIVE: f64 = 0.3;
/// Optimizers keep at most as many tensors for each parameter, and compute in as many; more are kept from step to step.
const MOST: u64 = 8;

/// The confidence if memory ran out for something that an optimizer needs in every step.
const PASSING: f64 = 0.6;

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
        // An optimizer that had its state before asks for a passing copy: little of that is not why this step fails, and others did not.
        confidence: if facts.share(state) >= DECISIVE || makes_state(facts, &failure) {
            0.9
        } else {
            PASSING
        },
        verdict: format!(
            "memory ran out inside optimizer.step{place}: its state needs about {} for {} of \
             parameters",
            Bytes(whole),
            Bytes(parameters)
        ),
        evidence,
        fixes: fixes(facts, whole, parameters),
    })
}

/// Whether state is made in the step in which a request failed. If there is none at all, what failed may have been the first of it.
fn makes_state(facts: &Facts, failure: &Allocation) -> bool {
    let failed = step_of(&facts.steps, failure.alloc_row);
    let mut state = facts
        .every()
        .filter(|block| block.category == Category::OptimizerState)
        .peekable();
    if state.peek().is_none() {
        return facts.request > 0;
    }
    failed.is_none() || state.any(|block| block.step == failed)
}

/// Memory ran out elsewhere, but without the state there would have been enough, and it is the most of what is there: that of
/// several optimizers, or of one that is written by hand, in tensors like the parameters.
pub(super) fn beside_the_step(cut: &Facts, whole: &Facts) -> Option<Cause> {
    if cut.failure_stack().in_optimizer() || cut.failure_phase() == Phase::Optimizer {
        return None;
    }
    let by_hand = by_hand(whole);
    let is_state =
        |block: &Live| block.category == Category::OptimizerState || by_hand.contains(&block.id);
    let state = repeats::bytes(whole, is_state);
    let parameters = whole.bytes_of(Category::Parameter);
    let activations = repeats::bytes(whole, |block| {
        block.category == Category::Activation && !is_state(block)
    });
    if whole.share(state) < DECISIVE
        || activations > state
        || fits_without(cut, whole, state) != Some(true)
    {
        return None;
    }
    let mut evidence = vec![Evidence::of(
        state,
        format!(
            "optimizer state, {:.0} % of everything needed",
            whole.share(state) * 100.0
        ),
    )];
    evidence.extend(stack_evidence(whole, is_state));
    Some(Cause {
        id: "optimizer_state",
        // Above a model that is too large: without the state it is not. What is written by hand looks like results
        // that are kept.
        confidence: if by_hand.is_empty() { 0.72 } else { 0.9 },
        verdict: format!(
            "the optimizer's state of {} is what does not fit: everything else would",
            Bytes(state)
        ),
        evidence,
        fixes: fixes(whole, state, parameters),
    })
}

/// Whether some of the state is written by hand.
pub(super) fn is_by_hand(facts: &Facts) -> bool {
    !by_hand(facts).is_empty()
}

/// Blocks of a state that is written by hand: tensors that the script itself made in the sizes of the parameters, for all of
/// them, and that do not become more from step to step.
fn by_hand(facts: &Facts) -> HashSet<u32> {
    let has_module = |block: &Live| facts.module(block) != StringId::EMPTY;
    let is_zeros = |block: &Live| {
        let operator = facts.operator(block);
        operator.ends_with("::zeros_like") || operator.ends_with("::full_like")
    };
    let has_models = facts
        .live
        .iter()
        .any(|block| block.category == Category::Parameter && has_module(block));
    // Without modules, weights are what the state was made like.
    let zeros = facts
        .live
        .iter()
        .filter(|block| !has_models && is_zeros(block));
    let of_state: HashSet<u64> = zeros.map(|block| block.bytes).collect();
    let is_weight = |block: &Live| {
        if has_models {
            block.category == Category::Parameter && has_module(block)
        } else {
            block.phase == Phase::Setup && of_state.contains(&block.bytes) && !is_zeros(block)
        }
    };
    let mut sizes: HashMap<u64, usize> = HashMap::new();
    let mut parameters = 0_u64;
    for block in &facts.live {
        if is_weight(block) {
            *sizes.entry(block.bytes).or_default() += 1;
            parameters += block.bytes;
        }
    }
    // State for parameters in 16 bits is mostly in 32.
    let size_of = |bytes: u64| {
        [bytes, bytes / 2]
            .into_iter()
            .find(|size| sizes.contains_key(size))
    };
    let like = |block: &&Live| {
        let stack = facts.stacks.get(block.stack);
        // What a script makes before anything runs counts as parameters, unless more is known.
        let is_other = !matches!(
            block.category,
            Category::Parameter | Category::Gradient | Category::Temporary
        );
        (is_zeros(block) || has_models && is_other)
            && size_of(block.bytes).is_some()
            && block.phase != Phase::Backward
            // Copies that nobody reads are no state: each step needs that.
            && !facts.is_idle(block)
            && !has_module(block)
            && !stack.loads_file()
            && !stack.copies_parameter()
    };
    let found: Vec<&Live> = facts.live.iter().filter(like).collect();
    let held: u64 = found.iter().map(|block| block.bytes).sum();
    // All parameters have one, whatever the order.
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for size in found.iter().filter_map(|block| size_of(block.bytes)) {
        *counts.entry(size).or_default() += 1;
    }
    let covered: u64 = sizes
        .iter()
        .filter(|&(size, &count)| counts.get(size).is_some_and(|&found| found >= count))
        .map(|(&size, &count)| size * count as u64)
        .sum();
    if covered == 0 || covered * 10 < parameters * 9 || held > parameters * MOST {
        return HashSet::new();
    }
    found.iter().map(|block| block.id).collect()
}

/// What helps against `state` for `parameters`.
fn fixes(facts: &Facts, state: u64, parameters: u64) -> Vec<Fix> {
    let split = facts.split(|block| block.category == Category::OptimizerState);
    let of_all = |left: f64| match split.saves(left) {
        // A run that was cut off does not have all of it, nor what is written by hand.
        _ if facts.bytes_of(Category::OptimizerState) < state => {
            (state as f64 * (1.0 - left)) as u64
        }
        saves => saves,
    };
    vec![
        Fix::lever(
            lever::OPTIMIZER_8BIT,
            "an optimizer that keeps its state in 8 bits (torchao, bitsandbytes)",
            of_all(0.25),
            Basis::Estimated,
            "close",
        ),
        Fix::lever(
            lever::OPTIMIZER_ON_CPU,
            "keep the state in host memory",
            of_all(0.0),
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
    ]
}
