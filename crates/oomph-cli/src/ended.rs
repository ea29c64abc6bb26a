//! How the processes of a run ended, from what they left in its directory; and what the command had no time to write.

use std::process::ExitStatus;

use oomph_job::{RunDirectory, RunFile, kernel, label_trace};
use oomph_report::ending::Ended;
use oomph_run::ending::ending;
use oomph_run::processes::Cards;
use oomph_run::summary::summarize;

use crate::page;

/// How each process of a run ended that has a black box: its own, or its ranks'. `status` is how the command saw its
/// child end, if it did.
pub(crate) fn of_run(directory: &RunDirectory, status: Option<ExitStatus>) -> Vec<Ended> {
    let running = directory.is_running() && status.is_none();
    let own = of_process(directory, "", running, status);
    let ranks = directory.ranks();
    let ranks = ranks
        .iter()
        .filter_map(|(name, place)| of_process(place, name, running, None));
    own.into_iter().chain(ranks).collect()
}

fn of_process(
    place: &RunDirectory,
    name: &str,
    running: bool,
    status: Option<ExitStatus>,
) -> Option<Ended> {
    let found = place.black_box()?;
    // A record that is half there says nothing.
    let record = place.record().ok().flatten();
    let mut outside = kernel::outside(&found.about, running && !found.ended, status);
    outside.stacks = place.stacks();
    if outside.status.is_none() {
        let said = place.ending();
        outside.status = said.map(|said| said.trim().trim_start_matches("it was ").to_owned());
    }
    let well = found.ended
        && status.is_none_or(|status| status.success())
        && record
            .as_ref()
            .is_some_and(|record| record.outcome.status == 0);
    Some(Ended {
        process: name.to_owned(),
        well,
        ending: ending(&found, record.as_ref(), &outside),
    })
}

/// Writes what the command would have written at the end of a run, had it not been killed: the labelled history, the
/// summary and the report. Does nothing to a run that is going on.
pub(crate) fn complete(directory: &RunDirectory) -> anyhow::Result<()> {
    if directory.is_running() || directory.has(RunFile::Summary) || !directory.is_marked() {
        return Ok(());
    }
    let Some(record) = directory.record()? else {
        return Ok(());
    };
    let trace = label_trace(directory, &record, &Cards::default())?;
    let summary = summarize(&record, trace.as_ref(), None);
    directory.write_json(RunFile::Summary, &summary)?;
    page::after_run(directory);
    Ok(())
}

/// The process that is to be explained: one that did not end well, the one that was seen last the longest ago.
pub(crate) fn first(ended: &[Ended]) -> Option<&Ended> {
    ended
        .iter()
        .filter(|one| !one.well)
        .min_by_key(|one| one.ending.last_seen_us)
}
