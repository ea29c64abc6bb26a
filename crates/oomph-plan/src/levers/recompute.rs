//! `recompute`: results of cheap modules are computed again in the backward pass.
//!
//! Offered for normalizations and activation functions whose results somebody saves, and for the
//! products that widen what such a module is given: as many of them as needed, those first that give
//! up most bytes for their time, or all of them beside checkpointed blocks. Memory: a result,
//! the casts of it that its consumers save, and what the module saves inside are freed when the
//! next such module is called, and come back when the first consumer's backward pass needs them.
//! Time: the forward of those modules once more, and the host's work for each call. Results: exact.

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::blocks::{self, Edits};
use crate::by_hand::{Script, Work, modules};
use crate::draft::{Draft, Load, Pace};
use crate::lever::{Facets, Group, Results, Stage, comments, places};
use crate::levers::Lever;
use crate::levers::checkpoint::Checkpoint;
use crate::model::{Event, Model};
use crate::search::Options;
use crate::units::{self, Sequence};

/// Classes of modules whose forward reads and writes little more than their result.
const CHEAP: [&str; 18] = [
    "LayerNorm",
    "RMSNorm",
    "LlamaRMSNorm",
    "MistralRMSNorm",
    "Qwen2RMSNorm",
    "Qwen3RMSNorm",
    "GroupNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "ReLU",
    "GELU",
    "SiLU",
    "Mish",
    "GELUActivation",
    "NewGELUActivation",
    "SiLUActivation",
    "QuickGELUActivation",
];
/// Products, by class.
const PRODUCTS: [&str; 5] = ["Linear", "Conv1D", "Conv1d", "Conv2d", "Conv3d"];
/// A product widens what it is given by this much at least, to be worth its time.
const WIDER: u64 = 2;
/// Less is not worth a call from Python.
const LEAST_BYTES: u64 = 256 << 10;
/// What a call costs the host beside its launches, in nanoseconds: following the graph in the forward
/// pass and coming back in the backward pass.
const HOST_NS: f64 = 160_000.0;
/// Operators whose results are kept where the rest of a block is computed again.
const KEPT: [&str; 8] = [
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
];

/// Results of cheap modules are computed again in the backward pass.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recompute {
    /// Whose results are not kept.
    pub modules: Vec<String>,
}

