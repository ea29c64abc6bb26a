use oomph_python_source::{Ranged, dotted_name};

use crate::fix::Fix;
use crate::queries::devices::on_cpu_only;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Assign, Bind, Model, torch};

declare_rule! {
    /// The last `backward()` of a step retains its graph.
    ///
    /// ## What it does
    ///
    /// Looks for `backward(retain_graph=True)` in a training loop that runs no other `backward()`
    /// or `autograd.grad()` after it in the iteration.
    ///
    /// ## Why it costs memory
    ///
    /// A `backward()` frees the activations as it goes. With `retain_graph=True` all of them stay
    /// until the loss is overwritten: through the optimizer step and the whole forward of the next
    /// iteration, so two graphs are alive at the peak instead of one.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y)
    ///         loss.backward(retain_graph=True)
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
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y)
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When part of the graph is built once, before the loop, and used in every iteration. An inner loop whose
    /// outer loop runs `backward()` afterwards is left out.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: a graph that is shared by iterations cannot be run through twice without it.
    OOM105 "graph-retained" { fix: Sometimes, default: false }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for backward in &model.backwards {
        let call = &model.calls[backward.call];
        let retains = call
            .keyword("retain_graph")
            .is_some_and(|value| value.as_boolean_literal_expr().is_some_and(|flag| flag.value));
        if !retains {
            continue;
        }
        let Some(looped) = model.training_loop(call.ctx) else {
            continue;
        };
        let inner_loop = model.loops_around(call.ctx).next().map(|each| each.ctx);
        let another = model.calls.iter().any(|other| {
            let runs_backward = matches!(other.method, Some("backward" | "manual_backward"))
                || other.is("torch.autograd.grad")
                || other
                    .target
                    .is_some_and(|target| model.func(target).has_backward);
            runs_backward
                && other.node.start() > call.node.start()
                && model.is_inside(other.ctx, looped.ctx)
        });
        // Steps of a loop inside another one that runs backward afterwards: critics, and then the generator through
        // the fake that they were shown.
        let around_it = model
            .loops_around(call.ctx)
            .skip_while(|each| each.ctx != looped.ctx)
            .nth(1);
        let outer_step = around_it.is_some_and(|around_it| {
            model.backwards.iter().any(|other| {
                model.calls[other.call].node.start() > looped.range.end()
                    && model.is_inside(other.ctx, around_it.ctx)
            })
        });
        // A loop over several outputs of one graph runs backward from each.
        let from_each = model
            .assigns
            .iter()
            .any(|assign| {
                assign.bind == Bind::Other
                    && model.loops_around(call.ctx).any(|each| {
                        each.ctx == assign.ctx && each.range.contains_range(call.node.range())
                    })
                    && dotted_name(backward.target).as_deref() == Some(assign.place.as_str())
            });
        // Made before the loop: the next pass runs through the same graph.
        let made_before = dotted_name(backward.target).is_some_and(|place| {
            model
                .assigns_to(model.func_of(call.ctx), &place)
                .all(|assign| assign.target.start() < looped.range.start())
        });
        // The gradient that it begins with is on the CPU, and so is the graph.
        let on_cpu = call.arg("gradient", 0).is_some_and(|gradient| {
            dotted_name(gradient).is_some_and(|place| {
                model
                    .assigns_to(model.func_of(call.ctx), &place)
                    .last()
                    .is_some_and(|assign| is_made_on_cpu(model, assign))
            })
        });
        // An inner loop of backwards over one graph: this is also the next one.
        if another || made_before || on_cpu || outer_step || from_each || inner_loop != Some(looped.ctx) || on_cpu_only(model) {
            continue;
        }
        let fix = model.module.remove_keyword(call.node, "retain_graph")
            .map(|edit| Fix::unsafe_("remove `retain_graph`", edit));
        out.push(
            Report::new(
                call.node,
                "the graph is retained, and nothing in this step runs through it again",
            )
            .help("call `backward()` without `retain_graph`; detach what the next step reuses")
            .fix(fix),
        );
    }
}

/// `torch.zeros(n)`: made by PyTorch, and no device is named.
fn is_made_on_cpu(model: &Model<'_>, made: &Assign<'_>) -> bool {
    model.calls.iter().any(|call| {
        made.expr.is_some_and(|expr| expr.range() == call.node.range())
            && call.qual.as_deref().is_some_and(torch::is_factory)
            && call.keyword("device").is_none()
    })
}
