//! Modules that programs load through the driver: which variables they have, and how large the stacks of their kernels are.
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

/// What the driver has to know of a module.
#[derive(Debug, Default)]
struct Module {
    /// Variables by name.
    variables: HashMap<Vec<u8>, Variable>,
    /// Bytes of stack that each thread of a kernel needs, by the kernel's name. Spilled registers are among them.
    stacks: HashMap<Vec<u8>, u32>,
}

/// The modules of which anything is known.
static MODULES: LazyLock<Mutex<HashMap<u64, Module>>> =
    LazyLock::new(|| Mutex::new(HashMap::new()));

/// A module is loaded from `image`: a handle of it.
///
/// # Safety
/// `image` must be null or an image that the driver takes: machine code in an ELF file, a fat binary or a text.
pub unsafe fn loaded(image: *const u8) -> u64 {
    let handle = opaque_handle();
    // SAFETY: the caller's contract.
    let module = unsafe { read_module(image) };
    if !module.variables.is_empty() || !module.stacks.is_empty() {
        MODULES.lock().insert(handle, module);
    }
    handle
}

/// A module is gone, and its variables with it.
pub fn unloaded(module: u64) {
    let module = MODULES.lock().remove(&module).unwrap_or_default();
    for (_, at) in module.variables.into_values() {
        at.and_then(|at| PLACES.lock().remove(&at));
    }
}

/// Address and size of a variable; `None` if the module has none of that name.
pub fn variable(module: u64, name: &CStr) -> Option<(u64, u64)> {
    let mut modules = MODULES.lock();
    let variables = &mut modules.get_mut(&module)?.variables;
    let (size, at) = variables.get_mut(name.to_bytes())?;
    if at.is_none() {
        *at = place(*size);
    }
    at.map(|at| (at, *size))
}

/// Bytes of stack that a thread of a module's kernel needs; 0 if that is not known.
pub fn stack(module: u64, kernel: &CStr) -> u32 {
    let modules = MODULES.lock();
    let stacks = modules.get(&module).map(|module| &module.stacks);
    let found = stacks.and_then(|stacks| stacks.get(kernel.to_bytes()));
    found.copied().unwrap_or(0)
}

/// # Safety
/// `T` must be readable at `at`.
unsafe fn read<T: Copy>(at: *const u8, offset: u64) -> T {
    // SAFETY: the caller's contract.
    unsafe { at.add(offset as usize).cast::<T>().read_unaligned() }
}

/// What an ELF file says; nothing of anything else.
///
/// # Safety
/// As for [`loaded`].
unsafe fn read_module(image: *const u8) -> Module {
    const SYMBOLS: u32 = 2;
    const OBJECT: u8 = 1;
    /// `SHT_CUDA_INFO`: what the compiler tells the driver, of kernels by their symbols' numbers.
    const INFO: u32 = 0x7000_0000;
    const MAGIC: [u8; 5] = [0x7f, b'E', b'L', b'F', 2];
    let mut found = Module::default();
    if image.is_null() {
        return found;
    }
    // SAFETY: not null, so an image. It is read byte by byte up to where it differs, and texts end with a zero.
    let is_elf = (0..MAGIC.len()).all(|at| unsafe { image.add(at).read() } == MAGIC[at]);
    if !is_elf {
        return found;
    }
    let mut names = Vec::new();
    let mut stacks = HashMap::new();
    // SAFETY: a file of 64-bit ELF, whose offsets lie inside.
    unsafe {
        let (sections, size) = (read::<u64>(image, 40), u64::from(read::<u16>(image, 58)));
        let section = |index: u32| sections + size * u64::from(index);
        for table in (0..u32::from(read::<u16>(image, 60))).map(section) {
            let (start, bytes) = (
                read::<u64>(image, table + 24),
                read::<u64>(image, table + 32),
            );
            match read::<u32>(image, table + 4) {
                INFO => read_stacks(image, start, bytes, &mut stacks),
                SYMBOLS => {
                    let text = read::<u64>(image, section(read::<u32>(image, table + 40)) + 24);
                    let each = read::<u64>(image, table + 56).max(1);
                    for symbol in (0..bytes / each).map(|index| start + index * each) {
                        let at = text + u64::from(read::<u32>(image, symbol));
                        let name = CStr::from_ptr(image.add(at as usize).cast::<c_char>());
                        let size = read::<u64>(image, symbol + 16);
                        if read::<u8>(image, symbol + 4) & 0xf == OBJECT && size > 0 {
                            let name = name.to_bytes().to_vec();
                            found.variables.insert(name, (size, None));
                        }
                        names.push(name);
                    }
                }
                _ => {}
            }
        }
        for (symbol, bytes) in stacks {
            if let Some(name) = names.get(symbol as usize) {
                found.stacks.insert(name.to_bytes().to_vec(), bytes);
            }
        }
    }
    found
}

