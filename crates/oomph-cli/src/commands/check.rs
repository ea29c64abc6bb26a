//! `oomph check`: the jobs of `oomph.toml`, against their limits and another revision. For CI.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use oomph_bytes::format_bytes;
use oomph_explain::{Change, Options};
use oomph_job::{RunDirectory, RunFile, files, host, signals};
use serde::Serialize;
use serde_json::Value;

use super::diff::history;
use crate::check_file::{self, CheckedJob};
use crate::{ExitStatus, json, page, stdout};

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub(crate) const FORMAT: &str = "oomph.check/1";
/// By which a pull request's comment is found again.
const MARK: &str = "<!-- oomph check -->";
/// Lines and modules of a change that are listed.
const SHOWN: usize = 5;

/// Arguments of `oomph check`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph check                                      all jobs of oomph.toml\n  oomph check --against origin/main                the same, and what changed since that revision\n  oomph check --against HEAD~1 --markdown out.md   a table for a pull request\n\nExit status: 0 all jobs pass; 1 a script failed; 2 wrong usage; 3 a job runs out of memory; 4 a job ended too early for a verdict; 5 a peak is above max_peak, or grew by more than max_growth; 130 Ctrl-C ended it."
)]
pub struct Args {
    /// The file of jobs
    #[arg(long, value_name = "FILE", default_value = "oomph.toml")]
    config: PathBuf,

    /// Only these jobs
    #[arg(value_name = "JOB")]
    jobs: Vec<String>,

    /// Run the jobs of this git revision too, in a work tree of its own, and say what changed
    #[arg(long, value_name = "REVISION")]
    against: Option<String>,

    /// Where to keep the runs
    #[arg(long, value_name = "DIRECTORY", default_value = "oomph-report/check")]
    out: PathBuf,

    /// Write a table in Markdown to FILE
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What `oomph check` found.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Checked {
    format: &'static str,
    /// Whether all jobs pass.
    passes: bool,
    /// The revision that they are compared with.
    against: Option<String>,
    jobs: Vec<Row>,
}

/// A job, as it ended.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Row {
    name: String,
    /// The GPU's name, as the driver reports it.
    gpu: String,
    gpu_bytes: u64,
    /// The verdict of `oomph run`; `none` if there is no record.
    verdict: String,
    /// Why it does not pass.
    failure: Option<String>,
    /// The most that it held, in bytes.
    peak_bytes: u64,
    /// The most that it may hold: the lower of `max_peak`, and what `max_growth` allows over the other revision.
    limit_bytes: Option<u64>,
    /// The same of the revision that it is compared with.
    before_bytes: Option<u64>,
    /// Why there is nothing to compare with.
    no_before: Option<String>,
    /// What holds more or less, by line and by module.
    places: Vec<Change>,
    modules: Vec<Change>,
    /// The page of the run, or of what changed.
    report: PathBuf,
    #[serde(skip)]
    status: ExitStatus,
}

/// A run of a job: its directory, the exit status of `oomph run`, and its summary.
struct Ran {
    directory: PathBuf,
    status: i32,
    summary: Value,
}

impl Ran {
    fn number(&self, pointer: &str) -> u64 {
        let found = self.summary.pointer(pointer).and_then(Value::as_u64);
        found.unwrap_or(0)
    }

    fn text(&self, pointer: &str) -> Option<&str> {
        self.summary.pointer(pointer).and_then(Value::as_str)
    }

    fn peak(&self) -> u64 {
        self.number("/peak/used_bytes")
    }
}

