//! What a script wrote on a virtual GPU.

use std::path::PathBuf;

use oomph_bytes::format_bytes;
use oomph_job::Written;

/// Says on standard error what the script wrote that is gone, and what it may have changed all the same.
pub fn say(written: &Written) {
    let what = match written.files {
        0 => None,
        1 => Some(("a file".to_owned(), "was")),
        many => Some((format!("{many} files"), "were")),
    };
    if let Some((files, verb)) = what {
        let size = format_bytes(written.bytes);
        let mut stays = [written.replaced.as_slice(), &written.removed].concat();
        stays.sort();
        let stays = match list(&stays) {
            Some(list) => format!(" ({list}: as before)"),
            None => String::new(),
        };
        eprintln!(
            "note: {files} of {size} that the script wrote on the virtual GPU {verb} not kept{stays}; see --keep-files"
        );
    }
    if let Some(list) = list(&written.in_place) {
        eprintln!("warning: the script may have changed {list}, too large to copy");
    }
}

/// A few paths, seen from here.
fn list(paths: &[PathBuf]) -> Option<String> {
    let here = std::env::current_dir().unwrap_or_default();
    let first = paths.first()?;
    let name = first.strip_prefix(&here).unwrap_or(first).display();
    let rest = paths.len() - 1;
    Some(match rest {
        0 => format!("{name}"),
        rest => format!("{name} and {rest} more"),
    })
}
