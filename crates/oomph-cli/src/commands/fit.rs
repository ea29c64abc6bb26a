//! `oomph fit`: the cheapest change that makes a script fit, verified on the virtual GPU.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anstream::eprintln;
use anyhow::{Context as _, bail};
use oomph_allocator::Config;
use oomph_gpus::Gpu;
use oomph_plan::draft::Pace;
use oomph_plan::model::{Model, ModelError};
use oomph_plan::search::{self, Base, Found, HostTime, Options};
use oomph_plan::{Dtype, FORMAT, Figures, Lever, NAMES, PlanFile, Results, Versions, inference};
use oomph_report::fit::{self, Alternative, Fit, Outcome, Peak, Plan, Rejected, fit_report};
use oomph_report::terminal::width;
use oomph_run::Verdict;

use crate::commands::run::this_job;
use crate::planning::{Ended, Run, Workshop};
use crate::progress::Progress;
use crate::script::Script;
use crate::{EXIT_FINDINGS, EXIT_OK, EXIT_SCRIPT_FAILED, json, page, stdout};
use oomph_job::settings::Variant;
use oomph_job::{Program, RunDirectory, RunFile};

mod largest;
mod sharded;
mod smaller;

/// Arguments of `oomph fit`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph fit --gpu rtx-3060 train.py --epochs 1           the cheapest plan that fits 12 GB\n  oomph fit --gpu rtx-4090 --keep-results train.py       only what leaves results as they are\n  oomph fit --gpu t4 --forbid micro_batch train.py       without one of the levers\n  oomph fit --gpu h200 --max-batch train.py              the largest batch, with and without levers\n  oomph fit --gpu a100-80gb:8 train.py                   shared among up to eight GPUs, by torchrun\n\nThe script itself is not touched: the plan is written to oomph-plan.toml (apply it with oomph run\n--plan) and, as changes to make by hand, to oomph-plan.patch.\n\nExit status: 0 a verified plan, or it fits as it is; 1 the script failed; 2 wrong usage; 3 nothing fits."
)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub struct Args {
    /// The GPU to fit into, such as rtx-4090 or a100-80gb (oomph gpus lists them)
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,

    /// Another capacity than the GPU's, such as 10GiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// Memory to leave free, such as 500MiB, or a part of the GPU's
    #[arg(long, value_name = "SIZE|PERCENT", default_value = "2%")]
    margin: String,

    /// Only levers that keep results: exactly, or to rounding
    #[arg(long)]
    keep_results: bool,

    /// Which plan to choose: the fastest with the same results (or to the bit), the fastest at all, …
    #[arg(long, value_name = "PLAN", value_enum, default_value_t = Choice::SameResults)]
    choose: Choice,

    /// Use no other levers than these; repeat or separate with commas
    #[arg(long, value_name = "LEVER", value_delimiter = ',')]
    allow: Vec<String>,

    /// Leave these levers out; repeat or separate with commas
    #[arg(long, value_name = "LEVER", value_delimiter = ',')]
    forbid: Vec<String>,

    /// Also find the largest batch that fits
    #[arg(long)]
    max_batch: bool,

    /// Also find the longest sequences that fit
    #[arg(long)]
    max_length: bool,

    /// Also find the largest images that fit
    #[arg(long)]
    max_resolution: bool,

    /// Take the script for one that only infers, although it makes an optimizer
    #[arg(long)]
    inference: bool,

    /// For a job that infers, also try the plan with models compiled by torch.compile
    #[arg(long)]
    compile: bool,

    /// Optimizer steps of each run (passes, if it infers); two show the optimizer's state, three a rhythm
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..))]
    steps: u32,

    /// Where to write the plan
    #[arg(long, value_name = "FILE", default_value = "oomph-plan.toml")]
    plan: PathBuf,

    /// Where to write the changes to make by hand
    #[arg(long, value_name = "FILE", default_value = "oomph-plan.patch")]
    patch: PathBuf,

    /// What comparisons of values that nobody computed give: half, all or none of them true
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

    /// Print all that was left out and assumed
    #[arg(short, long)]
    verbose: bool,

    /// Run with a version of torch that the virtual GPU is not known to play for
    #[arg(long)]
    unsupported: bool,

    #[command(flatten)]
    script: Script,
}

/// Which of the plans that fit is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Choice {
    // The fastest that keeps results, exactly or to rounding; without one, the fastest
    SameResults,
    // The fastest that keeps results to the bit
    Exact,
    // The fastest at all
    Fastest,
    // The one that needs the least memory
    LeastMemory,
}

impl Choice {
    /// The weakest promise about results that it takes.
    fn results(self) -> Results {
        match self {
            Self::SameResults => Results::Rounding,
            Self::Exact => Results::Exact,
            Self::Fastest | Self::LeastMemory => Results::Numerics,
        }
    }

    /// What it takes the least of.
    fn of(self, time_ratio: f64, used: u64) -> f64 {
        if self == Self::LeastMemory {
            used as f64
        } else {
            time_ratio
        }
    }

    /// What another plan must come to, to be worth a run beside one of `known`.
    fn worth(self, known: f64) -> f64 {
        if self == Self::LeastMemory {
            known * (1.0 - WORTH)
        } else {
            known - WORTH
        }
    }
}

/// More runs of plans than this are not made: a plan that is not right by then will not be.
const MOST_VERIFICATIONS: u32 = 12;
/// Plans that may run out of memory before any held; then the one of least memory tells whether any can.
const MOST_MISSES: u32 = 4;
/// Steps that the chosen plan is run for: in the first ones the allocator may hold a few percent less than
/// later, when its segments have been cut otherwise. It hardly changes after so many.
const LONGER: u32 = 16;
/// How often a step has to give back the cache to be said.
const OFTEN: f64 = 0.5;
/// Plans that are run for so long before one of them is taken as it is.
const MOST_LONGER: usize = 4;
/// Plans that take so much less of the plain job's time, or of memory, are worth another run.
const WORTH: f64 = 0.02;

