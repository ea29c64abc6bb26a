//! One memory history as the page needs it: every block with its lifetime, kind and address.
//!
//! The page counts in *moments*: moment 0 is before the first event, moment `n` after the `n`-th
//! event that matters (blocks made and freed, segments, failures). All columns speak of moments, so
//! the views follow each other exactly, whatever the clock said.

use std::collections::{BTreeMap, HashMap};

use oomph_allocator::TorchVersion;
use oomph_allocator::program::{Allocation, NO_ROW, Op};
use oomph_explain::facts::Facts;
use oomph_explain::stacks::{is_plumbing, is_training_loop};
use oomph_explain::{Options, steps};
use oomph_trace::is_users_own;
use oomph_trace::{Action, Category, FrameId, Phase, StackId, StringId, Trace};
use serde_json::{Value, json};

use super::growth::{Growth, growth};
use super::lod::{Change, Keys, Level, Widths, levels};
use super::payload::Columns;
use super::redact::Redactor;

/// Blocks that a page holds one by one: beyond, the smallest are only counted in the sums. Three
/// million are a history of some nine million events, and a page of some twenty megabytes.
pub const MAX_BLOCKS: usize = 3_000_000;
/// Pieces of segments that the address space is drawn from.
const MAX_PIECES: usize = 300_000;
/// Groups (modules or lines) that have a colour of their own; one more is "other".
const GROUPS: usize = 11;
/// Addresses and sizes of blocks are multiples of this.
const GRAIN: u64 = 512;
/// Frames of one stack that are kept; deeper is recursion.
const MAX_DEPTH: usize = 512;

/// A history to show.
#[derive(Debug)]
pub struct History<'a> {
    /// What it is, such as `on the GPU` or `before`.
    pub name: String,
    /// The history itself.
    pub trace: &'a Trace,
    /// What else is known.
    pub options: Options,
}

/// A history as the page reads it.
#[derive(Debug)]
pub(crate) struct Packed {
    /// What is drawn first: the levels, steps, phases and peaks.
    pub overview: String,
    /// Every block.
    pub detail: String,
}

/// Moments of the trace's rows: how many events that matter came up to and with each. A bit a row
/// and a count every 64 of them, as a history may have tens of millions.
struct Clock {
    rows: std::ops::Range<usize>,
    matters: Vec<u64>,
    /// Bits set before each word.
    before: Vec<u32>,
}

impl Clock {
    fn new(rows: std::ops::Range<usize>) -> Self {
        Self {
            matters: vec![0; rows.len().div_ceil(64)],
            before: Vec::new(),
            rows,
        }
    }

    /// Makes a row a moment. Rows outside the history are none.
    fn mark(&mut self, row: u32) {
        if let Some(at) = (row as usize).checked_sub(self.rows.start)
            && let Some(word) = self.matters.get_mut(at / 64)
        {
            *word |= 1 << (at % 64);
        }
    }

    /// Counts, once all rows are marked.
    fn wind(&mut self) {
        let mut count = 0;
        self.before = self
            .matters
            .iter()
            .map(|word| {
                let before = count;
                count += word.count_ones();
                before
            })
            .collect();
    }

    /// The rows that are moments.
    fn marked(&self) -> impl Iterator<Item = usize> {
        self.rows.clone().filter(|row| {
            let at = row - self.rows.start;
            self.matters
                .get(at / 64)
                .is_some_and(|word| word >> (at % 64) & 1 == 1)
        })
    }

    /// The moment after a row.
    fn after(&self, row: usize) -> u32 {
        let Some(at) = row.checked_sub(self.rows.start) else {
            return self.last();
        };
        match (self.matters.get(at / 64), self.before.get(at / 64)) {
            (Some(word), Some(before)) => {
                before + (word & (u64::MAX >> (63 - at % 64))).count_ones()
            }
            _ => self.last(),
        }
    }

    /// The moment before a row.
    fn before(&self, row: usize) -> u32 {
        match row.checked_sub(self.rows.start) {
            None | Some(0) => 0,
            Some(_) => self.after(row - 1),
        }
    }

    fn last(&self) -> u32 {
        match (self.before.last(), self.matters.last()) {
            (Some(before), Some(word)) => before + word.count_ones(),
            _ => 0,
        }
    }
}

/// What blocks have in common: a stack, what they hold, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    stack: StackId,
    category: Category,
    phase: Phase,
    module: StringId,
    op: StringId,
}

