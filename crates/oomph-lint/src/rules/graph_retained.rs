use oomph_python_source::ast::Expr;
use oomph_python_source::ast::visitor::{Visitor, walk_expr};
use oomph_python_source::{Ranged, dotted_name, names_in};

use crate::fix::Fix;
use crate::queries::devices::on_cpu_only;
use crate::rule::{Report, declare_rule};
use super::fake_not_detached::judged_in_loss;
use crate::queries::loop_carried::base;
use crate::queries::model_calls::is_model_call;
use crate::semantic::value::{Kind, Tri};
use crate::semantic::{Assign, Backward, Bind, Call, Grad, Loop, Model, torch};

declare_rule! {
    /// The last `backward()` of a step retains its graph.
    ///
    /// ## What it does
    ///
    /// Looks for `backward(retain_graph=True)` in a training loop that runs no other `backward()`
    /// or `autograd.grad()` after it in the iteration. Where a part of the graph may be older than the iteration (a
    /// value from before the loop, or one that is handed on to the next iteration, as recurrent states are), nothing is
    /// reported.
    ///
    /// ## Why it costs memory
    ///
    /// A `backward()` frees the activations as it goes. With `retain_graph=True` all of them stay
    /// until the loss is overwritten: through the optimizer step and the whole forward of the next
    /// iteration, so two graphs are alive at the peak instead of one.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         loss = criterion(model(x), y)
    ///         loss.backward(retain_graph=True)
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
    /// When part of the graph is built once, before the loop, and used in every iteration. An inner loop whose
    /// outer loop runs `backward()` afterwards is left out.
    ///
    /// ## Fix safety
    ///
    /// Unsafe: a graph that is shared by iterations cannot be run through twice without it.
    OOM105 "graph-retained" { fix: Sometimes, fresh: [2, 5] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for backward in &model.backwards {
        let call = &model.calls[backward.call];
        let retains = call
            .keyword("retain_graph")
            .is_some_and(|value| value.as_boolean_literal_expr().is_some_and(|flag| flag.value));
        if !retains {
            continue;
        }
        let Some(looped) = model.training_loop(call.ctx) else {
            continue;
        };
        let inner_loop = model.loops_around(call.ctx).next().map(|each| each.ctx);
        let another = model.calls.iter().any(|other| {
            let runs_backward = matches!(other.method, Some("backward" | "manual_backward"))
                || other.is("torch.autograd.grad")
                || other
                    .target
                    .is_some_and(|target| model.func(target).has_backward);
            runs_backward
                && other.node.start() > call.node.start()
                && model.is_inside(other.ctx, looped.ctx)
                && !is_of_its_own(model, backward, other, looped)
        });
        // Steps of a loop inside another one that runs backward afterwards: critics, and then the generator through
        // the fake that they were shown.
        let around_it = model
            .loops_around(call.ctx)
            .skip_while(|each| each.ctx != looped.ctx)
            .nth(1);
        let outer_step = around_it.is_some_and(|around_it| {
            model.backwards.iter().any(|other| {
                model.calls[other.call].node.start() > looped.range.end()
                    && model.is_inside(other.ctx, around_it.ctx)
            })
        });
        // A loop over several outputs of one graph runs backward from each.
        let from_each = model
            .assigns
            .iter()
            .any(|assign| {
                assign.bind == Bind::Other
                    && model.loops_around(call.ctx).any(|each| {
                        each.ctx == assign.ctx && each.range.contains_range(call.node.range())
                    })
                    // `output[i][j].backward(retain_graph=True)`
                    && (dotted_name(backward.target).as_deref() == Some(assign.place.as_str())
                        || backward.target.is_subscript_expr())
            });
        // Made before the loop: the next pass runs through the same graph.
        let made_before = dotted_name(backward.target).is_some_and(|place| {
            model
                .assigns_to(model.func_of(call.ctx), &place)
                .all(|assign| assign.target.start() < looped.range.start())
        });
        // The gradient that it begins with is on the CPU, and so is the graph.
        let on_cpu = call.arg("gradient", 0).is_some_and(|gradient| {
            dotted_name(gradient).is_some_and(|place| {
                model
                    .assigns_to(model.func_of(call.ctx), &place)
                    .last()
                    .is_some_and(|assign| is_made_on_cpu(model, assign))
            })
        });
        if let Some(next) = next_of_one_sum(model, backward, looped) {
            out.push(
                Report::new(
                    call.node,
                    format!("the graph is retained for `{}`: two passes go through it where one of the sum would do", model.text(next.node)),
                )
                .help("add the losses up and call `backward()` once: gradients add up all the same"),
            );
            continue;
        }
        // An inner loop of backwards over one graph: this is also the next one.
        if another || may_share(model, backward, looped) || made_before || on_cpu || outer_step || from_each || inner_loop != Some(looped.ctx) || on_cpu_only(model) {
            continue;
        }
        let fix = model.module.remove_keyword(call.node, "retain_graph")
            .map(|edit| Fix::unsafe_("remove `retain_graph`", edit));
        out.push(
            Report::new(
                call.node,
                "the graph is retained, and nothing in this step runs through it again",
            )
            .help("call `backward()` without `retain_graph`; detach what the next step reuses")
            .fix(fix),
        );
    }
}

/// Whether what `backward()` goes through may have parts that an iteration before made, or what was before the loop:
/// a state that is handed on, features that were computed once. What is only called is a model or a function.
fn may_share(model: &Model<'_>, backward: &Backward<'_>, looped: &Loop<'_>) -> bool {
    const STATES: &[&str] = &["hidden", "memory", "lstm", "rnn", "gru", "recurrent", "bptt", "h_0", "h0", "carry"];
    let func = model.func_of(backward.ctx);
    let at = model.calls[backward.call].node.start();
    let lower = model.text(looped.range).to_ascii_lowercase();
    if STATES.iter().any(|word| lower.contains(word)) {
        return true;
    }
    let mut read = Values::default();
    read.visit_expr(backward.target);
    let mut seen: Vec<String> = Vec::new();
    while let Some(name) = read.0.pop() {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name.clone());
        let bound: Vec<_> = model
            .assigns_in_function(func)
            .filter(|assign| base(&assign.place) == name)
            .collect();
        let first = bound
            .iter()
            .filter(|assign| looped.range.contains_range(assign.target.range()))
            .min_by_key(|assign| assign.target.start());
        let Some(first) = first else {
            // From before the loop, or from the caller.
            let is_plain = bound.iter().any(|assign| {
                assign.value.is_model()
                    || matches!(assign.value.kind, Kind::Plain | Kind::Device | Kind::Optimizer | Kind::Loader | Kind::Criterion { .. })
                    || assign.value.graph == Tri::No
            });
            let is_module = bound.is_empty()
                && func.is_some_and(|id| {
                    let mut parameters = model.func(id).node.parameters.iter();
                    !parameters.any(|each| each.name().as_str() == name)
                });
            let by_name = || torch::is_settings_root(&name) || matches!(torch::hint(&name), Some(Kind::Model(_) | Kind::Loader | Kind::Criterion { .. } | Kind::Device));
            if is_plain || is_module || bound.is_empty() && by_name() {
                continue;
            }
            return true;
        };
        let reads_itself = first.bind == Bind::Add
            || first.bind == Bind::Augment
            || first.expr.is_some_and(|expr| {
                first.bind != Bind::Other
                    && names_in(expr).iter().any(|each| each.split('.').next() == Some(name.as_str()))
            });
        if reads_itself || first.target.start() > at {
            return true;
        }
        for assign in bound {
            if let Some(expr) = assign.expr
                && looped.range.contains_range(expr.range())
            {
                read.visit_expr(expr);
            }
        }
    }
    false
}

