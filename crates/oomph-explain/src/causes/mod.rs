//! The causes, one file each. A file holds one function that looks at the facts and returns the
//! cause with its confidence, evidence and fixes, or nothing.
//!
//! Confidence ranks causes against each other: above 0.8 the evidence is decisive; around 0.5 nothing
//! else explains the failure; below 0.3 the cause only contributes.

pub(crate) mod attention_scores;
mod batch_too_large;
mod cast_on_gpu;
mod checkpoint_on_gpu;
mod fragmentation;
mod graph_retained;
pub(crate) mod huge_request;
mod input_spike;
mod kv_cache;
mod logits;
mod missing_no_grad;
mod mitigation_inert;
mod model_too_large;
mod optimizer_state;
mod other_process;
mod outside_allocator;
mod stale_model;
mod tensors_kept;
mod workspace;

use std::collections::HashSet;

use oomph_trace::{Category, Phase, StackId};
use serde::Serialize;

use crate::counterfactual::Split;
use crate::facts::Facts;
use crate::lever::{self, Lever};
use crate::stacks::frame_text;

/// From this confidence on a cause is named beside others.
const WORTH_NAMING: f64 = 0.3;
/// The most stacks to list as evidence.
const SHOWN_STACKS: usize = 3;

/// Why a job ran out of memory.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Cause {
    /// The identifier, such as `graph_retained`.
    pub id: &'static str,
    /// How sure this is, from 0 to 1.
    pub confidence: f64,
    /// One sentence.
    pub verdict: String,
    /// The evidence.
    pub evidence: Vec<Evidence>,
    /// What helps.
    pub fixes: Vec<Fix>,
}

/// A fact that supports a cause.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Evidence {
    /// The fact in words.
    pub what: String,
    /// The bytes that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Where in the code, the user's own line first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

impl Evidence {
    /// A fact.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            bytes: None,
            stack: Vec::new(),
        }
    }

    /// A fact about an amount.
    pub fn of(bytes: u64, what: impl Into<String>) -> Self {
        Self {
            bytes: Some(bytes),
            ..Self::new(what)
        }
    }

    /// With a place in the code.
    #[must_use]
    pub fn at(mut self, facts: &Facts, stack: StackId) -> Self {
        self.stack = place(facts, stack);
        self
    }
}

/// How a predicted saving was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The simulator ran the history with it.
    Replayed,
    /// The sum of the blocks that would not exist.
    Counted,
    /// A share of the blocks that it acts on.
    Estimated,
}

/// What a fix is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// A lever of `oomph fit` makes the change.
    Lever(Lever),
    /// The user makes it; a word for what it is about.
    Advice(&'static str),
}

/// Something that helps.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Fix {
    /// What it is: `lever` or `advice`.
    #[serde(flatten)]
    pub remedy: Remedy,
    /// What to do.
    pub what: String,
    /// What it saves at the peak.
    pub saves_bytes: u64,
    /// How that was found.
    pub basis: Basis,
    /// Whether it is enough by itself; absent if how much is needed was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enough: Option<bool>,
    /// What is still too much with it; absent if how much is needed was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_bytes: Option<u64>,
    /// Whether the job computes the same.
    pub same_result: &'static str,
    /// A setting or a line to copy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apply: Option<String>,
}

impl Fix {
    /// A lever.
    pub(crate) fn lever(
        lever: Lever,
        what: impl Into<String>,
        saves_bytes: u64,
        basis: Basis,
        same_result: &'static str,
    ) -> Self {
        Self::new(
            Remedy::Lever(lever),
            what.into(),
            saves_bytes,
            basis,
            same_result,
        )
    }

    /// What the user does.
    pub(crate) fn advice(
        about: &'static str,
        what: impl Into<String>,
        saves_bytes: u64,
        basis: Basis,
        same_result: &'static str,
    ) -> Self {
        Self::new(
            Remedy::Advice(about),
            what.into(),
            saves_bytes,
            basis,
            same_result,
        )
    }

    const fn new(
        remedy: Remedy,
        what: String,
        saves_bytes: u64,
        basis: Basis,
        same_result: &'static str,
    ) -> Self {
        Self {
            remedy,
            what,
            saves_bytes,
            basis,
            enough: None,
            left_bytes: None,
            same_result,
            apply: None,
        }
    }

    /// With something to copy.
    #[must_use]
    pub fn apply(mut self, text: impl Into<String>) -> Self {
        self.apply = Some(text.into());
        self
    }
}

/// A place in the code: the user's own line, then the library's innermost.
pub(crate) fn place(facts: &Facts, stack: StackId) -> Vec<String> {
    let found = facts.stacks.get(stack);
    let mut place = Vec::new();
    if let Some(user) = found.user {
        place.push(frame_text(facts.trace, user));
    }
    if let Some(python) = found.python
        && found.user != Some(python)
    {
        place.push(frame_text(facts.trace, python));
    }
    place
}

