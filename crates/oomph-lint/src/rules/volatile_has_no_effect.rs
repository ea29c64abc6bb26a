use crate::queries::devices::{mentions_gpu, on_cpu_only};
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Device;
use crate::semantic::{Grad, Model};

declare_rule! {
    /// `volatile=True` no longer turns gradients off.
    ///
    /// ## What it does
    ///
    /// Looks for `Variable(x, volatile=True)`.
    ///
    /// ## Why it costs memory
    ///
    /// Until PyTorch 0.3, `volatile` kept inference from building a graph. It has had no effect
    /// since: code that relies on it keeps every activation.
    ///
    /// ## Example
    ///
    /// ```python
    /// from torch.autograd import Variable
    ///
    /// def predict(model, x):
    ///     return model(Variable(x, volatile=True))
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def predict(model, x):
    ///     with torch.no_grad():
    ///         return model(x)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When a `with torch.no_grad():` further out, in another function, makes up for it.
    ///
    /// ## Fix safety
    ///
    /// No fix: removing the argument would hide that gradients are on.
    OOM204 "volatile-has-no-effect" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let Some(value) = call.keyword("volatile") else {
            continue;
        };
        let is_variable = call
            .qual
            .as_deref()
            .is_some_and(|qual| qual.ends_with("Variable"));
        let is_true = value.as_boolean_literal_expr().is_some_and(|flag| flag.value);
        // In a training step the graph is wanted, and what a constructor makes is no input.
        let func = model.func_of(call.ctx).map(|id| model.func(id));
        let is_no_input = model.loops_around(call.ctx).any(|each| each.contains_backward)
            || func.is_some_and(|func| func.has_backward || func.node.name.as_str() == "__init__");
        let on_cpu = || {
            let made_here = call.args.first().is_some_and(|arg| arg.device == Device::Cpu);
            (made_here && !mentions_gpu(model)) || on_cpu_only(model)
        };
        if is_variable && is_true && call.grad == Grad::On && !is_no_input && !on_cpu() {
            out.push(
                Report::new(
                    call.node,
                    "`volatile=True` has had no effect since PyTorch 0.4: a graph is built",
                )
                .help("use `with torch.no_grad():` around the forward pass"),
            );
        }
    }
}
