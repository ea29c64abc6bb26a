//! Pieces of advice as data: what each changes, and what in a text rules that out.

use oomph_trace::text::{Memory, MessageKind, OomMessage, Phase, Program, Sign};

use super::next::{NextStep, advice, is_perhaps_pytorch};
use super::{evidence, told};
use crate::causes::{Cause, Remedy};
use crate::lever;

/// What a piece of advice changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Samples at once, where it trains or infers.
    Batch,
    /// Requests or tokens that a server or an engine takes at once.
    Requests,
    /// Samples at once, where it evaluates.
    EvaluationBatch,
    /// The size of a sample: a sequence, an image, a context.
    Inputs,
    /// 16 bits where there are 32.
    Halves,
    /// 32 bits where there are 64.
    Singles,
    /// Weights in 8 or 4 bits.
    Bits,
    /// Activations that are computed again.
    Recomputing,
    /// The graph that gradients need.
    Graph,
    /// How many parameters are trained.
    Trained,
    /// The bits of an optimizer's state.
    OptimizerBits,
    /// Which kernels attention has.
    Attention,
    /// The bits of keys and values.
    CacheBits,
    /// How an allocator joins its free pieces.
    Pieces,
    /// A server's share of the GPU.
    Share,
    /// Other processes on the GPU.
    Processes,
    /// Tiles in which a picture is decoded.
    Tiles,
    /// The size of such tiles.
    SmallerTiles,
    /// What an optimizer that works on all parameters at once makes beside them.
    Temporaries,
    /// Anything else, which no text rules out.
    Other,
}

/// A way to need less, one of several in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Way {
    change: Change,
    what: &'static str,
}

impl NextStep {
    /// Whether one of its ways is a change.
    pub(super) fn has(&self, change: Change) -> bool {
        self.ways.iter().any(|way| way.change == change)
    }
}

/// A step of several ways; `{}` in its words stands for those that are left.
pub(super) fn ways(words: &str, list: &[(Change, &'static str)]) -> NextStep {
    let mut step = advice(words);
    step.ways = list
        .iter()
        .map(|&(change, what)| Way { change, what })
        .collect();
    step
}

/// Why advice is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Out {
    /// The text shows it on.
    On,
    /// It changes nothing there.
    Useless,
}

/// Phases in which a program holds weights and states, and neither samples nor activations.
const WITHOUT_SAMPLES: [Phase; 7] = [
    Phase::Loading,
    Phase::Moving,
    Phase::Wrapping,
    Phase::Saving,
    Phase::SettingUp,
    Phase::Context,
    Phase::Communicating,
];

/// What the settings of commands change, by how they begin.
const SETTINGS: [(Change, &[&str]); 3] = [
    (
        Change::Inputs,
        &[
            "-c ",
            "--ctx-size",
            "--max-model-len",
            "--context-length",
            "OLLAMA_CONTEXT_LENGTH",
            "/set parameter num_ctx",
        ],
    ),
    (
        Change::Requests,
        &[
            "-ub ",
            "--max-num-seqs",
            "--max-num-batched-tokens",
            "--max-running-requests",
            "--chunked-prefill-size",
            "--max-batch-prefill-tokens",
            "/set parameter num_batch",
            "beam_size",
        ],
    ),
    (Change::CacheBits, &["--cache-type", "--kv-cache-dtype"]),
];

/// What the settings of a command change, where a text may rule that out.
fn change_of(command: &str) -> Option<Change> {
    let mut table = SETTINGS.iter();
    let begins = |words: &[&str]| words.iter().any(|word| command.starts_with(word));
    table.find_map(|(change, words)| begins(words).then_some(*change))
}

/// Whether the program of a message trains nothing.
fn only_infers(message: &OomMessage) -> bool {
    let trains = [Sign::Rollouts, Sign::TrainingRun];
    (message.program.only_infers() || message.inside.is_some_and(Program::only_infers))
        && !trains.iter().any(|sign| message.tables.shows(*sign))
}

/// Whether a setting of one of these names is on, and not for 32 bits.
fn is_set(message: &OomMessage, names: &[&str]) -> bool {
    message.settings.iter().any(|setting| {
        let value = setting.value.as_deref().unwrap_or("true");
        names.contains(&setting.name.as_str()) && !value.contains("32")
    })
}

/// Whether the text shows that something is trained.
pub(super) fn trains(message: &OomMessage) -> bool {
    let shows = |sign| message.tables.shows(sign);
    shows(Sign::Trains)
        || shows(Sign::TrainingRun)
        || (message.tables.framework.is_some() && !shows(Sign::Infers))
        || matches!(message.during, Some(Phase::Backward | Phase::Optimizing))
}

/// Whether nothing in the text shows that a model runs, which has samples and numbers of fewer bits: an error of CUDA's in any program.
fn shows_no_model(message: &OomMessage) -> bool {
    let shows = |sign| message.tables.shows(sign);
    matches!(message.program, Program::Cuda | Program::Unknown)
        && message.inside.is_none()
        && ![Sign::Python, Sign::Trains, Sign::Infers]
            .into_iter()
            .any(shows)
}

/// How people call what they tried; nothing where a little more of it may still help.
const fn spoken(change: Change) -> &'static [&'static str] {
    match change {
        Change::Halves => &[
            "fp16",
            "bf16",
            "float16",
            "half precision",
            "mixed precision",
        ],
        Change::Bits => &["4bit", "4_bit", "8bit", "8_bit", "quantiz"],
        Change::Recomputing => &["checkpointing"],
        Change::Attention => &["xformers", "flash attention", "flash_att"],
        Change::Pieces => &["max_split_size", "expandable", "alloc_conf"],
        Change::Share => &["gpu_memory_utilization", "mem_fraction", "memory_fraction"],
        Change::Tiles => &["tiled", "tiling"],
        _ => &[],
    }
}

