//! The levers, one file each, named as in `python/oomph/levers/`: a file has the lever's parameters, as
//! in plan files, and every facet of it ([`Facets`]). A new one is a file here, one there, and its two
//! lines in this file.

mod activation_memory_budget;
mod allocator;
mod attention;
mod checkpoint;
mod chunked_cross_entropy;
mod chunked_logits;
mod chunked_modules;
mod chunked_vmap;
mod compile;
mod cudnn_benchmark;
mod fused_attention;
mod fused_modules;
mod gradients_on_cpu;
mod half_weights;
mod inference_mode;
mod inplace_activations;
mod int8_frozen;
mod int8_linear;
mod jax_settings;
mod kv_cache;
mod load_on_cpu;
mod micro_batch;
mod mixed_precision;
mod net;
mod no_grad_eval;
mod offload_activations;
mod optimizer_8bit;
mod optimizer_on_cpu;
mod optimizer_step;
mod recompute;
mod save_on_cpu;
mod set_to_none;
mod shard;
mod single_threaded_backward;
mod split_batch;
mod split_forward;
mod step_in_backward;
mod stream_frozen;
mod stream_trained;
mod stream_weights;
mod tf32;
mod uncompiled;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::draft::Draft;
use crate::lever::{Dtype, Facets, Group, Results, Stage};
use crate::model::Model;
use crate::search::Options;
use crate::sharding::Sharing;
use crate::units::Sequence;

pub use jax_settings::for_jax;
pub use shard::{data_parallel, on_the_cpu, ways, with_unused};

/// What holds for all levers of a name.
pub(crate) struct Kind {
    /// As in plan files and `--allow`.
    pub(crate) name: &'static str,
    /// Whether a training loop may apply it between two steps.
    pub(crate) is_midway: fn() -> bool,
    /// Whether it can have what checkpointed modules keep.
    pub(crate) takes_arguments: fn() -> bool,
    /// When it steps in.
    order: fn() -> u32,
    /// When the search thinks of it.
    pub(crate) stage: fn() -> Stage,
    /// Why a script's ways rule it out.
    pub(crate) excluded: fn(&Model) -> Option<&'static str>,
    /// What of it is worth trying.
    pub(crate) candidates: fn(&Model, &Options) -> Vec<Lever>,
    /// The modules that it may be for.
    pub(crate) sequence: fn(&Draft<'_>) -> Sequence,
    /// The same with smaller ones.
    pub(crate) finer_sequence: fn(&Draft<'_>) -> Sequence,
    /// The lever for these modules.
    pub(crate) of_modules: fn(Vec<String>) -> Option<Lever>,
}

impl Kind {
    const fn of<L: Facets + Into<Lever>>(name: &'static str) -> Self {
        Self {
            name,
            is_midway: L::is_midway,
            takes_arguments: L::takes_arguments,
            order: L::order,
            stage: L::stage,
            excluded: L::excluded,
            candidates: |model, options| {
                let found = L::candidates(model, options);
                found.into_iter().map(Into::into).collect()
            },
            sequence: L::sequence,
            finer_sequence: L::finer_sequence,
            of_modules: |modules| L::of_modules(modules).map(Into::into),
        }
    }
}

macro_rules! levers {
    ($($(#[$serde:meta])? $module:ident::$lever:ident,)*) => {
        /// One change. Modules are named as `oomph run` names them: the class of the outermost module,
        /// then the path as in `named_modules()`, such as `GPT.blocks.3`.
        #[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
        #[serde(tag = "name", rename_all = "snake_case")]
        #[expect(missing_docs, reason = "each has its own")]
        pub enum Lever {
            $($(#[$serde])? $lever($module::$lever),)*
        }

        /// All levers, in the order in which they are listed.
        pub(crate) const KINDS: &[Kind] = &[
            $(Kind::of::<$module::$lever>(stringify!($module)),)*
        ];

        /// Names of all levers, in the order in which they are listed.
        pub const NAMES: &[&str] = &[$(stringify!($module),)*];

        impl Lever {
            /// Its name, as in plan files and `--allow`.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$lever(_) => stringify!($module),)*
                }
            }

            /// When the search thinks of it.
            pub fn stage(&self) -> Stage {
                match self {
                    $(Self::$lever(_) => $module::$lever::stage(),)*
                }
            }

            /// All there is to say of it.
            pub(crate) fn facets(&self) -> &dyn Facets {
                match self {
                    $(Self::$lever(lever) => lever,)*
                }
            }

            pub(crate) fn facets_mut(&mut self) -> &mut dyn Facets {
                match self {
                    $(Self::$lever(lever) => lever,)*
                }
            }
        }

        $(impl From<$module::$lever> for Lever {
            fn from(lever: $module::$lever) -> Self {
                Self::$lever(lever)
            }
        })*

        /// The parameters of each lever.
        pub mod parameters {
            $(pub use super::$module::$lever;)*
            pub use super::attention::Backend;
            pub use super::int8_linear::Kind as Int8;
            pub use super::optimizer_step::Kind as Step;
        }
    };
}

levers! {
    allocator::Allocator,
    cudnn_benchmark::CudnnBenchmark,
    tf32::Tf32,
    load_on_cpu::LoadOnCpu,
    set_to_none::SetToNone,
    optimizer_step::OptimizerStep,
    no_grad_eval::NoGradEval,
    single_threaded_backward::SingleThreadedBackward,
    inference_mode::InferenceMode,
    inplace_activations::InplaceActivations,
    fused_attention::FusedAttention,
    fused_modules::FusedModules,
    attention::Attention,
    chunked_cross_entropy::ChunkedCrossEntropy,
    chunked_logits::ChunkedLogits,
    mixed_precision::MixedPrecision,
    half_weights::HalfWeights,
    int8_linear::Int8Linear,
    kv_cache::KvCache,
    checkpoint::Checkpoint,
    offload_activations::OffloadActivations,
    save_on_cpu::SaveOnCpu,
    recompute::Recompute,
    uncompiled::Uncompiled,
    activation_memory_budget::ActivationMemoryBudget,
    chunked_modules::ChunkedModules,
    chunked_vmap::ChunkedVmap,
    micro_batch::MicroBatch,
    split_forward::SplitForward,
    split_batch::SplitBatch,
    step_in_backward::StepInBackward,
    gradients_on_cpu::GradientsOnCpu,
    #[serde(rename = "optimizer_8bit")]
    optimizer_8bit::Optimizer8bit,
    optimizer_on_cpu::OptimizerOnCpu,
    stream_weights::StreamWeights,
    stream_frozen::StreamFrozen,
    stream_trained::StreamTrained,
    int8_frozen::Int8Frozen,
    net::Net,
    compile::Compile,
    shard::Shard,
    jax_settings::JaxSettings,
}

/// Names of all levers in the order in which they step in, whatever the plan's.
pub fn application_order() -> Vec<&'static str> {
    let mut kinds: Vec<&Kind> = KINDS.iter().collect();
    kinds.sort_by_key(|kind| (kind.order)());
    kinds.into_iter().map(|kind| kind.name).collect()
}

/// Names of the levers of a group.
pub fn of_group(group: Group) -> impl Iterator<Item = &'static str> {
    let kinds = KINDS.iter();
    let found = kinds.filter(move |kind| (kind.stage)() == Stage::Combined(group));
    found.map(|kind| kind.name)
}

/// Names of the levers that a training loop may apply between two steps.
pub fn midway() -> impl Iterator<Item = &'static str> {
    let kinds = KINDS.iter().filter(|kind| (kind.is_midway)());
    kinds.map(|kind| kind.name)
}

/// Variables that must be in the environment before torch is imported, for all of `levers`. `get` reads
/// the environment as it is.
pub fn environment(
    levers: &[Lever],
    get: &dyn Fn(&str) -> Option<String>,
) -> Vec<(&'static str, String)> {
    let facets = levers.iter().map(Lever::facets);
    facets.flat_map(|lever| lever.environment(get)).collect()
}

/// A few words for a table.
impl fmt::Display for Lever {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.facets().label())
    }
}

