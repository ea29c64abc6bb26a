//! GitHub annotations: one workflow command per finding.

use std::fmt::Write as _;

use super::FileReport;

/// Writes `::warning` for findings and `::error` for files that could not be linted.
pub fn github(files: &[FileReport]) -> String {
    let mut out = String::new();
    for file in files {
        for problem in &file.problems {
            let _ = writeln!(
                out,
                "::error title=oomph,file={},line={},col={}::{}",
                property(&file.path),
                problem.line,
                problem.column,
                data(&problem.message)
            );
        }
        for finding in &file.findings {
            let cell = match finding.start.cell {
                Some(cell) => format!("cell {cell}: "),
                None => String::new(),
            };
            let _ = writeln!(
                out,
                "::warning title=oomph ({}),file={},line={},col={},endLine={},endColumn={}::{}:{}:{}: {} {}{}",
                finding.rule.code,
                property(&file.path),
                finding.start.line,
                finding.start.column,
                finding.end.line,
                finding.end.column,
                data(&file.path),
                finding.start.line,
                finding.start.column,
                finding.rule.code,
                cell,
                data(&finding.message)
            );
        }
    }
    out
}

fn data(text: &str) -> String {
    text.replace('%', "%25")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
