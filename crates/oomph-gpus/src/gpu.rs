//! The properties of one GPU.

use std::collections::BTreeMap;
use std::fmt;

/// One GPU model, as the driver would present it on an otherwise empty machine.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Gpu {
    /// The name that oomph prints and accepts first: `rtx-4090`.
    pub id: String,
    /// The driver's name: `NVIDIA GeForce RTX 4090`.
    pub name: String,
    /// Other names under which it is found, before normalization.
    pub aliases: Vec<String>,
    /// `Ada Lovelace`.
    pub architecture: String,
    /// Which market it is made for; GeForce parts run some tensor rates at half speed.
    pub class: Class,
    /// A laptop part: never rented, and its clocks depend on the laptop's power limit.
    pub laptop: bool,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Device memory.
    pub memory: Memory,
    /// Shared memory, registers and thread limits.
    pub limits: Limits,
    /// L2 cache, as the driver reports it.
    pub l2_bytes: u64,
    /// Core and memory clocks.
    pub clocks: Clocks,
    /// Peak bandwidth of the device memory.
    pub bandwidth_bytes_per_s: f64,
    /// Dense arithmetic rates.
    pub rates: Rates,
    /// How data gets in and out.
    pub link: Link,
    /// What a CUDA context takes before and beside the caching allocator.
    pub context: Context,
    /// What it costs, roughly.
    pub cost: Cost,
    /// Where each group of figures comes from.
    pub sources: BTreeMap<Figure, Source>,
}

/// The market a GPU is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Consumer cards. From Turing on, tensor cores that accumulate in fp32 run at half rate.
    Geforce,
    /// RTX A-series, RTX Ada and RTX PRO cards.
    Workstation,
    /// Tesla and its successors.
    DataCenter,
}

impl Class {
    /// As shown to people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Geforce => "GeForce",
            Self::Workstation => "workstation",
            Self::DataCenter => "data center",
        }
    }
}

/// Device memory. Three different numbers go under the name of "the memory of a GPU".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// What CUDA can use: `cudaMemGetInfo`'s total, which equals
    /// `cudaDeviceProp.totalGlobalMem`. PyTorch's "total capacity" is this number.
    pub total_bytes: u64,
    /// What `nvidia-smi` prints: larger, because it includes the driver's own reserve.
    pub smi_bytes: Option<u64>,
    /// What is printed on the box.
    pub nominal_gib: u32,
    /// Whether ECC is on by default.
    pub ecc: bool,
}

/// Limits that hold for a whole architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Shared memory per block without opting in.
    pub shared_per_block: u32,
    /// Shared memory per block after opting in.
    pub shared_per_block_optin: u32,
    /// Shared memory per multiprocessor.
    pub shared_per_sm: u32,
    /// Shared memory that the driver keeps per block.
    pub shared_reserved_per_block: u32,
    /// 32-bit registers per block.
    pub registers_per_block: u32,
    /// 32-bit registers per multiprocessor.
    pub registers_per_sm: u32,
    /// Threads per block.
    pub threads_per_block: u32,
    /// Resident threads per multiprocessor.
    pub threads_per_sm: u32,
    /// Resident blocks per multiprocessor.
    pub blocks_per_sm: u32,
    /// Threads per warp.
    pub warp_size: u32,
    /// Block dimensions.
    pub block_dim: [u32; 3],
    /// Grid dimensions.
    pub grid_dim: [u32; 3],
    /// FP32 lanes per multiprocessor ("CUDA cores").
    pub cores_per_sm: u32,
    /// Asynchronous copy engines.
    pub copy_engines: u32,
}

/// Clocks in MHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Clocks {
    /// Guaranteed core clock.
    pub base_mhz: u32,
    /// Published boost clock.
    pub boost_mhz: u32,
    /// The core clock that the driver reports (`clockRate`): the highest it may boost to.
    pub driver_mhz: u32,
    /// What it holds through long matrix products: the boost clock, but of cards that draw at most the 75 W of their slot, and whose
    /// boost clock is more than twice their base clock, the base clock.
    pub held_mhz: u32,
    /// Memory clock as the driver reports it; data moves twice per cycle.
    pub memory_mhz: u32,
    /// Width of the memory bus.
    pub bus_bits: u32,
}

/// Dense (no structured sparsity) arithmetic rates in operations per second; a multiply-add is
/// two. Sixteen-bit and fp8 rates accumulate in fp32, as PyTorch's matrix products do.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// Single precision outside the tensor cores.
    pub fp32: f64,
    /// TF32 on tensor cores.
    pub tf32: Option<f64>,
    /// Half precision.
    pub fp16: Option<f64>,
    /// bfloat16; `None` where the hardware only emulates it.
    pub bf16: Option<f64>,
    /// 8-bit floating point.
    pub fp8: Option<f64>,
    /// 8-bit integers.
    pub int8: Option<f64>,
}

/// The links of a GPU, in bytes per second in one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Link {
    /// PCI Express generation to the host; 0 where the link is not PCI Express (NVLink-C2C).
    pub pcie_generation: u32,
    /// PCI Express lanes.
    pub pcie_lanes: u32,
    /// Peak host link rate after line coding, one direction.
    pub host_bytes_per_s: f64,
    /// Peak NVLink rate to other GPUs, one direction, all links together.
    pub nvlink_bytes_per_s: Option<f64>,
}

