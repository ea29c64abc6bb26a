//! Which plans are worth a run, which of them is chosen, and how long it is run.

use std::time::Instant;

use oomph_plan::search::{self, Base, Found};
use oomph_plan::{Lever, Results, Stopped, sharding};

use crate::attempts::{Ended, Request};
use crate::fitter::{Fitter, listed};
use crate::goal::Goal;
use crate::verify::predicted;
use oomph_plan::result::PlanResult;

/// The most runs of plans from the same bases; a search that has not succeeded by then will not.
const MOST_VERIFICATIONS: u32 = 16;
/// After this many plans that ran out of memory, try the one of least memory to see whether any can fit.
pub(crate) const MOST_MISSES: u32 = 2;
/// A plan that runs beside another, before any is verified, needs so many times less: what misses a budget needs as much more in
/// the median (50 and 25 % of 40 jobs, `bench/fit/unseen/results/fifth.jsonl`).
const SAFER: f64 = 1.2;
/// The same once one is verified, and predictions have been corrected.
const CLOSE: f64 = 1.04;
/// So many plans of least memory are tried one after the other, as long as each promises less than all before.
const MOST_LEAST: u32 = 3;
/// How many times what is too much goes to the host: some of it is under way when memory is fullest.
const PART_MARGIN: f64 = 1.15;
/// And if that was not enough, how many times what it then takes by the run's own figures.
const NEXT_MARGIN: f64 = 1.03;
/// So many parts are tried.
const MOST_PARTS: usize = 3;
/// Where all plans take so many times the plain step, others are looked for: tensors in host memory took 1.18 and 1.09 times for two jobs
/// whose functions took 1.5 times when computed again.
pub(crate) const DEAR: f64 = 1.3;
/// How many times the budget a plan may be thought to need that is tried where the best one is dear, how much less time it must promise,
/// and how many of them.
const LARGER: f64 = 1.2;
const QUICKER: f64 = 0.85;
const MOST_LARGER: usize = 2;
/// Steps for which the chosen plan runs. In the first ones the allocator may reserve a few percent less than
/// later, when it has split its segments differently. After this many it hardly changes.
pub(crate) const LONGER: u32 = 16;
/// A plan that runs out of memory in a later step is taken to need this part of the budget more than there is.
const LATER: u64 = 32;
/// The most plans to run for that long before accepting one.
const MOST_LONGER: usize = 4;

