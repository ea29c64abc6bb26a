use oomph_python_source::Edit;

use crate::fix::{Applicability, Fix};
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// `async=True` is a syntax error since Python 3.7.
    ///
    /// ## What it does
    ///
    /// Looks for arguments called `async`, as in `batch.cuda(async=True)`.
    ///
    /// ## Why it costs memory
    ///
    /// It does not: no supported Python reads the file. oomph reads it all the same, to find what else
    /// is in it. Copies overlap with computation if they are `non_blocking` and come from pinned memory.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def move(batch):
    ///     return batch.cuda(async=True)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def move(batch):
    ///     return batch.cuda(non_blocking=True)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// Never, on Python 3.7 and later.
    ///
    /// ## Fix safety
    ///
    /// Safe: `non_blocking` is the name of this argument since PyTorch 0.4. Offered for `cuda` and `to`.
    OOM605 "async-argument" { fix: Sometimes, fresh: [88, 88] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        for keyword in &call.node.arguments.keywords {
            let Some(name) = &keyword.arg else { continue };
            // The parser saw another name of the same length.
            if model.text(name.range) != "async" {
                continue;
            }
            let moves = matches!(call.method, Some("cuda" | "to"));
            let fix = moves.then(|| {
                let edit = Edit::replace(name, "non_blocking");
                Fix::new(Applicability::Safe, "name it `non_blocking`", vec![edit])
            });
            out.push(
                Report::new(name, "`async` is a keyword since Python 3.7: this file does not start")
                    .help("the argument is called `non_blocking`")
                    .fix(fix),
            );
        }
    }
}
