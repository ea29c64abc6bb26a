//! A virtual machine for pickles that hold plain data: protocols 2 to 5, and nothing that could
//! run code.
//!
//! The design saves memory: a snapshot of a gigabyte contains tens of millions of dictionaries.
//! A [`Lower`] turns each dictionary into a row of
//! some column as soon as it is complete; only eight bytes for the dictionary and four for its memo entry stay.

use std::io::Read;

use crate::input::Input;
use crate::stack_table::{FrameId, StackId, StackTable};
use crate::string_table::{MAX_STRINGS, StringId, StringTable};

/// Marks that may be open at once. A snapshot nests six deep.
const MAX_DEPTH: usize = 1_000;
/// The longest string. Mangled C++ names reach some ten kilobytes; a user's note may be longer.
const MAX_STRING: usize = 16 << 20;
/// Longer strings are no names; together they may have [`MAX_STRINGS`] bytes.
const LONG_STRING: u64 = 1 << 16;
/// Values that may wait on the stack. TorchScript's writer puts all events of a device there
/// before it closes their list.
const MAX_STACK: usize = 1 << 26;
/// Values in lists, dictionaries and tuples that were not turned into rows. Only the frame of the
/// file is made of those.
const MAX_PLAIN: usize = 1 << 24;
/// How far a memo index may run ahead of the memo: writers number them one by one, but tools that
/// drop unused entries leave gaps.
const MAX_MEMO_GAP: usize = 1 << 20;
/// Lists, dictionaries and tuples; handles to them must fit into a memo entry.
const MAX_OBJECTS: usize = 1 << 29;
/// Digits of an integer, in bytes. 8 is normal, 9 is an unsigned one with its top bit set.
const MAX_INTEGER: usize = 1 << 10;

/// A row that a [`Lower`] made of a dictionary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    Event(u32),
    Frame(FrameId),
    Block(u32),
    Segment(u32),
    Annotation(u32),
}

/// A value on the stack.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer above `i64::MAX`.
    Unsigned(u64),
    /// An integer that 64 bits cannot hold, or raw bytes: real, but of no use here.
    Opaque,
    Float(f64),
    Str(StringId),
    List(u32),
    Dict(u32),
    Tuple(u32),
    Record(Record),
}

#[derive(Debug, Clone, Copy)]
enum List {
    Empty,
    /// All items are frames.
    Stack(StackId),
    /// All items are events of consecutive rows.
    Events(u32),
    Plain(u32),
}

#[derive(Debug, Clone, Copy)]
enum Dict {
    Empty,
    Record(Record),
    Plain(u32),
}

/// Everything that values refer to.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    pub(crate) strings: StringTable,
    pub(crate) stacks: StackTable,
    lists: Vec<List>,
    dicts: Vec<Dict>,
    event_ranges: Vec<(u32, u32)>,
    plain: Vec<Vec<Value>>,
    plain_values: usize,
    tuples: Vec<(u32, u32)>,
    tuple_items: Vec<Value>,
    frame_buffer: Vec<FrameId>,
}

/// What a list holds.
pub(crate) enum ListView<'a> {
    /// Frames; see [`Heap::stack`].
    Stack,
    /// First row and number of rows.
    Events(u32, u32),
    Values(&'a [Value]),
}

