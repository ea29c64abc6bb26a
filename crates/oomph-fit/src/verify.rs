//! A run of a plan at the capacity less the margin, and what it teaches.

use oomph_bytes::{format_bytes, format_gib};
use oomph_job::settings::Fewer;
use oomph_plan::model::Model;
use oomph_plan::{Floor, Group, Lever, Stage, search, sharding};
use oomph_run::summary::Peak;

use crate::attempts::{Ended, Measurement, Request};
use crate::fitter::{Fitter, Missed, listed};
use crate::select::LONGER;
use oomph_plan::result::{PlanResult, Tried};

/// So many plans that are a little too large wait for others to be run first.
const MOST_TIGHT: usize = 3;
/// A plan that holds so many times its budget after a step will hardly fit, and ends there.
const FAR: f64 = 1.25;
/// From this many cache flushes per step on, the note says so.
const OFTEN: f64 = 0.5;

impl Fitter<'_> {
    /// Verifies a plan: it ends up in `verified`, or is not tried again.
    pub(crate) fn attempt(&mut self, plan: &search::Plan) -> anyhow::Result<()> {
        self.attempt_all(std::slice::from_ref(plan))
    }

    /// Verifies plans side by side.
    pub(crate) fn attempt_all(&mut self, plans: &[search::Plan]) -> anyhow::Result<()> {
        self.attempt_beside(plans, None).map(|_| ())
    }

    /// The same, with another run `beside` them. How that ended.
    pub(crate) fn attempt_beside(
        &mut self,
        plans: &[search::Plan],
        beside: Option<Request>,
    ) -> anyhow::Result<Option<Ended>> {
        let names: Vec<String> = plans.iter().map(|_| self.next_name()).collect();
        let verifications = plans.iter().zip(&names);
        let requests: Vec<Request> = verifications
            .map(|(plan, name)| self.verification(plan, name, true))
            .chain(beside)
            .collect();
        let mut all = self.run_all(&requests);
        let other = if all.len() > plans.len() {
            all.pop()
        } else {
            None
        };
        // The first is the one that is wanted most: what it teaches stays.
        let mut stopped = None;
        for ((plan, request), ended) in plans.iter().zip(&requests).zip(all).rev() {
            let held = ended.and_then(|ended| self.judge(plan, request, true, ended));
            match held {
                Ok(Some(plan)) => self.verified.push(plan),
                Ok(None) => self.options.failed.push(plan.levers.clone()),
                Err(error) => stopped = Some(error),
            }
        }
        stopped.map_or_else(|| other.transpose(), Err)
    }

    /// Runs a plan, at the capacity minus the margin if `limited`. `None` if it does not fit; the
    /// run's measurements are kept.
    pub(crate) fn verify(
        &mut self,
        plan: &search::Plan,
        limited: bool,
    ) -> anyhow::Result<Option<PlanResult>> {
        let name = self.next_name();
        let request = self.verification(plan, &name, limited);
        let ended = self.run(&request)?;
        self.judge(plan, &request, limited, ended)
    }

    pub(crate) fn next_name(&mut self) -> String {
        self.verifications += 1;
        format!("plan-{}", self.verifications)
    }

    /// Whether a plan first runs without a limit. What needs no more than the capacity does not meet a limit, and what needs more
    /// is measured at once. The one that is chosen runs once more, for longer and with the limit, unless the job infers or has
    /// several ranks, or steps cost so little that the first run has had them.
    fn measures_first(&self, plan: &search::Plan, limited: bool) -> bool {
        limited && self.trains && sharding::gpus(&plan.levers).is_none()
    }

    /// The first run of a plan.
    fn verification<'r>(&self, plan: &'r search::Plan, name: &str, limited: bool) -> Request<'r> {
        let purpose = format!("verifying: {}", listed(&plan.levers, ", "));
        let request = self.request(name, purpose, &plan.levers);
        if self.measures_first(plan, limited) {
            // Levers may make steps much slower to run than the job's own.
            let outside = plan.used.saturating_sub(plan.reserved);
            let bytes = self.options.budget.saturating_sub(outside);
            // A look at samples may need more than any step.
            let looks = plan.levers.iter().any(Lever::looks_at_samples);
            let far = (bytes as f64 * FAR) as u64;
            Request {
                steps: self.first_steps,
                fewer: Some(Fewer {
                    steps: self.wanted.steps,
                    bytes,
                    first_bytes: if looks { u64::MAX } else { far },
                    seconds: self.further_seconds,
                }),
                ..request
            }
        } else {
            Request {
                limit: limited.then_some(self.options.budget),
                ..request
            }
        }
    }

    /// What came of a plan's first run.
    fn judge(
        &mut self,
        plan: &search::Plan,
        request: &Request,
        limited: bool,
        mut ended: Ended,
    ) -> anyhow::Result<Option<PlanResult>> {
        let mut spare = None;
        let name = &request.name;
        if self.measures_first(plan, limited) {
            let mut steps = request.steps;
            if matches!(ended, Ended::Failed { .. }) && steps > self.wanted.steps {
                // The script itself may fail in a later step.
                steps = self.wanted.steps;
                self.first_steps = steps;
                ended = self.run(&self.verification(plan, name, limited))?;
            }
            let Some(run) = self.went_through(plan, ended) else {
                return Ok(None);
            };
            if run.used_bytes() <= self.options.budget {
                if steps >= LONGER && !run.ended_before(steps) {
                    self.ran_longer.push(plan.levers.clone());
                }
                return Ok(Some(self.holds(plan, &run, true)));
            }
            let looks = plan.levers.iter().any(Lever::looks_at_samples);
            if run.least_bytes(looks) > self.options.budget {
                self.missed(plan, &run);
                return Ok(None);
            }
            // It may fit once the allocator has given back what it caches. That takes time, and another run: a plan that needs a
            // little less may not have to.
            if self.tight.len() < MOST_TIGHT && !self.is_short_of_time() {
                let time_ratio = self.time_ratio(&run, plan);
                self.learn_of_miss(plan, &run, run.used_bytes());
                let mut tight = plan.clone();
                tight.used = run.used_bytes();
                tight.reserved = run.reserved_bytes();
                tight.learned = self.options.lesson(&plan.levers);
                tight.time_ratio = time_ratio.unwrap_or(plan.time_ratio);
                self.tight.push((tight, run));
                return Ok(None);
            }
            spare = Some(run);
        }
        self.verify_limited(plan, spare, name, limited)
    }

    /// The plans that may fit once the allocator has given back what it caches, where those that fit without it take more time. Whether
    /// one does.
    pub(crate) fn verify_tight(&mut self) -> anyhow::Result<bool> {
        let goal = self.wanted.goal;
        let known_before = self.verified.len();
        let mut tight = std::mem::take(&mut self.tight);
        tight.sort_by(|(a, _), (b, _)| a.cost().total_cmp(&b.cost()));
        let mut tight = (1..).zip(tight);
        loop {
            let known = goal.worth(goal.least(&self.verified), 1);
            let worth = |(_, (plan, _)): &(u32, (search::Plan, Measurement))| {
                goal.of(plan.cost(), plan.used) <= known
            };
            let now: Vec<_> = tight
                .by_ref()
                .filter(worth)
                .take(self.attempts.at_once())
                .collect();
            if now.is_empty() {
                return Ok(self.verified.len() > known_before);
            }
            let requests: Vec<Request> = now
                .iter()
                .map(|(number, (plan, _))| {
                    let name = format!("plan-{}-{number}", self.verifications);
                    self.limited(plan, &name, true, true)
                })
                .collect();
            let all = self.run_all(&requests);
            let mut stopped = None;
            for (((_, (plan, run)), request), ended) in now.iter().zip(&requests).zip(all) {
                let spare = Some(run.clone());
                let held =
                    ended.and_then(|ended| self.judge_limited(plan, spare, request.clone(), ended));
                match held {
                    Ok(Some(held)) => {
                        self.options.failed.retain(|levers| *levers != plan.levers);
                        self.verified.push(held);
                    }
                    Ok(None) => {}
                    Err(error) => stopped = Some(error),
                }
            }
            stopped.map_or(Ok(()), Err)?;
        }
    }

    /// Runs a plan at the capacity minus the margin if `limited`; `spare` is its run without a limit, if there was one.
    fn verify_limited(
        &mut self,
        plan: &search::Plan,
        spare: Option<Measurement>,
        name: &str,
        limited: bool,
    ) -> anyhow::Result<Option<PlanResult>> {
        let request = self.limited(plan, name, spare.is_some(), limited);
        let ended = self.run(&request)?;
        self.judge_limited(plan, spare, request, ended)
    }

    /// That run; `again`: after one without a limit.
    pub(crate) fn limited<'r>(
        &self,
        plan: &'r search::Plan,
        name: &str,
        again: bool,
        limited: bool,
    ) -> Request<'r> {
        let purpose = format!("verifying: {}", listed(&plan.levers, ", "));
        let name = if again {
            format!("{name}-limited")
        } else {
            name.to_owned()
        };
        let mut request = Request {
            limit: limited.then_some(self.options.budget),
            ..self.request(name, purpose, &plan.levers)
        };
        if again {
            // What has to empty its cache to fit often runs out in a later step.
            request.steps = request.steps.max(LONGER);
            request.fewer = self.options.stop.left().map(|left| Fewer {
                steps: self.wanted.steps,
                bytes: u64::MAX,
                first_bytes: u64::MAX,
                seconds: left.as_secs_f64() / 2.0,
            });
        }
        request
    }

    /// What came of it.
    fn judge_limited(
        &mut self,
        plan: &search::Plan,
        spare: Option<Measurement>,
        mut request: Request,
        mut ended: Ended,
    ) -> anyhow::Result<Option<PlanResult>> {
        let limited = request.limit.is_some();
        if matches!(ended, Ended::Failed { .. }) && request.steps > self.wanted.steps {
            request.steps = self.wanted.steps;
            ended = self.run(&request)?;
        }
        match ended {
            Ended::OutOfMemory(_) => {
                match spare {
                    Some(run) => self.missed(plan, &run),
                    None => self.measure_miss(plan, &request.name)?,
                }
                Ok(None)
            }
            ended => {
                let Some(run) = self.went_through(plan, ended) else {
                    return Ok(None);
                };
                if run.used_bytes() > self.options.budget && limited {
                    self.learn(plan, &run, run.reserved_bytes());
                    return Ok(None);
                }
                if request.steps >= LONGER && !run.ended_before(request.steps) {
                    self.ran_longer.push(plan.levers.clone());
                }
                Ok(Some(self.holds(plan, &run, limited)))
            }
        }
    }

    /// A run of a plan without a limit; `None` if it did not complete, or a lever had no effect.
    fn completed(
        &mut self,
        plan: &search::Plan,
        request: &Request,
    ) -> anyhow::Result<Option<Measurement>> {
        let ended = self.run(request)?;
        Ok(self.went_through(plan, ended))
    }

    /// The measurements of a run of a plan that ended so; if there are none, what is to blame is left out.
    pub(crate) fn went_through(
        &mut self,
        plan: &search::Plan,
        ended: Ended,
    ) -> Option<Measurement> {
        let run = match ended {
            Ended::Through(run) => *run,
            Ended::OutOfMemory(_) => {
                self.note(
                    &listed(&plan.levers, " + "),
                    "the script itself raised an out-of-memory error, although memory was unlimited",
                );
                return None;
            }
            Ended::Refused {
                lever: Some(lever),
                beside: Some(other),
                why,
                ..
            } => {
                self.note(&format!("{lever} beside {other}"), &why);
                let both = plan.levers.iter().map(Lever::name);
                let both = both.filter(|name| *name == lever || *name == other);
                self.options.clashes.push(both.collect());
                return None;
            }
            Ended::Refused {
                lever: Some(lever),
                modules,
                why,
                ..
            } => {
                self.leave_out(&lever, modules, &why);
                return None;
            }
            Ended::Refused { lever, why, .. } | Ended::Failed { lever, why, .. } => {
                self.reject_failed(plan, lever, &why);
                return None;
            }
        };
        if let Some((lever, why)) = run.idle_lever() {
            self.reject(&lever, &why);
            return None;
        }
        Some(run)
    }

    /// A plan whose run went through, and what that teaches.
    pub(crate) fn holds(
        &mut self,
        plan: &search::Plan,
        run: &Measurement,
        limited: bool,
    ) -> PlanResult {
        self.learn(plan, run, run.reserved_bytes());
        self.tried.push(plan.clone());
        if !limited {
            self.floor = floor(run);
        }
        self.measured(plan, run, limited)
    }

    /// Runs a plan that ran out of memory without a limit, and learns what it needs.
    fn measure_miss(&mut self, plan: &search::Plan, name: &str) -> anyhow::Result<()> {
        let request = self.request(
            format!("{name}-unlimited"),
            "it ran out of memory: measuring what it needs",
            &plan.levers,
        );
        if let Some(run) = self.completed(plan, &request)? {
            self.missed(plan, &run);
        }
        Ok(())
    }

    /// Learns what a plan needs that does not fit.
    fn missed(&mut self, plan: &search::Plan, run: &Measurement) {
        // A plan may fail for lack of one large piece even if its peak would fit.
        let used = run.used_bytes().max(self.options.budget + 1);
        self.learn_of_miss(plan, run, used);
        self.too_large.push(search::Plan {
            used,
            reserved: run.reserved_bytes(),
            time_ratio: self.time_ratio(run, plan).unwrap_or(plan.time_ratio),
            ..plan.clone()
        });
        // One step says what is too much, not how much all of them need.
        if used == run.used_bytes() && !run.ended_before(2) {
            let plan = self.measured(plan, run, true);
            let held = std::mem::take(&mut self.held);
            let least = self.missed.as_ref().map(|least| least.plan.peak.used_bytes);
            if least.is_none_or(|least| used < least) {
                let floor = floor(run);
                self.missed = Some(Missed { plan, held, floor });
            }
        }
    }

    /// Learns from a plan's run that used too much, also by how much such plans exceed their predictions.
    fn learn_of_miss(&mut self, plan: &search::Plan, run: &Measurement, used: u64) {
        let reserved = run.reserved_bytes() + (used - run.used_bytes());
        if self.learn(plan, run, reserved) && plan.used <= self.options.budget {
            self.caution.missed(used as f64 / plan.used.max(1) as f64);
        }
    }

    /// Learns from a plan's run, in which the allocator held `reserved` bytes. Whether that was in a step: what passes without
    /// gradients held before the first one says nothing of the steps.
    fn learn(&mut self, plan: &search::Plan, run: &Measurement, reserved: u64) -> bool {
        let evaluation = self.evaluation(run);
        if let Some(bytes) = evaluation {
            self.options.learn_evaluation(&plan.levers, bytes);
        }
        let in_a_step = evaluation.is_none_or(|bytes| bytes <= plan.reserved);
        let reserved = if in_a_step { reserved } else { plan.reserved };
        let time_ratio = self.time_ratio(run, plan);
        self.options.learn(plan, reserved, time_ratio);
        in_a_step
    }

    /// What passes without gradients before the first step needed, if the plain job has any.
    fn evaluation(&self, run: &Measurement) -> Option<u64> {
        let model = || Model::new(run.trace.as_ref()?, &run.record).ok();
        Some((self.evaluation_bytes > 0).then(model)??.evaluation)
    }

    /// The time of a run's step relative to the plain job's.
    fn time_ratio(&self, run: &Measurement, plan: &search::Plan) -> Option<f64> {
        let time = self.step_ns(run, plan.host)? + plan.waits;
        (self.plain_time > 0.0).then(|| time / self.plain_time)
    }

    /// A plan with the measurements of its run.
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
        if run.retries_a_step() > 0.0 {
            self.emptied.push(plan.levers.clone());
        }
        if run.retries_a_step() >= OFTEN {
            measured.notes.push(
                "it fits so tightly that the allocator empties its cache in most steps, which takes time; a smaller batch or a larger --margin avoids this".to_owned(),
            );
        }
        if let Some(growth) = &run.summary.growth {
            measured.notes.push(format!(
                "it grows by {} a step{}, which no lever changes: full near step {}",
                format_bytes(growth.bytes_per_step),
                growth
                    .place
                    .as_ref()
                    .map_or_else(String::new, |place| format!(" ({place})")),
                growth.full_at_step
            ));
        }
        self.measured.retain(|other| other.what != measured.what);
        self.measured.push(Tried {
            what: measured.what.clone(),
            used_bytes: measured.peak.used_bytes,
            time_ratio: measured.time_ratio,
        });
        let switches = run.record.levers.iter().filter_map(|lever| {
            let switch = lever.switch.clone()?;
            Some((lever.name.clone(), switch))
        });
        measured.switches = switches.collect();
        measured.notes.extend(ranks_note(run));
        measured
            .notes
            .extend(run.record.levers.iter().filter_map(|lever| {
                let note = lever.note.as_ref()?;
                Some(format!("{}: {note}", lever.name))
            }));
        measured
    }

    /// The script fails under a plan: the `blamed` lever is left out, else the one that no plan has
    /// worked with; where there is no such lever, this plan alone. What has failed in the same way before had the same lever: one
    /// that is not in all of those plans was not to blame.
    fn reject_failed(&mut self, plan: &search::Plan, blamed: Option<String>, why: &str) {
        let alike = |failure: &&Failure| failure.why == why;
        let common: Vec<Lever> = plan
            .levers
            .iter()
            .filter(|lever| {
                let mut failures = self.failures.iter().filter(alike);
                failures.all(|failure| failure.levers.contains(&lever.name()))
            })
            .cloned()
            .collect();
        let pardoned: Vec<String> = self
            .failures
            .iter()
            .filter(alike)
            .filter_map(|failure| failure.blamed.clone())
            .filter(|name| !common.iter().any(|lever| lever.name() == name))
            .collect();
        let reason = format!("the script failed with it: {why}");
        for name in pardoned {
            if !self.wanted.forbid.contains(&name) {
                self.options.forbid.retain(|other| *other != name);
            }
            self.rejected
                .retain(|known| known.lever != name || known.why != reason);
        }
        let suspect = suspect(&common, &self.options.proved()).map(|lever| lever.name().to_owned());
        let again = self.failures.iter().any(|failure| alike(&failure));
        let blamed = blamed.or(suspect);
        if let Some(name) = &blamed {
            self.reject(name, &reason);
        } else {
            self.note(&listed(&plan.levers, " + "), &reason);
            if again && !common.is_empty() {
                // Each of them works, but not with the others.
                let clash = common.iter().map(Lever::name).collect();
                self.options.clashes.push(clash);
            }
        }
        self.failures.push(Failure {
            why: why.to_owned(),
            levers: plan.levers.iter().map(Lever::name).collect(),
            blamed,
        });
    }
}

