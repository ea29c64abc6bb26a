use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, TextRange, blocks_of, dotted_name, last_name, names_in};

use crate::project::Returned;
use crate::queries::sizes::has_few_parameters;
use crate::queries::devices::{mentions_gpu, on_cpu_only};
use crate::rule::{Report, declare_rule};
use super::load_to_gpu::loads_to_gpu;
use super::load_to_saved_device::gives_state;
use crate::semantic::value::{Device, Kind};
use crate::semantic::{Assign, Bind, Call, CtxKind, Loop, Model};

declare_rule! {
    /// A checkpoint on the GPU stays alive through training.
    ///
    /// ## What it does
    ///
    /// Looks for a name bound to `torch.load(…)` (to the GPU, or to where it was saved from) in a
    /// function that trains afterwards and neither deletes nor rebinds the name.
    ///
    /// ## Why it costs memory
    ///
    /// The name keeps the loaded copy of the weights, and of the optimizer's state if it is in the
    /// file, on the GPU for as long as training runs.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def main(model, loader, optimizer, criterion, path):
    ///     model.cuda()
    ///     state = torch.load(path)
    ///     model.load_state_dict(state["model"])
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x), y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def main(model, loader, optimizer, criterion, path):
    ///     model.cuda()
    ///     state = torch.load(path, map_location="cpu")
    ///     model.load_state_dict(state["model"])
    ///     del state
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x), y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the file was saved from the CPU.
    ///
    /// ## Fix safety
    ///
    /// No fix: the name may be read later on.
    OOM503 "checkpoint-kept-while-training" { fix: None, fresh: [20, 24] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if !mentions_gpu(model) {
        return;
    }
    check_returned(model, out);
    for assign in &model.assigns {
        if assign.bind != Bind::Set || assign.value.kind != Kind::Checkpoint {
            continue;
        }
        let (Some(Expr::Call(node)), Expr::Name(target)) = (assign.expr, assign.target) else {
            continue;
        };
        let Some(call) = model.calls.iter().find(|call| std::ptr::eq(call.node, node)) else {
            continue;
        };
        if !call.is("torch.load") {
            continue;
        }
        let on_gpu = match call.arg("map_location", 1) {
            // Published weights were mostly saved from the CPU.
            None => !call.has_star_kwargs() && !names_published_weights(model, call),
            Some(Expr::StringLiteral(text)) => text.value.to_str().starts_with("cuda"),
            Some(location) => {
                call.args.get(1).is_some_and(|arg| arg.device == Device::Gpu)
                    || loads_to_gpu(model, call, location)
            }
        };
        let func = model.func_of(assign.ctx);
        let training = model.loops.iter().find(|each| {
            each.contains_backward
                && model.func_of(each.ctx) == func
                && each.range.start() > node.end()
                && !excludes(model, node.range(), each.range)
        });
        let Some(training) = training else { continue };
        let name = target.id.as_str();
        let dropped = is_dropped(model, assign, training);
        let feeds_model = model.calls_in_function(func).any(|other| {
            other.is_method("load_state_dict")
                && other.recv.device != Device::Cpu
                && other.recv.kind != Kind::Optimizer
                && !other.recv_place().is_some_and(|place| has_few_parameters(model, func, &place))
                && other
                    .node
                    .arguments
                    .args
                    .iter()
                    .any(|arg| !gives_state(arg) && names_in(arg).iter().any(|each| each == name || each.starts_with(&format!("{name}."))))
        });
        if on_gpu && !dropped && feeds_model && !on_cpu_only(model) && !resumes_too_early(model, call) {
            out.push(
                Report::new(
                    assign.target,
                    format!("`{name}` keeps the loaded copy of the weights on the GPU while training runs"),
                )
                .help("load with `map_location=\"cpu\"`, and `del` it after `load_state_dict`"),
            );
        }
    }
}