/// Whether a change is one of jobs that train.
const fn of_training(change: Change) -> bool {
    matches!(
        change,
        Change::Recomputing
            | Change::Graph
            | Change::Trained
            | Change::OptimizerBits
            | Change::Temporaries
    )
}

/// Whether one request alone is more than the GPU has, so that nothing else on it matters.
pub(super) fn is_one_tensor(message: &OomMessage) -> bool {
    let sizes = message.requested.zip(message.total);
    sizes.is_some_and(|(asked, total)| asked > total)
}

/// What rules a change out, if anything does.
fn ruled_out(message: &OomMessage, change: Change) -> Option<Out> {
    let shows = |sign| message.tables.shows(sign);
    let during = |phases: &[Phase]| message.during.is_some_and(|phase| phases.contains(&phase));
    let on = |is: bool| is.then_some(Out::On);
    let useless = |is: bool| is.then_some(Out::Useless);
    let without_samples = during(&WITHOUT_SAMPLES);
    let evaluates = during(&[Phase::Evaluating, Phase::Collecting, Phase::Generating]);
    let budget = message.kind == MessageKind::Budget;
    let of_weights = message.during.is_some_and(Phase::is_of_weights) && !budget;
    let no_model = shows_no_model(message);
    if of_training(change) && (only_infers(message) || no_model) {
        return Some(Out::Useless);
    }
    if message.tables.told.in_vain(spoken(change)) {
        return Some(Out::Useless);
    }
    match change {
        Change::Batch => useless(
            no_model
                || without_samples
                || during(&[Phase::Collecting, Phase::Capturing, Phase::Optimizing])
                || is_smallest_batch(message)
                || message.tables.told.no_batch_helps,
        ),
        Change::Requests => useless(of_weights || during(&[Phase::Cache])),
        Change::EvaluationBatch => useless(
            message.tables.told.no_batch_helps
                || message.settings.iter().any(|setting| {
                    setting.name.ends_with("eval_batch_size")
                        && setting.value.as_deref() == Some("1")
                }),
        ),
        Change::Inputs => useless((without_samples && !budget) || during(&[Phase::Optimizing])),
        Change::Tiles => useless(shows(Sign::Tiles) || of_weights),
        Change::SmallerTiles => useless(!shows(Sign::Tiles) || of_weights),
        Change::Temporaries => useless(!shows(Sign::MultiTensor)),
        Change::Halves => on(shows(Sign::Halves)
            || is_set(
                message,
                &["fp16", "bf16", "precision", "load_in_4bit", "load_in_8bit"],
            ))
        // Its variables keep their 32 bits.
        .or(useless(
            message.program == Program::Tensorflow && (shows(Sign::Sessions) || of_weights),
        )),
        Change::Singles => useless(!shows(Sign::Doubles)),
        // Fewer bits of the weights leave one tensor as large as it is.
        Change::Bits => on(is_set(message, &["load_in_4bit", "quantization"])).or(useless(
            no_model
                || message.program == Program::Pytorch && is_one_tensor(message) && !of_weights,
        )),
        Change::Recomputing => {
            on(shows(Sign::Recomputes) || is_set(message, &["gradient_checkpointing"])).or(useless(
                without_samples
                    || evaluates
                    || (shows(Sign::Infers) && !shows(Sign::Trains))
                    // It has a step of its own then.
                    || shows(Sign::NoInputGradients),
            ))
        }
        Change::Graph => useless(
            shows(Sign::NoGraph)
                || message.inside.is_some()
                || without_samples
                || during(&[Phase::Backward, Phase::Optimizing]),
        ),
        Change::Trained => on(shows(Sign::Adapters)),
        Change::OptimizerBits => on(shows(Sign::SmallOptimizer)),
        Change::Attention => on(shows(Sign::AttendsInBlocks)).or(useless(of_weights)),
        Change::CacheBits => useless(shows(Sign::NoFlashAttention) || of_weights),
        Change::Pieces => {
            let pool = matches!(message.program, Program::Tensorflow | Program::Jax);
            // TensorFlow 1 has one allocator.
            let old = message.program == Program::Tensorflow && shows(Sign::Sessions);
            // A pool has lost nothing to pieces unless the text shows them.
            let is_in_pieces = crate::pool::is_in_pieces(message).unwrap_or(!pool);
            on(grows_in_place(message)).or(useless(old || !is_in_pieces))
        }
        // A share that is too small for the model and one that leaves too little beside it: no other is better.
        Change::Share => useless(
            shows(Sign::FixedCache)
                || (budget && shows(Sign::GpuRanOut))
                || (!budget && shows(Sign::ShareTooSmall)),
        ),
        Change::Processes => {
            useless(holds_all_by_itself(message) || is_too_much_by_itself(message))
        }
        Change::Other => None,
    }
}

