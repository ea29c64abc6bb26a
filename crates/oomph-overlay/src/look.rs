//! Functions that look at files by their paths and change nothing, and those that change what a file is said to be.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};

use libc::{gid_t, mode_t, size_t, ssize_t, timespec, timeval, uid_t};

use crate::kernel::{HERE, call, fail};
use crate::overlay::{Entry, Place, in_use, own_directory};
use crate::settings::Settings;
use crate::system::{name_of, system};

/// Calls `look` with the path at which the file really is.
pub(crate) fn visible(
    at: c_int,
    path: *const c_char,
    follow: bool,
    look: impl FnOnce(c_int, *const c_char) -> c_long,
) -> c_long {
    if in_use().is_none() {
        return look(at, path);
    }
    match Entry::find(at, path, follow) {
        None => look(at, path),
        Some(entry) => match &entry.place {
            Place::Upper(upper, _) => look(HERE, upper.pointer()),
            Place::Gone | Place::Absent | Place::Endless => fail(entry.lack()).into(),
            Place::Lower(_) | Place::Outside => look(HERE, entry.path.pointer()),
        },
    }
}

fn follows(flags: c_int) -> bool {
    flags & libc::AT_SYMLINK_NOFOLLOW == 0
}

/// Defines functions that look: `$name(...) -> type = follow, (directory, path) => the kernel's call`.
macro_rules! looking {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $follow:expr, ($from:expr, $path:expr), |$at:ident, $real:ident| $call:expr;)*) => {$(
        /// The C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            visible($from, $path, $follow, |$at, $real| $call) as $result
        }
    )*};
}

/// `fstatat`.
macro_rules! status {
    ($at:expr, $path:expr, $buffer:expr, $flags:expr) => {
        call!(SYS_newfstatat, $at, $path, $buffer, $flags)
    };
}

const FOLLOW: c_int = 0;
const NO_FOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

