//! Tables of one value that programs keep beside device memory.
//!
//! The allocator of XLA and TensorFlow has a number of eight bytes for each 256 of its pool and fills this table with ones: 3.4 GB for
//! the pool of an H200, whose pages took most of the time in which JAX starts. Device memory is address space without pages here, and
//! so is its table: two windows of pages go along while the program fills it. What they leave behind is read from a file of one window
//! of ones, and copied where it is written to.
//!
//! The window ahead cannot be accessed, so the program's first write there comes to [`on_fault`]. A window that holds anything but ones
//! stays as it is, and from there on the memory is as any other.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use oomph_preload::imported;

/// A page table covers as much, so the kernel moves its pages at once.
const WINDOW: usize = 2 << 20;

/// Below that a table takes no time.
const LEAST: usize = 64 << 20;

type Allocate = unsafe extern "C" fn(usize) -> *mut c_void;

/// Bytes of the table of the newest pool, until it is allocated; 0 if none is expected.
static EXPECTED: AtomicUsize = AtomicUsize::new(0);

/// The function that `operator new` called before [`allocate`].
static BEHIND: AtomicUsize = AtomicUsize::new(0);

/// The table that is being filled. There is one at a time.
struct Filling {
    busy: AtomicBool,
    /// The thread that fills it.
    thread: AtomicI32,
    /// The window ahead, and the end of the last one.
    next: AtomicUsize,
    end: AtomicUsize,
    /// A window of ones.
    file: AtomicI32,
    /// What handled faults before.
    before: UnsafeCell<MaybeUninit<libc::sigaction>>,
}

// SAFETY: `before` is written and read by who has set `busy`, and by the handler that was installed after that.
unsafe impl Sync for Filling {}

static FILLING: Filling = Filling {
    busy: AtomicBool::new(false),
    thread: AtomicI32::new(0),
    next: AtomicUsize::new(0),
    end: AtomicUsize::new(0),
    file: AtomicI32::new(-1),
    before: UnsafeCell::new(MaybeUninit::uninit()),
};

/// A program took a pool of so many bytes: its next memory of the size of a table for it may be one.
pub fn expect(pool: u64) {
    let table = pool.div_ceil(256) as usize * size_of::<u64>();
    if table < LEAST {
        return;
    }
    EXPECTED.store(table, Ordering::Relaxed);
    if BEHIND.load(Ordering::Acquire) == 0
        && let Some(slot) = imported("libstdc++.so", c"malloc")
    {
        let own = allocate as *const () as usize;
        let found = slot.load(Ordering::Relaxed);
        if found != own
            && BEHIND.compare_exchange(0, found, Ordering::AcqRel, Ordering::Relaxed) == Ok(0)
        {
            slot.store(own, Ordering::Release);
        }
    }
}

/// `malloc`, as `operator new` calls it.
unsafe extern "C" fn allocate(size: usize) -> *mut c_void {
    // SAFETY: what the slot held is `malloc`, or the loader's way to it.
    let block =
        unsafe { std::mem::transmute::<usize, Allocate>(BEHIND.load(Ordering::Acquire))(size) };
    let is_table = size >= LEAST
        && EXPECTED.compare_exchange(size, 0, Ordering::Relaxed, Ordering::Relaxed) == Ok(size);
    if is_table && !block.is_null() && !FILLING.busy.swap(true, Ordering::Acquire) {
        // SAFETY: nobody else has the block yet, and `busy` is set.
        let started = unsafe { start(block as usize, size) };
        if started.is_none() {
            FILLING.busy.store(false, Ordering::Release);
        }
    }
    block
}

/// Whether glibc took `block` from the kernel by itself, and so gives it back whole, whatever is mapped there.
///
/// # Safety
/// `block` must be from `malloc`.
unsafe fn is_mapped_alone(block: usize) -> bool {
    const IS_MAPPED: usize = 2;
    // SAFETY: glibc's header lies in front of a block that does not begin with its page; other allocators' large ones do.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        block % page == 2 * size_of::<usize>()
            && ((block - size_of::<usize>()) as *const usize).read() & IS_MAPPED != 0
    }
}

/// A file of one window of ones.
fn ones() -> Option<c_int> {
    // SAFETY: the kernel checks the arguments; the mapping is as long as the file, and unmapped after the write.
    unsafe {
        let file = libc::memfd_create(c"ones".as_ptr(), libc::MFD_CLOEXEC);
        if file < 0 {
            return None;
        }
        if libc::ftruncate(file, WINDOW as libc::off_t) == 0 {
            let at = map(null_mut(), libc::MAP_SHARED, file);
            if at != libc::MAP_FAILED {
                at.cast::<u8>().write_bytes(0xff, WINDOW);
                libc::munmap(at, WINDOW);
                return Some(file);
            }
        }
        libc::close(file);
        None
    }
}

/// A window of `file`, at `at` if `flags` say so.
///
/// # Safety
/// As `mmap`.
unsafe fn map(at: *mut c_void, flags: c_int, file: c_int) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        libc::mmap(
            at,
            WINDOW,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            file,
            0,
        )
    }
}

