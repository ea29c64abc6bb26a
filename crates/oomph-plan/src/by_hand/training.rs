//! The training loop, and how it is rewritten: with contexts around the model's call and the loss, and with
//! each batch in parts.

use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_keyword};
use oomph_python_source::ast::{Expr, ExprCall, Keyword, Stmt, StmtFor};
use oomph_python_source::{
    Edit, Module, Ranged, TextRange, TextSize, assignments_in, calls_in, dotted_name, last_name,
};

use crate::by_hand::script::{Script, only};

/// The loop over batches.
#[derive(Debug)]
pub(crate) struct Training<'m> {
    /// The names that a batch is unpacked into; empty where the loop does not go through batches.
    batch: Vec<&'m str>,
    body: &'m [Stmt],
    /// The statement of the body that goes back.
    backward: usize,
    /// What goes back.
    loss: &'m Expr,
    /// The first statement of the body that calls the model.
    forward: usize,
}

impl<'m> Training<'m> {
    /// The one loop that goes back, once for each batch; of several the one that ran, or else the one
    /// beside the optimizer.
    pub(crate) fn find(script: &Script<'m>) -> Option<Self> {
        let module = script.module;
        let backwards = calls_in(module.body()).into_iter();
        let backwards: Vec<_> = backwards
            .filter(|call| {
                call.func.is_attribute_expr() && last_name(&call.func) == Some("backward")
            })
            .collect();
        // The loop around each, or the statement where there is none.
        let mut around: Vec<&Stmt> = Vec::new();
        for call in &backwards {
            let statements = module.statements_around(call.start());
            let found = statements
                .iter()
                .rev()
                .find(|stmt| stmt.is_for_stmt() || stmt.is_while_stmt())
                .or(statements.last());
            around.extend(found.copied().filter(|found| !around.contains(found)));
        }
        if around.len() > 1 {
            around.retain(|stmt| script.ran(*stmt));
        }
        if around.len() > 1 {
            around.retain(|stmt| script.is_beside_the_optimizer(*stmt));
        }
        let around = only(around)?;
        let (body, batch) = match around {
            Stmt::For(head) => (head.body.as_slice(), batch_names(head).unwrap_or_default()),
            Stmt::While(head) => (head.body.as_slice(), Vec::new()),
            _ => return None,
        };
        let model = script.model_in(around)?;
        let backward = only(
            backwards
                .into_iter()
                .filter(|call| around.range().contains_range(call.range())),
        )?;
        let loss = loss_of(backward)?;
        let is_it = |stmt: &Stmt| {
            stmt.as_expr_stmt()
                .is_some_and(|stmt| stmt.value.range() == backward.range())
        };
        let calls_model = |stmt: &Stmt| {
            let mut calls = calls_in(std::slice::from_ref(stmt)).into_iter();
            calls.any(|call| dotted_name(&call.func).as_ref() == Some(&model))
        };
        let backward = body.iter().position(is_it)?;
        let forward = body
            .iter()
            .position(calls_model)
            .filter(|&at| at < backward)?;
        Some(Self {
            batch,
            body,
            backward,
            loss,
            forward,
        })
    }

    /// The statement that calls the model.
    pub(crate) fn forward(&self) -> &'m Stmt {
        &self.body[self.forward]
    }

    /// How a batch is split: an expression of the number of samples, and what the loop over the parts
    /// goes through, where `{}` is the size of one. `None` where it is not told what a batch is.
    fn pieces(&self) -> Option<(String, String)> {
        let [name] = self.batch.as_slice() else {
            let parts = self.batch.iter().map(|name| format!("{name}.split({{}})"));
            let parts: Vec<String> = parts.collect();
            return Some((
                (*self.batch.first()?).to_owned(),
                format!("zip({})", parts.join(", ")),
            ));
        };
        let mut uses = Uses {
            name,
            as_mapping: false,
            as_sequence: false,
        };
        for stmt in self.body {
            uses.visit_stmt(stmt);
        }
        let unpacked = assignments_in(self.body)
            .into_iter()
            .any(|one| one.target.is_tuple_expr() && uses.is_it(one.value));
        // A mapping has no order, and how its entries are split depends on what they are.
        if uses.as_mapping {
            return None;
        }
        if unpacked || uses.as_sequence {
            return Some((
                format!("{name}[0]"),
                format!("zip(*(piece.split({{}}) for piece in {name}))"),
            ));
        }
        Some(((*name).to_owned(), format!("{name}.split({{}})")))
    }

    /// The loop's body up to `backward` in `contexts`, and with each batch in so many parts.
    pub(crate) fn rewrite(
        &self,
        module: &Module<'_>,
        contexts: &[String],
        parts: Option<u32>,
    ) -> Option<Vec<Edit>> {
        const STEP: &str = "    ";
        let (first, last) = (self.body.first()?, self.body.get(self.backward)?);
        let indent = module.indentation(first.start())?;
        // What clears gradients is done once for all parts, and is no end of the contexts.
        let clears = |stmt: &&Stmt| {
            let call = stmt
                .as_expr_stmt()
                .and_then(|stmt| stmt.value.as_call_expr());
            call.is_some_and(|call| last_name(&call.func) == Some("zero_grad"))
        };
        let until = self.body.get(..=self.backward)?;
        let moved: Vec<&Stmt> = until
            .iter()
            .filter(clears)
            .filter(|_| parts.is_some())
            .collect();
        let moved: Vec<TextRange> = moved
            .into_iter()
            .map(|stmt| lines_of(module, stmt))
            .collect::<Option<_>>()?;
        let mut lines = TextRange::default();
        let mut edits = Vec::new();
        let mut within = indent.to_owned();
        if let Some(parts) = parts {
            let (whole, pieces) = self.pieces()?;
            lines = lines_of(module, first)?.cover(lines_of(module, last)?);
            let samples = module.free_name("samples");
            let kept: String = moved.iter().map(|range| module.slice(*range)).collect();
            let names = self.batch.join(", ");
            let pieces = pieces.replace("{}", &format!("-(-{samples} // {parts})"));
            edits.push(Edit::insert(
                lines.start(),
                format!(
                    "{indent}{samples} = len({whole})\n{kept}{indent}for {names} in {pieces}:\n"
                ),
            ));
            within.push_str(STEP);
            let scaled = format!("({} * (len({whole}) / {samples}))", module.slice(self.loss));
            let why = "# for a loss that is a mean over samples";
            edits.push(Edit::insert(last.start(), format!("{why}\n{within}")));
            edits.push(Edit::replace(self.loss, scaled));
        }
        let mut shifted = Vec::new();
        if !contexts.is_empty() {
            // From the model's call to the loss.
            let end = until.iter().rev().skip(1).find(|stmt| !clears(stmt))?;
            let inside = lines_of(module, self.forward())?.cover(lines_of(module, end)?);
            edits.push(Edit::insert(
                inside.start(),
                format!("{within}with {}:\n", contexts.join(", ")),
            ));
            shifted.push(inside);
        }
        if parts.is_some() {
            shifted.push(lines);
        }
        for range in shifted {
            let mut at = range.start();
            for gap in &moved {
                if range.contains_range(*gap) {
                    edits.extend(module.indent(TextRange::new(at, gap.start()), STEP));
                    at = gap.end();
                }
            }
            edits.extend(module.indent(TextRange::new(at, range.end()), STEP));
        }
        edits.extend(moved.into_iter().map(|range| Edit::replace(range, "")));
        Some(edits)
    }

    /// Whether it is told how the loop's batches are split.
    pub(crate) fn can_split(&self) -> bool {
        self.pieces().is_some()
    }
}

