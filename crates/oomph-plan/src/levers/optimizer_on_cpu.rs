//! `optimizer_on_cpu`: the optimizer's state lives in host memory.
//!
//! Memory: the state goes, and so do the temporaries of its step, but for the part that is under way.
//! Time: the state comes over the link and goes back, part by part and both ways at once, while the
//! step is made on the GPU. Of parameters with sparse gradients only the rows that these have come and
//! go. Results: to rounding.

use std::cmp::Reverse;

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::by_hand::{Script, Work, is_accumulated, optimizer};
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage, StepChange};
use crate::levers::Lever;
use crate::model::{Event, Model, Template, Tensor};
use crate::optimizers;
use crate::search::Options;
use crate::sharding::Sharing;

/// How many times longer than the state's one way over the link the step takes, as measured on an H200
/// (`bench/gpu/results/h200_levers.json`).
const OVER_THE_LINK: f64 = 1.3;

/// The optimizer's state in host memory.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct OptimizerOnCpu {
    /// How much of the parameters has its state there, in percent of their bytes; the largest parameters come first. All without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
}

impl OptimizerOnCpu {
    /// Which tensors go to the host: the state's largest.
    fn gone(&self, template: &Template) -> Vec<bool> {
        let tensors = template.tensors.iter().enumerate();
        let mut states: Vec<(usize, u64)> = tensors
            .filter(|(_, tensor)| tensor.category == Category::OptimizerState)
            .map(|(index, tensor)| (index, tensor.bytes))
            .collect();
        states.sort_by_key(|&(_, bytes)| Reverse(bytes));
        let all: u64 = states.iter().map(|&(_, bytes)| bytes).sum();
        let most = all * u64::from(self.percent.unwrap_or(100)) / 100;
        let mut gone = vec![false; template.tensors.len()];
        let mut held = 0;
        for (index, bytes) in states {
            if let Some(goes) = gone.get_mut(index)
                && held < most
            {
                *goes = true;
            }
            held += bytes;
        }
        gone
    }
}

impl Facets for OptimizerOnCpu {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        match self.percent {
            Some(percent) => format!("{percent} % of the optimizer state on the CPU"),
            None => "optimizer state on the CPU".to_owned(),
        }
    }

    fn order() -> u32 {
        60
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Optimizer)
    }

    /// Where there is state to move.
    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = model.trains
            && optimizers::step(model)
            && model
                .template
                .tensors
                .iter()
                .any(|tensor| tensor.category == Category::OptimizerState)
            && (keeps_history(model)
                || optimizers::step_by_parameter(model) && !model.facts.evaluates_closures());
        offered.then_some(Self::default()).into_iter().collect()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        (model.trains && !optimizers::step_by_parameter(model)).then_some(optimizers::UNKNOWN)
    }

    fn is_midway() -> bool {
        true
    }

    fn goes_with_sharing(&self, sharing: Sharing) -> bool {
        // It knows of plain tensors only.
        sharing.is_whole()
    }

    fn step(&self) -> Option<StepChange> {
        Some(StepChange::OnHost)
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        if keeps_history(draft.model) {
            return history(draft);
        }
        let template = &mut draft.template;
        let mut gone = self.gone(template);
        let is_temporary = |tensor: &Tensor| {
            tensor.phase == Phase::Optimizer && tensor.category == Category::Temporary
        };
        let sparse = draft.model.facts.optimizers.iter().any(|one| one.sparse);
        let gradients = template.tensors.iter();
        let gradients = gradients.filter(|tensor| tensor.category == Category::Gradient);
        let whole: FxHashSet<u64> = gradients.map(|tensor| tensor.bytes).collect();
        // A sparse gradient is smaller than its parameter, of which the state has the size. How many
        // rows it has, and so what comes and goes of that state, a run tells.
        let states = template.tensors.iter().zip(&gone);
        let states =
            states.filter(|(tensor, goes)| **goes && (!sparse || whole.contains(&tensor.bytes)));
        let state: u64 = states.map(|(tensor, _)| tensor.bytes).sum();
        let temporaries = most_at_once(template, is_temporary);
        let parts = parts(template, optimizers::step_by_element(draft.model));
        let stepping: u64 = parts.iter().flatten().sum();
        // Of more than one element.
        let states = template.tensors.iter().zip(&gone);
        draft.states_on_host = states.filter(|(one, goes)| **goes && one.bytes > 8).count();
        for (goes, tensor) in gone.iter_mut().zip(&template.tensors) {
            *goes |= is_temporary(tensor);
        }
        let is_gone = |event: &Event| match event {
            Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                gone.get(*number as usize).copied().unwrap_or(false)
            }
            Event::EmptyCache => false,
        };
        draft.steps_on_host = parts.len();
        let of_each = |total: u64| total as f64 / stepping.max(1) as f64;
        let first = way(
            template,
            &parts,
            of_each(state),
            of_each(temporaries),
            false,
        );
        let later = way(template, &parts, of_each(state), of_each(temporaries), true);
        template.setup.retain(|event| !is_gone(event));
        for (events, way) in [
            (&mut template.first_tail, first),
            (&mut template.tail, later),
        ] {
            let at = events.iter().position(&is_gone).unwrap_or(0);
            events.splice(at..at, way);
            events.retain(|event| !is_gone(event));
        }
        if sparse {
            draft.assumptions.push(
                "the time that the CPU takes for the rows of sparse gradients is not estimated"
                    .to_owned(),
            );
        }
        draft.states_link = OVER_THE_LINK * state as f64 / draft.pace().link_bytes_per_s * 1e9;
    }

    fn in_part(&self, model: &Model, percent: u8) -> Option<Lever> {
        // Of sparse gradients' rows, and of LBFGS's history, all goes.
        let whole = keeps_history(model) || model.facts.optimizers.iter().any(|one| one.sparse);
        (!whole).then(|| {
            Lever::from(Self {
                percent: Some(percent),
            })
        })
    }

    fn waits_by_hand(&self) -> bool {
        true
    }

    fn snippet(&self) -> String {
        "where the optimizer is made (pip install torchao; the CPU then makes the step):\nfrom torchao.optim import CPUOffloadOptimizer\noptimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, ...)\n# with sparse gradients: keep the embedding and its optimizer on the CPU, and send what it returns to the GPU".to_owned()
    }

    fn place(&self, work: &mut Work<'_>, levers: &[Lever]) -> Option<()> {
        let in_backward = levers
            .iter()
            .any(|lever| lever.facets().step() == Some(StepChange::InBackward));
        if in_backward && !is_accumulated(levers) {
            // The state moves in that lever's step, if that can be placed.
            return optimizer::by_parameter(&mut work.clone(), true, true);
        }
        optimizer::by_parameter(work, false, true)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.optimizer_line()
    }
}

