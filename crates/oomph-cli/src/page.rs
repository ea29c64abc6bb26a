//! Writes the report's page: from a run's directory, from traces, or from the difference of two.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use oomph_allocator::TorchVersion;
use oomph_explain::{Diff, Explanation, Options};
use oomph_job::files;
pub use oomph_job::read_trace;
use oomph_job::{REPORTS, RunDirectory, RunFile};
use oomph_report::html::{History, Kind, Page, PlanRow, what_if};
use oomph_trace::Trace;
use serde_json::Value;

/// The page's name in a run's directory.
pub const NAME: &str = RunFile::Page.name();

/// A run as its directory keeps it.
#[derive(Debug)]
pub struct RecordedRun {
    directory: RunDirectory,
    summary: Value,
    explanation: Option<Value>,
    /// The run's own history, and that of the same job without a limit.
    traces: Vec<(&'static str, Trace)>,
    /// Plans that make it fit, if `oomph fit` searched for them.
    plans: Vec<PlanRow>,
}

impl RecordedRun {
    /// Whether a path is the directory of a run.
    pub fn is(path: &Path) -> bool {
        RunDirectory::of_run(path).has(RunFile::Summary)
    }

    /// Reads what `oomph run` left in `directory`.
    pub fn read(directory: &RunDirectory) -> anyhow::Result<Self> {
        let summary = read_json(&directory.file(RunFile::Summary))?.with_context(|| {
            format!(
                "{} is no run: expected a directory with {}, as oomph run writes it",
                directory.path().display(),
                RunFile::Summary.name()
            )
        })?;
        let explanation = read_json(&directory.file(RunFile::Explanation))?;
        let plans = match read_json(&directory.file(RunFile::Plans))? {
            Some(plans) => serde_json::from_value(plans).with_context(|| {
                format!(
                    "{}: expected a file of plans",
                    directory.file(RunFile::Plans).display()
                )
            })?,
            None => Vec::new(),
        };
        let unlimited = directory.unlimited();
        let name = if unlimited.has(RunFile::Trace) {
            "on this GPU"
        } else {
            "run"
        };
        let mut traces = Vec::new();
        for (name, directory) in [(name, directory), ("without a limit", &unlimited)] {
            if let Some(trace) = directory.trace()? {
                traces.push((name, trace));
            }
        }
        Ok(Self {
            directory: directory.clone(),
            summary,
            explanation,
            traces,
            plans,
        })
    }

    /// The capacity that the verdict is about.
    fn capacity(&self) -> Option<u64> {
        self.summary.pointer("/gpu/memory_bytes")?.as_u64()
    }

    /// The page, with the plans that were tried, if any.
    pub fn page(&self, redact: bool) -> Page<'_> {
        let kind = if self.plans.is_empty() {
            Kind::Run
        } else {
            Kind::Fit
        };
        let script = self
            .summary
            .pointer("/script/0")
            .and_then(Value::as_str)
            .unwrap_or("run");
        let options = Options {
            device_total: self.capacity(),
            ..Options::default()
        };
        let mut page = Page::new(kind, file_name(Path::new(script)));
        page.plans.clone_from(&self.plans);
        page.redact = redact;
        page.summary = Some(self.summary.clone());
        page.explanation.clone_from(&self.explanation);
        if let Some((_, trace)) = self.traces.first() {
            let usable = self
                .summary
                .pointer("/gpu/usable_bytes")
                .and_then(Value::as_u64);
            page.what_if = replayed(trace, &options, usable);
        }
        for (name, trace) in &self.traces {
            page = page.history(History {
                name: (*name).to_owned(),
                trace,
                options: options.clone(),
            });
        }
        page
    }

    /// Writes the page into the run's directory and returns its path.
    pub fn write(&self) -> anyhow::Result<PathBuf> {
        self.directory
            .write(RunFile::Page, self.page(false).render().as_bytes())?;
        Ok(self.directory.file(RunFile::Page))
    }
}

