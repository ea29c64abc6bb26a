//! What the command tells the recorder: `settings.json`, and the variables that lead to it.
//!
//! `python/oomph/_protocol.py` is the other side. Both are compared with `tests/protocol.json`.

use oomph_plan::Lever;
use serde::Serialize;

/// The version of the settings. The recorder refuses any other.
pub const FORMAT: &str = "oomph.settings/1";

/// Variables of the script's environment.
pub mod variables {
    /// The path of `settings.json`, for the process that runs the script. It takes the variable out of
    /// its environment: its children are not this run.
    pub const RUN: &str = "OOMPH_RUN";
    /// The path of `settings.json`, for all processes of a run of several ranks.
    pub const RANKS: &str = "OOMPH_RANKS";
    /// Set for a launcher that oomph knows; the launcher's process takes it out of its environment.
    pub const LAUNCHER: &str = "OOMPH_LAUNCHER";
    /// The path of the socket of a fork server for scripts. Empty: processes are started.
    pub const FORKS: &str = "OOMPH_FORKS";
    /// A file in which the fork server for scripts says what it learned from one. Set by the user.
    pub const FORKS_LOG: &str = "OOMPH_FORKS_LOG";
    /// The path of a plan: the user sets it, for a script without `oomph run` and as the default of `--plan`.
    pub const PLAN: &str = "OOMPH_PLAN";
    /// The path of `virtual-gpu.conf`, which the preloaded library reads.
    pub const VIRTUAL_GPU: &str = "OOMPH_VGPU";
    /// Where what a script on a virtual GPU writes is kept while it runs, and which directories are left alone
    /// (`crates/oomph-overlay/src/settings.rs`).
    pub const OVERLAY: &str = "OOMPH_OVERLAY";
    /// The net is wanted: `on`, or settings for measurements (`crates/oomph-net/src/settings.rs`).
    pub const NET: &str = "OOMPH_NET";
    /// The process of a pytest that was started again with the virtual GPU loaded: the plugin sets it, for itself.
    pub const TESTS: &str = "OOMPH_TESTS";
    /// Begins all of them.
    pub const PREFIX: &str = "OOMPH_";
}

/// The recorder's settings. They are in the run's directory, so they contain no path.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent settings of a run"
)]
pub struct Settings {
    /// [`FORMAT`].
    pub format: &'static str,
    /// Whether the GPU is a virtual one.
    pub r#virtual: bool,
    /// Whether the run has several ranks, each in its own process.
    pub several: bool,
    /// Whether this is one rank of a job whose other ranks are absent.
    pub rehearsal: bool,
    /// Whether the command holds the lock of the run's directory: the script ends when it is released.
    pub locked: bool,
    /// What is recorded, and how.
    #[serde(flatten)]
    pub recording: Recording,
}

/// What to record of a script, and what to change in it. The default changes nothing.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent settings of a run"
)]
pub struct Recording {
    /// The script ends after this many optimizer steps (or passes, for inference).
    pub steps: Option<u32>,
    /// When the script ends after fewer of them.
    pub fewer: Option<Fewer>,
    /// Whether it goes on after them until each of its optimizers has stepped, for some hundred more steps at most.
    pub every_optimizer: bool,
    /// What a plan changes in the script.
    pub levers: Vec<Lever>,
    /// Another job that is like this one; only `oomph fit` asks for it, and says so.
    pub resize: Resize,
    /// How comparisons of uncomputed values resolve: `half`, `all` or `none` of them are true.
    pub unknown: String,
    /// All values are computed, in so many bytes of host memory; without it, small and integral ones.
    pub compute: Option<u64>,
    /// Whether versions of torch are taken that the virtual GPU was not proved with.
    pub unsupported: bool,
    /// Whether the script only infers, even if it builds an optimizer.
    pub inference: bool,
    /// Whether a launcher's ranks are forked from one process that has imported torch.
    pub fork: bool,
    /// Whether the recorder writes ahead what the job does, should it be killed.
    pub black_box: bool,
    /// Keeps or compares outputs instead of recording memory.
    pub drift: Option<Drift>,
    /// What runs in place of the script's text: the script as a patch would make it.
    pub text: Option<String>,
}

/// How comparisons of uncomputed values resolve, unless the user says otherwise.
pub const UNKNOWN: &str = "half";

impl Default for Recording {
    fn default() -> Self {
        Self {
            steps: None,
            fewer: None,
            every_optimizer: false,
            levers: Vec::new(),
            resize: Resize::default(),
            unknown: UNKNOWN.to_owned(),
            compute: None,
            unsupported: false,
            inference: false,
            fork: true,
            black_box: false,
            drift: None,
            text: None,
        }
    }
}

/// When a script ends after fewer steps than it was asked for: as soon as they tell that it needs too much, or where the others
/// would take too long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Fewer {
    /// So many steps it takes at least, unless it needs too much.
    pub steps: u32,
    /// The most that PyTorch's allocator may hold at the end of a step. What holds more ends after the second one, which tells how long
    /// a step takes.
    pub bytes: u64,
    /// The most that it may hold at the end of the first step already.
    pub first_bytes: u64,
    /// The most that all steps that are left may take, in seconds.
    pub seconds: f64,
}

/// One of the two runs whose outputs `oomph drift` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Drift {
    /// Whether it is the second run, with the plan.
    pub planned: bool,
    /// How many calls of models are compared.
    pub calls: u32,
    /// Whether the GPU is hidden, so that the script computes on the CPU. The environment says so.
    #[serde(skip)]
    pub on_cpu: bool,
}

/// How a job is made smaller or larger, to see what that would need. Nothing is changed by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Resize {
    /// Samples in each batch of a data loader.
    pub batch: Option<u64>,
    /// Length of each sequence of a batch.
    pub length: Option<u64>,
    /// Rows of each image that a model is called with.
    pub height: Option<u64>,
    /// The part of the repeated blocks that is kept.
    pub layers: Option<f64>,
    /// The part of each layer's width that is kept.
    pub width: Option<f64>,
    /// Whether convolutions become depthwise separable.
    pub separable: Option<bool>,
    /// How many sizes down in the model's family.
    pub member: Option<u32>,
}
