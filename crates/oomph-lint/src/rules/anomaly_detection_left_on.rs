use oomph_python_source::ast::{Expr, Stmt};

use oomph_python_source::{dotted_name, last_name};

use crate::fix::Fix;
use crate::queries::purpose::{in_unit_test, is_eval_name};
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, CtxKind, Model};

declare_rule! {
    /// Anomaly detection is left on while training runs.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.autograd.set_detect_anomaly(True)` and `with torch.autograd.detect_anomaly():` under no
    /// condition, in a file that trains, unless the function around it only evaluates. A file that trains runs `backward()`, has a
    /// module of Lightning or starts its command line, or something imports it, or it calls what trains, in a project that does.
    ///
    /// ## Why it costs memory
    ///
    /// Every operation of the forward pass keeps a formatted stack trace with its node, and every gradient is looked
    /// through for NaN by an operation of its own, with a result of its own. Steps take several times as long.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// torch.autograd.set_detect_anomaly(True)
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x), y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import os
    /// import torch
    ///
    /// torch.autograd.set_detect_anomaly("DEBUG" in os.environ)
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x), y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// While a NaN is being looked for.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: a NaN in a gradient no longer raises.
    OOM111 "anomaly-detection-left-on" { fix: Sometimes, fresh: [21, 21] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let sets = call.is("torch.autograd.set_detect_anomaly") || call.is("torch.autograd.anomaly_mode.set_detect_anomaly");
        let on = if sets {
            matches!(call.arg("mode", 0), Some(Expr::BooleanLiteral(flag)) if flag.value)
        } else {
            call.is("torch.autograd.detect_anomaly")
        };
        let trains = || {
            !model.backwards.is_empty()
                || model.around.trains() && (model.around.is_imported() || runs_what_trains(model))
                || model.classes.iter().any(|class| class.is_lightning)
                || model.calls.iter().any(|call| last_name(&call.node.func) == Some("LightningCLI"))
        };
        if !on || is_conditional(model, call) || in_unit_test(model, call.ctx) || only_evaluates(model, call) || !trains() {
            continue;
        }
        let stmt = model.stmt(call.stmt).node;
        let fix = matches!(stmt, Stmt::Expr(_))
            .then(|| model.module.delete(stmt))
            .flatten()
            .map(|edit| Fix::unsafe_("remove the call", edit));
        out.push(
            Report::new(
                call.node,
                "anomaly detection is on for all of the training: each operation keeps a stack trace, and each gradient is checked",
            )
            .help("turn it on by an option, while a NaN is looked for")
            .fix(fix),
        );
    }
}

/// Whether a script that nothing imports calls what trains: by its name, or as it runs backward.
fn runs_what_trains(model: &Model<'_>) -> bool {
    model.calls.iter().filter_map(|call| last_name(&call.node.func)).any(|name| {
        let lower = name.to_ascii_lowercase();
        TRAINS.iter().any(|word| lower.contains(word)) || model.around.runs_backward(name)
    })
}

const TRAINS: &[&str] = &["train", "fit", "learn", "step", "backward", "update", "main", "run", "launch", "spawn"];

/// Whether the function around a call evaluates, by its name, and nothing that it calls trains.
fn only_evaluates(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(func) = model.func_of(call.ctx) else {
        return false;
    };
    let names = || model.calls_in_function(Some(func)).filter_map(|other| last_name(&other.node.func));
    is_eval_name(model.func(func).node.name.as_str())
        && !model.func(func).has_backward
        // `test_epoch(loader, model)` of another file
        && !names().any(|name| TRAINS.iter().any(|word| name.to_ascii_lowercase().contains(word)))
}

fn is_conditional(model: &Model<'_>, call: &Call<'_>) -> bool {
    // `def set_debug_mode():`
    let asked_for = model.func_name(call.ctx).is_some_and(|name| name.to_ascii_lowercase().contains("debug"));
    asked_for || model
        .within_function(call.ctx)
        .any(|id| match model.ctx(id).kind {
            CtxKind::Branch(Some(Expr::Compare(test))) => dotted_name(&test.left).as_deref() != Some("__name__"),
            CtxKind::Branch(_) | CtxKind::Handler => true,
            _ => false,
        })
}
