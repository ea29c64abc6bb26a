use oomph_python_source::ast::Stmt;
use oomph_python_source::{dotted_name, last_part};

use super::fake_not_detached::{Role, role_of};
use super::inference_builds_graph::{asks_for_gradients, is_of_published_inception, is_pass_by_method, is_sample};
use super::teacher_builds_graph::may_be_frozen;
use crate::queries::devices::{leaves_batches_on_cpu, on_cpu_only, runs_on_cpu};
use crate::queries::flow::Flow;
use crate::queries::model_calls::{has_no_parameters, is_model_call, is_of_frozen_class, model_place};
use crate::queries::purpose::in_unit_test;
use crate::queries::whereabouts::{is_brought_to_gpu, stays_on_cpu};
use crate::reach::goes_no_further;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Kind, Value};
use crate::semantic::{Call, CtxId, FuncId, Grad, Model};

declare_rule! {
    /// A graph is built that no `backward()` uses.
    ///
    /// ## What it does
    ///
    /// Follows what a forward pass with gradients on returns, through names, expressions and functions of the file:
    /// everything made of it is detached, compared, drawn, measured or made a number, and nothing reaches a
    /// `backward()`. So it finds evaluation without `model.eval()`, samples that are drawn between training steps,
    /// actions of an agent, a generator in the discriminator's step, and `model(x).detach()`. Where other code
    /// gets the result, nothing is reported. Models whose gradients may be turned off in the file, methods of
    /// modules that do not train, loops that end after one batch, and passes that nothing shows to run on a GPU are
    /// left out: the model, or what it is given, is moved there, or somebody else made the model.
    ///
    /// ## Why it costs memory
    ///
    /// The pass keeps the activations of all layers for a `backward()` that does not come, until the last value made
    /// of them is dropped. Under `torch.no_grad()` each is freed as soon as the next layer has used it.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def count_right(model, loader):
    ///     right = 0
    ///     for x, y in loader:
    ///         right += (model(x.cuda()).argmax(1) == y.cuda()).sum().item()
    ///     return right
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def count_right(model, loader):
    ///     right = 0
    ///     with torch.no_grad():
    ///         for x, y in loader:
    ///             right += (model(x.cuda()).argmax(1) == y.cuda()).sum().item()
    ///     return right
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another file turns off gradients of the model's parameters, or the caller turns all gradients off.
    ///
    /// ## Fix safety
    ///
    /// No fix: the call would need its own block.
    OOM207 "graph-without-use" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let mut passes = model
        .calls
        .iter()
        .filter(|call| {
            call.grad == Grad::On
                && (is_model_call(call) || is_generator(call) || is_pass_by_method(model, call))
        })
        .peekable();
    if passes.peek().is_none() || on_cpu_only(model) {
        return;
    }
    let mut flow = Flow::of_graphs(model);
    // One `no_grad()` around the passes of a model in one loop, or in what is around the loops, is enough.
    let mut seen: Vec<(Option<FuncId>, Option<CtxId>, String)> = Vec::new();
    for call in passes {
        let place = if is_model_call(call) {
            model_place(call)
        } else {
            dotted_name(&call.node.func)
        };
        let Some(place) = place else {
            continue;
        };
        let looped = model.loops_around(call.ctx).next().map(|looped| looped.ctx);
        let around = (model.func_of(call.ctx), looped, place.clone());
        // A pass has an input; what has none is a method of that name of something else.
        if call.node.arguments.is_empty() || seen.contains(&around) {
            continue;
        }
        let quiet_caller = model
            .func_name(call.ctx)
            .is_some_and(|name| model.around.calls_quietly(name));
        if is_name_of_class(model, call)
            || takes_or_is_of_a_model(call)
            || quiet_caller
            || is_part_of_module(model, call)
            || model.in_lightning(call.ctx)
            || in_unit_test(model, call.ctx)
            || has_hooks(model, call)
            || !flow.is_cut_off(call)
            || runs_on_cpu(model, call)
            || asks_for_gradients(model, call)
            || stays_on_cpu(model, call)
            || may_be_frozen(model, call, &place)
            || is_of_frozen_class(model, &place)
            || has_no_parameters(model, &place)
            // Other code that has the object calls it, perhaps with gradients off.
            || model.func_name(call.ctx) == Some("__call__") && !place.starts_with("self.")
            || is_sample(model, call)
            || model
                .loops_around(call.ctx)
                .any(|looped| leaves_batches_on_cpu(model, looped))
            || is_of_published_inception(model, call)
            || runs_once(model, call)
            || !is_brought_to_gpu(model, call, &place)
        {
            continue;
        }
        seen.push(around);
        out.push(
            Report::new(
                call.node,
                format!("nothing runs backward through what `{place}` returns, yet its activations are kept for that"),
            )
            .help("call it under `with torch.no_grad():`"),
        );
    }
}

/// Whether the loop around a call ends after its first iteration, whatever comes: it is there to look at one batch.
fn runs_once(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(looped) = model.loops_around(call.ctx).next() else {
        return false;
    };
    model.stmts.iter().any(|info| match info.node {
        Stmt::For(node) => {
            node.range == looped.range
                && node.body.last().is_some_and(|last| {
                    !last.is_continue_stmt() && goes_no_further(last)
                })
        }
        _ => false,
    })
}

/// Whether what is called is given a model, or is a method of one by its name alone: `accelerator.unwrap_model(net)`,
/// `model.train_model(loader)`.
fn takes_or_is_of_a_model(call: &Call<'_>) -> bool {
    call.args.iter().any(Value::is_model)
        || call.callee.weak && call.callee.is_model() && call.recv.is_model()
}

/// Whether a call is in a method of a module that does not train: the caller decides whether there is a graph.
fn is_part_of_module(model: &Model<'_>, call: &Call<'_>) -> bool {
    model.ctx(call.ctx).class.is_some_and(|class| {
        let class = model.class(class);
        let trains = class.methods.iter().any(|id| {
            let func = model.func(*id);
            func.has_backward || func.has_step
        });
        class.is_module && (!trains || model.func_name(call.ctx) == Some("forward"))
    })
}

/// Whether what is called is a name for a class: `network = ResNet`, and `network(3)` makes a model.
fn is_name_of_class(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Some(place) = dotted_name(&call.node.func) else {
        return false;
    };
    let here = model.assigns_to(model.func_of(call.ctx), &place);
    here.chain(model.assigns_to(None, &place)).any(|assign| {
        let name = assign.expr.and_then(dotted_name);
        name.is_some_and(|name| {
            let last = last_part(&name);
            last.starts_with(char::is_uppercase) && last.contains(char::is_lowercase)
        })
    })
}

/// Whether hooks read activations or gradients near a call, as for Grad-CAM.
fn has_hooks(model: &Model<'_>, call: &Call<'_>) -> bool {
    let func = model.func_of(call.ctx);
    let class = model.ctx(call.ctx).class;
    model.calls.iter().any(|other| {
        other
            .method
            .is_some_and(|name| name.starts_with("register_") && name.ends_with("hook"))
            && (model.func_of(other.ctx) == func || class.is_some() && model.ctx(other.ctx).class == class)
    })
}

/// `self.G(z)`, `netG(z)`: a generator by its name, where nothing else is known of it.
fn is_generator(call: &Call<'_>) -> bool {
    let Some(place) = dotted_name(&call.node.func) else {
        return false;
    };
    call.callee.kind == Kind::Unknown
        && call.target.is_none()
        && !call.node.arguments.args.is_empty()
        && last_part(&place) != "g"
        && role_of(&place) == Some(Role::Generator)
}
