//! Whether a run saw the job's rhythm, and what grows from step to step.
//!
//! A run that ended after the steps that were asked for speaks for the job only if its steps had become
//! alike, and only as long as nothing is left behind by each of them.

use std::collections::HashMap;
use std::fmt;

use oomph_allocator::{AddressModel, BlockId, Config, Simulator, TorchVersion};
use oomph_bytes::format_bytes;
use oomph_trace::{Action, Phase, PoolId, StackId, StringId, Trace};
use serde::{Deserialize, Serialize};

use crate::record::Record;

/// Steps may differ in so large a part of their allocations and still be alike: libraries take work
/// spaces when they are first used, and data decides a few.
const DIFFERENT: f64 = 0.05;
/// So many steps apart are two that are alike at the most.
const APART: usize = 4;
/// Peaks of alike steps that differ by more are said to vary.
const VARIED: f64 = 0.005;
/// Steps that must end before anything is said of growth: the first two make gradients and state.
const GROWTH_STEPS: usize = 5;
/// The newest steps that are compared for growth.
const GROWTH_WINDOW: usize = 8;
/// The least growth a step that is said, as a part of the GPU's memory.
const GROWTH_PART: f64 = 0.001;

/// Steps that are gone through to see when memory is full.
const MOST_STEPS: u64 = 20_000;

/// PyTorch's allocator rounds every request up to this.
const ROUNDING: u64 = 512;

/// What a run's steps have in common.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rhythm {
    /// Whether two steps did the same, not far from each other.
    pub alike: bool,
    /// The lowest and the highest peak of the alike steps, if they vary.
    pub peaks: Option<(u64, u64)>,
    /// What each step leaves behind.
    pub growth: Option<Growth>,
}

/// Memory that each step leaves behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Growth {
    /// How much a step.
    pub bytes_per_step: u64,
    /// The user's line that allocates most of it, `file:line`, where known.
    pub place: Option<String>,
    /// The step, counted from 1, in which memory runs out if it goes on like this.
    pub full_at_step: u64,
}

impl Growth {
    /// The same on a GPU with `now` instead of `before` bytes.
    #[must_use]
    pub fn moved(&self, before: u64, now: u64) -> Self {
        let steps = |bytes: u64| bytes / self.bytes_per_step.max(1);
        Self {
            full_at_step: (self.full_at_step + steps(now.saturating_sub(before)))
                .saturating_sub(steps(before.saturating_sub(now))),
            ..self.clone()
        }
    }
}

/// In half a sentence.
impl fmt::Display for Growth {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = format_bytes(self.bytes_per_step);
        write!(out, "it grows by {bytes} a step")?;
        if let Some(place) = &self.place {
            write!(out, " ({place})")?;
        }
        write!(out, ": full near step {}", self.full_at_step)
    }
}

/// What a step allocates: by phase, module and operator, how often.
type Work = HashMap<(Phase, StringId, StringId), u32>;

#[derive(Debug, Default)]
struct Step {
    work: Work,
    allocations: u32,
    /// All that forward passes allocate: it follows the batch's size.
    forward_bytes: u64,
    peak: u64,
    live_at_end: u64,
    /// What is alive at the end by the stack that allocated it; for the newest steps only.
    live_by_stack: HashMap<StackId, Held>,
}

/// What one stack has alive.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    bytes: u64,
    blocks: u64,
}

/// How what one stack has alive grows in each step.
#[derive(Debug, Clone, Copy)]
enum Leak {
    /// So many blocks of so many bytes are added.
    Added { blocks: u64, bytes: u64 },
    /// So many blocks of so many bytes are replaced by ones that are larger by `more` bytes.
    Enlarged { blocks: u64, bytes: u64, more: u64 },
}

impl Leak {
    /// What the last two of some steps say, where the bytes have grown in all of them.
    fn of(before: Held, after: Held) -> Self {
        let more = after.bytes - before.bytes;
        match after.blocks.saturating_sub(before.blocks) {
            0 => Self::Enlarged {
                blocks: after.blocks.max(1),
                bytes: after.bytes / after.blocks.max(1),
                more: more / after.blocks.max(1),
            },
            blocks => Self::Added {
                blocks,
                bytes: more / blocks,
            },
        }
    }
}

/// Compares the steps that were completed on `device`.
pub fn rhythm(trace: &Trace, record: &Record, device: u32) -> Rhythm {
    let steps = completed(trace, record, device);
    // Between two that are alike there may be one with an evaluation in it, or one that makes a copy of the weights. The first step is
    // compared with its neighbor alone.
    let last = (1..steps.len()).rev().find_map(|at| {
        let (before, after) = (steps.get(..at)?, steps.get(at)?);
        let first = (at - 1).min(1).max(at.saturating_sub(APART));
        (before.get(first..)?.iter().any(|one| alike(one, after))).then_some(after)
    });
    let peaks = last.and_then(|last| {
        // The first step makes the optimizer's state, and needs another peak for it.
        let like: Vec<&Step> = steps
            .iter()
            .skip(1)
            .filter(|step| alike(step, last))
            .collect();
        let batches = range(like.iter().map(|step| step.forward_bytes));
        let peaks = range(like.iter().map(|step| step.peak));
        (varies(batches) && varies(peaks)).then_some(peaks)
    });
    Rhythm {
        alike: last.is_some(),
        peaks,
        growth: growth(trace, record, device, &steps),
    }
}

