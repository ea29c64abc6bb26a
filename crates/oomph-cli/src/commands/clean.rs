//! `oomph clean`: removes what earlier runs left.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use oomph_bytes::format_bytes;
use oomph_job::{GIT_IGNORE, LATEST, REPORTS, RunDirectory};
use oomph_report::terminal::{DIM, pad_left, paint};

use crate::{ExitStatus, stdout};

/// Arguments of `oomph clean`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph clean                    what all runs from here left in oomph-report\n  oomph clean --older-than 7d    what is a week old\n  oomph clean --dry-run          only say what would go\n  oomph clean oomph-report/train-1\n\nOnly directories that oomph marked as its own are removed, and only if nothing else is in them."
)]
pub struct Args {
    /// Directories of runs, or directories that contain them
    #[arg(value_name = "DIRECTORY", default_value = REPORTS)]
    directories: Vec<PathBuf>,

    /// Only runs that ended longer ago, such as 12h or 7d
    #[arg(long, value_name = "DURATION", value_parser = crate::values::duration)]
    older_than: Option<Duration>,

    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// A directory that may be removed.
struct Old {
    path: PathBuf,
    /// What is in it and it itself, contents before directories.
    entries: Vec<(PathBuf, bool)>,
    bytes: u64,
}

impl Args {
    /// Removes, and says what.
    pub fn run(self) -> anyhow::Result<ExitStatus> {
        let mut old = Vec::new();
        for directory in &self.directories {
            for path in marked(directory)? {
                match self.look_at(&path) {
                    Ok(found) => old.extend(found),
                    Err(error) => eprintln!("kept: {error:#}"),
                }
            }
        }
        let mut text = String::new();
        for one in &old {
            if !self.dry_run {
                remove(one)?;
            }
            let bytes = pad_left(&format_bytes(one.bytes), 10);
            let _ = writeln!(text, "{} {}", paint(DIM, bytes), one.path.display());
        }
        if !self.dry_run {
            for place in &self.directories {
                tidy(place);
                // A run's directory that is gone now was named itself.
                if !place.exists()
                    && let Some(parent) = place.parent()
                {
                    tidy(parent);
                }
            }
        }
        let total: u64 = old.iter().map(|one| one.bytes).sum();
        let runs = if old.len() == 1 {
            "directory"
        } else {
            "directories"
        };
        let _ = match (old.len(), self.dry_run) {
            (0, _) => writeln!(text, "nothing to remove"),
            (count, false) => writeln!(text, "removed {count} {runs}, {}", format_bytes(total)),
            (count, true) => writeln!(text, "would remove {count} {runs}, {}", format_bytes(total)),
        };
        stdout(&text)?;
        Ok(ExitStatus::Success)
    }

    /// The directory if it is old enough. Fails if it must not be removed.
    fn look_at(&self, path: &Path) -> anyhow::Result<Option<Old>> {
        let entries = RunDirectory::at(path).removable()?;
        let mut newest = SystemTime::UNIX_EPOCH;
        let mut bytes = 0;
        // Ranks share files of their job by hard links.
        let mut known = HashSet::new();
        for (entry, _) in &entries {
            let data = entry
                .symlink_metadata()
                .with_context(|| format!("cannot read {}", entry.display()))?;
            newest = newest.max(data.modified().unwrap_or(newest));
            if data.is_file() && known.insert((data.dev(), data.ino())) {
                bytes += data.len();
            }
        }
        let age = newest.elapsed().unwrap_or_default();
        let is_old = self.older_than.is_none_or(|least| age > least);
        Ok(is_old.then(|| Old {
            path: path.to_owned(),
            entries,
            bytes,
        }))
    }
}

/// The directories of runs that a path means: itself, or those in it.
fn marked(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if RunDirectory::at(directory).is_marked() {
        return Ok(vec![directory.to_owned()]);
    }
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound && directory == Path::new(REPORTS) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => bail!(
            "{}: {error}. Expected the directory of a run, or a directory that contains some",
            directory.display()
        ),
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        // `latest` is a link: what it leads to is here, too.
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .filter(|path| RunDirectory::at(path).is_marked())
        .collect();
    found.sort();
    Ok(found)
}

fn remove(old: &Old) -> anyhow::Result<()> {
    for (path, is_directory) in &old.entries {
        if *is_directory {
            fs::remove_dir(path)
        } else {
            fs::remove_file(path)
        }
        .with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Removes a link that leads nowhere now and, where only oomph's own is left, the directory.
fn tidy(place: &Path) {
    let link = place.join(LATEST);
    if link.symlink_metadata().is_ok_and(|data| data.is_symlink()) && !link.exists() {
        let _ = fs::remove_file(&link);
    }
    if place.file_name().is_none_or(|name| name != REPORTS) {
        return;
    }
    let mut left = fs::read_dir(place).into_iter().flatten().flatten();
    if left.all(|entry| entry.file_name() == GIT_IGNORE) {
        let _ = fs::remove_file(place.join(GIT_IGNORE));
        let _ = fs::remove_dir(place);
    }
}
