use oomph_python_source::ast::Expr;
use oomph_python_source::{dotted_name, last_name};

use crate::fix::{Applicability, Fix};
use crate::queries::devices::{mentions_gpu, on_cpu_only};
use crate::queries::loop_carried::{is_cleared_in, starts_in};
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Device;
use crate::semantic::{Call, Grad, Model};

declare_rule! {
    /// Outputs of the model are collected on the GPU.
    ///
    /// ## What it does
    ///
    /// Looks for `outputs.append(output)` in an evaluation loop over a loader where `output` comes
    /// straight from a model and is not moved to the CPU, where the names say that it is large: features,
    /// embeddings, masks, images.
    ///
    /// ## Why it costs memory
    ///
    /// The outputs of the whole dataset pile up on the GPU. With logits over a vocabulary or maps
    /// over pixels that is gigabytes, and joining them at the end needs the same again.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// @torch.no_grad()
    /// def evaluate(model, loader, device="cuda"):
    ///     model.eval()
    ///     features = []
    ///     for x, y in loader:
    ///         feature = model(x.to(device))
    ///         features.append(feature)
    ///     return torch.cat(features)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// @torch.no_grad()
    /// def evaluate(model, loader, device="cuda"):
    ///     model.eval()
    ///     features = []
    ///     for x, y in loader:
    ///         feature = model(x.to(device))
    ///         features.append(feature.cpu())
    ///     return torch.cat(features)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the outputs are small, such as one number per sample, or everything runs on the CPU.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: later code may expect the tensors on the GPU.
    OOM301 "outputs-collected-on-gpu" { fix: Sometimes, fresh: [2, 8] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if !mentions_gpu(model) || on_cpu_only(model) {
        return;
    }
    for call in &model.calls {
        if !call.is_method("append") || !matches!(call.grad, Grad::Off | Grad::CallerOff) {
            continue;
        }
        let (Some(value), Some(arg)) = (call.args.first(), call.node.arguments.find_positional(0))
        else {
            continue;
        };
        if !value.model_output
            || !value.is_tensor()
            || value.device == Device::Cpu
            || is_decoded(model, call)
            || !is_large(call)
        {
            continue;
        }
        let Some(list) = call.recv_expr().and_then(dotted_name) else {
            continue;
        };
        let func = model.func_of(call.ctx);
        let Some(looped) = model.loops_around(call.ctx).find(|each| each.data) else {
            continue;
        };
        if looped.contains_backward
            || starts_in(model, looped, &list)
            || is_cleared_in(model, looped, &list)
            || model.assigns_to(func, &list).next().is_none()
        {
            continue;
        }
        let fix = Fix::append(arg, ".cpu()", Applicability::Unsafe, "move each output to the CPU");
        out.push(
            Report::new(
                arg,
                format!("`{list}` collects the outputs of the whole dataset on the GPU"),
            )
            .help("call `.cpu()` on it first, or reduce it to what the metric needs")
            .fix(fix),
        );
    }
}

/// Whether the names say that what is collected is large: features, maps, images. Classes and numbers are not.
fn is_large(call: &Call<'_>) -> bool {
    const LARGE: &[&str] = &[
        "feat", "emb", "hidden", "repr", "latent", "mask", "heat", "depth", "recon", "attn", "attention", "map",
        "image", "img", "seg", "fake", "generated", "gallery", "vector", "logits_all", "flow", "patch", "frame", "descriptor",
    ];
    let arg = call.node.arguments.find_positional(0).and_then(dotted_name);
    [call.recv_place(), arg].into_iter().flatten().any(|name| {
        let name = name.to_ascii_lowercase();
        LARGE.iter().any(|word| name.contains(word))
    })
}

/// Whether the model is a conditional random field, which decodes to lists of numbers when it is not given the
/// labels: it says so in the file, or by the name of what makes it.
fn is_decoded(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(arg) = call.node.arguments.find_positional(0).and_then(dotted_name) else {
        return false;
    };
    let func = model.func_of(call.ctx);
    let Some(Expr::Call(pass)) = model
        .assigns_to(func, &arg)
        .last()
        .and_then(|assign| assign.expr)
    else {
        return false;
    };
    let is_crf = |name: &str| name.to_ascii_lowercase().contains("crf");
    let Some(place) = dotted_name(&pass.func) else {
        return false;
    };
    let made_as_one = model
        .assigns_to(func, &place)
        .chain(model.assigns_to(None, &place))
        .any(|assign| match assign.expr {
            Some(Expr::Call(made)) => last_name(&made.func).is_some_and(is_crf),
            _ => false,
        });
    let decodes = model
        .calls
        .iter()
        .find(|call| std::ptr::eq(call.node, pass))
        .and_then(|call| call.target)
        .is_some_and(|target| {
            model.calls_in_function(Some(target)).any(|inner| {
                inner.is_method("decode") && inner.recv_place().is_some_and(|place| is_crf(&place))
            })
        });
    is_crf(&place) || made_as_one || decodes
}
