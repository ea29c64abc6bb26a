//! oomph's own trace file: small, written while the job runs, readable up to where it was cut.
//!
//! ```text
//! file    := magic version chunk*
//! magic   := "OOMPHTRC"                     8 bytes
//! version := u16 little endian              1; readers refuse what they do not know
//! chunk   := kind length payload checksum
//! kind    := u8                             see below; an unknown kind is passed over
//! length  := varint                         bytes of the payload
//! checksum:= u32 little endian              FNV-1a of the payload
//!
//! kind 1  strings      (varint length, bytes)*                     handles count up from 1
//! kind 2  frames       (varint file, varint name, varint line)*    handles count up from 0
//! kind 3  stacks       (varint frames, varint frame*)*             handles count up from 1
//! kind 4  device       varint device                               events that follow are of it
//! kind 5  events       columns, each a run of varints, see `write_events`
//! kind 6  segments     rows of varints
//! kind 7  blocks       rows of varints, blocks of the segments in order
//! kind 8  annotations  rows of varints
//! kind 9  header       JSON: settings and context
//! kind 10 labels       rows of varints: the table of distinct labels
//! kind 11 end          empty: the file is whole
//! ```
//!
//! Strings, frames and stacks come before the first chunk that refers to them, so a writer appends
//! and a reader needs one pass. Numbers that change little (addresses, times) are written as the
//! zigzag difference to the row before.

use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Problem, ProblemKind};
use crate::events::{Action, Event};
use crate::input::Input;
use crate::labels::{Category, Label, Labels, Phase};
use crate::stack_table::{Frame, FrameId, StackId};
use crate::string_table::StringId;
use crate::trace::{Annotation, Block, BlockState, Context, DeviceRows, Segment, Settings, Trace};
use crate::units::{Bytes, DeviceAddr, PoolId, StreamId, TimeUs};

/// The first bytes.
pub const MAGIC: &[u8; 8] = b"OOMPHTRC";
/// The layout's version.
pub const VERSION: u16 = 1;
/// The largest payload of a chunk. A writer closes a chunk after [`EVENTS_PER_CHUNK`] events,
/// which take some hundred kilobytes.
const MAX_CHUNK: u64 = 64 << 20;
/// Events of a chunk: what is lost at most when the process dies.
const EVENTS_PER_CHUNK: usize = 16_384;
/// Columns of an event.
const COLUMNS: usize = 11;
/// The columns that hold changes, not values.
const ADDRESS: usize = 1;
const TIME: usize = 4;

const STRINGS: u8 = 1;
const FRAMES: u8 = 2;
const STACKS: u8 = 3;
const DEVICE: u8 = 4;
const EVENTS: u8 = 5;
const SEGMENTS: u8 = 6;
const BLOCKS: u8 = 7;
const ANNOTATIONS: u8 = 8;
const HEADER: u8 = 9;
const LABELS: u8 = 10;
const END: u8 = 11;

/// Settings and context, as they are written.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Header {
    conf: Option<String>,
    max_split_size: Option<u64>,
    garbage_collection_threshold: f64,
    expandable_segments: bool,
    roundup_power2_divisions: [u32; 16],
    device_total: Option<u64>,
    device_name: Option<String>,
    allowed: Option<u64>,
    outside: Option<u64>,
    other_processes: Option<u64>,
    torch_version: Option<String>,
    rank: Option<u32>,
    world_size: Option<u32>,
}

fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash: u32, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_change(out: &mut Vec<u8>, before: u64, now: u64) {
    let change = now.wrapping_sub(before) as i64;
    put(out, (change << 1 ^ change >> 63) as u64);
}

/// Varints of a payload, one after another.
struct Numbers<'a> {
    bytes: &'a [u8],
}

impl Numbers<'_> {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn next(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        u32::try_from(self.next()?).ok()
    }

    fn change(&mut self, before: u64) -> Option<u64> {
        let coded = self.next()?;
        let change = (coded >> 1) as i64 ^ -((coded & 1) as i64);
        Some(before.wrapping_add(change as u64))
    }

    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }
}

