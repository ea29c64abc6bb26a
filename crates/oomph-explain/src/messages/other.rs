//! Messages of other programs than PyTorch's allocator: one sentence, and what the text cannot say.

use oomph_bytes::format_gib;
use oomph_trace::Bytes;
use oomph_trace::text::{
    Fault, Memory, MessageKind, OomMessage, Phase, Program, SHORT_OF_SHARE, Sign, Tokens, Uses,
};

use super::next::{held_by_others, memory_name, program_name};
use super::ways::no_share_fits;
use super::{evidence, figures, sharing, weights};

/// The cause that such a message shows, how sure that is, and one sentence.
pub(super) fn verdict(message: &OomMessage) -> (&'static str, f64, String) {
    if let Some(stopped) = evidence::bound(message) {
        return ("memory_budget", 0.7, evidence::sentence(message, stopped));
    }
    let (id, confidence, sentence) = of_kind(message);
    match evidence::of_the_card(message) {
        Some(shown) if !sentence.contains("by the text's table") && !sentence.contains(&shown) => {
            (id, confidence.min(0.8), format!("{sentence}; {shown}"))
        }
        _ => {
            let sum = [
                figures::of_the_plan(message).or_else(|| {
                    figures::never_fits(message).filter(|_| !figures::lists_buffers(message))
                }),
                figures::of_the_assignment(message)
                    .filter(|_| figures::never_fits(message).is_none()),
                sharing::of_models(message),
                figures::of_the_estimate(message),
                figures::of_the_node(message),
            ];
            let sum: String = sum.into_iter().flatten().collect();
            let sum = if sum.is_empty() && message.setting != Some("one allocation") {
                figures::sum(message).unwrap_or_default()
            } else {
                sum
            };
            (id, confidence, sentence + &sum)
        }
    }
}

fn of_kind(message: &OomMessage) -> (&'static str, f64, String) {
    match message.kind {
        MessageKind::Cuda if message.handled && message.memory == Memory::Device => (
            "device_memory",
            0.8,
            format!(
                "a shortage that the program got over, not a failure: {} was full at this line, and the program went on with \
                 less or elsewhere",
                device(message)
            ),
        ),
        MessageKind::Fault(fault @ Fault::Unnamed) => (
            "not_enough_evidence",
            1.0,
            format!("{} (line {})", super::faults::what(fault), message.line),
        ),
        MessageKind::Fault(fault) => (
            "not_memory",
            super::faults::confidence(message, fault),
            super::faults::verdict(message, fault),
        ),
        MessageKind::Killed => ("host_memory", killed_confidence(message), killed(message)),
        MessageKind::Budget => budget(message),
        MessageKind::OnChip => ("on_chip_memory", 0.95, on_chip(message)),
        MessageKind::NoAlgorithm => (
            "outside_allocator",
            0.5,
            format!(
                "{} tried every algorithm for one operation, and none ran: mostly so because too little of \
                 the GPU was left for their scratch memory, sometimes because a version does not fit",
                message.program.name()
            ),
        ),
        MessageKind::Cublas | MessageKind::Cudnn
            if has_room(message) && !names_memory(message) =>
        (
            "not_memory",
            0.8,
            format!(
                "{} could not make its handle, and memory was not short: of {} {} were free at that moment, by its own line; most \
                 likely the versions of the library, CUDA, the driver and the framework do not fit",
                message.program.name(),
                message.total.unwrap_or_default(),
                message.free.unwrap_or_default()
            ),
        ),
        MessageKind::Cublas | MessageKind::Cudnn
            if !names_memory(message) && evidence::is_full(message) =>
        (
            "outside_allocator",
            0.8,
            format!(
                "{} could not make its handle: its status does not name memory, but a handle needs some of it, and {}",
                message.program.name(),
                evidence::of_the_card(message).unwrap_or_else(|| "the text shows the GPU full".to_owned())
            ),
        ),
        MessageKind::Cublas | MessageKind::Cudnn if !names_memory(message) => (
            "outside_allocator",
            0.4,
            format!(
                "{} {}, and its status does not name memory: {} may have been full, an earlier kernel \
                 may have failed (an index out of range), threads may have got in each other's way, or the versions of CUDA, \
                 driver and framework do not fit; the text does not say which",
                message.program.name(),
                if message.text.contains("reate") || !message.text.contains("INTERNAL_ERROR") {
                    "could not make its handle"
                } else {
                    "failed at an operation"
                },
                device(message),
            ),
        ),
        MessageKind::Cublas | MessageKind::Cudnn if message.memory == Memory::Device => (
            "outside_allocator",
            0.6,
            format!(
                "out of memory in disguise: {} could not get {}, most likely because {} was full (the framework's \
                 own allocator had taken the rest, or another process); the same code has other causes now and then, \
                 such as an index out of range just before",
                message.program.name(),
                if message.during.is_some() {
                    "the memory that it needs"
                } else {
                    "the memory of its handle"
                },
                device(message)
            ),
        ),
        MessageKind::Nccl if message.memory == Memory::Device => (
            "outside_allocator",
            0.7,
            format!(
                "NCCL could not get {} on {}: it asks the driver itself, beside a framework's allocator, so the GPU was \
                 full{}",
                asked(message, "its buffers"),
                device(message),
                if evidence::of_the_card(message).is_some() {
                    ""
                } else if message.inside.is_some() {
                    "; whether that framework's own pool or another process held it the text does not say"
                } else {
                    "; who held it the text does not say"
                }
            ),
        ),
        MessageKind::Cuda if message.during == Some(Phase::Pinning) && message.inside == Some(Program::LlamaCpp) => (
            "not_enough_evidence",
            0.6,
            format!(
                "CUDA refused memory (error 2), and the text does not say whether of the GPU or of the host: it shows no layers \
                 on the GPU, so most likely the weights did not fit into pinned memory of the host{}",
                if message.tables.shows(Sign::Wsl) {
                    ", of which Windows' subsystem for Linux gives only a part of its RAM"
                } else {
                    ""
                }
            ),
        ),
        MessageKind::Cuda if message.memory == Memory::Host && message.allocator.as_deref() == Some("pinned memory") => (
            "host_memory",
            0.8,
            format!(
                "memory of the host could not be pinned{}: CUDA has the same words for it as for a full GPU. What a process may pin is \
                 limited by the system (locked memory, its mappings, Windows' subsystem for Linux), whatever is free",
                if message.inside == Some(Program::Vllm) {
                    " for vLLM's cache of keys and values on the CPU (its swap space)"
                } else {
                    ""
                }
            ),
        ),
        MessageKind::Cuda if message.during == Some(Phase::Pinning) => (
            "not_enough_evidence",
            0.6,
            "memory of the host could not be pinned: it could not be locked, or the GPU had no room for the context of the \
             thread that pins; the text does not say which"
                .to_owned(),
        ),
        MessageKind::Cuda if is_first_use(message) => (
            "other_process",
            0.6,
            format!(
                "{} had no room for the first and tiny tensor of a process, so it was full beforehand (other programs, the desktop), or the \
                 driver, CUDA and PyTorch's build do not fit: the tensor's size is not what is wrong",
                device(message)
            ),
        ),
        MessageKind::Cuda if is_context(message) => (
            "other_process",
            0.7,
            format!(
                "the GPU was full before the job asked for anything: {} could not even make its context there, so other \
                 processes hold the memory, or an earlier one of this job",
                program_name(message)
            ),
        ),
        // They call CUDA for each request: its error is theirs.
        MessageKind::Cuda if let Some(inside) = asks_by_itself(message) => (
            "device_memory",
            0.8,
            format!(
                "{inside} could not get {} of {}{}{}",
                asked(message, "what it asked for"),
                message.memory.name(),
                status(message).map_or_else(
                    || " (CUDA's error 2)".to_owned(),
                    |(status, library)| format!(" for {library}, which asks beside its pool ({status})")
                ),
                place(message)
            ),
        ),
        MessageKind::Cuda if message.memory == Memory::Host => allocation(message),
        // Only PyTorch's own words for it say that its allocator was not the one that asked.
        MessageKind::Cuda if message.requested.is_some() || message.free.is_some() => {
            let (id, confidence, sentence) = allocation(message);
            (id, confidence.min(0.8), sentence)
        }
        MessageKind::Cuda if !is_outside(message) => (
            "device_memory",
            0.8,
            format!(
                "a call of {} did not get the memory that it asked for on {}: {}{}",
                program_name(message),
                device(message),
                evidence::of_the_card(message).unwrap_or_else(|| {
                    "it asked for too much at once, or the program itself or other processes held the rest; the text does not say which".to_owned()
                }),
                if message.text.contains("failed with out of memory") {
                    "; errors that such a program reports after it are what follows"
                } else {
                    ""
                }
            ),
        ),
        MessageKind::Cuda if super::next::meets(message) => (
            "other_process",
            0.5,
            format!(
                "{} had no room for the little that ranks need to meet, before there was a model: it was full beforehand (another process, \
                 several ranks on one GPU), or it is broken; which rank and which node the text does not say",
                device(message)
            ),
        ),
        // Below a script, and without the words that later versions add.
        MessageKind::Cuda
            if !message.traceback.is_empty()
                && message.inside.is_none_or(|inside| inside == Program::Pytorch)
                && !message.tables.shows(Sign::Asynchronous) =>
        (
            "device_memory",
            0.6,
            format!(
                "{} was full: old versions of PyTorch say no more when their own allocator gets nothing, and later ones when a \
                 library beside it does; whose memory it was the text does not say{}",
                device(message),
                if message.during == Some(Phase::Evaluating) && !message.tables.shows(Sign::NoGraph) {
                    ". Where training itself fits, an evaluation mostly fails because it keeps the graph of each batch (no \
                     torch.no_grad())"
                } else {
                    ""
                }
            ),
        ),
        // An earlier prompt ran, and models of it may still be there.
        MessageKind::Cuda
            if message.inside == Some(Program::ComfyUi)
                && message.during.is_some_and(Phase::is_of_weights) =>
        (
            "device_memory",
            0.6,
            format!(
                "{} had no room for the model that was to be loaded{}: what ComfyUI still keeps there of earlier steps and that model are \
                 too much together (or memory of the host could not be pinned for what it keeps in RAM)",
                device(message),
                figures::remains(message).map_or_else(String::new, |held| format!(
                    " beside the {held} that its log says remained loaded"
                ))
            ),
        ),
        MessageKind::Cuda => (
            "outside_allocator",
            0.5,
            format!(
                "{} ran out outside the framework's allocator (the CUDA context, a kernel, another \
                 library), or was already full when the process began",
                device(message)
            ),
        ),
        MessageKind::Unknown if message.setting == Some("an account") => (
            "not_enough_evidence",
            1.0,
            format!(
                "line {} is of an account of memory, as {} prints it after a request failed: the line of the failure \
                 itself is not in this text",
                message.line,
                if message.text.contains("cgroup") || message.text.contains("asks state") {
                    "the kernel (for a group of processes or the whole host)"
                } else if message.text.contains("CUDA OOMs") {
                    "PyTorch (torch.cuda.memory_summary)"
                } else {
                    "the allocator of TensorFlow and of XLA (JAX)"
                }
            ) + &message.total.zip(message.in_use).map_or_else(String::new, |(limit, used)| {
                let left = limit.saturating_sub(used);
                format!(
                    "; its pool's limit is {limit}, and {used} of that were in use, so {}",
                    if let Some([free, most]) = crate::pool::scattered(message) {
                        format!(
                            "most of it was free, by the pool's map about {free}, but in pieces of which the longest has at most {most}: what \
                             failed most likely found none that is large enough (fragmentation)"
                        )
                    } else if is_full_pool(message) {
                        "tensors in use fill it: neither pieces nor other processes are what is wrong".to_owned()
                    } else if left < used {
                        "what failed asked for more than could be had at once, or the account is of another moment".to_owned()
                    } else {
                        format!(
                            "what failed asked for more than the {left} that were left at once, or the account is of another moment"
                        )
                    }
                )
            }),
        ),
        MessageKind::Unknown if message.setting == Some("nearly") => (
            "host_memory",
            0.8,
            format!(
                "a warning, not a failure: {} is nearly used up{}",
                part_of_the_host(message).unwrap_or_else(|| memory_name(message).to_owned()),
                figures_in_words(message)
            ),
        ),
        MessageKind::Unknown if message.setting == Some("an estimate") => allocation(message),
        MessageKind::Unknown if says_more(message) => {
            let (id, confidence, sentence) = allocation(message);
            (id, confidence.min(0.8), sentence)
        }
        MessageKind::Unknown => (
            "not_enough_evidence",
            1.0,
            match &message.requested {
                Some(asked) => format!(
                    "line {} says that {asked} of {} could not be had, of the GPU or of the host: it does not say which",
                    message.line,
                    message.memory.name()
                ),
                None => format!(
                    "line {} says that {} ran out, in words that oomph does not know",
                    message.line,
                    message.memory.name()
                ),
            },
        ),
        _ => allocation(message),
    }
}

