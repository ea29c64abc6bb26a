use oomph_python_source::ast::visitor::{Visitor, walk_expr};
use oomph_python_source::ast::{Expr, ExprCall};
use oomph_python_source::{dotted_name, last_part};
use rustc_hash::FxHashMap;

use crate::queries::devices::{on_cpu_only, runs_on_cpu};
use crate::queries::model_calls::{is_model_call, model_place};
use crate::queries::purpose::in_unit_test;
use crate::queries::whereabouts::stays_on_cpu;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Kind;
use crate::semantic::{Call, Grad, Model};
use super::fake_not_detached::{Role, role_of};
use super::inference_builds_graph::wants_graph;
use super::teacher_builds_graph::may_be_frozen;

declare_rule! {
    /// A graph is built only to be cut off.
    ///
    /// ## What it does
    ///
    /// Looks for `model(x).detach()`, `model(x).max(1)[0].detach()` and `model(x).data` with gradients on: the
    /// output of a forward pass that nothing else sees is detached in the same expression. Models whose
    /// gradients may be turned off in the file, and methods of modules, are left out.
    ///
    /// ## Why it costs memory
    ///
    /// `detach()` comes too late. Until the output is there, the pass keeps the activations of all layers for a
    /// `backward()` that cannot come; under `torch.no_grad()` each is freed as soon as the next layer has
    /// used it.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def discriminate(generator, discriminator, noise):
    ///     fake = generator(noise.cuda()).detach()
    ///     return discriminator(fake)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def discriminate(generator, discriminator, noise):
    ///     with torch.no_grad():
    ///         fake = generator(noise.cuda())
    ///     return discriminator(fake)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another file turns off gradients of the model's parameters, or the caller turns all gradients off.
    ///
    /// ## Fix safety
    ///
    /// No fix: the call would need its own block.
    OOM207 "detached-at-once" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let passes: FxHashMap<*const ExprCall, &Call<'_>> = model
        .calls
        .iter()
        .filter(|call| call.grad == Grad::On && (is_model_call(call) || is_generator(call)))
        .map(|call| (std::ptr::from_ref(call.node), call))
        .collect();
    if passes.is_empty() || on_cpu_only(model) {
        return;
    }
    let mut find = Find {
        passes,
        found: Vec::new(),
    };
    for stmt in model.module.body() {
        find.visit_stmt(stmt);
    }
    for call in find.found {
        let place = if is_model_call(call) { model_place(call) } else { dotted_name(&call.node.func) };
        let Some(place) = place else {
            continue;
        };
        let of_module = model
            .ctx(call.ctx)
            .class
            .is_some_and(|class| model.class(class).is_module);
        // A loop that evaluates is OOM201's.
        let evaluates = model
            .loops_around(call.ctx)
            .any(|each| each.data && !each.contains_backward);
        let quiet_caller = model
            .func_name(call.ctx)
            .is_some_and(|name| model.around.calls_quietly(name));
        // `.detach().numpy()` works on the CPU only.
        let rest = model.text(model.stmt(call.stmt).node);
        let on_cpu = rest.contains(".numpy()") && !rest.contains("cpu");
        if of_module
            || on_cpu
            || evaluates
            || quiet_caller
            || runs_on_cpu(model, call)
            || stays_on_cpu(model, call)
            || model.in_lightning(call.ctx)
            || in_unit_test(model, call.ctx)
            || may_be_frozen(model, call, &place)
            || wants_graph(model, call, &place)
        {
            continue;
        }
        out.push(
            Report::new(
                call.node,
                format!("`{place}` builds a graph that is cut off at once: its activations are kept until the pass ends"),
            )
            .help("call it under `with torch.no_grad():`"),
        );
    }
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

struct Find<'m, 'a> {
    passes: FxHashMap<*const ExprCall, &'m Call<'a>>,
    found: Vec<&'m Call<'a>>,
}

impl<'a> Visitor<'a> for Find<'_, '_> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Some(cut) = cut_off(expr)
            && let Some(pass) = innermost(cut)
            && let Some(call) = self.passes.get(&std::ptr::from_ref(pass))
            && !self.found.iter().any(|found| std::ptr::eq(found.node, call.node))
        {
            self.found.push(call);
        }
        walk_expr(self, expr);
    }
}

/// What is in front of `.detach()` or `.data`.
fn cut_off(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Call(call) => match &*call.func {
            Expr::Attribute(attribute) if attribute.attr.as_str() == "detach" => {
                Some(&attribute.value)
            }
            _ => None,
        },
        Expr::Attribute(attribute) if attribute.attr.as_str() == "data" => Some(&attribute.value),
        _ => None,
    }
}

/// The call that methods and items are taken of: `net(x)` of `net(x)[0].max(1)`.
fn innermost(mut expr: &Expr) -> Option<&ExprCall> {
    let mut found = None;
    loop {
        match expr {
            Expr::Call(call) => {
                found = Some(call);
                match &*call.func {
                    Expr::Attribute(attribute) => expr = &attribute.value,
                    _ => return found,
                }
            }
            Expr::Attribute(attribute) => expr = &attribute.value,
            Expr::Subscript(item) => expr = &item.value,
            _ => return found,
        }
    }
}
