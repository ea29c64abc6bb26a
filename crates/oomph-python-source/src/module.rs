//! A parsed text: its tree, its lines, its comments.

use std::sync::OnceLock;

use ruff_python_ast::token::{TokenKind, Tokens};
use ruff_python_ast::{ModModule, Stmt};
use ruff_python_parser::{Mode, ParseOptions, Parsed, parse_unchecked};
use ruff_source_file::{LineIndex, OneIndexed};
use ruff_text_size::{Ranged, TextRange, TextSize};

use crate::imports::Imports;
use crate::problem::{Position, Problem};
use crate::search::blocks_of;
use crate::stack::{is_shallow, with_stack};

/// A parsed Python text.
#[derive(Debug)]
pub struct Module<'a> {
    text: &'a str,
    parsed: Parsed<ModModule>,
    lines: OnceLock<LineIndex>,
}

impl<'a> Module<'a> {
    /// Parses a script. A problem if its syntax is wrong, or if it nests so deeply that other
    /// threads could not walk the tree; [`Source`](crate::Source) reads that, too.
    ///
    /// ```
    /// use oomph_python_source::Module;
    ///
    /// let module = Module::parse("for x in data:\n    step(x)\n")?;
    /// assert_eq!(module.body().len(), 1);
    /// let problem = Module::parse("for x in data\n").unwrap_err();
    /// assert_eq!((problem.line, problem.column), (1, 14));
    /// # Ok::<(), oomph_python_source::Problem>(())
    /// ```
    pub fn parse(text: &'a str) -> Result<Self, Problem> {
        if !is_shallow(text) {
            return Err(Problem::new(1, 1, "the code nests too deeply"));
        }
        with_stack(text, false, || Self::parse_here(text))?
    }

    /// Parses a script, whatever stack that takes.
    pub(crate) fn parse_here(text: &'a str) -> Result<Self, Problem> {
        let options = ParseOptions::from(Mode::Module);
        let mut parsed = parse_unchecked(text, options.clone());
        if parsed.has_invalid_syntax()
            && let Some(today) = without_async_arguments(text)
        {
            let again = parse_unchecked(&today, options);
            if !again.has_invalid_syntax() {
                parsed = again;
            }
        }
        let parsed = parsed.try_into_module();
        let Some(parsed) = parsed else {
            return Err(Problem::new(1, 1, "not a module"));
        };
        let error = parsed.errors().first();
        let error = error.map(|error| (error.location.start(), error.error.to_string()));
        let module = Self::of(text, parsed);
        match error {
            Some((at, message)) => {
                let at = module.position(at);
                Err(Problem::new(at.line, at.column, message))
            }
            None => Ok(module),
        }
    }

    /// A text that has been parsed.
    pub(crate) fn of(text: &'a str, parsed: Parsed<ModModule>) -> Self {
        Self {
            text,
            parsed,
            lines: OnceLock::new(),
        }
    }

    /// The text.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// The statements at the top.
    pub fn body(&self) -> &[Stmt] {
        &self.parsed.syntax().body
    }

