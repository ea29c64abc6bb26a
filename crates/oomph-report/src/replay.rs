//! What a replay found, as text and as JSON.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use oomph_allocator::search::Trial;
use oomph_allocator::study::{MemoryIs, Study};
use oomph_bytes::format_bytes;
use oomph_trace::Problem;
use serde::Serialize;

use crate::terminal::{ACCENT, BAD, BOLD, DIM, GOOD, WARN, columns, pad, pad_left, paint, wrap};

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.replay/1";

/// What `oomph replay --json` writes.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct ReplayReport {
    format: &'static str,
    file: PathBuf,
    device: u32,
    torch_version_assumed: Option<String>,
    events: usize,
    mismatches: usize,
    mismatch_examples: Vec<Example>,
    complete: bool,
    peak_reserved_bytes: PeakReserved,
    peak_allocated_bytes: u64,
    live_bytes_bound: u64,
    static_plan_bytes: u64,
    static_plan_not_placed: usize,
    memory_bytes: Option<u64>,
    memory_is: &'static str,
    recorded_out_of_memory: bool,
    settings: Vec<Setting>,
    best: Option<String>,
    nearest: Option<Nearest>,
    problems: Vec<ProblemRow>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Example {
    event: u32,
    what: String,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct PeakReserved {
    recorded: u64,
    replayed: u64,
    predicted: u64,
}

#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
struct Setting {
    alloc_conf: String,
    fits: bool,
    peak_reserved_bytes: u64,
    peak_allocated_bytes: u64,
    needs_bytes: Option<u64>,
    fails_at_event: Option<u32>,
    fails_for_bytes: Option<u64>,
    flushes: u64,
    serves_the_failed_request: bool,
}

/// Where no setting fits: the one that needs the least.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Nearest {
    alloc_conf: String,
    needs_bytes: u64,
    short_bytes: u64,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct ProblemRow {
    kind: &'static str,
    message: String,
}

impl From<&Problem> for ProblemRow {
    fn from(problem: &Problem) -> Self {
        Self {
            kind: problem.kind.id(),
            message: problem.message.clone(),
        }
    }
}

impl From<&Trial> for Setting {
    fn from(trial: &Trial) -> Self {
        let run = trial.predicted;
        Self {
            alloc_conf: trial.conf.clone(),
            fits: run.fits(),
            peak_reserved_bytes: run.stats.reserved_peak,
            peak_allocated_bytes: run.stats.allocated_peak,
            needs_bytes: trial.needs,
            fails_at_event: run.failed_row,
            fails_for_bytes: run.failed_row.map(|_| run.failed_request),
            flushes: run.stats.retries,
            serves_the_failed_request: run.serves_failed_request,
        }
    }
}

impl ReplayReport {
    /// The report of a study of `file`, with what was wrong with the file.
    pub fn new(file: &Path, study: &Study, problems: &[Problem]) -> Self {
        let (program, exact) = (&study.program, &study.exact);
        Self {
            format: FORMAT,
            file: file.to_owned(),
            device: study.device,
            torch_version_assumed: study.version_assumed.then(|| study.version.to_string()),
            events: exact.events,
            mismatches: exact.mismatches,
            mismatch_examples: exact
                .examples
                .iter()
                .map(|mismatch| Example {
                    event: mismatch.row,
                    what: mismatch.what.clone(),
                })
                .collect(),
            complete: program.is_complete(),
            peak_reserved_bytes: PeakReserved {
                recorded: program.recorded_peak_reserved,
                replayed: exact.stats.reserved_peak,
                predicted: study.current.predicted.stats.reserved_peak,
            },
            peak_allocated_bytes: exact.stats.allocated_peak,
            live_bytes_bound: study.bounds.live_bytes,
            static_plan_bytes: study.bounds.static_plan,
            static_plan_not_placed: study.bounds.not_placed,
            memory_bytes: study.memory,
            memory_is: match study.memory_is {
                MemoryIs::Given => "given",
                MemoryIs::Recorded => "what the recorded job had when it failed",
                MemoryIs::Unlimited => "unlimited",
            },
            recorded_out_of_memory: program.failure().is_some(),
            settings: std::iter::once(&study.current)
                .chain(&study.trials)
                .map(Setting::from)
                .collect(),
            best: study.best().map(|trial| trial.conf.clone()),
            nearest: study.nearest().filter(|_| !study.fits()).and_then(|trial| {
                let needs_bytes = trial.needs?;
                Some(Nearest {
                    alloc_conf: trial.conf.clone(),
                    needs_bytes,
                    short_bytes: needs_bytes.saturating_sub(study.memory?),
                })
            }),
            problems: problems
                .iter()
                .chain(&study.problems)
                .map(ProblemRow::from)
                .collect(),
        }
    }
}

/// The text, `width` columns wide.
pub fn replay_text(report: &ReplayReport, width: usize) -> String {
    let mut out = String::new();
    let exact = if report.mismatches == 0 {
        paint(GOOD, "exact")
    } else {
        paint(WARN, format!("{} differ", report.mismatches))
    };
    let _ = writeln!(
        out,
        "replayed {} events of device {}: {exact}",
        report.events, report.device
    );
    let mut rows = vec![
        (
            "peak reserved",
            format_bytes(report.peak_reserved_bytes.recorded),
            "recorded",
        ),
        (
            "peak allocated",
            format_bytes(report.peak_allocated_bytes),
            "in use at once, in blocks",
        ),
        (
            "live bytes",
            format_bytes(report.live_bytes_bound),
            "no setting can need less",
        ),
        (
            "static plan",
            format_bytes(report.static_plan_bytes),
            "a plan that gives each allocation a fixed place",
        ),
    ];
    if let Some(memory) = report.memory_bytes {
        rows.insert(0, ("memory", format_bytes(memory), report.memory_is));
    }
    out.push('\n');
    for (name, amount, note) in rows {
        let _ = writeln!(
            out,
            "  {}{}  {}",
            pad(name, 16),
            pad_left(&amount, 10),
            paint(DIM, wrap(note, width.saturating_sub(30), 30))
        );
    }
    let _ = writeln!(
        out,
        "\n  {}  {}  {}",
        paint(
            BOLD,
            pad("settings", width.saturating_sub(42).clamp(12, 54))
        ),
        paint(BOLD, pad_left("peak", 10)),
        paint(BOLD, pad_left("needs", 10)),
    );
    for setting in &report.settings {
        let name = if setting.alloc_conf.is_empty() {
            "(defaults)"
        } else {
            &setting.alloc_conf
        };
        let verdict = if setting.fits {
            paint(GOOD, "fits")
        } else {
            paint(BAD, "out of memory")
        };
        let verdict = if report.memory_bytes.is_some() {
            verdict
        } else {
            String::new()
        };
        let mark = if report.best.as_ref() == Some(&setting.alloc_conf) {
            paint(ACCENT, " ◄ best")
        } else {
            String::new()
        };
        let room = width.saturating_sub(42).clamp(12, 54);
        let first = if columns(name) > room {
            format!("{name}\n  {}", " ".repeat(room))
        } else {
            pad(name, room)
        };
        let _ = writeln!(
            out,
            "{}",
            format!(
                "  {first}  {}  {}  {verdict}{mark}",
                pad_left(&format_bytes(setting.peak_reserved_bytes), 10),
                pad_left(
                    &setting
                        .needs_bytes
                        .map_or_else(|| "–".to_owned(), format_bytes),
                    10
                ),
            )
            .trim_end()
        );
    }
    out.push('\n');
    if let Some(best) = &report.best {
        let _ = writeln!(
            out,
            "  try it:  {}",
            paint(ACCENT, format!("PYTORCH_CUDA_ALLOC_CONF={best}"))
        );
    } else if let Some(nearest) = &report.nearest {
        let name = if nearest.alloc_conf.is_empty() {
            "the defaults, need"
        } else {
            &format!("{}, needs", nearest.alloc_conf)
        };
        let text = format!(
            "none of these settings fits: the nearest, {name} {}, {} more than there is",
            format_bytes(nearest.needs_bytes),
            format_bytes(nearest.short_bytes)
        );
        let _ = writeln!(out, "  {}", wrap(&text, width.saturating_sub(2), 2));
    } else if report.settings.len() > 1 && report.settings.iter().all(|setting| !setting.fits) {
        let _ = writeln!(out, "  none of these settings fits");
    } else if report.settings.len() > 1 {
        let _ = writeln!(out, "  none of these settings needs less memory");
    }
    let mut notes: Vec<String> = Vec::new();
    if let Some(version) = &report.torch_version_assumed {
        notes.push(format!(
            "the snapshot does not name its torch version; the rules of {version} were used \
             (--torch)"
        ));
    }
    if report.static_plan_not_placed > 0 {
        notes.push(format!(
            "the static plan counts {} small blocks by their live bytes",
            report.static_plan_not_placed
        ));
    }
    notes.extend(report.problems.iter().map(|p| p.message.clone()));
    for note in notes {
        let _ = writeln!(
            out,
            "  {} {}",
            paint(WARN, "note:"),
            wrap(&note, width.saturating_sub(8), 8)
        );
    }
    out
}
