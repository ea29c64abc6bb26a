//! Where the ranks of one communicator meet: a file that all of them map.
//!
//! Collectives are numbered. Each has an entry in a ring, in which every rank writes what it calls;
//! the first one's call is what the others' are held against. Contributions that carry values lie
//! in the entry's payload. Whoever needs nothing from the others does not wait for them, up to the
//! length of the ring. Between each ordered pair of ranks there is a ring of messages.

use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::board::{self, Board, Fault};
use crate::reduce::{self, Kind, Operation};
use crate::shared::{self, Shared};

/// Collectives that one rank can be ahead of another.
const RING: u64 = 64;
/// Bytes that all contributions to one collective may have together.
pub const PAYLOAD: u64 = 32 << 20;
/// Messages on their way from one rank to another.
const MESSAGES: u64 = 256;
/// A message of more bytes lies in a file of its own.
const INLINE: usize = 256;
/// More than this is given back to the system after each use.
const KEPT: u64 = 64 << 10;

/// What is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum What {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Split,
    Send,
    Receive,
}

impl What {
    const ALL: [(Self, &'static str); 11] = [
        (Self::AllReduce, "all_reduce"),
        (Self::Reduce, "reduce"),
        (Self::Broadcast, "broadcast"),
        (Self::AllGather, "all_gather"),
        (Self::ReduceScatter, "reduce_scatter"),
        (Self::AllToAll, "all_to_all"),
        (Self::Gather, "gather"),
        (Self::Scatter, "scatter"),
        (Self::Split, "split"),
        (Self::Send, "send"),
        (Self::Receive, "receive"),
    ];

    /// Whether only the root's contribution matters.
    pub const fn from_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Scatter)
    }
}

/// A call: what, of how many elements of which type, and with which root, peer or operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub what: What,
    pub kind: Kind,
    pub count: u64,
    pub root: u32,
    pub operation: Operation,
}

impl fmt::Display for Call {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = What::ALL[self.what as usize].1;
        match self.what {
            What::Split => return out.write_str(name),
            What::AllReduce | What::Reduce | What::ReduceScatter => {
                write!(
                    out,
                    "{name} ({}) of {} {}",
                    self.operation.name(),
                    self.count,
                    self.kind.name()
                )?;
            }
            _ => write!(out, "{name} of {} {}", self.count, self.kind.name())?,
        }
        match self.what {
            What::Reduce | What::Gather => write!(out, " to rank {}", self.root),
            What::Broadcast | What::Scatter => write!(out, " from rank {}", self.root),
            _ => Ok(()),
        }
    }
}

/// A call in shared memory.
#[derive(Debug)]
#[repr(C)]
struct Written {
    /// Its number plus one, written last.
    number: AtomicU64,
    /// What, type, root, operation: a byte, a byte, two bytes, four bytes.
    form: AtomicU64,
    count: AtomicU64,
}

impl Written {
    fn set(&self, number: u64, call: &Call) {
        let form = call.what as u64
            | u64::from(call.kind.0) << 8
            | u64::from(call.root & 0xffff) << 16
            | u64::from(call.operation.0) << 32;
        self.form.store(form, Ordering::Relaxed);
        self.count.store(call.count, Ordering::Relaxed);
        self.number.store(number + 1, Ordering::Release);
    }

    fn get(&self, number: u64) -> Option<Call> {
        if self.number.load(Ordering::Acquire) != number + 1 {
            return None;
        }
        let form = self.form.load(Ordering::Relaxed);
        Some(Call {
            what: What::ALL.get((form & 0xff) as usize)?.0,
            kind: Kind((form >> 8) as u8),
            root: (form >> 16) as u32 & 0xffff,
            operation: Operation((form >> 32) as u32),
            count: self.count.load(Ordering::Relaxed),
        })
    }
}

#[derive(Debug)]
#[repr(C)]
struct Head {
    signal: AtomicU32,
    joined: AtomicU32,
}

/// One collective.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    /// How often the entry was used up: collective n is in entry n % RING at use n / RING.
    turn: AtomicU64,
    arrived: AtomicU32,
    left: AtomicU32,
    /// Contributions whose values nobody knows.
    unknown: AtomicU32,
    /// The contributions that readers need are complete.
    ready: AtomicU32,
    signal: AtomicU32,
    /// Who came first, plus one.
    first: AtomicU32,
    payload: AtomicU64,
}

