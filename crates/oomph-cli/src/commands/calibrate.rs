//! `oomph calibrate`: measures how quick this machine's host is, and keeps that for the user and the machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use oomph_clock::{Figures, Host, USUAL, gpu_factor};
use oomph_gpus::Gpu;
use oomph_job::{RunDirectory, cache_directory, host, write_cache};
use oomph_run::{Record, time::learned};
use serde::{Deserialize, Serialize};

use crate::{ExitStatus, stdout};

/// Arguments of `oomph calibrate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph calibrate             a second of small training steps on this machine's GPU\n  oomph calibrate --show      what was measured here\n  oomph calibrate --remove    forget it\n  oomph calibrate --run oomph-report/train-2 --rehearsed oomph-report/train-1\n                              what a run on this machine's GPU took, beside the same job on a virtual one\n\nThe GPU decides little in these steps: they wait for the host. oomph run and oomph gpus then take this machine as the host. oomph run --fit learns from each job that it runs as it is."
)]
pub struct Args {
    /// Say what was measured on this machine, and measure nothing
    #[arg(long, conflicts_with = "remove")]
    show: bool,

    /// Forget what was measured on this machine
    #[arg(long)]
    remove: bool,

    /// Learn from a run on this machine's GPU, whose directory this is
    #[arg(long, value_name = "DIR", requires = "rehearsed", conflicts_with_all = ["show", "remove"])]
    run: Option<PathBuf>,

    /// The same job's run on a virtual GPU of the same kind
    #[arg(long, value_name = "DIR", requires = "run")]
    rehearsed: Option<PathBuf>,
}

/// What was measured on a machine.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Measured {
    /// Its GPU, when the small models were measured.
    gpu: String,
    /// When that was, year first.
    date: String,
    /// Seconds of a step of each small model; none if only real runs were measured.
    steps: BTreeMap<String, f64>,
    /// Real runs, the newest last.
    runs: Vec<Run>,
}

/// What a real run took beside what the clocks say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Run {
    /// The catalogue's name of its GPU.
    gpu: String,
    /// The script and its arguments.
    job: String,
    /// When, year first.
    date: String,
    /// How many times as long its host took, if its steps tell.
    host: Option<f64>,
    /// The same of its GPU.
    device: Option<f64>,
}

/// Runs that are kept.
const RUNS: usize = 16;

/// Whether the clocks are fitted to this GPU (`bench/time`).
fn is_fitted(gpu: &str) -> bool {
    gpu.starts_with("h100") || gpu.starts_with("h200")
}

impl Measured {
    /// How many times as long the host takes for everything: the median of the small models' factor and those of real runs.
    fn factor(&self) -> Option<f64> {
        let runs = self.runs.iter().filter_map(|run| run.host);
        let mut all: Vec<f64> = Host::factor(&self.steps).into_iter().chain(runs).collect();
        all.sort_by(f64::total_cmp);
        let middle = all.get(all.len() / 2)?;
        let before = all.get((all.len() - 1) / 2)?;
        Some((middle * before).sqrt())
    }

    fn host(&self) -> Option<Host> {
        let runs = self.runs.iter().filter(|run| run.host.is_some());
        let small = Some(&self.date).filter(|_| !self.steps.is_empty());
        let newest = runs.map(|run| &run.date).chain(small).max()?;
        let name = format!("this machine (measured {newest})");
        self.factor().map(|factor| Host::slower(name, factor))
    }

    /// How many times as long one of its GPUs takes.
    fn device(&self, gpu: &str) -> f64 {
        let runs = self.runs.iter().filter(|run| run.gpu == gpu);
        let factors: Vec<f64> = runs.filter_map(|run| run.device).collect();
        gpu_factor(&factors, is_fitted(gpu))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        if let Some(factor) = self.factor() {
            let _ = writeln!(
                text,
                "this host takes {factor:.2} times as long as {}, a usual one {USUAL}",
                Host::default().name,
            );
        }
        if let Some(factor) = Host::factor(&self.steps) {
            let _ = writeln!(
                text,
                "  {factor:.2} by small models ({}, {})",
                self.gpu, self.date
            );
        }
        for (name, seconds) in &self.steps {
            let _ = writeln!(text, "    {name:<14}{:6.2} ms a step", seconds * 1e3);
        }
        for run in &self.runs {
            if let Some(factor) = run.host {
                let _ = writeln!(text, "  {factor:.2} by {} ({})", run.job, run.date);
            }
        }
        let mut gpus: Vec<&str> = self.runs.iter().map(|run| run.gpu.as_str()).collect();
        gpus.sort_unstable();
        gpus.dedup();
        for gpu in gpus {
            let of_it: Vec<_> = (self.runs.iter())
                .filter(|run| run.gpu == gpu && run.device.is_some())
                .collect();
            if of_it.is_empty() {
                continue;
            }
            let _ = writeln!(
                text,
                "{gpu} is taken to need {:.2} times as long as the clocks say",
                self.device(gpu)
            );
            for run in of_it {
                let factor = run.device.unwrap_or(1.0);
                let _ = writeln!(text, "  {factor:.2} by {} ({})", run.job, run.date);
            }
        }
        text
    }

