use oomph_python_source::ast::{BoolOp, Expr, Stmt};
use oomph_python_source::{Ranged, dotted_name};

use crate::rule::{Report, declare_rule};
use crate::semantic::{Model, torch};

declare_rule! {
    /// `torch.no_grad()` is called as a statement and does nothing.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.no_grad()` or `torch.inference_mode()` as a statement, called or not.
    ///
    /// ## Why it costs memory
    ///
    /// The call makes a context manager and throws it away. Gradients stay on, and every forward
    /// pass after it keeps its activations.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def evaluate(model, x):
    ///     torch.no_grad()
    ///     return model(x)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def evaluate(model, x):
    ///     with torch.no_grad():
    ///         return model(x)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// No case is known.
    ///
    /// ## Fix safety
    ///
    /// No fix: only you know what belongs inside the block.
    OOM203 "no-grad-without-effect" { fix: None, fresh: [2, 3] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for info in &model.stmts {
        if let Stmt::With(with) = info.node {
            for item in &with.items {
                if let Some(skipped) = skipped_by_and(model, &item.context_expr) {
                    out.push(
                        Report::new(
                            skipped,
                            format!("`and` gives its last part alone to `with`: `{}` is not entered, and gradients stay on", model.text(skipped)),
                        )
                        .help("separate the two by a comma"),
                    );
                }
            }
        }
        let Stmt::Expr(stmt) = info.node else { continue };
        let does_nothing = match &*stmt.value {
            Expr::Call(node) => model.calls.iter().any(|call| {
                std::ptr::eq(call.node, node) && call.qual.as_deref().is_some_and(torch::is_no_grad)
            }),
            // Not even called.
            name @ Expr::Attribute(_) => dotted_name(name).is_some_and(|name| torch::is_no_grad(&name)),
            _ => false,
        };
        if does_nothing {
            out.push(
                Report::new(
                    &*stmt.value,
                    format!("`{}` as a statement does nothing: gradients stay on", model.text(&*stmt.value)),
                )
                .help("use it as `with torch.no_grad():` or as a decorator; `torch.set_grad_enabled(False)` works as a statement"),
            );
        }
    }
}

/// `torch.no_grad()` of `torch.no_grad() and autocast()`: what is true and not last is nothing but looked at.
fn skipped_by_and<'a>(model: &Model<'a>, expr: &'a Expr) -> Option<&'a Expr> {
    let Expr::BoolOp(node) = expr else { return None };
    let (_, first) = node.values.split_last()?;
    first.iter().find(|each| {
        node.op == BoolOp::And
            && model.calls.iter().any(|call| {
                call.node.range() == each.range() && call.qual.as_deref().is_some_and(torch::is_no_grad)
            })
    })
}
