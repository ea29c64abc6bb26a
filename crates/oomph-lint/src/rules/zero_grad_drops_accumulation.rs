use oomph_python_source::Ranged;

use crate::queries::accumulation::{Accumulation, accumulations, stepped_optimizer, under_modulus};
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, Model};

declare_rule! {
    /// Accumulated gradients are thrown away in every iteration.
    ///
    /// ## What it does
    ///
    /// Looks for loops that step the optimizer only every N iterations but call its or the model's
    /// `zero_grad()` in each of them.
    ///
    /// ## Why it costs memory
    ///
    /// Accumulation fits a large batch into little memory. With `zero_grad()` outside the
    /// test, all micro-batches but the last are thrown away: the job pays for the large batch and
    /// trains with the small one.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for i, (x, y) in enumerate(loader):
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y) / 4
    ///         loss.backward()
    ///         if (i + 1) % 4 == 0 or i + 1 == len(loader):
    ///             optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for i, (x, y) in enumerate(loader):
    ///         loss = criterion(model(x), y) / 4
    ///         loss.backward()
    ///         if (i + 1) % 4 == 0 or i + 1 == len(loader):
    ///             optimizer.step()
    ///             optimizer.zero_grad()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// No case is known.
    ///
    /// ## Fix safety
    ///
    /// No fix: training changes, and a learning rate may have been tuned to the mistake.
    OOM401 "zero-grad-drops-accumulation" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for found in accumulations(model) {
        for call in &model.calls {
            if !call.is_zero_grad()
                || !model.is_inside(call.ctx, found.looped.ctx)
                || under_modulus(model, call.ctx, found.looped.ctx)
                || model.is_conditional_in(call.ctx, found.looped.ctx)
                || !(call.recv.is_model()
                    || call.recv_place().as_deref() == Some(found.optimizer.as_str()))
                || has_own_step(model, call, &found)
            {
                continue;
            }
            out.push(
                Report::new(
                    call.node,
                    format!(
                        "gradients are cleared in every iteration, but `{}` steps only when `{}`",
                        found.optimizer,
                        model.text(found.test.range())
                    ),
                )
                .help("call `zero_grad()` right after `step()`, under the same test"),
            );
        }
    }
}

/// Whether the model whose gradients are cleared is not what the optimizer steps: another `backward()`
/// of the loop trains it.
fn has_own_step(model: &Model<'_>, zero: &Call<'_>, found: &Accumulation<'_, '_>) -> bool {
    zero.recv.is_model()
        && model.calls.iter().any(|call| {
            model.is_inside(call.ctx, found.looped.ctx)
                && stepped_optimizer(call).is_some_and(|optimizer| optimizer != found.optimizer)
        })
}
