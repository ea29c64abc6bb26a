//! The CUDA driver (`cu*`): the functions that PyTorch, its extensions and Triton use, above all the
//! virtual-memory functions behind `expandable_segments`.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::arguments::{In, Out, Text, put_text};
use crate::context::Charge;
use crate::device::{self, active, machine};
use crate::memory::{GRANULE, Reservation, discard, round_up};
use crate::runtime::{
    self, INITIALIZATION, INVALID_DEVICE, INVALID_VALUE, MEMORY_ALLOCATION, SUCCESS, UNKNOWN,
};
use crate::streams::{self, opaque_handle};
use crate::sync::Mutex;
use crate::{export, inner, ledger, modules, tables};

/// A status of the driver; the codes that matter here are the runtime's.
pub type Status = c_int;

const NOT_FOUND: Status = 500;

/// A stable identity for device `index`.
pub fn uuid(index: c_int) -> [u8; 16] {
    let mut id = *b"oomph virtual \0\0";
    id[15] = index as u8;
    id
}

/// PCI domain, bus and device of device `index`.
pub fn pci_address(index: c_int) -> [c_int; 3] {
    [0, index + 1, 0]
}

/// `cudaDeviceGetAttribute` and `cuDeviceGetAttribute`: the numbers are the same. What does not
/// follow from the properties is as an H200 with driver 580 answers; see
/// `bench/gpu/device_facts.py`.
#[expect(
    clippy::match_same_arms,
    reason = "a table by number: equal values are no relation"
)]
pub fn attribute(attribute: c_int) -> c_int {
    let gpu = &machine().properties;
    match attribute {
        1..=3 => 1024, // threads per block, block x, y
        4 => 64,
        5 => 0x7fff_ffff,
        6 | 7 => 65_535,
        8 => gpu.shared_per_block as c_int,
        9 => 65_536,
        10 => 32,
        11 => 0x7fff_ffff,
        12 => gpu.registers_per_block,
        13 => gpu.clock_khz,
        14 | 30 => 512,
        16 => gpu.sm_count,
        32 => gpu.ecc,
        36 => gpu.memory_clock_khz,
        37 => gpu.memory_bus_bits,
        38 => gpu.l2_bytes,
        39 => gpu.max_threads_per_sm,
        40 => gpu.copy_engines,
        51 => 32,
        75 => gpu.major,
        76 => gpu.minor,
        81 => gpu.shared_per_sm as c_int,
        82 => gpu.registers_per_sm,
        // How many times slower double precision is.
        87 => {
            if gpu.minor == 0 {
                2
            } else {
                64
            }
        }
        97 => gpu.shared_per_block_optin as c_int,
        106 => gpu.max_blocks_per_sm,
        108 => gpu.persisting_l2_bytes,
        109 => 134_217_728,
        111 => gpu.shared_reserved_per_block as c_int,
        // Thread-block clusters, tensor maps.
        120 | 127 => c_int::from(gpu.major >= 9),
        // Address spaces of other memory, NUMA: none.
        118 => 100,
        119 => 9,
        126 => 4,
        131 => -1,
        // Who made the chip and which it is.
        139 => machine().config.int("pci_device_id", 0x2335_10de),
        140 => 0x18bf_10de,
        // Textures and surfaces.
        21 | 22 | 56 | 70 => 131_072,
        23 | 57 => 65_536,
        24..=26 | 58..=60 => 16_384,
        27 | 28 | 42 | 45 | 46 | 49 | 52 | 53 | 55 | 61 | 63 | 64 | 66 | 67 | 73 | 74 | 77 => {
            32_768
        }
        29 | 43 | 62 | 65 => 2_048,
        47 | 48 => 8_192,
        54 | 68 => 2_046,
        69 => 268_435_456,
        71 => 65_000,
        72 => 2_097_120,
        // Yes to: overlap, host mapping, concurrency, unified addressing, priorities, caches,
        // managed memory, preemption, cooperative launch, registered pointers, memory by file
        // handle, pools, sparse arrays, deferred mapping, IPC events, user objects.
        15
        | 19
        | 31
        | 41
        | 44
        | 78..=80
        | 83
        | 89..=91
        | 95
        | 96
        | 99
        | 102
        | 103
        | 107
        | 110
        | 112..=117
        | 121..=125
        | 129
        | 141
        | 142
        | 144
        | 145 => 1,
        // No to everything else, fabric handles and multicast among it.
        _ => 0,
    }
}

// ---- virtual memory management ----

/// Physical memory made by `cuMemCreate`: charged while a handle or a mapping holds it.
#[derive(Debug, Clone, Copy)]
struct Physical {
    /// The GPU whose memory it is; `None` for memory of the host, which is not charged.
    device: Option<u32>,
    size: u64,
    references: u32,
}

