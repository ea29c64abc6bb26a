//! Other allocator settings, replayed on the history.

use oomph_allocator::replay::{Device, predict};
use oomph_allocator::search::{CANDIDATES, Trial, attempt};
use oomph_allocator::{Config, Program, TorchVersion};
use oomph_trace::Trace;
use serde::Serialize;

/// Events that are simulated for all settings together: an eighth of a second.
const BUDGET: usize = 1_500_000;
/// Replays that the search for a setting's smallest memory takes, about.
const BISECTION: usize = 13;
/// Replays below which there is nothing to compare.
const FEWEST: usize = 2;

/// What one setting would have done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct WhatIf {
    /// `PYTORCH_CUDA_ALLOC_CONF`; empty for the settings of the run.
    pub conf: String,
    /// Whether this is what the run had.
    pub current: bool,
    /// Whether it fits the capacity, where that is known.
    pub fits: Option<bool>,
    /// The most reserved.
    pub peak_reserved: u64,
    /// The smallest memory that would be enough, if it was searched.
    pub needs: Option<u64>,
    /// How often the cache was emptied to serve a request.
    pub retries: u64,
}

/// Replays as many other settings as the time allows; none if a history is too long or
/// has no segments to compare with.
pub fn what_if(
    trace: &Trace,
    device: u32,
    version: TorchVersion,
    capacity: Option<u64>,
) -> Vec<WhatIf> {
    if trace.rows_of(device).len() > BUDGET / FEWEST {
        return Vec::new();
    }
    let config = Config::from_settings(&trace.settings, version);
    let program = Program::new(trace, device, &config);
    if program.events == 0 || program.driver_events.is_empty() && program.initial.is_empty() {
        return Vec::new();
    }
    // A failure gives the available memory more exactly than the device's size.
    let room = program.room(&config).map(|room| room.at_least).or(capacity);
    let under = room.map_or(Device::UNLIMITED, |room| Device {
        limit: Some(room),
        ..Device::UNLIMITED
    });
    let replays = BUDGET / program.events;
    if replays < FEWEST {
        return Vec::new();
    }
    let bisects = replays >= (CANDIDATES.len() + 1) * BISECTION;
    let row = |trial: &Trial, current: bool| WhatIf {
        conf: trial.conf.clone(),
        current,
        fits: room.map(|_| trial.predicted.fits()),
        peak_reserved: trial.predicted.stats.reserved_peak,
        needs: trial.needs,
        retries: trial.predicted.stats.retries,
    };
    let tried = |conf: &str, config: &Config| Trial {
        conf: conf.to_owned(),
        predicted: predict(&program, config, under),
        needs: None,
    };
    let mut current = tried(trace.settings.conf.as_deref().unwrap_or_default(), &config);
    if bisects {
        current.needs = oomph_allocator::search::smallest(&program, &config);
    }
    let mut trials: Vec<Trial> = CANDIDATES
        .iter()
        .take(replays - 1)
        .filter(|conf| **conf != current.conf)
        .filter_map(|conf| {
            if bisects {
                attempt(&program, conf, version, under).ok()
            } else {
                let config = Config::parse(conf, version).ok()?;
                Some(tried(conf, &config))
            }
        })
        .collect();
    trials.sort_by_key(Trial::cost);
    std::iter::once(row(&current, true))
        .chain(trials.iter().map(|trial| row(trial, false)))
        .collect()
}
