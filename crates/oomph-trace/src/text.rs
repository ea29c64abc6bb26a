//! Out-of-memory messages in logs: of PyTorch's allocator in every version's wording, of other frameworks,
//! servers and libraries, and of what ends processes when the host's memory is used up.
//!
//! A log is read line by line, so its size does not matter. Each program's messages are read in one place
//! (`readers.rs` lists them). Sizes in messages are often rounded to two decimals; they are kept as printed, in
//! bytes. What a text does not say stays `None`.

mod arrays;
mod backing;
mod cards;
mod clusters;
mod cuda;
mod elsewhere;
mod facts;
mod faults;
mod frameworks;
mod general;
mod hints;
mod kernel;
mod llama;
mod models;
mod named;
mod nccl;
mod onnx;
mod origin;
mod other;
mod phase;
mod processes;
mod program;
mod pytorch;
mod quoted;
mod readers;
mod serving;
mod signs;
mod tables;
mod tensorrt;
mod told;
mod words;
mod xla;

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use crate::bfc::Pool;
use crate::error::{Error, Problem, ProblemKind};
use crate::input;
use crate::units::Bytes;

pub use elsewhere::{Setting, canonical};
pub use faults::Fault;
pub use frameworks::Framework;
pub use hints::Hint;
pub use models::Model;
use origin::Origin;
pub use phase::Phase;
pub use program::{Hardware, Memory, Named, Program, Uses};
pub use quoted::Figure;
use readers::{Found, Noted};
pub use serving::SHORT_OF_SHARE;
pub use signs::Sign;
pub use tables::{Bound, Card, Disk, Holder, Host, Offload, Tables};
pub use told::Told;

/// A line that is longer is cut: tracebacks and messages have a few kilobytes.
const MAX_LINE: usize = 1 << 20;
/// Frames of a traceback that are kept, the innermost ones.
const MAX_FRAMES: usize = 200;
/// Messages of one log that are kept: a job that retries may print thousands.
const MAX_MESSAGES: usize = 256;
/// The beginning of a line that names the program it is of.
const MAX_WORDS: usize = 16 << 10;
/// JSON that is looked through for strings with messages; anything larger is read as lines.
const MAX_JSON: usize = 16 << 20;

/// Bytes before an object of JSON: the time, a container's name.
const MAX_PREFIX: usize = 200;
/// Fields that say when, where and how urgently a record was written.
const ABOUT_RECORDS: [&str; 16] = [
    "level",
    "levelname",
    "lvl",
    "severity",
    "logger",
    "logger_name",
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "asctime",
    "stream",
    "caller",
    "insertId",
    "logName",
    "receiveTimestamp",
];
/// Bytes of a value that is a name.
const MAX_NAME: usize = 32;
/// Bytes of a line that one on the next line may continue.
const MAX_JOINED: usize = 4 << 10;
/// Lines before a message that may name the program, and bytes of each.
const RECENT: usize = 24;
const MAX_RECENT: usize = 400;
/// Lines before a message that may be what is left of a traceback.
const CLOSE: usize = 6;
/// Frames of a traceback that was cut.
const SHORT: usize = 3;
/// Lines that a message is wrapped to.
const WRAPPED: usize = 4;

/// Bytes of a message that are kept.
const MAX_MESSAGE: usize = 64 << 10;
/// Bytes of a frame's file, function and code that are kept.
const MAX_FRAME: usize = 1 << 10;

/// `text` up to `most` bytes.
fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

/// Which error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageKind {
    /// PyTorch's caching allocator, `CUDA out of memory. Tried to allocate …`.
    Native,
    /// Rejected before it was tried, because of `per_process_memory_fraction` (2.13+).
    Rejected,
    /// The `cudaMallocAsync` backend.
    Async,
    /// A warning in the log of 2.13+, before the error.
    Warning,
    /// `Not enough memory for workspace!` of a convolution.
    Workspace,
    /// `CUDA error: out of memory`: outside of the allocator.
    Cuda,
    /// cuBLAS could not create its handle.
    Cublas,
    /// cuDNN could not create its handle.
    Cudnn,
    /// NCCL could not get its buffers.
    Nccl,
    /// Host memory, not the GPU's.
    Host,
    /// Another program's allocator could not serve a request.
    Allocation,
    /// A server's budget of GPU memory does not hold what it needs.
    Budget,
    /// A kernel asks for more shared memory on the chip than there is.
    OnChip,
    /// No algorithm of a library ran: with little memory left none finds its workspace.
    NoAlgorithm,
    /// A process was ended because the host's memory was used up, or seems so.
    Killed,
    /// Another error, no matter of memory.
    Fault(Fault),
    /// A text that no reader knows.
    Unknown,
}

impl MessageKind {
    /// The kind's name in JSON.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Native => "pytorch",
            Self::Rejected => "rejected_by_fraction",
            Self::Async => "cuda_malloc_async",
            Self::Warning => "warning",
            Self::Workspace => "cudnn_workspace",
            Self::Cuda => "cuda_error",
            Self::Cublas => "cublas",
            Self::Cudnn => "cudnn",
            Self::Nccl => "nccl",
            Self::Host => "host_memory",
            Self::Allocation => "allocation",
            Self::Budget => "budget",
            Self::OnChip => "on_chip",
            Self::NoAlgorithm => "no_algorithm",
            Self::Killed => "killed",
            Self::Fault(_) => "fault",
            Self::Unknown => "unknown",
        }
    }
}

/// A frame of a Python traceback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFrame {
    /// The source file.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The function.
    pub function: String,
    /// The line's text, if the log has it.
    pub code: String,
}

/// A process and its memory, as the message lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherProcess {
    /// Its id; inside a container it may be one of the host.
    pub pid: u64,
    /// Its memory.
    pub used: Bytes,
}

/// What a pool that counts in tokens says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tokens {
    /// Tokens asked for.
    pub asked: Option<u64>,
    /// Tokens that were to be had, those included that another request would have to give back.
    pub available: Option<u64>,
    /// Of these, tokens that nothing held.
    pub free: Option<u64>,
}

/// What lines near a message say of the same memory; they may be about another moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Around {
    /// Asked for, by a warning just before a process was ended.
    pub asked: Option<Bytes>,
    /// The memory there is.
    pub total: Option<Bytes>,
    /// What of it is free.
    pub free: Option<Bytes>,
    /// What of it is in use.
    pub in_use: Option<Bytes>,
}

/// An out-of-memory message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomMessage {
    /// The program that wrote it.
    pub program: Program,
    /// The program that it ran in, if that is another one and the text shows it.
    pub inside: Option<Program>,
    /// Which memory ran out.
    pub memory: Memory,
    /// Whose accelerator it is.
    pub hardware: Hardware,
    /// What the program was doing.
    pub during: Option<Phase>,
    /// The same by lines above it, where nothing of its own says it.
    likely: Option<Phase>,
    /// Steps that it had done, and all, by a bar of progress above.
    pub progress: Option<(u64, u64)>,
    /// Which error.
    pub kind: MessageKind,
    /// Whether it is a warning after which the program went on.
    pub handled: bool,
    /// Whether somebody tells of it in a sentence of his own, and no program prints it.
    pub told: bool,
    /// The line of the log, counted from 1.
    pub line: usize,
    /// The message itself.
    pub text: String,
    /// The versions of PyTorch that print it like this.
    pub versions: Option<&'static str>,
    /// The rank that printed it.
    pub rank: Option<u32>,
    /// All ranks that printed it.
    pub ranks: Vec<u32>,
    /// The host.
    pub host: Option<String>,
    /// The process, by number.
    pub pid: Option<u64>,
    /// The process, by name.
    pub process: Option<String>,
    /// The job of a scheduler.
    pub job: Option<String>,
    /// The allocator, the arena, or the limit that a process ran in.
    pub allocator: Option<String>,
    /// What the program itself says would fit: tokens of a request.
    pub fits: Option<u64>,
    /// Tokens asked for, of a pool that counts in tokens.
    pub tokens: Option<Tokens>,
    /// How often the container was started again.
    pub restarts: Option<u64>,
    /// The setting that the message is about, if it is not the program's usual one.
    pub setting: Option<&'static str>,
    /// The device.
    pub device: Option<u32>,
    /// What was asked for. Of PyTorch: of the driver, so the segment, not the tensor.
    pub requested: Option<Bytes>,
    /// The memory there is: the device's, or the limit of a host's process.
    pub total: Option<Bytes>,
    /// What of it is free.
    pub free: Option<Bytes>,
    /// What of it is in use, where another program than PyTorch says so.
    pub in_use: Option<Bytes>,
    /// What this process uses, everything included.
    pub this_process: Option<Bytes>,
    /// The other processes on the device.
    pub others: Vec<OtherProcess>,
    /// The limit of `set_per_process_memory_fraction`.
    pub allowed: Option<Bytes>,
    /// `allocated by PyTorch`, as printed.
    pub printed_allocated: Option<Bytes>,
    /// What PyTorch's blocks in use hold, corrected.
    pub allocated: Option<Bytes>,
    /// What PyTorch holds from the driver.
    pub reserved: Option<Bytes>,
    /// Reserved and not in use.
    pub unallocated: Option<Bytes>,
    /// Free blocks of private pools, which the message calls allocated.
    pub private_pools: Option<Bytes>,
    /// What lines near it say.
    pub around: Around,
    /// What the lines below it list, by name.
    pub parts: Vec<(String, Bytes)>,
    /// The chunks of its pool, where the lines beside it list them.
    pub pool: Option<Box<Pool>>,
    /// The settings that command lines and configurations in the text show.
    pub settings: Vec<Setting>,
    /// What tables anywhere in the text show.
    pub tables: Arc<Tables>,
    /// The traceback before the message, outermost frame first.
    pub traceback: Vec<TextFrame>,
    /// Lines below it that were looked at.
    below: usize,
    /// Where in the text the words are that make it one.
    at: usize,
    /// Its last part, counted as lines are.
    last: usize,
}

