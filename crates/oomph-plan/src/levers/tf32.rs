//! `tf32`: products of fp32 matrices on the tensor cores, with 10 bits of mantissa.
//!
//! Memory: none. Time: it buys back what other levers cost, where the GPU has the cores (compute
//! capability 8.0 and later) and the script leaves them unused. Results: other numerics.

use crate::draft::{Draft, Precision};
use crate::model::Model;

/// Less of a step is not worth other numerics.
const LEAST_GAIN: f64 = 0.05;

/// Whether a step would be quicker by more than a little.
pub(crate) fn offered(model: &Model) -> bool {
    let (busy, quicker) = model.work.iter().fold((0.0, 0.0), |sum, work| {
        (sum.0 + work.busy, sum.1 + work.tf32)
    });
    !model.facts.tf32 && quicker < busy * (1.0 - LEAST_GAIN)
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>) {
    if draft.precision == Precision::AsRecorded {
        draft.set_precision(Precision::Tf32);
    }
}
