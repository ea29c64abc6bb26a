//! From a memory history to the cause of an out-of-memory error.
//!
//! Everything here is a function of the input: [`explain`] takes a [`Trace`], with any
//! out-of-memory messages, and returns an [`Explanation`] to print, write as
//! JSON or pass on. If the evidence is not enough, the explanation says so.

pub mod causes;
mod counterfactual;
pub mod diff;
pub mod facts;
mod held;
pub mod lever;
mod messages;
mod pool;
mod profile;
mod repeats;
pub mod stacks;
pub mod steps;

use std::collections::{HashMap, HashSet};

use oomph_allocator::TorchVersion;
use oomph_allocator::program::NO_ROW;
use oomph_trace::text::{Memory, OomMessage, Program};
use oomph_trace::{Bytes, Category, Problem, ProblemKind, StackId, Trace};
use serde::Serialize;

pub use causes::{Basis, Cause, Evidence, Fix, Remedy};
pub use diff::{Change, Diff, diff};
pub use facts::Facts;
pub use held::HeldStack;
pub use messages::NextStep;
pub use pool::explain_pool;
pub use profile::explain_profile;

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.explain/1";
/// Shares of [`Explanation::timeline`]: more than a terminal has columns.
const TIMELINE: usize = 240;
/// Places in the code that an explanation lists.
const HOLDERS: usize = 8;

/// What the caller knows and requests.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The device, if the history has several; the busiest otherwise.
    pub device: Option<u32>,
    /// The version of PyTorch, if the history does not state it.
    pub torch_version: Option<TorchVersion>,
    /// The device's memory, if the history does not state it.
    pub device_total: Option<u64>,
    /// Memory of this process outside the allocator, if it was measured.
    pub process_outside: Option<u64>,
    /// Out-of-memory messages of the same failure.
    pub messages: Vec<OomMessage>,
    /// What a recorder saw beside the history.
    pub seen: Seen,
}

/// What a recorder saw beside the history, as rows of it that allocate.
#[derive(Debug, Clone, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts of a script"
)]
pub struct Seen {
    /// Made for a graph that no backward pass needs: an evaluation, an inference, a teacher.
    pub unused_graphs: HashSet<u32>,
    /// Made in passes of models in evaluation mode that build a graph.
    pub evaluating: HashSet<u32>,
    /// Parameters, gradients and optimizer state of models that another one of the same kind replaced.
    pub replaced: HashSet<u32>,
    /// Of keys and values of earlier tokens, allocated before the first one.
    pub caches: HashSet<u32>,
    /// Written part by part, several of a size.
    pub filled: HashSet<u32>,
    /// Of tensors that Python held when memory ran out; graphs hold others. `None` if nobody looked.
    pub held: Option<HashSet<u32>>,
    /// Where each was last read, as the row before which that was. One that is not there was never read; `None` if nobody looked.
    pub last_reads: Option<HashMap<u32, u32>>,
    /// Of those that one line made again and again, the ones that were read over and over as later ones were made.
    pub read_on: HashSet<u32>,
    /// Where a column `(n, 1)` met a row `(n,)`, which gives `(n, n)`: n, and the line.
    pub broadcasts: Vec<(u64, String)>,
    /// Whether a model's checkpointing is switched on but off for now, since the model evaluates.
    pub idle_checkpointing: bool,
    /// Whether a model has a switch for checkpointing that is on.
    pub wants_checkpointing: bool,
    /// Whether the script's source imports or names activation checkpointing.
    pub uses_checkpointing: bool,
    /// Whether the script's source calls for a backward pass, whether or not one came.
    pub goes_backward: bool,
    /// Whether fused kernels for attention were allowed when memory ran out.
    pub fused_attention: bool,
    /// Whether `requires_grad` of a module was set to False, which freezes no parameter.
    pub wants_freezing: bool,
    /// Whether models run under autocast on the GPU already.
    pub autocast: bool,
    /// Whether mixed precision was switched on for the CPU alone, around a model that is on the GPU.
    pub autocast_elsewhere: bool,
    /// When passes of a job that infers ended, in the same time.
    pub pass_times: Vec<i64>,
    /// When optimizers began to step, whichever they are, in microseconds, as the history's times.
    pub optimizer_times: Vec<i64>,
    /// When backward passes ended that were told to keep their graph and made none themselves, in the same time.
    pub retained_times: Vec<i64>,
    /// Whether cuDNN tries its algorithms and takes the fastest.
    pub benchmark: bool,
    /// Whether mixed precision is meant (a gradient scaler is used, autocast is switched on somewhere), and nothing was computed in 16 bits.
    pub precision_in_vain: bool,
    /// When the script offloaded what autograd saves: from and to, in microseconds, as the history's times.
    pub offloads: Vec<(i64, i64)>,
    /// Whether the run was ended after some steps: what grows in it would have grown on.
    pub stopped: bool,
}

