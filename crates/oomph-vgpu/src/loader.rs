//! Gives cuDNN this library's run-time compiler, and its cuBLASLt.
//!
//! Some of cuDNN's engines compile their kernels while a plan is made, seconds each. Nothing runs
//! them here, so when cuDNN opens NVRTC it gets this library instead, whose NVRTC compiles nothing.
//! The vendor's cuBLASLt makes no handles without the driver's private tables; this library's does.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::inner;

/// What the hook does next: return `handle`, or jump to `next` where that is null.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Choice {
    handle: usize,
    next: usize,
}

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

unsafe extern "C" fn refuse(_name: *const c_char, _flags: c_int) -> *mut c_void {
    std::ptr::null_mut()
}

/// The C library's `dlopen`.
fn system_open() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let known = FOUND.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: looks a name up among the libraries after this one.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) } as usize;
    FOUND.store(found, Ordering::Relaxed);
    found
}

/// A handle of this library.
fn own_handle() -> Option<usize> {
    // SAFETY: `dladdr` fills the struct for an address of this library; its path is then opened,
    // which only counts, as it is loaded.
    unsafe {
        let mut info = std::mem::zeroed::<libc::Dl_info>();
        let found = libc::dladdr(own_handle as *const () as *const c_void, &raw mut info) != 0;
        let next = system_open();
        if !found || info.dli_fname.is_null() || next == 0 {
            return None;
        }
        let open = std::mem::transmute::<usize, Open>(next);
        let handle = open(info.dli_fname, libc::RTLD_LAZY) as usize;
        (handle != 0).then_some(handle)
    }
}

unsafe extern "C" fn choose(name: *const c_char, _flags: c_int) -> Choice {
    let stands_in = inner::is_inside() && !name.is_null() && {
        // SAFETY: a C string by the standard.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        name.starts_with(b"libnvrtc.so") || name.starts_with(b"libcublasLt.so")
    };
    let handle = if stands_in { own_handle() } else { None };
    let next = system_open();
    Choice {
        handle: handle.unwrap_or(0),
        next: if next == 0 {
            refuse as *const () as usize
        } else {
            next
        },
    }
}

/// `dlopen`, which resolves names by who calls it: the C library's is jumped to, so that it sees
/// the caller and not this function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {choose}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp rdx",
        "2:",
        "ret",
        choose = sym choose,
    )
}
