//! Driver functions that the runtimes inside cuDNN, cuBLASLt and other libraries stand on, and
//! that programs seldom call themselves.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::LazyLock;

use crate::device::{self, machine};
use crate::driver::{Status, current_context, private};
use crate::memory::Reservation;
use crate::runtime::{
    self, INVALID_DEVICE, INVALID_VALUE, MEMORY_ALLOCATION, NOT_SUPPORTED, SUCCESS, UNKNOWN,
};
use crate::sync::Mutex;
use crate::{export, inner, put};

// ---- devices and contexts ----

export! {
    fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaDeviceGetPCIBusId(text, len, device) }
    }
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaDeviceCanAccessPeer(can, device, peer) }
    }
    fn cuDeviceGetDefaultMemPool(out: *mut u64, device: c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaDeviceGetDefaultMemPool(out, device) }
    }
    fn cuDeviceGetMemPool(out: *mut u64, device: c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaDeviceGetMemPool(out, device) }
    }
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) -> Status, or UNKNOWN; {
        let known = usize::try_from(device).is_ok_and(|index| index < machine().devices.len());
        if known { SUCCESS } else { INVALID_DEVICE }
    }
    fn cuCtxGetFlags(flags: *mut c_uint) -> Status, or UNKNOWN; {
        unsafe { put(flags, 0) };
        SUCCESS
    }
    fn cuCtxGetApiVersion(_context: u64, version: *mut c_uint) -> Status, or UNKNOWN; {
        unsafe { put(version, 3020) };
        SUCCESS
    }
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaDeviceGetStreamPriorityRange(least, greatest) }
    }
    fn cuCtxGetCacheConfig(config: *mut c_int) -> Status, or UNKNOWN; {
        unsafe { put(config, 0) };
        SUCCESS
    }
    fn cuCtxSetCacheConfig(_config: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaThreadExchangeStreamCaptureMode(mode) }
    }
}

// ---- kernels ----

/// Dynamic shared memory for each of `blocks` blocks on one multiprocessor; none if their
/// threads do not fit.
fn shared_for(blocks: c_int, threads: c_int) -> Option<usize> {
    let gpu = &machine().properties;
    if crate::kernels::occupancy(threads, 0) < blocks || blocks < 1 {
        return None;
    }
    let each = gpu.shared_per_sm / u64::from(blocks as u32);
    Some(each.min(gpu.shared_per_block_optin) as usize)
}

