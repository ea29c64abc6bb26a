use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, dotted_name, last_name};

use super::fake_not_detached::{judged_in_loss, only_step};
use super::graph_without_use::is_generator;
use crate::queries::devices::{on_cpu_only, runs_on_cpu};
use crate::queries::model_calls::{has_no_parameters, is_model_call, is_of_frozen_class, model_place};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Backward, Call, FuncId, Grad, Model};

declare_rule! {
    /// `backward()` fills gradients of weights where only an input's gradient is used.
    ///
    /// ## What it does
    ///
    /// Looks for functions that make an input require gradients, call `backward()`, read `x.grad` and step nothing, as
    /// attacks do; and for loops in which the one optimizer that steps has single tensors, as when a latent vector, a
    /// trigger or an image is optimized. Models whose parameters the file freezes are left out.
    ///
    /// ## Why it costs memory
    ///
    /// `backward()` computes and stores a gradient for every weight that the loss depends on: one more copy of the
    /// model, which stays until somebody clears it, and about half of the time of the backward pass.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def attack(model, criterion, x, y, epsilon):
    ///     x = x.cuda().requires_grad_()
    ///     loss = criterion(model(x), y)
    ///     loss.backward()
    ///     return x + epsilon * x.grad.sign()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def attack(model, criterion, x, y, epsilon):
    ///     x = x.cuda().requires_grad_()
    ///     loss = criterion(model(x), y)
    ///     (gradient,) = torch.autograd.grad(loss, x)
    ///     return x + epsilon * gradient.sign()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another file freezes the model that a function is given, or steps on the gradients that this adds to.
    ///
    /// ## Fix safety
    ///
    /// No fix: what reads `x.grad` has to change as well.
    OOM112 "weight-gradients-unused" { fix: None, fresh: [0, 2] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // A file that freezes something may freeze any model that it hands on.
    const FREEZES: &[&str] = &["requires_grad = False", "requires_grad_(False)", "requires_grad=False\n", "freeze", "set_requires_grad", "toggle_grad"];
    if model.backwards.is_empty() || FREEZES.iter().any(|word| model.module.text().contains(word)) {
        return;
    }
    for backward in &model.backwards {
        let call = &model.calls[backward.call];
        let wanted = wanted_input(model, backward);
        let optimized = || optimized_tensor(model, backward);
        let Some((tensor, is_optimized)) = wanted.map(|name| (name, false)).or_else(|| optimized().map(|name| (name, true))) else {
            continue;
        };
        if !call.is_method("backward")
            || call.keyword("inputs").is_some()
            || call.keyword("create_graph").is_some()
            || in_unit_test(model, call.ctx)
            || on_cpu_only(model)
        {
            continue;
        }
        let flows = judged_in_loss(model, backward);
        // `(alpha * (log_pi + target).detach()).mean()`: the loss of a temperature goes through no model.
        let is_cut = |pass: &Call<'_>| {
            flows.iter().any(|each| {
                matches!(each.method, Some("detach" | "item" | "detach_")) && each.node.end() > pass.node.end()
            })
        };
        let pass = flows.iter().find(|pass| {
            (is_model_call(pass) || is_generator(pass))
                && pass.grad == Grad::On
                && place_of(pass).is_some_and(|place| {
                    place != "self"
                        && !has_no_parameters(model, &place)
                        && !is_of_frozen_class(model, &place)
                })
                && !runs_on_cpu(model, pass)
                && !is_cut(pass)
        });
        let Some(pass) = pass else { continue };
        let place = place_of(pass).unwrap_or_default();
        let report = if is_optimized {
            Report::new(
                call.node,
                format!("only `{tensor}` is optimized, and this makes gradients for all weights of `{place}`"),
            )
            .help("turn them off with `requires_grad_(False)` on the model before the loop")
        } else {
            Report::new(
                call.node,
                format!("only `{tensor}.grad` is read, and this makes gradients for all weights of `{place}`"),
            )
            .help("`torch.autograd.grad(loss, x)` makes that of the input alone")
        };
        out.push(report);
    }
}

fn place_of(pass: &Call<'_>) -> Option<String> {
    if is_model_call(pass) { model_place(pass) } else { dotted_name(&pass.node.func) }
}

