//! Traces of the PyTorch profiler (Kineto, chrome-trace JSON) with memory events
//! (`profile_memory=True`).
//!
//! They say when how many bytes were allocated and freed, but not in which segments. Operators
//! and Python functions (`with_stack=True`) that enclose a memory event become its stack. Events
//! are read one by one; only the columns that matter are kept.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufReader, Read};
use std::path::Path;

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{Error, Problem, ProblemKind};
use crate::events::{Action, Event};
use crate::stack_table::{Frame, FrameId, StackId};
use crate::string_table::StringId;
use crate::trace::{DeviceRows, Trace};
use crate::units::{Bytes, DeviceAddr, TimeUs};

/// Events that are kept: rows are numbered with 32 bits, and this many need some gigabytes.
const MAX_KEPT: usize = 200_000_000;
/// Frames of a stack that is put together from enclosing events.
const MAX_DEPTH: usize = 200;
/// Kineto's number for CUDA devices.
const CUDA: i64 = 1;

/// Whether the beginning of a file looks like a profiler's trace.
pub(crate) fn looks_like(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let start = text.trim_start();
    (start.starts_with('{') || start.starts_with('['))
        && ["\"traceEvents\"", "\"schemaVersion\"", "\"ph\""]
            .iter()
            .any(|key| text.contains(key))
}

/// Reads a profiler's trace from a stream; `path` is for messages only.
pub fn read_from(reader: impl Read, path: &Path) -> Result<(Trace, Vec<Problem>), Error> {
    let mut found = Found::default();
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 18, reader));
    let mut problems = Vec::new();
    if let Err(error) = (Root(&mut found)).deserialize(&mut json) {
        if found.memory.is_empty() {
            return Err(Error::Format {
                path: path.to_owned(),
                found: format!("the JSON cannot be read ({error})"),
                expected: "a profiler trace (chrome-trace JSON with `traceEvents`)".to_owned(),
            });
        }
        problems.push(Problem::new(
            ProblemKind::Truncated,
            format!(
                "the JSON ends early or is damaged ({error}): {} memory events before that were \
                 read",
                found.memory.len()
            ),
        ));
    }
    if found.memory.is_empty() {
        return Err(Error::Format {
            path: path.to_owned(),
            found: "a profiler trace without memory events of a CUDA device".to_owned(),
            expected: "one recorded with torch.profiler.profile(profile_memory=True)".to_owned(),
        });
    }
    problems.push(Problem::new(
        ProblemKind::Incomplete,
        "a profiler trace has no segments and begins with the profiler: what was allocated \
         before, and fragmentation, cannot be seen in it",
    ));
    Ok((found.finish(), problems))
}

#[derive(Deserialize)]
struct RawEvent {
    #[serde(default)]
    ph: String,
    #[serde(default)]
    cat: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    ts: Option<serde_json::Value>,
    #[serde(default)]
    dur: Option<serde_json::Value>,
    #[serde(default)]
    tid: Option<serde_json::Value>,
    #[serde(default)]
    args: Option<RawArgs>,
}

#[derive(Deserialize)]
struct RawArgs {
    #[serde(rename = "Bytes", default)]
    bytes: Option<i64>,
    #[serde(rename = "Addr", default)]
    addr: Option<serde_json::Value>,
    #[serde(rename = "Device Type", default)]
    device_type: Option<i64>,
    #[serde(rename = "Device Id", default)]
    device: Option<i64>,
}

#[derive(Clone, Copy)]
struct Memory {
    ts: f64,
    thread: u32,
    device: u32,
    addr: u64,
    bytes: i64,
}

#[derive(Clone, Copy)]
struct Range {
    start: f64,
    end: f64,
    frame: FrameId,
}

#[derive(Default)]
struct Found {
    trace: Trace,
    memory: Vec<Memory>,
    ranges: HashMap<u32, Vec<Range>>,
    threads: HashMap<String, u32>,
    kept: usize,
}

