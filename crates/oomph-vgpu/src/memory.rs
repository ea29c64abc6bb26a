//! Device memory: address space without pages behind it, handed out as a real driver does.
//!
//! What was observed on an H200 (driver 580) and is modelled here:
//! - memory comes in granules of 2 MiB; requests up to half a granule share one;
//! - the driver takes virtual ranges in multiples of 32 MiB, each below the earlier ones;
//! - a request goes into the hole with the lowest address that is large enough, whichever range
//!   it is in; freed neighbours merge; a range that is empty again is given back;
//! - the context leaves 24 MiB free at the top, and when PyTorch's first kernel makes the driver resize
//!   the memory for stacks, 412 MiB of address space below that become free.
//!
//! The order of addresses matters: PyTorch's allocator breaks ties between blocks of equal size
//! by address.

use std::collections::{BTreeMap, HashMap};

use crate::card;

/// Physical memory is handed out in pages of this size.
pub const GRANULE: u64 = 2 << 20;
/// The driver reserves virtual address ranges in multiples of this.
pub const REGION: u64 = 32 << 20;
/// Requests up to this size share a granule.
const SMALL: u64 = GRANULE / 2;
/// Alignment of requests that share a granule.
const SMALL_ALIGN: u64 = 512;
/// The address space kept for one device, in multiples of its capacity: enough for the holes
/// that ranges of 32 MiB leave, and cheap, as nothing is behind it.
const ARENA_FACTOR: u64 = 8;
/// The least address space kept for one device.
const ARENA_MIN: u64 = 1 << 40;
/// Address space that context creation leaves free in a range of its own.
const CONTEXT_LEFTOVER: u64 = 24 << 20;
/// Address space that PyTorch's first kernel sets free.
const STACK_HOLE: u64 = 412 << 20;

/// Rounds `value` up to a multiple of `to`.
pub const fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

/// A reservation of address space from the operating system, with no memory behind it.
#[derive(Debug)]
pub struct Reservation {
    base: u64,
    len: u64,
    /// The mapping itself, before alignment: address and length.
    mapping: (u64, u64),
}

impl Reservation {
    /// Reserves `len` bytes. Pages exist only after a write; reads of
    /// untouched pages return zeros.
    pub fn new(len: u64) -> Option<Self> {
        // 32 MiB-aligned ranges are cut from an over-sized mapping.
        let padded = len.checked_add(REGION)?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing else.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                padded as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return None;
        }
        // Huge pages would turn one written byte into 2 MiB of memory; core dumps and forked
        // children have no use for the range.
        // SAFETY: advice on the mapping made above.
        unsafe {
            libc::madvise(at, padded as usize, libc::MADV_NOHUGEPAGE);
            libc::madvise(at, padded as usize, libc::MADV_DONTDUMP);
        }
        Some(Self {
            base: round_up(at as u64, REGION),
            len,
            mapping: (at as u64, padded),
        })
    }

    /// The first address.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Bytes reserved.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether `addr` lies inside.
    pub const fn contains(&self, addr: u64) -> bool {
        addr >= self.base && addr < self.base + self.len
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (at, len) = self.mapping;
        // SAFETY: mapped by `new` with this length, and nothing refers to it any more.
        unsafe {
            libc::munmap(at as *mut libc::c_void, len as usize);
        }
    }
}

/// Returns the pages of `[addr, addr + len)` to the operating system; they read as zeros.
///
/// # Safety
/// The range must lie in a [`Reservation`].
pub unsafe fn discard(addr: u64, len: u64) {
    // SAFETY: private anonymous pages of ours, by the caller's contract.
    unsafe {
        libc::madvise(addr as *mut libc::c_void, len as usize, libc::MADV_DONTNEED);
    }
}

/// The ranges of one device, and which parts of them are free. Pure bookkeeping.
#[derive(Debug)]
pub struct Layout {
    /// Ranges in use: start → length.
    regions: BTreeMap<u64, u64>,
    /// Free parts of the ranges: start → length. Neighbours are merged, but never across ranges.
    holes: BTreeMap<u64, u64>,
    /// Address space in no range: start → length.
    gaps: BTreeMap<u64, u64>,
    /// What PyTorch's first kernel will set free.
    stack_hole: Option<u64>,
}

