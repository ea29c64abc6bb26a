//! Stream-ordered memory pools (`cudaMallocAsync`), which PyTorch's backend of that name allocates from.
//!
//! What was observed on an H200 (driver 580, `bench/gpu/results/malloc_async.jsonl`, `pool_trace_*.bin.xz`) and is modelled
//! here:
//! - a pool is one range of addresses, backed by memory in units of 32 MiB;
//! - requests are aligned to 512 bytes. A request first looks among what was freed on its stream and is not yet known to be
//!   finished, which joins its neighbours of that kind only; then among what is free for everybody, the end of the
//!   range being the largest hole. Either time the smallest hole that is large enough is taken, of equal ones the one that has
//!   been as it is for the longest;
//! - between the two the pool asks what the GPU has finished: that becomes free for everybody;
//! - where memory is missing behind a block, units that are free elsewhere move there before new ones are taken;
//! - the used bytes are those that were asked for, the reserved ones whole units;
//! - units are given back, from the top, when the host waits for the GPU and more than the release threshold is reserved
//!   (PyTorch's threshold has no limit), or when the pool is trimmed.
//!
//! When the pool asks, the GPU has finished everything, as if it were never late. On the H200 it is: of two runs of one job
//! one reserved 1 % more.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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

/// Holes between blocks, none beside another.
#[derive(Debug, Default)]
struct Holes {
    /// Start → length, and since when the hole is as it is.
    by_start: BTreeMap<u64, (u64, u64)>,
    /// Length, since when, start.
    by_length: BTreeSet<(u64, u64, u64)>,
    /// Counts changes.
    changes: u64,
}

impl Holes {
    fn insert(&mut self, start: u64, length: u64) {
        self.changes += 1;
        self.by_start.insert(start, (length, self.changes));
        self.by_length.insert((length, self.changes, start));
    }

    /// The length of the hole that starts there.
    fn remove(&mut self, start: u64) -> Option<u64> {
        let (length, since) = self.by_start.remove(&start)?;
        self.by_length.remove(&(length, since, start));
        Some(length)
    }

    /// Adds a hole and joins it with its neighbours.
    fn join(&mut self, start: u64, length: u64) {
        let (mut from, mut end) = (start, start + length);
        let before = self.by_start.range(..start).next_back();
        if let Some((&before, _)) = before.filter(|&(at, (length, _))| at + length == start) {
            self.remove(before);
            from = before;
        }
        if let Some(length) = self.remove(end) {
            end += length;
        }
        self.insert(from, end - from);
    }

    /// Where the smallest hole starts that has so many bytes.
    fn best(&self, size: u64) -> Option<u64> {
        Some(self.by_length.range((size, 0, 0)..).next()?.2)
    }

    /// Takes bytes from the start of the hole there.
    fn take(&mut self, start: u64, size: u64) {
        if let Some(rest) = self.remove(start).filter(|&length| length > size) {
            self.insert(start + size, rest - size);
        }
    }

    /// The holes, the longest as it is first.
    fn drain(&mut self) -> Vec<(u64, u64)> {
        self.by_length.clear();
        let mut all: Vec<_> = std::mem::take(&mut self.by_start).into_iter().collect();
        all.sort_unstable_by_key(|&(_, (_, since))| since);
        all.into_iter()
            .map(|(start, (length, _))| (start, length))
            .collect()
    }
}

#[derive(Debug, Default)]
struct Pool {
    threshold: u64,
    /// Its addresses: start and length; none before the first request.
    range: Option<(u64, u64)>,
    /// Free for everybody.
    free: Holes,
    /// By stream: freed there, and not yet known to be finished.
    pending: BTreeMap<u64, Holes>,
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

    fn take(&mut self, device: &Device, asked: u64, stream: u64) -> Result<u64, Refusal> {
        if self.range.is_none() {
            let mut memory = device.memory.lock();
            let length = round_up(memory.total, UNIT);
            let start = memory.reserve(length)?;
            self.range = Some((start, length));
            self.free.insert(start, length);
        }
        let size = round_up(asked.max(1), ALIGNMENT);
        let pending = self.pending.get_mut(&stream);
        let at = if let Some((holes, at)) =
            pending.and_then(|holes| holes.best(size).map(|at| (holes, at)))
        {
            holes.take(at, size);
            at
        } else {
            self.settle();
            let at = self.free.best(size).ok_or(Refusal::OutOfMemory)?;
            self.back(device, at, size)?;
            self.free.take(at, size);
            at
        };
        self.taken.insert(at, (size, asked));
        self.used += asked;
        self.used_high = self.used_high.max(self.used);
        note(Kind::Allocated, at, asked);
        Ok(at)
    }

