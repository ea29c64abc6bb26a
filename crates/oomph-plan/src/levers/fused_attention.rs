//! `fused_attention`: attention that is written out becomes one kernel.
//!
//! Memory and time: less of both, as scores exist in neither pass; how much less, a run tells. Results: to rounding. What is
//! certain to be attention is found out where it is (`python/oomph/levers/fused_attention.py`).

use rustc_hash::FxHashSet as HashSet;
use serde::{Deserialize, Serialize};

use oomph_trace::Phase;

use crate::by_hand::Script;
use crate::lever::{Facets, Results, Stage, comments};
use crate::model::Model;
use crate::search::Options;

/// Operators that multiply queries by keys.
const PRODUCTS: [&str; 4] = ["::bmm", "::baddbmm", "::matmul", "::einsum"];
/// Less in scores, all together, is not worth a run.
const LEAST_BYTES: u64 = 64 << 20;

/// Nanoseconds of the host for a module: its operators are looked at in Python until it is certain that they are attention (12 modules, two
/// plans, `bench/gpu/results/h200_levers_host.jsonl` and `h200_fit_twelve.jsonl`).
const HOST_NS: f64 = 500_000.0;

/// Attention that is written out becomes one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FusedAttention {
    /// Whose forward writes it out.
    pub modules: Vec<String>,
}

impl Facets for FusedAttention {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        format!("fused attention ({} modules)", self.modules.len())
    }

    fn order() -> u32 {
        80 // inside of checkpointing, offloading and recomputation
    }

    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        Some(&mut self.modules)
    }

    fn stage() -> Stage {
        Stage::Free
    }

    fn host_ns(&self) -> f64 {
        HOST_NS * self.modules.len() as f64
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let modules = written_out(model, false);
        let offered = !modules.is_empty() && !model.facts.compiled;
        offered.then_some(Self { modules }).into_iter().collect()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        if written_out(model, true).is_empty() {
            return None;
        }
        model.compiled(true).or(Some(
            "attention is written out, but its weights are dropped out, of which a kernel would drop others",
        ))
    }

    fn snippet(&self) -> String {
        format!(
            "in the forward of these modules, in place of softmax(q @ k.T * scale + mask) @ v (Hugging Face: attn_implementation=\"sdpa\" where the model is made):\ny = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)\n{}",
            comments(&self.modules)
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["softmax"]).or_else(|| script.model_line())
    }
}

/// The modules whose forward multiplies, takes a softmax of much, and (as `dropped` says) drops some of that out.
fn written_out(model: &Model, dropped: bool) -> Vec<String> {
    let tensors = || {
        let tensors = model.template.tensors.iter();
        tensors.filter(|tensor| matches!(tensor.phase, Phase::Forward | Phase::Inference))
    };
    let multiplies: HashSet<u32> = tensors()
        .filter(|tensor| PRODUCTS.iter().any(|op| model.op(tensor).ends_with(op)))
        .map(|tensor| tensor.call)
        .collect();
    let parent = |call: u32| model.calls.get(call as usize).map_or(0, |call| call.parent);
    // The softmax and the dropout may be modules of their own.
    let around = |call: u32| {
        let calls = [call, parent(call)].into_iter();
        calls
            .filter(|call| *call > 0)
            .find(|call| multiplies.contains(call))
    };
    let drops: HashSet<(Option<u32>, u64)> = tensors()
        .filter(|tensor| model.op(tensor).contains("dropout"))
        .map(|tensor| (around(tensor.call), tensor.bytes))
        .collect();
    let (mut found, mut bytes): (Vec<String>, u64) = (Vec::new(), 0);
    for tensor in tensors() {
        let op = model.op(tensor);
        if !op.contains("softmax") || op.contains("log_softmax") {
            continue;
        }
        let Some(call) = around(tensor.call) else {
            continue;
        };
        if drops.contains(&(Some(call), tensor.bytes)) != dropped {
            continue;
        }
        let Some(call) = model.calls.get(call as usize) else {
            continue;
        };
        bytes += tensor.bytes;
        if !found.contains(&call.module) {
            found.push(call.module.clone());
        }
    }
    if bytes < LEAST_BYTES {
        found.clear();
    }
    found
}

#[cfg(test)]
mod tests {
    use oomph_trace::Category;

    use super::*;
    use crate::model::{Call, Tensor};

    /// A module that multiplies, with a softmax of `bytes` and a dropout of as much (if any) in modules of its own.
    fn job(bytes: u64, drops: bool) -> Model {
        let tensor = |op: u32, call: u32, phase: Phase| Tensor {
            bytes,
            stream: 0,
            category: Category::Activation,
            phase,
            call,
            op,
            scope: 0,
            batched: true,
        };
        let call = |module: &str, parent: u32| Call {
            module: module.to_owned(),
            parent,
            ..Call::default()
        };
        let ops = [
            "aten::bmm",
            "aten::_softmax",
            "aten::native_dropout",
            "aten::_log_softmax",
        ];
        let mut model = Model {
            calls: vec![
                Call::default(),
                call("Net.attn", 0),
                call("Net.attn.soft", 1),
                call("Net.attn.drop", 1),
                call("Net.loss", 0),
            ],
            ops: ops.map(str::to_owned).to_vec(),
            trains: true,
            ..Model::default()
        };
        model.template.tensors = vec![
            tensor(0, 1, Phase::Forward),
            tensor(1, 2, Phase::Forward),
            // Neither is attention.
            tensor(1, 4, Phase::Forward),
            tensor(3, 2, Phase::Forward),
        ];
        if drops {
            model.template.tensors.push(tensor(2, 3, Phase::Forward));
        }
        model
    }

    #[test]
    fn offered_where_scores_are_many_and_none_is_dropped() {
        let offered = |model: &Model| FusedAttention::candidates(model, &Options::default());
        let model = job(LEAST_BYTES, false);
        assert_eq!(offered(&model)[0].modules, ["Net.attn"]);
        assert_eq!(FusedAttention::excluded(&model), None);
        assert!(offered(&job(LEAST_BYTES - 1, false)).is_empty());
        let model = job(LEAST_BYTES, true);
        assert!(offered(&model).is_empty());
        assert!(
            FusedAttention::excluded(&model)
                .unwrap()
                .contains("dropped")
        );
    }
}
