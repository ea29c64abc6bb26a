//! `fused_modules`: modules of several operators become one kernel.
//!
//! Memory and time: less of both; how much less, a run tells. Results: to rounding. Which of the
//! modules named here do what one kernel does is found out where they are
//! (`python/oomph/levers/fused_modules.py`).

use crate::model::Model;

/// Parts of the names of classes that write out what PyTorch has a kernel for.
const WRITTEN_OUT: [&str; 6] = [
    "RMSNorm",
    "RmsNorm",
    "T5LayerNorm",
    "NewGELU",
    "FastGELU",
    "GELUTanh",
];
/// Classes that are such a kernel already.
const KERNELS: [&str; 2] = ["RMSNorm", "PytorchGELUTanh"];

/// The modules that it could be applied to.
pub(crate) fn modules(model: &Model) -> Vec<String> {
    // People call their own classes as PyTorch calls its: those have more than one operator inside.
    let operators = |name: &str| {
        let mut found: Vec<u32> = model
            .work
            .iter()
            .filter(|work| {
                let call = model.calls.get(work.call as usize);
                call.is_some_and(|call| call.module == name)
            })
            .map(|work| work.op)
            .collect();
        found.sort_unstable();
        found.dedup();
        found.len()
    };
    let known: rustc_hash::FxHashMap<&str, bool> = KERNELS
        .iter()
        .filter_map(|kind| {
            let first = model.modules.iter().find(|module| module.kind == *kind)?;
            Some((*kind, operators(&first.name) < 4))
        })
        .collect();
    model
        .modules
        .iter()
        .filter(|module| WRITTEN_OUT.iter().any(|part| module.kind.contains(part)))
        .filter(|module| !known.get(module.kind.as_str()).copied().unwrap_or(false))
        .map(|module| module.name.clone())
        .collect()
}
