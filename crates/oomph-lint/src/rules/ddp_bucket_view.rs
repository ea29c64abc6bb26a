use super::util::{add_keyword, trains};
use crate::fix::Fix;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Model, torch};

declare_rule! {
    /// `DistributedDataParallel` keeps gradients twice.
    ///
    /// ## What it does
    ///
    /// Looks for `DistributedDataParallel(…)` without `gradient_as_bucket_view` in files that train.
    ///
    /// ## Why it costs memory
    ///
    /// Gradients are copied into buckets for communication, so there are two of each. With
    /// `gradient_as_bucket_view=True` the gradients are views of the buckets: one copy of the
    /// parameters less at the peak, the same results, and a copy less in time.
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
    /// gradients to speak of.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: `detach_()` on gradients fails afterwards.
    OOM703 "ddp-copies-gradients" { fix: Sometimes, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if !trains(model) {
        return;
    }
    for call in &model.calls {
        if call.qual.as_deref().is_some_and(torch::is_ddp)
            && call.keyword("gradient_as_bucket_view").is_none()
            && !call.has_star_kwargs()
            && !call.has_star_args()
            && !call.node.arguments.is_empty()
        {
            let edit = add_keyword(model, call, "gradient_as_bucket_view=True");
            out.push(
                Report::new(
                    &*call.node.func,
                    "gradients are kept twice: as themselves and in the buckets that are communicated",
                )
                .help("pass `gradient_as_bucket_view=True`")
                .fix(Fix::unsafe_("pass `gradient_as_bucket_view=True`", edit)),
            );
        }
    }
}
