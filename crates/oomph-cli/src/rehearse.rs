//! `oomph run --fit`: the GPU and what is free on it, the plan for that, and what the run came to.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use oomph_bytes::format_bytes;
use oomph_fit::ScriptAttempts;
use oomph_fit::cache::{Answer, Kept, Room, Started, Subject};
use oomph_fit::corrections::{Free, RealRun};
use oomph_fit::machine::{self, MachineGpu, Visibility};
use oomph_fit::rehearsal::{self, Chosen, Decision, Place, Scene};
use oomph_gpus::{Gpu, GpuSpec};
use oomph_job::settings::Recording;
use oomph_job::{
    Host, Job, Program, RunDirectory, VirtualGpu, cache_directory, packages, write_cache,
};
use oomph_plan::{PlanFile, Stopped};
use oomph_run::{Record, Verdict};
use serde::Serialize;

use crate::ExitStatus;
use crate::commands::calibrate;
use crate::commands::fit::{say_failure, say_is_rank};
use crate::script::plan_job;
use crate::search::{Search, words};
use crate::watched::Watched;

/// What `oomph run --fit` is asked for.
pub(crate) struct Asked<'a> {
    pub(crate) search: &'a Search,
    /// The virtual GPU that stands for the machine's, and another capacity.
    pub(crate) gpu: Option<&'a str>,
    pub(crate) memory: Option<u64>,
    /// Steps of each rehearsal.
    pub(crate) steps: u32,
    pub(crate) recording: &'a Recording,
    pub(crate) anew: bool,
    pub(crate) quiet: bool,
    pub(crate) program: &'a Program,
    pub(crate) host: &'static Host,
}

/// What follows.
pub(crate) enum Rehearsed {
    /// The job is run.
    Run(Box<Rehearsal>),
    /// Nothing is started.
    End(ExitStatus),
}

/// A rehearsed run.
pub(crate) struct Rehearsal {
    chosen: Chosen,
    place: Place,
    /// Whether the GPU is this machine's own.
    real: bool,
    /// Where the plan is kept.
    file: Option<PathBuf>,
    /// What the GPU is called in the catalogue.
    gpu: &'static Gpu,
    /// Where the rehearsal lies of a job that runs as it is.
    rehearsed: Option<RunDirectory>,
}

/// The GPUs of a run.
struct Gpus {
    spec: GpuSpec,
    place: Place,
    real: bool,
}

/// What the JSON of a run says of its rehearsal.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Note<'a> {
    answer: Answer,
    free_bytes: u64,
    planned_for_bytes: u64,
    planned: oomph_fit::corrections::Planned,
    what: &'a str,
    /// Whether an earlier search knew it.
    known: bool,
    last_run: Option<&'a RealRun>,
}

