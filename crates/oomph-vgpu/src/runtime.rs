//! The CUDA runtime (`cuda*`): devices, memory, copies, streams, events, graphs, pools, IPC.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::fs::FileExt as _;

use crate::arguments::{Out, Text, put_text};
use crate::context::Charge;
use crate::device::{self, Device, Properties, active, machine};
use crate::memory::{Refusal, discard};
use crate::streams::{self, CaptureError, EventState};
use crate::sync::Mutex;
use crate::{clock, driver, export, graphs, ledger, nccl, pools, watchdog};

pub type Error = c_int;
pub const SUCCESS: Error = 0;
pub const INVALID_VALUE: Error = 1;
const NOT_READY: Error = 600;
pub const MEMORY_ALLOCATION: Error = 2;
pub const INITIALIZATION: Error = 3;
pub const INVALID_DEVICE: Error = 101;
pub const INVALID_RESOURCE_HANDLE: Error = 400;
pub const ILLEGAL_STATE: Error = 401;
pub const PEER_ACCESS_ALREADY_ENABLED: Error = 704;
pub const HOST_MEMORY_ALREADY_REGISTERED: Error = 712;
pub const HOST_MEMORY_NOT_REGISTERED: Error = 713;
pub const NOT_SUPPORTED: Error = 801;
pub const STREAM_CAPTURE_UNMATCHED: Error = 903;
pub const CAPTURED_EVENT: Error = 907;
pub const UNKNOWN: Error = 999;

thread_local! {
    static LAST: Cell<Error> = const { Cell::new(SUCCESS) };
}

/// Keeps `error` for `cudaGetLastError` and returns it.
pub fn fail(error: Error) -> Error {
    if error != SUCCESS {
        LAST.set(error);
    }
    error
}

/// What `cudaGetLastError` would return.
pub fn last() -> Error {
    LAST.get()
}

/// Sets what `cudaGetLastError` returns.
pub fn set_last(error: Error) {
    LAST.set(error);
}

pub fn check(ok: bool, error: Error) -> Error {
    if ok { SUCCESS } else { fail(error) }
}

