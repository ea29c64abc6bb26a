use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, dotted_name};

use crate::queries::model_calls::is_data_parallel;
use crate::queries::purpose::{in_unit_test, is_eval_name, trains};
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Call, Model};

declare_rule! {
    /// `DataParallel` puts the largest load on the first GPU.
    ///
    /// ## What it does
    ///
    /// Looks for `nn.DataParallel(…)` in files that train.
    ///
    /// ## Why it costs memory
    ///
    /// The first GPU holds the parameters, the optimizer's state, the gathered outputs and the
    /// gradients of all replicas: it runs out first, while the others are half empty. The model is
    /// copied to every GPU again in each forward pass. PyTorch recommends
    /// `DistributedDataParallel`, even on one machine.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// import torch.nn as nn
    ///
    /// def prepare(model):
    ///     model = nn.DataParallel(model)
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
    /// When it only wraps a model to match the names in a checkpoint.
    ///
    /// ## Fix safety
    ///
    /// No fix: the script has to be started once per GPU.
    OOM701 "data-parallel" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // For inference, the wrapper is often there for the names in a checkpoint only.
    if !trains(model) {
        return;
    }
    for call in &model.calls {
        let on_one_gpu = matches!(call.arg("device_ids", 1), Some(Expr::List(list)) if list.elts.len() == 1);
        if is_data_parallel(call)
            && !on_one_gpu
            && !in_unit_test(model, call.ctx)
            && !only_evaluates(model, call)
        {
            out.push(
                Report::new(
                    &*call.node.func,
                    "`DataParallel` gathers outputs and gradients on the first GPU: it fills up first",
                )
                .help("use `DistributedDataParallel`, one process per GPU"),
            );
        }
    }
}

/// Whether the function that wraps puts the wrapped model in evaluation mode and trains nothing.
fn only_evaluates(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(func) = model.func_of(call.ctx) else {
        return false;
    };
    if model.func_name(call.ctx).is_some_and(is_eval_name) && !model.func(func).has_backward {
        return true;
    }
    let Stmt::Assign(assign) = model.stmt(call.stmt).node else {
        return false;
    };
    let place = assign.targets.first().and_then(dotted_name);
    let facts = model.func(func);
    !facts.has_backward
        && !facts.has_step
        && model.calls_in_function(Some(func)).any(|other| {
            other.is_method("eval")
                && other.node.start() > call.node.start()
                && other.recv_place() == place
        })
        && !model.calls_in_function(Some(func)).any(|other| {
            other.result.kind == Kind::Optimizer || other.is_method("train")
        })
}
