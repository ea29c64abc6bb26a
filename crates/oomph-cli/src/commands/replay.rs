//! `oomph replay`: what the allocator would have done under other conditions.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use oomph_allocator::search::{self, Trial};
use oomph_allocator::{Config, Device, Program, TorchVersion, plan, replay};
use oomph_report::terminal::{
    ACCENT, BAD, BOLD, DIM, GOOD, WARN, bytes, columns, pad, pad_left, paint, width, wrap,
};
use oomph_trace::{Content, Problem, ProblemKind};
use serde::Serialize;

use crate::{json, stdout};

/// Version of the JSON. Fields may be added; a change of meaning is a new number.
const FORMAT: &str = "oomph.replay/1";

/// Arguments of `oomph replay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  oomph replay snapshot.pickle                                      is the replay exact, what is the least memory\n  oomph replay snapshot.pickle --alloc-conf expandable_segments:True  would that have helped\n  oomph replay snapshot.pickle --search                             the best setting\n  oomph replay snapshot.pickle --memory 10GiB --search              would it fit there"
)]
pub struct Args {
    /// A memory snapshot (.pickle, also .gz, .xz, .zst) or an oomph trace
    #[arg(value_name = "SNAPSHOT")]
    snapshot: PathBuf,

    /// Replay under these settings (as in PYTORCH_CUDA_ALLOC_CONF); may be given several times
    #[arg(long, value_name = "CONF")]
    alloc_conf: Vec<String>,

    /// Memory that PyTorch's allocator may reserve, such as 10GiB; the CUDA context and other
    /// libraries come on top [default: as much as the recorded job had]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,

    /// Try the settings that are known to help, and report the best
    #[arg(long)]
    search: bool,

    /// The device, where the snapshot has several
    #[arg(long, value_name = "INDEX")]
    device: Option<u32>,

    /// The torch version that made the snapshot and whose rules apply
    #[arg(long, value_name = "VERSION", value_parser = parse_version)]
    torch: Option<TorchVersion>,

    /// Write the result as JSON to FILE, or to stdout for `-`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn parse_version(text: &str) -> Result<TorchVersion, String> {
    TorchVersion::parse(text).ok_or_else(|| format!("expected a version like 2.11, found {text:?}"))
}

/// Reads a size such as `10GiB`, `512 MiB`, `24G` or a number of bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let expected =
        || format!("expected a size like 10GiB, 512MiB or a number of bytes, found {text:?}");
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number: f64 = number.parse().map_err(|_| expected())?;
    let factor: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1_048_576.0,
        "g" | "gib" => 1_073_741_824.0,
        "t" | "tib" => 1_099_511_627_776.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return Err(expected()),
    };
    let size = number * factor;
    // More than this is no device, and beyond 2^53 the fraction is gone.
    if !(1.0..=9e15).contains(&size) {
        return Err(expected());
    }
    Ok(size as u64)
}

#[derive(Debug, Serialize)]
struct Report {
    format: &'static str,
    file: PathBuf,
    device: u32,
    torch_version_assumed: Option<String>,
    events: usize,
    mismatches: usize,
    mismatch_examples: Vec<Example>,
    complete: bool,
    peak_reserved_bytes: Peak,
    peak_allocated_bytes: u64,
    live_bytes_bound: u64,
    static_plan_bytes: u64,
    static_plan_not_placed: usize,
    memory_bytes: Option<u64>,
    memory_is: &'static str,
    recorded_out_of_memory: bool,
    settings: Vec<Setting>,
    best: Option<String>,
    problems: Vec<JsonProblem>,
}

#[derive(Debug, Serialize)]
struct Example {
    event: u32,
    what: String,
}

#[derive(Debug, Serialize)]
struct Peak {
    recorded: u64,
    replayed: u64,
    predicted: u64,
}

#[derive(Debug, Clone, Serialize)]
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

#[derive(Debug, Serialize)]
pub(crate) struct JsonProblem {
    pub(crate) kind: &'static str,
    pub(crate) message: String,
}

