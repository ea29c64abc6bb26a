//! What is wrong with a file, and where.

use std::fmt;

/// Why a file, or a cell of a notebook, could not be read, and where.
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
