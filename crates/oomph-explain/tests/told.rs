//! What people tell around a message decides the advice: texts in own words, of which nothing but the lines of the error is anybody's.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use oomph_explain::explain_messages;
use oomph_trace::text;

const FULL: &str = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 15.78 GiB total capacity; \
                    14.20 GiB already allocated; 20.75 MiB free; 14.60 GiB reserved in total by PyTorch)";

/// The verdict, and each step with its command.
fn answer(text: &str) -> (String, Vec<String>) {
    let found = explain_messages(&text::find(text)).unwrap();
    let steps = found.next.into_iter().map(|step| {
        let command = step.command.unwrap_or_default();
        format!("{command} · {}", step.what)
    });
    (found.verdict, steps.collect())
}

/// A text, what its verdict says, what its first step has, and what no step may have.
fn check(text: &str, says: &str, first: &str, never: &[&str]) {
    let (verdict, steps) = answer(text);
    assert!(verdict.contains(says), "{says} is missing:\n{verdict}");
    assert!(steps[0].contains(first), "{first} is not first: {steps:#?}");
    for words in never {
        assert!(
            !steps.iter().any(|step| step.contains(words)),
            "{words}: {steps:#?}"
        );
    }
}

#[test]
fn workers_of_a_service_share_the_gpu() {
    check(
        "We serve the detector with gunicorn -w 6 app:app behind a proxy.\n\
         CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.80 GiB total capacity; 1.10 GiB already allocated; 6.75 MiB free; 1.20 GiB reserved in total by PyTorch)",
        "6 workers of one service",
        "one or two in place of 6",
        &[],
    );
}

#[test]
fn what_fails_while_ranks_are_joined_is_no_step() {
    let (verdict, _) = answer(&format!(
        "Epoch 1:   0%|          | 0/20 [00:00<?, ?it/s]\nTraceback (most recent call last):\n  File \"run.py\", line 8, in main\n    \
         net = DistributedDataParallel(net)\n  File \"torch/distributed/utils.py\", line 309, in _sync_params_and_buffers\n    \
         dist._broadcast_coalesced(\n{FULL}"
    ));
    assert!(!verdict.contains("first of 20 steps"), "{verdict}");
    assert!(verdict.contains("wrapped for the job's ranks"), "{verdict}");
}

#[test]
fn more_ranks_than_gpus() {
    check(
        &format!("CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc_per_node=8 tune.py\n{FULL}"),
        "8 processes on 2 GPUs",
        "2 in place of 8",
        &[],
    );
    let (verdict, _) = answer(&format!(
        "CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc_per_node=2 tune.py\n{FULL}"
    ));
    assert!(!verdict.contains("processes on"), "{verdict}");
}

#[test]
fn slots_of_a_server_have_a_context_each() {
    check(
        "ollama[77]: llama_context: n_ctx_per_seq (16384) < n_ctx_train (32768) -- the full capacity of the model will not be utilized\n\
         ollama[77]: llama_kv_cache_unified: kv_size = 131072, type_k = 'f16', type_v = 'f16', n_layer = 28, can_shift = 1, padding = 32\n\
         ollama[77]: llama_kv_cache_unified:      CUDA0 KV buffer size = 14336.00 MiB\n\
         ollama[77]: ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9100.00 MiB on device 0: cudaMalloc failed: out of memory",
        "8 requests at once",
        "OLLAMA_NUM_PARALLEL=1",
        &["num_gpu"],
    );
}

#[test]
fn what_was_tried_in_vain_is_not_advised() {
    let text = "I tried --gpu-memory-utilization and --max-num-seqs with --max-num-batched-tokens already, no luck.\n\
                python -m vllm.entrypoints.openai.api_server --model some/thing\n\
                  File \"/venv/vllm/worker/model_runner.py\", line 7, in execute_model\n";
    let (_, steps) = answer(&format!("{text}{FULL}"));
    for words in ["--gpu-memory-utilization", "--max-num-seqs"] {
        assert!(!steps.iter().any(|step| step.contains(words)), "{steps:#?}");
    }
    let (_, steps) = answer(&format!(
        "It fails no matter how small the batch is.\nloss.backward()\n{FULL}"
    ));
    assert!(!steps.iter().any(|step| step.contains("a smaller batch")));
}

#[test]
fn sizes_that_are_set_stand_beside_the_advice() {
    for (set, says) in [
        (
            "python run.py --batch_size 48 --seq_len 900",
            "now: --batch_size 48",
        ),
        ("# Minibatch-size: 24", "now: Minibatch-size 24"),
        ("cfg.SOLVER.IMS_PER_BATCH = 12", "now: IMS_PER_BATCH 12"),
    ] {
        let (_, steps) = answer(&format!("{set}\nloss.backward()\n{FULL}"));
        assert!(steps.iter().any(|step| step.contains(says)), "{steps:#?}");
    }
    // No batch is smaller than one sample.
    let (_, steps) = answer(&format!(
        "cfg.SOLVER.IMS_PER_BATCH = 1\nloss.backward()\n{FULL}"
    ));
    assert!(!steps.iter().any(|step| step.contains("smaller batch")));
}

