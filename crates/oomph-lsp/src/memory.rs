//! What a run held, by the lines of the user's files.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use oomph_lint::HeldBytes;

/// What a run held at its peak, or when memory ran out.
#[derive(Clone, Debug)]
pub struct RunMemory {
    /// What people call it: `oomph-report/train-1`.
    pub name: String,
    /// What `oomph explain` says of it, in one sentence.
    pub verdict: String,
    /// Whether memory ran out; otherwise the bytes are those of the peak.
    pub out_of_memory: bool,
    /// All bytes that tensors held then.
    pub bytes: u64,
    /// The bytes by lines. Files are named as they were recorded.
    pub held: HeldBytes,
    /// When the run was written.
    pub modified: SystemTime,
}

impl RunMemory {
    /// The recorded file that a file is. A run of another machine had the project in another place: then it is
    /// the one with which the path has most in common, from the end, if that is not another file of this machine.
    pub fn recorded_as(&self, file: &Path) -> Option<&str> {
        let of = |name: &str| PathBuf::from(name);
        if let Some(same) = self.held.files().find(|name| of(name) == file) {
            return Some(same);
        }
        let canonical = file.canonicalize().ok();
        let is_same =
            |name: &&str| canonical.is_some() && of(name).canonicalize().ok() == canonical;
        if let Some(same) = self.held.files().find(is_same) {
            return Some(same);
        }
        let shared = |name: &str| {
            let parts = of(name);
            let pairs = parts.components().rev().zip(file.components().rev());
            pairs.take_while(|(a, b)| a == b).count()
        };
        let gone = || self.held.files().filter(|name| !of(name).exists());
        let most = gone().map(shared).max().filter(|&most| most > 0)?;
        let mut best = gone().filter(|name| shared(name) == most);
        let found = best.next()?;
        best.next().is_none().then_some(found)
    }

    /// When that was, for sentences.
    pub fn moment(&self) -> &'static str {
        if self.out_of_memory {
            "when memory ran out"
        } else {
            "at the peak"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_another_machine_names_files_by_their_ends() {
        let here = std::env::current_exe().unwrap();
        let mut held = HeldBytes::new();
        for file in [
            "/elsewhere/project/train.py",
            "/elsewhere/other/train.py",
            "/elsewhere/model.py",
            here.to_str().unwrap(),
        ] {
            held.add([(file, 1)], 1);
        }
        let run = RunMemory {
            name: String::new(),
            verdict: String::new(),
            out_of_memory: false,
            bytes: 4,
            held,
            modified: SystemTime::now(),
        };
        let recorded = |file: &str| run.recorded_as(Path::new(file));
        let other_place = Path::new("/x").join(here.file_name().unwrap());
        assert_eq!(
            recorded("/home/me/project/train.py"),
            Some("/elsewhere/project/train.py")
        );
        assert_eq!(recorded("/home/me/train.py"), None);
        assert_eq!(recorded("/home/me/model.py"), Some("/elsewhere/model.py"));
        assert_eq!(recorded("/home/me/data.py"), None);
        assert_eq!(run.recorded_as(&here), here.to_str());
        // That file is here, so it is not the one of that name in another place.
        assert_eq!(run.recorded_as(&other_place), None);
    }
}
