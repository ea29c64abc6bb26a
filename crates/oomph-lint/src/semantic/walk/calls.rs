//! Calls: what they call, and what they pass to functions of the file.

use std::rc::Rc;

use oomph_python_source::ast::{self, Expr, ExprCall};
use oomph_python_source::dotted_name;

use super::{Site, Walker};
use crate::semantic::value::{DefId, Kind, Tri, Value};
use crate::semantic::{Call, FuncId, Grad, torch};

impl<'a> Walker<'a, '_> {
    pub(super) fn eval_call(&mut self, call: &'a ExprCall) -> Value {
        let mut method = None;
        let mut recv = Value::unknown();
        let callee = match &*call.func {
            Expr::Attribute(attribute) => {
                method = Some(attribute.attr.as_str());
                recv = self.eval(&attribute.value);
                self.callee_attribute(&call.func, &recv, attribute.attr.as_str())
            }
            Expr::Name(name) => {
                let value = self.lookup(name.id.as_str()).unwrap_or_default();
                if name.id.as_str() == "self" {
                    self.eval(&call.func)
                } else {
                    self.with_hint(value, name.id.as_str())
                }
            }
            other => self.eval(other),
        };
        let args: Vec<Value> = call
            .arguments
            .args
            .iter()
            .map(|arg| self.eval(arg))
            .collect();
        let kwargs: Vec<(Option<&'a str>, Value)> = call
            .arguments
            .keywords
            .iter()
            .map(|keyword| {
                let name = keyword.arg.as_ref().map(ast::Identifier::as_str);
                (name, self.eval(&keyword.value))
            })
            .collect();
        let qual = match &callee.kind {
            Kind::Qual(qual) => Some(Rc::clone(qual)),
            _ => None,
        };
        let target = self.target_of(&callee);
        if let Some(func) = target {
            self.note_call(func, &callee, &args, &kwargs);
        } else if let Some(name) = method {
            self.note_call_by_name(name, &recv);
        }
        let result = self.result_of(call, &callee, &recv, method, &args, &kwargs, target);
        // A module moves in place, whether or not the result is bound.
        if recv.is_model()
            && matches!(method, Some("cuda" | "cpu" | "to"))
            && let Expr::Attribute(attribute) = &*call.func
            && let Some(place) = dotted_name(&attribute.value)
            && let Some(value) = self.vars.get_mut(&place)
        {
            value.device = result.device;
        }
        let index = self.model.calls.len();
        self.model.calls.push(Call {
            node: call,
            ctx: self.ctx,
            stmt: self.stmt,
            qual,
            method,
            recv,
            callee,
            args,
            target,
            grad: self.grad,
            result: result.clone(),
        });
        self.note_backward(index, call, method);
        // `stack.enter_context(torch.no_grad())` holds until the stack's `with` ends.
        if method == Some("enter_context")
            && let Some(Expr::Call(context)) = call.arguments.find_positional(0)
            && self
                .qual_of(&context.func)
                .is_some_and(|qual| torch::is_no_grad(&qual))
        {
            self.grad = Grad::Off;
        }
        result
    }

    /// The value of `recv.attr` in front of a call. Looking it up does not let a method escape.
    pub(super) fn callee_attribute(&mut self, func: &'a Expr, recv: &Value, attr: &str) -> Value {
        if let Kind::Qual(qual) = &recv.kind {
            return Value::of(Kind::Qual(Rc::from(format!("{qual}.{attr}").as_str())));
        }
        if let Some(place) = dotted_name(func) {
            if let Some(value) = self.lookup(&place) {
                return self.with_hint(value, &place);
            }
            if let Some(class) = recv.class
                && let Some(value) = self.class_attr(class, attr, 0)
            {
                return value;
            }
            return self.with_hint(Value::unknown(), &place);
        }
        if let Some(class) = recv.class
            && let Some(method) = self.method_of(class, attr, 0)
        {
            return Value::of(Kind::Func(method));
        }
        Value::unknown()
    }

    pub(super) fn target_of(&self, callee: &Value) -> Option<FuncId> {
        match callee.kind {
            Kind::Func(func) => Some(func),
            Kind::Class(class) => self.method_of(class, "__init__", 0),
            Kind::Model(_) => callee
                .class
                .and_then(|class| self.method_of(class, "forward", 0)),
            _ => None,
        }
    }

    /// `model.inference(x)` of an object whose class is not known may be any method of that name: the
    /// call counts as a place that they are called from, and says nothing about their parameters.
    pub(super) fn note_call_by_name(&mut self, name: &str, recv: &Value) {
        // Names that modules and optimizers have themselves say nothing about methods of this file.
        if matches!(recv.kind, Kind::Qual(_) | Kind::Tensor | Kind::Plain)
            || matches!(name, "eval" | "train" | "forward" | "to" | "step")
        {
            return;
        }
        let site = Site {
            caller: self.func,
            grad: self.grad,
        };
        for class in &self.model.classes {
            for method in &class.methods {
                if self.defs.funcs[method.index()].name.as_str() == name {
                    self.sites[method.index()].push(site);
                }
            }
        }
    }

    /// Remembers what this call passes to a function of the file.
    pub(super) fn note_call(
        &mut self,
        func: FuncId,
        callee: &Value,
        args: &[Value],
        kwargs: &[(Option<&'a str>, Value)],
    ) {
        self.sites[func.index()].push(Site {
            caller: self.func,
            grad: self.grad,
        });
        let def = self.defs.funcs[func.index()];
        let names: Vec<&str> = def
            .parameters
            .iter_non_variadic_params()
            .map(|parameter| parameter.parameter.name.as_str())
            .collect();
        let bound = names
            .first()
            .is_some_and(|name| matches!(*name, "self" | "cls"))
            || matches!(callee.kind, Kind::Class(_) | Kind::Model(_));
        let shift = usize::from(bound);
        let slots = &mut self.next_params[func.index()];
        slots.resize(names.len(), None);
        let positional = args
            .iter()
            .enumerate()
            .map(|(index, value)| (index + shift, value));
        let keywords = kwargs.iter().filter_map(|(name, value)| {
            let position = names.iter().position(|each| Some(*each) == *name)?;
            Some((position, value))
        });
        for (index, value) in positional.chain(keywords) {
            let Some(slot) = slots.get_mut(index) else {
                continue;
            };
            let mut value = value.clone();
            value.def = DefId::default();
            *slot = Some(match slot.take() {
                None => value,
                Some(before) if matches!(before.kind, Kind::Unknown | Kind::NoneLiteral) => Value {
                    graph: if before.graph == value.graph {
                        before.graph
                    } else {
                        Tri::Unknown
                    },
                    ..value
                },
                Some(before) if matches!(value.kind, Kind::Unknown | Kind::NoneLiteral) => Value {
                    graph: if before.graph == value.graph {
                        before.graph
                    } else {
                        Tri::Unknown
                    },
                    ..before
                },
                Some(before) => before.join(&value, DefId::default()),
            });
        }
    }
}
