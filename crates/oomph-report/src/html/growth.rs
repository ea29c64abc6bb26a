//! What each step leaves behind.

use std::collections::HashMap;

use oomph_trace::Category;
use serde::Serialize;

use super::history::{Block, Step};
use super::lod::Change;

/// Kinds of blocks that are listed.
const LISTED: usize = 60;

/// What steps leave behind.
#[derive(Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct Growth {
    /// Per step.
    pub steps: Vec<StepLeft>,
    /// The kinds that leave the most behind, the largest first.
    pub kinds: Vec<KindLeft>,
}

/// What one step left.
#[derive(Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct StepLeft {
    /// The step's number.
    pub number: u32,
    /// The most bytes alive within it.
    pub peak: u64,
    /// Bytes alive at its end.
    pub end: u64,
    /// Bytes made in it that were still alive at the end of the step after it (at the end of the
    /// history, for the last step but one), by category. `None` for the last step: unknown.
    pub left: Option<Vec<u64>>,
}

/// What one kind of blocks left.
#[derive(Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub(crate) struct KindLeft {
    /// Its number.
    pub kind: u32,
    /// Bytes left by all steps.
    pub bytes: u64,
    /// Blocks left by all steps.
    pub blocks: u64,
    /// Steps that left some.
    pub steps: u32,
}

/// Summarizes what the steps leave behind. `changes` are the bytes alive at first and all changes in
/// the order of moments, of which `moments` is the last.
pub(crate) fn growth(
    blocks: &[Block],
    changes: (i64, impl Iterator<Item = Change>),
    steps: &[Step],
    moments: u32,
    category: &dyn Fn(u32) -> Category,
) -> Growth {
    let place = |category: Category| {
        Category::ALL
            .iter()
            .position(|&known| known == category)
            .unwrap_or(0)
    };
    let mut left: Vec<StepLeft> = steps
        .iter()
        .enumerate()
        .map(|(index, step)| StepLeft {
            number: step.number,
            left: (index + 1 < steps.len()).then(|| vec![0; Category::ALL.len()]),
            ..StepLeft::default()
        })
        .collect();
    let mut kinds: HashMap<u32, (KindLeft, u32)> = HashMap::new();
    for block in blocks {
        // A block that is there from moment m on was made by the event before it.
        let made = block.start;
        let at = steps.partition_point(|step| step.start < made);
        let Some(index) = at.checked_sub(1) else {
            continue;
        };
        let (Some(step), Some(next)) = (steps.get(index), steps.get(index + 1)) else {
            continue;
        };
        if made > step.end || block.end <= next.end.min(moments) {
            continue;
        }
        if let Some(slot) = left
            .get_mut(index)
            .and_then(|step| step.left.as_mut())
            .and_then(|left| left.get_mut(place(category(block.kind))))
        {
            *slot += block.bytes;
        }
        let (entry, last_step) = kinds.entry(block.kind).or_insert((
            KindLeft {
                kind: block.kind,
                bytes: 0,
                blocks: 0,
                steps: 0,
            },
            u32::MAX,
        ));
        entry.bytes += block.bytes;
        entry.blocks += 1;
        if *last_step != index as u32 {
            *last_step = index as u32;
            entry.steps += 1;
        }
    }
    let (mut live, changes) = changes;
    let mut changes = changes.peekable();
    for (step, result) in steps.iter().zip(&mut left) {
        let mut peak = 0;
        while let Some(first) = changes.next_if(|change| change.moment <= step.end) {
            live += first.bytes;
            // All changes of a moment come together.
            while let Some(change) = changes.next_if(|change| change.moment == first.moment) {
                live += change.bytes;
            }
            if first.moment >= step.start {
                peak = peak.max(live);
            }
        }
        result.peak = peak.max(live).max(0) as u64;
        result.end = live.max(0) as u64;
    }
    let mut kinds: Vec<KindLeft> = kinds.into_values().map(|(kind, _)| kind).collect();
    kinds.sort_by_key(|kind| (std::cmp::Reverse(kind.bytes), kind.kind));
    kinds.truncate(LISTED);
    Growth { steps: left, kinds }
}
