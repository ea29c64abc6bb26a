//! What a text shows of where and how a program ran, which decides what step fits: the words may stand anywhere in it.

use std::sync::LazyLock;

use super::words::{Vocabulary, integer};

/// Something that the text shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Sign {
    /// It ran on Windows.
    Windows,
    /// It trains.
    Trains,
    /// It infers, generates or evaluates.
    Infers,
    /// A runner of tests called it.
    Tests,
    /// `DistributedDataParallel` is set up: it makes its buckets of gradients.
    DataParallel,
    /// ONNX Runtime's provider for the CPU.
    OnCpu,
    /// A provider for CUDA is chosen.
    OnCuda,
    /// TensorRT has no other implementation for a node.
    NoImplementation,
    /// A batch of one.
    SmallestBatch,
    /// A program leaves out a batch that is too large, and goes on.
    LeavesOut,
    /// No graph for gradients is kept.
    NoGraph,
    /// Adapters are trained, and not the model.
    Adapters,
    /// The optimizer's state has fewer bits, or is factored.
    SmallOptimizer,
    /// PyTorch's FSDP shards the model.
    Fsdp,
    /// DeepSpeed runs it.
    DeepSpeed,
    /// A pipeline of diffusers.
    Diffusers,
    /// Numbers of 64 bits.
    Doubles,
    /// TensorFlow 1, of sessions.
    Sessions,
    /// A library names the driver's version as a reason.
    OldDriver,
    /// A worker of the `DataLoader` is named.
    LoaderWorker,
    /// Use of the GPU grows from step to step, as people tell.
    Grows,
    /// A hosted notebook, whose limits are not the user's.
    Hosted,
    /// The GPU ran out of memory, whatever else the text says.
    GpuRanOut,
    /// A server's share of the GPU has no room for its cache.
    ShareTooSmall,
    /// Several processes use the accelerator.
    SharesGpu,
    /// The model has no flash attention, without which keys and values have no fewer bits.
    NoFlashAttention,
    /// Attention runs in blocks already.
    AttendsInBlocks,
    /// A server's cache has a size of its own, whatever share of the GPU the server may take.
    FixedCache,
    /// It ran in Windows' subsystem for Linux.
    Wsl,
    /// TensorRT makes the context in which an engine runs.
    MakesContext,
    /// Layers of a model were put on the GPU.
    Offloads,
    /// A container says that it did not end at its limit.
    NotAtLimit,
    /// A container says that it ended at its limit.
    AtLimit,
    /// A model is spread over all GPUs that its process sees.
    SpreadsOut,
    /// llama.cpp works in a pipeline over several GPUs, with a buffer for computing for each copy of the graph.
    Pipelined,
    /// Another server, or another model of one, was to use the GPU at the same time.
    SecondServer,
    /// Activations are computed again in the backward pass.
    Recomputes,
    /// An optimizer works on all its parameters at once, with temporaries as large.
    MultiTensor,
    /// A picture is decoded in tiles.
    Tiles,
    /// Ollama is used.
    Ollama,
    /// TensorRT builds an engine.
    Builds,
    /// A loop that trains is running.
    TrainingRun,
    /// It computes in 16 bits.
    Halves,
    /// A model takes images, films or sound beside text.
    Multimodal,
    /// Attention keeps the scores of all pairs.
    KeepsScores,
    /// XLA keeps what all rounds of a loop made.
    KeepsRounds,
    /// A server's engine answers within a job that trains (reinforcement learning).
    Rollouts,
    /// An error of CUDA may have been that of an earlier call, as its own words say.
    Asynchronous,
    /// It had run for some epochs.
    RanEpochs,
    /// Checkpointed activations had no gradient to pass on.
    NoInputGradients,
    /// NVIDIA's GPU in a Mac, whose system has no nvidia-smi.
    CudaOnMac,
    /// Ray runs it.
    Ray,
    /// A search for the fastest kernel leaves one out and goes on.
    IgnoresChoice,
    /// A web interface of Stable Diffusion, by what it prints below a picture, or its settings.
    WebInterface,
    /// The kernel ended several small processes, one after another.
    ManySmall,
    /// Nextflow runs the job.
    Nextflow,
    /// Snakemake runs the job.
    Snakemake,
    /// A machine for Java runs.
    Java,
    /// What is offloaded goes to a disk.
    Nvme,
    /// Python code calls vLLM, whose settings are keywords there.
    CallsEngine,
    /// llama.cpp would have fitted the layers to what is free, and a number that the user set kept it from that.
    NotFitted,
    /// ComfyUI moves models off the GPU as soon as they are not needed.
    FreesModels,
    /// TensorFlow runs what XLA compiled.
    Tensorflow,
    /// Python runs.
    Python,
    /// PyTorch is used.
    Torch,
    /// A program in C++ failed.
    Native,
    /// TensorRT's engine was built.
    Built,
}

