//! `chunked_modules`: modules that compute each row or sample by itself run some at a time.
//!
//! Memory: what is made inside of a call is a part's; its argument, its result and their gradients stay whole. Gradients of
//! weights are there twice: a part's, and their sum. Time: where gradients are recorded its forward pass once more, and each kernel once a part.
//! Results: to rounding.

use rustc_hash::FxHashSet as HashSet;
use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use super::checkpoint::Checkpoint;
use crate::blocks::{self, Edits};
use crate::by_hand::Script;
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage, comments, places};
use crate::model::{Event, Model, Tensor};
use crate::search::Options;
use crate::sharding::Sharing;

/// Into how many parts rows may go.
const CHUNKS: [u32; 2] = [4, 16];
/// What one call makes inside is worth it from this part of the budget on.
const WORTH: u64 = 10;
/// Calls that make less than this part of what the largest does are left alone.
const ALIKE: u64 = 4;
/// A part of an argument has so many bytes at least: products of fewer rows take as long.
const LEAST_PART: u64 = 1 << 20;
/// Operators that work on each row by itself, or may; the lever looks again where it runs (`python/oomph/levers/_shared/rows.py`).
const BY_ROWS: [&str; 45] = [
    "linear",
    "mm",
    "addmm",
    "matmul",
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "pow",
    "sqrt",
    "rsqrt",
    "exp",
    "log",
    "abs",
    "sigmoid",
    "tanh",
    "relu",
    "gelu",
    "silu",
    "mish",
    "elu",
    "leaky_relu",
    "hardtanh",
    "hardswish",
    "softplus",
    "clamp",
    "where",
    "square",
    "mean",
    "sum",
    "softmax",
    "glu",
    "cat",
    "layer_norm",
    "rms_norm",
    "_to_copy",
    "copy",
    "clone",
    "empty_like",
    "fill",
    "_unsafe_view",
    "native_layer_norm",
    "_fused_rms_norm",
    "_softmax",
];

/// Operators that work on each sample by itself: in a module with one of these, that is what goes into parts.
const BY_SAMPLES: [&str; 25] = [
    "convolution",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "_conv_depthwise2d",
    "conv_depthwise3d",
    "slow_conv_transpose2d",
    "slow_conv_transpose3d",
    "slow_conv_dilated2d",
    "slow_conv_dilated3d",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "avg_pool2d",
    "avg_pool3d",
    "_adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "upsample_trilinear3d",
    "constant_pad_nd",
    "reflection_pad2d",
    "replication_pad2d",
    "native_group_norm",
    "im2col",
];

/// Modules that run some rows or samples at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChunkedModules {
    /// The modules.
    pub modules: Vec<String>,
    /// Into how many parts.
    pub chunks: u32,
}