/// Whether a message in unknown words says which memory ran out, and of what program, or how much was asked for.
fn says_more(message: &OomMessage) -> bool {
    let known = message.program != Program::Unknown;
    known || message.memory != Memory::Unknown
}

/// Whether a library's status says that it could not allocate.
fn names_memory(message: &OomMessage) -> bool {
    !["NOT_INITIALIZED", "STATUS_INTERNAL_ERROR"]
        .iter()
        .any(|status| message.text.contains(status))
}

/// The status of a library that asks by itself, and the library: `CUFFT_ALLOC_FAILED`.
fn status(message: &OomMessage) -> Option<(&str, &'static str)> {
    const LIBRARIES: [(&str, &str); 4] = [
        ("CUFFT_", "cuFFT"),
        ("CURAND_", "cuRAND"),
        ("CUSOLVER_", "cuSOLVER"),
        ("CUSPARSE_", "cuSPARSE"),
    ];
    LIBRARIES.into_iter().find_map(|(prefix, library)| {
        let status = message.text.get(message.text.find(prefix)?..)?;
        let ends = |c: char| !(c.is_ascii_uppercase() || c == '_');
        Some((status.split(ends).next()?, library))
    })
}

/// `6.9 GiB`, or a word for it.
fn asked(message: &OomMessage, otherwise: &str) -> String {
    message
        .requested
        .map_or_else(|| otherwise.to_owned(), |asked| asked.to_string())
}

fn device(message: &OomMessage) -> String {
    message
        .device
        .map_or_else(|| "the GPU".to_owned(), |device| format!("GPU {device}"))
}

/// Whether the words are those with which frameworks report an error of CUDA that is not their allocator's.
fn is_outside(message: &OomMessage) -> bool {
    [
        "CUDA error: out of memory",
        "CUDA driver error: out of memory",
        "HIP error: out of memory",
        "AcceleratorError",
    ]
    .iter()
    .any(|words| message.text.contains(words))
}

/// Whether tensors in use fill a pool of `TensorFlow`'s, by its account.
pub(super) fn is_full_pool(message: &OomMessage) -> bool {
    message
        .in_use
        .zip(message.total)
        .is_some_and(|(used, limit)| {
            message.setting == Some("an account") && limit.saturating_sub(used).0 <= limit.0 / 128
        })
}

/// The tokens of Text Generation Inference's trial run, where that failed.
pub(super) fn prefill_tokens(message: &OomMessage) -> Option<u64> {
    let (before, _) = message.text.split_once(" prefill tokens")?;
    let tokens = before.rsplit(' ').next()?.parse().ok()?;
    (message.program == Program::TextGenerationInference).then_some(tokens)
}

/// How many times as long as what fits the longest request is that a server was told of.
pub(super) fn times_too_long(message: &OomMessage) -> Option<f64> {
    let by_size = message.requested.zip(message.free);
    if let Some((asked, have)) = by_size {
        return Some(asked.0 as f64 / have.0.max(1) as f64);
    }
    let (_, rest) = message.text.split_once("max seq len (")?;
    let length: u64 = rest.split(')').next()?.parse().ok()?;
    Some(length as f64 / message.fits?.max(1) as f64)
}

