use crate::queries::accumulation::stepped_optimizer;
use crate::queries::devices::{leaves_batches_on_cpu, on_cpu_only, runs_on_cpu};
use crate::queries::model_calls::{is_model_call, model_place};
use crate::queries::purpose::{has_managed_loop, in_unit_test, is_for_old_python};
use crate::queries::sizes::has_few_parameters;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind};
use super::fake_not_detached::{Role, judged_in_loss, role_of};
use crate::semantic::{Backward, Bind, Call, CtxKind, Grad, Model};
use oomph_python_source::ast::Expr;
use oomph_python_source::{Ranged, TextRange, dotted_name, last_name, last_part};

declare_rule! {
    /// Gradients of the step before stay through the forward pass.
    ///
    /// ## What it does
    ///
    /// Looks for training steps that call an optimizer's `zero_grad()` between the last forward pass and
    /// `backward()`, once in the iteration, here or in a method that does nothing else. Each of several optimizers is
    /// looked at by itself. Networks whose gradients are certainly below 16 MB are left out: all layers of their class in the project
    /// are known, with literal widths, those that all callers hand over, or 4,096 where the code shows none.
    ///
    /// ## Why it costs memory
    ///
    /// `zero_grad()` frees the gradients. Called that late, those of the step before lie beside all
    /// activations when the forward pass ends, which is when most memory is in use: as many bytes as
    /// the trained parameters have.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         loss = criterion(model(x), y)
    ///         optimizer.zero_grad()
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y)
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// Before PyTorch 2.0, where `zero_grad()` kept the gradients allocated unless it was told otherwise:
    /// nothing is said if the project pins an older one.
    ///
    /// ## Fix safety
    ///
    /// No fix: what else happens in between is yours to judge.
    OOM416 "zero-grad-after-forward" { fix: None, fresh: [18, 25] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if model.backwards.is_empty() || is_managed(model) || is_older_python(model) {
        return;
    }
    for zero in &model.calls {
        // Here, or in a method that does nothing else: `self.reset_grad()`.
        let (clear, by_helper) = match clearing_call(model, zero) {
            Some(clear) => (clear, !std::ptr::eq(clear, zero)),
            None => continue,
        };
        let func = model.func_of(zero.ctx);
        // The step: an iteration of the loop that trains, or a function that is called for each.
        let looped = model.loops_around(zero.ctx).next();
        let step = match looped {
            Some(looped) if looped.trains => looped.range,
            Some(_) => continue,
            None => match func {
                Some(id) => model.func(id).node.range(),
                None => continue,
            },
        };
        let here = |call: &Call<'_>| {
            model.func_of(call.ctx) == func && step.contains_range(call.node.range())
        };
        let at = zero.node.start();
        let calls = || model.calls_in_function(func).filter(|call| here(call));
        // Each optimizer has gradients of its own: those that this call clears are there from the step before,
        // unless another call clears them, or they were stepped in this iteration already.
        let place = clear.recv_place();
        let of_model = clear.recv.is_model();
        let only_one = place.is_some()
            && calls()
                .filter(|call| {
                    call.is_method("zero_grad") && (call.recv_place() == place || call.recv.is_model())
                        || call.target.is_some() && call.target == zero.target
                })
                .count()
                == 1;
        let stepped_before = calls().any(|call| {
            call.node.start() < at
                && (call.is_step() && (call.recv.is_model() || stepped_optimizer(call) == place)
                    || call.is_step() && of_model)
        });
        let backwards: Vec<TextRange> = model
            .backwards
            .iter()
            .map(|backward| &model.calls[backward.call])
            .filter(|call| here(call))
            .map(|call| call.node.range())
            .collect();
        let next_backward = backwards.iter().map(Ranged::start).filter(|start| *start > at).min();
        // Where several optimizers step in an iteration, the `backward()` of another may come first.
        let others_step = calls()
            .any(|call| stepped_optimizer(call).is_some_and(|other| Some(other) != place));
        let before_backward = next_backward.is_some()
            && (others_step || backwards.iter().all(|range| range.start() > at));
        // Here, or in a function of the file: `y, output = self.process(batch)`.
        // A loss that a model works out itself: `D.compute_loss(x, valid)`.
        let is_loss_of_model = |call: &Call<'_>| {
            call.method.is_some_and(|name| name.contains("loss") || name.contains("forward"))
                && call.recv_place().is_some_and(|recv| {
                    let is_handed_in = func.is_some_and(|id| {
                        let mut parameters = model.func(id).node.parameters.iter_non_variadic_params();
                        parameters.any(|each| each.parameter.name.as_str() == recv)
                    });
                    call.recv.is_model() || is_handed_in && recv != "self" && !recv.contains("crit")
                })
        };
        let is_pass = |call: &Call<'_>| {
            is_model_call(call)
                || call
                    .target
                    .is_some_and(|target| model.func(target).only_runs_forward())
        };
        // What runs between the two is the pass that this call comes before.
        let forward_follows = calls().any(|call| {
            (is_pass(call) || is_loss_of_model(call) || may_be_pass(call))
                && call.node.start() > at
                // `criterion(net(x)).backward()` holds its own.
                && backwards
                    .iter()
                    .any(|range| Some(range.start()) == next_backward && call.node.start() < range.end())
        });
        let only_pass = calls().filter(|call| is_pass(call)).count() == 1;
        let passes: Vec<&Call<'_>> = calls()
            .filter(|call| {
                is_pass(call)
                    // `with torch.set_grad_enabled(training):`
                    && matches!(call.grad, Grad::On | Grad::Maybe)
                    && call.node.end() < at
                    && !runs_on_cpu(model, call)
                    && (only_pass || trains_with(model, call))
                    && model.loops_around(call.ctx).next().map(|each| each.ctx)
                        == looped.map(|each| each.ctx)
            })
            .collect();
        // Whatever a loss was made of ran before it: `loss = diffusion.p_losses(x, t)`.
        let has_loss = || {
            next_backward
                .and_then(|next| model.backwards.iter().find(|each| model.calls[each.call].node.start() == next))
                .and_then(|backward| dotted_name(backward.target))
                .is_some_and(|loss| {
                    // What is bound after the backward pass, as by `loss = loss.item()`, is another value.
                    let bound = || {
                        model.assigns_to(func, &loss).filter(|assign| {
                            step.contains_range(assign.target.range()) && next_backward.is_some_and(|next| assign.target.start() < next)
                        })
                    };
                    bound().next().is_some()
                        && bound().all(|assign| {
                            assign.target.start() < at && (assign.bind != Bind::Set || model.is_inside(zero.ctx, assign.ctx))
                        })
                        && bound().any(|assign| {
                            assign.bind != Bind::Add && matches!(assign.expr, Some(Expr::Call(made))
                                if made.arguments.args.len() > 1
                                    && last_name(&made.func).is_some_and(|name| name.contains("loss") || name.contains("criter")))
                                && !matches!(assign.value.kind, Kind::Plain)
                                && !matches!(assign.value.device, Device::Cpu)
                        })
                        && !calls().any(|call| call.node.start() > at && (is_pass(call) || may_be_pass(call)))
                })
        };
        let steps_after = calls().any(|call| {
            call.is_method("step")
                && call.node.start() > at
                && (of_model || by_helper || stepped_optimizer(call) == place || call.recv_place() == place)
        });
        // A graph that was kept for this `backward()`: the one before filled these gradients, too.
        let shares_a_graph = calls().any(|call| {
            call.node.start() < at
                && call.method.is_some_and(|name| name.ends_with("backward"))
                && call.keyword("retain_graph").is_some_and(is_true)
        });
        // The discriminator judged before the generator's `backward()`, which filled its gradients, too.
        let filled_since = || {
            let is_discriminator = |call: &Call<'_>| {
                dotted_name(&call.node.func).and_then(|name| role_of(&name)) == Some(Role::Discriminator)
            };
            let of_step = || model.backwards_in_function(func).filter(|each| here(&model.calls[each.call]));
            let start = |backward: &Backward<'_>| model.calls[backward.call].node.start();
            let next = of_step().find(|each| Some(start(each)) == next_backward);
            let passes = next.map(|next| judged_in_loss(model, next)).unwrap_or_default();
            let first = passes.into_iter().filter(|call| is_discriminator(call)).map(|call| call.node.start()).min();
            place.as_deref().and_then(role_of) == Some(Role::Discriminator)
                && first.is_some_and(|first| {
                    of_step().any(|each| {
                        (first..at).contains(&start(each))
                            && judged_in_loss(model, each).into_iter().any(is_discriminator)
                    })
                })
        };
        // `global_param._grad = local_param.grad`: another model's gradients are there.
        let hands_over = model.assigns.iter().any(|assign| {
            model.func_of(assign.ctx) == func
                && matches!(last_part(&assign.place), "_grad" | "grad")
                && assign.expr.is_some_and(|expr| matches!(last_name(expr), Some("_grad" | "grad")))
        });
        // Gradients of a few MB.
        let is_small = || {
            let places = passes.iter().map(|pass| model_place(pass));
            !passes.is_empty() && places.into_iter().all(|place| place.is_some_and(|place| has_few_parameters(model, func, &place)))
        };
        if passes.is_empty() && !has_loss()
            || shares_a_graph
            || filled_since()
            || hands_over
            || place.as_deref().is_some_and(|place| steps_single_tensors(model, place))
            || !only_one
            || stepped_before
            || !before_backward
            || forward_follows
            || !steps_after
            || model
                .within_function(zero.ctx)
                .take_while(|id| looped.is_none_or(|looped| *id != looped.ctx))
                // `if training:` around the backward pass as well is part of the step, as is the branch of a generator
                // beside that of its discriminator.
                .any(|id| {
                    let around = model.ctx(id).range;
                    let is_own = || {
                        backwards.iter().filter(|range| around.contains_range(**range)).count() == 1
                            && next_backward.is_some_and(|next| around.contains(next))
                            && passes.iter().any(|pass| around.contains_range(pass.node.range()))
                    };
                    matches!(model.ctx(id).kind, CtxKind::Branch(_) | CtxKind::Handler)
                        && !backwards.iter().all(|range| around.contains_range(*range))
                        && !is_own()
                })
            || looped.is_some_and(|looped| leaves_batches_on_cpu(model, looped))
            || on_cpu_only(model)
            || in_unit_test(model, zero.ctx)
            || is_small()
        {
            continue;
        }
        // Before PyTorch 2.0 it had to be told.
        let (major, minor) = if clear.keyword("set_to_none").is_some_and(is_true) { (1, 7) } else { (2, 0) };
        out.push(
            Report::new(
                zero.node,
                "the gradients of the step before stay allocated through the forward pass",
            )
            .help("call `zero_grad()` before the forward pass, or after `step()`")
            .since(major, minor),
        );
    }
}

