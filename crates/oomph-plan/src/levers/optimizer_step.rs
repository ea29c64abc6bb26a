//! `optimizer_step`: the step in one kernel for many tensors, or one parameter after the other.
//!
//! Memory: a step over lists of tensors has temporaries as large as all parameters; a fused one
//! has none, a single one those of one parameter at a time. Time: fewer or more launches. Results:
//! to rounding.

use oomph_trace::{Category, Phase};

use crate::draft::Draft;
use crate::lever::OptimizerStep;
use crate::model::{Event, Model};

/// Optimizers with a fused implementation.
const FUSED: [&str; 4] = ["Adam", "AdamW", "SGD", "Adagrad"];

/// What would save memory, or time.
pub(crate) fn offered(model: &Model) -> Option<OptimizerStep> {
    /// Less is not worth one kernel for each parameter.
    const LEAST_BYTES: u64 = 32 << 20;
    let temporaries: u64 = model
        .template
        .tensors
        .iter()
        .filter(|tensor| tensor.phase == Phase::Optimizer && tensor.category == Category::Temporary)
        .map(|tensor| tensor.bytes)
        .sum();
    let optimizers = &model.facts.optimizers;
    if optimizers.is_empty() || model.facts.closure {
        return None;
    }
    let fusable = |kind: &str| FUSED.contains(&kind);
    if optimizers
        .iter()
        .all(|optimizer| !optimizer.fused && fusable(&optimizer.kind))
    {
        return Some(OptimizerStep::Fused);
    }
    let listed = optimizers
        .iter()
        .all(|optimizer| !optimizer.fused && optimizer.foreach != Some(false));
    (listed && temporaries >= LEAST_BYTES).then_some(OptimizerStep::SingleTensor)
}

/// How often a fused step goes over as many bytes as the parameters have: they, their gradients and their
/// state are read, and all but the gradients written.
fn passes(optimizer: &str) -> f64 {
    let states = match optimizer {
        "Adam" | "AdamW" => 2.0,
        _ => 1.0,
    };
    2.0 * (1.0 + states) + 1.0
}

/// Applies the lever.
pub(crate) fn apply(draft: &mut Draft<'_>, kind: OptimizerStep) {
    /// Kernels that a step of one parameter launches.
    const EACH: f64 = 12.0;
    /// Parameters of one launch of a fused step.
    const AT_ONCE: f64 = 64.0;
    let template = &mut draft.template;
    let temporary: Vec<bool> = template
        .tensors
        .iter()
        .map(|tensor| tensor.phase == Phase::Optimizer && tensor.category == Category::Temporary)
        .collect();
    let is = |number: &u32| temporary.get(*number as usize).copied().unwrap_or(false);
    for events in [&mut template.first_tail, &mut template.tail] {
        let mut changed = Vec::with_capacity(events.len());
        for &event in events.iter() {
            match event {
                Event::Alloc(number) if is(&number) => {
                    if kind == OptimizerStep::SingleTensor {
                        changed.extend([event, Event::Free(number)]);
                    }
                }
                Event::Free(number) | Event::FreePrevious(number) if is(&number) => {}
                _ => changed.push(event),
            }
        }
        *events = changed;
    }
    let sizes = || draft.model.parameter_sizes.values().flatten();
    let work = draft.model.work.iter();
    let (before, launches) = work
        .filter(|work| work.phase == Phase::Optimizer)
        .fold((0.0, 0.0), |sum, work| {
            (sum.0 + work.busy, sum.1 + work.launches)
        });
    if kind == OptimizerStep::Fused {
        // Each value is read and written once, which is what such a kernel waits for.
        let passes = draft
            .model
            .facts
            .optimizers
            .iter()
            .map(|optimizer| passes(&optimizer.kind));
        let bytes = sizes().sum::<u64>() as f64 * passes.fold(0.0, f64::max);
        let fewest = (sizes().count() as f64 / AT_ONCE).ceil();
        let after = bytes / draft.pace().memory_bytes_per_s * 1e9 + fewest * draft.pace().launch_ns;
        draft.tail.busy -= (before - after).max(0.0);
        draft.tail.launches -= (launches - fewest).max(0.0);
    }
    if kind == OptimizerStep::SingleTensor {
        let parameters: usize = draft.model.parameter_sizes.values().map(Vec::len).sum();
        draft.tail.launches += parameters as f64 * EACH;
        draft.tail.busy += parameters as f64 * EACH * draft.pace().launch_ns;
    }
}
