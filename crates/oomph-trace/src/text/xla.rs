//! XLA: JAX and TensorFlow, which share their allocator and much of its words.
#![expect(clippy::unnecessary_wraps, reason = "readers share one signature")]

use std::borrow::Cow;

use super::program::{Hardware, Memory, Program};
use super::readers::{Line, Noted, Reader, or_join};
use super::words::{after, array_bytes, between, index, integer, size, size_after, word};
use super::{MessageKind, OomMessage};

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &[
            " when allocating tensor with shape[",
            " when allocating tensor of shape [",
            " when allocating tensor with shapedim {",
        ],
        read: tensor,
    },
    Reader {
        // A copy to the GPU that found no room there: TensorFlow's words do not say so.
        markers: &["st tensor is not initialized", "st Tensor Not initialized"],
        read: |line, _, before| {
            let mut message = line.message(Program::Tensorflow, MessageKind::Allocation);
            message.setting = Some("copy");
            or_join(before, message)
        },
    },
    Reader {
        // The first version left the shape out.
        markers: &["OOM when allocating tensor"],
        read: |line, _, before| {
            let mut message = line.message(Program::Tensorflow, MessageKind::Allocation);
            message.memory = Memory::Unknown;
            or_join(before, message)
        },
    },
    Reader {
        markers: &["_device=\"/job:"],
        read: node,
    },
    Reader {
        markers: &["ut of memory while trying to allocate "],
        read: |line, noted, _| {
            let requested = size_after(line.from, "to allocate ")?;
            let program = if after_tensorflow(line, noted) {
                Program::Tensorflow
            } else {
                Program::Jax
            };
            let mut message = line.message(program, MessageKind::Allocation);
            message.requested = Some(requested);
            arena(&mut message, noted);
            Some(message)
        },
    },
    Reader {
        // XLA's client of the CPU and one of the GPU have these words.
        markers: &["RESOURCE_EXHAUSTED: Out of memory allocating "],
        read: |line, _, _| {
            let mut message = line.message(Program::Jax, MessageKind::Allocation);
            message.requested = size_after(line.from, "allocating ");
            message.memory = Memory::Unknown;
            Some(message)
        },
    },
    Reader {
        // A kernel that XLA compiled wants more of a multiprocessor's shared memory, or of a TPU core's.
        markers: &[
            "Shared memory size limit exceeded",
            "memory space vmem",
            "memory space smem",
            "exceeded scoped vmem limit by",
        ],
        read: on_chip,
    },
    Reader {
        markers: &["Failed to allocate request for "],
        read: |line, noted, _| {
            let mut message = line.message(Program::Jax, MessageKind::Allocation);
            // The exact size stands in parentheses.
            message.requested = between(line.from, "(", ")").and_then(size);
            message.device = after(line.from, "on device ordinal ").and_then(index);
            arena(&mut message, noted);
            Some(message)
        },
    },
    Reader {
        markers: &["Ran out of memory in memory space hbm"],
        read: |line, _, _| {
            let mut message = line.message(Program::Jax, MessageKind::Allocation);
            message.requested = size_after(line.from, "Used ");
            message.total = after(line.from, "Used ").and_then(|rest| size_after(rest, " of "));
            message.hardware = Hardware::Tpu;
            Some(message)
        },
    },
    Reader {
        // Loading a program onto a TPU, or a buffer.
        markers: &["Attempting to reserve ", "Attempting to allocate "],
        read: |line, noted, _| {
            if !line.from.contains("That was not possible") {
                return None;
            }
            let mut message = line.message(Program::Jax, MessageKind::Allocation);
            message.requested =
                after(line.from, " to ").and_then(|rest| size(rest.split_once(' ')?.1));
            message.free = size_after(line.from, "There are ");
            message.device = noted.tpu.take();
            message.hardware = Hardware::Tpu;
            Some(message)
        },
    },
    Reader {
        markers: &["Exception in device=TPU:"],
        read: |line, noted, _| {
            noted.tpu = after(line.from, "TPU:").and_then(index);
            None
        },
    },
    Reader {
        // It lists what holds the most.
        markers: &[
            "Total hbm usage",
            "Program hbm requirement",
            "HLO temp ",
            "Largest program allocations in",
        ],
        read: |line, _, before| {
            let before = before.filter(|before| before.program == Program::Jax)?;
            before.setting = Some("lists what holds it");
            before.last = line.part;
            None
        },
    },
    Reader {
        // NCCL asked, for XLA.
        markers: &["could not allocate collective of size: "],
        read: |line, _, before| {
            let requested = size_after(line.from, "of size: ");
            if let Some(before) = before.filter(|before| before.program == Program::Nccl) {
                before.requested = before.requested.or(requested);
                before.inside = Some(Program::Jax);
                before.last = line.part;
                return None;
            }
            let mut message = line.message(Program::Nccl, MessageKind::Nccl);
            message.inside = Some(Program::Jax);
            message.requested = requested;
            Some(message)
        },
    },
    Reader {
        // After lines for information it went on.
        markers: &[
            "Successfully opened dynamic library",
            "The caller indicates that this is not a failure",
        ],
        read: |_, _, before| {
            let before = before.filter(|before| before.program == Program::Tensorflow)?;
            before.handled |= before.text.starts_with("I ") || before.text.contains(": I ");
            None
        },
    },
    Reader {
        markers: &["HBM capacity "],
        read: |line, _, before| {
            if let Some(before) = before
                && before.hardware == Hardware::Tpu
            {
                before.total = before.total.or(size_after(line.from, "capacity "));
            }
            None
        },
    },
    Reader {
        markers: &["exceeds 10% of free system memory"],
        read: |line, _, before| {
            let mut message = line.message(Program::Tensorflow, MessageKind::Allocation);
            message.memory = Memory::Host;
            message.requested = size_after(line.text, "Allocation of ");
            message.handled = true;
            or_join(before, message)
        },
    },
    Reader {
        markers: &["an out of memory trying to allocate "],
        read: allocator,
    },
    Reader {
        markers: &["bytes) from device: "],
        read: driver,
    },
    Reader {
        markers: &[
            " bytes on host: ",
            "could not allocate pinned host memory of size: ",
        ],
        read: pinned,
    },
    Reader {
        markers: &["bytes unified memory; result: CUDA_ERROR_OUT_OF_MEMORY"],
        read: |line, _, before| {
            let mut message = line.message(of_file(line.text), MessageKind::Allocation);
            message.requested = size_after(line.text, "failed to alloc ");
            or_join(before, message)
        },
    },
    Reader {
        markers: &["Dst tensor is not initialized"],
        read: |line, _, before| {
            let mut message = line.message(Program::Tensorflow, MessageKind::Allocation);
            // The last device that the line names is where the tensor should go.
            message.device = line
                .text
                .rsplit_once("device:GPU:")
                .and_then(|(_, number)| index(number));
            or_join(before, message)
        },
    },
    Reader {
        // TensorFlow's eager operators: the device stands in the name of the function.
        markers: &["failed to allocate memory [Op:"],
        read: |line, noted, _| {
            let mut message = line.message(Program::Tensorflow, MessageKind::Allocation);
            (message.memory, message.device) = place(line.text);
            if message.memory == Memory::Device {
                arena(&mut message, noted);
            }
            Some(message)
        },
    },
    Reader {
        // cuDNN's algorithms are tried at compile time, and want scratch memory.
        markers: &[
            "Failed to determine best cudnn convolution algorithm",
            "No algorithm worked!",
            "Failed to get convolution algorithm",
            "Blas GEMM launch failed",
            "All configs failed",
            "all configs failed",
        ],
        read: |line, noted, before| {
            let xla = ["Failed to determine", "All configs", "all configs"]
                .iter()
                .any(|words| line.from.starts_with(words));
            let tensorflow = !xla || after_tensorflow(line, noted);
            let program = if tensorflow {
                Program::Tensorflow
            } else {
                Program::Jax
            };
            let mut message = line.message(program, MessageKind::NoAlgorithm);
            message.memory = Memory::Unknown;
            or_join(before, message)
        },
    },
    Reader {
        // What XLA says in words that no reader above knows.
        markers: &[
            "XlaRuntimeError: RESOURCE_EXHAUSTED",
            "JaxRuntimeError: RESOURCE_EXHAUSTED",
            "bytes for new constant",
        ],
        read: |line, _, _| {
            let mut message = line.message(Program::Jax, MessageKind::Allocation);
            message.memory = Memory::Unknown;
            message.requested = size_after(line.text, "ailed to allocate ");
            Some(message)
        },
    },
    Reader {
        markers: &["EigenAllocator for GPU ran out of memory"],
        read: |line, _, before| {
            let mut message = line.message(Program::Tensorflow, MessageKind::Allocation);
            message.requested = size_after(line.from, "allocating ").filter(|size| size.0 > 0);
            or_join(before, message)
        },
    },
    Reader {
        markers: &[
            "tensorflow.python.framework.errors",
            "ResourceExhaustedError",
        ],
        read: |line, noted, _| {
            noted.tensorflow_line = Some(line.part);
            None
        },
    },
    Reader {
        markers: &[
            "BFCAllocator dump for ",
            "Bin (",
            "Chunk State:",
            " | Requested Size: ",
            "Next region of size ",
            "InUse at ",
            "Chunk at ",
            "Free at ",
            "Free  at ",
            "Summary of in-use Chunks by size",
            " Chunks of size ",
            "Sum Total of in-use chunks",
            "Allocator memory summary: ",
            "Spatial partitioning summary ",
            "Allocator region growth hint",
            "] **",
            "] *_",
            "] __",
            "] _*",
        ],
        read: chunk,
    },
    Reader {
        markers: &["Limit:  ", "InUse:  "],
        read: figures,
    },
    Reader {
        // What the driver says of a GPU when TensorFlow starts; the first versions have a line for each figure.
        markers: &[
            "totalMemory: ",
            "freeMemory: ",
            "Total memory: ",
            "Free memory: ",
        ],
        read: |line, noted, _| {
            let [total, free] = &mut noted.device;
            let either = |one: &str, other: &str| {
                size_after(line.text, one).or_else(|| size_after(line.text, other))
            };
            *total = either("totalMemory: ", "Total memory: ").or(*total);
            *free = either("freeMemory: ", "Free memory: ").or(*free);
            None
        },
    },
];

