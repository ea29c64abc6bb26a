//! JSON, for editors and scripts.
//!
//! ```json
//! {"format": "oomph.lint/1", "version": 1, "findings": [{"code": "OOM101", "path": "train.py", "start": {"line": 9, "column": 9}, ...}],
//!  "problems": [...]}
//! ```
//!
//! Offsets of edits are bytes of the file, or of the joined code cells of a notebook.

use serde::Serialize;

use super::FileReport;
use crate::{Applicability, Position};

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.lint/1";
/// The same as a number, which was all there was at first.
const JSON_VERSION: u32 = 1;

/// The whole document.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Document<'a> {
    format: &'static str,
    version: u32,
    findings: Vec<JsonFinding<'a>>,
    problems: Vec<JsonProblem<'a>>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct JsonFinding<'a> {
    code: &'a str,
    name: &'a str,
    family: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<usize>,
    start: JsonPosition,
    end: JsonPosition,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'a str>,
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<JsonFix<'a>>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct JsonPosition {
    line: usize,
    column: usize,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct JsonFix<'a> {
    applicability: Applicability,
    message: &'a str,
    edits: Vec<JsonEdit<'a>>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct JsonEdit<'a> {
    start: usize,
    end: usize,
    content: &'a str,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct JsonProblem<'a> {
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cell: Option<usize>,
    line: usize,
    column: usize,
    message: &'a str,
}

impl From<Position> for JsonPosition {
    fn from(at: Position) -> Self {
        Self {
            line: at.line,
            column: at.column,
        }
    }
}

/// Writes one JSON document.
pub fn json(files: &[FileReport]) -> Result<String, serde_json::Error> {
    let mut document = Document {
        format: FORMAT,
        version: JSON_VERSION,
        findings: Vec::new(),
        problems: Vec::new(),
    };
    for file in files {
        for finding in &file.findings {
            document.findings.push(JsonFinding {
                code: finding.rule.code,
                name: finding.rule.name,
                family: finding.rule.family(),
                path: &file.path,
                cell: finding.start.cell,
                start: finding.start.into(),
                end: finding.end.into(),
                message: &finding.message,
                help: finding.help,
                url: finding.rule.url(),
                held_bytes: finding.held_bytes,
                held_by: finding.held_bytes.map(|_| finding.scope.name()),
                fix: finding.fix.as_ref().map(|fix| JsonFix {
                    applicability: fix.applicability,
                    message: fix.message,
                    edits: fix
                        .edits
                        .iter()
                        .map(|edit| JsonEdit {
                            start: edit.start(),
                            end: edit.end(),
                            content: edit.content(),
                        })
                        .collect(),
                }),
            });
        }
        for problem in &file.problems {
            document.problems.push(JsonProblem {
                path: &file.path,
                cell: problem.cell,
                line: problem.line,
                column: problem.column,
                message: &problem.message,
            });
        }
    }
    let mut text = serde_json::to_string_pretty(&document)?;
    text.push('\n');
    Ok(text)
}
