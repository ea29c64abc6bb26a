//! Runs a program: against the record, to show that the simulation is exact, or under other
//! conditions, to see what would have happened.

use oomph_trace::{Action, PoolId};

use crate::config::Config;
use crate::driver::{AddressModel, Driver};
use crate::program::{DriverEvent, Op, Program};
use crate::simulator::{BlockId, Simulator, Stats};

/// Mismatches that are kept in full; the others are counted.
const MAX_KEPT: usize = 16;

/// An event that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The event's row.
    pub row: u32,
    /// What the record says and what the simulation did.
    pub what: String,
}

/// The result of a replay with the recorded driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Events of the history.
    pub events: usize,
    /// Events that differ.
    pub mismatches: usize,
    /// The first of them.
    pub examples: Vec<Mismatch>,
    /// The amounts, as simulated.
    pub stats: Stats,
    /// How often the cache was emptied to serve a request.
    pub retries: u64,
}

/// The recorded driver: answers with the recorded addresses.
#[derive(Debug, Clone, Default)]
struct Tape {
    events: Vec<DriverEvent>,
    // The events between the last step and the next one.
    next: usize,
    end: usize,
    wrong: Vec<(u32, String)>,
    wrong_count: usize,
    total: u64,
    // The row of the request at hand, and whether it was refused in the record.
    row: u32,
    fails: bool,
    // The first address that was released against the record.
    conflict: Option<(u32, u64)>,
}

fn is_release(event: &DriverEvent) -> bool {
    matches!(event.action, Action::SegmentFree | Action::SegmentUnmap)
}

impl Tape {
    fn peek(&self) -> Option<DriverEvent> {
        if self.next < self.end {
            self.events.get(self.next).copied()
        } else {
            None
        }
    }

    fn complain(&mut self, row: u32, what: impl FnOnce() -> String) {
        self.wrong_count += 1;
        if self.wrong.len() < MAX_KEPT {
            let what = what();
            self.wrong.push((row, what));
        }
    }

    /// A release: the record must have the same one, in any order within its run.
    fn released(&mut self, action: Action, addr: u64, size: u64) {
        let run = self
            .events
            .get(self.next..self.end)
            .unwrap_or(&[])
            .iter()
            .take_while(|event| is_release(event))
            .position(|event| event.action == action && event.addr == addr && event.size == size);
        if let Some(offset) = run {
            let found = self.next + offset;
            if let Some(run) = self.events.get_mut(self.next..=found) {
                run.rotate_right(1);
            }
            self.next += 1;
        } else {
            let row = self.peek().map_or(self.row, |event| event.row);
            self.conflict = self.conflict.or(Some((row, addr)));
            self.complain(row, || {
                format!("the simulation releases {size} bytes at {addr:#x}, the record does not")
            });
        }
    }
}

impl Driver for Tape {
    fn malloc(&mut self, size: u64) -> Option<u64> {
        let event = self.peek()?;
        if event.action != Action::SegmentAlloc {
            // The record releases memory first: this request was refused.
            return None;
        }
        if event.size != size {
            self.complain(event.row, || {
                format!(
                    "the simulation asks for {size} bytes, the record for {}",
                    event.size
                )
            });
        }
        self.next += 1;
        Some(event.addr)
    }

    fn free(&mut self, addr: u64, size: u64) {
        self.released(Action::SegmentFree, addr, size);
    }

    fn reserve(&mut self, _size: u64) -> Option<u64> {
        // Pages are first mapped at the beginning of the reserved space.
        self.peek()
            .filter(|event| event.action == Action::SegmentMap)
            .map(|event| event.addr)
    }

    fn map(&mut self, addr: u64, size: u64) -> bool {
        match self.peek() {
            Some(event) if event.action == Action::SegmentMap => {
                if (event.addr, event.size) != (addr, size) {
                    self.complain(event.row, || {
                        format!(
                            "the simulation maps {size} bytes at {addr:#x}, the record {} at {:#x}",
                            event.size, event.addr
                        )
                    });
                }
                self.next += 1;
                true
            }
            _ => false,
        }
    }

    fn unmap(&mut self, addr: u64, size: u64) {
        self.released(Action::SegmentUnmap, addr, size);
    }

    fn device_total(&self) -> u64 {
        self.total
    }

    fn refuses(&self) -> bool {
        // Memory is given back before a request only where it was refused first.
        self.peek().map_or(self.fails, |event| is_release(&event))
    }
}

/// The blocks of a program's allocations while it runs.
struct Blocks(Vec<Option<BlockId>>);

impl Blocks {
    fn new(program: &Program) -> Self {
        Self(vec![None; program.allocations.len()])
    }

