//! Plans from the record of a run what a training loop that ran out of memory can do next.

use std::path::Path;

use anyhow::{Context as _, bail};
use oomph_allocator::{Config, TorchVersion};
use oomph_job::{RunDirectory, RunFile, read_trace};
use oomph_plan::draft::Pace;
use oomph_plan::model::Model;
use oomph_plan::search::{self, Base, Options};
use oomph_plan::{Lever, levers};
use serde::Serialize;

/// Levers that replace those that are applied.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Next {
    /// All levers to apply.
    pub levers: Vec<Lever>,
    /// Predicted bytes that they save beyond those applied now.
    pub saves: u64,
    /// Predicted time of a step relative to the plain job's.
    pub time_ratio: f64,
}

/// The cheapest levers that save `missing` bytes beyond `applied`; if none save that much, those that save
/// most; `None` if none save anything.
///
/// `directory` is the directory of the run. `samples` is the size of a micro-batch, 0 for
/// that of the run. `forbid` names levers to exclude.
pub fn next(
    directory: &Path,
    applied: &[Lever],
    missing: u64,
    samples: u64,
    forbid: Vec<String>,
) -> anyhow::Result<Option<Next>> {
    let mut base = read(directory)?;
    if samples > 0 && base.model.batch > 0 {
        base = base.scaled(samples, base.model.batch);
    }
    let mut options = Options {
        keep_results: true,
        allow: Some(levers::midway().map(str::to_owned).collect()),
        forbid,
        pace: Pace::default(),
        ..Options::default()
    };
    let now = search::predict(&base, &base, applied, &options);
    options.budget = now.used.saturating_sub(missing.max(1));
    let bases = [base];
    let found = search::search(&bases, &options)?;
    let chosen = found.plans.into_iter().next().or(found.least);
    Ok(chosen.filter(|plan| plan.used < now.used).map(|plan| Next {
        levers: plan.levers,
        saves: now.used - plan.used,
        time_ratio: plan.time_ratio,
    }))
}

fn read(directory: &Path) -> anyhow::Result<Base> {
    // A run that ran out of memory was repeated without a limit; that record is complete.
    let run = RunDirectory::at(directory);
    let unlimited = run.unlimited();
    let whole = if unlimited.has(RunFile::Record) {
        unlimited
    } else {
        run
    };
    let Some(record) = whole.record()? else {
        bail!(
            "{}: expected the directory of a run, with {}, as `oomph run --out DIR` leaves it",
            directory.display(),
            RunFile::Record.name()
        );
    };
    let trace = read_trace(whole.path())?;
    let model = Model::new(&trace, &record)
        .with_context(|| format!("{}: cannot plan for this run", directory.display()))?;
    if !model.trains {
        bail!(
            "{}: this run has no optimizer step: record the training script",
            directory.display()
        );
    }
    let config = Config::from_settings(&trace.settings, TorchVersion::ASSUMED);
    let (allocated, reserved) = record.busiest().map_or((0, 0), |device| {
        (device.peak_allocated_bytes, device.peak_reserved_bytes)
    });
    Ok(Base::new(model, Vec::new(), allocated, reserved, &config))
}
