//! A plan as changes to the user's own script: a unified diff where each change has a clear place,
//! and words where it has none.
//!
//! The words and the edits of a lever are in its own file of `levers/`; here is what edits have in
//! common. The script is parsed ([`script`]); what is not written in the usual way, or could be meant
//! in two ways, is left alone and described instead.

mod diff;
mod frameworks;
pub(crate) mod loops;
pub(crate) mod modules;
pub(crate) mod optimizer;
mod script;
pub(crate) mod settings;
mod training;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use oomph_python_source::{Edit, Module, apply};
use oomph_trace::Trace;

use oomph_run::record::{Blame, is_function};

use crate::levers::Lever;
use script::{Known, first_statement};

pub(crate) use script::Script;

/// A plan by hand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ByHand {
    /// Which of the plan's changes are in the diff and which are not.
    pub head: Vec<String>,
    /// A unified diff of the script, for `patch -p1` and `git apply`; empty if nothing could be
    /// placed.
    pub diff: String,
    /// Lines that the diff adds or removes.
    pub changed: usize,
    /// The script with these changes.
    pub script: String,
    /// Whether the changes wait for copies to the host, which the plan hides.
    pub waits: bool,
    /// The levers that are not in the diff and should be.
    pub missing: Vec<String>,
    /// What is to be done beside the diff: where it goes, and how it looks.
    pub snippets: Vec<String>,
}

impl ByHand {
    /// Whether the diff has all of the plan.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.changed > 0
    }

    /// What to read where the diff is no patch to apply: `why`, what is to be done by hand, and the diff.
    pub fn instruction(&self, path: &str, why: &str, instead: Option<&str>) -> String {
        let mut text =
            format!("# The plan for {path}, by hand\n\nThere is no patch of it: {why}.\n");
        if let Some(file) = instead {
            let _ = write!(
                text,
                "\n`{}` applies the whole plan with one line (`oomph.apply`) instead.\n",
                command(path, file)
            );
        }
        for snippet in &self.snippets {
            let (at, code) = snippet.split_once('\n').unwrap_or((snippet, ""));
            let _ = write!(text, "\n## {}\n", at.trim_end_matches(':'));
            if !code.is_empty() {
                let _ = write!(text, "\n```python\n{code}\n```\n");
            }
        }
        if !self.diff.is_empty() {
            let what = if self.missing.is_empty() {
                "All of it"
            } else {
                "The rest"
            };
            let _ = write!(
                text,
                "\n## {what}, as a diff\n\n```diff\n{}```\n",
                self.diff
            );
        }
        text
    }

    /// The file: what could not be placed comes first, which `patch` and `git apply` skip.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.head {
            let _ = writeln!(text, "# {line}");
        }
        text.push_str("#\n");
        for snippet in &self.snippets {
            text.push_str("# by hand: ");
            text.push_str(&snippet.replace('\n', "\n#   "));
            text.push_str("\n#\n");
        }
        text.push_str(&self.diff);
        text
    }
}

/// The lines of `script` that allocated memory, or called what did, from 1.
pub fn lines_that_ran(trace: &Trace, script: &Path) -> BTreeSet<usize> {
    let stacks = (0..trace.stacks.len()).filter_map(|id| u32::try_from(id).ok());
    let frames = stacks.flat_map(|id| trace.stacks.frames(oomph_trace::StackId(id)));
    frames
        .filter(|frame| Path::new(trace.strings.get(frame.file)) == script)
        .map(|frame| frame.line as usize)
        .collect()
}

