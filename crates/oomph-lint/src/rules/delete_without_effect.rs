use oomph_python_source::ast::Stmt;
use oomph_python_source::dotted_name;

use crate::rule::{Report, declare_rule};
use crate::semantic::{CtxKind, Model};

declare_rule! {
    /// A parameter is deleted to free memory that the caller still holds.
    ///
    /// ## What it does
    ///
    /// Looks for `del x` followed by `torch.cuda.empty_cache()` where `x` is a parameter of the
    /// function and every caller in the file passes a variable that it keeps.
    ///
    /// ## Why it costs memory
    ///
    /// `del` removes a name, not a tensor. The caller's variable still refers to it, so nothing is
    /// freed, although the code reads as if it were.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def free(model):
    ///     del model
    ///     torch.cuda.empty_cache()
    ///
    /// def main(build):
    ///     first = build()
    ///     free(first)
    ///     second = build()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def main(build):
    ///     first = build()
    ///     del first
    ///     torch.cuda.empty_cache()
    ///     second = build()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the caller deletes its variable right after the call.
    ///
    /// ## Fix safety
    ///
    /// No fix: the deletion belongs in the caller.
    OOM613 "delete-without-effect" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for info in &model.stmts {
        let Stmt::Delete(delete) = info.node else {
            continue;
        };
        let CtxKind::Function(func) = model.ctx(info.ctx).kind else {
            continue;
        };
        let empties = info
            .block
            .get(info.index + 1..)
            .unwrap_or_default()
            .iter()
            .any(|stmt| model.text(stmt).contains("empty_cache()"));
        if !empties {
            continue;
        }
        let def = model.func(func).node;
        for target in &delete.targets {
            let Some(name) = dotted_name(target) else { continue };
            let Some(position) = def
                .parameters
                .iter_non_variadic_params()
                .position(|each| each.parameter.name.as_str() == name)
            else {
                continue;
            };
            // Bound anew in the body, the name is the function's own.
            if name == "self" || model.assigns_to(Some(func), &name).next().is_some() {
                continue;
            }
            let shift = usize::from(model.func(func).class.is_some());
            let mut calls = 0;
            let all_keep = model
                .calls
                .iter()
                .filter(|call| call.target == Some(func))
                .all(|call| {
                    calls += 1;
                    let arg = call.arg(&name, position.saturating_sub(shift));
                    
                    arg.and_then(dotted_name).is_some_and(|place| {
                        !model.stmts.iter().any(|other| match other.node {
                            Stmt::Delete(other) => other
                                .targets
                                .iter()
                                .any(|each| dotted_name(each).as_deref() == Some(place.as_str()) && !std::ptr::eq(other, delete)),
                            _ => false,
                        })
                    })
                });
            if calls > 0 && all_keep {
                out.push(
                    Report::new(target, format!("the caller still holds `{name}`: deleting the parameter frees nothing"))
                        .help("delete the variable where it lives, in the caller"),
                );
            }
        }
    }
}
