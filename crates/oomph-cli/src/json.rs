//! The option `--json FILE|-`, the same for every command.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use oomph_job::files;

/// Whether JSON goes to stdout, so that nothing else may be printed there.
pub fn is_stdout(target: &Path) -> bool {
    target == Path::new("-")
}

/// Refuses a target that cannot be written, before a run that may take hours.
pub fn expect_place(target: Option<&Path>) -> anyhow::Result<()> {
    let Some(target) = target.filter(|target| !is_stdout(target)) else {
        return Ok(());
    };
    if target.is_dir() {
        bail!("cannot write {}: it is a directory", target.display());
    }
    let parent = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        bail!(
            "cannot write {}: there is no directory {}",
            target.display(),
            parent.display()
        );
    }
    let may = |place: &Path| rustix::fs::access(place, rustix::fs::Access::WRITE_OK);
    if let Err(error) = may(parent)
        && may(target).is_err()
    {
        bail!(
            "cannot write {}: {}",
            target.display(),
            std::io::Error::from(error)
        );
    }
    Ok(())
}

/// Writes `value` to a file, or to stdout where the target is `-`.
pub fn write(target: &Path, value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text =
        serde_json::to_string_pretty(value).context("cannot write the result as JSON")?;
    text.push('\n');
    let text = plain(text);
    if is_stdout(target) {
        crate::stdout_as_is(&text)
    } else {
        files::write(target, text.as_bytes())
    }
}

/// The same JSON without characters that would act on a terminal: outside of strings it has none.
pub fn plain(text: String) -> String {
    let acts = |character| character != '\n' && oomph_trace::visible::acts(character);
    if !text.contains(acts) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if acts(character) {
            let _ = write!(out, "\\u{:04x}", u32::from(character));
        } else {
            out.push(character);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn escapes_change_nothing_that_is_said() {
        let said = "träin\u{9b}31m\u{202e}\u{7f} \u{1b} 模型";
        let text = serde_json::to_string_pretty(&[said]).unwrap();
        let plain = super::plain(text);
        assert!(
            !plain.contains(['\u{9b}', '\u{202e}', '\u{1b}', '\u{7f}']),
            "{plain}"
        );
        assert_eq!(serde_json::from_str::<[String; 1]>(&plain).unwrap(), [said]);
    }
}
