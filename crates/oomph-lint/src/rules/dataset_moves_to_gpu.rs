use oomph_python_source::dotted_name;

use crate::queries::devices::moves_to_gpu;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// A dataset moves samples to the GPU.
    ///
    /// ## What it does
    ///
    /// Looks for `.cuda()` and `.to("cuda")` in `__getitem__` of a dataset and in functions given as
    /// `collate_fn`.
    ///
    /// ## Why it costs memory
    ///
    /// With `num_workers`, this code runs in the workers: each opens its own CUDA context (hundreds
    /// of MiB per worker), or fails with "Cannot re-initialize CUDA in forked subprocess".
    /// Prefetched batches pile up on the GPU instead of in host memory.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// class Images(torch.utils.data.Dataset):
    ///     def __getitem__(self, index):
    ///         return self.images[index].cuda()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// class Images(torch.utils.data.Dataset):
    ///     def __getitem__(self, index):
    ///         return self.images[index]
    /// ```
    ///
    /// and `x = x.to("cuda", non_blocking=True)` in the training loop, with `pin_memory=True`.
    ///
    /// ## When it is wrong
    ///
    /// When the loader has no workers and speed does not matter.
    ///
    /// ## Fix safety
    ///
    /// No fix: the move belongs in another place.
    OOM601 "dataset-moves-to-gpu" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let collates: Vec<String> = model
        .calls
        .iter()
        .filter_map(|call| call.keyword("collate_fn"))
        .filter_map(dotted_name)
        .collect();
    for call in &model.calls {
        if !moves_to_gpu(call) {
            continue;
        }
        let Some(func) = model.func_of(call.ctx) else {
            continue;
        };
        let info = model.func(func);
        let name = info.node.name.as_str();
        let in_dataset = matches!(name, "__getitem__" | "__getitems__")
            && info.class.is_some_and(|class| model.class(class).is_dataset);
        let in_collate = info.class.is_none() && collates.iter().any(|each| each == name);
        if in_dataset || in_collate {
            out.push(
                Report::new(
                    call.node,
                    format!("`{name}` runs in the loader's workers: each opens its own CUDA context"),
                )
                .help("return CPU tensors, and move the batch in the training loop"),
            );
        }
    }
}
