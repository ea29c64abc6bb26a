use oomph_python_source::{Ranged, dotted_name, last_part};

use crate::queries::loop_carried::{base, feeds_backward};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, Grad, Model, torch};

declare_rule! {
    /// Training goes around `DistributedDataParallel`.
    ///
    /// ## What it does
    ///
    /// Looks for losses that come from a method of what `DistributedDataParallel` wraps, `net.module.loss(x)`, and go into
    /// `backward()`, where nothing in the file calls the wrapper itself.
    ///
    /// ## Why it costs memory
    ///
    /// Only the wrapper's own `forward` prepares its hooks: without it no gradient is averaged, and each process trains a model of its
    /// own. The buckets for the communication, one copy of the gradients, are allocated for nothing.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel
    ///
    /// def train(net, loader, optimizer, rank):
    ///     net = DistributedDataParallel(net, device_ids=[rank])
    ///     for x in loader:
    ///         optimizer.zero_grad()
    ///         loss = net.module.loss(x.to(rank))
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// Let `forward` return the loss:
    ///
    /// ```python
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel
    ///
    /// def train(net, loader, optimizer, rank):
    ///     net = DistributedDataParallel(net, device_ids=[rank], gradient_as_bucket_view=True)
    ///     for x in loader:
    ///         optimizer.zero_grad()
    ///         loss = net(x.to(rank))
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the file averages the gradients itself: nothing is said if it calls `all_reduce`.
    ///
    /// ## Fix safety
    ///
    /// No fix: the method has to become the model's `forward`.
    OOM707 "ddp-bypassed" { fix: None, fresh: [0, 0] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let wrappers = model.calls.iter().filter(|call| call.qual.as_deref().is_some_and(torch::is_ddp));
    let mut seen = Vec::new();
    for wrapper in wrappers {
        if model.module.text().contains("all_reduce") {
            return;
        }
        for call in passes_around(model, wrapper) {
            if !seen.contains(&call.node.range()) && !in_unit_test(model, call.ctx) {
                seen.push(call.node.range());
                out.push(
                    Report::new(
                        &*call.node.func,
                        "this goes around `DistributedDataParallel`: no gradient is averaged, and its buckets are allocated for nothing",
                    )
                    .help("let `forward` of the wrapped model return the loss, and call the wrapper"),
                );
            }
        }
    }
}

/// Whether training never calls a wrapper, only methods of what it wraps.
pub(super) fn is_bypassed(model: &Model<'_>, wrapper: &Call<'_>) -> bool {
    !passes_around(model, wrapper).is_empty()
}

/// The calls of methods of what is wrapped whose results go into a `backward()`, if nothing calls the wrapper by its name.
fn passes_around<'m, 'a>(model: &'m Model<'a>, wrapper: &Call<'a>) -> Vec<&'m Call<'a>> {
    let bound = model.assigns.iter().find(|assign| assign.stmt == wrapper.stmt);
    let Some(name) = bound.map(|assign| last_part(&assign.place)) else {
        return Vec::new();
    };
    let is_called = model.calls.iter().any(|call| {
        dotted_name(&call.node.func).is_some_and(|called| {
            let called = called.strip_suffix(".forward").unwrap_or(&called);
            last_part(called) == name
        })
    });
    if is_called {
        return Vec::new();
    }
    let inner = format!("{name}.module");
    let is_pass = |call: &&Call<'a>| {
        call.grad == Grad::On
            && !call.node.arguments.is_empty()
            && call.recv_place().is_some_and(|place| place == inner || place.ends_with(&format!(".{inner}")))
            && model.assigns.iter().any(|assign| {
                assign.stmt == call.stmt && feeds_backward(model, model.func_of(call.ctx), base(&assign.place))
            })
    };
    model.calls.iter().filter(is_pass).collect()
}
