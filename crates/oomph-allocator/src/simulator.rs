//! The allocator itself: pools, best fit, splitting, merging, the failure chain.
//!
//! The order of checks, and which candidate is tried, follow PyTorch's `CUDACachingAllocator`
//! step by step: two allocators that differ in one tie give different addresses from there on.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Config, LARGE_ROUNDING, MIN_BLOCK, SMALL_LIMIT, SMALL_SEGMENT, TOO_MUCH};
use crate::driver::Driver;
use crate::size_index::{Entry, SizeIndex};
use crate::table::{Place, Table};
use oomph_trace::PoolId;

/// A handle to a block that a simulator handed out, for that simulator only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockId(Place<Block>);

/// The request failed, even after the cache was emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {segment} more bytes were needed, {reserved} are reserved")]
pub struct OutOfMemory {
    /// What the driver was asked for.
    pub segment: u64,
    /// What was reserved at that moment.
    pub reserved: u64,
}

/// What a block lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Backing {
    /// A segment of `cudaMalloc`.
    Plain,
    /// Pages of an expandable segment.
    Mapped(Place<Expandable>),
    /// Address space of an expandable segment that has no pages yet.
    Unmapped(Place<Expandable>),
}

impl Backing {
    const fn is_expandable(self) -> bool {
        !matches!(self, Self::Plain)
    }

    const fn is_mapped(self) -> bool {
        !matches!(self, Self::Unmapped(_))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Block {
    addr: u64,
    size: u64,
    requested: u64,
    stream: u64,
    gc_base: u64,
    // Which block this is, in the order in which they came to be.
    created: u64,
    prev: Option<Place<Block>>,
    next: Option<Place<Block>>,
    pool: Place<Pool>,
    backing: Backing,
    allocated: bool,
}

impl Block {
    /// A block that nobody has, without neighbours.
    const fn unused(
        addr: u64,
        size: u64,
        stream: u64,
        pool: Place<Pool>,
        backing: Backing,
    ) -> Self {
        Self {
            addr,
            size,
            requested: 0,
            stream,
            gc_base: 0,
            created: 0,
            prev: None,
            next: None,
            pool,
            backing,
            allocated: false,
        }
    }
}

#[derive(Debug, Clone)]
struct Pool {
    is_small: bool,
    id: PoolId,
    // The default pools always; a private pool once it is no longer used.
    gives_back: bool,
    // By stream, ascending; almost always one.
    free: Vec<(u64, SizeIndex<Place<Block>>)>,
    // Unmapped parts of expandable segments by stream: (address, block).
    unmapped: BTreeMap<u64, BTreeSet<(u64, Place<Block>)>>,
    get_free_calls: u64,
}

#[derive(Debug, Clone, Copy)]
struct Expandable {
    start: u64,
    page: u64,
}

/// The pools of one id.
#[derive(Debug, Clone, Copy)]
struct PoolPair {
    large: Place<Pool>,
    small: Place<Pool>,
}

impl PoolPair {
    fn for_size(self, rounded: u64) -> Place<Pool> {
        if rounded <= SMALL_LIMIT {
            self.small
        } else {
            self.large
        }
    }
}

impl Table<Pool> {
    fn add_pair(&mut self, id: PoolId) -> PoolPair {
        let [large, small] = [false, true].map(|is_small| {
            self.add(Pool {
                is_small,
                id,
                gives_back: id == PoolId::DEFAULT,
                free: Vec::new(),
                unmapped: BTreeMap::new(),
                get_free_calls: 0,
            })
        });
        PoolPair { large, small }
    }
}

/// Amounts of memory now, and their peaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of blocks in use.
    pub allocated: u64,
    /// The most of that at any moment.
    pub allocated_peak: u64,
    /// Bytes that programs asked for, of blocks in use.
    pub requested: u64,
    /// Bytes held from the driver.
    pub reserved: u64,
    /// The most of that at any moment.
    pub reserved_peak: u64,
    /// How often the cache was emptied to serve a request.
    pub retries: u64,
    /// `cudaMalloc` and map calls that succeeded.
    pub driver_allocs: u64,
}

/// The simulated allocator of one device.
#[derive(Debug, Clone)]
pub struct Simulator<D> {
    config: Config,
    driver: D,
    blocks: Table<Block>,
    vacant: Vec<Place<Block>>,
    // How many blocks came to be.
    created: u64,
    pools: Table<Pool>,
    default_pools: PoolPair,
    expandable: Table<Expandable>,
    stats: Stats,
    // Whether a GC threshold and a limit are both set.
    collects_garbage: bool,
    limit: u64,
}

impl<D: Driver> Simulator<D> {
    /// An allocator that holds nothing yet.
    pub fn new(config: Config, driver: D) -> Self {
        let fraction = config
            .memory_fraction
            .map(|share| (share * driver.device_total() as f64) as u64);
        let limit = driver.limit().or(fraction);
        let mut pools = Table::default();
        let default_pools = pools.add_pair(PoolId::DEFAULT);
        Self {
            collects_garbage: config.gc_threshold > 0.0 && limit.is_some(),
            limit: limit.unwrap_or(u64::MAX),
            config,
            driver,
            blocks: Table::default(),
            vacant: Vec::new(),
            created: 0,
            pools,
            default_pools,
            expandable: Table::default(),
            stats: Stats::default(),
        }
    }

