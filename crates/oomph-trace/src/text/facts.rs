//! The figures of any text and what they are: a size, by the words around it in any order, by the columns of a
//! table, or by its name; the number of a GPU, a rank, a process. Nothing is made of a figure that stands without
//! such words. What a message's own reader left out is looked up here.

use super::general::memory_of;
use super::program::{Hardware, Memory, Program};
use super::tables::{below_a_picture, ends_a_message};
use super::words::integer;
use super::{Around, MessageKind, OomMessage};
use crate::units::Bytes;

/// What a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Asked,
    Free,
    InUse,
    Total,
}

/// Words after a figure that say what it is.
const AFTER: &[(Role, &[&str])] = &[
    (
        Role::Free,
        &[
            "free",
            "available",
            "remaining",
            "left",
            "avail",
            "unused",
            "availabe",
            "is free",
            "are free",
            "is available",
            "are available",
            "was available",
            "were available",
            "is left",
            "are left",
        ],
    ),
    (
        Role::InUse,
        &[
            "already",
            "in use",
            "in-use",
            "used",
            "is used",
            "are used",
            "is in use",
            "allocated",
            "has been allocated",
            "is allocated",
            "occupied",
            "memory in use",
            "占满",
            "用完",
        ],
    ),
    (
        Role::Asked,
        &[
            "requested",
            "needed",
            "required",
            "is needed",
            "are needed",
            "is required",
            "was requested",
            "more",
        ],
    ),
    (
        Role::Total,
        &[
            "total",
            "capacity",
            "limit",
            "allowed",
            "maximum",
            "memory limit",
            "max",
        ],
    ),
];

/// Words before a figure that say what it is; the last one counts.
const BEFORE: &[(Role, &[&str])] = &[
    (
        Role::Asked,
        &[
            "allocate",
            "allocating",
            "allocation of",
            "allocation size",
            "alloc ",
            "request",
            "requests",
            "requested",
            "requesting",
            "require",
            "requires",
            "required",
            "need",
            "needs",
            "needed",
            "tried",
            "of size",
            "size",
            "wants",
            "asked",
            "reserve",
            "reserving",
            "malloc",
            "allocation for",
            "to map",
            "mmap",
            "分配",
            "申请",
            "需要",
            "割り当て",
            "必要",
            "выделить",
            "требуется",
            "benötigt",
        ],
    ),
    (
        Role::Free,
        &[
            "free",
            "available",
            "availabe",
            "remaining",
            "left",
            "avail",
            "可用",
            "剩余",
            "空闲",
            "空き",
            "свободно",
            "frei",
            "disponible",
        ],
    ),
    (
        Role::InUse,
        &[
            "in use",
            "used",
            "usage",
            "already",
            "allocated",
            "consumed",
            "occupied",
            "rss",
            "vmrss",
            "process memory",
            "current",
            "已分配",
            "已使用",
            "已用",
            "占用",
            "使用中",
            "занято",
        ],
    ),
    (
        Role::Total,
        &[
            "total",
            "capacity",
            "limit",
            "max",
            "max alloc size",
            "max allocation size",
            "max alloc size supported by device",
            "maximum",
            "has",
            "budget",
            "总共",
            "总量",
            "总计",
            "всего",
        ],
    ),
];

/// Fills the figures that a text has beside words for their role, and that the message lacks.
pub(super) fn figures(text: &str, message: &mut OomMessage) {
    for (role, bytes) in roles(text, usize::MAX, message.memory) {
        let place = match role {
            Role::Asked => &mut message.requested,
            Role::Free => &mut message.free,
            Role::InUse => &mut message.in_use,
            Role::Total => &mut message.total,
        };
        place.get_or_insert(bytes);
    }
}

