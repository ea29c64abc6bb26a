//! The runs behind `oomph fit`: the plain job, plans at the real capacity, variants of the job.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use oomph_gpus::GpuSpec;
use oomph_plan::Lever;
use oomph_plan::draft::{Load, Pace};
use oomph_plan::search::HostTime;
use oomph_plan::sharding::{self, USUAL_HOST};
use oomph_report::fit::Peak;
use oomph_run::Record;
use oomph_run::ranks::RankSummary;
use oomph_run::summary::{Summary, Verdict, summarize};

use oomph_job::settings::{Recording, Variant};
use oomph_job::{Attempt, Job, Program, RunDirectory, RunFile, VirtualGpu, Watch, host, ranks};

use crate::progress::Progress;

/// What runs have in common.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent settings of the runs"
)]
pub struct Workshop {
    /// The script as it was given.
    pub words: Vec<OsString>,
    /// The GPU.
    pub gpu: GpuSpec,
    /// Its memory.
    pub total: u64,
    /// What a job may use: the memory less the margin.
    pub budget: u64,
    /// Steps of each run.
    pub steps: u32,
    /// What comparisons of unknown values give.
    pub unknown: String,
    /// Whether other versions of torch are taken.
    pub unsupported: bool,
    /// Whether the script is taken to infer only.
    pub inference: bool,
    /// Where runs leave their records.
    pub directory: RunDirectory,
    /// Shows what is going on.
    pub progress: Progress,
    /// How long a run may take; unknown before the first.
    pub patience: Option<Duration>,
    /// How often the script was run.
    pub runs: u32,
    /// Seconds that the runs took.
    pub seconds: f64,
    /// Whether of several ranks the first one is enough, as for a prediction.
    pub first_rank: bool,
    /// Whether the ranks of the last run were named ones of more, the others being absent.
    pub rehearsed: bool,
    /// Whether the GPUs are there to share the job among: it is planned as one for a single GPU.
    pub shares: bool,
}

/// One run and what it came to.
#[derive(Debug)]
pub struct Run {
    /// The run.
    pub attempt: Attempt,
    /// Its record.
    pub record: Record,
    /// The summary.
    pub summary: Summary,
    /// Where its record and log lie.
    pub directory: RunDirectory,
    /// What each rank used at its peak, where there were several.
    pub ranks: Vec<(u32, u64)>,
}

/// Nanoseconds that giving back everything cached and asking for it again takes: a step of GPT-2 took
/// so much longer on an H200 at a limit that made it do so once (`bench/gpu/results/h200_fit.jsonl`).
const RETRY_NS: f64 = 8e6;

/// How a run ended.
#[derive(Debug)]
pub enum Ended {
    /// It went through.
    Through(Box<Run>),
    /// It ran out of memory.
    OutOfMemory(Box<Run>),
    /// A lever cannot be applied to this script, and says why.
    Refused(String),
    /// The script failed.
    Failed {
        /// The error, in a line.
        why: String,
        /// What the script printed.
        log: PathBuf,
    },
}

impl Run {
    /// The greatest amounts.
    pub fn peak(&self) -> Peak {
        Peak {
            allocated_bytes: self.summary.peak.allocated_bytes,
            reserved_bytes: self.summary.peak.reserved_bytes,
            used_bytes: self.summary.peak.used_bytes,
        }
    }

    /// How often a step has to give back everything cached to go on.
    pub fn retries_a_step(&self) -> f64 {
        let retries: u64 = self
            .record
            .devices
            .iter()
            .map(|device| device.retries)
            .sum();
        retries as f64 / f64::from(self.record.steps.max(1))
    }

    /// Nanoseconds of the last step, by the virtual clock, the host's pace and what the host does
    /// beyond.
    pub fn step_time(&self, pace: &Pace, host: HostTime) -> Option<f64> {
        let ([.., before, last], [.., calls_before, calls]) = (
            self.record.clock.as_slice(),
            self.record.clock_calls.as_slice(),
        ) else {
            return None;
        };
        let load = Load {
            busy: last.1.saturating_sub(before.1) as f64,
            launches: last.2.saturating_sub(before.2) as f64,
            calls: calls.saturating_sub(*calls_before) as f64,
            lever: host.beside_ns,
        };
        Some(load.time(pace) + host.alone_ns + self.retries_a_step() * RETRY_NS)
    }
}

impl Workshop {
    /// GPUs of a host: those that were named, as far as a host has so many.
    pub fn per_host(&self) -> u32 {
        self.gpu.count.clamp(1, USUAL_HOST)
    }

