use oomph_python_source::ast::Expr;
use oomph_python_source::{Edit, Ranged, dotted_name, last_name, last_part};

use crate::fix::Fix;
use crate::queries::devices::on_cpu_only;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, FuncId, Model};
use crate::semantic::value::Device;
use super::load_to_saved_device::{Beside, stays_beside};

declare_rule! {
    /// Weights are loaded straight to the GPU.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.load(path, map_location="cuda")` whose result goes into `load_state_dict` of a model that is on the
    /// GPU, or that moves there later, and keeps its name while the model runs: its function trains or evaluates with the
    /// model, or hands it to one that does, and neither deletes nor rebinds the name before. The function has to be one that
    /// something in the project calls. Models that are certainly below 16 MB (see OOM416) are left out. What is freed at once is OOM505.
    /// OOM501 reports the same lines, and this rule says nothing where that one is selected too.
    ///
    /// ## Why it costs memory
    ///
    /// The model has its parameters on the GPU. The loaded ones are a second copy beside them for as long as the name
    /// lives, that is until the function returns; with an optimizer's state in the file, three or four.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def evaluate(model, loader, path):
    ///     device = torch.device("cuda")
    ///     model.to(device)
    ///     state = torch.load(path, map_location=device)
    ///     model.load_state_dict(state)
    ///     with torch.no_grad():
    ///         return [model(x.to(device)).cpu() for x in loader]
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def evaluate(model, loader, path):
    ///     device = torch.device("cuda")
    ///     model.to(device)
    ///     state = torch.load(path, map_location="cpu")
    ///     model.load_state_dict(state)
    ///     with torch.no_grad():
    ///         return [model(x.to(device)).cpu() for x in loader]
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the model is on the meta device (`assign=True`) at this point.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: other uses of the dictionary may expect it on the GPU.
    OOM502 "load-to-gpu" { fix: Sometimes, fresh: [332, 372] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    report(model, out);
}

/// OOM501 reports these as well.
pub(super) fn report(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if !call.is("torch.load") {
            continue;
        }
        let Some(location) = call.arg("map_location", 1) else {
            continue;
        };
        if !loads_to_gpu(model, call, location) {
            continue;
        }
        let says = match stays_beside(model, call) {
            Some(Beside::OnGpu) => "what is loaded stays on the GPU beside the model that it fills",
            Some(Beside::MovedLater) => "what is loaded stays on the GPU beside the model, which moves there later",
            None => continue,
        };
        out.push(
            Report::new(call.node, says)
            .help("load with `map_location=\"cpu\"`: `load_state_dict` copies to where the parameters are")
                .fix(Fix::unsafe_("load to the CPU", Edit::replace(location, "\"cpu\""))),
        );
    }
}

/// Whether a `map_location` is a GPU: it says so, or is the device that the job computes on.
pub(super) fn loads_to_gpu(model: &Model<'_>, load: &Call<'_>, location: &Expr) -> bool {
    let named = match location {
        Expr::StringLiteral(text) => text.value.to_str().starts_with("cuda"),
        // `f"cuda:{rank}"`
        Expr::FString(_) => model.text(location).trim_start_matches(['f', '"', '\'']).starts_with("cuda"),
        // `{"cuda:1": "cuda:0"}`
        Expr::Dict(dict) => dict.items.iter().any(|item| {
            matches!(&item.value, Expr::StringLiteral(text) if text.value.to_str().starts_with("cuda"))
        }),
        Expr::Lambda(lambda) => model.text(&*lambda.body).contains(".cuda("),
        Expr::Name(_) | Expr::Attribute(_) => dotted_name(location).is_some_and(|place| {
            let func = model.func_of(load.ctx);
            model
                .assigns_to(func, &place)
                .chain(model.assigns_to(None, &place))
                .last()
                .is_some_and(|assign| {
                    assign.value.device == Device::Gpu || assign.expr.is_some_and(|expr| is_text_of_gpu(model, expr))
                })
        }),
        Expr::Call(_) => is_text_of_gpu(model, location),
        _ => false,
    };
    named || is_device_of_models(model, load, location) || is_job_device(model, load, location)
}

/// `"cuda:{}".format(rank)`
fn is_text_of_gpu(model: &Model<'_>, expr: &Expr) -> bool {
    let text = model.text(expr).trim_start_matches('f').trim_start_matches(['"', '\'']);
    text.starts_with("cuda:")
}

