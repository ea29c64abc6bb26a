//! `net`: what finds no room on the GPU lies in host memory, which the GPU reads and writes at the same addresses.
//!
//! For any job, without a look at what it computes; so it is what is left where nothing else makes a job fit. The search puts it on top
//! of plans that came near. Memory: all that is too much goes to the host. Time: kernels read and write that over the link, again
//! and again. Results: exact.

use serde::{Deserialize, Serialize};

use oomph_allocator::Config;
use oomph_bytes::format_bytes;

use crate::by_hand::Script;
use crate::draft::Pace;
use crate::lever::{Facets, Results, Stage};
use crate::levers::Lever;
use crate::sharding::Sharing;

/// How often a step reads or writes a byte that lies outside, at the rate of the link: 1.2 to 5.8 in 26 runs of eleven jobs that train, on
/// an H200, by the time that their steps took once the net had learned; 8 to 15 in three of one that infers (`bench/gpu/results/h200_net_twelve.jsonl`,
/// `h200_net_twelve_more.jsonl`, `h200_net_steady.jsonl`). This is the median.
const TIMES_A_STEP: f64 = 3.5;

/// The net of `oomph run --net`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Net {
    /// Bytes that are expected to lie in host memory at the peak; it takes more where more are too much.
    pub host_bytes: u64,
}

impl Net {
    /// Nanoseconds that a step takes longer while so much lies outside.
    pub fn step_ns(&self, pace: &Pace) -> f64 {
        TIMES_A_STEP * self.host_bytes as f64 / pace.link_bytes_per_s * 1e9
    }
}

impl Facets for Net {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        let bytes = format_bytes(self.host_bytes);
        format!("the net: {bytes} in host memory (the time of its copies is estimated)")
    }

    fn stage() -> Stage {
        Stage::Asked
    }

    /// The allocator's other ways take memory where the net does not stand.
    fn goes_with(&self, others: &[Lever]) -> bool {
        let usual = Config::default();
        others.iter().all(|other| {
            let mut config = usual.clone();
            other.facets().configure(&mut config);
            config == usual
        })
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn unknown(&self) -> Option<&'static str> {
        Some(
            "how long steps take with part of the memory on the host is a rough estimate, of steps from the 25th on: a third to seven times as long has been measured; those before, from which the net learns, took 2 to 36 times as long as without it",
        )
    }

    fn needs_launcher(&self) -> bool {
        true
    }

    fn is_only_on_gpu(&self) -> bool {
        true
    }

    fn snippet(&self) -> String {
        "no line of the script changes: start it with oomph run --net".to_owned()
    }

    fn line(&self, _script: &Script<'_>) -> Option<usize> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_takes_the_time_of_the_link() {
        let pace = Pace {
            link_bytes_per_s: 50e9,
            ..Pace::default()
        };
        let net = Net {
            host_bytes: 500_000_000,
        };
        assert!((net.step_ns(&pace) - TIMES_A_STEP * 1e7).abs() < 1.0);
        let allocator: Lever =
            serde_json::from_str(r#"{"name": "allocator", "conf": "expandable_segments:True"}"#)
                .unwrap();
        assert!(!net.goes_with(&[allocator]));
        assert!(net.goes_with(&[]));
    }
}
