//! What a job needs at once, wherever everything else waits: the memory outside the allocator, the parameters, cuBLAS's
//! workspaces, and the largest operator with what goes into it and comes out.
//!
//! Levers move or make again what a job keeps between two operators. None of them goes below this floor while the
//! operators stay as large as they are.

use std::collections::BTreeSet;

use oomph_run::record::Module;
use oomph_trace::{Category, Phase};
use rustc_hash::FxHashMap as HashMap;
use serde::Serialize;

use crate::draft::Draft;
use crate::gradients;
use crate::levers::{KINDS, Lever};
use crate::model::{Call, Event, Model};
use crate::search::Options;
use crate::streamed;

/// The least that a run needs with its operators as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Floor {
    /// The sum.
    pub bytes: u64,
    /// Memory outside the allocator.
    pub outside_bytes: u64,
    /// Parameters; of a job that trains those that are trained and cannot wait in host memory.
    pub parameter_bytes: u64,
    /// Workspaces of cuBLAS, which stay from the first product on.
    pub workspace_bytes: u64,
    /// What goes into the largest operator and comes out of it.
    pub operator_bytes: u64,
    /// The module that it belongs to, or the operator's name; empty if neither is known.
    pub operator: String,
}

impl Floor {
    /// Of a job as it ran.
    pub fn of(model: &Model) -> Self {
        let parameters: BTreeSet<u32> = model.parameters.iter().map(|found| found.1).collect();
        let bytes = |number: &u32| {
            let tensor = model.template.tensors.get(*number as usize);
            tensor.map_or(0, |tensor| tensor.bytes)
        };
        // Frozen weights may be elsewhere until they are used, and trained ones of blocks where their gradients may.
        let frozen = streamed::frozen(model);
        let blocks = if gradients::can_wait(model) {
            streamed::trained_blocks(model).0
        } else {
            Vec::new()
        };
        let waits =
            |owner: &str| frozen.contains(owner) || streamed::inside(&blocks, owner).is_some();
        let stay = |owner: &str| !model.trains || !waits(owner);
        let found = model.parameters.iter().filter(|found| stay(&found.0));
        let stay: BTreeSet<u32> = found.map(|found| found.1).collect();
        let parameter_bytes = stay.iter().map(bytes).sum();
        let workspace_bytes = workspaces(model);
        let (operator_bytes, operator) = largest_call(model, &parameters)
            .into_iter()
            .chain(largest_tensor(model, &parameters))
            .max()
            .unwrap_or_default();
        Self {
            bytes: model.outside + parameter_bytes + workspace_bytes + operator_bytes,
            outside_bytes: model.outside,
            parameter_bytes,
            workspace_bytes,
            operator_bytes,
            operator,
        }
    }
}

impl Floor {
    /// What no plan of a job that trains goes below, whatever becomes of its operators: the context of a GPU that has run a kernel
    /// (`context_bytes`), and the weights that stay there under each lever that is permitted.
    pub fn of_any_plan(model: &Model, options: &Options, context_bytes: u64) -> Self {
        let plain = Draft::new(model, options.pace);
        let mut stay = always_there(&plain);
        for kind in KINDS {
            let all = (kind.sequence)(&plain);
            let whole = (kind.of_modules)(all.prefix(model, all.len()));
            let levers = (kind.candidates)(model, options).into_iter().chain(whole);
            for lever in levers.filter(|lever| options.permits(lever)) {
                let left = always_there(&with(&plain, &lever));
                stay.retain(|number, bytes| {
                    *bytes = left.get(number).map_or(0, |left| *left.min(bytes));
                    *bytes > 0
                });
            }
        }
        let outside_bytes = context_bytes.min(model.outside);
        let parameter_bytes = stay.values().sum();
        Self {
            bytes: outside_bytes + parameter_bytes,
            outside_bytes,
            parameter_bytes,
            ..Self::default()
        }
    }
}

/// A draft as one lever changes it.
fn with<'a>(plain: &Draft<'a>, lever: &Lever) -> Draft<'a> {
    let mut draft = plain.clone();
    draft.apply(lever);
    draft
}

