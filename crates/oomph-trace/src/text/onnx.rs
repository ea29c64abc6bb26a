//! ONNX Runtime.
#![expect(clippy::unnecessary_wraps, reason = "readers share one signature")]

use super::program::{Memory, Program};
use super::readers::{Line, Noted, Reader, or_join};
use super::words::{after, index, size, size_after, word};
use super::{MessageKind, OomMessage};

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["ExecutionProvider"],
        read: |line, noted, _| {
            let gpu = ["CUDAExec", "TensorrtExec", "ROCMExec", "MIGraphXExec"];
            noted.providers[0] |= gpu.iter().any(|name| line.text.contains(name));
            noted.providers[1] |= line.text.contains("CPUExec");
            None
        },
    },
    Reader {
        markers: &[
            "Failed to allocate memory for requested buffer of size ",
            "is smaller than requested bytes of ",
        ],
        read: arena,
    },
    Reader {
        // Cut before the size.
        markers: &["BFCArena::AllocateRawInternal"],
        read: |line, noted, before| {
            line.from
                .contains("ailed to alloc")
                .then(|| arena(line, noted, before))?
        },
    },
    Reader {
        markers: &[
            "onnxruntime::CudaCall",
            "onnxruntime::RocmCall",
            "HIP failure 2: ",
        ],
        read: cuda,
    },
    Reader {
        // Windows: DirectML, by the number of the error or by its words.
        markers: &["8007000E", "Not enough memory resources are available"],
        read: |line, _, before| {
            if !line.text.contains("onnxruntime") {
                return None;
            }
            let mut message = line.message(Program::OnnxRuntime, MessageKind::Allocation);
            message.memory = Memory::Unknown;
            message.setting = Some("DirectML");
            or_join(before, message)
        },
    },
];

/// The arena of a device has the same words as the arena of the CPU.
fn arena(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::OnnxRuntime, MessageKind::Allocation);
    message.requested = size_after(line.from, "buffer of size ")
        .or_else(|| size_after(line.from, "requested bytes of "));
    message.free = after(line.text, "Available memory of ").and_then(size);
    message.allocator = Some("BFCArena".to_owned());
    message.memory = Memory::Unknown;
    Some(message)
}

/// `CUDA failure 2: out of memory ; GPU=0 ; hostname=NAME ; …`.
fn cuda(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    if !line.from.contains("out of memory") && !line.from.contains("ALLOC_FAILED") {
        return None;
    }
    let mut message = line.message(Program::OnnxRuntime, MessageKind::Cuda);
    message.device = after(line.from, "; GPU=").and_then(index);
    message.host = after(line.from, "; hostname=").and_then(word);
    Some(message)
}

#[cfg(test)]
mod tests {
    use crate::text::Memory;
    use crate::text::tests::one;
    use crate::units::Bytes;

    #[test]
    fn a_message_that_breaks_off_before_its_size() {
        let text = "core/framework/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool)";
        let message = one(&format!("{text} Failed to alloc"));
        assert_eq!(message.program, crate::text::Program::OnnxRuntime);
        assert_eq!(message.requested, None);
        assert_eq!(crate::text::tests::all(text).len(), 0);
    }

    #[test]
    fn an_arena_does_not_say_whose_memory_it_is() {
        let message = one(
            "Status Message: bfc_arena.cc:376 Available memory of 1234 is smaller than requested bytes of 456789",
        );
        assert_eq!(message.memory, Memory::Unknown);
        assert_eq!(message.free, Some(Bytes(1234)));
        assert_eq!(message.requested, Some(Bytes(456_789)));
    }
}
