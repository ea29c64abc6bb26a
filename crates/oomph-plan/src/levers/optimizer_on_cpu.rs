//! `optimizer_on_cpu`: the optimizer's state lives in host memory.
//!
//! Memory: the state goes, and so do the temporaries of its step, but for the part that is under way.
//! Time: the state comes over the link and goes back, part by part and both ways at once, while the
//! step is made on the GPU. Results: to rounding.

use oomph_trace::{Category, Phase};

use crate::draft::Draft;
use crate::model::{Event, Model};

/// How many times longer than the state's one way over the link the step takes, as measured on an H200
/// (`bench/gpu/results/h200_levers.json`).
const OVER_THE_LINK: f64 = 1.3;

/// Whether there is state to move.
pub(crate) fn offered(model: &Model) -> bool {
    model
        .template
        .tensors
        .iter()
        .any(|tensor| tensor.category == Category::OptimizerState)
        && !model.facts.closure
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>) {
    let template = &mut draft.template;
    let mut state = 0;
    let gone: Vec<bool> = template
        .tensors
        .iter()
        .map(|tensor| {
            if tensor.category == Category::OptimizerState {
                state += tensor.bytes;
            }
            tensor.category == Category::OptimizerState
                || (tensor.phase == Phase::Optimizer && tensor.category == Category::Temporary)
        })
        .collect();
    for events in [
        &mut template.setup,
        &mut template.first_tail,
        &mut template.tail,
    ] {
        events.retain(|event| match event {
            Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                !gone.get(*number as usize).copied().unwrap_or(false)
            }
            Event::EmptyCache => true,
        });
    }
    draft.waits += OVER_THE_LINK * state as f64 / draft.pace().link_bytes_per_s * 1e9;
}
