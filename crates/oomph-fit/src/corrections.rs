//! What real runs teach: a rehearsal does not know this machine's driver and libraries, a run on it does.

use oomph_run::Record;
use oomph_run::summary::{Peak, Verdict};
use serde::{Deserialize, Serialize};

/// The newest runs of a machine that count.
pub const NEWEST: usize = 5;
/// If others' memory changed by more than this in the course of a run, what lies outside of its allocator is not
/// known.
const OTHERS: u64 = 64 << 20;

/// What a plan promises of a run.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct Planned {
    /// Peak in tensors.
    pub allocated_bytes: u64,
    /// Peak held by PyTorch's allocator.
    pub reserved_bytes: u64,
    /// Peak held by the process.
    pub used_bytes: u64,
}

impl Planned {
    /// Bytes outside of the allocator.
    fn outside_bytes(&self) -> u64 {
        self.used_bytes.saturating_sub(self.reserved_bytes)
    }
}

impl From<Peak> for Planned {
    fn from(peak: Peak) -> Self {
        Self {
            allocated_bytes: peak.allocated_bytes,
            reserved_bytes: peak.reserved_bytes,
            used_bytes: peak.used_bytes,
        }
    }
}

/// What was free on a GPU before a run, and after it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// Before.
    pub before: u64,
    /// After; `None` if nobody looked.
    pub after: Option<u64>,
}

/// What a real run used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RealRun {
    /// The machine and its GPU.
    pub machine: String,
    /// Peak in tensors.
    pub allocated_bytes: u64,
    /// Peak held by PyTorch's allocator.
    pub reserved_bytes: u64,
    /// Bytes outside of the allocator, if that is known.
    pub outside_bytes: Option<u64>,
    /// Peak held by the process; if memory ran out, what it would have taken to go on.
    pub used_bytes: u64,
    /// Whether memory ran out.
    pub out_of_memory: bool,
    /// Median seconds of the newest steps.
    pub step_seconds: Option<f64>,
    /// What was planned for it.
    pub planned: Planned,
}

impl RealRun {
    /// What a record says of a run that was planned; `None` of one that says nothing of memory, because it
    /// failed early or its GPU is not known.
    pub fn of(
        record: &Record,
        verdict: Verdict,
        free: Free,
        planned: Planned,
        machine: &str,
    ) -> Option<Self> {
        let device = record.busiest()?;
        let died = verdict == Verdict::OutOfMemory && record.out_of_memory();
        let out_of_memory = died || record.net_bytes > 0;
        if !out_of_memory && record.steps.max(record.inferences) == 0 {
            return None;
        }
        let others = device.total_bytes.saturating_sub(free.before);
        let still = free
            .after
            .is_some_and(|after| after.abs_diff(free.before) <= OTHERS);
        // The driver tells what all processes hold.
        let outside = still.then(|| device.outside_bytes.saturating_sub(others));
        let mut used = device.peak_reserved_bytes + outside.unwrap_or(planned.outside_bytes());
        if let Some(oom) = record.oom.as_ref().filter(|_| died && still) {
            let held = free.before.saturating_sub(oom.free_bytes);
            used = used.max(held + oom.requested_bytes);
        }
        Some(Self {
            machine: machine.to_owned(),
            allocated_bytes: device.peak_allocated_bytes,
            reserved_bytes: device.peak_reserved_bytes,
            outside_bytes: outside,
            used_bytes: used,
            out_of_memory,
            step_seconds: record.step_seconds(),
            planned,
        })
    }

    /// How much more it needed than was planned: in all, or outside of the allocator alone.
    fn excess_bytes(&self) -> u64 {
        let planned = self.planned;
        let outside = self.outside_bytes.unwrap_or_default();
        let more = self.used_bytes.saturating_sub(planned.used_bytes);
        more.max(outside.saturating_sub(planned.outside_bytes()))
    }
}

/// The newest runs of a machine.
fn of_machine<'a>(runs: &'a [RealRun], machine: &'a str) -> impl Iterator<Item = &'a RealRun> {
    let here = runs.iter().rev().filter(move |run| run.machine == machine);
    here.take(NEWEST)
}

/// Bytes that the next plan must leave free, because runs on this machine needed more than was planned.
pub fn correction(runs: &[RealRun], machine: &str) -> u64 {
    let excess = of_machine(runs, machine).map(RealRun::excess_bytes);
    excess.max().unwrap_or(0)
}

/// The newest run of a machine.
pub fn last<'a>(runs: &'a [RealRun], machine: &'a str) -> Option<&'a RealRun> {
    of_machine(runs, machine).next()
}

