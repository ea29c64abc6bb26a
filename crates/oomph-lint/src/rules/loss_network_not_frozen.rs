use oomph_python_source::ast::Stmt;
use oomph_python_source::{dotted_name, last_part};

use crate::queries::devices::on_cpu_only;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Bind, ClassId, Model};

declare_rule! {
    /// A pretrained network that only measures a loss has gradients.
    ///
    /// ## What it does
    ///
    /// Looks for modules named as a loss that make a pretrained network of torchvision, run it on two inputs in
    /// `forward`, and never turn off gradients, in a file that says nothing of `requires_grad`.
    ///
    /// ## Why it costs memory
    ///
    /// The weights of the network count as trained: `backward()` fills a gradient for each of them (528 MiB for
    /// VGG-16), which no optimizer uses and nobody clears, and the pass over the target keeps its activations, too.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torchvision import models
    ///
    /// class PerceptualLoss(torch.nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.vgg = models.vgg16(weights="DEFAULT").features.cuda()
    ///
    ///     def forward(self, output, target):
    ///         return (self.vgg(output) - self.vgg(target)).abs().mean()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from torchvision import models
    ///
    /// class PerceptualLoss(torch.nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.vgg = models.vgg16(weights="DEFAULT").features.cuda()
    ///         self.vgg.requires_grad_(False)
    ///
    ///     def forward(self, output, target):
    ///         return (self.vgg(output) - self.vgg(target)).abs().mean()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another file turns off the gradients of the loss's parameters.
    ///
    /// ## Fix safety
    ///
    /// No fix: where the network is frozen is yours to choose.
    OOM208 "loss-network-not-frozen" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let text = model.module.text();
    if text.contains("requires_grad") || text.contains("freeze") || !text.contains("torchvision") {
        return;
    }
    for assign in &model.assigns {
        let (Bind::Set, Some(expr), Some(class)) = (assign.bind, assign.expr, model.ctx(assign.ctx).class)
        else {
            continue;
        };
        let info = model.class(class);
        let name = info.node.name.as_str().to_ascii_lowercase();
        let is_loss = name.contains("loss") || name.contains("perceptual");
        let made = model.text(expr);
        let pretrained = made.contains("pretrained=True") || made.contains("weights=");
        let of_torchvision = model.calls.iter().any(|call| {
            call.stmt == assign.stmt
                && call
                    .qual
                    .as_deref()
                    .is_some_and(|qual| qual.starts_with("torchvision.models."))
        });
        if !info.is_module || !is_loss || !pretrained || !of_torchvision {
            continue;
        }
        // The network itself, or the part of it that becomes an attribute.
        let Some(place) = attribute_of(model, class, &assign.place) else {
            continue;
        };
        let decides = ["no_grad", "inference_mode"]
            .iter()
            .any(|word| model.text(info.node).contains(word));
        if !decides && runs_twice(model, class, &place) && !on_cpu_only(model) && !in_unit_test(model, assign.ctx) {
            out.push(
                Report::new(
                    assign.target,
                    format!("`{place}` only measures a loss, yet `backward()` fills gradients of all its weights"),
                )
                .help("call `requires_grad_(False)` on it"),
            );
        }
    }
}

/// `self.vgg` of an assignment to it, or of one to a name that it is made from.
fn attribute_of(model: &Model<'_>, class: ClassId, place: &str) -> Option<String> {
    if place.starts_with("self.") {
        return Some(place.to_owned());
    }
    model
        .assigns
        .iter()
        .find(|assign| {
            model.ctx(assign.ctx).class == Some(class)
                && assign.place.starts_with("self.")
                && assign.expr.is_some_and(|expr| {
                    oomph_python_source::names_in(expr)
                        .iter()
                        .any(|name| name == place || name.starts_with(&format!("{place}.")))
                })
        })
        .map(|assign| assign.place.clone())
}

/// Whether `forward` runs the network on two of its inputs.
fn runs_twice(model: &Model<'_>, class: ClassId, place: &str) -> bool {
    let mut inputs: Vec<String> = model
        .calls
        .iter()
        .filter(|call| {
            model.ctx(call.ctx).class == Some(class)
                && model.func_name(call.ctx) == Some("forward")
                && dotted_name(&call.node.func).as_deref() == Some(place)
        })
        .filter_map(|call| call.node.arguments.find_positional(0).and_then(dotted_name))
        .map(|name| last_part(&name).to_owned())
        .collect();
    inputs.sort();
    inputs.dedup();
    let trains = model.stmts.iter().any(|info| {
        matches!(info.node, Stmt::Assign(node) if model.ctx(info.ctx).class == Some(class)
            && model.text(&*node.value).contains("optim"))
    });
    inputs.len() >= 2 && !trains
}
