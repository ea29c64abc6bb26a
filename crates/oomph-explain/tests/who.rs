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

#[test]
fn a_request_that_an_empty_gpu_could_not_serve_is_not_the_fault_of_others() {
    check(
        "Traceback (most recent call last):\n\
         \x20 File \"/me/scripts/finetune.py\", line 99, in new_training_step\n\
         \x20   return old_training_step(batch, batch_idx)\n\
         \x20 File \"/usr/lib/python3.11/site-packages/nemo/collections/asr/modules/rnnt.py\", line 1724, in joint_after_projection\n\
         \x20   res = self.joint_net(inp)  # [B, T, U, V + 1]\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.51 GiB. GPU 0 has a total capacity of 22.09 GiB of which 7.65 GiB is free. Including non-PyTorch memory, this process has 0 bytes memory in use. Of the allocated memory 4.80 GiB is allocated by PyTorch, and 22.38 MiB is reserved by PyTorch but unallocated.",
        &[
            "one request of 18.5 GiB beside 4.8 GiB",
            "the request is what has to be smaller",
            "of a transducer",
        ],
        &["held by other processes", "attention in blocks"],
    );
}

#[test]
fn a_process_of_0_bytes_is_one_that_the_driver_does_not_know() {
    check(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of which 0.50 GiB is free. Including non-PyTorch memory, this process has 0 bytes memory in use. Of the allocated memory 14.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
        &["the message does not say which"],
        &["by other processes (", "most likely by other processes"],
    );
}

#[test]
fn memory_that_ran_out_comes_before_the_fault_that_follows() {
    let lines = [
        "GPUassert: out of memory /home/me/src/relation.hip 559",
        "GPUassert: invalid argument /home/me/src/relation.hip 561",
        "Memory access fault by GPU node-3 (Agent handle: 0x10ab1a0) on address 0x2d000. Reason: Write access to a read-only page.",
    ];
    check(
        &lines.join("\n"),
        &["ran out of GPU memory", "that follows from it", "rocm-smi"],
        &["no matter of memory"],
    );
    // Words of a person are no line of an error, and what comes after a fault does not precede it.
    for order in [
        [lines[2], lines[0]],
        ["It runs out of memory, I think.", lines[2]],
    ] {
        check(
            &order.join("\n"),
            &["an error that does not name memory"],
            &[],
        );
    }
}

#[test]
fn the_kernel_says_of_which_nodes_the_memory_was_used_up() {
    let killed = |heading: &str, row: &str, constraint: &str| {
        format!(
            "[ 1471.436027] Tasks state (memory values in pages):\n\
             [ 1471.438518] [  pid  ]   uid  tgid total_vm      rss {heading} oom_score_adj name\n\
             [ 1471.707912] [  12399]     0 12399  1311306  1311056 {row}             0 a.out\n\
             [ 1471.721506] [  13295]     0 13295      597      0 {row}             0 sh\n\
             [ 1471.734600] oom-kill:constraint={constraint},cpuset=/,mems_allowed=0-2,global_oom,task_memcg=/user.slice,task=a.out,pid=13135,uid=0\n\
             [ 1471.742583] Out of memory: Killed process 13135 (a.out) total-vm:3148072kB, anon-rss:2697304kB, file-rss:1360kB, shmem-rss:0kB, UID:0 pgtables:5312kB oom_score_adj:0"
        )
    };
    for (heading, row) in [
        ("nr_ptes nr_pmds swapents", "20  3  0"),
        ("pgtables_bytes swapents", "10534912  0"),
        (
            "rss_anon rss_file rss_shmem pgtables_bytes swapents",
            "1311000 56 0 10534912  0",
        ),
    ] {
        check(
            &killed(heading, row, "CONSTRAINT_MEMORY_POLICY,nodemask=1"),
            &[
                "its memory policy allows",
                "process 12399 (a.out) held the most, 5.0 GiB",
                "numactl --preferred",
            ],
            &[
                "the host's memory (RAM) was used up",
                "13295",
                "0 B",
                "process 1471",
            ],
        );
        check(
            &killed(heading, row, "CONSTRAINT_CPUSET,nodemask=(null)"),
            &["its cpuset allows", "cpuset.mems"],
            &["the host's memory (RAM) was used up"],
        );
        check(
            &killed(heading, row, "CONSTRAINT_NONE,nodemask=(null)"),
            &["the host's memory (RAM) was used up"],
            &["numactl"],
        );
    }
}

