//! Settings of PyTorch, and where gradients are recorded.

use oomph_python_source::ast::{Expr, Stmt, StmtFunctionDef};
use oomph_python_source::{
    Edit, Ranged, assignments_in, calls_in, dotted_name, functions_in, last_name, statements_in,
};

use crate::by_hand::{Script, Work};
use crate::lever::python;

/// A setting of torch that is on or off: where the script sets it itself, or else after its imports.
pub(crate) fn flag(work: &mut Work<'_>, name: &str, enabled: bool) -> Option<()> {
    value(work, name, python(enabled), None)
}

/// The same for any value; before the line that is new comes what has to be imported.
pub(crate) fn value(
    work: &mut Work<'_>,
    name: &str,
    value: &str,
    import: Option<&str>,
) -> Option<()> {
    // `cudnn.benchmark`, however `cudnn` was imported.
    let parts: Vec<&str> = name.rsplitn(3, '.').take(2).collect();
    let short = format!("{}.{}", parts.get(1)?, parts.first()?);
    work.edit(|script| {
        let sets: Vec<Edit> = assignments_in(script.module.body())
            .into_iter()
            .filter(|one| {
                let target = dotted_name(one.target);
                target
                    .is_some_and(|target| target == short || target.ends_with(&format!(".{short}")))
            })
            .map(|one| Edit::replace(one.value, value))
            .collect();
        if !sets.is_empty() {
            return Some(sets);
        }
        let line = format!("{name} = {value}");
        let lines: Vec<&str> = import.into_iter().chain([line.as_str()]).collect();
        after_imports(script, &lines)
    })
}

/// TF32 in products and in convolutions.
pub(crate) fn tf32(work: &mut Work<'_>, enabled: bool) -> Option<()> {
    let precision = if enabled { "\"high\"" } else { "\"highest\"" };
    let mut sets_precision = false;
    work.edit(|script| {
        // PyTorch refuses to answer for the older setting where the newer one was made.
        if script.module.text().contains("fp32_precision") || !script.has_torch() {
            return None;
        }
        let calls = calls_in(script.module.body()).into_iter();
        let calls =
            calls.filter(|call| last_name(&call.func) == Some("set_float32_matmul_precision"));
        let sets =
            calls.filter_map(|call| Some(Edit::replace(call.arguments.args.first()?, precision)));
        let sets: Vec<Edit> = sets.collect();
        sets_precision = !sets.is_empty();
        Some(sets)
    })?;
    if !sets_precision {
        flag(work, "torch.backends.cuda.matmul.allow_tf32", enabled)?;
    }
    flag(work, "torch.backends.cudnn.allow_tf32", enabled)
}

/// Lines after the imports of a script that has torch.
pub(crate) fn after_imports(script: &Script<'_>, lines: &[impl AsRef<str>]) -> Option<Vec<Edit>> {
    let last = script.last_import.filter(|_| script.has_torch())?;
    Some(vec![script.module.insert_after(last, lines)?])
}

/// Checkpoints to the CPU, where the script says to which device.
pub(crate) fn read_to_cpu(work: &mut Work<'_>) -> Option<()> {
    let devices = ["\"cuda\"", "'cuda'", "\"cuda:0\"", "'cuda:0'", "device"];
    work.edit(|script| {
        let calls = calls_in(script.module.body()).into_iter();
        let given =
            calls.filter_map(|call| Some(&call.arguments.find_keyword("map_location")?.value));
        let on_gpu = given.filter(|value| devices.contains(&script.module.slice(*value)));
        some(
            on_gpu
                .map(|value| Edit::replace(value, "\"cpu\""))
                .collect(),
        )
    })
}

/// Gradients cleared to none rather than to zero.
pub(crate) fn cleared_to_none(work: &mut Work<'_>) -> Option<()> {
    let is_false = |value: &Expr| {
        value
            .as_boolean_literal_expr()
            .is_some_and(|value| !value.value)
    };
    work.edit(|script| {
        let calls = calls_in(script.module.body()).into_iter();
        let calls = calls.filter(|call| last_name(&call.func) == Some("zero_grad"));
        let kept = calls.filter_map(|call| call.arguments.find_argument("set_to_none", 0));
        let kept = kept.filter(|argument| is_false(argument.value()));
        some(
            kept.map(|argument| Edit::replace(argument, "set_to_none=True"))
                .collect(),
        )
    })
}