impl Facets for Recompute {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        format!("recompute {}", places(&self.modules))
    }

    fn order() -> u32 {
        60 // inside of checkpointing and offloading, which decide over what is in them
    }

    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        Some(&mut self.modules)
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Recomputation)
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        if !model.trains || model.facts.compiled {
            return Vec::new();
        }
        let modules = cheap(model);
        let offered = !modules.is_empty();
        offered.then_some(Self { modules }).into_iter().collect()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        model.compiled(true)
    }

    /// The order in which computing single modules again pays: most bytes for the least time first.
    fn sequence(draft: &Draft<'_>) -> Sequence {
        /// More decisions are made several at a time: each costs a search as much as a block does.
        const MOST: usize = 24;
        if !draft.model.trains || draft.model.facts.compiled {
            return Sequence::default();
        }
        let mut found = units_of(draft, &cheap(draft.model));
        found.retain(|unit| unit.bytes > 0);
        found.sort_by(|a, b| {
            let class = |unit: &Unit| {
                units::class(
                    unit.bytes,
                    unit.load.busy + units::HOST_SHARE * unit.load.host(draft.pace()),
                )
            };
            class(b)
                .cmp(&class(a))
                .then(b.place.cmp(&a.place))
                .then(a.modules.cmp(&b.modules))
        });
        let at_once = found.len().div_ceil(MOST).max(1);
        let names = |units: &[Unit]| {
            units
                .iter()
                .flat_map(|unit| unit.modules.iter().cloned())
                .collect()
        };
        Sequence::new(found.chunks(at_once).map(names).collect())
    }

    fn of_modules(modules: Vec<String>) -> Option<Self> {
        Some(Self { modules })
    }

    fn leave_to(&mut self, blocks: &[String]) -> bool {
        self.modules.retain(|name| {
            !units::ancestors(name).any(|above| blocks.iter().any(|block| block == above))
        });
        !self.modules.is_empty()
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let modules = &self.modules;
        let (found, positions) = find(draft, modules);
        let body = &draft.template.body;
        // Where each call begins to allocate in the backward pass, and ends to in the forward pass.
        let mut backward: HashMap<u32, usize> = HashMap::default();
        let mut forward: HashMap<u32, usize> = HashMap::default();
        let mut begins: Vec<usize> = Vec::new();
        let mut made: HashMap<u32, usize> = HashMap::default();
        let mut freed: HashMap<u32, usize> = HashMap::default();
        // Where each call ends to in the backward pass.
        let mut done: HashMap<u32, usize> = HashMap::default();
        let mut inside = 0;
        for (at, event) in body.iter().enumerate() {
            match *event {
                Event::Alloc(number) => {
                    made.insert(number, at);
                    let Some(tensor) = draft.template.tensors.get(number as usize) else {
                        continue;
                    };
                    if tensor.phase == Phase::Backward {
                        backward.entry(tensor.call).or_insert(at);
                        done.insert(tensor.call, at + 1);
                    } else {
                        forward.insert(tensor.call, at);
                        let name = draft.model.calls.get(tensor.call as usize);
                        if tensor.call != inside
                            && name.is_some_and(|call| modules.contains(&call.module))
                        {
                            begins.push(at);
                        }
                        inside = tensor.call;
                    }
                }
                Event::Free(number) => {
                    freed.insert(number, at);
                }
                Event::FreePrevious(_) | Event::EmptyCache => {}
            }
        }
        let mut edits = Edits::default();
        for one in &found.dropped {
            let (Some(&made), Some(&freed)) = (made.get(&one.number), freed.get(&one.number))
            else {
                continue;
            };
            let used = one.users.iter().filter_map(|call| forward.get(call));
            let last = used.copied().max().unwrap_or(made).max(made);
            let start = positions.backward_after(made);
            let next = begins.partition_point(|&begin| begin <= last);
            let gone = begins.get(next).copied().unwrap_or(start).min(start);
            let needed = one.users.iter().filter_map(|call| backward.get(call));
            let needed = needed
                .copied()
                .min()
                .unwrap_or(freed)
                .clamp(start.min(freed), freed);
            let Some(copy) = blocks::again(&mut draft.template, one.number) else {
                continue;
            };
            edits.insert(gone, Event::Free(one.number));
            edits.insert(needed, Event::Alloc(copy));
            edits.replace(freed, Event::Free(copy));
        }
        for &(number, call) in &found.held {
            if let (Some(&freed), Some(&done)) = (freed.get(&number), done.get(&call))
                && freed < done
            {
                edits.drop(freed);
                edits.insert(done, Event::Free(number));
            }
        }
        let mut again: Vec<u32> = found.again().into_iter().collect();
        again.sort_unstable();
        for call in again {
            let load = load(draft, call);
            draft.body.add(load);
        }
        draft.template.body = edits.apply(&draft.template.body);
    }

    fn recomputed(&self) -> &[String] {
        &self.modules
    }

    fn snippet(&self) -> String {
        format!(
            "around the call of the blocks that hold these modules, where all but products, convolutions and attention is computed again:\nimport functools\nfrom torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts\nkept = [{}]\ny = checkpoint(block, x, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, kept))\n{}",
            KEPT.map(|operator| format!("torch.ops.aten.{operator}.default"))
                .join(", "),
            comments(&self.modules)
        )
    }

    fn place(&self, work: &mut Work<'_>, levers: &[Lever]) -> Option<()> {
        let contexts = work.free_name("contexts");
        let change = self.blocks(levers).map(|paths| {
            let mut before = vec![
                "# Products, convolutions and attention are kept, the rest of a block is computed again.".to_owned(),
                format!("{contexts} = functools.partial("),
                "    torch.utils.checkpoint.create_selective_checkpoint_contexts,".to_owned(),
                "    [".to_owned(),
            ];
            before.extend(
                KEPT.map(|operator| format!("        torch.ops.aten.{operator}.default,")),
            );
            before.extend(["    ],".to_owned(), ")".to_owned()]);
            modules::Change {
                paths,
                imports: &["import functools", "import torch.utils.checkpoint"],
                before,
            }
        });
        modules::for_each(work, change, |names| {
            let (block, module) = (&names.block, &names.module);
            vec![
                "# A BatchNorm inside updates its running statistics twice a step.".to_owned(),
                format!("{block} = {module}"),
                format!("{block}.forward = functools.partial("),
                format!(
                    "    torch.utils.checkpoint.checkpoint, {block}.forward, use_reentrant=False, context_fn={contexts}"
                ),
                ")".to_owned(),
            ]
        })
    }

    fn coarser(&self, levers: &[Lever]) -> Option<Lever> {
        let (root, _) = self.modules.first()?.split_once('.')?;
        let blocks = self.blocks(levers)?.into_iter();
        let modules = blocks.map(|block| format!("{root}.{block}")).collect();
        Some(Checkpoint { modules }.into())
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }
}

