//! `optimizer_step`: the step in one kernel for many tensors, or one parameter after the other.
//!
//! Memory: a step over lists of tensors has temporaries as large as all parameters; a fused one
//! has none, a single one those of one parameter at a time. Time: fewer or more launches. Results:
//! to rounding.

use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::by_hand::{Script, Work, optimizer};
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage, StepChange, Switches};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;

/// Optimizers with a fused implementation on a GPU; Adagrad has one on the CPU alone.
const FUSED: [&str; 3] = ["Adam", "AdamW", "SGD"];

/// How an optimizer goes over its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One kernel for many tensors, without temporaries.
    Fused,
    /// One parameter after the other.
    SingleTensor,
}

/// Another implementation of the optimizer's step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OptimizerStep {
    /// Which.
    pub kind: Kind,
}

impl Facets for OptimizerStep {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        match self.kind {
            Kind::Fused => "fused optimizer",
            Kind::SingleTensor => "single-tensor optimizer",
        }
        .to_owned()
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Optimizer)
    }

    /// What would save memory, or time.
    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        /// Less is not worth one kernel for each parameter.
        const LEAST_BYTES: u64 = 32 << 20;
        let temporaries: u64 = model
            .template
            .tensors
            .iter()
            .filter(|tensor| {
                tensor.phase == Phase::Optimizer && tensor.category == Category::Temporary
            })
            .map(|tensor| tensor.bytes)
            .sum();
        let optimizers = &model.facts.optimizers;
        if !model.trains || optimizers.is_empty() || model.facts.closure {
            return Vec::new();
        }
        let fusable = |kind: &str| FUSED.contains(&kind);
        if optimizers
            .iter()
            .all(|optimizer| !optimizer.fused && fusable(&optimizer.kind))
        {
            return vec![Self { kind: Kind::Fused }];
        }
        let listed = optimizers
            .iter()
            .all(|optimizer| !optimizer.fused && optimizer.foreach != Some(false));
        let single = Self {
            kind: Kind::SingleTensor,
        };
        let offered = listed && temporaries >= LEAST_BYTES;
        offered.then_some(single).into_iter().collect()
    }

    fn step(&self) -> Option<StepChange> {
        (self.kind == Kind::Fused).then_some(StepChange::Fused)
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        /// Parameters of one launch of a fused step.
        const AT_ONCE: f64 = 64.0;
        if self.kind == Kind::SingleTensor {
            draft.step_in_parts(draft.model.parameter_sizes.values().map(Vec::len).sum());
            return;
        }
        draft.without_step_temporaries(false);
        draft.fused = true;
        let model = draft.model;
        let sizes = || model.parameter_sizes.values().flatten();
        let steps = model.work.iter();
        let (before, launches) = steps
            .filter(|work| work.phase == Phase::Optimizer)
            .fold((0.0, 0.0), |sum, work| {
                (sum.0 + work.busy, sum.1 + work.launches)
            });
        // Each value is read and written once, which is what such a kernel waits for.
        let optimizers = model.facts.optimizers.iter();
        let passes = optimizers.map(|optimizer| passes(&optimizer.kind));
        let bytes = sizes().sum::<u64>() as f64 * passes.fold(0.0, f64::max);
        let fewest = (sizes().count() as f64 / AT_ONCE).ceil();
        let after = bytes / draft.pace().memory_bytes_per_s * 1e9 + fewest * draft.pace().launch_ns;
        draft.tail.busy -= (before - after).max(0.0);
        draft.tail.launches -= (launches - fewest).max(0.0);
    }

    fn snippet(&self) -> String {
        format!(
            "where the optimizer is made, add the argument {}",
            self.argument()
        )
    }

    fn place(&self, work: &mut Work<'_>, levers: &[Lever]) -> Option<()> {
        let replaced = levers
            .iter()
            .any(|lever| lever.facets().step() == Some(StepChange::Replaced));
        optimizer::step(work, (!replaced).then(|| self.argument()))
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.optimizer_line()
    }

    fn switches(&self) -> Switches {
        let fused = (self.kind == Kind::Fused).then(|| "\"adamw_torch_fused\"".to_owned());
        Switches {
            huggingface: fused.map(|value| ("optim", value)),
            ..Switches::default()
        }
    }
}

impl OptimizerStep {
    fn argument(&self) -> &'static str {
        match self.kind {
            Kind::Fused => "fused=True",
            Kind::SingleTensor => "foreach=False",
        }
    }
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

#[cfg(test)]
mod tests {
    use oomph_run::record::Optimizer;

    use super::*;
    use crate::model::Tensor;

    #[test]
    fn adagrad_has_no_fused_step_on_a_gpu() {
        let mut model = Model {
            trains: true,
            ..Model::default()
        };
        model.template.tensors.push(Tensor {
            bytes: 1 << 30,
            stream: 0,
            category: Category::Temporary,
            phase: Phase::Optimizer,
            call: 0,
            op: 0,
            scope: 0,
            batched: false,
        });
        let mut offered = |kind: &str| {
            model.facts.optimizers = vec![Optimizer {
                kind: kind.to_owned(),
                ..Optimizer::default()
            }];
            let found = OptimizerStep::candidates(&model, &Options::default());
            found
                .into_iter()
                .map(|found| found.kind)
                .collect::<Vec<_>>()
        };
        assert_eq!(offered("Adagrad"), [Kind::SingleTensor]);
        assert_eq!(offered("AdamW"), [Kind::Fused]);
    }
}
