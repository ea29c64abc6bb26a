use crate::queries::accumulation::stepped_optimizer;
use crate::queries::purpose::{has_managed_loop, in_unit_test};
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// The optimizer steps with gradients that are never cleared.
    ///
    /// ## What it does
    ///
    /// Looks for training loops that run `backward()` and `step()` in a file that never clears a
    /// gradient.
    ///
    /// ## Why it costs memory
    ///
    /// The gradients of all steps add up, and stay allocated through every forward pass: one copy
    /// of the parameters at the peak that `zero_grad()` would have freed.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         criterion(model(x), y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x), y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the optimizer, or a trainer in another file, clears them.
    ///
    /// ## Fix safety
    ///
    /// No fix: training changes.
    OOM413 "gradients-never-cleared" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let clears = ["zero_grad", "grad = None", "grad=None", "grad.zero_", "grad.data.zero_", "clear_grad", "optimize("]
        .iter()
        .any(|text| model.module.text().contains(text));
    if clears || has_managed_loop(model) {
        return;
    }
    for call in &model.calls {
        let Some(optimizer) = stepped_optimizer(call) else {
            continue;
        };
        let Some(looped) = model.training_loop(call.ctx) else {
            continue;
        };
        let backward_here = model.backwards.iter().any(|each| {
            model.is_inside(each.ctx, looped.ctx)
                && model.calls[each.call].is_method("backward")
        });
        if backward_here && !in_unit_test(model, call.ctx) {
            out.push(
                Report::new(
                    call.node,
                    format!("`{optimizer}` steps with gradients that nothing ever clears"),
                )
                .help("call `optimizer.zero_grad()` once per step"),
            );
        }
    }
}
