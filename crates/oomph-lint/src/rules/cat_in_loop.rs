use oomph_python_source::ast::Expr;
use oomph_python_source::{Ranged, dotted_name, last_name};

use crate::queries::devices::on_cpu_only;
use crate::queries::loop_carried::starts_in;
use crate::queries::model_calls::is_model_call;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Device;
use crate::semantic::{Bind, FuncId, Model};

declare_rule! {
    /// A tensor grows by `torch.cat` in a loop over batches.
    ///
    /// ## What it does
    ///
    /// Looks for `x = torch.cat([x, batch])` in a loop over a loader where `x` lives longer than
    /// one iteration and what is joined is on the GPU: a model made it, or something moved it.
    ///
    /// ## Why it costs memory
    ///
    /// Every iteration allocates a tensor one batch larger and copies the old one into it: both are
    /// alive at once, so the peak is twice the result, and the freed blocks are each too small for
    /// the next, which fragments the allocator's cache. The copying is quadratic.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// @torch.no_grad()
    /// def features(model, loader):
    ///     all_features = torch.empty(0, device="cuda")
    ///     for x in loader:
    ///         all_features = torch.cat([all_features, model(x)])
    ///     return all_features
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// @torch.no_grad()
    /// def features(model, loader):
    ///     parts = []
    ///     for x in loader:
    ///         parts.append(model(x).cpu())
    ///     return torch.cat(parts)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the tensors are small.
    ///
    /// ## Fix safety
    ///
    /// No fix: the joined tensor may be read inside the loop.
    OOM302 "cat-in-loop" { fix: None, fresh: [1, 5] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for assign in &model.assigns {
        let (Bind::Set, Some(expr)) = (assign.bind, assign.expr) else {
            continue;
        };
        // `all = part if all is None else torch.cat([all, part])`
        let node = match expr {
            Expr::Call(node) => node,
            Expr::If(choice) => match (&*choice.body, &*choice.orelse) {
                (_, Expr::Call(node)) | (Expr::Call(node), _) => node,
                _ => continue,
            },
            _ => continue,
        };
        let Some(call) = model.calls.iter().find(|call| std::ptr::eq(call.node, node)) else {
            continue;
        };
        if !["torch.cat", "torch.concat", "torch.hstack", "torch.vstack"]
            .iter()
            .any(|name| call.is(name))
        {
            continue;
        }
        let parts = match call.arg("tensors", 0) {
            Some(Expr::List(list)) => &list.elts,
            Some(Expr::Tuple(tuple)) => &tuple.elts,
            _ => continue,
        };
        let grows = parts
            .iter()
            .any(|part| dotted_name(part).as_deref() == Some(assign.place.as_str()));
        let Some(looped) = model.loops_around(assign.ctx).next() else {
            continue;
        };
        // `torch.FloatTensor()` is a tensor on the CPU, and takes no other.
        let func = model.func_of(assign.ctx);
        let made_on_cpu = model.assigns_to(func, &assign.place).any(|each| {
            matches!(each.expr, Some(Expr::Call(made))
                if last_name(&made.func).is_some_and(|name| name.ends_with("Tensor") && name != "Tensor"))
                && each.value.device == Device::Cpu
        });
        // A part that was moved to the CPU, or came from the loader and was never moved.
        let part_on_cpu = parts.iter().filter_map(dotted_name).any(|part| {
            let mut bound = model.assigns_to(func, &part).filter(|each| {
                part != assign.place && each.target.start() < node.start()
            }).peekable();
            bound.peek().is_some()
                && bound.all(|each| {
                    each.value.device == Device::Cpu
                        || (each.bind == Bind::Other && each.value.is_tensor())
                })
        });
        let on_cpu = made_on_cpu || part_on_cpu || on_cpu_only(model);
        // What a model computes, or what was moved, is on the GPU; what is only read from a file is not.
        let is_computed = call.result.device == Device::Gpu
            || parts.iter().any(|part| is_on_gpu(model, func, part, &assign.place, 0));
        if grows && looped.data && !on_cpu && is_computed && !starts_in(model, looped, &assign.place) {
            out.push(
                Report::new(
                    node,
                    format!("`{}` is copied into a larger tensor in every iteration", assign.place),
                )
                .help("collect the parts in a list and join them once, after the loop"),
            );
        }
    }
}

/// Whether a part of what is joined is on the GPU: a model made it, or something moved it there.
fn is_on_gpu(
    model: &Model<'_>,
    func: Option<FuncId>,
    part: &Expr,
    place: &str,
    depth: usize,
) -> bool {
    /// Names behind names.
    const MAX_DEPTH: usize = 2;
    let shows = |expr: &Expr| {
        !model.text(expr).contains(".cpu()")
            && model.calls_in_function(func).any(|call| {
                expr.range().contains_range(call.node.range())
                    && call.result.device != Device::Cpu
                    && (is_model_call(call) || matches!(call.method, Some("cuda" | "to")))
            })
    };
    let base = match part {
        // `outputs["features"]`
        Expr::Subscript(item) => &*item.value,
        other => other,
    };
    shows(part)
        || depth < MAX_DEPTH
            && dotted_name(base).is_some_and(|name| {
                name != place
                    && model.assigns_to(func, &name).any(|assign| {
                        assign.value.model_output
                            || assign.expr.is_some_and(|expr| {
                                is_on_gpu(model, func, expr, place, depth + 1)
                            })
                    })
            })
}
