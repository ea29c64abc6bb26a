//! The language server: findings of the linter while one types, their fixes, and the memory that each line
//! held in the newest run.
//!
//! - It reads no files: a [`Host`] says which rules run, what a project's files say of each other, and what
//!   runs held.
//! - A document is linted as a whole after each change, or after several that came together; nothing else is
//!   computed on the way to an answer. What takes longer, the project's files and a run's history, is read
//!   by a thread of its own.
//! - Scripts and notebooks are documents alike: a script is a notebook of one cell.

mod answers;
mod document;
mod memory;
mod server;
mod text;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use lsp_server::Connection;
use lsp_server::ProtocolError;
use oomph_lint::{FileFacts, Newest, Selection};

pub use memory::RunMemory;

/// What the server asks of the world. Errors are one line for people.
pub trait Host: Send + Sync + 'static {
    /// The rules for a file, from its project's settings.
    fn selection(&self, file: &Path) -> Result<Selection, String>;

    /// What the Python files below a folder say of each other; of none if there are more than `most`.
    fn project(&self, folder: &Path, most: usize) -> Vec<(PathBuf, FileFacts)>;

    /// The newest PyTorch that the project of a file allows, if it says.
    fn torch_of(&self, _file: &Path) -> Option<Newest> {
        None
    }

    /// The newest run that ended, of those kept in these folders.
    fn newest_run(&self, folders: &[PathBuf]) -> Option<RunAt>;

    /// What a run held.
    fn memory(&self, run: &RunAt) -> Result<RunMemory, String>;
}

/// Where a run is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAt {
    /// Its directory, or a file with a history.
    pub path: PathBuf,
    /// When it was written.
    pub modified: SystemTime,
}

/// Serves a client until it says `exit`, or is gone.
///
/// # Errors
///
/// If the client does not begin with `initialize`, or does not end with `exit` after `shutdown`.
pub fn serve(connection: &Connection, host: impl Host) -> Result<(), ProtocolError> {
    server::serve(connection, host)
}
