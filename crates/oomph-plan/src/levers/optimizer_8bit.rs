//! `optimizer_8bit`: the optimizer's state in blocks of 8-bit values with a scale each.
//!
//! Memory: a quarter of the state, and a scale of 4 bytes for each 256 values. Time: small, not
//! counted. Results: close.

use oomph_trace::Category;

use crate::draft::Draft;
use crate::model::Model;

/// Values with one scale.
const BLOCK: u64 = 256;
/// State of fewer values stays as it is.
const LEAST_VALUES: u64 = 4096;

/// Whether there is an optimizer with an 8-bit twin.
pub(crate) fn offered(model: &Model) -> bool {
    !model.facts.optimizers.is_empty()
        && model
            .facts
            .optimizers
            .iter()
            .all(|optimizer| matches!(optimizer.kind.as_str(), "Adam" | "AdamW"))
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>) {
    for tensor in &mut draft.template.tensors {
        // State is as wide as its parameter: 4 bytes, or 2.
        if tensor.category == Category::OptimizerState && tensor.bytes / 4 >= LEAST_VALUES {
            let values = tensor.bytes / 4;
            tensor.bytes = values + values.div_ceil(BLOCK) * 4;
        }
    }
}
