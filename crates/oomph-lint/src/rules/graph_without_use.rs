use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, dotted_name, last_name, last_part, names_in};

use super::evaluation_builds_graph::{functions_of_evaluation, is_evaluated_in_a_loop, is_kept_into_next};
use super::evaluation_function_builds_graph::has_another_name;
use super::fake_not_detached::{Role, judged_in_loss, role_of};
use super::inference_builds_graph::{asks_for_gradients, is_of_published_inception, is_pass_by_method, is_sample};
use super::teacher_builds_graph::may_be_frozen;
use crate::queries::devices::{leaves_batches_on_cpu, on_cpu_only, runs_on_cpu};
use crate::queries::flow::Flow;
use crate::queries::model_calls::{has_no_parameters, is_model_call, model_place, names_of_classes};
use crate::queries::purpose::in_unit_test;
use crate::queries::sizes::{is_one_example, keeps_few_activations};
use crate::queries::whereabouts::{is_brought_to_gpu, stays_on_cpu};
use crate::reach::goes_no_further;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Kind, Value};
use crate::semantic::{Call, CtxId, FuncId, Grad, Model, torch};

declare_rule! {
    /// A graph is built that no `backward()` uses.
    ///
    /// ## What it does
    ///
    /// Follows what a forward pass with gradients on returns, through names, expressions and functions of the file:
    /// everything made of it is detached, compared, drawn, measured or made a number, and nothing reaches a
    /// `backward()`. So it finds evaluation without `model.eval()`, samples that are drawn between training steps,
    /// actions of an agent, a generator in the discriminator's step, and `model(x).detach()`. Networks that are known by
    /// nothing but their names (`self.actor`, `nets[key]`) and methods that run layers of theirs count as well. Where
    /// other code gets the result, nothing is reported, unless what it returns is cut off at once. Models whose gradients may be turned off in the file, methods of
    /// modules that do not train, loops that end after one batch, and passes that nothing shows to run on a GPU are
    /// left out: the model, or what it is given, is moved there, or somebody else made the model.
    /// So are methods of the project that run backward themselves, modules whose `forward` does, classes of the project with a few
    /// narrow linear layers only (4,096 rows keep less than 16 MB), and one example outside of loops that is classified or embedded.
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
    OOM207 "graph-without-use" { fix: None, fresh: [23, 47] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // What evaluates batches, or keeps its graph into the next iteration, is OOM201.
    let evaluating = functions_of_evaluation(model);
    for (call, place) in passes_without_use(model, |call| !is_evaluated_in_a_loop(model, &evaluating, call)) {
        if is_kept_into_next(model, call) {
            continue;
        }
        out.push(
            Report::new(
                call.node,
                format!("nothing runs backward through what `{place}` returns, yet its activations are kept for that"),
            )
            .help("call it under `with torch.no_grad():`"),
        );
    }
}

/// Passes with gradients on, among those that are asked for, of which nothing reaches a `backward()`, and the place of what
/// each calls: the first in each loop.
pub(super) fn passes_without_use<'m, 'a>(
    model: &'m Model<'a>,
    is_asked_for: impl Fn(&Call<'a>) -> bool,
) -> Vec<(&'m Call<'a>, String)> {
    let mut passes = model
        .calls
        .iter()
        .filter(|call| {
            call.grad == Grad::On
                && is_asked_for(call)
                && (is_model_call(call)
                    || is_generator(call)
                    || is_net_by_name(call)
                    || is_pass_by_method(model, call)
                    || is_method_of_net(model, call)
                    || is_detached_attribute(model, call))
        })
        .peekable();
    let mut found = Vec::new();
    if passes.peek().is_none() || on_cpu_only(model) {
        return found;
    }
    let mut flow = Flow::of_graphs(model);
    // One `no_grad()` around the passes of a model in one loop, or in what is around the loops, is enough.
    let mut seen: Vec<(Option<FuncId>, Option<CtxId>, String)> = Vec::new();
    for call in passes {
        let place = if is_model_call(call) {
            model_place(call)
        } else {
            dotted_name(&call.node.func).or_else(|| net_of_collection(call).map(|net| model.text(net).to_owned()))
        };
        let Some(place) = place else {
            continue;
        };
        let looped = model.loops_around(call.ctx).next().map(|looped| looped.ctx);
        let around = (model.func_of(call.ctx), looped, place.clone());
        // A pass has an input; what has none is a method of that name of something else.
        if call.node.arguments.is_empty()
            || seen.contains(&around)
            || is_wanted_or_small(model, call, &place, &mut flow)
        {
            continue;
        }
        seen.push(around);
        found.push((call, place));
    }
    found
}

/// Whether a function runs backward on a name that it never binds, but has in a statement of names alone: `loss, accuracy,` above
/// `count = step(output)` is an assignment that is broken in two. Of which pass the loss was is not known.
fn lost_its_loss(model: &Model<'_>, func: Option<FuncId>) -> bool {
    let mut alone = model.stmts.iter().filter(|info| func.is_some() && model.func_of(info.ctx) == func).filter_map(|info| match info.node {
        Stmt::Expr(only) if only.value.is_tuple_expr() => Some(&*only.value),
        _ => None,
    });
    alone.any(|tuple| {
        names_in(tuple).iter().any(|name| {
            let mut backwards = model.backwards.iter().filter(|each| model.func_of(each.ctx) == func);
            model.assigns_to(func, name).next().is_none()
                && backwards.any(|each| names_in(each.target).iter().any(|used| used.split('.').next() == Some(name)))
        })
    })
}

/// Whether something may use the graph of a pass, or nothing shows that it costs memory.
fn is_wanted_or_small<'m, 'a>(model: &'m Model<'a>, call: &Call<'a>, place: &str, flow: &mut Flow<'m, 'a>) -> bool {
    let quiet_caller = model
        .func_name(call.ctx)
        .is_some_and(|name| model.around.calls_quietly(name));
    // It steps, and what it calls ran backward: `model(x, memory_replay_backprop=True)`.
    let steps_only = model.func_of(call.ctx).is_some_and(|id| model.func(id).has_step && !model.func(id).has_backward);
    steps_only
        || lost_its_loss(model, model.func_of(call.ctx))
        || is_scaled_loss(model, call)
        || is_name_of_class(model, call)
        || takes_or_is_of_a_model(call)
        || quiet_caller
        || model.func_name(call.ctx).is_some_and(|name| has_another_name(model, name))
        || is_part_of_module(model, call, place)
        || model.in_lightning(call.ctx)
        || in_unit_test(model, call.ctx)
        || has_hooks(model, call)
        || !flow.is_cut_off(call)
        || is_run_on_cpu(model, call, place)
        || asks_for_gradients(model, call)
        || stays_on_cpu(model, call)
        || may_be_frozen(model, call, place)
        || has_no_parameters(model, place)
        || needs_no_advice(model, call, place)
        // Other code that has the object calls it, perhaps with gradients off.
        || model.func_name(call.ctx) == Some("__call__") && !place.starts_with("self.")
        || is_sample(model, call)
        || model
            .loops_around(call.ctx)
            .any(|looped| leaves_batches_on_cpu(model, looped))
        || is_of_published_inception(model, call)
        || runs_once(model, call)
        || plays_in_an_environment(model, call)
        || keeps_few_activations(model, model.func_of(call.ctx), place)
        || is_one_example(model, call)
        || !is_brought_to_gpu(model, call, place)
}

/// Whether the loop around a pass steps an environment: `state, reward, done, info = env.step(action)`. A network for that is small, and
/// gets one state.
fn plays_in_an_environment(model: &Model<'_>, call: &Call<'_>) -> bool {
    let steps = |stmt: &Stmt| match stmt {
        Stmt::Assign(node) => {
            matches!(&*node.targets, [Expr::Tuple(given)] if given.elts.len() >= 3)
                && matches!(&*node.value, Expr::Call(call) if call.func.is_attribute_expr() && last_name(&call.func) == Some("step"))
        }
        _ => false,
    };
    let inner = model.loops_around(call.ctx).next();
    inner.is_some_and(|inner| {
        model.stmts.iter().any(|info| inner.range.contains_range(info.node.range()) && steps(info.node))
    })
}

/// Whether a pass, or another one of the same network in its function, is known to run on the CPU.
fn is_run_on_cpu(model: &Model<'_>, call: &Call<'_>, place: &str) -> bool {
    let mut passes = model
        .calls_in_function(model.func_of(call.ctx))
        .filter(|other| dotted_name(&other.node.func).as_deref() == Some(place));
    runs_on_cpu(model, call) || passes.any(|other| runs_on_cpu(model, other))
}

/// Whether what is called runs backward itself, `agent.train_model(batch)` or the `forward` of a class that holds its
/// optimizers, or is of a class that freezes itself.
pub(super) fn needs_no_advice(model: &Model<'_>, call: &Call<'_>, place: &str) -> bool {
    let settles = |name: String| {
        let class = last_part(&name);
        model.around.freezes_itself(class) || model.around.trains_itself(class)
    };
    // `net.first_layer(x)`
    let owner = call.recv_place().filter(|owner| owner != "self");
    is_given_a_network(model, call)
        || call.method.is_some_and(|name| model.around.runs_backward(name))
        || names_of_classes(model, place).any(settles)
        || owner.is_some_and(|owner| names_of_classes(model, &owner).any(settles))
}

/// Whether a module gets another one that its function puts in evaluation mode, `method(x, y, model=model)`: how it runs that one, and
/// with which gradients, is its own business, as in meta-learning.
fn is_given_a_network(model: &Model<'_>, call: &Call<'_>) -> bool {
    let switched = |name: &str| {
        model.calls_in_function(model.func_of(call.ctx)).any(|other| {
            other.is_method("eval") && other.node.arguments.is_empty() && other.recv_place().as_deref() == Some(name)
        })
    };
    let mut given = call.node.arguments.iter_source_order().filter_map(|each| dotted_name(each.value()));
    given.any(|name| switched(&name))
}

/// Whether the loop around a call ends after its first iteration, whatever comes: it is there to look at one batch.
pub(super) fn runs_once(model: &Model<'_>, call: &Call<'_>) -> bool {
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
    // `wrapper.model(**batch)` is a pass.
    let is_part = call.method.is_some_and(|name| name == "module" || matches!(torch::hint(name), Some(Kind::Model(_))));
    call.args.iter().any(Value::is_model)
        || call.callee.weak && call.callee.is_model() && call.recv.is_model() && !is_part
}

/// Whether a call is in a method of a module that does not train: the caller decides whether there is a graph.
fn is_part_of_module(model: &Model<'_>, call: &Call<'_>, place: &str) -> bool {
    model.ctx(call.ctx).class.is_some_and(|class| {
        let class = model.class(class);
        let trains = class.methods.iter().any(|id| {
            let func = model.func(*id);
            func.has_backward || func.has_step
        });
        // `self.forward(x)` in `predict`, which returns numbers.
        let acts = place == "self" && model.func_name(call.ctx).is_some_and(|name| {
            let name = name.trim_start_matches('_');
            matches!(name, "act" | "step") || ["predict", "infer", "select_action", "get_action", "choose_action"]
                .iter()
                .any(|word| name.starts_with(word))
        });
        class.is_module && (!trains && !acts || model.func_name(call.ctx) == Some("forward"))
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

/// Whether a loss of what a call returns goes to a scaler that runs backward: `grad_norm = loss_scaler(loss, optimizer)`.
fn is_scaled_loss(model: &Model<'_>, call: &Call<'_>) -> bool {
    model.backwards_in_function(model.func_of(call.ctx)).any(|backward| {
        let runs = &model.calls[backward.call];
        last_name(&runs.node.func).is_some_and(|name| name.ends_with("loss_scaler"))
            && judged_in_loss(model, backward).iter().any(|pass| std::ptr::eq(pass.node, call.node))
    })
}

/// `self.actor(state)`, `features_extractor(x)`: a network by its name, where nothing else is known of it.
fn is_net_by_name(call: &Call<'_>) -> bool {
    let is_unknown = call.callee.kind == Kind::Unknown
        && call.target.is_none()
        && !call.node.arguments.args.is_empty()
        && call.keyword("return_tensors").is_none();
    is_unknown
        && (net_of_collection(call).is_some()
            || dotted_name(&call.node.func).is_some_and(|place| is_name_of_net(&place)))
}

/// The name of a network in reinforcement learning, or of one that extracts features.
fn is_name_of_net(place: &str) -> bool {
    let name = last_part(place).trim_start_matches('_').to_ascii_lowercase();
    let root = place.split('.').next().unwrap_or(place);
    !torch::is_settings_root(root)
        && !torch::begins_with_a_verb(&name)
        && (matches!(name.as_str(), "actor" | "critic" | "policy" | "vae" | "online")
            || ["_actor", "_critic", "_policy", "q_function", "q_func", "actor_target", "critic_target", "net_target", "policy_target", "_encoder", "_decoder", "features_extractor"]
                .iter()
                .any(|end| name.ends_with(end))
            || name.starts_with("actor_")
            || name.starts_with("critic_"))
}

/// `nets[key](x)`
fn net_of_collection<'a>(call: &Call<'a>) -> Option<&'a Expr> {
    let Expr::Subscript(item) = &*call.node.func else {
        return None;
    };
    let name = dotted_name(&item.value)?;
    let name = last_part(&name).to_ascii_lowercase();
    let holds = name.contains("net") || name.contains("model") || name.contains("generator");
    (holds && !name.contains("class") && !name.contains("builder") && !name.contains("zoo") && !call.node.arguments.args.is_empty())
        .then_some(&*call.node.func)
}

/// `self.policy.pi(state)`, `model.forward_backbone(x)`: a method of a network that runs its layers, as every class of
/// the project that has a method of this name does.
fn is_method_of_net(model: &Model<'_>, call: &Call<'_>) -> bool {
    const OTHERS: &[&str] = &["init", "reset", "update", "train", "learn", "loss", "set", "save", "load", "fit", "log", "param", "norm"];
    let Some(name) = call.method else { return false };
    let of_net = call.recv_place().is_some_and(|place| {
        place != "self" && (call.recv.is_model() || is_name_of_net(&place))
    });
    of_net
        && call.target.is_none()
        && !call.callee.is_model()
        && !call.node.arguments.args.is_empty()
        && !OTHERS.iter().any(|word| name.contains(word))
        && match model.around.method(name) {
            Some(method) => method.runs && !method.decides,
            // `self.model.prenet(x)`: no method, so a layer.
            None => call.recv.is_model() && is_name_of_layer(name),
        }
}

fn is_name_of_layer(name: &str) -> bool {
    const LAYERS: &[&str] = &[
        "encoder", "decoder", "net", "head", "backbone", "vae", "linear", "conv", "embedding", "extractor", "projector",
        "projection", "classifier", "gst", "transformer", "features",
    ];
    LAYERS.iter().any(|end| name.ends_with(end)) && !name.starts_with("get_")
}

/// `self.extract(x).clone().detach()`: what its object calls and detaches at once, and no class of the project has as a
/// method, is a network.
fn is_detached_attribute(model: &Model<'_>, call: &Call<'_>) -> bool {
    const OTHERS: &[&str] = &["loss", "crit", "transform", "norm", "metric", "reward", "to_", "distance", "augment", "dist"];
    let Some(name) = dotted_name(&call.node.func) else {
        return false;
    };
    let Some(attribute) = name.strip_prefix("self.") else {
        return false;
    };
    let stmt = model.stmt(call.stmt).node;
    let rest = || {
        let text = model.text(stmt);
        let at = (call.node.end() - stmt.start()).to_usize();
        text.get(at..).unwrap_or_default().split('\n').next().unwrap_or_default()
    };
    call.callee.kind == Kind::Unknown
        && call.target.is_none()
        && !attribute.contains('.')
        && !call.node.arguments.args.is_empty()
        && !OTHERS.iter().any(|word| attribute.to_ascii_lowercase().contains(word))
        && model.around.method(attribute).is_none()
        && !matches!(stmt, Stmt::With(_) | Stmt::For(_) | Stmt::If(_) | Stmt::While(_) | Stmt::FunctionDef(_))
        && (rest().starts_with('.') || rest().starts_with('['))
        && rest().contains(".detach()")
}

/// `self.G(z)`, `netG(z)`: a generator by its name, where nothing else is known of it.
pub(super) fn is_generator(call: &Call<'_>) -> bool {
    let Some(place) = dotted_name(&call.node.func) else {
        return false;
    };
    call.callee.kind == Kind::Unknown
        && call.target.is_none()
        && !call.node.arguments.args.is_empty()
        && last_part(&place) != "g"
        && role_of(&place) == Some(Role::Generator)
}
