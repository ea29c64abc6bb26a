//! Dotted names: `x`, `self.x`, `a.b.c`.

use ruff_python_ast::Expr;
use ruff_python_ast::visitor::{Visitor, walk_expr};

/// The dotted name that an expression is: `x`, `self.x`, `a.b.c`. Calls and items have none.
pub fn dotted_name(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Name(name) => Some(name.id.to_string()),
        _ => Some(dotted_parts(expr)?.join(".")),
    }
}

/// The parts of the dotted name that an expression is: `a`, `b` and `c` of `a.b.c`.
pub fn dotted_parts(expr: &Expr) -> Option<Vec<&str>> {
    // Most expressions that are asked about are none: nothing is put together for them.
    let mut depth = 1;
    let mut base = expr;
    while let Expr::Attribute(attribute) = base {
        depth += 1;
        base = &attribute.value;
    }
    let Expr::Name(name) = base else {
        return None;
    };
    let mut parts = vec![name.id.as_str(); depth];
    let mut rest = expr;
    while let Expr::Attribute(attribute) = rest {
        depth -= 1;
        parts[depth] = attribute.attr.as_str();
        rest = &attribute.value;
    }
    Some(parts)
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
