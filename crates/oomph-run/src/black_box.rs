//! The black box: what the recorder writes ahead, should the script's process be killed.
//!
//! `python/oomph/_recorder/black_box.py` writes it, `python/oomph/_protocol.py` has its layout. The process may have died
//! at any moment, so a reader takes what is there: each number is whole, and of a text the older version is, while the newer
//! one is being written.

use serde::{Deserialize, Serialize};

/// Defines where each number is, by its place among the 64-bit integers at the beginning.
macro_rules! words {
    ($($word:ident = $place:literal,)+) => {
        $(const $word: usize = $place;)+
        /// The numbers by their names, and their places.
        pub const WORDS: &[(&str, usize)] = &[$((stringify!($word), $word),)+];
    };
}

words! {
    FORMAT = 0,
    PROCESS = 1,
    STEPS = 2,
    PASSES = 3,
    PASS_US = 4,
    PHASE = 5,
    PHASE_US = 6,
    INFERENCES = 7,
    RECORDED = 8,
    SLOT = 9,
    SAMPLE_US = 10,
    HELD_US = 11,
    HELD_WHY = 12,
    HELD_STEP = 13,
    ENTRIES = 14,
    ENDED = 15,
    ASKED = 16,
    ANSWERED = 17,
    COMPILED = 18,
    RING = 64,
}

/// The parts by their names, and the bytes at which they begin.
pub const PARTS: &[(&str, usize)] = &[
    ("WORDS", 0),
    ("ABOUT", ABOUT),
    ("SAMPLES", SAMPLES),
    ("SERIES", SERIES),
    ("END", END),
];
const ABOUT: usize = 2048;
const SAMPLES: usize = 8192;
const SERIES: usize = 40960;
const END: usize = 57344;
const SAMPLE: usize = (SERIES - SAMPLES) / 2;

/// The version of the layout.
pub const BOX_FORMAT: i64 = 1;

/// Ends of steps that are kept.
pub const RING_LENGTH: usize = 64;

/// Phases of a script by their numbers; the last is between steps.
pub const PHASES: [&str; 7] = [
    "setup",
    "load",
    "forward",
    "backward",
    "optimizer",
    "inference",
    "between",
];

/// Why a snapshot was written, by number.
pub const WHY: [&str; 5] = ["", "LOOK", "OUT_OF_MEMORY", "ENDED", "HANG"];

/// Where the command asks for a snapshot, by another number there.
pub const ASKED_AT: u64 = (ASKED * 8) as u64;

/// A box as it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct BlackBox {
    /// Whose it is.
    pub about: About,
    /// Steps of the optimizer that have ended.
    pub steps: u32,
    /// Passes that have ended of a job that infers.
    pub inferences: u32,
    /// Passes that have begun.
    pub passes: i64,
    /// The phase, one of [`PHASES`].
    pub phase: &'static str,
    /// When it began, in µs since the epoch.
    pub phase_us: i64,
    /// Whether everything was being recorded.
    pub recorded: bool,
    /// Whether the script compiles its model, so that passes are not seen.
    pub compiled: bool,
    /// The newest look at the process.
    pub sample: Option<Sample>,
    /// The snapshot of what was held.
    pub held: Option<HeldAt>,
    /// What was held when steps ended, from early on.
    pub series: Vec<Entry>,
    /// When the newest steps (or passes) ended, in µs.
    pub ends: Vec<i64>,
    /// Whether the process has said how it ends.
    pub ended: bool,
    /// What the command last asked for, and what was last answered.
    pub asked: (i64, i64),
}

/// Whose box it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct About {
    /// The process.
    pub process: u32,
    /// When it began, in µs since the epoch.
    pub started_us: i64,
    /// The machine.
    pub host: String,
    /// Which start of that machine.
    pub boot: String,
    /// The script and its arguments.
    pub argv: Vec<String>,
    /// Files in which the kernel counts what its OOM killer killed, and what they said at the beginning.
    pub oom_kills: Vec<(String, u64)>,
    /// The signal at which the process writes its stacks; 0: none.
    pub signal: i32,
    /// Whether stacks of a crash are written beside the box.
    pub crash_stacks: bool,
}

/// A look at the process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// When, in µs since the epoch.
    pub time_us: i64,
    /// The main thread's stack: file, line, function; the innermost first.
    pub stack: Vec<(String, u32, String)>,
    /// The module that was running; empty if unknown.
    pub module: String,
    /// Whether PyTorch is imported: steps and passes are its.
    pub torch: bool,
    /// What PyTorch's allocator held.
    pub devices: Vec<DeviceHeld>,
    /// What the process held in host memory.
    pub host: HostHeld,
}

