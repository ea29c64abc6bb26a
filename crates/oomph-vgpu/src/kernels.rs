//! Kernels: registered, queried, launched, but never run.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::arguments::{In, Out, Text};
use crate::clock::LAUNCH;
use crate::device::{self, machine};
use crate::export;
use crate::families::Family;
use crate::moved::Moved;
use crate::runtime::{Error, INVALID_VALUE, SUCCESS, UNKNOWN};
use crate::sync::Mutex;
use crate::work;
use crate::{busy, context, inner, modules, streams};

/// `dim3`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Dim3 {
    pub x: c_uint,
    pub y: c_uint,
    pub z: c_uint,
}

/// `cudaFuncAttributes`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FuncAttributes {
    shared_bytes: usize,
    const_bytes: usize,
    local_bytes: usize,
    max_threads: c_int,
    registers: c_int,
    ptx_version: c_int,
    binary_version: c_int,
    cache_mode: c_int,
    max_dynamic_shared: c_int,
    carveout: c_int,
    cluster: [c_int; 6],
    reserved: [c_int; 16],
}

/// Registers that a kernel is assumed to use, as most of PyTorch's do.
const REGISTERS: c_int = 32;

/// Grid, block, bytes of shared memory, stream.
type Configuration = (Dim3, Dim3, usize, u64);

thread_local! {
    /// `<<<…>>>` pushes here and the stub of the kernel pops.
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

/// Size, and the device address once asked for.
type Variable = (usize, Option<u64>);

/// Device variables by host address.
static VARIABLES: LazyLock<Mutex<HashMap<u64, Variable>>> =
    LazyLock::new(|| Mutex::new(HashMap::new()));

impl From<Dim3> for [c_uint; 3] {
    fn from(from: Dim3) -> Self {
        [from.x, from.y, from.z]
    }
}

/// Kernels of libraries as they register: host address and mangled name. The newest comes last,
/// as a library may be loaded where another one was.
static REGISTERED: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// How a kernel's time is estimated, what it moves, the number of its name, and whether it is PyTorch's.
type Kernel = (Family, Moved, u32, bool);

/// What is known of each kernel that was launched.
static FAMILIES: LazyLock<Mutex<HashMap<u64, Kernel>>> =
    LazyLock::new(|| Mutex::new(HashMap::new()));

/// Bytes of stack that each thread of a kernel needs, where that is more than any thread has from the start.
static STACKS: LazyLock<Mutex<HashMap<u64, u32>>> = LazyLock::new(|| Mutex::new(HashMap::new()));

/// Whether [`STACKS`] has any, so that a launch does not look into it for nothing.
static DEEP: AtomicBool = AtomicBool::new(false);

/// A handle for a kernel that a module names.
pub fn named(module: u64, name: Text) -> u64 {
    let handle = streams::opaque_handle();
    if let Some(name) = name.get() {
        FAMILIES
            .lock()
            .insert(handle, of_name(&name.to_string_lossy(), false));
        let stack = modules::stack(module, name);
        if stack > context::STACK {
            STACKS.lock().insert(handle, stack);
            DEEP.store(true, Ordering::Relaxed);
        }
    }
    handle
}

/// Makes room for the stacks of a kernel that is about to run; false if there is none.
pub fn make_stacks(function: u64) -> bool {
    if !DEEP.load(Ordering::Relaxed) || inner::is_inside() {
        return true;
    }
    let stack = STACKS.lock().get(&function).copied();
    stack.is_none_or(|stack| machine().costs.make_stacks(device::current(), stack))
}

fn of_name(name: &str, of_torch: bool) -> Kernel {
    let family = Family::of(name);
    (family, Moved::of(name, family), work::name(name), of_torch)
}

/// Whether the code at `host` belongs to one of PyTorch's own libraries.
fn is_of_torch(host: u64) -> bool {
    // SAFETY: `dladdr` fills the struct for any address, and its path is a C string of the loader's.
    let path = unsafe {
        let mut info = std::mem::zeroed::<libc::Dl_info>();
        if libc::dladdr(host as *const c_void, &raw mut info) == 0 || info.dli_fname.is_null() {
            return false;
        }
        CStr::from_ptr(info.dli_fname)
    };
    let path = path.to_string_lossy();
    let file = path.rsplit('/').next().unwrap_or(&path);
    file.starts_with("libtorch") || file.starts_with("libc10")
}

thread_local! {
    /// Whether somebody answers for what the thread's kernels write.
    static EXPECTED: Cell<u32> = const { Cell::new(0) };
}

/// `uint64_t oomph_vgpu_strange`: kernels so far whose results nobody answers for, because no operator launched them and they
/// are not PyTorch's own. It only ever grows.
#[unsafe(no_mangle)]
pub static oomph_vgpu_strange: AtomicU64 = AtomicU64::new(0);

fn note_strange(of_torch: bool) {
    if !of_torch && EXPECTED.get() == 0 && !crate::report::is_in_operator() && !inner::is_inside() {
        oomph_vgpu_strange.fetch_add(1, Ordering::Relaxed);
    }
}

fn family(function: u64) -> Kernel {
    if let Some(&found) = FAMILIES.lock().get(&function) {
        return found;
    }
    let name = REGISTERED
        .lock()
        .iter()
        .rev()
        .find(|(host, _)| *host == function)
        .map(|found| found.1);
    let found = name.map_or_else(
        || of_name("", false),
        |name| {
            // SAFETY: `__cudaRegisterFunction` got a C string in the library that launches this kernel.
            let name = unsafe { CStr::from_ptr(name as *const c_char) };
            of_name(&name.to_string_lossy(), is_of_torch(function))
        },
    );
    FAMILIES.lock().insert(function, found);
    found
}

/// Accounts the launch of a kernel and the time that one of its shape takes.
///
/// # Safety
/// `arguments` must be null or what the launch of `function` was given.
pub unsafe fn run(
    function: u64,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    arguments: *const *mut c_void,
    stream: u64,
) {
    let threads = block.iter().map(|&size| f64::from(size)).product();
    let (family, moved, name, of_torch) = family(function);
    note_strange(of_torch);
    // SAFETY: the caller's contract.
    let time = unsafe { family.time(&machine().rates, grid, threads, shared, arguments) };
    // SAFETY: the caller's contract.
    work::note(unsafe { moved.work(family, name, grid, threads as u32, arguments) });
    enqueued(stream, time);
    if of_torch && !inner::is_inside() {
        machine().costs.kernel_launched(device::current(), true);
    }
}

/// The same for a launch whose arguments are not looked at.
pub fn run_shape(
    function: u64,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: u64,
) {
    // SAFETY: no arguments.
    unsafe { run(function, grid, block, shared, std::ptr::null(), stream) };
}

/// Why this GPU does not take a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impossible {
    /// Its grid or its blocks, by the limits that all GPUs have had since compute capability 3.0.
    Shape,
    /// Its blocks want more shared memory than one may have.
    Shared,
}

