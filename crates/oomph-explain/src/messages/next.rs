//! What to do next about a message: a command of oomph where one helps, otherwise the program's own setting.
//!
//! One function for each program, in one table. A message about the host's memory never gets a step that acts on
//! the GPU's, and the other way round; `tests/messages.rs` checks it.

use oomph_trace::text::{
    Hardware, Memory, MessageKind, Named, OomMessage, Phase, Program, Sign, Uses,
};
use oomph_trace::{Bytes, is_users_own};
use serde::Serialize;

use super::ways::{Change, Way, ways};

/// A step to take next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct NextStep {
    /// What it is for.
    pub what: String,
    /// What to run or to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The ways that it consists of, or what its command changes. Not in the JSON.
    #[serde(skip)]
    pub(crate) ways: Vec<Way>,
    /// Whether its values come from the text's own figures, so that none beyond what is set is better. Not in the JSON.
    #[serde(skip)]
    pub(crate) computed: bool,
}

impl NextStep {
    /// The same, with values that come from the text's own figures.
    pub(super) fn computed(mut self) -> Self {
        self.computed = true;
        self
    }

    /// The same, with what it changes.
    fn changing(mut self, change: Change) -> Self {
        self.ways = ways("", &[(change, "")]).ways;
        self
    }
}

pub(super) fn step(command: impl Into<String>, what: impl Into<String>) -> NextStep {
    NextStep {
        what: what.into(),
        command: Some(command.into()),
        ways: Vec::new(),
        computed: false,
    }
}

pub(super) fn advice(what: impl Into<String>) -> NextStep {
    NextStep {
        what: what.into(),
        command: None,
        ways: Vec::new(),
        computed: false,
    }
}

/// More steps than these are no advice.
const MOST: usize = 4;

/// The steps for a message, the one that helps most first, beyond what its text has set already.
pub(crate) fn steps(message: &OomMessage) -> Vec<NextStep> {
    let mut steps = of_message(message);
    if message.hardware == Hardware::Tpu {
        // A TPU has neither a share that a process takes nor the host's memory behind it.
        steps.retain(|step| {
            let command = step.command.as_deref().unwrap_or_default();
            !["XLA_PYTHON_CLIENT_", "TF_FORCE_UNIFIED"]
                .iter()
                .any(|name| command.starts_with(name))
        });
    }
    let mut steps = super::ways::kept(message, steps);
    steps.splice(0..0, super::evidence::holder(message));
    if let Some(step) = super::evidence::free_card(message) {
        steps.insert(0, step);
    }
    let mut steps = super::settings::beyond(steps, &message.settings);
    steps.truncate(MOST);
    if let Some((line, words)) = message.tables.works.as_ref().filter(|_| !message.handled) {
        steps.truncate(MOST - 1);
        steps.push(advice(format!(
            "line {line} tells what works: \"{words}\"; the difference to that is where to look"
        )));
    }
    if message.tables.shows(Sign::Windows) {
        steps = steps.into_iter().map(on_windows).collect();
    }
    if message.hardware == Hardware::Amd {
        for step in &mut steps {
            step.what = super::settings::on_amd(&step.what);
            step.command = step.command.as_deref().map(super::settings::on_amd);
        }
    }
    steps
}

/// The step as Windows has it.
fn on_windows(step: NextStep) -> NextStep {
    let command = step.command.as_deref().unwrap_or_default();
    if command == "free -h" {
        advice(
            "Task Manager (Performance, Memory): how much is committed, and the limit, which a larger page file raises",
        )
    } else if command.starts_with("rocm-smi") {
        advice("Task Manager (Performance, GPU): what holds the GPU's memory")
    } else if command.starts_with("dmesg") {
        advice(
            "Event Viewer (Windows logs, System: Resource-Exhaustion-Detector): whether memory ran out, and who held it",
        )
    } else {
        step
    }
}

fn of_message(message: &OomMessage) -> Vec<NextStep> {
    if let MessageKind::Fault(fault) = message.kind {
        return super::faults::steps(message, fault);
    }
    if message.handled && message.memory == Memory::Device && message.setting.is_none() {
        let mut steps = vec![advice(if message.tables.shows(Sign::LeavesOut) {
            "each time, what the batch would have taught is lost: see how often that happens. Fewer samples or tokens at once (fairseq: \
             a smaller --max-tokens, with --update-freq raised in turn), or the longest samples left out"
        } else {
            "nothing has to be done if the results are right; start with what it went on with (the smaller batch, the other \
             device) to save the attempts"
        })];
        steps.extend(of_program(message));
        return steps;
    }
    if let Some(bound) = super::evidence::bound(message) {
        return super::evidence::steps(bound);
    }
    if message.memory == Memory::Host {
        return on_the_host(message);
    }
    if super::other::absurd(message).is_some() {
        return vec![
            advice("print the shapes and the sizes at the line that asked, from the traceback"),
            advice(if message.tables.shows(Sign::SharesGpu) {
                "run one process alone, and one request at a time: whether use at the same time damages the size"
            } else {
                "if it loads a file: check that the file is whole (its size, its checksum)"
            }),
        ];
    }
    if super::sharing::of(message).is_none()
        && let Some(weights) = super::weights::too_large(message)
    {
        return super::weights::steps(message, &weights);
    }
    let mut steps = of_program(message);
    if super::other::free_near_it(message).is_some() {
        steps.insert(
            0,
            advice("another version of the program or the driver: by the figures of the text its memory was not short"),
        );
    }
    if message.memory == Memory::Device
        && message.setting != Some("what is free")
        && message
            .requested
            .is_some_and(super::other::is_larger_than_gpus)
        && !message.tables.shows(Sign::Pipelined)
    {
        steps.insert(
            0,
            ways(
                "{}: look at the sizes at that line",
                &[
                    (
                        Change::Inputs,
                        "a shorter input (a sequence, a context), smaller shapes",
                    ),
                    (Change::Batch, "a smaller batch"),
                ],
            ),
        );
    }
    steps
}

/// What most programs need less for.
const SMALLER: [(Change, &str); 2] = [
    (Change::Batch, "a smaller batch"),
    (Change::Inputs, "smaller inputs"),
];

fn of_program(message: &OomMessage) -> Vec<NextStep> {
    match message.program {
        Program::Pytorch => pytorch(message),
        Program::Jax
            if super::other::of_a_core(message).is_some_and(|name| name.contains("smem")) =>
        {
            vec![
                advice(
                    "less that a kernel looks up: a shorter context, fewer sequences at once, larger blocks of a cache",
                ),
                advice(
                    "a newer version of the program that has the kernel: tables that are too large are its fault",
                ),
            ]
        }
        Program::Jax if message.memory == Memory::OnChip => vec![
            advice("smaller blocks: a BlockSpec of Pallas, or fewer stages of its pipeline"),
            step(
                "pltpu.CompilerParams(vmem_limit_bytes=…)",
                "on a TPU, a kernel may take more than XLA gives it by itself",
            ),
        ],
        Program::Jax => jax(message),
        Program::Tensorflow => tensorflow(message),
        Program::OnnxRuntime => onnxruntime(message),
        Program::TensorRt => tensorrt(message),
        // Its own words for it are known: this is something else that ran out in it.
        Program::Vllm if message.kind == MessageKind::Unknown => inside_vllm(message),
        Program::Sglang if message.kind == MessageKind::Unknown => inside_sglang(message),
        Program::Vllm | Program::Sglang if message.setting == Some("workspace") => {
            let setting = if message.program == Program::Vllm {
                "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE=1073741824"
            } else {
                "SGLANG_FLASHINFER_WORKSPACE_SIZE=1073741824"
            };
            vec![
                step(setting, "a larger workspace, in bytes"),
                advice("fewer or shorter requests at once, so that less workspace is needed"),
            ]
        }
        Program::Vllm => vllm(message),
        Program::Sglang
            if message.setting == Some("--max-running-requests")
                && super::other::page_size(message).is_some_and(|page| page > 1) =>
        {
            vec![
                step(
                    "--page-size 1",
                    "no whole page for each request: the tokens that are available can then be given out",
                ),
                step(
                    "--max-running-requests 32",
                    "fewer requests at once, each of which may need a page",
                ),
                advice("a newer SGLang, which counts pages before it lets requests on"),
            ]
        }
        Program::Sglang if message.setting == Some("--max-running-requests") => vec![
            step("--max-running-requests 32", "fewer requests at once"),
            step(
                "--schedule-conservativeness 1.3",
                "plan for longer answers before a request is let in",
            ),
            step(
                "--mem-fraction-static 0.92",
                "a larger share has a larger cache (the default is about 0.88)",
            ),
        ],
        Program::Sglang => sglang(message),
        Program::TextGenerationInference => inside_tgi(message),
        Program::LlamaCpp | Program::Ollama => llama(message),
        Program::Cupy => cupy(message),
        Program::Rmm => rmm(message),
        Program::Named(named) => uses(named, message),
        Program::Triton => vec![
            step(
                "num_stages=2",
                "fewer stages of the pipeline keep fewer blocks on the chip",
            ),
            advice(
                "smaller BLOCK_* sizes; a kernel of a library has them in its configurations for each GPU",
            ),
        ],
        Program::Nccl if message.inside == Some(Program::Jax) => vec![
            step(
                "XLA_PYTHON_CLIENT_MEM_FRACTION=0.6",
                "a smaller share for JAX (the default is 0.75) leaves NCCL what it needs beside it",
            ),
            ways(
                "",
                &[
                    (Change::Batch, "a smaller batch"),
                    (
                        Change::Other,
                        "weights sharded so that less is gathered at once",
                    ),
                ],
            ),
            others_on_the_gpu(message),
        ],
        Program::Relion => relion(message),
        Program::Nccl if message.inside == Some(Program::Vllm) => inside_vllm(message),
        Program::Nccl if message.inside == Some(Program::Sglang) => inside_sglang(message),
        Program::Nccl => vec![
            others_on_the_gpu(message),
            step(
                "NCCL_BUFFSIZE=2097152",
                "smaller buffers (the default is 4 MiB each)",
            ),
            step("NCCL_MAX_NCHANNELS=8", "fewer channels have fewer buffers"),
            ways(
                "leave about 1 GiB of the GPU free for each communicator: {}",
                &[
                    (Change::Batch, "a smaller batch"),
                    (Change::Other, "a smaller share for the framework"),
                ],
            ),
        ],
        Program::Cuda if message.memory == Memory::OnChip => vec![advice(
            "smaller tiles, or fewer of them at once: __shared__ arrays above 48 KiB have to be dynamic",
        )],
        Program::Cublas | Program::Cudnn | Program::Cuda => library(message),
        Program::Paddle => vec![
            others_on_the_gpu(message),
            step(
                "CUDA_VISIBLE_DEVICES=1",
                "or use a GPU that is free, by its number",
            ),
            ways("", &SMALLER),
            step(
                "FLAGS_fraction_of_gpu_memory_to_use=0.98",
                "let PaddlePaddle take more of the GPU (the default is 0.92)",
            ),
        ],
        _ if message.setting == Some("one allocation") => vec![
            advice(
                "buffers below that limit: what the program makes in one piece in several, a smaller context",
            ),
            advice("another backend or driver, whose limit is higher; more memory does not help"),
        ],
        _ if message.memory == Memory::Device => vec![
            others_on_the_gpu(message),
            ways(
                "less at once: {}",
                &[
                    (Change::Inputs, "smaller inputs (a scene, an image)"),
                    (Change::Batch, "a smaller batch"),
                    (Change::Bits, "a model in fewer bits, or smaller"),
                ],
            ),
        ],
        _ if message.hardware == Hardware::DirectX => vec![
            others_on_the_gpu(message),
            advice("smaller inputs; close other programs, for the host's memory too"),
        ],
        _ => vec![
            others_on_the_gpu(message),
            step("free -h", "how much of the host's memory is free"),
        ],
    }
}

/// How a notebook needs less.
const NOTEBOOK: &str = "read the data in parts, in smaller types (float32, categories); `del` what is no longer needed; a \
                        session with more RAM";

/// The part of a GPU's memory, above all of it, that holds what the text says is needed; a letter where it does not say.
fn fraction_of_the_gpu(message: &OomMessage) -> String {
    let needed = message.requested.zip(message.total);
    needed.filter(|(asked, total)| asked > total).map_or_else(
        || "F".to_owned(),
        |(asked, total)| format!("{:.1}", asked.0 as f64 / total.0.max(1) as f64 + 0.2),
    )
}

