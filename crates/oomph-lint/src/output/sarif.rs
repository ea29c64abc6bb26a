//! SARIF 2.1.0, for code scanning.

use serde_json::{Value, json};

use super::{FileReport, uri};
use crate::{ALL, Position};

/// Writes one SARIF log.
pub fn sarif(files: &[FileReport]) -> Result<String, serde_json::Error> {
    let mut results = Vec::new();
    let mut notifications = Vec::new();
    for file in files {
        for finding in &file.findings {
            let index = ALL.iter().position(|rule| rule.code == finding.rule.code);
            results.push(json!({
                "ruleId": finding.rule.code,
                "ruleIndex": index,
                "level": "warning",
                "message": { "text": finding.message },
                "locations": [location(&file.path, finding.start, finding.end)],
            }));
        }
        for problem in &file.problems {
            let at = Position {
                cell: problem.cell,
                line: problem.line,
                column: problem.column,
            };
            notifications.push(json!({
                "level": "error",
                "message": { "text": problem.message },
                "locations": [location(&file.path, at, at)],
            }));
        }
    }
    let rules: Vec<Value> = ALL
        .iter()
        .map(|rule| {
            json!({
                "id": rule.code,
                "name": rule.name,
                "shortDescription": { "text": rule.summary() },
                "fullDescription": { "text": rule.summary() },
                "help": { "text": rule.summary(), "markdown": rule.page() },
                "helpUri": rule.url(),
                "properties": { "tags": [rule.family()] },
            })
        })
        .collect();
    let mut text = serde_json::to_string_pretty(&json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "oomph",
                "version": env!("CARGO_PKG_VERSION"),
                "informationUri": env!("CARGO_PKG_REPOSITORY"),
                "rules": rules,
            }},
            "invocations": [{
                "executionSuccessful": notifications.is_empty(),
                "toolExecutionNotifications": notifications,
            }],
            // Columns count characters, not UTF-16 units.
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    }))?;
    text.push('\n');
    Ok(text)
}

fn location(path: &str, start: Position, end: Position) -> Value {
    let mut value = json!({
        "physicalLocation": {
            "artifactLocation": { "uri": uri(path) },
            "region": {
                "startLine": start.line,
                "startColumn": start.column,
                "endLine": end.line,
                "endColumn": end.column,
            },
        },
    });
    if let Some(cell) = start.cell {
        value["message"] = json!({ "text": format!("in cell {cell}") });
    }
    value
}