impl Args {
    /// Finds the cheapest plan, verifies it and writes it.
    pub fn run(self) -> anyhow::Result<i32> {
        for name in self.allow.iter().chain(&self.forbid) {
            if !NAMES.contains(&name.as_str()) {
                bail!(
                    "there is no lever {name}. The levers are {}",
                    NAMES.join(", ")
                );
            }
        }
        let words = self.words()?;
        let Some(name) = &self.gpu else {
            bail!("name the GPU to fit into, such as --gpu rtx-4090 (oomph gpus lists them)");
        };
        let spec = oomph_gpus::parse_spec(name)?;
        let gpu = spec.found.gpu;
        let total = match &self.memory {
            Some(text) => oomph_gpus::parse_bytes(text)?,
            None => gpu.memory.total_bytes,
        };
        let margin = parse_margin(&self.margin, total)?;
        if !self.quiet
            && let Some(note) = spec.note()
        {
            eprintln!("note: {note}");
        }
        let directory = RunDirectory::choose(self.out.as_deref(), &Program::Script(words.clone()))?;
        let mut fitter = Fitter {
            workshop: Workshop {
                words,
                gpu: spec.clone(),
                total,
                budget: total - margin,
                steps: self.steps,
                unknown: self.unknown.clone(),
                unsupported: self.unsupported,
                inference: self.inference,
                directory,
                progress: Progress::new(self.quiet),
                patience: None,
                runs: 0,
                seconds: 0.0,
                first_rank: false,
                rehearsed: false,
                shares: spec.count > 1 && !self.inference,
            },
            options: Options {
                budget: total - margin,
                keep_results: self.keep_results,
                allow: (!self.allow.is_empty()).then(|| self.allow.clone()),
                forbid: self.forbid.clone(),
                dtype: if gpu.rates.bf16.is_some() {
                    Dtype::Bf16
                } else {
                    Dtype::Fp16
                },
                tf32: gpu.rates.tf32.is_some(),
                config: allocator_config(),
                pace: Pace::new(gpu),
                lessons: Vec::new(),
                failed: Vec::new(),
                cluster: None,
            },
            choice: self.choose,
            rejected: Vec::new(),
            plain_time: 0.0,
            loading_ns: None,
            planning: 0.0,
            verifications: 0,
            tried: Vec::new(),
            held: BTreeMap::new(),
            missed: Vec::new(),
            left: BTreeSet::new(),
            ran: BTreeSet::new(),
            plain: None,
        };
        let mut plain = fitter.plain_run(&[])?;
        let fails = |plain: &Ended| matches!(plain, Ended::Failed { why, .. } if !is_a_rank(why));
        if fitter.workshop.shares && fails(&plain) {
            // A DataParallel that names its GPUs does not run on one.
            plain = fitter.plain_run(&[oomph_plan::sharding::data_parallel(1)])?;
        }
        if fitter.workshop.shares && fails(&plain) {
            // Nor does a script that uses several GPUs by itself.
            fitter.workshop.shares = false;
            plain = fitter.plain_run(&[])?;
            if matches!(plain, Ended::Through(_)) {
                fitter.note("shard", "the script uses several GPUs by itself");
            }
        }
        let plain = match plain {
            Ended::Through(run) => run,
            Ended::OutOfMemory(run) => {
                bail!(
                    "the script raised an out-of-memory error of its own although memory had no limit; see {}",
                    run.directory.file(RunFile::Log).display()
                )
            }
            Ended::Refused(why) => bail!("{why}"),
            Ended::Failed { why, log } => {
                if let Ok(text) = fs::read_to_string(&log) {
                    std::eprint!("{text}");
                }
                eprintln!("oomph: the script failed: {why}");
                if is_a_rank(&why) {
                    eprintln!(
                        "hint: it is distributed already; oomph fit shares out scripts for one GPU. Run it as it is: oomph run --gpu {}:N -- torchrun --nproc-per-node N {}",
                        gpu.id,
                        self.script
                            .argv()
                            .iter()
                            .map(|word| word.to_string_lossy())
                            .collect::<Vec<_>>()
                            .join(" ")
                    );
                }
                return Ok(EXIT_SCRIPT_FAILED);
            }
        };
        if self.inference && plain.record.facts.backwards > 0 {
            bail!("--inference, but the script calls backward: plan for it without that option");
        }
        let mut result = Self::result(&fitter, &plain, gpu, margin);
        self.find(&mut fitter, &plain, &mut result)?;
        result.rejected = fitter.rejected;
        result.runs = fitter.workshop.runs;
        result.run_seconds = fitter.workshop.seconds;
        result.planning_seconds = fitter.planning;
        result.report = page(&plain, &result)?;
        self.print(&result)?;
        Ok(match result.outcome {
            Outcome::AlreadyFits | Outcome::Fits => EXIT_OK,
            Outcome::NothingFits => EXIT_FINDINGS,
        })
    }

