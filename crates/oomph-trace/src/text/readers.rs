//! The readers of messages: one table, one file for each family of programs.
//!
//! A reader has markers, words that stand in every message of its kind. One automaton looks for the markers of
//! all readers in one pass; only the readers whose marker is in a line read it, and only a window around the
//! marker. So the time is linear in the log, whatever the log holds.

use std::sync::LazyLock;

use super::origin::Origin;
use super::phase;
use super::program::{Hardware, Program};
use super::words::Vocabulary;
use super::{MessageKind, OomMessage};
use crate::bfc::Pool;
use crate::units::Bytes;

/// What a reader sees before the marker, and from it on: no message is longer.
const BEFORE: usize = 4 << 10;
const FROM: usize = 12 << 10;
/// Lines of one message are not further apart.
const APART: usize = 12;

/// The readers, the more special ones before the more general ones.
static READERS: LazyLock<Vec<Reader>> = LazyLock::new(|| {
    [
        super::pytorch::READERS,
        super::serving::READERS,
        super::llama::READERS,
        super::onnx::READERS,
        super::tensorrt::READERS,
        super::arrays::READERS,
        super::xla::READERS,
        super::nccl::READERS,
        super::cuda::READERS,
        super::kernel::READERS,
        super::clusters::READERS,
        super::processes::READERS,
        super::other::READERS,
    ]
    .concat()
});

static MARKERS: LazyLock<Vocabulary<usize>> = LazyLock::new(|| {
    let readers = READERS.iter().enumerate();
    Vocabulary::new(
        readers.map(|(number, reader)| (number, reader.markers)),
        false,
    )
});

/// A line of a log with a marker in it.
pub(super) struct Line<'a> {
    /// The line, or the part of it around the marker.
    pub(super) text: &'a str,
    /// From the marker on.
    pub(super) from: &'a str,
    /// Where the marker is in the text without the spaces around it.
    at: usize,
    /// Its number, counted from 1.
    number: usize,
    /// Where it stands among all lines and parts of lines.
    pub(super) part: usize,
}

/// Where a line stands, and who printed it.
pub(super) struct Place<'a> {
    /// The line of the log, counted from 1.
    pub(super) number: usize,
    /// Which it is of all lines and parts of lines.
    pub(super) part: usize,
    /// Who printed it.
    pub(super) origin: &'a Origin,
}

impl<'a> Line<'a> {
    /// The part of a text around a marker.
    pub(super) fn new(text: &'a str, at: usize, place: &Place<'_>) -> Option<Self> {
        let from = text.floor_char_boundary(at.saturating_sub(BEFORE));
        let to = text.floor_char_boundary(at.saturating_add(FROM));
        let window = text.get(from..to)?;
        let spaces = window.len() - window.trim_start().len();
        Some(Self {
            text: window,
            from: text.get(at..to)?,
            at: (at - from).saturating_sub(spaces),
            number: place.number,
            part: place.part,
        })
    }

    /// What stands close to the marker.
    pub(super) fn near(&self) -> &'a str {
        const NEAR: usize = 600;
        let from = self.text.floor_char_boundary(self.at.saturating_sub(NEAR));
        let to = self
            .text
            .floor_char_boundary(self.at.saturating_add(2 * NEAR));
        self.text.get(from..to).unwrap_or_default()
    }

    /// A message of this line.
    pub(super) fn message(&self, program: Program, kind: MessageKind) -> OomMessage {
        OomMessage {
            program,
            at: self.at,
            last: self.part,
            hardware: Hardware::of(self.near()),
            during: phase::of_call(self.near()),
            ..OomMessage::new(kind, self.number, self.text.trim())
        }
    }

    /// A message of this line, from the marker on.
    pub(super) fn message_from(&self, program: Program, kind: MessageKind) -> OomMessage {
        OomMessage {
            text: self.from.trim().to_owned(),
            at: 0,
            ..self.message(program, kind)
        }
    }
}

