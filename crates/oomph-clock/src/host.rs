//! What keeps the host busy.

use std::collections::BTreeMap;

/// Seconds that each thing takes a host.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Which host these are of.
    pub name: String,
    /// An operator of the script's thread, Python's part included.
    pub operator: f64,
    /// A node of autograd's: made in the forward pass, and evaluated in the backward pass with its operators.
    pub node: f64,
    /// A launch.
    pub launch: f64,
    /// A call of a module in a step that has a backward pass, with the views and functions of Python's that its code has.
    pub module: f64,
    /// The same in a pass that has none.
    pub module_alone: f64,
    /// A wait for the GPU, beside the waiting.
    pub wait: f64,
    /// What a step takes beside all that: most of it the optimizer's.
    pub step: f64,
    /// The same of a pass without a backward pass.
    pub pass: f64,
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

impl Default for Host {
    /// The hosts of `bench/time`: virtual machines with 16 cores of a Xeon beside an H100 and an H200.
    fn default() -> Self {
        Self {
            name: "a server with 16 cores beside an H100 or H200".to_owned(),
            operator: 9.1e-6,
            node: 12.4e-6,
            launch: 5.6e-6,
            module: 16.5e-6,
            module_alone: 2.3e-6,
            wait: 30e-6,
            step: 1190e-6,
            pass: 50e-6,
        }
    }
}

impl Host {
    /// How many times as long as the default host one takes that was calibrated: the median over the small steps, of which
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

    /// The default host if everything took it `factor` times as long.
    pub fn slower(name: String, factor: f64) -> Self {
        let own = Self::default();
        Self {
            name,
            operator: own.operator * factor,
            node: own.node * factor,
            launch: own.launch * factor,
            module: own.module * factor,
            module_alone: own.module_alone * factor,
            wait: own.wait * factor,
            step: own.step * factor,
            pass: own.pass * factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibrated_host_is_slower_by_the_median() {
        let mut seconds: BTreeMap<String, f64> = CALIBRATED
            .iter()
            .map(|&(name, own)| (name.to_owned(), 2.0 * own))
            .collect();
        // One model that was disturbed changes nothing.
        seconds.insert("linear".to_owned(), 1.0);
        let factor = Host::factor(&seconds).unwrap();
        assert!((factor - 2.0).abs() < 1e-9);
        let host = Host::slower("here".to_owned(), factor);
        assert!((host.launch / Host::default().launch - 2.0).abs() < 1e-9);
        assert_eq!(Host::factor(&BTreeMap::new()), None);
    }
}
