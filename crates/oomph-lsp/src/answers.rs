//! What the server says of a document: diagnostics, fixes, and the memory of a line.

use std::collections::HashMap;
use std::fmt::Write as _;

use lsp_types::{
    CodeAction, CodeActionKind, CodeActionOrCommand, CodeDescription, Diagnostic,
    DiagnosticSeverity, Hover, HoverContents, MarkupContent, MarkupKind, NumberOrString, Position,
    Range, TextEdit, Uri, WorkspaceEdit,
};
use oomph_bytes::format_bytes;
use oomph_lint::{Applicability, Finding, Scope};

use crate::document::Document;
use crate::memory::RunMemory;
use crate::text::Text;

/// Who says it.
const SOURCE: &str = "oomph";

/// All safe fixes of a document at once.
const FIX_ALL: CodeActionKind = CodeActionKind::new("source.fixAll.oomph");

/// The kinds of changes that are offered.
pub fn kinds() -> Vec<CodeActionKind> {
    vec![CodeActionKind::QUICKFIX, FIX_ALL]
}

/// What a run says of the lines of one document.
#[derive(Clone, Copy)]
pub struct Lines<'a> {
    run: &'a RunMemory,
    /// The document's name in it.
    file: &'a str,
    text: &'a Text,
    /// Whether the document was changed behind our back.
    moved: bool,
}

impl<'a> Lines<'a> {
    /// `None` if the run did not come through the document.
    pub fn of(run: Option<&'a RunMemory>, document: &'a Document) -> Option<Self> {
        let run = run.filter(|_| !document.is_notebook())?;
        Some(Self {
            run,
            file: run.recorded_as(&document.path)?,
            text: &document.cells.first()?.text,
            moved: document.written > Some(run.modified),
        })
    }

    /// The bytes of lines, which count from 1.
    fn bytes(self, first: usize, last: usize) -> u64 {
        self.text.origins(first, last).map_or(0, |(first, last)| {
            self.run.held.of_lines(self.file, first, last)
        })
    }

    /// A sentence on the bytes of the lines that a finding is about.
    fn finding(self, finding: &Finding) -> Option<String> {
        let (what, first, last) = match finding.scope {
            Scope::Line => ("this line", finding.start.line, finding.end.line),
            Scope::Loop(first, last) => ("this loop", first, last),
            Scope::Function(first, last) => ("this function", first, last),
        };
        let bytes = self.bytes(first, last);
        (bytes > 0).then(|| {
            format!(
                "{what} held {} {} ({})",
                format_bytes(bytes),
                self.run.moment(),
                self.run.name
            )
        })
    }
}

/// The findings of each cell.
pub fn diagnostics(document: &Document, lines: Option<Lines>) -> Vec<Vec<Diagnostic>> {
    let mut of_cells = vec![Vec::new(); document.cells.len()];
    for finding in &document.findings {
        if let Some((cell, range)) = document.locate(&finding.span) {
            of_cells[cell].push(diagnostic(finding, range, lines));
        }
    }
    of_cells
}

fn diagnostic(finding: &Finding, range: Range, lines: Option<Lines>) -> Diagnostic {
    let mut message = finding.message.clone();
    let held = lines.and_then(|lines| lines.finding(finding));
    for more in finding.help.into_iter().chain(held.as_deref()) {
        let _ = write!(message, "\n{more}");
    }
    Diagnostic {
        range,
        severity: Some(DiagnosticSeverity::WARNING),
        code: Some(NumberOrString::String(finding.rule.code.to_owned())),
        code_description: finding
            .rule
            .url()
            .parse()
            .ok()
            .map(|href| CodeDescription { href }),
        source: Some(SOURCE.to_owned()),
        message,
        ..Diagnostic::default()
    }
}