/// Whether neither a larger nor a smaller share of the GPU helps a server.
pub(super) fn no_share_fits(message: &OomMessage) -> bool {
    !message.tables.shows(Sign::FixedCache)
        && ruled_out(message, Change::Share) == Some(Out::Useless)
}

/// Whether the text shows that a change cannot help, or is made already.
pub(super) fn is_out(message: &OomMessage, change: Change) -> bool {
    ruled_out(message, change).is_some()
}

/// A way with what the text sets now of what it changes.
fn with_present(message: &OomMessage, way: &Way) -> String {
    let batch = way.change == Change::Batch;
    let sized = batch || way.change == Change::Inputs;
    match told::now(message, batch).filter(|_| sized) {
        Some(now) => format!("{} ({now})", way.what),
        None => way.what.to_owned(),
    }
}

/// A step without the ways that the text rules out; `None` if none is left.
fn left_of(message: &OomMessage, mut step: NextStep) -> Option<NextStep> {
    /// Ways of a step; more are no advice.
    const SHOWN: usize = 4;
    if step.ways.is_empty() {
        let change = step.command.as_deref().and_then(change_of);
        return (!change.is_some_and(|change| is_out(message, change))).then_some(step);
    }
    let (mut left, mut on): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
    // Nothing says that it trains.
    if step.command.is_some()
        && !trains(message)
        && step.ways.iter().all(|way| of_training(way.change))
    {
        return None;
    }
    for way in std::mem::take(&mut step.ways) {
        match ruled_out(message, way.change) {
            None => left.push(with_present(message, &way)),
            Some(Out::On) => on.push(way.what),
            Some(Out::Useless) => {}
        }
    }
    if left.is_empty() {
        return None;
    }
    left.truncate(SHOWN);
    let mut words = left.join("; ");
    if !on.is_empty() && step.command.is_none() {
        words = format!("{words} (already on: {})", on.join("; "));
    }
    if step.what.contains("{}") {
        step.what = step.what.replace("{}", &words);
    } else if step.command.is_none() {
        step.what = words;
    }
    Some(step)
}