/// The figures of a text that have words for their role beside them, at most so far before them, without those whose
/// own words are about another memory.
fn roles(text: &str, far: usize, memory: Memory) -> Vec<(Role, Bytes)> {
    let lower = &words_apart(text);
    let found: Vec<Size> = sizes(lower).collect();
    let mut roles = Vec::new();
    for (number, size) in found.iter().enumerate() {
        let start = number
            .checked_sub(1)
            .and_then(|before| found.get(before))
            .map_or(0, |before| before.end);
        let end = found.get(number + 1).map_or(lower.len(), |next| next.start);
        let (Some(before), Some(after)) = (lower.get(start..size.start), lower.get(size.end..end))
        else {
            continue;
        };
        if is_of_another(before, after, memory) {
            continue;
        }
        if let Some(role) = role(before, after, size.unit, far) {
            if role == Role::Total
                && let Some(part) = part_of(before, lower.get(size.start..size.end))
            {
                roles.push(part);
            }
            roles.push((role, size.bytes));
        }
    }
    roles
}

/// What of a whole is free or in use, where both share a unit: `(11.8 / 12.3 GB)`.
fn part_of(before: &str, whole: Option<&str>) -> Option<(Role, Bytes)> {
    let head = before.trim_end().strip_suffix('/')?.trim_end();
    let from = head
        .rfind(|c: char| !c.is_ascii_digit() && c != '.')
        .map_or(0, |at| at + 1);
    let unit =
        whole?.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | ' '));
    let bytes = super::words::size(&format!(
        "{} {}",
        head.get(from..)?,
        unit.to_ascii_uppercase()
    ))?;
    let free = ["free", "avail"].iter().any(|word| before.contains(word));
    Some((if free { Role::Free } else { Role::InUse }, bytes))
}

/// Whether the words beside a figure say that it is of another memory, of a part of one, or a setting: `64 GB RAM` beside
/// a GPU's message, `the system uses 6 GB`, `memory.weights.total=`, `workspace size to 20G`.
fn is_of_another(before: &str, after: &str, memory: Memory) -> bool {
    const MARKS: [&str; 6] = [". ", "; ", ", ", " and ", " but ", "] "];
    // Right behind a figure stands what it is of.
    let next = after
        .trim_start_matches(|c: char| !c.is_ascii_alphanumeric())
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let from = MARKS
        .iter()
        .filter_map(|mark| before.rfind(mark).map(|at| at + mark.len()))
        .max();
    let clause = before.get(from.unwrap_or(0)..).unwrap_or(before);
    let has = |words: &[&str]| words.iter().any(|word| clause.contains(word));
    let name = clause.trim_end_matches([' ', '=', ':']);
    let name = name.rsplit(' ').next().unwrap_or_default();
    let part = name.contains('.')
        && ["weights.", "graph.", "kv.", "required."]
            .iter()
            .any(|word| name.contains(word));
    let system = has(&["system uses", "system has", "machine has", "computer has"])
        || (from.is_some() && has(&["host system", "host has"]));
    part || has(&["workspace size to"])
        || (memory != Memory::Host && (next == "ram" || system))
        || (memory == Memory::Host && next == "vram")
}

/// In small letters; `totalFreeSpace` is three words.
fn words_apart(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    for c in text.chars() {
        // `MiB` is one.
        if c.is_ascii_uppercase() && before.is_ascii_lowercase() && c != 'B' {
            out.push(' ');
        }
        // `total="12 GiB"` is `total=12 GiB`.
        if c == '"' && before == '=' {
            continue;
        }
        // Names of fields are words.
        out.push(match c {
            '_' | '"' => ' ',
            _ => c.to_ascii_lowercase(),
        });
        before = c;
    }
    out
}

