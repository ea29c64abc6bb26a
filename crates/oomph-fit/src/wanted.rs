//! What is wanted of a search.

use oomph_allocator::Config;
use oomph_gpus::GpuSpec;
use oomph_plan::Stop;

use crate::goal::Goal;

/// What is wanted of a search.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent wishes, each a switch of the command line"
)]
pub struct Wanted {
    /// The script and its arguments.
    pub script: Vec<String>,
    /// The GPU, and how many of it.
    pub gpu: GpuSpec,
    /// Its memory in bytes.
    pub total_bytes: u64,
    /// Bytes of it to leave free.
    pub margin_bytes: u64,
    /// Optimizer steps of each run, or passes of a job that infers.
    pub steps: u32,
    /// Which of the plans that fit to choose.
    pub goal: Goal,
    /// Only levers that keep results, exactly or to rounding.
    pub keep_results: bool,
    /// Names of the only levers that may be used; `None` for all.
    pub allow: Option<Vec<String>>,
    /// Names of levers that may not be used.
    pub forbid: Vec<String>,
    /// Whether to treat the script as inference.
    pub inference: bool,
    /// For a job that infers: also with compiled models.
    pub compile: bool,
    /// Sizes of which the largest is asked for.
    pub sizes: Vec<Size>,
    /// Whether to measure smaller jobs where nothing fits.
    pub variants: bool,
    /// Whether to run a job that fits for more steps, as its memory may grow.
    pub watch: bool,
    /// The allocator as the job has it.
    pub allocator: Config,
    /// What says how long steps take; without it the virtual GPU's own clock does.
    pub clock: Option<Clock>,
    /// When to give up.
    pub stop: Stop,
}

/// The GPU and the host whose times count.
#[derive(Debug, Clone)]
pub struct Clock {
    /// The GPU.
    pub gpu: oomph_clock::Figures,
    /// The host.
    pub host: oomph_clock::Host,
}

/// Something that the script could have more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Samples in a batch.
    Batch,
    /// Length of sequences.
    Length,
    /// Rows of images.
    Resolution,
}