/// Whether segments grow in place already.
pub(super) fn grows_in_place(message: &OomMessage) -> bool {
    message.settings.iter().any(|setting| {
        setting.name.ends_with("ALLOC_CONF")
            && setting.value.as_deref().is_some_and(|value| {
                value
                    .to_ascii_lowercase()
                    .contains("expandable_segments:true")
            })
    })
}

/// Whether the figures of a message leave nothing of the GPU to other processes.
pub(super) fn holds_all_by_itself(message: &OomMessage) -> bool {
    message
        .total
        .zip(message.free)
        .zip(message.this_process)
        .is_some_and(|((total, free), own)| {
            // More beside PyTorch than libraries take may be another process's, as in a container.
            let libraries = super::process_outside(message)
                .is_some_and(|outside| outside <= super::LIBRARIES / 4);
            message.memory == Memory::Device
                && libraries
                && message.others.is_empty()
                && total.saturating_sub(free + own).0 < total.0 / 64
        })
}

/// Whether what was asked for, beside what tensors held, is more than the device has when nothing else is on it.
pub(super) fn is_too_much_by_itself(message: &OomMessage) -> bool {
    let held = message.allocated.unwrap_or_default();
    message.memory == Memory::Device
        && message.allowed.is_none()
        && message
            .requested
            .zip(message.total)
            .is_some_and(|(asked, total)| held + asked > total)
}

/// Whether no batch is smaller.
fn is_smallest_batch(message: &OomMessage) -> bool {
    message.tables.shows(Sign::SmallestBatch)
        || message.settings.iter().any(|setting| {
            let name = setting.name.to_ascii_lowercase();
            told::BATCHES.contains(&name.as_str()) && setting.value.as_deref() == Some("1")
        })
}

/// The steps that the text does not rule out, without the commands whose answer stands in it.
pub(super) fn kept(message: &OomMessage, steps: Vec<NextStep>) -> Vec<NextStep> {
    let in_vain = |step: &NextStep| {
        let command = step.command.as_deref();
        command.is_some_and(|command| told::was_in_vain(message, command))
    };
    let mut left: Vec<NextStep> = unanswered(message, steps)
        .into_iter()
        .filter(|step| !in_vain(step))
        .filter_map(|step| left_of(message, step))
        .collect();
    if left.is_empty() {
        left.push(advice(
            "the text rules out the usual steps: print what is alive just before that line, and its size",
        ));
    }
    left
}

/// Marks of advice that only a program in Python can follow, and only one that uses PyTorch.
const PYTHON: &[&str] = &[
    "python",
    "Python",
    "pip ",
    "`del`",
    "[{\"",
    "config.set_",
    "session_options",
    "engine.device_",
    "jax.",
    "cupy.",
    "rmm.",
    "numpy.",
    "oomph run",
    "oomph fit",
    "ray.",
];
const TORCH: &[&str] = &["torch", "Torch", "pin_memory"];
/// What runs in Python alone.
const PYTHONS: [Program; 7] = [
    Program::Jax,
    Program::Cupy,
    Program::Numpy,
    Program::Numba,
    Program::Rmm,
    Program::Ray,
    Program::Python,
];

/// Whether the text bears out what advice takes for granted: the language, the libraries, the products that it names.
fn is_borne_out(message: &OomMessage, advice: &str) -> bool {
    let shows = |sign| message.tables.shows(sign);
    let has = |marks: &[&str]| marks.iter().any(|mark| advice.contains(mark));
    let runs: Vec<Program> = std::iter::once(message.program)
        .chain(message.inside)
        .collect();
    let native = shows(Sign::Native) && !shows(Sign::Python);
    let torch = is_perhaps_pytorch(message) || runs.iter().any(|program| program.runs_on_torch());
    let python =
        shows(Sign::Python) || torch || runs.iter().any(|program| PYTHONS.contains(program));
    (!has(TORCH) || torch && !native)
        && (!has(PYTHON) || python && !native)
        && message.tables.backs(advice, &runs)
}