impl Asked<'_> {
    /// Finds out how to run the job.
    pub(crate) fn rehearse(&self) -> anyhow::Result<Rehearsed> {
        self.search.check()?;
        let stop = self.search.stop();
        let gpus = self.gpus()?;
        let file = self.file(&gpus.spec);
        let mut kept = match &file {
            Some(file) if !self.anew => read(file),
            _ => Kept::default(),
        };
        let gathered = kept.gather(&|directory| {
            let found = RunDirectory::at(directory).record();
            found.ok().flatten()
        });
        if gathered {
            write(file.as_deref(), &kept);
        }
        let (place, max_time) = (&gpus.place, self.search.max_time);
        let margin = |memory| self.search.margin_of(memory);
        let room = rehearsal::room(place, &kept, margin, max_time)?;
        let mut rehearsed = None;
        let decision = if let Some(known) = rehearsal::known(place, &kept, &room) {
            Decision::Known(Box::new(known))
        } else {
            let directory = RunDirectory::choose(None, self.program)?;
            rehearsed = Some(RunDirectory::at(directory.path().join("plain")));
            let decision = self.search(&gpus, directory, &mut kept, &room, &stop)?;
            if matches!(decision, Decision::Known(_)) {
                write(file.as_deref(), &kept);
            }
            decision
        };
        let decision = match stop.check() {
            Err(Stopped::Interrupted) => Decision::Open(Stopped::Interrupted),
            _ => decision,
        };
        Ok(match decision {
            Decision::Known(chosen) => {
                if !self.quiet || chosen.entry.answer == Answer::Nothing {
                    eprintln!("oomph: {chosen}");
                }
                if chosen.entry.answer == Answer::Nothing {
                    return Ok(Rehearsed::End(ExitStatus::Findings));
                }
                Rehearsed::Run(Box::new(Rehearsal {
                    chosen: *chosen,
                    place: gpus.place,
                    real: gpus.real,
                    file,
                    gpu: gpus.spec.found.gpu,
                    rehearsed,
                }))
            }
            Decision::Open(stopped) => {
                eprintln!("oomph: {stopped} before a plan was known: nothing was started");
                Rehearsed::End(match stopped {
                    Stopped::Interrupted => ExitStatus::Interrupted,
                    Stopped::MaxTime => ExitStatus::NoVerdict,
                })
            }
            Decision::ScriptFailed { why, log, is_rank } => {
                say_failure(&why, &log);
                if is_rank {
                    say_is_rank(&gpus.spec.found.gpu.id, self.program.argv());
                }
                Rehearsed::End(ExitStatus::Failed)
            }
        })
    }

    /// The GPUs of this machine, or the virtual ones that stand for them.
    fn gpus(&self) -> anyhow::Result<Gpus> {
        if let Some(name) = self.gpu {
            let spec = oomph_gpus::parse_spec(name)?;
            let gpu = spec.found.gpu;
            return Ok(Gpus {
                place: Place {
                    machine: format!("virtual {}", gpu.id),
                    free_bytes: self.memory.unwrap_or(gpu.memory.total_bytes),
                },
                spec,
                real: false,
            });
        }
        if self.memory.is_some() {
            bail!(
                "--memory is the capacity of a virtual GPU; on this machine's own GPU --fit takes what is free there. To leave some of it, give --margin; for a virtual GPU, give --gpu"
            );
        }
        let found = machine::gpus(&Visibility::of_environment())?;
        // A script uses the first that it sees, and a launcher all.
        let used = if self.program.launches() {
            &found[..]
        } else {
            &found[..1]
        };
        let least = |gpu: &&MachineGpu| gpu.free_bytes;
        let gpu = used.iter().min_by_key(least).context("no GPU")?;
        if gpu.reported.listed().is_none() && !self.quiet {
            eprintln!(
                "note: the catalogue has no {}: it is rehearsed on a {} with what the driver says of this one",
                gpu.reported.name,
                gpu.reported.relative().id
            );
        }
        let total = gpu.reported.total_bytes;
        if gpu.free_bytes < total / 2 && !self.quiet {
            eprintln!(
                "note: others hold {} of this GPU's {}",
                format_bytes(total.saturating_sub(gpu.free_bytes)),
                format_bytes(total)
            );
        }
        Ok(Gpus {
            spec: gpu.reported.spec(used.len() as u32),
            place: Place {
                machine: gpu.uuid.clone(),
                free_bytes: gpu.free_bytes,
            },
            real: true,
        })
    }

    /// The file of this job in the user's cache.
    fn file(&self, gpu: &GpuSpec) -> Option<PathBuf> {
        let Some(cache) = cache_directory() else {
            eprintln!("note: there is no home directory: the plan is not kept for the next run");
            return None;
        };
        let argv = words(self.program.argv());
        let packages = packages::packages(self.host);
        let mut options = self.search.options();
        options.push(("steps", self.steps.to_string()));
        options.push(("unknown", self.recording.unknown.clone()));
        options.push(("unsupported", self.recording.unsupported.to_string()));
        for name in oomph_allocator::VARIABLES {
            options.push((name, std::env::var(name).unwrap_or_default()));
        }
        let key = Subject {
            directory: &std::env::current_dir().unwrap_or_default(),
            argv: &argv,
            script_sha256: &plan_job(self.program.script_argv()).sha256,
            gpu: &format!("{}:{}", gpu.found.gpu.id, gpu.count),
            packages: &packages,
            options: &options,
        };
        Some(cache.join("plans").join(format!("{}.json", key.key())))
    }

    fn search(
        &self,
        gpus: &Gpus,
        directory: RunDirectory,
        kept: &mut Kept,
        room: &Room,
        stop: &oomph_plan::Stop,
    ) -> anyhow::Result<Decision> {
        // `oomph clean` leaves the directory alone between two runs, too.
        let _lock = directory.lock();
        let scene = Scene {
            job: plan_job(self.program.script_argv()),
            place: &gpus.place,
            kept,
            room: *room,
        };
        if self.program.launches() {
            let ranks = Job {
                gpu: Some(VirtualGpu {
                    total_bytes: room.memory_bytes,
                    ..VirtualGpu::new(gpus.spec.clone())
                }),
                recording: self.recording.clone(),
                ..Job::new(self.host, self.program.clone())
            };
            return rehearsal::rehearse_ranks(&ranks, &directory, self.steps, stop, scene);
        }
        let script = self.program.argv().to_vec();
        let (gpu, memory) = (gpus.spec.clone(), room.memory_bytes);
        let wanted = (self.search).wanted(&script, gpu, memory, self.steps, stop.clone())?;
        let mut attempts = Watched::new(
            ScriptAttempts {
                gpu: gpus.spec.clone(),
                total_bytes: memory,
                unknown: self.recording.unknown.clone(),
                unsupported: self.recording.unsupported,
                inference: self.search.inference,
                directory,
                timeout: None,
                stop: stop.clone(),
                forks: Arc::default(),
                alone: false,
                slower: 1.0,
                script,
            },
            self.quiet,
        );
        let decision = rehearsal::search(&mut attempts, wanted, scene);
        attempts.wipe();
        decision
    }
}

