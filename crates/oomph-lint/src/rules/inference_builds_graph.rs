use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, dotted_name, last_name};

use crate::queries::devices::{on_cpu_only, runs_on_cpu};
use crate::queries::model_calls::{is_model_call, model_place};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{CtxKind, FuncId, Grad, Model};

declare_rule! {
    /// Inference outside a loop over batches builds a graph.
    ///
    /// ## What it does
    ///
    /// Looks for a call of a model after `model.eval()` in the same function, with gradients on, in
    /// a function that trains nothing.
    ///
    /// ## Why it costs memory
    ///
    /// The forward pass keeps every activation until its output is dropped: inference needs several
    /// times the memory that it would need under `torch.inference_mode()`.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def classify(path, image):
    ///     model = torch.hub.load("pytorch/vision", "resnet50")
    ///     model.eval()
    ///     return model(image).argmax(1)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def classify(path, image):
    ///     model = torch.hub.load("pytorch/vision", "resnet50")
    ///     model.eval()
    ///     with torch.inference_mode():
    ///         return model(image).argmax(1)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When gradients with respect to the input are wanted, or the caller turns gradients off.
    ///
    /// ## Fix safety
    ///
    /// No fix: only you know what belongs inside the block.
    OOM205 "inference-builds-graph" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // Gradients of inputs, hooks and exports all want the graph or do not run the model for real.
    let other_purpose = ["requires_grad", "autograd.grad", "jit.trace", "onnx", "Grad", "_hook"]
        .iter()
        .any(|word| model.module.text().contains(word));
    if other_purpose {
        return;
    }
    let mut seen = Vec::new();
    for call in &model.calls {
        if !is_model_call(call) || call.grad != Grad::On {
            continue;
        }
        let Some(place) = model_place(call) else {
            continue;
        };
        let func = model.func_of(call.ctx);
        // Inside a method, `self.model.eval()` elsewhere decides; loops over batches are OOM201.
        if model.loops_around(call.ctx).any(|each| each.data || each.contains_backward)
            || func.is_some_and(|id| model.func(id).has_backward || model.func(id).has_step)
            || (func.is_none() && !model.backwards.is_empty())
            || model.in_lightning(call.ctx)
            || in_unit_test(model, call.ctx)
            // The graph is dropped as soon as it is made, or the output itself is.
            || model.text(model.stmt(call.stmt).node).contains(".detach()")
            || matches!(model.stmt(call.stmt).node, Stmt::Expr(only) if only.value.range() == call.node.range())
            || runs_on_cpu(call)
            || is_unpickled(model, func, &place)
            || model.within_function(call.ctx).any(|id| matches!(model.ctx(id).kind, CtxKind::Lambda))
            || seen.contains(&(func, place.clone()))
        {
            continue;
        }
        let mut in_eval = false;
        for other in model.calls_in_function(func) {
            if other.node.start() >= call.node.start() {
                break;
            }
            if other.recv_place().as_deref() == Some(place.as_str()) {
                match other.method {
                    Some("eval") => in_eval = true,
                    Some("train") => in_eval = false,
                    _ => {}
                }
            }
        }
        // `model = build().eval()`
        let built_in_eval = model.assigns_to(func, &place).last().is_some_and(|assign| {
            assign.expr.is_some_and(|expr| model.text(expr).ends_with(".eval()"))
        });
        if (in_eval || built_in_eval) && !on_cpu_only(model) {
            seen.push((func, place.clone()));
            out.push(
                Report::new(
                    call.node,
                    format!("`{place}` runs in evaluation mode with gradients on: its activations are kept"),
                )
                .help("run it under `with torch.inference_mode():`"),
            );
        }
    }
}

/// Whether the model came out of a pickled dictionary, `torch.load(path)["model"]`: whether its
/// parameters require gradients was decided when it was saved.
fn is_unpickled(model: &Model<'_>, func: Option<FuncId>, place: &str) -> bool {
    model.assigns_to(func, place).any(|assign| {
        let Some(Expr::Subscript(item)) = assign.expr else {
            return false;
        };
        match &*item.value {
            Expr::Call(load) => last_name(&load.func) == Some("load"),
            base => dotted_name(base).is_some_and(|base| {
                model
                    .assigns_to(func, &base)
                    .any(|each| each.value.kind == Kind::Checkpoint)
            }),
        }
    })
}
