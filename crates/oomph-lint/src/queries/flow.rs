//! Where a value goes: whether what a call returns can reach a `backward()`.
//!
//! Every use of a name is classified by what its expression does with it, and matched to the assignments that may
//! reach it. What is returned goes to the callers of the file, what is passed to a function of the file goes on there.
//! What other code gets may be used for anything. The same question is asked of what `torch.load` returned: whether it
//! is only looked up, shown or saved again.

mod life;
pub(crate) use life::Life;

use std::rc::Rc;

use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_stmt};
use oomph_python_source::ast::{self, Expr, ExprCall, Stmt};
use oomph_python_source::{Ranged, TextRange, TextSize, last_name, last_part};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::semantic::value::Kind;
use crate::semantic::{Bind, Call, CtxId, FuncId, Model, torch};

/// Values are followed through this many functions.
const MAX_DEPTH: usize = 4;

/// What becomes of the value of an expression.
#[derive(Clone, Debug)]
enum Sink {
    /// Its graph ends here: it is detached, compared, drawn, or made a number.
    Cut,
    /// Nothing takes it.
    Dropped,
    /// These names get it, or something made of it.
    Bound(Rc<[String]>),
    Returned,
    /// A function of the file gets it as this parameter; the function's result goes on.
    Passed(FuncId, String, Rc<Sink>),
    /// Anything, `backward()` included.
    Anything,
}

/// A name that is read.
struct Use {
    name: String,
    at: TextSize,
    /// The end of the statement: what it binds is bound from here on.
    after: TextSize,
    ctx: CtxId,
    sink: Sink,
}

/// What one function does with its values.
#[derive(Default)]
struct Uses {
    names: Vec<Use>,
    calls: FxHashMap<*const ExprCall, (Sink, TextSize)>,
}

/// Who passed a value to a function, and what becomes of the function's result there.
struct Caller<'c> {
    func: Option<FuncId>,
    at: TextSize,
    sink: Sink,
    up: Option<&'c Caller<'c>>,
}

/// Follows values through the functions of a file.
pub(crate) struct Flow<'m, 'a> {
    model: &'m Model<'a>,
    calls: FxHashMap<*const ExprCall, &'m Call<'a>>,
    ctxs: FxHashMap<*const Stmt, CtxId>,
    /// Follows what `torch.load` returned, not a graph.
    loaded: bool,
    uses: FxHashMap<Option<FuncId>, Rc<Uses>>,
    seen: FxHashSet<(Option<FuncId>, String, TextSize)>,
    cuts: usize,
}

impl<'m, 'a> Flow<'m, 'a> {
    /// Follows graphs.
    pub(crate) fn of_graphs(model: &'m Model<'a>) -> Self {
        Self::new(model, false)
    }

    /// Follows what was loaded.
    pub(crate) fn of_loaded(model: &'m Model<'a>) -> Self {
        Self::new(model, true)
    }

    fn new(model: &'m Model<'a>, loaded: bool) -> Self {
        Self {
            model,
            loaded,
            calls: model
                .calls
                .iter()
                .map(|call| (std::ptr::from_ref(call.node), call))
                .collect(),
            ctxs: model
                .stmts
                .iter()
                .map(|info| (std::ptr::from_ref(info.node), info.ctx))
                .collect(),
            uses: FxHashMap::default(),
            seen: FxHashSet::default(),
            cuts: 0,
        }
    }

    /// Whether what a call returns has no use as it is: every path ends before a `backward()` (or, of what was loaded,
    /// before it computes something), and at least one in something that cuts it off.
    pub(crate) fn is_cut_off(&mut self, call: &Call<'a>) -> bool {
        self.seen.clear();
        self.cuts = 0;
        let func = self.model.func_of(call.ctx);
        let (sink, after) = self.sink_of(func, call.node);
        self.ends(func, after, &sink, None, 0) && self.cuts > 0
    }

