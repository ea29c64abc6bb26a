//! The levers of `oomph fit` that fixes point to, by the names that `oomph fit --allow` takes.

use serde::Serialize;

/// A lever's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Lever(&'static str);

impl Lever {
    /// As in plan files.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

macro_rules! levers {
    ($($constant:ident = $name:literal,)*) => {
        $(pub(crate) const $constant: Lever = Lever($name);)*

        /// All of them.
        pub const ALL: &[Lever] = &[$($constant,)*];
    };
}

levers! {
    ALLOCATOR = "allocator",
    ATTENTION = "attention",
    CHECKPOINT = "checkpoint",
    CHUNKED_CROSS_ENTROPY = "chunked_cross_entropy",
    CUDNN_BENCHMARK = "cudnn_benchmark",
    KV_CACHE = "kv_cache",
    LOAD_ON_CPU = "load_on_cpu",
    MICRO_BATCH = "micro_batch",
    MIXED_PRECISION = "mixed_precision",
    OPTIMIZER_8BIT = "optimizer_8bit",
    OPTIMIZER_ON_CPU = "optimizer_on_cpu",
    OPTIMIZER_STEP = "optimizer_step",
    SHARD = "shard",
    STEP_IN_BACKWARD = "step_in_backward",
}
