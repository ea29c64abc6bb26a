use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, dotted_name, last_name, last_part, names_in};

use crate::queries::sizes::keeps_few_activations;
use crate::queries::accumulation::stepped_optimizer;
use crate::queries::devices::{on_cpu_only, runs_on_cpu};
use crate::queries::loop_carried::{base, feeds_backward};
use crate::queries::model_calls::{is_model_call, model_place};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Kind, Value};
use crate::semantic::{Bind, Call, CtxId, CtxKind, FuncId, Grad, Model};

declare_rule! {
    /// A teacher that is never trained builds a graph.
    ///
    /// ## What it does
    ///
    /// Looks for calls of a model in a training step, with gradients on, on inputs without a graph, whose
    /// result reaches the loss undetached, where the model is not trained: the optimizers that step
    /// there were made in sight from other models' parameters, and it is in evaluation mode, a copy
    /// or pretrained; or it is named as a teacher or a moving average, beside one optimizer that is not its own, or as a
    /// target network (`critic_target`, `target_net`). Models whose gradients may be turned off in the file are left out.
    ///
    /// ## Why it costs memory
    ///
    /// The teacher's activations are kept as if it were to be trained: a second graph beside the
    /// student's, and often the larger one. `backward()` also fills gradients of the teacher.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(student, teacher, loader, optimizer, criterion):
    ///     for x in loader:
    ///         x = x.cuda()
    ///         optimizer.zero_grad()
    ///         target = teacher(x)
    ///         loss = criterion(student(x), target)
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(student, teacher, loader, optimizer, criterion):
    ///     for x in loader:
    ///         x = x.cuda()
    ///         optimizer.zero_grad()
    ///         with torch.no_grad():
    ///             target = teacher(x)
    ///         loss = criterion(student(x), target)
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another file sets `requires_grad` of the teacher's parameters to `False`.
    ///
    /// ## Fix safety
    ///
    /// No fix: the call would need its own block.
    OOM206 "teacher-builds-graph" { fix: None, fresh: [7, 15] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if !is_model_call(call) || call.grad != Grad::On {
            continue;
        }
        let Some(place) = model_place(call) else {
            continue;
        };
        let func = model.func_of(call.ctx);
        let in_step = model.training_loop(call.ctx).is_some()
            || model
                .backwards
                .iter()
                .any(|backward| func.is_some() && model.func_of(backward.ctx) == func);
        if !in_step
            || takes_graph(call)
            || !(is_named_teacher(model, call, &place) || is_left_out(model, call, &place))
            // What looks through the whole file is asked of few.
            || trains_itself(model, &place)
            || may_be_frozen(model, call, &place)
            || keeps_few_activations(model, func, &place)
            || is_detached(model, call)
            || !reaches_backward(model, call)
            || on_cpu_only(model)
            || runs_on_cpu(model, call)
            || in_unit_test(model, call.ctx)
        {
            continue;
        }
        out.push(
            Report::new(
                call.node,
                format!("`{place}` is not trained, yet its activations are kept for `backward()`"),
            )
            .help("call it under `with torch.no_grad():`"),
        );
    }
}


