//! What is made again and again: buffers that are joined longer and longer, blocks that a loop piles up, and
//! generations of the same sizes.

use std::collections::{HashMap, HashSet};

use oomph_allocator::program::NO_ROW;
use oomph_trace::{Category, Phase, StackId, StringId};

use crate::facts::{Facts, Live};

/// How many sizes a buffer must have had by then to be known by them alone.
const SIZES: usize = 4;
/// By how much at most a buffer grows with one token or batch after a longer beginning.
const LITTLE: f64 = 1.1;
/// A generation has at least this many blocks: a model has many parameters.
const MIN_BLOCKS: usize = 8;
/// Iterations of a loop from which on its blocks are a pile: models call a module a few times on purpose.
const ITERATIONS: usize = 16;
/// Parts of a step from which on their graphs are a pile, if each ends in a number of its own.
const PARTS: usize = 4;
/// Bytes of a number: the least that the allocator gives.
const NUMBER: u64 = 512;
/// Results that a line of a loop makes in a row, at most.
const IN_A_ROW: usize = 4;
/// Operators whose results are gone again between two results of a loop, from which on the loop computes.
const COMPUTED: usize = 3;

/// A buffer that a line joins with something new again and again, each time into a longer one.
#[derive(Debug, Clone)]
pub(crate) struct Join {
    /// The sizes that it had.
    pub sizes: Vec<u64>,
    /// Whether a module's forward does it.
    pub in_module: bool,
    /// Whether all of it happened in inference.
    pub inference: bool,
}

impl Join {
    /// Whether it grew often enough to be known by its sizes alone.
    pub(crate) const fn is_steady(&self) -> bool {
        self.sizes.len() >= SIZES
    }

    /// Whether each join adds little to what is there, as a token does to a prompt.
    pub(crate) fn adds_little(&self) -> bool {
        self.sizes
            .iter()
            .zip(self.sizes.iter().skip(1))
            .all(|(&before, &after)| after as f64 <= before as f64 * LITTLE)
    }
}

/// Buffers that are joined longer and longer, by the stack that allocates them.
pub(crate) fn joins(facts: &Facts) -> HashMap<StackId, Join> {
    let mut found: HashMap<StackId, Join> = HashMap::new();
    for allocation in &facts.program.allocations {
        if allocation.alloc_row == NO_ROW || !facts.joins_tensors(allocation) {
            continue;
        }
        let join = found.entry(allocation.stack).or_insert_with(|| Join {
            sizes: Vec::new(),
            in_module: facts.stacks.get(allocation.stack).in_module(),
            inference: true,
        });
        // Layers run the same line for buffers of the same size.
        if join.sizes.last() != Some(&allocation.requested) {
            join.sizes.push(allocation.requested);
        }
        // Without modules, nobody knows that it infers.
        join.inference &= matches!(
            facts.holds(allocation, true).1,
            Phase::Inference | Phase::Setup
        );
    }
    found.retain(|_, join| join.sizes.len() >= 2 && join.sizes.is_sorted());
    found
}

/// Blocks of a loop within one step.
#[derive(Debug, Clone)]
pub(crate) struct Pile {
    /// The blocks.
    pub blocks: HashSet<u32>,
    /// Their bytes.
    pub bytes: u64,
    /// How often the loop ran.
    pub iterations: usize,
}

/// The blocks among some that the same line in the same module made at least [`ITERATIONS`] times.
///
/// Layers of a model run the same lines in modules of their own. Without labels nobody knows the modules,
/// and nothing is found.
pub(crate) fn pile(facts: &Facts, wanted: impl Fn(&Live) -> bool) -> Option<Pile> {
    pile_of(facts, wanted, |blocks| {
        Some(blocks.len()).filter(|&n| n >= ITERATIONS)
    })
}

/// The blocks among some of iterations that each end in a number of their own, as with a loss: a step that sums them could go
/// backward after each. Without such numbers, as in a recurrent network with one loss, all of it is one graph by design.
pub(crate) fn pile_of_sums(facts: &Facts, wanted: impl Fn(&Live) -> bool) -> Option<Pile> {
    // An operator may make several blocks in one call: its output, and what its backward needs beside it.
    let pile = pile_of(facts, wanted, |blocks| {
        let largest = blocks.iter().map(|block| block.bytes).max();
        let calls = blocks.iter().filter(|block| Some(block.bytes) == largest);
        Some(calls.count()).filter(|&calls| calls >= PARTS)
    })?;
    let rows = |block: &&Live| pile.blocks.contains(&block.id);
    let mut rows: Vec<u32> = (facts.live.iter().filter(rows))
        .map(|block| facts.row_of(block))
        .collect();
    rows.sort_unstable();
    let (first, last) = (*rows.first()?, *rows.last()?);
    let mut numbers: HashMap<StackId, usize> = HashMap::new();
    for allocation in &facts.program.allocations {
        let operator = facts.operator_of(allocation);
        // Statistics of a few channels are no sums.
        let normalizes = operator.contains("_norm") && !operator.contains("vector_norm");
        if (first..=last).contains(&allocation.alloc_row)
            && allocation.requested <= NUMBER
            && facts.stacks.get(allocation.stack).user.is_some()
            && !normalizes
        {
            *numbers.entry(allocation.stack).or_default() += 1;
        }
    }
    let most = *numbers.values().max()?;
    if without_modules(facts) {
        // A line of a function runs once for each layer, too: the numbers count the parts.
        return (PARTS..=pile.iterations).contains(&most).then(|| Pile {
            iterations: most,
            ..pile
        });
    }
    // The last part may be about to end in one.
    (most + 1 >= pile.iterations).then_some(pile)
}