fn number(value: Option<&serde_json::Value>) -> Option<f64> {
    match value? {
        serde_json::Value::Number(number) => number.as_f64(),
        serde_json::Value::String(text) => text.parse().ok(),
        _ => None,
    }
    .filter(|number| number.is_finite())
}

impl Found {
    fn take(&mut self, event: &RawEvent) {
        if self.kept >= MAX_KEPT {
            return;
        }
        let Some(ts) = number(event.ts.as_ref()) else {
            return;
        };
        let name = event.name.as_deref().unwrap_or("");
        if name == "[memory]" {
            let Some(args) = &event.args else { return };
            let (Some(bytes), Some(CUDA)) = (args.bytes, args.device_type) else {
                return;
            };
            let addr = match &args.addr {
                Some(serde_json::Value::Number(n)) => n
                    .as_u64()
                    .or_else(|| n.as_i64().map(|n| n as u64))
                    .unwrap_or(0),
                Some(serde_json::Value::String(text)) => {
                    let text = text.trim_start_matches("0x");
                    u64::from_str_radix(text, 16).unwrap_or(0)
                }
                _ => 0,
            };
            let thread = self.thread(event.tid.as_ref());
            self.memory.push(Memory {
                ts,
                thread,
                device: u32::try_from(args.device.unwrap_or(0)).unwrap_or(0),
                addr,
                bytes,
            });
            self.kept += 1;
            return;
        }
        let kind = event.cat.as_deref().unwrap_or("");
        if event.ph == "X"
            && matches!(kind, "cpu_op" | "python_function" | "user_annotation")
            && let Some(dur) = number(event.dur.as_ref())
        {
            let frame = self.frame(name);
            let thread = self.thread(event.tid.as_ref());
            self.ranges.entry(thread).or_default().push(Range {
                start: ts,
                end: ts + dur,
                frame,
            });
            self.kept += 1;
        }
    }

    fn thread(&mut self, tid: Option<&serde_json::Value>) -> u32 {
        let key = tid.map_or_else(String::new, ToString::to_string);
        let next = self.threads.len() as u32;
        *self.threads.entry(key).or_insert(next)
    }

    /// `train.py(12): main` for Python, an operator's name otherwise.
    fn frame(&mut self, name: &str) -> FrameId {
        let python = name.split_once("): ").and_then(|(place, function)| {
            let (file, line) = place.rsplit_once('(')?;
            Some((file, line.parse::<u32>().ok()?, function))
        });
        let strings = &mut self.trace.strings;
        let frame = match python {
            Some((file, line, function)) => Frame {
                file: strings.intern(file),
                name: strings.intern(function),
                line,
            },
            None => Frame {
                file: StringId::EMPTY,
                name: strings.intern(name),
                line: 0,
            },
        };
        self.trace.stacks.intern_frame(frame)
    }

    fn finish(mut self) -> Trace {
        self.memory
            .sort_by(|a, b| a.device.cmp(&b.device).then(a.ts.total_cmp(&b.ts)));
        for ranges in self.ranges.values_mut() {
            // Outer before inner where both begin together.
            ranges.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)));
        }
        let mut device = None;
        // Per thread: how far its ranges were opened, and which are open.
        let mut open: HashMap<u32, (usize, Vec<Range>)> = HashMap::new();
        for memory in std::mem::take(&mut self.memory) {
            if device != Some(memory.device) {
                device = Some(memory.device);
                open.clear();
                let row = self.trace.events.len();
                self.trace.devices.push(DeviceRows {
                    device: memory.device,
                    rows: row..row,
                });
            }
            let stack = self.stack_at(&mut open, memory);
            let event = Event {
                addr: DeviceAddr(memory.addr),
                size: Bytes(memory.bytes.unsigned_abs()),
                time: TimeUs(memory.ts as i64),
                stack,
                ..Event::default()
            };
            let actions: &[Action] = if memory.bytes >= 0 {
                &[Action::Alloc]
            } else {
                &[Action::FreeRequested, Action::FreeCompleted]
            };
            for &action in actions {
                self.trace.events.push(Event { action, ..event });
            }
            let end = self.trace.events.len();
            if let Some(last) = self.trace.devices.last_mut() {
                last.rows.end = end;
            }
        }
        self.trace
    }

    fn stack_at(
        &mut self,
        open: &mut HashMap<u32, (usize, Vec<Range>)>,
        memory: Memory,
    ) -> StackId {
        let Some(ranges) = self.ranges.get(&memory.thread) else {
            return StackId::NONE;
        };
        let (next, stack) = open.entry(memory.thread).or_default();
        while let Some(range) = ranges.get(*next)
            && range.start <= memory.ts
        {
            while stack.last().is_some_and(|outer| outer.end <= range.start) {
                stack.pop();
            }
            stack.push(*range);
            *next += 1;
        }
        while stack.last().is_some_and(|range| range.end < memory.ts) {
            stack.pop();
        }
        let frames: Vec<FrameId> = stack
            .iter()
            .rev()
            .filter(|range| range.end >= memory.ts)
            .take(MAX_DEPTH)
            .map(|range| range.frame)
            .collect();
        self.trace.stacks.intern(&frames)
    }
}