    fn uses(&mut self, func: Option<FuncId>) -> Rc<Uses> {
        if let Some(known) = self.uses.get(&func) {
            return Rc::clone(known);
        }
        let body = match func {
            Some(id) => &self.model.func(id).node.body,
            None => self.model.module.body(),
        };
        // A function that nothing walked has no context.
        let ctx = body
            .first()
            .and_then(|stmt| self.ctxs.get(&std::ptr::from_ref(stmt)));
        let found = Rc::new(ctx.map_or_else(Uses::default, |ctx| {
            let mut read = Read {
                model: self.model,
                calls: &self.calls,
                ctxs: &self.ctxs,
                loaded: self.loaded,
                ctx: *ctx,
                after: TextSize::default(),
                uses: Uses::default(),
            };
            read.block(body);
            read.uses
        }));
        self.uses.insert(func, Rc::clone(&found));
        found
    }

    fn sink_of(&mut self, func: Option<FuncId>, call: &'a ExprCall) -> (Sink, TextSize) {
        self.uses(func)
            .calls
            .get(&std::ptr::from_ref(call))
            .cloned()
            .unwrap_or((Sink::Anything, call.end()))
    }

    /// Whether all paths from a sink end before a `backward()`.
    fn ends(
        &mut self,
        func: Option<FuncId>,
        at: TextSize,
        sink: &Sink,
        caller: Option<&Caller<'_>>,
        depth: usize,
    ) -> bool {
        match sink {
            Sink::Cut => {
                self.cuts += 1;
                true
            }
            Sink::Dropped => true,
            Sink::Anything => false,
            Sink::Bound(names) => names
                .iter()
                .all(|name| self.name_ends(func, name, at, caller, depth)),
            Sink::Returned => match caller {
                Some(caller) => self.ends(caller.func, caller.at, &caller.sink, caller.up, depth),
                None => depth < MAX_DEPTH && self.ends_in_callers(func, depth),
            },
            Sink::Passed(target, parameter, result) => {
                let here = Caller {
                    func,
                    at,
                    sink: (**result).clone(),
                    up: caller,
                };
                let start = self.model.func(*target).node.start();
                depth < MAX_DEPTH
                    && self.name_ends(Some(*target), parameter, start, Some(&here), depth + 1)
            }
        }
    }

    fn ends_in_callers(&mut self, func: Option<FuncId>, depth: usize) -> bool {
        let model = self.model;
        let mut callers = model
            .calls
            .iter()
            .filter(|call| func.is_some() && call.target == func)
            .peekable();
        callers.peek().is_some()
            && !func.is_some_and(|id| self.has_unseen_callers(id))
            && callers.all(|call| {
                let from = model.func_of(call.ctx);
                let (sink, after) = self.sink_of(from, call.node);
                self.ends(from, after, &sink, None, depth + 1)
            })
    }

    /// Whether a function is handed on as a value, or other files may call it.
    fn has_unseen_callers(&self, id: FuncId) -> bool {
        let model = self.model;
        let name = model.func(id).node.name.as_str();
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let text = model.module.text();
        let mentioned = text
            .match_indices(name)
            .filter(|(at, _)| {
                !text[..*at].ends_with(is_word) && !text[at + name.len()..].starts_with(is_word)
            })
            .count();
        let called = model
            .calls
            .iter()
            .filter(|call| call.target == Some(id))
            .count();
        mentioned > called + 1 || model.around.is_called_elsewhere(name)
    }

    /// Whether the value that a name has from an offset on ends before a `backward()`.
    fn name_ends(
        &mut self,
        func: Option<FuncId>,
        name: &str,
        at: TextSize,
        caller: Option<&Caller<'_>>,
        depth: usize,
    ) -> bool {
        if name == "_" || !self.seen.insert((func, name.to_owned(), at)) {
            return true;
        }
        let uses = self.uses(func);
        let model = self.model;
        uses.names
            .iter()
            .filter(|each| each.name == name && reaches(model, func, name, at, each))
            .all(|each| {
                let sink = each.sink.clone();
                self.ends(func, each.after, &sink, caller, depth)
            })
    }
}