#[test]
fn the_map_of_a_pool_shows_pieces() {
    let account = "2023-10-02 16:36:14.407831: I tensorflow/tsl/framework/bfc_allocator.cc:1107] Sum Total of in-use chunks: 561.92MiB\n\
         2023-10-02 16:36:14.407841: I tensorflow/tsl/framework/bfc_allocator.cc:1109] Total bytes in pool: 3502964736 memory_limit_: 3502964736 available bytes: 0 curr_region_allocation_bytes_: 7005929472\n\
         2023-10-02 16:36:14.407857: I tensorflow/tsl/framework/bfc_allocator.cc:1114] Stats: \n\
         Limit:                      3502964736\n\
         InUse:                       589212672\n\
         MaxInUse:                   3288551168\n";
    let bar = |cells: &str| {
        format!(
            "{account}\n2023-10-02 16:36:14.407887: W tensorflow/tsl/framework/bfc_allocator.cc:497] {cells}"
        )
    };
    check(
        &bar(
            "*_______***************____________*___________***___**_______________*____________*________**______",
        ),
        &["fragmentation", "at most 567.9 MiB", "cuda_malloc_async"],
        &["another moment"],
    );
    check(
        &bar(&("*".repeat(17) + &"_".repeat(83))),
        &["another moment"],
        &["fragmentation"],
    );
}

#[test]
fn a_script_of_diffusers_that_trains_gets_advice_for_training() {
    let text = |end: &str| {
        format!(
            "[rank0]: File \"/opt/lib/python3.10/site-packages/diffusers/models/attention_processor.py\", line 2365, in __call__\n\
             [rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.56 GiB of which 15.88 MiB is free. Including non-PyTorch memory, this process has 23.54 GiB memory in use. Of the allocated memory 22.95 GiB is allocated by PyTorch, and 162.15 MiB is reserved by PyTorch but unallocated.\n\
             {end}"
        )
    };
    check(
        &text("train.py FAILED"),
        &["activation checkpointing"],
        &["enable_model_cpu_offload"],
    );
    check(&text(""), &["enable_model_cpu_offload"], &[]);
}

#[test]
fn vllm_under_ray_has_settings_of_its_own() {
    let text = |file: &str| {
        format!(
            "Traceback (most recent call last):\n\
             \x20 File \"{file}\", line 114, in _init_cache\n\
             \x20   num_blocks = self._run_workers(\n\
             ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n\
             Memory on the node (IP: 10.0.0.1, ID: 17) where the task (task ID: ff, name=Worker.__init__, pid=26332, memory used=4.54GB) was running was 31.27GB / 32.00GB (0.977298), which exceeds the memory usage threshold of 0.95.\n\
             PID\tMEM(GB)\tCOMMAND\n26333\t4.60\tray::Worker.__init__\n26332\t4.54\tray::Worker.__init__\n"
        )
    };
    check(
        &text("/opt/app/vllm/engine/llm_engine.py"),
        &["--swap-space", "2 processes held the most, about 4.6"],
        &["@ray.remote", "look at process"],
    );
    check(&text("/opt/app/mine/engine.py"), &["@ray.remote"], &[]);
}

#[test]
fn a_tpu_that_tensorflow_uses() {
    let error = "Compilation failure: Ran out of memory in memory space hbm. Used 17.60G of 16.00G hbm. Exceeded hbm capacity by 1.60G.";
    check(
        &format!(
            "Error recorded from infeed: Step was cancelled by an explicit call to `Session::Close()`.\n{error}"
        ),
        &["TensorFlow could not get 17.6 GiB", "tf.recompute_grad"],
        &["jax"],
    );
    check(error, &["JAX (XLA) could not get"], &["tf."]);
}

