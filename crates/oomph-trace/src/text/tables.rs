//! The tables of memory and of limits that a text shows, wherever they stand, whatever the message: `nvidia-smi` and its
//! like, `free`, `/proc/meminfo`, `df`, `ulimit`, `sysctl`. They are the facts that a message is weighed against.

use std::sync::LazyLock;

use super::frameworks::Framework;
use super::hints::Hint;
use super::models::Model;
use super::quoted::Figure;
use super::signs::Sign;
use super::told::Told;
use super::words::{Vocabulary, after, index, integer, last_word, size};
use crate::units::Bytes;

/// Rows of one kind that are kept.
const MOST: usize = 64;
/// A longer line is no row of a table.
const LONGEST: usize = 2 << 10;

/// An accelerator, as a table or a list shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Card {
    /// Its number.
    pub index: Option<u32>,
    /// What of its memory is in use.
    pub used: Option<Bytes>,
    /// Its memory.
    pub total: Option<Bytes>,
    /// The part in use in hundredths, where the table has no sizes.
    pub share: Option<u32>,
}

impl Card {
    /// What of its memory nobody uses.
    pub fn free(&self) -> Option<Bytes> {
        Some(self.total?.saturating_sub(self.used?))
    }

    /// Whether less than an eighth of it is in use.
    pub fn is_empty(&self) -> bool {
        self.used.zip(self.total).map_or(
            self.share.is_some_and(|share| share < 12),
            |(used, total)| used.0 < total.0 / 8,
        )
    }

    /// Whether more than seven eighths of it are in use.
    pub fn is_full(&self) -> bool {
        self.used.zip(self.total).map_or(
            self.share.is_some_and(|share| share > 87),
            |(used, total)| used.0 >= total.0 / 8 * 7,
        )
    }
}

/// A process that holds memory of an accelerator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The accelerator's number.
    pub card: Option<u32>,
    /// The process's number.
    pub pid: u64,
    /// Its name, without the path.
    pub name: String,
    /// What it holds.
    pub used: Bytes,
}

/// The host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Host {
    /// All of it.
    pub total: Option<Bytes>,
    /// What programs hold.
    pub used: Option<Bytes>,
    /// What nothing holds, not even the cache of files.
    pub free: Option<Bytes>,
    /// What a program can still get.
    pub available: Option<Bytes>,
    /// Swap: what of it is free, and all.
    pub swap: [Option<Bytes>; 2],
}

/// A file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Where it is mounted.
    pub mount: String,
    /// All of it, what is used, what is free.
    pub sizes: [Bytes; 3],
}

/// A limit of the system that is not the size of its memory, though what fails at it says that memory ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bound {
    /// Memory that a process may lock (`ulimit -l`), in bytes.
    Locked,
    /// Addresses that a process may have (`ulimit -v`), in bytes.
    Addresses,
    /// Mappings that a process may have (`vm.max_map_count`).
    Mappings,
    /// Directories and files that may be watched (`fs.inotify.max_user_watches`).
    Watches,
    /// Files that a process may have open (`ulimit -n`).
    Files,
    /// Threads and processes (`ulimit -u`).
    Threads,
}

/// The layers of a model that Ollama puts on one GPU, by its own estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offload {
    /// The layers.
    pub layers: u64,
    /// What it found free there.
    pub free: Bytes,
    /// What it estimates that they need.
    pub planned: Option<Bytes>,
    /// What of that is for computing.
    pub graph: Option<Bytes>,
}

/// `layers.offload=5 layers.split="" memory.available="[23.3 GiB]"` of Ollama's log, for one GPU.
fn offload(line: &str) -> Option<Offload> {
    let layers = after(line, " layers.offload=").and_then(integer)?;
    let figure = |name: &str| {
        let rest = after(line, name)?.trim_start_matches('[');
        let (figure, _) = rest.split_once(['"', ']'])?;
        // Several GPUs have one figure each.
        (!figure.contains("iB ")).then(|| size(figure)).flatten()
    };
    Some(Offload {
        layers,
        free: figure("memory.available=\"")?,
        planned: figure("memory.required.allocations=\"")
            .or_else(|| figure("memory.required.partial=\"")),
        graph: figure("memory.graph.partial=\"").or_else(|| figure("memory.graph.full=\"")),
    })
}

/// `| Allocated memory | 10656 MB | 10932 MB | 19094 MB | 8437 MB |` of PyTorch's summary: now, at the most, and in all.
fn given(line: &str) -> Option<[Bytes; 3]> {
    let mut cells = after(line, "| Allocated memory")?
        .split('|')
        .filter_map(|cell| size(cell.trim()));
    Some([cells.next()?, cells.next()?, cells.next()?])
}

/// What names a limit in a text, and whether its figure counts KiB.
const BOUNDS: &[(&str, Bound, bool)] = &[
    ("max locked memory", Bound::Locked, true),
    ("ulimit -l", Bound::Locked, true),
    ("memlock limit: ", Bound::Locked, false),
    ("virtual memory ", Bound::Addresses, true),
    ("max address space", Bound::Addresses, true),
    ("ulimit -v", Bound::Addresses, true),
    ("max_map_count", Bound::Mappings, false),
    ("max_user_watches", Bound::Watches, false),
    ("open files ", Bound::Files, false),
    ("ulimit -n", Bound::Files, false),
    ("max user processes", Bound::Threads, false),
    ("max processes ", Bound::Threads, false),
    ("ulimit -u", Bound::Threads, false),
];

