//! Functions that read directories: one that has files above has these among its own, and lacks those that were removed.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{DIR, dirent, dirent64};

use crate::kernel::{self, HERE, fail};
use crate::overlay::{Entry, Place, in_use};
use crate::path::Path;
use crate::system::system;

type Opendir = unsafe extern "C" fn(*const c_char) -> *mut DIR;
type Fdopendir = unsafe extern "C" fn(c_int) -> *mut DIR;
type Readdir = unsafe extern "C" fn(*mut DIR) -> *mut dirent64;
type Closedir = unsafe extern "C" fn(*mut DIR) -> c_int;
type Rewinddir = unsafe extern "C" fn(*mut DIR);

fn system_opendir(path: *const c_char) -> *mut DIR {
    system!(c"opendir", Opendir, std::ptr::null_mut(), path)
}

fn system_readdir(stream: *mut DIR) -> *mut dirent64 {
    system!(c"readdir64", Readdir, std::ptr::null_mut(), stream)
}

fn system_closedir(stream: *mut DIR) -> c_int {
    system!(c"closedir", Closedir, -1, stream)
}

fn system_rewinddir(stream: *mut DIR) {
    system!(c"rewinddir", Rewinddir, (), stream);
}

/// A stream of a directory that has files above, or lacks some.
struct Mixed {
    /// The lower directory's stream, which the program has.
    lower: usize,
    /// The upper directory's, or 0.
    upper: usize,
    directory: Entry,
    /// Whether the lower one has been read.
    lower_is_read: bool,
}

static MIXED: Mutex<Vec<Mixed>> = Mutex::new(Vec::new());
/// How many there are: where there are none, nobody takes the lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn with_mixed<T>(work: impl FnOnce(&mut Vec<Mixed>) -> T) -> T {
    let mut streams = MIXED
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let result = work(&mut streams);
    COUNT.store(streams.len(), Ordering::Release);
    result
}

/// Remembers a stream of a lower directory if it is not all that the program is to see.
fn remember(stream: *mut DIR, directory: Entry) {
    if stream.is_null() || !matches!(directory.place, Place::Lower(_)) || !directory.is_mixed() {
        return;
    }
    let upper = directory
        .twin()
        .map_or(0, |twin| system_opendir(twin.pointer()) as usize);
    with_mixed(|streams| {
        streams.push(Mixed {
            lower: stream as usize,
            upper,
            directory,
            lower_is_read: false,
        });
    });
}

/// `opendir` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    let found = in_use().and_then(|_| Entry::find(HERE, path, true));
    let Some(entry) = found else {
        return system_opendir(path);
    };
    let Some(real) = entry.real() else {
        fail(entry.lack());
        return std::ptr::null_mut();
    };
    let stream = system_opendir(real.pointer());
    remember(stream, entry);
    stream
}

/// `fdopendir` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopendir(file: c_int) -> *mut DIR {
    let stream = system!(c"fdopendir", Fdopendir, std::ptr::null_mut(), file);
    if !stream.is_null()
        && in_use().is_some()
        && let Some(entry) = Entry::find(file, c".".as_ptr(), true)
    {
        remember(stream, entry);
    }
    stream
}

/// The next entry that the program is to see.
fn read(mixed: &mut Mixed) -> *mut dirent64 {
    let name_of = |entry: *mut dirent64| {
        // SAFETY: an entry that `readdir` returned is good until the next call.
        unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) }.to_bytes()
    };
    while !mixed.lower_is_read {
        let entry = system_readdir(mixed.lower as *mut DIR);
        if entry.is_null() {
            mixed.lower_is_read = true;
            break;
        }
        let name = name_of(entry);
        let child = || mixed.directory.child(name);
        // One that is above is listed from there.
        if name == b"." || name == b".." || child().is_some_and(|child| child.is_below_only()) {
            return entry;
        }
    }
    if mixed.upper == 0 {
        return std::ptr::null_mut();
    }
    loop {
        let entry = system_readdir(mixed.upper as *mut DIR);
        if entry.is_null() || !matches!(name_of(entry), b"." | b"..") {
            return entry;
        }
    }
}

fn read_next(stream: *mut DIR) -> *mut dirent64 {
    if COUNT.load(Ordering::Acquire) == 0 {
        return system_readdir(stream);
    }
    let before = kernel::error();
    with_mixed(|streams| {
        match streams
            .iter_mut()
            .find(|mixed| mixed.lower == stream as usize)
        {
            Some(mixed) => {
                let entry = read(mixed);
                // A directory's end is told from an error by it.
                kernel::set_error(before);
                entry
            }
            None => system_readdir(stream),
        }
    })
}

/// `readdir` of the C library, whose entries are those of `readdir64` where addresses have 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir(stream: *mut DIR) -> *mut dirent {
    read_next(stream).cast()
}

/// `readdir64` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir64(stream: *mut DIR) -> *mut dirent64 {
    read_next(stream)
}

/// `rewinddir` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rewinddir(stream: *mut DIR) {
    system_rewinddir(stream);
    if COUNT.load(Ordering::Acquire) == 0 {
        return;
    }
    with_mixed(|streams| {
        if let Some(mixed) = streams
            .iter_mut()
            .find(|mixed| mixed.lower == stream as usize)
        {
            mixed.lower_is_read = false;
            if mixed.upper != 0 {
                system_rewinddir(mixed.upper as *mut DIR);
            }
        }
    });
}

/// `closedir` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closedir(stream: *mut DIR) -> c_int {
    if COUNT.load(Ordering::Acquire) != 0 {
        with_mixed(|streams| {
            if let Some(at) = streams
                .iter()
                .position(|mixed| mixed.lower == stream as usize)
            {
                let mixed = streams.swap_remove(at);
                if mixed.upper != 0 {
                    system_closedir(mixed.upper as *mut DIR);
                }
            }
        });
    }
    system_closedir(stream)
}

/// Whether the program sees nothing in a directory.
pub fn is_empty(directory: &Entry) -> bool {
    let Some(real) = directory.real() else {
        return true;
    };
    // The stream must be one of the path that the program sees, which has the files above too.
    let path = match directory.place {
        Place::Lower(_) => &directory.path,
        _ => real,
    };
    !any_in(path, |_| true)
}

/// Whether `check` holds for any name in a directory; it is called for each until it does.
pub fn any_in(directory: &Path, mut check: impl FnMut(&[u8]) -> bool) -> bool {
    // SAFETY: a C string, and what `opendir` returns is read and closed.
    unsafe {
        let stream = opendir(directory.pointer());
        if stream.is_null() {
            // One that cannot be read may have entries.
            return kernel::error() != libc::ENOENT;
        }
        let found = loop {
            let entry = readdir64(stream);
            if entry.is_null() {
                break false;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes();
            if name != b"." && name != b".." && check(name) {
                break true;
            }
        };
        closedir(stream);
        found
    }
}
