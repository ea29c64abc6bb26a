//! What to do next in a server of models: vLLM, SGLang, Text Generation Inference.

use oomph_trace::Bytes;
use oomph_trace::text::{OomMessage, Phase, Sign};

use super::{NextStep, advice, held_by_others, others_on_the_gpu, step};
use crate::messages;
use crate::messages::ways::{Change, ways};

/// vLLM's trial run of the largest batch that its limits allow, before its cache has a size: no share of the GPU helps.
pub(super) fn trial_run(message: &OomMessage) -> Vec<NextStep> {
    let mut steps = vec![
        step(
            "--max-num-batched-tokens 2048",
            "fewer tokens at once: its trial run is as large as they allow",
        ),
        step("--max-num-seqs 64", "fewer requests at once, likewise"),
        step("--max-model-len 8192", "shorter requests, likewise"),
        step(
            "--tensor-parallel-size 2",
            "split the model over more GPUs, or weights in fewer bits",
        ),
    ];
    let images = [
        step(
            "--limit-mm-per-prompt '{\"image\": 1, \"video\": 0}'",
            "fewer images in a request, and no films: each kind that is not named counts in its trial run as well",
        ),
        step(
            "--mm-processor-kwargs '{\"max_pixels\": 1003520}'",
            "smaller images, in the words of the model's processor: fewer tokens for each",
        ),
    ];
    if message.tables.shows(Sign::Multimodal) {
        steps.splice(0..1, images);
    }
    steps
}

/// An engine within a job that trains: its flags are the trainer's settings, and what training holds counts as well.
pub(super) fn rollouts(message: &OomMessage) -> Vec<NextStep> {
    vec![
        step(
            "gpu_memory_utilization=0.4",
            "of the engine that makes the rollouts (verl: actor_rollout_ref.rollout.…, TRL: vllm_gpu_memory_utilization): weights, \
             gradients and the optimizer's state of the training are on the same GPU",
        )
        .changing(Change::Share),
        advice(
            "the engine's memory given back while it trains (verl: rollout.free_cache_engine=True, TRL: vllm_enable_sleep_mode=True), \
             and the training's kept on the CPU while it answers (param_offload, optimizer_offload)",
        ),
        ways(
            "",
            &[
                (Change::Inputs, "shorter prompts and answers"),
                (Change::Batch, "fewer samples in a micro-batch"),
                (Change::Other, "a GPU of its own for the engine"),
            ],
        ),
        others_on_the_gpu(message),
    ]
}

/// Weights that take less, by the option that vLLM and SGLang share.
fn lighter_weights() -> NextStep {
    ways(
        "",
        &[
            (
                Change::Bits,
                "weights in fewer bits (AWQ, GPTQ, FP8: --quantization fp8)",
            ),
            (Change::Other, "a smaller model"),
        ],
    )
}

/// A share of the GPU that leaves what others hold on it: vLLM's is one of the whole, whoever else is there and however small the model.
fn beside_holders(message: &OomMessage) -> Option<NextStep> {
    /// Less is its own context and libraries.
    const OTHERS: f64 = 0.2;
    let held = message.outside_pytorch()?.0 as f64 / message.total?.0.max(1) as f64;
    let room = ((1.0 - held) * 20.0).floor() / 20.0 - 0.05;
    (held >= OTHERS && room >= 0.1).then(|| {
        step(
            format!("--gpu-memory-utilization {room:.2}"),
            format!(
                "a share that leaves the {held:.2} of the GPU which others hold: it is one of the whole GPU (0.9 by default), for the cache of \
                 keys and values too, so a small model fills it as well"
            ),
        )
        .computed()
        .changing(Change::Share)
    })
}

