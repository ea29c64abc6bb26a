//! What no answer may have, whatever the text: training where a program trains nothing, another maker's tools, a batch while weights are
//! loaded, a phase or a cause that the text does not show, a figure of the text that is called missing.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::path::Path;

use oomph_explain::{Explanation, explain_messages};
use oomph_trace::text::{self, Hardware, OomMessage, Program};

fn explained(text: &str) -> Explanation {
    explain_messages(&text::find(text)).unwrap()
}

/// The steps, each with its command.
fn steps(found: &Explanation) -> Vec<String> {
    let words = |step: &oomph_explain::NextStep| {
        format!("{} · {}", step.command.as_deref().unwrap_or(""), step.what)
    };
    found.next.iter().map(words).collect()
}

/// The texts of all tables.
fn fixtures() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/messages");
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "toml") {
            let table: toml::Table =
                toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
            let rows = table.get("message").and_then(toml::Value::as_array);
            let of_row = |row: &toml::Value| Some(row.get("text")?.as_str()?.to_owned());
            texts.extend(rows.into_iter().flatten().filter_map(of_row));
        }
    }
    assert!(texts.len() > 900, "{}", texts.len());
    texts
}

/// Words of advice for jobs that train.
const TRAINING: [&str; 6] = [
    "activation checkpointing",
    "gradient",
    "LoRA",
    "the optimizer",
    "no_grad",
    "gradient_checkpointing",
];
/// What only NVIDIA's GPUs have, or CUDA's build of PyTorch.
const NVIDIA: [&str; 4] = [
    "nvidia-smi --query",
    "CUDA_LAUNCH_BLOCKING",
    "TF_FORCE_UNIFIED_MEMORY",
    "oomph run",
];

/// The steps of a text that its program or its platform rule out.
fn strange(text: &str) -> Vec<String> {
    let messages: Vec<OomMessage> = text::find(text);
    let Some(found) = explain_messages(&messages) else {
        return Vec::new();
    };
    let infers = |message: &OomMessage| {
        message.program.only_infers() || message.inside.is_some_and(Program::only_infers)
    };
    let trains = ["rollout", "backward(", "optimizer.step", "grpo", "verl"];
    let training = trains.iter().any(|word| text.contains(word));
    let elsewhere =
        |message: &OomMessage| !matches!(message.hardware, Hardware::Gpu | Hardware::Jetson);
    let mut wrong: Vec<&str> = Vec::new();
    if !training && messages.iter().all(infers) {
        wrong.extend(TRAINING);
    }
    if messages.iter().all(elsewhere) {
        wrong.extend(NVIDIA);
    }
    steps(&found)
        .into_iter()
        .filter(|step| wrong.iter().any(|word| step.contains(word)))
        .collect()
}

#[test]
fn no_step_is_for_another_kind_of_program_or_another_maker() {
    for text in fixtures() {
        assert_eq!(strange(&text), [] as [String; 0], "{text}");
    }
}

