//! The board: what the processes of one run know about each other.
//!
//! `oomph run` names a directory of the run (`ranks.directory`). Each process takes a slot of the
//! file `board` in it and writes its rank, the rank that it waits for, and how it ended. The first failure that concerns several ranks goes to `failure.txt`: kind,
//! rank, and a description.
//!
//! To find out whether a process still makes progress, the board asks the system how long its threads
//! and children computed and waited for a processor, and how much they read and wrote.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::device::look;
use crate::shared::{self, Shared, Text};

/// The most processes of one run.
const SLOTS: usize = 1024;

/// A slot's states; 0 is free.
const ALIVE: u32 = 1;
/// Waits for a process that is not known yet.
const SOMEBODY: u32 = u32::MAX;
/// How a process ended.
const FINISHED: u32 = 2;
const FAILED: u32 = 3;

/// One process.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    state: AtomicU32,
    process: AtomicU32,
    /// Its rank in the whole job plus one; 0 while unknown.
    rank: AtomicI32,
    /// The slot that it waits for, plus one; [`SOMEBODY`] where that is not known; 0 if it does not wait.
    waits_for: AtomicU32,
    /// Milliseconds since the epoch.
    waits_since: AtomicU64,
    /// What it waits in.
    doing: Text<192>,
    /// How it ended.
    end: Text<512>,
}

#[derive(Debug)]
#[repr(C)]
struct Head {
    taken: AtomicU32,
    failed: AtomicU32,
}

const SLOT: usize = size_of::<Slot>();
const FIRST: usize = 64;

/// The board of the run that this process belongs to.
#[derive(Debug)]
pub struct Board {
    directory: PathBuf,
    file: Shared,
    /// How long a process may be idle while others wait for it.
    pub patience: Duration,
}

static BOARD: OnceLock<Option<Board>> = OnceLock::new();
/// The slot of this process and the process itself: a fork is another one.
static MINE: AtomicU64 = AtomicU64::new(u64::MAX);

/// The board, if the run has one.
pub fn get() -> Option<&'static Board> {
    BOARD
        .get_or_init(|| {
            let config = &look().config;
            let directory = config.text("ranks.directory", "");
            if directory.is_empty() {
                return None;
            }
            let directory = PathBuf::from(directory);
            let file = Shared::open(&directory.join("board"), FIRST + SLOTS * SLOT)?;
            Some(Board {
                directory,
                file,
                patience: Duration::from_millis(config.number("ranks.patience_ms", 12_000)),
            })
        })
        .as_ref()
}

/// Since the machine started: the same for all ranks, and it never jumps as the time of day may.
fn milliseconds() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Why the ranks cannot continue.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Another operation, count, type or root.
    Mismatch,
    /// A rank has ended.
    Ended,
    /// A rank does nothing, and others wait for it.
    Stuck,
    /// Ranks wait for each other.
    Circle,
}

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Self::Mismatch => "mismatch",
            Self::Ended => "ended",
            Self::Stuck => "stuck",
            Self::Circle => "circle",
        }
    }
}

impl Board {
    /// A separate board in a new directory, which exists as long as the process.
    ///
    /// # Panics
    /// If there is no space for it.
    #[cfg(test)]
    pub fn of_test(name: &str) -> &'static Self {
        let directory =
            std::env::temp_dir().join(format!("oomph-board-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).expect("a directory");
        let file =
            Shared::open(&directory.join("board"), FIRST + SLOTS * SLOT).expect("a mapped file");
        Box::leak(Box::new(Self {
            directory,
            file,
            patience: Duration::from_mins(1),
        }))
    }

    fn head(&self) -> &'static Head {
        // SAFETY: atomics at the beginning of the file.
        unsafe { self.file.at(0) }
    }

