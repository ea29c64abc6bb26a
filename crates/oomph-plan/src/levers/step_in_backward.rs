//! `step_in_backward`: each parameter steps as soon as its gradient is there, which is then freed.
//!
//! Offered where nothing looks at all gradients together: no clipping, no scaling, no
//! accumulation. Memory: one gradient at a time. Time: a launch or more for each parameter.
//! Results: exact.

use oomph_trace::{Category, Phase};
use rustc_hash::FxHashMap as HashMap;

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
        && !facts.evaluates_closures()
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
            Event::Alloc(number) if is(&number) => {
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
    let mut steps = steps.into_iter().peekable();
    let mut body = Vec::with_capacity(template.body.len());
    for (at, &event) in template.body.iter().enumerate() {
        if !matches!(event, Event::FreePrevious(number) if is(&number)) {
            body.push(event);
        }
        while let Some((_, number)) = steps.next_if(|step| step.0 == at) {
            body.push(Event::Free(number));
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
