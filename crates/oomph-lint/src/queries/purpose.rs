//! What a file or a function is for: training, evaluation, a unit test.

use oomph_python_source::ast::visitor::{Visitor, walk_expr};
use oomph_python_source::ast::{BoolOp, Expr, Number, Stmt, StmtIf, UnaryOp};
use oomph_python_source::{Ranged, TextRange, dotted_name, last_name, last_part};

use crate::queries::batches::unpacks_wrongly;
use crate::reach::{Constant, goes_no_further};
use crate::semantic::value::Kind;
use crate::semantic::{Bind, CtxId, CtxKind, FuncId, Model};

/// Whether a context is in a unit test: it runs once, on a tiny model, to compare numbers.
pub(crate) fn in_unit_test(model: &Model<'_>, ctx: CtxId) -> bool {
    let is_test = |name: &str| name.starts_with("test_") || name.starts_with("_test_");
    *model.tests.get_or_init(|| {
        ["pytest", "unittest"].iter().any(|library| {
            let text = model.module.text();
            text.contains(&format!("import {library}")) || text.contains(&format!("from {library}"))
        })
    }) || model.func_of(ctx).is_some_and(|func| {
        let node = model.func(func).node;
        is_test(node.name.as_str()) && model.text(node).contains("assert")
    })
}

/// Whether only a PyTorch before 0.5 runs the file: it reads a loss, or what `backward()` is called on, by
/// `loss.data[0]`. What is true of memory today says little about it.
pub(crate) fn is_for_old_torch(model: &Model<'_>) -> bool {
    struct Find<'m>(&'m [String], bool);
    impl<'a> Visitor<'a> for Find<'_> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if let Expr::Subscript(item) = expr
                && let Expr::Attribute(data) = &*item.value
                && data.attr.as_str() == "data"
                && matches!(&*item.slice, Expr::NumberLiteral(number)
                    if matches!(&number.value, Number::Int(index) if *index == 0))
            {
                let place = match &*data.value {
                    Expr::Call(call) => last_name(&call.func).map(str::to_owned),
                    other => dotted_name(other),
                };
                self.1 |= place.is_some_and(|place| {
                    let name = last_part(&place).to_ascii_lowercase();
                    name.contains("loss")
                        || name.starts_with("crit")
                        || name.starts_with("err")
                        || self.0.contains(&place)
                });
            }
            walk_expr(self, expr);
        }
    }
    if !model.module.text().contains(".data[0]") {
        return false;
    }
    let targets: Vec<String> = model
        .backwards
        .iter()
        .filter_map(|backward| dotted_name(backward.target))
        .collect();
    let mut find = Find(&targets, false);
    for stmt in model.module.body() {
        find.visit_stmt(stmt);
    }
    find.1
}

/// Whether no Python since 3.7 reads the file: it has an argument called `async`.
pub(crate) fn is_for_old_python(model: &Model<'_>) -> bool {
    model.module.text().contains("async")
        && model.calls.iter().any(|call| {
            call.node.arguments.keywords.iter().any(|keyword| {
                keyword
                    .arg
                    .as_ref()
                    .is_some_and(|name| model.text(name.range) == "async")
            })
        })
}

/// Whether a name says that its function evaluates.
pub(crate) fn is_eval_name(name: &str) -> bool {
    let name = name.trim_start_matches('_').to_ascii_lowercase();
    let first = name.split('_').next().unwrap_or(&name);
    matches!(
        first,
        "eval"
            | "evaluate"
            | "evaluation"
            | "validate"
            | "validation"
            | "val"
            | "test"
            | "predict"
            | "prediction"
            | "infer"
            | "inference"
    )
}

/// Whether a library's trainer runs the loop: it scales losses and steps optimizers itself. What the code
/// imports and calls says so, not its comments and paths.
pub(crate) fn has_managed_loop(model: &Model<'_>) -> bool {
    const LIBRARIES: &[&str] = &["accelerat", "deepspeed", "fabric", "model_engine"];
    // Most files have none of the words anywhere.
    let text = model.module.text();
    let says = |name: &str| {
        let name = name.to_ascii_lowercase();
        LIBRARIES.iter().any(|word| name.contains(word))
    };
    LIBRARIES.iter().any(|word| text.contains(word))
        && (model.calls.iter().any(|call| {
            call.qual.as_deref().is_some_and(says)
                || dotted_name(&call.node.func).is_some_and(|name| says(&name))
        }) || model.funcs.iter().any(|func| {
            func.node
                .parameters
                .iter_non_variadic_params()
                .any(|each| says(each.parameter.name.as_str()))
        }))
}

