//! `oomph calibrate`: measures how quick this machine's host is, and keeps that for the user and the machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, bail};
use oomph_clock::Host;
use oomph_job::{cache_directory, host, write_cache};
use serde::{Deserialize, Serialize};

use crate::{ExitStatus, stdout};

/// Arguments of `oomph calibrate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph calibrate             a second of small training steps on this machine's GPU\n  oomph calibrate --show      what was measured here\n  oomph calibrate --remove    forget it\n\nThe GPU decides little in these steps: they wait for the host. oomph run and oomph gpus then take this machine as the host."
)]
pub struct Args {
    /// Say what was measured on this machine, and measure nothing
    #[arg(long, conflicts_with = "remove")]
    show: bool,

    /// Forget what was measured on this machine
    #[arg(long)]
    remove: bool,
}

/// What was measured on a machine.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    /// Its GPU.
    gpu: String,
    /// When, year first.
    date: String,
    /// Seconds of a step of each small model.
    steps: BTreeMap<String, f64>,
}

impl Measured {
    fn host(&self) -> Option<Host> {
        let name = format!("this machine (measured {})", self.date);
        Host::factor(&self.steps).map(|factor| Host::slower(name, factor))
    }

    fn text(&self) -> String {
        let factor = Host::factor(&self.steps).unwrap_or(f64::NAN);
        let mut text = format!(
            "this host takes {factor:.2} times as long as {} ({}, {})\n",
            Host::default().name,
            self.gpu,
            self.date
        );
        for (name, seconds) in &self.steps {
            let _ = writeln!(text, "  {name:<14}{:6.2} ms a step", seconds * 1e3);
        }
        text
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
        let measured: Measured = text
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str(line).ok())
            .context("the steps were measured, but what they took was not printed")?;
        if measured.host().is_none() {
            bail!("the steps took no time");
        }
        write_cache(&path, serde_json::to_string(&measured)?.as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
        stdout(&measured.text())?;
        Ok(ExitStatus::Success)
    }
}

/// The host to assume: this machine if it was measured, else the one that the clocks are fitted beside.
pub fn host_here() -> Host {
    let measured = read().unwrap_or_else(|error| {
        eprintln!("warning: {error:#}");
        None
    });
    measured
        .and_then(|measured| measured.host())
        .unwrap_or_default()
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
