use crate::fix::{Applicability, Fix};
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Grad, Model};

declare_rule! {
    /// A running average is given a loss with its graph.
    ///
    /// ## What it does
    ///
    /// Looks for `meter.update(loss)` where `meter` is an `AverageMeter` and `loss` holds a graph.
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
        if !call.is_method("update") || call.recv.kind != Kind::Meter || call.grad != Grad::On {
            continue;
        }
        let (Some(value), Some(arg)) = (call.args.first(), call.node.arguments.find_positional(0))
        else {
            continue;
        };
        if !value.has_graph() || !value.is_tensor() {
            continue;
        }
        let takes_number = call.target.is_some_and(|target| {
            let body = model.text(model.func(target).node);
            body.contains(".item()") || body.contains("detach") || body.contains("float(")
        });
        if takes_number {
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
