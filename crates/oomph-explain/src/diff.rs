//! What changed between two snapshots or runs, by line of code and by module.

use std::collections::BTreeMap;

use oomph_trace::{Bytes, Trace};
use serde::Serialize;

use crate::facts::Facts;
use crate::{Options, causes};

/// Version of the JSON.
pub const FORMAT: &str = "oomph.diff/1";

/// What changed.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
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

/// A place without its line numbers, and these.
fn without_lines(place: &str) -> (String, Vec<u64>) {
    let mut parts = place.split(':');
    let mut kept = parts.next().unwrap_or_default().to_owned();
    let mut lines = Vec::new();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = &part[..part.len() - rest.len()];
        lines.extend(number.parse::<u64>());
        kept.push(':');
        kept.push_str(rest);
    }
    (kept, lines)
}

/// Makes one place of two that differ in their line numbers alone: code above them has moved them. Where a file's function holds
/// memory in as many lines as before, they are the same lines in the same order; otherwise nobody knows which is new.
fn joined(table: &Table) -> Table {
    let mut alike: BTreeMap<String, [BTreeMap<Vec<u64>, String>; 2]> = BTreeMap::new();
    for (name, cells) in table {
        let (key, lines) = without_lines(name);
        let found = alike.entry(key).or_default();
        for (cell, side) in cells.iter().zip(found) {
            if cell.1 > 0 {
                side.insert(lines.clone(), name.clone());
            }
        }
    }
    let mut result = Table::new();
    for sides in alike.into_values() {
        let [before, now] = sides.map(|lines| lines.into_values().collect::<Vec<_>>());
        let moved = before.len() == now.len();
        for (side, names) in [before, now.clone()].into_iter().enumerate() {
            for (name, current) in names.iter().zip(if moved { &now } else { &names }) {
                let from = table.get(name).and_then(|cells| cells.get(side));
                let into = result.entry(current.clone()).or_default().get_mut(side);
                if let (Some(from), Some(into)) = (from, into) {
                    *into = *from;
                }
            }
        }
    }
    result
}

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
    let places = changes(joined(&places));
    let verdict = verdict(live_bytes, &places);
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

/// What changed in all, and the line that did most of it: lines may also hold less where there is more.
fn verdict([before, after]: [u64; 2], places: &[Change]) -> String {
    if places.is_empty() {
        return format!("nothing changed: {} at the peak of both", Bytes(before));
    }
    let gained = i128::from(after) - i128::from(before);
    let same_way = |change: &&Change| change.delta().signum() == gained.signum();
    let Some(largest) = places.iter().find(same_way) else {
        return format!(
            "{} at the peak of both, but held by other lines",
            Bytes(before)
        );
    };
    format!(
        "{} {} at the peak ({} → {}), most of it at {}",
        Bytes(before.abs_diff(after)),
        if gained > 0 { "more" } else { "less" },
        Bytes(before),
        Bytes(after),
        largest.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_only_moved_are_the_same_lines() {
        let table = |rows: &[(&str, u64, u64)]| -> Table {
            rows.iter()
                .map(|&(name, a, b)| {
                    (
                        name.to_owned(),
                        [(a, usize::from(a > 0)), (b, usize::from(b > 0))],
                    )
                })
                .collect()
        };
        // Two lines came in above: what was at 14 is at 16, and 16 at 18.
        let moved = table(&[
            ("train.py:14 ← adam.py:178 in init", 90, 0),
            ("train.py:16 ← adam.py:178 in init", 20, 90),
            ("train.py:18 ← adam.py:178 in init", 0, 25),
            ("train.py:10", 36, 110),
            ("other.py:14 in f", 7, 0),
            ("other.py:15 in g", 0, 7),
        ]);
        let found = changes(joined(&moved));
        let names: Vec<(&str, [u64; 2])> = found.iter().map(|c| (&*c.name, c.bytes)).collect();
        assert_eq!(
            names,
            [
                ("train.py:10", [36, 110]),
                ("other.py:14 in f", [7, 0]),
                ("other.py:15 in g", [0, 7]),
                ("train.py:18 ← adam.py:178 in init", [20, 25]),
            ]
        );
        // One more line holds memory: which of them is new, nobody knows.
        let more = table(&[
            ("train.py:14", 90, 0),
            ("train.py:16", 0, 90),
            ("train.py:17", 0, 5),
        ]);
        assert_eq!(joined(&more), more);
    }

    #[test]
    fn the_line_that_is_named_changed_the_same_way() {
        let change = |name: &str, before, after| Change {
            name: name.to_owned(),
            what: "grew",
            bytes: [before, after],
            blocks: [1, 1],
        };
        let places = [
            change("new.py:1", 0, 9 << 30),
            change("old.py:2", 8 << 30, 0),
        ];
        let less = verdict([20 << 30, 14 << 30], &places);
        assert_eq!(
            less,
            "6.0 GiB less at the peak (20.0 GiB → 14.0 GiB), most of it at old.py:2"
        );
        assert!(verdict([14 << 30, 20 << 30], &places).ends_with("at new.py:1"));
        let same = verdict([1 << 30, 1 << 30], &places);
        assert_eq!(same, "1.0 GiB at the peak of both, but held by other lines");
    }
}
