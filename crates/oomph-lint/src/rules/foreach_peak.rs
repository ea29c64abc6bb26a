use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// An optimizer is made with `foreach=True`.
    ///
    /// ## What it does
    ///
    /// Looks for constructors of optimizers that are given `foreach=True`.
    ///
    /// ## Why it costs memory
    ///
    /// The foreach step computes on lists of all tensors at once, with temporaries as large as all
    /// parameters together: a peak at `step()` that the plain loop (`foreach=False`) and the fused
    /// kernel (`fused=True`) do not have.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def make(model):
    ///     return torch.optim.AdamW(model.parameters(), foreach=True)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def make(model):
    ///     return torch.optim.AdamW(model.parameters(), fused=True)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the peak of the job is elsewhere, and the optimizer has no fused form.
    ///
    /// ## Fix safety
    ///
    /// No fix offered beyond the advice: not every optimizer has `fused`.
    OOM414 "foreach-peak" { fix: None, fresh: [0, 0] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let is_optimizer = call
            .qual
            .as_deref()
            .is_some_and(|qual| qual.starts_with("torch.optim."));
        let foreach = call
            .keyword("foreach")
            .is_some_and(|value| value.as_boolean_literal_expr().is_some_and(|flag| flag.value));
        if is_optimizer && foreach {
            out.push(
                Report::new(
                    call.node,
                    "`foreach=True` needs temporaries as large as all parameters in every step",
                )
                .help("use `fused=True` where the optimizer has it, or `foreach=False`"),
            );
        }
    }
}