/// Words of lines that say what a scheduler gives a job, and which devices.
const JOBS: &[&str] = &[
    "memory:",
    "allocatable:",
    "limits:",
    "requests:",
    "allocated resources:",
    "request_memory",
    "requestmemory",
    "\"memory\"",
    " mem=",
    ":mem=",
    "--mem=",
    "partition ",
    "h_vmem",
    "slots ",
    "-pe ",
    "visible_devices=",
    "-gpu_id ",
    "mpirun",
    "mpiexec",
    "nproc_per_node",
    "nproc-per-node",
    "ntasks-per-node",
    "num_processes",
    "num_local_procs",
    "sharding model on",
    "store_based_barrier_key",
    "--gpus",
    "gpus",
    "cuda devices",
    "cuda ooms",
];

/// What the tables of a text show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    /// Accelerators.
    pub cards: Vec<Card>,
    /// Processes on them.
    pub holders: Vec<Holder>,
    /// The host's memory.
    pub host: Host,
    /// File systems.
    pub disks: Vec<Disk>,
    /// Limits of the system, in bytes or a number; none where there is no limit.
    pub bounds: Vec<(Bound, Option<u64>)>,
    /// The host memory that a scheduler gives the job, its limit.
    pub job: Option<Bytes>,
    /// The host memory that a container asks for, which is no limit.
    pub asked: Option<Bytes>,
    /// The most host memory that a node gives all its jobs.
    pub node: Option<Bytes>,
    /// The devices that a job may see, by the numbers of the machine.
    pub visible: Vec<u32>,
    /// Layers that Ollama put on one GPU.
    pub offload: Option<Offload>,
    /// Processes that a launcher starts on each node.
    pub ranks: Option<u64>,
    /// The commands that the text shows.
    pub commands: Vec<String>,
    /// What the text has of figures, in its own words.
    pub figures: Vec<Figure>,
    /// The graphics cards that the text names, with their lines.
    pub gpus: Vec<(usize, String)>,
    /// What the text shows of where and how the program ran.
    pub signs: Vec<Sign>,
    /// The products that advice may name, of those that it shows.
    pub(super) backed: Vec<&'static str>,
    /// The program that trains, if the text names one.
    pub framework: Option<Framework>,
    /// The model that was run, where the text tells its size and leaves no doubt.
    pub model: Option<Model>,
    /// What people tell around the message.
    pub told: Told,
    /// What programs themselves advise.
    pub hints: Vec<Hint>,
    /// GPUs that the text counts.
    pub count: u64,
    /// How often PyTorch's allocator had found no memory, by its own summary.
    pub failures: Option<u64>,
    /// What PyTorch's allocator gave out, by its own summary: now, at the most, and in all since the start.
    pub given: Option<[Bytes; 3]>,
    /// Shapes of the buffers that XLA lists, the largest first, and how many have each.
    pub shapes: Vec<(String, u64)>,
}

impl Tables {
    /// The file system that is mounted there.
    pub fn disk(&self, mount: &str) -> Option<&Disk> {
        self.disks.iter().find(|disk| disk.mount == mount)
    }

    /// The limit that the text shows.
    pub fn bound(&self, bound: Bound) -> Option<u64> {
        self.bounds
            .iter()
            .find(|(other, _)| *other == bound)
            .and_then(|(_, value)| *value)
    }

    /// Whether the text shows it.
    pub fn shows(&self, sign: Sign) -> bool {
        self.signs.contains(&sign)
    }

    /// The accelerator that a job calls by that number, or the only one.
    pub fn card(&self, device: Option<u32>) -> Option<&Card> {
        let device = self.number(device);
        match (self.cards.as_slice(), device) {
            (cards, Some(device)) => cards
                .iter()
                .find(|card| card.index == Some(device))
                .or_else(|| {
                    cards
                        .get(device as usize)
                        .filter(|card| card.index.is_none())
                }),
            ([card], None) => Some(card),
            _ => None,
        }
    }

    /// The machine's number of an accelerator that a job calls by another.
    pub fn number(&self, device: Option<u32>) -> Option<u32> {
        match (self.visible.as_slice(), device) {
            ([one], None) => Some(*one),
            (visible, Some(device)) => visible.get(device as usize).copied().or(Some(device)),
            (_, None) => None,
        }
    }

    /// The processes on an accelerator, the largest first; all where their rows do not name it.
    pub fn holders_of(&self, device: Option<u32>) -> Vec<&Holder> {
        let on =
            |holder: &&Holder| device.is_none() || holder.card.is_none() || holder.card == device;
        let mut found: Vec<&Holder> = self.holders.iter().filter(on).collect();
        found.sort_by_key(|holder| std::cmp::Reverse(holder.used));
        found
    }

    /// Of the host's memory what a program can get, where the text says so.
    pub fn available(&self) -> Option<Bytes> {
        self.host.available.or(self.host.free)
    }

    fn add_card(&mut self, card: Card) {
        let known = |other: &Card| card.index.is_some() && other.index == card.index;
        let place = self.cards.iter().position(known);
        if let Some(other) = place.and_then(|place| self.cards.get_mut(place)) {
            // A second table of the same card is of another moment: the fuller one counts.
            other.total = other.total.or(card.total);
            other.used = other.used.max(card.used);
        } else if self.cards.len() < MOST {
            self.cards.push(card);
        }
    }
}

/// What the lines below a heading of Kubernetes are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Section {
    Node,
    #[default]
    Limits,
    Requests,
}

