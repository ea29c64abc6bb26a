use oomph_python_source::ast::{ArgOrKeyword, Expr, Stmt};
use oomph_python_source::{Ranged, TextSize, dotted_name, last_name, names_in};

use crate::fix::{Applicability, Fix};
use crate::queries::devices::{mentions_gpu, on_cpu_only};
use crate::queries::purpose::{in_unit_test, is_eval_name};
use crate::queries::sizes::has_few_parameters;
use crate::queries::whereabouts::{is_on_gpu, moved_after};
use crate::reach::goes_no_further;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind, Tri};
use super::checkpoint_kept_while_training::{excludes, names_published_weights};
use crate::semantic::{Call, FuncId, Model};

declare_rule! {
    /// Weights are loaded to the GPU that they were saved from.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.load(path)` without `map_location` whose result goes into
    /// `load_state_dict` of a model that is on the GPU by then: this file has moved it. Only
    /// where the file, or one that imports connect it with, trains or saves: others load published weights, and
    /// nothing says from which device those were saved. Loads in a function that nothing in the project calls, and those
    /// of weights that a name, a test or the module itself calls pretrained, are left out. So is a model that moves to
    /// the GPU after it was filled, unless what was loaded keeps its name while the model runs. Models that are certainly below 16 MB
    /// (see OOM416) and, in a single process, loads without a name for a model that an optimizer trains are left out as well: what
    /// was loaded is freed with the statement, and training holds more than that.
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
    // On a TPU, tensors are saved from the CPU. Most files load nothing, and need not ask what the others do.
    let loads = model.calls.iter().any(|call| call.is("torch.load"));
    if !loads || !mentions_gpu(model) || model.module.text().contains("torch_xla") {
        return;
    }
    // Where published weights were saved from is not known: the file has to train or save.
    let saves = model.calls.iter().any(|call| call.is("torch.save"));
    let saves_from_cpu = model
        .calls
        .iter()
        .any(|call| call.is("torch.save") && saves_from_cpu(model, call));
    let trains = model
        .calls
        .iter()
        .any(|call| call.recv.kind == Kind::Optimizer || call.result.kind == Kind::Optimizer);
    let elsewhere = || model.around.saves() || trains && !model.around.saves_from_cpu();
    if saves_from_cpu || !saves && !elsewhere() || on_cpu_only(model) {
        return;
    }
    for call in &model.calls {
        if !call.is("torch.load")
            || call.arg("map_location", 1).is_some()
            || call.keyword("mmap").is_some()
            || call.has_star_kwargs()
            || call.has_star_args()
            || in_unit_test(model, call.ctx)
            || names_published_weights(model, call)
            || !communicates(model) && is_freed_before_training(model, call)
        {
            continue;
        }
        let found = goes_into_state_dict(model, call).map(|direct| {
            let says = "a second copy of the weights is loaded to the GPU that they were saved from";
            (direct, says)
        });
        let says = "what is loaded stays on the GPU that it was saved from, beside the model, which moves there later";
        let beside = || stays_beside(model, call).then_some((false, says));
        let Some((direct, says)) = found.or_else(beside) else {
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
                says,
            )
            .help("load with `map_location=\"cpu\"`: `load_state_dict` copies to where the parameters are")
            .fix(fix),
        );
    }
}

/// Whether what `torch.load` returned goes into `load_state_dict` of a model that is on the GPU by then: at
/// once, or by a name.
pub(super) fn goes_into_state_dict(model: &Model<'_>, load: &Call<'_>) -> Option<bool> {
    let loads = loads_of(model, load);
    loads
        .iter()
        .find(|(call, _)| !keeps_its_state(model, call) && is_second_copy(model, call))
        .map(|(_, direct)| *direct)
}

/// Whether processes train together: each loads to the GPU that the file names.
fn communicates(model: &Model<'_>) -> bool {
    ["DistributedDataParallel", "init_process_group", "DDP("].iter().any(|word| model.module.text().contains(word))
}

/// Whether a load has no name, and fills a model that the same job trains: what was loaded is freed when the statement ends, and is
/// no larger than the gradients, the optimizer's state and the activations that training holds beside the weights.
pub(super) fn is_freed_before_training(model: &Model<'_>, load: &Call<'_>) -> bool {
    let only_runs = model.func_name(load.ctx).is_some_and(|name| {
        is_eval_name(name) || name.split('_').any(|word| is_eval_name(word) || matches!(word, "sample" | "generate" | "demo"))
    });
    let loads = loads_of(model, load);
    !only_runs
        && !is_loaded_to_run(model, load)
        && !loads.is_empty()
        && loads.iter().all(|(call, direct)| *direct && is_optimized(model, call))
}

