//! Calls of chosen modules in a template: where their forward and backward lie, and what their
//! forward leaves for the backward pass.

use rustc_hash::FxHashMap as HashMap;

use oomph_trace::{Category, Phase};

use crate::draft::Draft;
use crate::model::{Event, Model, Template, Tensor};

/// One call of a chosen module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Block {
    /// The call's number.
    pub(crate) call: u32,
    /// Positions of its forward in the body: from its first allocation to the next one elsewhere.
    pub(crate) forward: std::ops::Range<usize>,
    /// Positions of its backward; empty if it has none.
    pub(crate) backward: std::ops::Range<usize>,
    /// Tensors of its forward that wait for the backward pass.
    pub(crate) saved: Vec<u32>,
    /// Those of `saved` that are weights in another precision, which autocast keeps until the
    /// forward pass is over.
    pub(crate) casts: Vec<u32>,
}

/// Positions in the body.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    /// Where each tensor is freed in the round that made it.
    pub(crate) frees: HashMap<u32, usize>,
    /// Allocations of backward passes, in order. A step may have several passes, as where a script
    /// accumulates gradients or trains two networks.
    backward: Vec<usize>,
    /// Where the body ends.
    end: usize,
}

impl Positions {
    /// Where the backward pass after `at` begins to allocate.
    pub(crate) fn backward_after(&self, at: usize) -> usize {
        let next = self.backward.partition_point(|&backward| backward < at);
        self.backward.get(next).copied().unwrap_or(self.end)
    }

    /// Whether what was made at `at` is there when the backward pass after it begins.
    pub(crate) fn waits(&self, number: u32, at: usize) -> bool {
        let freed = self.frees.get(&number);
        freed.is_some_and(|&freed| freed >= self.backward_after(at))
    }
}

/// The calls of `modules`, outermost ones only, and the positions of everything.
pub(crate) fn find(draft: &Draft<'_>, modules: &[String]) -> (Vec<Block>, Positions) {
    let (model, template) = (draft.model, &draft.template);
    let chosen = roots(model, modules);
    let root = |tensor: &Tensor| chosen.get(tensor.call as usize).copied().unwrap_or(0);
    let mut blocks: HashMap<u32, Block> = HashMap::default();
    let mut positions = Positions {
        end: template.body.len(),
        ..Positions::default()
    };
    // The block whose forward the last allocation was in.
    let mut open = 0;
    for (at, event) in template.body.iter().enumerate() {
        match *event {
            Event::Alloc(number) => {
                let Some(tensor) = template.tensors.get(number as usize) else {
                    continue;
                };
                let call = root(tensor);
                if tensor.phase == Phase::Backward {
                    positions.backward.push(at);
                }
                let forward = tensor.phase == Phase::Forward;
                if open != 0
                    && !(forward && call == open)
                    && let Some(block) = blocks.get_mut(&open)
                {
                    block.forward.end = at;
                    open = 0;
                }
                if call == 0 {
                    continue;
                }
                let block = blocks.entry(call).or_insert_with(|| Block {
                    call,
                    forward: at..at,
                    ..Block::default()
                });
                match tensor.phase {
                    Phase::Forward => open = call,
                    Phase::Backward if block.backward.is_empty() => block.backward = at..at + 1,
                    Phase::Backward => block.backward.end = at + 1,
                    _ => {}
                }
            }
            Event::Free(number) => {
                positions.frees.insert(number, at);
            }
            Event::FreePrevious(_) | Event::EmptyCache => {}
        }
    }
    let mut blocks: Vec<Block> = blocks
        .into_values()
        .filter(|block| !block.forward.is_empty() && !block.backward.is_empty())
        .collect();
    blocks.sort_by_key(|block| block.forward.start);
    for block in &mut blocks {
        fill(model, template, &positions, &root, block);
    }
    (blocks, positions)
}

/// What a block's forward leaves for the backward pass.
fn fill(
    model: &Model,
    template: &Template,
    positions: &Positions,
    root: &impl Fn(&Tensor) -> u32,
    block: &mut Block,
) {
    let events = template.body.get(block.forward.clone()).unwrap_or_default();
    for (at, event) in (block.forward.start..).zip(events) {
        let Event::Alloc(number) = *event else {
            continue;
        };
        let Some(tensor) = template.tensors.get(number as usize) else {
            continue;
        };
        if !positions.waits(number, at)
            || root(tensor) != block.call
            || !matches!(
                tensor.category,
                Category::Activation | Category::Temporary | Category::Unknown
            )
        {
            continue;
        }
        block.saved.push(number);
        if is_cast_of_weight(model, tensor) {
            block.casts.push(number);
        }
    }
}

