//! `allocator`: other settings of PyTorch's caching allocator.
//!
//! Memory: the template stays; it is played with the settings (see [`crate::search`]). Time: none.
//! Results: exact.

use serde::{Deserialize, Serialize};

use oomph_allocator::{Config, VARIABLES};
use oomph_python_source::{Ranged, imports_of};

use crate::by_hand::{Script, Work};
use crate::lever::{Facets, Group, Results, Stage};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;

/// What is tried: segments that can grow leave no holes that nothing fits into.
const EXPANDABLE: &str = "expandable_segments:True";

/// Settings of PyTorch's allocator, as in `PYTORCH_CUDA_ALLOC_CONF`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allocator {
    /// `key:value` pairs, separated by commas.
    pub conf: String,
}

impl Facets for Allocator {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        format!("allocator {}", self.conf)
    }

    fn environment(&self, get: &dyn Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
        let [new, old] = VARIABLES;
        let variable = if get(new).is_some() { new } else { old };
        match get(variable).filter(|text| !text.is_empty()) {
            // A launcher has set it for its ranks.
            Some(before) if before.ends_with(&self.conf) => Vec::new(),
            Some(before) => vec![(variable, format!("{before},{}", self.conf))],
            None => vec![(variable, self.conf.clone())],
        }
    }

    fn is_only_on_gpu(&self) -> bool {
        true
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Allocator)
    }

    fn candidates(_model: &Model, options: &Options) -> Vec<Self> {
        let offered = !options.config.expandable_segments;
        let conf = EXPANDABLE.to_owned();
        offered.then_some(Self { conf }).into_iter().collect()
    }

    fn configure(&self, config: &mut Config) {
        config.expandable_segments |= self.conf == EXPANDABLE;
    }

    fn snippet(&self) -> String {
        format!(
            "set the environment of the script: PYTORCH_CUDA_ALLOC_CONF={}",
            self.conf
        )
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        let sets = format!(
            "os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"{}\"",
            self.conf
        );
        work.edit(|script| {
            let (module, torch) = (script.module, script.torch?);
            let before = module
                .body()
                .iter()
                .take_while(|stmt| stmt.start() < torch.start());
            let mut names = before.flat_map(imports_of);
            let lines = if names.any(|import| import.bound == "os" && import.full == "os") {
                vec![sets]
            } else {
                vec!["import os".to_owned(), sets]
            };
            Some(vec![module.insert_before(torch, &lines)?])
        })
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.torch.map(|stmt| script.line(stmt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_settings_come_first() {
        let lever = Allocator {
            conf: EXPANDABLE.to_owned(),
        };
        let with = |variable: &'static str, value: &'static str| {
            lever.environment(&|name| (name == variable).then(|| value.to_owned()))
        };
        assert_eq!(
            with("", ""),
            [(
                "PYTORCH_CUDA_ALLOC_CONF",
                "expandable_segments:True".to_owned()
            )]
        );
        assert_eq!(
            with("PYTORCH_ALLOC_CONF", "a:1"),
            [(
                "PYTORCH_ALLOC_CONF",
                "a:1,expandable_segments:True".to_owned()
            )]
        );
        assert_eq!(
            with("PYTORCH_ALLOC_CONF", "a:1,expandable_segments:True"),
            []
        );
        assert_eq!(
            with("PYTORCH_ALLOC_CONF", ""),
            [("PYTORCH_ALLOC_CONF", "expandable_segments:True".to_owned())]
        );
    }
}
