//! Statements: blocks, branches, contexts and handlers.

use std::rc::Rc;

use oomph_python_source::ast::{self, ExceptHandler, Expr, ExprCall, Stmt};
use oomph_python_source::{Ranged, TextRange, TextSize, dotted_name, imports_of, last_name};

use super::assignments::def_id;
use super::backward::attr_name;
use super::{TORCH_ROOTS, Vars, Walker};
use crate::semantic::value::{DefId, Kind, Tri, Value};
use crate::semantic::{Bind, CtxKind, Grad, StmtId, StmtInfo, torch};

impl<'a> Walker<'a, '_> {
    /// Walks a block; `false` if control never reaches its end.
    pub(super) fn block(&mut self, body: &'a [Stmt]) -> bool {
        let mut falls = true;
        for (index, stmt) in body.iter().enumerate() {
            self.stmt = StmtId(self.model.stmts.len() as u32);
            self.model.stmts.push(StmtInfo {
                node: stmt,
                ctx: self.ctx,
                block: body,
                index,
            });
            falls &= self.stmt(stmt);
            // What follows never runs.
            if matches!(
                stmt,
                Stmt::Return(_) | Stmt::Raise(_) | Stmt::Break(_) | Stmt::Continue(_)
            ) {
                break;
            }
        }
        falls
    }

    pub(super) fn stmt(&mut self, stmt: &'a Stmt) -> bool {
        match stmt {
            Stmt::Import(_) | Stmt::ImportFrom(_) => {
                for import in imports_of(stmt) {
                    if import.level == 0 {
                        self.note_import(import.module);
                    }
                    self.bind_import(import.bound, &import.full);
                }
                true
            }
            Stmt::FunctionDef(def) => {
                self.function_def(def);
                true
            }
            Stmt::ClassDef(def) => {
                self.class_def(def);
                true
            }
            Stmt::Assign(node) => {
                let value = self.eval(&node.value);
                for target in &node.targets {
                    self.assign(target, value.clone(), Some(&node.value), Bind::Set);
                }
                true
            }
            Stmt::AnnAssign(node) => {
                if let Some(expr) = &node.value {
                    let value = self.eval(expr);
                    self.assign(&node.target, value, Some(expr), Bind::Set);
                }
                true
            }
            Stmt::AugAssign(node) => {
                self.aug_assign(node);
                true
            }
            Stmt::Expr(node) => {
                let value = self.eval(&node.value);
                self.grad_statement(&node.value);
                drop(value);
                true
            }
            Stmt::Return(node) => {
                let value = node.value.as_deref().map(|expr| self.eval(expr));
                if let (Some(func), Some(value)) = (self.func, value) {
                    let slot = &mut self.next_returns[func.index()];
                    *slot = Some(match slot.take() {
                        Some(before) => before.join(&value, DefId::default()),
                        None => value,
                    });
                }
                false
            }
            Stmt::Raise(node) => {
                for expr in [&node.exc, &node.cause].into_iter().flatten() {
                    self.eval(expr);
                }
                false
            }
            Stmt::Break(_) | Stmt::Continue(_) => false,
            Stmt::Delete(node) => {
                for target in &node.targets {
                    self.eval(target);
                    if let Some(place) = dotted_name(target) {
                        self.vars.remove(&place);
                    }
                }
                true
            }
            Stmt::Assert(node) => {
                self.eval(&node.test);
                true
            }
            Stmt::For(node) => {
                self.for_stmt(node);
                true
            }
            Stmt::While(node) => {
                self.while_stmt(node);
                true
            }
            Stmt::If(node) => self.if_stmt(node),
            Stmt::With(node) => self.with_stmt(node),
            Stmt::Try(node) => self.try_stmt(node),
            Stmt::Match(node) => {
                self.match_stmt(node);
                true
            }
            Stmt::Global(_)
            | Stmt::Nonlocal(_)
            | Stmt::Pass(_)
            | Stmt::TypeAlias(_)
            | Stmt::IpyEscapeCommand(_) => true,
        }
    }

    pub(super) fn note_import(&mut self, module: &str) {
        let root = module.split('.').next().unwrap_or(module);
        self.model.uses_torch |= TORCH_ROOTS.contains(&root);
    }

    pub(super) fn bind_import(&mut self, bound: &str, qual: &str) {
        let value = Value::of(Kind::Qual(Rc::from(qual)));
        self.vars.insert(bound.to_string(), value);
    }

    pub(super) fn if_stmt(&mut self, node: &'a ast::StmtIf) -> bool {
        self.eval(&node.test);
        let before = self.vars.clone();
        let grad = self.grad;
        let mut joined: Option<Vars> = None;
        let mut any_falls = false;
        let mut has_else = false;
        let end = node.range.end();
        let falls = self.inside(
            CtxKind::Branch(Some(&node.test)),
            block_range(&node.body),
            |this| this.block(&node.body),
        );
        if falls {
            joined = Some(std::mem::take(&mut self.vars));
            any_falls = true;
        }
        for clause in &node.elif_else_clauses {
            self.vars.clone_from(&before);
            self.grad = grad;
            if let Some(test) = &clause.test {
                self.eval(test);
            } else {
                has_else = true;
            }
            let falls = self.inside(
                CtxKind::Branch(clause.test.as_ref()),
                block_range(&clause.body),
                |this| this.block(&clause.body),
            );
            if falls {
                let after = std::mem::take(&mut self.vars);
                joined = Some(match joined {
                    Some(other) => join_vars(other, after, end),
                    None => after,
                });
                any_falls = true;
            }
        }
        if self.grad != grad {
            self.grad = Grad::Maybe;
        }
        if has_else {
            self.vars = joined.unwrap_or(before);
            any_falls
        } else {
            self.vars = match joined {
                Some(vars) => join_vars(before, vars, end),
                None => before,
            };
            true
        }
    }

    pub(super) fn with_stmt(&mut self, node: &'a ast::StmtWith) -> bool {
        let grad = self.grad;
        for item in &node.items {
            let value = self.eval(&item.context_expr);
            let mut bound = value;
            if let Expr::Call(call) = &item.context_expr {
                let qual = self.qual_of(&call.func);
                let qual = qual.as_deref().unwrap_or_default();
                if torch::is_no_grad(qual) {
                    // `inference_mode(mode)` and `no_grad()`.
                    self.grad = match call.arguments.find_positional(0) {
                        None => Grad::Off,
                        Some(Expr::BooleanLiteral(flag)) => {
                            if flag.value {
                                Grad::Off
                            } else {
                                self.grad
                            }
                        }
                        Some(_) => Grad::Maybe,
                    };
                } else if qual == "torch.set_grad_enabled" {
                    self.grad = grad_flag(call);
                } else if qual == "torch.enable_grad" {
                    self.grad = Grad::On;
                } else if let Some("scale_loss") = attr_name(&call.func) {
                    // apex: the scaled loss stands for the loss.
                    if let Some(loss) = call.arguments.find_positional(0) {
                        bound = self.peek(loss);
                        bound.graph = Tri::Yes;
                        bound.kind = Kind::Tensor;
                    }
                } else if qual.contains("no_grad")
                    || attr_name(&call.func).is_some_and(|name| name.contains("no_grad"))
                {
                    self.grad = Grad::Off;
                } else if self.grad == Grad::On && self.may_decide(call, qual, node) {
                    self.grad = Grad::Maybe;
                }
            } else if let Some(place) = dotted_name(&item.context_expr) {
                // A stored context: `with ctx:`. Its name or what made it may be about gradients.
                let made = self
                    .model
                    .assigns
                    .iter()
                    .rev()
                    .find(|assign| assign.place == place);
                let made = made.and_then(|assign| assign.expr);
                if is_about_gradients(&place)
                    || made.is_some_and(|expr| is_about_gradients(self.model.text(expr)))
                {
                    self.grad = Grad::Maybe;
                }
            } else if is_about_gradients(self.model.text(&item.context_expr)) {
                // `with torch.no_grad() if evaluating else nullcontext():`
                self.grad = Grad::Maybe;
            }
            if let Some(target) = item.optional_vars.as_deref() {
                self.assign(target, bound, None, Bind::Other);
            }
        }
        let falls = self.inside(CtxKind::With(node), node.range, |this| {
            this.block(&node.body)
        });
        self.grad = grad;
        falls
    }

    /// Whether a context manager that is none of PyTorch's may turn gradients off or freeze a network: of the file's, what
    /// it says decides; of others, whether it is given a model or named for that. What runs backward inside needs gradients.
    fn may_decide(&self, call: &ExprCall, qual: &str, node: &ast::StmtWith) -> bool {
        const NAMES: &[&str] = &["grad", "freeze", "frozen", "eval", "infer"];
        let root = qual.split('.').next().unwrap_or(qual);
        if TORCH_ROOTS.contains(&root) || self.model.text(node).contains("backward(") {
            return false;
        }
        let Some(made) = self
            .model
            .calls
            .last()
            .filter(|made| std::ptr::eq(made.node, call))
        else {
            return false;
        };
        let defined = match (made.target, &made.callee.kind) {
            (Some(func), _) => Some(self.model.text(self.model.func(func).node)),
            (None, Kind::Class(class)) => Some(self.model.text(self.model.class(*class).node)),
            _ => None,
        };
        if let Some(text) = defined {
            return is_about_gradients(text);
        }
        let keywords = call.arguments.keywords.iter();
        made.args.iter().any(Value::is_model)
            || keywords
                .map(|each| self.peek(&each.value))
                .any(|value| value.is_model())
            || last_name(&call.func).is_some_and(|name| {
                let name = name.to_ascii_lowercase();
                NAMES.iter().any(|word| name.contains(word))
            })
    }

    pub(super) fn try_stmt(&mut self, node: &'a ast::StmtTry) -> bool {
        let before = self.vars.clone();
        let end = node.range.end();
        let mut falls = self.inside(CtxKind::Try, block_range(&node.body), |this| {
            this.block(&node.body)
        });
        if !node.orelse.is_empty() {
            falls &= self.block(&node.orelse);
        }
        let after = self.vars.clone();
        let mut joined = falls.then_some(after);
        for ExceptHandler::ExceptHandler(handler) in &node.handlers {
            self.vars.clone_from(&before);
            if let Some(type_) = &handler.type_ {
                self.eval(type_);
            }
            if let Some(name) = &handler.name {
                self.vars.insert(name.to_string(), Value::unknown());
            }
            let leaves = !self.inside(CtxKind::Handler, handler.range, |this| {
                this.block(&handler.body)
            });
            if !leaves {
                let vars = std::mem::take(&mut self.vars);
                joined = Some(match joined {
                    // An import that falls back to another keeps the first name.
                    Some(other) => join_vars(other, vars, end),
                    None => vars,
                });
            }
        }
        let falls = joined.is_some();
        self.vars = joined.unwrap_or(before);
        let finally = self.block(&node.finalbody);
        falls && finally
    }

    fn match_stmt(&mut self, node: &'a ast::StmtMatch) {
        self.eval(&node.subject);
        let before = self.vars.clone();
        let mut joined: Option<Vars> = None;
        for case in &node.cases {
            self.vars.clone_from(&before);
            if let Some(guard) = &case.guard {
                self.eval(guard);
            }
            let falls = self.inside(CtxKind::Branch(None), case.range, |this| {
                this.block(&case.body)
            });
            if falls {
                let after = std::mem::take(&mut self.vars);
                joined = Some(match joined {
                    Some(other) => join_vars(other, after, case.range.end()),
                    None => after,
                });
            }
        }
        self.vars = match joined {
            Some(vars) => join_vars(before, vars, node.range.end()),
            None => before,
        };
    }

    /// `torch.set_grad_enabled(False)` as a statement holds for what follows.
    pub(super) fn grad_statement(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr
            && self
                .qual_of(&call.func)
                .is_some_and(|qual| qual.as_ref() == "torch.set_grad_enabled")
        {
            self.grad = grad_flag(call);
        }
    }
}

fn is_about_gradients(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("grad") || text.contains("inference_mode")
}

pub(super) fn join_vars(mut a: Vars, b: Vars, at: TextSize) -> Vars {
    for (name, value) in b {
        match a.get_mut(&name) {
            Some(before) => {
                if *before != value {
                    *before = before.join(&value, def_id(&name, at));
                }
            }
            None => {
                a.insert(name, value);
            }
        }
    }
    a
}

pub(super) fn block_range(body: &[Stmt]) -> TextRange {
    match (body.first(), body.last()) {
        (Some(first), Some(last)) => TextRange::new(first.start(), last.end()),
        _ => TextRange::default(),
    }
}

pub(super) fn grad_flag(call: &ExprCall) -> Grad {
    match call.arguments.find_argument_value("mode", 0) {
        Some(Expr::BooleanLiteral(flag)) => {
            if flag.value {
                Grad::On
            } else {
                Grad::Off
            }
        }
        _ => Grad::Maybe,
    }
}