impl Layout {
    /// A layout inside `[start, start + len)`, as context creation leaves it.
    pub fn new(start: u64, len: u64) -> Self {
        let top = start + len;
        let range = round_up(CONTEXT_LEFTOVER, REGION) + round_up(STACK_HOLE, REGION);
        Self {
            // One range, counted a granule longer than its holes can get: the context holds the
            // rest of it, so it never becomes empty.
            regions: BTreeMap::from([(top - range, range + GRANULE)]),
            holes: BTreeMap::from([(top - CONTEXT_LEFTOVER, CONTEXT_LEFTOVER)]),
            gaps: BTreeMap::from([(start, len - range)]),
            stack_hole: Some(top - range),
        }
    }

    /// A kernel has made the driver resize the memory for stacks.
    pub fn resize_stacks(&mut self) {
        if let Some(at) = self.stack_hole.take() {
            self.holes.insert(at, STACK_HOLE);
        }
    }

    /// Takes `size` bytes (a multiple of the granule) and returns their address.
    pub fn take(&mut self, size: u64) -> Option<u64> {
        let found = self
            .holes
            .iter()
            .find(|&(_, &len)| len >= size)
            .map(|(&at, &len)| (at, len));
        if let Some((at, len)) = found {
            self.holes.remove(&at);
            if len > size {
                self.holes.insert(at + size, len - size);
            }
            return Some(at);
        }
        // Like the kernel's search for a mapping: the highest gap that is large enough, its end.
        let region = round_up(size, REGION);
        let (&gap, &gap_len) = self.gaps.iter().rev().find(|&(_, &len)| len >= region)?;
        let at = gap + gap_len - region;
        if gap_len == region {
            self.gaps.remove(&gap);
        } else {
            self.gaps.insert(gap, gap_len - region);
        }
        self.regions.insert(at, region);
        if region > size {
            self.holes.insert(at + size, region - size);
        }
        Some(at)
    }

    /// Frees what [`Layout::take`] returned.
    pub fn give(&mut self, at: u64, size: u64) {
        let Some((&region, &region_len)) = self.regions.range(..=at).next_back() else {
            return;
        };
        let (mut start, mut len) = (at, size);
        if let Some((&before, &before_len)) = self.holes.range(region..at).next_back()
            && before + before_len == at
        {
            self.holes.remove(&before);
            start = before;
            len += before_len;
        }
        let end = at + size;
        if end < region + region_len
            && let Some(after_len) = self.holes.remove(&end)
        {
            len += after_len;
        }
        if start == region && len == region_len {
            self.regions.remove(&region);
            merge_into(&mut self.gaps, region, region_len);
        } else {
            self.holes.insert(start, len);
        }
    }
}

/// Why an allocation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The GPU is full.
    OutOfMemory,
    /// The operating system refused the address space.
    AddressSpace,
}

/// What an address was allocated for.
#[derive(Debug, Clone, Copy)]
enum Taken {
    /// Whole granules.
    Granules(u64),
    /// A part of a shared granule.
    Part { granule: u64, size: u64 },
}

/// One device's memory: capacity, what is used, and where.
#[derive(Debug)]
pub struct DeviceMemory {
    /// Which of the machine's GPUs it belongs to.
    index: u32,
    arena: Option<Reservation>,
    layout: Option<Layout>,
    taken: BTreeMap<u64, Taken>,
    /// Shared granules: start → free parts (start → length).
    shared: HashMap<u64, BTreeMap<u64, u64>>,
    /// What `cudaMemGetInfo` reports as the total.
    pub total: u64,
    /// Where the capacity is enforced; `u64::MAX` measures what a job would need.
    pub limit: u64,
    /// Bytes in granules handed out by allocation calls.
    pub allocated: u64,
    /// Bytes that the context, kernels and libraries hold.
    pub context: u64,
    /// The peak of `allocated + context` so far.
    pub peak: u64,
    /// Bytes another process holds, as far as this one can tell.
    pub others: u64,
    /// Requests for memory so far.
    pub requests: u64,
    /// Which requests fail on purpose: the first, by `requests`, and how many.
    pub failing: (u64, u64),
}

