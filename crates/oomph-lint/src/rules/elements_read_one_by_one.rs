use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_stmt};
use oomph_python_source::ast::{Comprehension, Expr, ExprCall, Stmt};
use oomph_python_source::{Ranged, TextRange, dotted_name, last_name, names_in};

use crate::queries::devices::{leaves_batches_on_cpu, mentions_gpu, on_cpu_only};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::value::{Device, Kind};
use crate::semantic::{Bind, FuncId, Loop, Model};

declare_rule! {
    /// The elements of a tensor are read from the GPU one by one.
    ///
    /// ## What it does
    ///
    /// Looks for loops over the elements of a tensor, inside a loop over batches, that read each element: `.item()`,
    /// `.tolist()`, `.cpu()`, `int()`, `float()`, or a comparison that an `if` asks for. Also for loops that copy a whole batch with
    /// `.cpu()` again in each iteration. The tensor has to come from what the loop over batches moved to the GPU.
    ///
    /// ## Why it costs memory
    ///
    /// None; it costs time. Each read launches a kernel that picks the element, waits for it, and copies a few bytes: tens of
    /// microseconds, thousands of times in an epoch, while the GPU does nothing else. One copy of the whole tensor costs as
    /// much as one element.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// @torch.no_grad()
    /// def evaluate(model, loader, names):
    ///     found = []
    ///     for x, _ in loader:
    ///         predicted = model(x.cuda()).argmax(dim=1)
    ///         for each in predicted:
    ///             found.append(names[each.item()])
    ///     return found
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// @torch.no_grad()
    /// def evaluate(model, loader, names):
    ///     found = []
    ///     for x, _ in loader:
    ///         predicted = model(x.cuda()).argmax(dim=1)
    ///         for each in predicted.tolist():
    ///             found.append(names[each])
    ///     return found
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the tensor is on the CPU, or has few elements.
    ///
    /// ## Fix safety
    ///
    /// No fix: what is made of the elements is yours to change.
    OOM615 "elements-read-one-by-one" { fix: None, fresh: [3, 11] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if !mentions_gpu(model) || on_cpu_only(model) {
        return;
    }
    for batches in model.loops.iter().filter(|each| each.data) {
        if leaves_batches_on_cpu(model, batches) || in_unit_test(model, batches.ctx) {
            continue;
        }
        let mut elements = Elements { model, batches, func: model.func_of(batches.ctx), around: Vec::new(), found: Vec::new() };
        for stmt in batches.body {
            elements.visit_stmt(stmt);
        }
        // One for each loop over elements, whatever it reads.
        let mut last: Option<TextRange> = None;
        for (read, looped, message) in elements.found {
            if last.is_none_or(|last| !last.contains_range(looped)) {
                last = Some(looped);
                out.push(Report::new(read, message).help("copy the tensor once before this loop, with `.tolist()` or `.cpu()`"));
            }
        }
    }
}

/// What a loop or comprehension inside a loop over batches goes through.
struct Pass<'a> {
    target: Option<&'a Expr>,
    iter: Option<&'a Expr>,
    range: TextRange,
}