impl Recompute {
    /// The blocks that hold its modules and are not checkpointed as a whole; `None` if there are none.
    fn blocks(&self, levers: &[Lever]) -> Option<Vec<String>> {
        let checkpointed: Vec<String> = levers
            .iter()
            .flat_map(|other| modules::paths(other.facets().checkpointed()))
            .collect();
        let mut blocks = modules::blocks(&self.modules)?;
        blocks.retain(|block| !checkpointed.contains(block));
        (!blocks.is_empty()).then_some(blocks)
    }
}

/// The modules that it could be applied to: the cheap ones, and the products before them.
fn cheap(model: &Model) -> Vec<String> {
    let kinds: HashMap<&str, &str> = model
        .modules
        .iter()
        .map(|module| (module.name.as_str(), module.kind.as_str()))
        .collect();
    let kind = |name: &str| kinds.get(name).copied().unwrap_or("");
    let is_cheap = |name: &str| CHEAP.contains(&kind(name));
    let bytes = |number: &u32| {
        let tensor = model.template.tensors.get(*number as usize);
        tensor.map_or(0, |tensor| tensor.bytes)
    };
    let mut cheap: HashSet<&str> = HashSet::default();
    let mut wide: HashSet<&str> = HashSet::default();
    let into_cheap: HashSet<u32> = model
        .calls
        .iter()
        .filter(|call| is_cheap(&call.module))
        .flat_map(|call| call.inputs.iter().copied())
        .collect();
    for call in &model.calls {
        let (&[input], &[output]) = (&call.inputs[..], &call.outputs[..]) else {
            continue;
        };
        if bytes(&output) < LEAST_BYTES {
            continue;
        }
        if is_cheap(&call.module) {
            cheap.insert(&call.module);
        } else if PRODUCTS.contains(&kind(&call.module))
            && into_cheap.contains(&output)
            && bytes(&output) >= WIDER * bytes(&input)
        {
            wide.insert(&call.module);
        }
    }
    // Those of which something goes: an activation that overwrites a product's result is of use only
    // together with the product.
    let draft = Draft::new(model, Pace::default());
    let useful = |names: Vec<String>| -> Vec<String> {
        let (found, _) = find(&draft, &names);
        let again = found.again();
        let calls = again
            .iter()
            .filter_map(|&call| model.calls.get(call as usize));
        let used: HashSet<&str> = calls.map(|call| call.module.as_str()).collect();
        in_order(model, |name| used.contains(name))
    };
    useful(in_order(model, |name| {
        cheap.contains(name) || wide.contains(name)
    }))
}

/// Modules that only help together, what they give up and what that costs.
struct Unit {
    modules: Vec<String>,
    /// What is no longer kept.
    bytes: u64,
    /// What is computed again.
    load: Load,
    /// Where the first of it is made.
    place: usize,
}