#[test]
fn weights_in_32_bits_by_a_flag() {
    check(
        "python -m vllm.entrypoints.openai.api_server --model meta-llama/Meta-Llama-3-8B-Instruct --dtype=float32\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 100.00 MiB is free. Including non-PyTorch memory, this process has 23.50 GiB memory in use. Of the allocated memory 23.10 GiB is allocated by PyTorch, and 9.00 MiB is reserved by PyTorch but unallocated.",
        "in 32 bits",
        "--dtype half",
        &["--max-model-len"],
    );
}

#[test]
fn a_share_of_a_server_leaves_what_others_hold() {
    check(
        "from vllm import LLM\nllm = LLM(model=\"facebook/opt-350m\", max_model_len=1024)\n\
         torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 900.00 MiB (GPU 0; 23.69 GiB total capacity; 13.40 GiB already allocated; 300.00 MiB free; 13.50 GiB reserved in total by PyTorch)",
        "held outside",
        "gpu_memory_utilization=0.50",
        &["max_model_len=8192"],
    );
}

#[test]
fn a_request_that_a_person_rounds_is_not_in_use() {
    let text = "Why does it fail with only ~52MB allocated on the GPU?\n\
                RESOURCE_EXHAUSTED: Out of memory while trying to allocate 54525952 bytes.";
    let found = explain_messages(&text::find(text)).unwrap();
    let evidence = found.cause.unwrap().evidence;
    assert!(!evidence.iter().any(|item| item.what.starts_with("in use")));
}

#[test]
fn what_a_program_wants_is_not_what_the_card_has() {
    let (verdict, _) = answer(
        "It wants far too much VRAM, 60 GB for such a small thing.\n\
         ggml_backend_cuda_buffer_type_alloc_buffer: allocating 41000.00 MiB on device 0: cudaMalloc failed: out of memory",
    );
    assert!(!verdict.contains("60.0 GiB"), "{verdict}");
}

#[test]
fn a_small_gpu_that_is_full_of_its_own_tensors_is_not_full_of_others() {
    let (verdict, _) = answer(
        "CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 8.00 GiB total capacity; 6.00 GiB already allocated; 0 bytes free; 6.20 GiB reserved in total by PyTorch)",
    );
    assert!(
        verdict.contains("this job's tensors hold 6.0 GiB"),
        "{verdict}"
    );
}

#[test]
fn one_buffer_of_llama_cpp_that_is_larger_than_the_card() {
    check(
        "The card has 8 GiB of VRAM.\n\
         ggml_backend_cuda_buffer_type_alloc_buffer: allocating 12000.00 MiB on device 0: cudaMalloc failed: out of memory",
        "more than the 8.0 GiB",
        "-c 4096",
        &["--cache-type-k"],
    );
}

#[test]
fn a_process_that_the_kernel_ended_is_watched() {
    check(
        "[99.1] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=python3,pid=77,uid=0\n\
         [99.2] Out of memory: Killed process 77 (python3) total-vm:53312244kB, anon-rss:15451456kB, file-rss:74816kB, shmem-rss:12296kB, UID:0 pgtables:69068kB oom_score_adj:0",
        "python3 (process 77)",
        "ps -o rss=",
        &["nvidia-smi"],
    );
}

#[test]
fn rmm_without_figures_asks_first_who_holds_the_gpu() {
    check(
        "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /opt/envs/rapids/include/rmm/mr/device/cuda_memory_resource.hpp",
        "RMM",
        "nvidia-smi",
        &[],
    );
}

#[test]
fn an_interface_for_language_models_is_none_for_pictures() {
    check(
        &format!(
            "Starting the web UI...\nC:\\oobabooga_windows\\installer_files\\env\\python.exe server.py\n{FULL}"
        ),
        "memory was full",
        "a part of the layers on the CPU",
        &["--medvram"],
    );
}

#[test]
fn one_request_is_derived_from_the_numbers_of_a_line() {
    let found = explain_messages(&text::find(
        "We vmap over 1500 starts, and each makes a 3000x3000 matrix.\n\
         RESOURCE_EXHAUSTED: Out of memory while trying to allocate 54000000000 bytes.",
    ))
    .unwrap();
    let evidence = found.cause.unwrap().evidence;
    let words = "1500 × 3000 × 3000 elements of 4 bytes, whose sides line 1 tells";
    assert!(
        evidence.iter().any(|item| item.what.contains(words)),
        "{evidence:#?}"
    );
}

