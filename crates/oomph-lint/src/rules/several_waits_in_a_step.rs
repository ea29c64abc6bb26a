use oomph_python_source::ast::visitor::{Visitor, walk_expr};
use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, TextRange, TextSize, dotted_name, last_name, names_in};

use crate::queries::devices::{leaves_batches_on_cpu, on_cpu_only};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind};
use crate::semantic::{Backward, Bind, Call, CtxId, CtxKind, FuncId, Model};

declare_rule! {
    /// A training step waits for the GPU several times.
    ///
    /// ## What it does
    ///
    /// Looks for training steps that read two or more results under no condition, or under one that only asks which process it is:
    /// `.item()`, `.cpu()`, `.tolist()`, `float()`, `add_scalar()`, or `if torch.isnan(loss)`, of different values that the step
    /// made, or a loop of them. One that comes before the backward pass is worst: the GPU has nothing to do while that is queued.
    /// What functions of the file read for the forward pass counts as well. Also for `torch.cuda.synchronize()` in every step, except
    /// where times are taken around something, and for loops and comprehensions over all parameters that read a number of each gradient.
    ///
    /// ## Why it costs memory
    ///
    /// None; it costs time. Python queues kernels ahead of the GPU. Each read waits until all that was queued is done,
    /// copies a few bytes, and only then goes on: the GPU has nothing to do until the next kernel is launched. Small
    /// models, whose steps are as long as their launches take, lose most.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion, penalty, log):
    ///     for x, y in loader:
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         output = model(x)
    ///         fit = criterion(output, y)
    ///         size = penalty(output)
    ///         loss = fit + size
    ///         loss.backward()
    ///         optimizer.step()
    ///         log.write(fit.item(), size.item(), loss.item())
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion, penalty, log):
    ///     for step, (x, y) in enumerate(loader):
    ///         x, y = x.cuda(), y.cuda()
    ///         optimizer.zero_grad()
    ///         output = model(x)
    ///         fit = criterion(output, y)
    ///         size = penalty(output)
    ///         loss = fit + size
    ///         loss.backward()
    ///         optimizer.step()
    ///         if step % 100 == 0:
    ///             log.write(*torch.stack([fit, size, loss]).tolist())
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the steps are so long that a wait between them does not matter.
    ///
    /// ## Fix safety
    ///
    /// No fix: how often the numbers are wanted is yours to say.
    OOM614 "several-waits-in-a-step" { fix: None, fresh: [41, 54] }
}