/// Writes `levers` as changes of `source`, the script at `path`. `ran` are the lines that a run of it
/// went through, from 1: they tell which of several functions trains. Empty where no run told. `switches` are the levers that a
/// framework has a switch of its own for, as a run of the plan has shown.
pub fn by_hand(
    path: &str,
    source: &str,
    levers: &[Lever],
    ran: &BTreeSet<usize>,
    switches: &BTreeMap<String, String>,
) -> ByHand {
    let parsed = Module::parse(source).ok();
    let mut work = Work {
        text: source.to_owned(),
        original: parsed.as_ref(),
        known: known(source, levers, ran),
        imports: Vec::new(),
        switches,
        of_framework: Vec::new(),
        of_loop: None,
        changes: false,
    };
    let known = work.known.clone();
    let script = parsed.as_ref().map(|module| Script::new(module, &known));
    let (mut placed, mut in_words, mut without) = (Vec::new(), Vec::new(), Vec::new());
    let mut snippets = Vec::new();
    for lever in levers {
        snippets.extend(lever.facets().rest());
    }
    work.of_framework = frameworks::place(&mut work, levers);
    placed.extend(
        levers
            .iter()
            .filter(|lever| work.of_framework.contains(lever)),
    );
    for lever in levers
        .iter()
        .filter(|lever| !placed.contains(lever))
        .collect::<Vec<_>>()
    {
        let facets = lever.facets();
        work.changes = false;
        if facets.place(&mut work, levers).is_none() {
            let at = script.as_ref().and_then(|script| facets.line(script));
            let at = at.map_or_else(String::new, |line| format!("{path}:{line}: "));
            snippets.push(format!("{at}{}", facets.snippet()));
            in_words.push(lever);
        } else if work.changes {
            placed.push(lever);
        } else {
            without.push(lever);
        }
    }
    work.add_imports();
    let old: Vec<&str> = source.lines().collect();
    let changed: Vec<String> = work.text.lines().map(str::to_owned).collect();
    let (diff, count) = diff::unified(path, source, &old, &changed);
    let missing = in_words
        .iter()
        .map(|lever: &&Lever| lever.to_string())
        .collect();
    let mut head = vec![if count == 0 {
        format!("The plan for {path}. Nothing of it is in a diff that could be applied.")
    } else {
        let mut how = command(path, "FILE");
        if !is_elsewhere(path) {
            how.push_str(", or patch -p1 < FILE");
        }
        format!("The plan for {path}, as a diff: {how}.")
    }];
    let listed = [
        ("in the diff", placed),
        ("in words only", in_words),
        ("nothing to change", without),
    ];
    for (how, levers) in listed {
        head.extend(
            levers
                .iter()
                .map(|lever| format!("  {how}: {} ({lever})", lever.name())),
        );
    }
    ByHand {
        head,
        diff,
        changed: count,
        script: work.text,
        waits: levers.iter().any(|lever| lever.facets().waits_by_hand()),
        missing,
        snippets,
    }
}

/// Whether the script is not below the folder that diffs are applied in.
fn is_elsewhere(path: &str) -> bool {
    Path::new(path).has_root()
}

/// What applies the diff of the script at `path` that is in `file`. Git refuses files that are not below its folder.
fn command(path: &str, file: &str) -> String {
    if is_elsewhere(path) {
        format!("patch -p1 -d / < {file}")
    } else {
        format!("git apply {file}")
    }
}

/// The levers with coarser ones in place of those that save less by hand than by themselves; `None` if there are none.
pub fn coarser(levers: &[Lever]) -> Option<Vec<Lever>> {
    let replaced = levers.iter().map(|lever| {
        let coarser = lever.facets().coarser(levers);
        coarser.unwrap_or_else(|| lever.clone())
    });
    let replaced: Vec<Lever> = replaced.collect();
    (replaced != levers).then_some(replaced)
}

/// The script at `path` with the one line that applies the plan in the file `plan`: the diff, and the script as changed.
/// `None` if it cannot be parsed, or has the line.
pub fn applying(path: &str, source: &str, plan: &str) -> Option<(String, String)> {
    let module = Module::parse(source).ok()?;
    if source.contains("oomph.apply(") {
        return None;
    }
    let line = format!("import oomph; oomph.apply({plan:?})  # the plan of `oomph fit`");
    let edit = module.insert_before(first_statement(&module)?, &[line])?;
    let text = apply(source, &[edit]);
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let old: Vec<&str> = source.lines().collect();
    let (mut diff, _) = diff::unified(path, source, &old, &lines);
    if is_elsewhere(path) {
        diff.insert_str(0, &format!("# {}\n", command(path, "FILE")));
    }
    Some((diff, text))
}