/// What a function returned that filled a model: `checkpoint, step = load_checkpoint(path, model, device)`.
fn check_returned(model: &Model<'_>, out: &mut Vec<Report>) {
    for assign in &model.assigns {
        let (Some(Expr::Call(node)), Expr::Name(target)) = (assign.expr, assign.target) else {
            continue;
        };
        if !matches!(assign.bind, Bind::Set | Bind::Unpack) || target.id.as_str() == "_" {
            continue;
        }
        let func = model.func_of(assign.ctx);
        let training = model.loops.iter().find(|each| {
            each.contains_backward
                && model.func_of(each.ctx) == func
                && each.range.start() > node.end()
                && !excludes(model, node.range(), each.range)
        });
        let Some(training) = training else { continue };
        let returned = node.func.as_name_expr().and_then(|name| model.around.returns_checkpoint(name.id.as_str()));
        let is_it = match returned {
            Some(Returned::Alone) => assign.bind == Bind::Set,
            Some(Returned::InTuple(place)) => model.stmts.iter().any(|info| match info.node {
                Stmt::Assign(unpacks) => matches!(&*unpacks.targets, [Expr::Tuple(tuple)]
                    if tuple.elts.get(place).is_some_and(|each| each.range() == assign.target.range())),
                _ => false,
            }),
            None => false,
        };
        let to_cpu = node.arguments.iter_source_order().any(|arg| model.text(arg.value()).contains("cpu"));
        if is_it && !to_cpu && !is_dropped(model, assign, training) && !on_cpu_only(model) {
            out.push(
                Report::new(
                    assign.target,
                    format!("`{}` keeps the copy of the weights that `{}` loaded to the GPU while training runs", target.id, model.text(&*node.func)),
                )
                .help("load with `map_location=\"cpu\"`, or return only what is needed of it"),
            );
        }
    }
}

/// Whether what an assignment loads loses its name before training ends.
fn is_dropped(model: &Model<'_>, load: &Assign<'_>, training: &Loop<'_>) -> bool {
    let func = model.func_of(load.ctx);
    model.assigns_to(func, &load.place).any(|other| rebinds(model, load, other, training))
        || model.stmts.iter().any(|info| match info.node {
            Stmt::Delete(delete) => delete.targets.iter().any(|each| dotted_name(each).as_deref() == Some(&load.place)),
            _ => false,
        })
}

/// Whether a function fills its optimizer and moves the model to the GPU only after that: the optimizer's state stays on
/// the CPU, and the first step of the resumed training fails.
pub(super) fn resumes_too_early(model: &Model<'_>, load: &Call<'_>) -> bool {
    let func = model.func_of(load.ctx);
    let filled = (model.calls_in_function(func))
        .find(|call| call.is_method("load_state_dict") && call.recv.kind == Kind::Optimizer && call.node.start() > load.node.end())
        // Under a further condition, not every run resumes.
        .filter(|call| model.is_inside(load.ctx, call.ctx));
    let mut moves = model.calls_in_function(func).filter(|call| {
        matches!(call.method, Some("to" | "cuda")) && call.recv.is_model()
    });
    let Some(filled) = filled else { return false };
    moves.next().is_some_and(|first| first.node.start() > filled.node.end())
}

/// Whether another statement binds the name of a load anew before training ends. `state = None` where the load failed, or
/// where there is nothing to load, does not.
fn rebinds(model: &Model<'_>, load: &Assign<'_>, other: &Assign<'_>, training: &Loop<'_>) -> bool {
    let at = other.target.start();
    let elsewhere = other.expr.is_some_and(Expr::is_none_literal_expr)
        && matches!(model.ctx(other.ctx).kind, CtxKind::Handler | CtxKind::Branch(None))
        && !model.is_inside(load.ctx, other.ctx);
    load.target.end() < at && at < training.range.end() && !elsewhere
}

/// Whether a load and the training after it exclude each other: `if args.test:` loads, `else:` trains, or what loads returns.
pub(super) fn excludes(model: &Model<'_>, load: TextRange, training: TextRange) -> bool {
    let is_end = |stmt: &Stmt| match stmt {
        Stmt::Return(_) | Stmt::Raise(_) => true,
        Stmt::Expr(only) => {
            matches!(&*only.value, Expr::Call(call) if matches!(last_name(&call.func), Some("exit" | "quit" | "_exit")))
        }
        _ => false,
    };
    model.stmts.iter().any(|info| {
        let Stmt::If(node) = info.node else {
            return false;
        };
        node.range.contains_range(load)
            && blocks_of(info.node).into_iter().any(|block| {
                let loads_here = block.iter().any(|stmt| stmt.range().contains_range(load));
                let trains_here = block.iter().any(|stmt| stmt.range().contains_range(training));
                loads_here
                    && !trains_here
                    && (node.range.contains_range(training) || block.last().is_some_and(is_end))
            })
    })
}