    /// The text of a statement, an expression or a range.
    pub fn slice(&self, node: impl Ranged) -> &'a str {
        let range = node.start().to_usize()..node.end().to_usize();
        self.text.get(range).unwrap_or_default()
    }

    /// The comments, with their `#`, in order.
    pub fn comments(&self) -> impl Iterator<Item = (TextRange, &'a str)> + '_ {
        self.tokens()
            .iter()
            .filter(|token| token.kind() == TokenKind::Comment)
            .map(|token| (token.range(), self.slice(token.range())))
    }

    /// Every import, those in functions and branches among them.
    pub fn imports(&self) -> Imports {
        Imports::of(self.body())
    }

    /// A name like `word` that the file does not use, for anything: `word`, `word_`, `word__`, …
    ///
    /// ```
    /// use oomph_python_source::Module;
    ///
    /// let module = Module::parse("index = batch.samples  # part\n")?;
    /// assert_eq!(module.free_name("samples"), "samples_");
    /// assert_eq!(module.free_name("part"), "part");
    /// # Ok::<(), oomph_python_source::Problem>(())
    /// ```
    pub fn free_name(&self, word: &str) -> String {
        let mut name = word.to_owned();
        while self
            .tokens()
            .iter()
            .any(|token| token.kind() == TokenKind::Name && self.slice(token.range()) == name)
        {
            name.push('_');
        }
        name
    }

    /// The statements around an offset, outermost first: the last one is the innermost that covers
    /// it. None between statements.
    ///
    /// ```
    /// use oomph_python_source::{Module, Ranged, calls_in};
    ///
    /// let module = Module::parse("def train():\n    for x in data:\n        step(x)\n")?;
    /// let call = calls_in(module.body())[0];
    /// let around = module.statements_around(call.start());
    /// assert_eq!(around.len(), 3);
    /// assert!(around[0].is_function_def_stmt() && around[1].is_for_stmt());
    /// # Ok::<(), oomph_python_source::Problem>(())
    /// ```
    pub fn statements_around(&self, offset: TextSize) -> Vec<&Stmt> {
        let mut around = Vec::new();
        let mut blocks = vec![self.body()];
        while let Some(stmt) = blocks
            .iter()
            .flat_map(|block| block.iter())
            .find(|stmt| stmt.range().contains(offset))
        {
            around.push(stmt);
            blocks = blocks_of(stmt);
        }
        around
    }

    /// The block that holds a statement: the statement's siblings and itself. `None` if it is not
    /// of this module.
    pub fn block_of(&self, stmt: &Stmt) -> Option<&[Stmt]> {
        let mut blocks = vec![self.body()];
        loop {
            if let Some(block) = blocks
                .iter()
                .find(|block| block.iter().any(|each| std::ptr::eq(each, stmt)))
            {
                return Some(block);
            }
            let parent = blocks
                .iter()
                .flat_map(|block| block.iter())
                .find(|each| each.range().contains_range(stmt.range()))?;
            blocks = blocks_of(parent);
        }
    }

    /// The line of an offset, from 1.
    pub fn line_of(&self, offset: TextSize) -> usize {
        self.line_index().line_index(offset).get()
    }

    /// A line's text, without its line break. Lines count from 1.
    pub fn line(&self, number: usize) -> Option<&'a str> {
        let number = OneIndexed::new(number)?;
        if number.get() > self.line_index().line_count() {
            return None;
        }
        let range = self.line_index().line_range(number, self.text);
        Some(self.slice(range).trim_end_matches(['\r', '\n']))
    }

    /// The line and column of an offset.
    pub fn position(&self, offset: TextSize) -> Position {
        let at = self.line_index().line_column(offset, self.text);
        Position {
            cell: None,
            line: at.line.get(),
            column: at.column.get(),
        }
    }

    /// The white space before an offset on its line, if nothing else is before it. For the start of
    /// a statement this is its indentation, unless another statement is before it on the line.
    pub fn indentation(&self, at: TextSize) -> Option<&'a str> {
        let indent = self.slice(TextRange::new(self.line_start(at), at));
        indent.trim().is_empty().then_some(indent)
    }

    /// The lines of a statement, with the line break at their end, if nothing else is on them.
    pub fn whole_lines(&self, node: impl Ranged) -> Option<TextRange> {
        self.indentation(node.start())?;
        let end = self.line_end(node.end());
        let rest = self.slice(TextRange::new(node.end(), end));
        rest.trim()
            .is_empty()
            .then(|| TextRange::new(self.line_start(node.start()), end))
    }

    /// The first byte of the line that holds an offset.
    pub(crate) fn line_start(&self, at: TextSize) -> TextSize {
        let before = self.slice(TextRange::up_to(at));
        at - TextSize::of(&before[before.rfind('\n').map_or(0, |end| end + 1)..])
    }

    /// One past the line break of the line that holds an offset, or the end of the text.
    pub(crate) fn line_end(&self, at: TextSize) -> TextSize {
        let rest = self.slice(TextRange::new(at, TextSize::of(self.text)));
        at + TextSize::of(&rest[..rest.find('\n').map_or(rest.len(), |end| end + 1)])
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        self.parsed.tokens()
    }

    pub(crate) fn line_index(&self) -> &LineIndex {
        self.lines
            .get_or_init(|| LineIndex::from_source_text(self.text))
    }
}

/// The text with every argument that is called `async` under another name of the same length, if there
/// is one: `x.cuda(async=True)` was Python until 3.7. Offsets are those of the text.
pub(crate) fn without_async_arguments(text: &str) -> Option<String> {
    const OLD: &str = "async";
    let mut today: Option<String> = None;
    for (at, _) in text.match_indices(OLD) {
        let before = text[..at].trim_end().chars().next_back();
        let after = text[at + OLD.len()..].trim_start();
        let is_argument =
            matches!(before, Some('(' | ',')) && after.starts_with('=') && !after.starts_with("==");
        if is_argument {
            today
                .get_or_insert_with(|| text.to_owned())
                .replace_range(at..at + OLD.len(), "aSync");
        }
    }
    today
}
