//! llama.cpp, and what is built on it (Ollama, llamafile).

use super::program::{Memory, Program};
use super::readers::{Line, Noted, Reader, continues, join};
use super::words::{after, index, size, size_after};
use super::{MessageKind, OomMessage};

pub(super) const READERS: &[Reader] = &[
    Reader {
        // Ollama asks the driver how much is free, and starts its runner whatever that says.
        markers: &["failed to get device context 2"],
        read: |line, _, _| {
            let mut message = line.message(Program::Cuda, MessageKind::Cuda);
            message.inside = Some(Program::Ollama);
            message.handled = true;
            Some(message)
        },
    },
    Reader {
        markers: &["cudaMalloc failed: out of memory"],
        read: |line, _, before| {
            own(line, before.as_deref())?;
            let mut message = line.message(Program::LlamaCpp, MessageKind::Allocation);
            message.requested = size_after(line.text, "allocating ");
            message.device = after(line.text, " on device ").and_then(index);
            exact(before, message)
        },
    },
    Reader {
        markers: &[
            " buffer of size ",
            "failed to allocate buffer of size ",
            "cpu_buffer_type_alloc_buffer: failed to allocate buffer",
        ],
        read: buffer,
    },
    Reader {
        // Metal: `failed to allocate 'data' buffer, size = 19283.21 MiB`.
        markers: &[" buffer, size = "],
        read: |line, _, before| {
            after(line.text, "failed to allocate ")?;
            let mut message = line.message(Program::LlamaCpp, MessageKind::Allocation);
            message.requested = size_after(line.from, "size = ");
            exact(before, message)
        },
    },
    Reader {
        // OpenCL and others; SYCL counts in bytes.
        markers: &[
            "_buffer_type_alloc_buffer: failed to allocate ",
            "can't allocate ",
        ],
        read: |line, _, before| {
            let (name, rest) = line
                .text
                .split_once("_buffer_type_alloc_buffer: failed to allocate ")
                .or_else(|| line.text.split_once("can't allocate "))?;
            if !name.contains("ggml") && !name.contains("gml_backend") {
                return None;
            }
            let mut message = line.message(Program::LlamaCpp, MessageKind::Allocation);
            message.requested = Some(size(rest)?);
            exact(before, message)
        },
    },
    Reader {
        // What follows from a failure, or all that a log has of it.
        markers: &[
            "error loading model: unable to allocate ",
            "failed to allocate buffer for kv cache",
            "failed to allocate compute pp buffers",
        ],
        read: |line, _, before| {
            let mut message = line.message(Program::LlamaCpp, MessageKind::Allocation);
            if line.from.contains("CPU buffer") {
                message.memory = Memory::Host;
            } else if line.from.contains("allocate backend buffer") {
                // Each backend's has this name.
                message.memory = Memory::Unknown;
            }
            exact(before, message)
        },
    },
    Reader {
        // Of builds from before 2024: a pool of the host's memory.
        markers: &[
            "not enough space in the context's memory pool",
            "ctx->mem_buffer != NULL",
        ],
        read: |line, _, before| {
            let mut message = line.message(Program::LlamaCpp, MessageKind::Allocation);
            message.memory = Memory::Host;
            message.requested = size_after(line.from, "needed ");
            message.free = size_after(line.from, "available ");
            exact(before, message)
        },
    },
    Reader {
        // Its own buffer, whose size it computed before.
        markers: &["not enough space in the buffer"],
        read: |line, _, before| {
            let mut message = line.message(Program::LlamaCpp, MessageKind::Budget);
            message.memory = Memory::Unknown;
            message.requested = size_after(line.from, "needed ");
            message.free = size_after(line.from, "largest block available ")
                .or_else(|| size_after(line.from, "available "));
            message.setting = Some("workspace");
            message.allocator = Some("ggml's buffer for computing".to_owned());
            exact(before, message)
        },
    },
    Reader {
        markers: &["kIOGPUCommandBufferCallbackErrorOutOfMemory"],
        read: |line, _, before| {
            own(line, before.as_deref())?;
            exact(
                before,
                line.message(Program::LlamaCpp, MessageKind::Allocation),
            )
        },
    },
    Reader {
        // The model is used all the same, and may be paged out.
        markers: &["failed to mlock "],
        read: |line, _, before| {
            let mut message = line.message(Program::LlamaCpp, MessageKind::Allocation);
            message.memory = Memory::Host;
            message.allocator = Some("locked memory".to_owned());
            message.requested = size_after(&line.from.replace("-byte", " bytes"), "mlock ");
            message.handled = true;
            exact(before, message)
        },
    },
    Reader {
        // A limit of the driver for one buffer, however much memory is free.
        markers: &["exceeds device memory allocation limit", "maxBufferLength"],
        read: |line, _, before| {
            let before = before.filter(|before| before.program == Program::LlamaCpp)?;
            before.setting = Some("one allocation");
            before.last = line.part;
            None
        },
    },
    Reader {
        markers: &["Device memory allocation of size "],
        read: |line, _, before| {
            let mut message = line.message(Program::LlamaCpp, MessageKind::Allocation);
            message.requested = size_after(line.from, "of size ");
            exact(before, message)
        },
    },
    Reader {
        markers: &["ErrorOutOfDeviceMemory", "VK_ERROR_OUT_OF_DEVICE_MEMORY"],
        read: |line, _, before| {
            own(line, before.as_deref())?;
            // Vulkan has the same code for the host's memory that the GPU sees.
            let pinned = |before: &OomMessage| before.allocator.as_deref() == Some("pinned memory");
            if before.as_deref().is_some_and(pinned) {
                before?.last = line.part;
                return None;
            }
            exact(
                before,
                line.message(Program::LlamaCpp, MessageKind::Allocation),
            )
        },
    },
    Reader {
        // CUDA's error, and which GPU it was on.
        markers: &["current device: "],
        read: |line, _, before| {
            let before = before.filter(|before| before.inside == Some(Program::LlamaCpp))?;
            before.device = before
                .device
                .or(after(line.from, "device: ").and_then(index));
            None
        },
    },
    Reader {
        markers: &[
            "insufficient VRAM to load any model layers",
            "memory layout cannot be allocated",
        ],
        read: |line, _, before| {
            exact(
                before,
                line.message(Program::Ollama, MessageKind::Allocation),
            )
        },
    },
    Reader {
        // Ollama, before it loads a model.
        markers: &["model requires more system memory ("],
        read: |line, _, before| {
            let mut message = line.message(Program::Ollama, MessageKind::Budget);
            message.memory = Memory::Host;
            message.requested = size_after(line.from, "memory (");
            message.free = size_after(line.from, "available (");
            exact(before, message)
        },
    },
    Reader {
        // Ollama's guess when its runner ends before it answers.
        markers: &["may not have enough available memory to run this model"],
        read: |line, _, before| {
            let mut message = line.message(Program::Ollama, MessageKind::Allocation);
            message.memory = Memory::Unknown;
            message.setting = Some("guess");
            exact(before, message)
        },
    },
    Reader {
        // It takes pageable memory then.
        markers: &["of pinned memory: ", "Failed to allocate pinned memory"],
        read: |line, _, _| {
            let mut message = line.message(Program::LlamaCpp, MessageKind::Allocation);
            message.memory = Memory::Host;
            message.requested = size_after(line.text, "failed to allocate ");
            message.allocator = Some("pinned memory".to_owned());
            message.handled = true;
            Some(message)
        },
    },
];

