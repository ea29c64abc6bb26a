//! Expressions other than calls.

use std::rc::Rc;

use oomph_python_source::ast::visitor::{Visitor, walk_expr};
use oomph_python_source::ast::{self, Expr};
use oomph_python_source::{TextRange, dotted_name};

use super::Walker;
use super::loops::element_of;
use crate::semantic::value::{DefId, Device, Kind, ModelKind, Tri, Value};
use crate::semantic::{Bind, CtxKind};

impl<'a> Walker<'a, '_> {
    pub(super) fn eval(&mut self, expr: &'a Expr) -> Value {
        match expr {
            Expr::Name(name) => {
                let place = name.id.as_str();
                if place == "self"
                    && let Some(class) = self.class
                {
                    let kind = if self.model.classes[class.index()].is_module {
                        Kind::Model(ModelKind::Plain)
                    } else {
                        Kind::Instance
                    };
                    let mut value = Value::of(kind);
                    value.class = Some(class);
                    return value;
                }
                let value = self.lookup(place).unwrap_or_default();
                if let Kind::Func(func) = value.kind {
                    // Called functions are looked up elsewhere: this one is passed on.
                    self.escaped.insert(func);
                }
                self.with_hint(value, place)
            }
            Expr::Attribute(attribute) => self.eval_attribute(expr, attribute),
            Expr::Call(call) => self.eval_call(call),
            Expr::BinOp(node) => {
                let left = self.eval(&node.left);
                let right = self.eval(&node.right);
                binary(&left, &right)
            }
            Expr::UnaryOp(node) => {
                let value = self.eval(&node.operand);
                if node.op == ast::UnaryOp::Not || !value.is_tensor() {
                    return Value::plain();
                }
                value
            }
            Expr::Compare(node) => {
                let mut tensor = self.eval(&node.left).is_tensor();
                for each in &node.comparators {
                    tensor |= self.eval(each).is_tensor();
                }
                if tensor {
                    Value::tensor(Tri::No, Device::Unknown)
                } else {
                    Value::plain()
                }
            }
            Expr::BoolOp(node) => {
                let mut joined: Option<Value> = None;
                for each in &node.values {
                    let value = self.eval(each);
                    joined = Some(match joined {
                        Some(before) => before.join(&value, DefId::default()),
                        None => value,
                    });
                }
                joined.unwrap_or_default()
            }
            Expr::If(node) => {
                self.eval(&node.test);
                let body = self.eval(&node.body);
                let orelse = self.eval(&node.orelse);
                let mut value = body.join(&orelse, DefId::default());
                // `"cuda" if torch.cuda.is_available() else "cpu"`: the GPU is what is meant.
                if body.device == Device::Gpu || orelse.device == Device::Gpu {
                    value.device = Device::Gpu;
                }
                value
            }
            Expr::Named(node) => {
                let value = self.eval(&node.value);
                self.assign(&node.target, value.clone(), Some(&node.value), Bind::Set);
                value
            }
            Expr::Lambda(node) => {
                let saved = self.vars.clone();
                if let Some(parameters) = &node.parameters {
                    for parameter in parameters {
                        let name = parameter.name().to_string();
                        self.vars.insert(name, Value::unknown());
                    }
                }
                self.inside(CtxKind::Lambda, node.range, |this| this.eval(&node.body));
                self.vars = saved;
                Value::unknown()
            }
            Expr::Dict(node) => {
                let mut graph = Tri::No;
                for item in &node.items {
                    if let Some(key) = &item.key {
                        self.eval(key);
                    }
                    graph = graph.or(self.eval(&item.value).graph);
                }
                collection(graph)
            }
            Expr::List(ast::ExprList { elts, .. }) | Expr::Set(ast::ExprSet { elts, .. }) => {
                let mut graph = Tri::No;
                for elt in elts {
                    graph = graph.or(self.eval(elt).graph);
                }
                collection(graph)
            }
            Expr::Tuple(node) => {
                let values: Rc<[Value]> = node.elts.iter().map(|elt| self.eval(elt)).collect();
                let graph = values
                    .iter()
                    .fold(Tri::No, |graph, value| graph.or(value.graph));
                let mut value = Value::of(Kind::Tuple(values));
                value.graph = graph;
                value
            }
            Expr::ListComp(ast::ExprListComp {
                elt,
                generators,
                range,
                ..
            })
            | Expr::SetComp(ast::ExprSetComp {
                elt,
                generators,
                range,
                ..
            })
            | Expr::Generator(ast::ExprGenerator {
                elt,
                generators,
                range,
                ..
            }) => self.comprehension(generators, *range, &[&**elt]),
            Expr::DictComp(node) => {
                let elts: Vec<&'a Expr> = node
                    .key
                    .as_deref()
                    .into_iter()
                    .chain([&*node.value])
                    .collect();
                self.comprehension(&node.generators, node.range, &elts)
            }
            Expr::Subscript(node) => {
                let base = self.eval(&node.value);
                self.eval(&node.slice);
                match &base.kind {
                    Kind::Tuple(values) => constant_index(&node.slice)
                        .and_then(|index| values.get(index).cloned())
                        .unwrap_or_default(),
                    Kind::Tensor => Value {
                        softmax: false,
                        // `model(x)[0]` is an output; a slice of an output may be small.
                        model_output: base.model_output && constant_index(&node.slice).is_some(),
                        ..base
                    },
                    Kind::Unknown | Kind::Collection if is_of_own_models(node) => Value {
                        weak: true,
                        ..Value::of(Kind::Model(ModelKind::Plain))
                    },
                    Kind::Collection => {
                        let mut value = Value::unknown();
                        if let Some(place) = dotted_name(expr) {
                            value = self.lookup(&place).unwrap_or_default();
                        }
                        value
                    }
                    _ => Value::unknown(),
                }
            }
            Expr::Slice(node) => {
                for each in [&node.lower, &node.upper, &node.step].into_iter().flatten() {
                    self.eval(each);
                }
                Value::plain()
            }
            Expr::Starred(node) => self.eval(&node.value),
            Expr::Await(node) => self.eval(&node.value),
            Expr::YieldFrom(node) => self.eval(&node.value),
            Expr::Yield(node) => {
                if let Some(value) = &node.value {
                    self.eval(value);
                }
                Value::unknown()
            }
            Expr::StringLiteral(node) => {
                let mut value = Value::plain();
                let text = node.value.to_str();
                if text.starts_with("cuda") {
                    value.device = Device::Gpu;
                } else if text == "cpu" {
                    value.device = Device::Cpu;
                }
                value
            }
            Expr::FString(_) | Expr::TString(_) => {
                let mut inner = Interpolations(Vec::new());
                walk_expr(&mut inner, expr);
                for each in inner.0 {
                    self.eval(each);
                }
                let mut value = Value::plain();
                let text = self.model.text(expr);
                if text.starts_with("f\"cuda") || text.starts_with("f'cuda") {
                    value.device = Device::Gpu;
                }
                value
            }
            Expr::NoneLiteral(_) => Value::of(Kind::NoneLiteral),
            Expr::BytesLiteral(_)
            | Expr::NumberLiteral(_)
            | Expr::BooleanLiteral(_)
            | Expr::EllipsisLiteral(_) => Value::plain(),
            Expr::IpyEscapeCommand(_) => Value::unknown(),
        }
    }

    pub(super) fn comprehension(
        &mut self,
        generators: &'a [ast::Comprehension],
        range: TextRange,
        elts: &[&'a Expr],
    ) -> Value {
        let saved = self.vars.clone();
        let graph = self.inside(CtxKind::Comprehension, range, |this| {
            for generator in generators {
                let iter = this.eval(&generator.iter);
                this.assign(&generator.target, element_of(&iter), None, Bind::Other);
                for test in &generator.ifs {
                    this.eval(test);
                }
            }
            elts.iter()
                .fold(Tri::No, |graph, elt| graph.or(this.eval(elt).graph))
        });
        self.vars = saved;
        collection(graph)
    }

    pub(super) fn eval_attribute(
        &mut self,
        expr: &'a Expr,
        attribute: &'a ast::ExprAttribute,
    ) -> Value {
        let base = self.eval(&attribute.value);
        let attr = attribute.attr.as_str();
        if let Some(place) = dotted_name(expr) {
            if let Some(value) = self.lookup(&place) {
                if let Kind::Func(func) = value.kind {
                    self.escaped.insert(func);
                }
                return self.with_hint(value, &place);
            }
            if let Kind::Qual(qual) = &base.kind {
                return Value::of(Kind::Qual(Rc::from(format!("{qual}.{attr}").as_str())));
            }
            if matches!(base.kind, Kind::Unknown | Kind::Instance | Kind::Model(_)) {
                if attr == "module" && base.is_model() {
                    return base;
                }
                if let Some(class) = base.class
                    && let Some(value) = self.class_attr(class, attr, 0)
                {
                    return value;
                }
                return self.with_hint(Value::unknown(), &place);
            }
        }
        match base.kind {
            Kind::Tensor => match attr {
                "data" | "grad" => Value {
                    graph: Tri::No,
                    def: DefId::default(),
                    ..base
                },
                "shape" | "dtype" | "ndim" | "is_cuda" | "requires_grad" | "grad_fn" => {
                    Value::plain()
                }
                "device" => Value::of(Kind::Device),
                _ => Value {
                    def: DefId::default(),
                    softmax: false,
                    ..base
                },
            },
            _ => Value::unknown(),
        }
    }
}

