use oomph_python_source::Ranged;
use oomph_python_source::ast::{Expr, Stmt};

use crate::queries::devices::on_cpu_only;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Device;
use crate::semantic::{Call, Model};

declare_rule! {
    /// A parameter is moved to the GPU where it is made, and is none any more.
    ///
    /// ## What it does
    ///
    /// Looks for `self.weight = nn.Parameter(…).to(device)`, or `.cuda()`, in a module. What is moved to the CPU is left out.
    ///
    /// ## Why it costs memory
    ///
    /// `to()` returns a new tensor that autograd made from the parameter. The module does not know the parameter, so no optimizer
    /// trains it, and nothing clears its gradient: each `backward()` waits, copies that gradient to the CPU and adds it up there.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torch import nn
    ///
    /// class Proxies(nn.Module):
    ///     def __init__(self, classes, width):
    ///         super().__init__()
    ///         self.proxies = nn.Parameter(torch.randn(classes, width)).cuda()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from torch import nn
    ///
    /// class Proxies(nn.Module):
    ///     def __init__(self, classes, width):
    ///         super().__init__()
    ///         self.proxies = nn.Parameter(torch.randn(classes, width, device="cuda"))
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// On the CPU, where `to()` returns the parameter itself.
    ///
    /// ## Fix safety
    ///
    /// No fix: the weight is trained from then on.
    OOM417 "parameter-moved-at-once" { fix: None, fresh: [0, 0] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if moves_parameter(model, call) && is_kept_by_a_module(model, call) && !on_cpu_only(model) {
            out.push(
                Report::new(call.node, "what is moved is no parameter any more: the module does not know it, and no optimizer trains it")
                    .help("move the tensor inside: `nn.Parameter(tensor.to(device))`, or only the module"),
            );
        }
    }
}

/// `nn.Parameter(…).to(device)`
fn moves_parameter(model: &Model<'_>, call: &Call<'_>) -> bool {
    let is_move = match call.method {
        Some("cuda") => true,
        // `to(torch.float16)` makes another tensor as well, but for the type that it has.
        Some("to") => call.args.first().is_some_and(|place| place.device != Device::Cpu) && !model.text(&call.node.arguments).contains("torch.float"),
        _ => false,
    };
    is_move
        && call.result.device != Device::Cpu
        && call.recv_expr().is_some_and(|made| {
            model.calls.iter().any(|other| {
                other.node.range() == made.range() && (other.is("torch.nn.Parameter") || other.is("torch.nn.parameter.Parameter"))
            })
        })
}

/// Whether a statement makes what a call gives an attribute of a module, and nothing else.
fn is_kept_by_a_module(model: &Model<'_>, call: &Call<'_>) -> bool {
    let of_module = model.ctx(call.ctx).class.is_some_and(|class| model.class(class).is_module);
    of_module
        && matches!(model.stmt(call.stmt).node, Stmt::Assign(assign)
            if assign.value.range() == call.node.range()
                && matches!(&*assign.targets, [Expr::Attribute(target)] if model.text(&*target.value) == "self"))
}
