//! The kernel's calls that the overlay makes itself. The C library's functions of the same names are this crate's own.
//!
//! A result below zero is an error, whose number is in `errno`, as in the C library.

use std::ffi::{CStr, c_char, c_int, c_long};

/// `AT_FDCWD`.
pub const HERE: c_int = libc::AT_FDCWD;

/// What a path is without what it names being opened.
pub const NO_FOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

/// One of the kernel's calls, with its arguments as numbers or pointers.
macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: the callers of this module pass C strings and buffers that live during the call.
        unsafe { libc::syscall(libc::$number $(, $argument)*) }
    };
}
pub(crate) use call;

/// Sets `errno`, and returns what a function returns that failed.
pub fn fail(error: c_int) -> c_int {
    set_error(error);
    -1
}

pub fn set_error(error: c_int) {
    // SAFETY: the thread's own `errno`.
    unsafe { *libc::__errno_location() = error };
}

/// The thread's `errno`.
pub fn error() -> c_int {
    // SAFETY: the thread's own `errno`.
    unsafe { *libc::__errno_location() }
}

pub fn open(at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    call!(SYS_openat, at, path, flags, mode) as c_int
}

pub fn close(file: c_int) {
    call!(SYS_close, file);
}

/// What a path is.
pub fn status(at: c_int, path: *const c_char, flags: c_int) -> Option<libc::stat> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    let done = call!(SYS_newfstatat, at, path, status.as_mut_ptr(), flags);
    // SAFETY: the kernel has filled it.
    (done == 0).then(|| unsafe { status.assume_init() })
}

/// What kind of file a path is (`S_IFMT`), without following a link.
pub fn kind(path: &CStr) -> Option<libc::mode_t> {
    status(HERE, path.as_ptr(), NO_FOLLOW).map(|status| status.st_mode & libc::S_IFMT)
}

pub fn may(at: c_int, path: *const c_char, mode: c_int) -> bool {
    call!(SYS_faccessat, at, path, mode) == 0
}

pub fn exists(path: &CStr) -> bool {
    may(HERE, path.as_ptr(), libc::F_OK)
}

/// Reads a link into `into`; the length.
pub fn read_link(at: c_int, path: *const c_char, into: &mut [u8]) -> Option<usize> {
    let length = call!(SYS_readlinkat, at, path, into.as_mut_ptr(), into.len());
    usize::try_from(length)
        .ok()
        .filter(|&length| length < into.len())
}

pub fn make_directory(path: *const c_char, mode: libc::mode_t) -> c_int {
    call!(SYS_mkdirat, HERE, path, mode) as c_int
}

pub fn unlink(at: c_int, path: *const c_char, flags: c_int) -> c_int {
    call!(SYS_unlinkat, at, path, flags) as c_int
}

pub fn rename(from: *const c_char, to: *const c_char) -> c_int {
    call!(SYS_renameat2, HERE, from, HERE, to, 0) as c_int
}

/// Copies a file's contents; where the file system can, the copy shares them.
pub fn copy(from: c_int, to: c_int, most: u64) -> bool {
    const FICLONE: c_long = 0x4004_9409;
    if call!(SYS_ioctl, to, FICLONE, from) == 0 {
        return true;
    }
    let size = status(from, c"".as_ptr(), libc::AT_EMPTY_PATH).map_or(0, |status| status.st_size);
    if size as u64 > most {
        return false;
    }
    let mut buffer = [0_u8; 1 << 14];
    loop {
        let read = call!(SYS_read, from, buffer.as_mut_ptr(), buffer.len());
        let Ok(read) = usize::try_from(read) else {
            return false;
        };
        let mut rest = &buffer[..read];
        if rest.is_empty() {
            return true;
        }
        while !rest.is_empty() {
            let written = call!(SYS_write, to, rest.as_ptr(), rest.len());
            match usize::try_from(written) {
                Ok(written) => rest = &rest[written..],
                Err(_) => return false,
            }
        }
    }
}