pub(super) struct Interpolations<'a>(Vec<&'a Expr>);

impl<'a> Visitor<'a> for Interpolations<'a> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        self.0.push(expr);
    }
}

pub(super) fn collection(graph: Tri) -> Value {
    let mut value = Value::of(Kind::Collection);
    value.graph = graph;
    value
}

pub(super) fn constant_index(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::NumberLiteral(number) => match &number.value {
            ast::Number::Int(int) => int.as_usize(),
            _ => None,
        },
        _ => None,
    }
}

/// What an arithmetic operation on two values is.
pub(super) fn binary(left: &Value, right: &Value) -> Value {
    let tensor = left.is_tensor() || right.is_tensor();
    if tensor {
        let device = if left.device == Device::Unknown {
            right.device
        } else {
            left.device
        };
        return Value::tensor(left.graph.or(right.graph), device);
    }
    match (&left.kind, &right.kind) {
        (Kind::Plain, Kind::Plain) => Value::plain(),
        (Kind::Collection, Kind::Collection) => collection(left.graph.or(right.graph)),
        _ => Value::unknown(),
    }
}

/// `self.models["encoder"]`
fn is_of_own_models(node: &ast::ExprSubscript) -> bool {
    node.slice.is_string_literal_expr()
        && matches!(
            dotted_name(&node.value).as_deref(),
            Some("self.models" | "self.nets" | "self.networks")
        )
}
