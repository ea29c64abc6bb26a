//! Where a job's steps begin and end.
//!
//! The most reliable sign is the optimizer: PyTorch annotates every `Optimizer.step`. Without one (loops
//! that only evaluate or generate), an allocation of the script itself that recurs at regular
//! intervals, such as the batch, marks the steps.

use std::collections::HashMap;

use oomph_allocator::Config;
use oomph_allocator::program::{NO_ROW, Op, Program};
use oomph_trace::{Phase, StackId, Trace};

use crate::stacks::Stacks;

/// Occurrences that a stack must have to mark steps.
const MIN_OCCURRENCES: usize = 3;
/// How much longer than the median the longest step may be for a mark to count as regular.
const MAX_IRREGULARITY: usize = 4;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its first row.
    pub start: usize,
    /// The row after its last one.
    pub end: usize,
    /// The most bytes alive within it.
    pub peak: u64,
    /// The bytes alive at its end.
    pub live_at_end: u64,
    /// Whether backward ran.
    pub has_backward: bool,
    /// Whether the optimizer ran.
    pub has_optimizer: bool,
}

/// The step that holds a row.
pub fn step_of(steps: &[Step], row: u32) -> Option<usize> {
    if row == NO_ROW {
        return None;
    }
    let row = row as usize;
    let at = steps
        .partition_point(|step| step.start <= row)
        .checked_sub(1)?;
    // The failure itself lies at the end of the last step.
    steps.get(at).filter(|step| row <= step.end).map(|_| at)
}

/// The parts of the last step up to a row that end in backward passes which are told to keep their graphs, at these `times`;
/// none if there are few.
pub fn retained(trace: &Trace, steps: &[Step], row: usize, times: &[i64]) -> Vec<Step> {
    let Some(last) = step_of(steps, row as u32).and_then(|step| steps.get(step)) else {
        return Vec::new();
    };
    let ends = rows_at(trace, last.start..row, times);
    let ends = ends.into_iter().filter(|&end| end > last.start);
    let bounds: Vec<usize> = [last.start].into_iter().chain(ends).chain([row]).collect();
    if bounds.len() <= MIN_OCCURRENCES + 1 {
        return Vec::new();
    }
    let part = |pair: &[usize]| match *pair {
        [start, end] if start < end => Some(Step {
            start,
            end,
            has_backward: true,
            has_optimizer: false,
            ..*last
        }),
        _ => None,
    };
    bounds.windows(2).filter_map(part).collect()
}

/// Finds the steps up to a row. `passes` are the times at which passes of a job that infers ended, if somebody watched.
pub fn find(
    trace: &Trace,
    program: &Program,
    config: &Config,
    stacks: &Stacks,
    until: usize,
    passes: &[i64],
) -> Vec<Step> {
    let rows = trace.rows_of(program.device);
    let end = until.min(rows.end);
    let mut marks = labelled(trace, rows.start, end);
    // Labels count the optimizer's steps: a job without one has a single step by them, and so has a validation after the last.
    if labelled(trace, rows.start, rows.end).len() >= 2 {
        let last = marks.last().copied().unwrap_or(rows.start);
        let from = after_training(trace, last, end);
        // A step that another one follows is one, whatever recurs within it.
        if labelled(trace, last, rows.end).len() < 2 {
            marks.extend(recurring_marks(program, stacks, from, end));
        }
    } else {
        marks = optimizer_marks(trace, program, stacks, rows.start, end);
        let (start, after) = (rows.start, marks.last().copied().unwrap_or(rows.start));
        // Another loop may follow the last optimizer step: evaluation, generation.
        let backward = backward_marks(trace, program, stacks, after, end);
        if backward.len() + 1 >= MIN_OCCURRENCES {
            marks.extend(backward);
        } else {
            let recurring = recurring_marks(program, stacks, after, end);
            if recurring.is_empty() && marks.is_empty() {
                // A loop that allocates within modules alone.
                marks.extend(rows_at(trace, start..end, passes));
            } else {
                marks.extend(recurring);
            }
        }
    }
    marks.dedup();
    if marks.is_empty() {
        return Vec::new();
    }
    // What lies before the first mark is the first step, from the first forward on.
    let first_work = program
        .allocations
        .iter()
        .find(|allocation| {
            allocation.alloc_row != NO_ROW
                && matches!(
                    stacks.get(allocation.stack).phase,
                    Phase::Forward | Phase::Backward
                )
        })
        .map_or(rows.start, |allocation| allocation.alloc_row as usize);
    let mut bounds = Vec::with_capacity(marks.len() + 2);
    if marks.first().is_some_and(|&mark| first_work < mark) {
        bounds.push(first_work);
    }
    bounds.extend(marks.into_iter().filter(|&mark| mark < end));
    bounds.push(end);
    bounds.dedup();
    let mut steps: Vec<Step> = bounds
        .windows(2)
        .filter_map(|pair| match *pair {
            [start, end] if start < end => Some(Step {
                start,
                end,
                peak: 0,
                live_at_end: 0,
                has_backward: false,
                has_optimizer: false,
            }),
            _ => None,
        })
        .collect();
    measure(program, config, stacks, &mut steps);
    steps
}

