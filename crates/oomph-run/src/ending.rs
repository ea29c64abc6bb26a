//! How a job ended and what it did last, from what it left: the black box, stacks, its record, the kernel's counters.

use std::time::Duration;

use oomph_trace::Bytes;
use serde::Serialize;

use crate::black_box::{BlackBox, DeviceHeld, Grown, HeldAt, HostHeld};
use crate::record::Record;
use crate::stacks::{self, Frame};
use crate::stall::seconds;

/// What was found out from outside of the process.
#[derive(Debug, Clone, Default)]
pub struct Outside {
    /// How its parent saw it end: `killed by SIGKILL`. `None` if nobody saw it.
    pub status: Option<String>,
    /// Whether it is still running.
    pub running: bool,
    /// How often the kernel's OOM killer has killed since the job began, and the file that says so.
    pub oom_kills: Option<(u64, String)>,
    /// What the kernel's log says of the process.
    pub log: Vec<String>,
    /// Whether the machine was started anew, or is another one.
    pub other_boot: bool,
    /// The file of stacks.
    pub stacks: Option<String>,
    /// The job of a scheduler that it ran in: the command that asks about it.
    pub scheduler: Option<String>,
    /// Now, in µs since the epoch.
    pub now_us: i64,
}

/// How a process ended, and what it did last.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct Ending {
    /// How it ended, as far as that is known.
    pub how: String,
    /// What supports it.
    pub evidence: Vec<String>,
    /// Steps that had ended, or passes of a job that infers.
    pub steps: u32,
    /// Where it was: `step 21, forward`, `after step 20`.
    pub at: String,
    /// The module, as plans name it.
    pub module: Option<String>,
    /// The user's own line.
    pub place: Option<String>,
    /// What it was doing there, in words.
    pub doing: Option<String>,
    /// Seconds between the look that place and module are from, and the last that was heard of it.
    pub seen_before: f64,
    /// What PyTorch's allocator held.
    pub held: Vec<DeviceHeld>,
    /// What the process held in host memory.
    pub host: Option<HostHeld>,
    /// What steps left behind.
    pub grown: Option<Grown>,
    /// The snapshot beside it.
    pub snapshot: Option<HeldAt>,
    /// What to do next.
    pub next: Vec<Next>,
    /// The last that was heard of it, in µs since the epoch.
    pub last_seen_us: i64,
}

/// A next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Next {
    /// What for.
    pub what: String,
    /// The command; empty if it is none.
    pub command: String,
}

/// What is said of a process that left no word, and whose end nobody saw.
const UNSEEN: &str = "nothing says how it ended: the script and its command were killed together (SIGKILL, as at the end of a scheduler's grace), or the machine stopped";

/// Says how the process of a box ended. `record` is its record if it wrote one at its end.
pub fn ending(found: &BlackBox, record: Option<&Record>, outside: &Outside) -> Ending {
    let own = record.filter(|record| found.ended && record.outcome.kind != "killed");
    let how = how(found, own, outside);
    let mut evidence = Vec::new();
    let killed = !outside.running && own.is_none();
    if killed {
        if let Some((count, file)) = &outside.oom_kills {
            evidence.push(format!(
                "the kernel's OOM killer has killed {count} process{} here since the job began ({file})",
                if *count == 1 { "" } else { "es" }
            ));
        }
        evidence.extend(outside.log.iter().cloned());
        if outside.other_boot {
            evidence.push("this is another machine, or it was started anew since".to_owned());
        }
    }
    let sample = found.sample.clone().unwrap_or_default();
    let crashed = outside.stacks.as_deref().and_then(stacks::fatal).is_some();
    // The stacks of a crash are of its moment, what is in the box is up to a second older.
    let frames = match &outside.stacks {
        Some(text) if crashed && killed => stacks::main_thread(text),
        _ => sample
            .stack
            .iter()
            .map(|(file, line, function)| Frame {
                file: file.clone(),
                line: *line,
                function: function.clone(),
            })
            .collect(),
    };
    let host = sample.host;
    if killed && let Some(full) = nearly_full(&host) {
        evidence.push(full);
    }
    let some = |text: String| (!text.is_empty()).then_some(text);
    let exact = crashed || own.is_some();
    let mut ending = Ending {
        how,
        evidence,
        steps: found.count(),
        at: at(found),
        module: some(sample.module),
        place: stacks::place(&frames),
        doing: stacks::doing(&frames),
        seen_before: if exact {
            0.0
        } else {
            (found.last_seen_us() - sample.time_us).max(0) as f64 / 1e6
        },
        held: sample.devices,
        host: (host != HostHeld::default()).then_some(host),
        grown: found.grown(),
        snapshot: found.held,
        next: Vec::new(),
        last_seen_us: found.last_seen_us(),
    };
    ending.next = next(&ending, own, outside, crashed);
    ending
}

fn how(found: &BlackBox, own: Option<&Record>, outside: &Outside) -> String {
    if outside.running {
        let silent = Duration::from_micros(
            u64::try_from(outside.now_us - found.last_seen_us()).unwrap_or(0),
        );
        return format!("it is going on; last seen {} ago", seconds(silent));
    }
    if let Some(record) = own {
        if record.out_of_memory() {
            return "out of memory".to_owned();
        }
        return match (crate::summary::failure(record), &outside.status) {
            (Some(failure), _) => failure,
            (None, Some(status)) => {
                format!("the script ended well, and its process then: {status}")
            }
            (None, None) => "it ended well".to_owned(),
        };
    }
    if let Some(status) = &outside.status {
        let name = outside.stacks.as_deref().and_then(stacks::fatal);
        return match name {
            Some(name) if !status.contains(name) => format!("{status} ({name})"),
            _ => status.clone(),
        };
    }
    if let Some(name) = outside.stacks.as_deref().and_then(stacks::fatal) {
        return format!("it crashed: {name}");
    }
    UNSEEN.to_owned()
}

