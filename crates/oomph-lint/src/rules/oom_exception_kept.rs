use oomph_python_source::ast::{self, Expr, Stmt};
use oomph_python_source::{Ranged, calls_run_by, dotted_name};

use crate::queries::oom_handlers::oom_handler;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// An out-of-memory error is kept with its traceback.
    ///
    /// ## What it does
    ///
    /// Looks for handlers of out-of-memory errors that store the exception: `last = error`,
    /// `errors.append(error)`.
    ///
    /// ## Why it costs memory
    ///
    /// The exception refers to its traceback, the traceback to the frames of the failed step, the
    /// frames to their tensors. As long as the exception lives, so do all activations of that step.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def largest(step, sizes):
    ///     errors = []
    ///     for size in sizes:
    ///         try:
    ///             step(size)
    ///         except torch.cuda.OutOfMemoryError as error:
    ///             errors.append(error)
    ///     return errors
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def largest(step, sizes):
    ///     errors = []
    ///     for size in sizes:
    ///         try:
    ///             step(size)
    ///         except RuntimeError as error:
    ///             if "out of memory" not in str(error) and "ALLOC_FAILED" not in str(error):
    ///                 raise
    ///             errors.append(str(error))
    ///     return errors
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the traceback is removed: `error.with_traceback(None)`.
    ///
    /// ## Fix safety
    ///
    /// No fix: later code may want the exception.
    OOM904 "oom-exception-kept" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for info in &model.stmts {
        let Stmt::Try(node) = info.node else { continue };
        for ast::ExceptHandler::ExceptHandler(handler) in &node.handlers {
            let (Some(_), Some(name)) = (oom_handler(handler), &handler.name) else {
                continue;
            };
            let name = name.as_str();
            let mut report = |range| {
                out.push(
                    Report::new(range, "the exception keeps every tensor of the failed step alive")
                        .help("keep `str(error)` instead"),
                );
            };
            for call in calls_run_by(&handler.body) {
                let stores = matches!(&*call.func, Expr::Attribute(attribute) if matches!(attribute.attr.as_str(), "append" | "add"));
                if let (true, Some(arg)) = (stores, call.arguments.find_positional(0))
                    && dotted_name(arg).as_deref() == Some(name) {
                        report(arg.range());
                    }
            }
            for assign in &model.assigns {
                let inside = handler.range().contains_range(assign.target.range());
                let is_error = assign
                    .expr
                    .is_some_and(|expr| dotted_name(expr).as_deref() == Some(name));
                if inside && is_error {
                    report(assign.target.range());
                }
            }
        }
    }
}