/// Whether the state is LBFGS's history.
fn keeps_history(model: &Model) -> bool {
    let optimizers = &model.facts.optimizers;
    !optimizers.is_empty() && optimizers.iter().all(|one| one.kind == "LBFGS")
}

/// LBFGS's vectors on the host, but for those that it works on: it reads all of them twice for each new direction.
fn history(draft: &mut Draft<'_>) {
    /// The direction, the gradient before, what is added, and what is read.
    const STAY: usize = 5;
    /// Steps that are recorded, in which the script went backward so many times.
    const STEPS: f64 = 3.0;
    let template = &mut draft.template;
    let tensors = || (0_u32..).zip(&template.tensors);
    let state = |one: &(u32, &Tensor)| one.1.category == Category::OptimizerState;
    let largest = tensors().filter(state).map(|one| one.1.bytes).max();
    let vectors = tensors().filter(|one| state(one) && Some(one.1.bytes) == largest);
    let gone: FxHashSet<u32> = vectors.map(|one| one.0).skip(STAY).collect();
    let bytes = gone.len() as f64 * largest.unwrap_or(0) as f64;
    for events in [
        &mut template.setup,
        &mut template.body,
        &mut template.first_tail,
        &mut template.tail,
    ] {
        events.retain(|event| match event {
            Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                !gone.contains(number)
            }
            Event::EmptyCache => true,
        });
    }
    let directions = (f64::from(draft.model.facts.backwards) / STEPS).max(1.0);
    draft.waits += 2.0 * directions * bytes / draft.pace().link_bytes_per_s * 1e9;
}

/// The most bytes of chosen tensors that the rest of a step holds at once.
fn most_at_once(template: &Template, chosen: impl Fn(&Tensor) -> bool) -> u64 {
    let bytes = |number: u32| {
        let tensor = template.tensors.get(number as usize);
        tensor.filter(|tensor| chosen(tensor)).map(|t| t.bytes)
    };
    let (mut held, mut most) = (0_u64, 0);
    for event in &template.tail {
        match *event {
            Event::Alloc(number) => held += bytes(number).unwrap_or(0),
            Event::Free(number) => held = held.saturating_sub(bytes(number).unwrap_or(0)),
            Event::FreePrevious(_) | Event::EmptyCache => {}
        }
        most = most.max(held);
    }
    most
}

