//! An explanation on one screen: the verdict first, then the evidence with the user's own lines,
//! then the fixes with what they save.

use std::fmt::Write as _;

use oomph_bytes::{format_bytes, format_gib};
use oomph_explain::{Basis, Cause, Diff, Explanation, Fix, MessageReport, NextStep};

use crate::run::suffices;
use crate::terminal::{
    ACCENT, BAD, BOLD, DIM, GOOD, WARN, bar, columns, pad, pad_left, paint, shorten, signed_bytes,
    sparkline, wrap,
};

/// Evidence, places and fixes that fit on one screen.
const SHOWN: usize = 5;
/// Lines of a difference.
const SHOWN_CHANGES: usize = 12;
/// Columns of an amount such as `1023.9 MiB`.
const AMOUNT: usize = 10;
/// Causes below this confidence are not listed.
const WORTH_NAMING: f64 = 0.3;

/// The explanation of a failure or of a peak.
pub fn explanation(found: &Explanation, width: usize) -> String {
    let mut out = String::new();
    let fault = found
        .cause
        .as_ref()
        .is_some_and(|cause| cause.id == "not_memory");
    let (mark, style) = if found.out_of_memory || fault {
        ("✗", BAD)
    } else if found.unclear {
        ("?", WARN)
    } else {
        ("✓", GOOD)
    };
    let _ = writeln!(
        out,
        "{} {}",
        paint(style, mark),
        paint(BOLD, wrap(&found.verdict, width.saturating_sub(2), 2))
    );
    summary(&mut out, found, width);
    if let Some(cause) = &found.cause {
        evidence(&mut out, cause, width);
    }
    figures(&mut out, found, width);
    holders(&mut out, found, width);
    fixes(&mut out, &found.fixes, width);
    next(&mut out, &found.next, width);
    footer(&mut out, found, width);
    out
}

/// Whether one is the other with words around it: a record may have the message, and the traceback that
/// ends with it.
fn is_quoted(one: &MessageReport, other: &MessageReport) -> bool {
    let (short, long) = if one.text.len() < other.text.len() {
        (one, other)
    } else {
        (other, one)
    };
    short.ranks == long.ranks
        && !short.text.is_empty()
        && short.text.len() < long.text.len()
        && long.text.contains(&short.text)
}

/// Whether a message is of another failure: another size, another memory, another rank or device. One without figures
/// of its own tells of the same failure, or of what came of it.
fn is_another(other: &MessageReport, message: &MessageReport) -> bool {
    if other.line == message.line || is_quoted(other, message) {
        return false;
    }
    let near = |one: u64, two: u64| one.abs_diff(two) <= one / 100;
    let figures = |message: &MessageReport| {
        [
            message.asked_bytes,
            message.total_bytes,
            message.free_bytes,
            message.in_use_bytes,
        ]
    };
    let same = |(one, two): (Option<u64>, Option<u64>)| match (one, two) {
        (Some(one), Some(two)) => near(one, two),
        _ => true,
    };
    let contradicts = !figures(other).into_iter().zip(figures(message)).all(same);
    let elsewhere = other.memory != message.memory
        || (other.device.is_some() && message.device.is_some() && other.device != message.device)
        || (!other.ranks.is_empty() && !message.ranks.is_empty() && other.ranks != message.ranks);
    let says = figures(other).iter().any(Option::is_some);
    contradicts || (elsewhere && (says || other.memory == message.memory))
}

/// Warnings after which the program went on, in one line.
fn warnings(found: &Explanation, message: &MessageReport) -> Option<String> {
    let others: Vec<&MessageReport> = found
        .messages
        .iter()
        .filter(|other| other.handled && other.line != message.line)
        .filter(|other| message.asked_bytes.is_none() || is_another(other, message))
        .collect();
    let first = others.first()?;
    let mut sizes: Vec<u64> = others
        .iter()
        .filter_map(|other| other.asked_bytes)
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let asked = match (sizes.first(), sizes.last()) {
        (Some(least), Some(most)) if least < most => {
            format!(
                " ({} to {} asked for)",
                format_bytes(*least),
                format_bytes(*most)
            )
        }
        (Some(one), _) => format!(" ({} asked for)", format_bytes(*one)),
        _ => String::new(),
    };
    Some(match others.len() {
        1 => format!("line {}: a warning that is no failure{asked}", first.line),
        count => format!(
            "{count} warnings that are no failures, from line {} on{asked}",
            first.line
        ),
    })
}

