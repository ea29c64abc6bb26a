//! Functions that open files.

use std::ffi::{CStr, c_char, c_int};

use libc::{FILE, O_ACCMODE, O_CREAT, O_EXCL, O_NOFOLLOW, O_RDONLY, O_TMPFILE, O_TRUNC, mode_t};

use crate::kernel::{self, HERE, fail};
use crate::overlay::{Entry, New, Place, in_use, note_temporary};
use crate::path::Path;
use crate::settings::Settings;
use crate::system::{name_of, system};

/// What to open.
enum Opened {
    /// The path as it is.
    AsAsked,
    /// The path as it is; if that makes a file, it is the program's own.
    New(Entry),
    /// Another path.
    At(Path),
    /// Nothing: `errno`.
    Refused(c_int),
}

/// What opening `path` with `flags` opens.
fn choose(at: c_int, path: *const c_char, flags: c_int) -> Opened {
    let changes = flags & O_ACCMODE != O_RDONLY || flags & (O_CREAT | O_TRUNC) != 0;
    let used = in_use();
    if (used.is_none() && !changes) || flags & O_TMPFILE == O_TMPFILE || Settings::now().is_none() {
        return Opened::AsAsked;
    }
    let exclusive = flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL;
    let follow = flags & O_NOFOLLOW == 0 && !exclusive;
    let Some(entry) = Entry::find(at, path, follow) else {
        return Opened::AsAsked;
    };
    match &entry.place {
        Place::Upper(upper, _) => Opened::At(upper.clone()),
        Place::Outside => Opened::At(entry.path.clone()),
        Place::Gone | Place::Absent | Place::Endless if flags & O_CREAT != 0 => {
            match entry.new_place() {
                New::Upper(upper) => Opened::At(upper),
                New::Refused(error) => Opened::Refused(error),
                New::Lower => Opened::New(entry),
            }
        }
        Place::Gone | Place::Absent | Place::Endless => Opened::Refused(entry.lack()),
        Place::Lower(status) => {
            let regular = status.st_mode & libc::S_IFMT == libc::S_IFREG;
            // Reached through one of the program's own links, it is not where the program asks for it.
            let there = || match used {
                Some(_) if follow => Opened::At(entry.path.clone()),
                _ => Opened::AsAsked,
            };
            if !changes || !regular || exclusive || !entry.stays() {
                return there();
            }
            if !kernel::may(HERE, entry.path.pointer(), libc::W_OK) {
                return there();
            }
            match entry.copy_up(flags & O_TRUNC == 0) {
                Some(upper) => Opened::At(upper),
                None => there(),
            }
        }
    }
}

/// Opens as the kernel does.
fn open_at(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    match choose(at, path, flags) {
        Opened::AsAsked => {
            let file = kernel::open(at, path, flags, mode);
            if file >= 0 && flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL {
                note_temporary(at, path, mode);
            }
            file
        }
        Opened::At(other) => kernel::open(HERE, other.pointer(), flags, mode),
        Opened::Refused(error) => fail(error),
        Opened::New(entry) => {
            let file = kernel::open(at, path, flags, mode);
            if file >= 0 {
                entry.mark_own();
            }
            file
        }
    }
}

/// Defines functions that open a file: `$name(directory?, path, flags, mode?)`.
macro_rules! opening {
    ($($name:ident($($argument:ident: $type:ty),*) = ($at:expr, $path:expr, $flags:expr, $mode:expr);)*) => {$(
        /// The C library's function of this name. Of its variable arguments it has at most one, an integer, which is passed as
        /// if it were declared.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            open_at($at, $path, $flags, $mode)
        }
    )*};
}

opening! {
    open(path: *const c_char, flags: c_int, mode: mode_t) = (HERE, path, flags, mode);
    open64(path: *const c_char, flags: c_int, mode: mode_t) = (HERE, path, flags, mode);
    openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) = (at, path, flags, mode);
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) = (at, path, flags, mode);
    __open_2(path: *const c_char, flags: c_int) = (HERE, path, flags, 0);
    __open64_2(path: *const c_char, flags: c_int) = (HERE, path, flags, 0);
    __openat_2(at: c_int, path: *const c_char, flags: c_int) = (at, path, flags, 0);
    __openat64_2(at: c_int, path: *const c_char, flags: c_int) = (at, path, flags, 0);
    creat(path: *const c_char, mode: mode_t) = (HERE, path, CREATES, mode);
    creat64(path: *const c_char, mode: mode_t) = (HERE, path, CREATES, mode);
}

const CREATES: c_int = O_CREAT | libc::O_WRONLY | O_TRUNC;

/// Shortens a file by its path.
fn truncate_to(path: *const c_char, length: i64) -> c_int {
    if Settings::now().is_none() {
        return kernel::call!(SYS_truncate, path, length) as c_int;
    }
    let file = open_at(HERE, path, libc::O_WRONLY | libc::O_CLOEXEC, 0);
    if file < 0 {
        return -1;
    }
    let done = kernel::call!(SYS_ftruncate, file, length) as c_int;
    kernel::close(file);
    done
}

/// `truncate` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn truncate(path: *const c_char, length: i64) -> c_int {
    truncate_to(path, length)
}

/// `truncate64` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn truncate64(path: *const c_char, length: i64) -> c_int {
    truncate_to(path, length)
}

/// The flags that a mode of `fopen` means.
fn flags_of(mode: &[u8]) -> c_int {
    let both = mode.contains(&b'+');
    let access = |one| if both { libc::O_RDWR } else { one };
    match mode.first() {
        Some(b'w') => access(libc::O_WRONLY) | O_CREAT | O_TRUNC | exclusive(mode),
        Some(b'a') => access(libc::O_WRONLY) | O_CREAT | libc::O_APPEND | exclusive(mode),
        _ => access(O_RDONLY),
    }
}

fn exclusive(mode: &[u8]) -> c_int {
    if mode.contains(&b'x') { O_EXCL } else { 0 }
}

/// Opens a stream with `open`, which takes the path that is opened.
fn stream_at(
    path: *const c_char,
    mode: *const c_char,
    open: impl FnOnce(*const c_char) -> *mut FILE,
) -> *mut FILE {
    if mode.is_null() {
        return open(path);
    }
    // SAFETY: a mode that the program gave to the C library.
    let flags = flags_of(unsafe { CStr::from_ptr(mode) }.to_bytes());
    match choose(HERE, path, flags) {
        Opened::AsAsked => open(path),
        Opened::At(other) => open(other.pointer()),
        Opened::Refused(error) => {
            fail(error);
            std::ptr::null_mut()
        }
        Opened::New(entry) => {
            let stream = open(path);
            if !stream.is_null() {
                entry.mark_own();
            }
            stream
        }
    }
}

type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
type Freopen = unsafe extern "C" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;

/// Defines `fopen` and its like.
macro_rules! streams {
    ($($name:ident as $type:ty: ($($argument:ident: $kind:ty),*);)*) => {$(
        /// The C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char $(, $argument: $kind)*) -> *mut FILE {
            let open = |path| {
                system!(name_of!($name), $type, std::ptr::null_mut(), path, mode $(, $argument)*)
            };
            if path.is_null() {
                return open(path);
            }
            stream_at(path, mode, open)
        }
    )*};
}

streams! {
    fopen as Fopen: ();
    fopen64 as Fopen: ();
    freopen as Freopen: (stream: *mut FILE);
    freopen64 as Freopen: (stream: *mut FILE);
}
