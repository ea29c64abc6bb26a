//! `micro_batch`: a batch in parts, one after the other, with the gradients accumulated.
//!
//! Memory: what grows with the batch shrinks to the largest part's; gradients stay from the first
//! part on. Time: each kernel once a part, on fewer samples, and the gradients added. Results: to
//! rounding for losses that are means over samples; not where a layer looks at the whole batch.

use crate::draft::Draft;
use crate::model::Model;

/// The most parts.
const MOST: u64 = 64;

/// The numbers of parts that are worth trying: each makes the largest part smaller.
pub(crate) fn offered(model: &Model) -> Vec<u32> {
    if !model.trains
        || model.batch < 2
        || model.facts.closure
        || model.facts.compiled
        || couples(model)
    {
        return Vec::new();
    }
    let mut parts = Vec::new();
    let mut size = model.batch;
    for count in 2..=model.batch.min(MOST) {
        let largest = model.batch.div_ceil(count);
        if largest < size {
            size = largest;
            // Steps of a quarter or more, as every part costs launches.
            if parts
                .last()
                .is_none_or(|&last| count * 4 >= u64::from(last) * 5)
            {
                parts.push(count as u32);
            }
        }
    }
    parts
}

/// Whether a layer looks at the whole batch.
pub(crate) fn couples(model: &Model) -> bool {
    model.modules.iter().any(|module| module.coupled)
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>, parts: u32) {
    draft.template.parts = parts.max(1);
}