const WORDS: &[(Sign, &[&str])] = &[
    (
        Sign::Windows,
        &[
            "c:\\",
            "d:\\",
            "e:\\",
            "nvidia-smi.exe",
            "windows 1",
            "os: windows",
        ],
    ),
    (
        Sign::Trains,
        &[
            ".backward(",
            "optimizer.step",
            "train.py",
            "training_step",
            "trainer.",
            "--do_train",
            "--train ",
            "--train=",
            "finetun",
            "fine-tun",
            "train(",
            "train_",
            ", in train",
            "value_and_grad",
            "training step",
            "epoch ",
            "epoch:",
        ],
    ),
    (
        Sign::Infers,
        &[
            "inference",
            ".generate(",
            "predict",
            "evaluate(",
            "sampling",
            "pipeline(",
            "infer(",
            "demo.py",
            "detect.py",
            "infer.py",
            "generate.py",
            "sample.py",
            "transcribe",
            "txt2img",
            "no_grad",
            "alphafold",
            "af2",
        ],
    ),
    (
        Sign::Tests,
        &["pytest", "unittest", ".py::", "test session starts"],
    ),
    (Sign::DataParallel, &["dist.reducer(", "_ddp_init_helper"]),
    (
        Sign::LeavesOut,
        &[
            "skipping update",
            "skipping batch",
            "skipping the batch",
            "skipping this batch",
            "skip this batch",
            "skipping step",
        ],
    ),
    (
        Sign::NoGraph,
        &[
            "decorate_context",
            "no_grad",
            "inference_mode(",
            // Loops that have it around what they call.
            "evaluation_loop",
            "prediction_loop",
            "prediction_step",
            "sanity checking",
            "in validation_step",
            "validation dataloader",
        ],
    ),
    (
        Sign::Adapters,
        &[
            "lora_",
            "_lora",
            "-lora",
            "lora-",
            " lora",
            "qlora",
            "loraconfig",
            "peft",
        ],
    ),
    (
        Sign::SmallOptimizer,
        &[
            "8bit_adam",
            "adam8bit",
            "adamw8bit",
            "adamw_8bit",
            "adamw_bnb",
            "adafactor",
        ],
    ),
    (Sign::Fsdp, &["fsdp", "fully_sharded", "fullysharded"]),
    (Sign::DeepSpeed, &["deepspeed"]),
    (
        Sign::Diffusers,
        &["diffusers", "fluxpipeline", "diffusionpipeline"],
    ),
    (
        Sign::Doubles,
        &["f64[", "float64", "tf.double", "torch.double"],
    ),
    (
        Sign::Sessions,
        &[
            "client/session.py",
            "client\\session.py",
            "tensorflow/contrib",
            "tf.contrib",
            "tensorflow_core",
            "tf.session(",
            "(see above for traceback)",
            "tensorflow-gpu==1.",
            "tensorflow version: 1.",
            "tensorflow==1.",
            "tensorflow 1.",
        ],
    ),
    (
        Sign::OldDriver,
        &[
            "insufficient driver version",
            "driver version is insufficient",
            "driver is too old",
        ],
    ),
    (Sign::LoaderWorker, &["dataloader worker"]),
    (
        Sign::Grows,
        &[
            "keeps increasing",
            "keeps growing",
            "been increasing",
            "gradually increas",
            "memory increases",
            "usage increases",
            "increases over time",
            "increase over time",
            "higher and higher",
            "creep up",
            "memory leak",
            "after few epochs",
            "after a few epochs",
            "after several epochs",
            "after some epochs",
            "after several steps",
            "after a few hours",
            "after several hours",
        ],
    ),
    (
        Sign::Java,
        &[
            "-xmx",
            "-xms",
            "java_opts",
            "java -jar",
            "spring boot",
            "java_tool_options",
        ],
    ),
    (Sign::Nvme, &["\"nvme\"", "nvme_path"]),
    (Sign::Hosted, &["colab", "kaggle"]),
    (
        Sign::GpuRanOut,
        &[
            "cuda out of memory",
            "cuda oom",
            "cuda error: out of memory",
        ],
    ),
    (
        Sign::ShareTooSmall,
        &[
            "no available memory for the cache blocks",
            "increase --mem-fraction-static",
        ],
    ),
    (
        Sign::NoImplementation,
        &["could not find any implementation for node"],
    ),
    // This layout exists there alone.
    (Sign::OnCpu, &["_nchwc'"]),
    (
        Sign::OnCuda,
        &[
            "cuda failure 2",
            "providers/cuda/",
            "provider: cuda",
            // The host's alone is never preferred.
            "not assigned to the preferred execution providers",
        ],
    ),
    (
        Sign::SharesGpu,
        &[
            "two processes",
            "two python processes",
            "several processes",
            "multiple processes",
            "concurrent",
        ],
    ),
    (
        Sign::NoFlashAttention,
        &[
            "flash attention enabled but not supported",
            "flash attention is not supported",
            "does not support flash attention",
        ],
    ),
    (
        Sign::AttendsInBlocks,
        &[
            "scaled_dot_product_attention(",
            "sdpa_attention",
            "flash_attn_func",
            "flash_attn_varlen",
            "flash_attention_forward",
            "memory_efficient_attention(",
        ],
    ),
    (
        Sign::FixedCache,
        &["does not respect the gpu_memory_utilization"],
    ),
    (
        Sign::Wsl,
        &[
            "/mnt/c/",
            "/mnt/d/",
            "/mnt/e/",
            "/mnt/wsl",
            "microsoft-standard",
            "wsl2",
        ],
    ),
    (
        Sign::MakesContext,
        &[
            "executioncontext.cpp",
            "createexecutioncontext",
            "create_execution_context",
        ],
    ),
    (
        Sign::Offloads,
        &[
            "offload",
            " -ngl",
            "gpu-layers",
            "gpu_layers",
            "layers to gpu",
            "cuda0",
        ],
    ),
    (
        Sign::NotAtLimit,
        &[
            "\"oomkilled\": false",
            "\"oomkilled\":false",
            "oomkilled=false",
            "oomkilled: false",
        ],
    ),
    (
        Sign::SpreadsOut,
        &[
            "device_map=\"auto\"",
            "device_map='auto'",
            "device_map=auto",
            "device_map: auto",
            "device_map \"auto\"",
            "infer_auto_device",
            "balanced_low_0",
        ],
    ),
    (
        Sign::Ollama,
        &[
            "ollama run",
            "ollama serve",
            "ollama server",
            "ollama[",
            "ollama.service",
            "source=server.go",
            "source=sched.go",
            "source=memory.go",
            "source=runner.go",
        ],
    ),
    (
        Sign::Builds,
        &[
            "trtllm-build",
            "engine building failed",
            "build.py",
            "buildserializednetwork",
        ],
    ),
    (
        Sign::TrainingRun,
        &[
            "***** running training",
            ".backward(",
            "optimizer.step(",
            "training_step(",
            "exception training",
            "accelerator.prepare(",
            "accelerator.backward(",
        ],
    ),
    (Sign::Asynchronous, &["asynchronously reported"]),
    (
        Sign::FreesModels,
        &[
            "disabling smart memory management",
            "--disable-smart-memory",
        ],
    ),
    (
        Sign::Tensorflow,
        &[
            "`session::",
            "recorded from infeed",
            "tensorflow/python",
            "tensorflow_estimator",
            "tpuestimator",
        ],
    ),
    (
        Sign::NoInputGradients,
        &["element 0 of tensors does not require grad"],
    ),
    (
        Sign::Nextflow,
        &["nextflow", "nf-core", "error executing process >"],
    ),
    (Sign::Snakemake, &["snakemake"]),
    (
        Sign::IgnoresChoice,
        &[
            "ignoring this choice",
            "for benchmark choice",
            "select_algorithm.py:",
        ],
    ),
    (
        Sign::Python,
        &[
            "python",
            ".py",
            "traceback (most",
            "import ",
            "<ipython",
            "cell in",
        ],
    ),
    (Sign::Torch, &["torch", "dataloader"]),
    (
        Sign::Native,
        &["terminate called", "what():", ".cpp, line ", ".cu, line "],
    ),
    (
        Sign::Built,
        &[
            "engine built in",
            "engine generation completed",
            "created engine with size",
        ],
    ),
    (
        Sign::WebInterface,
        &[
            " gb, sys: ",
            "sys vram: ",
            "commandline_args",
            "automatic1111",
        ],
    ),
    (Sign::CudaOnMac, &["os x", "osx", "macos", "mac os"]),
    (
        Sign::Ray,
        &[
            "ray.tune",
            "ray/tune",
            "ray.exceptions",
            "ray/worker",
            "ray.init",
            "raylet",
        ],
    ),
    (Sign::KeepsRounds, &["while/body/dynamic_update_slice"]),
    (
        Sign::Rollouts,
        &[
            "verl/",
            "actor_rollout",
            "openrlhf",
            "vllm_mode",
            "use_vllm",
            "grpo",
            "rollout.",
            "colocate",
        ],
    ),
    (
        Sign::KeepsScores,
        &[
            "attn_weights =",
            "eager_attention_forward",
            "attention_scores =",
            "attention_probs =",
        ],
    ),
    (
        Sign::Halves,
        &[
            "native 16bit",
            ", bf16,",
            ", fp16,",
            "in bf16",
            "in fp16",
            "with bf16",
            "with fp16",
            "bf16 training",
            "fp16 training",
            "native amp",
            "16bit automatic mixed",
            "16bit native",
            "bfloat16 automatic mixed",
            "precision: fp16",
            "precision: bf16",
            "precision=16",
            "precision: 16",
            "precision='16",
            "precision=\"16",
            "precision='bf16",
            "precision=\"bf16",
            "torch.float16",
            "torch.bfloat16",
            "torch.half",
            "dtype: float16",
            "dtype: bfloat16",
            "dtype=float16",
            "dtype=bfloat16",
            ".half()",
            "autocast",
            "gradscaler",
            "scaler.scale(",
            "step_with_gradscaler",
            "fp16/loss_scaler",
            "mixed_float16",
            "mixed_bfloat16",
        ],
    ),
    (
        Sign::Multimodal,
        &[
            "multi-modal",
            "multimodal",
            "multi_modal",
            "limit-mm-per-prompt",
            "limit_mm_per_prompt",
            "mm_counts",
            "pixel_values",
            "image_grid_thw",
            "vision_tower",
            "vision_model",
            "general_mm_embed",
            "-vl-",
        ],
    ),
    (Sign::NotFitted, &["n_gpu_layers already set by user"]),
    (Sign::Pipelined, &["pipeline parallelism enabled"]),
    (
        Sign::SecondServer,
        &[
            "second model",
            "2nd model",
            "second instance",
            "second server",
            "second vllm",
            "another instance",
            "two instance",
            "two models",
            "both models",
            "2 instances",
            "multiple instances",
        ],
    ),
    (
        Sign::Recomputes,
        &[
            "utils/checkpoint.py",
            "utils\\checkpoint.py",
            "activation_checkpointing/",
            "incompatible with gradient checkpointing",
            "use_reentrant",
            "gradient checkpointing: true",
            "gradient checkpointing = true",
            "gradient checkpointing on",
            "gradient checkpointing enabled",
            "with gradient checkpointing",
            "gradient checkpointing is on",
            "gradient checkpointing is enabled",
        ],
    ),
    (Sign::MultiTensor, &["_multi_tensor_", "_foreach_"]),
    (
        Sign::Tiles,
        &[
            "decode_tiled",
            "tiled_decode",
            "vae_tiling",
            "enable_tiling",
        ],
    ),
    (
        Sign::AtLimit,
        &[
            "\"oomkilled\": true",
            "\"oomkilled\":true",
            "oomkilled=true",
            "oomkilled: true",
        ],
    ),
];

