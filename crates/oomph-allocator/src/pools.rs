//! Private pools: which segments belong to a CUDA graph or a `MemPool`, and until when.
//!
//! Recorders before torch 2.12 write no pool with an event. A segment belongs to one pool, so the
//! state at the end tells the pool of everything that was placed in a segment which lived that
//! long ([`assign`]). For segments that did not, only the simulation can tell: an allocation that
//! was not placed where the best fit of all default segments would have put it shows that one of
//! two segments is private ([`infer`]).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use oomph_trace::{Action, PoolId, Problem, ProblemKind, Trace};

use crate::config::Config;
use crate::program::{NO_UNIT, Op, PoolIndex, Program};
use crate::replay::{self, Conflict};

/// Inferred pools have this as the first half of their id, which PyTorch never uses.
const INFERRED: u64 = u64::MAX;
/// The number of private pools that are distinguished; further ones share one of them.
const MAX_POOLS: usize = 12;
/// Events that are replayed in all while pools are inferred: some seconds.
const MAX_WORK: usize = 30_000_000;
/// A replay costs at least as much as one of so many events.
const LEAST_WORK: usize = 5_000;

/// A segment over its life: a plain one, or an expandable one with all of its pages.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    start: u64,
    // The largest end that it had.
    end: u64,
    // What is mapped of an expandable one; `None` for a plain one.
    mapped: Option<u64>,
    stream: u64,
    since: u32,
    until: u32,
    // Segments that were released together have the same number.
    given_back: u32,
    pool: PoolId,
    // The final state names the pool.
    known: bool,
}

/// Finds the segment of every allocation and driver event, and its pool if the final state
/// names it. Does nothing for a history without private pools.
pub(crate) fn assign(program: &mut Program, trace: &Trace) {
    let device = program.device;
    let mut last: Vec<(u64, PoolId)> = trace
        .segments
        .iter()
        .filter(|segment| segment.device == device)
        .map(|segment| (segment.addr.0, segment.pool))
        .collect();
    if last.iter().all(|&(_, pool)| pool == PoolId::DEFAULT) {
        return;
    }
    last.sort_unstable_by_key(|&(addr, _)| addr);
    track(program);
    for unit in program
        .units
        .iter_mut()
        .filter(|unit| unit.until == u32::MAX)
    {
        let at = last.partition_point(|&(addr, _)| addr < unit.start);
        if let Some(&(addr, pool)) = last.get(at)
            && addr < unit.end
        {
            unit.pool = pool;
            unit.known = true;
        }
    }
    apply(program);
}

/// Follows the segments through the program.
fn track(program: &mut Program) {
    let mut units: Vec<Unit> = Vec::new();
    let mut live: BTreeMap<u64, u32> = BTreeMap::new();
    for segment in &program.initial {
        let end = segment
            .blocks
            .last()
            .map_or(0, |block| block.0.saturating_add(block.1));
        live.insert(segment.addr, units.len() as u32);
        units.push(Unit {
            start: segment.addr,
            end: end.max(segment.addr.saturating_add(1)),
            mapped: segment.is_expandable.then_some(segment.size),
            stream: segment.stream,
            since: 0,
            until: u32::MAX,
            given_back: u32::MAX,
            pool: segment.pool,
            known: false,
        });
    }
    let holder = |live: &BTreeMap<u64, u32>, addr: u64| {
        live.range(..=addr).next_back().map(|(_, &unit)| unit)
    };
    for allocation in &mut program.allocations {
        if allocation.alloc_row == u32::MAX {
            allocation.unit = holder(&live, allocation.addr).unwrap_or(NO_UNIT);
        }
    }
    let mut run = 0;
    for &op in &program.ops {
        if !matches!(op, Op::Driver(_)) {
            run += 1;
        }
        match op {
            Op::Alloc(id) => {
                if let Some(allocation) = program.allocations.get_mut(id as usize) {
                    allocation.unit = holder(&live, allocation.addr).unwrap_or(NO_UNIT);
                }
            }
            Op::Driver(at) => {
                let Some(event) = program.driver_events.get_mut(at as usize) else {
                    continue;
                };
                let found = holder(&live, event.addr);
                let unit = found.and_then(|unit| units.get_mut(unit as usize));
                let end = event.addr.saturating_add(event.size);
                event.unit = match (event.action, unit) {
                    // Pages come at the lowest free address: in a hole, or right at the end.
                    (Action::SegmentMap, Some(unit))
                        if unit.stream == event.stream
                            && unit.mapped.is_some()
                            && event.addr <= unit.end =>
                    {
                        unit.end = unit.end.max(end);
                        unit.mapped = unit.mapped.map(|mapped| mapped.saturating_add(event.size));
                        found.unwrap_or(NO_UNIT)
                    }
                    (Action::SegmentFree | Action::SegmentUnmap, Some(unit)) => {
                        unit.mapped = unit.mapped.map(|mapped| mapped.saturating_sub(event.size));
                        if unit.mapped.is_none_or(|mapped| mapped == 0) {
                            unit.until = event.row;
                            unit.given_back = run;
                            live.remove(&unit.start);
                        }
                        found.unwrap_or(NO_UNIT)
                    }
                    (Action::SegmentFree | Action::SegmentUnmap, None) => NO_UNIT,
                    _ => {
                        let unit = units.len() as u32;
                        live.insert(event.addr, unit);
                        units.push(Unit {
                            start: event.addr,
                            end,
                            mapped: (event.action == Action::SegmentMap).then_some(event.size),
                            stream: event.stream,
                            since: event.row,
                            until: u32::MAX,
                            given_back: u32::MAX,
                            pool: PoolId::DEFAULT,
                            known: false,
                        });
                        unit
                    }
                };
            }
            _ => {}
        }
    }
    program.units = units;
}