#[derive(Debug, Default)]
struct Virtual {
    physical: HashMap<u64, Physical>,
    reserved: BTreeMap<u64, Reservation>,
    /// Mapped address → (length, handle).
    mapped: BTreeMap<u64, (u64, u64)>,
}

static VIRTUAL: std::sync::LazyLock<Mutex<Virtual>> =
    std::sync::LazyLock::new(|| Mutex::new(Virtual::default()));

impl Virtual {
    /// Drops one reference, and the memory with the last.
    fn release(&mut self, handle: u64) -> Status {
        let Some(physical) = self.physical.get_mut(&handle) else {
            return INVALID_VALUE;
        };
        physical.references -= 1;
        if physical.references == 0 {
            let Physical { device, size, .. } = *physical;
            self.physical.remove(&handle);
            if let Some(device) = device.and_then(|device| machine().devices.get(device as usize)) {
                device.memory.lock().give_physical(size);
            }
        }
        SUCCESS
    }
}

/// The device to which `addr` belongs, however it was allocated.
pub fn device_of(addr: u64) -> Option<u32> {
    if let Some((index, _)) = device::owner(addr) {
        return Some(index);
    }
    let virtual_memory = VIRTUAL.lock();
    if virtual_memory
        .reserved
        .range(..=addr)
        .next_back()
        .is_some_and(|(_, r)| r.contains(addr))
    {
        let mapped = virtual_memory.mapped.range(..=addr).next_back();
        let handle = mapped
            .filter(|&(&at, &(len, _))| addr < at + len)
            .map(|(_, &(_, h))| h);
        let physical = handle.and_then(|handle| virtual_memory.physical.get(&handle));
        return Some(
            physical
                .and_then(|physical| physical.device)
                .unwrap_or_else(device::current),
        );
    }
    let variable = || modules::holder(addr).map(|(_, _, device)| device);
    runtime::is_opened(addr)
        .then(device::current)
        .or_else(variable)
}

// `CUmemLocationType`.
const LOCATION_DEVICE: c_int = 1;
const LOCATION_HOST: c_int = 2;
const LOCATION_HOST_NUMA: c_int = 3;
const LOCATION_HOST_NUMA_CURRENT: c_int = 4;

/// The start of `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AllocationProp {
    kind: c_int,
    handle_types: c_int,
    location_kind: c_int,
    location_id: c_int,
}

