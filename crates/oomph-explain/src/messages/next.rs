//! What to do next about a message: a command of oomph where one helps, otherwise the program's own setting.
//!
//! One function for each program, in one table; the parts are by what a program is. A message about the host's memory never gets a step that acts on
//! the GPU's, and the other way round; `tests/messages.rs` checks it.

mod frameworks;
mod host;
mod llama;
mod named;
mod pytorch;
mod servers;

use oomph_trace::Bytes;
use oomph_trace::text::{
    Framework, Hardware, Memory, MessageKind, OomMessage, Phase, Program, Sign, canonical,
};
use serde::Serialize;

use self::host::on_the_host;
use self::llama::llama;
use self::named::{fraction_of_the_gpu, triton_server, uses};
use self::pytorch::{cuda_in_pytorch, load_on_the_cpu, pytorch};
use self::servers::{inside_sglang, inside_tgi, inside_vllm, sglang, vllm};
use super::ways::{Change, Way, ways};

pub(super) use self::pytorch::{
    is_perhaps_pytorch, meets, of_a_phase, own_gpu_for_each_rank, script, who_holds_most,
};

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
    pub(super) fn changing(mut self, change: Change) -> Self {
        self.ways = ways("", &[(change, "")]).ways;
        self
    }
}

pub(crate) fn step(command: impl Into<String>, what: impl Into<String>) -> NextStep {
    NextStep {
        what: what.into(),
        command: Some(command.into()),
        ways: Vec::new(),
        computed: false,
    }
}

pub(crate) fn advice(what: impl Into<String>) -> NextStep {
    NextStep {
        what: what.into(),
        command: None,
        ways: Vec::new(),
        computed: false,
    }
}

/// More steps than these are no advice.
const MOST: usize = 3;

