//! A job as a model: one recorded run, folded into its setup and one steady step.
//!
//! A training step repeats, so the history of a few steps says everything: what setup leaves
//! behind, what a step takes and frees, and what the first optimizer step leaves for good. Levers
//! change the [`Template`]; [`crate::play`] plays it through the simulated allocator.

use std::collections::HashMap;
use std::ops::Range;

use oomph_allocator::{Config, Op, Program};
use oomph_run::record::{Facts, Module, is_function};
use oomph_run::{Record, phase_named};
use oomph_trace::{Category, Phase, StringId, Trace};

/// Why a run cannot be planned for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// Nothing was trained or inferred.
    #[error(
        "the script made no step: no optimizer stepped, no weights changed after a backward pass, and no model ran without gradients"
    )]
    NoStep,
    /// The history lacks what the model is made of.
    #[error("the record does not say which operator made which allocation")]
    NoScopes,
    /// The history begins too late.
    #[error("the memory history lost its beginning: run fewer steps with --steps")]
    Incomplete,
}

/// One allocation of the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    /// What the program asks for.
    pub bytes: u64,
    /// The stream.
    pub stream: u64,
    /// What it holds.
    pub category: Category,
    /// When it is made.
    pub phase: Phase,
    /// In which call: an index of [`Model::calls`]; 0 is none.
    pub call: u32,
    /// By which operator: an index of [`Model::ops`].
    pub op: u32,
    /// The scope that made it: an index of the record's scopes.
    pub scope: u32,
    /// Whether it grows with the batch.
    pub batched: bool,
}

/// What happens to a tensor, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It is allocated. What still lives of it from the round before stays, as variables keep
    /// their value until they are assigned again.
    Alloc(u32),
    /// It is freed: the one of this round. Nothing happens if it does not live.
    Free(u32),
    /// The one of the round before is freed.
    FreePrevious(u32),
    /// The program gave back everything cached.
    EmptyCache,
}

/// A job's memory: setup, then `body` (forward and backward) and a tail (optimizer) each step.
#[derive(Debug, Clone, Default)]
pub struct Template {
    /// All tensors.
    pub tensors: Vec<Tensor>,
    /// Before the first forward pass; with what the first step leaves for good.
    pub setup: Vec<Event>,
    /// Forward and backward of a steady step.
    pub body: Vec<Event>,
    /// The rest of the first step: the optimizer's state appears.
    pub first_tail: Vec<Event>,
    /// The rest of a steady step.
    pub tail: Vec<Event>,
    /// How often the body runs in a step: micro-batches.
    pub parts: u32,
    /// Samples in a batch; 0 if unknown.
    pub batch: u64,
    /// Whether the body is all that the job does after its setup, and is played once: passes of a
    /// job that infers need not be alike.
    pub once: bool,
}

/// A call of a module, or of a function outside of modules, in the steady step.
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The module's name, or the function's.
    pub module: String,
    /// The call around it; 0 is none.
    pub parent: u32,
    /// Tensors of the template among its arguments.
    pub inputs: Vec<u32>,
    /// Tensors of the template in its result.
    pub outputs: Vec<u32>,
}

/// Work of one scope in the steady step.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// The call that it belongs to.
    pub call: u32,
    /// The phase.
    pub phase: Phase,
    /// The operator.
    pub op: u32,
    /// Nanoseconds.
    pub busy: f64,
    /// Nanoseconds with 16-bit values.
    pub halved: f64,
    /// Nanoseconds with products in TF32.
    pub tf32: f64,
    /// Launches.
    pub launches: f64,
}

/// Work inside something.
#[derive(Debug, Clone, Copy, Default)]
pub struct Inside {
    /// Nanoseconds.
    pub busy: f64,
    /// Nanoseconds with 16-bit values.
    pub halved: f64,
    /// Nanoseconds with products in TF32.
    pub tf32: f64,
    /// Launches.
    pub launches: f64,
    /// Calls of modules.
    pub calls: f64,
}

impl Inside {
    fn add(&mut self, work: &Work) {
        self.busy += work.busy;
        self.halved += work.halved;
        self.tf32 += work.tf32;
        self.launches += work.launches;
    }
}

