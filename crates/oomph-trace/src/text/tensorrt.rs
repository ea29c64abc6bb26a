//! TensorRT and TensorRT-LLM.

use super::program::{Memory, Program};
use super::readers::{Line, Reader, continues, join, or_join};
use super::words::{after, index, size, size_after};
use super::{MessageKind, OomMessage};
use crate::units::Bytes;

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["Tactic Device request: "],
        read: |line, _, before| {
            let mut message = line.message(Program::TensorRt, MessageKind::Allocation);
            message.requested = size_after(line.from, "request: ");
            message.free = size_after(line.from, "Available: ");
            message.handled = true;
            // Both figures are of one attempt.
            match before.filter(|before| continues(before, &message)) {
                Some(before) if before.handled && before.free.is_none() => {
                    before.requested = message.requested;
                    join(before, message);
                    None
                }
                before => or_join(before, message),
            }
        },
    },
    Reader {
        markers: &["Some tactics do not have sufficient workspace memory"],
        read: |line, _, before| {
            let mut message = line.message(Program::TensorRt, MessageKind::Allocation);
            message.handled = true;
            or_join(before, message)
        },
    },
    Reader {
        // What it timed then did not fit.
        markers: &["GPU memory allocation error during getBestTactic"],
        read: |line, _, before| {
            let mut message = line.message(Program::TensorRt, MessageKind::Allocation);
            message.handled = true;
            or_join(before, message)
        },
    },
    Reader {
        // Without a workspace that is large enough no implementation is left.
        markers: &[
            "Could not find any implementation for node ",
            "could not find any implementation for node ",
        ],
        read: |line, _, before| {
            let mut message = line.message(Program::TensorRt, MessageKind::NoAlgorithm);
            let handled = before.as_ref().is_some_and(|before| before.handled);
            match before.filter(|before| continues(before, &message)) {
                Some(before) if handled => {
                    before.handled = false;
                    before.kind = MessageKind::NoAlgorithm;
                    join(before, message);
                    None
                }
                Some(before) => {
                    join(before, message);
                    None
                }
                None => {
                    message.memory = Memory::Unknown;
                    Some(message)
                }
            }
        },
    },
    Reader {
        markers: &["[TRT-LLM]", "[TensorRT-LLM]", "tensorrt_llm"],
        read: |_, _, before| {
            let before = before.filter(|before| before.program == Program::TensorRt)?;
            before.setting = Some("TensorRT-LLM");
            None
        },
    },
    Reader {
        markers: &["Executor creation failed due to insufficient GPU memory"],
        read: |line, _, before| {
            let mut message = line.message(Program::TensorRt, MessageKind::Allocation);
            message.setting = Some("TensorRT-LLM");
            message.rank = after(line.text, " on rank ").and_then(index);
            or_join(before, message)
        },
    },
    Reader {
        // The figures that follow it.
        markers: &[
            "Total GPU memory (GiB): ",
            "Free GPU memory before component creation attempt (GiB): ",
        ],
        read: |line, _, before| {
            let before = before.filter(|before| before.program == Program::TensorRt)?;
            let value = size(&format!("{} GiB", after(line.from, "(GiB): ")?.trim()));
            let figure = if line.from.starts_with("Total") {
                &mut before.total
            } else {
                &mut before.free
            };
            *figure = figure.or(value);
            None
        },
    },
    Reader {
        markers: &[" on requested size of "],
        read: |line, _, before| {
            let mut message = line.message(Program::TensorRt, MessageKind::Allocation);
            // In bytes or in MiB, by the version; no tactic fails for want of less than a MiB.
            message.requested = size_after(line.from, "size of ").map(|size| {
                if size < Bytes::mib(1) {
                    Bytes::mib(size.0)
                } else {
                    size
                }
            });
            message.handled = true;
            // What failed before was this tactic's.
            match before.filter(|before| continues(before, &message)) {
                Some(before) => {
                    // It logged an error as well: whether the build went on, the text does not say.
                    let error =
                        matches!(before.setting, Some("an error" | "skipped beside an error"));
                    before.handled = !error;
                    if error {
                        before.setting = Some("skipped beside an error");
                    }
                    join(before, message);
                    None
                }
                None => Some(message),
            }
        },
    },
    Reader {
        markers: &[
            "Requested amount of GPU memory (",
            "Requested amount of memory (",
        ],
        read: |line, _, before| failed(line, after(line.from, "memory (").and_then(size), before),
    },
    Reader {
        markers: &["(Requested size was "],
        read: |line, _, before| failed(line, size_after(line.from, "size was "), before),
    },
    Reader {
        markers: &[
            "Cuda Runtime (out of memory)",
            "Cuda Driver (out of memory)",
            "Cuda Error in allocate: 2",
            "DefaultAllocator::allocate",
            "OutOfMemory Error in ",
            "Error Code 2: OutOfMemory",
        ],
        read: |line, _, before| failed(line, None, before),
    },
    Reader {
        // A terminal may have broken the line.
        markers: &["CUDA runtime error in ", ")): out of memory ("],
        read: |line, _, before| {
            let own = line.text.contains("TensorRT-LLM") || line.text.contains("tensorrt_llm");
            if own && line.from.contains("out of memory") {
                failed(line, None, before)
            } else {
                None
            }
        },
    },
];

