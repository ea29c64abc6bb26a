//! The walker: an abstract interpreter over the statements of a file, in source order.
//!
//! Branches are walked from the same state and joined; a branch that leaves (`return`, `raise`,
//! `continue`, `break`) does not take part. Loops are walked once: rules about loop-carried values
//! look at the recorded assignments instead. Bodies of functions wait until the block that holds
//! them is done, so that they see the module as it is when they are called.

mod assignments;
mod backward;
mod calls;
mod definitions;
mod expressions;
mod finish;
mod lookup;
mod loops;
mod results;
mod statements;
mod usage;

use std::cell::OnceCell;
use std::rc::Rc;

use oomph_python_source::{Module, TextRange, TextSize};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::project::Around;
use crate::semantic::value::{DefId, Value};
use crate::semantic::{Class, ClassId, Ctx, CtxId, CtxKind, Func, FuncId, Grad, Model, StmtId};
use definitions::Defs;
use usage::Usage;

/// PyTorch and the libraries on top of it: a file that imports none of them has nothing to lint.
const TORCH_ROOTS: &[&str] = &[
    "torch",
    "torchvision",
    "torchaudio",
    "torchtext",
    "pytorch_lightning",
    "lightning",
    "lightning_fabric",
    "accelerate",
    "timm",
    "apex",
    "deepspeed",
    "fairseq",
    "detectron2",
    "mmcv",
    "mmengine",
    "speechbrain",
    "torch_geometric",
    "ignite",
    "fastai",
    "peft",
    "trl",
];

/// Whether a source can import any of [`TORCH_ROOTS`] at all: a cheap test before the walk.
pub(crate) fn may_use_torch(source: &str) -> bool {
    TORCH_ROOTS.iter().any(|root| source.contains(root))
}

/// Builds the model of a parsed file.
pub(crate) fn build<'a>(module: &'a Module<'a>, around: &Around) -> Model<'a> {
    let defs = Defs::of(module.body());
    let usage = Usage::of(module);
    let mut learned = Learned {
        params: vec![Vec::new(); defs.funcs.len()],
        returns: vec![None; defs.funcs.len()],
        covered: vec![false; defs.funcs.len()],
        class_attrs: vec![FxHashMap::default(); defs.classes.len()],
        graph_defs: FxHashSet::default(),
    };
    let mut first = Walker::new(module, &defs, &usage, learned);
    first.model.around = around.clone();
    first.module();
    learned = first.finish_learning();
    let mut second = Walker::new(module, &defs, &usage, learned);
    second.model.around = around.clone();
    second.module();
    second.finish()
}

/// What the first walk leaves to the second.
struct Learned {
    /// What the calls of this file pass for each parameter.
    params: Vec<Vec<Option<Value>>>,
    returns: Vec<Option<Value>>,
    /// Functions that are only called without gradients.
    covered: Vec<bool>,
    class_attrs: Vec<FxHashMap<String, Value>>,
    /// Assignments whose value ends up in a `backward()`.
    graph_defs: FxHashSet<DefId>,
}

/// Where a function is called from.
#[derive(Clone, Copy)]
struct Site {
    caller: Option<FuncId>,
    grad: Grad,
}

type Vars = FxHashMap<String, Value>;

/// The variables of an enclosing scope.
struct Frame {
    vars: Vars,
    parent: Option<Rc<Frame>>,
}

/// A function body that waits to be walked.
struct Deferred {
    func: FuncId,
    class: Option<ClassId>,
    frame: Rc<Frame>,
    outer: CtxId,
    grad: Grad,
}

struct Walker<'a, 'd> {
    model: Model<'a>,
    defs: &'d Defs<'a>,
    usage: &'d Usage,
    learned: Learned,
    vars: Vars,
    frame: Option<Rc<Frame>>,
    func: Option<FuncId>,
    class: Option<ClassId>,
    ctx: CtxId,
    stmt: StmtId,
    grad: Grad,
    /// Functions to walk once the current body is done.
    pending: Vec<Deferred>,
    queue: Vec<Deferred>,
    next_returns: Vec<Option<Value>>,
    next_params: Vec<Vec<Option<Value>>>,
    next_graph_defs: FxHashSet<DefId>,
    sites: Vec<Vec<Site>>,
    /// Functions passed as values: their calls cannot be seen.
    escaped: FxHashSet<FuncId>,
}

