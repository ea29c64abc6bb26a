//! A plan as changes to the user's own script: a unified diff where each change has a clear place,
//! and words where it has none.
//!
//! The words and the edits of a lever are in its own file of `levers/`; here is what edits have in
//! common. The script is read line by line, with brackets and strings respected ([`script`]); what is
//! not written in the usual way is left alone and described instead.

mod diff;
pub(crate) mod loops;
pub(crate) mod modules;
pub(crate) mod optimizer;
mod places;
mod script;
pub(crate) mod settings;

use std::fmt::Write as _;

use crate::levers::Lever;

pub(crate) use places::Places;
pub(crate) use script::{Edit, Script};

/// A plan by hand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ByHand {
    /// A unified diff of the script, for `patch -p1` and `git apply`; empty if nothing could be
    /// placed.
    pub diff: String,
    /// Lines that the diff adds or removes.
    pub changed: usize,
    /// Changes that could not be placed: where they go, and how they look.
    pub snippets: Vec<String>,
}

impl ByHand {
    /// The file: what could not be placed comes first, which `patch` and `git apply` skip.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for snippet in &self.snippets {
            text.push_str("# by hand: ");
            text.push_str(&snippet.replace('\n', "\n#   "));
            text.push_str("\n#\n");
        }
        text.push_str(&self.diff);
        text
    }
}

/// Writes `levers` as changes of `source`, the script at `path`.
pub fn by_hand(path: &str, source: &str, levers: &[Lever]) -> ByHand {
    let original = Script::new(source);
    let places = Places::find(&original);
    let mut work = Work {
        text: source.to_owned(),
        original: &original,
        imports: Vec::new(),
    };
    let mut snippets = Vec::new();
    for lever in levers {
        let facets = lever.facets();
        snippets.extend(facets.rest());
        if facets.place(&mut work, levers).is_none() {
            let at = facets.line(&original, &places);
            let at = at.map_or_else(String::new, |line| format!("{path}:{}: ", line + 1));
            let words = frameworks(lever, source);
            snippets.push(format!("{at}{}{words}", facets.snippet()));
        }
    }
    work.add_imports();
    let changed: Vec<String> = work.text.lines().map(str::to_owned).collect();
    let (diff, count) = diff::unified(path, source, &original.lines, &changed);
    ByHand {
        diff,
        changed: count,
        snippets,
    }
}

/// The script as changed so far: each lever reads it anew, so that none undoes another's lines.
pub(crate) struct Work<'a> {
    text: String,
    original: &'a Script<'a>,
    imports: Vec<&'static str>,
}

impl Work<'_> {
    pub(crate) fn script(&self) -> Script<'_> {
        Script::new(&self.text)
    }

    pub(crate) fn places(&self) -> Places {
        Places::find(&self.script())
    }

    pub(crate) fn apply(&mut self, mut edits: Vec<Edit>) {
        let mut text = self.script().apply(&mut edits).join("\n");
        text.push('\n');
        self.text = text;
    }

    /// A name like `word` that the user's script does not use.
    pub(crate) fn free_name(&self, word: &str) -> String {
        self.original.free_name(word)
    }

    /// Whether the script has `torch` by that name.
    pub(crate) fn has_torch(&self) -> bool {
        self.original.lines.contains(&"import torch")
    }

    /// A line to add to the imports, if it is not there.
    pub(crate) fn import(&mut self, line: &'static str) {
        self.imports.push(line);
    }

    fn add_imports(&mut self) {
        let mut lines = std::mem::take(&mut self.imports);
        lines.sort_unstable();
        lines.dedup();
        lines.retain(|line| !self.original.lines.contains(line));
        if lines.is_empty() {
            return;
        }
        // torch's own come after the others, as the environment is set before the first of them.
        let (later, first): (Vec<String>, Vec<String>) = lines
            .into_iter()
            .map(str::to_owned)
            .partition(|line| line.starts_with("from torch") || line.starts_with("import torch"));
        let places = self.places();
        let end = places.after_imports.unwrap_or(places.imports);
        self.apply(vec![
            Edit::insert(places.imports, first),
            Edit::insert(end, later),
        ]);
    }
}

/// What is put around the model's call and the loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Context {
    /// The expression after `with`.
    pub(crate) text: String,
    /// The import that it needs.
    pub(crate) import: Option<&'static str>,
}

/// Whether gradients wait for a step, of several backward passes.
pub(crate) fn is_accumulated(levers: &[Lever]) -> bool {
    levers.iter().any(|lever| lever.micro_batches().is_some())
}

/// What the framework that a script uses has of its own for a lever.
fn frameworks(lever: &Lever, source: &str) -> String {
    let lever = lever.facets();
    let mut words = String::new();
    if source.contains("TrainingArguments")
        && let Some(argument) = lever.trainer_argument()
    {
        let _ = write!(words, "\nin TrainingArguments: {argument}");
    }
    if source.contains("lightning")
        && let Some(argument) = lever.lightning_argument()
    {
        let _ = write!(words, "\nin lightning.Trainer: {argument}");
    }
    words
}

#[cfg(test)]
mod tests;
