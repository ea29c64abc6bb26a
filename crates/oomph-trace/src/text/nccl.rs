//! NCCL: buffers on the GPU, segments in the host's shared memory, pages registered for the network.

use super::program::{Memory, Program};
use super::readers::{Line, Reader, or_join};
use super::words::{after, index, integer, size, size_after, word};
use super::{MessageKind, OomMessage};

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["Failed to CUDA malloc "],
        read: |line, _, before| {
            let mut message = buffers(line);
            message.requested = after(line.from, "malloc ").and_then(size);
            or_join(before, message)
        },
    },
    Reader {
        markers: &["Failed to CUDA calloc "],
        read: |line, _, before| {
            let mut message = buffers(line);
            let rest = after(line.from, "calloc ")?;
            message.requested = size(rest.strip_prefix("async ").unwrap_or(rest));
            // A rank's error quotes the line of its own process, which is not always the last one.
            or_join(
                before.filter(|before| before.pid.is_none() || message.pid.is_some()),
                message,
            )
        },
    },
    Reader {
        markers: &["Failed to CUDA host alloc "],
        read: |line, _, before| {
            let mut message = buffers(line);
            message.memory = Memory::Host;
            // The device is only where it was noticed.
            message.device = None;
            message.requested = size_after(line.from, "host alloc ");
            or_join(before, message)
        },
    },
    Reader {
        markers: &["Cuda failure "],
        read: |line, noted, before| {
            noted.refused = (!line.from.contains("out of memory")).then_some(line.part);
            if noted.refused.is_none() {
                or_join(before, buffers(line))
            } else {
                None
            }
        },
    },
    Reader {
        markers: &[
            "failed to extend /dev/shm/nccl",
            "Error while creating shared memory segment ",
        ],
        read: |line, noted, before| {
            /// Lines between what failed and why.
            const NEAR: usize = 3;
            // A failure of CUDA's that does not name memory is why.
            let refused = |part| line.part - part <= NEAR;
            if noted.refused.is_some_and(refused) {
                return None;
            }
            let mut message = buffers(line);
            message.memory = Memory::Host;
            // The device is only where it was noticed.
            message.device = None;
            message.allocator = Some("/dev/shm".to_owned());
            message.requested = after(line.from, "/dev/shm")
                .and_then(|rest| size_after(rest, " to "))
                .or_else(|| size_after(line.from, "(size "));
            or_join(before, message)
        },
    },
    Reader {
        // The file system that is full is the one of shared memory.
        markers: &[
            "NCCL WARN Call to posix_fallocate",
            "NCCL WARN Call to ftruncate",
            "NCCL WARN Call to shm_open",
            "NCCL WARN Call to mmap",
            "NCCL WARN Unable to allocate shared memory",
            "NCCL WARN Unable to create shared memory",
        ],
        read: |line, _, before| {
            let full = ["No space left", "Cannot allocate memory", "Unable to"];
            full.iter().find(|words| line.from.contains(**words))?;
            let mut message = buffers(line);
            message.memory = Memory::Host;
            // The device is only where it was noticed.
            message.device = None;
            message.allocator = Some("/dev/shm".to_owned());
            or_join(before, message)
        },
    },
    Reader {
        markers: &["NCCL WARN Call to ibv_"],
        read: |line, _, before| {
            if !line.from.contains("Cannot allocate memory") {
                return None;
            }
            let mut message = buffers(line);
            message.memory = Memory::Host;
            // The device is only where it was noticed.
            message.device = None;
            message.allocator = Some("locked memory".to_owned());
            or_join(before, message)
        },
    },
    Reader {
        // In other words: of which memory, they do not say.
        markers: &["NCCL WARN"],
        read: |line, _, before| {
            let lower = line.near().to_ascii_lowercase();
            let failed = [
                "allocation failed",
                "failed to alloc",
                "cannot allocate memory",
            ];
            failed.iter().find(|words| lower.contains(**words))?;
            let mut message = buffers(line);
            message.memory = Memory::Unknown;
            or_join(before, message)
        },
    },
];

/// A line of NCCL begins with `HOST:PROCESS:THREAD [DEVICE]`.
fn buffers(line: &Line<'_>) -> OomMessage {
    let mut message = line.message(Program::Nccl, MessageKind::Nccl);
    if let Some((head, rest)) = line.text.split_once(" [")
        && let Some((_, thread)) = head.rsplit_once(':')
        && thread.bytes().all(|byte| byte.is_ascii_digit())
        && let [host, pid, _] = head.split(':').collect::<Vec<_>>().as_slice()
    {
        message.host = word(host);
        message.pid = integer(pid);
        if rest
            .split_once(']')
            .is_some_and(|(number, _)| number.len() <= 3)
        {
            message.device = index(rest);
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use crate::text::Memory;
    use crate::text::tests::{all, one};
    use crate::units::Bytes;

    #[test]
    fn two_lines_are_one_message_of_a_process() {
        let message = one(
            "node2:24881:25568 [2] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'\n\nnode2:24881:25568 [2] include/alloc.h:185 NCCL WARN Failed to CUDA calloc async 10485760 bytes\n",
        );
        assert_eq!(message.requested, Some(Bytes(10_485_760)));
        assert_eq!(message.device, Some(2));
        assert_eq!(message.pid, Some(24881));
        assert_eq!(message.host.as_deref(), Some("node2"));
        // Why a segment could not be made is no shortage of it.
        let refused = one(
            "x:1:2 [0] NCCL WARN Cuda failure 'invalid argument'\n\nx:1:2 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-a (size 4096)",
        );
        assert_eq!(refused.memory, Memory::None);
    }

    #[test]
    fn processes_of_a_node_are_several_messages() {
        let found = all(
            "node2:24881:25568 [2] NCCL WARN Cuda failure 'out of memory'\nnode2:24882:25569 [3] NCCL WARN Cuda failure 'out of memory'\n",
        );
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_quoted_figure_is_not_of_the_process_before() {
        let found = all(
            "n2:81:8 [2] NCCL WARN Cuda failure 2 'out of memory'\nn2:82:9 [3] NCCL WARN Cuda failure 2 'out of memory'\n[rank2]: Failed to CUDA calloc async 33554432 bytes",
        );
        let of_third = found
            .iter()
            .find(|message| message.device == Some(3))
            .unwrap();
        assert_eq!(of_third.requested, None);
    }

    #[test]
    fn shared_memory_is_the_hosts() {
        let message = one(
            "u:9621:9691 [6] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes",
        );
        assert_eq!(message.memory, Memory::Host);
        assert_eq!(message.device, None);
        assert_eq!(message.requested, Some(Bytes(5_967_876)));
    }
}
