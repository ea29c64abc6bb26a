//! Whether a job hangs: no pass has begun for many times the usual step.

use std::time::Duration;

use crate::black_box::BlackBox;

/// A pass may take this many times the usual step to come.
pub const MULTIPLE: u32 = 20;

/// It may take this long, however short steps are: evaluations and checkpoints lie between steps.
pub const LEAST: Duration = Duration::from_mins(1);

/// While no usual step is known: what is first imported, loaded, compiled and made.
pub const FIRST: Duration = Duration::from_mins(10);

/// So many times the limit may pass while memory is still being allocated: something computes that is not seen as a pass.
const ALLOCATING: u32 = 10;

/// Watches one process.
#[derive(Debug, Default)]
pub struct Stall {
    after: Option<Duration>,
    passes: i64,
    count: u32,
    allocations: u64,
    silent: Duration,
    idle: Duration,
    said: bool,
}

/// What a look at a process shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It goes on, or it was said already that it does not.
    Nothing,
    /// No pass has begun for `silent`.
    Stalled {
        /// How long.
        silent: Duration,
        /// What this is compared with, in words.
        compared: String,
    },
    /// Passes begin again, after this time.
    GoesOn(Duration),
}

impl Stall {
    /// `after` is the limit, if the user says it.
    pub fn new(after: Option<Duration>) -> Self {
        Self {
            after,
            ..Self::default()
        }
    }

    /// Looks at the box of the process, `elapsed` after the look before. `must_use` says whether the process is one that
    /// has not used a GPU only because it has not come so far.
    pub fn look(&mut self, found: &BlackBox, elapsed: Duration, must_use: bool) -> Seen {
        let (passes, count) = (found.passes, found.count());
        let allocations = found.allocations();
        if allocations != self.allocations {
            (self.allocations, self.idle) = (allocations, Duration::ZERO);
        }
        if passes != self.passes || count != self.count {
            (self.passes, self.count) = (passes, count);
            let silent = std::mem::take(&mut self.silent);
            self.idle = Duration::ZERO;
            return if std::mem::take(&mut self.said) {
                Seen::GoesOn(silent)
            } else {
                Seen::Nothing
            };
        }
        self.silent += elapsed;
        self.idle += elapsed;
        let used = passes > 0 || allocations > 0 || must_use;
        let (limit, compared) = self.limit(found);
        let over = self.idle >= limit || self.silent >= limit * ALLOCATING;
        if self.said || found.ended || !used || !over {
            return Seen::Nothing;
        }
        self.said = true;
        Seen::Stalled {
            silent: self.silent,
            compared,
        }
    }

    fn limit(&self, found: &BlackBox) -> (Duration, String) {
        let usual = found
            .usual_us()
            .and_then(|usual| u64::try_from(usual).ok())
            .map(Duration::from_micros);
        let first = || "no four steps have ended yet".to_owned();
        let Some(usual) = usual else {
            return (self.after.unwrap_or(FIRST).max(FIRST), first());
        };
        let limit = self.after.unwrap_or_else(|| LEAST.max(usual * MULTIPLE));
        let times = self.silent.as_secs_f64() / usual.as_secs_f64().max(1e-6);
        (
            limit,
            format!("{times:.0} times the usual step of {}", seconds(usual)),
        )
    }
}

/// A time in words.
pub fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..0.1 => format!("{:.1} ms", seconds * 1e3),
        0.1..10.0 => format!("{seconds:.1} s"),
        10.0..120.0 => format!("{seconds:.0} s"),
        120.0..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::black_box::{About, DeviceHeld, Sample};

    fn at(passes: i64, steps: u32, step_us: i64, allocations: u64) -> BlackBox {
        BlackBox {
            about: About::default(),
            steps,
            inferences: 0,
            passes,
            phase: "forward",
            phase_us: 0,
            recorded: false,
            compiled: false,
            sample: Some(Sample {
                devices: vec![DeviceHeld {
                    allocations,
                    ..DeviceHeld::default()
                }],
                ..Sample::default()
            }),
            held: None,
            series: Vec::new(),
            ends: (1..=i64::from(steps.min(64)))
                .map(|n| n * step_us)
                .collect(),
            ended: false,
            asked: (0, 0),
        }
    }

    /// Looks once a second at the same box; the second in which it was said.
    fn said_after(stall: &mut Stall, found: impl Fn(u32) -> BlackBox, most: u32) -> Option<u32> {
        let second = Duration::from_secs(1);
        (0..most).find(|n| matches!(stall.look(&found(*n), second, false), Seen::Stalled { .. }))
    }

    #[test]
    fn a_pass_may_take_twenty_usual_steps_and_a_minute() {
        let short = |_| at(50, 50, 100_000, 9);
        assert_eq!(said_after(&mut Stall::new(None), short, 500), Some(60));
        let long = |_| at(50, 50, 30_000_000, 9);
        assert_eq!(said_after(&mut Stall::new(None), long, 5000), Some(600));
        let own = Some(Duration::from_secs(5));
        assert_eq!(said_after(&mut Stall::new(own), short, 500), Some(5));
    }

    #[test]
    fn first_steps_may_take_ten_minutes() {
        let found = |_| at(2, 1, 100_000, 9);
        for after in [None, Some(Duration::from_secs(5))] {
            assert_eq!(said_after(&mut Stall::new(after), found, 5000), Some(600));
        }
        // A script that uses no GPU may do what it wants.
        assert_eq!(
            said_after(&mut Stall::new(None), |_| at(0, 0, 1, 0), 5000),
            None
        );
    }

    #[test]
    fn what_allocates_goes_on_for_longer() {
        let found = |n| at(50, 50, 100_000, u64::from(n));
        assert_eq!(said_after(&mut Stall::new(None), found, 5000), Some(600));
    }

    #[test]
    fn it_is_said_once_and_that_it_goes_on() {
        let mut stall = Stall::new(Some(Duration::from_secs(3)));
        let found = at(50, 50, 100_000, 9);
        assert_eq!(said_after(&mut stall, |_| found.clone(), 10), Some(3));
        assert_eq!(said_after(&mut stall, |_| found.clone(), 50), None);
        let next = at(51, 50, 100_000, 9);
        let seen = stall.look(&next, Duration::from_secs(1), false);
        assert!(matches!(seen, Seen::GoesOn(silent) if silent.as_secs() > 50));
        assert_eq!(said_after(&mut stall, |_| next.clone(), 10), Some(2));
    }
}
