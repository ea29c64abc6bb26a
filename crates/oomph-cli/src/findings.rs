//! Lint findings for a trace: lints the user's own files that still exist, and keeps
//! the findings whose lines hold memory.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;
use oomph_explain::{Explanation, HeldStack};
use oomph_job::{RunDirectory, RunFile};
use oomph_lint::output::FileReport;
use oomph_lint::{Finding, HeldBytes, Source, lint, order_by_held};
use oomph_report::finding::HeldFinding;
use oomph_trace::Content;

use crate::lint_settings::Choices;

/// Number of files to lint for a trace; those that hold most come first.
const MAX_FILES: usize = 64;

/// Families and rules about memory of the GPU.
const ABOUT_MEMORY: [&str; 7] = ["OOM1", "OOM2", "OOM3", "OOM4", "OOM5", "OOM703", "OOM801"];

/// The findings whose lines hold memory, those that hold most first.
///
/// Skips files that do not exist (a snapshot from another machine), cannot be parsed,
/// or have fewer lines than the trace refers to.
pub fn held_findings(held: &[HeldStack]) -> Vec<HeldFinding> {
    let mut files: Vec<(&str, u64, u32)> = Vec::new();
    for stack in held {
        for (file, line) in &stack.lines {
            match files.iter_mut().find(|(known, ..)| known == file) {
                Some((_, bytes, last)) => {
                    *bytes = bytes.saturating_add(stack.bytes);
                    *last = (*last).max(*line);
                }
                None => files.push((file, stack.bytes, *line)),
            }
        }
    }
    files.sort_by_key(|&(_, bytes, _)| std::cmp::Reverse(bytes));
    let bytes = held_bytes(held, |file| Some(file.to_owned()));
    let mut found = Vec::new();
    for &(file, _, last) in files.iter().take(MAX_FILES) {
        found.extend(
            lint_file(file, last)
                .into_iter()
                .map(|finding| (file, finding)),
        );
    }
    order_by_held(&mut found, &bytes);
    found
        .into_iter()
        .map_while(|(file, finding)| {
            Some(HeldFinding {
                code: finding.rule.code,
                name: finding.rule.name,
                path: file.to_owned(),
                line: finding.start.line,
                column: finding.start.column,
                help: finding.help,
                held_bytes: finding.held_bytes?,
                held_by: finding.scope.name(),
                url: finding.rule.url(),
                message: finding.message,
            })
        })
        .collect()
}

fn lint_file(file: &str, last_line: u32) -> Vec<Finding> {
    let path = Path::new(file);
    if path.extension().is_none_or(|extension| extension != "py") {
        return Vec::new();
    }
    let Ok(bytes) = fs::read(path) else {
        return Vec::new();
    };
    let Ok(source) = Source::from_bytes(file, bytes) else {
        return Vec::new();
    };
    if source.code().lines().count() < last_line as usize {
        return Vec::new();
    }
    // What a line holds is measured here, so all rules about memory speak.
    let choices = Choices {
        extend_select: ABOUT_MEMORY.map(str::to_owned).to_vec(),
        ..Choices::default()
    };
    // `oomph lint` reports wrong settings.
    let settings = choices
        .config_for(path)
        .and_then(|config| choices.settings(config.as_deref()));
    let Ok(settings) = settings else {
        return Vec::new();
    };
    lint(&source, &settings.for_file(path)).findings
}

/// What lines hold, with files named by `name`; those without a name are left out.
pub fn held_bytes(held: &[HeldStack], name: impl Fn(&str) -> Option<String>) -> HeldBytes {
    let mut names: HashMap<&str, Option<String>> = HashMap::new();
    for (file, _) in held.iter().flat_map(|stack| &stack.lines) {
        names.entry(file).or_insert_with(|| name(file));
    }
    let mut bytes = HeldBytes::new();
    for stack in held {
        let lines = stack.lines.iter().filter_map(|(file, line)| {
            Some((names.get(file.as_str())?.as_deref()?, *line as usize))
        });
        bytes.add(lines, stack.bytes);
    }
    bytes
}

/// A trace's file: itself, or the one in the directory of a run.
pub fn trace_file(path: &Path) -> anyhow::Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let inside = RunDirectory::of_run(path).file(RunFile::Trace);
    if !inside.is_file() {
        bail!(
            "{}: expected the directory of a run, which has a {}; found none. Give a \
             snapshot, an oomph trace, or such a directory",
            path.display(),
            RunFile::Trace.name()
        );
    }
    Ok(inside)
}

/// What a trace, or the directory of a run, says of the lines that held memory.
pub fn explained(trace: &Path) -> anyhow::Result<Explanation> {
    let path = trace_file(trace)?;
    let Content::Trace(read) = oomph_job::files::read(&path)?.0 else {
        bail!(
            "{}: found no history of memory; give a snapshot or an oomph trace",
            path.display()
        );
    };
    Ok(oomph_explain::explain(
        &read,
        &oomph_explain::Options::default(),
    ))
}

/// What a trace says about files that may have other names here: a recorded file matches the file with the
/// same absolute path, or the only one among `files` with which its path ends.
fn held_by_trace(trace: &Path, files: &[String]) -> anyhow::Result<HeldBytes> {
    let explained = explained(trace)?;
    let absolute: Vec<(PathBuf, &String)> = files
        .iter()
        .map(|file| {
            let path = Path::new(file);
            let resolved = fs::canonicalize(path).or_else(|_| std::path::absolute(path));
            (resolved.unwrap_or_else(|_| path.to_owned()), file)
        })
        .collect();
    let bytes = held_bytes(&explained.held, |recorded| {
        let place = fs::canonicalize(recorded).unwrap_or_else(|_| PathBuf::from(recorded));
        if let Some((_, file)) = absolute.iter().find(|(path, _)| *path == place) {
            return Some((*file).clone());
        }
        // The trace may come from another machine, with the project in another place.
        let shared = |path: &Path| {
            path.components()
                .rev()
                .zip(place.components().rev())
                .take_while(|(a, b)| a == b)
                .count()
        };
        let most = absolute
            .iter()
            .map(|(path, _)| shared(path))
            .max()
            .filter(|&most| most > 0)?;
        let mut best = absolute.iter().filter(|(path, _)| shared(path) == most);
        let (_, file) = best.next()?;
        best.next().is_none().then(|| (*file).clone())
    });
    Ok(bytes)
}

/// Puts the findings on lines that held memory first, and their files.
pub fn order_by_trace(files: &mut [FileReport], trace: &Path) -> anyhow::Result<()> {
    let names: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
    let held = held_by_trace(trace, &names)?;
    for file in files.iter_mut() {
        let mut found: Vec<_> = std::mem::take(&mut file.findings)
            .into_iter()
            .map(|finding| (file.path.as_str(), finding))
            .collect();
        order_by_held(&mut found, &held);
        file.findings = found.into_iter().map(|(_, finding)| finding).collect();
    }
    files.sort_by_key(|file| {
        let most = file.findings.first().and_then(|finding| finding.held_bytes);
        std::cmp::Reverse(most.unwrap_or(0))
    });
    Ok(())
}
