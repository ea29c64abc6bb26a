use oomph_python_source::ast::Expr;
use oomph_python_source::{Ranged, dotted_name, last_name};

use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, Model};
use crate::semantic::value::Kind;

declare_rule! {
    /// `itertools.cycle` keeps every batch of a loader.
    ///
    /// ## What it does
    ///
    /// Looks for `itertools.cycle(loader)`.
    ///
    /// ## Why it costs memory
    ///
    /// `cycle` saves a copy of every item to play it again. Over a loader that is the whole dataset,
    /// batch by batch, in host memory (pinned, with `pin_memory=True`), or on the GPU if the loader
    /// yields GPU tensors. It also repeats the same shuffle and augmentation in every epoch.
    ///
    /// ## Example
    ///
    /// ```python
    /// import itertools
    /// import torch
    ///
    /// def train(train_loader):
    ///     for batch in itertools.cycle(train_loader):
    ///         pass
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def forever(train_loader):
    ///     while True:
    ///         yield from train_loader
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the loader has a handful of batches. What `list()` makes of the batches anyway, and lists of loaders, are left out.
    ///
    /// ## Fix safety
    ///
    /// No fix: the generator has to be a new function.
    OOM604 "cycle-keeps-batches" { fix: None, fresh: [9, 13] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if call.is("itertools.cycle")
            && call.args.first().is_some_and(|arg| arg.kind == Kind::Loader)
            && !is_kept_anyway(model, call)
            && !is_over_loaders(model, call)
        {
            out.push(
                Report::new(call.node, "`itertools.cycle` keeps a copy of every batch")
                    .help("write a generator: `while True: yield from loader`"),
            );
        }
    }
}

/// Whether a list is made of the batches anyway: `list(zip(range(n), cycle(loader)))`.
fn is_kept_anyway(model: &Model<'_>, cycle: &Call<'_>) -> bool {
    model.calls.iter().any(|call| {
        matches!(&*call.node.func, Expr::Name(name) if matches!(name.id.as_str(), "list" | "tuple"))
            && call.node.range().contains_range(cycle.node.range())
    })
}

/// Whether what is cycled over are loaders: `endless = cycle(loader)`, `loader = next(endless)`.
fn is_over_loaders(model: &Model<'_>, cycle: &Call<'_>) -> bool {
    let func = model.func_of(cycle.ctx);
    let Some(place) = cycle.node.arguments.find_positional(0).and_then(dotted_name) else {
        return false;
    };
    let is_of_cycle = |name: &str| {
        model.assigns_to(func, name).any(|assign| {
            assign.expr.is_some_and(|expr| expr.range() == cycle.node.range())
        })
    };
    model.assigns_to(func, &place).any(|assign| match assign.expr {
        Some(Expr::Call(call)) => {
            last_name(&call.func) == Some("next")
                && call.arguments.find_positional(0).and_then(dotted_name).is_some_and(|name| is_of_cycle(&name))
        }
        _ => false,
    })
}
