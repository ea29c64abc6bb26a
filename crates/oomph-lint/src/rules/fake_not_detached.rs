use oomph_python_source::ast::Expr;
use oomph_python_source::{Ranged, TextSize, dotted_name, names_in};

use crate::fix::{Applicability, Fix};
use crate::queries::devices::on_cpu_only;
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::Tri;
use crate::semantic::{Assign, Backward, Bind, Call, FuncId, Grad, Model};

declare_rule! {
    /// The discriminator's step runs backward through the generator.
    ///
    /// ## What it does
    ///
    /// Looks for `D(fake)` or `D(G(noise))` in the loss of a discriminator's step where `fake` is an
    /// output of the generator with its graph, and only the discriminator's optimizer steps on that loss.
    ///
    /// ## Why it costs memory
    ///
    /// `backward()` goes on through the generator: all of its activations are kept during the
    /// discriminator's step, and gradients of all of its parameters are computed that no step of this
    /// loss uses. Without a `zero_grad()` they are mixed into the generator's next step.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def step(netG, netD, optimizer_d, criterion, real, noise, ones, zeros):
    ///     optimizer_d.zero_grad()
    ///     fake = netG(noise.cuda())
    ///     loss = criterion(netD(real), ones) + criterion(netD(fake), zeros)
    ///     loss.backward()
    ///     optimizer_d.step()
    ///     return fake
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def step(netG, netD, optimizer_d, criterion, real, noise, ones, zeros):
    ///     optimizer_d.zero_grad()
    ///     fake = netG(noise.cuda())
    ///     loss = criterion(netD(real), ones) + criterion(netD(fake.detach()), zeros)
    ///     loss.backward()
    ///     optimizer_d.step()
    ///     return fake
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the generator trains on this loss too, through an optimizer whose name does not say so. What a second
    /// loss is taken of as well is left out.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: if nothing clears the generator's gradients before its step, they change.
    OOM109 "fake-not-detached" { fix: Sometimes, fresh: [32, 37] }
}

/// The part of a network in adversarial training.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Generator,
    Discriminator,
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if model.backwards.is_empty() || on_cpu_only(model) {
        return;
    }
    for backward in &model.backwards {
        let Some(optimizer) = only_step(model, backward) else {
            continue;
        };
        for judged in judged_in_loss(model, backward) {
            let Some(discriminator) = place_of(judged, Role::Discriminator) else {
                continue;
            };
            for arg in &judged.node.arguments.args {
                let Some(generator) = generator_behind(model, arg, judged) else {
                    continue;
                };
                if judged.grad != Grad::On
                    || is_judged_for_another(model, backward, judged)
                    || !trains_only(model, &optimizer, &discriminator, &generator)
                    || is_frozen(model, &generator)
                    || in_unit_test(model, judged.ctx)
                {
                    continue;
                }
                let fix = Fix::append(arg, ".detach()", Applicability::Unsafe, "detach the fake");
                out.push(
                    Report::new(
                        arg,
                        format!("the backward pass of `{discriminator}` runs through `{generator}` as well, which does not step on this loss"),
                    )
                    .help("pass `fake.detach()` in the discriminator's step")
                    .fix(fix),
                );
            }
        }
    }
}

/// Whether the loss of another `backward()` is taken of the same judgement: the generator trains on it.
fn is_judged_for_another(model: &Model<'_>, backward: &Backward<'_>, judged: &Call<'_>) -> bool {
    let func = model.func_of(backward.ctx);
    model
        .backwards
        .iter()
        .filter(|other| other.call != backward.call && model.func_of(other.ctx) == func)
        .any(|other| {
            judged_in_loss(model, other)
                .iter()
                .any(|call| std::ptr::eq(call.node, judged.node))
        })
}

