//! A recorded history, replayed as it was and under other conditions.

use oomph_trace::{Problem, ProblemKind, Trace};

use crate::config::{Config, ConfigError, TorchVersion};
use crate::plan::{self, Bounds};
use crate::program::Program;
use crate::replay::{self, Device, Replayed};
use crate::search::{self, Trial};

/// What is asked of a history.
#[derive(Debug, Clone, Default)]
pub struct Question<'a> {
    /// The device; the busiest for `None`.
    pub device: Option<u32>,
    /// The version whose rules apply; for `None` the recorded one.
    pub version: Option<TorchVersion>,
    /// Bytes that the allocator may reserve; for `None` as many as the recorded job had.
    pub memory: Option<u64>,
    /// Settings to try, as `PYTORCH_CUDA_ALLOC_CONF` has them.
    pub confs: &'a [String],
    /// Whether to try the settings that are known to help.
    pub search: bool,
}

/// Where the memory of a [`Study`] comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryIs {
    /// The question names it.
    Given,
    /// The recorded job failed, which tells what it had.
    Recorded,
    /// Nobody knows a limit.
    Unlimited,
}

/// What came of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Study {
    /// The device that was replayed.
    pub device: u32,
    /// The version whose rules were applied.
    pub version: TorchVersion,
    /// Whether that version is neither given nor recorded.
    pub version_assumed: bool,
    /// The history.
    pub program: Program,
    /// The replay of what was recorded.
    pub exact: Replayed,
    /// What no setting can do without.
    pub bounds: Bounds,
    /// Bytes that the allocator may reserve.
    pub memory: Option<u64>,
    /// Where that comes from.
    pub memory_is: MemoryIs,
    /// The settings of the recorded job.
    pub current: Trial,
    /// Other settings: first those that were named, then those that were searched.
    pub trials: Vec<Trial>,
    /// What the figures suffer from.
    pub problems: Vec<Problem>,
}

/// Why a history cannot be studied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudyError {
    /// Only the state at the end was recorded.
    #[error(
        "the snapshot has no history to replay, only the state at its end. Call \
         torch.cuda.memory._record_memory_history(max_entries=sys.maxsize) before the model is built"
    )]
    NoHistory,
    /// Nothing says what the driver was asked for.
    #[error(
        "the history has no segments (a profiler trace?), so there is nothing to compare a replay \
         with. Take a snapshot: torch.cuda.memory._dump_snapshot"
    )]
    NoSegments,
    /// Nothing happened on any device.
    #[error("no device has an event or a segment")]
    NoDevice,
    /// Nothing happened on the device that was asked for.
    #[error("device {device} has no events; devices with events: {used:?}")]
    IdleDevice {
        /// The device that was asked for.
        device: u32,
        /// Devices with events.
        used: Vec<u32>,
    },
    /// Settings that PyTorch would refuse.
    #[error("{conf}: {error}")]
    Conf {
        /// The settings.
        conf: String,
        /// What is wrong with them.
        error: ConfigError,
    },
}

impl Study {
    /// Replays `trace`.
    pub fn new(trace: &Trace, question: &Question) -> Result<Self, StudyError> {
        if trace.events.is_empty() {
            return Err(StudyError::NoHistory);
        }
        let device = choose_device(trace, question.device)?;
        let recorded = trace.context.torch_version.as_deref();
        let known = question
            .version
            .or_else(|| recorded.and_then(TorchVersion::parse));
        let version = known.unwrap_or(TorchVersion::ASSUMED);
        let config = Config::from_settings(&trace.settings, version);
        let mut program = Program::new(trace, device, &config);
        if program.driver_events.is_empty() && program.initial.is_empty() {
            return Err(StudyError::NoSegments);
        }
        let exact = replay::recorded_with_pools(&mut program, &config);
        let mut problems = program.problems.clone();
        let room = program.room(&config).map(|room| room.at_least);
        let (under, memory_is) = match (question.memory, room) {
            (Some(memory), _) => (Device::of(memory), MemoryIs::Given),
            (None, Some(room)) => (
                Device {
                    limit: Some(room),
                    ..Device::UNLIMITED
                },
                MemoryIs::Recorded,
            ),
            (None, None) => (Device::UNLIMITED, MemoryIs::Unlimited),
        };
        let current = Trial {
            conf: trace.settings.conf.clone().unwrap_or_default(),
            predicted: replay::predict(&program, &config, under),
            needs: search::smallest(&program, &config),
        };
        let mut trials = Vec::new();
        for conf in question.confs {
            let trial = search::attempt(&program, conf, version, under);
            trials.push(trial.map_err(|error| StudyError::Conf {
                conf: conf.clone(),
                error,
            })?);
        }
        if question.search {
            for trial in search::search(&program, version, under) {
                if !trials.iter().any(|other| other.conf == trial.conf) {
                    trials.push(trial);
                }
            }
        }
        if exact.mismatches > 0 {
            problems.push(Problem::new(
                ProblemKind::Inconsistent,
                format!(
                    "{} of {} events differ from the recording, so what follows is \
                     approximate",
                    exact.mismatches, exact.events
                ),
            ));
        }
        Ok(Self {
            device,
            version,
            version_assumed: known.is_none(),
            bounds: plan::bounds(&program, &config),
            program,
            exact,
            memory: question.memory.or(room),
            memory_is,
            current,
            trials,
            problems,
        })
    }

    /// The best of what was tried, if it fits and needs less than the settings at hand.
    pub fn best(&self) -> Option<&Trial> {
        self.trials
            .iter()
            .min_by_key(|trial| trial.cost())
            .filter(|trial| trial.cost() < self.current.cost())
            .filter(|trial| self.memory.is_none() || trial.predicted.fits())
    }

    /// Of settings that do not fit, the one that needs the least.
    pub fn nearest(&self) -> Option<&Trial> {
        let all = self.trials.iter().chain([&self.current]);
        all.filter(|trial| trial.needs.is_some())
            .min_by_key(|trial| trial.needs)
    }

    /// Whether some setting fits the memory; true where no memory is known.
    pub fn fits(&self) -> bool {
        let mut all = self.trials.iter().chain([&self.current]);
        self.memory.is_none() || all.any(|trial| trial.predicted.fits())
    }
}

/// The requested device, or the only one, or the busiest.
fn choose_device(trace: &Trace, asked: Option<u32>) -> Result<u32, StudyError> {
    let used = trace.used_devices();
    match asked {
        Some(device) if used.contains(&device) => Ok(device),
        Some(device) => Err(StudyError::IdleDevice { device, used }),
        None => trace.busiest_device().ok_or(StudyError::NoDevice),
    }
}