/// Whether a test around a load asks for something else than training, or the branch stops after it: `if args.test: …; return`.
fn is_loaded_to_run(model: &Model<'_>, load: &Call<'_>) -> bool {
    model.stmts_around(load.node.range()).any(|info| {
        let Stmt::If(branch) = info.node else { return false };
        let asked = model.text(&*branch.test).to_ascii_lowercase();
        let stops = |body: &[Stmt]| {
            body.iter().any(|stmt| stmt.range().contains_range(load.node.range())) && body.last().is_some_and(goes_no_further)
        };
        ["test", "eval", "infer", "sampl", "generat", "demo"].iter().any(|word| asked.contains(word))
            || stops(&branch.body)
            || branch.elif_else_clauses.iter().any(|clause| stops(&clause.body))
    })
}

/// Whether an optimizer has the parameters of what a `load_state_dict` fills, in its function or its class.
fn is_optimized(model: &Model<'_>, load: &Call<'_>) -> bool {
    let Some(place) = load.recv_place() else { return false };
    let near = |other: &Call<'_>| {
        if place.starts_with("self.") {
            model.ctx(other.ctx).class == model.ctx(load.ctx).class
        } else {
            model.func_of(other.ctx) == model.func_of(load.ctx)
        }
    };
    let gives_parameters = model.calls.iter().any(|call| {
        matches!(call.method, Some("parameters" | "named_parameters"))
            && near(call)
            && call.recv_place().is_some_and(|recv| recv == place || recv.starts_with(&format!("{place}.")))
    });
    gives_parameters && model.calls.iter().any(|call| call.result.kind == Kind::Optimizer && near(call))
}

/// Whether what `torch.load` returned keeps its name while the model runs that it filled on the CPU, and that has moved to
/// the GPU since.
pub(super) fn stays_beside(model: &Model<'_>, load: &Call<'_>) -> bool {
    let func = model.func_of(load.ctx);
    let named = model
        .assigns
        .iter()
        .find(|assign| assign.expr.is_some_and(|expr| expr.range() == load.node.range()));
    let Some(Expr::Name(target)) = named.map(|assign| assign.target) else {
        return false;
    };
    let name = target.id.as_str();
    let loads = loads_of(model, load);
    let Some((place, moved)) = loads
        .iter()
        .filter(|(call, _)| !keeps_its_state(model, call) && !fills_a_small_model(model, call))
        .find_map(|(call, _)| call.recv_place().zip(moved_after(model, call)))
    else {
        return false;
    };
    let loops = |trains: bool| {
        model.loops.iter().any(|each| {
            (each.contains_backward == trains && (trains || each.data))
                && model.func_of(each.ctx) == func
                && each.range.start() > moved
                && !excludes(model, load.node.range(), each.range)
        })
    };
    // Where the loop of this function trains, it is OOM503.
    let runs = loops(false) || !loops(true) && runs_after(model, func, &place, moved);
    let dropped = || {
        model
            .assigns_to(func, name)
            .any(|other| other.target.start() > target.end())
            || model.stmts.iter().any(|info| match info.node {
                Stmt::Delete(delete) if model.func_of(info.ctx) == func => delete
                    .targets
                    .iter()
                    .any(|each| dotted_name(each).as_deref() == Some(name)),
                _ => false,
            })
    };
    runs && !dropped()
}

/// Whether a function runs a model, or hands it to somebody who may, after an offset.
fn runs_after(model: &Model<'_>, func: Option<FuncId>, place: &str, after: TextSize) -> bool {
    const OTHERS: &[&str] = &["print", "DataParallel", "DistributedDataParallel", "compile", "watch", "summary"];
    model.calls_in_function(func).filter(|call| call.node.start() > after).any(|call| {
        let hands_over = || {
            let args = call.node.arguments.iter_source_order();
            args.map(ArgOrKeyword::value).any(|arg| dotted_name(arg).as_deref() == Some(place))
                && !last_name(&call.node.func).is_some_and(|name| OTHERS.contains(&name))
        };
        let is_pass = || dotted_name(&call.node.func).as_deref() == Some(place) || call.recv_place().as_deref() == Some(place) && matches!(call.method, Some("generate" | "sample" | "forward" | "predict"));
        is_pass() || hands_over()
    })
}