/// A training step: an iteration of a loop, or a function that is one step.
struct Step {
    func: Option<FuncId>,
    looped: Option<CtxId>,
    range: TextRange,
    /// Where it runs backward: the branches around that are the step's own.
    ctx: CtxId,
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if on_cpu_only(model) {
        return;
    }
    // Generator and discriminator may step in branches of one loop.
    let mut seen: Vec<(TextRange, CtxId)> = Vec::new();
    let mut reported: Vec<TextRange> = Vec::new();
    for backward in &model.backwards {
        let Some(step) = step_of(model, backward) else {
            continue;
        };
        if seen.contains(&(step.range, step.ctx)) || in_unit_test(model, backward.ctx) {
            continue;
        }
        seen.push((step.range, step.ctx));
        let on_cpu = step.looped.is_some_and(|ctx| {
            (model.loops.iter()).any(|each| each.ctx == ctx && leaves_batches_on_cpu(model, each))
        });
        if on_cpu {
            continue;
        }
        let mut waits = waits(model, &step, model.calls[backward.call].node.start());
        waits.retain(|wait| !reported.contains(&wait.call.node.range()));
        let text = |wait: &Wait<'_, '_>| model.text(wait.call.node).to_owned();
        let (message, help) = match &*waits {
            [first, second] if first.early => (
                format!("`{}` before the backward pass and `{}` each wait for the GPU in every step", text(first), text(second)),
                "read both after `step()`, together, or every so many steps: until then nothing is queued for the GPU",
            ),
            [first, more @ .., last] if !more.is_empty() || !last.again => {
                let all = match more {
                    [] => format!("`{}` and `{}`", text(first), text(last)),
                    [second] => format!("`{}`, `{}` and `{}`", text(first), text(second), text(last)),
                    [second, others @ ..] => format!("`{}`, `{}` and {} more", text(first), text(second), others.len() + 1),
                };
                (
                    format!("{all} each wait for the GPU in every step"),
                    "keep them on the GPU with `.detach()`, and read them together, or every so many steps",
                )
            }
            [.., last] if last.again => (
                format!("`{}` waits for the GPU in each round of a loop, in every step", text(last)),
                "keep them on the GPU with `.detach()`, and read them together after the loop",
            ),
            _ => (String::new(), ""),
        };
        if let Some(first) = waits.first().filter(|_| !message.is_empty()) {
            out.push(Report::new(first.call.node, message).help(help));
            reported.extend(waits.iter().map(|wait| wait.call.node.range()));
        } else if let Some(call) =
            waits_for_all(model, &step).filter(|call| !reported.contains(&call.node.range()))
        {
            reported.push(call.node.range());
            out.push(
                Report::new(call.node, "every step waits here until the GPU has nothing left to do")
                    .help("remove it: what reads a result waits by itself"),
            );
        }
    }
    let in_loops = model.stmts.iter().filter_map(|info| waits_for_each_parameter(model, info.node, info.ctx));
    for call in in_loops.chain(waits_in_comprehensions(model)) {
        out.push(
            Report::new(call.node, "this waits for the GPU once for each parameter")
                .help("add up on the GPU, as `torch.nn.utils.get_total_norm()` does, and read the result once"),
        );
    }
}

/// `sum(p.grad.norm().item() for p in model.parameters())` in every step.
fn waits_in_comprehensions<'m, 'a>(model: &'m Model<'a>) -> Vec<&'m Call<'a>> {
    let mut found: Vec<&Call<'a>> = Vec::new();
    for call in &model.calls {
        let reads = matches!(call.method, Some("item" | "tolist" | "cpu" | "all" | "any")) && call.node.arguments.is_empty();
        if !reads || call.recv.device == Device::Cpu || !model.text(call.node).contains(".grad") {
            continue;
        }
        let Some(looped) = model.loops_around(call.ctx).next().filter(|each| each.trains) else {
            continue;
        };
        let step = Step { func: model.func_of(call.ctx), looped: Some(looped.ctx), range: looped.range, ctx: looped.ctx };
        let stmt = model.stmt(call.stmt).node;
        let again = found.iter().any(|other| other.stmt == call.stmt);
        // `all()` gives a tensor: what asks for its truth is `any(… for p in …)` around it.
        let is_number = !matches!(call.method, Some("all" | "any"));
        if !again
            && is_always_run(model, call.ctx, &step, false)
            && !in_unit_test(model, call.ctx)
            && Comprehensions::of(stmt).iter().any(|(range, asks)| {
                range.contains_range(call.node.range()) && (is_number || *asks)
            })
        {
            found.push(call);
        }
    }
    found
}

/// The parts of a statement that are worked out for each parameter, and whether `any()` or `all()` asks for their truth.
#[derive(Default)]
struct Comprehensions {
    found: Vec<(TextRange, bool)>,
    asks: bool,
}

impl Comprehensions {
    fn of(stmt: &Stmt) -> Vec<(TextRange, bool)> {
        let mut all = Self::default();
        match stmt {
            Stmt::Assign(node) => all.visit_expr(&node.value),
            Stmt::AugAssign(node) => all.visit_expr(&node.value),
            Stmt::Expr(node) => all.visit_expr(&node.value),
            _ => {}
        }
        all.found
    }
}