#[test]
fn a_buffer_of_llama_cpp_is_named_by_the_line_of_its_size() {
    check(
        "llama_new_context_with_model: n_ubatch   = 8192\n\
         llama_kv_cache_init:      CUDA0 KV buffer size =  3499.90 MiB\n\
         ggml_cuda_host_malloc: failed to allocate 3296.09 MiB of pinned memory: invalid argument\n\
         llama_new_context_with_model:  CUDA_Host compute buffer size =  3296.09 MiB",
        &["buffers for computing", "nothing has to be done"],
        &["cache of keys and values", "-c 4096"],
    );
}

#[test]
fn ranks_that_cannot_meet_have_no_model_yet() {
    let text = |caller: &str| {
        format!(
            "Traceback (most recent call last):\n\
             \x20 File \"/me/megatron/initialize.py\", line 140, in {caller}\n\
             \x20   torch.distributed.barrier()\n\
             \x20 File \"/opt/lib/python3.8/site-packages/torch/distributed/distributed_c10d.py\", line 2420, in barrier\n\
             \x20   work = default_pg.barrier(opts=opts)\n\
             RuntimeError: CUDA error: out of memory"
        )
    };
    check(
        &text("_compile_dependencies"),
        &[
            "before there was a model",
            "torch.cuda.set_device(local_rank)",
        ],
        &["micro-batch", "smaller batch"],
    );
    check(&text("save_checkpoint"), &[], &["before there was a model"]);
}

#[test]
fn the_table_of_sycl_has_the_size_of_a_gpu() {
    let text = "| 0| [level_zero:gpu:0]|                 Intel Iris Xe Graphics|   12.0|     96|     512|   32| 15370M|            1.3.29803|\n\
         llama_kv_cache_init:      SYCL0 KV buffer size =  4389.00 MiB\n\
         alloc: can't allocate 568118476 Bytes of memory on device/GPU";
    let found = explain_messages(&text::find(text)).unwrap();
    assert!(
        !found
            .message
            .unwrap()
            .unsaid
            .contains(&"how much memory there is")
    );
}

#[test]
fn an_ordinary_array_on_a_full_host_is_no_wrong_shape() {
    let error = |size: &str, shape: &str| {
        format!(
            "numpy.core._exceptions.MemoryError: Unable to allocate {size} for an array with shape ({shape}) and data type float64"
        )
    };
    check(
        &error("502. MiB", "512, 512, 251"),
        &["what else holds the host's memory"],
        &["is wrong makes such a shape"],
    );
    check(
        &error("52.2 GiB", "7000, 1000, 1000"),
        &["is wrong makes such a shape"],
        &[],
    );
}

#[test]
fn what_comfyui_does_already_is_not_advised() {
    let text = |asked: &str| {
        format!(
            "Disabling smart memory management\nComfyUI version: 0.3.64\n\
             torch.OutOfMemoryError: HIP out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 23.98 GiB of which 4.98 GiB is free. Of the allocated memory 18.13 GiB is allocated by PyTorch, and 343.84 MiB is reserved by PyTorch but unallocated."
        )
    };
    check(
        &text("77.52 GiB"),
        &["(Tiled)", "--use-split-cross-attention"],
        &["--lowvram", "--disable-smart-memory", "unload_models"],
    );
    check(
        &text("6.00 GiB"),
        &["--lowvram", "unload_models"],
        &["--disable-smart-memory"],
    );
}

#[test]
fn a_server_of_models_reads_no_data() {
    check(
        "ImportError: CUDA is not available\n\
         2023-07-05T19:55:21.347050Z ERROR text_generation_launcher: Shard process was signaled to shutdown with signal 9",
        &["--quantize", "CUDA is not available"],
        &["data read in parts", "DataLoader"],
    );
}

/// The first step of a text, with its command.
fn first(text: &str) -> String {
    let found = explain_messages(&text::find(text)).unwrap();
    let step = found.next.into_iter().next().unwrap();
    format!("{} · {}", step.command.unwrap_or_default(), step.what)
}

