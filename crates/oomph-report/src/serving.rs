//! What starts of a serving engine showed, as text.

use std::fmt::Write as _;

use oomph_bytes::format_bytes;
use oomph_run::serving::{Alternative, Asked, Needs, Outcome, Search, Start};

use crate::run::thousands;
use crate::table::{Align, Table};
use crate::terminal::{BAD, BOLD, DIM, GOOD, WARN, paint, wrap};

/// The text, `width` columns wide; `place` has the output of the starts.
pub fn serving_report(search: &Search, place: &str, width: usize) -> String {
    /// Where texts begin.
    const INDENT: usize = 12;
    let asked = &search.asked;
    let mut text = format!(
        "\n{BOLD}{}{BOLD:#} · up to {} × {} of {} · {} of {} tokens\n\n",
        asked.model,
        asked.gpus,
        asked.gpu,
        format_bytes(asked.memory_bytes),
        requests(f64::from(asked.requests)),
        thousands(asked.max_model_len),
    );
    let starts = &search.starts;
    if !starts.is_empty() {
        let cells = |cell: &dyn Fn(&Start) -> String| starts.iter().map(cell).collect::<Vec<_>>();
        let bytes = |bytes: u64| {
            if bytes == 0 {
                "–".to_owned()
            } else {
                format_bytes(bytes)
            }
        };
        let table = Table::default()
            .column(
                "start",
                Align::Right,
                0,
                (1..=starts.len()).map(|at| at.to_string()),
            )
            .column(
                "GPUs",
                Align::Right,
                0,
                cells(&|start| start.flags.gpus.to_string()),
            )
            .column(
                "flags",
                Align::Left,
                0,
                cells(&|start| flags(search, start)),
            )
            .column(
                "weights",
                Align::Right,
                2,
                cells(&|start| bytes(start.engine.weights_bytes)),
            )
            .column(
                "KV cache",
                Align::Right,
                1,
                cells(&|start| bytes(start.engine.kv_cache_bytes)),
            )
            .column("tokens", Align::Right, 2, cells(&|start| tokens(start)))
            .column("requests", Align::Right, 0, cells(&|start| held(start)))
            .column(
                "",
                Align::Left,
                0,
                starts.iter().enumerate().map(|(at, start)| {
                    let is_chosen = search.chosen == Some(at);
                    verdict(start, is_chosen, start.holds(asked))
                }),
            );
        text.push_str(&table.render(width));
        text.push('\n');
    }
    let mut said = |style: anstyle::Style, title: &str, words: &str| {
        let title = paint(style, format_args!("{title:<9}"));
        let _ = writeln!(
            text,
            "  {title} {}",
            wrap(words, width.saturating_sub(INDENT), INDENT)
        );
    };
    let chosen = search.chosen.and_then(|at| starts.get(at));
    match chosen {
        Some(start) if search.enough => said(
            GOOD,
            "✓ fits",
            &format!(
                "{} on {} × {}, by the engine's own account: {} tokens in its KV cache",
                requests(start.engine.requests),
                start.flags.gpus,
                asked.gpu,
                thousands(start.engine.kv_cache_tokens)
            ),
        ),
        Some(start) => said(
            BAD,
            "✗",
            &format!(
                "what was asked for does not fit; the most that does: {} of {} tokens",
                requests(start.engine.requests),
                thousands(start.flags.max_model_len)
            ),
        ),
        None if starts
            .iter()
            .any(|start| start.outcome == Outcome::OutOfMemory) =>
        {
            said(
                BAD,
                "✗",
                "what was asked for does not fit with any flags that were tried",
            );
        }
        None => said(BAD, "✗", "no start came up"),
    }
    if let Some(needs) = &search.needs {
        said(BOLD, "needs", &needed(asked, needs));
    }
    if let Some(assumed) = starts.iter().find_map(|start| start.engine.not_compared()) {
        said(BOLD, "assumes", &assumed);
    }
    if let Some(words) = would_fit(search) {
        said(BOLD, "would fit", &words);
    }
    for (at, start) in (1..).zip(starts) {
        if let (Outcome::Failed, Some(why)) = (start.outcome, &start.why) {
            said(WARN, "failed", &format!("start {at}: {why}"));
        }
    }
    if let Some(why) = &search.stopped {
        said(
            WARN,
            "stopped",
            &format!("{why}: other flags were not tried"),
        );
    }
    if let Some(command) = &search.command {
        said(BOLD, "run it", command);
    }
    let all = || starts.iter().chain(&search.measured);
    // The sum of no numbers is -0.
    let seconds = all().fold(0.0, |sum, start| sum + start.seconds);
    let more = if search.measured.is_some() {
        ", the last with more memory, to see what is needed"
    } else {
        ""
    };
    said(
        DIM,
        "starts",
        &format!(
            "{} in {seconds:.0} s, without weights{more}; their output is in {place}",
            all().count()
        ),
    );
    text
}

