//! What `oomph fit` found, as text and as rows of the page.

use std::fmt::Write as _;

use oomph_bytes::format_bytes;
use oomph_plan::result::{Fit, Largest, Outcome, PlanResult, Tried};
use oomph_plan::{Floor, Lever, Results};

use oomph_run::record::{Advice, Framework};

use crate::html::PlanRow;
use crate::terminal::{
    ACCENT, BAD, BOLD, DIM, GOOD, WARN, columns, heading, pad, pad_left, paint, titled, wrap,
};

/// The plans as the page shows them; where nothing fits, the one of least memory.
pub fn plan_rows(fit: &Fit) -> Vec<PlanRow> {
    let mut rows: Vec<PlanRow> = fit
        .plans
        .iter()
        .chain(fit.least.iter().filter(|_| fit.plans.is_empty()))
        .enumerate()
        .map(|(number, plan)| PlanRow {
            levers: plan.what.clone(),
            planned_peak: plan.predicted.used_bytes,
            measured_peak: plan.verified.then_some(plan.peak.used_bytes),
            time_ratio: Some(plan.time_ratio),
            same_results: results(plan.same_results).to_owned(),
            verified: plan.verified,
            chosen: fit.chosen == Some(number),
            tried: false,
        })
        .collect();
    let plain = Tried {
        what: "as it is".to_owned(),
        used_bytes: fit.plain.used_bytes,
        time_ratio: 1.0,
    };
    for tried in fit.tried.iter().chain(std::iter::once(&plain)) {
        if rows.iter().all(|row| row.levers != tried.what) {
            rows.push(PlanRow {
                levers: tried.what.clone(),
                planned_peak: tried.used_bytes,
                measured_peak: Some(tried.used_bytes),
                time_ratio: Some(tried.time_ratio),
                same_results: String::new(),
                verified: false,
                chosen: false,
                tried: true,
            });
        }
    }
    rows
}

/// What changes of the script would save, each in a line.
pub(crate) fn advice(other: &Framework) -> Vec<String> {
    let line = |one: &Advice| {
        let place = match one.location.rsplit('/').next() {
            Some(place) if !place.is_empty() => format!(" ({place})"),
            _ => String::new(),
        };
        format!(
            "{}{place}: saves up to {}",
            one.what,
            format_bytes(one.bytes)
        )
    };
    other.advice.iter().map(line).collect()
}

const INDENT: usize = 2;
const TITLE: usize = 9;

/// The text of a search's result, `width` columns wide.
pub fn fit_report(fit: &Fit, width: usize, verbose: bool) -> String {
    let mut out = String::new();
    let head = format!(
        "virtual {}{} · {} · margin {} · {} run{} in {:.0} s, planning {:.1} s",
        if fit.gpu.count > 1 {
            format!("{} × ", fit.gpu.count)
        } else {
            String::new()
        },
        fit.gpu.name,
        format_bytes(fit.gpu.memory_bytes),
        format_bytes(fit.gpu.margin_bytes),
        fit.runs,
        if fit.runs == 1 { "" } else { "s" },
        fit.run_seconds,
        fit.planning_seconds,
    );
    let _ = writeln!(out, "\n{}\n", paint(DIM, heading(&head, width)));
    verdict(&mut out, fit, width);
    table(&mut out, fit, width);
    if let Some(stopped) = fit.stopped {
        let text = format!("the search ended early: {stopped}");
        let _ = writeln!(out, "{}", line("stopped", &paint(WARN, text), width));
    }
    if let Some(chosen) = fit.chosen.and_then(|index| fit.plans.get(index)) {
        applied(&mut out, fit, chosen, width);
    }
    fewest(&mut out, fit, width);
    if fit.outcome == Outcome::NothingFits {
        nothing(&mut out, fit, width);
    }
    if let Some(other) = &fit.framework
        && fit.outcome != Outcome::AlreadyFits
    {
        for (index, text) in advice(other).iter().enumerate() {
            let title = if index == 0 { "by hand" } else { "" };
            let _ = writeln!(out, "{}", line(title, text, width));
        }
    }
    if let Some(page) = &fit.report {
        let _ = writeln!(out, "{}", line("report", page, width));
    }
    for largest in &fit.largest {
        self::largest(&mut out, largest, width);
    }
    let few = if verbose { usize::MAX } else { 3 };
    for (index, rejected) in fit.rejected.iter().take(few).enumerate() {
        let title = if index == 0 { "left out" } else { "" };
        // The way by hand takes lines of its own, which `--json` has.
        let why = rejected
            .why
            .split("\nby hand:\n")
            .next()
            .unwrap_or_default();
        let text = format!("{}: {why}", rejected.lever);
        let _ = writeln!(out, "{}", line(title, &text, width));
    }
    for (index, assumption) in fit.assumptions.iter().take(few).enumerate() {
        let title = if index == 0 { "assumed" } else { "" };
        let _ = writeln!(out, "{}", line(title, assumption, width));
    }
    out
}