impl Heap {
    /// The contents of a list or tuple; `None` for anything else.
    pub(crate) fn list(&self, value: Value) -> Option<ListView<'_>> {
        match value {
            Value::List(id) => Some(match *self.lists.get(id as usize)? {
                List::Empty => ListView::Values(&[]),
                List::Stack(_) => ListView::Stack,
                List::Events(id) => {
                    let &(first, count) = self.event_ranges.get(id as usize)?;
                    ListView::Events(first, count)
                }
                List::Plain(id) => ListView::Values(self.plain.get(id as usize)?),
            }),
            Value::Tuple(id) => {
                let &(start, end) = self.tuples.get(id as usize)?;
                Some(ListView::Values(
                    self.tuple_items.get(start as usize..end as usize)?,
                ))
            }
            _ => None,
        }
    }

    /// Keys and values of a dictionary that was not turned into a row, alternating.
    pub(crate) fn dict(&self, value: Value) -> Option<&[Value]> {
        let Value::Dict(id) = value else { return None };
        match *self.dicts.get(id as usize)? {
            Dict::Empty => Some(&[]),
            Dict::Plain(id) => self.plain.get(id as usize).map(Vec::as_slice),
            Dict::Record(_) => None,
        }
    }

    /// The value of a key of a plain dictionary.
    pub(crate) fn get(&self, dict: Value, key: StringId) -> Option<Value> {
        self.dict(dict)?
            .chunks_exact(2)
            .find(|pair| pair.first() == Some(&Value::Str(key)))
            .and_then(|pair| pair.get(1).copied())
    }

    /// The row that a value stands for.
    #[inline]
    pub(crate) fn record(&self, value: Value) -> Option<Record> {
        match value {
            Value::Dict(id) => match self.dicts.get(id as usize)? {
                Dict::Record(record) => Some(*record),
                _ => None,
            },
            Value::Record(record) => Some(record),
            _ => None,
        }
    }

    /// The stack that a value stands for, if it is a list of frames.
    #[inline]
    pub(crate) fn stack(&self, value: Value) -> StackId {
        match value {
            Value::List(id) => match self.lists.get(id as usize) {
                Some(&List::Stack(stack)) => stack,
                _ => StackId::NONE,
            },
            _ => StackId::NONE,
        }
    }

    fn new_plain(&mut self, values: Vec<Value>) -> Result<u32, String> {
        self.count_plain(values.len())?;
        self.plain.push(values);
        Ok(self.plain.len() as u32 - 1)
    }

    fn count_plain(&mut self, more: usize) -> Result<(), String> {
        self.plain_values += more + 1;
        if self.plain_values > MAX_PLAIN {
            return Err(format!(
                "more than {MAX_PLAIN} values outside of events, frames and blocks; \
                 a memory snapshot has a few hundred, so this is no memory snapshot"
            ));
        }
        Ok(())
    }

    fn new_list(&mut self) -> Result<Value, String> {
        let id = object_handle(self.lists.len())?;
        self.lists.push(List::Empty);
        Ok(Value::List(id))
    }

    fn new_dict(&mut self) -> Result<Value, String> {
        let id = object_handle(self.dicts.len())?;
        self.dicts.push(Dict::Empty);
        Ok(Value::Dict(id))
    }

    fn new_tuple(&mut self, items: &[Value]) -> Result<Value, String> {
        let id = object_handle(self.tuples.len())?;
        let start = self.tuple_items.len() as u32;
        // Segments and events each hold at most one pair, which is not worth a column of its own.
        if self.tuple_items.len() + items.len() > MAX_STACK {
            return Err(format!("more than {MAX_STACK} values in tuples"));
        }
        self.tuple_items.extend_from_slice(items);
        self.tuples.push((start, self.tuple_items.len() as u32));
        Ok(Value::Tuple(id))
    }

    fn append(&mut self, list: Value, items: &[Value]) -> Result<(), String> {
        let Value::List(list_id) = list else {
            return Err("items are appended to something that is not a list".to_owned());
        };
        let index = list_id as usize;
        let body = self.lists.get(index).copied().unwrap_or(List::Empty);
        if items.is_empty() {
            return Ok(());
        }
        let new_body = match body {
            List::Empty | List::Stack(_) if self.all_frames(items, body) => {
                let frames = std::mem::take(&mut self.frame_buffer);
                let stack = self.stacks.intern(&frames);
                self.frame_buffer = frames;
                List::Stack(stack)
            }
            List::Empty | List::Events(_) if self.extend_events(items, body) => {
                match body {
                    List::Events(_) => body,
                    // `extend_events` has just added the range.
                    _ => List::Events(self.event_ranges.len() as u32 - 1),
                }
            }
            List::Plain(id) => {
                self.count_plain(items.len())?;
                if let Some(values) = self.plain.get_mut(id as usize) {
                    values.extend_from_slice(items);
                }
                body
            }
            _ => {
                let mut values = self.expand(body)?;
                values.extend_from_slice(items);
                List::Plain(self.new_plain(values)?)
            }
        };
        if let Some(slot) = self.lists.get_mut(index) {
            *slot = new_body;
        }
        Ok(())
    }

    /// Gathers a stack into `frame_buffer`; false if any item is no frame.
    fn all_frames(&mut self, items: &[Value], body: List) -> bool {
        self.frame_buffer.clear();
        if let List::Stack(stack) = body {
            self.frame_buffer
                .extend_from_slice(self.stacks.stack(stack));
        }
        for &item in items {
            match item {
                Value::Dict(id) => match self.dicts.get(id as usize) {
                    Some(&Dict::Record(Record::Frame(frame))) => self.frame_buffer.push(frame),
                    _ => return false,
                },
                _ => return false,
            }
        }
        true
    }

    /// Adds events to a range; false if they do not follow one another.
    fn extend_events(&mut self, items: &[Value], body: List) -> bool {
        let existing = match body {
            List::Events(id) => self.event_ranges.get(id as usize).copied(),
            _ => None,
        };
        let Some(first) = items.first().and_then(|&item| self.record(item)) else {
            return false;
        };
        let Record::Event(first_row) = first else {
            return false;
        };
        let (start, count) = existing.unwrap_or((first_row, 0));
        let mut next = start.wrapping_add(count);
        for &item in items {
            if self.record(item) != Some(Record::Event(next)) {
                return false;
            }
            next = next.wrapping_add(1);
        }
        let range = (start, next.wrapping_sub(start));
        match body {
            List::Events(id) => {
                if let Some(slot) = self.event_ranges.get_mut(id as usize) {
                    *slot = range;
                }
            }
            _ => self.event_ranges.push(range),
        }
        true
    }

    /// A list's items as values.
    fn expand(&self, body: List) -> Result<Vec<Value>, String> {
        Ok(match body {
            List::Empty => Vec::new(),
            List::Stack(stack) => self
                .stacks
                .stack(stack)
                .iter()
                .map(|&frame| Value::Record(Record::Frame(frame)))
                .collect(),
            List::Events(id) => {
                let (first, count) = self
                    .event_ranges
                    .get(id as usize)
                    .copied()
                    .unwrap_or((0, 0));
                if count as usize > MAX_PLAIN {
                    return Err("the events of a device are mixed with other values".to_owned());
                }
                (first..first.saturating_add(count))
                    .map(|row| Value::Record(Record::Event(row)))
                    .collect()
            }
            List::Plain(id) => self.plain.get(id as usize).cloned().unwrap_or_default(),
        })
    }
}

