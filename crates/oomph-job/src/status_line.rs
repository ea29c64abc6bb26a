//! The line at the bottom of a terminal that says what long work is doing.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Instant;

use anstream::{AutoStream, ColorChoice};
use oomph_report::terminal::{DIM, ascii, columns, knows_unicode, paint, shorten};
use rustix::termios::tcgetwinsize;

/// Used if the terminal does not report its width.
const USUAL_COLUMNS: usize = 80;
const ROUND: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
const PLAIN: [&str; 4] = ["|", "/", "-", "\\"];

/// Whether a status line can be drawn: standard error is a terminal on which the cursor moves, and
/// nothing keeps what it prints.
pub fn wanted() -> bool {
    io::stderr().is_terminal()
        && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
        && std::env::var_os("CI").is_none_or(|value| value.is_empty())
}

/// One line, redrawn in place. It is never wider than the terminal.
#[derive(Debug)]
pub struct StatusLine {
    began: Instant,
    /// Columns of what stands there.
    drawn: usize,
    unicode: bool,
    colored: bool,
}

impl Default for StatusLine {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            drawn: 0,
            unicode: knows_unicode(),
            colored: AutoStream::choice(&io::stderr()) != ColorChoice::Never,
        }
    }
}

impl StatusLine {
    /// Draws `doing`, and `more` about it.
    pub fn draw(&mut self, doing: &str, more: &str) {
        let room = terminal_columns().saturating_sub(1);
        let line = self.line(doing, more, room, self.began.elapsed().as_secs_f64());
        let before = self.erased(room);
        self.drawn = columns(&line);
        let line = if self.colored { paint(DIM, line) } else { line };
        write(&format!("{before}{line}"));
    }

    /// Removes it.
    pub fn wipe(&mut self) {
        if self.drawn > 0 {
            write(&self.erased(terminal_columns().saturating_sub(1)));
            self.drawn = 0;
        }
    }

    /// What erases the line: with NO_COLOR no escape sequence is printed, not even this one.
    fn erased(&self, room: usize) -> String {
        if self.colored {
            "\r\x1b[K".to_owned()
        } else {
            format!("\r{}\r", " ".repeat(self.drawn.min(room)))
        }
    }

    fn line(&self, doing: &str, more: &str, room: usize, seconds: f64) -> String {
        let frame = (seconds * 10.0) as usize;
        let sign = if self.unicode {
            ROUND[frame % ROUND.len()]
        } else {
            PLAIN[frame % PLAIN.len()]
        };
        let time = format!(" · {seconds:.0} s");
        let room_for_words = room.saturating_sub(columns(&time) + 2);
        let line = format!("{sign} {}{time}", both(doing, more, room_for_words));
        let line = shorten(&line, room);
        if self.unicode { line } else { ascii(&line) }
    }
}

/// Both texts in `room` columns: each gets at least half of it, if it needs that much.
fn both(doing: &str, more: &str, room: usize) -> String {
    const DOT: &str = " · ";
    if more.is_empty() {
        return shorten(doing, room);
    }
    let room = room.saturating_sub(columns(DOT));
    let first = room.saturating_sub(columns(more)).max(room / 2);
    let doing = shorten(doing, first);
    let more = shorten(more, room.saturating_sub(columns(&doing)));
    format!("{doing}{DOT}{more}")
}

fn terminal_columns() -> usize {
    tcgetwinsize(io::stderr())
        .map(|size| usize::from(size.ws_col))
        .ok()
        .filter(|&columns| columns > 0)
        .unwrap_or(USUAL_COLUMNS)
}

fn write(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(unicode: bool) -> StatusLine {
        StatusLine {
            unicode,
            colored: false,
            ..StatusLine::default()
        }
    }

    #[test]
    fn it_is_never_wider_than_the_terminal() {
        let doing = "verifying: fused optimizer, offload activations of GPT.blocks[0:12]";
        let more = "best 8.3 GiB, 0.99×: fused optimizer + micro-batches: 2 a batch";
        for room in 0..200 {
            for more in ["", more] {
                for unicode in [true, false] {
                    let drawn = line(unicode).line(doing, more, room, 12.3);
                    assert!(columns(&drawn) <= room, "{room}: {drawn}");
                    assert!(unicode || drawn.is_ascii(), "{drawn}");
                }
            }
        }
    }

    #[test]
    fn both_texts_have_a_part_of_a_narrow_line() {
        assert_eq!(
            line(true).line("verifying: micro-batches", "best 8.3 GiB: fused", 40, 3.0),
            "⠋ verif…-batches · best …iB: fused · 3 s"
        );
        assert_eq!(line(true).line("running", "", 40, 3.1), "⠙ running · 3 s");
    }
}
