//! Runs without a limit that measure what no model tells: settings, types, compiled models.

use std::collections::VecDeque;

use oomph_plan::parameters::Compile;
use oomph_plan::search::{self, Base};
use oomph_plan::{Lever, Results, Stage, Stopped};

use crate::attempts::{Ended, Ranks, Request};
use crate::fitter::{Fitter, listed};
use crate::goal::Goal;
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
        for degrees in search::settings(&plain.model, &self.options) {
            // What the first degree saves, a further one hardly exceeds: those by which the job cannot fit cost no run.
            let whole = used(bases.last().unwrap_or(plain), self);
            let mut saved: Option<u64> = None;
            let last = degrees.len().saturating_sub(1);
            let with_free = |lever| -> Vec<Lever> { free.iter().cloned().chain([lever]).collect() };
            let mut left: VecDeque<Vec<Lever>> = degrees.into_iter().map(with_free).collect();
            let mut strongest = None;
            let mut place = 0;
            while let Some(levers) = left.pop_front() {
                place += 1;
                let most = saved.map(|saved| saved.saturating_mul(place));
                if place <= last as u64
                    && most.is_some_and(|most| whole.saturating_sub(most) > self.options.budget)
                {
                    continue;
                }
                let mut now = vec![levers];
                // Beside the first one the strongest: whether those in between can be enough.
                if place == 1 && self.attempts.at_once() > 1 {
                    now.extend(left.pop_back());
                }
                let mut probed = self.probe_or_reject_all(&now)?.into_iter();
                let Some(base) = probed.next().flatten() else {
                    break;
                };
                saved.get_or_insert_with(|| whole.saturating_sub(used(&base, self)));
                bases.push(base);
                strongest = strongest.or_else(|| probed.next().flatten());
                // What follows takes more time for less memory.
                if self.wanted.goal == Goal::LeastMemory {
                    continue;
                }
                if self.are_enough(plain, &bases)? {
                    let unknown = left.pop_back().filter(|_| strongest.is_none());
                    self.strongest.extend(unknown);
                    break;
                }
                let with: Vec<Base> = bases.iter().chain(&strongest).cloned().collect();
                if strongest.is_some() && !self.are_enough(plain, &with)? {
                    break;
                }
            }
            bases.extend(strongest);
        }
        Ok(bases)
    }

    /// Whether a plan from these bases should fit even if it needs a little more than predicted.
    fn are_enough(&self, plain: &Base, bases: &[Base]) -> Result<bool, Stopped> {
        let all: Vec<Base> = std::iter::once(plain).chain(bases).cloned().collect();
        let results = self.wanted.goal.results();
        let found = self.search_with(&all, &self.options.within(SURE))?;
        Ok(found.plans.iter().any(|plan| plan.results <= results))
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
        let plain = bases.first();
        let Some(lever) = plain.and_then(|base| search::precision(&base.model, &self.options))
        else {
            return Ok(None);
        };
        let mut levers = free_levers(bases);
        levers.push(lever);
        self.probe_or_reject(&levers)
    }

    /// A training job for which nothing else was found, run with what may help any job.
    pub(crate) fn probe_last_resort(&mut self, bases: &[Base]) -> anyhow::Result<Option<Base>> {
        let Some(lever) = bases
            .first()
            .filter(|base| base.model.trains)
            .and_then(|base| search::last_resort(&base.model, &self.options))
        else {
            return Ok(None);
        };
        let mut levers = free_levers(bases);
        levers.push(lever);
        self.probe_or_reject(&levers)
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
        let all = self.probe_or_reject_all(std::slice::from_ref(&levers.to_vec()))?;
        Ok(all.into_iter().next().flatten())
    }

    /// The same with each of several, side by side.
    fn probe_or_reject_all(&mut self, all: &[Vec<Lever>]) -> anyhow::Result<Vec<Option<Base>>> {
        let probed = self.probe_all(all, Ranks::All)?;
        let known = probed.into_iter().map(|base| {
            base.map_err(|failure| self.reject(&failure.lever, &failure.why))
                .ok()
        });
        Ok(known.collect())
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
        let mut probed = self.probe_all(std::slice::from_ref(&levers.to_vec()), ranks)?;
        Ok(probed.remove(0))
    }

    /// The same with each of several plans' levers, side by side.
    fn probe_all(
        &mut self,
        all: &[Vec<Lever>],
        ranks: Ranks,
    ) -> anyhow::Result<Vec<Result<Base, ProbeFailure>>> {
        let requests: Vec<Request> = (self.runs..)
            .zip(all)
            .map(|(number, levers)| {
                let purpose = format!("running it with {}, without a limit", listed(levers, ", "));
                Request {
                    ranks,
                    ..self.request(format!("probe-{number}"), purpose, levers)
                }
            })
            .collect();
        let ended = self.run_all(&requests);
        // A search that is stopped has an answer for the first alone.
        let known = all.iter().zip(ended);
        known
            .map(|(levers, ended)| Ok(self.probed(levers, ended?)))
            .collect()
    }

    /// What a probe tells that ended so.
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

/// The settings that cost nothing, which come first among what was probed.
fn free_levers(bases: &[Base]) -> Vec<Lever> {
    let free = bases.get(1).map_or(&[][..], |base| &base.applied);
    let is_free = |lever: &&Lever| lever.stage() == Stage::Free;
    free.iter().filter(is_free).cloned().collect()
}
