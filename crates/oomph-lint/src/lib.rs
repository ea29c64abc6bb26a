//! Rules that find GPU memory bugs in Python training code.
//!
//! - No I/O: callers read files and write results; [`Source`] is a text, [`Config`] is parsed from
//!   a text.
//! - One rule is one file in `rules/`, named after it; its doc comment is its page ([`Rule::page`]).
//!   What several rules ask is in `queries/`, what the source means in `semantic/`.
//! - A rule reports what the source proves: when names or calls leave the file, the semantic model
//!   says "unknown" and rules stay quiet. What the other files of a project say ([`Around`]) is
//!   little: whether they work on a GPU, save weights, and turn gradients off in a method.
//! - A fix never breaks a file: every fixed text is parsed again before it is returned.
//!
//! ```
//! use oomph_lint::{Selection, Source, lint};
//!
//! let source = Source::python("import torch\ntorch.no_grad()\n".to_string())?;
//! let linted = lint(&source, &Selection::all());
//! assert_eq!(linted.findings[0].rule.code, "OOM203");
//! # Ok::<(), oomph_lint::Problem>(())
//! ```

pub mod output;

mod config;
mod fix;
mod held;
mod noqa;
mod pins;
mod project;
mod queries;
mod reach;
mod rule;
mod rules;
mod scope;
mod semantic;
mod sizes;

use oomph_python_source::{Module, with_stack};

pub use config::{Config, ConfigError, Selection};
pub use fix::{Applicability, Fix};
pub use held::{HeldBytes, order_by_held};
pub use oomph_python_source::{Edit, Position, Problem, Source};
pub use pins::{Newest, may_pin, newest_torch, newest_torch_for_python};
use project::Assumptions;
pub use project::{Around, FileFacts, Project};
pub use rule::{FixAvailability, Fresh, Rule};
pub use rules::{ALL, by_code};
pub use scope::Scope;

/// Fixes are applied at most this often in a row: a fix may uncover another finding, but a chain
/// this long would be two rules undoing each other.
const MAX_FIX_ROUNDS: usize = 10;

/// One finding.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// What was found.
    pub message: String,
    /// What to do about it.
    pub help: Option<&'static str>,
    /// Where it begins.
    pub start: Position,
    /// Where it ends.
    pub end: Position,
    /// The bytes of [`Source::code`] that it covers.
    pub span: std::ops::Range<usize>,
    /// The fix, if there is one.
    pub fix: Option<Fix>,
    /// The lines whose memory it is about.
    pub scope: Scope,
    /// Bytes that a trace found to be held by those lines.
    pub held_bytes: Option<u64>,
    /// The PyTorch from which on it is true.
    since: Newest,
}

/// What linting a source gave.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Linted {
    /// The findings, in source order.
    pub findings: Vec<Finding>,
    /// Why the source, or some cells of it, could not be linted.
    pub problems: Vec<Problem>,
}

/// A look at one file of a project whose others are not read yet.
///
/// Its findings rest on what such projects usually say of a file; what was asked is kept. Most files ask little, so that
/// nobody needs to keep their trees, or to parse them again, once the project is known.
#[derive(Debug)]
pub struct FirstLook {
    linted: Linted,
    assumptions: Assumptions,
}

impl FirstLook {
    /// Parses a source, for what it says to the other files of its project and for its findings as far as is known.
    pub fn at(source: &Source, selection: &Selection) -> (FileFacts, Self) {
        let work = || {
            let (module, problems) = source.parse();
            let facts = FileFacts::of_parsed(source, module.as_ref(), problems.is_empty());
            let around = Around::assumed(&facts);
            let mut findings = module.map_or_else(Vec::new, |module| {
                findings(source, &module, selection, &around)
            });
            keep_run(&mut findings, &problems);
            let look = Self {
                linted: Linted { findings, problems },
                assumptions: around.assumptions(),
            };
            (facts, look)
        };
        with_stack(source.code(), source.is_notebook(), work).unwrap_or_else(|problem| {
            let look = Self {
                linted: Linted {
                    findings: Vec::new(),
                    problems: vec![problem],
                },
                assumptions: Assumptions::default(),
            };
            (FileFacts::default(), look)
        })
    }

    /// Whether it found anything.
    pub fn has_findings(&self) -> bool {
        !self.linted.findings.is_empty()
    }

    /// What [`lint_in`] gives, if the project is as it was assumed.
    pub fn settled(mut self, around: &Around) -> Option<Linted> {
        if !self.assumptions.hold(around) {
            return None;
        }
        self.linted
            .findings
            .retain(|finding| around.may_run(finding.since));
        Some(self.linted)
    }
}

/// Lints a source by itself.
pub fn lint(source: &Source, selection: &Selection) -> Linted {
    lint_in(source, selection, &Around::default())
}

/// Lints a source as a part of its project.
pub fn lint_in(source: &Source, selection: &Selection, around: &Around) -> Linted {
    let work = || lint_parsed(source, selection, around);
    match with_stack(source.code(), source.is_notebook(), work) {
        Ok(linted) => linted,
        Err(problem) => Linted {
            findings: Vec::new(),
            problems: vec![problem],
        },
    }
}

