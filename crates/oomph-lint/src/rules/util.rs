//! Questions that several rules ask of the model.

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{Expr, Operator, Stmt};
use ruff_text_size::{Ranged, TextRange, TextSize};
use rustc_hash::FxHashSet;

use crate::fix::{Applicability, Edit, Fix};
use crate::semantic::value::{Device, Kind};
use crate::semantic::{
    Bind, Call, CtxId, CtxKind, FuncId, Loop, Model, StmtId, attr_or_name, is_step, names_in,
    place_of, torch,
};

/// Appends a method call to an expression: `x.detach()`, `(a + b).detach()`.
pub(super) fn append(
    expr: &Expr,
    suffix: &str,
    applicability: Applicability,
    message: &'static str,
) -> Fix {
    let atom = matches!(
        expr,
        Expr::Name(_) | Expr::Attribute(_) | Expr::Call(_) | Expr::Subscript(_)
    );
    let edits = if atom {
        vec![Edit::insert(expr.end(), suffix)]
    } else {
        vec![
            Edit::insert(expr.start(), "("),
            Edit::insert(expr.end(), format!("){suffix}")),
        ]
    };
    Fix::new(applicability, message, edits)
}

/// Adds a keyword argument at the end of a call.
pub(super) fn add_keyword(model: &Model<'_>, call: &Call<'_>, keyword: &str) -> Edit {
    let inner = call.node.arguments.inner_range();
    let text = model.text(inner);
    let kept = text.trim_end();
    let at = inner.start() + TextSize::of(kept);
    // A comment may follow the last argument: the new one goes right after that argument.
    let last = call
        .node
        .arguments
        .iter_source_order()
        .last()
        .map(|argument| argument.range().end());
    match last {
        None => Edit::insert(inner.start(), keyword),
        Some(end) if kept.ends_with(',') && end + TextSize::of(",") == at => {
            Edit::insert(at, format!(" {keyword}"))
        }
        Some(end) => Edit::insert(end, format!(", {keyword}")),
    }
}

/// Removes a keyword argument, with the comma that goes with it.
pub(super) fn remove_keyword(model: &Model<'_>, call: &Call<'_>, name: &str) -> Option<Edit> {
    let arguments: Vec<_> = call.node.arguments.iter_source_order().collect();
    let index = arguments.iter().position(|argument| {
        argument
            .as_keyword()
            .is_some_and(|keyword| keyword.arg.as_ref().is_some_and(|arg| arg.as_str() == name))
    })?;
    let own = arguments[index].range();
    let range = if let Some(previous) = index.checked_sub(1).and_then(|at| arguments.get(at)) {
        TextRange::new(previous.range().end(), own.end())
    } else if let Some(next) = arguments.get(index + 1) {
        TextRange::new(own.start(), next.range().start())
    } else {
        call.node.arguments.inner_range()
    };
    // A comment in between would go, too.
    (!model.text(range).contains('#')).then(|| Edit::replace(range, ""))
}

/// Deletes a statement that stands alone on its lines; a block that would be empty gets `pass`.
pub(super) fn delete_stmt(model: &Model<'_>, id: StmtId) -> Option<Edit> {
    let info = model.stmt(id);
    let range = info.node.range();
    let lines = whole_lines(model, range)?;
    if info.block.len() == 1 {
        return Some(Edit::replace(range, "pass"));
    }
    Some(Edit::replace(lines, ""))
}

/// The lines of a statement, with their line break, if nothing else is on them.
pub(super) fn whole_lines(model: &Model<'_>, range: TextRange) -> Option<TextRange> {
    let source = model.source;
    let start = source[..range.start().to_usize()]
        .rfind('\n')
        .map_or(0, |at| at + 1);
    if !source[start..range.start().to_usize()].trim().is_empty() {
        return None;
    }
    let rest = &source[range.end().to_usize()..];
    let end = rest.find('\n').map_or(rest.len(), |at| at + 1);
    if !rest[..end].trim().is_empty() {
        return None;
    }
    Some(TextRange::new(
        TextSize::new(start as u32),
        range.end() + TextSize::new(end as u32),
    ))
}

/// The white space before a statement on its line, if there is nothing else before it.
pub(super) fn indent_of<'s>(model: &Model<'s>, at: TextSize) -> Option<&'s str> {
    let source = model.source;
    let start = source[..at.to_usize()].rfind('\n').map_or(0, |at| at + 1);
    let indent = source.get(start..at.to_usize())?;
    indent.trim().is_empty().then_some(indent)
}

/// Inserts a line before a statement.
pub(super) fn line_before(model: &Model<'_>, id: StmtId, line: &str) -> Option<Edit> {
    let start = model.stmt(id).node.start();
    let indent = indent_of(model, start)?;
    Some(Edit::insert(start, format!("{line}\n{indent}")))
}

