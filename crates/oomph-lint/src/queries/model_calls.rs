//! Calls of models, and of what belongs to them.

use oomph_python_source::ast::visitor::{Visitor, walk_expr};
use oomph_python_source::ast::{Expr, ExprCall, Stmt};
use oomph_python_source::{
    Ranged, TextRange, TextSize, dotted_name, last_name, last_part, names_in,
};

use crate::queries::purpose::is_eval_name;
use crate::semantic::value::{Kind, Value};
use crate::semantic::{Bind, Call, CtxId, CtxKind, FuncId, Model, torch};

/// A call of a model.
pub(crate) fn is_model_call(call: &Call<'_>) -> bool {
    (call.callee.is_model() || (call.recv.is_model() && call.is_method("forward")))
        && !matches!(
            call.callee.kind,
            Kind::Model(crate::semantic::value::ModelKind::Softmax)
        )
        // A function by its name, which is given the model: `run_model(model, batch, eval=True)`.
        && !(call.callee.weak && call.args.iter().any(Value::is_model))
}

/// Layers of `torch.nn` without parameters: what they return has a graph only if what they get has one.
const WITHOUT_PARAMETERS: &[&str] = &[
    "CosineSimilarity",
    "PairwiseDistance",
    "ReLU",
    "LeakyReLU",
    "Sigmoid",
    "Tanh",
    "GELU",
    "Identity",
    "Dropout",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "MaxPool2d",
    "AvgPool2d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "Flatten",
    "Unfold",
    "Fold",
    "PixelShuffle",
    "ZeroPad2d",
    "ReflectionPad2d",
];

/// `nn.AvgPool2d(2)`
pub(crate) fn is_layer_without_parameters(expr: &Expr) -> bool {
    matches!(expr, Expr::Call(made) if last_name(&made.func).is_some_and(|name| WITHOUT_PARAMETERS.contains(&name)))
}

/// Whether what a call runs is a layer of `torch.nn` without parameters, wherever it was made.
pub(crate) fn has_no_parameters(model: &Model<'_>, place: &str) -> bool {
    // `pool = pool.cuda()`
    let is_moved = |made: &ExprCall| {
        matches!(&*made.func, Expr::Attribute(moved)
            if matches!(moved.attr.as_str(), "cuda" | "to") && dotted_name(&moved.value).as_deref() == Some(place))
    };
    let mut made = model
        .assigns
        .iter()
        .filter(|assign| assign.place == place)
        .map(|assign| assign.expr.and_then(Expr::as_call_expr))
        .filter(|made| !made.is_some_and(is_moved))
        .peekable();
    made.peek().is_some()
        && made.all(|made| {
            let Some(made) = made else {
                return false;
            };
            // `nn.CosineSimilarity().cuda()`
            let made = match &*made.func {
                Expr::Attribute(moved) => moved.value.as_call_expr().unwrap_or(made),
                _ => made,
            };
            last_name(&made.func).is_some_and(|name| WITHOUT_PARAMETERS.contains(&name))
        })
}

/// The place of the model in a call of it.
pub(crate) fn model_place(call: &Call<'_>) -> Option<String> {
    if call.callee.is_model() {
        dotted_name(&call.node.func)
    } else {
        call.recv_place()
    }
}

/// Whether a call constructs a cross-entropy or is one.
pub(crate) fn is_cross_entropy(call: &Call<'_>) -> bool {
    call.is("torch.nn.functional.cross_entropy")
        || matches!(
            call.callee.kind,
            Kind::Criterion {
                cross_entropy: true
            }
        )
}

/// `DataParallel` in any spelling.
pub(crate) fn is_data_parallel(call: &Call<'_>) -> bool {
    call.qual.as_deref().is_some_and(torch::is_data_parallel)
}

/// Whether the next statement takes the wrapped model out of its wrapper again: `net = DDP(net)`,
/// `net = net.module`.
pub(crate) fn is_dropped(model: &Model<'_>, wrapper: &Call<'_>) -> bool {
    let info = model.stmt(wrapper.stmt);
    let (Stmt::Assign(wraps), Some(Stmt::Assign(next))) =
        (info.node, info.block.get(info.index + 1))
    else {
        return false;
    };
    let place = wraps.targets.first().and_then(dotted_name);
    place.is_some()
        && next.targets.first().and_then(dotted_name) == place
        && dotted_name(&next.value) == place.map(|place| format!("{place}.module"))
}

/// Whether all parameters of the model at a place were frozen before an offset of its function, or of the notebook,
/// under this name or one that it had before, and none was thawed or replaced: it records no graph. A function that it
/// is handed to may freeze it, and one that hands it over may have.
pub(crate) fn is_frozen(
    model: &Model<'_>,
    func: Option<FuncId>,
    place: &str,
    before: TextSize,
) -> bool {
    is_frozen_within(model, func, place, before, 0)
}

