//! Small pieces of terminal output that every command shares: bars, columns, colour.
//!
//! Everything returns strings with ANSI styles; `anstream` strips them if the output
//! is not a terminal or `NO_COLOR` is set.

use std::fmt;

use anstyle::{AnsiColor, Style};
use oomph_bytes::format_bytes;

/// The narrowest and widest layouts: narrower lines wrap anyway, wider ones are hard to read.
const WIDTHS: std::ops::RangeInclusive<usize> = 40..=200;

/// The widest sentences: longer lines are hard to follow.
const MOST_TEXT: usize = 110;

/// Bad news: an error, out of memory.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// Good news: it fits.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
/// Something to keep in mind: an assumption, a problem of the file.
pub const WARN: Style = AnsiColor::Yellow.on_default();
/// Names and commands.
pub const ACCENT: Style = AnsiColor::Cyan.on_default();
/// Less important text.
pub const DIM: Style = Style::new().dimmed();
/// Important text.
pub const BOLD: Style = Style::new().bold();

/// `text` in a style.
pub fn paint(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// A change of memory with its sign: `+1.2 GiB`, `−3.4 MiB`, `±0 B`.
pub fn signed_bytes(change: i128) -> String {
    let amount = format_bytes(u64::try_from(change.unsigned_abs()).unwrap_or(u64::MAX));
    match change.signum() {
        1 => format!("+{amount}"),
        -1 => format!("−{amount}"),
        _ => format!("±{amount}"),
    }
}

/// A horizontal bar of `width` columns for `value` of `max`, in eighths of a column. A value above
/// zero always shows.
pub fn bar(value: u64, max: u64, width: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if value == 0 || max == 0 || width == 0 {
        return String::new();
    }
    let eighths = (value.min(max) as f64 / max as f64 * width as f64 * 8.0).round() as usize;
    let eighths = eighths.max(1);
    let mut bar = "█".repeat(eighths / 8);
    bar.push_str(PARTS[eighths % 8]);
    bar
}

/// A curve of `width` columns at most: each column is the highest of its share of `values`. Zero is
/// empty space, whatever is above zero shows.
pub fn sparkline(values: &[u64], width: usize) -> String {
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let columns = width.min(values.len());
    let most = values.iter().copied().max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    (0..columns)
        .map(|column| {
            let from = column * values.len() / columns;
            let to = (column + 1) * values.len() / columns;
            let high = values
                .get(from..to)
                .and_then(|part| part.iter().copied().max())
                .unwrap_or(0);
            let level = (high as f64 / most as f64 * 8.0).round() as usize;
            LEVELS[level.clamp(usize::from(high > 0), 8)]
        })
        .collect()
}

/// `text` for terminals without Unicode: every character that oomph draws with becomes an
/// ASCII character. Names of files and modules do not change.
pub fn ascii(text: &str) -> String {
    text.chars()
        .map(|character| match character {
            '█' | '▉' | '▊' | '▋' | '▇' => '#',
            '▌' | '▍' | '▆' => '=',
            '▃' => ':',
            '▂' | '▁' | '·' => '.',
            '✗' | '×' => 'x',
            '✓' => '+',
            '→' => '>',
            '←' | '◄' => '<',
            '▎' | '▏' | '▅' | '▄' | '−' | '–' => '-',
            '…' | '±' => '~',
            other => other,
        })
        .collect()
}

/// `text` for a terminal: its lines and oomph's own styles; everything else that would act there is shown
/// as an escape. All output for people goes through this, because names in files may come from strangers.
pub fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(oomph_trace::visible::acts) {
        let (plain, found) = rest.split_at(at);
        shown.push_str(plain);
        let length = style_length(found);
        if found.starts_with('\n') || length > 0 {
            shown.push_str(&found[..length.max(1)]);
            rest = &found[length.max(1)..];
        } else {
            let mut characters = found.chars();
            characters
                .by_ref()
                .take(1)
                .for_each(|acting| oomph_trace::visible::push(&mut shown, acting));
            rest = characters.as_str();
        }
    }
    shown.push_str(rest);
    shown
}

