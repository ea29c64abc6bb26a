use oomph_python_source::Edit;

use crate::fix::Fix;
use crate::queries::devices::{evidence, mentions_gpu, on_cpu_only};
use crate::queries::flow::Flow;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Call, Model};
use super::checkpoint_kept_while_training::names_published_weights;
use super::load_to_gpu::loads_to_gpu;
use super::load_to_saved_device::{fills_a_model, keeps_a_copy, saves_from_cpu, stays_beside};

declare_rule! {
    /// Weights go through the GPU to a model.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.load` to the GPU, or without `map_location` in a project that saves from the GPU, whose
    /// result goes into `load_state_dict`, or is only looked up, shown or saved again, and is freed before the model runs.
    /// What keeps its name longer is OOM501 and OOM502. A file that names
    /// no device itself, one that saves but trains nothing, and a function that nothing in the project calls, are left
    /// out.
    ///
    /// ## Why it costs memory
    ///
    /// Everything in the file takes room on the GPU for a moment, an optimizer's state and other networks too, though
    /// `load_state_dict` only copies from it. It matters where little else is there yet, as for a model that just fits. With
    /// several processes, and in scripts that do not use the first GPU, it is GPU 0 that fills up.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from nets import Net
    ///
    /// def restore(path, device):
    ///     model = Net()
    ///     state = torch.load(path, map_location=device)
    ///     model.load_state_dict(state)
    ///     return model.to(device)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from nets import Net
    ///
    /// def restore(path, device):
    ///     model = Net()
    ///     state = torch.load(path, map_location="cpu")
    ///     model.load_state_dict(state)
    ///     return model.to(device)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the file was saved from the CPU, or the model is on the meta device (`assign=True`).
    ///
    /// ## Fix safety
    ///
    /// Unsafe: other uses of what was loaded may expect it on the GPU.
    OOM505 "load-through-gpu" { fix: Sometimes, fresh: [460, 559] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // Most files load nothing, and need not ask what the others do.
    let loads = model.calls.iter().any(|call| call.is("torch.load"));
    if !loads || on_cpu_only(model) || model.module.text().contains("torch_xla") {
        return;
    }
    let saved_from_gpu = saved_from_gpu(model);
    for call in &model.calls {
        if !call.is("torch.load")
            || call.keyword("mmap").is_some()
            || call.has_star_kwargs()
            || call.has_star_args()
            || in_unit_test(model, call.ctx)
        {
            continue;
        }
        let location = call.arg("map_location", 1);
        let to_gpu = match location {
            None => saved_from_gpu && !names_published_weights(model, call),
            Some(location) => loads_to_gpu(model, call, location),
        };
        // What stays is OOM501 and OOM502.
        let stays = || match location {
            None => keeps_a_copy(model, call).is_some(),
            Some(_) => stays_beside(model, call).is_some(),
        };
        if !to_gpu || becomes_arrays(model, call) || stays() {
            continue;
        }
        let fills = fills_a_model(model, call).is_some();
        let is_only_read =
            || is_checkpoint(model, call) && Flow::of_loaded(model).is_cut_off(call);
        if !fills && !is_only_read() {
            continue;
        }
        let message = match location {
            _ if !fills => "a checkpoint is loaded to the GPU, and only looked up or saved again there",
            None => "the weights are loaded to the GPU that they were saved from, and only copied from there",
            Some(_) => "the weights are loaded to the GPU, and only copied from there",
        };
        let edit = match location {
            None => model.module.add_keyword(call.node, "map_location=\"cpu\""),
            Some(location) => Edit::replace(location, "\"cpu\""),
        };
        out.push(
            Report::new(call.node, message)
                .help("load with `map_location=\"cpu\"`: `load_state_dict` copies to where the parameters are")
                .fix(Fix::unsafe_("load to the CPU", edit)),
        );
    }
}

/// Whether what is looked up in a checkpoint becomes an array at once: `grids["x"].numpy()`. It was saved from the CPU.
fn becomes_arrays(model: &Model<'_>, load: &Call<'_>) -> bool {
    let body = model.func_of(load.ctx).map_or_else(
        || model.module.text(),
        |id| model.text(model.func(id).node),
    );
    model
        .assigns
        .iter()
        .filter(|assign| assign.stmt == load.stmt)
        .any(|assign| {
            let item = format!("{}[", assign.place);
            body.match_indices(&item).any(|(at, _)| {
                body[at..]
                    .split_once(']')
                    .is_some_and(|(_, rest)| rest.starts_with(".numpy()"))
            })
        })
}

/// Whether a file holds a model's weights, by the names around its load.
pub(super) fn is_checkpoint(model: &Model<'_>, load: &Call<'_>) -> bool {
    const WORDS: &[&str] = &[
        "checkpoint", "ckpt", "model", "weight", "state_dict", "best", "resume", ".pth", ".tar", "net",
    ];
    let stmt = model.text(model.stmt(load.stmt).node);
    let text = stmt.to_ascii_lowercase();
    // `torch.load(path).long()` is a tensor.
    let is_tensor = stmt
        .split_once(model.text(load.node))
        .is_some_and(|(_, rest)| {
            [".long()", ".float()", ".numpy()", ".int()", ".to(", ".cuda("]
                .iter()
                .any(|method| rest.starts_with(method))
        });
    !is_tensor && WORDS.iter().any(|word| text.contains(word))
}

/// Whether the project trains or saves, and what it saves was not moved to the CPU: where published weights
/// were saved from is not known.
fn saved_from_gpu(model: &Model<'_>) -> bool {
    let mut saves = model
        .calls
        .iter()
        .filter(|call| call.is("torch.save"))
        .peekable();
    let here = saves.peek().is_some();
    let from_cpu = saves.any(|call| saves_from_cpu(model, call));
    let trains = || {
        model
            .calls
            .iter()
            .any(|call| call.recv.kind == Kind::Optimizer || call.result.kind == Kind::Optimizer)
    };
    // A file that saves and trains nothing converts weights, and one that moves nothing trains on the CPU.
    let own = || {
        (trains() || !model.backwards.is_empty())
            && (evidence(model).moves || model.around.inherits_device())
    };
    let by_somebody = || trains() && !model.around.saves_from_cpu() || model.around.saves();
    mentions_gpu_in_code(model) && !from_cpu && if here { own() } else { by_somebody() }
}

fn mentions_gpu_in_code(model: &Model<'_>) -> bool {
    mentions_gpu(model) || model.around.used_on_gpu()
}