/// Runs `body` on the calling thread's device; fails as CUDA does in a forked child.
pub fn on_device(body: impl FnOnce(&'static Device) -> Error) -> Error {
    if device::is_forked() {
        return fail(INITIALIZATION);
    }
    match active() {
        Some(device) => body(device),
        // The device is there, but other processes leave no room for a context.
        None if (device::current() as usize) < machine().devices.len() => fail(MEMORY_ALLOCATION),
        None => fail(INVALID_DEVICE),
    }
}

/// The version of CUDA that the driver supports. A driver is never older than what a working program
/// was built for.
pub fn driver_version() -> c_int {
    let config = &device::look().config;
    let built_for = config.int("cuda_version", 13_000);
    config.int("driver_version", 13_000).max(built_for)
}

/// Names and texts of the errors that this library returns, as the runtime words them.
const ERRORS: &[(Error, &CStr, &CStr)] = &[
    (SUCCESS, c"cudaSuccess", c"no error"),
    (INVALID_VALUE, c"cudaErrorInvalidValue", c"invalid argument"),
    (
        MEMORY_ALLOCATION,
        c"cudaErrorMemoryAllocation",
        c"out of memory",
    ),
    (
        INITIALIZATION,
        c"cudaErrorInitializationError",
        c"initialization error",
    ),
    (
        100,
        c"cudaErrorNoDevice",
        c"no CUDA-capable device is detected",
    ),
    (
        INVALID_DEVICE,
        c"cudaErrorInvalidDevice",
        c"invalid device ordinal",
    ),
    (
        INVALID_RESOURCE_HANDLE,
        c"cudaErrorInvalidResourceHandle",
        c"invalid resource handle",
    ),
    (
        ILLEGAL_STATE,
        c"cudaErrorIllegalState",
        c"the operation cannot be performed in the present state",
    ),
    (NOT_READY, c"cudaErrorNotReady", c"device not ready"),
    (
        PEER_ACCESS_ALREADY_ENABLED,
        c"cudaErrorPeerAccessAlreadyEnabled",
        c"peer access is already enabled",
    ),
    (
        HOST_MEMORY_ALREADY_REGISTERED,
        c"cudaErrorHostMemoryAlreadyRegistered",
        c"part or all of the requested memory range is already mapped",
    ),
    (
        HOST_MEMORY_NOT_REGISTERED,
        c"cudaErrorHostMemoryNotRegistered",
        c"pointer does not correspond to a registered memory region",
    ),
    (
        NOT_SUPPORTED,
        c"cudaErrorNotSupported",
        c"operation not supported",
    ),
    (
        STREAM_CAPTURE_UNMATCHED,
        c"cudaErrorStreamCaptureUnmatched",
        c"capture was not ended in the same stream as it began",
    ),
    (
        CAPTURED_EVENT,
        c"cudaErrorCapturedEvent",
        c"operation not permitted on an event last recorded in a capturing stream",
    ),
    (UNKNOWN, c"cudaErrorUnknown", c"unknown error"),
];

/// The name and text of an error, of which the program may be about to die.
pub fn describe(error: Error) -> (&'static CStr, &'static CStr) {
    if error != SUCCESS
        && error != NOT_READY
        && let Some(cards) = crate::card::get()
    {
        cards.failed(error, crate::ledger::last());
    }
    ERRORS.iter().find(|(code, ..)| *code == error).map_or(
        (c"cudaErrorUnknown", c"unknown error"),
        |&(_, name, text)| (name, text),
    )
}

export! {
    fn cudaGetLastError() -> Error, or UNKNOWN; { LAST.replace(SUCCESS) }
    fn cudaPeekAtLastError() -> Error, or UNKNOWN; { LAST.get() }
    fn cudaGetErrorName(error: Error) -> *const c_char, or std::ptr::null(); {
        describe(error).0.as_ptr()
    }
    fn cudaGetErrorString(error: Error) -> *const c_char, or std::ptr::null(); {
        describe(error).1.as_ptr()
    }
}

// ---- versions and devices ----

/// Whether the program was built for CUDA 12, some of whose structs and functions are others.
fn is_cuda_12() -> bool {
    device::look().config.int("cuda_version", 13_000) < 13_000
}

export! {
    fn cudaRuntimeGetVersion(version: Out<c_int>) -> Error, or UNKNOWN; {
        // torchaudio asks on import, and vLLM forks its engine afterwards.
        version.put(device::look().config.int("cuda_version", 13_000));
        SUCCESS
    }
    fn cudaDriverGetVersion(version: Out<c_int>) -> Error, or UNKNOWN; {
        version.put(driver_version());
        SUCCESS
    }
    fn cudaGetDeviceCount(count: Out<c_int>) -> Error, or UNKNOWN; {
        if device::is_forked() {
            return fail(INITIALIZATION);
        }
        device::start();
        count.put(machine().devices.len() as c_int);
        SUCCESS
    }
    fn cudaGetDevice(index: Out<c_int>) -> Error, or UNKNOWN; {
        index.put(device::current() as c_int);
        SUCCESS
    }
    fn cudaSetDevice(index: c_int) -> Error, or UNKNOWN; {
        if device::is_forked() {
            return fail(INITIALIZATION);
        }
        if !device::set_current(index) {
            return fail(INVALID_DEVICE);
        }
        // Since CUDA 12 this creates the context.
        on_device(|_| SUCCESS)
    }
    fn cudaDeviceSynchronize() -> Error, or UNKNOWN; {
        on_device(|_| {
            streams::witness_device(device::current());
            pools::synchronized();
            check(nccl::settle(u64::MAX), UNKNOWN)
        })
    }
    fn cudaDeviceReset() -> Error, or UNKNOWN; { SUCCESS }
    fn cudaDeviceGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> Error, or UNKNOWN; {
        least.put(0);
        greatest.put(-5);
        SUCCESS
    }
    unsafe fn cudaDeviceGetPCIBusId(text: *mut c_char, len: c_int, index: c_int) -> Error, or UNKNOWN; {
        let id = format!("00000000:{:02X}:00.0", device::physical(index) + 1);
        // SAFETY: the caller gives a buffer of `len` bytes.
        check(unsafe { put_text(text, usize::try_from(len).unwrap_or(0), &id) }, INVALID_VALUE)
    }
    fn cudaDeviceCanAccessPeer(can: Out<c_int>, index: c_int, peer: c_int) -> Error, or UNKNOWN; {
        let peers = index != peer && machine().config.number("peer_access", 1) != 0;
        can.put(c_int::from(peers));
        SUCCESS
    }
    fn cudaDeviceEnablePeerAccess(_peer: c_int, _flags: c_uint) -> Error, or UNKNOWN; { SUCCESS }
    fn cudaDeviceDisablePeerAccess(_peer: c_int) -> Error, or UNKNOWN; { SUCCESS }
    fn cudaDeviceSetLimit(_limit: c_int, _value: usize) -> Error, or UNKNOWN; { SUCCESS }
    fn cudaDeviceGetLimit(value: Out<usize>, limit: c_int) -> Error, or UNKNOWN; {
        driver::cuCtxGetLimit(value, limit)
    }
    fn cudaDeviceGetAttribute(value: Out<c_int>, attribute: c_int, _device: c_int) -> Error, or UNKNOWN; {
        value.put(driver::attribute(attribute));
        SUCCESS
    }
    /// The layout of CUDA 13.
    fn cudaGetDeviceProperties(out: Out<DeviceProp13>, index: c_int) -> Error, or UNKNOWN; {
        if usize::try_from(index).map_or(true, |index| index >= machine().devices.len()) {
            return fail(INVALID_DEVICE);
        }
        out.put(DeviceProp13::new(&machine().properties, index));
        SUCCESS
    }
    /// The layout of CUDA 12.
    fn cudaGetDeviceProperties_v2(out: Out<DeviceProp12>, index: c_int) -> Error, or UNKNOWN; {
        if usize::try_from(index).map_or(true, |index| index >= machine().devices.len()) {
            return fail(INVALID_DEVICE);
        }
        out.put(DeviceProp12::new(&machine().properties, index));
        SUCCESS
    }
}

/// Declares the two layouts of `cudaDeviceProp` from one list of fields, so that a field is
/// filled the same way in both.
macro_rules! device_prop {
    ($name:ident { $($field:ident : $ty:ty),* $(,)? }) => {
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name { $(pub $field: $ty),* }

        impl $name {
            /// The properties of device `index`.
            pub fn new(from: &Properties, index: c_int) -> Self {
                // SAFETY: the fields are integers and arrays of them, for which zeros are a value.
                let mut prop: Self = unsafe { std::mem::zeroed() };
                for (to, &byte) in prop.name.iter_mut().take(255).zip(from.name.as_bytes()) {
                    *to = byte as c_char;
                }
                prop.uuid = driver::uuid(device::physical(index));
                prop.totalGlobalMem = from.total_bytes as usize;
                prop.sharedMemPerBlock = from.shared_per_block as usize;
                prop.regsPerBlock = from.registers_per_block;
                prop.warpSize = 32;
                prop.memPitch = 0x7fff_ffff;
                prop.maxThreadsPerBlock = 1024;
                prop.maxThreadsDim = [1024, 1024, 64];
                prop.maxGridSize = [0x7fff_ffff, 65_535, 65_535];
                prop.totalConstMem = 65_536;
                prop.major = from.major;
                prop.minor = from.minor;
                prop.textureAlignment = 512;
                prop.texturePitchAlignment = 32;
                prop.multiProcessorCount = from.sm_count;
                prop.canMapHostMemory = 1;
                prop.surfaceAlignment = 512;
                prop.concurrentKernels = 1;
                prop.ECCEnabled = from.ecc;
                prop.pciBusID = device::physical(index) + 1;
                prop.asyncEngineCount = from.copy_engines;
                prop.unifiedAddressing = 1;
                prop.memoryBusWidth = from.memory_bus_bits;
                prop.l2CacheSize = from.l2_bytes;
                prop.persistingL2CacheMaxSize = from.persisting_l2_bytes;
                prop.maxThreadsPerMultiProcessor = from.max_threads_per_sm;
                prop.streamPrioritiesSupported = 1;
                prop.globalL1CacheSupported = 1;
                prop.localL1CacheSupported = 1;
                prop.sharedMemPerMultiprocessor = from.shared_per_sm as usize;
                prop.regsPerMultiprocessor = from.registers_per_sm;
                prop.managedMemory = 1;
                prop.concurrentManagedAccess = 1;
                prop.computePreemptionSupported = 1;
                prop.canUseHostPointerForRegisteredMem = 1;
                prop.cooperativeLaunch = 1;
                prop.sharedMemPerBlockOptin = from.shared_per_block_optin as usize;
                prop.maxBlocksPerMultiProcessor = from.max_blocks_per_sm;
                prop.accessPolicyMaxWindowSize = 134_213_632;
                prop.reservedSharedMemPerBlock = from.shared_reserved_per_block as usize;
                prop.hostRegisterSupported = 1;
                prop.memoryPoolsSupported = 1;
                prop.memoryPoolSupportedHandleTypes = 1;
                prop.ipcEventSupported = 1;
                prop.clusterLaunch = c_int::from(from.major >= 9);
                prop.unifiedFunctionPointers = 1;
                prop.fill_version_specific(from);
                prop
            }
        }
    };
}

device_prop!(DeviceProp13 {
    name: [c_char; 256],
    uuid: [u8; 16],
    luid: [c_char; 8],
    luidDeviceNodeMask: c_uint,
    totalGlobalMem: usize,
    sharedMemPerBlock: usize,
    regsPerBlock: c_int,
    warpSize: c_int,
    memPitch: usize,
    maxThreadsPerBlock: c_int,
    maxThreadsDim: [c_int; 3],
    maxGridSize: [c_int; 3],
    totalConstMem: usize,
    major: c_int,
    minor: c_int,
    textureAlignment: usize,
    texturePitchAlignment: usize,
    multiProcessorCount: c_int,
    integrated: c_int,
    canMapHostMemory: c_int,
    maxTexture1D: c_int,
    maxTexture1DMipmap: c_int,
    maxTexture2D: [c_int; 2],
    maxTexture2DMipmap: [c_int; 2],
    maxTexture2DLinear: [c_int; 3],
    maxTexture2DGather: [c_int; 2],
    maxTexture3D: [c_int; 3],
    maxTexture3DAlt: [c_int; 3],
    maxTextureCubemap: c_int,
    maxTexture1DLayered: [c_int; 2],
    maxTexture2DLayered: [c_int; 3],
    maxTextureCubemapLayered: [c_int; 2],
    maxSurface1D: c_int,
    maxSurface2D: [c_int; 2],
    maxSurface3D: [c_int; 3],
    maxSurface1DLayered: [c_int; 2],
    maxSurface2DLayered: [c_int; 3],
    maxSurfaceCubemap: c_int,
    maxSurfaceCubemapLayered: [c_int; 2],
    surfaceAlignment: usize,
    concurrentKernels: c_int,
    ECCEnabled: c_int,
    pciBusID: c_int,
    pciDeviceID: c_int,
    pciDomainID: c_int,
    tccDriver: c_int,
    asyncEngineCount: c_int,
    unifiedAddressing: c_int,
    memoryBusWidth: c_int,
    l2CacheSize: c_int,
    persistingL2CacheMaxSize: c_int,
    maxThreadsPerMultiProcessor: c_int,
    streamPrioritiesSupported: c_int,
    globalL1CacheSupported: c_int,
    localL1CacheSupported: c_int,
    sharedMemPerMultiprocessor: usize,
    regsPerMultiprocessor: c_int,
    managedMemory: c_int,
    isMultiGpuBoard: c_int,
    multiGpuBoardGroupID: c_int,
    hostNativeAtomicSupported: c_int,
    pageableMemoryAccess: c_int,
    concurrentManagedAccess: c_int,
    computePreemptionSupported: c_int,
    canUseHostPointerForRegisteredMem: c_int,
    cooperativeLaunch: c_int,
    sharedMemPerBlockOptin: usize,
    pageableMemoryAccessUsesHostPageTables: c_int,
    directManagedMemAccessFromHost: c_int,
    maxBlocksPerMultiProcessor: c_int,
    accessPolicyMaxWindowSize: c_int,
    reservedSharedMemPerBlock: usize,
    hostRegisterSupported: c_int,
    sparseCudaArraySupported: c_int,
    hostRegisterReadOnlySupported: c_int,
    timelineSemaphoreInteropSupported: c_int,
    memoryPoolsSupported: c_int,
    gpuDirectRDMASupported: c_int,
    gpuDirectRDMAFlushWritesOptions: c_uint,
    gpuDirectRDMAWritesOrdering: c_int,
    memoryPoolSupportedHandleTypes: c_uint,
    deferredMappingCudaArraySupported: c_int,
    ipcEventSupported: c_int,
    clusterLaunch: c_int,
    unifiedFunctionPointers: c_int,
    deviceNumaConfig: c_int,
    deviceNumaId: c_int,
    mpsEnabled: c_int,
    hostNumaId: c_int,
    gpuPciDeviceID: c_uint,
    gpuPciSubsystemID: c_uint,
    hostNumaMultinodeIpcSupported: c_int,
    reserved: [c_int; 56],
});

impl DeviceProp13 {
    fn fill_version_specific(&mut self, _from: &Properties) {
        self.deviceNumaId = -1;
        self.hostNumaId = -1;
    }
}

device_prop!(DeviceProp12 {
    name: [c_char; 256],
    uuid: [u8; 16],
    luid: [c_char; 8],
    luidDeviceNodeMask: c_uint,
    totalGlobalMem: usize,
    sharedMemPerBlock: usize,
    regsPerBlock: c_int,
    warpSize: c_int,
    memPitch: usize,
    maxThreadsPerBlock: c_int,
    maxThreadsDim: [c_int; 3],
    maxGridSize: [c_int; 3],
    clockRate: c_int,
    totalConstMem: usize,
    major: c_int,
    minor: c_int,
    textureAlignment: usize,
    texturePitchAlignment: usize,
    deviceOverlap: c_int,
    multiProcessorCount: c_int,
    kernelExecTimeoutEnabled: c_int,
    integrated: c_int,
    canMapHostMemory: c_int,
    computeMode: c_int,
    maxTexture1D: c_int,
    maxTexture1DMipmap: c_int,
    maxTexture1DLinear: c_int,
    maxTexture2D: [c_int; 2],
    maxTexture2DMipmap: [c_int; 2],
    maxTexture2DLinear: [c_int; 3],
    maxTexture2DGather: [c_int; 2],
    maxTexture3D: [c_int; 3],
    maxTexture3DAlt: [c_int; 3],
    maxTextureCubemap: c_int,
    maxTexture1DLayered: [c_int; 2],
    maxTexture2DLayered: [c_int; 3],
    maxTextureCubemapLayered: [c_int; 2],
    maxSurface1D: c_int,
    maxSurface2D: [c_int; 2],
    maxSurface3D: [c_int; 3],
    maxSurface1DLayered: [c_int; 2],
    maxSurface2DLayered: [c_int; 3],
    maxSurfaceCubemap: c_int,
    maxSurfaceCubemapLayered: [c_int; 2],
    surfaceAlignment: usize,
    concurrentKernels: c_int,
    ECCEnabled: c_int,
    pciBusID: c_int,
    pciDeviceID: c_int,
    pciDomainID: c_int,
    tccDriver: c_int,
    asyncEngineCount: c_int,
    unifiedAddressing: c_int,
    memoryClockRate: c_int,
    memoryBusWidth: c_int,
    l2CacheSize: c_int,
    persistingL2CacheMaxSize: c_int,
    maxThreadsPerMultiProcessor: c_int,
    streamPrioritiesSupported: c_int,
    globalL1CacheSupported: c_int,
    localL1CacheSupported: c_int,
    sharedMemPerMultiprocessor: usize,
    regsPerMultiprocessor: c_int,
    managedMemory: c_int,
    isMultiGpuBoard: c_int,
    multiGpuBoardGroupID: c_int,
    hostNativeAtomicSupported: c_int,
    singleToDoublePrecisionPerfRatio: c_int,
    pageableMemoryAccess: c_int,
    concurrentManagedAccess: c_int,
    computePreemptionSupported: c_int,
    canUseHostPointerForRegisteredMem: c_int,
    cooperativeLaunch: c_int,
    cooperativeMultiDeviceLaunch: c_int,
    sharedMemPerBlockOptin: usize,
    pageableMemoryAccessUsesHostPageTables: c_int,
    directManagedMemAccessFromHost: c_int,
    maxBlocksPerMultiProcessor: c_int,
    accessPolicyMaxWindowSize: c_int,
    reservedSharedMemPerBlock: usize,
    hostRegisterSupported: c_int,
    sparseCudaArraySupported: c_int,
    hostRegisterReadOnlySupported: c_int,
    timelineSemaphoreInteropSupported: c_int,
    memoryPoolsSupported: c_int,
    gpuDirectRDMASupported: c_int,
    gpuDirectRDMAFlushWritesOptions: c_uint,
    gpuDirectRDMAWritesOrdering: c_int,
    memoryPoolSupportedHandleTypes: c_uint,
    deferredMappingCudaArraySupported: c_int,
    ipcEventSupported: c_int,
    clusterLaunch: c_int,
    unifiedFunctionPointers: c_int,
    reserved: [c_int; 63],
});

// As the vendor's headers have them, compiled for C.
const _: () = assert!(size_of::<DeviceProp12>() == 1032 && size_of::<DeviceProp13>() == 1008);
const _: () = assert!(size_of::<KnownAttributes>() == 24 && size_of::<PointerAttributes>() == 88);

impl DeviceProp12 {
    fn fill_version_specific(&mut self, from: &Properties) {
        self.clockRate = from.clock_khz;
        self.memoryClockRate = from.memory_clock_khz;
        self.deviceOverlap = 1;
        self.singleToDoublePrecisionPerfRatio = if from.minor == 0 { 2 } else { 64 };
        self.cooperativeMultiDeviceLaunch = 1;
    }
}

// ---- memory ----

/// `cudaMalloc` for the functions that hand out device memory.
pub fn malloc(device: &Device, size: u64) -> Result<u64, Error> {
    device.memory.lock().malloc(size).map_err(|refusal| match refusal {
        Refusal::OutOfMemory => MEMORY_ALLOCATION,
        Refusal::AddressSpace => {
            ledger::assume(
                "cudaMalloc",
                "the operating system refused address space; out of memory was reported although \
                 the GPU had room (see `ulimit -v`)",
            );
            MEMORY_ALLOCATION
        }
    })
}

fn free(addr: u64) -> bool {
    device::owner(addr).is_some_and(|(_, device)| device.memory.lock().free_at(addr))
}

export! {
    fn cudaMalloc(out: Out<*mut c_void>, size: usize) -> Error, or UNKNOWN; {
        on_device(|device| {
            if size == 0 {
                out.put(std::ptr::null_mut());
                return SUCCESS;
            }
            match malloc(device, size as u64) {
                Ok(at) => {
                    out.put(at as *mut c_void);
                    SUCCESS
                }
                Err(error) => fail(error),
            }
        })
    }
    fn cudaMallocManaged(out: Out<*mut c_void>, size: usize, _flags: c_uint) -> Error, or UNKNOWN; {
        cudaMalloc(out, size)
    }
    fn cudaFree(at: *mut c_void) -> Error, or UNKNOWN; {
        // `cudaFree(0)` is the usual way to create the context.
        on_device(|_| check(at.is_null() || free(at as u64), INVALID_VALUE))
    }
    fn cudaMemGetInfo(free: Out<usize>, total: Out<usize>) -> Error, or UNKNOWN; {
        on_device(|device| {
            let memory = device.memory.lock();
            free.put(memory.free() as usize);
            total.put(memory.total as usize);
            SUCCESS
        })
    }
}

/// Pinned host memory: start → (length, whether this library allocated it).
static PINNED: Mutex<BTreeMap<u64, (u64, bool)>> = Mutex::new(BTreeMap::new());

/// Whether `addr` lies in pinned memory of the host.
pub fn is_pinned(addr: u64) -> bool {
    pinned(addr).is_some()
}

/// Whether `addr` lies in memory that `cudaHostAlloc` mapped, not in memory that was only registered.
fn allocated_pinned(addr: u64) -> bool {
    let pinned = PINNED.lock();
    pinned
        .range(..=addr)
        .next_back()
        .is_some_and(|(&start, &(len, ours))| ours && addr < start + len)
}

fn pinned(addr: u64) -> Option<u64> {
    let pinned = PINNED.lock();
    let (&start, &(len, _)) = pinned.range(..=addr).next_back()?;
    (addr < start + len).then_some(start)
}

export! {
    fn cudaHostAlloc(out: Out<*mut c_void>, size: usize, _flags: c_uint) -> Error, or UNKNOWN; {
        on_device(|_| {
            // SAFETY: a mapping at an address of the kernel's choice touches nothing else.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(), size.max(1), libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0,
                )
            };
            if at == libc::MAP_FAILED {
                return fail(MEMORY_ALLOCATION);
            }
            PINNED.lock().insert(at as u64, (size.max(1) as u64, true));
            out.put(at);
            SUCCESS
        })
    }
    fn cudaMallocHost(out: Out<*mut c_void>, size: usize) -> Error, or UNKNOWN; {
        cudaHostAlloc(out, size, 0)
    }
    unsafe fn cudaFreeHost(at: *mut c_void) -> Error, or UNKNOWN; {
        if at.is_null() {
            return SUCCESS;
        }
        let mut pinned = PINNED.lock();
        match pinned.get(&(at as u64)).copied() {
            Some((len, true)) => {
                pinned.remove(&(at as u64));
                // SAFETY: mapped by `cudaHostAlloc` with this length.
                unsafe { libc::munmap(at, len as usize) };
                SUCCESS
            }
            _ => fail(INVALID_VALUE),
        }
    }
    fn cudaHostRegister(at: *mut c_void, size: usize, _flags: c_uint) -> Error, or UNKNOWN; {
        on_device(|_| {
            if pinned(at as u64).is_some() {
                return fail(HOST_MEMORY_ALREADY_REGISTERED);
            }
            PINNED.lock().insert(at as u64, (size as u64, false));
            SUCCESS
        })
    }
    fn cudaHostUnregister(at: *mut c_void) -> Error, or UNKNOWN; {
        let known = matches!(PINNED.lock().remove(&(at as u64)), Some((_, false)));
        check(known, HOST_MEMORY_NOT_REGISTERED)
    }
    fn cudaHostGetDevicePointer(out: Out<*mut c_void>, at: *mut c_void, _flags: c_uint) -> Error, or UNKNOWN; {
        out.put(at);
        SUCCESS
    }
    fn cudaPointerGetAttributes(out: Out<PointerAttributes>, at: *const c_void) -> Error, or UNKNOWN; {
        let found = PointerAttributes::of(at as u64);
        if is_cuda_12() {
            // SAFETY: the struct of CUDA 12 is the beginning of that of CUDA 13.
            unsafe { Out::new(out.as_ptr().cast()) }.put(found.known);
        } else {
            out.put(found);
        }
        SUCCESS
    }
}

