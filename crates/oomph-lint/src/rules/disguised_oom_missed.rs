use oomph_python_source::ast::{self, Stmt};
use oomph_python_source::{Ranged, TextRange, TextSize};

use crate::queries::oom_handlers::{OomTest, oom_handler};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// A handler misses out-of-memory errors in disguise.
    ///
    /// ## What it does
    ///
    /// Looks for handlers that recognize an out-of-memory error by its class or by "out of memory"
    /// alone, and then go on. Those that catch every `RuntimeError`, or raise again in any case, are left out.
    ///
    /// ## Why it costs memory
    ///
    /// Libraries that allocate past PyTorch report the same thing in other words:
    /// `CUBLAS_STATUS_ALLOC_FAILED`, `CUDNN_STATUS_NOT_INITIALIZED`, `CUDNN_STATUS_ALLOC_FAILED`,
    /// "Not enough memory for workspace", NCCL's "Failed to CUDA calloc". All are `RuntimeError`s
    /// that the test misses, so they end a job that was meant to survive.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def fits(step, batch):
    ///     try:
    ///         step(batch)
    ///     except torch.cuda.OutOfMemoryError:
    ///         return False
    ///     return True
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// SIGNS = ("out of memory", "ALLOC_FAILED", "NOT_INITIALIZED", "Not enough memory", "CUDA calloc")
    ///
    /// def fits(step, batch):
    ///     try:
    ///         step(batch)
    ///     except RuntimeError as error:
    ///         if not any(sign in str(error) for sign in SIGNS):
    ///             raise
    ///         return False
    ///     return True
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When nothing in the block uses cuBLAS, cuDNN or NCCL.
    ///
    /// ## Fix safety
    ///
    /// No fix: the test needs a list of messages.
    OOM903 "disguised-oom-missed" { fix: None, fresh: [16, 29] }
}

/// Whether a block raises, whichever way it is left.
fn always_raises(body: &[Stmt]) -> bool {
    body.iter().any(|stmt| match stmt {
        Stmt::Raise(_) => true,
        Stmt::If(branch) => {
            let clauses = &branch.elif_else_clauses;
            clauses.last().is_some_and(|last| last.test.is_none())
                && always_raises(&branch.body)
                && clauses.iter().all(|clause| always_raises(&clause.body))
        }
        _ => false,
    }) && !body.iter().any(leaves)
}

/// Whether a statement may leave its block without raising.
fn leaves(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Return(_) | Stmt::Continue(_) | Stmt::Break(_) => true,
        Stmt::If(branch) => {
            branch.body.iter().any(leaves)
                || branch
                    .elif_else_clauses
                    .iter()
                    .any(|clause| clause.body.iter().any(leaves))
        }
        _ => false,
    }
}

/// Whether a later handler of the same `try` catches the errors in disguise and goes on as well.
fn others_go_on(
    model: &Model<'_>,
    node: &ast::StmtTry,
    handler: &ast::ExceptHandlerExceptHandler,
) -> bool {
    node.handlers.iter().any(|other| {
        let ast::ExceptHandler::ExceptHandler(other) = other;
        let catches = other.type_.as_deref().is_none_or(|type_| {
            matches!(model.text(type_), "Exception" | "BaseException" | "RuntimeError")
        });
        other.range.start() > handler.range.start() && catches && !always_raises(&other.body)
    })
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let knows = ["ALLOC_FAILED", "STATUS_NOT_INITIALIZED", "alloc_failed", "NOT_SUPPORTED"]
        .iter()
        .any(|word| model.module.text().contains(word));
    if knows {
        return;
    }
    for info in &model.stmts {
        let Stmt::Try(node) = info.node else { continue };
        for ast::ExceptHandler::ExceptHandler(handler) in &node.handlers {
            if oom_handler(handler).is_none() || in_unit_test(model, info.ctx) {
                continue;
            }
            // The words may be advice in a message about something else.
            let other_error = handler.type_.as_deref().is_some_and(|type_| {
                !["RuntimeError", "Exception", "OutOfMemoryError", "AcceleratorError"]
                    .iter()
                    .any(|name| model.text(type_).contains(name))
            });
            if other_error {
                continue;
            }
            // `except (RuntimeError, OutOfMemoryError):` catches them as well; one that always raises again saves nothing.
            let catches_all = oom_handler(handler) == Some(OomTest::Class)
                && handler.type_.as_deref().is_some_and(|type_| {
                    let text = model.text(type_);
                    type_.is_tuple_expr() && (text.contains("RuntimeError") || text.contains("Exception"))
                });
            let gives_up = always_raises(&handler.body);
            if catches_all || gives_up || others_go_on(model, node, handler) {
                continue;
            }
            let start = handler.range().start();
            let end = handler
                .type_
                .as_deref()
                .map_or(start + TextSize::of("except"), Ranged::end);
            out.push(
                Report::new(
                    TextRange::new(start, end),
                    "this test misses out-of-memory errors of cuBLAS, cuDNN and NCCL",
                )
                .help("also look for `ALLOC_FAILED`, `CUDNN_STATUS_NOT_INITIALIZED` and `Not enough memory` in the message"),
            );
        }
    }
}
