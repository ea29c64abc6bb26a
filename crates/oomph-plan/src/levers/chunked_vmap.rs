//! `chunked_vmap`: `torch.func.vmap` runs a part of the mapped dimension at a time.
//!
//! Offered where a job that trains calls it. Memory and time: what is computed inside exists for one part at a time, and with
//! gradients there is one more forward pass of it; a run tells. Results: to rounding.

use serde::{Deserialize, Serialize};

use crate::by_hand::Script;
use crate::lever::{Facets, Results, Stage};
use crate::model::Model;
use crate::search::Options;
use crate::sharding::Sharing;

/// Into how many parts it may go, the fewest first.
const PARTS: [u32; 4] = [2, 4, 12, 48];

/// The outermost `torch.func.vmap` in parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChunkedVmap {
    /// How many parts.
    #[schemars(range(min = 2))]
    pub parts: u32,
}

impl Facets for ChunkedVmap {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        format!("vmap in {} parts", self.parts)
    }

    fn stage() -> Stage {
        Stage::Measured
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = model.trains && !model.facts.compiled;
        let all = PARTS.into_iter();
        all.filter(|&parts| offered && u64::from(parts) <= model.facts.mapped)
            .map(|parts| Self { parts })
            .collect()
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn snippet(&self) -> String {
        format!(
            "where the function is mapped, over a dimension of so many entries:\ntorch.func.vmap(function, chunk_size=math.ceil(entries / {}))\n# and where gradients go through it, with torch.utils.checkpoint around each part",
            self.parts
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["vmap"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_parts_are_offered_as_there_are_entries() {
        let parts = |model: &Model| -> Vec<u32> {
            let found = ChunkedVmap::candidates(model, &Options::default());
            found.into_iter().map(|lever| lever.parts).collect()
        };
        let mut model = Model::default();
        model.facts.mapped = 12;
        assert!(parts(&model).is_empty(), "it does not train");
        model.trains = true;
        assert_eq!(parts(&model), [2, 4, 12]);
        model.facts.mapped = 0;
        assert!(parts(&model).is_empty());
    }
}
