use crate::rule::{Report, declare_rule};
use crate::semantic::Model;
use crate::semantic::value::Kind;

declare_rule! {
    /// A scaler is stepped and never updated.
    ///
    /// ## What it does
    ///
    /// Looks for `scaler.step(optimizer)` in a file that never calls `scaler.update()`.
    ///
    /// ## Why it costs memory
    ///
    /// Without `update()` the scale never adapts: after one overflow every step is skipped. Mixed
    /// precision looks broken, and the job goes back to float32 and twice the activations.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     scaler = torch.amp.GradScaler("cuda")
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         scaler.scale(criterion(model(x), y)).backward()
    ///         scaler.step(optimizer)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     scaler = torch.amp.GradScaler("cuda")
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         scaler.scale(criterion(model(x), y)).backward()
    ///         scaler.step(optimizer)
    ///         scaler.update()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another file updates the scaler.
    ///
    /// ## Fix safety
    ///
    /// No fix: with several optimizers, only you know where `update()` belongs.
    OOM405 "scaler-not-updated" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let updates = model
        .calls
        .iter()
        .any(|call| call.is_method("update") && call.recv.kind == Kind::Scaler);
    if updates {
        return;
    }
    for call in &model.calls {
        if call.is_method("step") && call.recv.kind == Kind::Scaler && !call.args.is_empty() {
            out.push(
                Report::new(call.node, "the scaler is stepped and never updated")
                    .help("call `scaler.update()` once per step, after the last `scaler.step()`"),
            );
        }
    }
}