impl Rehearsal {
    /// The plan, unless the job runs as it is.
    pub(crate) fn plan(&self) -> Option<&PlanFile> {
        self.chosen.plan()
    }

    /// Where the plan is kept.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Notes that the run begins.
    pub(crate) fn begins(&self, directory: &RunDirectory) {
        let Some(file) = &self.file else {
            return;
        };
        let Ok(directory) = directory.canonical() else {
            return;
        };
        let mut kept = read(file);
        kept.begins(Started {
            machine: self.place.machine.clone(),
            directory: directory.path().to_owned(),
            free_bytes: self.place.free_bytes,
            planned: self.chosen.entry.peak,
        });
        write(Some(file), &kept);
    }

    /// Notes what the run used. What others held of its GPU meanwhile is taken out of its record.
    pub(crate) fn ended(&self, directory: &RunDirectory, record: &mut Record, verdict: Verdict) {
        let mut free = Free {
            before: self.place.free_bytes,
            after: Some(self.place.free_bytes),
        };
        if self.real {
            let now = machine::gpus(&Visibility::of_environment()).unwrap_or_default();
            let mut gpus = now.iter().filter(|gpu| gpu.uuid == self.place.machine);
            free.after = gpus.next().map(|gpu| gpu.free_bytes);
        }
        let (planned, machine) = (self.chosen.entry.peak, &self.place.machine);
        let run = RealRun::of(record, verdict, free, planned, machine);
        if self.real {
            for device in &mut record.devices {
                let others = device.total_bytes.saturating_sub(free.before);
                device.outside_bytes = device.outside_bytes.saturating_sub(others);
                device.peak_used_bytes = device.peak_used_bytes.saturating_sub(others);
            }
        }
        if let (Some(file), Ok(directory)) = (&self.file, directory.canonical()) {
            let mut kept = read(file);
            kept.ended(directory.path(), run);
            write(Some(file), &kept);
        }
    }

    /// What the run took teaches of the machine, if it is the rehearsed job as it is on the machine's own GPU.
    pub(crate) fn teach(&self, record: &Record) {
        let Some(place) = &self.rehearsed else { return };
        // What the net did took time that says nothing of the machine.
        if !self.real || self.chosen.entry.answer != Answer::AsItIs || record.net_bytes > 0 {
            return;
        }
        // A run is worth more than what it teaches.
        let learned = (|| match place.record()? {
            Some(rehearsed) => calibrate::learn(self.gpu, &rehearsed, record),
            None => Ok(false),
        })();
        if let Err(error) = learned {
            eprintln!("warning: what the run took is not kept: {error:#}");
        }
    }

    /// The same for programs.
    pub(crate) fn note(&self) -> Note<'_> {
        let entry = &self.chosen.entry;
        Note {
            answer: entry.answer,
            free_bytes: self.chosen.free_bytes,
            planned_for_bytes: entry.memory_bytes,
            planned: entry.peak,
            what: &entry.what,
            known: self.chosen.known,
            last_run: self.chosen.last.as_ref(),
        }
    }
}

/// What is kept of a job; nothing if that cannot be read, which is said.
fn read(file: &Path) -> Kept {
    let damaged = |why: String| {
        eprintln!(
            "oomph: {}: this is no file of plans ({why}); planning anew",
            file.display()
        );
        Kept::default()
    };
    match fs::read(file) {
        Ok(text) => Kept::parse(&text).unwrap_or_else(damaged),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Kept::default(),
        Err(error) => damaged(error.to_string()),
    }
}

fn write(file: Option<&Path>, kept: &Kept) {
    if let Some(file) = file
        && let Err(error) = write_cache(file, &kept.text())
    {
        eprintln!(
            "oomph: the plan is not kept for the next run: cannot write {}: {error}",
            file.display()
        );
    }
}