/// Whether a use may read what was bound to a name at an offset: nothing that surely runs in between binds the name
/// anew. A loop around both leads from its end to its start.
fn reaches(model: &Model<'_>, func: Option<FuncId>, name: &str, at: TextSize, each: &Use) -> bool {
    let rebinds: Vec<(TextRange, CtxId)> = model
        .assigns_to(func, name)
        .filter(|assign| !matches!(assign.bind, Bind::Add | Bind::Augment))
        .map(|assign| {
            (
                bound_range(model, assign.stmt, assign.target.range()),
                assign.ctx,
            )
        })
        .collect();
    // Its right side is read before the name is bound.
    let kills = |from: TextSize, to: TextSize| {
        rebinds.iter().any(|(range, ctx)| {
            range.end() > from && range.end() <= to && model.is_inside(each.ctx, *ctx)
        })
    };
    if each.at >= at {
        return !kills(at, each.at);
    }
    model
        .loops_around(each.ctx)
        .any(|around| around.range.contains(at) && !kills(around.range.start(), each.at))
}

/// The part of a statement after which its target is bound: the header of a loop, or all of it.
fn bound_range(model: &Model<'_>, stmt: crate::semantic::StmtId, target: TextRange) -> TextRange {
    match model.stmt(stmt).node {
        Stmt::For(node) if node.target.range().contains_range(target) => {
            TextRange::new(node.range.start(), node.iter.end())
        }
        Stmt::With(node) => TextRange::new(
            node.range.start(),
            node.items.last().map_or(target.end(), Ranged::end),
        ),
        node => node.range(),
    }
}

/// Reads the uses of one function.
struct Read<'r, 'm, 'a> {
    model: &'m Model<'a>,
    calls: &'r FxHashMap<*const ExprCall, &'m Call<'a>>,
    ctxs: &'r FxHashMap<*const Stmt, CtxId>,
    loaded: bool,
    ctx: CtxId,
    after: TextSize,
    uses: Uses,
}

impl<'a> Read<'_, '_, 'a> {
    fn block(&mut self, body: &'a [Stmt]) {
        for stmt in body {
            self.stmt(stmt);
        }
    }

    fn stmt(&mut self, stmt: &'a Stmt) {
        if let Some(ctx) = self.ctxs.get(&std::ptr::from_ref(stmt)) {
            self.ctx = *ctx;
        }
        self.after = match stmt {
            Stmt::For(node) => node.iter.end(),
            Stmt::With(node) => node.items.last().map_or(node.start(), Ranged::end),
            _ => stmt.end(),
        };
        match stmt {
            Stmt::Assign(node) => {
                if let [Expr::Tuple(targets)] = &*node.targets
                    && let Expr::Tuple(values) = &*node.value
                    && targets.elts.len() == values.elts.len()
                {
                    for (target, value) in targets.elts.iter().zip(&values.elts) {
                        self.expr(value, &bound([target]));
                    }
                } else if let [Expr::Tuple(targets)] = &*node.targets
                    && gives_indices(&node.value)
                {
                    // `_, predicted = output.max(1)`: the indices are all that is used.
                    let only_indices = matches!(targets.elts.first(), Some(Expr::Name(name)) if name.id.as_str() == "_");
                    let sink = if only_indices {
                        Sink::Cut
                    } else {
                        bound(targets.elts.first())
                    };
                    self.expr(&node.value, &sink);
                } else {
                    self.expr(&node.value, &bound(&node.targets));
                }
            }
            Stmt::AnnAssign(node) => {
                if let Some(value) = &node.value {
                    self.expr(value, &bound([&*node.target]));
                }
            }
            Stmt::AugAssign(node) => self.expr(&node.value, &bound([&*node.target])),
            Stmt::Expr(node) => self.expr(&node.value, &Sink::Dropped),
            Stmt::Return(node) => {
                if let Some(value) = &node.value {
                    self.expr(value, &Sink::Returned);
                }
            }
            Stmt::For(node) => {
                self.expr(&node.iter, &bound([&*node.target]));
                self.block(&node.body);
                self.block(&node.orelse);
            }
            Stmt::While(node) => {
                self.expr(&node.test, &Sink::Cut);
                self.block(&node.body);
                self.block(&node.orelse);
            }
            Stmt::If(node) => {
                self.expr(&node.test, &Sink::Cut);
                self.block(&node.body);
                for clause in &node.elif_else_clauses {
                    if let Some(test) = &clause.test {
                        self.expr(test, &Sink::Cut);
                    }
                    self.block(&clause.body);
                }
            }
            Stmt::With(node) => {
                // `with amp.scale_loss(loss, optimizer) as scaled:`
                for item in &node.items {
                    let sink = match &item.optional_vars {
                        Some(target) => bound([&**target]),
                        None => Sink::Dropped,
                    };
                    self.expr(&item.context_expr, &sink);
                }
                self.block(&node.body);
            }
            Stmt::Try(node) => {
                self.block(&node.body);
                for handler in &node.handlers {
                    let ast::ExceptHandler::ExceptHandler(handler) = handler;
                    self.block(&handler.body);
                }
                self.block(&node.orelse);
                self.block(&node.finalbody);
            }
            Stmt::Match(node) => {
                self.expr(&node.subject, &Sink::Cut);
                for case in &node.cases {
                    self.block(&case.body);
                }
            }
            Stmt::Assert(node) => self.expr(&node.test, &Sink::Cut),
            Stmt::FunctionDef(_) | Stmt::ClassDef(_) => {
                let mut free = Free::default();
                free.visit_stmt(stmt);
                for (name, at) in free.read {
                    if !free.bound.contains(&name) {
                        self.note(name, at, &Sink::Anything);
                    }
                }
            }
            _ => {}
        }
    }

