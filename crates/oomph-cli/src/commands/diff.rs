//! `oomph diff`: what changed between two snapshots or runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use oomph_explain::{Diff, Options};
use oomph_report::explanation::difference;
use oomph_report::terminal::{DIM, paint, width};
use oomph_trace::Trace;

use crate::{ExitStatus, json, page, stdout};

/// Arguments of `oomph diff`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Compares what is alive at the peak of each history (at the failure, if it failed).\n\nExamples:\n  oomph diff before.pickle after.pickle\n  oomph diff epoch1.pickle epoch9.pickle --json -"
)]
pub struct Args {
    /// The snapshot or trace before
    #[arg(value_name = "A")]
    before: PathBuf,

    /// The snapshot or trace after
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

impl Args {
    /// Compares, and prints.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let before = page::read_trace(&self.before)?;
        let after = page::read_trace(&self.after)?;
        let options = Options {
            device: self.device,
            ..Options::default()
        };
        let found = oomph_explain::diff(&before, &after, &options);
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
            Path::new("oomph-report")
                .join(format!("{a}-{b}"))
                .join(page::NAME)
        });
        let sides = [
            (self.before.as_path(), before),
            (self.after.as_path(), after),
        ];
        match page::of_diff(found, sides, options, false).and_then(|made| page::write(&path, &made))
        {
            Ok(()) => Some(path),
            Err(error) => {
                anstream::eprintln!("oomph: the report could not be written: {error:#}");
                None
            }
        }
    }
}
