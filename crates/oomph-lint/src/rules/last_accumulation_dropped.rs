use oomph_python_source::Ranged;
use oomph_python_source::ast::Expr;

use crate::queries::accumulation::{accumulations, stepped_optimizer};
use crate::queries::purpose::has_managed_loop;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// The optimizer does not step on the last, incomplete group of an accumulation.
    ///
    /// ## What it does
    ///
    /// Looks for `if (i + 1) % steps == 0:` as the only test before `step()` in a loop over a
    /// loader, with no `step()` after the loop.
    ///
    /// ## Why it costs memory
    ///
    /// Nothing reports this mistake: when the loader's length is not a multiple of the group, the
    /// last gradients are not used in this epoch. They stay allocated through evaluation and are
    /// mixed into the first step of the next epoch.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion, steps):
    ///     for i, (x, y) in enumerate(loader):
    ///         loss = criterion(model(x), y) / steps
    ///         loss.backward()
    ///         if (i + 1) % steps == 0:
    ///             optimizer.step()
    ///             optimizer.zero_grad()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion, steps):
    ///     for i, (x, y) in enumerate(loader):
    ///         loss = criterion(model(x), y) / steps
    ///         loss.backward()
    ///         if (i + 1) % steps == 0 or i + 1 == len(loader):
    ///             optimizer.step()
    ///             optimizer.zero_grad()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the loader's length is always a multiple of the group, or the loader never ends.
    ///
    /// ## Fix safety
    ///
    /// No fix: the last group needs its own denominator.
    OOM403 "last-accumulation-dropped" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if has_managed_loop(model) {
        return;
    }
    for found in accumulations(model) {
        if !found.looped.data || !matches!(found.test, Expr::Compare(_) | Expr::UnaryOp(_)) {
            continue;
        }
        let text = model.text(found.test.range());
        // A counter that outlives the loop carries the group over on purpose.
        let counts_this_loop = text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| {
            model.assigns.iter().any(|assign| {
                assign.place == word
                    && assign.ctx == found.looped.ctx
                    && assign.bind == crate::semantic::Bind::Other
            })
        });
        let steps_after = model.calls.iter().any(|call| {
            stepped_optimizer(call).as_deref() == Some(found.optimizer.as_str())
                && call.node.start() > found.looped.range.end()
                && model.func_of(call.ctx) == model.func_of(found.looped.ctx)
        });
        // A loop that skips batches may well skip the incomplete group.
        let skips = found.looped.body.iter().any(|stmt| model.text(stmt).contains("continue"));
        if counts_this_loop && !skips && !steps_after && !text.contains("len(") {
            out.push(
                Report::new(
                    found.test,
                    "the optimizer never steps on the gradients of a last, incomplete group",
                )
                .help("also step on the last batch: `or i + 1 == len(loader)`"),
            );
        }
    }
}
