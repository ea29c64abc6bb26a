//! NCCL: communicators of this process, and the collectives that it calls.
//!
//! In a run of several ranks (`ranks.directory`, see [`crate::board`]) the ranks of a communicator
//! meet ([`crate::meeting`]): small and integral collectives pass real values; the others only compare
//! their sizes. A rank that runs alone assumes that the absent ranks behave as it does, and reports
//! the assumption.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::arguments::{In, Out, Text};
use crate::board::{self, Board};
use crate::context::Charge;
use crate::device::{self, machine};
use crate::meeting::{Call, Meeting, Ticket, What};
use crate::reduce::{self, Kind, Operation};
use crate::streams::opaque_handle;
use crate::sync::Mutex;
use crate::{export, ledger, runtime, streams, watchdog};

pub type Result = c_int;
const SUCCESS: Result = 0;
const SYSTEM: Result = 2;
const INVALID_ARGUMENT: Result = 4;
const INVALID_USAGE: Result = 5;
const REMOTE: Result = 6;
const INTERNAL: Result = 3;

/// Ranks between which NCCL's memory was measured.
const MEASURED_RANKS: c_int = 2;
/// Operations that programs make begin here (`ncclNumOps`).
const OWN_OPERATIONS: u32 = 5;

/// Names a communicator; C passes it by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

#[derive(Debug, Clone)]
struct Communicator {
    rank: c_int,
    size: c_int,
    device: u32,
    /// What was charged for so far.
    charged: HashSet<Use>,
    meeting: Option<Arc<Meeting>>,
}

/// What a communicator is used for: each takes memory of its own at its first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Use {
    Collective,
    Broadcast,
    /// Messages to a rank.
    Send(u32),
    /// Messages from a rank.
    Receive(u32),
}

impl Use {
    /// What a call at `rank` of `size` uses. A message to oneself is only a copy.
    fn of(what: What, root: u32, rank: u32, size: u32) -> Vec<Self> {
        let others = (0..size).filter(|&other| other != rank);
        let is_root = root == rank;
        match what {
            What::Send | What::Gather if !is_root => vec![Self::Send(root)],
            What::Receive | What::Scatter if !is_root => vec![Self::Receive(root)],
            What::Send | What::Receive => Vec::new(),
            // NCCL makes these of messages.
            What::Scatter => others.map(Self::Send).collect(),
            What::Gather => others.map(Self::Receive).collect(),
            What::AllToAll => others
                .flat_map(|other| [Self::Send(other), Self::Receive(other)])
                .collect(),
            What::Broadcast => vec![Self::Collective, Self::Broadcast],
            _ => vec![Self::Collective],
        }
    }

    const fn charges(self, alone: bool) -> &'static [Charge] {
        match self {
            Self::Collective if alone => &[Charge::NcclFirstCollective, Charge::NcclAlone],
            Self::Collective => &[Charge::NcclFirstCollective, Charge::NcclCollective],
            Self::Broadcast => &[Charge::NcclBroadcast],
            // In a pipeline, which has no collectives, messages took what those take once.
            Self::Send(_) => &[
                Charge::NcclFirstCollective,
                Charge::NcclBroadcast,
                Charge::NcclFirstMessage,
                Charge::NcclSend,
            ],
            Self::Receive(_) => &[
                Charge::NcclFirstCollective,
                Charge::NcclBroadcast,
                Charge::NcclFirstMessage,
                Charge::NcclReceive,
            ],
        }
    }
}

static COMMUNICATORS: std::sync::LazyLock<Mutex<HashMap<u64, Communicator>>> =
    std::sync::LazyLock::new(|| Mutex::new(HashMap::new()));
/// What operations of the program's own multiply by.
static FACTORS: Mutex<Vec<f64>> = Mutex::new(Vec::new());
/// Marks of collectives after which this process continued without waiting for the others.
static OPEN: Mutex<VecDeque<(u64, Arc<Meeting>, Ticket)>> = Mutex::new(VecDeque::new());
static MARKS: AtomicU64 = AtomicU64::new(0);
/// Unclaimed results of grouped calls: their addresses, and whether they are known.
static ARRIVALS: Mutex<VecDeque<(u64, bool)>> = Mutex::new(VecDeque::new());
/// The most that are kept.
const ARRIVALS_KEPT: usize = 4096;
static LAST_ERROR: OnceLock<CString> = OnceLock::new();