export! {
    fn cuOccupancyAvailableDynamicSMemPerBlock(out: *mut usize, _function: u64, blocks: c_int, threads: c_int) -> Status, or UNKNOWN; {
        let Some(shared) = shared_for(blocks, threads) else { return INVALID_VALUE };
        unsafe { put(out, shared) };
        SUCCESS
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: *mut c_int, _function: u64, threads: c_int, shared: usize, _flags: c_uint) -> Status, or UNKNOWN; {
        unsafe { put(out, crate::kernels::occupancy(threads, shared)) };
        SUCCESS
    }
    fn cuFuncGetName(out: *mut *const c_char, _function: u64) -> Status, or UNKNOWN; {
        unsafe { put(out, c"kernel".as_ptr()) };
        SUCCESS
    }
    fn cuKernelGetName(out: *mut *const c_char, _kernel: u64) -> Status, or UNKNOWN; {
        unsafe { put(out, c"kernel".as_ptr()) };
        SUCCESS
    }
    fn cuFuncGetModule(out: *mut u64, function: u64) -> Status, or UNKNOWN; {
        unsafe { put(out, function) };
        SUCCESS
    }
    fn cuKernelGetLibrary(out: *mut u64, kernel: u64) -> Status, or UNKNOWN; {
        unsafe { put(out, kernel) };
        SUCCESS
    }
    fn cuFuncLoad(_function: u64) -> Status, or UNKNOWN; { SUCCESS }
    fn cuFuncIsLoaded(out: *mut c_int, _function: u64) -> Status, or UNKNOWN; {
        unsafe { put(out, 1) };
        SUCCESS
    }
    fn cuKernelSetCacheConfig(_kernel: u64, _config: c_int, _device: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuFuncSetSharedMemConfig(_function: u64, _config: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuLibraryGetGlobal(at: *mut u64, size: *mut usize, library: u64, name: *const c_char) -> Status, or UNKNOWN; {
        if name.is_null() {
            return INVALID_VALUE;
        }
        // SAFETY: a C string by the vendor's header.
        let name = unsafe { CStr::from_ptr(name) }.to_owned();
        let Some(address) = global(library, name) else { return MEMORY_ALLOCATION };
        unsafe { put(at, address); put(size, GLOBAL_BYTES as usize) };
        SUCCESS
    }
}

/// Address space for a variable of a library: more than any has, as its size is not known.
const GLOBAL_BYTES: u64 = 16 << 20;

/// Variables of libraries by library and name. They belong to the kernels' images, not to the
/// allocations that programs make, so nothing is charged.
static GLOBALS: LazyLock<Mutex<HashMap<(u64, CString), Reservation>>> =
    LazyLock::new(|| Mutex::new(HashMap::new()));

fn global(library: u64, name: CString) -> Option<u64> {
    match GLOBALS.lock().entry((library, name)) {
        Entry::Occupied(found) => Some(found.get().base()),
        Entry::Vacant(free) => Some(free.insert(Reservation::new(GLOBAL_BYTES)?).base()),
    }
}

// ---- streams and events ----

export! {
    fn cuStreamCreate(out: *mut u64, flags: c_uint) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamCreateWithPriority(out, flags, 0) }
    }
    fn cuStreamCreateWithPriority(out: *mut u64, flags: c_uint, priority: c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamCreateWithPriority(out, flags, priority) }
    }
    fn cuStreamDestroy_v2(stream: u64) -> Status, or UNKNOWN; { unsafe { runtime::cudaStreamDestroy(stream) } }
    fn cuStreamGetPriority(stream: u64, priority: *mut c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamGetPriority(stream, priority) }
    }
    fn cuStreamGetFlags(stream: u64, flags: *mut c_uint) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamGetFlags(stream, flags) }
    }
    fn cuStreamGetDevice(stream: u64, device: *mut c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamGetDevice(stream, device) }
    }
    fn cuStreamGetId(stream: u64, id: *mut u64) -> Status, or UNKNOWN; {
        unsafe { put(id, stream) };
        SUCCESS
    }
    fn cuStreamQuery(stream: u64) -> Status, or UNKNOWN; { unsafe { runtime::cudaStreamQuery(stream) } }
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: c_uint) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamWaitEvent(stream, event, flags) }
    }
    fn cuStreamIsCapturing(stream: u64, status: *mut c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamIsCapturing(stream, status) }
    }
    fn cuStreamGetCaptureInfo_v2(stream: u64, status: *mut c_int, id: *mut c_ulonglong, graph: *mut u64, nodes: *mut u64, count: *mut usize) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count) }
    }
    fn cuStreamGetCaptureInfo_v3(stream: u64, status: *mut c_int, id: *mut c_ulonglong, graph: *mut u64, nodes: *mut u64, edges: *mut u64, count: *mut usize) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, edges, count) }
    }
    fn cuStreamAttachMemAsync(_stream: u64, _at: u64, _size: usize, _flags: c_uint) -> Status, or UNKNOWN; { SUCCESS }
    fn cuStreamSetAttribute(_stream: u64, _which: c_int, _value: *const c_void) -> Status, or UNKNOWN; { SUCCESS }
    fn cuLaunchHostFunc(stream: u64, callback: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaLaunchHostFunc(stream, callback, data) }
    }
    fn cuEventQuery(event: u64) -> Status, or UNKNOWN; { unsafe { runtime::cudaEventQuery(event) } }
    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: c_uint) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaEventRecordWithFlags(event, stream, flags) }
    }
    fn cuEventElapsedTime_v2(out: *mut f32, start: u64, end: u64) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaEventElapsedTime(out, start, end) }
    }
}

// ---- memory ----