/// A job that levers can be tried on.
#[derive(Debug, Clone, Default)]
pub struct Model {
    /// Its memory.
    pub template: Template,
    /// The calls of modules, by the record's numbers; those of other steps are empty.
    pub calls: Vec<Call>,
    /// The operators' names.
    pub ops: Vec<String>,
    /// The work of the steady step.
    pub work: Vec<Work>,
    /// For each call the forward work inside it.
    pub forward: Vec<Inside>,
    /// The work of each operator of each call in the forward pass: call and operator.
    pub forward_by_op: HashMap<(u32, u32), Inside>,
    /// Calls of modules in the steady step.
    pub calls_of_step: f64,
    /// The modules.
    pub modules: Vec<Module>,
    /// Sizes of parameters in bytes, by module.
    pub parameter_sizes: HashMap<String, Vec<u64>>,
    /// The parameters among the template's tensors: module and number.
    pub parameters: Vec<(String, u32)>,
    /// What the script is made of.
    pub facts: Facts,
    /// Samples in a batch; 0 if unknown.
    pub batch: u64,
    /// Whether the job trains.
    pub trains: bool,
    /// Memory outside the allocator.
    pub outside: u64,
    /// What an evaluation before the first step needs at once, in tensors: most levers of a step do not change
    /// it. 0 where passes without gradients are part of each step, or there are none.
    pub evaluation: u64,
    /// Events that the model was made of.
    pub events: usize,
}

/// One step's rows in the program.
struct Steps {
    /// For each operation the step that it is in; `None` is setup.
    of: Vec<Option<u32>>,
}

impl Model {
    /// Makes the model of a recorded run, whose `trace` has been attributed.
    pub fn new(trace: &Trace, record: &Record) -> Result<Self, ModelError> {
        Builder::new(trace, record)?.build()
    }

    /// An operator's name.
    pub fn op(&self, tensor: &Tensor) -> &str {
        self.ops.get(tensor.op as usize).map_or("", String::as_str)
    }

    /// Whether the weights have 4 bytes each.
    pub(crate) fn is_fp32(&self) -> bool {
        let parameters: u64 = self.modules.iter().map(|module| module.parameters).sum();
        let bytes: u64 = self.parameter_sizes.values().flatten().sum();
        // Tied ones are counted twice among the modules.
        bytes * 2 > parameters * 5
    }

    /// Whether a module is a linear layer.
    pub(crate) fn is_linear(module: &Module) -> bool {
        matches!(module.kind.as_str(), "Linear" | "Conv1D")
    }

    /// Whether a layer looks at the whole batch.
    pub(crate) fn couples_samples(&self) -> bool {
        self.modules.iter().any(|module| module.coupled)
    }

    /// Whether a call is one of a module, and no other module is around it.
    pub(crate) fn is_outermost(&self, call: &Call) -> bool {
        let is_module = |call: &Call| !call.module.is_empty() && !is_function(&call.module);
        let around = self.calls.get(call.parent as usize);
        is_module(call) && !around.is_some_and(is_module)
    }

    /// Why a lever that takes models apart is left out, of a job that trains or of one that infers.
    pub(crate) fn compiled(&self, trains: bool) -> Option<&'static str> {
        (self.facts.compiled && self.trains == trains).then_some(
            "torch.compile is used: what it compiled is not taken apart; apply it before compiling",
        )
    }
}

/// Parts of the names of operators that multiply matrices, or convolve.
const PRODUCTS: [&str; 8] = [
    "mm",
    "linear",
    "conv",
    "attention",
    "einsum",
    "matmul",
    "rnn",
    "lstm",
];

/// Whether an operator's work space grows with the batch, as copies of images in another order do. Sums of the gradients of
/// `weights` (in bytes) do not, nor does what cuBLAS has for all products.
fn work_space_follows_batch(op: &str, bytes: u64, weights: u64) -> bool {
    /// No more than so many times the weights may be for their sums.
    const SUMS: u64 = 4;
    let names = ["convolution", "attention", "rnn"];
    names.iter().any(|name| op.contains(name)) && bytes > weights * SUMS
}

/// Whether an operator multiplies matrices: autocast makes its result 16 bits wide.
pub(crate) fn is_product(op: &str) -> bool {
    PRODUCTS.iter().any(|name| op.contains(name))
}