/// Whether the file turns off gradients of what may be this model: of its own name, or of what another
/// function is given.
pub(super) fn may_be_frozen(model: &Model<'_>, call: &Call<'_>, place: &str) -> bool {
    let func = model.func_of(call.ctx);
    let concerns = |ctx: CtxId, frozen: Option<String>| {
        let there = model.func_of(ctx);
        let near = place.starts_with("self.") || there == func || there.is_none();
        frozen.is_none_or(|frozen| {
            let of_parameter = there.is_some_and(|id| {
                id_has_parameter(model, id, frozen.split('.').next().unwrap_or(&frozen))
            });
            near && (last_part(&frozen) == last_part(place) || place.starts_with(&format!("{frozen}.")))
                || of_parameter && there != func
                || is_handed_over(model, (there, &frozen), (func, place))
        })
    };
    // `for p in net.parameters(): …`: the loops around say whose parameters they are.
    let looped_over = |ctx: CtxId| {
        model.within_function(ctx).find_map(|id| {
            model.calls.iter().find_map(|each| {
                (matches!(each.method, Some("parameters" | "named_parameters"))
                    && matches!(model.ctx(id).kind, CtxKind::For)
                    && model.ctx(id).range.contains_range(each.node.range()))
                .then(|| each.recv_place())
                .flatten()
            })
        })
    };
    let by_call = model.calls.iter().any(|each| {
        let Some(name) = last_name(&each.node.func) else {
            return false;
        };
        if name.contains("freeze") || name.ends_with("requires_grad") || name.contains("toggle_grad") {
            return may_freeze(model, each, name, place);
        }
        // `for param in ema_model.parameters(): param.detach_()`
        if name == "detach_" && looped_over(each.ctx).is_some() {
            let makes_it = model.assigns.iter().any(|assign| {
                last_part(&assign.place) == last_part(place)
                    && assign.expr.and_then(Expr::as_call_expr).is_some_and(|made| {
                        last_name(&made.func) == model.func_name(each.ctx)
                    })
            });
            let is_it = looped_over(each.ctx)
                .is_some_and(|frozen| last_part(&frozen) == last_part(place));
            return makes_it || is_it && model.func_of(each.ctx) == func;
        }
        name == "requires_grad_"
            && !each.recv.is_tensor()
            && concerns(each.ctx, looped_over(each.ctx).or_else(|| each.recv_place()))
    });
    by_call
        || model.assigns.iter().any(|assign| {
            assign.place.ends_with(".requires_grad")
                && concerns(assign.ctx, looped_over(assign.ctx))
        })
}

/// Whether a function hands what it has under a name to another one, as a parameter.
fn is_handed_over(model: &Model<'_>, from: (Option<FuncId>, &str), to: (Option<FuncId>, &str)) -> bool {
    let (Some(id), name) = to else { return false };
    let info = model.func(id);
    let mut parameters = info.node.parameters.iter_non_variadic_params();
    let place = parameters.position(|each| each.parameter.name.as_str() == name);
    let place = place.and_then(|place| place.checked_sub(usize::from(info.class.is_some())));
    place.is_some_and(|place| {
        model.calls_in_function(from.0).any(|call| {
            call.target == Some(id) && call.arg(name, place).and_then(dotted_name).as_deref() == Some(from.1)
        })
    })
}

/// Whether a call by the name of freezing concerns a model: it is given it, is called on it, or says nothing of which.
/// `self.frozen_net(x)` and `unfreeze(net)` freeze nothing.
fn may_freeze(model: &Model<'_>, call: &Call<'_>, name: &str, place: &str) -> bool {
    if name.contains("unfreeze") || name.contains("freezed") {
        return false;
    }
    let is_it = |other: &str| {
        last_part(other) == last_part(place) || place.starts_with(&format!("{other}.")) && other != "self"
    };
    if call.recv_place().is_some_and(|recv| is_it(&recv)) {
        return true;
    }
    let func = model.func_of(call.ctx);
    let given: Vec<String> = call
        .node
        .arguments
        .args
        .iter()
        .filter(|arg| !arg.is_literal_expr())
        .flat_map(names_in)
        .collect();
    // What a function is given, or a loop goes through, may be any model.
    let may_be_any = |name: &String| {
        let root = name.split('.').next().unwrap_or(name);
        name == "self"
            || func.is_some_and(|id| id_has_parameter(model, id, root))
            || model.assigns_to(func, root).any(|assign| assign.bind != Bind::Set)
    };
    given.is_empty() || given.iter().any(|name| is_it(name) || may_be_any(name))
}

fn id_has_parameter(model: &Model<'_>, func: FuncId, name: &str) -> bool {
    name != "self"
        && model
            .func(func)
            .node
            .parameters
            .iter_non_variadic_params()
            .any(|each| each.parameter.name.as_str() == name)
}

/// Whether the model has gradients to clear, or is put in training mode.
fn trains_itself(model: &Model<'_>, place: &str) -> bool {
    model.calls.iter().any(|call| {
        (call.is_zero_grad() || call.is_method("train"))
            && call.recv_place().is_some_and(|recv| last_part(&recv) == last_part(place))
    })
}

/// Whether an input has a graph: gradients have to pass through to it.
fn takes_graph(call: &Call<'_>) -> bool {
    call.args.iter().any(Value::has_graph)
}

