//! A run of the job as the search asks for it, and what came of it.

use std::ops::Range;
use std::path::PathBuf;

use oomph_clock::{Estimate, Host};
use oomph_job::RunDirectory;
use oomph_job::settings::{Fewer, Resize};
use oomph_plan::draft::{Load, Pace};
use oomph_plan::search::HostTime;
use oomph_plan::sharding::USUAL_HOST;
use oomph_plan::{Lever, Stop};
use oomph_run::Record;
use oomph_run::summary::Summary;
use oomph_trace::{Action, Category, Trace};

use crate::wanted::Clock;

/// Runs the job that is planned for.
pub trait Attempts {
    /// Runs it once. An error ends the search.
    fn run(&mut self, request: &Request) -> anyhow::Result<Ended>;

    /// How many runs may go on side by side.
    fn at_once(&self) -> usize {
        1
    }

    /// Runs it once for each request, side by side; no more than [`at_once`](Self::at_once).
    fn run_all(&mut self, requests: &[Request]) -> Vec<anyhow::Result<Ended>> {
        requests.iter().map(|request| self.run(request)).collect()
    }

    /// Is told how many times as long kernels take as the virtual GPU's clock says: later runs have them so.
    fn keep_pace(&mut self, _slower: f64) {}

    /// Is told when to give up runs from now on.
    fn stop_by(&mut self, _stop: &Stop) {}

    /// Is told that no run is going on while plans are compared.
    fn planning(&mut self, _best: Option<&str>) {}
}

/// What is asked of a run.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The name of the directory that keeps its record.
    pub name: String,
    /// What it is for, as a terminal shows it.
    pub purpose: String,
    /// The best plan so far, as a terminal shows it.
    pub best: Option<String>,
    /// What is changed in the script.
    pub levers: &'a [Lever],
    /// How the job is made smaller or larger.
    pub resize: Resize,
    /// The bytes that are enforced as the GPU's memory; `None` for no limit.
    pub limit: Option<u64>,
    /// Optimizer steps, or passes of a job that infers.
    pub steps: u32,
    /// When fewer of them are enough.
    pub fewer: Option<Fewer>,
    /// Which ranks are run, where a lever shares the job.
    pub ranks: Ranks,
    /// GPUs that the script sees, where no lever shares the job.
    pub gpus: u32,
    /// What runs in place of the script's text.
    pub text: Option<&'a str>,
}

/// Which ranks of a shared job are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranks {
    /// All of them, or some that stand for the others where there are too many.
    All,
    /// The first, as for a prediction.
    First,
}

/// How a run ended.
#[derive(Debug)]
pub enum Ended {
    /// It completed.
    Through(Box<Measurement>),
    /// It ran out of memory.
    OutOfMemory(Box<Measurement>),
    /// A lever cannot be applied to this script.
    Refused {
        /// Its name.
        lever: Option<String>,
        /// The modules of the plan that it is about, if not all.
        modules: Vec<String>,
        /// Another one, without which it could be.
        beside: Option<String>,
        /// Why, and how to make the change by hand.
        why: String,
    },
    /// The script failed.
    Failed {
        /// The lever that failed, if one did.
        lever: Option<String>,
        /// The error, in a line.
        why: String,
        /// What the script printed.
        log: PathBuf,
    },
}

/// What a run measured.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// Its record.
    pub record: Record,
    /// Its memory history.
    pub trace: Option<Trace>,
    /// What both come to.
    pub summary: Summary,
    /// Where they lie.
    pub directory: RunDirectory,
    /// Each rank and what it used at its peak, in bytes, where there were several.
    pub ranks: Vec<(u32, u64)>,
    /// Whether those ranks were named ones of more, the others being absent.
    pub rehearsed: bool,
}

/// Nanoseconds that emptying the cache takes beside what is given back: the GPU is waited for.
const RETRY_NS: f64 = 1e6;
/// Nanoseconds for each byte that the allocator gives back to the driver and gets again: beside an H200 unmapping, making
/// and mapping 20 MiB take 140 µs (`bench/gpu/results/h200_net_facts.jsonl`).
const RETURNED_NS: f64 = 140e3 / (20 << 20) as f64;

impl Measurement {
    /// Bytes that the process used at its peak.
    pub fn used_bytes(&self) -> u64 {
        self.summary.peak.used_bytes
    }

    /// Whether the script was ended before it had taken so many steps.
    pub fn ended_before(&self, steps: u32) -> bool {
        self.record.stopped && self.record.steps < steps
    }

    /// Bytes that the allocator held at its peak.
    pub fn reserved_bytes(&self) -> u64 {
        self.summary.peak.reserved_bytes
    }

    /// Bytes that the process needs if the allocator caches nothing at the peak, and nothing is work space there: where memory is
    /// short, PyTorch takes ways to convolve that need less of it. Levers that look at samples in the first step (`looks`) look at
    /// fewer then: the other steps tell.
    pub fn least_bytes(&self, looks: bool) -> u64 {
        let peak = &self.summary.peak;
        let outside = peak.used_bytes.saturating_sub(peak.reserved_bytes);
        let work_space = self.summary.by_category.get(Category::Workspace.name());
        let least =
            (peak.allocated_bytes + outside).saturating_sub(work_space.copied().unwrap_or(0));
        let steps = self.summary.steps.iter();
        if !looks || !steps.clone().any(|step| step.step > 1) {
            return least;
        }
        let others = steps.filter(|step| step.step != 1);
        let most = others.map(|step| step.peak_allocated_bytes).max();
        least.min(most.unwrap_or_default() + outside)
    }

