//! Opening what the other crates read, which take bytes and never open a file; and writing files as a
//! whole.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use oomph_run::Record;
use oomph_trace::{Content, Error, Problem, Trace};

/// The permissions of files that a user asked for, less the umask.
const PUBLIC: u32 = 0o666;

/// The permissions of a run's files.
pub(crate) const PRIVATE: u32 = 0o600;

/// Opens a file that is to be read as one of the formats of [`oomph_trace`].
fn open(path: &Path) -> Result<File, Error> {
    let io_error = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(io_error)?;
    if file.metadata().map_err(io_error)?.is_dir() {
        return Err(Error::Format {
            path: path.to_owned(),
            found: "this is a directory".to_owned(),
            expected: "a file; name the snapshot files inside it".to_owned(),
        });
    }
    Ok(file)
}

/// Reads a file of any known format.
pub fn read(path: &Path) -> Result<(Content, Vec<Problem>), Error> {
    oomph_trace::read(open(path)?, path)
}

/// Reads a snapshot of PyTorch.
pub fn read_snapshot(path: &Path) -> Result<(Trace, Vec<Problem>), Error> {
    oomph_trace::snapshot::read(open(path)?, path)
}

/// Reads a `record.json`.
pub fn read_record(path: &Path) -> anyhow::Result<Record> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Record::parse(&text, path)?)
}

/// Writes a file that a user asked for, as a whole: beside it, and renamed. A full disk leaves what was there
/// before, and a reader sees the old text or the new one.
pub fn write(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    write_whole(path, contents).with_context(|| format!("cannot write {}", path.display()))
}

/// The same, without the path in its error.
pub fn write_whole(path: &Path, contents: &[u8]) -> io::Result<()> {
    // A link stays, and what it points to is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let before = fs::metadata(&path);
    // Pipes and devices cannot be replaced.
    if before.as_ref().is_ok_and(|data| !data.is_file()) {
        return fs::write(&path, contents);
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".oomph-{}", std::process::id()));
    let is_there = before.is_ok();
    match replace(&path, &path.with_file_name(name), PUBLIC, |file| {
        if let Ok(before) = before {
            file.set_permissions(before.permissions())?;
        }
        file.write_all(contents)
    }) {
        // A file that may be written in a directory that may not.
        Err(error) if is_there && error.kind() == io::ErrorKind::PermissionDenied => {
            fs::write(&path, contents)
        }
        result => result,
    }
}

/// Writes `part`, and gives it the name of `path` when all of it is there.
pub(crate) fn replace(
    path: &Path,
    part: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    // What a killed process left, or a link that somebody put there: neither is written to.
    let _ = fs::remove_file(part);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(part)?;
    write(&mut file)
        .and_then(|()| fs::rename(part, path))
        .inspect_err(|_| {
            let _ = fs::remove_file(part);
        })
}

/// Makes a file that only its owner may read, or empties it. A link in its place is an error.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(PRIVATE)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (path, link, part) = (at("plan.toml"), at("link"), at("part"));
        fs::write(&path, "old").unwrap();
        let failed = replace(&path, &part, PRIVATE, |file| {
            file.write_all(b"ha")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        // Links stay, and pipes and devices are written to.
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, b"new").unwrap();
        write(Path::new("/dev/null"), b"gone").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        create_private(&link).unwrap_err();
        // A link where the new text is put together is not followed.
        std::os::unix::fs::symlink(&path, &part).unwrap();
        replace(&at("other"), &part, PRIVATE, |file| file.write_all(b"x")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let error = write(&at("none/plan.toml"), b"").unwrap_err().to_string();
        assert!(error.starts_with("cannot write "), "{error}");
    }

    #[test]
    fn a_directory_or_a_missing_file_is_said() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(read(directory.path()), Err(Error::Format { .. })));
        let missing = directory.path().join("missing");
        assert!(matches!(read(&missing), Err(Error::Io { .. })));
        let error = read_record(&missing).unwrap_err().to_string();
        assert!(error.starts_with("cannot read "), "{error}");
    }
}
