//! Stream-ordered memory pools (`cudaMallocAsync`), which PyTorch's backend of that name allocates from.
//!
//! What was observed on an H200 (driver 580, `bench/gpu/results/malloc_async.jsonl`) and is modelled here:
//! - a pool is one range of addresses, backed by memory in units of 32 MiB;
//! - requests are aligned to 512 bytes and go into the smallest hole that is large enough, the end of the range being the
//!   largest;
//! - where memory is missing behind a block, units that are free elsewhere move there before new ones are taken;
//! - the used bytes are those that were asked for, the reserved ones whole units;
//! - units are given back, from the top, when the host waits for the GPU and more than the release threshold is reserved
//!   (PyTorch's threshold has no limit), or when the pool is trimmed.
//!
//! Memory that was freed on one stream is reused on another at once, as if the first were never late.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::arguments::Out;
use crate::device::{self, Device};
use crate::export;
use crate::memory::{DeviceMemory, Refusal, round_up};
use crate::runtime::{
    Error, INVALID_VALUE, MEMORY_ALLOCATION, SUCCESS, UNKNOWN, check, fail, on_device,
};
use crate::sync::Mutex;

/// The device's default pool, which PyTorch uses.
const DEFAULT: u64 = 0x10;
/// Pools are backed in units of this size.
const UNIT: u64 = 32 << 20;
/// Alignment of blocks.
const ALIGNMENT: u64 = 512;

/// Indices of `cudaMemPoolAttr`.
const RELEASE_THRESHOLD: c_int = 4;
const RESERVED_CURRENT: c_int = 5;
const RESERVED_HIGH: c_int = 6;
const USED_CURRENT: c_int = 7;
const USED_HIGH: c_int = 8;

/// What happened to a pool, as the recorder reads it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PoolEvent {
    /// A [`Kind`].
    kind: u64,
    address: u64,
    /// Bytes, as asked for.
    size: u64,
    /// The scope that the recorder had named for this thread.
    scope: i64,
    /// Since recording began.
    nanoseconds: u64,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Allocated,
    Freed,
    Backed,
    Released,
    Refused,
}

/// The history of the default pools, while somebody wants it.
static HISTORY: Mutex<Vec<PoolEvent>> = Mutex::new(Vec::new());
static RECORDING: AtomicBool = AtomicBool::new(false);
static BEGAN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

thread_local! {
    /// What the recorder calls the operator that runs in this thread.
    static SCOPE: Cell<i64> = const { Cell::new(-1) };
}

fn note(kind: Kind, address: u64, size: u64) {
    if RECORDING.load(Ordering::Relaxed) {
        HISTORY.lock().push(PoolEvent {
            kind: kind as u64,
            address,
            size,
            scope: SCOPE.get(),
            nanoseconds: u64::try_from(BEGAN.elapsed().as_nanos()).unwrap_or(u64::MAX),
        });
    }
}

#[derive(Debug, Default)]
struct Pool {
    threshold: u64,
    /// Its addresses: start and length; none before the first request.
    range: Option<(u64, u64)>,
    /// Start → length.
    holes: BTreeMap<u64, u64>,
    /// Start → length and what was asked for.
    taken: BTreeMap<u64, (u64, u64)>,
    /// The starts of the units that memory backs.
    backed: BTreeSet<u64>,
    reserved_high: u64,
    used: u64,
    used_high: u64,
}

/// By device and handle.
static POOLS: Mutex<BTreeMap<(u32, u64), Pool>> = Mutex::new(BTreeMap::new());

impl Pool {
    fn reserved(&self) -> u64 {
        self.backed.len() as u64 * UNIT
    }

    fn take(&mut self, device: &Device, asked: u64) -> Result<u64, Refusal> {
        if self.range.is_none() {
            let mut memory = device.memory.lock();
            let length = round_up(memory.total, UNIT);
            let start = memory.reserve(length)?;
            self.range = Some((start, length));
            self.holes.insert(start, length);
        }
        let size = round_up(asked.max(1), ALIGNMENT);
        let fit = self.holes.iter().filter(|&(_, &length)| length >= size);
        let (&at, &length) = fit
            .min_by_key(|&(&at, &length)| (length, at))
            .ok_or(Refusal::OutOfMemory)?;
        self.back(device, at, size)?;
        self.holes.remove(&at);
        if length > size {
            self.holes.insert(at + size, length - size);
        }
        self.taken.insert(at, (size, asked));
        self.used += asked;
        self.used_high = self.used_high.max(self.used);
        note(Kind::Allocated, at, asked);
        Ok(at)
    }

