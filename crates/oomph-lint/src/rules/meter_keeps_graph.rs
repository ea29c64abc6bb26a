use oomph_python_source::ast::Expr;
use oomph_python_source::{dotted_name, names_in};

use crate::fix::{Applicability, Fix};
use crate::queries::devices::on_cpu_only;
use crate::queries::keeps::{first_parameter, keeps_parameter};
use crate::queries::loop_carried::feeds_backward;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind};
use crate::semantic::{Call, Grad, Model};

declare_rule! {
    /// A running average is given a loss with its graph.
    ///
    /// ## What it does
    ///
    /// Looks for `meter.update(loss)` where `loss` holds a graph and `meter` is an `AverageMeter`, or
    /// of a class of the file whose method adds its argument to an attribute or appends it to one.
    ///
    /// ## Why it costs memory
    ///
    /// `AverageMeter` keeps `self.sum += val * n`. Given a tensor with a graph, the sum refers to
    /// the graphs of all losses so far.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from utils import AverageMeter
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     losses = AverageMeter()
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y)
    ///         losses.update(loss, x.size(0))
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from utils import AverageMeter
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     losses = AverageMeter()
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y)
    ///         losses.update(loss.detach(), x.size(0))
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the `AverageMeter` of the project, defined in another file, calls `.item()` itself.
    ///
    /// ## Fix safety
    ///
    /// Safe: the meter holds the same numbers, without the graph.
    OOM107 "meter-keeps-graph" { fix: Sometimes, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if call.grad != Grad::On {
            continue;
        }
        let (Some(value), Some(arg)) = (call.args.first(), call.node.arguments.find_positional(0))
        else {
            continue;
        };
        if !value.has_graph()
            || !value.is_tensor()
            || value.device == Device::Cpu
            // An element of what a model returns may be a number.
            || arg.is_subscript_expr()
            || is_norm_of_gradients(arg)
            || !is_kept(model, call, arg)
            || on_cpu_only(model)
            || in_unit_test(model, call.ctx)
        {
            continue;
        }
        let fix = Fix::append(arg, ".detach()", Applicability::Safe, "detach the value");
        out.push(
            Report::new(
                arg,
                format!(
                    "the meter's sum keeps the graph of every `{}` that it is given",
                    model.text(arg)
                ),
            )
            .help("pass `loss.detach()`, or `loss.item()`")
            .fix(fix),
        );
    }
}

/// `grad_norm`: gradients have no graph, unless somebody asked for one.
fn is_norm_of_gradients(arg: &Expr) -> bool {
    dotted_name(arg).is_some_and(|name| name.contains("grad") && name.contains("norm"))
}

/// Whether the method adds what it is given to a sum or a list: as its body says, or, for an
/// `AverageMeter` of another file, as they all do. Of a class with another name, the value has to be
/// one that `backward()` runs through in this function: nothing needs its graph any more.
fn is_kept(model: &Model<'_>, call: &Call<'_>, arg: &Expr) -> bool {
    match first_parameter(model, call) {
        Some((func, name)) if !call.recv.is_model() => {
            let done = || {
                names_in(arg)
                    .iter()
                    .any(|name| feeds_backward(model, model.func_of(call.ctx), name))
            };
            keeps_parameter(model, func, name)
                && (call.recv.kind == Kind::Meter
                    || done() && model.training_loop(call.ctx).is_some())
        }
        Some(_) => false,
        None => call.is_method("update") && call.recv.kind == Kind::Meter && call.target.is_none(),
    }
}