impl<'a> Visitor<'a> for Comprehensions {
    fn visit_expr(&mut self, expr: &'a Expr) {
        let (elt, over) = match expr {
            Expr::ListComp(node) => (Some(&*node.elt), node.generators.first()),
            Expr::Generator(node) => (Some(&*node.elt), node.generators.first()),
            _ => (None, None),
        };
        if let (Some(elt), Some(over)) = (elt, over) {
            let name = match &over.iter {
                Expr::Call(call) => last_name(&call.func),
                other => last_name(other),
            };
            if name.is_some_and(|name| name.contains("param")) {
                self.found.push((elt.range(), self.asks));
            }
        }
        self.asks = matches!(expr, Expr::Call(call) if matches!(last_name(&call.func), Some("any" | "all")));
        walk_expr(self, expr);
    }
}

fn step_of(model: &Model<'_>, backward: &Backward<'_>) -> Option<Step> {
    let func = model.func_of(backward.ctx);
    if let Some(looped) = model.training_loop(backward.ctx) {
        return Some(Step {
            func,
            looped: Some(looped.ctx),
            range: looped.range,
            ctx: backward.ctx,
        });
    }
    // A function that runs backward and steps once: somebody calls it for each batch.
    let info = model.func(func?);
    let is_step = info.has_step && model.loops_around(backward.ctx).next().is_none();
    is_step.then_some(Step {
        func,
        looped: None,
        range: info.node.range,
        ctx: backward.ctx,
    })
}

/// Whether a step always runs what is in a context, once or, if `rounds` are allowed, in a loop that makes no steps.
fn is_always_run(model: &Model<'_>, ctx: CtxId, step: &Step, rounds: bool) -> bool {
    let own = |id: &CtxId| Some(*id) != step.looped;
    let mut inside = model.within_function(ctx).take_while(own);
    !inside.any(|id| match model.ctx(id).kind {
        // `if step % 2 == 0:` around the step of a discriminator.
        CtxKind::Branch(test) => !model.is_inside(step.ctx, id) && !test.is_some_and(|asked| asks_for_main_process(model, asked)),
        CtxKind::Handler | CtxKind::While => true,
        CtxKind::For => !rounds || model.loops.iter().any(|each| each.ctx == id && (each.contains_backward || each.data)),
        _ => false,
    })
}

/// `if rank == 0:`, `if accelerator.is_main_process:`: one process runs what follows in every step, and the others wait for it.
fn asks_for_main_process(model: &Model<'_>, asked: &Expr) -> bool {
    let text = model.text(asked);
    let is_first = asked.as_compare_expr().is_some_and(|node| {
        last_name(&node.left).is_some_and(|name| name.ends_with("rank")) && matches!(&*node.comparators, [zero] if model.text(zero) == "0")
    });
    !text.contains('%') && !text.contains(" and ") && (is_first || text.contains("is_main") || text.contains("is_master"))
}

/// A read of a value from the GPU.
#[derive(Clone, Copy)]
struct Wait<'m, 'a> {
    call: &'m Call<'a>,
    /// Before the backward pass of the step.
    early: bool,
    /// In a loop inside the step.
    again: bool,
}

/// The reads of different values that every step makes, in their order: its own, and those of the functions of the file
/// that it calls for the forward pass.
fn waits<'m, 'a>(model: &'m Model<'a>, step: &Step, backward: TextSize) -> Vec<Wait<'m, 'a>> {
    let own = reads(model, step, backward).into_iter().map(|(call, again)| (call.node.start(), Wait { call, early: call.node.end() < backward, again }));
    let helpers = model.calls_in_function(step.func).filter(|call| {
        step.range.contains_range(call.node.range()) && call.node.end() < backward && is_always_run(model, call.ctx, step, false)
    });
    let of_helpers = helpers.flat_map(|helper| {
        let inner = helper.target.filter(|id| model.func(*id).only_runs_forward()).and_then(|id| {
            Some(Step { func: Some(id), looped: None, range: model.func(id).node.range, ctx: model.func(id).body? })
        });
        let found = inner.map(|inner| reads(model, &inner, backward)).unwrap_or_default();
        found.into_iter().map(|(call, again)| (helper.node.start(), Wait { call, early: true, again })).collect::<Vec<_>>()
    });
    let mut all: Vec<_> = own.chain(of_helpers).collect();
    all.sort_by_key(|(at, wait)| (*at, wait.call.node.start()));
    all.dedup_by_key(|(_, wait)| wait.call.node.range());
    all.into_iter().map(|(_, wait)| wait).collect()
}