/// The same failure of PyTorch's in each program, on each platform, in each phase.
#[test]
fn programs_platforms_and_phases_in_all_combinations() {
    const PROGRAMS: [(&str, &str); 6] = [
        ("a script", "File \"/home/a/job.py\", line 9, in main"),
        (
            "vLLM",
            "File \"/opt/venv/lib/python3.12/site-packages/vllm/v1/worker/gpu_worker.py\", line 9, in work",
        ),
        (
            "SGLang",
            "File \"/opt/venv/lib/python3.12/site-packages/sglang/srt/model_executor/model_runner.py\", line 9, in work",
        ),
        (
            "ComfyUI",
            "File \"/home/a/ComfyUI/execution.py\", line 9, in execute",
        ),
        (
            "a web interface",
            "File \"/home/a/stable-diffusion-webui/modules/txt2img.py\", line 9, in work",
        ),
        (
            "Text Generation Inference",
            "File \"/opt/conda/lib/python3.10/site-packages/text_generation_server/server.py\", line 9, in work",
        ),
    ];
    const PLATFORMS: [&str; 4] = [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.53 GiB of which 1.01 GiB is free. Including non-PyTorch memory, this process has 22.51 GiB memory in use. Of the allocated memory 20.88 GiB is allocated by PyTorch, and 418.11 MiB is reserved by PyTorch but unallocated.",
        "HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.98 GiB of which 1.01 GiB is free. Of the allocated memory 21.88 GiB is allocated by PyTorch, and 418.11 MiB is reserved by PyTorch but unallocated.",
        "XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.11 GiB. Of the allocated memory 13.88 GiB is allocated by PyTorch, and 418.11 MiB is reserved by PyTorch but unallocated.",
        "MPS backend out of memory (MPS allocated: 17.21 GiB, other allocations: 450.00 MiB, max allowed: 18.13 GiB). Tried to allocate 2.00 GiB on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
    ];
    const PHASES: [(&str, &str); 5] = [
        ("nothing", "self.work(x)"),
        ("loading", "model = AutoModel.from_pretrained(name)"),
        ("moving", "model.to(device)"),
        ("decoding", "image = vae.decode(latents)"),
        ("generating", "out = model.generate(ids)"),
    ];
    for (program, frame) in PROGRAMS {
        for platform in PLATFORMS {
            for (phase, code) in PHASES {
                let text = format!(
                    "Traceback (most recent call last):\n  {frame}\n    {code}\nRuntimeError: {platform}"
                );
                let of = format!("{program}, {phase}, {platform}");
                assert_eq!(strange(&text), [] as [String; 0], "{of}");
                let found = explained(&text);
                assert!(!found.next.is_empty(), "{of}");
                if ["loading", "moving"].contains(&phase) {
                    for step in steps(&found) {
                        let samples = [
                            "smaller batch",
                            "shorter sequence",
                            "smaller image",
                            "--max-num-seqs",
                        ];
                        assert!(
                            !samples.iter().any(|word| step.contains(word)),
                            "{of}: {step}"
                        );
                    }
                }
                let phases = [
                    "weights were loaded",
                    "the model was moved",
                    "VAE decoded",
                    "generated",
                ];
                if phase == "nothing" {
                    assert!(
                        !phases.iter().any(|words| found.verdict.contains(words)),
                        "{of}: {}",
                        found.verdict
                    );
                }
            }
        }
    }
}

/// A text, and what its answer has or has not.
#[derive(Default)]
struct Case {
    text: &'static str,
    /// Words of the verdict.
    says: &'static [&'static str],
    /// Words that the verdict has not.
    not: &'static [&'static str],
    /// Words of steps.
    steps: &'static [&'static str],
    /// Words that no step has.
    never: &'static [&'static str],
    /// What the answer does not call missing.
    known: &'static [&'static str],
}

