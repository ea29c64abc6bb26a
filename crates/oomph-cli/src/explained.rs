//! Why a recorded run ran out of memory: from its history, what the recorder saw beside it, and the run of the same job
//! without a limit. `oomph run` says it at once, and `oomph explain` says the same of the run's directory.

use anyhow::Context as _;
use oomph_allocator::TorchVersion;
use oomph_explain::{Explanation, Options, Seen, WithoutLimit};
use oomph_job::{RunDirectory, RunFile};
use oomph_run::Record;
use oomph_run::attribution::{Needless, needless};
use oomph_trace::Trace;
use serde_json::Value;

/// What the summary of a run says that its explanation needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    /// The version of torch.
    pub torch: Option<&'a str>,
    /// The GPU's memory.
    pub memory_bytes: u64,
    /// Whether it ran out.
    pub out_of_memory: bool,
    /// How much more it needed, if the run without a limit came to its end.
    pub short_bytes: Option<u64>,
}

/// Explains a run, with the same job run `unlimited` if it was.
pub(crate) fn explain(
    trace: &Trace,
    record: &Record,
    unlimited: Option<(&Trace, &Record)>,
    about: About<'_>,
    device: Option<u32>,
) -> Explanation {
    // Only the message says what this process holds besides PyTorch's memory.
    let message = record.outcome.message.as_deref().unwrap_or_default();
    let (messages, _) = oomph_trace::text::read_from(message.as_bytes()).unwrap_or_default();
    let options = Options {
        device,
        torch_version: about.torch.and_then(TorchVersion::parse),
        device_total: Some(about.memory_bytes),
        messages: if about.out_of_memory {
            messages
        } else {
            Vec::new()
        },
        seen: seen(trace, record, record.outcome.status == 0),
        ..Options::default()
    };
    let unlimited = unlimited.map(|(trace, record)| WithoutLimit {
        trace,
        seen: seen(trace, record, record.outcome.status == 0),
        short_bytes: about.short_bytes,
    });
    oomph_explain::explain_run(trace, unlimited.as_ref(), &options)
}

/// Explains the run that left `directory`; `None` if its record or summary is not there.
pub(crate) fn explain_directory(
    trace: &Trace,
    directory: &RunDirectory,
    device: Option<u32>,
) -> anyhow::Result<Option<Explanation>> {
    let Some(record) = directory.record()? else {
        return Ok(None);
    };
    let path = directory.file(RunFile::Summary);
    let Ok(text) = std::fs::read_to_string(&path) else {
        return Ok(None);
    };
    let summary: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} is not valid JSON", path.display()))?;
    let at = |pointer: &str| summary.pointer(pointer);
    let about = About {
        torch: at("/versions/torch").and_then(Value::as_str),
        memory_bytes: at("/gpu/memory_bytes").and_then(Value::as_u64).unwrap_or(0),
        out_of_memory: at("/verdict").and_then(Value::as_str) == Some("out_of_memory"),
        short_bytes: at("/oom/short_bytes").and_then(Value::as_u64),
    };
    let beyond = directory.unlimited();
    // A run that ran out there, too, was not taken for one without a limit.
    let measured = beyond
        .record()?
        .filter(|record| record.oom.as_ref().is_none_or(|oom| !oom.raised));
    let unlimited = beyond.trace()?.zip(measured);
    Ok(Some(explain(
        trace,
        &record,
        unlimited.as_ref().map(|(trace, record)| (trace, record)),
        about,
        device,
    )))
}

/// What the recorder saw beside a history.
fn seen(trace: &Trace, record: &Record, ended: bool) -> Seen {
    let times_of = |what: &str| {
        let of_it = record.boundaries.iter().filter(|one| one.1 == what);
        of_it.map(|one| one.0).collect()
    };
    let device = record.busiest().map_or(0, |device| device.index);
    let Needless {
        unused_graphs,
        evaluating,
        replaced,
        caches,
        filled,
        held,
        last_reads,
        read_on,
    } = needless(trace, record, device, ended);
    Seen {
        unused_graphs,
        evaluating,
        replaced,
        caches,
        filled,
        held,
        last_reads,
        read_on,
        broadcasts: record.broadcasts.clone(),
        idle_checkpointing: record.idle_checkpointing,
        wants_checkpointing: record.wants_checkpointing,
        uses_checkpointing: record.uses_checkpointing,
        goes_backward: record.goes_backward,
        wants_freezing: record.wants_freezing,
        autocast: !record.facts.autocast.is_empty(),
        autocast_elsewhere: record.facts.autocast_elsewhere,
        optimizer_times: times_of("optimizer"),
        pass_times: times_of("inference"),
        retained_times: times_of("retained"),
        benchmark: record.facts.benchmark,
        precision_in_vain: record.facts.precision_in_vain,
        fused_attention: record.oom.as_ref().is_some_and(|oom| oom.fused_attention),
        offloads: record
            .facts
            .offloads
            .iter()
            // One that was left by the failure has no end.
            .map(|&(begin, end)| (begin, if end == 0 { i64::MAX } else { end }))
            .collect(),
        stopped: record.stopped,
    }
}
