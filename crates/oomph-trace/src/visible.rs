//! Foreign text made harmless for terminals.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character acts on a terminal instead of being shown: C0, DEL and C1, which begin escape
/// sequences, and the marks that turn the direction of writing, which make text read as another.
pub fn acts(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// `text` with everything that acts on a terminal as a visible escape: `\x1b`, `\n`, `\u{202e}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~');
    if text.bytes().all(is_plain) || !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    text.chars()
        .for_each(|character| push(&mut shown, character));
    Cow::Owned(shown)
}

/// Appends one character as [`visible`] shows it.
pub fn push(shown: &mut String, character: char) {
    let _ = match character {
        '\n' | '\r' | '\t' => write!(shown, "{}", character.escape_default()),
        '\0'..='\u{9f}' if acts(character) => write!(shown, "\\x{:02x}", u32::from(character)),
        _ if acts(character) => write!(shown, "{}", character.escape_unicode()),
        _ => {
            shown.push(character);
            Ok(())
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_shown() {
        assert_eq!(
            visible("a\x1b]0;x\x07\u{9b}31m\r\n\u{202e}b\0\u{7f}"),
            "a\\x1b]0;x\\x07\\x9b31m\\r\\n\\u{202e}b\\x00\\x7f"
        );
        for text in ["", "GPT.blocks.0", "träin.py", "模型/训练.py", "a\\x1b"] {
            assert!(matches!(visible(text), Cow::Borrowed(same) if same == text));
        }
    }
}
