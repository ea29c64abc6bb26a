//! What SIGTERM and SIGHUP do while a script runs: preemption by Slurm or Kubernetes, a closed terminal.
//!
//! The script gets the signal, because its handler may save a checkpoint. The command waits for it, a
//! grace at most, and reports what there is. A second signal ends both at once. While no script runs,
//! signals do what they always do. (Ctrl-C is sent to the script by the terminal itself.)

use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::{emulate_default_handler, siginfo::Cause};

/// How long a script may take to end after a signal. Slurm and Kubernetes allow as much before they kill.
pub const GRACE: Duration = Duration::from_secs(30);

/// The first signal that was passed on; 0 without one.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// The script that runs.
static SCRIPT: Mutex<Option<Arc<Script>>> = Mutex::new(None);

#[derive(Debug)]
struct Script {
    /// Unlike a number, it never becomes another process.
    process: OwnedFd,
    grace: Duration,
}

/// A script's process. While this lives, signals to the command are for it.
#[derive(Debug)]
pub(crate) struct Running(Child);

/// The name of the signal that ended a script on its way through this command, if one did.
pub fn received() -> Option<&'static str> {
    name(RECEIVED.load(Ordering::Acquire))
}

fn name(signal: i32) -> Option<&'static str> {
    match signal {
        SIGTERM => Some("SIGTERM"),
        SIGHUP => Some("SIGHUP"),
        _ => None,
    }
}

/// Starts a script.
pub(crate) fn spawn(command: &mut Command, grace: Duration) -> io::Result<Running> {
    static WATCH: OnceLock<()> = OnceLock::new();
    if WATCH.get().is_none() {
        watch()?;
        let _ = WATCH.set(());
    }
    // Until the script is known, signals wait.
    let mut script = script();
    let child = command.spawn()?;
    let process = Pid::from_child(&child);
    *script = pidfd_open(process, PidfdFlags::empty())
        .ok()
        .map(|process| Arc::new(Script { process, grace }));
    Ok(Running(child))
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *script() = None;
    }
}

fn script() -> MutexGuard<'static, Option<Arc<Script>>> {
    SCRIPT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch() -> io::Result<()> {
    let wanted = [SIGTERM, SIGHUP];
    let wanted = wanted.into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = SignalsInfo::<WithOrigin>::new(wanted)?;
    let act = move || {
        for found in &mut signals {
            // The system itself sends to the whole process group when a terminal is closed.
            pass_on(found.signal, matches!(found.cause, Cause::Kernel));
        }
    };
    std::thread::Builder::new().spawn(act).map(drop)
}

/// Whether a signal was to be ignored when this process started, as under `nohup`.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn pass_on(signal: i32, is_sent_to_all: bool) {
    let running = script().clone();
    let Some(running) = running else {
        let _ = emulate_default_handler(signal);
        return;
    };
    if RECEIVED.swap(signal, Ordering::AcqRel) != 0 {
        kill_all();
        let _ = emulate_default_handler(signal);
        return;
    }
    if !is_sent_to_all && let Some(signal) = Signal::from_named_raw(signal) {
        let _ = pidfd_send_signal(&running.process, signal);
    }
    // It ends with this process.
    let _ = std::thread::Builder::new().spawn(move || {
        std::thread::sleep(running.grace);
        // Sending nothing finds out whether it is still there.
        if script()
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(now, &running))
        {
            kill_all();
        }
    });
}

/// Kills the script and everything that it started.
fn kill_all() {
    kill_below(std::process::id());
}

/// Kills all processes below one.
pub(crate) fn kill_below(process: u32) {
    for process in descendants(process) {
        if let Some(id) = Pid::from_raw(process as i32) {
            let _ = kill_process(id, Signal::KILL);
        }
    }
}

/// All processes below one.
fn descendants(process: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = vec![process];
    while let Some(process) = open.pop() {
        let tasks = fs::read_dir(format!("/proc/{process}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|id| id.parse().ok()) {
                found.push(child);
                open.push(child);
            }
        }
    }
    found
}
