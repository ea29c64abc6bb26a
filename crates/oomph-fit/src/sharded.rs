//! Plans for several GPUs: runs the job as one rank of each way to share it, searches for levers
//! on top of those runs, and verifies plans with all ranks.

use anyhow::Result;
use oomph_plan::search::{self, Base};
use oomph_plan::sharding::{self, Fabric, Volume};
use oomph_plan::{Dtype, Lever, Results};

use crate::attempts::{Ranks, per_host};
use crate::fitter::Fitter;
use crate::smaller::gpus_that_hold;
use oomph_plan::result::{Alternative, Fit, PlanResult, Smallest};

/// The most GPUs to name.
const KINDS: usize = 3;
/// If the requested number of GPUs is not enough, try up to this multiple of it.
const MOST_TIMES: u32 = 8;

/// Plans for the GPUs that were named, which of them is chosen, and how few would do. Returns the ways
/// to share the job that ran.
pub(crate) fn plan(fitter: &mut Fitter, plain: &Base, fit: &mut Fit) -> Result<Vec<Base>> {
    let gpu = fitter.wanted.gpu.found.gpu;
    let gpus = fitter.wanted.gpu.count;
    let fabric = Fabric::new(gpu, per_host(gpus));
    fitter.options.cluster = Some((fabric, Volume::new(&plain.model)));
    fitter.plain = Some(plain.clone());
    fit.assumptions.push(fabric.assumption(gpu, gpus));
    let bases = shared(fitter, plain, gpus)?;
    if bases.is_empty() {
        return Ok(bases);
    }
    let found = fitter.plans_from(&bases)?;
    (fit.plans, fit.chosen) = fitter.choose(&found);
    if let Some(plan) = fit.chosen.and_then(|index| fit.plans.get_mut(index))
        && plan.time_ratio >= 1.0
        && fit.plain.used_bytes <= fitter.options.budget
    {
        plan.notes
            .push("one GPU is faster, and the unchanged job fits it".to_owned());
    }
    let chosen = fit.chosen.and_then(|index| fit.plans.get(index));
    fit.smallest = smallest(fitter, plain, gpus, chosen)?;
    fit.kinds = kinds(fitter, chosen, gpus, fit);
    Ok(bases)
}

/// The job as one rank of each way to share it.
fn shared(fitter: &mut Fitter, plain: &Base, gpus: u32) -> Result<Vec<Base>> {
    let mut bases: Vec<Base> = Vec::new();
    let ways = sharding::ways(
        &plain.model,
        gpus,
        per_host(fitter.wanted.gpu.count),
        dtype(fitter, plain),
    );
    let last = ways.len().saturating_sub(1);
    let mut roomy = false;
    for (index, way) in ways.into_iter().enumerate() {
        // If whole models fit, hybrid sharding is slower than data parallelism
        // and needs more memory than full sharding.
        if !fitter.options.permits(&way) || roomy && index != last {
            continue;
        }
        if let Some(base) = probe(fitter, plain, &way)? {
            let alone = search::predict(&base, plain, &[], &fitter.options);
            roomy |= alone.used <= fitter.options.budget;
            bases.push(base);
        } else if !fitter.options.permits(&sharding::data_parallel(gpus)) {
            break;
        }
    }
    // Nothing comes close: keep everything but the passes in host memory.
    let mut near = false;
    for base in &bases {
        let found = search::search_among(plain, std::slice::from_ref(base), &fitter.options)?;
        near |= !found.plans.is_empty();
    }
    if !near
        && let Some(way) = bases.last().and_then(|base| base.applied.first())
        && let Some(way) = sharding::on_the_cpu(way)
        && fitter.options.permits(&way)
        && let Some(base) = probe(fitter, plain, &way)?
    {
        bases.push(base);
    }
    Ok(bases)
}

/// The types in which parameters may be gathered.
fn dtype(fitter: &Fitter, plain: &Base) -> Option<Dtype> {
    let narrow =
        search::offers_precision(&plain.model) || plain.model.facts.autocast.contains("bfloat16");
    (!fitter.options.keep_results && fitter.options.dtype == Dtype::Bf16 && narrow)
        .then_some(Dtype::Bf16)
}

/// The job as the first rank of a way to share it, without a limit.
fn probe(fitter: &mut Fitter, plain: &Base, way: &Lever) -> Result<Option<Base>> {
    let Some(gpus) = sharding::gpus(std::slice::from_ref(way)) else {
        return Ok(None);
    };
    let mut found = fitter.probe_ranks(std::slice::from_ref(way), Ranks::First);
    if let Ok(Err(failure)) = &found
        && failure.why.contains("find_unused_parameters")
        && let Some(way) = sharding::with_unused(way)
    {
        found = fitter.probe_ranks(&[way], Ranks::First);
    }
    match found? {
        Ok(mut base) => {
            // The loader's whole batch; a rank has its part of it.
            let batch = plain.model.batch.div_ceil(u64::from(gpus));
            base.model.batch = batch;
            base.model.template.batch = batch;
            Ok(Some(base))
        }
        Err(failure) if failure.refused => {
            fitter.reject(&failure.lever, &failure.why);
            Ok(None)
        }
        Err(failure) => {
            fitter.note(&way.to_string(), &failure.why);
            Ok(None)
        }
    }
}

