//! `oomph explain`: from a snapshot, a log or a message to the cause.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use oomph_allocator::TorchVersion;
use oomph_bytes::parse_capacity;
use oomph_explain::{Explanation, Options};
use oomph_job::{RunDirectory, RunFile};
use oomph_report::ending::Ended;
use oomph_report::explanation::explanation;
use oomph_report::finding::{HeldFinding, findings};
use oomph_report::terminal::{BOLD, DIM, paint, width};
use oomph_trace::text::{self, OomMessage};
use oomph_trace::{Content, Problem, Trace};
use serde::Serialize;

use crate::ended;
use crate::explained::explain_directory;
use crate::findings::{held_findings, trace_file};
use crate::page::RecordedRun;
use crate::{ExitStatus, json, page, stdout};

/// Arguments of `oomph explain`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph explain snapshot.pickle            what held the memory, and why\n  oomph explain train.log                  from the message alone\n  oomph explain snapshot.pickle train.log  both of one failure\n  oomph explain rank*.pickle               one file per rank\n  oomph explain memory.prof                what JAX holds, by line\n  oomph explain - < train.log              from a pipe"
)]
pub struct Args {
    /// Snapshots (.pickle, also .gz, .xz, .zst), oomph traces, directories of runs, profiles of JAX's memory,
    /// or logs with an out-of-memory message; `-` reads a log from stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// The device, if a snapshot has several
    #[arg(long, value_name = "INDEX")]
    device: Option<u32>,

    /// The device's memory, such as 24GiB, if neither snapshot nor log states it
    #[arg(long, value_name = "SIZE", value_parser = parse_capacity)]
    memory: Option<u64>,

    /// The torch version that made the snapshot, such as 2.11
    #[arg(long, value_name = "VERSION")]
    torch: Option<TorchVersion>,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Where to write the page [default: oomph-report/NAME/index.html]
    #[arg(long, value_name = "FILE", conflicts_with = "no_report")]
    report: Option<PathBuf>,

    /// Do not write a page
    #[arg(long)]
    no_report: bool,
}

/// Version of the JSON for several files.
pub(crate) const RANKS_FORMAT: &str = "oomph.explain-ranks/1";
/// Version of the JSON for a run that left no history.
pub(crate) const ENDINGS_FORMAT: &str = "oomph.endings/1";

struct Input {
    path: PathBuf,
    trace: Trace,
    problems: Vec<Problem>,
}

/// Several ranks in one JSON.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Ranks<'a> {
    format: &'static str,
    verdict: String,
    #[serde(rename = "ranks")]
    files: Vec<Rank<'a>>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Rank<'a> {
    file: &'a Path,
    #[serde(flatten)]
    found: &'a Found,
}

/// An explanation, and what the linter finds on the lines that hold memory.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Found {
    #[serde(flatten)]
    pub(crate) explanation: Explanation,
    pub(crate) findings: Vec<HeldFinding>,
}

/// An explanation, and how the processes of its run ended.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Whole<'a> {
    #[serde(flatten)]
    found: &'a Found,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    endings: &'a [Ended],
}

/// The latter alone.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Endings<'a> {
    format: &'static str,
    endings: &'a [Ended],
}

/// The cause that a rule of the linter is about, if it is about one.
fn cause_of(code: &str) -> Option<&'static str> {
    Some(match code {
        "OOM101" | "OOM102" | "OOM105" | "OOM107" => "graph_retained",
        "OOM103" | "OOM301" => "tensors_kept",
        "OOM201" | "OOM202" | "OOM205" | "OOM206" => "missing_no_grad",
        "OOM501" | "OOM502" | "OOM503" => "checkpoint_on_gpu",
        "OOM801" => "attention_scores",
        _ => return None,
    })
}

impl From<Explanation> for Found {
    fn from(mut explanation: Explanation) -> Self {
        let findings = held_findings(&explanation.held);
        let named = findings.iter().filter_map(|finding| {
            Some((cause_of(finding.code)?, finding.held_bytes, finding.text()))
        });
        explanation.add_findings(named);
        Self {
            explanation,
            findings,
        }
    }
}

