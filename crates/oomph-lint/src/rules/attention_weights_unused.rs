use oomph_python_source::Ranged;
use oomph_python_source::ast::{self, Expr, Stmt};

use crate::fix::Fix;
use crate::queries::devices::{follows_hidden_gpus, says_cpu};
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;
use crate::semantic::value::{Kind, ModelKind};

declare_rule! {
    /// Attention weights are computed and thrown away.
    ///
    /// ## What it does
    ///
    /// Looks for calls of `nn.MultiheadAttention` that drop the second result and do not pass
    /// `need_weights=False`.
    ///
    /// ## Why it costs memory
    ///
    /// To return the weights (length² per head), the module takes its slow path and keeps them for
    /// `backward()`. With `need_weights=False` it uses `scaled_dot_product_attention`, which keeps
    /// none.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch.nn as nn
    ///
    /// class Block(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.attn = nn.MultiheadAttention(512, 8)
    ///
    ///     def forward(self, x):
    ///         return x + self.attn(x, x, x)[0]
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch.nn as nn
    ///
    /// class Block(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.attn = nn.MultiheadAttention(512, 8)
    ///
    ///     def forward(self, x):
    ///         return x + self.attn(x, x, x, need_weights=False)[0]
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// No case is known: the weights are dropped.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: the other kernel may differ in the last bits.
    OOM804 "attention-weights-unused" { fix: Sometimes, fresh: [47, 70] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if call.callee.kind != Kind::Model(ModelKind::MultiheadAttention)
            || call.arg("need_weights", 4).is_some()
            || call.has_star_kwargs()
            || call.has_star_args()
            || says_cpu(model)
            || follows_hidden_gpus(model, call)
        {
            continue;
        }
        if drops_weights(model, model.stmt(call.stmt).node, call.node) {
            let edit = model.module.add_keyword(call.node, "need_weights=False");
            out.push(
                Report::new(call.node, "the attention weights (length² per head) are computed, kept and dropped")
                    .help("pass `need_weights=False`")
                    .fix(Fix::unsafe_("pass `need_weights=False`", edit)),
            );
        }
    }
}

/// `attn(…)[0]`, or `out, _ = attn(…)` where `_` is never read.
fn drops_weights(model: &Model<'_>, stmt: &Stmt, call: &ast::ExprCall) -> bool {
    if let Stmt::Assign(node) = stmt
        && node.value.range() == call.range() {
            if let [Expr::Tuple(tuple)] = node.targets.as_slice() {
                return matches!(tuple.elts.as_slice(), [_, Expr::Name(name)] if name.id.as_str() == "_");
            }
            return false;
        }
    let end = call.range().end().to_usize();
    model.module.text().get(end..).is_some_and(|rest| {
        let rest = rest.trim_start();
        rest.starts_with("[0]") || rest.starts_with("[ 0 ]")
    })
}
