//! The figures of memory that a text has, in its own words: what no reader takes over is not lost. Nothing is made of
//! them here; each is a part of a line with its number.

use std::collections::VecDeque;

use super::facts::sizes;
use super::{RECENT, cut};
use crate::units::Bytes;

/// Lines at the beginning of a text that are read whatever they say: most texts are no longer.
const FIRST: usize = 400;
/// Lines behind a message that are read.
const BEHIND: usize = 48;
/// Bytes of a line that are looked at.
const LONGEST: usize = 2 << 10;
/// Figures that are kept.
const MOST: usize = 1 << 10;
/// No machine has so much: `limit 9007199254740988kB` is no limit.
const ABSURD: u64 = 1 << 50;
/// Letters of a part of a line; a longer one is cut around its figure.
const SHOWN: usize = 96;

/// A part of a line that has a figure of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// The line of the log, counted from 1.
    pub line: usize,
    /// The part, as it stands there.
    pub text: String,
    /// The sizes in it; none where it counts tokens, blocks or pages.
    pub sizes: Vec<Bytes>,
}

/// Reads figures near messages, and at the beginning of a text.
#[derive(Debug)]
pub(super) struct Quotes {
    found: Vec<Figure>,
    /// Lines that are still read.
    left: usize,
    /// The last lines that were not read.
    recent: VecDeque<(usize, String)>,
}

impl Default for Quotes {
    fn default() -> Self {
        Self {
            found: Vec::new(),
            left: FIRST,
            recent: VecDeque::new(),
        }
    }
}

impl Quotes {
    pub(super) fn read(&mut self, text: &str, line: usize) {
        if self.left > 0 {
            self.left -= 1;
            self.add(text, line);
            return;
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((line, cut(text, LONGEST)));
    }

    /// A line is a message: those before and behind it may belong to it.
    pub(super) fn wake(&mut self) {
        self.left = self.left.max(BEHIND);
        for (line, text) in std::mem::take(&mut self.recent) {
            self.add(&text, line);
        }
    }

    pub(super) fn found(self) -> Vec<Figure> {
        self.found
    }

    fn add(&mut self, text: &str, line: usize) {
        let text = text
            .get(..text.floor_char_boundary(LONGEST))
            .unwrap_or_default();
        if self.found.len() < MOST && !is_no_text(text) {
            self.found.extend(figures(text, line));
        }
    }
}

/// Rows of tables, which their own reader knows, and what a download or a progress bar prints.
fn is_no_text(line: &str) -> bool {
    let line = line.trim_start();
    let row = line.starts_with(['|', '+']);
    let moves = [
        "B/s", "it/s", "s/it", "█", "▕", "━", "ownload", "pulling ", "0%|", "NvMapMem",
    ];
    row || !line.bytes().any(|byte| byte.is_ascii_digit())
        || moves.iter().any(|word| line.contains(word))
}

/// The parts of a line that have a figure.
fn figures(line: &str, number: usize) -> Vec<Figure> {
    let mut found = Vec::new();
    for part in parts(line) {
        // A budget may be negative: `Available KV cache memory: -2.14 GiB`.
        let lower = part.to_ascii_lowercase().replace(" -", "  ");
        let mut from = 0;
        let mut sizes: Vec<_> = sizes(&lower)
            .filter(|size| (1..ABSURD).contains(&size.bytes.0))
            .filter(|size| size.unit || is_named(&lower[..size.start]))
            .collect();
        if sizes.is_empty() && !counts(&lower) {
            continue;
        }
        // A long part that lists several is one for each.
        let each = part.chars().count() > SHOWN && sizes.len() > 1;
        let mut add = |text: &str, sizes: Vec<Bytes>| {
            let text = text
                .trim_start_matches(')')
                .trim_matches(|c: char| c.is_whitespace() || matches!(c, ',' | ';'));
            found.push(Figure {
                line: number,
                text: shortened(text),
                sizes,
            });
        };
        if each {
            for size in sizes {
                add(
                    part.get(from..size.end).unwrap_or_default(),
                    vec![size.bytes],
                );
                from = size.end;
            }
        } else {
            let bytes = sizes.drain(..).map(|size| size.bytes).collect();
            add(part, bytes);
        }
    }
    found
}

/// The sentences and clauses of a line.
fn parts(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut from = 0;
    let bytes = line.as_bytes();
    for at in 0..bytes.len() {
        let ends = matches!(bytes[at], b'.' | b';' | b',' | b']' | b'|')
            && matches!(bytes.get(at + 1), Some(b' ' | b'\t'));
        if ends || bytes[at] == b'\t' {
            // A part that is a figure alone is named by what stands before it.
            let next = line.get(at + 1..).unwrap_or_default();
            let next = next
                .split([';', ',', ']', '|', '\t'])
                .next()
                .unwrap_or_default();
            if bytes[at] == b'|' && is_bare(next) {
                continue;
            }
            found.extend(line.get(from..at));
            from = at + 1;
        }
    }
    found.extend(line.get(from..));
    found
}

/// Whether a part is a figure alone, whose name stands in the part before it: `pinning | 1.15 GiB`.
fn is_bare(part: &str) -> bool {
    /// Letters of a unit.
    const UNIT: usize = 5;
    let letters = part.chars().filter(|c| c.is_alphabetic()).count();
    letters <= UNIT && part.contains(|c: char| c.is_ascii_digit())
}

/// The end of a long part, which has the figure.
fn shortened(text: &str) -> String {
    let count = text.chars().count();
    if count <= SHOWN {
        return text.to_owned();
    }
    let lower = text.to_ascii_lowercase();
    let end = sizes(&lower).last().map_or(text.len(), |size| size.end);
    let head = text.get(..end).unwrap_or(text);
    let skip = head.chars().count().saturating_sub(SHOWN);
    let shown: String = text.chars().skip(skip).take(SHOWN).collect();
    let mark = |is: bool| if is { "…" } else { "" };
    format!("{}{shown}{}", mark(skip > 0), mark(skip + SHOWN < count))
}

/// Whether the words right before a number without a unit name memory: not a process, a time, an address.
fn is_named(before: &str) -> bool {
    const NEAR: usize = 40;
    const NAMES: [&str; 11] = [
        "byte",
        "size",
        "limit",
        "use",
        "mem",
        "alloc",
        "free",
        "total",
        "rss",
        "ram",
        "requested",
    ];
    let from = before.ceil_char_boundary(before.len().saturating_sub(NEAR));
    let near = before.get(from..).unwrap_or_default();
    let last = near.split_whitespace().next_back().unwrap_or_default();
    let other = ["pid", "process", "job", "uid", "step", "seed", "0x", "line"];
    let begins = before.is_empty() || before.ends_with([' ', ':', '=', '>', '(']);
    begins
        && NAMES.iter().any(|name| near.contains(name))
        && !other.iter().any(|name| last.contains(name))
}

/// Whether it counts what a server's pool consists of: `2048 tokens`, `Available tokens: 12`, `page_size=64`, `# blocks: 9`.
fn counts(lower: &str) -> bool {
    const UNITS: [&str; 3] = ["tokens", "blocks", "pages"];
    const NAMES: [&str; 6] = [
        "tokens: ",
        "blocks: ",
        "tokens=",
        "_size()=",
        "page-size ",
        "page_size=",
    ];
    let digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let named = NAMES
        .iter()
        .any(|name| lower.split_once(name).is_some_and(|(_, rest)| digit(rest)));
    let mut words = lower.split_whitespace().peekable();
    let mut counted = false;
    while let Some(word) = words.next() {
        counted |= digit(word)
            && words
                .peek()
                .is_some_and(|next| UNITS.iter().any(|unit| next.starts_with(unit)));
    }
    named || counted
}

#[cfg(test)]
mod tests {
    use super::figures;

