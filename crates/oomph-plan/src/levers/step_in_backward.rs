//! `step_in_backward`: each parameter steps as soon as its gradient is there, small ones together, and gradients are then freed.
//!
//! Offered where nothing looks at all gradients together: no clipping, no scaling, no
//! accumulation. Memory: one gradient at a time, or some of 4 MiB together. Time: some launches for each such step.
//! Results: exact.

use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, is_accumulated, optimizer};
use crate::draft::Draft;
use crate::gradients;
use crate::lever::{Facets, Group, Results, Stage, StepChange};
use crate::levers::Lever;
use crate::model::{Event, Model};
use crate::optimizers;
use crate::search::Options;
use crate::sharding::Sharing;

/// Each parameter steps as soon as its gradient is there, which is then freed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepInBackward {}

impl Facets for StepInBackward {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        "step inside backward".to_owned()
    }

    fn order() -> u32 {
        60
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Optimizer)
    }

    /// Where nothing needs all gradients at once.
    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = gradients::step_early(model);
        offered.then_some(Self {}).into_iter().collect()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        let facts = &model.facts;
        if !model.trains {
            None
        } else if facts.clipped {
            Some("gradients are clipped, which needs all of them at once")
        } else if facts.scaled {
            Some("a gradient scaler looks at all gradients at once")
        } else if facts.optimizers.len() > 1 {
            Some("there are several optimizers")
        } else if facts.evaluates_closures() {
            Some("the optimizer goes back several times in a step")
        } else if !optimizers::step_by_parameter(model) {
            Some(optimizers::UNKNOWN)
        } else {
            None
        }
    }

    fn goes_with(&self, others: &[Lever]) -> bool {
        // It sees one micro-batch's gradients, and unscaled ones never.
        !others
            .iter()
            .any(|lever| lever.micro_batches().is_some() || lever.facets().scales_gradients())
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        // It reads gradients before ranks have averaged them.
        false
    }

    fn step(&self) -> Option<StepChange> {
        Some(StepChange::InBackward)
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let steps = gradients::complete(draft);
        let mut together: Vec<(usize, Vec<u32>)> = Vec::new();
        let (mut waiting, mut bytes) = (Vec::new(), 0);
        let last = steps.len().saturating_sub(1);
        let all = steps.len();
        for (index, (at, number)) in steps.into_iter().enumerate() {
            waiting.push(number);
            let tensor = draft.template.tensors.get(number as usize);
            bytes += tensor.map_or(0, |tensor| tensor.bytes);
            if bytes >= optimizers::FEWEST || index == last {
                together.push((at, std::mem::take(&mut waiting)));
                bytes = 0;
            }
        }
        draft.step_in_parts(together.len());
        draft.step_early(together.len(), all);
        let template = &mut draft.template;
        let gradient: Vec<bool> = template.tensors.iter().map(gradients::is).collect();
        let is = |number: &u32| gradient.get(*number as usize).copied().unwrap_or(false);
        let mut steps = together.into_iter().peekable();
        let mut body = Vec::with_capacity(template.body.len());
        for (at, &event) in template.body.iter().enumerate() {
            if !matches!(event, Event::FreePrevious(number) if is(&number)) {
                body.push(event);
            }
            while let Some((_, numbers)) = steps.next_if(|step| step.0 == at) {
                body.extend(numbers.into_iter().map(Event::Free));
            }
        }
        template.body = body;
        for events in [&mut template.first_tail, &mut template.tail] {
            events.retain(|event| match event {
                Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                    !is(number)
                }
                Event::EmptyCache => true,
            });
        }
    }

    fn snippet(&self) -> String {
        "after the optimizer is made, a step of each parameter as soon as its gradient is there; without clipping, and without optimizer.step() in the loop:\nimport functools\ndef step(index, p):\n    everything = [group[\"params\"] for group in optimizer.param_groups]\n    for number, group in enumerate(optimizer.param_groups):\n        group[\"params\"] = [p] if number == index else []\n    optimizer.step()\n    for group, params in zip(optimizer.param_groups, everything):\n        group[\"params\"] = params\n    p.grad = None\nfor index, group in enumerate(optimizer.param_groups):\n    for p in group[\"params\"]:\n        p.register_post_accumulate_grad_hook(functools.partial(step, index))".to_owned()
    }

    fn place(&self, work: &mut Work<'_>, levers: &[Lever]) -> Option<()> {
        if is_accumulated(levers) {
            return None;
        }
        let on_host = levers
            .iter()
            .any(|lever| lever.facets().step() == Some(StepChange::OnHost));
        optimizer::by_parameter(work, true, on_host)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.optimizer_line()
    }
}
