use oomph_python_source::{Edit, Ranged};

use crate::fix::{Applicability, Fix};
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// The cache is emptied before the garbage is collected.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.cuda.empty_cache()` right before `gc.collect()`, with no `empty_cache()`
    /// after it.
    ///
    /// ## Why it costs memory
    ///
    /// `empty_cache()` returns blocks that are free now. The tensors that `gc.collect()` frees a
    /// line later go into the cache and stay there.
    ///
    /// ## Example
    ///
    /// ```python
    /// import gc
    /// import torch
    ///
    /// def clean():
    ///     torch.cuda.empty_cache()
    ///     gc.collect()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import gc
    /// import torch
    ///
    /// def clean():
    ///     gc.collect()
    ///     torch.cuda.empty_cache()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When nothing on the GPU is part of a reference cycle.
    ///
    /// ## Fix safety
    ///
    /// Safe: the two calls change places.
    OOM612 "empty-cache-before-collect" { fix: Sometimes, fresh: [13, 20] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        if !call.is("torch.cuda.empty_cache") {
            continue;
        }
        let info = model.stmt(call.stmt);
        if !info.node.is_expr_stmt() {
            continue;
        }
        let next = model.calls.iter().find(|other| {
            let there = model.stmt(other.stmt);
            other.is("gc.collect")
                && std::ptr::eq(there.block, info.block)
                && there.index == info.index + 1
                && there.node.is_expr_stmt()
        });
        let Some(collect) = next else { continue };
        let emptied_again = info
            .block
            .get(info.index + 2..)
            .unwrap_or_default()
            .iter()
            .any(|stmt| model.text(stmt).contains("empty_cache"));
        // `gc.collect()` right before as well: the order is right, one call is left over.
        let collected_before = info
            .index
            .checked_sub(1)
            .and_then(|index| info.block.get(index))
            .is_some_and(|stmt| model.text(stmt).contains("gc.collect"));
        if emptied_again || collected_before {
            continue;
        }
        let other = model.stmt(collect.stmt).node;
        let fix = Fix::new(
            Applicability::Safe,
            "collect first",
            vec![
                Edit::replace(info.node.range(), model.text(other)),
                Edit::replace(other.range(), model.text(info.node)),
            ],
        );
        out.push(
            Report::new(call.node, "what `gc.collect()` frees on the next line stays in the cache")
                .help("call `gc.collect()` first, then `torch.cuda.empty_cache()`")
                .fix(fix),
        );
    }
}
