//! What `oomph fit` found, as JSON and as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use oomph_plan::{Lever, Results};
use serde::Serialize;

use crate::terminal::{
    ACCENT, BAD, BOLD, DIM, GOOD, WARN, bytes, columns, heading, pad, pad_left, paint, wrap,
};

/// Version of the JSON. Fields may be added; a change of meaning is a new number.
pub const FORMAT: &str = "oomph.fit/1";

/// How the search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The job fits as it is.
    AlreadyFits,
    /// A verified plan makes it fit.
    Fits,
    /// No plan was found that a run confirmed.
    NothingFits,
}

/// The greatest amounts, each at its own moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    /// In tensors.
    pub allocated_bytes: u64,
    /// Held by PyTorch's allocator.
    pub reserved_bytes: u64,
    /// Held by the process.
    pub used_bytes: u64,
}

/// The GPU and how much of it may be used.
#[derive(Debug, Clone, Serialize)]
pub struct Gpu {
    /// Its name in the catalogue.
    pub id: String,
    /// The driver's name.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// What is left free on purpose.
    pub margin_bytes: u64,
    /// How many of them.
    pub count: u32,
}

/// One plan.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// What is changed.
    pub levers: Vec<Lever>,
    /// The same in words.
    pub what: String,
    /// As measured by the run that verified it; else as predicted.
    pub peak: Peak,
    /// As the model predicted it before any run of this plan.
    pub predicted: Peak,
    /// Time of a step against the plain job's.
    pub time_ratio: f64,
    /// The same before any run of this plan.
    pub predicted_time_ratio: f64,
    /// The weakest promise among the levers.
    pub same_results: Results,
    /// Whether a run at the capacity less the margin confirmed it.
    pub verified: bool,
    /// Steps of that run; 0 where there was none.
    pub steps: u32,
    /// What the levers said, and what the figures rest on.
    pub notes: Vec<String>,
}

/// A lever that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Its name.
    pub lever: String,
    /// Why.
    pub why: String,
}

/// A GPU that would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alternative {
    /// Its name in the catalogue.
    pub id: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// A typical price of renting it, or of owning it, an hour; where known.
    pub usd_per_hour: Option<f64>,
    /// Whether the job fits there as it is, rather than with the plan of least memory.
    pub as_it_is: bool,
    /// How many of them; the price is that of all.
    pub count: u32,
}

/// The fewest GPUs that do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Smallest {
    /// How many.
    pub gpus: u32,
    /// With what plan, as a run confirmed it.
    pub levers: Vec<Lever>,
    /// The same in words.
    pub what: String,
    /// What the rank needs that needs most.
    pub used_bytes: u64,
    /// Time of a step against the plain job's.
    pub time_ratio: f64,
    /// The weakest promise among the levers.
    pub same_results: Results,
}

/// Another job that is like this one but smaller.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Variant {
    /// What is smaller.
    pub what: String,
    /// What it needs, as a run measured it.
    pub used_bytes: u64,
    /// Whether it fits.
    pub fits: bool,
}

/// The largest size that fits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Largest {
    /// `batch`, `length` or `resolution`.
    pub of: String,
    /// What the script has.
    pub now: u64,
    /// The largest that fits, as a run confirmed; `null` if none was confirmed.
    pub plain: Option<u64>,
    /// What it needs.
    pub plain_used_bytes: u64,
    /// The largest with levers, as a run confirmed.
    pub with_levers: Option<u64>,
    /// What that needs.
    pub with_levers_used_bytes: u64,
    /// Time of one sample (token, pixel) at the largest plain size over that at the script's own size.
    pub time_of_one: Option<f64>,
    /// Those levers.
    pub levers: Vec<Lever>,
    /// What the figures rest on.
    pub notes: Vec<String>,
}

/// Everything that `oomph fit` writes.
#[derive(Debug, Clone, Serialize)]
pub struct Fit {
    /// [`FORMAT`].
    pub format: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// The script and its arguments.
    pub script: Vec<String>,
    /// The GPU.
    pub gpu: Gpu,
    /// Whether the job only infers.
    pub inference: bool,
    /// What the job needs as it is.
    pub plain: Peak,
    /// Plans, the cheapest first.
    pub plans: Vec<Plan>,
    /// Which of them was chosen.
    pub chosen: Option<usize>,
    /// Why.
    pub why: String,
    /// Where nothing fits: the plan of least memory.
    pub least: Option<Plan>,
    /// What holds that memory: bytes by category at the peak.
    pub held_by: BTreeMap<String, u64>,
    /// GPUs that would do, the cheapest first.
    pub gpus: Vec<Alternative>,
    /// Where several GPUs were asked for: the fewest of this kind that do.
    pub smallest: Option<Smallest>,
    /// Where several GPUs were asked for: how many of which kind would do, the cheapest first.
    pub kinds: Vec<Alternative>,
    /// Smaller jobs.
    pub variants: Vec<Variant>,
    /// The largest sizes, where they were asked for.
    pub largest: Vec<Largest>,
    /// Levers that were left out.
    pub rejected: Vec<Rejected>,
    /// What all figures rest on.
    pub assumptions: Vec<String>,
    /// How often the script was run.
    pub runs: u32,
    /// Seconds that those runs took.
    pub run_seconds: f64,
    /// Seconds that planning took beside them.
    pub planning_seconds: f64,
    /// Where the plan was written.
    pub plan_file: Option<String>,
    /// Where the patch was written, and how many lines it changes.
    pub patch_file: Option<(String, usize)>,
    /// The script as it was given, for the command that applies the plan.
    pub command: String,
    /// Where the page was written.
    pub report: Option<String>,
    /// Versions.
    pub versions: BTreeMap<&'static str, String>,
}