fn is_frozen_within(
    model: &Model<'_>,
    func: Option<FuncId>,
    place: &str,
    before: TextSize,
    depth: usize,
) -> bool {
    /// Functions are followed this far.
    const MAX_FUNCTIONS: usize = 4;
    if depth > MAX_FUNCTIONS {
        return false;
    }
    let names = names_of_model(model, func, place, before);
    // `net.backbone` of a `net` that is frozen.
    let mut wholes = (names.iter())
        .filter_map(|name| Some(name.rsplit_once('.')?.0))
        .filter(|whole| *whole != "self" && !names.iter().any(|name| name == whole));
    is_frozen_here(model, func, &names, before, depth)
        || wholes.any(|whole| is_frozen_within(model, func, whole, before, depth + 1))
        || func.is_some_and(|id| {
            let callers = model.calls.iter().filter(|call| call.target == func);
            callers.into_iter().any(|call| {
                names.iter().any(|name| {
                    let given = argument_of(model, id, call, name).and_then(dotted_name);
                    let there = model.func_of(call.ctx);
                    there != func
                        && given.is_some_and(|given| {
                            is_frozen_within(model, there, &given, call.node.start(), depth + 1)
                        })
                })
            })
        })
}

/// What a call hands to a function of the file as a parameter of this name.
pub(crate) fn argument_of<'a>(
    model: &Model<'a>,
    func: FuncId,
    call: &Call<'a>,
    name: &str,
) -> Option<&'a Expr> {
    let info = model.func(func);
    let mut parameters = info.node.parameters.iter_non_variadic_params();
    let at = parameters.position(|each| each.parameter.name.as_str() == name)?;
    let is_bound = info.class.is_some() && call.method.is_some();
    call.arg(name, at.checked_sub(usize::from(is_bound))?)
}

/// The names of the model at a place: that one, and those that it had before an offset.
fn names_of_model(
    model: &Model<'_>,
    func: Option<FuncId>,
    place: &str,
    before: TextSize,
) -> Vec<String> {
    /// Names of one model are followed this far: `wrapped = DataParallel(net)`.
    const MAX_NAMES: usize = 4;
    let mut names = vec![place.to_owned()];
    for _ in 0..MAX_NAMES {
        let made = names.last().and_then(|name| {
            let made = model
                .assigns_to(func, name)
                .filter(|each| each.target.start() < before && each.bind == Bind::Set)
                .last()?;
            match made.expr? {
                Expr::Call(call) => call.arguments.find_positional(0).and_then(dotted_name),
                other => dotted_name(other),
            }
        });
        match made {
            Some(name) if !names.contains(&name) => names.push(name),
            _ => break,
        }
    }
    names
}

fn is_frozen_here(
    model: &Model<'_>,
    func: Option<FuncId>,
    names: &[String],
    before: TextSize,
    depth: usize,
) -> bool {
    let is_off =
        |expr: Option<&Expr>| matches!(expr, Some(Expr::BooleanLiteral(flag)) if !flag.value);
    let of_all = |range: TextRange| {
        model.calls.iter().any(|call| {
            range.contains_range(call.node.range())
                && matches!(call.method, Some("parameters" | "named_parameters"))
                && call.recv_place().is_some_and(|recv| names.contains(&recv))
        })
    };
    // `for p in model.parameters(): p.requires_grad = False`, and no test around it in the loop.
    let looped_over = |ctx: CtxId| {
        let looped = model.within_function(ctx).next();
        let looped = looped.filter(|id| matches!(model.ctx(*id).kind, CtxKind::For))?;
        model.stmts.iter().find_map(|info| match info.node {
            Stmt::For(node) if node.range == model.ctx(looped).range => Some(node.iter.range()),
            _ => None,
        })
    };
    let is_it = |expr: &Expr| dotted_name(expr).is_some_and(|name| names.contains(&name));
    let mut frozen_at: Option<TextSize> = None;
    let mut thawed = false;
    let mut set = |off: bool, all: bool, at: TextSize| {
        if off && all && at < before {
            frozen_at = frozen_at.max(Some(at));
        } else if !off {
            thawed = true;
        }
    };
    for each in &model.assigns {
        if !each.place.ends_with(".requires_grad") {
            continue;
        }
        let all = model.func_of(each.ctx) == func && looped_over(each.ctx).is_some_and(of_all);
        set(is_off(each.expr), all, each.target.start());
    }
    for call in &model.calls {
        // Lightning's.
        if call.is_method("freeze") && call.node.arguments.is_empty() {
            let all = call.recv_place().is_some_and(|recv| names.contains(&recv));
            set(
                true,
                all && model.func_of(call.ctx) == func,
                call.node.start(),
            );
        }
        if call.is_method("requires_grad_") {
            let all = model.func_of(call.ctx) == func
                && (call.recv_expr().is_some_and(is_it)
                    || looped_over(call.ctx).is_some_and(of_all));
            let off = is_off(call.node.arguments.find_positional(0));
            set(off, all, call.node.start());
        } else if model.func_of(call.ctx) == func && call.node.start() < before {
            let freezes = call.node.arguments.args.iter().any(|arg| {
                is_it(arg)
                    && match call.target {
                        Some(target) => freezes_what_it_is_given(model, target, call, arg, depth),
                        None => freezes_by_name(call),
                    }
            });
            if freezes {
                set(true, true, call.node.start());
            }
        }
    }
    // A new head, or a new model under the name, requires gradients.
    frozen_at.is_some_and(|at| {
        !thawed
            && !model.assigns.iter().any(|each| {
                let replaces = names.iter().any(|name| {
                    each.place == *name
                        && each.bind == Bind::Set
                        && !each.expr.is_some_and(|expr| {
                            let text = model.text(expr);
                            names.iter().any(|name| text.contains(name.as_str()))
                        })
                        || each.place.starts_with(&format!("{name}."))
                });
                replaces && each.target.start() > at && each.target.start() < before
            })
    })
}