    fn words(&self) -> anyhow::Result<Vec<OsString>> {
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

    fn result(fitter: &Fitter, plain: &Run, gpu: &Gpu, margin: u64) -> Fit {
        let words: Vec<String> = fitter
            .workshop
            .words
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        // The same may be assumed in several places, which the plain run's record names.
        let mut assumptions: Vec<String> = Vec::new();
        for found in &plain.summary.assumptions {
            if !assumptions.contains(&found.what) {
                assumptions.push(found.what.clone());
            }
        }
        Fit {
            format: fit::FORMAT,
            outcome: Outcome::AlreadyFits,
            command: words.join(" "),
            script: words,
            gpu: fit::Gpu {
                id: gpu.id.clone(),
                name: gpu.name.clone(),
                memory_bytes: fitter.workshop.total,
                margin_bytes: margin,
                count: fitter.workshop.gpu.count,
            },
            inference: false,
            plain: plain.peak(),
            plans: Vec::new(),
            chosen: None,
            why: String::new(),
            least: None,
            held_by: BTreeMap::new(),
            gpus: Vec::new(),
            smallest: None,
            kinds: Vec::new(),
            variants: Vec::new(),
            largest: Vec::new(),
            rejected: Vec::new(),
            assumptions,
            runs: 0,
            run_seconds: 0.0,
            planning_seconds: 0.0,
            plan_file: None,
            patch_file: None,
            report: None,
            versions: plain.summary.versions.clone(),
        }
    }

    /// Everything after the plain run.
    fn find(&self, fitter: &mut Fitter, plain: &Run, result: &mut Fit) -> anyhow::Result<()> {
        let fits = plain.peak().used_bytes <= fitter.workshop.budget;
        let sizes = self.max_batch || self.max_length || self.max_resolution;
        let several = fitter.workshop.shares && plain.record.steps > 0;
        if fits && !sizes && !self.compile && !several {
            return Ok(());
        }
        let started = Instant::now();
        let base = match fitter.base(plain, Vec::new()) {
            Ok(base) => base,
            Err(error) if fits => {
                result.assumptions.push(error.to_string());
                return Ok(());
            }
            Err(error) => bail!("it does not fit, and cannot be planned for: {error}"),
        };
        fitter.planning += started.elapsed().as_secs_f64();
        let plain_time = plain.step_time(&fitter.options.pace, HostTime::plain(&base.model));
        fitter.plain_time = plain_time.unwrap_or_default();
        fitter.loading_ns = Some(base.model.facts.loading_ns);
        fitter.say_what_is_left_out(&base.model);
        result.inference = !base.model.trains;
        let mut bases = vec![base];
        if result.inference && (sizes || !fits) {
            bases.extend(fitter.probe_inference(&bases[0])?);
        }
        if self.max_batch {
            result.largest.push(largest::batch(fitter, &bases)?);
        }
        if self.max_length {
            result.largest.push(largest::length(fitter, &bases)?);
        }
        if self.max_resolution {
            result.largest.push(largest::resolution(fitter, &bases)?);
        }
        if several {
            let (plans, chosen, shared) = sharded::plan(fitter, &bases[0], result)?;
            result.plans = plans;
            result.chosen = chosen;
            if let Some(plan) = chosen.and_then(|index| result.plans.get(index)).cloned() {
                result.outcome = Outcome::Fits;
                result.why = why(self.choose, &plan);
                return self.write(fitter, &plan, result);
            }
            if !shared.is_empty() {
                result.outcome = Outcome::NothingFits;
                return smaller::advise(fitter, &shared, result);
            }
            // It cannot be shared: what follows is about one of the GPUs.
            fitter.plain = None;
            fitter.missed.clear();
        }
        if fits {
            if self.compile && result.inference {
                result.plans.extend(fitter.compiled(&bases[0], &[])?);
            }
            return Ok(());
        }
        if !result.inference {
            let settings = fitter.probe_settings(&bases[0])?;
            bases.extend(settings);
        }
        if let Some(probed) = fitter.probe_precision(&bases)? {
            bases.push(probed);
        }
        let (plans, chosen) = fitter.plans(&bases)?;
        result.plans = plans;
        result.chosen = chosen;
        let compiles = self.compile && result.inference;
        if compiles && chosen.is_none() {
            // What is fused need not be there: it may be what makes the job fit.
            result.plans = fitter.compiled_on_any(&bases)?;
            result.chosen = (!result.plans.is_empty()).then_some(0);
        }
        if let Some(plan) = result.chosen.and_then(|index| result.plans.get(index)) {
            result.outcome = Outcome::Fits;
            result.why = why(self.choose, plan);
            let row = plan.clone();
            self.write(fitter, &row, result)?;
            if compiles && chosen.is_some() {
                result
                    .plans
                    .extend(fitter.compiled(&bases[0], &row.levers)?);
            }
        } else {
            result.outcome = Outcome::NothingFits;
            smaller::advise(fitter, &bases, result)?;
        }
        Ok(())
    }

    fn write(&self, fitter: &Fitter, plan: &Plan, result: &mut Fit) -> anyhow::Result<()> {
        let file = PlanFile {
            format: FORMAT.to_owned(),
            job: this_job(&fitter.workshop.words),
            gpu: oomph_plan::Gpu {
                id: result.gpu.id.clone(),
                memory_bytes: result.gpu.memory_bytes,
            },
            versions: Versions {
                oomph: env!("CARGO_PKG_VERSION").to_owned(),
                torch: result.versions.get("torch").cloned().unwrap_or_default(),
            },
            planned: Some(Figures {
                allocated_bytes: plan.peak.allocated_bytes,
                reserved_bytes: plan.peak.reserved_bytes,
                used_bytes: plan.peak.used_bytes,
                time_ratio: plan.time_ratio,
                same_results: plan.same_results,
                verified: plan.verified,
                assumptions: plan
                    .notes
                    .iter()
                    .chain(&result.assumptions)
                    .cloned()
                    .collect(),
            }),
            levers: plan.levers.clone(),
        };
        fs::write(&self.plan, file.to_toml())
            .with_context(|| format!("cannot write {}", self.plan.display()))?;
        result.plan_file = Some(self.plan.display().to_string());
        let script = &file.job.script;
        let text = fs::read_to_string(script).unwrap_or_default();
        // A diff names files from where it is applied.
        let here = std::env::current_dir().unwrap_or_default();
        let absolute = fs::canonicalize(script).unwrap_or_else(|_| PathBuf::from(script));
        let path = absolute.strip_prefix(&here).unwrap_or(&absolute);
        let path = path.to_string_lossy();
        let levers = by_hand_levers(&plan.levers, &fitter.left);
        let hand =
            oomph_plan::by_hand::by_hand(path.trim_start_matches('/'), &text, &levers, &fitter.ran);
        fs::write(&self.patch, hand.text())
            .with_context(|| format!("cannot write {}", self.patch.display()))?;
        result.patch_file = Some((self.patch.display().to_string(), hand.changed));
        Ok(())
    }

    fn print(&self, result: &Fit) -> anyhow::Result<()> {
        if let Some(target) = &self.json {
            json::write(target, result)?;
        }
        if !self.quiet && !self.json.as_deref().is_some_and(json::is_stdout) {
            stdout(&fit_report(result, width(), self.verbose))?;
        }
        Ok(())
    }
}

/// The levers without the modules that they left as they are: a lever looks who reads what a module
/// would write over, which a line of a script does not.
fn by_hand_levers(levers: &[Lever], left: &BTreeSet<(String, String)>) -> Vec<Lever> {
    let mut levers = levers.to_vec();
    for lever in &mut levers {
        let name = lever.name().to_owned();
        if let Lever::InplaceActivations { modules } | Lever::FusedModules { modules } = lever {
            modules.retain(|module| !left.contains(&(name.clone(), module.clone())));
        }
    }
    levers
}

/// Writes the page: the job as it is, which was measured without a limit, and the plans beside it.
fn page(plain: &Run, result: &Fit) -> anyhow::Result<Option<String>> {
    let mut summary = plain.summary.clone();
    if plain.peak().used_bytes > result.gpu.memory_bytes {
        summary.verdict = Verdict::OutOfMemory;
    }
    plain.directory.write_json(RunFile::Summary, &summary)?;
    plain.directory.write_json(RunFile::Plans, &result.rows())?;
    let page = page::after_run(&plain.directory);
    Ok(page.map(|page| page.display().to_string()))
}

/// Whether a script failed for want of a launcher.
fn is_a_rank(why: &str) -> bool {
    why.contains("environment variable RANK")
}

/// Why a plan was chosen.
fn why(choice: Choice, plan: &Plan) -> String {
    let missed = choice == Choice::Exact && plan.same_results > Results::Exact;
    match (choice, plan.same_results) {
        (Choice::LeastMemory, _) => "least memory, as asked for".to_owned(),
        (Choice::Fastest, Results::Numerics) => "least slowdown, as asked for".to_owned(),
        _ if missed => {
            "least slowdown; no plan that keeps results exactly was found to fit".to_owned()
        }
        (_, Results::Exact) => "least slowdown that keeps results exactly".to_owned(),
        (_, Results::Rounding) => "least slowdown that keeps results to rounding".to_owned(),
        (_, Results::Numerics) => {
            "least slowdown; no plan that keeps results was found to fit".to_owned()
        }
    }
}

/// The margin in bytes: an amount, or a part of the GPU's memory.
fn parse_margin(text: &str, total: u64) -> anyhow::Result<u64> {
    let bytes = match text.strip_suffix('%') {
        Some(number) => {
            let share: f64 = number.trim().parse().ok().with_context(|| {
                format!("--margin {text}: expected an amount such as 500MiB, or a part such as 2%")
            })?;
            if !(0.0..100.0).contains(&share) {
                bail!("--margin {text}: expected a part from 0% to below 100%");
            }
            (total as f64 * share / 100.0) as u64
        }
        None => oomph_gpus::parse_bytes(text).with_context(|| format!("--margin {text}"))?,
    };
    if bytes >= total {
        bail!("--margin {text} leaves nothing of the GPU's memory");
    }
    Ok(bytes)
}

/// The allocator as the environment sets it.
fn allocator_config() -> Config {
    let conf = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .unwrap_or_default();
    Config::parse(&conf, oomph_allocator::TorchVersion::ASSUMED).unwrap_or_default()
}

/// The search with its runs.
pub(crate) struct Fitter {
    workshop: Workshop,
    options: Options,
    choice: Choice,
    rejected: Vec<Rejected>,
    /// Nanoseconds of the plain job's step.
    plain_time: f64,
    /// Nanoseconds that the plain job takes for loading a batch.
    loading_ns: Option<u64>,
    /// Seconds of planning.
    planning: f64,
    verifications: u32,
    /// Plans that went through.
    tried: Vec<search::Plan>,
    /// What held the memory at the peak of the last plan that went through.
    held: BTreeMap<String, u64>,
    /// Plans that ran out of memory, as measured without a limit, and what held theirs.
    missed: Vec<(Plan, BTreeMap<String, u64>)>,
    /// Modules that levers left as they are, with the levers' names.
    left: BTreeSet<(String, String)>,
    /// Lines of the script that runs of plans went through.
    ran: BTreeSet<usize>,
    /// The job on one GPU, where plans are for several.
    plain: Option<Base>,
}

impl Fitter {
    fn base(&self, run: &Run, applied: Vec<Lever>) -> Result<Base, ModelError> {
        let trace = run.attempt.trace.as_ref().ok_or(ModelError::NoStep)?;
        let mut model = Model::new(trace, &run.record)?;
        // Measured on a host that does other things as well: only what differs is a plan's doing.
        if let Some(loading) = self.loading_ns
            && !applied.iter().any(|lever| lever.name() == "shard")
        {
            model.facts.loading_ns = loading;
        }
        Ok(Base::new(
            model,
            applied,
            run.peak().reserved_bytes,
            &self.options.config,
        ))
    }

