//! The files of a script that runs on a virtual GPU: what it writes is kept apart from the user's files, and goes when it ends.
//!
//! The preloaded library does the work (`crates/oomph-overlay`); this is where its directory is, which directories it leaves
//! alone, and what the script has left there.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::rendezvous::{make_directory, sweep};
use crate::settings::variables;

/// Directories of the system, of devices and of what is running.
const SYSTEM: [&str; 4] = ["/dev", "/proc", "/sys", "/run"];

/// Variables that name a directory of downloads or of compiled code. What a script puts there before or after it has used the GPU
/// is as good as what a real run does, and may be large.
const CACHES: [&str; 24] = [
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_DATASETS_CACHE",
    "HF_MODULES_CACHE",
    "TRANSFORMERS_CACHE",
    "TORCH_HOME",
    "TORCH_EXTENSIONS_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_HOME",
    "TRITON_CACHE_DIR",
    "NUMBA_CACHE_DIR",
    "CUPY_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "JAX_COMPILATION_CACHE_DIR",
    "VLLM_CACHE_ROOT",
    "KERAS_HOME",
    "TFHUB_CACHE_DIR",
    "TFDS_DATA_DIR",
    "MPLCONFIGDIR",
    "NLTK_DATA",
];

/// The same in the user's home.
const CACHES_AT_HOME: [&str; 11] = [
    ".cache",
    ".config",
    ".local",
    ".triton",
    ".nv",
    ".keras",
    ".torch",
    ".cupy",
    ".matplotlib",
    "nltk_data",
    "tensorflow_datasets",
];

/// Says whether Weights & Biases sends what a script logs.
const TRACKER: &str = "WANDB_MODE";

/// The overlay of one run. Its directory goes with it.
#[derive(Debug)]
pub(crate) struct Overlay {
    directory: PathBuf,
    /// Held while the directory is in use.
    _lock: fs::File,
}

/// What a script on a virtual GPU wrote, none of which was kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// How many files.
    pub files: u64,
    /// Their size.
    pub bytes: u64,
    /// Those of them that would have taken the place of others.
    pub replaced: Vec<PathBuf>,
    /// What it removed.
    pub removed: Vec<PathBuf>,
    /// Files that it may have changed all the same: they were too large to copy.
    pub in_place: Vec<PathBuf>,
}

impl Overlay {
    /// Makes the directory, and lets `command` use it; `own` is what the run itself writes.
    pub(crate) fn open(command: &mut Command, own: &Path, python: &Path) -> anyhow::Result<Self> {
        let parent = on_disk();
        sweep(&parent);
        // Where nothing temporary can be written, the run's own directory can.
        let made = make_directory(&parent).or_else(|_| make_directory(own));
        let (directory, lock) = made.with_context(|| {
            format!(
                "cannot make a directory in {}, for what the script writes; name another with TMPDIR, or use --keep-files",
                parent.display()
            )
        })?;
        let overlay = Self {
            directory: fs::canonicalize(&directory).unwrap_or(directory),
            _lock: lock,
        };
        command.env(variables::OVERLAY, overlay.rules(command, own, python));
        // A table of losses that nothing computed helps nobody, and a search would send many.
        if std::env::var_os(TRACKER).is_none() {
            command.env(TRACKER, "disabled");
        }
        Ok(overlay)
    }

