//! Weights of modules that wait in host memory (`python/oomph/levers/_shared/streamed_weights.py`).

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use oomph_trace::{Category, Phase};

use crate::draft::Draft;
use crate::model::{Event, Model, Tensor};
use crate::units;

/// Modules whose weights are on the GPU at a time, as there.
pub(crate) const SLOTS: usize = 2;
/// Smaller tensors stay, as there.
const SMALLEST: u64 = 4 << 10;

/// Which of `modules` a module is, or is inside of.
pub(crate) fn inside(modules: &[String], owner: &str) -> Option<usize> {
    let mut modules = modules.iter();
    modules.position(|module| units::is_inside(owner, module))
}

/// Takes parameters of `modules` from the GPU, where their owner is `chosen`, and puts memory for two of the modules there. The bytes of
/// each.
pub(crate) fn take(
    draft: &mut Draft<'_>,
    modules: &[String],
    chosen: impl Fn(&str) -> bool,
) -> HashMap<usize, u64> {
    let mut held: HashMap<usize, u64> = HashMap::default();
    let mut gone: HashSet<u32> = HashSet::default();
    for (owner, number) in &draft.model.parameters {
        if let Some(block) = inside(modules, owner)
            && chosen(owner)
            && let Some(tensor) = draft.template.tensors.get(*number as usize)
            && tensor.bytes >= SMALLEST
            && gone.insert(*number)
        {
            *held.entry(block).or_default() += tensor.bytes;
        }
    }
    for events in [&mut draft.template.setup, &mut draft.template.body] {
        events.retain(|event| match event {
            Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                !gone.contains(number)
            }
            Event::EmptyCache => true,
        });
    }
    for _ in 0..SLOTS {
        let number = draft.template.tensors.len() as u32;
        draft.template.tensors.push(Tensor {
            bytes: held.values().copied().max().unwrap_or(0),
            stream: 0,
            category: Category::Parameter,
            phase: Phase::Load,
            call: 0,
            op: u32::MAX,
            scope: u32::MAX,
            batched: false,
        });
        // Before the first of the modules runs; what is trained keeps them for all steps.
        if draft.model.trains {
            draft.template.setup.push(Event::Alloc(number));
        } else {
            draft.template.body.insert(0, Event::Alloc(number));
        }
    }
    held
}

/// The modules with parameters of their own of which none is trained. A copy of a model that is trained, and follows its weights,
/// has the names of that model.
pub(crate) fn frozen(model: &Model) -> HashSet<&str> {
    let with = |trained: bool| {
        let modules = model.modules.iter();
        modules.filter(move |module| module.parameters > 0 && (module.trained > 0) == trained)
    };
    let mut found: HashSet<&str> = with(false).map(|module| module.name.as_str()).collect();
    for module in with(true) {
        found.remove(module.name.as_str());
    }
    found
}