    /// Says of one way what it fails by, without giving up those like it.
    fn note(&mut self, what: &str, why: &str) {
        let found = Rejected {
            lever: what.to_owned(),
            why: why.to_owned(),
        };
        if !self.rejected.contains(&found) {
            self.rejected.push(found);
        }
    }

    fn reject(&mut self, lever: &str, why: &str) {
        self.note(lever, why);
        if !self.options.forbid.iter().any(|name| name == lever) {
            self.options.forbid.push(lever.to_owned());
        }
    }

    /// What the script's own ways rule out, with the reason.
    fn say_what_is_left_out(&mut self, model: &Model) {
        for (lever, why) in oomph_plan::search::excluded(model) {
            // What nobody wants needs no reason.
            if self.options.wants(lever) {
                self.reject(lever, &why);
            }
        }
    }

    /// The job as it is.
    fn plain_run(&mut self, levers: &[Lever]) -> anyhow::Result<Ended> {
        self.workshop.run(
            "plain",
            "running the job as it is, without a limit",
            levers,
            Variant::default(),
            None,
        )
    }

    /// The job with levers that cost nothing; one that fails or does nothing is left out.
    fn probe_free(&mut self, mut on: Vec<Lever>) -> anyhow::Result<Option<Base>> {
        while !on.is_empty() {
            match self.probe(&on)? {
                Ok(base) => return Ok(Some(base)),
                Err((name, why)) => {
                    self.reject(&name, &why);
                    let before = on.len();
                    on.retain(|lever| lever.name() != name);
                    if on.len() == before {
                        on.clear();
                    }
                }
            }
        }
        Ok(None)
    }

