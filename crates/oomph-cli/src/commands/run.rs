//! `oomph run`: a script on a virtual or a real GPU, and where its memory goes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use oomph_bytes::{format_bytes, parse_capacity};
use oomph_explain::{Cause, Explanation, Fix};
use oomph_fit::machine;
use oomph_gpus::MAX_GPUS;
use oomph_plan::sharding::USUAL_HOST;
use oomph_plan::{PlanFile, Versions, by_hand};
use oomph_report::ending::Ended;
use oomph_report::finding::HeldFinding;
use oomph_report::run::run_report;
use oomph_report::terminal::width;
use oomph_run::Record;
use oomph_run::processes::Held;
use oomph_run::ranks::RankSummary;
use oomph_run::record::Framework;
use oomph_run::summary::{AppliedPlan, Assumption, Peak, Summary, Verdict, summarize};
use oomph_run::time::step_time;
use oomph_trace::Trace;

use super::explain::Found;
use crate::commands::calibrate;
use crate::ended;
use crate::explained::{self, About};
use crate::page;
use crate::rehearse::{Asked, Note, Rehearsed};
use crate::script::{Script, plan_job};
use crate::search::Search;
use crate::{ExitStatus, json, stderr, stdout, written};
use oomph_job::settings::{Recording, UNKNOWN};
use oomph_job::{
    Attempt, Job, Program, RANK_TIMEOUT_SECONDS, RunDirectory, RunFile, VirtualGpu, Watch, host,
    ranks, shell_line, signals,
};

/// Arguments of `oomph run`.
#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
#[command(
    mut_args(of_fit),
    after_help = "Examples:\n  oomph run --gpu rtx-4090 train.py --epochs 1     does it fit, and where does the memory go?\n  oomph run --gpu t4 --steps 3 -m mypackage.train  a module, three optimizer steps\n  oomph run --gpu h200 --memory 24GiB train.py     another capacity\n  oomph run train.py                               on the real GPU of this machine\n  oomph run --fit train.py                         the same, with a plan if it needs one\n  oomph run --gpu h100-80gb:8 -- torchrun --nproc-per-node 8 train.py\n                                                   eight ranks, each recorded\n  oomph run --gpu h100-80gb --world-size 1024 --ranks 0,511 train.py\n                                                   two ranks of a large job, without the others\n\noomph's options come before the script; what follows it belongs to the script. A notebook (.ipynb) is run cell by cell, in one process.\n\nSizes: 10GiB or 10G (2^30 bytes each), 10GB (10^9), 10240MiB.\n\nExit status: 0 it fits; 1 the script failed; 2 wrong usage, or a plan that cannot be applied; 3 out of memory, or --fit found nothing that fits; 4 the script ended too early for a verdict, or --max-time ended the search of --fit; 5 the peak is above --max-peak; 130 Ctrl-C ended the search of --fit."
)]
pub struct Args {
    /// The virtual GPU, such as rtx-4090 or a100-80gb:2; without it, this machine's GPU
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,

    /// Use this much memory instead of the GPU's, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_capacity)]
    memory: Option<u64>,

    /// Fail with exit status 5 if the peak is above SIZE, such as 20GiB: for CI
    #[arg(long, value_name = "SIZE", value_parser = parse_capacity)]
    max_peak: Option<u64>,

    /// End the script cleanly after N optimizer steps (forward passes, if it has no optimizer)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,

    /// How many comparisons of values that are not computed count as true: half, all or none
    #[arg(long, value_name = "RULE", default_value = UNKNOWN, value_parser = ["half", "all", "none"])]
    unknown: String,

    /// Compute all values on the CPU, in SIZE of host memory, such as 4GiB; without it, small and integral ones
    #[arg(long, value_name = "SIZE", value_parser = parse_capacity)]
    compute: Option<u64>,

    /// Where to keep the record [default: oomph-report/SCRIPT-N]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,

    /// Write the result as JSON to FILE, or to stdout for `-` (the script's output then goes to stderr)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print nothing but the script's own output
    #[arg(short, long)]
    quiet: bool,

    /// Print more: modules, operators, phases, all assumptions
    #[arg(short, long)]
    verbose: bool,