/// What `cudaPointerAttributes` was until CUDA 12.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KnownAttributes {
    pub kind: c_int,
    pub device: c_int,
    pub device_pointer: u64,
    pub host_pointer: u64,
}

/// `cudaPointerAttributes` of CUDA 13.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PointerAttributes {
    pub known: KnownAttributes,
    reserved: [i64; 8],
}

impl PointerAttributes {
    const HOST: c_int = 1;
    const DEVICE: c_int = 2;

    /// What is known of `addr`.
    pub fn of(addr: u64) -> Self {
        let none = KnownAttributes {
            kind: 0,
            device: -2,
            device_pointer: 0,
            host_pointer: 0,
        };
        let known = if let Some(device) = driver::device_of(addr) {
            KnownAttributes {
                kind: Self::DEVICE,
                device: device as c_int,
                device_pointer: addr,
                ..none
            }
        } else if pinned(addr).is_some() {
            KnownAttributes {
                kind: Self::HOST,
                device: device::current() as c_int,
                device_pointer: addr,
                host_pointer: addr,
            }
        } else {
            KnownAttributes {
                host_pointer: addr,
                ..none
            }
        };
        Self {
            known,
            reserved: [0; 8],
        }
    }
}

/// Copies real bytes if that is cheap and matters; large device contents were never
/// computed. Copies to the host always happen, since the host will read them.
///
/// # Safety
/// As for the vendor's copy functions: both ranges must be valid.
pub unsafe fn copy(to: u64, from: u64, len: usize) {
    if to == 0 || from == 0 || len == 0 {
        return;
    }
    if driver::device_of(to).is_some() {
        if crate::report::keeps() && driver::device_of(from).is_some() {
            return;
        }
        let limit = machine().copy_limit;
        if len as u64 > limit && !(len as u64 <= COLLECTIVE_COPY && nccl::is_inside()) {
            return;
        }
    } else if let Some(answer) = crate::report::answer_read(len) {
        // SAFETY: the caller's contract; `answer_read` answers reads of up to eight bytes.
        unsafe { std::ptr::copy_nonoverlapping(answer.to_le_bytes().as_ptr(), to as *mut u8, len) };
        return;
    }
    if len as u64 > SPARSE_COPY && driver::device_of(from).is_some() && allocated_pinned(to) {
        // SAFETY: the caller's contract; the destination is an anonymous mapping of ours.
        unsafe { copy_touched(to, from, len) };
        return;
    }
    // SAFETY: the caller's contract; overlapping ranges are allowed here.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len) }
}

