//! Who ran, in which phase, and what the text rules out decide the advice: texts in own words, of which nothing but the
//! lines of the error is anybody's.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use oomph_explain::explain_messages;
use oomph_trace::text;

/// Everything that an answer says: its verdict, its evidence, its steps with their commands, its corrections.
fn answer(text: &str) -> String {
    let found = explain_messages(&text::find(text)).unwrap();
    let cause = found.cause.unwrap();
    let mut said = vec![found.verdict];
    said.extend(cause.evidence.into_iter().map(|item| item.what));
    said.extend(found.fixes.into_iter().map(|fix| fix.what));
    for step in found.next {
        said.extend(step.command);
        said.push(step.what);
    }
    said.extend(
        found
            .message
            .into_iter()
            .flat_map(|message| message.corrections),
    );
    said.join("\n")
}

/// A text, what its answer has to say, and what it must not.
fn check(text: &str, has: &[&str], never: &[&str]) {
    let said = answer(text);
    for words in has {
        assert!(
            said.contains(words),
            "{words} is missing for {text}:\n{said}"
        );
    }
    for words in never {
        assert!(!said.contains(words), "{words} for {text}:\n{said}");
    }
}

#[test]
fn training_in_the_folder_of_an_interface_is_training() {
    check(
        "***** Running training *****\n\
         \x20 Instantaneous batch size per device = 1\n\
         Precision: fp16\n\
         Steps:   0%|          | 0/900 [00:00<?, ?it/s]\n\
         Traceback (most recent call last):\n\
         \x20 File \"/home/me/stable-diffusion-webui/extensions/dream/train.py\", line 4, in train\n\
         \x20   accelerator.backward(loss)\n\
         CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 12.00 GiB total capacity; 10.54 GiB already allocated; 0 bytes free; 10.71 GiB reserved in total by PyTorch)",
        &[
            "activation checkpointing",
            "already on: 16 bits (bf16)",
            "it failed in the first of 900 steps",
        ],
        &["--medvram", "a smaller batch"],
    );
}

#[test]
fn what_an_evaluation_names_is_one() {
    let text = |code: &str| {
        format!(
            "Traceback (most recent call last):\n\
             \x20 File \"run.py\", line 90, in <module>\n\
             \x20   train(net, train_loader, val_loader)\n\
             \x20 File \"run.py\", line 60, in train\n\
             \x20   {code}\n\
             RuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 10.72 GiB total capacity; 9.60 GiB already allocated; 26.62 MiB free; 9.81 GiB reserved in total by PyTorch)"
        )
    };
    check(
        &text("val_loss = criterion(net(image), labels_val)"),
        &["while it evaluated", "torch.no_grad() around it"],
        &["accumulated gradients"],
    );
    check(
        &text("loss = criterion(net(image), labels)"),
        &["accumulated gradients"],
        &["while it evaluated"],
    );
    // Lightning's own loop has it around what it calls.
    check(
        "Sanity Checking DataLoader 0:   0%|          | 0/2 [00:00<?, ?it/s]\n\
         \x20 File \"/env/lib/python3.10/site-packages/lightning/loops/evaluation_loop.py\", line 9, in run\n\
         \x20   self._evaluation_step(batch)\n\
         torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB (GPU 0; 23.69 GiB total capacity; 22.40 GiB already allocated; 0.71 GiB free; 22.75 GiB reserved in total by PyTorch)",
        &["a smaller batch in evaluation"],
        &["torch.no_grad()"],
    );
}

#[test]
fn a_trial_run_of_vllm_is_known_by_its_logger() {
    check(
        "WARNING 04-02 10:00:01 [profiling.py:245] The sequence length used for profiling (max_num_batched_tokens / max_num_seqs = 4096) is too short to hold the multi-modal embeddings in the worst case (20480 tokens in total). This may cause certain multi-modal inputs to fail during inference\n\
         ERROR 04-02 10:00:02 [engine.py:448] CUDA out of memory. Tried to allocate 700.00 MiB. GPU 0 has a total capacity of 23.56 GiB of which 402.62 MiB is free. Including non-PyTorch memory, this process has 23.12 GiB memory in use. Of the allocated memory 22.68 GiB is allocated by PyTorch, and 38.19 MiB is reserved by PyTorch but unallocated.",
        &[
            "vLLM runs its largest batch once",
            "\"video\": 0",
            "while it measured what it needs",
        ],
        &["torch.no_grad()", "oomph run", "--gpu-memory-utilization"],
    );
}

