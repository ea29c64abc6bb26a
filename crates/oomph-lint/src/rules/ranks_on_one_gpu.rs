use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, Model, torch};

declare_rule! {
    /// All ranks use the first GPU.
    ///
    /// ## What it does
    ///
    /// Looks for scripts that wrap a model in `DistributedDataParallel` and move it with a bare
    /// `.cuda()` or `.to("cuda")`, and nowhere choose a device per process.
    ///
    /// ## Why it costs memory
    ///
    /// `"cuda"` is the current device, and that is GPU 0 in every process until `set_device` says
    /// otherwise: all models land on one GPU.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// def main(model):
    ///     torch.distributed.init_process_group("nccl")
    ///     model = DDP(model.cuda())
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import os
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// def main(model):
    ///     torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    ///     torch.distributed.init_process_group("nccl")
    ///     model = DDP(model.cuda(), gradient_as_bucket_view=True)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the launcher shows each process one GPU, or another file sets the device.
    ///
    /// ## Fix safety
    ///
    /// No fix: where the rank comes from depends on the launcher.
    OOM702 "ranks-on-one-gpu" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let chooses = [
        "set_device", "VISIBLE_DEVICES", "device_ids", "local_rank", "LOCAL_RANK", "cuda:", "torch.cuda.device(",
        "rank)", "rank %", "gpu)",
    ]
    .iter()
    .any(|text| model.module.text().contains(text));
    let distributed = model
        .calls
        .iter()
        .any(|call| call.is("torch.distributed.init_process_group"));
    if chooses || !distributed {
        return;
    }
    // A branch of its own, as for `not distributed`, never gets to the wrapper.
    let is_wrapped_after = |moved: &Call<'_>| {
        model.calls.iter().any(|call| {
            call.qual.as_deref().is_some_and(torch::is_ddp)
                && (model.func_of(call.ctx) != model.func_of(moved.ctx)
                    || model.is_inside(call.ctx, moved.ctx))
        })
    };
    let moved = model.calls.iter().find(|call| {
        call.is_method("cuda")
            && call.recv.is_model()
            && call.args.is_empty()
            && is_wrapped_after(call)
    });
    if let Some(call) = moved {
        out.push(
            Report::new(call.node, "every rank puts its model on GPU 0")
                .help("call `torch.cuda.set_device(local_rank)` before the first use of CUDA"),
        );
    }
}