    fn note(&mut self, name: String, at: TextSize, sink: &Sink) {
        self.uses.names.push(Use {
            name,
            at,
            after: self.after,
            ctx: self.ctx,
            sink: sink.clone(),
        });
    }

    fn each<'e>(&mut self, exprs: impl IntoIterator<Item = &'a Expr>, sink: &Sink)
    where
        'a: 'e,
    {
        for expr in exprs {
            self.expr(expr, sink);
        }
    }

    fn expr(&mut self, expr: &'a Expr, sink: &Sink) {
        match expr {
            Expr::Name(name) => self.note(name.id.to_string(), name.start(), sink),
            Expr::Attribute(node) => {
                let sink = match node.attr.as_str() {
                    "data" => &Sink::Cut,
                    "shape" | "dtype" | "device" | "ndim" | "requires_grad" | "is_cuda" => {
                        &Sink::Dropped
                    }
                    _ => sink,
                };
                self.expr(&node.value, sink);
            }
            Expr::Call(call) => self.call(call, sink),
            Expr::BinOp(node) => self.each([&*node.left, &*node.right], sink),
            Expr::BoolOp(node) => self.each(&node.values, sink),
            Expr::UnaryOp(node) => {
                let cut = node.op == ast::UnaryOp::Not;
                self.expr(&node.operand, if cut { &Sink::Cut } else { sink });
            }
            Expr::Compare(node) => {
                self.expr(&node.left, &Sink::Cut);
                self.each(&node.comparators, &Sink::Cut);
            }
            Expr::If(node) => {
                self.expr(&node.test, &Sink::Cut);
                self.each([&*node.body, &*node.orelse], sink);
            }
            Expr::Tuple(node) => self.each(&node.elts, sink),
            Expr::List(node) => self.each(&node.elts, sink),
            Expr::Set(node) => self.each(&node.elts, sink),
            Expr::Dict(node) => {
                for item in &node.items {
                    self.each(&item.key, &Sink::Cut);
                    self.expr(&item.value, sink);
                }
            }
            Expr::Subscript(node) => {
                let index = matches!(&*node.slice, Expr::NumberLiteral(number)
                    if matches!(&number.value, ast::Number::Int(int) if *int == 1));
                let cut =
                    index && gives_indices(&node.value) || self.loaded && is_plain_key(&node.slice);
                self.expr(&node.value, if cut { &Sink::Cut } else { sink });
                self.expr(&node.slice, &Sink::Cut);
            }
            Expr::Slice(node) => {
                for part in [&node.lower, &node.upper, &node.step].into_iter().flatten() {
                    self.expr(part, &Sink::Cut);
                }
            }
            Expr::Starred(node) => self.expr(&node.value, sink),
            Expr::Await(node) => self.expr(&node.value, sink),
            Expr::ListComp(node) => self.comprehension(&node.generators, &[&*node.elt], sink),
            Expr::SetComp(node) => self.comprehension(&node.generators, &[&*node.elt], sink),
            Expr::Generator(node) => self.comprehension(&node.generators, &[&*node.elt], sink),
            Expr::DictComp(node) => self.comprehension(&node.generators, &[&*node.value], sink),
            Expr::FString(_) | Expr::TString(_) => self.all_names(expr, &Sink::Cut),
            _ => self.all_names(expr, &Sink::Anything),
        }
    }

    /// What a comprehension iterates over goes where its element goes.
    fn comprehension(
        &mut self,
        generators: &'a [ast::Comprehension],
        elts: &[&'a Expr],
        sink: &Sink,
    ) {
        let before = self.uses.names.len();
        self.each(elts.iter().copied(), sink);
        let mut targets = Vec::new();
        for each in generators {
            self.each(&each.ifs, &Sink::Cut);
            names_of(&each.target, &mut targets);
        }
        let mut cut = true;
        let mut kept = Vec::new();
        for each in self.uses.names.drain(before..) {
            if targets.contains(&each.name) {
                cut &= matches!(each.sink, Sink::Cut);
            } else {
                kept.push(each);
            }
        }
        self.uses.names.extend(kept);
        for each in generators {
            let sink = if cut { &Sink::Cut } else { sink };
            let own: Vec<_> = {
                let before = self.uses.names.len();
                self.expr(&each.iter, sink);
                self.uses.names.drain(before..).collect()
            };
            self.uses
                .names
                .extend(own.into_iter().filter(|each| !targets.contains(&each.name)));
        }
    }

    fn all_names(&mut self, expr: &'a Expr, sink: &Sink) {
        let mut free = Free::default();
        free.visit_expr(expr);
        for (name, at) in free.read {
            self.note(name, at, sink);
        }
    }

    fn call(&mut self, node: &'a ExprCall, sink: &Sink) {
        self.uses
            .calls
            .insert(std::ptr::from_ref(node), (sink.clone(), self.after));
        let known = self.calls.get(&std::ptr::from_ref(node)).copied();
        let name = last_name(&node.func).unwrap_or_default();
        let method = match &*node.func {
            Expr::Attribute(attribute) => Some(&*attribute.value),
            _ => None,
        };
        let qual = known.and_then(|info| info.qual.as_deref());
        let is_pass = known.is_some_and(|info| {
            info.callee.is_model()
                || matches!(info.callee.kind, Kind::Criterion { .. })
                || info.recv.is_model() && runs_a_model(name)
        }) && !takes_optimizer(node);
        let target = known.and_then(|info| info.target);
        let effect = if is_pass {
            Effect::Carries
        } else if let Some(target) =
            target.filter(|_| !known.is_some_and(|info| matches!(info.callee.kind, Kind::Class(_))))
        {
            self.pass(node, target, sink);
            return;
        } else if let Some(qual) = qual {
            of_import(qual)
        } else if method.is_some() {
            of_method(name, known, matches!(sink, Sink::Dropped))
        } else {
            of_function(name)
        };
        let args = || {
            node.arguments
                .args
                .iter()
                .chain(node.arguments.keywords.iter().map(|keyword| &keyword.value))
        };
        // `loss, cer = calculate_metrics(pred, gold)`: what is called a loss has its graph.
        let effect = match (effect, sink) {
            (Effect::Cuts, Sink::Bound(names))
                if method.is_none()
                    && qual.is_none_or(|qual| !qual.starts_with("torch"))
                    && names.iter().any(|name| name.contains("loss")) =>
            {
                Effect::Carries
            }
            _ => effect,
        };
        // A function of another file that only has an effect, as `loss_scaler(loss, optimizer)`, may have any.
        let effect = match effect {
            Effect::Carries if target.is_none() && !is_pass && matches!(sink, Sink::Dropped) => {
                Effect::Anything
            }
            effect => effect,
        };
        // `convert(output).detach().numpy()`: what other code makes of it is cut off by who asks for it, unless its name
        // says that it trains or keeps.
        let effect = match effect {
            Effect::Anything
                if matches!(sink, Sink::Cut)
                    && target.is_none()
                    && !self.loaded
                    && !trains_or_keeps(name) =>
            {
                Effect::Carries
            }
            effect => effect,
        };
        // A module or an object that the method belongs to is no value that is followed.
        let receiver = method.filter(|_| qual.is_none() && !is_pass);
        if self.loaded {
            // A model that came out of the file runs, or is moved.
            if is_pass {
                self.expr(&node.func, &Sink::Anything);
            } else if receiver.is_some()
                && matches!(
                    name,
                    "to" | "cuda" | "eval" | "train" | "parameters" | "half"
                )
            {
                self.each(receiver, &Sink::Anything);
                return;
            }
        }
        match effect {
            Effect::Cuts => {
                self.each(receiver, &Sink::Cut);
                self.each(args(), &Sink::Cut);
            }
            Effect::Drops => {
                self.each(receiver, &Sink::Dropped);
                self.each(args(), &Sink::Dropped);
            }
            Effect::Carries => {
                self.each(receiver, sink);
                self.each(args(), sink);
            }
            Effect::Fills => {
                let filled = receiver.map_or(Sink::Anything, |receiver| bound([receiver]));
                self.each(args(), &filled);
            }
            Effect::Anything => {
                self.each(receiver, &Sink::Anything);
                self.each(args(), &Sink::Anything);
            }
        }
    }

    /// A call of a function of the file.
    fn pass(&mut self, node: &'a ExprCall, target: FuncId, sink: &Sink) {
        let parameters: Vec<&str> = self
            .model
            .func(target)
            .node
            .parameters
            .iter_non_variadic_params()
            .map(|each| each.parameter.name.as_str())
            .collect();
        let bound = parameters
            .first()
            .is_some_and(|first| matches!(*first, "self" | "cls"));
        let result = Rc::new(sink.clone());
        let to = |name: Option<&&str>| {
            name.map_or(Sink::Anything, |name| {
                Sink::Passed(target, (*name).to_owned(), Rc::clone(&result))
            })
        };
        for (index, arg) in node.arguments.args.iter().enumerate() {
            let sink = if arg.is_starred_expr() {
                Sink::Anything
            } else {
                to(parameters.get(index + usize::from(bound)))
            };
            self.expr(arg, &sink);
        }
        for keyword in &node.arguments.keywords {
            let name = keyword.arg.as_ref().map(ast::Identifier::as_str);
            let sink = to(parameters.iter().find(|each| Some(**each) == name));
            self.expr(&keyword.value, &sink);
        }
    }
}

