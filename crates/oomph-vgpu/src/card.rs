//! The cards: what all processes of one run hold on each GPU.
//!
//! `oomph run` makes a file for the run (`card.file`), which every process that uses a GPU maps. It
//! consists of 64-bit words; `crates/oomph-job/src/card.rs` reads it when the run is over:
//!
//! - [`HEAD`] words: the lock, how many slots are taken, how many processes had to share a slot;
//! - for each of [`GPUS`] GPUs: the most that was held at one time;
//! - [`SLOTS`] slots of [`SLOT`] words, one for each process.
//!
//! A process changes its figures, and asks whether there is room, under the lock, so that two
//! processes never get the same memory. Each figure is one store, so a process that is killed leaves
//! no half of a change, and the lock of a dead process is taken over. A process that has ended holds
//! nothing: the others look for it when memory is short, when they are asked how much is free, and
//! before they note a new peak.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::shared::Shared;
use crate::sync::Mutex;

/// The most GPUs of one host: as many as `--gpu NAME:N` accepts.
pub const GPUS: usize = 64;
/// The most processes of one run that use a GPU.
const SLOTS: usize = 1024;
const HEAD: usize = 8;
/// Words of a slot's own figures, and of the beginning of its command line.
const OWN: usize = 16;
const COMMAND: usize = 16;
const SLOT: usize = OWN + COMMAND + 3 * GPUS;

const LOCK: usize = 0;
const TAKEN: usize = 1;
const CROWDED: usize = 2;

// A slot's own figures.
const PROCESS: usize = 0;
const STARTED: usize = 1;
const STATE: usize = 2;
/// The last request that found no room, in bytes; 0 if a later one did.
const REFUSED: usize = 3;
/// The error that the program last asked the name or the text of, and the call that gave it, in [`NAME`] words.
const FAILED: usize = 4;
const NAME: usize = 7;
// For each GPU: what it holds, the most that it held, and what it held at the card's peak.
const HELD: usize = 0;
const PEAK: usize = 1;
const SHARE: usize = 2;

/// A slot's states; 0 is free.
const ALIVE: u64 = 1;
const ENDED: u64 = 2;

/// The file of the run that this process belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Cards {
    file: Shared,
}

static CARDS: OnceLock<Option<Cards>> = OnceLock::new();
/// The slot of this process plus one; 0 while it has none.
static MINE: AtomicUsize = AtomicUsize::new(0);
/// Held while this process takes its slot.
static TAKING: Mutex<()> = Mutex::new(());

/// The run's cards, if this process belongs to a run.
pub fn get() -> Option<&'static Cards> {
    CARDS
        .get_or_init(|| {
            let file = crate::device::look().config.text("card.file", "");
            (!file.is_empty())
                .then(|| Cards::open(Path::new(file)))
                .flatten()
        })
        .as_ref()
}

/// This process is a fork, and no longer its parent.
pub fn forget() {
    MINE.store(0, Ordering::Release);
}

/// The lock, given back when it goes.
struct Held<'a>(&'a AtomicU64);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Cards {
    fn open(path: &Path) -> Option<Self> {
        let words = HEAD + GPUS + SLOTS * SLOT;
        Shared::open(path, words * size_of::<u64>()).map(|file| Self { file })
    }

