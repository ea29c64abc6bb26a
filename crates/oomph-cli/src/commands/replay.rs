//! `oomph replay`: replays a history under other allocator settings or another capacity.

use std::path::PathBuf;

use anyhow::{anyhow, bail};
use oomph_allocator::TorchVersion;
use oomph_allocator::study::{Question, Study, StudyError};
use oomph_bytes::parse_capacity;
use oomph_report::replay::{ReplayReport, replay_text};
use oomph_report::terminal::width;
use oomph_trace::Content;

use crate::findings::trace_file;
use crate::{ExitStatus, json, stdout};

/// Arguments of `oomph replay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph replay snapshot.pickle                                        is the replay exact, and how much memory is enough?\n  oomph replay snapshot.pickle --alloc-conf expandable_segments:True  would that have helped?\n  oomph replay snapshot.pickle --search                               the best setting\n  oomph replay snapshot.pickle --memory 10GiB --search                would it fit there?"
)]
pub struct Args {
    /// A memory snapshot (.pickle, also .gz, .xz, .zst), an oomph trace, or the directory of a run
    #[arg(value_name = "SNAPSHOT|RUN")]
    snapshot: PathBuf,

    /// Replay under these settings (as in PYTORCH_CUDA_ALLOC_CONF); may be given several times
    #[arg(long, value_name = "CONF")]
    alloc_conf: Vec<String>,

    /// Memory that PyTorch's allocator may reserve, such as 10GiB; the CUDA context and other
    /// libraries come on top [default: as much as the recorded job had]
    #[arg(long, value_name = "SIZE", value_parser = parse_capacity)]
    memory: Option<u64>,

    /// Try the settings that are known to help, and report the best
    #[arg(long)]
    search: bool,

    /// The device, if the snapshot has several
    #[arg(long, value_name = "INDEX")]
    device: Option<u32>,

    /// The torch version that made the snapshot and whose rules apply
    #[arg(long, value_name = "VERSION")]
    torch: Option<TorchVersion>,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    /// Replays, and prints the result.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let path = self.snapshot.display();
        let (content, problems) = oomph_job::files::read(&trace_file(&self.snapshot)?)?;
        let Content::Trace(trace) = content else {
            bail!(
                "{path}: found no history of memory; a snapshot or an oomph trace can be replayed"
            );
        };
        let question = Question {
            device: self.device,
            version: self.torch,
            memory: self.memory,
            confs: &self.alloc_conf,
            search: self.search,
        };
        let study =
            Study::new(&trace, &question).map_err(|error| match (&error, problems.first()) {
                (StudyError::Conf { .. }, _) => anyhow!("--alloc-conf {error}"),
                (StudyError::NoHistory, Some(problem)) => {
                    anyhow!("{path}: found nothing to replay: {problem}")
                }
                _ => anyhow!("{path}: {error}"),
            })?;
        let report = ReplayReport::new(&self.snapshot, &study, &problems);
        if let Some(target) = &self.json {
            json::write(target, &report)?;
        }
        if !self.json.as_deref().is_some_and(json::is_stdout) {
            stdout(&replay_text(&report, width()))?;
        }
        Ok(if study.fits() {
            ExitStatus::Success
        } else {
            ExitStatus::Findings
        })
    }
}