fn verdict(out: &mut String, fit: &Fit, width: usize) {
    // What JAX takes in advance says nothing of what it needs.
    let peak = match &fit.framework {
        Some(_) => format!("{} in use", format_bytes(fit.plain.allocated_bytes)),
        None => format_bytes(fit.plain.used_bytes),
    };
    let capacity = match fit.framework.as_ref().map(|other| other.limit_bytes) {
        Some(limit) if limit > 0 => format!(
            "the {} that JAX may take of {}",
            format_bytes(limit),
            format_bytes(fit.gpu.memory_bytes)
        ),
        _ => format_bytes(fit.gpu.memory_bytes),
    };
    if let Some(growth) = &fit.growth {
        let (mark, text) = if fit.outcome == Outcome::NothingFits {
            let text = format!("runs out of memory near step {}", growth.full_at_step);
            (paint(BAD, "✗"), text)
        } else {
            (paint(WARN, "!"), "fits at first".to_owned())
        };
        let _ = writeln!(out, "{mark} {}", paint(BOLD, text));
        let text = format!(
            "peak {peak} of {capacity} in the first steps; {growth}. No lever changes that"
        );
        let _ = writeln!(
            out,
            "  {}\n",
            wrap(&text, width.saturating_sub(INDENT), INDENT)
        );
        return;
    }
    match fit.outcome {
        Outcome::AlreadyFits => {
            let spare = fit.gpu.memory_bytes.saturating_sub(fit.plain.used_bytes);
            let _ = writeln!(out, "{} {}", paint(GOOD, "✓"), paint(BOLD, "fits as it is"));
            let text = if fit.plain.used_bytes == 0 {
                "the script used no GPU memory".to_owned()
            } else {
                format!(
                    "peak {peak} of {capacity}, {} to spare",
                    format_bytes(spare)
                )
            };
            let _ = writeln!(
                out,
                "  {}\n",
                wrap(&text, width.saturating_sub(INDENT), INDENT)
            );
        }
        Outcome::Fits => {
            let text = if fit.framework.is_some() {
                format!("runs out of memory as it is, with {peak} of {capacity}")
            } else {
                let unlimited = fit.plain_unlimited_bytes.map_or_else(String::new, |bytes| {
                    format!(
                        " ({} where nothing limits what the allocator caches)",
                        format_bytes(bytes)
                    )
                });
                format!("needs {peak} of {capacity} as it is{unlimited}")
            };
            let _ = writeln!(
                out,
                "  {}\n",
                wrap(&text, width.saturating_sub(INDENT), INDENT)
            );
        }
        Outcome::Open => {
            let text = format!(
                "needs {peak} of {capacity} as it is; no plan was verified before the search ended"
            );
            let _ = writeln!(
                out,
                "  {}\n",
                wrap(&text, width.saturating_sub(INDENT), INDENT)
            );
        }
        Outcome::NothingFits => {
            let text = match fit.framework {
                Some(_) => "no setting makes it fit".to_owned(),
                None => {
                    format!("nothing that oomph knows makes it fit: it needs {peak} of {capacity}")
                }
            };
            let _ = writeln!(
                out,
                "{} {}\n",
                paint(BAD, "✗"),
                paint(BOLD, wrap(&text, width.saturating_sub(INDENT), INDENT))
            );
        }
    }
}

