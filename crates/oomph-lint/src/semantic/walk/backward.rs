//! `backward()` in all its forms, and the steps that go with it.

use oomph_python_source::ast::{Expr, ExprCall, Operator};
use oomph_python_source::{dotted_name, last_name, last_part, names_in};

use super::Walker;
use crate::semantic::Backward;
use crate::semantic::value::{Kind, Tri};

impl<'a> Walker<'a, '_> {
    /// Recognizes the forms of `backward()` and marks what they run through.
    pub(super) fn note_backward(
        &mut self,
        index: usize,
        call: &'a ExprCall,
        method: Option<&'a str>,
    ) {
        let (target, scaled) = match (&*call.func, method) {
            (Expr::Attribute(attribute), Some("backward" | "manual_backward")) => {
                let first = call.arguments.find_positional(0);
                let name = last_name(&attribute.value).unwrap_or_default();
                let wraps = method == Some("manual_backward")
                    || name.contains("accelerator")
                    || name.contains("fabric")
                    || name.contains("engine")
                    || name.contains("optimizer")
                    || name == "model";
                match (first, &*attribute.value) {
                    (Some(loss), _) if wraps => (loss, false),
                    (_, Expr::Call(inner)) => {
                        match (attr_name(&inner.func), inner.arguments.find_positional(0)) {
                            (Some("scale"), Some(loss)) => (loss, true),
                            (Some("super"), _) => return,
                            _ if matches!(&*inner.func, Expr::Name(name) if name.id.as_str() == "super") =>
                            {
                                return;
                            }
                            _ => (&*attribute.value, false),
                        }
                    }
                    (_, Expr::Name(name)) if name.id.as_str() == "self" => return,
                    (_, base) => (base, false),
                }
            }
            // timm and similar libraries: `loss_scaler(loss, optimizer, ...)` runs backward and step.
            (func, _) if last_name(func).is_some_and(|name| name.ends_with("loss_scaler")) => {
                match call.arguments.find_positional(0) {
                    Some(loss) => (loss, false),
                    None => return,
                }
            }
            _ => return,
        };
        // `torch.autograd.backward` and classes that define `backward`.
        if let Some(place) = dotted_name(target)
            && self
                .lookup(place.split('.').next().unwrap_or(&place))
                .is_some_and(|value| matches!(value.kind, Kind::Qual(_) | Kind::Class(_)))
        {
            return;
        }
        self.model.backwards.push(Backward {
            call: index,
            ctx: self.ctx,
            target,
            scaled,
        });
        for place in graph_places(target) {
            if let Some(mut value) = self.lookup(&place) {
                self.next_graph_defs.insert(value.def);
                if matches!(value.kind, Kind::Unknown | Kind::Tensor) {
                    value.kind = Kind::Tensor;
                    value.graph = Tri::Yes;
                    self.vars.insert(place, value);
                }
            }
        }
    }
}

/// The places whose graph a `backward()` on this expression runs through.
pub(super) fn graph_places(expr: &Expr) -> Vec<String> {
    match expr {
        Expr::Name(_) | Expr::Attribute(_) => dotted_name(expr).into_iter().collect(),
        Expr::BinOp(node) => match node.op {
            Operator::Add | Operator::Sub => {
                let mut places = graph_places(&node.left);
                places.extend(graph_places(&node.right));
                places
            }
            Operator::Div => graph_places(&node.left),
            Operator::Mult => names_in(expr)
                .into_iter()
                .filter(|place| {
                    let last = last_part(place);
                    last.to_ascii_lowercase().contains("loss")
                })
                .collect(),
            _ => Vec::new(),
        },
        Expr::Call(call) => match &*call.func {
            // `loss.mean().backward()`
            Expr::Attribute(attribute) if matches!(attribute.attr.as_str(), "mean" | "sum") => {
                dotted_name(&attribute.value).into_iter().collect()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

pub(super) fn attr_name(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Attribute(attribute) => Some(attribute.attr.as_str()),
        _ => None,
    }
}