#[test]
fn a_step_takes_nothing_for_granted_that_the_text_does_not_show() {
    // No model, no Python, no PyTorch: neither a batch nor a traceback, and no module of PyTorch's.
    check(
        "[solver] step 12\nCUDA error 2: out of memory at grid.cu:77\n",
        &["print the size of that request"],
        &["batch", "python", "torch", "fewer bits"],
    );
    let illegal = "CUDA error 700: an illegal memory access was encountered at sweep.cu:31";
    check(
        illegal,
        &["does not name memory", "cudaMalloc"],
        &["no shortage", "python", "torch", "traceback"],
    );
    check(
        &format!("  File \"run.py\", line 3, in <module>\n    import torch\n{illegal}"),
        &["no matter of memory", "torch.backends.cudnn.enabled"],
        &["cudaMalloc"],
    );
    check(
        "[E:onnxruntime] Failed to load library libprovider.so with error: libcudnn.so.8: cannot open shared object file: No such file or directory",
        &["LD_LIBRARY_PATH"],
        &["torch"],
    );
    // Weights were loaded, so neither samples nor activations were there, nor is a default of some version known.
    let weights = "  File \"serve.py\", line 9, in <module>\n\
                   \x20   model = Flax.from_pretrained(NAME)\n\
                   external/xla/xla/tsl/framework/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 96.00MiB (rounded to 100663296)requested by op";
    check(
        weights,
        &["a smaller model"],
        &["jax.checkpoint", "the default is", "batch"],
    );
    // Eight ranks in the lines use eight GPUs.
    let rank = |rank: u32| {
        format!(
            "[2025-03-01 10:00:00 TP{rank}] max_total_tokens=4096 is larger than the profiled value -9000. Use the profiled value instead."
        )
    };
    let ranks = (0..8).map(rank).collect::<Vec<_>>().join("\n");
    check(&ranks, &["--tp 16"], &["--tp 2 "]);
    // What fitted for some epochs fits.
    let chainer = |line: &str| {
        format!(
            "{line}\nException in main training loop: out of memory to allocate 99614720 bytes (total 8000000000 bytes)\n  File \"/env/lib/python3.6/site-packages/chainer/training/trainer.py\", line 3, in run"
        )
    };
    assert!(first(&chainer("Epoch: [4] loss 0.1")).contains("used_bytes"));
    assert!(first(&chainer("Epoch: [0] loss 0.9")).contains("minibatch"));
}

