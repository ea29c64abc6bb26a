//! What keeps the host busy.

use std::collections::BTreeMap;

use crate::work::{Path, Work};

/// How quick a host is.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Which host this is.
    pub name: String,
    /// How many times as long it takes for everything as the hosts of `bench/time`: virtual machines with 16 cores of a Xeon.
    pub factor: f64,
    /// What each step takes it beside, seconds: batches that the script's own thread prepares before they are copied.
    pub beside: f64,
    /// What levers take of the default host in a step, seconds, between its launches.
    pub levers: f64,
}

/// What takes a host time in the thread of the script (`made`), and in autograd's: seconds. Fitted to when the forward passes,
/// backward passes and optimizers of the jobs of `bench/time` were issued; Python's part is in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Threads {
    pub made: f64,
    pub backward: f64,
}

const fn threads(made: f64, backward: f64) -> Threads {
    Threads {
        made: made * 1e-6,
        backward: backward * 1e-6,
    }
}

/// An operator, beside what it launches.
pub(crate) const OPERATOR: Threads = threads(10.9, 1.9);
/// A node of autograd's: made, and evaluated.
pub(crate) const NODE: Threads = threads(3.1, 7.6);
/// A gradient that is given to its parameter.
pub(crate) const GRADIENT: Threads = threads(0.0, 7.8);
/// A call of a module.
pub(crate) const MODULE: f64 = 0.9e-6;
/// An operator of an optimizer with what it launches, and its part for each gradient: most of them take lists.
pub(crate) const OPTIMIZER: f64 = 10e-6;
pub(crate) const LISTED: f64 = 1.1e-6;
/// Operators of an optimizer that take lists; with more it takes each gradient by itself.
pub(crate) const LISTS: f64 = 13.0;
/// A wait for the GPU, beside the waiting: twice what `synchronize` takes alone, as operators take within steps
/// (`bench/time/results/h200_host.jsonl`).
pub(crate) const WAIT: f64 = 8e-6;
/// What a pass takes beside all that, without a backward pass.
pub(crate) const PASS: f64 = 50e-6;

/// What a step takes beside all that, with so many operators: of the script's own lines between them there are few in a tiny step.
pub(crate) const fn step(operators: f64) -> f64 {
    (200e-6 + 14e-6 * operators).min(820e-6)
}

/// What it takes to launch a piece of work. Convolutions take long, since cuDNN is asked what fits; where channels do not come last
/// they are three launches.
pub(crate) fn launch(work: &Work) -> Threads {
    match work {
        // Groups without a window are convolutions one after the other.
        Work::Convolution {
            last: false,
            groups,
            window: 1.0,
            ..
        } => threads(14.1 * *groups, 31.8 * *groups),
        Work::Convolution { last: false, .. } => threads(14.1, 31.8),
        Work::Convolution { .. } => threads(1.3, 23.5),
        Work::BatchNorm { .. } => threads(19.8, 3.5),
        Work::Attention(_) => threads(15.9, 15.9),
        Work::Product(_) => threads(7.7, 7.7),
        // Once in the backward pass of each direction of a layer, for which cuDNN looks up all matrices; beside its launches and
        // gradients that was 150 to 330 µs on this host (`bench/gpu/results/h200_recurrent_host.jsonl`, at 1.7 times as long).
        Work::Chain(.., what) if what == "gradients of recurrent biases" => threads(200.0, 200.0),
        // What levers send on a stream of its own: nothing waits, and memory is there (`bench/gpu/results/h100_levers_host.jsonl`).
        Work::Copy(_, _, Some(_)) => threads(5.0, 5.0),
        // With its operator twice what a copy to or from the host takes alone, as `WAIT`.
        Work::Copy(Path::Pinned | Path::Pageable, ..) => threads(11.0, 11.0),
        Work::Copy(..) => threads(37.0, 37.0),
        _ => threads(7.6, 4.6),
    }
}

/// Seconds of the small steps of `oomph calibrate` on the host that the coefficients are of
/// (`bench/time/results/h100_again_calibration.jsonl`, the median of nine).
const CALIBRATED: [(&str, f64); 9] = [
    ("linear", 2.92e-3),
    ("blocks", 6.34e-3),
    ("convolutions", 4.42e-3),
    ("cast", 7.33e-3),
    ("scaled", 4.04e-3),
    ("operators", 2.75e-3),
    ("list", 6.20e-3),
    ("loop", 3.30e-3),
    ("distilled", 3.39e-3),
];

/// How many times as long a usual server takes: the median of 15 virtual machines beside an H100 or H200 that were calibrated from
/// 2026-11-26 to 28, which took 1.0 to 1.9 times as long (`bench/time/README.md`).
pub const USUAL: f64 = 1.4;

impl Default for Host {
    /// The hosts of `bench/time`.
    fn default() -> Self {
        Self::slower(
            "the server that the clocks are fitted beside".to_owned(),
            1.0,
        )
    }
}

impl Host {
    /// How many times as long the default host one takes that was calibrated: the median over the small steps, of which
    /// `seconds` has those that were measured. Nothing if it has none of them.
    pub fn factor(seconds: &BTreeMap<String, f64>) -> Option<f64> {
        let mut factors: Vec<f64> = CALIBRATED
            .iter()
            .filter_map(|(name, own)| Some(seconds.get(*name)? / own))
            .filter(|factor| factor.is_finite() && *factor > 0.0)
            .collect();
        factors.sort_by(f64::total_cmp);
        factors.get(factors.len() / 2).copied()
    }

    /// What is assumed of a host that was not measured.
    pub fn usual() -> Self {
        Self::slower(
            "a server with 16 cores beside an H100 or H200".to_owned(),
            USUAL,
        )
    }

    /// The default host if everything took it `factor` times as long.
    pub const fn slower(name: String, factor: f64) -> Self {
        Self {
            name,
            factor,
            beside: 0.0,
            levers: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tiny_step_has_little_of_the_script_beside_its_operators() {
        assert!((step(20.0) - 480e-6).abs() < 1e-12);
        assert!((step(44.3) / step(1000.0) - 1.0).abs() < 0.01);
    }

    /// `loss.item()` takes 11 to 15 µs alone where `add` takes 9: within a step it was priced at 78, where that took 19.
    #[test]
    fn a_number_that_is_read_costs_less_than_two_operators_with_kernels() {
        let read = OPERATOR.made + launch(&Work::Copy(Path::Pageable, 4.0, None)).made + WAIT;
        let add = OPERATOR.made + launch(&Work::Moving(4.0, String::new())).made;
        assert!(read > add && read < 2.0 * add);
    }

    #[test]
    fn a_calibrated_host_is_slower_by_the_median() {
        let mut seconds: BTreeMap<String, f64> = CALIBRATED
            .iter()
            .map(|&(name, own)| (name.to_owned(), 2.0 * own))
            .collect();
        // One model that was disturbed changes nothing.
        seconds.insert("linear".to_owned(), 1.0);
        assert!((Host::factor(&seconds).unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(Host::factor(&BTreeMap::new()), None);
    }
}