    /// Runs the script with `levers` and as `variant` has it, where `limit` is enforced.
    pub fn run(
        &mut self,
        name: &str,
        what: &str,
        levers: &[Lever],
        variant: Variant,
        limit: Option<u64>,
    ) -> anyhow::Result<Ended> {
        const LONGER: u32 = 6;
        const LEAST: Duration = Duration::from_mins(2);
        let directory = RunDirectory::prepare(self.directory.path().join(name))?;
        let host = host::get()?;
        let gpus = sharding::gpus(levers);
        let shown = match gpus {
            Some(gpus) if !self.first_rank && gpus <= MOST_RANKS => Ranks::All(gpus),
            Some(gpus) => {
                let last = if self.first_rank { 0 } else { gpus - 1 };
                Ranks::Rehearsed(gpus, if last == 0 { vec![0] } else { vec![0, last] })
            }
            None => Ranks::Alone,
        };
        self.rehearsed = matches!(shown, Ranks::Rehearsed(..));
        let mut gpu = self.gpu.clone();
        gpu.count = match &shown {
            Ranks::All(gpus) => *gpus,
            Ranks::Rehearsed(gpus, _) => (*gpus).min(self.per_host()),
            Ranks::Alone if self.shares => 1,
            Ranks::Alone => gpu.count,
        };
        let program = match &shown {
            Ranks::All(gpus) => Program::torchrun(host, *gpus, &self.words),
            _ => Program::Script(self.words.clone()),
        };
        let job = Job {
            gpu: Some(VirtualGpu {
                total_bytes: self.total,
                rank_timeout: Duration::from_secs(RANK_TIMEOUT_SECONDS),
                ..VirtualGpu::new(gpu)
            }),
            recording: Recording {
                steps: Some(self.steps),
                levers: levers.to_vec(),
                variant,
                unknown: self.unknown.clone(),
                unsupported: self.unsupported,
                inference: self.inference,
                ..Recording::default()
            },
            watch: Watch {
                timeout: self.patience,
                ..Watch::default()
            },
            ..Job::new(host, program)
        };
        let log = directory.file(RunFile::Log);
        let started = Instant::now();
        let attempt = {
            let _shown = self.progress.begin(what);
            attempt(&job, &shown, &directory, limit, &log, what)
        };
        self.runs += 1;
        self.seconds += started.elapsed().as_secs_f64();
        // The first run says how long the job takes; levers that compile take longer.
        let late = self
            .patience
            .is_some_and(|patience| started.elapsed() > patience);
        if self.patience.is_none() {
            self.patience = Some((started.elapsed() * LONGER).max(LEAST));
        }
        let (mut attempt, all) = attempt?;
        if let Some(reason) = directory.refusal() {
            bail!("{reason}");
        }
        let Some(record) = attempt.record.take() else {
            return Ok(Ended::Failed {
                why: late
                    .then(|| "it took more than six times as long as the plain job".to_owned())
                    .or_else(|| last_line(&log))
                    .unwrap_or_else(|| format!("it ended ({}) without a record", attempt.status)),
                log,
            });
        };
        let mut summary = summarize(&record, attempt.trace.as_ref(), Some(self.total));
        let used = all
            .iter()
            .map(|rank| (rank.rank, rank.peak.used_bytes))
            .collect();
        let refused = all.iter().find(|rank| rank.verdict == Verdict::Refused);
        if let Some(refused) = refused {
            summary.verdict = Verdict::Refused;
            summary.failure.clone_from(&refused.failure);
        } else if !all.is_empty() {
            ranks::join(&mut summary, all, attempt.failure.clone(), attempt.status);
        }
        if summary.verdict == Verdict::Refused {
            let why = summary.failure.clone().unwrap_or_default();
            return Ok(Ended::Refused(why));
        }
        let failed = record.outcome.status != 0 || summary.verdict == Verdict::ScriptFailed;
        let out_of_memory = record.out_of_memory() || summary.verdict == Verdict::OutOfMemory;
        let why = summary.failure.clone();
        let run = Box::new(Run {
            attempt,
            record,
            summary,
            directory,
            ranks: used,
        });
        Ok(if out_of_memory {
            Ended::OutOfMemory(run)
        } else if failed {
            Ended::Failed {
                why: why
                    .and_then(|why| why.lines().next().map(str::to_owned))
                    .unwrap_or_default(),
                log,
            }
        } else {
            Ended::Through(run)
        })
    }
}

/// Which ranks of a job are run.
enum Ranks {
    /// It has but one process.
    Alone,
    /// All of them, started by PyTorch's launcher.
    All(u32),
    /// Some of so many, one after the other, the rest being absent.
    Rehearsed(u32, Vec<u32>),
}

/// More ranks than this are not started for a plan: named ones are run by themselves.
const MOST_RANKS: u32 = 8;
/// How long a rank may do nothing while others wait for it: several share this machine's processors.
const RANK_TIMEOUT_SECONDS: u64 = 60;

/// Runs the job with its ranks; what each came to, where there are several.
fn attempt(
    job: &Job,
    shown: &Ranks,
    directory: &RunDirectory,
    limit: Option<u64>,
    log: &Path,
    what: &str,
) -> anyhow::Result<(Attempt, Vec<RankSummary>)> {
    let rehearsed = match shown {
        Ranks::Alone => return Ok((job.attempt(directory, limit, Some(log), what)?, Vec::new())),
        Ranks::All(_) => None,
        Ranks::Rehearsed(world_size, chosen) => Some((*world_size, &chosen[..])),
    };
    ranks::attempt(job, rehearsed, directory, limit, Some(log), what)
}

fn last_line(log: &Path) -> Option<String> {
    let text = fs::read_to_string(log).ok()?;
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map(str::to_owned)
}
