use oomph_python_source::Edit;

use crate::fix::Fix;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// Activation checkpointing asks for the reentrant form.
    ///
    /// ## What it does
    ///
    /// Looks for `use_reentrant=True`.
    ///
    /// ## Why it costs memory
    ///
    /// The reentrant form saves nothing, and trains nothing, when no input requires a gradient, and
    /// runs the whole block again even if only part of it is needed.
    ///
    /// ## Example
    ///
    /// ```python
    /// from torch.utils.checkpoint import checkpoint
    ///
    /// def run(block, x):
    ///     return checkpoint(block, x, use_reentrant=True)
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
    /// Where it is chosen for a reason, such as DDP with a static graph: the rule is off by default.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: the two forms differ for functions with side effects and nested checkpoints.
    OOM513 "checkpoint-reentrant" { fix: Sometimes, default: false }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let Some(value) = call.keyword("use_reentrant") else {
            continue;
        };
        if value.as_boolean_literal_expr().is_some_and(|flag| flag.value) {
            out.push(
                Report::new(value, "the reentrant form saves nothing when no input requires a gradient")
                    .help("pass `use_reentrant=False`")
                    .fix(Fix::unsafe_("pass `use_reentrant=False`", Edit::replace(value, "False"))),
            );
        }
    }
}