/// The lowest and the highest of some values.
fn range(values: impl Iterator<Item = u64>) -> (u64, u64) {
    values.fold((u64::MAX, 0), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

fn varies((low, high): (u64, u64)) -> bool {
    low < high && (high - low) as f64 > high as f64 * VARIED
}

/// Whether two steps did the same, whatever the sizes: how many buffers a kernel takes depends on them, too.
fn alike(before: &Step, after: &Step) -> bool {
    let missing = |step: &Step, other: &Step| {
        step.work
            .iter()
            .filter(|(key, _)| !other.work.contains_key(key))
            .map(|(_, &number)| number)
            .sum::<u32>()
    };
    let different = missing(before, after) + missing(after, before);
    f64::from(different) <= f64::from(before.allocations.max(after.allocations)) * DIFFERENT
}

/// The completed steps of a job that trains, or its passes, in their order.
fn completed(trace: &Trace, record: &Record, device: u32) -> Vec<Step> {
    let trains = record.steps > 0;
    let count = if trains {
        record.steps
    } else {
        record.inferences
    } as usize;
    let end = if trains { "step" } else { "inference" };
    let ends: Vec<i64> = record
        .boundaries
        .iter()
        .filter(|(_, what, _)| what == end)
        .map(|(time, _, _)| *time)
        .collect();
    let labels = trace.labels.clone().unwrap_or_default();
    let mut steps: Vec<Step> = Vec::with_capacity(count.min(ends.len().max(count)));
    let mut current = Step::default();
    let mut open: HashMap<u64, (StackId, u64)> = HashMap::new();
    let mut live = 0_u64;
    let mut by_stack: HashMap<StackId, Held> = HashMap::new();
    for row in trace.rows_of(device) {
        // What the script frees as it ends, its last step has left behind.
        if ends
            .last()
            .is_some_and(|last| trace.events.time(row).0 > *last)
        {
            break;
        }
        let label = labels.get(row);
        let action = trace.events.action(row);
        // Steps count from 1; before the first is the first's, which is never compared alone.
        let at = if trains {
            if action == Action::Alloc {
                (label.step as usize).saturating_sub(1)
            } else {
                steps.len()
            }
        } else {
            let time = trace.events.time(row).0;
            ends.partition_point(|end| *end < time)
        };
        while steps.len() < at.min(count) {
            let mut done = std::mem::take(&mut current);
            done.live_at_end = live;
            if steps.len() + GROWTH_WINDOW >= count {
                done.live_by_stack.clone_from(&by_stack);
            }
            current.peak = live;
            steps.push(done);
        }
        match action {
            Action::Alloc => {
                let bytes = trace.events.size(row).0.max(1).div_ceil(ROUNDING) * ROUNDING;
                let stack = trace.events.stack(row);
                open.insert(trace.events.addr(row).0, (stack, bytes));
                let held = by_stack.entry(stack).or_default();
                held.bytes += bytes;
                held.blocks += 1;
                live += bytes;
                current.peak = current.peak.max(live);
                if matches!(
                    label.phase,
                    Phase::Forward | Phase::Backward | Phase::Inference
                ) {
                    *current
                        .work
                        .entry((label.phase, label.module, label.op))
                        .or_default() += 1;
                    current.allocations += 1;
                    if label.phase != Phase::Backward {
                        current.forward_bytes += bytes;
                    }
                }
            }
            Action::FreeRequested => {
                if let Some((stack, bytes)) = open.remove(&trace.events.addr(row).0) {
                    live -= bytes;
                    if let Some(held) = by_stack.get_mut(&stack) {
                        held.bytes -= bytes;
                        held.blocks -= 1;
                    }
                }
            }
            _ => {}
        }
    }
    if steps.len() < count {
        current.live_at_end = live;
        current.live_by_stack = by_stack;
        steps.push(current);
    }
    steps
}

/// Growth that every one of the newest steps shows.
fn growth(trace: &Trace, record: &Record, device: u32, steps: &[Step]) -> Option<Growth> {
    if steps.len() < GROWTH_STEPS {
        return None;
    }
    let device = record.devices.iter().find(|other| other.index == device)?;
    let least = device.total_bytes as f64 * GROWTH_PART;
    // The first two steps make gradients and the optimizer's state.
    let newest = &steps[(steps.len().saturating_sub(GROWTH_WINDOW)).max(2) - 1..];
    let mut gains = differences(newest.iter().map(|step| step.live_at_end))?;
    if gains.iter().any(|&gain| (gain as f64) < least) {
        return None;
    }
    gains.sort_unstable();
    let bytes_per_step = *gains.get(gains.len() / 2)?;
    let mut places: HashMap<Option<String>, u64> = HashMap::new();
    let mut leaks = Vec::new();
    // In one order in each run: where blocks come to lie depends on it.
    let mut stacks: Vec<StackId> = newest.last()?.live_by_stack.keys().copied().collect();
    stacks.sort_unstable();
    for stack in stacks {
        let held: Vec<Held> = (newest.iter())
            .map(|step| step.live_by_stack.get(&stack).copied().unwrap_or_default())
            .collect();
        if let Some(gains) = differences(held.iter().map(|held| held.bytes))
            && let [.., before, after] = *held
        {
            *places.entry(trace.users_line(stack)).or_default() += gains.iter().sum::<u64>();
            leaks.push(Leak::of(before, after));
        }
    }
    let (place, _) = places
        .into_iter()
        .max_by(|a, b| a.1.cmp(&b.1).then_with(|| b.0.cmp(&a.0)))?;
    let capacity = if device.limit_bytes == 0 {
        device.total_bytes
    } else {
        device.limit_bytes.min(device.total_bytes)
    };
    let left = capacity.saturating_sub(device.peak_used_bytes);
    let version = TorchVersion::parse(&record.torch).unwrap_or(TorchVersion::ASSUMED);
    let config = Config::from_settings(&trace.settings, version);
    Some(Growth {
        bytes_per_step,
        place,
        // The peak is that of all steps, also where only the first were recorded.
        full_at_step: u64::from(record.steps.max(record.inferences))
            + steps_until_full(&leaks, bytes_per_step, left, config),
    })
}

/// In which step from now on `left` bytes are not enough for what each step leaves behind, as the allocator places it: its segments
/// hold whole blocks only, and while a tensor is replaced by a larger one both are there.
fn steps_until_full(leaks: &[Leak], bytes_per_step: u64, left: u64, config: Config) -> u64 {
    let old: u64 = (leaks.iter())
        .map(|leak| match *leak {
            Leak::Added { .. } => 0,
            Leak::Enlarged { blocks, bytes, .. } => blocks * bytes,
        })
        .sum();
    let mut allocator = Simulator::new(config, AddressModel::new(left.saturating_add(old)));
    let mut get = |bytes| allocator.malloc(bytes, 0, PoolId::DEFAULT);
    let mut enlarged: Vec<(BlockId, u64, u64)> = Vec::new();
    for leak in leaks {
        if let Leak::Enlarged {
            blocks,
            bytes,
            more,
        } = *leak
        {
            enlarged.extend((0..blocks).map_while(|_| Some((get(bytes).ok()?, bytes, more))));
        }
    }
    for step in 1..=MOST_STEPS {
        for leak in leaks {
            if let Leak::Added { blocks, bytes } = *leak
                && (0..blocks).any(|_| allocator.malloc(bytes, 0, PoolId::DEFAULT).is_err())
            {
                return step;
            }
        }
        for (block, bytes, more) in &mut enlarged {
            *bytes += *more;
            let Ok(larger) = allocator.malloc(*bytes, 0, PoolId::DEFAULT) else {
                return step;
            };
            allocator.free(std::mem::replace(block, larger));
        }
    }
    // So slow a leak fills all holes.
    left / bytes_per_step + 1
}

/// By how much each value is larger than the one before; `None` if one is not.
fn differences(values: impl Iterator<Item = u64>) -> Option<Vec<u64>> {
    let mut gains = Vec::new();
    let mut before: Option<u64> = None;
    for value in values {
        if let Some(before) = before {
            gains.push(value.checked_sub(before).filter(|&gain| gain > 0)?);
        }
        before = Some(value);
    }
    Some(gains)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn full(leak: Leak, left: u64) -> u64 {
        let bytes_per_step = match leak {
            Leak::Added { blocks, bytes } => blocks * bytes,
            Leak::Enlarged { blocks, more, .. } => blocks * more,
        };
        steps_until_full(&[leak], bytes_per_step, left, Config::default())
    }

    #[test]
    fn blocks_that_fill_their_segments_need_what_they_hold() {
        let bytes = 16 * MIB;
        assert_eq!(full(Leak::Added { blocks: 1, bytes }, 160 * MIB), 11);
    }

    #[test]
    fn a_segment_holds_whole_blocks_only() {
        // Eight of 2.25 MiB in each of 20 MiB; two of 0.75 MiB in each of 2 MiB.
        let (large, small) = (MIB * 9 / 4, MIB * 3 / 4);
        assert_eq!(
            full(
                Leak::Added {
                    blocks: 1,
                    bytes: large
                },
                200 * MIB
            ),
            81
        );
        assert_eq!(
            full(
                Leak::Added {
                    blocks: 2,
                    bytes: small
                },
                200 * MIB
            ),
            101
        );
    }

    #[test]
    fn a_tensor_that_is_replaced_by_a_larger_one_is_there_twice() {
        let leak = Leak::Enlarged {
            blocks: 1,
            bytes: 20 * MIB,
            more: 10 * MIB,
        };
        // With the 20 MiB that it has: 110 and 120 MiB are too much.
        assert_eq!(full(leak, 200 * MIB), 10);
    }

    #[test]
    fn a_leak_of_bytes_comes_to_an_end() {
        assert!(
            full(
                Leak::Added {
                    blocks: 1,
                    bytes: 512
                },
                1 << 34
            ) > 1 << 24
        );
    }
}
