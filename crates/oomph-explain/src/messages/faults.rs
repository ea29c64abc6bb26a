//! Errors that are no matter of memory: what they are, and what to do next.

use oomph_trace::text::{Bound, Fault, Hardware, OomMessage, Sign};

use super::figures::QUOTED;
use super::next::{NextStep, advice, script, step};

/// What happened, in a sentence.
pub(super) fn verdict(message: &OomMessage, fault: Fault) -> String {
    if fault == Fault::Stated {
        return format!(
            "the error that the text shows is none of memory: {} (line {}); that memory ran out somebody tells, and no line of a program",
            message.quote(QUOTED),
            message.line
        );
    }
    let unchecked = is_unchecked(message, fault);
    format!(
        "{}: {}{} (line {})",
        if unchecked {
            "an error that does not name memory"
        } else {
            "no matter of memory"
        },
        what(fault),
        if unchecked {
            "; a program that does not check each call goes on without the memory that an earlier one did not get, and then fails like that, too"
                .to_owned()
        } else {
            figures(message, fault).unwrap_or_default()
        },
        message.line
    )
}

/// Calls that a program does not check fail without a word, and what it does then may fail.
fn is_unchecked(message: &OomMessage, fault: Fault) -> bool {
    fault == Fault::IllegalAccess && !message.tables.shows(Sign::Python)
}

/// How sure it is that memory is no matter of it.
pub(super) fn confidence(message: &OomMessage, fault: Fault) -> f64 {
    if fault == Fault::Stated || is_unchecked(message, fault) {
        0.6
    } else {
        0.9
    }
}

/// What the tables of the text say of a limit.
fn figures(message: &OomMessage, fault: Fault) -> Option<String> {
    let tables = &message.tables;
    let most = |bound| {
        tables
            .bound(bound)
            .map(|most| format!("; by the text the limit is {most}"))
    };
    match fault {
        Fault::Watches => most(Bound::Watches),
        Fault::Files => most(Bound::Files),
        Fault::Threads => most(Bound::Threads),
        Fault::NotScheduled => {
            let (asked, node) = (tables.job.or(tables.asked)?, tables.node);
            Some(match node {
                Some(node) if asked > node => format!(
                    "; it asks for {asked} of host memory, and a node of the text has {node} in all"
                ),
                _ => format!("; it asks for {asked} of host memory"),
            })
        }
        Fault::DiskFull => {
            let full = tables
                .disks
                .iter()
                .find(|disk| disk.sizes[2].0 < disk.sizes[0].0 / 50)?;
            let free = tables.disks.iter().max_by_key(|disk| disk.sizes[2])?;
            let other = if free.sizes[2] > full.sizes[2] && free.mount != "/dev/shm" {
                format!(", while {} has {} free", free.mount, free.sizes[2])
            } else {
                String::new()
            };
            Some(format!(
                "; by the text's table {} is full ({} of {} used){other}",
                full.mount, full.sizes[1], full.sizes[0]
            ))
        }
        _ => None,
    }
}