impl Fitter<'_> {
    /// The plans to show, and which of them is chosen. `bases` gets more runs if no plan is found from those that it has. Where it is
    /// `proved` that nothing fits on the GPU, only the net is left.
    pub(crate) fn plans(
        &mut self,
        bases: &mut Vec<Base>,
        proved: bool,
    ) -> anyhow::Result<(Vec<PlanResult>, Option<usize>)> {
        self.leave_time_for_the_net();
        let found = if proved {
            Ok(Found::default())
        } else {
            self.look_for_plans(bases)
        };
        self.keep_back(0.0);
        let interrupted = self.options.stop.check() == Err(Stopped::Interrupted);
        let time_is_up = found.as_ref().is_err_and(anyhow::Error::is::<Stopped>);
        if !interrupted && time_is_up {
            self.hold_to_the_end()?;
        }
        if !interrupted && (found.is_ok() || self.verified.is_empty()) {
            self.attempt_net(bases)?;
        }
        let found = found?;
        self.measure_on_whole_gpu();
        Ok(self.choose(&found))
    }

    /// What the best plan holds on the GPU as it is, where it emptied its cache to leave the margin free.
    fn measure_on_whole_gpu(&mut self) {
        let best = self.wanted.goal.choose(&self.verified);
        let tight =
            best.filter(|plan| self.wanted.margin_bytes > 0 && self.emptied.contains(&plan.levers));
        let Some(levers) = tight.map(|plan| plan.levers.clone()) else {
            return;
        };
        let purpose = format!("running on the whole GPU: {}", listed(&levers, ", "));
        let request = Request {
            limit: Some(self.wanted.total_bytes),
            steps: LONGER,
            ..self.request("plan-on-whole-gpu", purpose, &levers)
        };
        // Without it the plan holds as well.
        if let Ok(Ended::Through(run)) = self.run(&request) {
            let mut plans = self.verified.iter_mut();
            if let Some(plan) = plans.find(|plan| plan.levers == levers) {
                plan.on_whole_gpu = Some(run.summary.peak);
            }
        }
    }

    /// What the plans are that are searched for, of which runs verify the best.
    fn look_for_plans(&mut self, bases: &mut Vec<Base>) -> anyhow::Result<Found> {
        if self.trains {
            let settings = self.probe_settings(&bases[0])?;
            bases.extend(settings);
        }
        let mut found = Found::default();
        let keeps = self.wanted.goal.results() <= Results::Rounding;
        if keeps {
            // Plans that change numerics would cost runs, and are not wanted where there are others.
            let asked = std::mem::replace(&mut self.options.keep_results, true);
            let kept = self.plans_that_keep(bases);
            self.options.keep_results = asked;
            found = kept?;
        }
        if keeps && self.options.keep_results {
            // There are no others.
        } else if self.verified.is_empty() {
            self.same_results_fail = keeps;
            bases.extend(self.probe_precision(bases)?);
            found = self.plans_from(bases)?;
            if !keeps && self.verified.is_empty() {
                found = self.last_resort(bases)?.unwrap_or(found);
            }
        } else {
            found = self.search(bases)?; // with those that change numerics, to show
        }
        Ok(found)
    }

    /// The same of plans that keep results only.
    fn plans_that_keep(&mut self, bases: &mut Vec<Base>) -> anyhow::Result<Found> {
        let mut found = self.plans_from(bases)?;
        while self.verified.is_empty()
            && let Some(base) = self.probe_strongest()?
        {
            bases.push(base);
            found = self.plans_from(bases)?;
        }
        if self.attempt_larger(bases)? {
            found = self.plans_from(bases)?;
        }
        // The last resort itself may be all that was found, or what was found is dear: a part of it takes less time.
        let times = self.verified.iter().map(|plan| plan.time_ratio);
        if self.last_resort.is_none() && times.fold(f64::INFINITY, f64::min) < DEAR {
            return Ok(found);
        }
        Ok(self.last_resort(bases)?.unwrap_or(found))
    }

    /// Where what was found is dear: verifies the quickest plans that are thought to need a little more than there is, as predictions
    /// may be too high. Whether any ran.
    fn attempt_larger(&mut self, bases: &[Base]) -> anyhow::Result<bool> {
        let mut ran = false;
        for _ in 0..MOST_LARGER {
            let times = self.verified.iter().map(|plan| plan.time_ratio);
            let best = times.fold(f64::INFINITY, f64::min);
            if best < DEAR || best.is_infinite() || self.is_short_of_time() {
                break;
            }
            let plans = self
                .search_with(bases, &self.options.within(1.0 / LARGER))?
                .plans;
            let budget = self.options.budget;
            let quicker = plans
                .into_iter()
                .filter(|plan| plan.used > budget && plan.cost() < best * QUICKER)
                .min_by(|a, b| a.cost().total_cmp(&b.cost()));
            let Some(plan) = quicker else {
                break;
            };
            self.attempt(&plan)?;
            ran = true;
        }
        Ok(ran)
    }

    /// Plans on top of what may help any job; `None` if it is none for this one.
    fn last_resort(&mut self, bases: &mut Vec<Base>) -> anyhow::Result<Option<Found>> {
        let Some(base) = self.probe_last_resort(bases)? else {
            return Ok(None);
        };
        bases.push(base);
        self.attempt_part(bases)?;
        self.plans_from(bases).map(Some)
    }

    /// If the job fits with all that is saved on the host, verifies a plan by which only as much goes there as is too much: what
    /// stays costs no time.
    fn attempt_part(&mut self, bases: &[Base]) -> anyhow::Result<()> {
        let (Some(plain), Some(whole)) = (bases.first(), bases.last()) else {
            return Ok(());
        };
        let others = |lever: &&Lever| !matches!(lever, Lever::SaveOnCpu(_));
        let without = bases
            .iter()
            .find(|base| base.applied.iter().eq(whole.applied.iter().filter(others)));
        let Some(without) = without else {
            return Ok(());
        };
        let as_measured = |base: &Base| search::predict(base, plain, &[], &self.options);
        let (nothing, all) = (as_measured(without), as_measured(whole));
        let saved = nothing.used.saturating_sub(all.used);
        let missing = nothing.used.saturating_sub(self.options.budget);
        if all.used > self.options.budget || missing == 0 {
            return Ok(());
        }
        let mut most = (missing as f64 * PART_MARGIN) as u64;
        let mut time_of_a_byte = (all.time_ratio - nothing.time_ratio) / saved as f64;
        for _ in 0..MOST_PARTS {
            if most >= saved {
                break;
            }
            let mut less = all.clone();
            less.time_ratio = nothing.time_ratio + time_of_a_byte * most as f64;
            less.used = nothing.used - most;
            less.reserved = nothing.reserved.saturating_sub(most);
            for lever in &mut less.levers {
                if let Lever::SaveOnCpu(save) = lever {
                    *save = save.with_most(most);
                }
            }
            let known = self.verified.len();
            let goal = self.wanted.goal;
            if goal.of(less.cost(), less.used) > goal.worth(goal.least(&self.verified), 0) {
                break;
            }
            self.attempt(&less)?;
            if self.verified.len() > known {
                break;
            }
            let missed = self.too_large.iter().rev();
            let missed = missed.chain(self.tight.iter().map(|(plan, _)| plan));
            let mut missed = missed.filter(|plan| plan.levers == less.levers);
            let spared = missed.next().map(|plan| {
                time_of_a_byte = (plan.time_ratio - nothing.time_ratio) / most as f64;
                nothing.used.saturating_sub(plan.used)
            });
            let more = missing as f64 / spared.filter(|&spared| spared > 0).unwrap_or(most) as f64;
            most = (most as f64 * more.max(1.0) * NEXT_MARGIN) as u64;
        }
        Ok(())
    }

    /// Verifies plans until the best is known, and runs that for longer.
    pub(crate) fn plans_from(&mut self, bases: &[Base]) -> anyhow::Result<Found> {
        self.most_verifications = self.verifications + MOST_VERIFICATIONS;
        let mut found = self.search(bases)?;
        let mut longer = 0;
        loop {
            found = self.verify_best(bases, found)?;
            if longer >= MOST_LONGER || !self.run_best_longer()? {
                break;
            }
            longer += 1;
            found = self.search(bases)?;
        }
        Ok(found)
    }

    /// Runs the best of the verified plans for longer where the time for the search is up.
    fn hold_to_the_end(&mut self) -> anyhow::Result<()> {
        while self.run_best_longer()? {}
        Ok(())
    }

    /// Runs the best of the verified plans for longer, if it did not yet.
    fn run_best_longer(&mut self) -> anyhow::Result<bool> {
        // Several ranks take too long.
        let wants_longer = |plan: &PlanResult| {
            self.trains
                && plan.steps < LONGER
                && sharding::gpus(&plan.levers).is_none()
                && !self.ran_longer.contains(&plan.levers)
        };
        let choice = self.wanted.goal.choose(&self.verified).cloned();
        let Some(choice) = choice.filter(wants_longer) else {
            return Ok(false);
        };
        // Should it not hold, the next best has run as long.
        let mut others = self.verified.clone();
        others.retain(|plan| plan.levers != choice.levers && wants_longer(plan));
        let next = self.wanted.goal.choose(&others).cloned();
        let mut plans = vec![choice];
        plans.extend(next.filter(|_| self.attempts.at_once() > 1));
        self.run_longer(&plans)?;
        Ok(true)
    }

    /// The verified plans with those that were `found` beside them, and which is chosen.
    pub(crate) fn choose(&mut self, found: &Found) -> (Vec<PlanResult>, Option<usize>) {
        let verified = std::mem::take(&mut self.verified);
        let choice = self.wanted.goal.choose(&verified).cloned();
        shown(verified, choice.as_ref(), found)
    }

    /// Verifies the best plans found, for each goal.
    fn verify_best(&mut self, bases: &[Base], mut found: Found) -> anyhow::Result<Found> {
        let mut tries = MOST_LEAST;
        let mut most_misses = MOST_MISSES;
        loop {
            found = self.verify_for_goals(bases, found, most_misses)?;
            // What gave way in one that fits with a limit may give way in others, which were predicted too large.
            while self.verify_tight()? {
                found = self.search(bases)?;
                found = self.verify_for_goals(bases, found, 0)?;
            }
            // The least decides from then on: what needs more will hardly fit.
            most_misses = 0;
            if !self.verified.is_empty() {
                return Ok(found);
            }
            // Corrections from measured plans may wrongly rule out similar ones, and predictions may be too high: try
            // the plan of least memory on this GPU before giving up.
            let left_out = self.left_out();
            self.attempt_least(&found, bases)?;
            found = self.search(bases)?;
            // What it taught may let better ones fit, or others need less; and where a lever was left out, another plan
            // is the least.
            tries = tries.saturating_sub(1);
            let promises = |least: &search::Plan| {
                let known = self.missed.as_ref().map(|known| &known.plan.peak);
                known.is_none_or(|known| least.used < known.used_bytes)
            };
            let more = tries > 0 && found.least.as_ref().is_some_and(promises);
            if self.verified.is_empty() && self.left_out() == left_out && !more {
                return Ok(found);
            }
        }
    }

    /// Verifies plans that should fit, until none is better than those that do.
    fn verify_for_goals(
        &mut self,
        bases: &[Base],
        mut found: Found,
        most_misses: u32,
    ) -> anyhow::Result<Found> {
        // Plans that keep results first: their measurements improve the other predictions.
        let mut goals = match (self.same_results_fail, self.options.keep_results) {
            (true, _) => vec![Goal::Fastest],
            (false, true) => vec![Goal::SameResults],
            (false, false) => vec![Goal::SameResults, Goal::Fastest],
        };
        if !self.same_results_fail && !goals.contains(&self.wanted.goal) {
            goals.push(self.wanted.goal);
        }
        let mut misses = 0;
        for goal in goals {
            let mut since = 0;
            while !self.verified.is_empty() || misses < most_misses {
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
                if goal.of(best.cost(), best.used) > goal.worth(goal.least(&self.verified), since)
                    || self.verifications >= self.most_verifications
                {
                    break;
                }
                let left_out = self.left_out();
                if !self.verified.is_empty() {
                    since += 1;
                }
                let mut plans = vec![best];
                if self.attempts.at_once() > 1 {
                    plans.extend(self.safer(bases, &found, &plans[0], goal, since)?);
                }
                self.attempt_all(&plans)?;
                found = self.search(bases)?;
                if !self.verified.is_empty() || self.left_out() != left_out {
                    continue;
                }
                misses += 1;
            }
        }
        Ok(found)
    }

    /// What may run beside a plan, in case that needs more memory than predicted: the best of those that need less.
    fn safer(
        &mut self,
        bases: &[Base],
        found: &Found,
        plan: &search::Plan,
        goal: Goal,
        since: u32,
    ) -> Result<Option<search::Plan>, Stopped> {
        let factor = if self.verified.is_empty() {
            SAFER * self.caution.factor(None)
        } else {
            CLOSE
        };
        let options = self.options.within(factor);
        if plan.used <= options.budget {
            return Ok(None);
        }
        let started = Instant::now();
        let safer = self.search_with(bases, &options)?;
        self.planning_seconds += started.elapsed().as_secs_f64();
        let worth = goal.worth(goal.least(&self.verified), since);
        let mut safer: Vec<search::Plan> = safer.plans;
        safer.retain(|plan| plan.results <= goal.results());
        if self.verified.is_empty() && safer.is_empty() {
            safer.extend(found.least.clone());
        }
        let of = |plan: &search::Plan| goal.of(plan.cost(), plan.used);
        safer.retain(|other| {
            other.used < plan.used
                && of(other) <= worth
                && !other.levers.is_empty()
                && !self.options.failed.contains(&other.levers)
        });
        Ok(safer.into_iter().min_by(|a, b| of(a).total_cmp(&of(b))))
    }

    /// Changes whenever a run taught what does not work at all, or has to wait.
    fn left_out(&self) -> (usize, usize, usize) {
        (self.rejected.len(), self.failures.len(), self.tight.len())
    }

    /// Verifies the plan of least memory, unless that is the job as it is or was tried before.
    fn attempt_least(&mut self, found: &Found, bases: &[Base]) -> anyhow::Result<()> {
        match &found.least {
            Some(least)
                if !least.levers.is_empty() && !self.options.failed.contains(&least.levers) =>
            {
                // Beside it the best of those that should fit by what was learned, although others did not.
                let goal = self.wanted.goal.results();
                let mut others = found.plans.iter();
                let other = others
                    .find(|plan| plan.results <= goal && plan.levers != least.levers)
                    .filter(|_| self.attempts.at_once() > 1);
                let plans: Vec<search::Plan> = [Some(least), other]
                    .into_iter()
                    .flatten()
                    .cloned()
                    .collect();
                if plans.len() < self.attempts.at_once() {
                    self.attempt_with_last_resort(&plans, bases)
                } else {
                    self.attempt_all(&plans)
                }
            }
            _ => Ok(()),
        }
    }

    /// Runs verified plans for more steps, side by side. Those that run out of memory are given up.
    fn run_longer(&mut self, plans: &[PlanResult]) -> anyhow::Result<()> {
        let request = |(index, plan)| -> (&PlanResult, Request<'_>) {
            let plan: &PlanResult = plan;
            let name = format!("plan-{}-{index}-longer", self.verifications);
            let purpose = format!("running for {LONGER} steps: {}", listed(&plan.levers, ", "));
            let request = Request {
                limit: Some(self.options.budget),
                steps: LONGER,
                ..self.request(name, purpose, &plan.levers)
            };
            (plan, request)
        };
        let (plans, requests): (Vec<_>, Vec<_>) = (1..).zip(plans).map(request).unzip();
        let mut stopped = None;
        self.keep_back(0.0);
        for (plan, ended) in plans.into_iter().zip(self.run_all_now(&requests)).rev() {
            let ended = match ended {
                Ok(ended) => ended,
                Err(error) => {
                    stopped = Some(error);
                    continue;
                }
            };
            self.ran_longer.push(plan.levers.clone());
            let held = self.hold_longer(plan, ended);
            self.verified.retain(|other| other.levers != plan.levers);
            match held {
                Some(plan) => self.verified.push(plan),
                None => self.options.failed.push(plan.levers.clone()),
            }
        }
        stopped.map_or(Ok(()), Err)
    }

    /// A verified plan whose run for more steps ended so. `None` if it ran out of memory.
    fn hold_longer(&mut self, plan: &PlanResult, ended: Ended) -> Option<PlanResult> {
        let tried = self.tried.iter().find(|tried| tried.levers == plan.levers);
        let Some(tried) = tried.cloned() else {
            return Some(plan.clone());
        };
        let (held, used) = match ended {
            Ended::Through(run) => {
                let measured = self.measured(&tried, &run, true);
                let used = measured.peak.used_bytes;
                let held = (used <= self.options.budget).then_some(measured);
                (held, Some(used))
            }
            Ended::OutOfMemory(_) => {
                // By how much is not known. What empties its cache to fit had used all there is before, too.
                let more = self.options.budget + self.options.budget / LATER;
                self.caution
                    .missed(more as f64 / plan.peak.used_bytes.max(1) as f64);
                (None, Some(more))
            }
            // It took too long, or the script has no more steps.
            Ended::Refused { .. } | Ended::Failed { .. } => {
                let mut plan = plan.clone();
                plan.notes
                    .push(format!("its memory was measured for {} steps", plan.steps));
                (Some(plan), None)
            }
        };
        if let Some(used) = used {
            let time = held
                .as_ref()
                .map_or(plan.time_ratio, |held| held.time_ratio);
            let more = |now: f64, before: f64| if before > 0.0 { now / before } else { 1.0 };
            let outside = plan
                .peak
                .used_bytes
                .saturating_sub(plan.peak.reserved_bytes);
            self.options.correct(
                &plan.levers,
                more(
                    used.saturating_sub(outside) as f64,
                    plan.peak.reserved_bytes as f64,
                ),
                more(time, plan.time_ratio),
            );
        }
        held
    }
}