impl Args {
    /// Explains, and prints.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let mut traces: Vec<Input> = Vec::new();
        let mut messages: Vec<OomMessage> = Vec::new();
        let mut log_problems: Vec<Problem> = Vec::new();
        let mut ended: Vec<Ended> = Vec::new();
        let mut profiles: Vec<(PathBuf, Found)> = Vec::new();
        for path in &self.files {
            if path == Path::new("-") {
                let (found, problems) = text::read_from(std::io::stdin().lock())
                    .context("cannot read the log from stdin")?;
                if found.is_empty() {
                    bail!(
                        "stdin: found text without an out-of-memory message. Expected a log \
                         that holds one"
                    );
                }
                messages.extend(found);
                log_problems.extend(problems);
                continue;
            }
            let directory = RunDirectory::of_run(path);
            if path.is_dir() {
                let found = self.ended(&directory)?;
                let snapshot = snapshot_of(&directory, &found);
                ended.extend(found);
                if let Some(snapshot) = snapshot {
                    if let (Content::Trace(trace), problems) = oomph_job::files::read(&snapshot)? {
                        traces.push(Input {
                            path: path.clone(),
                            trace: *trace,
                            problems,
                        });
                    }
                    continue;
                }
                if ended::first(&ended).is_some() {
                    continue;
                }
            }
            match oomph_job::files::read(&trace_file(path)?)? {
                (Content::Trace(trace), problems) => traces.push(Input {
                    path: path.clone(),
                    trace: *trace,
                    problems,
                }),
                (Content::Messages(found), problems) => {
                    messages.extend(found);
                    log_problems.extend(problems);
                }
                (Content::Profile(profile), _) => {
                    let found = oomph_explain::explain_profile(&profile, &self.options());
                    let found = found.with_context(|| {
                        format!("{}: nothing in it is of that device", path.display())
                    })?;
                    profiles.push((path.clone(), found.into()));
                }
                (Content::Pool(pool), _) => {
                    profiles.push((path.clone(), oomph_explain::explain_pool(&pool).into()));
                }
                _ => bail!("{}: this kind of file cannot be explained", path.display()),
            }
        }
        let options = Options {
            messages,
            ..self.options()
        };
        let mut found: Vec<(PathBuf, Found)> = Vec::new();
        for read in &traces {
            if let Some(device) = self.device
                && !read.trace.used_devices().contains(&device)
            {
                bail!(
                    "{}: device {device} has no events; devices with events: {:?}",
                    read.path.display(),
                    read.trace.used_devices()
                );
            }
            let mut explained = match recorded(read, &options)? {
                Some(explained) => explained,
                None => oomph_explain::explain(&read.trace, &options),
            };
            explained.add_problems(read.problems.iter().chain(&log_problems));
            found.push((read.path.clone(), explained.into()));
        }
        let nothing = profiles.is_empty() && ended::first(&ended).is_none();
        if traces.is_empty() && (nothing || !options.messages.is_empty()) {
            let is_log = |path: &&PathBuf| profiles.iter().all(|(other, _)| other != *path);
            let path = self.files.iter().find(is_log).cloned().unwrap_or_default();
            let mut explained = oomph_explain::explain_messages(&options.messages)
                .context("no out-of-memory message was found")?;
            explained.add_problems(&log_problems);
            found.push((path, explained.into()));
        }
        found.extend(profiles);
        if let Some(target) = &self.json {
            match found.as_slice() {
                [(_, one)] => json::write(
                    target,
                    &Whole {
                        found: one,
                        endings: &ended,
                    },
                )?,
                [] => json::write(
                    target,
                    &Endings {
                        format: ENDINGS_FORMAT,
                        endings: &ended,
                    },
                )?,
                many => json::write(
                    target,
                    &Ranks {
                        format: RANKS_FORMAT,
                        verdict: across_ranks(many),
                        files: many
                            .iter()
                            .map(|(file, found)| Rank { file, found })
                            .collect(),
                    },
                )?,
            }
        }
        let page = self.page(&traces, &found, &options);
        if !self.json.as_deref().is_some_and(json::is_stdout) {
            let mut text = String::new();
            if let Some(one) = ended::first(&ended) {
                text.push_str(&oomph_report::ending::ended(one, &ended, width()));
                text.push('\n');
            }
            if found.is_empty() {
                text.push_str("  there is no snapshot: nothing says what it held\n");
            } else {
                text.push_str(&render(&found, width()));
            }
            if let Some(page) = page {
                let _ = writeln!(text, "\n  {} {}", paint(DIM, "report"), page.display());
            }
            stdout(&text)?;
        }
        Ok(
            if found.iter().any(|(_, one)| one.explanation.out_of_memory) {
                ExitStatus::Findings
            } else {
                ExitStatus::Success
            },
        )
    }

    /// What the command line says.
    fn options(&self) -> Options {
        Options {
            device: self.device,
            torch_version: self.torch,
            device_total: self.memory,
            ..Options::default()
        }
    }

    /// How the processes of a run ended. What its command had no time to write is written.
    fn ended(&self, directory: &RunDirectory) -> anyhow::Result<Vec<Ended>> {
        let found = ended::of_run(directory, None);
        if !self.no_report {
            let one = ended::first(&found);
            let place = one.map(|one| directory.path().join(&one.process));
            ended::complete(&place.map_or_else(|| directory.clone(), RunDirectory::at))?;
        }
        Ok(found)
    }

    /// Writes the page, if there is a history to show. If that fails, prints a warning and continues:
    /// the explanation is worth more than its page.
    fn page(
        &self,
        traces: &[Input],
        found: &[(PathBuf, Found)],
        options: &Options,
    ) -> Option<PathBuf> {
        if self.no_report || traces.is_empty() {
            return None;
        }
        let first = &traces.first()?.path;
        if self.report.is_none()
            && RecordedRun::is(first)
            && let run = RunDirectory::of_run(first)
            && run.has(RunFile::Page)
        {
            // It shows more than the explanation.
            return Some(run.file(RunFile::Page));
        }
        let path = match &self.report {
            Some(path) => path.clone(),
            // What its command had no time for.
            None if RunDirectory::at(first).is_marked()
                && !RunDirectory::at(first).is_running() =>
            {
                RunDirectory::at(first).file(RunFile::Page)
            }
            None => page::place_of(first),
        };
        let histories = traces
            .iter()
            .zip(found)
            .map(|(read, (path, found))| (path.as_path(), &read.trace, &found.explanation));
        match page::of_explanations(histories, options, false)
            .and_then(|made| page::write(&path, &made))
        {
            Ok(()) => Some(path),
            Err(error) => {
                eprintln!("oomph: the report could not be written: {error:#}");
                None
            }
        }
    }
}