    /// Run with a version of torch that is not known to work on the virtual GPU
    #[arg(long)]
    unsupported: bool,

    /// On a virtual GPU, keep the files that the script writes, also over those that are there
    #[arg(long, requires = "gpu")]
    keep_files: bool,

    /// Apply a plan from oomph fit to the script
    #[arg(long, value_name = "FILE", env = oomph_job::settings::variables::PLAN, hide_env_values = true)]
    plan: Option<PathBuf>,

    /// When GPU memory runs out, let the job go on in host memory, more slowly
    #[arg(long)]
    net: bool,

    /// On a GPU, do not let the job go on in host memory
    #[arg(long, help_heading = WITH_FIT, conflicts_with = "net")]
    no_net: bool,

    /// After running out of memory, do not run again to measure how much would be enough
    #[arg(long)]
    no_measure: bool,

    /// Run only some ranks of a job of N; the others are assumed to behave like them
    #[arg(long, value_name = "N", requires = "gpu", value_parser = clap::value_parser!(u32).range(1..))]
    world_size: Option<u32>,

    /// With --world-size: the ranks to run, one after the other
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        requires = "world_size",
        default_value = "0"
    )]
    ranks: Vec<u32>,

    /// Seconds that a rank may do nothing while others wait for it
    #[arg(long, value_name = "SECONDS", default_value_t = RANK_TIMEOUT_SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,

    /// Seconds that the script may go on after SIGTERM or SIGHUP, to save its state
    #[arg(long, value_name = "SECONDS", default_value_t = signals::GRACE.as_secs())]
    grace: u64,

    /// Seconds without a pass after which the job is said to hang; 0: never [default: 20 usual steps, a minute at least]
    #[arg(long, value_name = "SECONDS")]
    stall: Option<u64>,

    /// Do not write ahead what the job does and holds, for the case that it is killed
    #[arg(long)]
    no_black_box: bool,

    /// Start each rank by itself instead of forking all from one process that has imported torch
    #[arg(long)]
    no_fork: bool,

    /// Rehearse on a virtual copy of this machine's GPU with the memory that is free now, then run, with a plan if one is needed
    #[arg(long, conflicts_with_all = ["plan", "world_size"])]
    fit: bool,

    /// Plan anew, and forget earlier searches and runs of this job
    #[arg(long, help_heading = WITH_FIT)]
    no_cache: bool,

    /// Optimizer steps of each rehearsal (passes, if it infers); --steps are those of the run
    #[arg(long, value_name = "N", help_heading = WITH_FIT, default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..))]
    fit_steps: u32,

    #[command(flatten)]
    script: Script,

    // Last: its heading holds for all that follows.
    #[command(flatten, next_help_heading = WITH_FIT)]
    search: Search,
}

/// The heading of options that only `--fit` reads.
const WITH_FIT: &str = "With --fit";

/// Options of the search are refused without `--fit`.
fn of_fit(argument: clap::Arg) -> clap::Arg {
    if argument.get_help_heading() == Some(WITH_FIT) {
        argument.requires("fit")
    } else {
        argument
    }
}