fn check(cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        let found = explained(case.text);
        let message = found.message.as_ref().unwrap();
        let all = steps(&found);
        let mut add = |what: &str, words: &str| {
            wrong.push(format!(
                "{what} {words:?}:\n  {}\n  {}\n  unsaid: {:?}\n  of: {}",
                found.verdict,
                all.join("\n  "),
                message.unsaid,
                case.text
            ));
        };
        let has = |words: &str| all.iter().any(|step| step.contains(words));
        for words in case
            .says
            .iter()
            .filter(|words| !found.verdict.contains(**words))
        {
            add("the verdict has no", words);
        }
        for words in case
            .not
            .iter()
            .filter(|words| found.verdict.contains(**words))
        {
            add("the verdict has", words);
        }
        for words in case.steps.iter().filter(|words| !has(words)) {
            add("no step has", words);
        }
        for words in case.never.iter().filter(|words| has(words)) {
            add("a step has", words);
        }
        for words in case.known {
            if message.unsaid.iter().any(|unsaid| unsaid.contains(words)) {
                add("called missing", words);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_figure_of_the_text_is_not_called_missing() {
    check(&[
        // Sentences of PyTorch's that a program sets apart, with empty lines between them.
        Case {
            text: "Exception: Capture cuda graph failed: CUDA out of memory.\nTried to allocate 512.00 MiB.\n\nGPU 1 has a total capacity of 79.11 GiB of which 120.75 MiB is free.\nProcess 4711 has 78.98 GiB memory in use.\nOf the allocated memory 70.50 GiB is allocated by PyTorch,\nwith 2.25 GiB allocated in private pools (e.g., CUDA Graphs),\nand 1.01 GiB is reserved by PyTorch but unallocated.\n\nPossible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
            says: &["68.2 GiB of 79.1 GiB"],
            steps: &["--mem-fraction-static"],
            known: &["how much was in use", "asked for", "how much memory"],
            ..Case::default()
        },
        Case {
            text: "OOM in ComfyUI/execution.py\nAllocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated: 20.25 GiB  Requested: 750.00 MiB\nDevice limit: 23.99 GiB  Free (according to CUDA): 52.38 MiB",
            says: &["20.2 GiB of 24.0 GiB"],
            steps: &["/free"],
            known: &["asked for", "how much was in use"],
            ..Case::default()
        },
        Case {
            text: "2026-10-01 10:00:01 INFO  pinning host cache | 2.25 GiB\n2026-10-01 10:00:04 FATAL server failed during startup | cudaMallocHost failed: cudaErrorMemoryAllocation: out of memory",
            says: &["could not be pinned"],
            never: &["pin_memory=False"],
            known: &["asked for"],
            ..Case::default()
        },
        Case {
            text: "pjrt_stream_executor_client.cc:2826] Execution of replica 0 failed: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 bytes on GPU.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:    1.00GiB\n        maybe_live_out allocation:    4.00GiB\n     preallocated temp allocation:    3.00GiB\n                 total allocation:    8.00GiB\nPeak buffers:\n\tBuffer 1:\n\t\tSize: 4.00GiB\n\t\tShape: f32[4096,262144]\n\nTraceback (most recent call last):\n  File \"/home/a/main.py\", line 82, in run\n    logits = model.apply(params, x)\nValueError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3221225472 bytes.",
            says: &["8.0 GiB: 1.0 GiB for what it takes in, 4.0 GiB for what it gives back"],
            known: &["what held the memory"],
            ..Case::default()
        },
    ]);
}

#[test]
fn phases_and_causes_are_those_that_the_text_shows() {
    check(&[
        // The bar is that of the launcher's first epoch; the traceback is that of the model being wrapped.
        Case {
            text: "Traceback (most recent call last):\n  File \"train.py\", line 61, in <module>\n    train(config)\n  File \"train.py\", line 50, in train\n    unet, optimizer = accelerator.prepare(unet, optimizer)\n  File \"/v/lib/python3.8/site-packages/torch/nn/parallel/distributed.py\", line 800, in __init__\n    _sync_module_states(\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 274.00 MiB. GPU 0 has a total capacity of 7.93 GiB of which 137.69 MiB is free. Including non-PyTorch memory, this process has 7.70 GiB memory in use. Of the allocated memory 7.14 GiB is allocated by PyTorch, and 35.88 MiB is reserved by PyTorch but unallocated.\n[Epoch 1]:   0%|          | 0/1 [00:00<?, ?it/s]",
            says: &["wrapped for the job's ranks"],
            not: &["first of 1 steps"],
            steps: &["sharded over the GPUs"],
            never: &["smaller batch", "activation checkpointing"],
            ..Case::default()
        },
        // FSDP joins all weights of a model that is one unit.
        Case {
            text: "Traceback (most recent call last):\n  File \"/home/a/tune.py\", line 647, in main\n    trainer.fit(model, loader)\n  File \"/v/lib/python3.12/site-packages/torch/distributed/fsdp/fully_sharded_data_parallel.py\", line 499, in __init__\n    _init_param_handle_from_module(\n  File \"/v/lib/python3.12/site-packages/torch/distributed/fsdp/_flat_param.py\", line 864, in flatten_tensors\n    return torch.cat(flat_tensors, dim=0)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 13.02 GiB. GPU 0 has a total capacity of 23.60 GiB of which 9.22 GiB is free. Including non-PyTorch memory, this process has 14.36 GiB memory in use. Of the allocated memory 13.02 GiB is allocated by PyTorch, and 499.78 MiB is reserved by PyTorch but unallocated.",
            says: &["FSDP joins the weights", "a second whole copy"],
            not: &["the model was moved"],
            steps: &["auto_wrap_policy"],
            never: &["smaller batch"],
            ..Case::default()
        },
        // Nothing but the message, twice as much of the same.
        Case {
            text: "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 60.13 GiB. GPU 0 has a total capacity of 79.25 GiB of which 18.02 GiB is free. Of the allocated memory 60.13 GiB is allocated by PyTorch, and 18.76 MiB is reserved by PyTorch but unallocated.",
            says: &["second whole copy of the weights"],
            steps: &["split the weights over the GPUs"],
            never: &["attention in blocks", "smaller batch"],
            ..Case::default()
        },
        // A count that compiled code got wrong is no shape.
        Case {
            text: "  File \"diff_gaussian_rasterization/__init__.py\", line 93, in forward\n    num_rendered, color, radii = _C.rasterize_gaussians(*args)\nRuntimeError: CUDA out of memory. Tried to allocate 30384.46 GiB (GPU 0; 23.25 GiB total capacity; 1.13 GiB already allocated; 21.00 GiB free; 1.40 GiB reserved in total by PyTorch)",
            says: &["a count was computed wrongly"],
            steps: &["build the extension"],
            never: &["attention", "smaller batch"],
            ..Case::default()
        },
        // All that the pool may have is in it: the driver refused nothing.
        Case {
            text: "I tensorflow/tsl/framework/bfc_allocator.cc:1103] 2 Chunks of size 13200000000 totalling 24.59GiB\nI tensorflow/tsl/framework/bfc_allocator.cc:1107] Sum Total of in-use chunks: 37.11GiB\nI tensorflow/tsl/framework/bfc_allocator.cc:1109] Total bytes in pool: 40231108608 memory_limit_: 40231108608 available bytes: 0 curr_region_allocation_bytes_: 80462217216\nI tensorflow/tsl/framework/bfc_allocator.cc:1114] Stats: \nLimit:                     40231108608\nInUse:                     39851412480\nMaxInUse:                  39875904000\nMaxAllocSize:              13200000000\nW tensorflow/core/framework/op_kernel.cc:1828] OP_REQUIRES failed at conv.h:452 : RESOURCE_EXHAUSTED: OOM when allocating tensor with shape[32,64,250,250] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
            says: &["37.5 GiB is the limit of its pool"],
            not: &["other processes"],
            never: &["per_process_gpu_memory_fraction"],
            ..Case::default()
        },
        // What is cleared after the failure is no second model.
        Case {
            text: "llama-server: ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9966.43 MiB on device 0: cudaMalloc failed: out of memory\nggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 10450560000\nollama serve: runtime OOM detected; expiring loaded models to clear memory before next request",
            not: &["another model"],
            steps: &["num_batch", "OLLAMA_CONTEXT_LENGTH"],
            never: &["OLLAMA_MAX_LOADED_MODELS"],
            ..Case::default()
        },
        // The number before `error 12` is no size.
        Case {
            text: "10:34:16  RAM 4032/7608MB (lfb 1x4MB) CPU [96%@1344]\nNvMapMemAllocInternalTagged: 1075072515 error 12\nNvMapMemHandleAlloc: error 0\nRuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"/opt/pytorch/c10/cuda/CUDACachingAllocator.cpp\":838, please report a bug to PyTorch.",
            says: &["memory ran out", "NVML"],
            steps: &["tegrastats"],
            ..Case::default()
        },
        Case {
            text: "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\nTime taken: 0.02sTorch active/reserved: 4087/4196 MiB, Sys VRAM: 5161/5166 MiB (99.9%)",
            says: &["shows the GPU full"],
            steps: &["--medvram"],
            never: &["the versions", "do not fit together"],
            known: &["how much was in use", "how much memory"],
            ..Case::default()
        },
        Case {
            text: "LightGBMError: bad allocation",
            says: &["host memory"],
            never: &["device_type", "nvidia-smi"],
            ..Case::default()
        },
        Case {
            text: "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Runner.run() (pid=3047524, ip=10.0.0.3, actor_id=27)\nray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.3, ID: db89) where the task (task ID: 01, name=W.__init__, pid=3048142, memory used=49.21GB) was running was 59.84GB / 62.50GB (0.957), which exceeds the memory usage threshold of 0.95.",
            steps: &["OOM killer"],
            ..Case::default()
        },
    ]);
    let found = explained(
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::Runner.run() (pid=3047524, ip=10.0.0.3, actor_id=27)\nMemory on the node (IP: 10.0.0.3, ID: db89) where the task (task ID: 01, name=W.__init__, pid=3048142, memory used=49.21GB) was running was 59.84GB / 62.50GB (0.957), which exceeds the memory usage threshold of 0.95.",
    );
    assert_eq!(found.message.unwrap().pid, Some(3_048_142));
}

#[test]
fn steps_fit_what_ran_out_when_and_where() {
    check(&[
        Case {
            text: "Traceback (most recent call last):\n  File \"/srv/server/manager.py\", line 61, in _load\n    self.whisper = WhisperModel(\n  File \"/srv/.venv/lib/python3.12/site-packages/faster_whisper/transcribe.py\", line 145, in __init__\n    self.model = ctranslate2.models.Whisper(\nRuntimeError: CUDA failed with error out of memory",
            says: &["weights were loaded"],
            steps: &["compute_type", "nvidia-smi"],
            never: &["beam_size"],
            ..Case::default()
        },
        Case {
            text: "  File \"/home/a/job.py\", line 1233, in main\n    model = RobertaModel.from_pretrained(path)\nRuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 2359296 bytes. Error code 12 (Cannot allocate memory)",
            says: &["or a limit of the process was reached"],
            steps: &["ulimit -v"],
            never: &["smaller inputs", "fewer workers"],
            ..Case::default()
        },
        Case {
            text: "0.00.811.305 W common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user to 99, abort\n0.01.181.838 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 14339.44 MiB on device 0: cudaMalloc failed: out of memory\n0.01.181.843 E alloc_tensor_range: failed to allocate CUDA0 buffer of size 15035990077\n0.01.300.388 E llama_model_load: error loading model: unable to allocate CUDA0 buffer",
            steps: &["-ngl auto", "nvidia-smi"],
            never: &["its weights fill the GPU", "-c 4096"],
            ..Case::default()
        },
        Case {
            text: "OutOfMemoryError: CUDA out of memory. Tried to allocate 17.60 GiB (GPU 0; 12.00 GiB total capacity; 2.47 GiB already allocated; 6.50 GiB free; 2.49 GiB reserved in total by PyTorch)\nTime taken: 3.95sTorch active/reserved: 2592/2620 MiB, Sys VRAM: 12288/12288 MiB (100.0%)",
            steps: &["--opt-sdp-attention", "smaller image"],
            never: &["--medvram", "fewer bits"],
            ..Case::default()
        },
        Case {
            text: "  File \"/Users/a/ComfyUI/execution.py\", line 2994, in execute\n    out = out + bias\nRuntimeError: MPS backend out of memory (MPS allocated: 14.29 GiB, other allocations: 3.65 GiB, max allowed: 20.13 GiB). Tried to allocate 2.67 GiB on shared pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).",
            steps: &["smaller picture"],
            never: &["--lowvram", "--reserve-vram", "PYTORCH_CUDA_ALLOC_CONF"],
            ..Case::default()
        },
        Case {
            text: "Traceback (most recent call last):\n  File \"/home/a/points.py\", line 44, in <module>\n    hit = cuspatial.points_in_spatial_window(points, 140, 180, 50, 60)\nMemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm-src/include/rmm/mr/device/cuda_memory_resource.hpp:69: cudaErrorMemoryAllocation out of memory",
            steps: &["nvidia-smi", "less at once"],
            never: &["the versions"],
            ..Case::default()
        },
        Case {
            text: "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,600,000,000 bytes (allocated so far: 4,281,307,136 bytes).",
            steps: &["nvidia-smi"],
            ..Case::default()
        },
        Case {
            text: "E external/xla/xla/stream_executor/rocm/rocm_driver.cc:1268] failed to allocate 154.06GiB (165425291480 bytes) from device: HIP_ERROR_OutOfMemory\nExecution of replica 0 failed: RESOURCE_EXHAUSTED: Failed to allocate request for 154.06GiB (165425291480B) on device ordinal 0\nPeak buffers:\n\tBuffer 1:\n\t\tSize: 38.10GiB\n\t\tOperator: op_name=\"jit(apply_fn)/alphafold/alphafold_iteration/triangle_multiplication_outgoing/mul\"\n\t\tShape: f32[256,6321,6321]",
            steps: &["all pairs"],
            never: &["max_msa_clusters", "UNIFIED_MEMORY"],
            ..Case::default()
        },
        // How many cores the job has the text does not tell, and 4 GiB are of each.
        Case {
            text: "#SBATCH --mem-per-cpu=4G\n#SBATCH -c 8\nslurmstepd: error: Detected 1 oom_kill event in StepId=7077405.0. Some of the step tasks have been OOM Killed.",
            never: &["--mem=5G"],
            ..Case::default()
        },
        // On the same library as llama.cpp, with other options.
        Case {
            text: "whisper_init_state: failed to allocate the kv self cache\nggml_backend_cuda_buffer_type_alloc_buffer: allocating 1024.00 MiB on device 0: cudaMalloc failed: out of memory\nerror: failed to initialize whisper context",
            never: &["-ngl", "-c 4096", "-ub"],
            ..Case::default()
        },
        // What was asked for is not known, so what was free tells nothing.
        Case {
            text: "time=2026-10-01T10:11:12.123Z level=INFO source=server.go:168 msg=offload library=cuda layers.requested=-1 layers.model=65 layers.offload=41 layers.split=\"\" memory.available=\"[15.1 GiB]\" memory.required.full=\"22.0 GiB\" memory.required.partial=\"14.8 GiB\"\nllama_model_load: error loading model: unable to allocate CUDA0 buffer",
            not: &["although a line near it"],
            never: &["another version of the program"],
            ..Case::default()
        },
        Case {
            text: "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\n  oom_memcg=/api/01a0,task_memcg=/api/01a0,task=python3,pid=7158,uid=0\nMemory cgroup out of memory: Killed process 7158 (python3) total-vm:30185884kB,\n  anon-rss:13927636kB, file-rss:8060kB, shmem-rss:0kB, UID:0 pgtables:36888kB oom_score_adj:0",
            says: &["13.3 GiB"],
            steps: &["cgroup v1"],
            ..Case::default()
        },
        Case {
            text: "include/alloc.h:316 NCCL WARN Cuda failure 'out of memory'\ninclude/alloc.h:324 NCCL WARN Failed to CUDA calloc 2097152 / 10485760 bytes",
            says: &["2.0 MiB"],
            ..Case::default()
        },
    ]);
    let found = explained(
        "include/alloc.h:324 NCCL WARN Failed to CUDA calloc 2097152 / 10485760 bytes\ninclude/alloc.h:316 NCCL WARN Cuda failure 'out of memory'",
    );
    let cause = found.cause.unwrap();
    let in_all = |item: &oomph_explain::Evidence| item.what.contains("in all");
    assert!(!cause.evidence.iter().any(in_all), "{:?}", cause.evidence);
}

#[test]
fn a_failure_of_the_gpu_is_not_lost_beside_one_of_the_host() {
    let found = explained(
        "terminate called after throwing an instance of 'boost::compute::context_error'\n  what():  CL_MEM_OBJECT_ALLOCATION_FAILURE error executing CL_COMMAND_NDRANGE_KERNEL on GeForce GT 640 (Device 0).\nAborted (core dumped)\n./matrix_transpose 20 20\nterminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
    );
    let memories: Vec<&str> = found
        .messages
        .iter()
        .map(|message| message.memory)
        .collect();
    assert!(
        memories.contains(&"device") && memories.contains(&"host"),
        "{memories:?}"
    );
}
