//! Finding statements, definitions, calls and assignments.

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{ExceptHandler, Expr, ExprCall, Stmt, StmtClassDef, StmtFunctionDef};

/// The blocks directly inside a statement, in source order: the body of a function, the branches of
/// an `if`, body and `else` of a loop. Empty ones are left out.
pub fn blocks_of(stmt: &Stmt) -> Vec<&[Stmt]> {
    let mut blocks: Vec<&[Stmt]> = Vec::new();
    match stmt {
        Stmt::FunctionDef(node) => blocks.push(&node.body),
        Stmt::ClassDef(node) => blocks.push(&node.body),
        Stmt::With(node) => blocks.push(&node.body),
        Stmt::For(node) => blocks.extend([&*node.body, &*node.orelse]),
        Stmt::While(node) => blocks.extend([&*node.body, &*node.orelse]),
        Stmt::If(node) => {
            blocks.push(&node.body);
            blocks.extend(node.elif_else_clauses.iter().map(|clause| &*clause.body));
        }
        Stmt::Try(node) => {
            blocks.push(&node.body);
            for ExceptHandler::ExceptHandler(handler) in &node.handlers {
                blocks.push(&handler.body);
            }
            blocks.extend([&*node.orelse, &*node.finalbody]);
        }
        Stmt::Match(node) => blocks.extend(node.cases.iter().map(|case| &*case.body)),
        _ => {}
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

/// The statements of a block and of all blocks inside it, in source order.
///
/// ```
/// use oomph_python_source::{Module, statements_in};
///
/// let module = Module::parse("for x in data:\n    if x:\n        break\n")?;
/// assert_eq!(statements_in(module.body()).len(), 3);
/// # Ok::<(), oomph_python_source::Problem>(())
/// ```
pub fn statements_in(body: &[Stmt]) -> Vec<&Stmt> {
    fn gather<'a>(body: &'a [Stmt], found: &mut Vec<&'a Stmt>) {
        for stmt in body {
            found.push(stmt);
            for block in blocks_of(stmt) {
                gather(block, found);
            }
        }
    }
    let mut found = Vec::new();
    gather(body, &mut found);
    found
}

/// The functions and methods that are defined in a block or in a block inside it, in source order.
pub fn functions_in(body: &[Stmt]) -> Vec<&StmtFunctionDef> {
    let statements = statements_in(body).into_iter();
    statements.filter_map(Stmt::as_function_def_stmt).collect()
}

/// The classes that are defined in a block or in a block inside it, in source order.
pub fn classes_in(body: &[Stmt]) -> Vec<&StmtClassDef> {
    let statements = statements_in(body).into_iter();
    statements.filter_map(Stmt::as_class_def_stmt).collect()
}

/// The calls in a block, those in functions that it defines among them, outermost first.
pub fn calls_in(body: &[Stmt]) -> Vec<&ExprCall> {
    gather_calls(body, true)
}

/// The calls that a block itself makes, outermost first: those in functions and classes that it
/// only defines are left out.
///
/// ```
/// use oomph_python_source::{Module, calls_in, calls_run_by};
///
/// let module = Module::parse("def train():\n    step()\ntrain()\n")?;
/// assert_eq!(calls_in(module.body()).len(), 2);
/// assert_eq!(calls_run_by(module.body()).len(), 1);
/// # Ok::<(), oomph_python_source::Problem>(())
/// ```
pub fn calls_run_by(body: &[Stmt]) -> Vec<&ExprCall> {
    gather_calls(body, false)
}

fn gather_calls(body: &[Stmt], in_definitions: bool) -> Vec<&ExprCall> {
    struct Calls<'a> {
        found: Vec<&'a ExprCall>,
        in_definitions: bool,
    }
    impl<'a> Visitor<'a> for Calls<'a> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if let Expr::Call(call) = expr {
                self.found.push(call);
            }
            walk_expr(self, expr);
        }

        fn visit_stmt(&mut self, stmt: &'a Stmt) {
            if self.in_definitions || !matches!(stmt, Stmt::FunctionDef(_) | Stmt::ClassDef(_)) {
                walk_stmt(self, stmt);
            }
        }
    }
    let mut calls = Calls {
        found: Vec::new(),
        in_definitions,
    };
    for stmt in body {
        calls.visit_stmt(stmt);
    }
    calls.found
}

/// `target = value`.
#[derive(Clone, Copy, Debug)]
pub struct Assignment<'a> {
    /// The statement.
    pub stmt: &'a Stmt,
    /// What is assigned to.
    pub target: &'a Expr,
    /// What is assigned.
    pub value: &'a Expr,
}

/// The assignments in a block and in all blocks inside it, in source order. `a = b = value` is two;
/// `a: int = value` is one; `a += value`, loop targets and `with … as` are none.
///
/// ```
/// use oomph_python_source::{Module, assignments_in, dotted_name};
///
/// let module = Module::parse("if cuda:\n    self.model = Net()\n")?;
/// let found = assignments_in(module.body());
/// assert_eq!(dotted_name(found[0].target).as_deref(), Some("self.model"));
/// # Ok::<(), oomph_python_source::Problem>(())
/// ```
pub fn assignments_in(body: &[Stmt]) -> Vec<Assignment<'_>> {
    let mut found = Vec::new();
    for stmt in statements_in(body) {
        match stmt {
            Stmt::Assign(node) => found.extend(node.targets.iter().map(|target| Assignment {
                stmt,
                target,
                value: &node.value,
            })),
            Stmt::AnnAssign(node) => found.extend(node.value.as_deref().map(|value| Assignment {
                stmt,
                target: &node.target,
                value,
            })),
            _ => {}
        }
    }
    found
}
