//! `optimizer_on_cpu`: the optimizer's state lives in host memory.
//!
//! Memory: the state goes, and so do the temporaries of its step, but for the part that is under way.
//! Time: the state comes over the link and goes back, part by part and both ways at once, while the
//! step is made on the GPU. Results: to rounding.

use oomph_trace::{Category, Phase};

use crate::draft::Draft;
use crate::model::{Event, Model, Tensor};

/// How many times longer than the state's one way over the link the step takes, as measured on an H200
/// (`bench/gpu/results/h200_levers.json`).
const OVER_THE_LINK: f64 = 1.3;

/// Bytes of parameters that step together, as in `python/oomph/levers/optimizer_on_cpu.py`; their state
/// and that of the parts before and after them is on the GPU.
const AT_ONCE: u64 = 64 << 20;

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
    let under_way = under_way(draft);
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
    // The steps come before anything is cleared: gradients are all there meanwhile.
    let numbers = template.tensors.len() as u32..;
    template.tensors.extend(under_way.iter().copied());
    let there: Vec<u32> = numbers.take(under_way.len()).collect();
    for events in [&mut template.first_tail, &mut template.tail] {
        let come = there.iter().map(|&number| Event::Alloc(number));
        let go = there.iter().map(|&number| Event::Free(number));
        events.splice(0..0, come.chain(go));
    }
    draft.waits += OVER_THE_LINK * state as f64 / draft.pace().link_bytes_per_s * 1e9;
}

/// What is on the GPU while those parts step whose state is largest, with that of their neighbours.
fn under_way(draft: &Draft<'_>) -> Vec<Tensor> {
    let template = &draft.template;
    let optimizers = &draft.model.facts.optimizers;
    // Averages of gradients and of their squares, or one of both.
    let of_each = if optimizers
        .iter()
        .any(|one| one.kind.contains("Ada") && one.kind != "Adagrad")
    {
        2
    } else {
        1
    };
    // Before the first step ends it is made in the order of the parameters.
    let state: Vec<Tensor> = [&template.setup, &template.first_tail]
        .into_iter()
        .flatten()
        .filter_map(|event| match event {
            Event::Alloc(number) => template.tensors.get(*number as usize).copied(),
            _ => None,
        })
        // Counts of steps stay.
        .filter(|tensor| tensor.category == Category::OptimizerState && tensor.bytes > 16)
        .collect();
    let mut parts: Vec<Vec<Tensor>> = Vec::new();
    let mut held = u64::MAX;
    for state in state.chunks(of_each) {
        let bytes = state.first().map_or(0, |one| one.bytes);
        if held.saturating_add(bytes) > AT_ONCE {
            parts.push(Vec::new());
            held = 0;
        }
        held += bytes;
        parts
            .last_mut()
            .into_iter()
            .for_each(|part| part.extend(state));
    }
    let bytes =
        |parts: &[Vec<Tensor>]| -> u64 { parts.iter().flatten().map(|one| one.bytes).sum() };
    let most = parts
        .windows(3.min(parts.len().max(1)))
        .max_by_key(|window| bytes(window));
    most.unwrap_or_default().concat()
}