pub(super) const fn what(fault: Fault) -> &'static str {
    match fault {
        Fault::Hardware => {
            "the driver reports that the GPU itself or its connection failed: its hardware, power or cooling, seldom the driver"
        }
        Fault::DriverMismatch => {
            "the driver's kernel module and its library have different versions, mostly after an upgrade without a restart"
        }
        Fault::DriverTooOld => {
            "the GPU's driver is older than the CUDA version that the program was built for"
        }
        Fault::NoKernelImage => {
            "the program, or a library in it, was built without code for this GPU's architecture"
        }
        Fault::DeviceAssert => {
            "a kernel's own check failed on the GPU: nearly always an index that is out of range (a token beyond the \
             vocabulary, a label beyond the classes, a position beyond the maximum), or probabilities that are NaN"
        }
        Fault::IllegalAccess => {
            "a kernel read or wrote outside of its memory: a bug in a kernel or a library, or an index out of range"
        }
        Fault::LaunchFailure => {
            "a kernel ended with an error that the driver does not name: mostly an access outside of its memory, or a \
             fault of the GPU"
        }
        Fault::LaunchResources => {
            "a kernel was launched with a block or a grid that the GPU cannot take: too many threads, or more registers or shared memory than a \
             multiprocessor has"
        }
        Fault::NoDevice => {
            "the program sees no GPU, or not the one that it asks for: the driver, the container, CUDA_VISIBLE_DEVICES \
             or a build without GPU support"
        }
        Fault::SharedGpu => "two ranks use the same GPU, which NCCL does not allow",
        Fault::LibraryCall => {
            "a call of cuDNN or cuBLAS failed: an earlier kernel broke something, sizes or types are not supported, or \
             versions do not fit"
        }
        Fault::MixedDevices => {
            "tensors that meet in one operation are on different devices (the CPU and a GPU, or two GPUs)"
        }
        Fault::Shapes => "tensors that meet in one operation have shapes or types that do not fit",
        Fault::Libraries => "a library is missing, or two do not fit together",
        Fault::PortTaken => {
            "the port that the job listens on is taken: by an earlier run that still lives, or by another job"
        }
        Fault::CollectiveTimeout => {
            "a collective operation waited for all ranks until its time was up: one rank was late, had failed, or did not \
             make the same call"
        }
        Fault::Rendezvous => {
            "the processes of the job did not all meet at its start: some were not started, or could not reach the first \
             one's address in time"
        }
        Fault::PeerGone => {
            "the process at the other end of a connection is gone, or the network failed: what ended it stands in that \
             rank's log, and may well be memory"
        }
        Fault::DiskFull => "a disk, or a quota on one, is full",
        Fault::Watches => {
            "as many files and directories are watched (inotify) as the kernel allows the user; disks and RAM are not short"
        }
        Fault::EncodeSessions => {
            "the driver allows only a few encoders (NVENC) at once on GPUs for consumers, and says \"out of memory\" for one \
             more; GPU memory need not be short"
        }
        Fault::MapSize => {
            "the database (LMDB) has reached the size that the program set when it opened it (map_size); the disk and RAM \
             need not be full"
        }
        Fault::Slots => {
            "a table of fixed length in NVSHMEM is full (its teams); the GPU's memory is not short"
        }
        Fault::NoAccess => {
            "the runtime could not open the GPU, mostly because the user may not: /dev/kfd and /dev/dri belong to the group \
             render (or video)"
        }
        Fault::NotScheduled => {
            "the scheduler found no node with what the job asks for, so it has not started and nothing ran out"
        }
        Fault::Files => "the process has as many files open as it may (ulimit -n)",
        Fault::Threads => {
            "no thread or process could be started: the user's limit (ulimit -u), the container's (pids), or one on \
             addresses (ulimit -v) is reached"
        }
        Fault::Segfault => {
            "a process read or wrote memory that is not its own (SIGSEGV): a bug in a native library, or libraries that do \
             not fit together"
        }
        Fault::Refused => {
            "CUDA refused what one of its calls was given (invalid argument); why, the text does not say, and no line says that memory was short"
        }
        Fault::Unnamed => {
            "NCCL says that a call of CUDA or of the system failed, and not with which error: memory may have been short, of the GPU or of \
             /dev/shm, or something else is at fault"
        }
        Fault::Stated => "",
    }
}

/// What such a text does not say.
pub(super) fn unsaid(fault: Fault) -> Vec<&'static str> {
    match fault {
        Fault::DeviceAssert | Fault::IllegalAccess | Fault::LaunchFailure | Fault::LibraryCall => {
            vec!["which call it comes from: kernels run later than they are called"]
        }
        Fault::CollectiveTimeout => vec!["which rank was late, and why"],
        Fault::Rendezvous => vec!["which process was missing, and why"],
        Fault::PeerGone => vec!["why the other process ended"],
        Fault::Unnamed => vec!["which error it was, and so whether memory was short"],
        Fault::Stated => vec!["what the program itself said when memory ran out, if it did"],
        _ => Vec::new(),
    }
}

