//! Running code that recurses into syntax trees, on a stack that is large enough.

use ruff_python_ast::token::TokenKind;
use ruff_python_parser::{Mode, lexer};

use crate::problem::Problem;

/// Code that nests deeper than this is refused. CPython gives up at 200 nested brackets; long
/// chains of operators are legal, but the parser recurses into both.
pub const MAX_DEPTH: usize = 10_000;

/// Nesting that is safe on any thread's stack. Deeper code gets its own thread.
const SMALL_DEPTH: usize = 120;

/// Stack of that thread: `MAX_DEPTH` levels of the parser's deepest path, with room.
const DEEP_STACK_BYTES: usize = 512 << 20;

/// Runs `work`, which parses `code` or walks its tree, with enough stack for how deep the code
/// nests. A problem if it nests deeper than [`MAX_DEPTH`], or if `work` panics.
///
/// Trees of deeply nested code must not leave `work`: walking or dropping them needs the stack, too.
pub fn with_stack<T: Send>(
    code: &str,
    notebook: bool,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Problem> {
    let failed = || Problem::new(1, 1, "oomph failed on this file; please report it");
    if is_flat(code) {
        // The parser asserts what it believes of itself. A belief that one file disproves must not
        // end the run for all others.
        return std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(|_| failed());
    }
    let depth = token_depth(code, notebook);
    if depth > MAX_DEPTH {
        return Err(Problem::new(
            1,
            1,
            format!("expressions nest {depth} deep; at most {MAX_DEPTH} levels are read"),
        ));
    }
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(DEEP_STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| {
                Problem::new(1, 1, format!("no thread for a deeply nested file: {error}"))
            })?
            .join()
            .map_err(|_| failed())
    })
}

/// Whether code nests so little that any thread can parse it.
pub(crate) fn is_shallow(code: &str) -> bool {
    is_flat(code) || token_depth(code, false) <= SMALL_DEPTH
}

/// Whether the bytes alone say that code nests so little that any thread can parse it, and walk and drop its tree.
pub(crate) fn is_flat(code: &str) -> bool {
    depth_bound(code) <= SMALL_DEPTH
}

/// A bound on how deep the parser recurses, from the bytes alone: never too small, often too
/// large (it counts inside strings and comments).
fn depth_bound(code: &str) -> usize {
    let mut levels: Vec<usize> = vec![0];
    let mut sum = 0usize;
    let mut max = 0usize;
    let mut indent_start = true;
    let mut column = 0usize;
    let mut previous = b'\n';
    for &byte in code.as_bytes() {
        if indent_start {
            match byte {
                b' ' | b'\t' => {
                    column += 1;
                    previous = byte;
                    // Blocks nest by indentation, one level per column at most.
                    max = max.max(column / 2);
                    continue;
                }
                b'\n' => {
                    column = 0;
                    continue;
                }
                _ => indent_start = false,
            }
        }
        match byte {
            b'(' | b'[' | b'{' => levels.push(0),
            b')' | b']' | b'}' => {
                if levels.len() > 1 {
                    let inner = levels.pop().unwrap_or(0);
                    sum -= inner;
                }
                if let Some(level) = levels.last_mut() {
                    *level += 1;
                    sum += 1;
                }
            }
            b',' => {
                if let Some(level) = levels.last_mut() {
                    sum -= *level;
                    *level = 0;
                }
            }
            b'\n' => {
                indent_start = true;
                column = 0;
                if levels.len() == 1 && previous != b'\\' {
                    sum = 0;
                    levels[0] = 0;
                }
            }
            b'.' | b'+' | b'-' | b'*' | b'/' | b'%' | b'~' | b'&' | b'|' | b'^' | b'@' | b' '
            | b':' => {
                if let Some(level) = levels.last_mut() {
                    *level += 1;
                    sum += 1;
                }
            }
            _ => {}
        }
        previous = byte;
        max = max.max(sum + levels.len());
    }
    max
}

/// A bound on how deep the parser recurses, from the tokens. The lexer does not recurse.
fn token_depth(code: &str, notebook: bool) -> usize {
    let mode = if notebook {
        Mode::Ipython
    } else {
        Mode::Module
    };
    let mut lexer = lexer::lex(code, mode);
    let mut levels: Vec<usize> = vec![0];
    let mut sum = 0usize;
    let mut max = 0usize;
    let mut blocks = 0usize;
    loop {
        match lexer.next_token() {
            TokenKind::EndOfFile => break,
            TokenKind::Indent => blocks += 1,
            TokenKind::Dedent => blocks = blocks.saturating_sub(1),
            TokenKind::Newline => {
                levels = vec![0];
                sum = 0;
            }
            TokenKind::Lpar
            | TokenKind::Lsqb
            | TokenKind::Lbrace
            | TokenKind::FStringStart
            | TokenKind::TStringStart => {
                levels.push(0);
            }
            TokenKind::Rpar
            | TokenKind::Rsqb
            | TokenKind::Rbrace
            | TokenKind::FStringEnd
            | TokenKind::TStringEnd => {
                if levels.len() > 1 {
                    sum -= levels.pop().unwrap_or(0);
                }
                if let Some(level) = levels.last_mut() {
                    *level += 1;
                    sum += 1;
                }
            }
            TokenKind::Comma => {
                if let Some(level) = levels.last_mut() {
                    sum -= *level;
                    *level = 0;
                }
            }
            TokenKind::Name
            | TokenKind::Int
            | TokenKind::Float
            | TokenKind::Complex
            | TokenKind::String
            | TokenKind::Comment
            | TokenKind::NonLogicalNewline
            | TokenKind::FStringMiddle
            | TokenKind::TStringMiddle => {}
            _ => {
                if let Some(level) = levels.last_mut() {
                    *level += 1;
                    sum += 1;
                }
            }
        }
        max = max.max(sum + levels.len() + blocks);
    }
    max
}