/// `device`, `self.device`, `torch.device(args.device)`: the device that the job computes on by its name,
/// where nothing says that it is the CPU.
fn is_job_device(model: &Model<'_>, load: &Call<'_>, location: &Expr) -> bool {
    let named = match location {
        // `torch.device(args.device)`, `str(self.device)`
        Expr::Call(call) if matches!(last_name(&call.func), Some("device" | "str")) => {
            call.arguments.find_positional(0)
        }
        other => Some(other),
    };
    let Some(place) = named.and_then(dotted_name) else {
        return false;
    };
    let func = model.func_of(load.ctx);
    let by_default = is_cpu_by_default(model, load, &place);
    let word = last_part(&place).to_ascii_lowercase();
    let known_cpu = load
        .args
        .get(1)
        .is_some_and(|value| value.device == Device::Cpu);
    (word == "device" || word.ends_with("_device") || word == "dev")
        && !word.contains("cpu")
        && !by_default
        && !is_bound_to_cpu(model, func, &place)
        && !known_cpu
        && !on_cpu_only(model)
}

/// Whether a place is bound to the CPU. `DEVICE = "cuda"` in one branch and `"cpu"` in the other is a GPU where there is one.
fn is_bound_to_cpu(model: &Model<'_>, func: Option<FuncId>, place: &str) -> bool {
    let bound = || {
        model
            .assigns_to(func, place)
            .chain(model.assigns_to(None, place))
    };
    bound().any(|assign| {
        assign.value.device == Device::Cpu || assign.expr.is_some_and(|expr| says_cpu(model, expr))
    }) && !bound().any(|assign| assign.value.device == Device::Gpu)
}

/// Whether a place is a parameter whose default is the CPU, or that of a caller of the file that hands it on.
fn is_cpu_by_default(model: &Model<'_>, load: &Call<'_>, place: &str) -> bool {
    let func = model.func_of(load.ctx);
    let is_default = |func: FuncId, place: &str| {
        model
            .func(func)
            .node
            .parameters
            .iter_non_variadic_params()
            .any(|each| {
                each.parameter.name.as_str() == place
                    && each.default.as_deref().is_some_and(|default| {
                        default.is_none_literal_expr() || says_cpu(model, default)
                    })
            })
    };
    // Its own default, or that of a caller who hands it on.
    func.is_some_and(|func| {
        is_default(func, place)
            || model.calls.iter().any(|call| {
                let Some(caller) = model.func_of(call.ctx) else {
                    return false;
                };
                call.target == Some(func)
                    && call.node.arguments.iter_source_order().any(|argument| {
                        dotted_name(argument.value()).is_some_and(|name| {
                            last_part(&name) == last_part(place) && is_default(caller, &name)
                        })
                    })
            })
    })
}

fn says_cpu(model: &Model<'_>, expr: &Expr) -> bool {
    let text = model.text(expr).to_ascii_lowercase();
    text.contains("cpu") && !text.contains("cuda") && !text.contains("args")
}

/// Whether a location is the device that models of this function, or of this class, are moved to:
/// `model.to(device)` and `torch.load(path, map_location=device)`.
fn is_device_of_models(model: &Model<'_>, load: &Call<'_>, location: &Expr) -> bool {
    let name = |expr: &Expr| match expr {
        // `torch.device(self.device)`
        Expr::Call(call) => call.arguments.find_positional(0).and_then(dotted_name),
        other => dotted_name(other),
    };
    let Some(device) = name(location) else {
        return false;
    };
    if on_cpu_only(model)
        || is_cpu_by_default(model, load, &device)
        || is_bound_to_cpu(model, model.func_of(load.ctx), &device)
        || load.args.get(1).is_some_and(|arg| arg.device == Device::Cpu) {
        return false;
    }
    model.calls.iter().any(|call| {
        let near = model.func_of(call.ctx) == model.func_of(load.ctx)
            || device.starts_with("self.") && model.ctx(call.ctx).class == model.ctx(load.ctx).class;
        near && call.is_method("to")
            && call.recv.is_model()
            && call.node.start() < load.node.start()
            && call.node.arguments.find_positional(0).and_then(name).as_deref() == Some(&device)
    })
}
