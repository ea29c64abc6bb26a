use oomph_python_source::ast::Expr;
use oomph_python_source::{dotted_name, last_name, last_part, names_in};

use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind, Tri};
use crate::semantic::{Bind, Call, CtxKind, FuncId, Grad, Model, torch};

declare_rule! {
    /// A module keeps tensors of every forward pass.
    ///
    /// ## What it does
    ///
    /// Looks for `self.cache.append(x)` and `self.penalty += x` in the `forward` of a module, where `x` is
    /// computed from its inputs, `__init__` makes the list or starts the sum, and nothing in the file
    /// empties it or starts it anew.
    ///
    /// ## Why it costs memory
    ///
    /// The list grows with every forward pass. Each tensor in it also keeps its graph, and with it all
    /// activations of its pass.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torch import nn
    ///
    /// class Block(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.linear = nn.Linear(8, 8)
    ///         self.seen = []
    ///
    ///     def forward(self, x):
    ///         x = self.linear(x)
    ///         self.seen.append(x)
    ///         return x
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from torch import nn
    ///
    /// class Block(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.linear = nn.Linear(8, 8)
    ///
    ///     def forward(self, x):
    ///         x = self.linear(x)
    ///         self.seen = x.detach()
    ///         return x
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another file empties the list after each step.
    ///
    /// ## Fix safety
    ///
    /// No fix: only you know who reads the list, and when it can be emptied.
    OOM110 "forward-keeps-tensors" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    check_sums(model, out);
    for call in &model.calls {
        if !call.is_method("append") || model.func_name(call.ctx) != Some("forward") {
            continue;
        }
        let (Some(func), Some(list), Some(arg)) = (
            model.func_of(call.ctx),
            call.recv_place(),
            call.node.arguments.find_positional(0),
        ) else {
            continue;
        };
        let in_module = model
            .ctx(call.ctx)
            .class
            .is_some_and(|class| model.class(class).is_module);
        if !in_module
            || !list.starts_with("self.")
            || !is_made_once(model, call, &list)
            || is_emptied(model, &list)
            || is_bounded(model, call)
        {
            continue;
        }
        let value = call.args.first();
        let elsewhere = value.is_none_or(|value| {
            value.device == Device::Cpu || matches!(value.kind, Kind::Plain | Kind::Collection)
        });
        let kept = dotted_name(arg).is_some_and(|name| computed(model, func).contains(&name));
        if kept && !elsewhere {
            out.push(
                Report::new(
                    arg,
                    format!("`{list}` keeps `{}` and its graph of every forward pass", model.text(arg)),
                )
                .help("keep its `.detach()`, and empty the list where you have used it"),
            );
        }
    }
}

/// `self.penalty += y.mean()` in `forward`, where nothing starts the sum anew.
fn check_sums(model: &Model<'_>, out: &mut Vec<Report>) {
    for assign in &model.assigns {
        let (Bind::Add, Some(expr)) = (assign.bind, assign.expr) else {
            continue;
        };
        let info = model.ctx(assign.ctx);
        let in_module = info.class.is_some_and(|class| model.class(class).is_module);
        let (Some(func), true) = (info.func, in_module) else {
            continue;
        };
        let begins = model.assigns.iter().any(|each| {
            each.place == assign.place
                && model.ctx(each.ctx).class == info.class
                && model.func_name(each.ctx) == Some("__init__")
                && each.value.kind == Kind::Plain
        });
        let is_tensor = assign.value.is_tensor()
            && assign.value.graph != Tri::No
            && assign.value.device != Device::Cpu
            && names_in(expr).iter().any(|name| {
                let root = name.split('.').next().unwrap_or(name);
                computed(model, func).iter().any(|each| each == root)
            });
        if model.func_name(assign.ctx) == Some("forward")
            && assign.grad == Grad::On
            && assign.place.starts_with("self.")
            && begins
            && is_tensor
            && !is_emptied(model, &assign.place)
            && !model
                .within_function(assign.ctx)
                .any(|id| matches!(model.ctx(id).kind, CtxKind::Branch(_)))
        {
            out.push(
                Report::new(
                    expr,
                    format!("`{}` keeps the graph of every forward pass", assign.place),
                )
                .help("start the sum anew in `forward`, or add what is detached"),
            );
        }
    }
}

/// Whether `__init__` makes the list.
fn is_made_once(model: &Model<'_>, call: &Call<'_>, list: &str) -> bool {
    let class = model.ctx(call.ctx).class;
    model.assigns.iter().any(|assign| {
        assign.place == list
            && assign.value.kind == Kind::Collection
            && model.ctx(assign.ctx).class == class
            && model.func_name(assign.ctx) == Some("__init__")
    })
}

/// Whether anything in the file empties or replaces a list of this name.
fn is_emptied(model: &Model<'_>, list: &str) -> bool {
    let name = last_part(list);
    let same = |place: &str| place.rsplit('.').next() == Some(name);
    model.calls.iter().any(|call| {
        matches!(call.method, Some("clear" | "pop" | "popleft" | "remove"))
            && call.recv_place().is_some_and(|place| same(&place))
    }) || model.assigns.iter().any(|assign| {
        // `[]` after the name: a slice of it is replaced.
        same(assign.place.trim_end_matches("[]"))
            && assign.bind != Bind::Add
            && model.func_name(assign.ctx) != Some("__init__")
    }) || model.module.text().contains(&format!("del {list}"))
}

/// Whether a test of the object decides: a limit, or a switch that someone sets to look inside.
fn is_bounded(model: &Model<'_>, call: &Call<'_>) -> bool {
    model.within_function(call.ctx).any(|id| match model.ctx(id).kind {
        CtxKind::Branch(Some(test)) => names_in(test)
            .iter()
            .any(|name| name != "self.training"),
        _ => false,
    })
}

/// The names in `forward` whose values are computed from its parameters.
fn computed(model: &Model<'_>, func: FuncId) -> Vec<String> {
    let mut names: Vec<String> = model
        .func(func)
        .node
        .parameters
        .iter_non_variadic_params()
        .map(|each| each.parameter.name.to_string())
        .filter(|name| name != "self")
        .collect();
    for assign in &model.assigns {
        if model.func_of(assign.ctx) != Some(func) || assign.value.kind == Kind::Plain {
            continue;
        }
        let Some(expr) = assign.expr else { continue };
        let computes = match expr {
            Expr::BinOp(_) | Expr::Name(_) => true,
            Expr::Call(call) => !last_name(&call.func)
                .is_some_and(|name| torch::leaves_torch(name) || name == "len"),
            _ => false,
        };
        let from = |name: &String| {
            let root = name.split('.').next().unwrap_or(name);
            names.iter().any(|each| each == root)
        };
        if computes && names_in(expr).iter().any(from) {
            names.push(assign.place.clone());
        }
    }
    names
}