impl OomMessage {
    fn new(kind: MessageKind, line: usize, text: &str) -> Self {
        Self {
            program: Program::Pytorch,
            inside: None,
            memory: Memory::Device,
            hardware: Hardware::default(),
            during: None,
            likely: None,
            progress: None,
            kind,
            handled: false,
            told: false,
            line,
            text: cut(text, MAX_MESSAGE),
            versions: None,
            rank: None,
            ranks: Vec::new(),
            host: None,
            pid: None,
            process: None,
            job: None,
            allocator: None,
            fits: None,
            tokens: None,
            restarts: None,
            setting: None,
            device: None,
            requested: None,
            total: None,
            free: None,
            in_use: None,
            this_process: None,
            others: Vec::new(),
            allowed: None,
            printed_allocated: None,
            allocated: None,
            reserved: None,
            unallocated: None,
            private_pools: None,
            around: Around::default(),
            parts: Vec::new(),
            pool: None,
            settings: Vec::new(),
            tables: Arc::default(),
            traceback: Vec::new(),
            below: 0,
            at: 0,
            last: 0,
        }
    }

    /// At most so many letters of the text, with the words that make it a message.
    pub fn quote(&self, letters: usize) -> String {
        let count = self.text.chars().count();
        if count <= letters {
            return self.text.clone();
        }
        let before = self
            .text
            .get(..self.at)
            .map_or(0, |text| text.chars().count());
        // Some words before it belong to it, unless what follows is short.
        let skip = before
            .saturating_sub(letters / 4)
            .min(count.saturating_sub(letters));
        let quote: String = self.text.chars().skip(skip).take(letters).collect();
        let head = if skip > 0 { "…" } else { "" };
        let tail = if skip + letters < count { "…" } else { "" };
        format!("{head}{quote}{tail}")
    }

    /// What is in use, by the words of the program.
    pub fn used(&self) -> Option<Bytes> {
        self.in_use.or(self.allocated)
    }

    /// Its figures in the order of their fields.
    fn figures(&self) -> [Option<u64>; 8] {
        let bytes = |size: Option<Bytes>| size.map(|size| size.0);
        [
            bytes(self.requested),
            bytes(self.total),
            bytes(self.free),
            // As printed: what later words correct is no other figure.
            bytes(self.printed_allocated.or(self.used())),
            bytes(self.this_process),
            bytes(self.reserved),
            self.device.map(u64::from),
            self.fits,
        ]
    }

    /// Whether a longer text of the same message says more, and nothing else; the last figure may have been cut.
    fn is_completed_by(&self, whole: &Self, cut_in_number: bool) -> bool {
        const MOST: u64 = 1 << 50;
        let (mut added, mut changed) = (0, 0);
        for (one, other) in self.figures().into_iter().zip(whole.figures()) {
            match (one, other) {
                (Some(_), None) => return false,
                (None, Some(_)) => added += 1,
                // Two numbers that met make one that no machine has.
                (Some(_), Some(figure)) if one != other && figure > MOST => return false,
                _ if one != other => changed += 1,
                _ => {}
            }
        }
        (changed == 0 && added > 0) || (changed == 1 && cut_in_number)
    }

    /// Takes the figures of a longer text of the same message.
    fn take_figures(&mut self, whole: Self) {
        *self = Self {
            requested: whole.requested,
            total: whole.total,
            free: whole.free,
            in_use: whole.in_use,
            this_process: whole.this_process,
            others: whole.others,
            allowed: whole.allowed,
            printed_allocated: whole.printed_allocated,
            allocated: whole.allocated,
            reserved: whole.reserved,
            unallocated: whole.unallocated,
            private_pools: whole.private_pools,
            device: whole.device,
            // Where it names none, the words around it may have.
            memory: match whole.memory {
                Memory::Unknown => self.memory,
                memory => memory,
            },
            fits: whole.fits,
            versions: whole.versions,
            text: whole.text,
            at: whole.at,
            ..std::mem::replace(self, Self::new(whole.kind, whole.line, ""))
        };
    }

    /// Whether more sentences of PyTorch's message are to come.
    fn goes_on(&self) -> bool {
        self.kind == MessageKind::Native && self.requested.is_some() && self.reserved.is_none()
    }

    /// Whether a limit on its processes ended it: the machine's own memory says nothing then.
    fn ends_at_a_limit(&self) -> bool {
        self.kind == MessageKind::Killed
            && matches!(
                self.program,
                Program::Slurm | Program::Kubernetes | Program::Docker | Program::Systemd
            )
    }

    /// Adds ranks that printed it, too.
    fn add_ranks(&mut self, ranks: &[u32]) {
        self.ranks.extend_from_slice(ranks);
        self.ranks.sort_unstable();
        self.ranks.dedup();
    }

    /// Memory of the device that neither this process's PyTorch nor the free memory accounts for.
    pub fn outside_pytorch(&self) -> Option<Bytes> {
        Some(
            self.total?
                .saturating_sub(self.free?)
                .saturating_sub(self.reserved.or(self.allocated)?),
        )
    }
}

/// Reads a log: plain, `.gz`, `.xz` or `.zst`; `path` is for messages only.
pub fn read(
    file: impl Read + 'static,
    path: &Path,
) -> Result<(Vec<OomMessage>, Vec<Problem>), Error> {
    read_from(input::unpacked(file, path)?).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })
}

/// Reads an unpacked log.
pub fn read_from(reader: impl Read) -> io::Result<(Vec<OomMessage>, Vec<Problem>)> {
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    if reader.fill_buf()?.first() == Some(&b'{') {
        let mut head = Vec::new();
        reader
            .by_ref()
            .take(MAX_JSON as u64)
            .read_to_end(&mut head)?;
        if head.len() < MAX_JSON
            && let Ok(value) = serde_json::from_slice::<serde_json::Value>(&head)
        {
            let mut text = String::new();
            collect_strings(&value, &mut text);
            return scan(text.as_bytes());
        }
        return scan(io::Cursor::new(head).chain(reader));
    }
    scan(reader)
}

/// Looks for messages in a text.
pub fn find(text: &str) -> Vec<OomMessage> {
    scan(text.as_bytes())
        .map(|(messages, _)| messages)
        .unwrap_or_default()
}

/// Structured logs carry messages inside strings, with their line breaks escaped; other values stand beside their name.
fn collect_strings(value: &serde_json::Value, out: &mut String) {
    match value {
        serde_json::Value::String(text) => {
            out.push_str(text);
            out.push('\n');
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| collect_strings(item, out)),
        serde_json::Value::Object(map) => {
            for (name, item) in map {
                // They stand between the lines of a message.
                if ABOUT_RECORDS.contains(&name.as_str()) {
                    continue;
                }
                // A value that is one word tells something only with its name.
                let spoken = ["message", "msg", "log", "text"].contains(&name.as_str());
                let word = !spoken
                    && item.as_str().is_some_and(|text| {
                        text.len() <= MAX_NAME
                            && text.contains(|c: char| c.is_ascii_digit())
                            && !text.contains(' ')
                    });
                if item.is_number() || item.is_boolean() || word {
                    out.extend(["\"", name, "\": ", &item.to_string(), "\n"]);
                } else {
                    collect_strings(item, out);
                }
            }
        }
        _ => {}
    }
}

fn scan(reader: impl Read) -> io::Result<(Vec<OomMessage>, Vec<Problem>)> {
    let mut reader = BufReader::new(reader);
    let mut log = Log::default();
    let mut raw = Vec::new();
    let mut number = 0;
    loop {
        raw.clear();
        let read = reader
            .by_ref()
            .take(MAX_LINE as u64)
            .read_until(b'\n', &mut raw)?;
        if read == 0 {
            break;
        }
        number += 1;
        let line = String::from_utf8_lossy(&raw);
        let line = line.trim_end_matches(['\n', '\r']);
        // A progress bar and its like overwrite the line.
        let line = line
            .rsplit('\r')
            .find(|part| !part.trim().is_empty())
            .unwrap_or(line);
        if let Some((fields, origin)) = record(line) {
            log.whole = origin;
            for part in fields.lines() {
                log.read_escaped(part, number);
            }
            log.whole = Origin::default();
        } else {
            log.read_escaped(line, number);
        }
    }
    Ok(log.end())
}

/// The strings of a line that is an object of JSON, and who it says printed it.
fn record(line: &str) -> Option<(String, Origin)> {
    let at = line.find('{').filter(|at| *at <= MAX_PREFIX)?;
    let text = line.get(at..)?.trim_end();
    if !text.ends_with('}') || !text.contains("\":") {
        return None;
    }
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let mut fields = String::new();
    collect_strings(&value, &mut fields);
    let mut origin = origin::of_record(&value);
    origin.complete(&origin::of_line(line.get(..at)?).0);
    Some((fields, origin))
}

/// What of a log is known so far.
#[derive(Debug, Default)]
struct Log {
    messages: Vec<OomMessage>,
    /// Messages that were not kept, since there were too many.
    dropped: usize,
    traceback: VecDeque<TextFrame>,
    noted: Noted,
    /// The program whose logger wrote a line, and which part that was.
    logger: Option<(Program, usize)>,
    /// Whether that stands below the last message, which has none above it.
    below: bool,
    /// Lines, and parts of them that were separated by escaped breaks.
    parts: usize,
    /// Lines that still belong to the message of the cudaMallocAsync backend.
    continues: u8,
    /// What a record says of all its lines.
    whole: Origin,
    /// The beginnings of the last lines.
    recent: VecDeque<String>,
    /// The line before, if it is no message, and whether a reader knows words of it.
    before: Option<(String, bool)>,
    /// The message whose text may go on in the next line.
    open: Option<Open>,
    /// The last line that reports an error, if no line was about memory, and its number.
    error: Option<(usize, String)>,
    /// The error that is no matter of memory and says the most.
    fault: Option<Box<OomMessage>>,
    /// What lines anywhere say.
    elsewhere: elsewhere::Elsewhere,
    /// The figures of memory in their own words.
    quotes: quoted::Quotes,
    /// What it shows of where and how the program ran.
    signs: Vec<Sign>,
    /// The products that advice may name, of those that it shows.
    backed: Vec<&'static str>,
    /// The program that trains, of those it names.
    framework: Option<Framework>,
    /// The graphics cards that it names, with their lines.
    gpus: Vec<(usize, String)>,
    /// The models whose size it tells.
    models: Vec<Model>,
    /// What people tell.
    told: Told,
    /// What programs themselves advise.
    hints: Vec<Hint>,
    /// Whether the last line with words asks for ONNX Runtime's provider.
    provider: bool,
    /// The rank of the last line that named one: a line that begins amid a sentence goes on with it.
    rank: Option<u32>,
}

