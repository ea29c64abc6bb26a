use oomph_python_source::ast::{self, Stmt};
use oomph_python_source::{Ranged, calls_run_by, last_name};

use crate::queries::oom_handlers::oom_handler;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// A step that ran out of memory is retried inside `except`.
    ///
    /// ## What it does
    ///
    /// Looks for handlers of out-of-memory errors that call a function which the `try` block calls
    /// as well.
    ///
    /// ## Why it costs memory
    ///
    /// Inside the handler the exception is alive, its traceback refers to every frame of the failed
    /// step, and those refer to its activations. The retry starts with a GPU that is still full.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def run(train_step, batch):
    ///     try:
    ///         return train_step(batch)
    ///     except torch.cuda.OutOfMemoryError:
    ///         torch.cuda.empty_cache()
    ///         return train_step(batch[: len(batch) // 2])
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def run(train_step, batch, is_out_of_memory):
    ///     try:
    ///         return train_step(batch)
    ///     except RuntimeError as error:
    ///         if not is_out_of_memory(error):
    ///             raise
    ///     torch.cuda.empty_cache()
    ///     return train_step(batch[: len(batch) // 2])
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When what is called needs no memory on the GPU.
    ///
    /// ## Fix safety
    ///
    /// No fix: the retry has to move below the handler.
    OOM901 "retry-inside-except" { fix: None, fresh: [3, 4] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for info in &model.stmts {
        let Stmt::Try(node) = info.node else { continue };
        let tried: Vec<&str> = calls_run_by(&node.body)
            .into_iter()
            .filter_map(|call| last_name(&call.func))
            .collect();
        for ast::ExceptHandler::ExceptHandler(handler) in &node.handlers {
            if oom_handler(handler).is_none() {
                continue;
            }
            for call in calls_run_by(&handler.body) {
                let Some(name) = last_name(&call.func) else {
                    continue;
                };
                let computes = model.calls.iter().any(|each| {
                    std::ptr::eq(each.node, call)
                        && (each.callee.is_model()
                            || each.method == Some("backward")
                            || each.target.is_some()
                            || name.contains("step")
                            || name.contains("train")
                            || name.contains("forward"))
                        && !matches!(name, "zero_grad" | "print" | "empty_cache")
                        // Without arguments, it cleans up.
                        && !(call.arguments.is_empty() && each.target.is_some())
                        && each.recv.kind != crate::semantic::value::Kind::Optimizer
                });
                if computes && tried.contains(&name) {
                    out.push(
                        Report::new(
                            call.func.range(),
                            format!("`{name}` is retried while the exception still holds the failed step's tensors"),
                        )
                        .help("remember that it failed, leave the `except` block, and retry after it"),
                    );
                    break;
                }
            }
        }
    }
}