    fn slot(&self, index: usize) -> &'static Slot {
        // SAFETY: the file has room for all slots.
        unsafe { self.file.at(FIRST + index.min(SLOTS - 1) * SLOT) }
    }

    fn taken(&self) -> usize {
        (self.head().taken.load(Ordering::Acquire) as usize).min(SLOTS)
    }

    /// The slot of this process, taken at the first call.
    pub fn mine(&self) -> usize {
        let process = std::process::id();
        let known = MINE.load(Ordering::Acquire);
        if known != u64::MAX && (known >> 32) as u32 == process {
            return (known & 0xffff_ffff) as usize;
        }
        let index = (self.head().taken.fetch_add(1, Ordering::AcqRel) as usize).min(SLOTS - 1);
        let slot = self.slot(index);
        slot.process.store(process, Ordering::Relaxed);
        if let Some(rank) = std::env::var("RANK")
            .ok()
            .and_then(|text| text.parse().ok())
        {
            Self::name(slot, rank);
        }
        slot.state.store(ALIVE, Ordering::Release);
        MINE.store(u64::from(process) << 32 | index as u64, Ordering::Release);
        index
    }

    fn name(slot: &Slot, rank: i32) {
        slot.rank.store(rank.saturating_add(1), Ordering::Relaxed);
    }

    /// Sets this process's rank in the whole job, unless it is known.
    pub fn i_am(&self, rank: i32) {
        let slot = self.slot(self.mine());
        if slot.rank.load(Ordering::Relaxed) == 0 {
            Self::name(slot, rank);
        }
    }

    /// The rank of a slot in the whole job; `otherwise` while it is unknown.
    pub fn rank_of(&self, slot: usize, otherwise: i32) -> i32 {
        match self.slot(slot).rank.load(Ordering::Relaxed) {
            0 => otherwise,
            known => known - 1,
        }
    }

    /// The process with this rank.
    pub fn find(&self, rank: i32) -> Option<usize> {
        (0..self.taken())
            .rev()
            .find(|&slot| self.slot(slot).rank.load(Ordering::Relaxed) == rank + 1)
    }

    /// Records how this process ended.
    pub fn leave(&self, failed: bool, how: &str) {
        let slot = self.slot(self.mine());
        slot.end.set(how);
        slot.state
            .store(if failed { FAILED } else { FINISHED }, Ordering::Release);
    }

    /// How a process ended, if it has.
    pub fn end_of(&self, slot: usize) -> Option<String> {
        let slot = self.slot(slot);
        let said = slot.end.get();
        match slot.state.load(Ordering::Acquire) {
            FINISHED => Some("its script ended".to_owned()),
            FAILED => Some(said),
            _ if lives(slot.process.load(Ordering::Relaxed)) => None,
            _ => Some("its process died without a report".to_owned()),
        }
    }

    /// Whether a process ended without a failure.
    fn has_finished(&self, slot: usize) -> bool {
        self.slot(slot).state.load(Ordering::Acquire) == FINISHED
    }

    /// Records that this process waits for another one, and in which call.
    pub fn waits(&self, for_slot: Option<usize>, doing: &str) {
        let slot = self.slot(self.mine());
        slot.doing.set(doing);
        slot.waits_since.store(milliseconds(), Ordering::Relaxed);
        let target = for_slot.map_or(SOMEBODY, |slot| slot as u32 + 1);
        slot.waits_for.store(target, Ordering::Release);
    }

    /// Records that it continues.
    pub fn goes_on(&self) {
        self.slot(self.mine()).waits_for.store(0, Ordering::Release);
    }

    /// In which call a process waits, for how long, and for which process if known; `None` if it does not
    /// wait.
    pub fn waiting(&self, slot: usize) -> Option<(String, Duration, Option<usize>)> {
        let slot = self.slot(slot);
        let target = slot.waits_for.load(Ordering::Acquire);
        if target == 0 {
            return None;
        }
        let since = slot.waits_since.load(Ordering::Relaxed);
        let waited = Duration::from_millis(milliseconds().saturating_sub(since));
        let target = (target != SOMEBODY).then(|| target as usize - 1);
        Some((slot.doing.get(), waited, target))
    }

    /// Whether `slot` waits, directly or through others, for this process, all for `least`.
    pub fn waits_for_me(&self, slot: usize, least: Duration) -> bool {
        let mine = self.mine();
        let mut at = slot;
        for _ in 0..self.taken() {
            match self.waiting(at) {
                Some((_, waited, Some(next))) if waited >= least => at = next,
                _ => return false,
            }
            if at == mine {
                return true;
            }
        }
        false
    }

    /// Whether any other process makes progress.
    fn somebody_works(&self, activity: &mut Activity, least: Duration) -> bool {
        let mine = self.mine();
        (0..self.taken()).any(|slot| {
            slot != mine
                && self.end_of(slot).is_none()
                && self.waiting(slot).is_none()
                && activity.idle(self, slot) <= least
        })
    }

    /// Whether every process that has not ended waits for others.
    fn all_wait(&self) -> bool {
        (0..self.taken()).all(|slot| self.waiting(slot).is_some() || self.end_of(slot).is_some())
    }

    /// If all ranks wait for each other: the rank in the call that the fewest wait in.
    fn odd_one(&self) -> Option<(i32, String)> {
        let mut groups: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        for slot in 0..self.taken() {
            if let Some((doing, ..)) = self.waiting(slot) {
                groups
                    .entry(doing)
                    .or_default()
                    .push(self.rank_of(slot, -1));
            }
        }
        let (few, ranks) = groups.iter().min_by_key(|(_, ranks)| ranks.len())?;
        let rank = ranks.iter().copied().min()?;
        let others: Vec<String> = groups
            .iter()
            .filter(|(doing, _)| *doing != few)
            .map(|(doing, ranks)| {
                let mut ranks: Vec<String> = ranks.iter().map(i32::to_string).collect();
                ranks.sort();
                format!("rank {} in {doing}", ranks.join(", "))
            })
            .collect();
        if others.is_empty() {
            return None;
        }
        Some((
            rank,
            format!(
                "rank {rank} waits in {few}, while others wait for it: {}",
                others.join("; ")
            ),
        ))
    }

    /// The first failure of the run, if there was one.
    pub fn failure(&self) -> Option<String> {
        if self.head().failed.load(Ordering::Acquire) == 0 {
            return None;
        }
        let text = fs::read_to_string(self.failure_path()).unwrap_or_default();
        Some(text.splitn(3, '\n').nth(2).unwrap_or_default().to_owned())
    }

    fn failure_path(&self) -> PathBuf {
        self.directory.join("failure.txt")
    }

    /// Writes the failure, unless another one came first; returns the first.
    pub fn fail(&self, fault: Fault, rank: i32, text: &str) -> String {
        let part = self
            .directory
            .join(format!("failure-{}", std::process::id()));
        let written = fs::File::create(&part)
            .and_then(|mut file| write!(file, "{}\n{rank}\n{text}", fault.name()));
        // Only the first process can make the link, and readers never see half a text.
        if written.is_ok() {
            let _ = fs::hard_link(&part, self.failure_path());
        }
        let _ = fs::remove_file(&part);
        self.head().failed.store(1, Ordering::Release);
        self.failure().unwrap_or_else(|| text.to_owned())
    }

    /// Where messages of `name` lie.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// Whether a process runs: it exists, and is not a zombie.
