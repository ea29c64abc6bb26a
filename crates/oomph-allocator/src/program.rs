//! A history as a program for the simulator: which requests, when and for how long, and the
//! initial state.

use hashbrown::HashMap;
use oomph_trace::{Action, BlockState, PoolId, Problem, ProblemKind, StackId, Trace};
use rustc_hash::FxBuildHasher;

use crate::config::{Config, SMALL_LIMIT};
use crate::pools;

type AddrMap<V> = HashMap<u64, V, FxBuildHasher>;

/// No row: before the history began, or after it ended.
pub const NO_ROW: u32 = u32::MAX;

/// A pool's number among a program's pools. Histories have tens of millions of allocations and
/// steps, so they keep this and not a [`PoolId`] of sixteen bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolIndex(u32);

impl PoolIndex {
    /// The pool that everything without a capture or `MemPool` uses.
    pub const DEFAULT: Self = Self(0);
}

/// The pools that a program knows.
#[derive(Debug, Clone)]
pub struct Pools {
    ids: Vec<PoolId>,
    known: HashMap<PoolId, PoolIndex, FxBuildHasher>,
}

impl Default for Pools {
    fn default() -> Self {
        Self {
            ids: vec![PoolId::DEFAULT],
            known: HashMap::from_iter([(PoolId::DEFAULT, PoolIndex::DEFAULT)]),
        }
    }
}

impl Pools {
    /// The number of a pool, a new one if needed.
    pub fn intern(&mut self, id: PoolId) -> PoolIndex {
        if id == PoolId::DEFAULT {
            return PoolIndex::DEFAULT;
        }
        *self.known.entry(id).or_insert_with(|| {
            self.ids.push(id);
            PoolIndex(self.ids.len() as u32 - 1)
        })
    }

    /// The pool of a number that these pools gave.
    pub fn get(&self, index: PoolIndex) -> PoolId {
        self.ids[index.0 as usize]
    }
}

/// One allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// What the program asked for.
    pub requested: u64,
    /// On which stream.
    pub stream: u64,
    /// In which pool: one of [`Program::pools`].
    pub pool: PoolIndex,
    /// Where it was, as recorded.
    pub addr: u64,
    /// The stack that made it, where recorded.
    pub stack: StackId,
    /// The event that made it, [`NO_ROW`] if it is older than the history.
    pub alloc_row: u32,
    /// The event that freed it, [`NO_ROW`] if it outlived the history.
    pub free_row: u32,
    /// Whether this is the request that failed.
    pub failed: bool,
    /// The segment that contains it: an index from [`crate::pools`], [`NO_UNIT`] if
    /// not needed.
    pub(crate) unit: u32,
}

/// No segment is known.
pub(crate) const NO_UNIT: u32 = u32::MAX;

/// A step of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Make allocation number n.
    Alloc(u32),
    /// Free allocation number n.
    Free(u32),
    /// Allocation number n was refused.
    Fail(u32),
    /// Driver event number n took place.
    Driver(u32),
    /// The program emptied the cache (`torch.cuda.empty_cache()`).
    EmptyCache,
    /// A private pool is no longer used: a graph or a `MemPool` ended.
    Retire(PoolIndex),
    /// The free memory of a private pool was released, and nothing else: a `MemPool` ended.
    EmptyPrivatePool(PoolIndex),
}

/// What the driver did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverEvent {
    /// One of the four segment actions.
    pub action: Action,
    /// Where.
    pub addr: u64,
    /// How much.
    pub size: u64,
    /// On which stream.
    pub stream: u64,
    /// In which pool.
    pub pool: PoolId,
    /// The event's row.
    pub row: u32,
    /// As [`Allocation::unit`].
    pub(crate) unit: u32,
}

/// A segment that existed before the history began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitialSegment {
    /// Where it begins. An expandable segment is one, with all pages that it has mapped.
    pub addr: u64,
    /// Its size; of an expandable segment, what is mapped of it.
    pub size: u64,
    /// Its stream.
    pub stream: u64,
    /// Its pool.
    pub pool: PoolId,
    /// Whether it serves small requests.
    pub is_small: bool,
    /// Whether it could grow in place.
    pub is_expandable: bool,
    /// Its blocks: address, size, requested, and the allocation that holds it. Between those of an
    /// expandable segment may be gaps, which are not mapped.
    pub blocks: Vec<(u64, u64, u64, Option<u32>)>,
}

