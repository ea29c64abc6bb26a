//! How large a network of the file is, as far as the project shows it.

use oomph_python_source::ast::{Expr, ExprCall};
use oomph_python_source::{Ranged, dotted_name, last_name, last_part, names_in};

use crate::queries::model_calls::names_of_classes;
use crate::semantic::{Bind, Call, FuncId, Model};
use crate::sizes::Size;

/// Names of networks are followed this far.
const MAX_NAMES: usize = 6;

/// Whether a network's parameters are a few MB at most, as are its gradients and each copy of its weights.
pub(crate) fn has_few_parameters(model: &Model<'_>, func: Option<FuncId>, place: &str) -> bool {
    size(model, func, place).is_some_and(Size::has_small_parameters)
}

/// Whether what a batch of rows keeps for a network's backward pass is little: it has linear layers only.
pub(crate) fn keeps_few_activations(model: &Model<'_>, func: Option<FuncId>, place: &str) -> bool {
    size(model, func, place).is_some_and(Size::has_small_activations) || is_of_rows(model, place)
}

/// Whether a network is a classifier of small images or of rows, with a million parameters at most, or has linear layers only.
pub(crate) fn is_certainly_tiny(model: &Model<'_>, func: Option<FuncId>, place: &str) -> bool {
    size(model, func, place).is_some_and(Size::is_tiny) || is_of_rows(model, place)
}

/// Whether all classes that what ends like a place is made from have linear layers only.
fn is_of_rows(model: &Model<'_>, place: &str) -> bool {
    const WRAPS: &[&str] = &["DataParallel", "DistributedDataParallel", "DDP"];
    let names: Vec<String> = names_of_classes(model, place).collect();
    let mut classes = (names.iter().map(|name| last_part(name)))
        .filter(|name| name.starts_with(char::is_uppercase) && !WRAPS.contains(name))
        .peekable();
    classes.peek().is_some()
        && classes.all(|class| model.around.size(class).is_some_and(|size| size.of_rows))
}

fn size(model: &Model<'_>, func: Option<FuncId>, place: &str) -> Option<Size> {
    match at(model, func, place, 0)? {
        Found::Size(size) => Some(size),
        Found::Same => None,
    }
}

enum Found {
    Size(Size),
    /// What it was before: `net = net.cuda()`.
    Same,
}

/// All that is ever bound to a place has to be known.
fn at(model: &Model<'_>, func: Option<FuncId>, place: &str, depth: usize) -> Option<Found> {
    if depth > MAX_NAMES {
        return None;
    }
    let class = func.and_then(|id| model.func(id).class);
    let of_self = place.starts_with("self.") && class.is_some();
    let here = |assign: &&crate::semantic::Assign<'_>| {
        assign.place == place
            && if of_self {
                model.ctx(assign.ctx).class == class
            } else {
                model.func_of(assign.ctx) == func
            }
    };
    let mut bound = model.assigns.iter().filter(here).peekable();
    if bound.peek().is_none() {
        return match func {
            Some(id) if !of_self => match parameter(model, id, place) {
                Some(position) => given(model, id, (place, position), depth),
                None => at(model, None, place, depth + 1),
            },
            _ => None,
        };
    }
    let mut all: Option<Size> = None;
    for assign in bound {
        if assign.bind != Bind::Set {
            return None;
        }
        match of_expr(model, model.func_of(assign.ctx), place, assign.expr?, depth)? {
            Found::Size(size) => all = Some(all.map_or(size, |known| known.max(size))),
            Found::Same => {}
        }
    }
    all.map(Found::Size)
}

fn of_expr(
    model: &Model<'_>,
    func: Option<FuncId>,
    place: &str,
    expr: &Expr,
    depth: usize,
) -> Option<Found> {
    match expr {
        Expr::NoneLiteral(_) => Some(Found::Same),
        Expr::Call(call) => of_call(model, func, place, call, depth),
        _ => match dotted_name(expr)? {
            same if same == place => Some(Found::Same),
            other => at(model, func, &other, depth + 1),
        },
    }
}