/// `OOM when allocating tensor with shape[…] and type float on /job:…/device:GPU:0 by allocator GPU_0_bfc`.
fn tensor(line: &Line<'_>, noted: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::Tensorflow, MessageKind::Allocation);
    let shape = shape(line.from)?;
    let element = after(line.from, "] and type ").and_then(word);
    message.requested = element.and_then(|element| array_bytes(&shape, &element));
    message.allocator = after(line.from, " by allocator ").and_then(word);
    (message.memory, message.device) = place(line.from);
    // The allocator that printed its figures just before is the GPU's: the host's has none.
    if message.memory == Memory::Unknown && noted.arena.iter().all(Option::is_some) {
        message.memory = Memory::Device;
    }
    if message.memory == Memory::Device {
        arena(&mut message, noted);
    }
    Some(message)
}

/// `[2,3]`; the first versions wrote `shapedim { size: 2 } dim { size: 3 }`.
fn shape(text: &str) -> Option<Cow<'_, str>> {
    let Some(sides) = after(text, "shapedim {") else {
        return between(text, "[", "]").map(Cow::Borrowed);
    };
    let sides = sides.lines().next()?.split("size: ").skip(1);
    let sides: Option<Vec<String>> = sides
        .map(|side| integer(side).map(|side| side.to_string()))
        .collect();
    Some(Cow::Owned(sides?.join(",")))
}

