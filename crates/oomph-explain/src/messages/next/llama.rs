//! What to do next in llama.cpp and in what runs it: Ollama, bindings.

use oomph_trace::Bytes;
use oomph_trace::text::{Hardware, OomMessage, Phase, Program, Sign};

use super::named::uses;
use super::{NextStep, advice, others_on_the_gpu, step};
use crate::messages;
use crate::messages::ways::Change;

/// A buffer for computing of this size has the scores of a long context in it.
const LARGE: Bytes = Bytes::gib(2);

pub(super) fn llama(message: &OomMessage) -> Vec<NextStep> {
    // On the same library, with other options.
    if let Some(Program::Named(named)) = message.inside {
        return uses(named, message);
    }
    if message.setting == Some("workspace") {
        return vec![
            advice(
                "a newer version of llama.cpp: it computed the size of its own buffer too small",
            ),
            step(
                "-ub 256 -b 1024",
                "until then: smaller batches need less of it",
            ),
            step("-c 4096", "or a shorter context"),
        ];
    }
    if message.inside == Some(Program::Ollama) || message.program == Program::Ollama {
        if let Some(plan) = messages::figures::estimate(message) {
            return vec![
                step(
                    format!("/set parameter num_gpu {}", plan.fit),
                    format!(
                        "fewer layers on the GPU than the {} of its estimate: so many fit by the figures of the text",
                        plan.layers
                    ),
                ),
                step(
                    "OLLAMA_CONTEXT_LENGTH=4096 ollama serve",
                    "a shorter context needs less (in a session: /set parameter num_ctx 4096, num_batch 256)",
                ),
                advice(
                    "a smaller quantisation of the model, or a newer version, whose estimate may be better",
                ),
                step(
                    "ollama ps",
                    "which models are loaded: `ollama stop NAME` frees one",
                ),
            ];
        }
        // A buffer of weights: neither a context nor its cache makes that smaller.
        if message.during == Some(Phase::Loading) {
            return vec![
                step(
                    "/set parameter num_gpu 1",
                    "fewer layers on the GPU: what did not fit are weights. One first, then more, as long as it loads",
                ),
                step(
                    "OLLAMA_GPU_OVERHEAD=2147483648 ollama serve",
                    "so many bytes of each GPU left out of its plan, if the plan is too large",
                ),
                advice("a smaller model, or a smaller quantisation of it"),
                step(
                    "ollama ps",
                    "which models are loaded: `ollama stop NAME` frees one",
                ),
                others_on_the_gpu(message),
            ];
        }
        // Weights and cache are there already: what lacks is room for the batch.
        if message.during == Some(Phase::ComputeBuffers) {
            let mut steps = vec![
                step("/set parameter num_gpu N", FEWER_LAYERS),
                step(
                    "/set parameter num_batch 128",
                    "fewer tokens at once: a smaller buffer for computing",
                ),
                step(
                    "OLLAMA_FLASH_ATTENTION=1 ollama serve",
                    "no matrix of all scores in that buffer, where the model has such kernels",
                )
                .changing(Change::CacheBits),
                step(
                    "ollama ps",
                    "which models are loaded: `ollama stop NAME` frees one; OLLAMA_GPU_OVERHEAD keeps so many bytes of each GPU free",
                ),
            ];
            if message.tables.shows(Sign::SecondServer) {
                steps.insert(0, one_model());
            } else if message.requested.is_some_and(|asked| asked >= LARGE) {
                let context = step(
                    "OLLAMA_CONTEXT_LENGTH=4096 ollama serve",
                    "a shorter context: without flash attention that buffer grows with it (in a session: /set parameter num_ctx 4096)",
                );
                steps.insert(0, context);
            }
            return steps;
        }
        let mut steps = vec![
            step(
                "OLLAMA_CONTEXT_LENGTH=4096 ollama serve",
                "a shorter context has a smaller cache (in a session: /set parameter num_ctx 4096)",
            ),
            step(
                "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0 ollama serve",
                "keep keys and values in 8 bits",
            )
            .changing(Change::CacheBits),
            step("/set parameter num_gpu N", FEWER_LAYERS),
            step(
                "ollama ps",
                "which models are loaded: `ollama stop NAME` frees one",
            ),
            advice("a smaller model, or a smaller quantisation of it"),
        ];
        if message.tables.shows(Sign::SecondServer) {
            steps.rotate_right(2);
            steps.insert(0, one_model());
        }
        return steps;
    }
    if message.setting == Some("one allocation") {
        return in_one_piece(message);
    }
    let mut steps = vec![
        step("-c 4096", "a shorter context has a smaller cache"),
        step(
            "-ub 256 -b 1024",
            "smaller batches have smaller buffers for computing",
        ),
        step(
            "--cache-type-k q8_0 --cache-type-v q8_0",
            "keep keys and values in 8 bits",
        )
        .changing(Change::CacheBits),
    ];
    if message.during == Some(Phase::ComputeBuffers) {
        if is_embedded(message) {
            return vec![
                advice(
                    "smaller batches, which have smaller buffers for computing: n_batch and n_ubatch of the program around llama.cpp, of at \
                     most 512 (LlamaEdge: --batch-size)",
                ),
                advice(
                    "fewer layers on the GPU (n_gpu_layers, --n-gpu-layers), counting down until it loads",
                ),
                advice(
                    "flash attention, where that program has it: no matrix of all scores in that buffer",
                ),
                others_on_the_gpu(message),
            ];
        }
        steps = of_compute_buffers(message);
        if message.tables.shows(Sign::Pipelined) {
            let one = step(
                "--split-mode none",
                "one GPU (with --main-gpu), and so no pipeline, for which such a buffer has copies",
            );
            return vec![one, steps.swap_remove(0)];
        }
    }
    if let Some(device) = message
        .device
        .filter(|device| *device > 0 || message.tables.count > 1)
    {
        let shares = step(
            "--tensor-split 3,3,3,2",
            format!(
                "shares of the model for each GPU (one number for each): less for GPU {device}, which had too little"
            ),
        );
        // Of buffers for computing, smaller batches come first.
        let place = 1 + usize::from(message.during == Some(Phase::ComputeBuffers));
        steps.insert(steps.len().min(place), shares);
    }
    let fills = messages::figures::weights_fill(message);
    // Whatever the layers hold, one request may be too large by itself.
    let cache = !fills && message.during == Some(Phase::Cache);
    // What is set far above the usual is the first to make smaller.
    let large = message.settings.iter().any(|setting| {
        let value = setting
            .value
            .as_deref()
            .and_then(|value| value.parse::<u64>().ok());
        setting.name == "ubatch_size" && value.is_some_and(|tokens| tokens > 1024)
    });
    if large && message.during != Some(Phase::ComputeBuffers) {
        steps.swap(0, 1);
    }
    let one_buffer = message
        .requested
        .is_some_and(messages::other::is_larger_than_gpus)
        || messages::figures::never_fits(message).is_some();
    // Weights come in buffers of layers: one that is larger than the card is the cache, or the scores of a long context.
    if one_buffer && message.during.is_none() {
        steps[0] = step(
            "-c 4096",
            "a shorter context: without -c it is the model's whole, and the cache and the matrix of scores grow with it",
        );
        steps[2] = step(
            "-fa on",
            "flash attention (older versions: -fa): no matrix of all scores, where it is one",
        );
        steps.swap(1, 2);
    }
    let first = match message.during {
        Some(Phase::ComputeBuffers) => usize::from(!fills),
        _ if cache || large || one_buffer => 3,
        _ => 0,
    };
    steps.insert(
        first,
        if message.tables.shows(Sign::NotFitted) {
            step(
                "-ngl auto",
                "or no -ngl at all: by its log it would have fitted the layers to what is free, and the number that is set kept it from that",
            )
        } else {
            step("-ngl N", FEWER_LAYERS)
        },
    );
    if fills || message.during == Some(Phase::Loading) {
        steps.insert(
            1,
            advice(if fills {
                "a smaller quantisation of the model: its weights fill the GPU"
            } else {
                "a smaller quantisation of the model"
            }),
        );
    }
    steps.push(others_on_the_gpu(message));
    steps
}

