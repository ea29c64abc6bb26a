//! Where in a script the changes go: its imports, its model, its optimizer, its training loop.

use crate::by_hand::script::{Edit, Logical, Script};

/// The call that makes the optimizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Optimizer {
    /// The variable.
    pub(crate) name: String,
    /// The line.
    pub(crate) line: usize,
    /// Whether the call is that of its class, whose arguments are known.
    pub(crate) class: bool,
}

/// Places in a script; what is not found is `None`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    /// Before this line imports may be added.
    pub(crate) imports: usize,
    /// The first import of torch or of what stands on it.
    pub(crate) torch: Option<usize>,
    /// The line after the last import at the top.
    pub(crate) after_imports: Option<usize>,
    /// The model's variable.
    pub(crate) model: Option<String>,
    /// The line after the model has been made and moved, and its indentation.
    pub(crate) after_model: Option<(usize, String)>,
    /// The optimizer.
    pub(crate) optimizer: Option<Optimizer>,
    /// The loop over batches.
    pub(crate) training: Option<Training>,
}

/// The loop over batches.
#[derive(Debug, Clone)]
pub(crate) struct Training {
    /// The names that a batch is unpacked into.
    batch: Vec<String>,
    /// The statements of its body, by number.
    body: Vec<usize>,
    /// The one that calls `backward`.
    backward: usize,
    /// The loss's variable.
    loss: String,
    /// The first that calls the model.
    forward: usize,
}

impl Places {
    pub(crate) fn find(script: &Script<'_>) -> Self {
        let mut places = Self::default();
        let mut seen_import = false;
        for statement in &script.statements {
            let text = script.text(statement);
            let is_import = text.starts_with("import ") || text.starts_with("from ");
            if statement.indent == 0 && is_import {
                if !seen_import && !text.starts_with("from __future__") {
                    places.imports = statement.first;
                    seen_import = true;
                }
                if text.starts_with("from __future__") {
                    places.imports = statement.last + 1;
                }
                places.after_imports = Some(statement.last + 1);
                if places.torch.is_none() {
                    let name = text.split([' ', '.']).nth(1).unwrap_or_default();
                    let known = ["torch", "torchvision", "transformers", "lightning", "timm"];
                    if known.contains(&name) {
                        places.torch = Some(statement.first);
                    }
                }
            }
            if let Some((name, model, class)) = optimizer(&text) {
                if places.optimizer.is_none() {
                    places.optimizer = Some(Optimizer {
                        name,
                        line: statement.last,
                        class,
                    });
                    places.model = model;
                } else if places.model != model {
                    // Which of several models a module is part of is not told by names.
                    places.model = None;
                }
            }
        }
        places.find_model(script);
        places.training = places.find_training(script);
        places
    }

    /// The place before the optimizer is made of the model's parameters: there the model is complete,
    /// whether it is made in the same function or given to it.
    fn find_model(&mut self, script: &Script<'_>) {
        let (Some(_), Some(optimizer)) = (&self.model, &self.optimizer) else {
            return;
        };
        let place = script
            .statements
            .iter()
            .find(|statement| (statement.first..=statement.last).contains(&optimizer.line));
        self.after_model = place.map(|place| (place.first, " ".repeat(place.indent)));
    }

    fn find_training(&self, script: &Script<'_>) -> Option<Training> {
        let model = self.model.as_ref()?;
        let statements = &script.statements;
        let backward = statements
            .iter()
            .position(|statement| script.text(statement).ends_with(".backward()"))?;
        let loss = script.text(statements.get(backward)?);
        let loss = loss.strip_suffix(".backward()")?.to_owned();
        if !is_name(&loss) {
            return None;
        }
        let indent = statements.get(backward)?.indent;
        // The head of the block around it.
        let head = (0..backward).rev().find(|&at| {
            statements
                .get(at)
                .is_some_and(|other| other.indent < indent)
        })?;
        let batch = batch_names(&script.text(statements.get(head)?))?;
        let body: Vec<usize> = (head + 1..statements.len())
            .take_while(|&at| {
                statements
                    .get(at)
                    .is_some_and(|other| other.indent >= indent)
            })
            .collect();
        let call = format!("{model}(");
        let forward = body.iter().copied().find(|&at| {
            statements.get(at).is_some_and(|statement| {
                let text = script.text(statement);
                text.contains(&call) && !text.contains(&format!(".{call}"))
            })
        })?;
        (forward < backward).then_some(Training {
            batch,
            body,
            backward,
            loss,
            forward,
        })
    }