export! {
    fn cuMemAddressReserve(out: Out<u64>, size: usize, _align: usize, _hint: u64, _flags: c_ulonglong) -> Status, or UNKNOWN; {
        let Some(range) = Reservation::new(size as u64) else { return MEMORY_ALLOCATION };
        out.put(range.base());
        VIRTUAL.lock().reserved.insert(range.base(), range);
        SUCCESS
    }
    fn cuMemAddressFree(at: u64, _size: usize) -> Status, or UNKNOWN; {
        if VIRTUAL.lock().reserved.remove(&at).is_some() { SUCCESS } else { INVALID_VALUE }
    }
    fn cuMemCreate(out: Out<u64>, size: usize, prop: In<AllocationProp>, _flags: c_ulonglong) -> Status, or UNKNOWN; {
        let (Some(_), Some(prop)) = (active(), prop.get()) else { return INVALID_VALUE };
        let size = round_up(size as u64, GRANULE);
        let of_host = (LOCATION_HOST..=LOCATION_HOST_NUMA_CURRENT).contains(&prop.location_kind);
        let index = prop.location_id;
        if !of_host {
            let Some(device) = machine().devices.get(index as usize) else { return INVALID_DEVICE };
            let mut memory = device.memory.lock();
            if !memory.ask() || !memory.take_physical(size) {
                return MEMORY_ALLOCATION;
            }
            tables::expect(size);
        }
        let device = (!of_host).then_some(index as u32);
        let handle = opaque_handle();
        VIRTUAL.lock().physical.insert(handle, Physical { device, size, references: 1 });
        out.put(handle);
        SUCCESS
    }
    fn cuMemRelease(handle: u64) -> Status, or UNKNOWN; { VIRTUAL.lock().release(handle) }
    fn cuMemMap(at: u64, size: usize, _offset: usize, handle: u64, _flags: c_ulonglong) -> Status, or UNKNOWN; {
        let mut virtual_memory = VIRTUAL.lock();
        let Some(physical) = virtual_memory.physical.get_mut(&handle) else { return INVALID_VALUE };
        physical.references += 1;
        virtual_memory.mapped.insert(at, (size as u64, handle));
        SUCCESS
    }
    fn cuMemUnmap(at: u64, size: usize) -> Status, or UNKNOWN; {
        let mut virtual_memory = VIRTUAL.lock();
        let inside: Vec<(u64, u64, u64)> = virtual_memory
            .mapped
            .range(at..at + size as u64)
            .map(|(&start, &(len, handle))| (start, len, handle))
            .collect();
        if inside.is_empty() {
            return INVALID_VALUE;
        }
        for (start, len, handle) in inside {
            virtual_memory.mapped.remove(&start);
            // SAFETY: mapped means it lies in one of the reservations.
            unsafe { discard(start, len) };
            virtual_memory.release(handle);
        }
        SUCCESS
    }
    fn cuMemSetAccess(_at: u64, _size: usize, _list: *const c_void, _count: usize) -> Status, or UNKNOWN; { SUCCESS }
    fn cuMemGetAllocationGranularity(out: Out<usize>, _prop: *const c_void, _option: c_int) -> Status, or UNKNOWN; {
        out.put(GRANULE as usize);
        SUCCESS
    }
    fn cuMemRetainAllocationHandle(out: Out<u64>, at: u64) -> Status, or UNKNOWN; {
        let mut virtual_memory = VIRTUAL.lock();
        let Some(&(_, handle)) = virtual_memory.mapped.get(&at) else { return INVALID_VALUE };
        if let Some(physical) = virtual_memory.physical.get_mut(&handle) {
            physical.references += 1;
        }
        out.put(handle);
        SUCCESS
    }
    fn cuMemGetAllocationPropertiesFromHandle(out: Out<AllocationProp>, handle: u64) -> Status, or UNKNOWN; {
        let virtual_memory = VIRTUAL.lock();
        let Some(physical) = virtual_memory.physical.get(&handle) else { return INVALID_VALUE };
        let (location_kind, location_id) =
            physical.device.map_or((LOCATION_HOST_NUMA, 0), |device| (LOCATION_DEVICE, device as c_int));
        out.put(AllocationProp { kind: 1, handle_types: 1, location_kind, location_id });
        SUCCESS
    }
    fn cuMemExportToShareableHandle(_out: *mut c_void, _handle: u64, _kind: c_int, _flags: c_ulonglong) -> Status, or UNKNOWN; {
        // Sharing expandable segments between processes needs a kernel object per page.
        runtime::NOT_SUPPORTED
    }
    fn cuMemImportFromShareableHandle(_out: *mut u64, _handle: *mut c_void, _kind: c_int) -> Status, or UNKNOWN; {
        runtime::NOT_SUPPORTED
    }
}

// ---- devices and contexts ----

/// The primary context of device 0; the others follow. Programs only compare and pass them on.
const CONTEXT: u64 = 0x100;
const CONTEXT_STEP: u64 = 0x10;

fn context_of(device: u32) -> u64 {
    CONTEXT + CONTEXT_STEP * u64::from(device)
}

/// The primary context of the calling thread's device.
pub fn current_context() -> u64 {
    context_of(device::current())
}

/// Makes the device of `context` the thread's; a null context changes nothing, as every thread
/// has a device here.
fn enter(context: u64) -> Status {
    if context == 0 {
        return SUCCESS;
    }
    let index = context.wrapping_sub(CONTEXT) / CONTEXT_STEP;
    let known = i32::try_from(index).is_ok_and(device::set_current);
    if known { SUCCESS } else { INVALID_CONTEXT }
}

const INVALID_CONTEXT: Status = 201;
const UNSUPPORTED_LIMIT: Status = 215;