/// The same in words.
fn too_long(message: &OomMessage) -> Option<String> {
    let times = times_too_long(message)?;
    let fits = message.fits?;
    Some(if times < 1.2 {
        let more = (fits as f64 * (times - 1.0)).round();
        format!(": {more} tokens, {:.1} %, too many", (times - 1.0) * 100.0)
    } else {
        format!(": {times:.1} times as many")
    })
}

/// CUDA made no context: nothing of the job was there yet.
pub(super) fn is_context(message: &OomMessage) -> bool {
    message.kind == MessageKind::Cuda && message.during == Some(Phase::Context)
}

/// Whether all that a text shows is a first, tiny allocation at a prompt: `torch.cuda.FloatTensor([1])`.
pub(super) fn is_first_use(message: &OomMessage) -> bool {
    const TINY: [&str; 6] = [
        "Tensor([1",
        "zeros(1)",
        "ones(1)",
        "rand(1)",
        "randn(1)",
        "tensor([1",
    ];
    let mut own = message
        .traceback
        .iter()
        .filter(|frame| oomph_trace::is_users_own(&frame.file));
    let only = own.next().filter(|_| own.next().is_none());
    message.kind == MessageKind::Cuda
        && message.memory == Memory::Device
        && only.is_some_and(|frame| {
            let code = &frame.code;
            frame.function == "<module>"
                && code.contains("cuda")
                && TINY.iter().any(|call| code.contains(call))
        })
}

/// The framework whose own request it is, where it has no allocator of its own between it and CUDA.
fn asks_by_itself(message: &OomMessage) -> Option<&'static str> {
    if message.text.contains(".lua:") && message.text.contains("torch") {
        return Some("Torch7 (Lua)");
    }
    // Old PyTorch's allocator had no words of its own.
    if message.inside.is_none() && message.text.contains("cuda runtime error (2)") {
        return Some(Program::Pytorch.name());
    }
    let inside = message.inside?;
    let own = match inside {
        Program::Numba
        | Program::Cupy
        | Program::LlamaCpp
        | Program::Ollama
        | Program::Relion
        | Program::Paddle
        | Program::Xgboost
        | Program::CTranslate2 => true,
        Program::Pytorch => message.text.contains("THC"),
        _ => false,
    };
    own.then_some(inside.name())
}

/// More than a GPU, or a machine, has.
const fn most(memory: Memory) -> u64 {
    match memory {
        Memory::Host => 64 << 40,
        _ => 4 << 40,
    }
}

/// What no machine has is a size that was computed wrongly, whoever asked for it.
pub(super) fn absurd(message: &OomMessage) -> Option<(&'static str, f64, String)> {
    let requested = message.requested.filter(|requested| {
        requested.0 > most(message.memory)
            && message.setting != Some("what is free")
            && !(message.total.is_some() && is_compiled(message))
    })?;
    let size = if message.text.contains("more than 1EB") {
        " (1 EiB) or more".to_owned()
    } else {
        format!(" ({requested})")
    };
    Some((
        "huge_request",
        0.9,
        format!(
            "{}{} asked for {} bytes{size}, more than {} has: a wrong shape or size, or a fault, and no shortage",
            program_name(message),
            figures::node(message)
                .map_or_else(String::new, |(_, name)| format!(" (the node {name})")),
            requested.0,
            if message.memory == Memory::Device {
                "any GPU"
            } else {
                "any such machine"
            }
        ),
    ))
}

/// Whether a size was computed wrongly: no machine has so much, or compiled code asks for many times the whole GPU.
pub(super) fn is_nonsense(message: &OomMessage) -> bool {
    const TIMES: u64 = 64;
    let far = |(asked, total): (Bytes, Bytes)| asked.0 / TIMES >= total.0;
    absurd(message).is_some()
        || (message.requested.zip(message.total).is_some_and(far) && is_compiled(message))
}

/// Whether one request is more than there is although next to nothing else is in use.
pub(super) fn is_alone(message: &OomMessage) -> bool {
    const PART: u64 = 64;
    let sizes = message.requested.zip(message.total).zip(message.used());
    !message.handled
        && message.memory == Memory::Device
        && sizes.is_some_and(|((asked, total), used)| asked > total && used.0 < total.0 / PART)
}

/// Whether the innermost line calls compiled code of an extension: `_C.rasterize(…)`.
pub(super) fn is_compiled(message: &OomMessage) -> bool {
    let mut frames = message.traceback.iter().rev();
    let calls = |code: &str| {
        ["_C.", "_ext.", "_cuda.", "_backend."]
            .iter()
            .any(|name| code.contains(name))
    };
    frames.next().is_some_and(|frame| calls(&frame.code)) || calls(&message.text)
}

/// Whether a message says of both memories that they were full.
fn names_both(message: &OomMessage) -> bool {
    message.text.contains("GPU and shared host memory")
}

fn place(message: &OomMessage) -> String {
    match (message.memory, message.device) {
        (Memory::Device, Some(device)) => format!(" on GPU {device}"),
        (Memory::Unknown, _) if names_both(message) => {
            ", of the GPU and of the host's part that the GPU may use: both were full".to_owned()
        }
        (Memory::Unknown, _) => {
            ", of the GPU or of the host: the text does not say which".to_owned()
        }
        _ => String::new(),
    }
}

/// Whether a figure of the GPU's memory cannot be right.
pub(super) fn is_more_than_a_gpu(message: &OomMessage, used: Bytes) -> bool {
    message.memory == Memory::Device && used > Bytes::gib(2048)
}

/// Whether one request alone is larger than nearly every GPU.
pub(super) fn is_larger_than_gpus(requested: Bytes) -> bool {
    requested > Bytes::gib(150)
}

/// So little is free on every GPU and machine that is not full.
const LITTLE: Bytes = Bytes(64 << 20);

/// So much is free on no full GPU.
const MUCH: Bytes = Bytes(4 << 30);

/// A part of the host's memory, or a limit on it, that is not the machine's RAM.
fn part_of_the_host(message: &OomMessage) -> Option<String> {
    match message.allocator.as_deref()? {
        "/dev/shm" => Some("the host's shared memory (/dev/shm)".to_owned()),
        part @ ("pinned memory" | "locked memory") => Some(format!("the host's {part}")),
        _ if is_pinned_pool(message) => Some("the host's pinned memory".to_owned()),
        part if is_own_limit(part) => Some(part.to_owned()),
        _ => None,
    }
}

/// Whether an allocator's name is that of a limit which the program has set itself.
pub(super) fn is_own_limit(name: &str) -> bool {
    [
        "Java's heap",
        "the JavaScript heap",
        "PHP's memory",
        "a worker's own",
        "what Windows gives",
        "a container's memory",
    ]
    .iter()
    .any(|own| name.starts_with(own))
}

