use crate::fix::Fix;
use crate::rule::{Report, declare_rule};
use crate::semantic::{CtxId, CtxKind, Model, torch};

declare_rule! {
    /// Activation checkpointing does not say `use_reentrant`.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.utils.checkpoint.checkpoint(…)` without `use_reentrant`.
    ///
    /// ## Why it costs memory
    ///
    /// The old, reentrant form is the default of the releases in use. It saves nothing, and trains
    /// nothing, when no input requires a gradient (a frozen embedding, LoRA), and it keeps graphs
    /// alive that the other form frees. PyTorch warns, and is about to change the default.
    ///
    /// ## Example
    ///
    /// ```python
    /// from torch.utils.checkpoint import checkpoint
    ///
    /// def run(block, x):
    ///     return checkpoint(block, x)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// from torch.utils.checkpoint import checkpoint
    ///
    /// def run(block, x):
    ///     return checkpoint(block, x, use_reentrant=False)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// On PyTorch before 1.11, which has no such argument: nothing is said if the project pins an older one. Off by default: an
    /// option switches checkpointing on, and in all eight findings in code that it had not seen nothing set it.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: the two forms differ for functions with side effects and nested checkpoints.
    OOM511 "checkpoint-reentrant-unset" { fix: Sometimes, fresh: [48, 60] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if call.qual.as_deref().is_some_and(torch::is_checkpoint)
            && call.keyword("use_reentrant").is_none()
            && !call.has_star_kwargs()
            && !asks_for_gradients(model, call.ctx)
            // A dummy input that requires gradients is how the old form was made to work.
            && !call.node.arguments.args.iter().any(|arg| model.text(arg).contains("dummy"))
        {
            let edit = model.module.add_keyword(call.node, "use_reentrant=False");
            out.push(
                Report::new(
                    &*call.node.func,
                    "the reentrant form of checkpointing is used: with frozen inputs it saves nothing and drops gradients",
                )
                .help("pass `use_reentrant=False`")
                .since(1, 11)
                .fix(Fix::unsafe_("pass `use_reentrant=False`", edit)),
            );
        }
    }
}

/// Whether a test around the call, `if x.requires_grad:`, keeps frozen inputs out.
fn asks_for_gradients(model: &Model<'_>, ctx: CtxId) -> bool {
    model.within_function(ctx).any(|id| {
        matches!(model.ctx(id).kind, CtxKind::Branch(Some(test)) if model.text(test).contains(".requires_grad"))
    })
}
