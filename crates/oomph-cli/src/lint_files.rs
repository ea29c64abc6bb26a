//! Finding, reading, linting and fixing files.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use ignore::WalkBuilder;
use oomph_lint::output::FileReport;
use oomph_lint::{
    Applicability, Around, FileFacts, FirstLook, Linted, Newest, Problem, Project, Selection,
    Source, may_pin, newest_torch, newest_torch_for_python,
};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use similar::TextDiff;

use oomph_job::files::write_whole;

use crate::lint_settings::{Choices, Settings, matches};

/// Folders of third-party code, skipped even without a `.gitignore`.
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

/// Name of standard input without `--stdin-filename`.
const STDIN_NAME: &str = "<stdin>";

/// Lints files.
#[derive(Debug)]
pub struct Linter {
    /// What the command line says of the rules.
    pub choices: Choices,
    /// The least trusted fixes to apply; `None` applies none.
    pub least: Option<Applicability>,
    /// Whether fixes are written; otherwise they are told as a diff.
    pub writes: bool,
    /// The name that standard input goes by.
    pub stdin_name: Option<PathBuf>,
}

/// The result for a file.
pub struct LintedFile {
    /// The findings.
    pub report: FileReport,
    /// How many were fixed.
    pub fixed: usize,
    /// The fixed text of standard input.
    pub text: Option<String>,
    /// What fixes would change.
    pub diff: Option<String>,
}

/// A file to lint.
struct Target<'s> {
    path: PathBuf,
    settings: &'s Settings,
    /// It was named by itself: who calls what is in it may be in files that were not read.
    alone: bool,
}

/// A file that was read, before its project is known. Nothing of one that is to be fixed.
struct Look(Option<(FirstLook, Option<Source>)>);

impl Look {
    /// Whether nothing was found so far.
    fn is_quiet(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|(first, _)| !first.has_findings())
    }

    /// The findings, if they are what they were when the file was read.
    fn settled(self, target: &Target<'_>, around: &Around) -> Option<LintedFile> {
        let (first, source) = self.0?;
        let linted = first.settled(around)?;
        Some(reported(target.path.display().to_string(), source, linted))
    }
}

impl Linter {
    /// Lints files, folders and, for `-`, standard input.
    pub fn lint(&self, paths: &[PathBuf]) -> anyhow::Result<Vec<LintedFile>> {
        // A directory that was removed looks empty from inside.
        if paths
            .iter()
            .any(|path| path.is_relative() && path.as_os_str() != "-")
        {
            std::env::current_dir().context("cannot read the current directory")?;
        }
        let mut all_settings: Vec<Settings> = Vec::new();
        let mut by_config: HashMap<Option<PathBuf>, usize> = HashMap::new();
        let mut of_path = Vec::with_capacity(paths.len());
        for path in paths {
            let named = match &self.stdin_name {
                Some(name) if path.as_os_str() == "-" => name,
                _ => path,
            };
            let file = self.choices.config_for(named)?;
            let index = if let Some(index) = by_config.get(&file) {
                *index
            } else {
                all_settings.push(self.choices.settings(file.as_deref())?);
                by_config.insert(file, all_settings.len() - 1);
                all_settings.len() - 1
            };
            of_path.push(index);
        }

        let mut targets = Vec::new();
        let mut linted = Vec::new();
        for (path, index) in paths.iter().zip(of_path) {
            let settings = &all_settings[index];
            if path.as_os_str() == "-" {
                linted.push(self.stdin(settings)?);
            } else {
                collect(path, settings, usize::MAX, &mut targets, &mut linted);
            }
        }
        targets.sort_by(|a, b| a.path.cmp(&b.path));
        targets.dedup_by(|a, b| a.path == b.path);
        linted.extend(threads()?.install(|| self.targets(&targets)));
        Ok(linted)
    }

    fn targets(&self, targets: &[Target]) -> Vec<LintedFile> {
        // What files say of each other is known when all are read. `collect` keeps their order.
        let (facts, looks): (Vec<(PathBuf, FileFacts)>, Vec<Option<Look>>) = targets
            .par_iter()
            .map(|target| {
                let (facts, look) = self.look(target).unzip();
                ((target.path.clone(), facts.unwrap_or_default()), look)
            })
            .unzip();
        let project = Project::new(&facts, &is_there());
        drop(facts);
        let pins = Pins::default();
        targets
            .par_iter()
            .zip(looks)
            .enumerate()
            .map(|(index, (target, look))| {
                let around = project.around(index);
                let around = if target.alone {
                    around.called_by_others()
                } else {
                    around
                };
                let pinned = |around: Around| around.for_torch(pins.of(&target.path));
                // Most files have no findings: what their project pins does not matter.
                if look.as_ref().is_some_and(Look::is_quiet) {
                    return look
                        .and_then(|look| look.settled(target, &around))
                        .unwrap_or_else(|| self.file(target, &pinned(around)));
                }
                let around = pinned(around);
                look.and_then(|look| look.settled(target, &around))
                    .unwrap_or_else(|| self.file(target, &around))
            })
            .collect()
    }