/// Collective operators copy results between buffers; up to this many bytes
/// they carry values.
const COLLECTIVE_COPY: u64 = 8 << 20;
/// Beyond this a copy from the device into pinned memory leaves untouched what is untouched, so that
/// activations offloaded to the host take no memory of it either.
const SPARSE_COPY: u64 = 1 << 20;
/// Bytes of a page of this process's memory.
const PAGE: u64 = 4096;

/// Copies what was ever written of large pinned host memory to the device; the rest there becomes untouched. False if it is none.
///
/// # Safety
/// Both ranges must be valid.
pub unsafe fn bring(to: u64, from: u64, len: usize) -> bool {
    let is_sparse =
        len as u64 > SPARSE_COPY && allocated_pinned(from) && driver::device_of(to).is_some();
    if is_sparse {
        // SAFETY: the caller's contract; the destination is device memory, which are anonymous pages of ours.
        unsafe { copy_touched(to, from, len) };
    }
    is_sparse
}

/// Copies the pages of `from` that were ever touched; the rest of the destination becomes untouched.
///
/// # Safety
/// Both ranges must be valid and apart, and the destination an anonymous private mapping.
unsafe fn copy_touched(to: u64, from: u64, len: usize) {
    let end = from + len as u64;
    // SAFETY: the caller's contract.
    unsafe {
        let (first, last) = (to.div_ceil(PAGE) * PAGE, (to + len as u64) / PAGE * PAGE);
        std::ptr::write_bytes(to as *mut u8, 0, (first - to) as usize);
        discard(first, last - first);
        std::ptr::write_bytes(last as *mut u8, 0, (to + len as u64 - last) as usize);
    }
    let start = from / PAGE * PAGE;
    let pages = (end - start).div_ceil(PAGE);
    let map = page_map(start, pages);
    for page in 0..pages {
        if map.as_ref().is_some_and(|map| !map[page as usize]) {
            continue;
        }
        let begin = (start + page * PAGE).max(from);
        let stop = (start + (page + 1) * PAGE).min(end);
        // SAFETY: within both ranges.
        unsafe {
            std::ptr::copy_nonoverlapping(
                begin as *const u8,
                (to + (begin - from)) as *mut u8,
                (stop - begin) as usize,
            );
        }
    }
}