/// What lines before a message said, which belongs to it.
#[derive(Debug, Default, Clone)]
pub(super) struct Noted {
    /// Limit and use of an allocator of XLA or TensorFlow, and the line.
    pub(super) arena: [Option<Bytes>; 2],
    /// Its chunks.
    pub(super) pool: Option<Box<Pool>>,
    /// Use and limit of a memory cgroup.
    pub(super) cgroup: [Option<Bytes>; 2],
    /// What a group's memory is made of.
    pub(super) cgroup_parts: Vec<(String, Bytes)>,
    /// The cgroup's path.
    pub(super) cgroup_path: Option<String>,
    /// What earlyoom or nohang says of the host's memory and the process that it is about to end.
    pub(super) watched: Option<Box<OomMessage>>,
    /// Processes that a launcher ended.
    pub(super) ended: Vec<u64>,
    /// The end of a process that a launcher ended, if nothing else tells of it.
    pub(super) launcher: Option<Box<OomMessage>>,
    /// What a device has, and what of it is free, as TensorFlow says at its start.
    pub(super) device: [Option<Bytes>; 2],
    /// Weights of a model and what is left beside them, as a server says after it loaded them.
    pub(super) weights: [Option<Bytes>; 2],
    /// What a GPU has, and a server's share of it.
    pub(super) share: [Option<Bytes>; 2],
    /// Whether ONNX Runtime's providers of a GPU, and of the CPU, were named.
    pub(super) providers: [bool; 2],
    /// The line that gives no more than `Error` as the reason why a container ended.
    pub(super) reason_line: Option<usize>,
    /// The last line of an error of TensorFlow.
    pub(super) tensorflow_line: Option<usize>,
    /// The last line `Limits:` of a pod.
    pub(super) limits_line: Option<usize>,
    /// The last line of an event of Kubernetes that quotes the kernel.
    pub(super) event_line: Option<usize>,
    /// The line that names an exception of CUDA's that ended a program.
    pub(super) cuda_exception: Option<usize>,
    /// The last line of NCCL's with a failure of CUDA's that does not name memory.
    pub(super) refused: Option<usize>,
    /// The line that says that a job tries to go on after an error.
    pub(super) recovers: Option<usize>,
    /// The TPU whose process failed.
    pub(super) tpu: Option<u32>,
    /// What a batch script asks SLURM for, for each node.
    pub(super) batch_memory: Option<Bytes>,
    /// Where SLURM cancelled a job.
    pub(super) cancelled_on: Option<String>,
    /// The limit of a container's memory.
    pub(super) limit: Option<Bytes>,
    /// Whether the state of a container was printed.
    pub(super) container: bool,
    /// The pod that `kubectl describe` is about.
    pub(super) pod: Option<String>,
    /// Rank and host of torchrun's table of failures.
    pub(super) failure: (Option<u32>, Option<String>),
}

/// Reads a line: returns a message, or adds to the one before it, or takes notes for the next one.
type Read = fn(&Line<'_>, &mut Noted, Option<&mut OomMessage>) -> Option<OomMessage>;

/// A reader of one kind of message.
#[derive(Clone, Copy)]
pub(super) struct Reader {
    /// Words of which one stands in each such message.
    pub(super) markers: &'static [&'static str],
    /// What it says.
    pub(super) read: Read,
}

/// What a line is.
#[derive(Debug)]
pub(super) enum Found {
    /// A message, and its reader; none for what no reader knows.
    Message(Box<OomMessage>, Option<usize>),
    /// A part of the message before.
    Belongs,
    /// Neither; a reader may know some of its words.
    Nothing { marked: bool },
}

/// Where each reader's marker is first; most lines have none.
fn markers(text: &str) -> Vec<(usize, usize)> {
    let mut places: Vec<(usize, usize)> = Vec::new();
    for (reader, start, _) in MARKERS.all(text) {
        if !places.iter().any(|(other, _)| *other == reader) {
            places.push((reader, start));
        }
        if places.len() == READERS.len() {
            break;
        }
    }
    places.sort_unstable();
    places
}

/// Whether words that a reader looks for stand on both sides of a place.
pub(super) fn spans(text: &str, at: usize) -> bool {
    /// No marker is longer.
    const MOST: usize = 100;
    let from = text.ceil_char_boundary(at.saturating_sub(MOST));
    let to = text.floor_char_boundary(at.saturating_add(MOST));
    let Some(window) = text.get(from..to) else {
        return false;
    };
    let spans = |start: usize, end: usize| start + from < at && end + from > at + 1;
    MARKERS.all(window).any(|(_, start, end)| spans(start, end))
        || super::general::phrases(window).any(|(start, end)| spans(start, end))
}