/// Whether a line says that a batch has one sample: `batch_size=1`, "with batch size 1", `"batch_size": 1`.
/// A tensor of three sides and more whose first is 1 is one sample, unless it is the kernel of a convolution of 1 x 1.
fn is_smallest_batch(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let one_sample = lower.split_once("shape[1,").is_some_and(|(_, rest)| {
        let sides = rest.split(']').next().unwrap_or_default();
        !sides.starts_with("1,") && sides.contains(',')
    });
    one_sample
        || lower.match_indices("batch").any(|(at, _)| {
            // Batches of an evaluation are others.
            let evaluates = lower[..at].ends_with("eval_");
            let rest = lower[at + "batch".len()..].trim_start_matches(['-', '_', ' ']);
            let Some(value) = rest.strip_prefix("size") else {
                return false;
            };
            // `batch size per device / …: 1`, `batch size (w. parallel, …) = 1`
            let value = [" per device", " per gpu", " ("]
                .iter()
                .find_map(|words| value.strip_prefix(words)?.split_once([':', '=']))
                .map_or(value, |(_, value)| value);
            let value = value.trim_start_matches(['"', '\'', ' ', '=', ':', '`']);
            let value = ["of ", "is set to ", "is ", "to ", "as "]
                .iter()
                .find_map(|word| value.strip_prefix(word))
                .unwrap_or(value);
            !evaluates
                && value.strip_prefix('1').is_some_and(|rest| {
                    let mut next = rest.chars();
                    let ends = |c: Option<char>| !c.is_some_and(|c| c.is_ascii_digit());
                    match next.next() {
                        Some('.') => ends(next.next()),
                        other => ends(other),
                    }
                })
        })
}