/// The reads of different values that a step makes itself, and which of them lie in a loop inside it.
fn reads<'m, 'a>(model: &'m Model<'a>, step: &Step, backward: TextSize) -> Vec<(&'m Call<'a>, bool)> {
    let is_early = |call: &Call<'_>| call.node.end() < backward;
    let mut found: Vec<(&Call<'a>, bool)> = Vec::new();
    for call in model.calls_in_function(step.func) {
        let Some(what) = read_by(call).filter(|_| step.range.contains_range(call.node.range())) else {
            continue;
        };
        let (kind, device) = if call.is_method("add_scalar") {
            (&call.args[1].kind, call.args[1].device)
        } else if call.method.is_some() && !checks_numbers(call) {
            (&call.recv.kind, call.recv.device)
        } else {
            (&call.args[0].kind, call.args[0].device)
        };
        if checks_numbers(call) && !is_asked(model, call) {
            continue;
        }
        let is_known = *kind == Kind::Tensor || *kind == Kind::Unknown && !call.is_method("cpu");
        // `loss.detach().cpu().item()` waits once.
        let known_already = found.iter().any(|(other, _)| {
            call.node.range().contains_range(other.node.range())
                || read_by(other).map(|each| model.text(each)) == Some(model.text(what))
                    // The queue is full again after the backward pass.
                    && is_early(other) == is_early(call)
        });
        if is_known && device != Device::Cpu && !known_already && is_always_run(model, call.ctx, step, true) && is_made(model, what, step) {
            let again = !is_always_run(model, call.ctx, step, false);
            // The next action of an episode has to be known.
            if !(again && model.text(what).contains("sample(")) {
                found.push((call, again));
            }
        }
    }
    found
}

/// `torch.isnan(loss)`
fn checks_numbers(call: &Call<'_>) -> bool {
    ["torch.isnan", "torch.isinf", "torch.isfinite"].iter().any(|name| call.is(name))
}

/// Whether a statement cannot go on before it knows a call's result: `if torch.isnan(loss):`
fn is_asked(model: &Model<'_>, call: &Call<'_>) -> bool {
    let test = match model.stmt(call.stmt).node {
        Stmt::If(node) => &node.test,
        Stmt::Assert(node) => &node.test,
        _ => return false,
    };
    test.range().contains_range(call.node.range())
}

/// What a call reads from the GPU, if it does.
fn read_by<'a>(call: &Call<'a>) -> Option<&'a Expr> {
    match call.method {
        Some("item" | "tolist" | "cpu") if call.node.arguments.is_empty() => call.recv_expr(),
        // It asks for the number.
        Some("add_scalar") if call.args.get(1)?.has_graph() => call.node.arguments.find_positional(1),
        // Of a collection, `float()` would fail.
        None if last_name(&call.node.func) == Some("float") && call.args.first()?.has_graph() => {
            call.node.arguments.find_positional(0)
        }
        // Where it decides something: see `is_asked`.
        _ if checks_numbers(call) => call.node.arguments.find_positional(0),
        _ => None,
    }
}

/// Whether the step made what an expression is: a name that a call in it bound to something that is no number.
fn is_made(model: &Model<'_>, expr: &Expr, step: &Step) -> bool {
    names_in(expr).iter().any(|name| {
        let root = name.split('.').next().unwrap_or(name);
        let bound = |place: &str| {
            model.assigns_to(step.func, place).any(|assign| {
                // What is moved later was not moved yet.
                assign.expr.is_some_and(|made| made.end() <= expr.start())
                    && step.range.contains_range(assign.target.range())
                    && assign.bind != Bind::Other
                    && !matches!(assign.value.kind, Kind::Plain | Kind::NoneLiteral)
                    && assign.value.device != Device::Cpu
                    && assign.expr.is_some_and(|expr| comes_from_the_gpu(model, expr))
            })
        };
        bound(name) || root != name && root != "self" && bound(root)
    })
}

