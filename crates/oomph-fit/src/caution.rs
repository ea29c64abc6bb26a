//! How far below the budget a plan should be predicted, as long as none is verified: a search that ends with a slow plan beats one
//! that ends with plans that nearly fitted.

use crate::fitter::FEW_RUNS;

/// How many times what was predicted a plan may need, once there is reason for caution at all.
const CAREFUL: f64 = 1.1;
/// The most that one run makes of it: beyond, hardly a plan would be left.
const MOST: f64 = 1.5;

/// By how much plans exceeded their predictions.
#[derive(Debug, Default)]
pub(crate) struct Caution {
    /// The worst of what plans needed, over what was predicted; zero before any did.
    worst: f64,
    /// Plans that should have fitted and did not.
    misses: u32,
}

impl Caution {
    /// Learns of a plan that was predicted to fit and needs so many times as much.
    pub(crate) fn missed(&mut self, times: f64) {
        self.misses += 1;
        self.worst = self.worst.max(times.min(MOST));
    }

    /// How many times what was predicted a plan should be allowed to need. `runs_left`: how many runs there is time for, if that is limited.
    pub(crate) fn factor(&self, runs_left: Option<f64>) -> f64 {
        let few = runs_left.is_some_and(|runs| runs < FEW_RUNS);
        let least = if few || self.misses > 1 { CAREFUL } else { 1.0 };
        self.worst.max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caution_grows_by_misses_and_as_time_runs_out() {
        let mut caution = Caution::default();
        let percent = |caution: &Caution, left| (caution.factor(left) * 100.0).round() as u32;
        assert_eq!(
            [None, Some(9.0), Some(2.5)].map(|left| percent(&caution, left)),
            [100, 100, 110]
        );
        caution.missed(1.02);
        assert_eq!(percent(&caution, None), 102);
        caution.missed(1.01);
        assert_eq!(percent(&caution, None), 110);
        caution.missed(1.24);
        assert_eq!(percent(&caution, Some(1.0)), 124);
        caution.missed(9.0);
        assert_eq!(percent(&caution, None), 150);
    }
}