    /// A job that trains, run with settings whose effect no model tells.
    fn probe_settings(&mut self, plain: &Base) -> anyhow::Result<Vec<Base>> {
        let mut bases = Vec::new();
        bases.extend(self.probe_free(search::free(&plain.model, &self.options))?);
        for lever in search::settings(&plain.model, &self.options) {
            let on = bases.first().map_or(&[][..], |base: &Base| &base.applied);
            let levers: Vec<Lever> = on.iter().cloned().chain([lever]).collect();
            match self.probe(&levers)? {
                Ok(base) => bases.push(base),
                Err((name, why)) => self.reject(&name, &why),
            }
        }
        Ok(bases)
    }

    /// The job in 16 bits, run once on top of the settings that cost nothing: which types results
    /// have is better measured than told by rules.
    fn probe_precision(&mut self, bases: &[Base]) -> anyhow::Result<Option<Base>> {
        let lever = Lever::MixedPrecision {
            dtype: self.options.dtype,
        };
        let plain = bases
            .first()
            .is_some_and(|base| search::offers_precision(&base.model));
        if !self.options.permits(&lever) || !plain {
            return Ok(None);
        }
        // The settings that cost nothing come first among what was probed.
        let free = bases.get(1).map_or(&[][..], |base| &base.applied);
        let is_free = |lever: &&Lever| lever.name() != "cudnn_benchmark";
        let mut levers: Vec<Lever> = free.iter().filter(is_free).cloned().collect();
        levers.push(lever);
        match self.probe(&levers)? {
            Ok(base) => Ok(Some(base)),
            Err((name, why)) => {
                self.reject(&name, &why);
                Ok(None)
            }
        }
    }

    /// A job that infers, run with what is tried on it: each run on top of the one before.
    fn probe_inference(&mut self, plain: &Base) -> anyhow::Result<Vec<Base>> {
        let mut bases = Vec::new();
        bases.extend(self.probe_free(inference::free(&plain.model, &self.options))?);
        let mut on: Vec<Lever> = bases
            .iter()
            .flat_map(|base: &Base| base.applied.iter().cloned())
            .collect();
        // What costs nothing and keeps results needs no alternative.
        let enough = bases.iter().any(|base: &Base| {
            search::predict(base, plain, &[], &self.options).used <= self.options.budget
        });
        if enough {
            return Ok(bases);
        }
        for step in inference::ladder(&plain.model, &self.options) {
            let mut taken = None;
            let mut failed = None;
            for lever in step {
                let levers: Vec<Lever> = on.iter().cloned().chain([lever]).collect();
                match self.probe(&levers)? {
                    Ok(base) => {
                        bases.push(base);
                        taken.get_or_insert(levers);
                    }
                    Err(why) => failed = Some(why),
                }
            }
            match (taken, failed) {
                (Some(levers), _) => on = levers,
                (None, Some((name, why))) => self.reject(&name, &why),
                (None, None) => {}
            }
        }
        Ok(bases)
    }

    /// The job with `levers` and without a limit; else the lever that failed, and why.
    fn probe(&mut self, levers: &[Lever]) -> anyhow::Result<Result<Base, (String, String)>> {
        let names: Vec<&str> = levers.iter().map(Lever::name).collect();
        let last = names.last().copied().unwrap_or_default().to_owned();
        let ended = self.workshop.run(
            &format!("probe-{}", self.workshop.runs),
            &format!("running it with {}, without a limit", listed(levers, ", ")),
            levers,
            Variant::default(),
            None,
        )?;
        Ok(match ended {
            Ended::Through(run) => match Self::inert(&run) {
                Some(inert) => Err(inert),
                None => self
                    .base(&run, levers.to_vec())
                    .map_err(|error| (last, error.to_string())),
            },
            Ended::OutOfMemory(_) => Err((last, "it ran out of memory with it".to_owned())),
            Ended::Refused(why) | Ended::Failed { why, .. } => {
                let blamed = names.iter().find(|name| why.contains(*name));
                Err((blamed.map_or(last, |name| (*name).to_owned()), why))
            }
        })
    }

    /// The job with `levers` and compiled models, as a run measures it.
    fn compiled(&mut self, base: &Base, levers: &[Lever]) -> anyhow::Result<Option<Plan>> {
        let compile = Lever::Compile {};
        if !self.options.permits(&compile) || base.model.facts.compiled {
            return Ok(None);
        }
        let mut plan = search::predict(base, base, &[], &self.options);
        plan.levers = levers.iter().cloned().chain([compile]).collect();
        plan.results = plan
            .levers
            .iter()
            .map(Lever::results)
            .max()
            .unwrap_or(plan.results);
        let mut found = self.verify(&plan, true)?;
        if let Some(plan) = &mut found {
            // Its predictions are the plain job's, and steps are not told apart in compiled code.
            plan.predicted = plan.peak;
            plan.notes
                .push("the time of compiled models is not estimated".to_owned());
        }
        Ok(found)
    }

