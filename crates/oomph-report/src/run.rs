//! What `oomph run` prints: one screen, the verdict first.

use std::fmt::Write as _;
use std::path::Path;

use oomph_bytes::format_bytes;
use oomph_explain::{Explanation, Fix};
use oomph_run::ranks::RankSummary;
use oomph_run::record::Framework;
use oomph_run::rhythm::Growth;
use oomph_run::summary::{Basis, INTERRUPTED, Share, Summary, Verdict};

use crate::ending::account;
use crate::finding::HeldFinding;
use crate::fit::advice;
use crate::terminal::{
    ACCENT, BAD, BOLD, DIM, GOOD, WARN, bar, heading, pad, pad_left, paint, shorten, sparkline,
    titled, wrap,
};

/// Categories of the summary in the order of the table, with their names.
const CATEGORIES: [(&str, &str); 11] = [
    ("activations", "activations"),
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("optimizer_state", "optimizer state"),
    ("inputs", "inputs"),
    ("workspace", "workspace"),
    ("other", "other"),
    ("cached", "cached, unused"),
    ("outside_allocator", "not PyTorch's"),
    ("cuda_context", "CUDA context"),
    ("other_processes", "other processes"),
];
/// Rows of a table without `-v`.
const FEW: usize = 4;
/// From so many modules on, those that end in a number are a series, not siblings.
const LEAST_SERIES: usize = 3;
/// Findings of the linter without `-v`.
const FINDINGS: usize = 2;
/// Rows of a table with `-v`.
const MANY: usize = 24;
const INDENT: usize = 2;

/// The report of a run, `columns` wide. `place` is its page, or its directory if there is none; `next` is
/// the command to go on with.
pub fn run_report(
    summary: &Summary,
    explanation: Option<&Explanation>,
    findings: &[HeldFinding],
    place: &Path,
    columns: usize,
    verbose: bool,
    next: Option<&str>,
) -> String {
    let mut out = String::new();
    let kind = if summary.gpu.r#virtual {
        "virtual "
    } else {
        ""
    };
    let version = |name| {
        let found = summary.versions.get(name);
        found.map_or("?", |version| version.split('+').next().unwrap_or(version))
    };
    let ran = match &summary.framework {
        Some(other) => format!("{} {} ·", other.name, version(other.key())),
        None => format!(
            "torch {} · {} in",
            version("torch"),
            counted(summary, summary.step_count)
        ),
    };
    let head = format!(
        "{kind}{} · {} · {ran} {:.1} s",
        summary.gpu.name,
        format_bytes(summary.gpu.memory_bytes),
        summary.seconds,
    );
    let _ = writeln!(out, "\n{}\n", paint(DIM, heading(&head, columns)));
    verdict(&mut out, summary, columns);
    if summary.peak.used_bytes > 0 && summary.verdict != Verdict::Refused {
        categories(&mut out, summary, columns);
        let limit = if verbose { MANY } else { FEW };
        shares(
            &mut out,
            "modules",
            &by_prefix(&summary.modules, verbose),
            limit,
            columns,
        );
        if verbose {
            shares(&mut out, "operators", &summary.operators, limit, columns);
            shares(&mut out, "peak by phase", &summary.phases, limit, columns);
            steps(&mut out, summary);
        }
    }
    engine(&mut out, summary, columns);
    time(&mut out, summary, columns);
    if let Some(ending) = &summary.ending {
        out.push_str(&account(ending, columns));
        out.push('\n');
    }
    processes(&mut out, summary, verbose, columns);
    ranks(&mut out, summary, verbose, columns);
    if let Some(explanation) = explanation {
        cause(&mut out, explanation, columns);
    }
    if let Some(other) = &summary.framework
        && summary.verdict == Verdict::OutOfMemory
    {
        for (index, text) in advice(other).iter().enumerate() {
            let title = if index == 0 { "fixes" } else { "" };
            let _ = writeln!(out, "{}", line(title, text, columns));
        }
    }
    plan(&mut out, summary, columns);
    lint(&mut out, findings, verbose, columns);
    assumptions(&mut out, summary, verbose, columns);
    if let Some(next) = next {
        let _ = writeln!(out, "{}", line("next", &paint(ACCENT, next), columns));
    }
    let _ = writeln!(
        out,
        "{}",
        line(
            if place.extension().is_some() {
                "report"
            } else {
                "record"
            },
            &place.display().to_string(),
            columns
        )
    );
    out
}