/// Who wrote the message, about which memory, and where.
fn source(found: &Explanation) -> Option<String> {
    let message = found.message.as_ref()?;
    let mut parts = vec![match message.inside_name {
        Some(inside) => format!("{} in {inside}", message.program_name),
        None => message.program_name.to_owned(),
    }];
    parts.push(message.memory_name.to_owned());
    // `NPU memory` is of an NPU.
    let unit = message.memory_name.strip_suffix(" memory").unwrap_or("GPU");
    parts.extend(message.device.map(|device| format!("{unit} {device}")));
    if let [rank] = message.ranks.as_slice() {
        parts.push(format!("rank {rank}"));
    }
    let process = match (&message.process, message.pid) {
        (Some(name), Some(pid)) => Some(format!("{name} (process {pid})")),
        (Some(name), None) => Some(name.clone()),
        (None, pid) => pid.map(|pid| format!("process {pid}")),
    };
    if message.ranks.len() <= 1 {
        parts.extend(process);
    }
    parts.extend(message.host.as_ref().map(|host| format!("on {host}")));
    parts.extend(message.job.as_ref().map(|job| format!("step {job}")));
    parts.extend(message.allocator.clone());
    Some(parts.join(" · "))
}

fn next(out: &mut String, steps: &[NextStep], width: usize) {
    if steps.is_empty() {
        return;
    }
    let indent = 5;
    let room = width.saturating_sub(indent);
    let _ = writeln!(out, "\n  {}", paint(BOLD, "what to do next"));
    for (number, step) in steps.iter().take(SHOWN).enumerate() {
        let number = number + 1;
        match &step.command {
            Some(command) => {
                // A command stays in one piece, to be copied.
                let _ = writeln!(out, "  {number}  {}", paint(ACCENT, command));
                let what = wrap(&step.what, room, indent);
                let _ = writeln!(out, "{}{}", " ".repeat(indent), paint(DIM, what));
            }
            None => {
                let _ = writeln!(out, "  {number}  {}", wrap(&step.what, room, indent));
            }
        }
    }
}

