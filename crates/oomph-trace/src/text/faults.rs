//! Errors that are no matter of memory, though they end the same jobs: what they are, by the words that name them.

use std::sync::LazyLock;

use super::program::{Hardware, Memory, Program};
use super::readers::{Line, Place};
use super::words::Vocabulary;
use super::{MessageKind, OomMessage};

/// An error that is no matter of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// The GPU itself failed, as the driver says.
    Hardware,
    /// Kernel module and library of the driver are of different versions.
    DriverMismatch,
    /// The driver is older than the CUDA that a program was built for.
    DriverTooOld,
    /// The program has no code for this GPU.
    NoKernelImage,
    /// A kernel's own check failed, mostly that of an index.
    DeviceAssert,
    /// A kernel reached outside of its memory.
    IllegalAccess,
    /// A kernel failed in a way that the driver does not name.
    LaunchFailure,
    /// A launch asks for more threads or registers than a multiprocessor has.
    LaunchResources,
    /// No GPU is to be seen.
    NoDevice,
    /// Two ranks use one GPU.
    SharedGpu,
    /// A call of cuBLAS or cuDNN failed, and not for want of memory.
    LibraryCall,
    /// Tensors that meet are on different devices.
    MixedDevices,
    /// Tensors that meet do not have shapes, or types, that fit.
    Shapes,
    /// Libraries do not fit together.
    Libraries,
    /// A port is taken.
    PortTaken,
    /// A collective operation waited too long for a rank.
    CollectiveTimeout,
    /// Not all processes of a job met at its start.
    Rendezvous,
    /// A rank at the other end of a connection is gone.
    PeerGone,
    /// A disk is full.
    DiskFull,
    /// As many files and directories are watched as the system allows.
    Watches,
    /// As many videos are encoded at once as the driver allows.
    EncodeSessions,
    /// A database of a fixed size is full.
    MapSize,
    /// A library's table of a fixed length is full.
    Slots,
    /// The user may not open the GPU.
    NoAccess,
    /// A scheduler found no node with what a job asks for.
    NotScheduled,
    /// As many files are open as a process may have.
    Files,
    /// As many threads or processes run as the user may have.
    Threads,
    /// A process read or wrote where it may not.
    Segfault,
    /// CUDA refused what a call was given.
    Refused,
    /// A library says that a call below it failed, and not with which error: it may have been memory.
    Unnamed,
    /// An exception that no table knows.
    Stated,
}

