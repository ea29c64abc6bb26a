//! The directory that a run leaves: what in it is oomph's own, and may be removed.
//!
//! oomph marks every directory that it makes with the file [`MARKER`]. It writes only into a directory
//! that is new, empty, or marked and without foreign entries, and it removes nothing else. A directory
//! that a user names with `--out` may hold anything: their checkpoints may well be called `rank-0`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use oomph_trace::{Content, Trace};

/// Marks a directory as one that oomph made. `python/oomph/_run_directory.py` writes it too.
pub const MARKER: &str = ".oomph-run";

const MARKER_TEXT: &str =
    "oomph made this directory, and removes its own files from it before the next run.\n";

/// The files that oomph and its recorder write into a marked directory.
const FILES: [&str; 21] = [
    MARKER,
    "cell.py",
    "ended.txt",
    "explanation.json",
    "failure.pickle",
    "failure.txt",
    "index.html",
    "lock",
    "output.log",
    "plain.json",
    "plain.log",
    "planned.json",
    "planned.log",
    "plans.json",
    "record.json",
    "refused.txt",
    "settings.json",
    "status",
    "summary.json",
    "trace.oomph",
    "trace.pickle",
];

/// More of them: files that were being written, the virtual GPU's settings, and what `oomph drift`
/// keeps of each call.
fn is_own_file(name: &str) -> bool {
    FILES.contains(&name.strip_suffix(".part").unwrap_or(name))
        || name == "virtual-gpu.conf"
        || name
            .strip_prefix("call-")
            .and_then(|rest| rest.strip_suffix(".pt"))
            .is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Makes `directory`, or takes it over and removes what an earlier run left in it.
///
/// Fails, and changes nothing, if it holds anything that oomph did not write.
pub fn prepare(directory: &Path) -> anyhow::Result<()> {
    let mut own = Vec::new();
    let is_empty = match fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => {
            return Err(error).with_context(|| format!("cannot use {}", directory.display()));
        }
    };
    if !is_empty {
        collect_own(directory, &mut own)?;
    }
    for (path, is_directory) in &own {
        if *is_directory {
            fs::remove_dir(path)
        } else {
            fs::remove_file(path)
        }
        .with_context(|| format!("cannot remove {}, of an earlier run", path.display()))?;
    }
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    mark(directory)
}

/// Makes `oomph-report/NAME-N` for the first N that is free.
pub fn make_numbered(name: &str) -> anyhow::Result<PathBuf> {
    make_numbered_in(Path::new("oomph-report"), name)
}

fn make_numbered_in(parent: &Path, name: &str) -> anyhow::Result<PathBuf> {
    /// Nobody keeps more runs of one script than this.
    const MOST: u32 = 100_000;
    fs::create_dir_all(parent)
        .with_context(|| format!("cannot make the directory {}", parent.display()))?;
    for number in 1..MOST {
        let directory = parent.join(format!("{name}-{number}"));
        // Another run may choose the same number at the same time: only one of them makes it.
        match fs::create_dir(&directory) {
            Ok(()) => {
                mark(&directory)?;
                return Ok(directory);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot make the directory {}", directory.display()));
            }
        }
    }
    bail!("{} is full: remove old runs from it", parent.display())
}

/// A history from a file or from a run's directory.
pub fn read_trace(path: &Path) -> anyhow::Result<Trace> {
    let kept = path.join("trace.oomph");
    let path = if kept.is_file() { &kept } else { path };
    if path.is_dir() {
        bail!(
            "{}: found a directory without trace.oomph; expected a snapshot, a trace, or the \
             directory of a run",
            path.display()
        );
    }
    match crate::files::read(path)? {
        (Content::Trace(trace), _) => Ok(*trace),
        _ => bail!(
            "{}: found a log; expected a snapshot, a trace, or the directory of a run",
            path.display()
        ),
    }
}

/// Writes `value` as JSON for people.
pub fn write_json(path: &Path, value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text =
        serde_json::to_string_pretty(value).context("cannot write the result as JSON")?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn mark(directory: &Path) -> anyhow::Result<()> {
    let path = directory.join(MARKER);
    fs::File::create(&path)
        .and_then(|mut file| file.write_all(MARKER_TEXT.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Lists everything below `directory`, contents before directories, and whether each is a directory.
///
/// Fails at the first entry that oomph did not write. Links are never oomph's and never followed.
fn collect_own(directory: &Path, own: &mut Vec<(PathBuf, bool)>) -> anyhow::Result<()> {
    let refuse = |what: &str| {
        bail!(
            "{} {what}: expected a new or empty directory, or one of an earlier run with nothing else in it. \
             Nothing was changed; name another directory with --out",
            directory.display()
        )
    };
    if !directory
        .join(MARKER)
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
            if path.join(MARKER).is_file() {
                collect_own(&path, own)?;
                own.push((path, true));
            } else {
                return refuse(&format!(
                    "holds the directory {name}, which oomph did not make"
                ));
            }
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
        prepare(&directory).unwrap();
        fs::write(directory.join("record.json"), "{}").unwrap();
        fs::write(directory.join("call-3.pt"), "x").unwrap();
        let rank = directory.join("rank-0");
        prepare(&rank).unwrap();
        fs::write(rank.join("trace.oomph"), "x").unwrap();
        prepare(&directory).unwrap();
        let left: Vec<_> = contents(&directory)
            .into_iter()
            .map(|(path, _)| path)
            .collect();
        assert_eq!(left, [directory.join(MARKER)]);
        fs::remove_file(directory.join(MARKER)).unwrap();
        prepare(&directory).unwrap();
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
                prepare(&directory).unwrap();
                fs::write(directory.join("record.json"), "own").unwrap();
                prepare(&directory.join("unlimited")).unwrap();
            }
            let path = directory.join(foreign);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "theirs").unwrap();
            let before = contents(&directory);
            let error = prepare(&directory).unwrap_err().to_string();
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
                .map(|_| scope.spawn(|| make_numbered_in(&place, "train").unwrap()))
                .collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        let different: std::collections::BTreeSet<_> = made.iter().collect();
        assert_eq!(different.len(), made.len());
    }

    #[test]
    fn links_are_not_followed() {
        let outside = scratch("outside");
        prepare(&outside).unwrap();
        fs::write(outside.join("record.json"), "theirs").unwrap();
        let directory = scratch("links");
        prepare(&directory).unwrap();
        std::os::unix::fs::symlink(&outside, directory.join("rank-0")).unwrap();
        prepare(&directory).unwrap_err();
        assert!(outside.join("record.json").is_file());
    }
}
