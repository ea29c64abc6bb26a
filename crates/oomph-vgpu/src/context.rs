//! Memory outside the allocator: the context, loaded kernels and libraries.
//!
//! A real GPU charges these lazily, at the first use of each thing. The amounts come with the
//! configuration: measured for some GPUs, estimated for the others.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::Config;
use crate::sync::Mutex;
use crate::{device, inner};

/// Bytes of stack that each thread has from the start (`cudaLimitStackSize`); a context is measured with these.
pub const STACK: u32 = 1024;

/// A thing that costs device memory when it first happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Charge {
    /// The context itself.
    Context,
    /// The first kernel of PyTorch's: most of its modules check indices on the device (`assert`), for which the driver makes
    /// room, with the first code.
    FirstKernel,
    /// The first code: a granule, whoever's kernel it is.
    FirstCode,
    /// A cuBLAS handle; each thread that multiplies matrices makes one.
    CublasHandle,
    /// The first matrix product.
    FirstMatmul,
    /// A cuDNN handle; each thread that uses cuDNN makes one.
    CudnnHandle,
    /// The first Fourier transform.
    FirstFft,
    /// The first Fourier transform of lines by Bluestein's algorithm.
    FirstBluestein,
    /// A stream.
    Stream,
    /// A cuSOLVER handle.
    CusolverHandle,
    /// A cuSPARSE handle.
    CusparseHandle,
    /// The first NCCL communicator of a process.
    NcclFirst,
    /// Creating an NCCL communicator. NCCL does this on request, PyTorch at its first use.
    NcclCommunicator,
    /// The first collective of a process.
    NcclFirstCollective,
    /// The first collective of a communicator: its channels and their buffers.
    NcclCollective,
    /// The first broadcast of a process.
    NcclBroadcast,
    /// The first collective of a communicator of one rank.
    NcclAlone,
    /// The first message of a process.
    NcclFirstMessage,
    /// The first message to a rank.
    NcclSend,
    /// The first message from a rank.
    NcclReceive,
}

impl Charge {
    const ALL: [Self; 20] = [
        Self::Context,
        Self::FirstKernel,
        Self::FirstCode,
        Self::CublasHandle,
        Self::FirstMatmul,
        Self::CudnnHandle,
        Self::FirstFft,
        Self::FirstBluestein,
        Self::Stream,
        Self::CusolverHandle,
        Self::CusparseHandle,
        Self::NcclFirst,
        Self::NcclCommunicator,
        Self::NcclFirstCollective,
        Self::NcclCollective,
        Self::NcclBroadcast,
        Self::NcclAlone,
        Self::NcclFirstMessage,
        Self::NcclSend,
        Self::NcclReceive,
    ];

    /// A first communicator with its first collective: what the configuration states of NCCL, and
    /// what its parts are in proportion to.
    const NCCL: [Self; 4] = [
        Self::NcclFirst,
        Self::NcclCommunicator,
        Self::NcclFirstCollective,
        Self::NcclCollective,
    ];

    /// The configuration key with its bytes.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Context => "context.base_bytes",
            Self::FirstKernel => "context.first_kernel_bytes",
            Self::FirstCode => "context.first_code_bytes",
            Self::CublasHandle => "context.cublas_handle_bytes",
            Self::FirstMatmul => "context.first_matmul_bytes",
            Self::CudnnHandle => "context.cudnn_handle_bytes",
            Self::FirstFft => "context.first_fft_bytes",
            Self::FirstBluestein => "context.first_bluestein_bytes",
            Self::Stream => "context.stream_bytes",
            Self::CusolverHandle => "context.cusolver_handle_bytes",
            Self::CusparseHandle => "context.cusparse_handle_bytes",
            Self::NcclFirst
            | Self::NcclCommunicator
            | Self::NcclFirstCollective
            | Self::NcclCollective
            | Self::NcclBroadcast
            | Self::NcclAlone
            | Self::NcclFirstMessage
            | Self::NcclSend
            | Self::NcclReceive => "context.nccl_communicator_bytes",
        }
    }

    /// Whether it is charged each time, not only the first.
    const fn repeats(self) -> bool {
        matches!(
            self,
            Self::CublasHandle
                | Self::CudnnHandle
                | Self::Stream
                | Self::CusolverHandle
                | Self::CusparseHandle
                | Self::NcclCommunicator
                | Self::NcclCollective
                | Self::NcclAlone
                | Self::NcclSend
                | Self::NcclReceive
        )
    }

    /// Measured on an H200 with driver 580 and torch 2.11.0: `bench/gpu/calibrate.py`; NCCL 2.28.9
    /// between two of them: `bench/gpu/results/h200_x2_distributed.jsonl`, modes `nccl` and `pp`.
    const fn default_bytes(self) -> u64 {
        const MIB: u64 = 1 << 20;
        match self {
            Self::Context => 552_402_944,
            Self::FirstKernel => 92 * MIB,
            Self::CublasHandle | Self::NcclSend => 64 * MIB,
            Self::FirstMatmul | Self::FirstCode => 2 * MIB,
            Self::CudnnHandle => 10 * MIB,
            Self::CusolverHandle => 96 * MIB,
            Self::FirstFft => 8 * MIB,
            Self::FirstBluestein => 6 * MIB,
            Self::Stream => 573_440,
            Self::CusparseHandle => 0,
            Self::NcclFirst => 98 * MIB,
            Self::NcclCommunicator => 198 * MIB,
            Self::NcclFirstCollective => 186 * MIB,
            Self::NcclCollective => 288 * MIB,
            Self::NcclBroadcast => 4 * MIB,
            Self::NcclAlone => 190 * MIB,
            Self::NcclFirstMessage => 60 * MIB,
            Self::NcclReceive => 320 * MIB,
        }
    }

    fn is_nccl(self) -> bool {
        self.key() == Self::NcclCommunicator.key()
    }

    /// The bytes that a configuration gives it.
    fn bytes(self, config: &Config) -> u64 {
        let own = self.default_bytes();
        if self == Self::FirstKernel {
            let code = Self::FirstCode.bytes(config);
            config.number(self.key(), own).saturating_sub(code)
        } else if self.is_nccl() {
            let whole: u64 = Self::NCCL.iter().map(|part| part.default_bytes()).sum();
            own * config.number(self.key(), whole) / whole
        } else {
            config.number(self.key(), own)
        }
    }
}

