//! `inplace_activations`: activation functions write over their inputs.
//!
//! Offered for ReLU and its like, whose backward needs the result only. Memory: input and result
//! become one. Time: none. Results: exact, where PyTorch allows it at all: a run tells.

use rustc_hash::FxHashMap as HashMap;

use crate::draft::Draft;
use crate::model::{Event, Model};

/// Modules whose backward needs the result only and that can work in place.
const KINDS: [&str; 6] = ["ReLU", "ReLU6", "LeakyReLU", "ELU", "Hardtanh", "Dropout"];

/// The modules that it could be applied to.
pub(crate) fn modules(model: &Model) -> Vec<String> {
    model
        .modules
        .iter()
        .filter(|module| module.inplace == Some(false) && KINDS.contains(&module.kind.as_str()))
        // A dropout's backward needs the mask, so its input may go; without noise it does nothing.
        .filter(|module| module.kind != "Dropout")
        .map(|module| module.name.clone())
        .collect()
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>, modules: &[String]) {
    // Result → input.
    let mut same: HashMap<u32, u32> = HashMap::default();
    for call in &draft.model.calls {
        if modules.contains(&call.module)
            && let (&[input, ..], &[result, ..]) = (&call.inputs[..], &call.outputs[..])
            && input != result
        {
            same.insert(result, same.get(&input).copied().unwrap_or(input));
        }
    }
    let mut frees: HashMap<u32, usize> = HashMap::default();
    for (at, event) in draft.template.body.iter().enumerate() {
        if let Event::Free(number) = event {
            let number = same.get(number).copied().unwrap_or(*number);
            frees.insert(number, at);
        }
    }
    let mut at = 0;
    draft.template.body.retain_mut(|event| {
        let here = at;
        at += 1;
        match event {
            Event::Alloc(number) | Event::FreePrevious(number) => !same.contains_key(number),
            Event::Free(number) => {
                let one = same.get(number).copied().unwrap_or(*number);
                *number = one;
                // The last of the two is when it goes.
                frees.get(&one) == Some(&here)
            }
            Event::EmptyCache => true,
        }
    });
}
