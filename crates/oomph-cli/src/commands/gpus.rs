//! `oomph gpus`: the catalogue as a table, one GPU in detail, or everything as JSON.

use std::path::PathBuf;

use oomph_report::gpus::{GpuList, gpu_details, gpu_table};
use oomph_report::terminal::width;

use crate::{ExitStatus, json, stdout};

/// Arguments of `oomph gpus`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph gpus              all of them\n  oomph gpus rtx-4090     one in detail, with the source of each figure\n  oomph gpus a100         the family\n  oomph gpus laptop       every GPU whose name, architecture or class says so\n  oomph gpus --json -     everything, for programs"
)]
pub struct Args {
    /// A GPU's name, or words that its name, architecture (`ada`, `sm_89`) or class must contain
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    /// Prints the catalogue.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let found = oomph_gpus::select(&self.filter.join(" "))?;
        if let Some(target) = &self.json {
            json::write(target, &GpuList::new(&found.gpus))?;
            if json::is_stdout(target) {
                return Ok(ExitStatus::Success);
            }
        }
        let text = match found.gpus.as_slice() {
            [gpu] if found.exact => gpu_details(gpu, width()),
            gpus => gpu_table(gpus, found.note.as_deref(), width()),
        };
        stdout(&text)?;
        Ok(ExitStatus::Success)
    }
}
