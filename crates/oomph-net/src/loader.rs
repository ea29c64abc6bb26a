//! Finding functions by name, and standing in front of who else looks for the driver's.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::AtomicUsize;

use oomph_preload::{Choice, Symbol, once, or_absent, return_or_jump, symbol_of};

use crate::{hooks, settings};

/// The `dlsym` behind this library's: the virtual GPU's, or the C library's.
fn next_symbol() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    once(&FOUND, || {
        // SAFETY: a wildcard, and a C string that lives for ever.
        unsafe { symbol_of(libc::RTLD_NEXT, c"dlsym") as usize }
    })
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
    unsafe { symbol_of(handle as *mut c_void, name) as usize }
}

/// The function `name` of the CUDA runtime that the process has loaded, 0 if there is none.
pub fn of_runtime(name: &CStr) -> usize {
    // SAFETY: a wildcard and a C string. Finds a virtual GPU, or a runtime that the program is linked to.
    let next = unsafe { symbol_of(libc::RTLD_NEXT, name) as usize };
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
                    found = symbol_of(handle, name) as usize;
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

unsafe extern "C" fn choose(handle: *mut c_void, name: *const c_char) -> Choice {
    let next = next_symbol();
    let mut choice = Choice {
        found: 0,
        next: or_absent(next),
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
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    return_or_jump!(choose)
}
