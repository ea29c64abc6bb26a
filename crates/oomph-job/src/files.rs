//! Opening what the other crates read: they take bytes and never open a file.

use std::fs::{self, File};
use std::path::Path;

use anyhow::Context as _;
use oomph_run::Record;
use oomph_trace::{Content, Error, Problem, Trace};

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

#[cfg(test)]
mod tests {
    use super::*;

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