/// Words in the paths of published weights.
const PUBLISHED: &[&str] = &[
    "pretrain", "basenet", "backbone", "imagenet", "://", "vgg", "resnet", "inception", "hifigan",
    "hifi-gan", "vocoder", "waveglow", "lpips", "facenet", "official", "hub", "download",
    "pytorch_model", "__file__", "getfile", "wavlm", "hubert", "wav2vec", "contentvec", "mobilenet", "efficientnet",
    "sam_vit", "dino_", "hrnet", "osnet", "external/", "third_party",
];

/// Whether a file's name says that it holds published weights, rather than the job's own.
pub(super) fn names_published_weights(model: &Model<'_>, load: &Call<'_>) -> bool {
    load.arg("f", 0).is_some_and(|file| {
        // Downloaded under this name.
        if let Expr::StringLiteral(name) = file
            && model.module.text().contains("://")
            && model.module.text().contains(&format!("/{}", name.value.to_str()))
        {
            return true;
        }
        let says_so = |expr: &Expr| {
            let text = model.text(expr).to_ascii_lowercase();
            // The arguments of `"{}_{}.pt".format(args.backbone, epoch)` name the job's own settings.
            let path = match text.split_once(".format(") {
                Some((path, _)) if !text.contains("pretrain") => path,
                _ => &text,
            };
            PUBLISHED.iter().any(|word| path.contains(word))
        };
        // The path may have a name: `path = "save/pretrained/best.pth"`.
        let bound = || {
            let func = model.func_of(load.ctx);
            dotted_name(file).is_some_and(|name| {
                model
                    .assigns_to(func, &name)
                    .filter(|assign| assign.target.start() < load.node.start())
                    .last()
                    .and_then(|assign| assign.expr)
                    .is_some_and(says_so)
            })
        };
        // `if pretrained:`, and functions that load what somebody trained.
        let asked_for = || {
            model.within_function(load.ctx).any(|id| match model.ctx(id).kind {
                CtxKind::Branch(Some(test)) => {
                    model.text(test).to_ascii_lowercase().contains("pretrain")
                }
                _ => false,
            })
        };
        let loader = || {
            model
                .func_name(load.ctx)
                .is_some_and(|name| name.contains("pretrain") || name.contains("transformers"))
        };
        (says_so(file) || bound() || asked_for() || loader() || is_in_a_network(model, load))
            && !is_own_checkpoint(model, load)
    })
}

/// Whether a module fills a part of itself where it is made, from a path that is written there: published weights.
fn is_in_a_network(model: &Model<'_>, load: &Call<'_>) -> bool {
    let of_a_module = model
        .ctx(load.ctx)
        .class
        .is_some_and(|class| model.class(class).is_module);
    of_a_module
        && model.func_name(load.ctx) == Some("__init__")
        && load.arg("f", 0).is_some_and(Expr::is_string_literal_expr)
}

/// Whether the file saves a dictionary with the key that is read here: `torch.load(path)["net"]`.
fn is_own_checkpoint(model: &Model<'_>, load: &Call<'_>) -> bool {
    let stmt = model.text(model.stmt(load.stmt).node);
    let func = model.func_of(load.ctx);
    let saves = |key: &str| {
        model.calls.iter().filter(|call| call.is("torch.save")).any(|call| {
            // `state = {"net": net.state_dict()}`, `torch.save(state, path)`
            let named = call.arg("obj", 0).and_then(dotted_name);
            model.text(call.node).contains(key)
                || named.is_some_and(|name| {
                    let mut bound = model.assigns_to(model.func_of(call.ctx), &name).filter_map(|assign| assign.expr);
                    bound.any(|expr| model.text(expr).contains(key))
                })
        })
    };
    // `checkpoint["model_state_dict"]`, by the name of what was loaded.
    let by_name = model.assigns.iter().filter(|assign| assign.stmt == load.stmt).any(|assign| {
        let body = func.map_or_else(|| model.module.text(), |id| model.text(model.func(id).node));
        let item = format!("{}[", assign.place);
        body.match_indices(&item).any(|(at, _)| {
            body[at + item.len()..]
                .split_once(']')
                .is_some_and(|(key, _)| key.starts_with(['"', '\'']) && saves(key))
        })
    });
    if by_name {
        return true;
    }
    let Some((_, rest)) = stmt.split_once(model.text(load.node)) else {
        return false;
    };
    let Some(rest) = rest.strip_prefix('[') else {
        return false;
    };
    let Some((key, _)) = rest.split_once(']') else {
        return false;
    };
    saves(key)
}