/// What was free, in use, and there is, as the end of a sentence.
fn figures_in_words(message: &OomMessage) -> String {
    let figures: Vec<String> = [
        message.free.map(|free| format!("{free} were free")),
        message
            .used()
            .filter(|used| !is_more_than_a_gpu(message, *used))
            .map(|used| {
                if message.program == Program::Cupy {
                    format!("its pool held {used}, free blocks included")
                } else {
                    format!("{used} were in use")
                }
            }),
        message.total.map(|total| {
            if message.setting == Some("one allocation") {
                format!("{total} is the most that one buffer may have")
            } else if message.program == Program::Cupy {
                format!("{total} is the limit that was set for its pool")
            } else if has_pool(message) {
                format!("{total} is the limit of its pool")
            } else {
                format!("{total} is all there is")
            }
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    if figures.is_empty() {
        String::new()
    } else {
        format!("; {}", figures.join(", "))
    }
}

/// Whether the limit is that of a pool, which need not be the card's.
fn has_pool(message: &OomMessage) -> bool {
    matches!(message.program, Program::Tensorflow | Program::Jax)
        && message.hardware != oomph_trace::text::Hardware::Tpu
        && (message.memory == Memory::Device || is_pinned_pool(message))
}

/// Whether it is TensorFlow's pool of pinned host memory, whose limit is a setting.
fn is_pinned_pool(message: &OomMessage) -> bool {
    message
        .allocator
        .as_deref()
        .is_some_and(|name| name.ends_with("host_bfc"))
}

/// What became of a build that left a tactic out, as the end of a sentence.
fn skipped(message: &OomMessage) -> &'static str {
    if message.tables.shows(Sign::Built) {
        "; it skipped that tactic, and built the engine all the same"
    } else {
        "; it skips that tactic, and whether the build finds another the text does not say"
    }
}

/// A shortage of one kind of memory, by the figures that the text has.
fn allocation(message: &OomMessage) -> (&'static str, f64, String) {
    let id = match message.memory {
        Memory::Host => "host_memory",
        Memory::Unknown => "not_enough_evidence",
        _ => "device_memory",
    };
    let what = part_of_the_host(message).unwrap_or_else(|| memory_name(message).to_owned());
    let place = place(message);
    let figures = figures_in_words(message);
    let name = match message.program {
        Program::Unknown => "the program",
        _ => program_name(message),
    };
    if message.setting == Some("copy") && message.requested.is_none() {
        let sentence = "TensorFlow could not copy a tensor to the GPU, mostly because its memory is full (of TensorFlow's \
                        own or of other processes)";
        return (id, 0.6, format!("{sentence}{figures}"));
    }
    let sentence = if message.setting == Some("large alloc") {
        format!(
            "a notice, not a failure: the program asked for {} of {what} at once; if it ended then, that memory was most \
             likely used up",
            asked(message, "much")
        )
    } else if message.handled {
        format!(
            "a warning, not a failure: {name} could not get {} of {what}{place}{figures}{}",
            asked(message, "some"),
            if message.program == Program::TensorRt {
                skipped(message)
            } else if message.program == Program::LlamaCpp && message.memory == Memory::Device {
                "; the text says that it then tried another way"
            } else {
                ""
            }
        )
    } else if let Some(asked) = message.requested {
        format!(
            "{name} could not get {asked} of {what}{place}{figures}{}",
            if message.program == Program::TensorRt && message.tables.shows(Sign::NoImplementation)
            {
                "; no other implementation of that node was left, so the engine was not built"
            } else if message.program == Program::TensorRt
                && message.tables.shows(Sign::MakesContext)
            {
                "; the engine was loaded, and its execution context could not be made: that holds activations for the \
                 largest shapes that the engine was built for"
            } else if message.setting == Some("skipped beside an error") {
                skipped(message)
            } else {
                ""
            }
        )
    } else if message.program == Program::Nccl
        && message.allocator.as_deref() == Some("locked memory")
    {
        "NCCL could not register memory for the network: most likely a limit on locked memory, or its buffers are too \
         large"
            .to_owned()
    } else {
        format!(
            "{name} {}ran out of {what}{place}{figures}{}",
            if message.text.contains("us error") {
                "most likely "
            } else {
                ""
            },
            if message.allocator.as_deref().is_some_and(is_own_limit) {
                ": that is a limit of its own, and the machine may have more"
            } else {
                ""
            }
        )
    };
    if message.setting == Some("guess") {
        return (
            id,
            0.4,
            format!(
                "{name}'s runner ended while it loaded a model, and {name} guesses that memory was short, of the GPU or of \
                 the host: the server's log has the runner's last words"
            ),
        );
    }
    if message.setting == Some("an estimate") {
        let available = message.tables.available();
        return (
            "memory_budget",
            0.8,
            format!(
                "{name} refused before it allocated anything: it estimates that it needs {} of {what}{}{}",
                asked(message, "more"),
                message
                    .total
                    .map_or_else(String::new, |total| format!(", and may use {total}")),
                available
                    .filter(|free| message.requested.is_some_and(|asked| asked < *free))
                    .map_or_else(String::new, |free| format!(
                        "; by the text {free} of host memory are free, so it is a margin or a rule of its own that refuses"
                    ))
            ),
        );
    }
    if message.setting == Some("maximum_pool_size") {
        return (
            "memory_budget",
            0.9,
            format!(
                "{sentence}: its pool reached the size that was set for it, and the GPU may have more"
            ),
        );
    }
    if message.setting == Some("one allocation") {
        return (
            "memory_budget",
            0.8,
            format!(
                "{sentence}: the driver allows no single buffer that large, and its memory need not be full"
            ),
        );
    }
    let all = message.total.or(message.around.total);
    if message.memory == Memory::Host
        && !message.handled
        && message.allocator.is_none()
        && let Some((asked, total)) = message.requested.zip(all)
        && asked > total
    {
        return (
            "huge_request",
            0.9,
            format!(
                "{sentence}: more than the {total} that there are, so only a smaller request helps"
            ),
        );
    }
    if message.memory == Memory::Device
        && let Some((asked, total)) = message.requested.zip(message.total)
        && asked > total
    {
        return (
            "huge_request",
            0.9,
            format!(
                "{sentence}: too much by itself, however empty it is, so {}{}",
                if is_alone(message) {
                    "the size is wrong (a shape that nobody meant), or only smaller shapes or more devices help"
                } else {
                    "only a smaller program (smaller shapes, less that is kept) or more devices help"
                },
                if message.setting == Some("lists what holds it") {
                    "; the lines below the message list what is largest"
                } else {
                    ""
                }
            ),
        );
    }
    if message.setting == Some("what is free") && !message.handled {
        if held_by_others(message) {
            return (
                "other_process",
                0.85,
                format!(
                    "{name}'s pool asks at its start for what the driver says is free, and that was {} of {}: other \
                     processes, or an earlier run, hold the rest",
                    message.free.unwrap_or_default(),
                    message.total.unwrap_or_default()
                ),
            );
        }
        if message.program == Program::Jax
            && message
                .requested
                .is_some_and(|asked| !is_larger_than_gpus(asked))
        {
            return (
                "other_process",
                0.7,
                format!(
                    "{sentence}: its pool asks at its start for a share of the whole GPU (0.75, unless set), so other processes \
                     hold too much of it; the program may have gone on with less"
                ),
            );
        }
        if message
            .requested
            .is_some_and(|asked| !is_larger_than_gpus(asked))
        {
            return (
                id,
                0.7,
                format!(
                    "{sentence}: its pool asks at its start for what the driver says is free, and then for less and less, \
                     so {}; the program may have gone on with less",
                    if message.tables.shows(Sign::SharesGpu) {
                        "of the processes that the text has on the GPU another one took memory at the same time"
                    } else {
                        "another process took memory at the same time, or the driver kept a part"
                    }
                ),
            );
        }
    }
    // Next to no GPU has so much.
    if message.memory == Memory::Device
        && message.total.is_none()
        && message.requested.is_some_and(is_larger_than_gpus)
    {
        if message.setting == Some("what is free") {
            return (
                id,
                0.6,
                format!(
                    "{sentence}: its pool asks at the start for what the driver says is free, and no GPU has so much, so \
                     the driver's figure was wrong (versions that do not fit, or a broken state of the GPU)"
                ),
            );
        }
        return (
            "huge_request",
            0.8,
            format!(
                "{sentence}: next to no GPU has so much, so the request itself is too large ({}), however empty the GPU is",
                if message.tables.shows(Sign::Pipelined) {
                    "a buffer for computing, of which a pipeline over several GPUs keeps a few copies: n_copies in the log"
                } else {
                    "a length, a batch, a shape"
                }
            ),
        );
    }
    if !message.handled
        && let Some((asked, free)) = message.requested.zip(message.free)
        && free > asked
    {
        return (
            id,
            0.6,
            format!(
                "{sentence}: more was free than was asked for, so a limit, or memory in pieces that are too small, \
                 stood in the way"
            ),
        );
    }
    if !message.handled
        && message.requested.is_none()
        && message.memory == Memory::Device
        && message.free.is_some_and(|free| free >= MUCH)
    {
        return (
            id,
            0.5,
            format!(
                "{sentence}: so a limit, pinned memory of the host or a short peak is as likely as a full GPU"
            ),
        );
    }
    if let Some(room) = figures::room_to_grow(message) {
        return (
            "other_process",
            0.8,
            format!(
                "{sentence}: the pool might have grown by {room}, which is more than was asked for, so the driver refused it and the \
                 GPU itself was full: other processes hold the rest of it"
            ),
        );
    }
    if let Some(free) = free_near_it(message) {
        return (
            id,
            0.6,
            format!(
                "{sentence}, although a line near it says that {free} were free: a limit of the driver, a buffer that is \
                 too large for one piece, or another moment"
            ),
        );
    }
    if is_small(message) {
        return (
            id,
            0.9,
            format!(
                "{sentence}: so little that it was full before{}, and what filled it matters more than this request",
                if message.memory == Memory::Host {
                    ", or a limit of the process was reached (ulimit -v, a container's, a batch job's)"
                } else {
                    ""
                }
            ),
        );
    }
    (id, 0.9, sentence)
}

/// What a line near a message says was free, where that is much more than was asked for; it may be of another moment.
pub(super) fn free_near_it(message: &OomMessage) -> Option<Bytes> {
    // What was asked for is much less, or by its own plan the whole model is.
    let fits = |free: &Bytes| {
        let planned = || figures::stated(message, "memory.required.full=");
        message.requested.map_or_else(
            || planned().is_some_and(|whole| whole < *free),
            |asked| free.0 / 2 > asked.0,
        )
    };
    let free = message
        .around
        .free
        .filter(|free| *free >= MUCH && fits(free));
    // What llama.cpp's log says to be free is from before its weights were there.
    let later = matches!(message.during, Some(Phase::Cache | Phase::ComputeBuffers));
    free.filter(|_| {
        !message.handled
            && !later
            && message.kind == MessageKind::Allocation
            && message.memory == Memory::Device
            && message.free.is_none()
            && figures::estimate(message).is_none()
    })
}

/// Whether a library itself says that a good part of the GPU was free when it failed.
pub(super) fn has_room(message: &OomMessage) -> bool {
    let figures = message.free.zip(message.total);
    matches!(message.kind, MessageKind::Cublas | MessageKind::Cudnn)
        && figures.is_some_and(|(free, total)| free >= Bytes::gib(1) && free.0 > total.0 / 4)
}

/// Whether so little was asked for that the memory had been full before, with no figure that says otherwise.
pub(super) fn is_small(message: &OomMessage) -> bool {
    !message.handled
        && matches!(
            message.kind,
            MessageKind::Allocation | MessageKind::Cuda | MessageKind::Host | MessageKind::Native
        )
        && message.requested.is_some_and(|asked| asked <= LITTLE)
        && message.free.is_none()
        && message.total.is_none()
        && message.allocator.as_deref().is_none_or(|name| {
            name.ends_with("_bfc") || ["DefaultCPUAllocator", "BFCArena"].contains(&name)
        })
}

fn budget(message: &OomMessage) -> (&'static str, f64, String) {
    let name = message.program.name();
    if message.memory == Memory::Host {
        return (
            "host_memory",
            0.9,
            format!(
                "{name} looked before it loaded the model: that needs {} of {}, and {} are free",
                asked(message, "more"),
                message.memory.name(),
                message
                    .free
                    .map_or_else(|| "fewer".to_owned(), |free| free.to_string())
            ),
        );
    }
    if let Some(shared) = sharing::of(message) {
        return ("other_process", 0.85, shared.sentence(name));
    }
    if message.setting == Some("workspace") {
        let whose = message.allocator.as_deref().unwrap_or("a library's buffer");
        return (
            "memory_budget",
            0.9,
            format!(
                "{whose}, a buffer whose size {name} sets at its start, has no room for {}{}: {} need not be full",
                asked(message, "what was asked for"),
                message
                    .free
                    .map(|free| format!(" (its largest free piece has {free})"))
                    .unwrap_or_default(),
                if message.memory == Memory::Device {
                    "the GPU itself"
                } else {
                    "the machine's memory"
                }
            ),
        );
    }
    if let Some(tokens) = prefill_tokens(message) {
        return (
            "memory_budget",
            0.9,
            format!(
                "{name}'s trial run, one pass over {tokens} tokens of prompts, found no room beside the weights: no pool of keys and \
                 values is made yet"
            ),
        );
    }
    if let Some(tokens) = message.tokens.filter(|tokens| tokens.asked.is_some()) {
        return ("memory_budget", 0.8, pool(name, tokens, page_size(message)));
    }
    let sentence = match (message.requested, message.free, message.total) {
        (Some(asked), Some(free), Some(total)) if held_by_others(message) => {
            return (
                "other_process",
                0.85,
                format!(
                    "{name} wants {asked} of {} at its start, and only {free} of {total} are free: other \
                     processes hold {}",
                    device(message),
                    total - free
                ),
            );
        }
        (Some(asked), Some(free), Some(total)) => format!(
            "{name} wants {} of {} at its start, and {} of {} are free, {} too few: its share is set \
             higher than what is left beside the driver and whatever else holds some",
            format_gib(asked.0),
            device(message),
            format_gib(free.0),
            format_gib(total.0),
            asked.saturating_sub(free)
        ),
        (Some(asked), Some(free), None) => format!(
            "{name} has {} for keys and values, and one request of the full length needs {}",
            format_gib(free.0),
            format_gib(asked.0)
        ),
        _ => match message.fits {
            Some(fits) => format!(
                "{name} has room for the keys and values of {fits} tokens, and one request may be longer{}",
                too_long(message).unwrap_or_default()
            ),
            None if message.setting == Some("--max-running-requests") => format!(
                "{name}'s cache of keys and values is full: more requests ran at once than it holds"
            ),
            None => format!(
                "{name}'s share of the GPU is used up by the model{}: nothing is left for keys and values{}{}{}",
                match (message.in_use, message.free) {
                    (Some(weights), Some(left)) => format!(
                        " (its weights take {weights} and leave {left}, of which a part is kept back for activations)"
                    ),
                    _ => match weights::of(message).filter(|_| !figures::lists_weights(message)) {
                        Some(weights) => format!(
                            " (about {} of weights on each GPU, by its size) and what its trial run needs",
                            weights.each()
                        ),
                        None => " and what its trial run needs".to_owned(),
                    },
                },
                match (short_of_share(message), message.allowed, message.total) {
                    (Some(short), Some(share), Some(total)) =>
                        format!(", {short} too few in its share of {share} of {total}"),
                    (Some(short), ..) => format!(", {short} too few"),
                    _ => String::new(),
                },
                of_a_set_share(message).unwrap_or_default(),
                if no_share_fits(message) {
                    "; the text also has a GPU that ran out at a larger share, so no share alone helps: less has to be beside \
                     the cache"
                } else {
                    ""
                }
            ),
        },
    };
    ("memory_budget", 0.9, sentence)
}

/// That the share which the text sets would have room by its figures, as the end of a sentence.
fn of_a_set_share(message: &OomMessage) -> Option<String> {
    let set = figures::setting(message, "mem_fraction_static")?;
    let share: f64 = set.value.as_deref()?.parse().ok()?;
    let (weights, left) = message.in_use.zip(message.free)?;
    let room = Bytes(((weights + left).0 as f64 * share) as u64).saturating_sub(weights);
    (room.0 > 0).then(|| {
        format!(
            "; {share} of both, as the text sets it, would leave {room}, so whether the setting took effect is the first question"
        )
    })
}

/// How much a server's share of the GPU is too small for its model and what it measured.
pub(super) fn short_of_share(message: &OomMessage) -> Option<Bytes> {
    let mut parts = message.parts.iter();
    parts.find_map(|(name, bytes)| (name == SHORT_OF_SHARE).then_some(*bytes))
}

/// A pool of keys and values, which counts in tokens, and gives them out by the page.
fn pool(name: &str, tokens: Tokens, page: Option<u64>) -> String {
    let asked = tokens.asked.unwrap_or_default();
    let free = tokens
        .free
        .map(|free| {
            format!(", of which {free} are free and the rest would have to be given back first")
        })
        .unwrap_or_default();
    let counted = tokens
        .available
        .map(|available| format!("; it counts {available} as available{free}"))
        .unwrap_or_default();
    if let (Some(available), Some(page)) = (tokens.available, page)
        && page > 1
        && available >= asked
    {
        return format!(
            "{name}'s pool of keys and values had no room for {asked} tokens, although it counts {available} as available: \
             pages of {page} make that {} pages, and each request that goes on may need a page of its own",
            available / page
        );
    }
    let why = match tokens.available {
        Some(available) if available >= asked => {
            "so it is not simply full: whole pages for each request, or a fault of the server's schedule, and not the GPU's memory"
        }
        _ => "more requests ran at once than it holds",
    };
    format!("{name}'s pool of keys and values had no room for {asked} tokens{counted}: {why}")
}

/// Tokens of a page of the pool, where a command sets them.
pub(super) fn page_size(message: &OomMessage) -> Option<u64> {
    let set = super::figures::setting(message, "page_size")?;
    set.value.as_deref()?.parse().ok()
}

/// Whether a server counts as available what a request could not get.
pub(super) fn has_tokens(message: &OomMessage) -> bool {
    message.tokens.is_some_and(|tokens| {
        tokens
            .available
            .zip(tokens.asked)
            .is_some_and(|(available, asked)| available >= asked)
    })
}

/// A TPU core's own memories, by the name in the text.
pub(super) fn of_a_core(message: &OomMessage) -> Option<&'static str> {
    let names = [
        ("smem", "scalar memory (smem)"),
        ("vmem", "vector memory (vmem)"),
    ];
    names
        .into_iter()
        .find_map(|(word, name)| message.text.contains(word).then_some(name))
}

fn on_chip(message: &OomMessage) -> String {
    if let Some(name) = of_a_core(message) {
        let over = message
            .text
            .split_once("capacity by ")
            .or_else(|| message.text.split_once("limit by "))
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .map(|over| format!(": {} too much", over.trim_end_matches(['.', ',', ';'])))
            .unwrap_or_default();
        let asked = asked(message, "more");
        let total = message
            .total
            .map_or_else(|| "there is".to_owned(), |total| format!("its {total}"));
        let sizes = if message.requested.is_some() {
            format!("{asked} of the {name} of a TPU's core, of {total}")
        } else {
            format!("more of the {name} of a TPU's core than {total}")
        };
        return format!(
            "a kernel of XLA asks for {sizes}{over}; this is memory on the chip, not the TPU's main memory (HBM)"
        );
    }
    let sizes = match (message.requested, message.total) {
        // Blackwell's, whose rows the compiler counts.
        (Some(asked), Some(total)) if message.text.contains("tensor memory") => format!(
            "{} of the tensor memory of a multiprocessor, which has {}",
            asked.0, total.0
        ),
        (Some(asked), Some(total)) => format!(
            "{} bytes of the shared memory of a multiprocessor, which has {}",
            asked.0, total.0
        ),
        _ => "more of the shared memory of a multiprocessor than it has".to_owned(),
    };
    let goes_on = if message.handled {
        ". That is a notice of a search for the fastest kernel, which leaves this variant out and goes on"
    } else {
        ""
    };
    format!(
        "a kernel of {} asks for {sizes}; this is not the GPU's main memory{goes_on}",
        message.program.name()
    )
}

/// The kernel and schedulers say that it was memory; signal 9 alone does not.
fn killed_confidence(message: &OomMessage) -> f64 {
    match message {
        _ if message.setting == Some("no reason") => 0.5,
        _ if message.setting == Some("not its limit") || evidence::free_near(message).is_some() => {
            0.4
        }
        _ if is_evident(message) => 0.95,
        _ if says_full(message) => 0.8,
        _ => 0.6,
    }
}

fn is_evident(message: &OomMessage) -> bool {
    matches!(
        message.program,
        Program::Kernel
            | Program::Slurm
            | Program::Kubernetes
            | Program::Docker
            | Program::Ray
            | Program::Systemd
    ) || (matches!(message.program, Program::Unknown | Program::Named(_)) && says_memory(message))
}

/// Whether words that no reader knows name memory as the reason.
pub(super) fn says_memory(message: &OomMessage) -> bool {
    // A path is a name of the user's.
    let is_path = |word: &&str| word.matches(['/', '\\']).count() > 1;
    let words = message.text.split_whitespace();
    let words: Vec<&str> = words.filter(|word| !is_path(word)).collect();
    let text = words.join(" ").to_ascii_lowercase();
    // What a shell prints, in quotation marks, names no reason.
    let perhaps = ["perhaps", "possibly", "\"killed\""]
        .iter()
        .any(|word| text.contains(word));
    !perhaps
        && ["mem", "oom", "vmrss"]
            .iter()
            .any(|word| text.contains(word))
}

/// Whether the process that was ended cannot be what filled the host's memory.
pub(super) fn holds_little(message: &OomMessage) -> bool {
    let most = message
        .around
        .total
        .map_or(Bytes::mib(256), |total| Bytes(total.0 / 8));
    message.in_use.is_some_and(|held| held < most)
}

/// The process that held the most by a list of the text.
fn largest_process(message: &OomMessage) -> Option<&(String, Bytes)> {
    let processes = message
        .parts
        .iter()
        .filter(|(name, _)| name.starts_with("process "));
    processes
        .max_by_key(|(_, held)| *held)
        .filter(|(_, held)| held.0 > 0)
}

/// Its name, if no other held about as much.
pub(super) fn largest_part(message: &OomMessage) -> Option<&str> {
    largest_process(message)
        .filter(|_| held_alike(message).is_none())
        .map(|(name, _)| name.as_str())
}

/// How many processes held about as much as the largest, if it is not alone.
fn held_alike(message: &OomMessage) -> Option<usize> {
    let (_, most) = largest_process(message)?;
    let alike = message
        .parts
        .iter()
        .filter(|(name, held)| name.starts_with("process ") && held.0 > most.0 / 10 * 9)
        .count();
    (alike > 1).then_some(alike)
}

/// The process that held the most by a list of the text, if it is not the one that was ended, as the end of a sentence.
fn largest_holder(message: &OomMessage) -> Option<String> {
    let (name, held) = largest_process(message)?;
    let own = message
        .pid
        .is_some_and(|pid| name.starts_with(&format!("process {pid} ")));
    if let Some(alike) = held_alike(message) {
        return Some(format!(
            "; by the text's list {alike} processes held the most, about {held} each"
        ));
    }
    (!own).then(|| format!("; by the text's list {name} held the most, {held}"))
}

/// What of the host was full, where the kernel says that only a part of it might be used.
pub(super) fn of_nodes(message: &OomMessage) -> Option<&'static str> {
    match message.setting? {
        "a memory policy" => Some(
            "the memory of those NUMA nodes was used up that its memory policy allows (CONSTRAINT_MEMORY_POLICY: numactl --membind, mbind), \
             and other nodes may have had some free",
        ),
        "a cpuset" => Some(
            "the memory of those NUMA nodes was used up that its cpuset allows (CONSTRAINT_CPUSET: cpuset.mems), and other nodes may have \
             had some free",
        ),
        _ => None,
    }
}

