//! Out-of-memory messages in logs: the messages of PyTorch's allocator in every version's wording,
//! and the errors of other libraries that mean the same.
//!
//! A log is read line by line, so its size does not matter. Sizes in messages are rounded to two
//! decimals by PyTorch; they are kept as printed, in bytes.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::error::{Error, Problem, ProblemKind};
use crate::input;
use crate::units::Bytes;

/// A line that is longer is cut: tracebacks and messages have a few kilobytes.
const MAX_LINE: usize = 1 << 20;
/// Frames of a traceback that are kept, the innermost ones.
const MAX_FRAMES: usize = 200;
/// Messages of one log that are kept: a job that retries may print thousands.
const MAX_MESSAGES: usize = 256;
/// JSON that is looked through for strings with messages; anything larger is read as lines.
const MAX_JSON: usize = 16 << 20;

/// Bytes of a message that are kept.
const MAX_MESSAGE: usize = 64 << 10;
/// Bytes of a frame's file, function and code that are kept.
const MAX_WORDS: usize = 1 << 10;

/// `text` up to `most` bytes.
fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

/// Which error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageKind {
    /// PyTorch's caching allocator, `CUDA out of memory. Tried to allocate …`.
    Native,
    /// A request of 1 EiB or more: a size computed wrongly.
    MoreThanExbibyte,
    /// Rejected before it was tried, because of `per_process_memory_fraction` (2.13+).
    Rejected,
    /// The `cudaMallocAsync` backend.
    Async,
    /// A warning in the log of 2.13+, before the error.
    Warning,
    /// `Not enough memory for workspace!` of a convolution.
    Workspace,
    /// `CUDA error: out of memory`: outside of the allocator.
    Cuda,
    /// cuBLAS could not create its handle.
    Cublas,
    /// cuDNN could not create its handle.
    Cudnn,
    /// NCCL could not get its buffers.
    Nccl,
    /// Host memory, not the GPU's.
    Host,
}

impl MessageKind {
    /// The kind's name in JSON.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Native => "pytorch",
            Self::MoreThanExbibyte => "more_than_1eb",
            Self::Rejected => "rejected_by_fraction",
            Self::Async => "cuda_malloc_async",
            Self::Warning => "warning",
            Self::Workspace => "cudnn_workspace",
            Self::Cuda => "cuda_error",
            Self::Cublas => "cublas",
            Self::Cudnn => "cudnn",
            Self::Nccl => "nccl",
            Self::Host => "host_memory",
        }
    }
}

/// A frame of a Python traceback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFrame {
    /// The source file.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The function.
    pub function: String,
    /// The line's text, if the log has it.
    pub code: String,
}

/// A process and its memory, as the message lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherProcess {
    /// Its id; inside a container it may be one of the host.
    pub pid: u64,
    /// Its memory.
    pub used: Bytes,
}

/// An out-of-memory message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomMessage {
    /// Which error.
    pub kind: MessageKind,
    /// The line of the log, counted from 1.
    pub line: usize,
    /// The message itself.
    pub text: String,
    /// The versions of PyTorch that print it like this.
    pub versions: Option<&'static str>,
    /// The rank that printed it.
    pub rank: Option<u32>,
    /// The device.
    pub device: Option<u32>,
    /// What was asked of the driver: the segment, not the tensor.
    pub requested: Option<Bytes>,
    /// The device's memory.
    pub total: Option<Bytes>,
    /// The device's free memory.
    pub free: Option<Bytes>,
    /// What this process uses, everything included.
    pub this_process: Option<Bytes>,
    /// The other processes on the device.
    pub others: Vec<OtherProcess>,
    /// The limit of `set_per_process_memory_fraction`.
    pub allowed: Option<Bytes>,
    /// `allocated by PyTorch`, as printed.
    pub printed_allocated: Option<Bytes>,
    /// What PyTorch's blocks in use hold, corrected.
    pub allocated: Option<Bytes>,
    /// What PyTorch holds from the driver.
    pub reserved: Option<Bytes>,
    /// Reserved and not in use.
    pub unallocated: Option<Bytes>,
    /// Free blocks of private pools, which the message calls allocated.
    pub private_pools: Option<Bytes>,
    /// The traceback before the message, outermost frame first.
    pub traceback: Vec<TextFrame>,
}

