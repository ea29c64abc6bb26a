//! What long work is doing, on a terminal: a spinner, the phase, and the seconds so far.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use oomph_job::{StatusLine, shows_status};

/// Shows work on stderr if it is a terminal.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    shown: bool,
}

/// Shown until it is dropped.
#[derive(Debug)]
pub struct Shown {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Quiet on request, or if stderr is not a terminal.
    pub fn new(quiet: bool) -> Self {
        Self {
            shown: !quiet && shows_status(),
        }
    }

    /// Begins to show `doing`, and `more` about it.
    pub fn begin(self, doing: &str, more: &str) -> Shown {
        let over = Arc::default();
        let spinning = self.shown.then(|| {
            let (doing, more, over) = (doing.to_owned(), more.to_owned(), Arc::clone(&over));
            std::thread::Builder::new().spawn(move || spin(&doing, &more, &over))
        });
        let thread = spinning.and_then(Result::ok);
        Shown { over, thread }
    }
}

fn spin(doing: &str, more: &str, (over, ended): &(Mutex<bool>, Condvar)) {
    const EACH: Duration = Duration::from_millis(100);
    let mut line = StatusLine::default();
    let mut over = over.lock().unwrap_or_else(PoisonError::into_inner);
    while !*over {
        line.draw(doing, more);
        over = ended
            .wait_timeout(over, EACH)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    line.wipe();
}

impl Drop for Shown {
    fn drop(&mut self) {
        let (over, ended) = &*self.over;
        *over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        ended.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
