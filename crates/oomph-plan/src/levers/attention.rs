//! `attention`: a kernel that never writes the matrix of scores.
//!
//! Offered where PyTorch's own attention ran on its plain kernel, which keeps the scores. Memory:
//! what that kernel made goes, but for its result. Time: less, not counted. Results: to rounding.

use oomph_trace::Phase;

use crate::draft::Draft;
use crate::model::{Event, Model};

/// The operator of the plain kernel.
const PLAIN: &str = "_scaled_dot_product_attention_math";

/// Whether the plain kernel ran.
pub(crate) fn offered(model: &Model) -> bool {
    model.ops.iter().any(|op| op.contains(PLAIN))
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>) {
    let Some(plain) = draft.model.ops.iter().position(|op| op.contains(PLAIN)) else {
        return;
    };
    // Scores are the largest that it makes in a call; the result is smaller.
    let scores: Vec<bool> = {
        let tensors = &draft.template.tensors;
        let largest = tensors
            .iter()
            .filter(|tensor| {
                tensor.op == plain as u32
                    && matches!(tensor.phase, Phase::Forward | Phase::Inference)
            })
            .map(|tensor| tensor.bytes)
            .max()
            .unwrap_or(0);
        tensors
            .iter()
            .map(|tensor| tensor.op == plain as u32 && tensor.bytes == largest)
            .collect()
    };
    draft.template.body.retain(|event| match event {
        Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
            !scores.get(*number as usize).copied().unwrap_or(false)
        }
        Event::EmptyCache => true,
    });
}
