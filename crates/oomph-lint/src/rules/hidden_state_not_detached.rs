use oomph_python_source::ast::Expr;
use oomph_python_source::dotted_name;

use crate::queries::devices::on_cpu_only;
use crate::queries::model_calls::is_model_call;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Bind, Grad, Model};

declare_rule! {
    /// A hidden state is carried from step to step with its graph.
    ///
    /// ## What it does
    ///
    /// Looks for `out, hidden = model(x, hidden)`, `out, (h, c) = model(x, (h, c))` and
    /// `hidden = cell(x, hidden)` in a training loop where nothing else in the loop assigns the state.
    ///
    /// ## Why it costs memory
    ///
    /// The state of this step refers to the graph of the step before, that one to the one before
    /// it, back to the first batch. Either memory grows with every step, or, when `backward()` has
    /// freed the older graphs, PyTorch refuses to go "through the graph a second time", and the
    /// `retain_graph=True` that people add then keeps all of them.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion, hidden):
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         output, hidden = model(x, hidden)
    ///         criterion(output, y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion, hidden):
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         hidden = hidden.detach()
    ///         output, hidden = model(x, hidden)
    ///         criterion(output, y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the model detaches the state that it is given.
    ///
    /// ## Fix safety
    ///
    /// No fix: a state may be a tensor or a tuple of tensors.
    OOM104 "hidden-state-not-detached" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if !is_model_call(call) || call.grad != Grad::On {
            continue;
        }
        let Some(looped) = model.training_loop(call.ctx) else {
            continue;
        };
        // The innermost loop: an inner loop over time steps is meant to keep its graph.
        if model.loops_around(call.ctx).next().map(|each| each.ctx) != Some(looped.ctx) {
            continue;
        }
        let func = model.func_of(call.ctx);
        let inputs: Vec<String> = call
            .node
            .arguments
            .iter_source_order()
            .flat_map(|argument| state_places(argument.value()))
            .collect();
        for assign in &model.assigns {
            let is_state = match assign.bind {
                Bind::Unpack => true,
                // `hidden = cell(x, hidden)`
                Bind::Set => inputs.len() > 1,
                _ => false,
            };
            if assign.stmt != call.stmt || !is_state {
                continue;
            }
            let place = assign.place.as_str();
            let is_argument = inputs.iter().any(|input| input == place);
            let only_here = model
                .assigns_to(func, place)
                .filter(|other| model.is_inside(other.ctx, looped.ctx))
                .all(|other| other.stmt == assign.stmt);
            let is_detached = model.calls.iter().any(|other| {
                matches!(other.method, Some("detach_" | "detach" | "zero_"))
                    && model.is_inside(other.ctx, looped.ctx)
                    && other
                        .recv_place()
                        .is_some_and(|recv| recv == place)
            });
            if is_argument
                && only_here
                && !is_detached
                && !on_cpu_only(model)
                && !in_unit_test(model, call.ctx)
            {
                out.push(
                    Report::new(
                        assign.target,
                        format!("`{place}` carries the graphs of all earlier steps into this one"),
                    )
                    .help("detach it at the start of each step: `hidden = hidden.detach()`"),
                );
                // `(h, c)` is one state.
                break;
            }
        }
    }
}

/// The places that an argument passes: `hidden`, `(h, c)`.
fn state_places(expr: &Expr) -> Vec<String> {
    match expr {
        Expr::Tuple(tuple) => tuple.elts.iter().filter_map(dotted_name).collect(),
        Expr::List(list) => list.elts.iter().filter_map(dotted_name).collect(),
        other => dotted_name(other).into_iter().collect(),
    }
}
