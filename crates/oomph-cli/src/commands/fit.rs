//! `oomph fit`: the cheapest change that makes a script fit, verified on the virtual GPU.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;
use oomph_bytes::{format_bytes, parse_capacity};
use oomph_fit::{Ending, Found, ScriptAttempts, Size, Wanted};
use oomph_job::{Program, RunDirectory, RunFile, files};
use oomph_plan::Stopped;
use oomph_plan::result::{Fit, Outcome, PlanResult, Rejected};
use oomph_report::fit::{fit_report, plan_rows};
use oomph_report::terminal::width;
use oomph_run::Verdict;

use crate::patches::{self, Original, Places};
use crate::script::{Script, plan_job};
use crate::search::Search;
use crate::watched::Watched;
use crate::{ExitStatus, json, page, stdout};

/// Arguments of `oomph fit`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph fit --gpu rtx-3060 train.py --epochs 1           the cheapest plan that fits 12 GB\n  oomph fit --gpu rtx-4090 --keep-results train.py       only what leaves results as they are\n  oomph fit --gpu t4 --forbid micro_batch train.py       without one of the levers\n  oomph fit --gpu h200 --max-batch train.py              the largest batch, with and without levers\n  oomph fit --gpu a100-80gb:8 train.py                   shared among up to eight GPUs, by torchrun\n\nSizes: 10GiB or 10G (2^30 bytes each), 10GB (10^9), 10240MiB.\n\nThe script itself is not touched unless --write is given: the plan is written to oomph-plan.toml (apply it with oomph run --plan) and, as changes to make by hand, to oomph-plan.patch, or to oomph-plan.md where a run with them does not fit. oomph-plan.apply.patch applies the plan with one line.\n\nExit status: 0 a verified plan, or it fits as it is; 1 the script failed; 2 wrong usage; 3 nothing fits; 4 --max-time ended the search before a plan was verified; 130 Ctrl-C did (the best plan so far is printed and written, if there is one)."
)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub struct Args {
    /// The GPU to fit into, such as rtx-4090 or a100-80gb (oomph gpus lists them)
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,

    /// Use this much memory instead of the GPU's, such as 10GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_capacity)]
    memory: Option<u64>,

    #[command(flatten)]
    search: Search,

    /// Also find the largest batch that fits
    #[arg(long)]
    max_batch: bool,

    /// Also find the longest sequences that fit
    #[arg(long)]
    max_length: bool,

    /// Also find the largest images that fit
    #[arg(long)]
    max_resolution: bool,

    /// For a job that infers, also try the plan with models compiled by torch.compile
    #[arg(long)]
    compile: bool,

    /// Optimizer steps of each run (passes, if it infers); two show the optimizer's state, three whether steps repeat
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..))]
    steps: u32,

    /// Where to write the plan
    #[arg(long, value_name = "FILE", default_value = "oomph-plan.toml")]
    plan: PathBuf,

    /// Where to write the changes to make by hand
    #[arg(long, value_name = "FILE", default_value = "oomph-plan.patch")]
    patch: PathBuf,

    /// Also make the changes in the script, and keep it as it was as SCRIPT.orig
    #[arg(long)]
    write: bool,

    /// Take out of the script what --write has changed; nothing is run
    #[arg(long, conflicts_with = "write")]
    undo: bool,

    /// How many comparisons of values that are not computed count as true: half, all or none
    #[arg(long, value_name = "RULE", default_value = oomph_job::settings::UNKNOWN, value_parser = ["half", "all", "none"])]
    unknown: String,

    /// Where to keep the records of the runs [default: oomph-report/SCRIPT-N]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Print nothing
    #[arg(short, long)]
    quiet: bool,

    /// Also print everything that was left out or assumed
    #[arg(short, long)]
    verbose: bool,

    /// Run with a version of torch that is not known to work on the virtual GPU
    #[arg(long)]
    unsupported: bool,

    #[command(flatten)]
    script: Script,
}