fn is_true(value: &Expr) -> bool {
    value.as_boolean_literal_expr().is_some_and(|flag| flag.value)
}

/// The call that clears gradients: this one, or the only one of a method that does nothing else.
fn clearing_call<'m, 'a>(model: &'m Model<'a>, call: &'m Call<'a>) -> Option<&'m Call<'a>> {
    let clears = |zero: &Call<'_>| {
        zero.is_method("zero_grad")
            && (zero.recv.kind == Kind::Optimizer || zero.recv.is_model())
            // Told `False`, it keeps them allocated on purpose.
            && zero.keyword("set_to_none").is_none_or(is_true)
    };
    if clears(call) {
        return Some(call);
    }
    let target = call.target?;
    let helper = model.func(target);
    if !helper.has_zero_grad || helper.has_backward || helper.has_step || helper.has_forward {
        return None;
    }
    let mut inner = model.calls_in_function(Some(target)).filter(|inner| clears(inner));
    let only = inner.next()?;
    inner.next().is_none().then_some(only)
}

/// Whether a library decides when gradients are cleared. Accelerate does so only while it accumulates.
fn is_managed(model: &Model<'_>) -> bool {
    let text = model.module.text();
    has_managed_loop(model)
        && (["deepspeed", "fabric", "model_engine", "accumul"].iter().any(|word| text.contains(word))
            || !text.contains("accelerator.backward("))
}