fn nearly_full(host: &HostHeld) -> Option<String> {
    const FULL: f64 = 0.95;
    let full = host.group_limit > 0 && host.group as f64 > host.group_limit as f64 * FULL;
    full.then(|| {
        format!(
            "host memory was nearly full when last seen: {} of the cgroup's {}",
            Bytes(host.group),
            Bytes(host.group_limit)
        )
    })
}

/// Where a box says that the script was.
pub fn at(found: &BlackBox) -> String {
    let count = found.count();
    let unit = if found.steps > 0 || found.inferences == 0 {
        "step"
    } else {
        "pass"
    };
    let is_torchs = found.sample.as_ref().is_some_and(|sample| sample.torch);
    match found.phase {
        "between" => format!("after {unit} {count}"),
        // Steps are those of PyTorch's optimizers: without it, none come.
        "" | "setup" | "load" if count == 0 && !is_torchs => "in the script".to_owned(),
        "" | "setup" | "load" if count == 0 => "before the first step".to_owned(),
        phase => format!("{unit} {}, {phase}", count + 1),
    }
}

fn next(ending: &Ending, own: Option<&Record>, outside: &Outside, crashed: bool) -> Vec<Next> {
    let mut next = Vec::new();
    let mut add = |what: &str, command: &str| {
        next.push(Next {
            what: what.to_owned(),
            command: command.to_owned(),
        });
    };
    let killed = own.is_none() && !outside.running;
    let by_kernel = outside.oom_kills.is_some() || !outside.log.is_empty();
    if crashed {
        add(
            "the stacks of all threads at the crash are in stacks.txt; a CUDA error shows at its own line with",
            "CUDA_LAUNCH_BLOCKING=1",
        );
    } else if killed
        && outside
            .status
            .as_deref()
            .is_none_or(|status| status.contains("SIGKILL"))
    {
        if let Some(command) = &outside.scheduler {
            add("what the scheduler says of the job", command);
        }
        if by_kernel {
            add(
                "host memory ran out, not the GPU's: fewer workers of data loaders, no pin_memory, or a larger limit",
                "",
            );
        } else {
            add(
                "whether the kernel killed it for want of host memory",
                "dmesg -T | grep -iE 'out of memory|killed process'",
            );
        }
    }
    if let Some(doing) = ending.doing.as_deref()
        && doing.starts_with("waiting for other ranks")
    {
        add(
            "which rank did not come: let NCCL's flight recorder write what each rank has called",
            "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        );
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::black_box::{About, Sample};

    fn killed_box() -> BlackBox {
        BlackBox {
            about: About::default(),
            steps: 20,
            inferences: 0,
            passes: 21,
            phase: "forward",
            phase_us: 5_000_000,
            recorded: false,
            compiled: false,
            sample: Some(Sample {
                time_us: 4_500_000,
                stack: vec![("/u/job.py".to_owned(), 9, "Net.forward".to_owned())],
                module: String::new(),
                torch: false,
                devices: Vec::new(),
                host: HostHeld {
                    resident: 1,
                    group: 96,
                    group_limit: 100,
                },
            }),
            held: None,
            series: Vec::new(),
            ends: Vec::new(),
            ended: false,
            asked: (0, 0),
        }
    }

    #[test]
    fn a_kill_is_what_its_parent_saw_and_the_kernel_counted() {
        let outside = Outside {
            status: Some("killed by SIGKILL".to_owned()),
            oom_kills: Some((1, "memory.events".to_owned())),
            ..Outside::default()
        };
        let found = ending(&killed_box(), None, &outside);
        assert_eq!(found.how, "killed by SIGKILL");
        assert_eq!(found.at, "step 21, forward");
        assert_eq!(found.place.as_deref(), Some("job.py:9"));
        assert!((found.seen_before - 0.5).abs() < 1e-9);
        assert_eq!(found.evidence.len(), 2, "{:?}", found.evidence);
        assert!(
            found
                .next
                .iter()
                .any(|next| next.what.contains("host memory ran out"))
        );
    }

    #[test]
    fn a_framework_without_steps_is_not_before_its_first() {
        let mut found = killed_box();
        (found.steps, found.passes, found.phase) = (0, 0, "");
        assert_eq!(at(&found), "in the script");
        found.sample = found.sample.map(|sample| Sample {
            torch: true,
            ..sample
        });
        assert_eq!(at(&found), "before the first step");
    }

    #[test]
    fn what_nobody_saw_is_not_made_up() {
        let found = ending(&killed_box(), None, &Outside::default());
        assert!(found.how.starts_with("nothing says how it ended"));
        let outside = Outside {
            stacks: Some("Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File \"/u/x.py\", line 3 in f\n".to_owned()),
            ..Outside::default()
        };
        let found = ending(&killed_box(), None, &outside);
        assert_eq!(found.how, "it crashed: Segmentation fault");
        assert_eq!(found.place.as_deref(), Some("x.py:3"));
        let running = Outside {
            running: true,
            now_us: 9_000_000,
            ..Outside::default()
        };
        let found = ending(&killed_box(), None, &running);
        assert_eq!(found.how, "it is going on; last seen 4.0 s ago");
        assert!(found.next.is_empty() && found.evidence.is_empty());
    }
}
