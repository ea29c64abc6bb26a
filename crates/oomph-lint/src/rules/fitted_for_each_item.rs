use oomph_python_source::ast::Expr;

use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, Model};

declare_rule! {
    /// A data set fits the same data for each item.
    ///
    /// ## What it does
    ///
    /// Looks for `fit()` or `fit_transform()` in the `__getitem__` of a data set that is given nothing but attributes of the data set:
    /// all labels, not those of one item.
    ///
    /// ## Why it costs memory
    ///
    /// It costs time: the result is the same each time, and takes as long as all labels need. The GPU waits for the loader with all
    /// that it holds.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from sklearn.preprocessing import LabelEncoder
    /// from torch.utils.data import Dataset
    ///
    /// class Calls(Dataset):
    ///     def __init__(self, sounds, labels):
    ///         self.sounds, self.labels = sounds, labels
    ///
    ///     def __getitem__(self, index):
    ///         return self.sounds[index], LabelEncoder().fit_transform(self.labels)[index]
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from sklearn.preprocessing import LabelEncoder
    /// from torch.utils.data import Dataset
    ///
    /// class Calls(Dataset):
    ///     def __init__(self, sounds, labels):
    ///         self.sounds, self.labels = sounds, LabelEncoder().fit_transform(labels)
    ///
    ///     def __getitem__(self, index):
    ///         return self.sounds[index], self.labels[index]
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the attribute changes with each item.
    ///
    /// ## Fix safety
    ///
    /// No fix: it belongs into another method.
    OOM616 "fitted-for-each-item" { fix: None, fresh: [0, 0] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let of_data_set = || model.ctx(call.ctx).class.is_some_and(|class| model.class(class).is_dataset);
        if fits_attributes(call) && model.func_name(call.ctx) == Some("__getitem__") && of_data_set() && !in_unit_test(model, call.ctx) {
            out.push(
                Report::new(call.node, "this fits the same data again for each item")
                    .help("fit once, in `__init__`, and look the item up here"),
            );
        }
    }
}

/// `encoder.fit_transform(self.labels)`
fn fits_attributes(call: &Call<'_>) -> bool {
    let of_self = |arg: &Expr| matches!(arg, Expr::Attribute(of) if matches!(&*of.value, Expr::Name(name) if name.id.as_str() == "self"));
    matches!(call.method, Some("fit" | "fit_transform"))
        && !call.node.arguments.args.is_empty()
        && call.node.arguments.args.iter().all(of_self)
}
