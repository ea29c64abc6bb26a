//! The search with its runs: the order of the phases, and what they share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::bail;
use oomph_bytes::format_bytes;
use oomph_job::RunFile;
use oomph_plan::draft::Pace;
use oomph_plan::model::{Model, ModelError};
use oomph_plan::search::{self, Base, HostTime, Options};
use oomph_plan::{Dtype, Floor, Lever, Results, Stopped, sharding};
use oomph_run::summary::Peak;

use crate::attempts::{Attempts, Ended, Measurement, Ranks, Request};
use crate::caution::Caution;
use crate::found::{self, Found};
use crate::probe::ProbeFailure;
use crate::select::LONGER;
use crate::verify::Failure;
use crate::wanted::Wanted;
use crate::{jax, largest, sharded, smaller};
use oomph_plan::result::{Fit, Outcome, PlanResult, Rejected, Tried};
use oomph_run::time::{reprice, step_time};

/// With time for no more runs than this, the next plan has to fit.
pub(crate) const FEW_RUNS: f64 = 4.0;
/// How much longer a plan's run takes than the plain job's: what levers do takes time, too.
pub(crate) const SLOWER: f64 = 1.5;
/// Modules that a lever may refuse before it is given up.
const MOST_LEFT: usize = 3;

/// How a search ended.
#[derive(Debug)]
pub enum Ending {
    /// It says whether the job fits, and how.
    Found(Box<Found>),
    /// The script fails as it is.
    ScriptFailed {
        /// The error, in a line.
        why: String,
        /// What the script printed.
        log: PathBuf,
        /// Whether it is a rank of a distributed job, which a launcher must start.
        is_rank: bool,
    },
    /// The search was stopped before the job had run once.
    Stopped(Stopped),
}

