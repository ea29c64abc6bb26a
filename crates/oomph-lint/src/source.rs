//! A source to lint: a Python file or a notebook, parsed.

use std::fmt;

use ruff_python_ast::ModModule;
use ruff_python_ast::token::TokenKind;
use ruff_python_parser::{
    Mode, ParseOptions, Parsed, lexer, parse_cells_unchecked, parse_unchecked,
};
use ruff_source_file::LineIndex;
use ruff_text_size::{Ranged, TextRange, TextSize};

use crate::notebook::Notebook;

/// A larger file is data, not a program that someone wrote.
pub const MAX_FILE_BYTES: usize = 16 << 20;

/// Expressions nested deeper than this are refused. CPython gives up at 200 nested brackets; long
/// chains of operators are legal, but the parser recurses into both.
const MAX_DEPTH: usize = 10_000;

/// Nesting that is safe on any thread's stack. Deeper sources are linted on a thread of their own.
const SMALL_DEPTH: usize = 120;

/// Stack of that thread: `MAX_DEPTH` levels of the parser's deepest path, with room.
const DEEP_STACK_BYTES: usize = 512 << 20;

/// Why a file could not be linted, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Cell of a notebook, from 1.
    pub cell: Option<usize>,
    /// What was found.
    pub message: String,
}

impl Problem {
    /// A problem at a line and column.
    pub fn new(line: usize, column: usize, message: impl Into<String>) -> Self {
        Self {
            line: line.max(1),
            column: column.max(1),
            cell: None,
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(cell) = self.cell {
            write!(f, "cell {cell}:")?;
        }
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for Problem {}

/// A line and column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Cell of a notebook, from 1.
    pub cell: Option<usize>,
    /// Line, from 1; in its cell for notebooks.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// The text of a file, ready to lint.
#[derive(Clone, Debug)]
pub struct Source {
    notebook: Option<Notebook>,
    text: String,
}

impl Source {
    /// A Python file.
    pub fn python(text: String) -> Result<Self, Problem> {
        check_size(&text)?;
        Ok(Self {
            notebook: None,
            text,
        })
    }

    /// A Jupyter notebook.
    pub fn notebook(text: String) -> Result<Self, Problem> {
        check_size(&text)?;
        let notebook = Notebook::read(text)?;
        Ok(Self {
            text: notebook.code.clone(),
            notebook: Some(notebook),
        })
    }

    /// Reads the bytes of a file by the name it has: `.ipynb` is a notebook.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, Problem> {
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = valid.split(|byte| *byte == b'\n').count();
            Problem::new(line, 1, "not UTF-8")
        })?;
        let is_notebook = std::path::Path::new(name)
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("ipynb"));
        if is_notebook {
            Self::notebook(text)
        } else {
            Self::python(text)
        }
    }

    /// The Python code: the file itself, or all code cells of a notebook.
    pub fn code(&self) -> &str {
        &self.text
    }

    /// Whether this is a notebook.
    pub fn is_notebook(&self) -> bool {
        self.notebook.is_some()
    }

    /// The file with its code replaced. For notebooks, `None` if an edit would cross cells.
    pub(crate) fn with_code(&self, fixes: &[&crate::fix::Fix]) -> Option<(String, Source, usize)> {
        match &self.notebook {
            None => {
                let (text, applied) = crate::fix::apply(&self.text, fixes.iter().copied());
                let source = Self::python(text.clone()).ok()?;
                Some((text, source, applied))
            }
            Some(notebook) => {
                let mut texts = Vec::with_capacity(notebook.cells.len());
                let mut applied = 0;
                for cell in &notebook.cells {
                    let inside: Vec<crate::fix::Fix> = fixes
                        .iter()
                        .filter(|fix| {
                            fix.edits
                                .iter()
                                .all(|edit| cell.range.contains_range(edit.range))
                        })
                        .map(|fix| {
                            let mut fix = (*fix).clone();
                            for edit in &mut fix.edits {
                                edit.range -= cell.range.start();
                            }
                            fix
                        })
                        .collect();
                    let (text, count) = crate::fix::apply(&self.text[cell.range], inside.iter());
                    texts.push(text);
                    applied += count;
                }
                let raw = notebook.with_cells(&texts);
                let source = Self::notebook(raw.clone()).ok()?;
                Some((raw, source, applied))
            }
        }
    }

    pub(crate) fn position(&self, index: &LineIndex, offset: TextSize) -> Position {
        let at = index.line_column(offset, &self.text);
        let (line, column) = (at.line.get(), at.column.get());
        match self
            .notebook
            .as_ref()
            .and_then(|notebook| notebook.cell_at(offset))
        {
            Some(cell) => {
                let first = index.line_index(cell.range.start()).get();
                Position {
                    cell: Some(cell.number),
                    line: line.saturating_sub(first) + 1,
                    column,
                }
            }
            None => Position {
                cell: None,
                line,
                column,
            },
        }
    }

    /// Parses the code. Broken cells of a notebook are left out and reported; a broken file is
    /// reported and has no tree.
    pub(crate) fn parse(&self) -> (Option<Parsed<ModModule>>, Vec<Problem>) {
        let Some(notebook) = &self.notebook else {
            let parsed =
                parse_unchecked(&self.text, ParseOptions::from(Mode::Module)).try_into_module();
            let Some(parsed) = parsed else {
                return (None, vec![Problem::new(1, 1, "not a module")]);
            };
            if let Some(error) = parsed.errors().first() {
                let index = LineIndex::from_source_text(&self.text);
                let at = self.position(&index, error.location.start());
                let problem = Problem::new(at.line, at.column, error.error.to_string());
                return (None, vec![problem]);
            }
            return (Some(parsed), Vec::new());
        };
        let mut problems = notebook.problems.clone();
        let options = ParseOptions::from(Mode::Ipython);
        let cells = notebook.cells.iter().map(|cell| cell.range);
        let parsed = parse_cells_unchecked(&self.text, cells, &options);
        if parsed.has_invalid_syntax() {
            problems.push(Problem::new(1, 1, "the cells do not parse together"));
            return (None, problems);
        }
        (Some(parsed), problems)
    }
}

