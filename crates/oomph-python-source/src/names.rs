//! Dotted names: `x`, `self.x`, `a.b.c`.

use ruff_python_ast::Expr;
use ruff_python_ast::visitor::{Visitor, walk_expr};

/// The dotted name that an expression is: `x`, `self.x`, `a.b.c`. Calls and items have none.
pub fn dotted_name(expr: &Expr) -> Option<String> {
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

/// The last part of a name: `step` of `a.b.step` and of `f().step`, `f` of `f`.
pub fn last_name(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Attribute(attribute) => Some(attribute.attr.as_str()),
        Expr::Name(name) => Some(name.id.as_str()),
        _ => None,
    }
}

/// The last part of a dotted name: `c` of `a.b.c`.
pub fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The dotted names that an expression reads, in source order: `a.b + c` reads `a.b` and `c`.
pub fn names_in(expr: &Expr) -> Vec<String> {
    struct Names(Vec<String>);
    impl<'a> Visitor<'a> for Names {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if let Some(name) = dotted_name(expr) {
                self.0.push(name);
            } else {
                walk_expr(self, expr);
            }
        }
    }
    let mut names = Names(Vec::new());
    names.visit_expr(expr);
    names.0
}
