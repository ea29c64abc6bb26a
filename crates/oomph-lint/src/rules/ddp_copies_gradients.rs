use oomph_python_source::ast::Expr;
use oomph_python_source::{Ranged, dotted_name, last_name, names_in};

use super::data_parallel::is_trained;
use super::ddp_bypassed::is_bypassed;
use crate::fix::Fix;
use crate::queries::model_calls::{is_dropped, is_only_evaluated};
use crate::queries::purpose::trains;
use crate::queries::sizes::has_few_parameters;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind};
use crate::semantic::{Call, CtxKind, Model, torch};

declare_rule! {
    /// `DistributedDataParallel` keeps gradients twice.
    ///
    /// ## What it does
    ///
    /// Looks for `DistributedDataParallel(…)` without `gradient_as_bucket_view` in files that train. Where training never calls
    /// the wrapper, its buckets stay empty: that is OOM707.
    ///
    /// ## Why it costs memory
    ///
    /// Gradients are copied into buckets for communication, so there are two of each. With
    /// `gradient_as_bucket_view=True` the gradients are views of the buckets: the peak falls by one
    /// copy of the parameters, no time goes into copying, and results are the same.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel
    ///
    /// def prepare(model, rank):
    ///     model = DistributedDataParallel(model, device_ids=[rank])
    ///     return model, torch.optim.AdamW(model.parameters())
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel
    ///
    /// def prepare(model, rank):
    ///     model = DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
    ///     return model, torch.optim.AdamW(model.parameters())
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the code calls `detach_()` on gradients, which views do not allow, or the model has no
    /// gradients to speak of. PyTorch has the argument since 1.7: nothing is said if the project pins an older one.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: `detach_()` on gradients fails afterwards.
    OOM703 "ddp-copies-gradients" { fix: Sometimes, fresh: [21, 27] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let wraps = |call: &Call<'_>| call.qual.as_deref().is_some_and(torch::is_ddp);
    if !model.calls.iter().any(wraps) || !trains(model) || communicates_on_cpu(model) || model.around.detaches_gradients() {
        return;
    }
    for call in model.calls.iter().filter(|call| wraps(call)) {
        if call.keyword("gradient_as_bucket_view").is_none()
            && !call.has_star_kwargs()
            && !call.has_star_args()
            && !call.node.arguments.is_empty()
            && !is_for_cpu(model, call)
            && !is_untrained(model, call)
            && !is_dropped(model, call)
            && !is_bypassed(model, call)
            && !wraps_few_parameters(model, call)
            && !is_mostly_frozen(model, call)
            && !is_only_evaluated(model, call)
            && is_trained(model, call)
            && !is_single_layer(model, call)
            // Sparse gradients are communicated as they are.
            && !model.module.text().contains("sparse=True")
        {
            let edit = model.module.add_keyword(call.node, "gradient_as_bucket_view=True");
            out.push(
                Report::new(
                    &*call.node.func,
                    "gradients are kept twice: as `.grad` and in the buckets that are communicated",
                )
                .help("pass `gradient_as_bucket_view=True`")
                .since(1, 7)
                .fix(Fix::unsafe_("pass `gradient_as_bucket_view=True`", edit)),
            );
        }
    }
}

/// Whether what is wrapped has a few MB of parameters.
fn wraps_few_parameters(model: &Model<'_>, call: &Call<'_>) -> bool {
    let place = call.arg("module", 0).and_then(dotted_name);
    place.is_some_and(|place| has_few_parameters(model, model.func_of(call.ctx), &place))
}

/// Whether a loop over the parameters of what is wrapped froze some of them before: a head is left, and its gradients are few.
fn is_mostly_frozen(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(place) = call.arg("module", 0).and_then(dotted_name) else {
        return false;
    };
    let func = model.func_of(call.ctx);
    let mut frozen = model.assigns_in_function(func).filter(|assign| {
        assign.place.ends_with(".requires_grad")
            && assign.target.start() < call.node.start()
            && matches!(assign.expr, Some(Expr::BooleanLiteral(flag)) if !flag.value)
    });
    frozen.any(|assign| {
        model.loops_around(assign.ctx).next().is_some_and(|looped| {
            model.ctx(looped.ctx).parent.is_some_and(|around| model.is_inside(call.ctx, around))
                && model.calls_in_function(func).any(|each| {
                    looped.range.contains_range(each.node.range())
                        && matches!(each.method, Some("parameters" | "named_parameters"))
                        && each.recv_place().as_ref() == Some(&place)
                })
        })
    })
}

/// Whether what is wrapped is one layer of PyTorch, as in a trial: `DDP(nn.Conv2d(2, 3, 3))`.
fn is_single_layer(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(place) = call.arg("module", 0).and_then(dotted_name) else {
        return false;
    };
    let mut bound = model.assigns_to(model.func_of(call.ctx), &place).filter(|assign| assign.stmt != call.stmt).peekable();
    let is_layer = |made: &Call<'_>| {
        made.qual.as_deref().and_then(|qual| qual.strip_prefix("torch.nn.")).is_some_and(|layer| {
            ["Linear", "Conv", "BatchNorm", "LSTM", "GRU"].iter().any(|each| layer.starts_with(each))
        })
    };
    bound.peek().is_some()
        && bound.all(|assign| {
            let made = assign.expr.map(without_moves);
            made.is_some_and(|expr| model.calls.iter().any(|made| expr.range() == made.node.range() && is_layer(made)))
        })
}

