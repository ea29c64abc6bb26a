//! Weights of modules that wait in host memory (`python/oomph/levers/_shared/streamed_weights.py`).

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use oomph_trace::{Category, Phase};

use crate::draft::Draft;
use crate::gradients;
use crate::lever::comments;
use crate::levers::Lever;
use crate::model::{Event, Model, Tensor};
use crate::search::Options;
use crate::units;

/// Modules whose weights are on the GPU at a time, as there.
pub(crate) const SLOTS: usize = 2;
/// Smaller tensors stay, as there.
pub(crate) const SMALLEST: u64 = 4 << 10;

/// Which of `modules` a module is, or is inside of.
pub(crate) fn inside(modules: &[String], owner: &str) -> Option<usize> {
    let mut modules = modules.iter();
    modules.position(|module| units::is_inside(owner, module))
}

/// Takes parameters of `modules` of `least` bytes or more from the GPU, where their owner is `chosen`, and puts memory for two of the modules there. The bytes of
/// each.
pub(crate) fn take(
    draft: &mut Draft<'_>,
    modules: &[String],
    least: u64,
    chosen: impl Fn(&str) -> bool,
) -> HashMap<usize, u64> {
    let mut held: HashMap<usize, u64> = HashMap::default();
    let mut gone: HashSet<u32> = HashSet::default();
    for (owner, number) in &draft.model.parameters {
        if let Some(block) = inside(modules, owner)
            && chosen(owner)
            && let Some(tensor) = draft.template.tensors.get(*number as usize)
            && tensor.bytes >= least
            && gone.insert(*number)
        {
            *held.entry(block).or_default() += tensor.bytes;
        }
    }
    for events in [&mut draft.template.setup, &mut draft.template.body] {
        events.retain(|event| match event {
            Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                !gone.contains(number)
            }
            Event::EmptyCache => true,
        });
    }
    for _ in 0..SLOTS {
        let number = draft.template.tensors.len() as u32;
        draft.template.tensors.push(Tensor {
            bytes: held.values().copied().max().unwrap_or(0),
            stream: 0,
            category: Category::Parameter,
            phase: Phase::Load,
            call: 0,
            op: u32::MAX,
            scope: u32::MAX,
            batched: false,
        });
        // Before the first of the modules runs; what is trained keeps them for all steps.
        if draft.model.trains {
            draft.template.setup.push(Event::Alloc(number));
        } else {
            draft.template.body.insert(0, Event::Alloc(number));
        }
    }
    held
}

/// What a step of a job that trains waits for weights `held` by these modules, where computing in them does not hide it: ahead of the
/// forward pass, and of the backward pass if it goes through them.
pub(crate) fn waits(draft: &mut Draft<'_>, modules: &[String], held: &HashMap<usize, u64>) {
    let model = draft.model;
    // What computes in each of them while weights come: forward and backward.
    let mut computing: HashMap<(usize, bool), f64> = HashMap::default();
    for work in &model.work {
        let call = model.calls.get(work.call as usize);
        if let Some(block) = call.and_then(|call| inside(modules, &call.module)) {
            let backward = work.phase == Phase::Backward;
            *computing.entry((block, backward)).or_default() += work.busy;
        }
    }
    let bytes = |backward: bool| -> u64 {
        let through = |block: usize| computing.contains_key(&(block, backward));
        let moved = held.iter().filter(|(block, _)| through(**block));
        moved.map(|(_, bytes)| bytes).sum()
    };
    // A backward pass begins with what the forward pass has left there, and the other way round.
    let turns = if bytes(true) > 0 { SLOTS as u64 } else { 0 };
    let stay = turns * held.values().copied().max().unwrap_or(0);
    for backward in [false, true] {
        let moved = bytes(backward).saturating_sub(stay) as f64 * draft.repeats;
        let link = moved / draft.pace().link_bytes_per_s * 1e9;
        let busy = computing.iter().filter(|((_, is), _)| *is == backward);
        let busy: f64 = busy.map(|(_, busy)| busy).sum();
        draft.waits += (link - busy).max(0.0);
    }
}

/// The modules with parameters of their own of which none is trained. A copy of a model that is trained, and follows its weights,
/// has the names of that model.
pub(crate) fn frozen(model: &Model) -> HashSet<&str> {
    let mut found: HashSet<&str> = owners(model, false).collect();
    for module in owners(model, true) {
        found.remove(module);
    }
    found
}

/// The modules with parameters of their own of which some are trained, and that no copy of a model that is not trained has.
pub(crate) fn trained(model: &Model) -> HashSet<&str> {
    let mut found: HashSet<&str> = owners(model, true).collect();
    for module in owners(model, false) {
        found.remove(module);
    }
    found
}

fn owners(model: &Model, trained: bool) -> impl Iterator<Item = &str> {
    let modules = model.modules.iter();
    let with = modules.filter(move |one| one.parameters > 0 && (one.trained > 0) == trained);
    with.map(|module| module.name.as_str())
}

/// The blocks of a job that trains which have weights whose owner is `chosen`, and the bytes of those of `least` bytes or more.
pub(crate) fn blocks_with(model: &Model, chosen: &HashSet<&str>, least: u64) -> (Vec<String>, u64) {
    if !model.trains || model.facts.compiled {
        return (Vec::new(), 0);
    }
    let modules = units::with_weights(model, |owner| chosen.contains(owner));
    let sizes = model.parameter_sizes.iter();
    let held = sizes
        .filter(|(owner, _)| chosen.contains(owner.as_str()) && inside(&modules, owner).is_some());
    let large = held.flat_map(|(_, sizes)| sizes);
    let bytes = large.filter(|size| **size >= least).sum();
    (modules, bytes)
}

/// Those with weights that are trained, and whose gradients may wait in host memory.
pub(crate) fn trained_blocks(model: &Model) -> (Vec<String>, u64) {
    blocks_with(model, &trained(model), gradients::LEAST)
}

/// Whether weights that are trained are worth it to wait in host memory.
pub(crate) fn offers_trained(model: &Model, options: &Options) -> bool {
    /// Less than this part of the budget is not.
    const WORTH: u64 = 10;
    let bytes = trained_blocks(model).1;
    bytes > 0 && bytes >= options.budget / WORTH
}

/// Whether a module is inside of one of these.
fn is_part(modules: &[String], part: &str) -> bool {
    inside(modules, part).is_some_and(|at| modules.get(at).is_some_and(|module| module != part))
}

/// Whether others compute a part of one of these modules again by itself, which would not find its weights.
pub(crate) fn is_taken_apart(modules: &[String], others: &[Lever]) -> bool {
    let mut parts = others.iter().flat_map(|lever| {
        let lever = lever.facets();
        lever.recomputed().iter().chain(lever.checkpointed())
    });
    parts.any(|part| is_part(modules, part))
}

/// Leaves out those of the modules of which another lever takes a part; whether any are left.
pub(crate) fn leave_to(modules: &mut Vec<String>, blocks: &[String]) -> bool {
    modules.retain(|module| {
        let only = std::slice::from_ref(module);
        !blocks.iter().any(|block| is_part(only, block))
    });
    !modules.is_empty()
}

/// How to have weights of modules in host memory by hand.
pub(crate) fn snippet(modules: &[String]) -> String {
    format!(
        "after torch.distributed.init_process_group with one rank, before the optimizer is made, for each of these modules:\nfrom torch.distributed.fsdp import CPUOffloadPolicy, fully_shard\nfully_shard(module, offload_policy=CPUOffloadPolicy())\n{}",
        comments(modules)
    )
}
