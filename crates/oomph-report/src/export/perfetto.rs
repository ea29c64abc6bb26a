//! Trace events in JSON, as ui.perfetto.dev and chrome://tracing read them: memory by category as a
//! counter, what is reserved as another, steps and phases as slices, failures as instants.

use oomph_trace::{Category, Phase};
use serde_json::{Value, json};

use crate::html::Page;
use crate::html::history::Digest;

/// The one process of the trace.
const PROCESS: u32 = 1;
const STEPS: u32 = 1;
const PHASES: u32 = 2;

pub(super) fn export(digest: &Digest, page: &Page) -> String {
    let title = if page.redact { "job" } else { &page.title };
    let mut events = vec![
        name("process_name", 0, &format!("GPU memory of {title}")),
        name("thread_name", STEPS, "steps"),
        name("thread_name", PHASES, "phases"),
    ];
    let at = |moment: u32| digest.time(moment);
    for (moment, bytes) in digest.curve() {
        let parts: serde_json::Map<String, Value> = Category::ALL
            .iter()
            .zip(bytes)
            .map(|(category, bytes)| (category.name().to_owned(), json!(bytes)))
            .collect();
        events.push(counter("allocated", at(moment), &Value::Object(parts)));
    }
    for &(moment, bytes) in &digest.reserved {
        events.push(counter("reserved", at(moment), &json!({ "bytes": bytes })));
    }
    for step in &digest.steps {
        events.push(slice(
            STEPS,
            &format!("step {}", step.number),
            at(step.start),
            at(step.end),
        ));
    }
    for (index, &(start, phase)) in digest.phases.iter().enumerate() {
        let end = digest
            .phases
            .get(index + 1)
            .map_or(digest.moments, |&(next, _)| next);
        let phase = Phase::ALL
            .get(usize::from(phase))
            .map_or("", |phase| phase.name());
        events.push(slice(PHASES, phase, at(start), at(end)));
    }
    for failure in &digest.failures {
        events.push(json!({
            "ph": "i", "s": "p", "pid": PROCESS, "tid": STEPS, "ts": at(failure.moment),
            "name": "out of memory",
            "args": { "requested_bytes": failure.bytes, "free_bytes": failure.free },
        }));
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
}

fn name(what: &str, thread: u32, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": PROCESS, "tid": thread, "args": { "name": name } })
}

fn counter(name: &str, time: u64, parts: &Value) -> Value {
    json!({ "ph": "C", "name": name, "pid": PROCESS, "ts": time, "args": parts })
}

fn slice(thread: u32, name: &str, start: u64, end: u64) -> Value {
    json!({
        "ph": "X", "name": name, "pid": PROCESS, "tid": thread,
        "ts": start, "dur": end.saturating_sub(start),
    })
}