/// `loss_scaler(loss=loss, optimizer=optimizer)`: no model is given an optimizer, and what is may run backward.
fn takes_optimizer(call: &ExprCall) -> bool {
    call.arguments
        .iter_source_order()
        .any(|each| last_name(each.value()).is_some_and(|name| name.contains("optim")))
}

/// A method of a model that runs it: `decoder.sample(features)`.
fn runs_a_model(name: &str) -> bool {
    const RUNS: &[&str] = &[
        "forward",
        "sample",
        "decode",
        "encode",
        "predict",
        "infer",
        "beam",
        "greedy",
        "translate",
    ];
    RUNS.iter().any(|word| name.starts_with(word))
}

/// A function that may run backward through what it is given, or keep it.
fn trains_or_keeps(name: &str) -> bool {
    const WORDS: &[&str] = &[
        "backward", "train", "step", "update", "learn", "optim", "fit", "store", "push", "save",
        "add", "append", "put", "register", "set", "grad", "attack", "hook", "record", "penalty",
        "log",
    ];
    let lower = name.to_ascii_lowercase();
    name.is_empty() || WORDS.iter().any(|word| lower.contains(word))
}

/// What a call does with what it is given.
#[derive(Clone, Copy)]
enum Effect {
    /// Its result has no graph, and it keeps none.
    Cuts,
    /// It asks for nothing that the values depend on.
    Drops,
    /// Its result has the graph.
    Carries,
    /// What the method is called on has the graph afterwards.
    Fills,
    Anything,
}

