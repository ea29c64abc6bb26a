//! What to do next about the host's memory: limits of containers and jobs, the kernel's OOM killer, programs.

use oomph_trace::Bytes;
use oomph_trace::text::{MessageKind, OomMessage, Phase, Program, Sign, Uses};

use super::named::{NOTEBOOK, uses};
use super::{NextStep, advice, look_at_the_host, shell_word, step};
use crate::messages;

fn look_at_the_kernel() -> NextStep {
    step(
        "dmesg -T | grep -iE 'killed process|out of memory'",
        "whether the kernel's OOM killer ended it, and what it held",
    )
}

/// A size to ask for: a quarter more than the limit or the use that was known, in whole GiB.
pub(super) fn more_than(known: Option<Bytes>) -> String {
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
        return watched(
            message,
            step(
                "systemd-run --user --scope -p ManagedOOMPreference=avoid PROGRAM",
                "a job that systemd-oomd ends last; `oomctl` shows what it watches",
            ),
        );
    }
    vec![
        if message.tables.shows(Sign::Ollama) {
            let stated = |name| messages::figures::stated(message, name);
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

/// What watches the host's memory ended a process before the kernel had to: how it spares that comes after what needs less.
fn watched(message: &OomMessage, spare: NextStep) -> Vec<NextStep> {
    let less = advice(format!("{}; or more RAM or swap", needs_less(message)));
    if message.around.free.is_some() {
        vec![less, spare]
    } else {
        vec![look_at_the_host(), less, spare]
    }
}

/// The steps for a message about the host's memory.
pub(super) fn on_the_host(message: &OomMessage) -> Vec<NextStep> {
    if message.setting == Some("no reason") {
        return vec![
            advice(
                "watch the memory that the notebook shows while it runs again: if it climbs to the end, it was RAM",
            ),
            advice(
                "the session's log (Colab: Runtime, View runtime logs; Jupyter: the terminal it runs in)",
            ),
            advice(NOTEBOOK),
        ];
    }
    // Windows' own words, or its number in any language, whatever program says them.
    if ["paging file", "not enough memory: you tried", "rror 1455"]
        .iter()
        .any(|words| message.text.contains(words))
    {
        return vec![
            advice("a larger page file (Windows: System, Advanced, Virtual memory), or more RAM"),
            advice("close other programs: Task Manager shows what is committed, and the limit"),
            advice("smaller inputs, a smaller model, fewer workers"),
        ];
    }
    match message.allocator.as_deref() {
        Some("/dev/shm") => return shared(message),
        Some("locked memory") => return locked(message),
        _ => {}
    }
    match message.program {
        Program::Named(named) if named.uses == Uses::Watches => watched(
            message,
            advice(format!(
                "{}'s own settings: thresholds that let more be used (then the kernel's OOM killer is near), or names that it spares",
                named.name
            )),
        ),
        Program::Named(named) => uses(named, message),
        Program::Slurm => slurm(message),
        Program::Systemd => systemd(message),
        Program::Kernel => kernel(message),
        Program::Ray => ray(message),
        Program::Docker => docker(message),
        Program::Kubernetes => kubernetes(message),
        Program::Shell | Program::Unknown | Program::Torchrun | Program::DeepSpeed => {
            by_signal(message)
        }
        _ => in_program(message),
    }
}

/// `/dev/shm`, through which workers of a DataLoader hand over their batches.
fn shared(message: &OomMessage) -> Vec<NextStep> {
    let mut steps = vec![
        advice(
            "a larger /dev/shm (of a container: --shm-size=16g, or --ipc=host) (Kubernetes: an emptyDir of medium Memory there)",
        ),
        step("df -h /dev/shm", "how much there is, and who filled it"),
    ];
    if message.program != Program::Nccl {
        steps.push(advice(
            "fewer DataLoader workers (num_workers=0 needs none), a smaller prefetch_factor",
        ));
    }
    steps
}

/// Memory that could not be locked.
fn locked(message: &OomMessage) -> Vec<NextStep> {
    if message.program == Program::LlamaCpp {
        return vec![
            step(
                "ulimit -l unlimited",
                "let the process lock the model's pages (docker: --ulimit memlock=-1)",
            ),
            advice("or leave --mlock out: the model is used all the same, and may be paged out"),
        ];
    }
    vec![
        step(
            "ulimit -l unlimited",
            "let the process lock pages for the network (docker: --ulimit memlock=-1)",
        ),
        step(
            "unset NCCL_BUFFSIZE",
            "if it is set: larger buffers than the default (4 MiB each) have more to register",
        ),
        look_at_the_host(),
    ]
}

/// A container reached its limit, or its host ran short.
fn docker(message: &OomMessage) -> Vec<NextStep> {
    if message.setting == Some("ECS") {
        return vec![
            advice(
                "more memory for the container: \"memory\" in the task's or the job's definition",
            ),
            advice(
                "a job that needs less: fewer workers, smaller buffers, weights loaded with mmap",
            ),
        ];
    }
    vec![
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
    ]
}

/// A pod, in a shell command.
fn pod(message: &OomMessage) -> &str {
    shell_word(message.host.as_deref()).unwrap_or("POD")
}

/// Kubernetes says that memory was why a container or a pod ended.
fn kubernetes(message: &OomMessage) -> Vec<NextStep> {
    if message.setting == Some("eviction") {
        return vec![
            step(
                format!(
                    "resources.requests.memory: {}",
                    kubernetes_size(message.in_use)
                ),
                "ask for what it uses: who uses more than asked for is ended first",
            ),
            step("kubectl top pod -A --sort-by=memory", "what fills the node"),
            advice("also a limit (resources.limits.memory), so that one pod cannot fill the node"),
        ];
    }
    let mut steps = vec![
        step(
            limit_above(message.total),
            "a higher limit for the container",
        ),
        step(
            format!("kubectl describe pod {}", pod(message)),
            "its limit, and what else was ended",
        ),
    ];
    if message.tables.shows(Sign::Java) {
        steps.push(advice(
            "a heap well below the limit (-XX:MaxRAMPercentage=70 in place of -Xmx, or -Xmx of at most three quarters of it): threads, classes, code and \
             buffers of a machine for Java lie beside its heap",
        ));
    }
    steps
}

/// A process ended by signal 9, and who sent it is not said, or a launcher says it.
fn by_signal(message: &OomMessage) -> Vec<NextStep> {
    let unlimited = message.setting == Some("not its limit");
    match (message.program, message.inside) {
        (Program::DeepSpeed, _) if message.tables.shows(Sign::Nvme) => vec![
            look_at_the_kernel(),
            step(
                "\"buffer_size\": 1e8, \"max_in_cpu\": 1e8, \"sub_group_size\": 1e8, \"pin_memory\": false",
                "smaller buffers of the offload, which goes to NVMe already: buffer_count times buffer_size parameters, two bytes each, are \
                 pinned in the host's memory, and those of the optimizer beside them",
            ),
        ],
        (Program::DeepSpeed, _) if message.tables.shows(Sign::Offloads) => vec![
            look_at_the_kernel(),
            step(
                "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"…\"}",
                "offloading to the CPU keeps 12 bytes or more for each parameter in the host's memory",
            ),
            look_at_the_host(),
        ],
        (Program::Shell, Some(Program::Kubernetes)) if unlimited => vec![
            step(
                format!("kubectl describe pod {}", pod(message)),
                "its events (also `kubectl get events`): whether a probe failed, or it was evicted or deleted",
            ),
            step(
                format!("kubectl logs {} --previous", pod(message)),
                "what it said last",
            ),
            step(
                "dmesg -T | grep -iE 'killed process|out of memory'",
                "on its node: whether the kernel ended one of its processes (a child of a shell is not the container's own)",
            ),
        ],
        (Program::Shell, Some(Program::Kubernetes)) => vec![
            step(
                format!("kubectl describe pod {}", pod(message)),
                "whether its last state is OOMKilled, and its limit",
            ),
            step("kubectl get events", "whether it was evicted, or deleted"),
            step(
                limit_above(message.total),
                "if it was memory: a higher limit, or a job that needs less",
            ),
        ],
        (Program::Shell | Program::Unknown, _) if unlimited => vec![
            look_at_the_kernel(),
            step(
                "docker events --since 24h --filter event=die --filter event=kill --filter event=oom",
                "whether somebody stopped it",
            ),
            look_at_the_host(),
        ],
        (Program::Shell | Program::Unknown, Some(Program::Docker)) => vec![
            step(
                "docker inspect -f '{{.State.OOMKilled}} {{.HostConfig.Memory}}' CONTAINER",
                "whether it ended by its limit, and the limit in bytes (0: none); podman takes the same",
            ),
            look_at_the_kernel(),
            look_at_the_host(),
        ],
        (Program::Unknown, _) if message.kind != MessageKind::Killed => less_on_the_host(),
        _ => ended(message),
    }
}

/// A program could not get memory of the host.
fn in_program(message: &OomMessage) -> Vec<NextStep> {
    let allocator = message.allocator.as_deref();
    let mut frames = message.traceback.iter();
    match message.program {
        Program::Python
            if frames
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
        Program::Numpy => numpy(message),
        Program::Cuda | Program::Tensorflow | Program::Jax
            if allocator == Some("pinned memory") =>
        {
            pinned(message)
        }
        Program::Tensorflow if allocator.is_some_and(|name| name.contains("host")) => vec![
            step(
                "TF_GPU_HOST_MEM_LIMIT_IN_MB=131072",
                "raise the limit of pinned host memory (the default is 64 GiB; before 1.14: TF_CUDA_HOST_MEM_LIMIT_IN_MB)",
            ),
            advice(
                "or less on the host at once: fewer copies of the largest tensors (feeds, fetches, what is read ahead)",
            ),
            look_at_the_host(),
        ],
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
        Program::LlamaCpp => llama_on_the_cpu(message),
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
        _ if messages::other::is_small(message) => vec![
            look_at_the_host(),
            step(
                "ulimit -v; cat /sys/fs/cgroup/memory.max",
                "limits of the process and of its container or job (of cgroup v1: memory/memory.limit_in_bytes), run in the same job: the \
                 machine may have more",
            ),
            advice(
                "a larger limit or request for memory, where one is set; otherwise what else holds the machine's memory",
            ),
        ],
        _ => less_on_the_host(),
    }
}

/// What helps where no program says more.
fn less_on_the_host() -> Vec<NextStep> {
    vec![
        look_at_the_host(),
        advice(
            "smaller inputs, what that line makes in parts, fewer workers, smaller buffers on the host, or more RAM",
        ),
    ]
}

/// An array of NumPy's.
fn numpy(message: &OomMessage) -> Vec<NextStep> {
    /// A host that has no room for one ordinary array is full.
    const ORDINARY: Bytes = Bytes::gib(1);
    let file = step("numpy.memmap", "keep large arrays in files");
    if message.requested.is_some_and(|asked| asked <= ORDINARY) {
        let held = "what else holds the host's memory (results, caches and workers' copies that grow from step to step, other programs): one array \
                     of that size is no large one";
        return vec![look_at_the_host(), advice(held), file];
    }
    let smaller = shape(message).map_or_else(
        || "a smaller type, or work in chunks".to_owned(),
        |shape| {
            format!(
                "print what the sides of that array ({shape}) come from: a coordinate, a unit or an index that is wrong makes such a shape; if they \
                 are meant, a smaller type, or work in chunks"
            )
        },
    );
    vec![advice(smaller), file, look_at_the_host()]
}

/// llama.cpp's own memory of the host.
fn llama_on_the_cpu(message: &OomMessage) -> Vec<NextStep> {
    if message.during == Some(Phase::Loading) {
        return vec![
            advice("a smaller model, or a smaller quantisation of it: its weights did not fit"),
            advice(
                "leave --no-mmap out (mmap = false): weights are then read from the file as they are needed",
            ),
            step("-c 4096", "a shorter context has a smaller cache"),
            look_at_the_host(),
        ];
    }
    vec![
        step("-c 4096", "a shorter context has a smaller cache"),
        step(
            "-ub 512",
            "a smaller physical batch has smaller compute buffers",
        ),
        advice("a smaller quantisation of the model, where its weights could not be loaded"),
        look_at_the_host(),
    ]
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
    } else if super::is_perhaps_pytorch(message) {
        steps.push(advice(
            "do not pin at that line (pin_memory=False, no .pin_memory()), or keep what it moves on the GPU (no offload to the CPU)",
        ));
    }
    // Nothing is known of the program but that it pins.
    let plain = steps.is_empty();
    if plain {
        steps.push(look_at_the_host());
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
    steps.push(if plain {
        advice(
            "print the size at that line: one that was computed wrongly (a side of -1) is no shortage; otherwise smaller or fewer host buffers, \
             or fewer processes on the machine",
        )
    } else {
        look_at_the_host()
    });
    steps
}

fn ray(message: &OomMessage) -> Vec<NextStep> {
    let mut frames = message.traceback.iter();
    if frames.any(|frame| frame.file.contains("/vllm/")) {
        return vec![
            step(
                "--swap-space 1",
                "GiB of the host's memory for each GPU (LLM(swap_space=1), in versions that have it; the default was 4): with tensor parallelism \
                 that many times as much",
            ),
            step(
                "--max-parallel-loading-workers 1",
                "one worker after another reads the weights: each holds a copy of its files in the host's memory while it loads",
            ),
            advice(
                "weights as safetensors, which are mapped and not read whole; a smaller model, or more RAM",
            ),
            look_at_the_host(),
        ];
    }
    let mut steps = vec![
        advice(match messages::other::largest_part(message) {
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
            "say what a task needs, so that fewer run at once; or fewer workers on the node, each of which keeps less (buffers, offloaded \
             weights and optimizers)",
        ),
        step(
            "RAY_memory_usage_threshold=0.98",
            "let tasks use more of the node before Ray ends them; little is left above it before the kernel's OOM killer \
             ends something",
        ),
        look_at_the_host(),
    ];
    if messages::other::reached_a_threshold(message) {
        steps.swap(0, 2);
    }
    steps
}

/// The shape of the array that could not be made.
fn shape(message: &OomMessage) -> Option<&str> {
    let (_, rest) = message.text.split_once("with shape (")?;
    Some(rest.split_once(')')?.0.trim_end_matches(','))
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
    if let Some(step) = by_workflow(message) {
        return vec![step, look_at_the_kernel()];
    }
    // A host that was not full may have had a container that was.
    if messages::evidence::free_near(message).is_some() {
        return vec![
            look_at_the_kernel(),
            step(
                "docker inspect -f '{{.State.OOMKilled}} {{.HostConfig.Memory}}' CONTAINER",
                "if it ran in a container: whether that ended at its limit (in it: cat /sys/fs/cgroup/memory.max)",
            ),
        ];
    }
    vec![
        look_at_the_kernel(),
        look_at_the_host(),
        advice(needs_less(message)),
    ]
}

/// What helps where nothing is known of the job.
const FEWER: &str = "fewer such processes at once, or smaller inputs";

/// How a job needs less of the host's memory: what Python's jobs have, if it may be one.
pub(super) fn needs_less(message: &OomMessage) -> &'static str {
    if message.tables.shows(Sign::Ray) {
        return "fewer trials or actors at once, and what Ray keeps bounded: ray.init(num_cpus=4, object_store_memory=8 * 1024**3), a smaller \
                replay buffer; Ray's own errors (an actor that died) are what follows";
    }
    if message.text.contains("text_generation_launcher") {
        return "a smaller model, or one in fewer bits (--quantize), or more memory for the container; where its log says that CUDA is not \
                available, that first (docker run --gpus all): the whole model is read into RAM without a GPU";
    }
    let of_llama = |name: &str| name.contains("llama");
    if message.tables.shows(Sign::Ollama) || message.process.as_deref().is_some_and(of_llama) {
        return "a smaller quantisation of the model, or a smaller model; a shorter context; more RAM or swap";
    }
    let shows = |sign| message.tables.shows(sign);
    let by = |names: &[&str]| {
        (message.process.as_deref())
            .is_some_and(|name| names.iter().any(|part| name.starts_with(part)))
    };
    let launched = matches!(
        message.program,
        Program::Torchrun | Program::DeepSpeed | Program::Pytorch
    );
    if shows(Sign::LoaderWorker) || by(&["pt_"]) {
        "fewer DataLoader workers; load weights with mmap, once and not in each rank"
    } else if shows(Sign::Torch) || launched {
        "if it loads data in workers, fewer of them; if it loads weights, with mmap, and once in place of in each rank"
    } else if shows(Sign::Python) || by(&["py"]) {
        "data read in parts and in smaller types, fewer worker processes (each has its own copy of what it reads)"
    } else {
        FEWER
    }
}

fn slurm(message: &OomMessage) -> Vec<NextStep> {
    // What was measured last may be below the limit that was reached.
    let most = message.in_use.max(message.total);
    let by_core = message
        .settings
        .iter()
        .any(|setting| setting.name == "mem_per_cpu");
    if let Some(step) = by_workflow(message) {
        return vec![step, accounted(message)];
    }
    let mut steps = vec![step(
        format!("#SBATCH --mem={}", more_than(most)),
        if by_core {
            "ask for more of the node's memory (0: all of it), in place of --mem-per-cpu, which counts for each core"
        } else {
            "ask for more of the node's memory (0: all of it)"
        },
    )];
    steps.push(accounted(message));
    let less = needs_less(message);
    if less != FEWER {
        steps.push(advice(less));
    }
    steps
}

/// How a workflow asks for more on behalf of its jobs.
fn by_workflow(message: &OomMessage) -> Option<NextStep> {
    let known = message.in_use.max(message.total);
    if message.tables.shows(Sign::Nextflow) {
        let size = more_than(known).replace('G', ".GB");
        let size = if known.is_some() {
            size
        } else {
            "16.GB".to_owned()
        };
        return Some(step(
            format!("memory = {{ {size} * task.attempt }}"),
            "of that process, with errorStrategy = 'retry' and maxRetries: Nextflow writes --mem from it, and each attempt gets more",
        ));
    }
    message.tables.shows(Sign::Snakemake).then(|| {
        step(
            "resources: mem_mb=lambda wildcards, attempt: 16000 * attempt",
            "of that rule, with --retries 2: Snakemake asks the scheduler for it, and each attempt gets more",
        )
    })
}

/// What the steps of a job of SLURM used.
fn accounted(message: &OomMessage) -> NextStep {
    let job: String = message
        .job
        .as_deref()
        .unwrap_or("JOB")
        .chars()
        .take_while(char::is_ascii_alphanumeric)
        .collect();
    let job = if job.is_empty() { "JOB" } else { &job };
    step(
        format!("sacct -j {job} --format=JobID,MaxRSS,ReqMem,NodeList"),
        "what each step used and had asked for",
    )
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

/// Whether a process grows, which the kernel's words do not tell.
fn watch(message: &OomMessage) -> NextStep {
    let name = shell_word(message.process.as_deref()).unwrap_or("PROGRAM");
    step(
        format!("watch -n 10 'ps -o rss=,etime=,args= -C {name}'"),
        "while it runs again: if it grows to the end, something is kept; if it stands there soon, it needs that much",
    )
}

fn kernel(message: &OomMessage) -> Vec<NextStep> {
    /// Hardly anybody chooses such a limit.
    const LITTLE: Bytes = Bytes::mib(256);
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
            _ if messages::other::holds_little(message) => {
                "less of what holds the most in that table (a build: fewer jobs at once), or more RAM or swap"
            }
            Some("java") => "a smaller heap (java -Xmx…) or fewer such processes; more RAM or swap",
            _ => needs_less(message),
        });
        if messages::other::of_nodes(message).is_some() {
            let bound = if message.setting == Some("a cpuset") {
                advice("more nodes in its cpuset (cpuset.mems; docker run --cpuset-mems=0,1)")
            } else {
                step(
                    "numactl --preferred=N …",
                    "in place of --membind=N: node N first, and then others (--interleave=all: all alike)",
                )
            };
            return vec![
                step(
                    "numactl --hardware; numastat -m",
                    "how much each NUMA node has, and how much of that is free",
                ),
                bound,
                less,
            ];
        }
        if messages::other::holds_little(message) {
            return vec![table, less, look_at_the_host()];
        }
        if loads {
            return vec![fewer_workers(message), table, look_at_the_host()];
        }
        let more = advice(format!("{}; or more RAM or swap", less.what));
        let mut steps = vec![watch(message), more, table];
        // Whether it was this process that filled the machine the table tells first, unless it held much of what there is.
        let much = message
            .around
            .total
            .map_or(Bytes::gib(4), |total| Bytes(total.0 / 2));
        if message.in_use.is_none_or(|held| held < much) {
            steps.rotate_right(1);
        }
        return steps;
    };
    if group.contains("kubepods") || group.ends_with("of a pod") {
        return vec![
            step(
                limit_above(message.total),
                "the limit of its container was reached, not that of the node: raise it",
            ),
            if message.total.is_some_and(|limit| limit <= LITTLE) {
                step(
                    "kubectl describe pod POD; kubectl get limitrange",
                    "its limit, and whether so little is a default of the namespace",
                )
            } else {
                step(
                    "kubectl describe pod POD",
                    "its limit, and which container was ended",
                )
            },
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
                "the limit, as a process in the container reads it (cgroup v1: memory/memory.limit_in_bytes)",
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
            "the limit of its group was reached, not that of the host: read it as a process of that group (cgroup v1: memory/memory.limit_in_bytes)",
        ),
        step(
            "dmesg -T | grep -A400 'invoked oom-killer'",
            "which group it is, and what its processes held",
        ),
        advice(
            "a higher limit for the group (docker run --memory) (SLURM: --mem) (systemd: MemoryMax=), or less in it",
        ),
    ]
}
