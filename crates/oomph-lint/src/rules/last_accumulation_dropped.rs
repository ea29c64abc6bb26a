use oomph_python_source::Ranged;
use oomph_python_source::ast::{CmpOp, Expr};

use crate::queries::accumulation::{Accumulation, accumulations};
use crate::queries::purpose::has_managed_loop;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, CtxKind, Model};

declare_rule! {
    /// The optimizer does not step on the last, incomplete group of an accumulation.
    ///
    /// ## What it does
    ///
    /// Looks for `if (i + 1) % steps == 0:` as the only test before `step()` in a loop over a
    /// loader, with no `step()` after the loop. Loops that skip batches or end early are left out.
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
    OOM403 "last-accumulation-dropped" { fix: None, fresh: [28, 33] }
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
        // `if i % n_critic != 0: d_optimizer.step()` leaves some batches out, and accumulates nothing.
        let leaves_out = matches!(found.test, Expr::Compare(node) if node.ops.contains(&CmpOp::NotEq));
        // `assert len(loader) % steps == 0`
        let func = model.func_of(found.looped.ctx);
        let steps = model.text(found.steps);
        let divides = model.stmts.iter().any(|info| {
            info.node.is_assert_stmt() && model.func_of(info.ctx) == func && {
                let text = model.text(info.node);
                text.contains('%') && text.contains(steps)
            }
        });
        // A loop that skips batches may well skip the incomplete group, as one that ends early does.
        let skips = found.looped.body.iter().any(|stmt| {
            let text = model.text(stmt);
            text.contains("continue") || text.contains("break")
        });
        if counts_this_loop && !leaves_out && !divides && !skips && !steps_after(model, &found) && !text.contains("len(") {
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

/// Whether the last group is stepped after the batches: behind the loop, in its `else`, in a branch
/// for the last batch, in a function that is called there, or by the function's caller.
fn steps_after(model: &Model<'_>, found: &Accumulation<'_, '_>) -> bool {
    let func = model.func_of(found.looped.ctx);
    let body_end = found
        .looped
        .body
        .last()
        .map_or(found.looped.range.end(), Ranged::end);
    let steps = |call: &Call<'_>| {
        call.is_step()
            || call.is_method("step")
                && call.recv_place().as_deref() == Some(found.optimizer.as_str())
            || call.target.is_some_and(|target| model.func(target).has_step)
    };
    model.calls.iter().any(|call| {
        let here = model.func_of(call.ctx) == func;
        // Behind the loop: steps of another training loop are not this one's.
        let behind = here
            && call.node.start() >= body_end
            && steps(call)
            && model
                .training_loop(call.ctx)
                .is_none_or(|around| around.range.contains_range(found.looped.range));
        // A second branch of the loop that steps, with another test.
        let last_batch = here
            && steps(call)
            && model.is_inside(call.ctx, found.looped.ctx)
            && !found_branch(model, call, found)
            && model.is_conditional_in(call.ctx, found.looped.ctx);
        // The caller steps once more.
        let caller = func.is_some()
            && call.target == func
            && model.calls_in_function(model.func_of(call.ctx)).any(|other| {
                other.is_step() && other.node.start() > call.node.end()
            });
        behind || last_batch || caller
    })
}

/// Whether a call is under the test of the accumulation.
fn found_branch(model: &Model<'_>, call: &Call<'_>, found: &Accumulation<'_, '_>) -> bool {
    model.within_function(call.ctx).any(|id| {
        matches!(model.ctx(id).kind, CtxKind::Branch(Some(test)) if test.range() == found.test.range())
    })
}
