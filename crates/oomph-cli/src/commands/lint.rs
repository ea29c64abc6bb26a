//! `oomph lint`: memory bugs in training code, before anything runs.
//!
//! Exit status: 0 no findings; 3 findings; 2 wrong usage, or a file that could not be read,
//! parsed or written (the others are still linted).

use std::path::PathBuf;

use anyhow::bail;
use oomph_lint::Applicability;
use oomph_lint::output::{self, FileReport, TextOptions};
use oomph_report::terminal::{width, wrap};

use oomph_job::files;

use crate::lint_files::{LintedFile, Linter};
use crate::lint_settings::Choices;
use crate::{ExitStatus, findings, json, stderr, stdout, stdout_as_is, stdout_exact};

/// Arguments of `oomph lint`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph lint                              everything below this directory\n  oomph lint train.py --select OOM1,missing-no-grad\n  oomph lint --diff src                   what --fix would change\n\nExit status: 0 no findings, 3 findings (--diff: changes), 2 error."
)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct Args {
    /// Files, folders and notebooks to lint; `-` is standard input
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,

    /// Rules to run instead of the default ones: codes, prefixes of codes, names, or ALL
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    select: Option<Vec<String>>,

    /// Rules to run in addition
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    extend_select: Vec<String>,

    /// Rules to skip
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    ignore: Vec<String>,

    /// Apply safe fixes
    #[arg(long)]
    fix: bool,

    /// Apply all fixes, including those that may change what the program computes
    #[arg(long)]
    unsafe_fixes: bool,

    /// Print what --fix (or --unsafe-fixes) would change, and change nothing
    #[arg(long)]
    diff: bool,

    /// How to write the findings
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Form::Text)]
    output_format: Form,

    /// Also write the findings as JSON to a file; `-` writes JSON instead of text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// A snapshot, an oomph trace or the directory of a run; findings on lines that held memory
    /// come first, with their bytes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fix", "unsafe_fixes", "diff"])]
    trace: Option<PathBuf>,

    /// The file name to use for standard input
    #[arg(long, value_name = "PATH")]
    stdin_filename: Option<PathBuf>,

    /// Read settings from this file instead of the nearest pyproject.toml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Ignore all settings files
    #[arg(long, conflicts_with = "config")]
    isolated: bool,

    /// Count findings per rule
    #[arg(long)]
    statistics: bool,

    /// Exit with status 0 even if there are findings
    #[arg(long)]
    exit_zero: bool,

    /// Do not say how many findings there are
    #[arg(short, long)]
    quiet: bool,

    /// Print the page of a rule
    #[arg(long, value_name = "RULE", conflicts_with_all = ["paths", "fix"])]
    explain: Option<String>,

    /// List the rules
    #[arg(long, conflicts_with_all = ["paths", "fix"])]
    list_rules: bool,
}

/// Forms of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    /// The source with findings underlined
    Text,
    /// One line per finding
    Concise,
    /// JSON, for editors and scripts
    Json,
    /// GitHub annotations
    Github,
    /// SARIF 2.1.0
    Sarif,
}

impl Args {
    /// Lints, and returns the exit status.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        if let Some(code) = &self.explain {
            let Some(rule) = oomph_lint::by_code(code) else {
                bail!("no rule is called `{code}`; `oomph lint --list-rules` shows them all");
            };
            stdout(&rule.page())?;
            return Ok(ExitStatus::Success);
        }
        if self.list_rules {
            stdout(&output::rules())?;
            return Ok(ExitStatus::Success);
        }
        let linter = Linter {
            choices: Choices {
                select: self.select.clone(),
                extend_select: self.extend_select.clone(),
                ignore: self.ignore.clone(),
                config: self.config.clone(),
                isolated: self.isolated,
            },
            least: self.least(),
            writes: !self.diff,
            stdin_name: self.stdin_filename.clone(),
        };
        let outcomes = linter.lint(&self.paths)?;
        if self.diff {
            self.print_changes(outcomes)
        } else {
            self.write(outcomes)
        }
    }

    /// The least safe fixes that were requested.
    fn least(&self) -> Option<Applicability> {
        if self.unsafe_fixes {
            Some(Applicability::Unsafe)
        } else if self.fix || self.diff {
            Some(Applicability::Safe)
        } else {
            None
        }
    }

    /// What fixes would change, as a unified diff.
    fn print_changes(&self, outcomes: Vec<LintedFile>) -> anyhow::Result<ExitStatus> {
        let changes: String = outcomes
            .iter()
            .filter_map(|outcome| outcome.diff.as_deref())
            .collect();
        stdout_as_is(&changes)?;
        let problems: Vec<FileReport> = outcomes
            .into_iter()
            .map(|outcome| outcome.report)
            .filter(|report| !report.problems.is_empty())
            .collect();
        eprint!("{}", output::text(&problems, text_options(false)));
        Ok(if self.exit_zero {
            ExitStatus::Success
        } else if !problems.is_empty() {
            ExitStatus::Error
        } else if changes.is_empty() {
            ExitStatus::Success
        } else {
            ExitStatus::Findings
        })
    }

    fn write(&self, outcomes: Vec<LintedFile>) -> anyhow::Result<ExitStatus> {
        let fixed: usize = outcomes.iter().map(|outcome| outcome.fixed).sum();
        let stdout_text = outcomes.iter().find_map(|outcome| outcome.text.clone());
        let mut files: Vec<FileReport> =
            outcomes.into_iter().map(|outcome| outcome.report).collect();
        if let Some(trace) = &self.trace {
            findings::order_by_trace(&mut files, trace)?;
        }
        let findings: usize = files.iter().map(|file| file.findings.len()).sum();
        let problems: usize = files.iter().map(|file| file.problems.len()).sum();

        let json_to_stdout = self
            .json
            .as_ref()
            .is_some_and(|path| path.as_os_str() == "-");
        let form = if json_to_stdout {
            Form::Json
        } else {
            self.output_format
        };
        if matches!(form, Form::Text | Form::Concise) {
            // A line break in a file's name would begin a finding of its own.
            for file in &mut files {
                file.path = oomph_trace::visible(&file.path).into_owned();
            }
        }
        let text = match form {
            Form::Text | Form::Concise => output::text(
                &files,
                TextOptions {
                    color: true,
                    ..text_options(form == Form::Concise)
                },
            ),
            Form::Json => output::json(&files)?,
            Form::Github => output::github(&files),
            Form::Sarif => output::sarif(&files)?,
        };
        if let Some(fixed_text) = stdout_text {
            // The fixed text is the data; the findings go to stderr.
            stdout_exact(fixed_text.as_bytes())?;
            stderr(&text);
        } else if matches!(form, Form::Json | Form::Sarif) {
            stdout_as_is(&json::plain(text))?;
        } else {
            stdout(&text)?;
        }
        if let (Some(path), false) = (&self.json, json_to_stdout) {
            files::write(path, json::plain(output::json(&files)?).as_bytes())?;
        }
        if self.statistics {
            stderr(&output::statistics(&files));
        }
        if !self.quiet {
            stderr(&output::summary(&files, fixed));
        }
        Ok(if self.exit_zero {
            ExitStatus::Success
        } else if problems > 0 {
            ExitStatus::Error
        } else if findings > 0 {
            ExitStatus::Findings
        } else {
            ExitStatus::Success
        })
    }
}

/// As wide as the terminal.
fn text_options(concise: bool) -> TextOptions {
    TextOptions {
        concise,
        width: width(),
        wrap,
        ..TextOptions::default()
    }
}