/// A block's life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Number of its kind.
    pub kind: u32,
    /// The first moment at which it is there.
    pub start: u32,
    /// The first moment after it is freed; past the last moment if it stays.
    pub end: u32,
    /// Number of its allocation.
    allocation: u32,
    /// Bytes that it takes.
    pub bytes: u64,
}

/// A step in moments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Its number, counted from 1.
    pub number: u32,
    /// Its first moment.
    pub start: u32,
    /// The moment after its last.
    pub end: u32,
}

/// A processed history: the source of the page and the exports.
pub(crate) struct Digest<'a> {
    pub history: &'a History<'a>,
    pub facts: Facts<'a>,
    /// All blocks, in the order in which they were made.
    pub blocks: Vec<Block>,
    /// Requests below this are only in the sums.
    pub smallest: u64,
    pub levels: Vec<Level>,
    /// The last moment.
    pub moments: u32,
    /// µs since the first event, by moment.
    pub times: Option<Vec<u64>>,
    /// (moment, bytes reserved from then on).
    pub reserved: Vec<(u32, u64)>,
    pub steps: Vec<Step>,
    /// (first moment, index into the phases).
    pub phases: Vec<(u32, u8)>,
    pub failures: Vec<Failure>,
    /// The moment of the most bytes alive, and these.
    pub peak: (u32, u64),
    kinds: Vec<Kind>,
    keys: Vec<Keys>,
    grouping: Grouping,
    pub growth: Growth,
    space: Option<Space>,
}

/// A request that failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    /// The moment before it.
    pub moment: u32,
    /// What it asked for, rounded.
    pub bytes: u64,
    /// What the device had.
    pub free: u64,
    kind: u32,
}

/// Processes a history.
pub(crate) fn digest<'a>(history: &'a History<'a>) -> Digest<'a> {
    digest_with(history, MAX_BLOCKS)
}

