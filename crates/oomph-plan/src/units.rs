//! Which modules a lever could be for, and in which order that pays.
//!
//! Found by structure: the repeated parts of a model (children of `ModuleList`, `Sequential` and
//! their like that have parts of their own; attributes of one class that have), and the parts of those.

use std::collections::{BTreeSet, HashMap, HashSet};

use oomph_run::record::is_function;

use crate::blocks::{Block, find, roots};
use crate::draft::Draft;
use crate::model::Model;

/// Ratios of bytes to time this close are one: then the order of the forward pass decides. What
/// comes first is needed last, when other activations are gone already.
const STEP: f64 = 1.15;
/// The part of the host's time that single modules are thought to cost: it mostly hides behind the GPU's.
pub(crate) const HOST_SHARE: f64 = 0.25;
/// Less is not worth a change.
const LEAST_BYTES: u64 = 1 << 20;

/// Modules in the order in which giving up their activations pays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Those of each decision.
    steps: Vec<Vec<String>>,
}

impl Sequence {
    /// The modules of each decision.
    pub(crate) const fn new(steps: Vec<Vec<String>>) -> Self {
        Self { steps }
    }

    /// Leaves modules out.
    pub(crate) fn without(&mut self, left: impl Fn(&str) -> bool) {
        for step in &mut self.steps {
            step.retain(|module| !left(module));
        }
        self.steps.retain(|step| !step.is_empty());
    }

    /// How long it is.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is nothing to choose from.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The modules of the first `count` decisions, in the order of the forward pass; those inside
    /// of others among them are left out.
    pub fn prefix(&self, model: &Model, count: usize) -> Vec<String> {
        let chosen: HashSet<&str> = self
            .steps
            .iter()
            .take(count)
            .flatten()
            .map(String::as_str)
            .collect();
        let mut seen = HashSet::new();
        model
            .calls
            .iter()
            .map(|call| call.module.as_str())
            .filter(|module| chosen.contains(module))
            .filter(|module| !ancestors(module).any(|above| chosen.contains(above)))
            .filter(|module| seen.insert(*module))
            .map(str::to_owned)
            .collect()
    }
}

/// The names around a module's.
pub(crate) fn ancestors(module: &str) -> impl Iterator<Item = &str> {
    let mut rest = module;
    std::iter::from_fn(move || {
        rest = rest.rsplit_once('.')?.0;
        Some(rest)
    })
}

/// The module that holds a module.
fn holder(module: &str) -> Option<&str> {
    ancestors(module).next()
}

/// The repeated blocks of a model, outermost ones only.
pub fn repeated(model: &Model) -> Vec<String> {
    let called = called(model);
    let mut children: HashMap<&str, u32> = HashMap::new();
    let mut containers: HashSet<&str> = HashSet::new();
    for module in &model.modules {
        if module.container {
            containers.insert(&module.name);
        }
        if let Some((above, _)) = module.name.rsplit_once('.') {
            *children.entry(above).or_default() += 1;
        }
    }
    let has_parts = |name: &str| children.contains_key(name);
    let mut blocks_in: HashMap<&str, u32> = HashMap::new();
    for module in &model.modules {
        if let Some((above, _)) = module.name.rsplit_once('.')
            && containers.contains(above)
            && has_parts(&module.name)
        {
            *blocks_in.entry(above).or_default() += 1;
        }
    }
    let mut found: Vec<String> = Vec::new();
    let mut known: HashSet<&str> = HashSet::new();
    for module in &model.modules {
        let name = module.name.as_str();
        let is_block = name.rsplit_once('.').is_some_and(|(above, _)| {
            blocks_in.get(above).copied().unwrap_or(0) >= 2 && has_parts(name)
        });
        if is_block && called.contains(name) && !ancestors(name).any(|above| known.contains(above))
        {
            known.insert(name);
            found.push(name.to_owned());
        }
    }
    found
}

/// The repeated blocks, and modules with parts outside of them and not around them whose class occurs more than
/// once, outermost ones only: networks written with an attribute for each block (`down1`, `down2`, …), of a class of their own
/// or a `Sequential`.
fn blocks(model: &Model) -> Vec<String> {
    let mut found = repeated(model);
    found.extend(alike(model, &found));
    found
}