/// What to do about a limit.
fn about_limits(message: &OomMessage, fault: Fault) -> Vec<NextStep> {
    match fault {
        Fault::Watches => vec![
            step(
                "sudo sysctl fs.inotify.max_user_watches=524288",
                "more watches (and fs.inotify.max_user_instances=512; for good: /etc/sysctl.d)",
            ),
            advice("fewer directories watched: leave data, checkpoints and environments out"),
        ],
        Fault::EncodeSessions => vec![
            step(
                "nvidia-smi --query-gpu=encoder.stats.sessionCount --format=csv",
                "how many encoders run at once",
            ),
            advice("fewer encoders at once: end one, or encode some on the CPU (libx264)"),
            advice(
                "a newer driver, which allows more, or a GPU without that limit; decoders do not count",
            ),
        ],
        Fault::MapSize => vec![
            step(
                "lmdb.open(path, map_size=1 << 40)",
                "a larger map: only addresses are reserved, not memory or disk (env.set_mapsize for one that is open)",
            ),
            advice("where `ulimit -v` limits addresses, as large as that allows"),
        ],
        Fault::Slots => vec![
            step("NVSHMEM_MAX_TEAMS=32", "a longer table of teams"),
            advice(
                "fewer teams: one buffer or group used again, and those that are done destroyed",
            ),
        ],
        Fault::NoAccess => vec![
            step(
                "sudo usermod -aG render,video $USER",
                "then log in again: `id` has to show the group that `ls -l /dev/kfd` shows",
            ),
            step(
                "docker run --device /dev/kfd --device /dev/dri --group-add render …",
                "the same in a container",
            ),
        ],
        Fault::Files => vec![
            step(
                "ulimit -n 65536",
                "more open files (docker: --ulimit nofile=65536)",
            ),
            step(
                "torch.multiprocessing.set_sharing_strategy(\"file_system\")",
                "in a job of PyTorch with many workers: tensors that are passed on hold no open files",
            ),
            advice(
                "files that are opened in a loop and not closed: `ls /proc/PID/fd | wc -l` shows whether they grow",
            ),
        ],
        Fault::Threads => vec![
            step(
                "ulimit -u; cat /sys/fs/cgroup/pids.max",
                "the limits on threads and processes",
            ),
            step(
                "OMP_NUM_THREADS=4 OPENBLAS_NUM_THREADS=4",
                "fewer threads in each process, and fewer workers",
            ),
        ],
        _ => vec![
            ask_for_less(message),
            advice(
                "a larger node or another partition, or wait until other jobs end if a node has enough in all",
            ),
        ],
    }
}

/// What a job that was not scheduled may ask for.
fn ask_for_less(message: &OomMessage) -> NextStep {
    let tables = &message.tables;
    let slurm = ["sbatch", "srun", "SBATCH", "salloc"]
        .iter()
        .any(|word| message.text.contains(word));
    match (tables.job.or(tables.asked), tables.node) {
        (Some(asked), Some(node)) if asked > node => advice(format!(
            "ask for less host memory than a node has in all, less what others on it have asked for: below {node}, not {asked}"
        )),
        _ if slurm => step(
            "sinfo -o '%P %m %c %G'",
            "what each node of a partition has: memory in MB, cores, GPUs",
        ),
        _ => step(
            "kubectl describe nodes",
            "what each node can give, and what is asked for already",
        ),
    }
}

