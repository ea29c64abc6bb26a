//! A part of a program that was recorded by itself, such as a test: what it held, and where.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use oomph_explain::Holder;
use oomph_job::{RunDirectory, label_trace};
use oomph_run::processes::Cards;
use oomph_run::summary::{Oom, Share, StepPeak, summarize};
use serde::Serialize;

/// What a part held.
#[derive(Debug, Serialize)]
pub struct Part {
    /// The device that held the most.
    device: u32,
    /// The most bytes in tensors at one time.
    allocated_bytes: u64,
    /// The same of what the history saw allocated, without what is older than it.
    own_bytes: u64,
    /// The most that PyTorch's allocator held.
    reserved_bytes: u64,
    /// Bytes at the peak by what they hold.
    categories: BTreeMap<&'static str, u64>,
    /// Bytes at the peak by module, the largest first.
    modules: Vec<Share>,
    /// The most that was allocated within each optimizer step, or pass, with what there was before in the first.
    steps: Vec<StepPeak>,
    /// Where memory ran out, if it did.
    oom: Option<Oom>,
    /// What is alive at the peak, by place.
    places: Vec<Holder>,
    /// What the part made and left behind, by place.
    left: Vec<Holder>,
}

/// Reads what the recorder left of a part in `directory`; `None` if it did not use a GPU.
pub fn part(directory: &Path) -> anyhow::Result<Option<Part>> {
    let directory = RunDirectory::of_run(directory);
    let Some(record) = directory.record()? else {
        return Ok(None);
    };
    let Some(device) = record.busiest() else {
        return Ok(None);
    };
    let trace = label_trace(&directory, &record, &Cards::default())?
        .context("the memory history of a part is missing")?;
    let mut summary = summarize(&record, Some(&trace), None);
    // What lies outside the allocator belongs to the process.
    for other in ["cuda_context", "cached", "outside_allocator"] {
        summary.by_category.remove(other);
    }
    summary.by_category.retain(|_, bytes| *bytes > 0);
    let [places, left] = oomph_explain::places(&trace, device.index);
    Ok(Some(Part {
        device: device.index,
        allocated_bytes: summary.peak.allocated_bytes,
        own_bytes: summary.timeline.iter().copied().max().unwrap_or(0),
        reserved_bytes: summary.peak.reserved_bytes,
        categories: summary.by_category,
        modules: summary.modules,
        steps: (summary.steps.into_iter())
            .filter(|row| (1..=summary.step_count).contains(&row.step))
            .collect(),
        oom: summary.oom,
        places,
        left,
    }))
}
