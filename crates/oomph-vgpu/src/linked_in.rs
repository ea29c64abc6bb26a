//! Libraries with NVIDIA's CUDA runtime linked in, as CuPy's and those of many extensions.
//!
//! No loader binds their calls to this library, and their runtime asks the driver for private tables, which this one does not
//! have. While the table of symbols is still in the file, it says where the runtime's functions lie: each then jumps to this
//! library's function of the same name. In a file without it, the linked runtime fails as it does without a driver.

use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use oomph_preload::symbol_of;

/// Among the runtime's functions in every version, and nobody else's. A longer name may end so, and then holds it.
const MARK: &[u8] = b"cudaRuntimeGetVersion\0";
/// A file's table of symbols is not looked at if it has more bytes.
const LARGEST: u64 = 1 << 28;
/// `SHT_SYMTAB`.
const SYMBOLS: u32 = 2;
const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: usize = 24;

/// A function in a file: its name, address from the start of the library, and size in bytes.
type Function = (std::ffi::CString, u64, u64);

fn u16_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn read(file: &File, at: u64, size: u64) -> Option<Vec<u8>> {
    if size > LARGEST {
        return None;
    }
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// The functions of a linked runtime in an ELF file; none if it has no runtime, or no table of symbols.
fn functions(file: &File) -> Option<Vec<Function>> {
    let header = read(file, 0, HEADER as u64)?;
    // 64 bits, least significant byte first.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (at, size, count) = (
        u64_at(&header, 40)?,
        u16_at(&header, 58)?,
        u16_at(&header, 60)?,
    );
    if size != SECTION as u64 {
        return None;
    }
    let table = read(file, at, size * count)?;
    let sections: Vec<&[u8]> = table.chunks_exact(SECTION).collect();
    let part = |section: &[u8]| read(file, u64_at(section, 24)?, u64_at(section, 32)?);
    let symbols = *sections
        .iter()
        .find(|section| u32_at(section, 4) == Some(SYMBOLS))?;
    let names = part(sections.get(u32_at(symbols, 40)? as usize)?)?;
    // Nothing but this is done for most files.
    if !names.windows(MARK.len()).any(|part| part == MARK) {
        return None;
    }
    let found = part(symbols)?
        .chunks_exact(SYMBOL)
        .filter_map(|symbol| {
            let name =
                CStr::from_bytes_until_nul(names.get(u32_at(symbol, 0)? as usize..)?).ok()?;
            let is_runtime = [b"cuda".as_slice(), b"__cuda"]
                .iter()
                .any(|prefix| name.to_bytes().starts_with(prefix));
            // A function (`STT_FUNC`) that the file defines.
            let defined = symbol[4] & 15 == 2 && u16::from_le_bytes([symbol[6], symbol[7]]) != 0;
            (is_runtime && defined).then_some(())?;
            Some((name.to_owned(), u64_at(symbol, 8)?, u64_at(symbol, 16)?))
        })
        .collect();
    Some(found)
}

/// A jump to `target`, as long as no function of a runtime is short: the address follows the instructions.
fn jump(target: u64) -> Vec<u8> {
    let instructions: &[u8] = if cfg!(target_arch = "aarch64") {
        // ldr x16, 8; br x16
        &[0x50, 0x00, 0x00, 0x58, 0x00, 0x02, 0x1f, 0xd6]
    } else {
        // jmp [rip]
        &[0xff, 0x25, 0, 0, 0, 0]
    };
    [instructions, &target.to_le_bytes()].concat()
}

/// Writes `code` over the code at `place`.
///
/// # Safety
/// `place` must be the start of a function of at least that size, which nobody runs.
unsafe fn write_code(place: usize, code: &[u8]) -> bool {
    // SAFETY: the pages hold the function, as the caller promises; they become writable for the copy alone.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let first = place / page * page;
        let size = (place + code.len()).next_multiple_of(page) - first;
        let protect = |mode: c_int| libc::mprotect(first as *mut c_void, size, mode) == 0;
        if !protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) {
            return false;
        }
        std::ptr::copy_nonoverlapping(code.as_ptr(), place as *mut u8, code.len());
        #[cfg(target_arch = "aarch64")]
        clear_cache(place, code.len());
        protect(libc::PROT_READ | libc::PROT_EXEC)
    }
}

/// Makes the processor see code that was written.
#[cfg(target_arch = "aarch64")]
unsafe fn clear_cache(place: usize, size: usize) {
    // SAFETY: the range is mapped; the smallest lines have 16 bytes.
    unsafe {
        for line in (place & !15..place + size).step_by(16) {
            std::arch::asm!("dc cvau, {0}", in(reg) line);
        }
        std::arch::asm!("dsb ish");
        for line in (place & !15..place + size).step_by(16) {
            std::arch::asm!("ic ivau, {0}", in(reg) line);
        }
        std::arch::asm!("dsb ish", "isb");
    }
}

/// Before a library is opened: if it has the runtime linked in, it is opened here, and its runtime's functions jump to those of
/// `own`, a handle of this library. `open` is the C library's `dlopen`.
///
/// # Safety
/// `own` must be open, `name` what `open` takes.
pub unsafe fn take_over(name: &CStr, own: *mut c_void, open: impl FnOnce() -> *mut c_void) {
    // What has no directory is looked for by the loader: CUDA's own libraries and the system's.
    if !name.to_bytes().contains(&b'/') {
        return;
    }
    let path = std::ffi::OsStr::from_bytes(name.to_bytes());
    let Some(functions) = File::open(path).ok().and_then(|file| functions(&file)) else {
        return;
    };
    let handle = open();
    // This library itself, where it keeps its symbols, is another name of what is wanted.
    if handle.is_null() || handle == own {
        return;
    }
    // SAFETY: the handle is open, so the loader's record of it begins with the address of the library in memory; the functions are
    // those of its file, and whoever opens it cannot call them yet.
    unsafe {
        let mut map: *const u64 = std::ptr::null();
        if libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) != 0 || map.is_null()
        {
            return;
        }
        for (name, at, size) in functions {
            let target = symbol_of(own, &name) as u64;
            let code = jump(target);
            if target != 0 && size >= code.len() as u64 {
                write_code((*map + at) as usize, &code);
            }
        }
    }
}