impl From<&Problem> for JsonProblem {
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

impl Args {
    /// Replays, and says what came of it.
    pub fn run(self) -> anyhow::Result<i32> {
        let path = self.snapshot.display();
        let (content, mut problems) = oomph_job::files::read(&self.snapshot)?;
        let Content::Trace(trace) = content else {
            bail!("{path}: found a log; a snapshot or an oomph trace can be replayed");
        };
        if trace.events.is_empty() {
            if let Some(problem) = problems.first() {
                bail!("{path}: nothing could be read that could be replayed: {problem}");
            }
            bail!(
                "{path}: the snapshot has no history to replay, only the state at its end. \
                 Call torch.cuda.memory._record_memory_history(max_entries=sys.maxsize) before \
                 the model is built"
            );
        }
        let device = choose_device(&trace, self.device).with_context(|| path.to_string())?;
        let recorded_version = trace
            .context
            .torch_version
            .as_deref()
            .and_then(TorchVersion::parse);
        let version = self
            .torch
            .or(recorded_version)
            .unwrap_or(TorchVersion::ASSUMED);
        let assumed = self.torch.is_none() && recorded_version.is_none();
        let config = Config::from_settings(&trace.settings, version);
        let mut program = Program::new(&trace, device, &config);
        if program.driver_events.is_empty() && program.initial.is_empty() {
            bail!(
                "{path}: the history has no segments (a profiler trace?), so there is nothing to \
                 compare a replay with. Take a snapshot: torch.cuda.memory._dump_snapshot"
            );
        }
        let exact = replay::recorded_with_pools(&mut program, &config);
        problems.extend(program.problems.iter().cloned());
        let room = program.room(&config);
        let (under, memory_is) = match (self.memory, room) {
            (Some(memory), _) => (Device::of(memory), "given"),
            (None, Some(room)) => (
                Device {
                    limit: Some(room.at_least),
                    ..Device::UNLIMITED
                },
                "what the recorded job had when it failed",
            ),
            (None, None) => (Device::UNLIMITED, "unlimited"),
        };
        let memory = self.memory.or(room.map(|room| room.at_least));
        let predicted = replay::predict(&program, &config, under);
        let bounds = plan::bounds(&program, &config);

        let current = Trial {
            conf: trace.settings.conf.clone().unwrap_or_default(),
            predicted,
            needs: search::smallest(&program, &config),
        };
        let mut trials = Vec::new();
        for conf in &self.alloc_conf {
            let trial = search::attempt(&program, conf, version, under)
                .with_context(|| format!("--alloc-conf {conf}"))?;
            trials.push(trial);
        }
        if self.search {
            for trial in search::search(&program, version, under) {
                if !trials.iter().any(|other| other.conf == trial.conf) {
                    trials.push(trial);
                }
            }
        }
        if exact.mismatches > 0 {
            problems.push(Problem::new(
                ProblemKind::Inconsistent,
                format!(
                    "{} of {} events came out differently than recorded, so what follows is \
                     approximate",
                    exact.mismatches, exact.events
                ),
            ));
        }
        // The best of what was tried: it must fit, and need less than the settings at hand.
        let best = trials
            .iter()
            .min_by_key(|trial| trial.cost())
            .filter(|trial| trial.cost() < current.cost());
        let fits = trials
            .iter()
            .chain([&current])
            .any(|trial| trial.predicted.fits());
        let asked_to_fit = self.memory.is_some() || room.is_some();
        let mut settings = vec![Setting::from(&current)];
        settings.extend(trials.iter().map(Setting::from));
        let report = Report {
            format: FORMAT,
            file: self.snapshot.clone(),
            device,
            torch_version_assumed: assumed.then(|| version.to_string()),
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
            peak_reserved_bytes: Peak {
                recorded: program.recorded_peak_reserved,
                replayed: exact.stats.reserved_peak,
                predicted: predicted.stats.reserved_peak,
            },
            peak_allocated_bytes: exact.stats.allocated_peak,
            live_bytes_bound: bounds.live_bytes,
            static_plan_bytes: bounds.static_plan,
            static_plan_not_placed: bounds.not_placed,
            memory_bytes: memory,
            memory_is,
            recorded_out_of_memory: program.failure().is_some(),
            best: best.map(|trial| trial.conf.clone()),
            settings,
            problems: problems.iter().map(JsonProblem::from).collect(),
        };
        let quiet = match &self.json {
            Some(target) => {
                json::write(target, &report)?;
                json::is_stdout(target)
            }
            None => false,
        };
        if !quiet {
            stdout(&render(&report, width()))?;
        }
        Ok(if asked_to_fit && !fits {
            crate::EXIT_FINDINGS
        } else {
            crate::EXIT_OK
        })
    }
}

/// The device that was asked for, or the only one, or the busiest.
pub(crate) fn choose_device(trace: &oomph_trace::Trace, asked: Option<u32>) -> anyhow::Result<u32> {
    let devices = trace.used_devices();
    match asked {
        Some(device) if devices.contains(&device) => Ok(device),
        Some(device) => bail!("device {device} has no events; devices with events: {devices:?}"),
        None => devices
            .iter()
            .copied()
            .max_by_key(|&device| trace.rows_of(device).len())
            .context("no device has an event or a segment"),
    }
}

fn render(report: &Report, width: usize) -> String {
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
            bytes(report.peak_reserved_bytes.recorded),
            "recorded",
        ),
        (
            "peak allocated",
            bytes(report.peak_allocated_bytes),
            "in use at once, in blocks",
        ),
        (
            "live bytes",
            bytes(report.live_bytes_bound),
            "no setting can do with less",
        ),
        (
            "static plan",
            bytes(report.static_plan_bytes),
            "a plan that places every lifetime once",
        ),
    ];
    if let Some(memory) = report.memory_bytes {
        rows.insert(0, ("memory", bytes(memory), report.memory_is));
    }
    out.push('\n');
    for (name, amount, note) in rows {
        let _ = writeln!(
            out,
            "  {}{}  {}",
            pad(name, 16),
            pad_left(&amount, 10),
            paint(DIM, note)
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
                pad_left(&bytes(setting.peak_reserved_bytes), 10),
                pad_left(
                    &setting.needs_bytes.map_or_else(|| "–".to_owned(), bytes),
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
    } else if report.settings.len() > 1 {
        let _ = writeln!(out, "  none of these settings does with less memory");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("10GiB"), Ok(10 << 30));
        assert_eq!(parse_size("1.5 GiB"), Ok(3 << 29));
        assert_eq!(parse_size("24GB"), Ok(24_000_000_000));
        assert_eq!(parse_size("512"), Ok(512));
        assert!(parse_size("ten").is_err());
        assert!(parse_size("0").is_err());
        assert!(parse_size("1e30GiB").is_err());
    }
}