fn check_size(text: &str) -> Result<(), Problem> {
    if text.len() > MAX_FILE_BYTES {
        return Err(Problem::new(
            1,
            1,
            format!(
                "the file has {} bytes; at most {MAX_FILE_BYTES} are linted",
                text.len()
            ),
        ));
    }
    Ok(())
}

/// Runs `work` with enough stack for how deep the code nests, or says that it nests too deeply.
pub(crate) fn with_stack<T: Send>(
    code: &str,
    notebook: bool,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Problem> {
    let failed = || Problem::new(1, 1, "the linter failed on this file; please report it");
    if depth_bound(code) <= SMALL_DEPTH {
        // The parser asserts what it believes of itself. A belief that one file disproves must not
        // end the run for all others.
        return std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|_| failed());
    }
    let depth = token_depth(code, notebook);
    if depth > MAX_DEPTH {
        return Err(Problem::new(
            1,
            1,
            format!("expressions nest {depth} deep; at most {MAX_DEPTH} are linted"),
        ));
    }
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(DEEP_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| {
                Problem::new(1, 1, format!("no thread for a deeply nested file: {error}"))
            })?
            .join()
            .map_err(|_| failed())
    })
}

/// A bound on how deep the parser recurses, from the bytes alone: never too small, often too
/// large (it counts inside strings and comments).
fn depth_bound(code: &str) -> usize {
    let mut levels: Vec<usize> = vec![0];
    let mut sum = 0usize;
    let mut max = 0usize;
    let mut indent_start = true;
    let mut column = 0usize;
    let mut previous = b'\n';
    for &byte in code.as_bytes() {
        if indent_start {
            match byte {
                b' ' | b'\t' => {
                    column += 1;
                    previous = byte;
                    // Blocks nest by indentation, one level per column at most.
                    max = max.max(column / 2);
                    continue;
                }
                b'\n' => {
                    column = 0;
                    continue;
                }
                _ => indent_start = false,
            }
        }
        match byte {
            b'(' | b'[' | b'{' => levels.push(0),
            b')' | b']' | b'}' => {
                if levels.len() > 1 {
                    let inner = levels.pop().unwrap_or(0);
                    sum -= inner;
                }
                if let Some(level) = levels.last_mut() {
                    *level += 1;
                    sum += 1;
                }
            }
            b',' => {
                if let Some(level) = levels.last_mut() {
                    sum -= *level;
                    *level = 0;
                }
            }
            b'\n' => {
                indent_start = true;
                column = 0;
                if levels.len() == 1 && previous != b'\\' {
                    sum = 0;
                    levels[0] = 0;
                }
            }
            b'.' | b'+' | b'-' | b'*' | b'/' | b'%' | b'~' | b'&' | b'|' | b'^' | b'@' | b' '
            | b':' => {
                if let Some(level) = levels.last_mut() {
                    *level += 1;
                    sum += 1;
                }
            }
            _ => {}
        }
        previous = byte;
        max = max.max(sum + levels.len());
    }
    max
}