looking! {
    stat(path: *const c_char, buffer: *mut libc::stat) -> c_int = true, (HERE, path), |at, real| status!(at, real, buffer, FOLLOW);
    stat64(path: *const c_char, buffer: *mut libc::stat) -> c_int = true, (HERE, path), |at, real| status!(at, real, buffer, FOLLOW);
    lstat(path: *const c_char, buffer: *mut libc::stat) -> c_int = false, (HERE, path), |at, real| status!(at, real, buffer, NO_FOLLOW);
    lstat64(path: *const c_char, buffer: *mut libc::stat) -> c_int = false, (HERE, path), |at, real| status!(at, real, buffer, NO_FOLLOW);
    fstatat(from: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int) -> c_int = follows(flags), (from, path), |at, real| status!(at, real, buffer, flags);
    fstatat64(from: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int) -> c_int = follows(flags), (from, path), |at, real| status!(at, real, buffer, flags);
    __xstat(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int = true, (HERE, path), |at, real| status!(at, real, buffer, FOLLOW);
    __xstat64(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int = true, (HERE, path), |at, real| status!(at, real, buffer, FOLLOW);
    __lxstat(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int = false, (HERE, path), |at, real| status!(at, real, buffer, NO_FOLLOW);
    __lxstat64(_version: c_int, path: *const c_char, buffer: *mut libc::stat) -> c_int = false, (HERE, path), |at, real| status!(at, real, buffer, NO_FOLLOW);
    __fxstatat(_version: c_int, from: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int) -> c_int = follows(flags), (from, path), |at, real| status!(at, real, buffer, flags);
    __fxstatat64(_version: c_int, from: c_int, path: *const c_char, buffer: *mut libc::stat, flags: c_int) -> c_int = follows(flags), (from, path), |at, real| status!(at, real, buffer, flags);
    statx(from: c_int, path: *const c_char, flags: c_int, mask: c_uint, buffer: *mut c_void) -> c_int = follows(flags), (from, path), |at, real| call!(SYS_statx, at, real, flags, mask, buffer);
    access(path: *const c_char, mode: c_int) -> c_int = true, (HERE, path), |at, real| call!(SYS_faccessat, at, real, mode);
    readlink(path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t = false, (HERE, path), |at, real| call!(SYS_readlinkat, at, real, buffer, size);
    readlinkat(from: c_int, path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t = false, (from, path), |at, real| call!(SYS_readlinkat, at, real, buffer, size);
    getxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = true, (HERE, path), |_at, real| call!(SYS_getxattr, real, name, value, size);
    lgetxattr(path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = false, (HERE, path), |_at, real| call!(SYS_lgetxattr, real, name, value, size);
    listxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t = true, (HERE, path), |_at, real| call!(SYS_listxattr, real, list, size);
    llistxattr(path: *const c_char, list: *mut c_char, size: size_t) -> ssize_t = false, (HERE, path), |_at, real| call!(SYS_llistxattr, real, list, size);
    statfs(path: *const c_char, buffer: *mut c_void) -> c_int = true, (HERE, path), |_at, real| call!(SYS_statfs, real, buffer);
    statfs64(path: *const c_char, buffer: *mut c_void) -> c_int = true, (HERE, path), |_at, real| call!(SYS_statfs, real, buffer);
    chdir(path: *const c_char) -> c_int = true, (HERE, path), |_at, real| call!(SYS_chdir, real);
}

type Faccessat = unsafe extern "C" fn(c_int, *const c_char, c_int, c_int) -> c_int;

/// `faccessat` of the C library, which knows flags that older kernels do not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faccessat(
    from: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    visible(from, path, follows(flags), |at, real| {
        system!(
            c"faccessat",
            Faccessat,
            fail(libc::ENOSYS),
            at,
            real,
            mode,
            flags
        )
        .into()
    }) as c_int
}

type OfPath = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;

/// Defines functions of a path and a buffer that the C library fills itself.
macro_rules! filling {
    ($($name:ident)*) => {$(
        /// The C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, buffer: *mut c_void) -> c_int {
            visible(HERE, path, true, |_, real| {
                system!(name_of!($name), OfPath, fail(libc::ENOSYS), real, buffer).into()
            }) as c_int
        }
    )*};
}

filling! { statvfs statvfs64 }

type Getcwd = unsafe extern "C" fn(*mut c_char, size_t) -> *mut c_char;
type Realpath = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;

/// `realpath` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    if in_use().is_some()
        && let Some(entry) = Entry::find(HERE, path, true)
    {
        match &entry.place {
            Place::Upper(..) => {
                // SAFETY: the path is a C string; the program's buffer has `PATH_MAX` bytes, as it must, and so has the path.
                return unsafe {
                    if into.is_null() {
                        libc::strdup(entry.path.pointer())
                    } else {
                        libc::strcpy(into, entry.path.pointer())
                    }
                };
            }
            Place::Gone | Place::Absent | Place::Endless => {
                fail(entry.lack());
                return std::ptr::null_mut();
            }
            Place::Lower(_) | Place::Outside => {}
        }
    }
    system!(c"realpath", Realpath, std::ptr::null_mut(), path, into)
}

/// `getcwd` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getcwd(buffer: *mut c_char, size: size_t) -> *mut c_char {
    let found = system!(c"getcwd", Getcwd, std::ptr::null_mut(), buffer, size);
    if !found.is_null() && in_use().is_some() {
        // SAFETY: a C string, and the one that replaces it is shorter.
        unsafe {
            if let Some(own) = own_directory(CStr::from_ptr(found).to_bytes()) {
                libc::strcpy(found, own.pointer());
            }
        }
    }
    found
}

/// Changes what a file is said to be: nothing of a lower file that is not the program's.
fn describe(
    at: c_int,
    path: *const c_char,
    follow: bool,
    change: impl FnOnce(c_int, *const c_char) -> c_long,
) -> c_int {
    if Settings::now().is_none() {
        return change(at, path) as c_int;
    }
    match Entry::find(at, path, follow) {
        None => change(at, path) as c_int,
        Some(entry) if entry.stays() => 0,
        Some(entry) => match entry.real() {
            Some(real) => change(HERE, real.pointer()) as c_int,
            None => fail(entry.lack()),
        },
    }
}

/// Defines functions that describe: as `looking!`.
macro_rules! describing {
    ($($name:ident($($argument:ident: $type:ty),*) = $follow:expr, ($from:expr, $path:expr), |$at:ident, $real:ident| $call:expr;)*) => {$(
        /// The C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            describe($from, $path, $follow, |$at, $real| $call)
        }
    )*};
}

describing! {
    chmod(path: *const c_char, mode: mode_t) = true, (HERE, path), |at, real| call!(SYS_fchmodat, at, real, mode);
    chown(path: *const c_char, owner: uid_t, group: gid_t) = true, (HERE, path), |at, real| call!(SYS_fchownat, at, real, owner, group, FOLLOW);
    lchown(path: *const c_char, owner: uid_t, group: gid_t) = false, (HERE, path), |at, real| call!(SYS_fchownat, at, real, owner, group, NO_FOLLOW);
    fchownat(from: c_int, path: *const c_char, owner: uid_t, group: gid_t, flags: c_int) = follows(flags), (from, path), |at, real| call!(SYS_fchownat, at, real, owner, group, flags);
    setxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) = true, (HERE, path), |_at, real| call!(SYS_setxattr, real, name, value, size, flags);
    lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, size: size_t, flags: c_int) = false, (HERE, path), |_at, real| call!(SYS_lsetxattr, real, name, value, size, flags);
    removexattr(path: *const c_char, name: *const c_char) = true, (HERE, path), |_at, real| call!(SYS_removexattr, real, name);
}

