//! What the methods that are called on a name say about it.
//!
//! Nothing but a module has `eval()` beside `load_state_dict()` or `parameters()`, or is called itself, and nothing but an
//! optimizer has `step()` beside `zero_grad()`, whatever the name is.

use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_stmt};
use oomph_python_source::ast::{Expr, ExprCall, Stmt};
use oomph_python_source::{Module, dotted_name, last_name};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::semantic::value::{Kind, ModelKind};

/// Methods of modules that other objects seldom have.
const EVAL: u8 = 1;
const PARAMETERS: u8 = 2;
/// Methods of modules that tensors, optimizers and trainers have as well.
const STATE: u8 = 4;
const MOVE: u8 = 8;
const STEP: u8 = 16;
const ZERO_GRAD: u8 = 32;
/// It is called itself.
const CALLED: u8 = 64;
/// It was made from a class and moved at once: `Actor(8, 2).to(device)`.
const BUILT: u8 = 128;

/// What the file's names are by the methods that are called on them.
#[derive(Debug, Default)]
pub(super) struct Usage {
    models: FxHashSet<String>,
    optimizers: FxHashSet<String>,
}

impl Usage {
    pub(super) fn of(module: &Module<'_>) -> Self {
        // Every pair of methods that says anything has one of these.
        let tells = [
            "eval()",
            "parameters()",
            "zero_grad(",
            "state_dict(",
            ").to(",
            ").cuda(",
        ]
        .iter()
        .any(|method| module.text().contains(method));
        if !tells {
            return Self::default();
        }
        let mut methods = Methods(FxHashMap::default());
        for stmt in module.body() {
            methods.visit_stmt(stmt);
        }
        let mut usage = Self::default();
        for (place, seen) in methods.0 {
            let has = |all: u8| seen & all == all;
            let any = |some: u8| seen & some != 0;
            if has(STEP) {
                // What steps and also has parameters or a mode is an engine around a model.
                if has(ZERO_GRAD) && !any(EVAL | PARAMETERS) {
                    usage.optimizers.insert(place);
                }
            } else if has(EVAL | STATE)
                || has(EVAL | PARAMETERS)
                || has(PARAMETERS | STATE)
                || has(EVAL | MOVE)
                || has(EVAL | CALLED)
                || has(CALLED | STATE)
                || has(CALLED | PARAMETERS)
                || has(CALLED | BUILT)
            {
                usage.models.insert(place);
            }
        }
        usage
    }

    pub(super) fn kind(&self, place: &str) -> Option<Kind> {
        if self.models.contains(place) {
            Some(Kind::Model(ModelKind::Plain))
        } else if self.optimizers.contains(place) {
            Some(Kind::Optimizer)
        } else {
            None
        }
    }
}

struct Methods(FxHashMap<String, u8>);

impl Methods {
    fn note(&mut self, place: &Expr, seen: u8) {
        if let Some(place) = dotted_name(place) {
            *self.0.entry(place).or_default() |= seen;
        }
    }
}

impl<'a> Visitor<'a> for Methods {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        // `net = build().cuda().eval()`
        if let Stmt::Assign(assign) = stmt
            && let [target] = &*assign.targets
        {
            let mut value = &*assign.value;
            let mut all = 0;
            while let Expr::Call(call) = value
                && let Expr::Attribute(attribute) = &*call.func
            {
                let seen = bits(attribute.attr.as_str(), call);
                if seen != 0 {
                    self.note(target, seen);
                }
                all |= seen;
                value = &attribute.value;
            }
            if all & MOVE != 0
                && matches!(value, Expr::Call(made) if last_name(&made.func).is_some_and(is_class_of_net))
            {
                self.note(target, BUILT);
            }
        }
        walk_stmt(self, stmt);
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr {
            if let Expr::Attribute(attribute) = &*call.func {
                let seen = bits(attribute.attr.as_str(), call);
                if seen != 0 {
                    self.note(&attribute.value, seen);
                }
            }
            self.note(&call.func, CALLED);
        }
        walk_expr(self, expr);
    }
}

/// A class by its name that may be a network: no loss, no transform, no tensor.
fn is_class_of_net(name: &str) -> bool {
    const OTHERS: &[&str] = &[
        "loss",
        "criterion",
        "tensor",
        "variable",
        "metric",
        "transform",
        "augment",
        "schedul",
        "diffusion",
        "noise",
        "sampler",
        "ssim",
        "accuracy",
        "entropy",
        "variance",
        "parameter",
        "buffer",
        "embedd",
        "softmax",
        "resize",
        "normaliz",
        "kornia",
        "compose",
        "distribution",
        "normal",
        "process",
        "timer",
        "warp",
        "filter",
        "blur",
        "grid",
        "pool",
    ];
    let lower = name.to_ascii_lowercase();
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.contains(|c: char| c.is_ascii_lowercase())
        && !OTHERS.iter().any(|word| lower.contains(word))
}

fn bits(method: &str, call: &ExprCall) -> u8 {
    let bare = call.arguments.is_empty();
    match method {
        "eval" if bare => EVAL,
        "parameters" | "named_parameters" if bare => PARAMETERS,
        "load_state_dict" | "state_dict" => STATE,
        "cuda" | "cpu" | "to" | "half" => MOVE,
        "step" => STEP,
        "zero_grad" => ZERO_GRAD,
        "forward" => CALLED,
        _ => 0,
    }
}