/// Whether what `torch.load` returned goes into `load_state_dict` of a model, wherever that is.
pub(super) fn fills_a_model(model: &Model<'_>, load: &Call<'_>) -> Option<bool> {
    let loads = loads_of(model, load);
    loads
        .iter()
        .find(|(call, _)| !keeps_its_state(model, call))
        .map(|(_, direct)| *direct)
}

/// The calls of `load_state_dict` that a `torch.load` of the same function goes into, and whether it does so
/// at once. Names, and what loops over items of names fill, are followed.
fn loads_of<'m, 'a>(model: &'m Model<'a>, load: &Call<'a>) -> Vec<(&'m Call<'a>, bool)> {
    let func = model.func_of(load.ctx);
    let mut names: Vec<String> = Vec::new();
    for assign in &model.assigns {
        if model.func_of(assign.ctx) != func {
            continue;
        }
        let reads = |expr: &Expr| {
            expr.range().contains_range(load.node.range())
                || names_in(expr).iter().any(|name| carries(name, &names))
        };
        let from = match assign.expr {
            Some(expr) => reads(expr),
            // `for key, value in state.items():`
            None => model.stmts.iter().any(|info| match info.node {
                Stmt::For(node) => {
                    node.target.range().contains_range(assign.target.range()) && reads(&node.iter)
                }
                _ => false,
            }),
        };
        if from {
            names.push(crate::queries::loop_carried::base(&assign.place).to_string());
        }
    }
    // `state = net.state_dict()`, `state.update(loaded)`, `net.load_state_dict(state)`
    for call in model.calls_in_function(func) {
        let fills = call.is_method("update")
            && call.node.start() > load.node.start()
            && call.node.arguments.args.iter().any(|arg| {
                arg.range().contains_range(load.node.range())
                    || names_in(arg).iter().any(|name| carries(name, &names))
            });
        if fills && let Some(place) = call.recv_place() {
            names.push(place);
        }
    }
    // `model = checkpoint["model"]`: the model itself came out of the file, and is where that puts it.
    let is_unpickled = |call: &Call<'_>| {
        call.recv_place().is_some_and(|place| {
            model.assigns_to(func, &place).any(|assign| match assign.expr {
                Some(Expr::Subscript(item)) => {
                    item.value.range().contains_range(load.node.range())
                        || dotted_name(&item.value).is_some_and(|name| carries(&name, &names))
                }
                _ => false,
            })
        })
    };
    model
        .calls_in_function(func)
        .filter(|call| call.is_method("load_state_dict") && !is_unpickled(call))
        .filter_map(|call| {
            let args = || call.node.arguments.iter_source_order().map(ArgOrKeyword::value);
            let inside = args().any(|arg| arg.range().contains_range(load.node.range()));
            let by_name = || {
                call.node.start() > load.node.start()
                    && args()
                        .any(|arg| !gives_state(arg) && names_in(arg).iter().any(|name| carries(name, &names)))
            };
            (inside || by_name()).then_some((call, inside))
        })
        .collect()
}

/// `loaded.state_dict()`: what was loaded is a model, which may be the one that the job uses.
pub(super) fn gives_state(arg: &Expr) -> bool {
    matches!(arg, Expr::Call(call) if last_name(&call.func) == Some("state_dict"))
}

/// Whether `load_state_dict` is an optimizer's, which keeps the tensors that it is given, or a
/// scheduler's or a scaler's, which have next to none: there is no second copy.
fn keeps_its_state(model: &Model<'_>, load: &Call<'_>) -> bool {
    if matches!(load.recv.kind, Kind::Optimizer | Kind::Scaler) {
        return true;
    }
    // An engine of TensorRT is bytes.
    let is_engine = load.recv_place().is_some_and(|place| {
        model
            .assigns_to(model.func_of(load.ctx), &place)
            .any(|assign| assign.expr.is_some_and(|expr| model.text(expr).contains("TRTModule(")))
    });
    if is_engine {
        return true;
    }
    // `self.load_state_dict(…)` in a class that is made from an optimizer.
    let class = model.ctx(load.ctx).class.map(|id| model.class(id).node);
    if load.recv_place().as_deref() == Some("self")
        && class.is_some_and(|class| {
            class.arguments.iter().flat_map(|bases| &bases.args).any(|base| {
                model.text(base).to_ascii_lowercase().contains("optim")
            })
        })
    {
        return true;
    }
    // `self.optimizers[name]` is one of those.
    let place = load.recv_expr().and_then(|recv| match recv {
        Expr::Subscript(item) => last_name(&item.value),
        recv => last_name(recv),
    });
    let Some(place) = place else {
        return false;
    };
    let name = place.to_ascii_lowercase();
    let first = name.trim_start_matches('_').split('_').next();
    first == Some("opt")
        || ["optim", "sched", "scaler"]
            .iter()
            .any(|word| name.contains(word))
}