/// Reads what a section tells of kernels into `stacks`: bytes by the number of a kernel's symbol.
///
/// # Safety
/// The section must lie inside of the image.
unsafe fn read_stacks(image: *const u8, start: u64, bytes: u64, stacks: &mut HashMap<u32, u32>) {
    /// `EIFMT_SVAL`: an entry whose value follows, after a half word with its size. Others end with that half word.
    const VALUE: u8 = 4;
    /// `EIATTR_MIN_STACK_SIZE`.
    const LEAST_STACK: u8 = 0x12;
    let mut at = start;
    while at + 4 <= start + bytes {
        // SAFETY: the caller's contract.
        let (format, attribute, size) = unsafe {
            let size = u64::from(read::<u16>(image, at + 2));
            (read::<u8>(image, at), read::<u8>(image, at + 1), size)
        };
        let value = at + 4;
        at = value + if format == VALUE { size } else { 0 };
        if format == VALUE && attribute == LEAST_STACK && size >= 8 && at <= start + bytes {
            // SAFETY: two words that the section has.
            let (symbol, stack) =
                unsafe { (read::<u32>(image, value), read::<u32>(image, value + 4)) };
            if stack > 0 {
                stacks.insert(symbol, stack);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with the symbol table (section 0) and the names (section 1) of one variable of 4096 bytes and one kernel, and
    /// with what the compiler tells of the kernel (section 2): an entry without a value, its registers, and 11,424 bytes of stack.
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
        put(60, &3_u16.to_le_bytes());
        let (symbols, names) = (256_u64, 320_u64);
        put(68, &2_u32.to_le_bytes());
        put(88, &symbols.to_le_bytes());
        put(96, &48_u64.to_le_bytes());
        put(104, &1_u32.to_le_bytes());
        put(120, &24_u64.to_le_bytes());
        put(152, &names.to_le_bytes());
        for (at, name, kind, size) in [(256, 1_u32, 1_u8, 4096_u64), (280, 10, 2, 128)] {
            put(at, &name.to_le_bytes());
            put(at + 4, &[kind]);
            put(at + 16, &size.to_le_bytes());
        }
        put(196, &0x7000_0000_u32.to_le_bytes());
        put(216, &400_u64.to_le_bytes());
        put(224, &28_u64.to_le_bytes());
        let entries = [
            &[1, 0x2a, 0, 0][..],
            &[4, 0x2f, 8, 0, 1, 0, 0, 0, 255, 0, 0, 0],
        ];
        put(400, &entries.concat());
        put(416, &[4, 0x12, 8, 0, 1, 0, 0, 0, 0xa0, 0x2c, 0, 0]);
        put(names as usize, b"\0constant\0kernel\0");
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
        assert_eq!(
            (
                stack(module, c"kernel"),
                stack(module, c"constant"),
                stack(text, c"kernel")
            ),
            (11_424, 0, 0)
        );
        unloaded(module);
        assert_eq!(variable(module, c"constant"), None);
        assert_eq!(holder(at), None);
    }
}
