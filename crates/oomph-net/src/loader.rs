//! Finding functions by name, and standing in front of who else looks for the driver's.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{hooks, settings};

type Symbol = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The result of `find`, repeated until it succeeds. Without a lock, because the loader may be active.
fn once(cache: &AtomicUsize, find: impl FnOnce() -> usize) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = find();
    cache.store(found, Ordering::Relaxed);
    found
}

/// The C library's `dlsym`, which cannot be asked for itself.
fn system_symbol() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    /// The version since glibc 2.34, and the first one.
    const VERSIONS: [&CStr; 2] = [c"GLIBC_2.34", c"GLIBC_2.2.5"];
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

/// The `dlsym` behind this library's: the virtual GPU's, or the C library's.
fn next_symbol() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    once(&FOUND, || {
        // SAFETY: a wildcard, and a C string that lives for ever.
        unsafe { system_find(libc::RTLD_NEXT, c"dlsym") as usize }
    })
}

/// # Safety
/// `handle` must be from `dlopen`, or a wildcard.
unsafe fn system_find(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let system = system_symbol();
    if system == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the C library's `dlsym` has this signature; the caller's handle is open.
    unsafe { std::mem::transmute::<usize, Symbol>(system)(handle, name.as_ptr()) }
}

/// The driver's function `name`, 0 if there is none.
pub fn of_driver(name: &CStr) -> usize {
    static HANDLE: AtomicUsize = AtomicUsize::new(0);
    let handle = once(&HANDLE, || {
        // SAFETY: opens a library by name; it is never closed.
        unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) as usize }
    });
    if handle == 0 {
        return 0;
    }
    // SAFETY: the handle is open.
    unsafe { system_find(handle as *mut c_void, name) as usize }
}

/// The function `name` of the CUDA runtime that the process has loaded, 0 if there is none.
pub fn of_runtime(name: &CStr) -> usize {
    // SAFETY: a wildcard and a C string. Finds a virtual GPU, or a runtime that the program is linked to.
    let next = unsafe { system_find(libc::RTLD_NEXT, name) as usize };
    if next != 0 {
        return next;
    }
    // PyTorch's comes later, and RTLD_NEXT does not see it.
    let mut found = 0_usize;
    let mut visit = |path: &CStr| {
        let file = path
            .to_bytes()
            .rsplit(|&byte| byte == b'/')
            .next()
            .unwrap_or_default();
        if found == 0 && file.starts_with(b"libcudart.so") {
            // SAFETY: a path that the loader gave; the library is loaded, so this only counts.
            unsafe {
                let handle = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if !handle.is_null() {
                    found = system_find(handle, name) as usize;
                }
            }
        }
    };
    for path in loaded() {
        visit(&path);
    }
    found
}

/// The paths of the libraries that the process has loaded.
fn loaded() -> Vec<std::ffi::CString> {
    unsafe extern "C" fn each(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        list: *mut c_void,
    ) -> libc::c_int {
        // SAFETY: the loader's record, and the list that `loaded` gave.
        unsafe {
            if !(*info).dlpi_name.is_null() {
                (*list.cast::<Vec<std::ffi::CString>>())
                    .push(CStr::from_ptr((*info).dlpi_name).to_owned());
            }
        }
        0
    }
    let mut list: Vec<std::ffi::CString> = Vec::new();
    // SAFETY: the callback has the loader's signature, and the list outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut list).cast()) };
    list
}

/// What the hook does next: return `found`, or jump to `next` if that is null.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Choice {
    found: usize,
    next: usize,
}

unsafe extern "C" fn absent(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

unsafe extern "C" fn choose(handle: *mut c_void, name: *const c_char) -> Choice {
    let next = next_symbol();
    let mut choice = Choice {
        found: 0,
        next: if next == 0 {
            absent as *const () as usize
        } else {
            next
        },
    };
    if next == 0 || name.is_null() || handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        return choice;
    }
    // SAFETY: not null, so what `dlsym` takes: a C string.
    let text = unsafe { CStr::from_ptr(name) };
    if hooks::kind_of(text.to_bytes()).is_none() || settings::get().is_none() {
        return choice;
    }
    // SAFETY: the next `dlsym` with the caller's arguments.
    let real = unsafe { std::mem::transmute::<usize, Symbol>(next)(handle, name) } as usize;
    if real != 0 {
        choice.found = hooks::stand_in(text.to_bytes(), real);
    }
    choice
}

/// `dlsym`. Who asks the driver for a function that puts work on the GPU gets the one that stands in front
/// of it. For all else the next `dlsym` is jumped to, which then sees the caller and not this function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
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
