//! `chunked_logits`: of the logits over a vocabulary only those that are looked at, a part at a time.
//!
//! Offered where a linear layer outside of the numbered blocks gives much at once. Memory: those
//! logits are not there as a whole; a run tells. Results: to rounding.

use serde::{Deserialize, Serialize};

use crate::by_hand::Script;
use crate::lever::{Facets, Results, Stage};
use crate::model::Model;
use crate::search::Options;

/// A head's logits below which there is little to save: half of the lever's own bound, which counts
/// numbers, as they may have 16 bits.
const LOGITS: u64 = 32 << 20;

/// Inference with those logits over a vocabulary only that are looked at, a part at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChunkedLogits {}

impl Facets for ChunkedLogits {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        "logits in chunks".to_owned()
    }

    fn order() -> u32 {
        55 // outside of what brings weights, inside of what splits batches
    }

    fn stage() -> Stage {
        Stage::Ladder
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = !model.trains && !model.facts.compiled && has_large_head(model);
        offered.then_some(Self {}).into_iter().collect()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        model.compiled(false)
    }

    fn snippet(&self) -> String {
        "where logits are used, the head on the positions that are needed, or on a part of the rows at a time:\nhidden = model.model(input_ids).last_hidden_state  # without the head\nlogits = model.lm_head(hidden[:, -1])\nchoices = torch.cat([model.lm_head(h).argmax(-1) for h in hidden.flatten(0, 1).split(256)])".to_owned()
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["no_grad", "model"])
    }
}

/// Whether a linear layer that is no part of a numbered block gives much at once.
fn has_large_head(model: &Model) -> bool {
    let heads: Vec<&str> = model
        .modules
        .iter()
        .filter(|module| Model::is_linear(module))
        .map(|module| module.name.as_str())
        .filter(|name| !name.split('.').any(|part| part.parse::<u32>().is_ok()))
        .collect();
    model.template.tensors.iter().any(|tensor| {
        let call = model.calls.get(tensor.call as usize);
        tensor.bytes >= LOGITS && call.is_some_and(|call| heads.contains(&call.module.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Call, Tensor};
    use oomph_run::record;
    use oomph_trace::{Category, Phase};

    #[test]
    fn a_large_head_is_no_part_of_a_block() {
        let layer = |name: &str| record::Module {
            name: name.to_owned(),
            kind: "Linear".to_owned(),
            ..record::Module::default()
        };
        let mut model = Model {
            modules: vec![layer("Net.head")],
            calls: vec![Call::default(), Call::default()],
            ..Model::default()
        };
        model.calls[1].module = "Net.head".to_owned();
        model.template.tensors = vec![Tensor {
            bytes: LOGITS,
            stream: 0,
            category: Category::Activation,
            phase: Phase::Forward,
            call: 1,
            op: 0,
            scope: 0,
            batched: true,
        }];
        let offered = |model: &Model| ChunkedLogits::candidates(model, &Options::default());
        assert_eq!(offered(&model), [ChunkedLogits {}]);
        // A layer of a block widens for what comes next.
        for name in ["Net.blocks.0.up", "Net.other"] {
            model.modules[0].name = name.to_owned();
            model.calls[1].module = "Net.blocks.0.up".to_owned();
            assert!(offered(&model).is_empty());
        }
    }
}
