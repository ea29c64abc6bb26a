//! What a program was doing when memory ran out, by the functions of its traceback or by the lines of its log: it decides
//! more than anything else what can help.

use std::sync::LazyLock;

use super::TextFrame;
use super::words::Vocabulary;

/// What a program was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Host memory was pinned, as by a thread of the `DataLoader`.
    Pinning,
    /// CUDA made its context.
    Context,
    /// llama.cpp set its buffers for computing aside.
    ComputeBuffers,
    /// llama.cpp set its cache of keys and values aside.
    Cache,
    /// TensorRT read an engine.
    Engine,
    /// A library tried its algorithms.
    Searching,
    /// A compiler ran.
    Compiling,
    /// CUDA graphs were captured.
    Capturing,
    /// A server measured what a run needs.
    Profiling,
    /// A picture or a film was decoded from its latents.
    Decoding,
    /// Attention ran.
    Attending,
    /// Weights were read.
    Loading,
    /// A model was moved to the accelerator.
    Moving,
    /// A model was wrapped for the ranks of a job: made alike on all of them, or sharded.
    Wrapping,
    /// The state of a sharded optimizer was made.
    SettingUp,
    /// The weights of a layer were gathered from their shards.
    Gathering,
    /// The optimizer stepped.
    Optimizing,
    /// Predictions of an evaluation were collected.
    Collecting,
    /// An evaluation ran.
    Evaluating,
    /// The backward pass ran.
    Backward,
    /// Tokens were generated.
    Generating,
    /// Communicators were made.
    Communicating,
    /// A checkpoint was gathered or written.
    Saving,
    /// A server answered requests.
    Serving,
}

impl Phase {
    /// What completes `while …`.
    pub const fn clause(self) -> &'static str {
        match self {
            Self::Pinning => "host memory was pinned",
            Self::Context => "the GPU's context was made",
            Self::ComputeBuffers => "buffers for computing were set aside",
            Self::Cache => "the cache of keys and values was set aside",
            Self::Engine => "an engine was loaded",
            Self::Searching => "it searched for the fastest algorithm",
            Self::Compiling => "it compiled the program",
            Self::Capturing => "CUDA graphs were captured",
            Self::Profiling => "it measured what it needs",
            Self::Decoding => "the VAE decoded what was made",
            Self::Attending => "attention ran",
            Self::Loading => "weights were loaded",
            Self::Moving => "the model was moved to the GPU",
            Self::Wrapping => "the model was wrapped for the job's ranks (DDP, FSDP)",
            Self::SettingUp => "the optimizer was set up",
            Self::Gathering => "a layer's weights were gathered from their shards",
            Self::Optimizing => "the optimizer stepped",
            Self::Collecting => "an evaluation collected its predictions",
            Self::Evaluating => "it evaluated",
            Self::Backward => "the backward pass ran",
            Self::Generating => "it generated",
            Self::Communicating => "communicators were made",
            Self::Saving => "a checkpoint was gathered or written",
            Self::Serving => "it served requests",
        }
    }

    /// Whether weights are all that it makes: no batch, length or picture matters yet.
    pub const fn is_of_weights(self) -> bool {
        matches!(self, Self::Loading | Self::Moving | Self::Wrapping)
    }

    /// Whether another phase may stand around it, which tells more.
    const fn is_inner(self) -> bool {
        matches!(self, Self::Attending | Self::Generating | Self::Searching)
    }
}

