//! Streams, events, capture and graphs.
//!
//! Work takes no time on the virtual GPU: whatever was enqueued is done. Handles are numbers,
//! never addresses of Rust objects, so that a stale one is an error and not a crash.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use crate::sync::Mutex;

/// Handles start here: far from null and from the special streams 1 (legacy) and 2 (per thread).
const FIRST_HANDLE: u64 = 0x1000;
/// Handles are this far apart, so that they look like aligned pointers.
const HANDLE_STEP: u64 = 0x10;

/// A stream.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    pub device: u32,
    pub flags: u32,
    pub priority: i32,
    capture: Option<u64>,
}

/// An event: when it was last recorded, and in which capture.
#[derive(Debug, Clone, Copy)]
struct Event {
    recorded: Option<Instant>,
    capture: Option<u64>,
    /// What the recording thread had executed by then.
    plans: Plans,
}

/// The cuDNN plans that a thread has executed: how many, and their pretended time in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Plans {
    count: u64,
    time: u64,
}

thread_local! {
    static PLANS: Cell<Plans> = const { Cell::new(Plans { count: 0, time: 0 }) };
}

/// Accounts one executed cuDNN plan that takes `time` units of [`PLAN_UNIT_MS`].
pub fn plan_executed(time: u64) {
    let Plans {
        count,
        time: before,
    } = PLANS.get();
    PLANS.set(Plans {
        count: count + 1,
        time: before + time,
    });
}

/// A unit of pretended time; only the order of plans matters.
const PLAN_UNIT_MS: f32 = 1e-3;

/// A captured graph. Its nodes are only counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Graph {
    pub nodes: u64,
}

#[derive(Debug)]
struct Capture {
    origin: u64,
    graph: u64,
}

#[derive(Debug, Default)]
struct Tables {
    next: u64,
    streams: HashMap<u64, Stream>,
    /// The default streams can be captured too, but have no entry in `streams`.
    special: BTreeMap<u64, u64>,
    events: HashMap<u64, Event>,
    graphs: HashMap<u64, Graph>,
    executables: HashMap<u64, Graph>,
    captures: HashMap<u64, Capture>,
}

impl Tables {
    fn handle(&mut self) -> u64 {
        self.next += 1;
        FIRST_HANDLE + self.next * HANDLE_STEP
    }

    fn capture_of(&self, stream: u64) -> Option<u64> {
        self.streams
            .get(&stream)
            .map_or_else(|| self.special.get(&stream).copied(), |entry| entry.capture)
    }

    fn set_capture(&mut self, stream: u64, capture: Option<u64>) {
        if let Some(entry) = self.streams.get_mut(&stream) {
            entry.capture = capture;
        } else if let Some(id) = capture {
            self.special.insert(stream, id);
        } else {
            self.special.remove(&stream);
        }
    }
}

static TABLES: std::sync::LazyLock<Mutex<Tables>> =
    std::sync::LazyLock::new(|| Mutex::new(Tables::default()));

/// The special streams: default, legacy, per thread.
const fn is_special(stream: u64) -> bool {
    stream <= 2
}

/// A handle for an opaque object of a library that needs no state.
pub fn opaque_handle() -> u64 {
    TABLES.lock().handle()
}

/// Makes a stream on `device`.
pub fn create_stream(device: u32, flags: u32, priority: i32) -> u64 {
    let mut tables = TABLES.lock();
    let handle = tables.handle();
    tables.streams.insert(
        handle,
        Stream {
            device,
            flags,
            priority,
            capture: None,
        },
    );
    handle
}

/// Destroys a stream; false if there is no such stream.
pub fn destroy_stream(stream: u64) -> bool {
    TABLES.lock().streams.remove(&stream).is_some()
}

/// The stream behind a handle; `None` for the special ones and for stale handles.
pub fn stream(stream: u64) -> Option<Stream> {
    TABLES.lock().streams.get(&stream).copied()
}

/// Whether the handle may be used.
pub fn is_stream(stream: u64) -> bool {
    is_special(stream) || TABLES.lock().streams.contains_key(&stream)
}

/// Makes an event.
pub fn create_event() -> u64 {
    let mut tables = TABLES.lock();
    let handle = tables.handle();
    tables.events.insert(
        handle,
        Event {
            recorded: None,
            capture: None,
            plans: Plans::default(),
        },
    );
    handle
}

/// Destroys an event; false if there is no such event.
pub fn destroy_event(event: u64) -> bool {
    TABLES.lock().events.remove(&event).is_some()
}

/// Records `event` on `stream`; false if there is no such event.
pub fn record(event: u64, stream: u64) -> bool {
    let mut tables = TABLES.lock();
    let capture = tables.capture_of(stream);
    let Some(entry) = tables.events.get_mut(&event) else {
        return false;
    };
    entry.recorded = Some(Instant::now());
    entry.plans = PLANS.get();
    entry.capture = capture;
    true
}