/// What to do next, the step that tells the most first.
pub(super) fn steps(message: &OomMessage, fault: Fault) -> Vec<NextStep> {
    match fault {
        Fault::Watches
        | Fault::EncodeSessions
        | Fault::MapSize
        | Fault::Slots
        | Fault::NoAccess
        | Fault::NotScheduled
        | Fault::Files
        | Fault::Threads => about_limits(message, fault),
        Fault::Hardware | Fault::DriverMismatch | Fault::DriverTooOld | Fault::NoDevice => {
            about_the_driver(message, fault)
        }
        Fault::CollectiveTimeout
        | Fault::Rendezvous
        | Fault::PeerGone
        | Fault::PortTaken
        | Fault::SharedGpu => about_the_ranks(fault),
        Fault::NoKernelImage if message.hardware == Hardware::Amd => vec![
            step("rocminfo | grep gfx", "which architecture the GPU is"),
            step(
                "HSA_OVERRIDE_GFX_VERSION=11.0.0",
                "use the code for a close architecture, where there is one (11.0.0 for RDNA 3, 10.3.0 for RDNA 2)",
            ),
            advice("a build for it (PYTORCH_ROCM_ARCH), or a newer one"),
        ],
        Fault::NoKernelImage => vec![
            step(
                "python -c 'import torch; print(torch.cuda.get_arch_list(), torch.cuda.get_device_capability())'",
                "what PyTorch was built for, and what the GPU is",
            ),
            advice(
                "a newer build for a new GPU, an older one for an old GPU; extensions built again with TORCH_CUDA_ARCH_LIST",
            ),
        ],
        Fault::DeviceAssert => vec![
            one_by_one(message),
            advice(
                "compare the largest index with the size of its table: tokens and positions with the embeddings, labels \
                 with the classes",
            ),
            advice(
                "or run the step on the CPU, whose message names the index; the process cannot use the GPU after it, so \
                 start it again",
            ),
        ],
        Fault::IllegalAccess | Fault::LaunchFailure | Fault::LibraryCall => vec![
            one_by_one(message),
            if message.hardware == Hardware::Amd {
                step("AMD_LOG_LEVEL=3", "which kernels ran last")
            } else {
                step(
                    "compute-sanitizer --tool memcheck PROGRAM …",
                    "which kernel it is, and which address",
                )
            },
            if message.tables.shows(Sign::Python) {
                advice(
                    "another version of the library whose kernel it is, or that kernel switched off (torch.backends.cudnn.enabled = False); `dmesg` for \
                     an Xid of the driver",
                )
            } else {
                advice(
                    "the status of each call looked at, of cudaMalloc first, and a smaller problem: whether it then runs",
                )
            },
        ],
        Fault::Refused => vec![
            step(
                "NCCL_DEBUG=INFO",
                "which of NCCL's calls it was, where it is one of them",
            ),
            advice(
                "the versions (nvidia-smi, and what the program was built with): what one version of a library, CUDA or the driver refuses another one takes",
            ),
            advice(
                "NCCL_SHM_DISABLE=1 (no segments in shared memory), if it was one that was refused: slower, but it tells",
            ),
        ],
        Fault::Unnamed => vec![
            step(
                "NCCL_DEBUG=INFO",
                "run it again: the line \"NCCL WARN\" of the first rank that fails names the call and its error",
            ),
            advice(
                "the same with smaller messages, or on one node: whether size or the network decides; nvidia-smi meanwhile, whether the GPU fills",
            ),
        ],
        Fault::Stated => vec![
            advice(
                "the log of the run in which memory ran out: what the program itself says there has the figures, and `oomph explain LOG` reads it",
            ),
            advice(
                "for this error: the settings as they were before it came, or a newer version of the program, whose fault it most likely is",
            ),
        ],
        // The driver refuses a launch at once: there is no later call to look for.
        Fault::LaunchResources if message.text.contains("invalid configuration") => vec![advice(
            "print the block and the grid before the launch: at most 1,024 threads in a block, none of its sides 0, and at most 65,535 blocks \
             along y and z",
        )],
        Fault::LaunchResources => vec![
            advice(
                "fewer threads in a block: half of them need half of the registers, and mostly half of the shared memory",
            ),
            step(
                "nvcc -maxrregcount=64 …",
                "fewer registers for each thread (__launch_bounds__(THREADS) at the kernel, max_registers=64 in Numba's cuda.jit): 65,536 \
                 divided by the threads of a block is the most",
            ),
            step(
                "cuobjdump -res-usage PROGRAM",
                "registers and shared memory of each kernel: which of the two it is",
            ),
        ],
        Fault::MixedDevices => vec![advice(
            "move what the message names to the same device (`.to(x.device)`); with device_map=\"auto\" the inputs to the \
             first layer's",
        )],
        Fault::Shapes => vec![advice(
            "print shapes and types at the user's line of the traceback; of a checkpoint: the model's configuration is \
             another one than that it was saved with",
        )],
        Fault::Libraries => vec![
            step(
                "ldd FILE | grep 'not found'",
                "which library the file that the message names lacks",
            ),
            advice(
                "the extension built again for this torch; a build of the program for the CUDA that is installed, or that library's own version on \
                 LD_LIBRARY_PATH",
            ),
        ],
        Fault::DiskFull => vec![
            step("df -h", "which disk is full (df -i: of files)"),
            advice(
                "fewer checkpoints kept, caches on another disk (HF_HOME, TMPDIR, TRITON_CACHE_DIR)",
            ),
        ],
        Fault::Segfault => vec![
            step(
                format!(
                    "python -X faulthandler {}",
                    script(message).as_deref().unwrap_or("YOUR_SCRIPT.py")
                ),
                "the Python line at which it ended",
            ),
            advice(
                "Python's libraries of one release (torch, its extensions, CUDA's packages) in a fresh environment; `coredumpctl gdb` or `gdb PROGRAM \
                 core`: the line of native code at which it ended",
            ),
        ],
    }
}

