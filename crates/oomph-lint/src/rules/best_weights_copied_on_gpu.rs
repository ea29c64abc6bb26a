use oomph_python_source::ast::{Expr, ExprCall};
use oomph_python_source::{Ranged, dotted_name};

use crate::queries::devices::{mentions_gpu, on_cpu_only};
use crate::queries::whereabouts::is_back_on_cpu;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Call, Model};

declare_rule! {
    /// The best weights are copied on the GPU.
    ///
    /// ## What it does
    ///
    /// Looks for `copy.deepcopy(model.state_dict())` inside a loop.
    ///
    /// ## Why it costs memory
    ///
    /// The copy is made where the parameters are: a second model on the GPU, for the rest of
    /// training, and a third while the best is replaced by a better one.
    ///
    /// ## Example
    ///
    /// ```python
    /// import copy
    /// import torch
    ///
    /// def fit(model, epochs, run_epoch):
    ///     model.cuda()
    ///     for epoch in range(epochs):
    ///         if run_epoch(model):
    ///             best = copy.deepcopy(model.state_dict())
    ///     return best
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def fit(model, epochs, run_epoch):
    ///     model.cuda()
    ///     for epoch in range(epochs):
    ///         if run_epoch(model):
    ///             best = {name: value.cpu().clone() for name, value in model.state_dict().items()}
    ///     return best
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the model is on the CPU by then and another function moved it there.
    ///
    /// ## Fix safety
    ///
    /// No fix: saving to a file may be what you want.
    OOM504 "best-weights-copied-on-gpu" { fix: None, fresh: [8, 19] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if !mentions_gpu(model) {
        return;
    }
    for call in &model.calls {
        if !call.is("copy.deepcopy") || model.loops_around(call.ctx).next().is_none() {
            continue;
        }
        let Some(Expr::Call(inner)) = call.node.arguments.find_positional(0) else {
            continue;
        };
        let Expr::Attribute(attribute) = &*inner.func else {
            continue;
        };
        // An optimizer's state is copied the same way; a learning-rate schedule holds numbers.
        let of = model.text(&*attribute.value);
        if attribute.attr.as_str() == "state_dict"
            && !of.contains("sched")
            && !on_cpu_only(model)
            && !has_no_state_yet(model, call, &attribute.value)
            && !is_gone_back_to(model, call)
            && !is_dropped_at_once(model, call)
            && !is_of_the_cpu(model, inner)
        {
            out.push(
                Report::new(call.node, format!("a copy of `{of}` is kept on the GPU"))
                    .help("copy to the CPU: `{k: v.cpu().clone() for k, v in model.state_dict().items()}`"),
            );
        }
    }
}

/// Whether another model's weights are filled with the copy, which nothing names.
fn is_dropped_at_once(model: &Model<'_>, copy: &Call<'_>) -> bool {
    model.calls.iter().any(|call| {
        call.is_method("load_state_dict")
            && call.node.arguments.range().contains_range(copy.node.range())
    })
}

/// Whether what is copied was moved to the CPU before.
fn is_of_the_cpu(model: &Model<'_>, copied: &ExprCall) -> bool {
    let copied = model.calls.iter().find(|call| call.node.range() == copied.range());
    copied.is_some_and(|call| is_back_on_cpu(model, call))
}

/// Whether the same iteration loads the copy again: a step of meta-learning starts from it.
fn is_gone_back_to(model: &Model<'_>, copy: &Call<'_>) -> bool {
    let Some(looped) = model.loops_around(copy.ctx).next() else {
        return false;
    };
    let names: Vec<&str> = model
        .assigns
        .iter()
        .filter(|assign| assign.stmt == copy.stmt)
        .map(|assign| assign.place.as_str())
        .collect();
    model.calls.iter().any(|call| {
        call.is_method("load_state_dict")
            && looped.range.contains_range(call.node.range())
            && call
                .node
                .arguments
                .find_positional(0)
                .and_then(dotted_name)
                .is_some_and(|name| names.contains(&name.as_str()))
    })
}

/// Whether the block that a copy is in, or one around it, made the optimizer, and nothing stepped it or loaded its state since.
fn just_made(model: &Model<'_>, copy: &Call<'_>, place: &str) -> bool {
    let at = copy.node.start();
    let before = model
        .assigns_to(model.func_of(copy.ctx), place)
        .filter(|assign| assign.target.start() < at)
        .max_by_key(|assign| assign.target.start());
    before.is_some_and(|made| {
        let since = made.target.start();
        made.value.kind == Kind::Optimizer
            && model.is_inside(copy.ctx, made.ctx)
            && !model.calls.iter().any(|other| {
                (other.is_step() || other.is_method("load_state_dict"))
                    && other.node.start() > since
                    && other.node.start() < at
            })
            // A loop that trains comes back to the copy, but not to what made the optimizer.
            && !model
                .loops_around(copy.ctx)
                .any(|looped| looped.contains_backward && !looped.range.contains(since))
    })
}

/// Whether it is an optimizer's state in a function that makes the optimizer and takes no step before: there is
/// none yet.
fn has_no_state_yet(model: &Model<'_>, call: &Call<'_>, owner: &Expr) -> bool {
    let func = model.func_of(call.ctx);
    let Some(place) = dotted_name(owner) else {
        return false;
    };
    let makes_it = model
        .assigns_to(func, &place)
        .any(|assign| assign.value.kind == Kind::Optimizer && assign.target.start() < call.node.start());
    let before = |other: &&Call<'_>| other.node.start() < call.node.start();
    just_made(model, call, &place) || makes_it
        && !model.calls_in_function(func).filter(before).any(|other| {
            other.is_step() || other.is_method("load_state_dict") && other.recv_place().as_deref() == Some(place.as_str())
        })
        && !model.loops_around(call.ctx).any(|each| each.contains_backward)
}