/// Processes a history, keeping at most `most_blocks` blocks individually.
pub(crate) fn digest_with<'a>(history: &'a History<'a>, most_blocks: usize) -> Digest<'a> {
    let trace = history.trace;
    let options = &history.options;
    let device = options.device.unwrap_or_else(|| busiest(trace));
    let version = options
        .torch_version
        .or_else(|| {
            let version = trace.context.torch_version.as_deref()?;
            TorchVersion::parse(version)
        })
        .unwrap_or(TorchVersion::ASSUMED);
    let mut facts = Facts::new(trace, options, device, version);
    let rows = trace.rows_of(device);
    let found_steps = steps::find(
        trace,
        &facts.program,
        &facts.config,
        &facts.stacks,
        rows.end,
        &options.seen.pass_times,
    );

    // Blocks and their kinds.
    let smallest = smallest_kept(
        facts
            .program
            .allocations
            .iter()
            .map(|block| block.requested)
            .collect(),
        most_blocks,
    );
    let mut kinds: Vec<Kind> = Vec::new();
    let mut known: HashMap<Kind, u32, rustc_hash::FxBuildHasher> = HashMap::default();
    let mut kind_of: Vec<u32> = Vec::with_capacity(facts.program.allocations.len());
    let mut clock = Clock::new(rows.clone());
    for allocation in &facts.program.allocations {
        let in_step = steps::step_of(&found_steps, allocation.alloc_row).is_some();
        let (category, phase) = facts.holds(allocation, in_step);
        let label = match &trace.labels {
            Some(labels) if allocation.alloc_row != NO_ROW => {
                labels.get(allocation.alloc_row as usize)
            }
            _ => oomph_trace::Label::default(),
        };
        let kind = Kind {
            stack: allocation.stack,
            category,
            phase,
            module: label.module,
            op: label.op,
        };
        let number = *known.entry(kind).or_insert_with(|| {
            kinds.push(kind);
            kinds.len() as u32 - 1
        });
        kind_of.push(number);
        if allocation.failed {
            clock.mark(allocation.alloc_row);
        } else if allocation.requested >= smallest {
            clock.mark(allocation.alloc_row);
            clock.mark(allocation.free_row);
        }
    }
    for event in &facts.program.driver_events {
        clock.mark(event.row);
    }
    clock.wind();
    let moments = clock.last();
    let start_of = |row: u32| {
        if row == NO_ROW {
            0
        } else {
            clock.after(row as usize)
        }
    };
    let end_of = |row: u32| {
        if row == NO_ROW {
            moments + 1
        } else {
            clock.after(row as usize)
        }
    };
    let all: Vec<Block> = facts
        .program
        .allocations
        .iter()
        .zip(&kind_of)
        .zip(0..)
        .filter(|((allocation, _), _)| !allocation.failed)
        .map(|((allocation, &kind), number)| Block {
            kind,
            start: start_of(allocation.alloc_row),
            end: end_of(allocation.free_row),
            allocation: number,
            bytes: facts.config.round_size(allocation.requested),
        })
        .collect();
    // Ways of stacking.
    let peak = peak(&facts, &clock);
    let grouping = Grouping::new(trace, &facts, &kinds, &all, peak.0);
    let keys: Vec<Keys> = kinds
        .iter()
        .zip(&grouping.of_kind)
        .map(|(kind, &group)| Keys {
            category: index_of(&Category::ALL, kind.category),
            phase: index_of(&Phase::ALL, kind.phase),
            group,
        })
        .collect();
    let widths = Widths {
        categories: Category::ALL.len(),
        phases: Phase::ALL.len(),
        groups: grouping.names.len(),
    };
    let key_of = |kind: u32| keys.get(kind as usize).copied().unwrap_or_default();

    // Changes in the order of events; what is older than the history comes first.
    let mut base = vec![0_i64; widths.total()];
    for allocation in facts.program.allocations.iter().zip(&kind_of) {
        let (allocation, &kind) = allocation;
        if allocation.alloc_row == NO_ROW && !allocation.failed {
            let bytes = facts.config.round_size(allocation.requested) as i64;
            let key = key_of(kind);
            base[usize::from(key.category)] += bytes;
            base[widths.categories + usize::from(key.phase)] += bytes;
            base[widths.categories + widths.phases + usize::from(key.group)] += bytes;
        }
    }
    // There may be tens of millions, so they are worked out each time that they are gone through.
    let changes = facts.program.ops.iter().filter_map(|op| {
        let (id, grows) = match *op {
            Op::Alloc(id) => (id, true),
            Op::Free(id) => (id, false),
            _ => return None,
        };
        let allocation = facts.program.allocations.get(id as usize)?;
        let bytes = facts.config.round_size(allocation.requested) as i64;
        let (row, bytes) = if grows {
            (allocation.alloc_row, bytes)
        } else {
            (allocation.free_row, -bytes)
        };
        Some(Change {
            moment: clock.after(row as usize),
            bytes,
            keys: key_of(kind_of.get(id as usize).copied().unwrap_or(0)),
        })
    });
    let reserved = reserved(&facts, &clock);
    let levels = levels(moments, &base, changes.clone(), &reserved, widths);

    let times = times(trace, &clock);
    let mut steps = numbered_steps(trace, &found_steps, &clock);
    if let Some(first) = steps.first_mut() {
        // The first step begins with its work, not with what was built before it.
        let built = |block: &&Block| {
            kinds.get(block.kind as usize).is_none_or(|kind| {
                matches!(kind.phase, Phase::Setup | Phase::Load | Phase::Unknown)
            })
        };
        if let Some(work) = all.iter().find(|block| !built(block))
            && first.start < work.start
            && work.start < first.end
        {
            first.start = work.start - 1;
        }
    }
    let space = Space::new(&facts, &clock);
    let before: i64 = base.iter().take(widths.categories).sum();
    let grown = growth(&all, (before, changes), &steps, moments, &|kind| {
        kinds
            .get(kind as usize)
            .map_or(Category::Unknown, |kind| kind.category)
    });

    // Nobody goes through the steps of the program again, and there may be tens of millions.
    facts.program.ops = Vec::new();
    let phases = phase_runs(&all, &kinds);
    let failures = facts
        .program
        .allocations
        .iter()
        .zip(&kind_of)
        .filter(|(allocation, _)| allocation.failed)
        .map(|(allocation, &kind)| Failure {
            moment: clock.before(allocation.alloc_row as usize),
            bytes: facts.config.round_size(allocation.requested),
            // An event of a failure carries the device's free memory as its address.
            free: allocation.addr,
            kind,
        })
        .collect();
    Digest {
        history,
        blocks: all,
        smallest,
        levels,
        moments,
        times,
        reserved,
        steps,
        phases,
        failures,
        peak,
        kinds,
        keys,
        grouping,
        growth: grown,
        space,
        facts,
    }
}