fn object_handle(count: usize) -> Result<u32, String> {
    if count >= MAX_OBJECTS {
        return Err(format!("more than {MAX_OBJECTS} lists or dictionaries"));
    }
    Ok(count as u32)
}

/// Turns dictionaries into rows.
pub(crate) trait Lower {
    /// The row of the dictionary with these keys and values (alternating), or `None` to keep it
    /// as it is.
    fn lower(&mut self, heap: &mut Heap, items: &[Value]) -> Option<Record>;
}

/// Memo entries: a tag of three bits and a handle of 29.
mod memo {
    use super::Value;
    use crate::string_table::StringId;

    const SHIFT: u32 = 29;
    const MASK: u32 = (1 << SHIFT) - 1;
    const STR: u32 = 1;
    const LIST: u32 = 2;
    const DICT: u32 = 3;
    const TUPLE: u32 = 4;
    const OTHER: u32 = 5;

    #[derive(Default)]
    pub(super) struct Memo {
        pub(super) entries: Vec<u32>,
        others: Vec<Value>,
    }

    impl Memo {
        #[inline]
        pub(super) fn encode(&mut self, value: Value) -> u32 {
            let (tag, id) = match value {
                Value::Str(StringId(id)) => (STR, id),
                Value::List(id) => (LIST, id),
                Value::Dict(id) => (DICT, id),
                Value::Tuple(id) => (TUPLE, id),
                _ => (OTHER, u32::MAX),
            };
            if id <= MASK {
                return tag << SHIFT | id;
            }
            self.others.push(value);
            OTHER << SHIFT | (self.others.len() as u32 - 1) & MASK
        }