impl Args {
    /// Runs the script, and prints where its memory went.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let status = self.run_script()?;
        // A script that Ctrl-C ended did not fail. One that handles it may still end well, or out of memory.
        Ok(match status {
            ExitStatus::Failed if signals::interrupted() => ExitStatus::Interrupted,
            status => status,
        })
    }

    fn run_script(self) -> anyhow::Result<ExitStatus> {
        self.script.warn_of_strays();
        json::expect_place(self.json.as_deref())?;
        let rehearsal = match self.rehearse()? {
            Some(Rehearsed::End(status)) => return Ok(status),
            Some(Rehearsed::Run(rehearsal)) => Some(rehearsal),
            None => None,
        };
        let plan = match &rehearsal {
            Some(rehearsal) => rehearsal.plan().cloned(),
            None => self.plan()?,
        };
        let mut job = self.job(plan.as_ref())?;
        let mut warnings = plan.as_ref().map_or_else(Vec::new, |plan| {
            let argv = job.program.script_argv();
            plan.mismatches(&plan_job(argv), &this_gpu(&job), &Versions::default())
        });
        for warning in &warnings {
            eprintln!("warning: {warning}");
        }
        let directory = RunDirectory::choose(self.out.as_deref(), &job.program)?;
        if !self.quiet
            && let Some(note) = job.gpu.as_ref().and_then(|gpu| gpu.spec.note())
        {
            eprintln!("note: {note}");
        }
        let total = job.total_bytes();
        if let Some(rehearsal) = &rehearsal {
            rehearsal.begins(&directory);
        }
        let (mut attempt, all) = self.attempt(&job, &directory, total, None, "running")?;
        if !self.quiet {
            written::say(&attempt.written);
        }
        if let (Some(rehearsal), Some(record)) = (&rehearsal, &mut attempt.record) {
            let verdict = summarize(record, None, total).verdict;
            rehearsal.ended(&directory, record, verdict);
            rehearsal.teach(record);
        }
        let ended = ended_in(&directory, &attempt)?;
        let Some(record) = &attempt.record else {
            return self.without_record(&directory, &attempt, &ended);
        };
        let mut summary = summarize(record, attempt.trace.as_ref(), total);
        if !all.is_empty() {
            summary.script = job
                .program
                .argv()
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            ranks::join(&mut summary, all, attempt.failure.clone(), attempt.status);
            if self.world_size.is_some() {
                summary.assumptions.push(self.absent());
            }
        }
        summary.join_processes(&attempt.processes);
        if let Some(gpu) = &job.gpu {
            // A script that ended before it asked for the GPU did not learn its name.
            if summary.gpu.name.is_empty() {
                summary.gpu.name.clone_from(&gpu.spec.found.gpu.name);
            }
            add_time(&mut summary, record, gpu);
        }
        if let Some(one) = ended::first(&ended)
            && summary.verdict == Verdict::ScriptFailed
        {
            let left_word = !summary.ranks.is_empty() || record.outcome.kind != "killed";
            summary.ended(one.ending.clone(), left_word);
        }
        if let Some(plan) = &plan {
            let versions = Versions {
                torch: record.torch.clone(),
                ..Versions::default()
            };
            let mut later = plan.mismatches(
                &oomph_plan::PlanJob::default(),
                &oomph_plan::PlanGpu::default(),
                &versions,
            );
            for warning in &later {
                eprintln!("warning: {warning}");
            }
            warnings.append(&mut later);
            let file = rehearsal.as_ref().and_then(|rehearsal| rehearsal.file());
            summary.plan = Some(applied(plan, file.or(self.plan.as_deref()), warnings));
        }
        if summary.verdict == Verdict::Refused {
            let of_rank = summary.ranks.iter().find_map(|rank| rank.blame.as_ref());
            let blame = of_rank.or(record.outcome.blame.as_ref());
            let message = summary.failure.unwrap_or_default();
            summary.failure = Some(by_hand::refusal(&message, blame, &job.recording.levers));
        }
        let grows = summary.growth.is_some();
        let mut unlimited = None;
        if summary.verdict == Verdict::OutOfMemory
            && !grows
            && job.gpu.is_some()
            // XLA plans a program for the memory that there is: without a limit it is another one.
            && !summary.framework.as_ref().is_some_and(Framework::is_jax)
            && !self.no_measure
            && signals::received().is_none()
            && !signals::interrupted()
        {
            unlimited = self.measure(&mut job, &directory, record, &mut summary)?;
        }
        if self.net && summary.framework.is_some() {
            eprintln!(
                "oomph: net: it serves PyTorch's memory; the script's framework gets its own in another way"
            );
        }
        let explained = attempt
            .trace
            .as_ref()
            .map(|trace| Found::from(explain(trace, record, unlimited.as_ref(), &summary)));
        let rehearsed = rehearsal.as_ref().map(|rehearsal| rehearsal.note());
        let complete = self.write(&directory, &summary, explained.as_ref(), rehearsed)?;
        let is_too_much = |most: &u64| summary.peak.used_bytes > *most;
        if let (Some(most), Verdict::Fits | Verdict::NoVerdict) =
            (self.max_peak.filter(is_too_much), summary.verdict)
        {
            eprintln!(
                "oomph: the peak of {} is above --max-peak {}",
                format_bytes(summary.peak.used_bytes),
                format_bytes(most)
            );
            return Ok(ExitStatus::AbovePeak);
        }
        if summary.verdict == Verdict::Refused {
            let reason = summary.failure.as_deref().unwrap_or("no reason was given");
            eprintln!("error: {reason}");
        }
        Ok(match summary.verdict {
            // A verdict whose files are not all there. What went wrong was said.
            Verdict::Fits | Verdict::NoVerdict if !complete => ExitStatus::Error,
            Verdict::Fits => ExitStatus::Success,
            Verdict::OutOfMemory => ExitStatus::Findings,
            Verdict::ScriptFailed => ExitStatus::Failed,
            Verdict::NoVerdict => ExitStatus::NoVerdict,
            Verdict::Refused => ExitStatus::Error,
        })
    }

    fn job(&self, plan: Option<&PlanFile>) -> anyhow::Result<Job> {
        let host = host::get()?;
        let mut program = Program::new(self.script.argv(), host)?;
        let planned = plan.and_then(PlanFile::gpus);
        if let Some(gpus) = planned.filter(|gpus| !(1..=MAX_GPUS).contains(gpus)) {
            bail!("the plan is for {gpus} GPUs; expected 1 to {MAX_GPUS}");
        }
        if let Some(gpus) = planned
            && !program.launches()
            && self.world_size.is_none()
        {
            // A script for one GPU, on the number of GPUs in the plan.
            program = Program::torchrun(host, gpus, program.argv());
        }
        if let Some(world) = self.world_size {
            if program.launches() {
                bail!(
                    "--world-size runs single ranks of a script without its launcher. Give it the script: oomph run --world-size {world} --ranks 0 train.py args…"
                );
            }
            if let Some(rank) = self.ranks.iter().find(|rank| **rank >= world) {
                bail!(
                    "--ranks: there is no rank {rank} in a world size of {world}; ranks count from 0"
                );
            }
        }
        let mut gpu = self
            .gpu
            .as_deref()
            .map(oomph_gpus::parse_spec)
            .transpose()?;
        let mut memory = self.memory;
        if gpu.is_none()
            && !has_real_gpu()
            && let Some(of_plan) = plan.map(|plan| &plan.gpu).filter(|gpu| !gpu.id.is_empty())
        {
            let spec =
                oomph_gpus::parse_spec(&of_plan.id).context("the GPU that the plan names")?;
            if of_plan.memory_bytes > 0 {
                memory = memory.or(Some(of_plan.memory_bytes));
            }
            if !self.quiet {
                eprintln!("note: on {}, the GPU that the plan is for", of_plan.id);
            }
            gpu = Some(spec);
        }
        if gpu.is_none() && memory.is_some() {
            bail!(
                "--memory is the capacity of a virtual GPU: name one with --gpu, such as --gpu rtx-4090"
            );
        }
        // The driver that --fit asked is there.
        if gpu.is_none() && !self.fit && !has_real_gpu() {
            bail!(
                "this machine has no GPU that CUDA can use. Name a virtual one, such as --gpu rtx-4090 (oomph gpus lists them)"
            );
        }
        if self.world_size.is_some()
            && let Some(gpu) = gpu.as_mut().filter(|gpu| gpu.count == 1)
        {
            gpu.count = USUAL_HOST;
        }
        if let (Some(planned), Some(gpu), None) = (planned, gpu.as_mut(), self.world_size) {
            if gpu.count > 1 && gpu.count < planned {
                bail!(
                    "the plan is for {planned} GPUs, and --gpu names {}: give --gpu {}:{planned}",
                    gpu.count,
                    gpu.found.gpu.id
                );
            }
            gpu.count = gpu.count.max(planned);
        }
        let gpu = gpu.map(VirtualGpu::new).map(|gpu| VirtualGpu {
            total_bytes: memory.unwrap_or(gpu.total_bytes),
            rank_timeout: Duration::from_secs(self.patience),
            keeps_files: self.keep_files,
            ..gpu
        });
        Ok(Job {
            net: self.net || gpu.is_none() && self.brings_net(plan, &program),
            gpu,
            recording: Recording {
                steps: self.steps,
                levers: plan.map(|plan| plan.levers.clone()).unwrap_or_default(),
                // What is rehearsed runs here and now, and ends by itself.
                black_box: self.world_size.is_none() && !self.no_black_box,
                ..self.recording()
            },
            watch: Watch {
                live: !self.quiet,
                to_stderr: self.json.as_deref().is_some_and(json::is_stdout),
                grace: Duration::from_secs(self.grace),
                stall: self.stall.map(Duration::from_secs),
                ..Watch::default()
            },
            ..Job::new(host, program)
        })
    }

    /// Whether `--fit` brings the net for a real GPU: where one process uses it, and PyTorch gets memory as the net serves it.
    fn brings_net(&self, plan: Option<&PlanFile>, program: &Program) -> bool {
        let get = |name: &str| std::env::var(name).ok();
        let levers = plan.map_or(&[][..], |plan| &plan.levers);
        let of_plan = oomph_plan::levers::environment(levers, &get);
        let mut settings = oomph_allocator::VARIABLES
            .into_iter()
            .filter_map(get)
            .chain(of_plan.into_iter().map(|(_, value)| value));
        self.fit
            && !self.no_net
            && !program.launches()
            && settings.all(|conf| oomph_allocator::other_than_cuda_malloc(&conf).is_none())
    }

    /// What the options say of the recording.
    fn recording(&self) -> Recording {
        Recording {
            unknown: self.unknown.clone(),
            compute: self.compute,
            unsupported: self.unsupported,
            fork: !self.no_fork,
            ..Recording::default()
        }
    }

    /// With `--fit`: how to run the script.
    fn rehearse(&self) -> anyhow::Result<Option<Rehearsed>> {
        if !self.fit {
            return Ok(None);
        }
        let host = host::get()?;
        let asked = Asked {
            search: &self.search,
            gpu: self.gpu.as_deref(),
            memory: self.memory,
            steps: self.fit_steps,
            recording: &self.recording(),
            anew: self.no_cache,
            quiet: self.quiet,
            program: &Program::new(self.script.argv(), host)?,
            host,
        };
        asked.rehearse().map(Some)
    }

    /// Runs the job once: all ranks, or the requested ones one after the other.
    fn attempt(
        &self,
        job: &Job,
        directory: &RunDirectory,
        limit: Option<u64>,
        log: Option<&Path>,
        doing: &str,
    ) -> anyhow::Result<(Attempt, Vec<RankSummary>)> {
        let rehearsed = self.world_size.map(|size| (size, &self.ranks[..]));
        ranks::attempt(job, rehearsed, directory, limit, log, doing)
    }

    /// The assumptions of a rehearsal.
    fn absent(&self) -> Assumption {
        let world = self.world_size.unwrap_or(1);
        Assumption {
            kind: "ranks".to_owned(),
            what: format!(
                "{} of {world} ranks did not run: they are assumed to send what this rank sends",
                u64::from(world).saturating_sub(self.ranks.len() as u64)
            ),
            location: None,
            count: 1,
        }
    }

    fn plan(&self) -> anyhow::Result<Option<PlanFile>> {
        let Some(path) = &self.plan else {
            return Ok(None);
        };
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the plan {}", path.display()))?;
        let plan = PlanFile::parse(&text).with_context(|| path.display().to_string())?;
        let job = plan_job(&self.script.argv());
        if let Some(written) = &plan.written
            && written.sha256 == job.sha256
            && !written.applies
        {
            let script = job.script;
            bail!(
                "{} is in {script} already, by oomph fit --write: run it without --plan, or take it out first (oomph fit --undo {script})",
                path.display()
            );
        }
        Ok(Some(plan))
    }

    /// The process did not live to write its record.
    fn without_record(
        &self,
        directory: &RunDirectory,
        attempt: &Attempt,
        all: &[Ended],
    ) -> anyhow::Result<ExitStatus> {
        let status = attempt.status;
        for place in [directory, &directory.rank(self.ranks[0])] {
            if let Some(reason) = place.refusal() {
                bail!("{reason}");
            }
        }
        let one = ended::first(all);
        let place = one.map_or_else(
            || directory.clone(),
            |one| RunDirectory::at(directory.path().join(&one.process)),
        );
        // The snapshot that was taken before is still there.
        let captured = place.file(RunFile::Held);
        if captured.is_file()
            && let Ok((trace, problems)) = oomph_job::files::read_snapshot(&captured)
        {
            let mut explanation =
                oomph_explain::explain(&trace, &oomph_explain::Options::default());
            explanation.add_problems(&problems);
            let found = Found::from(explanation);
            directory.write_json(RunFile::Explanation, &found)?;
            let page = page::of_explanations(
                [(captured.as_path(), &trace, &found.explanation)],
                &oomph_explain::Options::default(),
                false,
            )?;
            directory.write(RunFile::Page, page.render().as_bytes())?;
            if !self.quiet {
                eprintln!("oomph: the script ended ({status}) before its record was written");
                let mut text = String::new();
                if let Some(one) = one {
                    text.push_str(&oomph_report::ending::ended(one, all, width()));
                    text.push('\n');
                }
                text.push_str(&super::explain::render_one(&found, width()));
                if self.json.as_deref().is_some_and(json::is_stdout) {
                    stderr(&text);
                } else {
                    stdout(&text)?;
                }
            }
            return Ok(if found.explanation.out_of_memory {
                ExitStatus::Findings
            } else {
                ExitStatus::Failed
            });
        }
        if let Some(one) = one
            && !self.quiet
            && status.code().is_none()
        {
            stderr(&oomph_report::ending::ended(one, all, width()));
        }
        let held = &attempt.processes.cards.processes;
        if let Some(signal) = signals::received() {
            eprintln!("oomph: {signal} ended the script before there was a record");
        } else if signals::interrupted() {
            eprintln!("oomph: Ctrl-C ended the script before there was a record");
        } else if status.code().is_none() {
            let call = held.iter().find_map(|one| one.failed_call.as_deref());
            let call = call.map_or_else(String::new, |call| {
                format!("; the last call that failed: {call}")
            });
            eprintln!(
                "oomph: the script was killed ({status}) before its record was written{call}"
            );
        }
        if let Some(most) = attempt.processes.cards.peaks.iter().max()
            && !held.is_empty()
        {
            let most = format_bytes(*most);
            // Of a process that was killed its black box was told above. One that became another program has one, too.
            if one.is_some() && status.code().is_none() {
                eprintln!("oomph: the job used {most} of GPU memory");
            } else {
                eprintln!(
                    "oomph: {} ran without oomph's recorder and used {most} of GPU memory",
                    processes(held)
                );
            }
            return Ok(if held.iter().any(|one| one.refused_bytes.is_some()) {
                eprintln!("oomph: out of memory");
                ExitStatus::Findings
            } else if status.success() {
                ExitStatus::NoVerdict
            } else {
                ExitStatus::Failed
            });
        }
        match status.code() {
            // The script imported nothing that is recorded, or failed before.
            Some(0) => {
                // All but torch are recorded on virtual GPUs only.
                let frameworks = if self.gpu.is_some() {
                    "torch, JAX, TensorFlow, CuPy, Numba or ONNX Runtime"
                } else {
                    "torch"
                };
                eprintln!(
                    "oomph: the script ended without importing {frameworks}: there is nothing to report"
                );
                Ok(ExitStatus::Success)
            }
            _ => Ok(ExitStatus::Failed),
        }
    }

    /// Runs the script again on the same GPU without limit, and puts what it needed into `summary`.
    fn measure(
        &self,
        job: &mut Job,
        directory: &RunDirectory,
        failed: &Record,
        summary: &mut Summary,
    ) -> anyhow::Result<Option<Attempt>> {
        if summary.engine.is_some() {
            // It takes what it may use of the GPU, whatever that is.
            return Ok(None);
        }
        if !self.quiet {
            eprintln!(
                "oomph: out of memory; running again without a limit to see how much is needed…"
            );
        }
        let place = RunDirectory::prepare(directory.unlimited().path())?;
        job.recording.black_box = false;
        // One step beyond the one that failed shows the optimizer's state too; three show a steady step.
        // A job without an optimizer counts its passes.
        let step = summary.oom.as_ref().map_or(1, |oom| oom.step);
        let reached = step.max(failed.inferences + 1);
        job.recording.steps.get_or_insert(reached.max(3));
        let (attempt, all) = self.attempt(
            job,
            &place,
            None,
            Some(&place.file(RunFile::Log)),
            "running without a limit",
        )?;
        if signals::interrupted() {
            // `oomph explain` would take it for the whole job.
            let _ = fs::remove_dir_all(place.path());
            return Ok(None);
        }
        let measured = attempt
            .record
            .as_ref()
            .filter(|record| record.oom.as_ref().is_none_or(|oom| !oom.raised));
        let Some(record) = measured else {
            return Ok(None);
        };
        let mut needed = summarize(record, attempt.trace.as_ref(), job.total_bytes());
        if let Some(trace) = &attempt.trace
            && all.is_empty()
        {
            needed.with_a_limit(trace, record);
        }
        needed.join_processes(&attempt.processes);
        summary.measured_without_limit(needed, &all);
        Ok(Some(attempt))
    }

    /// Writes and prints the result; whether the report could be written, too.
    fn write(
        &self,
        directory: &RunDirectory,
        summary: &Summary,
        explained: Option<&Found>,
        rehearsed: Option<Note>,
    ) -> anyhow::Result<bool> {
        let failed = explained.filter(|_| summary.verdict == Verdict::OutOfMemory);
        let findings = explained.map_or(&[][..], |explained| &explained.findings);
        let explanation = failed.map(|explained| &explained.explanation);
        let result = Output {
            summary,
            cause: explanation.and_then(|found| found.cause.as_ref()),
            fixes: explanation.map_or(&[][..], |found| &found.fixes),
            findings,
            fit: rehearsed,
        };
        directory.write_json(RunFile::Summary, &result)?;
        if let Some(explained) = failed {
            directory.write_json(RunFile::Explanation, explained)?;
        }
        let report = page::after_run(directory);
        if let Some(target) = &self.json {
            json::write(target, &result)?;
        }
        if !self.quiet && !self.json.as_deref().is_some_and(json::is_stdout) {
            stdout(&run_report(
                summary,
                explanation,
                findings,
                report.as_deref().unwrap_or(directory.path()),
                width(),
                self.verbose,
                self.next(summary).as_deref(),
            ))?;
        }
        Ok(report.is_some())
    }

    /// The command that looks for a plan, if one may help.
    fn next(&self, summary: &Summary) -> Option<String> {
        let is_jax = |other: &Framework| other.is_jax() && self.gpu.is_some();
        let is_for_plans = summary.verdict == Verdict::OutOfMemory
            && summary.growth.is_none()
            && summary.framework.as_ref().is_none_or(is_jax)
            && summary.ranks.is_empty()
            && self.plan.is_none()
            && !self.fit;
        if !is_for_plans {
            return None;
        }
        let mut words = vec!["oomph".to_owned()];
        match &self.gpu {
            Some(gpu) => words.extend(["fit", "--gpu", gpu].map(str::to_owned)),
            None => words.extend(["run", "--fit"].map(str::to_owned)),
        }
        if let Some(memory) = self.memory {
            words.extend(["--memory".to_owned(), format!("{memory}B")]);
        }
        // A launcher is not planned for.
        let script = self.script.of_python("").ok()?;
        words.extend(
            script
                .iter()
                .map(|word| word.to_string_lossy().into_owned()),
        );
        Some(shell_line(words.iter().map(String::as_str)))
    }
}

