//! The `oomph` command: one file per subcommand in [`commands`].

/// Writes a line for people to stderr, broken at spaces where it is wider than the terminal.
macro_rules! eprintln {
    ($($words:tt)*) => {
        $crate::stderr(&$crate::folded(&format!("{}\n", format_args!($($words)*))))
    };
}

mod check_file;
pub mod commands;
mod ended;
mod explained;
mod findings;
mod help;
mod json;
mod lint_files;
mod lint_settings;
pub mod manual;
mod model_files;
mod page;
pub mod part;
mod patches;
mod private;
mod progress;
mod rehearse;
#[cfg(test)]
mod schemas;
mod script;
mod search;
mod values;
mod watched;
mod written;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, ValueEnum as _};
pub use oomph_job::host;
use oomph_report::terminal::{ascii, asked_width, columns, harmless, knows_unicode, width, wrap};
use strsim::osa_distance;

/// How the command ends; the number is the exit status of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It fits, or nothing was found.
    Success = 0,
    /// The user's own script failed, and its traceback has been passed through; or `oomph doctor` found something wrong.
    Failed = 1,
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
    about = "Fits a PyTorch job into the GPU you have"
)]
struct Cli {
    /// When to use color; NO_COLOR and CLICOLOR_FORCE in the environment do the same
    #[arg(long, value_name = "WHEN", value_enum, global = true, default_value_t = clap::ColorChoice::Auto)]
    color: clap::ColorChoice,

    #[command(subcommand)]
    command: commands::Command,
}

/// Runs the command line `args` (without the program name) and returns its exit status.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitStatus {
    let words: Vec<OsString> = std::iter::once(OsString::from("oomph"))
        .chain(args)
        .collect();
    // Known before the words are understood: what is wrong with them is said in colours, too.
    colorize(color_of(&words));
    let parsed = command()
        .try_get_matches_from(words)
        .and_then(|found| Cli::from_arg_matches(&found).map_err(|e| e.format(&mut command())));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(mut error) => {
            suggest_command(&mut error);
            let error = expect_number(error);
            // clap prints help and version to stdout and everything else to stderr.
            let _ = error.print();
            return if error.use_stderr() {
                ExitStatus::Error
            } else {
                ExitStatus::Success
            };
        }
    };
    colorize(cli.color);
    if cli.command.reports_after_scripts()
        && let Err(error) = oomph_job::signals::survive_interrupts()
    {
        eprintln!("error: cannot listen for Ctrl-C: {error}");
        return ExitStatus::Error;
    }
    match cli.command.run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("error: {error:#}");
            if oomph_job::signals::interrupted() {
                ExitStatus::Interrupted
            } else if oomph_job::signals::received().is_some() {
                ExitStatus::NoVerdict
            } else {
                ExitStatus::Error
            }
        }
    }
}

/// The definition of the command line, its help as wide as the terminal.
pub fn command() -> clap::Command {
    help::laid_out(Cli::command(), width()).mut_subcommands(|command| command.mut_args(of_numbers))
}

/// What stands where a number is expected is one that may be wrong, and no option: `--steps -1`.
fn of_numbers(argument: clap::Arg) -> clap::Arg {
    const NUMBERS: [&str; 4] = ["DURATION", "N", "SECONDS", "SIZE"];
    let names = argument.get_value_names().unwrap_or_default();
    if names.iter().any(|name| NUMBERS.contains(&name.as_str())) {
        argument.allow_hyphen_values(true)
    } else {
        argument
    }
}

/// clap compares letters in their places, which is too strict for words as short as `run`.
fn suggest_command(error: &mut clap::Error) {
    const MOST_CHANGES: usize = 2;
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    if error.get(ContextKind::SuggestedSubcommand).is_some() {
        return;
    }
    let known = command();
    let nearest = known
        .get_subcommands()
        .map(|known| (osa_distance(typed, known.get_name()), known.get_name()))
        .min()
        .filter(|(changes, name)| *changes <= MOST_CHANGES && changes * 2 < name.len());
    if let Some((_, name)) = nearest {
        let found = ContextValue::Strings(vec![name.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, found);
    }
}

/// Says what a number should have been; the standard library says `invalid digit found in string`.
fn expect_number(error: clap::Error) -> clap::Error {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let reason = std::error::Error::source(&error).and_then(|e| e.downcast_ref::<ParseIntError>());
    if !reason.is_some_and(|reason| *reason.kind() == IntErrorKind::InvalidDigit) {
        return error;
    }
    let (option, value) = (
        context(ContextKind::InvalidArg),
        context(ContextKind::InvalidValue),
    );
    let says =
        format!("invalid value '{value}' for '{option}': expected a whole number, such as 3\n");
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, says)
}

/// What `--color` says, as far as that is known without knowing the other options.
fn color_of(words: &[OsString]) -> clap::ColorChoice {
    let mut words = words.iter().filter_map(|word| word.to_str());
    let value = words.find_map(|word| match word.strip_prefix("--color") {
        Some("") => Some(None),
        Some(rest) => rest.strip_prefix('=').map(Some),
        None => None,
    });
    let value = value.and_then(|value| value.or_else(|| words.next()));
    value
        .and_then(|value| clap::ColorChoice::from_str(value, false).ok())
        .unwrap_or_default()
}

/// Decides about the colours of everything that is printed.
fn colorize(choice: clap::ColorChoice) {
    match choice {
        clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
        clap::ColorChoice::Always => anstream::ColorChoice::Always,
        clap::ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
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

/// `text` as wide as the terminal. A program that reads stderr gets whole lines, unless `COLUMNS` asks for less than any terminal has.
fn folded(text: &str) -> String {
    const LEAST_OF_TERMINALS: usize = 80;
    let is_narrow = asked_width().is_some_and(|columns| columns < LEAST_OF_TERMINALS);
    if is_narrow || std::io::stderr().is_terminal() {
        fold(text, width())
    } else {
        text.to_owned()
    }
}

fn fold(text: &str, width: usize) -> String {
    const INDENT: usize = 2;
    let fold = |line: &str| {
        if columns(line) <= width {
            line.to_owned()
        } else {
            wrap(line, width - INDENT, INDENT)
        }
    };
    text.split('\n').map(fold).collect::<Vec<_>>().join("\n")
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