/// The memory and the number of a device: `/device:GPU:0`, `/device:DML:0`, `/device:CPU:0`.
fn place(text: &str) -> (Memory, Option<u32>) {
    let lower = text.to_ascii_lowercase();
    let Some((kind, number)) = after(&lower, "device:").and_then(|rest| rest.split_once(':'))
    else {
        return (Memory::Unknown, None);
    };
    match kind {
        "cpu" | "xla_cpu" => (Memory::Host, None),
        _ if kind.len() < 16 && index(number).is_some() => (Memory::Device, index(number)),
        _ => (Memory::Unknown, None),
    }
}

/// `requested 4194304, available: 101376`; `Used 65.05M of 64.00M vmem`; `size 18.50M and limit 16.00M`.
fn on_chip(line: &Line<'_>, _: &mut Noted, before: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::Jax, MessageKind::OnChip);
    message.memory = Memory::OnChip;
    message.requested = size_after(line.from, "requested ")
        .or_else(|| size_after(line.from, "Used "))
        .or_else(|| size_after(line.text, "with size "));
    message.total = size_after(line.from, "available: ")
        .or_else(|| after(line.from, "Used ").and_then(|rest| size_after(rest, " of ")))
        .or_else(|| size_after(line.text, "and limit "));
    if line.from.contains("memory space vmem") || line.from.contains("memory space smem") {
        message.hardware = Hardware::Tpu;
        // Both are rounded: by how much it is too large says more.
        message.requested = message
            .requested
            .filter(|asked| Some(*asked) != message.total);
    }
    or_join(before, message)
}