        #[inline]
        pub(super) fn decode(&self, index: usize) -> Option<Value> {
            let entry = *self.entries.get(index)?;
            let id = entry & MASK;
            Some(match entry >> SHIFT {
                STR => Value::Str(StringId(id)),
                LIST => Value::List(id),
                DICT => Value::Dict(id),
                TUPLE => Value::Tuple(id),
                OTHER => *self.others.get(id as usize)?,
                _ => return None,
            })
        }
    }
}

/// What came of a pickle.
pub(crate) struct Outcome {
    /// The value that the pickle holds, or what could be saved of it.
    pub(crate) root: Value,
    /// Set if the file ends early: where, and why.
    pub(crate) truncated: Option<String>,
}

/// Why a pickle was refused.
pub(crate) struct Refusal {
    pub(crate) offset: u64,
    pub(crate) what: String,
}

enum Stop {
    /// The pickle's own end.
    Done(Value),
    /// The file ended first.
    EndOfFile,
}

struct Machine<'a, R, L> {
    input: &'a mut Input<R>,
    heap: &'a mut Heap,
    lower: &'a mut L,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: memo::Memo,
    /// Bytes of the strings that are too long for names.
    long_strings: u64,
}

/// Runs a pickle.
pub(crate) fn run<R: Read, L: Lower>(
    input: &mut Input<R>,
    heap: &mut Heap,
    lower: &mut L,
) -> Result<Outcome, Refusal> {
    let mut machine = Machine {
        input,
        heap,
        lower,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: memo::Memo::default(),
        long_strings: 0,
    };
    match machine.run() {
        Ok(Stop::Done(root)) => Ok(Outcome {
            root,
            truncated: None,
        }),
        Ok(Stop::EndOfFile) => {
            let offset = machine.input.offset();
            let why = match machine.input.error.take() {
                Some(error) => format!("cannot be read beyond byte {offset} ({error})"),
                None => format!("ends at byte {offset}, before the end of the pickle"),
            };
            let root = machine.salvage();
            Ok(Outcome {
                root,
                truncated: Some(why),
            })
        }
        Err(what) => Err(Refusal {
            offset: machine.input.offset(),
            what,
        }),
    }
}

/// The opcodes that could run code or reach outside the file, by name.
fn dangerous(opcode: u8) -> Option<&'static str> {
    Some(match opcode {
        b'c' => "GLOBAL",
        0x93 => "STACK_GLOBAL",
        b'R' => "REDUCE",
        b'b' => "BUILD",
        b'i' => "INST",
        b'o' => "OBJ",
        0x81 => "NEWOBJ",
        0x92 => "NEWOBJ_EX",
        0x82..=0x84 => "EXT",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        _ => return None,
    })
}

// Every operand ends the run quietly where the file ends: the caller then saves what it can.
macro_rules! operand {
    ($operand:expr) => {
        match $operand {
            Some(value) => value,
            None => return Ok(Stop::EndOfFile),
        }
    };
}