/// Whether a line of code calls vLLM with keywords: `LLM(model, gpu_memory_utilization=0.9)`. Its own logs list them alike.
fn calls_engine(line: &str) -> bool {
    const KEYWORDS: [&str; 4] = [
        "gpu_memory_utilization=",
        "tensor_parallel_size=",
        "max_model_len=",
        "enforce_eager=",
    ];
    const LOGS: [&str; 4] = ["amespace(", "with config", "Args(", "Config("];
    let called = |head: &str| {
        head.rfind('(')
            .is_some_and(|at| head[..at].ends_with(char::is_alphanumeric))
    };
    let mut keywords = KEYWORDS.iter().filter_map(|word| line.split_once(word));
    keywords.any(|(head, _)| called(head)) && !LOGS.iter().any(|words| line.contains(words))
}

/// Whether a line of prose says that some epochs had gone well: "at 17 epochs", "after epoch 3".
fn ran_epochs(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let words: Vec<&str> = lower.split_whitespace().collect();
    if [
        "survives the first epoch",
        "after the first epoch",
        "second epoch",
        "after one epoch",
        "first epoch finish",
        "first epoch is fine",
    ]
    .iter()
    .any(|words| lower.contains(words))
    {
        return true;
    }
    // `Epoch: [3]` of a log, which may begin to count at 1.
    let logged = lower
        .strip_prefix("epoch")
        .and_then(|rest| integer(rest.trim_start_matches([' ', ':', '[', '#'])));
    if logged.is_some_and(|count| count > 1) {
        return true;
    }
    let several = |word: &str| {
        let word = word.trim_end_matches(|c: char| !c.is_ascii_digit());
        word.parse::<u64>().is_ok_and(|count| count > 0)
    };
    words.windows(3).any(|words| {
        ["at", "after", "in", "on"].contains(&words[0])
            && (words[1].starts_with("epoch") && several(words[2])
                || words[2].starts_with("epoch") && several(words[1]))
    })
}