/// The generator whose output an argument is, with its graph: `D(fake)`, `D(G(noise))`.
pub(super) fn generator_behind(model: &Model<'_>, arg: &Expr, judged: &Call<'_>) -> Option<String> {
    if let Expr::Call(node) = arg {
        return model
            .calls
            .iter()
            .find(|call| std::ptr::eq(call.node, node) && call.grad == Grad::On)
            .and_then(|call| place_of(call, Role::Generator));
    }
    let fake = dotted_name(arg)?;
    let made = last_assign(model, model.func_of(judged.ctx), &fake, judged.node.start())?;
    if made.grad != Grad::On || made.value.graph == Tri::No {
        return None;
    }
    // `real, fake = self.generate(batch)`, `D(real, fake.detach())`: the other one is detached, so this is no fake.
    let beside = model.assigns.iter().any(|other| {
        other.stmt == made.stmt
            && other.place != fake
            && judged.node.arguments.args.iter().any(|arg| {
                model.text(arg) == format!("{}.detach()", other.place)
            })
    });
    if beside {
        return None;
    }
    generator_of(model, made)
}

/// The one optimizer that steps between a `backward()` and the next.
pub(super) fn only_step(model: &Model<'_>, backward: &Backward<'_>) -> Option<String> {
    let func = model.func_of(backward.ctx);
    let from = model.calls[backward.call].node.start();
    let until = model
        .backwards_in_function(func)
        .map(|each| model.calls[each.call].node.start())
        .filter(|at| *at > from)
        .min();
    let mut steps = model.calls_in_function(func).filter_map(|call| {
        let at = call.node.start();
        let inside = call.is_method("step") && at > from && until.is_none_or(|until| at < until);
        if !inside {
            return None;
        }
        // `scaler.step(optimizer)`
        let stepped = call.node.arguments.find_positional(0).and_then(dotted_name);
        stepped.or_else(|| call.recv_place())
    });
    let first = steps.next()?;
    steps.all(|other| other == first).then_some(first)
}

