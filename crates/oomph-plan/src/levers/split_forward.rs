//! `split_forward`: each outermost model runs its batch in parts, all but the last without graph, and each of those again,
//! with its graph, when the gradient of the outputs arrives (gradient caching).
//!
//! Memory: what flows inside of a call shrinks to the largest part's; its arguments and its result stay
//! whole, and so does all that is outside. The gradients are there from the first part on. Time: the
//! forward pass of all parts but the last once more (of all, where several calls wait for a backward pass), each kernel once a part,
//! and the gradients added. Passes without gradients
//! over as much run in parts, too. Results: to rounding for models that compute each sample by itself, whatever the loss.

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use serde::{Deserialize, Serialize};

use oomph_run::record::Module;
use oomph_trace::{Category, Phase};

use crate::blocks::{self, Block, Edits, Positions, Uses};
use crate::by_hand::Script;
use crate::draft::{Draft, Load};
use crate::lever::{Facets, Group, Results, Stage, StepChange};
use crate::levers::Lever;
use crate::model::{Event, Model};
use crate::search::Options;
use crate::sharding::Sharing;
use crate::units;

/// Into how many parts a batch may go.
const PARTS: [u32; 6] = [2, 4, 8, 16, 32, 64];
/// Nanoseconds of the host for a part in either pass: arguments are cut, random states kept and set back.
const HOST_NS: f64 = 150_000.0;

/// The outermost models' calls in `parts` pieces, computed again for the backward pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SplitForward {
    /// How many.
    pub parts: u32,
}

impl Facets for SplitForward {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        format!("the model's call in {} parts", self.parts)
    }

    fn order() -> u32 {
        9 // outside of whatever else is done to a model's forward
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Batch)
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        if !model.trains || model.facts.compiled || all_couple_samples(model) {
            return Vec::new();
        }
        let samples = samples(model);
        PARTS
            .into_iter()
            .filter(|&parts| u64::from(parts) <= samples)
            .map(|parts| Self { parts })
            .collect()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        if !model.trains {
            None
        } else if all_couple_samples(model) {
            Some(
                "batch normalization would see parts of the batch: put it into evaluation mode or use another normalization",
            )
        } else if samples(model) < 2 {
            Some("no call of a model has a batch of two samples or more")
        } else {
            model.compiled(true)
        }
    }

    fn goes_with(&self, others: &[Lever]) -> bool {
        // It hands all gradients on when the last part is through: none could go before.
        let in_backward = |lever: &Lever| lever.facets().step() == Some(StepChange::InBackward);
        !others.iter().any(in_backward)
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        // Ranks wrap the models, and gather parameters around a call of theirs.
        false
    }

    fn is_applied_last(&self) -> bool {
        true
    }

    fn lessens_evaluation(&self) -> bool {
        true
    }

    fn looks_at_samples(&self) -> bool {
        true
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let model = draft.model;
        let names = outermost(model);
        let (found, positions) = blocks::find(draft, &names);
        let uses = Uses::new(draft);
        let trained: HashSet<u32> = found.iter().map(|block| block.call).collect();
        let passes = passes(draft, &names, &trained);
        let roots: HashSet<u32> = trained.union(&passes).copied().collect();
        let inside = within(model, &roots);
        let kept = kept(&found);
        let mut edits = Edits::default();
        for block in &found {
            let again = !kept.contains(&block.call);
            split(draft, block, again, &positions, &uses, &inside, &mut edits);
        }
        let results: HashSet<u32> = roots
            .iter()
            .filter_map(|&call| model.calls.get(call as usize))
            .flat_map(|call| call.outputs.iter().copied())
            .collect();
        let part = |bytes: u64| match samples(model) {
            0 => bytes.div_ceil(u64::from(self.parts.max(1))),
            all => (bytes * all.div_ceil(u64::from(self.parts.max(1)))).div_ceil(all),
        };
        for (number, tensor) in (0..).zip(&mut draft.template.tensors) {
            if tensor.batched
                && inside.contains(&tensor.call)
                && tensor.category != Category::Input
                && !results.contains(&number)
            {
                tensor.bytes = part(tensor.bytes);
            }
        }
        draft.template.body = edits.apply(&draft.template.body);
        self.take_time(draft, &found, &kept, &inside);
        draft.body.lever += f64::from(self.parts) * HOST_NS * passes.len() as f64;
    }

    fn snippet(&self) -> String {
        format!(
            "in the training step, with the model's inputs in {0} parts (a model with dropout needs the random state of the first pass in the second one):\nwith torch.no_grad():\n    outputs = torch.cat([model(part) for part in inputs.chunk({0})]).requires_grad_()\nloss = loss_of(outputs)\nloss.backward()\nfor part, gradient in zip(inputs.chunk({0}), outputs.grad.chunk({0})):\n    model(part).backward(gradient)",
            self.parts
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.training_line()
    }
}

