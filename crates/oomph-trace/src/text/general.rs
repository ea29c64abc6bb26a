//! What a text says of memory that ran out in words that no reader knows: that it ran out, and which memory it was.
//! `facts.rs` reads its figures.

use std::sync::LazyLock;

use super::facts::{device, figures, pid, sizes};
use super::program::{Memory, Program};
use super::readers::{Line, Noted, Place};
use super::words::{Vocabulary, size};
use super::{MessageKind, OomMessage};

/// What a phrase says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Says {
    /// That memory ran out.
    RanOut,
    /// That something failed or is not enough: memory, if the words beside it say so.
    Lacks,
    /// That a limit was exceeded: of memory, if the words say so.
    Exceeded,
    /// That memory is nearly used up, and what the program does about it.
    Nearly,
    /// That a process was ended, perhaps for want of memory.
    Ended,
    /// That a session or a kernel of a notebook ended, and not why.
    Stopped,
    /// The account that a program gives of its memory after it ran out.
    Account,
}

/// In small letters.
const PHRASES: &[(Says, &[&str])] = &[
    (
        Says::RanOut,
        &[
            "out of memory",
            "out of the memory",
            "outofmemory",
            "out_of_memory",
            "out-of-memory",
            "out-of-mem",
            "outofvideomemory",
            "outofdevicememory",
            "outofhostmemory",
            "out of gpu memory",
            "out of gpu and",
            "is out of gpu",
            "out of video memory",
            "out of graphics memory",
            "out of device memory",
            "out_of_device_memory",
            "out of host memory",
            "out_of_host_memory",
            "out of system memory",
            "out of vram",
            "out of ram",
            "out of available memory",
            "out of free memory",
            "out of cuda memory",
            "out of heap",
            "cannot allocate memory",
            "allocation_failure",
            "object allocation failure",
            "max alloc size supported",
            "alloc_failed",
            "oom",
            "8007000e",
            "java heap space",
            "gc overhead limit",
            "std::bad_alloc",
            "bad allocation",
            "all available ram",
            "all available memory",
            "all the available ram",
            "all the ram",
            "all of the ram",
            "all the memory",
            "all my ram",
            "all of the gpu memory",
            "all the vram",
            "memory exhausted",
            "exhausted memory",
            "exhausted the memory",
            "exhausted the ram",
            "exhausted ram",
            "memory is exhausted",
            "exhausted the gpu",
            "memory is full",
            "memory was full",
            "vram is full",
            "vram full",
            "ram is full",
            "ram full",
            "memory full",
            "paging file is too small",
            "os error 1455",
            "winerror 1455",
            "insufficient system resources",
            "more memory than is available",
            "more memory than available",
            "low on memory",
            "low on resource: memory",
            "no space in memory",
            "显存不足",
            "显存溢出",
            "爆显存",
            "爆了显存",
            "显存爆",
            "超显存",
            "超出显存",
            "显存不够",
            "显存满",
            "爆内存",
            "内存爆",
            "内存不足",
            "内存不够",
            "内存溢出",
            "内存超",
            "无法分配内存",
            "无法分配请求的gpu内存",
            "メモリ不足",
            "メモリが足り",
            "メモリを確保できません",
            "메모리 부족",
            "메모리가 부족",
            "nv_err_no_memory",
            "недостаточно памяти",
            "Недостаточно памяти",
            "не хватает памяти",
            "нехватка памяти",
            "Не удалось выделить память",
            "не удалось выделить память",
            "impossible d'allouer de la mémoire",
            "mémoire insuffisante",
            "mémoire saturée",
            "no se puede asignar memoria",
            "memoria insuficiente",
            "sin memoria",
            "memória insuficiente",
            "memoria esaurita",
            "nicht genügend hauptspeicher",
            "nicht genügend arbeitsspeicher",
            "nicht genügend speicher",
            "nicht genug speicher",
            "zu wenig speicher",
        ],
    ),
    (
        Says::Lacks,
        &[
            "resource_exhausted",
            "fail",
            "cannot ",
            "can't ",
            "can not ",
            "could not ",
            "couldn't ",
            "unable to ",
            "error allocating",
            "attempting to allocate",
            "insufficient",
            "not enough",
            "no enough",
            "not have enough",
            "too little",
            "lack of",
            "fit in",
            "fit on",
            "fit the",
            "requires more",
            "not initialized",
            " all ",
            " entire ",
            " whole ",
            " 100% ",
        ],
    ),
    (
        Says::Exceeded,
        &[
            "exceed",
            "larger than the maximum",
            "greater than the maximum",
            "reached limit",
            "reaching",
            "memory limit reached",
            "over memory limit",
            "allowed memory size of",
            "beyond the",
            "running beyond",
        ],
    ),
    (
        Says::Nearly,
        &[
            "memory use is high",
            "memory usage. pausing",
            "memory usage is high",
        ],
    ),
    (
        Says::Ended,
        &[
            "sent sigkill",
            "sending sigkill",
            "sending sigterm",
            "job killed",
            "killed because",
            "killed due to",
            "was killed by the oom",
            "killed by oom",
            "signal 9",
            "signal: 9",
            "signal=9",
            "signal sigkill",
            "sigkill)",
            "(sigkill",
            "exit code -9",
            "exit code: -9",
            "exit code=-9",
            "exitcode -9",
            "exitcode: -9",
            "exitcode=-9",
            "return code -9",
            "return code: -9",
            "returncode -9",
            "returncode: -9",
            "returncode=-9",
            "exit status -9",
            "code 137",
            "code: 137",
            "code=137",
            "code (137",
            "status 137",
            "status: 137",
            "status=137",
            "oom killer",
            "oom-killer",
            "oom killed",
            "oom-killed",
            "oom_killed",
            "container killed by",
            "term_memlimit",
            "zsh: killed",
            "\"killed\"",
            "'killed'",
            "gets killed",
            "got killed",
            "get killed",
            "被kill",
            "被杀",
        ],
    ),
    (
        Says::Stopped,
        &[
            "session crashed",
            "kernel died",
            "kernel has died",
            "kernel appears to have died",
            "kernel crashed",
            "deadkernelerror",
            "runtime died",
            "session has crashed",
            "session was restarted",
            "allocate more memory. your notebook",
        ],
    ),
    (
        Says::Account,
        &[
            "sum total of in-use chunks",
            "memory_limit_: ",
            "maxallocsize: ",
            "cuda ooms: ",
            "memory cgroup stats for",
            "tasks state (memory values in pages)",
        ],
    ),
];

