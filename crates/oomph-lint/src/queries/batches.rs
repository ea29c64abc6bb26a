//! What loops over batches unpack.

use oomph_python_source::ast::{Expr, ExprCall, Stmt};
use oomph_python_source::{Ranged, last_name};

use crate::queries::model_calls::argument_of;
use crate::semantic::{FuncId, Loop, Model};

/// Names and calls are followed this far.
const MAX_DEPTH: usize = 6;

/// Whether a function stops at the first batch of a loop, its own or of a function of the file that it calls.
pub(crate) fn stops_at_a_batch(model: &Model<'_>, func: FuncId) -> bool {
    stops_within(model, func, 0)
}

fn stops_within(model: &Model<'_>, func: FuncId, depth: usize) -> bool {
    let mut loops = model.loops.iter();
    loops.any(|each| model.func_of(each.ctx) == Some(func) && unpacks_wrongly(model, each))
        || depth < MAX_DEPTH
            && model
                .calls_in_function(Some(func))
                .filter_map(|call| call.target)
                .any(|target| target != func && stops_within(model, target, depth + 1))
}

/// Whether a loop over batches stops at the first: it unpacks another number of values than the data set has for each
/// item, as the project's class says.
pub(crate) fn unpacks_wrongly(model: &Model<'_>, looped: &Loop<'_>) -> bool {
    let is_it = |stmt: &&Stmt| stmt.range() == looped.range;
    let Some(Stmt::For(node)) = model.stmts.iter().map(|info| info.node).find(is_it) else {
        return false;
    };
    let (mut target, mut iter) = (&*node.target, &*node.iter);
    while let Expr::Call(call) = iter {
        match (last_name(&call.func), call.arguments.args.first()) {
            (Some("enumerate"), Some(inner)) => {
                let Expr::Tuple(pair) = target else {
                    return false;
                };
                let Some(values) = pair.elts.get(1) else {
                    return false;
                };
                (target, iter) = (values, inner);
            }
            (Some("tqdm"), Some(inner)) => iter = inner,
            _ => return false,
        }
    }
    let Expr::Tuple(tuple) = target else {
        return false;
    };
    let func = model.func_of(looped.ctx);
    !tuple.elts.iter().any(Expr::is_starred_expr)
        && values_of(model, func, iter, &of_loader, 0)
            .is_some_and(|count| count != tuple.elts.len())
}

type Made<'m> = dyn Fn(&Model<'_>, Option<FuncId>, &ExprCall, usize) -> Option<usize> + 'm;

/// How many values each item has of what an expression is, by the calls that make it, if they agree.
fn values_of(
    model: &Model<'_>,
    func: Option<FuncId>,
    expr: &Expr,
    made: &Made<'_>,
    depth: usize,
) -> Option<usize> {
    if depth > MAX_DEPTH {
        return None;
    }
    let name = match expr {
        Expr::Call(call) => return made(model, func, call, depth),
        Expr::Name(name) => name.id.as_str(),
        _ => return None,
    };
    let mut counts: Vec<Option<usize>> = model
        .assigns_to(func, name)
        .filter(|assign| !assign.expr.is_some_and(Expr::is_none_literal_expr))
        .map(|assign| values_of(model, func, assign.expr?, made, depth + 1))
        .collect();
    if counts.is_empty()
        && let Some(id) = func
    {
        let mut parameters = model.func(id).node.parameters.iter_non_variadic_params();
        if parameters.any(|each| each.parameter.name.as_str() == name) {
            let callers = model.calls.iter().filter(|call| call.target == func);
            counts.extend(callers.map(|call| {
                let given = argument_of(model, id, call, name)?;
                values_of(model, model.func_of(call.ctx), given, made, depth + 1)
            }));
        } else {
            counts.push(values_of(model, None, expr, made, depth + 1));
        }
    }
    let first = *counts.first()?;
    counts
        .iter()
        .all(|count| *count == first)
        .then_some(first)?
}

/// `DataLoader(data, batch_size=8)`, with batches as PyTorch collates them.
fn of_loader(
    model: &Model<'_>,
    func: Option<FuncId>,
    call: &ExprCall,
    depth: usize,
) -> Option<usize> {
    let is_torchs = model
        .calls
        .iter()
        .any(|each| each.node.range() == call.range() && each.is("torch.utils.data.DataLoader"));
    let collates = call.arguments.find_keyword("collate_fn").is_some()
        || call
            .arguments
            .keywords
            .iter()
            .any(|each| each.arg.is_none())
        || call.arguments.args.len() > 6;
    if !is_torchs || collates {
        return None;
    }
    let data = call.arguments.find_argument_value("dataset", 0)?;
    values_of(model, func, data, &of_dataset, depth + 1)
}

/// `ImageFolder(path)`, `get_dataset(path)`, of a class of the project.
fn of_dataset(model: &Model<'_>, _: Option<FuncId>, call: &ExprCall, _: usize) -> Option<usize> {
    model.around.values_of_items(last_name(&call.func)?)
}
