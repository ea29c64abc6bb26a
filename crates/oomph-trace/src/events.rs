//! The events of a memory history, in columns.

use crate::stack_table::StackId;
use crate::string_table::StringId;
use crate::units::{Bytes, DeviceAddr, PoolId, StreamId, TimeUs};

/// What an event did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed to the program; the size is what was asked for.
    Alloc,
    /// The program gave a block back; other streams may still use it.
    FreeRequested,
    /// The block may be used again.
    FreeCompleted,
    /// `cudaMalloc`; the size is real.
    SegmentAlloc,
    /// `cudaFree`.
    SegmentFree,
    /// Pages were mapped into an expandable segment.
    SegmentMap,
    /// Pages were taken out of an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// Out of memory; the address is the device's free memory, the size is rounded to 512 B.
    Oom,
    /// A note on a tensor (2.15).
    Annotate,
    /// An action that this version of oomph does not know.
    Unknown,
}

impl Action {
    /// All known actions, with the names that PyTorch writes.
    pub const NAMES: [(Self, &'static str); 10] = [
        (Self::Alloc, "alloc"),
        (Self::FreeRequested, "free_requested"),
        (Self::FreeCompleted, "free_completed"),
        (Self::SegmentAlloc, "segment_alloc"),
        (Self::SegmentFree, "segment_free"),
        (Self::SegmentMap, "segment_map"),
        (Self::SegmentUnmap, "segment_unmap"),
        (Self::Snapshot, "snapshot"),
        (Self::Oom, "oom"),
        (Self::Annotate, "annotate"),
    ];

    /// The action of PyTorch's name for it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|&(action, _)| action)
    }

    /// PyTorch's name.
    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|&&(action, _)| action == self)
            .map_or("unknown", |&(_, name)| name)
    }

    /// The action as a byte of the oomph file, see [`crate::oomph_file`].
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The action behind a byte of the oomph file.
    pub fn from_code(code: u8) -> Self {
        Self::NAMES
            .get(usize::from(code))
            .map_or(Self::Unknown, |&(action, _)| action)
    }
}

/// One event, gathered from the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// Where; for [`Action::Oom`] the device's free memory instead.
    pub addr: DeviceAddr,
    /// How much.
    pub size: Bytes,
    /// On which stream.
    pub stream: StreamId,
    /// When.
    pub time: TimeUs,
    /// From where.
    pub stack: StackId,
    /// In which pool; the default pool where the recorder does not say.
    pub pool: PoolId,
    /// The user's note (`_set_memory_metadata`), empty if none.
    pub metadata: StringId,
    /// The compile context, empty if none.
    pub compile_context: StringId,
}

impl Default for Event {
    fn default() -> Self {
        Self {
            action: Action::Unknown,
            addr: DeviceAddr(0),
            size: Bytes::ZERO,
            stream: StreamId(0),
            time: TimeUs(0),
            stack: StackId::NONE,
            pool: PoolId::DEFAULT,
            metadata: StringId::EMPTY,
            compile_context: StringId::EMPTY,
        }
    }
}

/// A column that stays empty as long as every row holds the default.
#[derive(Debug, Clone)]
pub struct SparseColumn<T> {
    values: Vec<T>,
}

// Not derived: a derived one would ask for `T: Default` where it is not needed.
impl<T> Default for SparseColumn<T> {
    fn default() -> Self {
        Self { values: Vec::new() }
    }
}

impl<T: Copy + Default + PartialEq> SparseColumn<T> {
    fn set(&mut self, row: usize, value: T) {
        if row >= self.values.len() {
            if value == T::default() {
                return;
            }
            self.values.resize(row + 1, T::default());
        }
        if let Some(slot) = self.values.get_mut(row) {
            *slot = value;
        }
    }

    /// The value of a row.
    pub fn get(&self, row: usize) -> T {
        self.values.get(row).copied().unwrap_or_default()
    }

    /// Whether every row holds the default.
    pub fn is_unset(&self) -> bool {
        self.values.is_empty()
    }
}

/// Events in columns: a row is a moment, a column is a property.
#[derive(Debug, Clone, Default)]
pub struct Events {
    action: Vec<Action>,
    addr: Vec<u64>,
    size: Vec<u64>,
    time: Vec<i64>,
    stack: Vec<StackId>,
    // Most histories know one stream, one pool and no metadata.
    stream: SparseColumn<StreamId>,
    pool: SparseColumn<PoolId>,
    metadata: SparseColumn<StringId>,
    compile_context: SparseColumn<StringId>,
}

impl Events {
    /// How many events there are.
    pub fn len(&self) -> usize {
        self.action.len()
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.action.is_empty()
    }

    /// Adds a row at the end and returns its number.
    pub fn push(&mut self, event: Event) -> usize {
        let row = self.action.len();
        self.action.push(event.action);
        self.addr.push(event.addr.0);
        self.size.push(event.size.0);
        self.time.push(event.time.0);
        self.stack.push(event.stack);
        self.stream.set(row, event.stream);
        self.pool.set(row, event.pool);
        self.metadata.set(row, event.metadata);
        self.compile_context.set(row, event.compile_context);
        row
    }

    /// The action of a row.
    pub fn action(&self, row: usize) -> Action {
        self.action.get(row).copied().unwrap_or(Action::Unknown)
    }

    /// The address of a row.
    pub fn addr(&self, row: usize) -> DeviceAddr {
        DeviceAddr(self.addr.get(row).copied().unwrap_or(0))
    }

    /// The size of a row.
    pub fn size(&self, row: usize) -> Bytes {
        Bytes(self.size.get(row).copied().unwrap_or(0))
    }

    /// The time of a row.
    pub fn time(&self, row: usize) -> TimeUs {
        TimeUs(self.time.get(row).copied().unwrap_or(0))
    }

    /// The first of `rows` after a time, or their end. Events are in the order of their times.
    pub fn first_after(&self, rows: std::ops::Range<usize>, at: TimeUs) -> usize {
        let times = self.time.get(rows.clone()).unwrap_or_default();
        rows.start + times.partition_point(|&time| time <= at.0)
    }

    /// The stack of a row.
    pub fn stack(&self, row: usize) -> StackId {
        self.stack.get(row).copied().unwrap_or_default()
    }

    /// The stream of a row.
    pub fn stream(&self, row: usize) -> StreamId {
        self.stream.get(row)
    }

    /// The pool of a row.
    pub fn pool(&self, row: usize) -> PoolId {
        self.pool.get(row)
    }

    /// The user's note of a row.
    pub fn metadata(&self, row: usize) -> StringId {
        self.metadata.get(row)
    }

    /// Changes the user's note of a row.
    pub fn set_metadata(&mut self, row: usize, note: StringId) {
        self.metadata.set(row, note);
    }

    /// The compile context of a row.
    pub fn compile_context(&self, row: usize) -> StringId {
        self.compile_context.get(row)
    }

    /// Whether any event carries a pool (recorders before 2.12 do not write it).
    pub fn knows_pools(&self) -> bool {
        !self.pool.is_unset()
    }

    /// A row, gathered.
    pub fn get(&self, row: usize) -> Event {
        Event {
            action: self.action(row),
            addr: self.addr(row),
            size: self.size(row),
            stream: self.stream(row),
            time: self.time(row),
            stack: self.stack(row),
            pool: self.pool(row),
            metadata: self.metadata(row),
            compile_context: self.compile_context(row),
        }
    }

    /// All rows, gathered one by one.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        (0..self.len()).map(|row| self.get(row))
    }
}