/// The steps for a program that is known by name only, by what it is used for.
fn uses(named: &Named, message: &OomMessage) -> Vec<NextStep> {
    let looks = if message.memory == Memory::Host {
        look_at_the_host()
    } else {
        others_on_the_gpu(message)
    };
    if let Some(own) = own_settings(named, message) {
        return own;
    }
    let mut steps = match named.uses {
        Uses::Schedules => vec![
            step(
                format!("request_memory = {}", more_than(message.total)),
                "a larger request: it is the job's limit, and the last use that was measured may be older than the peak",
            ),
            step(
                "condor_qedit JOB RequestMemory 32768; condor_release JOB",
                "the same for a job that is held, in MiB",
            ),
            advice(needs_less(message)),
        ],
        Uses::Drives => vec![
            advice(
                "end what holds the host's memory, or give the machine more: the driver needs it in large pieces to start a GPU",
            ),
            step(
                "echo 3 | sudo tee /proc/sys/vm/drop_caches; echo 1 | sudo tee /proc/sys/vm/compact_memory",
                "free what the kernel caches, and make large pieces of what is free; then load the driver again, or restart",
            ),
            step(
                "sudo systemctl enable --now nvidia-persistenced",
                "keep the GPU started, so that the driver does not ask again at each program",
            ),
        ],
        Uses::Renders => vec![
            advice(
                "a smaller scene: smaller textures, fewer subdivisions, particles and instances, no motion blur",
            ),
            advice("a smaller picture, or tiles; or let the CPU render it, with the host's memory"),
        ],
        Uses::Plays => vec![
            advice("lower settings: textures first, then resolution and shadows"),
            advice("close other programs that use the GPU (browsers, recorders)"),
        ],
        Uses::Chats if named.id == "lmdeploy" => vec![
            step(
                "--cache-max-entry-count 0.5",
                "a smaller share of the free memory for keys and values (the default is 0.8)",
            ),
            step("--tp 2", "split the model over more GPUs"),
            step(
                "--session-len 8192 --max-batch-size 32",
                "shorter and fewer requests",
            ),
            advice("a smaller model, or weights in fewer bits (AWQ: lmdeploy lite auto_awq)"),
        ],
        Uses::Chats => vec![
            ways(
                "",
                &[
                    (
                        Change::Inputs,
                        "a shorter context, and a smaller cache of keys and values",
                    ),
                    (Change::Batch, "where it trains, a smaller batch"),
                ],
            ),
            advice("a smaller model or quantisation, or fewer of its layers on the GPU"),
        ],
        Uses::Paints => vec![
            advice("a smaller image, fewer images or frames at once, tiles"),
            advice("a model in fewer bits, or the program's setting for little memory"),
        ],
        Uses::Folds => vec![
            advice(
                "fewer tokens: shorter chains, or the complex in parts; fewer rows of the alignment (max_msa_clusters, max_extra_msa), \
                 which multiply them",
            ),
            step(
                format!(
                    "XLA_PYTHON_CLIENT_PREALLOCATE=false TF_FORCE_UNIFIED_MEMORY=true XLA_CLIENT_MEM_FRACTION={}",
                    fraction_of_the_gpu(message)
                ),
                "let the GPU use the host's memory as well, which is slow: the fraction times the GPU's memory has to be more than \
                 what is needed (XLA_PYTHON_CLIENT_MEM_FRACTION in older versions)",
            ),
            advice(
                "a GPU with more memory; fewer samples do not help, as they run one after another",
            ),
        ],
        // Its pool, which is full, is a setting.
        Uses::Models if message.text.contains("CNMEM_STATUS_OUT_OF_MEMORY") => vec![
            step(
                "tritonserver --cuda-memory-pool-byte-size=0:536870912",
                "a larger pool on GPU 0 for inputs and outputs (the default is 64 MiB); without room there they go through \
                 the host's memory",
            ),
            ways(
                "",
                &[
                    (Change::Batch, "a smaller batch, fewer requests at once"),
                    (Change::Other, "fewer instances of a model"),
                ],
            ),
        ],
        Uses::Models if named.id == "triton-server" => triton_server(false),
        Uses::Models => vec![ways(
            "",
            &[
                (
                    Change::Batch,
                    "a smaller batch (or fewer instances of a model)",
                ),
                (Change::Inputs, "smaller inputs"),
                (Change::Bits, "a smaller model, or one in fewer bits"),
            ],
        )],
        Uses::Simulates => vec![
            advice("a smaller system or a coarser grid, lower precision"),
            advice("fewer tasks on each GPU or node, or more of them to share the work"),
        ],
        Uses::Converts if message.text.contains("OpenEncodeSessionEx") => vec![
            step(
                "nvidia-smi --query-gpu=encoder.stats.sessionCount --format=csv",
                "how many encodings run at once: the driver allows only a few on GPUs for consumers, and says out of memory \
                 for one more",
            ),
            advice(
                "fewer encodings at once, a newer driver, which allows more, or the CPU (libx264) for some",
            ),
        ],
        Uses::Converts if named.id == "colmap" => vec![
            step(
                "--PatchMatchStereo.max_image_size 2000 --PatchMatchStereo.cache_size 16",
                "dense reconstruction on smaller images (-1: their full size)",
            ),
            step(
                "--SiftExtraction.max_image_size 2000 --SiftMatching.max_num_matches 16384",
                "features and matches: smaller images, fewer of them at once (--FeatureExtraction, --FeatureMatching since 3.12)",
            ),
        ],
        Uses::Converts => vec![advice(
            "smaller images or pieces of a recording, fewer at once (a batch, threads, workers); a smaller model, if it has one",
        )],
        Uses::Spark => vec![
            step(
                "--executor-memory 16g --conf spark.executor.memoryOverhead=4g",
                "more for each executor (--driver-memory for the driver): the heap where Java ran out, the overhead where \
                 YARN or a container's limit did",
            ),
            advice(
                "fewer tasks at once in an executor, or more partitions, so that each is smaller",
            ),
        ],
        Uses::Dask => vec![
            step(
                "LocalCluster(n_workers=2, memory_limit=\"8GB\")",
                "fewer workers with more memory each (dask worker --memory-limit)",
            ),
            advice("smaller partitions or chunks; nothing large in one task's result"),
        ],
        Uses::Notebook if message.memory == Memory::Device => vec![
            ways(
                "",
                &[
                    (Change::Batch, "a smaller batch"),
                    (Change::Inputs, "smaller inputs or a smaller model"),
                    (Change::Halves, "16 bits"),
                ],
            ),
            advice("start the session again: earlier cells may still hold the GPU's memory"),
        ],
        Uses::Notebook => vec![advice(NOTEBOOK)],
        Uses::Java => vec![step(
            "java -Xmx8g",
            "a larger heap, if the machine has it; a smaller one where the machine itself ran out",
        )],
        Uses::Node => vec![step(
            "NODE_OPTIONS=--max-old-space-size=8192",
            "a larger heap for Node.js, in MiB",
        )],
        Uses::Php => vec![step("memory_limit = 512M", "more for a script, in php.ini")],
        Uses::Builds => vec![
            step(
                "make -j1",
                "fewer jobs at once (ninja -j 1, MAX_JOBS=1 for PyTorch's extensions)",
            ),
            advice("more swap while it builds"),
        ],
        Uses::Stores => vec![advice(
            "its own limits of memory, smaller queries, fewer clients at once",
        )],
        Uses::Computes if named.id == "hashcat" && message.memory == Memory::Device => vec![
            step("-w 2", "a lighter workload: fewer candidates at once"),
            step(
                "--scrypt-tmto 1",
                "of scrypt: less memory for each candidate, and more work (-n 16: fewer candidates)",
            ),
            advice(
                "a card with more memory, for hashes whose parameters (N, r, p; m of Argon2) need it",
            ),
        ],
        Uses::Computes if message.memory == Memory::Device => {
            vec![advice("smaller arrays, single precision, or work in parts")]
        }
        _ => vec![advice(
            "smaller data or types, in parts; what is not needed freed first",
        )],
    };
    steps.push(looks);
    steps
}

/// What to set, or nothing, and what that is for.
type Ways = &'static [(&'static str, &'static str)];

/// A program, words of its message, and what to set.
const OWN: &[(&str, &str, Ways)] = &[
    (
        "faiss",
        "TemporaryMemory",
        &[
            (
                "res.setTempMemory(64 << 20)",
                "a smaller scratch buffer: each StandardGpuResources reserves one, whatever the index holds",
            ),
            (
                "",
                "one StandardGpuResources for all indices, and no index kept on the GPU that is no longer searched",
            ),
        ],
    ),
    (
        "faiss",
        "",
        &[
            (
                "options.useFloat16 = True",
                "of GpuClonerOptions or an index's config: vectors in 16 bits, half of what they take",
            ),
            (
                "faiss.index_cpu_to_all_gpus(index, co=options)",
                "with options.shard = True: a part of the index on each GPU",
            ),
            (
                "",
                "an index that keeps less of each vector (IVFPQ, SQ8), or the index on the CPU",
            ),
        ],
    ),
    (
        "catboost",
        "emory_pool",
        &[
            (
                "gpu_ram_part=0.7",
                "a smaller share: it takes its pool in one piece at the start, 0.95 of the whole GPU, whatever the data",
            ),
            (
                "gpu_cat_features_storage=\"CpuPinnedMemory\"",
                "then less in it: also a smaller depth and border_count",
            ),
        ],
    ),
    (
        "exllama",
        "split",
        &[
            (
                "max_seq_len: 16384",
                "a shorter context has a smaller cache",
            ),
            ("cache_mode: Q4", "keys and values in fewer bits"),
            (
                "",
                "a smaller quantisation, less that is reserved (autosplit_reserve), or one more GPU",
            ),
        ],
    ),
    (
        "qiskit",
        "",
        &[
            ("", "fewer qubits: a state vector doubles with each"),
            (
                "AerSimulator(method=\"matrix_product_state\")",
                "a method that needs less, where the circuit suits it (also stabilizer)",
            ),
            (
                "",
                "single precision halves it; blocks over several GPUs or nodes (blocking_enable)",
            ),
        ],
    ),
    (
        "warp",
        "",
        &[
            (
                "",
                "fewer and coarser cells: count what is allocated at that line (elements, tiles or voxels times bytes)",
            ),
            (
                "wp.set_mempool_release_threshold(\"cuda:0\", 0)",
                "give back what the pool keeps but no array uses",
            ),
        ],
    ),
    (
        "cusolver",
        "STATUS_INTERNAL_ERROR",
        &[
            (
                "torch.cuda.mem_get_info()",
                "just before that call, for each GPU: whether memory is short at all",
            ),
            (
                "",
                "the same with one thread and one GPU: whether calls at the same time get in each other's way",
            ),
            (
                "torch.backends.cuda.preferred_linalg_library(\"magma\")",
                "in PyTorch: another library",
            ),
        ],
    ),
    (
        "cusolver",
        "",
        &[
            (
                "",
                "smaller inputs or fewer at once, or room left beside the framework's cache",
            ),
            (
                "torch.backends.cuda.preferred_linalg_library(\"magma\")",
                "in PyTorch: another library; calling it once before memory fills up also helps",
            ),
        ],
    ),
    (
        "lm-studio",
        "guardrail",
        &[
            (
                "",
                "Settings, Model loading guardrails: relaxed, off or a limit of your own, if the machine has the memory",
            ),
            (
                "--context-length 4096",
                "a shorter context, or a smaller model or quantisation",
            ),
        ],
    ),
];

/// Settings that only this program has, where they are what decides.
fn own_settings(named: &Named, message: &OomMessage) -> Option<Vec<NextStep>> {
    let (_, _, own) = OWN
        .iter()
        .find(|(id, word, _)| *id == named.id && message.text.contains(word))?;
    let mut steps: Vec<NextStep> = own
        .iter()
        .map(|(command, what)| match *command {
            "" => advice(*what),
            command => step(command, *what),
        })
        .collect();
    if message.memory == Memory::Device {
        steps.push(others_on_the_gpu(message));
    }
    Some(steps)
}

fn relion(message: &OomMessage) -> Vec<NextStep> {
    vec![
        others_on_the_gpu(message),
        advice("fewer processes (MPI ranks, --j) for each GPU, or a smaller box"),
        step(
            "--free_gpu_memory 1000",
            "leave so many MB for what its own pool does not hold",
        ),
    ]
}

fn llama(message: &OomMessage) -> Vec<NextStep> {
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
        if let Some(plan) = super::figures::estimate(message) {
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
            return vec![
                step("/set parameter num_gpu N", FEWER_LAYERS),
                step(
                    "/set parameter num_batch 128",
                    "fewer tokens at once (the default is 512): a smaller buffer for computing",
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
            let one = step(
                "OLLAMA_MAX_LOADED_MODELS=1 ollama serve",
                "one model at a time: the text has another one loaded beside this one (OLLAMA_KEEP_ALIVE=0 unloads it at once)",
            );
            steps.rotate_right(2);
            steps.insert(0, one);
        }
        return steps;
    }
    if message.setting == Some("one allocation") {
        let vulkan = message.hardware == Hardware::Vulkan;
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
            step("-ngl N", FEWER_LAYERS),
        ];
        if vulkan {
            steps.swap(0, 1);
            steps[2] = step(
                "GGML_VK_FORCE_MAX_ALLOCATION_SIZE=1073741824",
                "with Vulkan: buffers of at most so many bytes",
            );
        }
        return steps;
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
    if message.during == Some(Phase::ComputeBuffers) && message.tables.shows(Sign::Pipelined) {
        return [of_the_pipeline(), vec![steps.swap_remove(1)]].concat();
    }
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
        steps = of_compute_buffers();
    }
    if let Some(device) = message
        .device
        .filter(|device| *device > 0 || message.tables.count > 1)
    {
        steps.push(step(
            "--tensor-split 3,3,3,2",
            format!("shares of the model for each GPU (one number for each): less for GPU {device}, which had too little"),
        ));
    }
    let fills = super::figures::weights_fill(message);
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
        .is_some_and(super::other::is_larger_than_gpus);
    let first = match message.during {
        Some(Phase::ComputeBuffers) => usize::from(!fills),
        _ if cache || large || one_buffer => 3,
        _ => 0,
    };
    steps.insert(first, step("-ngl N", FEWER_LAYERS));
    if fills || message.during == Some(Phase::Loading) {
        steps.insert(
            1,
            advice("a smaller quantisation of the model: its weights fill the GPU"),
        );
    }
    steps.push(others_on_the_gpu(message));
    // Neither weights nor the cache depend on how many tokens are computed at once, and weights on no context.
    let useless: &[&str] = match message.during {
        Some(Phase::Loading) => &["-ub ", "-c ", "--cache-type"],
        Some(Phase::Cache) => &["-ub "],
        _ => &[],
    };
    steps.retain(|step| {
        let command = step.command.as_deref().unwrap_or_default();
        !useless.iter().any(|option| command.starts_with(option))
    });
    steps
}

/// What helps where a number of layers is set, whose right value no text gives.
const FEWER_LAYERS: &str =
    "fewer layers on the GPU than its log has there; count down until it loads";

