//! Streams, events, capture and graphs.
//!
//! All enqueued work is done at once, but each stream has a virtual clock that its work advances by
//! the time it would have taken ([`crate::clock`]). The host's own time does not count there; when the
//! host waits for a stream, later work on every stream starts after the work it waited for.
//!
//! Whether an event has passed when the host asks is answered on a second clock, on which the host takes its time as
//! well ([`HOST`] for each launch): PyTorch's allocator asks before it reuses what `record_stream` marked, and a host
//! that is far ahead of the GPU cannot have it yet (`bench/gpu/results/late_streams.jsonl`).
//!
//! Handles are numbers, never addresses of Rust objects, so that a stale one is an error and not
//! a crash.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::clock::EVENT;
use crate::sync::Mutex;
use crate::work::{self, Work};
use crate::{ledger, watchdog};

/// Handles start here: far from null and from the special streams 1 (legacy) and 2 (per thread).
const FIRST_HANDLE: u64 = 0x1000;
/// The legacy stream.
const LEGACY: u64 = 1;
/// Handles are this far apart, so that they look like aligned pointers.
const HANDLE_STEP: u64 = 0x10;

/// What the host needs to put one piece of work on a stream, PyTorch's part included. Chosen, not fitted: a step of GPT-2
/// kept it busy for 28 µs a launch (`bench/gpu/results/h200_host.jsonl`), a launch alone takes some 5 µs.
const HOST: Duration = Duration::from_micros(15);
/// What the host needs to ask for an event.
const ASK: Duration = Duration::from_micros(2);
/// A thread that has put nothing on any stream and asks for the same event so often waits for it. A number, not a time: each
/// run of a job must give the same.
const PATIENCE: u32 = 200;

thread_local! {
    /// Whether another thread than the main one and PyTorch's own puts work on streams here.
    static IS_ASIDE: bool = is_aside();
    /// How much work the main thread had put on streams when this one, aside of it, last did.
    static BESIDE: Cell<Option<u64>> = const { Cell::new(None) };
    /// Whether the thread puts work on streams. What the others ask (those that pin memory) moves no clock.
    static WORKS: Cell<bool> = const { Cell::new(false) };
    /// The event that the thread last asked for in vain since it put work on a stream, and how often.
    static ASKED: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
    /// How long a thread that puts no work on streams has asked in vain.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// A stream.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    pub device: u32,
    pub flags: u32,
    pub priority: i32,
    capture: Option<u64>,
    /// When its work will be done, on the virtual clock.
    ready: Duration,
    /// The same on the clock of [`HOST`].
    due: Duration,
    /// The last collective that its work comes after.
    mark: u64,
}

/// An event: when it was last recorded, and in which capture.
#[derive(Debug, Clone, Copy)]
struct Event {
    recorded: Option<Duration>,
    /// When it will have passed, on the clock of [`HOST`].
    due: Duration,
    capture: Option<u64>,
    mark: u64,
}

/// A captured graph. Its nodes are only counted and timed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Graph {
    pub nodes: u64,
    /// How long its nodes take one after the other.
    pub time: Duration,
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
    /// When the work of the special streams will be done, by device and stream.
    ready: BTreeMap<(u32, u64), Duration>,
    /// The last collective that the work of a special stream comes after.
    marks: BTreeMap<(u32, u64), u64>,
    /// The latest moment that the host has waited for.
    witnessed: Duration,
    /// When the work of the special streams will be done, on the clock of [`HOST`].
    due: BTreeMap<(u32, u64), Duration>,
    /// Where the host is on its clock.
    host: Duration,
    /// How much work came from the main thread and PyTorch's own.
    main: u64,
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

    /// The end of the work on a stream. The legacy stream is the default one by another name.
    fn ready(&mut self, device: u32, stream: u64) -> &mut Duration {
        match self.streams.get_mut(&stream) {
            Some(entry) => &mut entry.ready,
            None => self
                .ready
                .entry((device, if stream == LEGACY { 0 } else { stream }))
                .or_default(),
        }
    }

    /// The end of the work on a stream, on the clock of [`HOST`].
    fn due(&mut self, device: u32, stream: u64) -> &mut Duration {
        match self.streams.get_mut(&stream) {
            Some(entry) => &mut entry.due,
            None => self
                .due
                .entry((device, if stream == LEGACY { 0 } else { stream }))
                .or_default(),
        }
    }

    /// The last collective that the work of a stream comes after.
    fn mark(&mut self, device: u32, stream: u64) -> &mut u64 {
        match self.streams.get_mut(&stream) {
            Some(entry) => &mut entry.mark,
            None => self
                .marks
                .entry((device, if stream == LEGACY { 0 } else { stream }))
                .or_default(),
        }
    }

    /// When work put on a stream now would start.
    fn now(&mut self, device: u32, stream: u64) -> Duration {
        let witnessed = self.witnessed;
        (*self.ready(device, stream)).max(witnessed)
    }

    /// Puts work on a stream and says when it will be done.
    fn spend(&mut self, device: u32, stream: u64, time: Duration) -> Duration {
        let done = self.now(device, stream) + time;
        *self.ready(device, stream) = done;
        let host = self.host;
        let due = self.due(device, stream);
        *due = host.max(*due) + time;
        done
    }

    /// The end of all work on a device.
    fn horizon(&self, device: u32) -> Duration {
        let own = self
            .streams
            .values()
            .filter(|stream| stream.device == device);
        let special = self.ready.iter().filter(|((of, _), _)| *of == device);
        let latest = own
            .map(|stream| stream.ready)
            .chain(special.map(|(_, ready)| *ready))
            .max();
        latest.unwrap_or_default().max(self.witnessed)
    }

    fn create_graph(&mut self) -> u64 {
        let graph = self.handle();
        self.graphs.insert(graph, Graph::default());
        graph
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
            ready: Duration::ZERO,
            due: Duration::ZERO,
            mark: 0,
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
            due: Duration::ZERO,
            capture: None,
            mark: 0,
        },
    );
    handle
}

