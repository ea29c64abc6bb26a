//! `kv_cache`: generation with a cache of keys and values in few bits.
//!
//! Offered where a model generates with a cache. Memory: the cache has a quarter of its bits or half
//! of them; a run tells. Results: other numerics.

use serde::{Deserialize, Serialize};

use crate::by_hand::Script;
use crate::lever::{Facets, Results, Stage};
use crate::model::Model;
use crate::search::Options;

/// The one number of bits that the lever knows.
const BITS: u32 = 8;

/// Generation with a cache of keys and values in few bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KvCache {
    /// How many.
    pub bits: u32,
}

impl Facets for KvCache {
    fn results(&self) -> Results {
        Results::Numerics
    }

    fn label(&self) -> String {
        format!("{}-bit cache of keys and values", self.bits)
    }

    fn stage() -> Stage {
        Stage::Ladder
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = !model.trains && model.facts.cache && !model.facts.compiled;
        let bits = BITS;
        offered.then_some(Self { bits }).into_iter().collect()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        model.compiled(false)
    }

    fn snippet(&self) -> String {
        format!(
            "where tokens are generated (pip install hqq):\nfrom transformers import QuantizedCache\ncache = QuantizedCache(backend=\"hqq\", config=model.config, nbits={})\nmodel.generate(**inputs, past_key_values=cache)",
            self.bits
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.call(&["generate"])
    }
}