    #[inline]
    fn set(&mut self, allocation: u32, block: BlockId) {
        if let Some(slot) = self.0.get_mut(allocation as usize) {
            *slot = Some(block);
        }
    }

    #[inline]
    fn take(&mut self, allocation: u32) -> Option<BlockId> {
        self.0.get_mut(allocation as usize)?.take()
    }
}

fn adopt<D: Driver>(program: &Program, simulator: &mut Simulator<D>, blocks: &mut Blocks) {
    for segment in &program.initial {
        let states: Vec<(u64, u64, u64, bool)> = segment
            .blocks
            .iter()
            .map(|&(addr, size, requested, user)| (addr, size, requested, user.is_some()))
            .collect();
        // Under settings without expandable segments, those of before are as good as plain ones.
        let ids = if segment.is_expandable && simulator.config().expandable_segments {
            simulator.adopt_expandable(
                segment.stream,
                segment.pool,
                segment.is_small,
                segment.addr,
                &states,
            )
        } else {
            simulator.adopt_segment(segment.stream, segment.pool, segment.is_small, &states)
        };
        for (&(.., user), id) in segment.blocks.iter().zip(ids) {
            if let Some(allocation) = user {
                blocks.set(allocation, id);
            }
        }
    }
}

/// Where the record contradicts the simulation for the first time, and the two segments that the
/// contradiction is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// The event's row.
    pub(crate) row: u32,
    /// How large the contradiction is there.
    pub(crate) count: usize,
    /// An address in the segment that the record used.
    pub(crate) recorded: Option<u64>,
    /// An address in the segment that the simulation used.
    pub(crate) simulated: Option<u64>,
}

/// Replays a program with the addresses that the driver returned, and compares every event.
pub fn recorded(program: &Program, config: &Config) -> Replayed {
    compare(program, config, false).0
}

/// As [`recorded`]; if events differ because the record lacks the pools
/// of CUDA graphs and `MemPool`s, with inferred pools ([`crate::pools::infer`]).
pub fn recorded_with_pools(program: &mut Program, config: &Config) -> Replayed {
    let plain = recorded(program, config);
    if plain.mismatches == 0 || program.knows_pools {
        return plain;
    }
    let mut best = plain;
    let original = program.clone();
    for together in [false, true] {
        if best.mismatches == 0 {
            break;
        }
        let mut inferred = original.clone();
        crate::pools::infer(&mut inferred, config, together);
        let replayed = recorded(&inferred, config);
        if replayed.mismatches < best.mismatches {
            *program = inferred;
            best = replayed;
        }
    }
    best
}

/// Replays a program until the record contradicts the simulation.
pub(crate) fn first_conflict(program: &Program, config: &Config) -> Option<Conflict> {
    compare(program, config, true).1
}

