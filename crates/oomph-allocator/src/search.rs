//! Which settings would have needed the least memory.

use crate::config::{Config, TorchVersion};
use crate::program::Program;
use crate::replay::{Device, Predicted, predict};

/// Events up to which the smallest sufficient memory of each setting is searched by bisection:
/// twelve more replays each.
const MAX_BISECTED: usize = 400_000;
/// Events up to which every candidate is tried: a second for each twelve million.
const MAX_ALL_CANDIDATES: usize = 2_000_000;
/// How exact that search is.
const STEP: u64 = 2 << 20;

/// The settings to try, all of them in common use.
pub const CANDIDATES: [&str; 12] = [
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "expandable_segments:True,roundup_power2_divisions:8",
    "max_split_size_mb:128,roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8",
];

/// What one setting would have done.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// The configuration string; empty for the defaults.
    pub conf: String,
    /// The result on the device.
    pub predicted: Predicted,
    /// The smallest memory in which every request succeeds, if it was searched.
    pub needs: Option<u64>,
}

impl Trial {
    /// The order of trials, lower is better: it fits; it needs less memory, ignoring differences
    /// below 64 MiB; it releases memory to the driver less often, which costs
    /// time.
    pub fn cost(&self) -> (bool, u64, u64, u64) {
        const INDIFFERENT: u32 = 26;
        let needs = self.needs.unwrap_or(self.predicted.stats.reserved_peak);
        (
            !self.predicted.fits(),
            needs >> INDIFFERENT,
            self.predicted.stats.retries,
            needs,
        )
    }
}

/// Runs a program under one setting.
pub fn attempt(
    program: &Program,
    conf: &str,
    version: TorchVersion,
    device: Device,
) -> Result<Trial, crate::ConfigError> {
    let config = Config::parse(conf, version)?;
    Ok(Trial {
        conf: conf.to_owned(),
        predicted: predict(program, &config, device),
        needs: smallest(program, &config),
    })
}

/// The smallest memory in which a program runs under `config`; `None` for programs too long to
/// run a dozen times. A larger memory could in rare cases fail where a smaller one does not
/// (other holes are reused); the search takes the first boundary that it finds.
pub fn smallest(program: &Program, config: &Config) -> Option<u64> {
    if program.events > MAX_BISECTED {
        return None;
    }
    let free = predict(program, config, Device::UNLIMITED);
    let mut enough = free.stats.reserved_peak.div_ceil(STEP) * STEP;
    let initial: u64 = program.initial.iter().map(|segment| segment.size).sum();
    let mut too_small = free.stats.allocated_peak.max(initial).saturating_sub(1) / STEP * STEP;
    while too_small + STEP < enough {
        let middle = (too_small + (enough - too_small) / 2) / STEP * STEP;
        if predict(program, config, Device::of(middle)).fits() {
            enough = middle;
        } else {
            too_small = middle;
        }
    }
    Some(enough)
}

/// Tries every candidate; those that fit come first, then those that need the least.
pub fn search(program: &Program, version: TorchVersion, device: Device) -> Vec<Trial> {
    // For a long history, try only the setting that helps most often.
    let count = if program.events > MAX_ALL_CANDIDATES {
        1
    } else {
        CANDIDATES.len()
    };
    let mut trials: Vec<Trial> = CANDIDATES
        .iter()
        .take(count)
        .filter_map(|conf| attempt(program, conf, version, device).ok())
        .collect();
    trials.sort_by_key(Trial::cost);
    trials
}
