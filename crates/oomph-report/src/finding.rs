//! A lint finding on a line that holds memory, as explanations and runs show it.

use std::fmt::Write as _;

use oomph_bytes::format_bytes;
use serde::Serialize;

use crate::terminal::{ACCENT, BOLD, pad_left, paint, wrap};

/// Findings that fit beside an explanation.
const SHOWN: usize = 3;
/// Columns of an amount such as `1023.9 MiB`.
const AMOUNT: usize = 10;

/// A finding and what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct HeldFinding {
    /// The rule.
    pub code: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The file, as it was recorded.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// What was found.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<&'static str>,
    /// Bytes alive at the failure or the peak, made by calls through the lines it is about.
    pub held_bytes: u64,
    /// Which lines these are: `line`, `loop` or `function`.
    pub held_by: &'static str,
    /// The rule's page.
    pub url: String,
}

impl HeldFinding {
    /// `train.py:41 OOM101 …`, without folders.
    pub fn text(&self) -> String {
        let file = self.path.rsplit(['/', '\\']).next().unwrap_or(&self.path);
        format!("{file}:{} {} {}", self.line, self.code, self.message)
    }
}

/// The section of an explanation.
pub fn findings(found: &[HeldFinding], width: usize) -> String {
    let mut out = String::new();
    if found.is_empty() {
        return out;
    }
    let _ = writeln!(out, "\n  {}", paint(BOLD, "in your code (oomph lint)"));
    let indent = 2 + AMOUNT + 2;
    for finding in found.iter().take(SHOWN) {
        let _ = writeln!(
            out,
            "  {}  {}",
            pad_left(&format_bytes(finding.held_bytes), AMOUNT),
            wrap(&finding.text(), width.saturating_sub(indent), indent)
        );
    }
    if found.len() > SHOWN {
        let more = format!("and {} more: oomph lint --trace", found.len() - SHOWN);
        let _ = writeln!(out, "{}{}", " ".repeat(indent), paint(ACCENT, more));
    }
    out
}