fn table(out: &mut String, fit: &Fit, width: usize) {
    const PEAK: usize = 10;
    const TIME: usize = 7;
    const RESULTS: usize = 15;
    const NUMBER: usize = 3;
    const MARK: usize = 10;
    const LEAST: usize = 32;
    const MOST: usize = 64;
    if fit.plans.is_empty() {
        return;
    }
    let fixed = INDENT + NUMBER + PEAK + TIME + 2 + RESULTS;
    // On narrow terminals what is said of a plan stands under the promise about its results.
    let beside = width >= fixed + LEAST + MARK;
    let taken = fixed + if beside { MARK } else { 0 };
    let room = width.saturating_sub(taken).clamp(12, MOST);
    let header = format!(
        "  {}{}{}  {}",
        pad("   plan", room + NUMBER),
        pad_left("peak", PEAK),
        pad_left("time", TIME),
        "same result"
    );
    let _ = writeln!(out, "{}", paint(DIM, header));
    for (index, plan) in fit.plans.iter().enumerate() {
        let mark = if fit.chosen == Some(index) {
            paint(GOOD, "◄ chosen")
        } else if plan.verified {
            String::new()
        } else {
            paint(DIM, "predicted")
        };
        let mut lines: Vec<String> = wrap(&breakable(&plan.what, room), room, 0)
            .lines()
            .map(|line| format!("  {}{}", " ".repeat(NUMBER), pad(line, room)))
            .collect();
        if lines.len() < 2 && !beside && !mark.is_empty() {
            lines.push(" ".repeat(INDENT + NUMBER + room));
        }
        for (row, line) in lines.iter().enumerate() {
            let line = match row {
                0 => format!(
                    "  {}{}{}{}  {} {}",
                    pad(&(index + 1).to_string(), NUMBER),
                    &line[INDENT + NUMBER..],
                    pad_left(&format_bytes(plan.peak.used_bytes), PEAK),
                    pad_left(&format!("{:.2}×", plan.time_ratio), TIME),
                    pad(results(plan.same_results), RESULTS),
                    if beside { &mark } else { "" },
                ),
                1 if !beside => format!("{line}{}  {mark}", " ".repeat(PEAK + TIME)),
                _ => line.clone(),
            };
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
    let _ = writeln!(out);
}

/// Words that are longer than `room` in parts that fit: modules' names after a dot where there is one.
fn breakable(text: &str, room: usize) -> String {
    let mut words = Vec::new();
    for mut word in text.split(' ') {
        while columns(word) > room {
            let end = word
                .char_indices()
                .nth(room)
                .map_or(word.len(), |(at, _)| at);
            let end = word[..end].rfind('.').map_or(end, |dot| dot + 1);
            words.push(&word[..end]);
            word = &word[end..];
        }
        words.push(word);
    }
    words.join(" ")
}

fn results(results: Results) -> &'static str {
    match results {
        Results::Exact => "exact",
        Results::Rounding => "to rounding",
        Results::Numerics => "numerics change",
    }
}

fn applied(out: &mut String, fit: &Fit, chosen: &PlanResult, width: usize) {
    let spare = fit.gpu.memory_bytes.saturating_sub(chosen.peak.used_bytes);
    let text = format!(
        "{}; verified on the virtual GPU, {} to spare",
        fit.why,
        format_bytes(spare)
    );
    let _ = writeln!(out, "{}", line("chosen", &text, width));
    if let Some(switches) = chosen.switch_line() {
        let _ = writeln!(out, "{}", line("same as", &switches, width));
    }
    for note in &chosen.notes {
        let _ = writeln!(out, "{}", line("note", &paint(WARN, note), width));
    }
    if chosen.same_results == Results::Numerics
        && let Some(file) = &fit.plan_file
        && fit.inference
    {
        let text = format!(
            "not measured, as the virtual GPU computes nothing: oomph drift --plan {file} {}",
            fit.command
        );
        let _ = writeln!(out, "{}", line("drift", &text, width));
    }
    if let Some(file) = &fit.plan_file {
        let command = format!("oomph run --plan {file} {}", fit.command);
        let _ = writeln!(out, "{}", line("apply it", &paint(ACCENT, command), width));
        if !chosen.levers.iter().any(Lever::needs_launcher) {
            let line_of = match &fit.apply_patch_file {
                Some(patch) => format!("the line of {patch}"),
                None => format!("oomph.apply(\"{file}\") in its first line"),
            };
            let (title, inside) = match chosen.levers.first().and_then(Lever::command) {
                Some(command) => ("or", format!("{command} python {}", fit.command)),
                None => (
                    "or inside",
                    format!("OOMPH_PLAN={file} in its environment, or {line_of}"),
                ),
            };
            let _ = writeln!(out, "{}", line(title, &inside, width));
        }
    }
    if let Some((file, lines)) = &fit.patch_file {
        let plural = if *lines == 1 { "" } else { "s" };
        let text = format!("{file} ({lines} line{plural}, run: it fits)");
        let _ = writeln!(out, "{}", line("by hand", &text, width));
    }
    if let (Some(file), Some(why)) = (&fit.instruction_file, &fit.no_patch) {
        let text = format!("in words: {file}, as {why}");
        let _ = writeln!(out, "{}", line("by hand", &text, width));
    }
    if let Some(file) = &fit.original_file {
        let script = fit.script.first().map_or("", String::as_str);
        let text = format!("into {script}; {file} is how it was: oomph fit --undo {script}");
        let _ = writeln!(out, "{}", line("written", &text, width));
    }
}

/// How few GPUs do, and which kinds cost least.
fn fewest(out: &mut String, fit: &Fit, width: usize) {
    if let Some(fewest) = &fit.smallest {
        let plural = if fewest.gpus == 1 { "GPU" } else { "GPUs" };
        let how = if fewest.what.is_empty() {
            "as it is".to_owned()
        } else {
            format!("with {}", fewest.what)
        };
        let text = format!(
            "{} {plural} {how}: {} each, {:.2}× the time, {}",
            fewest.gpus,
            format_bytes(fewest.used_bytes),
            fewest.time_ratio,
            results(fewest.same_results)
        );
        let _ = writeln!(out, "{}", line("fewest", &text, width));
    }
    let kinds: Vec<String> = fit
        .kinds
        .iter()
        .map(|kind| {
            let price = kind
                .usd_per_hour
                .map_or_else(String::new, |price| format!(" (about ${price:.2} an hour)"));
            format!("{} × {}{price}", kind.count, kind.id)
        })
        .collect();
    if !kinds.is_empty() {
        let _ = writeln!(out, "{}", line("cheapest", &kinds.join(", "), width));
    }
}

/// What the operators need at once, or what every plan needs, and what that proves.
fn floor_text(fit: &Fit, floor: &Floor) -> String {
    let usable = fit.gpu.memory_bytes.saturating_sub(fit.gpu.margin_bytes);
    let proof = if floor.bytes <= usable {
        "less than there is: no proof that nothing can fit"
    } else if floor.operator_bytes > 0 {
        "more than there is: nothing fits while its operators stay as large"
    } else {
        "more than there is, and no lever takes any of that off the GPU: nothing fits, and no plan was tried"
    };
    let of = match floor.operator.as_str() {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    let parts: Vec<String> = [
        (floor.outside_bytes, "outside the allocator"),
        (floor.parameter_bytes, "of parameters"),
        (floor.workspace_bytes, "of cuBLAS's workspaces"),
        (floor.operator_bytes, "for the largest operator"),
    ]
    .into_iter()
    .filter(|(bytes, _)| *bytes > 0)
    .map(|(bytes, what)| format!("{} {what}", format_bytes(bytes)))
    .collect();
    format!(
        "{}: {}{of}; {proof}",
        format_bytes(floor.bytes),
        parts.join(", ")
    )
}

fn nothing(out: &mut String, fit: &Fit, width: usize) {
    if let Some(least) = &fit.least {
        let how = if least.verified {
            "measured"
        } else {
            "predicted"
        };
        let peak = format_bytes(least.peak.used_bytes);
        let usable = fit.gpu.memory_bytes.saturating_sub(fit.gpu.margin_bytes);
        let missing = match least.peak.used_bytes.checked_sub(usable) {
            Some(bytes_missing) if bytes_missing > 0 => {
                format!(", {} too much", format_bytes(bytes_missing))
            }
            _ => String::new(),
        };
        let text = if least.levers.is_empty() {
            format!("{peak} as it is{missing}: no lever that may be used makes it less")
        } else {
            format!(
                "{peak} with {} ({how}, {:.2}× the time){missing}",
                least.what, least.time_ratio
            )
        };
        let _ = writeln!(out, "{}", line("least", &text, width));
        for note in &least.notes {
            let _ = writeln!(out, "{}", line("note", note, width));
        }
    }
    if !fit.held_by.is_empty() {
        let mut parts: Vec<(&String, &u64)> =
            fit.held_by.iter().filter(|(_, held)| **held > 0).collect();
        parts.sort_by_key(|(_, held)| std::cmp::Reverse(**held));
        let text: Vec<String> = parts
            .iter()
            .take(4)
            .map(|(name, held)| format!("{} {}", name.replace('_', " "), format_bytes(**held)))
            .collect();
        let _ = writeln!(out, "{}", line("held by", &text.join(", "), width));
    }
    if let Some(floor) = &fit.floor {
        let _ = writeln!(out, "{}", line("floor", &floor_text(fit, floor), width));
    }
    for (index, gpu) in fit.gpus.iter().enumerate() {
        let price = gpu
            .usd_per_hour
            .map_or_else(String::new, |price| format!(", about ${price:.2} an hour"));
        let how = if gpu.as_it_is {
            "as it is"
        } else {
            "with that plan"
        };
        let text = format!(
            "{} ({}{price}) {how}",
            gpu.id,
            format_bytes(gpu.memory_bytes)
        );
        let _ = writeln!(
            out,
            "{}",
            line(if index == 0 { "GPUs" } else { "" }, &text, width)
        );
    }
    for (index, variant) in fit.variants.iter().enumerate() {
        let verdict = if variant.fits { "fits" } else { "does not fit" };
        let text = format!(
            "{}: {} ({verdict})",
            variant.what,
            format_bytes(variant.used_bytes)
        );
        let _ = writeln!(
            out,
            "{}",
            line(if index == 0 { "smaller" } else { "" }, &text, width)
        );
    }
}

fn largest(out: &mut String, largest: &Largest, width: usize) {
    let text = match largest.plain {
        Some(size) => {
            let pace = largest.time_of_one.map_or_else(String::new, |ratio| {
                format!("; each at {ratio:.2}× of its time now (estimate)")
            });
            format!(
                "{size} (now {}), needs {}{pace}",
                largest.now,
                format_bytes(largest.plain_used_bytes)
            )
        }
        None => format!("none fits as it is (now {})", largest.now),
    };
    let title = format!("max {}", largest.of);
    let _ = writeln!(out, "{}", line(&title, &text, width));
    if let Some(size) = largest.with_levers {
        let levers: Vec<String> = largest.levers.iter().map(ToString::to_string).collect();
        let text = format!(
            "{size} with {}, needs {}",
            levers.join(", "),
            format_bytes(largest.with_levers_used_bytes)
        );
        let _ = writeln!(out, "{}", line("", &text, width));
    }
    for note in &largest.notes {
        let _ = writeln!(out, "{}", line("", &paint(DIM, note), width));
    }
}

/// `  title   text`, wrapped under itself.
fn line(title: &str, text: &str, width: usize) -> String {
    titled(title, TITLE, text, width)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use oomph_plan::result::FitGpu;
    use oomph_run::summary::Peak;

    use super::*;

    fn plan(what: &str, verified: bool) -> PlanResult {
        let peak = Peak {
            allocated_bytes: 8 << 30,
            reserved_bytes: 9 << 30,
            used_bytes: 123 << 30,
            lower_bound: false,
        };
        PlanResult {
            levers: Vec::new(),
            what: what.to_owned(),
            peak,
            on_whole_gpu: None,
            predicted: peak,
            time_ratio: 10.98,
            predicted_time_ratio: 0.98,
            same_results: Results::Numerics,
            verified,
            steps: 3,
            notes: Vec::new(),
            switches: BTreeMap::new(),
        }
    }

    fn found(plans: Vec<PlanResult>) -> Fit {
        Fit {
            format: "oomph.fit/1",
            outcome: Outcome::Fits,
            stopped: None,
            script: Vec::new(),
            gpu: FitGpu {
                id: "h200".to_owned(),
                name: "NVIDIA H200".to_owned(),
                memory_bytes: 140 << 30,
                margin_bytes: 1 << 30,
                count: 1,
            },
            inference: false,
            framework: None,
            plain: plans[0].peak,
            chosen: Some(0),
            tried: Vec::new(),
            plans,
            why: "least slowdown".to_owned(),
            least: None,
            held_by: BTreeMap::new(),
            floor: None,
            gpus: Vec::new(),
            smallest: None,
            kinds: Vec::new(),
            growth: None,
            variants: Vec::new(),
            largest: Vec::new(),
            rejected: Vec::new(),
            assumptions: Vec::new(),
            runs: 7,
            run_seconds: 30.0,
            plain_seconds: 8.0,
            planning_seconds: 1.5,
            plan_file: None,
            patch_file: None,
            instruction_file: None,
            no_patch: None,
            apply_patch_file: None,
            plain_unlimited_bytes: None,
            original_file: None,
            command: "train.py".to_owned(),
            report: None,
            versions: BTreeMap::new(),
        }
    }

    #[test]
    fn a_job_that_never_used_the_gpu_has_no_peak_of_nothing() {
        let mut fit = found(vec![plan("none", true)]);
        fit.outcome = Outcome::AlreadyFits;
        fit.plain.used_bytes = 0;
        let text = fit_report(&fit, 100, false);
        assert!(text.contains("the script used no GPU memory"), "{text}");
        assert!(!text.contains("0 B"), "{text}");
    }

    /// A floor above the budget is a proof; one below says that there is none.
    #[test]
    fn where_nothing_fits_the_floor_is_said_and_what_it_proves() {
        let mut fit = found(vec![plan("tf32", false)]);
        fit.outcome = Outcome::NothingFits;
        fit.least = fit.plans.pop();
        let mut text = |bytes: u64| {
            fit.floor = Some(Floor {
                bytes,
                outside_bytes: 1 << 30,
                parameter_bytes: 2 << 30,
                workspace_bytes: 0,
                operator_bytes: bytes - (3 << 30),
                operator: "Net.conv".to_owned(),
            });
            let text = fit_report(&fit, 400, false);
            let words: Vec<&str> = text.split_whitespace().collect();
            words.join(" ")
        };
        let above = text(150 << 30);
        assert!(
            above.contains("150.0 GiB") && above.contains("(Net.conv)"),
            "{above}"
        );
        assert!(above.contains("nothing fits") && !above.contains("no proof"));
        assert!(text(50 << 30).contains("no proof"));
        // Of weights alone, every plan.
        fit.floor = Some(Floor {
            bytes: 150 << 30,
            outside_bytes: 1 << 30,
            parameter_bytes: 149 << 30,
            ..Floor::default()
        });
        let weights = fit_report(&fit, 400, false);
        assert!(weights.contains("no lever takes") && !weights.contains("operator"));
    }

    #[test]
    fn plans_fit_every_terminal_and_lose_no_word() {
        let long = "expandable segments + fused optimizer + checkpoint \
                    GPT2LMHeadModel.transformer.with_a_rather_long_name.h[0:12] + micro-batches: 2 a batch";
        let fit = found(vec![plan(long, true), plan("tf32", false)]);
        for width in 40..=200 {
            let text = fit_report(&fit, width, false);
            for line in text.lines() {
                assert!(columns(line) <= width.max(52), "{width}: {line}");
            }
            assert!(
                text.contains("◄ chosen") && text.contains("predicted"),
                "{text}"
            );
            if width == 60 {
                let plain = anstream::adapter::strip_str(&text).to_string();
                let table = plain.find("   plan").unwrap();
                insta::assert_snapshot!(&plain[table - 2..]);
            }
        }
    }

    #[test]
    fn a_search_that_was_stopped_says_so() {
        let mut fit = found(vec![plan("tf32", true)]);
        fit.stopped = Some(oomph_plan::Stopped::Interrupted);
        assert!(fit_report(&fit, 100, false).contains("the search ended early: interrupted"));
        fit.plans.clear();
        fit.chosen = None;
        fit.outcome = Outcome::Open;
        let text = fit_report(&fit, 100, false);
        assert!(
            text.contains("no plan was verified before the search ended"),
            "{text}"
        );
    }
}
