//! The summary of a run: the verdict, and where the memory goes.

use std::collections::{BTreeMap, HashMap};

use oomph_allocator::search::smallest;
use oomph_allocator::{Config, Program, TorchVersion};
use oomph_bytes::format_bytes;
use oomph_trace::{Action, Category, Phase, Trace};
use serde::Serialize;

use crate::ending::Ending;
use crate::processes::ProcessSummary;
use crate::ranks::{Culprit, Outlier, RankSummary, outlier};
use crate::record::{Engine, Framework, LeverReport, Record};
use crate::rhythm::{Growth, Rhythm, rhythm};
use crate::time::StepTime;

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.run/1";

/// Shares of [`Summary::timeline`]: more than a terminal has columns.
const TIMELINE: usize = 240;

/// The part of the peak that may be missing from what was recorded before it is said.
const UNRECORDED: f64 = 0.01;

/// PyTorch's allocator rounds every request up to this.
const ROUNDING: u64 = 512;

/// How a script ended that Ctrl-C ended, in its record and as a failure.
pub const INTERRUPTED: &str = "interrupted";

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The job fits.
    Fits,
    /// The job needs more memory than the GPU has.
    OutOfMemory,
    /// The script failed for another reason.
    ScriptFailed,
    /// A lever of the plan cannot be applied to the script, which was stopped.
    Refused,
    /// The script was ended before two of its steps were alike: nothing follows from that.
    NoVerdict,
}

/// What a verdict rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The whole script ran.
    WholeScript,
    /// The script was ended after steps that had become alike.
    SteadySteps,
    /// The script was ended, or ended itself, before.
    CutShort,
}

/// The GPU.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct GpuSummary {
    /// Its name, as the driver reports it.
    pub name: String,
    /// Its memory, as the driver reports it.
    pub memory_bytes: u64,
    /// What is left for the allocator: memory minus what is outside the allocator.
    pub usable_bytes: u64,
    /// Whether it is a virtual one.
    pub r#virtual: bool,
}

/// The peak amounts, each at its own moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Peak {
    /// In tensors or arrays.
    pub allocated_bytes: u64,
    /// Held by the allocator of PyTorch or JAX.
    pub reserved_bytes: u64,
    /// Held by the process: reserved and outside the allocator.
    pub used_bytes: u64,
    /// Whether the job may need more: it was not seen to its end, nor in a steady state.
    pub lower_bound: bool,
}

/// A row of a table: a name, and its bytes at the peak.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Share {
    /// The module, operator, phase or place.
    pub name: String,
    /// Bytes at the peak.
    pub bytes: u64,
}

/// The peak within a phase or a step.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct StepPeak {
    /// The step, counted from 1; 0 is before the first.
    pub step: u32,
    /// The most that was allocated.
    pub peak_allocated_bytes: u64,
}

/// Where memory ran out.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Oom {
    /// The step, counted from 1.
    pub step: u32,
    /// `setup`, `forward`, `backward`, `optimizer` or `inference`.
    pub phase: String,
    /// The module, where known.
    pub module: Option<String>,
    /// The user's own line, `file:line`, where known.
    pub location: Option<String>,
    /// What the allocator requested from the driver.
    pub requested_bytes: u64,
    /// How much more than the GPU's memory the job would have used; `null` if it was not measured.
    pub short_bytes: Option<u64>,
    /// How the run without a limit failed, if it did: what it needed until then is a lower bound.
    pub unlimited_failure: Option<String>,
    /// The process that ran out of memory, if it is not the script's own. Without the recorder it tells
    /// neither step nor phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
}

/// An assumption behind the figures.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Assumption {
    /// `value`, `shape`, `attribution` or `library`.
    pub kind: String,
    /// What was assumed.
    pub what: String,
    /// Where, `file:line` or the function's name.
    pub location: Option<String>,
    /// How often.
    pub count: u64,
}

/// The plan that was applied.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct AppliedPlan {
    /// Its file.
    pub file: String,
    /// What it planned, if it says so.
    pub planned: Option<Peak>,
    /// How its job, GPU or versions differ from this run's.
    pub warnings: Vec<String>,
}

