//! `split_batch`: a job that infers runs a part of the batch at a time.
//!
//! Memory: what flows through the models is a part's, but for what goes into them and comes out.
//! Time: as many times the launches. Results: to rounding.

use rustc_hash::FxHashSet as HashSet;

use oomph_trace::Category;

use crate::draft::Draft;
use crate::model::Model;

/// Into how many parts a batch may go.
const PARTS: [u32; 4] = [2, 4, 8, 16];

/// The numbers of parts that could be chosen.
pub(crate) fn offered(model: &Model) -> Vec<u32> {
    let splits = !model.trains && !model.facts.compiled && !model.facts.cache;
    PARTS
        .into_iter()
        .filter(|&parts| splits && u64::from(parts) <= model.batch)
        .collect()
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>, parts: u32) {
    let model = draft.model;
    let parts = u64::from(parts.max(1));
    let whole: HashSet<u32> = model
        .calls
        .iter()
        .filter(|call| call.parent == 0)
        .flat_map(|call| call.inputs.iter().chain(&call.outputs))
        .copied()
        .collect();
    for (number, tensor) in (0..).zip(&mut draft.template.tensors) {
        if tensor.batched
            && tensor.call != 0
            && tensor.category != Category::Input
            && !whole.contains(&number)
        {
            tensor.bytes = tensor.bytes.div_ceil(parts);
        }
    }
    draft.repeats *= parts as f64;
    let more = (parts - 1) as f64 * draft.body.launches;
    draft.body.launches += more;
    draft.body.calls *= parts as f64;
    draft.body.busy += more * draft.pace().launch_ns;
}
