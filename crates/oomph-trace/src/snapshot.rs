//! PyTorch's memory snapshots: `torch.cuda.memory._dump_snapshot`, `_snapshot()`,
//! `memory_snapshot()` and the C++ writer, every version from 2.0 to 2.15.

use std::io::Read;
use std::path::Path;

use crate::error::{Error, Problem, ProblemKind};
use crate::events::{Action, Event, Events};
use crate::input::{self, Input};
use crate::pickle::{self, Heap, ListView, Lower, Record, Value};
use crate::stack_table::{Frame, StackId};
use crate::string_table::StringId;
use crate::trace::{Annotation, Block, BlockState, DeviceRows, Segment, Settings, Trace};
use crate::units::{Bytes, DeviceAddr, PoolId, StreamId, TimeUs};

/// Events that one history may hold: rows are numbered with 32 bits.
const MAX_EVENTS: usize = u32::MAX as usize - 1;
/// More than any device holds: 16 TiB. Sums of sizes stay far from 64 bits.
const MAX_SIZE: u64 = 16 << 40;
/// What a refused request may have asked for: a wrong shape asks for more than any device holds.
/// Beyond this (1 EiB) the number does not matter any more.
const MAX_REFUSED: u64 = 1 << 60;
/// Problems of one kind that are told one by one before they are only counted.
const MAX_TOLD: usize = 3;
/// Action names that are remembered: PyTorch has ten, and a file of invented ones must not turn
/// the scan over them into the work.
const MAX_REMEMBERED: usize = 32;

/// Reads a snapshot: plain, `.gz`, `.xz` or `.zst` (by its first bytes); `path` is for messages only.
pub fn read(file: impl Read + 'static, path: &Path) -> Result<(Trace, Vec<Problem>), Error> {
    read_from(input::unpacked(file, path)?, path)
}

/// Reads an unpacked snapshot; `path` is for messages only.
pub fn read_from(reader: impl Read, path: &Path) -> Result<(Trace, Vec<Problem>), Error> {
    read_input(Input::new(reader), path)
}

pub(crate) fn read_input<R: Read>(
    mut input: Input<R>,
    path: &Path,
) -> Result<(Trace, Vec<Problem>), Error> {
    let first = input.peek(16).to_vec();
    if first.is_empty() {
        return Err(match input.error.take() {
            Some(source) => Error::Io {
                path: path.to_owned(),
                source,
            },
            None => Error::Empty {
                path: path.to_owned(),
            },
        });
    }
    if first.first() != Some(&0x80) {
        return Err(Error::Format {
            path: path.to_owned(),
            found: format!("found {}", describe_head(&first)),
            expected: EXPECTED.to_owned(),
        });
    }
    let mut heap = Heap::default();
    for key in KEYS {
        heap.strings.intern(key);
    }
    let mut lowering = Lowering::default();
    let outcome =
        pickle::run(&mut input, &mut heap, &mut lowering).map_err(|refusal| Error::Pickle {
            path: path.to_owned(),
            offset: refusal.offset,
            what: refusal.what,
        })?;
    lowering.finish(heap, &outcome, path)
}

pub(crate) const EXPECTED: &str = "a PyTorch memory snapshot (a pickle made by \
    torch.cuda.memory._dump_snapshot), an oomph trace, a profiler trace, or a log with an \
    out-of-memory message";

pub(crate) fn describe_head(head: &[u8]) -> String {
    if head.starts_with(b"PK\x03\x04") {
        return "a zip archive (a torch.save checkpoint or a model?)".to_owned();
    }
    if head.starts_with(b"<") {
        return "HTML or XML (a page saved from the browser?)".to_owned();
    }
    if head.starts_with(b"{") || head.starts_with(b"[") {
        return "JSON".to_owned();
    }
    if head.starts_with(b"\x7fELF") {
        return "a program or library".to_owned();
    }
    let shown: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("a file that begins with {}", shown.join(" "))
}

macro_rules! keys {
    ($($constant:ident = $text:literal,)*) => {
        /// Known strings, interned first, so that their handles are constants.
        const KEYS: &[&str] = &[$($text),*];
        #[expect(non_camel_case_types, reason = "variants only number the constants below")]
        #[expect(clippy::upper_case_acronyms, reason = "variants only number the constants below")]
        enum Number { $($constant),* }
        $(const $constant: StringId = StringId(Number::$constant as u32 + 1);)*
    };
}

