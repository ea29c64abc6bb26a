//! `optimizer_on_cpu`: the optimizer's state lives in host memory.
//!
//! Memory: the state goes, and so do the temporaries of its step. Time: gradients to the host and
//! parameters back over the link, and the step on the CPU at its memory's pace. Results: to
//! rounding.

use oomph_trace::{Category, Phase};

use crate::draft::{Draft, Load};
use crate::model::{Event, Model};

/// Bytes a second that a host's memory serves the step with.
const HOST_MEMORY_BYTES_PER_S: f64 = 40e9;

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
    let (mut state, mut gradients) = (0, 0);
    let gone: Vec<bool> = template
        .tensors
        .iter()
        .map(|tensor| {
            match tensor.category {
                Category::OptimizerState => state += tensor.bytes,
                Category::Gradient => gradients += tensor.bytes,
                _ => {}
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
    let link = 2.0 * gradients as f64 / draft.pace().link_bytes_per_s;
    let step = 2.0 * (state + gradients) as f64 / HOST_MEMORY_BYTES_PER_S;
    draft.tail = Load::default();
    draft.waits += link * 1e9;
    draft.serial += step * 1e9;
}