/// Whether the file trains, or makes what trains: without gradients, wrappers cost less.
pub(crate) fn trains(model: &Model<'_>) -> bool {
    let is_test = model.module.text().contains("import unittest")
        || model.module.text().contains("import pytest");
    let of_optimizer = |name: &str| name.to_ascii_lowercase().contains("optim");
    !is_test
        && (!model.backwards.is_empty()
            || model.calls.iter().any(|call| {
                call.recv.kind == Kind::Optimizer
                    || call.result.kind == Kind::Optimizer
                    || last_name(&call.node.func).is_some_and(of_optimizer)
            })
            || model.assigns.iter().any(|assign| {
                of_optimizer(&assign.place) && assign.value.kind != Kind::NoneLiteral
            })
            || model.funcs.iter().any(|func| {
                func.node
                    .parameters
                    .iter_non_variadic_params()
                    .any(|each| of_optimizer(each.parameter.name.as_str()))
            })
            || model.module.text().contains("loss_scaler("))
}

/// Whether nothing runs a place: it follows a `return` or `exit()` in its block, or is in a branch that a constant
/// switches off.
fn is_skipped(model: &Model<'_>, range: TextRange) -> bool {
    let top = model.module.body().as_ptr();
    model.stmts_around(range).any(|info| {
        // The top of a script is the project's business, and cells of a notebook are run one by one.
        let func = model.func_of(info.ctx);
        let ends = |stmt: &Stmt| match stmt {
            // `if DEBUG: return`
            Stmt::If(branch) => {
                branch.body.last().is_some_and(goes_no_further)
                    && value_of(model, func, &branch.test).is_some_and(|value| value.is_true())
            }
            other => goes_no_further(other),
        };
        let follows = info.block.as_ptr() != top && info.block[..info.index].iter().any(ends);
        let off = match info.node {
            Stmt::If(branch) => is_in_branch_that_is_off(model, branch, func, range),
            _ => false,
        };
        follows || off
    })
}

/// Whether constants keep the branch of an `if` that a place is in from running.
fn is_in_branch_that_is_off(
    model: &Model<'_>,
    branch: &StmtIf,
    func: Option<FuncId>,
    range: TextRange,
) -> bool {
    let is = |test: &Expr, value: bool| {
        value_of(model, func, test).is_some_and(|known| known.is_true() == value)
    };
    let holds = |body: &[Stmt]| body.iter().any(|each| each.range().contains_range(range));
    if holds(&branch.body) {
        return is(&branch.test, false);
    }
    let mut passed = is(&branch.test, true);
    for clause in &branch.elif_else_clauses {
        if holds(&clause.body) {
            return passed || clause.test.as_ref().is_some_and(|test| is(test, false));
        }
        passed |= clause.test.as_ref().is_some_and(|test| is(test, true));
    }
    false
}

/// What an expression is, if constants decide that.
pub(crate) fn value_of(model: &Model<'_>, func: Option<FuncId>, expr: &Expr) -> Option<Constant> {
    let known = |expr: &Expr| value_of(model, func, expr);
    match expr {
        Expr::Name(name) => constant(model, func, name.id.as_str()),
        Expr::Attribute(attribute) => {
            let of_object =
                matches!(&*attribute.value, Expr::Name(name) if name.id.as_str() == "self");
            let place = match func.and_then(|id| class_of(model, id)) {
                Some(class) if of_object => format!("{class}.{}", attribute.attr),
                _ => dotted_name(expr)?,
            };
            model.around.constant(&place)
        }
        Expr::Call(call) if last_name(&call.func) == Some("len") => {
            known(call.arguments.find_positional(0)?)?.len()
        }
        // `[i for i in range(len(gpus))]`, `list(range(gpus))`
        Expr::ListComp(node) => match &*node.generators {
            [only] if only.ifs.is_empty() => known(&only.iter),
            _ => None,
        },
        Expr::Call(call) if last_name(&call.func) == Some("list") => {
            known(call.arguments.find_positional(0)?)
        }
        Expr::Call(call) if last_name(&call.func) == Some("range") => {
            match known(call.arguments.find_positional(0)?)? {
                Constant::Int(count) => Some(Constant::Numbers(usize::try_from(count).ok()?)),
                _ => None,
            }
        }
        Expr::UnaryOp(node) if node.op == UnaryOp::Not => {
            Some(Constant::Bool(!known(&node.operand)?.is_true()))
        }
        Expr::BoolOp(node) => {
            let decides = node.op == BoolOp::Or;
            let values: Vec<Option<bool>> = node
                .values
                .iter()
                .map(|each| known(each).map(|value| value.is_true()))
                .collect();
            if values.contains(&Some(decides)) {
                return Some(Constant::Bool(decides));
            }
            values
                .iter()
                .all(Option::is_some)
                .then_some(Constant::Bool(!decides))
        }
        Expr::Compare(node) => match (&*node.ops, &*node.comparators) {
            ([op], [right]) => Some(Constant::Bool(
                known(&node.left)?.compare(*op, &known(right)?)?,
            )),
            _ => None,
        },
        other => Constant::of(other),
    }
}