/// Writes the pools of the segments into everything that lies in them.
fn apply(program: &mut Program) {
    let units = &program.units;
    let pool = |unit: u32| units.get(unit as usize).map(|unit| unit.pool);
    for allocation in &mut program.allocations {
        let pool = pool(allocation.unit).unwrap_or(PoolId::DEFAULT);
        allocation.pool = program.pools.intern(pool);
    }
    for event in &mut program.driver_events {
        event.pool = pool(event.unit).unwrap_or(PoolId::DEFAULT);
    }
    for segment in &mut program.initial {
        if let Some(unit) = units
            .iter()
            .find(|unit| unit.since == 0 && unit.start == segment.addr)
        {
            segment.pool = unit.pool;
        }
    }
}

/// Adds the ends of private pools to the program. A pool gives memory back only when nothing uses it
/// any more, so the first release after its last allocation marks its end.
pub(crate) fn retire(program: &mut Program) {
    program
        .ops
        .retain(|op| !matches!(op, Op::Retire(_) | Op::EmptyPrivatePool(_)));
    if !program.has_private_pools() {
        return;
    }
    let mut last_use: Vec<(PoolIndex, usize)> = Vec::new();
    for (at, op) in program.ops.iter().enumerate() {
        if let Op::Alloc(id) = *op
            && let Some(allocation) = program.allocations.get(id as usize)
            && allocation.pool != PoolIndex::DEFAULT
        {
            match last_use
                .iter_mut()
                .find(|(pool, _)| *pool == allocation.pool)
            {
                Some((_, last)) => *last = at,
                None => last_use.push((allocation.pool, at)),
            }
        }
    }
    let mut retired: Vec<PoolIndex> = Vec::new();
    let mut ops = Vec::with_capacity(program.ops.len());
    let mut at = 0;
    while let Some(&op) = program.ops.get(at) {
        let run: Vec<PoolIndex> = program
            .ops
            .get(at..)
            .unwrap_or(&[])
            .iter()
            .map_while(|op| match *op {
                Op::Driver(event) => program.driver_events.get(event as usize),
                _ => None,
            })
            .take_while(|event| matches!(event.action, Action::SegmentFree | Action::SegmentUnmap))
            .map(|event| program.pools.intern(event.pool))
            .collect();
        if run.is_empty() {
            ops.push(op);
            at += 1;
            continue;
        }
        let mut ended: Vec<PoolIndex> = run
            .iter()
            .copied()
            .filter(|&pool| pool != PoolIndex::DEFAULT)
            .filter(|pool| {
                last_use
                    .iter()
                    .all(|(other, last)| other != pool || *last < at)
            })
            .collect();
        ended.dedup();
        for &pool in &ended {
            if !retired.contains(&pool) {
                retired.push(pool);
                ops.push(Op::Retire(pool));
            }
        }
        ops.extend(program.ops.get(at..at + run.len()).unwrap_or(&[]));
        at += run.len();
        if run.iter().all(|pool| ended.contains(pool)) {
            ops.extend(ended.into_iter().map(Op::EmptyPrivatePool));
            if program.ops.get(at) == Some(&Op::EmptyCache) {
                at += 1;
            }
        }
    }
    program.ops = ops;
}