impl<R: Read, L: Lower> Machine<'_, R, L> {
    fn run(&mut self) -> Result<Stop, String> {
        loop {
            let opcode = operand!(self.input.byte());
            match opcode {
                // The order is that of their frequency in snapshots.
                b'h' => {
                    let index = operand!(self.input.byte());
                    self.get(usize::from(index))?;
                }
                b'j' => {
                    let index = u32::from_le_bytes(operand!(self.input.array()));
                    self.get(index as usize)?;
                }
                0x94 => {
                    let index = self.memo.entries.len();
                    self.put(index)?;
                }
                0x8a => {
                    let length = usize::from(operand!(self.input.byte()));
                    let value = integer(operand!(self.input.next_bytes(length)));
                    self.push(value)?;
                }
                b'(' => {
                    if self.marks.len() >= MAX_DEPTH {
                        return Err(format!(
                            "nested more than {MAX_DEPTH} deep; a memory snapshot nests six deep"
                        ));
                    }
                    self.marks.push(self.stack.len());
                }
                b'K' => {
                    let value = operand!(self.input.byte());
                    self.push(Value::Int(i64::from(value)))?;
                }
                b'M' => {
                    let value = u16::from_le_bytes(operand!(self.input.array()));
                    self.push(Value::Int(i64::from(value)))?;
                }
                b'J' => {
                    let value = i32::from_le_bytes(operand!(self.input.array()));
                    self.push(Value::Int(i64::from(value)))?;
                }
                b'}' => {
                    let dict = self.heap.new_dict()?;
                    self.push(dict)?;
                }
                b'u' => {
                    let mark = self.pop_mark()?;
                    self.set_items(mark)?;
                }
                0x8c => {
                    let length = usize::from(operand!(self.input.byte()));
                    let text = operand!(self.input.next_bytes(length));
                    let id = intern(&mut self.heap.strings, text);
                    self.push(Value::Str(id))?;
                }
                b']' => {
                    let list = self.heap.new_list()?;
                    self.push(list)?;
                }
                b'e' => {
                    let mark = self.pop_mark()?;
                    self.append_items(mark)?;
                }
                b'a' => {
                    let mark = self
                        .stack
                        .len()
                        .checked_sub(1)
                        .ok_or("the stack is empty")?;
                    self.append_items(mark)?;
                }
                b's' => {
                    let mark = self
                        .stack
                        .len()
                        .checked_sub(2)
                        .ok_or("the stack is empty")?;
                    self.set_items(mark)?;
                }
                b'X' | b'T' => {
                    let length = u32::from_le_bytes(operand!(self.input.array()));
                    if !self.text(u64::from(length))? {
                        return Ok(Stop::EndOfFile);
                    }
                }
                b'U' => {
                    let length = operand!(self.input.byte());
                    if !self.text(u64::from(length))? {
                        return Ok(Stop::EndOfFile);
                    }
                }
                0x8d => {
                    let length = u64::from_le_bytes(operand!(self.input.array()));
                    if !self.text(length)? {
                        return Ok(Stop::EndOfFile);
                    }
                }
                b'G' => {
                    let value = f64::from_be_bytes(operand!(self.input.array()));
                    self.push(Value::Float(value))?;
                }
                b'N' => self.push(Value::None)?,
                0x88 => self.push(Value::Bool(true))?,
                0x89 => self.push(Value::Bool(false))?,
                b')' => self.tuple(self.stack.len())?,
                0x85 => self.tuple(self.below(1)?)?,
                0x86 => self.tuple(self.below(2)?)?,
                0x87 => self.tuple(self.below(3)?)?,
                b't' => {
                    let mark = self.pop_mark()?;
                    self.tuple(mark)?;
                }
                b'q' => {
                    let index = operand!(self.input.byte());
                    self.put(usize::from(index))?;
                }
                b'r' => {
                    let index = u32::from_le_bytes(operand!(self.input.array()));
                    self.put(index as usize)?;
                }
                0x95 => {
                    // The frame's length only tells a reader how much to fetch.
                    operand!(self.input.array::<8>());
                }
                0x80 => {
                    let protocol = operand!(self.input.byte());
                    if !(2..=5).contains(&protocol) {
                        return Err(format!(
                            "this is a pickle of protocol {protocol}; 2 to 5 are known. \
                             Save the snapshot again with pickle.dump(…, protocol=4)"
                        ));
                    }
                }
                b'.' => return self.finish(),
                b'0' => {
                    if self.marks.last() == Some(&self.stack.len()) {
                        self.marks.pop();
                    } else {
                        self.stack.pop().ok_or("the stack is empty")?;
                    }
                }
                b'1' => {
                    let mark = self.pop_mark()?;
                    self.stack.truncate(mark);
                }
                b'2' => {
                    let value = *self.stack.last().ok_or("the stack is empty")?;
                    self.push(value)?;
                }
                b'l' => {
                    let mark = self.pop_mark()?;
                    let list = self.heap.new_list()?;
                    self.insert(mark, list)?;
                    self.append_items(mark + 1)?;
                }
                b'd' => {
                    let mark = self.pop_mark()?;
                    let dict = self.heap.new_dict()?;
                    self.insert(mark, dict)?;
                    self.set_items(mark + 1)?;
                }
                0x8b => {
                    let length = u32::from_le_bytes(operand!(self.input.array())) as usize;
                    if length > MAX_INTEGER {
                        return Err(format!("an integer of {length} bytes"));
                    }
                    let value = integer(operand!(self.input.next_bytes(length)));
                    self.push(value)?;
                }
                b'C' => {
                    let length = u64::from(operand!(self.input.byte()));
                    if !self.skip(length)? {
                        return Ok(Stop::EndOfFile);
                    }
                }
                b'B' => {
                    let length = u32::from_le_bytes(operand!(self.input.array()));
                    if !self.skip(u64::from(length))? {
                        return Ok(Stop::EndOfFile);
                    }
                }
                0x8e | 0x96 => {
                    let length = u64::from_le_bytes(operand!(self.input.array()));
                    if !self.skip(length)? {
                        return Ok(Stop::EndOfFile);
                    }
                }
                other => {
                    if let Some(name) = dangerous(other) {
                        let target = if other == b'c' || other == b'i' {
                            self.global_name()
                        } else {
                            String::new()
                        };
                        return Err(format!(
                            "opcode {name}{target} would run code or reach outside the file. \
                             A memory snapshot holds plain data only, so this is another kind of \
                             pickle (a checkpoint?) or one that means harm"
                        ));
                    }
                    return Err(format!(
                        "opcode {other:#04x} does not occur in memory snapshots \
                         (pickle protocols 2 to 5 with plain data)"
                    ));
                }
            }
        }
    }

    /// What a GLOBAL asks for, so that the refusal can name it.
    fn global_name(&mut self) -> String {
        const MAX_NAME: usize = 200;
        let module = self.input.line(MAX_NAME);
        let name = self.input.line(MAX_NAME);
        match (module, name) {
            (Some(module), Some(name)) => format!(
                " ({}.{})",
                String::from_utf8_lossy(&module).escape_debug(),
                String::from_utf8_lossy(&name).escape_debug()
            ),
            _ => String::new(),
        }
    }

    #[inline]
    fn push(&mut self, value: Value) -> Result<(), String> {
        if self.stack.len() >= MAX_STACK {
            return Err(format!("more than {MAX_STACK} values wait on the stack"));
        }
        self.stack.push(value);
        Ok(())
    }

    fn insert(&mut self, at: usize, value: Value) -> Result<(), String> {
        self.push(value)?;
        if let Some(tail) = self.stack.get_mut(at..) {
            tail.rotate_right(1);
        }
        Ok(())
    }

    #[inline]
    fn get(&mut self, index: usize) -> Result<(), String> {
        match self.memo.decode(index) {
            Some(value) => self.push(value),
            None => Err(format!("memo entry {index} is used before it is set")),
        }
    }

    #[inline]
    fn put(&mut self, index: usize) -> Result<(), String> {
        let value = *self.stack.last().ok_or("the stack is empty")?;
        let entry = self.memo.encode(value);
        let entries = &mut self.memo.entries;
        if index == entries.len() {
            entries.push(entry);
        } else {
            if index > entries.len() + MAX_MEMO_GAP {
                return Err(format!(
                    "memo entry {index} is set although there are only {}",
                    entries.len()
                ));
            }
            if index >= entries.len() {
                entries.resize(index + 1, 0);
            }
            if let Some(slot) = entries.get_mut(index) {
                *slot = entry;
            }
        }
        Ok(())
    }

    fn below(&self, count: usize) -> Result<usize, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count) {
            Some(mark) if mark >= floor => Ok(mark),
            _ => Err(format!("a tuple of {count} items, but the stack has fewer")),
        }
    }

    #[inline]
    fn pop_mark(&mut self) -> Result<usize, String> {
        self.marks
            .pop()
            .filter(|&mark| mark <= self.stack.len())
            .ok_or_else(|| "items are collected without a mark".to_owned())
    }

    fn tuple(&mut self, mark: usize) -> Result<(), String> {
        let tuple = self.heap.new_tuple(self.stack.get(mark..).unwrap_or(&[]))?;
        self.stack.truncate(mark);
        self.push(tuple)
    }

    /// Moves the values from `mark` on into the list below them.
    fn append_items(&mut self, mark: usize) -> Result<(), String> {
        let below = mark.checked_sub(1).ok_or("there is no list to append to")?;
        let (Some(&list), Some(items)) = (self.stack.get(below), self.stack.get(mark..)) else {
            return Err("there is no list to append to".to_owned());
        };
        lower_plain(self.heap, self.lower, items);
        self.heap.append(list, items)?;
        self.stack.truncate(mark);
        Ok(())
    }

    /// Moves the values from `mark` on, keys and values, into the dictionary below them.
    fn set_items(&mut self, mark: usize) -> Result<(), String> {
        let below = mark
            .checked_sub(1)
            .ok_or("there is no dictionary to fill")?;
        let (Some(&Value::Dict(id)), Some(items)) = (self.stack.get(below), self.stack.get(mark..))
        else {
            return Err("items are set in something that is not a dictionary".to_owned());
        };
        if !items.len().is_multiple_of(2) {
            return Err("a dictionary has a key without a value".to_owned());
        }
        let body = self.heap.dicts.get(id as usize).copied();
        let new_body = match body {
            Some(Dict::Plain(plain)) => {
                self.heap.count_plain(items.len())?;
                if let Some(values) = self.heap.plain.get_mut(plain as usize) {
                    values.extend_from_slice(items);
                }
                Dict::Plain(plain)
            }
            // No writer adds to a dictionary after its first thousand items, and rows have twenty.
            Some(Dict::Record(record)) => Dict::Record(record),
            _ => {
                // One item alone is how writers that do not batch begin; wait for the rest.
                let record = if items.len() > 2 {
                    self.lower.lower(self.heap, items)
                } else {
                    None
                };
                match record {
                    Some(record) => Dict::Record(record),
                    None => Dict::Plain(self.heap.new_plain(items.to_vec())?),
                }
            }
        };
        if let Some(slot) = self.heap.dicts.get_mut(id as usize) {
            *slot = new_body;
        }
        self.stack.truncate(mark);
        Ok(())
    }

    /// Reads a string; false if the file ends inside it.
    fn text(&mut self, length: u64) -> Result<bool, String> {
        if length > MAX_STRING as u64 {
            return Err(format!(
                "a string claims {length} bytes; more than {MAX_STRING} do not occur"
            ));
        }
        // Also those that are the same again, of which each must be compared.
        if length > LONG_STRING {
            self.long_strings += length;
        }
        if self.long_strings > MAX_STRINGS as u64 || self.heap.strings.is_full() {
            return Err(format!("strings of more than {MAX_STRINGS} bytes"));
        }
        let Some(text) = self.input.next_bytes(length as usize) else {
            return Ok(false);
        };
        let id = intern(&mut self.heap.strings, text);
        self.push(Value::Str(id))?;
        Ok(true)
    }

    /// Passes over raw bytes; false if the file ends inside them.
    fn skip(&mut self, length: u64) -> Result<bool, String> {
        if length > MAX_STRING as u64 {
            return Err(format!(
                "bytes of length {length}; more than {MAX_STRING} do not occur"
            ));
        }
        if self.input.next_bytes(length as usize).is_none() {
            return Ok(false);
        }
        self.push(Value::Opaque)?;
        Ok(true)
    }

    fn finish(&mut self) -> Result<Stop, String> {
        match (self.stack.pop(), self.stack.is_empty()) {
            (Some(value), true) => Ok(Stop::Done(value)),
            (Some(_), false) => Err("the pickle ends with several values".to_owned()),
            (None, _) => Err("the pickle ends without a value".to_owned()),
        }
    }

    /// Closes everything that is open, from the inside out, and returns the root.
    fn salvage(&mut self) -> Value {
        let mut innermost = true;
        while let Some(mark) = self.marks.pop() {
            let Some(below) = mark.checked_sub(1) else {
                break;
            };
            match self.stack.get(below) {
                Some(Value::List(_)) => {
                    if self.append_items(mark).is_err() {
                        self.stack.truncate(mark);
                    }
                }
                // The innermost dictionary lacks keys and would be a row of guesses, unless it is
                // the root itself.
                Some(Value::Dict(_)) if !(innermost && below > 0) => {
                    let odd = self.stack.len().saturating_sub(mark) % 2;
                    self.stack.truncate(self.stack.len() - odd);
                    if self.set_items(mark).is_err() {
                        self.stack.truncate(mark);
                    }
                }
                Some(Value::Dict(_)) => self.stack.truncate(below),
                _ => self.stack.truncate(mark),
            }
            innermost = false;
        }
        self.stack.first().copied().unwrap_or(Value::None)
    }
}

