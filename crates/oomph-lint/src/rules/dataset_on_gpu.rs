use oomph_python_source::ast::Expr;
use oomph_python_source::last_name;

use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;
use crate::semantic::value::{Device, Kind, Tri};

declare_rule! {
    /// A dataset keeps its data on the GPU.
    ///
    /// ## What it does
    ///
    /// Looks for attributes that the constructor of a dataset fills with tensors on the GPU, and for a
    /// `TensorDataset` of tensors on the GPU.
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
    /// When the data is small: then it is a good way to feed the GPU. The source does not say how large it is,
    /// so the rule is off by default.
    ///
    /// ## Fix safety
    ///
    /// No fix: the training loop has to move the batch instead.
    OOM602 "dataset-on-gpu" { fix: None, default: false }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    check_tensor_datasets(model, out);
    for assign in &model.assigns {
        let Some(func) = model.func_of(assign.ctx) else {
            continue;
        };
        let info = model.func(func);
        if info.node.name.as_str() == "__init__"
            && info.class.is_some_and(|class| model.class(class).is_dataset)
            && assign.place.starts_with("self.")
            && (assign.value.kind == Kind::Tensor && assign.value.device == Device::Gpu
                || assign.expr.is_some_and(is_moved_to_device))
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

/// `tensor.to(device)`: the device that the job computes on, by its name.
fn is_moved_to_device(expr: &Expr) -> bool {
    let Expr::Call(call) = expr else { return false };
    let Expr::Attribute(method) = &*call.func else {
        return false;
    };
    let made = matches!(&*method.value, Expr::Call(inner) if matches!(
        last_name(&inner.func),
        Some("tensor" | "as_tensor" | "from_numpy" | "stack" | "cat" | "FloatTensor" | "LongTensor" | "float" | "long")
    ));
    method.attr.as_str() == "to"
        && made
        && call
            .arguments
            .find_positional(0)
            .and_then(last_name)
            .is_some_and(|name| name.to_ascii_lowercase().contains("device"))
}

/// `DataLoader(TensorDataset(x.cuda(), y))`: what the loader cuts into batches is on the GPU already.
fn check_tensor_datasets(model: &Model<'_>, out: &mut Vec<Report>) {
    let loads = model.calls.iter().any(|call| call.result.kind == Kind::Loader);
    for call in &model.calls {
        let is_dataset = call.is("torch.utils.data.TensorDataset")
            || call.is("torch.utils.data.dataset.TensorDataset");
        if !is_dataset || !loads || in_unit_test(model, call.ctx) {
            continue;
        }
        let on_gpu = call
            .args
            .iter()
            .any(|arg| arg.is_tensor() && arg.device == Device::Gpu && arg.graph != Tri::Yes);
        if on_gpu {
            out.push(
                Report::new(call.node, "this holds the whole dataset on the GPU")
                    .help("keep it on the CPU and move one batch at a time"),
            );
        }
    }
}