/// Whether a call may be a forward pass of a network that the file knows nothing about: `self.d(real)`.
fn may_be_pass(call: &Call<'_>) -> bool {
    const OTHERS: &[&str] = &[
        "loss", "crit", "print", "log", "clip", "len", "float", "int", "update", "norm", "scale", "range",
    ];
    let Some(place) = dotted_name(&call.node.func) else {
        return false;
    };
    let rest = place.strip_prefix("self.").unwrap_or(&place);
    let lower = rest.to_ascii_lowercase();
    call.callee.kind == Kind::Unknown
        && call.qual.is_none()
        && call.target.is_none()
        && !rest.contains('.')
        && !call.node.arguments.args.is_empty()
        && !OTHERS.iter().any(|word| lower.contains(word))
}

/// Whether an optimizer is made of single tensors, which are no memory to speak of: `Adam([self.log_alpha])`.
fn steps_single_tensors(model: &Model<'_>, place: &str) -> bool {
    let mut made = model
        .assigns
        .iter()
        .filter(|assign| assign.place == place)
        .peekable();
    made.peek().is_some()
        && made.all(|assign| match assign.expr {
            Some(Expr::Call(call)) => call
                .arguments
                .find_argument_value("params", 0)
                .and_then(Expr::as_list_expr)
                .is_some_and(|list| list.elts.iter().all(|each| dotted_name(each).is_some())),
            _ => false,
        })
}

/// Whether no Python that runs PyTorch 2.0 runs the file: it has an argument called `async`, or asks a dictionary for `iteritems()`.
fn is_older_python(model: &Model<'_>) -> bool {
    is_for_old_python(model) || model.calls.iter().any(|call| call.is_method("iteritems"))
}

/// Whether a forward pass is one that trains: a target network or a teacher runs beside it, and its
/// activations are not there when the loss is.
fn trains_with(model: &Model<'_>, call: &Call<'_>) -> bool {
    let name = model_place(call).unwrap_or_default();
    let name = last_part(&name).to_ascii_lowercase();
    !["target", "teacher"]
        .iter()
        .any(|word| name.contains(word))
        && !model.text(model.stmt(call.stmt).node).contains(".detach()")
}
