//! CUDA's error 2 and the status codes of its libraries: no figures, often far from the allocation that failed.

use super::facts::device;
use super::program::{Hardware, Memory, Program};
use super::readers::{Line, Noted, Reader, or_join};
use super::words::{after, integer, word};
use super::{MessageKind, OomMessage};
use crate::units::Bytes;

pub(super) const READERS: &[Reader] = &[
    Reader {
        markers: &[
            "CUBLAS_STATUS_ALLOC_FAILED",
            "CUBLAS_STATUS_NOT_INITIALIZED",
            // cublasGetStatusString's words for the first.
            "the resource allocation failed",
            // What TensorFlow says of it a line later.
            "without BLAS support",
        ],
        read: |line, _, before| status(line, Program::Cublas, MessageKind::Cublas, before),
    },
    Reader {
        // The handle has a workspace of its own.
        markers: &[
            "when calling `cusolverDnCreate(",
            "when calling `cusparseCreate(",
        ],
        read: |line, _, before| {
            let library = super::named::of("cusolver")?;
            status(line, library, MessageKind::Cublas, before)
        },
    },
    Reader {
        // cuDNN tries its algorithms, and each wants scratch memory.
        markers: &[
            "Unable to find a valid cuDNN algorithm",
            "was unable to find an engine to execute this computation",
        ],
        read: |line, _, before| {
            let mut message = line.message(Program::Cudnn, MessageKind::NoAlgorithm);
            message.memory = Memory::Unknown;
            or_join(before, message)
        },
    },
    Reader {
        markers: &["CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"],
        read: |line, _, before| {
            let mut message = line.message(Program::Cudnn, MessageKind::Cudnn);
            message.memory = Memory::Host;
            or_join(before, message)
        },
    },
    Reader {
        // What XLA's next line says of that moment.
        markers: &["Memory usage: "],
        read: |line, _, before| {
            let before = before.filter(|before| before.kind == MessageKind::Cudnn)?;
            let (free, total) = after(line.from, ": ")?.split_once(" bytes free, ")?;
            before.free = integer(free).map(Bytes);
            before.total = integer(total).map(Bytes);
            before.last = line.part;
            None
        },
    },
    Reader {
        markers: &[
            "CUDNN_STATUS_ALLOC_FAILED",
            "CUDNN_STATUS_NOT_INITIALIZED",
            // Of a handle it is mostly memory that its framework had taken before.
            "ould not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR",
            "ould not create cuDNN handle: CUDNN_STATUS_INTERNAL_ERROR",
            "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        ],
        read: |line, _, before| status(line, Program::Cudnn, MessageKind::Cudnn, before),
    },
    Reader {
        markers: &[
            "CUDA error: out of memory",
            "CUDA driver error: out of memory",
            "HIP error: out of memory",
            "hipErrorOutOfMemory",
            "cudaErrorMemoryAllocation",
            "CUDA_ERROR_OUT_OF_MEMORY",
            "cuda runtime error (2)",
            "cuda failed with error 2",
            "CUDA failure 2: out of memory",
            "CUresult error result=2 ",
            "CUresult error  result=2 ",
            "cuMemAlloc failed: out of memory",
            "cuMemCreate failed: out of memory",
            "CURAND_STATUS_ALLOCATION_FAILED",
            "CUSOLVER_STATUS_ALLOC_FAILED",
            "CUSPARSE_STATUS_ALLOC_FAILED",
            "CUFFT_ALLOC_FAILED",
            // Caffe's check, OpenCV's call.
            "cudaSuccess (2 vs. 0)",
            "(-217:Gpu API call) out of memory",
            // Thrust, which runs on CUDA.
            "parallel_for failed: out of memory",
            "temporary_buffer::allocate: get_temporary_buffer failed",
        ],
        read: |line, _, before| status(line, Program::Cuda, MessageKind::Cuda, before),
    },
    Reader {
        // Of a Jetson, whose GPU takes its memory from the machine's: the kernel's error 12 says that there is none. The number is no size.
        markers: &["NvMapMemAllocInternalTagged: "],
        read: |line, _, before| {
            line.from.trim_end().strip_suffix("error 12")?;
            let mut message = line.message(Program::Cuda, MessageKind::Cuda);
            message.hardware = Hardware::Jetson;
            or_join(before, message)
        },
    },
    Reader {
        // A call with its error, in whatever words a program has for it.
        markers: &[
            "cudaMalloc",
            "cuMemAlloc",
            "cuMemCreate",
            "cudaHostAlloc",
            "cuMemHostAlloc",
            "CUDA error 2",
            "Cuda error: ",
            "CUDA Error: ",
            "Cuda failure: ",
            // Old PyTorch, before the words of its own error.
            "THCudaCheck FAIL",
        ],
        read: call,
    },
];

/// `Cuda error: 2[cudaMalloc(…)]`, `cudaMalloc failed: out of memory`; pinned memory is the host's.
fn call(line: &Line<'_>, _: &mut Noted, before: Option<&mut OomMessage>) -> Option<OomMessage> {
    let lower = line.text.to_ascii_lowercase();
    // The number 2, and no larger one.
    let two = |word: &&str| {
        lower
            .match_indices(*word)
            .filter_map(|(at, _)| lower.get(at + word.len()..)?.strip_prefix('2'))
            .any(|rest| !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
    };
    let reports = lower.contains("error") || lower.contains("fail") || lower.contains("(): ");
    let words = reports && lower.contains("out of memory");
    let number = ["error ", "error: ", "error code ", "error code: ", "error="]
        .iter()
        .any(two);
    if !words && !number {
        return None;
    }
    let mut message = line.message(Program::Cuda, MessageKind::Cuda);
    if [
        "cudahostalloc",
        "cudamallochost",
        "cumemhostalloc",
        "cumemallochost",
    ]
    .iter()
    .any(|name| lower.contains(name))
    {
        message.memory = Memory::Host;
        message.allocator = Some("pinned memory".to_owned());
    } else {
        message.device = device(&line.near().to_ascii_lowercase());
    }
    or_join(before, message)
}

fn status(
    line: &Line<'_>,
    program: Program,
    kind: MessageKind,
    before: Option<&mut OomMessage>,
) -> Option<OomMessage> {
    let mut message = line.message(program, kind);
    message.device = device(&line.near().to_ascii_lowercase());
    message.host = after(line.from, "; hostname=").and_then(word);
    or_join(before, message)
}

#[cfg(test)]
mod tests {
    use crate::text::tests::one;
    use crate::text::{Memory, Program};

    #[test]
    fn a_status_says_where_but_not_how_much() {
        let message =
            one("CUDA failure 2: out of memory ; GPU=1 ; hostname=box ; expr=cudaMalloc(p)");
        assert_eq!(message.program, Program::Cuda);
        assert_eq!(message.device, Some(1));
        assert_eq!(message.host.as_deref(), Some("box"));
        assert_eq!(message.requested, None);
    }

    #[test]
    fn one_status_of_cudnn_is_about_the_host() {
        let message = one("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED");
        assert_eq!(
            (message.program, message.memory),
            (Program::Cudnn, Memory::Host)
        );
    }
}