impl Args {
    /// Runs the jobs, and says which pass.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        json::expect_place(self.json.as_deref())?;
        if let Some(file) = self
            .jobs
            .iter()
            .find(|name| Path::new(name).extension().is_some_and(|end| end == "toml"))
        {
            bail!(
                "{file} stands where names of jobs are expected; give the file of jobs as --config {file}"
            );
        }
        let mut jobs = check_file::read(&self.config)?;
        if let Some(unknown) =
            (self.jobs.iter()).find(|name| jobs.iter().all(|job| job.name != **name))
        {
            let known: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
            bail!(
                "{} has no job {unknown}; its jobs are {}",
                self.config.display(),
                known.join(", ")
            );
        }
        jobs.retain(|job| self.jobs.is_empty() || self.jobs.contains(&job.name));
        let place = directory_of(&self.config)?;
        let out = std::path::absolute(&self.out).context("cannot find the working directory")?;
        // Before anything runs: a revision that is not there is known at once.
        let before = self.against.as_deref();
        let before = before
            .map(|revision| WorkTree::add(&place, revision))
            .transpose()?;
        let mut rows = Vec::new();
        for job in &jobs {
            rows.push(checked(job, &place, &out, before.as_ref())?);
        }
        drop(before);
        let status = rows
            .iter()
            .map(|row| row.status)
            .min_by_key(|status| rank(*status));
        let checked = Checked {
            format: FORMAT,
            passes: rows.iter().all(|row| row.failure.is_none()),
            against: self.against,
            jobs: rows,
        };
        if let Some(file) = &self.markdown {
            files::write(file, checked.markdown().as_bytes())?;
        }
        if let Some(target) = &self.json {
            json::write(target, &checked)?;
        }
        if !self.json.as_deref().is_some_and(json::is_stdout) {
            stdout(&checked.terminal())?;
        }
        Ok(status.unwrap_or(ExitStatus::Success))
    }
}

/// The worst comes first.
const fn rank(status: ExitStatus) -> u8 {
    match status {
        ExitStatus::Error | ExitStatus::Interrupted => 0,
        ExitStatus::Failed => 1,
        ExitStatus::Findings => 2,
        ExitStatus::NoVerdict => 3,
        ExitStatus::AbovePeak => 4,
        ExitStatus::Success => 5,
    }
}

fn directory_of(file: &Path) -> anyhow::Result<PathBuf> {
    let file = std::path::absolute(file).context("cannot find the working directory")?;
    Ok(file.parent().unwrap_or(&file).to_path_buf())
}

/// Runs a job as `oomph run` does, in the directory of its file.
fn run(job: &CheckedJob, place: &Path, directory: PathBuf) -> anyhow::Result<Ran> {
    let host = host::get()?;
    let mut command = Command::new(&host.python);
    command
        .args(["-m", "oomph", "run", "--quiet", "--gpu", &job.gpu, "--out"])
        .arg(&directory)
        .current_dir(place)
        // The result is on stdout.
        .stdout(std::io::stderr())
        .stdin(Stdio::null());
    if let Some(memory) = job.memory {
        command.args(["--memory", &format!("{memory}B")]);
    }
    if let Some(steps) = job.steps {
        command.args(["--steps", &steps.to_string()]);
    }
    let status = command
        .args(&job.program)
        .status()
        .with_context(|| format!("cannot start {}", host.python.display()))?;
    if signals::interrupted() {
        bail!("interrupted in {}: no verdict on any job", job.name);
    }
    let summary = std::fs::read(RunDirectory::of_run(&directory).file(RunFile::Summary));
    let summary = summary
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    Ok(Ran {
        directory,
        status: status.code().unwrap_or(1),
        summary: summary.unwrap_or(Value::Null),
    })
}

fn checked(
    job: &CheckedJob,
    place: &Path,
    out: &Path,
    before: Option<&WorkTree>,
) -> anyhow::Result<Row> {
    eprintln!("oomph: {}", job.name);
    let now = run(job, place, out.join(&job.name))?;
    let old = match before {
        Some(tree) => tree.run(job, out)?,
        None => Err("no other revision was named".to_owned()),
    };
    let verdict = now.text("/verdict").unwrap_or("none").to_owned();
    let peak = now.peak();
    let before_bytes = old.as_ref().ok().map(Ran::peak);
    let grown = before_bytes
        .zip(job.max_growth)
        .map(|(before, most)| before.saturating_add(most.bytes(before)));
    let mut row = Row {
        name: job.name.clone(),
        gpu: now.text("/gpu/name").unwrap_or(&job.gpu).to_owned(),
        gpu_bytes: now.number("/gpu/memory_bytes"),
        failure: None,
        peak_bytes: peak,
        limit_bytes: [job.max_peak, grown].into_iter().flatten().min(),
        before_bytes,
        no_before: old.as_ref().err().filter(|_| before.is_some()).cloned(),
        places: Vec::new(),
        modules: Vec::new(),
        report: now.directory.join(page::NAME),
        status: ExitStatus::Success,
        verdict,
    };
    if let Ok(old) = &old {
        compare(&mut row, old, &now);
    }
    (row.status, row.failure) = judge(job, &now, &row);
    Ok(row)
}