/// Whether llama.cpp is a library of another program, which has options of its own.
fn is_embedded(message: &OomMessage) -> bool {
    let mut frames = message.traceback.iter();
    message.text.contains("WASI-NN") || frames.any(|frame| frame.file.contains("llama_cpp"))
}

/// Weights and cache are there already; the buffer for computing grows with the batch, and without flash attention with the
/// batch times the context.
fn of_compute_buffers() -> Vec<NextStep> {
    vec![
        step(
            "-ub 256 -b 1024",
            "smaller batches have smaller buffers for computing",
        ),
        step(
            "-fa on",
            "flash attention: no matrix of all scores in that buffer (older versions: -fa)",
        )
        .changing(Change::CacheBits),
        step(
            "-c 4096",
            "a shorter context, if it is longer now: a smaller matrix of scores and a smaller cache",
        ),
    ]
}

/// llama.cpp keeps several copies of a buffer for computing where it works in a pipeline over GPUs.
fn of_the_pipeline() -> Vec<NextStep> {
    vec![
        step(
            "cmake -B build -DGGML_CUDA=ON -DGGML_SCHED_MAX_COPIES=1",
            "build it so that it keeps one copy of the buffers for computing, not several for a pipeline over GPUs",
        ),
        step(
            "--split-mode none",
            "one GPU (with --main-gpu), and so no pipeline; what does not fit there stays on the CPU (-ot, --n-cpu-moe)",
        ),
    ]
}

/// The memory in a sentence, as the makers of its hardware call it.
pub(super) fn memory_name(message: &OomMessage) -> &'static str {
    match (message.memory, message.hardware) {
        (Memory::OnChip, Hardware::Tpu) => "memory on the chip",
        (Memory::Device, Hardware::Tpu) => "TPU memory (HBM)",
        (Memory::Device, Hardware::Apple) => "the memory that this Mac's GPU may use",
        (Memory::Device, Hardware::Ascend) => "NPU memory",
        (Memory::Device, Hardware::Gaudi) => "HPU memory",
        (Memory::Device, Hardware::Neuron) => "a NeuronCore's memory",
        // XLA says the same on all of them.
        (Memory::Device, Hardware::Gpu)
            if message.program == Program::Jax
                && message.device.is_none()
                && message.inside.is_none()
                && super::figures::card(message).is_none()
                && !["GPU", "gpu", "CUDA", "cuda"]
                    .iter()
                    .any(|word| message.text.contains(word)) =>
        {
            "device memory (a GPU's or a TPU's)"
        }
        (memory, _) => memory.name(),
    }
}

/// The program in a sentence; AMD's runtime keeps CUDA's codes.
pub(super) fn program_name(message: &OomMessage) -> &'static str {
    match (message.program, message.hardware) {
        (Program::Cuda, Hardware::Amd) => "HIP (ROCm)",
        (program, _) => program.name(),
    }
}

pub(super) fn others_on_the_gpu(message: &OomMessage) -> NextStep {
    let command = match message.hardware {
        Hardware::Gpu => "nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv",
        Hardware::Amd => "rocm-smi --showpids --showmeminfo vram",
        Hardware::Intel => "xpu-smi ps",
        Hardware::Jetson => {
            return step(
                "sudo tegrastats",
                "how much of the memory, which CPU and GPU share, is free (close the desktop; more swap for the CPU's part)",
            );
        }
        Hardware::Gaudi => "hl-smi",
        Hardware::Neuron => "neuron-ls",
        Hardware::Ascend => "npu-smi info",
        Hardware::Apple => {
            return step(
                "top -l 1 -o mem -n 10",
                "which processes hold the Mac's memory, which its GPU shares",
            );
        }
        Hardware::Vulkan => {
            return advice("close other programs that use the GPU: browsers, games, other models");
        }
        Hardware::DirectX => {
            return advice("Windows' Task Manager (Performance, GPU): what holds the GPU's memory");
        }
        Hardware::Tpu => {
            return ways(
                "",
                &[(Change::Processes, "one process at a time may use a TPU")],
            );
        }
    };
    step(command, "which processes hold the GPU").changing(Change::Processes)
}

/// The script that the text shows: in a traceback or a command.
pub(super) fn script(message: &OomMessage) -> Option<String> {
    if message.tables.shows(Sign::Tests) {
        return None;
    }
    if in_notebook(message) {
        return Some("notebook.ipynb".to_owned());
    }
    message
        .traceback
        .iter()
        .find(|frame| frame.function == "<module>" && is_users_own(&frame.file))
        .and_then(|frame| frame.file.rsplit(['/', '\\']).next())
        .filter(|name| {
            // It becomes a word of a shell command.
            std::path::Path::new(name)
                .extension()
                .is_some_and(|end| end == "py")
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
                && !name.starts_with('-')
        })
        .or_else(|| called(message))
        .map(str::to_owned)
}

/// The script that a command of the text runs.
fn called(message: &OomMessage) -> Option<&str> {
    let mut commands = message.tables.commands.iter();
    commands.find_map(|command| {
        let runs = ["python", "torchrun", "accelerate", "deepspeed"]
            .iter()
            .any(|name| command.contains(name));
        let mut words = command.split_whitespace().filter(|_| runs);
        let path = words.find(|word| {
            let end = std::path::Path::new(word).extension();
            end.is_some_and(|end| end == "py")
        })?;
        path.rsplit('/')
            .next()
            .filter(|name| shell_word(Some(name)).is_some())
    })
}

/// Whether the traceback is one of a notebook's cells.
fn in_notebook(message: &OomMessage) -> bool {
    let mut frames = message.traceback.iter();
    frames.any(|frame| {
        ["Cell In", "Input In", "<ipython-input-"]
            .iter()
            .any(|name| frame.file.starts_with(name))
            || frame.file.contains("/ipykernel_")
    })
}

fn pytorch(message: &OomMessage) -> Vec<NextStep> {
    // Far more was free: no setting for less memory is a cure.
    let far = super::free_all_the_same(message).is_some_and(|(_, far)| far);
    match message.inside.filter(|_| !far) {
        Some(Program::Vllm | Program::Sglang) if message.tables.shows(Sign::Rollouts) => {
            return rollouts(message);
        }
        Some(Program::Vllm) if message.during == Some(Phase::Profiling) => {
            return trial_run(message);
        }
        Some(Program::Vllm) => return inside_vllm(message),
        Some(Program::Sglang) => return inside_sglang(message),
        Some(Program::TextGenerationInference) => return inside_tgi(message),
        Some(Program::ComfyUi) => {
            return comfy(message);
        }
        Some(Program::StableDiffusion) => {
            return vec![
                if message
                    .settings
                    .iter()
                    .any(|setting| setting.name == "medvram")
                {
                    step(
                        "--lowvram",
                        "keep even less of the model on the GPU at a time than with --medvram",
                    )
                } else {
                    step(
                        "--medvram",
                        "keep only a part of the model on the GPU at a time (--lowvram: even less)",
                    )
                },
                step(
                    "--opt-sdp-attention",
                    "attention in blocks (or --xformers), which keeps no matrix of all pairs of pixels",
                )
                .changing(Change::Attention),
                advice(
                    "a smaller image, fewer images at once, upscaling in tiles; a model in fewer bits (fp8, GGUF, NF4), in Forge also \
                     less under \"GPU Weights\"",
                ),
                others_on_the_gpu(message),
            ];
        }
        Some(Program::Named(named)) => return uses(named, message),
        _ => {}
    }
    if message.hardware == Hardware::Apple {
        return on_a_mac(message);
    }
    if message.setting == Some("device_map") {
        return vec![
            advice("a smaller model, or weights in fewer bits (load_in_4bit=True)"),
            others_on_the_gpu(message),
            step(
                "device_map=\"auto\", max_memory={0: \"22GiB\", \"cpu\": \"48GiB\"}",
                "what each device may take, if accelerate left more free than it has to",
            ),
            step(
                "BitsAndBytesConfig(load_in_8bit=True, llm_int8_enable_fp32_cpu_offload=True)",
                "the rest on the CPU in 32 bits, which is slow",
            ),
        ];
    }
    if matches!(
        message.hardware,
        Hardware::Intel | Hardware::Gaudi | Hardware::Neuron | Hardware::Ascend
    ) {
        let mut steps = vec![one_piece(message), others_on_the_gpu(message)];
        // Where PyTorch held nothing, no smaller job is a cure.
        if message.reserved != Some(Bytes::ZERO) {
            steps.insert(0, by_hand(message));
        }
        return steps;
    }
    let mut steps = run_it(message);
    if let Some(training) = super::weights::training(message) {
        let run = steps
            .into_iter()
            .filter(|step| step.command.is_some())
            .take(1);
        return training.steps().into_iter().chain(run).collect();
    }
    match super::Limit::of(message) {
        super::Limit::Misreported { size, .. } => return wrong_capacity(message, size),
        super::Limit::OwnCap(allowed) => {
            steps.splice(0..0, lift_the_limit(message, allowed));
        }
        super::Limit::Device => {}
    }
    if message.tables.shows(Sign::DataParallel) {
        return of_buckets();
    }
    if super::holds_next_to_nothing(message) && message.allowed.is_none() {
        // What the job itself needs is not known yet.
        steps = vec![
            others_on_the_gpu(message),
            if message.others.len() > 1 {
                own_gpu_for_each_rank()
            } else {
                step(
                    "CUDA_VISIBLE_DEVICES=1",
                    "use a GPU that is free, by its number",
                )
            },
        ];
        steps.extend(load_on_the_cpu(message));
    } else if super::is_full_of_others(message) && message.allowed.is_none() {
        // What may be this process's own libraries comes after what its tensors need.
        let place = usize::from(super::may_be_libraries(message)).min(steps.len());
        steps.insert(place, others_on_the_gpu(message));
        steps.splice(0..0, who_holds_most(message));
        let outside = message.outside_pytorch().unwrap_or_default();
        if super::evidence::of_ranks(message, outside).is_some() {
            // What the job needs by itself is not known before each rank has its own.
            steps.truncate(1);
            steps.insert(0, own_gpu_for_each_rank());
            if message.tables.shows(Sign::SpreadsOut) {
                steps.insert(0, one_copy_for_each_rank());
            }
        }
    } else if super::others_are_enough(message).is_some() {
        steps.insert(0, own_gpu_for_each_rank());
        steps.insert(1, others_on_the_gpu(message));
    }
    if message
        .outside_pytorch()
        .is_some_and(|outside| outside >= Bytes::gib(1))
        && !super::is_only_context(message)
        && message.memory == Memory::Device
    {
        let others = others_on_the_gpu(message);
        if !steps.contains(&others) {
            steps.push(others);
        }
    }
    if in_notebook(message) {
        let again = advice(
            "earlier cells, `_`, `Out` and the last traceback hold tensors: start the kernel again, or `oomph.free()`",
        );
        steps.insert(steps.len().min(1), again);
    }
    if message.tables.shows(Sign::Grows) && !of_a_phase(message) {
        steps.insert(0, of_growth());
    }
    if message.during == Some(Phase::Loading) && !super::holds_next_to_nothing(message) {
        steps.splice(0..0, load_on_the_cpu(message));
    }
    if message.tables.shows(Sign::KeepsScores) || message.during == Some(Phase::Attending) {
        let blocks = step(
            "attn_implementation=\"sdpa\"",
            "attention in blocks (without a mask of all pairs): it keeps no matrix of all scores",
        );
        steps.insert(0, blocks.changing(Change::Attention));
    }
    if let Some((_, far)) = super::free_all_the_same(message) {
        // Where far more was free, a smaller job is no cure.
        if far {
            steps.clear();
        }
        let again = advice(
            "start the process again, then the machine: the driver refuses what it reports as free",
        );
        let version = advice("another version of the driver, or of PyTorch's build");
        let first = if message.tables.shows(Sign::Windows) {
            vec![step("free -h", ""), again, version]
        } else if far {
            let limits = step(
                "sysctl vm.max_map_count",
                "the mappings that a process may have: a limit of the system that says out of memory, too",
            );
            vec![limits, again, version, others_on_the_gpu(message)]
        } else {
            vec![others_on_the_gpu(message), again, version]
        };
        steps.splice(0..0, first);
    }
    if super::asks_for_most(message)
        && (message.during.is_none() || message.requested > message.total)
    {
        steps.insert(
            0,
            ways(
                "{}",
                &[(
                    Change::Attention,
                    "attention in blocks, if it is the scores of all pairs of tokens or pixels: scaled_dot_product_attention, xFormers \
                     (web interfaces of Stable Diffusion: --xformers, --opt-sdp-attention); then a smaller picture or shorter sequence",
                )],
            ),
        );
    }
    if message.kind == MessageKind::Workspace {
        let less = step(
            "torch.backends.cudnn.benchmark = False",
            "convolutions that need less workspace",
        );
        steps.insert(steps.len().min(1), less);
    }
    steps
}

fn comfy(message: &OomMessage) -> Vec<NextStep> {
    let set = |name: &str| super::figures::setting(message, name).is_some();
    let mut steps = vec![if set("lowvram") {
        step(
            "python main.py --novram",
            "keep next to nothing of the model on the GPU (now: --lowvram)",
        )
    } else {
        step(
            "python main.py --lowvram",
            "keep only a part of the model on the GPU at a time",
        )
    }];
    if message.during == Some(Phase::Decoding) {
        steps.push(ways(
            "{}",
            &[
                (
                    Change::Tiles,
                    "the node VAE Decode (Tiled) in place of VAE Decode",
                ),
                (
                    Change::SmallerTiles,
                    "smaller tiles (tile_size of VAE Decode (Tiled))",
                ),
                (
                    Change::Other,
                    "python main.py --cpu-vae: decode on the CPU, which is slow",
                ),
            ],
        ));
    } else {
        steps.push(step(
            "python main.py --reserve-vram 2",
            "leave so many GiB free beside the weights, for what sampling makes",
        ));
    }
    steps.push(advice("a smaller image, fewer images or frames at once"));
    steps.push(advice("a model in fewer bits (fp8, GGUF)"));
    if message.requested.is_none() {
        steps.push(advice(
            "the console's log has the figures that a report lacks",
        ));
    }
    steps
}