/// Which of so many pages were ever touched: those that are in memory or were swapped out, which `mincore` does not count. `None` if
/// the kernel does not tell.
fn page_map(start: u64, pages: u64) -> Option<Vec<bool>> {
    const IN_MEMORY_OR_SWAPPED: u64 = 0b11 << 62;
    let mut entries = vec![0u8; pages as usize * size_of::<u64>()];
    let file = std::fs::File::open("/proc/self/pagemap").ok()?;
    file.read_exact_at(&mut entries, start / PAGE * size_of::<u64>() as u64)
        .ok()?;
    let entries = entries.chunks_exact(size_of::<u64>());
    let is_touched = |entry: &[u8]| {
        let entry = entry.try_into().map_or(u64::MAX, u64::from_ne_bytes);
        entry & IN_MEMORY_OR_SWAPPED != 0
    };
    Some(entries.map(is_touched).collect())
}

/// Sets real bytes where that costs little.
///
/// # Safety
/// The range must be valid.
pub unsafe fn set(at: u64, value: u8, len: usize) {
    if at == 0 || len == 0 || crate::report::keeps() && driver::device_of(at).is_some() {
        return;
    }
    let end = at + len as u64;
    if len as u64 <= machine().copy_limit || driver::device_of(at).is_none() {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::write_bytes(at as *mut u8, value, len) };
    } else if value == 0 {
        // Whole pages become untouched again; only the ends are written.
        let (first, last) = (at.div_ceil(PAGE) * PAGE, end / PAGE * PAGE);
        // SAFETY: the range lies in device memory of ours, and the ends inside the range.
        unsafe {
            std::ptr::write_bytes(at as *mut u8, 0, (first - at) as usize);
            discard(first, last.saturating_sub(first));
            std::ptr::write_bytes(last as *mut u8, 0, (end - last) as usize);
        }
    }
}