/// Where the lines that ran are in a script, and what models the levers' modules are of.
fn known(source: &str, levers: &[Lever], ran: &BTreeSet<usize>) -> Known {
    let mut at = 0;
    let mut offsets = Vec::new();
    for (number, line) in source.split_inclusive('\n').enumerate() {
        if ran.contains(&(number + 1)) {
            offsets.push(at + line.len() - line.trim_start().len());
        }
        at += line.len();
    }
    let mut roots = BTreeSet::new();
    for mut lever in levers.iter().cloned() {
        let modules = lever.modules_mut().map(std::mem::take).unwrap_or_default();
        let modules = modules.iter().filter(|module| !is_function(module));
        let names = modules.filter_map(|module| module.split('.').next());
        roots.extend(names.map(str::to_owned));
    }
    Known {
        ran: offsets,
        roots: roots.into_iter().collect(),
    }
}

/// The script as changed so far: each lever reads it anew, so that none undoes another's lines.
#[derive(Clone)]
pub(crate) struct Work<'a> {
    text: String,
    /// `None` if the script cannot be parsed.
    original: Option<&'a Module<'a>>,
    known: Known,
    imports: Vec<&'static str>,
    switches: &'a BTreeMap<String, String>,
    /// The levers that a framework does itself: they are not done once more around its loop.
    of_framework: Vec<Lever>,
    /// The levers that are in the training loop, once it is rewritten.
    of_loop: Option<Vec<Lever>>,
    /// Whether the lever at hand has changed something.
    changes: bool,
}

impl Work<'_> {
    /// Makes the edits that `change` finds in the script as it is now: all of them or none. `None`, if
    /// `change` says so, if they overlap, or if what they make is no Python.
    pub(crate) fn edit(
        &mut self,
        change: impl FnOnce(&Script<'_>) -> Option<Vec<Edit>>,
    ) -> Option<()> {
        let mut edits = {
            let module = Module::parse(&self.text).ok()?;
            change(&Script::new(&module, &self.known))?
        };
        edits.sort_by_key(|edit| (edit.start(), edit.end()));
        let overlap = edits
            .windows(2)
            .any(|pair| matches!(pair, [one, other] if one.end() > other.start()));
        let text = apply(&self.text, &edits);
        if overlap || Module::parse(&text).is_err() {
            return None;
        }
        self.changes |= !edits.is_empty();
        for at in &mut self.known.ran {
            let before = edits.iter().filter(|edit| edit.start() <= *at);
            let (added, removed) = before.fold((0, 0), |sum, edit| {
                (
                    sum.0 + edit.content().len(),
                    sum.1 + edit.end().min(*at) - edit.start(),
                )
            });
            *at = (*at + added).saturating_sub(removed);
        }
        self.text = text;
        Some(())
    }

    /// A name like `word` that the user's script does not use.
    pub(crate) fn free_name(&self, word: &str) -> String {
        self.original
            .map_or_else(|| word.to_owned(), |module| module.free_name(word))
    }

    /// A line to add to the imports, if it is not there.
    pub(crate) fn import(&mut self, line: &'static str) {
        self.imports.push(line);
    }

    fn add_imports(&mut self) {
        let mut lines = std::mem::take(&mut self.imports);
        lines.sort_unstable();
        lines.dedup();
        self.edit(|script| {
            let module = script.module;
            lines.retain(|line| !module.body().iter().any(|stmt| module.slice(stmt) == *line));
            // torch's own come after the others, as the environment is set before the first of them.
            let (later, first): (Vec<&str>, Vec<&str>) = lines.into_iter().partition(|line| {
                line.starts_with("from torch") || line.starts_with("import torch")
            });
            let mut edits = vec![module.insert_before(first_statement(module)?, &first)?];
            edits.push(match script.last_import {
                Some(last) => module.insert_after(last, &later)?,
                None => module.insert_before(first_statement(module)?, &later)?,
            });
            Some(edits)
        });
    }
}

/// What a script was stopped with, and what to do instead: what the lever that refused says, or the same
/// change by hand. `levers` are those of the plan.
pub fn refusal(message: &str, blame: Option<&Blame>, levers: &[Lever]) -> String {
    let instead = blame.and_then(|blame| {
        let is_it = |lever: &&Lever| blame.manually && lever.name() == blame.lever;
        let snippet = || Some(levers.iter().find(is_it)?.facets().snippet());
        blame.instead.clone().or_else(snippet)
    });
    instead.map_or_else(
        || message.to_owned(),
        |instead| format!("{message}\nby hand:\n{instead}"),
    )
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

#[cfg(test)]
mod tests;