struct Elements<'m, 'a> {
    model: &'m Model<'a>,
    batches: &'m Loop<'a>,
    func: Option<FuncId>,
    around: Vec<Pass<'a>>,
    found: Vec<(&'a Expr, TextRange, String)>,
}

impl<'a> Visitor<'a> for Elements<'_, 'a> {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            // What is defined here is not run here, and a loop over batches inside is looked at by itself.
            Stmt::FunctionDef(_) | Stmt::ClassDef(_) => {}
            _ if self.model.loops.iter().any(|each| each.range == stmt.range() && (each.data || each.contains_backward)) => {}
            Stmt::For(node) => {
                self.visit_expr(&node.iter);
                self.around.push(Pass { target: Some(&node.target), iter: Some(&node.iter), range: node.range });
                self.visit_body(&node.body);
                self.around.pop();
            }
            Stmt::While(node) => {
                self.around.push(Pass { target: None, iter: None, range: node.range });
                walk_stmt(self, stmt);
                self.around.pop();
            }
            Stmt::If(node) => {
                if let Expr::Compare(compare) = &*node.test
                    && let Some(range) = std::iter::once(&*compare.left).chain(&compare.comparators).find_map(|each| self.element(each))
                {
                    self.found.push((&node.test, range, format!("`{}` waits for the GPU for each element", self.model.text(&*node.test))));
                }
                walk_stmt(self, stmt);
            }
            _ => walk_stmt(self, stmt),
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        let parts: Option<(Vec<&'a Expr>, &'a [Comprehension])> = match expr {
            Expr::ListComp(node) => Some((vec![&node.elt], &node.generators)),
            Expr::SetComp(node) => Some((vec![&node.elt], &node.generators)),
            Expr::Generator(node) => Some((vec![&node.elt], &node.generators)),
            Expr::DictComp(node) => Some((node.key.iter().map(|key| &**key).chain([&*node.value]).collect(), &node.generators)),
            _ => None,
        };
        if let Some((made, generators)) = parts {
            for each in generators {
                self.visit_expr(&each.iter);
                self.around.push(Pass { target: Some(&each.target), iter: Some(&each.iter), range: expr.range() });
            }
            for each in made {
                self.visit_expr(each);
            }
            self.around.truncate(self.around.len() - generators.len());
            return;
        }
        if let Expr::Call(call) = expr {
            if let Some(range) = read_of(call).and_then(|read| self.element(read)) {
                self.found.push((expr, range, format!("`{}` waits for the GPU for each element", self.model.text(expr))));
            } else if let Some(range) = self.copies_a_batch(call) {
                self.found.push((expr, range, format!("`{}` copies the same tensor from the GPU in every iteration", self.model.text(expr))));
            }
        }
        walk_expr(self, expr);
    }
}

/// What a call reads a number of: `x` of `x.item()` and `int(x)`.
fn read_of(call: &ExprCall) -> Option<&Expr> {
    match &*call.func {
        Expr::Attribute(method) if call.arguments.is_empty() && matches!(method.attr.as_str(), "item" | "tolist" | "cpu") => Some(&method.value),
        Expr::Name(name) if matches!(name.id.as_str(), "int" | "float") => match &*call.arguments.args {
            [only] => Some(only),
            _ => None,
        },
        _ => None,
    }
}