/// Whether a phase comes before the first step.
fn is_setup(phase: &str) -> bool {
    matches!(phase, "setup" | "load")
}

struct Builder<'a> {
    trace: &'a Trace,
    record: &'a Record,
    program: Program,
    steps: Steps,
    /// The step that the template is made of.
    steady: u32,
    /// For each allocation its number in the template.
    numbers: Vec<Option<u32>>,
    model: Model,
}

impl<'a> Builder<'a> {
    fn new(trace: &'a Trace, record: &'a Record) -> Result<Self, ModelError> {
        let device = record.busiest().ok_or(ModelError::NoStep)?;
        let notes = (0..trace.events.len()).map(|row| trace.events.metadata(row));
        if notes.into_iter().all(|note| note == StringId::EMPTY) {
            return Err(ModelError::NoScopes);
        }
        let count = record.steps.max(record.inferences);
        if count == 0 {
            return Err(ModelError::NoStep);
        }
        let program = Program::new(trace, device.index, &Config::default());
        if !program.is_complete() {
            return Err(ModelError::Incomplete);
        }
        let trains = record.steps > 0;
        // The last step's end is the script's end, where everything goes: the one before is whole.
        // What infers is one step, from its first pass to its end.
        let steady = if trains {
            count.saturating_sub(2).min(1)
        } else {
            0
        };
        let mut builder = Self {
            trace,
            record,
            steps: Steps { of: Vec::new() },
            steady,
            numbers: vec![None; program.allocations.len()],
            program,
            model: Model {
                calls: record
                    .calls
                    .iter()
                    .map(|call| Call {
                        module: call.0.clone(),
                        parent: call.1,
                        ..Call::default()
                    })
                    .collect(),
                modules: record.facts.modules.clone(),
                facts: record.facts.clone(),
                batch: record
                    .facts
                    .loaders
                    .iter()
                    .filter(|loader| loader.trains)
                    .chain(&record.facts.loaders)
                    .map(|loader| loader.batch_size)
                    .find(|&size| size > 0)
                    .unwrap_or(if trains { 0 } else { record.facts.input.batch }),
                trains,
                outside: device.outside_bytes,
                ..Model::default()
            },
        };
        builder.model.template.parts = 1;
        builder.model.template.once = !trains;
        builder.model.template.batch = builder.model.batch;
        builder.model.events = builder.program.events;
        builder.steps = builder.find_steps();
        Ok(builder)
    }

    fn scope_of_row(&self, row: u32) -> Option<u32> {
        self.trace
            .strings
            .get(self.trace.events.metadata(row as usize))
            .parse()
            .ok()
    }

    fn scope(&self, scope: u32) -> Option<&(String, String, String, u32)> {
        self.record.scopes.get(scope as usize)
    }

    /// A step begins with its first allocation, wherever that is.
    fn find_steps(&self) -> Steps {
        // A job that never trains begins with its first call of a module.
        let mut current: Option<u32> = None;
        let mut of = Vec::with_capacity(self.program.ops.len());
        for op in &self.program.ops {
            if let Op::Alloc(id) = *op
                && let Some(allocation) = self.program.allocations.get(id as usize)
                && let Some(number) = self.scope_of_row(allocation.alloc_row)
                && let Some(scope) = self.scope(number)
            {
                if self.model.trains {
                    if current.is_some() || !is_setup(&scope.0) {
                        current = Some(current.unwrap_or(0).max(scope.3));
                    }
                } else if self.called(number) {
                    current = Some(0);
                }
            }
            of.push(current);
        }
        Steps { of }
    }

    /// Whether a scope is inside a module's call.
    fn called(&self, scope: u32) -> bool {
        let module = self.scope(scope).map_or("", |scope| scope.1.as_str());
        let phase = self.scope(scope).map_or("", |scope| scope.0.as_str());
        !module.is_empty() && matches!(phase, "forward" | "inference")
    }

    fn rows_of(&self, step: u32) -> Range<usize> {
        let start = self.steps.of.partition_point(|&of| of < Some(step));
        let end = self.steps.of.partition_point(|&of| of <= Some(step));
        start..end
    }