/// What the job does wrong, if anything.
fn judge(job: &CheckedJob, now: &Ran, row: &Row) -> (ExitStatus, Option<String>) {
    let peak = format_bytes(row.peak_bytes);
    let (status, what) = match (now.status, row.verdict.as_str()) {
        (_, "out_of_memory") => {
            let short = now.number("/oom/short_bytes");
            let short = if short > 0 {
                format!(", {} too much", format_bytes(short))
            } else {
                String::new()
            };
            let line = now
                .text("/oom/location")
                .map_or_else(String::new, |at| format!(" at {}", file_name(at)));
            (
                ExitStatus::Findings,
                format!("out of memory{line}: it needs {peak}{short}"),
            )
        }
        (_, "no_verdict") => (
            ExitStatus::NoVerdict,
            "it ended before two of its steps were alike: let it make more".to_owned(),
        ),
        (0, _) => (ExitStatus::Success, String::new()),
        (2, _) => (
            ExitStatus::Error,
            "it could not be run; the log says why".to_owned(),
        ),
        (status, _) => {
            let what = now
                .text("/failure")
                .map_or_else(|| format!("exit status {status}"), str::to_owned);
            (ExitStatus::Failed, format!("the script failed: {what}"))
        }
    };
    if status != ExitStatus::Success {
        return (status, Some(what));
    }
    if let Some(limit) = job.max_peak.filter(|limit| row.peak_bytes > *limit) {
        let more = format_bytes(row.peak_bytes - limit);
        return (
            ExitStatus::AbovePeak,
            Some(format!("its peak of {peak} is {more} above max_peak")),
        );
    }
    if let (Some(before), Some(most)) = (row.before_bytes, job.max_growth)
        && row.peak_bytes.saturating_sub(before) > most.bytes(before)
    {
        let more = format_bytes(row.peak_bytes - before);
        return (
            ExitStatus::AbovePeak,
            Some(format!(
                "it holds {more} more than before, above max_growth"
            )),
        );
    }
    (ExitStatus::Success, None)
}

/// Puts what changed into `row`, and its page beside the run. A history that is missing is no reason to fail.
fn compare(row: &mut Row, old: &Ran, now: &Ran) {
    let (Ok((before, _)), Ok((after, _))) = (history(&old.directory), history(&now.directory))
    else {
        return;
    };
    let options = Options::default();
    let found = oomph_explain::diff(&before, &after, &options);
    let sides = [
        (old.directory.as_path(), &before),
        (now.directory.as_path(), &after),
    ];
    let path = now.directory.with_extension("changes.html");
    match page::of_diff(&found, sides, &options, false).and_then(|made| page::write(&path, &made)) {
        Ok(()) => row.report = path,
        Err(error) => eprintln!("oomph: the report could not be written: {error:#}"),
    }
    row.places = found.places;
    row.modules = found.modules;
}

/// Another revision's files.
struct WorkTree {
    /// The repository's directory, to remove it again.
    repository: PathBuf,
    /// Where the files are.
    root: tempfile::TempDir,
    /// The directory of the file of jobs, in it.
    place: PathBuf,
}

