use oomph_python_source::Ranged;
use oomph_python_source::ast::Expr;

use crate::rule::{Report, declare_rule};
use crate::semantic::value::Device;
use crate::semantic::{Call, Model};

declare_rule! {
    /// An environment variable for CUDA is set after CUDA is in use.
    ///
    /// ## What it does
    ///
    /// Looks for assignments to `CUDA_VISIBLE_DEVICES` and `PYTORCH_CUDA_ALLOC_CONF` in
    /// `os.environ` that come after a use of CUDA in the same function or at module level.
    ///
    /// ## Why it costs memory
    ///
    /// Both are read once, when CUDA and PyTorch's allocator start. Set later, they are ignored: the
    /// job runs on GPU 0 next to another job, or without the allocator setting that it relies on.
    ///
    /// ## Example
    ///
    /// ```python
    /// import os
    /// import torch
    ///
    /// print(torch.cuda.get_device_name(0))
    /// os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import os
    ///
    /// os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    /// import torch
    ///
    /// print(torch.cuda.get_device_name(0))
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the variable is for child processes.
    ///
    /// ## Fix safety
    ///
    /// No fix: the line has to move to the top of the script.
    OOM704 "environment-set-too-late" { fix: None, fresh: [0, 2] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for assign in &model.assigns {
        if assign.place != "os.environ[]" {
            continue;
        }
        let Expr::Subscript(target) = assign.target else {
            continue;
        };
        let Expr::StringLiteral(key) = &*target.slice else {
            continue;
        };
        let key = key.value.to_str();
        if !matches!(
            key,
            "CUDA_VISIBLE_DEVICES" | "PYTORCH_CUDA_ALLOC_CONF" | "PYTORCH_ALLOC_CONF"
        ) {
            continue;
        }
        let func = model.func_of(assign.ctx);
        let used = model
            .calls_in_function(func)
            .find(|call| call.node.end() < target.start() && starts_cuda(call) && model.is_inside(assign.ctx, call.ctx));
        if let Some(used) = used {
            out.push(
                Report::new(
                    target,
                    format!("`{key}` is read when CUDA starts, and `{}` has started it", model.text(&*used.node.func)),
                )
                .help("set it before the first use of CUDA, or in the shell"),
            );
        }
    }
}

/// Whether a call starts CUDA.
fn starts_cuda(call: &Call<'_>) -> bool {
    if call.is_method("cuda") && call.qual.is_none() {
        return call.node.arguments.is_empty();
    }
    if call.is_method("to") {
        return call.args.first().is_some_and(|arg| arg.device == Device::Gpu);
    }
    call.qual.as_deref().is_some_and(|qual| {
        qual.strip_prefix("torch.cuda.").is_some_and(|name| {
            matches!(
                name,
                "is_available" | "set_device" | "current_device" | "get_device_name" | "init"
                    | "get_device_properties" | "mem_get_info"
            )
        })
    })
}
