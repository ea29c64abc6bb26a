//! Segments of device addresses, and what lies behind them: device memory or host memory.
//!
//! A segment is what one `cudaMalloc` returned, cut into units. Behind each unit is memory of exactly its
//! size, in one place or the other, so each access finds the bytes wherever they lie. A unit changes place
//! only in [`Arena::exchange`], while nothing runs on the GPU.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::gpu::{Gpu, Place, Refused, Way};

/// What limits an arena, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Segments are multiples of it.
    pub granule: u64,
    /// The largest unit.
    pub unit: u64,
    /// Device memory that may be handed out, for measurements; `u64::MAX` leaves it to the driver.
    pub device: u64,
    /// Host memory that may be used.
    pub host: u64,
    /// Device memory that is left free for the driver's own needs. Libraries load their code and make their handles when they are
    /// first called, be the GPU full or not, and fail where there is no room.
    pub spare: u64,
    /// How many units are being copied to the host at a time.
    pub ahead: usize,
}

/// Why there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The GPU is full, and the caller did not want host memory.
    Device,
    /// Host memory is used up, to its limit.
    HostLimit,
    /// The system gave no more host memory.
    HostRefused,
    /// No addresses, or the driver refused a mapping.
    Driver,
}

/// Host memory, which is also mapped at an address of its own: copies use it there while something else is
/// behind the unit.
#[derive(Debug, Clone, Copy)]
struct HostMemory {
    handle: u64,
    window: u64,
}

#[derive(Debug, Clone, Copy)]
enum Behind {
    Device(u64),
    Host(HostMemory),
}

/// A unit that is being copied to the host: where it begins, its size, its new place, and what marks the copy.
type Leaving = (u64, u64, HostMemory, u64);

#[derive(Debug)]
struct Unit {
    size: u64,
    behind: Behind,
}

/// What an exchange did, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    pub out: u64,
    pub back: u64,
}

#[derive(Debug)]
pub struct Arena<G> {
    pub gpu: G,
    limits: Limits,
    /// Where segments begin → their sizes.
    segments: BTreeMap<u64, u64>,
    /// Where units begin.
    units: BTreeMap<u64, Unit>,
    /// Memory behind nothing, by size.
    device_spares: HashMap<u64, Vec<u64>>,
    host_spares: HashMap<u64, Vec<HostMemory>>,
    device_made: u64,
    host_made: u64,
    on_host: u64,
    /// The most that lay on the host at once.
    pub most_on_host: u64,
}

impl<G: Gpu> Arena<G> {
    pub fn new(gpu: G, limits: Limits) -> Self {
        Self {
            gpu,
            limits,
            segments: BTreeMap::new(),
            units: BTreeMap::new(),
            device_spares: HashMap::new(),
            host_spares: HashMap::new(),
            device_made: 0,
            host_made: 0,
            on_host: 0,
            most_on_host: 0,
        }
    }

    /// Bytes of segments.
    pub fn size(&self) -> u64 {
        self.segments.values().sum()
    }

    /// Bytes of segments that lie on the host.
    pub fn on_host(&self) -> u64 {
        self.on_host
    }

    /// Device memory for segments, in bytes: what they have, and what they could get.
    pub fn device_capacity(&self) -> u64 {
        let rest = self.limits.device.saturating_sub(self.device_made);
        let free = self.gpu.free().saturating_sub(self.limits.spare);
        self.device_made + rest.min(free)
    }

    /// The lowest address and the end of all segments.
    pub fn range(&self) -> (u64, u64) {
        let low = self.segments.keys().next().copied().unwrap_or(0);
        let high = self
            .segments
            .last_key_value()
            .map_or(0, |(&at, &size)| at + size);
        (low, high)
    }

    pub fn holds(&self, at: u64) -> bool {
        self.segments.contains_key(&at)
    }

    /// Whether the unit that begins at `at` lies on the host.
    pub fn is_on_host(&self, at: u64) -> bool {
        matches!(
            self.units.get(&at),
            Some(Unit {
                behind: Behind::Host(_),
                ..
            })
        )
    }

    /// Whether `at` lies in a segment.
    pub fn covers(&self, at: u64) -> bool {
        self.segments
            .range(..=at)
            .next_back()
            .is_some_and(|(&base, &size)| at < base + size)
    }

