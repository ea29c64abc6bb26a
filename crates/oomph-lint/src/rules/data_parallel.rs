use super::util::is_data_parallel;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// `DataParallel` puts the largest load on the first GPU.
    ///
    /// ## What it does
    ///
    /// Looks for `nn.DataParallel(…)`.
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
    /// import torch.nn as nn
    ///
    /// def wrap(model):
    ///     return nn.DataParallel(model)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// from torch.nn.parallel import DistributedDataParallel
    ///
    /// def wrap(model, rank):
    ///     return DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
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
