use oomph_python_source::ast::{self, Expr, Operator};
use oomph_python_source::{Ranged, dotted_name, last_name, names_in};

use crate::rule::{Report, declare_rule};
use crate::semantic::{Assign, Bind, Func, FuncId, Model};

declare_rule! {
    /// Attention keeps its scores.
    ///
    /// ## What it does
    ///
    /// Looks for functions that multiply queries with keys, take a softmax of the scores and multiply it with
    /// the values, where scores are only scaled and masked and the weights are used for nothing else, in a file without
    /// `scaled_dot_product_attention`. Queries and keys have to be layers of one input (of all its tokens, or of
    /// all its pixels), or the function's first parameters.
    ///
    /// ## Why it costs memory
    ///
    /// The scores are heads × length², and eager attention keeps several copies for `backward()`:
    /// before and after the softmax and the dropout. `F.scaled_dot_product_attention` keeps none.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def attention(q, k, v, scale):
    ///     scores = (q @ k.transpose(-2, -1)) * scale
    ///     weights = scores.softmax(dim=-1)
    ///     return weights @ v
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch.nn.functional as F
    ///
    /// def attention(q, k, v, scale):
    ///     return F.scaled_dot_product_attention(q, k, v, scale=scale)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When sequences are short, as in windowed attention, or the weights are read through a hook. PyTorch has
    /// the function since 2.0: nothing is said if the project pins an older one.
    ///
    /// ## Fix safety
    ///
    /// No fix: masks and biases have to become `attn_mask`.
    OOM801 "attention-keeps-scores" { fix: None, fresh: [51, 64] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    // What others are compared with is meant to be plain.
    let is_reference = ["scaled_dot_product_attention", "assert_close", "allclose"]
        .iter()
        .any(|word| model.module.text().contains(word));
    if is_reference {
        return;
    }
    for index in 0..model.funcs.len() {
        let Some(func) = model
            .ctxs
            .iter()
            .filter_map(|ctx| ctx.func)
            .find(|id| id.index() == index)
        else {
            continue;
        };
        if let Some(report) = attention(model, func) {
            out.push(report);
        }
    }
}

fn attention(model: &Model<'_>, func: FuncId) -> Option<Report> {
    // The names that scores go through, from the product to the softmax and on.
    let assigns: Vec<_> = model
        .assigns_in_function(Some(func))
        .filter(|assign| assign.bind == Bind::Set)
        .collect();
    // Most functions have none.
    let softens = |assign: &Assign<'_>| assign.value.softmax || assign.expr.is_some_and(is_softmax);
    if !assigns.iter().any(|assign| softens(assign)) {
        return None;
    }
    let mut scores: Vec<&str> = Vec::new();
    let mut weights: Vec<&str> = Vec::new();
    let mut softmax_at = None;
    let projected = projected(model, func);
    for assign in &assigns {
        let Some(expr) = assign.expr else { continue };
        let reads = |names: &[&str]| names_in(expr).iter().any(|name| names.contains(&root(name)));
        let softens = softens(assign);
        if is_scores(model, expr) || is_projected_product(expr, &projected) {
            if !is_plain_scores(model, expr) {
                return None;
            }
            if softens {
                weights.push(&assign.place);
                softmax_at = softmax_at.or(Some(expr.range()));
            } else {
                scores.push(&assign.place);
            }
        } else if softens && reads(&scores) {
            weights.push(&assign.place);
            softmax_at = softmax_at.or(Some(expr.range()));
        } else if reads(&weights) && !is_product(expr) {
            // Divided, summed or multiplied by something else, the weights are no softmax any more.
            if !is_of(expr, &weights) {
                return None;
            }
            weights.push(&assign.place);
        } else if reads(&scores) && !is_product(expr) && keeps_scores(expr) {
            if !is_plain_scores(model, expr) || mixes_scores(expr, &scores) {
                return None;
            }
            scores.push(&assign.place);
        }
    }
    // `scores += bias` and `scores[...] += bias`
    let biased = model.assigns_in_function(Some(func)).any(|assign| {
        matches!(assign.bind, Bind::Add)
            && scores.contains(&crate::queries::loop_carried::base(&assign.place))
            && !assign.expr.is_some_and(|expr| model.text(expr).contains("mask"))
    });
    if biased {
        return None;
    }
    let softmax_at = softmax_at?;
    let def = model.func(func).node;
    let text = model.text(def);
    // Weights that leave the function, or are looked at, are wanted.
    let escapes = text.contains("return_att")
        || text.contains("need_weights")
        || text.contains("output_attentions")
        || text.contains("save_att")
        || text.contains("get_attn")
        || text.contains("window")
        // A memory of a few slots.
        || text.contains("slots")
        || text.contains("normalize(")
        || returns_any(def, &weights)
        || assigns.iter().any(|assign| {
            assign.place.starts_with("self.")
                && assign
                    .expr
                    .is_some_and(|expr| names_in(expr).iter().any(|name| weights.contains(&root(name))) && !is_product(expr))
        });
    // Queries and keys of one input: the scores are as long as it is, squared. Another attention looks at
    // a few tokens as often as at many.
    let inputs: Vec<&str> = arguments(model, func)
        .filter(|name| {
            !matches!(*name, "H" | "W" | "h" | "w")
                && !["mask", "bias", "pos", "cis", "len", "cache", "flag", "return", "rotary", "freqs"]
                    .iter()
                    .any(|word| name.contains(word))
        })
        .collect();
    let of_one_length = match inputs.as_slice() {
        [_] => true,
        [q, k, v, ..] => q.starts_with('q') && k.starts_with('k') && v.starts_with('v'),
        _ => false,
    };
    if !of_one_length {
        return None;
    }
    let multiplied = product_with(model, func, &weights);
    if escapes || !multiplied {
        return None;
    }
    Some(
        Report::new(
            softmax_at,
            "attention keeps its scores (heads × length²) for `backward()`",
        )
        .help("use `torch.nn.functional.scaled_dot_product_attention`; a mask or bias goes into `attn_mask`")
        .since(2, 0),
    )
}

/// The scores are only scaled and masked. A learned bias or a normalization is another attention,
/// that the fused kernels do not cover or save little for.
fn is_plain_scores(model: &Model<'_>, expr: &Expr) -> bool {
    let text = model.text(expr);
    let others = ["bias", "rel_pos", "pos_", "_pos", "normalize", "norm(", "skew", "encodings"];
    !others
        .iter()
        .any(|word| text.replace("self.bias[", "").replace("mask", "").contains(word))
}

/// Whether scores are added to other scores, or weighed by what a layer returns: no mask does that.
fn mixes_scores(expr: &Expr, scores: &[&str]) -> bool {
    let is_score = |expr: &Expr| names_in(expr).iter().any(|name| scores.contains(&root(name)));
    match expr {
        Expr::BinOp(node) => {
            let (left, right) = (is_score(&node.left), is_score(&node.right));
            let others = if left { &node.right } else { &node.left };
            let weighs = node.op == Operator::Mult && others.is_call_expr();
            left && right || weighs
        }
        _ => false,
    }
}

fn root(name: &str) -> &str {
    if name.starts_with("self.") {
        return name;
    }
    name.split('.').next().unwrap_or(name)
}

/// `q @ k.transpose(-2, -1)` anywhere in the expression.
fn is_scores(model: &Model<'_>, expr: &Expr) -> bool {
    let transposed = |expr: &Expr| {
        let text: String = model.text(expr).split_whitespace().collect();
        text.ends_with(".transpose(-2,-1)")
            || text.ends_with(".transpose(-1,-2)")
            || text.ends_with(".transpose(2,3)")
            || text.ends_with(".transpose(3,2)")
            || text.ends_with(".mT")
    };
    products(expr).iter().any(|(_, right)| transposed(right))
}

/// The names of what callers pass: without the object of a method, whatever the method calls it.
fn arguments<'m>(model: &'m Model<'_>, func: FuncId) -> impl Iterator<Item = &'m str> {
    let Func { node, class, .. } = model.func(func);
    let is_static = node
        .decorator_list
        .iter()
        .any(|decorator| last_name(&decorator.expression) == Some("staticmethod"));
    node.parameters
        .iter_non_variadic_params()
        .map(|each| each.parameter.name.as_str())
        .skip(usize::from(class.is_some() && !is_static))
}

/// The names that hold layers of the function's input, one value for each position of it: `q` of
/// `q = self.query(x).view(…)`.
fn projected(model: &Model<'_>, func: FuncId) -> Vec<String> {
    let inputs: Vec<&str> = arguments(model, func).collect();
    let mut names: Vec<String> = Vec::new();
    for assign in model.assigns_in_function(Some(func)) {
        let Some(expr) = assign.expr else { continue };
        // One position of many, or a summary of them: the scores are short.
        let text = model.text(expr);
        let shortens = ["mean(", "sum(", "unsqueeze(", "[:, 0]", "[:, -1]", "pool"]
            .iter()
            .any(|word| text.contains(word));
        if shortens {
            names.retain(|name| *name != assign.place);
            continue;
        }
        let is_layer = text.contains("self") && model.calls.iter().any(|call| {
            expr.range().contains_range(call.node.range())
                && dotted_name(&call.node.func).is_some_and(|callee| callee.starts_with("self."))
                && call
                    .node
                    .arguments
                    .find_positional(0)
                    .and_then(dotted_name)
                    .is_some_and(|arg| inputs.contains(&arg.as_str()))
        });
        let follows = names_in(expr)
            .iter()
            .any(|name| names.iter().any(|each| each == root(name)));
        if is_layer || follows && products(expr).is_empty() {
            names.push(assign.place.clone());
        }
    }
    names
}

/// A product of two projections of the input: `torch.bmm(query, key)`.
fn is_projected_product(expr: &Expr, projected: &[String]) -> bool {
    let name = |expr: &Expr| {
        names_in(expr)
            .first()
            .map(|name| root(name).to_owned())
            .filter(|name| projected.contains(name))
    };
    products(expr).iter().any(|(left, right)| {
        match (name(left), name(right)) {
            (Some(left), Some(right)) => left != right,
            _ => false,
        }
    })
}

fn is_softmax(expr: &Expr) -> bool {
    let Expr::Call(call) = expr else { return false };
    let Some(name) = last_name(&call.func) else {
        return false;
    };
    if name == "softmax" || name == "Softmax" {
        return true;
    }
    // `F.softmax(x, dim=-1).to(q.dtype)`, `nn.Softmax(dim=-1)(x)`
    match &*call.func {
        Expr::Attribute(attribute) => is_softmax(&attribute.value),
        Expr::Call(_) => is_softmax(&call.func),
        _ => false,
    }
}

/// The products in an expression: `a @ b`, `torch.matmul(a, b)`, `torch.bmm(a, b)`, `torch.einsum(…, a, b)`.
fn products(expr: &Expr) -> Vec<(&Expr, &Expr)> {
    struct Find<'a>(Vec<(&'a Expr, &'a Expr)>);
    impl<'a> ast::visitor::Visitor<'a> for Find<'a> {
        fn visit_expr(&mut self, expr: &'a Expr) {
            match expr {
                Expr::BinOp(node) if node.op == Operator::MatMult => {
                    self.0.push((&node.left, &node.right));
                }
                Expr::Call(call) if matches!(last_name(&call.func), Some("matmul" | "bmm")) => {
                    match (&*call.arguments.args, &*call.func) {
                        ([left, right], _) => self.0.push((left, right)),
                        ([right], Expr::Attribute(attribute)) => {
                            self.0.push((&attribute.value, right));
                        }
                        _ => {}
                    }
                }
                Expr::Call(call) if last_name(&call.func) == Some("einsum") => {
                    if let [_, left, right] = &*call.arguments.args {
                        self.0.push((left, right));
                    }
                }
                _ => {}
            }
            ast::visitor::walk_expr(self, expr);
        }
    }
    let mut find = Find(Vec::new());
    ast::visitor::Visitor::visit_expr(&mut find, expr);
    find.0
}

