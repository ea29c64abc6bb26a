use crate::rule::{Report, declare_rule};
use crate::semantic::Model;
use super::loss_collected_with_graph::collected;

declare_rule! {
    /// Outputs of the model are collected with their graphs.
    ///
    /// ## What it does
    ///
    /// Looks for `outputs.append(output)` where `output` comes from a model with its graph, and the
    /// list lives longer than one iteration: in training loops, in evaluation, and in scripts that run
    /// inference at their top.
    ///
    /// ## Why it costs memory
    ///
    /// An output refers to its graph, and to itself as an activation on the GPU. Collected over an
    /// epoch for a metric, that is one batch of predictions and one graph per step, never freed. Where
    /// no `backward()` runs, each graph still holds all activations of its forward pass.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     predictions = []
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         output = model(x)
    ///         criterion(output, y).backward()
    ///         optimizer.step()
    ///         predictions.append(output)
    ///     return predictions
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     predictions = []
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         output = model(x)
    ///         criterion(output, y).backward()
    ///         optimizer.step()
    ///         predictions.append(output.detach().cpu())
    ///     return predictions
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another function calls `backward()` on what is collected.
    ///
    /// ## Fix safety
    ///
    /// Safe: the fix detaches and leaves the tensors where they are; moving them to the CPU is up
    /// to you.
    OOM103 "output-collected-with-graph" { fix: Sometimes, fresh: [1, 7] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for (report, is_output) in collected(model) {
        if is_output {
            out.push(report);
        }
    }
}