    /// What was freed on any stream becomes free for everybody.
    fn settle(&mut self) {
        for (start, length) in self.pending.values_mut().flat_map(Holes::drain) {
            self.free.join(start, length);
        }
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

    fn give(&mut self, at: u64, stream: u64) -> bool {
        let Some((size, asked)) = self.taken.remove(&at) else {
            return false;
        };
        note(Kind::Freed, at, asked);
        self.used -= asked;
        self.pending.entry(stream).or_default().join(at, size);
        true
    }

    /// Whether no block touches a unit.
    fn is_free(&self, unit: u64) -> bool {
        let below = self.taken.range(..unit + UNIT).next_back();
        below.is_none_or(|(&at, &(size, _))| at + size <= unit)
    }

    /// Gives free units back to the device, from the top, until at most `keep` bytes are reserved.
    fn trim(&mut self, device: &Device, keep: u64) {
        self.settle();
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

fn take_from(pool: u64, size: usize, stream: u64, out: Out<*mut c_void>) -> Error {
    on_device(
        |device| match with_pool(pool, |pool| pool.take(device, size as u64, stream)) {
            Ok(at) => {
                out.put(at as *mut c_void);
                SUCCESS
            }
            Err(_) => fail(MEMORY_ALLOCATION),
        },
    )
}

/// The pool that a device's allocations without one come from.
static CHOSEN: std::sync::LazyLock<Mutex<HashMap<u32, u64>>> =
    std::sync::LazyLock::new(|| Mutex::new(HashMap::new()));

fn chosen(device: u32) -> u64 {
    CHOSEN.lock().get(&device).copied().unwrap_or(DEFAULT)
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
    fn cudaDeviceGetMemPool(out: Out<u64>, device: c_int) -> Error, or UNKNOWN; {
        out.put(chosen(device as u32));
        SUCCESS
    }
    fn cudaDeviceSetMemPool(device: c_int, pool: u64) -> Error, or UNKNOWN; {
        CHOSEN.lock().insert(device as u32, pool);
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
    fn cudaMallocAsync(out: Out<*mut c_void>, size: usize, stream: u64) -> Error, or UNKNOWN; {
        take_from(chosen(device::current()), size, stream, out)
    }
    fn cudaMallocFromPoolAsync(out: Out<*mut c_void>, size: usize, pool: u64, stream: u64) -> Error, or UNKNOWN; {
        take_from(pool, size, stream, out)
    }
    fn cudaFreeAsync(at: *mut c_void, stream: u64) -> Error, or UNKNOWN; {
        let known = POOLS.lock().values_mut().any(|pool| pool.give(at as u64, stream));
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

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: u64 = 0;
    const MIB: u64 = 1 << 20;

    /// A pool and its GPU: takes and gives on one stream, with addresses from the pool's first.
    struct Played {
        device: Device,
        pool: Pool,
        start: u64,
    }

    impl Played {
        fn new() -> Self {
            let total = 1 << 34;
            let memory = Mutex::new(DeviceMemory::new(0, total, total));
            let (device, mut pool) = (Device { memory }, Pool::default());
            let start = pool.take(&device, 1, STREAM).unwrap();
            assert!(pool.give(start, STREAM));
            pool.settle();
            Self {
                device,
                pool,
                start,
            }
        }

        fn take_all<const N: usize>(&mut self, sizes: [u64; N]) -> [u64; N] {
            sizes.map(|size| self.take(size))
        }

        fn take(&mut self, size: u64) -> u64 {
            self.pool.take(&self.device, size, STREAM).unwrap() - self.start
        }

        fn give(&mut self, at: u64) {
            assert!(self.pool.give(self.start + at, STREAM));
        }
    }

    #[test]
    fn what_its_stream_freed_comes_before_a_better_hole() {
        let mut play = Played::new();
        let [small, _, large, _] = play.take_all([MIB, MIB, 6 * MIB, MIB]);
        play.give(small);
        play.pool.settle();
        play.give(large);
        assert_eq!(play.take_all([512, 512]), [large, large + 512]);
        // Nothing there is large enough: the pool asks what is finished, and then the smaller hole is the better one.
        assert_eq!(play.take(7 * MIB), 9 * MIB);
        assert_eq!(play.take(512), small);
    }

    #[test]
    fn another_stream_gets_it_when_it_is_finished() {
        let mut play = Played::new();
        let [first, _] = play.take_all([4 * MIB, 4 * MIB]);
        play.give(first);
        let other = play.pool.take(&play.device, MIB, 7).unwrap();
        assert_eq!(other - play.start, first);
    }

    #[test]
    fn of_equal_holes_the_one_that_has_been_as_it_is_for_longest_is_taken() {
        let mut play = Played::new();
        let [older, _, newer, _] = play.take_all([4096, 512, 1024, 512]);
        play.give(older);
        play.give(newer);
        // What is left of the older one is newer.
        assert_eq!(play.take_all([3072, 512]), [older, newer]);
    }

    #[test]
    fn freed_neighbours_are_one_hole() {
        let mut play = Played::new();
        let [a, b, c, _] = play.take_all([2 * MIB, 2 * MIB, 2 * MIB, MIB]);
        for at in [a, c, b] {
            play.give(at);
        }
        assert_eq!(play.take(6 * MIB), a);
    }

    #[test]
    fn no_byte_is_lost_and_no_hole_touches_another() {
        let (mut holes, mut taken, mut state) = (Holes::default(), Vec::new(), 1_u64);
        holes.insert(0, 1 << 20);
        for _ in 0..10_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let size = (state >> 40) % 9000 + 1;
            if state >> 63 == 0 {
                if let Some(at) = holes.best(size) {
                    holes.take(at, size);
                    taken.push((at, size));
                }
            } else if !taken.is_empty() {
                let (at, size) = taken.swap_remove((state >> 33) as usize % taken.len());
                holes.join(at, size);
            }
            let free: u64 = holes.by_start.values().map(|(length, _)| length).sum();
            let held: u64 = taken.iter().map(|(_, size)| size).sum();
            assert_eq!(free + held, 1 << 20);
            assert_eq!(holes.by_start.len(), holes.by_length.len());
            let ends = holes.by_start.iter().map(|(at, (length, _))| at + length);
            let starts = holes.by_start.keys().skip(1);
            assert!(ends.zip(starts).all(|(end, &next)| end < next));
        }
    }
}