    fn word(&self, index: usize) -> &'static AtomicU64 {
        // SAFETY: atomics for which zeros are a value; every index is inside the file.
        unsafe { self.file.at(index * size_of::<u64>()) }
    }

    fn own(&self, slot: usize, what: usize) -> &'static AtomicU64 {
        self.word(HEAD + GPUS + slot.min(SLOTS - 1) * SLOT + what)
    }

    fn on(&self, slot: usize, gpu: usize, what: usize) -> &'static AtomicU64 {
        self.own(slot, OWN + COMMAND + 3 * gpu + what)
    }

    fn taken(&self) -> usize {
        (self.word(TAKEN).load(Ordering::Acquire) as usize).min(SLOTS)
    }

    /// Takes the lock. Its holder is named by its slot, so that a dead one can be found out.
    fn lock(&self, mine: usize) -> Held<'static> {
        /// So many looks before the holder is checked: far longer than anything takes under the lock.
        const PATIENCE: u32 = 10_000;
        let word = self.word(LOCK);
        let own = mine as u64 + 1;
        let mut looks = 0_u32;
        loop {
            let Err(holder) =
                word.compare_exchange_weak(0, own, Ordering::Acquire, Ordering::Relaxed)
            else {
                return Held(word);
            };
            looks += 1;
            if looks.is_multiple_of(PATIENCE)
                && holder != 0
                && !self.lives(holder as usize - 1)
                && word
                    .compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Held(word);
            }
            if looks.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn lives(&self, slot: usize) -> bool {
        let process = self.own(slot, PROCESS).load(Ordering::Relaxed);
        started(process) == Some(self.own(slot, STARTED).load(Ordering::Relaxed))
    }

    /// The slot of this process, taken at the first call.
    fn mine(&self) -> usize {
        if let Some(known) = MINE.load(Ordering::Acquire).checked_sub(1) {
            return known;
        }
        // Two threads of a process are one process.
        let _taking = TAKING.lock();
        if let Some(known) = MINE.load(Ordering::Acquire).checked_sub(1) {
            return known;
        }
        let slot = self.take_slot(u64::from(std::process::id()));
        MINE.store(slot + 1, Ordering::Release);
        slot
    }

    fn take_slot(&self, process: u64) -> usize {
        let began = started(process).unwrap_or(0);
        for slot in 0..self.taken() {
            // This process, before it became another program: what that held is gone.
            if self.own(slot, PROCESS).load(Ordering::Relaxed) == process
                && self.own(slot, STARTED).load(Ordering::Relaxed) == began
            {
                self.end(slot);
            }
        }
        let mut slot = self.word(TAKEN).fetch_add(1, Ordering::AcqRel) as usize;
        if slot >= SLOTS {
            // One that has ended is forgotten, and the run says so.
            self.word(CROWDED).fetch_add(1, Ordering::Relaxed);
            slot = (0..SLOTS)
                .find(|&slot| !self.lives(slot))
                .unwrap_or(SLOTS - 1);
            for gpu in 0..GPUS {
                for what in [HELD, PEAK, SHARE] {
                    self.on(slot, gpu, what).store(0, Ordering::Relaxed);
                }
            }
        }
        self.own(slot, PROCESS).store(process, Ordering::Relaxed);
        self.own(slot, STARTED).store(began, Ordering::Relaxed);
        self.own(slot, REFUSED).store(0, Ordering::Relaxed);
        self.own(slot, FAILED).store(0, Ordering::Relaxed);
        let command = fs::read("/proc/self/cmdline").unwrap_or_default();
        let mut bytes = command.chunks(8);
        for word in 0..COMMAND {
            self.own(slot, OWN + word)
                .store(word_of(bytes.next().unwrap_or_default()), Ordering::Relaxed);
        }
        self.own(slot, STATE).store(ALIVE, Ordering::Release);
        slot
    }

    /// A process is gone, and what it held with it.
    fn end(&self, slot: usize) {
        self.own(slot, STATE).store(ENDED, Ordering::Release);
        for gpu in 0..GPUS {
            self.on(slot, gpu, HELD).store(0, Ordering::Relaxed);
        }
    }

    /// What the processes other than `mine` hold on a GPU; `surely`: of those that still live.
    fn others(&self, gpu: usize, mine: usize, surely: bool) -> u64 {
        let mut sum = 0;
        for slot in 0..self.taken() {
            if slot == mine || self.own(slot, STATE).load(Ordering::Acquire) != ALIVE {
                continue;
            }
            let held = self.on(slot, gpu, HELD).load(Ordering::Relaxed);
            if held > 0 && surely && !self.lives(slot) {
                self.end(slot);
            } else {
                sum += held;
            }
        }
        sum
    }

    /// What the other processes of the run hold on a GPU.
    pub fn held_by_others(&self, gpu: u32) -> u64 {
        let gpu = (gpu as usize).min(GPUS - 1);
        let mine = self.mine();
        let _lock = self.lock(mine);
        self.others(gpu, mine, true)
    }

    /// This process wants to hold `bytes` of a GPU from now on; false, and nothing changes, if all
    /// processes would then hold more than `limit`.
    pub fn hold(&self, gpu: u32, bytes: u64, limit: u64) -> bool {
        let gpu = (gpu as usize).min(GPUS - 1);
        let mine = self.mine();
        let _lock = self.lock(mine);
        let held = self.on(mine, gpu, HELD);
        if bytes <= held.load(Ordering::Relaxed) {
            held.store(bytes, Ordering::Relaxed);
            return true;
        }
        let mut others = self.others(gpu, mine, false);
        let high = self.word(HEAD + gpu);
        let over = |others: u64| bytes.saturating_add(others);
        let matters = over(others) > limit || over(others) > high.load(Ordering::Relaxed);
        if others > 0 && matters {
            others = self.others(gpu, mine, true);
        }
        if over(others) > limit {
            let wanted = bytes - held.load(Ordering::Relaxed);
            self.own(mine, REFUSED).store(wanted, Ordering::Relaxed);
            return false;
        }
        held.store(bytes, Ordering::Relaxed);
        self.own(mine, REFUSED).store(0, Ordering::Relaxed);
        self.on(mine, gpu, PEAK).fetch_max(bytes, Ordering::Relaxed);
        if over(others) > high.load(Ordering::Relaxed) {
            high.store(over(others), Ordering::Relaxed);
            for slot in 0..self.taken() {
                let now = self.on(slot, gpu, HELD).load(Ordering::Relaxed);
                self.on(slot, gpu, SHARE).store(now, Ordering::Relaxed);
            }
        }
        true
    }

    /// The program asks what `error` means, which `call` gave.
    pub fn failed(&self, error: i32, call: &str) {
        let mine = self.mine();
        for word in 0..NAME {
            let part = call.as_bytes().chunks(8).nth(word).unwrap_or_default();
            self.own(mine, FAILED + 1 + word)
                .store(word_of(part), Ordering::Relaxed);
        }
        self.own(mine, FAILED)
            .store(error as u64, Ordering::Relaxed);
    }

    /// The processes that hold memory of a GPU: their ids, and their bytes.
    pub fn processes(&self, gpu: u32) -> Vec<(u32, u64)> {
        let gpu = (gpu as usize).min(GPUS - 1);
        (0..self.taken())
            .filter(|&slot| self.own(slot, STATE).load(Ordering::Acquire) == ALIVE)
            .map(|slot| (slot, self.on(slot, gpu, HELD).load(Ordering::Relaxed)))
            .filter(|&(slot, held)| held > 0 && self.lives(slot))
            .map(|(slot, held)| (self.own(slot, PROCESS).load(Ordering::Relaxed) as u32, held))
            .collect()
    }
}