/// The amounts, and which were already charged.
#[derive(Debug)]
pub struct ContextCosts {
    bytes: [u64; Charge::ALL.len()],
    charged: Mutex<HashSet<(u32, Charge)>>,
    /// Whether device 0 has run a kernel of PyTorch's, and another one.
    seen: [AtomicBool; 2],
    /// Bytes of stack that a device's threads have, where that is more than [`STACK`].
    stacks: Mutex<HashMap<u32, u32>>,
}

impl ContextCosts {
    pub fn new(config: &Config) -> Self {
        Self {
            bytes: Charge::ALL.map(|charge| charge.bytes(config)),
            charged: Mutex::new(HashSet::new()),
            seen: [const { AtomicBool::new(false) }; 2],
            stacks: Mutex::new(HashMap::new()),
        }
    }

    /// Charges `what` to `device`, if it is due.
    pub fn charge(&self, device: u32, what: Charge) {
        // What a library does for itself is part of its handle's measured cost.
        if inner::is_inside() {
            return;
        }
        let first = self.charged.lock().insert((device, what));
        if first || what.repeats() {
            let bytes = self.bytes[what as usize];
            if let Some(gpu) = device::machine().devices.get(device as usize) {
                gpu.memory.lock().charge_context(bytes);
            }
        }
    }

    /// Creates the context on `device`, unless it is there; false if there is no room for it.
    pub fn create(&self, device: u32) -> bool {
        if inner::is_inside() {
            return true;
        }
        let mut charged = self.charged.lock();
        if charged.contains(&(device, Charge::Context)) {
            return true;
        }
        let bytes = self.bytes[Charge::Context as usize];
        let created = device::machine()
            .devices
            .get(device as usize)
            .is_none_or(|gpu| gpu.memory.lock().create_context(bytes));
        if created {
            charged.insert((device, Charge::Context));
        }
        created
    }

    /// Gives each thread that `device` can hold at least `bytes` of stack; false if there is no room.
    ///
    /// The driver keeps one piece of memory for all of them, however few a launch has, and it only ever grows (`bench/gpu/local_memory.py`).
    pub fn make_stacks(&self, device: u32, bytes: u32) -> bool {
        const GRANULE: u64 = 2 << 20;
        const ALIGNMENT: u32 = 16;
        let machine = device::machine();
        let Some(gpu) = machine.devices.get(device as usize) else {
            return true;
        };
        let properties = &machine.properties;
        let threads = properties.sm_count as u64 * properties.max_threads_per_sm as u64;
        let whole = |bytes: u32| u64::from(bytes) * threads / GRANULE * GRANULE;
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let mut stacks = self.stacks.lock();
        let has = stacks.entry(device).or_insert(STACK);
        if bytes > *has {
            if !gpu.memory.lock().take_context(whole(bytes) - whole(*has)) {
                return false;
            }
            *has = bytes;
        }
        true
    }

    /// Bytes of stack that each thread of `device` has.
    pub fn stack(&self, device: u32) -> u32 {
        self.stacks.lock().get(&device).copied().unwrap_or(STACK)
    }

    /// Whether `what` was charged to `device`.
    pub fn has(&self, device: u32, what: Charge) -> bool {
        self.charged.lock().contains(&(device, what))
    }

    /// Charges the first kernel, `of_torch` or another; cheap enough for every launch.
    pub fn kernel_launched(&self, device: u32, of_torch: bool) {
        if device == 0 && self.seen[usize::from(of_torch)].swap(true, Ordering::Relaxed) {
            return;
        }
        self.charge(device, Charge::FirstCode);
        if of_torch {
            self.charge(device, Charge::FirstKernel);
            if let Some(gpu) = device::machine().devices.get(device as usize) {
                gpu.memory.lock().resize_stacks();
            }
        }
    }
}