thread_local! {
    /// Devices to return to when contexts are popped.
    static PUSHED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

export! {
    fn cuInit(_flags: c_uint) -> Status, or UNKNOWN; {
        if device::is_forked() {
            return INITIALIZATION;
        }
        device::start();
        SUCCESS
    }
    fn cuDriverGetVersion(version: Out<c_int>) -> Status, or UNKNOWN; {
        runtime::cudaDriverGetVersion(version)
    }
    fn cuDeviceGetCount(count: Out<c_int>) -> Status, or UNKNOWN; {
        if !device::is_started() {
            return INITIALIZATION;
        }
        runtime::cudaGetDeviceCount(count)
    }
    fn cuDeviceGet(out: Out<c_int>, index: c_int) -> Status, or UNKNOWN; {
        if usize::try_from(index).map_or(true, |index| index >= machine().devices.len()) {
            return INVALID_DEVICE;
        }
        out.put(index);
        SUCCESS
    }
    unsafe fn cuDeviceGetName(out: *mut c_char, len: c_int, _device: c_int) -> Status, or UNKNOWN; {
        let room = usize::try_from(len).unwrap_or(0);
        // SAFETY: the caller gives `len` bytes.
        if unsafe { put_text(out, room, &machine().properties.name) } { SUCCESS } else { INVALID_VALUE }
    }
    fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: c_int) -> Status, or UNKNOWN; {
        out.put(uuid(device::physical(device)));
        SUCCESS
    }
    fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: c_int) -> Status, or UNKNOWN; {
        out.put(uuid(device::physical(device)));
        SUCCESS
    }
    fn cuDeviceTotalMem_v2(out: Out<usize>, _device: c_int) -> Status, or UNKNOWN; {
        out.put(machine().properties.total_bytes as usize);
        SUCCESS
    }
    fn cuDeviceGetAttribute(out: Out<c_int>, which: c_int, device: c_int) -> Status, or UNKNOWN; {
        const PCI_BUS: c_int = 33;
        let value = if which == PCI_BUS { pci_address(device::physical(device))[1] } else { attribute(which) };
        out.put(value);
        SUCCESS
    }
    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, _device: c_int) -> Status, or UNKNOWN; {
        let gpu = &machine().properties;
        major.put(gpu.major);
        minor.put(gpu.minor);
        SUCCESS
    }
    /// Threads that PyTorch starts go back to device 0 only where it has a context: a rank must not
    /// get one on another rank's GPU.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, is_active: Out<c_int>) -> Status, or UNKNOWN; {
        let active = u32::try_from(device).is_ok_and(|device| machine().costs.has(device, Charge::Context));
        flags.put(0);
        is_active.put(c_int::from(active));
        SUCCESS
    }
    fn cuDevicePrimaryCtxRetain(out: Out<u64>, device: c_int) -> Status, or UNKNOWN; {
        if usize::try_from(device).map_or(true, |index| index >= machine().devices.len()) {
            return INVALID_DEVICE;
        }
        out.put(context_of(device as u32));
        SUCCESS
    }
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuCtxGetCurrent(out: Out<u64>) -> Status, or UNKNOWN; {
        out.put(current_context());
        SUCCESS
    }
    fn cuCtxSetCurrent(context: u64) -> Status, or UNKNOWN; { enter(context) }
    fn cuCtxPushCurrent_v2(context: u64) -> Status, or UNKNOWN; {
        PUSHED.with_borrow_mut(|stack| stack.push(device::current()));
        enter(context)
    }
    fn cuCtxPopCurrent_v2(out: Out<u64>) -> Status, or UNKNOWN; {
        out.put(current_context());
        if let Some(device) = PUSHED.with_borrow_mut(Vec::pop) {
            device::set_current(device as i32);
        }
        SUCCESS
    }
    /// Stands for a context of its own: the device's is used.
    fn cuCtxCreate_v2(out: Out<u64>, _flags: c_uint, device: c_int) -> Status, or UNKNOWN; {
        if usize::try_from(device).map_or(true, |index| index >= machine().devices.len()) {
            return INVALID_DEVICE;
        }
        crate::ledger::assume("cuCtxCreate_v2", "a context of its own is assumed to take no memory beside the device's");
        out.put(context_of(device as u32));
        cuCtxPushCurrent_v2(context_of(device as u32))
    }
    fn cuCtxDestroy_v2(_context: u64) -> Status, or UNKNOWN; { SUCCESS }
    fn cuCtxGetDevice(out: Out<c_int>) -> Status, or UNKNOWN; {
        out.put(device::current() as c_int);
        SUCCESS
    }
    fn cuCtxSynchronize() -> Status, or UNKNOWN; { runtime::cudaDeviceSynchronize() }
    fn cuCtxGetLimit(out: Out<usize>, limit: c_int) -> Status, or UNKNOWN; {
        let value = match limit {
            0 => machine().costs.stack(device::current()) as usize,
            1 => 8_650_752, // what kernels print
            2 => 8 << 20,   // their heap
            4 => 2048,      // pending launches
            5 => 64,        // fetch size of the L2
            6 => 11_796_480,
            7 => machine().properties.shared_per_block_optin as usize,
            // Contexts that share a GPU with graphics: none here.
            8 => 0,
            _ => return UNSUPPORTED_LIMIT,
        };
        out.put(value);
        SUCCESS
    }
    fn cuCtxSetLimit(_limit: c_int, _value: usize) -> Status, or UNKNOWN; { SUCCESS }
    fn cuGetErrorString(error: Status, out: Out<*const c_char>) -> Status, or UNKNOWN; {
        out.put(runtime::describe(error).1.as_ptr());
        SUCCESS
    }
    fn cuGetErrorName(error: Status, out: Out<*const c_char>) -> Status, or UNKNOWN; {
        out.put(runtime::describe(error).0.as_ptr());
        SUCCESS
    }
}

// ---- plain memory ----

/// Memory for a library's own use.
pub fn private(out: Out<*mut c_void>, size: usize) -> Status {
    let Some(at) = inner::allocate(size as u64) else {
        return MEMORY_ALLOCATION;
    };
    out.put(at as *mut c_void);
    SUCCESS
}