/// Up to eight bytes of a text as a word.
fn word_of(part: &[u8]) -> u64 {
    let mut text = [0; 8];
    text[..part.len()].copy_from_slice(part);
    u64::from_le_bytes(text)
}

/// When a process began, in ticks since the system did; `None` if it has ended, or is a zombie.
fn started(process: u64) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    // The fields count from 1, and the state is the third.
    let began = fields.nth(22 - 4)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(began)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn cards(name: &str) -> Cards {
        let path = std::env::temp_dir().join(format!("oomph-card-{}-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        let cards = Cards::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        cards
    }

    /// Another process in a slot of its own, which holds `bytes`.
    fn other(cards: &Cards, bytes: u64) -> (Child, usize) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let slot = cards.take_slot(u64::from(child.id()));
        cards.on(slot, 0, HELD).store(bytes, Ordering::Relaxed);
        (child, slot)
    }

    fn kill(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// One test, as the slot of this process is a static.
    #[test]
    fn processes_share_a_card() {
        let cards = cards("shared");
        assert!(cards.hold(0, 60, 100));
        let (child, slot) = other(&cards, 30);
        assert_eq!(cards.held_by_others(0), 30);
        assert!(!cards.hold(0, 71, 100));
        let mine = cards.mine();
        assert_eq!(cards.own(mine, REFUSED).load(Ordering::Relaxed), 11);
        assert!(cards.hold(0, 70, 100));
        assert_eq!(cards.own(mine, REFUSED).load(Ordering::Relaxed), 0);
        assert_eq!(cards.word(HEAD).load(Ordering::Relaxed), 100);
        assert_eq!(cards.on(slot, 0, SHARE).load(Ordering::Relaxed), 30);
        // Another GPU is another card.
        assert!(cards.hold(1, 90, 100));
        assert_eq!(cards.processes(0).len(), 2);

        // What a killed process held is free again, and no part of a later peak.
        kill(child);
        assert_eq!(cards.processes(0), [(std::process::id(), 70)]);
        assert!(cards.hold(0, 100, 100));
        assert_eq!(cards.word(HEAD).load(Ordering::Relaxed), 100);
        assert_eq!(cards.held_by_others(0), 0);

        // One that was killed while it held the lock does not stop the others.
        let (child, slot) = other(&cards, 1);
        cards.word(LOCK).store(slot as u64 + 1, Ordering::Relaxed);
        kill(child);
        assert!(cards.hold(0, 50, 100));
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let own = u64::from(std::process::id());
        assert!(started(own).is_some());
        let mut child = Command::new("true").spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        // A zombie holds nothing.
        assert_eq!(started(u64::from(child.id())), None);
        child.wait().unwrap();
    }
}