/// What PyTorch's allocator held of a GPU, in bytes.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema,
)]
#[serde(default)]
pub struct DeviceHeld {
    /// The GPU.
    pub index: u32,
    /// In tensors.
    pub allocated: u64,
    /// In all.
    pub reserved: u64,
    /// The most so far.
    pub most_reserved: u64,
    /// How often it has given memory.
    #[serde(skip_serializing)]
    pub allocations: u64,
}

/// Host memory, in bytes; 0 where it could not be read.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema,
)]
#[serde(default)]
pub struct HostHeld {
    /// Of the process.
    pub resident: u64,
    /// Of its cgroup.
    pub group: u64,
    /// The cgroup's limit.
    pub group_limit: u64,
}

/// The snapshot beside the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct HeldAt {
    /// When it was written, in µs since the epoch.
    pub time_us: i64,
    /// Why: one of [`WHY`].
    pub why: &'static str,
    /// Steps that had ended.
    pub step: u32,
}

/// What was held when a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The step.
    pub step: u32,
    /// When, in µs since the epoch.
    pub time_us: i64,
    /// Bytes in tensors.
    pub allocated: u64,
    /// Bytes that the allocator held.
    pub reserved: u64,
}

/// How what steps leave behind has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Grown {
    /// From the end of this step,
    pub from_step: u32,
    /// to the end of this one.
    pub to_step: u32,
    /// Bytes in tensors then,
    pub from_allocated: u64,
    /// and later.
    pub to_allocated: u64,
    /// Bytes reserved then,
    pub from_reserved: u64,
    /// and later.
    pub to_reserved: u64,
}

impl BlackBox {
    /// Reads a box; `None` if the bytes are none, or of another version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |place: usize| -> i64 {
            let found = bytes.get(place * 8..place * 8 + 8);
            found
                .and_then(|found| found.try_into().ok())
                .map_or(0, i64::from_le_bytes)
        };
        if bytes.len() < END || word(FORMAT) != BOX_FORMAT {
            return None;
        }
        let number = |place| u32::try_from(word(place)).unwrap_or(0);
        let name = |names: &[&'static str], place| {
            let index = usize::try_from(word(place)).ok();
            index
                .and_then(|index| names.get(index))
                .copied()
                .unwrap_or_default()
        };
        // While the newer of the two is being written, the other is whole.
        let newest = usize::try_from(word(SLOT) - 2).ok();
        let sample = newest.and_then(|slot| {
            [slot, 1 - slot.min(1)]
                .into_iter()
                .find_map(|slot| json(bytes.get(SAMPLES + slot * SAMPLE..)?, SAMPLE))
        });
        let entries = usize::try_from(word(ENTRIES)).unwrap_or(0);
        let series = (0..entries.min((END - SERIES) / 32))
            .map(|entry| {
                let at = |n: usize| word(SERIES / 8 + 4 * entry + n);
                let bytes = |n| u64::try_from(at(n)).unwrap_or(0);
                Entry {
                    step: u32::try_from(at(0)).unwrap_or(0),
                    time_us: at(1),
                    allocated: bytes(2),
                    reserved: bytes(3),
                }
            })
            .collect();
        let mut ends: Vec<i64> = (0..RING_LENGTH)
            .map(|n| word(RING + n))
            .filter(|end| *end > 0)
            .collect();
        ends.sort_unstable();
        Some(Self {
            about: json(&bytes[ABOUT..], SAMPLES - ABOUT)?,
            steps: number(STEPS),
            inferences: number(INFERENCES),
            passes: word(PASSES),
            phase: name(&PHASES, PHASE),
            phase_us: word(PHASE_US),
            recorded: word(RECORDED) != 0,
            compiled: word(COMPILED) != 0,
            sample,
            held: (word(HELD_US) > 0).then(|| HeldAt {
                time_us: word(HELD_US),
                why: name(&WHY, HELD_WHY),
                step: number(HELD_STEP),
            }),
            series,
            ends,
            ended: word(ENDED) != 0,
            asked: (word(ASKED), word(ANSWERED)),
        })
    }

    /// Steps that have ended, or passes of a job that only infers.
    pub fn count(&self) -> u32 {
        if self.steps > 0 {
            self.steps
        } else {
            self.inferences
        }
    }

    /// The median time of the newest steps, in µs; `None` before there are four.
    pub fn usual_us(&self) -> Option<i64> {
        const LEAST: usize = 4;
        let mut gaps: Vec<i64> = self
            .ends
            .windows(2)
            .map(|pair| pair[1].saturating_sub(pair[0]))
            .collect();
        if gaps.len() + 1 < LEAST {
            return None;
        }
        gaps.sort_unstable();
        gaps.get(gaps.len() / 2).copied()
    }

    /// The last time at which the process showed that it was alive, in µs since the epoch.
    pub fn last_seen_us(&self) -> i64 {
        let sampled = self.sample.as_ref().map_or(0, |sample| sample.time_us);
        let ended = self.ends.last().copied().unwrap_or(0);
        self.phase_us
            .max(sampled)
            .max(ended)
            .max(self.about.started_us)
    }

    /// How often memory was given on all GPUs, when that was last looked at.
    pub fn allocations(&self) -> u64 {
        let devices = self.sample.iter().flat_map(|sample| &sample.devices);
        devices.map(|device| device.allocations).sum()
    }

    /// What has grown from the first steps to the last by more than 2 %, if something has.
    pub fn grown(&self) -> Option<Grown> {
        const LEAST: f64 = 1.02;
        // The first step makes the optimizer's state.
        let first = self.series.iter().find(|entry| entry.step >= 2)?;
        let last = self.series.last()?;
        let grew = |from: u64, to: u64| to as f64 > from as f64 * LEAST;
        let has = last.step > first.step
            && (grew(first.allocated, last.allocated) || grew(first.reserved, last.reserved));
        has.then_some(Grown {
            from_step: first.step,
            to_step: last.step,
            from_allocated: first.allocated,
            to_allocated: last.allocated,
            from_reserved: first.reserved,
            to_reserved: last.reserved,
        })
    }
}