/// The history of one device as a program.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// The device.
    pub device: u32,
    /// All allocations; those older than the history come first.
    pub allocations: Vec<Allocation>,
    /// The steps.
    pub ops: Vec<Op>,
    /// The pools that allocations and steps name.
    pub pools: Pools,
    /// What the driver did.
    pub driver_events: Vec<DriverEvent>,
    /// The state at the beginning; empty for a complete history.
    pub initial: Vec<InitialSegment>,
    /// Number of events that this was made of.
    pub events: usize,
    /// The most that was reserved at any moment, as recorded.
    pub recorded_peak_reserved: u64,
    /// Inconsistencies.
    pub problems: Vec<Problem>,
    /// Whether the events name their pools.
    pub(crate) knows_pools: bool,
    /// Segments over time, if the events do not name their pools.
    pub(crate) units: Vec<pools::Unit>,
}

/// What the allocator could have reserved, inferred from a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// It could reserve this much.
    pub at_least: u64,
    /// It could not reserve this much.
    pub below: u64,
    /// Whether the device was full, rather than the process at its limit.
    pub by_device: bool,
    /// The device's free memory at the failure.
    pub device_free: u64,
}

impl Program {
    /// Whether the history begins at the first allocation.
    pub fn is_complete(&self) -> bool {
        self.initial.is_empty()
    }

    /// The allocation that failed, if one did, with the driver's free memory at that moment.
    pub fn failure(&self) -> Option<&Allocation> {
        self.allocations
            .iter()
            .rev()
            .find(|allocation| allocation.failed)
    }

    /// What the allocator could have reserved, told from the failure: at least what it did hold at
    /// its peak, and less than what it held at the failure plus what it asked for then.
    ///
    /// `None` without a failure.
    pub fn room(&self, config: &Config) -> Option<Room> {
        let failure = self.failure()?;
        let segment = config.segment_size(config.round_size(failure.requested));
        // An event of a failure carries the device's free memory as its address.
        let device_free = failure.addr;
        let at_failure = self.reserved_at(failure.alloc_row);
        let by_device = device_free < segment;
        Some(Room {
            at_least: if by_device {
                self.recorded_peak_reserved
                    .max(at_failure.saturating_add(device_free) >> 21 << 21)
            } else {
                self.recorded_peak_reserved
            },
            below: at_failure
                .saturating_add(segment)
                .max(self.recorded_peak_reserved + 1),
            by_device,
            device_free,
        })
    }

    /// What was reserved just before an event.
    pub fn reserved_at(&self, row: u32) -> u64 {
        let initial: u64 = self.initial.iter().map(|segment| segment.size).sum();
        self.driver_events
            .iter()
            .take_while(|event| event.row < row)
            .fold(initial, |reserved, event| match event.action {
                Action::SegmentAlloc | Action::SegmentMap => reserved.saturating_add(event.size),
                _ => reserved.saturating_sub(event.size),
            })
    }

    /// Makes the program of a device's history.
    pub fn new(trace: &Trace, device: u32, config: &Config) -> Self {
        let rows = trace.rows_of(device);
        let mut program = Self {
            device,
            events: rows.len(),
            knows_pools: trace.events.knows_pools(),
            ..Self::default()
        };
        let mut state = program.roll_back(trace, rows.clone(), config);
        state.learn_ends(trace, rows.clone(), config);
        let starts = state.expandable_starts(trace, rows.clone(), config);
        let mut live: AddrMap<u32> = HashMap::with_hasher(FxBuildHasher);
        program.adopt(state, &starts, config, &mut live);
        program.roll_forward(trace, rows, &mut live);
        if !program.knows_pools {
            pools::assign(&mut program, trace);
        }
        pools::retire(&mut program);
        program
    }

    /// Whether anything lies in a pool of a CUDA graph or a `MemPool`.
    pub(crate) fn has_private_pools(&self) -> bool {
        self.driver_events
            .iter()
            .any(|event| event.pool != PoolId::DEFAULT)
            || self
                .initial
                .iter()
                .any(|segment| segment.pool != PoolId::DEFAULT)
    }

