use oomph_python_source::ast::Expr;
use oomph_python_source::{Ranged, dotted_name, last_name, names_in};

use crate::fix::{Applicability, Fix};
use crate::queries::devices::on_cpu_only;
use crate::queries::keeps::{first_parameter, keeps_parameter};
use crate::queries::loop_carried::feeds_backward;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind, Value};
use crate::semantic::{Call, Grad, Model};

declare_rule! {
    /// A running average is given a loss with its graph.
    ///
    /// ## What it does
    ///
    /// Looks for `meter.update(loss)` where `loss` holds a graph and `meter` is an `AverageMeter`, or
    /// of a class of the project whose method adds its argument to an attribute or appends it to one.
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
    OOM107 "meter-keeps-graph" { fix: Sometimes, fresh: [8, 10] }
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
        let holds_graph = value.has_graph() && value.is_tensor() || is_loss_of_graph(model, call, arg);
        if !holds_graph
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

/// Whether a loss by its name that goes into `backward()` is what a function of another file made of a value with a graph.
fn is_loss_of_graph(model: &Model<'_>, call: &Call<'_>, arg: &Expr) -> bool {
    let func = model.func_of(call.ctx);
    let Expr::Name(name) = arg else { return false };
    let name = name.id.as_str();
    let made = model.assigns_to(func, name).filter(|assign| assign.target.start() < call.node.start()).last();
    let Some(Expr::Call(made)) = made.and_then(|assign| assign.expr) else {
        return false;
    };
    name.contains("loss")
        && model.calls_in_function(func).any(|other| {
            std::ptr::eq(other.node, made) && other.target.is_none() && other.result.kind == Kind::Unknown && other.args.iter().any(Value::has_graph)
        })
        && feeds_backward(model, func, name)
}

/// `grad_norm`: gradients have no graph, unless somebody asked for one.
fn is_norm_of_gradients(arg: &Expr) -> bool {
    dotted_name(arg).is_some_and(|name| name.contains("grad") && name.contains("norm"))
}

/// Whether a call is of a method that keeps what it is given, of a class in another file: `meter = RunningAverage()`.
fn is_kept_elsewhere(model: &Model<'_>, call: &Call<'_>) -> bool {
    let (Some(method), Some(place)) = (call.method, call.recv_place()) else {
        return false;
    };
    let class = model.ctx(call.ctx).class;
    let mut made = model
        .assigns
        .iter()
        .filter(|assign| {
            assign.place == place
                && if place.starts_with("self.") {
                    model.ctx(assign.ctx).class == class
                } else {
                    model.func_of(assign.ctx) == model.func_of(call.ctx)
                }
        })
        .peekable();
    made.peek().is_some()
        && made.all(|assign| {
            matches!(assign.expr, Some(Expr::Call(makes)) if last_name(&makes.func)
                .is_some_and(|class| model.around.keeps(&format!("{class}.{method}"))))
        })
}

/// Whether the method adds what it is given to a sum or a list: as its body says, or, for an
/// `AverageMeter` of another file, as they all do. Of a class with another name, the value has to be
/// one that `backward()` runs through in this function: nothing needs its graph any more.
fn is_kept(model: &Model<'_>, call: &Call<'_>, arg: &Expr) -> bool {
    let done = || {
        names_in(arg)
            .iter()
            .any(|name| feeds_backward(model, model.func_of(call.ctx), name))
    };
    match first_parameter(model, call) {
        Some((func, name)) if !call.recv.is_model() => {
            keeps_parameter(model, func, name)
                && (call.recv.kind == Kind::Meter
                    || done() && model.training_loop(call.ctx).is_some())
        }
        Some(_) => false,
        None => {
            call.is_method("update") && call.recv.kind == Kind::Meter && call.target.is_none()
                || done() && model.training_loop(call.ctx).is_some() && is_kept_elsewhere(model, call)
        }
    }
}
