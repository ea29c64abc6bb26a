use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_stmt};
use oomph_python_source::ast::{Expr, ExprCall, Stmt};
use oomph_python_source::{Ranged, TextSize, dotted_name, last_name, last_part, names_in};

use crate::project::decodes_files;
use crate::queries::devices::{mentions_gpu, on_cpu_only};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Assign, Call, FuncId, Model};

declare_rule! {
    /// The process that trains decodes the files as well.
    ///
    /// ## What it does
    ///
    /// Looks for a `DataLoader` for training without `num_workers`, or with one worker at most, over a data set that opens and
    /// decodes a file for each item: `ImageFolder` and its like, a class of the project whose `__getitem__` reads images, sound or
    /// volumes, or what `with_transform()` of `datasets` gives. The number may stand in a constant, or in the default of an option of
    /// the file. Loaders that are given other settings by `**` or that no loop reads, files that name a drive of Windows and have no
    /// main guard, tests, and jobs on the CPU are left out.
    ///
    /// ## Why it costs memory
    ///
    /// It costs time: the default is no worker, so the loop opens, decodes and transforms one file after another before
    /// each step, and the GPU waits with all that it holds. Workers do that while it computes; one does it no faster than the loop.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from torch.utils.data import DataLoader
    /// from torchvision.datasets import ImageFolder
    ///
    /// def train(model, criterion, optimizer, transform):
    ///     train_loader = DataLoader(ImageFolder("train", transform), batch_size=64, shuffle=True)
    ///     for x, y in train_loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x.cuda()), y.cuda()).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from torch.utils.data import DataLoader
    /// from torchvision.datasets import ImageFolder
    ///
    /// def train(model, criterion, optimizer, transform):
    ///     train_loader = DataLoader(ImageFolder("train", transform), batch_size=64, shuffle=True, num_workers=4, pin_memory=True)
    ///     for x, y in train_loader:
    ///         optimizer.zero_grad()
    ///         criterion(model(x.cuda()), y.cuda()).backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// Where processes cannot be started, or there are a few small files that stay in memory.
    ///
    /// ## Fix safety
    ///
    /// No fix: only you know how many cores there are.
    OOM606 "loader-without-workers" { fix: None, fresh: [13, 25] }
}

/// Names are followed this far.
const MAX_DEPTH: usize = 4;

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    let is_loader = |call: &Call<'_>| {
        call.is("torch.utils.data.DataLoader") || call.is("torch.utils.data.dataloader.DataLoader")
    };
    // Most files make no loader, and need not ask what the others do.
    if !model.calls.iter().any(is_loader) {
        return;
    }
    // Loops of other files may move what a loader gives.
    let works_on_gpu = mentions_gpu(model) && !on_cpu_only(model) || model.around.used_on_gpu();
    if !works_on_gpu {
        return;
    }
    for call in model.calls.iter().filter(|call| is_loader(call)) {
        let count = match call.arg("num_workers", 5) {
            Some(count) => workers(model, call, count, 0),
            None => Some(0),
        };
        let Some(count @ 0..=1) = count else { continue };
        let is_bare = call.keyword("batch_sampler").is_none() && !call.has_star_args() && !call.has_star_kwargs();
        let Some(data) = call.arg("dataset", 0) else { continue };
        if is_never_looped_over(model, call) || starts_no_processes(model) {
            continue;
        }
        if !is_bare || !is_for_training(model, call, data) || in_unit_test(model, call.ctx) {
            continue;
        }
        let func = model.func_of(call.ctx);
        let Some(made) = made(model, func, data, 0) else { continue };
        // Here, or in a function of another file: `trainer.fit(loader)`.
        let hands_over = || {
            model.calls.iter().any(|call| {
                last_name(&call.node.func).is_some_and(|name| {
                    let name = name.to_ascii_lowercase();
                    (name.contains("train") && name != "train" || name == "fit" || name == "train" && !call.node.arguments.is_empty())
                        && !name.contains("pretrain")
                })
            })
        };
        let trains = || !model.backwards.is_empty() || (hands_over() || is_returned(model, call)) && model.around.trains();
        if decodes(model, made) && trains() {
            let name = last_name(&made.func).unwrap_or_default();
            out.push(
                Report::new(
                    call.node,
                    match count {
                        0 => format!("no workers: the loop decodes every file of `{name}` itself, and the GPU waits for it"),
                        _ => format!("one worker decodes every file of `{name}`, and the GPU waits for it"),
                    },
                )
                .help("pass `num_workers=4`, say, and `pin_memory=True`"),
            );
        }
    }
}