fn role(before: &str, after: &str, unit: bool, far: usize) -> Option<Role> {
    let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    // `24 GB of GPU memory is free`: what stands between does not count.
    let mut rest = after.trim_start_matches([' ', ')', '(', ']', '*', '_', '"', '）', '（']);
    for noun in [
        "of ", "the ", "gpu ", "device ", "host ", "system ", "video ", "memory ", "vram ", "ram ",
        "mem ",
    ] {
        rest = rest.strip_prefix(noun).unwrap_or(rest).trim_start();
    }
    // A piece of what is free, or what is wished for, is another figure.
    if ["largest", "ignoring"]
        .iter()
        .any(|word| before.contains(word))
    {
        return None;
    }
    // `a T4 with 15.1 GB VRAM`; `my memory is 16G`.
    let whole = before.trim_end();
    let known = ["free", "avail", "used", "use ", "using", "alloc", "left"];
    if unit
        && !known.iter().any(|word| before.contains(word))
        && ((["with", " has", "has a"]
            .iter()
            .any(|word| whole.ends_with(word))
            && ["vram", "memory", "ram"]
                .iter()
                .any(|word| after.trim_start().starts_with(word)))
            || ["memory is", "memory is only", "vram is"]
                .iter()
                .any(|word| whole.ends_with(word)))
    {
        return Some(Role::Total);
    }
    // What one buffer has.
    if before.trim_end().ends_with("buffer size =") {
        return None;
    }
    // `5.5 GB of 5.5 GB … used`.
    if after.trim() == "of" {
        return Some(Role::InUse);
    }
    // `using 6 GB`, not `using a card with 6 GB`.
    if before.trim_end().ends_with("using") {
        return Some(Role::InUse);
    }
    // `11 of 12 GB`, `11 GB out of 12 GB`.
    if ["of", "out of", "free of", "used of", "in use of"].contains(&before.trim()) {
        return Some(Role::Total);
    }
    if rest.starts_with('/') {
        // `Free memory/Total memory: 21/79`.
        let free = ["free", "avail"].iter().any(|word| before.contains(word));
        return Some(if free { Role::Free } else { Role::InUse });
    }
    if let Some(head) = before.trim_end().strip_suffix('/') {
        // `after 4/5GB` is somebody's guess.
        let number = head.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        let guess = number.len() < head.len() && number.ends_with(char::is_whitespace);
        if guess && !number.trim_end().ends_with([':', '=', '(']) {
            return None;
        }
        return Some(Role::Total);
    }
    // `Exceeded max size …: requested 4 GiB`
    if before.trim_end().ends_with("requested") && !before.contains("free") {
        return Some(Role::Asked);
    }
    // `… would exceed the limit of …`: what is exceeded is all there is.
    if ["exceed", "greater than", "larger than"]
        .iter()
        .any(|word| before.contains(word))
    {
        // `larger than free memory(74 MB)` names what is free.
        let free = ["free", "avail"].iter().any(|word| before.contains(word));
        return Some(if free { Role::Free } else { Role::Total });
    }
    let mut role = None;
    for (kind, words) in AFTER {
        if words
            .iter()
            .any(|word| rest.strip_prefix(word).is_some_and(is_end))
        {
            role = Some(*kind);
            break;
        }
    }
    // The words before count up to the end of their sentence.
    let clause = before
        .rfind(". ")
        .max(before.rfind("; "))
        .map_or(before, |at| before.get(at..).unwrap_or(before));
    let mut last: Option<((usize, usize), Role)> = None;
    for (kind, words) in BEFORE {
        for word in *words {
            let mut from = 0;
            while let Some(at) = clause.get(from..).and_then(|rest| rest.find(word)) {
                let at = from + at;
                from = at + word.len();
                // Where words are not parted by spaces, the longer of two counts.
                let joined = !word.is_ascii();
                let begins = joined
                    || !clause
                        .get(..at)
                        .is_some_and(|head| head.ends_with(|c: char| c.is_alphanumeric()));
                let ends = joined || word.ends_with(' ') || clause.get(from..).is_none_or(is_end);
                let place = (from, word.len());
                if begins && ends && last.is_none_or(|(other, _)| place > other) {
                    last = Some((place, *kind));
                }
            }
        }
    }
    let last = last.filter(|((at, _), _)| clause.len() - at <= far);
    let role_before = last.map(|(_, role)| role);
    if !unit {
        // A number without a unit is a size only right behind its name.
        let between = last
            .and_then(|((at, _), _)| clause.get(at..))
            .unwrap_or("?");
        let near = between.split([' ', ':', '=', '(']).all(|word| {
            matches!(
                word,
                "" | "memory"
                    | "bytes"
                    | "size"
                    | "of"
                    | "is"
                    | "reported"
                    | "device"
                    | "gpu"
                    | "host"
            )
        });
        if rest.starts_with("exceed") && before.trim_end().ends_with("mem") {
            return Some(Role::InUse);
        }
        return role_before.filter(|_| near && !clause.ends_with("out of "));
    }
    // `requested=12.5GiB available=3.2GiB`: the name before it is a figure's own.
    if role_before.is_some() && before.ends_with(['=', ':']) {
        return role_before;
    }
    if rest.starts_with("exceed") || rest.starts_with('>') {
        return role_before.or(Some(Role::InUse));
    }
    role.or(role_before)
}