/// What keeps this GPU from a launch of this shape, whose blocks want `shared` bytes beside what their kernel declares.
pub fn refusal(grid: [c_uint; 3], block: [c_uint; 3], shared: usize) -> Option<Impossible> {
    const GRID: [c_uint; 3] = [i32::MAX as c_uint, 65_535, 65_535];
    const BLOCK: [c_uint; 3] = [1_024, 1_024, 64];
    let within = |shape: [c_uint; 3], most: [c_uint; 3]| {
        shape
            .iter()
            .zip(most)
            .all(|(&size, most)| (1..=most).contains(&size))
    };
    if !within(grid, GRID) || !within(block, BLOCK) || block.iter().product::<c_uint>() > 1_024 {
        Some(Impossible::Shape)
    } else if shared as u64 > machine().properties.shared_per_block_optin {
        Some(Impossible::Shared)
    } else {
        None
    }
}

/// A launch by the runtime.
///
/// # Safety
/// `arguments` must be null or what the launch of `function` was given.
unsafe fn launch(
    function: u64,
    grid: Dim3,
    block: Dim3,
    shared: usize,
    arguments: *mut *mut c_void,
    stream: u64,
) -> Error {
    const INVALID_CONFIGURATION: Error = 9;
    let (grid, block) = (grid.into(), block.into());
    match refusal(grid, block, shared) {
        Some(Impossible::Shape) => crate::runtime::fail(INVALID_CONFIGURATION),
        Some(Impossible::Shared) => crate::runtime::fail(INVALID_VALUE),
        None => {
            // SAFETY: the caller's contract.
            unsafe { run(function, grid, block, 0, arguments, stream) };
            SUCCESS
        }
    }
}

/// The time of a launch whose arguments are not looked at.
pub fn time_of_shape(
    function: u64,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
) -> Duration {
    let threads = block.iter().map(|&size| f64::from(size)).product();
    // SAFETY: no arguments.
    unsafe {
        family(function)
            .0
            .time(&machine().rates, grid, threads, shared, std::ptr::null())
    }
}

/// Accounts one launch of unknown work on `stream`.
pub fn launched(stream: u64) {
    enqueued(stream, LAUNCH);
}

/// Accounts one launch on `stream` that takes `time`, most of it to move memory.
pub fn enqueued(stream: u64, time: Duration) {
    enqueued_as(stream, time, busy::halved(time));
}

