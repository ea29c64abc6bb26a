//! The facts about a history that the causes use, computed once.

use std::collections::{HashMap, HashSet};

use oomph_allocator::program::{Allocation, NO_ROW, Op, Program, Room};
use oomph_allocator::{Config, TorchVersion};
use oomph_trace::{Category, Phase, StackId, StringId, TimeUs, Trace};

use crate::Options;
use crate::stacks::{StackFacts, Stacks};
use crate::steps::{self, Step};

/// A block that was alive at the moment of the failure (or of the peak).
#[derive(Debug, Clone, Copy)]
pub struct Live {
    /// Number of the allocation within the program.
    pub id: u32,
    /// Its bytes, rounded as the allocator does.
    pub bytes: u64,
    /// The stack that made it.
    pub stack: StackId,
    /// What it holds.
    pub category: Category,
    /// What the job did when it was made.
    pub phase: Phase,
    /// The step in which it was made; `None` before the first.
    pub step: Option<usize>,
}

/// Blocks of old steps that are still alive.
#[derive(Debug, Clone, Default)]
pub struct Growth {
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that each step adds.
    pub per_step: u64,
    /// In how many steps they were made.
    pub steps: usize,
    /// These steps.
    pub in_steps: Vec<usize>,
    /// How many blocks each step leaves.
    pub blocks_per_step: f64,
    /// How many stacks they come from.
    pub stacks: Vec<StackId>,
    /// How many of these stacks are of forward passes that build a graph.
    pub lines_with_graph: usize,
    /// The share of a step's forward allocations that stay.
    pub kept_share: f64,
    /// Of what forward passes kept for backward between the first and the last block that stays, the share
    /// that stays: all of it if a graph does, little if single results do.
    pub kept_of_saved: f64,
    /// Whether these are the parts of one step that end in backward passes which keep their graphs, not steps.
    pub within_step: bool,
    /// Whether the steps that leave them run backward.
    pub with_backward: bool,
    /// Whether they were made inside modules.
    pub in_modules: bool,
    /// The share of their bytes in tensors that Python held when memory ran out; the rest is a graph's. `None` if nobody looked.
    pub held: Option<f64>,
}

impl Growth {
    /// What leaves these blocks, one after another.
    pub const fn unit(&self) -> &'static str {
        if self.within_step {
            "backward pass"
        } else {
            "step"
        }
    }

    /// The same of several.
    pub const fn units(&self) -> &'static str {
        if self.within_step {
            "backward passes"
        } else {
            "steps"
        }
    }
}

/// The facts that the causes use.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The history.
    pub trace: &'a Trace,
    /// What the caller knows.
    pub options: &'a Options,
    /// The history as a program.
    pub program: Program,
    /// The allocator's settings.
    pub config: Config,
    /// The version of PyTorch.
    pub version: TorchVersion,
    /// What the stacks say.
    pub stacks: Stacks,
    /// The steps that were found.
    pub steps: Vec<Step>,
    /// The row of the failure, or of the peak.
    pub row: usize,
    /// The request that failed; in a run without a limit, the same request there.
    pub failure: Option<Allocation>,
    /// Its bytes, rounded; 0 without a failure.
    pub asked: u64,
    /// The same, if it comes on top of what is alive: 0 in a run without a limit, which got it.
    pub request: u64,
    /// What the allocator then requested from the driver.
    pub segment: u64,
    /// The blocks alive at that moment.
    pub live: Vec<Live>,
    /// Their bytes.
    pub live_bytes: u64,
    /// The blocks that the history made and that are alive at its end.
    pub left: Vec<Live>,
    /// What was reserved at that moment.
    pub reserved: u64,
    /// What the allocator could have reserved.
    pub room: Option<Room>,
    /// How much more than there is the job needs, if a run without a limit measured it.
    pub short: Option<u64>,
    /// Blocks of old steps.
    pub growth: Growth,
    // What is known of the model.
    built: Built,
}