/// How long a step takes on a virtual GPU, or why nobody knows.
fn add_time(summary: &mut Summary, record: &Record, gpu: &VirtualGpu) {
    // The clock is PyTorch's, and the GPU's.
    if summary.framework.is_some() || summary.peak.used_bytes == 0 {
        return;
    }
    let here = calibrate::Here::read();
    match here.figures(gpu.spec.found.gpu) {
        Ok(figures) => {
            let host = here.host();
            summary.time = step_time(record, &figures, &host)
                .map(|time| time.with_parts(record, &figures, &host));
        }
        Err(reason) => summary.time_unknown = Some(reason.to_string()),
    }
}

/// How the job's processes ended. What only this process saw is kept.
fn ended_in(directory: &RunDirectory, attempt: &Attempt) -> anyhow::Result<Vec<Ended>> {
    let ended = ended::of_run(directory, Some(attempt.status));
    if directory.stacks().is_none() {
        let _ = fs::remove_file(directory.file(RunFile::Stacks));
    }
    for (_, rank) in directory.ranks() {
        if rank.stacks().is_none() {
            let _ = fs::remove_file(rank.file(RunFile::Stacks));
        }
    }
    if let Some(one) = ended.iter().find(|one| one.process.is_empty() && !one.well)
        && attempt.status.code().is_none()
    {
        directory.write(RunFile::Ending, one.ending.how.as_bytes())?;
    }
    Ok(ended)
}

