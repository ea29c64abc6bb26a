//! `oomph lint`: memory bugs in training code, before anything runs.
//!
//! Exit status: 0 nothing was found; 3 findings; 2 wrong usage, or a file that could not be read,
//! parsed or written (the others are linted all the same).

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anstream::{eprintln, print, println};
use anyhow::{Context, bail};
use ignore::WalkBuilder;
use oomph_lint::output::{self, FileReport, TextOptions};
use oomph_lint::{ALL, Applicability, Problem, Selection, Source, order_by_held};
use rayon::prelude::*;

use crate::ExitStatus;
use crate::findings;
use crate::lint_settings::{Choices, Settings, matches};

/// Folders that hold other people's code, even where no `.gitignore` says so.
const FOREIGN_FOLDERS: &[&str] = &[
    ".git",
    ".venv",
    "venv",
    ".tox",
    ".nox",
    ".eggs",
    "__pycache__",
    "node_modules",
    "site-packages",
    ".ipynb_checkpoints",
];

/// Name of what comes from standard input, unless `--stdin-filename` says otherwise.
const STDIN_NAME: &str = "<stdin>";

/// Arguments of `oomph lint`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status: 0 clean, 3 findings, 2 error.")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the command line"
)]
pub struct Args {
    /// Files, folders and notebooks to lint; `-` is standard input
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Rules to run instead of the default ones: codes or prefixes, or ALL
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    select: Option<Vec<String>>,

    /// Rules to run on top of the others
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    extend_select: Vec<String>,

    /// Rules to leave out
    #[arg(long, value_name = "CODES", value_delimiter = ',')]
    ignore: Vec<String>,

    /// Apply safe fixes
    #[arg(long)]
    fix: bool,

    /// Apply all fixes, also those that may change what the program computes
    #[arg(long)]
    unsafe_fixes: bool,

    /// How to write the findings
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Form::Text)]
    output_format: Form,

    /// Also write the findings as JSON to a file; `-` writes JSON instead of text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// A snapshot, an oomph trace or the directory of a run: findings on lines that held memory
    /// there come first, with their bytes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fix", "unsafe_fixes"])]
    trace: Option<PathBuf>,

    /// The name that standard input goes by
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

    /// Exit with 0 even if there are findings
    #[arg(long)]
    exit_zero: bool,

    /// Do not say how many findings there are
    #[arg(short, long)]
    quiet: bool,

    /// Print the page of a rule
    #[arg(long, value_name = "CODE", conflicts_with_all = ["paths", "fix"])]
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

/// A file to lint.
struct Target<'s> {
    path: PathBuf,
    settings: &'s Settings,
}

/// What became of a file.
struct Outcome {
    report: FileReport,
    fixed: usize,
    /// The fixed text of standard input.
    stdout: Option<String>,
}

