use crate::queries::model_calls::model_place;
use crate::queries::purpose::is_eval_name;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;
use oomph_python_source::dotted_name;
use super::evaluation_builds_graph::{decorate, graph_loops, is_in_eval_mode, only_evaluated};

declare_rule! {
    /// A function whose name says that it evaluates builds a graph.
    ///
    /// ## What it does
    ///
    /// Looks for functions called `evaluate`, `validate`, `test`, `predict`, `infer` and the like
    /// that call a model in a loop over a loader with gradients on and never run `backward()`, where they may hand on
    /// what it returns. Where nothing can run backward through it, OOM201 reports it.
    ///
    /// ## Why it costs memory
    ///
    /// As in OOM201: every activation is kept for a `backward()` that never comes. Here the model
    /// was not even put in evaluation mode.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def predict(model, loader):
    ///     outputs = []
    ///     for x in loader:
    ///         outputs.append(model(x.cuda()))
    ///     return outputs
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// @torch.inference_mode()
    /// def predict(model, loader):
    ///     model.eval()
    ///     outputs = []
    ///     for x in loader:
    ///         outputs.append(model(x.cuda()))
    ///     return outputs
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When every caller, in other files, turns gradients off, or calls `backward()` on what the
    /// function returns.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: what the function returns no longer has a graph.
    OOM202 "evaluation-function-builds-graph" { fix: Sometimes, fresh: [24, 34] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let mut passes = graph_loops(model);
    if !passes.is_empty() {
        let known = only_evaluated(model);
        passes.retain(|(_, call)| !known.iter().any(|(each, _)| std::ptr::eq(each.node, call.node)));
    }
    for (_, call) in passes {
        let Some(name) = model.func_name(call.ctx) else {
            continue;
        };
        let trains = model
            .func_of(call.ctx)
            .is_some_and(|func| model.func(func).has_backward || model.func(func).has_step);
        if !is_eval_name(name) || trains || is_in_eval_mode(model, call) || has_another_name(model, name) {
            continue;
        }
        let place = model_place(call).unwrap_or_default();
        out.push(
            Report::new(
                call.node,
                format!("`{name}` calls `{place}` with gradients on: every activation is kept for a `backward()` that never comes"),
            )
            .help("put `@torch.no_grad()` on the function, and call `model.eval()` first")
            .fix(decorate(model, call)),
        );
    }
}

/// `evaluate = eval_f1`, and nothing calls `eval_f1` itself: whether gradients are on is said where `evaluate` is called.
pub(super) fn has_another_name(model: &Model<'_>, name: &str) -> bool {
    model.assigns.iter().any(|assign| assign.expr.and_then(dotted_name).as_deref() == Some(name))
        && !model.calls.iter().any(|call| dotted_name(&call.node.func).as_deref() == Some(name))
}
