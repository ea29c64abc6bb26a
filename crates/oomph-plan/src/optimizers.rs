//! How optimizers update parameters, by the names of their classes: each parameter by itself, or each element
//! (`python/oomph/levers/_shared/parameter_steps.py`); the record says it of others, which it has tried out. A lever refuses what only
//! has the name of one that does.

use crate::model::Model;

/// Those of PyTorch that update each element of a parameter by itself.
const BY_ELEMENT: [&str; 11] = [
    "Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop",
    "SGD",
];
/// The others that update each parameter by itself, LBFGS, for which levers have a reason of its own, and ends of the names of
/// torchao's.
const OTHERS: [&str; 4] = ["Adafactor", "Muon", "SparseAdam", "LBFGS"];
const BITS: [&str; 3] = ["8bit", "4bit", "Fp8"];

/// Why levers that step parameters one by one are not for a job.
pub(crate) const UNKNOWN: &str =
    "an optimizer does not update each parameter separately, as far as small parameters show";

/// The most bytes of parameters that step together, where what belongs to them is on the host, and of gradients that are under way
/// there (`python/oomph/levers/_shared/parameter_steps.py`).
pub(crate) const AT_ONCE: u64 = 64 << 20;
/// The fewest, as there.
pub(crate) const FEWEST: u64 = 4 << 20;

/// The bytes of parameters that step together, of so many that step: a small optimizer steps in 16 parts, unless they are smaller
/// than 4 MiB.
pub(crate) fn bytes_at_once(all: u64) -> u64 {
    (all / 16).clamp(FEWEST, AT_ONCE)
}

/// Whether an optimizer stepped; a script may change its weights itself.
pub(crate) fn step(model: &Model) -> bool {
    !model.facts.optimizers.is_empty()
}

/// Whether all update each element, or each row, by itself.
pub(crate) fn step_by_element(model: &Model) -> bool {
    let mut optimizers = model.facts.optimizers.iter();
    optimizers
        .all(|one| one.updates.as_deref() == Some("element") || BY_ELEMENT.contains(&&*one.kind))
}

/// Whether all may update each parameter by itself.
pub(crate) fn step_by_parameter(model: &Model) -> bool {
    model.facts.optimizers.iter().all(|one| {
        one.updates.is_some()
            || BY_ELEMENT.contains(&&*one.kind)
            || OTHERS.contains(&&*one.kind)
            || BITS.iter().any(|end| one.kind.ends_with(end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oomph_run::record::Optimizer;

    #[test]
    fn an_optimizer_that_is_not_pytorchs_may_look_at_all_parameters() {
        let model = |kinds: &[&str]| {
            let mut model = Model::default();
            model.facts.optimizers = kinds
                .iter()
                .map(|kind| Optimizer {
                    kind: (*kind).to_owned(),
                    ..Optimizer::default()
                })
                .collect();
            model
        };
        let both = |kinds: &[&str]| {
            let model = model(kinds);
            (step_by_parameter(&model), step_by_element(&model))
        };
        assert_eq!(both(&["AdamW", "SGD"]), (true, true));
        assert_eq!(both(&["AdamW", "Adafactor"]), (true, false));
        assert_eq!(both(&["AdamW8bit"]), (true, false));
        assert_eq!(both(&["Lamb"]), (false, false));
        let mut tried = model(&["Lion"]);
        tried.facts.optimizers[0].updates = Some("element".to_owned());
        assert!(step_by_parameter(&tried) && step_by_element(&tried));
    }
}