/// The smallest number of these GPUs that some plan was measured to fit.
fn smallest(
    fitter: &mut Fitter,
    plain: &Base,
    gpus: u32,
    chosen: Option<&PlanResult>,
) -> Result<Option<Smallest>> {
    let mut counts: Vec<u32> = std::iter::successors(Some(1), |count| Some(count * 2))
        .take_while(|count| *count < gpus)
        .collect();
    if chosen.is_none() {
        let more = std::iter::successors(Some(gpus * 2), |count| Some(count * 2));
        counts = more
            .take_while(|count| {
                *count <= gpus * MOST_TIMES && u64::from(*count) <= plain.model.batch
            })
            .collect();
    }
    for count in counts {
        let base = if count == 1 {
            Some(plain.clone())
        } else {
            let ways = sharding::ways(
                &plain.model,
                count,
                per_host(fitter.wanted.gpu.count),
                dtype(fitter, plain),
            );
            match ways.last() {
                Some(way) if fitter.options.permits(way) => probe(fitter, plain, way)?,
                _ => None,
            }
        };
        let Some(base) = base else { continue };
        if let Some(plan) = best(fitter, &base)? {
            return Ok(Some(of(count, &plan)));
        }
    }
    Ok(chosen.map(|plan| of(gpus, plan)))
}

/// The cheapest plan that a run confirms, preferably one that keeps results.
fn best(fitter: &mut Fitter, base: &Base) -> Result<Option<PlanResult>> {
    const TRIES: usize = 2;
    for _ in 0..TRIES {
        let found = fitter.search(std::slice::from_ref(base))?;
        let keeps = |plan: &&search::Plan| plan.results <= Results::Rounding;
        let Some(plan) = found.plans.iter().find(keeps).or(found.plans.first()) else {
            return Ok(None);
        };
        match fitter.verify(plan, true)? {
            Some(plan) => return Ok(Some(plan)),
            None => fitter.options.failed.push(plan.levers.clone()),
        }
    }
    Ok(None)
}

fn of(gpus: u32, plan: &PlanResult) -> Smallest {
    Smallest {
        gpus,
        levers: plan.levers.clone(),
        what: plan.what.clone(),
        used_bytes: plan.peak.used_bytes,
        time_ratio: plan.time_ratio,
        same_results: plan.same_results,
    }
}

/// Kinds of GPUs that hold the measured memory, by the price of that many.
fn kinds(fitter: &Fitter, chosen: Option<&PlanResult>, gpus: u32, fit: &Fit) -> Vec<Alternative> {
    let margin = fit.gpu.margin_bytes as f64 / fit.gpu.memory_bytes.max(1) as f64;
    let mut measured: Vec<(u32, u64, &[Lever])> = Vec::new();
    if let Some(plan) = chosen {
        measured.push((gpus, plan.peak.used_bytes, &plan.levers));
    }
    if let Some(small) = &fit.smallest {
        measured.push((small.gpus, small.used_bytes, &small.levers));
    }
    let mut found: Vec<Alternative> = Vec::new();
    for (count, used, levers) in measured {
        let narrow = levers
            .iter()
            .any(|lever| lever.computes_in() == Some(Dtype::Bf16));
        for mut kind in gpus_that_hold(used, margin, levers.is_empty()) {
            let has = oomph_gpus::find(&kind.id).is_ok_and(|gpu| gpu.rates.bf16.is_some());
            if narrow && !has {
                continue;
            }
            kind.count = count;
            kind.usd_per_hour = kind.usd_per_hour.map(|price| price * f64::from(count));
            if !found
                .iter()
                .any(|other| other.id == kind.id && other.count == kind.count)
            {
                found.push(kind);
            }
        }
    }
    found.retain(|kind| kind.usd_per_hour.is_some());
    let price = |kind: &Alternative| kind.usd_per_hour.unwrap_or(f64::INFINITY);
    found.sort_by(|a, b| price(a).total_cmp(&price(b)));
    // The requested GPU is among them.
    let id = &fitter.wanted.gpu.found.gpu.id;
    let asked = found.iter().find(|kind| kind.id == *id).cloned();
    found.truncate(KINDS);
    found.extend(asked.filter(|kind| !found.contains(kind)));
    found
}
