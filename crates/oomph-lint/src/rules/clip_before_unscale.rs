use oomph_python_source::{Ranged, dotted_name};

use crate::fix::Fix;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;
use crate::semantic::value::Kind;

declare_rule! {
    /// Gradients are clipped while they are scaled.
    ///
    /// ## What it does
    ///
    /// Looks for `clip_grad_norm_` and `clip_grad_value_` after `scaler.scale(loss).backward()` in a
    /// function that never calls `scaler.unscale_()`.
    ///
    /// ## Why it costs memory
    ///
    /// The norm of scaled gradients is up to 65,536 times too large: all are clipped to almost
    /// nothing. Mixed precision looks broken, and the job goes back to float32 and twice the
    /// activations.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion, scaler):
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         scaler.scale(criterion(model(x), y)).backward()
    ///         torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    ///         scaler.step(optimizer)
    ///         scaler.update()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion, scaler):
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         scaler.scale(criterion(model(x), y)).backward()
    ///         scaler.unscale_(optimizer)
    ///         torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    ///         scaler.step(optimizer)
    ///         scaler.update()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another function unscales in between.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: training changes.
    OOM814 "clip-before-unscale" { fix: Sometimes, fresh: [8, 9] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let clips = call.qual.as_deref().is_some_and(|qual| {
            qual.starts_with("torch.nn.utils.")
                && (qual.contains("clip_grad_norm") || qual.contains("clip_grad_value"))
        });
        if !clips {
            continue;
        }
        let func = model.func_of(call.ctx);
        let scaled = model.backwards.iter().find(|each| {
            each.scaled
                && model.func_of(each.ctx) == func
                && model.calls[each.call].node.start() < call.node.start()
        });
        let Some(scaled) = scaled else { continue };
        // Another branch: the clip goes with an unscaled `backward()`.
        if model.is_conditional_in(scaled.ctx, common(model, scaled.ctx, call.ctx))
            && model.backwards_in_function(func).any(|each| !each.scaled)
        {
            continue;
        }
        if model
            .calls_in_function(func)
            .any(|other| other.is_method("unscale_"))
        {
            continue;
        }
        let step = model.calls_in_function(func).find(|other| {
            other.is_method("step") && other.recv.kind == Kind::Scaler
        });
        let fix = step.and_then(|step| {
            let owner = step.recv_place()?;
            let optimizer = step.node.arguments.find_positional(0).and_then(dotted_name)?;
            let line = format!("{owner}.unscale_({optimizer})");
            let edit = model.module.insert_before(model.stmt(call.stmt).node, &[line])?;
            Some(Fix::unsafe_("unscale first", edit))
        });
        out.push(
            Report::new(call.node, "the gradients are still scaled here: clipping makes them vanish")
                .help("call `scaler.unscale_(optimizer)` first")
                .fix(fix),
        );
    }
}

fn common(
    model: &Model<'_>,
    a: crate::semantic::CtxId,
    b: crate::semantic::CtxId,
) -> crate::semantic::CtxId {
    model
        .ancestors(a)
        .find(|id| model.is_inside(b, *id))
        .unwrap_or(a)
}