pub(super) fn inside_vllm(message: &OomMessage) -> Vec<NextStep> {
    if message.during.is_some_and(Phase::is_of_weights) {
        return vec![
            step(
                "--tensor-parallel-size 2",
                "the weights did not fit: split them over more GPUs",
            ),
            lighter_weights(),
            step(
                "--cpu-offload-gb 8",
                "keep so much of the weights in the host's memory, which is slow",
            ),
            others_on_the_gpu(message),
        ];
    }
    let share = beside_holders(message).unwrap_or_else(|| {
        step(
            "--gpu-memory-utilization 0.85",
            "a smaller share for vLLM leaves more for what it does not plan",
        )
        .changing(Change::Share)
    });
    let eager = step("--enforce-eager", "no CUDA graphs, which take 1 to 3 GiB");
    let fewer = step("--max-num-seqs 64", "fewer requests at once");
    if message.during == Some(Phase::Capturing) {
        let sizes = step(
            "--compilation-config '{\"cudagraph_capture_sizes\": [1, 2, 4, 8]}'",
            "graphs for fewer sizes of a batch (--max-num-seqs bounds them as well)",
        );
        return vec![share, sizes, eager, fewer];
    }
    let mut steps = vec![
        share,
        step(
            "--max-num-seqs 64 --max-num-batched-tokens 2048",
            "fewer requests at once, and fewer tokens at once in the first pass over prompts",
        ),
        step("--max-model-len 8192", "shorter requests"),
        eager,
    ];
    if beside_holders(message).is_some() {
        steps.truncate(1);
        steps.push(others_on_the_gpu(message));
        steps.push(advice(
            "or end what holds it, or a GPU of its own (CUDA_VISIBLE_DEVICES)",
        ));
    }
    if message.setting == Some("--max-num-seqs") {
        steps.swap(0, 1);
    }
    steps
}

pub(super) fn inside_tgi(message: &OomMessage) -> Vec<NextStep> {
    let mut steps = vec![
        step("--quantize bitsandbytes", "weights in fewer bits"),
        step("--num-shard", "split the model over more GPUs than now"),
    ];
    if message.during.is_some_and(Phase::is_of_weights) {
        steps.push(advice("a smaller model: its weights alone do not fit"));
        steps.push(others_on_the_gpu(message));
        return steps;
    }
    // Its trial run comes before the pool: neither a share nor a pool is what is too large.
    if let Some(tokens) = messages::other::prefill_tokens(message) {
        let fewer = step(
            format!("--max-batch-prefill-tokens {}", tokens / 2),
            format!(
                "its trial run was one pass over {tokens} tokens of prompts: fewer at once (--max-input-length has to be no larger)"
            ),
        );
        steps[0] = advice("weights in fewer bits, or a smaller model (--quantize)");
        steps.swap(0, 1);
        return [
            vec![fewer.computed()],
            steps,
            vec![others_on_the_gpu(message)],
        ]
        .concat();
    }
    let requests = [
        step(
            "--cuda-memory-fraction 0.9",
            "a smaller share for its pool of keys and values, which it makes as large as it can when it starts: more room beside it",
        ),
        step(
            "--max-batch-prefill-tokens 1024",
            "fewer tokens at once in the first pass over prompts",
        ),
        step(
            "--max-batch-total-tokens 16384 --max-total-tokens 4096",
            "a pool for so many tokens, in place of all that the start leaves, and requests of at most so many",
        ),
    ];
    steps.splice(0..0, requests);
    steps
}

pub(super) fn inside_sglang(message: &OomMessage) -> Vec<NextStep> {
    if message.during.is_some_and(Phase::is_of_weights) {
        return vec![
            step(
                "--tp 2",
                "the weights did not fit: split them over more GPUs",
            ),
            advice(
                "a smaller model, or weights in fewer bits (AWQ, GPTQ, FP8: --quantization fp8)",
            ),
            others_on_the_gpu(message),
        ];
    }
    if message.during == Some(Phase::Cache) {
        return vec![
            step(
                "--max-total-tokens 65536",
                "a pool of keys and values for so many tokens, which is what did not fit",
            ),
            step(
                "--mem-fraction-static 0.8",
                "a smaller share for weights and pool",
            )
            .changing(Change::Share),
            advice("a newer SGLang, if the pool is larger than the share allows"),
        ];
    }
    let mut frames = message.traceback.iter();
    if frames.any(|frame| frame.function.contains("forward_decode")) {
        return vec![
            step(
                "--max-running-requests 64",
                "fewer requests at once: it failed as it generated",
            ),
            step(
                "--mem-fraction-static 0.8",
                "a smaller share for weights and cache leaves more for activations",
            )
            .changing(Change::Share),
        ];
    }
    let mut frames = message.traceback.iter();
    let prefill = frames.any(|frame| frame.function.contains("forward_extend"));
    let mut steps = vec![
        step(
            "--mem-fraction-static 0.8",
            "a smaller share for weights and cache leaves more for activations and CUDA graphs",
        )
        .changing(Change::Share),
        step(
            "--chunked-prefill-size 2048",
            "fewer tokens at once in the first pass over prompts",
        ),
        step("--cuda-graph-max-bs 16", "fewer CUDA graphs"),
    ];
    match message.during {
        Some(Phase::Capturing) => steps.swap(1, 2),
        // Logits, or activations of a whole chunk of prompts.
        _ if prefill
            || message
                .requested
                .is_some_and(|asked| asked >= Bytes::gib(4)) =>
        {
            steps.swap(0, 1);
        }
        _ => {}
    }
    steps
}