impl<'a> Facts<'a> {
    /// Computes the facts of one device.
    pub fn new(trace: &'a Trace, options: &'a Options, device: u32, version: TorchVersion) -> Self {
        Self::build(trace, options, device, version, None)
    }

    /// The facts of a run without a limit at its peak, of a job that failed as `cut` says: what is alive
    /// is the peak's, and the failure is the same request in this run.
    pub fn without_limit(
        trace: &'a Trace,
        options: &'a Options,
        cut: &Facts<'_>,
        short: Option<u64>,
    ) -> Self {
        let whole = Self::build(trace, options, cut.program.device, cut.version, Some(cut));
        Self {
            short: short.map(|short| short.min(whole.missing(cut).unwrap_or(short))),
            ..whole
        }
    }

    /// How much less must be alive for the job that failed as `cut` says to have enough, if it is that: caches grow without a
    /// limit, and give way with one.
    fn missing(&self, cut: &Facts<'_>) -> Option<u64> {
        let room = cut.room?.at_least;
        let packed = room - room / CACHED;
        self.needed()
            .checked_sub(packed)
            .filter(|&missing| missing > 0)
    }

    fn build(
        trace: &'a Trace,
        options: &'a Options,
        device: u32,
        version: TorchVersion,
        cut: Option<&Facts<'_>>,
    ) -> Self {
        let config = Config::from_settings(&trace.settings, version);
        let program = Program::new(trace, device, &config);
        let stacks = Stacks::new(trace);
        let failure = match cut {
            None => program.failure().copied(),
            Some(cut) => same_request(&program, &config, cut),
        };
        let rounded = |allocation: &Allocation| config.round_size(allocation.requested);
        let asked = failure.as_ref().map_or(0, rounded);
        let request = if cut.is_none() { asked } else { 0 };
        let rows = trace.rows_of(device);
        let row = match &failure {
            Some(failure) if cut.is_none() => failure.alloc_row as usize,
            _ => peak_row(&program, &config).unwrap_or(rows.end),
        };
        let passes = &options.seen.pass_times;
        let steps = steps::find(trace, &program, &config, &stacks, row, passes);
        let step_of = |allocation: &Allocation| steps::step_of(&steps, allocation.alloc_row);
        let built = Built::new(trace, &program, &stacks);
        let about = |id: usize, allocation: &Allocation| {
            let step = step_of(allocation);
            let (category, phase) = holds(trace, &stacks, &built, allocation, step.is_some());
            Live {
                id: id as u32,
                bytes: rounded(allocation),
                stack: allocation.stack,
                category,
                phase,
                step,
            }
        };
        let alive = |row: usize| -> Vec<Live> {
            let all = program.allocations.iter().enumerate();
            all.filter(|(_, allocation)| is_live(allocation, row))
                .map(|(id, allocation)| about(id, allocation))
                .collect()
        };
        let live = alive(row);
        let row_of = |block: &Live| {
            let allocation = program.allocations.get(block.id as usize)?;
            Some(allocation.alloc_row)
        };
        let left = alive(rows.end)
            .into_iter()
            .filter(|block| program.allocations[block.id as usize].alloc_row != NO_ROW)
            .collect();
        let mut growth = growth(&program, &stacks, &steps, &live, row);
        // A step that goes backward part by part, and is told to keep the graphs, may keep too much within itself.
        let parts = steps::retained(trace, &steps, row, &options.seen.retained_times);
        let of_parts: Vec<Live> = (live.iter())
            .map(|block| Live {
                step: row_of(block).and_then(|row| steps::step_of(&parts, row)),
                ..*block
            })
            .collect();
        let within = self::growth(&program, &stacks, &parts, &of_parts, row);
        let (blocks, bounds) = if within.bytes > growth.bytes {
            growth = Growth {
                within_step: true,
                with_backward: true,
                ..within
            };
            (&of_parts, &parts)
        } else {
            (&live, &steps)
        };
        growth.kept_of_saved = kept_of_saved(&growth, &program, blocks, |allocation| {
            holds(trace, &stacks, &built, allocation, true).1 == Phase::Forward
        });
        growth.held = match (cut, &options.seen.held) {
            (Some(cut), _) => cut.growth.held,
            (None, Some(held)) if growth.bytes > 0 => {
                let of_old_steps = blocks.iter().filter(|block| {
                    growth.stacks.binary_search(&block.stack).is_ok()
                        && may_leak(block)
                        && block
                            .step
                            .is_some_and(|step| growth.in_steps.contains(&step))
                });
                let (mut all, mut by_python) = (0, 0);
                for block in of_old_steps {
                    all += block.bytes;
                    if row_of(block).is_some_and(|row| held.contains(&row)) {
                        by_python += block.bytes;
                    }
                }
                (all > 0).then(|| by_python as f64 / all as f64)
            }
            _ => None,
        };
        if let Some(labels) = &trace.labels
            && !growth.within_step
        {
            // Labels know what stacks without C++ frames do not tell.
            growth.with_backward = program.allocations.iter().any(|allocation| {
                allocation.alloc_row != NO_ROW
                    && labels.get(allocation.alloc_row as usize).phase == Phase::Backward
                    && steps::step_of(bounds, allocation.alloc_row)
                        .is_some_and(|step| growth.in_steps.contains(&step))
            });
        }
        // Without a limit, nothing says how much there is.
        let room = program.room(&config).filter(|_| cut.is_none());
        Self {
            live_bytes: live.iter().map(|block| block.bytes).sum(),
            reserved: program.reserved_at(row as u32),
            segment: config.segment_size(asked),
            asked,
            trace,
            options,
            room,
            short: None,
            config,
            version,
            stacks,
            steps,
            row,
            failure,
            request,
            live,
            left,
            growth,
            program,
            built,
        }
    }

