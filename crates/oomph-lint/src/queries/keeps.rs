//! What methods keep of what they are given.

use oomph_python_source::ast::{Expr, Operator, Stmt};
use oomph_python_source::dotted_name;

use crate::semantic::{Bind, Call, CtxId, FuncId, Model};

/// Whether a method adds its parameter to an attribute, or appends it to one, as it is.
pub(crate) fn keeps_parameter(model: &Model<'_>, func: FuncId, name: &str) -> bool {
    // Bound anew, as in `value = float(value)`, it is something else.
    if model.assigns_to(Some(func), name).next().is_some() {
        return false;
    }
    let added = model.assigns.iter().any(|assign| {
        model.func_of(assign.ctx) == Some(func)
            && assign.place.starts_with("self.")
            && assign.expr.is_some_and(|expr| match assign.bind {
                Bind::Add => carries(expr, name),
                Bind::Set => {
                    carries(expr, name)
                        && matches!(expr, Expr::BinOp(_))
                        && carries(expr, &assign.place)
                }
                _ => false,
            })
    });
    added
        || model.calls_in_function(Some(func)).any(|call| {
            call.is_method("append")
                && call
                    .recv_place()
                    .is_some_and(|place| place.starts_with("self."))
                && call
                    .node
                    .arguments
                    .find_positional(0)
                    .is_some_and(|arg| dotted_name(arg).as_deref() == Some(name))
        })
}

/// Whether statements at the top of a method add a name to an attribute of its object, or append it to one, as it is.
pub(crate) fn adds_to_itself(body: &[Stmt], name: &str) -> bool {
    let of_self = |expr: &Expr| dotted_name(expr).filter(|place| place.starts_with("self."));
    // Bound anew, as in `value = float(value)`, it is something else.
    let is_bound = body
        .iter()
        .any(|stmt| !matches!(stmt, Stmt::Expr(_) | Stmt::AugAssign(_) | Stmt::Assign(_)))
        || body.iter().filter_map(Stmt::as_assign_stmt).any(|assign| {
            assign
                .targets
                .iter()
                .any(|target| dotted_name(target).as_deref() == Some(name))
        });
    !is_bound
        && body.iter().any(|stmt| match stmt {
            Stmt::AugAssign(node) => {
                node.op == Operator::Add && of_self(&node.target).is_some() && carries(&node.value, name)
            }
            Stmt::Assign(node) => node.targets.iter().filter_map(of_self).any(|place| {
                node.value.is_bin_op_expr() && carries(&node.value, name) && carries(&node.value, &place)
            }),
            Stmt::Expr(only) => matches!(&*only.value, Expr::Call(call)
                if matches!(&*call.func, Expr::Attribute(method) if method.attr.as_str() == "append" && of_self(&method.value).is_some())
                    && call.arguments.find_positional(0).and_then(dotted_name).as_deref() == Some(name)),
            _ => false,
        })
}

/// Whether arithmetic makes an expression from the place: its graph goes into the result.
pub(crate) fn carries(expr: &Expr, place: &str) -> bool {
    match expr {
        Expr::BinOp(node)
            if matches!(
                node.op,
                Operator::Add | Operator::Sub | Operator::Mult | Operator::Div
            ) =>
        {
            carries(&node.left, place) || carries(&node.right, place)
        }
        Expr::UnaryOp(node) => carries(&node.operand, place),
        _ => dotted_name(expr).as_deref() == Some(place),
    }
}

/// The name of the parameter that takes the first argument of a call of a method of this file.
pub(crate) fn first_parameter<'a>(model: &Model<'a>, call: &Call<'a>) -> Option<(FuncId, &'a str)> {
    let func = call.target?;
    let info = model.func(func);
    info.class?;
    let parameter = info.node.parameters.iter_non_variadic_params().nth(1)?;
    Some((func, parameter.parameter.name.as_str()))
}

/// Whether a context is in a step that a library's trainer runs, and whose loss that library runs
/// backward: `training_step` of Lightning, `compute_loss` of transformers.
pub(crate) fn in_managed_step(model: &Model<'_>, ctx: CtxId) -> bool {
    let Some(class) = model.ctx(ctx).class else {
        return false;
    };
    let info = model.class(class);
    let of_trainer = || {
        info.node.arguments.as_ref().is_some_and(|arguments| {
            arguments.args.iter().any(|base| {
                oomph_python_source::last_name(base).is_some_and(|name| name.ends_with("Trainer"))
            })
        })
    };
    match model.func_name(ctx) {
        Some("training_step") => info.is_lightning,
        Some("compute_loss") => of_trainer(),
        _ => false,
    }
}