/// What can be done about the findings in a part of a cell.
pub fn actions(
    document: &Document,
    cell: usize,
    part: Range,
    only: Option<&[CodeActionKind]>,
) -> Vec<CodeActionOrCommand> {
    // A kind stands for all that begin with it: `source` for `source.fixAll.oomph`.
    let wanted = |kind: &CodeActionKind| {
        only.is_none_or(|only| {
            only.iter().any(|each| {
                let rest = kind.as_str().strip_prefix(each.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        })
    };
    let mut actions = Vec::new();
    let here: Vec<(&Finding, Range)> = document
        .findings
        .iter()
        .filter_map(|finding| {
            let (index, range) = document.locate(&finding.span)?;
            (index == cell).then_some((finding, range))
        })
        .collect();
    if wanted(&CodeActionKind::QUICKFIX) {
        let touched = here
            .iter()
            .filter(|(_, range)| range.start <= part.end && part.start <= range.end);
        for (finding, range) in touched {
            actions.extend(fix(document, finding, *range));
            actions.extend(silence(document, cell, finding, *range));
        }
    }
    if wanted(&FIX_ALL) {
        actions.extend(fix_all(document, cell, &here));
    }
    actions
        .into_iter()
        .map(CodeActionOrCommand::CodeAction)
        .collect()
}

fn fix(document: &Document, finding: &Finding, range: Range) -> Option<CodeAction> {
    let fix = finding.fix.as_ref()?;
    let safe = fix.applicability == Applicability::Safe;
    let caution = if safe {
        ""
    } else {
        " (may change what the program computes)"
    };
    let title = format!("Fix {}: {}{caution}", finding.rule.code, fix.message);
    Some(CodeAction {
        title,
        kind: Some(CodeActionKind::QUICKFIX),
        diagnostics: Some(vec![diagnostic(finding, range, None)]),
        edit: Some(edits_of(document, [finding])?),
        is_preferred: Some(safe),
        ..CodeAction::default()
    })
}

/// `# noqa: CODE` on the last line of a finding.
fn silence(
    document: &Document,
    cell: usize,
    finding: &Finding,
    range: Range,
) -> Option<CodeAction> {
    let text = &document.cells.get(cell)?.text;
    let line = text.line(range.end.line);
    if line.ends_with('\\') {
        return None;
    }
    let code = finding.rule.code;
    let end = text.line_end(range.end.line);
    let (at, new) = match line.to_ascii_lowercase().find("# noqa:") {
        Some(at) => (end - line.len() + at + "# noqa:".len(), format!(" {code},")),
        None => (end, format!("  # noqa: {code}")),
    };
    Some(CodeAction {
        title: format!("Say nothing of {code} on this line"),
        kind: Some(CodeActionKind::QUICKFIX),
        diagnostics: Some(vec![diagnostic(finding, range, None)]),
        edit: Some(workspace_edit([(
            document.cells[cell].uri.clone(),
            vec![TextEdit::new(text.range(at..at), new)],
        )])),
        ..CodeAction::default()
    })
}

/// The safe fixes of a cell, as far as they leave each other alone.
fn fix_all(document: &Document, cell: usize, here: &[(&Finding, Range)]) -> Option<CodeAction> {
    let mut taken: Vec<(usize, usize)> = Vec::new();
    let mut chosen = Vec::new();
    for (finding, _) in here {
        let Some(fix) = &finding.fix else { continue };
        let spans: Vec<_> = fix.edits.iter().map(|e| (e.start(), e.end())).collect();
        let free = |&(start, end): &(usize, usize)| {
            !taken.iter().any(|&(from, to)| start <= to && from <= end)
        };
        if fix.applicability == Applicability::Safe && spans.iter().all(free) {
            taken.extend(spans);
            chosen.push(*finding);
        }
    }
    let edit = edits_of(document, chosen.iter().copied())?;
    // Fixes may reach into another cell, for which nobody asked.
    let own = &document.cells.get(cell)?.uri;
    let only_here = edit.changes.as_ref()?.keys().all(|uri| uri == own);
    (!chosen.is_empty() && only_here).then(|| CodeAction {
        title: "Apply all safe fixes of oomph".to_owned(),
        kind: Some(FIX_ALL),
        edit: Some(edit),
        ..CodeAction::default()
    })
}

/// The edits of findings' fixes, by cell; `None` if one of them is in no cell.
fn edits_of<'a>(
    document: &Document,
    findings: impl IntoIterator<Item = &'a Finding>,
) -> Option<WorkspaceEdit> {
    let mut of_cells: Vec<Vec<TextEdit>> = vec![Vec::new(); document.cells.len()];
    let fixes = findings.into_iter().filter_map(|each| each.fix.as_ref());
    for edit in fixes.flat_map(|fix| &fix.edits) {
        let (cell, range) = document.locate(&(edit.start()..edit.end()))?;
        of_cells[cell].push(TextEdit::new(range, edit.content().to_owned()));
    }
    let changed = document.cells.iter().zip(of_cells);
    Some(workspace_edit(
        changed
            .filter(|(_, edits)| !edits.is_empty())
            .map(|(cell, edits)| (cell.uri.clone(), edits)),
    ))
}

fn workspace_edit(changes: impl IntoIterator<Item = (Uri, Vec<TextEdit>)>) -> WorkspaceEdit {
    WorkspaceEdit {
        changes: Some(changes.into_iter().collect::<HashMap<_, _>>()),
        ..WorkspaceEdit::default()
    }
}

/// What a line held in the newest run, and why a finding on it costs memory.
pub fn hover(
    document: &Document,
    cell: usize,
    at: Position,
    lines: Option<Lines>,
) -> Option<Hover> {
    let mut parts = Vec::new();
    let line = at.line as usize + 1;
    if let Some(lines) = lines {
        let run = lines.run;
        let bytes = lines.bytes(line, line);
        if bytes > 0 {
            let share = bytes as f64 / run.bytes.max(1) as f64 * 100.0;
            parts.push(format!(
                "**{}** of the {} that tensors held {} came through this line ({share:.0} %).",
                format_bytes(bytes),
                format_bytes(run.bytes),
                run.moment(),
            ));
            parts.push(format!("`{}`: {}", run.name, run.verdict));
            if lines.moved {
                parts.push("The file has changed since that run: lines may have moved.".to_owned());
            }
        }
    }
    let mut range = None;
    for finding in &document.findings {
        let Some((index, place)) = document.locate(&finding.span) else {
            continue;
        };
        if index == cell && place.start <= at && at <= place.end {
            let rule = finding.rule;
            range = Some(place);
            if let Some(lines) = lines.and_then(|lines| lines.finding(finding)) {
                parts.push(format!("{}: {lines}.", rule.code));
            }
            parts.push(format!(
                "[{} `{}`]({}): {}",
                rule.code,
                rule.name,
                rule.url(),
                section(&rule.page(), "## Why it costs memory")
            ));
        }
    }
    (!parts.is_empty()).then(|| Hover {
        contents: HoverContents::Markup(MarkupContent {
            kind: MarkupKind::Markdown,
            value: parts.join("\n\n"),
        }),
        range,
    })
}

/// The text below a heading of a page.
fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let (_, below) = page.split_once(heading).unwrap_or_default();
    below.split("\n## ").next().unwrap_or_default().trim()
}
