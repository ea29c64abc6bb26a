//! `checkpoint`: what lies inside chosen modules is computed again in the backward pass.
//!
//! Memory: what a block's forward leaves for its backward is freed when nothing in the block takes it
//! any more, but for its result; its arguments stay until its backward is done. Before its backward, its forward's
//! allocations happen again, up to the last one that the backward needs (non-reentrant
//! checkpointing stops there). Time: the forward of those blocks up to there once more, and the host's
//! for keeping the state that it begins with. Results: exact.

use std::ops::Range;

use oomph_run::record::is_function;
use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use serde::{Deserialize, Serialize};

use crate::blocks::{self, Block, Edits, Positions, Uses};
use crate::by_hand::{Script, Work, modules, settings};
use crate::draft::{Draft, Load};
use crate::lever::{Facets, Results, Stage, Switches, comments, places};
use crate::levers::Lever;
use crate::model::{Event, Model, Template};
use crate::units::{self, Sequence};

/// Nanoseconds of the host for a call: each saved tensor is packed, packed again and unpacked in Python; random states and modes are kept,
/// compared and set back (92 calls in five jobs, `bench/gpu/results/h200_levers_host.jsonl`).
const HOST_NS: f64 = 350_000.0;

/// The inside of modules is computed again in the backward pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Whose inside is not kept.
    pub modules: Vec<String>,
}

impl Checkpoint {
    /// The functions, and the modules.
    fn parts(&self) -> (Vec<String>, Vec<String>) {
        let names = self.modules.iter().cloned();
        names.partition(|name| is_function(name))
    }
}

impl Facets for Checkpoint {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        format!("checkpoint {}", places(&self.modules))
    }

    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        Some(&mut self.modules)
    }

    fn stage() -> Stage {
        Stage::Modules
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        model.compiled(true)
    }

    fn sequence(draft: &Draft<'_>) -> Sequence {
        if !draft.model.trains || draft.model.facts.compiled {
            return Sequence::default();
        }
        units::most_for_their_time(draft)
    }

    fn finer_sequence(draft: &Draft<'_>) -> Sequence {
        if !draft.model.trains || draft.model.facts.compiled {
            return Sequence::default();
        }
        units::finer(draft)
    }

    fn of_modules(modules: Vec<String>) -> Option<Self> {
        Some(Self { modules })
    }

    fn is_midway() -> bool {
        true
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let (found, positions) = blocks::find(draft, &self.modules);
        let uses = Uses::new(draft);
        let mut edits = Edits::default();
        // Until where arguments of checkpointed blocks are needed.
        let mut needed: HashMap<u32, usize> = HashMap::default();
        let mut kept: HashSet<u32> = HashSet::default();
        for block in &found {
            if let Some(call) = draft.model.calls.get(block.call as usize) {
                kept.extend(&call.outputs);
                for &input in &call.inputs {
                    let until = needed.entry(input).or_default();
                    *until = (*until).max(block.backward.end);
                }
            }
        }
        for block in &found {
            let mut load = draft.forward_load(block.call);
            let rest = recompute(
                &mut draft.template,
                block,
                &positions,
                &uses,
                &kept,
                &mut edits,
            );
            if let Some(rest) = rest {
                let rest = only_in(draft, &block.forward, rest);
                load.busy -= rest.busy;
                load.launches -= rest.launches;
            }
            load.lever += HOST_NS;
            draft.body.add(load);
        }
        // In the order of the body, so that the outcome is the same every time.
        let mut needed: Vec<(u32, usize)> = needed.into_iter().collect();
        needed.sort_unstable();
        for (input, until) in needed {
            if let Some(&freed) = positions.frees.get(&input)
                && freed < until
            {
                edits.drop(freed);
                edits.insert(until, Event::Free(input));
            }
        }
        draft.template.body = edits.apply(&draft.template.body);
    }

    fn checkpointed(&self) -> &[String] {
        &self.modules
    }

    fn snippet(&self) -> String {
        let (functions, modules) = self.parts();
        if modules.is_empty() {
            return format!(
                "around the calls of these functions:\ny = torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)\n{}",
                comments(&functions)
            );
        }
        format!(
            "around the call of these modules:\ny = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)\n{}",
            comments(&self.modules)
        )
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        let (functions, named) = self.parts();
        if !functions.is_empty() {
            settings::after_functions(work, &functions, |name| {
                format!(
                    "{name} = functools.partial(torch.utils.checkpoint.checkpoint, {name}, use_reentrant=False)"
                )
            })?;
            work.import("import functools");
            work.import("import torch.utils.checkpoint");
        }
        let change = modules::Change {
            paths: modules::paths(&named),
            // By its whole name: scripts have variables and functions called `checkpoint`.
            imports: &["import functools", "import torch.utils.checkpoint"],
            before: Vec::new(),
        };
        modules::for_each(work, Some(change), |names| {
            let (block, module) = (&names.block, &names.module);
            vec![
                "# A BatchNorm inside updates its running statistics twice a step.".to_owned(),
                format!("{block} = {module}"),
                format!(
                    "{block}.forward = functools.partial(torch.utils.checkpoint.checkpoint, {block}.forward, use_reentrant=False)"
                ),
            ]
        })
    }

    fn switches(&self) -> Switches {
        Switches {
            huggingface: Some(("gradient_checkpointing", "True".to_owned())),
            needs_run: true,
            ..Switches::default()
        }
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }
}