/// The weights leave nothing of SGLang's share for keys and values.
pub(super) fn sglang(message: &OomMessage) -> Vec<NextStep> {
    let mut steps = vec![
        step(
            "--mem-fraction-static 0.95",
            "a larger share at this moment, the start: the weights alone use it up, and nothing is left for the cache (a value below 1; the \
             default is about 0.9). Only where memory runs out while it serves a smaller one is right",
        )
        .changing(Change::Share),
        step(
            "--tp 2",
            "split the model over more GPUs, or load it quantised",
        ),
        lighter_weights(),
        others_on_the_gpu(message),
    ];
    if messages::ways::no_share_fits(message) {
        steps.insert(
            1,
            step(
                "--context-length 4096 --cuda-graph-max-bs 16",
                "less beside the weights: shorter requests and fewer CUDA graphs; of speculative decoding a smaller draft model or \
                 fewer draft tokens, or none",
            ),
        );
    }
    // Beside such weights no share has room for activations.
    let little = message
        .in_use
        .map_or(Bytes::gib(2), |weights| Bytes(weights.0 / 12));
    if message.free.is_some_and(|left| left < little) {
        steps.swap(0, 1);
    }
    steps
}

/// The longest request whose keys and values fit into the cache, where the text has the length and both sizes.
fn longest_request(message: &OomMessage) -> Option<u64> {
    let (_, rest) = message.text.split_once("max seq len (")?;
    let length: u64 = rest.split(')').next()?.parse().ok()?;
    let (asked, have) = message.requested.zip(message.free)?;
    let fits = length as f64 * have.0 as f64 / asked.0.max(1) as f64;
    // Sizes are rounded to hundredths, and blocks are given out whole.
    Some((fits * 0.995) as u64 / 16 * 16).filter(|fits| *fits > 0)
}

/// A share of the GPU that has room for a cache, where the text has the figures.
fn larger_share(message: &OomMessage) -> NextStep {
    /// More is needed by the driver and by what a server does not plan.
    const MOST: f64 = 0.97;
    /// So much of a GPU holds some requests.
    const ROOM: f64 = 0.05;
    let short = messages::other::short_of_share(message);
    if let (Some(short), Some(share), Some(total)) = (short, message.allowed, message.total) {
        let need = (share + short).0 as f64 / total.0.max(1) as f64;
        if need < MOST {
            let share = (need + ROOM).clamp(0.9, MOST);
            return step(
                format!("--gpu-memory-utilization {share:.2}"),
                format!(
                    "a share that fits by the text's figures: more than {need:.2} is needed (if nothing else holds the GPU)"
                ),
            )
            .computed()
            .changing(Change::Share);
        }
        return advice(format!(
            "the weights and the trial run need {need:.2} of this GPU, so no share is large enough: a smaller model, or one in fewer bits"
        ));
    }
    step(
        "--gpu-memory-utilization 0.95",
        "the model and vLLM's trial run use up its share: let it take more, if the GPU has room",
    )
    .changing(Change::Share)
}

