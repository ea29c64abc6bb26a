//! The `oomph` command: one file per subcommand in [`commands`].
//!
//! Exit status: 0 it fits or nothing was found; 1 the user's script failed; 2 wrong usage,
//! unreadable input or a plan that cannot be applied; 3 out of memory (for lint: findings).

pub mod commands;
mod findings;
mod json;
mod lint_settings;
mod page;
mod planning;
mod progress;
pub mod rungs;
mod script;
mod table;

use std::ffi::OsString;
use std::io::Write as _;

use anstream::eprintln;
use clap::Parser;
pub use oomph_job::host;

/// Exit status: it fits, or nothing was found.
pub const EXIT_OK: i32 = 0;
/// Exit status: the user's own script failed; its traceback has been passed through.
pub const EXIT_SCRIPT_FAILED: i32 = 1;
/// Exit status: wrong usage or unreadable input.
pub const EXIT_USAGE: i32 = 2;
/// Exit status: out of memory, or lint findings.
pub const EXIT_FINDINGS: i32 = 3;

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
pub fn main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let words = std::iter::once(OsString::from("oomph")).chain(args);
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            // clap prints help and version to stdout and everything else to stderr.
            let _ = error.print();
            return if error.use_stderr() {
                EXIT_USAGE
            } else {
                EXIT_OK
            };
        }
    };
    match cli.command.run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("error: {error:#}");
            EXIT_USAGE
        }
    }
}

/// Writes what people read to stdout: without colour where it is no terminal, and without Unicode
/// where the locale has none.
fn stdout(text: &str) -> anyhow::Result<()> {
    if oomph_report::terminal::knows_unicode() {
        stdout_as_is(text)
    } else {
        stdout_as_is(&oomph_report::terminal::ascii(text))
    }
}

/// Writes what programs read to stdout. A reader that went away (`| head`) is no error.
fn stdout_as_is(text: &str) -> anyhow::Result<()> {
    let mut out = anstream::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to stdout"))
        }
        _ => Ok(()),
    }
}