/// The user's own line of a stack, for a sentence.
pub(crate) fn user_line(facts: &Facts, stack: StackId) -> Option<String> {
    facts
        .stacks
        .get(stack)
        .user
        .map(|frame| frame_text(facts.trace, frame))
}

/// The line of a stack where the user's own code called the model.
pub(crate) fn calling_line(facts: &Facts, stack: StackId) -> Option<String> {
    facts
        .stacks
        .get(stack)
        .caller
        .map(|frame| frame_text(facts.trace, frame))
}

/// The stacks of the largest blocks among some, with their bytes and counts, largest first.
pub(crate) fn top_stacks(
    facts: &Facts,
    mut wanted: impl FnMut(&crate::facts::Live) -> bool,
) -> Vec<(StackId, u64, usize)> {
    let mut by_stack: std::collections::HashMap<StackId, (u64, usize)> =
        std::collections::HashMap::new();
    for block in facts.live.iter().filter(|block| wanted(block)) {
        let entry = by_stack.entry(block.stack).or_default();
        entry.0 += block.bytes;
        entry.1 += 1;
    }
    let mut stacks: Vec<(StackId, u64, usize)> = by_stack
        .into_iter()
        .map(|(stack, (bytes, count))| (stack, bytes, count))
        .collect();
    stacks.sort_by_key(|&(stack, bytes, _)| (std::cmp::Reverse(bytes), stack));
    stacks
}

/// The user's own line that holds the most among some blocks.
pub(crate) fn largest_line(
    facts: &Facts,
    wanted: impl FnMut(&crate::facts::Live) -> bool,
) -> Option<String> {
    let &(stack, ..) = top_stacks(facts, wanted).first()?;
    user_line(facts, stack)
}

/// The largest stacks among some blocks as evidence.
pub(crate) fn stack_evidence(
    facts: &Facts,
    wanted: impl FnMut(&crate::facts::Live) -> bool,
) -> Vec<Evidence> {
    top_stacks(facts, wanted)
        .into_iter()
        .take(SHOWN_STACKS)
        .map(|(stack, bytes, count)| {
            let noun = if count == 1 { "block" } else { "blocks" };
            Evidence::of(bytes, format!("{count} {noun}")).at(facts, stack)
        })
        .collect()
}

/// Fixes for activations, with what each saves.
pub(crate) fn activation_fixes(facts: &Facts) -> Vec<Fix> {
    let split = facts.split(|block| {
        matches!(
            block.category,
            Category::Activation | Category::Temporary | Category::Input
        )
    });
    let autocast = (!facts.options.seen.autocast).then(|| {
        Fix::lever(
            lever::MIXED_PRECISION,
            "bf16 autocast, if the job runs in fp32",
            split.saves(0.5),
            Basis::Estimated,
            "numerics change",
        )
    });
    // Several passes and no backward: there are no gradients to accumulate, and no saved activations
    // to recompute.
    let parts = enough_parts(facts, &split);
    let saves = split.saves(1.0 / parts as f64);
    let computes_alone = facts.failure_phase() == Phase::Setup && !facts.trains();
    if facts.infers() || computes_alone {
        let what = match parts {
            2 => "run half as much at once".to_owned(),
            _ => format!("run one part in {parts} at once"),
        };
        let smaller = Fix::advice("smaller_batch", what, saves, Basis::Estimated, "exact");
        return [smaller].into_iter().chain(autocast).collect();
    }
    let mut fixes = vec![Fix::lever(
        lever::MICRO_BATCH,
        match parts {
            2 => "halve the batch and accumulate two of them".to_owned(),
            _ => format!("a batch of one part in {parts}, and accumulate {parts} of them"),
        },
        saves,
        Basis::Estimated,
        "exact, except with BatchNorm in training",
    )];
    fixes.extend(autocast);
    let checkpointed = facts
        .live
        .iter()
        .any(|block| facts.stacks.get(block.stack).in_checkpoint());
    if !checkpointed {
        fixes.push(Fix::lever(
            lever::CHECKPOINT,
            "recompute activations in backward (torch.utils.checkpoint on the repeated blocks)",
            split.saves(0.4),
            Basis::Estimated,
            "exact",
        ));
    }
    fixes
}

/// Into how many parts the second part of `split` must be divided so that one of them is not too much: a power of two.
pub(crate) fn enough_parts(facts: &Facts, split: &Split) -> u64 {
    /// A batch rarely has more samples.
    const MOST: u64 = 64;
    let short = facts.short.unwrap_or(0);
    let enough = |&parts: &u64| split.saves(1.0 / parts as f64) >= short;
    let mut powers = (1..)
        .map(|power| 1 << power)
        .take_while(|&parts| parts <= MOST);
    powers.find(enough).unwrap_or(2)
}