/// Everything that `oomph run` writes.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Summary {
    /// [`FORMAT`].
    pub format: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// What the verdict rests on.
    pub basis: Basis,
    /// What each step leaves behind, if that grows without end.
    pub growth: Option<Growth>,
    /// The script and its arguments.
    pub script: Vec<String>,
    /// On which GPU.
    pub gpu: GpuSummary,
    /// JAX, if the memory is its and not PyTorch's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub framework: Option<Framework>,
    /// What a serving engine made of its memory, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// The peak amounts; if memory ran out, those without a limit.
    pub peak: Peak,
    /// How long a step takes on the GPU, where that is known.
    pub time: Option<StepTime>,
    /// Why it is not known, on a virtual GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_unknown: Option<String>,
    /// Bytes at the peak by what they hold; with what is cached and what lies outside.
    pub by_category: BTreeMap<&'static str, u64>,
    /// Bytes at the peak by module, the largest first.
    pub modules: Vec<Share>,
    /// Bytes at the peak by operator, the largest first.
    pub operators: Vec<Share>,
    /// The most that was allocated within each phase.
    pub phases: Vec<Share>,
    /// The most that was allocated within each step.
    pub steps: Vec<StepPeak>,
    /// The phase in which the peak was reached, and the step.
    pub peak_phase: String,
    /// The step of the peak, counted from 1.
    pub peak_step: u32,
    /// Steps that the optimizer made, or forward passes without one.
    pub step_count: u32,
    /// Whether an optimizer makes them.
    pub trains: bool,
    /// Where memory ran out, if it did.
    pub oom: Option<Oom>,
    /// How many out-of-memory errors the script survived.
    pub handled_oom_count: u32,
    /// The most that lay in host memory through the net, in bytes, because the GPU's was used up.
    pub net_bytes: u64,
    /// How the script failed, if it did.
    pub failure: Option<String>,
    /// How it ended and what it did last, if it did not end well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// The assumptions behind the figures.
    pub assumptions: Vec<Assumption>,
    /// The processes that used a GPU, if they shared one or the script's own is not the only one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessSummary>,
    /// Each rank of a distributed job; empty for one process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankSummary>,
    /// The rank whose peak differs most from the others', if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlier: Option<Outlier>,
    /// The rank that made the others fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub culprit: Option<Culprit>,
    /// The plan that was applied, if one was.
    pub plan: Option<AppliedPlan>,
    /// What the levers of a plan did; empty without a plan.
    pub levers: Vec<LeverReport>,
    /// Seconds that the script took.
    pub seconds: f64,
    /// The most that was allocated, through the run: equal shares of its events. Not in the JSON,
    /// since the trace and the report hold all of it.
    #[serde(skip)]
    pub timeline: Vec<u64>,
    /// Versions.
    pub versions: BTreeMap<&'static str, String>,
}

