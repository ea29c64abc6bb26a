//! Which of the plans that fit is wanted.

use oomph_plan::{Results, search};

use oomph_plan::result::PlanResult;

/// Plans that save this share of the plain job's time, or of memory, are worth another run. Each that was run since one holds
/// doubles it: what is left to gain gets less, and people wait.
const WORTH: f64 = 0.02;

/// Which of the plans that fit is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The fastest that keeps results, exactly or to rounding; without one, the fastest.
    SameResults,
    /// The fastest that keeps results to the bit.
    Exact,
    /// The fastest at all.
    Fastest,
    /// The one that needs the least memory.
    LeastMemory,
}

impl Goal {
    /// The weakest promise about results that it accepts.
    pub(crate) fn results(self) -> Results {
        match self {
            Self::SameResults => Results::Rounding,
            Self::Exact => Results::Exact,
            Self::Fastest | Self::LeastMemory => Results::Numerics,
        }
    }

    /// What it takes the least of: `cost`, or the bytes that are used.
    pub(crate) fn of(self, cost: f64, used: u64) -> f64 {
        if self == Self::LeastMemory {
            used as f64
        } else {
            cost
        }
    }

    /// The same of a plan.
    fn of_plan(self, plan: &PlanResult) -> f64 {
        let cost = search::cost(plan.time_ratio, &plan.levers, plan.same_results);
        self.of(cost, plan.peak.used_bytes)
    }

    /// The least that it has of `plans`, those with a weaker promise apart; infinite if there are none.
    pub(crate) fn least(self, plans: &[PlanResult]) -> f64 {
        plans
            .iter()
            .filter(|plan| plan.same_results <= self.results())
            .map(|plan| self.of_plan(plan))
            .fold(f64::INFINITY, f64::min)
    }

    /// How good another plan must be to be worth a run, given `known`, if so many were run since one holds.
    pub(crate) fn worth(self, known: f64, since: u32) -> f64 {
        let worth = WORTH * f64::from(2_u32.saturating_pow(since));
        if self == Self::LeastMemory {
            known * (1.0 - worth)
        } else {
            known - worth
        }
    }

    /// The one of `plans` that was asked for, or what comes nearest.
    pub(crate) fn choose(self, plans: &[PlanResult]) -> Option<&PlanResult> {
        [self, Self::SameResults, Self::Fastest]
            .into_iter()
            .find_map(|goal| {
                plans
                    .iter()
                    .filter(|plan| plan.same_results <= goal.results())
                    .min_by(|a, b| goal.of_plan(a).total_cmp(&goal.of_plan(b)))
            })
    }

    /// Why a plan was chosen.
    pub(crate) fn why(self, plan: &PlanResult) -> String {
        let missed = self == Self::Exact && plan.same_results > Results::Exact;
        match (self, plan.same_results) {
            (Self::LeastMemory, _) => "least memory, as requested",
            (Self::Fastest, Results::Numerics) => "least slowdown, as requested",
            _ if missed => "least slowdown; no plan that keeps results exactly was found to fit",
            (_, Results::Exact) => "least slowdown that keeps results exactly",
            (_, Results::Rounding) => "least slowdown that keeps results to rounding",
            (_, Results::Numerics) => "least slowdown; no plan that keeps results was found to fit",
        }
        .to_owned()
    }
}
