use oomph_python_source::ast::Stmt;
use oomph_python_source::{Edit, Ranged, TextRange, ast, dotted_name, last_name, names_in};
use rustc_hash::FxHashSet;

use crate::fix::Fix;
use crate::queries::flow::{Flow, Life};
use crate::queries::devices::{leaves_batches_on_cpu, on_cpu_only, runs_on_cpu};
use crate::queries::model_calls::{is_frozen, is_model_call, model_place};
use crate::queries::purpose::{has_managed_loop, in_unit_test, is_eval_name};
use crate::queries::sizes::is_certainly_tiny;
use crate::rule::{Report, declare_rule};
use super::graph_without_use::{needs_no_advice, passes_without_use, runs_once};
use super::inference_builds_graph::{is_one_of_both_modes, is_pass_that_may_detach, is_unpickled};
use crate::semantic::value::Kind;
use crate::semantic::{Call, CtxId, CtxKind, FuncId, Grad, Loop, Model};

declare_rule! {
    /// Evaluation builds a graph.
    ///
    /// ## What it does
    ///
    /// Looks for loops over a loader that call a model which `model.eval()` put in evaluation mode,
    /// without `torch.no_grad()` or `torch.inference_mode()` around them, and without a
    /// `backward()`. Also for loops that train and evaluate by a flag, `run_epoch(train=False)`, and run
    /// `backward()` only if it is set, where the forward pass records a graph either way; and for passes whose result no
    /// `backward()` gets, in functions that `validate`, `test` or `predict` by their names, or that a loop after
    /// `model.eval()` calls for each batch, or in any loop, if a name still has the graph while the next iteration
    /// builds another. Left out are networks all of
    /// whose parameters are frozen, in the function, in one that hands them over or in one that is given them; modules whose
    /// `forward` runs backward itself, or that are given another network in evaluation mode; what is
    /// inside of a context manager of other code that is given the network, or named for gradients or inference;
    /// loops that end after one batch; in files that train, passes whose graph is gone before the next batch has its own,
    /// as no name keeps it: a training step holds as much; classifiers with a million parameters at most; classes that have
    /// linear layers only; images of MNIST; functions that name no GPU and no device; and networks that play in an environment,
    /// which they give an action in each iteration.
    ///
    /// ## Why it costs memory
    ///
    /// `eval()` changes dropout and batch normalization; it does not turn gradients off. The forward
    /// pass keeps every activation for a `backward()` that never comes, several times what
    /// evaluation needs. Evaluation then runs out of memory at a batch size that trains.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def evaluate(model, loader):
    ///     model.eval()
    ///     correct = 0
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         output = model(x)
    ///         correct += (output.argmax(1) == y).sum().item()
    ///     return correct
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// @torch.no_grad()
    /// def evaluate(model, loader):
    ///     model.eval()
    ///     correct = 0
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         output = model(x)
    ///         correct += (output.argmax(1) == y).sum().item()
    ///     return correct
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When every caller, in other files, turns gradients off. PyTorch has `no_grad()` since 0.4: nothing is said if the project pins an older one.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: what the function returns no longer has a graph. Offered for functions that only
    /// evaluate.
    OOM201 "evaluation-builds-graph" { fix: Sometimes, fresh: [89, 97] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let mut flow = Flow::of_graphs(model);
    for (_, call) in graph_loops(model) {
        if !is_in_eval_mode(model, call) || is_part_of_step(model, call) {
            continue;
        }
        if is_no_more_than_a_step(model, call, &mut flow) || is_tiny(model, call) || names_no_gpu(model, call) {
            continue;
        }
        let place = model_place(call).unwrap_or_default();
        out.push(
            Report::new(
                call.node,
                format!("`{place}` is evaluated with gradients on: every activation is kept for a `backward()` that never comes"),
            )
            .help("put `@torch.no_grad()` on the function, or `with torch.no_grad():` around the loop")
            .since(0, 4)
            .fix(decorate(model, call)),
        );
    }
    for (call, place) in only_evaluated(model) {
        if is_no_more_than_a_step(model, call, &mut flow) || is_tiny(model, call) || names_no_gpu(model, call) {
            continue;
        }
        out.push(
            Report::new(
                call.node,
                format!("`{place}` only evaluates in this loop over batches, with gradients on: every activation is kept for a `backward()` that never comes"),
            )
            .help("put `@torch.no_grad()` on the function, or `with torch.no_grad():` around the loop")
            .since(0, 4)
            .fix(decorate(model, call)),
        );
    }
    for (range, place) in kept_into_next(model) {
        out.push(
            Report::new(
                *range,
                format!("no `backward()` uses what `{place}` returns, and its graph is still there while the next iteration builds another"),
            )
            .help("call it under `with torch.no_grad():`")
            .since(0, 4),
        );
    }
    for (flag, call) in shared_loops(model) {
        let place = model_place(call).unwrap_or_default();
        out.push(
            Report::new(
                call.node,
                format!("`{place}` records a graph also when `{flag}` says that nothing trains: every activation is kept for a `backward()` that never comes"),
            )
            .help("put `with torch.set_grad_enabled(training):` around the forward pass")
            .since(0, 4),
        );
    }
}

/// Whether a pass holds no more than a training step of its file does: its one graph is gone before the next batch has its own. Where
/// a name has the old one still, as `output = model(x)` does, there are two.
fn is_no_more_than_a_step<'a>(model: &Model<'a>, call: &Call<'a>, flow: &mut Flow<'_, 'a>) -> bool {
    let Some(looped) = model.loops_around(call.ctx).find(|each| each.data) else {
        return false;
    };
    let passes = model.calls.iter().filter(|other| is_model_call(other) && looped.range.contains_range(other.node.range()));
    !model.backwards.is_empty() && passes.count() <= 1 && flow.life(call, looped) == Life::Iteration
}

