//! Messages of programs that no reader knows: named as such, with what can be told without guessing.

use super::program::{Memory, Program};
use super::readers::{Line, Noted, Reader};
use super::words::size_after;
use super::{MessageKind, OomMessage};

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["MemoryError"],
        read: |line, _, _| {
            // Python's own, which has no words unless a library gives it some.
            let rest = line.from.strip_prefix("MemoryError")?.trim();
            let alone = line.text.trim_start().starts_with("MemoryError");
            // A library that means the GPU says so.
            let own =
                named(&rest.to_ascii_lowercase()) != Memory::Device && !rest.contains("bad_alloc");
            (alone && own).then(|| {
                let mut message = line.message(Program::Python, MessageKind::Allocation);
                message.memory = Memory::Host;
                message
            })
        },
    },
    Reader {
        // The system's own error, as Python raises it.
        markers: &["[Errno 12] Cannot allocate memory"],
        read: |line, _, _| {
            let mut message = line.message(Program::Python, MessageKind::Allocation);
            message.memory = Memory::Host;
            Some(message)
        },
    },
    Reader {
        // What it says follows on the lines below.
        markers: &["terminate called after throwing an instance of "],
        read: |line, noted, _| {
            let kind = line.from.to_ascii_lowercase();
            noted.cuda_exception = kind.contains("cuda").then_some(line.part);
            None
        },
    },
    Reader {
        markers: &[
            "ut of memory",
            "ut Of Memory",
            "OutOfMemory",
            "OUT_OF_MEMORY",
            "ut of GPU memory",
            "not enough GPU video memory",
            "not enough GPU memory",
            "nsufficient GPU memory",
            "ut of device memory",
            "ut of host memory",
            "OUT_OF_DEVICE_MEMORY",
            "OUT_OF_HOST_MEMORY",
            "Cannot allocate memory",
            "std::bad_alloc",
        ],
        read: unknown,
    },
];

/// A line that reports an error, or is nothing but these words, not one that advises or explains.
fn unknown(line: &Line<'_>, noted: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    const NEAR: usize = 3;
    let thrown = noted
        .cuda_exception
        .is_some_and(|other| line.part - other <= NEAR);
    let lower = line.text.to_ascii_lowercase();
    let alone = matches!(
        lower.trim().trim_end_matches(['.', '!', ':']),
        "out of memory" | "outofmemory" | "out_of_memory" | "std::bad_alloc"
    );
    let reports = [
        "error",
        "fail",
        "fatal",
        "exception",
        "terminate",
        "what():",
    ]
    .iter()
    .any(|word| lower.contains(word));
    (alone || reports).then(|| {
        // CUDA's error in the words of some program.
        let memory = match named(&lower) {
            Memory::Unknown if thrown => Memory::Device,
            memory => memory,
        };
        let cuda = thrown || lower.contains("cuda");
        let (program, kind) = if cuda && memory == Memory::Device {
            (Program::Cuda, MessageKind::Cuda)
        } else {
            (Program::Unknown, MessageKind::Unknown)
        };
        let mut message = line.message(program, kind);
        message.memory = memory;
        message.requested = ["allocate ", "allocating "]
            .iter()
            .find_map(|word| size_after(&lower, word));
        message
    })
}

/// The memory that the words name. `Cannot allocate memory` is the system's own error, of the host.
fn named(lower: &str) -> Memory {
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let device = says(&["gpu", "device", "cuda", "vram", "hip", "opencl"]);
    let host = says(&["host", "system memory", "java", "heap space"])
        || (!device && says(&["cannot allocate memory"]));
    match (device, host) {
        (true, false) => Memory::Device,
        (false, true) => Memory::Host,
        _ => Memory::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use crate::text::tests::{all, one};
    use crate::text::{Memory, Program};

    #[test]
    fn an_unknown_text_is_named_as_such() {
        let message = one("  what():  bitmap failed: out of memory");
        assert_eq!(
            (message.program, message.memory),
            (Program::Unknown, Memory::Unknown)
        );
        assert_eq!(all("hint: use --lowvram if you run out of memory").len(), 0);
        assert_eq!(one("std::bad_alloc").program, Program::Unknown);
        assert_eq!(one("MemoryError").program, Program::Python);
    }
}
