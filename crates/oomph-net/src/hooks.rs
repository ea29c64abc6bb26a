//! Functions that stand in front of the driver's.
//!
//! Each function that puts work on the GPU passes the [`gate`], and launches are shown to the [`net`]. They are
//! all called through one function with a slot for each: they take integers and pointers only, at most
//! twelve, so that many are passed on.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::net::Work;
use crate::{gate, loader, net};

/// A function of the driver that is stood in front of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// `cuGetProcAddress` before CUDA 12, and since.
    Find,
    FindWithStatus,
    /// Launches, by where their arguments are.
    Launch,
    LaunchCooperative,
    LaunchEx,
    LaunchGraph,
    /// Copies and fills.
    Copy,
    BeginCapture,
    EndCapture,
    /// All else that puts work on a stream.
    Other,
}

/// What the driver's function `name` is to the net; `None` leaves it alone.
pub fn kind_of(name: &[u8]) -> Option<Kind> {
    const PREFIXES: [(&[u8], Kind); 16] = [
        (b"cuGetProcAddress_v2", Kind::FindWithStatus),
        (b"cuGetProcAddress", Kind::Find),
        (b"cuLaunchKernelEx", Kind::LaunchEx),
        (b"cuLaunchKernel", Kind::Launch),
        (b"cuLaunchCooperativeKernelMultiDevice", Kind::Other),
        (b"cuLaunchCooperativeKernel", Kind::LaunchCooperative),
        (b"cuLaunch", Kind::Other),
        (b"cuGraphLaunch", Kind::LaunchGraph),
        (b"cuMemcpy", Kind::Copy),
        (b"cuMemset", Kind::Copy),
        (b"cuStreamBeginCapture", Kind::BeginCapture),
        (b"cuStreamEndCapture", Kind::EndCapture),
        (b"cuStreamWriteValue", Kind::Other),
        (b"cuStreamWaitValue", Kind::Other),
        (b"cuStreamBatchMemOp", Kind::Other),
        (b"cuMemPrefetch", Kind::Other),
    ];
    if !name.starts_with(b"cu") {
        return None;
    }
    PREFIXES
        .iter()
        .find(|(prefix, _)| name.starts_with(prefix))
        .map(|&(_, kind)| kind)
}

/// What passes through one of [`STAND_INS`].
struct Slot {
    real: AtomicUsize,
    kind: AtomicU32,
}

const SLOTS: usize = 192;
static TABLE: [Slot; SLOTS] = [const {
    Slot {
        real: AtomicUsize::new(0),
        kind: AtomicU32::new(Kind::Other as u32),
    }
}; SLOTS];

/// Whether some work passes by the gate, as there were too few slots: nothing may move then.
static LEAKS: AtomicBool = AtomicBool::new(false);

/// Whether all work is seen.
pub fn sees_all() -> bool {
    !LEAKS.load(Ordering::Relaxed)
}

type Twelve = unsafe extern "C" fn(
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
) -> i32;

/// Stands in front of the function in slot `N`.
unsafe extern "C" fn through<const N: usize>(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
    i: usize,
    j: usize,
    k: usize,
    l: usize,
) -> i32 {
    // SAFETY: a function of the driver was put into the slot before anyone could get this one.
    let real =
        unsafe { std::mem::transmute::<usize, Twelve>(TABLE[N].real.load(Ordering::Relaxed)) };
    let kind = TABLE[N].kind.load(Ordering::Relaxed);
    before(kind, &[a, b, c, d, e, f, g, h, i, j, k]);
    // SAFETY: the caller's arguments; words after them are read from the caller's frame and not used.
    let status = gate::pass(|| unsafe { real(a, b, c, d, e, f, g, h, i, j, k, l) });
    after(kind, status);
    status
}

fn before(kind: u32, words: &[usize; 11]) {
    if !net::is_watching() || gate::is_passing() {
        return;
    }
    let is = |other: Kind| kind == other as u32;
    let work = if is(Kind::Launch) {
        Work::Kernel {
            function: words[0],
            arguments: words[9],
            packed: words[10],
        }
    } else if is(Kind::LaunchEx) {
        Work::Kernel {
            function: words[1],
            arguments: words[2],
            packed: words[3],
        }
    } else if is(Kind::LaunchCooperative) {
        Work::Kernel {
            function: words[0],
            arguments: words[9],
            packed: 0,
        }
    } else if is(Kind::LaunchGraph) {
        Work::Graph(words[0])
    } else if is(Kind::Copy) {
        Work::Copy([words[0], words[1]])
    } else {
        return;
    };
    net::before(&work);
}

fn after(kind: u32, status: i32) {
    if kind == Kind::BeginCapture as u32 && status == 0 {
        net::captures(1);
    } else if kind == Kind::EndCapture as u32 {
        net::captures(-1);
    } else if net::is_probing() && !gate::is_passing() {
        net::after();
    }
}

macro_rules! sixteen {
    ($($base:expr),*) => { [$(
        through::<{ $base }>, through::<{ $base + 1 }>, through::<{ $base + 2 }>, through::<{ $base + 3 }>,
        through::<{ $base + 4 }>, through::<{ $base + 5 }>, through::<{ $base + 6 }>, through::<{ $base + 7 }>,
        through::<{ $base + 8 }>, through::<{ $base + 9 }>, through::<{ $base + 10 }>, through::<{ $base + 11 }>,
        through::<{ $base + 12 }>, through::<{ $base + 13 }>, through::<{ $base + 14 }>, through::<{ $base + 15 }>,
    )*] };
}

static STAND_INS: [Twelve; SLOTS] = sixteen!(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176);

