use crate::rule::{Report, declare_rule};
use crate::semantic::Model;
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
    /// When the loader has a handful of batches.
    ///
    /// ## Fix safety
    ///
    /// No fix: the generator has to be a new function.
    OOM604 "cycle-keeps-batches" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if call.is("itertools.cycle")
            && call.args.first().is_some_and(|arg| arg.kind == Kind::Loader)
        {
            out.push(
                Report::new(call.node, "`itertools.cycle` keeps a copy of every batch")
                    .help("write a generator: `while True: yield from loader`"),
            );
        }
    }
}