/// The same job, run again without a limit.
#[derive(Debug, Clone)]
pub struct WithoutLimit<'a> {
    /// Its history.
    pub trace: &'a Trace,
    /// What the recorder saw of it.
    pub seen: Seen,
    /// How much more than the GPU's memory it used; `None` if it did not come to an end.
    pub short_bytes: Option<u64>,
}

/// What happened.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts of a report, each by itself"
)]
pub struct Explanation {
    /// [`FORMAT`].
    pub format: &'static str,
    /// One sentence.
    pub verdict: String,
    /// Whether the job ran out of memory.
    pub out_of_memory: bool,
    /// Whether the file lacks what would tell if it did. Not in the JSON.
    #[serde(skip)]
    pub unclear: bool,
    /// The most likely cause; `None` for a job that did not fail.
    pub cause: Option<Cause>,
    /// All causes that the evidence supports, the most likely first.
    pub causes: Vec<Cause>,
    /// Fixes of the likely causes, the largest saving first.
    pub fixes: Vec<Fix>,
    /// Whether causes and fixes come from a run without a limit, not from the one that was cut off.
    pub without_limit: bool,
    /// Whether the bytes of causes and fixes are lower bounds: neither run came to an end.
    pub lower_bound: bool,
    /// Whether a recorder watched the job, and the history has labels. Not in the JSON.
    #[serde(skip)]
    pub recorded: bool,
    /// Memory at the failure or the peak.
    pub peak: PeakReport,
    /// The lines of code that hold the most at that moment.
    pub holders: Vec<Holder>,
    /// The bytes alive through the history: the highest of equal shares of its events. Not in the
    /// JSON, since the report holds all of it.
    #[serde(skip)]
    pub timeline: Vec<u64>,
    /// All that is alive then, by the user's own lines.
    #[serde(skip)]
    pub held: Vec<HeldStack>,
    /// What grows, if anything does.
    pub growth: Option<GrowthReport>,
    /// The steps that were found.
    pub steps: Vec<StepReport>,
    /// What the message said, corrected.
    pub message: Option<MessageReport>,
    /// All messages of the logs, in their order.
    pub messages: Vec<MessageReport>,
    /// The ranks that ran out, as far as logs name them.
    pub ranks: Vec<u32>,
    /// What to do next about a message; empty if there is a history, which has fixes.
    pub next: Vec<NextStep>,
    /// What was assumed.
    pub assumptions: Vec<String>,
    /// What was wrong with the input.
    pub problems: Vec<ProblemReport>,
}

/// Memory at the failure or the peak, in bytes.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
pub struct PeakReport {
    /// The event.
    pub event: Option<usize>,
    /// The device.
    pub device: u32,
    /// Bytes alive.
    pub live_bytes: u64,
    /// Bytes of the request that failed.
    pub request_bytes: u64,
    /// What it made the allocator ask the driver for.
    pub segment_bytes: u64,
    /// Both together.
    pub needed_bytes: u64,
    /// Held from the driver at that moment.
    pub reserved_bytes: u64,
    /// The most that was ever held.
    pub peak_reserved_bytes: u64,
    /// Reserved and free.
    pub unused_bytes: u64,
    /// Free on the device.
    pub device_free_bytes: Option<u64>,
    /// The device's memory.
    pub device_total_bytes: Option<u64>,
    /// The allocator could have at least this much.
    pub room_at_least_bytes: Option<u64>,
    /// The allocator could not have this much.
    pub room_below_bytes: Option<u64>,
    /// Bytes by what they hold.
    pub categories: Vec<CategoryBytes>,
}

