//! PyTorch: the messages of its allocators in every version's wording.
#![expect(clippy::unnecessary_wraps, reason = "readers share one signature")]

use super::program::{Hardware, Memory, Program};
use super::readers::{Line, Noted, Reader, or_join};
use super::words::{after, index, integer, last_word, size, size_after};
use super::{MessageKind, OomMessage, OtherProcess};
use crate::units::Bytes;

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["would exceed allowed memory. (out of memory)"],
        read: backend,
    },
    Reader {
        markers: &[
            "CUDA out of memory.",
            "HIP out of memory.",
            "XPU out of memory.",
            "NPU out of memory.",
            // Cut, or raised by a program.
            "OutOfMemoryError: CUDA out of memory",
            "OutOfMemoryError: HIP out of memory",
        ],
        read: native,
    },
    Reader {
        // As people type it.
        markers: &["out of memory. tried to allocate "],
        read: |line, _, _| {
            let text = line
                .from
                .replace("tried to", "Tried to")
                .replace("(gpu ", "(GPU ")
                .replace(" gpu ", " GPU ")
                .replace("pytorch", "PyTorch")
                .replace("of the allocated", "Of the allocated");
            let message = line.message(Program::Pytorch, MessageKind::Native);
            Some(figures(message, &text))
        },
    },
    Reader {
        // Of the error's words a report may keep these alone.
        markers: &["Allocation on device"],
        read: |line, _, before| {
            let rest = line.from.strip_prefix("Allocation on device")?;
            let rest = rest.trim_matches(|c: char| c.is_ascii_digit() || " .'\"".contains(c));
            // The name of the error may stand before it.
            let told = [
                "when ", "while ", "in ", "error", "at ", "during ", "after ",
            ]
            .iter()
            .any(|word| rest.starts_with(word));
            if (!rest.is_empty() && !told)
                || line.text.contains("MemoryError")
                || line.text.contains("memory on device")
            {
                return None;
            }
            or_join(before, line.message(Program::Pytorch, MessageKind::Native))
        },
    },
    Reader {
        // DeepSpeed: the GPU is nearly full, and nothing failed yet.
        markers: &["pytorch allocator cache flushes since last step"],
        read: |line, _, before| {
            let mut message = line.message(Program::Pytorch, MessageKind::Warning);
            message.handled = true;
            message.setting = Some("cache flushes");
            or_join(before, message)
        },
    },
    Reader {
        // It asks NVML who holds the GPU for this very error, and a system without NVML fails there.
        markers: &["NVML_SUCCESS == r INTERNAL ASSERT FAILED"],
        read: |line, _, _| {
            let mut message = line.message(Program::Pytorch, MessageKind::Native);
            message.setting = Some("no report");
            Some(message)
        },
    },
    Reader {
        markers: &["attempting to recover from OOM"],
        read: |line, noted, _| {
            noted.recovers = Some(line.part);
            None
        },
    },
    Reader {
        // Without its first words, as people cut it, or without the mark between its sentences.
        markers: &[
            " total capacity; ",
            " has a total cap",
            "Tried to allocate ",
        ],
        read: |line, _, before| {
            let (head, rest) = line.text.split_once("Tried to allocate ")?;
            let bare = |c: char| !c.is_alphanumeric();
            let says = head
                .trim_end_matches(bare)
                .to_ascii_lowercase()
                .ends_with("memory")
                && head.to_ascii_lowercase().contains("out of ");
            let more = [" total capacity; ", " has a total cap"];
            if !says && !more.iter().any(|words| line.text.contains(words)) {
                return None;
            }
            let open = before.is_some_and(|before| {
                before.program == Program::Pytorch && before.requested.is_none()
            });
            if open || rest.contains("Tried to allocate ") {
                return None;
            }
            let text = line.text.get(head.len()..)?;
            let mut message = line.message(Program::Pytorch, MessageKind::Native);
            text.trim().clone_into(&mut message.text);
            Some(figures(message, text))
        },
    },
    Reader {
        // The error with other words than its own, as programs report it.
        markers: &["torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"],
        read: |line, _, _| {
            let rest = line.from.split_once("MemoryError")?.1.trim_end();
            let (head, _) = line.text.split_once("torch.")?;
            let said = rest
                .strip_prefix(':')
                .is_some_and(|words| !words.trim().is_empty());
            let named = rest.is_empty() && head.trim_end().ends_with([':', '*']);
            let on_device = rest.contains("llocation on device");
            (said || named || on_device)
                .then(|| line.message_from(Program::Pytorch, MessageKind::Native))
        },
    },
    Reader {
        markers: &[
            "memory allocation failed with OOM on device",
            "memory mapping failed with OOM on device",
        ],
        read: warning,
    },
    Reader {
        // Apple's GPUs, which share the host's memory.
        markers: &["MPS backend out of memory"],
        read: |line, _, _| {
            let mut message = line.message_from(Program::Pytorch, MessageKind::Allocation);
            message.requested = size_after(line.from, "Tried to allocate ");
            message.allocated = size_after(line.from, "MPS allocated: ");
            message.printed_allocated = message.allocated;
            let others = size_after(line.from, "other allocations: ");
            message.this_process = message.allocated.zip(others).map(|(one, more)| one + more);
            message.allowed = size_after(line.from, "max allowed: ");
            Some(message)
        },
    },
    Reader {
        // Metal's limit of one buffer.
        markers: &["Invalid buffer size: "],
        read: |line, _, _| {
            let mut message = line.message(Program::Pytorch, MessageKind::Allocation);
            message.requested =
                Some(size_after(line.from, "size: ").filter(|size| size.0 > 1 << 20)?);
            message.hardware = Hardware::Apple;
            message.setting = Some("one allocation");
            Some(message)
        },
    },
    Reader {
        markers: &["Preemptively rejecting allocation: requested "],
        read: rejection,
    },
    Reader {
        markers: &["Not enough memory for workspace"],
        read: |line, _, _| Some(line.message(Program::Pytorch, MessageKind::Workspace)),
    },
    Reader {
        markers: &[
            "DefaultCPUAllocator: can't allocate memory",
            "DefaultCPUAllocator: not enough memory",
        ],
        read: host,
    },
    Reader {
        // Weights that are quantised have to fit into the GPUs, and were counted before they were loaded.
        markers: &["modules are dispatched on the CPU or the disk"],
        read: |line, _, _| {
            let mut message = line.message(Program::Pytorch, MessageKind::Budget);
            message.setting = Some("device_map");
            Some(message)
        },
    },
    Reader {
        markers: &[
            "is killed by signal: Bus error",
            "insufficient shared memory (shm)",
            "unable to write to file </torch_",
            "unable to allocate shared memory(shm)",
            "unable to open shared memory object </torch_",
        ],
        read: shared,
    },
    Reader {
        // A tensor that is shared between processes, as a file in memory.
        markers: &["unable to mmap "],
        read: |line, _, _| {
            after(line.from, "</torch_")?;
            let mut message = line.message(Program::Pytorch, MessageKind::Host);
            message.memory = Memory::Host;
            message.requested = size_after(line.from, "mmap ");
            Some(message)
        },
    },
    Reader {
        markers: &["is killed by signal: Killed"],
        read: worker,
    },
];