/// The parameters that step, in parts, by the bytes of each; `sliced`: in rows where one is too large.
fn parts(template: &Template, sliced: bool) -> Vec<Vec<u64>> {
    let of = |category: Category| -> Vec<u64> {
        let tensors = template.tensors.iter();
        let bytes = tensors.filter(|tensor| tensor.category == category);
        bytes.map(|tensor| tensor.bytes).collect()
    };
    let mut sizes = of(Category::Gradient);
    // The last layers' come first.
    sizes.reverse();
    if sizes.is_empty() {
        sizes = of(Category::Parameter);
    }
    let at_once = optimizers::bytes_at_once(sizes.iter().sum());
    let mut parts: Vec<Vec<u64>> = Vec::new();
    let mut held = at_once;
    for size in sizes {
        if sliced && size > at_once {
            let count = size.div_ceil(at_once);
            parts.extend((0..count).map(|_| vec![size / count]));
            held = at_once;
            continue;
        }
        match parts.last_mut() {
            Some(part) if held + size <= at_once => {
                part.push(size);
                held += size;
            }
            _ => {
                parts.push(vec![size]);
                held = size;
            }
        }
    }
    parts
}

/// The way of the state through the GPU: each part, for `state` times the bytes of its parameters, with
/// the one before on its way back, and the next on its way here if it `comes` from the host.
fn way(
    template: &mut Template,
    parts: &[Vec<u64>],
    state: f64,
    temporaries: f64,
    comes: bool,
) -> Vec<Event> {
    let mut make = |part: &[u64], times: f64| -> Vec<u32> {
        let mut made = Vec::new();
        for &bytes in part {
            // As many tensors as fit, and what is left.
            let mut left = (bytes as f64 * times) as u64;
            while left > 0 {
                let piece = left.min(bytes);
                left -= piece;
                if left < bytes / 16 {
                    left = 0;
                }
                template.tensors.push(Tensor {
                    bytes: piece,
                    stream: 0,
                    category: Category::OptimizerState,
                    phase: Phase::Optimizer,
                    call: 0,
                    op: 0,
                    scope: 0,
                    batched: false,
                });
                made.push(template.tensors.len() as u32 - 1);
            }
        }
        made
    };
    let states: Vec<Vec<u32>> = parts.iter().map(|part| make(part, state)).collect();
    let steps: Vec<Vec<u32>> = parts.iter().map(|part| make(part, temporaries)).collect();
    let ahead = usize::from(comes);
    let mut events = Vec::new();
    let mut coming = states.iter();
    for now in coming.by_ref().take(ahead).flatten() {
        events.push(Event::Alloc(*now));
    }
    for (index, temporaries) in steps.iter().enumerate() {
        events.extend(
            coming
                .next()
                .into_iter()
                .flatten()
                .copied()
                .map(Event::Alloc),
        );
        events.extend(temporaries.iter().copied().map(Event::Alloc));
        events.extend(temporaries.iter().copied().map(Event::Free));
        let back = index.checked_sub(1).and_then(|before| states.get(before));
        events.extend(back.into_iter().flatten().copied().map(Event::Free));
    }
    events.extend(
        states
            .last()
            .into_iter()
            .flatten()
            .copied()
            .map(Event::Free),
    );
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_parameter_steps_in_rows_if_elements_step_by_themselves() {
        let gradient = |bytes: u64| Tensor {
            bytes: bytes << 20,
            stream: 0,
            category: Category::Gradient,
            phase: Phase::Backward,
            call: 0,
            op: 0,
            scope: 0,
            batched: false,
        };
        let template = Template {
            // As the backward pass makes them, the last layer's first.
            tensors: [30, 160, 20, 1000].map(gradient).to_vec(),
            ..Template::default()
        };
        let most = |sliced: bool| {
            let parts = parts(&template, sliced);
            let sizes = parts.iter().map(|part| part.iter().sum::<u64>() >> 20);
            (sizes.clone().max(), sizes.sum::<u64>())
        };
        let (largest, all) = most(true);
        assert!(largest <= Some(64) && (1200..=1210).contains(&all), "{all}");
        assert_eq!(most(false), (Some(1000), 1210));
    }
}
