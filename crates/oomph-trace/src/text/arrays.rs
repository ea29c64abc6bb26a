//! Libraries of arrays, on the GPU and on the host: CuPy, RMM, `NumPy`; and Triton's kernels.

use super::program::{Memory, Program};
use super::readers::{Line, Noted, Reader};
use super::words::{after, array_bytes, between, size, size_after, word};
use super::{MessageKind, OomMessage};

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["out of memory to allocate "],
        read: |line, _, _| {
            let mut message = line.message(Program::Cupy, MessageKind::Allocation);
            message.requested = size_after(line.from, "to allocate ");
            // This total is what would be allocated if the request had succeeded.
            message.in_use =
                Some(size_after(line.from, "(total ")?.saturating_sub(message.requested?));
            message.total = size_after(line.from, "limit set to ");
            Some(message)
        },
    },
    Reader {
        markers: &["(allocated so far: "],
        read: |line, _, _| {
            let mut message = line.message(Program::Cupy, MessageKind::Allocation);
            message.requested = size_after(line.text, "ut of memory allocating ");
            message.in_use = size_after(line.from, "so far: ");
            message.total = size_after(line.from, "limit set to: ");
            Some(message)
        },
    },
    Reader {
        markers: &["std::bad_alloc: "],
        read: rmm,
    },
    Reader {
        markers: &["Unable to allocate "],
        read: numpy,
    },
    Reader {
        markers: &["out of resource: shared memory, Required: "],
        read: |line, _, _| {
            let mut message = line.message(Program::Triton, MessageKind::OnChip);
            message.memory = Memory::OnChip;
            message.requested = size_after(line.from, "Required: ");
            message.total = size_after(line.from, "Hardware limit: ")
                .or_else(|| size_after(line.from, "Hardware limitation: "));
            Some(message)
        },
    },
];

/// RMM raises Python's `MemoryError`, and means the GPU's memory.
fn rmm(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    if !line.from.contains("rmm/") && !line.from.contains("RMM") {
        return None;
    }
    let mut message = line.message(Program::Rmm, MessageKind::Allocation);
    if line.from.contains("Maximum pool size exceeded") {
        message.setting = Some("maximum_pool_size");
    }
    Some(message)
}

fn numpy(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let shape = between(line.from, "for an array with shape (", ")");
    let element = after(line.from, " and data type ").and_then(word);
    let exact = shape
        .zip(element)
        .and_then(|(shape, element)| array_bytes(shape, &element));
    let mut message = line.message(Program::Numpy, MessageKind::Allocation);
    message.memory = Memory::Host;
    // The text is rounded to three digits.
    message.requested = exact.or_else(|| after(line.from, "allocate ").and_then(size));
    shape.map(|_| message)
}

#[cfg(test)]
mod tests {
    use crate::text::tests::{all, one};
    use crate::text::{Memory, Program};
    use crate::units::Bytes;

    #[test]
    fn the_old_total_of_cupy_contains_the_request() {
        let message =
            one("OutOfMemoryError: out of memory to allocate 1200 bytes (total 7200 bytes)");
        assert_eq!(message.in_use, Some(Bytes(6000)));
    }

    #[test]
    fn a_memory_error_is_the_hosts_or_the_gpus() {
        let host = one(
            "MemoryError: Unable to allocate 1.0 KiB for an array with shape (32, 4) and data type int64",
        );
        assert_eq!((host.program, host.memory), (Program::Numpy, Memory::Host));
        assert_eq!(host.requested, Some(Bytes(1024)));
        let gpu = one(
            "MemoryError: std::bad_alloc: CUDA error at: /x/rmm/mr/y.hpp:68: cudaErrorMemoryAllocation out of memory",
        );
        assert_eq!((gpu.program, gpu.memory), (Program::Rmm, Memory::Device));
        assert_eq!(all("Unable to allocate a seat").len(), 0);
    }
}