impl Args {
    /// Lints, and returns the exit status.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        if let Some(code) = &self.explain {
            let Some(rule) = oomph_lint::by_code(code) else {
                bail!("no rule is called `{code}`; `oomph lint --list-rules` shows them all");
            };
            print!("{}", rule.page());
            return Ok(ExitStatus::Success);
        }
        if self.list_rules {
            list_rules();
            return Ok(ExitStatus::Success);
        }
        if self.paths.is_empty() {
            bail!("nothing to lint: name files or folders, or `-` for standard input");
        }

        let choices = Choices {
            select: self.select.clone(),
            extend_select: self.extend_select.clone(),
            ignore: self.ignore.clone(),
            config: self.config.clone(),
            isolated: self.isolated,
        };
        let mut all_settings: Vec<Settings> = Vec::new();
        let mut by_config: HashMap<Option<PathBuf>, usize> = HashMap::new();
        let mut of_path = Vec::with_capacity(self.paths.len());
        for path in &self.paths {
            let named = match &self.stdin_filename {
                Some(name) if path.as_os_str() == "-" => name,
                _ => path,
            };
            let file = choices.config_for(named)?;
            let index = if let Some(index) = by_config.get(&file) {
                *index
            } else {
                all_settings.push(choices.settings(file.as_deref())?);
                by_config.insert(file, all_settings.len() - 1);
                all_settings.len() - 1
            };
            of_path.push(index);
        }

        let mut targets = Vec::new();
        let mut outcomes = Vec::new();
        for (path, index) in self.paths.iter().zip(of_path) {
            let settings = &all_settings[index];
            if path.as_os_str() == "-" {
                outcomes.push(self.stdin(settings)?);
            } else {
                collect(path, settings, &mut targets, &mut outcomes);
            }
        }
        targets.sort_by(|a, b| a.path.cmp(&b.path));
        targets.dedup_by(|a, b| a.path == b.path);
        // `collect` keeps the order of the files.
        let linted: Vec<Outcome> = targets.par_iter().map(|target| self.file(target)).collect();
        outcomes.extend(linted);
        self.write(outcomes)
    }

    fn stdin(&self, settings: &Settings) -> anyhow::Result<Outcome> {
        let mut bytes = Vec::new();
        std::io::stdin()
            .read_to_end(&mut bytes)
            .context("cannot read standard input")?;
        let name = self
            .stdin_filename
            .as_ref()
            .map_or_else(|| STDIN_NAME.to_string(), |path| path.display().to_string());
        let selection = settings.for_file(Path::new(&name));
        let mut outcome = self.lint(&name, bytes.clone(), &selection);
        if self.least().is_some() && outcome.stdout.is_none() {
            // Nothing was fixed, or nothing could be read: what came in goes out.
            outcome.stdout = Some(String::from_utf8_lossy(&bytes).into_owned());
        }
        Ok(outcome)
    }

    fn file(&self, target: &Target<'_>) -> Outcome {
        let name = target.path.display().to_string();
        let bytes = match fs::read(&target.path) {
            Ok(bytes) => bytes,
            Err(error) => return failed(name, &format!("cannot read it: {error}")),
        };
        let selection = target.settings.for_file(&target.path);
        let mut outcome = self.lint(&name, bytes, &selection);
        if let Some(text) = outcome.stdout.take()
            && let Err(error) = replace(&target.path, &text)
        {
            outcome.report.problems.push(Problem::new(
                1,
                1,
                format!("cannot write the fixes: {error}"),
            ));
            outcome.fixed = 0;
        }
        outcome
    }

    /// Lints one text. Its fixed form, if fixes were asked for and there were any, is in `stdout`.
    fn lint(&self, name: &str, bytes: Vec<u8>, selection: &Selection) -> Outcome {
        let source = match Source::from_bytes(name, bytes) {
            Ok(source) => source,
            Err(problem) => {
                let mut outcome = failed(name.to_string(), "");
                outcome.report.problems = vec![problem];
                return outcome;
            }
        };
        if let Some(least) = self.least()
            && let Some(fixed) = oomph_lint::fix(&source, selection, least)
        {
            return Outcome {
                report: FileReport {
                    path: name.to_string(),
                    source: Some(fixed.source),
                    findings: fixed.linted.findings,
                    problems: fixed.linted.problems,
                },
                fixed: fixed.applied,
                stdout: Some(fixed.text),
            };
        }
        let linted = oomph_lint::lint(&source, selection);
        // Most files are clean: their texts need not stay until the end.
        let source = (!linted.findings.is_empty()).then_some(source);
        Outcome {
            report: FileReport {
                path: name.to_string(),
                source,
                findings: linted.findings,
                problems: linted.problems,
            },
            fixed: 0,
            stdout: None,
        }
    }

    /// The least trusted fixes that were asked for.
    fn least(&self) -> Option<Applicability> {
        if self.unsafe_fixes {
            Some(Applicability::Unsafe)
        } else if self.fix {
            Some(Applicability::Safe)
        } else {
            None
        }
    }

    fn write(&self, outcomes: Vec<Outcome>) -> anyhow::Result<ExitStatus> {
        let fixed: usize = outcomes.iter().map(|outcome| outcome.fixed).sum();
        let stdout_text = outcomes.iter().find_map(|outcome| outcome.stdout.clone());
        let mut files: Vec<FileReport> =
            outcomes.into_iter().map(|outcome| outcome.report).collect();
        if let Some(trace) = &self.trace {
            order_by_trace(&mut files, trace)?;
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
        let text = match form {
            Form::Text | Form::Concise => output::text(
                &files,
                TextOptions {
                    color: true,
                    concise: form == Form::Concise,
                    ..TextOptions::default()
                },
            ),
            Form::Json => output::json(&files)?,
            Form::Github => output::github(&files),
            Form::Sarif => output::sarif(&files)?,
        };
        if let Some(fixed_text) = stdout_text {
            // The fixed text is the data; what remains to be said goes to stderr.
            print!("{fixed_text}");
            anstream::eprint!("{text}");
        } else {
            let mut out = anstream::stdout().lock();
            // A closed pipe (`| head`) is no error of ours.
            let _ = out.write_all(text.as_bytes());
        }
        if let (Some(path), false) = (&self.json, json_to_stdout) {
            fs::write(path, output::json(&files)?)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.statistics {
            statistics(&files);
        }
        if !self.quiet {
            summary(&files, findings, problems, fixed);
        }
        Ok(if problems > 0 {
            ExitStatus::Error
        } else if findings > 0 && !self.exit_zero {
            ExitStatus::Findings
        } else {
            ExitStatus::Success
        })
    }
}

/// Puts the findings on lines that held memory first, and their files.
fn order_by_trace(files: &mut [FileReport], trace: &Path) -> anyhow::Result<()> {
    let names: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
    let held = findings::held_by_trace(trace, &names)?;
    for file in files.iter_mut() {
        let mut found: Vec<_> = std::mem::take(&mut file.findings)
            .into_iter()
            .map(|finding| (file.path.as_str(), finding))
            .collect();
        order_by_held(&mut found, &held);
        file.findings = found.into_iter().map(|(_, finding)| finding).collect();
    }
    files.sort_by_key(|file| {
        let most = file.findings.first().and_then(|finding| finding.held_bytes);
        std::cmp::Reverse(most.unwrap_or(0))
    });
    Ok(())
}

/// Finds the Python files and notebooks under a path. A file that is named is always linted.
fn collect<'s>(
    path: &Path,
    settings: &'s Settings,
    targets: &mut Vec<Target<'s>>,
    outcomes: &mut Vec<Outcome>,
) {
    if !path.is_dir() {
        targets.push(Target {
            path: path.to_path_buf(),
            settings,
        });
        return;
    }
    let walk = WalkBuilder::new(path)
        .hidden(false)
        .require_git(false)
        .filter_entry(|entry| {
            let name = entry.file_name().to_string_lossy();
            entry.depth() == 0 || !FOREIGN_FOLDERS.contains(&name.as_ref())
        })
        .build();
    for entry in walk {
        match entry {
            Ok(entry) => {
                let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
                let is_python = entry
                    .path()
                    .extension()
                    .is_some_and(|extension| extension == "py" || extension == "ipynb");
                if !is_file || !is_python {
                    continue;
                }
                let absolute = std::path::absolute(entry.path())
                    .unwrap_or_else(|_| entry.path().to_path_buf());
                if !matches(&settings.exclude, &absolute, false) {
                    targets.push(Target {
                        path: entry.into_path(),
                        settings,
                    });
                }
            }
            Err(error) => outcomes.push(failed(
                path.display().to_string(),
                &format!("cannot read it: {error}"),
            )),
        }
    }
}

