//! What long work is doing, on a terminal: a spinner, the phase, and the seconds so far.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Shows work on stderr if it is a terminal.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    shown: bool,
}

/// Shown until it is dropped.
#[derive(Debug)]
pub struct Shown {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Quiet on request, or if stderr is not a terminal.
    pub fn new(quiet: bool) -> Self {
        Self {
            shown: !quiet && std::io::stderr().is_terminal(),
        }
    }

    /// Begins to show `what`.
    pub fn begin(self, what: &str) -> Shown {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = self.shown.then(|| {
            let (what, stop) = (what.to_owned(), Arc::clone(&stop));
            std::thread::spawn(move || spin(&what, &stop))
        });
        Shown { stop, thread }
    }
}

fn spin(what: &str, stop: &AtomicBool) {
    const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
    const EACH: Duration = Duration::from_millis(100);
    let started = Instant::now();
    for frame in FRAMES.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let seconds = started.elapsed().as_secs();
        eprint!("\r\x1b[2K{frame} {what} … {seconds} s");
        let _ = std::io::stderr().flush();
        std::thread::sleep(EACH);
    }
    eprint!("\r\x1b[2K");
    let _ = std::io::stderr().flush();
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