#[test]
fn a_server_that_answers_has_its_own_settings() {
    let text = |line: &str| {
        format!(
            "{line}\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.55 GiB. GPU 0 has a total capacity of 79.11 GiB of which 4.20 GiB is free. Process 99 has 74.90 GiB memory in use. Of the allocated memory 72.95 GiB is allocated by PyTorch, and 90.10 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    };
    check(
        &text(
            "[2025-05-10 12:00:03 TP0] Capture cuda graph begin. This can take up to several minutes.\n\
             [2025-05-10 12:00:40 TP0] Prefill batch. #new-seq: 12, #new-token: 8192\n\
             \x20 File \"/env/lib/python3.10/site-packages/sglang/srt/layers/logits_processor.py\", line 2, in forward",
        ),
        &[
            "while it served requests",
            "--chunked-prefill-size",
            "the pool of keys and values, which SGLang takes",
        ],
        &["while CUDA graphs were captured"],
    );
    check(
        &text(
            "text_generation_client: router/client/src/lib.rs:33: Server error: prefill{id=7 size=1}",
        ),
        &["--cuda-memory-fraction 0.9", "--max-batch-total-tokens"],
        &["torch.no_grad()"],
    );
}

#[test]
fn a_request_beyond_the_gpu_says_how_much_smaller_it_has_to_be() {
    check(
        "CUDA out of memory. Tried to allocate 60.00 GiB (GPU 0; 12.00 GiB total capacity; 2.50 GiB already allocated; 6.00 GiB free; 3.50 GiB reserved in total by PyTorch)",
        &[
            "it has to be 9 times smaller, so half a batch is not enough",
            "attention in blocks",
            "scores of all pairs",
        ],
        &["find the process", "a single request"],
    );
    // Where next to nothing is left, its size is not what decides.
    check(
        "CUDA out of memory. Tried to allocate 5.00 GiB (GPU 0; 24.00 GiB total capacity; 22.50 GiB already allocated; 6.00 MiB free; 22.60 GiB reserved in total by PyTorch)",
        &["memory was full"],
        &["times smaller"],
    );
}

#[test]
fn buffers_of_llama_cpp_have_their_own_ways() {
    check(
        "ggml_cuda_init: found 4 CUDA devices:\n\
         llama_kv_cache_init:      CUDA2 KV buffer size =  3840.00 MiB\n\
         ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4480.00 MiB on device 3: cudaMalloc failed: out of memory\n\
         llama_kv_cache_init: failed to allocate buffer for kv cache",
        &["-c 4096", "--tensor-split", "less for GPU 3"],
        &["-ub"],
    );
    check(
        "llm_load_tensors: offloaded 33/33 layers to GPU\n\
         ggml_backend_cuda_buffer_type_alloc_buffer: allocating 7605.34 MiB on device 0: cudaMalloc failed: out of memory\n\
         llama_model_load: error loading model: unable to allocate CUDA0 buffer",
        &["-ngl N", "a smaller quantisation"],
        &["-c 4096", "-ub", "--cache-type-k"],
    );
    check(
        "time=2025-01-19T10:11:12.123Z level=INFO source=memory.go:356 msg=\"offload to cuda\" layers.model=33 layers.offload=33 layers.split=\"\" memory.available=\"[7.6 GiB]\" memory.required.partial=\"7.2 GiB\" memory.graph.full=\"560.0 MiB\"\n\
         ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1040.00 MiB on device 0: cudaMalloc failed: out of memory\n\
         llama_new_context_with_model: failed to allocate compute buffers",
        &["its estimate was too small", "/set parameter num_gpu 3"],
        &["another version of the program or the driver: by"],
    );
}

#[test]
fn a_session_of_onnx_runtime_that_is_made_has_no_batch() {
    check(
        "2024-05-18 09:46:47.3 [W:onnxruntime:, session_state.cc:1136 VerifyEachNodeIsAssignedToAnEp] Some nodes were not assigned to the preferred execution providers\n\
         2024-05-18 09:46:49.6 [E:onnxruntime:, inference_session.cc:1532 operator()] Exception during initialization: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:368 void* onnxruntime::BFCArena::AllocateRawInternal(size_t) Failed to allocate memory for requested buffer of size 90177536",
        &[
            "another copy of the model",
            "while weights were loaded",
            "86.0 MiB of GPU memory",
        ],
        &["a smaller batch", "cudnn_conv_use_max_workspace"],
    );
}

#[test]
fn tensorflow_counts_samples_in_a_shape() {
    check(
        "2024-05-18 10:00:00.1: W tensorflow/core/framework/op_kernel.cc:1431] OP_REQUIRES failed at conv_ops.cc:573 : Resource exhausted: OOM when allocating tensor with shape[295,64,256,256] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        &["its first side, 295", "a tf.data pipeline yields"],
        &["TF_FORCE_GPU_ALLOW_GROWTH"],
    );
}

#[test]
fn a_summary_and_figures_of_steps_tell_growth_from_a_first_step() {
    let oom = "CUDA out of memory. Tried to allocate 420.00 MiB (GPU 1; 11.91 GiB total capacity; 10.87 GiB already allocated; 316.25 MiB free; 11.07 GiB reserved in total by PyTorch)";
    check(
        &format!(
            "{oom}\n\
             |        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n\
             | Allocated memory      |   10656 MB |   10932 MB |   19094 MB |    8437 MB |"
        ),
        &["nothing has grown from step to step"],
        &["look alike"],
    );
    check(
        &format!(
            "step 1 loss 3.1 mem 7.2GB\nstep 2 loss 3.0 mem 8.6GB\nstep 3 loss 2.9 mem 10.1GB\n{oom}"
        ),
        &["use grows as it runs", "torch.cuda.memory_allocated()"],
        &[],
    );
    let second = oom.replace("10.87", "11.20");
    check(
        &format!("{oom}\nretrying\n{second}\n  File \"train.py\", line 1, in <module>"),
        &["2 failures in the text"],
        &[],
    );
}

#[test]
fn advice_that_is_followed_already_is_not_given() {
    let text = |line: &str| {
        format!(
            "{line}\nRuntimeError: CUDA out of memory. Tried to allocate 90.00 MiB (GPU 0; 23.70 GiB total capacity; 22.06 GiB already allocated; 20.56 MiB free; 22.35 GiB reserved in total by PyTorch)"
        )
    };
    check(
        &text("Using native 16bit precision."),
        &["already on: 16 bits"],
        &[],
    );
    check(
        &text(
            "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`.\nEpoch 1: loss.backward()",
        ),
        &["already on: activation checkpointing"],
        &[],
    );
}

#[test]
fn processes_of_a_table_that_fill_a_gpu_are_named() {
    check(
        "RuntimeError: CUDA out of memory. Tried to allocate 16.00 MiB (GPU 0; 31.75 GiB total capacity; 1.12 GiB already allocated; 11.50 MiB free; 1.20 GiB reserved in total by PyTorch)\n\
         |    0   N/A  N/A     10233      C   python                          15021MiB |\n\
         |    0   N/A  N/A     10987      C   python                          13803MiB |",
        &["kill 10233 10987"],
        &[],
    );
}

#[test]
fn buffers_of_xla_are_told_by_their_shape() {
    check(
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 111289565184 bytes.\n\
         \tBuffer 12:\n\
         \t\tSize: 12.47GiB\n\
         \t\tOperator: op_name=\"jit(f)/jit(main)/while/body/layers/while/body/dynamic_update_slice\"\n\
         \t\tShape: f32[48,512,532,256]\n\
         \tBuffer 13:\n\
         \t\tSize: 12.47GiB\n\
         \t\tShape: f32[48,512,532,256]",
        &["f32[48,512,532,256] (2 of them): by its name what all rounds of a loop"],
        &[],
    );
}

#[test]
fn a_traceback_below_a_message_is_its_own() {
    check(
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 9.12 GiB is free. Process 88 has 70.02 GiB memory in use. Of the allocated memory 66.50 GiB is allocated by PyTorch, and 2.12 GiB is reserved by PyTorch but unallocated.\n\
         [rank3]:   File \"/env/lib/python3.11/site-packages/transformers/loss/loss_utils.py\", line 47, in ForCausalLMLoss\n\
         [rank3]:     logits = logits.float()",
        &["one more copy of the logits", "chunked cross-entropy"],
        &[],
    );
}

#[test]
fn an_engine_within_a_job_that_trains_has_that_jobs_settings() {
    check(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.90 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.90 GiB is free. Process 4123 has 77.20 GiB memory in use. Of the allocated memory 70.10 GiB is allocated by PyTorch, and 4.70 GiB is reserved by PyTorch but unallocated.\n\
         \x20 File \"/opt/verl/verl/workers/fsdp_workers.py\", line 612, in generate_sequences\n\
         \x20   output = self.rollout.generate_sequences(prompts)\n\
         \x20 File \"/env/lib/python3.10/site-packages/vllm/worker/worker.py\", line 92, in wake_up\n\
         \x20   allocator.wake_up(tags)",
        &["gpu_memory_utilization=0.4", "free_cache_engine"],
        &["--gpu-memory-utilization", "--enforce-eager"],
    );
}

/// How many steps an answer has.
fn steps(text: &str) -> usize {
    explain_messages(&text::find(text)).unwrap().next.len()
}

#[test]
fn bare_words_of_cuda_below_an_evaluation_are_its_usual_shortage() {
    let text = |function: &str, more: &str| {
        format!(
            "Traceback (most recent call last):\n\
             \x20 File \"learn.py\", line 88, in <module>\n\
             \x20   main()\n\
             \x20 File \"learn.py\", line 71, in {function}\n\
             \x20   kept = outputs.clone()\n\
             RuntimeError: CUDA error: out of memory{more}"
        )
    };
    check(
        &text("validate", ""),
        &["while it evaluated", "torch.no_grad() around it"],
        &[
            "outside the framework's allocator",
            "set_per_process_memory_fraction",
            "CUDA_LAUNCH_BLOCKING",
        ],
    );
    check(
        &text(
            "setup",
            "\nCUDA kernel errors might be asynchronously reported at some other API call",
        ),
        &["outside the framework's allocator", "CUDA_LAUNCH_BLOCKING"],
        &["set_per_process_memory_fraction"],
    );
}

#[test]
fn an_evaluation_of_the_trainer_keeps_what_the_model_returns() {
    check(
        "Traceback (most recent call last):\n\
         \x20 File \"tune.py\", line 40, in <module>\n\
         \x20   trainer.evaluate()\n\
         \x20 File \"/env/lib/python3.10/site-packages/transformers/trainer.py\", line 3200, in evaluation_loop\n\
         \x20   loss, logits, labels = self.prediction_step(model, inputs, loss_only)\n\
         torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of 23.64 GiB of which 900.00 MiB is free. Including non-PyTorch memory, this process has 22.70 GiB memory in use. Of the allocated memory 22.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated.",
        &["eval_accumulation_steps", "preprocess_logits_for_metrics"],
        &["torch.no_grad() around it"],
    );
}

#[test]
fn a_version_by_its_words_gets_no_setting_that_it_lacks() {
    let text = |end: &str| {
        format!(
            "RuntimeError: CUDA out of memory. Tried to allocate 1.60 GiB (GPU 0; 31.72 GiB total capacity; 23.50 GiB already allocated; 1.50 GiB free; {end}"
        )
    };
    let settings = &["max_split_size_mb", "expandable_segments", "ALLOC_CONF"];
    check(&text("5.40 GiB cached)"), &["before 1.5"], settings);
    check(
        &text("28.90 GiB reserved in total by PyTorch)"),
        &["1.5 to 1.9", "padded, grouped by length"],
        settings,
    );
    check(
        &text(
            "28.90 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        ),
        &["keep large pieces whole"],
        &["1.5 to 1.9"],
    );
}

#[test]
fn what_no_empty_card_holds_is_nobody_elses() {
    check(
        "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n\
         Currently allocated     : 9.40 GiB\n\
         Requested               : 17.20 GiB\n\
         Device limit            : 23.68 GiB\n\
         Free (according to CUDA): 11.50 MiB\n\
         PyTorch limit (set by user-supplied memory fraction)\n\
         \x20                       : 17179869184.00 GiB",
        &[
            "one request of 17.2 GiB beside 9.4 GiB",
            "attention in blocks",
        ],
        &["nvidia-smi", "leaks from step to step"],
    );
    // With half a batch of all that is in use there is room.
    check(
        "RuntimeError: CUDA out of memory. Tried to allocate 5.00 GiB (GPU 0; 15.90 GiB total capacity; 12.60 GiB already allocated; 2.10 GiB free; 12.80 GiB reserved in total by PyTorch)",
        &["3 times smaller, unless what tensors hold shrinks with it"],
        &["half a batch is not enough"],
    );
}

#[test]
fn what_may_be_libraries_is_not_called_another_process() {
    check(
        "  File \"/env/lib/python3.8/site-packages/torch/autograd/__init__.py\", line 132, in backward\n\
         \x20   allow_unreachable=True)\n\
         RuntimeError: CUDA out of memory. Tried to allocate 700.00 MiB (GPU 0; 14.76 GiB total capacity; 9.60 GiB already allocated; 400.00 MiB free; 10.00 GiB reserved in total by PyTorch)",
        &["the message does not say which", "a smaller batch"],
        &["most likely by other processes"],
    );
}

#[test]
fn weights_gathered_from_shards_need_finer_shards() {
    check(
        "Traceback (most recent call last):\n\
         \x20 File \"/env/lib/python3.12/site-packages/torch/distributed/_composable/fsdp/_fsdp_param_group.py\", line 257, in wait_for_unshard\n\
         \x20   foreach_all_gather_copy_out(\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 2 has a total capacity of 23.43 GiB of which 200.00 MiB is free. Including non-PyTorch memory, this process has 23.20 GiB memory in use. Of the allocated memory 22.40 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated.",
        &["gathered from their shards", "CPUOffload", "finer units"],
        &["a smaller batch"],
    );
}

#[test]
fn servers_get_the_lever_of_what_failed() {
    check(
        "RuntimeError: Not enough memory to handle 8192 prefill tokens. You need to decrease `--max-batch-prefill-tokens`",
        &["--max-batch-prefill-tokens 4096", "trial run"],
        &["nothing is left for keys", "--cuda-memory-fraction"],
    );
    let cache = |length: u64| {
        format!(
            "ValueError: The model's max seq len ({length}) is larger than the maximum number of tokens that can be stored in KV cache (4000). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    };
    check(
        &cache(32000),
        &[
            "8.0 times",
            "--max-model-len 4000",
            "--enable-chunked-prefill",
        ],
        &["--gpu-memory-utilization"],
    );
    check(
        &cache(5000),
        &["1.2 times", "--gpu-memory-utilization 0.95"],
        &["--enable-chunked-prefill"],
    );
    let ollama = "Error: llama runner process has terminated: cudaMalloc failed: out of memory\n\
         ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 682903040\n\
         llama_new_context_with_model: failed to allocate compute buffers";
    check(
        ollama,
        &["num_gpu N", "num_batch"],
        &["OLLAMA_CONTEXT_LENGTH", "q8_0"],
    );
    assert!(steps(ollama) <= 4);
}

#[test]
fn a_full_pool_of_tensorflow_needs_a_smaller_job() {
    check(
        "2019-11-02 10:20:25.247548: I tensorflow/core/common_runtime/bfc_allocator.cc:645] Sum Total of in-use chunks: 9.00GiB\n\
         2019-11-02 10:20:25.247560: I tensorflow/core/common_runtime/bfc_allocator.cc:647] Stats: \n\
         Limit:                  9663676416\n\
         InUse:                  9663676416\n\
         MaxInUse:               9663676416\n\
         NumAllocs:                    1204\n\
         MaxAllocSize:            128971776\n",
        &["tensors in use fill it", "a smaller batch"],
        &["ALLOW_GROWTH", "nvidia-smi", "memory_fraction"],
    );
}

#[test]
fn attention_that_is_written_out_is_the_first_to_change() {
    let found = explain_messages(&text::find(
        "Traceback (most recent call last):\n\
         \x20 File \"learn.py\", line 9, in <module>\n\
         \x20   loss = net(batch)\n\
         \x20 File \"learn.py\", line 4, in forward\n\
         \x20   attn_weights = q @ k.transpose(-2, -1)\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of which 1.10 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in use. Of the allocated memory 21.90 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated.",
    ))
    .unwrap();
    let first = found.next.first().unwrap();
    assert_eq!(
        first.command.as_deref(),
        Some("attn_implementation=\"sdpa\"")
    );
    assert!(found.next.len() <= 4);
}

#[test]
fn requests_of_several_tries_are_seen_together() {
    let of_try = |asked: &str, held: &str| {
        format!(
            "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n\
             Currently allocated     : {held} GiB\n\
             Requested               : {asked} GiB\n\
             Device limit            : 23.68 GiB\n\
             Free (according to CUDA): 11.50 MiB\n\n"
        )
    };
    check(
        &(of_try("40.00", "9.80") + "with fewer frames:\n" + &of_try("20.00", "9.20")),
        &["40.0 GiB, 20.0 GiB", "has to go on shrinking"],
        &["nvidia-smi"],
    );
}

#[test]
fn bare_words_of_cuda_below_a_forward_pass_are_the_jobs_own_shortage() {
    let found = explain_messages(&text::find(
        "  File \"main.py\", line 212, in train\n\
         \x20   output = model(images)\n\
         \x20 File \"/env/lib/python3.6/site-packages/torch/nn/modules/module.py\", line 477, in __call__\n\
         \x20   result = self.forward(*input, **kwargs)\n\
         RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
    ))
    .unwrap();
    let first = found.next.first().unwrap();
    assert!(first.what.starts_with("a smaller batch"), "{first:?}");
}

#[test]
fn a_model_server_that_the_kernel_ended_needs_a_smaller_model() {
    check(
        "Mar 01 10:00:00 box kernel: Out of memory: Killed process 4242 (ollama) total-vm:90000000kB, anon-rss:60000000kB, file-rss:0kB",
        &["a smaller quantisation of the model"],
        &["nvidia-smi"],
    );
}