/// Writes the page of a run that has just ended. If that fails, prints a warning and continues: the
/// verdict is worth more than its page.
pub fn after_run(directory: &RunDirectory) -> Option<PathBuf> {
    match RecordedRun::read(directory).and_then(|run| run.write()) {
        Ok(path) => Some(path),
        Err(error) => {
            eprintln!("oomph: the report could not be written: {error:#}");
            None
        }
    }
}

/// The page of explained histories (several for several ranks).
pub fn of_explanations<'a>(
    found: impl IntoIterator<Item = (&'a Path, &'a Trace, &'a Explanation)>,
    options: &Options,
    redact: bool,
) -> anyhow::Result<Page<'a>> {
    let mut page = Page::new(Kind::Explain, "");
    page.redact = redact;
    for (path, trace, explanation) in found {
        if page.histories.is_empty() {
            page.title = file_name(path);
            page.explanation =
                Some(serde_json::to_value(explanation).context("cannot write the explanation")?);
            page.what_if = replayed(trace, options, options.device_total);
        }
        page = page.history(History {
            name: file_name(path),
            trace,
            options: Options {
                // What the explanation found out from the messages.
                device_total: explanation.peak.device_total_bytes,
                ..options.clone()
            },
        });
    }
    Ok(page)
}

/// The page of a difference.
pub fn of_diff<'a>(
    found: &Diff,
    [before, after]: [(&Path, &'a Trace); 2],
    options: &Options,
    redact: bool,
) -> anyhow::Result<Page<'a>> {
    let title = format!("{} → {}", file_name(before.0), file_name(after.0));
    let mut page = Page::new(Kind::Diff, title);
    page.redact = redact;
    page.diff = Some(serde_json::to_value(found).context("cannot write the difference")?);
    for (side, (path, trace)) in [("A", before), ("B", after)] {
        page = page.history(History {
            name: format!("{side}: {}", file_name(path)),
            trace,
            options: options.clone(),
        });
    }
    Ok(page)
}

fn replayed(trace: &Trace, options: &Options, capacity: Option<u64>) -> Vec<what_if::WhatIf> {
    let device = options.device.or_else(|| trace.busiest_device());
    let version = options
        .torch_version
        .or_else(|| TorchVersion::parse(trace.context.torch_version.as_deref()?))
        .unwrap_or(TorchVersion::ASSUMED);
    what_if(trace, device.unwrap_or(0), version, capacity)
}

/// Writes a page, and the directory for it.
pub fn write(path: &Path, page: &Page) -> anyhow::Result<()> {
    make_place(path)?;
    files::write(path, page.render().as_bytes())
}

/// Makes the directory of a file: one of oomph's own where reports are kept.
pub fn make_place(path: &Path) -> anyhow::Result<()> {
    let Some(directory) = path.parent() else {
        return Ok(());
    };
    if let (Some(name), true) = (
        directory.strip_prefix(REPORTS).ok().and_then(Path::to_str),
        path.ends_with(NAME),
    ) && !name.is_empty()
        && !name.contains('/')
    {
        RunDirectory::for_page(name)?;
    }
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))
}

/// Where to write the page of a file that has no run directory.
pub fn place_of(file: &Path) -> PathBuf {
    Path::new(REPORTS).join(stem(file)).join(NAME)
}

/// A file's name up to its first dot: `snapshot` of `snapshot.pickle.gz`.
pub fn stem(file: &Path) -> String {
    let name = file_name(file);
    let stem = name.split('.').next().filter(|stem| !stem.is_empty());
    stem.unwrap_or("report").to_owned()
}

fn read_json(path: &Path) -> anyhow::Result<Option<Value>> {
    if !path.exists() {
        return Ok(None);
    }
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text)
        .map(Some)
        .with_context(|| format!("{} is not valid JSON", path.display()))
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}
