//! How long a step of a recorded run takes on a GPU of the catalogue.

use std::collections::HashMap;

use oomph_clock::{Bound, Estimate, Factors, Figures, Host, Part, RealSteps};
use serde::Serialize;

use crate::Record;

/// The time of a step, and what follows from it.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct StepTime {
    /// The clocks' estimate.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Samples a second, where the batch is known.
    pub samples_per_second: Option<f64>,
    /// Tokens a second, where the model takes sequences of integers.
    pub tokens_per_second: Option<f64>,
    /// Of the host's work, what it takes to prepare batches in the script's own thread.
    pub input_seconds: f64,
    /// What each module's work of each kind takes the GPU in each phase, the most first; the smallest are left out. Of a run alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// Parts that are kept.
const PARTS: usize = 1000;

/// The time of a step beside this host, or nothing if no whole step was recorded on a virtual GPU.
pub fn step_time(record: &Record, gpu: &Figures, host: &Host) -> Option<StepTime> {
    let loading = record.facts.loading_ns as f64 / 1e9;
    let host = loading_too(record, host.clone());
    let mut estimate = Estimate::new(&record.work, gpu, &host)?;
    if estimate.bound == Bound::Host && loading > estimate.host_seconds / 2.0 {
        estimate.bound = Bound::Loading;
        estimate.share = loading / estimate.step_seconds;
    }
    let input = record.facts.input;
    // Gradients may be accumulated over several batches. One may have been fetched ahead.
    let steps = u64::from(record.steps.max(record.inferences));
    let batches = (record.facts.batches / steps.max(1)).max(1);
    let in_a_step =
        |count: u64| (count > 0).then(|| (count * batches) as f64 / estimate.step_seconds);
    Some(StepTime {
        samples_per_second: in_a_step(input.batch),
        tokens_per_second: in_a_step(input.batch * input.length),
        estimate,
        input_seconds: loading,
        parts: Vec::new(),
    })
}

impl StepTime {
    /// With what the parts of a step take.
    #[must_use]
    pub fn with_parts(mut self, record: &Record, gpu: &Figures, host: &Host) -> Self {
        let host = loading_too(record, host.clone());
        self.parts = oomph_clock::parts(&record.work, gpu, &host);
        self.parts.truncate(PARTS);
        self
    }
}

/// Puts what the clocks say of a virtual run in place of what its virtual clock said: for the work of each scope, and for steps,
/// in which streams run side by side as they did. Changes nothing where no whole step was recorded. Returns how many times as long
/// the clocks say that it takes.
pub fn reprice(record: &mut Record, gpu: &Figures) -> f64 {
    let steps = u64::from(record.steps.max(record.inferences));
    // What the first step does besides is not each step's.
    let first = u32::from(record.steps > 1);
    let counted = (steps - u64::from(first).min(steps)) as f64;
    let mut priced: HashMap<(String, String), f64> = HashMap::new();
    // The virtual clock's times of scopes have the copies that run beside kernels in them, too.
    for part in oomph_clock::parts_and_copies(&record.work, gpu, &Host::default()) {
        *priced.entry((part.phase, part.module)).or_default() += part.seconds * 1e9;
    }
    let mut before: HashMap<(&str, &str), f64> = HashMap::new();
    for ((phase, module, _, step), times) in record.scopes.iter().zip(&record.scope_times) {
        if phase != "setup" && *step >= first {
            *before.entry((phase, module)).or_default() += times[0] as f64 / counted;
        }
    }
    let [all, all_before]: [f64; 2] = [priced.values().sum(), before.values().sum()];
    if !(all > 0.0 && all_before > 0.0 && counted > 0.0) {
        return 1.0;
    }
    let factor = all / all_before;
    let factors: Vec<f64> = record
        .scopes
        .iter()
        .map(|(phase, module, _, _)| {
            let was = before.get(&(phase.as_str(), module.as_str()));
            let is = priced.get(&(phase.clone(), module.clone()));
            match (was, is) {
                (Some(was), Some(is)) if *was > 0.0 => (is / was).clamp(0.1, 10.0),
                _ => factor,
            }
        })
        .collect();
    for (times, factor) in record.scope_times.iter_mut().zip(factors) {
        times[0] = (times[0] as f64 * factor) as u64;
        times[1] = (times[1] as f64 * factor) as u64;
    }
    let began = record.clock.first().map_or(0, |step| step.1);
    for (_, end, _) in &mut record.clock {
        *end = began + (end.saturating_sub(began) as f64 * factor) as u64;
    }
    factor
}

/// The host with what the script's own thread takes to prepare batches, here as there.
fn loading_too(record: &Record, host: Host) -> Host {
    Host {
        beside: host.beside + record.facts.loading_ns as f64 / 1e9,
        ..host
    }
}

/// How many times as long this machine takes as the clocks say, by a real run and a virtual one of the same job. `known` is what
/// was known of its host. Nothing if the real run was too short to wait for its GPU after some steps, or its steps differ.
pub fn learned(rehearsed: &Record, real: &Record, gpu: &Figures, known: f64) -> Option<Factors> {
    let middle = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = real.paced.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let real = RealSteps {
        whole: middle(|step| step.0)?,
        issued: middle(|step| step.1)?,
    };
    let host = |factor| loading_too(rehearsed, Host::slower(String::new(), factor));
    oomph_clock::factors(&rehearsed.work, gpu, &host, known, real)
}