fn lint_parsed(source: &Source, selection: &Selection, around: &Around) -> Linted {
    let (module, problems) = source.parse();
    let mut findings = module.map_or_else(Vec::new, |module| {
        findings(source, &module, selection, around)
    });
    keep_run(&mut findings, &problems);
    Linted { findings, problems }
}

/// Drops what stands below a cell that does not parse: a run of the notebook stops there.
fn keep_run(findings: &mut Vec<Finding>, problems: &[Problem]) {
    if let Some(stops) = problems.iter().filter_map(|problem| problem.cell).min() {
        findings.retain(|finding| finding.start.cell.is_none_or(|cell| cell < stops));
    }
}

fn findings(
    source: &Source,
    module: &Module<'_>,
    selection: &Selection,
    around: &Around,
) -> Vec<Finding> {
    // Every rule needs a name that comes from PyTorch or from a library on top of it.
    if !semantic::may_use_torch(module.text()) && around.torch_names().is_empty() {
        return Vec::new();
    }
    let model = semantic::build(module, around);
    if !model.uses_torch {
        return Vec::new();
    }
    let noqa = noqa::Noqa::read(module);
    let is_for_old_python = queries::purpose::is_for_old_python(&model);
    let is_for_old_torch = queries::purpose::is_for_old_torch(&model);
    let mut findings = Vec::new();
    let mut reports = Vec::new();
    let mut scopes: Option<scope::Scopes> = None;
    for rule in ALL {
        if !selection.contains(rule)
            || is_for_old_torch && rule.is_about_newer_torch()
            || is_for_old_python && rule.is_about_gpu_memory()
        {
            continue;
        }
        (rule.check)(&model, &mut reports);
        for report in reports.drain(..) {
            let range = report.range;
            if !around.may_run(report.since)
                || noqa.silences(rule.code, range, module)
                || queries::purpose::is_never_run(&model, range)
                || rule.is_about_gpu_memory() && queries::devices::in_cpu_branch(&model, range)
            {
                continue;
            }
            let scopes = scopes.get_or_insert_with(|| scope::Scopes::new(module));
            findings.push(Finding {
                rule,
                message: report.message,
                help: report.help,
                start: source.position(module, range.start()),
                end: source.position(module, range.end()),
                span: range.start().to_usize()..range.end().to_usize(),
                fix: report.fix,
                scope: scopes.of(rule, range.start(), module),
                held_bytes: None,
                since: report.since,
            });
        }
    }
    findings.sort_by(|a, b| {
        (a.span.start, a.rule.code, a.span.end).cmp(&(b.span.start, b.rule.code, b.span.end))
    });
    // All that OOM502 says OOM501 says as well, where both are selected.
    let says_the_same =
        |code: &str, before: &str| code == before || code == "OOM502" && before == "OOM501";
    findings.dedup_by(|next, before| {
        says_the_same(next.rule.code, before.rule.code) && next.span == before.span
    });
    let evaluated: Vec<Scope> = findings
        .iter()
        .filter(|finding| finding.rule.is_about_evaluation())
        .map(|finding| finding.scope)
        .collect();
    findings.retain(|finding| finding.rule.code != "OOM207" || !evaluated.contains(&finding.scope));
    findings
}

/// What fixing a source gave.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fixed {
    /// The text of the file after the fixes.
    pub text: String,
    /// How many fixes went in.
    pub applied: usize,
    /// What remains.
    pub linted: Linted,
    /// The source after the fixes.
    pub source: Source,
}

/// Lints a source and applies fixes until none is left: the safe ones, or all of them.
///
/// Returns `None` if there is nothing to fix. A round whose result would not parse is dropped, and
/// what was fixed before it is kept.
pub fn fix(source: &Source, selection: &Selection, least: Applicability) -> Option<Fixed> {
    fix_in(source, selection, least, &Around::default())
}

/// As [`fix`], for a source that is part of a project.
pub fn fix_in(
    source: &Source,
    selection: &Selection,
    least: Applicability,
    around: &Around,
) -> Option<Fixed> {
    let mut linted = lint_in(source, selection, around);
    if !linted.problems.is_empty() && !source.is_notebook() {
        return None;
    }
    let mut fixed: Option<Fixed> = None;
    for _ in 0..MAX_FIX_ROUNDS {
        let wanted: Vec<&[Edit]> = linted
            .findings
            .iter()
            .filter_map(|finding| finding.fix.as_ref())
            .filter(|fix| fix.applicability >= least)
            .map(|fix| fix.edits.as_slice())
            .collect();
        let current = fixed.as_ref().map_or(source, |fixed| &fixed.source);
        let Some((text, next, applied)) = current.edited(&wanted) else {
            break;
        };
        if applied == 0 {
            break;
        }
        let after = lint_in(&next, selection, around);
        if after.problems.len() > linted.problems.len() {
            break;
        }
        let before = fixed.as_ref().map_or(0, |fixed| fixed.applied);
        linted = after.clone();
        fixed = Some(Fixed {
            text,
            applied: before + applied,
            linted: after,
            source: next,
        });
    }
    fixed
}