/// The bytes of a category.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct CategoryBytes {
    /// The category.
    pub category: &'static str,
    /// Its name in reports.
    #[serde(skip)]
    pub name: &'static str,
    /// Its bytes.
    pub bytes: u64,
    /// The device, where the bytes are by device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its blocks, where they are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<usize>,
}

/// A place in the code and what it holds.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Holder {
    /// Its bytes.
    pub bytes: u64,
    /// Its blocks.
    pub blocks: usize,
    /// What they hold.
    pub category: &'static str,
    /// The module, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The place, the user's own line first.
    pub stack: Vec<String>,
}

/// What grows from step to step.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct GrowthReport {
    /// Bytes that old steps left.
    pub bytes: u64,
    /// Bytes that each step adds.
    pub bytes_per_step: u64,
    /// Steps that left some.
    pub steps: usize,
    /// Steps until memory runs out, for a job that did not fail.
    pub steps_left: Option<u64>,
}

/// A step.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct StepReport {
    /// Its first event.
    pub first_event: usize,
    /// The most bytes alive within it.
    pub peak_bytes: u64,
    /// The bytes alive at its end.
    pub end_bytes: u64,
}

/// What the message said. What a text does not say is absent.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct MessageReport {
    /// The program that wrote it.
    pub program: &'static str,
    /// The program in a sentence.
    #[serde(skip)]
    pub program_name: &'static str,
    /// The program that it ran in, if that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside: Option<&'static str>,
    /// That program in a sentence.
    #[serde(skip)]
    pub inside_name: Option<&'static str>,
    /// Which memory ran out: `device`, `host`, `on_chip`, or `unknown` if the text does not say.
    pub memory: &'static str,
    /// That memory in a sentence.
    #[serde(skip)]
    pub memory_name: &'static str,
    /// Which kind of message.
    pub kind: &'static str,
    /// Whether it is a warning after which the program went on.
    pub handled: bool,
    /// The versions of PyTorch that write it so.
    pub versions: Option<&'static str>,
    /// The line of the log.
    pub line: usize,
    /// The message.
    pub text: String,
    /// The ranks that printed it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<u32>,
    /// The device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<u32>,
    /// The host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The process, by number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
    /// The process, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// The job of a scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The allocator, the arena, or the limit that a process ran in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocator: Option<String>,
    /// What was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_bytes: Option<u64>,
    /// What there is of that memory: of the device, or up to a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// What of it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// What of it is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_use_bytes: Option<u64>,
    /// Figures of memory elsewhere in the text, in its own words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<FigureReport>,
    /// What the text does not say.
    pub unsaid: Vec<&'static str>,
    /// What in it is misleading.
    pub corrections: Vec<String>,
}

/// A figure of memory as a text has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct FigureReport {
    /// The line of the log.
    pub line: usize,
    /// The part of the line.
    pub text: String,
    /// Further lines that differ in their numbers alone.
    pub more: usize,
}

/// A problem of the input.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct ProblemReport {
    /// Which kind.
    pub kind: &'static str,
    /// What was found, and what follows.
    pub message: String,
}

impl From<&Problem> for ProblemReport {
    fn from(problem: &Problem) -> Self {
        Self {
            kind: problem.kind.id(),
            message: problem.message.clone(),
        }
    }
}

/// Explains a history.
pub fn explain(trace: &Trace, options: &Options) -> Explanation {
    explain_run(trace, None, options)
}

/// Places in the code, by what they hold at the peak of a history, and by what they leave behind; the most first. What is
/// older than the history does not count.
pub fn places(trace: &Trace, device: u32) -> [Vec<Holder>; 2] {
    let options = Options::default();
    let facts = Facts::new(trace, &options, device, TorchVersion::ASSUMED);
    let allocations = &facts.program.allocations;
    let is_own = |block: &&facts::Live| allocations[block.id as usize].alloc_row != NO_ROW;
    let live: Vec<_> = facts.live.iter().filter(is_own).copied().collect();
    [holders(&facts, &live), holders(&facts, &facts.left)]
}

/// Of a history that need not have failed: the line where the user's own code writes attention out, if that
/// holds much of the peak, and the bytes that `scaled_dot_product_attention` in its place would save (estimated).
pub fn attention_of_own_code(trace: &Trace) -> Option<(String, u64)> {
    let device = trace.busiest_device()?;
    let options = Options::default();
    let facts = Facts::new(trace, &options, device, TorchVersion::ASSUMED);
    causes::attention_scores::of_own_code(&facts)
}

