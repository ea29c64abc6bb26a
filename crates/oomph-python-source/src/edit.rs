//! Edits of a text, and what makes them.

use ruff_python_ast::token::TokenKind;
use ruff_python_ast::{ExprCall, Stmt};
use ruff_text_size::{Ranged, TextRange, TextSize};

use crate::module::Module;

/// Replaces a byte range of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    range: TextRange,
    content: String,
}

impl Edit {
    /// Replaces a statement, an expression or a range.
    pub fn replace(node: impl Ranged, content: impl Into<String>) -> Self {
        Self {
            range: node.range(),
            content: content.into(),
        }
    }

    /// Inserts at an offset.
    pub fn insert(at: TextSize, content: impl Into<String>) -> Self {
        Self {
            range: TextRange::empty(at),
            content: content.into(),
        }
    }

    /// The first byte that is replaced.
    pub fn start(&self) -> usize {
        self.range.start().to_usize()
    }

    /// One past the last byte that is replaced.
    pub fn end(&self) -> usize {
        self.range.end().to_usize()
    }

    /// The new text.
    pub fn content(&self) -> &str {
        &self.content
    }

    /// The same edit of a part of the text. `None` if it reaches beyond that part.
    pub(crate) fn within(&self, part: TextRange) -> Option<Self> {
        part.contains_range(self.range).then(|| Self {
            range: self.range - part.start(),
            content: self.content.clone(),
        })
    }

    fn touches(&self, other: &Self) -> bool {
        self.range.end() >= other.range.start() && other.range.end() >= self.range.start()
    }
}

/// Applies edits, in any order. Several may insert at one offset, in the order given; one that
/// overlaps another that begins before it is left out.
///
/// ```
/// use oomph_python_source::{Edit, Module, apply};
///
/// let module = Module::parse("a = 1\nb = 2\n")?;
/// let edits = [Edit::replace(&module.body()[1], "c = 3")];
/// assert_eq!(apply(module.text(), &edits), "a = 1\nc = 3\n");
/// # Ok::<(), oomph_python_source::Problem>(())
/// ```
pub fn apply(text: &str, edits: &[Edit]) -> String {
    let mut sorted: Vec<&Edit> = edits.iter().collect();
    sorted.sort_by_key(|edit| (edit.start(), edit.end()));
    let mut end = 0;
    sorted.retain(|edit| {
        let free = end <= edit.start();
        if free {
            end = edit.end();
        }
        free
    });
    splice(text, &sorted).unwrap_or_else(|| text.to_owned())
}

/// Applies groups of edits: all of a group or none of it. A group with an edit that overlaps or
/// touches one of an earlier group is left out. Returns the new text and how many groups went in.
pub fn apply_groups<'e>(
    text: &str,
    groups: impl IntoIterator<Item = &'e [Edit]>,
) -> (String, usize) {
    let mut chosen: Vec<&Edit> = Vec::new();
    let mut applied = 0;
    for group in groups {
        let free = group
            .iter()
            .all(|edit| !chosen.iter().any(|other| edit.touches(other)));
        if free && !group.is_empty() {
            chosen.extend(group);
            applied += 1;
        }
    }
    chosen.sort_by_key(|edit| edit.start());
    splice(text, &chosen).map_or_else(|| (text.to_owned(), 0), |text| (text, applied))
}

/// Makes edits that are in order and do not overlap. `None` if they are not of this text.
fn splice(text: &str, edits: &[&Edit]) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for edit in edits {
        out.push_str(text.get(at..edit.start())?);
        out.push_str(&edit.content);
        at = edit.end();
    }
    out.push_str(text.get(at..)?);
    Some(out)
}