fn is_product(expr: &Expr) -> bool {
    !products(expr).is_empty()
}

/// Whether scores stay what they are: scaled, masked or seen in another shape. A layer, or a call of
/// another function, makes something else of them.
fn keeps_scores(expr: &Expr) -> bool {
    match expr {
        Expr::Call(call) => last_name(&call.func).is_some_and(|name| {
            matches!(
                name,
                "masked_fill" | "masked_fill_" | "where" | "float" | "half" | "to" | "type_as" | "view" | "reshape"
                    | "mul" | "div" | "clamp" | "contiguous" | "permute" | "transpose" | "squeeze" | "add" | "sub"
                    | "rearrange" | "tril" | "clone"
            )
        }),
        Expr::BinOp(_) | Expr::Name(_) | Expr::Subscript(_) | Expr::If(_) => true,
        _ => false,
    }
}

/// One of the names, or its dropout: `weights`, `self.dropout(weights)`.
fn is_of(expr: &Expr, names: &[&str]) -> bool {
    if let Some(place) = dotted_name(expr) {
        return names.contains(&root(&place));
    }
    let Expr::Call(call) = expr else { return false };
    // `weights.transpose(1, 2)`, and `self.dropout(weights)`.
    let of_receiver = match &*call.func {
        Expr::Attribute(attribute) => is_of(&attribute.value, names),
        _ => false,
    };
    of_receiver || call.arguments.args.first().is_some_and(|first| is_of(first, names))
}

