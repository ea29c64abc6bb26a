//! Counts for the recorder how long this process keeps the GPU busy.
//!
//! The recorder reads the counters after each operator, so they are plain memory under one symbol:
//! `uint64_t oomph_vgpu_busy[3]`, all of them only ever growing:
//!
//! 0. nanoseconds of work, on whatever stream, by the estimates of [`crate::clock`];
//! 1. nanoseconds that the same work would take with 32-bit values held in 16 bits;
//! 2. launches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::LAUNCH;

/// The counters.
#[unsafe(no_mangle)]
pub static oomph_vgpu_busy: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Counts one launch.
pub fn add(time: Duration, halved: Duration) {
    let counts = [nanoseconds(time), nanoseconds(halved), 1];
    for (counter, count) in oomph_vgpu_busy.iter().zip(counts) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// Counts a copy, which takes the same in any type.
pub fn add_copy(time: Duration) {
    add(time, time);
}

/// The time of a launch that moves half as much.
pub fn halved(time: Duration) -> Duration {
    let moving = time.saturating_sub(LAUNCH);
    time.saturating_sub(moving / 2)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_bytes_take_half_the_time_but_the_launch() {
        let long = LAUNCH + Duration::from_micros(100);
        assert_eq!(halved(long), LAUNCH + Duration::from_micros(50));
        assert_eq!(halved(LAUNCH), LAUNCH);
        assert_eq!(halved(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn counters_grow() {
        let before: Vec<u64> = read();
        add(Duration::from_nanos(5), Duration::from_nanos(3));
        let grown: Vec<u64> = read()
            .iter()
            .zip(before)
            .map(|(now, then)| now - then)
            .collect();
        // Other tests launch too.
        assert!(grown[0] >= 5 && grown[1] >= 3 && grown[2] >= 1);
    }

    fn read() -> Vec<u64> {
        oomph_vgpu_busy
            .iter()
            .map(|counter| counter.load(Ordering::Relaxed))
            .collect()
    }
}
