use oomph_python_source::ast::Stmt;
use oomph_python_source::{Ranged, last_part};

use crate::queries::accumulation::accumulations;
use crate::queries::model_calls::{is_model_call, model_place};
use crate::queries::purpose::{has_managed_loop, in_unit_test};
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, Loop, Model, torch};

declare_rule! {
    /// Gradient accumulation communicates in every `backward()`.
    ///
    /// ## What it does
    ///
    /// Looks for loops that accumulate gradients of a model that the file wraps in `DistributedDataParallel`, where
    /// neither `no_sync()` nor `require_backward_grad_sync` is named: steps under a modulo test, and loops over a number of
    /// accumulation steps or micro-batches with `step()` after them.
    ///
    /// ## Why it costs memory
    ///
    /// None; it costs time. Every `backward()` averages all gradients across the processes, and only the average of the last one is
    /// wanted: N steps of accumulation send N times as much.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel
    ///
    /// def train(net, loader, optimizer, rank, steps):
    ///     net = DistributedDataParallel(net, device_ids=[rank], gradient_as_bucket_view=True)
    ///     for i, (x, y) in enumerate(loader):
    ///         loss = torch.nn.functional.cross_entropy(net(x.to(rank)), y.to(rank)) / steps
    ///         loss.backward()
    ///         if (i + 1) % steps == 0 or i + 1 == len(loader):
    ///             optimizer.step()
    ///             optimizer.zero_grad()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import contextlib
    ///
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel
    ///
    /// def train(net, loader, optimizer, rank, steps):
    ///     net = DistributedDataParallel(net, device_ids=[rank], gradient_as_bucket_view=True)
    ///     for i, (x, y) in enumerate(loader):
    ///         last = (i + 1) % steps == 0 or i + 1 == len(loader)
    ///         with contextlib.nullcontext() if last else net.no_sync():
    ///             loss = torch.nn.functional.cross_entropy(net(x.to(rank)), y.to(rank)) / steps
    ///             loss.backward()
    ///         if last:
    ///             optimizer.step()
    ///             optimizer.zero_grad()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another file turns synchronization off.
    ///
    /// ## Fix safety
    ///
    /// No fix: the last `backward()` of an accumulation has to communicate.
    OOM708 "accumulation-communicates" { fix: None, fresh: [0, 0] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let text = model.module.text();
    let wrapped: Vec<&str> = model
        .calls
        .iter()
        .filter(|call| call.qual.as_deref().is_some_and(torch::is_ddp))
        .filter_map(|call| model.assigns.iter().find(|assign| assign.stmt == call.stmt))
        .map(|assign| last_part(&assign.place))
        .collect();
    let decides = ["no_sync", "require_backward_grad_sync"].iter().any(|name| text.contains(name));
    if wrapped.is_empty() || decides || has_managed_loop(model) {
        return;
    }
    let by_modulo = accumulations(model).into_iter().map(|each| each.looped);
    let by_loop = model.loops.iter().filter(|each| is_of_micro_batches(model, each));
    let mut seen = Vec::new();
    for looped in by_modulo.chain(by_loop) {
        let inside = |call: &Call<'_>| looped.range.contains_range(call.node.range());
        let runs_wrapped = model.calls.iter().any(|call| {
            inside(call) && is_model_call(call) && model_place(call).is_some_and(|place| wrapped.contains(&last_part(&place)))
        });
        let backward = model.backwards.iter().map(|each| &model.calls[each.call]).find(|call| inside(call));
        let Some(backward) = backward.filter(|_| runs_wrapped && !in_unit_test(model, looped.ctx)) else {
            continue;
        };
        if !seen.contains(&backward.node.range()) {
            seen.push(backward.node.range());
            out.push(
                Report::new(backward.node, "every `backward()` of the accumulation averages all gradients across the processes")
                    .help("run all but the last one under `with model.no_sync():`"),
            );
        }
    }
}

/// `for micro_step in range(gradient_accumulation_steps):` with `step()` after it.
fn is_of_micro_batches(model: &Model<'_>, looped: &Loop<'_>) -> bool {
    let over = model.stmts.iter().find_map(|info| match info.node {
        Stmt::For(node) if node.range == looped.range => Some(model.text(&*node.iter).to_ascii_lowercase()),
        _ => None,
    });
    let func = model.func_of(looped.ctx);
    let mut steps = model.calls_in_function(func).filter(|call| call.is_step()).peekable();
    looped.trains
        && over.is_some_and(|over| over.starts_with("range(") && (over.contains("accum") || over.contains("micro")))
        && steps.peek().is_some()
        && steps.all(|call| call.node.start() > looped.range.end())
}
