use crate::queries::accumulation::stepped_optimizer;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// Gradients are cleared between `backward()` and `step()`.
    ///
    /// ## What it does
    ///
    /// Looks for `backward()`, `zero_grad()` and `step()` of one optimizer in this order in a
    /// block, with no other `backward()` in between.
    ///
    /// ## Why it costs memory
    ///
    /// The whole backward pass, its memory and its time, is thrown away: the optimizer steps
    /// without gradients.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         loss = criterion(model(x), y)
    ///         loss.backward()
    ///         optimizer.zero_grad()
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
    ///         loss = criterion(model(x), y)
    ///         optimizer.zero_grad()
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the gradients were copied elsewhere in between.
    ///
    /// ## Fix safety
    ///
    /// No fix: training changes.
    OOM412 "gradients-cleared-before-step" { fix: None, fresh: [0, 4] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for zero in &model.calls {
        if !zero.is_zero_grad() {
            continue;
        }
        let info = model.stmt(zero.stmt);
        let in_block = |call: &crate::semantic::Call<'_>| {
            let other = model.stmt(call.stmt);
            std::ptr::eq(other.block, info.block).then_some(other.index)
        };
        let place = zero.recv_place();
        let step = model.calls.iter().find_map(|call| {
            let index = in_block(call)?;
            (index > info.index && stepped_optimizer(call).is_some() && stepped_optimizer(call) == place)
                .then_some(index)
        });
        let Some(step) = step else { continue };
        let backwards: Vec<usize> = model
            .backwards
            .iter()
            .filter_map(|each| in_block(&model.calls[each.call]))
            .collect();
        let before = backwards.iter().filter(|at| **at < info.index).max();
        let between = info.block.get(info.index + 1..step).unwrap_or_default();
        // Anything that is not a plain statement in between may compute gradients.
        let computes = between.iter().any(|stmt| {
            let text = model.text(stmt);
            text.contains("backward") || text.contains("grad") || text.contains("closure")
        });
        // Another step between that backward and here has used the gradients.
        let used = before.is_some_and(|before| {
            model.calls.iter().any(|call| {
                in_block(call).is_some_and(|at| at > *before && at < info.index)
                    && (call.is_step() || call.is_method("step"))
            })
        });
        if before.is_some() && !computes && !used {
            out.push(
                Report::new(
                    zero.node,
                    "the gradients of the `backward()` above are cleared before they are stepped",
                )
                .help("call `zero_grad()` before `backward()` or after `step()`"),
            );
        }
    }
}