impl Digest<'_> {
    /// As the page reads it.
    pub fn pack(&self, redact: &mut Redactor) -> Packed {
        Packed {
            overview: self.overview(redact),
            detail: self.detail(redact),
        }
    }

    fn allocation(&self, block: &Block) -> Option<&Allocation> {
        let allocations = &self.facts.program.allocations;
        allocations.get(block.allocation as usize)
    }

    fn requested(&self, block: &Block) -> u64 {
        self.allocation(block).map_or(0, |of| of.requested)
    }

    /// The category of a kind.
    pub fn category(&self, kind: u32) -> Category {
        self.kinds
            .get(kind as usize)
            .map_or(Category::Unknown, |kind| kind.category)
    }

    /// The module and the operator of a kind, empty where unknown.
    pub fn names(&self, kind: u32) -> (&str, &str) {
        let strings = &self.history.trace.strings;
        self.kinds.get(kind as usize).map_or(("", ""), |kind| {
            (strings.get(kind.module), strings.get(kind.op))
        })
    }

    /// The stack of a kind.
    pub fn stack(&self, kind: u32) -> StackId {
        self.kinds
            .get(kind as usize)
            .map_or(StackId::NONE, |kind| kind.stack)
    }

    /// How many kinds there are.
    pub fn kind_count(&self) -> usize {
        self.kinds.len()
    }

    /// The capacity to compare the history with.
    pub fn capacity(&self) -> Option<u64> {
        let known = self.history.trace.context.device_total.map(|bytes| bytes.0);
        self.history.options.device_total.or(known)
    }

    /// The time of a moment in µs; its number where no times are known.
    pub fn time(&self, moment: u32) -> u64 {
        match &self.times {
            Some(times) => times
                .get(moment as usize)
                .or(times.last())
                .copied()
                .unwrap_or(0),
            None => u64::from(moment),
        }
    }

    /// Bytes alive by category, moment by moment where there are few, at each bucket's highest
    /// where there are many.
    pub fn curve(&self) -> Vec<(u32, [u64; Category::ALL.len()])> {
        const FEW: u32 = 50_000;
        let by_category = |of: &dyn Fn(usize) -> u64| std::array::from_fn(of);
        if self.moments > FEW {
            let Some(level) = self.levels.first() else {
                return Vec::new();
            };
            return (0..level.high.len())
                .map(|bucket| {
                    let moment = bucket as u32 * level.span;
                    (moment, by_category(&|series| level.series[series][bucket]))
                })
                .collect();
        }
        let mut changes = vec![[0_i64; Category::ALL.len()]; self.moments as usize + 1];
        for block in &self.blocks {
            let category = usize::from(index_of(&Category::ALL, self.category(block.kind)));
            if let Some(change) = changes.get_mut(block.start as usize) {
                change[category] += block.bytes as i64;
            }
            if let Some(change) = changes.get_mut(block.end as usize) {
                change[category] -= block.bytes as i64;
            }
        }
        let mut now = [0_i64; Category::ALL.len()];
        changes
            .iter()
            .enumerate()
            .map(|(moment, change)| {
                for (now, change) in now.iter_mut().zip(change) {
                    *now += change;
                }
                (
                    moment as u32,
                    by_category(&|series| now[series].max(0) as u64),
                )
            })
            .collect()
    }

    fn overview(&self, redact: &mut Redactor) -> String {
        let mut overview = Columns::default();
        for (number, level) in self.levels.iter().enumerate() {
            overview.differences(&format!("high{number}"), &level.high);
            overview.differences(&format!("low{number}"), &level.low);
            overview.differences(&format!("reserved{number}"), &level.reserved);
            for (series, column) in level.series.iter().enumerate() {
                overview.differences(&format!("series{number}.{series}"), column);
            }
            if let Some(times) = &self.times {
                let starts: Vec<u64> = times.iter().step_by(level.span as usize).copied().collect();
                overview.differences(&format!("time{number}"), &starts);
            }
        }
        let starts: Vec<u64> = self.phases.iter().map(|run| u64::from(run.0)).collect();
        let names: Vec<u64> = self.phases.iter().map(|run| u64::from(run.1)).collect();
        overview.differences("phase_start", &starts);
        overview.plain("phase", &names);
        for (name, column) in [
            (
                "step_start",
                self.steps
                    .iter()
                    .map(|step| u64::from(step.start))
                    .collect::<Vec<_>>(),
            ),
            (
                "step_end",
                self.steps.iter().map(|step| u64::from(step.end)).collect(),
            ),
            (
                "step_number",
                self.steps
                    .iter()
                    .map(|step| u64::from(step.number))
                    .collect(),
            ),
        ] {
            overview.differences(name, &column);
        }
        let failures: Vec<Value> = self
            .failures
            .iter()
            .map(|failure| {
                json!({
                    "moment": failure.moment,
                    "bytes": failure.bytes,
                    "free": failure.free,
                    "kind": failure.kind,
                })
            })
            .collect();
        let left_out = self
            .blocks
            .iter()
            .filter(|block| self.requested(block) < self.smallest)
            .count();
        let (trace, facts) = (self.history.trace, &self.facts);
        let rows = trace.rows_of(facts.program.device);
        let context = &trace.context;
        let head = json!({
            "name": self.history.name,
            "device": facts.program.device,
            "device_name": context.device_name,
            "total": self.capacity(),
            "outside": context.outside.map(|bytes| bytes.0),
            "moments": self.moments,
            "events": rows.len(),
            "blocks": self.blocks.len() - left_out,
            "left_out": left_out,
            "left_out_below": if left_out > 0 { self.smallest } else { 0 },
            "span": self.times.as_ref().and_then(|times| times.last().copied()),
            "peak": self.peak.0,
            "peak_bytes": self.peak.1,
            "peak_reserved": facts.program.recorded_peak_reserved,
            "failures": failures,
            "categories": Category::ALL.map(Category::name),
            "phases": Phase::ALL.map(Phase::name),
            "groups": self.grouping.names.iter().map(|name| self.grouping.redacted(redact, name)).collect::<Vec<_>>(),
            "grouped_by": self.grouping.by,
            "spans": self.levels.iter().map(|level| level.span).collect::<Vec<_>>(),
            "growth": self.growth,
            "labelled": trace.labels.is_some(),
        });
        overview.finish(head)
    }

    fn detail(&self, redact: &mut Redactor) -> String {
        let trace = self.history.trace;
        let mut blocks: Vec<&Block> = self
            .blocks
            .iter()
            .filter(|block| self.requested(block) >= self.smallest)
            .collect();
        blocks.sort_by_key(|block| block.start);
        let mut detail = Columns::default();
        let column =
            |of: &dyn Fn(&Block) -> u64| blocks.iter().map(|block| of(block)).collect::<Vec<_>>();
        let (sizes, size_of) = dictionary(
            blocks
                .iter()
                .map(|block| (self.requested(block), block.bytes)),
        );
        detail.differences("start", &column(&|block| u64::from(block.start)));
        // A life of 0 never ends.
        detail.plain(
            "life",
            &column(&|block| {
                if block.end > self.moments {
                    0
                } else {
                    u64::from(block.end.saturating_sub(block.start))
                }
            }),
        );
        detail.plain("size", &size_of);
        detail.plain("kind", &column(&|block| u64::from(block.kind)));
        if let Some(space) = &self.space {
            // 0 is nowhere.
            detail.plain(
                "place",
                &column(&|block| space.place(self.allocation(block).map_or(0, |of| of.addr))),
            );
            space.pack(&mut detail);
        }
        if let Some(times) = &self.times {
            detail.differences("time", times);
        }
        detail.differences(
            "reserved_moment",
            &self
                .reserved
                .iter()
                .map(|&(moment, _)| u64::from(moment))
                .collect::<Vec<_>>(),
        );
        detail.differences(
            "reserved",
            &self
                .reserved
                .iter()
                .map(|&(_, bytes)| bytes)
                .collect::<Vec<_>>(),
        );
        let mut tree = Tree::default();
        let nodes: Vec<u64> = self
            .kinds
            .iter()
            .map(|kind| tree.add(trace, kind.stack))
            .collect();
        let mut names = Names::default();
        let name_of = |id: StringId, names: &mut Names, redact: &mut Redactor| {
            let name = redact.module(trace.strings.get(id));
            names.index(name)
        };
        let modules: Vec<u64> = self
            .kinds
            .iter()
            .map(|kind| name_of(kind.module, &mut names, redact))
            .collect();
        // Operators are PyTorch's own names, but for custom ones.
        let ops: Vec<u64> = self
            .kinds
            .iter()
            .map(|kind| {
                let op = redact.operator(trace.strings.get(kind.op));
                names.index(op)
            })
            .collect();
        detail.plain("kind_node", &nodes);
        detail.plain("kind_module", &modules);
        detail.plain("kind_op", &ops);
        let by_key = |of: fn(&Keys) -> u8| {
            self.keys
                .iter()
                .map(|key| u64::from(of(key)))
                .collect::<Vec<_>>()
        };
        detail.plain("kind_category", &by_key(|key| key.category));
        detail.plain("kind_phase", &by_key(|key| key.phase));
        detail.plain("kind_group", &by_key(|key| key.group));
        detail.plain("node_parent", &tree.parents);
        detail.plain("node_frame", &tree.frames);
        let frames = frames(trace, &tree.used, redact);
        detail.finish(json!({
            "names": names.list,
            "frames": frames,
            "sizes": sizes,
            "has_space": self.space.is_some(),
        }))
    }
}