/// How many workers an expression asks for: a number, a constant of its class, function or file, or an option that has a default.
fn workers(model: &Model<'_>, loader: &Call<'_>, count: &Expr, depth: usize) -> Option<u64> {
    match count {
        _ if depth > MAX_DEPTH => None,
        Expr::NumberLiteral(number) => number.value.as_int()?.as_u64(),
        Expr::Call(call) if last_name(&call.func) == Some("int") => workers(model, loader, call.arguments.find_positional(0)?, depth + 1),
        _ => {
            let place = dotted_name(count)?;
            let (func, class) = (model.func_of(loader.ctx), model.ctx(loader.ctx).class);
            let is_near = |assign: &Assign<'_>| {
                let of_func = model.func_of(assign.ctx) == func || model.func_of(assign.ctx).is_none();
                if place.starts_with("self.") { model.ctx(assign.ctx).class == class } else { of_func }
            };
            let mut bound = model.assigns.iter().filter(|assign| assign.place == place && is_near(assign)).peekable();
            if bound.peek().is_none() {
                return default_of_option(model, last_part(&place));
            }
            let counts = bound.map(|assign| workers(model, loader, assign.expr?, depth + 1));
            counts.reduce(|most, next| Some(most?.max(next?))).flatten()
        }
    }
}

/// The default of an option of the file: `parser.add_argument("--num-workers", type=int, default=0)`.
fn default_of_option(model: &Model<'_>, name: &str) -> Option<u64> {
    let mut options = model.calls.iter().filter(|call| {
        call.is_method("add_argument")
            && call.node.arguments.args.iter().any(|flag| {
                matches!(flag, Expr::StringLiteral(flag) if flag.value.to_str().trim_start_matches('-').replace('-', "_") == name)
            })
    });
    let only = options.next().filter(|_| options.next().is_none())?;
    match only.keyword("default")? {
        Expr::NumberLiteral(number) => number.value.as_int()?.as_u64(),
        _ => None,
    }
}

/// `return DataLoader(data)`, at once or by a name: another file loops over it.
fn is_returned(model: &Model<'_>, call: &Call<'_>) -> bool {
    let name = match model.stmt(call.stmt).node {
        Stmt::Return(_) => return true,
        Stmt::Assign(assign) => assign.targets.first().and_then(dotted_name),
        _ => None,
    };
    name.is_some_and(|name| {
        model.stmts.iter().any(|info| match info.node {
            Stmt::Return(node) if model.func_of(info.ctx) == model.func_of(call.ctx) => {
                node.value.as_deref().is_some_and(|value| names_in(value).contains(&name))
            }
            _ => false,
        })
    })
}

/// Whether nothing reads a loader batch by batch: its function only asks for its length, or looks at the first batch.
fn is_never_looped_over(model: &Model<'_>, call: &Call<'_>) -> bool {
    let Stmt::Assign(assign) = model.stmt(call.stmt).node else { return false };
    let [Expr::Name(target)] = &*assign.targets else { return false };
    let name = target.id.as_str();
    let func = model.func_of(call.ctx);
    // Until the name is bound anew, other than by `model, loader = accelerator.prepare(model, loader)`.
    let is_prepared = |stmt: &Stmt| matches!(stmt, Stmt::Assign(again) if matches!(&*again.value, Expr::Call(call) if last_name(&call.func) == Some("prepare")));
    let until = model
        .assigns_to(func, name)
        .filter(|each| each.target.start() > assign.end() && !is_prepared(model.stmt(each.stmt).node))
        .map(|each| each.target.start())
        // Another function's name means something else.
        .chain(func.map(|id| model.func(id).node.end()))
        .min();
    let mut uses = Uses { name, after: assign.end(), until, all: 0, idle: 0, in_function: func.is_some(), depth: 0 };
    for stmt in model.module.body() {
        uses.visit_stmt(stmt);
    }
    uses.all > 0 && uses.all == uses.idle
}

/// How often a name is read in a range, and how often only for the length or the first batch of what it means.
struct Uses<'m> {
    name: &'m str,
    after: TextSize,
    until: Option<TextSize>,
    all: usize,
    idle: usize,
    /// Functions read a name of the module whenever they are called.
    in_function: bool,
    depth: usize,
}

impl<'a> Visitor<'a> for Uses<'_> {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        let inner = usize::from(matches!(stmt, Stmt::FunctionDef(_)));
        self.depth += inner;
        walk_stmt(self, stmt);
        self.depth -= inner;
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        let is_within = |at: TextSize| at > self.after && self.until.is_none_or(|until| at < until);
        match expr {
            Expr::Name(name) if name.ctx.is_load() && name.id.as_str() == self.name => {
                let anywhere = !self.in_function && self.depth > 0;
                self.all += usize::from(anywhere || is_within(name.start()));
            }
            Expr::Call(call) if is_within(call.start()) => {
                let is_it = |arg: &Expr| matches!(arg, Expr::Name(name) if name.id.as_str() == self.name);
                let args = &call.arguments.args;
                let idle = match last_name(&call.func) {
                    Some("len" | "prepare") => args.iter().any(is_it),
                    // `next(iter(loader))`
                    Some("next") => matches!(args.first(), Some(Expr::Call(iter)) if iter.arguments.args.iter().any(is_it)),
                    _ => false,
                };
                self.idle += usize::from(idle);
            }
            _ => {}
        }
        walk_expr(self, expr);
    }
}

