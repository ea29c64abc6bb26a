//! The walker: an abstract interpreter over the statements of a file, in source order.
//!
//! Branches are walked from the same state and joined; a branch that leaves (`return`, `raise`,
//! `continue`, `break`) does not take part. Loops are walked once: rules about loop-carried values
//! look at the recorded assignments instead. Bodies of functions wait until the block that holds
//! them is done, so that they see the module as it is when they are called.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use ruff_python_ast::visitor::{Visitor, walk_expr};
use ruff_python_ast::{
    self as ast, ExceptHandler, Expr, ExprCall, Operator, Stmt, StmtClassDef, StmtFunctionDef,
};
use ruff_text_size::{Ranged, TextRange, TextSize};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use super::names::{names_in, place_of};
use super::torch;
use super::value::{DefId, Device, Kind, ModelKind, Tri, Value};
use super::{
    Assign, Backward, Bind, Call, Class, ClassId, Ctx, CtxId, CtxKind, Func, FuncId, Grad, Loop,
    Model, StmtId, StmtInfo,
};

/// Roots of imports that make a file one of PyTorch's world.
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
pub(crate) fn build<'a>(source: &'a str, body: &'a [Stmt]) -> Model<'a> {
    let defs = collect(body);
    let mut learned = Learned {
        params: vec![Vec::new(); defs.funcs.len()],
        returns: vec![None; defs.funcs.len()],
        covered: vec![false; defs.funcs.len()],
        class_attrs: vec![FxHashMap::default(); defs.classes.len()],
        graph_defs: FxHashSet::default(),
    };
    let mut first = Walker::new(source, &defs, learned);
    first.module(body);
    learned = first.finish_learning();
    let mut second = Walker::new(source, &defs, learned);
    second.module(body);
    second.finish()
}

/// The functions and classes of a file, found before anything is walked.
struct Defs<'a> {
    funcs: Vec<&'a StmtFunctionDef>,
    classes: Vec<&'a StmtClassDef>,
    func_at: FxHashMap<TextSize, FuncId>,
    class_at: FxHashMap<TextSize, ClassId>,
}

