use oomph_python_source::ast::Expr;

use crate::queries::model_calls::is_cross_entropy;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// Logits are copied to float32 before the loss.
    ///
    /// ## What it does
    ///
    /// Looks for `cross_entropy(logits.float(), …)`.
    ///
    /// ## Why it costs memory
    ///
    /// The copy is four bytes times tokens times vocabulary, kept for `backward()`, beside the
    /// half-precision logits and the log-softmax. Fused or chunked cross-entropy needs none of them.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch.nn.functional as F
    ///
    /// def loss(logits, target):
    ///     return F.cross_entropy(logits.float(), target)
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
    /// under autocast, which computes the loss in float32, or a fused loss.
    ///
    /// ## When it is wrong
    ///
    /// When there are few classes, or float32 is needed for stability: the rule is off by default.
    ///
    /// ## Fix safety
    ///
    /// No fix: numerics change.
    OOM805 "logits-upcast" { fix: None, default: false }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if !is_cross_entropy(call) {
            continue;
        }
        let Some(arg @ Expr::Call(inner)) = call.node.arguments.find_positional(0) else {
            continue;
        };
        if matches!(&*inner.func, Expr::Attribute(attribute) if attribute.attr.as_str() == "float") {
            out.push(
                Report::new(arg, "a float32 copy of the logits is kept for `backward()`")
                    .help("let autocast do it, or use a fused or chunked cross-entropy"),
            );
        }
    }
}