    /// Reads a file. Nothing if that fails.
    fn look(&self, target: &Target<'_>) -> Option<(FileFacts, Look)> {
        let source = source_of(&target.path)?;
        if self.least.is_some() {
            return Some((FileFacts::of(&source), Look(None)));
        }
        let selection = target.settings.for_file(&target.path);
        let (facts, first) = FirstLook::at(&source, &selection);
        // Most files have no findings: their texts are dropped, and read again if the project says otherwise.
        let source = first.has_findings().then_some(source);
        Some((facts, Look(Some((first, source)))))
    }

    fn stdin(&self, settings: &Settings) -> anyhow::Result<LintedFile> {
        let mut bytes = Vec::new();
        std::io::stdin()
            .read_to_end(&mut bytes)
            .context("cannot read standard input")?;
        let name = self
            .stdin_name
            .as_ref()
            .map_or_else(|| STDIN_NAME.to_string(), |path| path.display().to_string());
        let selection = settings.for_file(Path::new(&name));
        let torch = (self.stdin_name.as_deref()).and_then(torch_of);
        let around = Around::default().for_torch(torch);
        let mut file = self.text(&name, bytes.clone(), &selection, &around);
        if !self.writes {
            file.diff = file.text.take().map(|text| diff(&name, &bytes, &text));
            return Ok(file);
        }
        if self.least.is_some() && file.text.is_none() {
            // Nothing was fixed or could be read: return the input.
            file.text = Some(String::from_utf8_lossy(&bytes).into_owned());
        }
        Ok(file)
    }

    fn file(&self, target: &Target<'_>, around: &Around) -> LintedFile {
        let name = target.path.display().to_string();
        let bytes = match fs::read(&target.path) {
            Ok(bytes) => bytes,
            Err(error) => return failed(name, &format!("cannot read the file: {error}")),
        };
        let selection = target.settings.for_file(&target.path);
        let before = (!self.writes).then(|| bytes.clone());
        let mut file = self.text(&name, bytes, &selection, around);
        if let Some(before) = before {
            file.diff = file.text.take().map(|text| diff(&name, &before, &text));
        } else if let Some(text) = file.text.take()
            && let Err(error) = write_whole(&target.path, text.as_bytes())
        {
            file.report.problems.push(Problem::new(
                1,
                1,
                format!("cannot write the fixes: {error}"),
            ));
            file.fixed = 0;
        }
        file
    }

    /// Lints one text. Its fixed form, if fixes were asked for and there were any, is in `text`.
    fn text(
        &self,
        name: &str,
        bytes: Vec<u8>,
        selection: &Selection,
        around: &Around,
    ) -> LintedFile {
        let source = match Source::from_bytes(name, bytes) {
            Ok(source) => source,
            Err(problem) => {
                let mut file = failed(name.to_string(), "");
                file.report.problems = vec![problem];
                return file;
            }
        };
        if let Some(least) = self.least
            && let Some(fixed) = oomph_lint::fix_in(&source, selection, least, around)
        {
            return LintedFile {
                report: FileReport {
                    path: name.to_string(),
                    source: Some(fixed.source),
                    findings: fixed.linted.findings,
                    problems: fixed.linted.problems,
                },
                fixed: fixed.applied,
                text: Some(fixed.text),
                diff: None,
            };
        }
        let linted = oomph_lint::lint_in(&source, selection, around);
        reported(name.to_string(), Some(source), linted)
    }
}

fn reported(path: String, source: Option<Source>, linted: Linted) -> LintedFile {
    LintedFile {
        report: FileReport {
            path,
            // Most files have no findings: drop their texts now.
            source: source.filter(|_| !linted.findings.is_empty()),
            findings: linted.findings,
            problems: linted.problems,
        },
        fixed: 0,
        text: None,
        diff: None,
    }
}

/// What a file says about the others of its project; nothing if it cannot be read.
fn facts_of(path: &Path) -> FileFacts {
    source_of(path)
        .as_ref()
        .map(FileFacts::of)
        .unwrap_or_default()
}

fn source_of(path: &Path) -> Option<Source> {
    let bytes = fs::read(path).ok()?;
    Source::from_bytes(&path.display().to_string(), bytes).ok()
}

/// Answers whether a folder has something of a module's name: a file that git ignores, a compiled module, a folder.
/// Each folder is listed once.
fn is_there() -> impl Fn(&Path) -> bool {
    let listed: RefCell<HashMap<PathBuf, HashSet<String>>> = RefCell::default();
    move |module| {
        let (Some(folder), Some(name)) = (module.parent(), module.file_name()) else {
            return true;
        };
        let name = name.to_string_lossy();
        let mut listed = listed.borrow_mut();
        if let Some(names) = listed.get(folder) {
            return names.contains(&*name);
        }
        let names = listed
            .entry(folder.to_path_buf())
            .or_insert_with(|| names_in(folder));
        names.contains(&*name)
    }
}

/// The names of what a folder has, up to their first dot; none if it cannot be read.
fn names_in(folder: &Path) -> HashSet<String> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let stem = |entry: fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().split('.').next().map(str::to_owned)
    };
    entries.filter_map(stem).collect()
}

