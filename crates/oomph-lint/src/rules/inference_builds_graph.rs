use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, dotted_name, last_name, last_part, names_in};

use super::evaluation_builds_graph::is_kept_into_next;
use crate::queries::devices::{on_cpu_only, runs_on_cpu};
use crate::queries::loop_carried::feeds_backward;
use crate::queries::model_calls::{has_no_parameters, is_model_call, is_of_frozen_class, model_place};
use crate::queries::sizes::{is_one_example, keeps_few_activations};
use crate::queries::purpose::in_unit_test;
use crate::project::{DECIDES, Method, settles_gradients};
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Kind, Tri, Value};
use crate::semantic::{Call, CtxId, CtxKind, FuncId, Grad, Model, torch};

declare_rule! {
    /// Inference outside a loop over batches builds a graph.
    ///
    /// ## What it does
    ///
    /// Looks for a call of a model after `model.eval()` in the same function, with gradients on, in
    /// a function that trains nothing or between the steps of one that does. A model that
    /// `from_pretrained` made at the top of a script is in evaluation mode from the start. It leaves out
    /// functions that return the output as it is and that nothing in the file calls, and runs on one
    /// made-up sample. A file that only loads weights and puts a model in evaluation mode counts as inference as a
    /// whole, and `model.sample(n)` as a pass, if the project's classes say so. It also looks for outputs that are
    /// only used detached, as in rollouts, and in functions that train for samples that are only drawn or written to
    /// a file.
    ///
    /// ## Why it costs memory
    ///
    /// The forward pass keeps every activation until its output is dropped: inference needs several
    /// times the memory that it would need under `torch.inference_mode()`.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def classify(path, image):
    ///     model = torch.hub.load("pytorch/vision", "resnet50").cuda()
    ///     model.eval()
    ///     return model(image).argmax(1)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def classify(path, image):
    ///     model = torch.hub.load("pytorch/vision", "resnet50").cuda()
    ///     model.eval()
    ///     with torch.inference_mode():
    ///         return model(image).argmax(1)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When gradients with respect to the input are wanted, or the caller turns gradients off.
    ///
    /// ## Fix safety
    ///
    /// No fix: only you know what belongs inside the block.
    OOM205 "inference-builds-graph" { fix: None, fresh: [8, 18] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let mut seen = Vec::new();
    for call in &model.calls {
        if !(is_model_call(call) || is_pass_by_method(model, call)) || call.grad != Grad::On || is_kept_into_next(model, call) {
            continue;
        }
        let Some(place) = model_place(call) else {
            continue;
        };
        let func = model.func_of(call.ctx);
        // Inside a method, `self.model.eval()` elsewhere decides; loops over batches are OOM201.
        if model.loops_around(call.ctx).any(|each| each.data && !each.contains_backward)
            || (trains(model, func)
                && !is_evaluated_between_steps(model, call)
                && !is_only_shown(model, call)
                && !is_only_used_detached(model, call))
            || model.in_lightning(call.ctx)
            || in_unit_test(model, call.ctx)
            // The graph is dropped as soon as it is made, or the output itself is.
            || model.text(model.stmt(call.stmt).node).contains(".detach()")
            || matches!(model.stmt(call.stmt).node, Stmt::Expr(only) if only.value.range() == call.node.range())
            || matches!(model.stmt(call.stmt).node, Stmt::Assign(assign) if matches!(
                &*assign.targets, [Expr::Name(name)] if name.id.as_str() == "_"))
            || runs_on_cpu(model, call)
            || asks_for_gradients(model, call)
            || is_unpickled(model, func, &place)
            || is_of_frozen_class(model, &place)
            || has_no_parameters(model, &place)
            || keeps_few_activations(model, func, &place)
            || is_one_example(model, call)
            || model.func_name(call.ctx).is_some_and(|name| model.around.calls_quietly(name))
            || model.within_function(call.ctx).any(|id| matches!(model.ctx(id).kind, CtxKind::Lambda))
            || seen.contains(&(func, place.clone()))
        {
            continue;
        }
        let mut in_eval = false;
        for other in model.calls_in_function(func) {
            if other.node.start() >= call.node.start() {
                break;
            }
            if other.recv_place().as_deref() == Some(place.as_str()) {
                match other.method {
                    Some("eval") => in_eval = !is_one_of_both_modes(model, call, other),
                    Some("train") => in_eval = false,
                    _ => {}
                }
            }
        }
        // `model = build().eval()`
        let built_in_eval = model.assigns_to(func, &place).last().is_some_and(|assign| {
            assign.expr.is_some_and(|expr| model.text(expr).ends_with(".eval()"))
        });
        // `from_pretrained` returns the model in evaluation mode.
        let pretrained = func.is_none() && is_pretrained(model, &place) && model.backwards.is_empty();
        let wanted = || {
            wants_graph(model, call, &place)
                || is_closure(model, func)
                || is_of_published_inception(model, call)
                || callers_decide(model, call)
                || is_taken_for_a_loss(model, call)
                || is_sample(model, call)
        };
        let only_infers = !in_eval && only_infers(model, call);
        let in_training = !in_eval && trains(model, func);
        let shown = in_training && is_only_shown(model, call);
        let detached = !in_eval && is_only_used_detached(model, call);
        if (in_eval || built_in_eval || pretrained || only_infers || shown || detached) && !on_cpu_only(model) && !wanted() {
            seen.push((func, place.clone()));
            out.push(
                Report::new(
                    call.node,
                    if detached {
                        format!("`{place}` records a graph, and what it returns is only used detached")
                    } else if shown {
                        format!("`{place}` makes samples with gradients on: its activations are kept until they are shown")
                    } else {
                        format!("`{place}` runs in evaluation mode with gradients on: its activations are kept")
                    },
                )
                .help("run it under `with torch.inference_mode():`"),
            );
        }
    }
}

/// Whether a call is under `torch.enable_grad()`: somebody wants its gradients.
pub(super) fn asks_for_gradients(model: &Model<'_>, call: &Call<'_>) -> bool {
    model.stmts.iter().any(|info| match info.node {
        Stmt::With(node) => {
            node.range.contains_range(call.node.range())
                && node
                    .items
                    .iter()
                    .any(|item| model.text(&item.context_expr).contains("enable_grad"))
        }
        _ => false,
    })
}

/// Whether a call of `eval()` is in one branch and one of `train()` in the other: `if training: net.train()`,
/// `else: net.eval()`. A pass after both runs in either mode.
pub(super) fn is_one_of_both_modes(model: &Model<'_>, pass: &Call<'_>, eval: &Call<'_>) -> bool {
    let place = eval.recv_place();
    !model.is_inside(pass.ctx, eval.ctx)
        && model.stmts.iter().any(|info| {
            let Stmt::If(branch) = info.node else {
                return false;
            };
            branch.range.contains_range(eval.node.range())
                && !branch.range.contains_range(pass.node.range())
                && model.calls.iter().any(|other| {
                    other.is_method("train")
                        && other.recv_place() == place
                        && branch.range.contains_range(other.node.range())
                })
        })
}

/// Whether a function that nothing in the file calls returns a loss of what the model returned: its caller
/// runs backward. A perceptual loss puts its network in evaluation mode and needs the gradients.
fn is_taken_for_a_loss(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(func) = model.func_of(call.ctx) else {
        return false;
    };
    let is_loss = |expr: &Expr| {
        dotted_name(expr).is_some_and(|name| {
            last_part(&name).to_ascii_lowercase().contains("loss")
                && model
                    .assigns_to(Some(func), &name)
                    .last()
                    .is_some_and(|assign| assign.value.graph != Tri::No)
        })
    };
    !model.func(func).called
        && model.stmts.iter().any(|stmt| {
            let Stmt::Return(node) = stmt.node else {
                return false;
            };
            model.func_of(stmt.ctx) == Some(func)
                && node.value.as_deref().is_some_and(|value| match value {
                    Expr::Tuple(tuple) => tuple.elts.iter().any(is_loss),
                    other => is_loss(other),
                })
        })
}

/// Whether the function, or the file at its top, trains.
fn trains(model: &Model<'_>, func: Option<FuncId>) -> bool {
    match func {
        Some(id) => model.func(id).has_backward || model.func(id).has_step,
        None => !model.backwards.is_empty(),
    }
}

/// Whether a call in a function that trains is an evaluation all the same: its own block turned
/// evaluation mode on before it, no `backward()` comes before the next `train()`, and its result
/// reaches none.
fn is_evaluated_between_steps(model: &Model<'_>, call: &Call<'_>) -> bool {
    let place = model_place(call);
    let func = model.func_of(call.ctx);
    let switches: Vec<&Call<'_>> = model
        .calls_in_function(func)
        .filter(|other| {
            matches!(other.method, Some("eval" | "train")) && other.recv_place() == place
        })
        .collect();
    let before = switches
        .iter()
        .filter(|other| other.node.start() < call.node.start())
        .max_by_key(|other| other.node.start());
    let Some(eval) = before.filter(|other| other.is_method("eval")) else {
        return false;
    };
    // The model trains in between: a teacher is only ever in evaluation mode.
    let Some(train) = switches.iter().find(|other| other.is_method("train")) else {
        return false;
    };
    let until = switches
        .iter()
        .filter(|other| other.is_method("train") && other.node.start() > call.node.start())
        .map(|other| other.node.start())
        .min();
    let stepped = model.backwards.iter().any(|backward| {
        let at = model.calls[backward.call].node.start();
        model.func_of(backward.ctx) == func
            && at > eval.node.start()
            && until.is_none_or(|until| at < until)
    });
    let kept = model.assigns.iter().any(|assign| {
        assign.stmt == call.stmt
            && feeds_backward(model, func, crate::queries::loop_carried::base(&assign.place))
    });
    let in_a_loop = model
        .loops_around(call.ctx)
        .any(|each| each.contains_backward);
    // Where no loop trains around it, the end of the function is the end of the evaluation.
    (train.node.start() < eval.node.start() || until.is_some())
        && (in_a_loop || func.is_none())
        && model.is_inside(call.ctx, eval.ctx)
        && !stepped
        && !kept
}

/// Whether a call in a function that trains makes samples for people: what it returns is drawn or
/// written to a file, and reaches no `backward()`.
fn is_only_shown(model: &Model<'_>, call: &Call<'_>) -> bool {
    let func = model.func_of(call.ctx);
    let Stmt::Assign(assign) = model.stmt(call.stmt).node else {
        return false;
    };
    let Some(Expr::Name(name)) = assign.targets.first() else {
        return false;
    };
    let name = name.id.as_str();
    let text = model.text(&*assign.value);
    // A criterion's value, or what other code may use.
    let is_result = assign.value.range() == call.node.range()
        || text.starts_with(model.text(call.node)) && !text.contains(".data");
    let only_bound_here = model.assigns_to(func, name).all(|each| each.stmt == call.stmt);
    is_result
        && (only_bound_here && !feeds_backward(model, func, name)
            || !only_bound_here && ends_before_backward(model, call, name))
        && model.calls_in_function(func).any(|other| {
            other.node.start() > call.node.end()
                && matches!(
                    last_name(&other.node.func),
                    Some("save_image" | "make_grid" | "add_image" | "add_images" | "imshow" | "imsave")
                )
                && other
                    .node
                    .arguments
                    .args
                    .iter()
                    .any(|arg| names_in(arg).iter().any(|each| each.split('.').next() == Some(name)))
        })
        // What a loss is taken of has another use.
        && !model.calls_in_function(func).any(|other| {
            matches!(other.callee.kind, Kind::Criterion { .. })
                // Bound several times, the name meant something else before.
                && (only_bound_here || other.node.start() > call.node.end())
                && other
                    .node
                    .arguments
                    .args
                    .iter()
                    .any(|arg| names_in(arg).iter().any(|each| each == name))
        })
}

/// Whether a name that is bound several times in a loop means this call's result until the iteration ends or
/// it is bound anew, and no `backward()` comes in between.
fn ends_before_backward(model: &Model<'_>, call: &Call<'_>, name: &str) -> bool {
    let func = model.func_of(call.ctx);
    let at = call.node.start();
    let Some(looped) = model.loops_around(call.ctx).find(|each| each.contains_backward) else {
        return false;
    };
    let bound: Vec<_> = model
        .assigns_to(func, name)
        // `output = output.transpose(0, 1)` is the same result still.
        .filter(|each| {
            each.stmt == call.stmt
                || !each.expr.is_some_and(|expr| {
                    names_in(expr).iter().any(|read| read.split('.').next() == Some(name))
                })
        })
        .map(|each| each.target.start())
        .filter(|start| looped.range.contains(*start))
        .collect();
    let until = bound
        .iter()
        .copied()
        .filter(|start| *start > call.node.end())
        .min()
        .unwrap_or(looped.range.end());
    // The next iteration binds it before anything runs backward.
    let begins_anew = bound.iter().any(|start| *start < at)
        && !model.backwards.iter().any(|backward| {
            let start = model.calls[backward.call].node.start();
            looped.range.contains(start) && bound.iter().all(|bound| start < *bound)
        });
    let between = model.backwards.iter().any(|backward| {
        let start = model.calls[backward.call].node.start();
        model.func_of(backward.ctx) == func && start > at && start < until
    });
    begins_anew && !between
}

/// Whether a call is a forward pass through a method of the model's own, as the project's classes define it:
/// `model.inference(x)`, `model.sample(n)`. A method that decides on gradients itself is none.
pub(super) fn is_pass_by_method(model: &Model<'_>, call: &Call<'_>) -> bool {
    let decides = |text: &str| DECIDES.iter().any(|word| text.contains(word));
    is_pass_unless(model, call, decides, |method| method.decides)
}

/// As [`is_pass_by_method`], also if the method detaches something: what it runs before that records a graph.
pub(super) fn is_pass_that_may_detach(model: &Model<'_>, call: &Call<'_>) -> bool {
    is_pass_unless(model, call, settles_gradients, |method| method.settles)
}

/// Whether a call is a pass through a method of the model's own, and neither the text of it nor what the project says of
/// its name speaks against it.
fn is_pass_unless(
    model: &Model<'_>,
    call: &Call<'_>,
    text_decides: impl Fn(&str) -> bool,
    decides: impl Fn(&Method) -> bool,
) -> bool {
    const PASSES: &[&str] = &[
        "infer", "generate", "sample", "predict", "decode", "encode", "synth", "translate", "beam", "greedy",
        "reconstruct", "teacher", "extract", "embed", "forward",
    ];
    let Some(name) = call.method else {
        return false;
    };
    if !call.recv.is_model() || call.recv_place().is_none_or(|place| place == "self") {
        return false;
    }
    let lower = name.trim_start_matches('_').to_ascii_lowercase();
    let passes = lower == "act" || PASSES.iter().any(|word| lower.contains(word));
    // `model.get_features(x)`, which may only look something up.
    let may_pass = ["feature", "logits"].iter().any(|word| lower.contains(word));
    if !(passes || may_pass) || lower.contains("transform") {
        return false;
    }
    // `model.get_features(x)` calls no function of the file that has this name.
    match call.target.filter(|id| model.func(*id).class.is_some()) {
        Some(target) => !text_decides(model.text(model.func(target).node)),
        None => model
            .around
            .method(name)
            .is_some_and(|method| !decides(&method) && (passes || method.runs)),
    }
}

/// Whether the file is there for inference only: it puts loaded weights into a model in evaluation mode, trains
/// nothing, and says nothing about gradients, so a caller of this function runs the pass with them on.
fn only_infers(model: &Model<'_>, call: &Call<'_>) -> bool {
    let of_a_module = model
        .ctx(call.ctx)
        .class
        .is_some_and(|class| model.class(class).is_module);
    let says_nothing = !DECIDES
        .iter()
        .chain(&[".step(", "optim", ".train(", "criterion"])
        .any(|word| model.module.text().contains(word));
    let evaluates = model.calls.iter().any(|other| {
        other.is_method("eval") && other.node.arguments.is_empty()
    });
    let loads = model.calls.iter().any(|other| {
        other.is_method("load_state_dict")
            || other.is("torch.load")
            || other.qual.as_deref().is_some_and(|qual| qual.ends_with(".from_pretrained"))
    });
    !of_a_module && says_nothing && evaluates && loads && model.backwards.is_empty()
}

/// Whether what a call returns is bound to names of their own, and every use of those cuts the graph off: it
/// lives as long as the names, for nothing.
fn is_only_used_detached(model: &Model<'_>, call: &Call<'_>) -> bool {
    let func = model.func_of(call.ctx);
    let Stmt::Assign(assign) = model.stmt(call.stmt).node else {
        return false;
    };
    let (Some(target), Some(id)) = (assign.targets.first(), func) else {
        return false;
    };
    let names: Vec<&Expr> = match target {
        Expr::Name(_) => vec![target],
        Expr::Tuple(tuple) => tuple.elts.iter().collect(),
        _ => return false,
    };
    if assign.value.range() != call.node.range() || call.args.iter().any(Value::has_graph) {
        return false;
    }
    let text = model.text(model.func(id).node);
    let start = model.func(id).node.start().to_usize();
    let mut cut = 0;
    for target in names {
        let Expr::Name(name) = target else {
            return false;
        };
        let name = name.id.as_str();
        if name != "_" && !model.assigns_to(func, name).all(|each| each.stmt == call.stmt) {
            return false;
        }
        let Some(found) = uses_cut(text, name, target.start().to_usize() - start) else {
            return false;
        };
        cut += found;
    }
    cut > 0
}

/// How many uses of a name in a function's text cut its graph off, except where it is bound; nothing if one
/// use may not.
fn uses_cut(text: &str, name: &str, bound: usize) -> Option<usize> {
    const CUTS: &[&str] = &[
        ".detach()", ".data.", ".data)", ".data[", ".item()", ".argmax(", ".tolist()", ".max(1)[1]",
    ];
    const FACTS: &[&str] = &[".shape", ".size(", ".device", ".dtype"];
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = 0;
    for (at, _) in text.match_indices(name) {
        let rest = &text[at + name.len()..];
        let whole = !text[..at].ends_with(is_word)
            && !text[..at].ends_with('.')
            && !rest.starts_with(is_word);
        if !whole || at == bound || name == "_" {
            continue;
        }
        let rest = rest.strip_prefix(".cpu()").unwrap_or(rest);
        // `F.softmax(output, dim=-1).detach()`
        let outside = rest
            .split_once(')')
            .filter(|(inside, _)| !inside.contains(['(', '\n', ':']) && text[..at].ends_with('('))
            .map(|(_, outside)| outside);
        let cuts = |rest: &str| CUTS.iter().any(|cut| rest.starts_with(cut));
        if cuts(rest) || outside.is_some_and(cuts) {
            found += 1;
        } else if !FACTS.iter().any(|fact| rest.starts_with(fact)) {
            return None;
        }
    }
    Some(found)
}

/// Whether the graph has a use: gradients of an input or of the result, a hook, an export; or
/// whether there is none, because no parameter requires gradients.
pub(super) fn wants_graph(model: &Model<'_>, call: &Call<'_>, place: &str) -> bool {
    let func = model.func_of(call.ctx);
    let class = model.ctx(call.ctx).class;
    // Methods of a class share the graph; what a function returns belongs to its callers.
    let near = |ctx: CtxId| {
        model.func_of(ctx) == func || (class.is_some() && model.ctx(ctx).class == class)
    };
    let calls_it = |id: FuncId| {
        func.is_some()
            && model
                .calls
                .iter()
                .any(|other| other.target == func && model.func_of(other.ctx) == Some(id))
    };
    let returned = is_returned(model, call);
    let last = last_part(place);
    let is_it = |name: &str| {
        name == place
            || name.starts_with(&format!("{place}."))
            || name.rsplit('.').next() == Some(last)
    };
    let by_call = model.calls.iter().any(|other| {
        let name = last_name(&other.node.func).unwrap_or_default();
        match name {
            "backward" | "grad" | "jacobian" | "hessian" => {
                (name != "grad" || other.is("torch.autograd.grad"))
                    && (near(other.ctx)
                        || returned && model.func_of(other.ctx).is_some_and(calls_it))
                    && !trains(model, func)
            }
            "requires_grad_" => {
                let off = matches!(
                    other.node.arguments.find_positional(0),
                    Some(Expr::BooleanLiteral(flag)) if !flag.value
                );
                match other.recv_place() {
                    Some(recv) if off => is_it(&recv),
                    _ => !off && near(other.ctx),
                }
            }
            // A hook reads activations, and often their gradients; an export runs the model once, on a
            // sample.
            "register_forward_hook" | "register_backward_hook" | "register_full_backward_hook"
            | "register_hook" | "trace" | "export" | "_export" | "trace_module" => near(other.ctx),
            // `GradCAM(model)` and its relatives.
            _ => {
                name.contains("Grad")
                    && !name.contains("Scaler")
                    && other
                        .node
                        .arguments
                        .args
                        .iter()
                        .any(|arg| dotted_name(arg).is_some_and(|name| is_it(&name)))
            }
        }
    });
    let by_keyword = || {
        model.calls.iter().any(|other| {
            near(other.ctx)
                && matches!(other.keyword("requires_grad"), Some(Expr::BooleanLiteral(flag)) if flag.value)
        })
    };
    by_call || by_keyword() || sets_requires_grad(model, near, is_it)
}

/// Whether the result of a call is returned, as it is or by its name.
fn is_returned(model: &Model<'_>, call: &Call<'_>) -> bool {
    let func = model.func_of(call.ctx);
    let places: Vec<&str> = model
        .assigns
        .iter()
        .filter(|assign| assign.stmt == call.stmt)
        .map(|assign| assign.place.as_str())
        .collect();
    model.stmts.iter().any(|stmt| {
        let Stmt::Return(node) = stmt.node else {
            return false;
        };
        model.func_of(stmt.ctx) == func
            && node.value.as_deref().is_some_and(|value| {
                value.range().contains_range(call.node.range())
                    || names_in(value).iter().any(|name| places.contains(&name.as_str()))
            })
    })
}

/// Whether a function returns the output as it is, and nothing of the file calls it: a caller may
/// want its graph, or turn gradients off.
fn callers_decide(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(func) = model.func_of(call.ctx) else {
        return false;
    };
    if model.func(func).called {
        return false;
    }
    let places: Vec<&str> = model
        .assigns
        .iter()
        .filter(|assign| assign.stmt == call.stmt && assign.value.has_graph())
        .map(|assign| assign.place.as_str())
        .collect();
    let is_output = |expr: &Expr| {
        expr.range() == call.node.range()
            || dotted_name(expr).is_some_and(|name| places.contains(&name.as_str()))
    };
    model.stmts.iter().any(|stmt| {
        let Stmt::Return(node) = stmt.node else {
            return false;
        };
        model.func_of(stmt.ctx) == Some(func)
            && node.value.as_deref().is_some_and(|value| match value {
                Expr::Tuple(tuple) => tuple.elts.iter().any(is_output),
                other => is_output(other),
            })
    })
}

/// Whether the model runs on made-up numbers: on one sample, or at the end of the file that defines it,
/// to look at shapes or to count operations.
pub(super) fn is_sample(model: &Model<'_>, call: &Call<'_>) -> bool {
    let func = model.func_of(call.ctx);
    let Some(arg) = call.node.arguments.args.first() else {
        return false;
    };
    let mut exprs = vec![arg];
    // `x`, `x.cuda()`
    for place in names_in(arg) {
        let place = place.split('.').next().unwrap_or(&place);
        exprs.extend(
            model
                .assigns_to(func, place)
                .filter(|assign| assign.target.start() < call.node.start())
                .filter_map(|assign| assign.expr),
        );
    }
    let mut made_up = model.calls.iter().filter(|made| {
        let makes = made.qual.as_deref().is_some_and(torch::is_factory)
            || matches!(made.method, Some("new_empty" | "new_zeros" | "new_ones" | "new_full"));
        makes && exprs.iter().any(|expr| expr.range().contains_range(made.node.range()))
    });
    let is_one = |made: &Call<'_>| {
        let first = match made.node.arguments.find_positional(0) {
            Some(Expr::Tuple(tuple)) => tuple.elts.first(),
            Some(Expr::List(list)) => list.elts.first(),
            other => other,
        };
        matches!(first, Some(Expr::NumberLiteral(number)) if model.text(number) == "1")
    };
    let Some(first) = made_up.next() else {
        return false;
    };
    // Nothing was loaded or trained: the numbers that come out mean nothing.
    let means_nothing = || {
        call.callee.class.is_some()
            && !model.calls.iter().any(|other| {
                other.is_method("load_state_dict") || other.is("torch.load") || other.is_step()
            })
    };
    is_one(first) || is_few(model, first) || made_up.any(is_one) || means_nothing()
}

