//! A unified diff of two texts in lines.

use std::fmt::Write as _;

/// Lines around a change.
const CONTEXT: usize = 3;

/// What becomes of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Keep,
    Remove,
    Add,
}

/// The diff from `old` to `new` of the file at `path`, and how many lines it adds and removes. Lines
/// end as in `source`, of which `old` are the lines.
pub(super) fn unified(path: &str, source: &str, old: &[&str], new: &[String]) -> (String, usize) {
    let script = changes(old, new);
    let count = script
        .iter()
        .filter(|(change, ..)| *change != Change::Keep)
        .count();
    if count == 0 {
        return (String::new(), 0);
    }
    let end_of_line = if source.contains("\r\n") { "\r" } else { "" };
    let path = path.trim_start_matches('/');
    let mut text = format!("--- a/{path}\n+++ b/{path}\n");
    let mut at = 0;
    while let Some(offset) = script
        .get(at..)
        .and_then(|rest| rest.iter().position(|(change, ..)| *change != Change::Keep))
    {
        let begin = (at + offset).saturating_sub(CONTEXT).max(at);
        // The hunk goes on while the next change is near.
        let mut end = at + offset + 1;
        let mut quiet = 0;
        for (index, (change, ..)) in script.iter().enumerate().skip(end) {
            if *change == Change::Keep {
                quiet += 1;
                if quiet > 2 * CONTEXT {
                    break;
                }
            } else {
                quiet = 0;
                end = index + 1;
            }
        }
        let end = (end + CONTEXT).min(script.len());
        let hunk = script.get(begin..end).unwrap_or_default();
        let lines = |wanted: Change| hunk.iter().filter(|(change, ..)| *change != wanted).count();
        let start = hunk.first().map_or((0, 0), |&(_, old, new)| (old, new));
        let _ = writeln!(
            text,
            "@@ -{},{} +{},{} @@",
            start.0 + 1,
            lines(Change::Add),
            start.1 + 1,
            lines(Change::Remove)
        );
        for &(change, in_old, in_new) in hunk {
            let (mark, line) = match change {
                Change::Keep => (' ', old.get(in_old).copied().unwrap_or_default()),
                Change::Remove => ('-', old.get(in_old).copied().unwrap_or_default()),
                Change::Add => ('+', new.get(in_new).map_or("", String::as_str)),
            };
            let is_last = match change {
                Change::Keep | Change::Remove => in_old + 1 == old.len(),
                Change::Add => in_new + 1 == new.len(),
            };
            if is_last && !source.ends_with('\n') {
                let _ = writeln!(text, "{mark}{line}\n\\ No newline at end of file");
            } else {
                let _ = writeln!(text, "{mark}{line}{end_of_line}");
            }
        }
        at = end;
    }
    (text, count)
}

/// Each line's fate, with its number in both texts, by the longest common subsequence of what lies
/// between the common beginning and end.
fn changes(old: &[&str], new: &[String]) -> Vec<(Change, usize, usize)> {
    let same = |a: usize, b: usize| old.get(a).copied() == new.get(b).map(String::as_str);
    let mut head = 0;
    while head < old.len().min(new.len()) && same(head, head) {
        head += 1;
    }
    let (mut old_end, mut new_end) = (old.len(), new.len());
    while old_end > head && new_end > head && same(old_end - 1, new_end - 1) {
        old_end -= 1;
        new_end -= 1;
    }
    let (rows, columns) = (old_end - head, new_end - head);
    let mut lengths = vec![vec![0_u32; columns + 1]; rows + 1];
    for row in (0..rows).rev() {
        for column in (0..columns).rev() {
            lengths[row][column] = if same(head + row, head + column) {
                lengths[row + 1][column + 1] + 1
            } else {
                lengths[row + 1][column].max(lengths[row][column + 1])
            };
        }
    }
    let mut found: Vec<_> = (0..head).map(|at| (Change::Keep, at, at)).collect();
    let (mut row, mut column) = (0, 0);
    while row < rows || column < columns {
        let (in_old, in_new) = (head + row, head + column);
        if row < rows && column < columns && same(in_old, in_new) {
            found.push((Change::Keep, in_old, in_new));
            row += 1;
            column += 1;
        } else if row < rows
            && (column == columns || lengths[row + 1][column] >= lengths[row][column + 1])
        {
            found.push((Change::Remove, in_old, in_new));
            row += 1;
        } else {
            found.push((Change::Add, in_old, in_new));
            column += 1;
        }
    }
    found.extend((old_end..old.len()).map(|at| (Change::Keep, at, at - old_end + new_end)));
    found
}