/// What is said of a job that simply needs more.
pub(crate) const NOTHING_ELSE: &str = "; nothing is held needlessly";

/// The cause that a finding of the linter is about, on lines that hold `bytes`.
pub(crate) fn of_finding(id: &'static str, bytes: u64, text: &str) -> Cause {
    Cause {
        id,
        // More than what is left when nothing else explains the failure, less than what a history shows.
        confidence: 0.76,
        verdict: format!("{text}: {} are held by it", oomph_trace::Bytes(bytes)),
        evidence: vec![Evidence::of(bytes, format!("oomph lint: {text}"))],
        fixes: match id {
            "attention_scores" => vec![attention_scores::fix(bytes)],
            "checkpoint_on_gpu" => vec![checkpoint_on_gpu::fix(bytes)],
            "graph_retained" => vec![graph_retained::fix(bytes)],
            "missing_no_grad" => vec![missing_no_grad::fix(bytes, Basis::Estimated)],
            "tensors_kept" => vec![tensors_kept::fix(bytes)],
            _ => Vec::new(),
        },
    }
}

type Check = fn(&Facts) -> Option<Cause>;

/// Causes that the moment of failure shows: what the device had then.
const OF_THE_FAILURE: [Check; 3] = [
    other_process::check,
    outside_allocator::check,
    huge_request::check,
];

/// Causes that what is alive shows.
const OF_WHAT_IS_ALIVE: [Check; 15] = [
    graph_retained::check,
    missing_no_grad::check,
    tensors_kept::check,
    kv_cache::check,
    stale_model::check,
    checkpoint_on_gpu::check,
    cast_on_gpu::check,
    input_spike::check,
    optimizer_state::check,
    logits::check,
    attention_scores::check,
    workspace::check,
    mitigation_inert::check,
    model_too_large::check,
    batch_too_large::check,
];

/// Whether a job that failed as `cut` says would have had enough without `bytes` of what it needed in all, as far as is known.
pub(crate) fn fits_without(cut: &Facts, whole: &Facts, bytes: u64) -> Option<bool> {
    let room = cut.room?;
    Some(whole.needed().saturating_sub(bytes) <= room.at_least)
}

/// What should not be there, whatever the job's size.
const DEFECTS: [&str; 9] = [
    "huge_request",
    "graph_retained",
    "missing_no_grad",
    "tensors_kept",
    "stale_model",
    "checkpoint_on_gpu",
    "cast_on_gpu",
    "mitigation_inert",
    "fragmentation",
];
/// The sizes of a job: what is left when nothing more special explains the failure.
const SIZES: [&str; 2] = ["batch_too_large", "model_too_large"];

/// From this confidence on the evidence is decisive.
const DECISIVE: f64 = 0.8;
/// How likely a cause of which mending alone would not be enough may be, beside one of `best`.
const BELOW: f64 = 0.01;

/// Puts first what is why memory ran out by what would have been without it: a defect that is enough by itself comes before all
/// that only has a size, and before defects that are not enough; and what is less than half of what is missing comes after
/// what is all of it.
fn enough_first(cut: &Facts, whole: &Facts, causes: &mut [Cause]) {
    let short = whole.short.or_else(|| {
        let room = cut.room?.at_least;
        Some(whole.needed().saturating_sub(room)).filter(|&short| short > 0)
    });
    let Some(short) = short else { return };
    let most = |cause: &Cause| cause.fixes.iter().map(|fix| fix.saves_bytes).max();
    let enough = |cause: &Cause| most(cause).is_some_and(|most| most >= short);
    let best = |causes: &[Cause], of: &dyn Fn(&Cause) -> bool| {
        // A replay that fits where holes are ordinary is as likely as any counts.
        let likely = causes
            .iter()
            .filter(|cause| cause.confidence >= fragmentation::FITS);
        likely
            .filter(|cause| enough(cause) && of(cause))
            .map(|cause| cause.confidence)
            .fold(0.0, f64::max)
    };
    let cap = |cause: &mut Cause, best: f64| {
        if best > 0.0 {
            cause.confidence = cause.confidence.min(best - BELOW);
        }
    };
    let is_defect = |cause: &Cause| DEFECTS.contains(&cause.id);
    let defect = best(causes, &is_defect);
    // Ordinary holes, and a mitigation that covers little, say nothing against what is large.
    let decisive = best(causes, &|cause| {
        is_defect(cause) && cause.confidence >= DECISIVE
    });
    let any = best(causes, &|cause| !SIZES.contains(&cause.id));
    let size = best(causes, &|_| true);
    for cause in causes.iter_mut() {
        let saves_half = most(cause).is_some_and(|most| most >= short / 2);
        if is_defect(cause) && !enough(cause) {
            cap(cause, defect);
        }
        if !is_defect(cause) {
            cap(cause, decisive);
        }
        if !saves_half && !SIZES.contains(&cause.id) && most(cause).is_some() {
            cap(cause, if any > 0.0 { any } else { size });
        }
    }
}