/// So many steps of a job that trains, or passes of one that infers.
fn counted(summary: &Summary, number: u32) -> String {
    let (one, many) = if summary.trains {
        ("step", "steps")
    } else {
        ("pass", "passes")
    };
    format!("{number} {}", if number == 1 { one } else { many })
}

/// What each step leaves behind, in words.
fn place_of(growth: &Growth) -> String {
    let place = growth.place.as_ref();
    place.map_or_else(String::new, |place| format!(" ({place})"))
}

/// The verdict, and what it comes to.
fn verdict(out: &mut String, summary: &Summary, columns: usize) {
    let capacity = format_bytes(summary.gpu.memory_bytes);
    let (mark, head, details) = match summary.verdict {
        Verdict::Fits => (paint(GOOD, "✓"), fits(summary), room(summary, &capacity)),
        Verdict::NoVerdict => (
            paint(WARN, "?"),
            "no verdict: the script was ended before two steps were alike".to_owned(),
            vec![format!(
                "at least {} of {capacity} are needed; more steps will tell, such as --steps {}",
                format_bytes(summary.peak.used_bytes),
                (summary.step_count + 2).max(3)
            )],
        ),
        Verdict::OutOfMemory => (
            paint(BAD, "✗"),
            where_it_ran_out(summary),
            vec![too_much(summary, &capacity)],
        ),
        Verdict::Refused => (
            paint(BAD, "✗"),
            "the plan cannot be applied; oomph stopped the script".to_owned(),
            Vec::new(),
        ),
        Verdict::ScriptFailed if summary.failure.as_deref() == Some(INTERRUPTED) => (
            paint(BAD, "✗"),
            "interrupted; this is its memory until then".to_owned(),
            Vec::new(),
        ),
        Verdict::ScriptFailed => {
            let failure = summary.failure.as_deref().unwrap_or("unknown");
            let first = failure.lines().next().unwrap_or("");
            (
                paint(BAD, "✗"),
                "the script failed; this is its memory until then".to_owned(),
                vec![shorten(first, columns.saturating_sub(INDENT))],
            )
        }
    };
    let wrapped = |text: &str| wrap(text, columns.saturating_sub(INDENT), INDENT);
    let _ = writeln!(out, "{mark} {}", paint(BOLD, wrapped(&head)));
    for detail in details {
        let _ = writeln!(out, "  {}", wrapped(&detail));
    }
    out.push('\n');
}

/// That a job fits, and what that rests on.
fn fits(summary: &Summary) -> String {
    let counted = counted(summary, summary.step_count);
    match (&summary.growth, summary.basis) {
        _ if summary.peak.used_bytes == 0 => "the script used no GPU memory".to_owned(),
        _ if summary.net_bytes > 0 => format!(
            "runs, but does not fit: up to {} lay in host memory, through the net",
            format_bytes(summary.net_bytes)
        ),
        (Some(growth), _) => format!("fits for {counted}; {growth}"),
        (None, Basis::SteadySteps) => {
            format!("fits, if later steps are like the last of the {counted}")
        }
        _ => "fits: the whole script ran".to_owned(),
    }
}

/// The peak of a job that fits, when it was reached, and what was survived.
fn room(summary: &Summary, capacity: &str) -> Vec<String> {
    let used = summary.peak.used_bytes;
    if used == 0 {
        return Vec::new();
    }
    let mut details = vec![match &summary.framework {
        Some(other) => framework_peak(summary, other),
        None => format!(
            "peak {} of {capacity} ({:.0} %), {} to spare",
            format_bytes(used),
            used as f64 / summary.gpu.memory_bytes.max(1) as f64 * 100.0,
            format_bytes(summary.gpu.memory_bytes.saturating_sub(used))
        ),
    }];
    // The moment is unknown for memory outside PyTorch.
    if summary.peak_step != 0 {
        let moment = format!(
            "reached in step {}, {}",
            summary.peak_step, summary.peak_phase
        );
        details.push(paint(DIM, moment));
    }
    if summary.handled_oom_count > 0 {
        let times = summary.handled_oom_count;
        let s = if times == 1 { "" } else { "s" };
        let text = format!("the script survived {times} out-of-memory error{s}");
        details.push(paint(WARN, text));
    }
    details
}