#[test]
fn what_the_text_shows_is_neither_missing_nor_denied() {
    let runner = |state: &str| {
        format!(
            "time=2025-01-01T10:00:00Z level=ERROR source=server.go:9 msg=\"runner terminated\" error=\"signal: killed\"\n\
             time=2025-01-01T10:00:04Z level=INFO source=server.go:1 msg=\"system memory\" {state}"
        )
    };
    check(
        &runner("total=\"62.0 GiB\" free=\"55.5 GiB\""),
        &["55.5 GiB of 62.0 GiB free, so hardly for want"],
        &["free -h", "most likely"],
    );
    check(
        &runner("total=\"62.0 GiB\" free=\"0.5 GiB\""),
        &[],
        &["so hardly", "docker inspect"],
    );
    check(
        &format!(
            "cuda driver library failed to get device context 2\n{}",
            runner("total=\"62.0 GiB\" free=\"55.5 GiB\"")
        ),
        &["before, the GPU was short", "dmesg"],
        // No word of a container.
        &["smaller model", "docker inspect"],
    );
    // A share that the text sets is held against its figures.
    let share = |share: &str| {
        format!(
            "serve --mem-fraction-static {share}\n\
             [2025-03-01 10:00:00 TP0] Load weight end. type=M, dtype=torch.bfloat16, avail mem=10.00 GB, mem usage=70.00 GB.\n\
             [2025-03-01 10:00:01 TP0] max_total_tokens=4096 is larger than the profiled value -9000. Use the profiled value instead."
        )
    };
    check(
        &share("0.95"),
        &["would leave 6.0 GiB, so whether the setting took effect"],
        &[],
    );
    check(&share("0.8"), &[], &["took effect"]);
    // By the figures pieces decide, and the setting against them is on already.
    let pieces = |told: &str| {
        format!(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 300.00 MiB. GPU 0 has a total capacity of 39.50 GiB of which 90.00 MiB is free. Process 7 has 39.40 GiB memory in use. Of the allocated memory 36.00 GiB is allocated by PyTorch, and 2.90 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n{told}"
        )
    };
    check(
        &pieces(""),
        &["the pieces decide", "so it may help"],
        &["more than the card has room for", "is_expandable"],
    );
    check(
        &pieces("I run it with expandable segments and it still fails after some hours."),
        &["is_expandable", "it is followed already"],
        &["so it may help"],
    );
    // The line before gives the reason, which is not memory.
    check(
        "n1:5:6 [0] misc/shmutils.cc:3 NCCL WARN Cuda failure 'invalid argument'\n\n\
         n1:5:6 [0] misc/shmutils.cc:9 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9637888)",
        &["CUDA refused", "no line says that memory was short"],
        &["could not get"],
    );
    // A tensor that is more than the GPU while nothing is in use is no matter of the batch first.
    let empty = "bfc_allocator.cc:7] Limit: 3000000000\nLimit:                  3000000000\nInUse:                        4096\n\
                 OP_REQUIRES failed at tile_op.cc:3 : Resource exhausted: OOM when allocating tensor with shape[900000001] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc";
    assert!(
        first(empty).contains("where that size comes from"),
        "{}",
        first(empty)
    );
    // The line before says that no limit but the whole machine's held.
    let killed = "[1.1] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=ld,pid=77,uid=0\n\
                  [1.2] Out of memory: Killed process 77 (ld) total-vm:900000kB, anon-rss:800000kB, file-rss:0kB, shmem-rss:0kB";
    let found = explain_messages(&text::find(killed)).unwrap();
    let unsaid = found.message.unwrap().unsaid;
    assert!(
        !unsaid.iter().any(|what| what.contains("limit")),
        "{unsaid:?}"
    );
    assert!(first(killed).contains("invoked oom-killer"));
    // Libraries ask beside a pool that keeps what was deleted.
    check(
        "  File \"a.py\", line 3, in <module>\n    cupy.fft.fft(x)\ncupy.cuda.cufft.CuFftError: CUFFT_ALLOC_FAILED",
        &["free_all_blocks()", "cuFFT, which asks beside its pool"],
        &["is no cure", "error 2"],
    );
}

#[test]
fn a_line_of_the_log_comes_before_what_somebody_tells_of_memory() {
    let text = |told: &str| {
        format!(
            "{told}\n\
             Traceback (most recent call last):\n\
             \x20 File \"/env/lib/python3.10/site-packages/sglang/srt/router.py\", line 3, in step\n\
             \x20   rows = pool.rows()\n\
             AttributeError: 'NoneType' object has no attribute 'rows'"
        )
    };
    check(
        &text(
            "By default I run out of memory on my card, so I changed a setting and then it ends.",
        ),
        &["none of memory: AttributeError", "somebody tells"],
        &["ran out of GPU memory", "--mem-fraction-static"],
    );
    // A program's own words stay what they are.
    check(
        &text("ERROR: CUDA out of memory while the cache was made"),
        &["did not get the memory"],
        &["none of memory"],
    );
    // That another process ended is no error of its own.
    check(
        "I run out of memory with my model on two cards.\n\
         Traceback (most recent call last):\n\
         \x20 File \"launch.py\", line 3, in <module>\n\
         subprocess.CalledProcessError: Command returned non-zero exit status 1.",
        &[],
        &["none of memory"],
    );
    // The program's own message, whatever is told above it.
    check(
        "With koboldcpp I have a cuda out of memory error when I put all my layers on it.\n\
         CUDA error: the resource allocation failed\n\
         \x20 current device: 1, in function cublas_handle at koboldcpp/ggml-cuda/common.cuh:9",
        &["cuBLAS could not get the memory of its handle", "GPU 1"],
        &["PyTorch", "torch"],
    );
}