/// Accounts one launch on `stream` that takes `time`, and would take `halved` in 16 bits.
pub fn enqueued_as(stream: u64, time: Duration, halved: Duration) {
    if inner::is_inside() {
        return;
    }
    oomph_overlay::begin();
    let slower = machine().rates.slower;
    let (time, halved) = (time.mul_f64(slower), halved.mul_f64(slower));
    busy::add(time, halved);
    let _ = device::active();
    machine().costs.kernel_launched(device::current(), false);
    streams::spend(device::current(), stream, time);
}

/// Blocks of `threads` threads and `shared` bytes that one multiprocessor holds.
pub fn occupancy(threads: c_int, shared: usize) -> c_int {
    let gpu = &machine().properties;
    if threads <= 0 {
        return 0;
    }
    let warps = (threads + 31) / 32;
    let by_threads = gpu.max_threads_per_sm / (warps * 32);
    let by_registers = gpu.registers_per_sm / (warps * 32 * REGISTERS);
    let per_block = shared as u64 + gpu.shared_reserved_per_block;
    let by_shared = (gpu.shared_per_sm / per_block.max(1)) as c_int;
    by_threads
        .min(by_registers)
        .min(by_shared)
        .min(gpu.max_blocks_per_sm)
}

/// Clusters of `size` blocks that run at once where each block takes a whole multiprocessor.
pub fn clusters_of_largest(size: c_int) -> c_int {
    let gpu = &machine().properties;
    clusters_of(size, 1, gpu)
}

/// Clusters of `size` blocks that run at once. A cluster lives in one group of multiprocessors
/// (GPC) and needs as many of them as it has blocks; pairs fit anywhere.
pub fn clusters(size: c_int, threads: c_int, shared: usize) -> c_int {
    clusters_of(size, occupancy(threads, shared), &machine().properties)
}

fn clusters_of(size: c_int, each: c_int, gpu: &crate::device::Properties) -> c_int {
    if size <= 2 {
        return gpu.sm_count * each / size.max(1);
    }
    gpu.groups
        .iter()
        .filter(|&&sms| sms >= size)
        .map(|sms| sms * each / size)
        .sum()
}

/// The architecture whose machine code a GPU of this capability runs, out of those the wheels
/// carry: the newest of the same major version that is not newer than the GPU.
fn binary_version() -> c_int {
    let gpu = &machine().properties;
    let carried = machine()
        .config
        .text("cubin_architectures", "50,60,70,75,80,86,90,100,120");
    carried
        .split(',')
        .filter_map(|text| text.trim().parse::<c_int>().ok())
        .filter(|&arch| arch / 10 == gpu.major && arch <= gpu.capability())
        .max()
        .unwrap_or_else(|| gpu.capability())
}

