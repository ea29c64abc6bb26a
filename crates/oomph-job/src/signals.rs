//! What SIGTERM and SIGHUP do while a script runs: preemption by Slurm or Kubernetes, a closed terminal.
//!
//! The script gets the signal, because its handler may save a checkpoint. The command waits for it, a
//! grace at most, and reports what there is. A second signal ends both at once. While no script runs,
//! signals do what they always do. Ctrl-C is sent to the script by the terminal itself: this process goes on, and reports.

use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::{emulate_default_handler, siginfo::Cause};

/// How long a script may take to end after a signal. Slurm and Kubernetes allow as much before they kill.
pub const GRACE: Duration = Duration::from_secs(30);

/// The first signal that was passed on; 0 without one.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// Whether there was a Ctrl-C that this process survived.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The scripts that run.
static SCRIPTS: Mutex<Vec<Arc<Script>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Script {
    /// Unlike a number, it never becomes another process.
    process: OwnedFd,
    grace: Duration,
}

/// A script's process. While this lives, signals to the command are for it.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    script: Option<Arc<Script>>,
}

/// The name of the signal that ended a script on its way through this command, if one did.
pub fn received() -> Option<&'static str> {
    name(RECEIVED.load(Ordering::Acquire))
}

/// From now on Ctrl-C does not end this process. A script does not inherit that, and ends.
pub fn survive_interrupts() -> io::Result<()> {
    signal_hook::flag::register(SIGINT, INTERRUPTED.clone()).map(drop)
}

/// Whether the user pressed Ctrl-C: then nothing more is started.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Acquire)
}

/// The same, to look at again and again.
pub fn interrupts() -> Arc<AtomicBool> {
    INTERRUPTED.clone()
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
    let mut scripts = scripts();
    let mut child = command.spawn()?;
    if interrupted() {
        // The Ctrl-C may have come just before there was this process.
        child.kill()?;
    }
    let script = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .ok()
        .map(|process| Arc::new(Script { process, grace }));
    scripts.extend(script.clone());
    Ok(Running { child, script })
}

impl Running {
    /// Asks the script to end.
    pub(crate) fn terminate(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::TERM)?)
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(script) = &self.script {
            scripts().retain(|other| !Arc::ptr_eq(other, script));
        }
    }
}

fn scripts() -> MutexGuard<'static, Vec<Arc<Script>>> {
    SCRIPTS.lock().unwrap_or_else(PoisonError::into_inner)
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
    let running = scripts().clone();
    if running.is_empty() {
        let _ = emulate_default_handler(signal);
        return;
    }
    if RECEIVED.swap(signal, Ordering::AcqRel) != 0 {
        kill_all();
        let _ = emulate_default_handler(signal);
        return;
    }
    if !is_sent_to_all && let Some(signal) = Signal::from_named_raw(signal) {
        for script in &running {
            let _ = pidfd_send_signal(&script.process, signal);
        }
    }
    // It ends with this process.
    let _ = std::thread::Builder::new().spawn(move || {
        let grace = running.iter().map(|script| script.grace).max();
        std::thread::sleep(grace.unwrap_or_default());
        let is_there = |now: &Arc<Script>| running.iter().any(|script| Arc::ptr_eq(now, script));
        if scripts().iter().any(is_there) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// One that ends takes nothing from the other, which still gets signals.
    #[test]
    fn scripts_that_run_side_by_side_are_all_known() {
        let start = || spawn(Command::new("sleep").arg("60"), GRACE).unwrap();
        let mut both = [start(), start()];
        let is_known = |running: &Running| {
            let script = running.script.as_ref().unwrap();
            scripts().iter().any(|other| Arc::ptr_eq(other, script))
        };
        assert!(both.iter().all(is_known));
        for running in &mut both {
            running.kill().unwrap();
            running.wait().unwrap();
        }
        let [first, second] = both;
        drop(first);
        assert!(is_known(&second));
    }
}