static FINDER: LazyLock<Vocabulary<Says>> =
    LazyLock::new(|| Vocabulary::new(PHRASES.iter().copied(), true));

/// Words before a phrase, in its clause, that make advice or a condition of it.
const ADVICE: &[&str] = &[
    "if you",
    "if your",
    "if the",
    "if it",
    "if there",
    "if this",
    "when you",
    "in case",
    "to avoid",
    "avoid ",
    "prevent",
    "hint",
    "may ",
    "might ",
    "can cause",
    "could cause",
    "can lead",
    "could lead",
    "whether",
    "unless",
    "likely to",
    "risk",
    "should",
    "how to",
    "fix ",
    "instead of",
    "handle ",
    "address the",
    "for example",
    "recover from",
    "possibility",
    "without",
    "check ",
];

/// Words of a line that reports a failure.
const FAILURE: &[&str] = &[
    "error",
    "fail",
    "fatal",
    "exception",
    "terminate",
    "what():",
    "panic",
    "abort",
    "crash",
    "killed",
    "cannot",
    "could not",
    "unable",
    "ran out",
    "critical",
    "exhausted",
    "!",
];

/// The phrase of a line that reports that memory ran out, and where it begins.
fn phrase(text: &str) -> Option<(Says, usize)> {
    /// Phrases of one line that are looked at.
    const MOST: usize = 8;
    let found = FINDER.all(text).take(MOST);
    let mut said = found.filter(|(kind, start, end)| reports(text, *kind, *start, *end));
    let (kind, start, end) = said.next()?;
    // A word for it, or an end without a reason, says less than what happened.
    let word = kind == Says::Stopped || (kind == Says::RanOut && end - start == 3);
    let more = word.then(|| said.next()).flatten();
    Some(more.map_or((kind, start), |(kind, start, _)| (kind, start)))
}

/// A line up to this many bytes before and after a phrase is looked at.
const NEAR: usize = 600;