    /// The training loop in `contexts`, and with each batch in so many parts.
    pub(crate) fn rewritten(
        &self,
        script: &Script<'_>,
        contexts: &[String],
        parts: Option<u32>,
    ) -> Option<Edit> {
        let (training, optimizer) = (self.training.as_ref()?, self.optimizer.as_ref()?);
        if parts.is_some() && !self.can_split(script) {
            return None;
        }
        training.rewrite(script, contexts, parts, &optimizer.name)
    }

    /// Whether it is told how the loop's batches are split.
    pub(crate) fn can_split(&self, script: &Script<'_>) -> bool {
        self.training
            .as_ref()
            .is_some_and(|training| training.pieces(script).is_some())
    }

    /// The line that makes the optimizer.
    pub(crate) fn optimizer_line(&self, script: &Script<'_>) -> Option<usize> {
        let made = self.optimizer.as_ref().map(|call| call.line);
        made.or_else(|| script.call(&["optim.", "Trainer("]))
    }

    /// The line of the training loop that calls the model.
    pub(crate) fn forward_line(&self, script: &Script<'_>) -> Option<usize> {
        let forward = self.training.as_ref()?.forward;
        script.statements.get(forward).map(|one| one.first)
    }

    /// The same, or else one that trains.
    pub(crate) fn training_line(&self, script: &Script<'_>) -> Option<usize> {
        self.forward_line(script)
            .or_else(|| script.call(&[".backward(", "Trainer("]))
    }

    /// The line after the model has been made.
    pub(crate) fn model_line(&self, script: &Script<'_>) -> Option<usize> {
        let made = self.after_model.as_ref().map(|(line, _)| *line);
        made.or_else(|| script.call(&["Trainer("]))
    }
}

impl Training {
    /// How a batch is split: an expression of the number of samples, and what the loop over the parts
    /// goes through, where `{}` is the size of one. `None` where it is not told what a batch is.
    fn pieces(&self, script: &Script<'_>) -> Option<(String, String)> {
        let [name] = self.batch.as_slice() else {
            let parts: Vec<String> = (self.batch.iter())
                .map(|name| format!("{name}.split({{}})"))
                .collect();
            return Some((
                self.batch.first()?.clone(),
                format!("zip({})", parts.join(", ")),
            ));
        };
        let statements = self.body.iter().filter_map(|&at| script.statements.get(at));
        let body: Vec<String> = statements.map(|statement| script.text(statement)).collect();
        let uses = |text: &str| body.iter().any(|line| has_word(line, text));
        // A mapping has no order, and how its entries are split depends on what they are.
        let mapping = ["[\"", "['", ".items(", ".keys(", ".values("];
        if uses(&format!("**{name}")) || mapping.iter().any(|end| uses(&format!("{name}{end}"))) {
            return None;
        }
        let unpacked = body.iter().any(|line| {
            let pair = line.split_once(" = ");
            pair.is_some_and(|(names, value)| names.contains(',') && value == name)
        });
        if unpacked || (0..10).any(|index| uses(&format!("{name}[{index}]"))) {
            return Some((
                format!("{name}[0]"),
                format!("zip(*(piece.split({{}}) for piece in {name}))"),
            ));
        }
        Some((name.clone(), format!("{name}.split({{}})")))
    }