fn summary(out: &mut String, found: &Explanation, width: usize) {
    let peak = &found.peak;
    if let Some(cause) = &found.cause {
        let _ = writeln!(
            out,
            "  {} {}",
            paint(ACCENT, cause.id),
            paint(
                DIM,
                format!("· confidence {:.0} %", cause.confidence * 100.0)
            )
        );
    }
    if let Some(source) = source(found) {
        let text = wrap(&source, width.saturating_sub(2), 2);
        let _ = writeln!(out, "  {}", paint(DIM, text));
    }
    if peak.needed_bytes > 0 {
        let mut parts = Vec::new();
        if peak.request_bytes > 0 {
            if peak.live_bytes > 0 {
                parts.push(format!("{} in use", format_bytes(peak.live_bytes)));
            }
            parts.push(format!("{} asked for", format_bytes(peak.request_bytes)));
        } else {
            parts.push(format!(
                "{} in use at the peak",
                format_bytes(peak.live_bytes)
            ));
        }
        if peak.reserved_bytes > 0 {
            parts.push(format!("{} reserved", format_bytes(peak.reserved_bytes)));
        }
        if let Some(room) = peak.room_at_least_bytes {
            parts.push(format!("room for {}", format_bytes(room)));
        } else if let Some(total) = peak.device_total_bytes {
            parts.push(format!("{} on the device", format_bytes(total)));
        }
        let _ = writeln!(
            out,
            "  {}",
            paint(DIM, wrap(&parts.join(" · "), width.saturating_sub(2), 2))
        );
    }
    if peak.categories.is_empty() {
        return;
    }
    out.push('\n');
    let name_width = 16;
    let bar_width = width.saturating_sub(name_width + AMOUNT + 6).min(40);
    let max = peak.categories.iter().map(|c| c.bytes).max().unwrap_or(0);
    if !found.timeline.is_empty() {
        let curve = sparkline(&found.timeline, bar_width);
        let most = found.timeline.iter().copied().max().unwrap_or(0);
        let _ = writeln!(
            out,
            "  {}{}  {}",
            pad("through time", name_width),
            pad_left(&format_bytes(most), AMOUNT),
            paint(DIM, curve.trim_end())
        );
    }
    for category in &peak.categories {
        let device = category.device.as_deref().unwrap_or_default();
        let blocks = category
            .blocks
            .map_or_else(String::new, |blocks| format!("  {blocks}"));
        let line = format!(
            "  {}{}  {}{blocks}",
            pad(
                format!("{device} {}", category.name).trim_start(),
                name_width
            ),
            pad_left(&format_bytes(category.bytes), AMOUNT),
            bar(category.bytes, max, bar_width)
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn evidence(out: &mut String, cause: &Cause, width: usize) {
    // Evidence without words about a place repeats the list of places below.
    let shown: Vec<_> = cause
        .evidence
        .iter()
        .filter(|item| !is_bare_place(&item.what))
        .take(SHOWN)
        .collect();
    if shown.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  {}", paint(BOLD, "why"));
    let amounts: Vec<u64> = shown.iter().filter_map(|item| item.bytes).collect();
    for item in shown {
        let amount = item
            .bytes
            .map_or_else(String::new, |bytes| beside(bytes, &amounts));
        let indent = 2 + AMOUNT + 2;
        let _ = writeln!(
            out,
            "  {}  {}",
            pad_left(&amount, AMOUNT),
            wrap(&item.what, width.saturating_sub(indent), indent)
        );
        if !item.stack.is_empty() {
            let place = shorten(&item.stack.join(" ← "), width.saturating_sub(indent));
            let _ = writeln!(out, "{}{}", " ".repeat(indent), paint(DIM, place));
        }
    }
}

/// An amount beside others: with two decimals, where one would hide the difference to another.
fn beside(bytes: u64, others: &[u64]) -> String {
    let hides = |&other: &u64| bytes != other && bytes.abs_diff(other) < (1 << 30) / 5;
    if bytes >= 1 << 30 && others.iter().any(hides) {
        format_gib(bytes)
    } else {
        format_bytes(bytes)
    }
}

/// What the text has of figures beside those above, in its own words.
fn figures(out: &mut String, found: &Explanation, width: usize) {
    let figures = found
        .message
        .as_ref()
        .map(|message| message.figures.as_slice());
    let Some(figures) = figures.filter(|figures| !figures.is_empty()) else {
        return;
    };
    let _ = writeln!(out, "\n  {}", paint(BOLD, "figures in the text"));
    for figure in figures {
        let indent = 2 + AMOUNT + 2;
        let more = if figure.more > 0 {
            format!(" (and {} more like it)", figure.more)
        } else {
            String::new()
        };
        let text = wrap(
            &format!("{}{more}", figure.text),
            width.saturating_sub(indent),
            indent,
        );
        let _ = writeln!(
            out,
            "  {}  {text}",
            pad_left(&format!("line {}", figure.line), AMOUNT)
        );
    }
}

fn is_bare_place(what: &str) -> bool {
    let mut words = what.split(' ');
    let number = words.next().is_some_and(|word| word.parse::<u64>().is_ok());
    number && matches!(words.next(), Some("block" | "blocks")) && words.next().is_none()
}

fn holders(out: &mut String, found: &Explanation, width: usize) {
    if found.holders.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n  {}",
        paint(
            BOLD,
            if found.out_of_memory {
                "held at the failure by"
            } else if found.peak.needed_bytes > 0 {
                "held at the peak by"
            } else {
                "held by"
            }
        )
    );
    let total = (found.holders.iter()).fold(0_u64, |sum, holder| sum.saturating_add(holder.bytes));
    for holder in found.holders.iter().take(SHOWN) {
        // Omit rows below one percent.
        if holder.bytes.saturating_mul(100) < total {
            break;
        }
        let (first, rest) = match holder.stack.split_first() {
            Some((first, rest)) => (first.as_str(), rest.join(" ← ")),
            None => ("(no stack recorded)", String::new()),
        };
        let what = match &holder.module {
            Some(module) => format!("{module}, {}", holder.category),
            None => holder.category.to_owned(),
        };
        let indent = 2 + AMOUNT + 2;
        let room = width.saturating_sub(indent);
        let tail = format!("{} × {what}", holder.blocks);
        let head = shorten(first, room);
        let gap = room.saturating_sub(columns(&head) + 2);
        let mut line = format!(
            "  {}  {head}",
            pad_left(&format_bytes(holder.bytes), AMOUNT)
        );
        let inner = if rest.is_empty() {
            tail.clone()
        } else {
            format!("← {rest} · {tail}")
        };
        if columns(&inner) <= gap {
            let _ = write!(line, "  {}", paint(DIM, inner));
            let _ = writeln!(out, "{line}");
        } else {
            let _ = writeln!(
                out,
                "{line}\n{}{}",
                " ".repeat(indent),
                paint(DIM, shorten(&inner, room))
            );
        }
    }
}

fn fixes(out: &mut String, fixes: &[Fix], width: usize) {
    if fixes.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n  {}", paint(BOLD, "what helps"));
    for (number, fix) in fixes.iter().take(SHOWN).enumerate() {
        let sign = match fix.basis {
            Basis::Estimated => "~",
            Basis::Counted | Basis::Replayed => "",
        };
        let saves = format!("{sign}−{}", format_bytes(fix.saves_bytes));
        let indent = 5 + AMOUNT + 3;
        let text = format!("{}{} · {}", fix.what, suffices(fix), fix.same_result);
        let _ = writeln!(
            out,
            "  {}  {}  {}",
            number + 1,
            paint(GOOD, pad_left(&saves, AMOUNT + 1)),
            wrap(&text, width.saturating_sub(indent), indent),
        );
        if let Some(apply) = &fix.apply {
            let _ = writeln!(out, "{}{}", " ".repeat(indent), paint(ACCENT, apply));
        }
    }
}

fn footer(out: &mut String, found: &Explanation, width: usize) {
    let mut notes: Vec<(&str, String)> = Vec::new();
    let others: Vec<String> = found
        .causes
        .iter()
        .skip(1)
        .filter(|cause| cause.confidence >= WORTH_NAMING)
        .map(|cause| format!("{} ({:.0} %)", cause.id, cause.confidence * 100.0))
        .collect();
    if found.out_of_memory && !others.is_empty() {
        notes.push(("also possible:", others.join(", ")));
    }
    if let Some(message) = &found.message {
        for correction in &message.corrections {
            notes.push(("the message:", correction.clone()));
        }
        // With a history, what the text lacks does not matter.
        if !found.next.is_empty() && !message.unsaid.is_empty() {
            notes.push(("it does not say:", message.unsaid.join("; ")));
        }
        for other in found
            .messages
            .iter()
            .filter(|other| !other.handled && is_another(other, message))
            .take(SHOWN)
        {
            let mut text = format!("line {}: {}", other.line, other.program_name);
            for rank in other.ranks.iter().take(1) {
                let _ = write!(text, " on rank {rank}");
            }
            let _ = write!(text, ", {}", other.memory_name);
            if let Some(asked) = other.asked_bytes {
                let _ = write!(text, ", {} asked for", format_bytes(asked));
            }
            if let Some(free) = other.free_bytes {
                let _ = write!(text, ", {} free", format_bytes(free));
            }
            notes.push(("also in the log:", text));
        }
        notes.extend(
            warnings(found, message)
                .into_iter()
                .map(|text| ("also in the log:", text)),
        );
    }
    if found.without_limit {
        let text = if found.lower_bound {
            found.at_least()
        } else {
            "causes and fixes come from the run without a limit"
        };
        notes.push(("note:", text.to_owned()));
    }
    for assumption in &found.assumptions {
        notes.push(("assumed:", assumption.clone()));
    }
    for problem in &found.problems {
        notes.push(("note:", problem.message.clone()));
    }
    if notes.is_empty() {
        return;
    }
    out.push('\n');
    for (name, text) in notes {
        let first = format!("{name} {text}");
        let wrapped = wrap(&first, width.saturating_sub(4), 4);
        let rest = wrapped.strip_prefix(name).unwrap_or(&wrapped);
        let _ = writeln!(out, "  {}{rest}", paint(WARN, name));
    }
}

/// What changed between two histories.
pub fn difference(found: &Diff, names: [&str; 2], width: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{}",
        paint(BOLD, wrap(&found.verdict, width.saturating_sub(2), 2))
    );
    let room = width.saturating_sub("  A  · B ".chars().count()) / 2;
    let _ = writeln!(
        out,
        "  {}",
        paint(
            DIM,
            format!(
                "A {} · B {}",
                shorten(names[0], room),
                shorten(names[1], room)
            )
        )
    );
    for note in &found.notes {
        let text = wrap(note, width.saturating_sub(8), 8);
        let _ = writeln!(out, "  {} {text}", paint(WARN, "note:"));
    }
    for (title, changes) in [
        ("by kind", &found.categories),
        ("by module", &found.modules),
        ("by line", &found.places),
    ] {
        if changes.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n  {}", paint(BOLD, title));
        for change in changes.iter().take(SHOWN_CHANGES) {
            let delta = signed_bytes(change.delta());
            let style = if change.delta() > 0 { BAD } else { GOOD };
            let amounts = format!(
                "{} → {}",
                format_bytes(change.bytes[0]),
                format_bytes(change.bytes[1])
            );
            let room = width.saturating_sub(2 + AMOUNT + 1 + 2 + 10 + 2);
            let name = shorten(&change.name, room);
            let head = format!(
                "  {}  {}  {name}",
                paint(style, pad_left(&delta, AMOUNT + 1)),
                pad(change.what, 10)
            );
            if columns(&head) + 2 + columns(&amounts) <= width {
                let _ = writeln!(out, "{head}  {}", paint(DIM, amounts));
            } else {
                let _ = writeln!(out, "{head}\n{}{}", " ".repeat(27), paint(DIM, amounts));
            }
        }
        if changes.len() > SHOWN_CHANGES {
            let _ = writeln!(
                out,
                "  {}",
                paint(DIM, format!("… and {} more", changes.len() - SHOWN_CHANGES))
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_that_look_alike_have_two_decimals() {
        let [asked, free] = [4_574_140_170, 4_563_402_752];
        assert_eq!(beside(asked, &[asked, free]), "4.26 GiB");
        assert_eq!(beside(free, &[asked, free]), "4.25 GiB");
        assert_eq!(beside(asked, &[asked, 1 << 30]), "4.3 GiB");
    }
}
