//! What to say where nothing fits: the least possible, what holds it there, which GPUs would do,
//! and which smaller jobs would fit.

use oomph_plan::model::Model;
use oomph_plan::search::Base;
use oomph_report::fit::{Fit, Variant as Smaller};

use crate::commands::fit::{Fitter, gpus_that_hold, predicted};
use crate::planning::Ended;
use oomph_job::settings::Variant;

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
    // Each run teaches how far predictions of its levers hold: the next may be another plan.
    let mut known = u64::MAX;
    let missed = std::mem::take(&mut fitter.missed).into_iter();
    if let Some((mut least, held)) = missed.min_by_key(|(plan, _)| plan.peak.used_bytes) {
        known = least.peak.used_bytes;
        least.verified = true;
        levers.clone_from(&least.levers);
        result.held_by = held;
        result.least = Some(least);
    }
    for _ in 0..TRIES {
        let Some(least) = fitter.search(bases).least.filter(|plan| plan.used < known) else {
            break;
        };
        fitter.options.failed.push(least.levers.clone());
        if let Some(mut measured) = fitter.verify(&least, false)? {
            if measured.peak.used_bytes < known {
                known = measured.peak.used_bytes;
                measured.verified = true;
                levers.clone_from(&measured.levers);
                result.least = Some(measured);
                result.held_by = std::mem::take(&mut fitter.held);
            }
        } else if known == u64::MAX {
            result.least = Some(predicted(&least));
        }
    }
    let whole = gpus_that_hold(result.plain.used_bytes, margin, true);
    if let Some(least) = &result.least {
        // A plan is of use only on GPUs that are cheaper than those that need none.
        result.gpus = gpus_that_hold(least.peak.used_bytes, margin, false)
            .into_iter()
            .take_while(|gpu| whole.first().is_none_or(|first| first.id != gpu.id))
            .take(GPUS)
            .collect();
    }
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
    let Some(model) = bases.first().map(|base| &base.model) else {
        return Ok(());
    };
    let mut families = true;
    for (index, (what, variant)) in candidates(model).into_iter().enumerate() {
        if variant.member.is_some() && !families {
            continue;
        }
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
        let Ended::Through(run) = ended else {
            // The script's own code knows the sizes of its model: there is no such relative.
            continue;
        };
        let became = &run.record.became;
        let is_relative =
            variant.width.is_some() || variant.separable.is_some() || variant.member.is_some();
        if is_relative && became.is_empty() {
            families &= variant.member.is_none();
            continue;
        }
        let what = if variant.member.is_some() {
            format!("{}, smaller of the same family", became.join(" and "))
        } else {
            what
        };
        let used = run.peak().used_bytes;
        if (result.least.as_ref()).is_some_and(|least| used >= least.peak.used_bytes) {
            continue;
        }
        // Rows of blocks too short to be cut further are the same job again.
        if variant.layers.is_some() && result.variants.iter().any(|other| other.used_bytes == used)
        {
            continue;
        }
        result.variants.push(Smaller {
            what: if levers.is_empty() {
                what
            } else {
                format!("{what}, with that plan")
            },
            used_bytes: used,
            fits: used <= fitter.workshop.budget,
        });
    }
    Ok(())
}

/// What could be tried, in words and as the run is asked for it.
fn candidates(model: &Model) -> Vec<(String, Variant)> {
    let plain = Variant::default();
    let mut found = Vec::new();
    if oomph_plan::units::repeated(model).len() >= 4 {
        for (share, words) in [(0.5, "half"), (0.25, "a quarter of")] {
            let layers = Some(share);
            found.push((
                format!("{words} the repeated blocks"),
                Variant { layers, ..plain },
            ));
        }
    }
    let width = Some(0.5);
    found.push(("layers half as wide".to_owned(), Variant { width, ..plain }));
    if model.modules.iter().any(|module| module.kind == "Conv2d") {
        found.push((
            "convolutions of each channel, then across channels".to_owned(),
            Variant {
                separable: Some(true),
                ..plain
            },
        ));
    }
    for (steps, words) in [(1, "the next"), (2, "the next but one")] {
        found.push((
            format!("{words} smaller model of the family"),
            Variant {
                member: Some(steps),
                ..plain
            },
        ));
    }
    let batch = model.batch;
    if batch >= 4 {
        found.push((
            format!("batches of {} instead of {batch}", batch / 4),
            Variant {
                batch: Some(batch / 4),
                ..plain
            },
        ));
    }
    found
}
