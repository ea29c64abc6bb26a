//! A processed profile for profiler.firefox.com: every allocation and free with its stack, so that
//! "retained memory" and the call tree show what oomph's own peak view shows.

use std::collections::HashMap;

use oomph_trace::{Category, FrameId};
use serde_json::{Value, json};

use crate::html::Page;
use crate::html::history::Digest;
use crate::html::redact::Redactor;

/// The version of the format, as profiler.firefox.com upgrades from.
const VERSION: u32 = 48;
const COLORS: [&str; 8] = [
    "blue",
    "green",
    "purple",
    "orange",
    "lightblue",
    "yellow",
    "red",
    "grey",
];

/// The tables of a profile's thread under construction.
#[derive(Default)]
struct Tables {
    strings: Vec<String>,
    string_numbers: HashMap<String, usize>,
    /// (function's name, file, line) of each frame.
    functions: Vec<(usize, usize, u32)>,
    frame_numbers: HashMap<FrameId, usize>,
    /// (parent, frame, category).
    stacks: Vec<(Option<usize>, usize, usize)>,
    stack_numbers: HashMap<(Option<usize>, usize, usize), usize>,
}

impl Tables {
    fn string(&mut self, text: String) -> usize {
        if let Some(&number) = self.string_numbers.get(&text) {
            return number;
        }
        let number = self.strings.len();
        self.string_numbers.insert(text.clone(), number);
        self.strings.push(text);
        number
    }

    fn stack(&mut self, parent: Option<usize>, frame: usize, category: usize) -> usize {
        let key = (parent, frame, category);
        let stacks = &mut self.stacks;
        *self.stack_numbers.entry(key).or_insert_with(|| {
            stacks.push(key);
            stacks.len() - 1
        })
    }
}

pub(super) fn export(digest: &Digest, page: &Page, redact: &mut Redactor) -> String {
    let mut tables = Tables::default();
    let stacks: Vec<Option<usize>> = (0..digest.kind_count() as u32)
        .map(|kind| stack_of(digest, kind, &mut tables, redact))
        .collect();
    // Milliseconds, bytes, stack and address of each event, in the order of time.
    let mut events: Vec<(u32, i64, usize)> = Vec::with_capacity(digest.blocks.len() * 2);
    for (number, block) in digest.blocks.iter().enumerate() {
        events.push((block.start, block.bytes as i64, number));
        if block.end <= digest.moments {
            events.push((block.end, -(block.bytes as i64), number));
        }
    }
    events.sort_by_key(|&(moment, ..)| moment);
    let stack_at = |number: usize| {
        let kind = digest.blocks.get(number)?.kind;
        stacks.get(kind as usize).copied().flatten()
    };
    let milliseconds = |moment: u32| digest.time(moment) as f64 / 1000.0;
    let allocations = json!({
        "time": events.iter().map(|event| milliseconds(event.0)).collect::<Vec<_>>(),
        "weight": events.iter().map(|event| event.1).collect::<Vec<_>>(),
        "weightType": "bytes",
        "stack": events.iter().map(|event| stack_at(event.2)).collect::<Vec<_>>(),
        // Which allocation a free belongs to; an address may be used many times.
        "memoryAddress": events.iter().map(|event| event.2).collect::<Vec<_>>(),
        "threadId": vec![0; events.len()],
        "length": events.len(),
    });
    // The profiler needs samples to know the range of time.
    let range = [0, digest.moments];
    let count = tables.functions.len();
    let title = if page.redact { "job" } else { &page.title };
    let thread = json!({
        "processType": "default", "processStartupTime": 0, "processShutdownTime": null,
        "registerTime": 0, "unregisterTime": null, "pausedRanges": [],
        "name": "GPU memory", "processName": title, "isMainThread": true, "pid": "0", "tid": 0,
        "samples": {
            "weightType": "samples", "weight": null, "stack": [null, null], "length": range.len(),
            "time": range.map(milliseconds), "eventDelay": [0, 0],
        },
        "nativeAllocations": allocations,
        "markers": {
            "data": [], "name": [], "startTime": [], "endTime": [], "phase": [], "category": [],
            "length": 0,
        },
        "stackTable": {
            "prefix": tables.stacks.iter().map(|stack| stack.0).collect::<Vec<_>>(),
            "frame": tables.stacks.iter().map(|stack| stack.1).collect::<Vec<_>>(),
            "category": tables.stacks.iter().map(|stack| stack.2).collect::<Vec<_>>(),
            "subcategory": vec![0; tables.stacks.len()],
            "length": tables.stacks.len(),
        },
        "frameTable": {
            "address": vec![-1; count], "inlineDepth": vec![0; count],
            "category": vec![Value::Null; count], "subcategory": vec![0; count],
            "func": (0..count).collect::<Vec<_>>(), "nativeSymbol": vec![Value::Null; count],
            "innerWindowID": vec![0; count], "implementation": vec![Value::Null; count],
            "line": tables.functions.iter().map(|function| function.2).collect::<Vec<_>>(),
            "column": vec![Value::Null; count], "length": count,
        },
        "funcTable": {
            "isJS": vec![false; count], "relevantForJS": vec![false; count],
            "name": tables.functions.iter().map(|function| function.0).collect::<Vec<_>>(),
            "resource": vec![-1; count],
            "fileName": tables.functions.iter().map(|function| function.1).collect::<Vec<_>>(),
            "lineNumber": tables.functions.iter().map(|function| function.2).collect::<Vec<_>>(),
            "columnNumber": vec![Value::Null; count], "length": count,
        },
        "resourceTable": { "lib": [], "name": [], "host": [], "type": [], "length": 0 },
        "nativeSymbols": {
            "address": [], "functionSize": [], "libIndex": [], "name": [], "length": 0,
        },
        "stringArray": tables.strings,
    });
    let categories: Vec<Value> = Category::ALL
        .iter()
        .zip(COLORS)
        .map(|(category, color)| {
            json!({ "name": category.name(), "color": color, "subcategories": ["Other"] })
        })
        .collect();
    json!({
        "meta": {
            "version": 27, "preprocessedProfileVersion": VERSION, "interval": 1, "startTime": 0,
            "processType": 0, "stackwalk": 1, "product": "oomph", "importedFrom": "oomph",
            "symbolicated": true, "categories": categories, "markerSchema": [],
            "sampleUnits": { "time": "ms", "eventDelay": "ms", "threadCPUDelta": "µs" },
        },
        "libs": [], "pages": [], "counters": [], "threads": [thread],
    })
    .to_string()
}

fn stack_of(
    digest: &Digest,
    kind: u32,
    tables: &mut Tables,
    redact: &mut Redactor,
) -> Option<usize> {
    let trace = digest.history.trace;
    let category = Category::ALL
        .iter()
        .position(|&known| known == digest.category(kind))
        .unwrap_or(0);
    let mut at = None;
    for &id in trace.stacks.stack(digest.stack(kind)).iter().rev() {
        let frame = if let Some(&number) = tables.frame_numbers.get(&id) {
            number
        } else {
            let frame = trace.stacks.frame(id);
            let (file, function) = redact.frame(
                trace.strings.get(frame.file),
                trace.strings.get(frame.name),
                frame.is_python(&trace.strings),
            );
            let (name, file) = (tables.string(function), tables.string(file));
            tables.functions.push((name, file, frame.line));
            tables.frame_numbers.insert(id, tables.functions.len() - 1);
            tables.functions.len() - 1
        };
        at = Some(tables.stack(at, frame, category));
    }
    at
}