/// Attributes of `cuPointerGetAttribute`.
const POINTER_CONTEXT: c_int = 1;
const POINTER_MEMORY_TYPE: c_int = 2;
const POINTER_DEVICE_POINTER: c_int = 3;
const POINTER_HOST_POINTER: c_int = 4;
const POINTER_BUFFER_ID: c_int = 7;
const POINTER_IS_MANAGED: c_int = 8;
const POINTER_DEVICE_ORDINAL: c_int = 9;
const POINTER_RANGE_START: c_int = 11;
const POINTER_RANGE_SIZE: c_int = 12;

export! {
    fn cuMemAlloc_v2(out: Out<*mut c_void>, size: usize) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return private(out, size);
        }
        let status = runtime::cudaMalloc(out, size);
        if status == SUCCESS {
            tables::expect(size as u64);
        }
        status
    }
    fn cuMemFree_v2(at: *mut c_void) -> Status, or UNKNOWN; {
        if inner::free(at as u64) {
            return SUCCESS;
        }
        runtime::cudaFree(at)
    }
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Status, or UNKNOWN; {
        runtime::cudaMemGetInfo(free, total)
    }
    fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, at: u64) -> Status, or UNKNOWN; {
        let plain = device::owner(at).and_then(|(_, device)| device.memory.lock().find(at));
        let found = plain.or_else(|| {
            let virtual_memory = VIRTUAL.lock();
            let (&start, &(len, _)) = virtual_memory.mapped.range(..=at).next_back()?;
            (at < start + len).then_some((start, len))
        });
        let found = found.or_else(|| modules::holder(at).map(|(start, len, _)| (start, len)));
        let Some((start, len)) = found else { return NOT_FOUND };
        base.put(start);
        size.put(len as usize);
        SUCCESS
    }
    unsafe fn cuPointerGetAttribute(out: *mut c_void, which: c_int, at: u64) -> Status, or UNKNOWN; {
        let known = runtime::PointerAttributes::of(at).known;
        if known.kind == 0 {
            return INVALID_VALUE;
        }
        // SAFETY: the attribute says what `out` has room for, by the vendor's header.
        unsafe {
            match which {
                POINTER_CONTEXT => Out::new(out.cast()).put(current_context()),
                POINTER_MEMORY_TYPE => Out::new(out.cast()).put(known.kind),
                POINTER_DEVICE_POINTER => Out::new(out.cast()).put(known.device_pointer),
                POINTER_HOST_POINTER => Out::new(out.cast()).put(known.host_pointer),
                POINTER_BUFFER_ID => Out::new(out.cast()).put(at / GRANULE),
                POINTER_IS_MANAGED => Out::new(out.cast()).put(0_u8),
                POINTER_DEVICE_ORDINAL => Out::new(out.cast()).put(known.device),
                POINTER_RANGE_START | POINTER_RANGE_SIZE => {
                    let (mut start, mut len) = (0_u64, 0_usize);
                    let status = cuMemGetAddressRange_v2((&mut start).into(), (&mut len).into(), at);
                    Out::new(out.cast()).put(if which == POINTER_RANGE_START { start } else { len as u64 });
                    return status;
                }
                _ => Out::new(out.cast()).put(0_u32),
            }
        }
        SUCCESS
    }
    unsafe fn cuMemcpyHtoD_v2(to: u64, from: u64, len: usize) -> Status, or UNKNOWN; {
        // SAFETY: the caller's ranges, as the runtime's function wants them.
        unsafe { runtime::cudaMemcpy(to, from, len, 1) }
    }
    unsafe fn cuMemcpyDtoH_v2(to: u64, from: u64, len: usize) -> Status, or UNKNOWN; {
        // SAFETY: the caller's ranges, as the runtime's function wants them.
        unsafe { runtime::cudaMemcpy(to, from, len, 2) }
    }
    unsafe fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> Status, or UNKNOWN; {
        // SAFETY: the caller's ranges, as the runtime's function wants them.
        unsafe { runtime::cudaMemcpyAsync(to, from, len, 1, stream) }
    }
    unsafe fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> Status, or UNKNOWN; {
        // SAFETY: the caller's ranges, as the runtime's function wants them.
        unsafe { runtime::cudaMemcpyAsync(to, from, len, 2, stream) }
    }
    unsafe fn cuMemsetD32Async(at: u64, value: c_uint, count: usize, stream: u64) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return SUCCESS;
        }
        crate::clock::filled(stream, count as u64 * 4);
        if (count as u64) * 4 <= machine().copy_limit {
            for index in 0..count {
                // SAFETY: the caller's range of `count` words; null is looked at.
                unsafe { Out::new((at as *mut c_uint).wrapping_add(index)) }.put(value);
            }
        }
        SUCCESS
    }
    unsafe fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: u64) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return SUCCESS;
        }
        crate::clock::filled(stream, count as u64);
        // SAFETY: the caller's range.
        unsafe { runtime::set(at, value, count) };
        SUCCESS
    }
    unsafe fn cuStreamWriteValue32(_stream: u64, at: u64, value: c_uint, _flags: c_uint) -> Status, or UNKNOWN; {
        // SAFETY: the caller's word of device memory, or null.
        unsafe { Out::new(at as *mut c_uint) }.put(value);
        SUCCESS
    }
    fn cuStreamSynchronize(stream: u64) -> Status, or UNKNOWN; {
        runtime::cudaStreamSynchronize(stream)
    }
    fn cuEventCreate(out: Out<u64>, _flags: c_uint) -> Status, or UNKNOWN; {
        out.put(streams::create_event());
        SUCCESS
    }
    fn cuEventDestroy_v2(event: u64) -> Status, or UNKNOWN; { runtime::cudaEventDestroy(event) }
    fn cuEventRecord(event: u64, stream: u64) -> Status, or UNKNOWN; {
        runtime::cudaEventRecord(event, stream)
    }
    fn cuEventSynchronize(event: u64) -> Status, or UNKNOWN; {
        runtime::cudaEventSynchronize(event)
    }
    fn cuEventElapsedTime(out: Out<f32>, start: u64, end: u64) -> Status, or UNKNOWN; {
        runtime::cudaEventElapsedTime(out, start, end)
    }
}