/// The bytes of the style that `text` begins with, 0 without one: bold, dim, and colours of letters, as
/// oomph and the linter's excerpts have them.
fn style_length(text: &str) -> usize {
    let Some((codes, _)) = text
        .strip_prefix("\x1b[")
        .and_then(|rest| rest.split_once('m'))
    else {
        return 0;
    };
    let codes_are_own = match codes.strip_prefix("38;5;") {
        Some(color) => matches!(color.parse(), Ok(9..=14_u8)),
        None => matches!(codes.parse(), Ok(0..=2 | 31..=36 | 91..=96_u8)),
    };
    // Numbers may be parsed with a sign.
    if codes_are_own && !codes.contains('+') {
        codes.len() + 3
    } else {
        0
    }
}

/// Whether the terminal shows Unicode, judged by the locale.
pub fn knows_unicode() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty());
    locale.is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// How many columns a string takes, styles not counted. Every character counts one column, which
/// holds for everything that oomph prints itself.
pub fn columns(text: &str) -> usize {
    let mut columns = 0;
    let mut in_escape = false;
    for character in text.chars() {
        match (in_escape, character) {
            (false, '\u{1b}') => in_escape = true,
            (false, _) => columns += 1,
            (true, character) => in_escape = !character.is_ascii_alphabetic(),
        }
    }
    columns
}

/// `text` filled with spaces to `width` columns, styles not counted.
pub fn pad(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(columns(text));
    format!("{text}{}", " ".repeat(missing))
}

/// `  title   text`, wrapped under itself; titles of `most` columns stand below each other.
pub fn titled(title: &str, most: usize, text: &str, width: usize) -> String {
    let indent = 2 + most.max(columns(title)) + 1;
    format!(
        "  {} {}",
        paint(DIM, pad(title, most)),
        wrap(text, width.saturating_sub(indent), indent)
    )
}

/// `text` with spaces before it, to `width` columns.
pub fn pad_left(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(columns(text));
    format!("{}{text}", " ".repeat(missing))
}

/// Plain text cut to `width` columns, with an ellipsis in the middle: both ends of a path or a
/// module name carry its meaning.
pub fn shorten(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    if width <= 1 {
        return "…".chars().take(width).collect();
    }
    let tail = (width - 1) * 2 / 3;
    let head = width - 1 - tail;
    let mut short: String = text.chars().take(head).collect();
    short.push('…');
    short.extend(text.chars().skip(count - tail));
    short
}

/// A heading of parts, dots between them, broken between parts where they do not fit into `width`. A part
/// with a style must fit.
pub fn heading(text: &str, width: usize) -> String {
    const DOT: &str = " · ";
    let mut out = String::new();
    let mut column = 0;
    for part in text.split(DOT) {
        let length = columns(part);
        if column > 0 && column + columns(DOT) + length > width {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push_str(DOT);
            column += columns(DOT);
        }
        if length > width {
            out.push_str(&shorten(part, width));
        } else {
            out.push_str(part);
        }
        column += length;
    }
    out
}

/// Plain text wrapped at spaces to `width` columns, [`MOST_TEXT`] at most; each line after the first
/// begins with `indent` spaces, which do not count. Words that are too long stay whole: they are
/// paths and commands to copy.
pub fn wrap(text: &str, width: usize, indent: usize) -> String {
    let width = width.min(MOST_TEXT);
    let mut out = String::new();
    let mut column = 0;
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        // An amount stays together with its unit.
        let mut word = word.to_owned();
        while words.peek().is_some_and(|next| is_unit(next)) {
            word.push(' ');
            word.push_str(words.next().unwrap_or_default());
        }
        let length = columns(&word);
        if column > 0 && column + 1 + length > width {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(&word);
        column += length;
    }
    out
}

