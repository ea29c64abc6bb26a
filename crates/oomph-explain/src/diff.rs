//! What changed between two snapshots or runs, by line of code and by module.

use std::collections::BTreeMap;

use oomph_trace::Trace;
use serde::Serialize;

use crate::facts::Facts;
use crate::{Options, causes};

/// Version of the JSON.
pub const FORMAT: &str = "oomph.diff/1";

/// What changed.
#[derive(Debug, Clone, Serialize)]
pub struct Diff {
    /// [`FORMAT`].
    pub format: &'static str,
    /// One sentence.
    pub verdict: String,
    /// What to know about the two histories, such as that one is cut off.
    pub notes: Vec<String>,
    /// Bytes alive at the peak (or failure) of each.
    pub live_bytes: [u64; 2],
    /// The most reserved in each.
    pub peak_reserved_bytes: [u64; 2],
    /// Bytes by what they hold.
    pub categories: Vec<Change>,
    /// Bytes by place in the code, the largest change first.
    pub places: Vec<Change>,
    /// Bytes by module, if both have modules.
    pub modules: Vec<Change>,
}

/// One line of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The place, module or category.
    pub name: String,
    /// `grew`, `shrank`, `appeared`, `vanished` or `same`.
    pub what: &'static str,
    /// Bytes in each.
    pub bytes: [u64; 2],
    /// Blocks in each.
    pub blocks: [usize; 2],
}

impl Change {
    /// The change in bytes.
    pub fn delta(&self) -> i128 {
        i128::from(self.bytes[1]) - i128::from(self.bytes[0])
    }
}

type Table = BTreeMap<String, [(u64, usize); 2]>;

fn changes(table: Table) -> Vec<Change> {
    let mut changes: Vec<Change> = table
        .into_iter()
        .map(|(name, [(a, a_blocks), (b, b_blocks)])| Change {
            name,
            what: match (a, b) {
                (0, _) => "appeared",
                (_, 0) => "vanished",
                (a, b) if a < b => "grew",
                (a, b) if a > b => "shrank",
                _ => "same",
            },
            bytes: [a, b],
            blocks: [a_blocks, b_blocks],
        })
        .filter(|change| change.what != "same")
        .collect();
    changes.sort_by_key(|change| {
        (
            std::cmp::Reverse(change.delta().unsigned_abs()),
            change.name.clone(),
        )
    });
    changes
}

/// Compares what two histories hold at their peaks (or failures).
pub fn diff(a: &Trace, b: &Trace, options: &Options) -> Diff {
    let mut live_bytes = [0; 2];
    let mut peak_reserved_bytes = [0; 2];
    let mut categories = Table::new();
    let mut places = Table::new();
    let mut modules = Table::new();
    for (side, trace) in [a, b].into_iter().enumerate() {
        let device = options.device.unwrap_or_else(|| {
            trace
                .used_devices()
                .into_iter()
                .max_by_key(|&device| trace.rows_of(device).len())
                .unwrap_or(0)
        });
        let version = options
            .torch_version
            .unwrap_or(oomph_allocator::TorchVersion::ASSUMED);
        let facts = Facts::new(trace, options, device, version);
        if let (Some(live), Some(reserved)) =
            (live_bytes.get_mut(side), peak_reserved_bytes.get_mut(side))
        {
            *live = facts.live_bytes;
            *reserved = facts.program.recorded_peak_reserved;
        }
        let add = |table: &mut Table, name: String, bytes: u64| {
            if let Some(cell) = table.entry(name).or_default().get_mut(side) {
                cell.0 += bytes;
                cell.1 += 1;
            }
        };
        for block in &facts.live {
            add(
                &mut categories,
                block.category.name().to_owned(),
                block.bytes,
            );
            let place = causes::place(&facts, block.stack);
            let place = if place.is_empty() {
                format!("({})", block.phase.name())
            } else {
                place.join(" ← ")
            };
            add(&mut places, place, block.bytes);
            if let Some(labels) = &trace.labels
                && let Some(allocation) = facts.program.allocations.get(block.id as usize)
            {
                let label = labels.get(allocation.alloc_row as usize);
                let module = trace.strings.get(label.module);
                if !module.is_empty() {
                    add(&mut modules, module.to_owned(), block.bytes);
                }
            }
        }
    }
    let places = changes(places);
    let [before, after] = live_bytes;
    let verdict = match places.first() {
        None => format!(
            "nothing changed: {} at the peak of both",
            oomph_trace::Bytes(before)
        ),
        Some(largest) => {
            let direction = match after.cmp(&before) {
                std::cmp::Ordering::Greater => "more",
                std::cmp::Ordering::Less => "less",
                std::cmp::Ordering::Equal => "changed",
            };
            format!(
                "{} {direction} at the peak ({} → {}), most of it at {}",
                oomph_trace::Bytes(before.abs_diff(after)),
                oomph_trace::Bytes(before),
                oomph_trace::Bytes(after),
                largest.name
            )
        }
    };
    Diff {
        format: FORMAT,
        verdict,
        notes: Vec::new(),
        live_bytes,
        peak_reserved_bytes,
        categories: changes(categories),
        places,
        modules: changes(modules),
    }
}