/// A size in a text.
pub(super) struct Size {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) bytes: Bytes,
    /// Whether it has a unit.
    pub(super) unit: bool,
}

/// The first size of a text, in words or letters: `10624 megabytes`.
pub(super) fn first_size(text: &str) -> Option<Bytes> {
    let near = text.get(..text.floor_char_boundary(40))?;
    Some(sizes(&near.to_ascii_lowercase()).next()?.bytes)
}

/// The sizes of a text in small letters: numbers with a unit, and whole ones from a million on.
pub(super) fn sizes(text: &str) -> impl Iterator<Item = Size> + '_ {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let start = at;
            let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
            if !digit(start) {
                at += 1;
                continue;
            }
            let number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b',');
            let mut end = start;
            while bytes.get(end).is_some_and(number) {
                end += 1;
            }
            at = end;
            // A part of a name, of a version, of an address.
            let part = start > 0
                && bytes.get(start - 1).is_some_and(|byte| {
                    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'#' | b'@')
                });
            while end > start && matches!(bytes.get(end - 1), Some(b'.' | b',')) {
                end -= 1;
            }
            // `4194304-byte block`.
            if text
                .get(end..)
                .is_some_and(|rest| rest.starts_with("-byte"))
                && !text.get(start..end).unwrap_or_default().contains('.')
                && !part
            {
                at = end + "-byte".len();
                if let Some(bytes) = super::words::size(text.get(start..end).unwrap_or_default()) {
                    return Some(Size {
                        start,
                        end: at,
                        bytes,
                        unit: true,
                    });
                }
            }
            let mut letters = end;
            while matches!(bytes.get(letters), Some(b' ')) && letters < end + 2 {
                letters += 1;
            }
            let mut unit = letters;
            while bytes.get(unit).is_some_and(u8::is_ascii_alphabetic) {
                unit += 1;
            }
            let scale: Option<u64> = match text.get(letters..unit).unwrap_or_default() {
                // `llama3:70b` is a model.
                "b" if letters == end
                    && end - start < 4
                    && text
                        .get(start..end)
                        .is_some_and(|text| text.parse::<f64>() != Ok(0.0)) =>
                {
                    None
                }
                "b" | "byte" | "bytes" | "字节" => Some(1),
                "kb" | "kib" | "ki" | "kilobytes" => Some(1 << 10),
                "mb" | "mib" | "mi" | "mbytes" | "megabytes" => Some(1 << 20),
                "gb" | "gib" | "gi" | "gbytes" | "gigabytes" => Some(1 << 30),
                "tb" | "tib" | "ti" => Some(1 << 40),
                "k" if letters == end => Some(1 << 10),
                // `max memory: 15981M`, but no 7M parameters.
                "m" if letters == end && is_of_memory(text.get(..start).unwrap_or_default()) => {
                    Some(1 << 20)
                }
                // `5.96 G`, but no 5 grams.
                "g" if letters == end || text.get(start..end).is_some_and(|n| n.contains('.')) => {
                    Some(1 << 30)
                }
                _ => None,
            };
            if part {
                continue;
            }
            let whole = text.get(start..end).unwrap_or_default();
            if let Some(scale) = scale {
                let scaled = match scale {
                    1 => format!("{} b", whole.split('.').next().unwrap_or_default()),
                    1_024 => format!("{whole} kib"),
                    1_048_576 => format!("{whole} mib"),
                    1_073_741_824 => format!("{whole} gib"),
                    _ => format!("{whole} tib"),
                };
                if let Some(bytes) = super::words::size(&scaled) {
                    at = unit;
                    return Some(Size {
                        start,
                        end: unit,
                        bytes,
                        unit: true,
                    });
                }
            } else if whole.len() >= 7 && whole.bytes().all(|byte| byte.is_ascii_digit())
                && !bytes.get(end).is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'-' | b'_' | b'/'))
                && let Ok(value) = whole.parse()
                // Fewer are lines, shapes and steps.
                && value >= 1 << 20
            {
                return Some(Size {
                    start,
                    end,
                    bytes: Bytes(value),
                    unit: false,
                });
            }
        }
        None
    })
}

