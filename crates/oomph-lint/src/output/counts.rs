//! What is said beside the findings: how many there are, and which rules there are.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::FileReport;
use crate::{ALL, Applicability};

/// All rules by family, one a line.
pub fn rules() -> String {
    let mut out = String::new();
    let mut family = "";
    for rule in ALL {
        if rule.family() != family {
            family = rule.family();
            let _ = writeln!(out, "\n{family}");
        }
        let default = if rule.is_default() {
            ""
        } else {
            " (off by default)"
        };
        let _ = writeln!(out, "  {}  {}{default}", rule.code, rule.name);
        let _ = writeln!(out, "          {}", rule.summary());
    }
    out
}

/// How many findings there are of each rule.
pub fn statistics(files: &[FileReport]) -> String {
    let mut out = String::new();
    let mut counts: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for finding in files.iter().flat_map(|file| &file.findings) {
        let entry = counts
            .entry(finding.rule.code)
            .or_insert((0, finding.rule.name));
        entry.0 += 1;
    }
    for (code, (count, name)) in counts {
        let _ = writeln!(out, "{count:>6}  {code}  {name}");
    }
    out
}

/// How many findings there are, how many were fixed, and how the others can be.
pub fn summary(files: &[FileReport], fixed: usize) -> String {
    let findings: usize = files.iter().map(|file| file.findings.len()).sum();
    let problems: usize = files.iter().map(|file| file.problems.len()).sum();
    let plural = |count: usize, word: &str| {
        if count == 1 {
            format!("1 {word}")
        } else {
            format!("{count} {word}s")
        }
    };
    let mut parts = Vec::new();
    if fixed > 0 {
        parts.push(format!("{} fixed", plural(fixed, "finding")));
    }
    if findings > 0 {
        let with = files
            .iter()
            .filter(|file| !file.findings.is_empty())
            .count();
        parts.push(format!(
            "{} in {}",
            plural(findings, "finding"),
            plural(with, "file")
        ));
    } else if problems == 0 {
        parts.push(format!("nothing found in {}", plural(files.len(), "file")));
    }
    if problems > 0 {
        parts.push(format!(
            "{} could not be linted",
            if problems == 1 {
                "1 file or cell".to_owned()
            } else {
                format!("{problems} files or cells")
            }
        ));
    }
    let mut out = format!("{}\n", parts.join(", "));
    let fixable = |safe: bool| {
        files
            .iter()
            .flat_map(|file| &file.findings)
            .filter_map(|finding| finding.fix.as_ref())
            .filter(|fix| (fix.applicability == Applicability::Safe) == safe)
            .count()
    };
    let _ = match (fixable(true), fixable(false)) {
        (0, 0) => Ok(()),
        (safe, 0) => writeln!(out, "hint: `--fix` fixes {safe} of them"),
        (0, other) => writeln!(out, "hint: `--unsafe-fixes` fixes {other} of them"),
        (safe, other) => writeln!(
            out,
            "hint: `--fix` fixes {safe} of them, `--unsafe-fixes` {} of them",
            safe + other
        ),
    };
    out
}