/// No graph while a model evaluates: a decorator for a function that trains nothing, else from
/// `eval()` to `train()`.
pub(crate) fn evaluation_without_graph(work: &mut Work<'_>) -> Option<()> {
    work.edit(|script| {
        let module = script.module;
        let training = functions_that_train(script);
        let is_off = |text: &str| {
            ["no_grad", "inference_mode"]
                .iter()
                .any(|word| text.contains(word))
        };
        let mut edits = Vec::new();
        for stmt in statements_in(module.body()) {
            let Some(model) = method_of(stmt, "eval") else {
                continue;
            };
            let block = module.block_of(stmt)?;
            let after = block.iter().find(|other| other.start() > stmt.start());
            if after.is_some_and(|after| {
                after.is_with_stmt()
                    && is_off(module.slice(after).lines().next().unwrap_or_default())
            }) {
                continue;
            }
            let function = script.function(stmt);
            if let Some(function) = function
                && !training.contains(&function.name.as_str())
            {
                // The context would be that of the code that iterates.
                if module.slice(function).contains("yield") {
                    return None;
                }
                if !function
                    .decorator_list
                    .iter()
                    .any(|one| is_off(module.slice(one)))
                {
                    edits.push(decorated(script, function)?);
                }
                continue;
            }
            let body = function.map_or(module.body(), |function| &function.body);
            let trains: Vec<&Stmt> = statements_in(body)
                .into_iter()
                .filter(|other| method_of(other, "train") == Some(model.clone()))
                .collect();
            let mut calls = calls_in(body).into_iter();
            let later = calls.any(|call| {
                call.start() > stmt.start() && last_name(&call.func) == Some("backward")
            });
            if trains.is_empty() && (later || !std::ptr::eq(block, body)) {
                return None;
            }
            edits.push(module.insert_after(stmt, &["torch.set_grad_enabled(False)"])?);
            for train in trains {
                edits.push(module.insert_before(train, &["torch.set_grad_enabled(True)"])?);
            }
        }
        let mut once: Vec<Edit> = Vec::new();
        for edit in edits {
            if !once.contains(&edit) {
                once.push(edit);
            }
        }
        some(once).filter(|_| script.has_torch())
    })
}

/// The decorator that turns gradients off, next to the function's head.
fn decorated(script: &Script<'_>, function: &StmtFunctionDef) -> Option<Edit> {
    const OFF: &str = "@torch.no_grad()";
    let module = script.module;
    let indent = module.indentation(function.start())?;
    Some(match function.decorator_list.last() {
        Some(last) => Edit::insert(last.end(), format!("\n{indent}{OFF}")),
        None => Edit::insert(function.start(), format!("{OFF}\n{indent}")),
    })
}

/// The functions that call `backward`, or one that does.
fn functions_that_train<'m>(script: &Script<'m>) -> Vec<&'m str> {
    let functions = functions_in(script.module.body());
    let mut found = vec!["backward"];
    loop {
        let more = functions.iter().find(|function| {
            let mut calls = calls_in(&function.body).into_iter();
            !found.contains(&function.name.as_str())
                && calls.any(|call| last_name(&call.func).is_some_and(|name| found.contains(&name)))
        });
        match more {
            Some(function) => found.push(function.name.as_str()),
            None => return found,
        }
    }
}

/// The variable of the statement `variable.method()`.
fn method_of(stmt: &Stmt, method: &str) -> Option<String> {
    let call = stmt.as_expr_stmt()?.value.as_call_expr()?;
    let function = call.func.as_attribute_expr()?;
    dotted_name(&function.value)
        .filter(|_| function.attr.as_str() == method && call.arguments.is_empty())
}

/// Edits, if there are any.
fn some(edits: Vec<Edit>) -> Option<Vec<Edit>> {
    (!edits.is_empty()).then_some(edits)
}

/// A line after each of these functions of the script, given its name; `None` if one of them is not defined once, by itself.
pub(crate) fn after_functions(
    work: &mut Work<'_>,
    functions: &[String],
    line: impl Fn(&str) -> String,
) -> Option<()> {
    work.edit(|script| {
        let body = script.module.body();
        let edit = |name: &String| {
            let name = name.strip_suffix("()")?;
            let mut defined = body.iter().filter(|stmt| {
                let function = stmt.as_function_def_stmt();
                function.is_some_and(|function| function.name.as_str() == name)
            });
            match (defined.next(), defined.next()) {
                (Some(stmt), None) => script.module.insert_after(stmt, &[line(name)]),
                _ => None,
            }
        };
        functions.iter().map(edit).collect()
    })
}
