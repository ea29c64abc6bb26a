use oomph_python_source::ast::{Expr, Stmt};

use crate::rule::{Report, declare_rule};
use crate::semantic::{Model, torch};

declare_rule! {
    /// `torch.no_grad()` is called as a statement and does nothing.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.no_grad()` or `torch.inference_mode()` as a statement.
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
    for call in &model.calls {
        if !call.qual.as_deref().is_some_and(torch::is_no_grad) {
            continue;
        }
        if let Stmt::Expr(stmt) = model.stmt(call.stmt).node
            && matches!(&*stmt.value, Expr::Call(node) if node.range_start == call.node.range_start && node.arguments.range == call.node.arguments.range)
            {
                out.push(
                    Report::new(
                        call.node,
                        format!("`{}` as a statement does nothing: gradients stay on", model.text(call.node)),
                    )
                    .help("use it as `with torch.no_grad():` or as a decorator; `torch.set_grad_enabled(False)` works as a statement"),
                );
            }
    }
}