/// Whether the value of `place` reaches a `backward()` of the function.
pub(super) fn feeds_backward(model: &Model<'_>, func: Option<FuncId>, place: &str) -> bool {
    let mut reached: FxHashSet<String> = model
        .backwards
        .iter()
        .filter(|each| model.func_of(each.ctx) == func)
        .flat_map(|each| names_in(each.target))
        .collect();
    loop {
        let before = reached.len();
        for assign in &model.assigns {
            if model.func_of(assign.ctx) != func || !reached.contains(base(&assign.place)) {
                continue;
            }
            if let Some(expr) = assign.expr {
                reached.extend(names_in(expr));
            }
        }
        if reached.len() == before {
            break;
        }
    }
    reached.contains(base(place))
}

/// `x` of `x[]`.
pub(super) fn base(place: &str) -> &str {
    place.strip_suffix("[]").unwrap_or(place)
}

/// Whether the place starts anew in each iteration of the loop.
pub(super) fn starts_in(model: &Model<'_>, each: &Loop<'_>, place: &str) -> bool {
    let func = model.func_of(each.ctx);
    model.assigns_to(func, place).any(|assign| {
        if !model.is_inside(assign.ctx, each.ctx) {
            return false;
        }
        match assign.bind {
            Bind::Add | Bind::Augment => false,
            Bind::Set => !assign
                .expr
                .is_some_and(|expr| names_in(expr).iter().any(|name| name == place)),
            Bind::Unpack | Bind::Other => true,
        }
    })
}

/// Whether the collection is emptied inside the loop.
pub(super) fn is_cleared_in(model: &Model<'_>, each: &Loop<'_>, place: &str) -> bool {
    model.calls.iter().any(|call| {
        matches!(call.method, Some("clear" | "pop" | "popleft"))
            && model.is_inside(call.ctx, each.ctx)
            && call.recv_place().as_deref() == Some(place)
    })
}

/// A call of a model.
pub(super) fn is_model_call(call: &Call<'_>) -> bool {
    (call.callee.is_model() || (call.recv.is_model() && call.is_method("forward")))
        && !matches!(
            call.callee.kind,
            Kind::Model(crate::semantic::value::ModelKind::Softmax)
        )
}

/// The place of the model in a call of it.
pub(super) fn model_place(call: &Call<'_>) -> Option<String> {
    if call.callee.is_model() {
        place_of(&call.node.func)
    } else {
        call.recv_place()
    }
}

/// The optimizer place of a step: `optimizer` of `optimizer.step()` and `scaler.step(optimizer)`.
pub(super) fn stepped_optimizer(call: &Call<'_>) -> Option<String> {
    if !is_step(call) {
        return None;
    }
    match call.recv.kind {
        Kind::Optimizer => call.recv_place(),
        Kind::Scaler => call.node.arguments.find_positional(0).and_then(place_of),
        _ => None,
    }
}

/// A step that happens every so many iterations of a training loop: gradient accumulation.
pub(super) struct Accumulation<'m, 'a> {
    pub(super) looped: &'m Loop<'a>,
    pub(super) optimizer: String,
    /// The test of the branch: `(i + 1) % steps == 0`.
    pub(super) test: &'a Expr,
    /// What the counter is taken modulo.
    pub(super) steps: &'a Expr,
}

/// The gradient accumulations of the file: a training loop whose `backward()` runs in every
/// iteration and whose `step()` is under a modulo test.
pub(super) fn accumulations<'m, 'a>(model: &'m Model<'a>) -> Vec<Accumulation<'m, 'a>> {
    let mut found: Vec<Accumulation<'m, 'a>> = Vec::new();
    for call in &model.calls {
        let Some(optimizer) = stepped_optimizer(call) else {
            continue;
        };
        let Some(looped) = model.training_loop(call.ctx) else {
            continue;
        };
        let branch = model
            .within_function(call.ctx)
            .take_while(|id| *id != looped.ctx)
            .find_map(|id| match model.ctx(id).kind {
                CtxKind::Branch(Some(test)) => modulus(test).map(|steps| (id, test, steps)),
                _ => None,
            });
        let Some((branch, test, steps)) = branch else {
            continue;
        };
        let every_iteration = model.backwards.iter().any(|backward| {
            model.is_inside(backward.ctx, looped.ctx)
                && !model.is_inside(backward.ctx, branch)
                && !under_modulus(model, backward.ctx, looped.ctx)
        });
        let known = found
            .iter()
            .any(|each| each.test.range() == test.range() && each.optimizer == optimizer);
        // A backward in the branch as well: an optimizer that trains every so often, as in GANs.
        let in_branch = model
            .backwards
            .iter()
            .any(|backward| model.is_inside(backward.ctx, branch));
        if every_iteration && !in_branch && !known {
            found.push(Accumulation {
                looped,
                optimizer,
                test,
                steps,
            });
        }
    }
    found
}

