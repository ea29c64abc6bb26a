//! Notices that a job hangs, and writes what it is doing.
//!
//! It lives in the command: it needs nothing of the script's process, which may hold the interpreter's lock for ever. What it
//! asks of that process is a signal, at which Python's `faulthandler` writes the stacks of all threads.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use oomph_run::black_box::{ASKED_AT, BlackBox};
use oomph_run::ending::at;
use oomph_run::stacks;
use oomph_run::stall::{Seen, Stall, seconds};
use rustix::process::{Pid, Signal};

use crate::run_directory::{RunDirectory, RunFile};

/// Nobody else uses it, and the recorder makes Python write its stacks at it.
const SIGNAL: Signal = Signal::STKFLT;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// How long the process may take to write its stacks.
const WRITING: Duration = Duration::from_millis(500);

/// Stacks are not written to a file of more bytes: a job may hang again and again.
const MOST_STACKS: u64 = 4 << 20;

/// Watches the processes of a run while it lives.
#[derive(Debug)]
pub(crate) struct Watchdog {
    lines: Receiver<String>,
    _ended: Sender<()>,
}

impl Watchdog {
    /// Watches the run of `directory` and its ranks. `after` is the limit, if the user says it.
    pub(crate) fn start(directory: &RunDirectory, after: Option<Duration>) -> Option<Self> {
        let (say, lines) = channel();
        let (ended, until) = channel::<()>();
        let directory = directory.clone();
        let watch = move || {
            let mut watched: Vec<(String, Stall)> = Vec::new();
            let mut looked = Instant::now();
            while let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = until.recv_timeout(LOOK) {
                // A machine, or a whole job, that was stopped for a while has not hung.
                let passed = looked.elapsed().min(LOOK * 2);
                looked = Instant::now();
                for (name, place) in places(&directory) {
                    let known = watched.iter().position(|(other, _)| *other == name);
                    let index = known.unwrap_or_else(|| {
                        watched.push((name.clone(), Stall::new(after)));
                        watched.len() - 1
                    });
                    let (Some(found), Some((_, stall))) =
                        (place.black_box(), watched.get_mut(index))
                    else {
                        continue;
                    };
                    let line = match stall.look(&found, passed, !name.is_empty()) {
                        Seen::Nothing => continue,
                        Seen::GoesOn(silent) => {
                            format!("passes begin again, after {}", seconds(silent))
                        }
                        Seen::Stalled { silent, compared } => {
                            stalled(&place, &found, silent, &compared)
                        }
                    };
                    let of_rank = if name.is_empty() {
                        String::new()
                    } else {
                        format!("{name}: ")
                    };
                    if say.send(format!("oomph: {of_rank}{line}")).is_err() {
                        return;
                    }
                }
            }
        };
        std::thread::Builder::new().spawn(watch).ok()?;
        Some(Self {
            lines,
            _ended: ended,
        })
    }

    /// What is to be said, if there is something.
    pub(crate) fn line(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }
}

/// The directories of the processes of a run: its own, or its ranks'.
fn places(directory: &RunDirectory) -> Vec<(String, RunDirectory)> {
    let mut found = directory.ranks();
    found.retain(|(name, _)| !name.starts_with("process-"));
    if directory.has(RunFile::BlackBox) {
        found.push((String::new(), directory.clone()));
    }
    found
}

fn stalled(place: &RunDirectory, found: &BlackBox, silent: Duration, compared: &str) -> String {
    let at = at(found);
    let stacks = write_stacks(
        place,
        found,
        &format!("no pass began for {}: {at}", seconds(silent)),
    );
    let frames = stacks
        .as_deref()
        .map(stacks::main_thread)
        .unwrap_or_default();
    let doing = match (stacks::doing(&frames), stacks::place(&frames)) {
        (Some(doing), Some(place)) => format!("; it is {doing} ({place})"),
        (Some(doing), None) => format!("; it is {doing}"),
        (None, Some(place)) => format!("; its main thread is at {place}"),
        (None, None) => String::new(),
    };
    let file = if stacks.is_some() {
        format!(
            ". Stacks of all threads: {}",
            place.file(RunFile::Stacks).display()
        )
    } else {
        String::new()
    };
    format!(
        "no pass began for {}, {compared}: {at}{doing}. The job goes on{file}",
        seconds(silent)
    )
}

/// Makes the process write its stacks, and what its allocator holds; the stacks.
fn write_stacks(place: &RunDirectory, found: &BlackBox, why: &str) -> Option<String> {
    let path = place.file(RunFile::Stacks);
    let before = fs::metadata(&path).ok()?.len();
    let process = found.about.process;
    let is_ours = found.about.signal == SIGNAL.as_raw();
    if before > MOST_STACKS || !is_ours || !has_handler(process, SIGNAL.as_raw()) {
        return None;
    }
    let mut file = fs::OpenOptions::new()
        .append(true)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(&path)
        .ok()?;
    writeln!(file, "{}{why}", stacks::HEADING).ok()?;
    // The snapshot needs the interpreter's lock. The thread that has it may never give it back.
    if let Ok(black_box) = fs::OpenOptions::new()
        .write(true)
        .open(place.file(RunFile::BlackBox))
    {
        let _ = black_box.write_all_at(&(found.asked.0 + 1).to_le_bytes(), ASKED_AT);
    }
    rustix::process::kill_process(Pid::from_raw(process as i32)?, SIGNAL).ok()?;
    std::thread::sleep(WRITING);
    place.stacks()
}

/// Whether a process has a handler for a signal, which would end it otherwise.
fn has_handler(process: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