/// Words in the names of functions that show or measure what they are given.
const SHOWS: &[&str] = &[
    "accuracy",
    "metric",
    "psnr",
    "ssim",
    "iou",
    "auc",
    "confusion",
    "bleu",
    "plot",
    "show",
    "draw",
    "visual",
    "save_im",
    "imsave",
    "print",
    "tensor2im",
    "tensor_to",
    "to_numpy",
    "topil",
    "to_pil",
    "denorm",
    "add_image",
    "add_scalar",
    "add_histogram",
    "add_audio",
    "add_figure",
    "set_postfix",
    "set_description",
    "savefig",
];

fn of_function(name: &str) -> Effect {
    match name {
        "len" | "type" | "isinstance" | "hasattr" | "id" => Effect::Drops,
        "str" | "float" | "int" | "bool" | "repr" | "round" | "format" | "range" => Effect::Cuts,
        "list" | "tuple" | "zip" | "enumerate" | "sum" | "max" | "min" | "sorted" | "reversed"
        | "iter" | "next" | "dict" | "set" | "tqdm" | "getattr" | "abs" | "Variable" => {
            Effect::Carries
        }
        _ => by_words(name),
    }
}

fn by_words(name: &str) -> Effect {
    let name = name.to_ascii_lowercase();
    if name.contains("loss") || name.contains("criterion") {
        Effect::Carries
    } else if SHOWS.iter().any(|word| name.contains(word)) {
        Effect::Cuts
    } else {
        Effect::Anything
    }
}

