//! When to give up: a search ends early on request, or at a point in time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Says when to give up. Clones share the request.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// Set by whatever takes the user's wish to end.
    pub interrupted: Arc<AtomicBool>,
    /// The end of the time that may be spent.
    pub deadline: Option<Instant>,
}

/// Why a search ended before it was through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, thiserror::Error, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// The user asked for it.
    #[error("interrupted")]
    Interrupted,
    /// The time was up.
    #[error("the time of --max-time was up")]
    MaxTime,
}

impl Stop {
    /// Stops by itself after `most`.
    #[must_use]
    pub fn after(most: Option<Duration>) -> Self {
        Self {
            deadline: most.and_then(|most| Instant::now().checked_add(most)),
            ..Self::default()
        }
    }

    /// The time that is left; `None` without an end.
    pub fn left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Fails once there is a reason to stop.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Stopped::Interrupted);
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(Stopped::MaxTime),
            _ => Ok(()),
        }
    }
}
