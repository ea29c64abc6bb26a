use crate::rule::{Report, declare_rule};
use crate::semantic::Model;
use crate::semantic::value::{Device, Kind};

declare_rule! {
    /// A dataset keeps its data on the GPU.
    ///
    /// ## What it does
    ///
    /// Looks for attributes that the constructor of a dataset fills with tensors on the GPU.
    ///
    /// ## Why it costs memory
    ///
    /// All of the data takes room on the GPU for as long as training runs, though a step needs one
    /// batch of it.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// class Rows(torch.utils.data.Dataset):
    ///     def __init__(self, rows):
    ///         self.rows = torch.tensor(rows).cuda()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// class Rows(torch.utils.data.Dataset):
    ///     def __init__(self, rows):
    ///         self.rows = torch.tensor(rows)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the data is small: then it is a good way to feed the GPU.
    ///
    /// ## Fix safety
    ///
    /// No fix: the training loop has to move the batch instead.
    OOM602 "dataset-on-gpu" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for assign in &model.assigns {
        let Some(func) = model.func_of(assign.ctx) else {
            continue;
        };
        let info = model.func(func);
        if info.node.name.as_str() == "__init__"
            && info.class.is_some_and(|class| model.class(class).is_dataset)
            && assign.place.starts_with("self.")
            && assign.value.kind == Kind::Tensor
            && assign.value.device == Device::Gpu
        {
            out.push(
                Report::new(
                    assign.target,
                    format!("`{}` holds the whole dataset on the GPU", assign.place),
                )
                .help("keep it on the CPU and move one batch at a time"),
            );
        }
    }
}