keys! {
    ACTION = "action",
    ADDR = "addr",
    DEVICE_FREE = "device_free",
    SIZE = "size",
    STREAM = "stream",
    TIME_US = "time_us",
    FRAMES = "frames",
    COMPILE_CONTEXT = "compile_context",
    USER_METADATA = "user_metadata",
    POOL_ID = "pool_id",
    FILENAME = "filename",
    LINE = "line",
    NAME = "name",
    STATE = "state",
    REQUESTED_SIZE = "requested_size",
    ADDRESS = "address",
    HISTORY = "history",
    TOTAL_SIZE = "total_size",
    BLOCKS = "blocks",
    SEGMENT_TYPE = "segment_type",
    SEGMENT_POOL_ID = "segment_pool_id",
    IS_EXPANDABLE = "is_expandable",
    DEVICE = "device",
    STAGE = "stage",
    NOT_AVAILABLE = "N/A",
    START = "START",
    SMALL = "small",
    ACTIVE_PENDING_FREE = "active_pending_free",
    ACTIVE_AWAITING_FREE = "active_awaiting_free",
    INACTIVE = "inactive",
    SEGMENTS = "segments",
    DEVICE_TRACES = "device_traces",
    ALLOCATOR_SETTINGS = "allocator_settings",
    REAL_SIZE = "real_size",
}

#[derive(Default)]
struct Lowering {
    events: Events,
    blocks: Vec<Block>,
    segments: Vec<Segment>,
    annotations: Vec<Annotation>,
    unknown_actions: usize,
    impossible_sizes: usize,
    overflow: bool,
    // Strings of actions seen so far; there are ten, so a scan beats a map.
    actions: Vec<(StringId, Action)>,
}

fn unsigned(value: Value) -> u64 {
    match value {
        // Addresses above 2^63 come as negative numbers from the C++ writer.
        Value::Int(value) => value as u64,
        Value::Unsigned(value) => value,
        _ => 0,
    }
}

fn signed(value: Value) -> i64 {
    match value {
        Value::Int(value) => value,
        Value::Unsigned(_) => i64::MAX,
        _ => 0,
    }
}

fn string(value: Value) -> StringId {
    match value {
        Value::Str(id) => id,
        _ => StringId::EMPTY,
    }
}

/// A size; negative ones and those larger than any device are invalid.
fn size(value: Value, lies: &mut usize) -> Bytes {
    let size = match value {
        Value::Int(value) => u64::try_from(value).unwrap_or(u64::MAX),
        other => unsigned(other),
    };
    if size > MAX_SIZE {
        *lies += 1;
        return Bytes::ZERO;
    }
    Bytes(size)
}

fn pool(heap: &Heap, value: Value) -> PoolId {
    match heap.list(value) {
        Some(ListView::Values(&[a, b])) => PoolId(unsigned(a), unsigned(b)),
        _ => PoolId::DEFAULT,
    }
}

impl Lower for Lowering {
    fn lower(&mut self, heap: &mut Heap, items: &[Value]) -> Option<Record> {
        let mut seen = 0_u64;
        for pair in items.chunks_exact(2) {
            if let Some(&Value::Str(StringId(id))) = pair.first()
                && id < 64
            {
                seen |= 1 << id;
            }
        }
        let has = |keys: &[StringId]| keys.iter().all(|key| seen & 1 << key.0 != 0);
        if has(&[ACTION, SIZE]) {
            self.event(heap, items)
        } else if has(&[FILENAME, NAME, LINE]) {
            Some(frame(heap, items))
        } else if has(&[STATE, SIZE]) {
            Some(self.block(heap, items))
        } else if has(&[TOTAL_SIZE, BLOCKS]) {
            Some(self.segment(heap, items))
        } else if has(&[STAGE, NAME, TIME_US]) {
            Some(self.annotation(items))
        } else {
            None
        }
    }
}

fn frame(heap: &mut Heap, items: &[Value]) -> Record {
    let mut frame = Frame::default();
    for (key, value) in pairs(items) {
        match key {
            FILENAME => frame.file = string(value),
            NAME => frame.name = string(value),
            LINE => frame.line = u32::try_from(signed(value)).unwrap_or(0),
            _ => {}
        }
    }
    Record::Frame(heap.stacks.intern_frame(frame))
}

fn pairs(items: &[Value]) -> impl Iterator<Item = (StringId, Value)> + '_ {
    items.chunks_exact(2).filter_map(|pair| match *pair {
        [Value::Str(key), value] => Some((key, value)),
        _ => None,
    })
}