    /// Compiled models with what keeps results, and if that does not fit with all that was run.
    fn compiled_on_any(&mut self, bases: &[Base]) -> anyhow::Result<Vec<Plan>> {
        let keeps = |base: &&Base| {
            let results = base.applied.iter().map(Lever::results).max();
            results.unwrap_or(Results::Exact) <= Results::Rounding
        };
        let mut tried: Vec<&[Lever]> = Vec::new();
        for base in [bases.iter().rev().find(keeps), bases.last()] {
            let Some(base) = base.filter(|base| !tried.contains(&&base.applied[..])) else {
                continue;
            };
            tried.push(&base.applied);
            if let Some(plan) = self.compiled(&bases[0], &base.applied)? {
                return Ok(vec![plan]);
            }
        }
        Ok(Vec::new())
    }

    /// A lever that had no effect, and why.
    fn inert(run: &Run) -> Option<(String, String)> {
        run.record
            .levers
            .iter()
            .find(|lever| lever.applied == 0)
            .map(|lever| {
                let why = lever.note.clone();
                (
                    lever.name.clone(),
                    why.unwrap_or_else(|| "it had no effect on this script".to_owned()),
                )
            })
    }

    /// Verifies what is best of what was found, for each of the goals.
    fn verify_best(
        &mut self,
        bases: &[Base],
        verified: &mut Vec<Plan>,
        mut found: Found,
    ) -> anyhow::Result<Found> {
        // Those that keep results first: what they teach helps the others.
        let mut goals = vec![Choice::SameResults, Choice::Fastest];
        if !goals.contains(&self.choice) {
            goals.push(self.choice);
        }
        let mut misses = 0;
        'goals: for goal in goals {
            loop {
                let best = found
                    .plans
                    .iter()
                    .filter(|plan| plan.results <= goal.results())
                    .min_by(|a, b| {
                        goal.of(a.cost(), a.used)
                            .total_cmp(&goal.of(b.cost(), b.used))
                    })
                    .cloned();
                let Some(best) = best else { break };
                let known = verified
                    .iter()
                    .filter(|plan| plan.same_results <= goal.results())
                    .map(|plan| goal.of(cost(plan), plan.peak.used_bytes))
                    .fold(f64::INFINITY, f64::min);
                if goal.of(best.cost(), best.used) > goal.worth(known)
                    || self.verifications >= MOST_VERIFICATIONS
                {
                    break;
                }
                let left_out = self.rejected.len();
                self.attempt(&best, verified)?;
                found = self.search(bases);
                if !verified.is_empty() || self.rejected.len() > left_out {
                    continue;
                }
                misses += 1;
                if misses == MOST_MISSES {
                    self.attempt_least(&found, verified)?;
                    found = self.search(bases);
                    if verified.is_empty() {
                        break 'goals;
                    }
                }
            }
        }
        // What plans were seen to need makes those like them look too large, perhaps wrongly: nothing
        // is given up before the plan of least memory was tried on this GPU.
        if verified.is_empty() {
            self.attempt_least(&found, verified)?;
            found = self.search(bases);
        }
        Ok(found)
    }

    /// The one of `verified` that was asked for, or what comes nearest.
    fn choose(&self, verified: &[Plan]) -> Option<Plan> {
        let least = |choice: Choice| {
            let plans = verified.iter();
            plans
                .filter(|plan| plan.same_results <= choice.results())
                .min_by(|a, b| {
                    choice
                        .of(cost(a), a.peak.used_bytes)
                        .total_cmp(&choice.of(cost(b), b.peak.used_bytes))
                })
        };
        least(self.choice)
            .or_else(|| least(Choice::SameResults))
            .or_else(|| least(Choice::Fastest))
            .cloned()
    }

    /// The plans to show, and which of them is chosen.
    fn plans(&mut self, bases: &[Base]) -> anyhow::Result<(Vec<Plan>, Option<usize>)> {
        let mut verified: Vec<Plan> = Vec::new();
        let mut found = self.search(bases);
        let trains = bases.first().is_some_and(|base| base.model.trains);
        let mut longer: Vec<Vec<Lever>> = Vec::new();
        let choice = loop {
            found = self.verify_best(bases, &mut verified, found)?;
            let choice = self.choose(&verified);
            // Scripts that ended before have no more steps, and several ranks take too long.
            let Some(plan) = choice.as_ref().filter(|plan| {
                trains
                    && plan.steps < LONGER
                    && plan.steps >= self.workshop.steps
                    && oomph_plan::sharding::gpus(&plan.levers).is_none()
                    && !longer.contains(&plan.levers)
                    && longer.len() < MOST_LONGER
            }) else {
                break choice;
            };
            longer.push(plan.levers.clone());
            let held = self.run_longer(plan)?;
            verified.retain(|other| other.levers != plan.levers);
            match held {
                Some(plan) => verified.push(plan),
                None => self.options.failed.push(plan.levers.clone()),
            }
            found = self.search(bases);
        };
        verified.sort_by(|a, b| a.time_ratio.total_cmp(&b.time_ratio));
        // What another plan beats in everything is no choice.
        let beaten = |plan: &Plan, by: &Plan| {
            by.levers != plan.levers
                && by.time_ratio <= plan.time_ratio
                && by.same_results <= plan.same_results
                && by.peak.used_bytes <= plan.peak.used_bytes
        };
        let mut plans = verified.clone();
        plans.retain(|plan| {
            choice
                .as_ref()
                .is_some_and(|choice| choice.levers == plan.levers)
                || !verified.iter().any(|by| beaten(plan, by))
        });
        if !plans.is_empty() {
            for other in &found.plans {
                let other = predicted(other);
                let shown = plans.iter().any(|plan| plan.levers == other.levers);
                if !shown && !plans.iter().any(|by| beaten(&other, by)) {
                    plans.push(other);
                }
            }
        }
        plans.sort_by(|a, b| a.time_ratio.total_cmp(&b.time_ratio));
        let chosen = choice.and_then(|choice| {
            plans
                .iter()
                .position(|plan| plan.verified && plan.levers == choice.levers)
        });
        Ok((plans, chosen))
    }

