//! `stream_frozen`: weights that are not trained wait in host memory while a job trains: a base under adapters, a backbone, a teacher.
//!
//! Memory: those weights go, and memory for two of the modules stays. Time: the link's, once for the forward and, where gradients
//! go through a module, once for the backward pass, as far as computing in these modules does not hide it. Results: exact.

use serde::{Deserialize, Serialize};

use crate::by_hand::Script;
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage, places};
use crate::levers::Lever;
use crate::model::Model;
use crate::search::Options;
use crate::sharding::Sharing;
use crate::streamed::{self, SMALLEST, frozen, take, waits};

/// Less than this part of the budget is not worth it.
const WORTH: u64 = 20;

/// Training with frozen weights of modules in host memory, brought ahead of their use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamFrozen {
    /// The modules.
    pub modules: Vec<String>,
}

impl Facets for StreamFrozen {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        format!("stream frozen weights of {}", places(&self.modules))
    }

    fn order() -> u32 {
        60 // inside of checkpointing: what is computed again needs its weights, too
    }

    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        Some(&mut self.modules)
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Weights)
    }

    fn candidates(model: &Model, options: &Options) -> Vec<Self> {
        let (modules, bytes) = streamed::blocks_with(model, &frozen(model), 0);
        let offered = bytes > 0 && bytes >= options.budget / WORTH;
        offered.then_some(Self { modules }).into_iter().collect()
    }

    fn goes_with(&self, others: &[Lever]) -> bool {
        !streamed::is_taken_apart(&self.modules, others)
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn leave_to(&mut self, blocks: &[String]) -> bool {
        streamed::leave_to(&mut self.modules, blocks)
    }

    fn lessens_evaluation(&self) -> bool {
        true
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let frozen = frozen(draft.model);
        let held = take(draft, &self.modules, SMALLEST, |owner| {
            frozen.contains(owner)
        });
        waits(draft, &self.modules, &held);
    }

    fn snippet(&self) -> String {
        streamed::snippet(&self.modules)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Pace;
    use crate::levers::tests::job;
    use crate::model::Event;
    use oomph_run::record::Module;

    const MIB: u64 = 1 << 20;

    #[test]
    fn frozen_blocks_are_offered_where_they_are_worth_it() {
        let offered = |model: &Model, budget| {
            let options = Options {
                budget,
                ..Options::default()
            };
            StreamFrozen::candidates(model, &options).pop()
        };
        let mut model = job(1.0, true);
        let found = offered(&model, 4000 * MIB).unwrap();
        assert_eq!(
            found.modules,
            ["Net.blocks.0", "Net.blocks.1", "Net.blocks.2"]
        );
        assert_eq!(offered(&model, 7000 * MIB), None);
        // Computing a part of a block again would not find its weights there.
        let mut left = found.clone();
        assert!(left.leave_to(&["Net.blocks.1.fc".to_owned(), "Net.blocks.2".to_owned()]));
        assert_eq!(left.modules, ["Net.blocks.0", "Net.blocks.2"]);
        // The same names once more, trained: a copy that follows.
        for index in 0..model.modules.len() {
            let module = &model.modules[index];
            let trained = module.parameters;
            let module = Module {
                trained,
                ..module.clone()
            };
            model.modules.push(module);
        }
        assert_eq!(offered(&model, 4000 * MIB), None);
    }

    #[test]
    fn two_blocks_stay_and_the_link_is_waited_for_where_nothing_hides_it() {
        let waits = |computing: f64, backward: bool| {
            let model = job(computing, backward);
            let pace = Pace {
                link_bytes_per_s: 100.0 * MIB as f64,
                ..Pace::default()
            };
            let mut draft = Draft::new(&model, pace);
            let modules = [0, 1, 2].map(|index| format!("Net.blocks.{index}"));
            StreamFrozen {
                modules: modules.to_vec(),
            }
            .apply(&mut draft);
            let left = draft.template.setup.iter().map(|event| match event {
                Event::Alloc(number) => draft.template.tensors[*number as usize].bytes,
                _ => 0,
            });
            assert_eq!(left.sum::<u64>(), 300 * MIB, "the head and two blocks");
            draft.waits / 1e9
        };
        // Each way one of three blocks comes anew; without a backward pass all three, once.
        assert!((waits(0.0, true) - 2.0).abs() < 1e-6);
        assert!((waits(0.0, false) - 3.0).abs() < 1e-6);
        assert!((waits(0.1e9, true) - 1.4).abs() < 1e-6);
        assert!(waits(1e9, true).abs() < 1e-6);
    }
}