/// Whether what stands right before a figure is a word for memory.
fn is_of_memory(before: &str) -> bool {
    let before = before.trim_end_matches([' ', ':', '=']);
    [
        "memory",
        "mem",
        "vram",
        "ram",
        "mem_limit",
        "memory_limit",
        "memory limit",
    ]
    .iter()
    .any(|word| before.ends_with(word))
}

/// The number behind a word, if it is whole, no size and less than `most`: `gpu 2`, `cuda:1`.
fn numbered(lower: &str, words: &[&str], most: u64) -> Option<u64> {
    words.iter().find_map(|word| {
        lower.match_indices(word).find_map(|(at, _)| {
            let begins = !lower.get(..at)?.ends_with(|c: char| c.is_alphanumeric());
            let rest = lower.get(at + word.len()..)?;
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let next = rest.get(digits..)?;
            // `gpu 24 GB` is no number of a GPU.
            let size = sizes(rest)
                .next()
                .is_some_and(|size| size.start == 0 && size.unit);
            let version = next
                .strip_prefix('.')
                .is_some_and(|more| more.starts_with(|c: char| c.is_ascii_digit()));
            let ends = !version && !next.starts_with(|c: char| c.is_ascii_alphanumeric());
            // `cuda12`, `gpu1060`: a version, a model.
            let most = if word.ends_with(char::is_alphabetic) && !word.starts_with('[') {
                most.min(10)
            } else {
                most
            };
            (begins && digits > 0 && ends && !size)
                .then(|| integer(rest))
                .flatten()
                .filter(|number| *number < most)
        })
    })
}

/// The GPU that words name.
pub(super) fn device(lower: &str) -> Option<u32> {
    /// More than a host has: a model has such numbers.
    const MOST: u64 = 64;
    numbered(
        lower,
        &[
            "gpu ",
            "gpu:",
            "gpu #",
            "gpu=",
            "gpu",
            "gpu id ",
            "cuda:",
            "cuda device ",
            "cuda",
            "hip:",
            "vulkan",
            "xpu:",
            "npu:",
            "device ordinal ",
            "device ",
            "device: ",
            "device:",
            "device=",
            "device id ",
            "device #",
        ],
        MOST,
    )
    .and_then(|number| u32::try_from(number).ok())
}

/// The rank that words name; a tensor's rank has no such marks.
pub(super) fn rank(lower: &str) -> Option<u32> {
    /// More than a job has.
    const MOST: u64 = 1 << 20;
    numbered(
        lower,
        &[
            "[rank ", "[rank", "rank=", "rank: ", "rank:", "on rank ", "rank #",
        ],
        MOST,
    )
    .and_then(|number| u32::try_from(number).ok())
}

pub(super) fn pid(lower: &str) -> Option<u64> {
    numbered(
        lower,
        &["pid ", "pid=", "pid:", "pid: ", "process "],
        u64::MAX,
    )
    .filter(|pid| *pid > 1)
}