/// Edits of a module.
impl Module<'_> {
    /// Inserts lines before a statement, indented as it is. `None` if another statement is before
    /// it on its line.
    ///
    /// ```
    /// use oomph_python_source::{Module, apply, calls_in, Ranged};
    ///
    /// let module = Module::parse("for x in data:\n    step(x)\n")?;
    /// let step = module.statements_around(calls_in(module.body())[0].start())[1];
    /// let edits = [
    ///     module.insert_before(step, &["clear()"]).unwrap(),
    ///     module.insert_after(step, &["if log:", "    print(x)"]).unwrap(),
    /// ];
    /// assert_eq!(
    ///     apply(module.text(), &edits),
    ///     "for x in data:\n    clear()\n    step(x)\n    if log:\n        print(x)\n"
    /// );
    /// # Ok::<(), oomph_python_source::Problem>(())
    /// ```
    pub fn insert_before(&self, stmt: &Stmt, lines: &[impl AsRef<str>]) -> Option<Edit> {
        let indent = self.indentation(stmt.start())?;
        let text = lines
            .iter()
            .flat_map(|line| [line.as_ref(), "\n", indent])
            .collect::<String>();
        Some(Edit::insert(stmt.start(), text))
    }

    /// Inserts lines after a statement and the comment behind it, indented as the statement is.
    /// `None` if another statement shares a line with it.
    pub fn insert_after(&self, stmt: &Stmt, lines: &[impl AsRef<str>]) -> Option<Edit> {
        let indent = self.indentation(stmt.start())?;
        let end = self.line_end(stmt.end());
        let rest = self.slice(TextRange::new(stmt.end(), end));
        let after = rest.trim_start_matches([' ', '\t', ';']);
        if !after.trim().is_empty() && !after.starts_with('#') {
            return None;
        }
        let text = lines
            .iter()
            .flat_map(|line| ["\n", indent, line.as_ref()])
            .collect::<String>();
        let kept = rest.trim_end_matches(['\r', '\n']);
        Some(Edit::insert(stmt.end() + TextSize::of(kept), text))
    }

    /// Deletes a statement. A block that would be empty gets `pass`. `None` if the statement shares
    /// a line with something else.
    pub fn delete(&self, stmt: &Stmt) -> Option<Edit> {
        let lines = self.whole_lines(stmt)?;
        if self.block_of(stmt)?.len() == 1 {
            return Some(Edit::replace(stmt, "pass"));
        }
        Some(Edit::replace(lines, ""))
    }

    /// Moves the lines of a range to the right: `by` goes before each that is not blank. Lines that
    /// begin inside a string stay as they are.
    ///
    /// ```
    /// use oomph_python_source::{Module, Ranged, apply};
    ///
    /// let module = Module::parse("a = f(\n  1)\nb = '''\ntext'''\n")?;
    /// let range = module.body()[0].range().cover(module.body()[1].range());
    /// assert_eq!(
    ///     apply(module.text(), &module.indent(range, "    ")),
    ///     "    a = f(\n      1)\n    b = '''\ntext'''\n"
    /// );
    /// # Ok::<(), oomph_python_source::Problem>(())
    /// ```
    pub fn indent(&self, range: impl Ranged, by: &str) -> Vec<Edit> {
        let mut edits = Vec::new();
        let mut at = self.line_start(range.start());
        let strings = self.strings_over_lines();
        while at < range.end() {
            let end = self.line_end(at);
            let inside = strings
                .iter()
                .any(|string| string.start() < at && at < string.end());
            if !inside && !self.slice(TextRange::new(at, end)).trim().is_empty() {
                edits.push(Edit::insert(at, by));
            }
            at = end;
        }
        edits
    }

    /// Where the strings and f-strings are that go on over a line break.
    fn strings_over_lines(&self) -> Vec<TextRange> {
        let mut found = Vec::new();
        let mut open = Vec::new();
        for token in self.tokens() {
            match token.kind() {
                TokenKind::String => found.push(token.range()),
                TokenKind::FStringStart | TokenKind::TStringStart => open.push(token.start()),
                TokenKind::FStringEnd | TokenKind::TStringEnd => {
                    if let Some(start) = open.pop() {
                        found.push(TextRange::new(start, token.end()));
                    }
                }
                _ => {}
            }
        }
        found.retain(|range| self.slice(*range).contains('\n'));
        found
    }

    /// Adds an argument at the end of a call.
    pub fn add_keyword(&self, call: &ExprCall, keyword: &str) -> Edit {
        let inner = call.arguments.inner_range();
        let kept = self.slice(inner).trim_end();
        let at = inner.start() + TextSize::of(kept);
        // A comment may follow the last argument: the new one goes right after that argument.
        let last = call.arguments.iter_source_order().last();
        match last.map(|argument| argument.range().end()) {
            None => Edit::insert(inner.start(), keyword),
            Some(end) if kept.ends_with(',') && end + TextSize::of(",") == at => {
                Edit::insert(at, format!(" {keyword}"))
            }
            Some(end) => Edit::insert(end, format!(", {keyword}")),
        }
    }

    /// Removes an argument that is passed by name, with the comma that goes with it. `None` if there
    /// is no such argument, or if a comment would go, too.
    ///
    /// ```
    /// use oomph_python_source::{Module, apply, calls_in};
    ///
    /// let module = Module::parse("Adam(params, fused=True)\n")?;
    /// let edit = module.remove_keyword(calls_in(module.body())[0], "fused").unwrap();
    /// assert_eq!(apply(module.text(), &[edit]), "Adam(params)\n");
    /// # Ok::<(), oomph_python_source::Problem>(())
    /// ```
    pub fn remove_keyword(&self, call: &ExprCall, name: &str) -> Option<Edit> {
        let arguments: Vec<_> = call.arguments.iter_source_order().collect();
        let index = arguments.iter().position(|argument| {
            argument
                .as_keyword()
                .is_some_and(|keyword| keyword.arg.as_ref().is_some_and(|arg| arg.as_str() == name))
        })?;
        let own = arguments[index].range();
        let range = if let Some(previous) = index.checked_sub(1).and_then(|at| arguments.get(at)) {
            TextRange::new(previous.range().end(), own.end())
        } else if let Some(next) = arguments.get(index + 1) {
            TextRange::new(own.start(), next.range().start())
        } else {
            call.arguments.inner_range()
        };
        (!self.slice(range).contains('#')).then(|| Edit::replace(range, ""))
    }
}
