//! The directory that a run leaves: its files, who writes them, and what in it may be removed.
//!
//! oomph marks every directory that it makes with the file [`RunFile::Marker`]. It writes only into a
//! directory that is new, empty, or marked and without foreign entries, and it removes nothing else. A
//! directory that a user names with `--out` may hold anything: their checkpoints may well be called
//! `rank-0`.
//!
//! Records hold the script's arguments and outputs: directories are made for their owner alone (0700),
//! and so are files (0600), which may lie in a directory that was there before.
//!
//! `python/oomph/_protocol.py` is the recorder's side. Both are compared with `tests/protocol.json`.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use oomph_run::Record;
use oomph_run::black_box::BlackBox;
use oomph_run::record::Engine;
use oomph_trace::{Content, Trace};
use rustix::fs::FlockOperation;
use serde::Serialize;

use crate::files;
use crate::program::Program;
use crate::settings::Settings;
use crate::signals;

/// Defines [`RunFile`] with each file's name.
macro_rules! run_files {
    ($($(#[$doc:meta])+ $file:ident = $name:literal,)+) => {
        /// A file of a run's directory.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum RunFile {
            $($(#[$doc])+ $file,)+
        }

        impl RunFile {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$file,)+];

            /// The file's name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$file => $name,)+
                }
            }
        }
    };
}

run_files! {
    /// Says that oomph made this directory.
    Marker = ".oomph-run",
    /// The recorder's settings. The command writes them.
    Settings = "settings.json",
    /// The virtual GPU's properties. The command writes it, and the recorder adds torch's version of CUDA.
    VirtualGpu = "virtual-gpu.conf",
    /// Locked by the command while the script may run: the script ends when the command is gone.
    Lock = "lock",
    /// A few words on where the script is, which the recorder writes again and again.
    Status = "status",
    /// The recorder's account, written when the script ends.
    Record = "record.json",
    /// PyTorch's memory history, beside the record; the command turns it into [`RunFile::Trace`].
    Snapshot = "trace.pickle",
    /// What the recorder writes ahead, should the script not live to write its record ([`BlackBox`]).
    BlackBox = "black-box.bin",
    /// Python's stacks of all threads: at a crash, at a signal, or when no pass had begun for long.
    Stacks = "stacks.txt",
    /// What the allocator held when memory last ran out, when the script ended badly, or when it was last looked at.
    Held = "held.pickle",
    /// Why the run could not begin. The recorder writes it.
    Refusal = "refused.txt",
    /// How a rank ended that its launcher saw fail.
    Ending = "ended.txt",
    /// Outputs of the plain run of `oomph drift`: what the recorder measured.
    Plain = "plain.json",
    /// The same of the run with the plan.
    Planned = "planned.json",
    /// A cell of a notebook, as a script.
    Cell = "cell.py",
    /// The labelled history in oomph's own form.
    Trace = "trace.oomph",
    /// The result for programs.
    Summary = "summary.json",
    /// Why memory ran out.
    Explanation = "explanation.json",
    /// The plans that `oomph fit` found.
    Plans = "plans.json",
    /// The report.
    Page = "index.html",
    /// The script's output, if it does not go to the terminal.
    Log = "output.log",
    /// What it printed in the plain run of `oomph drift`.
    PlainLog = "plain.log",
    /// What it printed in the run with the plan.
    PlannedLog = "planned.log",
}

/// A file that is being written has this after its name.
const UNFINISHED: &str = ".part";

/// What a directory of one rank or process may be called, before its number.
const RANKS: [&str; 3] = ["rank-", "local-rank-", "process-"];

/// Where runs and pages are kept if the user names no place.
pub const REPORTS: &str = "oomph-report";

/// A link in [`REPORTS`] to the newest run.
pub const LATEST: &str = "latest";

/// Keeps git from adding what lies in [`REPORTS`].
pub const GIT_IGNORE: &str = ".gitignore";

/// The directory of the unchanged job, inside that of `oomph fit`.
const PLAIN: &str = "plain";

