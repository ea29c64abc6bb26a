use oomph_python_source::ast::{self, Expr, ExprCall, Stmt};
use oomph_python_source::{dotted_name, last_name, statements_in};

use crate::queries::devices::moves_to_gpu;
use crate::queries::loop_carried::{is_cleared_in, starts_in};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind, Tri};
use crate::semantic::{CtxKind, Model, torch};

declare_rule! {
    /// All batches of a loader are moved to the GPU at once.
    ///
    /// ## What it does
    ///
    /// Looks for list comprehensions and loops over a loader that move every batch to the GPU and keep it
    /// in a list.
    ///
    /// ## Why it costs memory
    ///
    /// The list holds the whole dataset on the GPU, and nothing of it is freed before the list is.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def batches(loader):
    ///     return [x.cuda() for x, y in loader]
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def batches(loader):
    ///     for x, y in loader:
    ///         yield x.cuda(non_blocking=True)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the data is small.
    ///
    /// ## Fix safety
    ///
    /// No fix: callers may index the list.
    OOM603 "loader-collected-on-gpu" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    check_loops(model, out);
    for call in &model.calls {
        if !moves_to_gpu(call) {
            continue;
        }
        let ctx = model.ctx(call.ctx);
        if !matches!(ctx.kind, CtxKind::Comprehension) {
            continue;
        }
        let text = model.text(ctx.range);
        if !text.starts_with('[') {
            continue;
        }
        let Expr::ListComp(list) = (match find_list(model, ctx.range) {
            Some(expr) => expr,
            None => continue,
        }) else {
            continue;
        };
        let over_loader = list.generators.iter().any(|generator| {
            last_name(&generator.iter)
                .and_then(torch::hint)
                .is_some_and(|kind| kind == Kind::Loader)
        });
        if over_loader && keeps(&list.elt, call.node) {
            out.push(
                Report::new(ctx.range, "the list holds every batch of the loader on the GPU")
                    .help("move one batch at a time, in the loop that uses it"),
            );
        }
    }
}

/// `batches.append((x.cuda(), y.cuda()))` in a loop over a loader that keeps nothing else.
fn check_loops(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let Some(arg) = call.node.arguments.find_positional(0) else {
            continue;
        };
        let Some(list) = call.recv_expr().and_then(dotted_name) else {
            continue;
        };
        let Some(looped) = model.loops_around(call.ctx).find(|each| each.data) else {
            continue;
        };
        let func = model.func_of(call.ctx);
        let moved = model.calls.iter().any(|moved| {
            matches!(moved.method, Some("cuda" | "to"))
                && moved.recv.is_tensor()
                && moved.recv.graph == Tri::No
                && moved.result.device != Device::Cpu
                && (moved.is_method("cuda") || moved.args.first().is_some_and(|arg| arg.device == Device::Gpu))
                && keeps(arg, moved.node)
        });
        let is_list = model
            .assigns_to(func, &list)
            .any(|assign| assign.value.kind == Kind::Collection);
        if call.is_method("append")
            && moved
            && is_list
            && !looped.contains_backward
            && !model.is_conditional_in(call.ctx, looped.ctx)
            && !breaks(looped.body)
            && !starts_in(model, looped, &list)
            && !is_cleared_in(model, looped, &list)
            && !in_unit_test(model, call.ctx)
        {
            out.push(
                Report::new(arg, "the list holds every batch of the loader on the GPU")
                    .help("move one batch at a time, in the loop that uses it"),
            );
        }
    }
}

/// Whether a loop ends before its loader does.
fn breaks(body: &[Stmt]) -> bool {
    statements_in(body)
        .iter()
        .any(|stmt| matches!(stmt, Stmt::Break(_) | Stmt::Return(_)))
}

/// Whether an element of the list is, or holds, what the call moved: a call around it makes
/// something else.
fn keeps(element: &Expr, moved: &ExprCall) -> bool {
    match element {
        Expr::Call(call) => std::ptr::eq(call, moved),
        Expr::Tuple(tuple) => tuple.elts.iter().any(|each| keeps(each, moved)),
        Expr::List(list) => list.elts.iter().any(|each| keeps(each, moved)),
        Expr::Dict(dict) => dict.items.iter().any(|item| keeps(&item.value, moved)),
        Expr::DictComp(dict) => keeps(&dict.value, moved),
        Expr::ListComp(list) => keeps(&list.elt, moved),
        _ => false,
    }
}

fn find_list<'a>(model: &Model<'a>, range: oomph_python_source::TextRange) -> Option<&'a Expr> {
    struct Find<'a> {
        range: oomph_python_source::TextRange,
        found: Option<&'a Expr>,
    }
    impl<'a> ast::visitor::Visitor<'a> for Find<'a> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if oomph_python_source::Ranged::range(expr) == self.range && expr.is_list_comp_expr() {
                self.found = Some(expr);
            } else if self.found.is_none() {
                ast::visitor::walk_expr(self, expr);
            }
        }
    }
    let info = model.stmts.iter().rev().find(|info| {
        oomph_python_source::Ranged::range(info.node).contains_range(range)
    })?;
    let mut find = Find { range, found: None };
    ast::visitor::Visitor::visit_stmt(&mut find, info.node);
    find.found
}
