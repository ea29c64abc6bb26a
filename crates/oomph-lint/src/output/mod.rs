//! How findings are written. One file per form.

mod counts;
mod github;
mod json;
mod sarif;
mod text;

pub use counts::{rules, statistics, summary};
pub use github::github;
pub use json::{Document, FORMAT, json};
pub use sarif::sarif;
pub use text::{TextOptions, text};

use std::fmt::Write as _;

use crate::{Finding, Problem, Source};

/// What linting one file gave, with what is needed to show it.
#[derive(Debug)]
pub struct FileReport {
    /// The file as the user named it.
    pub path: String,
    /// The source, if it could be read.
    pub source: Option<Source>,
    /// The findings.
    pub findings: Vec<Finding>,
    /// Why the file, or parts of it, could not be linted.
    pub problems: Vec<Problem>,
}

/// `path:line:column`, with the cell of a notebook.
fn location(path: &str, at: crate::Position) -> String {
    match at.cell {
        Some(cell) => format!("{path}:cell {cell}:{}:{}", at.line, at.column),
        None => format!("{path}:{}:{}", at.line, at.column),
    }
}

/// A path as a relative URI.
fn uri(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.trim_start_matches("./").bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' | b'~' => {
                out.push(char::from(byte));
            }
            b'\\' => out.push('/'),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}
