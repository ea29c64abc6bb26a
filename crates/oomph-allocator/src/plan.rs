//! How little memory would be enough: the bytes alive at once, and a static plan of all lifetimes.

use crate::config::Config;
use crate::program::{Op, Program};

/// Lifetimes that are placed one by one. Placing n takes about n²/2 steps: half a second for this
/// many; smaller ones beyond it are counted by their live bytes.
const MAX_PLACED: usize = 24_000;
/// Lifetimes up to which the order of placing is improved by search.
const MAX_SEARCHED: usize = 3_000;
/// Orders that the search tries.
const MAX_ORDERS: usize = 64;

/// A lifetime: steps of the program, and how much is needed meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lifetime {
    start: u32,
    // The first step at which it is gone.
    end: u32,
    size: u64,
}

/// How little memory would be enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The most bytes alive at any moment, in rounded sizes: a lower bound.
    pub live_bytes: u64,
    /// The step at which that is.
    pub live_peak_op: usize,
    /// The memory of a plan that places every lifetime once and never moves it.
    pub static_plan: u64,
    /// How many lifetimes were too small to be placed one by one and are counted in
    /// [`Bounds::static_plan`] by their live bytes, as if they packed without loss.
    pub not_placed: usize,
}

fn lifetimes(program: &Program, config: &Config) -> Vec<Lifetime> {
    let ops = program.ops.len() as u32;
    let mut lifetimes: Vec<Lifetime> = program
        .allocations
        .iter()
        .map(|allocation| Lifetime {
            start: 0,
            end: ops,
            size: config.round_size(allocation.requested),
        })
        .collect();
    for (at, op) in program.ops.iter().enumerate() {
        let at = at as u32;
        match *op {
            Op::Alloc(id) => {
                if let Some(lifetime) = lifetimes.get_mut(id as usize) {
                    lifetime.start = at;
                }
            }
            Op::Fail(id) => {
                if let Some(lifetime) = lifetimes.get_mut(id as usize) {
                    lifetime.start = at;
                    lifetime.end = at + 1;
                }
            }
            Op::Free(id) => {
                if let Some(lifetime) = lifetimes.get_mut(id as usize) {
                    lifetime.end = at;
                }
            }
            Op::Driver(_) | Op::EmptyCache | Op::Retire(_) | Op::EmptyPrivatePool(_) => {}
        }
    }
    lifetimes
}

/// The peak of the bytes alive, and its step.
fn live_peak(lifetimes: &[Lifetime], ops: usize) -> (u64, usize) {
    let mut change = vec![0_i128; ops + 2];
    for lifetime in lifetimes {
        if let Some(slot) = change.get_mut(lifetime.start as usize) {
            *slot += i128::from(lifetime.size);
        }
        if let Some(slot) = change.get_mut(lifetime.end as usize) {
            *slot -= i128::from(lifetime.size);
        }
    }
    let mut live = 0_i128;
    let mut peak = (0_i128, 0);
    for (at, change) in change.into_iter().enumerate() {
        live += change;
        if live > peak.0 {
            peak = (live, at);
        }
    }
    (u64::try_from(peak.0).unwrap_or(u64::MAX), peak.1)
}

/// Places lifetimes in the given order, each into the smallest gap that is free all its life.
/// Returns the height, and which lifetime reaches it.
fn place(lifetimes: &[Lifetime]) -> (u64, usize) {
    // Sorted by offset.
    let mut placed: Vec<(u64, u64, u32, u32)> = Vec::with_capacity(lifetimes.len());
    let mut height = 0;
    let mut top = 0;
    for (number, lifetime) in lifetimes.iter().enumerate() {
        let mut best: Option<(u64, u64)> = None;
        let mut floor = 0_u64;
        for &(offset, end, start, stop) in &placed {
            if stop <= lifetime.start || start >= lifetime.end {
                continue;
            }
            if offset > floor {
                let gap = offset - floor;
                if gap >= lifetime.size && best.is_none_or(|(size, _)| gap < size) {
                    best = Some((gap, floor));
                    if gap == lifetime.size {
                        break;
                    }
                }
            }
            floor = floor.max(end);
        }
        let offset = best.map_or(floor, |(_, offset)| offset);
        let end = offset.saturating_add(lifetime.size);
        let at = placed.partition_point(|other| other.0 < offset);
        placed.insert(at, (offset, end, lifetime.start, lifetime.end));
        if end > height {
            height = end;
            top = number;
        }
    }
    (height, top)
}

/// Computes both bounds of a program.
pub fn bounds(program: &Program, config: &Config) -> Bounds {
    let mut lifetimes = lifetimes(program, config);
    let (live_bytes, live_peak_op) = live_peak(&lifetimes, program.ops.len());
    lifetimes.sort_by(|a, b| {
        b.size
            .cmp(&a.size)
            .then((b.end - b.start).cmp(&(a.end - a.start)))
    });
    let rest = lifetimes.split_off(lifetimes.len().min(MAX_PLACED));
    let (rest_peak, _) = live_peak(&rest, program.ops.len());
    let floor = live_peak(&lifetimes, program.ops.len()).0;
    let (mut best, mut top) = place(&lifetimes);
    if lifetimes.len() <= MAX_SEARCHED {
        // The topmost lifetime was placed too late: place it earlier and try again.
        let mut order = lifetimes;
        for _ in 0..MAX_ORDERS {
            if best <= floor || top == 0 {
                break;
            }
            let to = top / 2;
            if let Some(range) = order.get_mut(to..=top) {
                range.rotate_right(1);
            }
            let (height, new_top) = place(&order);
            best = best.min(height);
            top = new_top;
        }
    }
    Bounds {
        live_bytes,
        live_peak_op,
        static_plan: best.saturating_add(rest_peak),
        not_placed: rest.len(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_plan_never_needs_less_than_what_is_alive(
            spans in proptest::collection::vec((0_u32..50, 1_u32..30, 1_u64..1000), 1..80)
        ) {
            let lifetimes: Vec<Lifetime> = spans
                .iter()
                .map(|&(start, length, size)| Lifetime { start, end: start + length, size })
                .collect();
            let (live, _) = live_peak(&lifetimes, 100);
            let (height, _) = place(&lifetimes);
            let total: u64 = lifetimes.iter().map(|lifetime| lifetime.size).sum();
            prop_assert!(height >= live);
            prop_assert!(height <= total);
        }
    }
}