/// Whether a pass is in a function that names no GPU and no device: it takes its batches as they come, and nothing shows that they
/// are on one.
fn names_no_gpu(model: &Model<'_>, call: &Call<'_>) -> bool {
    const WORDS: &[&str] = &["cuda", ".to(", "device", "gpu", "GPU", "accelerat"];
    let mut around = (model.funcs.iter().map(|func| func.node))
        .filter(|node| node.range.contains_range(call.node.range()))
        .peekable();
    around.peek().is_some() && !around.any(|node| WORDS.iter().any(|word| model.text(node).contains(word)))
}

/// Whether what is evaluated is certainly small: a network that ends in linear layers and has a few parameters, or images of MNIST's
/// size that nothing enlarges.
fn is_tiny(model: &Model<'_>, call: &Call<'_>) -> bool {
    const DIGITS: &[&str] = &["MNIST", "FashionMNIST", "KMNIST", "QMNIST", "EMNIST"];
    const ENLARGE: &[&str] = &["Resize", "Scale", "RandomResizedCrop", "Pad", "interpolate", "Upsample"];
    let place = model_place(call).unwrap_or_default();
    let mut data = (model.calls.iter())
        .filter(|each| each.qual.as_deref().is_some_and(|qual| qual.starts_with("torchvision.datasets.")))
        .filter_map(|each| last_name(&each.node.func))
        .peekable();
    let of_digits = data.peek().is_some()
        && data.all(|name| DIGITS.contains(&name))
        && !model.calls.iter().any(|each| last_name(&each.node.func).is_some_and(|name| ENLARGE.contains(&name)));
    of_digits || is_certainly_tiny(model, model.func_of(call.ctx), &place)
}

/// Passes in loops over batches that evaluate, by the flow of what they return: in a function that says so by its name,
/// or that a function which put a model in evaluation mode calls for each batch.
pub(super) fn only_evaluated<'m, 'a>(model: &'m Model<'a>) -> Vec<(&'m Call<'a>, String)> {
    let evaluating = functions_of_evaluation(model);
    if evaluating.is_empty() {
        return Vec::new();
    }
    let mut passes = passes_without_use(model, |call| is_evaluated_in_a_loop(model, &evaluating, call));
    if !passes.is_empty() {
        // One `no_grad()` is enough for a function.
        let known = graph_loops(model).into_iter().filter(|(_, call)| is_in_eval_mode(model, call));
        let known: Vec<Option<FuncId>> = known.map(|(_, call)| model.func_of(call.ctx)).collect();
        passes.retain(|(call, place)| {
            let func = model.func_of(call.ctx);
            // `decoder.rank(x)`
            let owner = call.recv_place().filter(|_| !call.callee.is_model());
            !known.contains(&func) && !is_unpickled(model, func, owner.as_ref().unwrap_or(place))
        });
    }
    passes
}