/// The newest PyTorch that each folder's requirements allow, and whether a repository begins there; read once a folder.
#[derive(Default)]
struct Pins(Mutex<HashMap<PathBuf, (Option<Newest>, bool)>>);

/// Requirements are not looked for in more folders than this above a file.
const MAX_FOLDERS_UP: usize = 6;

/// A file of requirements is not longer than this.
const MAX_PIN_BYTES: u64 = 1 << 16;

impl Pins {
    /// What the nearest folder around a file says that names PyTorch among its requirements.
    fn of(&self, file: &Path) -> Option<Newest> {
        let file = std::path::absolute(file).ok()?;
        for folder in file.ancestors().skip(1).take(MAX_FOLDERS_UP) {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (newest, is_root) = *known
                .entry(folder.to_path_buf())
                .or_insert_with(|| read_pins(folder));
            if newest.is_some() || is_root {
                return newest;
            }
        }
        None
    }
}

fn read_pins(folder: &Path) -> (Option<Newest>, bool) {
    let (mut newest, mut of_python) = (None, None);
    let mut is_root = false;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        is_root |= name == ".git";
        let is_short = || {
            entry
                .metadata()
                .is_ok_and(|file| file.is_file() && file.len() <= MAX_PIN_BYTES)
        };
        if may_pin(&name)
            && is_short()
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            newest = newest.max(newest_torch(&name, &text));
            of_python = of_python.max(newest_torch_for_python(&name, &text));
        }
    }
    (newest.into_iter().chain(of_python).min(), is_root)
}

/// The newest PyTorch that the project of a file allows, if it says.
pub fn torch_of(file: &Path) -> Option<Newest> {
    Pins::default().of(file)
}

/// What the Python files below a folder say of each other; of none if there are more than `most`.
pub fn project(
    folder: &Path,
    settings: &Settings,
    most: usize,
) -> anyhow::Result<Vec<(PathBuf, FileFacts)>> {
    let mut targets = Vec::new();
    collect(folder, settings, most, &mut targets, &mut Vec::new());
    if targets.len() > most {
        return Ok(Vec::new());
    }
    let of_file = |target: Target| {
        let facts = facts_of(&target.path);
        (target.path, facts)
    };
    Ok(threads()?.install(|| targets.into_par_iter().map(of_file).collect()))
}

/// Finds the Python files and notebooks under a path, until there are more than `most`. A file that is named is
/// always linted.
fn collect<'s>(
    path: &Path,
    settings: &'s Settings,
    most: usize,
    targets: &mut Vec<Target<'s>>,
    unreadable: &mut Vec<LintedFile>,
) {
    if !path.is_dir() {
        targets.push(Target {
            path: path.to_path_buf(),
            settings,
            alone: true,
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
        if targets.len() > most {
            return;
        }
        match entry {
            Ok(entry) => {
                let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
                if !is_file || !is_python(entry.path()) {
                    continue;
                }
                let absolute = std::path::absolute(entry.path())
                    .unwrap_or_else(|_| entry.path().to_path_buf());
                if !matches(&settings.exclude, &absolute, false) {
                    targets.push(Target {
                        path: entry.into_path(),
                        settings,
                        alone: false,
                    });
                }
            }
            Err(error) => unreadable.push(failed(
                path.display().to_string(),
                &format!("cannot read the file: {error}"),
            )),
        }
    }
}

/// As much of the first line as Linux reads.
const SHEBANG_BYTES: u64 = 256;

/// Whether a file is Python, by its extension or, if it has none, by its first line.
fn is_python(path: &Path) -> bool {
    if let Some(extension) = path.extension() {
        return extension == "py" || extension == "ipynb";
    }
    let mut start = Vec::new();
    let read =
        fs::File::open(path).and_then(|file| file.take(SHEBANG_BYTES).read_to_end(&mut start));
    let line = start
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    read.is_ok() && line.starts_with(b"#!") && line.windows(6).any(|part| part == b"python")
}

fn failed(path: String, message: &str) -> LintedFile {
    LintedFile {
        report: FileReport {
            path,
            source: None,
            findings: Vec::new(),
            problems: vec![Problem::new(1, 1, message)],
        },
        fixed: 0,
        text: None,
        diff: None,
    }
}

/// As many threads as there are cores, or this one alone where no more can be started, as under `ulimit -u`.
fn threads() -> Result<ThreadPool, ThreadPoolBuildError> {
    let this_one = || ThreadPoolBuilder::new().num_threads(1).use_current_thread();
    ThreadPoolBuilder::new()
        .build()
        .or_else(|_| this_one().build())
}

/// A unified diff of a file and its fixed text.
fn diff(name: &str, before: &[u8], after: &str) -> String {
    let before = String::from_utf8_lossy(before);
    let name = name.trim_start_matches("./").trim_start_matches('/');
    TextDiff::from_lines(&*before, after)
        .unified_diff()
        .header(&format!("a/{name}"), &format!("b/{name}"))
        .to_string()
}