/// Whether the words around a phrase make it a report.
fn reports(text: &str, kind: Says, start: usize, end: usize) -> bool {
    let from = text.floor_char_boundary(start.saturating_sub(NEAR));
    let to = text.floor_char_boundary(end.saturating_add(NEAR));
    let (Some(before), Some(after), Some(whole)) =
        (text.get(from..start), text.get(end..to), text.get(from..to))
    else {
        return false;
    };
    let before = before.to_ascii_lowercase();
    let after = after.to_ascii_lowercase();
    let whole = whole.to_ascii_lowercase();
    // A name such as `torch.cuda.OutOfMemoryError` has dots without spaces.
    let clause = before
        .rfind(". ")
        .or_else(|| before.rfind("; "))
        .or_else(|| before.rfind(", "))
        .map_or(before.as_str(), |at| &before[at..]);
    let words = text
        .get(start..end)
        .unwrap_or_default()
        .to_ascii_lowercase();
    // A point in a number ends no sentence.
    let stop = [". ", ";"]
        .iter()
        .filter_map(|mark| after.find(mark))
        .min()
        .unwrap_or(after.len());
    let rest = after[..stop].trim_end_matches('.');
    let has = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
    // Not the end of a word: `THCudaCheck `.
    let begins = |clause: &str, at: usize| !clause[..at].ends_with(|c: char| c.is_alphanumeric());
    // `Check failed: Out of memory` advises nothing.
    let clause = clause.replace("check failed", "");
    let clause = clause.as_str();
    if ADVICE
        .iter()
        .any(|word| clause.match_indices(word).any(|(at, _)| begins(clause, at)))
    {
        return false;
    }
    // A command that looks for the words.
    if before.contains("grep ") {
        return false;
    }
    let fails = || has(&whole, FAILURE);
    let memory = |text: &str| names_memory(text) || sizes(text).next().is_some();
    // A word of its own: not `zoom`, `oom_score`.
    let own = || {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        !before.ends_with(word) && !after.starts_with(word)
    };
    let near: String = rest.chars().take(80).collect();
    match kind {
        Says::RanOut if words == "oom" => own() && !after.starts_with("-kill"),
        Says::Account => !(words == "cuda ooms: " && after.starts_with('0')),
        Says::RanOut | Says::Nearly => true,
        Says::Stopped => !has(&whole, &["segmentation", "timeout"]),
        Says::Lacks => {
            // `not enough space: expected 3145728, got 786432`: sizes that should be alike.
            if near.contains("expected ") && near.contains(" got ") {
                return false;
            }
            let wants = |text: &str| {
                has(
                    text,
                    &["alloc", "reserve", "commit", " map ", "mmap", "fork"],
                )
            };
            match words.trim_end() {
                "fail" if after.starts_with("cnt") => false,
                // What fails is an allocation, named right before it or after.
                "fail" => {
                    let subject = tail(clause, 40);
                    let close: String = near.chars().take(40).collect();
                    (wants(&close) && (memory(&near) || memory(subject)))
                        || (wants(subject) && (memory(subject) || memory(&near)))
                }
                "cannot" | "can't" | "can not" | "could not" | "couldn't" | "unable to" => {
                    let close: String = near.chars().take(24).collect();
                    let object = wants(&close) && !close.starts_with("be ");
                    object && (memory(&near) || (memory(tail(&before, 60)) && fails()))
                }
                "fit in" | "fit on" | "fit the" => {
                    has(
                        tail(clause, 24),
                        &[
                            "not ",
                            "n't ",
                            "cannot",
                            "never ",
                            "too large to ",
                            "too big to ",
                        ],
                    ) && has(&near, &["memory", "vram", "gpu", "ram", "card"])
                }
                // `takes up all the 12 GB RAM and then crashes`.
                " all" | " entire" | " whole" | " 100%" => {
                    let close: String = near.chars().take(24).collect();
                    has(&format!("{close} "), &["memory", "vram", " ram", "ram "])
                        && has(&whole, &["crash", "kill", "freez", "dies", "error", "fail"])
                }
                "not initialized" => clause.trim_end().ends_with("dst tensor is"),
                _ => memory(&near) || (memory(tail(&before, 60)) && fails()),
            }
        }
        Says::Exceeded => {
            let line = format!("{} {words} {near}", tail(&before, 80)).to_ascii_lowercase();
            let of_memory = has(
                &line,
                &[
                    "memory",
                    "vram",
                    "mem ",
                    "memlimit",
                    "buffer size",
                    "rss",
                    "显存",
                    "内存",
                ],
            );
            of_memory
                && (fails() || has(&whole, &["restart", "kill", "limit", "budget", "available"]))
        }
        Says::Ended => {
            // `signal 9`, not `signal 90`.
            let whole_number = !after.starts_with(|c: char| c.is_ascii_digit());
            whole_number && !has(&whole, &["oom_score", "did not", "not killed"])
        }
    }
}

