//! Jobs of several ranks: how a launcher is started, where the ranks meet, and what each left.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use oomph_run::Record;
use oomph_run::ranks::{self, RankSummary};
use oomph_run::summary::{Peak, Summary, Verdict, summarize};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use crate::host::Host;
use crate::job::{Attempt, Job, Rehearsed, read_trace};
use crate::run_directory;

/// How long a rank may do nothing while others wait for it, unless the user says otherwise.
pub const PATIENCE_SECONDS: u64 = 12;
/// What the ranks found when they met.
const FAILURE: &str = "failure.txt";

/// Modules that start ranks, run by `python -m`.
const LAUNCHERS: [&str; 5] = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
];

/// What the words after `oomph run` are.
#[derive(Debug, PartialEq, Eq)]
pub enum Words {
    /// `script args…` or `-m module args…`.
    Script(Vec<OsString>),
    /// A program that starts ranks, with its arguments.
    Launcher(Vec<OsString>),
}

/// Tells a script from a launcher. `python`, `torchrun` and `accelerate` are those of oomph's own
/// environment.
pub fn words(mut words: Vec<OsString>, host: &Host) -> anyhow::Result<Words> {
    let python = |rest: &[OsString]| {
        let mut all = vec![host.python.clone().into_os_string()];
        all.extend_from_slice(rest);
        all
    };
    let Some(first) = words.first().and_then(|word| word.to_str()) else {
        bail!("no script was given. Usage: oomph run [options] script.py args…");
    };
    if first == "-m" {
        let launches = words
            .get(1)
            .and_then(|word| word.to_str())
            .is_some_and(|module| LAUNCHERS.contains(&module));
        return Ok(if launches {
            Words::Launcher(python(&words))
        } else {
            Words::Script(words)
        });
    }
    let module = match first {
        "torchrun" => Some("torch.distributed.run"),
        "accelerate" => Some("accelerate.commands.accelerate_cli"),
        _ => None,
    };
    if let Some(module) = module {
        words.splice(..1, ["-m", module].map(OsString::from));
        return Ok(Words::Launcher(python(&words)));
    }
    if first == "python" || first == "python3" {
        words.remove(0);
        while matches!(
            words.first().and_then(|word| word.to_str()),
            Some("-u" | "-B" | "-O")
        ) {
            words.remove(0);
        }
        return self::words(words, host);
    }
    if Path::new(first).is_file() {
        return Ok(
            if is_program(Path::new(first)) && !has_extension(first, "py") {
                Words::Launcher(words)
            } else {
                Words::Script(words)
            },
        );
    }
    let beside = host.python.parent().map(Path::to_path_buf);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = beside
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|directory| directory.join(first))
        .find(|candidate| is_program(candidate));
    match found {
        Some(program) => {
            words[0] = program.into_os_string();
            Ok(Words::Launcher(words))
        }
        None => bail!(
            "{first}: no such file, and no program of this name. Give a Python script, a module with -m, or a launcher such as torchrun"
        ),
    }
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

fn is_program(path: &Path) -> bool {
    const EXECUTE: u32 = 0o111;
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & EXECUTE != 0)
}

/// The word that names a launcher's job: its script, or else itself.
pub fn script_of(words: &[OsString]) -> Option<&OsString> {
    words
        .iter()
        .skip(1)
        .find(|word| word.to_str().is_some_and(|word| has_extension(word, "py")))
        .or_else(|| words.first())
}

/// The script among a launcher's words, with its arguments; all of them where none is seen.
pub fn own_words(words: &[OsString]) -> &[OsString] {
    let at = words
        .iter()
        .skip(1)
        .position(|word| word.to_str().is_some_and(|word| has_extension(word, "py")));
    at.and_then(|at| words.get(at + 1..)).unwrap_or(words)
}

/// The words that start `script args…` as so many ranks of this host, by PyTorch's own launcher.
pub fn torchrun(host: &Host, ranks: u32, script: &[OsString]) -> Vec<OsString> {
    let mut words = vec![host.python.clone().into_os_string()];
    words.extend(
        [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
        ]
        .map(Into::into),
    );
    words.push(ranks.to_string().into());
    words.extend_from_slice(script);
    words
}

/// Where the ranks of one run meet: a directory in memory, removed afterwards.
#[derive(Debug)]
pub struct Hall {
    directory: PathBuf,
    over: Arc<AtomicBool>,
    watch: Option<std::thread::JoinHandle<()>>,
    /// Held while the directory is in use.
    _lock: fs::File,
}

/// Its lock is held by the run that meets there. Process ids would not do: runs in other containers
/// may share `/dev/shm`, and have process ids of their own.
const OWNER: &str = "owner";
const PLACE_PREFIX: &str = "oomph-";