    /// Where each segment begins, and its size.
    pub fn segments(&self) -> impl Iterator<Item = (u64, u64)> {
        self.segments.iter().map(|(&at, &size)| (at, size))
    }

    /// Where each unit begins, its size, and where it lies.
    pub fn units(&self) -> impl Iterator<Item = (u64, u64, Place)> {
        self.units.iter().map(|(&at, unit)| {
            let place = match unit.behind {
                Behind::Device(_) => Place::Device,
                Behind::Host(_) => Place::Host,
            };
            (at, unit.size, place)
        })
    }

    /// A segment of at least `size` bytes; where the GPU is full, in host memory if the caller `may_spill`.
    pub fn allocate(&mut self, size: u64, may_spill: bool) -> Result<u64, Full> {
        let size = size.max(1).next_multiple_of(self.limits.granule);
        let spared: u64 = self
            .device_spares
            .iter()
            .map(|(size, all)| size * all.len() as u64)
            .sum();
        let room = self.limits.device.saturating_sub(self.device_made) + spared;
        if !may_spill && room < size {
            return Err(Full::Device);
        }
        let base = self.gpu.reserve(size).map_err(|Refused| Full::Driver)?;
        let mut at = base;
        while at < base + size {
            let piece = self.limits.unit.min(base + size - at);
            let behind = self.memory(piece, may_spill).and_then(|behind| {
                let (Behind::Device(handle) | Behind::Host(HostMemory { handle, .. })) = behind;
                self.gpu
                    .map(at, piece, handle)
                    .map(|()| behind)
                    .map_err(|Refused| {
                        self.put_away(piece, behind);
                        Full::Driver
                    })
            });
            match behind {
                Ok(behind) => {
                    if matches!(behind, Behind::Host(_)) {
                        self.on_host += piece;
                    }
                    self.units.insert(
                        at,
                        Unit {
                            size: piece,
                            behind,
                        },
                    );
                    at += piece;
                }
                Err(full) => {
                    self.clear(base, at);
                    self.gpu.unreserve(base, size);
                    return Err(full);
                }
            }
        }
        self.segments.insert(base, size);
        self.most_on_host = self.most_on_host.max(self.on_host);
        Ok(base)
    }

    /// Frees the segment at `base`; nothing may be running on the GPU. False if there is none.
    pub fn free(&mut self, base: u64) -> bool {
        let Some(size) = self.segments.remove(&base) else {
            return false;
        };
        self.clear(base, base + size);
        self.gpu.unreserve(base, size);
        self.give_back_spares();
        true
    }

    /// Moves units out to the host and others back to the device, at the same time. Nothing may be running
    /// on the GPU, and nothing may start. What finds no room stays where it is.
    pub fn exchange(&mut self, out: &[u64], back: &[u64]) -> Moved {
        let mut moved = Moved::default();
        let mut staying = out.iter().copied();
        let mut leaving = VecDeque::new();
        let mut waiting = back.iter().copied().peekable();
        let mut arriving = Vec::new();
        loop {
            while leaving.len() < self.limits.ahead
                && let Some(at) = staying.next()
            {
                match self.leave(at) {
                    Ok(begun) => leaving.extend(begun),
                    // None of the others would find host memory.
                    Err(Refused) => staying = [].iter().copied(),
                }
            }
            while let Some(&at) = waiting.peek() {
                let Some(&Unit {
                    size,
                    behind: Behind::Host(host),
                }) = self.units.get(&at)
                else {
                    waiting.next();
                    continue;
                };
                let Ok(handle) = self.device_memory(size, self.limits.spare) else {
                    break;
                };
                waiting.next();
                if self.replace(at, size, host.handle, handle).is_err() {
                    self.put_away(size, Behind::Device(handle));
                    continue;
                }
                if self.gpu.copy(at, host.window, size, Way::In).is_err() {
                    // The bytes are in host memory still.
                    Self::must(self.replace(at, size, handle, host.handle));
                    self.put_away(size, Behind::Device(handle));
                    continue;
                }
                if let Some(unit) = self.units.get_mut(&at) {
                    unit.behind = Behind::Device(handle);
                }
                arriving.push((size, host));
            }
            let Some((at, size, host, mark)) = leaving.pop_front() else {
                break;
            };
            let copied = self.gpu.wait(mark);
            let Some(&Unit {
                behind: Behind::Device(handle),
                ..
            }) = self.units.get(&at)
            else {
                continue;
            };
            if copied.is_err() || self.replace(at, size, handle, host.handle).is_err() {
                self.put_away(size, Behind::Host(host));
                continue;
            }
            if let Some(unit) = self.units.get_mut(&at) {
                unit.behind = Behind::Host(host);
            }
            self.on_host += size;
            self.put_away(size, Behind::Device(handle));
            moved.out += size;
        }
        if !arriving.is_empty() {
            // Host memory may be used again only when it has been read.
            let done = self.gpu.mark(Way::In).and_then(|mark| self.gpu.wait(mark));
            Self::must(done);
            for (size, host) in arriving {
                self.on_host -= size;
                self.put_away(size, Behind::Host(host));
                moved.back += size;
            }
        }
        self.most_on_host = self.most_on_host.max(self.on_host);
        moved
    }