/// Reads tables line by line.
#[derive(Debug, Default)]
pub(super) struct Reader {
    found: Tables,
    /// The number in the row above a card's figures.
    card: Option<u32>,
    /// The columns of a list that `nvidia-smi --query-…` prints.
    columns: Vec<String>,
    /// The last command with `free`.
    free: String,
    /// The limits whose values stand on the next lines.
    asked: Vec<Option<(Bound, bool)>>,
    /// The card of an account in lines, `FB Memory Usage`, and how many of its lines are left.
    account: u8,
    /// Whether a table has pairs in MB without a unit in each row.
    pairs: bool,
    /// The heading of a list of Kubernetes.
    section: Section,
    /// The column of `rocm-smi` with the part of each card's memory that is in use.
    shares: Option<usize>,
    /// The column of `sinfo` with what each node has.
    nodes: Option<usize>,
    /// What Grid Engine gives each slot, and how many slots there are.
    slot: Option<Bytes>,
    slots: Option<u64>,
}

impl Reader {
    pub(super) fn found(&self) -> &Tables {
        &self.found
    }

    /// What schedulers say of a job.
    fn job(&mut self, line: &str) {
        let value = |name: &str| {
            let rest = after(line, name)?.trim_start_matches([' ', '=', ':', '\t']);
            let number = integer(rest)?;
            let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            // Where no unit stands, these count in MiB.
            if unit.starts_with(|c: char| "KMGTkmgtB".contains(c)) {
                size(rest)
            } else {
                Some(Bytes::mib(number))
            }
        };
        match line.trim() {
            "Allocatable:" => self.section = Section::Node,
            "Limits:" | "limits:" => self.section = Section::Limits,
            "Requests:" | "requests:" | "Allocated resources:" => self.section = Section::Requests,
            _ => {}
        }
        let memory = line
            .trim_start()
            .strip_prefix("memory:")
            .and_then(|_| value("memory:"));
        let place = match self.section {
            Section::Node => &mut self.found.node,
            Section::Limits => &mut self.found.job,
            Section::Requests => &mut self.found.asked,
        };
        *place = place.or(memory);
        let asked = || {
            [
                "request_memory",
                "RequestMemory",
                "\"MEMORY\", \"value\": \"",
                "--mem=",
                " mem=",
                ":mem=",
            ]
            .iter()
            .find_map(|name| value(name))
        };
        self.found.job = self.found.job.or_else(asked);
        // Grid Engine limits the addresses of all slots together.
        self.slot = self.slot.or_else(|| value("h_vmem="));
        let slots = |name: &str| after(line, name).and_then(|rest| integer(rest.trim_start()));
        let pe = || after(line, "-pe ").and_then(|rest| integer(rest.split(' ').nth(1)?));
        self.slots = self
            .slots
            .or_else(|| {
                line.starts_with("slots ")
                    .then(|| slots("slots "))
                    .flatten()
            })
            .or_else(pe);
        if let Some(slot) = self.slot {
            let all = slot.0.saturating_mul(self.slots.unwrap_or(1));
            self.found
                .bounds
                .retain(|(bound, _)| *bound != Bound::Addresses);
            self.found.bounds.push((Bound::Addresses, Some(all)));
        }
        for name in [
            "nproc_per_node",
            "nproc-per-node",
            "ntasks-per-node",
            "num_processes",
            "num_local_procs",
            "Sharding model on",
            "store_based_barrier_key:1 with",
            " -np ",
            " -n ",
        ] {
            let launched = name.len() > 5 || line.contains("mpirun") || line.contains("mpiexec");
            let number = after(line, name).map(|rest| rest.trim_start_matches([' ', '=', ':']));
            self.found.ranks = self
                .found
                .ranks
                .or_else(|| number.filter(|_| launched).and_then(integer));
        }
        let ooms = after(line, "CUDA OOMs:").and_then(|rest| integer(rest.trim_start()));
        self.found.failures = self.found.failures.or(ooms);
        self.found.count = self.found.count.max(super::cards::count(line));
        for name in [
            "CUDA_VISIBLE_DEVICES=",
            "HIP_VISIBLE_DEVICES=",
            "-gpu_id ",
            "--gpus '\"device=",
            "--gpus \"device=",
            "--gpus device=",
        ] {
            if let Some(list) = after(line, name).filter(|_| self.found.visible.is_empty()) {
                let list = list.split([' ', ';', '\n']).next().unwrap_or_default();
                let list = list.trim_matches(['"', '\'']);
                let numbers: Vec<u32> = list.split(',').map_while(index).collect();
                if list
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || byte == b',')
                {
                    self.found.visible = numbers;
                }
            }
        }
    }

    /// Reads a line.
    pub(super) fn read(&mut self, line: &str) {
        static NAMES: LazyLock<Vocabulary<bool>> = LazyLock::new(|| {
            let bounds: Vec<&str> = BOUNDS.iter().map(|(name, ..)| *name).collect();
            let bounds = [bounds.as_slice(), &["ulimit -"]].concat();
            Vocabulary::new([(true, bounds.as_slice()), (false, JOBS)], true)
        });
        if line.len() > LONGEST {
            return;
        }
        let prompt = line.trim_start();
        if let Some(command) = prompt
            .strip_prefix("$ ")
            .or_else(|| prompt.strip_prefix("# "))
            && self.found.commands.len() < MOST
        {
            self.found.commands.push(command.to_owned());
        }
        if let Some(shape) = prompt.strip_prefix("Shape: ") {
            let shapes = &mut self.found.shapes;
            let room = shapes.len() < MOST;
            match shapes.iter_mut().find(|(known, _)| known == shape.trim()) {
                Some((_, count)) => *count += 1,
                None if room => shapes.push((shape.trim().to_owned(), 1)),
                None => {}
            }
        }
        let named = NAMES.first(line);
        if named == Some(true) || !self.asked.is_empty() {
            self.bounds(line);
        }
        if named.is_some() {
            self.job(line);
        }
        if !line.bytes().any(|byte| byte.is_ascii_digit()) {
            self.heading(line);
            return;
        }
        self.host(line);
        self.found.given = self.found.given.or_else(|| given(line));
        self.found.offload = offload(line).or(self.found.offload);
        self.sinfo(line);
        self.share(line);
        if let Some(disk) = disk(line).filter(|_| self.found.disks.len() < MOST) {
            self.found.disks.push(disk);
        }
        if self.list(line) || self.account(line) {
            return;
        }
        self.heading(line);
        let first = first_number(line);
        if let Some(card) = of_sycl(line) {
            self.found.add_card(card);
        } else if let Some([used, total]) = card(line).or_else(|| self.pair(line)) {
            let index = self.card.take().or(first);
            self.found.add_card(Card {
                index,
                used: Some(used),
                total: Some(total),
                share: None,
            });
        } else if let Some(holder) = holder(line).filter(|_| self.found.holders.len() < MOST) {
            self.found.holders.push(holder);
        } else if line.starts_with('|') && !line.contains("MiB") {
            self.card = first.or(self.card);
        } else if let Some(card) = rocm(line).or_else(|| listed(line)) {
            self.found.add_card(card);
        }
    }

    fn heading(&mut self, line: &str) {
        if line.contains("free -") || line.contains("$ free") {
            line.clone_into(&mut self.free);
        }
        let queried = ["--query-gpu=", "--query-compute-apps="]
            .iter()
            .find_map(|name| after(line, name))
            .and_then(|rest| rest.split_whitespace().next());
        let header = (line.starts_with("memory.")
            || line.contains(", memory.")
            || line.contains("used_gpu_memory"))
            && queried.is_none();
        if let Some(names) = queried.or_else(|| header.then_some(line)) {
            let names = names.trim_matches(['"', '\'']).split(',');
            self.columns = names
                .map(|name| name.trim().split(' ').next().unwrap_or_default().to_owned())
                .collect();
        }
        if line.contains("VRAM%") {
            self.shares = line.split_whitespace().position(|word| word == "VRAM%");
        }
        if line.contains("PARTITION") {
            self.nodes = line.split_whitespace().position(|word| word == "MEMORY");
        }
        if line.contains("FB Memory Usage") {
            self.account = 4;
        }
        self.pairs |= line.contains("HBM-Usage(MB)") || line.contains("Memory-Usage(MB)");
    }

    /// A row of a list whose columns are known: `0, NVIDIA RTX A4000, 512 MiB, 16376 MiB`.
    fn list(&mut self, line: &str) -> bool {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if self.columns.is_empty() || cells.len() != self.columns.len() {
            return false;
        }
        let cell = |names: &[&str]| {
            let at = self
                .columns
                .iter()
                .position(|name| names.contains(&name.as_str()))?;
            cells.get(at).copied()
        };
        let bytes = |names: &[&str]| {
            let text = cell(names)?;
            let number = integer(text)?;
            let unit = text.trim_start_matches(|c: char| c.is_ascii_digit()).trim();
            ["", "MiB"].contains(&unit).then(|| Bytes::mib(number))
        };
        let held = bytes(&["used_memory", "used_gpu_memory"]);
        if let (Some(pid), Some(used)) = (cell(&["pid"]).and_then(integer), held) {
            let name = cell(&["process_name", "name"]).unwrap_or("a process");
            let name = name.rsplit('/').next().unwrap_or(name).to_owned();
            if self.found.holders.len() < MOST {
                self.found.holders.push(Holder {
                    card: None,
                    pid,
                    name,
                    used,
                });
            }
            return true;
        }
        let total = bytes(&["memory.total"]);
        let free = bytes(&["memory.free"]);
        let used = bytes(&["memory.used"]).or_else(|| Some(total?.saturating_sub(free?)));
        if total.or(used).is_none() {
            return false;
        }
        let index = cell(&["index"]).and_then(index);
        self.found.add_card(Card {
            index,
            used,
            total,
            share: None,
        });
        true
    }

    /// `nvidia-smi -q`: `FB Memory Usage`, and below it `Total : 16376 MiB`.
    fn account(&mut self, line: &str) -> bool {
        if self.account == 0 {
            return false;
        }
        self.account -= 1;
        let Some((name, value)) = line.split_once(':') else {
            return false;
        };
        let value = size(value.trim());
        match name.trim() {
            "Total" => self.found.add_card(Card {
                total: value,
                ..Card::default()
            }),
            "Used" => {
                if let Some(card) = self.found.cards.last_mut() {
                    card.used = card.used.or(value);
                }
            }
            _ => return false,
        }
        true
    }

    /// The last pair of a row, where the heading has the unit: `62811/ 65536`.
    fn pair(&self, line: &str) -> Option<[Bytes; 2]> {
        if !self.pairs || !line.starts_with('|') {
            return None;
        }
        let (head, rest) = line.rsplit_once('/')?;
        let used = integer(head.trim_end().rsplit(' ').next()?)?;
        let total = integer(rest.trim_start())?;
        (used <= total && total >= 1 << 10).then(|| [used, total].map(Bytes::mib))
    }

    /// A row of `rocm-smi`: the number of a card, and hundredths of its memory.
    fn share(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let share = self.shares.and_then(|column| words.get(column)).copied();
        let share = share.and_then(|word| index(word.strip_suffix('%')?));
        let number = words.first().copied().and_then(index);
        if let (Some(number), Some(share)) = (number, share) {
            self.found.add_card(Card {
                index: Some(number),
                share: Some(share),
                ..Card::default()
            });
        }
    }

    /// A row of `sinfo`: MiB of each node.
    fn sinfo(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let memory = self
            .nodes
            .and_then(|column| words.nth(column))
            .and_then(integer);
        if let Some(memory) = memory.filter(|memory| *memory >= 1 << 10) {
            self.found.node = self.found.node.max(Some(Bytes::mib(memory)));
        } else {
            self.nodes = None;
        }
    }

    fn host(&mut self, line: &str) {
        let host = &mut self.found.host;
        let said = line.trim_start();
        // A Mac's `sysctl`.
        host.total = host
            .total
            .or_else(|| after(line, "hw.memsize: ").and_then(integer).map(Bytes));
        // tegrastats: `RAM 3712/3964MB (lfb 4x1MB)`.
        if let Some((used, rest)) = said
            .strip_prefix("RAM ")
            .and_then(|row| row.split_once('/'))
            && let (Some(used), Some(total)) = (integer(used), integer(rest))
            && rest.contains("MB (lfb")
        {
            host.total = host.total.or(Some(Bytes::mib(total)));
            host.used = host.used.or(Some(Bytes::mib(used)));
        }
        // The kernel's account at a shortage: `Node 0 active_anon:8771004kB inactive_anon:6079888kB …`, one line a node.
        if line.contains("Node ") && line.contains(" active_anon:") && !line.contains(" free:") {
            let held = [" active_anon:", " inactive_anon:"]
                .iter()
                .filter_map(|name| size(after(line, name)?))
                .sum::<Bytes>();
            host.used = Some(host.used.unwrap_or_default() + held);
        }
        if let Some((head, _)) = line.split_once(" pages RAM") {
            let pages = head.rsplit(' ').next().and_then(integer);
            host.total = host
                .total
                .or(pages.and_then(|pages| Some(Bytes(pages.checked_mul(4 << 10)?))));
        }
        for (name, place) in ["Free swap ", "Total swap "]
            .into_iter()
            .zip(&mut host.swap)
        {
            let value = after(line, name).map(|rest| rest.trim_start_matches([' ', '=']));
            *place = place.or_else(|| size(value?));
        }
        // psutil: `svmem(total=67371167744, available=58120994816, …)`.
        if let Some(fields) = after(line, "svmem(") {
            let field = |name: &str| after(fields, name).and_then(integer).map(Bytes);
            host.total = host.total.or_else(|| field("total="));
            host.available = host.available.or_else(|| field("available="));
            host.used = host.used.or_else(|| field(" used="));
        }
        for (name, place) in [
            ("MemTotal:", &mut host.total),
            ("MemFree:", &mut host.free),
            ("MemAvailable:", &mut host.available),
        ] {
            let value = said.strip_prefix(name).map(str::trim_start);
            *place = place.or_else(|| size(value?));
        }
        if host.used.is_none()
            && let Some(row) = row_of_free(line, &self.free)
        {
            host.total = host.total.or(Some(row[0]));
            host.used = Some(row[1]);
            host.free = host.free.or(Some(row[2]));
            // `total used free shared buff/cache available`; older ones end with `buffers cached`.
            host.available = host.available.or(row
                .get(5)
                .copied()
                .filter(|last| row.len() == 6 && *last >= row[2] && *last <= row[0]));
        }
    }

    fn bounds(&mut self, line: &str) {
        let text = line.trim();
        // What a command with several names printed, one on each line.
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if (plain || text == "unlimited") && !self.asked.is_empty() {
            if let Some((bound, kib)) = self.asked.remove(0) {
                self.bound(bound, text, kib);
            }
            return;
        }
        let lower = text.to_ascii_lowercase();
        let found = BOUNDS
            .iter()
            .filter_map(|(name, bound, kib)| Some((lower.find(name)?, *bound, *kib)))
            .min();
        let asked: Vec<_> = lower
            .match_indices("ulimit -")
            .filter_map(|(at, words)| {
                let flag = lower.get(at..at + words.len() + 1)?;
                let ends = !lower
                    .get(at + flag.len()..)?
                    .starts_with([')', '`', ' ', '\'']);
                (ends && !flag.ends_with('a')).then(|| {
                    let named = BOUNDS.iter().find(|(name, ..)| *name == flag);
                    named.map(|(_, bound, kib)| (*bound, *kib))
                })
            })
            .collect();
        if !asked.is_empty() {
            self.asked = asked;
            return;
        }
        let Some((at, bound, kib)) = found else {
            return;
        };
        if lower.contains("cat /proc/sys") || lower.contains("sysctl -n") {
            self.asked = vec![Some((bound, kib))];
            return;
        }
        let rest = lower.get(at..).unwrap_or_default();
        let value = ["limit: ", "current: ", "current value (", "= ", "limit is "]
            .iter()
            .find_map(|words| after(rest, words))
            .or_else(|| last_of(rest));
        if let Some(value) = value {
            self.bound(bound, value, kib && rest.contains("kb"));
        }
    }

    fn bound(&mut self, bound: Bound, text: &str, kib: bool) {
        let value = match integer(text) {
            Some(number) if kib => Some(number.saturating_mul(1 << 10)),
            Some(number) => Some(number),
            None if text.starts_with("unlimited") => None,
            None => return,
        };
        if self.found.bounds.iter().all(|(other, _)| *other != bound) {
            self.found.bounds.push((bound, value));
        }
    }
}