/// Whether words are about memory, whichever.
fn names_memory(lower: &str) -> bool {
    [
        "memory",
        "vram",
        " ram",
        "mem ",
        "mem:",
        "memlimit",
        "buffer",
        "tensor",
        "bytes",
        "kv cache",
        "workspace",
        "vector of size",
        "oom",
        "heap",
        "shm",
        "显存",
        "内存",
    ]
    .iter()
    .any(|word| lower.contains(word))
}

fn tail(text: &str, most: usize) -> &str {
    let from = text.len().saturating_sub(most);
    &text[text.ceil_char_boundary(from)..]
}

/// Where the phrases of a text begin and end.
pub(super) fn phrases(text: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    FINDER.all(text).map(|(_, start, end)| (start, end))
}

/// Reads a line that no reader knows.
pub(super) fn read(text: &str, place: &Place<'_>, noted: &Noted) -> Option<OomMessage> {
    /// Lines between an exception's name and its words.
    const THROWN: usize = 3;
    let (kind, at) = phrase(text)?;
    let line = Line::new(text, at, place)?;
    let from = text.floor_char_boundary(at.saturating_sub(NEAR));
    let to = text.floor_char_boundary(at.saturating_add(2 * NEAR));
    let window = text.get(from..to)?;
    let lower = window.to_ascii_lowercase();
    let thrown = noted
        .cuda_exception
        .is_some_and(|other| line.part - other <= THROWN);
    let mut memory = match memory_near(&lower, at - from) {
        Memory::Unknown if thrown => Memory::Device,
        memory => memory,
    };
    let ended = matches!(kind, Says::Ended | Says::Stopped);
    let told = super::told::is_somebodys(text);
    // Limits that are exceeded, and processes that are ended, are of the host.
    if memory == Memory::Unknown
        && matches!(
            kind,
            Says::Ended | Says::Exceeded | Says::Nearly | Says::Stopped
        )
    {
        memory = Memory::Host;
    }
    // All of these are limits of the host's, whatever file the line names.
    let pool = pool(&lower);
    if pool.is_some() {
        memory = memory.or(Memory::Host);
    }
    let cuda = thrown || lower.contains("cuda") || lower.contains("cumem");
    let setting = match kind {
        Says::Stopped => Some("no reason"),
        Says::Account => Some("an account"),
        Says::Nearly => Some("nearly"),
        _ if is_estimate(&lower) => Some("an estimate"),
        _ => None,
    };
    let handled = kind == Says::Nearly;
    let (program, kind) = if ended {
        (Program::Unknown, MessageKind::Killed)
    } else if cuda && memory == Memory::Device && !told && setting.is_none() {
        (Program::Cuda, MessageKind::Cuda)
    } else {
        (Program::Unknown, MessageKind::Unknown)
    };
    let mut message = line.message(program, kind);
    message.memory = memory;
    if setting != Some("an account") {
        figures(window, &mut message);
    } else if text.contains("bfc_allocator.cc") && !text.contains("tensorflow/") {
        // XLA's own, in the form of newer logs.
        message.program = Program::Jax;
        message.memory = Memory::Device;
    }
    if memory == Memory::Device {
        message.device = device(&lower);
    }
    message.pid = pid(&lower);
    message.handled = handled || goes_on(&lower);
    message.told = told;
    message.setting = setting;
    message.allocator = pool.map(str::to_owned);
    Some(message)
}

/// Whether words say that a program looked first and did not begin.
fn is_estimate(lower: &str) -> bool {
    [
        "requires approximately",
        "guardrail",
        "max memory:",
        "estimated memory",
        "would likely overload",
        "model requires more system memory",
    ]
    .iter()
    .any(|words| lower.contains(words))
}

/// Whether words say that one buffer alone is larger than the driver allows, which is not all there is.
pub(super) fn is_one_buffer(lower: &str) -> bool {
    [
        "maximum allowed buffer size",
        "max buffer size",
        "buffer size limit",
        "maxbufferlength",
        "max_mem_alloc_size",
        "invalid_buffer_size",
        "max allocation size",
        "maximum buffer size",
        "maximum allocation size",
        "max alloc size",
    ]
    .iter()
    .any(|words| lower.contains(words))
}