/// Whether a later `backward()` of the step goes through nothing that this one goes through: no value that both losses
/// were made of may hold a graph.
fn is_of_its_own(model: &Model<'_>, backward: &Backward<'_>, other: &Call<'_>, looped: &Loop<'_>) -> bool {
    let later = model.backwards.iter().find(|each| std::ptr::eq(&raw const model.calls[each.call], other));
    let Some((first, later)) = later.and_then(|later| Some((made_of(model, backward, looped)?, made_of(model, later, looped)?))) else {
        return false;
    };
    let may_hold = |name: &String| {
        model.assigns_to(model.func_of(backward.ctx), name).any(|assign| {
            let is_batch = assign.bind == Bind::Other && model.loops_around(backward.ctx).any(|each| each.data && each.ctx == assign.ctx);
            looped.range.contains_range(assign.target.range())
                && !is_batch
                && assign.value.graph != Tri::No
                && !matches!(assign.value.kind, Kind::Plain | Kind::Device | Kind::Loader | Kind::Optimizer | Kind::Model(_))
        })
    };
    !first.iter().any(|name| later.contains(name) && may_hold(name))
}

/// The names in an iteration that a loss was made of, step by step. Nothing if a part of it may lie in an object.
fn made_of(model: &Model<'_>, backward: &Backward<'_>, looped: &Loop<'_>) -> Option<Vec<String>> {
    let func = model.func_of(backward.ctx);
    let until = model.calls[backward.call].node.start();
    let mut read = Values::default();
    read.visit_expr(backward.target);
    let mut seen: Vec<String> = Vec::new();
    while let Some(name) = read.0.pop() {
        if seen.contains(&name) {
            continue;
        }
        for assign in model.assigns_in_function(func) {
            let is_part = base(&assign.place) == name && looped.range.contains_range(assign.target.range()) && assign.target.start() < until;
            if let Some(expr) = assign.expr.filter(|_| is_part) {
                read.visit_expr(expr);
                // `self.fake = self.netG(real)`
                if names_in(expr).iter().any(|each| each.starts_with("self.") && model.assigns_to(func, each).next().is_some()) {
                    return None;
                }
            }
        }
        seen.push(name);
    }
    (dotted_name(backward.target).is_some_and(|place| !place.contains('.'))).then_some(seen)
}