impl Sign {
    /// Adds what a line shows. `before_is_provider`: whether the heading that asks for the provider stands above.
    pub(super) fn read(line: &str, before_is_provider: &mut bool, found: &mut Vec<Self>) {
        static FINDER: LazyLock<Vocabulary<Sign>> = LazyLock::new(|| {
            Vocabulary::new(WORDS.iter().map(|(sign, words)| (*sign, *words)), true)
        });
        let mut add = |sign| {
            if !found.contains(&sign) {
                found.push(sign);
            }
        };
        for (sign, ..) in FINDER.all(line) {
            add(sign);
        }
        if is_smallest_batch(line) {
            add(Self::SmallestBatch);
        }
        if calls_engine(line) {
            add(Self::CallsEngine);
        }
        if ran_epochs(line) {
            add(Self::RanEpochs);
        }
        // What a launcher says of its script.
        if line.trim_end().ends_with(".py FAILED") && line.contains("train") {
            add(Self::TrainingRun);
        }
        // The form of an issue: a heading, and the answer below.
        let text = line.trim().trim_start_matches(['#', ' ']);
        if *before_is_provider && !text.is_empty() {
            *before_is_provider = false;
            if text.contains("CUDA") {
                add(Self::OnCuda);
            } else if text.contains("CPU") {
                add(Self::OnCpu);
            }
        }
        *before_is_provider |= text == "Execution Provider";
    }
}