/// What the kernel's account says of the whole host, as the end of a sentence.
fn account(message: &OomMessage) -> Option<String> {
    let host = &message.tables.host;
    let (used, total) = message.around.in_use.zip(message.around.total)?;
    let swap = match host.swap {
        [Some(free), Some(all)] if all > Bytes::ZERO => {
            format!(", and {free} of {all} of swap were free")
        }
        [_, Some(_)] => ", without swap".to_owned(),
        _ => String::new(),
    };
    Some(format!(
        "; of {total} of RAM {used} were processes' own memory{swap}"
    ))
}

fn killed(message: &OomMessage) -> String {
    let process = match (&message.process, message.pid) {
        (Some(name), Some(pid)) => format!("{name} (process {pid})"),
        (Some(name), None) => name.clone(),
        (None, Some(pid)) => format!("process {pid}"),
        (None, None) => "a process".to_owned(),
    };
    let held = message
        .in_use
        .map(|held| format!(", which held {held} of host memory"))
        .unwrap_or_default();
    let limit = |words: &str| {
        message
            .total
            .map(|total| format!(" {words} {total}"))
            .unwrap_or_default()
    };
    match message.program {
        _ if message.setting == Some("no reason") => format!(
            "line {} says that a session or its kernel ended, and not why: most often the host's memory (RAM) was used up, \
             but a fault or a limit of time ends one, too",
            message.line
        ),
        _ if message.setting == Some("not its limit")
            && message.inside == Some(Program::Kubernetes) =>
        {
            format!(
                "{process} was ended by signal 9 (exit code 137), and Kubernetes does not say OOMKilled: so its container \
                 hardly reached its limit of host memory (RAM){}; a probe that failed, a deletion, an eviction or the \
                 node's own OOM killer may have ended it",
                limit("of")
            )
        }
        _ if message.setting == Some("not its limit") => format!(
            "{process} was ended by signal 9, and not at its container's limit (OOMKilled: false): the kernel may have \
             ended it because the host's memory (RAM) was used up, or somebody stopped it"
        ),
        Program::Kernel if message.allocator.is_some() => {
            let cache = message
                .parts
                .iter()
                .zip(message.around.in_use)
                .find(|((name, bytes), used)| name == "cache of files" && bytes.0 > used.0 / 2);
            if message.process.is_none() && message.pid.is_none() {
                return format!(
                    "a memory cgroup reached its limit{}, not the host, and the kernel's OOM killer was called; which process it ended, if \
                     any, is not in this text",
                    limit("of")
                );
            }
            format!(
                "the kernel's OOM killer ended {process}{}{held}: its memory cgroup reached its limit{}, not the host{}",
                or_child(message),
                limit("of"),
                cache.map_or_else(String::new, |((_, bytes), _)| format!(
                    "; {bytes} of that are cache of files that were written or read, not memory of processes"
                ))
            )
        }
        Program::Kernel => {
            let ended = match message.text.split_once(" invoked oom-killer") {
                Some((words, _)) if message.process.is_none() => format!(
                    "was called when {} asked for memory, and what it ended the text does not say",
                    words.rsplit([']', ':']).next().unwrap_or(words).trim()
                ),
                _ => format!("ended {process}{}{held}", or_child(message)),
            };
            let bare = message.setting != Some("the whole system")
                && !message.text.contains("ut of memory")
                && !message.text.contains(" invoked oom-killer")
                && !message.text.contains("oom-kill:");
            let group = if message.setting == Some("perhaps a group") || bare {
                if bare {
                    ", or the limit of a group (a container) was reached: the text does not say which"
                } else {
                    ", or the limit of a container was reached: the text names a group of processes"
                }
            } else if message.process.is_none() && message.text.contains(" invoked oom-killer") {
                ", or the limit of a container was: the lines below it in that log say which"
            } else if holds_little(message) {
                ", by other processes: this one held little"
            } else if message.setting == Some("not its container's limit") {
                " (CONSTRAINT_NONE), not its container's limit reached"
            } else {
                ""
            };
            format!(
                "the kernel's OOM killer {ended}: {}{group}{}{}",
                of_nodes(message).unwrap_or("the host's memory (RAM) was used up"),
                account(message).unwrap_or_default(),
                largest_holder(message).unwrap_or_default()
            )
        }
        Program::Slurm => {
            let used = message
                .in_use
                .map(|used| format!(" It used {used}{}.", limit("of")))
                .unwrap_or_default();
            let ended = if message.setting == Some("at some point") {
                "may have been"
            } else {
                "were"
            };
            format!(
                "SLURM's limit of host memory (RAM) was reached, and processes of the job {ended} ended.{used}"
            )
            .trim_end_matches('.')
            .to_owned()
                + &evidence::plenty(message).map_or_else(String::new, |(free, total)| {
                    format!("; the machine itself had {free} of {total} to be had, by the text's table, so it is the job's limit that counts")
                })
        }
        Program::Kubernetes if message.setting == Some("eviction") => {
            let used = message
                .in_use
                .map(|used| format!(", which used {used}"))
                .unwrap_or_default();
            format!(
                "the node's host memory (RAM) was nearly used up, and Kubernetes ended {}{used}",
                message
                    .process
                    .as_ref()
                    .filter(|_| message.pid.is_none())
                    .map_or_else(|| process.clone(), |name| format!("container {name}"))
            )
        }
        _ if let Some(watcher) = watcher(message) => {
            let around = &message.around;
            format!(
                "{watcher} ended {process}{held}: the host's memory (RAM) was short, though perhaps not used up{}",
                around
                    .free
                    .zip(around.total)
                    .map_or_else(String::new, |(free, total)| format!(
                        " ({free} of {total} could still be had)"
                    ))
            )
        }
        Program::Systemd => format!(
            "a process of {process} was ended by the kernel's OOM killer: the host's memory (RAM) was used up, \
             or the unit's limit reached"
        ),
        Program::Kubernetes | Program::Docker => {
            let container = message.process.as_ref().map_or_else(
                || "the container".to_owned(),
                |name| format!("container {name}"),
            );
            let pod = message
                .host
                .as_ref()
                .map(|pod| format!(" of {pod}"))
                .unwrap_or_default();
            let again = message
                .restarts
                .filter(|times| *times > 0)
                .map(|times| format!("; it was started again {times} times"))
                .unwrap_or_default();
            let limit = limit("of");
            if message.program == Program::Kubernetes {
                format!(
                    "Kubernetes says that {container}{pod} was OOM-killed: it reached its limit of host memory (RAM){limit}, \
                     or its node ran short{again}{}",
                    if message.setting == Some("exit code 0") {
                        "; its exit code is 0, so what was ended was hardly its main process"
                    } else {
                        ""
                    }
                )
            } else {
                format!(
                    "Docker says that {container} ran out of host memory (RAM): it reached its limit{limit}, and the \
                     kernel ended a process in it"
                )
            }
        }
        Program::Ray => {
            let used = message
                .in_use
                .zip(message.total)
                .map_or_else(String::new, |(used, total)| {
                    format!(": {used} of {total} were in use")
                });
            format!(
                "Ray ended a task because {}{used}{}",
                if reached_a_threshold(message) {
                    "a threshold that is set well below the node's host memory (RAM) was reached"
                } else {
                    "the node's host memory (RAM) was nearly used up"
                },
                largest_holder(message)
                    .or_else(|| {
                        let (_, held) = largest_process(message)?;
                        Some(format!(
                            "; the task that it ended held the most of that, {held}"
                        ))
                    })
                    .unwrap_or_default()
            )
        }
        Program::Unknown | Program::Named(_) if says_memory(message) => {
            let used = message
                .in_use
                .map(|used| format!(": it used {used}"))
                .unwrap_or_default();
            format!(
                "{process} was ended for want of host memory (RAM), or at a limit of it, as line {} says{used}{}",
                message.line,
                message.total.map_or_else(String::new, |total| {
                    if message.in_use.is_some() {
                        format!(" of {total}")
                    } else {
                        format!(": the limit is {total}")
                    }
                })
            )
        }
        _ if let Some((free, total)) = evidence::free_near(message) => format!(
            "{process} was ended by signal 9, and the text does not say by whom: a line near it has {free} of {total} free, so hardly for want of the \
             host's memory (RAM), but perhaps at a container's limit of it, or by what had started it"
        ),
        _ => {
            format!(
                "{process} was ended by signal 9, most likely by the kernel's OOM killer: {}{}{}",
                if says_full(message) { "" } else { "if so, " },
                if message.inside == Some(Program::Kubernetes) {
                    format!(
                        "its container reached its limit of host memory (RAM){}, or the node ran short",
                        limit("of")
                    )
                } else if message.inside == Some(Program::Docker) {
                    "its container reached its limit of host memory (RAM), or the host's was used up"
                    .to_owned()
                } else {
                    format!(
                        "the host's memory (RAM) was used up{}",
                        if says_full(message) {
                            format!(", as line {} says", message.line)
                        } else {
                            String::new()
                        }
                    )
                },
                message
                    .around
                    .asked
                    .map(|asked| format!(
                        "; just before, {} asked for {asked} of it",
                        message.inside.unwrap_or(Program::Unknown).name()
                    ))
                    .unwrap_or_default()
            ) + &evidence::of_the_host(message).unwrap_or_default()
        }
    }
}