    /// The amounts so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The driver.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Where a block lies.
    #[inline]
    pub fn addr(&self, id: BlockId) -> u64 {
        self.block(id.0).addr
    }

    /// How large a block is.
    pub fn size(&self, id: BlockId) -> u64 {
        self.block(id.0).size
    }

    #[inline]
    fn block(&self, id: Place<Block>) -> &Block {
        &self.blocks[id]
    }

    #[inline]
    fn with(&mut self, id: Place<Block>, change: impl FnOnce(&mut Block)) {
        change(&mut self.blocks[id]);
    }

    fn new_block(&mut self, mut block: Block) -> Place<Block> {
        block.created = self.created;
        self.created += 1;
        if let Some(id) = self.vacant.pop() {
            self.blocks[id] = block;
            return id;
        }
        self.blocks.add(block)
    }

    fn find_pool(&self, id: PoolId, rounded: u64) -> Option<Place<Pool>> {
        let is_small = rounded <= SMALL_LIMIT;
        self.pools
            .iter()
            .find(|(_, pool)| pool.id == id && pool.is_small == is_small)
            .map(|(place, _)| place)
    }

    fn pool_index(&mut self, id: PoolId, rounded: u64) -> Place<Pool> {
        if id == PoolId::DEFAULT {
            return self.default_pools.for_size(rounded);
        }
        self.private_pool(id, rounded)
    }

    #[cold]
    fn private_pool(&mut self, id: PoolId, rounded: u64) -> Place<Pool> {
        self.find_pool(id, rounded)
            .unwrap_or_else(|| self.pools.add_pair(id).for_size(rounded))
    }

    #[inline(never)]
    fn add_unmapped(&mut self, id: Place<Block>) {
        let (pool, stream, addr) = self.unmapped_key(id);
        let unmapped = self.pools[pool].unmapped.entry(stream).or_default();
        unmapped.insert((addr, id));
    }

    #[inline(never)]
    fn remove_unmapped(&mut self, id: Place<Block>) {
        let (pool, stream, addr) = self.unmapped_key(id);
        if let Some(unmapped) = self.pools[pool].unmapped.get_mut(&stream) {
            unmapped.remove(&(addr, id));
        }
    }

    fn unmapped_key(&self, id: Place<Block>) -> (Place<Pool>, u64, u64) {
        let block = self.block(id);
        (block.pool, block.stream, block.addr)
    }

    fn insert_free(&mut self, id: Place<Block>) {
        let block = self.block(id);
        let (pool, stream, entry) = (
            block.pool,
            block.stream,
            Entry {
                size: block.size,
                addr: block.addr,
                rank: self.rank(block),
                block: id,
            },
        );
        let pool = &mut self.pools[pool];
        let calls = pool.get_free_calls;
        if let Some((_, index)) = pool.free.iter_mut().find(|(other, _)| *other == stream) {
            index.insert(entry);
        } else {
            let at = pool.free.partition_point(|&(other, _)| other < stream);
            let mut index = SizeIndex::default();
            index.insert(entry);
            pool.free.insert(at, (stream, index));
        }
        self.with(id, |block| block.gc_base = calls);
    }

    /// What decides between free blocks of one size: the lowest is taken.
    fn rank(&self, block: &Block) -> u64 {
        if self.config.oldest_of_a_size {
            block.created
        } else {
            block.addr
        }
    }

    fn remove_free(&mut self, id: Place<Block>) {
        let block = self.block(id);
        let (pool, stream, size, rank) = (block.pool, block.stream, block.size, self.rank(block));
        let pool = &mut self.pools[pool];
        if let Some((_, index)) = pool.free.iter_mut().find(|(other, _)| *other == stream) {
            index.remove(size, rank);
        }
    }

    /// Hands out a block.
    #[inline]
    pub fn malloc(
        &mut self,
        requested: u64,
        stream: u64,
        pool_id: PoolId,
    ) -> Result<BlockId, OutOfMemory> {
        if requested >= TOO_MUCH {
            return Err(OutOfMemory {
                segment: requested,
                reserved: self.stats.reserved,
            });
        }
        let rounded = self.config.round_size(requested);
        let pool = self.pool_index(pool_id, rounded);
        let segment = self.config.segment_size(rounded);
        let mut found = self.get_free_block(pool, stream, rounded);
        if found.is_none() {
            if self.collects_garbage {
                self.collect_garbage();
            }
            found = self.alloc_block(pool, stream, rounded, segment);
        }
        if found.is_none()
            && self.config.max_split_size != u64::MAX
            && self.release_available_cached_blocks(pool, stream, rounded)
        {
            found = self.alloc_block(pool, stream, rounded, segment);
        }
        let may_flush = pool_id == PoolId::DEFAULT || !self.config.no_flush_in_private_pools;
        if found.is_none() && may_flush {
            self.stats.retries += 1;
            self.empty_cache();
            found = self.alloc_block(pool, stream, rounded, segment);
        }
        let Some(id) = found else {
            return Err(OutOfMemory {
                segment,
                reserved: self.stats.reserved,
            });
        };
        Ok(self.hand_out(id, requested, rounded))
    }