pub(super) fn vllm(message: &OomMessage) -> Vec<NextStep> {
    if let Some(shared) = messages::sharing::of(message) {
        return shared.steps(message);
    }
    if message.setting == Some("--max-num-seqs") {
        return inside_vllm(message);
    }
    if message.setting == Some("--max-model-len") {
        let by_figures = longest_request(message);
        let length = message.fits.or(by_figures).unwrap_or(8192);
        let what = if message.fits.is_some() {
            "the longest request that fits, as vLLM itself says"
        } else if by_figures.is_some() {
            "the longest request that fits, by the text's figures"
        } else {
            "shorter requests need a smaller cache"
        };
        let length = step(format!("--max-model-len {length}"), what);
        let length = if message.fits.or(by_figures).is_some() {
            length.computed()
        } else {
            length
        };
        if let Some(asked) = message
            .requested
            .filter(|_| message.tables.shows(Sign::FixedCache))
        {
            return vec![
                step(
                    format!(
                        "--kv-cache-memory-bytes {}",
                        (asked.0 / (64 << 20) + 1) * (64 << 20)
                    ),
                    "a cache that holds one request: its size is set by hand (kv_cache_memory_bytes), so no other share counts",
                ),
                length,
                step(
                    "--kv-cache-dtype fp8",
                    "keys and values in 8 bits: twice as many tokens",
                ),
            ];
        }
        let times = messages::other::times_too_long(message);
        let mut steps = vec![
            length,
            step(
                "--gpu-memory-utilization 0.95",
                "a larger share for vLLM, if yours is smaller and the GPU has room",
            )
            .changing(Change::Share),
            step(
                "--kv-cache-dtype fp8",
                "keys and values in 8 bits: twice as many tokens",
            ),
            step("--tensor-parallel-size 2", "split the model over more GPUs"),
        ];
        // So little is lacking that more GPUs are no matter.
        if times.is_some_and(|times| times < 1.2) {
            steps[1] = step(
                "--gpu-memory-utilization 0.95",
                "or keep the length: so little is lacking that a share which is larger by a hundredth or two has it, if the GPU has room",
            )
            .changing(Change::Share);
            steps.truncate(3);
        }
        // What gives a little more, or twice as much, is not enough.
        if times.is_some_and(|times| times > 2.0) {
            steps.splice(
                1..3,
                [step(
                    "--enable-chunked-prefill --max-num-batched-tokens 2048",
                    "keeps the length: its trial run is then not one pass over a whole prompt, and the cache has what that took",
                )],
            );
            steps.push(advice(
                "weights in fewer bits or a smaller model; keys and values in 8 bits (--kv-cache-dtype fp8) only double the tokens",
            ));
        }
        return steps;
    }
    let Some((free, total)) = message.free.zip(message.total) else {
        let split = step(
            "--tensor-parallel-size 2",
            "split the model over more GPUs, or load it quantised",
        );
        let less = step(
            "--enforce-eager --max-model-len 4096 --max-num-batched-tokens 4096",
            "less beside the weights: no CUDA graphs, which take 1 to 3 GiB, shorter requests, and a smaller trial run",
        );
        let mut steps = vec![larger_share(message), less.clone(), split.clone()];
        // Such a share can hardly be larger, so it is the model that does not fit.
        let large = message.settings.iter().any(|setting| {
            let value = setting
                .value
                .as_deref()
                .and_then(|value| value.parse::<f64>().ok());
            setting.name == "gpu_memory_utilization" && value.is_some_and(|share| share >= 0.9)
        });
        if large && messages::weights::of(message).is_some() {
            steps.remove(2);
            steps.insert(0, split);
        } else if large {
            // How large the model is the text does not say, nor whether it is alone.
            steps = vec![
                others_on_the_gpu(message),
                less,
                larger_share(message),
                advice(
                    "weights in fewer bits (AWQ, GPTQ), a smaller model, or one more GPU (tensor_parallel_size=2)",
                ),
            ];
        }
        return steps;
    };
    let mut steps = Vec::new();
    // What fits, and a hundredth less, as other processes do not stand still.
    let share = (free.0 as f64 / total.0.max(1) as f64 * 100.0).floor() / 100.0 - 0.01;
    if share >= 0.1 {
        let what = format!("a share that fits into the {free} that are free");
        steps.push(step(format!("--gpu-memory-utilization {share:.2}"), what).computed());
    }
    if held_by_others(message) {
        steps.insert(0, others_on_the_gpu(message));
        steps.push(advice(
            "end the processes that hold the GPU: an earlier server, a notebook",
        ));
    } else {
        steps.push(others_on_the_gpu(message));
    }
    steps
}