/// Whether a context is under a modulo test inside `outer`.
pub(super) fn under_modulus(model: &Model<'_>, ctx: CtxId, outer: CtxId) -> bool {
    model
        .ancestors(ctx)
        .take_while(|id| *id != outer)
        .any(|id| match model.ctx(id).kind {
            CtxKind::Branch(Some(test)) => modulus(test).is_some(),
            _ => false,
        })
}

/// The right side of the first `%` in an expression.
pub(super) fn modulus(expr: &Expr) -> Option<&Expr> {
    struct Find<'a>(Option<&'a Expr>);
    impl<'a> Visitor<'a> for Find<'a> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if self.0.is_some() {
                return;
            }
            if let Expr::BinOp(node) = expr
                && node.op == Operator::Mod
                && !node.left.is_string_literal_expr()
            {
                self.0 = Some(&node.right);
                return;
            }
            walk_expr(self, expr);
        }
    }
    let mut find = Find(None);
    find.visit_expr(expr);
    find.0
}

/// The calls in a piece of syntax, outermost first.
pub(super) fn calls_in(body: &[Stmt]) -> Vec<&ruff_python_ast::ExprCall> {
    struct Calls<'a>(Vec<&'a ruff_python_ast::ExprCall>);
    impl<'a> Visitor<'a> for Calls<'a> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if let Expr::Call(call) = expr {
                self.0.push(call);
            }
            walk_expr(self, expr);
        }

        fn visit_stmt(&mut self, stmt: &'a Stmt) {
            // A function that is only defined here does not run here.
            if !matches!(stmt, Stmt::FunctionDef(_) | Stmt::ClassDef(_)) {
                walk_stmt(self, stmt);
            }
        }
    }
    let mut calls = Calls(Vec::new());
    for stmt in body {
        calls.visit_stmt(stmt);
    }
    calls.0
}

/// The string literals in a piece of syntax, in lower case.
pub(super) fn strings_in(body: &[Stmt]) -> Vec<String> {
    struct Strings(Vec<String>);
    impl<'a> Visitor<'a> for Strings {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if let Expr::StringLiteral(node) = expr {
                self.0.push(node.value.to_str().to_ascii_lowercase());
            }
            walk_expr(self, expr);
        }
    }
    let mut strings = Strings(Vec::new());
    for stmt in body {
        strings.visit_stmt(stmt);
    }
    strings.0
}

/// Whether a piece of syntax raises.
pub(super) fn raises(body: &[Stmt]) -> bool {
    struct Raises(bool);
    impl<'a> Visitor<'a> for Raises {
        fn visit_stmt(&mut self, stmt: &'a Stmt) {
            self.0 |= matches!(stmt, Stmt::Raise(_));
            if !matches!(stmt, Stmt::FunctionDef(_)) {
                walk_stmt(self, stmt);
            }
        }
    }
    let mut raises = Raises(false);
    for stmt in body {
        raises.visit_stmt(stmt);
    }
    raises.0
}

/// How a handler recognises running out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OomTest {
    /// `except torch.cuda.OutOfMemoryError`.
    Class,
    /// A test of the message.
    Message,
}

/// How a handler recognises running out of memory, if it does.
pub(super) fn oom_handler(
    handler: &ruff_python_ast::ExceptHandlerExceptHandler,
) -> Option<OomTest> {
    if let Some(type_) = &handler.type_ {
        let names: Vec<&str> = match &**type_ {
            Expr::Tuple(tuple) => tuple.elts.iter().filter_map(attr_or_name).collect(),
            other => attr_or_name(other).into_iter().collect(),
        };
        if names.contains(&"OutOfMemoryError") {
            return Some(OomTest::Class);
        }
    }
    strings_in(&handler.body)
        .iter()
        .any(|text| text.contains("out of memory"))
        .then_some(OomTest::Message)
}

/// Whether the file speaks of a GPU at all.
pub(super) fn mentions_gpu(model: &Model<'_>) -> bool {
    model.source.contains("cuda") || model.source.contains("device")
}

/// Whether the file is a program that never leaves the CPU: it says so, or it runs by itself and
/// speaks of no other device.
pub(super) fn on_cpu_only(model: &Model<'_>) -> bool {
    const ELSEWHERE: &[&str] = &[
        "cuda",
        "\"mps",
        "'mps",
        "xpu",
        "\"npu",
        "'npu",
        "\"hpu",
        "accelerat",
        "fabric",
        "trainer",
    ];
    let source = model.source.to_ascii_lowercase();
    if ELSEWHERE.iter().any(|word| source.contains(word)) {
        return false;
    }
    let says_so = model
        .assigns
        .iter()
        .any(|assign| assign.value.kind == Kind::Device && assign.value.device == Device::Cpu);
    let is_program = || {
        model.calls.iter().any(|call| {
            model.func_of(call.ctx).is_none() && (call.target.is_some() || is_model_call(call))
        })
    };
    says_so || (!source.contains("device") && !source.contains("gpu") && is_program())
}