/// Processes that a message lists: more does no GPU hold.
const PROCESSES: usize = 64;
/// From here on the message says `more than`.
const EXBIBYTE: Bytes = Bytes(1 << 60);

fn native(line: &Line<'_>, noted: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    /// Lines between what fairseq does about an error and the error.
    const NEAR: usize = 3;
    let mut message = line.message_from(Program::Pytorch, MessageKind::Native);
    message.handled = noted
        .recovers
        .take()
        .is_some_and(|other| line.part - other <= NEAR);
    let mut message = figures(message, line.from);
    // Who may have all there is has no limit of his own.
    let all = |allowed: &Bytes| message.total.is_some_and(|total| *allowed >= total);
    message.allowed = message.allowed.filter(|allowed| !all(allowed));
    Some(message)
}

/// The figures of a text that is PyTorch's.
fn figures(mut message: OomMessage, text: &str) -> OomMessage {
    if text.contains("Tried to allocate more than 1EB memory") {
        message.requested = Some(EXBIBYTE);
        return message;
    }
    if let Some(rest) = after(text, "Allocation was preemptively rejected") {
        message.kind = MessageKind::Rejected;
        message.versions = Some("2.13 and later");
        message.requested = size_after(rest, "Requested size: ");
        return message;
    }
    message.requested = known(size_after(text, "Tried to allocate "));
    if let Some(rest) = after(text, "(GPU ").or_else(|| after(text, "(NPU ")) {
        older(&mut message, rest);
        return message;
    }
    message.versions = Some(version_of(text));
    message.device = after(text, " GPU ").and_then(index);
    // 2.1 writes "capacty".
    message.total = known(
        size_after(text, "total capacity of ").or_else(|| size_after(text, "total capacty of ")),
    );
    message.free = known(size_after(text, " of which "));
    message.this_process = known(size_after(text, "this process has "));
    let mut rest = text;
    while let Some(at) = after(rest, "Process ")
        && message.others.len() < PROCESSES
    {
        rest = at;
        if let (Some(pid), Some(used)) = (integer(at), known(size_after(at, " has "))) {
            message.others.push(OtherProcess { pid, used });
        }
    }
    message.allowed = before(text, " allowed;");
    message.private_pools = known(size_after(text, "by PyTorch, with "));
    message.printed_allocated = known(size_after(text, "Of the allocated memory "));
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

/// Up to 2.0 all figures stand in one pair of parentheses, with the figure first.
fn older(message: &mut OomMessage, rest: &str) {
    message.versions = Some("2.0 and earlier");
    message.device = index(rest);
    let inside = rest.split_once(')').map_or(rest, |(inside, _)| inside);
    for part in inside.split(';') {
        let part = part.trim();
        let value = known(size(part));
        // The last one may have been cut: `6.83 GiB rese`.
        let words = part.splitn(3, ' ').nth(2).unwrap_or_default();
        let cut = words.len() > 2 && "reserved in total by PyTorch".starts_with(words);
        if words.len() > 2 && "total capacity".starts_with(words) {
            message.total = value;
        } else if part.ends_with("already allocated") {
            message.printed_allocated = value;
        } else if part.ends_with("free") {
            message.free = value;
        } else if part.ends_with("allowed") {
            message.allowed = value;
        } else if cut || part.ends_with("cached") {
            message.reserved = value;
        }
    }
    message.allocated = message.printed_allocated;
    // Up to 1.3 "cached" is what the allocator keeps beside what it gave out.
    if inside.contains(" cached")
        && let (Some(cached), Some(allocated)) = (message.reserved, message.allocated)
    {
        let both = cached + allocated;
        let fits = message
            .total
            .is_none_or(|total| both + message.free.unwrap_or_default() <= total);
        if cached < allocated || fits {
            message.reserved = Some(both);
        }
    }
    if let (Some(reserved), Some(allocated)) = (message.reserved, message.allocated) {
        message.unallocated = Some(reserved.saturating_sub(allocated));
    }
}

fn warning(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::Pytorch, MessageKind::Warning);
    message.versions = Some("2.13 and later");
    message.device = after(line.from, "on device ").and_then(index);
    message.requested =
        size_after(line.from, " to allocate ").or_else(|| size_after(line.from, " to map "));
    message.free = size_after(line.from, "free: ");
    message.total = size_after(line.from, "total: ");
    Some(message)
}

