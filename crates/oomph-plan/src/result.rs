//! What a search found.

use std::collections::BTreeMap;

use crate::floor::Floor;
use crate::lever::Results;
use crate::levers::Lever;
use crate::stop::Stopped;
use oomph_run::record::Framework;
use oomph_run::rhythm::Growth;
use oomph_run::summary::Peak;
use serde::Serialize;

/// Version of the JSON. Fields may be added; a change of meaning is a new number.
pub const FORMAT: &str = "oomph.fit/1";

/// How the search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The job fits as it is.
    AlreadyFits,
    /// A verified plan makes it fit.
    Fits,
    /// No plan was found that a run confirmed.
    NothingFits,
    /// The search was stopped before that was known.
    Open,
}

/// The GPU and how much of it may be used.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct FitGpu {
    /// Its name in the catalogue.
    pub id: String,
    /// The driver's name.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// What is left free on purpose.
    pub margin_bytes: u64,
    /// How many of them.
    pub count: u32,
}

/// One plan.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct PlanResult {
    /// What is changed.
    pub levers: Vec<Lever>,
    /// The same in words.
    pub what: String,
    /// As measured by the run that verified it; else as predicted.
    pub peak: Peak,
    /// What it holds where the margin is free, too, as a run measured it: the allocator then keeps more of what it would have to
    /// give back. Left out where that is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_whole_gpu: Option<Peak>,
    /// As the model predicted it before any run of this plan.
    pub predicted: Peak,
    /// Time of a step against the plain job's.
    pub time_ratio: f64,
    /// The same before any run of this plan.
    pub predicted_time_ratio: f64,
    /// The weakest promise among the levers.
    pub same_results: Results,
    /// Whether a run at the capacity less the margin confirmed it.
    pub verified: bool,
    /// Steps of that run; 0 where there was none.
    pub steps: u32,
    /// What the levers said, and what the figures rest on.
    pub notes: Vec<String>,
    /// The levers that a framework has a switch of its own for, and the switch.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub switches: BTreeMap<String, String>,
}

impl PlanResult {
    /// The frameworks' switches in a line: the arguments of each object together.
    pub fn switch_line(&self) -> Option<String> {
        let mut objects: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for switch in self.switches.values() {
            let (object, argument) = switch.split_once(": ")?;
            objects.entry(object).or_default().push(argument);
        }
        let lines = objects
            .iter()
            .map(|(object, arguments)| format!("{object}: {}", arguments.join(", ")));
        Some(lines.collect::<Vec<_>>().join("; ")).filter(|line| !line.is_empty())
    }
}

/// A plan that a run measured.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Tried {
    /// Its levers in words.
    pub what: String,
    /// What it needs.
    pub used_bytes: u64,
    /// Time of a step against the plain job's.
    pub time_ratio: f64,
}

/// A lever that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Rejected {
    /// Its name.
    pub lever: String,
    /// Why.
    pub why: String,
}

/// A GPU that would do.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Alternative {
    /// Its name in the catalogue.
    pub id: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// A typical price of renting it, or of owning it, an hour; where known.
    pub usd_per_hour: Option<f64>,
    /// Whether the job fits there as it is, rather than with the plan of least memory.
    pub as_it_is: bool,
    /// How many of them; the price is that of all.
    pub count: u32,
}

/// The fewest GPUs that do.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Smallest {
    /// How many.
    pub gpus: u32,
    /// With what plan, as a run confirmed it.
    pub levers: Vec<Lever>,
    /// The same in words.
    pub what: String,
    /// What the rank needs that needs most.
    pub used_bytes: u64,
    /// Time of a step against the plain job's.
    pub time_ratio: f64,
    /// The weakest promise among the levers.
    pub same_results: Results,
}

/// Another job that is like this one but smaller.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct SmallerJob {
    /// What is smaller.
    pub what: String,
    /// What it needs, as a run measured it.
    pub used_bytes: u64,
    /// Whether it fits.
    pub fits: bool,
}