/// Whether Ray's threshold is far below what the node has.
pub(super) fn reached_a_threshold(message: &OomMessage) -> bool {
    let figures = message.in_use.zip(message.total);
    message.program == Program::Ray
        && figures.is_some_and(|(used, total)| used.0 < total.0 / 10 * 9)
}

/// What ends processes before the host's memory is used up, if it was that.
pub(super) fn watcher(message: &OomMessage) -> Option<&'static str> {
    match message.program {
        Program::Systemd => message.setting,
        Program::Named(named) if named.uses == Uses::Watches => Some(named.name),
        _ => None,
    }
}

/// Before 4.20 the kernel says whom it chose, and may end a child in its place.
fn or_child(message: &OomMessage) -> &'static str {
    let chosen =
        message.text.contains("or sacrifice child") && !message.text.contains("Killed process");
    if chosen { " or a child of it" } else { "" }
}

/// Whether the words beside the end of a process say that the host's memory was full.
fn says_full(message: &OomMessage) -> bool {
    message.kind == MessageKind::Killed
        && [
            "占满",
            "内存不足",
            "内存溢出",
            "out of memory",
            "out of RAM",
            "memory full",
        ]
        .iter()
        .any(|words| message.text.contains(words))
}

/// GPUs of a table that are shown.
const CARDS: usize = 8;