/// The plan as a result has it.
fn applied(plan: &PlanFile, file: Option<&Path>, warnings: Vec<String>) -> AppliedPlan {
    AppliedPlan {
        file: file.map_or_else(String::new, |path| path.display().to_string()),
        planned: plan.planned.as_ref().map(|planned| Peak {
            allocated_bytes: planned.allocated_bytes,
            reserved_bytes: planned.reserved_bytes,
            used_bytes: planned.used_bytes,
            lower_bound: false,
        }),
        warnings,
    }
}

/// The GPU as plan files state it; empty for the machine's own.
fn this_gpu(job: &Job) -> oomph_plan::PlanGpu {
    oomph_plan::PlanGpu {
        id: job
            .gpu
            .as_ref()
            .map(|gpu| gpu.spec.found.gpu.id.clone())
            .unwrap_or_default(),
        memory_bytes: job.total_bytes().unwrap_or(0),
    }
}

/// The summary, why memory ran out and what would help, and what the linter finds on the lines that hold memory.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Output<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    cause: Option<&'a Cause>,
    fixes: &'a [Fix],
    findings: &'a [HeldFinding],
    #[serde(skip_serializing_if = "Option::is_none")]
    fit: Option<Note<'a>>,
}

/// The processes by their ids.
fn processes(held: &[Held]) -> String {
    let ids: Vec<String> = held.iter().map(|one| one.process.to_string()).collect();
    let s = if ids.len() == 1 { "" } else { "es" };
    format!("process{s} {}", ids.join(", "))
}

