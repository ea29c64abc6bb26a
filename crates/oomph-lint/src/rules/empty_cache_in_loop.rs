use oomph_python_source::ast::{ExceptHandler, Expr, Stmt};
use oomph_python_source::{blocks_of, last_name, names_in};

use crate::fix::Fix;
use crate::queries::model_calls::{is_model_call, model_place};
use crate::queries::oom_handlers::oom_handler;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Call, CtxKind, Loop, Model};

declare_rule! {
    /// The cache is emptied in every step.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.cuda.empty_cache()` that runs in every iteration of a training loop, of a
    /// loop over batches, or of one that runs a model in each step, as samplers do. That there is a GPU is no condition.
    ///
    /// ## Why it costs memory
    ///
    /// It frees nothing that is in use: it gives cached blocks back to the driver, and the next
    /// forward pass asks for them again, with a synchronisation each way. The peak is the same, the
    /// job is slower, and the real cause goes unseen.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x), y).backward()
    ///         optimizer.step()
    ///         torch.cuda.empty_cache()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x), y).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// If fragmentation is the cause, `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` cures it.
    ///
    /// ## When it is wrong
    ///
    /// When another process on the same GPU needs the memory between steps, or sizes differ so much
    /// from step to step that the cache is of no use.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: on a nearly full, fragmented GPU the call can be what keeps a job alive.
    OOM611 "empty-cache-in-loop" { fix: Sometimes, fresh: [88, 106] }
}

/// Whether a loop runs a model in each iteration that was there before it: sampling, say.
fn runs_model(model: &Model<'_>, looped: &Loop<'_>) -> bool {
    let func = model.func_of(looped.ctx);
    model.calls.iter().any(|call| {
        is_model_call(call)
            && model.loops_around(call.ctx).next().map(|each| each.ctx) == Some(looped.ctx)
            && model_place(call).is_some_and(|place| {
                !model
                    .assigns_to(func, &place)
                    .any(|assign| model.is_inside(assign.ctx, looped.ctx))
            })
    })
}

/// Whether the call is under a condition in the loop, other than that there is a GPU.
fn is_under_a_test(model: &Model<'_>, call: &Call<'_>, looped: &Loop<'_>) -> bool {
    model
        .ancestors(call.ctx)
        .take_while(|id| *id != looped.ctx)
        .any(|id| match model.ctx(id).kind {
            CtxKind::Branch(Some(test)) => {
                let asked = model.text(test);
                !asked.ends_with("cuda.is_available()") || asked.contains(' ')
            }
            CtxKind::Branch(None) | CtxKind::Handler => true,
            _ => false,
        })
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if !call.is("torch.cuda.empty_cache") {
            continue;
        }
        let Some(looped) = model.loops_around(call.ctx).next() else {
            if runs_in_a_loop_of_callers(model, call) {
                report(model, call, true, out);
            }
            continue;
        };
        // An epoch loop holds the loop that steps: there, once per epoch is harmless.
        let steps_here = model.backwards.iter().any(|backward| {
            model.loops_around(backward.ctx).next().map(|each| each.ctx) == Some(looped.ctx)
        });
        let holds_inner = !steps_here && (model.loops.iter().any(|each| {
            each.ctx != looped.ctx
                && (each.data || each.contains_backward)
                && model.is_inside(each.ctx, looped.ctx)
        }) || (!looped.trains && !looped.data && !runs_model(model, looped) && !calls_a_step(model, looped))
            || model.calls.iter().any(|other| {
                model.is_inside(other.ctx, looped.ctx)
                    && other.target.is_some_and(|target| {
                        let body = model.func(target).body;
                        model
                            .loops
                            .iter()
                            .any(|each| body.is_some_and(|body| model.is_inside(each.ctx, body)) && (each.data || each.trains))
                    })
            }));
        // A search for what fits, where sizes change from try to try.
        let is_search = model.stmts.iter().any(|info| match info.node {
            Stmt::Try(node) => {
                looped.range.contains_range(node.range)
                    && node.handlers.iter().any(|ExceptHandler::ExceptHandler(handler)| {
                        oom_handler(handler).is_some() && !(looped.trains && goes_on(&handler.body))
                    })
            }
            _ => false,
        });
        if holds_inner
            || is_search
            || in_unit_test(model, call.ctx)
            || is_under_a_test(model, call, looped) {
            continue;
        }
        report(model, call, !model.is_conditional_in(call.ctx, looped.ctx), out);
    }
}

fn report(model: &Model<'_>, call: &Call<'_>, always: bool, out: &mut Vec<Report>) {
    let fix = Some(call)
        .filter(|_| always)
        .and_then(|call| model.module.delete(model.stmt(call.stmt).node))
        .map(|edit| Fix::unsafe_("remove the call", edit));
    out.push(
        Report::new(
            call.node,
            "the cache is emptied in every iteration: nothing in use is freed, and the next iteration allocates the cache again",
        )
        .help("remove it; for fragmentation, set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`")
        .fix(fix),
    );
}

/// Whether a handler lets the loop go on: a batch that does not fit is left out, and nothing is being searched for.
fn goes_on(handler: &[Stmt]) -> bool {
    handler.iter().all(|stmt| match stmt {
        Stmt::Break(_) | Stmt::Return(_) => false,
        other => blocks_of(other).into_iter().all(goes_on),
    })
}

/// Whether a call is in a function that runs a model once, a step or a token, and that the file calls in a loop.
fn runs_in_a_loop_of_callers(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(func) = model.func_of(call.ctx) else {
        return false;
    };
    let passes = || {
        model
            .calls_in_function(Some(func))
            .filter(|other| is_model_call(other) || other.is_method("backward"))
    };
    let conditional = model
        .within_function(call.ctx)
        .any(|id| matches!(model.ctx(id).kind, CtxKind::Branch(_) | CtxKind::Handler));
    passes().next().is_some()
        && !conditional
        && passes().all(|pass| model.loops_around(pass.ctx).next().is_none())
        // What makes its model frees another one.
        && !model.assigns_in_function(Some(func)).any(|assign| assign.value.is_model())
        && !model.calls_in_function(Some(func)).any(|other| other.recv.kind == Kind::Loader || other.result.kind == Kind::Loader)
        && !in_unit_test(model, call.ctx)
        // A function that runs backward and steps once is called for each batch, wherever that is.
        && (model.func(func).has_step && passes().any(|pass| pass.is_method("backward"))
            || model.calls.iter().any(|other| {
                other.target == Some(func) && model.loops_around(other.ctx).next().is_some()
            }))
}

/// Whether each iteration of a loop calls what another file says is one step: `train_step(model, batch)`.
fn calls_a_step(model: &Model<'_>, looped: &Loop<'_>) -> bool {
    const STEPS: &[&str] = &["train_step", "training_step", "train_batch", "train_on_batch", "optimize_parameters"];
    model.calls.iter().any(|call| {
        last_name(&call.node.func).is_some_and(|name| STEPS.contains(&name.trim_start_matches('_')))
            // With all batches, it is an epoch.
            && !names_in(&Expr::Call(call.node.clone())).iter().any(|name| name.contains("loader") || name.contains("data_iter"))
            && model.loops_around(call.ctx).next().map(|each| each.ctx) == Some(looped.ctx)
    })
}
