//! `cudaMalloc` and `cudaFree` of the dynamic CUDA runtime.

use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::gpu::Refused;
use crate::{loader, net, settings};

type Status = c_int;

const SUCCESS: Status = 0;
const MEMORY_ALLOCATION: Status = 2;
const INITIALIZATION: Status = 3;

/// The runtime's function `name`, found once; 0 if there is none.
fn real(cache: &AtomicUsize, name: &CStr) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = loader::of_runtime(name);
    cache.store(found, Ordering::Relaxed);
    found
}

unsafe fn real_malloc(out: *mut *mut c_void, size: usize) -> Status {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    type Malloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> Status;
    match real(&REAL, c"cudaMalloc") {
        0 => INITIALIZATION,
        // SAFETY: the runtime's function, with the caller's arguments.
        found => unsafe { std::mem::transmute::<usize, Malloc>(found)(out, size) },
    }
}

unsafe fn real_free(at: *mut c_void) -> Status {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    type Free = unsafe extern "C" fn(*mut c_void) -> Status;
    match real(&REAL, c"cudaFree") {
        0 => INITIALIZATION,
        // SAFETY: the runtime's function, with the caller's argument.
        found => unsafe { std::mem::transmute::<usize, Free>(found)(at) },
    }
}

/// The calling thread's GPU.
fn device() -> Option<c_int> {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    type GetDevice = unsafe extern "C" fn(*mut c_int) -> Status;
    let found = real(&REAL, c"cudaGetDevice");
    let mut device = -1;
    // SAFETY: the runtime's function, which writes into `device`.
    let status = (found != 0)
        .then(|| unsafe { std::mem::transmute::<usize, GetDevice>(found)(&raw mut device) })?;
    (status == SUCCESS).then_some(device)
}

/// Forgets the runtime's last error, as what failed is tried again.
fn forget_error() {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    type LastError = unsafe extern "C" fn() -> Status;
    let found = real(&REAL, c"cudaGetLastError");
    if found != 0 {
        // SAFETY: the runtime's function.
        unsafe { std::mem::transmute::<usize, LastError>(found)() };
    }
}

/// The net's answer to a request: an address or that there is no memory, `None` if it is not the net's to answer.
fn allocate(size: u64) -> Option<Result<u64, Refused>> {
    if size < net::GRANULE || settings::get().is_none() {
        return None;
    }
    let device = device()?;
    if net::opened().is_none() {
        // The usual way to make the context.
        // SAFETY: frees nothing.
        unsafe { real_free(std::ptr::null_mut()) };
    }
    let mut net = net::get()?;
    if !net.serves(device) {
        return None;
    }
    Some(net.allocate(size).ok_or(Refused))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaMalloc(out: *mut *mut c_void, size: usize) -> Status {
    let answer = catch_unwind(|| {
        if out.is_null() {
            None
        } else {
            allocate(size as u64)
        }
    })
    .unwrap_or(None);
    match answer {
        Some(Ok(at)) => {
            // SAFETY: not null, so a place for an address.
            unsafe { *out = at as *mut c_void };
            SUCCESS
        }
        Some(Err(Refused)) => MEMORY_ALLOCATION,
        None => {
            // SAFETY: the caller's arguments.
            let status = unsafe { real_malloc(out, size) };
            if status != MEMORY_ALLOCATION {
                return status;
            }
            let room = catch_unwind(|| net::opened().is_some_and(|mut net| net.make_room()))
                .unwrap_or(false);
            if !room {
                return status;
            }
            forget_error();
            // SAFETY: the caller's arguments.
            unsafe { real_malloc(out, size) }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudaFree(at: *mut c_void) -> Status {
    let freed = catch_unwind(AssertUnwindSafe(|| {
        let net = net::opened().filter(|net| net.holds(at as u64));
        net.map(|mut net| net.free(at as u64)).is_some()
    }));
    match freed {
        Ok(true) => SUCCESS,
        // SAFETY: the caller's argument, which is not a segment of the net.
        _ => unsafe { real_free(at) },
    }
}

/// A program gives memory to another process. The driver has no such handle for memory that it maps in units.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaIpcGetMemHandle(out: *mut c_void, at: *mut c_void) -> Status {
    static REAL: AtomicUsize = AtomicUsize::new(0);
    type GetHandle = unsafe extern "C" fn(*mut c_void, *mut c_void) -> Status;
    let status = match real(&REAL, c"cudaIpcGetMemHandle") {
        0 => INITIALIZATION,
        // SAFETY: the runtime's function, with the caller's arguments.
        found => unsafe { std::mem::transmute::<usize, GetHandle>(found)(out, at) },
    };
    if status != SUCCESS {
        // A panic must not unwind into C, and this only says why.
        let _ = catch_unwind(|| net::opened().map(|net| net.explain_no_handle(at as u64)));
    }
    status
}

/// The most bytes that have lain on the host at a time: 0 while all fits.
#[unsafe(no_mangle)]
extern "C" fn oomph_net_on_host() -> u64 {
    catch_unwind(|| net::opened().map_or(0, |net| net.most_on_host())).unwrap_or(0)
}