impl OomMessage {
    fn new(kind: MessageKind, line: usize, text: &str) -> Self {
        Self {
            kind,
            line,
            text: cut(text, MAX_MESSAGE),
            versions: None,
            rank: None,
            device: None,
            requested: None,
            total: None,
            free: None,
            this_process: None,
            others: Vec::new(),
            allowed: None,
            printed_allocated: None,
            allocated: None,
            reserved: None,
            unallocated: None,
            private_pools: None,
            traceback: Vec::new(),
        }
    }

    /// Memory of the device that neither this process's PyTorch nor the free memory accounts for.
    pub fn outside_pytorch(&self) -> Option<Bytes> {
        Some(
            self.total?
                .saturating_sub(self.free?)
                .saturating_sub(self.reserved?),
        )
    }
}

/// Reads a log: plain, `.gz`, `.xz` or `.zst`; `path` is for messages only.
pub fn read(
    file: impl Read + 'static,
    path: &Path,
) -> Result<(Vec<OomMessage>, Vec<Problem>), Error> {
    read_from(input::unpacked(file, path)?).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

/// Reads an unpacked log.
pub fn read_from(reader: impl Read) -> io::Result<(Vec<OomMessage>, Vec<Problem>)> {
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    if reader.fill_buf()?.first() == Some(&b'{') {
        let mut head = Vec::new();
        reader
            .by_ref()
            .take(MAX_JSON as u64)
            .read_to_end(&mut head)?;
        if head.len() < MAX_JSON
            && let Ok(value) = serde_json::from_slice::<serde_json::Value>(&head)
        {
            let mut text = String::new();
            collect_strings(&value, &mut text);
            return scan(text.as_bytes());
        }
        return scan(io::Cursor::new(head).chain(reader));
    }
    scan(reader)
}

/// Looks for messages in a text.
pub fn find(text: &str) -> Vec<OomMessage> {
    scan(text.as_bytes())
        .map(|(messages, _)| messages)
        .unwrap_or_default()
}

/// Structured logs carry messages inside strings, with their line breaks escaped.
fn collect_strings(value: &serde_json::Value, out: &mut String) {
    match value {
        serde_json::Value::String(text) => {
            out.push_str(text);
            out.push('\n');
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| collect_strings(item, out)),
        serde_json::Value::Object(map) => map.values().for_each(|item| collect_strings(item, out)),
        _ => {}
    }
}

fn scan(reader: impl Read) -> io::Result<(Vec<OomMessage>, Vec<Problem>)> {
    let mut reader = BufReader::new(reader);
    let mut messages: Vec<OomMessage> = Vec::new();
    let mut problems = Vec::new();
    let mut traceback: VecDeque<TextFrame> = VecDeque::new();
    let mut raw = Vec::new();
    let mut number = 0;
    let mut dropped = 0_usize;
    // Lines that still belong to the message of the cudaMallocAsync backend.
    let mut continues = 0_u8;
    loop {
        raw.clear();
        let read = reader
            .by_ref()
            .take(MAX_LINE as u64)
            .read_until(b'\n', &mut raw)?;
        if read == 0 {
            break;
        }
        number += 1;
        let line = String::from_utf8_lossy(&raw);
        let line = line.trim_end_matches(['\n', '\r']);
        // Logs of JSON lines, and Python's repr of an exception, escape their line breaks.
        let parts: Vec<String> = if line.contains("\\n") {
            line.replace("\\\"", "\"")
                .split("\\n")
                .map(ToOwned::to_owned)
                .collect()
        } else {
            vec![line.to_owned()]
        };
        for part in parts {
            let (rank, text) = strip_prefix(&part);
            if continues > 0 {
                continues -= 1;
                if let Some(last) = messages.last_mut() {
                    read_async_line(last, text);
                }
            }
            if text.contains("Traceback (most recent call last)") {
                traceback.clear();
                continue;
            }
            if let Some(frame) = read_frame(text) {
                if traceback.len() >= MAX_FRAMES {
                    traceback.pop_front();
                }
                traceback.push_back(frame);
                continue;
            }
            if let Some(mut message) = read_message(text, number) {
                message.rank = rank.or(message.rank);
                message.traceback = traceback.drain(..).collect();
                if message.kind == MessageKind::Async {
                    continues = 6;
                }
                add(&mut messages, message, &mut dropped);
            } else if let Some(last) = traceback.back_mut() {
                let code = text.trim();
                if last.code.is_empty() && !code.chars().all(|c| matches!(c, '^' | '~' | ' ')) {
                    last.code = cut(code, MAX_WORDS);
                }
            }
        }
    }
    if dropped > 0 {
        problems.push(Problem::new(
            ProblemKind::Incomplete,
            format!("{dropped} more out-of-memory messages were ignored"),
        ));
    }
    Ok((messages, problems))
}

/// Adds a message unless it repeats one: launchers print an error several times.
fn add(messages: &mut Vec<OomMessage>, message: OomMessage, dropped: &mut usize) {
    if let Some(earlier) = messages
        .iter_mut()
        .find(|other| other.kind == message.kind && other.text == message.text)
    {
        if earlier.traceback.len() < message.traceback.len() {
            earlier.traceback = message.traceback;
        }
        return;
    }
    if messages.len() >= MAX_MESSAGES {
        *dropped += 1;
        return;
    }
    messages.push(message);
}

/// Removes the prefixes of launchers: `[rank0]: `, `[default3]:`, colours.
fn strip_prefix(line: &str) -> (Option<u32>, &str) {
    let trimmed = line.trim_start_matches(|c: char| c.is_whitespace() && c != ' ');
    for marker in ["[rank", "[default"] {
        if let Some(rest) = trimmed.trim_start().strip_prefix(marker)
            && let Some((digits, rest)) = rest.split_once("]:")
            && let Ok(rank) = digits.parse()
        {
            return (Some(rank), rest.strip_prefix(' ').unwrap_or(rest));
        }
    }
    (None, trimmed)
}

/// `  File "train.py", line 12, in main`
fn read_frame(line: &str) -> Option<TextFrame> {
    let rest = line.trim_start().strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let function = rest
        .split_once(", in ")
        .map_or("", |(_, function)| function)
        .trim();
    Some(TextFrame {
        file: cut(file, MAX_WORDS),
        line: digits.parse().ok()?,
        function: cut(function, MAX_WORDS),
        code: String::new(),
    })
}

const DISGUISES: [(&str, MessageKind); 13] = [
    ("Not enough memory for workspace", MessageKind::Workspace),
    ("CUBLAS_STATUS_ALLOC_FAILED", MessageKind::Cublas),
    ("CUDNN_STATUS_ALLOC_FAILED", MessageKind::Cudnn),
    ("CUDNN_STATUS_NOT_INITIALIZED", MessageKind::Cudnn),
    (
        "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        MessageKind::Cudnn,
    ),
    ("Failed to CUDA calloc", MessageKind::Nccl),
    ("Failed to CUDA host alloc", MessageKind::Host),
    ("CUDA error: out of memory", MessageKind::Cuda),
    ("CUDA driver error: out of memory", MessageKind::Cuda),
    ("HIP error: out of memory", MessageKind::Cuda),
    ("cudaErrorMemoryAllocation", MessageKind::Cuda),
    ("CUDA_ERROR_OUT_OF_MEMORY", MessageKind::Cuda),
    (
        "DefaultCPUAllocator: can't allocate memory",
        MessageKind::Host,
    ),
];

fn read_message(line: &str, number: usize) -> Option<OomMessage> {
    for marker in [
        "CUDA out of memory.",
        "HIP out of memory.",
        "XPU out of memory.",
    ] {
        if let Some(at) = line.find(marker) {
            return Some(read_native(line.get(at..).unwrap_or(line), number));
        }
    }
    for marker in [
        "memory allocation failed with OOM on device",
        "memory mapping failed with OOM on device",
    ] {
        if let Some((_, rest)) = line.split_once(marker) {
            let mut message = OomMessage::new(MessageKind::Warning, number, line.trim());
            message.versions = Some("2.13 and later");
            message.device = integer(rest.trim_start()).map(|device| device as u32);
            message.requested = after(rest, " to allocate ")
                .or_else(|| after(rest, " to map "))
                .and_then(integer)
                .map(Bytes);
            message.free = after(rest, "free: ").and_then(integer).map(Bytes);
            message.total = after(rest, "total: ").and_then(integer).map(Bytes);
            return Some(message);
        }
    }
    if let Some(rest) = after(line, "Preemptively rejecting allocation: requested ") {
        let mut message = OomMessage::new(MessageKind::Warning, number, line.trim());
        message.versions = Some("2.13 and later");
        message.requested = any_size(rest);
        message.reserved = after(rest, "total_allocated_memory (").and_then(any_size);
        message.allowed = after(rest, "memory limit (").and_then(any_size);
        return Some(message);
    }
    if line.contains("would exceed allowed memory. (out of memory)") {
        let mut message = OomMessage::new(MessageKind::Async, number, line.trim());
        message.device = after(line, "Allocation on device ")
            .and_then(integer)
            .map(|device| device as u32);
        return Some(message);
    }
    if line.contains("Cuda failure") && line.contains("out of memory") {
        return Some(OomMessage::new(MessageKind::Nccl, number, line.trim()));
    }
    let (_, kind) = DISGUISES.iter().find(|(marker, _)| line.contains(marker))?;
    let mut message = OomMessage::new(*kind, number, line.trim());
    message.requested = after(line, "Failed to CUDA calloc ")
        .or_else(|| after(line, "you tried to allocate "))
        .and_then(integer)
        .map(Bytes);
    Some(message)
}

fn read_async_line(message: &mut OomMessage, line: &str) {
    let Some((name, value)) = line.split_once(':') else {
        return;
    };
    let value = size(value.trim());
    match name.trim() {
        "Currently allocated" => {
            message.printed_allocated = value;
            message.allocated = value;
        }
        "Requested" => message.requested = value,
        "Device limit" => message.total = value,
        "Free (according to CUDA)" => message.free = value,
        // The name of the last figure stands on the line before it.
        "" => message.allowed = value,
        _ => {}
    }
}

fn read_native(text: &str, number: usize) -> OomMessage {
    let mut message = OomMessage::new(MessageKind::Native, number, text.trim());
    if text.contains("Tried to allocate more than 1EB memory") {
        message.kind = MessageKind::MoreThanExbibyte;
        return message;
    }
    if let Some(rest) = after(text, "Allocation was preemptively rejected") {
        message.kind = MessageKind::Rejected;
        message.versions = Some("2.13 and later");
        message.requested = after(rest, "Requested size: ").and_then(any_size);
        return message;
    }
    message.requested = after(text, "Tried to allocate ").and_then(size);
    if let Some(rest) = after(text, "(GPU ") {
        // Up to 2.0 all figures stand in one pair of parentheses, with the figure first.
        message.versions = Some("2.0 and earlier");
        message.device = integer(rest).map(|device| device as u32);
        let inside = rest.split_once(')').map_or(rest, |(inside, _)| inside);
        for part in inside.split(';') {
            let part = part.trim();
            let value = size(part);
            if part.ends_with("total capacity") {
                // The device's number stands before the first figure.
                message.total = value;
            } else if part.ends_with("already allocated") {
                message.printed_allocated = value;
            } else if part.ends_with("free") {
                message.free = value;
            } else if part.ends_with("allowed") {
                message.allowed = value;
            } else if part.ends_with("reserved in total by PyTorch") || part.ends_with("cached") {
                message.reserved = value;
            }
        }
        message.allocated = message.printed_allocated;
        if let (Some(reserved), Some(allocated)) = (message.reserved, message.allocated) {
            message.unallocated = Some(reserved.saturating_sub(allocated));
        }
        return message;
    }
    message.versions = Some(version_of(text));
    message.device = after(text, " GPU ")
        .and_then(integer)
        .map(|device| device as u32);
    // 2.1 writes "capacty".
    message.total = after(text, "total capacity of ")
        .or_else(|| after(text, "total capacty of "))
        .and_then(size);
    message.free = after(text, " of which ").and_then(size);
    message.this_process = after(text, "this process has ").and_then(size);
    let mut rest = text;
    while let Some(at) = after(rest, "Process ") {
        rest = at;
        // Only what follows directly: a line of a megabyte may name a hundred thousand processes.
        let figure = at.trim_start_matches(|c: char| c.is_ascii_digit());
        let used = figure.strip_prefix(" has ").and_then(size);
        if let (Some(pid), Some(used)) = (integer(at), used) {
            message.others.push(OtherProcess { pid, used });
        }
    }
    message.allowed = before(text, " allowed;");
    message.private_pools = after(text, "by PyTorch, with ").and_then(size);
    message.printed_allocated = after(text, "Of the allocated memory ").and_then(size);
    message.unallocated = before(text, " is reserved by PyTorch but unallocated");
    // The free blocks of private pools are added to what is "allocated"; they are not in use.
    message.allocated = message
        .printed_allocated
        .map(|printed| printed.saturating_sub(message.private_pools.unwrap_or_default()));
    if let (Some(printed), Some(unallocated)) = (message.printed_allocated, message.unallocated) {
        message.reserved = Some(printed + unallocated);
    }
    message
}

fn version_of(text: &str) -> &'static str {
    if text.contains("total capacty") {
        "2.1"
    } else if text.contains("expandable_segments is enabled") {
        "2.15"
    } else if text.contains("docs.pytorch.org") {
        "2.10 to 2.15"
    } else if text.trim_end().ends_with("GPU") {
        // The device's number was a zero byte, which ended the message.
        "2.3 or 2.4"
    } else {
        "2.2 to 2.9"
    }
}