/// What goes back: of `loss.backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)`.
fn loss_of(backward: &ExprCall) -> Option<&Expr> {
    let of = &*backward.func.as_attribute_expr()?.value;
    if let [loss] = &*backward.arguments.args {
        let frameworks = ["accelerator", "fabric"];
        let framework = last_name(of).filter(|name| frameworks.contains(name));
        return framework.and(Some(loss));
    }
    if !backward.arguments.is_empty() {
        return None;
    }
    match of {
        Expr::Call(scale) if last_name(&scale.func) == Some("scale") => {
            scale.arguments.args.first()
        }
        Expr::Name(_) | Expr::Attribute(_) => Some(of),
        _ => None,
    }
}

/// The lines of a statement and the comment behind it, with the line break at their end; `None` if another
/// statement is on one of them.
fn lines_of(module: &Module<'_>, stmt: &Stmt) -> Option<TextRange> {
    let start = stmt.start() - TextSize::of(module.indentation(stmt.start())?);
    let rest = module.text().get(stmt.end().to_usize()..)?;
    let rest = rest.split_inclusive('\n').next().unwrap_or_default();
    let is_free = rest.trim().is_empty() || rest.trim_start().starts_with('#');
    is_free.then(|| TextRange::new(start, stmt.end() + TextSize::of(rest)))
}

/// What a loop's body does with a batch in one name.
struct Uses<'n> {
    name: &'n str,
    as_mapping: bool,
    as_sequence: bool,
}

impl Uses<'_> {
    fn is_it(&self, expr: &Expr) -> bool {
        expr.as_name_expr()
            .is_some_and(|name| name.id.as_str() == self.name)
    }
}

impl<'a> Visitor<'a> for Uses<'_> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Subscript(item) if self.is_it(&item.value) => match &*item.slice {
                Expr::StringLiteral(_) => self.as_mapping = true,
                Expr::NumberLiteral(_) => self.as_sequence = true,
                _ => {}
            },
            Expr::Attribute(part) if self.is_it(&part.value) => {
                self.as_mapping |= ["items", "keys", "values"].contains(&part.attr.as_str());
            }
            _ => {}
        }
        walk_expr(self, expr);
    }

    fn visit_keyword(&mut self, keyword: &'a Keyword) {
        self.as_mapping |= keyword.arg.is_none() && self.is_it(&keyword.value);
        walk_keyword(self, keyword);
    }
}

/// The names that a loop's head unpacks a batch into: `for x, y in data:`, `for i, (x, y) in
/// enumerate(data):`, `for batch in data:`.
fn batch_names(head: &StmtFor) -> Option<Vec<&str>> {
    let mut target = &*head.target;
    let of_call = head
        .iter
        .as_call_expr()
        .and_then(|call| last_name(&call.func));
    if of_call == Some("range") {
        return None;
    }
    let mut calls = Calls(Vec::new());
    calls.visit_expr(&head.iter);
    if calls.0.contains(&"enumerate") {
        let [_, batch] = target.as_tuple_expr()?.elts.as_slice() else {
            return None;
        };
        target = batch;
    }
    match target {
        Expr::Tuple(tuple) => {
            let names: Option<Vec<&str>> = tuple
                .elts
                .iter()
                .map(|one| Some(one.as_name_expr()?.id.as_str()))
                .collect();
            names.filter(|names| !names.is_empty())
        }
        other => Some(vec![other.as_name_expr()?.id.as_str()]),
    }
}

/// The functions that an expression calls: `enumerate` of `tqdm(enumerate(data))`.
struct Calls<'a>(Vec<&'a str>);

impl<'a> Visitor<'a> for Calls<'a> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        self.0
            .extend(expr.as_call_expr().and_then(|call| last_name(&call.func)));
        walk_expr(self, expr);
    }
}
