//! vLLM, SGLang and Text Generation Inference: servers that divide the GPU's memory by a budget.
#![expect(clippy::unnecessary_wraps, reason = "readers share one signature")]

use super::program::Program;
use super::readers::{Line, Noted, Reader, or_join};
use super::words::{after, between, index, integer, last_word, size, size_after};
use super::{MessageKind, OomMessage, Tokens};

/// The part of a message that says how much a server's share of the GPU is too small.
pub const SHORT_OF_SHARE: &str = "too few for the cache of keys and values";

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &["No available memory for the cache blocks"],
        read: |line, _, before| or_join(before, line.message(Program::Vllm, MessageKind::Budget)),
    },
    Reader {
        // The model takes more than the share.
        markers: &["Available KV cache memory: -", "reserved for KV Cache is -"],
        read: |line, noted, before| {
            let mut message = line.message(Program::Vllm, MessageKind::Budget);
            [message.total, message.allowed] = noted.share;
            let short = line.from.split_once('-').and_then(|(_, rest)| size(rest));
            message.parts = Vec::from_iter(short.map(|short| (SHORT_OF_SHARE.to_owned(), short)));
            or_join(before, message)
        },
    },
    Reader {
        // `total_gpu_memory (8.00GiB) x gpu_memory_utilization (0.70) = 5.60GiB`
        markers: &["total_gpu_memory ("],
        read: |line, noted, _| {
            noted.share = [
                size_after(line.from, "memory ("),
                after(line.from, ") = ").and_then(size),
            ];
            None
        },
    },
    Reader {
        markers: &["is less than desired GPU memory utilization"],
        read: at_startup,
    },
    Reader {
        markers: &["KV cache is needed, which is larger than the available KV cache memory"],
        read: cache,
    },
    Reader {
        markers: &["the maximum number of tokens that can be stored in KV cache"],
        read: tokens,
    },
    Reader {
        // The request is computed again later.
        markers: &[" is preempted by PreemptionMode."],
        read: |line, _, before| {
            let mut message = line.message(Program::Vllm, MessageKind::Budget);
            message.setting = Some("--max-num-seqs");
            message.handled = true;
            or_join(before, message)
        },
    },
    Reader {
        markers: &["KV cache pool is full. Retract requests"],
        read: |line, _, before| {
            let mut message = line.message(Program::Sglang, MessageKind::Budget);
            message.setting = Some("--max-running-requests");
            message.handled = true;
            or_join(before, message)
        },
    },
    Reader {
        markers: &["CUDA out of memory occurred when warming up sampler"],
        read: |line, _, _| {
            let mut message = line.message(Program::Vllm, MessageKind::Allocation);
            message.setting = Some("--max-num-seqs");
            Some(message)
        },
    },
    Reader {
        markers: &[
            "Not enough memory. Please try to increase --mem-fraction-static",
            "Not enough memory; please try to increase --mem-fraction-static",
        ],
        read: |line, noted, before| {
            let mut message = line.message(Program::Sglang, MessageKind::Budget);
            beside_weights(&mut message, noted);
            or_join(before, message)
        },
    },
    Reader {
        // What was left for the cache of keys and values came out negative.
        markers: &["is larger than the profiled value -"],
        read: |line, noted, before| {
            let mut message = line.message(Program::Sglang, MessageKind::Budget);
            beside_weights(&mut message, noted);
            or_join(before, message)
        },
    },
    Reader {
        markers: &["Load weight end."],
        read: |line, noted, _| {
            noted.weights = [
                size_after(line.from, "mem usage="),
                size_after(line.from, "avail mem="),
            ];
            None
        },
    },
    Reader {
        markers: &[
            "Decode out of memory",
            "Prefill out of memory",
            "alloc_req_slots runs out of memory",
            "alloc_token_slots runs out of memory",
        ],
        read: |line, _, before| {
            let mut message = line.message(Program::Sglang, MessageKind::Budget);
            message.setting = Some("--max-running-requests");
            // Some have it all in one line.
            let available = ["able tokens", "able full tokens"];
            message.tokens = Some(Tokens {
                asked: after(line.from, "ry to allocate ").and_then(integer),
                available: available.iter().find_map(|words| {
                    integer(after(line.from, words)?.trim_start_matches([':', ' ']))
                }),
                free: None,
            });
            // It takes requests back and computes them again later.
            message.handled = line.from.contains("retracted");
            // The exception says it once more, below the figures.
            or_join(before, message)
        },
    },
    Reader {
        // The figures that follow it.
        markers: &[
            "ry to allocate ",
            "vailable tokens",
            "vailable full tokens",
            "valiable tokens",
            "available_size()=",
        ],
        read: |line, _, before| {
            let before = before.filter(|before| before.program == Program::Sglang)?;
            let tokens = before.tokens.as_mut()?;
            if line.from.starts_with("ry") {
                tokens.asked = after(line.from, "allocate ").and_then(integer);
            } else if line.from.starts_with("available_size()") {
                tokens.available = tokens.available.or(after(line.from, "=").and_then(integer));
            } else {
                tokens.available = after(line.from, ": ").and_then(integer);
                tokens.free = after(line.from, "available_size=").and_then(integer);
            }
            before.last = line.part;
            None
        },
    },
    Reader {
        // FlashInfer's, which both servers set up at their start.
        markers: &["in AlignedAllocator"],
        read: |line, _, _| {
            let mut message = line.message(Program::Unknown, MessageKind::Budget);
            message.requested = size_after(line.text, "with size ");
            message.allocator = Some("FlashInfer's workspace".to_owned());
            message.setting = Some("workspace");
            Some(message)
        },
    },
    Reader {
        markers: &["Not enough memory to handle "],
        read: prefill,
    },
];

