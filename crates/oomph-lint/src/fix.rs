//! Fixes: edits of the source, and how they are applied without ever breaking a file.

use ruff_text_size::{Ranged, TextRange, TextSize};
use serde::Serialize;

/// How far a fix can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Applicability {
    /// May change what the program computes, or needs a newer PyTorch.
    Unsafe,
    /// Keeps what the program computes.
    Safe,
}

/// Replaces a byte range of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    pub(crate) range: TextRange,
    pub(crate) content: String,
}

impl Edit {
    pub(crate) fn replace(node: impl Ranged, content: impl Into<String>) -> Self {
        Self {
            range: node.range(),
            content: content.into(),
        }
    }

    pub(crate) fn insert(at: TextSize, content: impl Into<String>) -> Self {
        Self {
            range: TextRange::empty(at),
            content: content.into(),
        }
    }

    /// The first byte that is replaced.
    pub fn start(&self) -> usize {
        self.range.start().to_usize()
    }

    /// One past the last byte that is replaced.
    pub fn end(&self) -> usize {
        self.range.end().to_usize()
    }

    /// The new text.
    pub fn content(&self) -> &str {
        &self.content
    }
}

/// A fix of one finding: edits that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fix {
    /// How far the fix can be trusted.
    pub applicability: Applicability,
    /// What the fix does, in a few words.
    pub message: &'static str,
    /// The edits, in source order, without overlaps.
    pub edits: Vec<Edit>,
}

impl Fix {
    pub(crate) fn new(
        applicability: Applicability,
        message: &'static str,
        mut edits: Vec<Edit>,
    ) -> Self {
        edits.sort_by_key(|edit| edit.range.start());
        Self {
            applicability,
            message,
            edits,
        }
    }

    pub(crate) fn unsafe_(message: &'static str, edit: Edit) -> Self {
        Self::new(Applicability::Unsafe, message, vec![edit])
    }
}

/// Applies as many of the fixes as do not overlap, first come first served. Returns the new text
/// and how many fixes went in.
pub(crate) fn apply<'f>(source: &str, fixes: impl Iterator<Item = &'f Fix>) -> (String, usize) {
    let mut chosen: Vec<&Edit> = Vec::new();
    let mut applied = 0;
    for fix in fixes {
        let free = fix.edits.iter().all(|edit| {
            chosen.iter().all(|other| {
                edit.range.end() < other.range.start() || other.range.end() < edit.range.start()
            })
        });
        if free && !fix.edits.is_empty() {
            chosen.extend(&fix.edits);
            applied += 1;
        }
    }
    chosen.sort_by_key(|edit| edit.range.start());
    let mut text = String::with_capacity(source.len());
    let mut at = 0;
    for edit in chosen {
        // Ranges come from the parser of this very text; a stale one leaves the text alone.
        let Some(before) = source.get(at..edit.start()) else {
            return (source.to_string(), 0);
        };
        text.push_str(before);
        text.push_str(&edit.content);
        at = edit.end();
    }
    match source.get(at..) {
        Some(rest) => text.push_str(rest),
        None => return (source.to_string(), 0),
    }
    (text, applied)
}