/// Steps from labels.
fn labelled(trace: &Trace, start: usize, end: usize) -> Vec<usize> {
    let Some(labels) = &trace.labels else {
        return Vec::new();
    };
    let mut marks = Vec::new();
    let mut last = 0;
    for row in start..end {
        let step = labels.get(row).step;
        if step > last {
            last = step;
            marks.push(row);
        }
    }
    marks
}

/// The first row after each of some times.
fn rows_at(trace: &Trace, rows: std::ops::Range<usize>, times: &[i64]) -> Vec<usize> {
    let mut row = rows.start;
    let mut found = Vec::new();
    for &time in times {
        while row < rows.end && trace.events.time(row).0 <= time {
            row += 1;
        }
        if row < rows.end {
            found.push(row);
        }
    }
    found.dedup();
    found
}

/// The row after `from` from which on nothing trains any more.
fn after_training(trace: &Trace, from: usize, end: usize) -> usize {
    let Some(labels) = &trace.labels else {
        return from;
    };
    let trains = |&row: &usize| {
        let phase = labels.get(row).phase;
        matches!(phase, Phase::Forward | Phase::Backward | Phase::Optimizer)
    };
    (from..end).rev().find(trains).map_or(from, |row| row + 1)
}

/// The ends of optimizer steps.
fn optimizer_marks(
    trace: &Trace,
    program: &Program,
    stacks: &Stacks,
    start: usize,
    end: usize,
) -> Vec<usize> {
    let times_known = trace.events.time(start).0 > 0;
    let mut marks: Vec<usize> = Vec::new();
    if times_known {
        for annotation in &trace.annotations {
            if annotation.is_start
                || !trace
                    .strings
                    .get(annotation.name)
                    .starts_with("Optimizer.step")
            {
                continue;
            }
            let after = trace.events.first_after(start..end, annotation.time);
            if after > start && after < end {
                marks.push(after);
            }
        }
        marks.sort_unstable();
        marks.dedup();
    }
    if !marks.is_empty() {
        return marks;
    }
    // Without annotations: where the optimizer's allocations stop and forward's begin.
    let mut in_optimizer = false;
    for op in &program.ops {
        let Op::Alloc(id) = *op else { continue };
        let Some(allocation) = program.allocations.get(id as usize) else {
            continue;
        };
        match stacks.get(allocation.stack).phase {
            Phase::Optimizer => in_optimizer = true,
            Phase::Forward | Phase::Unknown if in_optimizer => {
                in_optimizer = false;
                let row = allocation.alloc_row as usize;
                if row < end {
                    marks.push(row);
                }
            }
            _ => {}
        }
    }
    marks
}

/// Where backward's allocations stop and the next forward's begin: training without an optimizer
/// step, or pieces of a batch whose gradients are accumulated.
fn backward_marks(
    trace: &Trace,
    program: &Program,
    stacks: &Stacks,
    start: usize,
    end: usize,
) -> Vec<usize> {
    let mut marks = Vec::new();
    let mut in_backward = false;
    for op in &program.ops {
        let Op::Alloc(id) = *op else { continue };
        let Some(allocation) = program.allocations.get(id as usize) else {
            continue;
        };
        let row = allocation.alloc_row as usize;
        let facts = stacks.get(allocation.stack);
        if row < start || row >= end || facts.is_workspace {
            continue;
        }
        // Labels know what stacks do not tell.
        let phase = match &trace.labels {
            Some(labels) => labels.get(row).phase,
            None => facts.phase,
        };
        match phase {
            Phase::Backward => in_backward = true,
            Phase::Forward | Phase::Unknown if in_backward => {
                in_backward = false;
                marks.push(row);
            }
            _ => {}
        }
    }
    marks
}