fn lives(process: u32) -> bool {
    fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|text| {
        let state = text
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        !matches!(state, Some('Z' | 'X') | None)
    })
}

/// What a process and its children have done so far.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    /// Nanoseconds that they computed.
    computed: u64,
    /// Nanoseconds that they waited for a processor.
    queued: u64,
    /// Bytes that they read and wrote.
    bytes: u64,
}

impl Work {
    fn of(process: u32, depth: u32) -> Self {
        const DEPTH: u32 = 3;
        let home = format!("/proc/{process}");
        let mut work = Self::default();
        for line in fs::read_to_string(format!("{home}/io"))
            .unwrap_or_default()
            .lines()
        {
            if let Some(bytes) = line
                .strip_prefix("rchar: ")
                .or_else(|| line.strip_prefix("wchar: "))
            {
                work.bytes += bytes.parse().unwrap_or(0);
            }
        }
        let Ok(tasks) = fs::read_dir(format!("{home}/task")) else {
            return work;
        };
        for task in tasks.flatten() {
            let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let mut figures = text.split_whitespace().filter_map(|word| word.parse().ok());
            work.computed += figures.next().unwrap_or(0);
            work.queued += figures.next().unwrap_or(0);
            if depth < DEPTH {
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                for child in children.split_whitespace().filter_map(|id| id.parse().ok()) {
                    let more = Self::of(child, depth + 1);
                    work.computed += more.computed;
                    work.queued += more.queued;
                    work.bytes += more.bytes;
                }
            }
        }
        work
    }

