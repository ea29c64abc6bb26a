//! Out-of-memory messages of many programs, as they stand in public issue threads, and how they are to be read.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::path::Path;
use std::time::Duration;

mod borne;

use borne::is_borne_by;
use oomph_explain::{Explanation, explain_messages};
use oomph_trace::text;
use proptest::prelude::*;
use serde::Deserialize;

/// A text and its reading; see `fixtures/README.md`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    source: String,
    text: String,
    program: String,
    inside: Option<String>,
    memory: String,
    asked: Option<u64>,
    total: Option<u64>,
    free: Option<u64>,
    in_use: Option<u64>,
    device: Option<u32>,
    #[serde(default)]
    ranks: Vec<u32>,
    pid: Option<u64>,
    process: Option<String>,
    host: Option<String>,
    job: Option<String>,
    allocator: Option<String>,
    #[serde(default)]
    handled: bool,
    /// Words of the verdict.
    #[serde(default)]
    says: String,
    next: String,
    /// What the text says: the answer must not call it missing.
    #[serde(default)]
    known: Vec<String>,
    /// Figures of the text that the answer must list in the text's own words.
    #[serde(default)]
    shows: Vec<String>,
    /// What is on already, or another's: no step may have it.
    #[serde(default)]
    never: Vec<String>,
}

/// A text without a message.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {
    source: String,
    text: String,
}

#[derive(Deserialize)]
struct File {
    message: Vec<Fixture>,
    #[serde(default)]
    nothing: Vec<Nothing>,
}

/// The tables, and how many messages each has.
const FILES: [(&str, usize); 24] = [
    ("messages.toml", 120),
    ("set_aside.toml", 20),
    ("later.toml", 34),
    ("blind.toml", 35),
    ("fresh.toml", 20),
    ("last.toml", 16),
    ("usual.toml", 23),
    ("other.toml", 24),
    ("third.toml", 22),
    ("rounds.toml", 113),
    ("traps.toml", 40),
    ("practice.toml", 70),
    ("judged.toml", 56),
    ("general.toml", 41),
    ("sixty.toml", 56),
    ("volume.toml", 45),
    ("composed.toml", 50),
    ("elsewhere.toml", 20),
    ("weighed.toml", 70),
    ("figures.toml", 22),
    ("ruled_out.toml", 14),
    ("phases.toml", 22),
    ("fits.toml", 45),
    ("strict.toml", 20),
];

