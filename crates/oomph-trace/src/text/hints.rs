//! What a program itself advises beside its message: `Try to set subdivisions=64 in your cfg-file.`

use super::cut;
use super::told::{is_somebodys, sentences};

/// A piece of advice that a text gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hint {
    /// The line of the log, counted from 1.
    pub line: usize,
    /// The settings that it names, as the text writes them.
    pub settings: Vec<String>,
    /// Its words.
    pub text: String,
}

/// Pieces of advice that are kept, and bytes of a line that is read.
const MOST: usize = 16;
const LONGEST: usize = 2 << 10;
/// Bytes of one that are kept.
const SHOWN: usize = 160;

/// What such a sentence begins with.
const BEGINS: &[&str] = &[
    "try ",
    "try:",
    "run with ",
    "replace ",
    "rerun with ",
    "set ",
    "use ",
    "consider ",
    "please try ",
    "please set ",
    "please use ",
    "please consider ",
    "please reduce ",
    "please increase ",
    "reduce ",
    "increase ",
    "decrease ",
    "lower ",
];

/// Parts of names of settings that are about memory.
const ABOUT: &[&str] = &[
    "batch", "mem", "subdiv", "cache", "_len", "length", "seq", "token", "size", "worker", "util",
    "fraction", "limit", "swap", "heap", "offload", "tile", "chunk", "parallel",
];

/// Reads what a line advises.
pub(super) fn read(line: &str, number: usize, hints: &mut Vec<Hint>) {
    if line.len() > LONGEST || hints.len() >= MOST || !line.contains(['=', '_', '-']) {
        return;
    }
    for sentence in sentences(line).flat_map(|sentence| sentence.split(['(', ')'])) {
        let text = sentence.trim().trim_end_matches(['.', '!', ';']);
        let lower = text.to_ascii_lowercase();
        if text.ends_with('?')
            || is_somebodys(text)
            || !BEGINS.iter().any(|words| lower.starts_with(words))
        {
            continue;
        }
        let settings = text.split_whitespace().filter_map(setting);
        let mut settings: Vec<String> = settings.map(str::to_owned).collect();
        // One with its value is what to set, and not what it replaces.
        if settings.iter().any(|setting| setting.contains('=')) {
            settings.retain(|setting| setting.contains('='));
        }
        if !settings.is_empty() {
            hints.push(Hint {
                line: number,
                settings,
                text: cut(text, SHOWN),
            });
        }
    }
}

/// The setting that a word is, if it is one about memory: `subdivisions=64`, `--mem-fraction-static`, `max_model_len`.
fn setting(word: &str) -> Option<&str> {
    let word = word.trim_matches(|c: char| "`'\",:;.".contains(c));
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let lower = name.to_ascii_lowercase();
    (name.len() > 5
        && name.bytes().all(plain)
        && (!value.is_empty() || name.starts_with("--") || name.contains('_'))
        && ABOUT.iter().any(|part| lower.contains(part)))
    .then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_programs_advice_about_a_setting_of_memory_is_one() {
        let found = |line| {
            let mut hints = Vec::new();
            read(line, 1, &mut hints);
            hints
                .into_iter()
                .flat_map(|hint| hint.settings)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            found(" Try to set subdivisions=64 in your cfg-file. "),
            ["subdivisions=64"]
        );
        assert_eq!(
            found("no room (try `gpu_memory_utilization` or max_model_len)"),
            ["gpu_memory_utilization", "max_model_len"]
        );
        assert_eq!(
            found(
                "No room. Replace gpu_memory_utilization config with `--kv-cache-memory=4096` to fit."
            ),
            ["--kv-cache-memory=4096"]
        );
        for line in [
            "Set JAX_TRACEBACK_FILTERING=off to include these.",
            "(run with NCCL_DEBUG=INFO for details)",
            "I set batch_size=4 and it still fails",
            "batch_size=4 was used",
            "Should one use batch_size=4?",
        ] {
            assert_eq!(found(line), [] as [&str; 0], "{line}");
        }
    }
}
