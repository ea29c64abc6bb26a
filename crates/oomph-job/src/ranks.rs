//! Jobs of several ranks: run once, and what each rank left.

use std::fs;
use std::path::Path;
use std::process::ExitStatus;

use anyhow::Context as _;
use oomph_run::processes::Recorded;
use oomph_run::ranks::{self, Culprit, RankSummary};
use oomph_run::record::Engine;
use oomph_run::summary::{Peak, Summary, Verdict, summarize};
use oomph_run::{INTERRUPTED, Record};

use crate::job::{Attempt, Job, Rehearsed, label_trace};
use crate::run_directory::{RunDirectory, RunFile};
use crate::signals;

/// Runs a job once: all of it, or `rehearsed` ranks of so many one after the other, the rest being absent;
/// what each rank came to. The attempt has the record of the one that stands for the job.
pub fn attempt(
    job: &Job,
    rehearsed: Option<(u32, &[u32])>,
    directory: &RunDirectory,
    limit: Option<u64>,
    log: Option<&Path>,
    doing: &str,
) -> anyhow::Result<(Attempt, Vec<RankSummary>)> {
    let mut attempt = match rehearsed {
        None => job.attempt(directory, limit, log, doing)?,
        Some((world_size, chosen)) => {
            let mut last = None;
            for &rank in chosen {
                let alone = Job {
                    rehearsed: Some(Rehearsed {
                        rank,
                        world_size,
                        per_host: job.gpu.as_ref().map_or(1, |gpu| gpu.spec.count),
                    }),
                    ..job.clone()
                };
                let own = RunDirectory::prepare(directory.rank(rank).path())?;
                let attempt = alone.attempt(&own, limit, log, &format!("{doing} rank {rank}"))?;
                let ended = attempt.record.is_none() || !attempt.status.success();
                last = Some(attempt);
                if ended {
                    break;
                }
            }
            let mut attempt = last.context("--ranks is empty")?;
            if attempt.record.is_none() {
                return Ok((attempt, Vec::new()));
            }
            (attempt.record, attempt.trace) = (None, None);
            attempt
        }
    };
    let (mut ranks, recorded) = gather(directory, &attempt, job.total_bytes())?;
    if rehearsed.is_some() {
        ranks.retain(|rank| !rank.directory.is_empty());
    }
    if job.is_several() || rehearsed.is_some() {
        let spokesman = ranks::spokesman(&ranks).and_then(|index| ranks.get(index));
        put_spokesman(directory, &mut attempt, spokesman)?;
    } else {
        put_representative(directory, &mut attempt, &ranks, &recorded)?;
        // What a script starts are no ranks, unless they say so.
        if !recorded.iter().any(|one| one.is_rank) {
            ranks.clear();
        }
    }
    attempt.processes.recorded = recorded;
    attempt.processes.summarized = attempt.record.as_ref().map_or(0, |record| record.process);
    Ok((attempt, ranks))
}

/// The outcome of each rank, from their directories, none if there was one process; and of every
/// process that left a record. Each gets its own summary and history in oomph's form.
fn gather(
    directory: &RunDirectory,
    attempt: &Attempt,
    total: Option<u64>,
) -> anyhow::Result<(Vec<RankSummary>, Vec<Recorded>)> {
    let mut recorded = Vec::new();
    let mut ranks = Vec::new();
    let mut world = 0;
    let mut add = |record: &Record, summary: &Summary, name: String| {
        let number = record.rank.map(|place| {
            world = world.max(place.world_size);
            place.rank
        });
        let place = number.unwrap_or(u32::MAX);
        recorded.push(Recorded {
            process: record.process,
            verdict: summary.verdict,
            stopped: record.stopped,
            failure: summary.failure.clone(),
            is_rank: number.is_some(),
            directory: name.clone(),
        });
        ranks.push(RankSummary::new(place, record, summary, name));
    };
    if let Some(record) = attempt.record.as_ref().filter(|record| record.used_cuda) {
        let summary = summarize(record, attempt.trace.as_ref(), total);
        add(record, &summary, String::new());
    }
    let mut others = 0;
    for (name, own) in directory.ranks() {
        let Some(record) = own.record()? else {
            continue;
        };
        let trace = match label_trace(&own, &record, &attempt.processes.cards)? {
            None => own.trace()?,
            trace => trace,
        };
        let summary = summarize(&record, trace.as_ref(), total);
        own.write_json(RunFile::Summary, &summary)?;
        add(&record, &summary, name);
        others += 1;
    }
    if others == 0 {
        return Ok((Vec::new(), recorded));
    }
    // Processes that never reported their rank come last, in the order of their names.
    ranks.sort_by_key(|rank| rank.rank);
    let named = ranks.iter().filter(|rank| rank.rank != u32::MAX).count();
    for (number, rank) in (named as u32..).zip(&mut ranks[named..]) {
        rank.rank = number;
    }
    for missing in (0..world)
        .filter(|number| !ranks.iter().any(|rank| rank.rank == *number))
        .collect::<Vec<_>>()
    {
        let ending = directory.rank(missing).ending();
        ranks.push(RankSummary {
            blame: None,
            rank: missing,
            verdict: Verdict::ScriptFailed,
            terminated: false,
            device: None,
            peak: Peak::default(),
            by_category: std::collections::BTreeMap::new(),
            step_count: 0,
            failure: Some(ending.map_or_else(
                || "it left no record".to_owned(),
                |how| format!("{how} and left no record"),
            )),
            directory: String::new(),
        });
    }
    ranks.sort_by_key(|rank| rank.rank);
    Ok((ranks, recorded))
}