/// Explains the history of a job that failed: where and when, from its own history; what for, and what
/// would help, from a run `without_limit`.
pub fn explain_run(
    trace: &Trace,
    without_limit: Option<&WithoutLimit<'_>>,
    options: &Options,
) -> Explanation {
    let mut options = options.clone();
    let message = messages::primary(&options.messages);
    if let Some(message) = message.filter(|message| message.program == Program::Pytorch) {
        if options.device_total.is_none() {
            options.device_total = message.total.map(|bytes| bytes.0);
        }
        if options.process_outside.is_none() {
            options.process_outside = messages::process_outside(message);
        }
    }
    let devices = trace.used_devices();
    let device = options
        .device
        .unwrap_or_else(|| trace.busiest_device().unwrap_or(0));
    let known_version = options.torch_version.or_else(|| {
        trace
            .context
            .torch_version
            .as_deref()
            .and_then(TorchVersion::parse)
    });
    let facts = Facts::new(
        trace,
        &options,
        device,
        known_version.unwrap_or(TorchVersion::ASSUMED),
    );
    let beyond = without_limit.filter(|_| facts.failed()).map(|run| {
        let options = Options {
            seen: Seen {
                fused_attention: options.seen.fused_attention,
                ..run.seen.clone()
            },
            ..options.clone()
        };
        (run, options)
    });
    let whole = beyond
        .as_ref()
        .map(|(run, options)| Facts::without_limit(run.trace, options, &facts, run.short_bytes));
    let mut causes = match &whole {
        None => causes::assess(&facts),
        Some(whole) => causes::assess_both(&facts, whole),
    };
    if let Some(short) = whole.as_ref().and_then(|whole| whole.short) {
        for fix in causes.iter_mut().flat_map(|cause| &mut cause.fixes) {
            let left = short.saturating_sub(fix.saves_bytes);
            fix.left_bytes = Some(left);
            fix.enough = Some(left == 0);
        }
        for cause in &mut causes {
            // Stable: what is enough comes first, else as before.
            cause.fixes.sort_by_key(|fix| fix.enough != Some(true));
        }
    }
    let growth = growth_report(whole.as_ref().unwrap_or(&facts));
    let out_of_memory = facts.failed() || message.is_some_and(messages::is_of_memory);
    let mut assumptions = Vec::new();
    if known_version.is_none() {
        assumptions.push(format!(
            "the snapshot does not state its torch version; oomph used the allocator's rules of {}",
            facts.version
        ));
    }
    if out_of_memory && !facts.failed() {
        assumptions
            .push("the history has no out-of-memory event; this describes its peak".to_owned());
        if causes.is_empty()
            && let Some(message) = message
        {
            causes = messages::causes(message);
        }
    }
    if causes.is_empty() && out_of_memory {
        causes.push(not_enough_evidence(trace));
    }
    let verdict = verdict(&facts, &causes, growth.as_ref(), out_of_memory);
    let cause = if out_of_memory {
        causes.first().cloned()
    } else {
        None
    };
    let mut problems: Vec<ProblemReport> = facts
        .program
        .problems
        .iter()
        .map(ProblemReport::from)
        .collect();
    if devices.len() > 1 && options.device.is_none() {
        problems.push(ProblemReport::from(&Problem::new(
            ProblemKind::Incomplete,
            format!("the snapshot has the devices {devices:?}; this is about device {device}"),
        )));
    }
    Explanation {
        format: FORMAT,
        verdict,
        out_of_memory,
        unclear: !out_of_memory && facts.trace.events.is_empty(),
        fixes: fixes(&causes),
        cause,
        without_limit: whole.is_some(),
        recorded: trace.labels.is_some(),
        lower_bound: facts.failed() && without_limit.is_none_or(|run| run.short_bytes.is_none()),
        peak: peak(&facts),
        holders: {
            let mut holders = holders(&facts, &facts.live);
            holders.truncate(HOLDERS);
            holders
        },
        timeline: facts.timeline(TIMELINE),
        held: held::held_stacks(whole.as_ref().unwrap_or(&facts)),
        growth,
        steps: facts
            .steps
            .iter()
            .map(|step| StepReport {
                first_event: step.start,
                peak_bytes: step.peak,
                end_bytes: step.live_at_end,
            })
            .collect(),
        message: message.map(messages::report),
        messages: options.messages.iter().map(messages::report).collect(),
        ranks: messages::ranks(&options.messages),
        next: Vec::new(),
        assumptions,
        problems,
        causes,
    }
}

