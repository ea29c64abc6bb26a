//! Why a file cannot be read, and what was wrong with one that could.

use std::fmt;
use std::path::PathBuf;

/// Why nothing could be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be opened or read.
    #[error("{}: cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file holds nothing at all.
    #[error(
        "{}: the file is empty (0 bytes). The process probably died while it wrote the snapshot \
         (PyTorch's C++ unwinder is a known reason: record with stacks=\"python\"). \
         Take the snapshot again",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file is none of the formats that are known.
    #[error("{}: {found}. Expected {expected}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What was found.
        found: String,
        /// What was expected, and what to do.
        expected: String,
    },
    /// The file begins like a pickle but breaks its rules.
    #[error("{}: at byte {offset}: {what}", path.display())]
    Pickle {
        /// The file.
        path: PathBuf,
        /// Where in the (decompressed) file.
        offset: u64,
        /// What was expected and what was found.
        what: String,
    },
}

/// Something that was wrong with a file that could be read all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Which kind.
    pub kind: ProblemKind,
    /// What was found, and what follows from it.
    pub message: String,
}

/// Kinds of [`Problem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The file ends early.
    Truncated,
    /// The history does not begin at the first allocation, or has a gap.
    Incomplete,
    /// Values that cannot be.
    Inconsistent,
    /// Something that this version of oomph does not know.
    Unknown,
    /// The file has no history.
    NoHistory,
}

impl ProblemKind {
    /// The kind's name in JSON.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Incomplete => "incomplete",
            Self::Inconsistent => "inconsistent",
            Self::Unknown => "unknown",
            Self::NoHistory => "no_history",
        }
    }
}

impl Problem {
    /// A problem.
    pub fn new(kind: ProblemKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