fn failed(path: String, message: &str) -> Outcome {
    Outcome {
        report: FileReport {
            path,
            source: None,
            findings: Vec::new(),
            problems: vec![Problem::new(1, 1, message)],
        },
        fixed: 0,
        stdout: None,
    }
}

/// Replaces a file as a whole: a reader, or a crash, sees the old text or the new one.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let path = fs::canonicalize(path)?;
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".oomph-{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = (|| {
        fs::write(&temporary, text)?;
        fs::set_permissions(&temporary, fs::metadata(&path)?.permissions())?;
        fs::rename(&temporary, &path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn list_rules() {
    let mut family = "";
    for rule in ALL {
        if rule.family() != family {
            family = rule.family();
            println!("\n{family}");
        }
        let default = if rule.default {
            ""
        } else {
            " (off by default)"
        };
        println!("  {}  {}{default}", rule.code, rule.summary());
    }
}

fn statistics(files: &[FileReport]) {
    let mut counts: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for finding in files.iter().flat_map(|file| &file.findings) {
        let entry = counts
            .entry(finding.rule.code)
            .or_insert((0, finding.rule.name));
        entry.0 += 1;
    }
    for (code, (count, name)) in counts {
        eprintln!("{count:>6}  {code}  {name}");
    }
}

fn summary(files: &[FileReport], findings: usize, problems: usize, fixed: usize) {
    let plural = |count: usize, word: &str| {
        if count == 1 {
            format!("1 {word}")
        } else {
            format!("{count} {word}s")
        }
    };
    let mut parts = Vec::new();
    if fixed > 0 {
        parts.push(format!("{} fixed", plural(fixed, "finding")));
    }
    if findings > 0 {
        let with = files
            .iter()
            .filter(|file| !file.findings.is_empty())
            .count();
        parts.push(format!(
            "{} in {}",
            plural(findings, "finding"),
            plural(with, "file")
        ));
    } else if problems == 0 {
        parts.push(format!("nothing found in {}", plural(files.len(), "file")));
    }
    if problems > 0 {
        parts.push(format!(
            "{} could not be linted",
            plural(problems, "file or cell")
        ));
    }
    eprintln!("{}", parts.join(", "));
    let fixable = |safe: bool| {
        files
            .iter()
            .flat_map(|file| &file.findings)
            .filter_map(|finding| finding.fix.as_ref())
            .filter(|fix| (fix.applicability == Applicability::Safe) == safe)
            .count()
    };
    match (fixable(true), fixable(false)) {
        (0, 0) => {}
        (safe, 0) => eprintln!("hint: `--fix` fixes {safe} of them"),
        (0, other) => eprintln!("hint: `--unsafe-fixes` fixes {other} of them"),
        (safe, other) => eprintln!(
            "hint: `--fix` fixes {safe} of them, `--unsafe-fixes` {} of them",
            safe + other
        ),
    }
}