/// `failed to alloc 966367744 bytes on host: …`, then `could not allocate pinned host memory of size: …`.
fn pinned(line: &Line<'_>, _: &mut Noted, before: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(of_file(line.text), MessageKind::Allocation);
    message.memory = Memory::Host;
    message.requested = size_after(line.text, "failed to alloc ")
        .or_else(|| size_after(line.text, "failed to allocate "))
        .or_else(|| size_after(line.from, "memory of size: "));
    message.allocator = Some("pinned memory".to_owned());
    message.requested?;
    or_join(before, message)
}

/// The node that a tensor was for: where a message before it says neither device nor type.
fn node(line: &Line<'_>, noted: &mut Noted, before: Option<&mut OomMessage>) -> Option<OomMessage> {
    let before = before.filter(|before| {
        before.program == Program::Tensorflow
            && (before.memory == Memory::Unknown || before.device.is_none())
            && before.memory != Memory::Host
            && line.part == before.last + 1
    })?;
    let lower = line.from.to_ascii_lowercase();
    let place = between(&lower, "\"", "\"")?;
    if let Some((_, number)) = place.rsplit_once("gpu:") {
        before.memory = Memory::Device;
        before.device = index(number);
        arena(before, noted);
    } else if place.contains("cpu:") {
        before.memory = Memory::Host;
    }
    let element = match after(line.text, "T=DT_").and_then(word)?.as_str() {
        name if name.starts_with("HALF") || name.starts_with("BFLOAT16") => "half",
        name if name.starts_with("FLOAT") || name.starts_with("INT32") => "float",
        name if name.starts_with("DOUBLE") || name.starts_with("INT64") => "double",
        _ => return None,
    };
    let shape = after(&before.text, "allocating tensor ")
        .and_then(shape)
        .and_then(|shape| array_bytes(&shape, element));
    before.requested = before.requested.or(shape);
    None
}

/// `Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.02GiB`; older ones do not name it.
fn allocator(line: &Line<'_>, noted: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    // Newer ones name no folder, and JAX no operator.
    let no_operator = line.text.trim_end().ends_with(" requested by op");
    let program = if no_operator && !line.text.contains('/') {
        Program::Jax
    } else {
        of_file(line.text)
    };
    let mut message = line.message(program, MessageKind::Allocation);
    message.requested = size_after(line.from, "to allocate ");
    message.handled = line.from.contains("this is not a failure");
    message.allocator = between(line.text, "Allocator (", ")").and_then(word);
    if let Some(name) = &message.allocator {
        let name = name.to_ascii_lowercase();
        // `cuda_host_bfc`, `gpu_host_bfc`: pinned memory of the host.
        if name.contains("host") || name.contains("cpu") {
            message.memory = Memory::Host;
        } else {
            message.device = after(&name, "gpu_").and_then(index);
        }
    }
    arena(&mut message, noted);
    Some(message)
}

/// `failed to allocate 2.12G (2282521344 bytes) from device: …`: the arena asks for less and less.
fn driver(
    line: &Line<'_>,
    noted: &mut Noted,
    before: Option<&mut OomMessage>,
) -> Option<OomMessage> {
    // ROCm's older versions print the number alone.
    let statuses = [
        "OUT_OF_MEMORY",
        "OutOfMemory",
        "RESOURCE_EXHAUSTED",
        "hipError_t(1002)",
    ];
    if !statuses.iter().any(|status| line.from.contains(status)) {
        return None;
    }
    let mut message = line.message(of_file(line.text), MessageKind::Allocation);
    let rest = after(line.text, "failed to allocate ")?;
    message.requested = between(rest, "(", ")").and_then(size);
    message.setting = Some("what is free");
    [message.total, message.free] = noted.device;
    or_join(before, message)
}