// ---- modules and launches: kernels do nothing ----

/// Attributes of `cuFuncGetAttribute`.
const FUNC_MAX_THREADS: c_int = 0;
const FUNC_REGISTERS: c_int = 4;
const FUNC_PTX_VERSION: c_int = 5;
const FUNC_BINARY_VERSION: c_int = 6;
const FUNC_MAX_DYNAMIC_SHARED: c_int = 8;

export! {
    fn cuModuleLoad(out: Out<u64>, _path: Text) -> Status, or UNKNOWN; {
        out.put(opaque_handle());
        SUCCESS
    }
    unsafe fn cuModuleLoadData(out: Out<u64>, image: *const u8) -> Status, or UNKNOWN; {
        // SAFETY: an image by the vendor's header.
        out.put(unsafe { modules::loaded(image) });
        SUCCESS
    }
    unsafe fn cuModuleLoadDataEx(out: Out<u64>, image: *const u8, _count: c_uint, _options: *mut c_int, _values: *mut *mut c_void) -> Status, or UNKNOWN; {
        // SAFETY: an image by the vendor's header.
        out.put(unsafe { modules::loaded(image) });
        SUCCESS
    }
    fn cuModuleUnload(module: u64) -> Status, or UNKNOWN; {
        modules::unloaded(module);
        SUCCESS
    }
    fn cuModuleGetFunction(out: Out<u64>, module: u64, name: Text) -> Status, or UNKNOWN; {
        out.put(crate::kernels::named(module, name));
        SUCCESS
    }
    fn cuModuleGetGlobal_v2(at: Out<u64>, size: Out<usize>, module: u64, name: Text) -> Status, or UNKNOWN; {
        if let Some((address, bytes)) = name.get().and_then(|name| modules::variable(module, name)) {
            at.put(address);
            size.put(bytes as usize);
            return SUCCESS;
        }
        ledger::assume("cuModuleGetGlobal", "a module's global variable is assumed to be absent");
        at.put(0);
        size.put(0);
        NOT_FOUND
    }
    fn cuLinkCreate_v2(_count: c_uint, _options: *mut c_int, _values: *mut *mut c_void, out: Out<u64>) -> Status, or UNKNOWN; {
        out.put(opaque_handle());
        SUCCESS
    }
    fn cuLinkAddData_v2() -> Status, or UNKNOWN; { SUCCESS }
    fn cuLinkComplete(_state: u64, cubin: Out<*const u8>, size: Out<usize>) -> Status, or UNKNOWN; {
        static IMAGE: [u8; 8] = [0; 8];
        cubin.put(IMAGE.as_ptr());
        size.put(IMAGE.len());
        SUCCESS
    }
    fn cuLinkDestroy(_state: u64) -> Status, or UNKNOWN; { SUCCESS }
    fn cuFuncGetAttribute(out: Out<c_int>, which: c_int, _function: u64) -> Status, or UNKNOWN; {
        let gpu = &machine().properties;
        let value = match which {
            FUNC_MAX_THREADS => 1024,
            FUNC_REGISTERS => 32,
            FUNC_PTX_VERSION | FUNC_BINARY_VERSION => gpu.capability(),
            FUNC_MAX_DYNAMIC_SHARED => gpu.shared_per_block as c_int,
            _ => 0,
        };
        out.put(value);
        SUCCESS
    }
    fn cuFuncSetAttribute(_function: u64, _which: c_int, _value: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuFuncSetCacheConfig(_function: u64, _config: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<c_int>, _function: u64, threads: c_int, shared: usize) -> Status, or UNKNOWN; {
        out.put(crate::kernels::occupancy(threads, shared));
        SUCCESS
    }
    fn cuOccupancyMaxPotentialBlockSize(grid: Out<c_int>, block: Out<c_int>, _function: u64, _shared_of: *const c_void, shared: usize, limit: c_int) -> Status, or UNKNOWN; {
        let threads = if limit > 0 { limit.min(1024) } else { 1024 };
        block.put(threads);
        grid.put(crate::kernels::occupancy(threads, shared) * machine().properties.sm_count);
        SUCCESS
    }
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(grid: Out<c_int>, block: Out<c_int>, function: u64, shared_of: *const c_void, shared: usize, limit: c_int, _flags: c_uint) -> Status, or UNKNOWN; {
        cuOccupancyMaxPotentialBlockSize(grid, block, function, shared_of, shared, limit)
    }
    fn cuOccupancyMaxActiveClusters(out: Out<c_int>, _function: u64, config: In<LaunchConfig>) -> Status, or UNKNOWN; {
        let Some(config) = config.get() else { return INVALID_VALUE };
        let most = crate::kernels::clusters(config.cluster(), config.threads(), config.shared as usize);
        out.put(most);
        SUCCESS
    }
    fn cuLaunchKernel(function: u64, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: u64, _arguments: *mut *mut c_void, _extra: *mut *mut c_void) -> Status, or UNKNOWN; {
        launched(function, [gx, gy, gz], [bx, by, bz], shared, stream)
    }
    fn cuLaunchCooperativeKernel(function: u64, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: u64, _arguments: *mut *mut c_void) -> Status, or UNKNOWN; {
        launched(function, [gx, gy, gz], [bx, by, bz], shared, stream)
    }
    fn cuLaunchKernelEx(config: In<LaunchConfig>, function: u64, _arguments: *mut *mut c_void, _extra: *mut *mut c_void) -> Status, or UNKNOWN; {
        let Some(config) = config.get() else { return INVALID_VALUE };
        launched(function, config.grid, config.block, config.shared, config.stream)
    }
    unsafe fn cuModuleLoadFatBinary(out: Out<u64>, image: *const u8) -> Status, or UNKNOWN; {
        // SAFETY: an image by the vendor's header.
        out.put(unsafe { modules::loaded(image) });
        SUCCESS
    }
    fn cuModuleGetLoadingMode(out: Out<c_int>) -> Status, or UNKNOWN; {
        const LAZY: c_int = 2;
        out.put(LAZY);
        SUCCESS
    }
    unsafe fn cuLibraryLoadData(out: Out<u64>, image: *const u8) -> Status, or UNKNOWN; {
        // SAFETY: an image by the vendor's header.
        out.put(unsafe { modules::loaded(image) });
        SUCCESS
    }
    fn cuLibraryLoadFromFile(out: Out<u64>) -> Status, or UNKNOWN; {
        out.put(opaque_handle());
        SUCCESS
    }
    fn cuLibraryUnload(library: u64) -> Status, or UNKNOWN; { cuModuleUnload(library) }
    fn cuLibraryGetModule(out: Out<u64>, library: u64) -> Status, or UNKNOWN; {
        out.put(library);
        SUCCESS
    }
    fn cuLibraryGetKernel(out: Out<u64>, library: u64, name: Text) -> Status, or UNKNOWN; {
        cuModuleGetFunction(out, library, name)
    }
    fn cuKernelGetFunction(out: Out<u64>, kernel: u64) -> Status, or UNKNOWN; {
        out.put(kernel);
        SUCCESS
    }
    fn cuKernelGetAttribute(out: Out<c_int>, which: c_int, kernel: u64, _device: c_int) -> Status, or UNKNOWN; {
        cuFuncGetAttribute(out, which, kernel)
    }
    fn cuKernelSetAttribute(_which: c_int, _value: c_int, _kernel: u64, _device: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuStreamGetCtx(_stream: u64, out: Out<u64>) -> Status, or UNKNOWN; {
        out.put(current_context());
        SUCCESS
    }
    fn cuOccupancyMaxPotentialClusterSize(out: Out<c_int>, _function: u64, _config: *const c_void) -> Status, or UNKNOWN; {
        out.put(8);
        SUCCESS
    }
    fn cuMemHostAlloc(out: Out<*mut c_void>, size: usize, flags: c_uint) -> Status, or UNKNOWN; {
        runtime::cudaHostAlloc(out, size, flags)
    }
    unsafe fn cuMemFreeHost(at: *mut c_void) -> Status, or UNKNOWN; {
        // SAFETY: the caller uses the memory no more.
        unsafe { runtime::cudaFreeHost(at) }
    }
    fn cuTensorMapEncodeTiled() -> Status, or UNKNOWN; { SUCCESS }
    fn cuTensorMapEncodeIm2col() -> Status, or UNKNOWN; { SUCCESS }
}

/// Accounts a launch, unless this GPU takes none of its shape.
fn launched(
    function: u64,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: u64,
) -> Status {
    if crate::kernels::refusal(grid, block, shared as usize).is_some() {
        return INVALID_VALUE;
    }
    if !crate::kernels::make_stacks(function) {
        return MEMORY_ALLOCATION;
    }
    crate::kernels::run_shape(function, grid, block, shared, stream);
    SUCCESS
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: u64,
    attributes: *const LaunchAttribute,
    count: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LaunchAttribute {
    id: c_int,
    padding: c_int,
    value: [c_uint; 16],
}

impl LaunchConfig {
    fn threads(&self) -> c_int {
        self.block.iter().product::<c_uint>() as c_int
    }

    /// Blocks in a cluster: one where none is asked for.
    fn cluster(&self) -> c_int {
        const CLUSTER_DIMENSION: c_int = 4;
        let count = if self.attributes.is_null() {
            0
        } else {
            self.count as usize
        };
        (0..count)
            // SAFETY: `count` attributes by the vendor's header.
            .map(|index| unsafe { self.attributes.add(index).read_unaligned() })
            .find(|attribute| attribute.id == CLUSTER_DIMENSION)
            .map_or(1, |found| {
                found.value[..3].iter().product::<c_uint>() as c_int
            })
    }
}

// Names from before the driver's ABI was revised; some libraries look them up first.
export! {
    fn cuCtxPushCurrent(context: u64) -> Status, or UNKNOWN; { cuCtxPushCurrent_v2(context) }
    fn cuCtxPopCurrent(out: Out<u64>) -> Status, or UNKNOWN; { cuCtxPopCurrent_v2(out) }
    fn cuDevicePrimaryCtxRelease(_device: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuDevicePrimaryCtxReset(_device: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuDevicePrimaryCtxReset_v2(_device: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuLinkCreate(count: c_uint, options: *mut c_int, values: *mut *mut c_void, out: Out<u64>) -> Status, or UNKNOWN; {
        cuLinkCreate_v2(count, options, values, out)
    }
    fn cuLinkAddData() -> Status, or UNKNOWN; { SUCCESS }
    fn cuLinkAddFile() -> Status, or UNKNOWN; { SUCCESS }
    fn cuLinkAddFile_v2() -> Status, or UNKNOWN; { SUCCESS }
}

// ---- finding functions by name ----

/// `cuGetProcAddress` and its runtime twins: the newest version of `symbol` that is defined here.
pub fn entry_point(symbol: Text, out: Out<*mut c_void>, status: Out<c_int>) -> Status {
    const FOUND: c_int = 0;
    const ABSENT: c_int = 1;
    let Some(asked) = symbol.get() else {
        return INVALID_VALUE;
    };
    let name = asked.to_string_lossy();
    let address = ["_v2", ""].iter().find_map(|suffix| {
        let candidate = std::ffi::CString::new(format!("{name}{suffix}")).ok()?;
        // This library comes first among the loaded ones.
        // SAFETY: `candidate` is a C string that outlives the call.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, candidate.as_ptr()) };
        (!found.is_null()).then_some(found)
    });
    if address.is_none() {
        ledger::missed_in_driver(asked);
    }
    out.put(address.unwrap_or(std::ptr::null_mut()));
    status.put(if address.is_some() { FOUND } else { ABSENT });
    SUCCESS
}

export! {
    fn cuGetProcAddress(symbol: Text, out: Out<*mut c_void>, _version: c_int, _flags: c_ulonglong) -> Status, or UNKNOWN; {
        let mut status = 0;
        entry_point(symbol, out, (&mut status).into());
        if status == 0 { SUCCESS } else { NOT_FOUND }
    }
    fn cuGetProcAddress_v2(symbol: Text, out: Out<*mut c_void>, _version: c_int, _flags: c_ulonglong, status: Out<c_int>) -> Status, or UNKNOWN; {
        entry_point(symbol, out, status)
    }
    /// Programs with a statically linked runtime ask for the driver's private tables, and some use them
    /// to verify that the driver is the vendor's. This one is not, and reports that.
    fn cuGetExportTable(out: Out<*const c_void>, _id: *const [u8; 16]) -> Status, or UNKNOWN; {
        out.put(std::ptr::null());
        INVALID_VALUE
    }
}