/// A limit of the program's own on the host's memory, which the machine's need not be near.
fn pool(lower: &str) -> Option<&'static str> {
    const POOLS: [(&str, &[&str]); 7] = [
        ("locked memory", &["locked memory", "memlock"]),
        (
            "Java's heap",
            &["java heap", "gc overhead", "java.lang.outofmemory"],
        ),
        ("the JavaScript heap", &["javascript heap"]),
        ("PHP's memory", &["allowed memory size of"]),
        (
            "a worker's own share of the host's memory",
            &[
                "memory budget",
                "worker memory limit",
                "memory usage. pausing",
            ],
        ),
        (
            "what Windows gives to programs (RAM and page file)",
            &["paging file", "error 1455"],
        ),
        (
            "a container's memory",
            &["killed by yarn", "running beyond"],
        ),
    ];
    POOLS
        .iter()
        .find(|(_, words)| words.iter().any(|word| lower.contains(word)))
        .map(|(name, _)| *name)
}

/// Whether words say that the program tried something else.
pub(super) fn goes_on(lower: &str) -> bool {
    [
        "falling back",
        "fall back to",
        "as a fallback",
        "trying again",
        "retrying",
        "will retry",
        "attempting to copy inputs",
        "still meet cuda oom",
        "skipping",
        "skip this batch",
        "will be decreased from",
        "decreasing batch",
        "reducing batch",
        "reducing the batch",
        "batch size reduced",
        "decreased the batch",
        "lowering batch",
        "halving",
    ]
    .iter()
    .any(|words| lower.contains(words))
}

/// Whether a line says how much was freed after a warning that the program tries to: `running a quick GC (freed 8.292 GiB)`.
pub(super) fn freed(warning: &OomMessage, line: &str) -> bool {
    let freed = line.split_once("freed ").and_then(|(_, rest)| size(rest));
    warning.text.contains("ing to free") && freed.is_some_and(|freed| freed.0 > 0)
}

/// Adds what a line below such a message says, `- Free memory: 1048576`, or the end of a sentence.
pub(super) fn read_further(sentence: &str, text: &str, message: &mut OomMessage) -> bool {
    let ends = sentence
        .trim_end()
        .ends_with(['.', '!', ')', ']', '"', '\'']);
    let joined = if ends {
        String::new()
    } else {
        format!("{} {}", tail(sentence.trim_end(), NEAR), text.trim_start())
    };
    // What kills processes is short of the host's memory.
    if message.memory == Memory::Unknown && text.contains("illing process ") {
        message.memory = Memory::Host;
    }
    // `current utilization:`, and below it what is in use.
    if sentence.contains("utilization") && text.trim_start().starts_with("* ") {
        message.in_use = message.in_use.or_else(|| super::facts::first_size(text));
        return true;
    }
    let text = if ends { text } else { &joined };
    let shown = text
        .get(..text.floor_char_boundary(2 * NEAR))
        .unwrap_or_default();
    let lower = shown.to_ascii_lowercase();
    // An account has readers of its own.
    if message.setting == Some("an account")
        || ![
            "memory", "vram", "request", "limit", "free", "alloc", " gpu",
        ]
        .iter()
        .any(|word| lower.contains(word))
    {
        return false;
    }
    let before = (
        message.requested,
        message.free,
        message.total,
        message.in_use,
    );
    figures(shown, message);
    before
        != (
            message.requested,
            message.free,
            message.total,
            message.in_use,
        )
}

/// The memory that the words of a clause name, or else those of the line around it.
fn memory_near(lower: &str, at: usize) -> Memory {
    // `GPU out of memory: the machine has 32 GB RAM`.
    let named = lower.get(..at).unwrap_or_default().trim_end();
    if ["gpu", "cuda", "vram"]
        .iter()
        .any(|name| named.ends_with(name))
    {
        return Memory::Device;
    }
    let clause = lower.get(at..).unwrap_or_default();
    let clause = clause
        .find(", ")
        .and_then(|end| clause.get(..end))
        .unwrap_or(clause);
    match memory_of(clause) {
        Memory::Unknown => memory_of(lower),
        memory => memory,
    }
}

