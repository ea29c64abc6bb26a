use oomph_python_source::ast::Expr;
use oomph_python_source::{Ranged, names_in};

use crate::queries::devices::{in_cpu_branch, leaves_batches_on_cpu, on_cpu_only};
use crate::queries::loop_carried::base;
use crate::queries::model_calls::is_model_call;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind};
use crate::semantic::{Call, Grad, Model};

declare_rule! {
    /// `volatile=True` no longer turns gradients off.
    ///
    /// ## What it does
    ///
    /// Looks for `Variable(x, volatile=True)` that a model runs on. Targets have no graph anyway.
    ///
    /// ## Why it costs memory
    ///
    /// Until PyTorch 0.3, `volatile` kept inference from building a graph. It has had no effect
    /// since: code that relies on it keeps every activation.
    ///
    /// ## Example
    ///
    /// ```python
    /// from torch.autograd import Variable
    ///
    /// def predict(model, x):
    ///     return model(Variable(x.cuda(), volatile=True))
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def predict(model, x):
    ///     with torch.no_grad():
    ///         return model(x)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When a `with torch.no_grad():` further out, in another function, makes up for it.
    ///
    /// ## Fix safety
    ///
    /// No fix: removing the argument would hide that gradients are on.
    OOM204 "volatile-has-no-effect" { fix: None, fresh: [65, 85] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let Some(value) = call.keyword("volatile") else {
            continue;
        };
        let is_variable = call
            .qual
            .as_deref()
            .is_some_and(|qual| qual.ends_with("Variable"));
        let is_true = value.as_boolean_literal_expr().is_some_and(|flag| flag.value);
        // In a training step the graph is wanted, and what a constructor makes is no input.
        let func = model.func_of(call.ctx).map(|id| model.func(id));
        let is_no_input = model.loops_around(call.ctx).any(|each| each.contains_backward)
            || func.is_some_and(|func| func.has_backward || func.node.name.as_str() == "__init__");
        let on_cpu = || {
            let made_here = call.args.first().is_some_and(|arg| arg.device == Device::Cpu);
            let moved = func.is_none_or(|func| {
                let text = model.text(func.node);
                text.contains(".cuda(") || text.contains(".to(")
            });
            let says_cpu = func.is_some_and(|func| func.node.name.as_str().split('_').any(|word| word == "cpu"));
            (made_here && !moved) || on_cpu_only(model)
                || model.loops_around(call.ctx).any(|looped| leaves_batches_on_cpu(model, looped))
                || says_cpu && !moved || in_cpu_branch(model, call.node)
        };
        if is_variable
            && is_true
            && call.grad == Grad::On
            && !is_no_input
            && goes_into_model(model, call)
            && !on_cpu()
        {
            out.push(
                Report::new(
                    call.node,
                    "`volatile=True` has had no effect since PyTorch 0.4: a graph is built",
                )
                .help("use `with torch.no_grad():` around the forward pass"),
            );
        }
    }
}

/// Whether a model runs on the variable: as it is, or by a name that is bound to it or made from it.
/// Targets and constants have no graph in the first place.
fn goes_into_model(model: &Model<'_>, variable: &Call<'_>) -> bool {
    let func = model.func_of(variable.ctx);
    let mut names: Vec<String> = Vec::new();
    for assign in &model.assigns {
        if model.func_of(assign.ctx) != func || assign.target.start() < model.stmt(variable.stmt).node.start()
        {
            continue;
        }
        let Some(expr) = assign.expr else { continue };
        let from = expr.range().contains_range(variable.node.range())
            || names_in(expr).iter().any(|name| names.contains(name));
        if from {
            names.push(base(&assign.place).to_owned());
        }
    }
    model.calls_in_function(func).any(|call| {
        let runs = is_model_call(call)
            || call.qual.is_none()
                && call.target.is_none()
                && !matches!(call.callee.kind, Kind::Criterion { .. })
                && matches!(&*call.node.func, Expr::Attribute(_))
                && matches!(call.recv.kind, Kind::Instance | Kind::Model(_));
        runs
            && call.node.arguments.args.iter().any(|arg| {
                arg.range().contains_range(variable.node.range())
                    || names_in(arg).iter().any(|name| {
                        let root = name.split('.').next().unwrap_or(name);
                        names.iter().any(|each| each == root || each == name)
                    })
            })
    })
}