    /// Every allocation of the history, whether or not it is alive at that moment.
    pub(crate) fn every(&self) -> impl Iterator<Item = Live> + '_ {
        let all = self.program.allocations.iter().enumerate();
        all.map(|(id, allocation)| {
            let step = steps::step_of(&self.steps, allocation.alloc_row);
            let (category, phase) = self.holds(allocation, step.is_some());
            Live {
                id: id as u32,
                bytes: self.config.round_size(allocation.requested),
                stack: allocation.stack,
                category,
                phase,
                step,
            }
        })
    }

    /// Whether a block was made before the step in which it happened, and nothing reads it from then on.
    pub(crate) fn is_idle(&self, block: &Live) -> bool {
        let (Some(reads), Some(current)) = (&self.options.seen.last_reads, self.current_step())
        else {
            return false;
        };
        let Some(since) = self.steps.get(current).map(|step| step.start as u32) else {
            return false;
        };
        let since = since.max(self.optimizers_since());
        let row = self.row_of(block);
        row != NO_ROW && row < since && reads.get(&row).is_none_or(|&last| last <= since)
    }

    /// The row before which a block was last read, if it was.
    pub(crate) fn last_read(&self, block: &Live) -> Option<u32> {
        let reads = self.options.seen.last_reads.as_ref()?;
        reads.get(&self.row_of(block)).copied()
    }

    /// The row at which the eighth optimizer step before now began, whichever optimizer it was: those of a stage that is over do not
    /// step again, and the steps of a job are counted by one alone.
    fn optimizers_since(&self) -> u32 {
        const STEPS: usize = 8;
        let times = &self.options.seen.optimizer_times;
        let rows = self.trace.rows_of(self.program.device);
        let now = self.row.min(rows.end.saturating_sub(1));
        if rows.is_empty() || times.is_empty() {
            return 0;
        }
        let before = times.partition_point(|&begun| begun <= self.trace.events.time(now).0);
        let Some(&begun) = before.checked_sub(STEPS).and_then(|at| times.get(at)) else {
            return 0;
        };
        self.trace
            .events
            .first_after(rows.start..now, TimeUs(begun)) as u32
    }

    /// Whether so many bytes of something that should not be there are why memory ran out: they are a `share` of what was
    /// needed, or a tenth of it without which there would have been enough.
    pub(crate) fn is_decisive(&self, bytes: u64, share: f64) -> bool {
        const ENOUGH: f64 = 0.1;
        let found = self.share(bytes);
        let enough = self.short.is_some_and(|short| bytes >= short);
        found >= share || enough && found >= ENOUGH
    }

    /// What an allocation holds, and what the job did when it was made: as labelled, else as its
    /// stack says. `in_step` is whether it was made within a step.
    pub fn holds(&self, allocation: &Allocation, in_step: bool) -> (Category, Phase) {
        holds(self.trace, &self.stacks, &self.built, allocation, in_step)
    }

    /// The bytes alive through the history: the highest of each of `shares` equal shares of its
    /// operations.
    pub fn timeline(&self, shares: usize) -> Vec<u64> {
        let ops = &self.program.ops;
        let bytes = |id: u32| {
            self.program
                .allocations
                .get(id as usize)
                .map_or(0, |allocation| self.config.round_size(allocation.requested))
        };
        let mut live: u64 = self
            .program
            .allocations
            .iter()
            .filter(|allocation| allocation.alloc_row == NO_ROW && !allocation.failed)
            .map(|allocation| self.config.round_size(allocation.requested))
            .sum();
        let mut timeline = vec![0; ops.len().min(shares)];
        for (index, op) in ops.iter().enumerate() {
            match *op {
                Op::Alloc(id) => live = live.saturating_add(bytes(id)),
                Op::Free(id) => live = live.saturating_sub(bytes(id)),
                _ => {}
            }
            let share = index * timeline.len() / ops.len();
            if let Some(high) = timeline.get_mut(share) {
                *high = live.max(*high);
            }
        }
        timeline
    }

    /// Whether the history ends in an out-of-memory error.
    pub fn failed(&self) -> bool {
        self.failure.is_some()
    }

    /// What the failed request's stack says.
    pub fn failure_stack(&self) -> StackFacts {
        self.failure
            .map(|failure| self.stacks.get(failure.stack))
            .unwrap_or_default()
    }

    /// What this process holds on the device outside the allocator, if it was measured.
    pub fn outside(&self) -> Option<u64> {
        let recorded = self.trace.context.outside.map(|bytes| bytes.0);
        recorded.or(self.options.process_outside)
    }

    /// Whether the job is inference: several passes, or tokens generated, and no backward.
    pub fn infers(&self) -> bool {
        let generates = || {
            self.live
                .iter()
                .any(|block| self.stacks.get(block.stack).in_kv_cache())
        };
        let without_graph = || {
            self.failure_phase() == Phase::Inference
                || self.live.iter().any(|block| {
                    self.options
                        .seen
                        .unused_graphs
                        .contains(&self.row_of(block))
                })
        };
        (self.steps.len() > 2 || generates() || without_graph()) && !self.trains()
    }

    /// Whether anything attends: products of queries and keys, or a softmax.
    pub(crate) fn attends(&self) -> bool {
        self.program.allocations.iter().any(|allocation| {
            let operator = self.operator_of(allocation);
            operator.contains("attention") || operator.contains("softmax")
        })
    }

    /// What the job did when it failed.
    pub fn failure_phase(&self) -> Phase {
        self.failure
            .as_ref()
            .map_or(Phase::Unknown, |failure| self.holds(failure, true).1)
    }

    /// Whether the run ever went backward or made an optimizer's step.
    pub fn trains(&self) -> bool {
        self.program.allocations.iter().any(|allocation| {
            allocation.alloc_row != NO_ROW
                && matches!(
                    self.holds(allocation, true).1,
                    Phase::Backward | Phase::Optimizer
                )
        })
    }

    /// The operator that made an allocation, as labelled; empty if nobody knows.
    pub fn operator_of(&self, allocation: &Allocation) -> &str {
        match &self.trace.labels {
            Some(labels) if allocation.alloc_row != NO_ROW => {
                let label = labels.get(allocation.alloc_row as usize);
                self.trace.strings.get(label.op)
            }
            _ => "",
        }
    }

    /// Whether an allocation is the result of joining tensors.
    pub fn joins_tensors(&self, allocation: &Allocation) -> bool {
        let operator = self.operator_of(allocation);
        operator.ends_with("::cat")
            || operator.ends_with("::stack")
            || operator.is_empty() && self.stacks.get(allocation.stack).concatenates()
    }

    /// The same of a block.
    pub fn operator(&self, block: &Live) -> &str {
        self.program
            .allocations
            .get(block.id as usize)
            .map_or("", |allocation| self.operator_of(allocation))
    }

    /// The module in which a block was made or that owns it, as labelled; empty if nobody knows.
    pub fn module(&self, block: &Live) -> StringId {
        match (&self.trace.labels, self.row_of(block)) {
            (Some(labels), row) if row != NO_ROW => labels.get(row as usize).module,
            _ => StringId::EMPTY,
        }
    }

    /// The row in which a block was made.
    pub fn row_of(&self, block: &Live) -> u32 {
        self.program
            .allocations
            .get(block.id as usize)
            .map_or(NO_ROW, |allocation| allocation.alloc_row)
    }

    /// Whether a block is one of those that become more from step to step, or is like them.
    pub fn grows(&self, block: &Live) -> bool {
        self.growth.stacks.binary_search(&block.stack).is_ok() && may_leak(block)
    }

    /// Whether a block is one of those that become more from step to step, and an earlier step made it: whatever it is, what keeps it
    /// is why it is there.
    pub(crate) fn is_left_behind(&self, block: &Live) -> bool {
        !self.growth.within_step
            && self.grows(block)
            && block
                .step
                .is_some_and(|step| self.growth.in_steps.contains(&step))
    }

    /// What was needed at that moment: everything alive and the request.
    pub fn needed(&self) -> u64 {
        self.live_bytes.saturating_add(self.request)
    }

    /// The bytes of a category that are alive.
    pub fn bytes_of(&self, category: Category) -> u64 {
        self.live
            .iter()
            .filter(|block| block.category == category)
            .map(|block| block.bytes)
            .sum()
    }

    /// The bytes of parameters, gradients and optimizer state.
    pub fn persistent(&self) -> u64 {
        self.bytes_of(Category::Parameter)
            + self.bytes_of(Category::Gradient)
            + self.bytes_of(Category::OptimizerState)
    }

    /// A share of what was needed.
    pub fn share(&self, bytes: u64) -> f64 {
        if self.needed() == 0 {
            0.0
        } else {
            bytes as f64 / self.needed() as f64
        }
    }

    /// The step in which it happened.
    pub fn current_step(&self) -> Option<usize> {
        steps::step_of(&self.steps, self.row as u32)
    }

    /// The largest free block that the request could have used, and all free bytes of its pool.
    pub fn unused(&self) -> u64 {
        self.reserved.saturating_sub(self.live_bytes)
    }
}

