use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, dotted_name, last_name, last_part, names_in};

use crate::queries::model_calls::{self, is_data_parallel, is_dropped, is_only_evaluated};
use crate::queries::purpose::{in_unit_test, is_eval_name, trains, value_of};
use crate::reach::Constant;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, CtxId, CtxKind, Grad, Model};

declare_rule! {
    /// `DataParallel` puts the largest load on the first GPU.
    ///
    /// ## What it does
    ///
    /// Looks for `nn.DataParallel(…)` around models that train: an optimizer gets their parameters, they
    /// run in a training loop, or they are handed to what may train them. Teachers by their names are left out.
    ///
    /// ## Why it costs memory
    ///
    /// The first GPU holds the parameters, the optimizer's state, the gathered outputs and the
    /// gradients of all replicas: it runs out first, while the others are half empty. The model is
    /// copied to every GPU again in each forward pass. PyTorch recommends
    /// `DistributedDataParallel`, even on one machine.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// import torch.nn as nn
    ///
    /// def prepare(model):
    ///     model = nn.DataParallel(model)
    ///     return model, torch.optim.AdamW(model.parameters())
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel
    ///
    /// def prepare(model, rank):
    ///     model = DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
    ///     return model, torch.optim.AdamW(model.parameters())
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When it only wraps a model to match the names in a checkpoint.
    ///
    /// ## Fix safety
    ///
    /// No fix: the script has to be started once per GPU.
    OOM701 "data-parallel" { fix: None, fresh: [186, 242] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // Most files wrap nothing, and need not ask what the others do.
    if !model.calls.iter().any(is_data_parallel) {
        return;
    }
    // For inference, the wrapper is often there for the names in a checkpoint only.
    let trains_here = trains(model) && steps_somewhere(model);
    if !trains_here && !model.around.trains() {
        return;
    }
    for call in &model.calls {
        let on_one_gpu = call.arg("device_ids", 1).is_some_and(|devices| {
            matches!(devices, Expr::List(list) if list.elts.len() == 1)
                || value_of(model, model.func_of(call.ctx), devices) == Some(Constant::Numbers(1))
        });
        if is_data_parallel(call)
            && (trains_here || is_handed_out(model, call))
            && !on_one_gpu
            && !in_unit_test(model, call.ctx)
            && !wraps_no_model(call)
            && !wraps_a_teacher(call)
            && !is_handed_to_evaluation(model, call)
            && (trains_here || !is_made_for_evaluation(model, call))
            && !only_evaluates(model, call)
            && !is_only_evaluated(model, call)
            && !is_dropped(model, call)
            && !is_frozen(model, call)
            && !is_frozen_before(model, call)
            // Gathered elsewhere, by a number that is worked out.
            && call.arg("output_device", 2).is_none_or(|device| dotted_name(device).is_some())
            && !stands_in(model, call)
            && is_trained(model, call)
            && !sees_one_gpu(model)
        {
            out.push(
                Report::new(
                    &*call.node.func,
                    "`DataParallel` gathers outputs and gradients on the first GPU: it fills up first",
                )
                .help("use `DistributedDataParallel`, one process per GPU"),
            );
        }
    }
}

/// `validate(loader, DataParallel(net).cuda())`: the wrapper is there for one evaluation.
fn is_handed_to_evaluation(model: &Model<'_>, wrapper: &Call<'_>) -> bool {
    model.calls.iter().any(|call| {
        last_name(&call.node.func).is_some_and(|name| name.split('_').any(is_eval_name))
            && call
                .node
                .arguments
                .iter_source_order()
                .any(|argument| argument.value().range().contains_range(wrapper.node.range()))
    })
}

/// Whether every caller in the file puts what the function makes in evaluation mode.
fn is_made_for_evaluation(model: &Model<'_>, wrapper: &Call<'_>) -> bool {
    let Some(func) = model.func_of(wrapper.ctx) else {
        return false;
    };
    let mut callers = model
        .calls
        .iter()
        .filter(|call| call.target == Some(func))
        .peekable();
    callers.peek().is_some()
        && model.backwards.is_empty()
        && callers.all(|caller| {
            model.assigns.iter().any(|assign| {
                assign.stmt == caller.stmt
                    && model.calls.iter().any(|call| {
                        call.is_method("eval")
                            && call.node.start() > caller.node.start()
                            && call.recv_place().as_deref() == Some(assign.place.as_str())
                    })
            })
        })
}

/// Whether the model that is wrapped was frozen before.
fn is_frozen_before(model: &Model<'_>, wrapper: &Call<'_>) -> bool {
    let net = wrapper.node.arguments.find_argument_value("module", 0);
    net.and_then(dotted_name).is_some_and(|place| {
        model_calls::is_frozen(model, model.func_of(wrapper.ctx), &place, wrapper.node.start())
    })
}

/// `DataParallel(teacher)`: what only shows the way has no gradients to gather.
fn wraps_a_teacher(call: &Call<'_>) -> bool {
    call.node
        .arguments
        .find_argument_value("module", 0)
        .and_then(dotted_name)
        .is_some_and(|name| last_part(&name).to_ascii_lowercase().contains("teacher"))
}

/// `DataParallel(optimizer)`: nothing calls it.
fn wraps_no_model(call: &Call<'_>) -> bool {
    call.node
        .arguments
        .find_argument_value("module", 0)
        .and_then(dotted_name)
        .is_some_and(|name| {
            let name = last_part(&name).to_ascii_lowercase();
            name.contains("optim") || name.contains("sched")
        })
}

/// Whether a function that makes networks returns the wrapper: `define_G(…)`, `init_net(net)`.
fn is_handed_out(model: &Model<'_>, call: &Call<'_>) -> bool {
    const MAKES: &[&str] = &["init", "define", "get", "build", "make", "create", "wrap"];
    let makes = model.func_name(call.ctx).is_some_and(|name| {
        let first = name.trim_start_matches('_').split('_').next();
        first.is_some_and(|first| MAKES.contains(&first))
    });
    let target = match model.stmt(call.stmt).node {
        Stmt::Assign(assign) => assign.targets.first().and_then(dotted_name),
        _ => None,
    };
    makes
        && model.stmts.iter().any(|info| match info.node {
            Stmt::Return(node) if model.func_of(info.ctx) == model.func_of(call.ctx) => {
                node.value.as_deref().is_some_and(|value| {
                    value.range().contains_range(call.node.range())
                        || target.is_some() && dotted_name(value) == target
                })
            }
            _ => false,
        })
}

/// Whether anything runs backward: the file does, or it hands an optimizer to what may, or keeps one where
/// other files find it. Where the step is commented out, an optimizer alone trains nothing.
fn steps_somewhere(model: &Model<'_>) -> bool {
    let of_optimizer = |name: &str| name.to_ascii_lowercase().contains("optim");
    let of_expr = |expr: &Expr| names_in(expr).iter().any(|name| of_optimizer(name));
    !model.backwards.is_empty()
        || model.module.text().contains("loss_scaler")
        || model.calls.iter().any(|call| {
            call.is_method("fit")
                || call.is_step()
                || !sets_rate(last_name(&call.node.func).unwrap_or_default())
                    && call
                    .node
                    .arguments
                    .iter_source_order()
                    .any(|argument| dotted_name(argument.value()).is_some_and(|name| of_optimizer(&name)))
                || !call.is_method("train")
                    && last_name(&call.node.func)
                        .is_some_and(|name| name.to_ascii_lowercase().contains("train"))
        })
        || model.stmts.iter().any(|info| match info.node {
            Stmt::Return(node) => node.value.as_deref().is_some_and(of_expr),
            _ => false,
        })
        || model
            .assigns
            .iter()
            .any(|assign| assign.place.contains('.') && of_optimizer(&assign.place))
        || model.funcs.iter().any(|func| {
            !sets_rate(func.node.name.as_str())
                && func
                    .node
                    .parameters
                    .iter_non_variadic_params()
                    .any(|each| of_optimizer(each.parameter.name.as_str()))
        })
}

/// `adjust_learning_rate(optimizer, …)`, `StepLR(optimizer)`: what is given an optimizer, and trains nothing.
fn sets_rate(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("learning_rate") || name.contains("lr") || name.contains("sched")
}

/// Whether the wrapped model is only evaluated: it is put in evaluation mode, and nothing takes its
/// parameters or puts it back.
fn only_evaluates(model: &Model<'_>, call: &Call<'_>) -> bool {
    let func = model.func_of(call.ctx);
    let trains_here = func.is_some_and(|id| model.func(id).has_backward);
    if model.func_name(call.ctx).is_some_and(is_eval_name) && !trains_here {
        return true;
    }
    if stays_and_never_trains(model, call) {
        return true;
    }
    let Stmt::Assign(assign) = model.stmt(call.stmt).node else {
        return false;
    };
    let place = assign.targets.first().and_then(dotted_name);
    let Some(place) = place else { return false };
    // The other names that this function gives the same model: `wrapped = DataParallel(model)`.
    let inner = call.node.arguments.find_positional(0).and_then(dotted_name);
    let is_it = |recv: Option<String>| {
        recv.is_some_and(|recv| recv == place || inner.as_deref() == Some(recv.as_str()))
    };
    let in_scope = |ctx: CtxId| place.contains('.') || model.func_of(ctx) == func;
    // What the name held before it was bound to a new model is another one.
    let made = inner
        .iter()
        .flat_map(|inner| model.assigns_to(func, inner))
        .filter(|each| {
            each.target.start() < call.node.start()
                && each.expr.is_some_and(|expr| {
                    !names_in(expr).iter().any(|name| is_it(Some(name.clone())))
                })
        })
        .map(|each| each.target.start())
        .max()
        .filter(|_| model.loops_around(call.ctx).next().is_none());
    let mut evaluated = false;
    for other in &model.calls {
        if !in_scope(other.ctx)
            || !is_it(other.recv_place())
            || made.is_some_and(|made| other.node.start() < made)
        {
            continue;
        }
        match other.method {
            Some("eval") => evaluated |= other.node.start() > call.node.start(),
            Some("train" | "parameters" | "named_parameters" | "zero_grad") => return false,
            _ => {}
        }
    }
    evaluated
}

/// Whether the wrapped models stay in a function that trains nothing and lets nothing else train: they
/// are only run.
fn stays_and_never_trains(model: &Model<'_>, call: &Call<'_>) -> bool {
    let (Some(func), Stmt::Assign(assign)) = (model.func_of(call.ctx), model.stmt(call.stmt).node)
    else {
        return false;
    };
    let Some(Expr::Name(name)) = assign.targets.first() else {
        return false;
    };
    let facts = model.func(func);
    if facts.has_backward || facts.has_step || model.ctx(call.ctx).class.is_none() && !facts.called {
        return false;
    }
    let leaves = model.stmts.iter().any(|stmt| match stmt.node {
        Stmt::Return(node) if model.func_of(stmt.ctx) == Some(func) => node
            .value
            .as_deref()
            .is_some_and(|value| !value.is_call_expr() && names_in(value).iter().any(|each| each == name.id.as_str())),
        // `self.model = model`
        Stmt::Assign(node) if model.func_of(stmt.ctx) == Some(func) => {
            node.targets.iter().any(Expr::is_attribute_expr)
                && names_in(&node.value).iter().any(|each| each == name.id.as_str())
        }
        _ => false,
    });
    let trains = model.calls_in_function(Some(func)).any(|other| {
        last_name(&other.node.func).is_some_and(|callee| {
            let callee = callee.to_ascii_lowercase();
            ["train", "fit", "optim", "learn", "parameters", "run", "main"]
                .iter()
                .any(|word| callee.contains(word))
        })
    });
    !leaves && !trains
}

/// Whether anything shows that the wrapped model trains: an optimizer gets its parameters, it is put in
/// training mode, it runs in a loop that trains, or it goes on to what may train it.
pub(super) fn is_trained(model: &Model<'_>, call: &Call<'_>) -> bool {
    let stmt = model.stmt(call.stmt).node;
    let target = match stmt {
        Stmt::Assign(assign) => assign.targets.first().and_then(dotted_name),
        // Returned, or passed to something else at once.
        _ => return true,
    };
    let Some(place) = target else { return true };
    let func = model.func_of(call.ctx);
    let class = model.ctx(call.ctx).class;
    let inner = call.node.arguments.find_positional(0).and_then(dotted_name);
    // `model.features = DataParallel(model.features)` is part of `model`.
    let root = place.split('.').next().filter(|root| *root != "self");
    let is_it = |name: &str| {
        let name = name.strip_suffix(".module").unwrap_or(name);
        name == place || inner.as_deref() == Some(name) || root == Some(name)
    };
    let in_scope = |ctx: CtxId| {
        if place.starts_with("self.") {
            model.ctx(ctx).class == class
        } else {
            func.is_none() || model.func_of(ctx) == func
        }
    };
    let passes = |expr: &Expr| {
        names_in(expr)
            .iter()
            .any(|name| is_it(name) || name.starts_with(&format!("{place}.")))
    };
    let by_call = model.calls.iter().any(|other| {
        if !in_scope(other.ctx) || other.node.range() == call.node.range() {
            return false;
        }
        if other.recv_place().is_some_and(|recv| is_it(&recv)) {
            return matches!(
                other.method,
                Some("parameters" | "named_parameters" | "train" | "zero_grad" | "get_parameters")
            );
        }
        let runs = dotted_name(&other.node.func).is_some_and(|name| is_it(&name));
        if runs {
            let in_step = func.is_some_and(|id| model.func(id).has_backward)
                && model.func_of(other.ctx) == func;
            return other.grad == Grad::On
                && (in_step || model.training_loop(other.ctx).is_some());
        }
        let handed_on = other.node.arguments.iter_source_order().any(|argument| {
            dotted_name(argument.value()).is_some_and(|name| is_it(&name))
        });
        handed_on && may_train(model, other)
    });
    let leaves = model.stmts.iter().any(|info| match info.node {
        Stmt::Return(node) if func.is_some() && model.func_of(info.ctx) == func => {
            node.value.as_deref().is_some_and(passes)
        }
        Stmt::Assign(node) if model.func_of(info.ctx) == func && info.node.range() != stmt.range() => {
            // `model.features = DataParallel(model.features)` leaves it where it is.
            node.targets.iter().any(|target| target.is_attribute_expr() && !passes(target)) && passes(&node.value)
        }
        _ => false,
    });
    let of_class_that_trains = place.starts_with("self.")
        && class.is_some_and(|class| {
            model.class(class).methods.iter().any(|id| {
                let func = model.func(*id);
                func.has_backward || func.has_step
            })
        });
    let of_class_with_optimizer = place.starts_with("self.")
        && model.assigns.iter().any(|assign| {
            model.ctx(assign.ctx).class == class && last_part(&assign.place).contains("optim")
        });
    by_call || leaves || of_class_that_trains || of_class_with_optimizer
}


/// Whether a call may train what it is given: a function of the file that does, or one of another file
/// that does not say otherwise.
fn may_train(model: &Model<'_>, call: &Call<'_>) -> bool {
    if let Some(target) = call.target {
        let func = model.func(target);
        return func.has_backward || func.has_step;
    }
    let Some(name) = last_name(&call.node.func) else {
        return false;
    };
    let name = name.to_ascii_lowercase();
    ["train", "fit", "optim", "learn", "solver", "engine", "add_module", "runner", "step"]
        .iter()
        .any(|word| name.contains(word))
}

/// Whether the file shows one GPU to itself: `os.environ["CUDA_VISIBLE_DEVICES"] = "0"`.
fn sees_one_gpu(model: &Model<'_>) -> bool {
    model.assigns.iter().any(|assign| {
        let (Expr::Subscript(target), Some(Expr::StringLiteral(value))) = (assign.target, assign.expr)
        else {
            return false;
        };
        assign.place == "os.environ[]"
            && matches!(&*target.slice, Expr::StringLiteral(key) if key.value.to_str() == "CUDA_VISIBLE_DEVICES")
            && value.value.to_str().parse::<u32>().is_ok()
    })
}

/// Whether the wrapper stands in where the alternative is not to be had: in the branch for machines
/// without CUDA, or beside a branch that wraps in `DistributedDataParallel`.
fn stands_in(model: &Model<'_>, call: &Call<'_>) -> bool {
    let around: Vec<CtxId> = model.within_function(call.ctx).collect();
    for stmt in &model.stmts {
        let Stmt::If(node) = stmt.node else { continue };
        if !node.range.contains_range(call.node.range())
            || model.func_of(stmt.ctx) != model.func_of(call.ctx)
        {
            continue;
        }
        let in_body = node
            .body
            .iter()
            .any(|each| each.range().contains_range(call.node.range()));
        let test = model.text(&*node.test);
        // `gpu is not None` and counts of devices choose among GPUs.
        let asks_for_cuda = test.contains("cuda.is_available")
            || test.ends_with("cuda")
            || test.ends_with("use_gpu");
        let denied = test.starts_with("not ");
        let is_else = node
            .elif_else_clauses
            .last()
            .is_some_and(|last| last.test.is_none() && last.range.contains_range(call.node.range()));
        let without_cuda = if denied { in_body } else { is_else };
        if asks_for_cuda && without_cuda {
            return true;
        }
        if has_ddp(model, |other| {
            node.range.contains_range(other.node.range())
        }) {
            return true;
        }
    }
    // `if distributed: return DDP(model)` before it.
    let func = model.func_of(call.ctx);
    func.is_some()
        && has_ddp(model, |other| {
            model.func_of(other.ctx) == func
                && model.within_function(other.ctx).any(|id| {
                    matches!(model.ctx(id).kind, CtxKind::Branch(_)) && !around.contains(&id)
                })
        })
}

fn has_ddp(model: &Model<'_>, within: impl Fn(&Call<'_>) -> bool) -> bool {
    model.calls.iter().any(|call| {
        matches!(
            last_name(&call.node.func),
            Some("DistributedDataParallel" | "DDP" | "MMDistributedDataParallel")
        ) && within(call)
    })
}