    /// Whether the progress between `before` and this, `passed` apart, is significant.
    ///
    /// Threads that only poll every tenth of a second do not count. On a busy machine they wait
    /// for a processor each time, but a thread that has something to compute waits all the time.
    fn is_worth_mentioning(self, before: Self, passed: Duration, patience: Duration) -> bool {
        /// Of the time that passed, one part in so many.
        const SHARE: u32 = 100;
        const BYTES: u64 = 64 << 10;
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let queued = self.queued.saturating_sub(before.queued);
        self.computed.saturating_sub(before.computed) > nanoseconds(patience / SHARE).max(1)
            || self.bytes.saturating_sub(before.bytes) > BYTES
            || (passed > patience / 4 && queued > nanoseconds(passed / 2))
    }
}

/// Which processes make progress, and which have not for a while.
#[derive(Debug, Default)]
pub struct Activity {
    seen: HashMap<usize, (Work, Instant)>,
}

impl Activity {
    /// How long a process has made no significant progress.
    pub fn idle(&mut self, board: &Board, slot: usize) -> Duration {
        let process = board.slot(slot).process.load(Ordering::Relaxed);
        let now = Work::of(process, 0);
        let entry = self
            .seen
            .entry(slot)
            .or_insert_with(|| (now, Instant::now()));
        let passed = entry.1.elapsed();
        if now.is_worth_mentioning(entry.0, passed, board.patience) {
            *entry = (now, Instant::now());
            return Duration::ZERO;
        }
        passed
    }
}

/// Sleeps until `done`, which may become true when `word` changes. `size` ranks meet; `missing` are
/// the slots of the ranks it waits for, `None` for one that has not arrived yet, each with its rank;
/// `doing` is the call in which this process waits. Errors name the culprit.
pub fn wait(
    board: &Board,
    word: &AtomicU32,
    size: u32,
    doing: &dyn Fn() -> String,
    missing: &dyn Fn() -> Vec<(Option<usize>, i32)>,
    done: &dyn Fn() -> bool,
) -> Result<(), String> {
    const FIRST_LOOK: Duration = Duration::from_millis(200);
    const LAST_LOOK: Duration = Duration::from_secs(1);
    let mut activity = Activity::default();
    let began = Instant::now();
    let mut look = FIRST_LOOK;
    let mut told: Option<Option<usize>> = None;
    let outcome = loop {
        let seen = word.load(Ordering::Acquire);
        if done() {
            break Ok(());
        }
        if let Some(failure) = board.failure() {
            break Err(failure);
        }
        shared::sleep_on(word, seen, look);
        if done() {
            break Ok(());
        }
        if began.elapsed() < FIRST_LOOK {
            continue;
        }
        look = (look * 2).min(LAST_LOOK);
        let absent = missing();
        let first = absent.iter().find_map(|&(slot, _)| slot);
        if told != Some(first) {
            board.waits(first, &doing());
            told = Some(first);
        }
        // Checking a process's progress takes longer than seeing that it is gone: check only the first.
        let gone = absent
            .iter()
            .find(|(slot, _)| slot.is_some_and(|slot| board.end_of(slot).is_some()));
        let fault = one_more(board, size, &absent, doing).or_else(|| {
            gone.or(absent.first())
                .and_then(|&(slot, rank)| judge(board, slot, rank, &mut activity, began, doing))
        });
        if let Some((fault, rank, text)) = fault
            && !done()
        {
            break Err(board.fail(fault, rank, &text));
        }
    };
    if told.is_some() {
        board.goes_on();
    }
    outcome
}

