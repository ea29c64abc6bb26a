//! Functions and classes: where they are defined, and their bodies.

use std::rc::Rc;

use oomph_python_source::ast::{Expr, Stmt, StmtClassDef, StmtFunctionDef};
use oomph_python_source::{Ranged, TextRange, TextSize, last_name, statements_in};
use rustc_hash::FxHashMap;

use super::statements::grad_flag;
use super::{Deferred, Frame, Vars, Walker};
use crate::semantic::value::{Kind, Value};
use crate::semantic::{ClassId, CtxKind, FuncId, Grad, torch};

/// The functions and classes of a file, found before anything is walked.
#[derive(Default)]
pub(super) struct Defs<'a> {
    pub(super) funcs: Vec<&'a StmtFunctionDef>,
    pub(super) classes: Vec<&'a StmtClassDef>,
    func_at: FxHashMap<TextSize, FuncId>,
    class_at: FxHashMap<TextSize, ClassId>,
}

impl<'a> Defs<'a> {
    pub(super) fn of(body: &'a [Stmt]) -> Self {
        let mut defs = Self::default();
        for stmt in statements_in(body) {
            match stmt {
                Stmt::FunctionDef(def) => {
                    let id = FuncId(defs.funcs.len() as u32);
                    defs.funcs.push(def);
                    defs.func_at.insert(def.range.start(), id);
                }
                Stmt::ClassDef(def) => {
                    let id = ClassId(defs.classes.len() as u32);
                    defs.classes.push(def);
                    defs.class_at.insert(def.range.start(), id);
                }
                _ => {}
            }
        }
        defs
    }
}

impl<'a> Walker<'a, '_> {
    pub(super) fn function_def(&mut self, def: &'a StmtFunctionDef) {
        let Some(&func) = self.defs.func_at.get(&def.range.start()) else {
            return;
        };
        let mut grad = Grad::On;
        for decorator in &def.decorator_list {
            self.eval(&decorator.expression);
            let (callee, call) = match &decorator.expression {
                Expr::Call(call) => (&*call.func, Some(call)),
                other => (other, None),
            };
            let qual = self.qual_of(callee).unwrap_or_default();
            if torch::is_no_grad(&qual) {
                grad = Grad::Off;
            } else if qual.as_ref() == "torch.set_grad_enabled" {
                grad = call.map_or(Grad::On, grad_flag);
            } else if last_name(callee).is_some_and(|name| name.contains("no_grad")) {
                grad = Grad::Off;
            }
        }
        for parameter in def.parameters.iter_non_variadic_params() {
            if let Some(default) = &parameter.default {
                self.eval(default);
            }
        }
        let class = if self.in_class_body() {
            self.class
        } else {
            None
        };
        if let Some(class) = class {
            let info = &mut self.model.classes[class.index()];
            info.methods.push(func);
            if info.is_lightning && is_lightning_eval(def.name.as_str()) {
                grad = Grad::Off;
            }
        }
        let method_of = class.or(if self.func.is_some() {
            self.class
        } else {
            None
        });
        self.pending.push(Deferred {
            func,
            class: method_of,
            // Replaced when the enclosing block ends.
            frame: Rc::new(Frame {
                vars: Vars::default(),
                parent: None,
            }),
            outer: self.ctx,
            grad,
        });
        if class.is_none() {
            self.vars
                .insert(def.name.to_string(), Value::of(Kind::Func(func)));
        }
    }

    pub(super) fn function_body(&mut self, next: &Deferred) {
        let def = self.defs.funcs[next.func.index()];
        self.vars = Vars::default();
        self.frame = Some(Rc::clone(&next.frame));
        self.func = Some(next.func);
        self.class = next.class;
        self.grad = if next.grad == Grad::On && self.learned.covered[next.func.index()] {
            Grad::CallerOff
        } else {
            next.grad
        };
        self.ctx = self.push_ctx(
            Some(next.outer),
            CtxKind::Function,
            TextRange::new(
                def.body.first().map_or(def.range.start(), Ranged::start),
                def.range.end(),
            ),
        );
        self.model.funcs[next.func.index()].body = Some(self.ctx);
        self.model.funcs[next.func.index()].class = next.class;
        for (index, parameter) in def.parameters.iter_non_variadic_params().enumerate() {
            let name = parameter.parameter.name.as_str();
            if index == 0 && next.class.is_some() && matches!(name, "self" | "cls") {
                continue;
            }
            let value = self.learned.params[next.func.index()]
                .get(index)
                .cloned()
                .flatten()
                .unwrap_or_default();
            self.vars.insert(name.to_string(), value);
        }
        for parameter in [&def.parameters.vararg, &def.parameters.kwarg]
            .into_iter()
            .flatten()
        {
            self.vars
                .insert(parameter.name.to_string(), Value::unknown());
        }
        self.block(&def.body);
        let frame = Rc::new(Frame {
            vars: std::mem::take(&mut self.vars),
            parent: Some(Rc::clone(&next.frame)),
        });
        self.release(&frame, Grad::On);
    }

    pub(super) fn in_class_body(&self) -> bool {
        matches!(self.model.ctx(self.ctx).kind, CtxKind::Class)
    }

    pub(super) fn class_def(&mut self, def: &'a StmtClassDef) {
        let Some(&id) = self.defs.class_at.get(&def.range.start()) else {
            return;
        };
        for decorator in &def.decorator_list {
            self.eval(&decorator.expression);
        }
        if let Some(arguments) = &def.arguments {
            for base in &arguments.args {
                let value = self.eval(base);
                let name = last_name(base).unwrap_or_default();
                let info = &mut self.model.classes[id.index()];
                match value.kind {
                    Kind::Qual(qual) => {
                        info.is_module |= torch::is_module_base(&qual);
                        info.is_dataset |= torch::is_dataset_base(&qual);
                        info.is_lightning |= torch::is_lightning_base(name);
                    }
                    Kind::Class(base) => {
                        info.bases.push(base);
                        let base = &self.model.classes[base.index()];
                        let facts = (base.is_module, base.is_dataset, base.is_lightning);
                        let info = &mut self.model.classes[id.index()];
                        info.is_module |= facts.0;
                        info.is_dataset |= facts.1;
                        info.is_lightning |= facts.2;
                    }
                    _ => {}
                }
            }
        }
        let is_lightning_like = def.body.iter().any(
            |stmt| matches!(stmt, Stmt::FunctionDef(def) if def.name.as_str() == "training_step"),
        );
        self.model.classes[id.index()].is_lightning |= is_lightning_like;
        let outer_class = self.class.replace(id);
        let outer_vars = self.vars.clone();
        self.inside(CtxKind::Class, def.range, |this| this.block(&def.body));
        self.vars = outer_vars;
        self.class = outer_class;
        self.vars
            .insert(def.name.to_string(), Value::of(Kind::Class(id)));
    }
}

pub(super) fn is_lightning_eval(name: &str) -> bool {
    matches!(
        name,
        "validation_step"
            | "test_step"
            | "predict_step"
            | "on_validation_epoch_end"
            | "validation_epoch_end"
            | "test_epoch_end"
            | "on_test_epoch_end"
            | "on_validation_batch_end"
            | "on_test_batch_end"
            | "validation_step_end"
            | "test_step_end"
    )
}