/// The names whose values an expression reads: not what it calls, nor what belongs to `self`.
#[derive(Default)]
struct Values(Vec<String>);

impl<'a> Visitor<'a> for Values {
    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Name(name) if name.id.as_str() != "self" => self.0.push(name.id.to_string()),
            Expr::Call(call) => {
                // `out.mean()` reads `out`; `criterion(out)` calls one.
                if let Expr::Attribute(method) = &*call.func {
                    self.visit_expr(&method.value);
                    // Where it is put holds no graph.
                    if matches!(method.attr.as_str(), "to" | "cuda") {
                        return;
                    }
                }
                self.visit_arguments(&call.arguments);
            }
            _ => walk_expr(self, expr),
        }
    }
}

/// `torch.zeros(n)`: made by PyTorch, and no device is named.
fn is_made_on_cpu(model: &Model<'_>, made: &Assign<'_>) -> bool {
    model.calls.iter().any(|call| {
        made.expr.is_some_and(|expr| expr.range() == call.node.range())
            && call.qual.as_deref().is_some_and(torch::is_factory)
            && call.keyword("device").is_none()
    })
}

/// The next `backward()` of the step, if nothing between the two reads, clears or uses gradients, or changes who gets them.
fn next_of_one_sum<'m, 'a>(model: &'m Model<'a>, backward: &Backward<'a>, looped: &Loop<'a>) -> Option<&'m Call<'a>> {
    const BETWEEN: &[&str] = &["grad", "step", "freeze", "train(", "eval(", "clip", "scaler", "optim", "toggle"];
    let call = &model.calls[backward.call];
    let next = model
        .backwards
        .iter()
        .filter(|other| model.func_of(other.ctx) == model.func_of(backward.ctx))
        .map(|other| (other, &model.calls[other.call]))
        .filter(|(_, other)| other.node.start() > call.node.end() && looped.range.contains_range(other.node.range()))
        .min_by_key(|(_, other)| other.node.start())?;
    let (other, next) = next;
    let bare = |call: &Call<'_>| call.node.arguments.args.is_empty() && call.keyword("inputs").is_none() && call.keyword("create_graph").is_none();
    let between = model.module.text().get(call.node.end().to_usize()..next.node.start().to_usize())?.to_ascii_lowercase();
    let same_loop = model.loops_around(call.ctx).next().map(|each| each.ctx) == model.loops_around(next.ctx).next().map(|each| each.ctx);
    let is_plain = |name: Option<&str>| matches!(name, Some("backward"));
    // Both losses were made of what one model returned.
    let shares = || {
        let later = judged_in_loss(model, other);
        judged_in_loss(model, backward).iter().any(|pass| {
            is_model_call(pass) && pass.grad == Grad::On && later.iter().any(|each| std::ptr::eq(each.node, pass.node))
        })
    };
    (bare(call)
        && bare(next)
        && same_loop
        && is_plain(call.method)
        && is_plain(next.method)
        && !backward.scaled
        && !other.scaled
        && model.is_inside(next.ctx, call.ctx)
        && dotted_name(backward.target).is_some()
        && dotted_name(backward.target) != dotted_name(other.target)
        && !BETWEEN.iter().any(|word| between.contains(word))
        && shares())
    .then_some(next)
}