fn compare(
    program: &Program,
    config: &Config,
    until_conflict: bool,
) -> (Replayed, Option<Conflict>) {
    let tape = Tape {
        events: program.driver_events.clone(),
        // Only the size of an address reservation depends on it, which the record overrides.
        total: 1 << 40,
        ..Tape::default()
    };
    let mut simulator = Simulator::new(
        Config {
            // The record shows when the limit was reached.
            memory_fraction: None,
            ..config.clone()
        },
        tape,
    );
    let mut blocks = Blocks::new(program);
    adopt(program, &mut simulator, &mut blocks);
    let has_private_pools = program.has_private_pools();
    let mut wrong: Vec<Mismatch> = Vec::new();
    let mut wrong_count = 0_usize;
    let mut conflict: Option<Conflict> = None;
    let mut mismatch = |row: u32, what: &dyn Fn() -> String| {
        wrong_count += 1;
        if wrong.len() < MAX_KEPT {
            wrong.push(Mismatch { row, what: what() });
        }
    };
    for (at, &op) in program.ops.iter().enumerate() {
        match op {
            Op::Driver(event) => simulator.driver_mut().end = event as usize + 1,
            Op::EmptyCache => {
                let next = match program.ops.get(at + 1) {
                    Some(&Op::Alloc(id)) => Request::new(program, id),
                    _ => None,
                };
                if !next
                    .as_ref()
                    .is_some_and(|next| asked_for_it(&simulator, next))
                {
                    settle(&mut simulator, None);
                }
            }
            Op::Retire(pool) => simulator.retire_pool(program.pools.get(pool)),
            Op::EmptyPrivatePool(pool) => {
                simulator.empty_private_pool(program.pools.get(pool));
            }
            Op::Free(allocation) => {
                settle(&mut simulator, None);
                if let Some(block) = blocks.take(allocation) {
                    simulator.free(block);
                }
            }
            Op::Alloc(id) | Op::Fail(id) => {
                let Some(allocation) = Request::new(program, id) else {
                    continue;
                };
                let row = allocation.row;
                simulator.driver_mut().row = row;
                settle(&mut simulator, Some(&allocation));
                let tape = simulator.driver_mut();
                tape.fails = allocation.failed;
                // Which pool was asked is not always known, and nothing came of it: in a private
                // pool nothing is given back, either.
                if allocation.failed && has_private_pools && tape.peek().is_none() {
                    continue;
                }
                let result =
                    simulator.malloc(allocation.requested, allocation.stream, allocation.pool);
                match result {
                    Ok(block) if allocation.failed => {
                        mismatch(row, &|| {
                            "the record is out of memory, the simulation is not".to_owned()
                        });
                        simulator.free(block);
                    }
                    Ok(block) => {
                        let addr = simulator.addr(block);
                        if addr != allocation.addr {
                            mismatch(row, &|| {
                                format!(
                                    "{} bytes at {addr:#x}, recorded at {:#x}",
                                    allocation.requested, allocation.addr
                                )
                            });
                            conflict = conflict.or(Some(Conflict {
                                row,
                                count: 0,
                                recorded: Some(allocation.addr),
                                simulated: Some(addr),
                            }));
                        }
                        blocks.set(id, block);
                    }
                    Err(_) if allocation.failed => {}
                    Err(_) => {
                        mismatch(row, &|| {
                            "the simulation asks the driver for memory, the record does not"
                                .to_owned()
                        });
                        conflict = conflict.or(Some(Conflict {
                            row,
                            count: 0,
                            recorded: Some(allocation.addr),
                            simulated: None,
                        }));
                    }
                }
                if simulator.driver().next < simulator.driver().end {
                    settle(&mut simulator, None);
                }
            }
        }
        if let Some((row, addr)) = simulator.driver().conflict
            && conflict.is_none_or(|conflict| row < conflict.row)
        {
            conflict = Some(Conflict {
                row,
                count: 0,
                recorded: None,
                simulated: Some(addr),
            });
        }
        if until_conflict && conflict.is_some() {
            break;
        }
    }
    if let Some(conflict) = &mut conflict {
        conflict.count = wrong_count + simulator.driver().wrong_count;
    }
    settle(&mut simulator, None);
    let stats = simulator.stats();
    let tape = simulator.driver();
    wrong.extend(tape.wrong.iter().map(|(row, what)| Mismatch {
        row: *row,
        what: what.clone(),
    }));
    wrong.sort_by_key(|mismatch| mismatch.row);
    wrong.truncate(MAX_KEPT);
    let replayed = Replayed {
        events: program.events,
        mismatches: wrong_count + tape.wrong_count,
        examples: wrong,
        stats,
        retries: stats.retries,
    };
    (replayed, conflict)
}

/// Whether a request would be placed as recorded if the program had called `empty_cache()` before.
/// With a split limit, free blocks of expandable segments can be too large to be used until pages
/// of them are given back.
/// A request to the allocator.
#[derive(Debug, Clone, Copy)]
struct Request {
    requested: u64,
    stream: u64,
    pool: PoolId,
    addr: u64,
    row: u32,
    failed: bool,
}

impl Request {
    fn new(program: &Program, id: u32) -> Option<Self> {
        let allocation = program.allocations.get(id as usize)?;
        Some(Self {
            requested: allocation.requested,
            stream: allocation.stream,
            pool: program.pools.get(allocation.pool),
            addr: allocation.addr,
            row: allocation.alloc_row,
            failed: allocation.failed,
        })
    }
}

fn fits_after_empty_cache(simulator: &Simulator<Tape>, next: &Request) -> bool {
    if !limits_splits_of_expandable(simulator) || next.failed {
        return false;
    }
    let mut trial = simulator.clone();
    trial.empty_cache();
    trial.free_block_at(next.requested, next.stream, next.pool) == Some(next.addr)
}

/// Whether memory was given back for a request that then needed no new page: what is free before
/// the pages that are not mapped may be large enough for the one, and too large for the other.
fn asked_for_it(simulator: &Simulator<Tape>, next: &Request) -> bool {
    limits_splits_of_expandable(simulator)
        && !simulator.has_free_block(next.requested, next.stream, next.pool)
        && !fits_after_empty_cache(simulator, next)
}

fn limits_splits_of_expandable(simulator: &Simulator<Tape>) -> bool {
    let config = simulator.config();
    config.expandable_segments && config.max_split_size != u64::MAX
}