impl SplitForward {
    /// The forward pass twice but for parts that keep their graph, and all of it once a part.
    fn take_time(
        &self,
        draft: &mut Draft<'_>,
        found: &[Block],
        kept: &HashSet<u32>,
        inside: &HashSet<u32>,
    ) {
        let parts = f64::from(self.parts.max(1));
        let (mut again, mut calls) = (Load::default(), 0.0);
        for block in found {
            let load = draft.forward_load(block.call);
            let times = if kept.contains(&block.call) {
                parts - 1.0
            } else {
                parts
            };
            again.busy += load.busy * times / parts;
            again.launches += load.launches * times / parts;
            calls += load.calls * (parts + times - 1.0);
        }
        let works = draft.model.work.iter();
        let outside = works.filter(|work| {
            let is_body = work.phase != Phase::Optimizer
                && (work.phase != Phase::Inference || work.call != 0);
            is_body && !inside.contains(&work.call)
        });
        let outside: f64 = outside.map(|work| work.launches).sum();
        // What other levers launch they launch within the calls.
        let launches = (draft.body.launches - outside).max(0.0) + again.launches;
        draft.body.busy += again.busy + (parts - 1.0) * launches * draft.pace().launch_ns;
        draft.body.launches = outside + parts * launches;
        draft.body.calls += calls;
        draft.body.lever += 2.0 * parts * HOST_NS * found.len() as f64;
        let added = draft.accumulation(parts);
        draft.body.add(added);
    }
}

/// Samples in a call of a model; 0 if unknown.
fn samples(model: &Model) -> u64 {
    match model.facts.input.batch {
        0 | 1 => model.batch,
        samples => samples,
    }
}

/// Whether no model is left that computes each sample by itself.
fn all_couple_samples(model: &Model) -> bool {
    model.couples_samples() && outermost(model).is_empty()
}

/// How deep inside of models that stay whole others are split, as the lever does it.
const LEVELS: usize = 2;

