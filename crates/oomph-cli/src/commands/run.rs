//! `oomph run`: a script on a virtual or a real GPU, and where its memory goes.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anstream::eprintln;
use anyhow::{Context as _, bail};
use oomph_explain::Explanation;
use oomph_gpus::GpuSpec;
use oomph_plan::sharding::USUAL_HOST;
use oomph_plan::{PlanFile, Versions};
use oomph_report::finding::HeldFinding;
use oomph_report::run::run_report;
use oomph_report::terminal::width;
use oomph_run::Record;
use oomph_run::ranks::RankSummary;
use oomph_run::summary::{Assumption, Peak, Plan, Summary, Verdict, summarize};
use oomph_trace::Trace;
use sha2::{Digest as _, Sha256};

use super::explain::Found;
use crate::cluster::{self, Words};
use crate::host;
use crate::job::{Attempt, Job, Variant, run_directory};
use crate::page;
use crate::script::Script;
use crate::{EXIT_FINDINGS, EXIT_OK, EXIT_SCRIPT_FAILED, EXIT_USAGE, json, run_directory, stdout};

/// Arguments of `oomph run`.
#[derive(Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
#[command(
    after_help = "Examples:\n  oomph run --gpu rtx-4090 train.py --epochs 1    does it fit, and where does the memory go?\n  oomph run --gpu t4 --steps 3 -m mypackage.train  a module, three optimizer steps\n  oomph run --gpu h200 --memory 24GiB train.py     another capacity\n  oomph run train.py                               on the real GPU of this machine\n  oomph run --gpu h100-80gb:8 -- torchrun --nproc-per-node 8 train.py\n                                                   eight ranks, each recorded\n  oomph run --gpu h100-80gb --world-size 1024 --ranks 0,511 train.py\n                                                   two ranks of a cluster, the others absent\n\nOptions end at the script: what follows it is the script's own."
)]
pub struct Args {
    /// The GPU to play, such as rtx-4090 or a100-80gb:2; without it the machine's own is used
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,

    /// Another capacity than the GPU's, such as 10GiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// End the script cleanly after N optimizer steps (forward passes, if it has no optimizer)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,

    /// What comparisons of values that nobody computed give: half, all or none of them true
    #[arg(long, value_name = "RULE", default_value = "half", value_parser = ["half", "all", "none"])]
    unknown: String,

    /// Where to keep the record [default: oomph-report/SCRIPT-N]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,

    /// Write the result as JSON to FILE, or to stdout for `-` (the script's own goes to stderr then)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print nothing but the script's own output
    #[arg(short, long)]
    quiet: bool,

    /// Print more: modules, operators, phases, all assumptions
    #[arg(short, long)]
    verbose: bool,

    /// Run with a version of torch that the virtual GPU is not known to play for
    #[arg(long)]
    unsupported: bool,

    /// Apply a plan of oomph fit to the script
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// After running out of memory, do not run again to measure what would have been enough
    #[arg(long)]
    no_measure: bool,

    /// Run only some ranks of a job of N, without the others, which are taken to be like them
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

    /// How many seconds a rank may do nothing while others wait for it
    #[arg(long, value_name = "SECONDS", default_value_t = cluster::PATIENCE_SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,

    /// Start each rank by itself, instead of forking all from one process that has imported torch
    #[arg(long)]
    no_fork: bool,

    #[command(flatten)]
    script: Script,
}

