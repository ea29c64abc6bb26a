//! What a search found, and the plan file that comes of it.

use std::collections::{BTreeMap, BTreeSet};

use oomph_job::shell_line;
use oomph_plan::{Figures, Lever, PlanFile, PlanGpu, PlanJob, Versions};

use crate::attempts::Measurement;
use crate::wanted::Wanted;
use oomph_plan::result::{self, Fit, FitGpu, Outcome, PlanResult};

/// What a search found.
#[derive(Debug)]
pub struct Found {
    /// The result.
    pub fit: Fit,
    /// The job as it is, run without a limit.
    pub plain: Measurement,
    /// Steps of a plan's first run.
    pub(crate) first_steps: u32,
    /// Modules that levers skipped, with the levers' names.
    pub(crate) left_alone: BTreeSet<(String, String)>,
}

impl Found {
    /// The chosen plan.
    fn chosen(&self) -> Option<&PlanResult> {
        self.fit.plans.get(self.fit.chosen?)
    }

    /// Optimizer steps for which the chosen plan ran first: as many as cost little beside the script's start.
    pub(crate) fn steps(&self) -> u32 {
        let ran = self.chosen().map_or(0, |plan| plan.steps);
        ran.min(self.first_steps)
    }

    /// Whether the chosen plan shares the job among several GPUs.
    pub fn is_shared(&self) -> bool {
        (self.chosen()).is_some_and(|plan| oomph_plan::sharding::gpus(&plan.levers).is_some())
    }

    /// The file of the chosen plan, made for `job`.
    pub fn plan_file(&self, job: PlanJob) -> Option<PlanFile> {
        let plan = self.chosen()?;
        let notes = plan.notes.iter().chain(&self.fit.assumptions);
        Some(PlanFile {
            format: oomph_plan::FORMAT.to_owned(),
            job,
            gpu: PlanGpu {
                id: self.fit.gpu.id.clone(),
                memory_bytes: self.fit.gpu.memory_bytes,
            },
            versions: Versions {
                oomph: env!("CARGO_PKG_VERSION").to_owned(),
                torch: self.fit.versions.get("torch").cloned().unwrap_or_default(),
            },
            planned: Some(Figures {
                allocated_bytes: plan.peak.allocated_bytes,
                reserved_bytes: plan.peak.reserved_bytes,
                used_bytes: plan.peak.used_bytes,
                time_ratio: plan.time_ratio,
                same_results: plan.same_results,
                verified: plan.verified,
                assumptions: notes.cloned().collect(),
                switches: plan.switches.clone(),
            }),
            written: None,
            levers: plan.levers.clone(),
        })
    }

    /// Those of them that a framework has a switch of its own for, and the switch.
    pub fn switches(&self) -> BTreeMap<String, String> {
        self.chosen()
            .map_or_else(BTreeMap::new, |plan| plan.switches.clone())
    }

    /// The levers of the chosen plan as a change by hand has them.
    pub fn by_hand_levers(&self) -> Vec<Lever> {
        let levers = self.chosen().map_or(&[][..], |plan| &plan.levers);
        by_hand_levers(levers, &self.left_alone)
    }
}

/// The levers without the modules that they skipped: a lever checks what reads a tensor before it
/// overwrites it, a changed line of a script does not.
fn by_hand_levers(levers: &[Lever], left_alone: &BTreeSet<(String, String)>) -> Vec<Lever> {
    let mut levers = levers.to_vec();
    for lever in &mut levers {
        let name = lever.name().to_owned();
        lever.without(|module| left_alone.contains(&(name.clone(), module.to_owned())));
    }
    levers
}

/// The result before anything was looked for: the job as it is.
pub(crate) fn of_plain(wanted: &Wanted, plain: &Measurement) -> Fit {
    // An assumption may occur in several places; the plain run's record names them.
    let mut assumptions: Vec<String> = Vec::new();
    for found in &plain.summary.assumptions {
        if !assumptions.contains(&found.what) {
            assumptions.push(found.what.clone());
        }
    }
    let gpu = wanted.gpu.found.gpu;
    Fit {
        format: result::FORMAT,
        outcome: Outcome::AlreadyFits,
        stopped: None,
        command: shell_line(wanted.script.iter().map(String::as_str)),
        script: wanted.script.clone(),
        gpu: FitGpu {
            id: gpu.id.clone(),
            name: gpu.name.clone(),
            memory_bytes: wanted.total_bytes,
            margin_bytes: wanted.margin_bytes,
            count: wanted.gpu.count,
        },
        inference: false,
        framework: None,
        plain: plain.summary.peak,
        plans: Vec::new(),
        chosen: None,
        tried: Vec::new(),
        why: String::new(),
        least: None,
        held_by: BTreeMap::new(),
        floor: None,
        gpus: Vec::new(),
        smallest: None,
        kinds: Vec::new(),
        growth: None,
        variants: Vec::new(),
        largest: Vec::new(),
        rejected: Vec::new(),
        assumptions,
        runs: 0,
        run_seconds: 0.0,
        plain_seconds: 0.0,
        planning_seconds: 0.0,
        plan_file: None,
        patch_file: None,
        instruction_file: None,
        no_patch: None,
        apply_patch_file: None,
        plain_unlimited_bytes: None,
        original_file: None,
        report: None,
        versions: plain.summary.versions.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lever_left_alone_is_not_changed_by_hand() {
        let lever = |all: &[&str]| {
            let modules = all.iter().map(|name| (*name).to_owned()).collect();
            Lever::from(oomph_plan::parameters::InplaceActivations { modules })
        };
        let levers = [lever(&["Net.a", "Net.b"])];
        let left = BTreeSet::from([("inplace_activations".to_owned(), "Net.a".to_owned())]);
        assert_eq!(by_hand_levers(&levers, &left), [lever(&["Net.b"])]);
    }
}