    /// The variable's value: the directory, then what is left alone (`-`) and what is not (`+`).
    fn rules(&self, command: &Command, own: &Path, python: &Path) -> OsString {
        let named = |name: &str| {
            let set = command
                .get_envs()
                .find(|(known, _)| *known == OsStr::new(name));
            let value = match set {
                Some((_, value)) => value.map(OsString::from),
                None => std::env::var_os(name),
            };
            value.filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        let home = named("HOME");
        let at_home = CACHES_AT_HOME
            .iter()
            .filter_map(|name| Some(home.as_ref()?.join(name)));
        let alone = (SYSTEM.iter().map(PathBuf::from))
            .chain([std::env::temp_dir()])
            .chain(CACHES.iter().filter_map(|name| named(name)))
            .chain(at_home)
            // What Python has installed, which often lies in the project.
            .chain(
                python
                    .parent()
                    .and_then(Path::parent)
                    .map(Path::to_path_buf),
            );
        let here = std::env::current_dir().into_iter();
        let rules = (alone.map(|path| (b'-', path)))
            .chain(here.map(|path| (b'+', path)))
            .chain([(b'-', own.to_path_buf())]);
        let mut text = self.directory.clone().into_os_string().into_vec();
        for (sign, path) in rules {
            let canonical = fs::canonicalize(&path).ok();
            let both = [Some(path), canonical];
            for path in both.into_iter().flatten() {
                let bytes = path.as_os_str().as_bytes();
                // A root would be everything, and a colon ends a rule.
                if path.is_absolute() && bytes.len() > 1 && !bytes.contains(&b':') {
                    text.extend([b':', sign]);
                    text.extend(bytes.strip_suffix(b"/").unwrap_or(bytes));
                }
            }
        }
        OsString::from_vec(text)
    }

    /// What the script wrote.
    pub(crate) fn written(&self) -> Written {
        let mut written = Written::default();
        let upper = self.directory.join("upper");
        walk(&upper, &mut |path| {
            let Ok(data) = path.symlink_metadata() else {
                return;
            };
            written.files += 1;
            written.bytes += data.len();
            if let Some(place) = below(path, &upper)
                && place.symlink_metadata().is_ok()
                && !self.is_marked("made", &place)
            {
                written.replaced.push(place);
            }
        });
        let gone = self.directory.join("gone");
        walk(&gone, &mut |path| {
            // One that was written again is replaced.
            if let Some(place) = below(path, &gone)
                && path
                    .strip_prefix(&gone)
                    .is_ok_and(|rest| !upper.join(rest).exists())
            {
                written.removed.push(place);
            }
        });
        written.in_place = self.listed("in-place");
        for list in [
            &mut written.replaced,
            &mut written.removed,
            &mut written.in_place,
        ] {
            list.sort();
            list.dedup();
        }
        written
    }

    /// Removes what the script has made among temporary files and left there: each run of a search would leave it again.
    fn remove_temporary(&self) {
        let usual = std::env::temp_dir();
        for path in self.listed("temporary") {
            // A directory's contents are removed with it.
            if path.parent() != Some(&usual) {
                continue;
            }
            let _ = match path.symlink_metadata() {
                Ok(data) if data.is_dir() => fs::remove_dir_all(&path),
                Ok(_) => fs::remove_file(&path),
                Err(_) => continue,
            };
        }
    }

    /// The paths in a list of the library's.
    fn listed(&self, name: &str) -> Vec<PathBuf> {
        let list = fs::read(self.directory.join(name)).unwrap_or_default();
        let lines = list.split(|&byte| byte == b'\n');
        lines
            .filter(|line| !line.is_empty())
            .map(|line| PathBuf::from(OsStr::from_bytes(line)))
            .collect()
    }

    fn is_marked(&self, tree: &str, place: &Path) -> bool {
        let tree = self.directory.join(tree);
        let mut marks = place
            .ancestors()
            .filter_map(|place| place.strip_prefix("/").ok());
        marks.any(|place| tree.join(place).is_file())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        self.remove_temporary();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Where a path of a tree in the overlay stands for.
fn below(path: &Path, tree: &Path) -> Option<PathBuf> {
    Some(Path::new("/").join(path.strip_prefix(tree).ok()?))
}

/// Calls `of_file` for all files below a directory.
fn walk(directory: &Path, of_file: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), of_file),
            _ => of_file(&entry.path()),
        }
    }
}

/// A directory for temporary files that is on a disk: checkpoints are large, and `/tmp` is often in memory.
fn on_disk() -> PathBuf {
    const DISK: &str = "/var/tmp";
    const TMPFS: u64 = 0x0102_1994;
    let usual = std::env::temp_dir();
    let in_memory =
        |path: &Path| rustix::fs::statfs(path).is_ok_and(|data| data.f_type as u64 == TMPFS);
    let writable = || rustix::fs::access(DISK, rustix::fs::Access::WRITE_OK).is_ok();
    if in_memory(&usual) && !in_memory(Path::new(DISK)) && writable() {
        DISK.into()
    } else {
        usual
    }
}