impl Lowering {
    fn event(&mut self, heap: &Heap, items: &[Value]) -> Option<Record> {
        if self.events.len() >= MAX_EVENTS {
            self.overflow = true;
            return None;
        }
        let mut event = Event::default();
        let mut asked = Value::Int(0);
        for (key, value) in pairs(items) {
            match key {
                ACTION => event.action = self.action(heap, string(value)),
                ADDR | DEVICE_FREE => event.addr = DeviceAddr(unsigned(value)),
                SIZE => asked = value,
                STREAM => event.stream = StreamId(unsigned(value)),
                TIME_US => event.time = TimeUs(signed(value)),
                FRAMES => event.stack = heap.stack(value),
                COMPILE_CONTEXT => {
                    let context = string(value);
                    if context != NOT_AVAILABLE {
                        event.compile_context = context;
                    }
                }
                USER_METADATA => event.metadata = string(value),
                POOL_ID => event.pool = pool(heap, value),
                _ => {}
            }
        }
        event.size = match asked {
            Value::Int(asked) if event.action == Action::Oom && asked >= 0 => {
                Bytes(MAX_REFUSED.min(asked as u64))
            }
            asked => size(asked, &mut self.impossible_sizes),
        };
        Some(Record::Event(self.events.push(event) as u32))
    }

    fn action(&mut self, heap: &Heap, name: StringId) -> Action {
        if let Some(&(_, action)) = self.actions.iter().find(|&&(known, _)| known == name) {
            if action == Action::Unknown {
                self.unknown_actions += 1;
            }
            return action;
        }
        let action = Action::from_name(heap.strings.get(name)).unwrap_or(Action::Unknown);
        if action == Action::Unknown {
            self.unknown_actions += 1;
        }
        if self.actions.len() < MAX_REMEMBERED {
            self.actions.push((name, action));
        }
        action
    }

    fn block(&mut self, heap: &Heap, items: &[Value]) -> Record {
        let mut block = Block {
            addr: DeviceAddr(0),
            size: Bytes::ZERO,
            requested: Bytes::ZERO,
            state: BlockState::Allocated,
            stack: StackId::NONE,
            metadata: StringId::EMPTY,
        };
        let mut requested = None;
        for (key, value) in pairs(items) {
            match key {
                ADDRESS | ADDR => block.addr = DeviceAddr(unsigned(value)),
                SIZE => block.size = size(value, &mut self.impossible_sizes),
                REQUESTED_SIZE => requested = Some(size(value, &mut self.impossible_sizes)),
                STATE => {
                    block.state = match string(value) {
                        INACTIVE => BlockState::Inactive,
                        ACTIVE_PENDING_FREE | ACTIVE_AWAITING_FREE => BlockState::PendingFree,
                        _ => BlockState::Allocated,
                    }
                }
                FRAMES => block.stack = heap.stack(value),
                USER_METADATA => block.metadata = string(value),
                HISTORY => {
                    // 2.0 and older: the first entry is the block's own, the others are of
                    // blocks that were merged into it.
                    if let Some(ListView::Values([first, ..])) = heap.list(value) {
                        if let Some(at) = heap.get(*first, ADDR) {
                            block.addr = DeviceAddr(unsigned(at));
                        }
                        if let Some(real) = heap.get(*first, REAL_SIZE) {
                            requested = Some(size(real, &mut self.impossible_sizes));
                        }
                        if let Some(frames) = heap.get(*first, FRAMES) {
                            block.stack = heap.stack(frames);
                        }
                    }
                }
                _ => {}
            }
        }
        block.requested = requested.unwrap_or(block.size);
        self.blocks.push(block);
        Record::Block(self.blocks.len() as u32 - 1)
    }

