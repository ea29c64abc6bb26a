use oomph_python_source::ast;

use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Model, torch};

declare_rule! {
    /// A model is halved and trained with mixed precision as well.
    ///
    /// ## What it does
    ///
    /// Looks for `model.half()` in a function that also uses `GradScaler`, or calls that model under
    /// `autocast` and runs `backward()`.
    ///
    /// ## Why it costs memory
    ///
    /// Mixed precision needs float32 parameters: it casts what it uses. A halved model has float16
    /// parameters and gradients, which `GradScaler` refuses to unscale and in which small updates
    /// are lost. The copies that autocast makes are then made for nothing.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     model = model.cuda().half()
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
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     model = model.cuda()
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
    /// When the halved model is a different one that is not trained.
    ///
    /// ## Fix safety
    ///
    /// No fix: training changes.
    OOM812 "half-with-autocast" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // Optimizers with master weights of their own train halved models.
    if ["apex", "Fused", "master_"].iter().any(|word| model.module.text().contains(word)) {
        return;
    }
    for call in &model.calls {
        if !call.is_method("half") || !call.recv.is_model() || call.recv.weak && call.recv_place().is_none() && !chained(call) {
            continue;
        }
        let func = model.func_of(call.ctx);
        let scales = model
            .backwards
            .iter()
            .any(|each| each.scaled && model.func_of(each.ctx) == func);
        let casts = model.calls_in_function(func).any(|other| {
            other.qual.as_deref().is_some_and(torch::is_autocast)
        }) && model
            .backwards
            .iter()
            .any(|each| model.func_of(each.ctx) == func);
        let place = call.recv_place().unwrap_or_default();
        // A teacher or a copy for evaluation is another model.
        let other_model = ["teacher", "ema", "eval", "test", "frozen", "vae", "text_encoder"]
            .iter()
            .any(|word| place.contains(word));
        let conditional = model
            .within_function(call.ctx)
            .any(|id| matches!(model.ctx(id).kind, crate::semantic::CtxKind::Branch(_)));
        let has_scaler = model
            .calls_in_function(func)
            .any(|other| other.result.kind == Kind::Scaler);
        if (scales || casts || has_scaler && func.is_some_and(|id| model.func(id).has_backward))
            && !other_model
            && !conditional
        {
            out.push(
                Report::new(call.node, "mixed precision needs float32 parameters: this makes them float16")
                    .help("remove `.half()`, or train in bfloat16 without autocast and scaler"),
            );
        }
    }
}

/// `model.cuda().half()`
fn chained(call: &crate::semantic::Call<'_>) -> bool {
    call.recv_expr().is_some_and(ast::Expr::is_call_expr)
}
