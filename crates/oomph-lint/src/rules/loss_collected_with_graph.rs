use oomph_python_source::ast::Expr;
use oomph_python_source::{dotted_name, last_name};

use crate::fix::{Applicability, Fix};
use crate::queries::devices::{leaves_batches_on_cpu, mentions_gpu, on_cpu_only};
use crate::queries::loop_carried::{feeds_backward, is_cleared_in, starts_in};
use crate::queries::purpose::{in_unit_test, is_eval_name};
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind};
use crate::semantic::{Call, Grad, Loop, Model};
use super::evaluation_builds_graph::{graph_loops, is_in_eval_mode};

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
        let Some((list, is_item)) = call.recv_expr().and_then(collection) else {
            continue;
        };
        let func = model.func_of(call.ctx);
        // Attributes are read by other functions, as in policy-gradient code.
        if list.contains('.') {
            continue;
        }
        let Some(looped) = model
            .training_loop(call.ctx)
            .or_else(|| inference_loop(model, call, value.model_output))
        else {
            continue;
        };
        // `append` and `add` of an object are a meter's: what it keeps, only its class tells.
        // `history["loss"]` can only be a list in a dictionary.
        let is_collection = is_item || model.assigns_to(func, &list).any(|assign| {
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
                "`{}` keeps the graph of every {what} that is appended to it",
                call.recv_expr().map_or(list.as_str(), |recv| model.text(recv))
            ),
        )
        .help("append its `.detach()`, or its `.item()` if it is a single number")
        .fix(fix);
        found.push((report, value.model_output));
    }
    found
}

/// The collection that something is appended to, and whether it is an item of that name:
/// `losses`, `history["loss"]`.
fn collection(recv: &Expr) -> Option<(String, bool)> {
    match recv {
        Expr::Subscript(item) if item.slice.is_string_literal_expr() => {
            dotted_name(&item.value).map(|name| (name, true))
        }
        _ => dotted_name(recv).map(|name| (name, false)),
    }
}

/// The loop around a call that collects outputs where nothing trains: over batches that are
/// evaluated, or at the top of a script.
fn inference_loop<'m, 'a>(
    model: &'m Model<'a>,
    call: &Call<'a>,
    is_output: bool,
) -> Option<&'m Loop<'a>> {
    if !is_output || model.in_lightning(call.ctx) {
        return None;
    }
    let looped = model.loops_around(call.ctx).last()?;
    if looped.contains_backward {
        return None;
    }
    let at_top = model.func_of(call.ctx).is_none()
        && model.backwards.is_empty()
        && mentions_gpu(model);
    let evaluates = || {
        graph_loops(model).iter().any(|(each, first)| {
            model.is_inside(call.ctx, each.ctx)
                && (is_in_eval_mode(model, first)
                    || model.func_name(first.ctx).is_some_and(is_eval_name))
        })
    };
    (at_top || evaluates()).then_some(looped)
}