/// The bytes of weights with an owner that is trained, by number: those that setup leaves on the GPU and no step frees.
fn always_there(draft: &Draft<'_>) -> HashMap<u32, u64> {
    let model = draft.model;
    let frozen = streamed::frozen(model);
    let owned = model.parameters.iter();
    let trained: BTreeSet<u32> = owned
        .filter(|(owner, _)| !owner.is_empty() && !frozen.contains(owner.as_str()))
        .map(|(_, number)| *number)
        .collect();
    let template = &draft.template;
    let mut found: HashMap<u32, u64> = HashMap::default();
    for event in &template.setup {
        match event {
            Event::Alloc(number) if trained.contains(number) => {
                let tensor = template.tensors.get(*number as usize);
                found.insert(*number, tensor.map_or(0, |tensor| tensor.bytes));
            }
            Event::Free(number) => {
                found.remove(number);
            }
            _ => {}
        }
    }
    let steps = [&template.body, &template.first_tail, &template.tail];
    for event in steps.into_iter().flatten() {
        if let Event::Free(number) | Event::FreePrevious(number) = event {
            found.remove(number);
        }
    }
    found
}

/// What cuBLAS keeps of the forward pass: the backward pass may run in the same thread and need no other.
fn workspaces(model: &Model) -> u64 {
    let kept = model.template.setup.iter().filter_map(|event| match event {
        Event::Alloc(number) => model.template.tensors.get(*number as usize),
        _ => None,
    });
    kept.filter(|tensor| tensor.category == Category::Workspace && tensor.phase != Phase::Backward)
        .map(|tensor| tensor.bytes)
        .sum()
}

/// The call of a module with the most bytes of arguments and results, where no other module is called inside: a
/// container may free what it got before it makes what it returns.
fn largest_call(model: &Model, parameters: &BTreeSet<u32>) -> Option<(u64, String)> {
    let parents: BTreeSet<u32> = model.calls.iter().map(|call| call.parent).collect();
    let modules: HashMap<&str, &Module> = model
        .modules
        .iter()
        .map(|module| (module.name.as_str(), module))
        .collect();
    // The gradients of arguments that backward passes make, by call.
    let mut made: HashMap<u32, u64> = HashMap::default();
    for tensor in &model.template.tensors {
        // A copy of the result's gradient may take that one's place.
        if tensor.category != Category::Gradient && model.op(tensor).contains("_backward") {
            let largest = made.entry(tensor.call).or_default();
            *largest = tensor.bytes.max(*largest);
        }
    }
    let bytes = |number: u32, call: &Call| {
        let module = modules.get(call.module.as_str())?;
        // Modules of torch.nn run one operator; a script's own may run many.
        if parents.contains(&number) || !is_one_operator(&module.kind) {
            return None;
        }
        let tensors: BTreeSet<u32> = call.inputs.iter().chain(&call.outputs).copied().collect();
        let held: u64 = tensors
            .difference(parameters)
            .filter_map(|&number| model.template.tensors.get(number as usize))
            .map(|tensor| tensor.bytes)
            .sum();
        let gradient = if module.trained > 0 && is_one_backward(&module.kind) {
            made.get(&number).copied().unwrap_or(0)
        } else {
            0
        };
        Some((held + gradient, call.module.clone()))
    };
    let calls = (0..).zip(&model.calls);
    calls.filter_map(|(number, call)| bytes(number, call)).max()
}

/// Whether a module of torch.nn computes its result from its arguments in one operator.
fn is_one_operator(kind: &str) -> bool {
    kind == "Linear" || is_one_backward(kind)
}

/// Whether its backward pass makes the gradients of arguments and weights in one operator, which needs the arguments
/// and the result's gradient, too.
fn is_one_backward(kind: &str) -> bool {
    kind.starts_with("Conv") || kind.starts_with("BatchNorm")
}