/// A bound on how deep the parser recurses, from the tokens. The lexer does not recurse.
fn token_depth(code: &str, notebook: bool) -> usize {
    let mode = if notebook {
        Mode::Ipython
    } else {
        Mode::Module
    };
    let mut lexer = lexer::lex(code, mode);
    let mut levels: Vec<usize> = vec![0];
    let mut sum = 0usize;
    let mut max = 0usize;
    let mut blocks = 0usize;
    loop {
        match lexer.next_token() {
            TokenKind::EndOfFile => break,
            TokenKind::Indent => blocks += 1,
            TokenKind::Dedent => blocks = blocks.saturating_sub(1),
            TokenKind::Newline => {
                levels = vec![0];
                sum = 0;
            }
            TokenKind::Lpar
            | TokenKind::Lsqb
            | TokenKind::Lbrace
            | TokenKind::FStringStart
            | TokenKind::TStringStart => {
                levels.push(0);
            }
            TokenKind::Rpar
            | TokenKind::Rsqb
            | TokenKind::Rbrace
            | TokenKind::FStringEnd
            | TokenKind::TStringEnd => {
                if levels.len() > 1 {
                    sum -= levels.pop().unwrap_or(0);
                }
                if let Some(level) = levels.last_mut() {
                    *level += 1;
                    sum += 1;
                }
            }
            TokenKind::Comma => {
                if let Some(level) = levels.last_mut() {
                    sum -= *level;
                    *level = 0;
                }
            }
            TokenKind::Name
            | TokenKind::Int
            | TokenKind::Float
            | TokenKind::Complex
            | TokenKind::String
            | TokenKind::Comment
            | TokenKind::NonLogicalNewline
            | TokenKind::FStringMiddle
            | TokenKind::TStringMiddle => {}
            _ => {
                if let Some(level) = levels.last_mut() {
                    *level += 1;
                    sum += 1;
                }
            }
        }
        max = max.max(sum + levels.len() + blocks);
    }
    max
}

/// The ranges of comments that say `noqa`, with what they say.
pub(crate) fn noqa_comments<'s>(
    code: &'s str,
    parsed: &Parsed<ModModule>,
) -> Vec<(TextRange, &'s str)> {
    if !code.to_ascii_lowercase().contains("noqa") {
        return Vec::new();
    }
    parsed
        .tokens()
        .iter()
        .filter(|token| token.kind() == TokenKind::Comment)
        .map(|token| (token.range(), &code[token.range()]))
        .filter(|(_, text)| text.to_ascii_lowercase().contains("noqa"))
        .collect()
}
