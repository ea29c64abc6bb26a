//! The runs of a search, as a terminal shows them.

use oomph_fit::{Attempts, Ended, Request, ScriptAttempts};
use oomph_plan::Stop;

use crate::progress::{Progress, Shown};

/// Attempts that the terminal shows.
pub(crate) struct Watched {
    pub(crate) attempts: ScriptAttempts,
    progress: Progress,
    shown: Option<Shown>,
}

impl Watched {
    pub(crate) fn new(attempts: ScriptAttempts, quiet: bool) -> Self {
        Self {
            attempts,
            progress: Progress::new(quiet),
            shown: None,
        }
    }

    /// No run is going on any more.
    pub(crate) fn wipe(&mut self) {
        self.shown = None;
    }

    fn show(&mut self, doing: &str, best: Option<&str>) {
        // One line at a time.
        self.shown = None;
        let best = best.map(|best| format!("best {best}"));
        self.shown = Some(self.progress.begin(doing, &best.unwrap_or_default()));
    }
}

impl Attempts for Watched {
    fn run(&mut self, request: &Request) -> anyhow::Result<Ended> {
        self.show(&request.purpose, request.best.as_deref());
        self.attempts.run(request)
    }

    fn keep_pace(&mut self, slower: f64) {
        self.attempts.keep_pace(slower);
    }

    fn stop_by(&mut self, stop: &Stop) {
        self.attempts.stop_by(stop);
    }

    fn at_once(&self) -> usize {
        self.attempts.at_once()
    }

    fn run_all(&mut self, requests: &[Request]) -> Vec<anyhow::Result<Ended>> {
        if let Some(first) = requests.first() {
            let doing = match requests.len() - 1 {
                0 => first.purpose.clone(),
                others => format!("{} (and {others} more)", first.purpose),
            };
            self.show(&doing, first.best.as_deref());
        }
        self.attempts.run_all(requests)
    }

    fn planning(&mut self, best: Option<&str>) {
        self.show("planning", best);
    }
}
