//! Functions that make, rename and remove files by their paths.

use std::ffi::{c_char, c_int, c_uint};

use libc::{S_IFDIR, S_IFREG, dev_t, mode_t};

use crate::directories;
use crate::kernel::{self, HERE, call, fail};
use crate::overlay::{Entry, New, Place, copy_file, note_temporary};
use crate::path::{Path, is_within, of_program};
use crate::settings::Settings;

/// Makes what `make` makes at a path, which must be new. A directory of its owner's alone has such a `mode`.
fn make_new(
    at: c_int,
    path: *const c_char,
    mode: mode_t,
    make: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    let found = Settings::now().and_then(|_| Entry::find(at, path, false));
    let Some(entry) = found else {
        let done = make(at, path);
        if done == 0 {
            note_temporary(at, path, mode);
        }
        return done;
    };
    if matches!(entry.place, Place::Outside) {
        return make(HERE, entry.path.pointer());
    }
    match entry.new_place() {
        New::Upper(upper) => make(HERE, upper.pointer()),
        New::Refused(error) => fail(error),
        New::Lower => {
            let done = make(at, path);
            if done == 0 {
                entry.mark_own();
            }
            done
        }
    }
}

/// Removes a file, or an empty directory.
fn remove_at(at: c_int, path: *const c_char, flags: c_int) -> c_int {
    let found = Settings::now().and_then(|_| Entry::find(at, path, false));
    let Some(entry) = found else {
        return kernel::unlink(at, path, flags);
    };
    if matches!(entry.place, Place::Outside) {
        return kernel::unlink(HERE, entry.path.pointer(), flags);
    }
    let Some(kind) = entry.kind() else {
        return fail(entry.lack());
    };
    let of_directory = flags & libc::AT_REMOVEDIR != 0;
    match (kind == S_IFDIR, of_directory) {
        (true, false) => return fail(libc::EISDIR),
        (false, true) => return fail(libc::ENOTDIR),
        (true, true) if !directories::is_empty(&entry) => return fail(libc::ENOTEMPTY),
        _ => {}
    }
    let hides = kernel::kind(entry.path.text()).is_some();
    match &entry.place {
        Place::Lower(_) if entry.is_own() => {
            let done = kernel::unlink(HERE, entry.path.pointer(), flags);
            if done == 0 {
                remove_twin(&entry, flags);
            }
            done
        }
        // What the program may not remove, it learns.
        Place::Lower(_) if !may_change_parent(&entry) => kernel::unlink(at, path, flags),
        Place::Lower(_) => {
            remove_twin(&entry, flags);
            entry.mark_gone();
            0
        }
        Place::Upper(upper, _) => {
            let done = kernel::unlink(HERE, upper.pointer(), flags);
            if done == 0 && hides {
                entry.mark_gone();
            }
            done
        }
        _ => fail(entry.lack()),
    }
}

/// Removes what a lower directory had above it, which is empty.
fn remove_twin(entry: &Entry, flags: c_int) {
    if let Some(twin) = entry.twin() {
        kernel::unlink(HERE, twin.pointer(), flags);
    }
}

fn may_change_parent(entry: &Entry) -> bool {
    let parent = entry.path.parent();
    parent.is_some_and(|parent| kernel::may(HERE, parent.pointer(), libc::W_OK))
}

/// Moves a file to where the overlay keeps it, or from there: it may lie in another file system.
fn move_file(from: &Path, to: &Path) -> c_int {
    let done = kernel::rename(from.pointer(), to.pointer());
    if done == 0 || kernel::error() != libc::EXDEV {
        return done;
    }
    let regular = kernel::status(HERE, from.pointer(), kernel::NO_FOLLOW)
        .filter(|status| status.st_mode & libc::S_IFMT == S_IFREG);
    match regular {
        Some(status) if copy_file(from, to, status.st_mode, u64::MAX) => {
            kernel::unlink(HERE, from.pointer(), 0)
        }
        _ => fail(libc::EXDEV),
    }
}

