//! What a file or a function is for: training, evaluation, a unit test.

use oomph_python_source::ast::visitor::{Visitor, walk_expr};
use oomph_python_source::ast::{Expr, Number};
use oomph_python_source::{TextRange, dotted_name, last_name, last_part};

use crate::semantic::value::Kind;
use crate::semantic::{CtxId, Model};

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
            || model
                .assigns
                .iter()
                .any(|assign| of_optimizer(&assign.place))
            || model.funcs.iter().any(|func| {
                func.node
                    .parameters
                    .iter_non_variadic_params()
                    .any(|each| of_optimizer(each.parameter.name.as_str()))
            })
            || model.module.text().contains("loss_scaler"))
}

/// Whether nothing in the project runs the function or class that a place is in.
pub(crate) fn is_never_run(model: &Model<'_>, range: TextRange) -> bool {
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