/// The error stands at the call that causes it, if kernels do not run in the background.
fn one_by_one(message: &OomMessage) -> NextStep {
    step(
        if message.hardware == Hardware::Amd {
            "AMD_SERIALIZE_KERNEL=3"
        } else {
            "CUDA_LAUNCH_BLOCKING=1"
        },
        "set it and run the job again: the error then stands at the call that fails",
    )
}

fn about_the_driver(message: &OomMessage, fault: Fault) -> Vec<NextStep> {
    let driver = if message.hardware == Hardware::Amd {
        step(
            "rocm-smi",
            "whether the driver works, and which GPUs it sees",
        )
    } else {
        step(
            "nvidia-smi",
            "whether the driver works, its version and the newest CUDA that it runs",
        )
    };
    match fault {
        Fault::Hardware => vec![
            step(
                "sudo dmesg -T | grep -i xid",
                "which error, when, and on which GPU",
            ),
            advice(
                "restart the machine; if it comes again: power, cooling, the slot, or another card",
            ),
            step(
                "nvidia-smi -q -d ECC,PERFORMANCE",
                "errors of its memory, and whether it slowed down for heat or power (dcgmi diag -r 3 tests it)",
            ),
        ],
        Fault::DriverMismatch => vec![
            advice(
                "restart the machine, so that the new kernel module is loaded (or unload the old one: rmmod nvidia)",
            ),
            step(
                "cat /proc/driver/nvidia/version",
                "the version of the loaded module",
            ),
            advice(
                "in a container: no library of the driver in the image; the runtime puts in the host's",
            ),
        ],
        Fault::DriverTooOld => vec![
            driver,
            advice(
                "a newer driver, or a build of the program for an older CUDA (pytorch.org: previous versions)",
            ),
        ],
        _ if message.text.contains("could not select device driver") => vec![
            step(
                "sudo apt install nvidia-container-toolkit && sudo nvidia-ctk runtime configure --runtime=docker",
                "what passes GPUs on to containers is missing; restart Docker after it",
            ),
            driver,
        ],
        _ => vec![
            driver,
            step(
                "echo $CUDA_VISIBLE_DEVICES",
                "which GPUs the process may see",
            ),
            step(
                "docker run --gpus all …",
                "in a container: the GPUs have to be passed on",
            ),
            step(
                "python -c 'import torch; print(torch.version.cuda, torch.cuda.device_count())'",
                "None: a build of PyTorch for the CPU",
            ),
        ],
    }
}

fn about_the_ranks(fault: Fault) -> Vec<NextStep> {
    match fault {
        Fault::CollectiveTimeout => vec![
            advice(
                "read the logs of all ranks for the first error: a rank that ran out of memory lets the others wait",
            ),
            step(
                "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
                "records which collective each rank was in (`py-spy dump --pid PID` shows it while it hangs)",
            ),
            step("NCCL_DEBUG=INFO", "which connections NCCL made"),
            advice(
                "if one rank only takes long (a download, an evaluation, a checkpoint): init_process_group(timeout=…)",
            ),
        ],
        Fault::Rendezvous => vec![
            step(
                "nc -zv $MASTER_ADDR $MASTER_PORT",
                "on the other nodes: whether the first one's address and port can be reached (firewalls, names, interfaces)",
            ),
            advice(
                "all nodes started with the same --nnodes, --rdzv-endpoint and --rdzv-id, and each with its own --node-rank",
            ),
            advice("the logs of the other nodes: one may have ended before it came so far"),
        ],
        Fault::PortTaken => vec![
            step("ss -ltnp | grep PORT", "which process listens on it"),
            step(
                "torchrun --rdzv-endpoint=localhost:0 …",
                "a port that is free (MASTER_PORT for others)",
            ),
        ],
        Fault::SharedGpu => vec![
            step(
                "torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"]))",
                "a GPU for each rank, before the first communicator is made",
            ),
            advice(
                "no more ranks on a node than it has GPUs, and the same CUDA_VISIBLE_DEVICES for all of them",
            ),
        ],
        _ => vec![
            advice(
                "find the rank that ended first, in the logs of all nodes, and explain that log",
            ),
            step(
                "dmesg -T | grep -iE 'killed process|out of memory|xid'",
                "on its node: whether the kernel ended it, or the GPU failed",
            ),
            step("NCCL_DEBUG=INFO", "which connection broke"),
        ],
    }
}
