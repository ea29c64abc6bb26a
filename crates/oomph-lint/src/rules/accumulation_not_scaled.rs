use oomph_python_source::Ranged;
use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_stmt};
use oomph_python_source::ast::{Expr, Operator, Stmt};

use crate::queries::accumulation::accumulations;
use crate::queries::purpose::has_managed_loop;
use crate::rule::{Report, declare_rule};
use crate::semantic::Model;

declare_rule! {
    /// Accumulated losses are not divided by the number of micro-batches.
    ///
    /// ## What it does
    ///
    /// Looks for loops that step the optimizer only every N iterations, do not clear gradients in each and never divide
    /// the loss.
    ///
    /// ## Why it costs memory
    ///
    /// Gradients add up: without the division, N micro-batches make them N times too large, so the
    /// accumulated run is not the large-batch run that it saves memory for. Training diverges, and
    /// people give up on accumulation and buy a larger GPU.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for i, (x, y) in enumerate(loader):
    ///         loss = criterion(model(x), y)
    ///         loss.backward()
    ///         if (i + 1) % 4 == 0 or i + 1 == len(loader):
    ///             optimizer.step()
    ///             optimizer.zero_grad()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(model, loader, optimizer, criterion):
    ///     for i, (x, y) in enumerate(loader):
    ///         loss = criterion(model(x), y) / 4
    ///         loss.backward()
    ///         if (i + 1) % 4 == 0 or i + 1 == len(loader):
    ///             optimizer.step()
    ///             optimizer.zero_grad()
    /// ```
    ///
    /// Where micro-batches differ in size, divide the sum of the losses by the samples or tokens of
    /// the whole batch instead.
    ///
    /// ## When it is wrong
    ///
    /// When the loss is a sum on purpose, or the learning rate makes up for it.
    ///
    /// ## Fix safety
    ///
    /// No fix: the right denominator depends on the loss.
    OOM402 "accumulation-not-scaled" { fix: None, fresh: [5, 9] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if has_managed_loop(model) {
        return;
    }
    for found in accumulations(model) {
        let mut divides = Divides(false);
        for stmt in found.looped.body {
            divides.visit_stmt(stmt);
        }
        let sums = model.module.text().contains("reduction=\"sum\"")
            || model.module.text().contains("reduction='sum'");
        if divides.0 || sums {
            continue;
        }
        // Gradients that every iteration clears are those of one micro-batch.
        let clears_each = model.calls.iter().any(|call| {
            call.is_zero_grad()
                && model.loops_around(call.ctx).next().map(|each| each.ctx) == Some(found.looped.ctx)
                && !model.is_conditional_in(call.ctx, found.looped.ctx)
        });
        if clears_each {
            continue;
        }
        let backward = model
            .backwards
            .iter()
            .find(|each| model.is_inside(each.ctx, found.looped.ctx));
        let Some(backward) = backward else { continue };
        out.push(
            Report::new(
                model.calls[backward.call].node,
                format!(
                    "the losses of {} micro-batches are added up without dividing by their number",
                    model.text(found.steps.range())
                ),
            )
            .help("divide the loss by the number of micro-batches before `backward()`"),
        );
    }
}

/// Anything in the loop divides, scales or averages.
struct Divides(bool);

impl<'a> Visitor<'a> for Divides {
    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::BinOp(node) = expr {
            self.0 |= matches!(node.op, Operator::Div | Operator::Mult);
        }
        if let Expr::Call(call) = expr
            && let Expr::Attribute(attribute) = &*call.func {
                self.0 |= matches!(attribute.attr.as_str(), "div" | "div_" | "mul_" | "mul");
            }
        walk_expr(self, expr);
    }

    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        if let Stmt::AugAssign(node) = stmt {
            self.0 |= matches!(node.op, Operator::Div | Operator::Mult);
        }
        walk_stmt(self, stmt);
    }
}