impl WorkTree {
    fn add(place: &Path, revision: &str) -> anyhow::Result<Self> {
        let root = tempfile::Builder::new()
            .prefix("oomph-check-")
            .tempdir()
            .context("cannot make a directory for the other revision")?;
        let prefix = git(place, &["rev-parse", "--show-prefix"])?;
        let commit = format!("{revision}^{{commit}}");
        let commit = git(place, &["rev-parse", "--verify", "--quiet", &commit]).map_err(|_| {
            anyhow::anyhow!(
                "--against: git knows no revision {revision} here. In CI, check out with all history (fetch-depth: 0)"
            )
        })?;
        let files = root.path().join("files");
        git(
            place,
            &[
                "worktree",
                "add",
                "--quiet",
                "--detach",
                &files.to_string_lossy(),
                &commit,
            ],
        )?;
        Ok(Self {
            repository: place.to_path_buf(),
            place: files.join(prefix),
            root,
        })
    }

    /// Runs the same job as it was, or says why that cannot be.
    fn run(&self, job: &CheckedJob, out: &Path) -> anyhow::Result<Result<Ran, String>> {
        // The job of today on the code of then: a change of the job's own arguments is a change too, if the file had it.
        let file = self.place.join("oomph.toml");
        let old = check_file::read(&file)
            .ok()
            .and_then(|jobs| jobs.into_iter().find(|old| old.name == job.name));
        let is_new = old.is_none();
        let old = CheckedJob {
            gpu: job.gpu.clone(),
            memory: job.memory,
            ..old.unwrap_or_else(|| job.clone())
        };
        let script = old.program.first().filter(|word| *word != "-m");
        if script.is_some_and(|script| !self.place.join(script).is_file()) {
            return Ok(Err("the job is new".to_owned()));
        }
        eprintln!("oomph: {} before", job.name);
        let ran = run(&old, &self.place, out.join("before").join(&job.name))?;
        if ran.peak() == 0 {
            let what = if is_new {
                "the job is new"
            } else {
                "it failed before"
            };
            return Ok(Err(what.to_owned()));
        }
        Ok(Ok(ran))
    }
}

impl Drop for WorkTree {
    fn drop(&mut self) {
        let files = self.root.path().join("files");
        let _ = git(
            &self.repository,
            &["worktree", "remove", "--force", &files.to_string_lossy()],
        );
    }
}