/// Puts the record and the history of the rank that represents the job where a single process leaves them.
fn put_spokesman(
    directory: &RunDirectory,
    attempt: &mut Attempt,
    rank: Option<&RankSummary>,
) -> anyhow::Result<()> {
    let Some(rank) = rank else {
        return Ok(());
    };
    if rank.directory.is_empty() {
        return Ok(());
    }
    let own = RunDirectory::at(directory.path().join(&rank.directory));
    attempt.record = own.record()?;
    let trace = own.file(RunFile::Trace);
    if trace.is_file() {
        let here = directory.file(RunFile::Trace);
        let _ = fs::remove_file(&here);
        fs::hard_link(&trace, &here)
            .or_else(|_| fs::copy(&trace, &here).map(|_| ()))
            .with_context(|| format!("cannot copy {}", trace.display()))?;
        attempt.trace = directory.trace()?;
    }
    Ok(())
}

/// The same for a script and the processes that it started: one that ran out of memory; otherwise one that
/// was ended after its steps; otherwise the script's own, if it used the GPU; otherwise the largest.
fn put_representative(
    directory: &RunDirectory,
    attempt: &mut Attempt,
    ranks: &[RankSummary],
    recorded: &[Recorded],
) -> anyhow::Result<()> {
    let ran_out = |rank: &&RankSummary| rank.verdict == Verdict::OutOfMemory;
    let stopped = |rank: &RankSummary| {
        let mut stopped = recorded.iter().filter(|one| one.stopped);
        stopped.any(|one| one.directory == rank.directory)
    };
    let found = ranks.iter().find(ran_out).or_else(|| {
        let order = |rank: &&RankSummary| {
            (
                stopped(rank),
                rank.directory.is_empty(),
                rank.peak.used_bytes,
            )
        };
        ranks.iter().max_by_key(order)
    });
    let script = attempt.record.clone();
    put_spokesman(directory, attempt, found)?;
    if let (Some(script), Some(record)) = (script, &mut attempt.record)
        && !record.out_of_memory()
    {
        // The script decides how it ends, and whether a child's failure matters. A server runs until it is ended.
        let served = record.engine.as_ref().is_some_and(Engine::has_started);
        if !(served && matches!(script.outcome.kind.as_str(), "terminated" | "interrupted")) {
            record.outcome = script.outcome;
        }
        record.argv = script.argv;
    }
    Ok(())
}

/// Turns the summary of one rank into that of the whole job.
pub fn join(
    summary: &mut Summary,
    all: Vec<RankSummary>,
    failure: Option<Culprit>,
    status: ExitStatus,
) {
    let failed = failure.is_some() || !status.success();
    summary.culprit = failed.then(|| ranks::culprit(&all, failure)).flatten();
    summary.outlier = ranks::outlier(&all);
    let short = all.iter().any(|rank| rank.verdict == Verdict::OutOfMemory);
    if short {
        summary.verdict = Verdict::OutOfMemory;
    } else if summary.verdict != Verdict::Refused && failed {
        summary.verdict = Verdict::ScriptFailed;
        summary.failure = Some(match &summary.culprit {
            Some(culprit) => culprit.sentence(),
            None => match signals::received() {
                Some(signal) => format!("ended by {signal}"),
                None if signals::interrupted() => INTERRUPTED.to_owned(),
                None => format!("the launcher ended with {status}"),
            },
        });
    }
    summary.ranks = all;
}
