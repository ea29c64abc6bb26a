//! `stream_trained`: weights that are trained wait in host memory beside their gradients, and are on the GPU only where they are needed.
//!
//! Memory: those weights go, with the copies of them in 16 bits that autocast keeps; memory for two of the modules stays, and in the step
//! for what steps. Time: the link's, once for the forward pass, once for the backward pass, and there and back for the step, as far as
//! computing does not hide it. Results: to rounding.

use rustc_hash::FxHashSet as HashSet;
use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::blocks::is_cast_of_weight;
use crate::by_hand::Script;
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage, StepChange, comments, places};
use crate::levers::gradients_on_cpu::GradientsOnCpu;
use crate::levers::{Lever, gradients_on_cpu};
use crate::model::{Event, Model, Tensor};
use crate::optimizers;
use crate::search::Options;
use crate::sharding::Sharing;
use crate::streamed::{inside, take, trained, waits};
use crate::units;

/// Less than this part of the budget is not worth it.
const WORTH: u64 = 10;
/// Nanoseconds of the host for each weight: a leaf of its own, and copies for the step.
const HOST_NS: f64 = 80_000.0;

/// Training with weights of modules in host memory, brought ahead of their use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamTrained {
    /// The modules.
    pub modules: Vec<String>,
}

impl Facets for StreamTrained {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        format!("stream trained weights of {}", places(&self.modules))
    }

    fn order() -> u32 {
        60 // inside of checkpointing: what is computed again needs its weights, too
    }

    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        Some(&mut self.modules)
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Weights)
    }

    fn candidates(model: &Model, options: &Options) -> Vec<Self> {
        let (modules, bytes) = of(model);
        let offered = bytes > 0
            && bytes >= options.budget / WORTH
            && !GradientsOnCpu::candidates(model, options).is_empty();
        offered.then_some(Self { modules }).into_iter().collect()
    }

    fn goes_with(&self, others: &[Lever]) -> bool {
        let changes = |change| {
            let mut steps = others.iter().map(|lever| lever.facets().step());
            steps.any(|step| step == Some(change))
        };
        // What is computed again by itself, or for a part of the batch, would not find its weights.
        let mut parts = others.iter().flat_map(|lever| {
            let lever = lever.facets();
            lever.recomputed().iter().chain(lever.checkpointed())
        });
        let split = |lever: &Lever| matches!(lever, Lever::SplitForward(_));
        changes(StepChange::GradientsOnHost)
            && changes(StepChange::OnHost)
            && !others.iter().any(split)
            && !parts.any(|part| self.has_part(part))
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn leave_to(&mut self, blocks: &[String]) -> bool {
        self.modules.retain(|module| {
            let one = Self {
                modules: vec![module.clone()],
            };
            !blocks.iter().any(|block| one.has_part(block))
        });
        !self.modules.is_empty()
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let model = draft.model;
        let trained = trained(model);
        let goes = |owner: &str| trained.contains(owner);
        let held = take(draft, &self.modules, gradients_on_cpu::LEAST, goes);
        let casts: HashSet<u32> = (0..)
            .zip(&draft.template.tensors)
            .filter(|(_, tensor)| {
                let call = model.calls.get(tensor.call as usize);
                call.is_some_and(|call| inside(&self.modules, &call.module).is_some())
                    && is_cast_of_weight(model, tensor)
            })
            .map(|(number, _)| number)
            .collect();
        draft.template.body.retain(|event| match event {
            Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                !casts.contains(number)
            }
            Event::EmptyCache => true,
        });
        let bytes: u64 = held.values().sum();
        // Those that step, those that step next, and those before them on their way back.
        let stepping = 3 * optimizers::bytes_at_once(bytes);
        draft.template.tensors.push(Tensor {
            bytes: stepping.min(bytes),
            stream: 0,
            category: Category::Parameter,
            phase: Phase::Optimizer,
            call: 0,
            op: 0,
            scope: 0,
            batched: false,
        });
        let number = draft.template.tensors.len() as u32 - 1;
        for events in [&mut draft.template.first_tail, &mut draft.template.tail] {
            events.insert(0, Event::Alloc(number));
            events.push(Event::Free(number));
        }
        waits(draft, &self.modules, &held);
        draft.waits += 2.0 * bytes as f64 / draft.pace().link_bytes_per_s * 1e9;
        let weights = model.parameters.iter();
        let count = weights
            .filter(|(owner, _)| goes(owner) && inside(&self.modules, owner).is_some())
            .count();
        draft.tail.lever += HOST_NS * count as f64;
    }

    fn snippet(&self) -> String {
        format!(
            "after torch.distributed.init_process_group with one rank, before the optimizer is made, for each of these modules:\nfrom torch.distributed.fsdp import CPUOffloadPolicy, fully_shard\nfully_shard(module, offload_policy=CPUOffloadPolicy())\n{}",
            comments(&self.modules)
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }
}

impl StreamTrained {
    /// Whether a module is a part of one of these.
    fn has_part(&self, part: &str) -> bool {
        let found = inside(&self.modules, part).and_then(|at| self.modules.get(at));
        found.is_some_and(|module| module != part)
    }
}

/// The blocks of a job that trains which have weights that are trained, and the bytes of these.
fn of(model: &Model) -> (Vec<String>, u64) {
    if !model.trains || model.facts.compiled {
        return (Vec::new(), 0);
    }
    let trained = trained(model);
    let modules = units::with_weights(model, |owner| trained.contains(owner));
    let sizes = model.parameter_sizes.iter();
    let held = sizes
        .filter(|(owner, _)| trained.contains(owner.as_str()) && inside(&modules, owner).is_some());
    let large = held
        .flat_map(|(_, sizes)| sizes)
        .filter(|size| **size >= gradients_on_cpu::LEAST);
    let bytes = large.sum();
    (modules, bytes)
}