impl Explanation {
    /// Says that the bytes of causes and fixes are at least, and why.
    pub const fn at_least(&self) -> &'static str {
        if self.without_limit {
            "these figures are lower bounds: the run without a limit did not come to an end either"
        } else {
            "these figures are lower bounds: they come from the run that was cut off"
        }
    }

    /// Takes in what the linter found: of each finding the cause that it is about, the bytes of its lines, and
    /// its text. It confirms a cause that the history shows; if the history cannot show it, it is one.
    pub fn add_findings(
        &mut self,
        findings: impl IntoIterator<Item = (&'static str, u64, String)>,
    ) {
        if !self.out_of_memory {
            return;
        }
        let needed: u64 = self.held.iter().map(|stack| stack.bytes).sum();
        for (id, bytes, text) in findings {
            if let Some(cause) = self.causes.iter_mut().find(|cause| cause.id == id) {
                let what = format!("oomph lint: {text}");
                cause.evidence.push(Evidence::new(what));
                continue;
            }
            // A loop holds everything that is made in it. What grows is what it keeps.
            let bytes = match id {
                "graph_retained" | "tensors_kept" => {
                    self.growth.as_ref().map_or(0, |growth| growth.bytes)
                }
                // The recorder would have seen it.
                "missing_no_grad" | "attention_scores" if self.recorded => 0,
                _ => bytes,
            };
            if bytes > 0 && bytes.saturating_mul(4) >= needed {
                self.causes.push(causes::of_finding(id, bytes, &text));
            } else {
                for cause in &mut self.causes {
                    cause.verdict = cause.verdict.replace(causes::NOTHING_ELSE, "");
                }
            }
        }
        if self
            .causes
            .iter()
            .any(|cause| cause.id != "batch_too_large")
        {
            for cause in &mut self.causes {
                cause.verdict = cause.verdict.replace(causes::NOTHING_ELSE, "");
            }
        }
        self.causes
            .sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
        self.fixes = fixes(&self.causes);
        if let Some(first) = self.causes.first() {
            self.verdict.clone_from(&first.verdict);
            self.cause = Some(first.clone());
        }
    }

    /// Puts the reader's problems first. A file that ends early may lack the failure, and then the
    /// verdict says so.
    pub fn add_problems<'a>(&mut self, problems: impl IntoIterator<Item = &'a Problem>) {
        let problems: Vec<&Problem> = problems.into_iter().collect();
        let cut = problems
            .iter()
            .any(|problem| problem.kind == ProblemKind::Truncated);
        if cut && !self.out_of_memory {
            self.unclear = true;
            self.verdict = format!("the file is truncated; up to its end, {}", self.verdict);
        }
        self.problems
            .splice(0..0, problems.into_iter().map(ProblemReport::from));
    }
}

