//! `oomph diff`: what changed between two snapshots or runs.

use std::path::{Path, PathBuf};

use anyhow::bail;
use oomph_explain::Options;
use oomph_report::explanation::difference;
use oomph_report::terminal::width;
use oomph_trace::{Content, Trace};

use crate::{json, stdout};

/// Arguments of `oomph diff`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Compares what is alive at the peak of each history (at the failure, where it failed).\n\nExamples:\n  oomph diff before.pickle after.pickle\n  oomph diff epoch1.pickle epoch9.pickle --json -"
)]
pub struct Args {
    /// The snapshot or trace before
    #[arg(value_name = "A")]
    before: PathBuf,

    /// The snapshot or trace after
    #[arg(value_name = "B")]
    after: PathBuf,

    /// The device, where the snapshots have several
    #[arg(long, value_name = "INDEX")]
    device: Option<u32>,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    /// Compares, and prints.
    pub fn run(self) -> anyhow::Result<i32> {
        let before = read(&self.before)?;
        let after = read(&self.after)?;
        let options = Options {
            device: self.device,
            ..Options::default()
        };
        let found = oomph_explain::diff(&before, &after, &options);
        if let Some(target) = &self.json {
            json::write(target, &found)?;
            if json::is_stdout(target) {
                return Ok(crate::EXIT_OK);
            }
        }
        let names = [
            self.before.display().to_string(),
            self.after.display().to_string(),
        ];
        stdout(&difference(&found, [&names[0], &names[1]], width()))?;
        Ok(crate::EXIT_OK)
    }
}

fn read(path: &Path) -> anyhow::Result<Trace> {
    match oomph_trace::read(path)? {
        (Content::Trace(trace), _) => Ok(*trace),
        _ => bail!(
            "{}: found a log; two snapshots or traces can be compared",
            path.display()
        ),
    }
}