fn holds(
    trace: &Trace,
    stacks: &Stacks,
    built: &Built,
    allocation: &Allocation,
    in_step: bool,
) -> (Category, Phase) {
    let facts = stacks.get(allocation.stack);
    let label = trace
        .labels
        .as_ref()
        .filter(|_| allocation.alloc_row != NO_ROW)
        .map(|labels| labels.get(allocation.alloc_row as usize))
        .unwrap_or_default();
    let phase = if label.phase == Phase::Unknown {
        facts.phase
    } else {
        label.phase
    };
    let is_passing = matches!(label.category, Category::Activation | Category::Temporary);
    let category = if phase == Phase::Backward
        && is_passing
        && built
            .weights
            .contains(&(label.module, allocation.requested))
    {
        // A gradient in the making: that of a layer which is called again and again is summed up before the parameter has it.
        Category::Gradient
    } else if label.category != Category::Unknown {
        label.category
    } else if phase == Phase::Setup && built.without_model && !is_made(trace.strings.get(label.op))
    {
        // What a simulation computes is no weight.
        Category::Activation
    } else {
        category(facts, phase, allocation, &built.sizes, in_step)
    };
    (category, phase)
}

/// The request that failed in another run of the same job: the one after as many others, else the first
/// that exceeds what was needed there.
fn same_request(program: &Program, config: &Config, cut: &Facts<'_>) -> Option<Allocation> {
    let failed = cut.failure?;
    let before = cut
        .program
        .allocations
        .iter()
        .filter(|allocation| !allocation.failed && allocation.alloc_row < failed.alloc_row)
        .count();
    let counted = program
        .allocations
        .get(before)
        .filter(|allocation| allocation.requested == failed.requested);
    let exceeds = || {
        let mut live = 0_u64;
        let needed = cut.needed();
        program.ops.iter().find_map(|op| {
            let (id, grows) = match *op {
                Op::Alloc(id) => (id, true),
                Op::Free(id) => (id, false),
                _ => return None,
            };
            let allocation = program.allocations.get(id as usize)?;
            let bytes = config.round_size(allocation.requested);
            live = if grows {
                live.saturating_add(bytes)
            } else {
                live.saturating_sub(bytes)
            };
            (live >= needed).then_some(allocation)
        })
    };
    counted.or_else(exceeds).copied()
}