/// What lines near a message say: they may be about another moment.
pub(super) fn around(message: &OomMessage) -> Vec<(Bytes, String)> {
    let around = &message.around;
    let figures = [
        (around.total.filter(|_| message.total.is_none()), "in all"),
        (
            around
                .free
                .filter(|_| message.free.is_none() && short_of_share(message).is_none()),
            "free",
        ),
        (around.in_use.filter(|_| message.used().is_none()), "in use"),
    ];
    let said = figures
        .into_iter()
        .filter_map(|(bytes, what)| Some((bytes?, format!("{what}, as a line near it says"))));
    let (whole, single): (Vec<_>, Vec<_>) = message
        .parts
        .iter()
        .filter(|(name, size)| !figures::is_of_another_run(message, name, &[*size]))
        .partition(|(name, _)| name.to_ascii_lowercase().starts_with("total"));
    let listed = whole
        .into_iter()
        .chain(single)
        .map(|(name, bytes)| (*bytes, format!("{name}, as the text lists it")));
    // Where it is not known which of several GPUs it was.
    let on_gpu = message.memory == Memory::Device && message.tables.card(message.device).is_none();
    let cards = message.tables.cards.iter().filter(|_| on_gpu).take(CARDS);
    let cards = cards.filter_map(|card| {
        let (used, total, index) = (card.used?, card.total?, card.index?);
        let what = format!("in use on GPU {index}, of {total}, as the text lists it");
        Some((used, what))
    });
    said.chain(listed).chain(cards).collect()
}