/// Adds a run; forgets those of its machine that no longer count.
pub fn add(runs: &mut Vec<RealRun>, run: RealRun) {
    let machine = run.machine.clone();
    runs.push(run);
    let mut extra = runs.iter().filter(|run| run.machine == machine).count();
    runs.retain(|run| {
        let forget = run.machine == machine && extra > NEWEST;
        extra -= usize::from(forget);
        !forget
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn planned() -> Planned {
        Planned {
            allocated_bytes: 900 * MIB,
            reserved_bytes: 1000 * MIB,
            used_bytes: 1300 * MIB,
        }
    }

    /// A run on a GPU of 10000 MiB of which others hold 4000.
    fn record(reserved: u64, outside: u64) -> Record {
        let device = serde_json::json!({
            "index": 0, "name": "GPU", "total_bytes": 10000 * MIB, "used": true,
            "peak_allocated_bytes": 900 * MIB, "peak_reserved_bytes": reserved * MIB,
            "allocated_bytes": 0, "reserved_bytes": 0, "outside_bytes": (outside + 4000) * MIB,
        });
        let mut record = crate::tests::tiny_gpt().record().unwrap().unwrap();
        record.devices = vec![serde_json::from_value(device).unwrap()];
        record.step_ends = vec![0, 100_000, 300_000, 400_000];
        record
    }

    fn seen(record: &Record, after: Option<u64>) -> RealRun {
        let free = Free {
            before: 6000 * MIB,
            after: after.map(|after| after * MIB),
        };
        RealRun::of(record, Verdict::Fits, free, planned(), "a").unwrap()
    }

    #[test]
    fn what_others_hold_is_not_this_runs() {
        let run = seen(&record(1000, 350), Some(6010));
        assert_eq!(run.outside_bytes, Some(350 * MIB));
        assert_eq!(run.used_bytes, 1350 * MIB);
        assert_eq!(run.step_seconds, Some(0.1));
        assert_eq!(correction(&[run], "a"), 50 * MIB);
        // They took more meanwhile, or nobody knows.
        for after in [Some(5000), None] {
            let run = seen(&record(1000, 350), after);
            assert_eq!((run.outside_bytes, run.used_bytes), (None, 1300 * MIB));
            assert_eq!(correction(&[run], "a"), 0);
        }
    }

    #[test]
    fn a_run_that_needed_less_corrects_nothing_but_its_outside_counts() {
        assert_eq!(correction(&[seen(&record(800, 300), Some(6000))], "a"), 0);
        let run = seen(&record(800, 380), Some(6000));
        assert_eq!(run.used_bytes, 1180 * MIB);
        assert_eq!(correction(&[run], "a"), 80 * MIB);
    }

    #[test]
    fn a_run_that_ran_out_of_memory_needed_what_it_was_refused() {
        let mut record = record(5000, 300);
        record.oom = serde_json::from_value(serde_json::json!({
            "device": 0, "requested_bytes": 800 * MIB, "free_bytes": 200 * MIB, "step": 1,
            "phase": "forward", "module": "", "location": "", "raised": true,
        }))
        .unwrap();
        let free = Free {
            before: 6000 * MIB,
            after: Some(6000 * MIB),
        };
        let run = RealRun::of(&record, Verdict::OutOfMemory, free, planned(), "a").unwrap();
        assert!(run.out_of_memory);
        assert_eq!(run.used_bytes, 6600 * MIB);
        // The plan that failed needs more now than there was.
        assert!(planned().used_bytes + correction(&[run], "a") > free.before);
    }

    #[test]
    fn a_run_without_a_step_says_nothing() {
        let mut record = record(1000, 300);
        (record.steps, record.inferences) = (0, 0);
        let free = Free {
            before: 1,
            after: None,
        };
        let run = RealRun::of(&record, Verdict::ScriptFailed, free, planned(), "a");
        assert_eq!(run, None);
    }

    #[test]
    fn the_newest_runs_of_this_machine_count() {
        let mut runs = Vec::new();
        for (machine, outside) in [("a", 900), ("b", 700)].into_iter().chain([("a", 310); 5]) {
            let run = RealRun {
                machine: machine.to_owned(),
                ..seen(&record(1000, outside), Some(6000))
            };
            add(&mut runs, run);
        }
        assert_eq!(runs.len(), 6);
        assert_eq!(correction(&runs, "a"), 10 * MIB);
        assert_eq!(correction(&runs, "b"), 400 * MIB);
        assert_eq!(correction(&runs, "c"), 0);
        assert_eq!(last(&runs, "b").unwrap().outside_bytes, Some(700 * MIB));
        assert_eq!(last(&runs, "c"), None);
    }
}