    fn quoted(line: &str) -> Vec<(String, Vec<u64>)> {
        let bytes = |sizes: Vec<crate::Bytes>| sizes.into_iter().map(|size| size.0).collect();
        figures(line, 1)
            .into_iter()
            .map(|figure| (figure.text, bytes(figure.sizes)))
            .collect()
    }

    #[test]
    fn figures_keep_their_words() {
        let found = quoted("INFO [runner.py:20] Model loading took 12.5000 GiB and 3.1 seconds");
        assert_eq!(
            found,
            [(
                "Model loading took 12.5000 GiB and 3.1 seconds".to_owned(),
                vec![25 << 29]
            )]
        );
        let found = quoted("[77.1] memory: usage 1024kB, limit 2048kB, failcnt 3");
        assert_eq!(
            found,
            [
                ("memory: usage 1024kB".to_owned(), vec![1 << 20]),
                ("limit 2048kB".to_owned(), vec![2 << 20])
            ]
        );
        assert_eq!(
            quoted("InUse:       3846144"),
            [("InUse:       3846144".to_owned(), vec![3_846_144])]
        );
        let found = quoted("the rest for the cache is -1.50 GiB");
        assert_eq!(
            found,
            [(
                "the rest for the cache is -1.50 GiB".to_owned(),
                vec![3 << 29]
            )]
        );
        assert_eq!(quoted("Available tokens: 2048").len(), 1);
        assert_eq!(quoted("server --page-size 64 --tp 8").len(), 1);
    }

    #[test]
    fn other_numbers_are_no_figures() {
        for line in [
            "Epoch start time: 1577064742.170",
            "ranks on host:3063025:3066048 failed",
            "pid=1440763 was killed",
            "Using torch 2.11.0 at 10.0.0.1, port 8089",
        ] {
            assert_eq!(quoted(line), [], "{line}");
        }
    }
}