/// A line of the list that an allocator prints beside its message.
fn chunk(
    line: &Line<'_>,
    noted: &mut Noted,
    before: Option<&mut OomMessage>,
) -> Option<OomMessage> {
    if !line.text.contains("bfc_allocator") {
        return None;
    }
    let before =
        before.filter(|before| matches!(before.program, Program::Jax | Program::Tensorflow));
    let pool = match before {
        Some(before) => {
            before.last = line.part;
            &mut before.pool
        }
        None => &mut noted.pool,
    };
    pool.get_or_insert_default().read_line(line.text);
    None
}

/// TensorFlow and JAX build XLA from other folders.
fn of_file(text: &str) -> Program {
    if text.contains("external/xla/") || text.contains("external/org_tensorflow/") {
        Program::Jax
    } else {
        Program::Tensorflow
    }
}

fn after_tensorflow(line: &Line<'_>, noted: &Noted) -> bool {
    /// Lines between the name of an error and its words.
    const NEAR: usize = 3;
    line.text.contains("ResourceExhaustedError")
        || noted
            .tensorflow_line
            .is_some_and(|number| line.part - number <= NEAR)
}

/// The figures that an allocator printed before the message.
fn arena(message: &mut OomMessage, noted: &mut Noted) {
    let [limit, in_use] = std::mem::take(&mut noted.arena);
    message.total = message.total.or(limit);
    message.in_use = message.in_use.or(in_use);
    message.pool = noted.pool.take();
}

/// `Limit:  89.77GiB`, `InUse:  81.00GiB`: of the message before, or of the one that comes.
fn figures(
    line: &Line<'_>,
    noted: &mut Noted,
    mut before: Option<&mut OomMessage>,
) -> Option<OomMessage> {
    let (name, value) = line.text.trim().split_once(':')?;
    let value = size(value);
    let place = match name {
        "Limit" => 0,
        "InUse" => 1,
        _ => return None,
    };
    if let Some(figure) = noted.arena.get_mut(place) {
        *figure = value;
    }
    if let Some(account) = before
        .as_deref_mut()
        .filter(|before| before.setting == Some("an account"))
    {
        // Its own figures, exact.
        let figure = if place == 0 {
            &mut account.total
        } else {
            &mut account.in_use
        };
        *figure = value.or(*figure);
    } else if let Some(before) = before
        && [Some(before.program), before.inside]
            .iter()
            .any(|program| matches!(program, Some(Program::Jax | Program::Tensorflow)))
    {
        // The allocator of the driver's pool has no limit of its own.
        let value = value.filter(|value| value.0 > 0);
        let figure = if place == 0 {
            &mut before.total
        } else {
            &mut before.in_use
        };
        *figure = figure.or(value);
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::text::tests::one;
    use crate::text::{Memory, Program};
    use crate::units::Bytes;

    #[test]
    fn allocators_of_the_gpu_and_of_the_host() {
        let text = |name: &str| {
            format!(
                "tensorflow/core/bfc_allocator.cc:273] Allocator ({name}) ran out of memory trying to allocate 3.50GiB."
            )
        };
        let gpu = one(&text("GPU_1_bfc"));
        assert_eq!((gpu.memory, gpu.device), (Memory::Device, Some(1)));
        assert_eq!(gpu.requested, Some(Bytes(7 << 29)));
        for name in ["cuda_host_bfc", "gpu_host_bfc", "cpu", "mklcpu"] {
            let host = one(&text(name));
            assert_eq!((host.memory, host.device), (Memory::Host, None), "{name}");
        }
    }

    #[test]
    fn jax_and_tensorflow_are_told_apart() {
        assert_eq!(
            one("Out of memory while trying to allocate 24 bytes.").program,
            Program::Jax
        );
        let text = "errors_impl.ResourceExhaustedError: 1 root error(s) found.\n  (0) Resource exhausted: Out of memory while trying to allocate 24 bytes.";
        assert_eq!(one(text).program, Program::Tensorflow);
        assert_eq!(
            one("Out of memory while trying to allocate room for it").program,
            Program::Unknown
        );
    }
}