/// The device with the most events.
pub(crate) fn busiest(trace: &Trace) -> u32 {
    trace
        .used_devices()
        .into_iter()
        .max_by_key(|&device| trace.rows_of(device).len())
        .unwrap_or(0)
}

fn index_of<T: PartialEq + Copy>(all: &[T], wanted: T) -> u8 {
    all.iter().position(|one| *one == wanted).unwrap_or(0) as u8
}

/// The smallest request that is kept one by one, so that no more than `most` are.
fn smallest_kept(mut sizes: Vec<u64>, most: usize) -> u64 {
    if sizes.len() <= most {
        return 0;
    }
    let cut = sizes.len() - most;
    // Above the largest of those that must go, so that no more than the cap stay.
    let (_, &mut largest_gone, _) = sizes.select_nth_unstable(cut - 1);
    largest_gone + 1
}

/// The moment of the most bytes alive.
fn peak(facts: &Facts, clock: &Clock) -> (u32, u64) {
    let mut live: u64 = facts
        .program
        .allocations
        .iter()
        .filter(|block| block.alloc_row == NO_ROW && !block.failed)
        .map(|block| facts.config.round_size(block.requested))
        .sum();
    let mut peak = (0, live);
    for op in &facts.program.ops {
        match *op {
            Op::Alloc(id) => {
                if let Some(block) = facts.program.allocations.get(id as usize) {
                    live = live.saturating_add(facts.config.round_size(block.requested));
                    if live > peak.1 {
                        peak = (clock.after(block.alloc_row as usize), live);
                    }
                }
            }
            Op::Free(id) => {
                if let Some(block) = facts.program.allocations.get(id as usize) {
                    live = live.saturating_sub(facts.config.round_size(block.requested));
                }
            }
            _ => {}
        }
    }
    peak
}

