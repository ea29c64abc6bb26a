//! What the preloaded libraries share: the C library's `dlsym`, and standing in front of functions of the loader.
//!
//! Rules of this crate, which speaks C: each unsafe block says why it may do what it does, nothing panics, and
//! nothing takes a lock, because the loader may be active.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// `dlsym`.
pub type Symbol = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// What a function that stands in front of another does next: return `found`, or jump to `next` if that is null.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// What the caller gets, or null.
    pub found: usize,
    /// The function behind.
    pub next: usize,
}

/// The body of a naked function of at most two arguments. Asks `$choose`, which takes the same ones and returns a
/// [`Choice`]; returns what it found, or jumps to the next function with the caller's arguments, which then sees
/// the caller and not this library.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! return_or_jump {
    ($choose:ident) => {
        std::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "sub rsp, 8",
            "call {choose}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "jnz 2f",
            "jmp rdx",
            "2:",
            "ret",
            choose = sym $choose,
        )
    };
}

/// The same in ARM's registers.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! return_or_jump {
    ($choose:ident) => {
        std::arch::naked_asm!(
            "stp x0, x1, [sp, #-32]!",
            "str x30, [sp, #16]",
            "bl {choose}",
            "mov x9, x0",
            "mov x10, x1",
            "ldr x30, [sp, #16]",
            "ldp x0, x1, [sp], #32",
            "cbz x9, 2f",
            "mov x0, x9",
            "ret",
            "2:",
            "br x10",
            choose = sym $choose,
        )
    };
}

/// The result of `find`, repeated until it succeeds.
pub fn once(cache: &AtomicUsize, find: impl FnOnce() -> usize) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let found = find();
    cache.store(found, Ordering::Relaxed);
    found
}

/// The C library's `dlsym`, which cannot be asked for itself; 0 if it has another version than those known.
pub fn system_symbol() -> usize {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    /// The version since glibc 2.34, and the first ones of x86-64 and ARM.
    const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];
    once(&FOUND, || {
        let find = |version: &CStr| {
            // SAFETY: name and version are C strings that live for ever.
            unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) as usize }
        };
        VERSIONS
            .into_iter()
            .map(find)
            .find(|&found| found != 0)
            .unwrap_or(0)
    })
}

/// The definition of `name` in the library of `handle` itself, whatever stands in front of `dlsym`.
///
/// # Safety
/// `handle` must be from `dlopen`, or a wildcard.
pub unsafe fn symbol_of(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let system = system_symbol();
    if system == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the C library's `dlsym`, which has this signature; the caller's handle is open.
    unsafe { std::mem::transmute::<usize, Symbol>(system)(handle, name.as_ptr()) }
}

/// The address of `next`, or of a function that finds nothing if it is 0: what [`Choice::next`] needs.
pub fn or_absent(next: usize) -> usize {
    unsafe extern "C" fn absent(_: *mut c_void, _: *const c_char) -> *mut c_void {
        std::ptr::null_mut()
    }
    if next == 0 {
        absent as *const () as usize
    } else {
        next
    }
}

/// An entry of a library's dynamic section (`Elf64_Dyn`).
#[repr(C)]
struct Entry {
    tag: usize,
    value: usize,
}

/// A relocation (`Elf64_Rela`).
#[repr(C)]
struct Relocation {
    offset: usize,
    info: usize,
    addend: usize,
}

/// What [`imported`] looks for, and what it found.
struct Import<'a> {
    library: &'a str,
    name: &'a CStr,
    slot: Option<&'static AtomicUsize>,
}

/// The place where a loaded library, whose file's name begins with `library`, keeps the address of the function `name` of another one
/// that it calls. It can be written to. The library must stay loaded.
pub fn imported(library: &str, name: &CStr) -> Option<&'static AtomicUsize> {
    let mut import = Import {
        library,
        name,
        slot: None,
    };
    // SAFETY: the callback gets the loader's records and this struct, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut import).cast()) };
    import.slot
}

/// Looks for an [`Import`] in a library that is loaded; 1 if it is that library.
unsafe extern "C" fn look_at(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    import: *mut c_void,
) -> c_int {
    const DYNAMIC: u32 = 2;
    // SAFETY: `dl_iterate_phdr` passes records that live during the call, and the pointer that `imported` gave it.
    unsafe {
        let (info, import) = (&*info, &mut *import.cast::<Import>());
        if info.dlpi_name.is_null() {
            return 0;
        }
        let path = CStr::from_ptr(info.dlpi_name).to_bytes();
        let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        if !file.starts_with(import.library.as_bytes()) {
            return 0;
        }
        let base = info.dlpi_addr as usize;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        if let Some(header) = headers.iter().find(|header| header.p_type == DYNAMIC) {
            let dynamic = (base + header.p_vaddr as usize) as *const Entry;
            import.slot = slot_of(base, dynamic, import.name).and_then(|slot| writable(slot));
        }
        1
    }
}

/// The address of the slot for `name` in the library at `base`.
///
/// # Safety
/// `dynamic` must be the dynamic section of a loaded library.
unsafe fn slot_of(base: usize, dynamic: *const Entry, name: &CStr) -> Option<usize> {
    const NAMES: usize = 5;
    const SYMBOLS: usize = 6;
    /// Where a table of relocations is, and how large: of calls, and of the rest.
    const TABLES: [(usize, usize); 2] = [(23, 2), (7, 8)];
    // SAFETY: the section ends with an entry of tag 0, and says where and how large the tables are.
    unsafe {
        let entries = (0..).map(|index| &*dynamic.add(index));
        let entries = entries.take_while(|entry| entry.tag != 0);
        let value = |tag| {
            entries
                .clone()
                .find(|entry| entry.tag == tag)
                .map(|entry| entry.value)
        };
        // The loader has made addresses of them, or not.
        let place = |tag| value(tag).map(|at| if at < base { base + at } else { at });
        let (names, symbols) = (place(NAMES)?, place(SYMBOLS)? as *const libc::Elf64_Sym);
        TABLES.into_iter().find_map(|(table, size)| {
            let count = value(size)? / size_of::<Relocation>();
            let table = std::slice::from_raw_parts(place(table)? as *const Relocation, count);
            let found = table.iter().find(|relocation| {
                let symbol = relocation.info >> 32;
                let text = names + (*symbols.add(symbol)).st_name as usize;
                symbol != 0 && CStr::from_ptr(text as *const c_char) == name
            })?;
            Some(base + found.offset)
        })
    }
}

/// A slot in memory that can be written to from now on.
///
/// # Safety
/// `at` must be such a slot of a library that stays loaded.
unsafe fn writable(at: usize) -> Option<&'static AtomicUsize> {
    // SAFETY: the slot lies in its library's data, which stay.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let start = (at / page * page) as *mut c_void;
        let done = libc::mprotect(start, page, libc::PROT_READ | libc::PROT_WRITE) == 0;
        done.then(|| AtomicUsize::from_ptr(at as *mut usize))
    }
}
