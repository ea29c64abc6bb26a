use oomph_python_source::ast::Expr;

use super::fake_not_detached::{Role, generator_behind, judged_in_loss, only_step, place_of, trains_only};
use crate::queries::devices::on_cpu_only;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Grad, Model};

declare_rule! {
    /// The generator's step makes gradients of the discriminator's weights.
    ///
    /// ## What it does
    ///
    /// Looks for a `backward()` after which only the generator's optimizer steps, and whose loss is what the
    /// discriminator says of the generator's output. Files that turn gradients of parameters off anywhere are left out.
    ///
    /// ## Why it costs memory
    ///
    /// `backward()` has to go through the discriminator to get to the generator, but it also makes and stores a gradient
    /// for each of the discriminator's weights: about a third of its backward pass, and a copy of its weights. Nothing
    /// steps on them; the discriminator's next `zero_grad()` throws them away.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(G, D, loader, optimizer_G, optimizer_D, criterion, ones, zeros):
    ///     for real in loader:
    ///         real = real.cuda()
    ///         fake = G(torch.randn(64, 100).cuda())
    ///         optimizer_D.zero_grad()
    ///         loss_D = criterion(D(real), ones) + criterion(D(fake.detach()), zeros)
    ///         loss_D.backward()
    ///         optimizer_D.step()
    ///         optimizer_G.zero_grad()
    ///         loss_G = criterion(D(fake), ones)
    ///         loss_G.backward()
    ///         optimizer_G.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(G, D, loader, optimizer_G, optimizer_D, criterion, ones, zeros):
    ///     for real in loader:
    ///         real = real.cuda()
    ///         fake = G(torch.randn(64, 100).cuda())
    ///         optimizer_D.zero_grad()
    ///         loss_D = criterion(D(real), ones) + criterion(D(fake.detach()), zeros)
    ///         loss_D.backward()
    ///         optimizer_D.step()
    ///         D.requires_grad_(False)
    ///         optimizer_G.zero_grad()
    ///         loss_G = criterion(D(fake), ones)
    ///         loss_G.backward()
    ///         optimizer_G.step()
    ///         D.requires_grad_(True)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the discriminator's optimizer adds these gradients up on purpose.
    ///
    /// ## Fix safety
    ///
    /// No fix: the gradients have to be turned on again before the discriminator's step.
    OOM113 "discriminator-not-frozen" { fix: None, fresh: [5, 5] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // A file that freezes something may freeze any model that it hands on.
    const FREEZES: &[&str] = &["requires_grad", "freeze", "toggle", "set_grad", "inputs="];
    if model.backwards.is_empty()
        || FREEZES.iter().any(|word| model.module.text().contains(word))
        || on_cpu_only(model)
    {
        return;
    }
    for backward in &model.backwards {
        let call = &model.calls[backward.call];
        let Some(optimizer) = only_step(model, backward) else {
            continue;
        };
        let unused = judged_in_loss(model, backward).into_iter().find_map(|judged| {
            let discriminator = place_of(judged, Role::Discriminator).filter(|_| judged.grad == Grad::On)?;
            let args = &judged.node.arguments.args;
            let generator = args.iter().find_map(|arg: &Expr| generator_behind(model, arg, judged))?;
            trains_only(model, &optimizer, &generator, &discriminator).then_some(discriminator)
        });
        if let Some(discriminator) = unused
            && !in_unit_test(model, call.ctx)
        {
            out.push(
                Report::new(
                    call.node,
                    format!("this makes gradients for all weights of `{discriminator}` as well, and `{optimizer}` steps on none of them"),
                )
                .help("turn them off for this pass: `requires_grad_(False)` before the discriminator judges, and `True` after it"),
            );
        }
    }
}
