//! Handlers that recognize running out of memory.

use oomph_python_source::ast::visitor::{Visitor, walk_expr};
use oomph_python_source::ast::{self, Expr, Stmt};
use oomph_python_source::last_name;

/// How a handler recognizes running out of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OomTest {
    /// `except torch.cuda.OutOfMemoryError`.
    Class,
    /// A test of the message.
    Message,
}

/// How a handler recognizes running out of memory, if it does.
pub(crate) fn oom_handler(handler: &ast::ExceptHandlerExceptHandler) -> Option<OomTest> {
    if let Some(type_) = &handler.type_ {
        let names: Vec<&str> = match &**type_ {
            Expr::Tuple(tuple) => tuple.elts.iter().filter_map(last_name).collect(),
            other => last_name(other).into_iter().collect(),
        };
        if names.contains(&"OutOfMemoryError") {
            return Some(OomTest::Class);
        }
    }
    strings_in(&handler.body)
        .iter()
        .any(|text| text.contains("out of memory"))
        .then_some(OomTest::Message)
}

/// The string literals in a piece of syntax, in lower case.
fn strings_in(body: &[Stmt]) -> Vec<String> {
    struct Strings(Vec<String>);
    impl<'a> Visitor<'a> for Strings {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if let Expr::StringLiteral(node) = expr {
                self.0.push(node.value.to_str().to_ascii_lowercase());
            }
            walk_expr(self, expr);
        }
    }
    let mut strings = Strings(Vec::new());
    for stmt in body {
        strings.visit_stmt(stmt);
    }
    strings.0
}
