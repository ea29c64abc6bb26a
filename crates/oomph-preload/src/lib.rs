//! What the preloaded libraries share: the C library's `dlsym`, and standing in front of functions of the loader.
//!
//! Rules of this crate, which speaks C: each unsafe block says why it may do what it does, nothing panics, and
//! nothing takes a lock, because the loader may be active.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// `dlsym`.
pub type Symbol = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// What a function that stands in front of another does next: return `found`, or jump to `next` if that is null.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// What the caller gets, or null.
    pub found: usize,
    /// The function behind.
    pub next: usize,
}

/// The body of a naked function of at most two arguments. Asks `$choose`, which takes the same ones and returns a
/// [`Choice`]; returns what it found, or jumps to the next function with the caller's arguments, which then sees
/// the caller and not this library.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! return_or_jump {
    ($choose:ident) => {
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
            choose = sym $choose,
        )
    };
}

/// The same in ARM's registers.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! return_or_jump {
    ($choose:ident) => {
        std::arch::naked_asm!(
            "stp x0, x1, [sp, #-32]!",
            "str x30, [sp, #16]",
            "bl {choose}",
            "mov x9, x0",
            "mov x10, x1",
            "ldr x30, [sp, #16]",
            "ldp x0, x1, [sp], #32",
            "cbz x9, 2f",
            "mov x0, x9",
            "ret",
            "2:",
            "br x10",
            choose = sym $choose,
        )
    };
}

/// The result of `find`, repeated until it succeeds.
pub fn once(cache: &AtomicUsize, find: impl FnOnce() -> usize) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = find();
    cache.store(found, Ordering::Relaxed);
    found
}

/// The C library's `dlsym`, which cannot be asked for itself; 0 if it has another version than those known.
pub fn system_symbol() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    /// The version since glibc 2.34, and the first ones of x86-64 and ARM.
    const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];
    once(&FOUND, || {
        let find = |version: &CStr| {
            // SAFETY: name and version are C strings that live for ever.
            unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) as usize }
        };
        VERSIONS
            .into_iter()
            .map(find)
            .find(|&found| found != 0)
            .unwrap_or(0)
    })
}

/// The definition of `name` in the library of `handle` itself, whatever stands in front of `dlsym`.
///
/// # Safety
/// `handle` must be from `dlopen`, or a wildcard.
pub unsafe fn symbol_of(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let system = system_symbol();
    if system == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the C library's `dlsym`, which has this signature; the caller's handle is open.
    unsafe { std::mem::transmute::<usize, Symbol>(system)(handle, name.as_ptr()) }
}

/// The address of `next`, or of a function that finds nothing if it is 0: what [`Choice::next`] needs.
pub fn or_absent(next: usize) -> usize {
    unsafe extern "C" fn absent(_: *mut c_void, _: *const c_char) -> *mut c_void {
        std::ptr::null_mut()
    }
    if next == 0 {
        absent as *const () as usize
    } else {
        next
    }
}