/// (moment, bytes reserved from then on).
fn reserved(facts: &Facts, clock: &Clock) -> Vec<(u32, u64)> {
    let mut now: u64 = facts
        .program
        .initial
        .iter()
        .map(|segment| segment.size)
        .sum();
    let mut all = vec![(0, now)];
    for event in &facts.program.driver_events {
        now = match event.action {
            Action::SegmentAlloc | Action::SegmentMap => now.saturating_add(event.size),
            _ => now.saturating_sub(event.size),
        };
        all.push((clock.after(event.row as usize), now));
    }
    all
}

/// The time of every moment in µs since the first; `None` where the recorder noted none.
fn times(trace: &Trace, clock: &Clock) -> Option<Vec<u64>> {
    let first = trace.events.time(clock.rows.start).0;
    if first <= 0 {
        return None;
    }
    let mut times = vec![0];
    let mut last = 0;
    for row in clock.marked() {
        // Threads may note their events a little out of order.
        last = last.max((trace.events.time(row).0 - first).max(0) as u64);
        times.push(last);
    }
    Some(times)
}

fn numbered_steps(trace: &Trace, found: &[steps::Step], clock: &Clock) -> Vec<Step> {
    found
        .iter()
        .enumerate()
        .map(|(index, step)| {
            let labelled = trace
                .labels
                .as_ref()
                .map_or(0, |labels| labels.get(step.start).step);
            Step {
                number: if labelled > 0 {
                    labelled
                } else {
                    index as u32 + 1
                },
                start: clock.before(step.start),
                end: clock.before(step.end),
            }
        })
        .collect()
}

/// Runs of blocks that were made in the same phase: (first moment, phase).
fn phase_runs(blocks: &[Block], kinds: &[Kind]) -> Vec<(u32, u8)> {
    let mut runs: Vec<(u32, u8)> = Vec::new();
    for block in blocks {
        let Some(kind) = kinds.get(block.kind as usize) else {
            continue;
        };
        if kind.phase == Phase::Unknown {
            continue;
        }
        let phase = index_of(&Phase::ALL, kind.phase);
        if runs.last().is_none_or(|&(_, last)| last != phase) {
            runs.push((block.start, phase));
        }
    }
    runs
}

/// (requested, taken) of each distinct size, and each block's number among them.
fn dictionary(blocks: impl Iterator<Item = (u64, u64)>) -> (Vec<[u64; 2]>, Vec<u64>) {
    let mut sizes = Vec::new();
    let mut known: HashMap<u64, u64, rustc_hash::FxBuildHasher> = HashMap::default();
    let numbers = blocks
        .map(|(requested, taken)| {
            *known.entry(requested).or_insert_with(|| {
                sizes.push([requested, taken]);
                sizes.len() as u64 - 1
            })
        })
        .collect();
    (sizes, numbers)
}

