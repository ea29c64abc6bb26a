use oomph_python_source::ast::{Expr, Operator};
use oomph_python_source::{dotted_name, last_name};

use crate::fix::{Applicability, Fix};
use crate::queries::devices::{leaves_batches_on_cpu, on_cpu_only};
use crate::queries::keeps::{carries, in_managed_step};
use crate::queries::loop_carried::{feeds_backward, starts_in};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Device;
use crate::semantic::{Assign, Bind, Grad, Model};

declare_rule! {
    /// A loss is summed over the steps of a training loop with its graph.
    ///
    /// ## What it does
    ///
    /// Looks for `total += loss`, `total = total + loss` and `average = 0.9 * average + 0.1 * loss` in
    /// a training loop where `loss` holds an autograd graph, the sum lives longer than one iteration,
    /// and nothing calls `backward()` on it. In steps that a library's trainer runs (`training_step` of
    /// Lightning, `compute_loss` of transformers) it looks for sums that are attributes.
    ///
    /// ## Why it costs memory
    ///
    /// The sum refers to the graph of every loss in it. If `backward()` has not run on the loss, all
    /// activations of that step stay alive; if it has, the nodes of the graph still pile up. Memory
    /// grows with every step until the job dies, often hours in.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     total = 0.0
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y)
    ///         loss.backward()
    ///         optimizer.step()
    ///         total += loss
    ///     return total
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     total = 0.0
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y)
    ///         loss.backward()
    ///         optimizer.step()
    ///         total += loss.detach()
    ///     return total
    /// ```
    ///
    /// `loss.item()` also works, but it waits for the GPU in every step.
    ///
    /// ## When it is wrong
    ///
    /// When another function calls `backward()` on the sum.
    ///
    /// ## Fix safety
    ///
    /// Safe: the sum has the same value and the same type, without the graph.
    OOM101 "loss-summed-with-graph" { fix: Sometimes, fresh: [7, 11] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for assign in &model.assigns {
        if assign.grad != Grad::On || !assign.value.has_graph() {
            continue;
        }
        let operand = match (assign.bind, assign.expr) {
            (Bind::Add, Some(expr)) => expr,
            (Bind::Set, Some(Expr::BinOp(node))) if node.op == Operator::Add => {
                // `total + loss`, and `0.9 * average + 0.1 * loss`.
                let own = |side: &Expr| {
                    model.text(side) == model.text(assign.target)
                        || dotted_name(assign.target).is_some_and(|place| carries(side, &place))
                };
                if own(&node.left) {
                    &node.right
                } else if own(&node.right) {
                    &node.left
                } else {
                    continue;
                }
            }
            _ => continue,
        };
        if !assign.value.is_tensor() || assign.value.device == Device::Cpu || on_cpu_only(model) {
            continue;
        }
        let looped = model.training_loop(assign.ctx);
        // A step whose loop is elsewhere: what it adds to an attribute outlives it.
        if looped.is_none()
            && !is_step_of_other_loop(model, assign)
            && !(assign.place.starts_with("self.") && in_managed_step(model, assign.ctx))
        {
            continue;
        }
        // What a `backward()` of the project's own returns is not known.
        let of_backward = matches!(operand, Expr::Call(call) if last_name(&call.func) == Some("backward"));
        let on_cpu = looped.is_some_and(|looped| leaves_batches_on_cpu(model, looped));
        if of_backward || on_cpu || in_unit_test(model, assign.ctx) {
            continue;
        }
        let func = model.func_of(assign.ctx);
        let place = crate::queries::loop_carried::base(&assign.place);
        if looped.is_some_and(|looped| starts_in(model, looped, place))
            // Parts of one step, in a loop inside that over the batches.
            || model
                .loops_around(assign.ctx)
                .any(|each| each.data && starts_in(model, each, place))
            || feeds_backward(model, func, place)
            || !lives_outside(model, assign.ctx, &assign.place)
        {
            continue;
        }
        let fix = Fix::append(operand, ".detach()", Applicability::Safe, "detach the loss");
        out.push(
            Report::new(
                operand,
                format!(
                    "`{}` keeps the graph of every `{}` that is added to it",
                    model.text(assign.target),
                    model.text(operand)
                ),
            )
            .help("add `loss.detach()`, or `loss.item()` if a number is what you need")
            .fix(fix),
        );
    }
}

/// The sum is bound somewhere before the loop: a local name, or an attribute.
fn lives_outside(model: &Model<'_>, ctx: crate::semantic::CtxId, place: &str) -> bool {
    let base = crate::queries::loop_carried::base(place);
    let own = usize::from(base == place);
    place.contains('.') || model.assigns_to(model.func_of(ctx), base).count() > own
}

/// Whether an assignment to an attribute is in a method that is one training step: it runs
/// `backward()` in no loop of its own, and does not start the sum.
fn is_step_of_other_loop(model: &Model<'_>, assign: &Assign<'_>) -> bool {
    let Some(func) = model.func_of(assign.ctx) else {
        return false;
    };
    assign.place.starts_with("self.")
        && !assign.place.ends_with("[]")
        && model.loops_around(assign.ctx).next().is_none()
        && model
            .backwards_in_function(Some(func))
            .any(|backward| model.loops_around(backward.ctx).next().is_none())
        && model
            .assigns_to(Some(func), &assign.place)
            .all(|each| each.bind == Bind::Add || each.stmt == assign.stmt)
}