    fn build(mut self) -> Result<Model, ModelError> {
        self.measure_parameters();
        let steady = self.rows_of(self.steady);
        if steady.is_empty() {
            return Err(ModelError::NoStep);
        }
        let first = self.rows_of(0);
        self.number_all(steady.clone());
        let own = self.identities(steady.clone());
        if self.steady > 0 {
            self.recognize(&own, first.clone(), steady.end);
        }
        let (body_end, tail) = self.split(steady.clone());
        self.setup(first.clone(), steady.clone());
        self.model.template.body = self.events(steady.start..body_end, steady.start);
        self.model.template.tail = self.events(tail, steady.start);
        self.model.template.first_tail = if self.steady == 0 {
            self.model.template.tail.clone()
        } else {
            let (_, tail) = self.split(first.clone());
            self.number_all(tail.clone());
            self.events(tail, first.start)
        };
        if self.model.trains && self.before_forward(steady.clone()) == 0 {
            self.model.evaluation = self.before_forward(first);
        }
        self.works();
        self.parameters();
        self.places(steady);
        Ok(self.model)
    }

    /// The most that is held at once where no gradients are recorded before a step's own forward pass,
    /// in bytes.
    fn before_forward(&self, rows: Range<usize>) -> u64 {
        let allocation = |id: u32| self.program.allocations.get(id as usize);
        let (mut held, mut most) = (0, 0);
        for (at, op) in self.program.ops.iter().enumerate().take(rows.end) {
            match *op {
                Op::Alloc(id) => {
                    let Some(allocation) = allocation(id) else {
                        continue;
                    };
                    held += allocation.requested;
                    let scope = self.scope_of_row(allocation.alloc_row);
                    let scope = scope.and_then(|number| self.scope(number));
                    match scope.map_or("", |scope| scope.0.as_str()) {
                        "inference" if at >= rows.start => most = most.max(held),
                        "forward" if at >= rows.start => break,
                        _ => {}
                    }
                }
                Op::Free(id) => {
                    held = held.saturating_sub(allocation(id).map_or(0, |one| one.requested));
                }
                _ => {}
            }
        }
        most
    }

    /// Sizes of parameters, by owner.
    fn measure_parameters(&mut self) {
        let Some(labels) = &self.trace.labels else {
            return;
        };
        for allocation in &self.program.allocations {
            let label = labels.get(allocation.alloc_row as usize);
            // Those without an owner are copies, on their way to one.
            if label.category == Category::Parameter && label.module != StringId::EMPTY {
                self.model
                    .parameter_sizes
                    .entry(self.trace.strings.get(label.module).to_owned())
                    .or_default()
                    .push(allocation.requested);
            }
        }
    }

    /// Which of the template's tensors are parameters, and whose.
    fn parameters(&mut self) {
        let Some(labels) = &self.trace.labels else {
            return;
        };
        for (allocation, number) in self.program.allocations.iter().zip(&self.numbers) {
            let label = labels.get(allocation.alloc_row as usize);
            if let Some(number) = number
                && label.category == Category::Parameter
            {
                let owner = self.trace.strings.get(label.module).to_owned();
                self.model.parameters.push((owner, *number));
            }
        }
    }

    fn allocs(&self, rows: Range<usize>) -> Vec<u32> {
        let ops = self.program.ops.get(rows).unwrap_or_default();
        ops.iter()
            .filter_map(|op| match *op {
                Op::Alloc(id) => Some(id),
                _ => None,
            })
            .collect()
    }

    fn number_all(&mut self, rows: Range<usize>) {
        for id in self.allocs(rows) {
            self.number(id);
        }
    }

    /// The number of an allocation in the template; a new tensor if it has none.
    fn number(&mut self, id: u32) -> Option<u32> {
        let allocation = *self.program.allocations.get(id as usize)?;
        if let Some(number) = self.numbers.get(id as usize).copied().flatten() {
            return Some(number);
        }
        let scope = self.scope_of_row(allocation.alloc_row).unwrap_or(u32::MAX);
        let label = self
            .trace
            .labels
            .as_ref()
            .map(|labels| labels.get(allocation.alloc_row as usize))
            .unwrap_or_default();
        let op = self.op_number(scope);
        let mut tensor = Tensor {
            bytes: allocation.requested,
            stream: allocation.stream,
            category: label.category,
            phase: label.phase,
            call: self
                .record
                .scope_calls
                .get(scope as usize)
                .copied()
                .unwrap_or(0),
            op,
            scope,
            batched: false,
        };
        tensor.batched = self.is_batched(&tensor);
        let number = self.model.template.tensors.len() as u32;
        self.model.template.tensors.push(tensor);
        if let Some(slot) = self.numbers.get_mut(id as usize) {
            *slot = Some(number);
        }
        Some(number)
    }