/// Whether a line is llama.cpp's: others print the same words of CUDA's, Vulkan's and Metal's.
fn own(line: &Line<'_>, before: Option<&OomMessage>) -> Option<()> {
    let words = ["ggml", "llama", "MiB on device "];
    let own = words.iter().any(|word| line.text.contains(word));
    (own || before.is_some_and(|before| before.program == Program::LlamaCpp)).then_some(())
}

/// `failed to allocate CUDA0 buffer of size 151851674624`; the name of the CPU's buffer is `CPU`.
fn buffer(line: &Line<'_>, _: &mut Noted, before: Option<&mut OomMessage>) -> Option<OomMessage> {
    let rest = after(line.text, "failed to allocate ")?;
    let mut message = line.message(Program::LlamaCpp, MessageKind::Allocation);
    let (name, rest) = rest
        .split_once("buffer")
        .filter(|(name, _)| name.len() < 40)?;
    message.requested = rest.strip_prefix(" of size ").and_then(size);
    let name = name.trim();
    if name == "CPU" || line.text.contains("cpu_buffer_type") {
        message.memory = Memory::Host;
    } else if name.ends_with("_Host") {
        message.memory = Memory::Host;
        message.allocator = Some("pinned memory".to_owned());
    } else {
        message.device = index(name.trim_start_matches(|c: char| !c.is_ascii_digit()));
    }
    exact(before, message)
}

/// The second line of a failure has the exact size; the first one of the GPU and of Metal has it in MiB.
fn exact(before: Option<&mut OomMessage>, next: OomMessage) -> Option<OomMessage> {
    let Some(before) = before.filter(|before| continues(before, &next)) else {
        return Some(next);
    };
    let rounded = [" MiB on device ", " buffer, size = "];
    if rounded.iter().any(|words| before.text.contains(words)) && next.requested.is_some() {
        before.requested = next.requested;
    }
    join(before, next);
    None
}

#[cfg(test)]
mod tests {
    use crate::text::Memory;
    use crate::text::tests::one;
    use crate::units::Bytes;

    #[test]
    fn the_two_lines_of_a_failure_are_one_message() {
        let message = one(
            "allocating 144.00 MiB on device 4: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n: failed to allocate CUDA4 buffer of size 150995968",
        );
        assert_eq!(message.requested, Some(Bytes(150_995_968)));
        assert_eq!(message.device, Some(4));
        assert_eq!(message.memory, Memory::Device);
    }

    #[test]
    fn ollama_asks_for_the_hosts_memory() {
        let message =
            one("Error: model requires more system memory (5.5 GiB) than is available (3.5 GiB)");
        assert_eq!(message.memory, Memory::Host);
        assert_eq!(message.requested, Some(Bytes(11 << 29)));
        assert_eq!(message.free, Some(Bytes(7 << 29)));
    }

    #[test]
    fn buffers_of_the_cpu_and_pinned_ones_are_host_memory() {
        for text in [
            "ggml_gallocr_reserve_n: failed to allocate CPU buffer of size 84940800",
            "alloc_tensor_range: failed to allocate CUDA_Host buffer of size 84940800",
            "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 84940800",
        ] {
            let message = one(text);
            assert_eq!(message.memory, Memory::Host, "{text}");
            assert_eq!(message.requested, Some(Bytes(84_940_800)), "{text}");
        }
    }
}