/// The directory of the run that was made again without a limit, inside the run's.
const UNLIMITED: &str = "unlimited";

/// Whether oomph writes a file of this name: also one that is being written, and what `oomph drift`
/// keeps of each call.
fn is_own_file(name: &str) -> bool {
    let finished = name.strip_suffix(UNFINISHED).unwrap_or(name);
    RunFile::ALL.iter().any(|file| file.name() == finished)
        || finished
            .strip_prefix("call-")
            .and_then(|rest| rest.strip_suffix(".pt"))
            .is_some_and(|number| number.parse::<u32>().is_ok())
}

/// A run's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDirectory {
    path: PathBuf,
}

/// Held by the command while its script may run.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: fs::File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl RunDirectory {
    /// The directory of a run that was made before. Nothing is looked at.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Makes a directory, or takes it over and removes what an earlier run left in it.
    ///
    /// Fails, and changes nothing, if it holds anything that oomph did not write.
    pub fn prepare(path: impl Into<PathBuf>) -> anyhow::Result<Self> {
        let path = path.into();
        let mut own = Vec::new();
        let is_empty = match fs::read_dir(&path) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot use {}", path.display()));
            }
        };
        if !is_empty {
            collect_own(&path, &mut own, ELSEWHERE)?;
        }
        for (path, is_directory) in &own {
            if *is_directory {
                fs::remove_dir(path)
            } else {
                fs::remove_file(path)
            }
            .with_context(|| format!("cannot remove {}, of an earlier run", path.display()))?;
        }
        if !path.is_dir() {
            make(&path).with_context(|| format!("cannot make the directory {}", path.display()))?;
        }
        Self::marked(path)
    }

    /// Prepares the directory that the user asked for, or else makes `oomph-report/NAME-N` for the first
    /// N that is free, to which `oomph-report/latest` then leads.
    pub fn choose(asked: Option<&Path>, program: &Program) -> anyhow::Result<Self> {
        if let Some(path) = asked {
            return Self::prepare(path);
        }
        let directory = Self::numbered_in(Path::new(REPORTS), &program.name())?;
        keep_from_git(Path::new(REPORTS));
        directory.link_as_latest();
        Ok(directory)
    }

    /// Makes `oomph-report/NAME` for a page alone, if it is not there.
    pub fn for_page(name: &str) -> anyhow::Result<Self> {
        let directory = Self::at(Path::new(REPORTS).join(name));
        match make(&directory.path) {
            Ok(()) => {
                keep_from_git(Path::new(REPORTS));
                Self::marked(directory.path)
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(directory),
            Err(error) => Err(error)
                .with_context(|| format!("cannot make the directory {}", directory.path.display())),
        }
    }

    /// Makes `latest`, beside this directory, lead to it. Without it a run loses nothing.
    fn link_as_latest(&self) {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return;
        };
        let link = parent.join(LATEST);
        if link.symlink_metadata().is_ok_and(|data| !data.is_symlink()) {
            return;
        }
        // Renamed into its place: other runs may do the same at the same time.
        let new = parent.join(format!(".{LATEST}-{}", std::process::id()));
        let made = std::os::unix::fs::symlink(name, &new).and_then(|()| fs::rename(&new, &link));
        if made.is_err() {
            let _ = fs::remove_file(&new);
        }
    }

    /// The run that a path means: a run's directory itself, or the plain run in the directory of a search.
    pub fn of_run(path: &Path) -> Self {
        let directory = Self::at(path);
        let plain = Self::at(path.join(PLAIN));
        if !directory.has(RunFile::Summary) && plain.has(RunFile::Summary) {
            plain
        } else {
            directory
        }
    }

    /// Whether oomph made it.
    pub fn is_marked(&self) -> bool {
        let marker = self.file(RunFile::Marker);
        marker.symlink_metadata().is_ok_and(|data| data.is_file())
    }

    /// What of it may be removed: everything, contents before directories.
    ///
    /// Fails if it holds anything that oomph did not write, or if its run is going on.
    pub fn removable(&self) -> anyhow::Result<Vec<(PathBuf, bool)>> {
        let mut own = Vec::new();
        collect_own(&self.path, &mut own, "")?;
        let is_lock = |path: &Path| {
            path.file_name()
                .is_some_and(|name| name == RunFile::Lock.name())
        };
        if own.iter().any(|(path, _)| is_lock(path) && is_locked(path)) {
            bail!("{}: its run is going on", self.path.display());
        }
        own.push((self.path.clone(), true));
        Ok(own)
    }

    fn numbered_in(parent: &Path, name: &str) -> anyhow::Result<Self> {
        /// The most runs of one script that are kept.
        const MOST: u32 = 100_000;
        for number in 1..MOST {
            let path = parent.join(format!("{name}-{number}"));
            // Another run may choose the same number at the same time: only one of them makes it.
            match make(&path) {
                Ok(()) => return Self::marked(path),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("cannot make the directory {}", path.display()));
                }
            }
        }
        bail!("{} is full: remove old runs from it", parent.display())
    }

    fn marked(path: PathBuf) -> anyhow::Result<Self> {
        const TEXT: &str =
            "oomph made this directory, and removes its own files from it before the next run.\n";
        let directory = Self { path };
        directory.write(RunFile::Marker, TEXT.as_bytes())?;
        Ok(directory)
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of one of its files, which need not be there.
    pub fn file(&self, file: RunFile) -> PathBuf {
        self.path.join(file.name())
    }

    /// Whether one of its files is there.
    pub fn has(&self, file: RunFile) -> bool {
        self.file(file).is_file()
    }

    /// The same directory by its absolute path.
    pub fn canonical(&self) -> anyhow::Result<Self> {
        let path = fs::canonicalize(&self.path)
            .with_context(|| format!("cannot use {}", self.path.display()))?;
        Ok(Self { path })
    }

    /// The directory of one rank, which need not be there.
    #[must_use]
    pub fn rank(&self, rank: u32) -> Self {
        Self::at(self.path.join(format!("rank-{rank}")))
    }

    /// The directory of the same job run again without a limit, which need not be there.
    #[must_use]
    pub fn unlimited(&self) -> Self {
        Self::at(self.path.join(UNLIMITED))
    }

    /// The ranks' directories that are there, by their names.
    pub fn ranks(&self) -> Vec<(String, Self)> {
        let mut found: Vec<_> = fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let is_rank = RANKS.iter().any(|kind| {
                    name.strip_prefix(kind)
                        .is_some_and(|rest| rest.parse::<u32>().is_ok())
                });
                is_rank.then(|| (name, Self::at(entry.path())))
            })
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// Removes what an earlier attempt left that this one might not write again.
    pub fn begin_attempt(&self) {
        for file in [
            RunFile::Record,
            RunFile::Snapshot,
            RunFile::BlackBox,
            RunFile::Stacks,
            RunFile::Held,
            RunFile::Refusal,
            RunFile::Status,
        ] {
            let _ = fs::remove_file(self.file(file));
        }
    }

    /// Removes what processes of the run, which are gone, were still writing: one that was killed has no time to.
    pub fn remove_unfinished(&self) {
        let ranks = self.ranks().into_iter().map(|(_, place)| place);
        for place in ranks.chain([self.clone()]) {
            for file in RunFile::ALL {
                let _ = fs::remove_file(place.part(*file));
            }
        }
    }

    /// Takes the lock; `None` on file systems that have no locks.
    pub fn lock(&self) -> Option<Lock> {
        let path = self.file(RunFile::Lock);
        let file = files::create_private(&path).ok()?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).ok()?;
        Some(Lock { path, _file: file })
    }

    /// Writes the settings; returns their path.
    pub fn write_settings(&self, settings: &Settings) -> anyhow::Result<PathBuf> {
        let text = serde_json::to_vec(settings).context("cannot write the settings of the run")?;
        self.write(RunFile::Settings, &text)?;
        Ok(self.file(RunFile::Settings))
    }

    /// Writes a file as a whole: a reader never sees half of it.
    pub fn write(&self, file: RunFile, contents: &[u8]) -> anyhow::Result<()> {
        self.write_with(file, |out| out.write_all(contents))
    }

    /// Writes a value as JSON for people.
    pub fn write_json(&self, file: RunFile, value: &impl Serialize) -> anyhow::Result<()> {
        let mut text =
            serde_json::to_string_pretty(value).context("cannot write the result as JSON")?;
        text.push('\n');
        self.write(file, text.as_bytes())
    }

    /// Writes the history in oomph's own form.
    pub fn write_trace(&self, trace: &Trace) -> anyhow::Result<()> {
        self.write_with(RunFile::Trace, |file| {
            let mut out = std::io::BufWriter::new(file);
            oomph_trace::oomph_file::write(trace, &mut out)?;
            out.flush()
        })
    }

    fn write_with(
        &self,
        file: RunFile,
        write: impl FnOnce(&mut fs::File) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        let path = self.file(file);
        files::replace(&path, &self.part(file), files::PRIVATE, write)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Where a file is until it is whole.
    fn part(&self, file: RunFile) -> PathBuf {
        self.path.join(format!("{}{UNFINISHED}", file.name()))
    }

    /// The recorder's account, if it was written.
    pub fn record(&self) -> anyhow::Result<Option<Record>> {
        let path = self.file(RunFile::Record);
        let mut record = path
            .exists()
            .then(|| files::read_record(&path))
            .transpose()?;
        if let (Some(record), Some(_)) = (&mut record, signals::received()) {
            // A handler that ends the script cleanly: it would have gone on. A server has no end of its own.
            record.stopped = !record.engine.as_ref().is_some_and(Engine::has_started);
        }
        Ok(record)
    }

    /// Why the run could not begin, if it could not.
    pub fn refusal(&self) -> Option<String> {
        fs::read_to_string(self.file(RunFile::Refusal)).ok()
    }

    /// How this rank ended, if its launcher saw it fail.
    pub fn ending(&self) -> Option<String> {
        fs::read_to_string(self.file(RunFile::Ending)).ok()
    }

    /// What the recorder wrote ahead, if it did.
    pub fn black_box(&self) -> Option<BlackBox> {
        BlackBox::parse(&fs::read(self.file(RunFile::BlackBox)).ok()?)
    }

    /// The stacks that were written, if any were.
    pub fn stacks(&self) -> Option<String> {
        let bytes = fs::read(self.file(RunFile::Stacks)).ok()?;
        (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether its run is going on.
    pub fn is_running(&self) -> bool {
        is_locked(&self.file(RunFile::Lock))
    }

    /// The labelled history, if there is one.
    pub fn trace(&self) -> anyhow::Result<Option<Trace>> {
        self.has(RunFile::Trace)
            .then(|| read_trace(&self.path))
            .transpose()
    }
}

/// Keeps git from adding a directory of reports: they hold the script's arguments and outputs.
fn keep_from_git(reports: &Path) {
    let file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(reports.join(GIT_IGNORE));
    if let Ok(mut file) = file {
        let _ = file.write_all(b"*\n");
    }
}

/// Whether another process holds the lock of this file.
fn is_locked(path: &Path) -> bool {
    fs::File::open(path).is_ok_and(|file| {
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            == Err(rustix::io::Errno::WOULDBLOCK)
    })
}

/// Makes a directory for its owner alone, and its parents as usual.
fn make(path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// A history from a file or from a run's directory.
pub fn read_trace(path: &Path) -> anyhow::Result<Trace> {
    let kept = RunDirectory::of_run(path).file(RunFile::Trace);
    let path = if kept.is_file() { &kept } else { path };
    if path.is_dir() {
        bail!(
            "{}: found a directory without trace.oomph; expected a snapshot, a trace, or the \
             directory of a run",
            path.display()
        );
    }
    match files::read(path)? {
        (Content::Trace(trace), _) => Ok(*trace),
        _ => bail!(
            "{}: found no history of memory; expected a snapshot, a trace, or the directory of a run",
            path.display()
        ),
    }
}

/// What to do where a run must not write.
const ELSEWHERE: &str = ": expected a new or empty directory, or one of an earlier run with nothing else in it. \
                         Nothing was changed; name another directory with --out";

/// Lists everything below `directory`, contents before directories, and whether each is a directory.
///
/// Fails at the first entry that oomph did not write, with `advice`. Links are never oomph's and never followed.
fn collect_own(
    directory: &Path,
    own: &mut Vec<(PathBuf, bool)>,
    advice: &str,
) -> anyhow::Result<()> {
    let refuse = |what: &str| bail!("{} {what}{advice}", directory.display());
    if !directory
        .join(RunFile::Marker.name())
        .symlink_metadata()
        .is_ok_and(|data| data.is_file())
    {
        return refuse("was not made by this version of oomph and is not empty");
    }
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", directory.display()))?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let kind = entry
            .file_type()
            .with_context(|| format!("cannot read {}", path.display()))?;
        if kind.is_dir() {
            if path.join(RunFile::Marker.name()).is_file() {
                collect_own(&path, own, advice)?;
                own.push((path, true));
            } else {
                return refuse(&format!(
                    "holds the directory {name}, which oomph did not make"
                ));
            }
        } else if kind.is_file() && name == RunFile::Cell.name() {
            // A notebook writes it before the run, which is to run it.
        } else if kind.is_file() && is_own_file(&name) {
            own.push((path, false));
        } else {
            return refuse(&format!("holds {name}, which oomph did not write"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("oomph-run-directory-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    /// Every path below `directory` with its contents.
    fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(contents(&path));
            } else {
                found.push((path.clone(), fs::read(&path).unwrap()));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn a_new_an_empty_and_an_own_directory_are_taken() {
        let directory = scratch("taken").join("deep");
        RunDirectory::prepare(&directory).unwrap();
        fs::write(directory.join("record.json"), "{}").unwrap();
        fs::write(directory.join("call-3.pt"), "x").unwrap();
        let rank = directory.join("rank-0");
        RunDirectory::prepare(&rank).unwrap();
        fs::write(rank.join("trace.oomph"), "x").unwrap();
        RunDirectory::prepare(&directory).unwrap();
        let left: Vec<_> = contents(&directory)
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        assert_eq!(left, [directory.join(RunFile::Marker.name())]);
        fs::remove_file(directory.join(RunFile::Marker.name())).unwrap();
        RunDirectory::prepare(&directory).unwrap();
    }

    #[test]
    fn what_is_not_oomphs_stays_and_is_named() {
        for (case, foreign) in [
            ("unmarked", "record.json"),
            ("file", "notes.txt"),
            ("directory", "rank-0/checkpoint.pt"),
            ("below", "unlimited/model.pt"),
            ("call", "call-best.pt"),
        ] {
            let directory = scratch(case);
            if case == "unmarked" {
                fs::create_dir_all(&directory).unwrap();
            } else {
                RunDirectory::prepare(&directory).unwrap();
                fs::write(directory.join("record.json"), "own").unwrap();
                RunDirectory::prepare(directory.join("unlimited")).unwrap();
            }
            let path = directory.join(foreign);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "theirs").unwrap();
            let before = contents(&directory);
            let error = RunDirectory::prepare(&directory).unwrap_err().to_string();
            assert!(error.contains("Nothing was changed"), "{case}: {error}");
            assert_eq!(contents(&directory), before, "{case}");
        }
    }

    #[test]
    fn two_runs_never_share_a_number() {
        let place = scratch("numbered");
        fs::create_dir_all(&place).unwrap();
        let made: Vec<PathBuf> = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| RunDirectory::numbered_in(&place, "train").unwrap().path))
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        let different: std::collections::BTreeSet<_> = made.iter().collect();
        assert_eq!(different.len(), made.len());
    }

    #[test]
    fn the_newest_run_is_called_latest() {
        let place = scratch("latest");
        for number in 1..=2 {
            RunDirectory::numbered_in(&place, "train")
                .unwrap()
                .link_as_latest();
            let target = fs::read_link(place.join(LATEST)).unwrap();
            assert_eq!(target, PathBuf::from(format!("train-{number}")));
        }
        // What somebody else calls so stays.
        fs::remove_file(place.join(LATEST)).unwrap();
        fs::create_dir(place.join(LATEST)).unwrap();
        RunDirectory::numbered_in(&place, "train")
            .unwrap()
            .link_as_latest();
        assert!(place.join(LATEST).read_link().is_err());
        assert_eq!(fs::read_dir(&place).unwrap().count(), 4);
    }

    #[test]
    fn a_run_that_is_going_on_is_not_removable() {
        let place = scratch("running");
        let directory = RunDirectory::prepare(&place).unwrap();
        let attempt = RunDirectory::prepare(place.join("plain")).unwrap();
        attempt.write(RunFile::Page, b"page").unwrap();
        let lock = attempt.lock().unwrap();
        let error = directory.removable().unwrap_err().to_string();
        assert!(error.contains("going on"), "{error}");
        drop(lock);
        let removable = directory.removable().unwrap();
        assert_eq!(removable.last().unwrap(), &(place, true));
        assert_eq!(removable.len(), 5, "two directories, their markers, a page");
    }

    #[test]
    fn links_are_not_followed() {
        let outside = scratch("outside");
        RunDirectory::prepare(&outside).unwrap();
        fs::write(outside.join("record.json"), "theirs").unwrap();
        let directory = scratch("links");
        RunDirectory::prepare(&directory).unwrap();
        std::os::unix::fs::symlink(&outside, directory.join("rank-0")).unwrap();
        RunDirectory::prepare(&directory).unwrap_err();
        assert!(outside.join("record.json").is_file());
    }

    /// The permissions of everything below `directory`, and its own.
    fn modes(directory: &Path) -> Vec<u32> {
        let mut found = vec![fs::metadata(directory).unwrap().permissions().mode() & 0o777];
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(modes(&path));
            } else {
                found.push(fs::metadata(path).unwrap().permissions().mode() & 0o777);
            }
        }
        found
    }

    #[test]
    fn records_are_for_their_owner_alone() {
        let place = scratch("private");
        for directory in [
            RunDirectory::prepare(place.join("deep/out")).unwrap(),
            RunDirectory::numbered_in(&place, "train").unwrap(),
        ] {
            directory.write(RunFile::Page, b"page").unwrap();
            directory.write_json(RunFile::Summary, &1).unwrap();
            let _lock = directory.lock().unwrap();
            for mode in modes(directory.path()) {
                assert_eq!(mode & 0o077, 0, "{mode:o}");
            }
        }
    }

    #[test]
    fn what_a_killed_process_was_writing_goes() {
        let directory = RunDirectory::prepare(scratch("killed")).unwrap();
        let engine = RunDirectory::prepare(directory.path().join("process-7")).unwrap();
        for place in [&directory, &engine] {
            fs::write(place.file(RunFile::Record), "{}").unwrap();
            fs::write(place.path().join("trace.pickle.part"), "ha").unwrap();
        }
        directory.remove_unfinished();
        for place in [&directory, &engine] {
            assert!(!place.path().join("trace.pickle.part").exists());
            assert!(place.has(RunFile::Record));
        }
    }

    #[test]
    fn nobody_sees_half_a_file() {
        let directory = RunDirectory::prepare(scratch("torn")).unwrap();
        directory.write(RunFile::Page, b"whole").unwrap();
        directory
            .write_with(RunFile::Page, |file| {
                file.write_all(b"ha")?;
                Err(std::io::ErrorKind::StorageFull.into())
            })
            .unwrap_err();
        let found = fs::read(directory.file(RunFile::Page)).unwrap();
        assert_eq!(found, b"whole");
        let left = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 2, "the marker and the page");
    }
}