impl Args {
    /// Finds the cheapest plan, verifies it and writes it.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        self.script.warn_of_strays();
        json::expect_place(self.json.as_deref())?;
        let script = self.script()?;
        if self.undo {
            patches::undo(Path::new(&script[0]), &self.plan)?;
            return Ok(ExitStatus::Success);
        }
        let original = Original::read(&plan_job(&script).script);
        if self.write {
            original.expect_writable()?;
        }
        let wanted = self.wanted(&script)?;
        if !self.quiet
            && let Some(note) = wanted.gpu.note()
        {
            eprintln!("note: {note}");
        }
        let program = Program::Script(script.clone());
        let attempts = ScriptAttempts {
            gpu: wanted.gpu.clone(),
            total_bytes: wanted.total_bytes,
            unknown: self.unknown.clone(),
            unsupported: self.unsupported,
            inference: self.search.inference,
            directory: RunDirectory::choose(self.out.as_deref(), &program)?,
            timeout: None,
            stop: wanted.stop.clone(),
            forks: Arc::default(),
            alone: false,
            slower: 1.0,
            script,
        };
        let mut attempts = Watched::new(attempts, self.quiet);
        let gpu = wanted.gpu.found.gpu;
        // `oomph clean` leaves the directory alone between two runs, too.
        let _lock = attempts.attempts.directory.lock();
        let ending = oomph_fit::fit(&mut attempts, wanted);
        attempts.wipe();
        let mut found = match ending? {
            Ending::Found(found) => found,
            Ending::Stopped(stopped) => {
                eprintln!(
                    "oomph: {stopped} before the unchanged job had run once: nothing is known yet"
                );
                return Ok(status_of(Some(stopped), Outcome::Open));
            }
            Ending::ScriptFailed { why, log, is_rank } => {
                say_failure(&why, &log);
                if is_rank {
                    say_is_rank(&gpu.id, &attempts.attempts.script);
                }
                return Ok(ExitStatus::Failed);
            }
        };
        note_own_attention(&mut found);
        let written = self.write_plan(&original, &mut attempts, &mut found);
        attempts.wipe();
        // What was found is said, also where a patch cannot be written.
        write_page(&mut found)?;
        self.print(&found.fit)?;
        written?;
        Ok(status_of(found.fit.stopped, found.fit.outcome))
    }

    fn wanted(&self, script: &[OsString]) -> anyhow::Result<Wanted> {
        let Some(name) = &self.gpu else {
            bail!("name the GPU to fit into, such as --gpu rtx-4090 (oomph gpus lists them)");
        };
        let gpu = oomph_gpus::parse_spec(name)?;
        let total_bytes = self.memory.unwrap_or(gpu.found.gpu.memory.total_bytes);
        let sizes = [
            (self.max_batch, Size::Batch),
            (self.max_length, Size::Length),
            (self.max_resolution, Size::Resolution),
        ];
        let stop = self.search.stop();
        let wanted = (self.search).wanted(script, gpu, total_bytes, self.steps, stop)?;
        Ok(Wanted {
            compile: self.compile,
            sizes: sizes
                .into_iter()
                .filter_map(|(asked, size)| asked.then_some(size))
                .collect(),
            variants: true,
            ..wanted
        })
    }

    /// Checks the names of levers, and returns the script with its arguments.
    fn script(&self) -> anyhow::Result<Vec<OsString>> {
        self.search.check()?;
        if let Some(first) = self.script.argv().first()
            && let launcher = first.to_string_lossy()
            && ["torchrun", "accelerate", "python", "python3"].contains(&&*launcher)
            && !Path::new(first).is_file()
        {
            bail!(
                "{launcher} starts processes of its own, which oomph fit does not follow. Give it the script: oomph fit --gpu NAME train.py args…"
            );
        }
        self.script
            .of_python("oomph fit --gpu NAME [options] script.py args…")
    }

    /// Writes the chosen plan, if there is one, and the same as patches.
    fn write_plan(
        &self,
        original: &Original,
        attempts: &mut Watched,
        found: &mut Found,
    ) -> anyhow::Result<()> {
        let Some(mut file) = found.plan_file(plan_job(&attempts.attempts.script)) else {
            return Ok(());
        };
        files::write(&self.plan, file.to_toml().as_bytes())?;
        found.fit.plan_file = Some(self.plan.display().to_string());
        if found.fit.framework.is_some() {
            if self.write {
                bail!("--write has changed nothing: the plan is settings of the environment");
            }
            return Ok(());
        }
        let places = Places {
            plan: &self.plan,
            patch: &self.patch,
        };
        let offer = original.offer(attempts, found, &places, self.steps)?;
        if self.write {
            let Some(offer) = offer else {
                bail!("--write has changed nothing: no patch of this plan fits");
            };
            let copy = original.write(&offer, &mut file)?;
            files::write(&self.plan, file.to_toml().as_bytes())?;
            found.fit.original_file = Some(copy.display().to_string());
        }
        Ok(())
    }

    fn print(&self, fit: &Fit) -> anyhow::Result<()> {
        if let Some(target) = &self.json {
            json::write(target, fit)?;
        }
        if !self.quiet && !self.json.as_deref().is_some_and(json::is_stdout) {
            stdout(&fit_report(fit, width(), self.verbose))?;
        }
        Ok(())
    }
}