thread_local! {
    /// Whether the values that the thread's next collectives contribute are known.
    static OFFERED: Cell<bool> = const { Cell::new(true) };
    /// Whether the thread is inside one of PyTorch's collective operators.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// What the collectives inside it gave: 1 known values, 2 unknown ones.
    static TAKEN: Cell<c_int> = const { Cell::new(0) };
    static GROUP: RefCell<(u32, Vec<Act>)> = const { RefCell::new((0, Vec::new())) };
}

/// Keeps a failure for `ncclGetLastError`.
fn failed(text: String) -> Result {
    LAST_ERROR.get_or_init(|| CString::new(text).unwrap_or_default());
    REMOTE
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Makes a communicator; with an id its ranks meet.
fn create(out: Out<u64>, rank: c_int, size: c_int, id: Option<u64>) -> Result {
    if size < 1 || rank < 0 || rank >= size {
        return INVALID_ARGUMENT;
    }
    let meeting = match (board::get(), id) {
        (Some(board), Some(id)) if size > 1 => {
            let id = hash((id, size));
            match Meeting::join(board, id, rank as u32, size as u32) {
                Ok(meeting) => Some(Arc::new(meeting)),
                Err(text) => return failed(text),
            }
        }
        _ => None,
    };
    let handle = opaque_handle();
    let communicator = Communicator {
        rank,
        size,
        device: device::current(),
        charged: HashSet::new(),
        meeting,
    };
    let costs = &machine().costs;
    // A communicator is known to be the first by what is charged once.
    costs.charge(communicator.device, Charge::NcclFirst);
    costs.charge(communicator.device, Charge::NcclCommunicator);
    if size > MEASURED_RANKS {
        ledger::assume(
            "ncclCommInitRank",
            "NCCL's memory was measured between two GPUs; it is assumed to be the same between more",
        );
    }
    COMMUNICATORS.lock().insert(handle, communicator);
    out.put(handle);
    SUCCESS
}

/// The communicator, charged for at its first use for each purpose. Each rank passes on `bytes` of
/// each other rank's.
fn used(handle: u64, what: What, root: u32, stream: u64, bytes: u64) -> Option<Communicator> {
    let mut communicators = COMMUNICATORS.lock();
    let found = communicators.get_mut(&handle)?;
    let first = found.charged.is_empty();
    let new: Vec<Use> = Use::of(what, root, found.rank as u32, found.size as u32)
        .into_iter()
        .filter(|purpose| found.charged.insert(*purpose))
        .collect();
    let communicator = found.clone();
    drop(communicators);
    for purpose in new {
        for charge in purpose.charges(communicator.size == 1) {
            machine().costs.charge(communicator.device, *charge);
        }
    }
    if first && communicator.size > 1 && communicator.meeting.is_none() {
        ledger::assume(
            "NCCL",
            "all ranks are assumed to be alike: this rank's values stand for theirs",
        );
    }
    let ranks = communicator.size.max(1) as u64;
    let passed = bytes as f64 * (ranks - 1) as f64;
    let time = machine().rates.collective(ranks, passed);
    crate::work::note(crate::work::Work::Fixed {
        nanoseconds: time.as_nanos() as u64,
        what: "collective",
    });
    crate::kernels::enqueued(stream, time);
    Some(communicator)
}

/// A call as it waits for its group to end.
#[derive(Debug)]
struct Act {
    communicator: Communicator,
    call: Call,
    /// The caller's buffers: valid until the act has run, and of the size that the call states.
    from: u64,
    to: u64,
    stream: u64,
    known: bool,
    /// What an operation of the program's own multiplies by.
    factor: Option<f64>,
}

impl Act {
    const fn is_message(&self) -> bool {
        matches!(self.call.what, What::Send | What::Receive)
    }
}

/// Does what was called, at once or when its group ends.
fn perform(
    what: What,
    from: u64,
    to: u64,
    count: usize,
    kind: c_int,
    operation: c_int,
    root: c_int,
    handle: u64,
    stream: u64,
) -> Result {
    let call = Call {
        what,
        kind: Kind(kind as u8),
        count: count as u64,
        root: root as u32,
        // Operations of the program's own have a number in each process; they only scale.
        operation: Operation((operation as u32).min(OWN_OPERATIONS)),
    };
    let len = call.count * call.kind.bytes();
    watchdog::catch_up();
    let ranks = COMMUNICATORS
        .lock()
        .get(&handle)
        .map_or(1, |found| found.size.max(1) as u64);
    let passed = match what {
        What::AllReduce => 2 * len / ranks,
        What::AllGather | What::ReduceScatter | What::AllToAll | What::Gather | What::Scatter => {
            len
        }
        _ => len / ranks,
    };
    let Some(communicator) = used(handle, what, root as u32, stream, passed) else {
        return INVALID_ARGUMENT;
    };
    watchdog::called(handle, stream);
    if root < 0 || root >= communicator.size.max(1) {
        return INVALID_ARGUMENT;
    }
    let act = Act {
        communicator,
        call,
        from,
        to,
        stream,
        known: OFFERED.get(),
        factor: (operation as u32)
            .checked_sub(OWN_OPERATIONS)
            .and_then(|index| FACTORS.lock().get(index as usize).copied()),
    };
    let alone = GROUP.with_borrow_mut(|(depth, acts)| {
        if *depth == 0 {
            return Some(act);
        }
        acts.push(act);
        None
    });
    match alone.map_or(Ok(()), |act| run(&[act], false)) {
        Ok(()) => SUCCESS,
        Err(text) => failed(text),
    }
}

/// Runs calls in their order, except that no message waits behind anything.
fn run(acts: &[Act], grouped: bool) -> std::result::Result<(), String> {
    if acts.is_empty() {
        return Ok(());
    }
    if let Some(failure) = board::get().and_then(Board::failure) {
        return Err(failure);
    }
    let mut expected = HashMap::new();
    for (index, act) in acts.iter().enumerate().filter(|(_, act)| act.is_message()) {
        let Some(meeting) = &act.communicator.meeting else {
            continue;
        };
        let Call {
            root, kind, count, ..
        } = act.call;
        if act.call.what == What::Send {
            meeting.send(root, kind, count, act.from, act.known)?;
        } else {
            expected.insert(index, meeting.expect(root, kind, count)?);
        }
    }
    for (index, act) in acts.iter().enumerate() {
        let Call {
            root, kind, count, ..
        } = act.call;
        let known = match &act.communicator.meeting {
            None => scaled(act, alike(act, acts)),
            Some(meeting) => match expected.get(&index) {
                Some(&number) => meeting.receive(root, number, kind, count, act.to)?,
                None if act.is_message() => None,
                None => collective(act, meeting)?,
            },
        };
        if let Some(known) = known {
            TAKEN.set(TAKEN.get() | if known { 1 } else { 2 });
            if grouped {
                let mut arrivals = ARRIVALS.lock();
                arrivals.push_back((act.to, known));
                if arrivals.len() > ARRIVALS_KEPT {
                    arrivals.pop_front();
                }
            }
        }
    }
    Ok(())
}

/// Multiplies what ranks that are all alike have given.
fn scaled(act: &Act, known: Option<bool>) -> Option<bool> {
    if let (Some(_), Some(factor)) = (known, act.factor) {
        // SAFETY: the result, of the size that the call states.
        unsafe { reduce::scale(act.call.kind, act.to, act.call.count, factor) };
    }
    known
}

fn collective(act: &Act, meeting: &Arc<Meeting>) -> std::result::Result<Option<bool>, String> {
    let ticket = meeting.call(act.call, act.from, act.known, act.factor)?;
    let mark = MARKS.fetch_add(1, Ordering::AcqRel) + 1;
    streams::mark(device::current(), act.stream, mark);
    let known = meeting.take(ticket, act.to)?;
    if known != Some(true) {
        let mut open = OPEN.lock();
        while open
            .front()
            .is_some_and(|(_, meeting, ticket)| meeting.is_over(*ticket))
        {
            open.pop_front();
        }
        open.push_back((mark, meeting.clone(), ticket));
    }
    Ok(known)
}

/// The host waits for collectives up to `mark`: all of their ranks must come.
pub fn settle(mark: u64) -> bool {
    loop {
        let first = {
            let mut open = OPEN.lock();
            match open.front() {
                Some((number, ..)) if *number <= mark => open.pop_front(),
                _ => None,
            }
        };
        let Some((_, meeting, ticket)) = first else {
            return true;
        };
        if let Err(text) = meeting.settle(ticket) {
            failed(text);
            return false;
        }
    }
}

/// The result of a call if all ranks are like this one.
fn alike(act: &Act, acts: &[Act]) -> Option<bool> {
    let (call, from, to) = (&act.call, act.from, act.to);
    let len = call.count * call.kind.bytes();
    let (rank, size) = (act.communicator.rank as u64, act.communicator.size as u64);
    let whole = match call.what {
        What::AllGather | What::Gather | What::AllToAll => call.count * size,
        _ => call.count,
    };
    if !call.kind.carries(whole) {
        return None;
    }
    let is_root = u64::from(call.root) == rank;
    // SAFETY: the caller's buffers have the sizes that the call states.
    unsafe {
        match call.what {
            What::AllReduce
                if call.operation == Operation::SUM || call.operation.0 >= OWN_OPERATIONS =>
            {
                reduce::reduce(
                    call.kind,
                    Operation::SUM,
                    from,
                    0,
                    size as u32,
                    to,
                    call.count,
                );
            }
            What::Reduce if !is_root => return None,
            What::AllReduce | What::Reduce | What::Broadcast => reduce::copy(to, from, len),
            What::AllGather => (0..size).for_each(|rank| reduce::copy(to + rank * len, from, len)),
            What::Gather if is_root => {
                (0..size).for_each(|rank| reduce::copy(to + rank * len, from, len));
            }
            What::ReduceScatter => {
                reduce::reduce(
                    call.kind,
                    call.operation,
                    from + rank * len,
                    0,
                    size as u32,
                    to,
                    call.count,
                );
            }
            What::AllToAll => reduce::copy(to, from, len * size),
            What::Scatter if is_root => reduce::copy(to, from + rank * len, len),
            What::Receive => {
                // What is sent to a rank like this one would have come from there.
                let twin = acts.iter().find(|other| {
                    other.call.what == What::Send
                        && (other.call.root, other.call.kind, other.call.count)
                            == (call.root, call.kind, call.count)
                });
                let Some(twin) = twin else {
                    reduce::clear(to, len);
                    return Some(false);
                };
                reduce::copy(to, twin.from, len);
            }
            _ => return None,
        }
    }
    Some(act.known)
}

/// Whether the thread runs a collective operator: copies inside it are part of what is computed.
pub fn is_inside() -> bool {
    INSIDE.get()
}

export! {
    /// A collective operator of PyTorch begins on this thread; `known` says whether the values that
    /// it contributes are.
    fn oomph_vgpu_offer(known: c_int) -> (), or (); {
        OFFERED.set(known != 0);
        INSIDE.set(true);
        TAKEN.set(0);
    }
    /// It has ended. Returns 1 if values came that are known, plus 2 if some came that are not.
    fn oomph_vgpu_taken() -> c_int, or 0; {
        OFFERED.set(true);
        INSIDE.set(false);
        TAKEN.get()
    }
    /// From now on PyTorch's watchdog finds no more collectives done, or all.
    fn oomph_vgpu_hold(on: c_int) -> (), or (); {
        if on != 0 { watchdog::hold() } else { watchdog::release() }
    }
    /// PyTorch's watchdog goes on, and finds all collectives done that were called so far.
    fn oomph_vgpu_look() -> (), or (); { watchdog::look_at_all(); }
    /// The next result of grouped calls: its address. Returns 1 if it is known, 0 if not, -1 if there
    /// is none.
    fn oomph_vgpu_arrival(at: Out<u64>) -> c_int, or -1; {
        let Some((address, known)) = ARRIVALS.lock().pop_front() else { return -1 };
        at.put(address);
        c_int::from(known)
    }
    /// Sets this process's rank in the whole job; -1 for unknown.
    fn oomph_vgpu_join(rank: c_int) -> (), or (); {
        if let Some(board) = board::get() {
            board.mine();
            if rank >= 0 {
                board.i_am(rank);
            }
        }
    }
    /// Records how this process ended: whether it `failed`, and a short text.
    fn oomph_vgpu_leave(failed: c_int, how: Text) -> (), or (); {
        if let (Some(board), Some(how)) = (board::get(), how.get()) {
            board.leave(failed != 0, &how.to_string_lossy());
        }
    }
    fn ncclGetVersion(version: Out<c_int>) -> Result, or INTERNAL; {
        version.put(22_809);
        SUCCESS
    }
    fn ncclGetUniqueId(out: Out<UniqueId>) -> Result, or INTERNAL; {
        let mut id = [0_u8; 128];
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        id[..8].copy_from_slice(&opaque_handle().to_le_bytes());
        id[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        id[12..28].copy_from_slice(&now.as_nanos().to_le_bytes());
        out.put(UniqueId(id));
        SUCCESS
    }
    fn ncclCommInitRank(out: Out<u64>, size: c_int, id: UniqueId, rank: c_int) -> Result, or INTERNAL; {
        create(out, rank, size, Some(hash(id.0)))
    }
    fn ncclCommInitRankConfig(out: Out<u64>, size: c_int, id: UniqueId, rank: c_int, _config: *mut c_void) -> Result, or INTERNAL; {
        create(out, rank, size, Some(hash(id.0)))
    }
    fn ncclCommInitRankScalable(out: Out<u64>, size: c_int, rank: c_int, _ids: c_int, id: In<UniqueId>, _config: *mut c_void) -> Result, or INTERNAL; {
        create(out, rank, size, id.get().map(|id| hash(id.0)))
    }
    unsafe fn ncclCommInitAll(out: *mut u64, size: c_int, devices: *const c_int) -> Result, or INTERNAL; {
        let before = device::current();
        for rank in 0..size {
            // SAFETY: the caller gives as many devices as the size states, or none.
            let index = if devices.is_null() { rank } else { unsafe { devices.add(rank as usize).read_unaligned() } };
            device::set_current(index);
            // SAFETY: the caller gives as many outputs.
            let out = unsafe { Out::new(out.add(rank as usize)) };
            let status = create(out, rank, size, None);
            if status != SUCCESS {
                return status;
            }
        }
        device::set_current(before as c_int);
        SUCCESS
    }
    fn ncclCommSplit(parent: u64, color: c_int, key: c_int, out: Out<u64>, _config: *mut c_void) -> Result, or INTERNAL; {
        let found = COMMUNICATORS.lock().get(&parent).cloned();
        let Some(parent) = found else { return INVALID_ARGUMENT };
        let Some(meeting) = &parent.meeting else {
            if color < 0 {
                out.put(0);
                return SUCCESS;
            }
            if parent.size > 1 {
                ledger::assume("ncclCommSplit", "the size of a split communicator is assumed to be its parent's");
            }
            return create(out, key.clamp(0, parent.size - 1), parent.size, None);
        };
        let mine = u64::from(color as u32) << 32 | u64::from(key as u32);
        let all = match meeting.exchange(What::Split, mine) {
            Ok(all) => all,
            Err(text) => return failed(text),
        };
        if color < 0 {
            out.put(0);
            return SUCCESS;
        }
        let mut members: Vec<(c_int, usize)> = all
            .iter()
            .enumerate()
            .filter(|(_, told)| (**told >> 32) as u32 == color as u32)
            .map(|(rank, told)| (*told as u32 as c_int, rank))
            .collect();
        members.sort_unstable();
        let rank = members.iter().position(|&(_, rank)| rank == parent.rank as usize).unwrap_or(0);
        let id = hash((meeting.id, meeting.operations(), color));
        create(out, rank as c_int, members.len() as c_int, Some(id))
    }
    unsafe fn ncclCommShrink(parent: u64, excluded: *const c_int, count: c_int, out: Out<u64>, _config: *mut c_void, _flags: c_int) -> Result, or INTERNAL; {
        let found = COMMUNICATORS.lock().get(&parent).cloned();
        let Some(parent) = found else { return INVALID_ARGUMENT };
        // SAFETY: the caller gives so many ranks.
        let excluded: Vec<c_int> = (0..count as usize).map(|index| unsafe { excluded.add(index).read_unaligned() }).collect();
        let kept: Vec<c_int> = (0..parent.size).filter(|rank| !excluded.contains(rank)).collect();
        let Some(rank) = kept.iter().position(|&rank| rank == parent.rank) else { return INVALID_ARGUMENT };
        let id = parent.meeting.as_ref().map(|meeting| hash((meeting.id, meeting.operations(), &kept)));
        create(out, rank as c_int, kept.len() as c_int, id)
    }
    fn ncclCommFinalize(handle: u64) -> Result, or INTERNAL; {
        watchdog::let_go(handle);
        SUCCESS
    }
    fn ncclCommDestroy(handle: u64) -> Result, or INTERNAL; {
        watchdog::let_go(handle);
        COMMUNICATORS.lock().remove(&handle);
        SUCCESS
    }
    fn ncclCommAbort(handle: u64) -> Result, or INTERNAL; {
        watchdog::let_go(handle);
        let aborted = COMMUNICATORS.lock().remove(&handle).and_then(|found| found.meeting);
        if let Some(aborted) = aborted {
            // No rank waits for its unfinished calls.
            OPEN.lock().retain(|(_, meeting, _)| meeting.id != aborted.id);
        }
        SUCCESS
    }
    fn ncclCommCount(handle: u64, out: Out<c_int>) -> Result, or INTERNAL; {
        let communicators = COMMUNICATORS.lock();
        let Some(found) = communicators.get(&handle) else { return INVALID_ARGUMENT };
        out.put(found.size);
        SUCCESS
    }
    fn ncclCommUserRank(handle: u64, out: Out<c_int>) -> Result, or INTERNAL; {
        let communicators = COMMUNICATORS.lock();
        let Some(found) = communicators.get(&handle) else { return INVALID_ARGUMENT };
        out.put(found.rank);
        SUCCESS
    }
    fn ncclCommGetAsyncError(_handle: u64, out: Out<Result>) -> Result, or INTERNAL; {
        if watchdog::is_this_thread() {
            watchdog::goes_on();
        }
        out.put(SUCCESS);
        SUCCESS
    }
    fn ncclGroupStart() -> Result, or INTERNAL; {
        GROUP.with_borrow_mut(|(depth, _)| *depth += 1);
        SUCCESS
    }
    fn ncclGroupEnd() -> Result, or INTERNAL; {
        let acts = GROUP.with_borrow_mut(|(depth, acts)| {
            if *depth == 0 {
                return None;
            }
            *depth -= 1;
            Some(if *depth == 0 { std::mem::take(acts) } else { Vec::new() })
        });
        let Some(acts) = acts else { return INVALID_USAGE };
        match run(&acts, true) {
            Ok(()) => SUCCESS,
            Err(text) => failed(text),
        }
    }
    unsafe fn ncclRedOpCreatePreMulSum(out: Out<c_int>, scalar: *const c_void, kind: c_int, _residence: c_int, _handle: u64) -> Result, or INTERNAL; {
        let mut factors = FACTORS.lock();
        // SAFETY: the caller gives one element of this type; device memory can be read here.
        factors.push(unsafe { reduce::scalar(Kind(kind as u8), scalar as u64) });
        out.put((OWN_OPERATIONS as usize + factors.len() - 1) as c_int);
        SUCCESS
    }
    fn ncclRedOpDestroy(_operation: c_int, _handle: u64) -> Result, or INTERNAL; { SUCCESS }
    unsafe fn ncclAllReduce(from: u64, to: u64, count: usize, kind: c_int, operation: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::AllReduce, from, to, count, kind, operation, 0, handle, stream)
    }
    unsafe fn ncclReduce(from: u64, to: u64, count: usize, kind: c_int, operation: c_int, root: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::Reduce, from, to, count, kind, operation, root, handle, stream)
    }
    unsafe fn ncclBroadcast(from: u64, to: u64, count: usize, kind: c_int, root: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::Broadcast, from, to, count, kind, 0, root, handle, stream)
    }
    unsafe fn ncclBcast(at: u64, count: usize, kind: c_int, root: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::Broadcast, at, at, count, kind, 0, root, handle, stream)
    }
    unsafe fn ncclAllGather(from: u64, to: u64, count: usize, kind: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::AllGather, from, to, count, kind, 0, 0, handle, stream)
    }
    unsafe fn ncclReduceScatter(from: u64, to: u64, count: usize, kind: c_int, operation: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::ReduceScatter, from, to, count, kind, operation, 0, handle, stream)
    }
    unsafe fn ncclAlltoAll(from: u64, to: u64, count: usize, kind: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::AllToAll, from, to, count, kind, 0, 0, handle, stream)
    }
    unsafe fn ncclSend(from: u64, count: usize, kind: c_int, peer: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::Send, from, 0, count, kind, 0, peer, handle, stream)
    }
    unsafe fn ncclRecv(to: u64, count: usize, kind: c_int, peer: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::Receive, 0, to, count, kind, 0, peer, handle, stream)
    }
    unsafe fn ncclGather(from: u64, to: u64, count: usize, kind: c_int, root: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::Gather, from, to, count, kind, 0, root, handle, stream)
    }
    unsafe fn ncclScatter(from: u64, to: u64, count: usize, kind: c_int, root: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        perform(What::Scatter, from, to, count, kind, 0, root, handle, stream)
    }
    // One-sided signals carry nothing here.
    fn ncclPutSignal(_from: u64, count: usize, kind: c_int, peer: c_int, _window: u64, _offset: usize, _signal: c_int, _context: c_int, _flags: c_uint, handle: u64, stream: u64) -> Result, or INTERNAL; {
        if used(handle, What::Send, peer as u32, stream, count as u64 * Kind(kind as u8).bytes()).is_some() { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclSignal(peer: c_int, _signal: c_int, _context: c_int, _flags: c_uint, handle: u64, stream: u64) -> Result, or INTERNAL; {
        if used(handle, What::Send, peer as u32, stream, 0).is_some() { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclWaitSignal(_count: c_int, _signals: *const c_void, handle: u64, _stream: u64) -> Result, or INTERNAL; {
        if COMMUNICATORS.lock().contains_key(&handle) { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclCommGetUniqueId(_handle: u64, out: Out<UniqueId>) -> Result, or INTERNAL; {
        ncclGetUniqueId(out)
    }
    fn ncclCommGrow(parent: u64, size: c_int, _id: *const UniqueId, rank: c_int, out: Out<u64>, _config: *mut c_void) -> Result, or INTERNAL; {
        let found = COMMUNICATORS.lock().get(&parent).cloned();
        // Existing members keep their rank.
        let rank = if rank < 0 { found.map_or(0, |found| found.rank) } else { rank };
        ledger::assume("ncclCommGrow", "the ranks of a communicator that grew are assumed to be alike");
        create(out, rank, size, None)
    }
    /// Memory that a communicator could give back: none is modelled.
    fn ncclCommMemStats(_handle: u64, _which: c_int, out: Out<u64>) -> Result, or INTERNAL; {
        out.put(0);
        SUCCESS
    }
    // Windows into the memory of other ranks are refused, as by a system without them.
    fn ncclWinGetUserPtr(_handle: u64, _window: u64, out: Out<u64>) -> Result, or INTERNAL; {
        out.put(0);
        INVALID_USAGE
    }
    fn ncclGetLsaMultimemDevicePointer() -> Result, or INTERNAL; { INVALID_USAGE }
    fn ncclGetPeerDevicePointer() -> Result, or INTERNAL; { INVALID_USAGE }
    fn ncclMemAlloc(out: Out<*mut c_void>, size: usize) -> Result, or INTERNAL; {
        if runtime::cudaMalloc(out, size) == runtime::SUCCESS { SUCCESS } else { 1 }
    }
    fn ncclMemFree(at: *mut c_void) -> Result, or INTERNAL; {
        if runtime::cudaFree(at) == runtime::SUCCESS { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclGetErrorString(status: Result) -> *const c_char, or std::ptr::null(); {
        let text = match status {
            SUCCESS => c"no error",
            SYSTEM => c"unhandled system error",
            INVALID_ARGUMENT => c"invalid argument",
            INVALID_USAGE => c"invalid usage",
            REMOTE => c"remote process exited or there was a network error",
            _ => c"internal error",
        };
        text.as_ptr()
    }
    fn ncclGetLastError(_handle: u64) -> *const c_char, or std::ptr::null(); {
        LAST_ERROR.get().map_or(c"".as_ptr(), |text| text.as_ptr())
    }
}
