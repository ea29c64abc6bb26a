//! Programs that open the vendor's libraries by name get this library's functions.
//!
//! Programs that are linked to CUDA are bound to this library by the loader. Others open the
//! vendor's libraries and ask them for functions: ONNX Runtime does so with cuDNN and cuFFT,
//! Python with `ctypes`. If this library defines the function that they ask for, they get it.
//!
//! NVML comes with the driver, so a machine without a GPU has none: a program that opens it gets this library.
//!
//! cuDNN gets this library's NVRTC and cuBLASLt. Some of cuDNN's engines compile kernels while they
//! make a plan, which takes seconds each. Nothing runs those kernels here, and this library's NVRTC
//! compiles nothing. The vendor's cuBLASLt makes no handles without the driver's private tables; this
//! library's does.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::AtomicUsize;

use oomph_preload::{Choice, once, or_absent, return_or_jump, system_symbol};

pub use oomph_preload::symbol_of;

use crate::device::look;
use crate::{inner, ledger, linked_in};

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

unsafe extern "C" fn refuse(_name: *const c_char, _flags: c_int) -> *mut c_void {
    std::ptr::null_mut()
}

/// The C library's `dlopen`.
fn system_open() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    once(&FOUND, || {
        // SAFETY: the name is a C string that lives for ever.
        unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) as usize }
    })
}

/// A handle of this library.
fn own_handle() -> Option<usize> {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let found = once(&FOUND, || open_own().unwrap_or(0));
    (found != 0).then_some(found)
}

fn open_own() -> Option<usize> {
    // SAFETY: `dladdr` fills the struct for an address of this library; its path is then opened,
    // which only counts, as it is loaded.
    unsafe {
        let mut info = std::mem::zeroed::<libc::Dl_info>();
        let found = libc::dladdr(open_own as *const () as *const c_void, &raw mut info) != 0;
        let next = system_open();
        if !found || info.dli_fname.is_null() || next == 0 {
            return None;
        }
        let open = std::mem::transmute::<usize, Open>(next);
        let handle = open(info.dli_fname, libc::RTLD_LAZY) as usize;
        (handle != 0).then_some(handle)
    }
}

unsafe extern "C" fn choose(name: *const c_char, flags: c_int) -> Choice {
    let stands_in = !name.is_null() && {
        // SAFETY: not null, so what `dlopen` takes: a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let for_plans = name.starts_with(b"libnvrtc.so") || name.starts_with(b"libcublasLt.so");
        name.starts_with(b"libnvidia-ml.so") || for_plans && inner::is_inside()
    };
    let handle = if stands_in { own_handle() } else { None };
    let next = system_open();
    if !name.is_null() && !stands_in && next != 0 && flags & libc::RTLD_NOLOAD == 0 {
        // SAFETY: the name is what `dlopen` takes, and `next` is the C library's `dlopen`. It is opened once more by the jump.
        unsafe {
            let open = || std::mem::transmute::<usize, Open>(next)(name, flags);
            if let Some(own) = own_handle() {
                linked_in::take_over(CStr::from_ptr(name), own as *mut c_void, open);
            }
        }
    }
    Choice {
        found: handle.unwrap_or(0),
        next: if next == 0 {
            refuse as *const () as usize
        } else {
            next
        },
    }
}

/// `dlopen` resolves names relative to its caller, so this jumps to the C library's function, which then sees
/// the caller and not this function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    return_or_jump!(choose)
}

/// The vendor's libraries for which this one stands in. Parts of theirs (`libcudnn_graph.so`), which
/// they open themselves, are not among them.
const REPLACED: [&str; 11] = [
    "libcudart.so",
    "libcublas.so",
    "libcublasLt.so",
    "libcudnn.so",
    "libcufft.so",
    "libcurand.so",
    "libcusparse.so",
    "libcusolver.so",
    "libnccl.so",
    "libnvrtc.so",
    "libcupti.so",
];

/// What the loader keeps of a library (`struct link_map`), up to its path.
#[repr(C)]
struct LinkMap {
    _base: usize,
    path: *const c_char,
}

/// Whether `handle` is of a library for which this one stands in.
///
/// # Safety
/// `handle` must be from `dlopen`.
unsafe fn is_replaced(handle: *mut c_void) -> bool {
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: the handle is open, so the loader writes its record's address, and record and path live
    // as long as the library is open.
    unsafe {
        if libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) != 0
            || map.is_null()
            || (*map).path.is_null()
        {
            return false;
        }
        let path = CStr::from_ptr((*map).path).to_bytes();
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        REPLACED
            .iter()
            .any(|replaced| name.starts_with(replaced.as_bytes()))
    }
}

/// Whether a function of a library may be one of its handles', which are numbers here. Those that say a version or a text are not.
fn is_stateful(name: &CStr) -> bool {
    let name = name.to_bytes();
    let says = |what: &[u8]| name.windows(what.len()).any(|part| part == what);
    ![b"Version".as_slice(), b"Property", b"String", b"Name"]
        .iter()
        .any(|what| says(what))
}

/// Whether `name` is a second version, and the function without a number is here: some ask for a second version of every function,
/// also where CUDA has none, before they ask for the first.
///
/// # Safety
/// `own` must be from `dlopen`.
unsafe fn has_first_version(own: *mut c_void, name: &CStr) -> bool {
    let first = name.to_bytes().strip_suffix(b"_v2");
    // SAFETY: an open handle and a C string.
    first
        .and_then(|first| CString::new(first).ok())
        .is_some_and(|first| unsafe { !symbol_of(own, &first).is_null() })
}

/// Stands for a function that is not here, as the vendor's would look for this library's handles: no library has this status for success.
extern "C" fn lacking() -> c_int {
    15
}

unsafe extern "C" fn choose_symbol(handle: *mut c_void, name: *const c_char) -> Choice {
    let next = or_absent(system_symbol());
    let mut choice = Choice { found: 0, next };
    if handle == libc::RTLD_DEFAULT
        || handle == libc::RTLD_NEXT
        || name.is_null()
        || inner::is_inside()
    {
        return choice;
    }
    // SAFETY: neither is null or a wildcard, so what `dlsym` takes: an open handle and a C string.
    unsafe {
        let name = CStr::from_ptr(name);
        let is_cuda = [b"cu".as_slice(), b"nv", b"nccl", b"__cuda"]
            .iter()
            .any(|prefix| name.to_bytes().starts_with(prefix));
        let own = own_handle().map_or(std::ptr::null_mut(), |own| own as *mut c_void);
        if is_cuda && !own.is_null() && (handle == own || is_replaced(handle)) {
            choice.found = symbol_of(own, name) as usize;
            if choice.found == 0 && (handle == own || is_stateful(name)) {
                if !has_first_version(own, name) {
                    ledger::missed(name);
                }
                // XLA asks for each function by name when it needs it, so those that nobody has fail when they are called; to other
                // programs they are absent.
                if handle != own && (look().is_xla || !symbol_of(handle, name).is_null()) {
                    choice.found = lacking as *const () as usize;
                }
            }
        }
    }
    choice
}

/// `dlsym`; the C library's is jumped to, so that it sees the caller and not this function.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    return_or_jump!(choose_symbol)
}