impl Args {
    /// Runs the script, and prints where its memory went.
    pub fn run(self) -> anyhow::Result<i32> {
        let plan = self.plan()?;
        let mut job = self.job(plan.as_ref())?;
        let mut warnings = plan.as_ref().map_or_else(Vec::new, |plan| {
            let words = if job.launches {
                cluster::own_words(&job.words)
            } else {
                &job.words
            };
            plan.mismatches(&this_job(words), &this_gpu(&job), &Versions::default())
        });
        for warning in &warnings {
            eprintln!("warning: {warning}");
        }
        let directory = run_directory(self.out.as_deref(), &job.words, job.launches)?;
        if !self.quiet
            && let Some(note) = job.gpu.as_ref().and_then(GpuSpec::note)
        {
            eprintln!("note: {note}");
        }
        let total = job.total;
        let (attempt, ranks) = self.attempt(&mut job, &directory, total, None, "running")?;
        let Some(record) = &attempt.record else {
            return self.without_record(&directory, attempt.status);
        };
        let mut summary = summarize(record, attempt.trace.as_ref(), job.total);
        if !ranks.is_empty() {
            summary.script = job
                .words
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            cluster::join(&mut summary, ranks, attempt.failure.clone(), attempt.status);
            if self.world_size.is_some() {
                summary.assumptions.push(self.absent());
            }
        }
        if let Some(plan) = &plan {
            let versions = Versions {
                torch: record.torch.clone(),
                ..Versions::default()
            };
            let mut later = plan.mismatches(
                &oomph_plan::Job::default(),
                &oomph_plan::Gpu::default(),
                &versions,
            );
            for warning in &later {
                eprintln!("warning: {warning}");
            }
            warnings.append(&mut later);
            summary.plan = Some(self.applied(plan, warnings));
        }
        let explained = attempt
            .trace
            .as_ref()
            .map(|trace| Found::from(explain(trace, record, &summary)));
        if summary.verdict == Verdict::OutOfMemory && job.gpu.is_some() && !self.no_measure {
            self.measure(&mut job, &directory, &mut summary)?;
        }
        self.write(&directory, &summary, explained.as_ref())?;
        Ok(match summary.verdict {
            Verdict::Fits => EXIT_OK,
            Verdict::OutOfMemory => EXIT_FINDINGS,
            Verdict::ScriptFailed => EXIT_SCRIPT_FAILED,
            Verdict::Refused => {
                let reason = summary.failure.as_deref().unwrap_or("no reason was given");
                eprintln!("error: {reason}");
                EXIT_USAGE
            }
        })
    }

