//! Findings on lines that really hold memory come first.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::Finding;

/// Bytes that a trace found to be held by allocations made on a line of a file.
#[derive(Clone, Debug, Default)]
pub struct HeldBytes {
    by_file: HashMap<String, HashMap<usize, u64>>,
}

impl HeldBytes {
    /// Nothing is known to be held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes held by a line (from 1) of a file. The file is named as the findings name it.
    pub fn add(&mut self, file: &str, line: usize, bytes: u64) {
        let lines = self.by_file.entry(file.to_string()).or_default();
        let held = lines.entry(line).or_default();
        *held = held.saturating_add(bytes);
    }

    /// The bytes held by the lines that a finding covers.
    pub fn of(&self, file: &str, finding: &Finding) -> u64 {
        // Traces name lines of files; a notebook's cells are files of their own.
        if finding.start.cell.is_some() {
            return 0;
        }
        let Some(lines) = self.by_file.get(file) else {
            return 0;
        };
        (finding.start.line..=finding.end.line)
            .filter_map(|line| lines.get(&line))
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// Fills in [`Finding::held_bytes`] and puts the findings that hold most first. Findings that hold
/// nothing keep their order, after the others.
pub fn order_by_held(findings: &mut [(&str, Finding)], held: &HeldBytes) {
    for (file, finding) in findings.iter_mut() {
        let bytes = held.of(file, finding);
        finding.held_bytes = (bytes > 0).then_some(bytes);
    }
    findings.sort_by_key(|(_, finding)| Reverse(finding.held_bytes.unwrap_or(0)));
}