/// The work of what a block's forward pass does in the last part of it and nowhere before.
fn only_in(draft: &Draft<'_>, forward: &Range<usize>, rest: Range<usize>) -> Load {
    let template = &draft.template;
    let operators = |range: Range<usize>| {
        let events = template.body.get(range).unwrap_or_default().iter();
        events.filter_map(|event| match *event {
            Event::Alloc(number) => template.tensors.get(number as usize),
            _ => None,
        })
    };
    let before = forward.start..rest.start;
    let mut seen: HashSet<(u32, u32)> = operators(before).map(|one| (one.call, one.op)).collect();
    let mut load = Load::default();
    for tensor in operators(rest) {
        if seen.insert((tensor.call, tensor.op))
            && let Some(work) = draft.model.forward_by_op.get(&(tensor.call, tensor.op))
        {
            load.busy += draft.busy(work);
            load.launches += work.launches;
        }
    }
    load
}

/// Returns where in the body the part of the forward begins and ends that is not repeated.
fn recompute(
    template: &mut Template,
    block: &Block,
    positions: &Positions,
    uses: &Uses<'_>,
    kept: &HashSet<u32>,
    edits: &mut Edits,
) -> Option<Range<usize>> {
    let saved: HashSet<u32> = block.saved.iter().copied().collect();
    let casts: HashSet<u32> = block.casts.iter().copied().collect();
    let in_own_backward = |number: &u32| {
        positions
            .frees
            .get(number)
            .is_some_and(|&at| at >= block.backward.start && at <= block.backward.end)
    };
    // Results are saved by the block itself only where its own backward frees them.
    let is_saved = |number: u32| {
        saved.contains(&number) && (!kept.contains(&number) || in_own_backward(&number))
    };
    let forward: Vec<Event> = template
        .body
        .get(block.forward.clone())
        .unwrap_or_default()
        .to_vec();
    let last = forward
        .iter()
        .rposition(|event| matches!(event, Event::Alloc(number) if is_saved(*number)));
    let last = last?;
    let at = block.backward.start;
    // A result that the block saves itself waited for the operator that took it; from here on the copy that
    // is computed again stands for it.
    for &number in &block.saved {
        if kept.contains(&number) && is_saved(number) {
            edits.insert(at, Event::Free(number));
        }
    }
    let mut passing: HashMap<u32, u32> = HashMap::default();
    for event in forward.iter().take(last + 1) {
        match *event {
            Event::Alloc(number) => {
                let Some(copy) = blocks::again(template, number) else {
                    continue;
                };
                edits.insert(at, Event::Alloc(copy));
                if !is_saved(number) {
                    passing.insert(number, copy);
                    continue;
                }
                let Some(&freed) = positions.frees.get(&number) else {
                    continue;
                };
                if kept.contains(&number) {
                    edits.replace(freed, Event::Free(copy));
                    continue;
                }
                edits.replace(freed, Event::Free(copy));
                let gone = if casts.contains(&number) {
                    positions.backward_after(block.forward.end)
                } else {
                    let tensor = template.tensors.get(number as usize);
                    tensor.map_or(block.forward.end, |tensor| uses.end(number, tensor, block))
                };
                edits.insert(gone, Event::Free(number));
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
    Some(block.forward.start + last + 1..block.forward.end)
}
