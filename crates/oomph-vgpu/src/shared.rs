//! Files that the processes of one run map, and futexes in them.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

/// A mapped file. It starts as zeros, takes memory only where written, and stays mapped as
/// long as the process lives.
#[derive(Debug, Clone, Copy)]
pub struct Shared {
    base: u64,
    len: usize,
}

impl Shared {
    /// Maps `path`, making the file for its owner alone if nobody has; `None` where the system refuses, and
    /// where somebody laid a link.
    pub fn open(path: &Path, len: usize) -> Option<Self> {
        let name = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: plain system calls on a file of our own; the mapping touches nothing else.
        unsafe {
            let file = libc::open(
                name.as_ptr(),
                libc::O_CREAT | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW,
                0o600,
            );
            if file < 0 {
                return None;
            }
            let at = if libc::ftruncate(file, len as libc::off_t) == 0 {
                libc::mmap(
                    std::ptr::null_mut(),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_NORESERVE,
                    file,
                    0,
                )
            } else {
                libc::MAP_FAILED
            };
            libc::close(file);
            (at != libc::MAP_FAILED).then_some(Self {
                base: at as u64,
                len,
            })
        }
    }

    /// The object at `offset`.
    ///
    /// # Safety
    /// `T` must consist of atomics only, for which zeros are a value, and fit there aligned.
    pub unsafe fn at<T>(&self, offset: usize) -> &'static T {
        debug_assert!(
            offset + size_of::<T>() <= self.len && offset.is_multiple_of(align_of::<T>())
        );
        // SAFETY: the mapping is never removed; the rest is the caller's contract.
        unsafe { &*((self.base as usize + offset) as *const T) }
    }

    /// The address of the byte at `offset`.
    pub const fn address(&self, offset: usize) -> u64 {
        self.base + offset as u64
    }

    /// Returns whole pages to the system; they read as zeros again.
    pub fn release(&self, offset: usize, len: usize) {
        // SAFETY: pages of this mapping, whose contents are no longer needed.
        unsafe {
            libc::madvise(
                (self.base as usize + offset) as *mut libc::c_void,
                len,
                libc::MADV_REMOVE,
            );
        }
    }
}

/// Sleeps until a wake-up for `word`, unless it is no longer `seen`; at most
/// `patience`.
pub fn sleep_on(word: &AtomicU32, seen: u32, patience: Duration) {
    let patience = libc::timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(patience.subsec_nanos() as i32),
    };
    // SAFETY: the kernel only reads the word and the time.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            seen,
            &raw const patience,
            0,
            0,
        );
    }
}

/// Changes `word` and wakes all waiters, in all processes.
pub fn wake(word: &AtomicU32) {
    word.fetch_add(1, Ordering::AcqRel);
    // SAFETY: the kernel does not touch the word.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}

/// A short text in shared memory, for people only: a concurrent reader may see parts of two
/// texts.
#[derive(Debug)]
#[repr(C)]
pub struct Text<const N: usize>([AtomicU8; N]);

impl<const N: usize> Text<N> {
    pub fn set(&self, text: &str) {
        let mut bytes = text.bytes().take(N - 1);
        for place in &self.0 {
            place.store(bytes.next().unwrap_or(0), Ordering::Relaxed);
        }
    }

    pub fn get(&self) -> String {
        let bytes: Vec<u8> = self
            .0
            .iter()
            .map(|byte| byte.load(Ordering::Relaxed))
            .take_while(|&byte| byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn links_are_not_followed_and_others_do_not_read() {
        let place = std::env::temp_dir().join(format!("oomph-shared-{}", std::process::id()));
        let _ = fs::remove_dir_all(&place);
        fs::create_dir(&place).unwrap();
        fs::write(place.join("theirs"), "theirs").unwrap();
        symlink(place.join("theirs"), place.join("link")).unwrap();
        assert!(Shared::open(&place.join("link"), 1 << 20).is_none());
        assert_eq!(fs::read(place.join("theirs")).unwrap(), b"theirs");
        assert!(Shared::open(&place.join("own"), 1 << 20).is_some());
        let mode = fs::metadata(place.join("own"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0);
        fs::remove_dir_all(&place).unwrap();
    }
}