    /// Whether a request could be served without asking the driver.
    pub fn has_free_block(&self, requested: u64, stream: u64, pool_id: PoolId) -> bool {
        self.free_block_at(requested, stream, pool_id).is_some()
    }

    /// The free block that would serve a request, by its address.
    pub fn free_block_at(&self, requested: u64, stream: u64, pool_id: PoolId) -> Option<u64> {
        let rounded = self.config.round_size(requested);
        let pool = self.find_pool(pool_id, rounded)?;
        self.find_free_block(pool, stream, rounded)
            .map(|id| self.block(id).addr)
    }

    fn find_free_block(
        &self,
        pool: Place<Pool>,
        stream: u64,
        rounded: u64,
    ) -> Option<Place<Block>> {
        let (_, index) = self.pools[pool]
            .free
            .iter()
            .find(|&&(other, _)| other == stream)?;
        let (mut cursor, mut entry) = index.lower_bound(rounded)?;
        if self.block(entry.block).backing.is_expandable() {
            if self.config.expandable_segments {
                // Ranked by the size that the block could grow to.
                let grown = |id: Place<Block>| {
                    let block = self.block(id);
                    match block.next.map(|next| self.block(next)) {
                        Some(next) if !next.backing.is_mapped() => {
                            block.size.saturating_add(next.size)
                        }
                        _ => block.size,
                    }
                };
                while let Some((next_cursor, next)) = index.next(cursor)
                    && self.block(next.block).backing.is_expandable()
                    && grown(next.block) < grown(entry.block)
                {
                    (cursor, entry) = (next_cursor, next);
                }
            } else {
                while self.block(entry.block).backing.is_expandable() {
                    (cursor, entry) = index.next(cursor)?;
                }
            }
        }
        // Only this one candidate is tested: there is no second choice.
        if rounded < self.config.max_split_size && entry.size >= self.config.max_split_size {
            return None;
        }
        if rounded >= self.config.max_split_size
            && entry.size >= rounded.saturating_add(self.config.max_non_split_rounding)
        {
            return None;
        }
        Some(entry.block)
    }

    fn get_free_block(
        &mut self,
        pool: Place<Pool>,
        stream: u64,
        rounded: u64,
    ) -> Option<Place<Block>> {
        if self.collects_garbage {
            self.pools[pool].get_free_calls += 1;
        }
        let id = self.find_free_block(pool, stream, rounded)?;
        self.remove_free(id);
        Some(id)
    }

    fn alloc_block(
        &mut self,
        pool: Place<Pool>,
        stream: u64,
        rounded: u64,
        segment: u64,
    ) -> Option<Place<Block>> {
        // An expandable segment may have the room mapped already; the limit comes first all the same.
        if self.stats.reserved.saturating_add(segment) > self.limit || self.driver.refuses() {
            return None;
        }
        if self.config.expandable_segments {
            return self.grow_expandable(pool, stream, rounded);
        }
        let addr = self.driver.malloc(segment)?;
        self.reserve(segment);
        Some(self.new_block(Block::unused(addr, segment, stream, pool, Backing::Plain)))
    }

    fn reserve(&mut self, size: u64) {
        let stats = &mut self.stats;
        stats.reserved = stats.reserved.saturating_add(size);
        stats.reserved_peak = stats.reserved_peak.max(stats.reserved);
        stats.driver_allocs += 1;
    }

    fn hand_out(&mut self, id: Place<Block>, requested: u64, rounded: u64) -> BlockId {
        let block = self.block(id);
        let size = block.size;
        let rest = size.saturating_sub(rounded);
        let is_small = self.pools[block.pool].is_small;
        let split = if is_small || self.config.expandable_segments {
            rest >= MIN_BLOCK
        } else {
            rounded < self.config.max_split_size && rest > SMALL_LIMIT
        };
        let id = if split {
            // The request takes the low end; the rest keeps its identity and moves up.
            let front = Block {
                requested,
                prev: block.prev,
                next: Some(id),
                allocated: true,
                ..Block::unused(block.addr, rounded, block.stream, block.pool, block.backing)
            };
            let before = front.prev;
            let front = self.new_block(front);
            if let Some(before) = before {
                self.with(before, |block| block.next = Some(front));
            }
            self.with(id, |block| {
                block.prev = Some(front);
                block.addr = block.addr.saturating_add(rounded);
                block.size = rest;
            });
            self.insert_free(id);
            front
        } else {
            self.with(id, |block| {
                block.allocated = true;
                block.requested = requested;
            });
            id
        };
        let size = self.block(id).size;
        let stats = &mut self.stats;
        stats.allocated = stats.allocated.saturating_add(size);
        stats.allocated_peak = stats.allocated_peak.max(stats.allocated);
        stats.requested = stats.requested.saturating_add(requested);
        BlockId(id)
    }