    fn segment(&mut self, heap: &Heap, items: &[Value]) -> Record {
        let mut segment = Segment {
            device: 0,
            addr: DeviceAddr(0),
            size: Bytes::ZERO,
            stream: StreamId(0),
            is_small: false,
            is_expandable: false,
            pool: PoolId::DEFAULT,
            stack: StackId::NONE,
            blocks: 0..0,
        };
        let mut blocks = Value::None;
        for (key, value) in pairs(items) {
            match key {
                DEVICE => segment.device = unsigned(value) as u32,
                ADDRESS => segment.addr = DeviceAddr(unsigned(value)),
                TOTAL_SIZE => segment.size = size(value, &mut self.impossible_sizes),
                STREAM => segment.stream = StreamId(unsigned(value)),
                SEGMENT_TYPE => segment.is_small = string(value) == SMALL,
                SEGMENT_POOL_ID => segment.pool = pool(heap, value),
                IS_EXPANDABLE => segment.is_expandable = value == Value::Bool(true),
                FRAMES => segment.stack = heap.stack(value),
                BLOCKS => blocks = value,
                _ => {}
            }
        }
        if let Some(ListView::Values(values)) = heap.list(blocks) {
            let rows: Vec<usize> = values
                .iter()
                .filter_map(|&value| match heap.record(value) {
                    Some(Record::Block(row)) => Some(row as usize),
                    _ => None,
                })
                .collect();
            // Writers list a segment's blocks one after another.
            if let (Some(&first), Some(&last)) = (rows.first(), rows.last())
                && last.checked_sub(first) == Some(rows.len() - 1)
            {
                segment.blocks = first..last + 1;
            }
        }
        // Before 2.1 blocks had no address; they lie one after another.
        let mut at = segment.addr;
        if let Some(blocks) = self.blocks.get_mut(segment.blocks.clone()) {
            for block in blocks {
                if block.addr == DeviceAddr(0) {
                    block.addr = at;
                }
                at = block.addr.offset(block.size.0);
            }
        }
        self.segments.push(segment);
        Record::Segment(self.segments.len() as u32 - 1)
    }

    fn annotation(&mut self, items: &[Value]) -> Record {
        let mut annotation = Annotation {
            name: StringId::EMPTY,
            is_start: false,
            device: 0,
            time: TimeUs(0),
        };
        for (key, value) in pairs(items) {
            match key {
                NAME => annotation.name = string(value),
                STAGE => annotation.is_start = string(value) == START,
                DEVICE => annotation.device = unsigned(value) as u32,
                TIME_US => annotation.time = TimeUs(signed(value)),
                _ => {}
            }
        }
        self.annotations.push(annotation);
        Record::Annotation(self.annotations.len() as u32 - 1)
    }

