//! Attempts in earnest: the script, run on a virtual GPU.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use oomph_gpus::GpuSpec;
use oomph_job::settings::Recording;
use oomph_job::{
    Attempt, Forks, Job, Program, RunDirectory, RunFile, VirtualGpu, Watch, host, ranks,
};
use oomph_plan::{Lever, Stop, by_hand, sharding};
use oomph_run::ranks::RankSummary;
use oomph_run::record::Framework;
use oomph_run::summary::{Verdict, summarize};

use crate::attempts::{Attempts, Ended, Measurement, Ranks, Request, per_host};

/// The most ranks to start for a plan; of larger jobs only some ranks run, by themselves.
const MOST_RANKS: u32 = 8;
/// How long a rank may do nothing while others wait for it: several share this machine's processors.
const RANK_TIMEOUT: Duration = Duration::from_mins(1);
/// So many times as long as the plain job a run may take: levers that compile take longer.
const LONGER: u32 = 6;
/// More runs side by side would need more memory than they are worth.
const MOST_AT_ONCE: usize = 2;
/// So long any run may take.
const LEAST: Duration = Duration::from_mins(2);

/// Runs a script, each attempt in a directory of its own.
#[derive(Debug)]
pub struct ScriptAttempts {
    /// The script with its arguments, as it was given.
    pub script: Vec<OsString>,
    /// The GPU, and how many of it.
    pub gpu: GpuSpec,
    /// Its memory in bytes.
    pub total_bytes: u64,
    /// What comparisons of unknown values give.
    pub unknown: String,
    /// Whether versions of torch are taken that the virtual GPU is not known to play for.
    pub unsupported: bool,
    /// Whether to treat the script as inference.
    pub inference: bool,
    /// Where runs write their records.
    pub directory: RunDirectory,
    /// How long a run may take: the first one tells.
    pub timeout: Option<Duration>,
    /// When to give up.
    pub stop: Stop,
    /// Forks the runs, which would each import torch.
    pub forks: Arc<Forks>,
    /// Whether two runs of the script have been in each other's way.
    pub alone: bool,
    /// How many times as long kernels take as the virtual GPU's clock says.
    pub slower: f64,
}

/// Which processes there are.
enum Processes {
    /// One.
    Script,
    /// All ranks, started by PyTorch's launcher.
    Launched(u32),
    /// Some of so many ranks, one after the other, the rest being absent.
    Rehearsed(u32, Vec<u32>),
}

impl Processes {
    fn new(levers: &[Lever], ranks: Ranks) -> Self {
        match (sharding::gpus(levers), ranks) {
            (None, _) => Self::Script,
            (Some(gpus), Ranks::First) => Self::Rehearsed(gpus, vec![0]),
            (Some(gpus), Ranks::All) if gpus <= MOST_RANKS => Self::Launched(gpus),
            (Some(gpus), Ranks::All) => Self::Rehearsed(gpus, vec![0, gpus - 1]),
        }
    }
}

impl Attempts for ScriptAttempts {
    fn run(&mut self, request: &Request) -> anyhow::Result<Ended> {
        let started = Instant::now();
        let ended = self.once(request);
        self.timeout
            .get_or_insert_with(|| (started.elapsed() * LONGER).max(LEAST));
        ended
    }

    fn keep_pace(&mut self, slower: f64) {
        self.slower = slower;
    }

    fn stop_by(&mut self, stop: &Stop) {
        self.stop = stop.clone();
    }

    fn at_once(&self) -> usize {
        // The first run tells how long one takes by itself.
        if self.alone || self.timeout.is_none() {
            return 1;
        }
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        processors.min(MOST_AT_ONCE)
    }

    fn run_all(&mut self, requests: &[Request]) -> Vec<anyhow::Result<Ended>> {
        let mut all = Vec::new();
        while let Some(left) = requests.get(all.len()..).filter(|left| !left.is_empty()) {
            let (now, _) = left.split_at(self.at_once().min(left.len()));
            match now {
                [one] => all.push(self.run(one)),
                several => all.extend(self.side_by_side(several)),
            }
        }
        all
    }
}

