//! A memory history: what every reader produces and every analysis takes.

use std::ops::Range;

use crate::events::Events;
use crate::labels::Labels;
use crate::stack_table::{StackId, StackTable, is_users_own};
use crate::string_table::{StringId, StringTable};
use crate::units::{Bytes, DeviceAddr, PoolId, StreamId, TimeUs};

/// A memory history of one process: events, and the state at its end.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// What happened, all devices one after another; see [`Trace::devices`].
    pub events: Events,
    /// Which rows of [`Trace::events`] belong to which device.
    pub devices: Vec<DeviceRows>,
    /// The segments at the end of the history.
    pub segments: Vec<Segment>,
    /// The blocks of all segments, see [`Segment::blocks`].
    pub blocks: Vec<Block>,
    /// The user's and the optimizers' ranges.
    pub annotations: Vec<Annotation>,
    /// The allocator's settings when the snapshot was taken.
    pub settings: Settings,
    /// Names of files, functions and everything else.
    pub strings: StringTable,
    /// Call stacks.
    pub stacks: StackTable,
    /// Labels of each event, if the job was recorded.
    pub labels: Option<Labels>,
    /// Facts about the device and the process that PyTorch's snapshots lack; `oomph run` fills it.
    pub context: Context,
}

/// The rows of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRows {
    /// The device's index.
    pub device: u32,
    /// Rows of [`Trace::events`].
    pub rows: Range<usize>,
}

/// Contiguous device memory that the allocator got from the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The device's index.
    pub device: u32,
    /// Where it begins.
    pub addr: DeviceAddr,
    /// Its size.
    pub size: Bytes,
    /// The stream that it serves.
    pub stream: StreamId,
    /// Whether it belongs to the pool of requests up to 1 MiB.
    pub is_small: bool,
    /// Whether it grows in place.
    pub is_expandable: bool,
    /// The pool that owns it.
    pub pool: PoolId,
    /// The stack that asked for it.
    pub stack: StackId,
    /// Rows of [`Trace::blocks`], in the order of their addresses.
    pub blocks: Range<usize>,
}

/// What a block is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockState {
    /// In use by the program.
    Allocated,
    /// Freed by the program, but still in use by another stream.
    PendingFree,
    /// Free.
    Inactive,
}

/// A part of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Where it begins.
    pub addr: DeviceAddr,
    /// Its size.
    pub size: Bytes,
    /// What its (last) user asked for.
    pub requested: Bytes,
    /// What it is used for.
    pub state: BlockState,
    /// The stack that asked for it.
    pub stack: StackId,
    /// The user's note.
    pub metadata: StringId,
}

impl Block {
    /// Whether the block is not free.
    pub fn is_active(&self) -> bool {
        self.state != BlockState::Inactive
    }
}

/// The begin or the end of a named range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Annotation {
    /// The name, such as `Optimizer.step#AdamW.step`.
    pub name: StringId,
    /// Whether the range begins here.
    pub is_start: bool,
    /// The device's index.
    pub device: u32,
    /// When.
    pub time: TimeUs,
}

/// The allocator's settings as the snapshot states them.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The whole configuration string, `None` where the snapshot has no settings (2.0).
    pub conf: Option<String>,
    /// Blocks of at least this size are not split; `None` is unlimited.
    pub max_split_size: Option<Bytes>,
    /// Collect garbage above this share of the allowed memory; 0 is never.
    pub garbage_collection_threshold: f64,
    /// Whether segments grow in place.
    pub expandable_segments: bool,
    /// Divisions of the powers of two, per power of two of MiB from 1 to 32768.
    pub roundup_power2_divisions: [u32; 16],
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            conf: None,
            max_split_size: None,
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            roundup_power2_divisions: [0; 16],
        }
    }
}

/// Facts that a snapshot lacks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Context {
    /// The device's memory.
    pub device_total: Option<Bytes>,
    /// The device's name.
    pub device_name: Option<String>,
    /// What the process may use (`set_per_process_memory_fraction`).
    pub allowed: Option<Bytes>,
    /// Memory of this process outside the allocator: context, kernels, libraries.
    pub outside: Option<Bytes>,
    /// Memory of other processes.
    pub other_processes: Option<Bytes>,
    /// PyTorch's version, such as `2.11.0`.
    pub torch_version: Option<String>,
    /// The rank within a distributed job.
    pub rank: Option<u32>,
    /// The job's world size.
    pub world_size: Option<u32>,
}

impl Trace {
    /// The user's own line of a stack, the innermost: `file:line`, the file without its directories.
    pub fn users_line(&self, stack: StackId) -> Option<String> {
        let frame = self.stacks.frames(stack).find(|frame| {
            frame.is_python(&self.strings) && is_users_own(self.strings.get(frame.file))
        })?;
        let path = self.strings.get(frame.file);
        let file = path.rsplit('/').next().unwrap_or(path);
        Some(format!("{file}:{}", frame.line))
    }

    /// The blocks of a segment.
    pub fn blocks_of(&self, segment: &Segment) -> &[Block] {
        self.blocks.get(segment.blocks.clone()).unwrap_or(&[])
    }

    /// The rows of a device; an empty range if it has none.
    pub fn rows_of(&self, device: u32) -> Range<usize> {
        self.devices
            .iter()
            .find(|rows| rows.device == device)
            .map_or(0..0, |rows| rows.rows.clone())
    }

    /// The device with most events, if there is any.
    pub fn busiest_device(&self) -> Option<u32> {
        let devices = self.used_devices().into_iter();
        devices.max_by_key(|&device| self.rows_of(device).len())
    }

    /// Devices that have an event or a segment, in ascending order.
    pub fn used_devices(&self) -> Vec<u32> {
        let mut devices: Vec<u32> = self
            .devices
            .iter()
            .filter(|rows| !rows.rows.is_empty())
            .map(|rows| rows.device)
            .chain(self.segments.iter().map(|segment| segment.device))
            .collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }
}
