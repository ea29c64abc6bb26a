use oomph_python_source::ast::{self, ArgOrKeyword, Expr, Stmt};
use oomph_python_source::{Ranged, TextRange, TextSize, dotted_name, last_name, names_in};

use crate::fix::{Applicability, Fix};
use crate::queries::batches::stops_at_a_batch;
use crate::queries::devices::{mentions_gpu, on_cpu_only};
use crate::queries::model_calls::is_data_parallel;
use crate::queries::purpose::in_unit_test;
use crate::queries::sizes::has_few_parameters;
use crate::queries::whereabouts::{is_on_gpu, moved_after};
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind, Tri};
use super::load_to_gpu;
use super::checkpoint_kept_while_training::{excludes, names_published_weights, resumes_too_early};
use crate::semantic::{Assign, Call, CtxId, CtxKind, FuncId, Model};

declare_rule! {
    /// Weights are loaded to a GPU and stay there.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.load(path)` without `map_location`, or with one that is the GPU, whose result goes into `load_state_dict` of a model that is on
    /// the GPU, or that moves there later, and keeps its name while the model runs: its function trains or evaluates with
    /// the model, or hands it to one that does, and neither deletes nor rebinds the name before. Where processes train
    /// together, loads without a name count as well: they all go to GPU 0, unless only the first process does so (`if rank == 0:`). A name of a script's top lives until the script ends, so
    /// functions of the file that run the model count too. Without `map_location`, only where the file, or one that imports connect
    /// it with, trains or saves: others load published weights, and nothing says from which device those were saved. Loads
    /// in a function that nothing in the project calls, those that come after all training of their function, and those of
    /// weights that a name, a test or the module itself calls pretrained, are left out, as are models that are certainly
    /// below 16 MB (see OOM416), and branches for `gpu is None` in files that move batches to a GPU only if there is one. What is freed at once is OOM505.
    ///
    /// ## Why it costs memory
    ///
    /// Without `map_location`, `torch.load` puts every tensor where it was when it was saved: a second copy of the model
    /// (and of the optimizer's state) on the GPU, for as long as it has a name.
    /// With several processes, all of them load to GPU 0, where each makes a context as well.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def save(model, path):
    ///     torch.save(model.state_dict(), path)
    ///
    /// def evaluate(model, loader, path):
    ///     model.cuda()
    ///     state = torch.load(path)
    ///     model.load_state_dict(state)
    ///     with torch.no_grad():
    ///         return [model(x.cuda()).cpu() for x in loader]
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
    /// def evaluate(model, loader, path):
    ///     model.cuda()
    ///     state = torch.load(path, map_location="cpu")
    ///     model.load_state_dict(state)
    ///     with torch.no_grad():
    ///         return [model(x.cuda()).cpu() for x in loader]
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
    OOM501 "load-to-saved-device" { fix: Sometimes, fresh: [45, 66] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // On a TPU, tensors are saved from the CPU. Most files load nothing, and need not ask what the others do.
    let loads = model.calls.iter().any(|call| call.is("torch.load"));
    if loads {
        load_to_gpu::report(model, out);
    }
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
            || never_feeds_the_gpu(model, call)
        {
            continue;
        }
        let Some((direct, says)) = keeps_a_copy(model, call) else {
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

/// What a `torch.load` of the weights that it was saved from keeps on a GPU for longer than its statement, and whether it goes straight
/// into `load_state_dict`.
pub(super) fn keeps_a_copy(model: &Model<'_>, load: &Call<'_>) -> Option<(bool, &'static str)> {
    if let Some(beside) = stays_beside(model, load) {
        let says = match beside {
            Beside::OnGpu => "what is loaded stays on the GPU that it was saved from, beside the model that it fills",
            Beside::MovedLater => "what is loaded stays on the GPU that it was saved from, beside the model, which moves there later",
        };
        return Some((false, says));
    }
    let by_all = communicates(model) && !is_of_one_process(model, load);
    let direct = by_all.then(|| goes_into_state_dict(model, load))??;
    Some((direct, "every process loads the weights to the GPU that they were saved from"))
}

/// Whether what `torch.load` returned goes into `load_state_dict` of a model that is on the GPU by then: at
/// once, or by a name.
fn goes_into_state_dict(model: &Model<'_>, load: &Call<'_>) -> Option<bool> {
    let loads = loads_of(model, load);
    loads
        .iter()
        .find(|(call, _)| !keeps_its_state(model, call) && is_second_copy(model, call))
        .map(|(_, direct)| *direct)
}

/// Whether processes train together: each loads to the GPU that the file names.
fn communicates(model: &Model<'_>) -> bool {
    model.calls.iter().any(|call| {
        matches!(last_name(&call.node.func), Some("DistributedDataParallel" | "DDP" | "init_process_group"))
    })
}

/// Whether a branch for the first process is around a load: `if rank == 0:`, `if is_main_process():`
fn is_of_one_process(model: &Model<'_>, load: &Call<'_>) -> bool {
    model.within_function(load.ctx).any(|id| match model.ctx(id).kind {
        CtxKind::Branch(Some(test)) => is_for_one_process(test),
        _ => false,
    })
}

fn is_for_one_process(test: &Expr) -> bool {
    const MAIN: &[&str] = &["is_main_process", "is_master", "is_master_process", "is_rank_zero", "is_local_main_process", "is_main"];
    match test {
        Expr::Compare(node) => {
            let of_rank = |side: &Expr| {
                let name = match side {
                    Expr::Call(call) => last_name(&call.func),
                    side => last_name(side),
                };
                name.is_some_and(|name| name.to_ascii_lowercase().contains("rank"))
            };
            let is_zero = |side: &Expr| matches!(side, Expr::NumberLiteral(node) if node.value.as_int().and_then(ast::Int::as_u64) == Some(0));
            matches!(&*node.ops, [ast::CmpOp::Eq]) && of_rank(&node.left) && node.comparators.iter().all(is_zero)
        }
        Expr::Call(call) => last_name(&call.func).is_some_and(|name| MAIN.contains(&name)),
        _ => last_name(test).is_some_and(|name| MAIN.contains(&name)),
    }
}

/// Where a model is that was filled from what keeps its name while it runs.
pub(super) enum Beside {
    OnGpu,
    /// On the CPU, and moved to the GPU since.
    MovedLater,
}

/// Whether what `torch.load` returned keeps its name while the model runs that it filled.
pub(super) fn stays_beside(model: &Model<'_>, load: &Call<'_>) -> Option<Beside> {
    let func = model.func_of(load.ctx);
    let named = (model.assigns.iter()).find(|assign| assign.expr.is_some_and(|expr| is_of(expr, load)))?;
    let Expr::Name(target) = named.target else {
        return None;
    };
    let loads = loads_of(model, load);
    let (place, since, beside) = loads
        .iter()
        .filter(|(call, _)| !keeps_its_state(model, call) && !fills_a_small_model(model, call))
        .find_map(|(call, _)| {
            let on_gpu = || (is_on_gpu(model, call) == Tri::Yes).then(|| (call.node.end(), Beside::OnGpu));
            let moved = || moved_after(model, call).map(|at| (at, Beside::MovedLater));
            let (since, beside) = on_gpu().or_else(moved)?;
            Some((call.recv_place()?, since, beside))
        })?;
    let works = first_work(model, func, &place, since, load.node.range())
        .or_else(|| works_as_global(model, func, &place))?;
    // The peak was before, or the first step of what is resumed fails.
    if comes_after_training(model, load) || matches!(beside, Beside::MovedLater) && resumes_too_early(model, load) {
        return None;
    }
    (!loses_its_name(model, named, target.id.as_str(), works)).then_some(beside)
}

/// Where a script ends whose functions run a model that the script itself names: a name of its top lives until then.
fn works_as_global(model: &Model<'_>, func: Option<FuncId>, place: &str) -> Option<TextSize> {
    if func.is_some() {
        return None;
    }
    let runs_it = |call: &Call<'_>| {
        let inside = model.func_of(call.ctx);
        inside.is_some()
            && dotted_name(&call.node.func).as_deref() == Some(place)
            && model.assigns_to(inside, place).next().is_none()
            && !inside.is_some_and(|id| {
                model.func(id).node.parameters.iter_non_variadic_params().any(|each| each.parameter.name.as_str() == place)
            })
    };
    model.calls.iter().any(runs_it).then(|| TextSize::of(model.module.text()))
}

/// Whether a load is in a branch for `gpu is None`, where the file moves its batches to a GPU only if there is one, and nothing else
/// scatters them: the first forward pass of that branch fails.
fn never_feeds_the_gpu(model: &Model<'_>, load: &Call<'_>) -> bool {
    let place_of = |test: &Expr, none: ast::CmpOp| match test {
        Expr::Compare(node) => match (&*node.ops, &*node.comparators) {
            ([op], [Expr::NoneLiteral(_)]) if *op == none => dotted_name(&node.left),
            _ => None,
        },
        _ => None,
    };
    let tests = |ctx: CtxId, op: ast::CmpOp| {
        model.within_function(ctx).filter_map(move |id| match model.ctx(id).kind {
            CtxKind::Branch(Some(test)) => place_of(test, op),
            _ => None,
        })
    };
    let Some(place) = tests(load.ctx, ast::CmpOp::Is).next() else {
        return false;
    };
    let scatters = model.calls.iter().any(is_data_parallel);
    let mut moves = (model.calls.iter())
        .filter(|call| matches!(call.method, Some("to" | "cuda")) && !call.recv.is_model())
        .filter(|call| model.loops_around(call.ctx).any(|each| each.data))
        .peekable();
    !scatters && moves.peek().is_some() && moves.all(|call| tests(call.ctx, ast::CmpOp::IsNot).any(|each| each == place))
}

/// Whether a load comes after all training of its function, which every run of it has done by then: what evaluates the best
/// weights needs less than what found them.
fn comes_after_training(model: &Model<'_>, load: &Call<'_>) -> bool {
    let func = model.func_of(load.ctx);
    // The outermost loop around it, and what that is in.
    let around = |range: TextRange, ctx: CtxId| match model.loops_around(ctx).last() {
        Some(outer) => (outer.range, model.ctx(outer.ctx).parent),
        None => (range, Some(ctx)),
    };
    let loops = model.loops.iter().filter(|each| each.contains_backward && model.func_of(each.ctx) == func);
    let loops = loops.map(|each| around(each.range, each.ctx));
    let calls = model.calls_in_function(func).filter(|call| call.target.is_some_and(|id| model.func(id).has_backward));
    let mut sites = loops.chain(calls.map(|call| around(call.node.range(), call.ctx))).peekable();
    sites.peek().is_some()
        && sites.all(|(range, ctx)| {
            range.end() < load.node.start() && ctx.is_some_and(|ctx| model.is_inside(load.ctx, ctx))
        })
}

/// `torch.load(path)`, `torch.load(path)["model"]`
fn is_of(expr: &Expr, load: &Call<'_>) -> bool {
    match expr {
        Expr::Subscript(item) => is_of(&item.value, load),
        _ => expr.range() == load.node.range(),
    }
}

/// Where a function first works with a model after an offset: a loop that trains or reads batches, a pass, or a call that it is given to.
fn first_work(model: &Model<'_>, func: Option<FuncId>, place: &str, after: TextSize, load: TextRange) -> Option<TextSize> {
    let loops = model.loops.iter().filter(|each| {
        (each.contains_backward || each.data)
            && model.func_of(each.ctx) == func
            && each.range.start() > after
            && !excludes(model, load, each.range)
    });
    let calls = model
        .calls_in_function(func)
        .filter(|call| call.node.start() > after && runs(model, call, place) && !excludes(model, load, call.node.range()));
    loops.map(|each| each.range.start()).chain(calls.map(|call| call.node.start())).min()
}

/// Whether a name is deleted, or bound anew, between where it is bound and an offset.
fn loses_its_name(model: &Model<'_>, named: &Assign<'_>, name: &str, works: TextSize) -> bool {
    let func = model.func_of(named.ctx);
    let is_between = |at: TextSize| named.target.end() < at && at < works;
    model.assigns_to(func, name).any(|other| is_between(other.target.start()))
        || model.stmts.iter().any(|info| match info.node {
            Stmt::Delete(delete) if model.func_of(info.ctx) == func && is_between(delete.start()) => {
                delete.targets.iter().any(|each| dotted_name(each).as_deref() == Some(name))
            }
            _ => false,
        })
}

/// Whether a call runs a model, or hands it to somebody who does.
fn runs(model: &Model<'_>, call: &Call<'_>, place: &str) -> bool {
    const OTHERS: &[&str] = &["print", "DataParallel", "DistributedDataParallel", "DDP", "compile", "watch", "summary", "save", "append", "extend", "insert", "add"];
    // `disable_grad(model)`, `count_parameters(model)`
    const SETTLES: &[&str] = &["grad", "freeze", "init_", "count_", "num_param", "load_", "save_"];
    let is_it = |expr: &Expr| dotted_name(expr).as_deref() == Some(place);
    let is_pass = is_it(&call.node.func)
        || call.recv_place().as_deref() == Some(place) && matches!(call.method, Some("generate" | "sample" | "forward" | "predict"));
    let works = || match call.target {
        Some(id) if stops_at_a_batch(model, id) => false,
        Some(id) => model.func(id).has_forward || model.func(id).has_backward || model.loops.iter().any(|each| each.data && model.func_of(each.ctx) == Some(id)),
        None => last_name(&call.node.func).is_some_and(|name| {
            !OTHERS.contains(&name) && !SETTLES.iter().any(|word| name.contains(word))
        }),
    };
    is_pass || call.node.arguments.iter_source_order().any(|arg| is_it(arg.value())) && works()
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
    let is_it = |rest: &str| rest.is_empty() || rest.starts_with('.');
    names
        .iter()
        .any(|each| name.strip_prefix(each.as_str()).is_some_and(is_it))
}