/// What git says.
fn git(place: &Path, words: &[&str]) -> anyhow::Result<String> {
    let done = Command::new("git")
        .arg("-C")
        .arg(place)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .context("cannot start git, which --against needs")?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("git {}: {}", words.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// `/a/b/train.py:3` without its directories.
fn file_name(location: &str) -> &str {
    location.rsplit('/').next().unwrap_or(location)
}

/// A change in bytes.
fn signed(before: u64, now: u64) -> String {
    match now.cmp(&before) {
        std::cmp::Ordering::Equal => "±0".to_owned(),
        std::cmp::Ordering::Greater => format!("+{}", format_bytes(now - before)),
        std::cmp::Ordering::Less => format!("−{}", format_bytes(before - now)),
    }
}

impl Row {
    fn change(&self) -> String {
        match (self.before_bytes, &self.no_before) {
            (Some(before), _) => signed(before, self.peak_bytes),
            (None, Some(why)) => why.clone(),
            (None, None) => String::new(),
        }
    }
}

impl Checked {
    fn title(&self) -> String {
        let failing = self.jobs.iter().filter(|row| row.failure.is_some()).count();
        match (failing, self.jobs.len()) {
            (0, 1) => "the job passes".to_owned(),
            (0, all) => format!("all {all} jobs pass"),
            (1, 1) => "the job fails".to_owned(),
            (failing, all) => format!("{failing} of {all} jobs fail"),
        }
    }

    fn terminal(&self) -> String {
        let wide = self
            .jobs
            .iter()
            .map(|row| row.name.len())
            .max()
            .unwrap_or(0);
        let mut text = String::from("\n");
        for row in &self.jobs {
            let mark = if row.failure.is_none() { '✓' } else { '✗' };
            let gpu = format!(
                "{} of {} ({})",
                format_bytes(row.peak_bytes),
                format_bytes(row.gpu_bytes),
                row.gpu
            );
            let change = row.change();
            let comma = if change.is_empty() { "" } else { ", " };
            let _ = writeln!(text, "{mark} {:<wide$}  {gpu}{comma}{change}", row.name);
            if let Some(failure) = &row.failure {
                let _ = writeln!(text, "  {:<wide$}  {failure}", "");
            }
            for change in row.places.iter().take(SHOWN) {
                let delta = signed(change.bytes[0], change.bytes[1]);
                let _ = writeln!(text, "  {:<wide$}  {delta:>11}  {}", "", change.name);
            }
            let _ = writeln!(text, "  {:<wide$}  {}", "", row.report.display());
        }
        let _ = writeln!(text, "\n{}", self.title());
        text
    }

    /// For a pull request: a table, and of each job that changed its lines and modules.
    fn markdown(&self) -> String {
        let mut text = format!("{MARK}\n### GPU memory: {}\n\n", self.title());
        text.push_str(
            "| | job | GPU | peak | limit | before | change |\n|---|---|---|---:|---:|---:|---:|\n",
        );
        let bytes = |size: Option<u64>| size.map_or_else(String::new, format_bytes);
        for row in &self.jobs {
            let mark = if row.failure.is_none() { "✅" } else { "❌" };
            let _ = writeln!(
                text,
                "| {mark} | {} | {} · {} | {} | {} | {} | {} |",
                cell(&row.name),
                cell(&row.gpu),
                format_bytes(row.gpu_bytes),
                format_bytes(row.peak_bytes),
                bytes(row.limit_bytes),
                bytes(row.before_bytes),
                cell(&row.change()),
            );
        }
        for row in &self.jobs {
            if let Some(failure) = &row.failure {
                let _ = writeln!(text, "\n❌ **{}**: {}", cell(&row.name), cell(failure));
            }
        }
        for row in self.jobs.iter().filter(|row| !row.places.is_empty()) {
            let _ = writeln!(
                text,
                "\n<details><summary>{}: what changed</summary>\n\n| change | line | before | now |\n|---:|---|---:|---:|",
                cell(&row.name)
            );
            rows(&mut text, &row.places);
            if !row.modules.is_empty() {
                text.push_str("\n| change | module | before | now |\n|---:|---|---:|---:|\n");
                rows(&mut text, &row.modules);
            }
            text.push_str("\n</details>\n");
        }
        let against = self
            .against
            .as_deref()
            .map_or_else(String::new, |revision| {
                format!(", compared with {}", cell(revision))
            });
        let _ = writeln!(
            text,
            "\n<sub>Measured on virtual GPUs by `oomph check`{against}.</sub>"
        );
        text
    }
}

fn rows(text: &mut String, changes: &[Change]) {
    for change in changes.iter().take(SHOWN) {
        let [before, now] = change.bytes;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            signed(before, now),
            cell(&change.name),
            format_bytes(before),
            format_bytes(now)
        );
    }
    if let Some(more) = changes.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        let _ = writeln!(text, "| | and {more} more | | |");
    }
}

/// Text that stays in its cell, and is neither markup nor a mention of somebody.
fn cell(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut out = String::with_capacity(line.len());
    for character in line.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '@' => out.push_str("&#64;"),
            '|' | '`' | '*' | '_' | '[' | ']' | '\\' | '#' | '!' | '~' => {
                out.push('\\');
                out.push(character);
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_cell() {
        assert_eq!(
            cell("a|b\n`c` <d> @all"),
            "a\\|b \\`c\\` &lt;d&gt; &#64;all"
        );
    }

    #[test]
    fn the_worst_status_is_the_commands() {
        let worst = [
            ExitStatus::Success,
            ExitStatus::AbovePeak,
            ExitStatus::Findings,
            ExitStatus::Failed,
        ];
        let found = worst.into_iter().min_by_key(|status| rank(*status));
        assert_eq!(found, Some(ExitStatus::Failed));
    }
}