/// The last word of a row of `ulimit -a`, the first figure of one of `/proc/PID/limits`.
fn last_of(row: &str) -> Option<&str> {
    let mut words = row.split_whitespace();
    if row.contains(", -") || row.contains("(-") {
        return words.last();
    }
    // Columns are far apart, words of a sentence are not.
    row.contains("   ")
        .then(|| words.find(|word| integer(word).is_some() || *word == "unlimited"))
        .flatten()
}

/// The number that a row begins with, if a name follows: `|   0  NVIDIA A100-PCI...`, `[0] NVIDIA GeForce RTX 3090 |`.
fn first_number(line: &str) -> Option<u32> {
    let row = line.trim_start().strip_prefix(['|', '['])?;
    let mut words = row.split([' ', ']', '|']).filter(|word| !word.is_empty());
    let number = words.next()?;
    let name = words.next()?;
    let plain = number.bytes().all(|byte| byte.is_ascii_digit());
    (plain && name.starts_with(|c: char| c.is_ascii_alphabetic()))
        .then(|| index(number))
        .flatten()
}

/// What web interfaces of Stable Diffusion print below a picture: `Sys VRAM: 5161/5166 MiB (99.9%)`, `A: 4.2 GB, R: 5 GB, Sys: 7.6/8 GB (95%)`.
pub(super) fn below_a_picture(line: &str) -> Option<[Bytes; 2]> {
    let rest = after(line, "Sys VRAM: ").or_else(|| after(line, " GB, Sys: "))?;
    let (used, rest) = rest.split_once('/')?;
    let (total, _) = rest.split_once(" (")?;
    let unit = last_word(total);
    Some([size(&format!("{used} {unit}"))?, size(total)?])
}