/// Destroys an event; false if there is no such event.
pub fn destroy_event(event: u64) -> bool {
    TABLES.lock().events.remove(&event).is_some()
}

/// Records `event` on `stream`; false if there is no such event.
pub fn record(device: u32, event: u64, stream: u64) -> bool {
    let mut tables = TABLES.lock();
    let capture = tables.capture_of(stream);
    let moment = match capture {
        Some(_) => tables.now(device, stream),
        None => tables.spend(device, stream, EVENT),
    };
    let mark = *tables.mark(device, stream);
    let due = *tables.due(device, stream);
    let Some(entry) = tables.events.get_mut(&event) else {
        return false;
    };
    entry.recorded = Some(moment);
    entry.due = due;
    entry.mark = mark;
    entry.capture = capture;
    drop(tables);
    if capture.is_none() {
        watchdog::recorded(event, stream, due);
    }
    true
}

/// Makes `stream` wait for `event`; a captured event pulls the stream into its capture.
pub fn wait(device: u32, stream: u64, event: u64) -> bool {
    let mut tables = TABLES.lock();
    let Some(entry) = tables.events.get(&event).copied() else {
        return false;
    };
    if let Some(id) = entry.capture
        && tables.captures.contains_key(&id)
    {
        tables.set_capture(stream, Some(id));
    } else if entry.capture.is_none()
        && let Some(recorded) = entry.recorded
    {
        let ready = tables.ready(device, stream);
        *ready = recorded.max(*ready);
        let due = tables.due(device, stream);
        *due = entry.due.max(*due);
        let mark = tables.mark(device, stream);
        *mark = entry.mark.max(*mark);
    }
    true
}

/// How a query of an event ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventState {
    Unknown,
    Done,
    /// The work before it is not done yet.
    Pending,
    /// It was recorded in a capture and may not be queried.
    Captured,
}

/// The state of `event` when the host asks for it without waiting.
pub fn event_state(event: u64) -> EventState {
    let mut tables = TABLES.lock();
    let Some(found) = tables.events.get(&event).copied() else {
        return EventState::Unknown;
    };
    if found
        .capture
        .is_some_and(|id| tables.captures.contains_key(&id))
    {
        return EventState::Captured;
    }
    let works = WORKS.get();
    let (same, times) = ASKED.get();
    let times = if same == event { times + 1 } else { 1 };
    let now = if works {
        tables.host += ASK;
        tables.host
    } else {
        tables.host + WAITED.get()
    };
    if found.due > now && times < PATIENCE {
        ASKED.set((event, times));
        WAITED.set(WAITED.get() + ASK);
        return EventState::Pending;
    }
    drop(tables);
    if works {
        witness_event(event);
    } else {
        WAITED.set(Duration::ZERO);
    }
    EventState::Done
}

/// Where the host is on its clock.
pub fn host() -> Duration {
    TABLES.lock().host
}

/// Whether there is such an event.
pub fn is_event(event: u64) -> bool {
    TABLES.lock().events.contains_key(&event)
}

/// Milliseconds between two recorded events on the virtual clock.
pub fn elapsed_ms(start: u64, end: u64) -> Option<f32> {
    let tables = TABLES.lock();
    let start = tables.events.get(&start)?.recorded?;
    let end = tables.events.get(&end)?.recorded?;
    let elapsed = (end.as_secs_f64() - start.as_secs_f64()) * 1e3;
    // Real events tick in about half a microsecond and never report the impossible zero that
    // programs divide by.
    let least = 5e-4_f64.copysign(elapsed);
    Some(if elapsed.abs() < least.abs() {
        least
    } else {
        elapsed
    } as f32)
}