    /// Verifies a plan, which is `verified` then or not made again.
    fn attempt(&mut self, plan: &search::Plan, verified: &mut Vec<Plan>) -> anyhow::Result<()> {
        match self.verify(plan, true)? {
            Some(plan) => verified.push(plan),
            None => self.options.failed.push(plan.levers.clone()),
        }
        Ok(())
    }

    /// The same for the plan of least memory, unless that is the job as it is or was tried before.
    fn attempt_least(&mut self, found: &Found, verified: &mut Vec<Plan>) -> anyhow::Result<()> {
        match &found.least {
            Some(least)
                if !least.levers.is_empty() && !self.options.failed.contains(&least.levers) =>
            {
                self.attempt(least, verified)
            }
            _ => Ok(()),
        }
    }

    fn search(&mut self, bases: &[Base]) -> Found {
        let started = Instant::now();
        let found = match &self.plain {
            Some(plain) => search::search_among(plain, bases, &self.options),
            None => search::search(bases, &self.options),
        };
        self.planning += started.elapsed().as_secs_f64();
        found
    }

    /// The time of a run's step against the plain job's.
    fn time_ratio(&self, run: &Run, plan: &search::Plan) -> Option<f64> {
        let time = run.step_time(&self.options.pace, plan.host)? + plan.waits;
        (self.plain_time > 0.0).then(|| time / self.plain_time)
    }

    /// Runs a plan, at the capacity less the margin if `limited`. `None` if it does not hold; what
    /// the run taught is kept.
    pub(crate) fn verify(
        &mut self,
        plan: &search::Plan,
        limited: bool,
    ) -> anyhow::Result<Option<Plan>> {
        self.verifications += 1;
        let number = self.verifications;
        let name = format!("plan-{number}");
        let what = format!("verifying: {}", listed(&plan.levers, ", "));
        let limit = limited.then_some(self.workshop.budget);
        let ended = self
            .workshop
            .run(&name, &what, &plan.levers, Variant::default(), limit)?;
        let run = match ended {
            Ended::Through(run) => run,
            Ended::OutOfMemory(_) => {
                let again = self.workshop.run(
                    &format!("{name}-unlimited"),
                    "it ran out of memory: measuring what it needs",
                    &plan.levers,
                    Variant::default(),
                    None,
                )?;
                match again {
                    // Even a plan whose peak would do may have failed for want of one large piece.
                    Ended::Through(run) => {
                        let used = run.peak().used_bytes.max(self.workshop.budget + 1);
                        let time = self.time_ratio(&run, plan);
                        self.options.learn(plan, used, time);
                        if used == run.peak().used_bytes {
                            let missed = self.measured(plan, &run, true);
                            self.missed.push((missed, std::mem::take(&mut self.held)));
                        }
                    }
                    Ended::Failed { why, .. } | Ended::Refused(why) => {
                        self.reject_newest(plan, &why);
                    }
                    Ended::OutOfMemory(_) => self.note(
                        &listed(&plan.levers, " + "),
                        "the script raised an out-of-memory error of its own although memory had no limit",
                    ),
                }
                return Ok(None);
            }
            Ended::Refused(why) => {
                match plan.levers.iter().find(|lever| why.contains(lever.name())) {
                    Some(lever) => self.reject(lever.name(), &why),
                    None => self.reject_newest(plan, &why),
                }
                return Ok(None);
            }
            Ended::Failed { why, .. } => {
                self.reject_newest(plan, &why);
                return Ok(None);
            }
        };
        if let Some((lever, why)) = Self::inert(&run) {
            self.reject(&lever, &why);
            return Ok(None);
        }
        let time_ratio = self.time_ratio(&run, plan);
        self.options.learn(plan, run.peak().used_bytes, time_ratio);
        if run.peak().used_bytes > self.workshop.budget && limited {
            return Ok(None);
        }
        self.tried.push(plan.clone());
        Ok(Some(self.measured(plan, &run, limited)))
    }

    /// Runs a verified plan for more steps. `None` if it does not hold.
    fn run_longer(&mut self, plan: &Plan) -> anyhow::Result<Option<Plan>> {
        let tried = self.tried.iter().find(|tried| tried.levers == plan.levers);
        let Some(tried) = tried.cloned() else {
            return Ok(Some(plan.clone()));
        };
        let steps = std::mem::replace(&mut self.workshop.steps, LONGER);
        let ended = self.workshop.run(
            &format!("plan-{}-longer", self.verifications),
            &format!("running for {LONGER} steps: {}", listed(&plan.levers, ", ")),
            &plan.levers,
            Variant::default(),
            Some(self.workshop.budget),
        );
        self.workshop.steps = steps;
        let (held, used) = match ended? {
            Ended::Through(run) => {
                let measured = self.measured(&tried, &run, true);
                let used = measured.peak.used_bytes;
                (
                    (used <= self.workshop.budget).then_some(measured),
                    Some(used),
                )
            }
            Ended::OutOfMemory(_) => (None, Some(self.workshop.budget + 1)),
            // It took too long, or the script has no more to do.
            Ended::Refused(_) | Ended::Failed { .. } => {
                let mut plan = plan.clone();
                plan.notes
                    .push(format!("what it holds was seen for {} steps", plan.steps));
                (Some(plan), None)
            }
        };
        if let Some(used) = used {
            let time = held
                .as_ref()
                .map_or(plan.time_ratio, |held| held.time_ratio);
            let more = |now: f64, before: f64| if before > 0.0 { now / before } else { 1.0 };
            self.options.correct(
                &plan.levers,
                more(used as f64, plan.peak.used_bytes as f64),
                more(time, plan.time_ratio),
            );
        }
        Ok(held)
    }