/// Completes what a reader made of a line, if it found no figure there.
pub(super) fn complete(text: &str, message: &mut OomMessage) {
    let at = message.at;
    let from = text.floor_char_boundary(at.saturating_sub(NEAR));
    let to = text.floor_char_boundary(at.saturating_add(2 * NEAR));
    let window = text.get(from..to).unwrap_or_default();
    let lower = window.to_ascii_lowercase();
    figures(window, message);
    if message.memory == Memory::Unknown {
        message.memory = memory_near(&lower, at - from);
    }
    if message.memory == Memory::Device {
        message.device = message.device.or_else(|| device(&lower));
    }
}

/// The memory that words name. `Cannot allocate memory` is the system's own error, of the host.
pub(super) fn memory_of(lower: &str) -> Memory {
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let device = says(&[
        "gpu",
        "cuda",
        "vram",
        "hip ",
        "hip:",
        "hiperror",
        "rocm",
        "opencl",
        "memory object allocation",
        "max alloc size",
        "vulkan",
        "video memory",
        "device memory",
        "device_memory",
        "devicememory",
        "on device",
        "device buffer",
        "cublas",
        "cudnn",
        "metal",
        "mps ",
        "xpu",
        "npu",
        "hbm",
        "显存",
        "graphics",
        "nvmap",
        "mem_object",
        "devmem",
        "bitsandbytes",
        "cumem",
        "dxvk",
        "direct3d",
        "d3d1",
        "video card",
        "videomemory",
        "device_local",
        "rendering resource",
        "optix",
        "dst tensor",
        "allocation on device",
    ]);
    let host = says(&[
        "host memory",
        "host_memory",
        "on host",
        "hostalloc",
        "system memory",
        "system ram",
        "java",
        "heap",
        "paging file",
        "error 1455",
        "cpu memory",
        "cpu_alloc",
        "alloc_cpu",
        "on the node",
        "main memory",
        " ram",
        "rss",
        "slurm",
        "pbs",
        "cgroup",
        "pinned",
        "memlimit",
        "-byte block",
        "yarn",
        "virtual memory",
        "hauptspeicher",
        "arbeitsspeicher",
    ]) || (!device && says(&["内存"]))
        || (!device
            && says(&[
                "cannot allocate memory",
                "无法分配",
                "allouer de la m",
                "asignar memoria",
                "выделить память",
                "メモリを確保",
                "vector of size",
                "openblas",
                "realloc",
                // C++'s own, unless a library of the GPU names itself; Windows' word for it is the second.
                "std::bad_alloc",
                "bad allocation",
                "worker tcp",
                "mmap",
                "fork",
                "bytes of memory for array",
            ]));
    match (device, host) {
        (true, false) => Memory::Device,
        (false, true) => Memory::Host,
        _ => Memory::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use crate::text::tests::{all, gib, one};

    #[test]
    fn roles_of_figures() {
        for (text, asked, free, in_use, total) in [
            (
                "GPU memory exhausted: requested 4 GB, only 1.5 GB available on device 2",
                gib(4.0),
                gib(1.5),
                None,
                None,
            ),
            (
                "Not enough GPU memory: need 24.0 GB but device 1 has 16.0 GB",
                gib(24.0),
                None,
                None,
                gib(16.0),
            ),
            (
                "Error: Out of memory. 10.5 GiB in use, 0.5 GiB free of 11 GiB total",
                None,
                gib(0.5),
                gib(10.5),
                gib(11.0),
            ),
            (
                "=>> PBS: job killed: mem 2097152kb exceeded limit 1048576kb",
                None,
                None,
                gib(2.0),
                gib(1.0),
            ),
            (
                "Error: cannot allocate vector of size 2.0 Gb",
                gib(2.0),
                None,
                None,
                None,
            ),
            (
                "Error: failed to allocate 1073741824 bytes of memory",
                gib(1.0),
                None,
                None,
                None,
            ),
            (
                "Fatal: out of memory at line 123456",
                None,
                None,
                None,
                None,
            ),
        ] {
            let message = one(text);
            assert_eq!(
                (
                    message.requested,
                    message.free,
                    message.in_use,
                    message.total
                ),
                (asked, free, in_use, total),
                "{text}"
            );
        }
    }

    #[test]
    fn advice_is_no_report() {
        for text in [
            "hint: use --lowvram if you run out of memory",
            "Set this to avoid out of memory errors",
            "This may cause an out of memory error.",
            "failed to allocate an IP address",
            "not enough arguments",
            "Unable to allocate a seat",
            "the timeout was exceeded",
            "onnx runtime error 2: not enough space: expected 3145728, got 786432",
        ] {
            assert_eq!(all(text), [], "{text}");
        }
    }
}