/// The ring of messages from one rank to another.
#[derive(Debug)]
#[repr(C)]
struct PairHead {
    signal: AtomicU32,
}

#[derive(Debug)]
#[repr(C)]
struct Message {
    sent: Written,
    received: Written,
    unknown: AtomicU32,
    stored: AtomicU32,
}

const PAGE: usize = 4096;
const MESSAGE: usize = size_of::<Message>() + INLINE;
const PAIR: usize = (64 + MESSAGES as usize * MESSAGE).div_ceil(64) * 64;

/// A collective that this rank has called.
#[derive(Debug, Clone, Copy)]
pub struct Ticket {
    number: u64,
    call: Call,
    carries: bool,
    known: bool,
}

/// This rank's view of a communicator.
#[derive(Debug)]
pub struct Meeting {
    board: &'static Board,
    file: Shared,
    /// Tells its files from others'.
    pub id: u64,
    pub rank: u32,
    pub size: u32,
    next: AtomicU64,
    sent: Vec<AtomicU64>,
    received: Vec<AtomicU64>,
}

impl Meeting {
    const fn entries(size: usize) -> usize {
        (64 + size * 8).div_ceil(64) * 64
    }

    const fn calls(size: usize) -> usize {
        Self::entries(size) + RING as usize * size_of::<Entry>()
    }

    const fn pairs(size: usize) -> usize {
        let calls = RING as usize * size * size_of::<Written>();
        (Self::calls(size) + calls).div_ceil(PAGE) * PAGE
    }

    const fn payloads(size: usize) -> usize {
        (Self::pairs(size) + size * size * PAIR).div_ceil(PAGE) * PAGE
    }

    /// Comes to the meeting `id` and waits for the others.
    pub fn join(board: &'static Board, id: u64, rank: u32, size: u32) -> Result<Self, String> {
        let path = board.path(&format!("group-{id:016x}"));
        let len = Self::payloads(size as usize) + RING as usize * PAYLOAD as usize;
        let file = Shared::open(&path, len)
            .ok_or_else(|| format!("cannot map {} for {size} ranks", path.display()))?;
        board.i_am(rank as i32);
        let meeting = Self {
            board,
            file,
            id,
            rank,
            size,
            next: AtomicU64::new(0),
            sent: (0..size).map(|_| AtomicU64::new(0)).collect(),
            received: (0..size).map(|_| AtomicU64::new(0)).collect(),
        };
        meeting
            .member(rank)
            .store(board.mine() as u64 + 1, Ordering::Release);
        let head = meeting.head();
        if head.joined.fetch_add(1, Ordering::AcqRel) + 1 == size {
            shared::wake(&head.signal);
        }
        board::wait(
            board,
            &head.signal,
            &|| format!("the making of a communicator of {size} ranks"),
            &|| meeting.not_come(),
            &|| head.joined.load(Ordering::Acquire) >= size,
        )?;
        Ok(meeting)
    }