/// Whether all parameters of the wrapped model are frozen afterwards: it only runs forward.
fn is_frozen(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Stmt::Assign(assign) = model.stmt(call.stmt).node else {
        return false;
    };
    let func = model.func_of(call.ctx);
    let Some(place) = assign.targets.first().and_then(dotted_name) else {
        return false;
    };
    let is_off = |expr: &Expr| matches!(expr, Expr::BooleanLiteral(flag) if !flag.value);
    // `for p in model.parameters(): p.requires_grad = False`
    let by_loop = model.assigns.iter().any(|set| {
        set.place.ends_with(".requires_grad")
            && model.func_of(set.ctx) == func
            && set.target.start() > call.node.start()
            && set.expr.is_some_and(is_off)
            && model.within_function(set.ctx).any(|id| {
                model.calls.iter().any(|other| {
                    other.is_method("parameters")
                        && other.recv_place().as_deref() == Some(place.as_str())
                        && model.ctx(id).range.contains_range(other.node.range())
                        && !model.ctx(id).range.contains_range(call.node.range())
                })
            })
    });
    let by_call = model.calls_in_function(func).any(|other| {
        other.is_method("requires_grad_")
            && other.recv_place().as_deref() == Some(place.as_str())
            && other.node.start() > call.node.start()
            && other.node.arguments.find_positional(0).is_some_and(is_off)
    });
    // `self.encoders = [first, second]`, and a loop over those freezes each.
    let groups = || {
        model.assigns.iter().filter(|group| {
            model.func_of(group.ctx) == func
                && matches!(group.expr, Some(Expr::List(list)) if list.elts.iter().any(|each| dotted_name(each).as_deref() == Some(place.as_str())))
        })
    };
    let by_group = groups().any(|group| {
        model.assigns.iter().any(|set| {
            set.place.ends_with(".requires_grad")
                && model.func_of(set.ctx) == func
                && set.expr.is_some_and(is_off)
                && model.stmts.iter().any(|info| match info.node {
                    Stmt::For(node) => {
                        dotted_name(&node.iter).as_deref() == Some(group.place.as_str())
                            && node.range.contains_range(set.target.range())
                    }
                    _ => false,
                })
        })
    });
    let thawed = model.assigns.iter().any(|set| {
        set.place.ends_with(".requires_grad")
            && model.func_of(set.ctx) == func
            && !set.expr.is_some_and(is_off)
    });
    (by_loop || by_call || by_group) && !thawed
}