/// Notes that work on a stream comes after collective `mark` from now on.
pub fn mark(device: u32, stream: u64, mark: u64) {
    *TABLES.lock().mark(device, stream) = mark;
}

/// The host waits for everything on `stream`. Returns the last collective among it.
pub fn witness_stream(device: u32, stream: u64) -> u64 {
    work::note(Work::Wait);
    let mut tables = TABLES.lock();
    let now = tables.now(device, stream);
    tables.witnessed = now;
    tables.host = (*tables.due(device, stream)).max(tables.host);
    *tables.mark(device, stream)
}

/// The host waits for `event`. Returns the last collective before it.
pub fn witness_event(event: u64) -> u64 {
    work::note(Work::Wait);
    let mut tables = TABLES.lock();
    let Some(event) = tables.events.get(&event).copied() else {
        return 0;
    };
    if let Some(recorded) = event.recorded {
        tables.witnessed = recorded.max(tables.witnessed);
        tables.host = event.due.max(tables.host);
    }
    event.mark
}

/// When everything put on `device` so far will be done, on the virtual clock.
pub fn horizon(device: u32) -> Duration {
    TABLES.lock().horizon(device)
}

/// The host waits for everything on `device`.
pub fn witness_device(device: u32) {
    work::note(Work::Wait);
    let mut tables = TABLES.lock();
    tables.witnessed = tables.horizon(device);
    let streams = tables.streams.values();
    let own = streams.filter(|stream| stream.device == device);
    let special = tables.due.iter().filter(|((of, _), _)| *of == device);
    let last = own
        .map(|stream| stream.due)
        .chain(special.map(|(_, due)| *due))
        .max();
    tables.host = last.unwrap_or_default().max(tables.host);
}

/// Starts capturing `stream`; false if it is being captured already.
pub fn begin_capture(stream: u64) -> bool {
    begin_capture_to(stream, None)
}

/// Starts capturing `stream` into `graph`, or into a new one.
pub fn begin_capture_to(stream: u64, graph: Option<u64>) -> bool {
    let mut tables = TABLES.lock();
    if tables.capture_of(stream).is_some() {
        return false;
    }
    let graph = graph.unwrap_or_else(|| tables.create_graph());
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

/// Puts work on a stream: a node where the stream is being captured, time on its clock otherwise.
/// `device` is the one whose special streams are meant.
pub fn spend(device: u32, stream: u64, time: Duration) {
    watchdog::left();
    WORKS.set(true);
    ASKED.set((0, 0));
    let mut tables = TABLES.lock();
    if !tables.captures.is_empty()
        && let Some(id) = tables.capture_of(stream)
        && let Some(graph) = tables.captures.get(&id).map(|capture| capture.graph)
    {
        if let Some(graph) = tables.graphs.get_mut(&graph) {
            graph.nodes += 1;
            graph.time += time;
        }
        return;
    }
    tables.host += HOST;
    tables.spend(device, stream, time);
    if !IS_ASIDE.with(|is| *is) {
        tables.main += 1;
        return;
    }
    let main = tables.main;
    drop(tables);
    if BESIDE
        .replace(Some(main))
        .is_some_and(|before| before != main)
    {
        ledger::assume(
            "threads",
            "threads of the script put work on the GPU side by side; what each of them holds when is a race, here as on a GPU, and \
             another run may differ",
        );
    }
}

fn is_aside() -> bool {
    // SAFETY: no arguments, and they cannot fail.
    let is_main = unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) };
    !is_main && !watchdog::is_named(b"pt_autograd")
}

/// Makes an empty graph.
pub fn create_graph() -> u64 {
    TABLES.lock().create_graph()
}

/// Counts one more node, which takes `time`; false if there is no such graph.
pub fn add_node(graph: u64, time: Duration) -> bool {
    let mut tables = TABLES.lock();
    let Some(found) = tables.graphs.get_mut(&graph) else {
        return false;
    };
    found.nodes += 1;
    found.time += time;
    true
}

/// Another graph with the same nodes.
pub fn clone_graph(graph: u64) -> Option<u64> {
    let mut tables = TABLES.lock();
    let found = tables.graphs.get(&graph).copied()?;
    let copy = tables.create_graph();
    tables.graphs.insert(copy, found);
    Some(copy)
}