/// What a look at the GPU's processes tells.
pub(super) const OTHERS_HELD: &str = "whether other processes held a part of it";

/// What a reader may look for in the text, and does not find there.
pub(super) fn unsaid(message: &OomMessage) -> Vec<&'static str> {
    if let MessageKind::Fault(fault) = message.kind {
        return super::faults::unsaid(fault);
    }
    let mut unsaid = Vec::new();
    if message.handled || absurd(message).is_some() || has_room(message) {
        return unsaid;
    }
    // No algorithm of a library for the GPU runs elsewhere.
    if message.memory == Memory::Unknown
        && message.kind != MessageKind::NoAlgorithm
        && !names_both(message)
    {
        unsaid.push("whether it was the GPU's memory or the host's");
    }
    if message.kind == MessageKind::OnChip {
        return unsaid;
    }
    if message.kind == MessageKind::Killed && !is_evident(message) && !says_full(message) {
        unsaid.push("whether memory was the reason: schedulers and people send signal 9, too");
    }
    let ended = message.kind == MessageKind::Killed;
    let shaped = ["shape", "Size("]
        .iter()
        .any(|word| message.text.contains(word));
    // A figure whose role nobody knows may be the one that is missed.
    let figured = figures::says_any(message);
    let asked = message.requested.is_some() || shaped || figured;
    if !asked && !ended && message.kind != MessageKind::Budget {
        unsaid.push("how much was asked for");
    }
    let cards = &message.tables.cards;
    let host = &message.tables.host;
    let (sized, filled) = match message.memory {
        Memory::Device => (
            cards.iter().any(|card| card.total.is_some()),
            cards
                .iter()
                .any(|card| card.used.is_some() || card.share.is_some()),
        ),
        Memory::Unknown => (
            host.total.is_some() || cards.iter().any(|card| card.total.is_some()),
            host.total.is_some() || cards.iter().any(|card| card.used.is_some()),
        ),
        _ => (false, false),
    };
    let bounded = evidence::bound(message).is_some();
    let total =
        message.total.or(message.around.total).is_some() || figures::card(message).is_some();
    let of_group = message.program == Program::Kernel && message.allocator.is_some();
    if !total && !sized && !bounded && !figured {
        unsaid.push(match message.memory {
            Memory::Host if ended && message.program == Program::Kernel && !of_group => {
                "how much memory the machine has"
            }
            Memory::Host if of_group => "how large the limit is",
            Memory::Host if of_nodes(message).is_some() => "how much memory those nodes have",
            Memory::Host if ended && message.program == Program::Slurm => "how large the limit is",
            Memory::Host if ended => "how much memory there was, or which limit held",
            _ => "how much memory there is",
        });
    }
    let around = message.around.in_use.or(message.around.free);
    let measured = ended && !message.parts.is_empty();
    let used = crate::pool::full(message).is_some();
    let told = message.used().or(message.free).or(around).is_some() || used || figured;
    if !told && !filled && !bounded && !measured {
        unsaid.push("how much was in use");
    }
    let known = (message.free.is_some() && message.total.is_some())
        || message.this_process.is_some()
        || message.tokens.is_some()
        || (message.kind == MessageKind::Budget && message.free.is_some())
        || filled;
    let listed = message
        .parts
        .iter()
        .any(|(name, _)| name.starts_with("process "));
    let told = message.tables.shows(Sign::SharesGpu) || message.tables.shows(Sign::SecondServer);
    if message.memory == Memory::Device && !known && message.others.is_empty() && !listed && !told {
        unsaid.push(OTHERS_HELD);
    }
    let all = message.total.or(message.around.total);
    let held = message.in_use.zip(all).filter(|_| message.pid.is_some());
    let by_itself = held.is_some_and(|(held, all)| held.0 >= all.0 / 2);
    let lists = message.setting == Some("lists what holds it")
        || !message.parts.is_empty()
        || !message.tables.shapes.is_empty()
        || message
            .pool
            .as_ref()
            .is_some_and(|pool| !pool.held.is_empty());
    if ended && holds_little(message) && message.parts.is_empty() {
        unsaid.push("which processes held the rest");
    } else if message.allocated.is_some_and(|held| held.0 > 0) {
        unsaid.push("what the tensors in use are");
    } else if !lists && !by_itself && !used && !bounded && !figured {
        unsaid.push("what held the memory");
    }
    unsaid
}

/// The figures of a message, for evidence.
pub(super) fn figures(message: &OomMessage) -> Vec<(Bytes, String)> {
    let limit = match (message.memory, message.kind) {
        (Memory::Host, MessageKind::Killed) if message.program != Program::Ray => "the limit",
        (Memory::OnChip, _) if of_a_core(message).is_some() => "what a core has",
        (Memory::OnChip, _) => "what a multiprocessor has",
        _ if message.setting == Some("one allocation") => "the most that one buffer may have",
        (Memory::Device, MessageKind::Allocation) if message.device.is_none() => {
            "what the allocator may have"
        }
        _ if has_pool(message) || message.setting == Some("an account") => "the limit of its pool",
        _ => "all there is",
    };
    let free = match message.kind {
        MessageKind::Budget if message.total.is_none() && message.memory == Memory::Device => {
            if message.in_use.is_some() {
                "left beside the weights"
            } else {
                "left for keys and values"
            }
        }
        _ => "free",
    };
    [
        (
            message.requested.filter(|asked| asked.0 < 1 << 50),
            "asked for",
        ),
        (
            message
                .used()
                .filter(|used| !is_more_than_a_gpu(message, *used)),
            if message.program == Program::Cupy {
                "held by its pool, free blocks included"
            } else if message.pid.is_some()
                && message.kind == MessageKind::Killed
                && message.program != Program::Ray
            {
                "held by that process"
            } else {
                "in use"
            },
        ),
        (message.free, free),
        (message.total, limit),
    ]
    .into_iter()
    .filter_map(|(bytes, what)| Some((bytes?, what.to_owned())))
    .collect()
}
