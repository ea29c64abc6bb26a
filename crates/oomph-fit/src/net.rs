//! The net under a plan: what finds no room on the GPU lies in host memory. It makes any job fit, at the price of the link, so it comes
//! last; and time is kept back for it, so that a search that finds nothing else ends with a plan.

use oomph_plan::Lever;
use oomph_plan::parameters::Net;
use oomph_plan::search::{self, Base};

use crate::attempts::Ended;
use crate::fitter::{Fitter, SLOWER};

/// Its time is a rough estimate: what it is to replace must take so many times longer.
const SURE: f64 = 2.0;
/// What runs out of memory although its peak is no more than the budget lacks at least this part of that.
const LEAST: u64 = 32;

impl Fitter<'_> {
    /// Ends the search for other plans early enough to run the job once more.
    pub(crate) fn leave_time_for_the_net(&mut self) {
        if !self.may_use_the_net() {
            return;
        }
        self.keep_back(self.net_seconds());
    }

    /// What its run may take without further steps.
    fn net_seconds(&self) -> f64 {
        self.plain_seconds * SLOWER
    }

    /// The library serves the first GPU of a process.
    fn may_use_the_net(&self) -> bool {
        let net = Lever::from(Net { host_bytes: 0 });
        self.wanted.gpu.count == 1 && self.options.permits(&net)
    }

    /// Verifies the plan with the net that is expected to take the least time, of all that were measured, unless another plan is known that
    /// is as good.
    pub(crate) fn attempt_net(&mut self, bases: &[Base]) -> anyhow::Result<()> {
        let Some(without) = self.best_for_the_net(bases) else {
            return Ok(());
        };
        let plan = self.with_the_net(&without, self.missing(&without));
        if plan.cost() * SURE > self.wanted.goal.least(&self.verified) {
            return Ok(());
        }
        let name = self.next_name();
        let mut request = self.limited(&plan, &name, true, true);
        if let (Some(fewer), Some(left)) = (&mut request.fewer, self.options.stop.left()) {
            fewer.seconds = (left.as_secs_f64() - self.net_seconds()).max(0.0) / 2.0;
        }
        let ended = self.run(&request)?;
        if matches!(ended, Ended::OutOfMemory(_)) {
            self.note("net", "it ran out of memory all the same");
            return Ok(());
        }
        let Some(run) = self.went_through(&plan, ended) else {
            return Ok(());
        };
        // The record counts what libraries take when the GPU is full as pushed out to the host.
        let (used, on_host) = (run.used_bytes(), run.record.net_bytes);
        if used <= self.options.budget && on_host <= run.reserved_bytes() {
            let plan = self.with_the_net(&without, on_host);
            let mut held = self.measured(&plan, &run, true);
            // The allocator counts what lies on the host, too.
            let peak = &mut held.peak;
            peak.reserved_bytes -= on_host;
            peak.allocated_bytes = peak.allocated_bytes.min(peak.reserved_bytes);
            self.verified.push(held);
        }
        Ok(())
    }

    /// What takes the least time with the net, of the runs without a limit and the plans that need too much.
    fn best_for_the_net(&self, bases: &[Base]) -> Option<search::Plan> {
        let plain = bases.first().filter(|_| self.may_use_the_net())?;
        let results = self.wanted.goal.results();
        let measured = bases
            .iter()
            .map(|base| search::predict(base, plain, &[], &self.options));
        let cost = |plan: &search::Plan| self.with_the_net(plan, self.missing(plan)).cost();
        measured
            .chain(self.too_large.iter().cloned())
            .filter(|plan| plan.results <= results)
            .min_by(|a, b| cost(a).total_cmp(&cost(b)))
    }

    /// Bytes that a plan needs beyond the budget.
    fn missing(&self, plan: &search::Plan) -> u64 {
        let budget = self.options.budget;
        plan.used.saturating_sub(budget).max(budget / LEAST)
    }

    /// The same plan with so many bytes on the host.
    fn with_the_net(&self, plan: &search::Plan, host_bytes: u64) -> search::Plan {
        let net = Net { host_bytes };
        let more = net.step_ns(&self.options.pace);
        let outside = plan.used.saturating_sub(plan.reserved);
        let mut plan = plan.clone();
        plan.used = self.options.budget;
        plan.reserved = plan.used.saturating_sub(outside);
        plan.allocated = plan.allocated.min(plan.reserved);
        plan.waits += more;
        if self.plain_time > 0.0 {
            plan.time_ratio += more / self.plain_time;
        }
        let net = Lever::from(net);
        plan.levers
            .retain(|lever| net.goes_with(std::slice::from_ref(lever)));
        plan.assumptions.extend(net.unknown().map(str::to_owned));
        plan.levers.push(net);
        plan
    }
}