/// Who is to be called instead of `real`, the driver's function `name`.
pub fn stand_in(name: &[u8], real: usize) -> usize {
    let Some(kind) = kind_of(name) else {
        return real;
    };
    if real == 0 || is_ours(real) {
        return real;
    }
    if matches!(kind, Kind::Find | Kind::FindWithStatus) {
        net::look_for_other_ways();
    }
    match kind {
        Kind::Find => {
            REAL_FIND.store(real, Ordering::Relaxed);
            return find as *const () as usize;
        }
        Kind::FindWithStatus => {
            REAL_FIND_WITH_STATUS.store(real, Ordering::Relaxed);
            return find_with_status as *const () as usize;
        }
        _ => {}
    }
    for (slot, &function) in TABLE.iter().zip(&STAND_INS) {
        let taken = slot
            .real
            .compare_exchange(0, real, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_ok() {
            slot.kind.store(kind as u32, Ordering::Release);
        }
        if taken.is_ok() || taken == Err(real) {
            return function as *const () as usize;
        }
    }
    LEAKS.store(true, Ordering::Relaxed);
    real
}

fn is_ours(function: usize) -> bool {
    let direct = DIRECT
        .iter()
        .any(|&(_, ours)| ours as *const () as usize == function);
    direct
        || STAND_INS
            .iter()
            .any(|&ours| ours as *const () as usize == function)
}

static REAL_FIND: AtomicUsize = AtomicUsize::new(0);
static REAL_FIND_WITH_STATUS: AtomicUsize = AtomicUsize::new(0);

type Find = unsafe extern "C" fn(*const c_char, *mut usize, i32, u64) -> i32;
type FindWithStatus = unsafe extern "C" fn(*const c_char, *mut usize, i32, u64, *mut i32) -> i32;

/// The driver found `name` for a program that knows CUDA `version`.
///
/// # Safety
/// `name` is a C string or null, `found` what the driver wrote to, or null.
unsafe fn replace(name: *const c_char, found: *mut usize, version: i32) {
    if name.is_null() || found.is_null() {
        return;
    }
    // SAFETY: neither is null.
    unsafe {
        let text = CStr::from_ptr(name).to_bytes();
        let text = if text == b"cuGetProcAddress" && version >= 12_000 {
            b"cuGetProcAddress_v2"
        } else {
            text
        };
        *found = stand_in(text, *found);
    }
}

unsafe extern "C" fn find(name: *const c_char, found: *mut usize, version: i32, flags: u64) -> i32 {
    // SAFETY: the driver's function, with the caller's arguments.
    unsafe {
        let real = std::mem::transmute::<usize, Find>(REAL_FIND.load(Ordering::Relaxed));
        let status = real(name, found, version, flags);
        if status == 0 {
            replace(name, found, version);
        }
        status
    }
}

unsafe extern "C" fn find_with_status(
    name: *const c_char,
    found: *mut usize,
    version: i32,
    flags: u64,
    which: *mut i32,
) -> i32 {
    // SAFETY: the driver's function, with the caller's arguments.
    unsafe {
        let real = std::mem::transmute::<usize, FindWithStatus>(
            REAL_FIND_WITH_STATUS.load(Ordering::Relaxed),
        );
        let status = real(name, found, version, flags, which);
        if status == 0 {
            replace(name, found, version);
        }
        status
    }
}

/// Functions that programs are linked to directly, without asking for them.
macro_rules! direct {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, h: usize, i: usize, j: usize,
                k: usize, l: usize,
            ) -> i32 {
                static TARGET: AtomicUsize = AtomicUsize::new(0);
                let mut target = TARGET.load(Ordering::Relaxed);
                if target == 0 {
                    const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    };
                    let real = loader::of_driver(NAME);
                    if real == 0 {
                        const NOT_INITIALIZED: i32 = 3;
                        return NOT_INITIALIZED;
                    }
                    target = if crate::settings::get().is_some() { stand_in(NAME.to_bytes(), real) } else { real };
                    TARGET.store(target, Ordering::Relaxed);
                }
                // SAFETY: the driver's function or who stands in front of it, with the caller's arguments.
                unsafe { std::mem::transmute::<usize, Twelve>(target)(a, b, c, d, e, f, g, h, i, j, k, l) }
            }
        )*
        static DIRECT: [(&str, Twelve); [$(stringify!($name)),*].len()] = [$((stringify!($name), $name)),*];
    };
}

direct! {
    cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel cuMemcpyAsync cuMemcpyHtoDAsync_v2
    cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyDtoD_v2 cuMemsetD8Async
    cuMemsetD32Async
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_known_by_name() {
        for (name, kind) in [
            ("cuLaunchKernel", Some(Kind::Launch)),
            ("cuLaunchKernel_ptsz", Some(Kind::Launch)),
            ("cuLaunchKernelEx_ptsz", Some(Kind::LaunchEx)),
            ("cuLaunchCooperativeKernel", Some(Kind::LaunchCooperative)),
            ("cuLaunchCooperativeKernelMultiDevice", Some(Kind::Other)),
            ("cuLaunchHostFunc", Some(Kind::Other)),
            ("cuMemcpyHtoDAsync_v2", Some(Kind::Copy)),
            ("cuMemsetD2D32Async", Some(Kind::Copy)),
            ("cuGetProcAddress_v2", Some(Kind::FindWithStatus)),
            ("cuStreamWaitValue32_v2", Some(Kind::Other)),
            ("cuMemAlloc_v2", None),
            ("cudaMemcpy", None),
            ("malloc", None),
        ] {
            assert_eq!(kind_of(name.as_bytes()), kind, "{name}");
        }
    }
}