impl ScriptAttempts {
    fn side_by_side(&mut self, requests: &[Request]) -> Vec<anyhow::Result<Ended>> {
        let own = &*self;
        let mut all: Vec<anyhow::Result<Ended>> = std::thread::scope(|scope| {
            let running: Vec<_> = requests
                .iter()
                .map(|request| scope.spawn(move || own.once(request)))
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            running.into_iter().map(join).collect()
        });
        // Scripts may write the same file, or take the same port: what failed without a lever's fault says so only if it fails
        // alone, too.
        for (request, ended) in requests.iter().zip(&mut all) {
            if matches!(ended, Ok(Ended::Failed { lever: None, .. })) {
                *ended = self.once(request);
                self.alone |= !matches!(ended, Ok(Ended::Failed { .. }));
            }
        }
        all
    }

    fn once(&self, request: &Request) -> anyhow::Result<Ended> {
        let directory = RunDirectory::prepare(self.directory.path().join(&request.name))?;
        let processes = Processes::new(request.levers, request.ranks);
        let job = self.job(request, &processes)?;
        let log = directory.file(RunFile::Log);
        let started = Instant::now();
        let attempt = attempt(&job, &processes, &directory, request, &log);
        let late = self
            .timeout
            .is_some_and(|timeout| started.elapsed() > timeout);
        let (attempt, all) = attempt?;
        if let Some(reason) = directory.refusal() {
            bail!("{reason}");
        }
        let Some(record) = attempt.record else {
            if attempt.status.success() && !late && request.levers.is_empty() {
                bail!("the script ended without importing torch: there is nothing to plan");
            }
            let why = late
                .then(|| "it took more than six times as long as the plain job".to_owned())
                .or_else(|| last_line(&log))
                .unwrap_or_else(|| format!("it ended ({}) without a record", attempt.status));
            return Ok(Ended::Failed {
                lever: None,
                why,
                log,
            });
        };
        // Without a record it is not known which process is the script's.
        if let Some(other) = attempt.processes.others().next()
            && matches!(processes, Processes::Script)
        {
            bail!(
                "the script uses the GPU in more than one process (process {}: {}), and oomph fit plans the memory of one. \
                 oomph run tells what each of them holds; run oomph fit on the script that trains",
                other.process,
                other.command
            );
        }
        let is_jax = (record.framework.as_ref()).is_some_and(Framework::is_jax);
        if let Some(other) = &record.framework
            && !is_jax
        {
            bail!(
                "the script uses {}, and oomph fit plans scripts that use PyTorch or JAX. oomph run tells what this one needs",
                other.title()
            );
        }
        let mut summary = summarize(&record, attempt.trace.as_ref(), Some(self.total_bytes));
        let used = all
            .iter()
            .map(|rank| (rank.rank, rank.peak.used_bytes))
            .collect();
        let mut blame = record.outcome.blame.clone();
        if let Some(refused) = all.iter().find(|rank| rank.verdict == Verdict::Refused) {
            summary.verdict = Verdict::Refused;
            summary.failure.clone_from(&refused.failure);
            blame.clone_from(&refused.blame);
        } else if !all.is_empty() {
            ranks::join(&mut summary, all, attempt.failure, attempt.status);
        }
        if summary.verdict == Verdict::Refused {
            let message = summary.failure.unwrap_or_default();
            return Ok(Ended::Refused {
                why: by_hand::refusal(&message, blame.as_ref(), request.levers),
                modules: blame
                    .as_ref()
                    .map_or_else(Vec::new, |blame| blame.modules.clone()),
                beside: blame.as_ref().and_then(|blame| blame.beside.clone()),
                lever: blame.map(|blame| blame.lever),
            });
        }
        let failed = record.outcome.status != 0 || summary.verdict == Verdict::ScriptFailed;
        // XLA has no other word for it where it tries kernels.
        let untried = is_jax
            && (summary.failure.as_ref())
                .is_some_and(|why| why.contains("NOT_FOUND") && why.contains("configs"));
        let out_of_memory =
            record.out_of_memory() || summary.verdict == Verdict::OutOfMemory || untried;
        if failed && !out_of_memory {
            let why = summary
                .failure
                .as_deref()
                .and_then(|why| why.lines().next());
            let why = why.unwrap_or_default().to_owned();
            return Ok(Ended::Failed {
                lever: blame.map(|blame| blame.lever),
                why,
                log,
            });
        }
        let measured = Box::new(Measurement {
            record,
            trace: attempt.trace,
            summary,
            directory,
            ranks: used,
            rehearsed: matches!(processes, Processes::Rehearsed(..)),
        });
        Ok(if out_of_memory {
            Ended::OutOfMemory(measured)
        } else {
            Ended::Through(measured)
        })
    }

