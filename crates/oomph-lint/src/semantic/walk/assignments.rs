//! Assignments.

use std::hash::{Hash, Hasher};

use oomph_python_source::ast::{self, Expr, Operator};
use oomph_python_source::{Ranged, TextSize, dotted_name};
use rustc_hash::FxHasher;

use super::Walker;
use super::expressions::binary;
use crate::semantic::value::{DefId, Kind, Tri, Value};
use crate::semantic::{Assign, Bind};

impl<'a> Walker<'a, '_> {
    pub(super) fn assign(
        &mut self,
        target: &'a Expr,
        value: Value,
        expr: Option<&'a Expr>,
        bind: Bind,
    ) {
        match target {
            Expr::Name(_) | Expr::Attribute(_) => {
                let Some(place) = dotted_name(target) else {
                    if let Expr::Attribute(attribute) = target {
                        self.eval(&attribute.value);
                    }
                    return;
                };
                let mut value = value;
                value.def = def_id(&place, target.range().start());
                if self.learned.graph_defs.contains(&value.def)
                    && matches!(value.kind, Kind::Unknown | Kind::Tensor)
                    && value.graph != Tri::No
                {
                    value.kind = Kind::Tensor;
                    value.graph = Tri::Yes;
                }
                self.record_assign(place.clone(), target, expr, value.clone(), bind);
                if let Some(attr) = place.strip_prefix("self.") {
                    self.note_attr(attr, &value);
                }
                self.vars.insert(place, value);
            }
            Expr::Subscript(subscript) => {
                self.eval(&subscript.value);
                self.eval(&subscript.slice);
                if let Some(base) = dotted_name(&subscript.value) {
                    self.record_assign(format!("{base}[]"), target, expr, value, bind);
                }
            }
            Expr::Tuple(ast::ExprTuple { elts, .. }) | Expr::List(ast::ExprList { elts, .. }) => {
                let literal = match expr {
                    Some(Expr::Tuple(tuple)) if tuple.elts.len() == elts.len() => Some(&tuple.elts),
                    _ => None,
                };
                // A criterion that returns more than the loss is the project's own: the rest is anything.
                let of_criterion = matches!(expr, Some(Expr::Call(call))
                    if matches!(self.peek_hinted(&call.func).kind, Kind::Criterion { .. }));
                for (index, elt) in elts.iter().enumerate() {
                    let part = if of_criterion && index > 0 {
                        Value::unknown()
                    } else {
                        unpacked(&value, index, elts.len())
                    };
                    if let Some(exprs) = literal {
                        self.assign(elt, part, Some(&exprs[index]), Bind::Set);
                    } else {
                        let bind = if bind == Bind::Other {
                            Bind::Other
                        } else {
                            Bind::Unpack
                        };
                        self.assign(elt, part, expr, bind);
                    }
                }
            }
            Expr::Starred(starred) => {
                self.assign(&starred.value, Value::of(Kind::Collection), None, bind);
            }
            _ => {}
        }
    }

    pub(super) fn record_assign(
        &mut self,
        place: String,
        target: &'a Expr,
        expr: Option<&'a Expr>,
        value: Value,
        bind: Bind,
    ) {
        self.model.assigns.push(Assign {
            place,
            target,
            expr,
            value,
            bind,
            ctx: self.ctx,
            stmt: self.stmt,
            grad: self.grad,
        });
    }

    pub(super) fn note_attr(&mut self, attr: &str, value: &Value) {
        let Some(class) = self.class else { return };
        let attrs = &mut self.learned.class_attrs[class.index()];
        let informative = !matches!(value.kind, Kind::Unknown | Kind::NoneLiteral);
        let mut value = value.clone();
        value.def = DefId::default();
        match attrs.get(attr) {
            Some(before)
                if before.kind != Kind::Unknown && informative && before.kind != value.kind =>
            {
                let joined = before.join(&value, DefId::default());
                attrs.insert(attr.to_string(), joined);
            }
            _ if informative => {
                attrs.insert(attr.to_string(), value);
            }
            _ => {}
        }
    }

    pub(super) fn aug_assign(&mut self, node: &'a ast::StmtAugAssign) {
        let value = self.eval(&node.value);
        let before = self.eval(&node.target);
        let bind = if node.op == Operator::Add {
            Bind::Add
        } else {
            Bind::Augment
        };
        let after = if before.kind == Kind::Collection {
            before
        } else {
            binary(&before, &value)
        };
        // The recorded value is the operand: what rules about accumulation look at.
        match dotted_name(&node.target) {
            Some(place) => {
                let mut after = after;
                after.def = def_id(&place, node.target.range().start());
                if self.learned.graph_defs.contains(&after.def) && after.kind == Kind::Unknown {
                    after.kind = Kind::Tensor;
                    after.graph = Tri::Yes;
                }
                self.record_assign(place.clone(), &node.target, Some(&node.value), value, bind);
                self.vars.insert(place, after);
            }
            None => {
                if let Expr::Subscript(subscript) = &*node.target
                    && let Some(base) = dotted_name(&subscript.value)
                {
                    let place = format!("{base}[]");
                    self.record_assign(place, &node.target, Some(&node.value), value, bind);
                }
            }
        }
    }
}

pub(super) fn def_id(place: &str, offset: TextSize) -> DefId {
    let mut hasher = FxHasher::default();
    place.hash(&mut hasher);
    // The low half is a hash of the name: two names that join at one place stay apart.
    DefId((u64::from(offset.to_u32()) + 1) << 32 | (hasher.finish() & 0xffff_ffff))
}

/// One part of an unpacked value.
pub(super) fn unpacked(value: &Value, index: usize, of: usize) -> Value {
    match &value.kind {
        Kind::Tuple(values) if values.len() == of => values[index].clone(),
        Kind::Tensor => Value {
            def: DefId::default(),
            ..value.clone()
        },
        _ => Value::unknown(),
    }
}