    fn head(&self) -> &'static Head {
        // SAFETY: atomics inside the file.
        unsafe { self.file.at(0) }
    }

    /// The slot of a member on the board plus one.
    fn member(&self, rank: u32) -> &'static AtomicU64 {
        // SAFETY: as above.
        unsafe { self.file.at(64 + rank as usize * 8) }
    }

    fn entry(&self, number: u64) -> &'static Entry {
        let index = (number % RING) as usize;
        // SAFETY: as above.
        unsafe {
            self.file
                .at(Self::entries(self.size as usize) + index * size_of::<Entry>())
        }
    }

    fn written(&self, number: u64, rank: u32) -> &'static Written {
        let index = (number % RING) as usize * self.size as usize + rank as usize;
        // SAFETY: as above.
        unsafe {
            self.file
                .at(Self::calls(self.size as usize) + index * size_of::<Written>())
        }
    }

    fn payload_offset(&self, number: u64) -> usize {
        Self::payloads(self.size as usize) + (number % RING) as usize * PAYLOAD as usize
    }

    fn payload(&self, number: u64) -> u64 {
        self.file.address(self.payload_offset(number))
    }

    fn pair(&self, from: u32, to: u32) -> usize {
        Self::pairs(self.size as usize) + (from as usize * self.size as usize + to as usize) * PAIR
    }

    fn message(&self, from: u32, to: u32, number: u64) -> (&'static Message, u64) {
        let at = self.pair(from, to) + 64 + (number % MESSAGES) as usize * MESSAGE;
        // SAFETY: as above.
        (
            unsafe { self.file.at(at) },
            self.file.address(at + size_of::<Message>()),
        )
    }

    /// The rank of a member in the whole job.
    pub fn global(&self, rank: u32) -> i32 {
        let slot = self.member(rank).load(Ordering::Acquire);
        if slot == 0 {
            return rank as i32;
        }
        self.board.rank_of(slot as usize - 1, rank as i32)
    }

    /// The members that have not come yet. Only the whole job's ranks can be told before they come;
    /// where they cannot, the first who has come looks for them.
    fn not_come(&self) -> Vec<(Option<usize>, i32)> {
        let has_come = |rank: &u32| self.member(*rank).load(Ordering::Acquire) != 0;
        let is_whole = std::env::var("WORLD_SIZE").is_ok_and(|size| size == self.size.to_string());
        if !is_whole && (0..self.size).find(has_come) != Some(self.rank) {
            return Vec::new();
        }
        (0..self.size)
            .filter(|rank| !has_come(rank))
            .map(|rank| {
                let slot = is_whole.then(|| self.board.find(rank as i32)).flatten();
                (slot, rank as i32)
            })
            .collect()
    }

    /// The members for which `is_absent` holds: their slots and ranks. All have come once.
    fn absent(&self, is_absent: &dyn Fn(u32) -> bool) -> Vec<(Option<usize>, i32)> {
        (0..self.size)
            .filter(|&rank| rank != self.rank && is_absent(rank))
            .filter_map(|rank| match self.member(rank).load(Ordering::Acquire) {
                0 => None,
                slot => Some((Some(slot as usize - 1), self.global(rank))),
            })
            .collect()
    }

    fn describe(&self, number: u64, call: &Call) -> String {
        format!(
            "{call} (operation {} of a communicator of {} ranks)",
            number + 1,
            self.size
        )
    }

    /// Bytes of one rank's contribution, and where they lie in the payload.
    fn part(&self, call: &Call, rank: u32) -> (u64, u64) {
        let (size, rank) = (u64::from(self.size), u64::from(rank));
        let len = call.count * call.kind.bytes();
        match call.what {
            What::Broadcast => (0, len),
            What::Scatter => (0, len * size),
            What::ReduceScatter | What::AllToAll => (rank * len * size, len * size),
            _ => (rank * len, len),
        }
    }

    /// Whether the contributions to a call are real bytes: by its sizes, so that all ranks agree.
    pub fn carries(&self, call: &Call) -> bool {
        let size = u64::from(self.size);
        let result = match call.what {
            What::AllGather
            | What::Gather
            | What::AllToAll
            | What::ReduceScatter
            | What::Scatter => call.count * size,
            _ => call.count,
        };
        let (begin, len) = self.part(call, self.size - 1);
        call.kind.carries(result) && begin + len <= PAYLOAD
    }

    /// Calls a collective. `from` is the address of this rank's contribution, `known` says whether
    /// its values are.
    pub fn call(&self, call: Call, from: u64, known: bool) -> Result<Ticket, String> {
        let number = self.next.fetch_add(1, Ordering::AcqRel);
        let entry = self.entry(number);
        let turn = number / RING;
        board::wait(
            self.board,
            &entry.signal,
            &|| self.describe(number, &call),
            &|| {
                self.absent(&|rank| {
                    self.written(number.wrapping_sub(RING), rank)
                        .get(number.wrapping_sub(RING))
                        .is_none()
                })
            },
            &|| entry.turn.load(Ordering::Acquire) == turn,
        )?;
        self.written(number, self.rank).set(number, &call);
        let first = match entry.first.compare_exchange(
            0,
            self.rank + 1,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => self.rank,
            Err(first) => first - 1,
        };
        if self.written(number, first).get(number) != Some(call) {
            return Err(self.mismatch(number));
        }
        let carries = self.carries(&call);
        let gives = carries && (!call.what.from_root() || call.root == self.rank);
        if gives {
            if known {
                let (at, len) = self.part(&call, self.rank);
                entry.payload.fetch_max(at + len, Ordering::Relaxed);
                // SAFETY: the caller's buffer has the size that the call states, and the payload
                // has room for all contributions, as `carries` has seen to.
                unsafe { reduce::copy(self.payload(number) + at, from, len) };
            } else {
                entry.unknown.fetch_add(1, Ordering::Relaxed);
            }
        }
        let last = entry.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.size;
        let by_all = matches!(call.what, What::AllReduce | What::Reduce);
        if last && carries && by_all && entry.unknown.load(Ordering::Acquire) == 0 {
            let len = call.count * call.kind.bytes();
            // SAFETY: all contributions lie there, and nobody writes them any more.
            unsafe {
                reduce::reduce(
                    call.kind,
                    call.operation,
                    self.payload(number),
                    len,
                    self.size,
                    self.payload(number),
                    call.count,
                );
            }
        }
        if last || (gives && call.what.from_root()) {
            entry.ready.store(1, Ordering::Release);
            shared::wake(&entry.signal);
        }
        Ok(Ticket {
            number,
            call,
            carries,
            known: known || !gives,
        })
    }

    /// Takes the result of a collective to `to` and leaves it. Says whether its values are known,
    /// `None` where there are none: at ranks that receive nothing, and for more than is carried.
    pub fn take(&self, ticket: Ticket, to: u64) -> Result<Option<bool>, String> {
        let Ticket {
            number,
            call,
            carries,
            known,
        } = ticket;
        let entry = self.entry(number);
        let receives = match call.what {
            What::Reduce | What::Gather => call.root == self.rank,
            _ => true,
        };
        if !carries || !receives {
            self.leave(number);
            return Ok(None);
        }
        let len = self.result_len(&call);
        // What follows from an unknown contribution is unknown, whatever the others say.
        if !known {
            self.leave(number);
            unsafe { reduce::clear(to, len) };
            return Ok(Some(false));
        }
        self.await_entry(number, &call, &|| entry.ready.load(Ordering::Acquire) == 1)?;
        let known = entry.unknown.load(Ordering::Acquire) == 0;
        let payload = self.payload(number);
        let one = call.count * call.kind.bytes();
        let (size, rank) = (u64::from(self.size), u64::from(self.rank));
        // SAFETY: the caller's buffer has room for the result of the call that it makes, and the
        // payload holds the contributions until the last rank has left.
        unsafe {
            match call.what {
                _ if !known => reduce::clear(to, len),
                What::Scatter => reduce::copy(to, payload + rank * one, one),
                What::ReduceScatter => reduce::reduce(
                    call.kind,
                    call.operation,
                    payload + rank * one,
                    one * size,
                    self.size,
                    to,
                    call.count,
                ),
                What::AllToAll => {
                    for from in 0..size {
                        reduce::copy(to + from * one, payload + (from * size + rank) * one, one);
                    }
                }
                _ => reduce::copy(to, payload, len),
            }
        }
        self.leave(number);
        Ok(Some(known))
    }

    fn result_len(&self, call: &Call) -> u64 {
        let one = call.count * call.kind.bytes();
        match call.what {
            What::AllGather | What::Gather | What::AllToAll => one * u64::from(self.size),
            _ => one,
        }
    }

    fn await_entry(&self, number: u64, call: &Call, done: &dyn Fn() -> bool) -> Result<(), String> {
        let only_root = call.what.from_root();
        board::wait(
            self.board,
            &self.entry(number).signal,
            &|| self.describe(number, call),
            &|| {
                self.absent(&|rank| {
                    (!only_root || rank == call.root)
                        && self.written(number, rank).get(number).is_none()
                })
            },
            done,
        )
    }

    fn leave(&self, number: u64) {
        let entry = self.entry(number);
        if entry.left.fetch_add(1, Ordering::AcqRel) + 1 < self.size {
            return;
        }
        let payload = entry.payload.swap(0, Ordering::Relaxed);
        if payload > KEPT {
            self.file.release(
                self.payload_offset(number),
                (payload as usize).div_ceil(PAGE) * PAGE,
            );
        }
        for word in [
            &entry.arrived,
            &entry.left,
            &entry.unknown,
            &entry.ready,
            &entry.first,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        entry.turn.store(number / RING + 1, Ordering::Release);
        shared::wake(&entry.signal);
    }

    /// Whether all ranks have called what this one has.
    pub fn is_over(&self, ticket: Ticket) -> bool {
        let entry = self.entry(ticket.number);
        entry.turn.load(Ordering::Acquire) > ticket.number / RING
            || entry.arrived.load(Ordering::Acquire) == self.size
    }

    /// Waits until all ranks have called what this one has, as a host does that waits for a stream.
    pub fn settle(&self, ticket: Ticket) -> Result<(), String> {
        self.await_entry(ticket.number, &ticket.call, &|| self.is_over(ticket))
    }

    /// Ranks disagree on what collective `number` is: names the ones who are alone with theirs.
    fn mismatch(&self, number: u64) -> String {
        const HEARING: Duration = Duration::from_secs(2);
        let began = Instant::now();
        let calls = loop {
            let calls: Vec<(u32, Call)> = (0..self.size)
                .filter_map(|rank| Some((rank, self.written(number, rank).get(number)?)))
                .collect();
            let known = self.board.failure();
            if let Some(failure) = known {
                return failure;
            }
            if calls.len() == self.size as usize || began.elapsed() > HEARING {
                break calls;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut groups: Vec<(Call, Vec<u32>)> = Vec::new();
        for (rank, call) in calls {
            match groups.iter_mut().find(|(known, _)| *known == call) {
                Some((_, ranks)) => ranks.push(rank),
                None => groups.push((call, vec![rank])),
            }
        }
        groups.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks[0]));
        let [(usual, many), (other, few), ..] = groups.as_slice() else {
            return "ranks called different collectives".to_owned();
        };
        let rank = self.global(few[0]);
        let text = format!(
            "rank {rank} called {other} where {} called {usual} (operation {} of a communicator of {} ranks)",
            self.listed(many),
            number + 1,
            self.size
        );
        self.board.fail(Fault::Mismatch, rank, &text)
    }

    fn listed(&self, ranks: &[u32]) -> String {
        const SHOWN: usize = 4;
        let names: Vec<String> = ranks
            .iter()
            .take(SHOWN)
            .map(|&rank| self.global(rank).to_string())
            .collect();
        let more = if ranks.len() > SHOWN {
            format!(" and {} more", ranks.len() - SHOWN)
        } else {
            String::new()
        };
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        format!("{noun} {}{more}", names.join(", "))
    }

    /// Tells all ranks `mine` and returns what each told: for the library's own needs.
    pub fn exchange(&self, what: What, mine: u64) -> Result<Vec<u64>, String> {
        let call = Call {
            what,
            kind: Kind::UINT64,
            count: 1,
            root: 0,
            operation: Operation::SUM,
        };
        let ticket = self.call(call, (&raw const mine) as u64, true)?;
        let mut all = vec![0_u64; self.size as usize];
        self.take_all(ticket, all.as_mut_ptr() as u64)?;
        Ok(all)
    }

    fn take_all(&self, ticket: Ticket, to: u64) -> Result<(), String> {
        let entry = self.entry(ticket.number);
        self.await_entry(ticket.number, &ticket.call, &|| {
            entry.ready.load(Ordering::Acquire) == 1
        })?;
        // SAFETY: the caller has room for one word of each rank.
        unsafe { reduce::copy(to, self.payload(ticket.number), 8 * u64::from(self.size)) };
        self.leave(ticket.number);
        Ok(())
    }

    /// The number of the collective called last.
    pub fn operations(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    // ---- messages ----

    fn message_file(&self, from: u32, to: u32, number: u64) -> std::path::PathBuf {
        self.board
            .path(&format!("message-{:016x}-{from}-{to}-{number}", self.id))
    }

    /// Sends a message to `peer`; waits only where many are on their way already.
    pub fn send(
        &self,
        peer: u32,
        kind: Kind,
        count: u64,
        from: u64,
        known: bool,
    ) -> Result<(), String> {
        let number = self.sent[peer as usize].fetch_add(1, Ordering::AcqRel);
        let call = Self::passing(What::Send, kind, count, peer);
        let (message, place) = self.message(self.rank, peer, number);
        let before = number.wrapping_sub(MESSAGES);
        self.await_message(self.rank, peer, number, &call, peer, &|| {
            number < MESSAGES || message.received.get(before).is_some()
        })?;
        let len = count * kind.bytes();
        let stored = known && kind.carries(count);
        if stored && len as usize <= INLINE {
            // SAFETY: the caller's buffer has this size, and so has the place at least.
            unsafe { reduce::copy(place, from, len) };
        } else if stored {
            // SAFETY: the caller's buffer has this size.
            let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, len as usize) };
            fs::write(self.message_file(self.rank, peer, number), bytes)
                .map_err(|error| format!("cannot write a message to rank {peer}: {error}"))?;
        }
        message.unknown.store(u32::from(!known), Ordering::Relaxed);
        message.stored.store(u32::from(stored), Ordering::Relaxed);
        message.sent.set(number, &call);
        self.ring(self.rank, peer);
        match message.received.get(number) {
            Some(received) => self.agree(self.rank, peer, &call, &received),
            None => Ok(()),
        }
    }

    /// Announces that the next message of `peer` is expected; returns its number.
    pub fn expect(&self, peer: u32, kind: Kind, count: u64) -> Result<u64, String> {
        let number = self.received[peer as usize].fetch_add(1, Ordering::AcqRel);
        if !kind.carries(count) {
            let call = Self::passing(What::Receive, kind, count, peer);
            let (message, _) = self.message(peer, self.rank, number);
            message.received.set(number, &call);
            self.ring(peer, self.rank);
            if let Some(sent) = message.sent.get(number) {
                self.agree(peer, self.rank, &sent, &call)?;
            }
        }
        Ok(number)
    }

    /// Waits for the message that [`Meeting::expect`] announced and takes it, if it carries values.
    pub fn receive(
        &self,
        peer: u32,
        number: u64,
        kind: Kind,
        count: u64,
        to: u64,
    ) -> Result<Option<bool>, String> {
        if !kind.carries(count) {
            return Ok(None);
        }
        let call = Self::passing(What::Receive, kind, count, peer);
        let (message, place) = self.message(peer, self.rank, number);
        self.await_message(peer, self.rank, number, &call, peer, &|| {
            message.sent.get(number).is_some()
        })?;
        if let Some(sent) = message.sent.get(number) {
            self.agree(peer, self.rank, &sent, &call)?;
        }
        let len = count * kind.bytes();
        let known = message.unknown.load(Ordering::Relaxed) == 0;
        let path = self.message_file(peer, self.rank, number);
        // SAFETY: the caller's buffer has room for what it says that it receives.
        unsafe {
            if !known {
                reduce::clear(to, len);
            } else if len as usize <= INLINE {
                reduce::copy(to, place, len);
            } else if let Ok(bytes) = fs::read(&path) {
                reduce::copy(to, bytes.as_ptr() as u64, len.min(bytes.len() as u64));
                let _ = fs::remove_file(path);
            }
        }
        message.received.set(number, &call);
        self.ring(peer, self.rank);
        Ok(Some(known))
    }

    fn passing(what: What, kind: Kind, count: u64, peer: u32) -> Call {
        Call {
            what,
            kind,
            count,
            root: peer,
            operation: Operation::SUM,
        }
    }

    fn ring(&self, from: u32, to: u32) {
        // SAFETY: atomics inside the file.
        let head: &PairHead = unsafe { self.file.at(self.pair(from, to)) };
        shared::wake(&head.signal);
    }

    fn await_message(
        &self,
        from: u32,
        to: u32,
        number: u64,
        call: &Call,
        peer: u32,
        done: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        // SAFETY: atomics inside the file.
        let head: &PairHead = unsafe { self.file.at(self.pair(from, to)) };
        board::wait(
            self.board,
            &head.signal,
            &|| {
                let way = if call.what == What::Send {
                    "to"
                } else {
                    "from"
                };
                format!(
                    "{call} {way} rank {} (message {})",
                    self.global(peer),
                    number + 1
                )
            },
            &|| self.absent(&|rank| rank == peer),
            done,
        )
    }

    fn agree(&self, from: u32, to: u32, sent: &Call, received: &Call) -> Result<(), String> {
        if (sent.kind, sent.count) == (received.kind, received.count) {
            return Ok(());
        }
        let (sender, receiver) = (self.global(from), self.global(to));
        let text = format!(
            "rank {sender} sent {} {} to rank {receiver}, which expected {} {}",
            sent.count,
            sent.kind.name(),
            received.count,
            received.kind.name()
        );
        Err(self.board.fail(Fault::Mismatch, sender, &text))
    }
}
