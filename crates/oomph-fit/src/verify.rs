//! A run of a plan at the capacity less the margin, and what it teaches.

use oomph_bytes::format_gib;
use oomph_plan::{Lever, search};
use oomph_run::summary::Peak;

use crate::attempts::{Ended, Measurement, Request};
use crate::fitter::{Fitter, listed};
use oomph_plan::result::PlanResult;

/// How often a step has to give back the cache to be said.
const OFTEN: f64 = 0.5;

impl Fitter<'_> {
    /// Verifies a plan, which is `verified` then or not made again.
    pub(crate) fn attempt(
        &mut self,
        plan: &search::Plan,
        verified: &mut Vec<PlanResult>,
    ) -> anyhow::Result<()> {
        match self.verify(plan, true)? {
            Some(plan) => verified.push(plan),
            None => self.options.failed.push(plan.levers.clone()),
        }
        Ok(())
    }

    /// Runs a plan, at the capacity less the margin if `limited`. `None` if it does not hold; what
    /// the run taught is kept.
    pub(crate) fn verify(
        &mut self,
        plan: &search::Plan,
        limited: bool,
    ) -> anyhow::Result<Option<PlanResult>> {
        self.verifications += 1;
        let name = format!("plan-{}", self.verifications);
        let purpose = format!("verifying: {}", listed(&plan.levers, ", "));
        let ended = self.run(&Request {
            limit: limited.then_some(self.options.budget),
            ..self.request(name.clone(), purpose, &plan.levers)
        })?;
        let run = match ended {
            Ended::Through(run) => run,
            Ended::OutOfMemory(_) => {
                self.measure_miss(plan, &name)?;
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
        if let Some((lever, why)) = run.idle_lever() {
            self.reject(&lever, &why);
            return Ok(None);
        }
        let time_ratio = self.time_ratio(&run, plan);
        self.options.learn(plan, run.used_bytes(), time_ratio);
        if run.used_bytes() > self.options.budget && limited {
            return Ok(None);
        }
        self.tried.push(plan.clone());
        Ok(Some(self.measured(plan, &run, limited)))
    }

    /// Runs a plan that ran out of memory without a limit, and learns what it needs.
    fn measure_miss(&mut self, plan: &search::Plan, name: &str) -> anyhow::Result<()> {
        let ended = self.run(&self.request(
            format!("{name}-unlimited"),
            "it ran out of memory: measuring what it needs",
            &plan.levers,
        ))?;
        match ended {
            // Even a plan whose peak would do may have failed for want of one large piece.
            Ended::Through(run) => {
                let used = run.used_bytes().max(self.options.budget + 1);
                let time = self.time_ratio(&run, plan);
                self.options.learn(plan, used, time);
                if used == run.used_bytes() {
                    let missed = self.measured(plan, &run, true);
                    self.missed.push((missed, std::mem::take(&mut self.held)));
                }
            }
            Ended::Failed { why, .. } | Ended::Refused(why) => self.reject_newest(plan, &why),
            Ended::OutOfMemory(_) => self.note(
                &listed(&plan.levers, " + "),
                "the script raised an out-of-memory error of its own although memory had no limit",
            ),
        }
        Ok(())
    }

    /// The time of a run's step against the plain job's.
    fn time_ratio(&self, run: &Measurement, plan: &search::Plan) -> Option<f64> {
        let time = run.step_time(&self.options.pace, plan.host)? + plan.waits;
        (self.plain_time > 0.0).then(|| time / self.plain_time)
    }

    /// A plan as a run of it was.
    pub(crate) fn measured(
        &mut self,
        plan: &search::Plan,
        run: &Measurement,
        limited: bool,
    ) -> PlanResult {
        for lever in &run.record.levers {
            let left = lever
                .left
                .iter()
                .map(|module| (lever.name.clone(), module.clone()));
            self.left_alone.extend(left);
        }
        self.held = run
            .summary
            .by_category
            .iter()
            .map(|(name, held)| ((*name).to_owned(), *held))
            .collect();
        let mut measured = predicted(plan);
        measured.peak = run.summary.peak;
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
        measured.notes.extend(ranks_note(run));
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

/// What the ranks of a run came to, and which of them there were.
fn ranks_note(run: &Measurement) -> Option<String> {
    let least = run.ranks.iter().map(|rank| rank.1).min()?;
    let most = run.ranks.iter().map(|rank| rank.1).max()?;
    let peaks = if least == most {
        format_gib(most)
    } else {
        format!("{} to {}", format_gib(least), format_gib(most))
    };
    Some(if run.rehearsed {
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
pub(crate) fn predicted(plan: &search::Plan) -> PlanResult {
    let peak = Peak {
        allocated_bytes: plan.allocated,
        reserved_bytes: plan.reserved,
        used_bytes: plan.used,
        lower_bound: false,
    };
    PlanResult {
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
