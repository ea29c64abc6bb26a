//! `fused_modules`: modules of several operators become one kernel.
//!
//! Memory and time: less of both; how much less, a run tells. Results: to rounding. Which of the
//! modules named here do what one kernel does is found out where they are
//! (`python/oomph/levers/fused_modules.py`).

use serde::{Deserialize, Serialize};

use crate::by_hand::Script;
use crate::lever::{Facets, Results, Stage, comments};
use crate::model::Model;
use crate::search::Options;

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

/// Modules of several operators become one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FusedModules {
    /// Activations and normalizations.
    pub modules: Vec<String>,
}

/// What the modules are, by their names.
fn kind(modules: &[String]) -> &'static str {
    let all = |words: &[&str]| {
        modules.iter().all(|module| {
            let name = module.rsplit('.').next().unwrap_or_default().to_lowercase();
            words.iter().any(|word| name.contains(word))
        })
    };
    if all(&["gelu"]) {
        "GELU"
    } else if all(&["act", "gelu"]) {
        "activations"
    } else if all(&["norm", "ln"]) {
        "normalizations"
    } else {
        "activations and normalizations"
    }
}

impl Facets for FusedModules {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        let (count, kind) = (self.modules.len(), kind(&self.modules));
        let s = if count == 1 { "" } else { "s" };
        format!("fused {kind} ({count} module{s})")
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

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        if !model.trains || model.facts.compiled {
            return Vec::new();
        }
        let modules = modules(model);
        let offered = !modules.is_empty();
        offered.then_some(Self { modules }).into_iter().collect()
    }

    fn snippet(&self) -> String {
        format!(
            "in the forward of these modules, in place of what is written out:\nreturn torch.nn.functional.gelu(x, approximate=\"tanh\")  # activations by tanh; Hugging Face: config.hidden_act or activation_function = \"gelu_pytorch_tanh\"\nreturn torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)  # RMSNorm\n{}",
            comments(&self.modules)
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }
}

/// The modules that it could be applied to.
fn modules(model: &Model) -> Vec<String> {
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