/// An executable graph becomes what `graph` is; false if one of them is not there.
pub fn update_executable(executable: u64, graph: u64) -> bool {
    let mut tables = TABLES.lock();
    let found = tables.graphs.get(&graph).copied();
    match (found, tables.executables.get_mut(&executable)) {
        (Some(found), Some(place)) => {
            *place = found;
            true
        }
        _ => false,
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

/// Runs an executable graph on a stream; false if there is no such graph.
pub fn run_graph(device: u32, handle: u64, stream: u64) -> bool {
    let time = TABLES
        .lock()
        .executables
        .get(&handle)
        .map(|graph| graph.time);
    if let Some(time) = time {
        work::note(Work::Fixed {
            nanoseconds: time.as_nanos() as u64,
            what: "graph",
        });
        spend(device, stream, time);
    }
    time.is_some()
}

/// What an executable graph runs.
pub fn executable(handle: u64) -> Option<Graph> {
    TABLES.lock().executables.get(&handle).copied()
}

/// Whether an executable graph exists.
pub fn is_executable(handle: u64) -> bool {
    executable(handle).is_some()
}

/// Destroys a graph.
pub fn destroy_graph(handle: u64) -> bool {
    TABLES.lock().graphs.remove(&handle).is_some()
}

/// Destroys an executable graph.
pub fn destroy_executable(handle: u64) -> bool {
    TABLES.lock().executables.remove(&handle).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: u32 = 7;
    const MS: Duration = Duration::from_millis(1);
    /// What the host has waited for is one for all streams, so these tests run one by one.
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());

    fn marked(stream: u64) -> u64 {
        let event = create_event();
        assert!(record(DEVICE, event, stream));
        event
    }

    fn between(start: u64, end: u64) -> f32 {
        elapsed_ms(start, end).unwrap_or(f32::NAN)
    }

    #[test]
    fn events_measure_the_work_between_them_and_never_zero() {
        let _guard = ONE_BY_ONE.lock();
        let stream = create_stream(DEVICE, 0, 0);
        let start = marked(stream);
        spend(DEVICE, stream, 3 * MS);
        let end = marked(stream);
        let ms = between(start, end);
        assert!((3.0..3.01).contains(&ms), "{ms}");
        assert!(between(start, start) > 0.0);
        assert!((between(end, start) + ms).abs() < 1e-6);
        assert!(elapsed_ms(start, create_event()).is_none());
    }

    #[test]
    fn streams_run_side_by_side_until_one_waits() {
        let _guard = ONE_BY_ONE.lock();
        let (one, two) = (create_stream(DEVICE, 0, 0), create_stream(DEVICE, 0, 0));
        let (start, side) = (marked(one), marked(two));
        spend(DEVICE, one, 5 * MS);
        spend(DEVICE, two, 2 * MS);
        let (end, side_end) = (marked(one), marked(two));
        assert!(between(side, side_end) < 2.1);
        wait(DEVICE, two, end);
        let late = marked(two);
        assert!(between(start, late) >= 5.0);
        spend(DEVICE, one, 4 * MS);
        witness_stream(DEVICE, one);
        assert!(between(late, marked(two)) >= 3.9);
    }

    #[test]
    fn an_event_is_pending_until_the_host_waits_or_has_asked_long_enough() {
        let _guard = ONE_BY_ONE.lock();
        let stream = create_stream(DEVICE, 0, 0);
        witness_stream(DEVICE, stream);
        spend(DEVICE, stream, MS);
        let early = marked(stream);
        spend(DEVICE, stream, 500 * MS);
        let late = marked(stream);
        assert_eq!(event_state(early), EventState::Pending);
        witness_event(early);
        assert_eq!(event_state(early), EventState::Done);
        assert_eq!(event_state(late), EventState::Pending);
        spend(DEVICE, create_stream(DEVICE, 0, 0), MS);
        assert_eq!(event_state(late), EventState::Pending);
        let asked = (1..2 * PATIENCE).take_while(|_| event_state(late) == EventState::Pending);
        assert_eq!(asked.count() as u32, PATIENCE - 2);
    }

    #[test]
    fn a_graph_takes_its_time_when_it_runs() {
        let _guard = ONE_BY_ONE.lock();
        let stream = create_stream(DEVICE, 0, 0);
        assert!(begin_capture(stream));
        let before = TABLES.lock().now(DEVICE, stream);
        spend(DEVICE, stream, 2 * MS);
        spend(DEVICE, stream, 2 * MS);
        assert_eq!(
            TABLES.lock().ready(DEVICE, stream).max(&mut before.clone()),
            &before
        );
        let graph = end_capture(stream).unwrap_or(0);
        assert_eq!(super::graph(graph).map(|graph| graph.nodes), Some(2));
        let executable = instantiate(graph).unwrap_or(0);
        let start = marked(stream);
        assert!(run_graph(DEVICE, executable, stream));
        assert!(run_graph(DEVICE, executable, stream));
        assert!(!run_graph(DEVICE, 3, stream));
        let ms = between(start, marked(stream));
        assert!((8.0..8.01).contains(&ms), "{ms}");
    }
}
