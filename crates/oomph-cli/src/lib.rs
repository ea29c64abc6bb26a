//! The `oomph` command: one file per subcommand in [`commands`].

pub mod commands;
mod findings;
mod json;
mod lint_files;
mod lint_settings;
mod model_files;
mod page;
mod progress;
mod script;
mod values;

use std::ffi::OsString;
use std::io::Write as _;

use anstream::eprintln;
use clap::Parser;
pub use oomph_job::host;

/// How the command ends; the number is the exit status of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It fits, or nothing was found.
    Success = 0,
    /// The user's own script failed; its traceback has been passed through.
    ScriptFailed = 1,
    /// Wrong usage, unreadable input or a plan that cannot be applied.
    Error = 2,
    /// Out of memory, or lint findings.
    Findings = 3,
    /// The script ended before anything followed from its run, or a search before it knew of a plan.
    NoVerdict = 4,
    /// It fits, but its peak is above `--max-peak`.
    AbovePeak = 5,
    /// The user ended it with Ctrl-C.
    Interrupted = 130,
}

impl From<ExitStatus> for i32 {
    fn from(status: ExitStatus) -> Self {
        status as Self
    }
}

/// Fits a PyTorch job into the GPU you have.
#[derive(Debug, Parser)]
#[command(
    name = "oomph",
    version,
    about = "Fits a PyTorch job into the GPU you have",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

/// Runs the command line `args` (without the program name) and returns its exit status.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitStatus {
    let words = std::iter::once(OsString::from("oomph")).chain(args);
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            // clap prints help and version to stdout and everything else to stderr.
            let _ = error.print();
            return if error.use_stderr() {
                ExitStatus::Error
            } else {
                ExitStatus::Success
            };
        }
    };
    match cli.command.run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitStatus::Error
        }
    }
}

/// Writes text for people to stdout: without colour if it is not a terminal, and without Unicode
/// if the locale does not support it.
fn stdout(text: &str) -> anyhow::Result<()> {
    if oomph_report::terminal::knows_unicode() {
        stdout_as_is(text)
    } else {
        stdout_as_is(&oomph_report::terminal::ascii(text))
    }
}

/// Writes text for programs to stdout. A closed pipe (`| head`) is not an error.
fn stdout_as_is(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to stdout"))
        }
        _ => Ok(()),
    }
}
