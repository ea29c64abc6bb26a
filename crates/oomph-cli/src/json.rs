//! The option `--json FILE|-`, the same for every command.

use std::path::Path;

use anyhow::Context as _;

/// Whether JSON goes to stdout, so that nothing else may be printed there.
pub fn is_stdout(target: &Path) -> bool {
    target == Path::new("-")
}

/// Writes `value` to a file, or to stdout where the target is `-`.
pub fn write(target: &Path, value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text =
        serde_json::to_string_pretty(value).context("cannot write the result as JSON")?;
    text.push('\n');
    if is_stdout(target) {
        crate::stdout_as_is(&text)
    } else {
        std::fs::write(target, text)
            .with_context(|| format!("cannot write the result to {}", target.display()))
    }
}