/// Says how a script failed by itself.
pub(crate) fn say_failure(why: &str, log: &Path) {
    if let Ok(text) = fs::read_to_string(log) {
        std::eprint!("{text}");
    }
    eprintln!("oomph: the script failed: {why}");
}

/// Says how to run a script that is a rank of a job.
pub(crate) fn say_is_rank(gpu: &str, script: &[OsString]) {
    eprintln!(
        "hint: it is distributed already; oomph fit shares out scripts for one GPU. Run it as it is: oomph run --gpu {gpu}:N -- torchrun --nproc-per-node N {}",
        script.join(" ".as_ref()).to_string_lossy()
    );
}

/// How a search ended, as the exit status says it.
fn status_of(stopped: Option<Stopped>, outcome: Outcome) -> ExitStatus {
    match outcome {
        _ if stopped == Some(Stopped::Interrupted) => ExitStatus::Interrupted,
        Outcome::AlreadyFits | Outcome::Fits => ExitStatus::Success,
        Outcome::NothingFits => ExitStatus::Findings,
        Outcome::Open => ExitStatus::NoVerdict,
    }
}

/// Says where a change of the script's own code would do more than levers, which did not change it.
fn note_own_attention(found: &mut Found) {
    let is_fused = |plan: &PlanResult| {
        let mut levers = plan.levers.iter();
        levers.any(|lever| lever.name() == "fused_attention")
    };
    if found.fit.outcome == Outcome::AlreadyFits || found.fit.plans.iter().any(is_fused) {
        return;
    }
    let trace = found.plain.trace.as_ref();
    if let Some((line, saves)) = trace.and_then(oomph_explain::attention_of_own_code) {
        let why = format!(
            "the script writes it out at {line}; torch.nn.functional.scaled_dot_product_attention there would save about {}",
            format_bytes(saves)
        );
        let lever = "attention".to_owned();
        found.fit.rejected.insert(0, Rejected { lever, why });
    }
}

/// Writes the page: the job as it is, which was measured without a limit, and the plans beside it.
fn write_page(found: &mut Found) -> anyhow::Result<()> {
    let (plain, fit) = (&found.plain, &mut found.fit);
    let mut summary = plain.summary.clone();
    summary.growth.clone_from(&fit.growth);
    let grows_too_far = fit.growth.is_some() && fit.outcome == Outcome::NothingFits;
    if summary.peak.used_bytes > fit.gpu.memory_bytes || grows_too_far {
        summary.verdict = Verdict::OutOfMemory;
    }
    plain.directory.write_json(RunFile::Summary, &summary)?;
    plain
        .directory
        .write_json(RunFile::Plans, &plan_rows(fit))?;
    if fit.stopped == Some(Stopped::Interrupted) {
        // It takes longer than people who pressed Ctrl-C want to wait; `oomph report` makes it.
        return Ok(());
    }
    let page = page::after_run(&plain.directory);
    fit.report = page.map(|page| page.display().to_string());
    Ok(())
}