export! {
    fn __cudaRegisterFatBinary(image: *mut c_void) -> *mut *mut c_void, or std::ptr::null_mut(); {
        // The handle is only passed back; one leaked word per library keeps it unique.
        Box::into_raw(Box::new(image))
    }
    /// Whether somebody answers from now on for what this thread's kernels write; such spans may contain others.
    fn oomph_vgpu_expect(expected: c_int) -> (), or (); {
        let depth = EXPECTED.get();
        EXPECTED.set(if expected == 0 { depth.saturating_sub(1) } else { depth + 1 });
    }
    fn __cudaRegisterFatBinaryEnd(_handle: *mut *mut c_void) -> (), or (); {}
    fn __cudaUnregisterFatBinary(_handle: *mut *mut c_void) -> (), or (); {}
    unsafe fn __cudaRegisterFunction(_handle: *mut *mut c_void, host: u64, _device: *mut c_char, name: *const c_char) -> (), or (); {
        REGISTERED.lock().push((host, name as u64));
    }
    fn __cudaRegisterVar(_handle: *mut *mut c_void, host: u64, _address: *mut c_char, _name: *const c_char, _external: c_int, size: usize, _constant: c_int, _global: c_int) -> (), or (); {
        VARIABLES.lock().insert(host, (size, None));
    }
    fn __cudaInitModule(_handle: *mut *mut c_void) -> c_char, or 0; { 1 }
    fn __cudaGetKernel(out: Out<u64>, function: u64) -> Error, or UNKNOWN; {
        out.put(function);
        SUCCESS
    }
    fn __cudaPushCallConfiguration(grid: Dim3, block: Dim3, shared: usize, stream: u64) -> c_uint, or 0; {
        CONFIGURATIONS.with_borrow_mut(|stack| stack.push((grid, block, shared, stream)));
        0
    }
    fn __cudaPopCallConfiguration(grid: Out<Dim3>, block: Out<Dim3>, shared: Out<usize>, stream: Out<u64>) -> Error, or UNKNOWN; {
        let top = CONFIGURATIONS.with_borrow_mut(Vec::pop);
        let Some((top_grid, top_block, top_shared, top_stream)) = top else { return INVALID_VALUE };
        grid.put(top_grid);
        block.put(top_block);
        shared.put(top_shared);
        stream.put(top_stream);
        SUCCESS
    }
    unsafe fn cudaLaunchKernel(function: u64, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared: usize, stream: u64) -> Error, or UNKNOWN; {
        // SAFETY: the arguments are those of the kernel that is launched, by the vendor's header.
        unsafe { launch(function, grid, block, shared, arguments, stream) }
    }
    unsafe fn __cudaLaunchKernel(kernel: u64, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared: usize, stream: u64) -> Error, or UNKNOWN; {
        // SAFETY: the arguments are those of the kernel that is launched, by the vendor's header.
        unsafe { launch(kernel, grid, block, shared, arguments, stream) }
    }
    unsafe fn cudaLaunchCooperativeKernel(function: u64, grid: Dim3, block: Dim3, arguments: *mut *mut c_void, shared: usize, stream: u64) -> Error, or UNKNOWN; {
        // SAFETY: the arguments are those of the kernel that is launched, by the vendor's header.
        unsafe { launch(function, grid, block, shared, arguments, stream) }
    }
    unsafe fn cudaLaunchKernelExC(config: In<RuntimeLaunchConfig>, function: u64, arguments: *mut *mut c_void) -> Error, or UNKNOWN; {
        let Some(config) = config.get() else { return INVALID_VALUE };
        // SAFETY: the arguments are those of the kernel that is launched, by the vendor's header.
        unsafe { launch(function, config.grid, config.block, config.shared, arguments, config.stream) }
    }
    fn cudaFuncGetAttributes(out: Out<FuncAttributes>, _function: *const c_void) -> Error, or UNKNOWN; {
        let binary = binary_version();
        out.put(FuncAttributes {
                shared_bytes: 0,
                const_bytes: 0,
                local_bytes: 0,
                max_threads: 1024,
                registers: REGISTERS,
                ptx_version: binary,
                binary_version: binary,
                cache_mode: 0,
                max_dynamic_shared: machine().properties.shared_per_block as c_int,
                carveout: -1,
                cluster: [0; 6],
                reserved: [0; 16],
            });
        SUCCESS
    }
    fn cudaFuncSetAttribute(_function: *const c_void, _which: c_int, _value: c_int) -> Error, or UNKNOWN; { SUCCESS }
    fn cudaFuncSetCacheConfig(_function: *const c_void, _config: c_int) -> Error, or UNKNOWN; { SUCCESS }
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<c_int>, _function: *const c_void, threads: c_int, shared: usize) -> Error, or UNKNOWN; {
        out.put(occupancy(threads, shared));
        SUCCESS
    }
    fn cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: Out<c_int>, _function: *const c_void, threads: c_int, shared: usize, _flags: c_uint) -> Error, or UNKNOWN; {
        out.put(occupancy(threads, shared));
        SUCCESS
    }
    fn cudaGetSymbolAddress(out: Out<u64>, symbol: u64) -> Error, or UNKNOWN; {
        match variable(symbol) {
            Some(at) => {
                out.put(at);
                SUCCESS
            }
            None => crate::runtime::fail(INVALID_VALUE),
        }
    }
    unsafe fn cudaMemcpyToSymbol(symbol: u64, from: u64, len: usize, offset: usize, _kind: c_int) -> Error, or UNKNOWN; {
        if let Some(at) = variable(symbol) {
            // SAFETY: the variable has the size it was registered with; the caller keeps to it.
            unsafe { std::ptr::copy(from as *const u8, (at + offset as u64) as *mut u8, len) };
        }
        SUCCESS
    }
    unsafe fn cudaMemcpyFromSymbol(to: u64, symbol: u64, len: usize, offset: usize, _kind: c_int) -> Error, or UNKNOWN; {
        if let Some(at) = variable(symbol) {
            // SAFETY: the variable has the size it was registered with; the caller keeps to it.
            unsafe { std::ptr::copy((at + offset as u64) as *const u8, to as *mut u8, len) };
        }
        SUCCESS
    }
}

/// The start of `cudaLaunchConfig_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RuntimeLaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: u64,
}

/// The address of a device variable: a small private piece of memory that belongs to the
/// kernels' image, not to the allocations that programs make.
fn variable(symbol: u64) -> Option<u64> {
    let mut variables = VARIABLES.lock();
    let (size, at) = variables.get_mut(&symbol)?;
    if at.is_none() {
        let words = vec![0_u64; size.div_ceil(8).max(1)];
        *at = Some(Box::leak(words.into_boxed_slice()).as_ptr() as u64);
    }
    *at
}