/// The steps for a message, the one that helps most first, beyond what its text has set already.
pub(crate) fn steps(message: &OomMessage) -> Vec<NextStep> {
    let mut all = of_message(message);
    // What fitted for some epochs fits: whether use grows comes first.
    if message.tables.shows(Sign::RanEpochs) && all.len() > 1 && all[0].has(Change::Batch) {
        all.swap(0, 1);
    }
    let borne_out = |steps: Vec<NextStep>| -> Vec<NextStep> {
        let steps = steps.into_iter();
        steps
            .filter_map(|step| super::ways::borne_out(message, step))
            .collect()
    };
    let mut steps = borne_out(super::ways::kept(message, all));
    let look = steps.iter().find(|step| is_look(step)).cloned();
    steps = without_filler(steps);
    if let Some(tale) = super::told::of(message) {
        steps = [borne_out(tale.steps), steps].concat();
    }
    steps.splice(0..0, super::evidence::holder(message));
    if let Some(step) = super::evidence::free_card(message) {
        steps.insert(0, step);
    }
    if let Some(hint) = own_advice(message, &steps) {
        // A look helps after what is known to help.
        let at = usize::from(steps.first().is_some_and(|step| !is_look(step)));
        steps.insert(at, hint);
    }
    steps.retain(|step| !is_of_another(step, message.hardware));
    let mut steps = super::settings::beyond(steps, &super::settings::shown(message));
    if super::settings::are_keywords(message) {
        for step in &mut steps {
            step.command = step.command.as_deref().map(super::settings::as_keywords);
        }
    }
    // Who holds the GPU is what such a text leaves open.
    let own = |used: Bytes| used >= Bytes::gib(4);
    let too_large =
        super::figures::plan(message).is_some() || super::figures::never_fits(message).is_some();
    let open = super::other::unsaid(message).contains(&super::other::OTHERS_HELD)
        && !too_large
        && !message.used().is_some_and(own);
    steps.truncate(MOST);
    if let Some(look) = look.filter(|_| open && !steps.iter().any(is_look)) {
        steps.truncate(MOST - 1);
        steps.push(look);
    }
    // What filled it before is the question.
    if super::other::is_small(message)
        && let Some(at) = steps.iter().position(is_look)
    {
        steps[..=at].rotate_right(1);
    }
    if steps.is_empty() {
        steps = looks(message);
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

/// What the text itself advises near its message, unless it is a step already, or set, or known to mislead.
fn own_advice(message: &OomMessage, steps: &[NextStep]) -> Option<NextStep> {
    /// Lines between a message and its advice.
    const NEAR: usize = 6;
    // Whether pieces or the pool's kind decide is weighed elsewhere, and a larger workspace does not make room.
    const ELSEWHERE: [&str; 4] = ["alloc_conf", "split_size", "tf_gpu_allocator", "workspace"];
    let name = |setting: &str| {
        let name = setting.split('=').next().unwrap_or_default();
        canonical(name).to_ascii_lowercase()
    };
    let has = |name: &str| {
        steps.iter().any(|step| {
            let words = format!(
                "{} {}",
                step.command.as_deref().unwrap_or_default(),
                step.what
            );
            words.replace('-', "_").to_ascii_lowercase().contains(name)
        })
    };
    let hint = message.tables.hints.iter().find(|hint| {
        hint.line.abs_diff(message.line) <= NEAR
            && hint.settings.iter().all(|advised| {
                let name = name(advised);
                let (_, value) = advised.split_once('=').unwrap_or_default();
                let is_set = message.settings.iter().any(|setting| {
                    setting.name.to_ascii_lowercase() == name
                        && (value.is_empty() || setting.value.as_deref() == Some(value))
                });
                !is_set
                    && !ELSEWHERE.iter().any(|words| name.contains(words))
                    && !super::told::was_in_vain(message, advised)
                    && !has(&name)
            })
    })?;
    let ran_out = !message.handled && !matches!(message.kind, MessageKind::Fault(_));
    let setting = hint.settings.first().filter(|_| ran_out)?;
    Some(step(
        setting.clone(),
        format!("as line {} itself advises: \"{}\"", hint.line, hint.text),
    ))
}

/// The steps without a look at what holds the memory behind two that need less of it: who looks there does so before.
fn without_filler(mut steps: Vec<NextStep>) -> Vec<NextStep> {
    const FIRST: usize = 2;
    let mut place = 0;
    steps.retain(|step| {
        place += 1;
        place <= FIRST || !is_look(step)
    });
    steps
}

/// Whether a step only looks at what holds the memory.
fn is_look(step: &NextStep) -> bool {
    [OTHERS, FREE].contains(&step.what.as_str())
}

/// Whether a step is a tool or a setting of NVIDIA's, which other hardware does not have; ROCm has some of the latter under other names.
fn is_of_another(step: &NextStep, hardware: Hardware) -> bool {
    const NVIDIA: [&str; 5] = [
        "oomph run",
        "oomph fit",
        "nvidia-smi",
        "TF_FORCE_UNIFIED_MEMORY",
        "CUDA_LAUNCH_BLOCKING",
    ];
    const CUDA: [&str; 5] = [
        "PYTORCH_CUDA_ALLOC_CONF",
        "CUDA_VISIBLE_DEVICES",
        "cuda_malloc_async",
        "torch.cuda.",
        "GGML_CUDA",
    ];
    let command = step.command.as_deref().unwrap_or_default();
    let has = |words: &[&str]| words.iter().any(|word| command.contains(word));
    match hardware {
        Hardware::Gpu | Hardware::Jetson => false,
        Hardware::Amd => has(&NVIDIA),
        // A TPU has no share that a process takes either.
        Hardware::Tpu => has(&NVIDIA) || has(&CUDA) || has(&["XLA_PYTHON_CLIENT_"]),
        _ => has(&NVIDIA) || has(&CUDA),
    }
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
    let plain = ![Some("cache flushes"), Some("large alloc")].contains(&message.setting);
    if message.handled && plain && message.kind != MessageKind::Budget {
        return goes_on(message);
    }
    if message.setting == Some("guess") {
        let log = advice(
            "read the server's log for the runner's last words: they say what ended it, and which memory it was if it was that",
        );
        return [vec![log], looks(message)].concat();
    }
    if let Some(bound) = super::evidence::bound(message) {
        return super::evidence::steps(bound);
    }
    if message.memory == Memory::Host {
        return on_the_host(message);
    }
    if super::other::is_nonsense(message) {
        return vec![
            advice("print the shapes and the sizes at the line or the node that asked"),
            advice(if super::other::is_compiled(message) {
                "build the extension that the line calls again, for this GPU, this PyTorch and this CUDA: one that does not fit gives such counts"
            } else {
                "one thread, one process and one request at a time: whether use at the same time damages the size"
            }),
            advice(
                "another version of the library, or versions that fit together, if the shapes are right",
            ),
        ];
    }
    if super::sharing::of(message).is_none()
        && let Some(weights) = super::weights::too_large(message)
    {
        return super::weights::steps(message, &weights);
    }
    if message.during.is_some_and(Phase::is_of_weights)
        && message.memory == Memory::Device
        && matches!(message.program, Program::Jax | Program::Tensorflow)
        && message.inside.is_none()
    {
        let model = advice("a smaller model, or its weights in fewer bits; a GPU with more memory");
        let mut steps = vec![others_on_the_gpu(message), model];
        if crate::pool::full(message).is_some() {
            steps.swap(0, 1);
        } else if message.requested.or(message.used()).is_none() {
            steps.insert(1, advice(ABOVE));
        }
        return steps;
    }
    let mut steps = of_program(message);
    if super::other::is_alone(message) {
        let shape = "where that size comes from, at the line that asked: hardly anything else was in use, so the shape is wrong (a bug, a build or a file \
                     that is damaged) or far too large; the same on the CPU, or with another version of the library, tells which";
        if message.program != Program::Pytorch {
            steps.clear();
        }
        steps.insert(0, advice(shape));
    }
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

/// After a shortage that the program got over.
fn goes_on(message: &OomMessage) -> Vec<NextStep> {
    if message.tables.shows(Sign::LeavesOut) {
        let lost = advice(
            "each time, what the batch would have taught is lost: see how often that happens; fewer samples or tokens at once (fairseq: a smaller \
             --max-tokens, with --update-freq raised in turn), or the longest samples left out",
        );
        return vec![lost];
    }
    let tactics = message.program == Program::TensorRt;
    let built = tactics && message.tables.shows(Sign::Built);
    let mut steps = vec![advice(if built {
        "nothing has to be done: the engine was built without it"
    } else if tactics || message.program == Program::Triton {
        "nothing has to be done if the run goes on: what is left out is one way of several to compute the same; if it ended, a later line says why"
    } else {
        "nothing has to be done for this line if the program went on and its results are right; if it ended, a later line says why"
    })];
    let julia = |program: Program| matches!(program, Program::Named(named) if named.id == "julia");
    if message.inside.is_some_and(julia) {
        steps.push(step(
            "CUDA.unsafe_free!(x)",
            "if such warnings cost time: what a step no longer needs, freed by hand (or GC.gc(false) every few steps); Julia's collector does not \
             see how full the GPU is",
        ));
    }
    if tactics && !built {
        steps.push(advice("if the build failed: a smaller workspace (the limit of the builder's memory pool), which fits into what is free"));
    }
    steps
}

/// What looks at the memory that a message is about, where nothing else is known.
fn looks(message: &OomMessage) -> Vec<NextStep> {
    match message.memory {
        Memory::Host => vec![look_at_the_host()],
        Memory::Device => vec![others_on_the_gpu(message)],
        _ => vec![others_on_the_gpu(message), look_at_the_host()],
    }
}

/// Where the allocator of XLA and TensorFlow says more.
const ABOVE: &str = "the allocator's own lines above it (\"ran out of memory trying to allocate …\"): the request that failed, the figures, and \
                     whether the program went on";

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
        Program::Jax if message.setting == Some("an account") => {
            vec![advice(ABOVE), others_on_the_gpu(message)]
        }
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
                && super::other::has_tokens(message) =>
        {
            vec![
                step(
                    "--page-size 1",
                    "no whole page for each request: the tokens that are available can then be given out",
                ),
                advice("a newer SGLang, if its count of what is available is wrong"),
                step(
                    "--max-running-requests 32",
                    "fewer requests at once, each of which may need a page",
                ),
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
                "a larger share has a larger cache",
            ),
        ],
        Program::Sglang => sglang(message),
        Program::TextGenerationInference => inside_tgi(message),
        Program::LlamaCpp | Program::Ollama => llama(message),
        Program::Cupy => cupy(message),
        Program::Rmm => rmm(message),
        Program::Named(named) => uses(named, message),
        Program::Triton => triton(message),
        Program::Nccl if message.inside == Some(Program::Jax) => vec![
            step(
                "XLA_PYTHON_CLIENT_MEM_FRACTION=0.6",
                "a smaller share for JAX leaves NCCL what it needs beside it",
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
            ways(
                "leave about 1 GiB of the GPU free for each communicator: {}",
                &[
                    (Change::Batch, "a smaller batch"),
                    (Change::Other, "a smaller share for the framework"),
                ],
            ),
            step(
                "NCCL_BUFFSIZE=2097152 NCCL_MAX_NCHANNELS=8",
                "smaller buffers (the default is 4 MiB each), and fewer channels, each of which has its own",
            ),
        ],
        Program::Cuda if message.memory == Memory::OnChip => vec![advice(
            "smaller tiles, or fewer of them at once: __shared__ arrays above 48 KiB have to be dynamic",
        )],
        Program::Cublas | Program::Cudnn | Program::Cuda => library(message),
        Program::Paddle => vec![
            others_on_the_gpu(message),
            ways("", &SMALLER),
            step(
                "FLAGS_allocator_strategy=auto_growth",
                "memory as it is needed, not a share at the start (0.92 of the GPU): where several processes are on it",
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
        _ => looks(message),
    }
}

/// A kernel of Triton's that wants more of the chip than it has.
fn triton(message: &OomMessage) -> Vec<NextStep> {
    if message.text.contains("flex_attention") {
        return vec![step(
            "flex_attention(…, kernel_options={\"BLOCK_M\": 32, \"BLOCK_N\": 32, \"num_stages\": 1})",
            "smaller blocks and fewer stages; also 16 bits in place of 32, or a smaller head",
        )];
    }
    let smaller = "smaller blocks or fewer stages (num_stages) for that kernel, as the message says: each keeps a part of the data on the chip; of a \
                   kernel of a library, a version that has them for this GPU";
    vec![advice(smaller)]
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
                // That allocator is the GPU's.
                && message.setting != Some("an account")
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
        (Program::TensorRt, _) if message.setting == Some("TensorRT-LLM") => "TensorRT-LLM",
        (program, _) => program.name(),
    }
}

/// What a look at the GPU, and at the host, is for.
const OTHERS: &str = "which processes hold the GPU";
const FREE: &str = "how much of the host's memory is free, and how much there is";

pub(super) fn others_on_the_gpu(message: &OomMessage) -> NextStep {
    let command = match message.hardware {
        Hardware::Gpu if message.tables.shows(Sign::CudaOnMac) => {
            return advice(
                "close what else uses the GPU (the browser, the desktop), or restart; macOS has no nvidia-smi, but CUDA's sample \
                 deviceQuery and cudaMemGetInfo show what is free",
            );
        }
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
    step(command, OTHERS).changing(Change::Processes)
}

fn jax(message: &OomMessage) -> Vec<NextStep> {
    if let Some(Program::Named(named)) = message.inside {
        return uses(named, message);
    }
    let recompute = step(
        "jax.checkpoint",
        "recompute activations in the backward pass instead of keeping them",
    )
    .changing(Change::Recomputing);
    let profile = step(
        "jax.profiler.save_device_memory_profile(\"memory.prof\")",
        "what holds the memory, by line: oomph explain memory.prof",
    );
    let alive = step(
        "jax.live_arrays()",
        "just before that line: which arrays are alive, and their sizes",
    );
    let less = ways(
        "less at once: {}",
        &[
            (
                Change::Singles,
                "float32 where the text shows float64, which is half of it",
            ),
            (Change::Batch, "a smaller batch"),
            (
                Change::Inputs,
                "smaller inputs, or the work in parts (jax.lax.map with batch_size)",
            ),
        ],
    );
    let taken = step(
        "XLA_PYTHON_CLIENT_PREALLOCATE=false",
        "take memory as needed instead of a share at the start",
    );
    if message.setting == Some("what is free") {
        return vec![others_on_the_gpu(message), taken, less];
    }
    if super::figures::plan(message).is_some_and(|plan| plan.is_of_the_state()) {
        let shard = "shard what is kept over the devices (weights, the optimizer's state: FSDP, jax.sharding.NamedSharding) in place of a whole copy \
                     on each";
        return vec![
            advice(shard),
            advice("GPUs with more memory, or more of them"),
            profile,
        ];
    }
    if message.hardware == Hardware::Tpu {
        return vec![recompute, alive, less, profile];
    }
    if super::other::is_small(message) {
        return vec![others_on_the_gpu(message), alive, profile];
    }
    let never = super::figures::never_fits(message).is_some();
    if never
        || message
            .requested
            .is_some_and(super::other::is_larger_than_gpus)
    {
        let unified = step(
            format!(
                "TF_FORCE_UNIFIED_MEMORY=1 XLA_PYTHON_CLIENT_MEM_FRACTION={}",
                fraction_of_the_gpu(message)
            ),
            "let the GPU use the host's memory as well, which is slow: so many times its own",
        );
        return vec![less, recompute, advice("a GPU with more memory"), unified];
    }
    let mut steps = vec![less, recompute];
    steps.extend(looks(message));
    steps.push(profile);
    steps
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
    if message.hardware == Hardware::Tpu {
        return vec![
            advice(
                "a smaller batch for each core (of a TPUEstimator train_batch_size is that of all cores together), or more cores",
            ),
            advice(
                "layers computed again in the backward pass (tf.recompute_grad), and bfloat16 (tf.tpu.bfloat16_scope; Keras: \
                 mixed_bfloat16)",
            ),
            advice(
                "shapes that fill a TPU's tiles (8 by 128 on the last two sides): where the list has \"Extra memory due to padding\", most of that \
                 buffer is nothing but padding",
            ),
        ];
    }
    if message.setting == Some("an account") && crate::pool::scattered(message).is_some() {
        return vec![
            step(
                "TF_GPU_ALLOCATOR=cuda_malloc_async",
                "an allocator that loses less to pieces (TensorFlow 2.5 or newer)",
            ),
            advice(
                "no tensor as large as the largest that the account lists or that it asked for (MaxAllocSize): a smaller batch, or a data set that \
                 stays in the host's memory (tf.data, with tf.device(\"CPU:0\")) and not on the GPU as one tensor",
            ),
            advice(ABOVE),
        ];
    }
    if message.setting == Some("an account") && !full {
        return vec![
            advice(ABOVE),
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
                if message.tables.shows(Sign::Trains) {
                    "a smaller model, or an optimizer with less state"
                } else {
                    "a smaller model"
                },
            ),
        ],
    );
    let others = others_on_the_gpu(message);
    if super::figures::room_to_grow(message).is_some() {
        let share = step(
            "per_process_gpu_memory_fraction",
            "only then a larger share for TensorFlow, if one is set (set_logical_device_configuration in TensorFlow 2)",
        );
        return vec![others, smaller, share];
    }
    let first = advice("end what holds the GPU: an earlier run, a notebook, a server");
    // A handle needs little, whatever the batch.
    if matches!(message.kind, MessageKind::Cudnn | MessageKind::Cublas) {
        let versions = advice(
            "whether the driver, CUDA and the library are the versions that this TensorFlow was built for",
        );
        let mut steps = vec![growth, others, versions];
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
        let mut steps = vec![smaller, pieces, others];
        if message.requested.is_none() && message.used().is_none() {
            steps.rotate_right(1);
        }
        steps
    } else {
        vec![growth, others, smaller, pieces]
    }
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
                "arena_extend_strategy = kSameAsRequested",
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
    let mut steps = Vec::new();
    if message.memory == Memory::Device
        || message.tables.shows(Sign::OnCuda)
        || !message.tables.gpus.is_empty()
    {
        steps.push(step(
            "arena_extend_strategy = kSameAsRequested",
            "an option of the provider for CUDA: an arena that grows by what is asked for, not by powers of two",
        ));
    }
    if !steps.is_empty() && convolves {
        steps.push(step(
            "cudnn_conv_use_max_workspace = 0",
            "another one: convolutions that need less workspace",
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
    if steps.len() == 1 {
        steps.extend(looks(message));
    }
    steps
}

fn tensorrt(message: &OomMessage) -> Vec<NextStep> {
    if message.setting == Some("TensorRT-LLM") {
        let fewer = advice(
            "an engine for fewer tokens at once (--max_batch_size, --max_num_tokens), with weights in fewer bits, or split over more GPUs",
        );
        let cache = step(
            "kv_cache_config.free_gpu_memory_fraction=0.7",
            "a smaller cache of keys and values",
        );
        let first = message.tables.shows(Sign::Builds) || message.during == Some(Phase::Engine);
        let mut steps = vec![fewer, others_on_the_gpu(message)];
        if !first {
            steps.insert(0, cache);
        }
        return steps;
    }
    let smaller = advice(
        "an engine for smaller inputs or batches (the maxima of its profile: --maxShapes), or a smaller model",
    );
    let others = others_on_the_gpu(message);
    if message.setting == Some("skipped beside an error") {
        return goes_on(message);
    }
    if message.tables.shows(Sign::MakesContext) {
        // What a context needs is fixed when the engine is built.
        let built = "build the engine again for smaller shapes: the maxima of its profile (--maxShapes) set what its context needs, whatever is run";
        return vec![advice(built), others];
    }
    // A node's own tensors are no workspace.
    if message.tables.shows(Sign::NoImplementation) {
        return vec![smaller, others];
    }
    let workspace = if message.tables.backs("trtexec", &[]) {
        step(
            "--memPoolSize=workspace:1024",
            "a workspace that fits into what is free",
        )
    } else if message.tables.shows(Sign::Python) {
        step(
            "config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, 1 << 30)",
            "a workspace that fits into what is free",
        )
    } else {
        advice(
            "a smaller workspace (the limit of the builder's memory pool), which fits into what is free",
        )
    };
    vec![workspace, smaller, others]
}

/// Whether others hold a good part of the device that the message is about.
pub(crate) fn held_by_others(message: &OomMessage) -> bool {
    message
        .free
        .zip(message.total)
        .is_some_and(|(free, total)| (total - free).0 as f64 > super::FOREIGN * total.0 as f64)
}

/// Of CuPy's pool, which gives its free blocks back by itself before it says that there is no memory.
fn cupy(message: &OomMessage) -> Vec<NextStep> {
    let limit = message.total.map(|_| {
        step(
            "cupy.get_default_memory_pool().set_limit(fraction=0.9)",
            "raise the limit that was set on the pool (also CUPY_GPU_MEMORY_LIMIT)",
        )
    });
    let smaller = if message.tables.framework == Some(Framework::Chainer) {
        ways(
            "",
            &[
                (Change::Batch, "half of the minibatch"),
                (Change::Inputs, "smaller inputs (a crop, a sequence)"),
            ],
        )
    } else {
        ways(
            "",
            &[
                (
                    Change::Singles,
                    "float32 where the text shows float64: half of it",
                ),
                (
                    Change::Inputs,
                    "less at once: smaller arrays or batches, or the work in chunks",
                ),
            ],
        )
    };
    let grows = step(
        "cupy.get_default_memory_pool().used_bytes()",
        "printed after each step, with total_bytes(): whether use grows",
    );
    let mut steps = Vec::from_iter(limit);
    if message.program == Program::Cupy {
        steps.extend([smaller, grows]);
    } else {
        steps.extend([
            step(
                "cupy.get_default_memory_pool().free_all_blocks()",
                "before that call: the library asks beside CuPy's pool, which keeps what was deleted and gives it back by itself for its own \
                 requests alone (newer versions of CuPy do so for cuFFT)",
            ),
            smaller,
        ]);
    }
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
    let mut steps = vec![
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
    ];
    // Without figures, whether the GPU was free at all comes first: another kernel of a notebook is the usual holder.
    if message.requested.is_none() {
        steps.rotate_right(1);
        steps.swap(1, 2);
    }
    steps
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
    if super::other::is_first_use(message) {
        let mut steps = vec![
            others_on_the_gpu(message),
            advice(
                "another program on the GPU (a sample of CUDA's): if that fails as well, the driver and the toolkit, or the build, do not fit \
                 the card",
            ),
        ];
        if !message.tables.shows(Sign::CudaOnMac) {
            let end = "end what holds the GPU: an earlier run, a notebook, a server; then the same line again";
            steps.insert(1, advice(end));
        }
        return steps;
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
        let mapped = "leave --no-mmap out: the weights are then read from the file as they are needed, and not pinned";
        return vec![advice(mapped), look_at_the_host()];
    }
    if message.during == Some(Phase::Pinning) {
        let pinned = "pin_memory=False";
        let what = "in the DataLoader, with fewer workers; of DeepSpeed: \"pin_memory\": false beside an offload's \"device\"";
        return vec![
            others_on_the_gpu(message),
            look_at_the_host(),
            step(pinned, what),
        ];
    }
    let mut steps = match message.inside {
        // It asked beside XLA's own allocator, which takes most of the GPU at the start.
        Some(Program::Jax) if message.program == Program::Cuda => vec![
            step(
                "XLA_PYTHON_CLIENT_MEM_FRACTION=0.6",
                "a smaller share for JAX leaves the driver and libraries what they need",
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
            step(
                "compute_type=\"int8_float16\"",
                "weights in 8 bits (\"int8\" where the GPU is old), or a smaller model",
            ),
            step(
                "beam_size=1, best_of=1, temperature=0",
                "one candidate at a time: a beam, and samples at a higher temperature after a failed segment, multiply what decoding \
                     holds",
            ),
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
                && !super::evidence::is_full(message)
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
        _ => {
            let mut steps = vec![others_on_the_gpu(message)];
            if message.tables.shows(Sign::Python) {
                steps.push(ways("less on the GPU: {}", &SMALLER));
            } else if message.kind == MessageKind::Cuda {
                steps.push(advice(
                    "print the size of that request before the call, and what is free then (cudaMemGetInfo): if it is more, a smaller problem on \
                     each GPU",
                ));
            }
            steps
        }
    };
    let python = message.inside.is_none() && is_perhaps_pytorch(message);
    let later = message.tables.shows(Sign::Asynchronous) || message.kind != MessageKind::Cuda;
    if python && later && message.memory == Memory::Device && message.requested.is_none() {
        let blocking = step(
            if message.hardware == Hardware::Amd {
                "AMD_SERIALIZE_KERNEL=3"
            } else {
                "CUDA_LAUNCH_BLOCKING=1"
            },
            "where it really fails: such errors may show up at a later call",
        );
        steps.insert(steps.len().min(2), blocking);
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

fn look_at_the_host() -> NextStep {
    step("free -h", FREE)
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