/// A plan with which the script failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The error, in a line.
    why: String,
    /// The names of its levers.
    levers: Vec<&'static str>,
    /// The lever that was left out for it.
    blamed: Option<String>,
}

/// The lever that a script's failure is put down to, of those that no plan has worked with: what cuts the script's batches shows its own
/// code other sizes, all else only other times and places. Else the last one.
fn suspect<'l>(levers: &'l [Lever], proved: &[&str]) -> Option<&'l Lever> {
    let unproved = || {
        // The way to share the job already ran by itself.
        let unproved =
            |lever: &&Lever| lever.sharing().is_none() && !proved.contains(&lever.name());
        levers.iter().rev().filter(unproved)
    };
    let cuts = |lever: &&Lever| lever.stage() == Stage::Combined(Group::Batch);
    unproved().find(cuts).or_else(|| unproved().next())
}

/// What the operators of a run need at once.
fn floor(run: &Measurement) -> Option<Floor> {
    let model = Model::new(run.trace.as_ref()?, &run.record).ok()?;
    Some(Floor::of(&model))
}

/// The outcome of the ranks of a run, and which ranks ran.
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
            "only ranks {} ran and used {peaks}; the others are assumed to be like them",
            names.join(", ")
        )
    } else {
        format!("all {} ranks ran and used {peaks}", run.ranks.len())
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
        on_whole_gpu: None,
        predicted: peak,
        time_ratio: plan.time_ratio,
        predicted_time_ratio: plan.time_ratio,
        same_results: plan.results,
        verified: false,
        steps: 0,
        notes: plan.assumptions.clone(),
        switches: std::collections::BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cuts_batches_is_suspected_first() {
        let lever = |text: &str| serde_json::from_str::<Lever>(text).unwrap();
        let levers = [
            lever(r#"{"name": "split_forward", "parts": 2}"#),
            lever(r#"{"name": "set_to_none"}"#),
            lever(r#"{"name": "optimizer_on_cpu"}"#),
        ];
        let blamed = |proved: &[&str]| suspect(&levers, proved).map(Lever::name);
        assert_eq!(blamed(&[]), Some("split_forward"));
        assert_eq!(blamed(&["split_forward"]), Some("optimizer_on_cpu"));
        assert_eq!(
            blamed(&["split_forward", "optimizer_on_cpu", "set_to_none"]),
            None
        );
    }
}
