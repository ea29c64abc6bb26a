use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::dotted_name;

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
    OOM203 "no-grad-without-effect" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for info in &model.stmts {
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