/// Renames a file or a directory.
fn rename_at(
    from_at: c_int,
    from: *const c_char,
    to_at: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    let plain = || call!(SYS_renameat2, from_at, from, to_at, to, flags) as c_int;
    if Settings::now().is_none() {
        return plain();
    }
    let (Some(source), Some(target)) = (side(from_at, from), side(to_at, to)) else {
        return plain();
    };
    match (source, target) {
        (Side::Alone(from), Side::Alone(to)) => call!(
            SYS_renameat2,
            HERE,
            from.pointer(),
            HERE,
            to.pointer(),
            flags
        ) as c_int,
        (Side::Alone(from), Side::Protected(target)) => rename_to(&from, false, &target, flags),
        (Side::Protected(source), Side::Alone(to)) => match &source.place {
            Place::Upper(upper, _) => after(move_file(upper, &to), &source),
            Place::Lower(_) if source.is_own() => {
                kernel::rename(source.path.pointer(), to.pointer())
            }
            Place::Lower(_) => fail(libc::EXDEV),
            _ => fail(source.lack()),
        },
        (Side::Protected(source), Side::Protected(target)) => {
            rename_within(&source, &target, flags)
        }
    }
}

/// One of the paths of a renaming.
enum Side {
    /// The overlay leaves it alone.
    Alone(Path),
    /// It does not.
    Protected(Entry),
}

fn side(at: c_int, path: *const c_char) -> Option<Side> {
    match Entry::find(at, path, false) {
        None => of_program(at, path).map(Side::Alone),
        Some(Entry {
            path,
            place: Place::Outside,
            ..
        }) => Some(Side::Alone(path)),
        Some(entry) => Some(Side::Protected(entry)),
    }
}

/// Hides what lay below a file that has moved away.
fn after(done: c_int, source: &Entry) -> c_int {
    if done == 0 && kernel::kind(source.path.text()).is_some() {
        source.mark_gone();
    }
    done
}

/// Moves what is really at `from` to a protected path.
fn rename_to(from: &Path, is_own: bool, target: &Entry, flags: c_uint) -> c_int {
    if flags & libc::RENAME_NOREPLACE != 0 && target.kind().is_some() {
        return fail(libc::EEXIST);
    }
    match (&target.place, target.new_place()) {
        (Place::Upper(upper, _), _) => move_over(from, upper, target),
        (Place::Lower(_), _) if target.stays() => match target.upper() {
            Some(upper) => move_over(from, &upper, target),
            None => fail(libc::ENAMETOOLONG),
        },
        (Place::Lower(_), _) => move_file(from, &target.path),
        (place, New::Upper(upper)) if !is_own || matches!(place, Place::Gone) => {
            move_over(from, &upper, target)
        }
        // A file of the program's among the lower ones stays there.
        (_, New::Upper(_) | New::Lower) => {
            let done = move_file(from, &target.path);
            if done == 0 {
                target.mark_own();
            }
            done
        }
        (_, New::Refused(error)) => fail(error),
    }
}

/// Moves to the upper path of a target. A directory there hides what the lower one of this path has.
fn move_over(from: &Path, upper: &Path, target: &Entry) -> c_int {
    let of_directory = kernel::kind(from.text()) == Some(S_IFDIR);
    if of_directory && target.kind() == Some(S_IFDIR) && !directories::is_empty(target) {
        return fail(libc::ENOTEMPTY);
    }
    let hides = kernel::kind(target.path.text()).is_some();
    let done = move_file(from, upper);
    if done == 0 && of_directory && hides {
        target.mark_gone();
    }
    done
}

fn rename_within(source: &Entry, target: &Entry, flags: c_uint) -> c_int {
    // What the kernel refuses, in its order.
    let is_directory = |entry: &Entry| entry.kind().map(|kind| kind == S_IFDIR);
    match (is_directory(source), is_directory(target)) {
        (None, _) => {
            let error = source.lack();
            return fail(if error == libc::ENOENT {
                target.lack()
            } else {
                error
            });
        }
        _ if target.path.bytes() != source.path.bytes()
            && is_within(source.path.bytes(), target.path.bytes()) =>
        {
            return fail(libc::ENOTEMPTY);
        }
        (Some(true), Some(false)) => return fail(libc::ENOTDIR),
        (Some(false), Some(true)) => return fail(libc::EISDIR),
        _ => {}
    }
    if source.path.bytes() == target.path.bytes() {
        return 0;
    }
    if is_within(target.path.bytes(), source.path.bytes()) {
        return fail(libc::EINVAL);
    }
    match &source.place {
        Place::Upper(upper, _) => after(rename_to(upper, false, target, flags), source),
        Place::Lower(_) if source.is_own() => {
            let twin = source.twin();
            let done = rename_to(&source.path, true, target, flags);
            // A directory may have files above.
            if done == 0
                && let (Some(twin), Some(upper)) = (twin, target.upper())
            {
                kernel::rename(twin.pointer(), upper.pointer());
            }
            done
        }
        // As overlayfs does: programs then copy.
        Place::Lower(status) if status.st_mode & libc::S_IFMT != S_IFREG => fail(libc::EXDEV),
        Place::Lower(_) => match source.copy_up(true) {
            Some(upper) => after(rename_to(&upper, false, target, flags), source),
            None => fail(libc::EXDEV),
        },
        _ => fail(source.lack()),
    }
}

