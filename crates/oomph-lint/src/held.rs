//! Findings on lines that really hold memory come first.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::{Finding, Scope};

/// Bytes that a trace found to be held, by the lines of the files whose calls made them.
#[derive(Clone, Debug, Default)]
pub struct HeldBytes {
    // One entry for each stack: its bytes.
    bytes: Vec<u64>,
    // For each file: its lines with the stacks that pass through them.
    by_file: HashMap<String, Vec<(usize, usize)>>,
}

impl HeldBytes {
    /// Nothing is known to be held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes that calls through these lines (file, and line from 1) made and that are held.
    /// Files are named as the findings name them.
    pub fn add<'a>(&mut self, lines: impl IntoIterator<Item = (&'a str, usize)>, bytes: u64) {
        let stack = self.bytes.len();
        self.bytes.push(bytes);
        for (file, line) in lines {
            self.by_file
                .entry(file.to_string())
                .or_default()
                .push((line, stack));
        }
    }

    /// The bytes held by the lines that a finding is about.
    pub fn of(&self, file: &str, finding: &Finding) -> u64 {
        // Traces name lines of files; a notebook's cells are files of their own.
        if finding.start.cell.is_some() {
            return 0;
        }
        let (first, last) = match finding.scope {
            Scope::Line => (finding.start.line, finding.end.line),
            Scope::Loop(first, last) | Scope::Function(first, last) => (first, last),
        };
        self.of_lines(file, first, last)
    }

    /// The bytes held by the lines of a file from `first` to `last`, which count from 1.
    pub fn of_lines(&self, file: &str, first: usize, last: usize) -> u64 {
        let Some(lines) = self.by_file.get(file) else {
            return 0;
        };
        // A stack may pass through several of the lines; its bytes count once.
        let mut stacks: Vec<usize> = lines
            .iter()
            .filter(|(line, _)| (first..=last).contains(line))
            .map(|&(_, stack)| stack)
            .collect();
        stacks.sort_unstable();
        stacks.dedup();
        stacks
            .into_iter()
            .filter_map(|stack| self.bytes.get(stack))
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The files that it knows lines of.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.by_file.keys().map(String::as_str)
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
