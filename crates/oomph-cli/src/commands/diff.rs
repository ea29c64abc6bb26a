//! `oomph diff`: what changed between two snapshots or runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use oomph_explain::{Diff, Options};
use oomph_job::{REPORTS, RunDirectory};
use oomph_report::explanation::difference;
use oomph_report::terminal::{DIM, paint, width};
use oomph_trace::{Action, Trace};

use crate::page::RecordedRun;
use crate::{ExitStatus, json, page, stdout};

/// Arguments of `oomph diff`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Compares what is alive at the peak of each history (of a run that failed, in its run without a limit; of a snapshot that ends in a failure, at the failure).\n\nExamples:\n  oomph diff before.pickle after.pickle\n  oomph diff epoch1.pickle epoch9.pickle --json -"
)]
pub struct Args {
    /// The snapshot, trace or directory of a run before
    #[arg(value_name = "A")]
    before: PathBuf,

    /// The snapshot, trace or directory of a run after
    #[arg(value_name = "B")]
    after: PathBuf,

    /// The device, if the snapshots have several
    #[arg(long, value_name = "INDEX")]
    device: Option<u32>,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Where to write the page [default: oomph-report/A-B/index.html]
    #[arg(long, value_name = "FILE", conflicts_with = "no_report")]
    report: Option<PathBuf>,

    /// Do not write a page
    #[arg(long)]
    no_report: bool,
}

/// The history to compare, and what to know about it. Of a run that failed and was made again without a
/// limit, that one: the other is cut off.
pub(super) fn history(path: &Path) -> anyhow::Result<(Trace, Option<&'static str>)> {
    if RecordedRun::is(path)
        && let Some(trace) = RunDirectory::of_run(path).unlimited().trace()?
    {
        return Ok((
            trace,
            Some("ran out of memory; this is its run without a limit"),
        ));
    }
    let trace = page::read_trace(path)?;
    let events = &trace.events;
    let failed = (0..events.len()).any(|row| events.action(row) == Action::Oom);
    Ok((
        trace,
        failed.then_some("ran out of memory: what it would have held later is missing here"),
    ))
}

impl Args {
    /// Compares, and prints.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let (before, of_before) = history(&self.before)?;
        let (after, of_after) = history(&self.after)?;
        let options = Options {
            device: self.device,
            ..Options::default()
        };
        let mut found = oomph_explain::diff(&before, &after, &options);
        found.notes = [("A", of_before), ("B", of_after)]
            .into_iter()
            .filter_map(|(side, note)| Some(format!("{side} {}", note?)))
            .collect();
        let page = self.page(&found, [&before, &after], &options);
        if let Some(target) = &self.json {
            json::write(target, &found)?;
            if json::is_stdout(target) {
                return Ok(ExitStatus::Success);
            }
        }
        let names = [
            self.before.display().to_string(),
            self.after.display().to_string(),
        ];
        let mut text = difference(&found, [&names[0], &names[1]], width());
        if let Some(page) = page {
            let _ = writeln!(text, "\n  {} {}", paint(DIM, "report"), page.display());
        }
        stdout(&text)?;
        Ok(ExitStatus::Success)
    }

    /// Writes the page. If that fails, prints a warning and continues: the difference is worth more than
    /// its page.
    fn page(
        &self,
        found: &Diff,
        [before, after]: [&Trace; 2],
        options: &Options,
    ) -> Option<PathBuf> {
        if self.no_report {
            return None;
        }
        let path = self.report.clone().unwrap_or_else(|| {
            let [a, b] = [&self.before, &self.after].map(|path| page::stem(path));
            Path::new(REPORTS).join(format!("{a}-{b}")).join(page::NAME)
        });
        let sides = [
            (self.before.as_path(), before),
            (self.after.as_path(), after),
        ];
        match page::of_diff(found, sides, options, false).and_then(|made| page::write(&path, &made))
        {
            Ok(()) => Some(path),
            Err(error) => {
                eprintln!("oomph: the report could not be written: {error:#}");
                None
            }
        }
    }
}
