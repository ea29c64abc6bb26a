use oomph_python_source::ast::{self, Expr, Stmt};
use oomph_python_source::{Ranged, TextRange, last_name};

use crate::queries::oom_handlers::{OomTest, oom_handler, raises};
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// A handler for out-of-memory errors swallows all others.
    ///
    /// ## What it does
    ///
    /// Looks for `except RuntimeError` (or wider) that tests the message for "out of memory" and
    /// never raises.
    ///
    /// ## Why it costs memory
    ///
    /// A shape error, a device assert or a lost GPU is skipped in silence, batch after batch. Where
    /// the error is out of memory in disguise (`CUBLAS_STATUS_ALLOC_FAILED`), nothing is cleaned up
    /// either.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def run(step, loader):
    ///     for batch in loader:
    ///         try:
    ///             step(batch)
    ///         except RuntimeError as error:
    ///             if "out of memory" in str(error) or "ALLOC_FAILED" in str(error):
    ///                 torch.cuda.empty_cache()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def run(step, loader):
    ///     for batch in loader:
    ///         try:
    ///             step(batch)
    ///         except RuntimeError as error:
    ///             if "out of memory" not in str(error) and "ALLOC_FAILED" not in str(error):
    ///                 raise
    ///             torch.cuda.empty_cache()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When other code raises the stored error.
    ///
    /// ## Fix safety
    ///
    /// No fix: where to raise depends on the tests.
    OOM902 "handler-swallows-errors" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for info in &model.stmts {
        let Stmt::Try(node) = info.node else { continue };
        for ast::ExceptHandler::ExceptHandler(handler) in &node.handlers {
            if oom_handler(handler) != Some(OomTest::Message) || raises(&handler.body) {
                continue;
            }
            let wide = match handler.type_.as_deref() {
                None => true,
                Some(Expr::Tuple(tuple)) => tuple.elts.iter().any(is_wide),
                Some(expr) => is_wide(expr),
            };
            let text = model.text(handler.range());
            let hands_on = ["return e", "return False", "exit(", "set_exception", "_exit", "return error", "put("]
                .iter()
                .any(|word| text.contains(word));
            // The test must decide something: a message that is only printed is no test.
            let tests = text.contains("if ") && text.contains(" in ");
            if wide && tests && !hands_on {
                let start = handler.range().start();
                let end = handler.type_.as_deref().map_or(start + oomph_python_source::TextSize::of("except"), Ranged::end);
                out.push(
                    Report::new(
                        TextRange::new(start, end),
                        "errors that are not out of memory are swallowed here",
                    )
                    .help("`raise` when the error is something else"),
                );
            }
        }
    }
}

fn is_wide(expr: &Expr) -> bool {
    matches!(
        last_name(expr),
        Some("RuntimeError" | "Exception" | "BaseException")
    )
}
