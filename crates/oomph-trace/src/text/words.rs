//! Small steps through the words of a message.

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use crate::units::Bytes;

/// What words mean. All are looked for in one pass, so their number does not matter.
pub(super) struct Vocabulary<T> {
    automaton: Option<AhoCorasick>,
    meanings: Vec<T>,
}

impl<T: Copy> Vocabulary<T> {
    /// Of a table of meanings and their words.
    pub(super) fn new<'a>(
        table: impl IntoIterator<Item = (T, &'a [&'a str])>,
        any_case: bool,
    ) -> Self {
        let (meanings, words): (Vec<T>, Vec<&str>) = table
            .into_iter()
            .flat_map(|(meaning, words)| words.iter().map(move |word| (meaning, *word)))
            .unzip();
        // A table of all states takes two megabytes, and a log of gigabytes a third of the time. Building fails only
        // for gigabytes of patterns.
        let automaton = AhoCorasick::builder()
            .ascii_case_insensitive(any_case)
            .kind(Some(AhoCorasickKind::DFA))
            .build(words)
            .ok();
        Self {
            automaton,
            meanings,
        }
    }

    /// Each word of a text, also where words overlap: what it means, where it begins and ends.
    pub(super) fn all(&self, text: &str) -> impl Iterator<Item = (T, usize, usize)> {
        let found = self.automaton.iter();
        found
            .flat_map(move |automaton| automaton.find_overlapping_iter(text))
            .filter_map(|found| {
                let meaning = self.meanings.get(found.pattern().as_usize())?;
                Some((*meaning, found.start(), found.end()))
            })
    }

    /// The meaning that stands first in the table, of those whose words the text has.
    pub(super) fn first(&self, text: &str) -> Option<T> {
        self.first_where(text, |_| true)
    }

    /// The same of those that stand at places of a kind.
    pub(super) fn first_where(&self, text: &str, keep: impl Fn(usize) -> bool) -> Option<T> {
        let found = self.automaton.as_ref()?.find_overlapping_iter(text);
        let kept = found.filter(|found| keep(found.start()));
        let least = kept.map(|found| found.pattern().as_usize()).min()?;
        self.meanings.get(least).copied()
    }
}

/// What follows a marker.
pub(super) fn after<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    text.split_once(marker).map(|(_, rest)| rest)
}

/// What stands between two markers.
pub(super) fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    Some(after(text, from)?.split_once(to)?.0)
}

/// The whole number at the beginning.
pub(super) fn integer(text: &str) -> Option<u64> {
    let end = text
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}

/// The whole number at the beginning, where it is a device, a rank, or the like.
pub(super) fn index(text: &str) -> Option<u32> {
    integer(text).and_then(|number| u32::try_from(number).ok())
}

/// The size after a marker.
pub(super) fn size_after(text: &str, marker: &str) -> Option<Bytes> {
    after(text, marker).and_then(size)
}

/// The size at the beginning.
pub(super) fn size(text: &str) -> Option<Bytes> {
    oomph_bytes::printed_bytes(text).map(Bytes)
}

/// The word at the beginning, without the marks around it.
pub(super) fn word(text: &str) -> Option<String> {
    let word = text
        .split_whitespace()
        .next()?
        .trim_matches(['"', '\'', ',', ';', '(', ')', '`']);
    (!word.is_empty()).then(|| word.chars().take(200).collect())
}

/// The last part of a line that is separated by spaces.
pub(super) fn last_word(text: &str) -> &str {
    text.trim_end().rsplit(' ').next().unwrap_or_default()
}

/// The bytes of an array: its shape as numbers between commas, and the name of its type.
pub(super) fn array_bytes(shape: &str, element: &str) -> Option<Bytes> {
    let element: u64 = match element {
        "bool" | "int8" | "uint8" | "qint8" | "quint8" | "float8_e4m3fn" | "float8_e5m2" => 1,
        "half" | "float16" | "bfloat16" | "int16" | "uint16" => 2,
        "float" | "float32" | "int32" | "uint32" => 4,
        "double" | "float64" | "int64" | "uint64" | "complex64" => 8,
        "complex128" => 16,
        _ => return None,
    };
    let mut bytes = element;
    for side in shape
        .split(',')
        .map(str::trim)
        .filter(|side| !side.is_empty())
    {
        bytes = bytes.checked_mul(side.parse().ok()?)?;
    }
    Some(Bytes(bytes))
}

/// Numbers as SLURM lists them: `4`, `1-3`, `0,2-3`.
pub(super) fn listed(text: &str) -> Vec<u32> {
    /// More ranks than a job has.
    const MOST: usize = 4096;
    let mut numbers = Vec::new();
    for part in text.split(',').take(MOST) {
        let part = part.trim();
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Some(first), Some(last)) = (index(first), index(last)) {
            numbers.extend((first..=last).take(MOST.saturating_sub(numbers.len())));
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_shapes() {
        assert_eq!(listed("1-3"), [1, 2, 3]);
        assert_eq!(listed("0,2-3"), [0, 2, 3]);
        assert_eq!(listed("0-4294967295").len(), 4096);
        assert_eq!(listed("x"), [] as [u32; 0]);
        assert_eq!(array_bytes("2, 3,", "float32"), Some(Bytes(24)));
        assert_eq!(array_bytes("4294967296,4294967296", "float32"), None);
        assert_eq!(array_bytes("2,3", "string"), None);
        assert_eq!(index("4294967296"), None);
    }
}
