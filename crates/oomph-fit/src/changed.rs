//! A run of the script as a patch would make it: what is offered as a patch has run within the budget.

use std::time::Instant;

use oomph_bytes::format_bytes;
use oomph_job::settings::Resize;

use crate::attempts::{Attempts, Ended, Ranks, Request};
use crate::found::Found;

/// Runs the script with each text of `texts` (a name and a text) in place of its own, for as many steps as the chosen plan's first run had.
/// `Ok(None)` if it fits, otherwise why it does not, in a clause. An error is that of a run that could not begin, or was stopped.
pub fn misses(
    attempts: &mut dyn Attempts,
    found: &mut Found,
    texts: &[(&str, &str)],
    least_steps: u32,
) -> Vec<anyhow::Result<Option<String>>> {
    let budget = found.fit.gpu.memory_bytes - found.fit.gpu.margin_bytes;
    let steps = found.steps().max(least_steps);
    let request = |&(name, text)| Request {
        name: format!("patch-{name}"),
        purpose: "running the script with the patch".to_owned(),
        best: None,
        levers: &[],
        resize: Resize::default(),
        limit: Some(budget),
        steps,
        fewer: None,
        ranks: Ranks::All,
        gpus: found.fit.gpu.count,
        text: Some(text),
    };
    let requests: Vec<Request> = texts.iter().map(request).collect();
    let started = Instant::now();
    let all = attempts.run_all(&requests);
    found.fit.runs += u32::try_from(all.len()).unwrap_or_default();
    found.fit.run_seconds += started.elapsed().as_secs_f64();
    let why = |ended: Ended| why_it_misses(ended, budget);
    all.into_iter().map(|ended| ended.map(why)).collect()
}

/// Why a script that ended so does not fit, if it does not.
fn why_it_misses(ended: Ended, budget: u64) -> Option<String> {
    let too_much = |used: u64| {
        let (used, budget) = (format_bytes(used), format_bytes(budget));
        format!("with these changes the script needs {used} of {budget}")
    };
    match ended {
        Ended::Through(run) if run.used_bytes() <= budget => None,
        Ended::Through(run) => Some(too_much(run.used_bytes())),
        Ended::OutOfMemory(_) => Some(format!(
            "with these changes the script runs out of {}",
            format_bytes(budget)
        )),
        Ended::Refused { why, .. } | Ended::Failed { why, .. } => {
            Some(format!("with these changes the script fails: {why}"))
        }
    }
}
