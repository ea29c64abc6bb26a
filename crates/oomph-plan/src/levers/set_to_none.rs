//! `set_to_none`: `zero_grad` frees gradients instead of filling them with zeros.
//!
//! Offered where the script keeps them. Memory: gradients are not there in the forward pass. Time:
//! none. Results: exact.

use std::collections::HashSet;

use oomph_trace::{Category, Phase};

use crate::draft::Draft;
use crate::model::{Event, Model};

/// Whether gradients are kept from step to step.
pub(crate) fn offered(model: &Model) -> bool {
    model.facts.kept_gradients
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>) {
    let template = &mut draft.template;
    let gradients: HashSet<u32> = (0..)
        .zip(&template.tensors)
        .filter(|(_, tensor)| tensor.category == Category::Gradient)
        .map(|(number, _)| number)
        .collect();
    let kept: Vec<u32> = template
        .setup
        .iter()
        .filter_map(|event| match event {
            Event::Alloc(number) if gradients.contains(number) => Some(*number),
            _ => None,
        })
        .collect();
    template
        .setup
        .retain(|event| !matches!(event, Event::Alloc(number) if gradients.contains(number)));
    // They appear during the backward pass: at its first half is early enough to be safe.
    let start = template
        .body
        .iter()
        .position(|event| {
            matches!(event, Event::Alloc(number) if template.tensors.get(*number as usize)
                .is_some_and(|tensor| tensor.phase == Phase::Backward))
        })
        .unwrap_or(template.body.len());
    let rest = template.body.len() - start;
    let mut body: Vec<Event> = template.body[..start].to_vec();
    for (index, &event) in template.body[start..].iter().enumerate() {
        let made = |count: usize| count * kept.len() / rest.max(1);
        body.extend(
            kept[made(index)..made(index + 1)]
                .iter()
                .map(|&number| Event::Alloc(number)),
        );
        body.push(event);
    }
    template.body = body;
    for events in [&mut template.first_tail, &mut template.tail] {
        events.extend(kept.iter().map(|&number| Event::Free(number)));
    }
}
