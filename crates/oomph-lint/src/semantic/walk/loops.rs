//! Loops: what they iterate over, and which of them train.

use std::rc::Rc;

use oomph_python_source::ast::{self, Expr};
use oomph_python_source::{dotted_name, last_name, names_in};
use rustc_hash::FxHashSet;

use super::{Vars, Walker};
use crate::semantic::value::{DefId, Device, Kind, Tri, Value};
use crate::semantic::{Bind, CtxId, CtxKind, FuncId, Loop};

impl<'a> Walker<'a, '_> {
    pub(super) fn for_stmt(&mut self, node: &'a ast::StmtFor) {
        let iter = self.eval(&node.iter);
        let element = element_of_loop(&node.iter, &iter);
        let data = self.iterates_data(&node.iter, &iter);
        let index = self.model.loops.len();
        let first_call = self.model.calls.len();
        let before = self.vars.clone();
        let grad = self.grad;
        self.inside(CtxKind::For, node.range, |this| {
            this.assign(&node.target, element, None, Bind::Other);
            let ctx = this.ctx;
            this.model.loops.push(Loop {
                ctx,
                range: node.range,
                body: &node.body,
                data,
                trains: false,
                contains_backward: false,
                grad,
            });
            this.block(&node.body);
        });
        if !data && self.moves_batches(node, first_call) {
            self.model.loops[index].data = true;
        }
        self.grad = grad;
        self.block(&node.orelse);
        self.keep_missing(before);
    }

    /// Whether a loop moves what it iterates over to a device and runs a model on it: those are batches,
    /// whatever the name of what yields them.
    fn moves_batches(&self, node: &'a ast::StmtFor, first_call: usize) -> bool {
        let targets = names_in(&node.target);
        let of_target = |place: &str| {
            let root = place.split('.').next().unwrap_or(place);
            targets.iter().any(|each| each == root)
        };
        let calls = self.model.calls.get(first_call..).unwrap_or_default();
        let moves = calls.iter().any(|call| {
            matches!(call.method, Some("to" | "cuda"))
                && !call.recv.is_model()
                && call.recv_expr().is_some_and(|expr| {
                    let base = match expr {
                        Expr::Subscript(item) => &item.value,
                        other => other,
                    };
                    dotted_name(base).is_some_and(|place| of_target(&place))
                })
        });
        moves && calls.iter().any(|call| call.callee.is_model())
    }

    pub(super) fn while_stmt(&mut self, node: &'a ast::StmtWhile) {
        self.eval(&node.test);
        let before = self.vars.clone();
        let grad = self.grad;
        self.inside(CtxKind::While, node.range, |this| {
            let ctx = this.ctx;
            this.model.loops.push(Loop {
                ctx,
                range: node.range,
                body: &node.body,
                data: false,
                trains: false,
                contains_backward: false,
                grad,
            });
            this.block(&node.body);
        });
        self.grad = grad;
        self.block(&node.orelse);
        self.keep_missing(before);
    }

    /// Whether a `for` iterates over batches.
    pub(super) fn iterates_data(&self, expr: &Expr, value: &Value) -> bool {
        if value.kind == Kind::Loader {
            return true;
        }
        match expr {
            Expr::Call(call) => {
                let name = last_name(&call.func).unwrap_or_default();
                matches!(
                    name,
                    "enumerate"
                        | "tqdm"
                        | "zip"
                        | "trange"
                        | "log_every"
                        | "iter"
                        | "track"
                        | "islice"
                        | "progress_bar"
                ) && call
                    .arguments
                    .args
                    .iter()
                    .any(|arg| self.iterates_data(arg, &self.peek_hinted(arg)))
            }
            Expr::Attribute(_) | Expr::Name(_) => self.peek_hinted(expr).kind == Kind::Loader,
            Expr::Subscript(subscript) => {
                let base = last_name(&subscript.value).unwrap_or_default();
                base.to_ascii_lowercase().contains("loader")
            }
            _ => false,
        }
    }

    /// After a loop: names that the body left by `continue` only are as before.
    pub(super) fn keep_missing(&mut self, before: Vars) {
        for (name, value) in before {
            self.vars.entry(name).or_insert(value);
        }
    }

    /// Decides which loops train: the innermost loop around a `backward()`, or around a call of a
    /// function of the file whose `backward()` is in no loop of that function.
    pub(super) fn mark_loops(&mut self) {
        let mut in_own_loop: FxHashSet<FuncId> = FxHashSet::default();
        let mut sites: Vec<CtxId> = self.model.backwards.iter().map(|each| each.ctx).collect();
        for each in &self.model.backwards {
            if let Some(func) = self.model.ctx(each.ctx).func
                && self.model.loops_around(each.ctx).next().is_some()
            {
                in_own_loop.insert(func);
            }
        }
        let mut contains: Vec<CtxId> = sites.clone();
        for call in &self.model.calls {
            if let Some(target) = call.target
                && self.model.func(target).has_backward
            {
                contains.push(call.ctx);
                if !in_own_loop.contains(&target) && self.model.func(target).has_backward {
                    sites.push(call.ctx);
                }
            }
        }
        let mut trains: FxHashSet<CtxId> = FxHashSet::default();
        for site in sites {
            if let Some(inner) = self.model.loops_around(site).next() {
                trains.insert(inner.ctx);
            }
        }
        let mut holds: FxHashSet<CtxId> = FxHashSet::default();
        for site in contains {
            for each in self.model.loops_around(site) {
                holds.insert(each.ctx);
            }
        }
        for each in &mut self.model.loops {
            each.trains = trains.contains(&each.ctx);
            each.contains_backward = holds.contains(&each.ctx);
        }
    }
}

/// What a `for` over an expression yields: `losses.items()` of a dictionary that holds graphs yields
/// them.
fn element_of_loop(expr: &Expr, value: &Value) -> Value {
    if let Expr::Call(call) = expr
        && value.kind == Kind::Collection
        && value.graph == Tri::Yes
        && call.arguments.is_empty()
    {
        let tensor = Value::tensor(Tri::Yes, value.device);
        match last_name(&call.func) {
            Some("items") => {
                let pair: Rc<[Value]> = Rc::from([Value::plain(), tensor]);
                return Value::of(Kind::Tuple(pair));
            }
            Some("values") => return tensor,
            _ => {}
        }
    }
    element_of(value)
}

/// What iterating over a value yields.
pub(super) fn element_of(value: &Value) -> Value {
    match &value.kind {
        // A batch: data, without a graph.
        Kind::Loader => Value::tensor(Tri::No, Device::Unknown),
        Kind::Tensor => Value {
            def: DefId::default(),
            ..value.clone()
        },
        _ => Value::unknown(),
    }
}