    /// With another real run, in place of an older one of the same job.
    fn add(&mut self, run: Run) {
        self.runs
            .retain(|other| (&other.job, &other.gpu) != (&run.job, &run.gpu));
        self.runs.push(run);
        let extra = self.runs.len().saturating_sub(RUNS);
        self.runs.drain(..extra);
    }
}

impl Args {
    /// Measures, shows or forgets.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let path = place()?;
        if self.remove {
            match fs::remove_file(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    bail!("nothing was measured on this machine")
                }
                done => done.with_context(|| format!("cannot remove {}", path.display()))?,
            }
            return Ok(ExitStatus::Success);
        }
        if self.show {
            let Some(measured) = read()? else {
                bail!("nothing was measured on this machine: oomph calibrate measures it");
            };
            stdout(&measured.text())?;
            return Ok(ExitStatus::Success);
        }
        if let (Some(run), Some(rehearsed)) = (&self.run, &self.rehearsed) {
            return by_run(run, rehearsed);
        }
        let python = &host::get()?.python;
        let done = Command::new(python)
            .args(["-m", "oomph._calibration"])
            .output()
            .with_context(|| format!("cannot start {}", python.display()))?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            let last = said.trim().lines().last().unwrap_or("it says nothing");
            eprintln!("oomph: the steps could not be measured: {last}");
            return Ok(ExitStatus::Failed);
        }
        let text = String::from_utf8_lossy(&done.stdout);
        let mut measured: Measured = text
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str(line).ok())
            .context("the steps were measured, but what they took was not printed")?;
        if Host::factor(&measured.steps).is_none() {
            bail!("the steps took no time");
        }
        measured.runs = read()?.unwrap_or_default().runs;
        keep(&measured)?;
        stdout(&measured.text())?;
        Ok(ExitStatus::Success)
    }
}

/// Learns from a run on this machine's GPU and one of the same job on a virtual GPU.
fn by_run(run: &Path, rehearsed: &Path) -> anyhow::Result<ExitStatus> {
    let recorded = |path: &Path| {
        RunDirectory::of_run(path)
            .record()?
            .with_context(|| format!("{} is no run", path.display()))
    };
    let (real, rehearsed) = (recorded(run)?, recorded(rehearsed)?);
    if real.r#virtual || !rehearsed.r#virtual {
        bail!(
            "expected a run on this machine's GPU after --run, and one on a virtual GPU after --rehearsed"
        );
    }
    let name = |record: &Record| record.busiest().map(|device| device.name.clone());
    let (Some(gpu), Some(other)) = (name(&real), name(&rehearsed)) else {
        bail!("a run that used no GPU tells nothing of it");
    };
    if gpu != other {
        bail!("the run was on a {gpu}, the rehearsal on a {other}");
    }
    let found = oomph_gpus::find(&gpu)?;
    if learn(found, &rehearsed, &real)? {
        stdout(&read()?.unwrap_or_default().text())?;
        return Ok(ExitStatus::Success);
    }
    eprintln!(
        "oomph: these runs tell nothing: the real one needs some 20 alike steps without --steps, and the rehearsal 3"
    );
    Ok(ExitStatus::Findings)
}

/// Learns from a real run, if it tells something.
pub(crate) fn learn(gpu: &Gpu, rehearsed: &Record, real: &Record) -> anyhow::Result<bool> {
    let Ok(figures) = Figures::of(gpu) else {
        return Ok(false);
    };
    let mut measured = read()?.unwrap_or_default();
    let known = measured.factor().unwrap_or(1.0);
    let Some(factors) = learned(rehearsed, real, &figures, known) else {
        return Ok(false);
    };
    measured.add(Run {
        gpu: gpu.id.clone(),
        job: real.argv.join(" "),
        date: real.date.clone(),
        host: factors.host,
        device: factors.gpu,
    });
    keep(&measured)?;
    Ok(true)
}

fn keep(measured: &Measured) -> anyhow::Result<()> {
    let path = place()?;
    write_cache(&path, serde_json::to_string(measured)?.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// This machine as the clocks know it.
#[derive(Debug, Default)]
pub(crate) struct Here(Measured);

impl Here {
    /// As it was measured, if it was.
    pub(crate) fn read() -> Self {
        Self(
            read()
                .unwrap_or_else(|error| {
                    eprintln!("warning: {error:#}");
                    None
                })
                .unwrap_or_default(),
        )
    }

    /// The host to assume: this machine if it was measured, else a usual one.
    pub(crate) fn host(&self) -> Host {
        self.0.host().unwrap_or_else(Host::usual)
    }

    /// A GPU's figures, with what runs on this machine taught of it.
    pub(crate) fn figures(&self, gpu: &Gpu) -> Result<Figures, oomph_clock::NoFigures> {
        Figures::of(gpu).map(|figures| figures.slower(self.0.device(&gpu.id)))
    }
}

/// What was measured on this machine.
fn read() -> anyhow::Result<Option<Measured>> {
    let Ok(path) = place() else { return Ok(None) };
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    serde_json::from_str(&text)
        .map(Some)
        .with_context(|| format!("{} is damaged: oomph calibrate --remove", path.display()))
}

/// The file of this machine: a home directory may be that of several.
fn place() -> anyhow::Result<PathBuf> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let cache = cache_directory().context("there is no home directory to keep it in: set HOME")?;
    Ok(cache.join("hosts").join(format!("{}.json", name.trim())))
}