    /// Begins to copy the unit at `at` to the host, if it lies on the device: its size, where it will lie, and the copy's mark.
    fn leave(&mut self, at: u64) -> Result<Option<Leaving>, Refused> {
        let Some(&Unit {
            size,
            behind: Behind::Device(_),
        }) = self.units.get(&at)
        else {
            return Ok(None);
        };
        let host = self.host_memory(size).map_err(|_| Refused)?;
        // Where this is refused a copy may have begun: this memory is not used again.
        self.gpu.copy(host.window, at, size, Way::Out)?;
        Ok(Some((at, size, host, self.gpu.mark(Way::Out)?)))
    }

    /// Puts `new` behind a unit instead of `old`; where the driver refuses, `old` is there as before.
    fn replace(&self, at: u64, size: u64, old: u64, new: u64) -> Result<(), Refused> {
        self.gpu.unmap(at, size)?;
        self.gpu
            .map(at, size, new)
            .inspect_err(|_| Self::must(self.gpu.map(at, size, old)))
    }

    /// Without this step the program's memory would be lost, and it must not go on without it.
    fn must(step: Result<(), Refused>) {
        if step.is_err() {
            crate::say(
                "the driver refused to give memory back its address, and the job cannot go on",
            );
            std::process::abort();
        }
    }

    /// Memory for a unit: of the device if there is room, else of the host if the caller `may_spill`.
    fn memory(&mut self, size: u64, may_spill: bool) -> Result<Behind, Full> {
        if let Ok(handle) = self.device_memory(size, self.limits.spare) {
            return Ok(Behind::Device(handle));
        }
        if !may_spill {
            return Err(Full::Device);
        }
        self.host_memory(size).map(Behind::Host)
    }

    /// Device memory of `size` bytes that leaves `spare` bytes free.
    fn device_memory(&mut self, size: u64, spare: u64) -> Result<u64, Refused> {
        if let Some(handle) = self.device_spares.get_mut(&size).and_then(Vec::pop) {
            return Ok(handle);
        }
        let fits = |arena: &Self| arena.device_made + size <= arena.limits.device;
        // Memory of other sizes makes room.
        while !fits(self) {
            let Some((&other, _)) = self.device_spares.iter().find(|(_, all)| !all.is_empty())
            else {
                return Err(Refused);
            };
            self.release_spare(other);
        }
        if spare > 0 && self.gpu.free() < size + spare {
            self.give_back_spares();
            if self.gpu.free() < size + spare {
                return Err(Refused);
            }
        }
        let handle = self.gpu.create(Place::Device, size).or_else(|Refused| {
            self.give_back_spares();
            self.gpu.create(Place::Device, size)
        })?;
        self.device_made += size;
        Ok(handle)
    }

    fn host_memory(&mut self, size: u64) -> Result<HostMemory, Full> {
        if let Some(host) = self.host_spares.get_mut(&size).and_then(Vec::pop) {
            return Ok(host);
        }
        while self.host_made + size > self.limits.host {
            let other = self
                .host_spares
                .iter()
                .find(|(_, all)| !all.is_empty())
                .map(|(&other, _)| other);
            let Some((other, host)) = other.and_then(|other| {
                self.host_spares
                    .get_mut(&other)
                    .and_then(Vec::pop)
                    .map(|host| (other, host))
            }) else {
                return Err(Full::HostLimit);
            };
            self.release_host(other, host);
        }
        let handle = self
            .gpu
            .create(Place::Host, size)
            .map_err(|Refused| Full::HostRefused)?;
        let window = self.gpu.reserve(size).and_then(|window| {
            self.gpu
                .map(window, size, handle)
                .map(|()| window)
                .inspect_err(|_| self.gpu.unreserve(window, size))
        });
        let Ok(window) = window else {
            self.gpu.release(handle);
            return Err(Full::Driver);
        };
        self.host_made += size;
        Ok(HostMemory { handle, window })
    }