    /// Backs the addresses with memory: all units that lack it, or none.
    fn back(&mut self, device: &Device, at: u64, size: u64) -> Result<(), Refusal> {
        let first = at / UNIT * UNIT;
        let missing: Vec<u64> = (first..at + size)
            .step_by(UNIT as usize)
            .filter(|unit| !self.backed.contains(unit))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let moved: Vec<u64> = self
            .backed
            .iter()
            .filter(|&&unit| self.is_free(unit) && (unit + UNIT <= first || unit >= at + size))
            .take(missing.len())
            .copied()
            .collect();
        let mut memory = device.memory.lock();
        let bytes = (missing.len() - moved.len()) as u64 * UNIT;
        if !memory.ask() || !memory.take_physical(bytes) {
            note(Kind::Refused, 0, size);
            return Err(Refusal::OutOfMemory);
        }
        for unit in moved {
            self.backed.remove(&unit);
            DeviceMemory::empty(unit, UNIT);
            note(Kind::Released, unit, UNIT);
        }
        for &unit in &missing {
            note(Kind::Backed, unit, UNIT);
        }
        self.backed.extend(missing);
        self.reserved_high = self.reserved_high.max(self.reserved());
        Ok(())
    }

    fn give(&mut self, at: u64) -> bool {
        let Some((size, asked)) = self.taken.remove(&at) else {
            return false;
        };
        note(Kind::Freed, at, asked);
        self.used -= asked;
        let (mut start, mut end) = (at, at + size);
        if let Some((&before, &length)) = self.holes.range(..at).next_back()
            && before + length == at
        {
            self.holes.remove(&before);
            start = before;
        }
        if let Some(length) = self.holes.remove(&end) {
            end += length;
        }
        self.holes.insert(start, end - start);
        true
    }

    /// Whether no block touches a unit.
    fn is_free(&self, unit: u64) -> bool {
        let below = self.taken.range(..unit + UNIT).next_back();
        below.is_none_or(|(&at, &(size, _))| at + size <= unit)
    }

    /// Gives free units back to the device, from the top, until at most `keep` bytes are reserved.
    fn trim(&mut self, device: &Device, keep: u64) {
        let mut memory = device.memory.lock();
        let from_the_top: Vec<u64> = self.backed.iter().rev().copied().collect();
        for unit in from_the_top {
            if self.reserved() <= keep {
                break;
            }
            if !self.is_free(unit) {
                continue;
            }
            self.backed.remove(&unit);
            memory.give_physical(UNIT);
            DeviceMemory::empty(unit, UNIT);
            note(Kind::Released, unit, UNIT);
        }
    }
}

fn with_pool<T>(pool: u64, body: impl FnOnce(&mut Pool) -> T) -> T {
    body(POOLS.lock().entry((device::current(), pool)).or_default())
}

fn take_from(pool: u64, size: usize, out: Out<*mut c_void>) -> Error {
    on_device(
        |device| match with_pool(pool, |pool| pool.take(device, size as u64)) {
            Ok(at) => {
                out.put(at as *mut c_void);
                SUCCESS
            }
            Err(_) => fail(MEMORY_ALLOCATION),
        },
    )
}

/// The host has waited for the GPU: pools give back what is above their thresholds.
pub fn synchronized() {
    for (&(index, _), pool) in POOLS.lock().iter_mut() {
        if pool.reserved() > pool.threshold
            && let Some(device) = device::machine().devices.get(index as usize)
        {
            pool.trim(device, pool.threshold);
        }
    }
}

