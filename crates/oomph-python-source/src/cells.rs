//! The code cells of a notebook as Python runs them: without what only IPython understands.

use ruff_python_ast::{Expr, IpyEscapeKind, Stmt};
use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_text_size::{Ranged as _, TextRange};

use crate::edit::{Edit, apply};
use crate::notebook::{PYTHON_MAGICS, texts};
use crate::problem::Problem;
use crate::search::statements_in;
use crate::stack::with_stack;

/// The code cells of a notebook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cells {
    /// Each cell's number, from 1 and counting all kinds of cells, and its code. Lines keep their numbers.
    pub code: Vec<(usize, String)>,
    /// The magics and shell commands that are left out, each with its cell's number.
    pub left_out: Vec<(usize, String)>,
}

impl Cells {
    /// Reads the text of a notebook. A cell that does not parse stays as it is: Python says why.
    pub fn read(notebook: &str) -> Result<Self, Problem> {
        let mut cells = Self {
            code: Vec::new(),
            left_out: Vec::new(),
        };
        for (number, text) in texts(notebook)? {
            let leave_out = |what: &str| (number, what.trim().to_owned());
            let mut text = text;
            if let Some(magic) = cell_magic(&text) {
                let line = text.trim_start().lines().next().unwrap_or_default();
                cells.left_out.push(leave_out(line));
                if !PYTHON_MAGICS.contains(&magic) {
                    continue;
                }
                text = without_first_line(&text);
            }
            let parse = || escapes(&text);
            let found = with_stack(&text, true, parse).unwrap_or_default();
            cells.left_out.extend(
                found
                    .iter()
                    .filter_map(|escape| escape.named.as_deref())
                    .map(leave_out),
            );
            let edits: Vec<Edit> = found.into_iter().map(|escape| escape.edit).collect();
            cells.code.push((number, apply(&text, &edits)));
        }
        Ok(cells)
    }
}

/// The magic that a whole cell is given to.
fn cell_magic(text: &str) -> Option<&str> {
    let first = text.split_whitespace().next()?;
    first.starts_with("%%").then_some(first)
}

/// The text with its first line of words empty, so that the others keep their numbers.
fn without_first_line(text: &str) -> String {
    let start = text.len() - text.trim_start().len();
    let end = text[start..]
        .find('\n')
        .map_or(text.len(), |end| start + end);
    format!("{}{}", &text[..start], &text[end..])
}

/// What only IPython understands, and what stands for it.
struct Escape {
    edit: Edit,
    /// As it is written, if it is left out.
    named: Option<String>,
}

fn escapes(text: &str) -> Vec<Escape> {
    let parsed = parse_unchecked(text, ParseOptions::from(Mode::Ipython));
    if !parsed.errors().is_empty() {
        return Vec::new();
    }
    let module = parsed.into_syntax();
    let Some(module) = module.as_module() else {
        return Vec::new();
    };
    statements_in(&module.body)
        .into_iter()
        .filter_map(|stmt| {
            let (range, kind, value, instead) = match stmt {
                Stmt::IpyEscapeCommand(escape) => {
                    (escape.range(), escape.kind, &escape.value, "pass")
                }
                Stmt::Assign(assign) => match &*assign.value {
                    Expr::IpyEscapeCommand(escape) => {
                        (escape.range(), escape.kind, &escape.value, "None")
                    }
                    _ => return None,
                },
                _ => return None,
            };
            Some(escape(text, range, kind, value, instead))
        })
        .collect()
}

fn escape(text: &str, range: TextRange, kind: IpyEscapeKind, value: &str, instead: &str) -> Escape {
    let written = &text[range];
    // Only the clock is left out of `%time model = build()`.
    let timed = (kind == IpyEscapeKind::Magic)
        .then(|| value.strip_prefix("time "))
        .flatten();
    // Lines that follow keep their numbers: a command may be continued with backslashes.
    let more = "\\\n".repeat(written.matches('\n').count());
    let code = match timed {
        Some(code) => code.trim().to_owned(),
        None => format!("{more}{instead}"),
    };
    Escape {
        edit: Edit::replace(range, code),
        named: timed.is_none().then(|| {
            let first = written.lines().next().unwrap_or_default();
            first.to_owned()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notebook(cells: &[(&str, &str)]) -> String {
        let cells: Vec<_> = cells
            .iter()
            .map(|(kind, source)| serde_json::json!({"cell_type": kind, "source": source}))
            .collect();
        serde_json::json!({ "cells": cells }).to_string()
    }

    #[test]
    fn what_only_ipython_understands_is_left_out_and_named() {
        let cells = Cells::read(&notebook(&[
            ("markdown", "# Title"),
            ("code", "%matplotlib inline\nx = 1\nif x:\n    !pip install \\\n  torch\n    y = 2\nz = !ls\n%time w = x + y\nx?"),
            ("code", "%%bash\necho hello"),
            ("code", "%%time\nprint('%d' % x)\nlong = '''\n%not magic\n'''"),
            ("code", "def broken(:\n%magic"),
        ]))
        .unwrap();
        assert_eq!(
            cells.code,
            [
                (
                    2,
                    "pass\nx = 1\nif x:\n    \\\npass\n    y = 2\nz = None\nw = x + y\npass"
                        .to_owned()
                ),
                (
                    4,
                    "\nprint('%d' % x)\nlong = '''\n%not magic\n'''".to_owned()
                ),
                (5, "def broken(:\n%magic".to_owned()),
            ]
        );
        let named: Vec<String> = cells
            .left_out
            .iter()
            .map(|(cell, what)| format!("{cell} {what}"))
            .collect();
        let expected = [
            "2 %matplotlib inline",
            "2 !pip install \\",
            "2 !ls",
            "2 x?",
            "3 %%bash",
            "4 %%time",
        ];
        assert_eq!(named, expected);
    }

    #[test]
    fn what_is_no_notebook_is_said() {
        for text in ["", "{}", "[1]", "{\"cells\": 3}", "{\"cells\": [{"] {
            Cells::read(text).expect_err(text);
        }
    }
}
