//! Keeps the files of a program as they are while it runs.
//!
//! A program on the virtual GPU computes nothing, so what it saves is worthless, and must not replace what a real run saved.
//! This is a copy-on-write overlay over the whole file system, made of the C library's functions, which are preloaded: what
//! the program writes goes to an *upper* directory, and the program finds it in its place. The files that were there are the
//! *lower* ones. No privilege is needed, and the program's other processes see the same, because all state lies in files:
//!
//! - `upper/PATH` is a file or directory that the program has made or changed;
//! - `gone/PATH` says that the lower file or directory of this path is removed (a whiteout);
//! - `made/PATH` says that the lower file or directory was made by the program itself, which may do with it what it likes;
//! - `begun` says that the GPU has worked. Before it has, new files are real: a program downloads and prepares its data first,
//!   and the real run will use them;
//! - `in-place` lists files too large to copy that the program opened to change them: these it did change.
//!
//! [`variables`](settings) say where that directory is and which directories are left alone: those of temporary files,
//! of caches and of devices.
//!
//! What calls the kernel without the C library (Go's programs), and what the C library does inside (`glob`, `dlopen`), sees
//! the lower files.
//!
//! Rules of this crate, which speaks C: each unsafe block says why it may do what it does, nothing panics, and a function
//! that only opens or looks allocates nothing and takes no lock, because it may be called between `fork` and `exec`.

mod change;
mod directories;
mod kernel;
mod look;
mod open;
mod overlay;
mod path;
mod settings;
mod system;

use std::sync::atomic::{AtomicBool, Ordering};

/// The GPU works from now on: what the program writes is no longer kept.
pub fn begin() {
    static SAID: AtomicBool = AtomicBool::new(false);
    // A kernel is launched often: what is written once is only read from then on.
    if !SAID.load(Ordering::Relaxed) && !SAID.swap(true, Ordering::Relaxed) {
        overlay::begin();
    }
}