/// What is needed on each GPU, of which parts, and how much of it is missing.
fn needed(asked: &Asked, needs: &Needs) -> String {
    let allowed = (asked.share() * asked.memory_bytes as f64) as u64;
    let missing = needs.total_bytes().saturating_sub(allowed);
    let gpus = if needs.gpus == 1 {
        String::new()
    } else {
        format!(" on each of {} GPUs", needs.gpus)
    };
    let short = if missing > 0 {
        format!(": {} are missing", format_bytes(missing))
    } else {
        String::new()
    };
    format!(
        "{}{gpus}: weights {}, KV cache of {} {}, profile run and all else {}; vLLM may use {} of this GPU{short}",
        format_bytes(needs.total_bytes()),
        format_bytes(needs.weights_bytes),
        requests(f64::from(asked.requests)),
        format_bytes(needs.kv_cache_bytes),
        format_bytes(needs.other_bytes),
        format_bytes(allowed),
    )
}

/// What would be enough; `None` if nothing is known to be.
fn would_fit(search: &Search) -> Option<String> {
    let one = |found: &Alternative| {
        let flags = if found.flags.is_empty() {
            String::new()
        } else {
            format!(" with -- {} (which changes results)", found.flags.join(" "))
        };
        format!(
            "{} × {}{flags}: {}",
            found.gpus,
            found.gpu,
            format_bytes(found.needed_bytes)
        )
    };
    let all: Vec<String> = search.would_fit.iter().map(one).collect();
    (!all.is_empty()).then(|| format!("{} on each; calculated, not started", all.join("; ")))
}

/// What a start adds to those before it: a flag that makes room, or another length.
fn flags(search: &Search, start: &Start) -> String {
    let flags = &start.flags;
    match flags.rungs.last() {
        _ if flags.max_model_len != search.asked.max_model_len => {
            format!("--max-model-len {}", flags.max_model_len)
        }
        Some(rung) => format!("+ {}", rung.words(&search.asked).join(" ")),
        None => "as it is".to_owned(),
    }
}

fn tokens(start: &Start) -> String {
    match start.engine.kv_cache_tokens {
        0 => "–".to_owned(),
        tokens => thousands(tokens),
    }
}

fn held(start: &Start) -> String {
    match start.requests() {
        0.0 => "–".to_owned(),
        requests => format!("{requests:.2}"),
    }
}

fn verdict(start: &Start, is_chosen: bool, holds: bool) -> String {
    match start.outcome {
        Outcome::Ready if is_chosen => paint(GOOD, "◄ chosen"),
        Outcome::Ready if holds => paint(GOOD, "✓"),
        Outcome::Ready => "too few".to_owned(),
        Outcome::OutOfMemory => paint(BAD, "✗ out of memory"),
        Outcome::Failed => paint(BAD, "✗ failed"),
    }
}

fn requests(count: f64) -> String {
    if (count - 1.0).abs() < f64::EPSILON {
        "1 request".to_owned()
    } else if count.fract() == 0.0 {
        format!("{count:.0} requests")
    } else {
        format!("{count:.2} requests")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_was_stopped_before_its_first_start_took_no_time() {
        let asked = oomph_run::serving::Asked {
            model: "model".to_owned(),
            gpu: "l40s".to_owned(),
            gpus: 1,
            memory_bytes: 48 << 30,
            max_model_len: 4096,
            requests: 1,
            keep_results: false,
            heads: 32,
            given: Vec::new(),
        };
        let search = Search {
            format: oomph_run::serving::FORMAT,
            asked,
            starts: Vec::new(),
            chosen: None,
            enough: false,
            command: None,
            measured: None,
            needs: None,
            would_fit: Vec::new(),
            stopped: Some("the time of --max-time was up".to_owned()),
        };
        let said = serving_report(&search, "oomph-report/vllm-1", 120);
        assert!(said.contains("0 in 0 s"), "{said}");
        assert!(said.contains("no start came up"), "{said}");
        assert!(!said.contains("assumes"), "{said}");
    }
}