/// The parts of `modules`, each with those that work in place on its result.
fn units_of(draft: &Draft<'_>, modules: &[String]) -> Vec<Unit> {
    let (found, positions) = find(draft, modules);
    let model = draft.model;
    let name = |call: u32| {
        model
            .calls
            .get(call as usize)
            .map_or("", |call| &call.module)
    };
    let mut units: HashMap<&str, (Unit, HashSet<u32>)> = HashMap::default();
    for one in &found.dropped {
        let Some(tensor) = draft.template.tensors.get(one.number as usize) else {
            continue;
        };
        let place = positions.frees.get(&one.number).copied().unwrap_or(0);
        let (unit, calls) = units.entry(name(one.call)).or_insert_with(|| {
            let unit = Unit {
                modules: vec![name(one.call).to_owned()],
                bytes: 0,
                load: Load::default(),
                place,
            };
            (unit, HashSet::default())
        });
        unit.bytes += tensor.bytes;
        // What is made first is freed last.
        unit.place = unit.place.max(place);
        calls.insert(one.call);
        let again = one.users.iter().filter(|user| found.through.contains(user));
        for &user in again {
            calls.insert(user);
            if !unit.modules.iter().any(|known| known == name(user)) {
                unit.modules.push(name(user).to_owned());
            }
        }
    }
    units
        .into_values()
        .map(|(mut unit, calls)| {
            for call in calls {
                unit.load.add(load(draft, call));
            }
            unit
        })
        .collect()
}

/// Computing a call again.
fn load(draft: &Draft<'_>, call: u32) -> Load {
    let mut load = draft.forward_load(call);
    load.add(Load {
        lever: HOST_NS,
        ..Load::default()
    });
    load
}

/// Names of called modules that are wanted, in the order of the calls.
fn in_order(model: &Model, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut seen = HashSet::default();
    model
        .calls
        .iter()
        .map(|call| call.module.as_str())
        .filter(|name| wanted(name) && seen.insert(*name))
        .map(str::to_owned)
        .collect()
}

/// A saved tensor that is computed again.
struct Dropped {
    number: u32,
    /// The call of the chosen module that it follows from.
    call: u32,
    /// The calls that use it, whose backward passes need it.
    users: Vec<u32>,
}

/// What the lever changes.
#[derive(Default)]
struct Found {
    dropped: Vec<Dropped>,
    /// Arguments of modules of several operators that nobody saved before, and their calls.
    held: Vec<(u32, u32)>,
    /// Calls whose result is such an argument, and that are computed again instead.
    through: Vec<u32>,
}

impl Found {
    /// The calls that are computed again.
    fn again(&self) -> HashSet<u32> {
        let dropped = self.dropped.iter().map(|one| one.call);
        dropped.chain(self.through.iter().copied()).collect()
    }
}

