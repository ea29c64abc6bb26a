use oomph_python_source::ast::Stmt;
use oomph_python_source::{Ranged, dotted_name};

use crate::queries::devices::on_cpu_only;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, Model};

declare_rule! {
    /// Every training step makes a new optimizer.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.optim.…(model.parameters())` in the loop whose iterations are training steps,
    /// of optimizers that keep state.
    ///
    /// ## Why it costs memory
    ///
    /// The state (two copies of the parameters for Adam) is thrown away and allocated again in
    /// every step, while the old one may still be referenced. It also never gets past its first
    /// step, so momentum does nothing.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, criterion):
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer = torch.optim.Adam(model.parameters())
    ///         optimizer.zero_grad()
    ///         criterion(model(x), y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, criterion):
    ///     optimizer = torch.optim.Adam(model.parameters())
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         criterion(model(x), y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When each iteration fits something new with a single step.
    ///
    /// ## Fix safety
    ///
    /// No fix: training changes.
    OOM415 "optimizer-made-in-loop" { fix: None, fresh: [0, 0] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let is_optimizer = call.result.kind == crate::semantic::value::Kind::Optimizer
            && call
                .qual
                .as_deref()
                .is_some_and(|qual| qual.starts_with("torch.optim."));
        if !is_optimizer {
            continue;
        }
        let Some(looped) = model.loops_around(call.ctx).next() else {
            continue;
        };
        // The step itself must be in this very loop, not in a function that may loop again.
        let steps_here = model.backwards.iter().any(|each| {
            model
                .loops_around(each.ctx)
                .next()
                .is_some_and(|inner| inner.ctx == looped.ctx)
        });
        // Over an attacked input, only to clear its gradient: plain SGD that never steps has no state.
        let is_stepped = call_target(model, call).is_none_or(|place| {
            model.calls_in_function(model.func_of(call.ctx)).any(|other| {
                other.is_method("step") && other.recv_place().as_deref() == Some(place.as_str())
                    || other
                        .node
                        .arguments
                        .args
                        .iter()
                        .any(|arg| dotted_name(arg).as_deref() == Some(place.as_str()))
            })
        });
        let inner_training = model.loops.iter().any(|each| {
            each.ctx != looped.ctx
                && each.contains_backward
                && model.is_inside(each.ctx, looped.ctx)
        });
        if looped.trains
            && steps_here
            && is_stepped
            && has_state(model, call)
            && !inner_training
            && !in_unit_test(model, call.ctx)
            && !on_cpu_only(model)
            && !model.is_conditional_in(call.ctx, looped.ctx)
        {
            out.push(
                Report::new(call.node, "every step makes a new optimizer with new state")
                    .help("make the optimizer once, before the loop"),
            );
        }
    }
}

/// Whether an optimizer of a model's parameters keeps state: any but SGD does, and SGD with momentum.
fn has_state(model: &Model<'_>, call: &Call<'_>) -> bool {
    let of_model = call
        .arg("params", 0)
        .is_some_and(|params| model.text(params).contains("parameters"));
    let is_sgd = call.qual.as_deref().is_some_and(|qual| qual.rsplit('.').next() == Some("SGD"));
    of_model && (!is_sgd || call.arg("momentum", 2).is_some())
}

/// The name that a call's result is bound to.
fn call_target(model: &Model<'_>, call: &Call<'_>) -> Option<String> {
    match model.stmt(call.stmt).node {
        Stmt::Assign(assign) if assign.value.range() == call.node.range() => {
            assign.targets.first().and_then(dotted_name)
        }
        _ => None,
    }
}