/// Infers private pools that the record does not name from the replay's contradictions. Each
/// contradiction has two explanations; the one with which the replay then continues longest wins.
/// With `together`, segments that were released together may be moved together. Returns how many
/// segments are assumed to be private.
pub fn infer(program: &mut Program, config: &Config, together: bool) -> usize {
    if program.units.is_empty() {
        track(program);
        apply(program);
    }
    let before = pools_of(program);
    let mut work = 0_usize;
    let mut conflict = replay::first_conflict(program, config);
    while let Some(found) = conflict {
        let mut best: Option<(Vec<usize>, PoolId, Option<Conflict>)> = None;
        for side in sides(program, &found, together) {
            let old = pools_of(program);
            for pool in candidates(program, side.first().and_then(|&unit| old.get(unit))) {
                work = work.saturating_add(program.events.max(LEAST_WORK));
                if work > MAX_WORK {
                    break;
                }
                set(program, &side, pool);
                let next = replay::first_conflict(program, config);
                let best_next = best
                    .as_ref()
                    .map_or(Some(&found), |(_, _, next)| next.as_ref());
                if progress(next.as_ref()) > progress(best_next) {
                    best = Some((side.clone(), pool, next));
                }
                for (unit, &pool) in program.units.iter_mut().zip(&old) {
                    unit.pool = pool;
                }
            }
        }
        let Some((side, pool, next)) = best else {
            apply(program);
            retire(program);
            break;
        };
        set(program, &side, pool);
        conflict = next;
    }
    let moved = program
        .units
        .iter()
        .zip(before)
        .filter(|(unit, before)| unit.pool != *before)
        .count();
    if moved > 0 {
        program.problems.push(Problem::new(
            ProblemKind::Incomplete,
            format!(
                "torch before 2.12 does not record pools: {moved} segments that were freed before \
                 the end are assumed to belong to a CUDA graph or a MemPool, because their blocks \
                 were not reused like others"
            ),
        ));
    }
    moved
}

/// How far a replay went before its first contradiction, more being better.
fn progress(conflict: Option<&Conflict>) -> (u32, Reverse<usize>) {
    conflict.map_or((u32::MAX, Reverse(0)), |conflict| {
        (conflict.row, Reverse(conflict.count))
    })
}

fn pools_of(program: &Program) -> Vec<PoolId> {
    program.units.iter().map(|unit| unit.pool).collect()
}

fn set(program: &mut Program, side: &[usize], pool: PoolId) {
    for &unit in side {
        if let Some(unit) = program.units.get_mut(unit) {
            unit.pool = pool;
        }
    }
    apply(program);
    retire(program);
}

/// The segments of which one must be in another pool; with `together`, each also with those that
/// were given back with it, since the end of a `MemPool` gives back all that is free of it. Segments
/// whose pool is known stay.
fn sides(program: &Program, conflict: &Conflict, together: bool) -> Vec<Vec<usize>> {
    let holder = |addr: u64| {
        program.units.iter().position(|unit| {
            (unit.start..unit.end).contains(&addr)
                && unit.since <= conflict.row
                && unit.until >= conflict.row
                && !unit.known
        })
    };
    let mut sides: Vec<Vec<usize>> = Vec::new();
    for one in [conflict.recorded, conflict.simulated]
        .into_iter()
        .flatten()
        .filter_map(holder)
    {
        sides.push(vec![one]);
        let run = program
            .units
            .get(one)
            .map_or(u32::MAX, |unit| unit.given_back);
        if !together {
            continue;
        }
        let others: Vec<usize> = program
            .units
            .iter()
            .enumerate()
            .filter(|(_, unit)| run != u32::MAX && unit.given_back == run && !unit.known)
            .map(|(unit, _)| unit)
            .collect();
        if others.len() > 1 {
            sides.push(others);
        }
    }
    sides.dedup();
    sides
}

/// The pools that a segment could be in instead: private ones that are known, inferred ones, and
/// one more.
fn candidates(program: &Program, old: Option<&PoolId>) -> Vec<PoolId> {
    let mut pools: Vec<PoolId> = Vec::new();
    for unit in &program.units {
        if unit.pool != PoolId::DEFAULT && !pools.contains(&unit.pool) {
            pools.push(unit.pool);
        }
    }
    let inferred = pools.iter().filter(|pool| pool.0 == INFERRED).count();
    pools.push(PoolId(INFERRED, inferred as u64 + 1));
    pools.retain(|pool| Some(pool) != old);
    pools.truncate(MAX_POOLS);
    pools
}