/// Whether the result is detached, in its own statement or later in the function.
fn is_detached(model: &Model<'_>, call: &Call<'_>) -> bool {
    let of_statement = model.text(model.stmt(call.stmt).node);
    let detaches = |text: &str| {
        text.contains(".detach(") || text.contains(".data") || text.contains(".item()") || text.contains(".cpu()")
    };
    if detaches(of_statement) {
        return true;
    }
    let func = model.func_of(call.ctx);
    // `loss.item()` says nothing about what the loss was made of.
    let losses: Vec<String> = model
        .backwards
        .iter()
        .filter(|backward| model.func_of(backward.ctx) == func)
        .filter_map(|backward| dotted_name(backward.target))
        .collect();
    let mut names: Vec<&str> = Vec::new();
    for assign in model.assigns_in_function(func) {
        if losses.iter().any(|loss| loss == base(&assign.place)) {
            continue;
        }
        let from = assign.stmt == call.stmt
            || assign
                .expr
                .is_some_and(|expr| names_in(expr).iter().any(|name| names.contains(&name.as_str())));
        if from {
            names.push(base(&assign.place));
        }
    }
    // `old_features.grad`: its gradients are what is wanted.
    let body = func.map_or_else(|| model.module.text(), |id| model.text(model.func(id).node));
    if names.iter().any(|name| {
        [".grad", ".retain_grad("].iter().any(|end| body.contains(&format!("{name}{end}")))
    }) {
        return true;
    }
    model.stmts.iter().any(|info| {
        model.func_of(info.ctx) == func
            && matches!(info.node, Stmt::Assign(_) | Stmt::AugAssign(_) | Stmt::Expr(_))
            && detaches(model.text(info.node))
            && model
                .text(info.node)
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| names.contains(&word))
    })
}

/// Whether what the call returns flows into a `backward()` of its function.
fn reaches_backward(model: &Model<'_>, call: &Call<'_>) -> bool {
    let func = model.func_of(call.ctx);
    model
        .assigns
        .iter()
        .any(|assign| assign.stmt == call.stmt && feeds_backward(model, func, base(&assign.place)))
}

/// A teacher, a target network or a moving average by its name, beside a model that trains: one
/// optimizer steps here, and it is not the teacher's.
fn is_named_teacher(model: &Model<'_>, call: &Call<'_>, place: &str) -> bool {
    /// What a target network follows.
    const FOLLOWS: &[&str] = &["actor", "critic", "policy", "net", "model", "q", "value", "adversary", "encoder", "online"];
    let name = last_part(place).to_ascii_lowercase();
    let is_target = name
        .strip_prefix("target_")
        .or_else(|| name.strip_suffix("_target"))
        .is_some_and(|rest| FOLLOWS.iter().any(|word| rest.starts_with(word) || rest.ends_with(word)));
    let is_teacher = name.contains("teacher")
        || name.starts_with("ema_")
        || name.ends_with("_ema")
        || is_target;
    if !is_teacher {
        return false;
    }
    let func = model.func_of(call.ctx);
    let mut stepped: Vec<String> = model
        .calls_in_function(func)
        .filter_map(stepped_optimizer)
        .collect();
    stepped.dedup();
    let another = model.calls_in_function(func).any(|other| {
        is_model_call(other) && model_place(other).is_some_and(|other| last_part(&other) != last_part(place))
    });
    another
        && !stepped.is_empty()
        && (is_target || stepped.len() == 1)
        && !stepped.iter().any(|each| {
            let each = each.to_ascii_lowercase();
            each.contains("teacher") || each.contains("target")
        })
        && is_known_untrained(model, place)
}

/// Whether no optimizer of the file is made from the model's parameters.
fn is_known_untrained(model: &Model<'_>, place: &str) -> bool {
    !model.calls.iter().any(|call| {
        matches!(call.method, Some("parameters" | "named_parameters"))
            && call
                .recv_place()
                .is_some_and(|recv| last_part(&recv) == last_part(place))
            && in_optimizer_statement(model, call)
    })
}

fn in_optimizer_statement(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Stmt::Assign(assign) = model.stmt(call.stmt).node else {
        return true;
    };
    // `for p, q in zip(target.parameters(), net.parameters())` is no assignment; `params = …` may go on
    // to an optimizer.
    !assign.value.is_string_literal_expr()
        && !matches!(model.ctx(call.ctx).kind, CtxKind::For)
}