export! {
    fn cuMemAllocAsync(out: *mut *mut c_void, size: usize, stream: u64) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return unsafe { private(out, size) };
        }
        unsafe { runtime::cudaMallocAsync(out, size, stream) }
    }
    fn cuMemFreeAsync(at: *mut c_void, stream: u64) -> Status, or UNKNOWN; {
        if inner::free(at as u64) {
            return SUCCESS;
        }
        unsafe { runtime::cudaFreeAsync(at, stream) }
    }
    fn cuMemAllocManaged(out: *mut *mut c_void, size: usize, flags: c_uint) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return unsafe { private(out, size) };
        }
        unsafe { runtime::cudaMallocManaged(out, size, flags) }
    }
    fn cuMemHostRegister_v2(at: *mut c_void, size: usize, flags: c_uint) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaHostRegister(at, size, flags) }
    }
    fn cuMemHostUnregister(at: *mut c_void) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaHostUnregister(at) }
    }
    fn cuMemHostGetDevicePointer_v2(out: *mut *mut c_void, at: *mut c_void, flags: c_uint) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaHostGetDevicePointer(out, at, flags) }
    }
    fn cuMemHostGetFlags(flags: *mut c_uint, _at: *mut c_void) -> Status, or UNKNOWN; {
        unsafe { put(flags, 0) };
        SUCCESS
    }
    fn cuMemcpy(to: u64, from: u64, len: usize) -> Status, or UNKNOWN; {
        unsafe { runtime::copy(to, from, len) };
        SUCCESS
    }
    fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: u64) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return SUCCESS;
        }
        unsafe { runtime::cudaMemcpyAsync(to, from, len, 4, stream) }
    }
    fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) -> Status, or UNKNOWN; {
        unsafe { runtime::copy(to, from, len) };
        SUCCESS
    }
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return SUCCESS;
        }
        unsafe { runtime::cudaMemcpyAsync(to, from, len, 3, stream) }
    }
    fn cuMemsetD8_v2(at: u64, value: u8, count: usize) -> Status, or UNKNOWN; {
        unsafe { runtime::set(at, value, count) };
        SUCCESS
    }
    fn cuPointerGetAttributes(count: c_uint, which: *const c_int, outs: *const *mut c_void, at: u64) -> Status, or UNKNOWN; {
        if which.is_null() || outs.is_null() {
            return INVALID_VALUE;
        }
        for index in 0..count as usize {
            // SAFETY: both arrays have `count` elements by the vendor's header. Attributes that
            // cannot be had are left as zeros of the caller's.
            unsafe { crate::driver::cuPointerGetAttribute(*outs.add(index), *which.add(index), at) };
        }
        SUCCESS
    }
    fn cuCtxGetId(_context: u64, id: *mut u64) -> Status, or UNKNOWN; {
        unsafe { put(id, current_context()) };
        SUCCESS
    }
    fn cuCtxGetDevice_v2(out: *mut c_int, _context: u64) -> Status, or UNKNOWN; {
        unsafe { put(out, device::current() as c_int) };
        SUCCESS
    }
    fn cuStreamGetCtx_v2(_stream: u64, out: *mut u64, green: *mut u64) -> Status, or UNKNOWN; {
        unsafe { put(out, current_context()); put(green, 0) };
        SUCCESS
    }
    fn cuProfilerStart() -> Status, or UNKNOWN; { SUCCESS }
    fn cuProfilerStop() -> Status, or UNKNOWN; { SUCCESS }
}

// ---- capture and graphs: cuBLASLt wants them to exist ----

export! {
    fn cuStreamBeginCapture_v2(stream: u64, mode: c_int) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamBeginCapture(stream, mode) }
    }
    fn cuStreamEndCapture(stream: u64, graph: *mut u64) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaStreamEndCapture(stream, graph) }
    }
    fn cuGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaGraphGetNodes(graph, nodes, count) }
    }
    fn cuGraphInstantiate(out: *mut u64, graph: u64, flags: c_ulonglong) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaGraphInstantiate(out, graph, flags) }
    }
    fn cuGraphInstantiateWithFlags(out: *mut u64, graph: u64, flags: c_ulonglong) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaGraphInstantiate(out, graph, flags) }
    }
    fn cuGraphLaunch(executable: u64, stream: u64) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaGraphLaunch(executable, stream) }
    }
    fn cuGraphDestroy(graph: u64) -> Status, or UNKNOWN; { unsafe { runtime::cudaGraphDestroy(graph) } }
    fn cuGraphExecDestroy(executable: u64) -> Status, or UNKNOWN; {
        unsafe { runtime::cudaGraphExecDestroy(executable) }
    }
    fn cuGraphNodeGetType(_node: u64, kind: *mut c_int) -> Status, or UNKNOWN; {
        const KERNEL: c_int = 0;
        unsafe { put(kind, KERNEL) };
        SUCCESS
    }
    fn cuGraphKernelNodeGetParams() -> Status, or UNKNOWN; { NOT_SUPPORTED }
    fn cuGraphExecKernelNodeSetParams() -> Status, or UNKNOWN; { NOT_SUPPORTED }
    fn cuStreamWaitValue32(_stream: u64, _at: u64, _value: c_uint, _flags: c_uint) -> Status, or UNKNOWN; { SUCCESS }
    fn cuStreamBatchMemOp() -> Status, or UNKNOWN; { NOT_SUPPORTED }
    fn cuMemcpy2DAsync_v2() -> Status, or UNKNOWN; { NOT_SUPPORTED }
    fn cuMemPrefetchAsync() -> Status, or UNKNOWN; { SUCCESS }
    fn cuCtxEnablePeerAccess(_context: u64, _flags: c_uint) -> Status, or UNKNOWN; { SUCCESS }
    fn cuCtxDisablePeerAccess(_context: u64) -> Status, or UNKNOWN; { SUCCESS }
}