/// Modules (or lines, if there are no modules) with their own colour.
struct Grouping {
    by: &'static str,
    names: Vec<String>,
    of_kind: Vec<u8>,
}

impl Grouping {
    fn new(trace: &Trace, facts: &Facts, kinds: &[Kind], blocks: &[Block], peak: u32) -> Self {
        let by_module = kinds.iter().any(|kind| kind.module != StringId::EMPTY);
        let name = |kind: &Kind| {
            if by_module {
                return layers(trace.strings.get(kind.module));
            }
            facts
                .stacks
                .get(kind.stack)
                .user
                .map_or_else(String::new, |frame| {
                    let file = trace.strings.get(frame.file);
                    let short = file.rsplit(['/', '\\']).next().unwrap_or(file);
                    format!("{short}:{}", frame.line)
                })
        };
        let kind_names: Vec<String> = kinds.iter().map(name).collect();
        // What is alive at the peak decides.
        let mut of_kinds = vec![0_u64; kinds.len()];
        for block in blocks {
            if block.start <= peak
                && peak < block.end
                && let Some(weight) = of_kinds.get_mut(block.kind as usize)
            {
                *weight += block.bytes;
            }
        }
        let mut weights: HashMap<&str, u64> = HashMap::new();
        for (name, weight) in kind_names.iter().zip(of_kinds) {
            *weights.entry(name).or_default() += weight;
        }
        let mut ranked: Vec<(&str, u64)> = weights
            .into_iter()
            .filter(|&(name, weight)| !name.is_empty() && weight > 0)
            .collect();
        ranked.sort_by_key(|&(name, weight)| (std::cmp::Reverse(weight), name));
        ranked.truncate(GROUPS);
        let of_kind = kind_names
            .iter()
            .map(|name| {
                let place = ranked.iter().position(|(known, _)| known == name);
                place.unwrap_or(ranked.len()) as u8
            })
            .collect();
        let mut names: Vec<String> = ranked.iter().map(|(name, _)| (*name).to_owned()).collect();
        names.push("other".to_owned());
        Self {
            by: if by_module { "module" } else { "line" },
            names,
            of_kind,
        }
    }

    fn redacted(&self, redact: &mut Redactor, name: &str) -> String {
        match (self.by, name) {
            (_, "other") => name.to_owned(),
            ("module", _) => redact.module(name),
            _ => match name.rsplit_once(':') {
                Some((file, line)) => format!("{}:{line}", redact.file(file)),
                None => redact.file(name),
            },
        }
    }
}

/// A module's name over all layers of a stack: `h.0.mlp` and `h.1.mlp` are `h.*.mlp`.
fn layers(module: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = module
        .split('.')
        .map(|part| if is_number(part) { "*" } else { part })
        .collect();
    parts.join(".")
}

/// Segments through time, and their addresses without the gaps between them.
struct Space {
    /// (address, size, offset without gaps), by address.
    extents: Vec<(u64, u64, u64)>,
    /// (address, size, first moment, moment when gone).
    pieces: Vec<(u64, u64, u32, u32)>,
}

impl Space {
    /// `None` where the history has no segments, or too many.
    fn new(facts: &Facts, clock: &Clock) -> Option<Self> {
        let mut open: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        let mut pieces: Vec<(u64, u64, u32, u32)> = Vec::new();
        for segment in &facts.program.initial {
            open.insert(segment.addr, (segment.size, 0));
        }
        for event in &facts.program.driver_events {
            let moment = clock.after(event.row as usize);
            let end = event.addr.saturating_add(event.size);
            if matches!(event.action, Action::SegmentAlloc | Action::SegmentMap) {
                open.insert(event.addr, (event.size, moment));
                continue;
            }
            // What overlaps goes; what sticks out on either side stays as a piece of its own.
            let overlapping: Vec<(u64, u64, u32)> = open
                .range(..end)
                .rev()
                .take_while(|&(&addr, &(size, _))| addr.saturating_add(size) > event.addr)
                .map(|(&addr, &(size, since))| (addr, size, since))
                .collect();
            for (addr, size, since) in overlapping {
                open.remove(&addr);
                pieces.push((addr, size, since, moment));
                if addr < event.addr {
                    open.insert(addr, (event.addr - addr, moment));
                }
                let piece_end = addr.saturating_add(size);
                if piece_end > end {
                    open.insert(end, (piece_end - end, moment));
                }
            }
        }
        let never = clock.last() + 1;
        pieces.extend(
            open.into_iter()
                .map(|(addr, (size, since))| (addr, size, since, never)),
        );
        if pieces.is_empty() || pieces.len() > MAX_PIECES {
            return None;
        }
        pieces.sort_unstable();
        let mut extents: Vec<(u64, u64, u64)> = Vec::new();
        for &(addr, size, ..) in &pieces {
            let end = addr.saturating_add(size);
            match extents.last_mut() {
                Some((start, length, _)) if *start + *length >= addr => {
                    *length = (*length).max(end - *start);
                }
                _ => extents.push((addr, size, 0)),
            }
        }
        let mut offset = 0_u64;
        for extent in &mut extents {
            extent.2 = offset;
            offset = offset.saturating_add(extent.1);
        }
        Some(Self { extents, pieces })
    }