/// What follows a marker.
fn after<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    text.split_once(marker).map(|(_, rest)| rest)
}

/// The size right before a marker: `439.58 MiB is reserved`.
fn before(text: &str, marker: &str) -> Option<Bytes> {
    let (head, _) = text.split_once(marker)?;
    let mut words = head.rsplit(' ');
    let unit = words.next()?;
    let number = words.next()?;
    size(&format!("{number} {unit}"))
}

fn integer(text: &str) -> Option<u64> {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// A size with or without a unit.
fn any_size(text: &str) -> Option<Bytes> {
    size(text).or_else(|| integer(text.trim_start()).map(Bytes))
}

/// A size as `format_size` prints it, at the beginning of a text: `1.66 GiB`, `0 bytes`. Several
/// figures before the unit (`0; 3.81 GiB`) are passed over.
fn size(text: &str) -> Option<Bytes> {
    let mut last: Option<f64> = None;
    for word in text.split_whitespace().take(4) {
        let clean = word.trim_end_matches(['.', ',', ';', ')', ']']);
        let factor: f64 = match clean {
            "bytes" => 1.0,
            "KiB" | "KB" => 1024.0,
            "MiB" | "MB" => 1_048_576.0,
            "GiB" | "GB" => 1_073_741_824.0,
            number => {
                last = number.parse().ok();
                continue;
            }
        };
        let value = last? * factor;
        // UINT64_MAX is how "unknown" is printed.
        if !value.is_finite() || !(0.0..1e19).contains(&value) || value > 1.8e19 {
            return None;
        }
        return Some(Bytes(value as u64)).filter(|bytes| bytes.0 < 1 << 60);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> OomMessage {
        let mut found = find(text);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "what it is compared with is optional"
    )]
    fn gib(value: f64) -> Option<Bytes> {
        Some(Bytes((value * 1_073_741_824.0) as u64))
    }

    #[test]
    fn before_2_1() {
        let message = one(
            "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 3; 23.69 GiB total capacity; 20.10 GiB already allocated; 1.01 GiB free; 21.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        );
        assert_eq!(message.device, Some(3));
        assert_eq!(message.total, gib(23.69));
        assert_eq!(message.allocated, gib(20.10));
        assert_eq!(message.free, gib(1.01));
        assert_eq!(message.reserved, gib(21.0));
        assert_eq!(message.requested, gib(1.5));
        let old = one(
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 7.00 GiB already allocated; 10.00 MiB free; 7.10 GiB cached)",
        );
        assert_eq!(old.reserved, gib(7.1));
    }

    #[test]
    fn since_2_1() {
        let typo = one(
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacty of 15.90 GiB of which 1.88 MiB is free. Including non-PyTorch memory, this process has 15.89 GiB memory in use. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated. If reserved",
        );
        assert_eq!(typo.versions, Some("2.1"));
        assert_eq!(typo.total, gib(15.9));
        let now = one(
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 36.00 MiB. GPU 1 has a total capacity of 139.80 GiB of which 126.15 GiB is free. Including non-PyTorch memory, this process has 10.72 GiB memory in use. Process 678 has 2.41 GiB memory in use. Process 731 has 518.00 MiB memory in use. 10.00 GiB allowed; Of the allocated memory 9.56 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 439.58 MiB is reserved by PyTorch but unallocated. If reserved but unallocated",
        );
        assert_eq!(now.rank, Some(1));
        assert_eq!(now.device, Some(1));
        assert_eq!(now.allowed, gib(10.0));
        assert_eq!(now.others.len(), 2);
        assert_eq!(now.others[0].pid, 678);
        assert_eq!(now.this_process, gib(10.72));
        // The private pools' free blocks are not in use.
        assert_eq!(now.allocated, gib(9.56).map(|b| b - Bytes::gib(1)));
        assert_eq!(
            now.reserved,
            Some(Bytes(
                (9.56 * 1_073_741_824.0) as u64 + (439.58 * 1_048_576.0) as u64
            ))
        );
    }

    #[test]
    fn cut_at_the_device() {
        let cut = one(
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU \0 has a total",
        );
        assert_eq!(cut.requested, gib(2.0));
        let cut =
            one("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU ");
        assert_eq!(cut.versions, Some("2.3 or 2.4"));
        assert_eq!(cut.device, None);
    }

    #[test]
    fn unknown_is_not_a_size() {
        let message = one(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.",
        );
        assert_eq!(message.this_process, None);
        assert_eq!(message.unallocated, Some(Bytes::ZERO));
    }

    #[test]
    fn other_words() {
        let kinds = |text: &str| -> Vec<MessageKind> {
            find(text).into_iter().map(|message| message.kind).collect()
        };
        for (text, kind) in [
            (
                "CUDA out of memory. Tried to allocate more than 1EB memory.",
                MessageKind::MoreThanExbibyte,
            ),
            (
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 1048576",
                MessageKind::Rejected,
            ),
            (
                "RuntimeError: Not enough memory for workspace!",
                MessageKind::Workspace,
            ),
            ("RuntimeError: CUDA error: out of memory", MessageKind::Cuda),
            (
                "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                MessageKind::Cublas,
            ),
            (
                "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
                MessageKind::Cudnn,
            ),
            (
                "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
                MessageKind::Cudnn,
            ),
            (
                "ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 'out of memory'",
                MessageKind::Nccl,
            ),
            (
                "NCCL WARN Failed to CUDA calloc 6291456 bytes",
                MessageKind::Nccl,
            ),
            (
                "W1120 memory allocation failed with OOM on device 2 while trying to allocate 4096 bytes (free: 100, total: 200)",
                MessageKind::Warning,
            ),
            (
                "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes",
                MessageKind::Host,
            ),
        ] {
            assert_eq!(kinds(text), [kind], "{text}");
        }
        let nccl = one("NCCL WARN Failed to CUDA calloc 6291456 bytes");
        assert_eq!(nccl.requested, Some(Bytes(6_291_456)));
        let text = "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 22.18 GiB\nRequested               : 1.00 GiB\nDevice limit            : 23.69 GiB\nFree (according to CUDA): 13.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n";
        let message = one(text);
        assert_eq!(message.allocated, gib(22.18));
        assert_eq!(message.total, gib(23.69));
        assert_eq!(message.free, Some(Bytes(13 << 20)));
        assert_eq!(message.allowed, None);
    }

    #[test]
    fn a_line_of_megabytes_is_read_at_once() {
        const LENGTH: usize = 3 << 20;
        let head = "CUDA out of memory. Tried to allocate 1.00 GiB. ";
        let started = std::time::Instant::now();
        for part in [
            " Process 1",
            " has ",
            "Tried to allocate ",
            "\\n",
            "File \\\"a\\\", line 1\\n",
            " GPU ",
        ] {
            let text = format!("{head}{}", part.repeat(LENGTH / part.len()));
            assert_eq!(
                find(&text).first().map(|message| message.requested),
                Some(gib(1.0))
            );
        }
        // A quadratic step takes half a minute.
        assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    }

    #[test]
    fn takes_the_traceback_along() {
        let message = one(
            "noise\nTraceback (most recent call last):\n  File \"/job/train.py\", line 12, in main\n    loss = model(x)\n           ^^^^^^^^\n  File \"/venv/torch/nn/functional.py\", line 7, in linear\n    return f(x)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free.\n",
        );
        assert_eq!(message.traceback.len(), 2);
        assert_eq!(message.traceback[0].code, "loss = model(x)");
        assert_eq!(message.traceback[1].function, "linear");
        assert_eq!(message.line, 8);
    }
}