impl Lever {
    /// How far the job's results stay the same.
    pub fn results(&self) -> Results {
        self.facets().results()
    }

    /// The modules that it is for, if it names any.
    pub(crate) fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        self.facets_mut().modules_mut()
    }

    /// What a shell starts the script with, where that does all of it.
    pub fn command(&self) -> Option<String> {
        self.facets().command()
    }

    /// Whether it goes together with others.
    pub fn goes_with(&self, others: &[Self]) -> bool {
        self.facets().goes_with(others)
    }

    /// Whether it has to be there before Python starts, which `oomph run` sees to.
    pub fn needs_launcher(&self) -> bool {
        self.facets().needs_launcher()
    }

    /// What a run with it does not tell.
    pub fn unknown(&self) -> Option<&'static str> {
        self.facets().unknown()
    }

    /// Whether a CPU does not show what it does to results.
    pub fn is_only_on_gpu(&self) -> bool {
        self.facets().is_only_on_gpu()
    }

    /// Whether it runs the model on samples before the first step, on fewer where memory is short.
    pub fn looks_at_samples(&self) -> bool {
        self.facets().looks_at_samples()
    }

    /// How it shares the job among GPUs, if it does.
    pub fn sharing(&self) -> Option<Sharing> {
        self.facets().sharing()
    }

    /// The type of fewer bits that models compute in with it, if they do.
    pub fn computes_in(&self) -> Option<Dtype> {
        self.facets().computes_in()
    }

    /// Leaves out those of its modules that were `left` as they are.
    pub fn without(&mut self, left: impl Fn(&str) -> bool) {
        if let Some(modules) = self.modules_mut() {
            modules.retain(|module| !left(module));
        }
    }

    /// Into how many parts it cuts each batch that is trained on, if it does.
    pub fn micro_batches(&self) -> Option<u32> {
        self.facets().micro_batches()
    }

    /// What runs of it teach of: its name, or which of its unlike kinds it is.
    pub(crate) fn taught_as(&self) -> &'static str {
        self.facets().taught_as().unwrap_or(self.name())
    }
}

#[cfg(test)]
mod tests;