    /// An address as an offset without gaps, in units of 512 bytes and counted from 1; 0 is outside
    /// of every segment.
    fn place(&self, addr: u64) -> u64 {
        let after = self.extents.partition_point(|&(start, ..)| start <= addr);
        match after.checked_sub(1).and_then(|at| self.extents.get(at)) {
            Some(&(start, size, offset)) if addr - start < size => {
                (offset + (addr - start)) / GRAIN + 1
            }
            _ => 0,
        }
    }

    fn pack(&self, columns: &mut Columns) {
        let extent =
            |of: fn(&(u64, u64, u64)) -> u64| self.extents.iter().map(of).collect::<Vec<_>>();
        columns.differences("extent_addr", &extent(|extent| extent.0));
        columns.plain("extent_size", &extent(|extent| extent.1));
        let piece =
            |of: fn(&(u64, u64, u32, u32)) -> u64| self.pieces.iter().map(of).collect::<Vec<_>>();
        columns.differences("piece_addr", &piece(|piece| piece.0));
        columns.plain("piece_size", &piece(|piece| piece.1));
        columns.plain("piece_start", &piece(|piece| u64::from(piece.2)));
        columns.plain("piece_end", &piece(|piece| u64::from(piece.3)));
    }
}

/// Stacks as a tree, outermost frame first: node 0 is the root.
struct Tree {
    parents: Vec<u64>,
    /// Numbers into [`Tree::used`].
    frames: Vec<u64>,
    used: Vec<FrameId>,
    known: HashMap<(u64, FrameId), u64, rustc_hash::FxBuildHasher>,
    numbers: HashMap<FrameId, u64, rustc_hash::FxBuildHasher>,
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            parents: vec![0],
            frames: vec![0],
            used: Vec::new(),
            known: HashMap::default(),
            numbers: HashMap::default(),
        }
    }
}

impl Tree {
    fn add(&mut self, trace: &Trace, stack: StackId) -> u64 {
        let members = trace.stacks.stack(stack);
        let mut node = 0;
        for &frame in members.iter().rev().take(MAX_DEPTH) {
            let number = *self.numbers.entry(frame).or_insert_with(|| {
                self.used.push(frame);
                self.used.len() as u64 - 1
            });
            let (parents, frames) = (&mut self.parents, &mut self.frames);
            node = *self.known.entry((node, frame)).or_insert_with(|| {
                parents.push(node);
                frames.push(number);
                parents.len() as u64 - 1
            });
        }
        node
    }
}

/// `[file, function, line, kind]` of each frame; kind is 2 for the user's own code, 3 for what only
/// passes calls on, 1 for other Python, 0 for what lies below.
fn frames(trace: &Trace, used: &[FrameId], redact: &mut Redactor) -> Vec<Value> {
    used.iter()
        .map(|&id| {
            let frame = trace.stacks.frame(id);
            let file = trace.strings.get(frame.file);
            let function = trace.strings.get(frame.name);
            let kind = match (frame.is_python(&trace.strings), is_users_own(file)) {
                (true, true) => 2,
                (true, false) if is_plumbing(file, function) || is_training_loop(file) => 3,
                (true, false) => 1,
                _ => 0,
            };
            let python = frame.is_python(&trace.strings);
            let (file, function) = redact.frame(file, function, python);
            json!([file, function, frame.line, kind])
        })
        .collect()
}

/// Distinct names.
#[derive(Default)]
struct Names {
    list: Vec<String>,
    known: HashMap<String, u64>,
}

impl Names {
    fn index(&mut self, name: String) -> u64 {
        if let Some(&index) = self.known.get(&name) {
            return index;
        }
        let index = self.list.len() as u64;
        self.known.insert(name.clone(), index);
        self.list.push(name);
        index
    }
}