/// The process that a message names as the holder of a good part of the GPU.
pub(super) fn who_holds_most(message: &OomMessage) -> Option<NextStep> {
    let most = message.others.iter().max_by_key(|other| other.used)?;
    // A table of the text says more.
    let known = message
        .tables
        .holders
        .iter()
        .any(|held| held.pid == most.pid);
    (most.used.0 >= message.total?.0 / 8 && !known).then(|| {
        step(
            format!("ps -fp {}", most.pid),
            format!(
                "what process {} is, which holds {}: end it, wait for it, or use another GPU (CUDA_VISIBLE_DEVICES); in a container the \
                 number may be one of the host",
                most.pid, most.used
            ),
        )
    })
}

/// Several processes on one GPU are mostly the ranks of one job.
pub(super) fn own_gpu_for_each_rank() -> NextStep {
    step(
        "torch.cuda.set_device(local_rank)",
        "before anything else uses CUDA, or CUDA_VISIBLE_DEVICES for each rank: the other processes on this GPU may be \
         ranks that belong on others",
    )
}

/// A copy of the model that each rank spreads over all GPUs.
fn one_copy_for_each_rank() -> NextStep {
    step(
        "device_map={\"\": local_rank}",
        "in place of device_map=\"auto\", which spreads each rank's copy over all GPUs: one copy on the rank's own (in 16 or fewer bits, \
         if it has to be smaller), or one process alone with device_map=\"auto\"",
    )
}

/// What people who see use grow have to look for.
fn of_growth() -> NextStep {
    step(
        "torch.cuda.memory_allocated()",
        "printed after each step: if it grows, keep numbers in place of tensors (loss.item(), .detach().cpu()) and empty lists of \
         results; if it jumps, limit the largest samples",
    )
}

/// A checkpoint that is read to the GPU which it was saved from.
fn load_on_the_cpu(message: &OomMessage) -> Option<NextStep> {
    let mut frames = message.traceback.iter();
    let reads = frames.any(|frame| {
        frame.code.contains("torch.load(") || frame.function == "default_restore_location"
    });
    reads.then(|| {
        step(
            "torch.load(path, map_location=\"cpu\")",
            "read the checkpoint into the host's memory: without it, it goes to the GPU that it was saved from, beside the model",
        )
    })
}

/// Whether what a program was doing decides what helps, and not what its steps hold.
pub(super) fn of_a_phase(message: &OomMessage) -> bool {
    matches!(
        message.during,
        Some(
            Phase::Loading
                | Phase::Moving
                | Phase::SettingUp
                | Phase::Gathering
                | Phase::Saving
                | Phase::Collecting
        )
    )
}

/// Whether a loop of transformers' Trainer evaluates: it has `no_grad` itself, and keeps what the model returns.
fn evaluates_in_trainer(message: &OomMessage) -> bool {
    let mut frames = message.traceback.iter();
    frames.any(|frame| {
        let file = frame.file.replace('\\', "/");
        file.contains("transformers/trainer")
            && ["evaluation_loop", "prediction_loop", "prediction_step"]
                .contains(&frame.function.as_str())
    })
}

/// To run the job on the virtual GPU where the text shows its script; what to change by hand in any case.
fn run_it(message: &OomMessage) -> Vec<NextStep> {
    // What the process may use, where it limited itself.
    let memory = message
        .allowed
        .or(message.total)
        .map(|most| format!(" --memory {}MiB", most.0 >> 20))
        .unwrap_or_default();
    let what = "what held the memory, by line and by kind; needs no GPU";
    let Some(script) = script(message) else {
        let mut steps = vec![by_hand(message)];
        let held = message.reserved != Some(Bytes::ZERO);
        if held && !message.tables.shows(Sign::Tests) && !is_packaged(message) {
            steps.push(step(
                format!("oomph run{memory} YOUR_SCRIPT.py"),
                format!("with the script that failed: {what}"),
            ));
        }
        return steps;
    };
    let by_hand = by_hand(message);
    let run = step(format!("oomph run{memory} {script}"), what);
    let shows = |sign| message.tables.shows(sign);
    let infers = shows(Sign::Infers) && !shows(Sign::Trains);
    let decides = matches!(
        message.during,
        Some(Phase::Optimizing | Phase::Decoding | Phase::Evaluating | Phase::Collecting)
    );
    if of_a_phase(message) || infers || decides {
        return vec![by_hand, run];
    }
    vec![
        run,
        step(
            format!("oomph fit{memory} {script}"),
            "the fewest changes that make it fit",
        ),
        NextStep {
            what: "or by hand: {}".to_owned(),
            ..by_hand
        },
    ]
}

/// Whether the text shows that a program ran which is installed, and no script of the reader's.
fn is_packaged(message: &OomMessage) -> bool {
    let mut frames = message.traceback.iter();
    let mut commands = message.tables.commands.iter();
    message.inside.is_some()
        || frames.any(|frame| {
            // A command that was installed has no ending.
            let ending = std::path::Path::new(&frame.file).extension();
            let installed =
                !is_users_own(&frame.file) || (ending.is_none() && frame.file.contains("/bin/"));
            frame.function == "<module>" && installed
        })
        || commands.any(|command| {
            let mut words = command.split_whitespace();
            !command.contains("python") && words.any(|word| matches!(word, "train" | "serve"))
        })
}

/// The process reached a limit that it set itself.
fn lift_the_limit(message: &OomMessage, allowed: Bytes) -> Vec<NextStep> {
    let mut steps = vec![step(
        "grep -rnE 'set_per_process_memory_fraction|per_process_memory_fraction' .",
        format!(
            "who sets the limit of {allowed}: raise it or take it out; the GPU itself has more"
        ),
    )];
    if message.tables.shows(Sign::Tests) {
        steps.push(advice(
            "run the failing test alone: an earlier test of the same process may have set the limit and not reset it, or left \
             memory behind",
        ));
        steps.push(step(
            "torch.cuda.memory_summary()",
            "at its start: what is held already",
        ));
    }
    steps
}

/// `DistributedDataParallel` makes its buckets of gradients before any batch.
fn of_buckets() -> Vec<NextStep> {
    vec![
        advice(
            "shard the model over the ranks (FSDP, or DeepSpeed's ZeRO-2 or 3): with DDP each GPU holds all weights, gradients \
             and buckets",
        ),
        step(
            "DistributedDataParallel(model, gradient_as_bucket_view=True)",
            "gradients are then views of the buckets, not a second copy",
        ),
        advice(
            "fewer parameters that are trained (LoRA, frozen parts), or weights in 16 bits: a bucket has the size of their gradients",
        ),
        advice("the batch size changes nothing here: no batch has run yet"),
    ]
}

/// The runtime reports less memory than another line of the text.
fn wrong_capacity(message: &OomMessage, size: Bytes) -> Vec<NextStep> {
    let most = message.total.unwrap_or_default();
    if message.hardware != Hardware::Amd {
        return vec![
            step(
                "nvidia-smi -L; nvidia-smi",
                "which GPUs and MIG instances there are, and what each has",
            ),
            advice(format!(
                "why the program sees {most} and not {size}: another GPU, a MIG instance, a share of a virtual GPU"
            )),
        ];
    }
    vec![
        step(
            "grep . /sys/class/drm/card*/device/mem_info_vram_total /sys/class/drm/card*/device/mem_info_gtt_total",
            format!("which of the two the runtime counts: {most} or {size}"),
        ),
        advice(
            "a newer kernel (amdgpu) and ROCm: older ones give an APU the part of the host's memory (GTT), not its VRAM",
        ),
        advice(
            "the least VRAM in the BIOS and a larger GTT (ttm.pages_limit, amdgpu.gttsize) in its place",
        ),
        advice(format!("until then, requests below {most}")),
    ]
}

/// PyTorch's own limit on a Mac.
fn on_a_mac(message: &OomMessage) -> Vec<NextStep> {
    let empty = step(
        "torch.mps.empty_cache()",
        "give back what PyTorch keeps but no tensor uses",
    );
    let smaller = ways(
        "",
        &[
            (Change::Batch, "a smaller batch"),
            (Change::Inputs, "smaller inputs"),
            (Change::Bits, "weights in 16 or fewer bits"),
        ],
    );
    let ratio = step(
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
        "only as the last resort, no limit at all: the Mac itself may then run out",
    );
    let others = others_on_the_gpu(message);
    let outside = message.this_process.zip(message.allocated);
    if outside.is_some_and(|(all, own)| all.saturating_sub(own) > own) {
        let again = advice(
            "start the program again: the larger part lies outside its tensors (Metal's buffers of this process), which grow; a \
             newer PyTorch may hold less",
        );
        return vec![again, empty, smaller, ratio];
    }
    // The limit is this process's own, so what others hold does not count.
    if message.allowed.is_some() {
        vec![smaller, empty, ratio]
    } else {
        vec![smaller, others, empty, ratio]
    }
}

/// A request that may be too large by itself, whatever is free.
fn one_piece(message: &OomMessage) -> NextStep {
    if message.hardware == Hardware::Intel
        && message
            .requested
            .is_some_and(|asked| asked >= Bytes::gib(4))
    {
        advice(
            "tensors below 4 GiB each: Intel's driver gives no larger single buffer unless it is told to",
        )
    } else {
        advice("look at the shapes at the line that asked: one tensor may be too large by itself")
    }
}

/// What to change in a script of PyTorch's: the first of what helps then.
fn by_hand(message: &OomMessage) -> NextStep {
    use Change::{
        Batch, Bits, EvaluationBatch, Graph, Halves, Inputs, OptimizerBits, Other, Recomputing,
        SmallerTiles, Temporaries, Tiles, Trained,
    };
    const STATE: (Change, &str) = (OptimizerBits, "the optimizer's state in 8 bits");
    const ADAPTERS: (Change, &str) = (Trained, "fewer parameters that are trained (LoRA)");
    const OFFLOADED: (Change, &str) = (
        Other,
        "the optimizer's state on the CPU (\"offload_optimizer\" of DeepSpeed, CPUOffload of FSDP)",
    );
    let list: &[(Change, &str)] = match message.during {
        Some(Phase::Loading | Phase::Moving) if message.tables.shows(Sign::Diffusers) => &[
            (
                Other,
                "pipe.enable_model_cpu_offload() in place of .to(\"cuda\"): one part of the pipeline on the GPU at a time",
            ),
            (Halves, "weights in 16 bits (torch_dtype)"),
            (Bits, "weights in 8 or 4 bits (quantization_config)"),
            (Other, "a smaller model"),
        ],
        Some(Phase::Loading | Phase::Moving)
            if message.tables.shows(Sign::DeepSpeed) || message.tables.shows(Sign::Fsdp) =>
        {
            &[
                (
                    Other,
                    "load the weights on the CPU or in shards, so that no GPU holds them whole (ZeRO-3 with zero.Init or \
                     low_cpu_mem_usage; FSDP: sync_module_states, device \"meta\" on other ranks)",
                ),
                (Bits, "weights in fewer bits (load_in_4bit, torch_dtype)"),
                (
                    Other,
                    "more GPUs to shard over, or parameters on the CPU (offload_param)",
                ),
            ]
        }
        Some(Phase::Loading | Phase::Moving) => &[
            (Halves, "weights in 16 bits (torch_dtype)"),
            (Bits, "weights in 8 or 4 bits (load_in_4bit)"),
            (
                Other,
                "a part of them on the CPU, or split over more GPUs (device_map=\"auto\")",
            ),
            (Other, "a smaller model"),
        ],
        Some(Phase::Gathering) if message.tables.shows(Sign::DeepSpeed) => &[
            (Other, "parameters on the CPU (\"offload_param\" of ZeRO-3)"),
            (
                Other,
                "less gathered at once: smaller stage3_max_live_parameters and stage3_prefetch_bucket_size",
            ),
            (Bits, "base weights in 4 bits (QLoRA)"),
            (Other, "more GPUs to shard over"),
        ],
        Some(Phase::Gathering) => &[
            (
                Other,
                "sharded weights on the CPU (CPUOffload, CPUOffloadPolicy; torchtune: fsdp_cpu_offload)",
            ),
            (
                Other,
                "finer units: each layer, the embedding and the output wrapped by themselves, and given back after their forward pass \
                 (reshard_after_forward, FULL_SHARD)",
            ),
            (Bits, "base weights in 4 bits (QLoRA)"),
            (Other, "more GPUs to shard over"),
        ],
        Some(Phase::SettingUp) => &[
            OFFLOADED,
            (
                Other,
                "a higher stage of ZeRO, or more ranks, each of which holds less",
            ),
            STATE,
            ADAPTERS,
        ],
        Some(Phase::Saving) if message.tables.shows(Sign::Fsdp) => &[
            (
                Other,
                "FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, \
                 rank0_only=True)): gather the state in the host's memory of rank 0",
            ),
            (Other, "SHARDED_STATE_DICT: each rank writes its own part"),
        ],
        Some(Phase::Saving) if message.tables.shows(Sign::DeepSpeed) => &[(
            Other,
            "save ZeRO's shards as they are and merge them afterwards on the CPU (zero_to_fp32.py); \
                 stage3_gather_16bit_weights_on_model_save=false",
        )],
        Some(Phase::Saving) => &[
            (
                Other,
                "copy each tensor to the CPU as it is saved: {name: tensor.cpu() for name, tensor in model.state_dict().items()}",
            ),
            (
                Other,
                "delete what else is alive before: gradients (optimizer.zero_grad(set_to_none=True)), batches, a second model",
            ),
        ],
        Some(Phase::Collecting) => &[
            (
                Other,
                "move predictions to the CPU as they come: eval_accumulation_steps=1 of the Trainer",
            ),
            (
                Other,
                "keep less of each: preprocess_logits_for_metrics (argmax), prediction_loss_only=True, fewer samples",
            ),
        ],
        // Neither the batch nor the graph: what is kept of each batch.
        Some(Phase::Evaluating)
            if message.tables.shows(Sign::BatchTried) || evaluates_in_trainer(message) =>
        {
            &[
                (
                    Other,
                    "what is kept of each batch moved to the CPU (.cpu(); eval_accumulation_steps=1 of the Trainer)",
                ),
                (
                    Other,
                    "less kept of each: preprocess_logits_for_metrics (argmax), prediction_loss_only=True, no hidden states",
                ),
                (
                    EvaluationBatch,
                    "a smaller batch in evaluation (per_device_eval_batch_size)",
                ),
                (Graph, "torch.no_grad() around it, so that no graph is kept"),
            ]
        }
        Some(Phase::Evaluating) => &[
            (Graph, "torch.no_grad() around it, so that no graph is kept"),
            (
                EvaluationBatch,
                "a smaller batch in evaluation, or smaller images and sequences",
            ),
            (
                Other,
                "results moved to the CPU after each batch (.cpu(), .item())",
            ),
        ],
        Some(Phase::Decoding) => &[
            (
                Tiles,
                "pipe.vae.enable_tiling() and pipe.vae.enable_slicing(): decode in pieces",
            ),
            (
                SmallerTiles,
                "smaller tiles of the VAE (tile_sample_min_height, tile_sample_min_width)",
            ),
            (
                Other,
                "pipe.enable_model_cpu_offload() in place of .to(\"cuda\"): nothing but the VAE on the GPU then",
            ),
            (Inputs, "fewer frames, or a smaller picture"),
        ],
        Some(Phase::Generating) => &[
            (Batch, "fewer prompts or beams at once"),
            (
                Inputs,
                "a shorter prompt, and fewer new tokens (max_new_tokens): keys and values grow with each",
            ),
            (Bits, "weights in fewer bits (load_in_4bit)"),
            (
                Other,
                "keys and values on the CPU (cache_implementation=\"offloaded\")",
            ),
        ],
        Some(Phase::Optimizing) => &[
            (
                Temporaries,
                "foreach=False in the optimizer, or a fused one (fused=True, DeepSpeed's FusedAdam): no temporaries as large as all its \
                 parameters",
            ),
            STATE,
            OFFLOADED,
            (Other, "it sharded over more ranks (ZeRO, FSDP)"),
            ADAPTERS,
        ],
        Some(Phase::Backward) => &[
            (Batch, "a smaller batch with accumulated gradients"),
            (Halves, "16 bits (bf16)"),
            (Recomputing, "activation checkpointing"),
            (Inputs, "a shorter sequence or smaller image"),
            ADAPTERS,
            STATE,
            (
                Other,
                "weights or the optimizer's state on the CPU, or sharded over more GPUs",
            ),
        ],
        _ if message.tables.shows(Sign::Trains) => &[
            (Batch, "a smaller batch with accumulated gradients"),
            (Inputs, "a smaller image or shorter sequence"),
            (Halves, "16 bits"),
            (Recomputing, "activation checkpointing"),
            ADAPTERS,
            STATE,
        ],
        _ if message.tables.shows(Sign::Infers) => &[
            (
                Graph,
                "torch.no_grad() around the forward pass, if it is not there yet, so that no graph is kept",
            ),
            (Inputs, "a smaller image or shorter sequence"),
            (Batch, "a smaller batch"),
            (Halves, "weights in 16 or fewer bits"),
        ],
        _ => &[
            (Batch, "a smaller batch"),
            (Inputs, "a smaller image or shorter sequence"),
            (Halves, "16 bits"),
            (
                Recomputing,
                "activation checkpointing where something is trained",
            ),
            (Graph, "torch.no_grad() where nothing is"),
        ],
    };
    ways("", list)
}

