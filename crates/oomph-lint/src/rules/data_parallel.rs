use super::util::{is_data_parallel, trains};
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

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
        if is_data_parallel(call) {
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