/// `RAM 4074/7608MB (lfb 4x4MB)` of `tegrastats`: the GPU has no other memory.
fn of_a_jetson(line: &str) -> Option<[Bytes; 2]> {
    let (sizes, _) = after(line, "RAM ")?.split_once("MB (lfb")?;
    let (used, total) = sizes.split_once('/')?;
    Some([integer(used)?, integer(total)?].map(Bytes::mib))
}

/// A row of the table of SYCL's devices: `| 0| [level_zero:gpu:0]| Intel Iris Xe Graphics| 12.0| 96| 512| 32| 15370M| 1.3.29803|`.
fn of_sycl(line: &str) -> Option<Card> {
    let row = line.trim().strip_prefix('|')?;
    if !["[level_zero:gpu:", "[opencl:gpu:"]
        .iter()
        .any(|kind| row.contains(kind))
    {
        return None;
    }
    let mut cells = row.split('|').map(str::trim);
    let index = cells.next().and_then(index)?;
    let mib = cells.find_map(|cell| cell.strip_suffix('M')?.parse().ok())?;
    Some(Card {
        index: Some(index),
        used: None,
        total: Some(Bytes::mib(mib)),
        share: None,
    })
}

/// A card's figures: `|    100MiB / 12205MiB |`, `512/16376MiB`, `| 512 / 24576 MB |`.
pub(super) fn card(line: &str) -> Option<[Bytes; 2]> {
    /// MiB that every card has.
    const LEAST: u64 = 128;
    if let Some(sizes) = below_a_picture(line).or_else(|| of_a_jetson(line)) {
        return Some(sizes);
    }
    line.split('|').find_map(|cell| {
        let (head, rest) = cell.split_once('/')?;
        let head = head.trim_end();
        let number = head
            .trim_end_matches("MiB")
            .trim_end_matches("MB")
            .trim_end();
        let from = number
            .rfind(|c: char| !c.is_ascii_digit())
            .map_or(0, |at| at + 1);
        // `8192.5/…`, `v1/2`.
        if number
            .get(..from)?
            .ends_with(|c: char| c.is_alphanumeric() || c == '.')
        {
            return None;
        }
        let used = integer(number.get(from..)?)?;
        let rest = rest.trim_start();
        let total = integer(rest)?;
        let unit = rest
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .trim_start();
        let of_a_card = unit.starts_with("MiB") || (unit.starts_with("MB") && line.contains('|'));
        (of_a_card && used <= total && total >= LEAST).then(|| [used, total].map(Bytes::mib))
    })
}