    /// Undoes all events from the final state on.
    fn roll_back(&mut self, trace: &Trace, rows: std::ops::Range<usize>, config: &Config) -> State {
        let mut state = State::default();
        for segment in trace.segments.iter().filter(|s| s.device == self.device) {
            state.segments.insert(
                segment.addr.0,
                SegmentState {
                    size: segment.size.0,
                    stream: segment.stream.0,
                    pool: segment.pool,
                    is_small: segment.is_small,
                    is_expandable: segment.is_expandable,
                },
            );
            for block in trace.blocks_of(segment) {
                if block.state != BlockState::Inactive {
                    state.live.insert(
                        block.addr.0,
                        LiveBlock {
                            requested: block.requested.0,
                            size: Some(block.size.0),
                            stream: segment.stream.0,
                            stack: block.stack,
                            free_row: NO_ROW,
                        },
                    );
                }
            }
        }
        if trace.segments.is_empty() {
            // Without a final state there is nothing to roll back: treat the history as
            // complete, and let the missing beginning show up as frees of unknown blocks.
            return State::default();
        }
        let events = &trace.events;
        let mut wrong = 0_usize;
        for row in rows.rev() {
            let addr = events.addr(row).0;
            let size = events.size(row).0;
            match events.action(row) {
                Action::Alloc => wrong += usize::from(state.live.remove(&addr).is_none()),
                Action::FreeCompleted => {
                    state.live.insert(
                        addr,
                        LiveBlock {
                            requested: size,
                            size: None,
                            stream: events.stream(row).0,
                            stack: StackId::NONE,
                            free_row: row as u32,
                        },
                    );
                }
                Action::SegmentAlloc => {
                    wrong += usize::from(state.segments.remove(&addr).is_none());
                }
                Action::SegmentFree => {
                    state.segments.insert(
                        addr,
                        SegmentState {
                            size,
                            stream: events.stream(row).0,
                            pool: events.pool(row),
                            // A free large segment of 2 MiB is impossible: the smallest is 10 MiB.
                            is_small: size <= 2 * SMALL_LIMIT,
                            is_expandable: false,
                        },
                    );
                }
                Action::SegmentMap => state.cut(addr, size),
                Action::SegmentUnmap => {
                    let stream = events.stream(row).0;
                    state.join(addr, size, stream, config.large_segment_size);
                }
                _ => {}
            }
        }
        if wrong > 0 {
            self.problems.push(Problem::new(
                ProblemKind::Inconsistent,
                format!(
                    "{wrong} events contradict the final state of the snapshot; \
                     the replay is approximate"
                ),
            ));
        }
        // Live blocks outside of every segment are leftovers of such a contradiction.
        state
    }

