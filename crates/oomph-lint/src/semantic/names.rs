//! Places: the names that values are bound to.

use ruff_python_ast::Expr;
use ruff_python_ast::visitor::{Visitor, walk_expr};

/// The place of an expression: `x`, `self.x`, `a.b.c`. Calls and items have none.
pub(crate) fn place_of(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Name(name) => Some(name.id.to_string()),
        Expr::Attribute(attribute) => {
            let mut parts = vec![attribute.attr.as_str()];
            let mut base = &*attribute.value;
            loop {
                match base {
                    Expr::Attribute(inner) => {
                        parts.push(inner.attr.as_str());
                        base = &inner.value;
                    }
                    Expr::Name(name) => {
                        parts.push(name.id.as_str());
                        break;
                    }
                    _ => return None,
                }
            }
            parts.reverse();
            Some(parts.join("."))
        }
        _ => None,
    }
}

/// Every place that an expression reads, outermost first: `a.b` yields `a.b` only.
pub(crate) fn names_in(expr: &Expr) -> Vec<String> {
    struct Names(Vec<String>);
    impl<'a> Visitor<'a> for Names {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if let Some(place) = place_of(expr) {
                self.0.push(place);
            } else {
                walk_expr(self, expr);
            }
        }
    }
    let mut names = Names(Vec::new());
    names.visit_expr(expr);
    names.0
}
