//! Runs without a limit that measure what no model tells: settings, types, compiled models.

use oomph_plan::parameters::{Compile, Uncompiled};
use oomph_plan::search::{self, Base};
use oomph_plan::{Lever, Results, Stage};

use crate::attempts::{Ended, Ranks, Request};
use crate::fitter::{Fitter, listed};
use crate::goal::Goal;
use crate::select::DEAR;
use oomph_plan::result::PlanResult;

/// How many times what is predicted a plan may need where no further degree of a setting is run.
const SURE: f64 = 1.1;

/// Why a probe tells nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProbeFailure {
    /// The name of the lever that is to blame.
    pub(crate) lever: String,
    /// Whether it says itself that it cannot be applied.
    pub(crate) refused: bool,
    /// What it said, or the script.
    pub(crate) why: String,
}

impl Fitter<'_> {
    /// A training job, run with settings whose effect the model cannot predict.
    pub(crate) fn probe_settings(&mut self, plain: &Base) -> anyhow::Result<Vec<Base>> {
        let mut bases = Vec::new();
        bases.extend(self.probe_free(search::free(&plain.model, &self.options))?);
        let free = bases.first().map(|base: &Base| base.applied.clone());
        let free = free.unwrap_or_default();
        let used =
            |base: &Base, fitter: &Self| search::predict(base, plain, &[], &fitter.options).used;
        let (mut enough, mut has_dear) = (false, false);
        for degrees in search::settings(&plain.model, &self.options) {
            // What the first degree saves, a further one hardly exceeds: those by which the job cannot fit cost no run.
            let whole = used(bases.last().unwrap_or(plain), self);
            let mut saved: Option<u64> = None;
            let last = degrees.len().saturating_sub(1);
            let strongest = degrees.last().cloned();
            for (place, lever) in degrees.into_iter().enumerate() {
                if enough && self.is_short_of_time() {
                    return Ok(bases);
                }
                let most = saved.map(|saved| saved.saturating_mul(place as u64 + 1));
                let is_short =
                    most.is_some_and(|most| whole.saturating_sub(most) > self.options.budget);
                // Beside a plan that is there, if a dear one, the first degree and the last are worth a run.
                if place < last && (is_short || has_dear && place > 0) {
                    continue;
                }
                let levers: Vec<Lever> = free.iter().cloned().chain([lever]).collect();
                let Some(base) = self.probe_or_reject(&levers)? else {
                    break;
                };
                saved.get_or_insert_with(|| whole.saturating_sub(used(&base, self)));
                bases.push(base);
                // What follows takes more time for less memory.
                let all: Vec<Base> = std::iter::once(plain).chain(&bases).cloned().collect();
                let results = self.wanted.goal.results();
                let plans = self.search_with(&all, &self.options.within(SURE))?.plans;
                let wanted = plans.iter().filter(|plan| plan.results <= results);
                let ratios = wanted.map(|plan| plan.time_ratio);
                let cheapest = ratios.min_by(f64::total_cmp);
                // A dear one, as without compilation, is not all that is looked for.
                enough = cheapest.is_some_and(|ratio| ratio < DEAR);
                has_dear = cheapest.is_some();
                if enough && self.wanted.goal != Goal::LeastMemory {
                    let left = strongest.filter(|_| place < last);
                    self.strongest
                        .extend(left.map(|lever| free.iter().cloned().chain([lever]).collect()));
                    break;
                }
            }
        }
        Ok(bases)
    }

    /// The same with the strongest degree of a setting of which another should have been enough.
    pub(crate) fn probe_strongest(&mut self) -> anyhow::Result<Option<Base>> {
        match self.strongest.pop() {
            Some(levers) => self.probe_or_reject(&levers),
            None => Ok(None),
        }
    }

    /// The job in 16 bits, run once on top of the settings that cost nothing: measuring the types of
    /// results is more reliable than predicting them by rules.
    pub(crate) fn probe_precision(&mut self, bases: &[Base]) -> anyhow::Result<Option<Base>> {
        let Some((base, mut levers)) = ground(bases) else {
            return Ok(None);
        };
        let Some(lever) = search::precision(&base.model, &self.options) else {
            return Ok(None);
        };
        levers.push(lever);
        self.probe_or_reject(&levers)
    }

    /// A training job for which nothing else was found, run with what may help any job, unless it was.
    pub(crate) fn probe_last_resort(&mut self, bases: &[Base]) -> anyhow::Result<Option<Base>> {
        if let Some(probed) = self.last_resort.take() {
            return Ok(self.or_reject(probed));
        }
        match self.last_resort_levers(bases) {
            Some(levers) => self.probe_or_reject(&levers),
            None => Ok(None),
        }
    }

    /// The levers of that run.
    fn last_resort_levers(&self, bases: &[Base]) -> Option<Vec<Lever>> {
        let (base, mut levers) = ground(bases).filter(|(base, _)| base.model.trains)?;
        levers.push(search::last_resort(&base.model, &self.options)?);
        Some(levers)
    }

    /// Verifies plans, and beside them makes the run of the last resort. One that fits is a verified plan, if a slow one: the time
    /// may be up before what is better has been found.
    pub(crate) fn attempt_with_last_resort(
        &mut self,
        plans: &[search::Plan],
        bases: &[Base],
    ) -> anyhow::Result<()> {
        let is_known = |levers: &Vec<Lever>| bases.iter().any(|base| base.applied == *levers);
        let levers = self.last_resort_levers(bases);
        let levers = levers.filter(|levers| self.last_resort.is_none() && !is_known(levers));
        let (Some(levers), Some(whole)) = (levers, bases.first()) else {
            return self.attempt_all(plans);
        };
        let (name, purpose) = self.of_probe(&levers);
        let beside = self.request(name, purpose, &levers);
        let Some(ended) = self.attempt_beside(plans, Some(beside))? else {
            return Ok(());
        };
        let run = match &ended {
            Ended::Through(run) => Some(run.clone()),
            _ => None,
        };
        let probed = self.probed(&levers, ended);
        if let (Ok(base), Some(run)) = (&probed, run)
            && run.used_bytes() <= self.options.budget
        {
            let plan = search::predict(base, whole, &[], &self.options);
            let held = self.holds(&plan, &run, true);
            self.verified.push(held);
        }
        self.last_resort = Some(probed);
        Ok(())
    }

    /// An inference job, run with its levers, each run on top of the one before.
    pub(crate) fn probe_inference(&mut self, plain: &Base) -> anyhow::Result<Vec<Base>> {
        let mut bases = Vec::new();
        bases.extend(self.probe_free(search::free(&plain.model, &self.options))?);
        let mut on: Vec<Lever> = bases
            .iter()
            .flat_map(|base: &Base| base.applied.iter().cloned())
            .collect();
        // Levers that cost nothing and keep results need no alternative.
        let enough = bases.iter().any(|base: &Base| {
            search::predict(base, plain, &[], &self.options).used <= self.options.budget
        });
        if enough {
            return Ok(bases);
        }
        for step in search::ladder(&plain.model, &self.options) {
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
                (None, Some(failure)) => self.reject(&failure.lever, &failure.why),
                (None, None) => {}
            }
        }
        Ok(bases)
    }

    /// The job with levers that cost nothing; drops one that fails or has no effect.
    pub(crate) fn probe_free(&mut self, mut on: Vec<Lever>) -> anyhow::Result<Option<Base>> {
        while !on.is_empty() {
            match self.probe(&on)? {
                Ok(base) => return Ok(Some(base)),
                Err(failure) => {
                    self.reject(&failure.lever, &failure.why);
                    let before = on.len();
                    on.retain(|lever| lever.name() != failure.lever);
                    if on.len() == before {
                        on.clear();
                    }
                }
            }
        }
        Ok(None)
    }

    /// The job with `levers`; a lever that fails is left out.
    fn probe_or_reject(&mut self, levers: &[Lever]) -> anyhow::Result<Option<Base>> {
        let probed = self.probe(levers)?;
        Ok(self.or_reject(probed))
    }

    fn or_reject(&mut self, probed: Result<Base, ProbeFailure>) -> Option<Base> {
        probed
            .map_err(|failure| self.reject(&failure.lever, &failure.why))
            .ok()
    }

    /// The job with `levers` and without a limit.
    fn probe(&mut self, levers: &[Lever]) -> anyhow::Result<Result<Base, ProbeFailure>> {
        self.probe_ranks(levers, Ranks::All)
    }

    /// The same with some of the ranks of a shared job.
    pub(crate) fn probe_ranks(
        &mut self,
        levers: &[Lever],
        ranks: Ranks,
    ) -> anyhow::Result<Result<Base, ProbeFailure>> {
        let (name, purpose) = self.of_probe(levers);
        let ended = self.run(&Request {
            ranks,
            ..self.request(name, purpose, levers)
        })?;
        Ok(self.probed(levers, ended))
    }

    /// The name of such a run, and what it is for.
    fn of_probe(&self, levers: &[Lever]) -> (String, String) {
        let purpose = format!("running it with {}, without a limit", listed(levers, ", "));
        (format!("probe-{}", self.runs), purpose)
    }

    /// What came of it.
    fn probed(&self, levers: &[Lever], ended: Ended) -> Result<Base, ProbeFailure> {
        let last = levers.last().map(Lever::name).unwrap_or_default();
        let blame = |lever: Option<String>, why: String| {
            Err(ProbeFailure {
                lever: lever.unwrap_or_else(|| last.to_owned()),
                refused: false,
                why,
            })
        };
        match ended {
            Ended::Through(run) => match run.idle_lever() {
                Some((lever, why)) => blame(Some(lever), why),
                None => self
                    .base(&run, levers.to_vec())
                    .or_else(|error| blame(None, error.to_string())),
            },
            Ended::OutOfMemory(_) => blame(None, "it ran out of memory with it".to_owned()),
            Ended::Refused { lever, why, .. } => {
                blame(lever, why).map_err(|failure| ProbeFailure {
                    refused: true,
                    ..failure
                })
            }
            Ended::Failed { lever, why, .. } => blame(lever, why),
        }
    }

    /// The job with `levers` and compiled models, measured by a run.
    pub(crate) fn compiled(
        &mut self,
        base: &Base,
        levers: &[Lever],
    ) -> anyhow::Result<Option<PlanResult>> {
        let compile = Lever::from(Compile {});
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
            // Its predictions are the plain job's, and compiled code hides the steps.
            plan.predicted = plan.peak;
            plan.notes
                .push("the time of compiled models is not estimated".to_owned());
        }
        Ok(found)
    }

    /// Compiled models with levers that keep results or, if that does not fit, with all that were run.
    pub(crate) fn compiled_on_any(&mut self, bases: &[Base]) -> anyhow::Result<Vec<PlanResult>> {
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
}

/// What else is probed on top of, with its levers: the job without compilation, which rules out the most, if that is at hand; or
/// as it is, with the settings that cost nothing.
fn ground(bases: &[Base]) -> Option<(&Base, Vec<Lever>)> {
    let uncompiled = Lever::from(Uncompiled {});
    let without = bases
        .iter()
        .find(|base| base.applied.last() == Some(&uncompiled));
    match without {
        Some(base) => Some((base, base.applied.clone())),
        None => Some((bases.first()?, free_levers(bases))),
    }
}

/// The settings that cost nothing, which come first among what was probed.
fn free_levers(bases: &[Base]) -> Vec<Lever> {
    let free = bases.get(1).map_or(&[][..], |base| &base.applied);
    let is_free = |lever: &&Lever| lever.stage() == Stage::Free;
    free.iter().filter(is_free).cloned().collect()
}