fn alike(model: &Model, blocks: &[String]) -> Vec<String> {
    let called = called(model);
    let with_parts = with_parts(model);
    let around: HashSet<&str> = blocks.iter().flat_map(|name| ancestors(name)).collect();
    let mut known: HashSet<&str> = blocks.iter().map(String::as_str).collect();
    let candidates: Vec<_> = model
        .modules
        .iter()
        .filter(|module| {
            let name = module.name.as_str();
            name.contains('.')
                && with_parts.contains(name)
                && called.contains(name)
                && !around.contains(name)
                && !known.contains(name)
                && !ancestors(name).any(|above| known.contains(above))
        })
        .collect();
    let mut count: HashMap<&str, u32> = HashMap::new();
    for module in &candidates {
        *count.entry(&module.kind).or_default() += 1;
    }
    let mut found = Vec::new();
    for module in candidates {
        let name = module.name.as_str();
        if count
            .get(module.kind.as_str())
            .is_some_and(|&count| count >= 2)
            && !ancestors(name).any(|above| known.contains(above))
        {
            known.insert(name);
            found.push(name.to_owned());
        }
    }
    found
}

/// The repeated blocks inside of blocks, in containers of those.
fn inner(model: &Model, blocks: &[String]) -> Vec<String> {
    let blocks: HashSet<&str> = blocks.iter().map(String::as_str).collect();
    let containers = model.modules.iter().filter(|module| module.container);
    let containers: HashSet<&str> = containers.map(|module| module.name.as_str()).collect();
    let with_parts = with_parts(model);
    let called = called(model);
    let in_a_block = |name: &str| {
        let mut above = ancestors(name)
            .skip_while(|above| containers.contains(above) && !blocks.contains(above));
        above.next().is_some_and(|block| blocks.contains(block))
    };
    let found: Vec<&str> = (model.modules.iter())
        .map(|module| module.name.as_str())
        .filter(|name| {
            holder(name).is_some_and(|holder| containers.contains(holder))
                && with_parts.contains(name)
                && called.contains(name)
                && in_a_block(name)
        })
        .collect();
    let mut count: HashMap<Option<&str>, u32> = HashMap::new();
    for name in &found {
        *count.entry(holder(name)).or_default() += 1;
    }
    let several = |name: &&str| count.get(&holder(name)).is_some_and(|&count| count >= 2);
    found
        .into_iter()
        .filter(several)
        .map(str::to_owned)
        .collect()
}

