//! Where device memory comes from: the part of `cudaMalloc` that the allocator sees.

use std::collections::BTreeMap;

/// Device memory, as the allocator asks for it.
pub trait Driver {
    /// `cudaMalloc`: an address, or `None` for out of memory.
    fn malloc(&mut self, size: u64) -> Option<u64>;
    /// `cudaFree`.
    fn free(&mut self, addr: u64, size: u64);
    /// Reserves address space for an expandable segment; `None` if no page of it could be mapped,
    /// so that nothing would come of it.
    fn reserve(&mut self, size: u64) -> Option<u64>;
    /// Maps pages at an address of an expandable segment; false for out of memory.
    fn map(&mut self, addr: u64, size: u64) -> bool;
    /// Takes pages out of an expandable segment.
    fn unmap(&mut self, addr: u64, size: u64);
    /// The device's whole memory, which sets how much address space a segment reserves.
    fn device_total(&self) -> u64;
    /// The most that the process may reserve, if it set a limit.
    fn limit(&self) -> Option<u64> {
        None
    }
    /// Whether the process's limit rejects the next request, before the driver is
    /// asked: for drivers that know this without knowing the limit.
    fn refuses(&self) -> bool {
        false
    }
}

/// The driver hands out memory in granules of this size.
const GRANULE: u64 = 2 << 20;
/// The smallest region that the driver opens when no hole fits. On one H200 a request of 500 MiB
/// opened a region whose rest then served small requests; see `AddressModel`.
const REGION: u64 = 512 << 20;
/// Where the first region begins. Any address works: only the order matters.
const FIRST_REGION: u64 = 0x7f00_0000_0000;
/// Where expandable segments begin, far from everything else.
const FIRST_RESERVATION: u64 = 0x3000_0000_0000;

/// A model of the addresses that `cudaMalloc` returns.
///
/// Measured on an NVIDIA H200: memory comes in granules of 2 MiB; addresses ascend within a region
/// of address space; a freed hole is reused by the next request that fits; a request that fits
/// into no hole opens a new region below. The model takes the smallest hole that fits, the lowest
/// address first. It decides ties of PyTorch's best fit, not sizes: a prediction rests on it only
/// where two free blocks of equal size lie in different segments.
#[derive(Debug, Clone)]
pub struct AddressModel {
    capacity: u64,
    used: u64,
    total: u64,
    limit: Option<u64>,
    // Holes by address and by (size, address).
    holes: BTreeMap<u64, u64>,
    holes_by_size: std::collections::BTreeSet<(u64, u64)>,
    next_region_end: u64,
    next_reservation: u64,
}

impl AddressModel {
    /// A device of which the allocator may have `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            used: 0,
            total: capacity,
            limit: None,
            holes: BTreeMap::new(),
            holes_by_size: std::collections::BTreeSet::new(),
            next_region_end: FIRST_REGION,
            next_reservation: FIRST_RESERVATION,
        }
    }

    /// Sets the limit of `set_per_process_memory_fraction`.
    #[must_use]
    pub fn with_limit(mut self, limit: Option<u64>) -> Self {
        self.limit = limit;
        self
    }

    /// Marks memory that is in use from the start.
    pub fn occupy(&mut self, size: u64) {
        self.used = self.used.saturating_add(granules(size));
    }

    fn add_hole(&mut self, addr: u64, size: u64) {
        let mut start = addr;
        let mut end = addr.saturating_add(size);
        if let Some((&before, &before_size)) = self.holes.range(..addr).next_back()
            && before + before_size == addr
        {
            self.take_hole(before, before_size);
            start = before;
        }
        if let Some(&after_size) = self.holes.get(&end) {
            self.take_hole(end, after_size);
            end += after_size;
        }
        self.holes.insert(start, end - start);
        self.holes_by_size.insert((end - start, start));
    }

    fn take_hole(&mut self, addr: u64, size: u64) {
        self.holes.remove(&addr);
        self.holes_by_size.remove(&(size, addr));
    }
}

fn granules(size: u64) -> u64 {
    size.div_ceil(GRANULE).saturating_mul(GRANULE)
}

impl Driver for AddressModel {
    fn malloc(&mut self, size: u64) -> Option<u64> {
        let size = granules(size);
        let used = self.used.checked_add(size)?;
        if used > self.capacity {
            return None;
        }
        self.used = used;
        let fitting = self.holes_by_size.range((size, 0)..).next().copied();
        let (hole_size, hole) = if let Some(found) = fitting {
            found
        } else {
            let region = size.div_ceil(REGION).saturating_mul(REGION);
            let start = self.next_region_end.checked_sub(region)?;
            // A granule between regions keeps them from merging: the driver does not do it either.
            self.next_region_end = start.checked_sub(GRANULE)?;
            self.holes.insert(start, region);
            self.holes_by_size.insert((region, start));
            (region, start)
        };
        self.take_hole(hole, hole_size);
        if hole_size > size {
            self.holes.insert(hole + size, hole_size - size);
            self.holes_by_size.insert((hole_size - size, hole + size));
        }
        Some(hole)
    }

    fn free(&mut self, addr: u64, size: u64) {
        let size = granules(size);
        self.used = self.used.saturating_sub(size);
        self.add_hole(addr, size);
    }

    fn reserve(&mut self, size: u64) -> Option<u64> {
        let addr = self.next_reservation;
        self.next_reservation = addr.saturating_add(granules(size)).saturating_add(GRANULE);
        Some(addr)
    }

    fn map(&mut self, _addr: u64, size: u64) -> bool {
        match self.used.checked_add(size) {
            Some(used) if used <= self.capacity => {
                self.used = used;
                true
            }
            _ => false,
        }
    }

    fn unmap(&mut self, _addr: u64, size: u64) {
        self.used = self.used.saturating_sub(size);
    }

    fn device_total(&self) -> u64 {
        self.total
    }

    fn limit(&self) -> Option<u64> {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_fill_the_rest_of_a_region() {
        let mut driver = AddressModel::new(80 << 30);
        let big = driver.malloc(500 << 20).unwrap();
        let small = driver.malloc(1 << 20).unwrap();
        assert_eq!(small, big + (500 << 20));
        let other = driver.malloc(20 << 20).unwrap();
        assert!(other < big);
        driver.free(small, 1 << 20);
        assert_eq!(driver.malloc(2 << 20), Some(small));
    }

    #[test]
    fn refuses_more_than_there_is() {
        let mut driver = AddressModel::new(10 << 20);
        assert!(driver.malloc(8 << 20).is_some());
        assert_eq!(driver.malloc(4 << 20), None);
        assert_eq!(driver.malloc(u64::MAX - 5), None);
    }
}
