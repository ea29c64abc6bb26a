//! What a real run should be: the job as it is or with a plan, by a rehearsal or by one that was made before.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use oomph_bytes::format_bytes;
use oomph_job::settings::Recording;
use oomph_job::{Job, RunDirectory, RunFile, Watch, ranks};
use oomph_plan::result::Outcome;
use oomph_plan::{Figures, PlanFile, PlanGpu, PlanJob, Results, Stop, Stopped, Versions};
use oomph_run::summary::{Verdict, summarize};

use crate::attempts::Attempts;
use crate::cache::{Answer, Entry, Kept, Room, digest, rounded};
use crate::corrections::{self, Planned, RealRun};
use crate::fitter::{Ending, fit, is_a_rank};
use crate::found::Found;
use crate::wanted::Wanted;

/// Where a real run will be.
#[derive(Debug, Clone)]
pub struct Place {
    /// The machine and its GPU.
    pub machine: String,
    /// What is free there now, in bytes.
    pub free_bytes: u64,
}

impl Place {
    /// What may be planned with: what is free, rounded down, less what earlier runs needed beyond their plans.
    pub fn memory_bytes(&self, kept: &Kept) -> u64 {
        let correction = corrections::correction(&kept.runs, &self.machine);
        rounded(self.free_bytes).saturating_sub(correction)
    }
}

/// What a rehearsal is for, and what is known before it.
#[derive(Debug)]
pub struct Scene<'a> {
    /// The script and its arguments.
    pub job: PlanJob,
    /// Where the real run will be.
    pub place: &'a Place,
    /// What is kept of the job.
    pub kept: &'a mut Kept,
    /// What may be used.
    pub room: Room,
}

/// How a real run should be made, and what that rests on.
#[derive(Debug, Clone, PartialEq)]
pub struct Chosen {
    /// The answer.
    pub entry: Entry,
    /// What is free, in bytes.
    pub free_bytes: u64,
    /// Whether it was found before.
    pub known: bool,
    /// The newest real run of this job on this machine.
    pub last: Option<RealRun>,
}

impl Chosen {
    /// The plan, unless the job runs as it is.
    pub fn plan(&self) -> Option<&PlanFile> {
        (self.entry.answer == Answer::Planned).then_some(&self.entry.plan)
    }
}