/// Other passes in loops whose result reaches no `backward()` and whose graph a name
/// takes into the next iteration.
fn kept_into_next<'m>(model: &'m Model<'_>) -> &'m [(TextRange, String)] {
    model.kept_into_next.get_or_init(|| {
        let passes = find_kept_into_next(model).into_iter();
        passes.map(|(call, place)| (call.node.range(), place)).collect()
    })
}

/// Whether a pass is one of these: OOM201 reports it.
pub(super) fn is_kept_into_next(model: &Model<'_>, call: &Call<'_>) -> bool {
    kept_into_next(model).iter().any(|(range, _)| *range == call.node.range())
}

fn find_kept_into_next<'m, 'a>(model: &'m Model<'a>) -> Vec<(&'m Call<'a>, String)> {
    let evaluating = functions_of_evaluation(model);
    let known: Vec<Option<FuncId>> = graph_loops(model)
        .into_iter()
        .filter(|(_, call)| is_in_eval_mode(model, call))
        .map(|(_, call)| model.func_of(call.ctx))
        .collect();
    let mut flow = Flow::of_graphs(model);
    let mut passes = passes_without_use(model, |call| {
        model.loops_around(call.ctx).next().is_some()
            && !known.contains(&model.func_of(call.ctx))
            && !is_evaluated_in_a_loop(model, &evaluating, call)
    });
    passes.retain(|(call, place)| {
        let looped = model.loops_around(call.ctx).next();
        looped.is_some_and(|each| flow.life(call, each) == Life::Next)
            && !is_certainly_tiny(model, model.func_of(call.ctx), place)
            && !names_no_gpu(model, call)
            && !is_of_a_late_import(model, model.func_of(call.ctx), place)
    });
    passes
}

/// Whether a network is of a module that its function imports itself: nothing shows that the module is there.
fn is_of_a_late_import(model: &Model<'_>, func: Option<FuncId>, place: &str) -> bool {
    let late: Vec<&str> = (model.stmts.iter())
        .filter(|info| func.is_some() && model.func_of(info.ctx) == func)
        .flat_map(|info| match info.node {
            Stmt::Import(node) => &node.names[..],
            Stmt::ImportFrom(node) => &node.names[..],
            _ => &[],
        })
        .map(|alias| alias.asname.as_ref().unwrap_or(&alias.name).as_str())
        .collect();
    !late.is_empty()
        && model.assigns_to(func, place).any(|assign| {
            let names = assign.expr.map(names_in).unwrap_or_default();
            names.iter().any(|name| late.contains(&name.split('.').next().unwrap_or(name)))
        })
}

/// Whether a function brings something else than a model to a GPU.
fn moves_data(model: &Model<'_>, func: Option<FuncId>) -> bool {
    model
        .calls_in_function(func)
        .any(|call| matches!(call.method, Some("to" | "cuda")) && !call.recv.is_model())
}

/// Functions that have, or are called in, a loop over batches that nothing trains with.
pub(super) fn functions_of_evaluation(model: &Model<'_>) -> FxHashSet<FuncId> {
    let loops: Vec<&Loop<'_>> = model.loops.iter().filter(|each| each.data && !each.contains_backward).collect();
    if loops.is_empty() {
        return FxHashSet::default();
    }
    let called = model.calls.iter().filter_map(|call| {
        call.target.filter(|_| loops.iter().any(|each| each.range.contains_range(call.node.range())))
    });
    loops.iter().filter_map(|each| model.func_of(each.ctx)).chain(called).collect()
}

/// Whether a pass is in a loop over batches that are brought to a GPU and that nothing trains with, of its function or
/// of every call of it in the file. What `model.eval()` is said of before, in the loop's own function, is not asked for.
pub(super) fn is_evaluated_in_a_loop(model: &Model<'_>, evaluating: &FxHashSet<FuncId>, pass: &Call<'_>) -> bool {
    let evaluates = |call: &Call<'_>| {
        let looped = model.loops_around(call.ctx).find(|each| each.data);
        looped.is_some_and(|each| {
            call.grad == Grad::On
                && each.grad == Grad::On
                && !each.contains_backward
                && model.training_loop(each.ctx).is_none()
        })
    };
    let Some(id) = model.func_of(pass.ctx).filter(|id| evaluating.contains(id)) else {
        return false;
    };
    let func = Some(id);
    if model.func(id).has_backward || model.func(id).has_step {
        return false;
    }
    if model.loops_around(pass.ctx).any(|each| each.data) {
        return is_eval_name(model.func(id).node.name.as_str())
            && evaluates(pass)
            && moves_data(model, func)
            && !is_in_eval_mode(model, pass);
    }
    let mut callers = model.calls.iter().filter(|call| call.target == func).peekable();
    callers.peek().is_some()
        && callers.all(|call| {
            let there = model.func_of(call.ctx);
            evaluates(call) && (moves_data(model, there) || moves_data(model, func)) && switches_to_evaluation(model, there)
        })
}