/// In which step, and at which line, memory ran out, or will.
fn where_it_ran_out(summary: &Summary) -> String {
    let Some(oom) = &summary.oom else {
        return match &summary.growth {
            Some(growth) => format!("runs out of memory near step {}", growth.full_at_step),
            None => "out of memory".to_owned(),
        };
    };
    let mut place = String::from("out of memory");
    if let Some(process) = oom.process {
        let _ = write!(place, " in process {process}");
    }
    if !oom.phase.is_empty() {
        let _ = write!(place, " in step {}, {}", oom.step, oom.phase);
    }
    if let Some(module) = &oom.module {
        let _ = write!(place, ", at {module}");
    }
    if let Some(location) = &oom.location {
        let file = location.rsplit('/').next().unwrap_or(location);
        let _ = write!(place, " ({file})");
    }
    place
}

/// How much a job needs that runs out of memory, as far as that is known.
fn too_much(summary: &Summary, capacity: &str) -> String {
    let used = summary.peak.used_bytes;
    let needed = format_bytes(used);
    let oom = summary.oom.as_ref();
    let asked = oom.map_or(0, |oom| oom.requested_bytes);
    match oom.and_then(|oom| oom.short_bytes) {
        Some(0) => format!(
            "without a limit the peak is {needed} of {capacity}: the memory would be enough, but was fragmented at the time of the request"
        ),
        Some(short) => format!(
            "peak needed {needed} of {capacity}: {} too much",
            format_bytes(short)
        ),
        None if oom.is_none()
            && let Some(growth) = &summary.growth =>
        {
            format!(
                "{needed} of {capacity} after {} steps; {growth}",
                summary.step_count
            )
        }
        None if let Some(growth) = &summary.growth => format!(
            "{needed} of {capacity} needed by step {}, and {} more with each step after it{}",
            growth.full_at_step,
            format_bytes(growth.bytes_per_step),
            place_of(growth)
        ),
        None if summary.peak.lower_bound && used > summary.gpu.memory_bytes => {
            let why = oom.and_then(|oom| oom.unlimited_failure.as_deref());
            let why = why.map_or_else(
                || "ended before two steps were alike".to_owned(),
                |why| format!("failed: {}", why.lines().next().unwrap_or_default()),
            );
            format!("at least {needed} of {capacity} is needed: the run without a limit {why}")
        }
        None if let Some(other) = &summary.framework => {
            let limit = match other.limit_bytes {
                0 => capacity.to_owned(),
                limit => format_bytes(limit),
            };
            // TensorFlow's error does not say how much.
            let request = match asked {
                0 => "one request failed".to_owned(),
                asked => format!("one request asked for {}", format_bytes(asked)),
            };
            format!(
                "{request}, with up to {} in use and {limit} at most for {}",
                format_bytes(summary.peak.allocated_bytes),
                other.title()
            )
        }
        // Without an unlimited run: what was held, and what was refused.
        None => format!(
            "one request asked for {}, with up to {needed} of {capacity} in use",
            format_bytes(asked)
        ),
    }
}

/// What a job of JAX or CuPy used. A pool that is taken in advance says nothing of that.
fn framework_peak(summary: &Summary, other: &Framework) -> String {
    let peak = &summary.peak;
    let capacity = format_bytes(summary.gpu.memory_bytes);
    let used = format_bytes(peak.used_bytes);
    let in_use = format_bytes(peak.allocated_bytes);
    let pool = format_bytes(peak.reserved_bytes);
    match other.allocator.as_str() {
        "default" if other.preallocates => format!(
            "peak {in_use} in use, of the {pool} that {} takes in advance; the GPU gave {used} of {capacity}",
            other.title()
        ),
        "arena" => {
            format!("peak {in_use} in its arena and libraries; the GPU gave {used} of {capacity}")
        }
        "default" | "pool" => {
            format!("peak {in_use} in use, in a pool of {pool}; the GPU gave {used} of {capacity}")
        }
        _ => format!("peak {in_use} in use; the GPU gave {used} of {capacity}"),
    }
}

