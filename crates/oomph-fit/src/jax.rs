//! Scripts that use JAX: nothing predicts what XLA makes of a setting, so each is a run.

use oomph_bytes::format_bytes;
use oomph_plan::result::{Fit, Outcome, PlanResult, Rejected, Tried};
use oomph_plan::{Lever, Results, for_jax};
use oomph_run::record::Framework;

use crate::attempts::{Ended, Measurement, Request};
use crate::fitter::Fitter;

/// Whether a run was one of JAX.
pub(crate) fn is_jax(run: &Measurement) -> bool {
    (run.record.framework.as_ref()).is_some_and(Framework::is_jax)
}

/// Tries settings until one fits.
pub(crate) fn find(
    fitter: &mut Fitter<'_>,
    plain: &Measurement,
    through: bool,
    fit: &mut Fit,
) -> anyhow::Result<()> {
    let budget = fitter.options.budget;
    fit.framework.clone_from(&plain.record.framework);
    if through && plain.used_bytes() <= budget {
        return Ok(());
    }
    fit.outcome = Outcome::Open;
    let total = fitter.wanted.total_bytes.max(1);
    // What the driver gave outside of the pool, it gives again.
    let outside = plain.used_bytes().saturating_sub(plain.reserved_bytes());
    let thousandths = (budget.saturating_sub(outside) as f64 / total as f64 * 1000.0) as u32;
    let mut last = None;
    for (number, lever) in (1..).zip(for_jax(thousandths)) {
        let what = lever.to_string();
        let levers = [lever];
        let ended = fitter.run(&Request {
            limit: Some(budget),
            ..fitter.request(
                format!("setting-{number}"),
                format!("trying {what}"),
                &levers,
            )
        })?;
        let why = match ended {
            Ended::Through(run) if run.used_bytes() <= budget => {
                fit.tried.push(tried(&what, plain, &run));
                fit.plans = vec![plan(levers.to_vec(), what, plain, &run)];
                fit.chosen = Some(0);
                fit.outcome = Outcome::Fits;
                fit.why = String::from("the first setting that fits, of those that cost least");
                return Ok(());
            }
            Ended::Through(run) => format!("needs {}", format_bytes(run.used_bytes())),
            Ended::OutOfMemory(run) => {
                let why = ran_out(&run);
                last = Some(run);
                why
            }
            Ended::Refused { why, .. } | Ended::Failed { why, .. } => why,
        };
        fit.rejected.push(Rejected { lever: what, why });
    }
    if let Some(framework) = last.and_then(|run| run.record.framework) {
        // What the tightest program has left to save.
        fit.framework = Some(framework);
    }
    fit.outcome = Outcome::NothingFits;
    Ok(())
}

/// What a run that ran out of memory asked for.
pub(crate) fn ran_out(run: &Measurement) -> String {
    let asked = run
        .summary
        .oom
        .as_ref()
        .map_or(0, |oom| oom.requested_bytes);
    let in_use = format_bytes(run.summary.peak.allocated_bytes);
    match asked {
        0 => format!("XLA found no memory to try kernels in, with up to {in_use} in use"),
        asked => format!(
            "asked for {}, with up to {in_use} in use",
            format_bytes(asked)
        ),
    }
}

/// How much longer the largest program takes, by the bytes that it reads and writes.
fn ratio(plain: &Measurement, run: &Measurement) -> f64 {
    let moved = |of: &Measurement| of.record.framework.as_ref().map_or(0, |it| it.moved_bytes);
    match (moved(plain), moved(run)) {
        (0, _) | (_, 0) => f64::NAN,
        (before, now) => now as f64 / before as f64,
    }
}

fn tried(what: &str, plain: &Measurement, run: &Measurement) -> Tried {
    Tried {
        what: what.to_owned(),
        used_bytes: run.used_bytes(),
        time_ratio: ratio(plain, run),
    }
}

fn plan(levers: Vec<Lever>, what: String, plain: &Measurement, run: &Measurement) -> PlanResult {
    let ratio = ratio(plain, run);
    PlanResult {
        same_results: levers.first().map_or(Results::Exact, Lever::results),
        levers,
        what,
        peak: run.summary.peak,
        on_whole_gpu: None,
        predicted: run.summary.peak,
        time_ratio: ratio,
        predicted_time_ratio: ratio,
        verified: true,
        switches: std::collections::BTreeMap::new(),
        steps: 0,
        notes: vec![
            "the time is the ratio of the bytes that XLA counts, without the allocator's"
                .to_owned(),
        ],
    }
}
