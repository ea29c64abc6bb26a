//! `stream_frozen`: weights that are not trained wait in host memory while a job trains: a base under adapters, a backbone, a teacher.
//!
//! Memory: those weights go, and memory for two of the modules stays. Time: the link's, once for the forward and, where gradients
//! go through a module, once for the backward pass, as far as computing in these modules does not hide it. Results: exact.

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use serde::{Deserialize, Serialize};

use oomph_trace::Phase;

use crate::by_hand::Script;
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage, places};
use crate::levers::Lever;
use crate::levers::stream_weights::{SLOTS, inside, take};
use crate::model::Model;
use crate::search::Options;
use crate::sharding::Sharing;
use crate::units;

/// Less than this part of the budget is not worth it.
const WORTH: u64 = 20;

/// Training with frozen weights of modules in host memory, brought ahead of their use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamFrozen {
    /// The modules.
    pub modules: Vec<String>,
}

impl Facets for StreamFrozen {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        format!("stream frozen weights of {}", places(&self.modules))
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
        let offered = bytes > 0 && bytes >= options.budget / WORTH;
        offered.then_some(Self { modules }).into_iter().collect()
    }

    fn goes_with(&self, others: &[Lever]) -> bool {
        // What is computed again by itself would not find its weights.
        let mut parts = others.iter().flat_map(|lever| {
            let lever = lever.facets();
            lever.recomputed().iter().chain(lever.checkpointed())
        });
        !parts.any(|part| is_part(&self.modules, part))
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn leave_to(&mut self, blocks: &[String]) -> bool {
        self.modules.retain(|module| {
            let only = std::slice::from_ref(module);
            !blocks.iter().any(|block| is_part(only, block))
        });
        !self.modules.is_empty()
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let model = draft.model;
        let frozen = frozen(model);
        let held = take(draft, &self.modules, |owner| frozen.contains(owner));
        // What computes in each of them while weights come: forward and backward.
        let mut computing: HashMap<(usize, bool), f64> = HashMap::default();
        for work in &model.work {
            let call = model.calls.get(work.call as usize);
            if let Some(block) = call.and_then(|call| inside(&self.modules, &call.module)) {
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

    fn snippet(&self) -> String {
        format!(
            "after torch.distributed.init_process_group with one rank, before the optimizer is made, for each of these modules:\nfrom torch.distributed.fsdp import CPUOffloadPolicy, fully_shard\nfully_shard(module, offload_policy=CPUOffloadPolicy())\n{}",
            self.modules.join("\n")
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }
}

/// Whether a module is inside of one of these.
fn is_part(modules: &[String], part: &str) -> bool {
    inside(modules, part).is_some_and(|at| modules.get(at).is_some_and(|module| module != part))
}

/// The modules with parameters of their own of which none is trained. A copy of a model that is trained, and follows its weights,
/// has the names of that model.
pub(crate) fn frozen(model: &Model) -> HashSet<&str> {
    let with = |trained: bool| {
        let modules = model.modules.iter();
        modules.filter(move |module| module.parameters > 0 && (module.trained > 0) == trained)
    };
    let mut found: HashSet<&str> = with(false).map(|module| module.name.as_str()).collect();
    for module in with(true) {
        found.remove(module.name.as_str());
    }
    found
}

/// The blocks of a job that trains which have frozen weights, and the bytes of these.
fn of(model: &Model) -> (Vec<String>, u64) {
    if !model.trains || model.facts.compiled {
        return (Vec::new(), 0);
    }
    let frozen = frozen(model);
    let modules = units::with_weights(model, |owner| frozen.contains(owner));
    let sizes = model.parameter_sizes.iter();
    let held = sizes.filter(|(owner, _)| {
        frozen.contains(owner.as_str()) && inside(&modules, owner).is_some()
    });
    let bytes = held.flat_map(|(_, sizes)| sizes).sum();
    (modules, bytes)
}