/// Whether an expression calls something, other than what makes numbers or arrays, or computes with what has names.
fn comes_from_the_gpu(model: &Model<'_>, expr: &Expr) -> bool {
    const ON_CPU: &[&str] = &[".cpu()", ".numpy()", ".item()", "np.", "numpy.", "\"cpu\"", "'cpu'"];
    let text = model.text(expr);
    // What a loader gives is on the CPU until somebody moves it.
    let is_batch = matches!(expr, Expr::Call(call) if last_name(&call.func) == Some("next"));
    !expr.is_literal_expr() && !is_batch && !ON_CPU.iter().any(|word| text.contains(word))
}

/// `torch.cuda.synchronize()` in every step, unless it is there for times: of a part of the step, or of events.
fn waits_for_all<'m, 'a>(model: &'m Model<'a>, step: &Step) -> Option<&'m Call<'a>> {
    /// A clock is read this many statements later, or never for this wait.
    const NEAR: usize = 2;
    const MEASURES: &[&str] = &["bench", "profile", "time", "latency", "warm"];
    let mut all = model.calls_in_function(step.func).filter(|call| {
        call.is("torch.cuda.synchronize") && step.range.contains_range(call.node.range())
    });
    let only = all.next().filter(|_| all.next().is_none())?;
    let name = step.func.map_or("", |id| model.func(id).node.name.as_str()).to_ascii_lowercase();
    let measures = MEASURES.iter().any(|word| name.contains(word)) || model.text(step.range).contains("elapsed_time");
    // `torch.cuda.synchronize()`, `end = time.time()`: the time would be wrong without it.
    let info = model.stmt(only.stmt);
    let is_timed = info.block.iter().skip(info.index + 1).take(NEAR).any(|next| {
        let next = model.text(next).to_ascii_lowercase();
        ["time()", "perf_counter", "tic()", "toc("].iter().any(|clock| next.contains(clock))
    });
    // A function of the project's own has the step around it.
    (!measures && !is_timed && step.looped.is_some() && is_always_run(model, only.ctx, step, false)).then_some(only)
}

/// `for p in model.parameters(): total += p.grad.norm().item() ** 2`
fn waits_for_each_parameter<'m, 'a>(model: &'m Model<'a>, stmt: &Stmt, ctx: CtxId) -> Option<&'m Call<'a>> {
    let Stmt::For(node) = stmt else { return None };
    let over = match &*node.iter {
        Expr::Call(call) => last_name(&call.func)?.to_owned(),
        other => dotted_name(other)?,
    };
    let inside = model.text(node.range);
    if !over.contains("param") || !inside.contains(".grad") || in_unit_test(model, ctx) {
        return None;
    }
    // Once an epoch, it is little.
    let in_epoch = model.loops_around(ctx).find(|each| each.range != node.range).is_some_and(|each| !each.trains);
    // A script that looks once is no training step.
    if model.func_of(ctx).is_none() && model.loops_around(ctx).all(|each| each.range == node.range) {
        return None;
    }
    // What some steps only look at is left alone.
    let sometimes = in_epoch || model.within_function(ctx).any(|id| matches!(model.ctx(id).kind, CtxKind::Branch(Some(test)) if model.text(test).contains('%')));
    let func = model.func_of(ctx);
    model.calls_in_function(func).find(|call| {
        !sometimes
            && matches!(call.method, Some("item" | "tolist" | "cpu"))
            && call.node.arguments.is_empty()
            && call.recv.device != Device::Cpu
            && call.recv.kind != Kind::Plain
            && node.range.contains_range(call.node.range())
            && names_in(&node.target).first().is_some_and(|_| model.text(call.node).contains("grad") || model.text(call.node).contains("norm"))
    })
}