    /// The loop's body up to `backward`, as it would be.
    fn rewrite(
        &self,
        script: &Script<'_>,
        contexts: &[String],
        parts: Option<u32>,
        optimizer: &str,
    ) -> Option<Edit> {
        let statements = &script.statements;
        let first = statements.get(*self.body.first()?)?.first;
        let last = statements.get(self.backward)?;
        let indent = " ".repeat(last.indent);
        let clears = |statement: &Logical| {
            script
                .text(statement)
                .starts_with(&format!("{optimizer}.zero_grad("))
        };
        let samples = script.free_name("samples");
        let mut lines: Vec<String> = Vec::new();
        let mut more = 0;
        if let Some(parts) = parts {
            let (whole, pieces) = self.pieces(script)?;
            lines.push(format!("{indent}{samples} = len({whole})"));
            for &at in &self.body {
                if let Some(statement) = statements.get(at)
                    && at <= self.backward
                    && clears(statement)
                {
                    lines.extend(
                        script
                            .lines
                            .get(statement.first..=statement.last)?
                            .iter()
                            .map(|&l| l.to_owned()),
                    );
                }
            }
            let names = self.batch.join(", ");
            let pieces = pieces.replace("{}", &format!("-(-{samples} // {parts})"));
            lines.push(format!("{indent}for {names} in {pieces}:"));
            more += 4;
        }
        // Contexts are around everything from the model's call to the loss.
        let cast_end = self
            .body
            .iter()
            .copied()
            .filter(|&at| at < self.backward && at >= self.forward)
            .rfind(|&at| {
                statements
                    .get(at)
                    .is_some_and(|s| !clears(s) && s.indent == last.indent)
            })
            .unwrap_or(self.forward);
        let mut at_line = first;
        for &at in self.body.iter().filter(|&&at| at <= self.backward) {
            let statement = statements.get(at)?;
            // Comments and empty lines go with the statement after them.
            let begin = at_line;
            at_line = statement.last + 1;
            if parts.is_some() && clears(statement) {
                continue;
            }
            if !contexts.is_empty() && at == self.forward {
                let before = " ".repeat(last.indent + more);
                lines.push(format!("{before}with {}:", contexts.join(", ")));
            }
            let within = !contexts.is_empty()
                && (self.forward..=cast_end).contains(&at)
                && !clears(statement);
            let shift = " ".repeat(more + if within { 4 } else { 0 });
            if at == self.backward && parts.is_some() {
                let (whole, _) = self.pieces(script)?;
                lines.push(format!(
                    "{indent}{shift}# for a loss that is a mean over samples"
                ));
                lines.push(format!(
                    "{indent}{shift}({} * (len({whole}) / {samples})).backward()",
                    self.loss
                ));
                continue;
            }
            for line in script.lines.get(begin..=statement.last)? {
                lines.push(if line.trim().is_empty() {
                    (*line).to_owned()
                } else {
                    format!("{shift}{line}")
                });
            }
        }
        Some(Edit::replace(first, last.last, lines))
    }
}

/// The names that a loop's head unpacks a batch into: `for x, y in data:`, `for i, (x, y) in
/// enumerate(data):`, `for batch in data:`.
fn batch_names(head: &str) -> Option<Vec<String>> {
    let rest = head.strip_prefix("for ")?;
    let (targets, iterated) = rest.split_once(" in ")?;
    let iterated = iterated.trim_end_matches(':').trim();
    let targets = if iterated.contains("enumerate(") {
        targets.split_once(',')?.1.trim()
    } else {
        targets.trim()
    };
    if iterated.starts_with("range(") {
        return None;
    }
    let targets = targets.trim_start_matches('(').trim_end_matches(')');
    let names: Vec<String> = targets
        .split(',')
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    (!names.is_empty() && names.iter().all(|name| is_name(name))).then_some(names)
}

/// Whether `text` stands in `line` and is no end of a longer name.
fn has_word(line: &str, text: &str) -> bool {
    line.match_indices(text).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().last());
        before.is_none_or(|last| !(last.is_alphanumeric() || "_.".contains(last)))
    })
}

fn is_name(text: &str) -> bool {
    let mut characters = text.chars();
    characters
        .next()
        .is_some_and(|first| first.is_alphabetic() || first == '_')
        && characters.all(|character| character.is_alphanumeric() || character == '_')
}

/// The optimizer's variable and the model's, of a statement like
/// `optimizer = torch.optim.AdamW(model.parameters(), …)`, and whether it calls the class: a model
/// may make its optimizer itself, by `configure_optimizers`.
fn optimizer(text: &str) -> Option<(String, Option<String>, bool)> {
    let (name, call) = text.split_once(" = ")?;
    let known = [
        "Adam",
        "SGD",
        "RMSprop",
        "Adagrad",
        "Adafactor",
        "Lion",
        "Muon",
    ];
    let function = call.split('(').next()?;
    if let Some(model) = function.strip_suffix(".configure_optimizers")
        && is_name(name)
        && is_name(model)
    {
        return Some((name.to_owned(), Some(model.to_owned()), false));
    }
    let class = function.rsplit('.').next()?;
    if !is_name(name) || !known.iter().any(|known| class.starts_with(known)) {
        return None;
    }
    let model = call
        .split(".parameters()")
        .next()
        .filter(|_| call.contains(".parameters()"))
        .map(|before| {
            before
                .rsplit(|character: char| {
                    !(character.is_alphanumeric() || "_.".contains(character))
                })
                .next()
                .unwrap_or_default()
                .to_owned()
        })
        // An attribute of something is not what modules are named after.
        .filter(|model| is_name(model));
    Some((name.to_owned(), model, true))
}