impl DeviceMemory {
    /// Which GPU of the machine it is of.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Memory of GPU `index`: `total` bytes, of which `limit` are available.
    pub fn new(index: u32, total: u64, limit: u64) -> Self {
        Self {
            index,
            arena: None,
            layout: None,
            taken: BTreeMap::new(),
            shared: HashMap::new(),
            total,
            limit,
            allocated: 0,
            context: 0,
            peak: 0,
            others: 0,
            requests: 0,
            failing: (0, 0),
        }
    }

    /// What this process holds.
    const fn held(&self) -> u64 {
        self.allocated + self.context
    }

    /// All bytes in use, by whatever process.
    pub fn used(&self) -> u64 {
        let others = card::get().map_or(0, |cards| cards.held_by_others(self.index));
        self.held() + self.others + others
    }

    /// Tells the other processes of the run what this one wants to hold; false if all of them would
    /// then hold more than `limit`.
    fn hold(&mut self, bytes: u64, limit: u64) -> bool {
        let limit = limit.saturating_sub(self.others);
        let fits = card::get().map_or(bytes <= limit, |cards| cards.hold(self.index, bytes, limit));
        if fits {
            self.peak = self.peak.max(bytes);
        }
        fits
    }

    /// Free bytes as `cudaMemGetInfo` reports them.
    pub fn free(&self) -> u64 {
        self.total.saturating_sub(self.used())
    }

    /// Creates the context, of `bytes`; false if what other processes hold leaves no room for it.
    pub fn create_context(&mut self, bytes: u64) -> bool {
        let alone = card::get().is_none_or(|cards| cards.held_by_others(self.index) == 0);
        if alone {
            self.charge_context(bytes);
        }
        alone || self.take_context(bytes)
    }

    /// Charges `bytes` to the context; false if they do not fit.
    pub fn take_context(&mut self, bytes: u64) -> bool {
        let fits = self.hold(self.held() + bytes, self.limit);
        if fits {
            self.charge_context(bytes);
        }
        fits
    }

    /// Charges `bytes` to the context. Real drivers fail here too, but only after the job is
    /// far beyond saving; the peak shows it.
    pub fn charge_context(&mut self, bytes: u64) {
        self.context += bytes;
        self.hold(self.held(), u64::MAX);
    }

    /// Gives back what [`DeviceMemory::charge_context`] charged.
    pub fn release_context(&mut self, bytes: u64) {
        self.context = self.context.saturating_sub(bytes);
        self.hold(self.held(), u64::MAX);
    }

    /// A kernel has made the driver resize the memory for stacks.
    pub fn resize_stacks(&mut self) {
        if let Ok(layout) = self.layout() {
            layout.resize_stacks();
        }
    }

    /// Counts a request; false if it must fail (see `oomph_vgpu_fail`).
    pub fn ask(&mut self) -> bool {
        self.requests += 1;
        let (first, count) = self.failing;
        self.requests < first || self.requests - first >= count
    }

    /// Accounts `bytes` of physical memory; false if they do not fit.
    pub fn take_physical(&mut self, bytes: u64) -> bool {
        let fits = self.hold(self.held().saturating_add(bytes), self.limit);
        if fits {
            self.allocated += bytes;
        }
        fits
    }

    /// Gives back what [`DeviceMemory::take_physical`] accounted.
    pub fn give_physical(&mut self, bytes: u64) {
        self.allocated = self.allocated.saturating_sub(bytes);
        self.hold(self.held(), u64::MAX);
    }

    fn layout(&mut self) -> Result<&mut Layout, Refusal> {
        if self.layout.is_none() {
            let want = (self.total.saturating_mul(ARENA_FACTOR)).max(ARENA_MIN);
            // A limit on virtual memory may refuse all of it; less is enough for most jobs.
            let arena = [want, want / 2, want / 4, want / 8]
                .into_iter()
                .find_map(|len| Reservation::new(round_up(len, REGION)))
                .ok_or(Refusal::AddressSpace)?;
            self.layout = Some(Layout::new(arena.base(), arena.len()));
            self.arena = Some(arena);
        }
        self.layout.as_mut().ok_or(Refusal::AddressSpace)
    }

    /// Address space of `size` bytes for a pool, with nothing behind it.
    pub fn reserve(&mut self, size: u64) -> Result<u64, Refusal> {
        let at = self.layout()?.take(size).ok_or(Refusal::AddressSpace)?;
        self.taken.insert(at, Taken::Granules(size));
        Ok(at)
    }

