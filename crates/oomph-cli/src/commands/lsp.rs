//! `oomph lsp`: the language server, on standard input and output.
//!
//! Exit status: 0 after the client's `shutdown` and `exit`, or when it is gone; 2 if it does not speak the
//! protocol.

use std::fs;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::bail;
use oomph_job::{LATEST, REPORTS, RunDirectory, RunFile};
use oomph_lint::{FileFacts, Newest, Selection};
use oomph_lsp::{Connection, Host, RunAt, RunMemory};

use crate::ExitStatus;
use crate::findings::{explained, held_bytes, trace_file};
use crate::lint_files;
use crate::lint_settings::{Choices, Settings};

/// Arguments of `oomph lsp`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "An editor starts it; docs/editors.md says how. The rules are those of `oomph lint`, with the settings of the nearest pyproject.toml.\n\nExit status: 0 the editor ended it, 2 error."
)]
pub struct Args {
    /// A snapshot, an oomph trace or the directory of a run whose bytes are shown, instead of the newest run
    /// in oomph-report
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// The only way to speak, which some editors name
    #[arg(long, hide = true)]
    stdio: bool,
}

impl Args {
    /// Serves until the editor ends it.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let trace = self.trace.as_deref().map(trace_file).transpose()?;
        if let Some(trace) = &trace
            && !trace.is_file()
        {
            bail!("{}: no such file or directory", trace.display());
        }
        if std::io::stdin().is_terminal() {
            bail!("an editor starts `oomph lsp`: docs/editors.md says how");
        }
        let (connection, threads) = Connection::stdio();
        let served = oomph_lsp::serve(&connection, Files { trace });
        // The thread that writes ends when nothing more can come.
        drop(connection);
        if let Err(error) = served {
            bail!("expected a client of the language server protocol on stdin: {error}");
        }
        threads.join()?;
        Ok(ExitStatus::Success)
    }
}

/// The project's files, and what runs left beside them.
struct Files {
    trace: Option<PathBuf>,
}

impl Host for Files {
    fn selection(&self, file: &Path) -> Result<Selection, String> {
        let settings = settings(file).map_err(|error| format!("{error:#}"))?;
        Ok(settings.for_file(file))
    }

    fn project(&self, folder: &Path, most: usize) -> Vec<(PathBuf, FileFacts)> {
        // What is wrong with settings is said where a file is opened.
        settings(folder)
            .and_then(|settings| lint_files::project(folder, &settings, most))
            .unwrap_or_default()
    }

    fn torch_of(&self, file: &Path) -> Option<Newest> {
        lint_files::torch_of(file)
    }

    fn newest_run(&self, folders: &[PathBuf]) -> Option<RunAt> {
        let latest = |folder: &PathBuf| {
            let run = fs::canonicalize(folder.join(REPORTS).join(LATEST)).ok()?;
            Some(RunDirectory::of_run(&run).file(RunFile::Trace))
        };
        let runs = match &self.trace {
            Some(trace) => vec![trace.clone()],
            None => folders.iter().filter_map(latest).collect(),
        };
        let runs = runs.into_iter().filter_map(|path| {
            let modified = fs::metadata(&path).and_then(|data| data.modified()).ok()?;
            Some(RunAt { path, modified })
        });
        runs.max_by_key(|run| run.modified)
    }

    fn memory(&self, run: &RunAt) -> Result<RunMemory, String> {
        let explained = explained(&run.path).map_err(|error| format!("{error:#}"))?;
        Ok(RunMemory {
            name: name(&run.path),
            verdict: explained.verdict,
            out_of_memory: explained.out_of_memory,
            bytes: explained.peak.live_bytes,
            held: held_bytes(&explained.held, |file| Some(file.to_owned())),
            modified: run.modified,
        })
    }
}

fn settings(path: &Path) -> anyhow::Result<Settings> {
    let choices = Choices::default();
    let config = choices.config_for(path)?;
    choices.settings(config.as_deref())
}

/// A run's directory as people name it, `oomph-report/train-1`; the name of any other file.
fn name(trace: &Path) -> String {
    let is_run = trace
        .file_name()
        .is_some_and(|name| name == RunFile::Trace.name());
    let run = trace.parent().filter(|_| is_run).unwrap_or(trace);
    let parts: Vec<_> = run.iter().map(std::ffi::OsStr::to_string_lossy).collect();
    let shown = parts.len().saturating_sub(1 + usize::from(is_run));
    parts[shown..].join("/")
}