/// `torch.linspace(0, 1, 100)`: a few hundred numbers, which need a few KB in every layer.
fn is_few(model: &Model<'_>, made: &Call<'_>) -> bool {
    const FEW: u64 = 1024;
    let in_a_row = matches!(last_name(&made.node.func), Some("linspace" | "arange" | "logspace"));
    let count = made.node.arguments.args.last().filter(|_| in_a_row);
    count.is_some_and(|count| model.text(count).parse::<u64>().is_ok_and(|count| count <= FEW))
}

/// Whether a function is defined in another one that hands it out: its caller decides.
fn is_closure(model: &Model<'_>, func: Option<FuncId>) -> bool {
    let Some(id) = func else { return false };
    let name = model.func(id).node.name.as_str();
    let Some(outer) = model
        .func(id)
        .body
        .and_then(|body| model.ctx(body).parent)
        .and_then(|parent| model.func_of(parent))
    else {
        return false;
    };
    model.stmts.iter().any(|stmt| {
        matches!(stmt.node, Stmt::Return(node) if node.value.as_deref().is_some_and(|value| {
            names_in(value).iter().any(|each| each == name)
        })) && model.func_of(stmt.ctx) == Some(outer)
    })
}

/// Whether a call is the one that every copy of pytorch-fid has: no parameter of its `InceptionV3`
/// requires gradients.
pub(super) fn is_of_published_inception(model: &Model<'_>, call: &Call<'_>) -> bool {
    model
        .func_name(call.ctx)
        .is_some_and(|name| name.starts_with("get_activations"))
        && model.module.text().contains("import InceptionV3")
}