    fn job(&self, request: &Request, processes: &Processes) -> anyhow::Result<Job> {
        let host = host::get()?;
        let mut gpu = self.gpu.clone();
        gpu.count = match processes {
            Processes::Script => request.gpus,
            Processes::Launched(gpus) => *gpus,
            Processes::Rehearsed(gpus, _) => (*gpus).min(per_host(self.gpu.count)),
        };
        let program = match processes {
            Processes::Launched(gpus) => Program::torchrun(host, *gpus, &self.script),
            _ => Program::Script(self.script.clone()),
        };
        Ok(Job {
            gpu: Some(VirtualGpu {
                total_bytes: self.total_bytes,
                rank_timeout: RANK_TIMEOUT,
                slower: self.slower,
                ..VirtualGpu::new(gpu)
            }),
            recording: Recording {
                steps: Some(request.steps),
                fewer: request.fewer,
                every_optimizer: !self.inference,
                levers: request.levers.to_vec(),
                resize: request.resize,
                unknown: self.unknown.clone(),
                unsupported: self.unsupported,
                inference: self.inference,
                text: request.text.map(str::to_owned),
                ..Recording::default()
            },
            watch: Watch {
                timeout: self.timeout,
                stop: Some(self.stop.clone()),
                ..Watch::default()
            },
            forks: Some(Arc::clone(&self.forks)),
            ..Job::new(host, program)
        })
    }
}

/// Runs the job with its ranks, and returns the outcome of each if there are several.
fn attempt(
    job: &Job,
    processes: &Processes,
    directory: &RunDirectory,
    request: &Request,
    log: &Path,
) -> anyhow::Result<(Attempt, Vec<RankSummary>)> {
    let (limit, log, doing) = (request.limit, Some(log), request.purpose.as_str());
    let rehearsed = match processes {
        Processes::Script => {
            return Ok((job.attempt(directory, limit, log, doing)?, Vec::new()));
        }
        Processes::Launched(_) => None,
        Processes::Rehearsed(world_size, chosen) => Some((*world_size, &chosen[..])),
    };
    ranks::attempt(job, rehearsed, directory, limit, log, doing)
}

fn last_line(log: &Path) -> Option<String> {
    let text = fs::read_to_string(log).ok()?;
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_ranks_are_stood_for_by_the_first_and_the_last() {
        let chosen = |gpus, ranks| match Processes::new(&[sharding::data_parallel(gpus)], ranks) {
            Processes::Rehearsed(world_size, chosen) => (world_size, chosen),
            Processes::Launched(world_size) => (world_size, (0..world_size).collect()),
            Processes::Script => (1, vec![0]),
        };
        assert_eq!(chosen(2, Ranks::All), (2, vec![0, 1]));
        assert_eq!(chosen(2, Ranks::First), (2, vec![0]));
        assert_eq!(chosen(64, Ranks::All), (64, vec![0, 63]));
        assert!(matches!(Processes::new(&[], Ranks::All), Processes::Script));
    }
}