    fn finish(
        self,
        heap: Heap,
        outcome: &pickle::Outcome,
        path: &Path,
    ) -> Result<(Trace, Vec<Problem>), Error> {
        let mut problems = Vec::new();
        let root = outcome.root;
        let not_a_snapshot = |found: String| Error::Format {
            path: path.to_owned(),
            found,
            expected: "a memory snapshot: a dictionary with `segments` and `device_traces` \
                       (torch.cuda.memory._dump_snapshot), or a list of segments \
                       (torch.cuda.memory_snapshot)"
                .to_owned(),
        };
        let nothing_read = self.events.is_empty() && self.segments.is_empty();
        let mut devices = Vec::new();
        let mut settings = Settings::default();
        if let Some(why) = &outcome.truncated {
            if nothing_read {
                return Err(not_a_snapshot(format!(
                    "the file {why}, and holds no event and no segment before that"
                )));
            }
            problems.push(Problem::new(
                ProblemKind::Truncated,
                format!(
                    "the file {why}: {} events, {} segments and {} blocks could be read; \
                     what follows rests on those",
                    self.events.len(),
                    self.segments.len(),
                    self.blocks.len()
                ),
            ));
        }
        match heap.list(root) {
            // torch.cuda.memory_snapshot(): only the state.
            Some(ListView::Values(values))
                if values
                    .iter()
                    .all(|&v| matches!(heap.record(v), Some(Record::Segment(_)))) => {}
            Some(ListView::Events(first, count)) => devices.push(DeviceRows {
                device: 0,
                rows: first as usize..(first + count) as usize,
            }),
            Some(_) => {
                return Err(not_a_snapshot(
                    "a pickle that holds a list, but not of segments".to_owned(),
                ));
            }
            None => {
                let Some(items) = heap.dict(root) else {
                    return Err(not_a_snapshot("a pickle of a single value".to_owned()));
                };
                let keys: Vec<StringId> = pairs(items).map(|(key, _)| key).collect();
                if !keys.contains(&SEGMENTS) && !keys.contains(&DEVICE_TRACES) {
                    let names: Vec<&str> = keys
                        .iter()
                        .take(8)
                        .map(|&key| heap.strings.get(key))
                        .collect();
                    return Err(not_a_snapshot(if names.is_empty() {
                        "a pickle of an empty dictionary".to_owned()
                    } else {
                        format!(
                            "a pickle of a dictionary with the keys {}",
                            names.join(", ")
                        )
                    }));
                }
                devices = device_rows(&heap, heap.get(root, DEVICE_TRACES));
                if let Some(value) = heap.get(root, ALLOCATOR_SETTINGS) {
                    settings = read_settings(&heap, value);
                }
            }
        }
        let listed: usize = devices.iter().map(|device| device.rows.len()).sum();
        if listed != self.events.len() {
            if outcome.truncated.is_some() {
                // Events of a list that was never closed belong to the last device.
                let start = devices.iter().map(|d| d.rows.end).max().unwrap_or(0);
                devices.push(DeviceRows {
                    device: devices.len() as u32,
                    rows: start..self.events.len(),
                });
            } else {
                problems.push(Problem::new(
                    ProblemKind::Inconsistent,
                    format!(
                        "{} events belong to no device's history and were ignored",
                        self.events.len().saturating_sub(listed)
                    ),
                ));
            }
        }
        if self.unknown_actions > 0 {
            problems.push(Problem::new(
                ProblemKind::Unknown,
                format!(
                    "{} events have an unknown action: {}",
                    self.unknown_actions,
                    self.actions
                        .iter()
                        .filter(|(_, action)| *action == Action::Unknown)
                        .take(MAX_TOLD)
                        .map(|&(name, _)| format!("{:?}", heap.strings.get(name)))
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            ));
        }
        if self.impossible_sizes > 0 {
            problems.push(Problem::new(
                ProblemKind::Inconsistent,
                format!(
                    "{} sizes are negative or larger than any device; they were read as zero",
                    self.impossible_sizes
                ),
            ));
        }
        if self.overflow {
            problems.push(Problem::new(
                ProblemKind::Incomplete,
                format!("only the first {MAX_EVENTS} events were read"),
            ));
        }
        if self.events.is_empty() && outcome.truncated.is_none() {
            problems.push(Problem::new(
                ProblemKind::NoHistory,
                "the snapshot has no history, only the state at its end: call \
                 torch.cuda.memory._record_memory_history(max_entries=sys.maxsize) before the \
                 model is built"
                    .to_owned(),
            ));
        }
        let trace = Trace {
            events: self.events,
            devices,
            segments: self.segments,
            blocks: self.blocks,
            annotations: self.annotations,
            settings,
            strings: heap.strings,
            stacks: heap.stacks,
            ..Trace::default()
        };
        Ok((trace, problems))
    }
}

fn device_rows(heap: &Heap, traces: Option<Value>) -> Vec<DeviceRows> {
    let mut devices = Vec::new();
    match traces.and_then(|traces| heap.list(traces)) {
        Some(ListView::Values(lists)) => {
            for (device, &list) in lists.iter().enumerate() {
                if let Some(ListView::Events(first, count)) = heap.list(list) {
                    devices.push(DeviceRows {
                        device: device as u32,
                        rows: first as usize..first as usize + count as usize,
                    });
                }
            }
        }
        // A file that ends inside the first device's list.
        Some(ListView::Events(first, count)) => devices.push(DeviceRows {
            device: 0,
            rows: first as usize..first as usize + count as usize,
        }),
        _ => {}
    }
    devices
}

fn read_settings(heap: &Heap, value: Value) -> Settings {
    let mut settings = Settings::default();
    for (key, value) in pairs(heap.dict(value).unwrap_or(&[])) {
        match heap.strings.get(key) {
            "PYTORCH_CUDA_ALLOC_CONF" | "PYTORCH_ALLOC_CONF" => {
                settings.conf = Some(heap.strings.get(string(value)).to_owned());
            }
            "max_split_size" => {
                settings.max_split_size = match value {
                    Value::Int(size) if size > 0 && size != i64::MAX => Some(Bytes(size as u64)),
                    _ => None,
                };
            }
            "garbage_collection_threshold" => {
                settings.garbage_collection_threshold = match value {
                    Value::Float(share) if share.is_finite() => share,
                    _ => 0.0,
                };
            }
            "expandable_segments" => settings.expandable_segments = value == Value::Bool(true),
            "roundup_power2_divisions" => {
                for (size, divisions) in pairs(heap.dict(value).unwrap_or(&[])) {
                    let Ok(mib) = heap.strings.get(size).parse::<u32>() else {
                        continue;
                    };
                    if let (true, Some(slot)) = (
                        mib.is_power_of_two(),
                        settings
                            .roundup_power2_divisions
                            .get_mut(mib.trailing_zeros() as usize),
                    ) {
                        *slot = u32::try_from(unsigned(divisions)).unwrap_or(0);
                    }
                }
            }
            _ => {}
        }
    }
    if settings.conf.is_none() {
        settings.conf = Some(String::new());
    }
    settings
}
