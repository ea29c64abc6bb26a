//! Jupyter notebooks: the code cells as one source, and edits written back into the cells without
//! touching another byte of the file.

use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_source_file::LineIndex;
use ruff_text_size::{TextRange, TextSize};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::module::without_async_arguments;
use crate::problem::Problem;
use crate::stack::with_stack;

/// Cell magics whose body is Python.
pub(crate) const PYTHON_MAGICS: &[&str] = &[
    "%%capture",
    "%%oomph",
    "%%prun",
    "%%python",
    "%%time",
    "%%timeit",
];

/// A code cell.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// Which cell of the notebook, from 1, counting all kinds of cells.
    pub(crate) number: usize,
    /// Where the cell lies in the joined code.
    pub(crate) range: TextRange,
    /// Where the value of `source` lies in the file.
    raw: std::ops::Range<usize>,
}

/// A notebook.
#[derive(Clone, Debug)]
pub(crate) struct Notebook {
    raw: String,
    pub(crate) code: String,
    pub(crate) cells: Vec<Cell>,
    /// Cells that do not parse: they are left out.
    pub(crate) problems: Vec<Problem>,
}

#[derive(Deserialize)]
struct RawNotebook<'a> {
    #[serde(borrow)]
    cells: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawCell<'a> {
    cell_type: String,
    #[serde(borrow)]
    source: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Lines {
    One(String),
    Many(Vec<String>),
}

impl Notebook {
    /// Reads a notebook. Cells without code, in another language, or that do not say what they
    /// are, are left out.
    pub(crate) fn read(raw: String) -> Result<Self, Problem> {
        let parsed = parse(&raw)?;
        let mut code = String::new();
        let mut cells = Vec::new();
        let mut problems = Vec::new();
        for (index, cell) in parsed.cells.iter().enumerate() {
            let Ok(cell) = serde_json::from_str::<RawCell<'_>>(cell.get()) else {
                continue;
            };
            let Some(text) = cell.code() else {
                continue;
            };
            let magic = text.split_whitespace().next().unwrap_or("");
            if magic.starts_with("%%") && !PYTHON_MAGICS.contains(&magic) {
                continue;
            }
            let Some(start) = offset_in(&raw, cell.source.get()) else {
                continue;
            };
            if let Some(mut problem) = broken(&text) {
                problem.cell = Some(index + 1);
                problems.push(problem);
                continue;
            }
            let from = TextSize::of(code.as_str());
            code.push_str(&text);
            let range = TextRange::new(from, TextSize::of(code.as_str()));
            code.push('\n');
            cells.push(Cell {
                number: index + 1,
                range,
                raw: start..start + cell.source.get().len(),
            });
        }
        Ok(Self {
            raw,
            code,
            cells,
            problems,
        })
    }

    /// The cell that holds an offset of the joined code.
    pub(crate) fn cell_at(&self, offset: TextSize) -> Option<&Cell> {
        let index = self
            .cells
            .partition_point(|cell| cell.range.start() <= offset);
        self.cells.get(index.checked_sub(1)?)
    }

    /// The file with the code of its cells replaced by `cells`, in order.
    pub(crate) fn with_cells(&self, texts: &[String]) -> String {
        let mut out = String::with_capacity(self.raw.len());
        let mut at = 0;
        for (cell, text) in self.cells.iter().zip(texts) {
            let old = &self.code[cell.range];
            if old == text {
                continue;
            }
            out.push_str(&self.raw[at..cell.raw.start]);
            out.push_str(&encode(text, &self.raw[cell.raw.clone()]));
            at = cell.raw.end;
        }
        out.push_str(&self.raw[at..]);
        out
    }
}

/// The numbers and the texts of a notebook's code cells.
pub(crate) fn texts(raw: &str) -> Result<Vec<(usize, String)>, Problem> {
    let parsed = parse(raw)?;
    let cells = parsed.cells.iter().enumerate();
    Ok(cells
        .filter_map(|(index, cell)| {
            let cell = serde_json::from_str::<RawCell<'_>>(cell.get()).ok()?;
            let text = cell.code()?;
            Some((index + 1, text))
        })
        .collect())
}

fn parse(raw: &str) -> Result<RawNotebook<'_>, Problem> {
    serde_json::from_str(raw).map_err(|error| {
        Problem::new(
            error.line(),
            error.column(),
            format!("not a Jupyter notebook: {error}"),
        )
    })
}

impl RawCell<'_> {
    /// The text, if it is a code cell.
    fn code(&self) -> Option<String> {
        if self.cell_type != "code" {
            return None;
        }
        match serde_json::from_str::<Lines>(self.source.get()).ok()? {
            Lines::One(text) => Some(text),
            Lines::Many(lines) => Some(lines.concat()),
        }
    }
}

/// Why a cell does not parse, if it does not.
fn broken(text: &str) -> Option<Problem> {
    let parse = || {
        let parsed = parse_unchecked(text, ParseOptions::from(Mode::Ipython));
        let error = parsed.errors().first()?;
        let at = LineIndex::from_source_text(text).line_column(error.location.start(), text);
        Some(Problem::new(
            at.line.get(),
            at.column.get(),
            error.error.to_string(),
        ))
    };
    let problem = with_stack(text, true, parse).unwrap_or_else(Some)?;
    match without_async_arguments(text) {
        Some(today) => broken(&today),
        None => Some(problem),
    }
}

/// Where `part`, a slice of `whole`, begins.
fn offset_in(whole: &str, part: &str) -> Option<usize> {
    let offset = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    (whole.get(offset..offset + part.len())? == part).then_some(offset)
}

/// Writes a cell's text in the layout of the value that it replaces.
fn encode(text: &str, like: &str) -> String {
    let string = |text: &str| serde_json::Value::from(text).to_string();
    if !like.starts_with('[') {
        return string(text);
    }
    let lines: Vec<String> = text.split_inclusive('\n').map(string).collect();
    // nbformat writes one line per element; its indentation is whatever stands before the first.
    let indent = like
        .strip_prefix('[')
        .and_then(|rest| {
            rest.find(|c: char| !c.is_whitespace())
                .map(|end| &rest[..end])
        })
        .unwrap_or("");
    let closing = like
        .strip_suffix(']')
        .and_then(|rest| {
            rest.rfind(|c: char| !c.is_whitespace())
                .map(|end| &rest[end + 1..])
        })
        .unwrap_or("");
    format!(
        "[{indent}{}{closing}]",
        lines.join(&format!(
            ",{}",
            if indent.is_empty() { " " } else { indent }
        ))
    )
}