/// In one line.
impl fmt::Display for Chosen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = &self.entry;
        let peak = format_bytes(entry.peak.used_bytes);
        let free = format_bytes(self.free_bytes);
        match entry.answer {
            Answer::AsItIs => write!(out, "fits as it is: {peak} of {free} free")?,
            Answer::Planned => {
                write!(out, "with {}: {peak} of {free} free", entry.what)?;
                let ratio = entry
                    .plan
                    .planned
                    .as_ref()
                    .map(|planned| planned.time_ratio);
                if let Some(ratio) = ratio.filter(|ratio| *ratio > 0.0) {
                    write!(out, ", about {ratio:.1} times the step")?;
                }
            }
            Answer::Nothing if entry.growth.is_some() => {
                write!(
                    out,
                    "fits at first, and no lever keeps it so: {peak} of {free} free"
                )?;
            }
            Answer::Nothing => {
                write!(out, "nothing found that fits: floor {peak} of {free} free")?;
                if !entry.what.is_empty() {
                    write!(out, " ({})", entry.what)?;
                }
            }
        }
        if let Some(growth) = &entry.growth {
            write!(out, "; {growth}")?;
        }
        if self.known {
            write!(out, "; known from an earlier search")?;
        }
        match &self.last {
            Some(last) if last.out_of_memory => write!(
                out,
                "; last real run ran out of memory and would have used {} or more",
                format_bytes(last.used_bytes)
            ),
            Some(last) => {
                write!(
                    out,
                    "; last real run used {}",
                    format_bytes(last.used_bytes)
                )?;
                let more = last.used_bytes.saturating_sub(last.planned.used_bytes);
                if more >> 20 > 0 {
                    write!(out, ", {} more than planned", format_bytes(more))?;
                }
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// What follows from a rehearsal.
#[derive(Debug)]
pub enum Decision {
    /// It is known whether the job fits, and how.
    Known(Box<Chosen>),
    /// The search ended before that was known.
    Open(Stopped),
    /// The script fails by itself.
    ScriptFailed {
        /// The error, in a line.
        why: String,
        /// What the script printed.
        log: PathBuf,
        /// Whether it is a rank of a distributed job, which a launcher must start.
        is_rank: bool,
    },
}

/// The room that there is in `place`, of which `margin` of the memory is to stay free.
pub fn room(
    place: &Place,
    kept: &Kept,
    margin: impl FnOnce(u64) -> anyhow::Result<u64>,
    max_time: Option<Duration>,
) -> anyhow::Result<Room> {
    let memory_bytes = place.memory_bytes(kept);
    if memory_bytes == 0 {
        bail!(
            "of {} that are free on the GPU nothing is left for this job: earlier runs needed more than was planned for them by as much. --no-cache forgets them",
            format_bytes(place.free_bytes)
        );
    }
    Ok(Room {
        memory_bytes,
        margin_bytes: margin(memory_bytes)?,
        max_time,
    })
}

/// The answer that is known already.
pub fn known(place: &Place, kept: &Kept, room: &Room) -> Option<Chosen> {
    let mut entry = kept.find(room, &digest_of)?.clone();
    entry.growth = entry
        .growth
        .map(|growth| growth.moved(entry.memory_bytes, room.memory_bytes));
    Some(chosen(place, kept, entry, true))
}

fn chosen(place: &Place, kept: &Kept, entry: Entry, known: bool) -> Chosen {
    Chosen {
        entry,
        free_bytes: place.free_bytes,
        known,
        last: corrections::last(&kept.runs, &place.machine).cloned(),
    }
}

/// Searches for the answer, and keeps it.
pub fn search(
    attempts: &mut dyn Attempts,
    mut wanted: Wanted,
    scene: Scene,
) -> anyhow::Result<Decision> {
    let room = &scene.room;
    (wanted.total_bytes, wanted.margin_bytes) = (room.memory_bytes, room.margin_bytes);
    let found = match fit(attempts, wanted)? {
        Ending::Found(found) => *found,
        Ending::Stopped(stopped) => return Ok(Decision::Open(stopped)),
        Ending::ScriptFailed { why, log, is_rank } => {
            return Ok(Decision::ScriptFailed { why, log, is_rank });
        }
    };
    if found.fit.framework.is_some() {
        bail!(
            "oomph run --fit runs scripts that use PyTorch, and this one uses JAX: oomph fit --gpu NAME tells what to start it with"
        );
    }
    if let Some(stopped) = found.fit.stopped
        && (stopped == Stopped::Interrupted || found.fit.outcome == Outcome::Open)
    {
        return Ok(Decision::Open(stopped));
    }
    let entry = entry_of(&found, scene.job.clone(), room);
    Ok(scene.keep(entry))
}

impl Scene<'_> {
    /// Keeps an answer, and gives it.
    fn keep(self, entry: Entry) -> Decision {
        self.kept.keep(entry.clone(), &digest_of);
        Decision::Known(Box::new(chosen(self.place, self.kept, entry, false)))
    }
}

/// What a search found, as it is kept.
fn entry_of(found: &Found, job: PlanJob, room: &Room) -> Entry {
    let fit = &found.fit;
    let plan = fit.chosen.and_then(|index| fit.plans.get(index));
    let (answer, peak) = match (fit.outcome, plan) {
        (Outcome::Fits, Some(plan)) => (Answer::Planned, plan.peak),
        (Outcome::AlreadyFits, _) => (Answer::AsItIs, fit.plain),
        _ => {
            let least = fit.least.as_ref().map(|least| least.peak);
            let lower = least.filter(|least| least.used_bytes < fit.plain.used_bytes);
            (Answer::Nothing, lower.unwrap_or(fit.plain))
        }
    };
    let stopped = fit.stopped.and(room.max_time);
    Entry {
        answer,
        memory_bytes: room.memory_bytes,
        peak: peak.into(),
        what: plan.map(|plan| plan.what.clone()).unwrap_or_default(),
        plan: found
            .plan_file(job.clone())
            .unwrap_or_else(|| without_levers(job, &fit.gpu.id, room, peak.into())),
        sources: sources(found.plain.record.sources.iter()),
        max_time_seconds: stopped.map(|time| time.as_secs_f64()),
        growth: fit.growth.clone(),
    }
}

/// The plan that changes nothing.
fn without_levers(job: PlanJob, gpu: &str, room: &Room, peak: Planned) -> PlanFile {
    PlanFile {
        format: oomph_plan::FORMAT.to_owned(),
        job,
        gpu: PlanGpu {
            id: gpu.to_owned(),
            memory_bytes: room.memory_bytes,
        },
        versions: Versions::default(),
        planned: Some(Figures {
            allocated_bytes: peak.allocated_bytes,
            reserved_bytes: peak.reserved_bytes,
            used_bytes: peak.used_bytes,
            time_ratio: 1.0,
            same_results: Results::Exact,
            verified: true,
            assumptions: Vec::new(),
            switches: std::collections::BTreeMap::new(),
        }),
        written: None,
        levers: Vec::new(),
    }
}

/// Rehearses a job that a launcher starts: all ranks as they are, which are not planned. Like the first run of a
/// search, it has a directory of its own in `directory`.
pub fn rehearse_ranks(
    job: &Job,
    directory: &RunDirectory,
    steps: u32,
    stop: &Stop,
    scene: Scene,
) -> anyhow::Result<Decision> {
    let room = &scene.room;
    let directory = &RunDirectory::prepare(directory.path().join("plain"))?;
    let job = Job {
        recording: Recording {
            steps: Some(steps),
            ..job.recording.clone()
        },
        watch: Watch {
            live: false,
            stop: Some(stop.clone()),
            ..job.watch.clone()
        },
        ..job.clone()
    };
    let log = directory.file(RunFile::Log);
    let ended = ranks::attempt(&job, None, directory, None, Some(&log), "rehearsing");
    let (attempt, all) = match ended {
        Err(error) if error.is::<Stopped>() => {
            return Ok(Decision::Open(error.downcast::<Stopped>()?));
        }
        ended => ended?,
    };
    if let Some(reason) = directory.refusal() {
        bail!("{reason}");
    }
    let failed = |why: String| Decision::ScriptFailed {
        is_rank: is_a_rank(&why),
        why,
        log: log.clone(),
    };
    let Some(record) = &attempt.record else {
        return Ok(failed(format!(
            "its launcher ended ({}) without a record",
            attempt.status
        )));
    };
    let mut summary = summarize(record, attempt.trace.as_ref(), Some(room.memory_bytes));
    let gpu = job.gpu.as_ref().map(|gpu| gpu.spec.found.gpu.id.as_str());
    let most = all.iter().max_by_key(|rank| rank.peak.used_bytes);
    let peak = most.map_or(summary.peak, |rank| rank.peak);
    let which = most.map_or_else(String::new, |rank| format!("rank {}", rank.rank));
    let records = all.iter().filter_map(|rank| {
        let own = RunDirectory::at(directory.path().join(&rank.directory));
        own.record().ok().flatten()
    });
    let sources: Vec<PathBuf> = records
        .chain(std::iter::once(record.clone()))
        .flat_map(|record| record.sources)
        .collect();
    ranks::join(&mut summary, all, attempt.failure.clone(), attempt.status);
    if matches!(
        summary.verdict,
        Verdict::ScriptFailed | Verdict::OutOfMemory
    ) {
        return Ok(failed(summary.failure.unwrap_or_default()));
    }
    let fits = peak.used_bytes <= room.budget();
    let entry = Entry {
        answer: if fits {
            Answer::AsItIs
        } else {
            Answer::Nothing
        },
        memory_bytes: room.memory_bytes,
        peak: peak.into(),
        what: if fits {
            String::new()
        } else {
            format!("{which} as it is; ranks of a launcher are not planned")
        },
        plan: without_levers(
            scene.job.clone(),
            gpu.unwrap_or_default(),
            room,
            peak.into(),
        ),
        sources: self::sources(sources.iter()),
        max_time_seconds: None,
        growth: summary.growth,
    };
    Ok(scene.keep(entry))
}

/// Files with their digests, as they are now.
fn sources<'a>(
    files: impl Iterator<Item = &'a PathBuf>,
) -> std::collections::BTreeMap<PathBuf, String> {
    files
        .filter_map(|path| Some((path.clone(), digest_of(path)?)))
        .collect()
}

/// The digest of a file; `None` if it cannot be read.
fn digest_of(path: &Path) -> Option<String> {
    Some(digest(&fs::read(path).ok()?))
}