    fn op_number(&mut self, scope: u32) -> u32 {
        let name = self.scope(scope).map_or("", |scope| scope.2.as_str());
        let found = self.model.ops.iter().position(|op| op == name);
        if let Some(found) = found {
            found as u32
        } else {
            let name = name.to_owned();
            self.model.ops.push(name);
            self.model.ops.len() as u32 - 1
        }
    }

    /// Whether a tensor's size follows the batch: what flows through the model does, unless it has
    /// the size of a parameter of its module, or a size that no batch gives.
    fn is_batched(&self, tensor: &Tensor) -> bool {
        let call = self.model.calls.get(tensor.call as usize);
        let own = call.and_then(|call| self.model.parameter_sizes.get(&call.module));
        if tensor.category == Category::Workspace {
            let weights = own.into_iter().flatten().sum();
            return work_space_follows_batch(self.model.op(tensor), tensor.bytes, weights);
        }
        let flows = match tensor.category {
            Category::Activation | Category::Input => true,
            Category::Temporary | Category::Unknown => {
                matches!(
                    tensor.phase,
                    Phase::Forward | Phase::Backward | Phase::Inference
                )
            }
            _ => false,
        };
        if !flows || (self.model.batch > 0 && !tensor.bytes.is_multiple_of(self.model.batch)) {
            return false;
        }
        let is_parameter = |sizes: &Vec<u64>| {
            sizes
                .iter()
                .any(|&size| size == tensor.bytes || size == tensor.bytes * 2)
        };
        // What belongs to no module (a loss of the script's own, its gradient) may be of any, and so may
        // a copy in a module without any of its own: of a weight that is another's, too.
        let of_any = tensor.call == 0 || self.model.op(tensor) == "aten::_to_copy";
        let mut all = self.model.parameter_sizes.values();
        !match own {
            Some(own) => is_parameter(own),
            None => of_any && all.any(is_parameter),
        }
    }

    /// What made each allocation of some rows, and the how-manieth of its kind it is.
    fn identities(&self, rows: Range<usize>) -> HashMap<(u32, u64, u32), u32> {
        let mut kinds: HashMap<(&str, &str, &str), u32> = HashMap::new();
        let mut counts: HashMap<(u32, u64), u32> = HashMap::new();
        // Kinds must have the same number in every step: the first scope of the same words.
        let mut first: HashMap<(&str, &str, &str), u32> = HashMap::new();
        for (number, scope) in self.record.scopes.iter().enumerate() {
            first
                .entry((&scope.0, &scope.1, &scope.2))
                .or_insert(number as u32);
        }
        let mut found = HashMap::new();
        for id in self.allocs(rows) {
            let Some(allocation) = self.program.allocations.get(id as usize) else {
                continue;
            };
            let Some(scope) = self
                .scope_of_row(allocation.alloc_row)
                .and_then(|scope| self.scope(scope))
            else {
                continue;
            };
            let words = (scope.0.as_str(), scope.1.as_str(), scope.2.as_str());
            let kind = *kinds
                .entry(words)
                .or_insert_with(|| first.get(&words).copied().unwrap_or(u32::MAX));
            let count = counts.entry((kind, allocation.requested)).or_default();
            found.insert((kind, allocation.requested, *count), id);
            *count += 1;
        }
        found
    }

    /// Gives the first step's allocations the numbers of the steady step's that are alike; what
    /// the first step leaves for good is its own.
    fn recognize(&mut self, own: &HashMap<(u32, u64, u32), u32>, first: Range<usize>, end: usize) {
        let end_row = self.row_at(end);
        for (identity, id) in self.identities(first) {
            let Some(allocation) = self.program.allocations.get(id as usize) else {
                continue;
            };
            // `NO_ROW` is the greatest number.
            if allocation.free_row >= end_row {
                continue;
            }
            let number = own
                .get(&identity)
                .and_then(|&own| self.numbers.get(own as usize).copied().flatten());
            if let Some(slot) = self.numbers.get_mut(id as usize) {
                *slot = number;
            }
        }
    }

