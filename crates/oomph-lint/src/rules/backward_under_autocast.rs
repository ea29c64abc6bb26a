use oomph_python_source::Ranged;
use oomph_python_source::ast::{Expr, Stmt};

use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Device;
use crate::semantic::{Call, CtxKind, Model, torch};

declare_rule! {
    /// `backward()` runs under autocast.
    ///
    /// ## What it does
    ///
    /// Looks for `backward()` inside a `with autocast` block.
    ///
    /// ## Why it costs memory
    ///
    /// Autocast keeps the half-precision copies of the weights that it makes until its block ends.
    /// With `backward()` inside, that cache is alive at the peak, beside the gradients. PyTorch
    /// advises against it: backward operations already run in the types of the forward ones.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         with torch.autocast("cuda", dtype=torch.bfloat16):
    ///             loss = criterion(model(x), y)
    ///             loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         with torch.autocast("cuda", dtype=torch.bfloat16):
    ///             loss = criterion(model(x), y)
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the block disables autocast at run time.
    ///
    /// ## Fix safety
    ///
    /// No fix: the block may hold more than the forward pass.
    OOM815 "backward-under-autocast" { fix: None, fresh: [0, 0] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for backward in &model.backwards {
        let call = &model.calls[backward.call];
        if !call.is_method("backward") || in_unit_test(model, call.ctx) {
            continue;
        }
        let inside = model.within_function(call.ctx).any(|id| {
            let CtxKind::With(node) = model.ctx(id).kind else {
                return false;
            };
            node.items.iter().any(|item| {
                let Expr::Call(context) = &item.context_expr else {
                    return false;
                };
                model
                    .calls
                    .iter()
                    .find(|other| std::ptr::eq(other.node, context))
                    .is_some_and(|other| {
                        other.qual.as_deref().is_some_and(torch::is_autocast)
                            && !other.args.first().is_some_and(|arg| arg.device == Device::Cpu)
                            && !other.keyword("enabled").is_some_and(|value| {
                                value.as_boolean_literal_expr().is_some_and(|flag| !flag.value)
                                    || is_in_else_of(model, call, value)
                            })
                    })
            })
        });
        if inside {
            out.push(
                Report::new(call.node, "autocast keeps its half-precision copies of the weights through this `backward()`")
                    .help("end the `with` block before `backward()`"),
            );
        }
    }
}

/// Whether the call is in the `else` of `if flag:`, for the flag that turns autocast on.
fn is_in_else_of(model: &Model<'_>, call: &Call<'_>, flag: &Expr) -> bool {
    model.stmts.iter().any(|info| {
        let Stmt::If(node) = info.node else {
            return false;
        };
        model.text(&*node.test) == model.text(flag)
            && node
                .elif_else_clauses
                .iter()
                .any(|clause| clause.test.is_none() && clause.range.contains_range(call.node.range()))
    })
}