/// `fchmodat` of the C library. The mode of a link itself cannot be changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fchmodat(
    from: c_int,
    path: *const c_char,
    mode: mode_t,
    flags: c_int,
) -> c_int {
    if !follows(flags) {
        return fail(libc::EOPNOTSUPP);
    }
    describe(from, path, true, |at, real| {
        call!(SYS_fchmodat, at, real, mode)
    })
}

/// `utimensat` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utimensat(
    from: c_int,
    path: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    if path.is_null() {
        return call!(SYS_utimensat, from, path, times, flags) as c_int;
    }
    describe(from, path, follows(flags), |at, real| {
        call!(SYS_utimensat, at, real, times, flags)
    })
}

/// Times in microseconds as the kernel takes them.
fn set_times(path: *const c_char, times: *const timeval, flags: c_int) -> c_int {
    let times = (!times.is_null()).then(|| {
        // SAFETY: two times, as the C library's functions take them.
        let times = unsafe { [*times, *times.add(1)] };
        times.map(|time| timespec {
            tv_sec: time.tv_sec,
            tv_nsec: time.tv_usec * 1000,
        })
    });
    let times = times
        .as_ref()
        .map_or(std::ptr::null(), |times| times.as_ptr());
    describe(HERE, path, follows(flags), |at, real| {
        call!(SYS_utimensat, at, real, times, flags)
    })
}

/// `utimes` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utimes(path: *const c_char, times: *const timeval) -> c_int {
    set_times(path, times, FOLLOW)
}

/// `lutimes` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
    set_times(path, times, NO_FOLLOW)
}

/// `utime` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
    let times = (!times.is_null()).then(|| {
        // SAFETY: the times, as the C library's function takes them.
        let times = unsafe { [(*times).actime, (*times).modtime] };
        times.map(|time| timeval {
            tv_sec: time,
            tv_usec: 0,
        })
    });
    let times = times
        .as_ref()
        .map_or(std::ptr::null(), |times| times.as_ptr());
    set_times(path, times, FOLLOW)
}