/// Whether an allocation is alive just before a row.
pub fn is_live(allocation: &Allocation, row: usize) -> bool {
    let row = row as u32;
    let born = allocation.alloc_row == NO_ROW || allocation.alloc_row < row;
    let gone = allocation.free_row != NO_ROW && allocation.free_row < row;
    born && !gone && !allocation.failed
}

/// The row after which the most bytes are alive.
fn peak_row(program: &Program, config: &Config) -> Option<usize> {
    let mut live = 0_u64;
    let mut peak = (0, None);
    for allocation in &program.allocations {
        if allocation.alloc_row == NO_ROW {
            live = live.saturating_add(config.round_size(allocation.requested));
        }
    }
    for op in &program.ops {
        match *op {
            Op::Alloc(id) => {
                let Some(allocation) = program.allocations.get(id as usize) else {
                    continue;
                };
                live = live.saturating_add(config.round_size(allocation.requested));
                if live > peak.0 {
                    peak = (live, Some(allocation.alloc_row as usize + 1));
                }
            }
            Op::Free(id) => {
                if let Some(allocation) = program.allocations.get(id as usize) {
                    live = live.saturating_sub(config.round_size(allocation.requested));
                }
            }
            _ => {}
        }
    }
    peak.1
}

/// What is known of the model.
#[derive(Debug)]
struct Built {
    /// How many blocks of each size were made while it was built: a gradient has the size of its parameter.
    sizes: HashMap<u64, usize>,
    /// Whether labels say that there is none: nothing has weights, and nothing but the script itself computes.
    without_model: bool,
    /// The weights that labels know, by their modules and sizes.
    weights: HashSet<(StringId, u64)>,
}