/// Whether workers cannot be started: Windows starts them by importing the script again, which takes a main guard.
fn starts_no_processes(model: &Model<'_>) -> bool {
    let text = model.module.text();
    let names_a_drive = text.match_indices(":/").chain(text.match_indices(":\\")).any(|(at, _)| {
        let mut before = text[..at].chars().rev();
        before.next().is_some_and(|drive| drive.is_ascii_uppercase()) && matches!(before.next(), Some('"' | '\''))
    });
    names_a_drive && !text.contains("__main__")
}

/// Whether a loader is there for training: it shuffles, or its name or that of its data says so.
fn is_for_training(model: &Model<'_>, call: &Call<'_>, data: &Expr) -> bool {
    let says_so = |name: &str| {
        let name = last_part(name).to_ascii_lowercase();
        name.contains("train") && !name.contains("val") && !name.contains("test")
    };
    let shuffles = matches!(call.arg("shuffle", 2), Some(Expr::BooleanLiteral(flag)) if flag.value);
    shuffles
        || dotted_name(data).is_some_and(|name| says_so(&name))
        || model
            .assigns
            .iter()
            .any(|assign| assign.stmt == call.stmt && says_so(&assign.place))
}

/// The call that made a data set: behind its name, a split, or a part of it.
fn made<'a>(model: &Model<'a>, func: Option<FuncId>, data: &'a Expr, depth: usize) -> Option<&'a ExprCall> {
    if depth > MAX_DEPTH {
        return None;
    }
    if let Expr::Call(call) = data {
        return match last_name(&call.func) {
            Some("random_split" | "Subset" | "train_test_split") => {
                made(model, func, call.arguments.find_positional(0)?, depth + 1)
            }
            _ => Some(call),
        };
    }
    let name = dotted_name(data)?;
    let of_self = name.starts_with("self.");
    // The nearest one before it comes first: each branch makes its own.
    let mut bound: Vec<&Expr> = model
        .assigns
        .iter()
        .filter(|assign| {
            assign.place == name
                && (of_self || model.func_of(assign.ctx) == func || model.func_of(assign.ctx).is_none())
        })
        .filter_map(|assign| assign.expr)
        // `data, _ = random_split(data, sizes)` makes none.
        .filter(|expr| !expr.range().contains_range(data.range()) && !names_in(expr).contains(&name))
        .collect();
    bound.sort_by_key(|expr| {
        let at = expr.start();
        (at > data.start(), std::cmp::Reverse(at))
    });
    if bound.is_empty() {
        return given(model, func?, &name, depth);
    }
    let made: Vec<Option<&ExprCall>> = bound.into_iter().map(|expr| made(model, func, expr, depth + 1)).collect();
    // In one branch a folder of images, in another an array.
    made.iter().all(|each| each.is_some_and(|each| decodes(model, each))).then(|| made[0])?
}

/// What made the data set that all callers of the file hand over for a parameter.
fn given<'a>(model: &Model<'a>, func: FuncId, name: &str, depth: usize) -> Option<&'a ExprCall> {
    let mut parameters = model.func(func).node.parameters.iter_non_variadic_params();
    let position = parameters.position(|each| each.parameter.name.as_str() == name)?;
    let position = position.checked_sub(usize::from(model.func(func).class.is_some()))?;
    let callers = model.calls.iter().filter(|call| call.target == Some(func));
    let all: Option<Vec<_>> = callers.map(|call| made(model, model.func_of(call.ctx), call.arg(name, position)?, depth + 1)).collect();
    let all = all?;
    all.iter().all(|each| decodes(model, each)).then(|| all.first().copied())?
}

/// Whether what a call makes decodes a file for each item.
fn decodes(model: &Model<'_>, made: &ExprCall) -> bool {
    const FOLDERS: &[&str] = &[
        "ImageFolder", "DatasetFolder", "CelebA", "StanfordCars", "Flowers102", "OxfordIIITPet", "Food101", "VOCDetection",
        "VOCSegmentation", "CocoDetection", "CocoCaptions", "Cityscapes", "SBDataset", "ImageNet", "Places365", "LSUN",
        "INaturalist", "GTSRB", "DTD", "Country211", "FGVCAircraft", "SUN397", "Caltech101", "Caltech256",
    ];
    let Some(name) = last_name(&made.func) else { return false };
    // `dataset["train"].with_transform(augment)`
    if name == "with_transform" {
        return matches!(&*made.func, Expr::Attribute(_));
    }
    let own = model.classes.iter().find(|class| class.node.name.as_str() == name);
    match own {
        Some(class) => {
            decodes_files(model.module, class.node)
                // Read once, and kept.
                && !model.text(class.node).contains("cache")
        }
        None => FOLDERS.contains(&name) || model.around.decodes_files(name),
    }
}