impl<'a> Elements<'_, 'a> {
    /// The loop over elements, if an expression is an element of a tensor on the GPU that this loop goes through.
    fn element(&self, expr: &'a Expr) -> Option<TextRange> {
        let expr = without_copies(expr);
        match expr {
            Expr::Name(name) => self.source(name.id.as_str(), self.around.len()),
            // `predicted[i]`, `scores[i, j]`
            Expr::Subscript(node) => {
                let index = names_in(&node.slice);
                let counted = self.around.iter().find(|pass| {
                    pass.iter.is_some_and(|iter| matches!(iter, Expr::Call(call) if last_name(&call.func) == Some("range")))
                        && pass.target.and_then(dotted_name).is_some_and(|target| index.contains(&target))
                });
                let held = dotted_name(without_copies(&node.value))?;
                match counted {
                    Some(pass) => self.is_on_gpu(&held, pass.range, 0).then_some(pass.range),
                    // `score[0]` of an element `score`.
                    None => self.source(&held, self.around.len()),
                }
            }
            _ => None,
        }
    }

    /// The loop whose target a name is, if what it goes through is on the GPU. `below` limits the loops that may be it.
    fn source(&self, name: &str, below: usize) -> Option<TextRange> {
        let (at, iter) = (0..below).rev().find_map(|at| {
            let pass = &self.around[at];
            Some((at, gone_through(name, pass.target?, pass.iter?)?))
        })?;
        let Expr::Name(from) = without_views(iter) else { return None };
        // `for row in rows: for each in row:`
        self.source(from.id.as_str(), at)
            .or_else(|| self.is_on_gpu(from.id.as_str(), self.around[at].range, 0).then(|| self.around[at].range))
    }

    /// Whether a name was bound, in this iteration of the loop over batches, to what was worked out of something on the GPU.
    fn is_on_gpu(&self, name: &str, before: TextRange, depth: usize) -> bool {
        const MAX_DEPTH: usize = 6;
        const ON_CPU: &[&str] = &["cpu", "numpy", ".item()", "tolist", "np.", "list(", "sorted(", "zip(", "Counter", "decode"];
        let last = self
            .model
            .assigns_to(self.func, name)
            .filter(|assign| assign.target.end() <= before.start() && self.batches.range.contains_range(assign.target.range()))
            .max_by_key(|assign| assign.target.start());
        let Some(last) = last else { return false };
        let (Some(expr), true) = (last.expr, last.bind != Bind::Other) else { return false };
        let text = self.model.text(expr);
        if depth > MAX_DEPTH
            || last.value.device == Device::Cpu
            || matches!(last.value.kind, Kind::Plain | Kind::Collection | Kind::NoneLiteral)
            || expr.is_literal_expr()
            || ON_CPU.iter().any(|word| text.contains(word))
        {
            return false;
        }
        last.value.device == Device::Gpu
            || text.contains(".cuda(")
            || text.contains(".to(") && text.contains("device")
            || names_in(expr).iter().any(|each| {
                let root = each.split('.').next().unwrap_or(each);
                self.is_on_gpu(root, expr.range(), depth + 1)
            })
    }

    /// The loop that copies the same tensor again and again, if `x.cpu()` is of one that is bound before it.
    fn copies_a_batch(&self, call: &ExprCall) -> Option<TextRange> {
        let Expr::Attribute(method) = &*call.func else { return None };
        if method.attr.as_str() != "cpu" || !call.arguments.is_empty() {
            return None;
        }
        let Expr::Name(of) = without_views(&method.value) else { return None };
        let outer = self.around.first()?;
        let stays = |pass: &Pass<'_>| {
            let mut bound = self.model.assigns_to(self.func, of.id.as_str());
            !bound.any(|assign| pass.range.contains_range(assign.target.range()))
        };
        (self.around.iter().all(stays) && self.is_on_gpu(of.id.as_str(), outer.range, 0)).then_some(outer.range)
    }
}

/// What a loop goes through where its target is bound to the elements: `labels` for `label` of `enumerate(zip(labels, names))`.
fn gone_through<'a>(name: &str, target: &'a Expr, iter: &'a Expr) -> Option<&'a Expr> {
    match (target, iter) {
        (_, Expr::Call(call)) if last_name(&call.func) == Some("tqdm") => gone_through(name, target, call.arguments.find_positional(0)?),
        (Expr::Tuple(targets), Expr::Call(call)) => {
            let at = |name: &str| targets.elts.iter().position(|each| matches!(each, Expr::Name(each) if each.id.as_str() == name));
            match last_name(&call.func)? {
                "zip" => call.arguments.args.get(at(name)?),
                "enumerate" => gone_through(name, targets.elts.get(1)?, call.arguments.find_positional(0)?),
                _ => None,
            }
        }
        (Expr::Name(target), iter) if target.id.as_str() == name && !iter.is_call_expr() => Some(iter),
        _ => None,
    }
}

/// `x` of `x.detach()`, `x.data`, `x.view(-1)`: the same tensor, where it is.
fn without_views(mut expr: &Expr) -> &Expr {
    loop {
        expr = match expr {
            Expr::Attribute(node) if node.attr.as_str() == "data" => &node.value,
            Expr::Call(call) => match &*call.func {
                Expr::Attribute(method) if matches!(method.attr.as_str(), "detach" | "view" | "squeeze" | "flatten" | "reshape") => &method.value,
                _ => return expr,
            },
            _ => return expr,
        }
    }
}

/// `x` of `x.cpu()` and `x.detach()`, each of which takes part in the same read.
fn without_copies(mut expr: &Expr) -> &Expr {
    loop {
        expr = match without_views(expr) {
            Expr::Call(call) => match &*call.func {
                Expr::Attribute(method) if method.attr.as_str() == "cpu" && call.arguments.is_empty() => &method.value,
                _ => return expr,
            },
            other if !std::ptr::eq(other, expr) => other,
            _ => return expr,
        }
    }
}