/// Looks for the plan that is wanted.
pub fn fit(attempts: &mut dyn Attempts, wanted: Wanted) -> anyhow::Result<Ending> {
    let mut fitter = Fitter::new(attempts, wanted);
    let plain = match fitter.run_plain() {
        Ok(ended) => ended,
        Err(error) => return Ok(Ending::Stopped(error.downcast::<Stopped>()?)),
    };
    let through = matches!(plain, Ended::Through(_));
    let mut plain = match plain {
        Ended::Through(run) => *run,
        Ended::OutOfMemory(run) if jax::is_jax(&run) => *run,
        Ended::OutOfMemory(run) => bail!(
            "the script itself raised an out-of-memory error, although memory was unlimited; see {}",
            run.directory.file(RunFile::Log).display()
        ),
        Ended::Refused { why, .. } => bail!("{why}"),
        Ended::Failed { why, log, .. } => {
            return Ok(Ending::ScriptFailed {
                is_rank: is_a_rank(&why),
                why,
                log,
            });
        }
    };
    if fitter.wanted.inference && plain.record.facts.backwards > 0 {
        bail!("the script calls backward: plan it without --inference");
    }
    if jax::is_jax(&plain) {
        let mut fit = found::of_plain(&fitter.wanted, &plain);
        if let Err(error) = jax::find(&mut fitter, &plain, through, &mut fit) {
            fitter.conclude(error.downcast::<Stopped>()?, &mut fit);
        }
        return Ok(fitter.found(fit, plain));
    }
    let cached = match fitter.cached(&plain) {
        Ok(cached) => cached,
        Err(error) => return Ok(Ending::Stopped(error.downcast::<Stopped>()?)),
    };
    let mut needed = None;
    let unlimited = plain.used_bytes();
    match cached {
        Some(Cached::Fits(limited)) => plain = *limited,
        Some(Cached::Needs(peak)) => needed = Some(peak),
        None => {}
    }
    let mut fit = found::of_plain(&fitter.wanted, &plain);
    fit.plain = needed.unwrap_or(fit.plain);
    fit.plain_unlimited_bytes = (fit.plain.used_bytes != unlimited).then_some(unlimited);
    let found = match fitter.watch(&plain, &mut fit) {
        Ok(later) => {
            if let Some(later) = later {
                plain = *later;
                fit = found::of_plain(&fitter.wanted, &plain);
            }
            fitter.find(&plain, &mut fit)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = found {
        fitter.conclude(error.downcast::<Stopped>()?, &mut fit);
    }
    fit.rejected = std::mem::take(&mut fitter.rejected);
    fit.tried = std::mem::take(&mut fitter.measured);
    Ok(fitter.found(fit, plain))
}

/// What the job as it is needs, if that is far less than it reserved without a limit.
enum Cached {
    /// It fits: its run with the limit.
    Fits(Box<Measurement>),
    /// So much, which is too much.
    Needs(Peak),
}

/// Whether a script failed because it needs a launcher.
pub(crate) fn is_a_rank(why: &str) -> bool {
    why.contains("environment variable RANK")
}

/// A plan that ran out of memory, as measured without a limit.
pub(crate) struct Missed {
    pub(crate) plan: PlanResult,
    /// What held its memory: bytes by category.
    pub(crate) held: BTreeMap<String, u64>,
    /// What its operators need at once.
    pub(crate) floor: Option<Floor>,
}

/// The search with its runs.
pub(crate) struct Fitter<'a> {
    pub(crate) attempts: &'a mut dyn Attempts,
    pub(crate) wanted: Wanted,
    /// What plans are searched by; grows by what runs teach.
    pub(crate) options: Options,
    /// Whether to share a single-GPU job among several GPUs.
    pub(crate) shares: bool,
    pub(crate) rejected: Vec<Rejected>,
    /// Plans that may fit once the allocator has given back what it caches, with their runs without a limit.
    pub(crate) tight: Vec<(search::Plan, Measurement)>,
    /// The strongest degrees of settings of which another should be enough, with what costs nothing.
    pub(crate) strongest: Vec<Vec<Lever>>,
    /// Plans with which the script failed.
    pub(crate) failures: Vec<Failure>,
    /// Plans that runs measured.
    pub(crate) measured: Vec<Tried>,
    /// Whether the job trains.
    pub(crate) trains: bool,
    /// Bytes that its passes without gradients before the first step need, if it has any there only.
    pub(crate) evaluation_bytes: u64,
    /// Whether no plan that keeps results was found, so that others are looked for.
    pub(crate) same_results_fail: bool,
    /// Seconds that the first run of the job took.
    pub(crate) plain_seconds: f64,
    /// Nanoseconds of the plain job's step.
    pub(crate) plain_time: f64,
    /// Nanoseconds that the plain job takes to load a batch.
    loading_ns: Option<u64>,
    /// How often the script was run.
    pub(crate) runs: u32,
    /// How often it was waited for: some runs went on side by side.
    pub(crate) rounds: u32,
    pub(crate) run_seconds: f64,
    pub(crate) planning_seconds: f64,
    pub(crate) verifications: u32,
    /// How many of those a search stops at.
    pub(crate) most_verifications: u32,
    /// By how much runs taught to mistrust predictions.
    pub(crate) caution: Caution,
    /// Plans that completed.
    pub(crate) tried: Vec<search::Plan>,
    /// Steps of the first run of a plan.
    pub(crate) first_steps: u32,
    /// Seconds that the further steps of a first run may take.
    pub(crate) further_seconds: f64,
    /// Seconds to keep back for a run of the chosen plan that has as many steps as any will.
    pub(crate) longer_seconds: f64,
    /// Plans that have run for as many steps as any will.
    pub(crate) ran_longer: Vec<Vec<Lever>>,
    /// Plans that a run emptied its cache for to stay within the limit.
    pub(crate) emptied: Vec<Vec<Lever>>,
    /// Those of them that fit, as measured, until one is chosen.
    pub(crate) verified: Vec<PlanResult>,
    /// What held the memory at the peak of the last plan that went through: bytes by category.
    pub(crate) held: BTreeMap<String, u64>,
    /// What its operators need at once.
    pub(crate) floor: Option<Floor>,
    /// Of the plans that ran out of memory, the one that needs the least.
    pub(crate) missed: Option<Missed>,
    /// Plans that need too much, as measured.
    pub(crate) too_large: Vec<search::Plan>,
    /// What came of the run of the last resort, if it was made beside another and has not been planned with.
    pub(crate) last_resort: Option<Result<Base, ProbeFailure>>,
    /// Modules that levers skipped, with the levers' names.
    pub(crate) left_alone: BTreeSet<(String, String)>,
    /// The job on one GPU, if plans are for several.
    pub(crate) plain: Option<Base>,
}

impl<'a> Fitter<'a> {
    pub(crate) fn new(attempts: &'a mut dyn Attempts, wanted: Wanted) -> Self {
        let gpu = wanted.gpu.found.gpu;
        let wanted_steps = wanted.steps;
        Self {
            options: Options {
                budget: wanted.total_bytes - wanted.margin_bytes,
                keep_results: wanted.keep_results,
                allow: wanted.allow.clone(),
                forbid: wanted.forbid.clone(),
                dtype: if gpu.rates.bf16.is_some() {
                    Dtype::Bf16
                } else {
                    Dtype::Fp16
                },
                tf32: gpu.rates.tf32.is_some(),
                config: wanted.allocator.clone(),
                pace: Pace::new(gpu),
                lessons: Vec::new(),
                evaluations: Vec::new(),
                failed: Vec::new(),
                clashes: Vec::new(),
                left: Vec::new(),
                cluster: None,
                stop: wanted.stop.clone(),
            },
            shares: wanted.gpu.count > 1 && !wanted.inference,
            attempts,
            wanted,
            rejected: Vec::new(),
            tight: Vec::new(),
            strongest: Vec::new(),
            failures: Vec::new(),
            measured: Vec::new(),
            trains: false,
            evaluation_bytes: 0,
            same_results_fail: false,
            plain_seconds: 0.0,
            plain_time: 0.0,
            loading_ns: None,
            runs: 0,
            rounds: 0,
            run_seconds: 0.0,
            planning_seconds: 0.0,
            verifications: 0,
            first_steps: wanted_steps,
            further_seconds: 0.0,
            longer_seconds: 0.0,
            ran_longer: Vec::new(),
            emptied: Vec::new(),
            most_verifications: 0,
            caution: Caution::default(),
            tried: Vec::new(),
            verified: Vec::new(),
            held: BTreeMap::new(),
            floor: None,
            missed: None,
            too_large: Vec::new(),
            last_resort: None,
            left_alone: BTreeSet::new(),
            plain: None,
        }
    }

    /// The result, with what it took.
    fn found(self, fit: Fit, plain: Measurement) -> Ending {
        Ending::Found(Box::new(Found {
            fit: Fit {
                runs: self.runs,
                run_seconds: self.run_seconds,
                plain_seconds: self.plain_seconds,
                planning_seconds: self.planning_seconds,
                ..fit
            },
            plain,
            first_steps: self.first_steps,
            left_alone: self.left_alone,
        }))
    }

    /// What is asked of a run that is not said otherwise: the job as it is, without a limit.
    pub(crate) fn request<'r>(
        &self,
        name: impl Into<String>,
        purpose: impl Into<String>,
        levers: &'r [Lever],
    ) -> Request<'r> {
        Request {
            name: name.into(),
            purpose: purpose.into(),
            best: self.best(),
            levers,
            resize: oomph_job::settings::Resize::default(),
            limit: None,
            steps: self.wanted.steps,
            fewer: None,
            ranks: Ranks::All,
            gpus: if self.shares {
                1
            } else {
                self.wanted.gpu.count
            },
            text: None,
        }
    }

    /// The best plan so far, in words.
    fn best(&self) -> Option<String> {
        let best = self.wanted.goal.choose(&self.verified)?;
        let peak = format_bytes(best.peak.used_bytes);
        Some(format!("{peak}, {:.2}×: {}", best.time_ratio, best.what))
    }

    /// Runs the job.
    pub(crate) fn run(&mut self, request: &Request) -> anyhow::Result<Ended> {
        let ended = self.run_all(std::slice::from_ref(request)).pop();
        ended.unwrap_or_else(|| Err(anyhow::anyhow!("nothing was run")))
    }

    /// Runs the job once for each request, side by side. Where the search is stopped meanwhile, what was through by then is kept.
    pub(crate) fn run_all(&mut self, requests: &[Request]) -> Vec<anyhow::Result<Ended>> {
        if !self.verified.is_empty() {
            self.keep_back(self.longer_seconds);
        }
        self.run_all_now(requests)
    }

    /// The search ends so many seconds before its time is up.
    pub(crate) fn keep_back(&mut self, seconds: f64) {
        let seconds = Duration::from_secs_f64(seconds);
        let deadline = (self.wanted.stop.deadline).and_then(|end| end.checked_sub(seconds));
        if self.options.stop.deadline != deadline {
            self.options.stop.deadline = deadline;
            self.attempts.stop_by(&self.options.stop);
        }
    }

    /// The same in the time that was kept back, too.
    pub(crate) fn run_all_now(&mut self, requests: &[Request]) -> Vec<anyhow::Result<Ended>> {
        if let Err(stopped) = self.options.stop.check() {
            return vec![Err(stopped.into())];
        }
        let started = Instant::now();
        let mut all = self.attempts.run_all(requests);
        self.run_seconds += started.elapsed().as_secs_f64();
        if self.rounds == 0 {
            self.plain_seconds = self.run_seconds;
        }
        self.rounds += 1;
        for ended in &mut all {
            self.runs += 1;
            if let (Ok(Ended::Through(run) | Ended::OutOfMemory(run)), Some(clock)) =
                (&mut *ended, &self.wanted.clock)
            {
                let slower = reprice(&mut run.record, &clock.gpu);
                if self.runs == 1 {
                    // What copies hide behind is as long in later runs as it is by the clocks.
                    self.attempts.keep_pace(slower);
                }
            }
            if !matches!(ended, Ok(Ended::Through(_)))
                && let Err(stopped) = self.options.stop.check()
            {
                // Ctrl-C reaches the script, too: that is no failure of its own.
                *ended = Err(stopped.into());
            }
        }
        all
    }

    /// The job as it is. Where several GPUs were named, it should run on one of them.
    fn run_plain(&mut self) -> anyhow::Result<Ended> {
        let fails = |plain: &Ended| matches!(plain, Ended::Failed { why, .. } if !is_a_rank(why));
        let mut plain = self.run_plain_with(&[])?;
        if self.shares && fails(&plain) {
            // A DataParallel with explicit GPUs does not run on one.
            plain = self.run_plain_with(&[sharding::data_parallel(1)])?;
        }
        if self.shares && fails(&plain) {
            // Nor does a script that uses several GPUs by itself.
            self.shares = false;
            plain = self.run_plain_with(&[])?;
            if matches!(plain, Ended::Through(_)) {
                let sharing = sharding::data_parallel(1);
                self.note(sharing.name(), "the script uses several GPUs by itself");
            }
        }
        Ok(plain)
    }

    fn run_plain_with(&mut self, levers: &[Lever]) -> anyhow::Result<Ended> {
        let purpose = "running the unchanged job without a limit";
        self.run(&self.request("plain", purpose, levers))
    }

    /// Without a limit the allocator keeps all that it caches: what `plain` needs with one, if it used more than there is.
    fn cached(&mut self, plain: &Measurement) -> anyhow::Result<Option<Cached>> {
        let budget = self.options.budget;
        let (Some(trace), true) = (&plain.trace, plain.ranks.is_empty()) else {
            return Ok(None);
        };
        let mut summary = plain.summary.clone();
        if plain.used_bytes() > budget {
            summary.with_a_limit(trace, &plain.record);
        }
        let peak = summary.peak;
        if peak.used_bytes == plain.used_bytes() {
            return Ok(None);
        }
        if peak.used_bytes > budget {
            return Ok(Some(Cached::Needs(peak)));
        }
        let purpose =
            "it may fit if the allocator gives back what it caches: running it with a limit";
        let ended = self.run(&Request {
            limit: Some(budget),
            ..self.request("plain-limited", purpose, &[])
        })?;
        Ok(match ended {
            Ended::Through(run) if run.used_bytes() <= budget => Some(Cached::Fits(run)),
            _ => None,
        })
    }

    /// Everything after the plain run.
    fn find(&mut self, plain: &Measurement, fit: &mut Fit) -> anyhow::Result<()> {
        let fits = plain.used_bytes() <= self.options.budget;
        let several = self.shares && plain.record.steps > 0;
        let (sizes, compile) = (self.wanted.sizes.clone(), self.wanted.compile);
        if fits && sizes.is_empty() && !compile && !several {
            return Ok(());
        }
        let started = Instant::now();
        let base = match self.base(plain, Vec::new()) {
            Ok(base) => base,
            Err(error) if fits => {
                fit.assumptions.push(error.to_string());
                return Ok(());
            }
            Err(error) => bail!("the job does not fit, and oomph cannot plan for it: {error}"),
        };
        self.planning_seconds += started.elapsed().as_secs_f64();
        self.keep_pace_with(plain);
        let plain_time = self.step_ns(plain, HostTime::plain(&base.model));
        self.plain_time = plain_time.unwrap_or_default();
        self.loading_ns = Some(base.model.facts.loading_ns);
        self.say_what_is_left_out(&base.model);
        self.trains = base.model.trains;
        self.evaluation_bytes = base.model.evaluation;
        if self.goes_all_the_way(plain) {
            self.first_steps = LONGER.max(self.wanted.steps);
        }
        fit.inference = !base.model.trains;
        let mut bases = vec![base];
        if fit.inference && (!sizes.is_empty() || !fits) {
            bases.extend(self.probe_inference(&bases[0])?);
        }
        for size in sizes {
            fit.largest.push(largest::largest(self, &bases, size)?);
        }
        if several {
            let shared = sharded::plan(self, &bases[0], fit)?;
            if let Some(plan) = fit.chosen.and_then(|index| fit.plans.get(index)) {
                fit.outcome = Outcome::Fits;
                fit.why = self.wanted.goal.why(plan);
                return Ok(());
            }
            if !shared.is_empty() {
                fit.outcome = Outcome::NothingFits;
                return smaller::advise(self, &shared, fit);
            }
            // It cannot be shared: continue with one GPU.
            self.plain = None;
            self.missed = None;
        }
        let compiles = compile && fit.inference;
        if fits {
            if compiles {
                fit.plans.extend(self.compiled(&bases[0], &[])?);
            }
            return Ok(());
        }
        let proof = self.proof(&bases[0].model);
        (fit.plans, fit.chosen) = self.plans(&mut bases, proof.is_some())?;
        if fit.chosen.is_none() && proof.is_some() {
            fit.outcome = Outcome::NothingFits;
            fit.floor = proof;
            smaller::name_gpus(fit);
            return Ok(());
        }
        if compiles {
            if let Some(plan) = fit.chosen.and_then(|index| fit.plans.get(index)) {
                let levers = plan.levers.clone();
                fit.plans.extend(self.compiled(&bases[0], &levers)?);
            } else {
                // The fused kernel may be what makes the job fit.
                fit.plans = self.compiled_on_any(&bases)?;
                fit.chosen = (!fit.plans.is_empty()).then_some(0);
            }
        }
        if let Some(plan) = fit.chosen.and_then(|index| fit.plans.get(index)) {
            fit.outcome = Outcome::Fits;
            fit.why = self.wanted.goal.why(plan);
            Ok(())
        } else {
            fit.outcome = Outcome::NothingFits;
            smaller::advise(self, &bases, fit)
        }
    }

    /// What every plan for a job that trains on one GPU needs, if that is more than there is.
    fn proof(&self, model: &Model) -> Option<Floor> {
        let context = &self.wanted.gpu.found.gpu.context;
        let context = context.base_bytes + context.first_kernel_bytes;
        let counts = model.trains && self.wanted.gpu.count == 1;
        let floor = counts.then(|| Floor::of_any_plan(model, &self.options, context))?;
        (floor.bytes > self.options.budget).then_some(floor)
    }

    /// Whether a plan's first run should have as many steps as its last: where they take much less than starting the script
    /// again. Most of a script's run is often its start.
    fn goes_all_the_way(&mut self, plain: &Measurement) -> bool {
        let Some(step) = plain.record.step_seconds() else {
            return false;
        };
        let steps = self.wanted.steps;
        let planned = plain.record.planned_steps.unwrap_or(u64::from(LONGER));
        let last = LONGER.min(u32::try_from(planned).unwrap_or(LONGER));
        let start = (self.run_seconds - f64::from(steps) * step).max(0.0);
        // A plan that misses has the further steps for nothing, and later runs need not import what the first one did.
        self.further_seconds = start / 3.0;
        // A plan may be confirmed at the end of the time; too little of it is better spent on looking for one.
        let longer = SLOWER * (start + f64::from(last) * step);
        let left = self.wanted.stop.left().map(|left| left.as_secs_f64());
        if self.trains && left.is_some_and(|left| longer <= left / 2.0) {
            self.longer_seconds = longer;
        }
        f64::from(last.saturating_sub(steps)) * step <= self.further_seconds
    }

    /// Runs a job that fits for more steps at the capacity, unless it ended by itself: what each step leaves
    /// behind shows only then, and a later step may need more. If one does, all runs have as many steps from now on, and this is the
    /// job's without a limit.
    fn watch(
        &mut self,
        plain: &Measurement,
        fit: &mut Fit,
    ) -> anyhow::Result<Option<Box<Measurement>>> {
        let passes = |run: &Measurement| run.record.steps.max(run.record.inferences);
        let first = passes(plain);
        let fits = plain.used_bytes() <= self.options.budget;
        if !self.wanted.watch || !fits || first < self.wanted.steps || !plain.record.stopped {
            return Ok(None);
        }
        let purpose = "it fits: running it for more steps, as its memory may grow";
        let ended = self.run(&Request {
            limit: Some(self.wanted.total_bytes),
            steps: LONGER.max(self.wanted.steps),
            ..self.request("plain-longer", purpose, &[])
        })?;
        match ended {
            Ended::Through(run) => fit.growth = run.summary.growth,
            // None ran out yet: one that the script will come to does.
            Ended::OutOfMemory(run) if run.summary.growth.is_some() => {
                fit.outcome = Outcome::NothingFits;
                fit.growth = run.summary.growth;
            }
            Ended::OutOfMemory(run) => {
                self.wanted.steps = LONGER.max(self.wanted.steps);
                self.first_steps = self.wanted.steps;
                let purpose = "a later step needs more: running it for as many without a limit";
                let ended = self.run(&self.request("plain-later", purpose, &[]))?;
                if let Ended::Through(later) = ended
                    && later.used_bytes() > self.options.budget
                {
                    return Ok(Some(later));
                }
                bail!(
                    "the job fits for {first} steps and runs out of memory in a later one; give --steps {} or more",
                    passes(&run) + 1
                )
            }
            // It took too long, or the script has no more steps.
            Ended::Refused { .. } | Ended::Failed { .. } => {}
        }
        Ok(None)
    }

    /// Makes the host's pace such that the plain job keeps it as busy as the clocks say.
    fn keep_pace_with(&mut self, plain: &Measurement) {
        let host = self.host_ns(plain);
        let pace = &mut self.options.pace;
        pace.host_factor = (self.wanted.clock.as_ref()).map_or(1.0, |clock| clock.host.factor);
        if let (Some(load), Some(host)) = (plain.load(HostTime::default()), host)
            && load.host(pace) > 0.0
        {
            let factor = host / load.host(pace);
            pace.host_ns_per_launch *= factor;
            pace.host_ns_per_call *= factor;
        }
    }

    /// Nanoseconds that a run's step keeps the host busy, by the clocks: its operators, recomputed ones and those of levers among them.
    fn host_ns(&self, run: &Measurement) -> Option<f64> {
        let clock = self.wanted.clock.as_ref()?;
        let time = step_time(&run.record, &clock.gpu, &clock.host)?;
        // What a batch takes to prepare counts by itself.
        Some((time.estimate.host_seconds - time.input_seconds) * 1e9)
    }

    /// Nanoseconds of a run's step.
    pub(crate) fn step_ns(&self, run: &Measurement, host: HostTime) -> Option<f64> {
        run.step_time(&self.options.pace, host, self.wanted.clock.as_ref())
    }

    /// The result of a search that was stopped: the best that a run confirmed until then.
    fn conclude(&mut self, stopped: Stopped, fit: &mut Fit) {
        fit.stopped = Some(stopped);
        if fit.chosen.is_none() {
            (fit.plans, fit.chosen) = self.choose(&search::Found::default());
        }
        if let Some(plan) = fit.chosen.and_then(|index| fit.plans.get_mut(index)) {
            fit.outcome = Outcome::Fits;
            fit.why = format!(
                "{}, among the plans tried so far",
                self.wanted.goal.why(plan)
            );
            if !self.ran_longer.contains(&plan.levers) {
                plan.notes
                    .push(format!("its memory was measured for {} steps", plan.steps));
            }
        } else if fit.outcome != Outcome::NothingFits && fit.plain.used_bytes > self.options.budget
        {
            fit.outcome = Outcome::Open;
        }
    }

    /// A run as plans start from it, with the levers that it had.
    pub(crate) fn base(&self, run: &Measurement, applied: Vec<Lever>) -> Result<Base, ModelError> {
        let trace = run.trace.as_ref().ok_or(ModelError::NoStep)?;
        let mut model = Model::new(trace, &run.record)?;
        // The host runs other work too, so only the difference is the plan's effect.
        if let Some(loading) = self.loading_ns
            && !applied.iter().any(|lever| lever.sharing().is_some())
        {
            model.facts.loading_ns = loading;
        }
        Ok(Base::new(
            model,
            applied,
            run.summary.peak.allocated_bytes,
            run.summary.peak.reserved_bytes,
            &self.options.config,
        ))
    }

    /// Searches among plans that start from `bases`. Until one is verified, only among those that fit even if they need more than
    /// predicted, as others did; if there are any.
    pub(crate) fn search(&mut self, bases: &[Base]) -> Result<search::Found, Stopped> {
        self.attempts.planning(self.best().as_deref());
        let started = Instant::now();
        let mut found = None;
        let caution = self.caution.factor(self.runs_left());
        if caution > 1.0 && self.verified.is_empty() {
            let sure = self.search_with(bases, &self.options.within(caution))?;
            let results = if self.same_results_fail {
                Results::Numerics
            } else {
                self.wanted.goal.results()
            };
            let wanted = |plan: &search::Plan| plan.results <= results;
            found = sure.plans.iter().any(wanted).then_some(sure);
        }
        let found = match found {
            Some(found) => found,
            None => self.search_with(bases, &self.options)?,
        };
        self.planning_seconds += started.elapsed().as_secs_f64();
        Ok(found)
    }

    pub(crate) fn search_with(
        &self,
        bases: &[Base],
        options: &Options,
    ) -> Result<search::Found, Stopped> {
        match &self.plain {
            Some(plain) => search::search_among(plain, bases, options),
            None => search::search(bases, options),
        }
    }

    /// How many runs the time that is left is enough for, if they take as long as those before.
    pub(crate) fn runs_left(&self) -> Option<f64> {
        let left = self.options.stop.left()?.as_secs_f64();
        (self.rounds > 0).then(|| left * f64::from(self.rounds) / self.run_seconds.max(1e-9))
    }

    /// Whether there is time for a few more runs only, so that the next plan that can hold counts, not the best.
    pub(crate) fn is_short_of_time(&self) -> bool {
        self.runs_left().is_some_and(|left| left < FEW_RUNS)
    }

    /// Records why one way fails, without giving up similar ones.
    pub(crate) fn note(&mut self, what: &str, why: &str) {
        let found = Rejected {
            lever: what.to_owned(),
            why: why.to_owned(),
        };
        if !self.rejected.contains(&found) {
            self.rejected.push(found);
        }
    }

    /// Leaves a lever out.
    pub(crate) fn reject(&mut self, lever: &str, why: &str) {
        self.note(lever, why);
        if !self.options.forbid.iter().any(|name| name == lever) {
            self.options.forbid.push(lever.to_owned());
        }
    }

    /// Leaves a lever out of the `modules` that it refuses, or altogether: if it refuses all, or refuses again and again, as each
    /// time is a run.
    pub(crate) fn leave_out(&mut self, lever: &str, modules: Vec<String>, why: &str) {
        let known = self.options.left.iter().filter(|left| left.0 == lever);
        if modules.is_empty() || known.count() >= MOST_LEFT {
            return self.reject(lever, why);
        }
        self.note(lever, why);
        let left = modules.into_iter().map(|module| (lever.to_owned(), module));
        self.options.left.extend(left);
    }

    /// The levers that the script itself rules out, with the reason.
    fn say_what_is_left_out(&mut self, model: &Model) {
        for (lever, why) in search::excluded(model) {
            // Levers that are not allowed need no reason.
            if !self.options.wants(lever) {
                continue;
            }
            if model.facts.compiled {
                self.note(lever, &why); // without compilation it may go
            } else {
                self.reject(lever, &why);
            }
        }
    }
}

/// Levers in words.
pub(crate) fn listed(levers: &[Lever], between: &str) -> String {
    let words: Vec<String> = levers.iter().map(ToString::to_string).collect();
    words.join(between)
}