/// The snapshot that says what a run held that did not end well: the one of its end, or the newest.
fn snapshot_of(directory: &RunDirectory, all: &[Ended]) -> Option<PathBuf> {
    let one = ended::first(all)?;
    let place = RunDirectory::at(directory.path().join(&one.process));
    let file = |file: RunFile| Some(place.file(file)).filter(|path| path.is_file());
    let whole = file(RunFile::Trace)
        .or_else(|| Some(directory.file(RunFile::Trace)).filter(|path| path.is_file()));
    let held = file(RunFile::Held);
    if one.ending.grown.is_some() {
        held.or(whole)
    } else {
        whole.or(held)
    }
    .or_else(|| file(RunFile::Snapshot))
}

/// What `oomph run` said of the run in a directory, unless other files or options say more.
fn recorded(read: &Input, options: &Options) -> anyhow::Result<Option<Explanation>> {
    if !options.messages.is_empty()
        || options.torch_version.is_some()
        || options.device_total.is_some()
        || !RecordedRun::is(&read.path)
    {
        return Ok(None);
    }
    let directory = RunDirectory::of_run(&read.path);
    explain_directory(&read.trace, &directory, options.device)
}

fn render(found: &[(PathBuf, Found)], width: usize) -> String {
    if let [(_, one)] = found {
        return render_one(one, width);
    }
    let mut out = format!("{}\n", paint(BOLD, across_ranks(found)));
    for (path, one) in found {
        let _ = writeln!(out, "\n{}", paint(BOLD, path.display()));
        out.push_str(&render_one(one, width));
    }
    out
}

/// An explanation with its findings.
pub(crate) fn render_one(found: &Found, width: usize) -> String {
    let mut text = explanation(&found.explanation, width);
    text.push_str(&findings(&found.findings, width));
    text
}

/// One sentence about all files of a set: which failed, and whether they are alike.
fn across_ranks(found: &[(PathBuf, Found)]) -> String {
    /// Ranks of one job differ by a few percent (DDP: 3 % measured); a larger difference means another job, or a
    /// rank with more work.
    const ALIKE: f64 = 1.25;
    let failed: Vec<String> = found
        .iter()
        .filter(|(_, one)| one.explanation.out_of_memory)
        .map(|(path, _)| {
            path.file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
        })
        .collect();
    let sizes: Vec<u64> = found
        .iter()
        .map(|(_, one)| one.explanation.peak.needed_bytes)
        .filter(|&bytes| bytes > 0)
        .collect();
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let smallest = sizes.iter().copied().min().unwrap_or(0);
    let outcome = match failed.len() {
        0 if found.iter().any(|(_, one)| one.explanation.unclear) => {
            format!("none of the {} files says that memory ran out", found.len())
        }
        0 => format!("none of the {} files ran out of memory", found.len()),
        count if count == found.len() => format!("all {count} files ran out of memory"),
        count => format!(
            "{count} of {} files ran out of memory: {}",
            found.len(),
            failed.join(", ")
        ),
    };
    let alike = if (largest as f64) > smallest as f64 * ALIKE {
        format!(
            "; they needed from {} to {}, so these are not equal ranks of one job, or one rank has \
             more to do",
            oomph_trace::Bytes(smallest),
            oomph_trace::Bytes(largest)
        )
    } else {
        String::new()
    };
    format!("{outcome}{alike}")
}
