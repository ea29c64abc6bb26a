//! `single_threaded_backward`: the thread that calls `backward` runs it, instead of one of autograd's own.
//!
//! Offered where a backward pass multiplies matrices. Memory: cuBLAS has a handle for each thread, outside the
//! allocator, and PyTorch a workspace for each handle; the second of both is not made. Time: none on one GPU, where
//! only one of the threads works at a time. Results: exact.

use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::by_hand::{Script, Work, settings};
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage};
use crate::levers::Lever;
use crate::model::{Event, Model, Template};
use crate::search::Options;
use crate::sharding::Sharing;

/// PyTorch's setting.
const CALL: &str = "torch.autograd.set_multithreading_enabled(False)";

/// `torch.autograd.set_multithreading_enabled(False)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SingleThreadedBackward {}

impl Facets for SingleThreadedBackward {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        "single-threaded backward".to_owned()
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Backward)
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = model.trains && !of_its_thread(&model.template).is_empty();
        offered.then_some(Self {}).into_iter().collect()
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let gone = of_its_thread(&draft.template);
        if gone.is_empty() {
            return;
        }
        draft.outside = draft.outside.saturating_sub(draft.pace().thread_bytes);
        draft
            .template
            .setup
            .retain(|event| !matches!(event, Event::Alloc(number) if gone.contains(number)));
    }

    fn snippet(&self) -> String {
        format!("after the imports:\n{CALL}")
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        work.edit(|script| settings::after_imports(script, &[CALL]))
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.last_import.map(|stmt| script.line(stmt))
    }
}

/// The workspaces that the backward pass makes and that stay: those of its own thread.
fn of_its_thread(template: &Template) -> Vec<u32> {
    let is_one = |number: &u32| {
        template
            .tensors
            .get(*number as usize)
            .is_some_and(|tensor| {
                tensor.category == Category::Workspace && tensor.phase == Phase::Backward
            })
    };
    let made = template.setup.iter().filter_map(|event| match event {
        Event::Alloc(number) => Some(*number),
        _ => None,
    });
    made.filter(is_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Pace;
    use crate::model::Tensor;

    #[test]
    fn what_the_other_thread_would_make_is_not_made() {
        let workspace = |phase| Tensor {
            bytes: 32 << 20,
            stream: 0,
            category: Category::Workspace,
            phase,
            call: 0,
            op: 0,
            scope: 0,
            batched: false,
        };
        let mut model = Model {
            trains: true,
            outside: 700 << 20,
            ..Model::default()
        };
        model.template.tensors = vec![workspace(Phase::Forward)];
        model.template.setup = vec![Event::Alloc(0)];
        let offered =
            |model: &Model| SingleThreadedBackward::candidates(model, &Options::default());
        assert!(
            offered(&model).is_empty(),
            "no product in the backward pass"
        );
        model.template.tensors.push(workspace(Phase::Backward));
        model.template.setup.push(Event::Alloc(1));
        assert_eq!(offered(&model).len(), 1);
        let pace = Pace {
            thread_bytes: 64 << 20,
            ..Pace::default()
        };
        let mut draft = Draft::new(&model, pace);
        SingleThreadedBackward {}.apply(&mut draft);
        assert_eq!(draft.outside, (700 - 64) << 20);
        assert_eq!(draft.template.setup, [Event::Alloc(0)]);
    }
}
