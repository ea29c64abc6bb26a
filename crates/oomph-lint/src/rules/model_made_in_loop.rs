use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, dotted_name, last_name, names_in};

use crate::queries::devices::on_cpu_only;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Assign, Bind, Call, CtxKind, Loop, Model};

declare_rule! {
    /// The model of the last iteration is alive while the next one is made.
    ///
    /// ## What it does
    ///
    /// Looks for loops over folds, seeds or settings that make a model on the GPU under a name that holds the last
    /// iteration's by then: nothing deletes it. Where the model is moved after it is made, an optimizer that the loop
    /// made holds the old one's weights. Models that are collected, and loops whose body is a function of its own, are left out.
    ///
    /// ## Why it costs memory
    ///
    /// A name lets go of what it had only when it gets its new value. Until then both models are on the GPU, and the
    /// old optimizer with its state as well: a setting that fits in the first iteration runs out of memory in the second.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torchvision.models import resnet50
    ///
    /// def folds(loaders, criterion):
    ///     for loader in loaders:
    ///         model = resnet50().cuda()
    ///         optimizer = torch.optim.Adam(model.parameters())
    ///         for x, y in loader:
    ///             optimizer.zero_grad()
    ///             criterion(model(x.cuda()), y.cuda()).backward()
    ///             optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from torchvision.models import resnet50
    ///
    /// def folds(loaders, criterion):
    ///     for loader in loaders:
    ///         model = resnet50().cuda()
    ///         optimizer = torch.optim.Adam(model.parameters())
    ///         for x, y in loader:
    ///             optimizer.zero_grad()
    ///             criterion(model(x.cuda()), y.cuda()).backward()
    ///             optimizer.step()
    ///         del model, optimizer
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the loop runs once, or something else lets go of the model.
    ///
    /// ## Fix safety
    ///
    /// No fix: only you know what is needed after the loop.
    OOM506 "model-made-in-loop" { fix: None, fresh: [0, 3] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for assign in &model.assigns {
        if assign.bind != Bind::Set || !assign.value.is_model() || assign.value.weak {
            continue;
        }
        let (Some(expr @ Expr::Call(_)), Expr::Name(target)) = (assign.expr, assign.target) else {
            continue;
        };
        let Some(looped) = model.loops_around(assign.ctx).next() else {
            continue;
        };
        let name = target.id.as_str();
        let Some(on_gpu) = made_on_gpu(model, assign, expr, looped) else {
            continue;
        };
        if !on_gpu && !is_held_by_an_optimizer(model, assign, looped)
            || looped.data
            || model.is_conditional_in(assign.ctx, looped.ctx)
            || is_let_go(model, name, looped)
            || is_used_before(model, assign, looped)
            || !is_run(model, name, assign, looped)
            || runs_once(model, looped)
            || in_unit_test(model, assign.ctx)
            || on_cpu_only(model)
        {
            continue;
        }
        out.push(
            Report::new(
                assign.target,
                format!("`{name}` of the iteration before stays on the GPU while the next one is made"),
            )
            .help("`del` it, and its optimizer, at the end of the iteration"),
        );
    }
}

/// Whether an expression makes a model anew and moves it at once, or a later statement of the loop moves it (false).
fn made_on_gpu(model: &Model<'_>, assign: &Assign<'_>, expr: &Expr, looped: &Loop<'_>) -> Option<bool> {
    let name = assign.place.as_str();
    let mut made = expr;
    let mut moves = false;
    while let Expr::Call(call) = made
        && let Expr::Attribute(method) = &*call.func
        && matches!(method.attr.as_str(), "cuda" | "to" | "eval" | "train" | "float" | "half" | "requires_grad_")
    {
        moves |= matches!(method.attr.as_str(), "cuda" | "to");
        made = &method.value;
    }
    let Expr::Call(maker) = made else { return None };
    let maker = dotted_name(&maker.func)?;
    // A wrapper around it, a copy of another one, the same model moved.
    // One layer is little.
    let is_layer = maker.starts_with("nn.") || maker.starts_with("torch.nn.");
    let wraps = is_layer
        || names_in(made).iter().any(|each| each.split('.').next() == Some(name))
        || maker.contains("Parallel")
        || maker.contains("compile")
        || maker.contains("load")
        || maker.contains("prepare");
    if wraps {
        return None;
    }
    let moved_later = || {
        model.calls_in_function(model.func_of(assign.ctx)).any(|call| {
            matches!(call.method, Some("cuda" | "to"))
                && call.recv_place().as_deref() == Some(name)
                && call.node.start() > assign.target.start()
                && looped.range.contains_range(call.node.range())
        })
    };
    if moves { Some(true) } else { moved_later().then_some(false) }
}

/// Whether an optimizer that the loop makes for a model still holds the last one's weights when the next is moved.
fn is_held_by_an_optimizer(model: &Model<'_>, made: &Assign<'_>, looped: &Loop<'_>) -> bool {
    model.assigns_in_function(model.func_of(made.ctx)).any(|assign| {
        assign.value.kind == Kind::Optimizer
            && assign.target.is_name_expr()
            && assign.target.start() > made.target.start()
            && looped.range.contains_range(assign.target.range())
            && assign.expr.is_some_and(|expr| names_in(expr).iter().any(|each| each.starts_with(&format!("{}.", made.place))))
            && !is_let_go(model, &assign.place, looped)
    })
}

/// Whether the loop deletes a name, binds it to nothing, moves it back, collects it, or ends after its first iteration.
fn is_let_go(model: &Model<'_>, name: &str, looped: &Loop<'_>) -> bool {
    model.stmts.iter().any(|info| {
        let inside = looped.range.contains_range(info.node.range());
        inside
            && match info.node {
                Stmt::Delete(delete) => delete.targets.iter().any(|each| dotted_name(each).as_deref() == Some(name)),
                Stmt::Assign(assign) => {
                    assign.targets.first().and_then(dotted_name).as_deref() == Some(name) && assign.value.is_none_literal_expr()
                }
                Stmt::Return(_) | Stmt::Break(_) => {
                    model.loops_around(info.ctx).next().map(|each| each.ctx) == Some(looped.ctx)
                        && !model.is_conditional_in(info.ctx, looped.ctx)
                }
                _ => false,
            }
    }) || model.calls.iter().any(|call| {
        let collects = matches!(call.method, Some("append" | "extend" | "add" | "insert" | "submit" | "put"))
            && call.node.arguments.args.iter().any(|arg| names_in(arg).iter().any(|each| each == name));
        let goes_back = matches!(call.method, Some("cpu")) && call.recv_place().as_deref() == Some(name);
        (collects || goes_back) && looped.range.contains_range(call.node.range())
    }) || model.assigns.iter().any(|assign| {
        // `models[fold] = model`, `self.model = model`, `last = model`
        looped.range.contains_range(assign.target.range())
            && assign.place != name
            && assign.expr.and_then(dotted_name).as_deref() == Some(name)
    })
}

/// Whether the iteration uses the last one's model before it makes its own.
fn is_used_before(model: &Model<'_>, made: &Assign<'_>, looped: &Loop<'_>) -> bool {
    model.calls_in_function(model.func_of(made.ctx)).any(|call| {
        looped.range.contains_range(call.node.range())
            && call.node.end() < made.target.start()
            && names_in(&Expr::Call(call.node.clone())).iter().any(|each| each.split('.').next() == Some(made.place.as_str()))
    })
}

/// Whether the loop trains or runs what it made: here, or in a function that is given it.
fn is_run(model: &Model<'_>, name: &str, made: &Assign<'_>, looped: &Loop<'_>) -> bool {
    model.calls_in_function(model.func_of(made.ctx)).any(|call: &Call<'_>| {
        looped.range.contains_range(call.node.range())
            && call.node.start() > made.target.start()
            && (dotted_name(&call.node.func).as_deref() == Some(name)
                || last_name(&call.node.func).is_some_and(|called| {
                    let called = called.to_ascii_lowercase();
                    ["train", "fit", "eval", "test", "valid", "predict", "run", "score"].iter().any(|word| called.contains(word))
                        && call.node.arguments.iter_source_order().any(|arg| dotted_name(arg.value()).as_deref() == Some(name))
                }))
    })
}

/// Whether a loop says that it runs once: `range(1)`.
fn runs_once(model: &Model<'_>, looped: &Loop<'_>) -> bool {
    matches!(model.ctx(looped.ctx).kind, CtxKind::While)
        || model.stmts.iter().any(|info| match info.node {
            Stmt::For(node) if node.range == looped.range => {
                let text = model.text(&*node.iter);
                text == "range(1)" || matches!(&*node.iter, Expr::List(list) if list.elts.len() == 1)
            }
            _ => false,
        })
}