/// Words of calls, functions and files.
const CALLS: &[(Phase, &[&str])] = &[
    (
        Phase::Pinning,
        &[
            "pin_memory(",
            "_utils/pin_memory.py",
            "allocate_cpu_cache",
            "cudaHostAlloc",
            "cudaMallocHost",
            "cuMemHostAlloc",
            "CachingHostAllocator",
        ],
    ),
    (
        Phase::Context,
        &["cuCtxCreate", "PrimaryCtxRetain", "cuInit", "_cuda_init"],
    ),
    (
        Phase::ComputeBuffers,
        &[
            "compute buffers",
            "compute pp buffers",
            "graph_reserve",
            "gallocr_reserve",
        ],
    ),
    (
        Phase::Cache,
        &[
            "buffer for kv cache",
            "kv_cache_init",
            "kv_buffer =",
            "k_buffer =",
            "_create_buffers(",
        ],
    ),
    // PyTorch reads checkpoints by functions of like names.
    (
        Phase::Engine,
        &[
            "deserialize.cpp",
            "eserialize cuda engine",
            "eserializeCudaEngine",
            "eserialize_cuda_engine",
            "ngine deserializ",
            "Loaded engine size",
        ],
    ),
    (
        Phase::Searching,
        &[
            "finder(",
            "cudnnFind",
            "autotun",
            "tactic",
            "best cudnn",
            "convolution algorithm",
        ],
    ),
    (
        Phase::Compiling,
        &[
            "compile permanent error",
            "during compilation",
            "ran out at compile time",
        ],
    ),
    (
        Phase::Capturing,
        &[
            "apture cuda graph",
            "apturing cuda graph",
            "apturing the model for CUDA graphs",
            "capture_model",
            "graph_capture",
            "cuda_graph_runner",
        ],
    ),
    (
        Phase::Profiling,
        &[
            "profile_run",
            "determine_num_available_blocks",
            "determine_available_memory",
            "used for profiling (",
        ],
    ),
    (
        Phase::Loading,
        &[
            "load_weights",
            "make_layers",
            "initialize_model",
            "create_weights",
            "load_model",
            "from_pretrained",
            "load_state_dict",
            "load_checkpoint",
            "load_single_module",
            "get_sharded",
            "get_partial_sharded",
            "utils/weights.py",
            "QKVParallelLinear",
            "ColumnParallelLinear(",
            "RowParallelLinear(",
            "_state_dict_into",
            "torch.load(",
            "oading weights",
            "loading model",
            "Exception during initialization",
            "ctranslate2.models.",
            "WhisperModel(",
            "init_model(",
        ],
    ),
    (
        Phase::Saving,
        &[
            "torch.save(",
            "save_checkpoint",
            "save_model(",
            "save_pretrained(",
            "save_ckpt",
            ".state_dict(",
            "_state_dict_utils",
            "state_dict_hook",
            "Failed to clone() tensor",
            "optim_state_dict",
            "16bit_state_dict",
            "save_16bit",
        ],
    ),
    (
        Phase::SettingUp,
        &[
            "initialize_optimizer_states",
            "_configure_zero_optimizer",
            "_configure_bf16_optimizer",
            "_setup_for_real_optimizer",
            "fp32_partitions",
            "fp16_partitions",
        ],
    ),
    (
        Phase::Gathering,
        &[
            "wait_for_unshard",
            "foreach_all_gather",
            "all_gather_copy_out",
            "_alloc_padded_unsharded",
            "all_gather_coalesced",
            "fetch_sub_module",
        ],
    ),
    (
        Phase::Moving,
        &[
            "model.to(",
            "model.cuda(",
            "module.to(",
            "_configure_distributed_model",
            " _apply(",
            "_move_module_to_device",
            "dispatch_model",
        ],
    ),
    (
        Phase::Wrapping,
        &[
            "_sync_params_and_buffers",
            "_sync_module_states",
            "_init_param_handle",
            "flatten_tensors",
            "FullyShardedDataParallel(",
            "DistributedDataParallel(",
        ],
    ),
    (
        Phase::Collecting,
        &[
            "nested_concat",
            "pad_and_concatenate",
            "pad_across_processes",
            "preds_host",
            "all_preds",
        ],
    ),
    (
        Phase::Evaluating,
        &[
            ".evaluate(",
            " evaluate(",
            "evaluation_loop",
            "prediction_loop",
            "evaluation_step",
            "prediction_step",
            "validation_step",
            "validation_loop",
            "run_validation",
            "run_evaluation",
            "validate(",
            "eval_step(",
            "eval_epoch(",
            "val_epoch(",
            "compute_metrics(",
            "inference_on_dataset",
            "val_loss =",
            "validation_loss =",
            "test_loss =",
            "labels_val",
            "_val)",
            "_test)",
            "val_loader",
            "valid_loader",
            "validation_loader",
            "eval_loader",
            "test_loader",
            "dev_loader",
            "valloader",
            "testloader",
            "val_dataloader",
            "eval_dataloader",
            "test_dataloader",
            " test(",
            " val(",
            " valid(",
            " validation(",
            "eval_model(",
            "evaluate_model(",
            "one_epoch_val(",
            "val_one_epoch(",
            "eval_one_epoch(",
            "run_eval",
            "do_eval(",
        ],
    ),
    (
        Phase::Decoding,
        &[
            "vae.decode",
            "vae_decode",
            "VAEDecode",
            "decode_first_stage",
            "first_stage_model.decode",
            "autoencoder_kl.py",
            "decode_tiled",
        ],
    ),
    (
        Phase::Attending,
        &[
            "scaled_dot_product_attention",
            "attn_weights =",
            "eager_attention_forward",
            "attention_scores =",
            "attention_probs =",
        ],
    ),
    (
        Phase::Optimizing,
        &[
            "optimizer.step(",
            "/optim/",
            "'exp_avg'",
            "'momentum_buffer'",
            "optimizer state",
        ],
    ),
    (
        Phase::Backward,
        &[".backward(", " backward(", "autograd/__init__.py"],
    ),
    (Phase::Generating, &[".generate("]),
    (
        Phase::Communicating,
        &["ncclCommInit", "init_process_group", "new_group("],
    ),
];

