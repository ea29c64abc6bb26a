//! The memory that each line of the user's own code holds, to show beside findings about that line.

use std::collections::HashMap;

use oomph_trace::StackId;

use crate::facts::Facts;
use oomph_trace::is_users_own;

/// Memory that calls through some lines made and that is alive at the failure or the peak.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldStack {
    /// Its bytes.
    pub bytes: u64,
    /// The lines of the user's own files, innermost first: the file as it was recorded, the line.
    pub lines: Vec<(String, u32)>,
}

/// What is alive, by the lines of the user's own files; the most first.
pub(crate) fn held_stacks(facts: &Facts) -> Vec<HeldStack> {
    let (stacks, strings) = (&facts.trace.stacks, &facts.trace.strings);
    let mut by_stack: HashMap<StackId, u64> = HashMap::new();
    for block in &facts.live {
        *by_stack.entry(block.stack).or_default() += block.bytes;
    }
    let mut by_lines: HashMap<Vec<(String, u32)>, u64> = HashMap::new();
    for (stack, bytes) in by_stack {
        let lines: Vec<(String, u32)> = stacks
            .frames(stack)
            .filter(|frame| frame.is_python(strings))
            .map(|frame| (strings.get(frame.file), frame.line))
            .filter(|(file, _)| is_users_own(file))
            .map(|(file, line)| (file.to_owned(), line))
            .collect();
        if !lines.is_empty() {
            *by_lines.entry(lines).or_default() += bytes;
        }
    }
    let mut held: Vec<HeldStack> = by_lines
        .into_iter()
        .map(|(lines, bytes)| HeldStack { bytes, lines })
        .collect();
    held.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.lines.cmp(&b.lines)));
    held
}
