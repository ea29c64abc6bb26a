//! How a job ended, what it did last, and what to do next.

use std::fmt::Write as _;

use oomph_bytes::format_bytes;
use oomph_run::ending::Ending;
use serde::Serialize;

use crate::run::line;
use crate::terminal::{BOLD, paint, wrap};

/// How one process of a run ended.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Ended {
    /// The name of its directory; empty for the only one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// Whether it ended as it should.
    #[serde(skip)]
    pub well: bool,
    /// How, and what it did last.
    #[serde(flatten)]
    pub ending: Ending,
}

/// An account of a process, and one line for each other one.
pub fn ended(one: &Ended, others: &[Ended], columns: usize) -> String {
    const INDENT: usize = 2;
    let of = |one: &Ended| {
        if one.process.is_empty() {
            String::new()
        } else {
            format!("{}: ", one.process)
        }
    };
    let head = format!("{}{}", of(one), one.ending.how);
    let mut out = format!(
        "{}\n",
        paint(BOLD, wrap(&head, columns.saturating_sub(INDENT), INDENT))
    );
    out.push_str(&account(&one.ending, columns));
    for other in others.iter().filter(|other| other.process != one.process) {
        let text = format!("{}; {}", last(&other.ending), other.ending.how);
        out.push_str(&line(&other.process, &text, columns));
        out.push('\n');
    }
    out
}

/// Where it was, what it held and what grew, and what to do next.
pub(crate) fn account(ending: &Ending, columns: usize) -> String {
    let mut out = String::new();
    let mut say = |title: &str, text: &str| {
        let _ = writeln!(out, "{}", line(title, text, columns));
    };
    say("last", &last(ending));
    for (index, evidence) in ending.evidence.iter().enumerate() {
        say(if index == 0 { "because" } else { "" }, evidence);
    }
    let mut held: Vec<String> = ending
        .held
        .iter()
        .map(|gpu| {
            format!(
                "GPU {}: {} in tensors, {} reserved",
                gpu.index,
                format_bytes(gpu.allocated),
                format_bytes(gpu.reserved)
            )
        })
        .collect();
    if let Some(host) = ending.host.filter(|host| host.resident > 0) {
        held.push(format!("host memory: {}", format_bytes(host.resident)));
    }
    if !held.is_empty() {
        say("held", &held.join(" · "));
    }
    if let Some(grown) = &ending.grown {
        say(
            "grew",
            &format!(
                "{} in tensors after step {}, {} after step {} (reserved: {} and {})",
                format_bytes(grown.from_allocated),
                grown.from_step,
                format_bytes(grown.to_allocated),
                grown.to_step,
                format_bytes(grown.from_reserved),
                format_bytes(grown.to_reserved)
            ),
        );
    }
    if let Some(snapshot) = &ending.snapshot {
        say(
            "snapshot",
            &format!("held.pickle, after step {}", snapshot.step),
        );
    }
    for (index, next) in ending.next.iter().enumerate() {
        let text = if next.command.is_empty() {
            next.what.clone()
        } else {
            format!("{}: {}", next.what, next.command)
        };
        say(if index == 0 { "next" } else { "" }, &text);
    }
    out
}

/// What it did last, in a line.
fn last(ending: &Ending) -> String {
    /// A look this much older than the end is said to be so.
    const OLD: f64 = 0.05;
    let mut text = ending.at.clone();
    if let Some(module) = &ending.module {
        let _ = write!(text, ", at {module}");
    }
    match (&ending.doing, &ending.place) {
        (Some(doing), Some(place)) => _ = write!(text, "; {doing} ({place})"),
        (Some(doing), None) => _ = write!(text, "; {doing}"),
        (None, Some(place)) => _ = write!(text, " ({place})"),
        (None, None) => {}
    }
    if ending.seen_before > OLD && ending.place.is_some() {
        let _ = write!(text, ", seen {:.1} s before", ending.seen_before);
    }
    text
}