/// The file: an object with `traceEvents`, or the bare list of events.
struct Root<'a>(&'a mut Found);

impl<'de> DeserializeSeed<'de> for Root<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Root<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with traceEvents, or a list of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "traceEvents" {
                map.next_value_seed(EventList(&mut *self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        EventList(self.0).visit_seq(seq)
    }
}

struct EventList<'a>(&'a mut Found);

impl<'de> DeserializeSeed<'de> for EventList<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for EventList<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(event) = seq.next_element::<RawEvent>()? {
            self.0.take(&event);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [
        {"ph": "X", "cat": "python_function", "name": "/job/train.py(12): main", "pid": 1, "tid": 7, "ts": 10, "dur": 100},
        {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": 1, "tid": 7, "ts": 20, "dur": 10, "args": {"External id": 3}},
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 7, "ts": 25,
         "args": {"Total Allocated": 512, "Bytes": 512, "Addr": 140000000000000, "Device Type": 1, "Device Id": 0, "Ev Idx": 1}},
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 7, "ts": 26,
         "args": {"Bytes": 64, "Addr": 1, "Device Type": 0, "Device Id": -1}},
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 7, "ts": 50,
         "args": {"Total Allocated": 0, "Bytes": -512, "Addr": 140000000000000, "Device Type": 1, "Device Id": 0}}
    ]}"#;

    #[test]
    fn memory_events_get_the_enclosing_functions_as_stack() {
        let (trace, problems) = read_from(TRACE.as_bytes(), Path::new("t.json")).unwrap();
        assert_eq!(problems.len(), 1);
        let actions: Vec<Action> = trace.events.iter().map(|event| event.action).collect();
        assert_eq!(
            actions,
            [Action::Alloc, Action::FreeRequested, Action::FreeCompleted]
        );
        let names: Vec<&str> = trace
            .stacks
            .frames(trace.events.stack(0))
            .map(|frame| trace.strings.get(frame.name))
            .collect();
        assert_eq!(names, ["aten::empty", "main"]);
        assert_eq!(trace.stacks.frames(trace.events.stack(1)).count(), 1);
    }

    #[test]
    fn a_cut_file_gives_what_is_there() {
        let cut = &TRACE[..TRACE.len() - 100];
        let (trace, problems) = read_from(cut.as_bytes(), Path::new("t.json")).unwrap();
        assert_eq!(trace.events.len(), 1);
        assert_eq!(problems[0].kind, ProblemKind::Truncated);
    }

    #[test]
    fn without_memory_events_it_says_what_to_record() {
        let text = r#"{"traceEvents": [{"ph": "X", "name": "x", "ts": 1, "dur": 2}]}"#;
        let error = read_from(text.as_bytes(), Path::new("t.json")).unwrap_err();
        assert!(error.to_string().contains("profile_memory=True"));
    }
}
