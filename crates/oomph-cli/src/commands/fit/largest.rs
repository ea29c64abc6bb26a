//! The largest batch or length that fits: by the model of the trace, confirmed by runs.

use oomph_plan::Lever;
use oomph_plan::search::{self, Base, Options};
use oomph_report::fit::Largest;

use crate::commands::fit::Fitter;
use crate::job::Variant;
use crate::planning::Ended;

/// Runs that may be spent on one answer.
const RUNS: u32 = 4;
/// No batch or length is looked for beyond this multiple of the script's own.
const MOST: u64 = 4096;

/// The largest batch.
pub(crate) fn batch(fitter: &mut Fitter, base: &Base) -> anyhow::Result<Largest> {
    let now = base.model.batch;
    let mut largest = empty("batch", now);
    if now == 0 {
        largest.notes.push(
            "the script has no DataLoader with a batch size: give it another batch size itself, and run it with oomph run"
                .to_owned(),
        );
        return Ok(largest);
    }
    let variant = |size| Variant {
        batch: Some(size),
        ..Variant::default()
    };
    fill(fitter, base, &mut largest, &variant)?;
    Ok(largest)
}

/// The longest sequences.
pub(crate) fn length(fitter: &mut Fitter, base: &Base) -> anyhow::Result<Largest> {
    let now = base.model.facts.length;
    let mut largest = empty("length", now);
    if now == 0 {
        largest.notes.push(
            "the batches of the script's DataLoader hold no sequences of integers".to_owned(),
        );
        return Ok(largest);
    }
    largest.notes.push(
        "whether the model takes longer sequences (its table of positions) is not checked: kernels do not run"
            .to_owned(),
    );
    let variant = |size| Variant {
        length: Some(size),
        ..Variant::default()
    };
    fill(fitter, base, &mut largest, &variant)?;
    Ok(largest)
}

fn empty(of: &str, now: u64) -> Largest {
    Largest {
        of: of.to_owned(),
        now,
        plain: None,
        plain_used_bytes: 0,
        with_levers: None,
        with_levers_used_bytes: 0,
        levers: Vec::new(),
        notes: Vec::new(),
    }
}

fn fill(
    fitter: &mut Fitter,
    base: &Base,
    largest: &mut Largest,
    variant: &dyn Fn(u64) -> Variant,
) -> anyhow::Result<()> {
    if let Some((size, used)) = find(fitter, base, largest.now, &[], variant)? {
        largest.plain = Some(size);
        largest.plain_used_bytes = used;
    }
    // Micro-batches would make any batch fit: they are no answer to this question.
    let options = Options {
        forbid: fitter
            .options
            .forbid
            .iter()
            .cloned()
            .chain(["micro_batch".to_owned()])
            .collect(),
        keep_results: true,
        budget: 0,
        ..fitter.options.clone()
    };
    let levers = search::search(std::slice::from_ref(base), &options)
        .least
        .map(|plan| plan.levers)
        .unwrap_or_default();
    if levers.is_empty() {
        return Ok(());
    }
    if let Some((size, used)) = find(fitter, base, largest.now, &levers, variant)? {
        largest.with_levers = Some(size);
        largest.with_levers_used_bytes = used;
        largest.levers = levers;
    }
    Ok(())
}

/// The largest size with `levers` that a run confirms, and what it needs.
fn find(
    fitter: &mut Fitter,
    base: &Base,
    now: u64,
    levers: &[Lever],
    variant: &dyn Fn(u64) -> Variant,
) -> anyhow::Result<Option<(u64, u64)>> {
    let mut correction = 1.0;
    let mut confirmed: Option<(u64, u64)> = None;
    let mut refused = u64::MAX;
    for _ in 0..RUNS {
        let budget = fitter.workshop.budget as f64 / correction;
        let need = |size: u64| {
            let scaled = base.scaled(size, now);
            search::predict(&scaled, base, levers, &fitter.options).used as f64
        };
        // The largest size that the model says fits.
        let (mut low, mut high) = (0, 1);
        while high < now.saturating_mul(MOST) && need(high) <= budget {
            low = high;
            high *= 2;
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if need(middle) <= budget {
                low = middle;
            } else {
                high = middle;
            }
        }
        let mut size = low.min(refused.saturating_sub(1));
        if let Some((known, _)) = confirmed
            && size <= known
        {
            // One more is the only question left.
            if known + 1 >= refused {
                break;
            }
            size = known + 1;
        }
        if size == 0 {
            break;
        }
        let predicted = need(size);
        let of = if levers.is_empty() { "plain" } else { "levers" };
        let name = format!("size-{of}-{size}");
        let what = format!("trying a size of {size}");
        let limit = Some(fitter.workshop.budget);
        match fitter
            .workshop
            .run(&name, &what, levers, variant(size), limit)?
        {
            Ended::Through(run) if run.peak().used_bytes <= fitter.workshop.budget => {
                let used = run.peak().used_bytes;
                correction = used as f64 / predicted.max(1.0);
                confirmed = Some((size, used));
            }
            Ended::Through(_) | Ended::OutOfMemory(_) => {
                refused = refused.min(size);
                // The need is beyond the budget by an unknown amount: a sample's worth, at least.
                correction *= (need(size + 1) / need(size).max(1.0)).max(1.0);
                correction = correction.max(fitter.workshop.budget as f64 / predicted.max(1.0));
            }
            Ended::Refused(_) | Ended::Failed { .. } => break,
        }
    }
    Ok(confirmed)
}