/// Summarizes what `trace` (attributed) and `record` say about the busiest device. `gpu_total` is the
/// capacity that the verdict is about.
pub fn summarize(record: &Record, trace: Option<&Trace>, gpu_total: Option<u64>) -> Summary {
    let device = record.busiest();
    let mut summary = Summary {
        format: FORMAT,
        verdict: verdict(record),
        basis: Basis::WholeScript,
        growth: None,
        script: record.argv.clone(),
        gpu: GpuSummary {
            name: record
                .devices
                .first()
                .map(|device| device.name.clone())
                .unwrap_or_default(),
            memory_bytes: gpu_total
                .or_else(|| record.devices.first().map(|d| d.total_bytes))
                .unwrap_or(0),
            usable_bytes: 0,
            r#virtual: record.r#virtual,
        },
        framework: record.framework.clone(),
        engine: record.engine.clone(),
        peak: Peak::default(),
        time: None,
        time_unknown: None,
        by_category: BTreeMap::new(),
        modules: Vec::new(),
        operators: Vec::new(),
        phases: Vec::new(),
        steps: Vec::new(),
        peak_phase: String::new(),
        peak_step: 0,
        trains: record.steps > 0,
        step_count: if record.steps > 0 {
            record.steps
        } else {
            record.inferences
        },
        oom: oom(record),
        handled_oom_count: record
            .oom_count
            .saturating_sub(u32::from(record.out_of_memory())),
        net_bytes: record.net_bytes,
        failure: failure(record),
        ending: None,
        assumptions: assumptions(record, trace),
        processes: Vec::new(),
        ranks: Vec::new(),
        outlier: None,
        culprit: None,
        plan: None,
        levers: record.levers.clone(),
        seconds: record.seconds,
        timeline: Vec::new(),
        versions: BTreeMap::from([
            ("oomph", env!("CARGO_PKG_VERSION").to_owned()),
            ("cuda", record.cuda.clone().unwrap_or_default()),
            ("python", record.python.clone()),
            record.framework.as_ref().map_or_else(
                || ("torch", record.torch.clone()),
                |other| (other.key(), other.version.clone()),
            ),
        ]),
    };
    // Where PyTorch's allocator holds nothing, as beside ONNX Runtime's arena, steps cannot be compared, only counted.
    let counted = Rhythm {
        alike: summary.step_count > 1,
        ..Rhythm::default()
    };
    let Some(device) = device else {
        summary.gpu.usable_bytes = summary.gpu.memory_bytes;
        judge(&mut summary, record, counted);
        return summary;
    };
    summary.gpu.usable_bytes = summary
        .gpu
        .memory_bytes
        .saturating_sub(device.outside_bytes);
    summary.peak = Peak {
        allocated_bytes: device.peak_allocated_bytes,
        reserved_bytes: device.peak_reserved_bytes,
        used_bytes: device.peak_used_bytes,
        lower_bound: false,
    };
    if let Some(trace) = trace {
        fill_from_trace(&mut summary, trace, device.index);
    }
    let seen = match trace {
        _ if device.peak_reserved_bytes == 0 => counted,
        Some(trace) => rhythm(trace, record, device.index),
        // Nor where another framework says nothing of its blocks.
        None if record.framework.is_some() => counted,
        None => Rhythm::default(),
    };
    judge(&mut summary, record, seen);
    let attributed: u64 = summary.by_category.values().sum();
    // Blocks that were larger than their request, and what the history no longer holds.
    let rest = device.peak_allocated_bytes.saturating_sub(attributed);
    *summary.by_category.entry("other").or_default() += rest;
    if let Some((first, last)) = record.windows.last()
        && rest as f64 > device.peak_allocated_bytes as f64 * UNRECORDED
    {
        summary.assumptions.push(Assumption {
            kind: "attribution".to_owned(),
            what: format!(
                "steps {first} to {last} are recorded, and the peak came later: what it holds more counts as other (--steps N records N steps)"
            ),
            location: None,
            count: 1,
        });
    }
    let allocated: u64 = summary.by_category.values().sum();
    summary.by_category.insert(
        "cached",
        device.peak_reserved_bytes.saturating_sub(allocated),
    );
    summary
        .by_category
        .insert("cuda_context", device.outside_bytes);
    // Memory outside PyTorch: ONNX Runtime's arena, an extension's own allocations.
    let others =
        (device.peak_used_bytes).saturating_sub(device.peak_reserved_bytes + device.outside_bytes);
    if others > 0 {
        summary.by_category.insert("outside_allocator", others);
    }
    summary
}

impl Summary {
    /// Takes up how the script ended. `left_word` says whether its own record is of its end, and not of a part before.
    pub fn ended(&mut self, ending: Ending, left_word: bool) {
        if !left_word {
            self.failure = Some(ending.how.clone());
        }
        self.step_count = self.step_count.max(ending.steps);
        self.ending = Some(ending);
    }
}

fn verdict(record: &Record) -> Verdict {
    if record.out_of_memory() {
        Verdict::OutOfMemory
    } else if record.outcome.kind == "refused" {
        Verdict::Refused
    } else if record.outcome.status != 0 {
        Verdict::ScriptFailed
    } else {
        Verdict::Fits
    }
}

