//! Libraries of arrays, on the GPU and on the host: CuPy, RMM, `NumPy`; and Triton's kernels.

use super::program::{Memory, Program};
use super::readers::{Line, Noted, Reader, or_join};
use super::words::{after, array_bytes, between, size, size_after, word};
use super::{MessageKind, OomMessage};
use crate::units::Bytes;

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
        // CUDA's error, as CuPy raises it where its pool has no part in it.
        markers: &[
            "CUDARuntimeError: cudaErrorMemoryAllocation",
            "CUDADriverError: CUDA_ERROR_OUT_OF_MEMORY",
        ],
        read: |line, _, before| {
            if !line.text.contains("cupy") {
                return None;
            }
            or_join(before, line.message(Program::Cupy, MessageKind::Allocation))
        },
    },
    Reader {
        // Up to 0.14.
        markers: &["RMM_ERROR_OUT_OF_MEMORY"],
        read: |line, _, before| {
            or_join(before, line.message(Program::Rmm, MessageKind::Allocation))
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
        // Of shared memory, of tensor memory, or with the kernel's name in their place.
        markers: &["out of resource: "],
        read: |line, _, _| {
            ["Required: ", "shared memory", "tensor memory"]
                .iter()
                .any(|words| line.from.contains(words))
                .then_some(())?;
            let mut message = line.message(Program::Triton, MessageKind::OnChip);
            message.memory = Memory::OnChip;
            message.requested = size_after(line.from, "Required: ");
            message.total = [
                "Hardware limit: ",
                "Hardware limit:",
                "Hardware limitation: ",
            ]
            .iter()
            .find_map(|words| size_after(line.from, words));
            Some(message)
        },
    },
    Reader {
        // The assembler: `uses too much shared data (0x14000 bytes, 0xc000 max)`.
        markers: &["uses too much shared data ("],
        read: |line, _, before| {
            let mut message = line.message(Program::Cuda, MessageKind::OnChip);
            message.memory = Memory::OnChip;
            let (asked, most) = between(line.from, "(", ")")?.split_once(" bytes, ")?;
            message.requested = hexadecimal(asked);
            message.total = hexadecimal(most.strip_suffix(" max")?);
            or_join(before, message)
        },
    },
    Reader {
        // Allocators of Rust and of Arrow, which end the program or raise Python's `MemoryError`.
        markers: &["memory allocation of ", "malloc of size "],
        read: |line, _, before| {
            line.from.contains(" failed").then_some(())?;
            let mut message = line.message(Program::Unknown, MessageKind::Host);
            message.memory = Memory::Host;
            message.requested = Some(size(&line.from.split_once(" of ")?.1.replace("size ", ""))?);
            or_join(before, message)
        },
    },
];

fn hexadecimal(text: &str) -> Option<Bytes> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16)
        .ok()
        .map(Bytes)
}

/// RMM raises Python's `MemoryError`, and means the GPU's memory.
fn rmm(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    if !line.from.contains("rmm/") && !line.from.contains("RMM") {
        return None;
    }
    let mut message = line.message(Program::Rmm, MessageKind::Allocation);
    // Since 24.12.
    message.requested = size_after(line.from, "failed to allocate ");
    if line.from.contains("Maximum pool size exceeded") {
        message.setting = Some("maximum_pool_size");
        // `current/max/try size = 22.35 GiB, 24.00 GiB, 3.73 GiB`.
        if let Some((held, rest)) =
            after(line.from, "current/max/try size = ").and_then(|rest| rest.split_once(", "))
        {
            message.in_use = size(held);
            message.total = size(rest.split(", ").next().unwrap_or(rest));
        }
    }
    Some(message)
}

fn numpy(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    // Up to 1.17 without a size.
    let shape = between(line.from, "array with shape (", ")");
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