/// Whether a job computes in functions alone: nothing was made inside of a module.
fn without_modules(facts: &Facts) -> bool {
    let Some(labels) = &facts.trace.labels else {
        return false;
    };
    facts.program.allocations.iter().all(|allocation| {
        let row = allocation.alloc_row;
        row == NO_ROW || {
            let label = labels.get(row as usize);
            label.module == StringId::EMPTY
                || label.phase != Phase::Forward
                || label.category == Category::Parameter
        }
    })
}

/// Adds to a pile what backward passes made since it began for a graph of their own (`create_graph=True`), in which no line is
/// known: it goes when that graph goes.
pub(crate) fn add_derivatives(facts: &Facts, pile: &mut Pile) {
    let blocks = facts
        .live
        .iter()
        .filter(|block| pile.blocks.contains(&block.id));
    let Some(first) = blocks.map(|block| block.id).min() else {
        return;
    };
    for block in facts.live.iter().filter(|block| block.id > first) {
        if is_derivative(block) && pile.blocks.insert(block.id) {
            pile.bytes += block.bytes;
        }
    }
}

/// Whether a backward pass made a block for a graph of its own.
pub(crate) fn is_derivative(block: &Live) -> bool {
    block.category == Category::Activation && block.phase == Phase::Backward
}

/// The blocks of lines that ran often enough: `iterations` says how often a line ran by its blocks, if that is.
fn pile_of(
    facts: &Facts,
    wanted: impl Fn(&Live) -> bool,
    iterations: impl Fn(&[&Live]) -> Option<usize>,
) -> Option<Pile> {
    let labels = facts.trace.labels.as_ref()?;
    let any_line = without_modules(facts);
    let mut by_line: HashMap<(StackId, StringId, StringId), Vec<&Live>> = HashMap::new();
    for block in facts.live.iter().filter(|block| wanted(block)) {
        let row = facts.row_of(block);
        if row == NO_ROW || block.stack == StackId::NONE {
            continue;
        }
        let label = labels.get(row as usize);
        if label.module != StringId::EMPTY || any_line {
            by_line
                .entry((block.stack, label.module, label.op))
                .or_default()
                .push(block);
        }
    }
    by_line.retain(|_, blocks| iterations(blocks).is_some());
    let bytes_of = |blocks: &[&Live]| blocks.iter().map(|block| block.bytes).sum::<u64>();
    let largest = by_line.values().max_by_key(|blocks| bytes_of(blocks))?;
    Some(Pile {
        iterations: iterations(largest)?,
        bytes: by_line.values().map(|blocks| bytes_of(blocks)).sum(),
        blocks: by_line.values().flatten().map(|block| block.id).collect(),
    })
}

/// The results that one line of the script itself made again and again, each after a computation of its own, where no
/// step is known: the states of a simulation, say. A line that makes weights computes little between two of them.
pub(crate) fn results_of_a_loop(facts: &Facts) -> Option<Pile> {
    let mut by_stack: HashMap<StackId, Vec<&Live>> = HashMap::new();
    for block in &facts.live {
        if facts.row_of(block) != NO_ROW && block.stack != StackId::NONE {
            by_stack.entry(block.stack).or_default().push(block);
        }
    }
    let bytes_of = |blocks: &[&Live]| blocks.iter().map(|block| block.bytes).sum::<u64>();
    let (_, mut blocks) = by_stack
        .into_iter()
        .filter(|(_, blocks)| blocks.len() >= ITERATIONS)
        .max_by_key(|(stack, blocks)| (bytes_of(blocks), stack.index()))?;
    blocks.sort_unstable_by_key(|block| block.id);
    // The middle of the loop stands for all of it. A line may make several in a row.
    let middle = blocks.len() / 2;
    let (from, to) = (
        blocks.get(middle.checked_sub(IN_A_ROW)?)?.id,
        blocks.get(middle)?.id,
    );
    let alive: HashSet<u32> = facts.live.iter().map(|block| block.id).collect();
    let computed: HashSet<(StackId, &str)> = (from + 1..to)
        .filter(|id| !alive.contains(id))
        .filter_map(|id| facts.program.allocations.get(id as usize))
        .map(|allocation| (allocation.stack, facts.operator_of(allocation)))
        .collect();
    (computed.len() >= COMPUTED).then(|| Pile {
        iterations: blocks.len(),
        bytes: bytes_of(&blocks),
        blocks: blocks.iter().map(|block| block.id).collect(),
    })
}

/// Bytes that blocks alive hold, of those that are wanted.
pub(crate) fn bytes(facts: &Facts, wanted: impl Fn(&Live) -> bool) -> u64 {
    sizes(facts, wanted).into_iter().sum()
}

/// The activations with a graph that the current step made.
pub(crate) fn is_graph_of_this_step(facts: &Facts, block: &Live) -> bool {
    block.category == Category::Activation
        && block.phase == Phase::Forward
        && (block.step == facts.current_step() || block.step.is_none())
}

/// The sizes of the blocks alive that are wanted, in the order in which they were made.
pub(crate) fn sizes(facts: &Facts, wanted: impl Fn(&Live) -> bool) -> Vec<u64> {
    facts
        .live
        .iter()
        .filter(|block| wanted(block))
        .map(|block| block.bytes)
        .collect()
}

/// The length of a beginning that the sequence repeats; the last repetition may be partial, with at
/// least `MIN_BLOCKS`.
pub(crate) fn shortest_period(sizes: &[u64]) -> Option<usize> {
    (MIN_BLOCKS..=sizes.len().saturating_sub(MIN_BLOCKS)).find(|&period| {
        sizes
            .iter()
            .zip(sizes.iter().skip(period))
            .all(|(a, b)| a == b)
    })
}