#[test]
fn a_dump_without_its_first_line_is_one() {
    let dump = "I0000 00:00:1700000000.1 1 bfc_allocator.cc:1119] Total size in pool: 40.00GiB memory_limit_: 40.00GiB available size: 9B curr_region_allocation_bytes_: 80.00GiB\n\
                I0000 00:00:1700000000.2 1 bfc_allocator.cc:1128] Stats: \n\
                Limit:                        40.00GiB\n\
                InUse:                        30.00GiB\n\
                MaxAllocSize:                 12.00GiB\n";
    check(
        dump,
        &[
            "an account of memory",
            "limit is 40.0 GiB",
            "30.0 GiB of that were in use",
        ],
        &["free -h"],
    );
    let found = explain_messages(&text::find(dump)).unwrap();
    let message = found.message.unwrap();
    assert_eq!(
        (message.memory_name, message.asked_bytes),
        ("GPU memory", None)
    );
    assert_eq!(found.messages.len(), 1);
    check(
        "|            CUDA OOMs: 2            |        cudaMalloc retries: 3         |\n",
        &["an account of memory", "torch.cuda.memory_summary"],
        &[],
    );
    assert!(
        text::find(
            "|            CUDA OOMs: 0            |        cudaMalloc retries: 0         |\n"
        )
        .is_empty()
    );
}

#[test]
fn other_killers_than_the_kernels_are_known() {
    check(
        "It is early-oom that ends it.\n\
         earlyoom[9]: sending SIGTERM to process 4242 uid 1000 \"python3\": oom_score 1280, VmRSS 13900 MiB, cmdline \"python3 main.py\"\n\
         earlyoom[9]: mem avail:   205 of 15236 MiB ( 1.35%), swap free:  186 of 2047 MiB ( 9.08%)\n\
         earlyoom[9]: low memory! at or below SIGTERM limits: mem 10.00%, swap 10.00%\n\
         earlyoom[9]: sending SIGTERM to process 4711 uid 1000 \"python3\": oom_score 1282, VmRSS 13931 MiB, cmdline \"python3 main.py\"",
        &[
            "earlyoom ended python3 (process 4711), which held 13.6 GiB",
            "205.0 MiB of 14.9 GiB could still be had",
            "1 more process was ended as well: 4242",
        ],
        &["nvidia-smi", "signal 9", "dmesg"],
    );
    check(
        "Victim status (found in 8ms):\n  PID:       3334, name: tail, state: R (running), EUID: 0\n  Vm, MiB:   Size: 9000, RSS: 6384 (Anon: 6380), Swap: 0\nImplementing a corrective action:\n  Sending SIGTERM to the victim\n  OK; total response time: 12ms",
        &["nohang ended tail (process 3334), which held 6.2 GiB"],
        &["signal 9"],
    );
    check(
        "oomd kill: 76.12 68.85 66.41 system.slice/train.service 3402866688 ruleset:[memory] detectorgroup:[high] killer:kill_by_memory_size v2",
        &["oomd ended train.service"],
        &["nvidia-smi"],
    );
}

#[test]
fn a_size_that_no_machine_has_is_no_shortage() {
    check(
        "Non-zero status code returned while running Conv node. Name:'conv_9' Status Message: bfc_arena.cc:376 \
         onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 136723103640000",
        &["conv_9", "no shortage", "one thread"],
        &["smaller batch", "could not get", "kSameAsRequested"],
    );
}

#[test]
fn words_that_are_parted_by_a_line_keep_their_figures() {
    check(
        "OutOfMemoryError('Out of memory allocating 2,147,483,648 bytes (allocated so\nfar: 6,442,450,944 bytes).',)",
        &["CuPy could not get 2.0 GiB", "held 6.0 GiB"],
        &["in words that oomph does not know"],
    );
    check(
        "RuntimeError: Prefill out of memory. Try to allocate 900 tokens.Avaliable tokens:4096self.tree_cache.evictable_size()=0",
        &[
            "no room for 900 tokens",
            "4096 as available",
            "not simply full",
        ],
        &["more requests ran at once"],
    );
}