    /// Takes a block back; all streams are done with it. One that is free already stays free.
    pub fn free(&mut self, id: BlockId) {
        let id = id.0;
        let block = self.block(id);
        if !block.allocated {
            return;
        }
        let (size, requested, prev, next) = (block.size, block.requested, block.prev, block.next);
        self.stats.allocated = self.stats.allocated.saturating_sub(size);
        self.stats.requested = self.stats.requested.saturating_sub(requested);
        self.with(id, |block| block.allocated = false);
        self.merge(id, prev);
        self.merge(id, next);
        self.insert_free(id);
    }

    /// Takes `other` into its neighbour `id` if both are free and alike.
    fn merge(&mut self, id: Place<Block>, other: Option<Place<Block>>) {
        let Some(other) = other else { return };
        let from = self.block(other);
        let is_mapped = from.backing.is_mapped();
        if from.allocated || is_mapped != self.block(id).backing.is_mapped() {
            return;
        }
        if is_mapped {
            self.remove_free(other);
        } else {
            self.remove_unmapped(other);
        }
        let from = self.block(other);
        let (addr, size, prev, next) = (from.addr, from.size, from.prev, from.next);
        if next == Some(id) {
            self.with(id, |block| {
                block.addr = addr;
                block.prev = prev;
                block.size = block.size.saturating_add(size);
            });
            if let Some(prev) = prev {
                self.with(prev, |block| block.next = Some(id));
            }
        } else {
            self.with(id, |block| {
                block.next = next;
                block.size = block.size.saturating_add(size);
            });
            if let Some(next) = next {
                self.with(next, |block| block.prev = Some(id));
            }
        }
        self.vacant.push(other);
    }

    // --- releasing memory ---------------------------------------------------------------------

    /// Plain segments that `empty_cache` would release: (address, size).
    pub fn releasable(&self) -> Vec<(u64, u64)> {
        self.pools
            .iter()
            .filter(|(_, pool)| pool.gives_back)
            .flat_map(|(_, pool)| &pool.free)
            .flat_map(|(_, index)| index.iter())
            .filter(|entry| self.is_whole_segment(entry.block))
            .map(|entry| (entry.addr, entry.size))
            .collect()
    }

    fn is_whole_segment(&self, id: Place<Block>) -> bool {
        let block = self.block(id);
        block.backing == Backing::Plain && block.prev.is_none() && block.next.is_none()
    }

    /// A private pool is no longer used (its graph or its `MemPool` is gone): from now on its
    /// free memory can be released.
    pub fn retire_pool(&mut self, id: PoolId) {
        self.pool_index(id, 0);
        for pool in self.pools.iter_mut().filter(|pool| pool.id == id) {
            pool.gives_back = true;
        }
    }

    /// `torch.cuda.empty_cache()`: releases every segment that is wholly free, and the whole
    /// free pages of expandable ones, except those of private pools in use.
    pub fn empty_cache(&mut self) {
        self.release_pools(|pool| pool.gives_back);
    }

    /// What the end of a `MemPool` does: releases the free memory of this pool only.
    pub fn empty_private_pool(&mut self, id: PoolId) {
        self.retire_pool(id);
        self.release_pools(|pool| pool.id == id);
    }

    fn release_pools(&mut self, which: impl Fn(&Pool) -> bool) {
        let chosen: Vec<Place<Pool>> = self
            .pools
            .iter()
            .filter(|(_, pool)| which(pool))
            .map(|(place, _)| place)
            .collect();
        for pool in chosen {
            self.release_pool(pool);
        }
    }

    fn release_pool(&mut self, pool: Place<Pool>) {
        let entries: Vec<Place<Block>> = self.pools[pool]
            .free
            .iter()
            .flat_map(|(_, index)| index.iter())
            .map(|entry| entry.block)
            .collect();
        let mut to_unmap = Vec::new();
        for id in entries {
            match self.block(id).backing {
                Backing::Mapped(segment) | Backing::Unmapped(segment) => {
                    to_unmap.push((id, segment));
                }
                Backing::Plain if self.is_whole_segment(id) => self.release(id),
                Backing::Plain => {}
            }
        }
        for (id, segment) in to_unmap {
            self.unmap(id, segment);
            self.release_address_space(id);
        }
    }

    /// An expandable segment without a single page goes as a whole; the next one may lie elsewhere.
    fn release_address_space(&mut self, id: Place<Block>) {
        let block = self.block(id);
        if block.backing.is_mapped() || block.prev.is_some() || block.next.is_some() {
            return;
        }
        self.remove_unmapped(id);
        self.with(id, |block| block.allocated = true);
        self.vacant.push(id);
    }