fn of_import(qual: &str) -> Effect {
    const PLAIN: &[&str] = &[
        "numpy",
        "math",
        "PIL",
        "cv2",
        "matplotlib",
        "sklearn",
        "scipy",
        "json",
        "random",
        "wandb",
        "torchmetrics",
        "logging",
        "seaborn",
        "pandas",
        "imageio",
        "skimage",
        "pickle",
        "torchvision.utils.save_image",
    ];
    let last = last_part(qual);
    let root = qual.split('.').next().unwrap_or(qual);
    if PLAIN.contains(&root) || qual.ends_with("utils.save_image") || qual == "torch.save" {
        return Effect::Cuts;
    }
    if qual.starts_with("torch.") && !qual.starts_with("torch.distributions.") {
        return if torch::makes_no_graph(last) {
            Effect::Cuts
        } else if torch::is_tensor_function(qual) || last == "Variable" || last == "make_grid" {
            Effect::Carries
        } else {
            Effect::Anything
        };
    }
    if qual.starts_with("torchvision.") || qual.starts_with("torch.distributions.") {
        return Effect::Carries;
    }
    of_function(last)
}

fn of_method(name: &str, info: Option<&Call<'_>>, is_dropped: bool) -> Effect {
    const CARRIES: &[&str] = &[
        "to",
        "cpu",
        "cuda",
        "float",
        "half",
        "double",
        "view",
        "reshape",
        "squeeze",
        "unsqueeze",
        "mean",
        "sum",
        "softmax",
        "log_softmax",
        "sigmoid",
        "tanh",
        "relu",
        "permute",
        "transpose",
        "contiguous",
        "clone",
        "exp",
        "log",
        "clamp",
        "clamp_",
        "clip",
        "abs",
        "pow",
        "sqrt",
        "min",
        "max",
        "norm",
        "flatten",
        "expand",
        "repeat",
        "gather",
        "index_select",
        "masked_fill",
        "chunk",
        "split",
        "mul",
        "div",
        "sub",
        "add",
        "mul_",
        "add_",
        "div_",
        "sub_",
        "topk",
        "sort",
        "cumsum",
        "std",
        "var",
        "type",
        "t",
        "expand_as",
        "view_as",
        "round",
        "floor",
        "items",
        "values",
        "get",
        "copy",
        "mm",
        "bmm",
        "matmul",
        "unbind",
        "roll",
        "flip",
        "square",
        "amax",
        "amin",
        "logsumexp",
        "prod",
        "masked_select",
        "keys",
        "pop",
        "replace",
        "state_dict",
        "unfold",
        "narrow",
        "movedim",
        "swapaxes",
        "type_as",
        "scatter",
        "index_fill",
        "lerp",
        "neg",
        "log2",
        "log10",
        "log1p",
        "entropy",
        "log_prob",
    ];
    const ENDS: &[&str] = &[
        "detach",
        "item",
        "tolist",
        "numpy",
        "batch_decode",
        "startswith",
        "endswith",
    ];
    // Only its shape.
    if matches!(name, "size" | "dim" | "numel" | "stride" | "ndimension") {
        return Effect::Drops;
    }
    let of_tensor = info.is_some_and(|info| info.recv.is_tensor());
    // A tokenizer makes a text of it, a model goes on.
    if name == "decode" {
        let of_model = info.is_some_and(|info| info.recv.is_model());
        return if of_model {
            Effect::Carries
        } else {
            Effect::Cuts
        };
    }
    if ENDS.contains(&name) || torch::makes_no_graph(name) {
        return Effect::Cuts;
    }
    if is_dropped && matches!(name, "append" | "extend" | "insert" | "appendleft") {
        return Effect::Fills;
    }
    // `sums.scatter_add_(1, index, output)`: in place.
    if is_dropped && name.ends_with('_') && !name.starts_with('_') {
        return Effect::Fills;
    }
    let of_meter = || {
        info.is_some_and(|info| {
            info.recv.kind == Kind::Meter
                || info.recv_place().is_some_and(|place| {
                    let place = last_part(&place).to_ascii_lowercase();
                    [
                        "metric",
                        "meter",
                        "acc",
                        "evaluator",
                        "confus",
                        "iou",
                        "psnr",
                        "ssim",
                        "auc",
                        "bleu",
                        "writer",
                        "logger",
                        "wandb",
                    ]
                    .iter()
                    .any(|word| place.contains(word))
                })
        })
    };
    if is_dropped && matches!(name, "update" | "add" | "log" | "write" | "info") && of_meter() {
        return Effect::Cuts;
    }
    if CARRIES.contains(&name) || of_tensor && name != "backward" && name != "register_hook" {
        return Effect::Carries;
    }
    if name == "backward" {
        Effect::Anything
    } else {
        by_words(name)
    }
}