export! {
    fn cudaDeviceGetDefaultMemPool(out: Out<u64>, _device: c_int) -> Error, or UNKNOWN; {
        out.put(DEFAULT);
        SUCCESS
    }
    fn cudaDeviceGetMemPool(out: Out<u64>, _device: c_int) -> Error, or UNKNOWN; {
        out.put(DEFAULT);
        SUCCESS
    }
    fn cudaMemPoolCreate(out: Out<u64>, _properties: *const c_void) -> Error, or UNKNOWN; {
        out.put(crate::streams::opaque_handle());
        SUCCESS
    }
    fn cudaMemPoolDestroy(pool: u64) -> Error, or UNKNOWN; {
        // Memory in use stays allocated until it is freed, as in the real pool.
        on_device(|device| {
            with_pool(pool, |pool| {
                pool.threshold = 0;
                pool.trim(device, 0);
            });
            SUCCESS
        })
    }
    fn cudaMallocAsync(out: Out<*mut c_void>, size: usize, _stream: u64) -> Error, or UNKNOWN; {
        take_from(DEFAULT, size, out)
    }
    fn cudaMallocFromPoolAsync(out: Out<*mut c_void>, size: usize, pool: u64, _stream: u64) -> Error, or UNKNOWN; {
        take_from(pool, size, out)
    }
    fn cudaFreeAsync(at: *mut c_void, _stream: u64) -> Error, or UNKNOWN; {
        let known = POOLS.lock().values_mut().any(|pool| pool.give(at as u64));
        check(known || at.is_null(), INVALID_VALUE)
    }
    fn cudaMemPoolTrimTo(pool: u64, keep: usize) -> Error, or UNKNOWN; {
        on_device(|device| {
            with_pool(pool, |pool| pool.trim(device, keep as u64));
            SUCCESS
        })
    }
    fn cudaMemPoolSetAccess(_pool: u64, _list: *const c_void, _count: usize) -> Error, or UNKNOWN; { SUCCESS }
    unsafe fn cudaMemPoolSetAttribute(pool: u64, attribute: c_int, value: *mut c_void) -> Error, or UNKNOWN; {
        if value.is_null() {
            return fail(INVALID_VALUE);
        }
        with_pool(pool, |pool| match attribute {
            // SAFETY: these attributes are 64-bit by the vendor's header.
            RELEASE_THRESHOLD => pool.threshold = unsafe { value.cast::<u64>().read_unaligned() },
            RESERVED_HIGH => pool.reserved_high = pool.reserved(),
            USED_HIGH => pool.used_high = pool.used,
            _ => {}
        });
        SUCCESS
    }
    unsafe fn cudaMemPoolGetAttribute(pool: u64, attribute: c_int, value: *mut c_void) -> Error, or UNKNOWN; {
        with_pool(pool, |pool| {
            let wide = match attribute {
                RELEASE_THRESHOLD => pool.threshold,
                RESERVED_CURRENT => pool.reserved(),
                RESERVED_HIGH => pool.reserved_high,
                USED_CURRENT => pool.used,
                USED_HIGH => pool.used_high,
                // The three reuse policies are ints, and on by default.
                // SAFETY: `value` has room for what the attribute is, by the vendor's header.
                _ => return unsafe { Out::new(value.cast::<c_int>()) }.put(1),
            };
            // SAFETY: as above; these attributes are 64-bit.
            unsafe { Out::new(value.cast::<u64>()) }.put(wide);
        });
        SUCCESS
    }
}

export! {
    /// Begins to keep what happens to pools, which PyTorch itself does not.
    fn oomph_vgpu_watch_pools() -> (), or (); {
        std::sync::LazyLock::force(&BEGAN);
        RECORDING.store(true, Ordering::Relaxed);
    }
    /// Names the scope of what this thread allocates from now on.
    fn oomph_vgpu_scope(scope: i64) -> (), or (); { SCOPE.set(scope) }
    /// How many events were kept; copies at most `room` of them.
    unsafe fn oomph_vgpu_pool_events(out: *mut PoolEvent, room: usize) -> usize, or 0; {
        let history = HISTORY.lock();
        if !out.is_null() {
            // SAFETY: the caller gives room for so many.
            unsafe { std::ptr::copy_nonoverlapping(history.as_ptr(), out, history.len().min(room)) };
        }
        history.len()
    }
}