/// Reads a longer text of a message with its reader.
pub(super) fn again(reader: usize, text: &str, place: &Place<'_>) -> Option<OomMessage> {
    let (_, at) = markers(text)
        .into_iter()
        .find(|(other, _)| *other == reader)?;
    let line = Line::new(text, at, place)?;
    (READERS.get(reader)?.read)(&line, &mut Noted::default(), None)
}

/// Reads a line with the readers whose markers it has; the first that makes a message of it wins.
pub(super) fn read(
    text: &str,
    place: &Place<'_>,
    noted: &mut Noted,
    before: Option<&mut OomMessage>,
) -> Found {
    let places = markers(text);
    let marked = !places.is_empty();
    // A message that is far away is another one.
    let mut before = before.filter(|message| place.part.saturating_sub(message.last) <= APART);
    let origin = place.origin;
    for (number, at) in places {
        let (Some(line), Some(reader)) = (Line::new(text, at, place), READERS.get(number)) else {
            continue;
        };
        if let Some(message) = (reader.read)(&line, noted, before.as_deref_mut()) {
            return Found::Message(Box::new(message), Some(number));
        }
        if let Some(before) = before.as_deref_mut()
            && before.last == place.part
        {
            // The line belongs to the message before.
            before.add_ranks(&Vec::from_iter(origin.rank));
            return Found::Belongs;
        }
    }
    match super::general::read(text, place, noted) {
        Some(message) if before.is_some_and(|before| repeats(before, &message)) => Found::Belongs,
        Some(message) => Found::Message(Box::new(message), None),
        None => Found::Nothing { marked },
    }
}

/// Whether a line in words of its own says once more what the message before says.
fn repeats(before: &mut OomMessage, next: &OomMessage) -> bool {
    let one = if next.kind == MessageKind::Killed {
        before.kind == MessageKind::Killed
            && (next.pid.is_none() || before.pid.is_none() || next.pid == before.pid)
    } else {
        // Without figures it is dropped anyway, beside what a reader knows.
        next.kind == MessageKind::Unknown
            && !matches!(before.kind, MessageKind::Unknown | MessageKind::Killed)
            && next.figures().iter().all(Option::is_none)
            || (next.setting == Some("an account") && before.setting == next.setting)
    };
    if one {
        before.last = next.last;
        before.pid = before.pid.or(next.pid);
    }
    one
}

/// Whether a message continues one before: the same program, and nothing that tells them apart.
pub(super) fn continues(before: &OomMessage, next: &OomMessage) -> bool {
    fn same<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
        one.is_none() || other.is_none() || one == other
    }
    before.program == next.program
        && before.memory == next.memory
        && same(before.device.as_ref(), next.device.as_ref())
        && same(before.pid.as_ref(), next.pid.as_ref())
        && same(before.host.as_ref(), next.host.as_ref())
        && same(before.job.as_ref(), next.job.as_ref())
}

/// Adds what a further line of the same message says.
pub(super) fn join(before: &mut OomMessage, next: OomMessage) {
    fn fill<T>(one: &mut Option<T>, other: Option<T>) {
        if one.is_none() {
            *one = other;
        }
    }
    before.last = next.last;
    fill(&mut before.requested, next.requested);
    fill(&mut before.total, next.total);
    fill(&mut before.free, next.free);
    fill(&mut before.in_use, next.in_use);
    fill(&mut before.device, next.device);
    fill(&mut before.pid, next.pid);
    fill(&mut before.process, next.process);
    fill(&mut before.host, next.host);
    fill(&mut before.job, next.job);
    fill(&mut before.allocator, next.allocator);
    fill(&mut before.inside, next.inside);
    fill(&mut before.during, next.during);
    fill(&mut before.restarts, next.restarts);
    before.hardware = before.hardware.or(next.hardware);
    before.handled &= next.handled;
    before.add_ranks(&next.ranks);
}

/// A message, or what it adds to the one before it if it continues that.
pub(super) fn or_join(before: Option<&mut OomMessage>, next: OomMessage) -> Option<OomMessage> {
    match before {
        Some(before) if continues(before, &next) => {
            join(before, next);
            None
        }
        _ => Some(next),
    }
}