/// Whether a function puts a model in evaluation mode, and does nothing for training.
fn switches_to_evaluation(model: &Model<'_>, func: Option<FuncId>) -> bool {
    let switches = |name: &str| {
        model
            .calls_in_function(func)
            .any(|call| call.is_method(name) && call.node.arguments.is_empty())
    };
    let trains = func.is_some_and(|id| model.func(id).has_backward || model.func(id).has_step);
    switches("eval") && !switches("train") && !trains
}

/// Loops over batches that train or evaluate by a flag: the flag and the call of the model.
fn shared_loops<'m, 'a>(model: &'m Model<'a>) -> Vec<(&'a str, &'m Call<'a>)> {
    let mut found = Vec::new();
    if has_managed_loop(model) {
        return found;
    }
    for looped in &model.loops {
        if !looped.data || !looped.contains_backward || looped.grad != Grad::On {
            continue;
        }
        let guards: Vec<_> = model
            .backwards
            .iter()
            .filter(|backward| model.is_inside(backward.ctx, looped.ctx))
            .map(|backward| flag_around(model, backward.ctx, looped))
            .collect();
        // One test around every `backward()`.
        let Some(Some((branch, flag))) = guards.first().copied() else {
            continue;
        };
        if guards.iter().any(|each| each.is_none_or(|(_, other)| other != flag))
            || !is_unset_somewhere(model, looped, flag)
        {
            continue;
        }
        let call = model.calls.iter().find(|call| {
            is_model_call(call)
                && call.grad == Grad::On
                && call.node.start() < model.ctx(branch).range.start()
                && model.loops_around(call.ctx).find(|each| each.data).map(|each| each.ctx)
                    == Some(looped.ctx)
                // Inside no branch of its own: `if train: … else: with no_grad(): …` is fine.
                && !model.is_conditional_in(call.ctx, looped.ctx)
                && !model_place(call).is_some_and(|place| is_frozen(model, model.func_of(call.ctx), &place, call.node.start()))
        });
        if let Some(call) = call
            && !runs_on_cpu(model, call)
            && !on_cpu_only(model)
            && !in_unit_test(model, looped.ctx)
        {
            found.push((flag, call));
        }
    }
    found
}

/// The branch around a `backward()` whose test is a flag, and the flag: `if train:`,
/// `if optimizer is not None:`, `if phase == "train":`.
fn flag_around<'a>(model: &Model<'a>, ctx: CtxId, looped: &Loop<'a>) -> Option<(CtxId, &'a str)> {
    model
        .within_function(ctx)
        .take_while(|id| *id != looped.ctx)
        .find_map(|id| match model.ctx(id).kind {
            CtxKind::Branch(Some(test)) => flag_of(test).map(|flag| (id, flag)),
            _ => None,
        })
}

fn flag_of(test: &ast::Expr) -> Option<&str> {
    match test {
        ast::Expr::Name(name) => Some(name.id.as_str()),
        ast::Expr::Compare(node) => match (&*node.left, &*node.ops, &*node.comparators) {
            (ast::Expr::Name(name), [ast::CmpOp::IsNot], [ast::Expr::NoneLiteral(_)]) => {
                Some(name.id.as_str())
            }
            (ast::Expr::Name(name), [ast::CmpOp::Eq], [ast::Expr::StringLiteral(word)])
                if word.value.to_str().starts_with("train") =>
            {
                Some(name.id.as_str())
            }
            _ => None,
        },
        _ => None,
    }
}