/// Writes a trace file while the job runs: each call appends what is new.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    strings: usize,
    frames: usize,
    stacks: usize,
    labels: usize,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        Ok(Self {
            out,
            strings: 1,
            frames: 0,
            stacks: 1,
            labels: 0,
        })
    }

    fn chunk(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let mut head = vec![kind];
        put(&mut head, payload.len() as u64);
        self.out.write_all(&head)?;
        self.out.write_all(payload)?;
        self.out.write_all(&checksum(payload).to_le_bytes())
    }

    /// Appends what the trace's tables gained since the last call.
    fn tables(&mut self, trace: &Trace) -> io::Result<()> {
        /// Chunks stay far below the reader's cap.
        const FLUSH: usize = 1 << 20;
        let mut payload = Vec::new();
        for id in self.strings..trace.strings.len() {
            let text = trace.strings.get(StringId(id as u32));
            put(&mut payload, text.len() as u64);
            payload.extend_from_slice(text.as_bytes());
            if payload.len() > FLUSH {
                self.chunk(STRINGS, &payload)?;
                payload.clear();
            }
        }
        self.strings = trace.strings.len();
        self.flush(STRINGS, &mut payload)?;
        for id in self.frames..trace.stacks.frame_count() {
            let frame = trace.stacks.frame(FrameId(id as u32));
            put(&mut payload, u64::from(frame.file.0));
            put(&mut payload, u64::from(frame.name.0));
            put(&mut payload, u64::from(frame.line));
            if payload.len() > FLUSH {
                self.chunk(FRAMES, &payload)?;
                payload.clear();
            }
        }
        self.frames = trace.stacks.frame_count();
        self.flush(FRAMES, &mut payload)?;
        for id in self.stacks..trace.stacks.len() {
            let stack = trace.stacks.stack(StackId(id as u32));
            put(&mut payload, stack.len() as u64);
            for frame in stack {
                put(&mut payload, u64::from(frame.0));
            }
            if payload.len() > FLUSH {
                self.chunk(STACKS, &payload)?;
                payload.clear();
            }
        }
        self.stacks = trace.stacks.len();
        self.flush(STACKS, &mut payload)?;
        if let Some(labels) = &trace.labels {
            let table = labels.table();
            for label in table.iter().skip(self.labels) {
                put(&mut payload, label.category as u64);
                put(&mut payload, u64::from(label.module.0));
                put(&mut payload, u64::from(label.op.0));
                put(&mut payload, label.phase as u64);
                put(&mut payload, u64::from(label.step));
            }
            self.labels = table.len();
            self.flush(LABELS, &mut payload)?;
        }
        Ok(())
    }

    fn flush(&mut self, kind: u8, payload: &mut Vec<u8>) -> io::Result<()> {
        if !payload.is_empty() {
            self.chunk(kind, payload)?;
            payload.clear();
        }
        Ok(())
    }

    /// Appends events of one device, with the strings and stacks that they need.
    pub fn events(
        &mut self,
        trace: &Trace,
        device: u32,
        rows: std::ops::Range<usize>,
    ) -> io::Result<()> {
        self.tables(trace)?;
        let mut payload = Vec::new();
        put(&mut payload, u64::from(device));
        self.chunk(DEVICE, &payload)?;
        let mut start = rows.start;
        while start < rows.end {
            let end = rows.end.min(start + EVENTS_PER_CHUNK);
            self.chunk(EVENTS, &write_events(trace, start..end))?;
            start = end;
        }
        Ok(())
    }

    /// Appends the state at the end and closes the file.
    pub fn finish(mut self, trace: &Trace) -> io::Result<W> {
        self.tables(trace)?;
        let mut payload = Vec::new();
        for segment in &trace.segments {
            put(&mut payload, u64::from(segment.device));
            put(&mut payload, segment.addr.0);
            put(&mut payload, segment.size.0);
            put(&mut payload, segment.stream.0);
            put(
                &mut payload,
                u64::from(segment.is_small) | u64::from(segment.is_expandable) << 1,
            );
            put(&mut payload, segment.pool.0);
            put(&mut payload, segment.pool.1);
            put(&mut payload, u64::from(segment.stack.0));
            put(&mut payload, segment.blocks.start as u64);
            put(&mut payload, segment.blocks.len() as u64);
        }
        self.flush(SEGMENTS, &mut payload)?;
        for block in &trace.blocks {
            put(&mut payload, block.addr.0);
            put(&mut payload, block.size.0);
            put(&mut payload, block.requested.0);
            put(&mut payload, block.state as u64);
            put(&mut payload, u64::from(block.stack.0));
            put(&mut payload, u64::from(block.metadata.0));
        }
        self.flush(BLOCKS, &mut payload)?;
        for annotation in &trace.annotations {
            put(&mut payload, u64::from(annotation.name.0));
            put(&mut payload, u64::from(annotation.is_start));
            put(&mut payload, u64::from(annotation.device));
            put_change(&mut payload, 0, annotation.time.0 as u64);
        }
        self.flush(ANNOTATIONS, &mut payload)?;
        let settings = &trace.settings;
        let context = &trace.context;
        let bytes = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0);
        let header = Header {
            conf: settings.conf.clone(),
            max_split_size: bytes(settings.max_split_size),
            garbage_collection_threshold: settings.garbage_collection_threshold,
            expandable_segments: settings.expandable_segments,
            roundup_power2_divisions: settings.roundup_power2_divisions,
            device_total: bytes(context.device_total),
            device_name: context.device_name.clone(),
            allowed: bytes(context.allowed),
            outside: bytes(context.outside),
            other_processes: bytes(context.other_processes),
            torch_version: context.torch_version.clone(),
            rank: context.rank,
            world_size: context.world_size,
        };
        let header = serde_json::to_vec(&header).map_err(io::Error::other)?;
        self.chunk(HEADER, &header)?;
        self.chunk(END, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Writes a whole trace.
pub fn write(trace: &Trace, out: impl Write) -> io::Result<()> {
    let mut writer = Writer::new(out)?;
    for device in &trace.devices {
        writer.events(trace, device.device, device.rows.clone())?;
    }
    writer.finish(trace)?;
    Ok(())
}

/// Columns: count; then for each column its length in bytes and its varints: action, address
/// (change), size, stream, time (change), stack, pool a, pool b, metadata, compile context, label.
/// A column of zeros only is empty.
fn write_events(trace: &Trace, rows: std::ops::Range<usize>) -> Vec<u8> {
    let mut columns: [Vec<u8>; COLUMNS] = Default::default();
    let mut used = [false; COLUMNS];
    let (mut addr, mut time) = (0_u64, 0_u64);
    for row in rows.clone() {
        let event = trace.events.get(row);
        let label = trace
            .labels
            .as_ref()
            .map_or(0, |labels| u64::from(labels.handle(row)));
        let values = [
            u64::from(event.action.code()),
            0,
            event.size.0,
            event.stream.0,
            0,
            u64::from(event.stack.0),
            event.pool.0,
            event.pool.1,
            u64::from(event.metadata.0),
            u64::from(event.compile_context.0),
            label,
        ];
        for (index, (column, value)) in columns.iter_mut().zip(values).enumerate() {
            match index {
                ADDRESS => put_change(column, addr, event.addr.0),
                TIME => put_change(column, time, event.time.0 as u64),
                _ => put(column, value),
            }
            if let Some(used) = used.get_mut(index) {
                *used |= value != 0 || matches!(index, ADDRESS | TIME);
            }
        }
        addr = event.addr.0;
        time = event.time.0 as u64;
    }
    let mut payload = Vec::new();
    put(&mut payload, rows.len() as u64);
    for (column, used) in columns.iter().zip(used) {
        if used {
            put(&mut payload, column.len() as u64);
            payload.extend_from_slice(column);
        } else {
            put(&mut payload, 0);
        }
    }
    payload
}

/// Reads a trace file; `path` is for messages only.
pub fn read(file: impl Read + 'static, path: &Path) -> Result<(Trace, Vec<Problem>), Error> {
    read_input(Input::new(crate::input::unpacked(file, path)?), path)
}

/// Reads an unpacked trace; `path` is for messages only.
pub fn read_from(reader: impl Read, path: &Path) -> Result<(Trace, Vec<Problem>), Error> {
    read_input(Input::new(reader), path)
}

pub(crate) fn read_input<R: Read>(
    mut input: Input<R>,
    path: &Path,
) -> Result<(Trace, Vec<Problem>), Error> {
    let wrong = |found: String| Error::Format {
        path: path.to_owned(),
        found,
        expected: format!("an oomph trace of version {VERSION}"),
    };
    if input.next_bytes(MAGIC.len()) != Some(MAGIC.as_slice()) {
        return Err(wrong(
            "the file does not start like an oomph trace".to_owned(),
        ));
    }
    let version = input.array().map_or(0, u16::from_le_bytes);
    if version != VERSION {
        return Err(wrong(format!(
            "found an oomph trace of version {version} (written by another oomph?)"
        )));
    }
    let mut reader = Reader::default();
    let mut problems = Vec::new();
    let why = loop {
        let offset = input.offset();
        let Some(kind) = input.byte() else {
            break Some(format!(
                "the file ends at byte {offset}, before its last chunk"
            ));
        };
        let Some(length) = varint(&mut input) else {
            break Some(format!("the file ends at byte {offset}, inside a chunk"));
        };
        if length > MAX_CHUNK {
            break Some(format!(
                "the chunk at byte {offset} claims {length} bytes; at most {MAX_CHUNK} occur"
            ));
        }
        let payload = match input.next_bytes(length as usize) {
            Some(payload) => payload.to_vec(),
            None => break Some(format!("the file ends at byte {offset}, inside a chunk")),
        };
        let Some(sum) = input.array().map(u32::from_le_bytes) else {
            break Some(format!("the file ends at byte {offset}, inside a chunk"));
        };
        if sum != checksum(&payload) {
            break Some(format!("the chunk at byte {offset} is damaged (checksum)"));
        }
        if kind == END {
            break None;
        }
        if reader.chunk(kind, &payload).is_none() {
            break Some(format!("the chunk at byte {offset} contradicts itself"));
        }
    };
    if let Some(why) = why {
        problems.push(Problem::new(
            ProblemKind::Truncated,
            format!(
                "{why}: {} events before it were read; the state at the end is missing",
                reader.trace.events.len()
            ),
        ));
    }
    reader.close();
    let blocks = reader.trace.blocks.len();
    let segments = &reader.trace.segments;
    let incomplete = segments
        .iter()
        .filter(|segment| segment.blocks.end > blocks);
    match incomplete.count() {
        0 => {}
        count => problems.push(Problem::new(
            ProblemKind::Inconsistent,
            format!("{count} segments have blocks that are not in the file"),
        )),
    }
    Ok((reader.trace, problems))
}

fn varint<R: Read>(input: &mut Input<R>) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = input.byte()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[derive(Default)]
struct Reader {
    trace: Trace,
    device: Option<(u32, usize)>,
    // Handles of the file to handles of the trace: a file may repeat a string, a table does not.
    strings: Vec<StringId>,
    frames: Vec<FrameId>,
    stacks: Vec<StackId>,
    labels: Vec<u32>,
}

impl Reader {
    fn string(&self, id: u64) -> Option<StringId> {
        match id {
            0 => Some(StringId::EMPTY),
            id => self.strings.get(usize::try_from(id).ok()? - 1).copied(),
        }
    }

    fn stack(&self, id: u64) -> Option<StackId> {
        match id {
            0 => Some(StackId::NONE),
            id => self.stacks.get(usize::try_from(id).ok()? - 1).copied(),
        }
    }

    fn close(&mut self) {
        if let Some((device, start)) = self.device.take() {
            let end = self.trace.events.len();
            self.trace.devices.push(DeviceRows {
                device,
                rows: start..end,
            });
        }
    }

    /// `None` if the payload is not what its kind says.
    fn chunk(&mut self, kind: u8, payload: &[u8]) -> Option<()> {
        let mut numbers = Numbers { bytes: payload };
        match kind {
            STRINGS => {
                while !numbers.is_empty() {
                    let length = usize::try_from(numbers.next()?).ok()?;
                    let text = String::from_utf8_lossy(numbers.take(length)?).into_owned();
                    self.strings.push(self.trace.strings.intern(&text));
                }
            }
            FRAMES => {
                while !numbers.is_empty() {
                    let (file, name) = (numbers.next()?, numbers.next()?);
                    let frame = Frame {
                        file: self.string(file)?,
                        name: self.string(name)?,
                        line: numbers.small()?,
                    };
                    self.frames.push(self.trace.stacks.intern_frame(frame));
                }
            }
            STACKS => {
                let mut stack = Vec::new();
                while !numbers.is_empty() {
                    stack.clear();
                    for _ in 0..numbers.next()? {
                        let frame = usize::try_from(numbers.next()?).ok()?;
                        stack.push(*self.frames.get(frame)?);
                    }
                    self.stacks.push(self.trace.stacks.intern(&stack));
                }
            }
            DEVICE => {
                let device = numbers.small()?;
                if self.device.map(|(current, _)| current) != Some(device) {
                    self.close();
                    self.device = Some((device, self.trace.events.len()));
                }
            }
            EVENTS => self.events(&mut numbers)?,
            SEGMENTS => {
                while !numbers.is_empty() {
                    let device = numbers.small()?;
                    let addr = DeviceAddr(numbers.next()?);
                    let size = Bytes(numbers.next()?);
                    let stream = StreamId(numbers.next()?);
                    let flags = numbers.next()?;
                    let pool = PoolId(numbers.next()?, numbers.next()?);
                    let stack = numbers.next()?;
                    let first = usize::try_from(numbers.next()?).ok()?;
                    let count = usize::try_from(numbers.next()?).ok()?;
                    self.trace.segments.push(Segment {
                        device,
                        addr,
                        size,
                        stream,
                        is_small: flags & 1 != 0,
                        is_expandable: flags & 2 != 0,
                        pool,
                        stack: self.stack(stack)?,
                        blocks: first..first.checked_add(count)?,
                    });
                }
            }
            BLOCKS => {
                while !numbers.is_empty() {
                    let addr = DeviceAddr(numbers.next()?);
                    let size = Bytes(numbers.next()?);
                    let requested = Bytes(numbers.next()?);
                    let state = match numbers.next()? {
                        0 => BlockState::Allocated,
                        1 => BlockState::PendingFree,
                        _ => BlockState::Inactive,
                    };
                    let (stack, metadata) = (numbers.next()?, numbers.next()?);
                    self.trace.blocks.push(Block {
                        addr,
                        size,
                        requested,
                        state,
                        stack: self.stack(stack)?,
                        metadata: self.string(metadata)?,
                    });
                }
            }
            ANNOTATIONS => {
                while !numbers.is_empty() {
                    let name = numbers.next()?;
                    self.trace.annotations.push(Annotation {
                        name: self.string(name)?,
                        is_start: numbers.next()? != 0,
                        device: numbers.small()?,
                        time: TimeUs(numbers.change(0)? as i64),
                    });
                }
            }
            HEADER => self.header(serde_json::from_slice(payload).ok()?),
            LABELS => {
                while !numbers.is_empty() {
                    let category = numbers.next()?;
                    let (module, op) = (numbers.next()?, numbers.next()?);
                    let phase = numbers.next()?;
                    let label = Label {
                        category: Category::from_code(category),
                        module: self.string(module)?,
                        op: self.string(op)?,
                        phase: Phase::from_code(phase),
                        step: numbers.small()?,
                    };
                    let labels = self.trace.labels.get_or_insert_with(Labels::default);
                    self.labels.push(labels.add(label));
                }
            }
            // Later versions may add kinds that this one can ignore.
            _ => {}
        }
        Some(())
    }

    fn events(&mut self, numbers: &mut Numbers<'_>) -> Option<()> {
        let count = usize::try_from(numbers.next()?).ok()?;
        let mut columns: Vec<Numbers<'_>> = Vec::with_capacity(COLUMNS);
        for _ in 0..COLUMNS {
            let length = usize::try_from(numbers.next()?).ok()?;
            let (bytes, rest) = numbers.bytes.split_at_checked(length)?;
            numbers.bytes = rest;
            columns.push(Numbers { bytes });
        }
        let mut columns: [Numbers<'_>; COLUMNS] = columns.try_into().ok()?;
        // Every event has an action, so this also bounds the count by the file's size.
        if columns.first()?.bytes.len() < count && count > EVENTS_PER_CHUNK {
            return None;
        }
        // An empty column is one of zeros; one that ends early is damaged.
        let is_empty = columns.each_ref().map(Numbers::is_empty);
        let (mut addr, mut time) = (0_u64, 0_u64);
        if self.device.is_none() {
            self.device = Some((0, self.trace.events.len()));
        }
        for _ in 0..count {
            addr = columns[ADDRESS].change(addr)?;
            time = columns[TIME].change(time)?;
            let mut take = |column: usize| {
                if is_empty[column] {
                    Some(0)
                } else {
                    columns[column].next()
                }
            };
            let event = Event {
                action: Action::from_code(u8::try_from(take(0)?).ok()?),
                addr: DeviceAddr(addr),
                size: Bytes(take(2)?),
                stream: StreamId(take(3)?),
                time: TimeUs(time as i64),
                stack: self.stack(take(5)?)?,
                pool: PoolId(take(6)?, take(7)?),
                metadata: self.string(take(8)?)?,
                compile_context: self.string(take(9)?)?,
            };
            let label = take(10)?;
            let row = self.trace.events.push(event);
            if label > 0 {
                let handle = *self.labels.get(usize::try_from(label).ok()? - 1)?;
                if let Some(labels) = &mut self.trace.labels {
                    labels.set(row, handle);
                }
            }
        }
        Some(())
    }

    fn header(&mut self, header: Header) {
        self.trace.settings = Settings {
            conf: header.conf,
            max_split_size: header.max_split_size.map(Bytes),
            garbage_collection_threshold: header.garbage_collection_threshold,
            expandable_segments: header.expandable_segments,
            roundup_power2_divisions: header.roundup_power2_divisions,
        };
        self.trace.context = Context {
            device_total: header.device_total.map(Bytes),
            device_name: header.device_name,
            allowed: header.allowed.map(Bytes),
            outside: header.outside.map(Bytes),
            other_processes: header.other_processes.map(Bytes),
            torch_version: header.torch_version,
            rank: header.rank,
            world_size: header.world_size,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fixture() -> Trace {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fixtures/snapshots/lstm_lm.pickle.xz");
        let mut trace = crate::snapshot::read(std::fs::File::open(&path).unwrap(), &path)
            .unwrap()
            .0;
        let module = trace.strings.intern("lstm.0");
        let mut labels = Labels::default();
        let handle = labels.add(Label {
            category: Category::Activation,
            module,
            step: 3,
            ..Label::default()
        });
        labels.set(7, handle);
        trace.labels = Some(labels);
        trace.context.torch_version = Some("2.11.0".to_owned());
        trace
    }

    fn written(trace: &Trace) -> Vec<u8> {
        let mut out = Vec::new();
        write(trace, &mut out).unwrap();
        out
    }

    #[test]
    fn comes_back_as_it_was() {
        let trace = fixture();
        let bytes = written(&trace);
        assert!(bytes.len() < 100_000, "{}", bytes.len());
        let (back, problems) = read_from(bytes.as_slice(), Path::new("t")).unwrap();
        assert_eq!(problems, []);
        assert_eq!(back.events.len(), trace.events.len());
        for row in 0..trace.events.len() {
            assert_eq!(back.events.get(row), trace.events.get(row));
        }
        assert_eq!(back.devices, trace.devices);
        assert_eq!(back.segments, trace.segments);
        assert_eq!(back.blocks, trace.blocks);
        assert_eq!(back.annotations, trace.annotations);
        assert_eq!(back.settings, trace.settings);
        assert_eq!(back.context, trace.context);
        let label = back.labels.as_ref().unwrap().get(7);
        assert_eq!(back.strings.get(label.module), "lstm.0");
        assert_eq!((label.step, label.category), (3, Category::Activation));
    }

    #[test]
    fn another_version_is_refused() {
        let mut bytes = written(&fixture());
        bytes[8] = 9;
        let error = read_from(bytes.as_slice(), Path::new("t")).unwrap_err();
        assert!(error.to_string().contains("version 9"), "{error}");
    }

    #[test]
    fn a_cut_file_gives_whole_chunks() {
        let bytes = written(&fixture());
        let cut = &bytes[..bytes.len() - 10];
        let (back, problems) = read_from(cut, Path::new("t")).unwrap();
        assert_eq!(problems[0].kind, ProblemKind::Truncated);
        assert_eq!(back.events.len(), 509);
    }

    #[test]
    fn a_column_that_ends_early_is_no_column_of_zeros() {
        // Two events: actions, addresses, one size, no streams, times, and nothing else.
        let payload = [2, 2, 0, 0, 2, 2, 2, 1, 5, 0, 2, 2, 2, 0, 0, 0, 0, 0, 0];
        assert!(Reader::default().chunk(EVENTS, &payload).is_none());
        let payload = [2, 2, 0, 0, 2, 2, 2, 2, 5, 5, 0, 2, 2, 2, 0, 0, 0, 0, 0, 0];
        assert!(Reader::default().chunk(EVENTS, &payload).is_some());
    }

    #[test]
    fn segments_without_their_blocks_are_a_problem() {
        let mut trace = fixture();
        trace.segments[0].blocks = 0..1_000_000;
        let (_, problems) = read_from(written(&trace).as_slice(), Path::new("t")).unwrap();
        assert_eq!(problems[0].kind, ProblemKind::Inconsistent);
    }

    proptest! {
        #[test]
        fn changed_bytes_never_break_the_reader(
            changes in proptest::collection::vec((10_usize..20_000, any::<u8>()), 1..20),
        ) {
            use std::sync::OnceLock;
            static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
            let mut bytes = WHOLE.get_or_init(|| written(&fixture())).clone();
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            let _ = read_from(bytes.as_slice(), Path::new("t"));
        }

        #[test]
        fn changed_payloads_never_break_the_reader(
            kind in 1_u8..12,
            payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut reader = Reader::default();
            let _ = reader.chunk(STRINGS, b"\x01a\x01b");
            let _ = reader.chunk(FRAMES, b"\x01\x02\x07");
            let _ = reader.chunk(kind, &payload);
        }
    }
}