export! {
    unsafe fn cudaMemcpy(to: u64, from: u64, len: usize, _kind: c_int) -> Error, or UNKNOWN; {
        clock::copied(0, to, from, len as u64);
        let mark = streams::witness_stream(device::current(), 0);
        // SAFETY: the caller's ranges, by the vendor's header.
        unsafe { copy(to, from, len) };
        check(nccl::settle(mark), UNKNOWN)
    }
    unsafe fn cudaMemcpyAsync(to: u64, from: u64, len: usize, _kind: c_int, stream: u64) -> Error, or UNKNOWN; {
        clock::copied(stream, to, from, len as u64);
        // SAFETY: the caller's ranges, by the vendor's header.
        unsafe { copy(to, from, len) };
        SUCCESS
    }
    unsafe fn cudaMemcpyPeerAsync(to: u64, _to_device: c_int, from: u64, _from_device: c_int, len: usize, stream: u64) -> Error, or UNKNOWN; {
        clock::copied(stream, to, from, len as u64);
        // SAFETY: the caller's ranges, by the vendor's header.
        unsafe { copy(to, from, len) };
        SUCCESS
    }
    unsafe fn cudaMemcpy2DAsync(to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, _kind: c_int, stream: u64) -> Error, or UNKNOWN; {
        let whole = width as u64 * height as u64;
        clock::copied(stream, to, from, whole);
        if driver::device_of(to).is_none() || whole <= machine().copy_limit {
            for row in 0..height {
                // SAFETY: a row of the caller's ranges, by the vendor's header.
                unsafe { copy(to + (row * to_pitch) as u64, from + (row * from_pitch) as u64, width) };
            }
        }
        SUCCESS
    }
    unsafe fn cudaMemset(at: u64, value: c_int, len: usize) -> Error, or UNKNOWN; {
        clock::filled(0, len as u64);
        // SAFETY: the caller's range, by the vendor's header.
        unsafe { set(at, value as u8, len) };
        SUCCESS
    }
    unsafe fn cudaMemsetAsync(at: u64, value: c_int, len: usize, stream: u64) -> Error, or UNKNOWN; {
        clock::filled(stream, len as u64);
        // SAFETY: the caller's range, by the vendor's header.
        unsafe { set(at, value as u8, len) };
        SUCCESS
    }
}

// ---- streams and events ----