/// A process in the table of `nvidia-smi`: `|    0   N/A  N/A     41231      C   python3     19532MiB |`.
fn holder(line: &str) -> Option<Holder> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let words: Vec<&str> = row.split_whitespace().collect();
    let at = words
        .iter()
        .position(|word| ["C", "G", "C+G", "M+C"].contains(word))?;
    let pid = integer(words.get(at.checked_sub(1)?)?)?;
    let name = words.get(at + 1)?.rsplit('/').next()?.to_owned();
    let used = Bytes::mib(integer(words.last()?.strip_suffix("MiB")?)?);
    let card = words
        .first()
        .filter(|_| at > 1)
        .and_then(|word| index(word));
    Some(Holder {
        card,
        pid,
        name,
        used,
    })
}

/// `GPU[0]  : VRAM Total Memory (B): 17163091968`, and the same of what is used.
fn rocm(line: &str) -> Option<Card> {
    let number = index(after(line, "GPU[")?)?;
    let used = after(line, "VRAM Total Used Memory (B): ").and_then(integer);
    let total = after(line, "VRAM Total Memory (B): ").and_then(integer);
    used.or(total)?;
    Some(Card {
        index: Some(number),
        used: used.map(Bytes),
        total: total.map(Bytes),
        share: None,
    })
}

/// A card in a list, by its model's name: `GPU 0: NVIDIA H100 NVL (UUID: …)`, `"cuda:0" : "NVIDIA GeForce RTX 4090" (24 GiB, …)`.
fn listed(line: &str) -> Option<Card> {
    let lower = line.to_ascii_lowercase();
    let maker = ["nvidia ", "geforce ", "radeon ", "tesla "]
        .iter()
        .any(|name| lower.contains(name));
    let amount = [
        "free", "used", "alloc", "tried", "error", "avail", "memory:",
    ];
    if !maker || amount.iter().any(|word| lower.contains(word)) {
        return None;
    }
    let index = ["gpu ", "cuda:", "device ", "gpu"]
        .iter()
        .find_map(|name| after(&lower, name).and_then(index))
        .filter(|number| *number < MOST as u32);
    let sizes: Vec<&str> = lower.split(['(', ',', ')']).map(str::trim).collect();
    let total = sizes.iter().find_map(|part| {
        let unit = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let whole =
            unit.len() < part.len() && ["gib", "gb", "mib", "mb"].contains(&unit.trim_start());
        whole
            .then(|| size(&part.to_ascii_uppercase().replace("IB", "iB")))
            .flatten()
    });
    index.or(total.map(|_| 0))?;
    Some(Card {
        index,
        used: None,
        total,
        share: None,
    })
}