/// Says what the verdict rests on, and takes back what rests on nothing.
fn judge(summary: &mut Summary, record: &Record, rhythm: Rhythm) {
    summary.basis = match summary.verdict {
        Verdict::Fits if !record.stopped => Basis::WholeScript,
        Verdict::Fits if rhythm.alike => Basis::SteadySteps,
        _ => Basis::CutShort,
    };
    summary.peak.lower_bound = summary.basis == Basis::CutShort;
    if summary.verdict != Verdict::Fits {
        return;
    }
    if summary.basis == Basis::CutShort {
        summary.verdict = Verdict::NoVerdict;
        return;
    }
    summary.growth = rhythm.growth;
    if summary.basis == Basis::WholeScript {
        return;
    }
    if let Some((low, high)) = rhythm.peaks {
        summary.assumptions.push(Assumption {
            kind: "steps".to_owned(),
            what: format!(
                "steps need {:.2} to {:.2} GiB, as their forward passes differ in size: a larger one than those that were seen needs more",
                gib(low),
                gib(high)
            ),
            location: None,
            count: 1,
        });
    }
    let full = summary.growth.as_ref().map(|growth| growth.full_at_step);
    if let (Some(full), Some(planned)) = (full, record.planned_steps)
        && full <= planned
    {
        summary.verdict = Verdict::OutOfMemory;
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

fn oom(record: &Record) -> Option<Oom> {
    let oom = record.oom.as_ref().filter(|oom| oom.raised)?;
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Some(Oom {
        step: oom.step + 1,
        phase: oom.phase.clone(),
        module: some(&oom.module),
        location: some(&oom.location),
        requested_bytes: oom.requested_bytes,
        short_bytes: None,
        unlimited_failure: None,
        process: None,
    })
}

pub(crate) fn failure(record: &Record) -> Option<String> {
    let outcome = &record.outcome;
    if outcome.status == 0 {
        return None;
    }
    Some(match (&outcome.r#type, &outcome.message) {
        (_, Some(message)) if outcome.kind == "refused" => message.clone(),
        (Some(kind), Some(message)) => format!("{kind}: {message}"),
        _ if outcome.kind == INTERRUPTED => INTERRUPTED.to_owned(),
        _ if outcome.kind == "terminated" => match outcome.status {
            129 => "ended by SIGHUP".to_owned(),
            _ => "ended by SIGTERM".to_owned(),
        },
        _ if outcome.kind == "killed" => {
            "the script was killed; its steps until then were as those that were recorded"
                .to_owned()
        }
        _ => format!("exit status {}", outcome.status),
    })
}

fn assumptions(record: &Record, trace: Option<&Trace>) -> Vec<Assumption> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut all = Vec::new();
    if !record.library.missing.is_empty() {
        // First, as a report shows the first three alone.
        all.push(Assumption {
            kind: "library".to_owned(),
            what: format!(
                "the virtual GPU lacks functions that the script asked for: {}",
                record.library.missing.join(", ")
            ),
            location: None,
            count: record.library.missing.len() as u64,
        });
    }
    all.extend(record.assumptions.iter().map(|found| Assumption {
        kind: found.kind.clone(),
        what: found.what.clone(),
        location: some(&found.location),
        count: found.count,
    }));
    all.extend(record.library.assumptions.iter().map(|found| Assumption {
        kind: "library".to_owned(),
        what: found.what.clone(),
        location: some(&found.function),
        count: found.count,
    }));
    let engine = record.engine.as_ref().filter(|_| record.r#virtual);
    if let Some(what) = engine.and_then(Engine::not_compared) {
        all.push(Assumption {
            kind: "engine".to_owned(),
            what,
            location: None,
            count: 1,
        });
    }
    if record.net_bytes > 0 {
        let outside = format_bytes(record.net_bytes);
        all.push(Assumption {
            kind: "net".to_owned(),
            what: format!(
                "GPU memory ran out: up to {outside} lay in host memory, through the net"
            ),
            location: None,
            count: 1,
        });
    }
    if trace.is_some_and(|trace| trace.events.len() >= record.max_events) {
        all.push(Assumption {
            kind: "attribution".to_owned(),
            what: format!(
                "the history holds only the last {} events; peaks are exact, but the peak may be earlier and its parts unknown",
                record.max_events
            ),
            location: None,
            count: 1,
        });
    }
    all
}

/// What is alive, summed as the history goes on.
#[derive(Debug, Default, Clone)]
struct Alive {
    by_row: HashMap<u64, (usize, u64)>,
    bytes: u64,
}

fn fill_from_trace(summary: &mut Summary, trace: &Trace, device: u32) {
    let rows = trace.rows_of(device);
    let labels = trace.labels.clone().unwrap_or_default();
    let mut alive = Alive::default();
    let (mut peak_bytes, mut peak_row) = (0, rows.start);
    let mut timeline = vec![0; rows.len().min(TIMELINE)];
    let mut phases: HashMap<Phase, u64> = HashMap::new();
    let mut steps: BTreeMap<u32, u64> = BTreeMap::new();
    for row in rows.clone() {
        match trace.events.action(row) {
            Action::Alloc => {
                let bytes = trace.events.size(row).0.max(1).div_ceil(ROUNDING) * ROUNDING;
                alive.by_row.insert(trace.events.addr(row).0, (row, bytes));
                alive.bytes += bytes;
                if alive.bytes > peak_bytes {
                    (peak_bytes, peak_row) = (alive.bytes, row);
                }
                let label = labels.get(row);
                let phase = phases.entry(label.phase).or_default();
                *phase = (*phase).max(alive.bytes);
                let step = steps.entry(label.step).or_default();
                *step = (*step).max(alive.bytes);
            }
            Action::FreeRequested => {
                if let Some((_, bytes)) = alive.by_row.remove(&trace.events.addr(row).0) {
                    alive.bytes -= bytes;
                }
            }
            _ => {}
        }
        let share = (row - rows.start) * timeline.len() / rows.len();
        if let Some(high) = timeline.get_mut(share) {
            *high = alive.bytes.max(*high);
        }
    }
    summary.timeline = timeline;
    // Once more up to the peak, to see what was alive there.
    let mut at_peak: HashMap<u64, (usize, u64)> = HashMap::new();
    for row in rows.start..=peak_row.min(rows.end.saturating_sub(1)) {
        let addr = trace.events.addr(row).0;
        match trace.events.action(row) {
            Action::Alloc => {
                let bytes = trace.events.size(row).0.max(1).div_ceil(ROUNDING) * ROUNDING;
                at_peak.insert(addr, (row, bytes));
            }
            Action::FreeRequested => {
                at_peak.remove(&addr);
            }
            _ => {}
        }
    }
    let mut modules: HashMap<String, u64> = HashMap::new();
    let mut operators: HashMap<String, u64> = HashMap::new();
    for &(row, bytes) in at_peak.values() {
        let label = labels.get(row);
        *summary
            .by_category
            .entry(category_id(label.category))
            .or_default() += bytes;
        *modules
            .entry(trace.strings.get(label.module).to_owned())
            .or_default() += bytes;
        *operators
            .entry(trace.strings.get(label.op).to_owned())
            .or_default() += bytes;
    }
    summary.modules = ranked(modules);
    summary.operators = ranked(operators);
    summary.phases = ranked(
        phases
            .into_iter()
            .map(|(phase, bytes)| (phase.name().to_owned(), bytes))
            .collect(),
    );
    summary.steps = steps
        .into_iter()
        .map(|(step, peak_allocated_bytes)| StepPeak {
            step,
            peak_allocated_bytes,
        })
        .collect();
    let peak = labels.get(peak_row);
    peak.phase.name().clone_into(&mut summary.peak_phase);
    summary.peak_step = peak.step;
}

impl Summary {
    /// Of a run without a limit: what the job needs with one. Without, PyTorch keeps all that it caches; with a limit it gives that back
    /// before it fails. So where much of the memory was cached, what is needed is the least in which a replay of `trace` serves
    /// every request. Elsewhere it stays as it was measured.
    pub fn with_a_limit(&mut self, trace: &Trace, record: &Record) {
        /// One part in as many is as little as replays tell.
        const LITTLE: u64 = 20;
        let Peak {
            allocated_bytes: allocated,
            reserved_bytes: reserved,
            ..
        } = self.peak;
        let Some(device) = record.busiest() else {
            return;
        };
        let much = |needed: u64| needed.saturating_add(needed / LITTLE) < reserved;
        if !much(allocated) {
            return;
        }
        let version = TorchVersion::parse(&record.torch).unwrap_or(TorchVersion::ASSUMED);
        let config = Config::from_settings(&trace.settings, version);
        let program = Program::new(trace, device.index, &config);
        // A part of the run says nothing of the rest.
        if !program.is_complete() || program.recorded_peak_reserved != reserved {
            return;
        }
        let Some(needed) = smallest(&program, &config).filter(|&needed| much(needed)) else {
            return;
        };
        self.assumptions.push(Assumption {
            kind: "cache".to_owned(),
            what: format!(
                "without a limit PyTorch reserved {} for {} in use; with one it gives back what it caches, and a replay needs {}",
                format_bytes(reserved),
                format_bytes(allocated),
                format_bytes(needed)
            ),
            location: None,
            count: 1,
        });
        let cached = reserved - needed;
        self.peak.reserved_bytes = needed;
        self.peak.used_bytes = self.peak.used_bytes.saturating_sub(cached);
        if let Some(bytes) = self.by_category.get_mut("cached") {
            *bytes = bytes.saturating_sub(cached);
        }
    }

    /// Takes over what a run of the same job without a limit needed, as a whole and by `ranks`. The
    /// verdict and where memory ran out stay.
    pub fn measured_without_limit(&mut self, mut needed: Self, ranks: &[RankSummary]) {
        for rank in &mut self.ranks {
            if let Some(measured) = ranks.iter().find(|measured| measured.rank == rank.rank) {
                rank.peak = measured.peak;
                rank.by_category.clone_from(&measured.by_category);
            }
        }
        self.outlier = outlier(&self.ranks);
        // Other ids, but the same processes, if they come in the same order.
        let same = |(a, b): (&ProcessSummary, &ProcessSummary)| a.command == b.command;
        if self.processes.len() == needed.processes.len()
            && self.processes.iter().zip(&needed.processes).all(same)
        {
            for (process, measured) in self.processes.iter_mut().zip(&needed.processes) {
                process.peak_bytes = measured.peak_bytes;
                process.held_bytes = measured.held_bytes;
            }
        }
        if self.framework.as_ref().is_some_and(|one| one.preallocates) {
            // What is not the pool's with a limit is not without one either.
            let apart = self
                .gpu
                .memory_bytes
                .saturating_sub(self.peak.reserved_bytes);
            needed.peak.used_bytes = needed.peak.allocated_bytes + apart;
        }
        if let Some(oom) = &mut self.oom {
            // Steps after those that were measured need more.
            if needed.basis != Basis::WholeScript
                && let Some(growth) = needed.growth.take()
            {
                needed.peak.lower_bound = true;
                self.growth = Some(Growth {
                    full_at_step: u64::from(oom.step),
                    ..growth
                });
            }
            oom.short_bytes = (!needed.peak.lower_bound)
                .then(|| needed.peak.used_bytes.saturating_sub(self.gpu.memory_bytes));
            oom.unlimited_failure.clone_from(&needed.failure);
            oom.module = oom.module.take().filter(|module| !module.is_empty());
        }
        self.trains |= needed.trains;
        self.peak = needed.peak;
        self.by_category = needed.by_category;
        self.modules = needed.modules;
        self.operators = needed.operators;
        self.phases = needed.phases;
        self.timeline = needed.timeline;
        self.steps = needed.steps;
        self.peak_phase = needed.peak_phase;
        self.peak_step = needed.peak_step;
        self.gpu.usable_bytes = needed.gpu.usable_bytes;
        for assumption in needed.assumptions {
            if !self
                .assumptions
                .iter()
                .any(|known| known.what == assumption.what && known.location == assumption.location)
            {
                self.assumptions.push(assumption);
            }
        }
    }
}

/// The names of the JSON: temporaries and the unknown are "other".
fn category_id(category: Category) -> &'static str {
    match category {
        Category::Temporary | Category::Unknown => "other",
        known => known.id(),
    }
}

fn ranked(shares: HashMap<String, u64>) -> Vec<Share> {
    let mut shares: Vec<Share> = shares
        .into_iter()
        .map(|(name, bytes)| Share { name, bytes })
        .collect();
    shares.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    shares
}
