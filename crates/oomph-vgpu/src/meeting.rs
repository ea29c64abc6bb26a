//! The meeting of the ranks of one communicator: a file that all of them map.
//!
//! Collectives are numbered. Each has an entry in a ring, in which every rank writes its call; the
//! calls of later ranks are compared with the first one. Contributions that carry values lie in the
//! entry's payload. A rank that needs nothing from the others runs ahead of them, by the length of
//! the ring at most. Between each ordered pair of ranks there is a ring of messages.

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
/// Larger memory is returned to the system after each use.
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
    pub const fn comes_from_root(self) -> bool {
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

    /// Whether call `number`, or a later one of its place, has been written.
    fn has_reached(&self, number: u64) -> bool {
        self.number.load(Ordering::Acquire) > number
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
    /// Contributions with unknown values.
    unknown: AtomicU32,
    /// The contributions that readers need are complete.
    ready: AtomicU32,
    signal: AtomicU32,
    /// The first rank, plus one.
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
    /// Distinguishes its files from others'.
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

    /// Joins the meeting `id` and waits for the others.
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
            size,
            &|| format!("the creation of a communicator of {size} ranks"),
            &|| meeting.not_come(),
            &|| head.joined.load(Ordering::Acquire) >= size,
        )?;
        Ok(meeting)
    }

    fn head(&self) -> &'static Head {
        // SAFETY: the file begins with the head, which is made of atomics.
        unsafe { self.file.at(0) }
    }

    /// The slot of a member on the board plus one.
    fn member(&self, rank: u32) -> &'static AtomicU64 {
        // SAFETY: after the head the file has an atomic for each rank.
        unsafe { self.file.at(64 + rank as usize * 8) }
    }

    fn entry(&self, number: u64) -> &'static Entry {
        let index = (number % RING) as usize;
        // SAFETY: `index` is below the number of entries, which are made of atomics.
        unsafe {
            self.file
                .at(Self::entries(self.size as usize) + index * size_of::<Entry>())
        }
    }

    fn written(&self, number: u64, rank: u32) -> &'static Written {
        let index = (number % RING) as usize * self.size as usize + rank as usize;
        // SAFETY: `index` is below the number of calls, which are made of atomics.
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
        (
            // SAFETY: each pair has room for so many messages, whose heads are made of atomics.
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

    /// The members that have not arrived yet. Only ranks of the whole job are known before they arrive;
    /// for others, the first member waits for an unknown process.
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
    /// its values are; it is multiplied by `factor` first.
    pub fn call(
        &self,
        call: Call,
        from: u64,
        known: bool,
        factor: Option<f64>,
    ) -> Result<Ticket, String> {
        let number = self.next.fetch_add(1, Ordering::AcqRel);
        let entry = self.entry(number);
        let turn = number / RING;
        board::wait(
            self.board,
            &entry.signal,
            self.size,
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
        let gives = carries && (!call.what.comes_from_root() || call.root == self.rank);
        if gives {
            if known {
                let (at, len) = self.part(&call, self.rank);
                entry.payload.fetch_max(at + len, Ordering::Relaxed);
                // SAFETY: the caller's buffer has the size that the call states, and the payload
                // has room for all contributions, as `carries` has seen to.
                unsafe {
                    reduce::copy(self.payload(number) + at, from, len);
                    if let Some(factor) = factor {
                        let count = len / call.kind.bytes();
                        reduce::scale(call.kind, self.payload(number) + at, count, factor);
                    }
                }
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
        if last || (gives && call.what.comes_from_root()) {
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

    /// Copies the result of a collective to `to` and leaves it. Returns whether its values are known;
    /// `None` if there are none: at ranks that receive nothing, and for results that are too large.
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
        // A result with an unknown contribution is unknown.
        if !known {
            self.leave(number);
            // SAFETY: the caller's buffer has room for the result.
            unsafe { reduce::clear(to, len) };
            return Ok(Some(false));
        }
        self.await_entry(number, &call, call.what.comes_from_root(), &|| {
            entry.ready.load(Ordering::Acquire) == 1
        })?;
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

    /// Waits until all ranks have called, or `only_root`.
    fn await_entry(
        &self,
        number: u64,
        call: &Call,
        only_root: bool,
        done: &dyn Fn() -> bool,
    ) -> Result<(), String> {
        board::wait(
            self.board,
            &self.entry(number).signal,
            self.size,
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
        self.await_entry(ticket.number, &ticket.call, false, &|| self.is_over(ticket))
    }

    /// The ranks' calls of collective `number` differ: names the ranks in the minority.
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

    /// All-gathers one word `mine` per rank, for the library's own use.
    pub fn exchange(&self, what: What, mine: u64) -> Result<Vec<u64>, String> {
        let call = Call {
            what,
            kind: Kind::UINT64,
            count: 1,
            root: 0,
            operation: Operation::SUM,
        };
        let ticket = self.call(call, (&raw const mine) as u64, true, None)?;
        let mut all = vec![0_u64; self.size as usize];
        self.take_all(ticket, all.as_mut_ptr() as u64)?;
        Ok(all)
    }

    fn take_all(&self, ticket: Ticket, to: u64) -> Result<(), String> {
        let entry = self.entry(ticket.number);
        self.await_entry(ticket.number, &ticket.call, false, &|| {
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

    /// Sends a message to `peer`; waits only if many are already in flight.
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
            // A receiver that takes no values may have announced later messages already.
            number < MESSAGES || message.received.has_reached(before)
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
            } else {
                let bytes = fs::read(&path)
                    .map_err(|error| format!("cannot read a message of rank {peer}: {error}"))?;
                if bytes.len() as u64 != len {
                    return Err(format!("a message of rank {peer} is incomplete"));
                }
                reduce::copy(to, bytes.as_ptr() as u64, len);
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
        // SAFETY: each pair's room begins with its head, which is made of atomics.
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
        // SAFETY: each pair's room begins with its head, which is made of atomics.
        let head: &PairHead = unsafe { self.file.at(self.pair(from, to)) };
        board::wait(
            self.board,
            &head.signal,
            2,
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

#[cfg(test)]
mod tests {
    use super::*;

    const F32: Kind = Kind(7);
    const F64: Kind = Kind(8);

    /// Runs `body` as each of `size` ranks of one communicator, in threads, and gives what they return.
    fn together<T: Send>(
        name: &str,
        size: u32,
        body: impl Fn(&Meeting) -> Result<T, String> + Sync,
    ) -> Vec<Result<T, String>> {
        let board = Board::of_test(name);
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..size)
                .map(|rank| {
                    let body = &body;
                    scope.spawn(move || body(&Meeting::join(board, 7, rank, size)?))
                })
                .collect();
            let ended = ranks.into_iter().map(std::thread::ScopedJoinHandle::join);
            ended.map(|rank| rank.expect("no panic")).collect()
        })
    }

    fn call(what: What, kind: Kind, count: u64, root: u32) -> Call {
        Call {
            what,
            kind,
            count,
            root,
            operation: Operation::SUM,
        }
    }

    /// One collective over `f64`: what `rank` gives, and what it gets.
    fn one(
        meeting: &Meeting,
        what: What,
        root: u32,
        given: &[f64],
        get: usize,
    ) -> Result<(Vec<f64>, Option<bool>), String> {
        let size = meeting.size as usize;
        let count = match what {
            What::ReduceScatter | What::AllToAll | What::Scatter => given.len() / size,
            _ => given.len(),
        };
        let mut got = vec![-1.0; get];
        let call = call(what, F64, count as u64, root);
        let ticket = meeting.call(call, given.as_ptr() as u64, true, None)?;
        let known = meeting.take(ticket, got.as_mut_ptr() as u64)?;
        Ok((got, known))
    }

    #[test]
    fn each_collective_brings_what_it_promises() {
        let size = 3_usize;
        let ended = together("collectives", size as u32, |meeting| {
            let r = f64::from(meeting.rank);
            // More than the ring holds.
            for round in 0..100 {
                let own = [r + f64::from(round), 10.0 * r];
                let each: Vec<f64> = (0..size as u32)
                    .map(|to| 100.0 * r + f64::from(to))
                    .collect();
                let sum = 3.0 + 3.0 * f64::from(round);
                let all = |at: usize| (0..size).map(move |rank| 100.0 * rank as f64 + at as f64);
                let gathered: Vec<f64> = (0..size)
                    .flat_map(|rank| [rank as f64 + f64::from(round), 10.0 * rank as f64])
                    .collect();
                let mine = meeting.rank as usize;
                let wanted = [
                    (What::AllReduce, &own[..], vec![sum, 30.0]),
                    (What::AllGather, &own, gathered.clone()),
                    (What::Broadcast, &own, vec![1.0 + f64::from(round), 10.0]),
                    (What::ReduceScatter, &each, vec![all(mine).sum()]),
                    (What::AllToAll, &each, all(mine).collect()),
                    (What::Scatter, &each, vec![100.0 + r]),
                ];
                for (what, given, expected) in wanted {
                    let got = one(meeting, what, 1, given, expected.len())?;
                    assert_eq!(got, (expected, Some(true)), "{what:?} at rank {mine}");
                }
                for (what, expected) in [(What::Reduce, vec![sum, 30.0]), (What::Gather, gathered)]
                {
                    let (got, known) = one(meeting, what, 1, &own, expected.len())?;
                    assert_eq!(known, (mine == 1).then_some(true));
                    assert!(mine != 1 || got == expected, "{what:?}: {got:?}");
                }
            }
            Ok(())
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }

    #[test]
    fn an_unknown_contribution_makes_the_result_unknown() {
        let ended = together("unknown", 2, |meeting| {
            let (given, mut got) = ([1.0_f64], [5.0_f64]);
            let call = call(What::AllReduce, F64, 1, 0);
            let ticket = meeting.call(call, given.as_ptr() as u64, meeting.rank == 0, None)?;
            meeting.take(ticket, got.as_mut_ptr() as u64)
        });
        assert_eq!(ended, [Ok(Some(false)), Ok(Some(false))]);
    }

    #[test]
    fn each_rank_scales_its_own_contribution() {
        let ended = together("factor", 2, |meeting| {
            let (given, mut got) = ([3.0_f64, 4.0], [0.0_f64; 2]);
            let factor = Some(if meeting.rank == 0 { 10.0 } else { 0.5 });
            let call = call(What::AllReduce, F64, 2, 0);
            let ticket = meeting.call(call, given.as_ptr() as u64, true, factor)?;
            meeting.take(ticket, got.as_mut_ptr() as u64)?;
            Ok(got)
        });
        assert_eq!(ended, [Ok([31.5, 42.0]), Ok([31.5, 42.0])]);
    }

    #[test]
    fn the_rank_that_calls_something_else_is_named() {
        let ended = together("mismatch", 3, |meeting| {
            let count = if meeting.rank == 2 { 5 } else { 6 };
            let given = [0.0_f32; 6];
            let call = call(What::AllReduce, F32, count, 0);
            let ticket = meeting.call(call, given.as_ptr() as u64, true, None)?;
            meeting.settle(ticket)
        });
        // Threads of one process have one name on the board, so that ranks are not told apart here.
        let text =
            "called all_reduce (sum) of 6 float32 (operation 1 of a communicator of 3 ranks)";
        assert!(
            ended
                .iter()
                .all(|end| end.as_ref().is_err_and(|told| told.ends_with(text))),
            "{ended:?}"
        );
    }

    #[test]
    fn messages_arrive_in_order_however_long() {
        let counts = [1_u64, 32, 33, 5000];
        let ended = together("messages", 2, |meeting| {
            for round in 0..300 {
                let count = counts[round % counts.len()];
                if meeting.rank == 0 {
                    let given = vec![round as f64; count as usize];
                    meeting.send(1, F64, count, given.as_ptr() as u64, round % 7 != 0)?;
                } else {
                    let mut got = vec![-1.0_f64; count as usize];
                    let number = meeting.expect(0, F64, count)?;
                    let known = meeting.receive(0, number, F64, count, got.as_mut_ptr() as u64)?;
                    assert_eq!(known, Some(round % 7 != 0));
                    assert!(known == Some(false) || got == vec![round as f64; got.len()]);
                }
            }
            Ok(())
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }

    #[test]
    fn a_receiver_of_large_messages_may_be_far_ahead() {
        const LARGE: u64 = 1 << 20;
        let (rounds, there) = (3 * MESSAGES, AtomicU32::new(0));
        let ended = together("ahead", 2, |meeting| {
            if meeting.rank == 1 {
                for _ in 0..rounds {
                    meeting.expect(0, F32, LARGE)?;
                }
                there.store(1, Ordering::Release);
                return Ok(());
            }
            while there.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            (0..rounds).try_for_each(|_| meeting.send(1, F32, LARGE, 0, true))
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    }

    #[test]
    fn messages_of_unlike_length_are_told() {
        let ended = together("lengths", 2, |meeting| {
            if meeting.rank == 0 {
                let given = [0.0_f64; 3];
                meeting.send(1, F64, 3, given.as_ptr() as u64, true)?;
                return Ok(());
            }
            let mut got = [0.0_f64; 4];
            let number = meeting.expect(0, F64, 4)?;
            meeting
                .receive(0, number, F64, 4, got.as_mut_ptr() as u64)
                .map(|_| ())
        });
        let told = ended[1].as_ref().err().cloned().unwrap_or_default();
        // The rank is not checked: all threads of a process appear on the board as the first to join.
        assert!(told.contains(" sent 3 float64 to rank "), "{told}");
        assert!(told.ends_with("expected 4 float64"), "{told}");
    }
}