/// `freeze(net)`, `set_requires_grad(net, False)`, of another file.
fn freezes_by_name(call: &Call<'_>) -> bool {
    let thaws = |arg: &Expr| matches!(arg, Expr::BooleanLiteral(flag) if flag.value);
    let arguments = || call.node.arguments.iter_source_order();
    last_name(&call.node.func).is_some_and(|name| {
        name.contains("freeze") && !name.contains("unfreeze") || name.contains("requires_grad")
    }) && !arguments().any(|arg| thaws(arg.value()))
}

/// Whether a function of the file freezes the model that an argument of a call is.
fn freezes_what_it_is_given(
    model: &Model<'_>,
    target: FuncId,
    call: &Call<'_>,
    arg: &Expr,
    depth: usize,
) -> bool {
    let node = model.func(target).node;
    let mut parameters = node.parameters.iter_non_variadic_params();
    parameters.any(|each| {
        let name = each.parameter.name.as_str();
        argument_of(model, target, call, name).is_some_and(|given| given.range() == arg.range())
            && depth == 0
            && is_frozen_here(
                model,
                Some(target),
                &[name.to_owned()],
                node.end(),
                depth + 1,
            )
    })
}

/// How often a range reads a name.
struct Uses<'m> {
    name: &'m str,
    range: TextRange,
    count: usize,
}

impl<'a> Visitor<'a> for Uses<'_> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Name(name) = expr
            && name.ctx.is_load()
            && name.id.as_str() == self.name
            && self.range.contains_range(name.range)
        {
            self.count += 1;
        }
        walk_expr(self, expr);
    }
}

/// Whether all that a function does with what a call wraps is to evaluate it: it hands it to functions that evaluate,
/// by their names, puts it in evaluation mode, or unwraps it.
pub(crate) fn is_only_evaluated(model: &Model<'_>, wrapper: &Call<'_>) -> bool {
    let Stmt::Assign(assign) = model.stmt(wrapper.stmt).node else {
        return false;
    };
    let [Expr::Name(target)] = &*assign.targets else {
        return false;
    };
    let name = target.id.as_str();
    let func = model.func_of(wrapper.ctx);
    let looped = model.loops_around(wrapper.ctx).next().is_some();
    let end = match func {
        Some(id) => model.func(id).node.end(),
        None => TextSize::of(model.module.text()),
    };
    // Until the name is bound anew.
    let until = model
        .assigns_to(func, name)
        .map(|each| each.target.start())
        .filter(|at| *at > assign.end())
        .min()
        .unwrap_or(end);
    let range = TextRange::new(assign.end(), until);
    let evaluates = |call: &&Call<'_>| {
        range.contains_range(call.node.range())
            && (call.is_method("eval") && call.recv_place().as_deref() == Some(name)
                || last_name(&call.node.func).is_some_and(is_eval_name)
                    && call
                        .node
                        .arguments
                        .args
                        .iter()
                        .any(|arg| matches!(arg, Expr::Name(each) if each.id.as_str() == name)))
    };
    let count = model.calls_in_function(func).filter(evaluates).count();
    let mut uses = Uses {
        name,
        range,
        count: 0,
    };
    for stmt in model.module.body() {
        uses.visit_stmt(stmt);
    }
    let uses = uses.count;
    !looped && count > 0 && count == uses
}

/// Whether the model is made from a class of the project that turns off gradients of its own parameters, or
/// runs without them.
pub(crate) fn is_of_frozen_class(model: &Model<'_>, place: &str) -> bool {
    names_of_classes(model, place).any(|name| model.around.freezes_itself(last_part(&name)))
}

/// The names in all that is bound to what ends like a place: among them the class that it is made from.
pub(crate) fn names_of_classes<'m>(
    model: &'m Model<'_>,
    place: &'m str,
) -> impl Iterator<Item = String> + 'm {
    let bound = model
        .assigns
        .iter()
        .filter(move |assign| last_part(&assign.place) == last_part(place));
    bound.filter_map(|assign| assign.expr).flat_map(names_in)
}