/// Explains messages alone; `None` if there are none.
pub fn explain_messages(messages: &[OomMessage]) -> Option<Explanation> {
    let message = messages::primary(messages)?;
    let mut causes = messages::causes(message);
    if causes.is_empty() {
        causes.push(messages::not_enough_evidence(message));
    }
    for cause in &mut causes {
        messages::of_cause(message, cause);
    }
    let ranks = messages::ranks(messages);
    let over = messages::over_failures(messages, message);
    if let Some(first) = causes.first_mut() {
        first.evidence.extend(over);
    }
    if let Some(first) = causes.first_mut() {
        first.verdict.push_str(&messages::tale(message));
        let around = messages::around(messages, &ranks, first);
        first.verdict.push_str(&around);
    }
    let verdict = causes
        .first()
        .map(|cause| cause.verdict.clone())
        .unwrap_or_default();
    let evidence = causes
        .first()
        .map_or_else(Vec::new, |cause| cause.evidence.clone());
    // The peak is that of PyTorch's allocator; the figures of others stand in the message.
    let pytorch = Some(message)
        .filter(|message| message.program == Program::Pytorch && message.memory == Memory::Device);
    let bytes = |of: fn(&OomMessage) -> Option<Bytes>| pytorch.and_then(of).map(|bytes| bytes.0);
    let allocated = bytes(|message| message.allocated).unwrap_or(0);
    let request = bytes(|message| message.requested).unwrap_or(0);
    let reserved = bytes(|message| message.reserved).unwrap_or(0);
    Some(Explanation {
        format: FORMAT,
        verdict,
        out_of_memory: !message.handled && messages::is_of_memory(message),
        unclear: messages::is_open(message),
        fixes: fixes(&causes),
        cause: causes.first().cloned(),
        causes,
        lower_bound: true,
        peak: PeakReport {
            device: message.device.unwrap_or(0),
            live_bytes: allocated,
            request_bytes: request,
            segment_bytes: request,
            needed_bytes: allocated.saturating_add(request),
            reserved_bytes: reserved,
            peak_reserved_bytes: reserved,
            unused_bytes: bytes(|message| message.unallocated).unwrap_or(0),
            device_free_bytes: bytes(|message| message.free),
            device_total_bytes: bytes(|message| message.total),
            ..PeakReport::default()
        },
        holders: (message.pool.as_deref()).map_or_else(Vec::new, pool::holders),
        message: Some(MessageReport {
            figures: messages::listed(message, &evidence, messages),
            ..messages::report(message)
        }),
        messages: messages.iter().map(messages::report).collect(),
        ranks,
        next: messages::steps(message),
        assumptions: pytorch
            .filter(|message| message.requested.is_some())
            .map(|_| "sizes in the message are rounded to two decimals by PyTorch".to_owned())
            .into_iter()
            .collect(),
        ..Explanation::default()
    })
}

/// Fixes of the first cause, then of the others that are about as likely; the largest first. What saves next to
/// nothing beside another fix is no fix.
fn fixes(causes: &[Cause]) -> Vec<Fix> {
    /// Causes that are this much less likely than the first do not add fixes.
    const CLOSE: f64 = 0.25;
    /// One part in this many of the largest saving.
    const NEXT_TO_NOTHING: u64 = 50;
    let Some(first) = causes.first() else {
        return Vec::new();
    };
    let mut fixes: Vec<Fix> = Vec::new();
    for cause in causes
        .iter()
        .filter(|cause| cause.confidence + CLOSE >= first.confidence)
    {
        for fix in &cause.fixes {
            if fix.saves_bytes > 0 && !fixes.iter().any(|other| other.remedy == fix.remedy) {
                fixes.push(fix.clone());
            }
        }
    }
    let most = fixes.iter().map(|fix| fix.saves_bytes).max().unwrap_or(0);
    fixes.retain(|fix| fix.saves_bytes.saturating_mul(NEXT_TO_NOTHING) >= most);
    fixes
}

fn not_enough_evidence(trace: &Trace) -> Cause {
    let why = if trace.events.is_empty() {
        "the snapshot has no history"
    } else if trace.stacks.len() <= 1 {
        "the history has no stacks"
    } else {
        "nothing in the history explains the failure"
    };
    Cause {
        id: "not_enough_evidence",
        confidence: 1.0,
        verdict: format!("{why}, so the cause cannot be named"),
        evidence: vec![Evidence::new(
            "record the whole job: torch.cuda.memory._record_memory_history(\
             max_entries=sys.maxsize, stacks=\"python\") before the model is built",
        )],
        fixes: Vec::new(),
    }
}

fn verdict(
    facts: &Facts,
    causes: &[Cause],
    growth: Option<&GrowthReport>,
    out_of_memory: bool,
) -> String {
    if out_of_memory {
        return causes
            .first()
            .map(|cause| cause.verdict.clone())
            .unwrap_or_default();
    }
    if let Some(growth) = growth {
        let left = growth
            .steps_left
            .map(|steps| format!("; memory runs out after about {steps} more steps"))
            .unwrap_or_default();
        return format!(
            "the job did not fail, but each step leaves {} behind{left}",
            Bytes(growth.bytes_per_step)
        );
    }
    if facts.trace.events.is_empty() {
        return format!(
            "the snapshot has no history, so oomph cannot tell whether memory ran out; {} were in \
             use when it was taken",
            Bytes(facts.live_bytes)
        );
    }
    format!(
        "the job did not run out of memory: {} were in use at its peak, {} reserved",
        Bytes(facts.live_bytes),
        Bytes(facts.program.recorded_peak_reserved)
    )
}