/// Words of logs, and of people who tell what happened.
const LOGS: &[(Phase, &[&str])] = &[
    (
        Phase::Serving,
        &[
            "prefill batch",
            "decode batch",
            "avg prompt throughput",
            "application startup complete",
            "fired up and ready to roll",
            "post /v1/",
            "prefill{id",
            "decode{size",
            "received request",
            "added request",
        ],
    ),
    (
        Phase::Capturing,
        &[
            "capturing the model for cuda graphs",
            "capture cuda graph",
            "capturing cuda graph",
        ],
    ),
    (
        Phase::Loading,
        &[
            "checkpoint shards",
            "load weight begin",
            "starting to load model",
            // ComfyUI, before each model; when it is there, it says so.
            "requested to load",
        ],
    ),
    (
        Phase::Evaluating,
        &[
            "running evaluation",
            "evaluating",
            "evaluation step",
            "evaluation phase",
            "evaluation loop",
            "in evaluation",
            "during evaluation",
            "during validation",
            "validation step",
            "in validation",
        ],
    ),
];

/// What a program was doing, by the words of a call or an error.
pub(super) fn of_call(text: &str) -> Option<Phase> {
    static WORDS: LazyLock<Vocabulary<Phase>> =
        LazyLock::new(|| Vocabulary::new(CALLS.iter().copied(), false));
    WORDS.first(text)
}

/// Whether what a line of a log tells of is over.
fn is_over(line: &str) -> bool {
    const OVER: &[&str] = &["100%", "took ", "finished", "completed", "success", " done"];
    OVER.iter().any(|word| line.contains(word))
}

/// `43%|████▎     | 1300/3021 [58:12<…`: the steps done, and all.
pub(super) fn progress(line: &str) -> Option<(u64, u64)> {
    /// What other bars than those of steps are of.
    const OTHERS: [&str; 5] = ["shards", "oading", "Map", "okeniz", "Fetching"];
    if OTHERS.iter().any(|word| line.contains(word)) {
        return None;
    }
    let rest = match line.rsplit_once("%|") {
        Some((_, bar)) => bar.split_once('|')?.1,
        // Without a bar between: `608:  63% 34/54 [00:42<…`.
        None => line.rsplit_once("% ").filter(|_| line.contains(" ["))?.1,
    };
    let (done, rest) = rest.trim_start().split_once('/')?;
    let all = rest.split_once(' ').map_or(rest, |(all, _)| all);
    let (done, all) = (done.parse().ok()?, all.parse().ok()?);
    (done <= all).then_some((done, all))
}

/// The same by a line that may be what is left of a traceback.
pub(super) fn of_line(line: &str) -> Option<Phase> {
    of_call(line).filter(|_| !is_over(line))
}

/// The same by a line of a log.
pub(super) fn of_log(line: &str) -> Option<Phase> {
    static WORDS: LazyLock<Vocabulary<Phase>> =
        LazyLock::new(|| Vocabulary::new(LOGS.iter().copied(), true));
    WORDS.first(line).filter(|_| !is_over(line))
}

