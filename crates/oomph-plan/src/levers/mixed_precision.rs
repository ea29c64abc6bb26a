//! `mixed_precision`: autocast around the forward pass.
//!
//! Memory: results of products and of what follows them halve, as do their gradients; each weight
//! of a product gets a copy of half its size, which its backward keeps; normalisations and losses
//! stay in fp32. What is added to an fp32 sum becomes fp32 again. Time: the virtual clock's for the
//! same kernels in 16 bits, and the casts. Results: other numerics.
//!
//! Which type each result has follows from rules about operators, not from running them; where the
//! plan matters, a run measures it.

use oomph_trace::{Category, Phase};

use crate::draft::{Draft, Load, Precision};
use crate::model::{Event, Model, Tensor};

/// Operators whose results are 16 bits wide under autocast.
const PRODUCTS: [&str; 8] = [
    "mm",
    "linear",
    "conv",
    "attention",
    "einsum",
    "matmul",
    "rnn",
    "lstm",
];
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

/// Whether the job computes in fp32 so far.
pub(crate) fn offered(model: &Model) -> bool {
    model.trains && model.facts.autocast.is_empty() && !model.facts.compiled && {
        let parameters: u64 = model.modules.iter().map(|module| module.parameters).sum();
        let bytes: u64 = model.parameter_sizes.values().flatten().sum();
        // Four bytes each, where tied ones are counted twice among the modules.
        bytes * 2 > parameters * 5
    }
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>) {
    let model = draft.model;
    // Sums stay wide where a normalisation over features keeps them so; convolutional networks
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

/// Whether an operator multiplies matrices.
pub(crate) fn is_product(op: &str) -> bool {
    PRODUCTS.iter().any(|name| op.contains(name))
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
    if is(&PRODUCTS) || is(&FOLLOWERS) {
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