/// Brings the simulation to where the record is before the next step: if the record gives memory
/// back and the next request does not explain it, the program called `empty_cache()`.
fn settle(simulator: &mut Simulator<Tape>, next: Option<&Request>) {
    let tape = simulator.driver();
    if tape.next >= tape.end {
        return;
    }
    let pending = tape.events.get(tape.next..tape.end).unwrap_or(&[]);
    let mut run: Vec<(u64, u64)> = pending
        .iter()
        .take_while(|event| is_release(event))
        .map(|event| (event.addr, event.size))
        .collect();
    if !run.is_empty() {
        run.sort_unstable();
        let mut all = simulator.releasable();
        all.sort_unstable();
        let everything = run == all;
        // In a private pool a request has only blocks of that pool given back, if any.
        let may_flush = |next: &Request| {
            next.pool == PoolId::DEFAULT
                || !simulator.config().no_flush_in_private_pools
                || pending
                    .iter()
                    .take_while(|event| is_release(event))
                    .all(|event| event.pool == next.pool)
        };
        let needs_memory = next
            .is_some_and(|next| !simulator.has_free_block(next.requested, next.stream, next.pool));
        let explained = needs_memory && next.is_some_and(may_flush);
        let config = simulator.config();
        let collects = config.gc_threshold > 0.0;
        let splits_little = config.max_split_size != u64::MAX;
        if collects && needs_memory && !everything {
            // Which segments are old enough depends on a limit that no snapshot states: follow
            // the record.
            for (addr, _) in run {
                simulator.release_segment(addr);
            }
        } else if !explained
            || ((collects || splits_little) && everything)
            || next.is_some_and(|next| fits_after_empty_cache(simulator, next))
        {
            simulator.empty_cache();
        }
    }
    if next.is_none() {
        // The rest has no explanation.
        let tape = simulator.driver_mut();
        while let Some(event) = tape.peek() {
            tape.complain(event.row, || {
                format!(
                    "the record has a {} of {} bytes at {:#x} that the simulation lacks",
                    event.action.name(),
                    event.size,
                    event.addr
                )
            });
            tape.conflict = tape.conflict.or(Some((event.row, event.addr)));
            tape.next += 1;
        }
    }
}

/// The device under which a what-if runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// What the allocator may get from the driver.
    pub capacity: u64,
    /// The limit of `set_per_process_memory_fraction`, if any.
    pub limit: Option<u64>,
}

impl Device {
    /// A device that is large enough for anything.
    pub const UNLIMITED: Self = Self {
        capacity: 1 << 50,
        limit: None,
    };

    /// A device of which the allocator may have `capacity` bytes.
    pub const fn of(capacity: u64) -> Self {
        Self {
            capacity,
            limit: None,
        }
    }
}

/// What would have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Predicted {
    /// The amounts until the end, or until memory ran out.
    pub stats: Stats,
    /// The event at which memory ran out, if it did.
    pub failed_row: Option<u32>,
    /// The request that failed there.
    pub failed_request: u64,
    /// Whether the request that failed in the record was served.
    pub serves_failed_request: bool,
}

impl Predicted {
    /// Whether everything was served.
    pub fn fits(&self) -> bool {
        self.failed_row.is_none()
    }
}

/// Runs a program under other settings or on another device, without the recorded addresses.
pub fn predict(program: &Program, config: &Config, device: Device) -> Predicted {
    let mut driver = AddressModel::new(device.capacity).with_limit(device.limit);
    driver.occupy(program.initial.iter().map(|segment| segment.size).sum());
    let mut simulator = Simulator::new(config.clone(), driver);
    let mut blocks = Blocks::new(program);
    adopt(program, &mut simulator, &mut blocks);
    let mut serves_failed_request = false;
    let last_failure = program.allocations.iter().rposition(|a| a.failed);
    for &op in &program.ops {
        match op {
            Op::Driver(_) => {}
            Op::EmptyCache => simulator.empty_cache(),
            Op::Retire(pool) => simulator.retire_pool(program.pools.get(pool)),
            Op::EmptyPrivatePool(pool) => simulator.empty_private_pool(program.pools.get(pool)),
            Op::Free(allocation) => {
                if let Some(block) = blocks.take(allocation) {
                    simulator.free(block);
                }
            }
            Op::Alloc(id) | Op::Fail(id) => {
                let Some(allocation) = Request::new(program, id) else {
                    continue;
                };
                let result =
                    simulator.malloc(allocation.requested, allocation.stream, allocation.pool);
                match result {
                    Ok(block) => {
                        blocks.set(id, block);
                        serves_failed_request |= allocation.failed;
                    }
                    // The program lived through this failure (cuDNN tries smaller workspaces).
                    Err(_) if allocation.failed && last_failure != Some(id as usize) => {}
                    Err(_) => {
                        return Predicted {
                            stats: simulator.stats(),
                            failed_row: Some(allocation.row),
                            failed_request: allocation.requested,
                            serves_failed_request: false,
                        };
                    }
                }
            }
        }
    }
    Predicted {
        stats: simulator.stats(),
        failed_row: None,
        failed_request: 0,
        serves_failed_request,
    }
}