/// The largest size that fits.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Largest {
    /// `batch`, `length` or `resolution`.
    pub of: String,
    /// What the script has.
    pub now: u64,
    /// The largest that fits, as a run confirmed; `null` if none was confirmed.
    pub plain: Option<u64>,
    /// What it needs.
    pub plain_used_bytes: u64,
    /// The largest with levers, as a run confirmed.
    pub with_levers: Option<u64>,
    /// What that needs.
    pub with_levers_used_bytes: u64,
    /// Time of one sample (token, pixel) at the largest plain size over that at the script's own size.
    pub time_of_one: Option<f64>,
    /// Those levers.
    pub levers: Vec<Lever>,
    /// What the figures rest on.
    pub notes: Vec<String>,
}

/// Everything that `oomph fit` writes.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Fit {
    /// [`FORMAT`].
    pub format: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// Why the search ended before it was through, if it did.
    pub stopped: Option<Stopped>,
    /// The script and its arguments.
    pub script: Vec<String>,
    /// The GPU.
    pub gpu: FitGpu,
    /// Whether the job only infers.
    pub inference: bool,
    /// The framework, where that is not PyTorch: its allocator, and what it would save to change the script.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub framework: Option<Framework>,
    /// What the job needs as it is, with a limit of the GPU's size: the allocator then gives back what it caches.
    pub plain: Peak,
    /// What it uses without a limit, as `oomph run` tells; left out where that is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plain_unlimited_bytes: Option<u64>,
    /// Plans, the cheapest first.
    pub plans: Vec<PlanResult>,
    /// Which of them was chosen.
    pub chosen: Option<usize>,
    /// All plans that runs measured, those that do not fit too.
    pub tried: Vec<Tried>,
    /// Why.
    pub why: String,
    /// Where nothing fits: the plan of least memory.
    pub least: Option<PlanResult>,
    /// What holds that memory: bytes by category at the peak.
    pub held_by: BTreeMap<String, u64>,
    /// What that plan's operators need at once, wherever all the rest waits.
    pub floor: Option<Floor>,
    /// GPUs that would do, the cheapest first.
    pub gpus: Vec<Alternative>,
    /// Where several GPUs were asked for: the fewest of this kind that do.
    pub smallest: Option<Smallest>,
    /// Where several GPUs were asked for: how many of which kind would do, the cheapest first.
    pub kinds: Vec<Alternative>,
    /// What each step of a job that fits at first leaves behind.
    pub growth: Option<Growth>,
    /// Smaller jobs.
    pub variants: Vec<SmallerJob>,
    /// The largest sizes, where they were asked for.
    pub largest: Vec<Largest>,
    /// Levers that were left out.
    pub rejected: Vec<Rejected>,
    /// What all figures rest on.
    pub assumptions: Vec<String>,
    /// How often the script was run.
    pub runs: u32,
    /// Seconds that those runs took.
    pub run_seconds: f64,
    /// Seconds that the first of them took: the unchanged job, starting PyTorch included.
    pub plain_seconds: f64,
    /// Seconds that planning took beside them.
    pub planning_seconds: f64,
    /// Where the plan was written.
    pub plan_file: Option<String>,
    /// Where the patch was written, and how many lines it changes. A run of the script with these changes fitted.
    pub patch_file: Option<(String, usize)>,
    /// Where the plan by hand was written in words, if there is no such patch.
    pub instruction_file: Option<String>,
    /// Why there is none.
    pub no_patch: Option<String>,
    /// Where the patch of one line (`oomph.apply`) was written; a run with it fitted.
    pub apply_patch_file: Option<String>,
    /// The copy of the script as it was, if `--write` has changed it.
    pub original_file: Option<String>,
    /// The script as it was given, for the command that applies the plan.
    pub command: String,
    /// Where the page was written.
    pub report: Option<String>,
    /// Versions.
    pub versions: BTreeMap<&'static str, String>,
}
