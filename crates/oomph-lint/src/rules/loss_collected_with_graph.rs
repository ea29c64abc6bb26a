use oomph_python_source::ast::Expr;
use oomph_python_source::{dotted_name, last_name};

use crate::fix::{Applicability, Fix};
use crate::queries::devices::{leaves_batches_on_cpu, on_cpu_only};
use crate::queries::loop_carried::{feeds_backward, is_cleared_in, starts_in};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind};
use crate::semantic::{Grad, Model};

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
        if !value.has_graph() || !value.is_tensor() || value.device == Device::Cpu {
            continue;
        }
        let Some(list) = call.recv_expr().and_then(dotted_name) else {
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
        // `append` and `add` of an object are a meter's: what it keeps, only its class tells.
        let is_collection = model.assigns_to(func, &list).any(|assign| {
            assign.value.kind == Kind::Collection
                || matches!(assign.expr, Some(Expr::Call(made)) if last_name(&made.func) == Some("deque"))
        });
        if !is_collection
            || on_cpu_only(model)
            || leaves_batches_on_cpu(model, looped)
            || in_unit_test(model, call.ctx)
            || starts_in(model, looped, &list)
            // Parts of one step, in a loop inside that over the batches.
            || model
                .loops_around(call.ctx)
                .any(|each| each.data && starts_in(model, each, &list))
            || is_cleared_in(model, looped, &list)
            || feeds_backward(model, func, &list)
        {
            continue;
        }
        let what = if value.model_output { "output" } else { "loss" };
        let fix = Fix::append(arg, ".detach()", Applicability::Safe, "detach what is collected");
        let report = Report::new(
            arg,
            format!(
                "`{list}` keeps the graph of every {what} that is appended to it"
            ),
        )
        .help("append its `.detach()`, or its `.item()` if it is a single number")
        .fix(fix);
        found.push((report, value.model_output));
    }
    found
}
