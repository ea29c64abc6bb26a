//! Modules that programs load through the driver: which variables they have.
//!
//! Variables live in address space of their own, which is a device's all the same: XLA copies its constants from there and asks the
//! driver whose they are. What a module takes of the device's memory is part of what first kernels are
//! measured to cost ([`crate::context`]).

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char};
use std::sync::LazyLock;

use crate::device;
use crate::memory::Reservation;
use crate::streams::opaque_handle;
use crate::sync::Mutex;

/// Memory of variables by its address, with the device on which it is. It belongs to the kernels' images, not to the allocations that
/// programs make, so nothing is charged.
static PLACES: Mutex<BTreeMap<u64, (Reservation, u32)>> = Mutex::new(BTreeMap::new());

/// Memory for a variable of `bytes` on the current device: its address.
pub fn place(bytes: u64) -> Option<u64> {
    let memory = Reservation::new(bytes.max(1))?;
    let at = memory.base();
    PLACES.lock().insert(at, (memory, device::current()));
    Some(at)
}

/// The variable that holds `addr`: where it begins, its bytes, its device.
pub fn holder(addr: u64) -> Option<(u64, u64, u32)> {
    let places = PLACES.lock();
    let (&at, (memory, device)) = places.range(..=addr).next_back()?;
    memory.contains(addr).then_some((at, memory.len(), *device))
}

/// A variable: its size, and its address once somebody asked for it.
type Variable = (u64, Option<u64>);

/// A module's variables by name.
type Variables = HashMap<Vec<u8>, Variable>;

/// The variables of the modules that have any.
static MODULES: LazyLock<Mutex<HashMap<u64, Variables>>> =
    LazyLock::new(|| Mutex::new(HashMap::new()));

/// A module is loaded from `image`: a handle of it.
///
/// # Safety
/// `image` must be null or an image that the driver takes: machine code in an ELF file, a fat binary or a text.
pub unsafe fn loaded(image: *const u8) -> u64 {
    let handle = opaque_handle();
    // SAFETY: the caller's contract.
    let variables = unsafe { variables(image) };
    if !variables.is_empty() {
        let variables = variables
            .into_iter()
            .map(|(name, size)| (name, (size, None)));
        MODULES.lock().insert(handle, variables.collect());
    }
    handle
}

/// A module is gone, and its variables with it.
pub fn unloaded(module: u64) {
    let variables = MODULES.lock().remove(&module);
    for (_, at) in variables.into_iter().flatten().map(|(_, found)| found) {
        at.and_then(|at| PLACES.lock().remove(&at));
    }
}

/// Address and size of a variable; `None` if the module has none of that name.
pub fn variable(module: u64, name: &CStr) -> Option<(u64, u64)> {
    let mut modules = MODULES.lock();
    let (size, at) = modules.get_mut(&module)?.get_mut(name.to_bytes())?;
    if at.is_none() {
        *at = place(*size);
    }
    at.map(|at| (at, *size))
}

/// # Safety
/// `T` must be readable at `at`.
unsafe fn read<T: Copy>(at: *const u8, offset: u64) -> T {
    // SAFETY: the caller's contract.
    unsafe { at.add(offset as usize).cast::<T>().read_unaligned() }
}

/// Names and sizes of the variables in an ELF file; none in anything else.
///
/// # Safety
/// As for [`loaded`].
unsafe fn variables(image: *const u8) -> Vec<(Vec<u8>, u64)> {
    const SYMBOLS: u32 = 2;
    const OBJECT: u8 = 1;
    const MAGIC: [u8; 5] = [0x7f, b'E', b'L', b'F', 2];
    if image.is_null() {
        return Vec::new();
    }
    // SAFETY: not null, so an image. It is read byte by byte up to where it differs, and texts end with a zero.
    let is_elf = (0..MAGIC.len()).all(|at| unsafe { image.add(at).read() } == MAGIC[at]);
    if !is_elf {
        return Vec::new();
    }
    let mut found = Vec::new();
    // SAFETY: a file of 64-bit ELF, whose offsets lie inside.
    unsafe {
        let (sections, size) = (read::<u64>(image, 40), u64::from(read::<u16>(image, 58)));
        let section = |index: u32| sections + size * u64::from(index);
        for index in 0..u32::from(read::<u16>(image, 60)) {
            let table = section(index);
            if read::<u32>(image, table + 4) != SYMBOLS {
                continue;
            }
            let (start, bytes) = (
                read::<u64>(image, table + 24),
                read::<u64>(image, table + 32),
            );
            let names = read::<u64>(image, section(read::<u32>(image, table + 40)) + 24);
            let each = read::<u64>(image, table + 56).max(1);
            for symbol in (0..bytes / each).map(|index| start + index * each) {
                let size = read::<u64>(image, symbol + 16);
                if read::<u8>(image, symbol + 4) & 0xf == OBJECT && size > 0 {
                    let at = names + u64::from(read::<u32>(image, symbol));
                    let name = CStr::from_ptr(image.add(at as usize).cast::<c_char>());
                    found.push((name.to_bytes().to_vec(), size));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with the symbol table (section 0) and the names (section 1) of one variable of 4096 bytes and one kernel.
    fn image() -> Vec<u8> {
        let mut file = vec![0_u8; 64];
        let mut put = |at: usize, bytes: &[u8]| {
            if file.len() < at + bytes.len() {
                file.resize(at + bytes.len(), 0);
            }
            file[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, &[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        put(40, &64_u64.to_le_bytes());
        put(58, &64_u16.to_le_bytes());
        put(60, &2_u16.to_le_bytes());
        let (symbols, names) = (192_u64, 240_u64);
        put(68, &2_u32.to_le_bytes());
        put(88, &symbols.to_le_bytes());
        put(96, &48_u64.to_le_bytes());
        put(104, &1_u32.to_le_bytes());
        put(120, &24_u64.to_le_bytes());
        put(152, &names.to_le_bytes());
        for (at, name, kind, size) in [(192, 1_u32, 1_u8, 4096_u64), (216, 10, 2, 128)] {
            put(at, &name.to_le_bytes());
            put(at + 4, &[kind]);
            put(at + 16, &size.to_le_bytes());
        }
        put(240, b"\0constant\0kernel\0");
        file
    }

    #[test]
    fn variables_of_a_module_have_their_size_and_one_address() {
        // SAFETY: images that the driver takes.
        let (module, text) = unsafe {
            (
                loaded(image().as_ptr()),
                loaded(c".version 9.0".as_ptr().cast()),
            )
        };
        let found = variable(module, c"constant");
        assert_eq!(found.map(|(_, size)| size), Some(4096));
        assert_eq!(variable(module, c"constant"), found);
        let at = found.map_or(0, |(at, _)| at);
        assert_eq!(holder(at + 4095), Some((at, 4096, 0)));
        assert_eq!(holder(at + 4096), None);
        assert_eq!(variable(module, c"kernel"), None);
        assert_eq!(variable(text, c"constant"), None);
        unloaded(module);
        assert_eq!(variable(module, c"constant"), None);
        assert_eq!(holder(at), None);
    }
}