    /// The row of the first event from `op` on.
    fn row_at(&self, op: usize) -> u32 {
        self.program
            .ops
            .iter()
            .skip(op)
            .find_map(|op| self.row_of(*op))
            .unwrap_or(u32::MAX)
    }

    fn row_of(&self, op: Op) -> Option<u32> {
        let allocation = |id: u32| self.program.allocations.get(id as usize);
        match op {
            Op::Alloc(id) => allocation(id).map(|allocation| allocation.alloc_row),
            Op::Free(id) => allocation(id).map(|allocation| allocation.free_row),
            _ => None,
        }
    }

    /// What is there before the first step, less what its first batch was, and what the first
    /// step's forward and backward leave for good.
    fn setup(&mut self, first: Range<usize>, steady: Range<usize>) {
        self.number_all(0..first.start);
        let mut events = self.events(0..first.start, 0);
        let (start_row, end_row) = (self.row_at(first.start), self.row_at(steady.end));
        let setup = self.allocs(0..first.start);
        for id in setup {
            // What is played once goes when it went.
            if self.model.trains
                && let Some(allocation) = self.program.allocations.get(id as usize)
                && (start_row..end_row).contains(&allocation.free_row)
                && let Some(number) = self.number(id)
            {
                events.push(Event::Free(number));
            }
        }
        if self.steady > 0 {
            let (body_end, _) = self.split(first.clone());
            for rows in [first.start..body_end, first.end..steady.start] {
                for id in self.allocs(rows) {
                    let stays = self
                        .program
                        .allocations
                        .get(id as usize)
                        .is_some_and(|allocation| allocation.free_row >= end_row);
                    if stays && let Some(number) = self.number(id) {
                        events.push(Event::Alloc(number));
                    }
                }
            }
        }
        self.model.template.setup = events;
    }

    /// Where forward and backward of a step end, and the rest.
    fn split(&self, rows: Range<usize>) -> (usize, Range<usize>) {
        let phase_of_row = |row: u32| {
            let scope = self.scope_of_row(row).and_then(|scope| self.scope(scope));
            scope.map(|scope| scope.0.as_str())
        };
        let allocation = |id: u32| self.program.allocations.get(id as usize);
        let made_in = |op: usize| match self.program.ops.get(op) {
            Some(&Op::Alloc(id)) => phase_of_row(allocation(id)?.alloc_row),
            _ => None,
        };
        let last = (rows.clone().rev()).find(|&op| made_in(op) == Some("backward"));
        let Some(last) = last else {
            return (rows.end, rows.end..rows.end);
        };
        // A step may allocate nothing: then it is over where gradients are cleared.
        let clears = |op: usize| match self.program.ops.get(op) {
            Some(&Op::Free(id)) => allocation(id).is_some_and(|one| {
                let labels = self.trace.labels.as_ref();
                let label = labels.map(|labels| labels.get(one.alloc_row as usize));
                label.is_some_and(|label| label.category == Category::Gradient)
                    && phase_of_row(one.free_row) != Some("backward")
            }),
            _ => false,
        };
        let end = (last + 1..rows.end)
            .find(|&op| made_in(op).is_some() || clears(op))
            .unwrap_or(rows.end);
        (end, end..rows.end)
    }

    /// The events of some rows in terms of the template. Frees of what was made before `start` are
    /// kept only if the template has the like of it.
    fn events(&mut self, rows: Range<usize>, start: usize) -> Vec<Event> {
        let start_row = self.row_at(start);
        let mut events = Vec::with_capacity(rows.len());
        for op in rows {
            match self.program.ops.get(op).copied() {
                Some(Op::Alloc(id)) => {
                    if let Some(number) = self.numbers.get(id as usize).copied().flatten() {
                        events.push(Event::Alloc(number));
                    }
                }
                Some(Op::Free(id)) => {
                    let older = self
                        .program
                        .allocations
                        .get(id as usize)
                        .is_some_and(|allocation| allocation.alloc_row < start_row);
                    let Some(number) = self.numbers.get(id as usize).copied().flatten() else {
                        continue;
                    };
                    if !older || !self.model.trains {
                        events.push(Event::Free(number));
                    } else if !self.is_setup(id) {
                        events.push(Event::FreePrevious(number));
                    }
                }
                Some(Op::EmptyCache) => events.push(Event::EmptyCache),
                _ => {}
            }
        }
        events
    }