impl Built {
    fn new(trace: &Trace, program: &Program, stacks: &Stacks) -> Self {
        let mut sizes = HashMap::new();
        let is_of_none = |allocation: &Allocation| match &trace.labels {
            Some(labels) if allocation.alloc_row != NO_ROW => {
                let label = labels.get(allocation.alloc_row as usize);
                label.category == Category::Unknown
                    || label.phase == Phase::Setup && label.module == StringId::EMPTY
            }
            labels => labels.is_some(),
        };
        let mut without_model = true;
        let mut weights = HashSet::new();
        for allocation in &program.allocations {
            if let Some(labels) = &trace.labels
                && allocation.alloc_row != NO_ROW
            {
                let label = labels.get(allocation.alloc_row as usize);
                if label.category == Category::Parameter && label.module != StringId::EMPTY {
                    weights.insert((label.module, allocation.requested));
                }
            }
            if stacks.get(allocation.stack).phase == Phase::Setup {
                *sizes.entry(allocation.requested).or_insert(0) += 1;
            }
            without_model = without_model && is_of_none(allocation);
        }
        Self {
            sizes,
            without_model,
            weights,
        }
    }
}

/// Whether an operator makes or moves a tensor, and computes nothing.
fn is_made(operator: &str) -> bool {
    const MAKES: [&str; 17] = [
        "empty", "zeros", "ones", "full", "rand", "normal", "uniform", "arange", "linspace", "eye",
        "_to_copy", "clone", "copy", "set_", "load", "new_", "lift",
    ];
    let name = operator.rsplit("::").next().unwrap_or(operator);
    name.is_empty() || MAKES.iter().any(|part| name.starts_with(part))
}