fn categories(out: &mut String, summary: &Summary, columns: usize) {
    const NAME: usize = 16;
    const AMOUNT: usize = 10;
    let mut rows: Vec<(String, u64)> = CATEGORIES
        .iter()
        .map(|&(id, name)| {
            let name = match (&summary.framework, id) {
                (Some(other), "other") if other.allocator == "arena" => "arena".to_owned(),
                (Some(_), "other") => "in use".to_owned(),
                (Some(other), "outside_allocator") if other.allocator == "driver" => {
                    "not in arrays".to_owned()
                }
                (Some(other), "outside_allocator") => format!("not {}'s pool", other.title()),
                _ => name.to_owned(),
            };
            (name, summary.by_category.get(id).copied().unwrap_or(0))
        })
        .filter(|(_, amount)| *amount > 0)
        .collect();
    // The job's own categories first, by size; the rest last.
    let own = rows
        .iter()
        .take_while(|(name, _)| name != "cached, unused" && name != "CUDA context")
        .count();
    rows[..own].sort_by_key(|(_, amount)| std::cmp::Reverse(*amount));
    let most = rows.iter().map(|(_, amount)| *amount).max().unwrap_or(1);
    let room = columns.saturating_sub(INDENT + NAME + AMOUNT + 2).min(40);
    if summary.peak.allocated_bytes > 0 && !summary.timeline.is_empty() {
        let _ = writeln!(
            out,
            "  {}{}  {}",
            pad("through time", NAME),
            pad_left(&format_bytes(summary.peak.allocated_bytes), AMOUNT),
            paint(DIM, sparkline(&summary.timeline, room).trim_end())
        );
    }
    for (name, amount) in rows {
        let graph = paint(ACCENT, bar(amount, most, room));
        let _ = writeln!(
            out,
            "  {}{}  {graph}",
            pad(&name, NAME),
            pad_left(&format_bytes(amount), AMOUNT)
        );
    }
    let _ = writeln!(out);
}

/// Shares under the names that `name` gives them; those that it gives none keep theirs.
fn merged(shares: &[Share], name: impl Fn(&str) -> Option<String>) -> Vec<Share> {
    let mut sums: Vec<Share> = Vec::new();
    for share in shares {
        let name = name(&share.name).unwrap_or_else(|| share.name.clone());
        match sums.iter_mut().find(|sum| sum.name == name) {
            Some(sum) => sum.bytes += share.bytes,
            None => sums.push(Share {
                name,
                bytes: share.bytes,
            }),
        }
    }
    sums
}

/// `GPT.blocks.3.mlp` as `GPT.blocks.*.mlp`.
fn without_numbers(name: &str) -> String {
    let parts: Vec<&str> = name
        .split('.')
        .map(|part| if is_number(part) { "*" } else { part })
        .collect();
    parts.join(".")
}