#[test]
fn what_a_search_or_a_build_leaves_out_is_harmless() {
    check(
        "W0101 10:00:00 77 torch/_inductor/select_algorithm.py:1517] [0/0] out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
        &["goes on", "nothing has to be done"],
        &["smaller blocks"],
    );
    let skipped = "[W] [TRT] Skipping tactic 3 due to insufficient memory on requested size of 4294967296 detected for tactic 0x04.";
    check(
        &format!("{skipped}\n[I] Engine built in 20.1 sec."),
        &[
            "built the engine all the same",
            "nothing has to be done: the engine was built",
        ],
        &["whether the build finds another", "--fp16", "config.set_"],
    );
}

#[test]
fn a_line_about_an_earlier_checkpoint_is_no_phase() {
    check(
        "INFO:tensorflow:Saving checkpoints for 100 into m.ckpt.\nResourceExhaustedError: OOM when allocating tensor with shape[64,112,112,64] and type \
         float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        &["TensorFlow could not get 196.0 MiB", "a smaller batch"],
        &["checkpoint was gathered"],
    );
}

#[test]
fn a_step_names_no_product_that_the_text_does_not_show() {
    // C++, whose script nobody can run; and nobody is said to hold what no process is listed with.
    check(
        "terminate called after throwing an instance of 'c10::OutOfMemoryError'\n  what():  CUDA out of memory. Tried to allocate 800.00 MiB. GPU 0 has \
         a total capacity of 8.00 GiB of which 500.00 MiB is free. Process 77 has 6.00 MiB memory in use. Including non-PyTorch memory, this process \
         has 5.50 GiB memory in use. Of the allocated memory 3.50 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated.",
        &["the processes that the message names hold little"],
        &["oomph run", "by other processes"],
    );
    let killed = "kernel: Out of memory and no killable processes...\nkernel: init invoked oom-killer: gfp_mask=0xcc0\nkernel:  mem_cgroup_out_of_memory+0xc2/0xd0";
    check(
        killed,
        &["which process it ended, if any"],
        &["docker", "SLURM", "killer ended"],
    );
    check(
        &format!("srun: launching\n{killed}"),
        &["SLURM: --mem"],
        &["docker"],
    );
    check(
        "Exception: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:2201",
        &["the other end of a connection is gone"],
        &["NCCL"],
    );
}

#[test]
fn a_pool_of_keys_and_values_is_no_batch() {
    check(
        "  File \"/env/sglang/srt/mem_cache/memory_pool.py\", line 7, in _create_buffers\n    self.kv_buffer = torch.zeros(\nRuntimeError: NPU out of \
         memory. Tried to allocate 90.00 GiB (NPU 0; 60.00 GiB total capacity; 25.00 GiB already allocated; 34.00 GiB free; 25.10 GiB reserved in total \
         by PyTorch)",
        &[
            "the cache of keys and values was set aside",
            "--max-total-tokens",
        ],
        &["smaller batch", "--chunked-prefill-size"],
    );
}

#[test]
fn a_request_of_next_to_nothing_asks_who_holds_the_memory_first() {
    let text = "onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 643840";
    check(
        text,
        &["so little that it was full before"],
        &["kSameAsRequested"],
    );
    let found = explain_messages(&text::find(text)).unwrap();
    let first = found.next[0].command.as_deref();
    assert!(
        first.is_some_and(|command| command.starts_with("nvidia-smi")),
        "{first:?}"
    );
}

#[test]
fn a_setting_that_a_message_recommends_is_not_on() {
    check(
        "NCCL error in: NCCLUtils.hpp:317, unhandled cuda error (run with NCCL_DEBUG=INFO for details)\nCuda failure 1 'invalid argument'",
        &["CUDA refused", "NCCL_DEBUG=INFO"],
        &["already on"],
    );
}

#[test]
fn a_figure_with_wide_spaces_is_not_called_missing() {
    let text = "Now used GPU memory 2425.5  MB\n[E] [TRT] 1: [defaultAllocator.cpp::allocate::19] Error Code 1: Cuda Runtime (out of memory)\n\
                [W] [TRT] Requested amount of GPU memory (17920000000 bytes) could not be allocated.";
    let message = explain_messages(&text::find(text))
        .unwrap()
        .message
        .unwrap();
    assert!(
        !message
            .unsaid
            .iter()
            .any(|words| words.starts_with("how much")),
        "{:?}",
        message.unsaid
    );
}