/// The verified plans and those that were `found` beside them, the fastest first, and the place of
/// the `choice`. What another plan beats in everything is no choice.
fn shown(
    mut verified: Vec<PlanResult>,
    choice: Option<&PlanResult>,
    found: &Found,
) -> (Vec<PlanResult>, Option<usize>) {
    verified.sort_by(|a, b| a.time_ratio.total_cmp(&b.time_ratio));
    let beaten = |plan: &PlanResult, by: &PlanResult| {
        by.levers != plan.levers
            && by.time_ratio <= plan.time_ratio
            && by.same_results <= plan.same_results
            && by.peak.used_bytes <= plan.peak.used_bytes
    };
    let is_choice = |plan: &PlanResult| choice.is_some_and(|choice| choice.levers == plan.levers);
    let mut plans = verified.clone();
    plans.retain(|plan| is_choice(plan) || !verified.iter().any(|by| beaten(plan, by)));
    if !plans.is_empty() {
        for other in found.plans.iter().map(predicted) {
            let is_shown = plans.iter().any(|plan| plan.levers == other.levers);
            if !is_shown && !plans.iter().any(|by| beaten(&other, by)) {
                plans.push(other);
            }
        }
    }
    plans.sort_by(|a, b| a.time_ratio.total_cmp(&b.time_ratio));
    let chosen = plans
        .iter()
        .position(|plan| plan.verified && is_choice(plan));
    (plans, chosen)
}