fn collect(body: &[Stmt]) -> Defs<'_> {
    fn block<'a>(defs: &mut Defs<'a>, body: &'a [Stmt]) {
        for stmt in body {
            match stmt {
                Stmt::FunctionDef(def) => {
                    let id = FuncId(defs.funcs.len() as u32);
                    defs.funcs.push(def);
                    defs.func_at.insert(def.range.start(), id);
                    block(defs, &def.body);
                }
                Stmt::ClassDef(def) => {
                    let id = ClassId(defs.classes.len() as u32);
                    defs.classes.push(def);
                    defs.class_at.insert(def.range.start(), id);
                    block(defs, &def.body);
                }
                Stmt::For(node) => {
                    block(defs, &node.body);
                    block(defs, &node.orelse);
                }
                Stmt::While(node) => {
                    block(defs, &node.body);
                    block(defs, &node.orelse);
                }
                Stmt::If(node) => {
                    block(defs, &node.body);
                    for clause in &node.elif_else_clauses {
                        block(defs, &clause.body);
                    }
                }
                Stmt::With(node) => block(defs, &node.body),
                Stmt::Try(node) => {
                    block(defs, &node.body);
                    for ExceptHandler::ExceptHandler(handler) in &node.handlers {
                        block(defs, &handler.body);
                    }
                    block(defs, &node.orelse);
                    block(defs, &node.finalbody);
                }
                Stmt::Match(node) => {
                    for case in &node.cases {
                        block(defs, &case.body);
                    }
                }
                _ => {}
            }
        }
    }
    let mut defs = Defs {
        funcs: Vec::new(),
        classes: Vec::new(),
        func_at: FxHashMap::default(),
        class_at: FxHashMap::default(),
    };
    block(&mut defs, body);
    defs
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
    fn new(source: &'a str, defs: &'d Defs<'a>, learned: Learned) -> Self {
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
                source,
                uses_torch: false,
                ctxs: Vec::new(),
                stmts: Vec::new(),
                calls: Vec::new(),
                assigns: Vec::new(),
                backwards: Vec::new(),
                funcs,
                classes,
                loops: Vec::new(),
            },
            defs,
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

    fn module(&mut self, body: &'a [Stmt]) {
        let end = TextSize::of(self.model.source);
        self.ctx = self.push_ctx(None, CtxKind::Module, TextRange::up_to(end));
        self.block(body);
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

    fn function_body(&mut self, next: &Deferred) {
        let def = self.defs.funcs[next.func.index()];
        self.vars = Vars::default();
        self.frame = Some(Rc::clone(&next.frame));
        self.func = Some(next.func);
        self.class = next.class;
        self.grad = if next.grad == Grad::On && self.learned.covered[next.func.index()] {
            Grad::CallerOff
        } else {
            next.grad
        };
        self.ctx = self.push_ctx(
            Some(next.outer),
            CtxKind::Function(next.func),
            TextRange::new(
                def.body.first().map_or(def.range.start(), Ranged::start),
                def.range.end(),
            ),
        );
        self.model.funcs[next.func.index()].body = Some(self.ctx);
        self.model.funcs[next.func.index()].class = next.class;
        for (index, parameter) in def.parameters.iter_non_variadic_params().enumerate() {
            let name = parameter.parameter.name.as_str();
            if index == 0 && next.class.is_some() && matches!(name, "self" | "cls") {
                continue;
            }
            let value = self.learned.params[next.func.index()]
                .get(index)
                .cloned()
                .flatten()
                .unwrap_or_default();
            self.vars.insert(name.to_string(), value);
        }
        for parameter in [&def.parameters.vararg, &def.parameters.kwarg]
            .into_iter()
            .flatten()
        {
            self.vars
                .insert(parameter.name.to_string(), Value::unknown());
        }
        self.block(&def.body);
        let frame = Rc::new(Frame {
            vars: std::mem::take(&mut self.vars),
            parent: Some(Rc::clone(&next.frame)),
        });
        self.release(&frame, Grad::On);
    }

    fn finish_learning(mut self) -> Learned {
        // A function is covered if it is called, and every call is made without gradients; calls
        // from covered functions count. From "none is covered", this only grows.
        let mut covered = vec![false; self.sites.len()];
        loop {
            let mut changed = false;
            for index in 0..covered.len() {
                let id = FuncId(index as u32);
                if covered[index] || self.escaped.contains(&id) || self.sites[index].is_empty() {
                    continue;
                }
                let all = self.sites[index].iter().all(|site| match site.grad {
                    Grad::Off | Grad::CallerOff => true,
                    Grad::On => site.caller.is_some_and(|caller| covered[caller.index()]),
                    Grad::Maybe => false,
                });
                if all {
                    covered[index] = true;
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        Learned {
            params: std::mem::take(&mut self.next_params),
            returns: std::mem::take(&mut self.next_returns),
            covered,
            class_attrs: self.learned.class_attrs,
            graph_defs: self.next_graph_defs,
        }
    }

    fn finish(mut self) -> Model<'a> {
        let model = &mut self.model;
        for (func, sites) in model.funcs.iter_mut().zip(&self.sites) {
            func.called = !sites.is_empty();
        }
        for backward in &model.backwards {
            if let Some(func) = model.ctxs[backward.ctx.index()].func {
                model.funcs[func.index()].has_backward = true;
            }
        }
        for call in &model.calls {
            let Some(func) = model.ctxs[call.ctx.index()].func else {
                continue;
            };
            if is_step(call) {
                model.funcs[func.index()].has_step = true;
            }
            if is_zero_grad(call) {
                model.funcs[func.index()].has_zero_grad = true;
            }
        }
        // Through calls inside the file, until nothing changes.
        loop {
            let mut changed = false;
            for call in &model.calls {
                let (Some(caller), Some(target)) = (model.ctxs[call.ctx.index()].func, call.target)
                else {
                    continue;
                };
                let inner = &model.funcs[target.index()];
                let facts = (inner.has_backward, inner.has_step, inner.has_zero_grad);
                let func = &mut model.funcs[caller.index()];
                let before = (func.has_backward, func.has_step, func.has_zero_grad);
                func.has_backward |= facts.0;
                func.has_step |= facts.1;
                func.has_zero_grad |= facts.2;
                changed |= before != (func.has_backward, func.has_step, func.has_zero_grad);
            }
            if !changed {
                break;
            }
        }
        self.mark_loops();
        self.model
    }

    /// Decides which loops train: the innermost loop around a `backward()`, or around a call of a
    /// function of the file whose `backward()` is under no loop of its own.
    fn mark_loops(&mut self) {
        let mut in_own_loop: FxHashSet<FuncId> = FxHashSet::default();
        let mut sites: Vec<CtxId> = self.model.backwards.iter().map(|each| each.ctx).collect();
        for each in &self.model.backwards {
            if let Some(func) = self.model.ctx(each.ctx).func
                && self.model.loops_around(each.ctx).next().is_some()
            {
                in_own_loop.insert(func);
            }
        }
        let mut contains: Vec<CtxId> = sites.clone();
        for call in &self.model.calls {
            if let Some(target) = call.target
                && self.model.func(target).has_backward
            {
                contains.push(call.ctx);
                if !in_own_loop.contains(&target) && self.model.func(target).has_backward {
                    sites.push(call.ctx);
                }
            }
        }
        let mut trains: FxHashSet<CtxId> = FxHashSet::default();
        for site in sites {
            if let Some(inner) = self.model.loops_around(site).next() {
                trains.insert(inner.ctx);
            }
        }
        let mut holds: FxHashSet<CtxId> = FxHashSet::default();
        for site in contains {
            for each in self.model.loops_around(site) {
                holds.insert(each.ctx);
            }
        }
        for each in &mut self.model.loops {
            each.trains = trains.contains(&each.ctx);
            each.contains_backward = holds.contains(&each.ctx);
        }
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

    // ---- statements -------------------------------------------------------------------------

    /// Walks a block; `false` if control never reaches its end.
    fn block(&mut self, body: &'a [Stmt]) -> bool {
        let mut falls = true;
        for (index, stmt) in body.iter().enumerate() {
            self.stmt = StmtId(self.model.stmts.len() as u32);
            self.model.stmts.push(StmtInfo {
                node: stmt,
                ctx: self.ctx,
                block: body,
                index,
            });
            falls &= self.stmt(stmt);
        }
        falls
    }

    fn stmt(&mut self, stmt: &'a Stmt) -> bool {
        match stmt {
            Stmt::Import(node) => {
                for alias in &node.names {
                    let full = alias.name.as_str();
                    self.note_import(full);
                    let (bound, qual) = if let Some(name) = &alias.asname {
                        (name.as_str(), full)
                    } else {
                        let root = full.split('.').next().unwrap_or(full);
                        (root, root)
                    };
                    self.bind_import(bound, qual);
                }
                true
            }
            Stmt::ImportFrom(node) => {
                let module = node.module.as_ref().map_or("", |name| name.as_str());
                if node.level == 0 {
                    self.note_import(module);
                }
                let dots = ".".repeat(node.level.min(8) as usize);
                for alias in &node.names {
                    let bound = alias.asname.as_ref().unwrap_or(&alias.name).as_str();
                    let qual = format!("{dots}{module}.{}", alias.name.as_str());
                    self.bind_import(bound, &qual);
                }
                true
            }
            Stmt::FunctionDef(def) => {
                self.function_def(def);
                true
            }
            Stmt::ClassDef(def) => {
                self.class_def(def);
                true
            }
            Stmt::Assign(node) => {
                let value = self.eval(&node.value);
                for target in &node.targets {
                    self.assign(target, value.clone(), Some(&node.value), Bind::Set);
                }
                true
            }
            Stmt::AnnAssign(node) => {
                if let Some(expr) = &node.value {
                    let value = self.eval(expr);
                    self.assign(&node.target, value, Some(expr), Bind::Set);
                }
                true
            }
            Stmt::AugAssign(node) => {
                self.aug_assign(node);
                true
            }
            Stmt::Expr(node) => {
                let value = self.eval(&node.value);
                self.grad_statement(&node.value);
                drop(value);
                true
            }
            Stmt::Return(node) => {
                let value = node.value.as_deref().map(|expr| self.eval(expr));
                if let (Some(func), Some(value)) = (self.func, value) {
                    let slot = &mut self.next_returns[func.index()];
                    *slot = Some(match slot.take() {
                        Some(before) => before.join(&value, DefId::default()),
                        None => value,
                    });
                }
                false
            }
            Stmt::Raise(node) => {
                for expr in [&node.exc, &node.cause].into_iter().flatten() {
                    self.eval(expr);
                }
                false
            }
            Stmt::Break(_) | Stmt::Continue(_) => false,
            Stmt::Delete(node) => {
                for target in &node.targets {
                    self.eval(target);
                    if let Some(place) = place_of(target) {
                        self.vars.remove(&place);
                    }
                }
                true
            }
            Stmt::Assert(node) => {
                self.eval(&node.test);
                true
            }
            Stmt::For(node) => {
                let iter = self.eval(&node.iter);
                let element = element_of(&iter);
                let data = self.iterates_data(&node.iter, &iter);
                let before = self.vars.clone();
                let grad = self.grad;
                self.inside(CtxKind::For, node.range, |this| {
                    this.assign(&node.target, element, None, Bind::Other);
                    let ctx = this.ctx;
                    this.model.loops.push(Loop {
                        ctx,
                        range: node.range,
                        body: &node.body,
                        data,
                        trains: false,
                        contains_backward: false,
                        grad,
                    });
                    this.block(&node.body);
                });
                self.grad = grad;
                self.block(&node.orelse);
                self.keep_missing(before);
                true
            }
            Stmt::While(node) => {
                self.eval(&node.test);
                let before = self.vars.clone();
                let grad = self.grad;
                self.inside(CtxKind::While, node.range, |this| {
                    let ctx = this.ctx;
                    this.model.loops.push(Loop {
                        ctx,
                        range: node.range,
                        body: &node.body,
                        data: false,
                        trains: false,
                        contains_backward: false,
                        grad,
                    });
                    this.block(&node.body);
                });
                self.grad = grad;
                self.block(&node.orelse);
                self.keep_missing(before);
                true
            }
            Stmt::If(node) => self.if_stmt(node),
            Stmt::With(node) => self.with_stmt(node),
            Stmt::Try(node) => self.try_stmt(node),
            Stmt::Match(node) => {
                self.eval(&node.subject);
                let before = self.vars.clone();
                let mut joined: Option<Vars> = None;
                for case in &node.cases {
                    self.vars.clone_from(&before);
                    if let Some(guard) = &case.guard {
                        self.eval(guard);
                    }
                    let falls = self.inside(CtxKind::Branch(None), case.range, |this| {
                        this.block(&case.body)
                    });
                    if falls {
                        let after = std::mem::take(&mut self.vars);
                        joined = Some(match joined {
                            Some(other) => join_vars(other, after, case.range.end()),
                            None => after,
                        });
                    }
                }
                self.vars = match joined {
                    Some(vars) => join_vars(before, vars, node.range.end()),
                    None => before,
                };
                true
            }
            Stmt::Global(_)
            | Stmt::Nonlocal(_)
            | Stmt::Pass(_)
            | Stmt::TypeAlias(_)
            | Stmt::IpyEscapeCommand(_) => true,
        }
    }

    /// After a loop: names that the body left by `continue` only are as before.
    fn keep_missing(&mut self, before: Vars) {
        for (name, value) in before {
            self.vars.entry(name).or_insert(value);
        }
    }

    fn if_stmt(&mut self, node: &'a ast::StmtIf) -> bool {
        self.eval(&node.test);
        let before = self.vars.clone();
        let grad = self.grad;
        let mut joined: Option<Vars> = None;
        let mut any_falls = false;
        let mut has_else = false;
        let end = node.range.end();
        let falls = self.inside(
            CtxKind::Branch(Some(&node.test)),
            block_range(&node.body),
            |this| this.block(&node.body),
        );
        if falls {
            joined = Some(std::mem::take(&mut self.vars));
            any_falls = true;
        }
        for clause in &node.elif_else_clauses {
            self.vars.clone_from(&before);
            self.grad = grad;
            if let Some(test) = &clause.test {
                self.eval(test);
            } else {
                has_else = true;
            }
            let falls = self.inside(
                CtxKind::Branch(clause.test.as_ref()),
                block_range(&clause.body),
                |this| this.block(&clause.body),
            );
            if falls {
                let after = std::mem::take(&mut self.vars);
                joined = Some(match joined {
                    Some(other) => join_vars(other, after, end),
                    None => after,
                });
                any_falls = true;
            }
        }
        if self.grad != grad {
            self.grad = Grad::Maybe;
        }
        if has_else {
            self.vars = joined.unwrap_or(before);
            any_falls
        } else {
            self.vars = match joined {
                Some(vars) => join_vars(before, vars, end),
                None => before,
            };
            true
        }
    }

    fn with_stmt(&mut self, node: &'a ast::StmtWith) -> bool {
        let grad = self.grad;
        for item in &node.items {
            let value = self.eval(&item.context_expr);
            let mut bound = value;
            if let Expr::Call(call) = &item.context_expr {
                let qual = self.qual_of(&call.func);
                let qual = qual.as_deref().unwrap_or_default();
                if torch::is_no_grad(qual) {
                    // `inference_mode(mode)` and `no_grad()`.
                    self.grad = match call.arguments.find_positional(0) {
                        None => Grad::Off,
                        Some(Expr::BooleanLiteral(flag)) => {
                            if flag.value {
                                Grad::Off
                            } else {
                                self.grad
                            }
                        }
                        Some(_) => Grad::Maybe,
                    };
                } else if qual == "torch.set_grad_enabled" {
                    self.grad = grad_flag(call);
                } else if qual == "torch.enable_grad" {
                    self.grad = Grad::On;
                } else if let Some("scale_loss") = attr_name(&call.func) {
                    // apex: the scaled loss stands for the loss.
                    if let Some(loss) = call.arguments.find_positional(0) {
                        bound = self.peek(loss);
                        bound.graph = Tri::Yes;
                        bound.kind = Kind::Tensor;
                    }
                } else if qual.contains("no_grad")
                    || attr_name(&call.func).is_some_and(|name| name.contains("no_grad"))
                {
                    self.grad = Grad::Off;
                }
            } else if let Some(place) = place_of(&item.context_expr) {
                // A stored context: `with ctx:`. It may be anything.
                let lower = place.to_ascii_lowercase();
                if lower.contains("grad") {
                    self.grad = Grad::Maybe;
                }
            }
            if let Some(target) = item.optional_vars.as_deref() {
                self.assign(target, bound, None, Bind::Other);
            }
        }
        let falls = self.inside(CtxKind::With(node), node.range, |this| {
            this.block(&node.body)
        });
        self.grad = grad;
        falls
    }

    fn try_stmt(&mut self, node: &'a ast::StmtTry) -> bool {
        let before = self.vars.clone();
        let end = node.range.end();
        let mut falls = self.inside(CtxKind::Try, block_range(&node.body), |this| {
            this.block(&node.body)
        });
        if !node.orelse.is_empty() {
            falls &= self.block(&node.orelse);
        }
        let after = self.vars.clone();
        let mut joined = falls.then_some(after);
        for ExceptHandler::ExceptHandler(handler) in &node.handlers {
            self.vars.clone_from(&before);
            if let Some(type_) = &handler.type_ {
                self.eval(type_);
            }
            if let Some(name) = &handler.name {
                self.vars.insert(name.to_string(), Value::unknown());
            }
            let leaves = !self.inside(CtxKind::Handler, handler.range, |this| {
                this.block(&handler.body)
            });
            if !leaves {
                let vars = std::mem::take(&mut self.vars);
                joined = Some(match joined {
                    // An import that falls back to another keeps the first name.
                    Some(other) => join_vars(other, vars, end),
                    None => vars,
                });
            }
        }
        let falls = joined.is_some();
        self.vars = joined.unwrap_or(before);
        let finally = self.block(&node.finalbody);
        falls && finally
    }

    fn function_def(&mut self, def: &'a StmtFunctionDef) {
        let Some(&func) = self.defs.func_at.get(&def.range.start()) else {
            return;
        };
        let mut grad = Grad::On;
        for decorator in &def.decorator_list {
            self.eval(&decorator.expression);
            let (callee, call) = match &decorator.expression {
                Expr::Call(call) => (&*call.func, Some(call)),
                other => (other, None),
            };
            let qual = self.qual_of(callee).unwrap_or_default();
            if torch::is_no_grad(&qual) {
                grad = Grad::Off;
            } else if qual.as_ref() == "torch.set_grad_enabled" {
                grad = call.map_or(Grad::On, grad_flag);
            } else if attr_or_name(callee).is_some_and(|name| name.contains("no_grad")) {
                grad = Grad::Off;
            }
        }
        for parameter in def.parameters.iter_non_variadic_params() {
            if let Some(default) = &parameter.default {
                self.eval(default);
            }
        }
        let class = if self.in_class_body() {
            self.class
        } else {
            None
        };
        if let Some(class) = class {
            let info = &mut self.model.classes[class.index()];
            info.methods.push(func);
            if info.is_lightning && is_lightning_eval(def.name.as_str()) {
                grad = Grad::Off;
            }
        }
        let method_of = class.or(if self.func.is_some() {
            self.class
        } else {
            None
        });
        self.pending.push(Deferred {
            func,
            class: method_of,
            // Replaced when the enclosing block ends.
            frame: Rc::new(Frame {
                vars: Vars::default(),
                parent: None,
            }),
            outer: self.ctx,
            grad,
        });
        if class.is_none() {
            self.vars
                .insert(def.name.to_string(), Value::of(Kind::Func(func)));
        }
    }

    fn in_class_body(&self) -> bool {
        matches!(self.model.ctx(self.ctx).kind, CtxKind::Class)
    }

    fn class_def(&mut self, def: &'a StmtClassDef) {
        let Some(&id) = self.defs.class_at.get(&def.range.start()) else {
            return;
        };
        for decorator in &def.decorator_list {
            self.eval(&decorator.expression);
        }
        if let Some(arguments) = &def.arguments {
            for base in &arguments.args {
                let value = self.eval(base);
                let name = attr_or_name(base).unwrap_or_default();
                let info = &mut self.model.classes[id.index()];
                match value.kind {
                    Kind::Qual(qual) => {
                        info.is_module |= torch::is_module_base(&qual);
                        info.is_dataset |= torch::is_dataset_base(&qual);
                        info.is_lightning |= torch::is_lightning_base(name);
                    }
                    Kind::Class(base) => {
                        info.bases.push(base);
                        let base = &self.model.classes[base.index()];
                        let facts = (base.is_module, base.is_dataset, base.is_lightning);
                        let info = &mut self.model.classes[id.index()];
                        info.is_module |= facts.0;
                        info.is_dataset |= facts.1;
                        info.is_lightning |= facts.2;
                    }
                    _ => {}
                }
            }
        }
        let is_lightning_like = def.body.iter().any(
            |stmt| matches!(stmt, Stmt::FunctionDef(def) if def.name.as_str() == "training_step"),
        );
        self.model.classes[id.index()].is_lightning |= is_lightning_like;
        let outer_class = self.class.replace(id);
        let outer_vars = self.vars.clone();
        self.inside(CtxKind::Class, def.range, |this| this.block(&def.body));
        self.vars = outer_vars;
        self.class = outer_class;
        self.vars
            .insert(def.name.to_string(), Value::of(Kind::Class(id)));
    }

    fn note_import(&mut self, module: &str) {
        let root = module.split('.').next().unwrap_or(module);
        self.model.uses_torch |= TORCH_ROOTS.contains(&root);
    }

    fn bind_import(&mut self, bound: &str, qual: &str) {
        let value = Value::of(Kind::Qual(Rc::from(qual)));
        self.vars.insert(bound.to_string(), value);
    }

    /// `torch.set_grad_enabled(False)` as a statement holds for what follows.
    fn grad_statement(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr
            && self
                .qual_of(&call.func)
                .is_some_and(|qual| qual.as_ref() == "torch.set_grad_enabled")
        {
            self.grad = grad_flag(call);
        }
    }

    // ---- assignments ------------------------------------------------------------------------

    fn assign(&mut self, target: &'a Expr, value: Value, expr: Option<&'a Expr>, bind: Bind) {
        match target {
            Expr::Name(_) | Expr::Attribute(_) => {
                let Some(place) = place_of(target) else {
                    if let Expr::Attribute(attribute) = target {
                        self.eval(&attribute.value);
                    }
                    return;
                };
                let mut value = value;
                value.def = def_id(&place, target.range().start());
                if self.learned.graph_defs.contains(&value.def)
                    && matches!(value.kind, Kind::Unknown | Kind::Tensor)
                    && value.graph != Tri::No
                {
                    value.kind = Kind::Tensor;
                    value.graph = Tri::Yes;
                }
                self.record_assign(place.clone(), target, expr, value.clone(), bind);
                if let Some(attr) = place.strip_prefix("self.") {
                    self.note_attr(attr, &value);
                }
                self.vars.insert(place, value);
            }
            Expr::Subscript(subscript) => {
                self.eval(&subscript.value);
                self.eval(&subscript.slice);
                if let Some(base) = place_of(&subscript.value) {
                    self.record_assign(format!("{base}[]"), target, expr, value, bind);
                }
            }
            Expr::Tuple(ast::ExprTuple { elts, .. }) | Expr::List(ast::ExprList { elts, .. }) => {
                let literal = match expr {
                    Some(Expr::Tuple(tuple)) if tuple.elts.len() == elts.len() => Some(&tuple.elts),
                    _ => None,
                };
                // A criterion that returns more than the loss is the project's own: the rest is anything.
                let of_criterion = matches!(expr, Some(Expr::Call(call))
                    if matches!(self.peek_hinted(&call.func).kind, Kind::Criterion { .. }));
                for (index, elt) in elts.iter().enumerate() {
                    let part = if of_criterion && index > 0 {
                        Value::unknown()
                    } else {
                        unpacked(&value, index, elts.len())
                    };
                    if let Some(exprs) = literal {
                        self.assign(elt, part, Some(&exprs[index]), Bind::Set);
                    } else {
                        let bind = if bind == Bind::Other {
                            Bind::Other
                        } else {
                            Bind::Unpack
                        };
                        self.assign(elt, part, expr, bind);
                    }
                }
            }
            Expr::Starred(starred) => {
                self.assign(&starred.value, Value::of(Kind::Collection), None, bind);
            }
            _ => {}
        }
    }

    fn record_assign(
        &mut self,
        place: String,
        target: &'a Expr,
        expr: Option<&'a Expr>,
        value: Value,
        bind: Bind,
    ) {
        self.model.assigns.push(Assign {
            place,
            target,
            expr,
            value,
            bind,
            ctx: self.ctx,
            stmt: self.stmt,
            grad: self.grad,
        });
    }

    fn note_attr(&mut self, attr: &str, value: &Value) {
        let Some(class) = self.class else { return };
        let attrs = &mut self.learned.class_attrs[class.index()];
        let informative = !matches!(value.kind, Kind::Unknown | Kind::NoneLiteral);
        let mut value = value.clone();
        value.def = DefId::default();
        match attrs.get(attr) {
            Some(before)
                if before.kind != Kind::Unknown && informative && before.kind != value.kind =>
            {
                let joined = before.join(&value, DefId::default());
                attrs.insert(attr.to_string(), joined);
            }
            _ if informative => {
                attrs.insert(attr.to_string(), value);
            }
            _ => {}
        }
    }

    fn aug_assign(&mut self, node: &'a ast::StmtAugAssign) {
        let value = self.eval(&node.value);
        let before = self.eval(&node.target);
        let bind = if node.op == Operator::Add {
            Bind::Add
        } else {
            Bind::Augment
        };
        let after = if before.kind == Kind::Collection {
            before
        } else {
            binary(&before, &value)
        };
        // The recorded value is the operand: what rules about accumulation look at.
        match place_of(&node.target) {
            Some(place) => {
                let mut after = after;
                after.def = def_id(&place, node.target.range().start());
                if self.learned.graph_defs.contains(&after.def) && after.kind == Kind::Unknown {
                    after.kind = Kind::Tensor;
                    after.graph = Tri::Yes;
                }
                self.record_assign(place.clone(), &node.target, Some(&node.value), value, bind);
                self.vars.insert(place, after);
            }
            None => {
                if let Expr::Subscript(subscript) = &*node.target
                    && let Some(base) = place_of(&subscript.value)
                {
                    let place = format!("{base}[]");
                    self.record_assign(place, &node.target, Some(&node.value), value, bind);
                }
            }
        }
    }

    // ---- names ------------------------------------------------------------------------------

    fn lookup(&self, place: &str) -> Option<Value> {
        if let Some(value) = self.vars.get(place) {
            return Some(value.clone());
        }
        if let Some(attr) = place.strip_prefix("self.")
            && let Some(class) = self.class
        {
            return self.class_attr(class, attr, 0);
        }
        let mut frame = self.frame.as_ref();
        while let Some(scope) = frame {
            if let Some(value) = scope.vars.get(place) {
                return Some(value.clone());
            }
            frame = scope.parent.as_ref();
        }
        None
    }

    fn class_attr(&self, class: ClassId, attr: &str, depth: usize) -> Option<Value> {
        /// Inheritance deeper than this within one file is a cycle.
        const MAX_BASES: usize = 16;
        if let Some(value) = self.learned.class_attrs[class.index()].get(attr) {
            return Some(value.clone());
        }
        if let Some(method) = self.method_of(class, attr, 0) {
            return Some(Value::of(Kind::Func(method)));
        }
        if depth == MAX_BASES {
            return None;
        }
        self.model.classes[class.index()]
            .bases
            .iter()
            .find_map(|base| self.class_attr(*base, attr, depth + 1))
    }

    fn method_of(&self, class: ClassId, name: &str, depth: usize) -> Option<FuncId> {
        const MAX_BASES: usize = 16;
        let info = &self.model.classes[class.index()];
        let own = info
            .methods
            .iter()
            .copied()
            .find(|id| self.defs.funcs[id.index()].name.as_str() == name);
        if own.is_some() || depth == MAX_BASES {
            return own;
        }
        info.bases
            .iter()
            .find_map(|base| self.method_of(*base, name, depth + 1))
    }

    /// The full dotted name of an expression that is rooted in an import.
    fn qual_of(&self, expr: &Expr) -> Option<Rc<str>> {
        match expr {
            Expr::Name(name) => match self.lookup(name.id.as_str())?.kind {
                Kind::Qual(qual) => Some(qual),
                _ => None,
            },
            Expr::Attribute(_) => {
                let mut parts = Vec::new();
                let mut base = expr;
                while let Expr::Attribute(inner) = base {
                    parts.push(inner.attr.as_str());
                    base = &inner.value;
                }
                let Expr::Name(root) = base else {
                    return None;
                };
                let Kind::Qual(root) = self.lookup(root.id.as_str())?.kind else {
                    return None;
                };
                parts.push(&root);
                parts.reverse();
                Some(Rc::from(parts.join(".").as_str()))
            }
            _ => None,
        }
    }

    /// The value of an expression that has been evaluated already: records nothing.
    fn peek(&self, expr: &Expr) -> Value {
        place_of(expr)
            .and_then(|place| self.lookup(&place))
            .unwrap_or_default()
    }

    /// Whether a `for` iterates over batches.
    fn iterates_data(&self, expr: &Expr, value: &Value) -> bool {
        if value.kind == Kind::Loader {
            return true;
        }
        match expr {
            Expr::Call(call) => {
                let name = attr_or_name(&call.func).unwrap_or_default();
                matches!(
                    name,
                    "enumerate"
                        | "tqdm"
                        | "zip"
                        | "trange"
                        | "log_every"
                        | "iter"
                        | "track"
                        | "islice"
                        | "progress_bar"
                ) && call
                    .arguments
                    .args
                    .iter()
                    .any(|arg| self.iterates_data(arg, &self.peek_hinted(arg)))
            }
            Expr::Attribute(_) | Expr::Name(_) => self.peek_hinted(expr).kind == Kind::Loader,
            Expr::Subscript(subscript) => {
                let base = attr_or_name(&subscript.value).unwrap_or_default();
                base.to_ascii_lowercase().contains("loader")
            }
            _ => false,
        }
    }

    fn peek_hinted(&self, expr: &Expr) -> Value {
        match place_of(expr) {
            Some(place) => with_hint(self.lookup(&place).unwrap_or_default(), &place),
            None => Value::unknown(),
        }
    }

    // ---- expressions ------------------------------------------------------------------------

    fn eval(&mut self, expr: &'a Expr) -> Value {
        match expr {
            Expr::Name(name) => {
                let place = name.id.as_str();
                if place == "self"
                    && let Some(class) = self.class
                {
                    let kind = if self.model.classes[class.index()].is_module {
                        Kind::Model(ModelKind::Plain)
                    } else {
                        Kind::Instance
                    };
                    let mut value = Value::of(kind);
                    value.class = Some(class);
                    return value;
                }
                let value = self.lookup(place).unwrap_or_default();
                if let Kind::Func(func) = value.kind {
                    // Called functions are looked up elsewhere: this one is passed on.
                    self.escaped.insert(func);
                }
                with_hint(value, place)
            }
            Expr::Attribute(attribute) => self.eval_attribute(expr, attribute),
            Expr::Call(call) => self.eval_call(call),
            Expr::BinOp(node) => {
                let left = self.eval(&node.left);
                let right = self.eval(&node.right);
                binary(&left, &right)
            }
            Expr::UnaryOp(node) => {
                let value = self.eval(&node.operand);
                if node.op == ast::UnaryOp::Not || !value.is_tensor() {
                    return Value::plain();
                }
                value
            }
            Expr::Compare(node) => {
                let mut tensor = self.eval(&node.left).is_tensor();
                for each in &node.comparators {
                    tensor |= self.eval(each).is_tensor();
                }
                if tensor {
                    Value::tensor(Tri::No, Device::Unknown)
                } else {
                    Value::plain()
                }
            }
            Expr::BoolOp(node) => {
                let mut joined: Option<Value> = None;
                for each in &node.values {
                    let value = self.eval(each);
                    joined = Some(match joined {
                        Some(before) => before.join(&value, DefId::default()),
                        None => value,
                    });
                }
                joined.unwrap_or_default()
            }
            Expr::If(node) => {
                self.eval(&node.test);
                let body = self.eval(&node.body);
                let orelse = self.eval(&node.orelse);
                let mut value = body.join(&orelse, DefId::default());
                // `"cuda" if torch.cuda.is_available() else "cpu"`: the GPU is what is meant.
                if body.device == Device::Gpu || orelse.device == Device::Gpu {
                    value.device = Device::Gpu;
                }
                value
            }
            Expr::Named(node) => {
                let value = self.eval(&node.value);
                self.assign(&node.target, value.clone(), Some(&node.value), Bind::Set);
                value
            }
            Expr::Lambda(node) => {
                let saved = self.vars.clone();
                if let Some(parameters) = &node.parameters {
                    for parameter in parameters {
                        let name = parameter.name().to_string();
                        self.vars.insert(name, Value::unknown());
                    }
                }
                self.inside(CtxKind::Lambda, node.range, |this| this.eval(&node.body));
                self.vars = saved;
                Value::unknown()
            }
            Expr::Dict(node) => {
                let mut graph = Tri::No;
                for item in &node.items {
                    if let Some(key) = &item.key {
                        self.eval(key);
                    }
                    graph = graph.or(self.eval(&item.value).graph);
                }
                collection(graph)
            }
            Expr::List(ast::ExprList { elts, .. }) | Expr::Set(ast::ExprSet { elts, .. }) => {
                let mut graph = Tri::No;
                for elt in elts {
                    graph = graph.or(self.eval(elt).graph);
                }
                collection(graph)
            }
            Expr::Tuple(node) => {
                let values: Rc<[Value]> = node.elts.iter().map(|elt| self.eval(elt)).collect();
                let graph = values
                    .iter()
                    .fold(Tri::No, |graph, value| graph.or(value.graph));
                let mut value = Value::of(Kind::Tuple(values));
                value.graph = graph;
                value
            }
            Expr::ListComp(ast::ExprListComp {
                elt,
                generators,
                range,
                ..
            })
            | Expr::SetComp(ast::ExprSetComp {
                elt,
                generators,
                range,
                ..
            })
            | Expr::Generator(ast::ExprGenerator {
                elt,
                generators,
                range,
                ..
            }) => self.comprehension(generators, *range, &[&**elt]),
            Expr::DictComp(node) => {
                let elts: Vec<&'a Expr> = node
                    .key
                    .as_deref()
                    .into_iter()
                    .chain([&*node.value])
                    .collect();
                self.comprehension(&node.generators, node.range, &elts)
            }
            Expr::Subscript(node) => {
                let base = self.eval(&node.value);
                self.eval(&node.slice);
                match &base.kind {
                    Kind::Tuple(values) => constant_index(&node.slice)
                        .and_then(|index| values.get(index).cloned())
                        .unwrap_or_default(),
                    Kind::Tensor => Value {
                        softmax: false,
                        one_hot: false,
                        // `model(x)[0]` is an output; a slice of an output may be small.
                        model_output: base.model_output && constant_index(&node.slice).is_some(),
                        ..base
                    },
                    Kind::Collection => {
                        let mut value = Value::unknown();
                        if let Some(place) = place_of(expr) {
                            value = self.lookup(&place).unwrap_or_default();
                        }
                        value
                    }
                    _ => Value::unknown(),
                }
            }
            Expr::Slice(node) => {
                for each in [&node.lower, &node.upper, &node.step].into_iter().flatten() {
                    self.eval(each);
                }
                Value::plain()
            }
            Expr::Starred(node) => self.eval(&node.value),
            Expr::Await(node) => self.eval(&node.value),
            Expr::YieldFrom(node) => self.eval(&node.value),
            Expr::Yield(node) => {
                if let Some(value) = &node.value {
                    self.eval(value);
                }
                Value::unknown()
            }
            Expr::StringLiteral(node) => {
                let mut value = Value::plain();
                let text = node.value.to_str();
                if text.starts_with("cuda") {
                    value.device = Device::Gpu;
                } else if text == "cpu" {
                    value.device = Device::Cpu;
                }
                value
            }
            Expr::FString(_) | Expr::TString(_) => {
                let mut inner = Interpolations(Vec::new());
                walk_expr(&mut inner, expr);
                for each in inner.0 {
                    self.eval(each);
                }
                let mut value = Value::plain();
                let text = self.model.text(expr);
                if text.starts_with("f\"cuda") || text.starts_with("f'cuda") {
                    value.device = Device::Gpu;
                }
                value
            }
            Expr::NoneLiteral(_) => Value::of(Kind::NoneLiteral),
            Expr::BytesLiteral(_)
            | Expr::NumberLiteral(_)
            | Expr::BooleanLiteral(_)
            | Expr::EllipsisLiteral(_) => Value::plain(),
            Expr::IpyEscapeCommand(_) => Value::unknown(),
        }
    }

    fn comprehension(
        &mut self,
        generators: &'a [ast::Comprehension],
        range: TextRange,
        elts: &[&'a Expr],
    ) -> Value {
        let saved = self.vars.clone();
        let graph = self.inside(CtxKind::Comprehension, range, |this| {
            for generator in generators {
                let iter = this.eval(&generator.iter);
                this.assign(&generator.target, element_of(&iter), None, Bind::Other);
                for test in &generator.ifs {
                    this.eval(test);
                }
            }
            elts.iter()
                .fold(Tri::No, |graph, elt| graph.or(this.eval(elt).graph))
        });
        self.vars = saved;
        collection(graph)
    }

    fn eval_attribute(&mut self, expr: &'a Expr, attribute: &'a ast::ExprAttribute) -> Value {
        let base = self.eval(&attribute.value);
        let attr = attribute.attr.as_str();
        if let Some(place) = place_of(expr) {
            if let Some(value) = self.lookup(&place) {
                if let Kind::Func(func) = value.kind {
                    self.escaped.insert(func);
                }
                return with_hint(value, &place);
            }
            if let Kind::Qual(qual) = &base.kind {
                return Value::of(Kind::Qual(Rc::from(format!("{qual}.{attr}").as_str())));
            }
            if matches!(base.kind, Kind::Unknown | Kind::Instance | Kind::Model(_)) {
                if attr == "module" && base.is_model() {
                    return base;
                }
                if let Some(class) = base.class
                    && let Some(value) = self.class_attr(class, attr, 0)
                {
                    return value;
                }
                return with_hint(Value::unknown(), &place);
            }
        }
        match base.kind {
            Kind::Tensor => match attr {
                "data" | "grad" => Value {
                    graph: Tri::No,
                    def: DefId::default(),
                    ..base
                },
                "shape" | "dtype" | "ndim" | "is_cuda" | "requires_grad" | "grad_fn" => {
                    Value::plain()
                }
                "device" => Value::of(Kind::Device),
                _ => Value {
                    def: DefId::default(),
                    softmax: false,
                    ..base
                },
            },
            _ => Value::unknown(),
        }
    }

    fn eval_call(&mut self, call: &'a ExprCall) -> Value {
        let mut method = None;
        let mut recv = Value::unknown();
        let callee = match &*call.func {
            Expr::Attribute(attribute) => {
                method = Some(attribute.attr.as_str());
                recv = self.eval(&attribute.value);
                self.callee_attribute(&call.func, &recv, attribute.attr.as_str())
            }
            Expr::Name(name) => {
                let value = self.lookup(name.id.as_str()).unwrap_or_default();
                if name.id.as_str() == "self" {
                    self.eval(&call.func)
                } else {
                    with_hint(value, name.id.as_str())
                }
            }
            other => self.eval(other),
        };
        let args: Vec<Value> = call
            .arguments
            .args
            .iter()
            .map(|arg| self.eval(arg))
            .collect();
        let kwargs: Vec<(Option<&'a str>, Value)> = call
            .arguments
            .keywords
            .iter()
            .map(|keyword| {
                let name = keyword.arg.as_ref().map(ast::Identifier::as_str);
                (name, self.eval(&keyword.value))
            })
            .collect();
        let qual = match &callee.kind {
            Kind::Qual(qual) => Some(Rc::clone(qual)),
            _ => None,
        };
        let target = self.target_of(&callee);
        if let Some(func) = target {
            self.note_call(func, &callee, &args, &kwargs);
        } else if let Some(name) = method {
            self.note_call_by_name(name, &recv);
        }
        let result = self.result_of(call, &callee, &recv, method, &args, &kwargs, target);
        // A module moves in place, whether or not the result is bound.
        if recv.is_model()
            && matches!(method, Some("cuda" | "cpu" | "to"))
            && let Expr::Attribute(attribute) = &*call.func
            && let Some(place) = place_of(&attribute.value)
            && let Some(value) = self.vars.get_mut(&place)
        {
            value.device = result.device;
        }
        let index = self.model.calls.len();
        self.model.calls.push(Call {
            node: call,
            ctx: self.ctx,
            stmt: self.stmt,
            qual,
            method,
            recv,
            callee,
            args,
            target,
            grad: self.grad,
            result: result.clone(),
        });
        self.note_backward(index, call, method);
        // `stack.enter_context(torch.no_grad())` holds until the stack's `with` ends.
        if method == Some("enter_context")
            && let Some(Expr::Call(context)) = call.arguments.find_positional(0)
            && self
                .qual_of(&context.func)
                .is_some_and(|qual| torch::is_no_grad(&qual))
        {
            self.grad = Grad::Off;
        }
        result
    }

    /// The value of `recv.attr` in front of a call. Looking it up does not let a method escape.
    fn callee_attribute(&mut self, func: &'a Expr, recv: &Value, attr: &str) -> Value {
        if let Kind::Qual(qual) = &recv.kind {
            return Value::of(Kind::Qual(Rc::from(format!("{qual}.{attr}").as_str())));
        }
        if let Some(place) = place_of(func) {
            if let Some(value) = self.lookup(&place) {
                return with_hint(value, &place);
            }
            if let Some(class) = recv.class
                && let Some(value) = self.class_attr(class, attr, 0)
            {
                return value;
            }
            return with_hint(Value::unknown(), &place);
        }
        if let Some(class) = recv.class
            && let Some(method) = self.method_of(class, attr, 0)
        {
            return Value::of(Kind::Func(method));
        }
        Value::unknown()
    }

    fn target_of(&self, callee: &Value) -> Option<FuncId> {
        match callee.kind {
            Kind::Func(func) => Some(func),
            Kind::Class(class) => self.method_of(class, "__init__", 0),
            Kind::Model(_) => callee
                .class
                .and_then(|class| self.method_of(class, "forward", 0)),
            _ => None,
        }
    }

    /// `model.inference(x)` of an object whose class is not known may be any method of that name: the
    /// call counts as a place that they are called from, and says nothing about their parameters.
    fn note_call_by_name(&mut self, name: &str, recv: &Value) {
        // Names that modules and optimizers have themselves say nothing about methods of this file.
        if matches!(recv.kind, Kind::Qual(_) | Kind::Tensor | Kind::Plain)
            || matches!(name, "eval" | "train" | "forward" | "to" | "step")
        {
            return;
        }
        let site = Site {
            caller: self.func,
            grad: self.grad,
        };
        for class in &self.model.classes {
            for method in &class.methods {
                if self.defs.funcs[method.index()].name.as_str() == name {
                    self.sites[method.index()].push(site);
                }
            }
        }
    }

    /// Remembers what this call passes to a function of the file.
    fn note_call(
        &mut self,
        func: FuncId,
        callee: &Value,
        args: &[Value],
        kwargs: &[(Option<&'a str>, Value)],
    ) {
        self.sites[func.index()].push(Site {
            caller: self.func,
            grad: self.grad,
        });
        let def = self.defs.funcs[func.index()];
        let names: Vec<&str> = def
            .parameters
            .iter_non_variadic_params()
            .map(|parameter| parameter.parameter.name.as_str())
            .collect();
        let bound = names
            .first()
            .is_some_and(|name| matches!(*name, "self" | "cls"))
            || matches!(callee.kind, Kind::Class(_) | Kind::Model(_));
        let shift = usize::from(bound);
        let slots = &mut self.next_params[func.index()];
        slots.resize(names.len(), None);
        let positional = args
            .iter()
            .enumerate()
            .map(|(index, value)| (index + shift, value));
        let keywords = kwargs.iter().filter_map(|(name, value)| {
            let position = names.iter().position(|each| Some(*each) == *name)?;
            Some((position, value))
        });
        for (index, value) in positional.chain(keywords) {
            let Some(slot) = slots.get_mut(index) else {
                continue;
            };
            let mut value = value.clone();
            value.def = DefId::default();
            *slot = Some(match slot.take() {
                None => value,
                Some(before) if matches!(before.kind, Kind::Unknown | Kind::NoneLiteral) => Value {
                    graph: if before.graph == value.graph {
                        before.graph
                    } else {
                        Tri::Unknown
                    },
                    ..value
                },
                Some(before) if matches!(value.kind, Kind::Unknown | Kind::NoneLiteral) => Value {
                    graph: if before.graph == value.graph {
                        before.graph
                    } else {
                        Tri::Unknown
                    },
                    ..before
                },
                Some(before) => before.join(&value, DefId::default()),
            });
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one call, used once"
    )]
    fn result_of(
        &mut self,
        call: &'a ExprCall,
        callee: &Value,
        recv: &Value,
        method: Option<&'a str>,
        args: &[Value],
        kwargs: &[(Option<&'a str>, Value)],
        target: Option<FuncId>,
    ) -> Value {
        let any_graph = args
            .iter()
            .chain(kwargs.iter().map(|(_, value)| value))
            .any(Value::has_graph);
        let recording = matches!(self.grad, Grad::On);
        match &callee.kind {
            Kind::Qual(qual) => {
                let qual = Rc::clone(qual);
                return self.result_of_qual(&qual, call, args, kwargs, any_graph);
            }
            Kind::Class(class) => {
                let info = &self.model.classes[class.index()];
                let kind = if info.is_module {
                    Kind::Model(ModelKind::Plain)
                } else if info.is_dataset {
                    Kind::Dataset
                } else if info.node.name.as_str() == "AverageMeter" {
                    Kind::Meter
                } else {
                    Kind::Instance
                };
                let mut value = Value::of(kind);
                value.class = Some(*class);
                return value;
            }
            Kind::Func(func) => {
                let mut value = self.learned.returns[func.index()]
                    .clone()
                    .unwrap_or_default();
                value.def = DefId::default();
                if !recording && value.graph == Tri::Yes {
                    value.graph = Tri::No;
                }
                return value;
            }
            Kind::Model(kind) => {
                let graph = match self.grad {
                    Grad::On => Tri::Yes,
                    Grad::Off | Grad::CallerOff => Tri::No,
                    Grad::Maybe => Tri::Unknown,
                };
                if let (Some(func), Kind::Model(ModelKind::Plain)) = (target, &callee.kind) {
                    // What `forward` of this file returns, if it says more than "a tensor".
                    if let Some(returned) = &self.learned.returns[func.index()]
                        && matches!(returned.kind, Kind::Tensor | Kind::Tuple(_))
                    {
                        let mut value = returned.clone();
                        value.def = DefId::default();
                        value.model_output = true;
                        value.graph = graph;
                        value.device = callee.device;
                        return value;
                    }
                }
                let mut value = Value::tensor(graph, callee.device);
                match kind {
                    ModelKind::Softmax => {
                        value.softmax = true;
                        value.graph = args.first().map_or(Tri::Unknown, |arg| arg.graph);
                    }
                    _ => value.model_output = true,
                }
                return value;
            }
            Kind::Criterion { .. } => {
                let graph = if any_graph && recording {
                    Tri::Yes
                } else if !recording && self.grad != Grad::Maybe {
                    Tri::No
                } else {
                    Tri::Unknown
                };
                // The target is where the prediction is, or the call fails.
                let device = args.first().map_or(Device::Unknown, |arg| arg.device);
                return Value::tensor(graph, device);
            }
            _ => {}
        }
        match method {
            Some(name) => self.result_of_method(name, call, recv, args, any_graph),
            None => match &*call.func {
                Expr::Name(name) => result_of_builtin(name.id.as_str(), args),
                _ => Value::unknown(),
            },
        }
    }

    fn result_of_qual(
        &mut self,
        qual: &str,
        call: &'a ExprCall,
        args: &[Value],
        kwargs: &[(Option<&'a str>, Value)],
        any_graph: bool,
    ) -> Value {
        let last = qual.rsplit('.').next().unwrap_or(qual);
        if torch::is_data_parallel(qual) || torch::is_ddp(qual) || qual == "torch.compile" {
            let mut value = args.first().cloned().unwrap_or_default();
            if !value.is_model() {
                value.kind = Kind::Model(ModelKind::Plain);
            }
            value.def = DefId::default();
            return value;
        }
        if qual == "torch.device" {
            let mut value = Value::of(Kind::Device);
            value.device = args.first().map_or(Device::Unknown, |arg| arg.device);
            return value;
        }
        if matches!(qual, "copy.deepcopy" | "copy.copy") {
            return args.first().cloned().unwrap_or_default();
        }
        if matches!(last, "tqdm" | "track") && !qual.starts_with("torch.") {
            return args.first().cloned().unwrap_or_default();
        }
        if qual.starts_with("torch.optim.")
            && let Some(kind) = torch::constructed(qual)
        {
            return Value::of(kind);
        }
        if let Some(kind) = torch::constructed(qual) {
            let mut value = Value::of(kind);
            if value.kind == Kind::Checkpoint {
                value.graph = Tri::No;
            }
            return value;
        }
        if torch::is_factory(qual) {
            let device = kwargs
                .iter()
                .find(|(name, _)| *name == Some("device"))
                .map_or(Device::Cpu, |(_, value)| value.device);
            return Value::tensor(Tri::No, device);
        }
        if torch::is_tensor_function(qual) {
            let device = args
                .iter()
                .map(|arg| arg.device)
                .find(|device| *device != Device::Unknown);
            let recording = matches!(self.grad, Grad::On);
            let graph = if torch::makes_no_graph(last) || (!recording && self.grad != Grad::Maybe) {
                Tri::No
            } else if any_graph && recording {
                Tri::Yes
            } else if !args.is_empty() && args.iter().all(|arg| arg.graph == Tri::No) {
                Tri::No
            } else {
                Tri::Unknown
            };
            let mut value = Value::tensor(graph, device.unwrap_or_default());
            value.softmax = matches!(last, "softmax" | "log_softmax");
            value.one_hot = last == "one_hot";
            value.model_output =
                args.first().is_some_and(|arg| arg.model_output) && torch::keeps_size(last);
            return with_indices(value, last, call.arguments.len() >= 2);
        }
        if qual.ends_with(".Variable") && qual.starts_with("torch.autograd") {
            return args.first().cloned().unwrap_or_default();
        }
        if qual.starts_with("numpy.") || qual.starts_with("math.") || qual.starts_with("os.") {
            return Value::plain();
        }
        Value::unknown()
    }

    fn result_of_method(
        &mut self,
        name: &'a str,
        call: &'a ExprCall,
        recv: &Value,
        args: &[Value],
        any_graph: bool,
    ) -> Value {
        let unbound = |mut value: Value| {
            value.def = DefId::default();
            value
        };
        match (&recv.kind, name) {
            (Kind::Model(_), "cuda") => {
                let mut value = recv.clone();
                value.device = Device::Gpu;
                unbound(value)
            }
            (Kind::Model(_), "to") => {
                let mut value = recv.clone();
                value.device = args.first().map_or(Device::Unknown, |arg| arg.device);
                unbound(value)
            }
            (Kind::Model(_), "cpu") => {
                let mut value = recv.clone();
                value.device = Device::Cpu;
                unbound(value)
            }
            (
                Kind::Model(_),
                "eval" | "train" | "half" | "float" | "double" | "bfloat16" | "requires_grad_"
                | "apply" | "share_memory",
            ) => unbound(recv.clone()),
            (Kind::Model(_), _)
                if name == "forward"
                    || name.starts_with("forward_")
                    || name.starts_with("encode_") =>
            {
                let graph = match self.grad {
                    Grad::On => Tri::Yes,
                    Grad::Off | Grad::CallerOff => Tri::No,
                    Grad::Maybe => Tri::Unknown,
                };
                let mut value = Value::tensor(graph, recv.device);
                value.model_output = true;
                value
            }
            (Kind::Scaler, "scale") => {
                let mut value = args.first().cloned().unwrap_or_default();
                value.kind = Kind::Tensor;
                unbound(value)
            }
            (Kind::Collection | Kind::Plain, "items" | "values" | "keys" | "copy") => {
                unbound(recv.clone())
            }
            _ if torch::leaves_torch(name) => Value::plain(),
            _ if matches!(name, "detach" | "detach_") => {
                let mut value = recv.clone();
                value.kind = Kind::Tensor;
                value.graph = Tri::No;
                unbound(value)
            }
            _ if matches!(
                name,
                "cuda" | "to" | "cpu" | "clone" | "contiguous" | "float" | "half"
            ) =>
            {
                let mut value = recv.clone();
                match name {
                    "cuda" => value.device = Device::Gpu,
                    "cpu" => value.device = Device::Cpu,
                    "to" => {
                        if let Some(arg) = args.first() {
                            if arg.device != Device::Unknown {
                                value.device = arg.device;
                            } else if arg.kind == Kind::Device || arg.kind == Kind::Unknown {
                                value.device = Device::Unknown;
                            }
                        }
                    }
                    _ => {}
                }
                if value.device == Device::Gpu && value.kind == Kind::Unknown {
                    value.kind = Kind::Tensor;
                }
                unbound(value)
            }
            (Kind::Tensor, _) => {
                let graph = if torch::makes_no_graph(name) {
                    Tri::No
                } else if recv.has_graph() || (any_graph && self.grad == Grad::On) {
                    Tri::Yes
                } else {
                    recv.graph
                };
                let mut value = Value::tensor(graph, recv.device);
                value.softmax = matches!(name, "softmax" | "log_softmax");
                value.model_output = recv.model_output && torch::keeps_size(name);
                with_indices(value, name, !call.arguments.is_empty())
            }
            (Kind::Unknown, "softmax" | "log_softmax") => {
                let mut value = Value::tensor(Tri::Unknown, Device::Unknown);
                value.softmax = true;
                value
            }
            _ => Value::unknown(),
        }
    }

    /// Recognises the forms of `backward()` and marks what they run through.
    fn note_backward(&mut self, index: usize, call: &'a ExprCall, method: Option<&'a str>) {
        let (target, scaled) = match (&*call.func, method) {
            (Expr::Attribute(attribute), Some("backward" | "manual_backward")) => {
                let first = call.arguments.find_positional(0);
                let name = attr_or_name(&attribute.value).unwrap_or_default();
                let wraps = method == Some("manual_backward")
                    || name.contains("accelerator")
                    || name.contains("fabric")
                    || name.contains("engine")
                    || name.contains("optimizer")
                    || name == "model";
                match (first, &*attribute.value) {
                    (Some(loss), _) if wraps => (loss, false),
                    (_, Expr::Call(inner)) => {
                        match (attr_name(&inner.func), inner.arguments.find_positional(0)) {
                            (Some("scale"), Some(loss)) => (loss, true),
                            (Some("super"), _) => return,
                            _ if matches!(&*inner.func, Expr::Name(name) if name.id.as_str() == "super") =>
                            {
                                return;
                            }
                            _ => (&*attribute.value, false),
                        }
                    }
                    (_, Expr::Name(name)) if name.id.as_str() == "self" => return,
                    (_, base) => (base, false),
                }
            }
            // timm and its kin: `loss_scaler(loss, optimizer, ...)` runs backward and step.
            (func, _) if attr_or_name(func).is_some_and(|name| name.ends_with("loss_scaler")) => {
                match call.arguments.find_positional(0) {
                    Some(loss) => (loss, false),
                    None => return,
                }
            }
            _ => return,
        };
        // `torch.autograd.backward` and classes that define `backward`.
        if let Some(place) = place_of(target)
            && self
                .lookup(place.split('.').next().unwrap_or(&place))
                .is_some_and(|value| matches!(value.kind, Kind::Qual(_) | Kind::Class(_)))
        {
            return;
        }
        self.model.backwards.push(Backward {
            call: index,
            ctx: self.ctx,
            target,
            scaled,
        });
        for place in graph_places(target) {
            if let Some(mut value) = self.lookup(&place) {
                self.next_graph_defs.insert(value.def);
                if matches!(value.kind, Kind::Unknown | Kind::Tensor) {
                    value.kind = Kind::Tensor;
                    value.graph = Tri::Yes;
                    self.vars.insert(place, value);
                }
            }
        }
    }
}

/// Lets the name decide where nothing else is known.
fn with_hint(mut value: Value, place: &str) -> Value {
    if value.kind == Kind::Unknown {
        let root = place.split('.').next().unwrap_or(place);
        if torch::is_settings_root(root) || place.starts_with("self.args.") {
            return value;
        }
        let last = place.rsplit('.').next().unwrap_or(place);
        if let Some(kind) = torch::hint(last) {
            value.kind = kind;
            value.weak = true;
        }
    }
    value
}

/// Steps an optimizer: `optimizer.step()`, `scaler.step(optimizer)`, or a scaler that is called.
pub(crate) fn is_step(call: &Call<'_>) -> bool {
    (call.is_method("step") && matches!(call.recv.kind, Kind::Optimizer | Kind::Scaler))
        || (call.recv.is_model() && call.is_method("step"))
        || attr_or_name(&call.node.func).is_some_and(|name| name.ends_with("loss_scaler"))
}

/// Clears gradients.
pub(crate) fn is_zero_grad(call: &Call<'_>) -> bool {
    call.is_method("zero_grad") || call.is_method("clear_grad")
}

/// The places whose graph a `backward()` on this expression runs through.
fn graph_places(expr: &Expr) -> Vec<String> {
    match expr {
        Expr::Name(_) | Expr::Attribute(_) => place_of(expr).into_iter().collect(),
        Expr::BinOp(node) => match node.op {
            Operator::Add | Operator::Sub => {
                let mut places = graph_places(&node.left);
                places.extend(graph_places(&node.right));
                places
            }
            Operator::Div => graph_places(&node.left),
            Operator::Mult => names_in(expr)
                .into_iter()
                .filter(|place| {
                    let last = place.rsplit('.').next().unwrap_or(place);
                    last.to_ascii_lowercase().contains("loss")
                })
                .collect(),
            _ => Vec::new(),
        },
        Expr::Call(call) => match &*call.func {
            // `loss.mean().backward()`
            Expr::Attribute(attribute) if matches!(attribute.attr.as_str(), "mean" | "sum") => {
                place_of(&attribute.value).into_iter().collect()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

struct Interpolations<'a>(Vec<&'a Expr>);

impl<'a> Visitor<'a> for Interpolations<'a> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        self.0.push(expr);
    }
}

fn def_id(place: &str, offset: TextSize) -> DefId {
    let mut hasher = FxHasher::default();
    place.hash(&mut hasher);
    // The low half is a hash of the name: two names that join at one place stay apart.
    DefId((u64::from(offset.to_u32()) + 1) << 32 | (hasher.finish() & 0xffff_ffff))
}

fn join_vars(mut a: Vars, b: Vars, at: TextSize) -> Vars {
    for (name, value) in b {
        match a.get_mut(&name) {
            Some(before) => {
                if *before != value {
                    *before = before.join(&value, def_id(&name, at));
                }
            }
            None => {
                a.insert(name, value);
            }
        }
    }
    a
}

fn block_range(body: &[Stmt]) -> TextRange {
    match (body.first(), body.last()) {
        (Some(first), Some(last)) => TextRange::new(first.start(), last.end()),
        _ => TextRange::default(),
    }
}

fn collection(graph: Tri) -> Value {
    let mut value = Value::of(Kind::Collection);
    value.graph = graph;
    value
}

fn grad_flag(call: &ExprCall) -> Grad {
    match call.arguments.find_argument_value("mode", 0) {
        Some(Expr::BooleanLiteral(flag)) => {
            if flag.value {
                Grad::On
            } else {
                Grad::Off
            }
        }
        _ => Grad::Maybe,
    }
}

fn attr_name(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Attribute(attribute) => Some(attribute.attr.as_str()),
        _ => None,
    }
}

/// The last part of a name: `step` of `a.b.step`, `f` of `f`.
pub(crate) fn attr_or_name(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Attribute(attribute) => Some(attribute.attr.as_str()),
        Expr::Name(name) => Some(name.id.as_str()),
        _ => None,
    }
}

fn constant_index(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::NumberLiteral(number) => match &number.value {
            ast::Number::Int(int) => int.as_usize(),
            _ => None,
        },
        _ => None,
    }
}

/// What an arithmetic operation on two values is.
fn binary(left: &Value, right: &Value) -> Value {
    let tensor = left.is_tensor() || right.is_tensor();
    if tensor {
        let device = if left.device == Device::Unknown {
            right.device
        } else {
            left.device
        };
        return Value::tensor(left.graph.or(right.graph), device);
    }
    match (&left.kind, &right.kind) {
        (Kind::Plain, Kind::Plain) => Value::plain(),
        (Kind::Collection, Kind::Collection) => collection(left.graph.or(right.graph)),
        _ => Value::unknown(),
    }
}

/// One part of an unpacked value.
fn unpacked(value: &Value, index: usize, of: usize) -> Value {
    match &value.kind {
        Kind::Tuple(values) if values.len() == of => values[index].clone(),
        Kind::Tensor => Value {
            def: DefId::default(),
            ..value.clone()
        },
        _ => Value::unknown(),
    }
}

/// What iterating over a value yields.
fn element_of(value: &Value) -> Value {
    match &value.kind {
        // A batch: data, without a graph.
        Kind::Loader => Value::tensor(Tri::No, Device::Unknown),
        Kind::Tensor => Value {
            def: DefId::default(),
            ..value.clone()
        },
        _ => Value::unknown(),
    }
}

/// Functions of the language itself.
fn result_of_builtin(name: &str, args: &[Value]) -> Value {
    match name {
        "float" | "int" | "len" | "bool" | "str" | "round" | "isinstance" | "range" | "open"
        | "format" | "print" | "repr" | "id" | "hash" => Value::plain(),
        "enumerate" => {
            let element = args.first().map_or_else(Value::unknown, element_of);
            let is_loader = args.first().is_some_and(|arg| arg.kind == Kind::Loader);
            if is_loader {
                // Kept as a tensor pair for the loop target: (index, batch).
                return Value {
                    kind: Kind::Tensor,
                    graph: Tri::No,
                    ..element
                };
            }
            Value::unknown()
        }
        "tqdm" | "iter" | "trange" | "reversed" => args.first().cloned().unwrap_or_default(),
        "next" => args.first().map_or_else(Value::unknown, element_of),
        "sum" | "max" | "min" => {
            let graph = args.iter().fold(Tri::No, |graph, arg| graph.or(arg.graph));
            if graph == Tri::Yes {
                Value::tensor(Tri::Yes, Device::Unknown)
            } else {
                Value::unknown()
            }
        }
        "list" | "dict" | "tuple" | "set" | "sorted" | "zip" | "map" | "filter" => {
            collection(args.iter().fold(Tri::No, |graph, arg| graph.or(arg.graph)))
        }
        _ => Value::unknown(),
    }
}

/// `max`, `min`, `topk` and `sort` along a dimension return values and indices.
fn with_indices(value: Value, name: &str, has_dim: bool) -> Value {
    if has_dim
        && matches!(
            name,
            "max" | "min" | "topk" | "sort" | "median" | "mode" | "kthvalue"
        )
    {
        let indices = Value::tensor(Tri::No, value.device);
        return Value::of(Kind::Tuple(Rc::from([value, indices])));
    }
    value
}

fn is_lightning_eval(name: &str) -> bool {
    matches!(
        name,
        "validation_step"
            | "test_step"
            | "predict_step"
            | "on_validation_epoch_end"
            | "validation_epoch_end"
            | "test_epoch_end"
            | "on_test_epoch_end"
            | "on_validation_batch_end"
            | "on_test_batch_end"
            | "validation_step_end"
            | "test_step_end"
    )
}
