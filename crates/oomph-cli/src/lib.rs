//! The `oomph` command: one file per subcommand in [`commands`].

/// Writes a line for people to stderr.
macro_rules! eprintln {
    ($($words:tt)*) => {
        $crate::stderr(&format!("{}\n", format_args!($($words)*)))
    };
}

pub mod commands;
mod findings;
mod json;
mod lint_files;
mod lint_settings;
mod model_files;
mod page;
mod progress;
mod script;

use std::ffi::OsString;
use std::io::Write as _;

use clap::Parser;
pub use oomph_job::host;
use oomph_report::terminal::{ascii, harmless, knows_unicode};

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
    /// The script ended before anything followed from its run.
    NoVerdict = 4,
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
            if oomph_job::signals::received().is_some() {
                return ExitStatus::NoVerdict;
            }
            ExitStatus::Error
        }
    }
}

/// Writes text for people to stdout: without colour if it is not a terminal, without Unicode if the
/// locale does not support it, and without what foreign names would do to a terminal.
fn stdout(text: &str) -> anyhow::Result<()> {
    let text = harmless(text);
    if knows_unicode() {
        stdout_as_is(&text)
    } else {
        stdout_as_is(&ascii(&text))
    }
}

/// The same to stderr. Where nobody reads it, the command goes on.
fn stderr(text: &str) {
    let _ = anstream::stderr().write_all(harmless(text).as_bytes());
}

/// Writes text for programs to stdout.
fn stdout_as_is(text: &str) -> anyhow::Result<()> {
    write_out(anstream::stdout().lock(), text.as_bytes())
}

/// Writes data to stdout, a picture or source code, which must not pass through the filter for colours.
fn stdout_exact(bytes: &[u8]) -> anyhow::Result<()> {
    write_out(std::io::stdout().lock(), bytes)
}

/// A closed pipe (`| head`) is not an error.
fn write_out(mut out: impl std::io::Write, bytes: &[u8]) -> anyhow::Result<()> {
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to stdout"))
        }
        _ => Ok(()),
    }
}
