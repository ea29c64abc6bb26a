//! The text of a document as an editor has it, and its positions.

use lsp_types::{Position, PositionEncodingKind, Range, TextDocumentContentChangeEvent};

/// How an editor counts the columns of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// Bytes.
    Utf8,
    /// UTF-16 units, which every client knows.
    Utf16,
}

impl Columns {
    /// Bytes, which are free, if the client knows them.
    pub fn chosen(offered: Option<&[PositionEncodingKind]>) -> Self {
        if offered.is_some_and(|kinds| kinds.contains(&PositionEncodingKind::UTF8)) {
            Self::Utf8
        } else {
            Self::Utf16
        }
    }

    /// Its name in the protocol.
    pub fn kind(self) -> PositionEncodingKind {
        match self {
            Self::Utf8 => PositionEncodingKind::UTF8,
            Self::Utf16 => PositionEncodingKind::UTF16,
        }
    }

    fn width(self, text: &str) -> usize {
        match self {
            Self::Utf8 => text.len(),
            Self::Utf16 => text.encode_utf16().count(),
        }
    }
}

/// A text and where its lines begin. Offsets are bytes; positions are the editor's, from 0.
#[derive(Clone, Debug)]
pub struct Text {
    whole: String,
    starts: Vec<usize>,
    columns: Columns,
    /// For each line, which one it was when the lines were last counted.
    origins: Vec<Option<usize>>,
}

impl Text {
    /// A text.
    pub fn new(text: String, columns: Columns) -> Self {
        let mut text = Self {
            starts: line_starts(&text),
            whole: text,
            columns,
            origins: Vec::new(),
        };
        text.count_lines();
        text
    }

    /// Takes the lines as they are for those that a run saw: where they go from now on is followed.
    pub fn count_lines(&mut self) {
        self.origins = (0..self.starts.len()).map(Some).collect();
    }

    /// The first and the last of the lines that these were when they were last counted, all from 1. `None` if
    /// they are all new.
    pub fn origins(&self, first: usize, last: usize) -> Option<(usize, usize)> {
        let lines = self
            .origins
            .get(first.checked_sub(1)?..last.min(self.origins.len()))?;
        let mut known = lines.iter().flatten();
        let first = *known.next()?;
        Some((first + 1, known.next_back().unwrap_or(&first) + 1))
    }

    /// All of it.
    pub fn as_str(&self) -> &str {
        &self.whole
    }

    /// A line without its line break, from 0; empty behind the last one.
    pub fn line(&self, line: u32) -> &str {
        let line = line as usize;
        let Some(&start) = self.starts.get(line) else {
            return "";
        };
        let end = self.starts.get(line + 1).copied();
        self.whole[start..end.unwrap_or(self.whole.len())].trim_end_matches(['\n', '\r'])
    }

    /// Where the line of a position ends, before its line break.
    pub fn line_end(&self, line: u32) -> usize {
        let start = self.starts.get(line as usize).copied();
        start.map_or(self.whole.len(), |start| start + self.line(line).len())
    }

    /// The offset of a position. One behind the end of its line, or of the text, is that end, as the
    /// protocol wants it.
    pub fn offset(&self, at: Position) -> usize {
        let Some(&start) = self.starts.get(at.line as usize) else {
            return self.whole.len();
        };
        let mut left = at.character as usize;
        for (offset, character) in self.line(at.line).char_indices() {
            let width = match self.columns {
                Columns::Utf8 => character.len_utf8(),
                Columns::Utf16 => character.len_utf16(),
            };
            if left < width {
                return start + offset;
            }
            left -= width;
        }
        self.line_end(at.line)
    }

    /// The position of an offset. One inside of a character is the character's.
    pub fn position(&self, offset: usize) -> Position {
        let mut offset = offset.min(self.whole.len());
        while !self.whole.is_char_boundary(offset) {
            offset -= 1;
        }
        let line = self.line_of(offset);
        let column = self.columns.width(&self.whole[self.starts[line]..offset]);
        Position::new(line as u32, column as u32)
    }

    /// The positions of a range of offsets.
    pub fn range(&self, span: std::ops::Range<usize>) -> Range {
        Range::new(self.position(span.start), self.position(span.end))
    }