    fn job(&self, plan: Option<&PlanFile>) -> anyhow::Result<Job> {
        let host = host::get()?;
        let (mut words, mut launches) = match cluster::words(self.script.words(), host)? {
            Words::Script(words) => (words, false),
            Words::Launcher(words) => (words, true),
        };
        let planned = plan.and_then(PlanFile::gpus);
        if let Some(gpus) = planned
            && !launches
            && self.world_size.is_none()
        {
            // A script for one GPU, on as many as the plan says.
            words = cluster::torchrun(host, gpus, &words);
            launches = true;
        }
        if let Some(world) = self.world_size {
            if launches {
                bail!(
                    "--world-size runs single ranks of a script without its launcher. Give it the script: oomph run --world-size {world} --ranks 0 train.py args…"
                );
            }
            if let Some(rank) = self.ranks.iter().find(|rank| **rank >= world) {
                bail!("--ranks: there is no rank {rank} among {world}; they count from 0");
            }
        }
        let mut gpu = self
            .gpu
            .as_deref()
            .map(oomph_gpus::parse_spec)
            .transpose()?;
        let memory = self
            .memory
            .as_deref()
            .map(oomph_gpus::parse_bytes)
            .transpose()?;
        if gpu.is_none() && memory.is_some() {
            bail!(
                "--memory is the capacity of a virtual GPU: name one with --gpu, such as --gpu rtx-4090"
            );
        }
        if gpu.is_none() && !has_real_gpu() {
            bail!(
                "this machine has no GPU that CUDA could use. Name one to play, such as --gpu rtx-4090 (oomph gpus lists them)"
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
        let total = gpu
            .as_ref()
            .map(|spec| memory.unwrap_or(spec.found.gpu.memory.total_bytes));
        Ok(Job {
            host,
            words,
            launches,
            rehearsed: None,
            rank_patience: Duration::from_secs(self.patience),
            fork: !self.no_fork,
            gpu,
            total,
            steps: self.steps,
            levers: plan.map(|plan| plan.levers.clone()).unwrap_or_default(),
            variant: Variant::default(),
            unknown: self.unknown.clone(),
            unsupported: self.unsupported,
            live: !self.quiet,
            patience: None,
            compared: None,
            inference: false,
            to_stderr: self.json.as_deref().is_some_and(json::is_stdout),
        })
    }

    /// Runs the job once: all of it, or the ranks that were asked for one after the other.
    fn attempt(
        &self,
        job: &mut Job,
        directory: &Path,
        limit: Option<u64>,
        log: Option<&Path>,
        doing: &str,
    ) -> anyhow::Result<(Attempt, Vec<RankSummary>)> {
        let rehearsed = self.world_size.map(|size| (size, &self.ranks[..]));
        cluster::attempt(job, rehearsed, directory, limit, log, doing)
    }

    /// What a rehearsal rests on.
    fn absent(&self) -> Assumption {
        let world = self.world_size.unwrap_or(1);
        Assumption {
            kind: "ranks".to_owned(),
            what: format!(
                "{} of {world} ranks did not run: what they would have sent is taken to be like what this rank sends",
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
        Ok(Some(plan))
    }

    fn applied(&self, plan: &PlanFile, warnings: Vec<String>) -> Plan {
        Plan {
            file: self
                .plan
                .as_ref()
                .map(|path| path.display().to_string())
                .unwrap_or_default(),
            planned: plan.planned.as_ref().map(|planned| Peak {
                allocated_bytes: planned.allocated_bytes,
                reserved_bytes: planned.reserved_bytes,
                used_bytes: planned.used_bytes,
            }),
            warnings,
        }
    }

    /// The process did not live to write its record.
    fn without_record(&self, directory: &Path, status: ExitStatus) -> anyhow::Result<i32> {
        let first = directory.join(format!("rank-{}", self.ranks[0]));
        for place in [directory, &first] {
            if let Ok(reason) = fs::read_to_string(place.join("refused.txt")) {
                bail!("{reason}");
            }
        }
        // What was captured at the moment of an out-of-memory error is there all the same.
        let captured = directory.join("failure.pickle");
        if captured.is_file()
            && let Ok((trace, problems)) = oomph_job::files::read_snapshot(&captured)
        {
            let mut explanation =
                oomph_explain::explain(&trace, &oomph_explain::Options::default());
            explanation.add_problems(&problems);
            let found = Found::from(explanation);
            json::write(&directory.join("explanation.json"), &found)?;
            if !self.quiet {
                eprintln!(
                    "oomph: the script ended ({status}) before its record was written; this is \
                     from the moment of its last out-of-memory error"
                );
                let to_stdout = self.json.as_deref().is_some_and(json::is_stdout);
                let text = super::explain::render_one(&found, width());
                if to_stdout {
                    eprintln!("{text}");
                } else {
                    stdout(&text)?;
                }
            }
            return Ok(EXIT_FINDINGS);
        }
        match status.code() {
            // The script never came to import torch, or failed before.
            Some(0) => {
                eprintln!(
                    "oomph: the script ended without importing torch: there is nothing to report"
                );
                Ok(EXIT_OK)
            }
            Some(_) => Ok(EXIT_SCRIPT_FAILED),
            None => {
                eprintln!("oomph: the script was killed ({status}) before its record was written");
                Ok(EXIT_SCRIPT_FAILED)
            }
        }
    }

    /// Runs the script again on the same GPU without limit, and puts what it needed into `summary`.
    fn measure(
        &self,
        job: &mut Job,
        directory: &Path,
        summary: &mut Summary,
    ) -> anyhow::Result<()> {
        if !self.quiet {
            eprintln!(
                "oomph: out of memory; running again without a limit to see how much is needed…"
            );
        }
        let place = directory.join("unlimited");
        run_directory::prepare(&place)?;
        // One step beyond the one that failed shows the optimizer's state too; three make a rhythm.
        let failed = summary.oom.as_ref().map_or(1, |oom| oom.step);
        job.steps = Some(job.steps.unwrap_or_else(|| failed.max(3)));
        let (attempt, ranks) = self.attempt(
            job,
            &place,
            None,
            Some(&place.join("output.log")),
            "running without a limit",
        )?;
        let measured = attempt
            .record
            .as_ref()
            .filter(|record| record.oom.as_ref().is_none_or(|oom| !oom.raised));
        let Some(record) = measured else {
            return Ok(());
        };
        let needed = summarize(record, attempt.trace.as_ref(), job.total);
        for rank in &mut summary.ranks {
            if let Some(measured) = ranks.iter().find(|measured| measured.rank == rank.rank) {
                rank.peak = measured.peak;
                rank.by_category.clone_from(&measured.by_category);
            }
        }
        summary.outlier = oomph_run::ranks::outlier(&summary.ranks);
        if let Some(oom) = &mut summary.oom {
            oom.short_bytes = Some(
                needed
                    .peak
                    .used_bytes
                    .saturating_sub(summary.gpu.memory_bytes),
            );
            oom.module = oom.module.take().filter(|module| !module.is_empty());
        }
        summary.peak = needed.peak;
        summary.by_category = needed.by_category;
        summary.modules = needed.modules;
        summary.operators = needed.operators;
        summary.phases = needed.phases;
        summary.timeline = needed.timeline;
        summary.steps = needed.steps;
        summary.peak_phase = needed.peak_phase;
        summary.peak_step = needed.peak_step;
        summary.gpu.usable_bytes = needed.gpu.usable_bytes;
        for assumption in needed.assumptions {
            if !summary
                .assumptions
                .iter()
                .any(|known| known.what == assumption.what && known.location == assumption.location)
            {
                summary.assumptions.push(assumption);
            }
        }
        Ok(())
    }

    fn write(
        &self,
        directory: &Path,
        summary: &Summary,
        explained: Option<&Found>,
    ) -> anyhow::Result<()> {
        let failed = explained.filter(|_| summary.verdict == Verdict::OutOfMemory);
        let findings = explained.map_or(&[][..], |explained| &explained.findings);
        let result = Output { summary, findings };
        json::write(&directory.join("summary.json"), &result)?;
        if let Some(explained) = failed {
            json::write(&directory.join("explanation.json"), explained)?;
        }
        let report = page::after_run(directory);
        if let Some(target) = &self.json {
            json::write(target, &result)?;
        }
        if !self.quiet && !self.json.as_deref().is_some_and(json::is_stdout) {
            stdout(&run_report(
                summary,
                failed.map(|explained| &explained.explanation),
                findings,
                report.as_deref().unwrap_or(directory),
                width(),
                self.verbose,
            ))?;
        }
        Ok(())
    }
}

/// The script and its arguments as plan files state them, with the script's digest.
pub(super) fn this_job(words: &[OsString]) -> oomph_plan::Job {
    let mut words = words.iter().map(|word| word.to_string_lossy());
    let mut script = words.next().unwrap_or_default().into_owned();
    if script == "-m"
        && let Some(module) = words.next()
    {
        script = format!("-m {module}");
    }
    oomph_plan::Job {
        // A module's file is not known before Python finds it.
        sha256: fs::read(&script).map_or_else(|_| String::new(), |text| digest(&text)),
        script,
        arguments: words.map(std::borrow::Cow::into_owned).collect(),
    }
}

fn digest(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The GPU as plan files state it; empty for the machine's own.
fn this_gpu(job: &Job) -> oomph_plan::Gpu {
    oomph_plan::Gpu {
        id: job
            .gpu
            .as_ref()
            .map(|spec| spec.found.gpu.id.clone())
            .unwrap_or_default(),
        memory_bytes: job.total.unwrap_or(0),
    }
}

/// The summary, and what the linter finds on the lines that hold memory.
#[derive(serde::Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    summary: &'a Summary,
    findings: &'a [HeldFinding],
}

/// Whether the driver of a real GPU is there.
fn has_real_gpu() -> bool {
    Path::new("/proc/driver/nvidia/version").exists()
        || Path::new("/dev/nvidiactl").exists()
        || Path::new("/dev/dxg").exists()
}

fn explain(trace: &Trace, record: &Record, summary: &Summary) -> Explanation {
    // The message knows what the trace does not: what this process holds besides PyTorch's memory.
    let message = record.outcome.message.as_deref().unwrap_or_default();
    let (messages, _) = oomph_trace::text::read_from(message.as_bytes()).unwrap_or_default();
    let options = oomph_explain::Options {
        torch_version: summary
            .versions
            .get("torch")
            .and_then(|version| super::replay::parse_version(version).ok()),
        device_total: Some(summary.gpu.memory_bytes),
        messages: if summary.verdict == Verdict::OutOfMemory {
            messages
        } else {
            Vec::new()
        },
        ..oomph_explain::Options::default()
    };
    oomph_explain::explain(trace, &options)
}