/// The same by a traceback: the innermost call that tells, and of those around attention the next.
pub(super) fn of_frames(frames: &[TextFrame]) -> Option<Phase> {
    let mut found = frames.iter().rev().filter_map(|frame| {
        let called = format!("{} {}(", frame.code, frame.function);
        // What trains is given what it validates with, too.
        let code = frame.code.replace("trainer.", "");
        let trains = code.contains("train") || code.contains("fit(");
        of_call(&called)
            .filter(|phase| *phase != Phase::Evaluating || !trains)
            .or_else(|| of_call(&frame.file))
    });
    let inner = found.next()?;
    // To be saved, they are gathered as well.
    if inner == Phase::Gathering && found.any(|phase| phase == Phase::Saving) {
        return Some(Phase::Saving);
    }
    if !inner.is_inner() {
        return Some(inner);
    }
    // Generating is what attention runs in.
    let mut around = Some(inner);
    for phase in found {
        if !phase.is_inner() {
            return Some(phase);
        }
        around = around
            .filter(|_| phase != Phase::Generating)
            .or(Some(phase));
    }
    around
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_by_calls_and_logs() {
        for (text, phase) in [
            (" evaluate(", Some(Phase::Evaluating)),
            ("self._maybe_log_save_evaluate( _inner_training_loop(", None),
            (
                "model.load_state_dict(other.state_dict())",
                Some(Phase::Loading),
            ),
            ("state = model.state_dict()", Some(Phase::Saving)),
            ("return F.linear(x) forward(", None),
            ("deserialized_objects[root_key] _legacy_load(", None),
            (
                "engine = runtime.deserialize_cuda_engine(f.read())",
                Some(Phase::Engine),
            ),
        ] {
            assert_eq!(of_call(text), phase, "{text}");
        }
        assert_eq!(
            of_log("Loading checkpoint shards:  33%|"),
            Some(Phase::Loading)
        );
        assert_eq!(of_log("Loading checkpoint shards: 100%|"), None);
    }

    #[test]
    fn bars_of_progress_tell_steps() {
        for (line, steps) in [
            (
                " 43%|████▎     | 1300/3021 [58:12<6:40:11, 13.95s/it]",
                Some((1300, 3021)),
            ),
            (
                "Epoch 2:   0%|          | 0/7000 [00:00<?, ?it/s]",
                Some((0, 7000)),
            ),
            ("|  43% of 12/24 |", None),
            (
                "2/100 14.1G 1.21: 37%|███▋      | 2710/7329",
                Some((2710, 7329)),
            ),
            (
                "Loading checkpoint shards:  53%|█████  | 8/15 [00:14<00:12]",
                None,
            ),
        ] {
            assert_eq!(progress(line), steps, "{line}");
        }
    }

    #[test]
    fn data_of_a_validation_tell_it_and_not_the_call_that_trains() {
        let frame = |function: &str, code: &str| TextFrame {
            file: "a.py".to_owned(),
            line: 1,
            function: function.to_owned(),
            code: code.to_owned(),
        };
        let main = frame("main", "train(net, train_loader, val_loader)");
        let forward = frame("forward", "return self.conv(x)");
        for (frames, phase) in [
            (vec![main.clone(), forward.clone()], None),
            (
                vec![
                    main.clone(),
                    frame("train", "val_loss = criterion(net(x), labels_val)"),
                    forward.clone(),
                ],
                Some(Phase::Evaluating),
            ),
            (
                vec![main, frame("test", "out = net(x)"), forward],
                Some(Phase::Evaluating),
            ),
        ] {
            assert_eq!(of_frames(&frames), phase, "{frames:?}");
        }
    }

    #[test]
    fn weights_are_gathered_to_compute_or_to_be_saved() {
        let frame = |function: &str| TextFrame {
            file: "a.py".to_owned(),
            line: 1,
            function: function.to_owned(),
            code: String::new(),
        };
        let gather = frame("wait_for_unshard");
        assert_eq!(
            of_frames(&[frame("forward"), gather.clone()]),
            Some(Phase::Gathering)
        );
        assert_eq!(
            of_frames(&[frame("save_checkpoint"), gather]),
            Some(Phase::Saving)
        );
    }

    #[test]
    fn attention_within_an_evaluation_is_the_evaluation() {
        let frame = |function: &str| TextFrame {
            file: "a.py".to_owned(),
            line: 1,
            function: function.to_owned(),
            code: String::new(),
        };
        let attention = frame("eager_attention_forward");
        assert_eq!(
            of_frames(&[frame("evaluate"), attention.clone()]),
            Some(Phase::Evaluating)
        );
        assert_eq!(
            of_frames(&[frame("main"), attention]),
            Some(Phase::Attending)
        );
    }
}
