//! A file that holds Python: a script or a notebook.

use ruff_python_parser::{Mode, ParseOptions, parse_cells_unchecked};
use ruff_text_size::TextSize;

use crate::edit::{Edit, apply_groups};
use crate::module::{Module, without_async_arguments};
use crate::notebook::Notebook;
use crate::problem::{Position, Problem};

/// A larger file is data, not a program that someone wrote.
pub const MAX_FILE_BYTES: usize = 16 << 20;

/// The text of a file that holds Python.
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

    /// Whether the code nests so little that any thread can walk and drop its tree.
    pub fn is_shallow(&self) -> bool {
        crate::stack::is_flat(&self.text)
    }

    /// The cells of a notebook that [`code`](Self::code) has, in order: the number of each, from 1, and
    /// the bytes of the code that it is. None for a script.
    pub fn cells(&self) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> + '_ {
        let cells = self.notebook.iter().flat_map(|notebook| &notebook.cells);
        cells.map(|cell| (cell.number, cell.range.to_std_range()))
    }

    /// Applies groups of edits of [`code`](Self::code), as [`apply_groups`] does. Returns the text of
    /// the file, that text as a source, and how many groups went in. In a notebook, groups that
    /// cross cells are left out. `None` if the text is no longer such a file.
    pub fn edited(&self, groups: &[&[Edit]]) -> Option<(String, Self, usize)> {
        let Some(notebook) = &self.notebook else {
            let (text, applied) = apply_groups(&self.text, groups.iter().copied());
            let source = Self::python(text.clone()).ok()?;
            return Some((text, source, applied));
        };
        let mut texts = Vec::with_capacity(notebook.cells.len());
        let mut applied = 0;
        for cell in &notebook.cells {
            let inside: Vec<Vec<Edit>> = groups
                .iter()
                .filter_map(|group| group.iter().map(|edit| edit.within(cell.range)).collect())
                .collect();
            let (text, count) =
                apply_groups(&self.text[cell.range], inside.iter().map(Vec::as_slice));
            texts.push(text);
            applied += count;
        }
        let raw = notebook.with_cells(&texts);
        let source = Self::notebook(raw.clone()).ok()?;
        Some((raw, source, applied))
    }

    /// The line and column of an offset of [`code`](Self::code), in its cell for notebooks. `module`
    /// is what this source was parsed to.
    pub fn position(&self, module: &Module<'_>, offset: TextSize) -> Position {
        let mut at = module.position(offset);
        let notebook = self.notebook.as_ref();
        if let Some(cell) = notebook.and_then(|notebook| notebook.cell_at(offset)) {
            let first = module.line_of(cell.range.start());
            at.cell = Some(cell.number);
            at.line = at.line.saturating_sub(first) + 1;
        }
        at
    }

    /// Parses the code. Broken cells of a notebook are left out and reported; a broken script is
    /// reported and has no tree.
    ///
    /// Call this within [`with_stack`](crate::with_stack): code may nest deeply.
    pub fn parse(&self) -> (Option<Module<'_>>, Vec<Problem>) {
        let Some(notebook) = &self.notebook else {
            return match Module::parse_here(&self.text) {
                Ok(module) => (Some(module), Vec::new()),
                Err(problem) => (None, vec![problem]),
            };
        };
        let mut problems = notebook.problems.clone();
        let options = ParseOptions::from(Mode::Ipython);
        let cells = notebook.cells.iter().map(|cell| cell.range);
        let mut parsed = parse_cells_unchecked(&self.text, cells.clone(), &options);
        if parsed.has_invalid_syntax()
            && let Some(today) = without_async_arguments(&self.text)
        {
            parsed = parse_cells_unchecked(&today, cells, &options);
        }
        if parsed.has_invalid_syntax() {
            problems.push(Problem::new(1, 1, "the cells do not parse together"));
            return (None, problems);
        }
        (Some(Module::of(&self.text, parsed)), problems)
    }
}

fn check_size(text: &str) -> Result<(), Problem> {
    if text.len() > MAX_FILE_BYTES {
        return Err(Problem::new(
            1,
            1,
            format!(
                "the file has {} bytes; at most {MAX_FILE_BYTES} are read",
                text.len()
            ),
        ));
    }
    Ok(())
}
