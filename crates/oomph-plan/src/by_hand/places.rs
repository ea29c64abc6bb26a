//! Where in a script the changes go: its imports, its model, its optimizer, its training loop.

use crate::by_hand::script::{Edit, Logical, Script};
use crate::lever::{Attention, Dtype, Lever};

/// The call that makes the optimizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Optimizer {
    /// The variable.
    pub(super) name: String,
    /// The line.
    pub(super) line: usize,
    /// Whether the call is that of its class, whose arguments are known.
    pub(super) class: bool,
}

/// Places in a script; what is not found is `None`.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    /// Before this line imports may be added.
    pub(super) imports: usize,
    /// The first import of torch or of what stands on it.
    pub(super) torch: Option<usize>,
    /// The line after the last import at the top.
    pub(super) after_imports: Option<usize>,
    /// The model's variable.
    pub(super) model: Option<String>,
    /// The line after the model has been made and moved, and its indentation.
    pub(super) after_model: Option<(usize, String)>,
    /// The optimizer.
    pub(super) optimizer: Option<Optimizer>,
    /// The loop over batches.
    pub(super) training: Option<Training>,
}

/// The loop over batches.
#[derive(Debug, Clone)]
pub(super) struct Training {
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
    pub(super) fn find(script: &Script<'_>) -> Self {
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
    pub(super) fn rewritten(
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
    pub(super) fn can_split(&self, script: &Script<'_>) -> bool {
        self.training
            .as_ref()
            .is_some_and(|training| training.pieces(script).is_some())
    }

    /// The line that a lever which has to be described concerns.
    pub(super) fn of(&self, script: &Script<'_>, lever: &Lever) -> Option<usize> {
        let training = self.training.as_ref();
        let line = |at: usize| script.statements.get(at).map(|statement| statement.first);
        let call = |words: &[&str]| {
            let found = script.statements.iter().find(|one| {
                let text = script.text(one);
                words.iter().any(|word| text.contains(word)) && !text.starts_with("def ")
            });
            found.map(|one| one.first)
        };
        match lever {
            Lever::Allocator { .. } => self.torch,
            Lever::SetToNone {} => call(&["zero_grad("]),
            Lever::OptimizerStep { .. }
            | Lever::Optimizer8bit {}
            | Lever::OptimizerOnCpu {}
            | Lever::StepInBackward {} => self
                .optimizer
                .as_ref()
                .map(|call| call.line)
                .or_else(|| call(&["optim.", "Trainer("])),
            Lever::NoGradEval {} => call(&[".eval()"]),
            Lever::CudnnBenchmark { .. } | Lever::Tf32 { .. } | Lever::InferenceMode {} => {
                self.after_imports
            }
            Lever::MicroBatch { .. } | Lever::MixedPrecision { .. } | Lever::Attention { .. } => {
                training
                    .and_then(|training| line(training.forward))
                    .or_else(|| call(&[".backward(", "Trainer("]))
            }
            Lever::ChunkedCrossEntropy { .. } => {
                let known = [
                    "cross_entropy(",
                    "criterion(",
                    "loss_fn(",
                    "CrossEntropyLoss(",
                ];
                call(&known)
                    .or_else(|| training.and_then(|training| line(training.forward)))
                    .or_else(|| call(&["Trainer("]))
            }
            Lever::Checkpoint { .. }
            | Lever::Recompute { .. }
            | Lever::OffloadActivations { .. }
            | Lever::InplaceActivations { .. }
            | Lever::FusedModules { .. }
            | Lever::Shard { .. } => self
                .after_model
                .as_ref()
                .map(|(line, _)| *line)
                .or_else(|| call(&["Trainer("])),
            Lever::LoadOnCpu { .. } => call(&["torch.load(", "load_file(", "from_pretrained("]),
            Lever::KvCache { .. } => call(&[".generate("]),
            Lever::HalfWeights { .. }
            | Lever::Int8Linear { .. }
            | Lever::StreamWeights { .. }
            | Lever::Compile {} => call(&[".cuda()", ".to("]),
            Lever::SplitBatch { .. } | Lever::ChunkedLogits {} => call(&["no_grad()", "model("]),
        }
    }
}

/// What is around the model's call and the loss under a lever.
pub(super) fn context(lever: &Lever) -> Option<String> {
    match lever {
        Lever::MixedPrecision { dtype: Dtype::Bf16 } => {
            Some("torch.autocast(\"cuda\", dtype=torch.bfloat16)".to_owned())
        }
        Lever::Attention { backend } => Some(attention(*backend)),
        _ => None,
    }
}

/// One kernel of attention first, then the others.
pub(super) fn attention(first: Attention) -> String {
    let name = |backend| match backend {
        Attention::Flash => "FLASH_ATTENTION",
        Attention::Efficient => "EFFICIENT_ATTENTION",
        Attention::Cudnn => "CUDNN_ATTENTION",
    };
    let all = [Attention::Flash, Attention::Efficient, Attention::Cudnn];
    let others = all.into_iter().filter(|other| *other != first);
    let names: Vec<String> = std::iter::once(first)
        .chain(others)
        .map(name)
        .chain(["MATH"])
        .map(|name| format!("torch.nn.attention.SDPBackend.{name}"))
        .collect();
    format!(
        "torch.nn.attention.sdpa_kernel([{}], set_priority=True)",
        names.join(", ")
    )
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
