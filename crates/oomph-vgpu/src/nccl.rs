//! NCCL: communicators that know their rank and size; collectives of a single process.
//!
//! Small results are what they would be if all ranks were alike, which is said.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::context::Charge;
use crate::device::{self, machine};
use crate::streams::opaque_handle;
use crate::sync::Mutex;
use crate::{export, ledger, put, runtime};

pub type Result = c_int;
const SUCCESS: Result = 0;
const INVALID_ARGUMENT: Result = 4;
const INVALID_USAGE: Result = 5;
const INTERNAL: Result = 3;

/// Names a communicator; C passes it by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

#[derive(Debug, Clone, Copy)]
struct Communicator {
    rank: c_int,
    size: c_int,
    device: u32,
    used: bool,
}

static COMMUNICATORS: std::sync::LazyLock<Mutex<HashMap<u64, Communicator>>> =
    std::sync::LazyLock::new(|| Mutex::new(HashMap::new()));

fn create(rank: c_int, size: c_int) -> u64 {
    let handle = opaque_handle();
    let communicator = Communicator {
        rank,
        size,
        device: device::current(),
        used: false,
    };
    COMMUNICATORS.lock().insert(handle, communicator);
    handle
}

/// The communicator, charged for at its first collective. Each rank passes on `bytes` of each
/// other rank's.
fn collective(handle: u64, stream: u64, bytes: u64) -> Option<Communicator> {
    let mut communicators = COMMUNICATORS.lock();
    let found = communicators.get_mut(&handle)?;
    let communicator = *found;
    if !found.used {
        found.used = true;
        drop(communicators);
        if communicator.size > 1 {
            machine()
                .costs
                .charge(communicator.device, Charge::NcclCommunicator);
            ledger::assume(
                "NCCL",
                "all ranks are taken to be alike: this rank's values stand for theirs",
            );
        }
    }
    let ranks = communicator.size.max(1) as u64;
    let passed = bytes as f64 * (ranks - 1) as f64;
    crate::kernels::enqueued(stream, machine().rates.collective(ranks, passed));
    Some(communicator)
}

/// Ranks of a communicator, at least one.
fn ranks(handle: u64) -> u64 {
    COMMUNICATORS
        .lock()
        .get(&handle)
        .map_or(1, |found| found.size.max(1) as u64)
}

/// Bytes of a `ncclDataType_t`.
const fn bytes(kind: c_int) -> u64 {
    match kind {
        4 | 5 | 8 => 8,
        6 | 9 => 2,
        0 | 1 | 10 | 11 => 1,
        _ => 4,
    }
}