fn is_unit(word: &str) -> bool {
    let word = word.trim_end_matches([',', '.', ';', ':', ')']);
    matches!(word, "B" | "KiB" | "MiB" | "GiB" | "TiB" | "%")
}

/// The width to lay out for: the terminal's, within reason; `COLUMNS` wins, 100 where there is no
/// terminal.
pub fn width() -> usize {
    const WITHOUT_TERMINAL: usize = 100;
    let columns = asked_width()
        .or_else(|| terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)))
        .unwrap_or(WITHOUT_TERMINAL);
    columns.clamp(*WIDTHS.start(), *WIDTHS.end())
}

/// What `COLUMNS` asks for.
pub fn asked_width() -> Option<usize> {
    std::env::var("COLUMNS").ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_a_sign() {
        assert_eq!(signed_bytes(-(1 << 20)), "−1.0 MiB");
        assert_eq!(signed_bytes(0), "±0 B");
    }

    #[test]
    fn headings_are_broken_between_their_parts() {
        let text = "virtual GPU · 11.6 GiB · 3 runs";
        assert_eq!(heading(text, 40), text);
        assert_eq!(heading(text, 22), "virtual GPU · 11.6 GiB\n3 runs");
        assert_eq!(heading(text, 5), "vi…PU\n11…iB\n3 …ns");
    }

    #[test]
    fn bars_show_whatever_is_there() {
        assert_eq!(bar(1, 1_000_000, 20), "▏");
        assert_eq!(bar(5, 10, 4), "██");
        assert_eq!(bar(20, 10, 2), "██");
        assert_eq!(bar(0, 10, 4), "");
    }

    #[test]
    fn curves_show_whatever_is_there() {
        assert_eq!(sparkline(&[0, 1, 500, 1000], 4), " ▁▄█");
        // The highest of each column's share.
        assert_eq!(sparkline(&[1000, 0, 0, 500], 2), "█▄");
        assert_eq!(sparkline(&[1, 2], 80), "▄█");
        assert_eq!(sparkline(&[0, 0], 80), "");
        assert_eq!(sparkline(&[], 80), "");
    }

    #[test]
    fn ascii_keeps_the_columns() {
        let text = "✗ 12.9 GiB → 11.6 GiB · −1.3 GiB ◄ ▁▂▃▄▅▆▇█ ███▌ träin.py…";
        let plain = ascii(text);
        assert_eq!(plain.chars().count(), text.chars().count());
        assert_eq!(
            plain,
            "x 12.9 GiB > 11.6 GiB . -1.3 GiB < ..:--=## ###= träin.py~"
        );
    }

    #[test]
    fn only_lines_and_styles_act_on_the_terminal() {
        let own = format!("{}\n  {}", paint(BAD, "out"), paint(DIM, "träin · 模型"));
        assert_eq!(harmless(&own), own);
        assert_eq!(
            harmless("\x1b]0;t\x07\x1b[2J\x1b[8mx\x1b[31;40m\u{9b}31m\r\u{202e}\x1b[+1m\x1b[1"),
            "\\x1b]0;t\\x07\\x1b[2J\\x1b[8mx\\x1b[31;40m\\x9b31m\\r\\u{202e}\\x1b[+1m\\x1b[1"
        );
    }

    #[test]
    fn layout_ignores_styles() {
        let red = paint(BAD, "out");
        assert_eq!(columns(&red), 3);
        assert_eq!(columns(&pad(&red, 8)), 8);
        assert_eq!(shorten("/home/someone/job/train.py", 12), "/hom…rain.py");
        assert_eq!(shorten("short", 12), "short");
        assert_eq!(wrap("one two three four", 7, 2), "one two\n  three\n  four");
        assert_eq!(wrap("one two three four", 10, 4), "one two\n    three four");
    }
}
