//! Where the processes of one run meet: what they hold of each GPU, and for ranks communicators, the board
//! of who waits for whom, and failures.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use oomph_run::ranks::Culprit;
use rustix::fs::FlockOperation;

use crate::files::create_private;
use crate::signals::kill_below;

/// What the ranks found when they met. The virtual GPU writes it (`crates/oomph-vgpu/src/board.rs`).
const FAILURE: &str = "failure.txt";

/// What the processes hold of each GPU. The virtual GPU writes it (`crates/oomph-vgpu/src/card.rs`).
const CARD: &str = "card";

/// Where the processes of one run meet: a directory in memory, removed afterwards.
#[derive(Debug)]
pub struct Rendezvous {
    directory: PathBuf,
    over: Arc<AtomicBool>,
    watch: Option<std::thread::JoinHandle<()>>,
    /// Held while the directory is in use.
    _lock: fs::File,
}

/// The run that meets there holds its lock. Process ids would not work: runs in other containers
/// may share `/dev/shm`, but have their own process ids.
const OWNER: &str = "owner";
const PREFIX: &str = "oomph-";

/// Makes a directory for the processes of a run, and takes its lock.
pub(crate) fn make_directory(parent: &Path) -> std::io::Result<(PathBuf, fs::File)> {
    const MOST: u32 = 1000;
    let process = std::process::id();
    for number in 0..MOST {
        let directory = parent.join(format!("{PREFIX}{process}-{number}"));
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => {
                // Locked before it gets its name: a process that sees the name sees the lock.
                let unnamed = directory.join(".owner");
                let lock = create_private(&unnamed)?;
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
pub(crate) fn sweep(parent: &Path) {
    let own = rustix::process::getuid().as_raw();
    for old in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_rendezvous = old
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        let is_own = is_rendezvous
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

impl Rendezvous {
    /// Makes the directory in shared memory if there is enough, otherwise among temporary files.
    pub fn open() -> anyhow::Result<Self> {
        const MEMORY: &str = "/dev/shm";
        /// Enough for several collectives of the largest size (32 MiB each) and all small ones.
        const ENOUGH: u64 = 1 << 30;
        // The system kills a rank that writes when shared memory is full, and containers often have
        // only 64 MiB of it.
        let free = rustix::fs::statvfs(MEMORY).map_or(0, |data| data.f_bavail * data.f_frsize);
        let parent = if free >= ENOUGH {
            PathBuf::from(MEMORY)
        } else {
            std::env::temp_dir()
        };
        sweep(&parent);
        let (directory, lock) = make_directory(&parent)
            .with_context(|| {
                format!(
                    "cannot make a directory in {}, where the processes of a run meet; name another with TMPDIR",
                    parent.display()
                )
            })?;
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

    /// The file of what the processes hold.
    pub fn card(&self) -> PathBuf {
        self.directory.join(CARD)
    }

    /// Kills processes that still run some time after the ranks found that they cannot go on.
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
                    kill_below(std::process::id());
                }
            }
        }));
    }

    /// What the ranks found, if they could not go on together.
    pub fn failure(&self) -> Option<Culprit> {
        let text = fs::read_to_string(self.directory.join(FAILURE)).ok()?;
        let mut parts = text.splitn(3, '\n');
        Some(Culprit {
            kind: parts.next()?.to_owned(),
            rank: parts.next()?.parse().unwrap_or(0),
            what: parts.next()?.to_owned(),
        })
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(watch) = self.watch.take() {
            let _ = watch.join();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another container sees the directory, but not the process that it is named after.
    #[test]
    fn what_a_live_run_holds_stays_and_what_a_killed_one_left_goes() {
        let parent = tempfile::tempdir().unwrap();
        let (live, lock) = make_directory(parent.path()).unwrap();
        let (killed, of_killed) = make_directory(parent.path()).unwrap();
        // A directory of another kind that begins alike, and one that is just being made.
        let others = ["oomph-notes", "oomph-1-0"].map(|name| parent.path().join(name));
        for other in &others {
            fs::create_dir(other).unwrap();
        }
        drop(of_killed);
        sweep(parent.path());
        assert!(live.join(OWNER).is_file() && !killed.exists());
        assert!(others.iter().all(|other| other.is_dir()));
        drop(lock);
        sweep(parent.path());
        assert!(!live.exists());
    }
}