export! {
    fn ncclGetVersion(version: *mut c_int) -> Result, or INTERNAL; {
        unsafe { put(version, 22_809) };
        SUCCESS
    }
    fn ncclGetUniqueId(out: *mut UniqueId) -> Result, or INTERNAL; {
        let mut id = [0_u8; 128];
        id[..8].copy_from_slice(&opaque_handle().to_le_bytes());
        id[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        unsafe { put(out, UniqueId(id)) };
        SUCCESS
    }
    fn ncclCommInitRank(out: *mut u64, size: c_int, _id: UniqueId, rank: c_int) -> Result, or INTERNAL; {
        unsafe { put(out, create(rank, size)) };
        SUCCESS
    }
    fn ncclCommInitRankConfig(out: *mut u64, size: c_int, _id: UniqueId, rank: c_int, _config: *mut c_void) -> Result, or INTERNAL; {
        unsafe { put(out, create(rank, size)) };
        SUCCESS
    }
    fn ncclCommInitRankScalable(out: *mut u64, size: c_int, rank: c_int, _ids: c_int, _id: *mut c_void, _config: *mut c_void) -> Result, or INTERNAL; {
        unsafe { put(out, create(rank, size)) };
        SUCCESS
    }
    fn ncclCommInitAll(out: *mut u64, size: c_int, _devices: *const c_int) -> Result, or INTERNAL; {
        for rank in 0..size {
            unsafe { put(out.add(rank as usize), create(rank, size)) };
        }
        SUCCESS
    }
    fn ncclCommSplit(parent: u64, color: c_int, key: c_int, out: *mut u64, _config: *mut c_void) -> Result, or INTERNAL; {
        let found = COMMUNICATORS.lock().get(&parent).copied();
        let Some(parent) = found else { return INVALID_ARGUMENT };
        if color < 0 {
            unsafe { put(out, 0) };
            return SUCCESS;
        }
        ledger::assume("ncclCommSplit", "the size of a split communicator is taken to be its parent's");
        unsafe { put(out, create(key.clamp(0, parent.size - 1), parent.size)) };
        SUCCESS
    }
    fn ncclCommDestroy(handle: u64) -> Result, or INTERNAL; {
        COMMUNICATORS.lock().remove(&handle);
        SUCCESS
    }
    fn ncclCommAbort(handle: u64) -> Result, or INTERNAL; {
        COMMUNICATORS.lock().remove(&handle);
        SUCCESS
    }
    fn ncclCommCount(handle: u64, out: *mut c_int) -> Result, or INTERNAL; {
        let communicators = COMMUNICATORS.lock();
        let Some(found) = communicators.get(&handle) else { return INVALID_ARGUMENT };
        unsafe { put(out, found.size) };
        SUCCESS
    }
    fn ncclCommUserRank(handle: u64, out: *mut c_int) -> Result, or INTERNAL; {
        let communicators = COMMUNICATORS.lock();
        let Some(found) = communicators.get(&handle) else { return INVALID_ARGUMENT };
        unsafe { put(out, found.rank) };
        SUCCESS
    }
    fn ncclCommGetAsyncError(_handle: u64, out: *mut Result) -> Result, or INTERNAL; {
        unsafe { put(out, SUCCESS) };
        SUCCESS
    }
    fn ncclAllReduce(from: u64, to: u64, count: usize, kind: c_int, _operation: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        if collective(handle, stream, 2 * count as u64 * bytes(kind) / ranks(handle)).is_none() {
            return INVALID_ARGUMENT;
        }
        if from != to {
            unsafe { runtime::copy(to, from, count * bytes(kind) as usize) };
        }
        SUCCESS
    }
    fn ncclReduce(from: u64, to: u64, count: usize, kind: c_int, _operation: c_int, _root: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        unsafe { ncclAllReduce(from, to, count, kind, 0, handle, stream) }
    }
    fn ncclBroadcast(from: u64, to: u64, count: usize, kind: c_int, _root: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        unsafe { ncclAllReduce(from, to, count, kind, 0, handle, stream) }
    }
    fn ncclBcast(_at: u64, count: usize, kind: c_int, _root: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        if collective(handle, stream, count as u64 * bytes(kind) / ranks(handle)).is_some() { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclAllGather(from: u64, to: u64, count: usize, kind: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        let Some(communicator) = collective(handle, stream, count as u64 * bytes(kind)) else { return INVALID_ARGUMENT };
        let len = count as u64 * bytes(kind);
        for rank in 0..communicator.size as u64 {
            if to + rank * len != from {
                unsafe { runtime::copy(to + rank * len, from, len as usize) };
            }
        }
        SUCCESS
    }
    fn ncclReduceScatter(from: u64, to: u64, count: usize, kind: c_int, _operation: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        let Some(communicator) = collective(handle, stream, count as u64 * bytes(kind)) else { return INVALID_ARGUMENT };
        let len = count as u64 * bytes(kind);
        unsafe { runtime::copy(to, from + communicator.rank as u64 * len, len as usize) };
        SUCCESS
    }
    fn ncclAlltoAll(from: u64, to: u64, count: usize, kind: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        let Some(communicator) = collective(handle, stream, count as u64 * bytes(kind)) else { return INVALID_ARGUMENT };
        unsafe { runtime::copy(to, from, count * bytes(kind) as usize * communicator.size as usize) };
        SUCCESS
    }
    fn ncclSend(_from: u64, count: usize, kind: c_int, _peer: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        if collective(handle, stream, count as u64 * bytes(kind) / ranks(handle)).is_some() { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclRecv(_to: u64, count: usize, kind: c_int, _peer: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        if collective(handle, stream, count as u64 * bytes(kind) / ranks(handle)).is_some() { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclGather(from: u64, to: u64, count: usize, kind: c_int, root: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        let Some(communicator) = collective(handle, stream, count as u64 * bytes(kind)) else { return INVALID_ARGUMENT };
        let len = count as u64 * bytes(kind);
        for rank in 0..communicator.size as u64 {
            if communicator.rank == root && to + rank * len != from {
                unsafe { runtime::copy(to + rank * len, from, len as usize) };
            }
        }
        SUCCESS
    }
    fn ncclScatter(from: u64, to: u64, count: usize, kind: c_int, root: c_int, handle: u64, stream: u64) -> Result, or INTERNAL; {
        let Some(communicator) = collective(handle, stream, count as u64 * bytes(kind)) else { return INVALID_ARGUMENT };
        let len = count as u64 * bytes(kind);
        if communicator.rank == root {
            unsafe { runtime::copy(to, from + communicator.rank as u64 * len, len as usize) };
        }
        SUCCESS
    }
    fn ncclPutSignal(_from: u64, count: usize, kind: c_int, _peer: c_int, _window: u64, _offset: usize, _signal: c_int, _context: c_int, _flags: c_uint, handle: u64, stream: u64) -> Result, or INTERNAL; {
        if collective(handle, stream, count as u64 * bytes(kind) / ranks(handle)).is_some() { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclSignal(_peer: c_int, _signal: c_int, _context: c_int, _flags: c_uint, handle: u64, stream: u64) -> Result, or INTERNAL; {
        if collective(handle, stream, 0).is_some() { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclWaitSignal(_count: c_int, _signals: *const c_void, handle: u64, stream: u64) -> Result, or INTERNAL; {
        if collective(handle, stream, 0).is_some() { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclCommGetUniqueId(_handle: u64, out: *mut UniqueId) -> Result, or INTERNAL; {
        unsafe { ncclGetUniqueId(out) }
    }
    fn ncclCommGrow(parent: u64, size: c_int, _id: *const UniqueId, rank: c_int, out: *mut u64, _config: *mut c_void) -> Result, or INTERNAL; {
        let found = COMMUNICATORS.lock().get(&parent).copied();
        // Those who were in it before keep their rank.
        let rank = if rank < 0 { found.map_or(0, |found| found.rank) } else { rank };
        unsafe { put(out, create(rank, size)) };
        SUCCESS
    }
    /// Memory that a communicator could give back: none is modelled.
    fn ncclCommMemStats(_handle: u64, _which: c_int, out: *mut u64) -> Result, or INTERNAL; {
        unsafe { put(out, 0) };
        SUCCESS
    }
    // Windows into the memory of other ranks are refused, as by a system without them.
    fn ncclWinGetUserPtr(_handle: u64, _window: u64, out: *mut u64) -> Result, or INTERNAL; {
        unsafe { put(out, 0) };
        INVALID_USAGE
    }
    fn ncclGetLsaMultimemDevicePointer() -> Result, or INTERNAL; { INVALID_USAGE }
    fn ncclGetPeerDevicePointer() -> Result, or INTERNAL; { INVALID_USAGE }
    fn ncclMemAlloc(out: *mut *mut c_void, size: usize) -> Result, or INTERNAL; {
        if unsafe { runtime::cudaMalloc(out, size) } == runtime::SUCCESS { SUCCESS } else { 1 }
    }
    fn ncclMemFree(at: *mut c_void) -> Result, or INTERNAL; {
        if unsafe { runtime::cudaFree(at) } == runtime::SUCCESS { SUCCESS } else { INVALID_ARGUMENT }
    }
    fn ncclGetErrorString(_status: Result) -> *const c_char, or std::ptr::null(); { c"no error".as_ptr() }
    fn ncclGetLastError(_handle: u64) -> *const c_char, or std::ptr::null(); { c"".as_ptr() }
}