/// Whether a loop of a script or notebook leaves its batches on the CPU, where another loop of the
/// file moves its own. `DataParallel` moves them by itself.
pub(super) fn leaves_batches_on_cpu(model: &Model<'_>, looped: &Loop<'_>) -> bool {
    let moves = |each: &Loop<'_>| {
        model.calls.iter().any(|call| {
            matches!(call.method, Some("to" | "cuda")) && model.is_inside(call.ctx, each.ctx)
        })
    };
    model.func_of(looped.ctx).is_none()
        && looped.data
        && !model.source.contains("DataParallel")
        && !moves(looped)
        && model.loops.iter().any(|each| each.data && moves(each))
}

/// Whether a call runs a model that is known to be on the CPU.
pub(super) fn runs_on_cpu(call: &Call<'_>) -> bool {
    let device = if call.callee.is_model() {
        call.callee.device
    } else {
        call.recv.device
    };
    device == Device::Cpu
        || (device == Device::Unknown
            && call
                .args
                .first()
                .is_some_and(|arg| arg.is_tensor() && arg.device == Device::Cpu))
}

/// A call that puts something on a GPU: `.cuda()`, `.to("cuda")`.
pub(super) fn moves_to_gpu(call: &Call<'_>) -> bool {
    match call.method {
        Some("cuda") => true,
        Some("to") => {
            call.args
                .first()
                .is_some_and(|arg| arg.device == Device::Gpu)
                && !call.recv.is_model()
        }
        _ => false,
    }
}

/// Whether a context is in a unit test: it runs once, on a tiny model, to compare numbers.
pub(super) fn in_unit_test(model: &Model<'_>, ctx: CtxId) -> bool {
    let is_test = |name: &str| name.starts_with("test_") || name.starts_with("_test_");
    [
        "import pytest",
        "from pytest",
        "import unittest",
        "from unittest",
    ]
    .iter()
    .any(|import| model.source.contains(import))
        || model.func_of(ctx).is_some_and(|func| {
            let node = model.func(func).node;
            is_test(node.name.as_str()) && model.text(node).contains("assert")
        })
}

/// Whether a name says that its function evaluates.
pub(super) fn is_eval_name(name: &str) -> bool {
    let name = name.trim_start_matches('_').to_ascii_lowercase();
    let first = name.split('_').next().unwrap_or(&name);
    matches!(
        first,
        "eval"
            | "evaluate"
            | "evaluation"
            | "validate"
            | "validation"
            | "val"
            | "test"
            | "predict"
            | "prediction"
            | "infer"
            | "inference"
    )
}

/// Whether the trainer of a library owns the loop: it scales losses and steps by itself.
pub(super) fn has_managed_loop(model: &Model<'_>) -> bool {
    ["accelerat", "deepspeed", "fabric", "model_engine"]
        .iter()
        .any(|name| model.source.contains(name))
}

/// Whether the file trains, or makes what trains: without gradients, wrappers cost less.
pub(super) fn trains(model: &Model<'_>) -> bool {
    let is_test =
        model.source.contains("import unittest") || model.source.contains("import pytest");
    let of_optimizer = |name: &str| name.to_ascii_lowercase().contains("optim");
    !is_test
        && (!model.backwards.is_empty()
            || model.calls.iter().any(|call| {
                call.recv.kind == Kind::Optimizer
                    || call.result.kind == Kind::Optimizer
                    || attr_or_name(&call.node.func).is_some_and(of_optimizer)
            })
            || model
                .assigns
                .iter()
                .any(|assign| of_optimizer(&assign.place))
            || model.funcs.iter().any(|func| {
                func.node
                    .parameters
                    .iter_non_variadic_params()
                    .any(|each| of_optimizer(each.parameter.name.as_str()))
            })
            || model.source.contains("loss_scaler"))
}

/// Whether a call constructs a cross-entropy or is one.
pub(super) fn is_cross_entropy(call: &Call<'_>) -> bool {
    call.is("torch.nn.functional.cross_entropy")
        || matches!(
            call.callee.kind,
            Kind::Criterion {
                cross_entropy: true
            }
        )
}

/// `DataParallel` in any spelling.
pub(super) fn is_data_parallel(call: &Call<'_>) -> bool {
    call.qual.as_deref().is_some_and(torch::is_data_parallel)
}