    /// Releases the segment that starts at `addr` if it is wholly free.
    pub fn release_segment(&mut self, addr: u64) -> bool {
        let found = self
            .pools
            .iter()
            .flat_map(|(_, pool)| &pool.free)
            .flat_map(|(_, index)| index.iter())
            .find(|entry| entry.addr == addr && self.is_whole_segment(entry.block));
        match found {
            Some(entry) => {
                self.release(entry.block);
                true
            }
            None => false,
        }
    }

    fn release(&mut self, id: Place<Block>) {
        self.remove_free(id);
        let block = self.block(id);
        let (addr, size) = (block.addr, block.size);
        self.driver.free(addr, size);
        self.stats.reserved = self.stats.reserved.saturating_sub(size);
        self.with(id, |block| block.allocated = true);
        self.vacant.push(id);
    }

    fn release_available_cached_blocks(
        &mut self,
        pool: Place<Pool>,
        stream: u64,
        rounded: u64,
    ) -> bool {
        let wanted = rounded.max(self.config.max_split_size);
        let Some((_, index)) = self.pools[pool]
            .free
            .iter()
            .find(|&&(other, _)| other == stream)
        else {
            return false;
        };
        // The first that is large enough and not expandable …
        if let Some((_, entry)) = index.lower_bound(wanted)
            && !self.block(entry.block).backing.is_expandable()
        {
            let whole = self.is_whole_segment(entry.block);
            if whole {
                self.release(entry.block);
            }
            return whole;
        }
        // … or the largest ones below it, until together they are large enough.
        let candidates: Vec<Entry<Place<Block>>> = index
            .iter()
            .filter(|entry| entry.size < wanted && entry.size >= self.config.max_split_size)
            .filter(|entry| self.is_whole_segment(entry.block))
            .collect();
        let mut released = 0_u64;
        for entry in candidates.into_iter().rev() {
            if released >= wanted {
                break;
            }
            released = released.saturating_add(entry.size);
            self.release(entry.block);
        }
        released >= wanted
    }

    fn collect_garbage(&mut self) {
        let threshold = (self.config.gc_threshold * self.limit as f64) as u64;
        if self.stats.reserved <= threshold {
            return;
        }
        let target = self.stats.reserved - threshold;
        let mut reclaimed = 0_u64;
        loop {
            let pool = &self.pools[self.default_pools.large];
            let calls = pool.get_free_calls;
            let age = |id: Place<Block>| calls.saturating_sub(self.block(id).gc_base);
            let mut candidates: Vec<Place<Block>> = pool
                .free
                .iter()
                .flat_map(|(_, index)| index.iter())
                .map(|entry| entry.block)
                .filter(|&id| self.is_whole_segment(id))
                .collect();
            if candidates.is_empty() {
                return;
            }
            let total: u64 = candidates.iter().map(|&id| age(id)).sum();
            let average = total as f64 / candidates.len() as f64;
            candidates.retain(|&id| age(id) as f64 >= average);
            let mut freed = false;
            // Finish a pass even if the target is reached: collecting often would cost more.
            for id in candidates {
                reclaimed = reclaimed.saturating_add(self.block(id).size);
                self.release(id);
                freed = true;
            }
            if !freed || reclaimed >= target {
                return;
            }
        }
    }

    // --- expandable segments ------------------------------------------------------------------

    fn is_available(&self, id: Place<Block>) -> bool {
        !self.block(id).allocated
    }

    fn find_expandable(
        &mut self,
        pool: Place<Pool>,
        stream: u64,
        rounded: u64,
    ) -> Option<Place<Block>> {
        for &(_, id) in self.pools[pool].unmapped.get(&stream).into_iter().flatten() {
            // A free block right before the unmapped space can be used with it.
            let before = self.block(id).prev;
            let start = before.filter(|&id| self.is_available(id)).unwrap_or(id);
            let mut room = 0_u64;
            let mut at = Some(start);
            while let Some(id) = at.filter(|&id| room < rounded && self.is_available(id)) {
                room = room.saturating_add(self.block(id).size);
                at = self.block(id).next;
            }
            if room >= rounded {
                return Some(start);
            }
        }
        let page = self.page_size(self.pools[pool].is_small);
        let size = self.reservation(page);
        let start = self.driver.reserve(size)?;
        let segment = self.expandable.add(Expandable { start, page });
        let id = self.new_block(Block::unused(
            start,
            size,
            stream,
            pool,
            Backing::Unmapped(segment),
        ));
        self.add_unmapped(id);
        (size >= rounded).then_some(id)
    }

    /// The pages in which an expandable segment grows.
    fn page_size(&self, is_small: bool) -> u64 {
        if is_small {
            SMALL_SEGMENT
        } else {
            self.config.large_segment_size.max(LARGE_ROUNDING)
        }
    }

