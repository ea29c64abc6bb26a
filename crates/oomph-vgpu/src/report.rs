//! The interface between the library and the recorder in the same process: plain C functions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::fmt::Write;

use crate::arguments::Out;
use crate::device::machine;
use crate::{export, ledger};

/// The state of a device, in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// What `cudaMemGetInfo` gives as the total.
    pub total: u64,
    /// Where the capacity is enforced.
    pub limit: u64,
    /// Handed out by allocation calls, in whole granules.
    pub allocated: u64,
    /// Held by the context, kernels and libraries.
    pub context: u64,
    /// The greatest `allocated + context` so far.
    pub peak: u64,
}

export! {
    /// The version of this interface; a recorder refuses a library with another.
    fn oomph_vgpu_interface() -> c_int, or 0; { 6 }
    fn oomph_vgpu_usage(device: c_int, out: Out<Usage>) -> c_int, or -1; {
        let Some(found) = usize::try_from(device).ok().and_then(|index| machine().devices.get(index)) else { return -1 };
        let memory = found.memory.lock();
        out.put(Usage { total: memory.total, limit: memory.limit, allocated: memory.allocated, context: memory.context, peak: memory.peak });
        0
    }
    /// Makes requests for memory fail on purpose: the `first` from now (counted from 1)
    /// and those after it, `count` in all. None with a `count` of 0.
    fn oomph_vgpu_fail(device: c_int, first: u64, count: u64) -> c_int, or -1; {
        let Some(found) = usize::try_from(device).ok().and_then(|index| machine().devices.get(index)) else { return -1 };
        let mut memory = found.memory.lock();
        memory.failing = (memory.requests + first, count);
        0
    }
    /// Requests for memory so far, including failed ones.
    fn oomph_vgpu_requests(device: c_int) -> u64, or 0; {
        let Some(found) = usize::try_from(device).ok().and_then(|index| machine().devices.get(index)) else { return 0 };
        found.memory.lock().requests
    }
    /// When all work put on a device so far will be done, in nanoseconds of the virtual clock.
    fn oomph_vgpu_horizon(device: c_int) -> u64, or 0; {
        let device = u32::try_from(device).unwrap_or(0);
        u64::try_from(crate::streams::horizon(device).as_nanos()).unwrap_or(u64::MAX)
    }
    /// Clears device memory, outside any stream and without time on the clock.
    unsafe fn oomph_vgpu_clear(at: u64, len: u64) -> (), or (); {
        if crate::driver::device_of(at).is_some() {
            // SAFETY: the recorder names a live allocation and its length.
            unsafe { crate::runtime::set(at, 0, len as usize) };
        }
    }
    /// Copies what was ever written of large pinned host memory to the device, outside any stream and without time on the clock. 0 if it
    /// is none.
    unsafe fn oomph_vgpu_bring(to: u64, from: u64, len: u64) -> c_int, or 0; {
        // SAFETY: the recorder names two live allocations and their length.
        c_int::from(unsafe { crate::runtime::bring(to, from, len as usize) })
    }
    /// Calls and assumptions as JSON. Returns the length; writes at most `room` bytes.
    unsafe fn oomph_vgpu_report(out: *mut c_char, room: usize) -> usize, or 0; {
        let text = report();
        if !out.is_null() {
            let count = text.len().min(room);
            // SAFETY: the caller gives `room` bytes.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, count) };
        }
        text.len()
    }
}

thread_local! {
    /// Whether the thread is inside an operator, whose kernels have not run.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Whether what it copies and sets within the device stays undone.
    static KEEPS: Cell<bool> = const { Cell::new(false) };
    /// The answers to the operator's next reads of single values from the device.
    static ANSWERS: RefCell<VecDeque<i64>> = const { RefCell::new(VecDeque::new()) };
    /// Reads inside the operator for which no answer was known.
    static UNANSWERED: Cell<c_int> = const { Cell::new(0) };
}

/// Whether the calling thread is inside an operator.
pub fn is_in_operator() -> bool {
    INSIDE.get()
}

/// Whether the calling thread is inside an operator whose arguments stay as they are.
pub fn keeps() -> bool {
    INSIDE.get() && KEEPS.get()
}

/// The result of a read of `len` bytes from the device inside an operator: the prepared
/// answer, or zero, but never stale contents of the memory. `None` outside
/// operators and for more than a single value: there the bytes themselves are read.
pub fn answer_read(len: usize) -> Option<i64> {
    if !INSIDE.get() || len > size_of::<i64>() {
        return None;
    }
    let answer = ANSWERS.with_borrow_mut(VecDeque::pop_front);
    if answer.is_none() {
        UNANSWERED.set(UNANSWERED.get() + 1);
    }
    Some(answer.unwrap_or(0))
}

export! {
    /// Whether this process was forked after the GPU was in use, so that it cannot use it.
    fn oomph_vgpu_is_forked() -> c_int, or 1; { c_int::from(crate::device::is_forked()) }
    /// An operator begins on this thread: its kernels will not run, so what it reads back from
    /// the device is answered instead. With `keep` it does not copy or set device memory either: an operator that changes
    /// its argument would, in part, before the CPU computes it. `by_engine`: autograd's engine calls it, and no Python in between.
    fn oomph_vgpu_begin(keep: c_int, by_engine: c_int) -> (), or (); {
        crate::work::operator(by_engine != 0);
        INSIDE.set(true);
        KEEPS.set(keep != 0);
        UNANSWERED.set(0);
    }
    /// Queues the answer to one such read.
    fn oomph_vgpu_answer(value: i64) -> (), or (); {
        ANSWERS.with_borrow_mut(|answers| answers.push_back(value));
    }
    /// The operator has ended. Returns how many reads had no answer and gave zero.
    fn oomph_vgpu_end() -> c_int, or 0; {
        INSIDE.set(false);
        ANSWERS.with_borrow_mut(VecDeque::clear);
        UNANSWERED.get()
    }
}

/// Calls by function and assumptions, as JSON. Names and texts are constants of this crate that
/// need no escaping.
fn report() -> String {
    let mut text = String::from("{\"calls\":{");
    for (index, (name, count)) in ledger::calls().into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(text, "{comma}\"{name}\":{count}");
    }
    text.push_str("},\"assumptions\":[");
    for (index, ((function, what), count)) in ledger::assumptions().into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(
            text,
            "{comma}{{\"function\":\"{function}\",\"what\":\"{what}\",\"count\":{count}}}"
        );
    }
    text.push_str("],\"missing\":[");
    for (index, name) in ledger::missing().into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(text, "{comma}\"{name}\"");
    }
    text.push_str("]}");
    text
}
