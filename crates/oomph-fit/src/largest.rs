//! The largest batch, length or resolution that fits: by the model of the trace, confirmed by runs.

use oomph_job::settings::Resize;
use oomph_plan::search::{self, Base, Options};
use oomph_plan::{Group, Lever, levers};

use crate::attempts::{Ended, Request};
use crate::fitter::Fitter;
use crate::wanted::Size;
use oomph_plan::result::Largest;

/// The most runs for one answer.
const RUNS: u32 = 4;
/// The largest batch or length to try, as a multiple of the script's own.
const MOST: u64 = 4096;

/// The largest size of a kind.
pub(crate) fn largest(fitter: &mut Fitter, bases: &[Base], size: Size) -> anyhow::Result<Largest> {
    match size {
        Size::Batch => batch(fitter, bases),
        Size::Length => length(fitter, bases),
        Size::Resolution => resolution(fitter, bases),
    }
}

fn batch(fitter: &mut Fitter, bases: &[Base]) -> anyhow::Result<Largest> {
    let now = bases.first().map_or(0, |base| base.model.batch);
    let mut largest = empty("batch", now);
    if now == 0 {
        largest.notes.push(
            "the script has no DataLoader with a batch size: change the batch size in the script and use oomph run"
                .to_owned(),
        );
        return Ok(largest);
    }
    let resize = |size| Resize {
        batch: Some(size),
        ..Resize::default()
    };
    fill(fitter, bases, &mut largest, 1, &resize)?;
    Ok(largest)
}

fn length(fitter: &mut Fitter, bases: &[Base]) -> anyhow::Result<Largest> {
    let now = bases
        .first()
        .map_or(0, |base| match base.model.facts.length {
            0 if !base.model.trains => base.model.facts.input.length,
            length => length,
        });
    let mut largest = empty("length", now);
    if now == 0 {
        largest.notes.push(
            "the batches of the script's DataLoader contain no sequences of integers".to_owned(),
        );
        return Ok(largest);
    }
    largest.notes.push(
        "kernels do not run, so it is not checked that the model supports longer sequences (its position table)"
            .to_owned(),
    );
    let resize = |size| Resize {
        length: Some(size),
        ..Resize::default()
    };
    fill(fitter, bases, &mut largest, 1, &resize)?;
    Ok(largest)
}

fn resolution(fitter: &mut Fitter, bases: &[Base]) -> anyhow::Result<Largest> {
    let infers = bases.first().filter(|base| !base.model.trains);
    let now = infers.map_or(0, |base| base.model.facts.input.height);
    let mut largest = empty("resolution", now);
    if now == 0 {
        largest.notes.push(
            "no model is called with images (samples, channels, rows, columns), or the job trains"
                .to_owned(),
        );
        return Ok(largest);
    }
    largest.notes.push(
        "rows of an image, with columns scaled likewise; only a real run can show whether the model supports this size"
            .to_owned(),
    );
    let resize = |size| Resize {
        height: Some(size),
        ..Resize::default()
    };
    fill(fitter, bases, &mut largest, 2, &resize)?;
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
        time_of_one: None,
        levers: Vec::new(),
        notes: Vec::new(),
    }
}

fn fill(
    fitter: &mut Fitter,
    bases: &[Base],
    largest: &mut Largest,
    dimensions: u32,
    resize: &dyn Fn(u64) -> Resize,
) -> anyhow::Result<()> {
    let Some(base) = bases.first() else {
        return Ok(());
    };
    let now = largest.now;
    if let Some(found) = find(fitter, base, (now, dimensions), &[], resize)? {
        largest.plain = Some(found.size);
        largest.plain_used_bytes = found.used;
        let more = (found.size as f64 / now.max(1) as f64).powi(dimensions as i32);
        largest.time_of_one = found
            .time
            .filter(|_| fitter.plain_time > 0.0)
            .map(|time| time / fitter.plain_time / more);
    }
    // Micro-batches would make any batch fit, so they are excluded.
    let options = Options {
        forbid: fitter
            .options
            .forbid
            .iter()
            .cloned()
            .chain(levers::of_group(Group::Batch).map(str::to_owned))
            .collect(),
        keep_results: true,
        budget: 0,
        ..fitter.options.clone()
    };
    let levers = search::search(bases, &options)?
        .least
        .map(|plan| plan.levers)
        .unwrap_or_default();
    if levers.is_empty() {
        return Ok(());
    }
    if let Some(found) = find(fitter, base, (now, dimensions), &levers, resize)? {
        largest.with_levers = Some(found.size);
        largest.with_levers_used_bytes = found.used;
        largest.levers = levers;
    }
    Ok(())
}

/// A size that a run confirmed.
struct Confirmed {
    size: u64,
    /// Bytes.
    used: u64,
    /// Nanoseconds of its step.
    time: Option<f64>,
}

/// The largest size with `levers` that a run confirms, and what it needs. Activations
/// grow with the power `dimensions` of the size.
fn find(
    fitter: &mut Fitter,
    base: &Base,
    (now, dimensions): (u64, u32),
    levers: &[Lever],
    resize: &dyn Fn(u64) -> Resize,
) -> anyhow::Result<Option<Confirmed>> {
    let mut correction = 1.0;
    let mut confirmed: Option<Confirmed> = None;
    let mut refused = u64::MAX;
    for _ in 0..RUNS {
        let budget = fitter.options.budget as f64 / correction;
        let options = fitter.options.clone();
        let plan = |size: u64| {
            let scaled = base.scaled(size.saturating_pow(dimensions), now.pow(dimensions));
            search::predict(&scaled, base, levers, &options)
        };
        let need = |size: u64| plan(size).used as f64;
        // The largest size that fits according to the model.
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
        if let Some(known) = confirmed.as_ref().map(|confirmed| confirmed.size)
            && size <= known
        {
            // Only one more is left to try.
            if known + 1 >= refused {
                break;
            }
            size = known + 1;
        }
        if size == 0 {
            break;
        }
        let predicted = need(size);
        let host = plan(size).host;
        let of = if levers.is_empty() { "plain" } else { "levers" };
        let name = format!("size-{of}-{size}");
        let purpose = format!("trying a size of {size}");
        let ended = fitter.run(&Request {
            resize: resize(size),
            limit: Some(fitter.options.budget),
            ..fitter.request(name, purpose, levers)
        })?;
        match ended {
            Ended::Through(run) if run.used_bytes() <= fitter.options.budget => {
                let used = run.used_bytes();
                correction = used as f64 / predicted.max(1.0);
                confirmed = Some(Confirmed {
                    size,
                    used,
                    time: fitter.step_ns(&run, host),
                });
            }
            Ended::Through(_) | Ended::OutOfMemory(_) => {
                refused = refused.min(size);
                // The need exceeds the budget by an unknown amount: at least one sample's.
                // If the need grows with the square, a step of one changes next to nothing.
                let least = if dimensions > 1 { 1.03 } else { 1.0 };
                correction *= (need(size + 1) / need(size).max(1.0)).max(least);
                correction = correction.max(fitter.options.budget as f64 / predicted.max(1.0));
            }
            Ended::Refused { .. } | Ended::Failed { .. } => break,
        }
    }
    Ok(confirmed)
}