fn one_model() -> NextStep {
    step(
        "OLLAMA_MAX_LOADED_MODELS=1 ollama serve",
        "one model at a time: the text has another one loaded beside this one (OLLAMA_KEEP_ALIVE=0 unloads it at once)",
    )
}

/// What helps where a number of layers is set, whose right value no text gives.
const FEWER_LAYERS: &str =
    "fewer layers on the GPU than its log has there; count down until it runs";

/// Whether llama.cpp is a library of another program, which has options of its own.
fn is_embedded(message: &OomMessage) -> bool {
    let mut frames = message.traceback.iter();
    message.text.contains("WASI-NN") || frames.any(|frame| frame.file.contains("llama_cpp"))
}

/// Weights and cache are there already; the buffer for computing grows with the batch, and without flash attention with the
/// batch times the context.
fn of_compute_buffers(message: &OomMessage) -> Vec<NextStep> {
    let batch = step(
        "-ub 256 -b 1024",
        "smaller batches have smaller buffers for computing",
    );
    let context = if message.tables.shows(Sign::NoFlashAttention) {
        step(
            "-c 4096",
            "a shorter context, if it is longer now: a smaller matrix of scores and a smaller cache",
        )
    } else {
        step(
            "-fa on -c 4096",
            "flash attention (older versions: -fa): no matrix of all scores in that buffer; or a shorter context, if it is longer now",
        )
    };
    vec![batch, context]
}