/// Dictionaries that were filled item by item are complete when they are put into a list.
fn lower_plain<L: Lower>(heap: &mut Heap, lower: &mut L, items: &[Value]) {
    /// Rows have up to twenty keys.
    const MAX_ROW_ITEMS: usize = 64;
    for &item in items {
        let Value::Dict(id) = item else { continue };
        let Some(&Dict::Plain(plain)) = heap.dicts.get(id as usize) else {
            continue;
        };
        let Some(values) = heap.plain.get_mut(plain as usize) else {
            continue;
        };
        if values.len() > MAX_ROW_ITEMS {
            continue;
        }
        let values = std::mem::take(values);
        match lower.lower(heap, &values) {
            Some(record) => {
                heap.plain_values = heap.plain_values.saturating_sub(values.len() + 1);
                if let Some(slot) = heap.dicts.get_mut(id as usize) {
                    *slot = Dict::Record(record);
                }
            }
            None => {
                if let Some(slot) = heap.plain.get_mut(plain as usize) {
                    *slot = values;
                }
            }
        }
    }
}

fn intern(strings: &mut StringTable, bytes: &[u8]) -> StringId {
    match std::str::from_utf8(bytes) {
        Ok(text) => strings.intern(text),
        // Python writes lone surrogates of odd file names with `surrogatepass`.
        Err(_) => strings.intern(&String::from_utf8_lossy(bytes)),
    }
}

#[inline]
fn integer(bytes: &[u8]) -> Value {
    let negative = bytes.last().is_some_and(|&top| top >= 0x80);
    if bytes.len() <= 8 {
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        for (to, from) in wide.iter_mut().zip(bytes) {
            *to = *from;
        }
        return Value::Int(i64::from_le_bytes(wide));
    }
    if let (false, Some((low, high))) = (negative, bytes.split_first_chunk::<8>())
        && high.iter().all(|&byte| byte == 0)
    {
        return Value::Unsigned(u64::from_le_bytes(*low));
    }
    Value::Opaque
}