/// Device memory that CUDA and its libraries take outside PyTorch's caching allocator, each when
/// the thing first happens. Handles are made by each thread that needs one: the forward and the
/// backward thread of a training job have one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// Creating the context (`torch.cuda.init()`).
    pub base_bytes: u64,
    /// The first kernel: its module is loaded.
    pub first_kernel_bytes: u64,
    /// A cuBLAS handle, without its workspace, which lies in the allocator.
    pub cublas_handle_bytes: u64,
    /// The first matrix product: its kernels.
    pub first_matmul_bytes: u64,
    /// A cuDNN handle.
    pub cudnn_handle_bytes: u64,
    /// The first Fourier transform.
    pub first_fft_bytes: u64,
    /// A stream.
    pub stream_bytes: u64,
    /// A cuSOLVER handle.
    pub cusolver_handle_bytes: u64,
    /// A cuSPARSE handle.
    pub cusparse_handle_bytes: u64,
    /// A NCCL communicator of two ranks, at its first collective.
    pub nccl_communicator_bytes: u64,
}

impl Context {
    /// What a job on one thread takes that multiplies and convolves: the context, a kernel, one
    /// cuBLAS and one cuDNN handle. A backward thread adds a handle of each.
    pub const fn total_bytes(self) -> u64 {
        self.base_bytes
            + self.first_kernel_bytes
            + self.cublas_handle_bytes
            + self.first_matmul_bytes
            + self.cudnn_handle_bytes
    }
}

/// What a GPU costs. Indicative: good for an order of GPUs, not for a bill.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Cost {
    /// Typical public on-demand price of renting one, US dollars.
    pub usd_per_hour: Option<f64>,
    /// Recommended price at launch, US dollars.
    pub launch_usd: Option<u32>,
    /// When the hourly price was typical, `YYYY-MM`.
    pub as_of: Option<String>,
}

impl Cost {
    /// Hours over which a bought card is written off when no rental price is known: three years
    /// at a quarter of the time in use.
    pub const WRITE_OFF_HOURS: f64 = 3.0 * 365.0 * 24.0 * 0.25;

    /// Dollars per hour for putting GPUs in order: the rental price, else the launch price
    /// spread over [`Self::WRITE_OFF_HOURS`].
    pub fn rank_usd_per_hour(&self) -> Option<f64> {
        self.usd_per_hour.or_else(|| {
            self.launch_usd
                .map(|usd| f64::from(usd) / Self::WRITE_OFF_HOURS)
        })
    }
}

/// The groups of figures that have a source.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize, serde::Serialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Figure {
    /// [`Gpu::memory`].
    Memory,
    /// [`Gpu::limits`].
    Limits,
    /// [`Gpu::sms`].
    Sms,
    /// [`Gpu::l2_bytes`].
    L2,
    /// [`Gpu::clocks`].
    Clocks,
    /// [`Gpu::bandwidth_bytes_per_s`].
    Bandwidth,
    /// [`Gpu::rates`].
    Rates,
    /// [`Gpu::link`].
    Link,
    /// [`Gpu::context`].
    Context,
    /// [`Gpu::cost`].
    Cost,
}

impl Figure {
    /// Every group, in the order of the detail view.
    pub const ALL: [Self; 10] = [
        Self::Memory,
        Self::Sms,
        Self::Limits,
        Self::L2,
        Self::Clocks,
        Self::Bandwidth,
        Self::Rates,
        Self::Link,
        Self::Context,
        Self::Cost,
    ];

    /// As written in the data files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Limits => "limits",
            Self::Sms => "sms",
            Self::L2 => "l2",
            Self::Clocks => "clocks",
            Self::Bandwidth => "bandwidth",
            Self::Rates => "rates",
            Self::Link => "link",
            Self::Context => "context",
            Self::Cost => "cost",
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// Where a group of figures comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// How much it can be relied on.
    pub kind: SourceKind,
    /// Which document, run or rule.
    pub note: String,
}

/// How much a figure can be relied on, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SourceKind {
    /// Read from a real one by this project.
    Measured,
    /// Printed by the driver of a real one and published by its owner.
    Reported,
    /// From the vendor's datasheet, whitepaper, tuning or programming guide, or computed from
    /// figures there.
    Published,
    /// By a stated rule or from its siblings.
    Estimated,
}

impl SourceKind {
    /// As written in the data files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Reported => "reported",
            Self::Published => "published",
            Self::Estimated => "estimated",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl Gpu {
    /// The source of a group of figures. The loader guarantees one for every group.
    pub fn source(&self, figure: Figure) -> Option<&Source> {
        self.sources.get(&figure)
    }

    /// Memory left for PyTorch's caching allocator in a job that multiplies and convolves: the
    /// total less the context.
    pub fn usable_bytes(&self) -> u64 {
        self.memory
            .total_bytes
            .saturating_sub(self.context.total_bytes())
    }

    /// `sm_90`.
    pub fn sm_name(&self) -> String {
        let (major, minor) = self.compute_capability;
        format!("sm_{major}{minor}")
    }
}
