use oomph_python_source::names_in;

use crate::fix::{Applicability, Fix};
use crate::queries::devices::mentions_gpu;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Call, Model};

declare_rule! {
    /// Weights are loaded to the GPU that they were saved from.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.load(path)` without `map_location` whose result goes into
    /// `load_state_dict`, in files that train or save. Other files load published weights, and
    /// nothing says from which device those were saved.
    ///
    /// ## Why it costs memory
    ///
    /// `torch.load` puts every tensor where it was when it was saved: a second copy of the model
    /// (and of the optimizer's state) on the GPU while `load_state_dict` copies it into the first.
    /// With several processes, all of them load to GPU 0.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def save(model, path):
    ///     torch.save(model.state_dict(), path)
    ///
    /// def restore(model, path):
    ///     model.cuda()
    ///     model.load_state_dict(torch.load(path))
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def save(model, path):
    ///     torch.save(model.state_dict(), path)
    ///
    /// def restore(model, path):
    ///     model.cuda()
    ///     model.load_state_dict(torch.load(path, map_location="cpu"))
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the file was saved from the CPU.
    ///
    /// ## Fix safety
    ///
    /// Safe where the result goes straight into `load_state_dict`, which copies to wherever the
    /// parameters are. Unsafe where it has a name: other uses may expect it on the GPU.
    OOM501 "load-to-saved-device" { fix: Sometimes, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // On a TPU, tensors are saved from the CPU.
    if !mentions_gpu(model) || model.module.text().contains("torch_xla") {
        return;
    }
    // Where published weights were saved from is not known: the file has to train or save.
    let saves = model.calls.iter().any(|call| call.is("torch.save"));
    let saves_from_cpu = model.calls.iter().any(|call| {
        call.is("torch.save")
            && model
                .func_of(call.ctx)
                .is_some_and(|func| model.text(model.func(func).node).contains(".cpu()"))
    });
    let trains = model
        .calls
        .iter()
        .any(|call| call.recv.kind == Kind::Optimizer || call.result.kind == Kind::Optimizer);
    if saves_from_cpu || (!saves && !trains) {
        return;
    }
    for call in &model.calls {
        if !call.is("torch.load")
            || call.arg("map_location", 1).is_some()
            || call.keyword("mmap").is_some()
            || call.has_star_kwargs()
            || call.has_star_args()
            || in_unit_test(model, call.ctx)
        {
            continue;
        }
        let Some(direct) = goes_into_state_dict(model, call) else {
            continue;
        };
        let applicability = if direct {
            Applicability::Safe
        } else {
            Applicability::Unsafe
        };
        let fix = Fix::new(
            applicability,
            "load to the CPU",
            vec![model.module.add_keyword(call.node, "map_location=\"cpu\"")],
        );
        out.push(
            Report::new(
                call.node,
                "a second copy of the weights is loaded to the GPU that they were saved from",
            )
            .help("load with `map_location=\"cpu\"`: `load_state_dict` copies to where the parameters are")
            .fix(fix),
        );
    }
}

/// Whether what `torch.load` returned goes into `load_state_dict`: at once, or by a name.
pub(super) fn goes_into_state_dict(model: &Model<'_>, load: &Call<'_>) -> Option<bool> {
    let func = model.func_of(load.ctx);
    let loads = || {
        model
            .calls_in_function(func)
            .filter(|call| call.is_method("load_state_dict"))
    };
    let inside = |call: &Call<'_>| {
        call.node
            .arguments
            .args
            .iter()
            .any(|arg| oomph_python_source::Ranged::range(arg).contains_range(oomph_python_source::Ranged::range(load.node)))
    };
    if let Some(load) = loads().find(|call| inside(call)) {
        // An optimizer keeps the state that it is given: there is no second copy. A scheduler's has
        // no tensors.
        let is_scheduler = load
            .recv_place()
            .is_some_and(|place| place.to_ascii_lowercase().contains("sched"));
        return (load.recv.kind != Kind::Optimizer && !is_scheduler).then_some(true);
    }
    // Names that the checkpoint flows into, by assignment, in this function.
    let mut names: Vec<String> = Vec::new();
    for assign in &model.assigns {
        if model.func_of(assign.ctx) != func {
            continue;
        }
        let Some(expr) = assign.expr else { continue };
        let from_load = oomph_python_source::Ranged::range(expr)
            .contains_range(oomph_python_source::Ranged::range(load.node));
        if from_load || names_in(expr).iter().any(|name| carries(name, &names)) {
            names.push(crate::queries::loop_carried::base(&assign.place).to_string());
        }
    }
    loads()
        .any(|call| {
            call.node
                .arguments
                .args
                .iter()
                .any(|arg| names_in(arg).iter().any(|name| carries(name, &names)))
        })
        .then_some(false)
}

fn carries(name: &str, names: &[String]) -> bool {
    names
        .iter()
        .any(|each| name == each || name.starts_with(&format!("{each}.")))
}