fn growth_report(facts: &Facts) -> Option<GrowthReport> {
    let growth = &facts.growth;
    if growth.steps < 2 || growth.per_step == 0 || growth.within_step {
        return None;
    }
    // A failed job has no steps left; for others, this needs the device's size.
    let total = facts.options.device_total.or(facts
        .trace
        .context
        .device_total
        .map(|bytes| bytes.0));
    let steps_left = match total {
        Some(total) if !facts.failed() => Some(
            total
                .saturating_sub(facts::CONTEXT)
                .saturating_sub(facts.program.recorded_peak_reserved)
                / growth.per_step,
        ),
        _ => None,
    };
    Some(GrowthReport {
        bytes: growth.bytes,
        bytes_per_step: growth.per_step,
        steps: growth.steps,
        steps_left,
    })
}

fn peak(facts: &Facts) -> PeakReport {
    let mut categories: Vec<CategoryBytes> = Category::ALL
        .into_iter()
        .map(|category| CategoryBytes {
            category: category.id(),
            name: category.name(),
            bytes: facts.bytes_of(category),
            device: None,
            blocks: None,
        })
        .filter(|entry| entry.bytes > 0)
        .collect();
    categories.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
    PeakReport {
        event: facts.failure.map(|failure| failure.alloc_row as usize),
        device: facts.program.device,
        live_bytes: facts.live_bytes,
        request_bytes: facts.request,
        segment_bytes: if facts.failed() { facts.segment } else { 0 },
        needed_bytes: facts.needed(),
        reserved_bytes: facts.reserved,
        peak_reserved_bytes: facts.program.recorded_peak_reserved,
        unused_bytes: facts.unused(),
        device_free_bytes: facts.room.map(|room| room.device_free),
        device_total_bytes: facts.options.device_total.or(facts
            .trace
            .context
            .device_total
            .map(|bytes| bytes.0)),
        room_at_least_bytes: facts.room.map(|room| room.at_least),
        room_below_bytes: facts.room.map(|room| room.below),
        categories,
    }
}

/// Groups blocks by the user's line, the innermost Python line and the category.
fn holders(facts: &Facts, blocks: &[facts::Live]) -> Vec<Holder> {
    let mut groups = Groups::default();
    let mut places: HashMap<StackId, Vec<String>> = HashMap::new();
    for block in blocks {
        let place = places.entry(block.stack).or_insert_with(|| {
            let place = causes::place(facts, block.stack);
            if place.is_empty() && block.phase == oomph_trace::Phase::Backward {
                vec!["backward (autograd's own threads have no Python lines)".to_owned()]
            } else {
                place
            }
        });
        let module = facts
            .trace
            .labels
            .as_ref()
            .and_then(|labels| {
                let allocation = facts.program.allocations.get(block.id as usize)?;
                let label = labels.get(allocation.alloc_row as usize);
                Some(facts.trace.strings.get(label.module).to_owned())
            })
            .filter(|module| !module.is_empty());
        let key = (place.clone(), block.category.name(), module);
        groups.add(key, block.bytes, 1);
    }
    groups.holders()
}

/// A place, what it holds, and the module.
type Group = (Vec<String>, &'static str, Option<String>);

/// What is held by each group: bytes and blocks.
#[derive(Default)]
struct Groups(HashMap<Group, (u64, usize)>);

impl Groups {
    fn add(&mut self, key: Group, bytes: u64, blocks: usize) {
        let entry = self.0.entry(key).or_default();
        entry.0 = entry.0.saturating_add(bytes);
        entry.1 = entry.1.saturating_add(blocks);
    }

    /// The most first.
    fn holders(self) -> Vec<Holder> {
        let mut holders: Vec<Holder> = (self.0.into_iter())
            .map(|((stack, category, module), (bytes, blocks))| Holder {
                bytes,
                blocks,
                category,
                module,
                stack,
            })
            .collect();
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.stack.cmp(&b.stack)));
        holders
    }
}