/// Whether there are files of a driver.
pub(crate) fn has_driver() -> bool {
    let files = ["/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"];
    files.iter().any(|file| Path::new(file).exists())
}

/// Whether the driver of a real GPU is there: its files, or what else can be asked as one.
fn has_real_gpu() -> bool {
    has_driver()
        || machine::gpus(&machine::Visibility::of_environment()).is_ok_and(|gpus| !gpus.is_empty())
}

fn explain(
    trace: &Trace,
    record: &Record,
    unlimited: Option<&Attempt>,
    summary: &Summary,
) -> Explanation {
    let unlimited =
        unlimited.and_then(|attempt| Some((attempt.trace.as_ref()?, attempt.record.as_ref()?)));
    let about = About {
        torch: summary.versions.get("torch").map(String::as_str),
        memory_bytes: summary.gpu.memory_bytes,
        out_of_memory: summary.verdict == Verdict::OutOfMemory,
        short_bytes: summary.oom.as_ref().and_then(|oom| oom.short_bytes),
    };
    explained::explain(trace, record, unlimited, about, None)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        run: Args,
    }

    #[test]
    fn options_of_the_search_need_fit_and_no_others() {
        let parsed = |words: &str| Command::try_parse_from(words.split(' '));
        for words in [
            "run train.py",
            "run -m trainer --lr 3",
            "run --fit train.py",
            "run --fit --margin 5% --max-time 3m --fit-steps 4 --no-cache train.py",
        ] {
            parsed(words).expect(words);
        }
        for option in [
            "--margin 5%",
            "--keep-results",
            "--choose exact",
            "--allow x",
            "--forbid x",
            "--max-time 3m",
            "--inference",
            "--fit-steps 3",
            "--no-cache",
        ] {
            let error = parsed(&format!("run {option} train.py")).expect_err(option);
            assert!(error.to_string().contains("--fit"), "{error}");
        }
        let both = parsed("run --fit --plan p.toml train.py").expect_err("two plans");
        assert_eq!(both.kind(), clap::error::ErrorKind::ArgumentConflict);
    }
}