impl<'a, 'd> Walker<'a, 'd> {
    fn new(module: &'a Module<'a>, defs: &'d Defs<'a>, usage: &'d Usage, learned: Learned) -> Self {
        let funcs = defs
            .funcs
            .iter()
            .map(|node| Func {
                node,
                class: None,
                body: None,
                has_backward: false,
                has_step: false,
                has_zero_grad: false,
                has_forward: false,
                called: false,
            })
            .collect();
        let classes = defs
            .classes
            .iter()
            .map(|node| Class {
                node,
                is_module: false,
                is_dataset: false,
                is_lightning: false,
                bases: Vec::new(),
                methods: Vec::new(),
            })
            .collect();
        let count = defs.funcs.len();
        Self {
            model: Model {
                module,
                uses_torch: false,
                ctxs: Vec::new(),
                stmts: Vec::new(),
                starts: OnceCell::new(),
                calls: Vec::new(),
                assigns: Vec::new(),
                backwards: Vec::new(),
                funcs,
                classes,
                loops: Vec::new(),
                cpu_only: std::cell::OnceCell::new(),
                evidence: std::cell::OnceCell::new(),
                tests: std::cell::OnceCell::new(),
                by_function: std::cell::OnceCell::new(),
                kept_into_next: std::cell::OnceCell::new(),
                around: Around::default(),
            },
            defs,
            usage,
            learned,
            vars: Vars::default(),
            frame: None,
            func: None,
            class: None,
            ctx: CtxId(0),
            stmt: StmtId(0),
            grad: Grad::On,
            pending: Vec::new(),
            queue: Vec::new(),
            next_returns: vec![None; count],
            next_params: vec![Vec::new(); count],
            next_graph_defs: FxHashSet::default(),
            sites: vec![Vec::new(); count],
            escaped: FxHashSet::default(),
        }
    }

    fn module(&mut self) {
        let module = self.model.module;
        let end = TextSize::of(module.text());
        for (bound, full) in self.model.around.clone().torch_names() {
            self.note_import(full);
            self.bind_import(bound, full);
        }
        self.ctx = self.push_ctx(None, CtxKind::Module, TextRange::up_to(end));
        self.block(module.body());
        let frame = Rc::new(Frame {
            vars: std::mem::take(&mut self.vars),
            parent: None,
        });
        let module_grad = self.grad;
        self.release(&frame, module_grad);
        while let Some(next) = self.queue.pop() {
            self.function_body(&next);
        }
    }

    /// Queues the bodies that waited for the block that just ended, constructors first.
    fn release(&mut self, frame: &Rc<Frame>, module_grad: Grad) {
        let mut ready: Vec<Deferred> = self.pending.drain(..).collect();
        for each in &mut ready {
            each.frame = Rc::clone(frame);
            if module_grad != Grad::On {
                each.grad = module_grad;
            }
        }
        // The queue is a stack: what is pushed last is walked first. Constructors say what `self`
        // holds; after them, source order.
        ready.sort_by_key(|each| {
            let name = self.defs.funcs[each.func.index()].name.as_str();
            let rank = u8::from(!matches!(name, "__init__" | "setup" | "setUp"));
            (rank, each.func)
        });
        self.queue.extend(ready.into_iter().rev());
    }

    fn push_ctx(&mut self, parent: Option<CtxId>, kind: CtxKind<'a>, range: TextRange) -> CtxId {
        let id = CtxId(self.model.ctxs.len() as u32);
        self.model.ctxs.push(Ctx {
            parent,
            kind,
            range,
            func: self.func,
            class: self.class,
        });
        id
    }

    /// Runs `walk` in a new context.
    fn inside<T>(
        &mut self,
        kind: CtxKind<'a>,
        range: TextRange,
        walk: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let outer = self.ctx;
        self.ctx = self.push_ctx(Some(outer), kind, range);
        let result = walk(self);
        self.ctx = outer;
        result
    }
}