    fn is_setup(&self, id: u32) -> bool {
        let row = self
            .program
            .allocations
            .get(id as usize)
            .map_or(0, |allocation| allocation.alloc_row);
        row < self.row_at(self.rows_of(0).start)
    }

    /// The work of the steady step, and which calls belong to it.
    fn works(&mut self) {
        let mut belongs = vec![false; self.model.calls.len()];
        for number in 0..self.record.scopes.len() as u32 {
            let Some((phase, _, _, step)) = self.scope(number).cloned() else {
                continue;
            };
            if is_setup(&phase) || self.model.trains && step != self.steady {
                continue;
            }
            let call = self
                .record
                .scope_calls
                .get(number as usize)
                .copied()
                .unwrap_or(0);
            let mut around = call;
            while around != 0 {
                if let Some(slot) = belongs.get_mut(around as usize) {
                    *slot = true;
                }
                around = self
                    .model
                    .calls
                    .get(around as usize)
                    .map_or(0, |call| call.parent);
            }
            let [busy, halved, launches] = self
                .record
                .scope_times
                .get(number as usize)
                .copied()
                .unwrap_or_default();
            let op = self.op_number(number);
            let is_product = is_product(&self.model.ops[op as usize]);
            self.model.work.push(Work {
                call,
                phase: phase_named(&phase),
                op,
                busy: busy as f64,
                halved: halved as f64,
                // Tensor cores multiply 16 bits twice as fast as TF32.
                tf32: if is_product {
                    busy.min(2 * halved) as f64
                } else {
                    busy as f64
                },
                launches: launches as f64,
            });
        }
        let calls = &self.model.calls;
        let mut forward = vec![Inside::default(); calls.len()];
        // Parents come before their children, so this ends.
        let mut add = |call: u32, add: &dyn Fn(&mut Inside)| {
            let mut around = call;
            while around != 0 {
                if let Some(inside) = forward.get_mut(around as usize) {
                    add(inside);
                }
                around = calls.get(around as usize).map_or(0, |call| call.parent);
            }
        };
        for work in &self.model.work {
            if matches!(work.phase, Phase::Forward | Phase::Inference) {
                add(work.call, &|inside| inside.add(work));
                self.model
                    .forward_by_op
                    .entry((work.call, work.op))
                    .or_default()
                    .add(work);
            }
        }
        for (number, _) in belongs.iter().enumerate().filter(|(_, belongs)| **belongs) {
            if calls
                .get(number)
                .is_some_and(|call| is_function(&call.module))
            {
                continue; // a function has no hooks, and no host time for them
            }
            add(number as u32, &|inside| inside.calls += 1.0);
            self.model.calls_of_step += 1.0;
        }
        self.model.forward = forward;
        for (call, belongs) in self.model.calls.iter_mut().zip(belongs) {
            if !belongs {
                call.module.clear();
            }
        }
    }

    /// The calls of the steady step that allocate nothing, such as activations in place, each with
    /// the last call before it that does: they are over before anything else allocates.
    fn silent(&self, seen: &HashMap<u32, usize>) -> Vec<(u32, u32)> {
        let mut after = 0;
        let mut found = Vec::new();
        for (number, call) in self.model.calls.iter().enumerate().skip(1) {
            let number = number as u32;
            if seen.contains_key(&number) {
                after = number;
            } else if !call.module.is_empty() && after != 0 {
                found.push((number, after));
            }
        }
        found
    }

