use oomph_python_source::ast::{Expr, ExprCall};
use oomph_python_source::{calls_run_by, dotted_name, last_part};

use crate::queries::devices::on_cpu_only;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Bind, Call, Model};

declare_rule! {
    /// A forward hook collects outputs with their graphs.
    ///
    /// ## What it does
    ///
    /// Looks for functions given to `register_forward_hook` that append their output to a list
    /// that is never emptied, without detaching it, in files with a loop that trains or runs over a
    /// loader.
    ///
    /// ## Why it costs memory
    ///
    /// The hook runs in every forward pass. Each time, the list gets one more tensor on the GPU,
    /// and with it the graph that made it.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// features = []
    ///
    /// def keep(module, inputs, output):
    ///     features.append(output)
    ///
    /// def watch(model, loader):
    ///     model.layer4.register_forward_hook(keep)
    ///     for x in loader:
    ///         print(model(x.cuda()).argmax(1))
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// features = []
    ///
    /// def keep(module, inputs, output):
    ///     features.append(output.detach().cpu())
    ///
    /// def watch(model, loader):
    ///     model.layer4.register_forward_hook(keep)
    ///     for x in loader:
    ///         print(model(x.cuda()).argmax(1))
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the features are part of a loss and the list is emptied in another file.
    ///
    /// ## Fix safety
    ///
    /// No fix: only you know whether the graph is needed.
    OOM108 "hook-keeps-outputs" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // One pass over a few samples, as for a figure, keeps as much as is wanted.
    let runs_often = model.loops.iter().any(|each| each.data || each.trains);
    if !runs_often || on_cpu_only(model) {
        return;
    }
    for call in &model.calls {
        if !call.is_method("register_forward_hook") || in_unit_test(model, call.ctx) {
            continue;
        }
        let Some((output, calls)) = hook(model, call) else {
            continue;
        };
        for inner in calls {
            let Expr::Attribute(attribute) = &*inner.func else {
                continue;
            };
            let Some(arg) = inner.arguments.find_positional(0) else {
                continue;
            };
            let kept = match arg {
                Expr::Name(name) => name.id.as_str() == output,
                Expr::Subscript(item) => dotted_name(&item.value).as_deref() == Some(output),
                _ => false,
            };
            let Some(list) = dotted_name(&attribute.value) else {
                continue;
            };
            if attribute.attr.as_str() != "append" || !kept || is_emptied(model, &list) {
                continue;
            }
            out.push(
                Report::new(
                    arg,
                    format!("`{list}` keeps the output and its graph of every forward pass"),
                )
                .help("append `output.detach()`, and empty the list when you have used it"),
            );
        }
    }
}

/// The hook that is registered: the name of its last parameter, and the calls that it makes.
fn hook<'a>(model: &Model<'a>, call: &Call<'a>) -> Option<(&'a str, Vec<&'a ExprCall>)> {
    if let Some(Expr::Lambda(lambda)) = call.node.arguments.find_positional(0) {
        let output = lambda.parameters.as_ref()?.args.last()?;
        let Expr::Call(inner) = &*lambda.body else {
            return None;
        };
        return Some((output.parameter.name.as_str(), vec![inner]));
    }
    let Some(Kind::Func(func)) = call.args.first().map(|arg| arg.kind.clone()) else {
        return None;
    };
    let def = model.func(func).node;
    let output = def.parameters.args.last()?;
    Some((output.parameter.name.as_str(), calls_run_by(&def.body)))
}

/// The list is emptied somewhere, or bound anew.
fn is_emptied(model: &Model<'_>, list: &str) -> bool {
    let name = last_part(list);
    let same = |place: &str| place.rsplit('.').next() == Some(name);
    model.calls.iter().any(|call| {
        matches!(call.method, Some("clear" | "pop"))
            && call.recv_place().is_some_and(|place| same(&place))
    }) || model
        .assigns
        .iter()
        .filter(|assign| assign.bind == Bind::Set && same(&assign.place))
        .count()
        > 1
}