/// Whether the model that is loaded is known to be on the GPU by then. If it may be on the CPU still, what is loaded may
/// be the only copy on the GPU: that is OOM505.
fn is_second_copy(model: &Model<'_>, load: &Call<'_>) -> bool {
    is_on_gpu(model, load) == Tri::Yes && !fills_a_small_model(model, load)
}

/// Whether a `load_state_dict` fills a model of a few MB.
fn fills_a_small_model(model: &Model<'_>, load: &Call<'_>) -> bool {
    load.recv_place().is_some_and(|place| has_few_parameters(model, model.func_of(load.ctx), &place))
}

/// Whether the weights that a `torch.save` writes were moved to the CPU before.
pub(super) fn saves_from_cpu(model: &Model<'_>, save: &Call<'_>) -> bool {
    /// Names are followed this far: `save(checkpoint)`, `checkpoint = {..: state}`, `state = …`.
    const MAX_NAMES: usize = 4;
    let Some(saved) = save.arg("obj", 0) else {
        return false;
    };
    let func = model.func_of(save.ctx);
    let mut seen: Vec<String> = Vec::new();
    let mut exprs = vec![saved];
    for _ in 0..=MAX_NAMES {
        let mut next = Vec::new();
        for expr in exprs.drain(..) {
            if is_cpu_weights(model.text(expr)) || is_own_state_on_cpu(model, save, expr) {
                return true;
            }
            for name in names_in(expr) {
                let root = name.split('.').next().unwrap_or(&name);
                for place in [name.as_str(), root] {
                    if seen.iter().any(|each| each == place) {
                        continue;
                    }
                    seen.push(place.to_owned());
                    // `state[key] = value.cpu()` fills the dictionary that is saved.
                    let item = format!("{place}[]");
                    let filled = model
                        .assigns_to(func, &item)
                        .filter_map(|assign| assign.expr)
                        .any(|expr| to_cpu(model.text(expr)));
                    let moved = model.calls_in_function(func).any(|call| {
                        call.node.start() < save.node.start()
                            && call.recv.is_model()
                            && call.result.device == Device::Cpu
                            && call.recv_place().as_deref() == Some(place)
                    });
                    if filled && place == name || moved {
                        return true;
                    }
                    next.extend(model.assigns_to(func, place).filter_map(|assign| assign.expr));
                }
            }
        }
        exprs = next;
    }
    false
}

/// `self.state_dict()` of a class whose `state_dict` moves the weights to the CPU.
fn is_own_state_on_cpu(model: &Model<'_>, save: &Call<'_>, expr: &Expr) -> bool {
    model.text(expr).contains("self.state_dict()")
        && model.ctx(save.ctx).class.is_some_and(|class| {
            model.class(class).methods.iter().any(|id| {
                let node = model.func(*id).node;
                node.name.as_str() == "state_dict" && to_cpu(model.text(node))
            })
        })
}

fn to_cpu(text: &str) -> bool {
    [".cpu()", ".to(\"cpu\")", ".to('cpu')"]
        .iter()
        .any(|call| text.contains(call))
}

/// `model.cpu().state_dict()`, `{k: v.cpu() for k, v in …}`: weights, not a metric beside them.
fn is_cpu_weights(text: &str) -> bool {
    let comprehension = text.contains(" for ") && to_cpu(text);
    comprehension
        || [".cpu()", ".to(\"cpu\")", ".to('cpu')"].iter().any(|call| {
            text.contains(&format!("{call}.state_dict")) || text.contains(&format!("{call}.module"))
        })
        || text.strip_suffix(".cpu()").is_some_and(|weights| weights.contains("state_dict"))
}

fn carries(name: &str, names: &[String]) -> bool {
    names
        .iter()
        .any(|each| name == each || name.starts_with(&format!("{each}.")))
}
