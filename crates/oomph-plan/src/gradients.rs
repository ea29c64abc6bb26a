//! Gradients of parameters: when they are complete in a step.

use oomph_trace::{Category, Phase};
use rustc_hash::FxHashMap as HashMap;

use crate::draft::Draft;
use crate::model::{Event, Model, Tensor};
use crate::optimizers;

/// Whether parameters may step one by one while the backward pass goes on: nothing needs all gradients at once.
pub(crate) fn step_early(model: &Model) -> bool {
    let facts = &model.facts;
    model.trains
        && !facts.clipped
        && !facts.scaled
        && !facts.evaluates_closures()
        && !facts.kept_gradients
        && !facts.compiled
        && facts.optimizers.len() == 1
        && optimizers::step_by_parameter(model)
        && facts.backwards > 0
}

/// Smaller ones stay on the GPU where others wait in host memory (`python/oomph/levers/_shared/parameter_steps.py`).
pub(crate) const LEAST: u64 = 256 << 10;

/// Whether gradients may wait in host memory until the step.
pub(crate) fn can_wait(model: &Model) -> bool {
    let facts = &model.facts;
    model.trains
        && optimizers::step(model)
        && !facts.scaled
        && !facts.evaluates_closures()
        && optimizers::step_by_parameter(model)
        && facts.backwards > 0
}

/// Whether a tensor is one.
pub(crate) fn is(tensor: &Tensor) -> bool {
    tensor.category == Category::Gradient && tensor.phase == Phase::Backward
}

/// Where in the body gradients are complete, in order.
pub(crate) fn complete(draft: &Draft<'_>) -> Vec<(usize, u32)> {
    let template = &draft.template;
    let is = |number: u32| template.tensors.get(number as usize).is_some_and(is);
    // Of a parameter that is used several times, all parts but the first or their sum go within the pass.
    let mut passing = vec![false; template.tensors.len()];
    for event in &template.body {
        if let Event::Free(number) = *event
            && let Some(slot) = passing.get_mut(number as usize)
        {
            *slot = true;
        }
    }
    let passes = |number: u32| passing.get(number as usize).copied().unwrap_or(false);
    let kind = |number: u32| {
        let tensor = template.tensors.get(number as usize)?;
        let call = draft.model.calls.get(tensor.call as usize)?;
        (tensor.phase == Phase::Backward).then_some((&*call.module, tensor.op, tensor.bytes))
    };
    // A gradient is complete when it is made, or when the last part has been added to it: that part is
    // like it, and gone before another gradient is made.
    let mut complete: HashMap<u32, usize> = HashMap::default();
    let mut newest: HashMap<_, u32> = HashMap::default();
    let mut parts: HashMap<u32, usize> = HashMap::default();
    for (at, &event) in template.body.iter().enumerate() {
        match event {
            Event::Alloc(number) if passes(number) => {
                parts.insert(number, complete.len());
            }
            Event::Alloc(number) if is(number) => {
                complete.insert(number, at);
                newest.insert(kind(number), number);
            }
            Event::Free(number) if parts.get(&number) == Some(&complete.len()) => {
                if let Some(&gradient) = newest.get(&kind(number)) {
                    complete.insert(gradient, at);
                }
            }
            _ => {}
        }
    }
    let mut steps: Vec<(usize, u32)> = complete.into_iter().map(|(n, at)| (at, n)).collect();
    steps.sort_unstable();
    steps
}