/// Adds what lines near a message say of the same memory. A line that is about neither, or about both, says nothing.
pub(super) fn near<'a>(
    lines: impl Iterator<Item = &'a str>,
    message: &OomMessage,
    around: &mut Around,
) {
    /// In a line that is perhaps about something else only the words right before a figure count.
    const BESIDE: usize = 24;
    // The readers of those that end processes know their lines, and their limits are no part of the host's memory.
    let ends = message.kind == MessageKind::Killed
        && !matches!(
            message.program,
            Program::Shell | Program::DeepSpeed | Program::Torchrun | Program::Unknown
        );
    if ends || message.hardware == Hardware::Tpu {
        return;
    }
    let own = [
        message.requested,
        message.free,
        message.total,
        message.used(),
    ];
    for line in lines {
        // Tables are read wherever they stand.
        let list = line.contains(", ") && line.trim_end().ends_with("MiB");
        if list
            || line.trim_start().starts_with("* ")
            || ends_a_message(line)
            || below_a_picture(line).is_some()
            // Its elements, and their sum.
            || line.contains("CUDA calloc ")
        {
            continue;
        }
        let lower = line.to_ascii_lowercase();
        let same = match memory_of(&lower) {
            // A server's own words are about the GPU.
            Memory::Unknown => message.program.serves() && lower.contains("mem"),
            memory => memory == message.memory,
        };
        if same {
            let mut figures = roles(line, BESIDE, message.memory);
            // A line of the message itself, which was wrapped.
            figures.retain(|(_, bytes)| !own.contains(&Some(*bytes)));
            // `only ~47MB allocated` rounds the request, and "I don't have 8 GiB free" says nothing of what is.
            let rounded = |bytes: Bytes| {
                own.into_iter()
                    .flatten()
                    .any(|own| own.0.abs_diff(bytes.0) <= own.0 / 64)
            };
            let denied = ["n't have", "not have", "n't enough", "not enough"];
            figures.retain(|(role, bytes)| {
                *role == Role::Total
                    || !(rounded(*bytes) || denied.iter().any(|words| lower.contains(words)))
            });
            // Several cards: the text does not say which of them it was.
            let totals = figures.iter().filter(|(role, _)| *role == Role::Total);
            let mut totals: Vec<Bytes> = totals.map(|(_, bytes)| *bytes).collect();
            totals.dedup();
            if totals.len() > 1 && lower.contains("vram") {
                figures.retain(|(role, _)| *role != Role::Total);
            }
            // `13B` is a model.
            figures.retain(|(_, bytes)| bytes.0 == 0 || *bytes >= Bytes(1 << 10));
            around.fill(&figures);
        }
    }
}

/// What takes how much, by its name, in a line that lists it in sentences or alone.
pub(super) fn parts(line: &str) -> Vec<(String, Bytes)> {
    const LONGEST: usize = 60;
    if let Some(part) = named(line) {
        return vec![part];
    }
    // vLLM: `model weights take 20.64GiB; non_torch_memory takes 0.28GiB; …`.
    if !line.contains(" takes ") {
        return Vec::new();
    }
    let line = line.rsplit("] ").next().unwrap_or(line);
    let part = |sentence: &str| {
        let (name, value) = [" takes ", " take ", " is "]
            .iter()
            .find_map(|verb| sentence.split_once(*verb))?;
        let name = name.trim();
        let size = sizes(&value.to_ascii_lowercase()).next()?;
        (size.start == 0 && size.unit && name.len() <= LONGEST)
            .then(|| (name.to_owned(), size.bytes))
    };
    line.split(';').filter_map(part).collect()
}

/// A line that is a name and a size, as programs list what holds the memory: `maybe_live_out allocation:    9.64GiB`,
/// `HLO temp         41.19G (24.2% utilization)`, `1. Size: 32.00G`.
fn named(line: &str) -> Option<(String, Bytes)> {
    const LONGEST: usize = 40;
    const HOLDS: [&str; 10] = [
        "allocation",
        "usage",
        "program",
        "arguments",
        "reserved",
        "temp",
        "cache",
        "weights",
        "global",
        "scoped",
    ];
    let text = line.trim();
    let (name, value) = match text.strip_prefix("1. Size:") {
        Some(value) => ("the largest allocation", value),
        None if text.starts_with("Size: ") => ("the largest allocation", text.get(6..)?),
        None => text.split_once(':').or_else(|| text.split_once("  "))?,
    };
    let value = value.trim_start();
    let name = name.trim();
    let words = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b' ' | b'_' | b'-');
    let number = value
        .bytes()
        .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
        .count();
    let mut rest = value.get(number..)?.trim_start();
    let unit = rest.starts_with(|c: char| "KMGTkmgt".contains(c));
    rest = rest
        .trim_start_matches(|c: char| c.is_ascii_alphabetic())
        .trim_start();
    let ends = rest.is_empty() || rest.starts_with('(');
    let holds = HOLDS.iter().any(|word| name.contains(word));
    (number > 0 && unit && ends && holds && name.len() <= LONGEST && name.bytes().all(words))
        .then(|| Some((name.to_owned(), super::words::size(value)?)))
        .flatten()
}