impl Facets for ChunkedModules {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        format!("{} in {} parts", places(&self.modules), self.chunks)
    }

    fn order() -> u32 {
        55 // inside of checkpointing
    }

    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        Some(&mut self.modules)
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Recomputation)
    }

    fn candidates(model: &Model, options: &Options) -> Vec<Self> {
        let found = by_rows(model);
        if model.facts.compiled || found.inside < options.budget / WORTH || found.modules.is_empty()
        {
            return Vec::new();
        }
        let samples = if found.of_samples && model.batch > 0 {
            model.batch
        } else {
            u64::MAX
        };
        CHUNKS
            .into_iter()
            .filter(|&chunks| {
                found.argument >= LEAST_PART * u64::from(chunks) && samples >= u64::from(chunks)
            })
            .map(|chunks| Self {
                modules: found.modules.clone(),
                chunks,
            })
            .collect()
    }

    fn goes_with_sharing(&self, sharing: Sharing) -> bool {
        // Weights are gathered around calls of modules.
        sharing.is_whole()
    }

    fn chunked(&self) -> &[String] {
        &self.modules
    }

    fn checkpointed(&self) -> &[String] {
        &self.modules
    }

    fn lessens_evaluation(&self) -> bool {
        true
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let model = draft.model;
        let chunks = u64::from(self.chunks.max(1));
        let roots = blocks::roots(model, &self.modules);
        let root = |call: u32| roots.get(call as usize).copied().unwrap_or(0);
        let (found, positions) = blocks::find(draft, &self.modules);
        let mut whole: HashSet<u32> = HashSet::default();
        for call in roots
            .iter()
            .filter_map(|&call| model.calls.get(call as usize))
        {
            whole.extend(call.inputs.iter().chain(&call.outputs));
        }
        let mut edits = Edits::default();
        let (mut sums, mut temporary) = (0, Vec::new());
        for block in &found {
            let arguments: u64 = model.calls.get(block.call as usize).map_or(0, |call| {
                let tensors = call.inputs.iter();
                let tensors =
                    tensors.filter_map(|&number| model.template.tensors.get(number as usize));
                tensors.map(|tensor| tensor.bytes).sum()
            });
            let events = draft.template.body.get(block.backward.clone());
            for (at, event) in (block.backward.start..).zip(events.unwrap_or_default().to_vec()) {
                let Event::Alloc(number) = event else {
                    continue;
                };
                let Some(tensor) = draft.template.tensors.get(number as usize).copied() else {
                    continue;
                };
                let freed = positions.frees.get(&number);
                let stays = freed.is_none_or(|&freed| freed >= block.backward.end);
                if tensor.category == Category::Gradient {
                    // A part's beside the sum, which has 4 bytes for each value.
                    sums += tensor.bytes;
                    temporary.push((number, block.backward.clone()));
                } else if stays && tensor.batched && tensor.bytes == arguments {
                    whole.insert(number);
                    // The argument's gradient is filled part by part.
                    edits.drop(at);
                    edits.insert(block.backward.start, event);
                }
            }
        }
        for (number, tensor) in (0..).zip(&mut draft.template.tensors) {
            if root(tensor.call) != 0 && is_inside(tensor) && !whole.contains(&number) {
                tensor.bytes = tensor.bytes.div_ceil(chunks);
            }
        }
        for (number, backward) in temporary {
            if let Some(copy) = blocks::again(&mut draft.template, number) {
                edits.insert(backward.start, Event::Alloc(copy));
                edits.insert(backward.end, Event::Free(copy));
            }
        }
        draft.template.body = edits.apply(&draft.template.body);
        if !found.is_empty() {
            let modules = self.modules.clone();
            Checkpoint { modules }.apply(draft);
        }
        let (mut launches, mut calls) = (0.0, 0.0);
        // What is called without gradients, too, is no more than a part, or goes into parts as large.
        let counts = |phase: Phase| found.is_empty() || phase != Phase::Inference;
        for work in &model.work {
            if root(work.call) != 0 && counts(work.phase) {
                let twice = work.phase == Phase::Forward && !found.is_empty();
                launches += work.launches * if twice { 2.0 } else { 1.0 };
            }
        }
        for (number, call) in (0..).zip(&model.calls) {
            if found.is_empty() && root(number) == number && number != 0 && !call.outputs.is_empty()
            {
                calls += draft.forward_load(number).calls;
            }
        }
        for block in &found {
            calls += 2.0 * draft.forward_load(block.call).calls;
        }
        let more = (chunks - 1) as f64;
        draft.body.launches += more * launches;
        draft.body.calls += more * calls;
        let adding = 3.0 * sums as f64 / draft.pace().memory_bytes_per_s * 1e9;
        draft.body.busy += more * (launches * draft.pace().launch_ns + adding);
    }

    fn snippet(&self) -> String {
        format!(
            "around the call of these modules, which compute each row (dim=-2) or, with convolutions, each sample (dim=0) by itself:\ny = torch.cat([torch.utils.checkpoint.checkpoint(module, part, use_reentrant=False) for part in x.chunk({}, dim)], dim)\n{}",
            self.chunks,
            comments(&self.modules)
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }
}