/// The calls whose results flow into the loss of a `backward()`.
pub(super) fn judged_in_loss<'m, 'a>(model: &'m Model<'a>, backward: &Backward<'a>) -> Vec<&'m Call<'a>> {
    let func = model.func_of(backward.ctx);
    let mut exprs: Vec<(&'a Expr, TextSize)> =
        vec![(backward.target, model.calls[backward.call].node.start())];
    let mut seen: Vec<TextSize> = Vec::new();
    let mut found: Vec<&Call<'a>> = Vec::new();
    while let Some((expr, at)) = exprs.pop() {
        if seen.contains(&expr.start()) {
            continue;
        }
        seen.push(expr.start());
        found.extend(
            model
                .calls_in_function(func)
                .filter(|call| expr.range().contains_range(call.node.range())),
        );
        for name in names_in(expr) {
            exprs.extend(
                assigns_before(model, func, &name, at)
                    .filter_map(|assign| Some((assign.expr?, assign.target.start()))),
            );
        }
    }
    found
}

/// The assignment that binds a place before an offset, and what is added to it after that.
fn assigns_before<'m, 'a>(
    model: &'m Model<'a>,
    func: Option<FuncId>,
    place: &'m str,
    at: TextSize,
) -> impl Iterator<Item = &'m Assign<'a>> {
    let bound = last_assign(model, func, place, at).map_or(at, |assign| assign.target.start());
    model
        .assigns_to(func, place)
        .filter(move |assign| (bound..at).contains(&assign.target.start()))
}

fn last_assign<'m, 'a>(
    model: &'m Model<'a>,
    func: Option<FuncId>,
    place: &str,
    at: TextSize,
) -> Option<&'m Assign<'a>> {
    model
        .assigns_in_function(func)
        .filter(|assign| {
            assign.place == place && assign.target.start() < at && !matches!(assign.bind, Bind::Add | Bind::Augment)
        })
        .last()
}

/// The generator whose output an assignment binds, or what is computed with it alone.
fn generator_of(model: &Model<'_>, made: &Assign<'_>) -> Option<String> {
    /// `fake = G(z)`, `fake = fake.view(-1, 8)`, `fake = fake * mask`
    const MAX_NAMES: usize = 3;
    let func = model.func_of(made.ctx);
    let mut made = made;
    for _ in 0..=MAX_NAMES {
        let whole = made.expr?;
        let part = computed_from(whole);
        if let Some(call) = model.calls_in_function(func).find(|call| call.node.range() == part.range()) {
            return place_of(call, Role::Generator).filter(|_| made.bind != Bind::Unpack || std::ptr::eq(part, whole));
        }
        let from = dotted_name(part).filter(|_| made.bind == Bind::Set)?;
        made = last_assign(model, func, &from, made.target.start()).filter(|other| other.grad == Grad::On)?;
    }
    None
}

/// What an expression computes with and does not cut off: `G(z)` of `2.5 * G(z)` and of `G(z).view(-1)[:, 0]`.
fn computed_from(mut expr: &Expr) -> &Expr {
    const KEEPS: &[&str] = &[
        "view", "reshape", "squeeze", "unsqueeze", "masked_fill", "clamp", "float", "contiguous", "permute", "transpose", "mul", "add",
    ];
    loop {
        expr = match expr {
            Expr::Subscript(node) => &node.value,
            Expr::BinOp(node) if node.left.is_number_literal_expr() => &node.right,
            Expr::BinOp(node) => &node.left,
            Expr::Call(call) => match &*call.func {
                Expr::Attribute(method) if KEEPS.contains(&method.attr.as_str()) => &method.value,
                _ => return expr,
            },
            _ => return expr,
        }
    }
}

/// The network that a call runs, if its name has the role.
pub(super) fn place_of(call: &Call<'_>, role: Role) -> Option<String> {
    let place = dotted_name(&call.node.func)?;
    (role_of(&place) == Some(role)).then_some(place)
}

/// The role that a name has: `G`, `netD`, `self.discriminator`, `optimizer_D`.
pub(super) fn role_of(place: &str) -> Option<Role> {
    let last = place.rsplit('.').next()?.to_ascii_lowercase();
    last.split('_').find_map(|word| {
        let word = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let word = ["optimizer", "optim", "opt", "net", "model"]
            .iter()
            .find_map(|prefix| word.strip_prefix(prefix))
            .unwrap_or(word);
        match word {
            "g" | "gen" | "generator" => Some(Role::Generator),
            "d" | "dis" | "disc" | "discriminator" | "critic" => Some(Role::Discriminator),
            _ => None,
        }
    })
}

/// Whether an optimizer has the parameters of one network and not of the other: by how it is made,
/// or, if that is in another file, by its name.
pub(super) fn trains_only(model: &Model<'_>, optimizer: &str, one: &str, other: &str) -> bool {
    let last = |place: &str| place.rsplit('.').next().map(str::to_owned);
    let made: Vec<&str> = model
        .assigns
        .iter()
        .filter(|assign| last(&assign.place) == last(optimizer) && assign.bind == Bind::Set)
        .filter_map(|assign| assign.expr)
        .map(|expr| model.text(expr))
        .filter(|text| text.contains("parameters"))
        .collect();
    if made.is_empty() {
        return role_of(optimizer) == role_of(one);
    }
    let takes = |text: &&str, place: &str| {
        last(place).is_some_and(|name| text.contains(&format!("{name}.parameters")))
    };
    made.iter()
        .all(|text| takes(text, one) && !takes(text, other))
}

/// Whether the file turns off the gradients of a network's parameters.
fn is_frozen(model: &Model<'_>, place: &str) -> bool {
    model.calls.iter().any(|call| {
        let text = model.text(&*call.node.func);
        let freezes = text.contains("requires_grad") || text.contains("freeze") || text.contains("toggle");
        freezes && names_in(&Expr::Call(call.node.clone())).iter().any(|name| {
            name == place || name.starts_with(&format!("{place}."))
        })
    }) || model.assigns.iter().any(|assign| {
        assign.place.ends_with(".requires_grad")
            && model.within_function(assign.ctx).any(|id| {
                model.calls.iter().any(|call| {
                    call.is_method("parameters")
                        && call.recv_place().as_deref() == Some(place)
                        && model.ctx(id).range.contains_range(call.node.range())
                })
            })
    })
}