/// Whether the file runs the loop with the flag unset: a call passes `False`, `None` or another
/// word, or leaves it at such a default; or a loop over words sets it.
fn is_unset_somewhere(model: &Model<'_>, looped: &Loop<'_>, flag: &str) -> bool {
    let unset = |expr: &ast::Expr| match expr {
        ast::Expr::NoneLiteral(_) => true,
        ast::Expr::BooleanLiteral(literal) => !literal.value,
        ast::Expr::StringLiteral(text) => !text.value.to_str().starts_with("train"),
        _ => false,
    };
    // `for phase in ["train", "val"]:`
    let by_loop = model.loops_around(looped.ctx).any(|around| {
        model.stmts.iter().any(|stmt| {
            let Stmt::For(node) = stmt.node else { return false };
            node.range == around.range
                && matches!(&*node.target, ast::Expr::Name(name) if name.id.as_str() == flag)
                && match &*node.iter {
                    ast::Expr::List(list) => list.elts.iter().any(unset),
                    ast::Expr::Tuple(tuple) => tuple.elts.iter().any(unset),
                    _ => false,
                }
        })
    });
    let Some(func) = model.func_of(looped.ctx) else {
        return by_loop;
    };
    let parameters: Vec<_> = model.func(func).node.parameters.iter_non_variadic_params().collect();
    let Some(position) = parameters
        .iter()
        .position(|each| each.parameter.name.as_str() == flag)
    else {
        return by_loop;
    };
    // Bound to another value inside: not the caller's any more.
    if model.assigns_to(Some(func), flag).next().is_some() {
        return by_loop;
    }
    let default = parameters[position].default.as_deref();
    let is_method = parameters
        .first()
        .is_some_and(|each| each.parameter.name.as_str() == "self");
    by_loop
        || model.calls.iter().any(|call| {
            call.target == Some(func)
                && matches!(call.grad, Grad::On)
                && !call.has_star_args()
                && !call.has_star_kwargs()
                && call
                    .arg(flag, position - usize::from(is_method))
                    .or(default)
                    .is_some_and(unset)
        })
}

/// Loops over batches that call a model with gradients on and run no `backward()`: the loop and
/// the first such call.
pub(super) fn graph_loops<'m, 'a>(model: &'m Model<'a>) -> Vec<(&'m Loop<'a>, &'m Call<'a>)> {
    let mut found = Vec::new();
    for looped in &model.loops {
        if !looped.data || looped.contains_backward || looped.grad != Grad::On {
            continue;
        }
        // Inside a training loop, a loop over batches may be part of the step.
        let evaluates = || {
            model
                .calls_in_function(model.func_of(looped.ctx))
                .any(|call| call.is_method("eval") && call.recv.is_model())
        };
        if model.training_loop(looped.ctx).is_some() && !evaluates() {
            continue;
        }
        if model.in_lightning(looped.ctx) || in_unit_test(model, looped.ctx) {
            continue;
        }
        let first = model.calls.iter().find(|call| {
            (is_model_call(call) || is_pass_that_may_detach(model, call))
                && call.grad == Grad::On
                && model.is_inside(call.ctx, looped.ctx)
                && model.func_of(call.ctx) == model.func_of(looped.ctx)
                // Of nested loops over batches, the inner one is reported.
                && model.loops_around(call.ctx).find(|each| each.data).map(|each| each.ctx)
                    == Some(looped.ctx)
        });
        let Some(first) = first else { continue };
        // A method of a published module: its callers, in other files, decide.
        let callers_decide = model.func_of(looped.ctx).is_some_and(|id| {
            let func = model.func(id);
            !func.called
                && is_eval_name(func.node.name.as_str())
                && func.class.is_some_and(|class| model.class(class).is_module)
        });
        let quiet_caller = model
            .func_name(looped.ctx)
            .is_some_and(|name| model.around.calls_quietly(name));
        if callers_decide
            || quiet_caller
            || runs_on_cpu(model, first)
            || leaves_batches_on_cpu(model, looped)
            || on_cpu_only(model)
            // It fails since PyTorch 0.5, and before, `volatile=True` inputs turned gradients off.
            || model.text(looped.range).contains("loss.data[0]")
        {
            continue;
        }
        // Gradients with respect to the input, or a graph that is exported.
        let wants_graph = model.calls.iter().any(|call| {
            model.func_of(call.ctx) == model.func_of(looped.ctx)
                && (call.is("torch.autograd.grad")
                    || call.target.is_none()
                        && call.method.is_none()
                        && last_name(&call.node.func).is_some_and(|name| {
                            name == "gradient_update_parameters" || model.around.runs_backward(name)
                        })
                    || call.is_method("requires_grad_")
                    || call.is_method("backward"))
                && model.is_inside(call.ctx, looped.ctx)
        }) || model.assigns.iter().any(|assign| {
            assign.place.ends_with(".requires_grad") && model.is_inside(assign.ctx, looped.ctx)
        });
        // `model = GradCAM(model)`: the wrapper runs backward in its forward pass, wherever it goes.
        let is_cam = model.assigns.iter().any(|assign| {
            assign.value.kind != Kind::Plain
                && matches!(assign.expr, Some(ast::Expr::Call(made))
                    if dotted_name(&made.func).is_some_and(|name| {
                        let name = name.to_ascii_lowercase();
                        name.contains("cam.") || name.ends_with("cam") || name.contains("gradcam")
                    }))
        });
        // The loss leaves the function: someone may call `backward()` on it.
        let settled = model_place(first).is_some_and(|place| {
            is_frozen(model, model.func_of(first.ctx), &place, first.node.start()) || needs_no_advice(model, first, &place)
        });
        if !wants_graph && !is_cam && !settled && !runs_once(model, first) {
            found.push((looped, first));
        }
    }
    found
}