/// Makes another name of a file: a copy, where the overlay has one of them.
fn link_at(
    from_at: c_int,
    from: *const c_char,
    to_at: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
    let source = Settings::now().and_then(|_| Entry::find(from_at, from, follow));
    let Some(source) = source else {
        return make_new(to_at, to, OTHER, |at, to| {
            call!(SYS_linkat, from_at, from, at, to, flags) as c_int
        });
    };
    let Some(real) = source.real() else {
        return fail(source.lack());
    };
    make_new(to_at, to, OTHER, |at, to| {
        if source.kind() == Some(S_IFDIR) {
            return fail(libc::EPERM);
        }
        // The other name of a lower file would let it be changed.
        if !source.stays() && call!(SYS_linkat, HERE, real.pointer(), at, to, 0) == 0 {
            return 0;
        }
        let copied = of_program(at, to).is_some_and(|to| copy_file(real, &to, 0o600, u64::MAX));
        if copied { 0 } else { fail(libc::EXDEV) }
    })
}

/// The mode of what is no directory.
const OTHER: mode_t = 0o777;

/// Defines functions of the C library by what they do.
macro_rules! changing {
    ($($name:ident($($argument:ident: $type:ty),*) = $done:expr;)*) => {$(
        /// The C library's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            $done
        }
    )*};
}

changing! {
    mkdir(path: *const c_char, mode: mode_t) = make_new(HERE, path, mode, |at, real| call!(SYS_mkdirat, at, real, mode) as c_int);
    mkdirat(at: c_int, path: *const c_char, mode: mode_t) = make_new(at, path, mode, |at, real| call!(SYS_mkdirat, at, real, mode) as c_int);
    mkfifo(path: *const c_char, mode: mode_t) = make_new(HERE, path, OTHER, |at, real| call!(SYS_mknodat, at, real, mode | libc::S_IFIFO, 0) as c_int);
    mknod(path: *const c_char, mode: mode_t, device: dev_t) = make_new(HERE, path, OTHER, |at, real| call!(SYS_mknodat, at, real, mode, device) as c_int);
    symlink(target: *const c_char, path: *const c_char) = make_new(HERE, path, OTHER, |at, real| call!(SYS_symlinkat, target, at, real) as c_int);
    symlinkat(target: *const c_char, at: c_int, path: *const c_char) = make_new(at, path, OTHER, |at, real| call!(SYS_symlinkat, target, at, real) as c_int);
    link(from: *const c_char, to: *const c_char) = link_at(HERE, from, HERE, to, 0);
    linkat(from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_int) = link_at(from_at, from, to_at, to, flags);
    unlink(path: *const c_char) = remove_at(HERE, path, 0);
    unlinkat(at: c_int, path: *const c_char, flags: c_int) = remove_at(at, path, flags);
    rmdir(path: *const c_char) = remove_at(HERE, path, libc::AT_REMOVEDIR);
    remove(path: *const c_char) = remove_any(path);
    rename(from: *const c_char, to: *const c_char) = rename_at(HERE, from, HERE, to, 0);
    renameat(from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char) = rename_at(from_at, from, to_at, to, 0);
    renameat2(from_at: c_int, from: *const c_char, to_at: c_int, to: *const c_char, flags: c_uint) = rename_at(from_at, from, to_at, to, flags);
}

fn remove_any(path: *const c_char) -> c_int {
    let done = remove_at(HERE, path, 0);
    if done == 0 || kernel::error() != libc::EISDIR {
        return done;
    }
    remove_at(HERE, path, libc::AT_REMOVEDIR)
}