/// The more an error says of the reason, the earlier it stands: of several in one text the first is kept.
const FAULTS: &[(Fault, &[&str])] = &[
    (
        Fault::Hardware,
        &[
            "fallen off the bus",
            "GPU is lost",
            "uncorrectable ECC error",
            "cudaErrorECCUncorrectable",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "hardware stack error",
            "NVLink error was detected",
            "HW Exception by GPU node",
        ],
    ),
    (
        Fault::DriverMismatch,
        &[
            "Driver/library version mismatch",
            "forward compatibility was attempted on non supported HW",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "cudaErrorSystemDriverMismatch",
            "does not match DSO version",
        ],
    ),
    (
        Fault::DriverTooOld,
        &[
            "driver on your system is too old",
            "driver version is insufficient for CUDA runtime version",
            "cudaErrorInsufficientDriver",
            "provided PTX was compiled with an unsupported toolchain",
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            "unsatisfied condition: cuda",
        ],
    ),
    (
        Fault::NoKernelImage,
        &[
            "no kernel image is available",
            "cudaErrorNoKernelImageForDevice",
            "CUDA_ERROR_NO_BINARY_FOR_GPU",
            "invalid device function",
            "hipErrorNoBinaryForGpu",
            "is not compatible with the current PyTorch installation",
        ],
    ),
    (
        Fault::DeviceAssert,
        &[
            "device-side assert triggered",
            "cudaErrorAssert",
            "CUDA_ERROR_ASSERT",
            "] Assertion `",
        ],
    ),
    (
        Fault::IllegalAccess,
        &[
            "an illegal memory access was encountered",
            "cudaErrorIllegalAddress",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "misaligned address",
            "CUDA_ERROR_MISALIGNED_ADDRESS",
            "Memory access fault by GPU",
            "hipErrorIllegalAddress",
        ],
    ),
    (
        Fault::LaunchResources,
        &[
            "too many resources requested for launch",
            "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
            "invalid configuration argument",
        ],
    ),
    (
        Fault::LaunchFailure,
        &[
            "unspecified launch failure",
            "CUDA_ERROR_LAUNCH_FAILED",
            "cudaErrorLaunchFailure",
            "an illegal instruction was encountered",
            "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        ],
    ),
    (
        Fault::NoDevice,
        &[
            "no CUDA-capable device is detected",
            "CUDA_ERROR_NO_DEVICE",
            "cudaErrorNoDevice",
            "No CUDA GPUs are available",
            "Found no NVIDIA driver",
            "CUDA unknown error - this may be due to an incorrectly set up environment",
            "invalid device ordinal",
            "couldn't communicate with the NVIDIA driver",
            "Torch not compiled with CUDA enabled",
            "could not select device driver",
            "No HIP GPUs are available",
        ],
    ),
    (Fault::SharedGpu, &["Duplicate GPU detected"]),
    (
        Fault::LibraryCall,
        &[
            "CUDNN_STATUS_EXECUTION_FAILED",
            "CUDNN_STATUS_MAPPING_ERROR",
            "CUDNN_STATUS_NOT_SUPPORTED",
            "CUDNN_STATUS_BAD_PARAM",
            "CUDNN_STATUS_SUBLIBRARY",
            "CUDNN_STATUS_VERSION_MISMATCH",
            "CUBLAS_STATUS_EXECUTION_FAILED",
            "CUBLAS_STATUS_INTERNAL_ERROR",
            "CUBLAS_STATUS_INVALID_VALUE",
            "CUBLAS_STATUS_NOT_SUPPORTED",
            "CUBLAS_STATUS_ARCH_MISMATCH",
        ],
    ),
    (
        Fault::MixedDevices,
        &["Expected all tensors to be on the same device"],
    ),
    (
        Fault::Shapes,
        &[
            "shapes cannot be multiplied",
            "must match the size of tensor b",
            "size mismatch for ",
            "Sizes of tensors must match",
            "expected scalar type",
            "must have the same dtype",
            "is invalid for input of size",
        ],
    ),
    (
        Fault::Libraries,
        &[
            "undefined symbol: ",
            "cannot open shared object file",
            "version `GLIBC",
            "DLL load failed",
        ],
    ),
    (
        Fault::PortTaken,
        &[
            "Address already in use",
            "EADDRINUSE",
            "address already in use",
        ],
    ),
    (
        Fault::CollectiveTimeout,
        &[
            "collective operation timeout",
            "Some NCCL operations have failed or timed out",
            "ms for recv operation",
            "ms for send operation",
            "monitoredBarrier",
        ],
    ),
    (
        Fault::Rendezvous,
        &[
            "waiting for clients",
            "client socket has failed to connect",
            "client socket has timed out",
            "RendezvousTimeoutError",
            "RendezvousConnectionError",
        ],
    ),
    (
        Fault::PeerGone,
        &[
            "ncclRemoteError",
            "remote process exited or there was a network error",
            "Connection closed by remote peer",
            "Connection closed by peer",
            "ncclSystemError",
            "recvValue failed",
        ],
    ),
    (
        Fault::DiskFull,
        &[
            "No space left on device",
            "Disk quota exceeded",
            "no space left on device",
        ],
    ),
    (Fault::Files, &["Too many open files", "EMFILE"]),
    (
        Fault::Threads,
        &[
            "can't start new thread",
            "pthread_create failed",
            "Thread creation failed",
            "fork: Resource temporarily unavailable",
            "fork: retry: Resource temporarily unavailable",
        ],
    ),
    (
        Fault::Segfault,
        &[
            "Segmentation fault",
            "segmentation fault",
            "(SIGSEGV)",
            "exitcode: -11",
            "return code = -11",
        ],
    ),
    (
        Fault::Refused,
        &[
            "Cuda failure 'invalid argument'",
            "Cuda failure 1 'invalid argument'",
            "CUDA error: invalid argument",
            "cudaErrorInvalidValue",
            "CUDA_ERROR_INVALID_VALUE",
        ],
    ),
    (
        Fault::Unnamed,
        &[
            "unhandled cuda error",
            "unhandled system error",
            "ncclUnhandledCudaError",
        ],
    ),
];

/// Limits that are no memory, though what fails at them mostly says that memory or space ran out: their own words come
/// before those.
const LIMITS: &[(Fault, &[&str])] = &[
    (
        Fault::Watches,
        &[
            "inotify watch limit",
            "inotify cannot be used",
            "inotify watches",
            "limit for number of file watchers",
            "inotify_add_watch",
            "inotify instances",
        ],
    ),
    (Fault::EncodeSessions, &["OpenEncodeSessionEx failed"]),
    (Fault::MapSize, &["MDB_MAP_FULL", "mapsize limit reached"]),
    (
        Fault::Slots,
        &["No more teams available", "NVSHMEM_MAX_TEAMS"],
    ),
    (
        Fault::NoAccess,
        &[
            "hsa api call failure",
            "Unable to open /dev/kfd",
            "/dev/kfd: Permission denied",
            "open /dev/nvidia",
        ],
    ),
    (
        Fault::NotScheduled,
        &[
            "FailedScheduling",
            "nodes are available: ",
            "Requested node configuration is not available",
            "emory specification can not be satisfied",
            "Job violates accounting/QOS policy",
        ],
    ),
];

impl Fault {
    /// Whether it is a limit that is not of memory, which words about memory beside it are about.
    const fn is_limit(self) -> bool {
        matches!(
            self,
            Self::Watches
                | Self::EncodeSessions
                | Self::MapSize
                | Self::Slots
                | Self::NoAccess
                | Self::NotScheduled
        )
    }

    /// Whose error it is.
    const fn program(self) -> Program {
        match self {
            Self::CollectiveTimeout | Self::PeerGone | Self::SharedGpu | Self::Unnamed => {
                Program::Nccl
            }
            Self::MixedDevices | Self::Shapes => Program::Pytorch,
            Self::Rendezvous => Program::Torchrun,
            Self::NotScheduled
            | Self::Watches
            | Self::Files
            | Self::Threads
            | Self::MapSize
            | Self::EncodeSessions
            | Self::Slots
            | Self::NoAccess
            | Self::DiskFull
            | Self::Segfault
            | Self::Stated
            | Self::Libraries
            | Self::PortTaken => Program::Unknown,
            _ => Program::Cuda,
        }
    }
}

/// The limit that is no memory which a line names.
pub(super) fn limit(text: &str, place: &Place<'_>) -> Option<OomMessage> {
    static WORDS: LazyLock<Vocabulary<Fault>> =
        LazyLock::new(|| Vocabulary::new(LIMITS.iter().copied(), false));
    let (fault, at, _) = WORDS.all(text).next()?;
    message(fault, text, at, place)
}

/// The fault that a line names.
pub(super) fn read(text: &str, place: &Place<'_>) -> Option<OomMessage> {
    static WORDS: LazyLock<Vocabulary<Fault>> =
        LazyLock::new(|| Vocabulary::new(FAULTS.iter().copied(), false));
    let words = WORDS.all(text).map(|(fault, at, _)| (fault, at));
    let (fault, at) = words
        .chain(xid(text))
        .min_by_key(|(fault, _)| rank(*fault))?;
    message(fault, text, at, place)
}

/// The exception that a line is: `AttributeError: 'NoneType' object has no attribute 'cpu'`, unless it only tells that another process
/// ended, or names memory.
pub(super) fn stated(text: &str, place: &Place<'_>) -> Option<OomMessage> {
    const NOT: &[&str] = &[
        "process",
        "exit",
        "died",
        "worker",
        "actor",
        "engine",
        "connection",
        "pipe",
        "timeout",
        "rendezvous",
        "childfailed",
        "memory",
        "alloc",
        "interrupt",
    ];
    let (name, _) = text.split_once(':').unwrap_or((text.trim_end(), ""));
    let last = name.rsplit('.').next()?;
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let lower = text.to_ascii_lowercase();
    (["Error", "Exception"].iter().any(|end| last.ends_with(end))
        && name.chars().all(word)
        && !NOT.iter().any(|word| lower.contains(word)))
    .then(|| message(Fault::Stated, text, 0, place))?
}

fn message(fault: Fault, text: &str, at: usize, place: &Place<'_>) -> Option<OomMessage> {
    let line = Line::new(text, at, place)?;
    let program = match fault.program() {
        Program::Cuda if line.near().contains("NCCL") => Program::Nccl,
        Program::Nccl if line.near().contains("gloo") => Program::Pytorch,
        // Whose library lacks another, or whose code it is.
        Program::Unknown => super::origin::inside(line.near()).unwrap_or(Program::Unknown),
        program => program,
    };
    let mut message = line.message(program, MessageKind::Fault(fault));
    message.memory = match fault {
        Fault::Unnamed => Memory::Unknown,
        _ => Memory::None,
    };
    message.hardware = Hardware::of(line.near());
    message.rank = place.origin.rank;
    message.ranks = Vec::from_iter(message.rank);
    message.pid = place.origin.pid;
    message.host.clone_from(&place.origin.host);
    Some(message)
}

/// What the number of a driver's report (`NVRM: Xid (PCI:0000:01:00): 31, …`) stands for, and where it begins. Some numbers are mostly a
/// program's own faults, as NVIDIA's list of Xid errors says; the others are the GPU's, or its connection's.
fn xid(text: &str) -> Option<(Fault, usize)> {
    let at = text.find("NVRM: Xid (")?;
    let (_, rest) = text[at..].split_once("): ")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let fault = match rest[..digits].parse().ok()? {
        13 | 31 => Fault::IllegalAccess,
        8 | 43 | 45 | 69 => Fault::LaunchFailure,
        _ => Fault::Hardware,
    };
    Some((fault, at))
}

/// Where a fault stands in the tables.
pub(super) fn rank(fault: Fault) -> usize {
    LIMITS
        .iter()
        .chain(FAULTS)
        .position(|(other, _)| *other == fault)
        .unwrap_or(usize::MAX)
}

/// Keeps of two faults the one that says more, and with it the ranks that report it.
pub(super) fn keep(kept: &mut Option<Box<OomMessage>>, next: OomMessage) {
    let of = |message: &OomMessage| match message.kind {
        MessageKind::Fault(fault) => rank(fault),
        _ => usize::MAX,
    };
    match kept {
        Some(kept) if of(kept) == of(&next) => {
            kept.add_ranks(&next.ranks);
            if kept.traceback.is_empty() {
                kept.traceback = next.traceback;
            }
        }
        Some(kept) if of(kept) < of(&next) => {}
        _ => *kept = Some(Box::new(next)),
    }
}

/// Drops what a limit that is no memory explains: words about memory that no reader knows, and disks that seem full.
pub(super) fn explain_away(messages: &mut Vec<OomMessage>, fault: &OomMessage) {
    if matches!(fault.kind, MessageKind::Fault(fault) if fault.is_limit()) {
        messages.retain(|message| {
            let full = message.allocator.as_deref() == Some("/dev/shm");
            !full && message.kind != MessageKind::Unknown
        });
    }
}

/// Whether a line of an error said before it that memory ran out: a program that goes on without the memory it asked for
/// reaches for a wrong address.
pub(super) fn is_consequence(fault: &OomMessage, messages: &mut [OomMessage]) -> bool {
    const OF_KERNELS: [MessageKind; 4] = [
        MessageKind::Fault(Fault::IllegalAccess),
        MessageKind::Fault(Fault::LaunchFailure),
        MessageKind::Fault(Fault::LibraryCall),
        MessageKind::Fault(Fault::Segfault),
    ];
    let first = messages.iter_mut().find(|message| {
        message.kind == MessageKind::Unknown
            && message.setting.is_none()
            && !message.handled
            && message.memory == Memory::Device
            && message.line < fault.line
            && says_so_as_an_error(&message.text)
    });
    match first {
        Some(first) if OF_KERNELS.contains(&fault.kind) => {
            first.setting = Some("before a fault");
            if fault.hardware == Hardware::Amd {
                first.hardware = Hardware::Amd;
            }
            true
        }
        _ => false,
    }
}

/// Whether a program prints it, and nobody tells it.
fn says_so_as_an_error(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    ["error", "assert", "fatal", "exception"]
        .iter()
        .any(|word| lower.contains(word))
        && lower.contains("memory")
}

impl OomMessage {
    /// Whether it may be what another error caused: a warning, a handle of a library that could not be made, words that
    /// no reader knows.
    pub fn is_vague(&self) -> bool {
        self.handled
            || self.told
            || matches!(
                self.kind,
                MessageKind::Cublas
                    | MessageKind::Cudnn
                    | MessageKind::NoAlgorithm
                    | MessageKind::Fault(_)
            )
            || (self.kind == MessageKind::Unknown && self.requested.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tests::{all, one};

    #[test]
    fn what_says_more_of_the_reason_is_kept() {
        let message = one(
            "[rank1]: CUDA error: unspecified launch failure\n[rank0]: Indexing.cu:7: block: [0,0,0], thread: [1,0,0] Assertion `i < n` failed.\n[rank2]: CUDA error: device-side assert triggered",
        );
        assert_eq!(message.kind, MessageKind::Fault(Fault::DeviceAssert));
        assert_eq!((message.memory, message.ranks), (Memory::None, vec![0, 2]));
    }

    #[test]
    fn numbers_of_the_driver_tell_programs_from_hardware() {
        let fault = |number: u32| {
            one(&format!(
                "NVRM: Xid (PCI:0000:01:00): {number}, pid=40100, name=server"
            ))
            .kind
        };
        assert_eq!(fault(31), MessageKind::Fault(Fault::IllegalAccess));
        assert_eq!(fault(43), MessageKind::Fault(Fault::LaunchFailure));
        assert_eq!(fault(79), MessageKind::Fault(Fault::Hardware));
        let both = one(
            "CUDA error: an illegal memory access was encountered\nNVRM: Xid (PCI:0000:01:00): 31, pid=40100, MMU Fault",
        );
        assert_eq!(both.kind, MessageKind::Fault(Fault::IllegalAccess));
    }

    #[test]
    fn memory_that_ran_out_comes_before_what_it_caused() {
        let message = one(
            "[rank0]: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free.\n[rank1]: ncclRemoteError: A call failed possibly due to a network error",
        );
        assert_eq!(message.kind, MessageKind::Native);
        // A handle that cannot be made says less than the error before it.
        let found = all(
            "CUDA error: device-side assert triggered\nCUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        );
        let kinds: Vec<MessageKind> = found.iter().map(|message| message.kind).collect();
        assert!(
            kinds.contains(&MessageKind::Fault(Fault::DeviceAssert)),
            "{kinds:?}"
        );
    }
}