/// Whether a line is a row of a list with sizes in MiB at its end, which `nvidia-smi` prints.
fn is_list(line: &str) -> bool {
    // A sentence that is wrapped there begins otherwise.
    let begins = line.starts_with(|c: char| c.is_ascii_digit())
        || ["NVIDIA ", "GPU-", "Tesla "]
            .iter()
            .any(|name| line.starts_with(name));
    begins && line.contains(", ") && line.trim_end().ends_with(" MiB")
}

/// Whether a line is a row of a table, or a command, which no message goes on in.
pub(super) fn ends_a_message(line: &str) -> bool {
    line.starts_with("$ ")
        || card(line).is_some()
        || holder(line).is_some()
        || is_list(line)
        || listed(line).is_some()
        || row_of_free(line, "").is_some()
}

/// The row of `free`: total, used, free and what follows, in KiB if the command above it has no other unit.
pub(super) fn row_of_free(line: &str, command: &str) -> Option<Vec<Bytes>> {
    let rest = line.trim_start().strip_prefix("Mem:")?;
    let options = command.rsplit("free -").next().unwrap_or_default();
    let option = |letter: char| {
        let mut letters = options.chars().take_while(char::is_ascii_alphabetic);
        letters.any(|other| other == letter)
    };
    let unit = match () {
        () if option('b') => "B",
        () if option('m') => "MiB",
        () if option('g') => "GiB",
        // Where the command is not shown, no machine has so few of the smaller unit.
        () => match rest.split_whitespace().next().and_then(integer)? {
            0..4096 => "GiB",
            4096..262_144 => "MiB",
            _ => "KiB",
        },
    };
    let figures: Vec<Bytes> = rest
        .split_whitespace()
        .take(6)
        .map_while(|word| {
            let plain = word.bytes().all(|byte| byte.is_ascii_digit());
            let (number, unit) = match word.find(|c: char| c.is_ascii_alphabetic()) {
                Some(at) => word.split_at(at),
                None if plain => (word, unit),
                None => return None,
            };
            size(&format!("{number} {unit}"))
        })
        .collect();
    (figures.len() >= 3).then_some(figures)
}