fn median_gap(marks: &[usize]) -> Option<usize> {
    let mut gaps: Vec<usize> = marks
        .windows(2)
        .filter_map(|pair| match *pair {
            [a, b] => Some(b - a),
            _ => None,
        })
        .collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied()
}

/// Rows at which the most telling recurring stack allocates.
fn recurring_marks(program: &Program, stacks: &Stacks, start: usize, end: usize) -> Vec<usize> {
    let mut rows_by_stack: HashMap<StackId, Vec<usize>> = HashMap::new();
    let mut before = StackId::NONE;
    for op in &program.ops {
        let Op::Alloc(id) = *op else { continue };
        let Some(allocation) = program.allocations.get(id as usize) else {
            continue;
        };
        let row = allocation.alloc_row as usize;
        // A line that makes several tensors in a row marks one place, not several.
        let again = std::mem::replace(&mut before, allocation.stack) == allocation.stack;
        if row < start || row >= end || again || allocation.stack == StackId::NONE {
            continue;
        }
        // Allocations of modules recur with every layer; allocations of the script itself
        // recur with every iteration of its loop.
        let facts = stacks.get(allocation.stack);
        if facts.phase != Phase::Unknown || facts.is_workspace || facts.in_module() {
            continue;
        }
        rows_by_stack.entry(allocation.stack).or_default().push(row);
    }
    let mut best: Option<(usize, usize, Vec<usize>)> = None;
    for rows in rows_by_stack.into_values() {
        if rows.len() < MIN_OCCURRENCES {
            continue;
        }
        let Some(usual) = median_gap(&rows) else {
            continue;
        };
        let regular = rows.windows(2).all(|pair| {
            pair.last().zip(pair.first()).is_none_or(|(b, a)| {
                b - a <= usual.saturating_mul(MAX_IRREGULARITY)
                    && (b - a) * MAX_IRREGULARITY >= usual
            })
        });
        let first = rows.first().copied().unwrap_or(end);
        let last = rows.last().copied().unwrap_or(start);
        // It must go on to the end, and the steps must not be a part of something longer.
        if !regular || end.saturating_sub(last) > usual.saturating_mul(2) + 1 {
            continue;
        }
        let better = match &best {
            None => true,
            Some((gap, best_first, _)) => {
                // Longest distance first; among equals (within a tenth) the one that comes first.
                usual * 10 > gap * 11 || (usual * 11 >= gap * 10 && first < *best_first)
            }
        };
        if better {
            best = Some((usual, first, rows));
        }
    }
    best.map(|(_, _, rows)| rows).unwrap_or_default()
}

fn measure(program: &Program, config: &Config, stacks: &Stacks, steps: &mut [Step]) {
    let mut live: u64 = program
        .allocations
        .iter()
        .filter(|allocation| allocation.alloc_row == NO_ROW)
        .map(|allocation| config.round_size(allocation.requested))
        .sum();
    let mut at = 0;
    for op in &program.ops {
        let (row, id, grows) = match *op {
            Op::Alloc(id) => {
                let row = program
                    .allocations
                    .get(id as usize)
                    .map_or(NO_ROW, |allocation| allocation.alloc_row);
                (row, id, true)
            }
            Op::Free(id) => {
                let row = program
                    .allocations
                    .get(id as usize)
                    .map_or(NO_ROW, |allocation| allocation.free_row);
                (row, id, false)
            }
            _ => continue,
        };
        let row = row as usize;
        while steps.get(at).is_some_and(|step| row >= step.end) {
            if let Some(step) = steps.get_mut(at) {
                step.live_at_end = live;
            }
            at += 1;
        }
        let Some(allocation) = program.allocations.get(id as usize) else {
            continue;
        };
        let bytes = config.round_size(allocation.requested);
        live = if grows {
            live.saturating_add(bytes)
        } else {
            live.saturating_sub(bytes)
        };
        if let Some(step) = steps.get_mut(at)
            && row >= step.start
        {
            step.peak = step.peak.max(live);
            step.live_at_end = live;
            if grows {
                match stacks.get(allocation.stack).phase {
                    Phase::Backward => step.has_backward = true,
                    Phase::Optimizer => step.has_optimizer = true,
                    _ => {}
                }
            }
        }
    }
}