fn file(name: &str) -> File {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures/messages")
        .join(name);
    toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn fixtures(name: &str) -> Vec<Fixture> {
    file(name).message
}

fn all() -> impl Iterator<Item = Fixture> {
    FILES.into_iter().flat_map(|(name, _)| fixtures(name))
}

fn explained(text: &str) -> Option<Explanation> {
    explain_messages(&text::find(text))
}

/// Everything in which a reading differs from what it should be.
fn differences(fixture: &Fixture) -> Vec<String> {
    fn differ<T: Copy + PartialEq + std::fmt::Debug>(
        out: &mut Vec<String>,
        name: &str,
        found: T,
        expected: T,
    ) {
        if found != expected {
            out.push(format!("{name}: found {found:?}, expected {expected:?}"));
        }
    }
    let Some(found) = explained(&fixture.text) else {
        return vec!["no message was found".to_owned()];
    };
    let message = found.message.as_ref().unwrap();
    let mut out = Vec::new();
    differ(&mut out, "program", message.program, &fixture.program);
    differ(
        &mut out,
        "inside",
        message.inside,
        fixture.inside.as_deref(),
    );
    differ(&mut out, "memory", message.memory, &fixture.memory);
    differ(&mut out, "asked", message.asked_bytes, fixture.asked);
    differ(&mut out, "total", message.total_bytes, fixture.total);
    differ(&mut out, "free", message.free_bytes, fixture.free);
    differ(&mut out, "in use", message.in_use_bytes, fixture.in_use);
    differ(&mut out, "ranks", &found.ranks, &fixture.ranks);
    differ(&mut out, "handled", message.handled, fixture.handled);
    // Of these the table has those that matter.
    if fixture.device.is_some() {
        differ(&mut out, "device", message.device, fixture.device);
    }
    if fixture.pid.is_some() {
        differ(&mut out, "pid", message.pid, fixture.pid);
    }
    for (name, found, expected) in [
        ("process", &message.process, &fixture.process),
        ("host", &message.host, &fixture.host),
        ("job", &message.job, &fixture.job),
        ("allocator", &message.allocator, &fixture.allocator),
    ] {
        if expected.is_some() {
            differ(&mut out, name, found, expected);
        }
    }
    if !found.verdict.contains(&fixture.says) {
        out.push(format!("says {:?}", found.verdict));
    }
    if !next(&found).iter().any(|step| step.contains(&fixture.next)) {
        out.push(format!(
            "no step has {:?}: {:?}",
            fixture.next,
            next(&found)
        ));
    }
    for words in &fixture.known {
        if message.unsaid.iter().any(|unsaid| unsaid.contains(words)) {
            out.push(format!("calls {words:?} missing"));
        }
    }
    for words in &fixture.shows {
        if !message
            .figures
            .iter()
            .any(|figure| figure.text.contains(words))
        {
            out.push(format!("does not list {words:?}: {:?}", message.figures));
        }
    }
    for words in &fixture.never {
        if next(&found).iter().any(|step| step.contains(words)) {
            out.push(format!("a step has {words:?}: {:?}", next(&found)));
        }
    }
    out
}

fn next(found: &Explanation) -> Vec<String> {
    found
        .next
        .iter()
        .map(|step| format!("{} · {}", step.command.as_deref().unwrap_or(""), step.what))
        .collect()
}

#[test]
fn messages_are_read_as_their_tables_say() {
    let mut wrong = Vec::new();
    for (name, count) in FILES {
        let File { message, nothing } = file(name);
        assert_eq!(message.len(), count, "{name}");
        for fixture in message {
            let found = differences(&fixture);
            if !found.is_empty() {
                wrong.push(format!(
                    "{name}: {}\n  {}",
                    fixture.source,
                    found.join("\n  ")
                ));
            }
        }
        for text in nothing {
            // Other errors are named as such.
            if let Some(found) = explained(&text.text)
                && found
                    .message
                    .as_ref()
                    .is_some_and(|message| message.memory != "none")
            {
                wrong.push(format!("{name}: {}: {}", text.source, found.verdict));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} are read wrongly:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn whole_texts_bear_what_is_read_of_them() {
    for fixture in all() {
        if let Some(found) = explained(&fixture.text) {
            is_borne_by(&fixture.text, &found);
            let message = found.message.as_ref().unwrap();
            if let (Some(free), Some(total)) = (message.free_bytes, message.total_bytes) {
                assert!(
                    free <= total.saturating_add(total / 50),
                    "{}",
                    fixture.source
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Lines lost at both ends, another message around or between them: no figure of nowhere, no other maker's tool.
    #[test]
    fn parts_and_pairs_of_texts_bear_what_is_read_of_them(
        one in 0..10_000_usize,
        other in 0..10_000_usize,
        cut in 0..6_usize,
        keep in 1..30_usize,
        order in 0..3_u8,
    ) {
        thread_local! {
            static TEXTS: Vec<String> = all().map(|fixture| fixture.text).collect();
        }
        let text = TEXTS.with(|texts| {
            let lines: Vec<&str> = texts[one % texts.len()].lines().skip(cut).take(keep).collect();
            let other = &texts[other % texts.len()];
            match order {
                0 => lines.join("\n"),
                1 => format!("{}\n\n{other}", lines.join("\n")),
                _ => format!("{other}\n{}", lines.join("\n")),
            }
        });
        if let Some(found) = explained(&text) {
            is_borne_by(&text, &found);
        }
    }
}

/// Settings that act on the GPU's memory only, and on the host's only.
const GPU_ONLY: [&str; 13] = [
    "nvidia-smi",
    "--gpu-memory-utilization",
    "--mem-fraction-static",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "gpu_mem_limit",
    "-ngl",
    "PYTORCH_CUDA_ALLOC_CONF",
    "oomph fit",
    "oomph run",
    "CUDA graphs",
    "jax.checkpoint",
    "cudnn",
];
const HOST_ONLY: [&str; 8] = [
    "#SBATCH --mem",
    "free -h",
    "resources.limits.memory",
    "--shm-size",
    "ulimit",
    "dmesg",
    "RAY_memory",
    "memmap",
];

#[test]
fn no_step_acts_on_the_other_memory() {
    for fixture in all() {
        let Some(found) = explained(&fixture.text) else {
            continue;
        };
        let wrong: &[&str] = match found.message.as_ref().unwrap().memory {
            "host" => &GPU_ONLY,
            "device" | "on_chip" => &HOST_ONLY,
            _ => continue,
        };
        for step in next(&found) {
            for word in wrong {
                assert!(!step.contains(word), "{}: {step}", fixture.source);
            }
        }
        assert!(
            found.fixes.is_empty() || fixture.memory == "device",
            "{}",
            fixture.source
        );
    }
}

#[test]
fn a_full_gpu_a_limit_and_a_refusal_are_told_apart() {
    let said = |text: &str| {
        let found = explained(text).unwrap();
        let cause = found.cause.unwrap();
        (cause.id, cause.verdict)
    };
    let (id, verdict) = said(
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 2.81 GiB already allocated; 25.38 MiB free; 3.06 GiB reserved in total by PyTorch)",
    );
    assert_eq!(id, "other_process");
    assert!(verdict.contains("4.8 GiB of 7.9 GiB"), "{verdict}");
    let (id, verdict) = said(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of 287.98 GiB of which 203.49 GiB is free. Of the allocated memory 68.63 GiB is allocated by PyTorch, and 14.93 GiB is reserved by PyTorch but unallocated.",
    );
    assert_eq!(id, "not_enough_evidence");
    assert!(verdict.contains("although 203.5 GiB are free"), "{verdict}");
    let (id, verdict) = said(
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 GiB of which 244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, and 54.99 MiB is reserved by PyTorch but unallocated.",
    );
    assert_eq!(id, "memory_budget");
    assert!(
        verdict.contains("1.1 GiB") || verdict.contains("1.0 GiB"),
        "{verdict}"
    );
    let (id, verdict) = said(
        "MPS backend out of memory (MPS allocated: 16.00 GB, other allocations: 3.31 GB, max allowed: 18.13 GB). Tried to allocate 256 bytes on shared pool.",
    );
    assert_eq!(id, "memory_budget");
    assert!(verdict.contains("this Mac"), "{verdict}");
    let (id, _) = said(
        "onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 4585490524328388608",
    );
    assert_eq!(id, "huge_request");
}

#[test]
fn evidence_tells_what_a_text_shows_of_the_job() {
    let shown = |source: &str, words: &str| {
        let mut all = fixtures("fits.toml").into_iter();
        let fixture = all.find(|fixture| fixture.source.contains(source)).unwrap();
        let cause = explained(&fixture.text).unwrap().cause.unwrap();
        let mut said: Vec<String> = cause.evidence.into_iter().map(|item| item.what).collect();
        said.push(cause.verdict);
        assert!(
            said.iter().any(|said| said.contains(words)),
            "{source}: {said:?}"
        );
    };
    shown(
        "a program that infers",
        "by the text it infers: without torch.no_grad()",
    );
    shown(
        "too small to fill the GPU",
        "the model has 12.4 million parameters",
    );
    shown("in the first step", "it failed in the first of 375 steps");
    shown(
        "all but fill the GPUs",
        "33.5 GiB for each of 4 GPUs, and the GPU has 39.4 GiB",
    );
}

/// How long this thread has run: what others do on a busy machine does not count.
fn on_the_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds = stat.split_whitespace().next().unwrap();
    Duration::from_nanos(nanoseconds.parse().unwrap())
}

#[test]
fn three_megabytes_on_one_line_take_well_under_a_second() {
    /// In a build without optimisation on a very busy machine. A quadratic step takes half a minute on an idle one.
    const MOST: Duration = Duration::from_secs(10);
    const SIZE: usize = 3 << 20;
    let all: Vec<String> = fixtures("messages.toml")
        .into_iter()
        .map(|fixture| fixture.text.replace('\n', " "))
        .collect();
    let lines = [
        "x".repeat(SIZE),
        all.join(" ").repeat(64),
        all.join("\\n").repeat(64),
        "CUDA out of memory. Tried to allocate 1 GiB. Process ".repeat(SIZE / 53),
        "Process 1 has ".repeat(SIZE / 14),
        "failed to allocate ".repeat(SIZE / 19),
        "OOM when allocating tensor with shape[1,".repeat(SIZE / 40),
        "[rank1]: \u{1b}[31m".repeat(SIZE / 16),
        "(VllmWorker rank=1 pid=2) ".repeat(SIZE / 26),
        "srun: error: a: tasks 0-4294967295,: Out Of Memory".repeat(SIZE / 50),
        "\\n".repeat(SIZE / 2),
    ];
    for line in lines {
        let mut found = None;
        // The best of three: the first one builds the tables of words, and caches are shared.
        let took = (0..3)
            .map(|_| {
                let start = on_the_cpu();
                found = explained(&line);
                on_the_cpu().saturating_sub(start)
            })
            .find(|took| *took < MOST)
            .unwrap_or(MOST);
        let head: String = line.chars().take(40).collect();
        assert!(took < MOST, "{took:?} for {head}");
        if let Some(found) = found {
            assert!(found.messages.len() <= 256);
            assert!(
                found
                    .messages
                    .iter()
                    .all(|message| message.text.len() <= 32 << 10)
            );
        }
    }
}

/// Texts made of pieces of messages and of anything else.
fn pieces() -> impl Strategy<Value = String> {
    let all: Vec<String> = fixtures("messages.toml")
        .into_iter()
        .map(|fixture| fixture.text)
        .collect();
    let whole = all.clone();
    let piece = prop_oneof![
        // A whole message in which one number is another.
        4 => (
            0..whole.len(),
            any::<prop::sample::Index>(),
            prop::sample::select(vec!["0", "18446744073709551615", "18014398509481983", "99999999999999999999999", "-1", "1e300"]),
        )
            .prop_map(move |(which, at, number)| {
                let mut digits: Vec<usize> = whole[which]
                    .char_indices()
                    .filter(|(_, c)| c.is_ascii_digit())
                    .map(|(at, _)| at)
                    .collect();
                if digits.is_empty() {
                    digits.push(0);
                }
                let (head, rest) = whole[which].split_at(digits[at.index(digits.len())]);
                let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                format!("{}{number}{rest}", head.trim_end_matches(|c: char| c.is_ascii_digit()))
            }),
        4 => (0..all.len(), any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(
            move |(which, from, length)| {
                let letters: Vec<char> = all[which].chars().collect();
                let from = from.index(letters.len());
                let length = length.index(letters.len()) + 1;
                letters.iter().skip(from).take(length).collect()
            },
        ),
        1 => any::<String>(),
        1 => "[ \\n\\t\\[\\](){}=:,.;/0-9]{0,12}",
        1 => Just("18446744073709551615 GiB".to_owned()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn pieces_of_messages_are_read_or_not_but_never_break(text in pieces()) {
        if let Some(found) = explained(&text) {
            let message = found.message.as_ref().unwrap();
            prop_assert!(!found.verdict.is_empty());
            prop_assert!(!found.next.is_empty());
            prop_assert!(message.line >= 1);
            // A message of the host never has a device.
            prop_assert!(message.memory != "host" || message.device.is_none());
        }
    }
}

/// A scheduler that no reader knows ended a job: not the kernel, and not by signal 9.
#[test]
fn who_ended_a_process_is_not_guessed() {
    let said = |text: &str| explained(text).unwrap().verdict;
    let verdict = said("=>> PBS: job killed: mem 2097152kb exceeded limit 1048576kb");
    assert!(
        verdict.contains("used 2.0 GiB of 1.0 GiB") && !verdict.contains("kernel"),
        "{verdict}"
    );
    let verdict = said("Worker (pid:42) was sent SIGKILL! Perhaps out of memory?");
    assert!(
        verdict.contains("process 42") && verdict.contains("most likely"),
        "{verdict}"
    );
}

/// What launchers, containers, terminals and collectors of logs make of a line.
#[test]
fn what_stands_around_the_words_changes_nothing() {
    type Dress = fn(&str) -> String;
    let dresses: [(&str, Dress); 6] = [
        ("a container's log", |line| {
            format!("2024-05-01T12:00:00.123456789Z stderr F {line}")
        }),
        ("Docker Compose", |line| format!("trainer-1  | {line}")),
        ("colours", |line| format!("\u{1b}[1;31m{line}\u{1b}[0m")),
        ("a quotation", |line| format!("> {line}")),
        ("a record", |line| {
            serde_json::json!({"level": "error", "message": line}).to_string()
        }),
        ("torchrun's log", |line| format!("[default3]:{line}")),
    ];
    let all: Vec<Fixture> = all().collect();
    let mut wrong = Vec::new();
    for (name, dress) in dresses {
        let ranked = name.starts_with("torchrun");
        // Those that name ranks have more than one then.
        for fixture in all
            .iter()
            .filter(|fixture| !ranked || fixture.ranks.is_empty())
        {
            let lines: Vec<String> = fixture.text.lines().map(dress).collect();
            let around = Fixture {
                text: lines.join("\n"),
                source: fixture.source.clone(),
                program: fixture.program.clone(),
                inside: fixture.inside.clone(),
                memory: fixture.memory.clone(),
                ranks: if ranked {
                    vec![3]
                } else {
                    fixture.ranks.clone()
                },
                host: fixture.host.clone(),
                process: fixture.process.clone(),
                job: fixture.job.clone(),
                allocator: fixture.allocator.clone(),
                says: fixture.says.clone(),
                next: fixture.next.clone(),
                known: fixture.known.clone(),
                never: fixture.never.clone(),
                shows: fixture.shows.clone(),
                ..*fixture
            };
            let found = differences(&around);
            if !found.is_empty() {
                wrong.push(format!("{name}: {}: {}", fixture.source, found.join("; ")));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} are read otherwise:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
