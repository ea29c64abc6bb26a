//! `oomph gpus`: the catalogue as a table, one GPU in detail, or everything as JSON; for a script, which of them it fits and what
//! a step takes and costs there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use oomph_gpus::Gpu;
use oomph_job::settings::Recording;
use oomph_job::{
    Job, Program, RunDirectory, RunFile, VirtualGpu, Watch, check_script, host, ranks,
};
use oomph_report::gpus::{GpuList, gpu_details, gpu_table};
use oomph_report::gpus_for::{GpusFor, Order, Suit, gpus_for};
use oomph_report::terminal::width;
use oomph_run::Verdict;
use oomph_run::summary::summarize;

use crate::commands::calibrate;
use crate::{ExitStatus, json, stdout};

/// The GPU of the rehearsal, whose memory has no limit there.
const REHEARSED_ON: &str = "h200";
/// Steps of the rehearsal: the first begins the script, and the last is taken.
const STEPS: u32 = 4;

/// Arguments of `oomph gpus`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph gpus              all of them\n  oomph gpus rtx-4090     one in detail, with the source of each figure\n  oomph gpus a100         the family\n  oomph gpus laptop       every GPU whose name, architecture or class says so\n  oomph gpus --json -     everything, for programs\n  oomph gpus --for train.py --epochs 1\n                          where the script fits, and what a step takes and costs there\n  oomph gpus --sort time --prices mine.txt --for train.py\n                          the quickest first, at your prices: lines of NAME = DOLLARS an hour"
)]
pub struct Args {
    /// A GPU's name, or words that its name, architecture (`ada`, `sm_89`) or class must contain
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,

    /// Rehearse this script once, and say for each GPU whether it fits and what a step takes and costs; what follows belongs to
    /// the script
    #[arg(long = "for", value_name = "SCRIPT", num_args = 1.., allow_hyphen_values = true)]
    script: Vec<OsString>,

    /// With --for: prices, a line of NAME = DOLLARS an hour for each GPU; those of the catalogue for all others
    #[arg(long, value_name = "FILE", requires = "script")]
    prices: Option<PathBuf>,

    /// With --for: what comes first, the cheapest step or the quickest
    #[arg(long, value_name = "ORDER", value_parser = ["cost", "time"], default_value = "cost", requires = "script")]
    sort: String,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Args {
    /// Prints the catalogue.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let found = oomph_gpus::select(&self.filter.join(" "))?;
        if !self.script.is_empty() {
            return self.for_script(&found.gpus);
        }
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

    /// Rehearses the script once and prints what it takes on each GPU.
    fn for_script(&self, gpus: &[&'static Gpu]) -> anyhow::Result<ExitStatus> {
        let prices = self.prices.as_deref().map(read_prices).transpose()?;
        let script = Path::new(&self.script[0]);
        if !script.is_file() {
            bail!("{}: no such file. Give a Python script", script.display());
        }
        check_script(script)?;
        let host = host::get()?;
        let program = Program::Script(self.script.clone());
        let directory = RunDirectory::choose(None, &program)?;
        let job = Job {
            gpu: Some(VirtualGpu::new(oomph_gpus::parse_spec(REHEARSED_ON)?)),
            recording: Recording {
                steps: Some(STEPS),
                ..Recording::default()
            },
            watch: Watch {
                live: true,
                to_stderr: self.json.as_deref().is_some_and(json::is_stdout),
                ..Watch::default()
            },
            ..Job::new(host, program)
        };
        let log = directory.file(RunFile::Log);
        let (attempt, _) = ranks::attempt(&job, None, &directory, None, Some(&log), "rehearsing")?;
        let summary = attempt.record.as_ref().map(|record| {
            (
                record,
                summarize(record, attempt.trace.as_ref(), job.total_bytes()),
            )
        });
        let Some((record, summary)) = summary
            .filter(|(_, summary)| matches!(summary.verdict, Verdict::Fits | Verdict::NoVerdict))
        else {
            eprint!("{}", fs::read_to_string(&log).unwrap_or_default());
            eprintln!("oomph: the script failed in the rehearsal");
            return Ok(ExitStatus::Failed);
        };
        let here = calibrate::Here::read();
        let beside = here.host();
        let suits = gpus
            .iter()
            .map(|gpu| {
                let figures = here.figures(gpu);
                Suit::new(gpu, figures, record, &summary, &beside, prices.as_ref())
            })
            .collect();
        let order = if self.sort == "time" {
            Order::Time
        } else {
            Order::Cost
        };
        let found = GpusFor::new(suits, &summary, order);
        if let Some(target) = &self.json {
            json::write(target, &found)?;
            if json::is_stdout(target) {
                return Ok(ExitStatus::Success);
            }
        }
        stdout(&gpus_for(&found, width()))?;
        Ok(ExitStatus::Success)
    }
}

/// Prices by the names of GPUs, US dollars an hour.
fn read_prices(path: &Path) -> anyhow::Result<BTreeMap<String, f64>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse_prices(&text).with_context(|| path.display().to_string())
}

fn parse_prices(text: &str) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut prices = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let number = index + 1;
        let Some((name, price)) = line.split_once('=') else {
            bail!("line {number}: expected NAME = DOLLARS an hour, such as h100-sxm = 2.49");
        };
        let gpu = oomph_gpus::find(name.trim()).with_context(|| format!("line {number}"))?;
        let price: f64 = price
            .trim()
            .parse()
            .ok()
            .filter(|price: &f64| price.is_finite() && *price >= 0.0)
            .with_context(|| format!("line {number}: {} is no price", price.trim()))?;
        prices.insert(gpu.id.clone(), price);
    }
    Ok(prices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_and_a_bad_line_is_named() {
        let prices =
            parse_prices("# mine\nh200 = 3.5\n\nA100 80GB SXM=1 # spot\n").expect("prices");
        assert_eq!(prices.get("h200"), Some(&3.5));
        assert_eq!(prices.len(), 2);
        for (text, said) in [
            ("h200 = 1\nh200", "line 2: expected"),
            ("h200 = much", "line 1: much is no price"),
            ("h200 = -1", "line 1: -1 is no price"),
            ("\nno-such-gpu = 1", "line 2"),
        ] {
            let error = format!("{:#}", parse_prices(text).expect_err(text));
            assert!(error.contains(said), "{error}");
        }
    }
}