    /// The address space of an expandable segment: an eighth more than the device holds.
    fn reservation(&self, page: u64) -> u64 {
        let total = self.driver.device_total();
        total
            .saturating_add(total / 8)
            .div_ceil(page)
            .saturating_mul(page)
    }

    /// Maps pages for at least `size` bytes at the start of an unmapped block of `segment`.
    fn map(&mut self, id: Place<Block>, segment: Place<Expandable>, size: u64) -> bool {
        let page = self.expandable[segment].page;
        let block = self.block(id);
        let (addr, whole, stream, pool, next) =
            (block.addr, block.size, block.stream, block.pool, block.next);
        let mapped = size.div_ceil(page).saturating_mul(page).min(whole);
        if !self.driver.map(addr, mapped) {
            return false;
        }
        self.remove_unmapped(id);
        self.with(id, |block| block.backing = Backing::Mapped(segment));
        if mapped < whole {
            let rest_addr = addr.saturating_add(mapped);
            let rest = self.new_block(Block {
                prev: Some(id),
                next,
                ..Block::unused(
                    rest_addr,
                    whole - mapped,
                    stream,
                    pool,
                    Backing::Unmapped(segment),
                )
            });
            if let Some(next) = next {
                self.with(next, |block| block.prev = Some(rest));
            }
            self.with(id, |block| {
                block.next = Some(rest);
                block.size = mapped;
            });
            self.add_unmapped(rest);
        }
        let (prev, next) = (self.block(id).prev, self.block(id).next);
        self.merge(id, prev);
        self.merge(id, next);
        self.insert_free(id);
        self.reserve(mapped);
        true
    }

    fn grow_expandable(
        &mut self,
        pool: Place<Pool>,
        stream: u64,
        rounded: u64,
    ) -> Option<Place<Block>> {
        let mut candidate = self.find_expandable(pool, stream, rounded)?;
        if let Backing::Unmapped(segment) = self.block(candidate).backing {
            let size = self.block(candidate).size.min(rounded);
            if !self.map(candidate, segment, size) {
                return None;
            }
        }
        while self.block(candidate).size < rounded {
            let missing = rounded - self.block(candidate).size;
            let next = self.block(candidate).next?;
            let Backing::Unmapped(segment) = self.block(next).backing else {
                return None;
            };
            let size = self.block(next).size.min(missing);
            if !self.map(next, segment, size) {
                return None;
            }
            // Mapping merged the candidate into its neighbour.
            candidate = next;
        }
        self.remove_free(candidate);
        Some(candidate)
    }

    /// Releases the pages that are wholly inside a free block of `segment`.
    fn unmap(&mut self, id: Place<Block>, segment: Place<Expandable>) {
        let Expandable { start, page } = self.expandable[segment];
        let block = self.block(id);
        let (addr, size, stream, pool) = (block.addr, block.size, block.stream, block.pool);
        let offset = addr.saturating_sub(start);
        let first = offset.div_ceil(page).saturating_mul(page);
        let end = offset.saturating_add(size) / page * page;
        if first >= end {
            return;
        }
        let (unmapped_addr, unmapped_size) = (start.saturating_add(first), end - first);
        self.remove_free(id);
        let piece =
            |addr: u64, size: u64, prev: Option<Place<Block>>, next: Option<Place<Block>>| Block {
                prev,
                next,
                ..Block::unused(addr, size, stream, pool, Backing::Mapped(segment))
            };
        let before = unmapped_addr - addr;
        if before > 0 {
            let prev = self.block(id).prev;
            let new = self.new_block(piece(addr, before, prev, Some(id)));
            if let Some(prev) = prev {
                self.with(prev, |block| block.next = Some(new));
            }
            self.with(id, |block| block.prev = Some(new));
            self.insert_free(new);
        }
        let after = size.saturating_sub(before).saturating_sub(unmapped_size);
        if after > 0 {
            let next = self.block(id).next;
            let new = self.new_block(piece(
                unmapped_addr.saturating_add(unmapped_size),
                after,
                Some(id),
                next,
            ));
            if let Some(next) = next {
                self.with(next, |block| block.prev = Some(new));
            }
            self.with(id, |block| block.next = Some(new));
            self.insert_free(new);
        }
        self.with(id, |block| {
            block.addr = unmapped_addr;
            block.size = unmapped_size;
            block.backing = Backing::Unmapped(segment);
        });
        let (prev, next) = (self.block(id).prev, self.block(id).next);
        self.merge(id, prev);
        self.merge(id, next);
        self.add_unmapped(id);
        self.driver.unmap(unmapped_addr, unmapped_size);
        self.stats.reserved = self.stats.reserved.saturating_sub(unmapped_size);
    }

    // --- starting from a state ----------------------------------------------------------------