/// Whether the optimizers that are made where the model lives have other models' parameters, all of
/// which are known, and the model is meant to stay as it is: in evaluation mode, a copy, or pretrained.
fn is_left_out(model: &Model<'_>, call: &Call<'_>, place: &str) -> bool {
    let func = model.func_of(call.ctx);
    let class = model.ctx(call.ctx).class;
    let of_self = place.starts_with("self.");
    let here = |ctx: CtxId| {
        if of_self {
            model.ctx(ctx).class == class
        } else {
            model.func_of(ctx) == func
        }
    };
    // An optimizer that is made elsewhere may have anything.
    let stepped: Vec<String> = model
        .calls_in_function(func)
        .filter_map(stepped_optimizer)
        .collect();
    let mut optimized: Vec<String> = Vec::new();
    for optimizer in &stepped {
        let mut made = model.assigns.iter().filter(|assign| {
            here(assign.ctx) && &assign.place == optimizer && assign.value.kind == Kind::Optimizer
        }).peekable();
        if made.peek().is_none() {
            return false;
        }
        for assign in made {
            let Some(found) = assign.expr.and_then(|expr| parameters_in(model, expr, &here, 0)) else {
                return false;
            };
            optimized.extend(found);
        }
    }
    let is_optimized = optimized.iter().any(|each| {
        last_part(each) == last_part(place)
            || place.starts_with(&format!("{each}."))
            || each.starts_with(&format!("{place}."))
    });
    let mut made = model
        .assigns
        .iter()
        .filter(|assign| here(assign.ctx) && assign.place == place)
        .filter_map(|assign| assign.expr)
        .peekable();
    // Another name of what trains, or a wrapper around it.
    let is_alias = made.peek().is_some()
        && made.any(|expr| {
            let text = model.text(expr);
            !text.contains("deepcopy")
                && names_in(expr)
                    .iter()
                    .any(|name| optimized.iter().any(|each| each == name))
        });
    !optimized.is_empty() && !is_optimized && !is_alias && stays(model, place)
}

/// The places whose parameters an expression passes on; nothing if that is not known.
fn parameters_in(
    model: &Model<'_>,
    expr: &Expr,
    here: &impl Fn(CtxId) -> bool,
    depth: usize,
) -> Option<Vec<String>> {
    const MAX_DEPTH: usize = 2;
    let direct: Vec<String> = model
        .calls
        .iter()
        .filter(|call| {
            expr.range().contains_range(call.node.range())
                && matches!(call.method, Some("parameters" | "named_parameters"))
        })
        .filter_map(Call::recv_place)
        .collect();
    if !direct.is_empty() {
        return Some(direct);
    }
    if depth == MAX_DEPTH {
        return None;
    }
    let found: Vec<String> = names_in(expr)
        .iter()
        .flat_map(|name| {
            model
                .assigns
                .iter()
                .filter(|assign| here(assign.ctx) && &assign.place == name)
                .filter_map(|assign| assign.expr)
                .filter_map(|expr| parameters_in(model, expr, here, depth + 1))
                .flatten()
                .collect::<Vec<_>>()
        })
        .collect();
    (!found.is_empty()).then_some(found)
}

/// Whether something says that the model stays as it is.
fn stays(model: &Model<'_>, place: &str) -> bool {
    let is_it = |recv: &str| last_part(recv) == last_part(place);
    let by_call = model.calls.iter().any(|call| match call.method {
        Some("eval") => call.recv_place().is_some_and(|recv| is_it(&recv)),
        // `target.load_state_dict(net.state_dict())`
        Some("load_state_dict") => {
            call.recv_place().is_some_and(|recv| is_it(&recv))
                && model.text(&call.node.arguments).contains(".state_dict()")
        }
        _ => false,
    });
    by_call
        || model.assigns.iter().any(|assign| {
            is_it(&assign.place)
                && assign.expr.is_some_and(|expr| {
                    let text = model.text(expr);
                    text.contains("deepcopy") || text.contains("pretrained") || text.contains(".eval()")
                })
        })
}