/// Takes over what the weights hold, and what they left.
fn beside_weights(message: &mut OomMessage, noted: &Noted) {
    [message.in_use, message.free] = noted.weights;
}

/// `Free memory on device cuda:0 (19.77/22.05 GiB) on startup is less than desired … (0.9, 19.84 GiB)`.
fn at_startup(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let (_, figures) = line.text.split_once("ree memory on device")?;
    let mut message = line.message(Program::Vllm, MessageKind::Budget);
    let (device, figures) = figures.split_once('(')?;
    message.device = after(device, ":").and_then(index);
    let (free, rest) = figures.split_once('/')?;
    let unit = rest.split_once(' ')?.1;
    message.free = size(&format!("{free} {}", unit.get(..3)?));
    message.total = size(rest);
    message.requested = between(line.from, "(", ")")
        .and_then(|desired| after(desired, ", "))
        .and_then(size);
    Some(message)
}

/// `(24.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.97 GiB)`.
fn cache(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::Vllm, MessageKind::Budget);
    let (head, _) = line.text.split_once(" KV cache is needed")?;
    // A number and its unit, with or without a parenthesis before them.
    if let Some((rest, unit)) = head.rsplit_once(' ') {
        let number = last_word(rest).trim_start_matches('(');
        message.requested = size(&format!("{number} {unit}"));
    }
    message.free = size_after(line.from, "KV cache memory (");
    message.fits = after(line.from, "estimated maximum model length is ").and_then(integer);
    message.setting = Some("--max-model-len");
    Some(message)
}

fn tokens(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    let mut message = line.message(Program::Vllm, MessageKind::Budget);
    message.fits = after(line.from, "KV cache (").and_then(integer);
    message.setting = Some("--max-model-len");
    Some(message)
}

fn prefill(line: &Line<'_>, _: &mut Noted, _: Option<&mut OomMessage>) -> Option<OomMessage> {
    line.from
        .contains("prefill tokens")
        .then(|| line.message(Program::TextGenerationInference, MessageKind::Budget))
}

#[cfg(test)]
mod tests {
    use crate::text::tests::one;
    use crate::units::Bytes;

    #[test]
    fn a_budget_that_does_not_hold_one_request() {
        let message = one(
            "ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache is needed, which is larger than the available KV cache memory (3.00 GiB). Based on the available memory, the estimated maximum model length is 34736. Try",
        );
        assert_eq!(message.requested, Some(Bytes::gib(24)));
        assert_eq!(message.free, Some(Bytes::gib(3)));
        assert_eq!(message.fits, Some(34736));
    }

    #[test]
    fn a_gpu_that_others_hold() {
        let message = one(
            "ValueError: Free memory on device cuda:3 (1.50/80 GiB) on startup is less than desired GPU memory utilization (0.5, 40 GiB). Decrease",
        );
        assert_eq!(message.device, Some(3));
        assert_eq!(message.free, Some(Bytes(3 << 29)));
        assert_eq!(message.total, Some(Bytes::gib(80)));
        assert_eq!(message.requested, Some(Bytes::gib(40)));
    }
}