/// A text without its parentheses that the text of a message does not bear out.
fn without_asides(message: &OomMessage, words: &str) -> String {
    let mut kept = String::new();
    let mut rest = words;
    while let Some(at) = rest.find(" (") {
        let (before, aside) = rest.split_at(at);
        // To the end of this one, whatever stands in parentheses within.
        let mut depth = 0;
        let end = aside.char_indices().find_map(|(at, c)| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            (c == ')' && depth == 0).then_some(at + 1)
        });
        let (aside, after) = aside.split_at(end.unwrap_or(aside.len()));
        kept.push_str(before);
        if is_borne_out(message, aside) {
            kept.push_str(aside);
        }
        rest = after;
    }
    kept + rest
}

/// A step with those of its words that the text bears out; `None` if that leaves nothing to do.
pub(super) fn borne_out(message: &OomMessage, mut step: NextStep) -> Option<NextStep> {
    let command = step.command.as_deref();
    if command.is_some_and(|command| !is_borne_out(message, command)) {
        return None;
    }
    let words = without_asides(message, &step.what);
    let part = |words: &str, mark: &str| {
        let parts = words.split(mark).filter(|part| is_borne_out(message, part));
        parts.collect::<Vec<_>>().join(mark)
    };
    let mut left = part(&words, "; ");
    if left.is_empty() {
        // The end of a list may be what does not fit.
        left = part(&words, ", ");
    }
    let gone = left.is_empty() && !step.what.is_empty();
    step.what = left;
    (!gone).then_some(step)
}

/// The fixes of a cause that the text does not rule out.
pub(crate) fn of_cause(message: &OomMessage, cause: &mut Cause) {
    cause.fixes.retain(|fix| {
        let change = match fix.remedy {
            Remedy::Lever(lever::ALLOCATOR) => Change::Pieces,
            Remedy::Lever(lever::ATTENTION) => Change::Attention,
            Remedy::Lever(lever::OPTIMIZER_8BIT) => Change::OptimizerBits,
            Remedy::Advice("free_the_gpu") => Change::Processes,
            _ => Change::Other,
        };
        !is_out(message, change)
    });
}

/// The steps without the commands whose answer stands in the text.
fn unanswered(message: &OomMessage, steps: Vec<NextStep>) -> Vec<NextStep> {
    let tables = &message.tables;
    let card = evidence::own_card(message);
    let seen = !tables.holders.is_empty() || card.is_some_and(|card| card.is_empty());
    let is_near = message.memory == Memory::Host && message.around.free.is_some();
    let answered = |command: &str| {
        let begins = |words: &[&str]| words.iter().any(|word| command.starts_with(word));
        // A tool and what it does: `kubectl describe`, `sacct -j`.
        let call = |text: &str| {
            text.split_whitespace()
                .take(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let shown = tables
            .commands
            .iter()
            .any(|done| call(done) == call(command));
        if shown
            && begins(&[
                "kubectl ",
                "sacct ",
                "df ",
                "free ",
                "dmesg ",
                "ulimit -a",
                "docker inspect ",
                "npu-smi ",
            ])
        {
            return true;
        }
        (seen
            && begins(&[
                "nvidia-smi --query-compute",
                "rocm-smi",
                "xpu-smi",
                "hl-smi",
                "npu-smi",
            ]))
            || ((tables.host.total.is_some() || is_near) && command == "free -h")
            || (tables.disk("/dev/shm").is_some() && command == "df -h /dev/shm")
    };
    let kept: Vec<NextStep> = steps
        .iter()
        .filter(|step| !step.command.as_deref().is_some_and(answered))
        .cloned()
        .collect();
    if kept.is_empty() { steps } else { kept }
}