/// A row of `df`: all, used, free, and where it is mounted.
fn disk(line: &str) -> Option<Disk> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // A quota that is exceeded: `/home  100.2G*  95G  100G`.
    if let [mount, used, _, limit, ..] = words.as_slice()
        && let (true, Some(used)) = (mount.starts_with('/'), used.strip_suffix('*'))
    {
        let [used, limit] =
            [used, *limit].map(|text| size(text).filter(|_| integer(text).is_some()));
        return Some(Disk {
            mount: (*mount).to_owned(),
            sizes: [limit?, used?, Bytes::ZERO],
        });
    }
    let [.., total, used, free, share, mount] = words.as_slice() else {
        return None;
    };
    let bytes = |word: &str| match integer(word) {
        // Blocks of a KiB.
        Some(blocks) if word.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(Bytes(blocks.saturating_mul(1 << 10)))
        }
        Some(_) => size(word),
        None => None,
    };
    let share = share.strip_suffix('%')?;
    integer(share).filter(|share| *share <= 100)?;
    mount.starts_with('/').then_some(())?;
    Some(Disk {
        mount: (*mount).to_owned(),
        sizes: [bytes(total)?, bytes(used)?, bytes(free)?],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Tables {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.read(line));
        reader.found
    }

    fn cards(text: &str) -> Vec<(Option<u32>, Option<u64>, Option<u64>)> {
        let mib = |bytes: Option<Bytes>| bytes.map(|bytes| bytes.0 >> 20);
        let cards = read(text).cards;
        cards
            .iter()
            .map(|card| (card.index, mib(card.used), mib(card.total)))
            .collect()
    }

    #[test]
    fn cards_of_every_tool() {
        for (text, index, used, total) in [
            (
                "|   0  GeForce GTX 108...  On   | 00000000:05:00.0  On |   N/A |\n| 42%   58C    P2    62W / 250W |   2229MiB / 11175MiB |      0%      Default |",
                Some(0),
                Some(2229),
                Some(11175),
            ),
            (
                "$ nvidia-smi --query-gpu=index,name,memory.used,memory.total --format=csv\nindex, name, memory.used [MiB], memory.total [MiB]\n1, NVIDIA RTX A4000, 512 MiB, 16376 MiB",
                Some(1),
                Some(512),
                Some(16376),
            ),
            (
                "nvidia-smi --query-gpu=memory.total,memory.free --format=csv,noheader,nounits\n16376, 376",
                None,
                Some(16000),
                Some(16376),
            ),
            (
                "[2] NVIDIA A10 | 41'C,  0 % |   512 / 23028 MB | user(500M)",
                Some(2),
                Some(512),
                Some(23028),
            ),
            (
                "|   0  HL-225    N/A  | 0000:33:00.0 N/A | 0 |\n| N/A 38C N/A 208W / 600W |  98210MiB / 98304MiB | 41% |",
                Some(0),
                Some(98210),
                Some(98304),
            ),
            (
                "GPU[1] : VRAM Total Memory (B): 17163091968\nGPU[1] : VRAM Total Used Memory (B): 1048576",
                Some(1),
                Some(1),
                Some(16368),
            ),
            (
                "    FB Memory Usage\n Total                             : 40960 MiB\n Reserved                          : 571 MiB\n Used                              : 39871 MiB",
                None,
                Some(39871),
                Some(40960),
            ),
            (
                "| NPU Name | Bus-Id | AICore(%) Memory-Usage(MB) HBM-Usage(MB) |\n| 0 | 0000:C1:00.0 | 0    0 / 0    62811/ 65536 |",
                None,
                Some(62811),
                Some(65536),
            ),
            (
                "     \"cuda:0\"   : \"NVIDIA GeForce RTX 4090\" (24 GiB, sm_89, mempool enabled)",
                Some(0),
                None,
                Some(24576),
            ),
            (
                "GPU 3: NVIDIA H100 NVL (UUID: GPU-9d1c)",
                Some(3),
                None,
                None,
            ),
            ("GPU 0: 512/16376MiB", None, Some(512), Some(16376)),
        ] {
            assert_eq!(cards(text), [(index, used, total)], "{text}");
        }
        assert_eq!(cards("epoch 3/10 MiB\n1/2 done\na/b MiB"), []);
    }

    #[test]
    fn processes_of_tables_and_lists() {
        for text in [
            "|    0   N/A  N/A   2119802      C   /usr/bin/python3                         39868MiB |",
            "$ nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv\npid, used_gpu_memory [MiB], process_name\n2119802, 39868 MiB, /usr/bin/python3",
        ] {
            let found = read(text).holders;
            let [holder] = found.as_slice() else {
                panic!("{text}: {found:?}");
            };
            assert_eq!(
                (holder.pid, holder.name.as_str(), holder.used),
                (2_119_802, "python3", Bytes::mib(39868))
            );
        }
    }

    #[test]
    fn the_host_by_free_and_by_the_kernel() {
        for (text, total, available) in [
            (
                "$ free -g\n   total used free shared buff/cache available\nMem:  503 12 470 1 20 488",
                503,
                Some(488),
            ),
            (
                "Mem:            503Gi          12Gi         470Gi         1.2Gi         20Gi        488Gi",
                503,
                Some(488),
            ),
            (
                "MemTotal:       527433728 kB\nMemAvailable:   511705088 kB",
                503,
                Some(488),
            ),
            ("$ free -g\nMem:  31 30 1", 31, None),
        ] {
            let host = read(text).host;
            assert_eq!(host.total, Some(Bytes::gib(total)), "{text}");
            assert_eq!(host.available, available.map(Bytes::gib), "{text}");
        }
    }

    #[test]
    fn limits_in_all_their_forms() {
        for (text, bound, value) in [
            (
                "max locked memory       (kbytes, -l) 64",
                Bound::Locked,
                Some(64 << 10),
            ),
            (
                "Max locked memory         65536                65536                bytes",
                Bound::Locked,
                Some(65536),
            ),
            (
                "Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)",
                Bound::Locked,
                Some(64 << 10),
            ),
            ("$ ulimit -l\n64", Bound::Locked, Some(64 << 10)),
            (
                "$ ulimit -v; ulimit -l\nunlimited\n64",
                Bound::Locked,
                Some(64 << 10),
            ),
            (
                "virtual memory          (kbytes, -v) 8388608",
                Bound::Addresses,
                Some(8 << 30),
            ),
            ("$ ulimit -v\nunlimited", Bound::Addresses, None),
            ("vm.max_map_count = 65530", Bound::Mappings, Some(65530)),
            (
                "$ cat /proc/sys/vm/max_map_count\n65530",
                Bound::Mappings,
                Some(65530),
            ),
            (
                "$ cat /proc/sys/fs/inotify/max_user_watches\n8192",
                Bound::Watches,
                Some(8192),
            ),
            (
                "open files                      (-n) 1024",
                Bound::Files,
                Some(1024),
            ),
        ] {
            let found = read(text).bounds;
            assert!(found.contains(&(bound, value)), "{text}: {found:?}");
        }
    }

    #[test]
    fn file_systems() {
        let found = read(
            "Filesystem      Size  Used Avail Use% Mounted on\n/dev/nvme1n1    1.8T  612G  1.2T  35% /data\ntmpfs   65536 1024 64512 2% /dev/shm",
        );
        assert_eq!(
            found.disk("/data").map(|disk| disk.sizes[1]),
            Some(Bytes::gib(612))
        );
        assert_eq!(
            found.disk("/dev/shm").map(|disk| disk.sizes[0]),
            Some(Bytes::mib(64))
        );
    }

    proptest! {
        /// Whatever the widths and the rows around it, a card's row gives its figures.
        #[test]
        fn any_card_is_read(used in 0..200_000_u64, more in 0..200_000_u64, number in 0..16_u32, wide in 1..12_usize) {
            let total = used + more;
            let space = " ".repeat(wide);
            let text = format!("|{space}{number}{space}NVIDIA A100  On | 00:00.0 Off |\n| N/A 41C P0 96W / 250W |{space}{used}MiB / {total}MiB | 87% |");
            prop_assert_eq!(cards(&text), [(Some(number), Some(used), Some(total))]);
        }

        #[test]
        fn any_line_is_read_or_not_but_never_breaks(text in "([ |\\[\\]/:,.%()=A-Za-z0-9-]{0,60}\n){0,6}") {
            let found = read(&text);
            prop_assert!(found.cards.iter().all(|card| card.used <= card.total || card.total.is_none() || card.used.is_none()));
        }
    }
}