/// `Encoder.encoder_layer` of `Encoder.encoder_layer_3`.
fn stem_of_series(name: &str) -> Option<&str> {
    name.rsplit_once('_')
        .filter(|(_, number)| is_number(number))
        .map(|(stem, _)| stem)
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Modules summed over the layers of a stack: `h.0.mlp` and `h.1.mlp` are one row, unless asked.
fn by_prefix(shares: &[Share], verbose: bool) -> Vec<Share> {
    if verbose {
        return shares.to_vec();
    }
    let dotted = merged(shares, |name| Some(without_numbers(name)));
    // `encoder_layer_0` to `_11` are one row, `ln_1` and `ln_2` are two.
    let series = |name: &str| {
        let stem = stem_of_series(name)?;
        let members = dotted
            .iter()
            .filter(|share| stem_of_series(&share.name) == Some(stem));
        (members.count() >= LEAST_SERIES).then(|| format!("{stem}_*"))
    };
    let mut sums = merged(&dotted, series);
    sums.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    sums
}

fn shares(out: &mut String, title: &str, shares: &[Share], limit: usize, columns: usize) {
    const AMOUNT: usize = 10;
    const TITLE: usize = 9;
    let named: Vec<&Share> = shares
        .iter()
        .filter(|share| !share.name.is_empty() && share.bytes > 0)
        .collect();
    let first = TITLE.max(title.len());
    for (index, share) in named.iter().take(limit).enumerate() {
        let title = if index == 0 { title } else { "" };
        let room = columns.saturating_sub(INDENT + first + AMOUNT + 3);
        let _ = writeln!(
            out,
            "  {} {}  {}",
            paint(DIM, pad(title, first)),
            pad_left(&format_bytes(share.bytes), AMOUNT),
            shorten(&share.name, room)
        );
    }
    if !named.is_empty() {
        let _ = writeln!(out);
    }
}

/// What a serving engine made of its memory.
fn engine(out: &mut String, summary: &Summary, columns: usize) {
    let Some(engine) = &summary.engine else {
        return;
    };
    let cache = format_bytes(engine.kv_cache_bytes);
    let of_length = format!("of {} tokens", thousands(engine.max_model_len));
    let cache = if engine.needed_bytes > 0 {
        format!(
            "{cache} are left for the KV cache; one request {of_length} needs {}",
            format_bytes(engine.needed_bytes)
        )
    } else {
        format!(
            "KV cache {cache}: {} tokens, {:.2} requests {of_length}",
            thousands(engine.kv_cache_tokens),
            engine.requests
        )
    };
    let parts = format!(
        "{} may use {}: weights {}, profile run {}, outside PyTorch {}, CUDA graphs {}",
        engine.name,
        format_bytes(engine.allowed_bytes),
        format_bytes(engine.weights_bytes),
        format_bytes(engine.activation_bytes),
        format_bytes(engine.outside_bytes),
        format_bytes(engine.graph_bytes),
    );
    let _ = writeln!(out, "{}", line("engine", &cache, columns));
    let _ = writeln!(out, "{}\n", line("", &parts, columns));
}

/// A number with its thousands apart.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What each process held when all of them together held most.
fn processes(out: &mut String, summary: &Summary, verbose: bool, columns: usize) {
    const AMOUNT: usize = 10;
    const LINES: usize = 8;
    const NAME: usize = 16;
    const NOTE: usize = 16;
    let all = &summary.processes;
    // Ranks have a table of their own.
    if all.is_empty() || !summary.ranks.is_empty() && !verbose {
        return;
    }
    let limit = if verbose { usize::MAX } else { LINES };
    for process in all.iter().take(limit) {
        let note = match (process.out_of_memory, process.recorded) {
            (true, _) => "out of memory",
            (_, false) => "not recorded",
            _ => "",
        };
        let room = columns.saturating_sub(INDENT + NAME + AMOUNT + NOTE + 3);
        let text = format!(
            "  {}{}  {} {}",
            paint(DIM, pad(&format!("process {}", process.process), NAME)),
            pad_left(&format_bytes(process.held_bytes), AMOUNT),
            paint(WARN, pad(note, NOTE)),
            paint(DIM, shorten(&process.command, room)),
        );
        let _ = writeln!(out, "{}", text.trim_end());
    }
    if all.len() > limit {
        let more = format!("and {} more processes: -v shows them", all.len() - limit);
        let _ = writeln!(out, "  {}", paint(DIM, more));
    }
    let _ = writeln!(out);
}

/// The peak of each rank (equal neighbours on one line), and which rank differs or failed.
fn ranks(out: &mut String, summary: &Summary, verbose: bool, columns: usize) {
    const AMOUNT: usize = 10;
    const LINES: usize = 8;
    let all = &summary.ranks;
    if all.is_empty() {
        return;
    }
    let state = |rank: &RankSummary| match rank.verdict {
        Verdict::Fits | Verdict::NoVerdict => "",
        Verdict::OutOfMemory => "out of memory",
        _ if rank.terminated => "ended by its launcher",
        Verdict::Refused => "refused",
        Verdict::ScriptFailed => "failed",
    };
    let shown = |rank: &RankSummary| (format_bytes(rank.peak.used_bytes), state(rank));
    let mut rows: Vec<(Vec<u32>, (String, &str))> = Vec::new();
    for rank in all {
        match rows.last_mut() {
            Some((ranks, same))
                if *same == shown(rank)
                    && ranks.last().is_some_and(|last| last + 1 == rank.rank) =>
            {
                ranks.push(rank.rank);
            }
            _ => rows.push((vec![rank.rank], shown(rank))),
        }
    }
    let limit = if verbose { usize::MAX } else { LINES };
    for (ranks, (peak, state)) in rows.iter().take(limit) {
        let title = match (ranks.first(), ranks.last()) {
            (Some(first), Some(last)) if first != last => format!("ranks {first}–{last}"),
            (Some(first), _) => format!("rank {first}"),
            _ => continue,
        };
        let peak = if peak == "0 B" { "" } else { peak };
        let text = format!(
            "  {} {}  {}",
            paint(DIM, pad(&title, 14)),
            pad_left(peak, AMOUNT),
            paint(WARN, *state)
        );
        let _ = writeln!(out, "{}", text.trim_end());
    }
    if rows.len() > limit {
        let more = rows[limit..]
            .iter()
            .map(|(ranks, _)| ranks.len())
            .sum::<usize>();
        let _ = writeln!(
            out,
            "  {}",
            paint(DIM, format!("and {more} more ranks: -v shows them"))
        );
    }
    let _ = writeln!(out);
    if let Some(outlier) = &summary.outlier {
        let signed = |amount: i64| {
            let word = if amount < 0 { "less" } else { "more" };
            format!("{} {word}", format_bytes(amount.unsigned_abs()))
        };
        let parts: Vec<String> = outlier
            .by_category
            .iter()
            .take(3)
            .map(|part| {
                let known = CATEGORIES.iter().find(|(id, _)| *id == part.name);
                format!(
                    "{} {}",
                    known.map_or(part.name, |(_, name)| name),
                    signed(part.bytes)
                )
            })
            .collect();
        let text = format!(
            "rank {} holds {} than the others ({})",
            outlier.rank,
            signed(outlier.difference_bytes),
            parts.join(", ")
        );
        let _ = writeln!(out, "{}", line("outlier", &text, columns));
    }
    if let Some(culprit) = summary
        .culprit
        .as_ref()
        .filter(|culprit| !culprit.what.is_empty())
    {
        let text = culprit.sentence();
        let text = text.lines().next().unwrap_or_default();
        let _ = writeln!(out, "{}", line("culprit", text, columns));
    }
}

fn steps(out: &mut String, summary: &Summary) {
    if summary.steps.is_empty() {
        return;
    }
    for step in &summary.steps {
        let name = if step.step == 0 {
            "setup".to_owned()
        } else {
            format!("step {}", step.step)
        };
        let _ = writeln!(
            out,
            "  {} {}",
            paint(DIM, pad(&name, 9)),
            pad_left(&format_bytes(step.peak_allocated_bytes), 10)
        );
    }
    let _ = writeln!(out);
}

fn cause(out: &mut String, explanation: &Explanation, columns: usize) {
    if let Some(cause) = &explanation.cause {
        let _ = writeln!(out, "{}", line("why", &cause.verdict, columns));
    }
    for (index, fix) in explanation.fixes.iter().take(3).enumerate() {
        let text = match fix.saves_bytes {
            0 => fix.what.clone(),
            saved => format!(
                "{} (saves {}{})",
                fix.what,
                format_bytes(saved),
                suffices(fix)
            ),
        };
        let _ = writeln!(
            out,
            "{}",
            line(if index == 0 { "fixes" } else { "" }, &text, columns)
        );
    }
    if explanation.lower_bound && !explanation.fixes.is_empty() {
        let _ = writeln!(out, "{}", line("", explanation.at_least(), columns));
    }
}

/// Whether a fix is enough by itself, for the end of a remark; empty if nobody knows.
pub(crate) fn suffices(fix: &Fix) -> String {
    match (fix.enough, fix.left_bytes) {
        (Some(true), _) => ", enough alone".to_owned(),
        (_, Some(left)) => format!(", {} still too much", format_bytes(left)),
        _ => String::new(),
    }
}

/// What the levers of a plan did, and the planned and the measured peak.
fn plan(out: &mut String, summary: &Summary, columns: usize) {
    if summary.verdict == Verdict::Refused {
        return;
    }
    for (index, lever) in summary.levers.iter().enumerate() {
        let title = if index == 0 { "levers" } else { "" };
        let note = lever
            .note
            .as_deref()
            .map(|note| format!(": {note}"))
            .unwrap_or_default();
        let text = match lever.applied {
            0 => format!("{} was inert{note}", lever.name),
            1 => format!("{} applied{note}", lever.name),
            times => format!("{} applied {times} times{note}", lever.name),
        };
        let text = match &lever.switch {
            Some(switch) => format!("{text}, the same as {switch}"),
            None => text,
        };
        let text = if lever.applied == 0 {
            line(title, &text, columns)
                .lines()
                .map(|part| paint(WARN, part))
                .collect::<Vec<_>>()
                .join("\n")
        } else {
            line(title, &text, columns)
        };
        let _ = writeln!(out, "{text}");
    }
    if let Some(planned) = summary.plan.as_ref().and_then(|plan| plan.planned)
        && summary.peak.used_bytes > 0
    {
        let (planned, measured) = (planned.used_bytes, summary.peak.used_bytes);
        let off = (measured as f64 / planned.max(1) as f64 - 1.0) * 100.0;
        let text = format!(
            "{}, measured {} ({off:+.1} %)",
            format_bytes(planned),
            format_bytes(measured)
        );
        let _ = writeln!(out, "{}", line("planned", &text, columns));
    }
}

fn lint(out: &mut String, findings: &[HeldFinding], verbose: bool, columns: usize) {
    let limit = if verbose { MANY } else { FINDINGS };
    for (index, finding) in findings.iter().take(limit).enumerate() {
        let bytes = format_bytes(finding.held_bytes);
        let held = match finding.held_by {
            "line" => format!("{bytes} held by this line"),
            // What is wrong in it may be the least of that.
            whole => format!("this whole {whole} holds {bytes}"),
        };
        let text = format!("{} ({held})", finding.text());
        let title = if index == 0 { "lint" } else { "" };
        let _ = writeln!(out, "{}", line(title, &text, columns));
    }
    if findings.len() > limit {
        let more = format!("and {} more: oomph lint --trace", findings.len() - limit);
        let _ = writeln!(out, "{}", line("", &more, columns));
    }
}

fn assumptions(out: &mut String, summary: &Summary, verbose: bool, columns: usize) {
    let limit = if verbose { usize::MAX } else { 3 };
    for (index, found) in summary.assumptions.iter().take(limit).enumerate() {
        let place = found
            .location
            .as_deref()
            .map(|place| format!(" ({})", place.rsplit('/').next().unwrap_or(place)))
            .unwrap_or_default();
        let _ = writeln!(
            out,
            "{}",
            line(
                if index == 0 { "assumed" } else { "" },
                &format!("{}{place}", found.what),
                columns
            )
        );
    }
    if summary.assumptions.len() > limit {
        let more = format!(
            "and {} more: -v shows them",
            summary.assumptions.len() - limit
        );
        let _ = writeln!(out, "{}", line("", &more, columns));
    }
}

/// How long a step takes, or why nobody knows.
fn time(out: &mut String, summary: &Summary, columns: usize) {
    let unit = if summary.trains { "step" } else { "pass" };
    let mut said = match (&summary.time, &summary.time_unknown) {
        (Some(time), _) => crate::time::lines(time, unit),
        (None, Some(reason)) => vec![format!("unknown: {reason}")],
        (None, None) => Vec::new(),
    };
    if summary.time.is_some() && summary.gpu.r#virtual && summary.net_bytes > 0 {
        said.push("without what the net moves, which is not timed".to_owned());
    }
    for (index, text) in said.iter().enumerate() {
        let title = if index == 0 { "time" } else { "" };
        let _ = writeln!(out, "{}", line(title, text, columns));
    }
}

/// `  title   text`, wrapped under itself.
pub(crate) fn line(title: &str, text: &str, columns: usize) -> String {
    const TITLE: usize = 8;
    titled(title, TITLE, text, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_a_stack_are_one_row() {
        let share = |name: &str, bytes| Share {
            name: name.to_owned(),
            bytes,
        };
        let mut shares: Vec<Share> = (0..12)
            .map(|layer| share(&format!("Vit.encoder.encoder_layer_{layer}"), 10))
            .collect();
        shares.extend([
            share("Gpt.h.0.mlp", 7),
            share("Gpt.h.1.mlp", 7),
            share("Vit.ln_1", 2),
            share("Vit.ln_2", 1),
        ]);
        let rows: Vec<(String, u64)> = by_prefix(&shares, false)
            .into_iter()
            .map(|share| (share.name, share.bytes))
            .collect();
        let expected = [
            ("Vit.encoder.encoder_layer_*", 120),
            ("Gpt.h.*.mlp", 14),
            ("Vit.ln_1", 2),
            ("Vit.ln_2", 1),
        ];
        assert_eq!(rows, expected.map(|(name, bytes)| (name.to_owned(), bytes)));
        assert_eq!(by_prefix(&shares, true).len(), shares.len());
    }
}
