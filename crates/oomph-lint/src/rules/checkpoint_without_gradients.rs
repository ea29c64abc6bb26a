use crate::rule::{Report, declare_rule};
use crate::semantic::{Grad, Model, torch};

declare_rule! {
    /// Activation checkpointing is used where no activation is kept.
    ///
    /// ## What it does
    ///
    /// Looks for `checkpoint(…)` and `gradient_checkpointing_enable()` under `torch.no_grad()` or
    /// `torch.inference_mode()`.
    ///
    /// ## Why it costs memory
    ///
    /// It saves nothing: without gradients no activations are kept, so there is nothing to
    /// recompute. Something else holds the memory.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torch.utils.checkpoint import checkpoint
    ///
    /// @torch.no_grad()
    /// def predict(block, x):
    ///     return checkpoint(block, x, use_reentrant=False)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// @torch.no_grad()
    /// def predict(block, x):
    ///     return block(x)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// No case is known.
    ///
    /// ## Fix safety
    ///
    /// No fix: the function and its arguments may be anything.
    OOM512 "checkpoint-without-gradients" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let checkpoints = call.qual.as_deref().is_some_and(torch::is_checkpoint)
            || call.is_method("gradient_checkpointing_enable");
        if checkpoints && call.grad == Grad::Off {
            out.push(
                Report::new(
                    call.node,
                    "gradients are off here: no activations are kept, and checkpointing saves nothing",
                )
                .help("call the function itself"),
            );
        }
    }
}
