use crate::queries::devices::on_cpu_only;
use crate::queries::model_calls::is_cross_entropy;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// A softmax is taken twice.
    ///
    /// ## What it does
    ///
    /// Looks for cross-entropy losses whose input went through `softmax` or `log_softmax`.
    ///
    /// ## Why it costs memory
    ///
    /// Cross-entropy takes the log-softmax itself. The extra one is another tensor of (samples ×
    /// classes), kept for `backward()`; over a vocabulary that is gigabytes. After a plain softmax
    /// the loss is also wrong.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch.nn.functional as F
    ///
    /// def loss(logits, target):
    ///     return F.cross_entropy(F.softmax(logits, dim=-1), target.cuda())
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch.nn.functional as F
    ///
    /// def loss(logits, target):
    ///     return F.cross_entropy(logits, target.cuda())
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// Scripts that compute on the CPU are left out; elsewhere no case is known: even where the model trains, the second
    /// softmax does nothing useful.
    ///
    /// ## Fix safety
    ///
    /// No fix: after a plain softmax, training changes.
    OOM802 "softmax-before-cross-entropy" { fix: None, fresh: [3, 14] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if on_cpu_only(model) {
        return;
    }
    for call in &model.calls {
        if !is_cross_entropy(call) {
            continue;
        }
        let (Some(value), Some(arg)) = (call.args.first(), call.node.arguments.find_positional(0))
        else {
            continue;
        };
        if value.softmax {
            out.push(
                Report::new(arg, "cross-entropy takes the softmax itself: this one is kept beside it")
                    .help("pass the logits"),
            );
        }
    }
}
