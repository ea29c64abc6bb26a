use oomph_python_source::ast::Expr;

use crate::rule::{Report, declare_rule};
use crate::semantic::{Bind, Model};

declare_rule! {
    /// `backward(create_graph=True)` ties parameters and gradients into a cycle.
    ///
    /// ## What it does
    ///
    /// Looks for `backward(create_graph=True)` in a function that neither sets `.grad = None` nor
    /// clears gradients to `None` afterwards.
    ///
    /// ## Why it costs memory
    ///
    /// Each `.grad` then holds a graph that refers to the parameters, which refer to their `.grad`.
    /// Python cannot free that cycle, and a whole graph leaks with every step. PyTorch warns about
    /// it for this reason.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def penalty(model, loader, criterion):
    ///     for x, y in loader:
    ///         loss = criterion(model(x), y)
    ///         loss.backward(create_graph=True)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def penalty(model, loader, criterion):
    ///     for x, y in loader:
    ///         loss = criterion(model(x), y)
    ///         grads = torch.autograd.grad(loss, model.parameters(), create_graph=True)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the caller clears the gradients to `None` after every step.
    ///
    /// ## Fix safety
    ///
    /// No fix: `autograd.grad` returns the gradients instead of storing them.
    OOM106 "backward-creates-graph" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for backward in &model.backwards {
        let call = &model.calls[backward.call];
        let creates = call
            .keyword("create_graph")
            .is_some_and(|value| value.as_boolean_literal_expr().is_some_and(|flag| flag.value));
        if !creates {
            continue;
        }
        let func = model.func_of(call.ctx);
        let clears = model.calls_in_function(func).any(|other| {
            other.is_zero_grad()
                && !other.keyword("set_to_none").is_some_and(|value| {
                    value
                        .as_boolean_literal_expr()
                        .is_some_and(|flag| !flag.value)
                })
        }) || model.assigns.iter().any(|assign| {
            model.func_of(assign.ctx) == func
                && assign.bind == Bind::Set
                && assign.place.rsplit('.').next() == Some("grad")
                && matches!(assign.expr, Some(Expr::NoneLiteral(_)))
        });
        if !clears {
            out.push(
                Report::new(
                    call.node,
                    "`backward(create_graph=True)` leaks its graph: parameters and gradients refer to each other",
                )
                .help("use `torch.autograd.grad(..., create_graph=True)`, or set `.grad = None` after use"),
            );
        }
    }
}
