use oomph_python_source::ast::Expr;
use oomph_python_source::last_name;

use crate::queries::model_calls::is_cross_entropy;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// Targets of a cross-entropy are one-hot.
    ///
    /// ## What it does
    ///
    /// Looks for cross-entropy losses whose target is the result of `F.one_hot`.
    ///
    /// ## Why it costs memory
    ///
    /// `one_hot` makes a tensor of (samples × classes) in int64, eight bytes each, and the loss
    /// needs it in floating point once more. Class indices take eight bytes per sample.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch.nn.functional as F
    ///
    /// def loss(logits, target):
    ///     return F.cross_entropy(logits, F.one_hot(target, 50257).float())
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch.nn.functional as F
    ///
    /// def loss(logits, target):
    ///     return F.cross_entropy(logits, target)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// No case is known, except when the targets are mixed afterwards.
    ///
    /// ## Fix safety
    ///
    /// No fix: shapes may have to change.
    OOM803 "one-hot-cross-entropy" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if !is_cross_entropy(call) {
            continue;
        }
        let Some(target) = call.arg("target", 1) else {
            continue;
        };
        let by_value = call.args.get(1).is_some_and(|value| value.one_hot);
        if by_value || is_one_hot(target) {
            out.push(
                Report::new(target, "one-hot targets take (samples × classes) int64 numbers")
                    .help("pass class indices"),
            );
        }
    }
}

/// `F.one_hot(…)`, `F.one_hot(…).float()`, `F.one_hot(…).to(…)`.
fn is_one_hot(expr: &Expr) -> bool {
    let Expr::Call(call) = expr else { return false };
    match last_name(&call.func) {
        Some("one_hot") => true,
        Some("float" | "to" | "double" | "half") => match &*call.func {
            Expr::Attribute(attribute) => is_one_hot(&attribute.value),
            _ => false,
        },
        _ => false,
    }
}