/// What is no tensor in a checkpoint: `checkpoint["epoch"]`.
fn is_plain_key(key: &Expr) -> bool {
    const PLAIN: &[&str] = &[
        "epoch", "iter", "step", "loss", "best", "acc", "args", "config", "cfg", "opt", "hparam",
        "param", "vocab", "score", "arch",
    ];
    matches!(key, Expr::StringLiteral(text) if {
        let key = text.value.to_str().to_ascii_lowercase();
        PLAIN.iter().any(|word| key.contains(word)) && !key.contains("optim") && !key.contains("state")
            && !key.contains("model")
    })
}

/// `torch.max(x, 1)`, `x.topk(k)`: values, and their indices.
fn gives_indices(expr: &Expr) -> bool {
    let Expr::Call(call) = expr else { return false };
    matches!(
        last_name(&call.func),
        Some("max" | "min" | "topk" | "sort" | "median" | "kthvalue")
    ) && !call.arguments.is_empty()
}

/// The names that targets bind; anything if one is no name.
fn bound<'e>(targets: impl IntoIterator<Item = &'e Expr>) -> Sink {
    let mut names = Vec::new();
    if targets
        .into_iter()
        .all(|target| names_of(target, &mut names))
    {
        Sink::Bound(Rc::from(names))
    } else {
        Sink::Anything
    }
}

fn names_of(target: &Expr, names: &mut Vec<String>) -> bool {
    match target {
        Expr::Name(name) => {
            names.push(name.id.to_string());
            true
        }
        Expr::Tuple(tuple) => tuple.elts.iter().all(|each| names_of(each, names)),
        Expr::List(list) => list.elts.iter().all(|each| names_of(each, names)),
        Expr::Starred(node) => names_of(&node.value, names),
        // `outputs[key] = x` fills `outputs`.
        Expr::Subscript(item) => item.value.is_name_expr() && names_of(&item.value, names),
        _ => false,
    }
}

/// The names that some code reads, and those that it binds itself.
#[derive(Default)]
struct Free {
    read: Vec<(String, TextSize)>,
    bound: FxHashSet<String>,
}

impl<'a> Visitor<'a> for Free {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        if let Stmt::FunctionDef(def) = stmt {
            for each in &def.parameters {
                self.bound.insert(each.name().to_string());
            }
        }
        walk_stmt(self, stmt);
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Name(name) = expr {
            if name.ctx.is_load() {
                self.read.push((name.id.to_string(), name.start()));
            } else {
                self.bound.insert(name.id.to_string());
            }
        }
        walk_expr(self, expr);
    }
}
