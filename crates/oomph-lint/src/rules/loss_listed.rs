use super::util::{append, feeds_backward, is_cleared_in, starts_in};
use crate::fix::Applicability;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Grad, Model, place_of};

declare_rule! {
    /// Losses are collected in a list with their graphs.
    ///
    /// ## What it does
    ///
    /// Looks for `losses.append(loss)` in a training loop where `loss` holds an autograd graph, the
    /// list lives longer than one iteration, and nothing in the list reaches a `backward()`.
    ///
    /// ## Why it costs memory
    ///
    /// Every element keeps its graph alive: all activations of its step if `backward()` has not run
    /// on it, the nodes of the graph if it has. Memory grows with every step.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     losses = []
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y)
    ///         loss.backward()
    ///         optimizer.step()
    ///         losses.append(loss)
    ///     return losses
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     losses = []
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y)
    ///         loss.backward()
    ///         optimizer.step()
    ///         losses.append(loss.detach())
    ///     return losses
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another function calls `backward()` on the elements.
    ///
    /// ## Fix safety
    ///
    /// Safe: the list holds tensors of the same values, without their graphs.
    OOM102 "loss-collected-with-graph" { fix: Sometimes, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for (report, is_output) in collected(model) {
        if !is_output {
            out.push(report);
        }
    }
}

/// Values with a graph that training loops collect, and whether they are outputs of a model.
pub(super) fn collected(model: &Model<'_>) -> Vec<(Report, bool)> {
    let mut found = Vec::new();
    for call in &model.calls {
        if !matches!(call.method, Some("append" | "add" | "appendleft")) || call.grad != Grad::On {
            continue;
        }
        let (Some(value), Some(arg)) = (
            call.args.first(),
            call.node.arguments.find_positional(0),
        ) else {
            continue;
        };
        if !value.has_graph() || !value.is_tensor() {
            continue;
        }
        let Some(list) = call.recv_expr().and_then(place_of) else {
            continue;
        };
        // Attributes are read by other functions, as in policy-gradient code.
        if list.contains('.') {
            continue;
        }
        let Some(looped) = model.training_loop(call.ctx) else {
            continue;
        };
        let func = model.func_of(call.ctx);
        // `add` of anything but a set is a meter's: what it keeps, only its class tells.
        let is_set = || {
            model
                .assigns_to(func, &list)
                .any(|assign| assign.expr.is_some_and(|expr| model.text(expr).starts_with("set(")))
        };
        if model.assigns_to(func, &list).next().is_none()
            || (call.method == Some("add") && !is_set())
            || starts_in(model, looped, &list)
            || is_cleared_in(model, looped, &list)
            || feeds_backward(model, func, &list)
        {
            continue;
        }
        let what = if value.model_output { "output" } else { "loss" };
        let fix = append(arg, ".detach()", Applicability::Safe, "detach what is collected");
        let report = Report::new(
            arg,
            format!(
                "`{list}` keeps the graph of every {what} that is appended to it"
            ),
        )
        .help("append `.detach()`, or `.item()` of a single number")
        .fix(fix);
        found.push((report, value.model_output));
    }
    found
}