/// The value of a name that one statement binds, to a literal: in the function, in the file or in one that it imports.
fn constant(model: &Model<'_>, func: Option<FuncId>, name: &str) -> Option<Constant> {
    let is_parameter = func.is_some_and(|id| {
        let mut parameters = model.func(id).node.parameters.iter();
        parameters.any(|each| each.name().as_str() == name)
    });
    let is_global = model.stmts.iter().any(|info| match info.node {
        Stmt::Global(node) => node.names.iter().any(|each| each.as_str() == name),
        Stmt::Nonlocal(node) => node.names.iter().any(|each| each.as_str() == name),
        _ => false,
    });
    if is_global {
        return None;
    }
    if is_parameter {
        let id = func?;
        if model.assigns_to(func, name).next().is_some() {
            return None;
        }
        let class = class_of(model, id).map_or_else(String::new, |class| format!("{class}."));
        let function = &model.func(id).node.name;
        return model.around.constant(&format!("{class}{function}({name})"));
    }
    let is_conditional = |ctx: CtxId| {
        model.within_function(ctx).any(|id| {
            matches!(
                model.ctx(id).kind,
                CtxKind::Branch(_)
                    | CtxKind::Handler
                    | CtxKind::Try
                    | CtxKind::For
                    | CtxKind::While
            )
        })
    };
    for scope in [func, None] {
        let bound: Vec<_> = model.assigns_to(scope, name).collect();
        match &*bound {
            [] => {}
            // Bound in a branch, it may not be bound at all.
            [only] if only.bind == Bind::Set && !is_conditional(only.ctx) => {
                return only.expr.and_then(Constant::of);
            }
            _ => return None,
        }
    }
    model.around.constant(name)
}

/// The class that a method is of.
fn class_of<'m>(model: &'m Model<'_>, id: FuncId) -> Option<&'m str> {
    let range = model.func(id).node.range;
    let of_class = model.classes.iter().map(|class| class.node);
    of_class
        .filter(|node| node.range.contains_range(range))
        .min_by_key(|node| node.range.start())
        .map(|node| node.name.as_str())
}

/// Whether nothing in the project runs the function or class that a place is in, or the place itself.
pub(crate) fn is_never_run(model: &Model<'_>, range: TextRange) -> bool {
    let stops = || {
        let mut loops = model.loops.iter();
        loops.any(|each| each.range.contains_range(range) && unpacks_wrongly(model, each))
    };
    if is_skipped(model, range) || model.around.is_dead(range.start()) || stops() {
        return true;
    }
    let func = model
        .funcs
        .iter()
        .map(|func| func.node)
        .filter(|node| node.range.contains_range(range))
        .min_by_key(|node| node.range.start());
    let class = model
        .classes
        .iter()
        .map(|class| class.node)
        .filter(|node| node.range.contains_range(range))
        .min_by_key(|node| node.range.start());
    let name = match (class, func) {
        (Some(class), Some(func)) if class.range.start() < func.range.start() => {
            format!("{}.{}", class.name, func.name)
        }
        (_, Some(func)) => func.name.to_string(),
        (Some(class), None) => class.name.to_string(),
        (None, None) => return false,
    };
    model.around.is_unreached(&name)
}
