//! `gradients_on_cpu`: each gradient goes to host memory as soon as it is there, and comes back for the step.
//!
//! Offered where parameters cannot step within the backward pass, since gradients are clipped or belong to several optimizers, and where
//! weights may wait in host memory as well.
//! Memory: the gradients under way. Time: their way there and back, and there and back again for each further
//! backward pass that adds to them. Results: to rounding.

use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::by_hand::Script;
use crate::draft::Draft;
use crate::gradients;
use crate::host_copies;
use crate::lever::{Facets, Group, Results, Stage, StepChange};
use crate::levers::Lever;
use crate::model::{Event, Model, Tensor};
use crate::optimizers;
use crate::search::Options;
use crate::sharding::Sharing;
use crate::streamed;

/// Nanoseconds of the host for each gradient, both ways, as measured there (`bench/gpu/results/h100_levers_host.jsonl`).
const HOST_NS: f64 = 80_000.0;
/// Less than this of gradients is not worth it.
const WORTH: u64 = 32 << 20;

/// Gradients in host memory until the step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GradientsOnCpu {}

impl Facets for GradientsOnCpu {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        "gradients on the CPU".to_owned()
    }

    fn order() -> u32 {
        59 // outside of what else is done to a step
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Optimizer)
    }

    fn candidates(model: &Model, options: &Options) -> Vec<Self> {
        let tensors = model.template.tensors.iter();
        let bytes: u64 = tensors.filter(|one| leaves(one)).map(|one| one.bytes).sum();
        let offered = bytes >= WORTH
            && gradients::can_wait(model)
            && (!gradients::step_early(model) || streamed::offers_trained(model, options));
        offered.then_some(Self {}).into_iter().collect()
    }

    fn goes_with(&self, others: &[Lever]) -> bool {
        let in_backward = |lever: &Lever| lever.facets().step() == Some(StepChange::InBackward);
        !others
            .iter()
            .any(|lever| in_backward(lever) || lever.facets().scales_gradients())
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        // It takes gradients before ranks have averaged them.
        false
    }

    fn step(&self) -> Option<StepChange> {
        Some(StepChange::GradientsOnHost)
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        draft.without_step_temporaries(true);
        let complete = gradients::complete(draft);
        let template = &mut draft.template;
        let gone: Vec<bool> = template.tensors.iter().map(leaves).collect();
        let is = |number: u32| gone.get(number as usize).copied().unwrap_or(false);
        let size = |number: u32| template.tensors.get(number as usize).map_or(0, |t| t.bytes);
        let total: u64 = complete
            .iter()
            .filter(|one| is(one.1))
            .map(|one| size(one.1))
            .sum();
        let count = complete.iter().filter(|one| is(one.1)).count();
        let mut leaving = complete.into_iter().filter(|one| is(one.1)).peekable();
        let (mut held, mut under_way) = (std::collections::VecDeque::new(), 0);
        let mut body = Vec::with_capacity(template.body.len());
        for (at, &event) in template.body.iter().enumerate() {
            if !matches!(event, Event::FreePrevious(number) if is(number)) {
                body.push(event);
            }
            while let Some((_, number)) = leaving.next_if(|one| one.0 == at) {
                held.push_back(number);
                under_way += size(number);
                while under_way > optimizers::AT_ONCE
                    && let Some(first) = held.pop_front()
                {
                    under_way -= size(first);
                    body.push(Event::Free(first));
                }
            }
        }
        body.extend(held.into_iter().map(Event::Free));
        template.body = body;
        // Those that step, and those that step next.
        let stepping = total.min(2 * optimizers::bytes_at_once(total));
        template.tensors.push(Tensor {
            bytes: stepping,
            stream: 0,
            category: Category::OptimizerState,
            phase: Phase::Optimizer,
            call: 0,
            op: 0,
            scope: 0,
            batched: false,
        });
        let under_way = template.tensors.len() as u32 - 1;
        for events in [&mut template.first_tail, &mut template.tail] {
            events.retain(|event| match *event {
                Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                    !is(number)
                }
                Event::EmptyCache => true,
            });
            events.insert(0, Event::Alloc(under_way));
            events.push(Event::Free(under_way));
        }
        let way = total as f64 / draft.pace().link_bytes_per_s * 1e9;
        let backward = (draft.body.busy - host_copies::forward(draft)).max(0.0);
        draft.waits += way + (way - backward).max(0.0);
        draft.adding_ns += way;
        draft.body.lever += HOST_NS * count as f64;
    }

    fn snippet(&self) -> String {
        "after the optimizer is made, with pinned tensors on the host for the gradients; the norm to clip by is that of all norms, and the step brings some back at a time:\ndef leave(p):\n    host[p].copy_(p.grad, non_blocking=True)\n    norms.append(p.grad.norm())\n    p.grad = None\nfor p in model.parameters():\n    p.register_post_accumulate_grad_hook(leave)".to_owned()
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.optimizer_line()
    }
}

/// Whether a tensor is a gradient that goes to the host.
fn leaves(tensor: &Tensor) -> bool {
    gradients::is(tensor) && tensor.bytes >= gradients::LEAST
}
