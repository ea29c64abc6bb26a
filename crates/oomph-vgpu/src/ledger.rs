//! Counts calls, and records assumptions.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::sync::Mutex;

/// Counts the calls of one entry point. Counters link themselves into a list on their first hit,
/// so that the hundreds of unused functions cost nothing.
#[derive(Debug)]
pub struct Counter {
    name: &'static str,
    /// Whether it tells of the error of another call.
    tells: bool,
    calls: AtomicU64,
    next: AtomicPtr<Counter>,
}

thread_local! {
    /// The thread's last call, but for those that tell of errors.
    static LAST: Cell<&'static str> = const { Cell::new("") };
}

/// The calling thread asks what the error of its last call means: which call that was.
pub fn last() -> &'static str {
    LAST.get()
}

/// Whether a function, by its name, tells of errors (`cudaGetLastError`).
const fn tells_of_errors(name: &str) -> bool {
    let (name, mut at) = (name.as_bytes(), 0);
    while at + 2 < name.len() {
        if name[at] == b'E' && name[at + 1] == b'r' && name[at + 2] == b'r' {
            return true;
        }
        at += 1;
    }
    false
}

static HEAD: AtomicPtr<Counter> = AtomicPtr::new(std::ptr::null_mut());

impl Counter {
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            tells: tells_of_errors(name),
            calls: AtomicU64::new(0),
            next: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Counts one call.
    pub fn hit(&'static self) {
        if !self.tells {
            LAST.set(self.name);
        }
        if self.calls.fetch_add(1, Ordering::Relaxed) != 0 {
            return;
        }
        // Only the thread that took the count from 0 to 1 comes here, once.
        let this = std::ptr::from_ref(self).cast_mut();
        let mut head = HEAD.load(Ordering::Acquire);
        loop {
            self.next.store(head, Ordering::Relaxed);
            match HEAD.compare_exchange_weak(head, this, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(current) => head = current,
            }
        }
    }
}

/// The calls so far, by name.
pub fn calls() -> BTreeMap<&'static str, u64> {
    let mut result = BTreeMap::new();
    let mut at = HEAD.load(Ordering::Acquire);
    // SAFETY: the list holds only addresses of statics, linked before they are published.
    while let Some(counter) = unsafe { at.as_ref() } {
        result.insert(counter.name, counter.calls.load(Ordering::Relaxed));
        at = counter.next.load(Ordering::Relaxed);
    }
    result
}

static ASSUMPTIONS: Mutex<BTreeMap<(&'static str, &'static str), u64>> =
    Mutex::new(BTreeMap::new());

/// Records that the answer of `function` mattered and was assumed: `what` says what was assumed.
pub fn assume(function: &'static str, what: &'static str) {
    *ASSUMPTIONS.lock().entry((function, what)).or_default() += 1;
}

/// The assumptions so far: (function, what was assumed) and how often.
pub fn assumptions() -> BTreeMap<(&'static str, &'static str), u64> {
    ASSUMPTIONS.lock().clone()
}

/// Names of functions.
type Names = Mutex<BTreeSet<String>>;

/// Functions that programs asked for by name, and that neither this library nor the vendor's has.
static MISSING: Names = Mutex::new(BTreeSet::new());
/// Those for which they asked the driver itself.
static MISSING_IN_DRIVER: Names = Mutex::new(BTreeSet::new());
/// Who asks the driver for more than these in vain asks for all that CUDA has, as NVIDIA's bindings for Python do when they are
/// imported. They name the function themselves if it is called.
const ASKS_FOR_ALL: usize = 16;

fn insert(names: &Names, name: &CStr) {
    // Names end up in JSON as they are.
    let name = name.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if !name.is_empty() && name.bytes().all(is_plain) {
        names.lock().insert(name.into_owned());
    }
}

/// A program asked for function `name` in vain.
pub fn missed(name: &CStr) {
    insert(&MISSING, name);
}

/// A program asked the driver for its function `name` in vain.
pub fn missed_in_driver(name: &CStr) {
    insert(&MISSING_IN_DRIVER, name);
}

/// What programs asked for in vain, by name.
pub fn missing() -> BTreeSet<String> {
    let mut all = MISSING.lock().clone();
    let in_driver = MISSING_IN_DRIVER.lock();
    if in_driver.len() <= ASKS_FOR_ALL {
        all.extend(in_driver.iter().cloned());
    }
    all
}