fn product_with(model: &Model<'_>, func: FuncId, weights: &[&str]) -> bool {
    model.stmts.iter().any(|info| {
        if model.func_of(info.ctx) != Some(func) {
            return false;
        }
        let expr = match info.node {
            ast::Stmt::Assign(node) => Some(&*node.value),
            ast::Stmt::Return(node) => node.value.as_deref(),
            _ => None,
        };
        expr.is_some_and(|expr| {
            products(expr)
                .iter()
                .any(|(left, right)| is_of(left, weights) || is_of(right, weights))
        })
    })
}

fn returns_any(def: &ast::StmtFunctionDef, names: &[&str]) -> bool {
    struct Returns<'n>(&'n [&'n str], bool);
    impl<'a> ast::visitor::Visitor<'a> for Returns<'_> {
        fn visit_stmt(&mut self, stmt: &'a ast::Stmt) {
            if let ast::Stmt::Return(node) = stmt {
                let parts: Vec<&Expr> = match node.value.as_deref() {
                    Some(Expr::Tuple(tuple)) => tuple.elts.iter().collect(),
                    Some(expr) => vec![expr],
                    None => Vec::new(),
                };
                // `weights`, `weights.view(…)`, but not the output: `weights @ v`.
                self.1 |= parts
                    .iter()
                    .any(|part| !is_product(part) && is_of(part, self.0));
            }
            ast::visitor::walk_stmt(self, stmt);
        }
    }
    let mut returns = Returns(names, false);
    for stmt in &def.body {
        ast::visitor::Visitor::visit_stmt(&mut returns, stmt);
    }
    returns.1
}