/// The names of modules that were called.
fn called(model: &Model) -> HashSet<&str> {
    let names = model.calls.iter().map(|call| call.module.as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// The names of modules that have parts.
pub(crate) fn with_parts(model: &Model) -> HashSet<&str> {
    let names = model.modules.iter();
    names
        .filter_map(|module| module.name.rsplit_once('.').map(|(above, _)| above))
        .collect()
}

/// The parts of blocks that are modules with parts of their own.
fn parts(model: &Model, blocks: &[String]) -> Vec<String> {
    let blocks: HashSet<&str> = blocks.iter().map(String::as_str).collect();
    let with_parts = with_parts(model);
    let called = called(model);
    model
        .modules
        .iter()
        .map(|module| module.name.as_str())
        .filter(|name| with_parts.contains(name) && called.contains(name))
        .filter(|name| {
            name.rsplit_once('.')
                .is_some_and(|(above, _)| blocks.contains(above))
        })
        .map(str::to_owned)
        .collect()
}

/// Functions outside of modules that give up most when they are computed again: of what their calls save, all but what one call
/// saves, which then is there again. None is inside of another.
fn functions(draft: &Draft<'_>) -> Vec<String> {
    let model = draft.model;
    let names: BTreeSet<&str> = (model.calls.iter())
        .map(|call| call.module.as_str())
        .filter(|name| is_function(name))
        .collect();
    let mut gains: Vec<(u64, &str)> = Vec::new();
    for name in names {
        let (calls, _) = find(draft, &[name.to_owned()]);
        let saved = calls.iter().map(|block| saved_bytes(draft, block));
        let (all, largest) = saved.fold((0, 0), |(all, largest), bytes| {
            (all + bytes, bytes.max(largest))
        });
        if all - largest >= LEAST_BYTES {
            gains.push((all - largest, name));
        }
    }
    gains.sort_by(|a, b| b.cmp(a));
    let mut chosen: Vec<String> = Vec::new();
    for (_, name) in gains {
        let around = |outer: &str, inner: &str| {
            let roots = roots(model, &[outer.to_owned()]);
            let mut calls = roots.iter().zip(&model.calls);
            calls.any(|(root, call)| *root != 0 && call.module == inner)
        };
        if !(chosen.iter()).any(|other| around(other, name) || around(name, other)) {
            chosen.push(name.to_owned());
        }
    }
    chosen
}

/// What a block keeps inside for the backward pass, in bytes.
fn saved_bytes(draft: &Draft<'_>, block: &Block) -> u64 {
    let call = draft.model.calls.get(block.call as usize);
    let is_result = |number: &u32| call.is_some_and(|call| call.outputs.contains(number));
    let saved = block.saved.iter();
    saved
        .filter(|number| !is_result(number) && !block.casts.contains(number))
        .filter_map(|&number| draft.template.tensors.get(number as usize))
        .map(|tensor| tensor.bytes)
        .sum()
}

/// Blocks and their parts, and functions, those first that give up most bytes for the time of computing them again.
pub(crate) fn most_for_their_time(draft: &Draft<'_>) -> Sequence {
    let mut worth = with_their_parts(draft, &blocks(draft.model));
    worth.extend(self::worth(draft, &functions(draft)));
    in_order(worth)
}

/// The same where blocks lie in blocks (layers in the stages of a network), with the inner ones instead of those around them: what is
/// there at a time while one is computed again is less. Nothing where none does.
pub(crate) fn finer(draft: &Draft<'_>) -> Sequence {
    let outer = blocks(draft.model);
    let inner = inner(draft.model, &outer);
    if inner.is_empty() {
        return Sequence::default();
    }
    let around: HashSet<&str> = inner.iter().flat_map(|name| ancestors(name)).collect();
    let rest = outer.iter().filter(|name| !around.contains(name.as_str()));
    let blocks: Vec<String> = inner.iter().chain(rest).cloned().collect();
    in_order(with_their_parts(draft, &blocks))
}

fn with_their_parts(draft: &Draft<'_>, blocks: &[String]) -> Vec<Unit> {
    let mut found = worth(draft, blocks);
    found.extend(worth(draft, &parts(draft.model, blocks)));
    found
}

fn in_order(mut worth: Vec<Unit>) -> Sequence {
    worth.sort_by(|a, b| b.class.cmp(&a.class).then(a.place.cmp(&b.place)));
    let mut taken: HashSet<String> = HashSet::new();
    let mut sequence = Sequence::default();
    for unit in worth {
        if !ancestors(&unit.module).any(|above| taken.contains(above)) {
            taken.insert(unit.module.clone());
            sequence.steps.push(vec![unit.module]);
        }
    }
    sequence
}

/// The blocks from the first on: what leaves them has the longest time to come back.
pub(crate) fn first_to_last(draft: &Draft<'_>) -> Sequence {
    let mut worth = worth(draft, &blocks(draft.model));
    worth.sort_by_key(|unit| unit.place);
    Sequence {
        steps: worth.into_iter().map(|unit| vec![unit.module]).collect(),
    }
}

/// The last blocks first: their weights can be brought while the others compute.
pub(crate) fn last_to_first(model: &Model) -> Sequence {
    let mut modules = with_weights(model, |_| true);
    modules.reverse();
    Sequence {
        steps: modules.into_iter().map(|module| vec![module]).collect(),
    }
}

/// Whether a module is `block`, or a part of it.
pub(crate) fn is_inside(module: &str, block: &str) -> bool {
    let rest = module.strip_prefix(block);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The repeated blocks with weights whose owner is `chosen`; without such blocks, the layers with weights that are worth a copy.
pub(crate) fn with_weights(model: &Model, chosen: impl Fn(&str) -> bool) -> Vec<String> {
    let mut own: HashMap<&str, u64> = HashMap::new();
    for (module, sizes) in &model.parameter_sizes {
        if chosen(module) {
            *own.entry(module).or_default() += sizes.iter().sum::<u64>();
        }
    }
    let mut blocks = repeated(model);
    blocks.retain(|block| own.keys().any(|owner| is_inside(owner, block)));
    if blocks.is_empty() {
        let layers = model.modules.iter().filter(|module| {
            own.get(module.name.as_str()).copied().unwrap_or(0) >= LEAST_BYTES
                && module.name.contains('.')
        });
        blocks = layers.map(|module| module.name.clone()).collect();
    }
    blocks
}

/// Bytes for a nanosecond, in steps.
pub(crate) fn class(bytes: u64, time: f64) -> i64 {
    ((bytes as f64 / time.max(1.0)).ln() / STEP.ln()).round() as i64
}

struct Unit {
    module: String,
    /// Bytes for a nanosecond, in steps.
    class: i64,
    /// Where its forward begins.
    place: usize,
}

fn worth(draft: &Draft<'_>, modules: &[String]) -> Vec<Unit> {
    let (found, _) = find(draft, modules);
    let mut units: HashMap<&str, (u64, f64, usize)> = HashMap::new();
    for block in &found {
        let Some(call) = draft.model.calls.get(block.call as usize) else {
            continue;
        };
        let bytes = saved_bytes(draft, block);
        let entry = units
            .entry(&call.module)
            .or_insert((0, 0.0, block.forward.start));
        entry.0 += bytes;
        entry.1 += draft.forward_load(block.call).busy;
    }
    units
        .into_iter()
        .filter(|(_, (bytes, ..))| *bytes >= LEAST_BYTES)
        .map(|(module, (bytes, time, place))| Unit {
            module: module.to_owned(),
            class: class(bytes, time),
            place,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Call, Event, Tensor};
    use oomph_run::record::Module;
    use oomph_trace::{Category, Phase};

    /// A U-Net whose levels are a `Sequential` each, held by attributes.
    #[test]
    fn sequentials_by_attribute_are_blocks() {
        let modules = [
            ("Net", "Net"),
            ("Net.down1", "Sequential"),
            ("Net.down1.0", "Conv2d"),
            ("Net.down2", "Sequential"),
            ("Net.down2.0", "Conv2d"),
            ("Net.head", "Conv2d"),
        ];
        let mut model = Model {
            calls: vec![Call::default()],
            ..Model::default()
        };
        for (name, kind) in modules {
            model.modules.push(Module {
                name: name.to_owned(),
                kind: kind.to_owned(),
                container: kind == "Sequential",
                ..Module::default()
            });
            model.calls.push(Call {
                module: name.to_owned(),
                ..Call::default()
            });
        }
        assert_eq!(blocks(&model), ["Net.down1", "Net.down2"]);
    }

    /// Layers in the stages of a network: whether a list of layers is called or not.
    #[test]
    fn layers_in_stages_are_blocks_in_blocks() {
        let mut model = Model {
            calls: vec![Call::default()],
            ..Model::default()
        };
        let mut add = |name: &str, container: bool, called: bool| {
            model.modules.push(Module {
                name: name.to_owned(),
                container,
                ..Module::default()
            });
            if called {
                model.calls.push(Call {
                    module: name.to_owned(),
                    ..Call::default()
                });
            }
        };
        add("Net", false, true);
        add("Net.stages", true, false);
        for stage in 0..2 {
            add(&format!("Net.stages.{stage}"), false, true);
            add(&format!("Net.stages.{stage}.layers"), true, stage == 1);
            for layer in 0..2 {
                add(&format!("Net.stages.{stage}.layers.{layer}"), false, true);
                add(
                    &format!("Net.stages.{stage}.layers.{layer}.fc"),
                    false,
                    true,
                );
            }
            // One alone is no repetition, and a norm has no parts.
            add(&format!("Net.stages.{stage}.ends"), true, true);
            add(&format!("Net.stages.{stage}.ends.0"), false, true);
            add(&format!("Net.stages.{stage}.ends.0.fc"), false, true);
            add(&format!("Net.stages.{stage}.norm"), false, true);
        }
        let outer = blocks(&model);
        assert_eq!(outer, ["Net.stages.0", "Net.stages.1"]);
        let layers =
            [0, 1].map(|stage| [0, 1].map(|layer| format!("Net.stages.{stage}.layers.{layer}")));
        assert_eq!(inner(&model, &outer), layers.concat());
    }

    /// `solve()` calls `step()` four times, which calls `slope()`; each keeps as much.
    #[test]
    fn functions_whose_calls_keep_only_a_part_each() {
        let mut model = Model {
            trains: true,
            calls: vec![Call::default()],
            ops: vec!["aten::tanh".to_owned()],
            ..Model::default()
        };
        let mut call = |module: &str, parent: u32| {
            model.calls.push(Call {
                module: module.to_owned(),
                parent,
                ..Call::default()
            });
            model.calls.len() as u32 - 1
        };
        let solve = call("solve()", 0);
        let inner: Vec<u32> = (0..4)
            .map(|_| {
                let step = call("step()", solve);
                call("slope()", step)
            })
            .collect();
        let mut tensor = |bytes: u64, call: u32, phase: Phase| {
            model.template.tensors.push(Tensor {
                bytes,
                stream: 0,
                category: Category::Activation,
                phase,
                call,
                op: 0,
                scope: 0,
                batched: false,
            });
            model.template.tensors.len() as u32 - 1
        };
        let (mut body, mut kept) = (Vec::new(), Vec::new());
        for &slope in &inner {
            // `step()` keeps a little of its own.
            for (bytes, call) in [(4 << 20, slope), (1 << 20, slope - 1)] {
                let number = tensor(bytes, call, Phase::Forward);
                body.push(Event::Alloc(number));
                kept.push((number, call));
            }
        }
        for &(number, call) in kept.iter().rev() {
            let gradient = tensor(1 << 20, call, Phase::Backward);
            body.extend([
                Event::Alloc(gradient),
                Event::Free(number),
                Event::Free(gradient),
            ]);
        }
        model.template.body = body;
        let draft = Draft::new(&model, crate::draft::Pace::default());
        assert_eq!(functions(&draft), ["step()"]);
    }

    #[test]
    fn ancestors_of_a_name() {
        let found: Vec<&str> = ancestors("GPT.blocks.0.mlp").collect();
        assert_eq!(found, ["GPT.blocks.0", "GPT.blocks", "GPT"]);
    }
}