/// vLLM's trial run of the largest batch that its limits allow, before its cache has a size: no share of the GPU helps.
fn trial_run(message: &OomMessage) -> Vec<NextStep> {
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
fn rollouts(message: &OomMessage) -> Vec<NextStep> {
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

fn inside_vllm(message: &OomMessage) -> Vec<NextStep> {
    if matches!(message.during, Some(Phase::Loading | Phase::Moving)) {
        return vec![
            step(
                "--tensor-parallel-size 2",
                "the weights did not fit: split them over more GPUs",
            ),
            ways(
                "",
                &[
                    (
                        Change::Bits,
                        "weights in fewer bits (AWQ, GPTQ, FP8: --quantization fp8)",
                    ),
                    (Change::Other, "a smaller model"),
                ],
            ),
            step(
                "--cpu-offload-gb 8",
                "keep so much of the weights in the host's memory, which is slow",
            ),
            others_on_the_gpu(message),
        ];
    }
    let share = step(
        "--gpu-memory-utilization 0.85",
        "a smaller share for vLLM leaves more for what it does not plan (the default is 0.9)",
    )
    .changing(Change::Share);
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
        fewer,
        step(
            "--max-num-batched-tokens 2048",
            "fewer tokens at once in the first pass over prompts",
        ),
        step("--max-model-len 8192", "shorter requests"),
        eager,
    ];
    if message.setting == Some("--max-num-seqs") {
        steps.swap(0, 1);
    }
    steps
}

fn inside_tgi(message: &OomMessage) -> Vec<NextStep> {
    let mut steps = vec![
        step("--quantize bitsandbytes", "weights in fewer bits"),
        step("--num-shard", "split the model over more GPUs than now"),
    ];
    if matches!(message.during, Some(Phase::Loading | Phase::Moving)) {
        steps.push(advice("a smaller model: its weights alone do not fit"));
        steps.push(others_on_the_gpu(message));
        return steps;
    }
    // Its trial run comes before the pool: neither a share nor a pool is what is too large.
    if let Some(tokens) = super::other::prefill_tokens(message) {
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

fn inside_sglang(message: &OomMessage) -> Vec<NextStep> {
    if matches!(message.during, Some(Phase::Loading | Phase::Moving)) {
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
        _ if message
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
fn sglang(message: &OomMessage) -> Vec<NextStep> {
    let mut steps = vec![
        step(
            "--mem-fraction-static 0.92",
            "the weights alone use up SGLang's share of the GPU: let it take more (the default is about 0.88)",
        )
        .changing(Change::Share),
        step(
            "--tp 2",
            "split the model over more GPUs, or load it quantised",
        ),
        ways(
            "",
            &[
                (Change::Bits, "weights in fewer bits (AWQ, GPTQ, FP8: --quantization fp8)"),
                (Change::Other, "a smaller model"),
            ],
        ),
        others_on_the_gpu(message),
    ];
    if super::ways::no_share_fits(message) {
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

fn jax(message: &OomMessage) -> Vec<NextStep> {
    if let Some(Program::Named(named)) = message.inside {
        return uses(named, message);
    }
    let recompute = step(
        "jax.checkpoint",
        "recompute activations in the backward pass instead of keeping them",
    );
    let profile = step(
        "jax.profiler.save_device_memory_profile(\"memory.prof\")",
        "what holds the memory, by line (for pprof)",
    );
    let batch = ways(
        "",
        &[
            (
                Change::Singles,
                "float32 where the text shows float64: half of it",
            ),
            (Change::Batch, "a smaller batch"),
            (Change::Other, "shard it over more devices"),
        ],
    );
    if message.setting == Some("what is free") {
        return vec![
            others_on_the_gpu(message),
            step(
                "XLA_PYTHON_CLIENT_PREALLOCATE=false",
                "take memory as needed instead of a share at the start",
            ),
            batch,
        ];
    }
    if super::figures::plan(message).is_some_and(|plan| plan.is_of_the_state()) {
        return vec![
            advice(
                "shard what is kept over the devices (weights, the optimizer's state: FSDP, jax.sharding.NamedSharding) in place of a whole \
                 copy on each",
            ),
            advice(
                "fewer copies of the weights: no moving average (EMA), an optimizer with less state (Adafactor, moments in bfloat16), \
                 adapters (LoRA) in place of all weights",
            ),
            step(
                "jax.jit(…, donate_argnums=(0,))",
                "where a step takes the old state and gives a new one: the new one then takes the old one's place",
            ),
            advice("GPUs with more memory, or more of them"),
            profile,
        ];
    }
    if message.hardware == Hardware::Tpu && !message.tables.shows(Sign::Trains) {
        let alive = step(
            "jax.live_arrays()",
            "just before that line: what is alive already, as of an earlier run in the same notebook (restart its runtime; `del` arrays)",
        );
        let trained = step(
            "jax.checkpoint",
            "if it trains: recompute activations in the backward pass instead of keeping them",
        );
        return vec![alive, batch, trained, profile];
    }
    if message.hardware == Hardware::Tpu {
        return vec![recompute, batch, profile];
    }
    if message
        .requested
        .is_some_and(super::other::is_larger_than_gpus)
    {
        return vec![
            recompute,
            step(
                format!(
                    "TF_FORCE_UNIFIED_MEMORY=1 XLA_PYTHON_CLIENT_MEM_FRACTION={}",
                    fraction_of_the_gpu(message)
                ),
                "let the GPU use the host's memory as well, which is slow: so many times its own",
            ),
            profile,
        ];
    }
    if super::other::is_small(message) || super::figures::never_fits(message).is_some() {
        let mut steps = vec![
            step(
                "jax.live_arrays()",
                "just before that line: which arrays are alive, and their sizes; `del` what is not needed",
            ),
            profile,
            others_on_the_gpu(message),
            step(
                "XLA_PYTHON_CLIENT_PREALLOCATE=false",
                "if other processes use the GPU, too: take memory as needed instead of a share at the start",
            ),
            ways(
                "{} leave less alive at once",
                &[
                    (Change::Batch, "smaller batches"),
                    (Change::Inputs, "smaller pieces of the work (chunks, crops)"),
                ],
            ),
        ];
        if !super::other::is_small(message) {
            steps.splice(
                0..2,
                [
                    ways(
                        "",
                        &[
                            (
                                Change::Singles,
                                "float32 where the text shows float64: half of it",
                            ),
                            (
                                Change::Inputs,
                                "a smaller input (a shorter sequence, a crop)",
                            ),
                            (Change::Batch, "a smaller batch"),
                            (Change::Other, "the work in parts (jax.lax.map)"),
                        ],
                    ),
                    advice("a GPU with more memory"),
                    step(
                        format!("TF_FORCE_UNIFIED_MEMORY=1 XLA_PYTHON_CLIENT_MEM_FRACTION={}", fraction_of_the_gpu(message)),
                        "let the GPU use the host's memory as well, which is slow: so many times its own",
                    ),
                ],
            );
        }
        return steps;
    }
    let share = if message.memory == Memory::Unknown {
        "if JAX ran on the GPU: let it take more of it (the default is 0.75); if on the CPU, the host's \
         memory was used up"
    } else {
        "let JAX take more of the GPU (the default is 0.75)"
    };
    let share = step("XLA_PYTHON_CLIENT_MEM_FRACTION=0.92", share);
    let others = others_on_the_gpu(message);
    if message.tables.shows(Sign::Trains) {
        vec![batch, recompute, share, profile, others]
    } else {
        vec![
            ways(
                "less at once: {}",
                &[
                    (
                        Change::Singles,
                        "float32 where the text shows float64, which is half of it",
                    ),
                    (Change::Batch, "a smaller batch"),
                    (
                        Change::Inputs,
                        "the work in parts (jax.lax.map with batch_size)",
                    ),
                ],
            ),
            share,
            others,
            profile,
            step(
                "jax.checkpoint",
                "if it trains: recompute activations in the backward pass instead of keeping them",
            ),
        ]
    }
}

fn tensorflow(message: &OomMessage) -> Vec<NextStep> {
    let grow = if message.memory == Memory::Unknown {
        "if TensorFlow ran on the GPU: take memory as needed instead of all at the start; if on the CPU, the \
         host's memory was used up"
    } else {
        "take memory as needed instead of all at the start, so that libraries and other processes find some"
    };
    let growth = step("TF_FORCE_GPU_ALLOW_GROWTH=true", grow);
    let full = super::other::is_full_pool(message);
    if message.setting == Some("an account") && !full {
        return vec![
            advice(
                "the lines just above the account, which name the request that failed (\"ran out of memory trying to allocate …\"), \
                 and those below it",
            ),
            advice(
                "if the limit is below what the GPU has: a larger share for TensorFlow's pool (per_process_gpu_memory_fraction, \
                 set_logical_device_configuration), or less for what asked (TensorRT: max_workspace_size_bytes)",
            ),
            growth,
            others_on_the_gpu(message),
        ];
    }
    let pieces = step(
        "TF_GPU_ALLOCATOR=cuda_malloc_async",
        "an allocator that loses less to pieces (TensorFlow 2.5 or newer)",
    )
    .changing(Change::Pieces);
    let smaller = ways(
        "",
        &[
            (Change::Batch, "a smaller batch"),
            (
                Change::Inputs,
                "smaller inputs (a shorter sequence, a smaller image)",
            ),
            (
                Change::Halves,
                "16 bits (Keras from 2.4 on: tf.keras.mixed_precision.set_global_policy(\"mixed_float16\"))",
            ),
            (
                Change::Other,
                "a smaller model, or an optimizer with less state",
            ),
        ],
    );
    let others = others_on_the_gpu(message);
    let first = advice("end what holds the GPU: an earlier run, a notebook, a server");
    // A handle needs little, whatever the batch.
    if matches!(message.kind, MessageKind::Cudnn | MessageKind::Cublas) {
        let versions = advice(
            "whether the driver, CUDA and the library are the versions that this TensorFlow was built for",
        );
        let mut steps = vec![growth, others, first, versions];
        if message.tables.shows(Sign::OldDriver) {
            steps.rotate_right(1);
        }
        return steps;
    }
    // A library beside the pool, or the pool's own start, wants what other processes or the pool took.
    if message.setting == Some("what is free") && message.tables.shows(Sign::SharesGpu) {
        // Both are the reader's own.
        let share = step(
            "per_process_gpu_memory_fraction=0.4",
            "or a fixed share for each (set_logical_device_configuration in TensorFlow 2)",
        );
        vec![growth, share, others]
    } else if message.setting == Some("what is free") {
        vec![others, first, growth]
    } else if full {
        vec![smaller]
    } else if message.program == Program::Tensorflow && message.kind == MessageKind::Allocation {
        // A tensor that the pool has no room for finds none in a pool that grows.
        vec![smaller, pieces, others]
    } else {
        vec![growth, others, smaller, pieces]
    }
}

/// Of Triton Inference Server, whose settings stand in a model's `config.pbtxt`.
fn triton_server(onnx: bool) -> Vec<NextStep> {
    let mut steps = vec![
        step(
            "instance_group [{ count: 1, kind: KIND_GPU }]",
            "in config.pbtxt: fewer instances of each model, each of which has its own memory",
        ),
        step(
            "max_batch_size: 8",
            "in config.pbtxt: fewer requests in one batch, or shorter inputs",
        ),
    ];
    if onnx {
        steps.insert(
            1,
            step(
                "parameters { key: \"gpu_mem_limit\" value: { string_value: \"8589934592\" } }",
                "in config.pbtxt: a limit for the model's arena (arena_extend_strategy \"1\": it grows by what is asked for)",
            ),
        );
    }
    steps
}

fn onnxruntime(message: &OomMessage) -> Vec<NextStep> {
    if matches!(message.inside, Some(Program::Named(named)) if named.id == "triton-server") {
        let mut steps = triton_server(true);
        steps.push(others_on_the_gpu(message));
        return steps;
    }
    if message.setting == Some("DirectML") || message.hardware == Hardware::DirectX {
        return vec![
            ways(
                "{}: DirectML takes what the graph needs, without a limit",
                &SMALLER,
            ),
            step(
                "session_options.enable_mem_pattern = False",
                "DirectML needs it off, and then plans no memory ahead",
            ),
        ];
    }
    if message.during == Some(Phase::Loading) {
        return vec![
            advice(
                "nothing else of this job on the GPU while the session is made: another copy of the model (PyTorch's, as after an export), \
                 another session; make it in a new process",
            ),
            step(
                "providers=[\"CPUExecutionProvider\"]",
                "if it only checks or converts the model: on the CPU (optimum-cli export onnx: --device cpu, --no-post-process)",
            ),
            step(
                "provider_options=[{\"arena_extend_strategy\": \"kSameAsRequested\"}]",
                "an arena that grows by what is asked for, not by powers of two; a model in fewer bits, or a GPU with room for its \
                 weights, where that is not enough: no batch has run yet",
            ),
            others_on_the_gpu(message),
        ];
    }
    let node = super::figures::node(message);
    let scores = node.is_some_and(super::figures::makes_scores);
    let convolves = node.is_none_or(|(operator, _)| operator.contains("Conv"));
    // No arena has room for one buffer that large.
    let large = message
        .requested
        .is_some_and(|asked| asked >= Bytes::gib(1));
    let mut steps = vec![step(
        "provider_options=[{\"arena_extend_strategy\": \"kSameAsRequested\"}]",
        "on the GPU: an arena that grows by what is asked for, not by powers of two",
    )];
    if convolves {
        steps.push(step(
            "provider_options=[{\"cudnn_conv_use_max_workspace\": \"0\"}]",
            "on the GPU: convolutions that need less workspace",
        ));
    }
    if message.memory == Memory::Unknown {
        steps.push(step(
            "session_options.enable_cpu_mem_arena = False",
            "on the CPU: give memory back after each run; `free -h` shows what is left",
        ));
    }
    let inputs = ways(
        "",
        &[
            (
                Change::Inputs,
                if scores {
                    "smaller inputs, where the model takes other sizes: half as many tokens need a quarter, and half the side of a picture \
                     a sixteenth; otherwise a smaller model, or one in 16 bits"
                } else {
                    "smaller inputs, with a bound where their size varies"
                },
            ),
            (Change::Batch, "a smaller batch"),
        ],
    );
    let place = if scores || large { 0 } else { steps.len() };
    steps.insert(place, inputs);
    if scores {
        steps.insert(
            1,
            step(
                "python -m onnxruntime.transformers.optimizer --input model.onnx --output fused.onnx --opt_level 1",
                "attention as one node (MultiHeadAttention), which keeps no matrix of all scores; or export it so",
            ),
        );
    }
    steps
}

fn tensorrt(message: &OomMessage) -> Vec<NextStep> {
    if message.setting == Some("TensorRT-LLM") {
        let split = step("--tp_size 2", "split the engine over more GPUs");
        if message.tables.shows(Sign::Builds) && message.during != Some(Phase::Engine) {
            return vec![
                step(
                    "--max_batch_size 8 --max_num_tokens 2048",
                    "an engine for fewer tokens at once: what the builder tries is as large as they allow",
                ),
                split,
                advice(
                    "an engine with weights in fewer bits (FP8, INT4), or a GPU with more memory for the build",
                ),
                others_on_the_gpu(message),
            ];
        }
        if message.during == Some(Phase::Engine) {
            return vec![
                split,
                advice(
                    "an engine with weights in fewer bits (FP8, INT4): the engine itself did not fit",
                ),
                others_on_the_gpu(message),
            ];
        }
        return vec![
            step(
                "kv_cache_config.free_gpu_memory_fraction=0.7",
                "a smaller cache of keys and values (the default is 0.9 of what is free)",
            ),
            split,
            step(
                "--max_batch_size 8 --max_num_tokens 2048",
                "an engine for fewer tokens at once",
            ),
            others_on_the_gpu(message),
        ];
    }
    let on_the_command_line = message
        .settings
        .iter()
        .any(|setting| setting.name == "memPoolSize" || setting.name == "saveEngine");
    let skipped = message.handled || message.setting == Some("skipped beside an error");
    let mut steps = vec![
        step(
            if on_the_command_line {
                "--memPoolSize=workspace:1024"
            } else {
                "config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)"
            },
            "a workspace that fits into what is free (trtexec: --memPoolSize=workspace:1024)",
        ),
        step("--fp16", "an engine in 16 bits"),
        advice("an engine for smaller inputs (--maxShapes), or a smaller model"),
        others_on_the_gpu(message),
    ];
    if skipped {
        steps.insert(
            0,
            advice("see whether the engine was built all the same: a tactic that is skipped is no failure, and nothing has to be done then"),
        );
    } else if message.tables.shows(Sign::MakesContext) {
        // What a context needs is fixed when the engine is built.
        steps = vec![
            advice(
                "build the engine again for smaller shapes: the maxima of its profile (--maxShapes, a static batch and size; of \
                 TensorRT-LLM --max_batch_size, --max_num_tokens, --max_input_len) set what its context needs, whatever is run",
            ),
            others_on_the_gpu(message),
            step(
                "engine.device_memory_size_v2",
                "what a context of this engine needs (device_memory_size before TensorRT 10)",
            ),
            advice(
                "fewer engines loaded at once, or contexts that share their memory (ExecutionContextAllocationStrategy)",
            ),
        ];
    } else if message.tables.shows(Sign::NoImplementation) {
        // A node's own tensors are no workspace.
        steps.swap(0, 2);
        steps.insert(
            1,
            advice("another version of TensorRT, which fuses the nodes otherwise, or a GPU with more memory (of the same architecture) for the build"),
        );
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
    let short = super::other::short_of_share(message);
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
        "the model and vLLM's trial run use up its share: let it take more, if the GPU has room (the default is 0.9)",
    )
    .changing(Change::Share)
}

fn vllm(message: &OomMessage) -> Vec<NextStep> {
    if let Some(shared) = super::sharing::of(message) {
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
        let times = super::other::times_too_long(message);
        let mut steps = vec![
            length,
            step(
                "--gpu-memory-utilization 0.95",
                "a larger share for vLLM, if yours is smaller (the default is 0.9) and the GPU has room",
            )
            .changing(Change::Share),
            step(
                "--kv-cache-dtype fp8",
                "keys and values in 8 bits: twice as many tokens",
            ),
            step("--tensor-parallel-size 2", "split the model over more GPUs"),
        ];
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
        let mut steps = vec![
            larger_share(message),
            step(
                "--max-num-batched-tokens 4096 --max-model-len 4096",
                "a smaller trial run, and shorter requests",
            ),
            split.clone(),
            step("--enforce-eager", "no CUDA graphs, which take 1 to 3 GiB"),
        ];
        // Such a share can hardly be larger, so it is the model that does not fit.
        let large = message.settings.iter().any(|setting| {
            let value = setting
                .value
                .as_deref()
                .and_then(|value| value.parse::<f64>().ok());
            setting.name == "gpu_memory_utilization" && value.is_some_and(|share| share >= 0.9)
        });
        if large {
            steps.remove(2);
            steps.insert(0, split);
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

/// Whether others hold a good part of the device that the message is about.
pub(crate) fn held_by_others(message: &OomMessage) -> bool {
    message
        .free
        .zip(message.total)
        .is_some_and(|(free, total)| (total - free).0 as f64 > super::FOREIGN * total.0 as f64)
}

fn cupy(message: &OomMessage) -> Vec<NextStep> {
    let mut steps = vec![step(
        "cupy.get_default_memory_pool().free_all_blocks()",
        "give back what the pool keeps but no array uses: such blocks count, and a larger array cannot use them",
    )];
    if message.total.is_some() {
        steps.push(step(
            "cupy.get_default_memory_pool().set_limit(fraction=0.9)",
            "raise the limit that was set on the pool (also CUPY_GPU_MEMORY_LIMIT)",
        ));
    }
    steps.push(advice(
        "smaller arrays, float32 instead of float64, or work in chunks",
    ));
    // So little is no GPU, so that something else holds the rest.
    let little = message
        .used()
        .is_some_and(|held| held + message.requested.unwrap_or_default() < Bytes::gib(3));
    if little && message.total.is_none() {
        steps.insert(0, others_on_the_gpu(message));
    } else {
        steps.push(others_on_the_gpu(message));
    }
    steps
}

fn rmm(message: &OomMessage) -> Vec<NextStep> {
    let spill = step(
        "rmm.reinitialize(managed_memory=True)",
        "let data move to the host when the GPU is full",
    );
    if message.setting == Some("maximum_pool_size") {
        return vec![
            step(
                "rmm.mr.PoolMemoryResource(upstream, maximum_pool_size=…)",
                "raise the limit of RMM's pool",
            ),
            spill,
            others_on_the_gpu(message),
        ];
    }
    vec![
        spill,
        advice(
            "less at once: columns that are needed, smaller types, data in partitions (dask-cudf), intermediate results deleted; a join or a \
             group may give far more rows than it takes",
        ),
        step(
            "rmm.reinitialize(pool_allocator=True, initial_pool_size=…, maximum_pool_size=…)",
            "a pool of a size of its own from the start: one that grows asks the driver for more than the request",
        ),
        others_on_the_gpu(message),
    ]
}

/// A library or the driver found the GPU full: what filled it was another allocator, or another process.
fn library(message: &OomMessage) -> Vec<NextStep> {
    if super::other::has_room(message) {
        return vec![
            advice(
                "the versions: the framework's build, cuDNN and CUDA (pip list), and the driver (nvidia-smi); an LD_LIBRARY_PATH \
                 that shows another copy of the library",
            ),
            advice(
                "one small operation on the GPU alone: if that fails as well, the installation is at fault",
            ),
            others_on_the_gpu(message),
        ];
    }
    if super::other::is_context(message) {
        return vec![
            others_on_the_gpu(message),
            advice("end what holds it: an earlier run of this job, a notebook, a server"),
            step(
                "CUDA_VISIBLE_DEVICES=1",
                "use a GPU that is free, by its number",
            ),
        ];
    }
    if message.during == Some(Phase::Pinning) && message.inside == Some(Program::LlamaCpp) {
        return vec![
            advice(
                "leave --no-mmap out: the weights are then read from the file as they are needed, and not pinned",
            ),
            step(
                "GGML_CUDA_NO_PINNED=1",
                "or no pinned memory, in versions that know it",
            ),
            step(
                "free -h",
                "how much of the host's memory is free (under WSL the limit is `memory` in .wslconfig)",
            ),
        ];
    }
    if message.during == Some(Phase::Pinning) {
        return vec![
            others_on_the_gpu(message),
            step("free -h", "how much of the host's memory is free"),
            step(
                "pin_memory=False",
                "in the DataLoader, with fewer workers; of DeepSpeed: \"pin_memory\": false beside an offload's \"device\"",
            ),
        ];
    }
    let mut steps = match message.inside {
        // It asked beside XLA's own allocator, which takes most of the GPU at the start.
        Some(Program::Jax) if message.program == Program::Cuda => vec![
            step(
                "XLA_PYTHON_CLIENT_MEM_FRACTION=0.6",
                "a smaller share for JAX (the default is 0.75) leaves the driver and libraries what they need",
            ),
            step(
                "XLA_PYTHON_CLIENT_PREALLOCATE=false",
                "or take memory as needed instead of a share at the start",
            ),
            others_on_the_gpu(message),
        ],
        Some(Program::Jax) => jax(message),
        Some(Program::Tensorflow) => tensorflow(message),
        Some(Program::OnnxRuntime) => onnxruntime(message),
        Some(Program::Cupy) => cupy(message),
        Some(Program::LlamaCpp | Program::Ollama) => llama(message),
        Some(Program::Relion) => relion(message),
        Some(Program::TensorRt) => tensorrt(message),
        Some(Program::ComfyUi | Program::StableDiffusion) => pytorch(message),
        Some(Program::Vllm) => inside_vllm(message),
        Some(Program::Sglang) => inside_sglang(message),
        Some(Program::Named(named)) => uses(named, message),
        Some(Program::CTranslate2) => vec![
            advice("a smaller model, or weights in fewer bits: compute_type=\"int8\""),
            advice("fewer files at once, a smaller beam (beam_size=1), shorter pieces of audio"),
            others_on_the_gpu(message),
        ],
        Some(Program::Xgboost) => vec![
            advice(
                "fewer rows at once (QuantileDMatrix, external memory), a smaller max_bin or max_depth, \
                 sampling_method=\"gradient_based\" with a smaller subsample",
            ),
            others_on_the_gpu(message),
        ],
        Some(Program::Numba) => vec![
            advice("smaller arrays on the GPU, float32 instead of float64, or work in chunks"),
            others_on_the_gpu(message),
        ],
        _ if message.kind == MessageKind::Cuda && is_perhaps_pytorch(message) => {
            cuda_in_pytorch(message)
        }
        _ if is_perhaps_pytorch(message) => {
            let mut steps = vec![others_on_the_gpu(message)];
            steps.extend(load_on_the_cpu(message));
            if ["NOT_INITIALIZED", "STATUS_INTERNAL_ERROR"]
                .iter()
                .any(|status| message.text.contains(status))
            {
                steps.push(step(
                    "python -c \"import torch; print(torch.__version__, torch.version.cuda); torch.ones(2, 2).cuda() @ torch.ones(2, 2).cuda()\"",
                    "whether a product works at all: if not, PyTorch, CUDA and the driver do not fit together",
                ));
            }
            steps.extend(script(message).map(|script| {
                step(
                    format!("oomph run {script}"),
                    "if it is a job of PyTorch: what fills the GPU, by line; needs no GPU",
                )
            }));
            // Room beside the framework's allocator is of no use to an algorithm, whose scratch memory is the allocator's.
            steps.push(if message.kind == MessageKind::NoAlgorithm {
                ways("less on the GPU: {}", &SMALLER)
            } else {
                ways(
                    "leave headroom: {}",
                    &[
                        (Change::Batch, "a smaller batch"),
                        (
                            Change::Other,
                            "less than all of the GPU for PyTorch's allocator (torch.cuda.set_per_process_memory_fraction)",
                        ),
                    ],
                )
            });
            steps
        }
        _ => vec![
            others_on_the_gpu(message),
            ways(
                "less at once: {}",
                &[
                    (Change::Batch, "a smaller batch of a model"),
                    (
                        Change::Inputs,
                        "smaller inputs, a smaller problem on each GPU",
                    ),
                    (Change::Halves, "lower precision"),
                    (Change::Other, "more GPUs to share it"),
                ],
            ),
        ],
    };
    let python = message.inside.is_none() && is_perhaps_pytorch(message);
    let later = message.tables.shows(Sign::Asynchronous) || message.kind != MessageKind::Cuda;
    if python && later && message.memory == Memory::Device && message.requested.is_none() {
        steps.push(step(
            if message.hardware == Hardware::Amd {
                "AMD_SERIALIZE_KERNEL=3"
            } else {
                "CUDA_LAUNCH_BLOCKING=1"
            },
            "where it really fails: such errors may show up at a later call",
        ));
    }
    if message.program == Program::Cudnn && message.inside.is_none() && is_perhaps_pytorch(message)
    {
        steps.push(step(
            "torch.backends.cudnn.benchmark = False",
            "convolutions that need less workspace",
        ));
    }
    steps
}

/// CUDA's bare words below a script: what the phase needs comes first where it is known, and otherwise who holds the GPU.
fn cuda_in_pytorch(message: &OomMessage) -> Vec<NextStep> {
    let shows = |sign| message.tables.shows(sign);
    let phase = matches!(
        message.during,
        Some(
            Phase::Evaluating
                | Phase::Collecting
                | Phase::Backward
                | Phase::Optimizing
                | Phase::Attending
                | Phase::Decoding
                | Phase::Generating
        )
    );
    // Below a forward pass the job itself was at work.
    let mut frames = message.traceback.iter();
    let forward = frames.any(|frame| {
        frame.file.ends_with("nn/modules/module.py")
            && matches!(frame.function.as_str(), "__call__" | "_call_impl")
    });
    let known = phase || (message.during.is_none() && (forward || shows(Sign::Trains)));
    let mut steps: Vec<NextStep> = load_on_the_cpu(message).into_iter().collect();
    if !steps.is_empty() {
        steps.push(others_on_the_gpu(message));
    } else if known && !message.traceback.is_empty() {
        steps.extend([by_hand(message), others_on_the_gpu(message)]);
    } else {
        steps.extend([others_on_the_gpu(message), by_hand(message)]);
    }
    steps.extend(script(message).map(|script| {
        step(
            format!("oomph run {script}"),
            "if it is a job of PyTorch: what fills the GPU, by line; needs no GPU",
        )
    }));
    steps
}

/// Whether PyTorch may have raised it: it has a traceback of Python's, or the name of an error of Python's.
fn is_perhaps_pytorch(message: &OomMessage) -> bool {
    if message.text.contains(".lua:") {
        return false;
    }
    !message.traceback.is_empty()
        || message.inside == Some(Program::Pytorch)
        || ["torch", "RuntimeError", "AcceleratorError", "CUDA error: "]
            .iter()
            .any(|word| message.text.contains(word))
}

fn look_at_the_kernel() -> NextStep {
    step(
        "dmesg -T | grep -iE 'killed process|out of memory'",
        "whether the kernel's OOM killer ended it, and what it held",
    )
}

fn look_at_the_host() -> NextStep {
    step(
        "free -h",
        "how much of the host's memory is free, and how much there is",
    )
}

/// A size to ask for: a quarter more than the limit or the use that was known, in whole GiB.
fn more_than(known: Option<Bytes>) -> String {
    known.map_or_else(
        || "SIZE".to_owned(),
        |known| format!("{}G", known.0.saturating_add(known.0 / 4).div_ceil(1 << 30)),
    )
}

/// The same as Kubernetes writes it.
fn kubernetes_size(known: Option<Bytes>) -> String {
    let unit = if known.is_some() { "i" } else { "" };
    format!("{}{unit}", more_than(known))
}

fn limit_above(known: Option<Bytes>) -> String {
    format!("resources.limits.memory: {}", kubernetes_size(known))
}

fn systemd(message: &OomMessage) -> Vec<NextStep> {
    if message.setting.is_some() {
        return vec![
            look_at_the_host(),
            step(
                "systemd-run --user --scope -p ManagedOOMPreference=avoid PROGRAM",
                "a job that systemd-oomd ends last; `oomctl` shows what it watches",
            ),
            advice("fewer DataLoader workers; load weights with mmap, once and not in each rank"),
        ];
    }
    vec![
        if message.tables.shows(Sign::Ollama) {
            let stated = |name| super::figures::stated(message, name);
            let rest = stated("memory.required.full")
                .zip(stated("memory.required.partial"))
                .map(|(full, on_gpus)| {
                    format!(
                        " (by the text {full} in all and {on_gpus} on the GPUs, so {} in RAM)",
                        full.saturating_sub(on_gpus)
                    )
                })
                .unwrap_or_default();
            advice(format!(
                "a smaller quantisation of the model, or a smaller model: what is not on the GPUs lies in RAM{rest}; or more RAM or swap. \
                 Fewer layers on the GPU (num_gpu) make it worse"
            ))
        } else {
            advice(needs_less(message))
        },
        NextStep {
            what: "which process it ended, and what that held".to_owned(),
            ..look_at_the_kernel()
        },
        step(
            format!(
                "systemctl show {} -p MemoryMax -p MemoryPeak",
                shell_word(message.process.as_deref()).unwrap_or("UNIT")
            ),
            "the unit's limit, and the most that it held",
        ),
        look_at_the_host(),
    ]
}

fn on_the_host(message: &OomMessage) -> Vec<NextStep> {
    let shared = message.allocator.as_deref() == Some("/dev/shm");
    let locked = message.allocator.as_deref() == Some("locked memory");
    match message.program {
        _ if message.setting == Some("no reason") => vec![
            advice(
                "watch the memory that the notebook shows while it runs again: if it climbs to the end, it was RAM",
            ),
            advice(
                "the session's log (Colab: Runtime, View runtime logs; Jupyter: the terminal it runs in)",
            ),
            advice(NOTEBOOK),
        ],
        // Windows' own words, or its number in any language, whatever program says them.
        _ if ["paging file", "not enough memory: you tried", "rror 1455"]
            .iter()
            .any(|words| message.text.contains(words)) =>
        {
            vec![
                advice(
                    "a larger page file (Windows: System, Advanced, Virtual memory), or more RAM",
                ),
                advice("close other programs: Task Manager shows what is committed, and the limit"),
                advice("smaller inputs, a smaller model, fewer workers"),
            ]
        }
        Program::Named(named) if !shared && !locked => uses(named, message),
        _ if shared => vec![
            step(
                "docker run --shm-size=16g …",
                "more shared memory for a container (Kubernetes: an emptyDir of medium Memory at /dev/shm)",
            ),
            step("df -h /dev/shm", "how much there is, and who filled it"),
            advice("fewer DataLoader workers, a smaller prefetch_factor"),
        ],
        Program::LlamaCpp if locked => vec![
            step(
                "ulimit -l unlimited",
                "let the process lock the model's pages (docker: --ulimit memlock=-1)",
            ),
            advice("or leave --mlock out: the model is used all the same, and may be paged out"),
        ],
        _ if locked => vec![
            step(
                "ulimit -l unlimited",
                "let the process lock pages for the network (docker: --ulimit memlock=-1)",
            ),
            step(
                "unset NCCL_BUFFSIZE",
                "if it is set: larger buffers than the default (4 MiB each) have more to register",
            ),
            look_at_the_host(),
        ],
        Program::Slurm => slurm(message),
        Program::Kubernetes if message.setting == Some("eviction") => vec![
            step(
                format!(
                    "resources.requests.memory: {}",
                    kubernetes_size(message.in_use)
                ),
                "ask for what it uses: who uses more than asked for is ended first",
            ),
            step("kubectl top pod -A --sort-by=memory", "what fills the node"),
            advice("also a limit (resources.limits.memory), so that one pod cannot fill the node"),
        ],
        Program::Systemd => systemd(message),
        Program::Docker if message.setting == Some("ECS") => vec![
            advice(
                "more memory for the container: \"memory\" in the task's or the job's definition",
            ),
            advice(
                "a job that needs less: fewer workers, smaller buffers, weights loaded with mmap",
            ),
        ],
        Program::Docker => vec![
            step(
                format!("docker run --memory={} …", more_than(message.total)),
                "a higher limit for the container (Kubernetes: resources.limits.memory)",
            ),
            step(
                format!(
                    "docker inspect -f '{{{{.HostConfig.Memory}}}} {{{{.State.OOMKilled}}}}' {}",
                    shell_word(message.process.as_deref()).unwrap_or("CONTAINER")
                ),
                "its limit in bytes, and whether it ended by it",
            ),
            look_at_the_kernel(),
        ],
        Program::Kubernetes => vec![
            step(
                limit_above(message.total),
                "a higher limit for the container",
            ),
            step(
                format!(
                    "kubectl describe pod {}",
                    shell_word(message.host.as_deref()).unwrap_or("POD")
                ),
                "its limit, and what else was ended",
            ),
            advice("load weights with mmap (safetensors), fewer workers"),
        ],
        Program::Kernel => kernel(message),
        Program::Ray => ray(message),
        Program::DeepSpeed => vec![
            look_at_the_kernel(),
            step(
                "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"…\"}",
                "offloading to the CPU keeps 12 bytes or more for each parameter in the host's memory",
            ),
            step(
                "zero.Init / low_cpu_mem_usage=True",
                "do not build the whole model in each rank",
            ),
        ],
        Program::Shell
            if message.inside == Some(Program::Kubernetes)
                && message.setting == Some("not its limit") =>
        {
            let pod = shell_word(message.host.as_deref()).unwrap_or("POD");
            vec![
                step(
                    format!("kubectl describe pod {pod}"),
                    "its events (also `kubectl get events`): whether a probe failed, or it was evicted or deleted",
                ),
                step(
                    format!("kubectl logs {pod} --previous"),
                    "what it said last",
                ),
                step(
                    "dmesg -T | grep -iE 'killed process|out of memory'",
                    "on its node: whether the kernel ended one of its processes (a child of a shell is not the container's own)",
                ),
            ]
        }
        Program::Shell if message.inside == Some(Program::Kubernetes) => vec![
            step(
                format!(
                    "kubectl describe pod {}",
                    shell_word(message.host.as_deref()).unwrap_or("POD")
                ),
                "whether its last state is OOMKilled, and its limit",
            ),
            step("kubectl get events", "whether it was evicted, or deleted"),
            step(
                limit_above(message.total),
                "if it was memory: a higher limit, or a job that needs less",
            ),
        ],
        Program::Shell | Program::Unknown if message.setting == Some("not its limit") => vec![
            look_at_the_kernel(),
            step(
                "docker events --since 24h --filter event=die --filter event=kill --filter event=oom",
                "whether somebody stopped it",
            ),
            look_at_the_host(),
        ],
        Program::Shell | Program::Unknown if message.inside == Some(Program::Docker) => vec![
            step(
                "docker inspect -f '{{.State.OOMKilled}} {{.HostConfig.Memory}}' CONTAINER",
                "whether it ended by its limit, and the limit in bytes (0: none); podman takes the same",
            ),
            look_at_the_kernel(),
            look_at_the_host(),
        ],
        Program::Torchrun | Program::Shell => ended(message),
        Program::Unknown if message.kind == MessageKind::Killed => ended(message),
        Program::Python
            if message
                .traceback
                .iter()
                .any(|frame| frame.function.contains("fork") || frame.code.contains("fork")) =>
        {
            vec![
                look_at_the_host(),
                advice(
                    "fewer worker processes, started before the large data is loaded: a fork may need as much as its parent holds",
                ),
                advice(
                    "spawn instead of fork (multiprocessing.set_start_method(\"spawn\")): a new process starts small",
                ),
            ]
        }
        Program::Numpy if super::other::is_small(message) => vec![
            look_at_the_host(),
            advice(
                "what grows from step to step: a replay buffer, a list of results, a cache, workers' copies",
            ),
            step("numpy.memmap", "keep the large arrays in files"),
        ],
        Program::Numpy if let Some(shape) = shape(message) => vec![
            advice(format!(
                "whether that line means an array of shape ({shape}): print what its sides come from; a coordinate, a unit or an \
                 index that is wrong makes such a shape, and then no smaller type helps"
            )),
            advice(
                "if it does: a smaller type, work in chunks, or numpy.memmap (the array in a file)",
            ),
            look_at_the_host(),
        ],
        Program::Numpy => vec![
            step("numpy.memmap", "keep the array in a file"),
            advice("a smaller type, or work in chunks"),
            look_at_the_host(),
        ],
        Program::Cuda | Program::Tensorflow | Program::Jax
            if message.allocator.as_deref() == Some("pinned memory") =>
        {
            pinned(message)
        }
        Program::Tensorflow
            if message
                .allocator
                .as_deref()
                .is_some_and(|name| name.contains("host")) =>
        {
            vec![
                step(
                    "TF_GPU_HOST_MEM_LIMIT_IN_MB=131072",
                    "raise the limit of pinned host memory (the default is 64 GiB; before 1.14: TF_CUDA_HOST_MEM_LIMIT_IN_MB)",
                ),
                advice(
                    "or less on the host at once: fewer copies of the largest tensors (feeds, fetches, what is read ahead)",
                ),
                look_at_the_host(),
            ]
        }
        Program::Ollama => vec![
            advice("a smaller model, or a smaller quantisation of it"),
            step(
                "OLLAMA_CONTEXT_LENGTH=4096 ollama serve",
                "a shorter context has a smaller cache",
            ),
            step(
                "ollama ps",
                "which models are loaded: `ollama stop NAME` frees one",
            ),
            look_at_the_host(),
        ],
        Program::LlamaCpp
            if message.handled && message.allocator.as_deref() == Some("pinned memory") =>
        {
            vec![
                advice(
                    "nothing has to be done for this line: llama.cpp takes ordinary memory in its place, which copies slower",
                ),
                look_at_the_host(),
                step(
                    "-c 4096",
                    "a shorter context has a smaller cache, if that was to be pinned",
                ),
                advice(
                    "if the program ended then: its weights need that much of the host's RAM; a smaller model or quantisation, or more of its layers on a GPU",
                ),
            ]
        }
        Program::LlamaCpp if message.during == Some(Phase::Loading) => vec![
            advice("a smaller model, or a smaller quantisation of it: its weights did not fit"),
            advice(
                "leave --no-mmap out (mmap = false): weights are then read from the file as they are needed",
            ),
            step("-c 4096", "a shorter context has a smaller cache"),
            look_at_the_host(),
        ],
        Program::LlamaCpp => vec![
            step("-c 4096", "a shorter context has a smaller cache"),
            step(
                "-ub 512",
                "a smaller physical batch has smaller compute buffers",
            ),
            advice("a smaller quantisation of the model, where its weights could not be loaded"),
            look_at_the_host(),
        ],
        Program::OnnxRuntime => vec![
            look_at_the_host(),
            advice("smaller inputs (an image's size), and fewer at once"),
            step(
                "session_options.enable_cpu_mem_arena = False",
                "give memory back after each run instead of keeping the most that was ever needed",
            ),
            advice("a 64-bit Python, if it is a 32-bit one, which can use 2 to 4 GiB"),
        ],
        Program::TensorRt => vec![
            look_at_the_host(),
            advice("more swap, or build the engine on a larger machine with the same GPU"),
        ],
        Program::Pytorch if message.kind == MessageKind::Killed => vec![
            look_at_the_kernel(),
            advice("fewer DataLoader workers, a smaller prefetch_factor"),
            look_at_the_host(),
        ],
        _ => vec![
            look_at_the_host(),
            advice(
                "smaller inputs, what that line makes in parts, fewer workers, smaller buffers on the host, or more RAM",
            ),
        ],
    }
}

/// Memory of the host that was to be pinned: each user of it has a setting of its own.
fn pinned(message: &OomMessage) -> Vec<NextStep> {
    let shows = |sign| message.tables.shows(sign);
    let mut steps = Vec::new();
    if message.inside == Some(Program::Vllm) {
        steps.push(step(
            "--swap-space 0",
            "no cache of keys and values in pinned host memory (the default was 4 GiB; LLM(swap_space=0))",
        ));
    } else if shows(Sign::DeepSpeed) {
        steps.push(step(
            "\"pin_memory\": false",
            "beside \"device\" in offload_optimizer and offload_param: the same memory, not pinned, which copies slower",
        ));
    } else if message.during == Some(Phase::Pinning) {
        steps.push(advice(
            "do not pin at that line (pin_memory=False, no .pin_memory()), or keep what it moves on the GPU (no offload to the CPU)",
        ));
    } else {
        steps.push(advice(
            "less pinned memory: smaller host buffers, fewer workers with pin_memory",
        ));
    }
    if shows(Sign::Wsl) {
        steps.push(advice(
            "Windows' subsystem for Linux lets a process pin only a part of the RAM, whatever is free: less of it, or Linux itself",
        ));
    }
    steps.push(step(
        "ulimit -l; sysctl vm.max_map_count",
        "what a process may lock, and its mappings: many small pinned pieces reach the second (1048576 is enough)",
    ));
    steps.push(look_at_the_host());
    steps
}

fn ray(message: &OomMessage) -> Vec<NextStep> {
    let mut steps = vec![
        advice(match super::other::largest_part(message) {
            Some(name) => format!(
                "look at {name} first: what it keeps, and whether that grows (buffers, results, caches)"
            ),
            None => {
                "look at what each worker keeps, and whether it grows (buffers, results, caches)"
                    .to_owned()
            }
        }),
        step(
            "@ray.remote(memory=8 * 1024**3)",
            "say what a task needs, so that fewer run at once",
        ),
        advice(
            "fewer workers on the node, or less that each keeps (buffers, offloaded weights and optimizers)",
        ),
        step(
            "RAY_memory_usage_threshold=0.98",
            "let tasks use more of the node before Ray ends them (the default is 0.95)",
        ),
        look_at_the_host(),
    ];
    if super::other::reached_a_threshold(message) {
        steps.swap(0, 3);
    }
    steps
}

/// The shape of the array that could not be made.
fn shape(message: &OomMessage) -> Option<&str> {
    let (_, rest) = message.text.split_once("with shape (")?;
    Some(rest.split_once(')')?.0.trim_end_matches(','))
}

/// A name of the text, if it is a plain word of a shell command.
fn shell_word(name: Option<&str>) -> Option<&str> {
    name.filter(|name| {
        !name.starts_with('-')
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    })
}

/// A process was ended, and nothing says by whom.
fn ended(message: &OomMessage) -> Vec<NextStep> {
    // A scheduler's own words say that its limit was reached.
    let request = [
        ("PBS", "#PBS -l mem="),
        ("LSF", "#BSUB -M "),
        ("MEMLIMIT", "#BSUB -M "),
    ];
    if let Some((_, option)) = request.iter().find(|(name, _)| message.text.contains(name)) {
        let most = message.in_use.max(message.total);
        return vec![
            step(
                format!(
                    "{option}{}",
                    most.map_or_else(|| "SIZE".to_owned(), |_| more_than(most) + "B")
                ),
                "ask for more: the job's limit was reached, not the machine's",
            ),
            advice(needs_less(message)),
        ];
    }
    vec![
        look_at_the_kernel(),
        look_at_the_host(),
        advice(needs_less(message)),
    ]
}

/// How a job needs less of the host's memory: what Python's jobs have, if it may be one.
fn needs_less(message: &OomMessage) -> &'static str {
    let of_llama = |name: &str| name.contains("llama");
    if message.tables.shows(Sign::Ollama) || message.process.as_deref().is_some_and(of_llama) {
        return "a smaller quantisation of the model, or a smaller model; a shorter context; more RAM or swap";
    }
    let named = |text: &str| {
        ["py", "pt_", "torch"]
            .iter()
            .any(|word| text.contains(word))
    };
    let python = !message.traceback.is_empty()
        || message.tables.shows(Sign::LoaderWorker)
        || matches!(
            message.program,
            Program::Torchrun | Program::DeepSpeed | Program::Pytorch
        )
        || message
            .inside
            .is_some_and(|inside| inside != Program::Docker)
        || message.process.as_deref().is_some_and(named)
        || named(&message.text);
    if python {
        "fewer DataLoader workers; load weights with mmap, once and not in each rank"
    } else {
        "fewer such processes at once, smaller inputs, or more memory"
    }
}

fn slurm(message: &OomMessage) -> Vec<NextStep> {
    // What was measured last may be below the limit that was reached.
    let most = message.in_use.max(message.total);
    let by_core = message
        .settings
        .iter()
        .any(|setting| setting.name == "mem_per_cpu");
    let mut steps = vec![step(
        format!("#SBATCH --mem={}", more_than(most)),
        if by_core {
            "ask for more of the node's memory (0: all of it), in place of --mem-per-cpu, which counts for each core"
        } else {
            "ask for more of the node's memory (0: all of it)"
        },
    )];
    let job: String = message
        .job
        .as_deref()
        .unwrap_or("JOB")
        .chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect();
    let job = if job.is_empty() { "JOB" } else { &job };
    steps.push(step(
        format!("sacct -j {job} --format=JobID,MaxRSS,ReqMem,NodeList"),
        "what each step used and had asked for",
    ));
    steps.push(advice(needs_less(message)));
    steps
}

/// A worker of the `DataLoader` was ended: all of them hold as much.
fn fewer_workers(message: &OomMessage) -> NextStep {
    let each = message.in_use.map_or_else(String::new, |held| {
        format!(" (this one held {held}, and each of the others holds about as much)")
    });
    step(
        "num_workers=2",
        format!("in the DataLoader, or half as many as now{each}; then a smaller prefetch_factor"),
    )
}

/// The unit of systemd that a group of processes is, if it is no container's.
fn unit_of(group: &str) -> Option<&str> {
    let unit = group.rsplit('/').next()?;
    let own = [".service", ".slice"].iter().any(|end| unit.ends_with(end));
    (own && shell_word(Some(unit)).is_some() && !group.contains("docker")).then_some(unit)
}

fn kernel(message: &OomMessage) -> Vec<NextStep> {
    let Some(group) = message.allocator.as_deref() else {
        let loads = message.tables.shows(Sign::LoaderWorker)
            || message
                .process
                .as_deref()
                .is_some_and(|name| name.starts_with("pt_data"));
        let table = step(
            "dmesg -T | grep -A400 'invoked oom-killer'",
            "what all processes held at that moment",
        );
        let less = advice(match message.process.as_deref() {
            _ if super::other::holds_little(message) => {
                "less of what holds the most in that table (a build: fewer jobs at once), or more RAM or swap"
            }
            Some("java") => "a smaller heap (java -Xmx…) or fewer such processes; more RAM or swap",
            _ => needs_less(message),
        });
        if super::other::holds_little(message) {
            return vec![table, less, look_at_the_host()];
        }
        let first = if loads { fewer_workers(message) } else { less };
        return vec![first, table, look_at_the_host()];
    };
    if group.contains("kubepods") || group.ends_with("of a pod") {
        return vec![
            step(
                limit_above(message.total),
                "the limit of its container was reached, not that of the node: raise it",
            ),
            step(
                "kubectl describe pod POD",
                "its limit, and which container was ended",
            ),
        ];
    }
    if let Some(unit) = unit_of(group) {
        // A unit of a user's own manager.
        let unit = if group.contains("/user@") {
            format!("--user {unit}")
        } else {
            unit.to_owned()
        };
        return vec![
            step(
                format!("systemctl show {unit} -p MemoryMax -p MemoryHigh -p MemoryPeak"),
                "the unit's limit was reached, not that of the host: the limit, and the most that it held",
            ),
            step(
                format!(
                    "systemctl set-property {unit} MemoryMax={}",
                    more_than(message.total)
                ),
                "a higher limit",
            ),
            advice(needs_less(message)),
        ];
    }
    if group.contains("slurm") {
        return slurm(message);
    }
    if group.contains("docker") {
        return vec![
            step(
                format!("docker run --memory={} …", more_than(message.total)),
                "a higher limit: that of the container was reached, not that of the host",
            ),
            step(
                "cat /sys/fs/cgroup/memory.max",
                "the limit, as a process in the container reads it",
            ),
            advice(needs_less(message)),
        ];
    }
    if message.tables.shows(Sign::Hosted) {
        let less = if message.tables.shows(Sign::LoaderWorker) {
            "num_workers=0 or 1 in the DataLoader: each worker has its own copy of what it reads"
        } else {
            needs_less(message)
        };
        return vec![advice(less), advice(NOTEBOOK)];
    }
    vec![
        step(
            "cat /sys/fs/cgroup/memory.max",
            "the limit of its group was reached, not that of the host: read it inside the container",
        ),
        step(
            format!("docker run --memory={} …", more_than(message.total)),
            "a higher limit (SLURM: --mem, systemd: MemoryMax=)",
        ),
    ]
}