    /// Builds the initial segments and their allocations.
    fn adopt(
        &mut self,
        state: State,
        starts: &HashMap<ExpandableKey, u64>,
        config: &Config,
        live: &mut AddrMap<u32>,
    ) {
        let mut blocks: Vec<(u64, LiveBlock)> = state.live.into_iter().collect();
        blocks.sort_unstable_by_key(|&(addr, _)| addr);
        let mut next_block = 0;
        let mut lost = 0_usize;
        let mut expandable: HashMap<ExpandableKey, usize> = HashMap::new();
        for (start, segment) in state.segments {
            let end = start.saturating_add(segment.size);
            let mut found: Vec<(u64, u64, u64, Option<u32>)> = Vec::new();
            while let Some((addr, _)) = blocks.get(next_block)
                && *addr < start
            {
                lost += 1;
                next_block += 1;
            }
            let mut at = start;
            while let Some(&(addr, block)) = blocks.get(next_block)
                && addr < end
            {
                let following = blocks
                    .get(next_block + 1)
                    .map_or(end, |&(next, _)| next)
                    .min(end);
                next_block += 1;
                if addr < at {
                    lost += 1;
                    continue;
                }
                if addr > at {
                    found.push((at, addr - at, 0, None));
                }
                let room = following - addr;
                let rounded = config.round_size(block.requested).min(room);
                let size = block.size.unwrap_or_else(|| {
                    // What is too small to be split off belongs to the block before it.
                    let rest = room - rounded;
                    let splits = if segment.is_small || segment.is_expandable {
                        rest > 0
                    } else {
                        rest > SMALL_LIMIT && rounded < config.max_split_size
                    };
                    if splits { rounded } else { room }
                });
                let size = size.min(room);
                let id = self.allocations.len() as u32;
                let pool = self.pools.intern(segment.pool);
                self.allocations.push(Allocation {
                    requested: block.requested,
                    stream: block.stream,
                    pool,
                    addr,
                    stack: block.stack,
                    alloc_row: NO_ROW,
                    free_row: NO_ROW,
                    failed: false,
                    unit: NO_UNIT,
                });
                live.insert(addr, id);
                found.push((addr, size, block.requested, Some(id)));
                at = addr.saturating_add(size);
            }
            if at < end {
                found.push((at, end - at, 0, None));
            }
            let key = segment.key();
            // The mapped ranges of one expandable segment are one segment.
            if segment.is_expandable
                && let Some(whole) = expandable
                    .get(&key)
                    .and_then(|&at| self.initial.get_mut(at))
            {
                whole.size = whole.size.saturating_add(segment.size);
                whole.blocks.append(&mut found);
                continue;
            }
            let mut addr = start;
            if segment.is_expandable {
                expandable.insert(key, self.initial.len());
                addr = starts.get(&key).copied().unwrap_or(start).min(start);
            }
            self.initial.push(InitialSegment {
                addr,
                size: segment.size,
                stream: segment.stream,
                pool: segment.pool,
                is_small: segment.is_small,
                is_expandable: segment.is_expandable,
                blocks: found,
            });
        }
        lost += blocks.len().saturating_sub(next_block);
        if !self.initial.is_empty() {
            self.problems.push(Problem::new(
                ProblemKind::Incomplete,
                format!(
                    "the history does not begin at the first allocation: {} segments with {} \
                     blocks are older and come from its final state",
                    self.initial.len(),
                    self.allocations.len()
                ),
            ));
        }
        if lost > 0 {
            self.problems.push(Problem::new(
                ProblemKind::Inconsistent,
                format!("{lost} blocks are outside every segment and were ignored"),
            ));
        }
    }

