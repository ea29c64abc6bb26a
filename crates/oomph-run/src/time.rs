//! How long a step of a recorded run takes on a GPU of the catalogue.

use oomph_clock::{Bound, Estimate, Figures, Host};
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
}

/// The time of a step beside this host, or nothing if no whole step was recorded on a virtual GPU.
pub fn step_time(record: &Record, gpu: &Figures, host: &Host) -> Option<StepTime> {
    // The script's own thread prepares batches, here as there.
    let loading = record.facts.loading_ns as f64 / 1e9;
    let host = Host {
        step: host.step + loading,
        pass: host.pass + loading,
        ..host.clone()
    };
    let mut estimate = Estimate::new(&record.work, gpu, &host)?;
    if estimate.bound == Bound::Host && loading > estimate.host_seconds / 2.0 {
        estimate.bound = Bound::Loading;
        estimate.share = loading / estimate.step_seconds;
    }
    let input = record.facts.input;
    let in_a_step = |count: u64| (count > 0).then(|| count as f64 / estimate.step_seconds);
    Some(StepTime {
        samples_per_second: in_a_step(input.batch),
        tokens_per_second: in_a_step(input.batch * input.length),
        estimate,
    })
}