export! {
    fn cudaStreamCreate(out: Out<u64>) -> Error, or UNKNOWN; {
        cudaStreamCreateWithPriority(out, 0, 0)
    }
    fn cudaStreamCreateWithFlags(out: Out<u64>, flags: c_uint) -> Error, or UNKNOWN; {
        cudaStreamCreateWithPriority(out, flags, 0)
    }
    fn cudaStreamCreateWithPriority(out: Out<u64>, flags: c_uint, priority: c_int) -> Error, or UNKNOWN; {
        on_device(|_| {
            machine().costs.charge(device::current(), Charge::Stream);
            out.put(streams::create_stream(device::current(), flags, priority));
            SUCCESS
        })
    }
    fn cudaStreamDestroy(stream: u64) -> Error, or UNKNOWN; {
        check(streams::destroy_stream(stream), INVALID_RESOURCE_HANDLE)
    }
    fn cudaStreamGetPriority(stream: u64, priority: Out<c_int>) -> Error, or UNKNOWN; {
        priority.put(streams::stream(stream).map_or(0, |stream| stream.priority));
        SUCCESS
    }
    fn cudaStreamGetFlags(stream: u64, flags: Out<c_uint>) -> Error, or UNKNOWN; {
        flags.put(streams::stream(stream).map_or(0, |stream| stream.flags));
        SUCCESS
    }
    fn cudaStreamGetDevice(stream: u64, device: Out<c_int>) -> Error, or UNKNOWN; {
        let of = streams::stream(stream).map_or_else(device::current, |stream| stream.device);
        device.put(of as c_int);
        SUCCESS
    }
    fn cudaStreamQuery(stream: u64) -> Error, or UNKNOWN; {
        streams::witness_stream(device::current(), stream);
        check(streams::is_stream(stream), INVALID_RESOURCE_HANDLE)
    }
    fn cudaStreamSynchronize(stream: u64) -> Error, or UNKNOWN; {
        let mark = streams::witness_stream(device::current(), stream);
        pools::synchronized();
        if !nccl::settle(mark) {
            return fail(UNKNOWN);
        }
        check(streams::is_stream(stream), INVALID_RESOURCE_HANDLE)
    }
    fn cudaStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) -> Error, or UNKNOWN; {
        watchdog::settled(event);
        check(streams::wait(device::current(), stream, event), INVALID_RESOURCE_HANDLE)
    }
    unsafe fn cudaStreamAddCallback(stream: u64, callback: Option<unsafe extern "C" fn(u64, Error, *mut c_void)>, data: *mut c_void, _flags: c_uint) -> Error, or UNKNOWN; {
        if let Some(callback) = callback {
            // SAFETY: the caller's callback with the caller's argument; all earlier work is done.
            unsafe { callback(stream, SUCCESS, data) };
        }
        SUCCESS
    }
    unsafe fn cudaLaunchHostFunc(stream: u64, callback: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) -> Error, or UNKNOWN; {
        if streams::capture(stream).is_some() {
            clock::spend(stream, clock::LAUNCH);
        } else if let Some(callback) = callback {
            // SAFETY: the caller's callback with the caller's argument; all earlier work is done.
            unsafe { callback(data) };
        }
        SUCCESS
    }
    fn cudaEventCreate(out: Out<u64>) -> Error, or UNKNOWN; {
        cudaEventCreateWithFlags(out, 0)
    }
    fn cudaEventCreateWithFlags(out: Out<u64>, _flags: c_uint) -> Error, or UNKNOWN; {
        on_device(|_| {
            out.put(streams::create_event());
            SUCCESS
        })
    }
    fn cudaEventDestroy(event: u64) -> Error, or UNKNOWN; {
        watchdog::settled(event);
        check(streams::destroy_event(event), INVALID_RESOURCE_HANDLE)
    }
    fn cudaEventRecord(event: u64, stream: u64) -> Error, or UNKNOWN; {
        check(streams::record(device::current(), event, stream), INVALID_RESOURCE_HANDLE)
    }
    fn cudaEventRecordWithFlags(event: u64, stream: u64, _flags: c_uint) -> Error, or UNKNOWN; {
        check(streams::record(device::current(), event, stream), INVALID_RESOURCE_HANDLE)
    }
    fn cudaEventQuery(event: u64) -> Error, or UNKNOWN; {
        if watchdog::is_this_thread() {
            return if watchdog::answer(event) { SUCCESS } else { NOT_READY };
        }
        match streams::event_state(event) {
            EventState::Done => SUCCESS,
            EventState::Pending => {
                ledger::assume(
                    "cudaEventQuery",
                    "how far the GPU is behind the host is estimated; memory that another stream still uses \
                     (record_stream) comes back accordingly",
                );
                NOT_READY
            }
            EventState::Captured => fail(CAPTURED_EVENT),
            EventState::Unknown => fail(INVALID_RESOURCE_HANDLE),
        }
    }
    fn cudaEventSynchronize(event: u64) -> Error, or UNKNOWN; {
        if !nccl::settle(streams::witness_event(event)) {
            return fail(UNKNOWN);
        }
        check(streams::is_event(event), INVALID_RESOURCE_HANDLE)
    }
    fn cudaEventElapsedTime(out: Out<f32>, start: u64, end: u64) -> Error, or UNKNOWN; {
        match streams::elapsed_ms(start, end) {
            Some(ms) => {
                ledger::assume(
                    "cudaEventElapsedTime",
                    "kernels do not run; events measure estimated times",
                );
                out.put(ms);
                SUCCESS
            }
            None => fail(INVALID_RESOURCE_HANDLE),
        }
    }
    fn cudaEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) -> Error, or UNKNOWN; {
        cudaEventElapsedTime(out, start, end)
    }
}

// ---- capture and graphs ----

const CAPTURE_NONE: c_int = 0;
const CAPTURE_ACTIVE: c_int = 1;

fn capture_status(stream: u64) -> (c_int, u64, u64) {
    streams::capture(stream).map_or((CAPTURE_NONE, 0, 0), |(id, graph)| {
        (CAPTURE_ACTIVE, id, graph)
    })
}

/// The graph that is being captured; which of its nodes come before the next one is not kept.
fn capture_graph(
    handle: u64,
    graph: Out<u64>,
    nodes: Out<u64>,
    edges: Out<u64>,
    count: Out<usize>,
) {
    graph.put(handle);
    nodes.put(0);
    edges.put(0);
    count.put(0);
}