    fn roll_forward(
        &mut self,
        trace: &Trace,
        rows: std::ops::Range<usize>,
        live: &mut AddrMap<u32>,
    ) {
        let events = &trace.events;
        let mut reserved: u64 = self.initial.iter().map(|segment| segment.size).sum();
        let mut peak = reserved;
        let mut unknown_frees = 0_usize;
        let mut double = 0_usize;
        // Releases that no request follows: the program emptied the cache.
        let mut run_of_releases = false;
        for row in rows {
            let action = events.action(row);
            let addr = events.addr(row).0;
            let size = events.size(row).0;
            let follows_pressure = matches!(
                action,
                Action::SegmentAlloc
                    | Action::SegmentMap
                    | Action::SegmentFree
                    | Action::SegmentUnmap
                    | Action::Oom
            );
            if run_of_releases && !follows_pressure {
                self.ops.push(Op::EmptyCache);
            }
            run_of_releases = false;
            match action {
                Action::Alloc | Action::Oom => {
                    let failed = action == Action::Oom;
                    let id = self.allocations.len() as u32;
                    let pool = self.pools.intern(events.pool(row));
                    self.allocations.push(Allocation {
                        requested: size,
                        stream: events.stream(row).0,
                        pool,
                        addr,
                        stack: events.stack(row),
                        alloc_row: row as u32,
                        free_row: NO_ROW,
                        failed,
                        unit: NO_UNIT,
                    });
                    if failed {
                        self.ops.push(Op::Fail(id));
                    } else {
                        if live.insert(addr, id).is_some() {
                            double += 1;
                        }
                        self.ops.push(Op::Alloc(id));
                    }
                }
                Action::FreeCompleted => match live.remove(&addr) {
                    Some(id) => {
                        if let Some(allocation) = self.allocations.get_mut(id as usize) {
                            allocation.free_row = row as u32;
                        }
                        self.ops.push(Op::Free(id));
                    }
                    None => unknown_frees += 1,
                },
                Action::SegmentAlloc
                | Action::SegmentMap
                | Action::SegmentFree
                | Action::SegmentUnmap => {
                    if matches!(action, Action::SegmentAlloc | Action::SegmentMap) {
                        reserved = reserved.saturating_add(size);
                        peak = peak.max(reserved);
                    } else {
                        reserved = reserved.saturating_sub(size);
                        run_of_releases = true;
                    }
                    self.ops.push(Op::Driver(self.driver_events.len() as u32));
                    self.driver_events.push(DriverEvent {
                        action,
                        addr,
                        size,
                        stream: events.stream(row).0,
                        pool: events.pool(row),
                        row: row as u32,
                        unit: NO_UNIT,
                    });
                }
                _ => {}
            }
        }
        if run_of_releases {
            self.ops.push(Op::EmptyCache);
        }
        self.recorded_peak_reserved = peak;
        if unknown_frees > 0 {
            self.problems.push(Problem::new(
                ProblemKind::Incomplete,
                format!("{unknown_frees} frees refer to blocks whose allocation is not recorded"),
            ));
        }
        if double > 0 {
            self.problems.push(Problem::new(
                ProblemKind::Inconsistent,
                format!("{double} blocks are allocated twice without a free between"),
            ));
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct LiveBlock {
    requested: u64,
    // Known for blocks that live to the end, and where something shows where they end.
    size: Option<u64>,
    stream: u64,
    stack: StackId,
    free_row: u32,
}

/// Stream, pool, and whether it serves small requests: PyTorch grows one expandable segment for
/// each until its address space is used up.
type ExpandableKey = (u64, PoolId, bool);

#[derive(Debug, Clone, Copy)]
struct SegmentState {
    size: u64,
    stream: u64,
    pool: PoolId,
    is_small: bool,
    is_expandable: bool,
}

impl SegmentState {
    fn key(&self) -> ExpandableKey {
        (self.stream, self.pool, self.is_small)
    }
}

#[derive(Debug)]
struct State {
    segments: std::collections::BTreeMap<u64, SegmentState>,
    live: AddrMap<LiveBlock>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            segments: std::collections::BTreeMap::new(),
            live: HashMap::with_hasher(FxBuildHasher),
        }
    }
}

impl State {
    /// Undoes a map: takes the range out of the mapped segment that holds it.
    fn cut(&mut self, addr: u64, size: u64) {
        let end = addr.saturating_add(size);
        let Some((&start, &segment)) = self.segments.range(..=addr).next_back() else {
            return;
        };
        let segment_end = start.saturating_add(segment.size);
        if segment_end < end {
            return;
        }
        self.segments.remove(&start);
        if start < addr {
            self.segments.insert(
                start,
                SegmentState {
                    size: addr - start,
                    ..segment
                },
            );
        }
        if end < segment_end {
            self.segments.insert(
                end,
                SegmentState {
                    size: segment_end - end,
                    ..segment
                },
            );
        }
    }

    /// Undoes an unmap: adds the range, joined with its neighbours. Pages of the small pool are
    /// 2 MiB, those of the large one `large_page`; the pool is that of the nearest pages.
    fn join(&mut self, addr: u64, size: u64, stream: u64, large_page: u64) {
        let mut start = addr;
        let mut end = addr.saturating_add(size);
        let must_be_small = !size.is_multiple_of(large_page.max(1));
        let fits = |segment: &SegmentState| {
            segment.is_expandable
                && segment.stream == stream
                && (segment.is_small || !must_be_small)
        };
        let before = self
            .segments
            .range(..addr)
            .rev()
            .find(|(_, segment)| fits(segment));
        let after = self
            .segments
            .range(end..)
            .find(|(_, segment)| fits(segment));
        let before = before.map(|(&at, &segment)| (at, at.saturating_add(segment.size), segment));
        let after = after.map(|(&at, &segment)| (at, segment));
        let gap_before = before.map_or(u64::MAX, |(_, end, _)| addr.saturating_sub(end));
        let gap_after = after.map_or(u64::MAX, |(at, _)| at.saturating_sub(end));
        let nearest = if gap_before <= gap_after {
            before.map(|(_, _, segment)| segment)
        } else {
            after.map(|(_, segment)| segment)
        };
        let (is_small, pool) = nearest.map_or((must_be_small, PoolId::DEFAULT), |segment| {
            (segment.is_small, segment.pool)
        });
        if let Some((at, before_end, segment)) = before
            && before_end == addr
            && (segment.is_small, segment.pool) == (is_small, pool)
        {
            start = at;
            self.segments.remove(&at);
        }
        if let Some((at, segment)) = after
            && at == end
            && (segment.is_small, segment.pool) == (is_small, pool)
        {
            end = end.saturating_add(segment.size);
            self.segments.remove(&at);
        }
        self.segments.insert(
            start,
            SegmentState {
                size: end - start,
                stream,
                pool,
                is_small,
                is_expandable: true,
            },
        );
    }

