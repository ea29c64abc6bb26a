//! Text: the source, underlined.

use std::fmt::Write as _;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};

use oomph_bytes::format_bytes;

use super::{FileReport, location};
use crate::{Applicability, Finding, Source};

/// How text is written.
#[derive(Clone, Copy, Debug)]
pub struct TextOptions {
    /// With colours.
    pub color: bool,
    /// One line per finding, without the source.
    pub concise: bool,
    /// Columns of the terminal.
    pub width: usize,
    /// Wraps a text at spaces to so many columns, and indents all lines but the first.
    pub wrap: fn(&str, usize, usize) -> String,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            color: false,
            concise: false,
            width: 100,
            wrap: |text, _, _| text.to_owned(),
        }
    }
}

/// Writes findings with their source, and the problems of files.
pub fn text(files: &[FileReport], options: TextOptions) -> String {
    let renderer = if options.color {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let renderer = renderer
        .decor_style(DecorStyle::Unicode)
        .term_width(options.width);
    let mut out = String::new();
    for file in files {
        for problem in &file.problems {
            if options.concise {
                let at = crate::Position {
                    cell: problem.cell,
                    line: problem.line,
                    column: problem.column,
                };
                let _ = writeln!(
                    out,
                    "{}: error: cannot lint: {}",
                    location(&file.path, at),
                    problem.message
                );
                continue;
            }
            let message = format!("cannot lint: {}", problem.message);
            let title = Level::ERROR.primary_title(options.beside("error: ", &message));
            let mut origin = Origin::path(file_in_cell(&file.path, problem.cell));
            origin = origin.line(problem.line).char_column(problem.column);
            out.push_str(&renderer.render(&[title.element(origin)]));
            out.push_str("\n\n");
        }
        for finding in &file.findings {
            if options.concise {
                let _ = writeln!(
                    out,
                    "{}: {} {}{}",
                    location(&file.path, finding.start),
                    finding.rule.code,
                    finding.message,
                    held(finding)
                );
            } else if let Some(source) = &file.source {
                out.push_str(&full(&renderer, &file.path, source, finding, options));
                out.push_str("\n\n");
            }
        }
    }
    out
}

impl TextOptions {
    /// A message wrapped to what is left beside what the renderer puts before it.
    fn beside(self, before: &str, message: &str) -> String {
        let width = self.width.saturating_sub(before.chars().count()).max(20);
        (self.wrap)(message, width, 0)
    }
}

fn full(
    renderer: &Renderer,
    path: &str,
    source: &Source,
    finding: &Finding,
    options: TextOptions,
) -> String {
    // Only the lines of the finding: a renderer that is given the whole file counts through it.
    let code = source.code();
    let from = code[..finding.span.start]
        .rfind('\n')
        .map_or(0, |at| at + 1);
    let last = finding.span.end.max(finding.span.start + 1).min(code.len());
    let to = code[finding.span.end..]
        .find('\n')
        .map_or(code.len(), |at| finding.span.end + at)
        .max(last);
    let lines = code.get(from..to).unwrap_or_default();
    let label = match finding.held_bytes {
        Some(bytes) => format!(
            "{} held by this {}",
            format_bytes(bytes),
            finding.scope.name()
        ),
        None => String::new(),
    };
    let mut annotation =
        AnnotationKind::Primary.span(finding.span.start - from..finding.span.end - from);
    if !label.is_empty() {
        annotation = annotation.label(label);
    }
    // Left of the bar there are the numbers of the lines.
    let gutter = " ".repeat(finding.start.line.to_string().len() + 3);
    let title = format!("warning[{}]: ", finding.rule.code);
    let mut group = Level::WARNING
        .primary_title(options.beside(&title, &finding.message))
        .id(finding.rule.code)
        .element(
            Snippet::source(lines)
                .line_start(finding.start.line)
                .path(file_in_cell(path, finding.start.cell))
                .annotation(annotation),
        );
    if let Some(help) = finding.help {
        let help = options.beside(&format!("{gutter}help: "), help);
        group = group.element(Level::HELP.message(help));
    }
    if let Some(fix) = &finding.fix {
        let flag = match fix.applicability {
            Applicability::Safe => "--fix",
            Applicability::Unsafe => "--unsafe-fixes",
        };
        let note = format!("`{flag}` can {}", fix.message);
        let note = options.beside(&format!("{gutter}note: "), &note);
        group = group.element(Level::NOTE.message(note));
    }
    renderer.render(&[group])
}

fn held(finding: &Finding) -> String {
    finding.held_bytes.map_or_else(String::new, |bytes| {
        format!(
            " ({} held by this {})",
            format_bytes(bytes),
            finding.scope.name()
        )
    })
}

fn file_in_cell(path: &str, cell: Option<usize>) -> String {
    match cell {
        Some(cell) => format!("{path}:cell {cell}"),
        None => path.to_string(),
    }
}