fn rejection(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::Pytorch, MessageKind::Warning);
    message.versions = Some("2.13 and later");
    message.requested = size_after(line.from, "requested ");
    message.reserved = size_after(line.from, "total_allocated_memory (");
    message.allowed = size_after(line.from, "memory limit (");
    Some(message)
}

/// The `cudaMallocAsync` backend, whose figures stand on the lines that follow.
fn backend(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::Pytorch, MessageKind::Async);
    message.device = after(line.text, "Allocation on device ").and_then(index);
    Some(message)
}

/// A line after the message of the `cudaMallocAsync` backend. Programs may print several of them as one.
pub(super) fn read_backend_line(message: &mut OomMessage, line: &str) {
    let said = |name: &str| {
        let (_, rest) = line.split_once(name)?;
        let (gap, value) = rest.split_once(':')?;
        gap.trim().is_empty().then(|| known(size(value.trim())))
    };
    if let Some(value) = said("Currently allocated") {
        message.printed_allocated = value;
        message.allocated = value;
    }
    if let Some(value) = said("Requested") {
        message.requested = value;
    }
    if let Some(value) = said("Device limit") {
        message.total = value;
    }
    if let Some(value) = said("Free (according to CUDA)") {
        message.free = value;
    }
    // The name of the last figure stands on the line before it.
    if let Some(value) = line.trim().strip_prefix(':') {
        message.allowed = known(size(value.trim()));
    }
}

fn host(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::Pytorch, MessageKind::Host);
    message.memory = Memory::Host;
    message.requested = size_after(line.from, "you tried to allocate ");
    message.allocator = Some("DefaultCPUAllocator".to_owned());
    Some(message)
}

/// The shared memory of the host that the workers of a `DataLoader` hand batches through.
fn shared(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::Pytorch, MessageKind::Host);
    message.memory = Memory::Host;
    message.pid = after(line.text, "worker (pid ").and_then(integer);
    message.allocator = Some("/dev/shm".to_owned());
    Some(message)
}

fn worker(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::Pytorch, MessageKind::Killed);
    message.memory = Memory::Host;
    message.pid = after(line.text, "worker (pid ").and_then(integer);
    message.process = Some("DataLoader worker".to_owned());
    Some(message)
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

/// The size right before a marker: `439.58 MiB is reserved`.
fn before(text: &str, marker: &str) -> Option<Bytes> {
    let (head, _) = text.split_once(marker)?;
    let unit = last_word(head);
    let number = last_word(head.strip_suffix(unit)?);
    known(size(&format!("{number} {unit}")))
}

/// A size, unless it is `UINT64_MAX`, which is how "unknown" is printed.
fn known(size: Option<Bytes>) -> Option<Bytes> {
    size.filter(|size| size.0 < 1 << 60)
}