    /// A block of a plain large segment may be up to 1 MiB larger than its request. Blocks there
    /// are larger than 1 MiB, so one that was placed less than that behind it shows where it ends.
    fn learn_ends(&mut self, trace: &Trace, rows: std::ops::Range<usize>, config: &Config) {
        let large: Vec<(u64, u64)> = self
            .segments
            .iter()
            .filter(|(_, segment)| !segment.is_small && !segment.is_expandable)
            .map(|(&start, segment)| (start, start.saturating_add(segment.size)))
            .collect();
        let mut unknown: Vec<(u64, u64, u32)> = self
            .live
            .iter()
            .filter(|(_, block)| block.size.is_none() && block.requested < config.max_split_size)
            .map(|(&addr, block)| {
                let end = addr.saturating_add(config.round_size(block.requested));
                (addr, end, block.free_row)
            })
            .filter(|&(addr, ..)| {
                let at = large.partition_point(|&(start, _)| start <= addr);
                at.checked_sub(1)
                    .and_then(|at| large.get(at))
                    .is_some_and(|&(_, end)| addr < end)
            })
            .collect();
        if unknown.is_empty() {
            return;
        }
        unknown.sort_unstable();
        for row in rows {
            if trace.events.action(row) != Action::Alloc {
                continue;
            }
            let addr = trace.events.addr(row).0;
            let at = unknown.partition_point(|&(start, ..)| start < addr);
            let Some(&(start, end, free_row)) = at.checked_sub(1).and_then(|at| unknown.get(at))
            else {
                continue;
            };
            if (row as u32) < free_row
                && addr > end
                && addr - end <= SMALL_LIMIT
                && let Some(block) = self.live.get_mut(&start)
            {
                block.size = Some(block.size.unwrap_or(u64::MAX).min(addr - start));
            }
        }
    }

    /// Where each expandable segment begins: at its first page, mapped at the beginning or later.
    fn expandable_starts(
        &self,
        trace: &Trace,
        rows: std::ops::Range<usize>,
        config: &Config,
    ) -> HashMap<ExpandableKey, u64> {
        // A hole was mapped once, so it is no larger than what was reserved: another expandable
        // segment, which has address space for more than the device, is farther away.
        let mut starts: HashMap<ExpandableKey, u64> = HashMap::new();
        let mut reserved = 0_u64;
        for (&start, segment) in &self.segments {
            reserved = reserved.saturating_add(segment.size);
            if segment.is_expandable {
                let first = starts.entry(segment.key()).or_insert(start);
                *first = start.min(*first);
            }
        }
        if starts.is_empty() {
            return starts;
        }
        let events = &trace.events;
        let mut reach = reserved;
        for row in rows {
            let (addr, size) = (events.addr(row).0, events.size(row).0);
            match events.action(row) {
                Action::SegmentAlloc | Action::SegmentMap => {
                    reserved = reserved.saturating_add(size);
                }
                Action::SegmentFree | Action::SegmentUnmap => {
                    reserved = reserved.saturating_sub(size);
                }
                _ => {}
            }
            reach = reach.max(reserved);
            if events.action(row) != Action::SegmentMap {
                continue;
            }
            let above = starts
                .iter_mut()
                .filter(|((stream, _, is_small), first)| {
                    *stream == events.stream(row).0
                        && (*is_small || size.is_multiple_of(config.large_segment_size.max(1)))
                        && addr < **first
                })
                .min_by_key(|(_, first)| **first);
            if let Some((_, first)) = above
                && *first - addr <= reach
            {
                *first = addr;
            }
        }
        starts
    }
}