/// Whether this process calls what most of the others never did: their scripts have ended.
fn one_more(
    board: &Board,
    size: u32,
    absent: &[(Option<usize>, i32)],
    doing: &dyn Fn() -> String,
) -> Option<(Fault, i32, String)> {
    let most = absent.len() * 2 > size as usize;
    let finished = |&(slot, _): &(Option<usize>, i32)| slot.is_some_and(|s| board.has_finished(s));
    let me = board.rank_of(board.mine(), -1);
    if me < 0 || !most || absent.len() < 2 || !absent.iter().all(finished) {
        return None;
    }
    let text = format!(
        "rank {me} waits in {}, which {} of {size} ranks never called: their scripts have ended",
        doing(),
        absent.len()
    );
    Some((Fault::Mismatch, me, text))
}

/// Whether an awaited rank will never arrive.
fn judge(
    board: &Board,
    slot: Option<usize>,
    rank: i32,
    activity: &mut Activity,
    began: Instant,
    doing: &dyn Fn() -> String,
) -> Option<(Fault, i32, String)> {
    /// Ranks that wait for each other this long will do so forever.
    const CIRCLE: Duration = Duration::from_secs(3);
    let me = board.rank_of(board.mine(), -1);
    let who = if me < 0 {
        "another rank".to_owned()
    } else {
        format!("rank {me}")
    };
    let doing = doing();
    let Some(slot) = slot else {
        // It is unknown which process it will be; any active process may be it.
        let look = board.patience / 3;
        if began.elapsed() < look || board.somebody_works(activity, look * 2) {
            return None;
        }
        let (rank, text) = board.odd_one().unwrap_or_else(|| {
            let text = format!(
                "rank {rank} has not arrived: {who} has waited {} s for it in {doing}",
                began.elapsed().as_secs()
            );
            (rank, text)
        });
        return Some((Fault::Stuck, rank, text));
    };
    if let Some(end) = board.end_of(slot) {
        let text = format!("rank {rank} is gone ({end}), and {who} waits for it in {doing}");
        return Some((Fault::Ended, rank, text));
    }
    if let Some((theirs, _, _)) = board.waiting(slot) {
        // Which rank is alone in its call shows when all others wait as well.
        let all = began.elapsed() > CIRCLE * 3 || board.all_wait();
        return (all && board.waits_for_me(slot, CIRCLE)).then(|| {
            let (rank, text) = board.odd_one().unwrap_or_else(|| {
                let text =
                    format!("rank {rank} waits in {theirs}, while {who} waits for it in {doing}");
                (rank, text)
            });
            (Fault::Circle, rank, text)
        });
    }
    let idle = activity.idle(board, slot);
    (idle > board.patience).then(|| {
        let text = format!(
            "rank {rank} has done nothing for {} s, and {who} waits for it in {doing}",
            idle.as_secs()
        );
        (Fault::Stuck, rank, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_processor_all_the_time_works_and_who_looks_around_does_not() {
        let patience = Duration::from_secs(12);
        let second = 1_000_000_000;
        let worth = |computed, queued, bytes, seconds| {
            let now = Work {
                computed,
                queued,
                bytes,
            };
            now.is_worth_mentioning(Work::default(), Duration::from_secs(seconds), patience)
        };
        assert!(worth(second, 0, 0, 6));
        assert!(worth(0, 0, 1 << 20, 6));
        // A thread that never gets a processor.
        assert!(worth(0, 6 * second, 0, 6));
        // Some that poll on a busy machine.
        assert!(!worth(second / 100, 2 * second, 0, 6));
        // One moment tells nothing.
        assert!(!worth(0, 2 * second, 0, 2));
    }
}
