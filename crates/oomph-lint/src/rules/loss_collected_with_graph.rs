use oomph_python_source::ast::Expr;
use oomph_python_source::{dotted_name, last_name, last_part, names_in};

use crate::fix::{Applicability, Fix};
use crate::queries::devices::{leaves_batches_on_cpu, mentions_gpu, on_cpu_only};
use crate::queries::keeps::in_managed_step;
use crate::queries::loop_carried::{feeds_backward, is_cleared_in, starts_in};
use crate::queries::purpose::{in_unit_test, is_eval_name};
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind, Tri};
use crate::semantic::{Bind, Call, Grad, Loop, Model};
use super::evaluation_builds_graph::{graph_loops, is_in_eval_mode};

declare_rule! {
    /// Losses are collected in a list with their graphs.
    ///
    /// ## What it does
    ///
    /// Looks for `losses.append(loss)` and `losses += [loss]` in a training loop where `loss` holds an
    /// autograd graph, the list lives longer than one iteration, and nothing in the list reaches a
    /// `backward()`. Of lists that are attributes, it reports those to which a loss is appended that
    /// `backward()` has run through, or that a library's trainer runs backward.
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
    ///         x, y = x.cuda(), y.cuda()
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
    ///         x, y = x.cuda(), y.cuda()
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
    OOM102 "loss-collected-with-graph" { fix: Sometimes, fresh: [14, 15] }
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
        // `output, time = model(x)`: the second is a number.
        let is_time = dotted_name(arg).is_some_and(|name| {
            let name = last_part(&name).to_ascii_lowercase();
            ["time", "elapsed", "latency", "duration", "seconds"].iter().any(|word| name.ends_with(word))
        });
        if is_time || !value.has_graph() || !value.is_tensor() || value.device == Device::Cpu {
            continue;
        }
        let Some((list, is_item)) = call.recv_expr().and_then(collection) else {
            continue;
        };
        let func = model.func_of(call.ctx);
        let managed = in_managed_step(model, call.ctx);
        // Attributes are read by other functions, as in policy-gradient code: unless `backward()` has
        // run through the value, its graph may be wanted.
        let is_attribute = list.contains('.');
        if is_attribute && !(is_own_list(model, call, &list) && (managed || is_done(model, call, arg))) {
            continue;
        }
        if is_attribute && managed {
            found.push((report_of(model, call, arg, value.model_output, &list), value.model_output));
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
        let is_collection = is_item || is_attribute || model.assigns_to(func, &list).any(|assign| {
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
        found.push((report_of(model, call, arg, value.model_output, &list), value.model_output));
    }
    found.extend(added_in_brackets(model));
    found
}

fn report_of(
    model: &Model<'_>,
    call: &Call<'_>,
    arg: &Expr,
    is_output: bool,
    list: &str,
) -> Report {
    let name = call.recv_expr().map_or(list, |recv| model.text(recv));
    keeps_graphs(arg, is_output, name)
}

fn keeps_graphs(value: &Expr, is_output: bool, list: &str) -> Report {
    let what = if is_output { "output" } else { "loss" };
    let fix = Fix::append(value, ".detach()", Applicability::Safe, "detach what is collected");
    Report::new(
        value,
        format!("`{list}` keeps the graph of every {what} that is appended to it"),
    )
    .help("append its `.detach()`, or its `.item()` if it is a single number")
    .fix(fix)
}

/// `losses += [loss]` in a loop that trains, after the list was made before it.
fn added_in_brackets(model: &Model<'_>) -> Vec<(Report, bool)> {
    let mut found = Vec::new();
    for assign in &model.assigns {
        let (Bind::Add, Some(Expr::List(items))) = (assign.bind, assign.expr) else {
            continue;
        };
        let [item] = &*items.elts else { continue };
        let Some(looped) = model.training_loop(assign.ctx) else {
            continue;
        };
        let func = model.func_of(assign.ctx);
        let made_before = model
            .assigns_to(func, &assign.place)
            .any(|each| each.bind == Bind::Set && each.value.kind == Kind::Collection);
        if assign.grad != Grad::On
            || assign.value.graph != Tri::Yes
            || !dotted_name(item).is_some_and(|name| feeds_backward(model, func, &name))
            || !made_before
            || on_cpu_only(model)
            || leaves_batches_on_cpu(model, looped)
            || in_unit_test(model, assign.ctx)
            || model
                .loops_around(assign.ctx)
                .any(|each| starts_in(model, each, &assign.place) && (each.data || each.ctx == looped.ctx))
            || is_cleared_in(model, looped, &assign.place)
            || feeds_backward(model, func, &assign.place)
        {
            continue;
        }
        found.push((keeps_graphs(item, false, &assign.place), false));
    }
    found
}

/// Whether a list that is an attribute belongs to this object, and nothing that it holds reaches a
/// `backward()` of the file.
fn is_own_list(model: &Model<'_>, call: &Call<'_>, list: &str) -> bool {
    let class = model.ctx(call.ctx).class;
    let made = model.assigns.iter().any(|assign| {
        assign.place == list
            && assign.value.kind == Kind::Collection
            && model.ctx(assign.ctx).class == class
    });
    let mut funcs: Vec<_> = model
        .backwards
        .iter()
        .map(|backward| model.func_of(backward.ctx))
        .collect();
    funcs.sort();
    funcs.dedup();
    made && list.starts_with("self.")
        && !funcs.into_iter().any(|func| feeds_backward(model, func, list))
        // Handed to something else, it may end up in one.
        && !model.calls.iter().any(|other| {
            other
                .node
                .arguments
                .args
                .iter()
                .any(|arg| dotted_name(arg).as_deref() == Some(list))
                && other.target.is_some()
        })
}

/// Whether `backward()` has run through a value: in this function, or in the one that returned it.
fn is_done(model: &Model<'_>, call: &Call<'_>, arg: &Expr) -> bool {
    let func = model.func_of(call.ctx);
    let by_step = |expr: &Expr| {
        model.calls.iter().any(|other| {
            std::ptr::eq(&raw const *other.node, expr.as_call_expr().map_or(std::ptr::null(), |node| node))
                && other.target.is_some_and(|target| model.func(target).has_backward)
        })
    };
    names_in(arg).iter().any(|name| {
        feeds_backward(model, func, name)
            || model
                .assigns_to(func, name)
                .filter_map(|assign| assign.expr)
                .any(by_step)
    }) || by_step(arg)
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