impl Around {
    fn fill(&mut self, figures: &[(Role, Bytes)]) {
        for (role, bytes) in figures {
            let place = match role {
                Role::Free => &mut self.free,
                Role::InUse => &mut self.in_use,
                Role::Total => &mut self.total,
                Role::Asked => continue,
            };
            place.get_or_insert(*bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In words that no reader knows: which memory, and asked, free, in use, total, in bytes.
    #[test]
    fn words_of_programs_that_no_reader_knows() {
        use crate::text::tests::one;
        use Memory::{Device, Host};
        const GIB: u64 = 1 << 30;
        let gib = |value: f64| Some((value * GIB as f64) as u64);
        for (text, memory, figures) in [
            (
                "OOM: requested=12.5GiB available=3.25GiB device=cuda:2 rank=2 step=1450",
                Device,
                [gib(12.5), gib(3.25), None, None],
            ),
            (
                "level=error msg=\"job failed\" reason=oom_killed container=trainer memory_limit=64Gi memory_usage=63.5Gi",
                Host,
                [None, None, gib(63.5), gib(64.0)],
            ),
            (
                "Reason: Container killed by YARN for exceeding memory limits. 5.5 GB of 6.5 GB physical memory used.",
                Host,
                [None, None, gib(5.5), gib(6.5)],
            ),
            (
                "=>> PBS: job killed: vmem 34359738368 exceeded limit 33285996544",
                Host,
                [None, None, Some(34_359_738_368), Some(33_285_996_544)],
            ),
            (
                "runtime: out of memory: cannot allocate 4194304-byte block (3900702720 in use)",
                Host,
                [Some(4 << 20), None, None, None],
            ),
            (
                "ERROR TDRV:dmem_alloc_internal  Failed to alloc DEVICE memory: 268435456",
                Device,
                [Some(1 << 28), None, None, None],
            ),
            (
                "ERROR: Out of GPU memory trying to allocate 1.5 GiB\nEffective GPU memory usage: 98.96% (7.75 GiB/8 GiB)",
                Device,
                [gib(1.5), None, gib(7.75), gib(8.0)],
            ),
            (
                "GPU 0上出现内存不足错误。无法在GPU 0上分配50.0MB内存，已分配12.5 GB内存，可用内存仅为0.0B。",
                Device,
                [Some(50 << 20), Some(0), gib(12.5), None],
            ),
        ] {
            let message = one(text);
            let bytes = |size: Option<Bytes>| size.map(|size| size.0);
            assert_eq!(message.memory, memory, "{text}");
            assert_eq!(
                [
                    bytes(message.requested),
                    bytes(message.free),
                    bytes(message.in_use),
                    bytes(message.total)
                ],
                figures,
                "{text}"
            );
        }
    }

    /// A writer's own words name other figures beside those of the memory that ran out.
    #[test]
    fn figures_of_another_memory_are_left_alone() {
        use crate::text::tests::one;
        for (text, total, asked) in [
            (
                "[ ROCm error: out of memory ] Runner Terminated: it crashes\nHost system has `64GB` RAM and GPU has `16GB` VRAM",
                Some(Bytes::gib(16)),
                None,
            ),
            ("GPU out of memory: the machine has 32 GB RAM", None, None),
            (
                "ggml_vulkan: Device memory allocation of size 369827840 failed.\nThe system uses 6 GB total, and there are 10 GB free memory for the GPU.",
                None,
                Some(Bytes(369_827_840)),
            ),
            (
                "error loading model: unable to allocate CUDA0 buffer\nmemory.available=\"[9.3 GiB]\" memory.weights.total=\"4.1 GiB\" library=cuda",
                None,
                None,
            ),
            (
                "[TRT] it fails on the GPU for lack of workspace size, and I increased the MaxWorkspaceSize to 20G",
                None,
                None,
            ),
        ] {
            let message = one(text);
            assert_eq!(message.total.or(message.around.total), total, "{text}");
            assert_eq!(message.requested, asked, "{text}");
        }
    }

    #[test]
    fn numbers_of_gpus_are_no_sizes() {
        assert_eq!(device("on gpu 2."), Some(2));
        assert_eq!(device("on cuda:1, "), Some(1));
        assert_eq!(device("a gpu 24 gb large"), None);
        assert_eq!(device("cuda 11.8"), None);
        assert_eq!(device("cuda0 buffer"), Some(0));
        assert_eq!(device("torch2.31+cuda121 environment, ntx1060"), None);
        assert_eq!(device("a gpu 1060"), None);
    }
}
