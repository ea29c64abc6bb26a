//! Python's own errors, and what announces an exception of any program; `general.rs` reads what no reader knows.

use super::MessageKind;
use super::general::memory_of;
use super::program::{Memory, Program};
use super::readers::{Reader, or_join};

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["MemoryError"],
        read: |line, _, _| {
            // Python's own, which has no words unless a library gives it some.
            let rest = line.from.strip_prefix("MemoryError")?.trim();
            let alone = line.text.trim_start().starts_with("MemoryError");
            // A library that means the GPU says so.
            let own = memory_of(&rest.to_ascii_lowercase()) != Memory::Device
                && !rest.contains("bad_alloc");
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
        // A disk that is full is another matter; shared memory is the host's.
        markers: &["No space left on device"],
        read: |line, _, before| {
            let near = line.near();
            if !near.contains("/dev/shm") && !near.contains("shared memory") {
                return None;
            }
            let mut message = line.message(Program::Unknown, MessageKind::Allocation);
            message.memory = Memory::Host;
            message.allocator = Some("/dev/shm".to_owned());
            or_join(before, message)
        },
    },
    Reader {
        // A notice of the host's allocator in notebooks; what ends them then often says nothing.
        markers: &["large alloc "],
        read: |line, _, before| {
            line.text.contains("tcmalloc").then_some(())?;
            let mut message = line.message(Program::Unknown, MessageKind::Allocation);
            message.memory = Memory::Host;
            message.handled = true;
            message.requested = super::words::size_after(line.from, "alloc ");
            message.setting = Some("large alloc");
            or_join(before, message)
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
];

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