    /// A plan as a run of it was.
    fn measured(&mut self, plan: &search::Plan, run: &Run, limited: bool) -> Plan {
        for lever in &run.record.levers {
            let left = lever
                .left
                .iter()
                .map(|module| (lever.name.clone(), module.clone()));
            self.left.extend(left);
        }
        if let Some(trace) = &run.attempt.trace
            && let Some(script) = self
                .workshop
                .words
                .first()
                .and_then(|path| fs::canonicalize(path).ok())
        {
            self.ran
                .extend(oomph_plan::by_hand::lines_that_ran(trace, &script));
        }
        self.held = run
            .summary
            .by_category
            .iter()
            .map(|(name, held)| ((*name).to_owned(), *held))
            .collect();
        let mut measured = predicted(plan);
        measured.peak = run.peak();
        measured.verified = limited;
        measured.steps = run.record.steps;
        if let Some(ratio) = self.time_ratio(run, plan) {
            measured.time_ratio = ratio;
        }
        if run.retries_a_step() >= OFTEN {
            measured.notes.push(
                "it fits so closely that the allocator gives its cache back in most steps, which takes time: a smaller batch or a larger --margin avoids it".to_owned(),
            );
        }
        measured
            .notes
            .extend(ranks_note(run, self.workshop.rehearsed));
        measured
            .notes
            .extend(run.record.levers.iter().filter_map(|lever| {
                let note = lever.note.as_ref()?;
                Some(format!("{}: {note}", lever.name))
            }));
        measured
    }

    /// The script fails under a plan: the lever of it that no plan has worked with is left out; where
    /// there is no such lever, this plan alone.
    fn reject_newest(&mut self, plan: &search::Plan, why: &str) {
        let proved: Vec<&str> = self
            .options
            .lessons
            .iter()
            .flat_map(|lesson| lesson.levers.iter().copied())
            .collect();
        let suspect = plan
            .levers
            .iter()
            .map(Lever::name)
            .rev()
            // A way to share the job ran by itself before anything was added to it.
            .find(|name| *name != "shard" && !proved.contains(name));
        let why = format!("the script failed with it: {why}");
        if let Some(name) = suspect {
            self.reject(name, &why);
        } else {
            self.note(&listed(&plan.levers, " + "), &why);
        }
    }
}

/// What plans are ordered by.
fn cost(plan: &Plan) -> f64 {
    search::cost(plan.time_ratio, &plan.levers, plan.same_results)
}

/// Levers in words.
fn listed(levers: &[Lever], between: &str) -> String {
    let words: Vec<String> = levers.iter().map(ToString::to_string).collect();
    words.join(between)
}

/// What the ranks of a run came to, and which of them there were.
fn ranks_note(run: &Run, rehearsed: bool) -> Option<String> {
    let least = run.ranks.iter().map(|rank| rank.1).min()?;
    let most = run.ranks.iter().map(|rank| rank.1).max()?;
    let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30));
    let peaks = if least == most {
        gib(most)
    } else {
        format!("{} to {}", gib(least), gib(most))
    };
    Some(if rehearsed {
        let names: Vec<String> = run.ranks.iter().map(|rank| rank.0.to_string()).collect();
        format!(
            "ranks {} were run by themselves and used {peaks}; the others are taken to be like them",
            names.join(", ")
        )
    } else {
        format!("all {} ranks were run and used {peaks}", run.ranks.len())
    })
}

/// A plan that no run has confirmed.
fn predicted(plan: &search::Plan) -> Plan {
    let peak = Peak {
        allocated_bytes: plan.allocated,
        reserved_bytes: plan.reserved,
        used_bytes: plan.used,
    };
    Plan {
        levers: plan.levers.clone(),
        what: listed(&plan.levers, " + "),
        peak,
        predicted: peak,
        time_ratio: plan.time_ratio,
        predicted_time_ratio: plan.time_ratio,
        same_results: plan.results,
        verified: false,
        steps: 0,
        notes: plan.assumptions.clone(),
    }
}

/// GPUs that hold `used` bytes, the cheapest first.
pub(crate) fn gpus_that_hold(used: u64, margin: f64, as_it_is: bool) -> Vec<Alternative> {
    let mut found: Vec<&Gpu> = oomph_gpus::catalogue()
        .iter()
        .filter(|gpu| !gpu.laptop)
        .filter(|gpu| (used as f64) <= gpu.memory.total_bytes as f64 * (1.0 - margin))
        .collect();
    found.sort_by(|a, b| {
        let price = |gpu: &Gpu| gpu.cost.rank_usd_per_hour().unwrap_or(f64::INFINITY);
        price(a)
            .total_cmp(&price(b))
            .then(a.memory.total_bytes.cmp(&b.memory.total_bytes))
    });
    found
        .into_iter()
        .map(|gpu| Alternative {
            id: gpu.id.clone(),
            memory_bytes: gpu.memory.total_bytes,
            usd_per_hour: gpu.cost.rank_usd_per_hour(),
            as_it_is,
            count: 1,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lever_left_alone_is_not_changed_by_hand() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
        let levers = [Lever::InplaceActivations {
            modules: names(&["Net.a", "Net.b"]),
        }];
        let left = BTreeSet::from([("inplace_activations".to_owned(), "Net.a".to_owned())]);
        let expected = [Lever::InplaceActivations {
            modules: names(&["Net.b"]),
        }];
        assert_eq!(by_hand_levers(&levers, &left), expected);
    }
}