#[test]
fn signal_9_is_no_want_of_memory_whatever_a_path_is_called() {
    let text = "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) for binary located at /data/envs/memory/bin/python3.10 \
                with local_rank: 1 (process ID: 4711)";
    check(
        text,
        &["process 4711 was ended by signal 9, most likely"],
        &["for want of", "does not know"],
    );
    let found = explain_messages(&text::find(text)).unwrap();
    assert!(found.cause.unwrap().confidence < 0.7);
    check(
        "worker 3 at /srv/oom/memtool/run.py: exit code -9",
        &["most likely"],
        &["for want of"],
    );
}

#[test]
fn an_error_without_a_name_may_be_of_memory() {
    check(
        "node7: Test NCCL failure common.cu:1204 'unhandled cuda error (run with NCCL_DEBUG=INFO for details) / '\n .. node7 pid 5: Test failure",
        &["memory may have been short", "NCCL_DEBUG=INFO"],
        &["no matter of memory"],
    );
    let found = explain_messages(&text::find("unhandled cuda error")).unwrap();
    assert!(found.unclear && !found.out_of_memory);
    // What says more comes first.
    check(
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)\nn7:5:6 [0] NCCL WARN Cuda failure 2 'out of memory'",
        &["NCCL could not get"],
        &["may have been short"],
    );
}

#[test]
fn a_launch_that_is_refused_is_no_later_error() {
    check(
        "CUDA error (transport): too many resources requested for launch",
        &[
            "no matter of memory",
            "-maxrregcount",
            "__launch_bounds__",
            "fewer threads",
        ],
        &["CUDA_LAUNCH_BLOCKING", "batch"],
    );
    check(
        "CUDA error: invalid configuration argument",
        &["at most 1,024 threads"],
        &["CUDA_LAUNCH_BLOCKING", "-maxrregcount"],
    );
}

#[test]
fn a_call_below_that_pins_makes_it_the_hosts_memory() {
    let text = "Fatal CUDA Error out of memory at pool.cu:79.\nReturn value 2 from 'cudaMallocHost(&chunk, size * count)'.\nCharm++ fatal error:";
    check(
        text,
        &["could not be pinned", "free -h", "ulimit -l"],
        &["nvidia-smi", "pin_memory"],
    );
    let found = explain_messages(&text::find(text)).unwrap();
    assert_eq!(found.next[0].command.as_deref(), Some("free -h"));
    let message = found.message.unwrap();
    assert_eq!((message.inside, message.memory), (Some("charm++"), "host"));
}

#[test]
fn names_of_modules_and_prompts_tell_the_program() {
    let status = "E0514 1:2:3 7 cuda_dnn.cc:532] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR\n";
    let inside = |text: &str| {
        let found = explain_messages(&text::find(text)).unwrap();
        found.message.unwrap().inside
    };
    assert_eq!(
        inside(&format!(
            "{status}jax.errors.SimplifiedTraceback: For simplicity"
        )),
        Some("jax")
    );
    assert_eq!(inside(status), Some("tensorflow"));
    assert_eq!(
        inside(
            "pjrt_stream_executor_client.cc:3077] Execution of replica 0 failed: Failed to load in-memory CUBIN: CUDA_ERROR_OUT_OF_MEMORY: out of memory"
        ),
        Some("jax")
    );
}

#[test]
fn memory_that_a_collector_freed_after_a_warning_was_enough() {
    let warning = "julia> train()\nWARNING: CUDA memory allocation failed; attempting to free up memory...\n... waiting for pending frees (freed 0 bytes)\n";
    let handled = |text: &str| {
        let found = explain_messages(&text::find(text)).unwrap();
        found.message.unwrap().handled
    };
    let freed = format!("{warning}... running a quick GC (freed 3.100 GiB)");
    assert!(handled(&freed));
    check(
        &freed,
        &["not a failure", "Julia", "CUDA.unsafe_free!"],
        &["nvidia-smi"],
    );
    // It freed nothing, or failed all the same.
    assert!(!handled(warning));
    assert!(!handled(&format!(
        "{freed}\nERROR: Out of GPU memory trying to allocate 2.000 GiB"
    )));
}
