//! `inplace_activations`: activation functions write over their inputs.
//!
//! Offered for ReLU and its like, whose backward needs the result only. Memory: input and result
//! become one. Time: none. Results: exact, where PyTorch allows it at all: a run tells.

use rustc_hash::FxHashMap as HashMap;
use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, modules};
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage, comments, places};
use crate::levers::Lever;
use crate::model::{Event, Model};
use crate::search::Options;

/// Modules whose backward needs the result only and that can work in place.
const KINDS: [&str; 6] = ["ReLU", "ReLU6", "LeakyReLU", "ELU", "Hardtanh", "Dropout"];

/// Activation functions write over their inputs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InplaceActivations {
    /// The activation modules.
    pub modules: Vec<String>,
}

impl Facets for InplaceActivations {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        format!("in-place activations in {}", places(&self.modules))
    }

    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        Some(&mut self.modules)
    }

    fn stage() -> Stage {
        Stage::Combined(Group::InPlace)
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        if !model.trains {
            return Vec::new();
        }
        let modules: Vec<String> = model
            .modules
            .iter()
            .filter(|module| module.inplace == Some(false) && KINDS.contains(&module.kind.as_str()))
            // A dropout's backward needs the mask, so its input may go; without noise it does nothing.
            .filter(|module| module.kind != "Dropout")
            .map(|module| module.name.clone())
            .collect();
        let offered = !modules.is_empty();
        offered.then_some(Self { modules }).into_iter().collect()
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        // Result → input.
        let mut same: HashMap<u32, u32> = HashMap::default();
        for call in &draft.model.calls {
            if self.modules.contains(&call.module)
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

    fn snippet(&self) -> String {
        format!(
            "give these modules inplace=True:\n{}",
            comments(&self.modules)
        )
    }

    fn place(&self, work: &mut Work<'_>, levers: &[Lever]) -> Option<()> {
        // What is kept of a block that is computed again must not change.
        let again: Vec<String> = levers
            .iter()
            .filter_map(|other| modules::blocks(other.facets().recomputed()))
            .flatten()
            .map(|block| format!("{block}."))
            .collect();
        let mut paths = modules::paths(&self.modules);
        paths.retain(|path| !again.iter().any(|block| path.starts_with(block)));
        let change = modules::Change {
            paths,
            ..modules::Change::default()
        };
        modules::for_each(work, Some(change), |names| {
            vec![format!("{}.inplace = True", names.module)]
        })
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }
}
