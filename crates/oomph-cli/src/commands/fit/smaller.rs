//! What to say where nothing fits: the least possible, what holds it there, which GPUs would do,
//! and which smaller jobs would fit.

use oomph_plan::search::Base;
use oomph_report::fit::{Fit, Variant as Smaller};

use crate::commands::fit::{Fitter, gpus_that_hold, predicted};
use crate::job::Variant;
use crate::planning::Ended;

/// GPUs to name of each kind.
const GPUS: usize = 2;

/// Fills in the advice.
pub(crate) fn advise(fitter: &mut Fitter, bases: &[Base], result: &mut Fit) -> anyhow::Result<()> {
    /// Plans of least memory that are tried before the prediction is shown instead.
    const TRIES: u32 = 3;
    let mut margin = 0.0;
    if result.gpu.memory_bytes > 0 {
        margin = result.gpu.margin_bytes as f64 / result.gpu.memory_bytes as f64;
    }
    let mut levers = Vec::new();
    for _ in 0..TRIES {
        let Some(least) = fitter.search(bases).least else {
            break;
        };
        if let Some(mut measured) = fitter.verify(&least, false)? {
            measured.verified = true;
            levers.clone_from(&measured.levers);
            result.least = Some(measured);
            result.held_by = std::mem::take(&mut fitter.held);
            break;
        }
        result.least = Some(predicted(&least));
        fitter.options.failed.push(least.levers);
    }
    if let Some(least) = &result.least {
        let used = least.peak.used_bytes;
        result.gpus = gpus_that_hold(used, margin, false)
            .into_iter()
            .take(GPUS)
            .collect();
    }
    let whole = gpus_that_hold(result.plain.used_bytes, margin, true);
    result.gpus.extend(whole.into_iter().take(GPUS));
    variants(fitter, bases, &levers, result)
}

/// Smaller jobs, each run once with the plan of least memory.
fn variants(
    fitter: &mut Fitter,
    bases: &[Base],
    levers: &[oomph_plan::Lever],
    result: &mut Fit,
) -> anyhow::Result<()> {
    let blocks = bases
        .first()
        .map_or(0, |base| oomph_plan::units::repeated(&base.model).len());
    let batch = bases.first().map_or(0, |base| base.model.batch);
    let mut tried: Vec<(String, Variant)> = Vec::new();
    if blocks >= 4 {
        for (share, words) in [(0.5, "half"), (0.25, "a quarter of")] {
            tried.push((
                format!("{words} the repeated blocks, with that plan"),
                Variant {
                    layers: Some(share),
                    ..Variant::default()
                },
            ));
        }
    }
    if batch >= 4 {
        tried.push((
            format!(
                "batches of {} instead of {batch}, with that plan",
                batch / 4
            ),
            Variant {
                batch: Some(batch / 4),
                ..Variant::default()
            },
        ));
    }
    for (index, (what, variant)) in tried.into_iter().enumerate() {
        // Micro-batches of a smaller batch may be smaller than a sample.
        let levers: Vec<oomph_plan::Lever> = levers
            .iter()
            .filter(|lever| variant.batch.is_none() || lever.name() != "micro_batch")
            .cloned()
            .collect();
        let ended = fitter.workshop.run(
            &format!("variant-{}", index + 1),
            &format!("measuring: {what}"),
            &levers,
            variant,
            None,
        )?;
        if let Ended::Through(run) = ended {
            let used = run.peak().used_bytes;
            result.variants.push(Smaller {
                what,
                used_bytes: used,
                fits: used <= fitter.workshop.budget,
            });
        }
    }
    Ok(())
}