/// `nn.Linear(2, 3)` of `nn.Linear(2, 3).cuda()`
fn without_moves(mut expr: &Expr) -> &Expr {
    while let Expr::Call(call) = expr
        && let Expr::Attribute(method) = &*call.func
        && matches!(method.attr.as_str(), "cuda" | "to")
    {
        expr = &*method.value;
    }
    expr
}

/// Whether the processes of a file only talk by gloo, by its name: on the CPU.
fn communicates_on_cpu(model: &Model<'_>) -> bool {
    let mut backends = model
        .calls
        .iter()
        .filter(|call| last_name(&call.node.func) == Some("init_process_group"))
        .map(|call| call.arg("backend", 0))
        .peekable();
    backends.peek().is_some()
        && backends.all(|backend| {
            matches!(backend, Some(Expr::StringLiteral(text)) if text.value.to_str() == "gloo")
        })
}

/// A model on the CPU, or the branch for the CPU: without devices, where the other branch has them.
fn is_for_cpu(model: &Model<'_>, call: &Call<'_>) -> bool {
    let names_device = |call: &Call<'_>| call.arg("device_ids", 1).is_some();
    let in_branch = |call: &Call<'_>| model.within_function(call.ctx).find(|id| {
        matches!(model.ctx(*id).kind, CtxKind::Branch(_))
    });
    call.args.first().is_some_and(|arg| arg.device == Device::Cpu)
        || (!names_device(call)
            && in_branch(call).is_some_and(|own| {
                model.calls_in_function(model.func_of(call.ctx)).any(|other| {
                    other.qual.as_deref().is_some_and(torch::is_ddp)
                        && names_device(other)
                        && in_branch(other).is_some_and(|branch| {
                            branch != own && model.ctx(branch).parent == model.ctx(own).parent
                        })
                })
            }))
}

/// Wrapped beside another model, and only that one's parameters go to an optimizer here.
fn is_untrained(model: &Model<'_>, call: &Call<'_>) -> bool {
    let func = model.func_of(call.ctx);
    let Some(own) = call.arg("module", 0).and_then(dotted_name) else {
        return false;
    };
    let optimized: Vec<String> = model
        .calls_in_function(func)
        .filter(|other| other.result.kind == Kind::Optimizer)
        .flat_map(|other| other.node.arguments.iter_source_order())
        .flat_map(|argument| names_in(argument.value()))
        .collect();
    let is_optimized = |place: &str| {
        optimized
            .iter()
            .any(|name| name == place || name.starts_with(&format!("{place}.")))
    };
    let mut others = model
        .calls_in_function(func)
        .filter(|other| other.qual.as_deref().is_some_and(torch::is_ddp))
        .filter_map(|other| other.arg("module", 0).and_then(dotted_name));
    !is_optimized(&own) && others.any(|other| other != own && is_optimized(&other))
}