    /// Takes over a segment with its blocks: (address, size, requested, whether in use), in the
    /// order of their addresses and without gaps. Returns a handle for each block.
    pub fn adopt_segment(
        &mut self,
        stream: u64,
        pool_id: PoolId,
        is_small: bool,
        blocks: &[(u64, u64, u64, bool)],
    ) -> Vec<BlockId> {
        let pool = self.pool_index(pool_id, if is_small { 0 } else { SMALL_LIMIT + 1 });
        let mut ids = Vec::with_capacity(blocks.len());
        let mut prev = None;
        let mut total = 0_u64;
        for &(addr, size, requested, in_use) in blocks {
            let id = self.new_block(Block {
                addr,
                size,
                requested,
                stream,
                gc_base: 0,
                created: 0,
                prev,
                next: None,
                pool,
                backing: Backing::Plain,
                allocated: in_use,
            });
            if let Some(prev) = prev {
                self.with(prev, |block| block.next = Some(id));
            }
            if in_use {
                self.stats.allocated = self.stats.allocated.saturating_add(size);
                self.stats.requested = self.stats.requested.saturating_add(requested);
            } else {
                self.insert_free(id);
            }
            total = total.saturating_add(size);
            prev = Some(id);
            ids.push(BlockId(id));
        }
        self.stats.allocated_peak = self.stats.allocated_peak.max(self.stats.allocated);
        self.reserve(total);
        ids
    }

    /// Takes over an expandable segment that begins at `start`, with its mapped blocks as in
    /// [`Simulator::adopt_segment`]; between them may be gaps, which are not mapped.
    pub fn adopt_expandable(
        &mut self,
        stream: u64,
        pool_id: PoolId,
        is_small: bool,
        start: u64,
        blocks: &[(u64, u64, u64, bool)],
    ) -> Vec<BlockId> {
        let pool = self.pool_index(pool_id, if is_small { 0 } else { SMALL_LIMIT + 1 });
        let page = self.page_size(is_small);
        let segment = self.expandable.add(Expandable { start, page });
        let mut ids = Vec::with_capacity(blocks.len());
        let mut prev = None;
        let mut at = start;
        let mut total = 0_u64;
        let end = blocks
            .last()
            .map_or(start, |last| last.0.saturating_add(last.1));
        let end = end.max(start.saturating_add(self.reservation(page)));
        // What follows the last block is not mapped either.
        let after = (end, 0, 0, false);
        for &(addr, size, requested, in_use) in blocks.iter().chain([&after]) {
            let gap = addr.saturating_sub(at);
            for (addr, size, mapped) in [(at, gap, false), (addr, size, true)] {
                if size == 0 {
                    continue;
                }
                let id = self.new_block(Block {
                    addr,
                    size,
                    requested: if mapped { requested } else { 0 },
                    stream,
                    gc_base: 0,
                    created: 0,
                    prev,
                    next: None,
                    pool,
                    backing: if mapped {
                        Backing::Mapped(segment)
                    } else {
                        Backing::Unmapped(segment)
                    },
                    allocated: mapped && in_use,
                });
                if let Some(prev) = prev {
                    self.with(prev, |block| block.next = Some(id));
                }
                prev = Some(id);
                if !mapped {
                    self.add_unmapped(id);
                    continue;
                }
                total = total.saturating_add(size);
                ids.push(BlockId(id));
                if in_use {
                    self.stats.allocated = self.stats.allocated.saturating_add(size);
                    self.stats.requested = self.stats.requested.saturating_add(requested);
                } else {
                    self.insert_free(id);
                }
            }
            at = addr.saturating_add(size);
        }
        self.stats.allocated_peak = self.stats.allocated_peak.max(self.stats.allocated);
        self.reserve(total);
        ids
    }