/// Whether a tensor is a parameter of its module in another precision.
pub(crate) fn is_cast_of_weight(model: &Model, tensor: &Tensor) -> bool {
    if tensor.batched || model.op(tensor) != "aten::_to_copy" {
        return false;
    }
    model
        .calls
        .get(tensor.call as usize)
        .and_then(|call| model.parameter_sizes.get(&call.module))
        .is_some_and(|sizes| sizes.contains(&(tensor.bytes * 2)))
}

/// For each call the outermost call of a chosen module that it is or lies in; 0 for none.
pub(crate) fn roots(model: &Model, modules: &[String]) -> Vec<u32> {
    let mut roots = vec![0; model.calls.len()];
    for (number, call) in model.calls.iter().enumerate().skip(1) {
        let above = roots.get(call.parent as usize).copied().unwrap_or(0);
        if let Some(slot) = roots.get_mut(number) {
            *slot = if above != 0 {
                above
            } else if modules.contains(&call.module) {
                number as u32
            } else {
                0
            };
        }
    }
    roots
}

/// Until where the forward pass needs a tensor that the backward pass does not.
#[derive(Debug)]
pub(crate) struct Uses<'a> {
    model: &'a Model,
    /// The position after the last allocation of each call.
    ends: HashMap<u32, usize>,
    /// The latest end of a call that takes a tensor.
    taken: HashMap<u32, usize>,
}

impl<'a> Uses<'a> {
    pub(crate) fn new(draft: &Draft<'a>) -> Self {
        let (model, template) = (draft.model, &draft.template);
        let above = |call: u32| model.calls.get(call as usize).map_or(0, |call| call.parent);
        let mut ends: HashMap<u32, usize> = HashMap::default();
        for (at, event) in template.body.iter().enumerate() {
            let Event::Alloc(number) = *event else {
                continue;
            };
            let tensor = template.tensors.get(number as usize);
            let Some(tensor) = tensor.filter(|tensor| tensor.phase == Phase::Forward) else {
                continue;
            };
            let calls = std::iter::successors(Some(tensor.call), |&call| Some(above(call)));
            for call in calls.take_while(|&call| call != 0) {
                ends.insert(call, at + 1);
            }
        }
        let mut taken: HashMap<u32, usize> = HashMap::default();
        for (number, call) in (0..).zip(&model.calls) {
            let Some(&end) = ends.get(&number) else {
                continue;
            };
            for &input in &call.inputs {
                let until = taken.entry(input).or_default();
                *until = (*until).max(end);
            }
        }
        Self { model, ends, taken }
    }

    /// Where it is let go, in a block that ends at `end`: a result when those are done that take it as
    /// an argument; what a module makes for itself when the module is done, as its variables are.
    pub(crate) fn end(&self, number: u32, tensor: &Tensor, block: &Block) -> usize {
        let made_by = |call: u32| {
            let call = self.model.calls.get(call as usize);
            call.filter(|call| call.outputs.contains(&number))
        };
        let mut owner = tensor.call;
        let is_result = made_by(owner).is_some();
        while owner != block.call
            && let Some(call) = made_by(owner)
        {
            owner = call.parent;
        }
        let taken = self.taken.get(&number).filter(|_| is_result);
        let end = taken.or_else(|| self.ends.get(&owner)).copied();
        end.unwrap_or(block.forward.end)
            .clamp(block.forward.start, block.forward.end)
    }
}

/// Changes to a body: what to put before each position, and what to drop.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    before: HashMap<usize, Vec<Event>>,
    dropped: HashMap<usize, Option<Event>>,
}

impl Edits {
    /// Puts an event before the one at `at`, after those that were put there.
    pub(crate) fn insert(&mut self, at: usize, event: Event) {
        self.before.entry(at).or_default().push(event);
    }

    /// Drops the event at `at`.
    pub(crate) fn drop(&mut self, at: usize) {
        self.dropped.insert(at, None);
    }

    /// Puts another event in the place of the one at `at`.
    pub(crate) fn replace(&mut self, at: usize, event: Event) {
        self.dropped.insert(at, Some(event));
    }

    /// The changed list.
    pub(crate) fn apply(mut self, events: &[Event]) -> Vec<Event> {
        let mut out = Vec::with_capacity(events.len() + self.before.len() * 4);
        for (at, &event) in events.iter().enumerate() {
            out.extend(self.before.remove(&at).unwrap_or_default());
            match self.dropped.get(&at) {
                None => out.push(event),
                Some(Some(other)) => out.push(*other),
                Some(None) => {}
            }
        }
        out.extend(self.before.remove(&events.len()).unwrap_or_default());
        out
    }
}

/// A copy of a tensor that the backward pass makes.
pub(crate) fn again(template: &mut Template, number: u32) -> Option<u32> {
    let tensor = Tensor {
        phase: Phase::Backward,
        ..*template.tensors.get(number as usize)?
    };
    template.tensors.push(tensor);
    Some(template.tensors.len() as u32 - 1)
}