/// What only passes need.
const OF_PASSES: [&str; 8] = [
    "graph_retained",
    "missing_no_grad",
    "input_spike",
    "logits",
    "attention_scores",
    "workspace",
    "mitigation_inert",
    "batch_too_large",
];

/// Whether memory ran out before any pass, in a job that goes on to run some.
fn before_passes(cut: &Facts, whole: &Facts) -> bool {
    let runs = |facts: &Facts| {
        facts.every().any(|block| {
            facts.row_of(&block) < facts.row as u32
                && !matches!(block.phase, Phase::Setup | Phase::Load | Phase::Unknown)
        })
    };
    matches!(cut.failure_phase(), Phase::Setup | Phase::Load) && !runs(cut) && runs(whole)
}

/// Puts what memory was full of before any pass above what passes would have needed later on.
fn setup_first(cut: &Facts, whole: &Facts, causes: &mut [Cause]) {
    if !before_passes(cut, whole) {
        return;
    }
    let is_of_passes = |cause: &Cause| OF_PASSES.contains(&cause.id);
    let best = (causes.iter().filter(|cause| !is_of_passes(cause)))
        .map(|cause| cause.confidence)
        .fold(0.0, f64::max);
    if best >= DECISIVE {
        for cause in causes.iter_mut().filter(|cause| is_of_passes(cause)) {
            cause.confidence = cause.confidence.min(best - BELOW);
        }
    }
}

/// Every cause that the facts support, the most likely first.
pub fn assess(facts: &Facts) -> Vec<Cause> {
    assess_both(facts, facts)
}

/// The same of a job that failed as `cut` says, and needed without a limit what `whole` says.
pub fn assess_both(cut: &Facts, whole: &Facts) -> Vec<Cause> {
    let data = tensors_kept::data_on_gpu(cut, whole);
    let beside_weights = data.is_some();
    let mut causes: Vec<Cause> = OF_THE_FAILURE
        .iter()
        .filter_map(|check| check(cut))
        .chain(huge_request::column_and_row(cut, whole))
        .chain(fragmentation::check(cut, whole))
        .chain(OF_WHAT_IS_ALIVE.iter().filter_map(|check| check(whole)))
        .chain(optimizer_state::beside_the_step(cut, whole))
        .chain(data)
        .collect();
    for cause in &mut causes {
        if cause.id == "workspace" && !workspace::is_the_difference(cut, whole) {
            cause.confidence = cause.confidence.min(workspace::BESIDE);
        }
    }
    causes.extend(workspace::chosen_by_speed(cut, whole));
    // Weights that are there twice, and what lies beside weights in buffers, are not a model that is too large.
    let twice = [
        "stale_model",
        "checkpoint_on_gpu",
        "cast_on_gpu",
        "kv_cache",
    ];
    let explained = beside_weights || causes.iter().any(|cause| twice.contains(&cause.id));
    let state_alone = optimizer_state::beside_the_step(cut, whole).is_some();
    // A state that is written by hand looks like results that are kept, and nothing else would have to go.
    if state_alone && optimizer_state::is_by_hand(whole) {
        causes.retain(|cause| cause.id != "tensors_kept");
    }
    let alone = causes
        .iter()
        .all(|cause| cause.id == "batch_too_large" || cause.confidence < WORTH_NAMING);
    for cause in &mut causes {
        match cause.id {
            "model_too_large" if explained => cause.confidence = cause.confidence.min(0.55),
            // Without the state of its optimizer the model fits.
            "model_too_large" if state_alone => cause.confidence = cause.confidence.min(0.65),
            "batch_too_large" if alone => {
                cause.verdict.push_str(NOTHING_ELSE);
            }
            _ => {}
        }
    }
    enough_first(cut, whole, &mut causes);
    setup_first(cut, whole, &mut causes);
    // Stable: among equals the order above decides.
    causes.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    let mut named = HashSet::new();
    causes.retain(|cause| named.insert(cause.id));
    for cause in &mut causes {
        cause.confidence = (cause.confidence * 100.0).round() / 100.0;
        cause.fixes.sort_by_key(|fix| {
            (
                fix.basis == Basis::Estimated,
                std::cmp::Reverse(fix.saves_bytes),
            )
        });
    }
    causes
}
