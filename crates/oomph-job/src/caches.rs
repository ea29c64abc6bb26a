//! Where a user's caches are kept.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::files;

/// Where caches go: `$XDG_CACHE_HOME/oomph` or `~/.cache/oomph`. `None` for a user without a home.
pub fn cache_directory() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    let base =
        base.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
    Some(base.join("oomph"))
}

/// Writes a file of a cache as a whole, for its owner alone, with the directories that it needs.
pub fn write_cache(path: &Path, contents: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)?;
    }
    let mut part = path.file_name().unwrap_or_default().to_os_string();
    part.push(format!(".part-{}", std::process::id()));
    files::replace(path, &path.with_file_name(part), files::PRIVATE, |file| {
        file.write_all(contents)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_cache_is_for_its_owner_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("oomph/plans/1.json");
        for text in ["old", "new"] {
            write_cache(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        write_cache(&path.join("below a file"), b"").unwrap_err();
    }
}
