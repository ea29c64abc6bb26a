//! Calls into the vendor's libraries that this one stands in front of.
//!
//! oomph asks them for sizes and plans. What they do meanwhile (allocate, launch, copy) reaches
//! this library as driver calls but is not part of the program, so it is neither charged
//! nor counted.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::memory::Reservation;
use crate::runtime;
use crate::sync::Mutex;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether the calling thread is inside such a library.
pub fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Leaves the library in any case, and clears the errors it caused.
struct Guard(runtime::Error);

impl Drop for Guard {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        runtime::set_last(self.0);
    }
}

/// Runs `body`, which calls such a library.
pub fn call<T>(body: impl FnOnce() -> T) -> T {
    DEPTH.set(DEPTH.get() + 1);
    let _guard = Guard(runtime::last());
    body()
}

/// Device memory of the libraries' own: address space only, and not the GPU's.
static PRIVATE: Mutex<BTreeMap<u64, Reservation>> = Mutex::new(BTreeMap::new());

/// Memory for a library.
pub fn allocate(size: u64) -> Option<u64> {
    let range = Reservation::new(size.max(1))?;
    let base = range.base();
    PRIVATE.lock().insert(base, range);
    Some(base)
}

/// Frees what [`allocate`] returned; false if it was not from there.
pub fn free(at: u64) -> bool {
    PRIVATE.lock().remove(&at).is_some()
}