/// Whether gradients are requested of an input near the call, or taken from the model's parameters.
fn sets_requires_grad(
    model: &Model<'_>,
    near: impl Fn(CtxId) -> bool,
    is_it: impl Fn(&str) -> bool,
) -> bool {
    model.assigns.iter().any(|assign| {
        if !assign.place.ends_with(".requires_grad") {
            return false;
        }
        if !matches!(assign.expr, Some(Expr::BooleanLiteral(flag)) if !flag.value) {
            return near(assign.ctx);
        }
        // `for p in model.parameters(): p.requires_grad = False`
        model.within_function(assign.ctx).any(|id| {
            model.calls.iter().any(|other| {
                matches!(other.method, Some("parameters" | "named_parameters"))
                    && model.ctx(id).range.contains_range(other.node.range())
                    && other.recv_place().is_some_and(|recv| is_it(&recv))
            })
        })
    })
}

/// Whether the module-level name was made by `from_pretrained` and nothing put it in training mode.
fn is_pretrained(model: &Model<'_>, place: &str) -> bool {
    let made = model.assigns_to(None, place).last().is_some_and(|assign| {
        assign
            .expr
            .is_some_and(|expr| model.text(expr).contains(".from_pretrained("))
    });
    made && !model.calls.iter().any(|call| {
        (call.is_method("train") && call.recv_place().as_deref() == Some(place))
            || call.result.kind == Kind::Optimizer
            || last_name(&call.node.func).is_some_and(|name| name.ends_with("Trainer"))
    })
}

/// Whether the model came out of a pickled dictionary, `torch.load(path)["model"]`: whether its
/// parameters require gradients was decided when it was saved.
pub(super) fn is_unpickled(model: &Model<'_>, func: Option<FuncId>, place: &str) -> bool {
    // Of a parameter, a caller in the file says it by the same name.
    let bound = |assign: &&crate::semantic::Assign<'_>| {
        let there = model.func_of(assign.ctx);
        let calls = || {
            model
                .calls_in_function(there)
                .any(|other| func.is_some() && other.target == func)
        };
        assign.place == place && (there == func || calls())
    };
    model.assigns.iter().filter(bound).any(|assign| {
        let Some(Expr::Subscript(item)) = assign.expr else {
            return false;
        };
        match &*item.value {
            Expr::Call(load) => last_name(&load.func) == Some("load"),
            base => dotted_name(base).is_some_and(|base| {
                model
                    .assigns_to(model.func_of(assign.ctx), &base)
                    .any(|each| each.value.kind == Kind::Checkpoint)
            }),
        }
    })
}