export! {
    fn cudaStreamBeginCapture(stream: u64, _mode: c_int) -> Error, or UNKNOWN; {
        check(streams::begin_capture(stream), ILLEGAL_STATE)
    }
    fn cudaStreamEndCapture(stream: u64, graph: Out<u64>) -> Error, or UNKNOWN; {
        match streams::end_capture(stream) {
            Ok(handle) => {
                graph.put(handle);
                SUCCESS
            }
            Err(CaptureError::NotCapturing) => fail(ILLEGAL_STATE),
            Err(CaptureError::WrongStream) => fail(STREAM_CAPTURE_UNMATCHED),
        }
    }
    fn cudaStreamIsCapturing(stream: u64, status: Out<c_int>) -> Error, or UNKNOWN; {
        status.put(capture_status(stream).0);
        SUCCESS
    }
    /// CUDA 13: with edge data.
    fn cudaStreamGetCaptureInfo(stream: u64, status: Out<c_int>, id: Out<c_ulonglong>, graph: Out<u64>, nodes: Out<u64>, edges: Out<u64>, count: Out<usize>) -> Error, or UNKNOWN; {
        let (active, capture, handle) = capture_status(stream);
        status.put(active);
        id.put(capture);
        if is_cuda_12() {
            return SUCCESS; // there this name takes no more
        }
        capture_graph(handle, graph, nodes, edges, count);
        SUCCESS
    }
    fn cudaStreamGetCaptureInfo_v3(stream: u64, status: Out<c_int>, id: Out<c_ulonglong>, graph: Out<u64>, nodes: Out<u64>, edges: Out<u64>, count: Out<usize>) -> Error, or UNKNOWN; {
        let (active, capture, handle) = capture_status(stream);
        status.put(active);
        id.put(capture);
        capture_graph(handle, graph, nodes, edges, count);
        SUCCESS
    }
    fn cudaStreamGetCaptureInfo_v2(stream: u64, status: Out<c_int>, id: Out<c_ulonglong>, graph: Out<u64>, nodes: Out<u64>, count: Out<usize>) -> Error, or UNKNOWN; {
        cudaStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, Out::null(), count)
    }
    fn cudaStreamUpdateCaptureDependencies(_stream: u64, _nodes: *mut u64, _edges: *mut u64, _count: usize, _flags: c_uint) -> Error, or UNKNOWN; { SUCCESS }
    fn cudaThreadExchangeStreamCaptureMode(_mode: *mut c_int) -> Error, or UNKNOWN; {
        if watchdog::is_this_thread() {
            watchdog::goes_on();
        }
        SUCCESS
    }
    unsafe fn cudaGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize) -> Error, or UNKNOWN; {
        let Some(all) = graphs::all_nodes(graph) else { return fail(INVALID_VALUE) };
        // SAFETY: room for `count` nodes by the vendor's header.
        unsafe { graphs::put_list(&all, nodes, count) };
        SUCCESS
    }
    unsafe fn cudaGraphGetRootNodes(graph: u64, nodes: *mut u64, count: *mut usize) -> Error, or UNKNOWN; {
        let Some(roots) = graphs::roots(graph) else { return fail(INVALID_VALUE) };
        // SAFETY: room for `count` nodes by the vendor's header.
        unsafe { graphs::put_list(&roots, nodes, count) };
        SUCCESS
    }
    fn cudaGraphNodeGetDependencies(_node: u64, _nodes: *mut u64, edges_or_count: Out<usize>, count: Out<usize>) -> Error, or UNKNOWN; {
        // CUDA 12 has no edge argument: there the third one is the count.
        let count = if is_cuda_12() { edges_or_count } else { count };
        count.put(0);
        SUCCESS
    }
    fn cudaGraphDebugDotPrint(_graph: u64, path: Text, _flags: c_uint) -> Error, or UNKNOWN; {
        let Some(path) = path.get() else { return fail(INVALID_VALUE) };
        let path = path.to_string_lossy().into_owned();
        check(std::fs::write(path, "digraph virtual {}\n").is_ok(), INVALID_VALUE)
    }
    fn cudaGraphInstantiate(out: Out<u64>, graph: u64, _flags: c_ulonglong) -> Error, or UNKNOWN; {
        cudaGraphInstantiateWithFlags(out, graph, 0)
    }
    fn cudaGraphInstantiateWithFlags(out: Out<u64>, graph: u64, _flags: c_ulonglong) -> Error, or UNKNOWN; {
        match streams::instantiate(graph) {
            Some(executable) => {
                graphs::instantiated(graph, executable);
                out.put(executable);
                SUCCESS
            }
            None => fail(INVALID_VALUE),
        }
    }
    fn cudaGraphLaunch(executable: u64, stream: u64) -> Error, or UNKNOWN; {
        check(streams::run_graph(device::current(), executable, stream), INVALID_VALUE)
    }
    fn cudaGraphUpload(executable: u64, _stream: u64) -> Error, or UNKNOWN; {
        check(streams::is_executable(executable), INVALID_VALUE)
    }
    fn cudaGraphDestroy(graph: u64) -> Error, or UNKNOWN; {
        graphs::destroyed(graph);
        check(streams::destroy_graph(graph), INVALID_VALUE)
    }
    fn cudaGraphExecDestroy(executable: u64) -> Error, or UNKNOWN; {
        graphs::destroyed(executable);
        check(streams::destroy_executable(executable), INVALID_VALUE)
    }
}

// ---- between processes ----

/// What a memory handle says, in its 64 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct IpcHandle {
    process: u64,
    base: u64,
    size: u64,
    unused: [u64; 5],
}

/// Address space opened for memory of other processes: start → reservation.
static OPENED: Mutex<BTreeMap<u64, crate::memory::Reservation>> = Mutex::new(BTreeMap::new());

/// Whether `addr` lies in memory opened from another process.
pub fn is_opened(addr: u64) -> bool {
    OPENED
        .lock()
        .range(..=addr)
        .next_back()
        .is_some_and(|(_, range)| range.contains(addr))
}

export! {
    fn cudaIpcGetMemHandle(out: Out<IpcHandle>, at: *mut c_void) -> Error, or UNKNOWN; {
        let found = device::owner(at as u64).and_then(|(_, device)| device.memory.lock().find(at as u64));
        let Some((base, size)) = found else { return fail(INVALID_VALUE) };
        out.put(IpcHandle { process: u64::from(std::process::id()), base, size, unused: [0; 5] });
        SUCCESS
    }
    fn cudaIpcOpenMemHandle(out: Out<*mut c_void>, handle: IpcHandle, _flags: c_uint) -> Error, or UNKNOWN; {
        on_device(|_| {
            let Some(range) = crate::memory::Reservation::new(handle.size) else {
                return fail(MEMORY_ALLOCATION);
            };
            let at = range.base();
            // The contents as they are now, where they are small; the memory is not shared.
            if handle.size <= machine().copy_limit.max(crate::memory::GRANULE) {
                let local = libc::iovec { iov_base: at as *mut c_void, iov_len: handle.size as usize };
                let remote = libc::iovec { iov_base: handle.base as *mut c_void, iov_len: handle.size as usize };
                // SAFETY: `local` is ours; the kernel checks `remote`.
                unsafe { libc::process_vm_readv(handle.process as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0) };
            }
            ledger::assume(
                "cudaIpcOpenMemHandle",
                "memory of another process is opened with a copy of its small contents; later writes are not visible",
            );
            OPENED.lock().insert(at, range);
            out.put(at as *mut c_void);
            SUCCESS
        })
    }
    fn cudaIpcCloseMemHandle(at: *mut c_void) -> Error, or UNKNOWN; {
        check(OPENED.lock().remove(&(at as u64)).is_some(), INVALID_VALUE)
    }
    fn cudaIpcGetEventHandle(out: Out<IpcHandle>, _event: u64) -> Error, or UNKNOWN; {
        out.put(IpcHandle { process: u64::from(std::process::id()), base: 0, size: 0, unused: [0; 5] });
        SUCCESS
    }
    fn cudaIpcOpenEventHandle(out: Out<u64>, _handle: IpcHandle) -> Error, or UNKNOWN; {
        out.put(streams::create_event());
        SUCCESS
    }
}

// ---- entry points of the driver ----

export! {
    fn cudaGetDriverEntryPoint(symbol: Text, out: Out<*mut c_void>, _flags: c_ulonglong, status: Out<c_int>) -> Error, or UNKNOWN; {
        driver::entry_point(symbol, out, status)
    }
    fn cudaGetDriverEntryPointByVersion(symbol: Text, out: Out<*mut c_void>, _version: c_uint, _flags: c_ulonglong, status: Out<c_int>) -> Error, or UNKNOWN; {
        driver::entry_point(symbol, out, status)
    }
    fn cudaProfilerStart() -> Error, or UNKNOWN; { SUCCESS }
    fn cudaProfilerStop() -> Error, or UNKNOWN; { SUCCESS }
}