/// A JSON text with its length before it, in a place of `size` bytes.
fn json<T: for<'de> Deserialize<'de>>(bytes: &[u8], size: usize) -> Option<T> {
    let length = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length <= size - 8)?;
    serde_json::from_slice(bytes.get(8..8 + length)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(bytes: &mut [u8], at: usize, text: &str) {
        bytes[at..at + 8].copy_from_slice(&(text.len() as u64).to_le_bytes());
        bytes[at + 8..at + 8 + text.len()].copy_from_slice(text.as_bytes());
    }

    fn set(bytes: &mut [u8], place: usize, value: i64) {
        bytes[place * 8..place * 8 + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn a_box() -> Vec<u8> {
        let mut bytes = vec![0; END];
        set(&mut bytes, FORMAT, BOX_FORMAT);
        put(&mut bytes, ABOUT, r#"{"process": 7, "argv": ["train.py"]}"#);
        bytes
    }

    #[test]
    fn a_box_is_read_whatever_it_holds() {
        let mut bytes = a_box();
        set(&mut bytes, PHASE, 99);
        set(&mut bytes, ENTRIES, i64::MAX);
        set(&mut bytes, SLOT, -5);
        set(&mut bytes, STEPS, -1);
        let found = BlackBox::parse(&bytes).unwrap();
        assert_eq!((found.about.process, found.phase, found.steps), (7, "", 0));
        assert!(found.sample.is_none() && found.usual_us().is_none());
        for length in [0, 8, 100, END - 1] {
            assert!(BlackBox::parse(&bytes[..length]).is_none());
        }
        set(&mut bytes, FORMAT, 9);
        assert!(BlackBox::parse(&bytes).is_none());
    }

    #[test]
    fn the_older_look_counts_while_the_newer_one_is_written() {
        let mut bytes = a_box();
        put(&mut bytes, SAMPLES, r#"{"module": "older"}"#);
        put(&mut bytes, SAMPLES + SAMPLE, r#"{"module": "newer"}"#);
        set(&mut bytes, SLOT, 3);
        let module = |bytes: &[u8]| BlackBox::parse(bytes).unwrap().sample.unwrap().module;
        assert_eq!(module(&bytes), "newer");
        bytes[SAMPLES + SAMPLE + 8] = b'x';
        assert_eq!(module(&bytes), "older");
    }

    #[test]
    fn what_has_grown_is_seen_from_the_second_step_on() {
        let mut bytes = a_box();
        for (n, (step, allocated)) in [(1, 10), (2, 100), (50, 101), (90, 150)].iter().enumerate() {
            let values = [*step, 1, *allocated, 200];
            for (k, value) in values.iter().enumerate() {
                set(&mut bytes, SERIES / 8 + 4 * n + k, *value);
            }
        }
        set(&mut bytes, ENTRIES, 3);
        assert!(BlackBox::parse(&bytes).unwrap().grown().is_none());
        set(&mut bytes, ENTRIES, 4);
        let grown = BlackBox::parse(&bytes).unwrap().grown().unwrap();
        assert_eq!((grown.from_step, grown.to_step), (2, 90));
        assert_eq!((grown.from_allocated, grown.to_allocated), (100, 150));
    }

    #[test]
    fn the_usual_step_needs_four() {
        let mut bytes = a_box();
        for (n, end) in [100, 200, 300].iter().enumerate() {
            set(&mut bytes, RING + n + 1, *end);
        }
        assert_eq!(BlackBox::parse(&bytes).unwrap().usual_us(), None);
        set(&mut bytes, RING + 4, 900);
        assert_eq!(BlackBox::parse(&bytes).unwrap().usual_us(), Some(100));
    }
}