impl Fit {
    /// The plans as the page shows them; where nothing fits, the one of least memory.
    pub fn rows(&self) -> Vec<crate::html::Plan> {
        self.plans
            .iter()
            .chain(self.least.iter().filter(|_| self.plans.is_empty()))
            .enumerate()
            .map(|(number, plan)| crate::html::Plan {
                levers: plan.what.clone(),
                planned_peak: plan.predicted.used_bytes,
                measured_peak: plan.verified.then_some(plan.peak.used_bytes),
                time_ratio: Some(plan.time_ratio),
                same_results: results(plan.same_results).to_owned(),
                verified: plan.verified,
                chosen: self.chosen == Some(number),
            })
            .collect()
    }
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
        bytes(fit.gpu.memory_bytes),
        bytes(fit.gpu.margin_bytes),
        fit.runs,
        if fit.runs == 1 { "" } else { "s" },
        fit.run_seconds,
        fit.planning_seconds,
    );
    let _ = writeln!(out, "\n{}\n", paint(DIM, heading(&head, width)));
    verdict(&mut out, fit, width);
    table(&mut out, fit, width);
    if let Some(chosen) = fit.chosen.and_then(|index| fit.plans.get(index)) {
        applied(&mut out, fit, chosen, width);
    }
    fewest(&mut out, fit, width);
    if fit.outcome == Outcome::NothingFits {
        nothing(&mut out, fit, width);
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
    let peak = bytes(fit.plain.used_bytes);
    let capacity = bytes(fit.gpu.memory_bytes);
    match fit.outcome {
        Outcome::AlreadyFits => {
            let spare = fit.gpu.memory_bytes.saturating_sub(fit.plain.used_bytes);
            let _ = writeln!(out, "{} {}", paint(GOOD, "✓"), paint(BOLD, "fits as it is"));
            let text = format!("peak {peak} of {capacity}, {} to spare", bytes(spare));
            let _ = writeln!(
                out,
                "  {}\n",
                wrap(&text, width.saturating_sub(INDENT), INDENT)
            );
        }
        Outcome::Fits => {
            let text = format!("needs {peak} of {capacity} as it is");
            let _ = writeln!(
                out,
                "  {}\n",
                wrap(&text, width.saturating_sub(INDENT), INDENT)
            );
        }
        Outcome::NothingFits => {
            let text =
                format!("nothing that oomph knows makes it fit: it needs {peak} of {capacity}");
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
    if fit.plans.is_empty() {
        return;
    }
    let room = width
        .saturating_sub(INDENT + 3 + PEAK + TIME + RESULTS + 8)
        .clamp(20, 64);
    let header = format!(
        "  {}{}{}  {}",
        pad("   plan", room + 3),
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
        let text = wrap(&plan.what, room, INDENT + 3);
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        let _ = writeln!(
            out,
            "  {}{}{}{}  {} {mark}",
            pad(&(index + 1).to_string(), 3),
            pad(first, room),
            pad_left(&bytes(plan.peak.used_bytes), PEAK),
            pad_left(&format!("{:.2}×", plan.time_ratio), TIME),
            pad(results(plan.same_results), RESULTS),
        );
        for rest in lines {
            let _ = writeln!(out, "{rest}");
        }
    }
    let _ = writeln!(out);
}

fn results(results: Results) -> &'static str {
    match results {
        Results::Exact => "exact",
        Results::Rounding => "to rounding",
        Results::Numerics => "numerics change",
    }
}

fn applied(out: &mut String, fit: &Fit, chosen: &Plan, width: usize) {
    let spare = fit.gpu.memory_bytes.saturating_sub(chosen.peak.used_bytes);
    let text = format!(
        "{}; verified on the virtual GPU, {} to spare",
        fit.why,
        bytes(spare)
    );
    let _ = writeln!(out, "{}", line("chosen", &text, width));
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
    }
    if let Some((file, lines)) = &fit.patch_file {
        let text = match lines {
            0 => format!("in words: {file} (no line could be changed for you)"),
            1 => format!("{file} (1 line)"),
            _ => format!("{file} ({lines} lines)"),
        };
        let _ = writeln!(out, "{}", line("by hand", &text, width));
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
            bytes(fewest.used_bytes),
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

fn nothing(out: &mut String, fit: &Fit, width: usize) {
    if let Some(least) = &fit.least {
        let how = if least.verified {
            "measured"
        } else {
            "predicted"
        };
        let peak = bytes(least.peak.used_bytes);
        let usable = fit.gpu.memory_bytes.saturating_sub(fit.gpu.margin_bytes);
        let missing = match least.peak.used_bytes.checked_sub(usable) {
            Some(bytes_missing) if bytes_missing > 0 => {
                format!(", {} too much", bytes(bytes_missing))
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
            .map(|(name, held)| format!("{} {}", name.replace('_', " "), bytes(**held)))
            .collect();
        let _ = writeln!(out, "{}", line("held by", &text.join(", "), width));
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
        let text = format!("{} ({}{price}) {how}", gpu.id, bytes(gpu.memory_bytes));
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
            bytes(variant.used_bytes)
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
                bytes(largest.plain_used_bytes)
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
            bytes(largest.with_levers_used_bytes)
        );
        let _ = writeln!(out, "{}", line("", &text, width));
    }
    for note in &largest.notes {
        let _ = writeln!(out, "{}", line("", &paint(DIM, note), width));
    }
}

/// `  title   text`, wrapped under itself.
fn line(title: &str, text: &str, width: usize) -> String {
    let indent = INDENT + TITLE.max(columns(title)) + 1;
    format!(
        "  {} {}",
        paint(DIM, pad(title, TITLE)),
        wrap(text, width.saturating_sub(indent), indent)
    )
}