    /// What was typed: a part of the text is replaced, or all of it.
    pub fn change(&mut self, change: &TextDocumentContentChangeEvent) {
        let whole = Range::new(Position::default(), self.position(self.whole.len()));
        let range = change.range.unwrap_or(whole);
        let start = self.offset(range.start);
        let end = self.offset(range.end).max(start);
        let (first, last) = (self.line_of(start), self.line_of(end));
        let is_blank = |part: &str| part.trim().is_empty();
        let begins_line = is_blank(&self.whole[self.starts[first]..start]);
        let ends_line = is_blank(&self.whole[end..self.line_end(last as u32).max(end)]);
        let lines_before = self.starts.len();

        self.whole.replace_range(start..end, &change.text);
        self.starts = line_starts(&self.whole);
        if change.range.is_none() {
            self.count_lines();
            return;
        }
        // What is left of a line stays that line.
        let lines = (self.starts.len() + last + 1).saturating_sub(lines_before + first);
        let mut origins = vec![None; lines.max(1)];
        if !ends_line && let Some(origin) = origins.last_mut() {
            *origin = self.origins[last];
        }
        if !begins_line || ends_line {
            origins[0] = self.origins[first];
        }
        self.origins.splice(first..=last, origins);
    }

    /// The line of an offset, from 0.
    fn line_of(&self, offset: usize) -> usize {
        self.starts.partition_point(|&start| start <= offset) - 1
    }
}

/// Lines end with `\n`, `\r\n` or `\r`.
fn line_starts(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let ends = bytes.iter().enumerate().filter(|&(at, byte)| {
        *byte == b'\n' || *byte == b'\r' && bytes.get(at + 1) != Some(&b'\n')
    });
    std::iter::once(0)
        .chain(ends.map(|(at, _)| at + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(from: (u32, u32), to: (u32, u32), text: &str) -> TextDocumentContentChangeEvent {
        TextDocumentContentChangeEvent {
            range: Some(Range::new(
                Position::new(from.0, from.1),
                Position::new(to.0, to.1),
            )),
            range_length: None,
            text: text.to_owned(),
        }
    }

    #[test]
    fn columns_are_those_of_the_editor() {
        let words = "a\r\n𝛼 = x\rß";
        for (columns, of_x, of_end) in [(Columns::Utf16, 5, 1), (Columns::Utf8, 7, 2)] {
            let text = Text::new(words.to_owned(), columns);
            let x = words.find('x').unwrap();
            assert_eq!(text.position(x), Position::new(1, of_x));
            assert_eq!(text.offset(Position::new(1, of_x)), x);
            assert_eq!(text.position(words.len()), Position::new(2, of_end));
            // Inside of a character, behind a line, behind the text.
            assert_eq!(text.offset(Position::new(1, 1)), 3);
            assert_eq!(text.offset(Position::new(0, 99)), 1);
            assert_eq!(text.offset(Position::new(9, 0)), words.len());
            assert_eq!(text.line(1), "𝛼 = x");
        }
    }

    #[test]
    fn lines_are_followed_where_they_go() {
        let mut text = Text::new("1\n2\n3\n4\n5".to_owned(), Columns::Utf8);
        text.change(&change((0, 0), (0, 0), "new\nnew\n"));
        text.change(&change((3, 1), (4, 0), ""));
        assert_eq!(text.as_str(), "new\nnew\n1\n23\n4\n5");
        let origin = |text: &Text, line| text.origins(line, line).map(|(first, _)| first);
        let origins: Vec<_> = (1..=7).map(|line| origin(&text, line)).collect();
        assert_eq!(
            origins,
            [None, None, Some(1), Some(2), Some(4), Some(5), None]
        );
        assert_eq!(text.origins(2, 5), Some((1, 4)));
        text.count_lines();
        assert_eq!(text.origins(5, 6), Some((5, 6)));
        assert_eq!(text.origins(0, 0), None);
    }

    #[test]
    fn a_change_replaces_a_part_or_all() {
        let mut text = Text::new("one\ntwo\nthree".to_owned(), Columns::Utf16);
        text.change(&change((0, 3), (2, 0), " "));
        assert_eq!(text.as_str(), "one three");
        text.change(&change((0, 4), (0, 4), "and\n"));
        assert_eq!(text.position(8), Position::new(1, 0));
        text.change(&change((7, 0), (3, 9), "!"));
        assert_eq!(text.as_str(), "one and\nthree!");
        text.change(&TextDocumentContentChangeEvent {
            range: None,
            range_length: None,
            text: String::new(),
        });
        assert_eq!(text.position(5), Position::new(0, 0));
    }
}
