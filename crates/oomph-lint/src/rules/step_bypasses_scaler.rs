use crate::queries::accumulation::stepped_optimizer;
use crate::queries::purpose::has_managed_loop;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;
use crate::semantic::value::Kind;

declare_rule! {
    /// The loss is scaled, but the optimizer steps without the scaler.
    ///
    /// ## What it does
    ///
    /// Looks for `scaler.scale(loss).backward()` followed by `optimizer.step()` in a function that
    /// never calls `scaler.step()`.
    ///
    /// ## Why it costs memory
    ///
    /// The optimizer sees gradients that are 65,536 times too large, and those that overflowed.
    /// Mixed precision looks broken, and the job goes back to float32 and twice the activations.
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
    ///         with torch.autocast("cuda", dtype=torch.float16):
    ///             loss = criterion(model(x), y)
    ///         scaler.scale(loss).backward()
    ///         optimizer.step()
    ///         scaler.update()
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
    ///         with torch.autocast("cuda", dtype=torch.float16):
    ///             loss = criterion(model(x), y)
    ///         scaler.scale(loss).backward()
    ///         scaler.step(optimizer)
    ///         scaler.update()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the optimizer is a wrapper that unscales.
    ///
    /// ## Fix safety
    ///
    /// No fix: training changes.
    OOM404 "step-bypasses-scaler" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if has_managed_loop(model) {
        return;
    }
    for backward in &model.backwards {
        let scaler = &model.calls[backward.call];
        let func = model.func_of(scaler.ctx);
        if !backward.scaled
            || model
                .calls_in_function(func)
                .any(|call| {
                    call.is_method("step")
                        && (call.recv.kind == Kind::Scaler
                            || call.args.first().is_some_and(|arg| arg.kind == Kind::Optimizer))
                })
        {
            continue;
        }
        for call in model.calls_in_function(func) {
            if call.recv.kind == Kind::Optimizer
                && stepped_optimizer(call).is_some()
                && call.node.range_start > scaler.node.range_start
                && !model
                    .calls_in_function(func)
                    .any(|other| other.is_method("unscale_"))
            {
                out.push(
                    Report::new(
                        call.node,
                        "the gradients are scaled, and this step does not unscale them",
                    )
                    .help("call `scaler.step(optimizer)` and `scaler.update()`"),
                );
            }
        }
    }
}