/// Lets windows go along with what fills `size` bytes at `block`; none if they cannot.
///
/// # Safety
/// Nobody may have the block, which is from `malloc`, and `busy` must be set.
unsafe fn start(block: usize, size: usize) -> Option<()> {
    let first = block.next_multiple_of(WINDOW);
    let end = (block + size) / WINDOW * WINDOW;
    // SAFETY: the header is there as `is_mapped_alone` says; the rest asks the kernel, for whole windows of the caller's block.
    unsafe {
        let mut blocked = zeroed::<libc::sigset_t>();
        libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut blocked);
        if !is_mapped_alone(block) || libc::sigismember(&raw const blocked, libc::SIGSEGV) != 0 {
            return None;
        }
        let file = ones()?;
        FILLING.thread.store(libc::gettid(), Ordering::Relaxed);
        FILLING.file.store(file, Ordering::Relaxed);
        FILLING.next.store(first + 2 * WINDOW, Ordering::Relaxed);
        FILLING.end.store(end, Ordering::Relaxed);
        let mut action = zeroed::<libc::sigaction>();
        action.sa_sigaction = on_fault as *const () as usize;
        // Not on the alternative stack, which may be short.
        action.sa_flags = libc::SA_SIGINFO;
        if libc::sigaction(
            libc::SIGSEGV,
            &raw const action,
            (*FILLING.before.get()).as_mut_ptr(),
        ) != 0
        {
            libc::close(file);
            return None;
        }
        if !protect_rest(libc::PROT_NONE) {
            finish();
        }
    }
    Some(())
}

/// Sets the protection of what no window has reached. Called by whoever has set `busy`, and by the handler.
fn protect_rest(protection: c_int) -> bool {
    let next = FILLING.next.load(Ordering::Relaxed);
    let rest = FILLING.end.load(Ordering::Relaxed).saturating_sub(next);
    // SAFETY: the rest of the program's block, which nobody has written to.
    rest == 0 || unsafe { libc::mprotect(next as *mut c_void, rest, protection) == 0 }
}

/// From here on the memory is as any other, and faults are handled as before.
///
/// # Safety
/// The handler must be installed.
unsafe fn finish() {
    protect_rest(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: `start` has filled `before` and opened the file. A handler that was installed meanwhile stays.
    unsafe {
        let mut now = zeroed::<libc::sigaction>();
        libc::sigaction(libc::SIGSEGV, null(), &raw mut now);
        if now.sa_sigaction == on_fault as *const () as usize {
            libc::sigaction(libc::SIGSEGV, (*FILLING.before.get()).as_ptr(), null_mut());
        }
        libc::close(FILLING.file.load(Ordering::Relaxed));
    }
    FILLING.busy.store(false, Ordering::Release);
}

/// The table is written to in the window ahead. What else comes here ends the filling, and happens again to the handler before.
unsafe extern "C" fn on_fault(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    let next = FILLING.next.load(Ordering::Relaxed);
    // SAFETY: the kernel's record of a fault; the windows are the block's.
    unsafe {
        let sent = (*info).si_code <= 0;
        let is_ahead = !sent
            && (next..next + WINDOW).contains(&((*info).si_addr() as usize))
            && next < FILLING.end.load(Ordering::Relaxed)
            && libc::gettid() == FILLING.thread.load(Ordering::Relaxed);
        // The one just left may lack its last bytes, as a loop may write two parts of a step in any order.
        if !is_ahead || !advance((next - 2 * WINDOW) as *mut c_void, next as *mut c_void) {
            finish();
        } else if next + WINDOW >= FILLING.end.load(Ordering::Relaxed) {
            FILLING.next.store(next + WINDOW, Ordering::Relaxed);
            finish();
        } else {
            FILLING.next.store(next + WINDOW, Ordering::Relaxed);
        }
        if sent {
            libc::raise(libc::SIGSEGV);
        }
    }
}

/// Moves the pages of `window`, if it is all ones, to `to`, and leaves the file's in their place.
///
/// # Safety
/// Both must be whole windows of the table, which nobody writes to.
unsafe fn advance(window: *mut c_void, to: *mut c_void) -> bool {
    // SAFETY: the window can be read; what is unmapped is what the caller gives.
    unsafe {
        let values = std::slice::from_raw_parts(window.cast::<u64>(), WINDOW / size_of::<u64>());
        if values.iter().fold(u64::MAX, |all, value| all & value) != u64::MAX {
            return false;
        }
        let moving = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        if libc::mremap(window, WINDOW, WINDOW, moving, to) != to {
            return false;
        }
        let file = FILLING.file.load(Ordering::Relaxed);
        if map(window, libc::MAP_PRIVATE | libc::MAP_FIXED, file) != window {
            // Too many mappings: pages of its own, empty since the move.
            window.cast::<u8>().write_bytes(0xff, WINDOW);
        }
        true
    }
}