/// Makes `stream` wait for `event`; a captured event pulls the stream into its capture.
pub fn wait(stream: u64, event: u64) -> bool {
    let mut tables = TABLES.lock();
    let Some(entry) = tables.events.get(&event).copied() else {
        return false;
    };
    if let Some(id) = entry.capture
        && tables.captures.contains_key(&id)
    {
        tables.set_capture(stream, Some(id));
    }
    true
}

/// How a query of an event ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventState {
    Unknown,
    Done,
    /// It was recorded in a capture and may not be queried.
    Captured,
}

/// The state of `event`.
pub fn event_state(event: u64) -> EventState {
    let tables = TABLES.lock();
    match tables.events.get(&event) {
        None => EventState::Unknown,
        Some(Event {
            capture: Some(id), ..
        }) if tables.captures.contains_key(id) => EventState::Captured,
        Some(_) => EventState::Done,
    }
}

/// Milliseconds between two recorded events: the time the host took, as kernels take none.
/// Around a single cuDNN plan it is the plan's pretended time, so that benchmark mode picks the
/// plan that the heuristics rank first, always.
pub fn elapsed_ms(start: u64, end: u64) -> Option<f32> {
    let tables = TABLES.lock();
    let (start, end) = (tables.events.get(&start)?, tables.events.get(&end)?);
    if end.plans.count == start.plans.count + 1 {
        return Some((end.plans.time - start.plans.time) as f32 * PLAN_UNIT_MS);
    }
    let (start, end) = (start.recorded?, end.recorded?);
    let elapsed = end.saturating_duration_since(start);
    // Real events tick in about half a microsecond and never report the impossible zero that
    // programs divide by.
    Some((elapsed.as_secs_f32() * 1e3).max(5e-4))
}

/// Starts capturing `stream`; false if it is being captured already.
pub fn begin_capture(stream: u64) -> bool {
    let mut tables = TABLES.lock();
    if tables.capture_of(stream).is_some() {
        return false;
    }
    let graph = tables.handle();
    tables.graphs.insert(graph, Graph::default());
    let id = tables.next;
    tables.captures.insert(
        id,
        Capture {
            origin: stream,
            graph,
        },
    );
    tables.set_capture(stream, Some(id));
    true
}

/// Why a capture could not be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureError {
    NotCapturing,
    WrongStream,
}

/// Ends the capture that began on `stream` and returns its graph.
pub fn end_capture(stream: u64) -> Result<u64, CaptureError> {
    let mut tables = TABLES.lock();
    let id = tables
        .capture_of(stream)
        .ok_or(CaptureError::NotCapturing)?;
    let origin = tables.captures.get(&id).map(|capture| capture.origin);
    if origin != Some(stream) {
        return Err(CaptureError::WrongStream);
    }
    let graph = tables
        .captures
        .remove(&id)
        .map_or(0, |capture| capture.graph);
    for entry in tables.streams.values_mut() {
        if entry.capture == Some(id) {
            entry.capture = None;
        }
    }
    tables.special.retain(|_, capture| *capture != id);
    Ok(graph)
}

/// The capture that `stream` takes part in: (id, graph).
pub fn capture(stream: u64) -> Option<(u64, u64)> {
    let tables = TABLES.lock();
    let id = tables.capture_of(stream)?;
    tables.captures.get(&id).map(|capture| (id, capture.graph))
}

/// Whether any capture is under way; cheap enough for every launch.
pub fn note_node(stream: u64) {
    let mut tables = TABLES.lock();
    if tables.captures.is_empty() {
        return;
    }
    let Some(id) = tables.capture_of(stream) else {
        return;
    };
    let Some(graph) = tables.captures.get(&id).map(|capture| capture.graph) else {
        return;
    };
    if let Some(graph) = tables.graphs.get_mut(&graph) {
        graph.nodes += 1;
    }
}

/// The graph behind a handle.
pub fn graph(handle: u64) -> Option<Graph> {
    TABLES.lock().graphs.get(&handle).copied()
}

/// Makes an executable graph.
pub fn instantiate(handle: u64) -> Option<u64> {
    let mut tables = TABLES.lock();
    let graph = tables.graphs.get(&handle).copied()?;
    let executable = tables.handle();
    tables.executables.insert(executable, graph);
    Some(executable)
}

/// Whether an executable graph exists.
pub fn is_executable(handle: u64) -> bool {
    TABLES.lock().executables.contains_key(&handle)
}

/// Destroys a graph.
pub fn destroy_graph(handle: u64) -> bool {
    TABLES.lock().graphs.remove(&handle).is_some()
}

/// Destroys an executable graph.
pub fn destroy_executable(handle: u64) -> bool {
    TABLES.lock().executables.remove(&handle).is_some()
}