    /// How often a step has to empty the cache to continue.
    pub fn retries_a_step(&self) -> f64 {
        let retries: u64 = self
            .record
            .devices
            .iter()
            .map(|device| device.retries)
            .sum();
        retries as f64 / f64::from(self.record.steps.max(1))
    }

    /// Bytes that a step gives back to the driver and gets again, once the allocator has settled.
    fn returned_a_step(&self) -> f64 {
        self.trace
            .as_ref()
            .map_or(0.0, |trace| returned_a_step(trace, self.record.steps))
    }

    /// Nanoseconds of a usual step: the virtual clock's, which knows what waits for copies, or what the host and the GPU take by
    /// `clock` (by launches and calls without one), whichever is longer; and what giving memory back takes.
    pub fn step_time(&self, pace: &Pace, host: HostTime, clock: Option<&Clock>) -> Option<f64> {
        let load = self.load(host)?;
        let emptied = self.retries_a_step() * RETRY_NS + self.returned_a_step() * RETURNED_NS;
        let played = clock.and_then(|clock| {
            let here = Host {
                beside: host.alone_ns / 1e9,
                levers: host.beside_ns / 1e9,
                ..clock.host.clone()
            };
            let time = Estimate::new(&self.record.work, &clock.gpu, &here)?;
            // What goes between GPUs hides behind kernels, as the virtual clock has it.
            Some((time.step_seconds - time.communication_seconds) * 1e9)
        });
        let played = played.unwrap_or_else(|| load.host(pace) + host.alone_ns);
        Some(load.busy.max(played) + emptied)
    }

    /// The work of a usual step: the median by the virtual clock, the lower one of two.
    pub(crate) fn load(&self, host: HostTime) -> Option<Load> {
        let calls = self.record.clock_calls.windows(2);
        let steps = self.record.clock.windows(2).zip(calls);
        let mut loads: Vec<Load> = steps
            .filter_map(|(ends, calls)| {
                let (&[before, end], &[calls_before, calls]) = (ends, calls) else {
                    return None;
                };
                Some(Load {
                    busy: end.1.saturating_sub(before.1) as f64,
                    launches: end.2.saturating_sub(before.2) as f64,
                    calls: calls.saturating_sub(calls_before) as f64,
                    lever: host.beside_ns,
                })
            })
            .collect();
        loads.sort_by(|a, b| a.busy.total_cmp(&b.busy));
        loads.get(loads.len().checked_sub(1)? / 2).copied()
    }

    /// A lever that had no effect, and why.
    pub fn idle_lever(&self) -> Option<(String, String)> {
        let mut levers = self.record.levers.iter();
        let idle = levers.find(|lever| lever.applied == 0)?;
        let why = idle.note.clone();
        Some((
            idle.name.clone(),
            why.unwrap_or_else(|| "it had no effect on this script".to_owned()),
        ))
    }
}

/// Bytes that a step gives back to the driver and gets again: of the second half of the history, by half the steps. What a framework gives
/// back when it is done with training is not got again.
fn returned_a_step(trace: &Trace, steps: u32) -> f64 {
    let (mut returned, mut got) = (0, 0);
    for device in &trace.devices {
        let Range { start, end } = device.rows;
        for row in start + (end - start) / 2..end {
            let bytes = trace.events.size(row).0;
            match trace.events.action(row) {
                Action::SegmentFree | Action::SegmentUnmap => returned += bytes,
                Action::SegmentAlloc | Action::SegmentMap => got += bytes,
                _ => {}
            }
        }
    }
    returned.min(got) as f64 / (f64::from(steps.max(1)) / 2.0)
}

/// GPUs of a host where `gpus` were named: as many, as far as a host has so many.
pub(crate) fn per_host(gpus: u32) -> u32 {
    gpus.clamp(1, USUAL_HOST)
}

#[cfg(test)]
mod tests {
    use oomph_trace::{Bytes, DeviceRows, Event};

    use super::*;

    #[test]
    fn what_each_step_gives_back_counts_and_what_the_setup_and_the_end_give_back_does_not() {
        let mut trace = Trace::default();
        let mut push = |action, size| {
            trace.events.push(Event {
                action,
                size: Bytes(size),
                ..Event::default()
            });
        };
        push(Action::SegmentFree, 1 << 40);
        for action in [Action::SegmentUnmap, Action::SegmentFree] {
            for _ in 0..2 {
                push(Action::SegmentMap, 300);
                push(action, 300);
                push(Action::Alloc, 10);
            }
        }
        push(Action::SegmentFree, 1 << 40);
        let rows = 0..trace.events.len();
        trace.devices.push(DeviceRows { device: 0, rows });
        assert!((returned_a_step(&trace, 4) - 300.0).abs() < 1e-9);
        assert!(returned_a_step(&Trace::default(), 4).abs() < 1e-9);
    }
}