    /// Forgets the contents of a part of what [`DeviceMemory::reserve`] returned.
    pub fn empty(at: u64, bytes: u64) {
        // SAFETY: the range was handed out from this device's arena.
        unsafe { discard(at, bytes) };
    }

    /// `cudaMalloc`: the address of `size` bytes.
    pub fn malloc(&mut self, size: u64) -> Result<u64, Refusal> {
        self.layout()?;
        if !self.ask() {
            return Err(Refusal::OutOfMemory);
        }
        if size <= SMALL {
            return self.malloc_part(round_up(size.max(1), SMALL_ALIGN));
        }
        let bytes = round_up(size, GRANULE);
        if !self.take_physical(bytes) {
            return Err(Refusal::OutOfMemory);
        }
        let Some(at) = self.layout()?.take(bytes) else {
            self.give_physical(bytes);
            return Err(Refusal::AddressSpace);
        };
        self.taken.insert(at, Taken::Granules(bytes));
        Ok(at)
    }

    fn malloc_part(&mut self, size: u64) -> Result<u64, Refusal> {
        let fit = self
            .shared
            .iter()
            .flat_map(|(&granule, parts)| parts.iter().map(move |(&at, &len)| (at, len, granule)))
            .filter(|&(_, len, _)| len >= size)
            .min();
        let (at, len, granule) = if let Some(fit) = fit {
            fit
        } else {
            if !self.take_physical(GRANULE) {
                return Err(Refusal::OutOfMemory);
            }
            let Some(granule) = self.layout()?.take(GRANULE) else {
                self.give_physical(GRANULE);
                return Err(Refusal::AddressSpace);
            };
            self.shared
                .insert(granule, BTreeMap::from([(granule, GRANULE)]));
            (granule, GRANULE, granule)
        };
        if let Some(parts) = self.shared.get_mut(&granule) {
            parts.remove(&at);
            if len > size {
                parts.insert(at + size, len - size);
            }
        }
        self.taken.insert(at, Taken::Part { granule, size });
        Ok(at)
    }

    /// `cudaFree`: false if `at` was never handed out.
    pub fn free_at(&mut self, at: u64) -> bool {
        let Some(taken) = self.taken.remove(&at) else {
            return false;
        };
        match taken {
            Taken::Granules(bytes) => self.give_granules(at, bytes),
            Taken::Part { granule, size } => {
                let empty = self.shared.get_mut(&granule).is_some_and(|parts| {
                    merge_into(parts, at, size);
                    parts.get(&granule) == Some(&GRANULE)
                });
                if empty {
                    self.shared.remove(&granule);
                    self.give_granules(granule, GRANULE);
                }
            }
        }
        true
    }

    fn give_granules(&mut self, at: u64, bytes: u64) {
        self.give_physical(bytes);
        // SAFETY: the range was handed out from this device's arena.
        unsafe { discard(at, bytes) };
        if let Some(layout) = &mut self.layout {
            layout.give(at, bytes);
        }
    }

    /// The allocation that holds `addr`: its start and size.
    pub fn find(&self, addr: u64) -> Option<(u64, u64)> {
        let (&start, taken) = self.taken.range(..=addr).next_back()?;
        let size = match *taken {
            Taken::Granules(bytes) => bytes,
            Taken::Part { size, .. } => size,
        };
        (addr < start + size).then_some((start, size))
    }

    /// Whether `addr` lies in this device's address space.
    pub fn owns(&self, addr: u64) -> bool {
        self.arena
            .as_ref()
            .is_some_and(|arena| arena.contains(addr))
    }
}

/// Inserts the free range `[at, at + len)`, merging it with its neighbours.
fn merge_into(parts: &mut BTreeMap<u64, u64>, at: u64, len: u64) {
    let (mut start, mut total) = (at, len);
    if let Some((&before, &before_len)) = parts.range(..at).next_back()
        && before + before_len == at
    {
        parts.remove(&before);
        start = before;
        total += before_len;
    }
    if let Some(after_len) = parts.remove(&(at + len)) {
        total += after_len;
    }
    parts.insert(start, total);
}