fn category(
    facts: StackFacts,
    phase: Phase,
    allocation: &Allocation,
    parameters: &HashMap<u64, usize>,
    in_step: bool,
) -> Category {
    if facts.is_workspace {
        return Category::Workspace;
    }
    if facts.copies_parameter() {
        return Category::Parameter;
    }
    match phase {
        Phase::Setup | Phase::Load => Category::Parameter,
        Phase::Optimizer => Category::OptimizerState,
        Phase::Backward => {
            if facts.accumulates_gradient() || parameters.contains_key(&allocation.requested) {
                Category::Gradient
            } else {
                Category::Temporary
            }
        }
        Phase::Forward | Phase::Inference => Category::Activation,
        _ => {
            // The script itself made it: a batch if it is inside a step.
            if in_step && facts.user.is_some() {
                Category::Input
            } else {
                Category::Unknown
            }
        }
    }
}

/// Whether a block is of the kind that steps leave behind without need.
fn may_leak(block: &Live) -> bool {
    matches!(
        block.category,
        Category::Activation | Category::Input | Category::Unknown | Category::Temporary
    )
}

/// Finds the stacks that leave blocks behind step after step.
fn growth(program: &Program, stacks: &Stacks, steps: &[Step], live: &[Live], row: usize) -> Growth {
    let Some(current) = steps::step_of(steps, row as u32) else {
        return Growth::default();
    };
    // (bytes, blocks, steps) by stack.
    let mut by_stack: HashMap<StackId, (u64, usize, Vec<usize>)> = HashMap::new();
    for block in live {
        let facts = stacks.get(block.stack);
        let may_leak = may_leak(block) && facts.phase != Phase::Setup;
        // Backward passes have no stack; what they make for a graph is known to be that.
        let of_graph = block.category == Category::Activation && block.phase == Phase::Backward;
        let is_known = block.stack != StackId::NONE || of_graph;
        match block.step {
            Some(step) if step < current && may_leak && is_known => {
                let entry = by_stack.entry(block.stack).or_default();
                entry.0 += block.bytes;
                entry.1 += 1;
                entry.2.push(step);
            }
            _ => {}
        }
    }
    let mut growth = Growth::default();
    let mut all_steps: Vec<usize> = Vec::new();
    let mut blocks = 0_usize;
    for (stack, (bytes, count, mut of_steps)) in by_stack {
        of_steps.sort_unstable();
        of_steps.dedup();
        // The previous step's loss or output is often alive until it is replaced; from two steps back it is a
        // pattern, if it continues to now.
        let (Some(&first), distinct) = (of_steps.first(), of_steps.len()) else {
            continue;
        };
        let possible = current.saturating_sub(first).max(1);
        if distinct < 2 || distinct * 2 < possible {
            continue;
        }
        growth.bytes += bytes;
        blocks += count;
        growth.stacks.push(stack);
        let with_graph = live.iter().any(|block| {
            block.stack == stack
                && block.category == Category::Activation
                && block.phase == Phase::Forward
        });
        growth.lines_with_graph += usize::from(with_graph && stacks.get(stack).in_module());
        all_steps.extend(of_steps);
    }
    all_steps.sort_unstable();
    all_steps.dedup();
    growth.stacks.sort_unstable();
    growth.steps = all_steps.len();
    growth.in_steps.clone_from(&all_steps);
    if growth.steps == 0 {
        return growth;
    }
    growth.per_step = growth.bytes / growth.steps as u64;
    growth.blocks_per_step = blocks as f64 / growth.steps as f64;
    growth.with_backward = all_steps
        .iter()
        .filter(|&&step| steps.get(step).is_some_and(|step| step.has_backward))
        .count()
        * 2
        > all_steps.len();
    growth.in_modules = growth
        .stacks
        .iter()
        .any(|&stack| stacks.get(stack).in_module());
    // How much of what these steps made in forward is still there?
    let mut made = 0_usize;
    for allocation in &program.allocations {
        let facts = stacks.get(allocation.stack);
        if facts.phase == Phase::Forward
            && !facts.is_workspace
            && let Some(step) = steps::step_of(steps, allocation.alloc_row)
            && all_steps.binary_search(&step).is_ok()
        {
            made += 1;
        }
    }
    growth.kept_share = if made == 0 {
        0.0
    } else {
        blocks as f64 / made as f64
    };
    growth
}