/// Makes a directory of its own for the ranks of a run, and takes its lock.
fn make_place(parent: &Path) -> std::io::Result<(PathBuf, fs::File)> {
    const MOST: u32 = 1000;
    let process = std::process::id();
    for number in 0..MOST {
        let directory = parent.join(format!("{PLACE_PREFIX}{process}-{number}"));
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => {
                // Locked before it has its name: whoever sees the name sees the lock.
                let unnamed = directory.join(".owner");
                let lock = fs::File::create(&unnamed)?;
                rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
                fs::rename(&unnamed, directory.join(OWNER))?;
                return Ok((directory, lock));
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(std::io::ErrorKind::AlreadyExists.into())
}

/// Removes the directories of this user's runs that were killed.
fn sweep(parent: &Path) {
    let own = rustix::process::getuid().as_raw();
    for old in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_place = old
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PLACE_PREFIX));
        let is_own = is_place
            && old
                .metadata()
                .is_ok_and(|data| data.is_dir() && data.uid() == own);
        if is_own
            && let Ok(lock) = fs::File::open(old.path().join(OWNER))
            && rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = fs::remove_dir_all(old.path());
        }
    }
}

impl Hall {
    /// Makes the directory, in shared memory where there is some, otherwise among temporary files.
    pub fn open() -> anyhow::Result<Self> {
        const MEMORY: &str = "/dev/shm";
        /// Several collectives that carry as much as they may (32 MiB each), and all small ones.
        const ENOUGH: u64 = 1 << 30;
        // A rank that writes where no memory is left is killed by the system: containers often have
        // only 64 MiB there.
        let free = rustix::fs::statvfs(MEMORY).map_or(0, |data| data.f_bavail * data.f_frsize);
        let parent = if free >= ENOUGH {
            PathBuf::from(MEMORY)
        } else {
            std::env::temp_dir()
        };
        sweep(&parent);
        let (directory, lock) = make_place(&parent)
            .with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        Ok(Self {
            directory,
            over: Arc::new(AtomicBool::new(false)),
            watch: None,
            _lock: lock,
        })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Ends what is still running a while after the ranks found that they cannot go on.
    pub fn watch(&mut self) {
        const LOOK: Duration = Duration::from_millis(200);
        const GRACE: Duration = Duration::from_secs(8);
        let (path, over) = (self.directory.join(FAILURE), self.over.clone());
        self.watch = Some(std::thread::spawn(move || {
            let mut since = None;
            while !over.load(Ordering::Acquire) {
                std::thread::sleep(LOOK);
                if since.is_none() && path.exists() {
                    since = Some(Instant::now());
                }
                if since.is_some_and(|since| since.elapsed() > GRACE) {
                    for process in descendants(std::process::id()) {
                        if let Some(id) = Pid::from_raw(process as i32) {
                            let _ = kill_process(id, Signal::KILL);
                        }
                    }
                }
            }
        }));
    }

    /// What the ranks found: kind, rank, text.
    pub fn failure(&self) -> Option<(String, u32, String)> {
        let text = fs::read_to_string(self.directory.join(FAILURE)).ok()?;
        let mut parts = text.splitn(3, '\n');
        let kind = parts.next()?.to_owned();
        let rank = parts.next()?.parse().unwrap_or(0);
        Some((kind, rank, parts.next()?.to_owned()))
    }
}

impl Drop for Hall {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// All processes below one.
fn descendants(process: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = vec![process];
    while let Some(process) = open.pop() {
        let tasks = fs::read_dir(format!("/proc/{process}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|id| id.parse().ok()) {
                found.push(child);
                open.push(child);
            }
        }
    }
    found
}

/// Lets the Python processes below `command` be recorded, if they are ranks.
pub fn hook(command: &mut Command, host: &Host, settings: &Path) {
    let hook = host.package.join("_hook");
    let mut path = hook.into_os_string();
    if let Some(others) = std::env::var_os("PYTHONPATH").filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    command.env("OOMPH_RANKS", settings).env("PYTHONPATH", path);
}

/// The names of the ranks' directories.
fn directories(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| {
            ["rank-", "local-rank-", "process-"].iter().any(|kind| {
                name.strip_prefix(kind)
                    .is_some_and(|rest| rest.parse::<u32>().is_ok())
            })
        })
        .collect()
}

/// Runs a job once: all of it, or ranks of so many one after the other, the rest being absent; what each
/// rank came to. The attempt has the record of the one that stands for the job.
pub fn attempt(
    job: &mut Job,
    rehearsed: Option<(u32, &[u32])>,
    directory: &Path,
    limit: Option<u64>,
    log: Option<&Path>,
    doing: &str,
) -> anyhow::Result<(Attempt, Vec<RankSummary>)> {
    let mut attempt = match rehearsed {
        None => job.attempt(directory, limit, log, doing)?,
        Some((world_size, chosen)) => {
            let mut last = None;
            for &rank in chosen {
                job.rehearsed = Some(Rehearsed {
                    rank,
                    world_size,
                    per_host: job.gpu.as_ref().map_or(1, |gpu| gpu.count),
                });
                let own = directory.join(format!("rank-{rank}"));
                run_directory::prepare(&own)?;
                let attempt = job.attempt(&own, limit, log, &format!("{doing} rank {rank}"))?;
                let ended = attempt.record.is_none() || !attempt.status.success();
                last = Some(attempt);
                if ended {
                    break;
                }
            }
            let mut attempt = last.context("no rank was asked for")?;
            if attempt.record.is_none() {
                return Ok((attempt, Vec::new()));
            }
            (attempt.record, attempt.trace) = (None, None);
            attempt
        }
    };
    let mut ranks = gather(directory, &attempt, job.total)?;
    if rehearsed.is_some() {
        ranks.retain(|rank| !rank.directory.is_empty());
    }
    put_spokesman(directory, &mut attempt, &ranks)?;
    Ok((attempt, ranks))
}

/// What each rank came to, from the directories that they left; none where there was one process.
/// Each gets its own summary and history in oomph's form.
fn gather(
    directory: &Path,
    attempt: &Attempt,
    total: Option<u64>,
) -> anyhow::Result<Vec<RankSummary>> {
    let mut ranks = Vec::new();
    let mut world = 0;
    let mut add = |record: &Record, summary: &Summary, name: String| {
        let number = record.rank.map(|place| {
            world = world.max(place.world_size);
            place.rank
        });
        let place = number.unwrap_or(u32::MAX);
        ranks.push(RankSummary::new(place, record, summary, name));
    };
    if let Some(record) = attempt.record.as_ref().filter(|record| record.used_cuda) {
        let summary = summarize(record, attempt.trace.as_ref(), total);
        add(record, &summary, String::new());
    }
    let mut others = 0;
    for name in directories(directory) {
        let own = directory.join(&name);
        let path = own.join("record.json");
        if !path.is_file() {
            continue;
        }
        let record = crate::files::read_record(&path)?;
        let kept = own.join("trace.oomph");
        let trace = match read_trace(&own, &record)? {
            None if kept.is_file() => Some(run_directory::read_trace(&kept)?),
            trace => trace,
        };
        let summary = summarize(&record, trace.as_ref(), total);
        run_directory::write_json(&own.join("summary.json"), &summary)?;
        add(&record, &summary, name);
        others += 1;
    }
    if others == 0 {
        return Ok(Vec::new());
    }
    // Processes that never said which rank they are come last, in the order of their names.
    ranks.sort_by_key(|rank| rank.rank);
    let named = ranks.iter().filter(|rank| rank.rank != u32::MAX).count();
    for (number, rank) in (named as u32..).zip(&mut ranks[named..]) {
        rank.rank = number;
    }
    for missing in (0..world)
        .filter(|number| !ranks.iter().any(|rank| rank.rank == *number))
        .collect::<Vec<_>>()
    {
        ranks.push(RankSummary {
            rank: missing,
            verdict: Verdict::ScriptFailed,
            terminated: false,
            device: None,
            peak: Peak::default(),
            by_category: std::collections::BTreeMap::new(),
            step_count: 0,
            failure: Some(ended(directory, missing)),
            directory: String::new(),
        });
    }
    ranks.sort_by_key(|rank| rank.rank);
    Ok(ranks)
}

/// How a rank without a record ended: its launcher may have left word.
fn ended(directory: &Path, rank: u32) -> String {
    let told = fs::read_to_string(directory.join(format!("rank-{rank}/ended.txt")));
    told.map_or_else(
        |_| "it left no record".to_owned(),
        |how| format!("{how} and left no record"),
    )
}

/// Puts the record and the history of the rank that stands for the job in the place of the launcher's.
fn put_spokesman(
    directory: &Path,
    attempt: &mut Attempt,
    ranks: &[RankSummary],
) -> anyhow::Result<()> {
    let Some(rank) = ranks::spokesman(ranks).and_then(|index| ranks.get(index)) else {
        return Ok(());
    };
    if rank.directory.is_empty() {
        return Ok(());
    }
    let own = directory.join(&rank.directory);
    attempt.record = Some(crate::files::read_record(&own.join("record.json"))?);
    let trace = own.join("trace.oomph");
    if trace.is_file() {
        let here = directory.join("trace.oomph");
        let _ = fs::remove_file(&here);
        fs::hard_link(&trace, &here)
            .or_else(|_| fs::copy(&trace, &here).map(|_| ()))
            .with_context(|| format!("cannot copy {}", trace.display()))?;
        attempt.trace = Some(run_directory::read_trace(&here)?);
    }
    Ok(())
}

/// Makes the summary of one rank that of all of them.
pub fn join(
    summary: &mut Summary,
    all: Vec<RankSummary>,
    failure: Option<(String, u32, String)>,
    status: ExitStatus,
) {
    let failed = failure.is_some() || !status.success();
    summary.culprit = failed.then(|| ranks::culprit(&all, failure)).flatten();
    summary.outlier = ranks::outlier(&all);
    let short = all.iter().any(|rank| rank.verdict == Verdict::OutOfMemory);
    if short {
        summary.verdict = Verdict::OutOfMemory;
    } else if summary.verdict != Verdict::Refused && failed {
        summary.verdict = Verdict::ScriptFailed;
        summary.failure = Some(match &summary.culprit {
            Some(culprit) => culprit.sentence(),
            None => format!("the launcher ended with {status}"),
        });
    }
    summary.ranks = all;
}
