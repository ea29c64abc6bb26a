//! Gradient accumulation: optimizers that step only every N iterations.

use oomph_python_source::ast::visitor::{Visitor, walk_expr};
use oomph_python_source::ast::{Expr, Operator};
use oomph_python_source::{Ranged, dotted_name};

use crate::semantic::value::Kind;
use crate::semantic::{Call, CtxId, CtxKind, Loop, Model};

/// The optimizer place of a step: `optimizer` of `optimizer.step()` and `scaler.step(optimizer)`.
pub(crate) fn stepped_optimizer(call: &Call<'_>) -> Option<String> {
    if !call.is_step() {
        return None;
    }
    match call.recv.kind {
        Kind::Optimizer => call.recv_place(),
        Kind::Scaler => call.node.arguments.find_positional(0).and_then(dotted_name),
        _ => None,
    }
}

/// Gradient accumulation: a step that happens only every N iterations of a training loop.
pub(crate) struct Accumulation<'m, 'a> {
    pub(crate) looped: &'m Loop<'a>,
    pub(crate) optimizer: String,
    /// The test of the branch: `(i + 1) % steps == 0`.
    pub(crate) test: &'a Expr,
    /// What the counter is taken modulo.
    pub(crate) steps: &'a Expr,
}

/// The gradient accumulations of the file: a training loop whose `backward()` runs in every
/// iteration and whose `step()` is under a modulo test.
pub(crate) fn accumulations<'m, 'a>(model: &'m Model<'a>) -> Vec<Accumulation<'m, 'a>> {
    let mut found: Vec<Accumulation<'m, 'a>> = Vec::new();
    for call in &model.calls {
        let Some(optimizer) = stepped_optimizer(call) else {
            continue;
        };
        let Some(looped) = model.training_loop(call.ctx) else {
            continue;
        };
        let branch = model
            .within_function(call.ctx)
            .take_while(|id| *id != looped.ctx)
            .find_map(|id| match model.ctx(id).kind {
                CtxKind::Branch(Some(test)) => modulus(test).map(|steps| (id, test, steps)),
                _ => None,
            });
        let Some((branch, test, steps)) = branch else {
            continue;
        };
        let every_iteration = model.backwards.iter().any(|backward| {
            model.is_inside(backward.ctx, looped.ctx)
                && !model.is_inside(backward.ctx, branch)
                && !under_modulus(model, backward.ctx, looped.ctx)
        });
        let known = found
            .iter()
            .any(|each| each.test.range() == test.range() && each.optimizer == optimizer);
        // A backward in the branch as well: an optimizer that trains in some iterations only, as in GANs.
        let in_branch = model
            .backwards
            .iter()
            .any(|backward| model.is_inside(backward.ctx, branch));
        if every_iteration && !in_branch && !known {
            found.push(Accumulation {
                looped,
                optimizer,
                test,
                steps,
            });
        }
    }
    found
}

/// Whether a context is under a modulo test inside `outer`.
pub(crate) fn under_modulus(model: &Model<'_>, ctx: CtxId, outer: CtxId) -> bool {
    model
        .ancestors(ctx)
        .take_while(|id| *id != outer)
        .any(|id| match model.ctx(id).kind {
            CtxKind::Branch(Some(test)) => modulus(test).is_some(),
            _ => false,
        })
}

/// The right side of the first `%` in an expression.
pub(crate) fn modulus(expr: &Expr) -> Option<&Expr> {
    struct Find<'a>(Option<&'a Expr>);
    impl<'a> Visitor<'a> for Find<'a> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if self.0.is_some() {
                return;
            }
            if let Expr::BinOp(node) = expr
                && node.op == Operator::Mod
                && !node.left.is_string_literal_expr()
            {
                self.0 = Some(&node.right);
                return;
            }
            walk_expr(self, expr);
        }
    }
    let mut find = Find(None);
    find.visit_expr(expr);
    find.0
}
