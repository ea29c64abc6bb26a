use crate::fix::Fix;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Bind, Model};

declare_rule! {
    /// Gradients are filled with zeros instead of freed.
    ///
    /// ## What it does
    ///
    /// Looks for `zero_grad(set_to_none=False)`.
    ///
    /// ## Why it costs memory
    ///
    /// The gradients, as large as the parameters, stay allocated through the forward pass, just
    /// when activations pile up. Freed, that memory serves the activations. `True` has
    /// been the default since PyTorch 2.0.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def step(optimizer):
    ///     optimizer.zero_grad(set_to_none=False)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def step(optimizer):
    ///     optimizer.zero_grad()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When gradients are views of one buffer, or captured in a CUDA graph.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: optimizers skip parameters whose gradient is `None`, and apply momentum and weight
    /// decay to those whose gradient is zero.
    OOM411 "zero-grad-keeps-memory" { fix: Sometimes, fresh: [0, 0] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if !call.is_method("zero_grad") {
            continue;
        }
        let keeps = call
            .keyword("set_to_none")
            .is_some_and(|value| value.as_boolean_literal_expr().is_some_and(|flag| !flag.value));
        // Code that adds to gradients by hand needs them to be there.
        let by_hand = || model
            .assigns
            .iter()
            .any(|assign| assign.place.rsplit('.').next() == Some("grad") && assign.bind != Bind::Set);
        if keeps && !by_hand() && !in_unit_test(model, call.ctx) {
            let fix = model.module.remove_keyword(call.node, "set_to_none")
                .map(|edit| Fix::unsafe_("let `zero_grad` free the gradients", edit));
            out.push(
                Report::new(
                    call.node,
                    "gradients are filled with zeros and stay allocated through the forward pass",
                )
                .help("call `zero_grad()`: it frees them")
                .fix(fix),
            );
        }
    }
}