/// The largest tensor that a step makes.
fn largest_tensor(model: &Model, parameters: &BTreeSet<u32>) -> Option<(u64, String)> {
    let steps = model.template.body.iter().chain(&model.template.tail);
    steps
        .filter_map(|event| match event {
            Event::Alloc(number) if !parameters.contains(number) => {
                model.template.tensors.get(*number as usize)
            }
            _ => None,
        })
        .filter(|tensor| tensor.category != Category::Parameter)
        .map(|tensor| (tensor.bytes, model.op(tensor).to_owned()))
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Tensor;

    fn tensor(bytes: u64) -> Tensor {
        Tensor {
            bytes,
            stream: 0,
            category: Category::Activation,
            phase: Phase::Forward,
            call: 1,
            op: 0,
            scope: 0,
            batched: true,
        }
    }

    /// A linear layer with weights of 10 bytes that makes 30 of 20, inside of a model that adds 5 more.
    fn job() -> Model {
        let call = |module: &str, parent, inputs: &[u32], outputs: &[u32]| Call {
            module: module.to_owned(),
            parent,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
        };
        let mut model = Model {
            calls: vec![
                Call::default(),
                call("Net", 0, &[1], &[3]),
                call("Net.fc", 1, &[1], &[2]),
            ],
            ops: vec!["aten::add".to_owned()],
            parameters: vec![("Net.fc".to_owned(), 0)],
            modules: ["Net", "Linear"]
                .into_iter()
                .zip(["Net", "Net.fc"])
                .map(|(kind, name)| Module {
                    name: name.to_owned(),
                    kind: kind.to_owned(),
                    ..Module::default()
                })
                .collect(),
            outside: 100,
            ..Model::default()
        };
        model.template.tensors = [10, 20, 30, 5].map(tensor).to_vec();
        model.template.body = (1..4).map(Event::Alloc).collect();
        model
    }

    #[test]
    fn an_operator_holds_what_it_gets_and_what_it_makes() {
        let floor = Floor::of(&job());
        assert_eq!((floor.bytes, floor.operator.as_str()), (160, "Net.fc"));
        assert_eq!((floor.parameter_bytes, floor.operator_bytes), (10, 50));
    }

    #[test]
    fn what_cublas_keeps_is_there_beside_every_operator() {
        let mut model = job();
        let kept = model.template.tensors.len() as u32;
        for phase in [Phase::Forward, Phase::Backward] {
            model.template.tensors.push(Tensor {
                category: Category::Workspace,
                phase,
                ..tensor(8)
            });
        }
        model.template.setup = vec![Event::Alloc(kept), Event::Alloc(kept + 1)];
        let floor = Floor::of(&model);
        // The backward pass may do without its own.
        assert_eq!((floor.bytes, floor.workspace_bytes), (168, 8));
    }

    /// A convolution that is trained has its argument, the result's gradient and the argument's gradient at once.
    #[test]
    fn a_convolution_holds_the_gradient_that_it_makes() {
        let mut model = job();
        model.ops.push("aten::convolution_backward".to_owned());
        model.template.tensors.push(Tensor {
            op: 1,
            category: Category::Temporary,
            call: 2,
            ..tensor(20)
        });
        let bytes = |model: &Model| Floor::of(model).operator_bytes;
        assert_eq!(
            bytes(&model),
            50,
            "a linear layer may make them one after the other"
        );
        model.modules[1].kind = "Conv2d".to_owned();
        assert_eq!(bytes(&model), 50, "it is frozen");
        model.modules[1].trained = 10;
        assert_eq!(bytes(&model), 70);
    }

    /// Weights that are trained stay under every lever, frozen ones do not, and what a step frees is none of them.
    #[test]
    fn no_plan_takes_weights_that_are_trained_from_the_gpu() {
        let mut model = job();
        model.trains = true;
        model.template.setup = vec![Event::Alloc(0)];
        let floor = |model: &Model, context: u64| {
            let floor = Floor::of_any_plan(model, &Options::default(), context);
            (floor.bytes, floor.outside_bytes, floor.parameter_bytes)
        };
        assert_eq!(floor(&model, 60), (70, 60, 10));
        assert_eq!(floor(&model, 1000), (110, 100, 10), "the run had no more");
        model.template.tail = vec![Event::Free(0)];
        assert_eq!(floor(&model, 60).2, 0, "a step gives them back");
        model.template.tail.clear();
        model.modules[1].parameters = 10;
        assert_eq!(floor(&model, 60).2, 0, "they are frozen");
        model.modules[1].trained = 10;
        assert_eq!(floor(&model, 60).2, 10);
    }

    /// What a module of the script's own gets may be gone before its result is made.
    #[test]
    fn a_module_that_may_run_many_operators_proves_its_largest_tensor_only() {
        let mut model = job();
        model.modules[1].kind = "Mixer".to_owned();
        let floor = Floor::of(&model);
        assert_eq!(
            (floor.operator_bytes, floor.operator.as_str()),
            (30, "aten::add")
        );
    }
}