/// Whether a pass inside an iteration that trains is part of the step: its own loop switches to evaluation mode and back
/// around it, as batches of one need for batch normalization.
fn is_part_of_step(model: &Model<'_>, call: &Call<'_>) -> bool {
    let place = model_place(call);
    let Some(looped) = model.loops_around(call.ctx).find(|each| each.data) else {
        return false;
    };
    let switches = |name: &str, after: bool| {
        model.calls.iter().any(|other| {
            other.is_method(name)
                && other.recv_place() == place
                && looped.range.contains_range(other.node.range())
                && (other.node.start() > call.node.start()) == after
        })
    };
    model.training_loop(looped.ctx).is_some() && switches("eval", false) && switches("train", true)
}

/// `model.eval()` came before the loop, in its function, and no `model.train()` since.
pub(super) fn is_in_eval_mode(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(place) = model_place(call) else {
        return false;
    };
    let mut in_eval = false;
    for other in model.calls_in_function(model.func_of(call.ctx)) {
        // Inside the loop as well, as long as it comes before the call.
        if other.node.start() > call.node.start() {
            break;
        }
        let recv = other.recv_place();
        let same = recv.as_deref().is_some_and(|recv| {
            recv == place || place.starts_with(&format!("{recv}.")) || recv.starts_with(&format!("{place}."))
        });
        if !same {
            continue;
        }
        match other.method {
            Some("eval") => in_eval = !is_one_of_both_modes(model, call, other),
            Some("train") => {
                in_eval = matches!(
                    other.node.arguments.find_positional(0),
                    Some(ast::Expr::BooleanLiteral(flag)) if !flag.value
                );
            }
            _ => {}
        }
    }
    in_eval
}

/// A decorator for the function, if all that it does is evaluate.
pub(super) fn decorate(model: &Model<'_>, call: &Call<'_>) -> Option<Fix> {
    let func = model.func_of(call.ctx)?;
    let info = model.func(func);
    let trains = info.has_backward
        || model.calls_in_function(Some(func)).any(|other| {
            other.is_method("train") && other.node.arguments.is_empty()
                || other.is_method("backward")
                || other.is("torch.autograd.grad")
        });
    let is_generator = model.text(info.node).contains("yield");
    // At module level, where the decorator runs.
    let imports_torch = model.module.text().lines().any(|line| line.trim_end() == "import torch");
    // `no_grad` does not reach into a coroutine or a generator.
    if trains
        || info.node.is_async
        || is_generator
        || !imports_torch
        || !is_eval_name(info.node.name.as_str())
        || !matches!(model.ctx(info.body?).kind, CtxKind::Function)
    {
        return None;
    }
    let start = info.node.decorator_list.first().map_or(info.node.start(), Ranged::start);
    let indent = model.module.indentation(start)?;
    // Innermost: right above `def`.
    let at = if info.node.decorator_list.is_empty() {
        start
    } else {
        let last = info.node.decorator_list.last()?.end().to_usize();
        let rest = model.module.text().get(last..)?;
        let line_end = rest.find('\n')? + 1;
        let skipped = rest.get(line_end..)?;
        if !skipped.trim_start().starts_with("def ") {
            return None;
        }
        let lead = skipped.len() - skipped.trim_start().len();
        oomph_python_source::TextSize::new((last + line_end + lead) as u32)
    };
    Some(Fix::unsafe_(
        "decorate the function with `@torch.no_grad()`",
        Edit::insert(at, format!("@torch.no_grad()\n{indent}")),
    ))
}