/// Whether a tensor has rows.
fn is_inside(tensor: &Tensor) -> bool {
    tensor.batched && tensor.category != Category::Input
}

/// Modules that could go into parts.
struct ByRows {
    /// The outermost ones that seem to compute each row or sample by itself and make most inside.
    modules: Vec<String>,
    /// The most that a call of one makes, in bytes.
    inside: u64,
    /// The least bytes of an argument of theirs.
    argument: u64,
    /// Whether some of them have parts of samples.
    of_samples: bool,
}

fn by_rows(model: &Model) -> ByRows {
    let count = model.calls.len();
    let parent = |call: usize| model.calls.get(call).map_or(0, |call| call.parent as usize);
    // Calls with operators that do not, or that may not; and those that do so for samples.
    let mut other = vec![false; count];
    let mut of_samples = vec![false; count];
    for work in &model.work {
        let op = model.ops.get(work.op as usize).map_or("", String::as_str);
        let op = op.rsplit("::").next().unwrap_or(op);
        let op = op.trim_end_matches('_');
        if work.launches > 0.0
            && matches!(work.phase, Phase::Forward | Phase::Inference)
            && !BY_ROWS.contains(&op)
        {
            let kinds = if BY_SAMPLES.contains(&op) {
                &mut of_samples
            } else {
                &mut other
            };
            let calls = std::iter::successors(Some(work.call as usize), |&call| Some(parent(call)));
            for call in calls.take_while(|&call| call != 0) {
                if let Some(slot) = kinds.get_mut(call) {
                    *slot = true;
                }
            }
        }
    }
    let size = |number: &u32| {
        let tensor = model.template.tensors.get(*number as usize);
        tensor.map_or(0, |tensor| tensor.bytes)
    };
    // The outermost call of its kind around each.
    let mut around = vec![0; count];
    let mut made = vec![0; count];
    for (number, call) in model.calls.iter().enumerate().skip(1) {
        let above = around.get(call.parent as usize).copied().unwrap_or(0);
        let alone = call.inputs.len() == 1 && call.outputs.len() == 1;
        let fits = alone && !other.get(number).copied().unwrap_or(true);
        if let Some(slot) = around.get_mut(number) {
            *slot = if above != 0 || !fits { above } else { number };
        }
    }
    for (number, tensor) in (0..).zip(&model.template.tensors) {
        let call = around.get(tensor.call as usize).copied().unwrap_or(0);
        let is_result = |call: usize| {
            model
                .calls
                .get(call)
                .is_some_and(|call| call.outputs.contains(&number))
        };
        if call != 0
            && is_inside(tensor)
            && matches!(tensor.phase, Phase::Forward | Phase::Inference)
            && !is_result(call)
            && let Some(slot) = made.get_mut(call)
        {
            *slot += tensor.bytes;
        }
    }
    let most = made.iter().copied().max().unwrap_or(0);
    let mut modules: Vec<String> = Vec::new();
    let mut least = u64::MAX;
    for (call, &bytes) in model.calls.iter().zip(&made) {
        if bytes > 0 && bytes >= most / ALIKE {
            least = least.min(call.inputs.iter().map(size).sum());
            if !modules.contains(&call.module) {
                modules.push(call.module.clone());
            }
        }
    }
    // Those that do something else in another call.
    modules.retain(|module| {
        let mut calls = model.calls.iter().zip(&other);
        !calls.any(|(call, other)| *other && call.module == *module)
    });
    let mut calls = model.calls.iter().zip(&of_samples);
    let of_samples = calls.any(|(call, of_samples)| *of_samples && modules.contains(&call.module));
    ByRows {
        modules,
        inside: most,
        argument: least,
        of_samples,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Pace;
    use crate::model::{Call, Work};
    use crate::play::play;
    use oomph_allocator::{Config, Device};

    const MIB: u64 = 1 << 20;

    /// An MLP (64 MiB in and out, twice 256 MiB inside) beside attention, in a step that trains; `op` is what the MLP calls, too.
    fn job(op: &str) -> Model {
        let mut model = Model {
            trains: true,
            batch: 8,
            ops: [op, "aten::mm", "aten::scaled_dot_product_attention"]
                .map(str::to_owned)
                .to_vec(),
            ..Model::default()
        };
        for (module, parent, output) in [
            ("", 0, 0),
            ("Net", 0, 3),
            ("Net.attention", 1, 0),
            ("Net.mlp", 1, 3),
        ] {
            model.calls.push(Call {
                module: module.to_owned(),
                parent,
                inputs: vec![0],
                outputs: vec![output],
            });
        }
        for (mib, category, phase, call) in [
            (64, Category::Activation, Phase::Forward, 1),
            (256, Category::Activation, Phase::Forward, 3),
            (256, Category::Activation, Phase::Forward, 3),
            (64, Category::Activation, Phase::Forward, 3),
            (256, Category::Temporary, Phase::Backward, 3),
            (8, Category::Gradient, Phase::Backward, 3),
            (64, Category::Temporary, Phase::Backward, 3),
        ] {
            model.template.tensors.push(Tensor {
                bytes: mib * MIB,
                stream: 0,
                category,
                phase,
                call,
                op: 1,
                scope: 0,
                batched: category != Category::Gradient,
            });
        }
        let body = &mut model.template.body;
        body.extend([0, 1, 2, 3, 4].map(Event::Alloc));
        body.extend([Event::Free(2), Event::Alloc(5), Event::Free(1)]);
        body.extend([Event::Alloc(6), Event::Free(4)]);
        body.extend([3, 0, 6, 5].map(Event::Free));
        model.template.parts = 1;
        model.template.batch = 1;
        for (call, phase, op) in [
            (3, Phase::Forward, 0),
            (3, Phase::Forward, 1),
            (2, Phase::Forward, 2),
            (3, Phase::Backward, 1),
        ] {
            model.work.push(Work {
                call,
                phase,
                op,
                busy: 1e6,
                halved: 1e6,
                tf32: 1e6,
                launches: 1.0,
            });
        }
        model
    }

    #[test]
    fn the_outermost_modules_by_rows_are_offered_where_they_make_much() {
        let offered = |op: &str, budget: u64| {
            let options = Options {
                budget: budget * MIB,
                ..Options::default()
            };
            ChunkedModules::candidates(&job(op), &options)
        };
        let found = offered("aten::silu", 1000);
        assert_eq!(found.len(), CHUNKS.len());
        assert!(found.iter().all(|lever| lever.modules == ["Net.mlp"]));
        assert!(offered("aten::silu", 6000).is_empty(), "too little");
        for op in [
            "aten::native_dropout",
            "aten::native_batch_norm",
            "aten::cumsum",
        ] {
            assert!(offered(op, 1000).is_empty(), "{op}");
        }
        // A batch of eight samples goes into four parts, and not into sixteen.
        assert_eq!(offered("aten::cudnn_convolution", 1000).len(), 1);
    }

    #[test]
    fn what_is_inside_is_a_parts_and_the_rest_is_whole() {
        let model = job("aten::silu");
        let peak = |chunks: Option<u32>| {
            let mut draft = Draft::new(&model, Pace::default());
            if let Some(chunks) = chunks {
                let modules = vec!["Net.mlp".to_owned()];
                ChunkedModules { modules, chunks }.apply(&mut draft);
            }
            let played = play(&draft.template, &Config::default(), Device::UNLIMITED);
            (played.allocated / MIB, draft.body.launches)
        };
        assert_eq!(peak(None).0, 64 + 256 + 256 + 64 + 256);
        let (four, launches) = peak(Some(4));
        // Argument, result and the argument's gradient; a part of the rest; the weights' gradient twice.
        assert!((6 * 64 - 64..=6 * 64 + 2 * 8).contains(&four), "{four}");
        assert!(peak(Some(16)).0 < four && launches > peak(None).1 * 2.0);
    }
}