    /// Which tensors calls take and give: the recorder noted addresses.
    fn places(&mut self, steady: Range<usize>) {
        let mut live: HashMap<u64, u32> = HashMap::new();
        let mut seen: HashMap<u32, usize> = HashMap::new();
        let forward = |builder: &Self, id: u32| -> Option<u32> {
            let allocation = builder.program.allocations.get(id as usize)?;
            let scope = builder.scope_of_row(allocation.alloc_row)?;
            let phase = builder.scope(scope)?.0.as_str();
            matches!(phase, "forward" | "inference")
                .then(|| builder.record.scope_calls.get(scope as usize).copied())
                .flatten()
        };
        // The last allocation of each call comes first.
        for op in steady.clone() {
            if let Some(&Op::Alloc(id)) = self.program.ops.get(op)
                && let Some(mut call) = forward(self, id)
            {
                while call != 0 {
                    seen.insert(call, op);
                    call = self.record.calls.get(call as usize).map_or(0, |c| c.1);
                }
            }
        }
        let mut silent = self.silent(&seen).into_iter().peekable();
        let mut ends: HashMap<usize, Vec<u32>> = HashMap::new();
        for (call, op) in &seen {
            ends.entry(*op).or_default().push(*call);
        }
        let mut begun: std::collections::HashSet<u32> = std::collections::HashSet::new();
        let mut places: Vec<(u32, bool, u32)> = Vec::new();
        for op in 0..steady.end {
            let now = self.program.ops.get(op).copied();
            if let Some(Op::Alloc(id)) = now
                && steady.contains(&op)
            {
                let next = forward(self, id);
                while let Some(&(call, after)) = silent.peek()
                    && next.map_or_else(|| begun.contains(&after), |next| call < next)
                {
                    silent.next();
                    let Some(record) = self.record.calls.get(call as usize) else {
                        continue;
                    };
                    for (is_input, addrs) in [(true, &record.2), (false, &record.3)] {
                        let found = addrs.iter().filter_map(|addr| live.get(addr));
                        places.extend(found.map(|&id| (call, is_input, id)));
                    }
                }
            }
            if let Some(Op::Alloc(id)) = now
                && steady.contains(&op)
                && let Some(mut call) = forward(self, id)
            {
                while call != 0 && begun.insert(call) {
                    if let Some(record) = self.record.calls.get(call as usize) {
                        let inputs = record.2.iter().filter_map(|addr| live.get(addr));
                        places.extend(inputs.map(|&id| (call, true, id)));
                        call = record.1;
                    } else {
                        call = 0;
                    }
                }
            }
            match now {
                Some(Op::Alloc(id)) => {
                    if let Some(allocation) = self.program.allocations.get(id as usize) {
                        live.insert(allocation.addr, id);
                    }
                }
                Some(Op::Free(id)) => {
                    if let Some(allocation) = self.program.allocations.get(id as usize)
                        && live.get(&allocation.addr) == Some(&id)
                    {
                        live.remove(&allocation.addr);
                    }
                }
                _ => {}
            }
            for call in ends.get(&op).into_iter().flatten() {
                if let Some(record) = self.record.calls.get(*call as usize) {
                    let outputs = record.3.iter().filter_map(|addr| live.get(addr));
                    places.extend(outputs.map(|&id| (*call, false, id)));
                }
            }
        }
        for (call, is_input, id) in places {
            let Some(number) = self.numbers.get(id as usize).copied().flatten() else {
                continue;
            };
            if let Some(call) = self.model.calls.get_mut(call as usize) {
                if is_input {
                    call.inputs.push(number);
                } else {
                    call.outputs.push(number);
                }
            }
        }
    }
}

impl Template {
    /// The part of a batch that the largest micro-batch is, as a fraction of whole samples.
    pub fn share(&self) -> (u64, u64) {
        let parts = u64::from(self.parts.max(1));
        match self.batch {
            0 => (1, parts),
            batch => (batch.div_ceil(parts), batch),
        }
    }

    /// The bytes of a tensor in a part of a batch.
    pub(crate) fn part_bytes(&self, tensor: &Tensor) -> u64 {
        let (part, whole) = self.share();
        if tensor.batched {
            (tensor.bytes * part).div_ceil(whole)
        } else {
            tensor.bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HuBERT's second convolution: 903 MiB for 12 samples, 153 for 2, of which 3 are weights.
    #[test]
    fn work_spaces_of_convolutions_follow_the_batch_and_those_of_products_do_not() {
        assert!(work_space_follows_batch("aten::convolution", 903, 3));
        assert!(!work_space_follows_batch(
            "aten::convolution_backward",
            12,
            3
        ));
        assert!(!work_space_follows_batch("aten::addmm", 32, 0));
    }
}