/// The outermost models that are trained, or through which something is, and whose samples do not depend on each other. One
/// that couples them stays whole, and the models inside of it are split.
fn outermost(model: &Model) -> Vec<String> {
    let around = |is: fn(&Module) -> bool| -> HashSet<&str> {
        let modules = model.modules.iter().filter(|module| is(module));
        let names = modules.map(|module| module.name.as_str());
        names
            .flat_map(|name| units::ancestors(name).chain([name]))
            .collect()
    };
    let trained = around(|module| module.parameters > 0);
    let coupled = around(|module| module.coupled);
    let with_parts = units::with_parts(model);
    let mut children: HashMap<u32, Vec<u32>> = HashMap::default();
    let mut open: Vec<(u32, usize)> = Vec::new();
    for (number, call) in (0..).zip(&model.calls).skip(1) {
        if model.is_outermost(call) {
            open.push((number, 0));
        } else {
            children.entry(call.parent).or_default().push(number);
        }
    }
    let mut names: Vec<String> = Vec::new();
    let name = |number: u32| {
        model
            .calls
            .get(number as usize)
            .map(|call| call.module.as_str())
    };
    while let Some((number, level)) = open.pop() {
        let Some(module) = name(number).filter(|module| trained.contains(module)) else {
            continue;
        };
        if !coupled.contains(module) {
            names.push(module.to_owned());
            continue;
        }
        let inside = children.get(&number).into_iter().flatten().copied();
        let inside: Vec<u32> = inside
            .filter(|&number| name(number).is_some_and(|module| with_parts.contains(module)))
            .collect();
        let distinct: HashSet<_> = inside.iter().map(|&number| name(number)).collect();
        let level = level + usize::from(distinct.len() > 1);
        if level <= LEVELS {
            open.extend(inside.into_iter().map(|number| (number, level)));
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// The calls of `names` without gradients that see as much as the largest of those that are `trained`: of a teacher, say.
fn passes(draft: &Draft<'_>, names: &[String], trained: &HashSet<u32>) -> HashSet<u32> {
    let calls = &draft.model.calls;
    let tensors = &draft.template.tensors;
    let seen = |call: u32| -> u64 {
        let inputs = calls.get(call as usize).map(|call| call.inputs.as_slice());
        let inputs = inputs.unwrap_or_default().iter();
        inputs
            .filter_map(|&number| tensors.get(number as usize))
            .map(|tensor| tensor.bytes)
            .sum()
    };
    let largest = trained.iter().map(|&call| seen(call)).max().unwrap_or(0);
    let roots = blocks::roots(draft.model, names);
    tensors
        .iter()
        .filter(|tensor| tensor.phase == Phase::Inference)
        .filter_map(|tensor| roots.get(tensor.call as usize).copied())
        .filter(|&call| call != 0 && !trained.contains(&call) && seen(call) >= largest)
        .collect()
}

/// `roots` and all calls in them.
fn within(model: &Model, roots: &HashSet<u32>) -> HashSet<u32> {
    let mut found = roots.clone();
    // Parents come before their children.
    for (number, call) in (0..).zip(&model.calls) {
        if call.parent != 0 && found.contains(&call.parent) {
            found.insert(number);
        }
    }
    found
}

/// The calls whose last part keeps its graph: those that begin when no other's is there.
fn kept(found: &[Block]) -> HashSet<u32> {
    let mut sorted: Vec<&Block> = found.iter().collect();
    sorted.sort_by_key(|block| block.forward.start);
    let (mut kept, mut until) = (HashSet::default(), 0);
    for block in sorted {
        if block.forward.start >= until {
            until = block.backward.start;
            kept.insert(block.call);
        }
    }
    kept
}

/// Frees what a call saves as soon as its forward pass has used it, and puts that pass once more before its
/// backward pass, which finds the gradients of the parts before. If it is not run `again`, what a part saves stays.
fn split(
    draft: &mut Draft<'_>,
    block: &Block,
    again: bool,
    positions: &Positions,
    uses: &Uses<'_>,
    inside: &HashSet<u32>,
    edits: &mut Edits,
) {
    let template = &mut draft.template;
    let results: HashSet<u32> = draft
        .model
        .calls
        .get(block.call as usize)
        .map(|call| call.outputs.iter().copied().collect())
        .unwrap_or_default();
    let saved: HashSet<u32> = block.saved.iter().copied().collect();
    let at = block.backward.start;
    let events =
        |range: std::ops::Range<usize>| template.body.get(range).unwrap_or_default().to_vec();
    let (forward, backward) = (
        events(block.forward.clone()),
        events(block.backward.clone()),
    );
    for (position, event) in (block.backward.start..).zip(backward) {
        let Event::Alloc(number) = event else {
            continue;
        };
        let tensor = template.tensors.get(number as usize);
        let is_gradient = tensor.is_some_and(|tensor| {
            tensor.category == Category::Gradient && inside.contains(&tensor.call)
        }) && !positions.frees.contains_key(&number); // unless it does not stay
        if is_gradient && let Some(copy) = blocks::again(template, number) {
            edits.insert(at, Event::Alloc(number));
            // A later part's is added to it.
            edits.replace(position, Event::Alloc(copy));
            edits.insert(position + 1, Event::Free(copy));
        }
    }
    if !again {
        return;
    }
    let mut passing: HashMap<u32, u32> = HashMap::default();
    for event in forward {
        match event {
            Event::Alloc(number) => {
                let Some(copy) = blocks::again(template, number) else {
                    continue;
                };
                edits.insert(at, Event::Alloc(copy));
                // What goes before this backward pass begins, the call does not save.
                let freed = positions.frees.get(&number).copied();
                let freed = freed.filter(|&freed| freed >= at);
                if results.contains(&number) {
                    // The whole result stays for as long as it did.
                    edits.insert(block.backward.end, Event::Free(copy));
                } else if saved.contains(&number)
                    && let Some(freed) = freed
                {
                    edits.replace(freed, Event::Free(copy));
                    let tensor = template.tensors.get(number as usize);
                    let gone =
                        tensor.map_or(block.forward.end, |tensor| uses.end(number, tensor, block));
                    edits.insert(gone, Event::Free(number));
                } else {
                    passing.insert(number, copy);
                }
            }
            Event::Free(number) => {
                if let Some(copy) = passing.remove(&number) {
                    edits.insert(at, Event::Free(copy));
                }
            }
            Event::FreePrevious(_) | Event::EmptyCache => {}
        }
    }
    let mut rest: Vec<u32> = passing.into_values().collect();
    rest.sort_unstable();
    for copy in rest {
        edits.insert(at, Event::Free(copy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Call;

    /// A call of each of these models, which have one layer of this kind.
    fn job(models: &[(&str, bool)]) -> Model {
        let mut model = Model {
            trains: true,
            batch: 8,
            calls: vec![Call::default()],
            ..Model::default()
        };
        for &(name, coupled) in models {
            model.calls.push(Call {
                module: name.to_owned(),
                ..Call::default()
            });
            model.modules.push(Module {
                name: format!("{name}.0"),
                coupled,
                parameters: 1,
                ..Module::default()
            });
        }
        model
    }

    #[test]
    fn models_beside_one_that_couples_samples_are_split() {
        let offered = |model: &Model| {
            let found = SplitForward::candidates(model, &Options::default());
            assert_eq!(SplitForward::excluded(model).is_some(), found.is_empty());
            !found.is_empty()
        };
        assert!(!offered(&job(&[("Generator", true)])));
        let both = job(&[("Generator", true), ("Discriminator", false)]);
        assert!(offered(&both));
        assert_eq!(outermost(&both), ["Discriminator"]);
    }

    #[test]
    fn models_inside_of_one_that_couples_samples_are_split() {
        let mut model = job(&[("Net.body", false), ("Net.head", true)]);
        for call in &mut model.calls[1..] {
            call.parent = 3;
        }
        model.calls.push(Call {
            module: "Net".to_owned(),
            ..Call::default()
        });
        assert_eq!(outermost(&model), ["Net.body"]);
    }
}