/// Whether the digits that `text` begins with may be the end of a size: not if a date, a time or a word goes on behind them.
fn ends_a_number(text: &str) -> bool {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    // `1. ` begins a list.
    if text[..text.len() - rest.len()].ends_with('.') {
        return false;
    }
    rest.chars()
        .next()
        .is_none_or(|c| c.is_whitespace() || matches!(c, ')' | ']' | ',' | ';' | '\'' | '"'))
        || ["B", "K", "M", "G", "T", "b", "k"]
            .iter()
            .any(|unit| rest.starts_with(unit))
}

/// A message whose text may go on in the next line, as terminals and editors wrap it.
#[derive(Debug)]
struct Open {
    /// Which it is of the messages: an earlier one if it repeats that.
    message: usize,
    /// Its reader; none for what no reader knows.
    reader: Option<usize>,
    /// Its text so far.
    text: String,
    /// Lines since.
    lines: usize,
}

impl Log {
    /// A line; Python's repr of an exception, and a record that was cut, escape their line breaks.
    fn read_escaped(&mut self, line: &str, number: usize) {
        if line.contains("\\n") {
            for part in line.replace("\\\"", "\"").split("\\n") {
                self.read(part, number);
            }
        } else {
            self.read(line, number);
        }
    }

    fn read(&mut self, part: &str, number: usize) {
        self.parts += 1;
        if part.is_empty() && self.continues == 0 {
            self.before = None;
            // Nothing wraps a text around an empty line, but programs set the sentences of PyTorch's apart.
            let messages = &self.messages;
            let set_apart =
                |open: &Open| messages.get(open.message).is_some_and(OomMessage::goes_on);
            self.open
                .take_if(|open| open.reader.is_some() && !set_apart(open));
            return;
        }
        let plain = origin::plain(part);
        let (mut origin, text) = origin::of_line(&plain);
        if let Some(program) = origin.inside {
            self.logger = Some((program, self.parts));
        }
        self.elsewhere.read(text);
        self.quotes.read(text, number);
        if self.gpus.len() < cards::MOST
            && let Some(name) = cards::named(text)
        {
            self.gpus.push((number, name));
        }
        models::read(text, number, &mut self.models);
        self.told.read(text, number);
        hints::read(text, number, &mut self.hints);
        Sign::read(text, &mut self.provider, &mut self.signs);
        backing::read(&plain, &mut self.backed);
        Framework::read(text, &mut self.framework);
        origin.complete(&self.whole);
        if self.continues > 0 {
            self.continues -= 1;
            if let Some(last) = self.messages.last_mut() {
                pytorch::read_backend_line(last, text);
            }
        }
        if text.contains("Traceback (most recent call last)") {
            // Where lines run together, a message may stand before it.
            self.traceback.clear();
        }
        if let Some((line, code)) = arrow(text)
            && let Some(frame) = self.traceback.back_mut()
        {
            frame.line = line;
            frame.code = cut(code, MAX_FRAME);
        }
        if let Some(frame) = read_frame(text).or_else(|| notebook_frame(text)) {
            if let Some(last) = self.messages.last_mut()
                && self.parts - last.last <= RECENT
            {
                named_below(last, &frame.file);
                // A title stands above its traceback.
                self.below |= last.traceback.is_empty();
            }
            if self.traceback.len() >= MAX_FRAMES {
                self.traceback.pop_front();
            }
            self.traceback.push_back(frame);
            self.before = None;
            self.open = None;
            return;
        }
        let named_rank = origin.rank;
        let place = readers::Place {
            number,
            part: self.parts,
            origin: &origin,
        };
        if let Some(limit) = faults::limit(text, &place) {
            self.keep_fault(limit);
            self.before = None;
            self.open = None;
            return;
        }
        let found = readers::read(text, &place, &mut self.noted, self.messages.last_mut());
        let known = !matches!(found, Found::Nothing { .. });
        let marked = matches!(found, Found::Nothing { marked: true });
        let found = if known {
            found
        } else {
            self.wrapped(text, &place)
        };
        let new = matches!(found, Found::Message(..));
        match found {
            Found::Message(mut message, reader) => {
                self.before = None;
                self.quotes.wake();
                self.complete(&mut message, origin, text);
                self.open = self.add(*message).map(|message| Open {
                    message,
                    reader,
                    text: cut(text, MAX_JOINED),
                    lines: 0,
                });
            }
            Found::Belongs => {
                self.before = None;
                self.open = None;
            }
            Found::Nothing { .. } => {
                let ends = !self.traceback.is_empty();
                let stated = || faults::stated(text, &place).filter(|_| ends);
                if let Some(fault) = faults::read(text, &place).or_else(stated) {
                    self.keep_fault(fault);
                }
                // One of CUDA's says more than a later line of the program's.
                let weak = |text: &str| !is_of_cuda(text);
                if self.messages.iter().all(|message| message.told)
                    && reports_an_error(text)
                    && (is_of_cuda(text)
                        || self.error.as_ref().is_none_or(|(_, error)| weak(error)))
                {
                    self.error = Some((number, cut(text.trim(), MAX_RECENT)));
                }
                let goes_on = self.go_on(text, &place);
                self.before = (!goes_on).then(|| (cut(text, MAX_JOINED), marked));
                if let Some(last) = self.traceback.back_mut() {
                    let code = text.trim();
                    if last.code.is_empty() && !code.chars().all(|c| matches!(c, '^' | '~' | ' ')) {
                        last.code = cut(code, MAX_FRAME);
                    } else if last.code.ends_with(['=', '(']) && last.code.len() < MAX_FRAME {
                        // A statement of several lines.
                        last.code = cut(&format!("{} {code}", last.code), MAX_FRAME);
                    }
                }
            }
        }
        if let Some(ended) = self.noted.launcher.as_mut()
            && ended.last == self.parts
        {
            ended.rank = named_rank;
            ended.add_ranks(&Vec::from_iter(named_rank));
        }
        self.rank = named_rank.or(self.rank);
        if !new
            && let Some(last) = self.messages.last_mut()
            && self.parts - last.last <= WRAPPED
        {
            last.during = last.during.or_else(|| phase::of_call(text));
            name_pinned(last);
            last.progress = last.progress.or_else(|| phase::progress(text));
            if last.traceback.is_empty() {
                last.during = last.during.or_else(|| phase::of_log(text));
            }
        }
        if !new
            && let Some(last) = self.messages.last_mut()
            && self.parts - last.last <= RECENT
        {
            // What a table or a command names is another program, or another moment.
            if !tables::ends_a_message(text) {
                named_below(last, text);
            }
            runs_in(last, text);
            said_below(last, text, self.parts);
            last.progress = last.progress.or_else(|| phase::progress(text));
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(cut(text, MAX_RECENT));
    }

    /// A message whose words are parted by the break between this line and the one before.
    fn wrapped(&mut self, text: &str, place: &readers::Place<'_>) -> Found {
        let nothing = Found::Nothing { marked: false };
        let Some((before, marked)) = self.before.take() else {
            return nothing;
        };
        let end = before.trim_end().len();
        for joined in joined(&before, text) {
            let spans = readers::spans(&joined, end);
            if !spans && !marked {
                continue;
            }
            // What the two lines say each stands in the notes already.
            let found = readers::read(&joined, place, &mut self.noted.clone(), None);
            // What no reader knows may have its words from either line.
            match &found {
                Found::Message(_, None) if !spans => {}
                Found::Message(..) => return found,
                _ => {}
            }
        }
        nothing
    }

    /// Adds what the line says of the message before it; whether that is something.
    fn go_on(&mut self, text: &str, place: &readers::Place<'_>) -> bool {
        if tables::ends_a_message(text) {
            self.open = None;
        }
        let Some(open) = self.open.as_mut() else {
            return false;
        };
        open.lines += 1;
        let message = self.messages.get_mut(open.message);
        let Some(message) = message.filter(|_| open.lines <= WRAPPED) else {
            self.open = None;
            return false;
        };
        let Some(reader) = open.reader else {
            // The words of a reader may be parted by the break.
            let end = open.text.trim_end().len();
            for joined in joined(&open.text, text) {
                let found = readers::read(&joined, place, &mut self.noted.clone(), None);
                if let Found::Message(whole, reader @ Some(_)) = found
                    && readers::spans(&joined, end)
                {
                    message.program = whole.program;
                    message.kind = whole.kind;
                    message.take_figures(*whole);
                    message.last = self.parts;
                    (open.reader, open.text) = (reader, joined);
                    return true;
                }
            }
            let more = general::read_further(&open.text, text, message);
            if more {
                message.last = self.parts;
            }
            open.text = cut(text, MAX_JOINED);
            return more;
        };
        // A launcher names the rank before each line.
        let same = Origin {
            rank: message.rank,
            ..Origin::default()
        };
        if open.text.len() >= MAX_JOINED
            || (place.origin != &Origin::default() && place.origin != &same)
        {
            self.open = None;
            return false;
        }
        let cut_in_number = open
            .text
            .trim_end()
            .ends_with(|c: char| c.is_ascii_digit() || c == '.');
        if cut_in_number && text.starts_with(|c: char| c.is_ascii_digit()) && !ends_a_number(text) {
            self.open = None;
            return false;
        }
        let mut joined = joined(&open.text, text);
        // The one that says the most.
        let best = joined
            .iter()
            .enumerate()
            .filter_map(|(number, joined)| Some((number, readers::again(reader, joined, place)?)))
            .filter(|(_, whole)| message.is_completed_by(whole, cut_in_number))
            .max_by_key(|(_, whole)| whole.figures().iter().flatten().count());
        if let Some((number, whole)) = best {
            message.take_figures(whole);
            message.last = self.parts;
            open.text = joined.swap_remove(number);
            open.lines = 0;
            true
        } else {
            open.text = joined.swap_remove(0);
            false
        }
    }

    /// Adds what the lines around a message say of it.
    fn complete(&mut self, message: &mut OomMessage, origin: Origin, text: &str) {
        message.last = self.parts;
        let continued = text
            .trim_start_matches("> ")
            .starts_with([')', ' '])
            .then_some(self.rank)
            .flatten();
        message.rank = origin.rank.or(message.rank).or(continued).or_else(|| {
            let head = text.get(..text.floor_char_boundary(MAX_PREFIX))?;
            facts::rank(&head.to_ascii_lowercase())
        });
        message.add_ranks(&Vec::from_iter(message.rank));
        message.pid = message.pid.or(origin.pid);
        message.host = message.host.take().or(origin.host);
        message.traceback = self.traceback.drain(..).collect();
        self.below = false;
        message.progress = self
            .recent
            .iter()
            .rev()
            .find_map(|line| phase::progress(line));
        // A whole traceback tells what its program did; of a cut one, or none, the log may.
        let is_cut = message.traceback.len() < SHORT || message.program.serves();
        message.during = message
            .during
            .or_else(|| phase::of_frames(&message.traceback));
        message.likely = {
            let mut lines = self.recent.iter().rev().filter(|_| is_cut);
            let near = lines.clone().take(CLOSE);
            // What a listing does after that has no phase, and is nearer.
            let ran = |line: &&String| line.trim_end().ends_with(')') && line.contains(" = ");
            near.filter(|line| message.traceback.is_empty() && !line.trim().is_empty())
                .map(|line| (phase::of_line(line), ran(&line)))
                .find_map(|(phase, ran)| (phase.is_some() || ran).then_some(phase))
                .flatten()
                .or_else(|| lines.find_map(|line| phase::of_log(line)))
        };
        // Ray's driver only relays what failed in a worker: `ray::Worker.run() (pid=7106, ip=192.168.10.10, …`.
        if let Some((pid, host)) = self
            .recent
            .iter()
            .rev()
            .find_map(|line| origin::of_ray(line))
        {
            // Its own message names the task that it ended, and not who waited for that.
            if message.program != Program::Ray {
                message.pid = Some(pid);
            }
            message.host = host.or(message.host.take());
        }
        let near = || origin::of_frames(message.traceback.iter().map(|frame| frame.file.as_str()));
        let close = |(_, part): &(Program, usize)| self.parts - part <= RECENT;
        let logger = self.logger.filter(close).map(|(program, _)| program);
        let another = |inside: &Program| *inside != message.program;
        let inside = origin
            .inside
            .or_else(|| origin::inside(text.get(..text.floor_char_boundary(MAX_WORDS))?))
            .filter(another)
            .or_else(near)
            .or(logger);
        let recent = || {
            let mut lines = self.recent.iter().rev();
            lines.find_map(|line| origin::inside(line))
        };
        let named = || {
            named::of(text).or_else(|| {
                let files = message.traceback.iter().rev();
                let files = files.map(|frame| origin::within_library(&frame.file));
                let mut lines = self.recent.iter().rev().map(String::as_str).chain(files);
                lines.find_map(named::of)
            })
        };
        if message.program == Program::Unknown
            && matches!(message.kind, MessageKind::Unknown | MessageKind::Budget)
        {
            if let Some(program) = inside.or_else(recent).or_else(named) {
                message.program = program;
            }
            let drives =
                matches!(message.program, Program::Named(named) if named.uses == Uses::Drives);
            // What the driver lacks is memory of the kernel, whichever GPU its line names, unless it says whose.
            let on_card = ["framebuffer", "vidmem", "FB memory"]
                .iter()
                .any(|word| text.contains(word));
            if drives && !on_card {
                message.memory = message.program.memory();
            }
            // Its pools are the GPU's, whoever calls it.
            if message.program == Program::Rmm && !text.contains("host") {
                message.memory = Memory::Device;
            }
            message.memory = message.memory.or(message.program.memory());
        } else if message.program == Program::Unknown {
            if let Some(program) = named() {
                message.program = program;
            }
        } else if message.inside.is_none() {
            message.inside = inside
                .filter(|inside| message.program.runs_inside() && *inside != message.program)
                .or_else(|| {
                    let inside = message.program.runs_inside().then(recent).flatten()?;
                    (inside.starts_others() || inside.serves() || message.program == Program::Cuda)
                        .then_some(inside)
                        .filter(another)
                })
                .or_else(|| match message.program {
                    Program::Cuda | Program::Cublas => named(),
                    // They run on the same library as llama.cpp, and have other options.
                    Program::LlamaCpp => named().filter(
                        |program| matches!(program, Program::Named(named) if ["whisper.cpp", "stable-diffusion.cpp"].contains(&named.id)),
                    ),
                    _ => None,
                });
        }
        for line in self.recent.iter().rev().map(String::as_str).chain([text]) {
            runs_in(message, line);
        }
        if message.handled && message.memory == Memory::Host && ends_with_killed(text) {
            *message = ended_after(message);
        }
        let said = [
            message.requested,
            message.total,
            message.free,
            message.used(),
        ];
        let alone = said.iter().all(Option::is_none)
            && matches!(
                message.kind,
                MessageKind::Allocation | MessageKind::Cuda | MessageKind::Native
            );
        if alone {
            general::complete(text, message);
        }
        if matches!(message.kind, MessageKind::Native | MessageKind::Cuda)
            && message.memory == Memory::Device
            && message.inside != Some(Program::TensorRt)
            && general::goes_on(&cut(text, MAX_RECENT).to_ascii_lowercase())
        {
            message.handled = true;
        }
        name_pinned(message);
        let on_cpu =
            |line: &String| line.contains("alling back to cpu") || line.contains("TFRT_CPU");
        if message.program == Program::Jax
            && message.memory == Memory::Unknown
            && self.recent.iter().any(on_cpu)
        {
            message.memory = Memory::Host;
        }
        if message.kind == MessageKind::Async {
            self.continues = 6;
        }
    }

    /// Keeps an error that is no matter of memory, with the traceback before it.
    fn keep_fault(&mut self, mut fault: OomMessage) {
        fault.traceback = self.traceback.iter().cloned().collect();
        let mut lines = self.recent.iter().rev();
        fault.inside = lines
            .find_map(|line| origin::inside(line))
            .filter(|inside| inside.serves() || inside.starts_others());
        if fault.program == Program::Unknown {
            let files = fault.traceback.iter().map(|frame| frame.file.as_str());
            fault.program = origin::of_frames(files).unwrap_or(Program::Unknown);
            fault.inside = fault.inside.filter(|inside| *inside != fault.program);
        }
        faults::keep(&mut self.fault, fault);
    }

    /// Names the container of a message of Kubernetes by the lines above it, `kubectl describe pod` as it is printed.
    fn name_container(&self, message: &mut OomMessage) {
        if message.program != Program::Kubernetes || message.process.is_some() {
            return;
        }
        message.host = message.host.take().or_else(|| self.noted.pod.clone());
        // A container's limits in YAML, above the text.
        message.total = message.total.or(self.noted.limit);
        message.process = self.recent.iter().rev().find_map(|line| {
            let name = line.trim().strip_suffix(':')?;
            // Headings have capital letters, names of containers none.
            let plain =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            let field = [
                "resources",
                "limits",
                "requests",
                "state",
                "containers",
                "spec",
                "status",
                "metadata",
                "command",
                "args",
                "template",
            ]
            .contains(&name);
            (!name.is_empty() && !field && name.bytes().all(plain)).then(|| name.to_owned())
        });
    }

    /// Adds a message unless it repeats one: launchers and ranks print an error several times. Returns where that stands.
    fn add(&mut self, mut message: OomMessage) -> Option<usize> {
        if let Some((place, earlier)) = self
            .messages
            .iter_mut()
            .enumerate()
            .find(|(_, other)| says_the_same(other, &message))
        {
            earlier.add_ranks(&message.ranks);
            earlier.last = message.last;
            if earlier.traceback.len() < message.traceback.len() {
                earlier.traceback = message.traceback;
            }
            return Some(place);
        }
        if self.messages.len() >= MAX_MESSAGES {
            self.dropped += 1;
            return None;
        }
        message.hardware = self
            .recent
            .iter()
            .fold(message.hardware, |known, line| known.or(Hardware::of(line)));
        self.name_container(&mut message);
        if message.setting.is_none()
            && message.kind != MessageKind::Killed
            && general::is_one_buffer(&message.text.to_ascii_lowercase())
        {
            message.setting = Some("one allocation");
        }
        // The framework whose allocator printed its figures is the one that the message is in.
        if message.inside == Some(Program::Tensorflow) {
            let [limit, in_use] = std::mem::take(&mut self.noted.arena);
            message.around.total = limit;
            message.around.in_use = in_use;
        }
        let mut around = message.around;
        let lines = self.recent.iter().map(String::as_str);
        // Who tells of the end of a process may tell more on the same line.
        let own = (message.kind == MessageKind::Killed).then_some(message.text.as_str());
        facts::near(lines.chain(own), &message, &mut around);
        message.around = around;
        let serves = message.program.serves() || message.inside.is_some_and(Program::serves);
        if serves && message.parts.is_empty() {
            let lines = self.recent.iter().rev();
            message.parts = lines
                .map(|line| facts::parts(line))
                .find(|parts| !parts.is_empty())
                .unwrap_or_default();
        }
        self.messages.push(message);
        Some(self.messages.len() - 1)
    }

    /// A message that does not say which memory it means, means that of its program's other messages near by.
    fn name_memories(&mut self) {
        const NEAR: usize = 8;
        let known: Vec<OomMessage> = self
            .messages
            .iter()
            .filter(|message| !matches!(message.memory, Memory::Unknown | Memory::None))
            .cloned()
            .collect();
        for message in &mut self.messages {
            let near = known.iter().find(|other| {
                // A handle of cuDNN that could not be made is why no algorithm ran.
                let why = message.kind == MessageKind::NoAlgorithm
                    && matches!(other.kind, MessageKind::Cudnn | MessageKind::Cublas);
                (other.program == message.program || why)
                    && other.line.abs_diff(message.line) <= NEAR
            });
            if message.memory == Memory::Unknown
                && let Some(near) = near
            {
                message.memory = near.memory;
                message.device = message.device.or(near.device);
            }
        }
    }

    /// ONNX Runtime's arenas of the GPU and of the host have the same words: the text may name the only provider.
    fn name_providers(&mut self) {
        let providers = [Sign::OnCuda, Sign::OnCpu].map(|sign| self.signs.contains(&sign));
        let [gpu, cpu] = self.noted.providers;
        let memory = match [gpu || providers[0], cpu || providers[1]] {
            [true, false] => Memory::Device,
            [false, true] => Memory::Host,
            _ => return,
        };
        for message in &mut self.messages {
            if message.program == Program::OnnxRuntime {
                message.memory = message.memory.or(memory);
            }
        }
    }

    /// XLA's error does not name the GPU; the warning of its allocator about the same request does.
    fn name_devices(&mut self) {
        const NEAR: usize = 16;
        let warnings: Vec<OomMessage> = self
            .messages
            .iter()
            .filter(|message| message.device.is_some() && message.allocator.is_some())
            .cloned()
            .collect();
        for message in &mut self.messages {
            let near = warnings.iter().find(|warning| {
                // The allocator's own line is rounded.
                let alike = |one: Bytes, other: Bytes| one.0.abs_diff(other.0) <= one.0 / 100;
                let sizes = warning.requested.zip(message.requested);
                let same = sizes.is_some_and(|(one, other)| one == other);
                sizes.is_some_and(|(one, other)| alike(one, other))
                    && warning.memory == message.memory
                    && (same || warning.line.abs_diff(message.line) <= NEAR)
            });
            if message.program == Program::Jax
                && message.device.is_none()
                && let Some(warning) = near
            {
                message.device = warning.device;
                message.allocator.clone_from(&warning.allocator);
                message.total = message.total.or(warning.total);
                message.in_use = message.in_use.or(warning.in_use);
            } else if let Some(first) = warnings.first()
                && message.program == Program::Jax
                && message.memory == Memory::Device
                && message.device.is_none()
                && warnings
                    .iter()
                    .all(|warning| warning.device == first.device)
            {
                // All its allocators in the text are of one GPU.
                message.device = first.device;
            }
        }
        // XLA lists what a program needs below the first of its errors alone.
        let lists: Vec<OomMessage> = (self.messages.iter())
            .filter(|message| message.program == Program::Jax && !message.parts.is_empty())
            .cloned()
            .collect();
        for message in &mut self.messages {
            let same = |list: &&OomMessage| {
                list.requested.is_some() && list.requested == message.requested
            };
            if message.program == Program::Jax
                && message.parts.is_empty()
                && let Some(list) = lists.iter().find(same)
            {
                message.parts.clone_from(&list.parts);
            }
        }
    }

    /// Ranks of one job that ask for the same fail at the same line, though a log often has the traceback of one alone.
    fn name_places(&mut self) {
        let whole: Vec<OomMessage> = self
            .messages
            .iter()
            .filter(|message| !message.traceback.is_empty() && message.requested.is_some())
            .cloned()
            .collect();
        for message in &mut self.messages {
            let same = whole.iter().find(|other| {
                other.kind == message.kind
                    && other.requested == message.requested
                    && other.total == message.total
            });
            if let Some(other) = same.filter(|_| message.traceback.is_empty()) {
                message.traceback.clone_from(&other.traceback);
                message.during = message.during.or(other.during);
            }
        }
    }

    /// What the signs of the whole text say of its messages, and what these show together.
    fn end_by_signs(&mut self, signs: &[Sign]) -> Option<Sign> {
        /// Of a process that is not by itself what fills a limit, and how many of them are a pattern.
        const SMALL: Bytes = Bytes::mib(64);
        const MANY: usize = 3;
        for message in &mut self.messages {
            if message.program == Program::Triton && signs.contains(&Sign::IgnoresChoice) {
                message.handled = true;
            }
            if message.program == Program::Shell && signs.contains(&Sign::Ollama) {
                message.inside = message.inside.or(Some(Program::Ollama));
            }
            if message.program.runs_inside() && signs.contains(&Sign::WebInterface) {
                message.inside = message.inside.or(Some(Program::StableDiffusion));
            }
        }
        let small = self.messages.iter().filter(|message| {
            message.program == Program::Kernel && message.in_use.is_some_and(|held| held < SMALL)
        });
        (small.count() >= MANY).then_some(Sign::ManySmall)
    }

    /// A process that was ended just after a warning about the host's memory: the warning tells what it was at.
    fn name_warnings(&mut self) {
        for number in 1..self.messages.len() {
            let (before, rest) = self.messages.split_at_mut(number);
            if let (Some(warning), Some(ended)) = (before.last(), rest.first_mut())
                && ended.kind == MessageKind::Killed
                && ended.program == Program::Shell
                && warning.handled
                && warning.memory == Memory::Host
                && ended.line.abs_diff(warning.line) <= RECENT
            {
                ended.inside = ended.inside.or(Some(warning.program));
                ended.around.asked = warning.requested;
            }
        }
    }

    /// Gives the last message the traceback below it, where none stands above it and no message ended it.
    fn take_traceback_below(&mut self) {
        let Some(last) = self.messages.last_mut().filter(|last| {
            let ended = matches!(last.kind, MessageKind::Killed | MessageKind::Fault(_));
            self.below && last.traceback.is_empty() && !ended
        }) else {
            return;
        };
        last.traceback = self.traceback.drain(..).collect();
        last.during = phase::of_frames(&last.traceback).or(last.during);
        let files = last.traceback.iter().map(|frame| frame.file.as_str());
        last.inside = origin::of_frames(files)
            .filter(|inside| last.program.runs_inside() && *inside != last.program)
            .or(last.inside);
    }

    fn end(mut self) -> (Vec<OomMessage>, Vec<Problem>) {
        self.take_traceback_below();
        if let Some(fault) = self.fault.take() {
            faults::explain_away(&mut self.messages, &fault);
            let says_most = match fault.kind {
                // Memory that is short stops threads, too; and an error without a name says less than any other.
                MessageKind::Fault(Fault::Threads | Fault::Unnamed) => self.messages.is_empty(),
                // It is no matter of its own, but what somebody tells of memory is no part of it.
                MessageKind::Fault(Fault::Stated) => {
                    let told = self.messages.iter().all(|message| message.told);
                    told && !self.messages.is_empty()
                }
                _ => true,
            };
            if says_most
                && self.messages.iter().all(OomMessage::is_vague)
                && !faults::is_consequence(&fault, &mut self.messages)
            {
                self.messages.insert(0, *fault);
            }
        }
        // A launcher that ended its processes, and no word of why.
        if self.messages.is_empty()
            && self.error.is_none()
            && let Some(mut ended) = self.noted.launcher.take()
        {
            let mut around = ended.around;
            facts::near(self.recent.iter().map(String::as_str), &ended, &mut around);
            ended.around = around;
            self.messages.push(*ended);
        }
        // A text that no reader knows matters only if there is no other, which is not only a warning.
        let known = self.messages.iter();
        let known: Vec<Memory> = known
            .filter(|message| message.kind != MessageKind::Unknown && !message.handled)
            .map(|message| message.memory)
            .collect();
        if !known.is_empty() {
            // One of OpenCL's is of a GPU, whatever failed for want of the host's memory after it.
            let apart = |message: &OomMessage| {
                message.text.contains("CL_MEM_OBJECT") && !known.contains(&Memory::Device)
            };
            self.messages
                .retain(|message| message.kind != MessageKind::Unknown || apart(message));
        }
        // The kernel does not always name the group: SLURM's own words do.
        let slurm = self
            .messages
            .iter()
            .any(|message| message.program == Program::Slurm);
        for message in &mut self.messages {
            if slurm && message.allocator.as_deref() == Some("memory cgroup") {
                message.allocator = Some("memory cgroup of slurm".to_owned());
            }
        }
        self.name_providers();
        self.name_memories();
        self.name_devices();
        self.name_warnings();
        self.name_places();
        let mut signs = std::mem::take(&mut self.signs);
        signs.extend(self.end_by_signs(&signs));
        let mut tables = self.elsewhere.shown().clone();
        tables.figures = self.quotes.found();
        tables.signs = signs;
        tables.backed = std::mem::take(&mut self.backed);
        tables.framework = self.framework.take();
        tables.gpus = std::mem::take(&mut self.gpus);
        tables.told = std::mem::take(&mut self.told);
        tables.hints = std::mem::take(&mut self.hints);
        tables.model = models::chosen(&self.models).cloned();
        tables.signs.extend(self.elsewhere.signs());
        let tables = Arc::new(tables);
        for message in &mut self.messages {
            message.tables = Arc::clone(&tables);
            self.elsewhere.complete(message);
        }
        for message in &mut self.messages {
            message.during = message.during.or(message.likely);
        }
        // Several lines made one message, or one line has the words of two: a GPU's number is of another then.
        for message in &mut self.messages {
            if message.memory == Memory::Host {
                message.device = None;
            }
        }
        let mut problems = Vec::new();
        if self.messages.is_empty()
            && let Some((line, text)) = self.error
        {
            problems.push(Problem::new(
                ProblemKind::Incomplete,
                format!(
                    "line {line} reports another error, not one of memory: {text}{}",
                    if text.contains("reate") && text.contains("handle") {
                        "; of a handle that could not be made: the versions of the library, CUDA, the driver and the framework may not fit"
                    } else if is_of_cuda(&text) {
                        "; CUDA_LAUNCH_BLOCKING=1 shows which call it comes from"
                    } else {
                        ""
                    }
                ),
            ));
        }
        if self.dropped > 0 {
            problems.push(Problem::new(
                ProblemKind::Incomplete,
                format!("{} more out-of-memory messages were ignored", self.dropped),
            ));
        }
        (self.messages, problems)
    }
}

/// Whether a line reports an error of CUDA's or its libraries'.
fn is_of_cuda(text: &str) -> bool {
    ["CUDA error", "cudaError", "CUBLAS_STATUS_", "CUDNN_STATUS_"]
        .iter()
        .any(|word| text.contains(word))
}

/// Whether a line reports an error, of whatever kind.
fn reports_an_error(text: &str) -> bool {
    // `error: 963739` is a figure of a computation.
    let figure = ["error: ", "Error: "].iter().any(|name| {
        text.split_once(name)
            .is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    if figure {
        return false;
    }
    if is_of_cuda(text) {
        return true;
    }
    [
        "Error: ",
        "Error:",
        "error: ",
        "error : ",
        "Error(",
        " fault",
        "failure",
        "Exception",
        "ssertion",
        "FATAL",
        "no CUDA-capable device",
        "no kernel image",
        "illegal memory access",
        "ERROR_",
        "low on resource",
        "No space left",
        "ailed to ",
    ]
    .iter()
    .any(|word| text.contains(word))
}

/// Whether a line that begins with something else ends with the shell's word for a process that was ended.
fn ends_with_killed(text: &str) -> bool {
    let text = text.trim_end_matches(|c: char| !c.is_alphanumeric());
    text.strip_suffix("Killed")
        .is_some_and(|rest| rest.ends_with(|c: char| !c.is_alphanumeric()))
}

/// The end of a process just after a warning of it.
fn ended_after(warning: &OomMessage) -> OomMessage {
    OomMessage {
        program: Program::Shell,
        kind: MessageKind::Killed,
        inside: Some(warning.program),
        handled: false,
        requested: None,
        around: Around {
            asked: warning.requested,
            ..warning.around
        },
        ..warning.clone()
    }
}

/// Adds what a line below a message says of it: whether the program went on, figures, what holds the memory.
fn said_below(message: &mut OomMessage, text: &str, part: usize) {
    /// Parts of a list that are kept.
    const MOST: usize = 12;
    message.below += 1;
    if message.below > RECENT {
        return;
    }
    let shown = text
        .get(..text.floor_char_boundary(MAX_RECENT))
        .unwrap_or_default();
    if part - message.last <= WRAPPED
        && matches!(
            message.kind,
            MessageKind::Allocation | MessageKind::Native | MessageKind::Cuda
        )
        && message.memory == Memory::Device
        // Its own readers tell a tactic that was skipped from a failure.
        && message.program != Program::TensorRt
        && message.inside != Some(Program::TensorRt)
        && (general::goes_on(&shown.to_ascii_lowercase()) || general::freed(message, shown))
    {
        message.handled = true;
    }
    // `- Free memory: 53.1098GB`, right below.
    if shown.starts_with("- ") && part - message.last <= WRAPPED {
        facts::figures(shown, message);
    }
    if !shown.bytes().any(|byte| byte.is_ascii_digit()) {
        return;
    }
    let mut around = message.around;
    facts::near(std::iter::once(shown), message, &mut around);
    message.around = around;
    if message.memory == Memory::Device && message.parts.len() < MOST {
        message.parts.extend(facts::parts(shown));
    }
}

/// Takes over what a line says of where a process ran that was ended.
fn runs_in(message: &mut OomMessage, line: &str) {
    if message.program == Program::Kernel
        && message.allocator.as_deref() == Some("memory cgroup")
        && origin::container(line) == Some(Program::Kubernetes)
    {
        message.allocator = Some("memory cgroup of a pod".to_owned());
    }
    if message.kind == MessageKind::Killed
        && matches!(message.program, Program::Shell | Program::Unknown)
        && message
            .inside
            .is_none_or(|inside| inside == Program::Docker)
    {
        message.inside = origin::container(line).or(message.inside);
    }
}

/// What is pinned is the host's memory, though CUDA has the same words for it as for a full GPU.
fn name_pinned(message: &mut OomMessage) {
    if message.kind != MessageKind::Cuda || message.during != Some(Phase::Pinning) {
        return;
    }
    // The `DataLoader`'s thread that pins needs a context on the GPU, and pages of the host.
    let mut files = message.traceback.iter().map(|frame| &frame.file);
    if files.any(|file| file.ends_with("_utils/pin_memory.py")) {
        message.memory = Memory::Unknown;
    } else {
        message.memory = Memory::Host;
        message.allocator = Some("pinned memory".to_owned());
    }
}

/// Takes over the program that a line below a message names.
fn named_below(message: &mut OomMessage, text: &str) {
    // It runs on Java.
    if matches!(message.program, Program::Named(named) if named.uses == Uses::Java)
        && text.contains("org.apache.spark")
    {
        message.program = named::of(text).unwrap_or(message.program);
        return;
    }
    // They share XLA, and its words.
    if ["XlaRuntimeError", "jaxlib", "jax.errors"]
        .iter()
        .any(|word| text.contains(word))
    {
        if message.program == Program::Tensorflow {
            message.program = Program::Jax;
        } else if message.inside == Some(Program::Tensorflow) {
            message.inside = Some(Program::Jax);
        }
    }
    let library = message.program.runs_inside() && message.inside.is_none();
    let known = message.program != Program::Unknown;
    let unknown = message.kind == MessageKind::Unknown
        && (!known || matches!(message.program, Program::Named(_)));
    if !library && !unknown {
        return;
    }
    // An error of this name below a library of PyTorch's is PyTorch's, whoever was named first.
    let torch =
        unknown && message.text.contains("OutOfMemoryError") && text.contains("-packages/torch/");
    let within = origin::within_library(text);
    let others = || origin::inside(within).or_else(|| named::of(within));
    let named = if torch {
        Some(Program::Pytorch)
    } else if unknown && known {
        None
    } else {
        others()
    };
    let Some(program) = named.filter(|program| *program != message.program) else {
        return;
    };
    message.hardware = message.hardware.or(Hardware::of(text));
    if unknown {
        message.program = program;
        message.memory = message.memory.or(program.memory());
    } else if program.starts_others()
        || (matches!(
            program,
            Program::LlamaCpp | Program::Tensorflow | Program::Named(_)
        ) && message.program == Program::Cuda)
        || (program.serves() && matches!(message.program, Program::Pytorch | Program::Cuda))
    {
        message.inside = Some(program);
    }
}

/// Whether two messages say the same: word by word, or, of two ranks, with the same figures.
fn says_the_same(one: &OomMessage, other: &OomMessage) -> bool {
    let figures = |message: &OomMessage| {
        (
            (message.program, message.kind, message.memory),
            (
                message.requested,
                message.total,
                message.free,
                message.used(),
            ),
            (message.device, message.handled, message.fits),
        )
    };
    let whose = |message: &OomMessage| (message.host.clone(), message.job.clone());
    let ranks = one.rank.is_some() && other.rank.is_some() && one.rank != other.rank;
    if one.kind != other.kind || figures(one) != figures(other) {
        return false;
    }
    // Typed by hand, or by another thread: the same line but for a few letters.
    let typed = one.kind == MessageKind::Cuda
        && one.rank.is_none()
        && one.pid == other.pid
        && other.line.abs_diff(one.line) <= WRAPPED
        && file_of(&one.text).is_some_and(|file| file_of(&other.text) == Some(file));
    one.text == other.text || typed || (ranks && whose(one) == whose(other))
}

/// The file and the line in the source of a program that its message names: `at /src/cumem_allocator.cpp:62`.
fn file_of(text: &str) -> Option<&str> {
    let file = text.rsplit(['/', '\\']).next()?;
    let named = [".cpp", ".cu", ".cc", ".cuh", ".h"]
        .iter()
        .any(|end| file.contains(end));
    named.then(|| file.trim())
}

/// A line and the next one as one: editors break lines between words, terminals anywhere.
fn joined(line: &str, next: &str) -> Vec<String> {
    let next = cut(next, MAX_JOINED);
    let number = |c: char| c.is_ascii_digit() || c == '.';
    let spaced = || format!("{} {}", line.trim_end(), next.trim_start());
    if line.ends_with(' ') || next.starts_with(char::is_whitespace) {
        vec![spaced()]
    } else if line.ends_with(number) && next.starts_with(number) {
        vec![format!("{line}{next}")]
    } else {
        vec![spaced(), format!("{line}{next}")]
    }
}

/// `  File "train.py", line 12, in main`
fn read_frame(line: &str) -> Option<TextFrame> {
    // Servers put the time and the place before each line.
    let head = line.get(..line.floor_char_boundary(MAX_PREFIX))?;
    let at = head.find("File \"")?;
    let before = line.get(..at)?;
    let begins = before.trim().is_empty() || before.ends_with("  ");
    let rest = line.get(at..).filter(|_| begins)?.strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let function = rest
        .split_once(", in ")
        .map_or("", |(_, function)| function)
        .trim();
    Some(TextFrame {
        file: cut(file, MAX_FRAME),
        line: digits.parse().ok()?,
        function: cut(function, MAX_FRAME),
        code: String::new(),
    })
}

/// A frame as notebooks print it: `Cell In[14], line 7`, `<ipython-input-3-5a9c> in <module>`, `File ~/a.py:15, in f(x)`,
/// `~/a.py in f(x)`; where the line's number is missing, the arrow below tells it.
fn notebook_frame(text: &str) -> Option<TextFrame> {
    let text = text.get(..text.floor_char_boundary(MAX_RECENT))?.trim_end();
    let cell = ["Cell In", "Input In", "<ipython-input-"]
        .iter()
        .any(|name| text.starts_with(name));
    let (place, function) = match text.split_once(" in ") {
        Some((place, function)) => (place.trim_end_matches(','), function),
        None if cell => (text, "<module>"),
        None => return None,
    };
    let place = place.strip_prefix("File ").unwrap_or(place);
    let (file, line) = if cell {
        let (file, rest) = place.split_once(", line ").unwrap_or((place, ""));
        (file.trim_end(), words::index(rest))
    } else {
        let (file, line) = place.rsplit_once(':').unwrap_or((place, ""));
        let source = Path::new(file).extension()?;
        let plain = !file.contains([' ', '"']) && (source == "py" || source == "pyx");
        (plain.then_some(file)?, words::index(line))
    };
    // `<cell line: 5>()` is the cell itself.
    let name = function.split('(').next().unwrap_or(function);
    let function = if name.starts_with("<cell") {
        "<module>"
    } else {
        name
    };
    Some(TextFrame {
        file: cut(file, MAX_FRAME),
        line: line.unwrap_or(0),
        function: cut(function, MAX_FRAME),
        code: String::new(),
    })
}

/// `---> 15 code`, as notebooks mark the line of a frame.
fn arrow(text: &str) -> Option<(u32, &str)> {
    let rest = text
        .trim_start()
        .strip_prefix("--")?
        .trim_start_matches('-');
    let (line, code) = rest.strip_prefix("> ")?.split_once(' ')?;
    Some((line.parse().ok()?, code.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn all(text: &str) -> Vec<OomMessage> {
        find(text)
    }

    pub(super) fn one(text: &str) -> OomMessage {
        let mut found = find(text);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "what it is compared with is optional"
    )]
    pub(super) fn gib(value: f64) -> Option<Bytes> {
        Some(Bytes((value * 1_073_741_824.0).round() as u64))
    }

    #[test]
    fn before_2_1() {
        let message = one(
            "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 3; 23.69 GiB total capacity; 20.10 GiB already allocated; 1.01 GiB free; 21.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
        );
        assert_eq!(message.device, Some(3));
        assert_eq!(message.total, gib(23.69));
        assert_eq!(message.allocated, gib(20.10));
        assert_eq!(message.free, gib(1.01));
        assert_eq!(message.reserved, gib(21.0));
        assert_eq!(message.requested, gib(1.5));
        let old = one(
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.93 GiB total capacity; 7.00 GiB already allocated; 10.00 MiB free; 7.10 GiB cached)",
        );
        assert_eq!(old.reserved, gib(7.1));
    }

    #[test]
    fn since_2_1() {
        let typo = one(
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacty of 15.90 GiB of which 1.88 MiB is free. Including non-PyTorch memory, this process has 15.89 GiB memory in use. Of the allocated memory 15.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated. If reserved",
        );
        assert_eq!(typo.versions, Some("2.1"));
        assert_eq!(typo.total, gib(15.9));
        let now = one(
            "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 36.00 MiB. GPU 1 has a total capacity of 139.80 GiB of which 126.15 GiB is free. Including non-PyTorch memory, this process has 10.72 GiB memory in use. Process 678 has 2.41 GiB memory in use. Process 731 has 518.00 MiB memory in use. 10.00 GiB allowed; Of the allocated memory 9.56 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 439.58 MiB is reserved by PyTorch but unallocated. If reserved but unallocated",
        );
        assert_eq!(now.rank, Some(1));
        assert_eq!(now.device, Some(1));
        assert_eq!(now.allowed, gib(10.0));
        assert_eq!(now.others.len(), 2);
        assert_eq!(now.others[0].pid, 678);
        assert_eq!(now.this_process, gib(10.72));
        // The private pools' free blocks are not in use.
        assert_eq!(now.allocated, gib(9.56).map(|b| b - Bytes::gib(1)));
        assert_eq!(
            now.reserved,
            Some(Bytes(
                (9.56_f64 * 1_073_741_824.0).round() as u64
                    + (439.58_f64 * 1_048_576.0).round() as u64
            ))
        );
    }

    #[test]
    fn frames_of_notebooks() {
        let new = one(
            "Cell [0;32mIn[14], line 7[0m\n[0;32m----> 7[0m     out [38;5;241m=[39m model(x)\n\nFile [0;32m/venv/lib/python3.10/site-packages/torch/nn/modules/linear.py:114[0m, in [0;36mLinear.forward[0;34m(self, x)[0m\n\n[0;31mOutOfMemoryError[0m: CUDA out of memory. Tried to allocate 2.00 GiB. GPU ",
        );
        let frames: Vec<(&str, u32, &str, &str)> = new
            .traceback
            .iter()
            .map(|frame| (&*frame.file, frame.line, &*frame.function, &*frame.code))
            .collect();
        assert_eq!(
            frames,
            [
                ("Cell In[14]", 7, "<module>", "out = model(x)"),
                (
                    "/venv/lib/python3.10/site-packages/torch/nn/modules/linear.py",
                    114,
                    "Linear.forward",
                    ""
                ),
            ]
        );
        let old = one(
            "<ipython-input-23-5a9c7df0b7b1> in <module>\n      1 import numpy\n----> 2 a = f(b)\n\n~/lib/extmath.py in f(b)\n    151         return b @ b\n--> 152     c = b\n\nMemoryError: Unable to allocate 149. GiB for an array with shape (200000, 100000) and data type float64",
        );
        let lines: Vec<u32> = old.traceback.iter().map(|frame| frame.line).collect();
        assert_eq!(lines, [2, 152]);
    }

    #[test]
    fn a_device_on_the_next_line_is_the_memory() {
        let found = one(
            "OOM when allocating tensor with shape[2,4] and type float on /job:localhost/replica:0/task:0\n/device:GPU:1 by allocator GPU_1_bfc\n",
        );
        assert_eq!((found.memory, found.device), (Memory::Device, Some(1)));
    }

    #[test]
    fn what_follows_a_repetition_is_not_of_the_message_between() {
        let nccl = "node:21:22 [0] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n";
        let killed = "node systemd-oomd[9]: Killed /user.slice/a.scope due to memory pressure\n";
        let messages = all(&format!("{nccl}{killed}{nccl}node:21:22 [1] ilure 0\n"));
        assert_eq!(messages.len(), 2);
        let killed = messages
            .iter()
            .find(|message| message.program == Program::Systemd)
            .unwrap();
        assert_eq!((killed.memory, killed.device), (Memory::Host, None));
    }

    #[test]
    fn a_failure_that_is_told_twice_is_one() {
        for text in [
            // Typed by hand.
            "Cuda error: out of memory at /workspace/csrc/cumem_allocator.cpp: 62\nCuda Error: out of memory at /workspave/scrc/cumem_allocator.cpp: 62",
            // A command that looks for the words.
            "journalctl | grep \"oom-killer\"\nn4 kernel: mailpit invoked oom-killer: gfp_mask=0x100cca, order=0",
            // Somebody's own words, and the error.
            "I get a CUDA out of memory error.\nRuntimeError: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        ] {
            let message = tests::one(text);
            assert!(!message.text.starts_with("I get"), "{text}");
        }
    }

    #[test]
    fn another_error_is_quoted_by_the_line_that_names_it() {
        let text = "Start with error: 963739, elapsed 3 ms\nCUDA error 1 [util_device.cuh, 351]: invalid argument\nFATAL: stopped\nEnd with error: 12";
        let (messages, problems) = read_from(text.as_bytes()).unwrap();
        assert!(messages.is_empty());
        let said = problems[0].to_string();
        assert!(said.contains("line 2 reports another error"), "{said}");
        assert!(said.contains("CUDA_LAUNCH_BLOCKING=1"), "{said}");
    }

    #[test]
    fn cut_at_the_device() {
        let cut = one(
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU \0 has a total",
        );
        assert_eq!(cut.requested, gib(2.0));
        let cut =
            one("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU ");
        assert_eq!(cut.versions, Some("2.3 or 2.4"));
        assert_eq!(cut.device, None);
    }

    #[test]
    fn unknown_is_not_a_size() {
        let message = one(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.",
        );
        assert_eq!(message.this_process, None);
        assert_eq!(message.unallocated, Some(Bytes::ZERO));
    }

    #[test]
    fn other_words() {
        let kinds = |text: &str| -> Vec<MessageKind> {
            find(text).into_iter().map(|message| message.kind).collect()
        };
        for (text, kind) in [
            (
                "CUDA out of memory. Tried to allocate more than 1EB memory.",
                MessageKind::Native,
            ),
            (
                "CUDA out of memory. Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: 1048576",
                MessageKind::Rejected,
            ),
            (
                "RuntimeError: Not enough memory for workspace!",
                MessageKind::Workspace,
            ),
            ("RuntimeError: CUDA error: out of memory", MessageKind::Cuda),
            (
                "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                MessageKind::Cublas,
            ),
            (
                "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
                MessageKind::Cudnn,
            ),
            (
                "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
                MessageKind::Cudnn,
            ),
            (
                "ncclUnhandledCudaError: Call to CUDA function failed. Cuda failure 'out of memory'",
                MessageKind::Nccl,
            ),
            (
                "NCCL WARN Failed to CUDA calloc 6291456 bytes",
                MessageKind::Nccl,
            ),
            (
                "W1120 memory allocation failed with OOM on device 2 while trying to allocate 4096 bytes (free: 100, total: 200)",
                MessageKind::Warning,
            ),
            (
                "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes",
                MessageKind::Host,
            ),
        ] {
            assert_eq!(kinds(text), [kind], "{text}");
        }
        let nccl = one("NCCL WARN Failed to CUDA calloc 6291456 bytes");
        assert_eq!(nccl.requested, Some(Bytes(6_291_456)));
        let text = "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 22.18 GiB\nRequested               : 1.00 GiB\nDevice limit            : 23.69 GiB\nFree (according to CUDA): 13.00 MiB\nPyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB\n";
        let message = one(text);
        assert_eq!(message.allocated, gib(22.18));
        assert_eq!(message.total, gib(23.69));
        assert_eq!(message.free, Some(Bytes(13 << 20)));
        assert_eq!(message.allowed, None);
        // A program's log has several of them on one line.
        let text = "failed: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated: 8.25 GiB  Requested: 300.00 MiB\nDevice limit: 9.50 GiB  Free (according to CUDA): 12.00 MiB\n";
        let message = one(text);
        assert_eq!(message.allocated, gib(8.25));
        assert_eq!(message.requested, Some(Bytes(300 << 20)));
        assert_eq!(
            (message.total, message.free),
            (gib(9.5), Some(Bytes(12 << 20)))
        );
    }

    #[test]
    fn a_line_of_megabytes_is_read_at_once() {
        const LENGTH: usize = 3 << 20;
        let head = "CUDA out of memory. Tried to allocate 1.00 GiB. ";
        let started = std::time::Instant::now();
        for part in [
            " Process 1",
            " has ",
            "Tried to allocate ",
            "\\n",
            "File \\\"a\\\", line 1\\n",
            " GPU ",
        ] {
            let text = format!("{head}{}", part.repeat(LENGTH / part.len()));
            assert_eq!(
                find(&text).first().map(|message| message.requested),
                Some(gib(1.0))
            );
        }
        // A quadratic step takes half a minute.
        assert!(started.elapsed().as_secs() < 25, "{:?}", started.elapsed());
    }

    /// Words of programs' own sources, which no fixture has.
    #[test]
    fn words_that_stand_in_the_sources_of_programs() {
        use Memory::{Device, Host, OnChip, Unknown};
        let mib = |value| Some(Bytes::mib(value));
        for (text, program, memory, requested) in [
            (
                "RuntimeError: NPU out of memory. Tried to allocate 2.00 MiB (NPU 0; 60.97 GiB total capacity)",
                Program::Pytorch,
                Device,
                mib(2),
            ),
            (
                "RuntimeError: unable to write to file </torch_123_4>: No space left on device (28)",
                Program::Pytorch,
                Host,
                None,
            ),
            (
                "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
                Program::Pytorch,
                Host,
                None,
            ),
            (
                "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
                Program::Cudnn,
                Unknown,
                None,
            ),
            (
                "ptxas error : Entry function 'k' uses too much shared data (0x100000 bytes, 0xc000 max)",
                Program::Cuda,
                OnChip,
                mib(1),
            ),
            (
                "cudaHostAlloc failed: out of memory",
                Program::Cuda,
                Host,
                None,
            ),
            (
                "Scoped allocation with size 18.00M and limit 16.00M exceeded scoped vmem limit by 2.00M",
                Program::Jax,
                OnChip,
                mib(18),
            ),
            (
                "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 1.00M. That was not possible. There are 8.00M free.",
                Program::Jax,
                Device,
                mib(1),
            ),
            (
                "ResourceExhaustedError: {{function_node __wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:GPU:0}} failed to allocate memory [Op:AddV2]",
                Program::Tensorflow,
                Device,
                None,
            ),
            (
                "UNKNOWN: Failed to determine best cudnn convolution algorithm for: %conv",
                Program::Jax,
                Unknown,
                None,
            ),
            (
                "KV cache pool is full. Retract requests. #retracted_reqs: 1",
                Program::Sglang,
                Device,
                None,
            ),
            (
                "INFO [gpu_worker.py:298] Available KV cache memory: -1.07 GiB",
                Program::Vllm,
                Device,
                None,
            ),
            (
                "ValueError: To serve at least one request with the model's max seq len (4096), 24.0 MiB KV cache is needed, which is larger than the available KV cache memory (3.00 MiB).",
                Program::Vllm,
                Device,
                mib(24),
            ),
            (
                "ggml_backend_sycl_buffer_type_alloc_buffer: can't allocate 1048576 Bytes of memory on device",
                Program::LlamaCpp,
                Device,
                mib(1),
            ),
            (
                "node2:1:2 [2] NCCL WARN Failed to CUDA malloc 1048576 bytes",
                Program::Nccl,
                Device,
                mib(1),
            ),
            (
                "slurmstepd: error: Step 7.0 hit memory limit at least once during execution.",
                Program::Slurm,
                Host,
                None,
            ),
            ("7.batch|OUT_OF_MEMORY|0:125", Program::Slurm, Host, None),
            (
                "mpirun noticed that process rank 3 with PID 42 on node n1 exited on signal 9 (Killed).",
                Program::Shell,
                Host,
                None,
            ),
            (
                "srun: error: n1: tasks 0,2: Killed",
                Program::Shell,
                Host,
                None,
            ),
            (
                "System OOM encountered, victim process: python, pid: 42",
                Program::Kubernetes,
                Host,
                None,
            ),
            ("\"OOMKilled\": true,", Program::Docker, Host, None),
            (
                "memory allocation of 1048576 bytes failed",
                Program::Unknown,
                Host,
                mib(1),
            ),
            (
                "F0101 syncedmem.cpp:56] Check failed: error == cudaSuccess (2 vs. 0)  out of memory",
                Program::Cuda,
                Device,
                None,
            ),
            (
                "System is out of GPU memory",
                Program::Unknown,
                Device,
                None,
            ),
            ("cuMemAlloc(): out of memory", Program::Cuda, Device, None),
            (
                "n1:7:8 [0] NCCL WARN Call to posix_fallocate failed : No space left on device",
                Program::Nccl,
                Host,
                None,
            ),
            (
                "Not enough memory: realloc failed",
                Program::Unknown,
                Host,
                None,
            ),
            (
                "Error: Out of GPU memory trying to allocate 1.000 MiB",
                Program::Unknown,
                Device,
                mib(1),
            ),
        ] {
            let message = one(text);
            assert_eq!(
                (message.program, message.memory, message.requested),
                (program, memory, requested),
                "{text}"
            );
        }
        for (text, ranks, host) in [
            ("srun: error: n1: tasks 0,2: Killed", vec![0, 2], "n1"),
            (
                "mpirun noticed that process rank 3 with PID 42 on node n1 exited on signal 9 (Killed).",
                vec![3],
                "n1",
            ),
        ] {
            let message = one(text);
            assert_eq!(
                (message.ranks, message.host.as_deref()),
                (ranks, Some(host))
            );
        }
        // What only looks like it.
        for text in [
            "\"OOMKilled\": false,",
            "jax.errors.JaxRuntimeError: INTERNAL: an illegal memory access was encountered",
            "CUDA error 700 at kernel.cu:12: an illegal memory access",
            "srun: error: n1: task 0: Exited with exit code 1",
            "The node was low on resource: ephemeral-storage.",
            "Available KV cache memory: 18.78 GiB",
            "worker ran out of disk: No space left on device",
            "set backend:cudaMallocAsync if you run out of memory",
        ] {
            let about_memory = |message: &OomMessage| message.memory != Memory::None;
            assert!(!all(text).iter().any(about_memory), "{text}");
        }
    }

    /// A fuzzer's: one line has the words of two messages.
    #[test]
    fn a_message_about_the_host_names_no_gpu() {
        for text in [
            "OOM when allocating tensor with shape[]slurms\\ndevice::0",
            "OOM when allocating tensor with shape[16]: slurmstepd: error: Step 1.0 exceeded memory limit (4139368 > 2097152), /device:DML:0",
        ] {
            for message in all(text) {
                assert!(
                    message.memory != Memory::Host || message.device.is_none(),
                    "{message:?}"
                );
            }
        }
    }

    #[test]
    fn lines_that_are_wrapped_are_read_whole() {
        let whole = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 36.00 MiB. GPU 1 has a total capacity of 139.80 GiB of which 126.15 GiB is free. Of the allocated memory 9.56 GiB is allocated by PyTorch, and 439.58 MiB is reserved by PyTorch but unallocated.";
        // A terminal breaks in words, an editor between them.
        for width in [60, 72, 80, 100, 117, 132] {
            let terminal: Vec<&str> = whole
                .as_bytes()
                .chunks(width)
                .map(|part| std::str::from_utf8(part).unwrap_or_default())
                .collect();
            let message = one(&terminal.join("\n"));
            assert_eq!(
                (
                    message.requested,
                    message.total,
                    message.free,
                    message.allocated
                ),
                (Some(Bytes::mib(36)), gib(139.80), gib(126.15), gib(9.56)),
                "{width}"
            );
        }
        let message = one(
            "DataLoader worker (pid 270071) is killed by signal: \nBus error. It is possible that dataloader's workers are out of shared memory.",
        );
        assert_eq!((message.memory, message.pid), (Memory::Host, Some(270_071)));
        let message =
            one("llama_model_load: error loading model: unable to alloc\nate CUDA0 buffer");
        assert_eq!(message.program, Program::LlamaCpp);
    }

    #[test]
    fn what_stands_below_a_size_is_no_part_of_it() {
        let size = "Failed to allocate memory for requested buffer of size 285081600";
        for below in [
            "\n2021-07-08:01:27:55,801 ERROR [web.py:1793] Uncaught",
            "\n\n2 x RTX 3090",
            "\n2xRTX 3090 machine",
        ] {
            let message = one(&format!(
                "onnxruntime::BFCArena::AllocateRawInternal {size}{below}"
            ));
            assert_eq!(message.requested, Some(Bytes(285_081_600)), "{below}");
        }
    }

    #[test]
    fn records_say_who_printed_them() {
        let message = one(
            "{\"ts\": 1, \"rank\": 3, \"hostname\": \"n7\", \"msg\": \"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB of which 1.10 GiB is free.\"}",
        );
        assert_eq!(
            (message.rank, message.host.as_deref()),
            (Some(3), Some("n7"))
        );
        assert_eq!((message.requested, message.total), (gib(2.0), gib(79.1)));
        // Values that are no strings stand beside their name, also in a file that is one object.
        for text in [
            "2024-05-01T12:00:00Z stderr F {\"exitCode\": 137, \"reason\": \"OOMKilled\"}",
            "{\n \"terminated\": {\n \"exitCode\": 137,\n \"reason\": \"OOMKilled\"\n }\n}",
        ] {
            let (messages, _) = read_from(text.as_bytes()).expect("a text");
            assert_eq!(messages.len(), 1, "{text}");
            assert_eq!(messages[0].program, Program::Kubernetes, "{text}");
        }
    }

    #[test]
    fn takes_the_traceback_along() {
        let message = one(
            "noise\nTraceback (most recent call last):\n  File \"/job/train.py\", line 12, in main\n    loss = model(x)\n           ^^^^^^^^\n  File \"/venv/torch/nn/functional.py\", line 7, in linear\n    return f(x)\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free.\n",
        );
        assert_eq!(message.traceback.len(), 2);
        assert_eq!(message.traceback[0].code, "loss = model(x)");
        assert_eq!(message.traceback[1].function, "linear");
        assert_eq!(message.line, 8);
    }
}
