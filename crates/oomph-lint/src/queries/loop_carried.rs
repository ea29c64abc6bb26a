//! Values that a loop carries from one iteration to the next.

use oomph_python_source::ast::Expr;
use oomph_python_source::names_in;
use rustc_hash::FxHashSet;

use crate::semantic::{Bind, FuncId, Loop, Model};

/// Whether the value of `place` reaches a `backward()` of the function.
pub(crate) fn feeds_backward(model: &Model<'_>, func: Option<FuncId>, place: &str) -> bool {
    let mut reached: FxHashSet<String> = model
        .backwards_in_function(func)
        .flat_map(|each| places_in(each.target))
        .collect();
    loop {
        let before = reached.len();
        for assign in model.assigns_in_function(func) {
            if !reached.contains(base(&assign.place)) {
                continue;
            }
            if let Some(expr) = assign.expr {
                reached.extend(places_in(expr));
            }
        }
        if reached.len() == before {
            break;
        }
    }
    reached.contains(base(place))
}

/// The places that an expression reads: for `loss.mean()`, `loss` as well as `loss.mean`.
fn places_in(expr: &Expr) -> Vec<String> {
    let mut places = Vec::new();
    for name in names_in(expr) {
        let mut rest = name.as_str();
        while let Some((prefix, _)) = rest.rsplit_once('.') {
            if prefix != "self" {
                places.push(prefix.to_owned());
            }
            rest = prefix;
        }
        places.push(name);
    }
    places
}

/// `x` of `x[]`.
pub(crate) fn base(place: &str) -> &str {
    place.strip_suffix("[]").unwrap_or(place)
}

/// Whether the place gets a new value in each iteration of the loop.
pub(crate) fn starts_in(model: &Model<'_>, each: &Loop<'_>, place: &str) -> bool {
    let func = model.func_of(each.ctx);
    model.assigns_to(func, place).any(|assign| {
        if !model.is_inside(assign.ctx, each.ctx) {
            return false;
        }
        match assign.bind {
            Bind::Add | Bind::Augment => false,
            Bind::Set => !assign
                .expr
                .is_some_and(|expr| names_in(expr).iter().any(|name| name == place)),
            Bind::Unpack | Bind::Other => true,
        }
    })
}

/// Whether the collection is emptied inside the loop.
pub(crate) fn is_cleared_in(model: &Model<'_>, each: &Loop<'_>, place: &str) -> bool {
    model.calls.iter().any(|call| {
        matches!(call.method, Some("clear" | "pop" | "popleft"))
            && model.is_inside(call.ctx, each.ctx)
            && call.recv_place().as_deref() == Some(place)
    })
}