/// Of what forward passes kept for backward between the first and the last block that grows, the share that
/// is among these blocks.
fn kept_of_saved(
    growth: &Growth,
    program: &Program,
    live: &[Live],
    in_forward: impl Fn(&Allocation) -> bool,
) -> f64 {
    let row_of = |id: u32| program.allocations.get(id as usize).map(|a| a.alloc_row);
    let mut ranges: HashMap<usize, (u32, u32)> = HashMap::new();
    let mut kept = 0_usize;
    for block in live {
        let (Some(step), Some(row)) = (block.step, row_of(block.id)) else {
            continue;
        };
        if block.phase != Phase::Forward
            || growth.in_steps.binary_search(&step).is_err()
            || growth.stacks.binary_search(&block.stack).is_err()
        {
            continue;
        }
        let range = ranges.entry(step).or_insert((row, row));
        *range = (range.0.min(row), range.1.max(row));
        kept += 1;
    }
    let mut ranges: Vec<(u32, u32)> = ranges.into_values().collect();
    ranges.sort_unstable();
    let saved = program
        .allocations
        .iter()
        .filter(|allocation| {
            let row = allocation.alloc_row;
            // The last range that begins at or before it.
            let index = ranges.partition_point(|range| range.0 <= row);
            row != NO_ROW
                && index
                    .checked_sub(1)
                    .and_then(|index| ranges.get(index))
                    .is_some_and(|&(_, last)| {
                        row <= last && (allocation.free_row == NO_ROW || allocation.free_row > last)
                    })
                && in_forward(allocation)
        })
        .count();
    if saved == 0 {
        0.0
    } else {
        kept as f64 / saved as f64
    }
}

/// One part in as many of what is reserved is lost to rounding and caching in jobs that just fit.
const CACHED: u64 = 20;

/// Bytes by which a device's memory is known to be larger than what the allocator could have:
/// context and kernels of a single process, as measured (0.6 to 0.8 GiB), rounded up.
pub const CONTEXT: u64 = 1 << 30;
