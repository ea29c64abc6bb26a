//! `step_in_backward`: each parameter steps as soon as its gradient is there, which is then freed.
//!
//! Offered where nothing looks at all gradients together: no clipping, no scaling, no
//! accumulation. Memory: one gradient at a time. Time: a launch or more for each parameter.
//! Results: exact.

use oomph_trace::{Category, Phase};

use crate::draft::Draft;
use crate::lever::OptimizerStep;
use crate::levers::optimizer_step;
use crate::model::{Event, Model};

/// Whether nothing needs all gradients at once.
pub(crate) fn offered(model: &Model) -> bool {
    let facts = &model.facts;
    model.trains
        && !facts.clipped
        && !facts.scaled
        && !facts.closure
        && !facts.kept_gradients
        && !facts.compiled
        && facts.optimizers.len() == 1
        && facts.backwards > 0
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>) {
    optimizer_step::apply(draft, OptimizerStep::SingleTensor);
    let template = &mut draft.template;
    let gradient: Vec<bool> = template
        .tensors
        .iter()
        .map(|tensor| tensor.category == Category::Gradient && tensor.phase == Phase::Backward)
        .collect();
    let is = |number: &u32| gradient.get(*number as usize).copied().unwrap_or(false);
    let mut body = Vec::with_capacity(template.body.len());
    for &event in &template.body {
        match event {
            Event::Alloc(number) if is(&number) => body.extend([event, Event::Free(number)]),
            Event::Free(number) | Event::FreePrevious(number) if is(&number) => {}
            _ => body.push(event),
        }
    }
    template.body = body;
    for events in [&mut template.first_tail, &mut template.tail] {
        events.retain(|event| match event {
            Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => !is(number),
            Event::EmptyCache => true,
        });
    }
}