    /// Whether links, sizes and the free lists agree; for tests.
    pub fn check(&self) -> Result<(), String> {
        let mut allocated = 0_u64;
        let mut mapped = 0_u64;
        let vacant: std::collections::HashSet<Place<Block>> = self.vacant.iter().copied().collect();
        for (id, block) in self.blocks.iter() {
            if vacant.contains(&id) {
                continue;
            }
            if block.allocated {
                allocated += block.size;
            }
            if block.backing.is_mapped() {
                mapped += block.size;
            }
            if let Some(next) = block.next {
                let next = self.block(next);
                if next.prev != Some(id) || next.addr != block.addr + block.size {
                    return Err(format!("block {id:?} and its neighbour do not meet"));
                }
                if !block.allocated
                    && !next.allocated
                    && block.backing.is_mapped() == next.backing.is_mapped()
                {
                    return Err(format!("block {id:?} and its neighbour should have merged"));
                }
            }
            let in_index = self.pools[block.pool].free.iter().any(|(stream, index)| {
                *stream == block.stream && index.iter().any(|entry| entry.block == id)
            });
            if in_index == (block.allocated || !block.backing.is_mapped()) {
                return Err(format!("block {id:?} is in the wrong list"));
            }
        }
        if allocated != self.stats.allocated || mapped != self.stats.reserved {
            return Err(format!(
                "{allocated} of {mapped} bytes by block, {} of {} by count",
                self.stats.allocated, self.stats.reserved
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::driver::AddressModel;

    const MIB: u64 = 1 << 20;

    fn simulator(config: Config) -> Simulator<AddressModel> {
        Simulator::new(config, AddressModel::new(4 << 30))
    }

    #[test]
    fn a_freed_block_is_reused_whole_or_split() {
        let mut sim = simulator(Config::default());
        let a = sim.malloc(30 * MIB, 0, PoolId::DEFAULT).unwrap();
        let addr = sim.addr(a);
        sim.free(a);
        let b = sim.malloc(12 * MIB, 0, PoolId::DEFAULT).unwrap();
        let c = sim.malloc(12 * MIB, 0, PoolId::DEFAULT).unwrap();
        assert_eq!(sim.addr(b), addr);
        assert_eq!(sim.addr(c), addr + 12 * MIB);
        assert_eq!(sim.stats().reserved, 30 * MIB);
        sim.free(b);
        sim.free(c);
        sim.empty_cache();
        assert_eq!(sim.stats().reserved, 0);
        sim.check().unwrap();
    }

    #[test]
    fn another_stream_never_gets_the_block() {
        let mut sim = simulator(Config::default());
        let a = sim.malloc(30 * MIB, 0, PoolId::DEFAULT).unwrap();
        sim.free(a);
        sim.malloc(30 * MIB, 7, PoolId::DEFAULT).unwrap();
        assert_eq!(sim.stats().reserved, 60 * MIB);
    }

    #[test]
    fn a_private_pool_keeps_what_is_free_until_it_ends() {
        let mut sim = simulator(Config::default());
        let pool = PoolId(0, 1);
        let mine = sim.malloc(30 * MIB, 0, pool).unwrap();
        sim.free(mine);
        sim.empty_cache();
        assert_eq!(sim.stats().reserved, 30 * MIB);
        let other = sim.malloc(30 * MIB, 0, PoolId::DEFAULT).unwrap();
        sim.free(other);
        sim.empty_private_pool(pool);
        assert_eq!(sim.stats().reserved, 30 * MIB);
        sim.empty_cache();
        assert_eq!(sim.stats().reserved, 0);
        sim.check().unwrap();
    }

    #[test]
    fn fragmentation_ends_with_expandable_segments() {
        // Holes that grow never fit; one growing segment does.
        let run = |config: Config| {
            let mut sim = Simulator::new(config, AddressModel::new(6 << 30));
            for step in 0..300_u64 {
                let big = sim.malloc((150 + 6 * step) * MIB, 0, PoolId::DEFAULT)?;
                sim.free(big);
                sim.malloc(12 * MIB, 0, PoolId::DEFAULT)?;
            }
            sim.check().unwrap();
            Ok::<_, OutOfMemory>(sim.stats().reserved_peak)
        };
        assert!(run(Config::default()).is_err());
        let expandable = Config {
            expandable_segments: true,
            ..Config::default()
        };
        assert!(run(expandable).is_ok());
    }

    fn configs() -> impl Strategy<Value = Config> {
        (
            any::<bool>(),
            prop_oneof![Just(u64::MAX), Just(32 * MIB), Just(200 * MIB)],
            prop_oneof![Just(0_u32), Just(4), Just(8)],
            prop_oneof![Just(0.0), Just(0.5)],
        )
            .prop_map(|(expandable, split, divisions, gc)| Config {
                expandable_segments: expandable,
                max_split_size: split,
                roundup_divisions: [divisions; 16],
                gc_threshold: gc,
                memory_fraction: (gc > 0.0).then_some(0.9),
                ..Config::default()
            })
    }

    proptest! {
        #[test]
        fn never_overlaps_and_never_loses_a_byte(
            config in configs(),
            steps in proptest::collection::vec(
                (0_u8..10, 1_u64..400_000_000, 0_u64..2, 0_u64..2), 1..300),
        ) {
            let mut sim = simulator(config);
            let mut live: Vec<BlockId> = Vec::new();
            for (what, size, stream, pool) in steps {
                match what {
                    0..=5 => {
                        let size = if what < 3 { size / 1000 + 1 } else { size };
                        if let Ok(id) = sim.malloc(size, stream, PoolId(0, pool)) {
                            prop_assert!(sim.size(id) >= size);
                            live.push(id);
                        }
                    }
                    6..=8 => {
                        if !live.is_empty() {
                            let at = size as usize % live.len();
                            sim.free(live.swap_remove(at));
                        }
                    }
                    _ => sim.empty_cache(),
                }
                sim.check().map_err(TestCaseError::fail)?;
                prop_assert!(sim.stats().reserved <= 4 << 30);
                let mut spans: Vec<(u64, u64)> =
                    live.iter().map(|&id| (sim.addr(id), sim.size(id))).collect();
                spans.sort_unstable();
                prop_assert!(spans.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
            }
            for id in live {
                sim.free(id);
            }
            sim.retire_pool(PoolId(0, 1));
            sim.empty_cache();
            prop_assert_eq!(sim.stats().allocated, 0);
            prop_assert_eq!(sim.stats().reserved, 0);
        }
    }
}
