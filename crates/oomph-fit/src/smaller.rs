//! The advice if nothing fits: the lowest peak and what holds it, which GPUs would be enough,
//! and which smaller jobs would fit.

use oomph_gpus::Gpu;
use oomph_job::settings::Resize;
use oomph_plan::Lever;
use oomph_plan::model::Model;
use oomph_plan::search::Base;

use crate::attempts::{Ended, Request};
use crate::fitter::Fitter;
use crate::verify::predicted;
use oomph_plan::result::{Alternative, Fit, SmallerJob};

/// The most GPUs to name of each kind.
const GPUS: usize = 2;

/// Fills in the advice.
pub(crate) fn advise(fitter: &mut Fitter, bases: &[Base], fit: &mut Fit) -> anyhow::Result<()> {
    /// The most plans of least memory to try before showing the prediction instead.
    const TRIES: u32 = 3;
    let mut tries = TRIES;
    let mut levers = Vec::new();
    // Each run corrects the predictions of its levers, so the next may be another plan.
    let mut known = u64::MAX;
    if let Some(missed) = fitter.missed.take() {
        let mut least = missed.plan;
        known = least.peak.used_bytes;
        least.verified = true;
        levers.clone_from(&least.levers);
        fit.held_by = missed.held;
        fit.floor = missed.floor;
        fit.least = Some(least);
        // The search tried them.
        tries = 1;
    }
    for _ in 0..tries {
        let Some(least) = fitter.search(bases)?.least.filter(|plan| plan.used < known) else {
            break;
        };
        fitter.options.failed.push(least.levers.clone());
        if let Some(mut measured) = fitter.verify(&least, false)? {
            if measured.peak.used_bytes < known {
                known = measured.peak.used_bytes;
                measured.verified = true;
                levers.clone_from(&measured.levers);
                fit.least = Some(measured);
                fit.held_by = std::mem::take(&mut fitter.held);
                fit.floor = fitter.floor.take();
            }
        } else if known == u64::MAX {
            fit.least = Some(predicted(&least));
        }
    }
    name_gpus(fit);
    if fitter.wanted.variants {
        smaller_jobs(fitter, bases, &levers, fit)?;
    }
    Ok(())
}

/// GPUs that would be enough, for the plan of least memory or for the job as it is.
pub(crate) fn name_gpus(fit: &mut Fit) {
    let mut margin = 0.0;
    if fit.gpu.memory_bytes > 0 {
        margin = fit.gpu.margin_bytes as f64 / fit.gpu.memory_bytes as f64;
    }
    let whole = gpus_that_hold(fit.plain.used_bytes, margin, true);
    if let Some(least) = &fit.least {
        // Name GPUs that need the plan only if they are cheaper than those that do not.
        fit.gpus = gpus_that_hold(least.peak.used_bytes, margin, false)
            .into_iter()
            .take_while(|gpu| whole.first().is_none_or(|first| first.id != gpu.id))
            .take(GPUS)
            .collect();
    }
    fit.gpus.extend(whole.into_iter().take(GPUS));
}

/// Smaller jobs, each run once with the plan of least memory.
fn smaller_jobs(
    fitter: &mut Fitter,
    bases: &[Base],
    levers: &[Lever],
    fit: &mut Fit,
) -> anyhow::Result<()> {
    let Some(model) = bases.first().map(|base| &base.model) else {
        return Ok(());
    };
    let mut families = true;
    for (index, (what, resize)) in candidates(model).into_iter().enumerate() {
        if resize.member.is_some() && !families {
            continue;
        }
        // Micro-batches of a smaller batch may be smaller than a sample.
        let levers: Vec<Lever> = levers
            .iter()
            .filter(|lever| resize.batch.is_none() || lever.micro_batches().is_none())
            .cloned()
            .collect();
        let name = format!("smaller-{}", index + 1);
        let ended = fitter.run(&Request {
            resize,
            ..fitter.request(name, format!("measuring: {what}"), &levers)
        })?;
        let Ended::Through(run) = ended else {
            // The script's own code knows the sizes of its model: there is no such smaller job.
            continue;
        };
        let became = &run.record.became;
        let is_other_model =
            resize.width.is_some() || resize.separable.is_some() || resize.member.is_some();
        if is_other_model && became.is_empty() {
            families &= resize.member.is_none();
            continue;
        }
        let what = if resize.member.is_some() {
            format!(
                "{}, a smaller model of the same family",
                became.join(" and ")
            )
        } else {
            what
        };
        let used = run.used_bytes();
        if (fit.least.as_ref()).is_some_and(|least| used >= least.peak.used_bytes) {
            continue;
        }
        // If the blocks are too few to cut further, this is the same job again.
        if resize.layers.is_some() && fit.variants.iter().any(|other| other.used_bytes == used) {
            continue;
        }
        fit.variants.push(SmallerJob {
            what: if levers.is_empty() {
                what
            } else {
                format!("{what}, with that plan")
            },
            used_bytes: used,
            fits: used <= fitter.options.budget,
        });
    }
    Ok(())
}

/// What to try, in words and as the run's variant.
fn candidates(model: &Model) -> Vec<(String, Resize)> {
    let plain = Resize::default();
    let mut found = Vec::new();
    if oomph_plan::units::repeated(model).len() >= 4 {
        for (share, words) in [(0.5, "half"), (0.25, "a quarter of")] {
            let layers = Some(share);
            found.push((
                format!("{words} the repeated blocks"),
                Resize { layers, ..plain },
            ));
        }
    }
    let width = Some(0.5);
    found.push(("layers half as wide".to_owned(), Resize { width, ..plain }));
    if model.modules.iter().any(|module| module.kind == "Conv2d") {
        found.push((
            "depthwise separable convolutions".to_owned(),
            Resize {
                separable: Some(true),
                ..plain
            },
        ));
    }
    for (steps, words) in [(1, "the next"), (2, "the next but one")] {
        found.push((
            format!("{words} smaller model of the family"),
            Resize {
                member: Some(steps),
                ..plain
            },
        ));
    }
    let batch = model.batch;
    if batch >= 4 {
        found.push((
            format!("batches of {} instead of {batch}", batch / 4),
            Resize {
                batch: Some(batch / 4),
                ..plain
            },
        ));
    }
    found
}

/// GPUs that hold `used` bytes, the cheapest first.
pub(crate) fn gpus_that_hold(used: u64, margin: f64, as_it_is: bool) -> Vec<Alternative> {
    let mut found: Vec<&Gpu> = oomph_gpus::catalogue()
        .iter()
        .filter(|gpu| !gpu.laptop)
        .filter(|gpu| (used as f64) <= gpu.memory.total_bytes as f64 * (1.0 - margin))
        .collect();
    found.sort_by(|a, b| {
        let price = |gpu: &Gpu| gpu.cost.rank_usd_per_hour().unwrap_or(f64::INFINITY);
        price(a)
            .total_cmp(&price(b))
            .then(a.memory.total_bytes.cmp(&b.memory.total_bytes))
    });
    found
        .into_iter()
        .map(|gpu| Alternative {
            id: gpu.id.clone(),
            memory_bytes: gpu.memory.total_bytes,
            usd_per_hour: gpu.cost.rank_usd_per_hour(),
            as_it_is,
            count: 1,
        })
        .collect()
}