fn of_call(
    model: &Model<'_>,
    func: Option<FuncId>,
    place: &str,
    call: &ExprCall,
    depth: usize,
) -> Option<Found> {
    const SAME: &[&str] = &[
        "to",
        "cuda",
        "cpu",
        "double",
        "float",
        "half",
        "train",
        "eval",
        "requires_grad_",
    ];
    const WRAPS: &[&str] = &[
        "DataParallel",
        "DistributedDataParallel",
        "DDP",
        "deepcopy",
        "compile",
    ];
    let name = last_name(&call.func)?;
    if let Expr::Attribute(method) = &*call.func
        && SAME.contains(&name)
    {
        return of_expr(model, func, place, &method.value, depth);
    }
    if WRAPS.contains(&name) {
        return of_expr(model, func, place, call.arguments.args.first()?, depth);
    }
    model.around.size(name).map(Found::Size)
}

fn parameter(model: &Model<'_>, func: FuncId, name: &str) -> Option<usize> {
    let mut parameters = model.func(func).node.parameters.iter_non_variadic_params();
    parameters.position(|each| each.parameter.name.as_str() == name)
}

/// What all callers hand over for a parameter, if only the file calls the function.
fn given(
    model: &Model<'_>,
    func: FuncId,
    (name, position): (&str, usize),
    depth: usize,
) -> Option<Found> {
    let bound = model.func(func).class.is_some();
    if model
        .around
        .is_called_elsewhere(model.func(func).node.name.as_str())
    {
        return None;
    }
    let mut all: Option<Size> = None;
    for call in model.calls.iter().filter(|call| call.target == Some(func)) {
        let arg = position
            .checked_sub(usize::from(bound))
            .and_then(|at| call.arg(name, at));
        let found = arg.and_then(|arg| of_expr(model, model.func_of(call.ctx), "", arg, depth + 1));
        let Some(Found::Size(size)) = found else {
            return None;
        };
        all = Some(all.map_or(size, |known| known.max(size)));
    }
    all.map(Found::Size)
}

/// Whether a call runs a network on one example, outside of loops, for a class, an embedding or an action: `net(image.unsqueeze(0))`.
pub(crate) fn is_one_example(model: &Model<'_>, call: &Call<'_>) -> bool {
    const RESULTS: &[&str] = &[
        "argmax",
        "topk(",
        "softmax(",
        "torch.max(",
        "embedding",
        "feature",
        "logits",
        "prob",
        "action",
    ];
    const MAPS: &[&str] = &["seg", "mask", "depth", "generat", "sample", "save_image"];
    let func = model.func_of(call.ctx);
    let Some(body) = func.map(|id| model.text(model.func(id).node).to_ascii_lowercase()) else {
        return false;
    };
    let mut exprs: Vec<&Expr> = call.node.arguments.args.iter().collect();
    for _ in 0..MAX_NAMES {
        let names: Vec<String> = exprs.iter().flat_map(|expr| names_in(expr)).collect();
        let bound = model.assigns_in_function(func).filter(|assign| {
            names.contains(&assign.place) && assign.target.start() < call.node.start()
        });
        let known = exprs.len();
        let new: Vec<&Expr> = bound
            .filter_map(|assign| assign.expr)
            .filter(|expr| !exprs.iter().any(|each| each.range() == expr.range()))
            .collect();
        exprs.extend(new);
        if exprs.len() == known {
            break;
        }
    }
    model.loops_around(call.ctx).next().is_none()
        && exprs
            .iter()
            .any(|expr| is_batch_of_one(model.text(*expr), expr))
        && RESULTS.iter().any(|word| body.contains(word))
        && !MAPS.iter().any(|word| body.contains(word))
}

/// `image.unsqueeze(0)`, `[[index[word] for word in text]]`
fn is_batch_of_one(text: &str, expr: &Expr) -> bool {
    const ONE: &[&str] = &[
        ".unsqueeze(0)",
        "unsqueeze(dim=0)",
        "[None, ",
        "[None]",
        "expand_dims(",
        ".view(1, ",
        ".reshape(1, ",
    ];
    let is_nested = matches!(expr, Expr::List(list) if matches!(&*list.elts, [Expr::List(_) | Expr::ListComp(_)]));
    is_nested || ONE.iter().any(|makes| text.contains(makes))
}
