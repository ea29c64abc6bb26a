use oomph_python_source::ast::Expr;
use oomph_python_source::{Ranged, last_name};

use crate::queries::accumulation::stepped_optimizer;
use crate::queries::devices::on_cpu_only;
use crate::queries::purpose::{has_managed_loop, in_unit_test};
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Bind, Call, Model};

declare_rule! {
    /// The optimizer steps with gradients that are never cleared.
    ///
    /// ## What it does
    ///
    /// Looks for training loops that run `backward()` and `step()` in a file that never clears a
    /// gradient, and that works on a GPU; and for optimizers that are never cleared where the file clears others, of other models, only.
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
    ///         criterion(model(x.cuda()), y.cuda()).backward()
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
    ///         criterion(model(x.cuda()), y.cuda()).backward()
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
    OOM413 "gradients-never-cleared" { fix: None, fresh: [4, 6] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if model.backwards.is_empty() || has_managed_loop(model) || on_cpu_only(model) {
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
        let is_left = || !clears_gradients(model) || is_left_out(model, &optimizer);
        if backward_here && !in_unit_test(model, call.ctx) && is_left() {
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

/// Whether all that the file clears is other optimizers', by name, and each of them has other models' parameters than this one.
fn is_left_out(model: &Model<'_>, optimizer: &str) -> bool {
    let assigned = model.assigns.iter().any(|assign| assign.place.contains("grad"));
    let mut clearing = model.calls.iter().filter(|call| clears(call)).peekable();
    let own = models_of(model, optimizer);
    clearing.peek().is_some()
        && !assigned
        && !own.is_empty()
        && clearing.all(|call| {
            let place = call.recv_place().filter(|_| call.is_method("zero_grad") && call.recv.kind == Kind::Optimizer);
            place.is_some_and(|place| {
                let models = models_of(model, &place);
                place != optimizer && !models.is_empty() && models.iter().all(|each| !own.contains(each))
            })
        })
}

/// The models whose parameters one optimizer has, which a single statement makes: `Adam(net.parameters())`.
fn models_of(model: &Model<'_>, optimizer: &str) -> Vec<String> {
    let mut made = model.assigns.iter().filter(|assign| assign.place == optimizer);
    let (Some(only), None) = (made.next(), made.next()) else {
        return Vec::new();
    };
    let Some(expr) = only.expr.filter(|_| only.value.kind == Kind::Optimizer) else {
        return Vec::new();
    };
    let of_expr = model.calls.iter().filter(|call| call.is_method("parameters") && expr.range().contains_range(call.node.range()));
    of_expr.filter_map(Call::recv_place).collect()
}

/// Whether anything in the file clears gradients: a call that says so, an assignment to `.grad`, or a
/// method of a gradient that overwrites it.
fn clears_gradients(model: &Model<'_>) -> bool {
    let assigned = model.assigns.iter().any(|assign| {
        assign.bind == Bind::Set
            && assign
                .place
                .split('.')
                .any(|part| matches!(part, "grad" | "_grad"))
    });
    assigned || model.calls.iter().any(clears)
}

fn clears(call: &Call<'_>) -> bool {
    let Some(name) = last_name(&call.node.func) else {
        return false;
    };
    match name {
        "zero_" | "fill_" | "mul_" | "copy_" => call.recv_expr().is_some_and(of_gradient),
        "setattr" => matches!(
            call.arg("name", 1),
            Some(Expr::StringLiteral(attr)) if attr.value.to_str() == "grad"
        ),
        // A function of another file that runs the whole step.
        "optimize" => true,
        _ => {
            let name = name.to_ascii_lowercase();
            name.contains("grad")
                && ["zero", "clear", "reset", "none"]
                    .iter()
                    .any(|word| name.contains(word))
        }
    }
}

/// Whether an expression is a gradient: `p.grad`, `p.grad.data`, `p.grad.detach()`.
fn of_gradient(expr: &Expr) -> bool {
    match expr {
        Expr::Attribute(attribute) => {
            attribute.attr.as_str() == "grad" || of_gradient(&attribute.value)
        }
        Expr::Call(call) => of_gradient(&call.func),
        _ => false,
    }
}