/// The input whose gradient is all that a function reads after a `backward()`: it steps nothing and looks at no
/// parameters.
fn wanted_input(model: &Model<'_>, backward: &Backward<'_>) -> Option<String> {
    // What steps, clears or reads gradients of weights.
    const USES: &[&str] = &[".step(", "parameters()", "weight.grad", "param.grad", "p.grad", "hook", ".trainable"];
    let func = model.func_of(backward.ctx)?;
    let info = model.func(func);
    let text = model.text(info.node);
    if info.has_step || USES.iter().any(|word| text.contains(word)) {
        return None;
    }
    let after = text.get((model.calls[backward.call].node.end() - info.node.start()).to_usize()..)?;
    inputs_with_gradients(model, func)
        .into_iter()
        .find(|name| reads_gradient(after, name) || model.loops_around(backward.ctx).next().is_some() && reads_gradient(text, name))
}

fn reads_gradient(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    [".grad", ".grad.data"].iter().any(|end| {
        let read = format!("{name}{end}");
        text.match_indices(&read).any(|(at, _)| {
            let rest = &text[at + read.len()..];
            !text[..at].ends_with(is_word)
                && !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
                // Clearing it reads nothing.
                && !rest.starts_with(".zero_()")
                && !rest.starts_with(".data.zero_()")
                && !rest.trim_start().starts_with("= None")
        })
    })
}

/// The names that a function makes require gradients: `x.requires_grad_()`, `x.requires_grad = True`,
/// `Variable(x, requires_grad=True)`.
fn inputs_with_gradients(model: &Model<'_>, func: FuncId) -> Vec<String> {
    let is_true = |expr: Option<&Expr>| expr.is_none_or(|expr| matches!(expr, Expr::BooleanLiteral(flag) if flag.value));
    let mut names = Vec::new();
    for call in model.calls_in_function(Some(func)) {
        let bound = || match model.stmt(call.stmt).node {
            Stmt::Assign(assign) if assign.value.range().contains_range(call.node.range()) => {
                assign.targets.first().and_then(dotted_name)
            }
            _ => None,
        };
        if call.is_method("requires_grad_") && is_true(call.node.arguments.find_positional(0)) && !call.recv.is_model() {
            names.extend(bound().or_else(|| call.recv_place()));
        } else if matches!(call.keyword("requires_grad"), Some(Expr::BooleanLiteral(flag)) if flag.value)
            || last_name(&call.node.func) == Some("Parameter") {
            names.extend(bound());
        } else if call.is_method("retain_grad") {
            names.extend(call.recv_place());
        }
    }
    for assign in model.assigns_in_function(Some(func)) {
        if let Some(name) = assign.place.strip_suffix(".requires_grad")
            && matches!(assign.expr, Some(Expr::BooleanLiteral(flag)) if flag.value)
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// The tensor that the one optimizer has that steps on a `backward()`: `Adam([z])`.
fn optimized_tensor(model: &Model<'_>, backward: &Backward<'_>) -> Option<String> {
    let func = model.func_of(backward.ctx);
    let optimizer = only_step(model, backward)?;
    model.training_loop(backward.ctx)?;
    let mut made = model
        .assigns_to(func, &optimizer)
        .filter(|assign| assign.value.kind == crate::semantic::value::Kind::Optimizer);
    let only = made.next()?;
    if made.next().is_some() {
        return None;
    }
    let Some(Expr::Call(made)) = only.expr else { return None };
    let params = made.arguments.find_argument_value("params", 0)?;
    // `params = [z]`
    let by_name = || {
        let name = dotted_name(params)?;
        let mut bound = model.assigns_to(func, &name);
        bound.next().filter(|_| bound.next().is_none())?.expr?.as_list_expr()
    };
    let list = params.as_list_expr().or_else(by_name)?;
    let mut first = None;
    for each in &list.elts {
        let name = dotted_name(each)?;
        // A tensor that the function made, not a layer's weight.
        let is_tensor = model.assigns_to(func, &name).any(|assign| {
            assign.expr.is_some_and(|expr| {
                let text = model.text(expr);
                text.contains("torch.") || text.contains("Variable(") || text.contains("requires_grad") || text.contains(".clone()")
            })
        });
        let requires = format!("{name}.requires_grad");
        if !is_tensor && model.assigns_to(func, &requires).next().is_none() {
            return None;
        }
        first.get_or_insert(name);
    }
    first
}