    fn release_host(&mut self, size: u64, host: HostMemory) {
        Self::must(self.gpu.unmap(host.window, size));
        self.gpu.unreserve(host.window, size);
        self.gpu.release(host.handle);
        self.host_made -= size;
    }

    fn release_spare(&mut self, size: u64) {
        if let Some(handle) = self.device_spares.get_mut(&size).and_then(Vec::pop) {
            self.gpu.release(handle);
            self.device_made -= size;
        }
    }

    /// Gives device memory that is behind nothing back to the driver.
    pub fn give_back_spares(&mut self) {
        for (size, handles) in std::mem::take(&mut self.device_spares) {
            for handle in handles {
                self.gpu.release(handle);
                self.device_made -= size;
            }
        }
    }

    /// Keeps memory that is behind nothing any more.
    fn put_away(&mut self, size: u64, behind: Behind) {
        match behind {
            Behind::Device(handle) => self.device_spares.entry(size).or_default().push(handle),
            Behind::Host(host) => self.host_spares.entry(size).or_default().push(host),
        }
    }

    /// Takes away what is behind the units in `[from, to)`.
    fn clear(&mut self, from: u64, to: u64) {
        let inside: Vec<u64> = self.units.range(from..to).map(|(&at, _)| at).collect();
        for at in inside {
            if let Some(Unit { size, behind }) = self.units.remove(&at) {
                Self::must(self.gpu.unmap(at, size));
                if matches!(behind, Behind::Host(_)) {
                    self.on_host -= size;
                }
                self.put_away(size, behind);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    /// A GPU that keeps real bytes, and is as late with copies as it may be.
    #[derive(Debug, Default)]
    struct Bytes(RefCell<State>);

    #[derive(Debug, Default)]
    struct State {
        next: u64,
        memory: HashMap<u64, (Place, Vec<u8>)>,
        reserved: BTreeMap<u64, u64>,
        mapped: BTreeMap<u64, (u64, u64)>,
        begun: Vec<(Way, u64, u64, u64)>,
        marks: HashMap<u64, (Way, usize)>,
        device: u64,
        host: u64,
        /// Calls until one is refused.
        refuse: Option<u64>,
    }

    impl State {
        fn number(&mut self) -> u64 {
            self.next += 1;
            self.next
        }

        fn refused(&mut self) -> Result<(), Refused> {
            match &mut self.refuse {
                Some(0) => {
                    self.refuse = None;
                    Err(Refused)
                }
                Some(calls) => {
                    *calls -= 1;
                    Ok(())
                }
                None => Ok(()),
            }
        }

        fn used(&self, place: Place) -> u64 {
            self.memory
                .values()
                .filter(|(at, _)| *at == place)
                .map(|(_, bytes)| bytes.len() as u64)
                .sum()
        }

        fn byte(&mut self, at: u64) -> &mut u8 {
            let (&start, &(size, handle)) = self.mapped.range(..=at).next_back().unwrap();
            assert!(at < start + size, "nothing is mapped at {at}");
            &mut self.memory.get_mut(&handle).unwrap().1[(at - start) as usize]
        }

        fn do_copies(&mut self, way: Way, upto: usize) {
            for index in 0..upto {
                let (of, to, from, size) = self.begun[index];
                if of == way && size > 0 {
                    for offset in 0..size {
                        let value = *self.byte(from + offset);
                        *self.byte(to + offset) = value;
                    }
                    self.begun[index].3 = 0;
                }
            }
        }
    }

    impl Gpu for Bytes {
        fn create(&self, place: Place, size: u64) -> Result<u64, Refused> {
            let mut state = self.0.borrow_mut();
            state.refused()?;
            let limit = if place == Place::Device {
                state.device
            } else {
                state.host
            };
            if state.used(place) + size > limit {
                return Err(Refused);
            }
            let handle = state.number();
            // Not zeros: nothing may rely on them.
            state
                .memory
                .insert(handle, (place, vec![0xEE; size as usize]));
            Ok(handle)
        }

        fn release(&self, handle: u64) {
            let mut state = self.0.borrow_mut();
            assert!(
                state.mapped.values().all(|&(_, other)| other != handle),
                "released while mapped"
            );
            assert!(state.memory.remove(&handle).is_some(), "released twice");
        }

        fn reserve(&self, size: u64) -> Result<u64, Refused> {
            let mut state = self.0.borrow_mut();
            state.refused()?;
            let at = state.number() << 20;
            state.reserved.insert(at, size);
            Ok(at)
        }

        fn unreserve(&self, at: u64, size: u64) {
            let mut state = self.0.borrow_mut();
            assert!(
                state.mapped.range(at..at + size).next().is_none(),
                "still mapped"
            );
            assert_eq!(state.reserved.remove(&at), Some(size));
        }

        fn map(&self, at: u64, size: u64, handle: u64) -> Result<(), Refused> {
            let mut state = self.0.borrow_mut();
            state.refused()?;
            let (&base, &len) = state.reserved.range(..=at).next_back().unwrap();
            assert!(at + size <= base + len, "outside of what is reserved");
            assert!(
                state.mapped.range(at..at + size).next().is_none(),
                "mapped twice"
            );
            assert_eq!(state.memory[&handle].1.len() as u64, size);
            state.mapped.insert(at, (size, handle));
            Ok(())
        }

        fn unmap(&self, at: u64, size: u64) -> Result<(), Refused> {
            let (found, _) = self.0.borrow_mut().mapped.remove(&at).unwrap();
            assert_eq!(found, size);
            Ok(())
        }

        fn copy(&self, to: u64, from: u64, size: u64, way: Way) -> Result<(), Refused> {
            let mut state = self.0.borrow_mut();
            state.refused()?;
            state.begun.push((way, to, from, size));
            Ok(())
        }

        fn mark(&self, way: Way) -> Result<u64, Refused> {
            let mut state = self.0.borrow_mut();
            let (mark, count) = (state.number(), state.begun.len());
            state.marks.insert(mark, (way, count));
            Ok(mark)
        }

        fn wait(&self, mark: u64) -> Result<(), Refused> {
            let mut state = self.0.borrow_mut();
            let (way, count) = state.marks.remove(&mark).unwrap();
            state.do_copies(way, count);
            Ok(())
        }

        fn free(&self) -> u64 {
            let state = self.0.borrow();
            state.device - state.used(Place::Device)
        }
    }

    #[derive(Debug, Clone)]
    enum Event {
        Allocate(u64, bool),
        Free(usize),
        Write(usize, u64, u8),
        Exchange(Vec<bool>, Option<u64>),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (1..60_u64, any::<bool>()).prop_map(|(size, spill)| Event::Allocate(size, spill)),
            1 => any::<usize>().prop_map(Event::Free),
            6 => (any::<usize>(), any::<u64>(), any::<u8>()).prop_map(|(a, b, c)| Event::Write(a, b, c)),
            4 => (proptest::collection::vec(any::<bool>(), 1..40), proptest::option::of(0..20_u64))
                .prop_map(|(flips, refuse)| Event::Exchange(flips, refuse)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Whatever moves where, whatever the driver refuses: each byte is what was written last.
        #[test]
        fn bytes_stay_where_they_were_written(
            events in proptest::collection::vec(event(), 1..60),
            device in 20..150_u64,
            host in 0..200_u64,
            ahead in 1..4_usize,
        ) {
            let gpu = Bytes::default();
            (gpu.0.borrow_mut().device, gpu.0.borrow_mut().host) = (device, 150);
            let limits = Limits { granule: 4, unit: 12, device: device - device / 4, host, spare: 3, ahead };
            let mut arena = Arena::new(gpu, limits);
            let mut segments: Vec<(u64, Vec<u8>)> = Vec::new();
            for event in events {
                match event {
                    Event::Allocate(size, may_spill) => {
                        if let Ok(at) = arena.allocate(size, may_spill) {
                            let bytes = vec![size as u8; size.next_multiple_of(4) as usize];
                            for (offset, &byte) in bytes.iter().enumerate() {
                                *arena.gpu.0.borrow_mut().byte(at + offset as u64) = byte;
                            }
                            segments.push((at, bytes));
                        }
                    }
                    Event::Free(which) if !segments.is_empty() => {
                        let (at, _) = segments.swap_remove(which % segments.len());
                        prop_assert!(arena.free(at));
                        prop_assert!(!arena.free(at));
                    }
                    Event::Write(which, offset, value) if !segments.is_empty() => {
                        let count = segments.len();
                        let (at, bytes) = &mut segments[which % count];
                        let offset = offset % bytes.len() as u64;
                        bytes[offset as usize] = value;
                        *arena.gpu.0.borrow_mut().byte(*at + offset) = value;
                    }
                    Event::Exchange(flips, refuse) => {
                        let (mut out, mut back) = (Vec::new(), Vec::new());
                        for ((at, _, place), flip) in arena.units().zip(flips) {
                            if flip {
                                if place == Place::Device { &mut out } else { &mut back }.push(at);
                            }
                        }
                        // A refused mapping is undone; that this is refused too would end the job.
                        arena.gpu.0.borrow_mut().refuse = refuse;
                        let before = arena.on_host();
                        let moved = arena.exchange(&out, &back);
                        arena.gpu.0.borrow_mut().refuse = None;
                        prop_assert_eq!(before + moved.out, arena.on_host() + moved.back);
                    }
                    _ => {}
                }
                for (at, bytes) in &segments {
                    for (offset, &byte) in bytes.iter().enumerate() {
                        prop_assert_eq!(*arena.gpu.0.borrow_mut().byte(at + offset as u64), byte);
                    }
                }
                let state = arena.gpu.0.borrow();
                prop_assert_eq!(state.used(Place::Device), arena.device_made);
                prop_assert_eq!(state.used(Place::Host), arena.host_made);
                prop_assert!(arena.device_made <= limits.device && arena.host_made <= limits.host);
                let on_host: u64 =
                    arena.units().filter(|unit| unit.2 == Place::Host).map(|unit| unit.1).sum();
                prop_assert_eq!(on_host, arena.on_host());
            }
        }
    }

    fn arena(device: u64, host: u64) -> Arena<Bytes> {
        let gpu = Bytes::default();
        (gpu.0.borrow_mut().device, gpu.0.borrow_mut().host) = (1000, 1000);
        Arena::new(
            gpu,
            Limits {
                granule: 2,
                unit: 10,
                device,
                host,
                spare: 0,
                ahead: 2,
            },
        )
    }

    #[test]
    fn what_finds_no_room_on_the_device_lies_on_the_host() {
        let mut arena = arena(40, 30);
        let first = arena.allocate(35, false).unwrap();
        assert_eq!(arena.allocate(20, false), Err(Full::Device));
        arena.allocate(20, true).unwrap();
        assert_eq!((arena.size(), arena.on_host()), (56, 20));
        assert_eq!(arena.allocate(20, true), Err(Full::HostLimit));
        assert_eq!((arena.size(), arena.on_host()), (56, 20));
        arena.free(first);
        assert!(arena.allocate(40, false).is_ok());
        assert_eq!(arena.most_on_host, 20);
    }

    #[test]
    fn room_for_the_driver_is_left_before_anything_lies_on_the_host() {
        let mut arena = arena(40, 30);
        arena.gpu.0.borrow_mut().device = 40;
        arena.limits.spare = 8;
        assert!(arena.allocate(36, false).is_err());
        assert!(arena.allocate(32, false).is_ok());
        arena.allocate(4, true).unwrap();
        assert_eq!(arena.on_host(), 4);
    }

    #[test]
    fn an_exchange_of_equal_sizes_needs_no_room() {
        let mut arena = arena(40, 60);
        arena.allocate(40, false).unwrap();
        arena.allocate(40, true).unwrap();
        let units: Vec<(u64, u64, Place)> = arena.units().collect();
        let of = |wanted| {
            units
                .iter()
                .filter(|unit| unit.2 == wanted)
                .map(|unit| unit.0)
                .collect::<Vec<_>>()
        };
        let moved = arena.exchange(&of(Place::Device), &of(Place::Host));
        // Host memory is made for what leaves before what comes back gives some up: 60 less the 40 in use.
        assert_eq!(moved, Moved { out: 20, back: 20 });
        let moved = arena.exchange(&of(Place::Device), &of(Place::Host));
        assert_eq!(moved, Moved { out: 20, back: 20 });
    }
}