/// What is no longer saved when the results of `modules` are computed again.
fn find(draft: &Draft<'_>, modules: &[String]) -> (Found, blocks::Positions) {
    let (model, template) = (draft.model, &draft.template);
    let chosen: HashSet<&str> = modules.iter().map(String::as_str).collect();
    let is_chosen = |call: u32| {
        let call = model.calls.get(call as usize);
        call.is_some_and(|call| chosen.contains(call.module.as_str()))
    };
    let overwriting: HashSet<&str> = model
        .modules
        .iter()
        .filter(|module| module.inplace == Some(true))
        .map(|module| module.name.as_str())
        .collect();
    // Who is given a tensor, and who hands out what it was given.
    let mut users: HashMap<u32, Vec<u32>> = HashMap::default();
    let mut overwritten: HashSet<u32> = HashSet::default();
    let mut results: HashMap<u32, u32> = HashMap::default();
    for (number, call) in model.calls.iter().enumerate().skip(1) {
        let number = number as u32;
        for &input in &call.inputs {
            users.entry(input).or_default().push(number);
            if call.outputs.contains(&input)
                && !is_chosen(number)
                && overwriting.contains(call.module.as_str())
            {
                overwritten.insert(input);
            }
        }
        if is_chosen(number) {
            for &output in &call.outputs {
                // In place, the tensor was made by the module before.
                results.entry(output).or_insert(number);
            }
        }
    }
    let (_, positions) = blocks::find(draft, &[]);
    // The result that a cast or a copy inside of a call was made of.
    let mut given: HashMap<u32, Vec<u32>> = HashMap::default();
    // Results of chosen modules, by the call around them: a product with one follows from it.
    let mut factors: HashMap<u32, Vec<u32>> = HashMap::default();
    for (&result, &call) in &results {
        for &user in users.get(&result).into_iter().flatten() {
            given.entry(user).or_default().push(result);
        }
        if let Some(around) = model.calls.get(call as usize) {
            factors.entry(around.parent).or_default().push(result);
        }
    }
    let bytes = |number: u32| {
        let tensor = template.tensors.get(number as usize);
        tensor.map_or(0, |tensor| tensor.bytes)
    };
    // Calls with operators of their own that work in place (`out += identity`): what they hand out
    // is no longer what a module in them made.
    let changing: HashSet<u32> = model
        .work
        .iter()
        .filter(|work| work.phase == Phase::Forward)
        .filter(|work| {
            let op = model.ops.get(work.op as usize);
            op.is_some_and(|op| op.ends_with('_'))
        })
        .map(|work| work.call)
        .collect();
    let changed_around = |number: u32, call: u32| {
        let around = model.calls.get(call as usize).map_or(0, |call| call.parent);
        changing.contains(&around)
            && model
                .calls
                .get(around as usize)
                .is_some_and(|around| around.outputs.contains(&number))
    };
    let mut found = Found::default();
    let mut made: HashMap<u32, usize> = HashMap::default();
    for (at, event) in template.body.iter().enumerate() {
        let Event::Alloc(number) = *event else {
            continue;
        };
        let Some(tensor) = template.tensors.get(number as usize) else {
            continue;
        };
        made.insert(number, at);
        if tensor.phase != Phase::Forward
            || !positions.waits(number, at)
            || tensor.bytes < LEAST_BYTES
            || !matches!(
                tensor.category,
                Category::Activation | Category::Temporary | Category::Unknown
            )
        {
            continue;
        }
        let op = model.op(tensor);
        let same_size =
            |&&other: &&u32| bytes(other) == tensor.bytes || bytes(other) == 2 * tensor.bytes;
        let source = if is_chosen(tensor.call) {
            // Its result, or what it keeps inside.
            (!overwritten.contains(&number) && !changed_around(number, tensor.call))
                .then_some((tensor.call, number))
        } else if matches!(op, "aten::_to_copy" | "aten::clone") {
            let results_given = given.get(&tensor.call).into_iter().flatten();
            let result = results_given.into_iter().find(same_size).copied();
            result.and_then(|result| Some((*results.get(&result)?, number)))
        } else if op == "aten::mul" {
            let inside = factors.get(&tensor.call).into_iter().flatten();
            let factor = inside.into_iter().find(same_size).copied();
            factor.and_then(|factor| Some((*results.get(&factor)?, number)))
        } else {
            None
        };
        if let Some((call, number)) = source {
            let mut by = users.get(&number).cloned().unwrap_or_default();
            // A call that hands its argument on has blocks around it that do not use it themselves.
            by.retain(|&user| !is_chosen(user) || user != call);
            by.push(tensor.call);
            // Modules that work on it in place do so again.
            found.through.extend(by.iter().copied().filter(|&user| {
                let call = model.calls.get(user as usize);
                is_chosen(user) && call.is_some_and(|call| call.outputs.contains(&number))
            }));
            found.dropped.push(Dropped {
                number,
                call,
                users: by,
            });
        }
    }
    let mut several: Vec<u32> = found
        .dropped
        .iter()
        .filter(|one| {
            let call = model.calls.get(one.call as usize);
            call.is_some_and(|call| !call.outputs.contains(&one.number))
                && template
                    .tensors
                    .get(one.number as usize)
                    .is_some_and(|tensor| tensor.call == one.call)
        })
        .map(|one| one.call)
        .collect();
    several.dedup();
    for number in several {
        let Some(call) = model.calls.get(number as usize) else {
            continue;
        };
        let waits = |input: u32| {
            let made = made.get(&input).copied().unwrap_or(0);
            positions.waits(input, made)
        };
        for &input in call.inputs.iter().filter(|input| !waits(**input)) {
            match results.get(&input) {
                Some(&before) => found.through.push(before),
                None => found.held.push((input, number)),
            }
        }
    }
    (found, positions)
}