#[cfg(test)]
mod tests {
    use super::Sign;

    #[test]
    fn signs_stand_anywhere() {
        let shown = |text: &str| {
            let (mut provider, mut found) = (false, Vec::new());
            for line in text.lines() {
                Sign::read(line, &mut provider, &mut found);
            }
            found
        };
        assert_eq!(
            shown("File \"C:\\lib\\a.py\"\nloss.backward()"),
            [Sign::Windows, Sign::Python, Sign::Trains, Sign::TrainingRun]
        );
        assert_eq!(shown("### Execution Provider\n\nCUDA"), [Sign::OnCuda]);
        assert_eq!(shown("Conv node. Name:'12_nchwc'"), [Sign::OnCpu]);
        assert_eq!(shown("self.reducer = dist.Reducer("), [Sign::DataParallel]);
        assert_eq!(shown("a line"), []);
        for epochs in [
            "I still run out of memory at 17 epochs with it",
            "it fails in epoch 3.",
        ] {
            assert!(shown(epochs).contains(&Sign::RanEpochs), "{epochs}");
        }
        assert_eq!(
            shown("llm = LLM(\"m\", gpu_memory_utilization=0.9)"),
            [Sign::CallsEngine]
        );
        assert_eq!(shown("Namespace(model='m', max_model_len=9)"), []);
        for batch in [
            "batch_size=1",
            "with batch size of 1.",
            "\"batch_size\": 1,",
            "Total batch size (w. parallel) = 1",
            "OOM when allocating tensor with shape[1,16,1024,1024] and type float",
        ] {
            assert_eq!(shown(batch), [Sign::SmallestBatch], "{batch}");
        }
        for batch in [
            "batch_size=16",
            "batch_size=1.5",
            "batch 1",
            "eval_batch_size=1",
            "tensor with shape[1,1,512,2048]",
            "tensor with shape[1,512]",
        ] {
            assert_eq!(shown(batch), [], "{batch}");
        }
        assert_eq!(shown("\"OOMKilled\": false,"), [Sign::NotAtLimit]);
    }
}