fn failed(
    line: &Line<'_>,
    requested: Option<Bytes>,
    before: Option<&mut OomMessage>,
) -> Option<OomMessage> {
    let mut message = line.message(Program::TensorRt, MessageKind::Allocation);
    message.requested = requested;
    if line.text.contains("TensorRT-LLM") || line.text.contains("tensorrt_llm") {
        // Its budget is set in other places than that of an engine.
        message.setting = Some("TensorRT-LLM");
    }
    // Older versions log the request itself as an error.
    if line.text.contains("[E]") && line.text.contains("Error Code ") {
        match before {
            Some(before) if continues(before, &message) => {
                before.setting = before.setting.or(Some("an error"));
                join(before, message);
                return None;
            }
            before => {
                message.setting = message.setting.or(Some("an error"));
                return or_join(before, message);
            }
        }
    }
    or_join(before, message)
}

#[cfg(test)]
mod tests {
    use crate::text::tests::{all, one};
    use crate::units::Bytes;

    #[test]
    fn the_lines_of_a_failure_are_one_message() {
        let message = one(
            "[E] 1: [defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)\n[W] Requested amount of GPU memory (1180463648 bytes) could not be allocated. There\n[E] 2: [safeDeserialize.cpp::load::269] Error Code 2: OutOfMemory (no further information)",
        );
        assert_eq!(message.requested, Some(Bytes(1_180_463_648)));
        assert!(!message.handled);
    }

    #[test]
    fn a_skipped_tactic_beside_an_error_is_no_warning() {
        let message = one(
            "[TRT] [W] Requested amount of GPU memory (33555480576 bytes) could not be allocated.\n[TRT] [W] UNSUPPORTED_STATESkipping tactic 2 due to insufficient memory on requested size of 33555480576 detected for tactic 0x1e.\n[TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further information)\n[TRT] [W] UNSUPPORTED_STATESkipping tactic 3 due to insufficient memory on requested size of 33555480576 detected for tactic 0x1f.",
        );
        assert_eq!(message.requested, Some(Bytes(33_555_480_576)));
        assert!(!message.handled);
    }

    #[test]
    fn a_tactic_that_was_timed_in_vain_is_of_the_gpu() {
        let message = one(
            "[W] [TRT] GPU memory allocation error during getBestTactic: 9_full\n[E] [TRT] Internal error: could not find any implementation for node 9_full, try increasing the workspace size\nBut I increase the MaxWorkspaceSize to 20G, and the lack of memory stays.",
        );
        assert_eq!(message.memory, crate::text::Memory::Device);
        assert_eq!(message.requested, None);
        assert!(!message.handled);
    }

    #[test]
    fn a_skipped_tactic_is_a_warning() {
        let message = one(
            "Tactic Device request: 538MB Available: 166MB. Device memory is insufficient to use tactic.\nSkipping tactic 3 due to insuficient memory on requested size of 538 detected for tactic 4.",
        );
        assert!(message.handled);
        assert_eq!(message.requested, Some(Bytes::mib(538)));
        assert_eq!(message.free, Some(Bytes::mib(166)));
        assert_eq!(
            all("[TensorRT-LLM][ERROR] CUDA runtime error in cudaLaunch: invalid value").len(),
            0
        );
    }
}
