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
use crate::gradients;
use crate::lever::{Facets, Group, Results, Stage, StepChange, places};
use crate::levers::Lever;
use crate::model::{Event, Model, Tensor};
use crate::optimizers;
use crate::search::Options;
use crate::sharding::Sharing;
use crate::streamed::{self, inside, take, trained, waits};

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
        let offered = streamed::offers_trained(model, options) && gradients::can_wait(model);
        let modules = || streamed::trained_blocks(model).0;
        let lever = offered.then(|| Self { modules: modules() });
        lever.into_iter().collect()
    }

    fn goes_with(&self, others: &[Lever]) -> bool {
        let changes = |change| {
            let mut steps = others.iter().map(|lever| lever.facets().step());
            steps.any(|step| step == Some(change))
        };
        changes(StepChange::GradientsOnHost)
            && changes(StepChange::OnHost)
            && !others.iter().any(splits)
            && !streamed::is_taken_apart(&self.modules, others)
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn leave_to(&mut self, blocks: &[String]) -> bool {
        streamed::leave_to(&mut self.modules, blocks)
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let model = draft.model;
        let trained = trained(model);
        let goes = |owner: &str| trained.contains(owner);
        let held = take(draft, &self.modules, gradients::LEAST, goes);
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
        streamed::snippet(&self.modules)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }
}

/// Whether a lever calls models for parts of a batch.
fn splits(lever: &Lever) -> bool {
    lever.stage() == Stage::Combined(Group::Batch) && lever.micro_batches().is_none()
}

#[cfg(test)]
mod tests {
    use oomph_run::record::Optimizer;

    use super::*;
    use crate::draft::Pace;
    use crate::floor::Floor;
    use crate::levers::parameters::Checkpoint;
    use crate::levers::tests::{every, job};

    const MIB: u64 = 1 << 20;

    fn trained_job() -> (Model, StreamTrained) {
        let mut model = job(0.0, true);
        for module in &mut model.modules {
            module.trained = module.parameters;
        }
        let modules = [0, 1, 2].map(|index| format!("Net.blocks.{index}"));
        let lever = StreamTrained {
            modules: modules.to_vec(),
        };
        (model, lever)
    }

    #[test]
    fn two_blocks_stay_and_what_steps_is_there_for_the_step() {
        let (model, lever) = trained_job();
        let found = streamed::trained_blocks(&model);
        assert_eq!(found, (lever.modules.clone(), 300 * MIB));
        let pace = Pace {
            link_bytes_per_s: 100.0 * MIB as f64,
            ..Pace::default()
        };
        let mut draft = Draft::new(&model, pace);
        lever.apply(&mut draft);
        let held = |events: &[Event]| -> u64 {
            let sizes = events.iter().map(|event| match event {
                Event::Alloc(number) => draft.template.tensors[*number as usize].bytes,
                _ => 0,
            });
            sizes.sum()
        };
        assert_eq!(
            held(&draft.template.setup),
            300 * MIB,
            "the head and two blocks"
        );
        let at_once = optimizers::bytes_at_once(300 * MIB);
        assert_eq!(held(&draft.template.tail), 3 * at_once);
        // One of three blocks comes for the forward pass and one for the backward pass; all come and go for the step.
        assert!((draft.waits / 1e9 - 8.0).abs() < 1e-6);
        // Where gradients cannot wait, these weights are in the least that a run needs.
        let mut model = model;
        assert_eq!(Floor::of(&model).parameter_bytes, 400 * MIB);
        model.facts.backwards = 1;
        model.facts.optimizers = vec![Optimizer {
            kind: "AdamW".to_owned(),
            ..Optimizer::default()
        }];
        assert_eq!(Floor::of(&model).parameter_bytes, 100 * MIB);
        // A copy of the model that follows it has the same names.
        for index in 0..model.modules.len() {
            let copy = oomph_run::record::Module {
                trained: 0,
                ..model.modules[index].clone()
            };
            model.modules.push(copy);
        }
        assert_eq!(streamed::trained_blocks(&model).1, 0);
    }

    #[test]
    fn gradients_and_state_are_on_the_host_too() {
        let (_, lever) = trained_job();
        let goes = |more: Vec<Lever>| {
            let mut levers: Vec<Lever> = vec![lever.clone().into()];
            levers.extend(more);
            lever.goes_with(&levers)
        };
        let of = |chosen: &dyn Fn(&Lever) -> bool| every().into_iter().find(chosen).unwrap();
        let change = |change| of(&|lever| lever.facets().step() == Some(change));
        let both = || {
            vec![
                change(StepChange::GradientsOnHost),
                change(StepChange::OnHost),
            ]
        };
        let with = |other: Lever| [both(), vec![other]].concat();
        let checkpoint = |module: &str| {
            Lever::from(Checkpoint {
                modules: vec![module.to_owned()],
            })
        };
        assert!(goes(both()) && !goes(both()[..1].to_vec()));
        assert!(goes(with(checkpoint("Net.blocks.1"))));
        assert!(!goes(with(checkpoint("Net.blocks.1.fc"))));
        assert!(!goes(with(of(&splits))));
    }
}