#[test]
fn logits_are_derived_from_sizes_that_are_set() {
    check(
        "per_device_train_batch_size=8, max_seq_length=4096, trainer.train()\n\
         \x20 File \"/venv/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py\", line 900, in forward\n\
         \x20   logits = logits.float()\n\
         torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 15.66 GiB. GPU 0 has a total capacity of 79.15 GiB of which 9.31 GiB is free. Including non-PyTorch memory, this process has 69.83 GiB memory in use. Of the allocated memory 68.90 GiB is allocated by PyTorch, and 410.15 MiB is reserved by PyTorch but unallocated.",
        "8 × 4096 tokens by a vocabulary of about 128",
        "use_liger_kernel=True",
        &[],
    );
}

#[test]
fn what_a_listing_does_last_is_what_ran() {
    let (verdict, _) = answer(&format!(
        "pipe = StableDiffusionXLPipeline.from_pretrained(\"a/b\", torch_dtype=torch.float16)\nimage = pipe(prompt, height=1024)\n{FULL}"
    ));
    assert!(!verdict.contains("weights were loaded"), "{verdict}");
}

#[test]
fn tensorflow_began_on_a_gpu_that_was_full() {
    check(
        "I tensorflow/core/common_runtime/gpu/gpu_device.cc:1613] Created device /job:localhost/replica:0/task:0/device:GPU:0 with 310 MB memory:  -> device: 0, name: NVIDIA GeForce RTX 3080\n\
         ResourceExhaustedError: OOM when allocating tensor with shape[4,32,256,256] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        "could take no more than 310.0 MiB",
        "nvidia-smi",
        &[],
    );
}

#[test]
fn a_heap_as_large_as_the_limit() {
    let (_, steps) = answer(
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n    Limits:\n      memory:  2Gi\n    Environment:\n      JAVA_OPTS:  -Xmx2g",
    );
    assert!(
        steps.iter().any(|step| step.contains("MaxRAMPercentage")),
        "{steps:#?}"
    );
}

#[test]
fn a_model_in_a_heading_is_no_size() {
    let (verdict, _) = answer(
        "ollama run somebody/some:70b says that the model requires more system memory than is available\n\
         Error: model requires more system memory (41.2 GiB) than is available (27.6 GiB)",
    );
    assert!(
        verdict.contains("27.6 GiB") || !verdict.contains("70 B"),
        "{verdict}"
    );
}

#[test]
fn what_the_text_itself_advises_is_a_step() {
    let darknet = " used slow CUDNN algo without Workspace! Need memory: 3000000, available: 2000000\n Try to set subdivisions=32 in your cfg-file. \n\
                   CUDA Error: out of memory\ndarknet: ./src/utils.c:325: error: Assertion `0' failed.";
    check(darknet, "did not get the memory", "subdivisions=32", &[]);
    // Done already, in vain, or known to mislead.
    let set = format!("./darknet detector train --subdivisions=32\n{darknet}");
    let vain = format!("I tried subdivisions=32 but it still fails the same way\n{darknet}");
    let workspace =
        "Try increasing the limit: set max_workspace_size=4096\nCUDA Error: out of memory";
    for text in [set.as_str(), vain.as_str(), workspace] {
        let (_, steps) = answer(text);
        assert!(
            !steps.iter().any(|step| step.contains("itself advises")),
            "{steps:#?}"
        );
    }
    // A step that says the same is there, and better.
    let (_, steps) = answer(
        "ValueError: To serve at least one request with the models's max seq len (65536), (10.00 GiB KV cache is needed, which is larger than the \
         available KV cache memory (3.00 GiB). Based on the available memory, the estimated maximum model length is 19660. Try increasing \
         `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
    );
    assert!(steps[0].contains("--max-model-len 19660"), "{steps:#?}");
    assert!(
        !steps.iter().any(|step| step.contains("itself advises")),
        "{steps:#?}"
    );
}

#[test]
fn figures_and_settings_of_two_runs_in_one_text() {
    let text = "with kv-cache-dtype fp8 and --max-model-len 40000\nAvailable KV cache memory: 9.00 GiB\nGPU KV cache size: 200,000 tokens\n\
                with kv-cache-dtype fp8 and --max-model-len 90000\nValueError: To serve at least one request with the models's max seq len (90000), \
                (6.00 GiB KV cache is needed, which is larger than the available KV cache memory (4.00 GiB). Based on the available memory, the \
                estimated maximum model length is 60000.";
    let found = explain_messages(&text::find(text)).unwrap();
    let shown = format!("{found:?}");
    assert!(!shown.contains("as the text lists it"), "{shown}");
    assert!(!shown.contains("200,000"), "{shown}");
    let (_, steps) = answer(text);
    assert!(
        !steps
            .iter()
            .any(|step| step.contains("twice as many tokens")),
        "{steps:#?}"
    );
    // Another rank of the same run has nearly the same.
    let rank = text.replace("memory: 9.00", "memory: 3.80");
    let shown = format!("{:?}", explain_messages(&text::find(&rank)).unwrap());
    assert!(shown.contains("as the text lists it"), "{shown}");
}
