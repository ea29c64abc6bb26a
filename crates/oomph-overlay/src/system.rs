//! The C library's own functions, behind this crate's of the same names: those that do more than one call of the kernel.

use std::ffi::CStr;
use std::sync::atomic::AtomicUsize;

use oomph_preload::{once, symbol_of};

/// The C library's function of this name, whose place is kept in `cache`; 0 if it has none.
pub fn next(cache: &AtomicUsize, name: &CStr) -> usize {
    once(cache, || {
        // SAFETY: a wildcard.
        unsafe { symbol_of(libc::RTLD_NEXT, name) as usize }
    })
}

/// Calls the C library's function of a name, which has this type; `$missing` if it has none.
macro_rules! system {
    ($name:expr, $type:ty, $missing:expr, $($argument:expr),*) => {{
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        match crate::system::next(&NEXT, $name) {
            0 => $missing,
            // SAFETY: the C library's function of this name has this signature; the arguments are the program's.
            next => unsafe { std::mem::transmute::<usize, $type>(next)($($argument),*) },
        }
    }};
}
pub(crate) use system;

/// The name of a function as C has it.
macro_rules! name_of {
    ($name:ident) => {
        std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes())
            .unwrap_or_default()
    };
}
pub(crate) use name_of;