/// One buffer is larger than the driver allows, whatever is free.
fn in_one_piece(message: &OomMessage) -> Vec<NextStep> {
    let vulkan = message.hardware == Hardware::Vulkan;
    let context = shorter_context(message);
    let another = advice(
        "another backend (ROCm, CUDA) or driver, whose limit for one buffer is higher; neither more memory nor fewer layers help",
    );
    if message.during == Some(Phase::ComputeBuffers) {
        return vec![
            step(
                "-ub 256 -b 1024",
                "smaller batches: the buffer for computing shrinks with them (the default of -ub is 512)",
            ),
            step(
                "-fa on",
                "flash attention: no matrix of all scores in that buffer (older versions: -fa)",
            )
            .changing(Change::CacheBits),
            context,
            another,
        ];
    }
    let bits = step(
        "--cache-type-k q8_0 --cache-type-v q8_0",
        "keep keys and values in 8 bits",
    )
    .changing(Change::CacheBits);
    match message.during {
        Some(Phase::Cache) => vec![context, bits, another],
        Some(Phase::Loading) if vulkan => vec![
            step(
                "GGML_VK_FORCE_MAX_ALLOCATION_SIZE=1073741824",
                "weights in buffers of at most so many bytes; it does not raise what the driver allows",
            ),
            another,
        ],
        _ => vec![
            step(
                "-ub 256 -b 1024",
                "smaller batches have smaller buffers for computing",
            ),
            context,
            bits,
            another,
        ],
    }
}

/// A context with which a buffer stays below 4 GiB, the usual limit, where the text has the present one and the buffer is a little larger.
fn shorter_context(message: &OomMessage) -> NextStep {
    const LIMIT: f64 = (4_u64 << 30) as f64;
    let cells = messages::figures::context(message);
    let near = message
        .requested
        .map(|asked| LIMIT / asked.0 as f64)
        .filter(|part| (0.5..1.0).contains(part));
    match cells.zip(near) {
        Some((cells, part)) => step(
            format!("-c {}", (cells as f64 * part * 0.95) as u64 / 1024 * 1024),
            format!(
                "a context that is shorter by so much as the buffer is over 4 GiB, the usual limit (now: {cells})"
            ),
        ),
        None => step("-c 4096", "a shorter context has a smaller cache"),
    }
}
