//! `set_to_none`: `zero_grad` frees gradients instead of filling them with zeros.
//!
//! Offered where the script keeps them. Memory: gradients are not there in the forward pass. Time:
//! none. Results: exact.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::by_hand::{Script, Work, settings};
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage};
use crate::levers::Lever;
use crate::model::{Event, Model};
use crate::search::Options;

/// `zero_grad(set_to_none=True)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetToNone {}

impl Facets for SetToNone {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        "zero_grad to none".to_owned()
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Gradients)
    }

    /// Where gradients are kept from step to step.
    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let kept = model.facts.kept_gradients;
        kept.then_some(Self {}).into_iter().collect()
    }

    fn apply(&self, draft: &mut Draft<'_>) {
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

    fn snippet(&self) -> String {
        "where gradients are cleared:\noptimizer.zero_grad(set_to_none=True)".to_owned()
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        settings::cleared_to_none(work)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["zero_grad"])
    }
}
