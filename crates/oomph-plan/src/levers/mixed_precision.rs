//! `mixed_precision`: autocast around the forward pass.
//!
//! Memory: results of products and of what follows them halve, as do their gradients; each weight
//! of a product gets a copy of half its size, which its backward keeps; normalizations and losses
//! stay in fp32. What is added to an fp32 sum becomes fp32 again. Time: the virtual clock's for the
//! same kernels in 16 bits, and the casts. Results: other numerics.
//!
//! Which type each result has follows from rules about operators, not from running them; where the
//! plan matters, a run measures it.

use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::by_hand::{Context, Script, Work, loops};
use crate::draft::{Draft, Load, Precision};
use crate::lever::{Dtype, Facets, Group, Results, Stage, Switches};
use crate::levers::Lever;
use crate::model::{Event, Model, Tensor, is_product};
use crate::search::Options;
use crate::sharding::Sharing;

/// Operators that keep the type of what they are given, which is mostly a product's result.
const FOLLOWERS: [&str; 16] = [
    "gelu",
    "relu",
    "silu",
    "threshold",
    "dropout",
    "mul",
    "clone",
    "cat",
    "batch_norm",
    "pool",
    "select",
    "slice",
    "expand",
    "transpose",
    "tanh",
    "sigmoid",
];
/// Operators that compute in fp32 under autocast.
const WIDE: [&str; 6] = ["softmax", "nll", "loss", "layer_norm", "sum", "norm"];

/// Autocast around the forward pass; with gradient scaling for fp16.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MixedPrecision {
    /// The lower precision.
    pub dtype: Dtype,
}

impl Facets for MixedPrecision {
    fn results(&self) -> Results {
        Results::Numerics
    }

    fn label(&self) -> String {
        match self.dtype {
            Dtype::Bf16 => "bf16 autocast",
            Dtype::Fp16 => "fp16 autocast with scaling",
        }
        .to_owned()
    }

    fn order() -> u32 {
        20
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Precision)
    }

    /// Where the job computes in fp32 so far.
    fn candidates(model: &Model, options: &Options) -> Vec<Self> {
        let offered = model.trains
            && !model.modules.is_empty()
            && model.facts.autocast.is_empty()
            && !model.facts.compiled
            && model.is_fp32();
        let dtype = options.dtype;
        offered.then_some(Self { dtype }).into_iter().collect()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        model.compiled(true)
    }

    fn goes_with_sharing(&self, sharing: Sharing) -> bool {
        // Gathered weights would be kept a second time, cast, until the pass ends.
        sharing.is_whole() && sharing.dtype.is_none() && self.dtype == Dtype::Bf16
    }

    fn computes_in(&self) -> Option<Dtype> {
        Some(self.dtype)
    }

    fn scales_gradients(&self) -> bool {
        self.dtype == Dtype::Fp16
    }

    fn lessens_evaluation(&self) -> bool {
        true
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let model = draft.model;
        // Sums stay wide where a normalization over features keeps them so; convolutional networks
        // add what convolutions made.
        let sums_are_wide = model
            .modules
            .iter()
            .any(|module| module.kind.contains("LayerNorm") || module.kind.contains("RMSNorm"));
        for tensor in &mut draft.template.tensors {
            if narrows(model, tensor, sums_are_wide) {
                tensor.bytes = tensor.bytes.div_ceil(2);
            }
        }
        cast_weights(draft);
        draft.set_precision(Precision::Half);
        draft
            .assumptions
            .push("types under autocast follow rules about operators".to_owned());
    }

    fn snippet(&self) -> String {
        match self.dtype {
            Dtype::Bf16 => "around the model's call and the loss:\nwith torch.autocast(\"cuda\", dtype=torch.bfloat16):\n    ...",
            Dtype::Fp16 => "around the model's call and the loss, with a gradient scaler:\nscaler = torch.amp.GradScaler()\nwith torch.autocast(\"cuda\", dtype=torch.float16):\n    loss = ...\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()",
        }
        .to_owned()
    }

    fn place(&self, work: &mut Work<'_>, levers: &[Lever]) -> Option<()> {
        self.context()?;
        loops::place(work, &self.clone().into(), levers)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.training_line()
    }

    fn context(&self) -> Option<Context> {
        (self.dtype == Dtype::Bf16).then(|| Context {
            text: "torch.autocast(\"cuda\", dtype=torch.bfloat16)".to_owned(),
            import: None,
        })
    }

    fn switches(&self) -> Switches {
        let (name, short, long) = match self.dtype {
            Dtype::Bf16 => ("bf16", "bf16-mixed", "bf16"),
            Dtype::Fp16 => ("fp16", "16-mixed", "fp16"),
        };
        Switches {
            huggingface: Some((name, "True".to_owned())),
            lightning: Some(("precision", format!("{short:?}"))),
            accelerate: Some(("mixed_precision", format!("{long:?}"))),
            needs_run: false,
        }
    }
}

fn narrows(model: &Model, tensor: &Tensor, sums_are_wide: bool) -> bool {
    if !tensor.batched
        || !matches!(tensor.phase, Phase::Forward | Phase::Backward)
        || tensor.category == Category::Input
    {
        return false;
    }
    let op = model.op(tensor);
    let is = |names: &[&str]| names.iter().any(|name| op.contains(name));
    if is(&["softmax", "nll", "loss"]) {
        return false;
    }
    if op.contains("layer_norm") {
        // Its result is cast for the product that takes it.
        return tensor.phase == Phase::Forward;
    }
    if is_product(op) || is(&FOLLOWERS) {
        return true;
    }
    if op.contains("add") {
        return !sums_are_wide;
    }
    !is(&WIDE) && !op.contains("embedding") && !op.contains("_to_copy")
}

/// Each product's weight gets a copy in 16 bits just before its result.
fn cast_weights(draft: &mut Draft<'_>) {
    let model = draft.model;
    let mut body = Vec::with_capacity(draft.template.body.len());
    let mut open: rustc_hash::FxHashMap<u32, u32> = rustc_hash::FxHashMap::default();
    let mut bytes = 0;
    for &event in &draft.template.body {
        if let Event::Alloc(number) = event
            && let Some(&tensor) = draft.template.tensors.get(number as usize)
            && tensor.category != Category::Workspace
            && is_product(model.op(&tensor))
            && let Some(call) = model.calls.get(tensor.call as usize)
            && let Some(size) = model
                .parameter_sizes
                .get(&call.module)
                .and_then(|sizes| sizes.iter().max())
        {
            if tensor.phase == Phase::Forward && !open.contains_key(&tensor.call) {
                let copy = draft.template.tensors.len() as u32;
                draft.template.tensors.push(Tensor {
                    bytes: size.div_ceil(2),
                    batched: false,
                    category: Category::Activation,
                    ..tensor
                });
                open.insert(tensor.call, copy);
                bytes += size;
                body.push(Event::Alloc(copy));
            } else if tensor.phase == Phase::Backward
                && let Some(copy) = open.remove(&tensor.call)
            {
                body.push(event);
                body.push(Event::Free(copy));
                continue;
            }
        }
        body.push(event);
    }
    draft.template.body = body;
    draft.body.add(Load {
        busy: 1.5 * bytes as f64 / draft.pace().memory_bytes_per_s * 1e9,
        ..Load::default()
    });
}
