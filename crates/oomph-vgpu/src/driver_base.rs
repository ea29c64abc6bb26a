//! Driver functions that the runtimes inside cuDNN, cuBLASLt and other libraries need, and
//! that programs rarely call themselves.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::LazyLock;

use crate::arguments::{Out, Text};
use crate::device::{self, machine};
use crate::driver::{Status, current_context, private};
use crate::runtime::{
    self, INVALID_DEVICE, INVALID_VALUE, IpcHandle, MEMORY_ALLOCATION, NOT_SUPPORTED, SUCCESS,
    UNKNOWN,
};
use crate::sync::Mutex;
use crate::{export, inner, ledger, modules, pools};

/// What a program has called when a stream has come so far: with the stream, a status, and data of its own.
type StreamCallback = unsafe extern "C" fn(u64, Status, *mut c_void);

// ---- devices and contexts ----

export! {
    unsafe fn cuDeviceGetPCIBusId(text: *mut c_char, len: c_int, device: c_int) -> Status, or UNKNOWN; {
        // SAFETY: the caller's buffer of `len` bytes.
        unsafe { runtime::cudaDeviceGetPCIBusId(text, len, device) }
    }
    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) -> Status, or UNKNOWN; {
        runtime::cudaDeviceCanAccessPeer(can, device, peer)
    }
    fn cuDeviceGetDefaultMemPool(out: Out<u64>, device: c_int) -> Status, or UNKNOWN; {
        pools::cudaDeviceGetDefaultMemPool(out, device)
    }
    unsafe fn cuMemPoolGetAttribute(pool: u64, attribute: c_int, value: *mut c_void) -> Status, or UNKNOWN; {
        // SAFETY: the caller's contract is the runtime's.
        unsafe { pools::cudaMemPoolGetAttribute(pool, attribute, value) }
    }
    unsafe fn cuMemPoolSetAttribute(pool: u64, attribute: c_int, value: *mut c_void) -> Status, or UNKNOWN; {
        // SAFETY: the caller's contract is the runtime's.
        unsafe { pools::cudaMemPoolSetAttribute(pool, attribute, value) }
    }
    fn cuMemPoolTrimTo(pool: u64, keep: usize) -> Status, or UNKNOWN; {
        pools::cudaMemPoolTrimTo(pool, keep)
    }
    fn cuDeviceGetMemPool(out: Out<u64>, device: c_int) -> Status, or UNKNOWN; {
        pools::cudaDeviceGetMemPool(out, device)
    }
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) -> Status, or UNKNOWN; {
        let known = usize::try_from(device).is_ok_and(|index| index < machine().devices.len());
        if known { SUCCESS } else { INVALID_DEVICE }
    }
    fn cuCtxGetFlags(flags: Out<c_uint>) -> Status, or UNKNOWN; {
        flags.put(0);
        SUCCESS
    }
    fn cuCtxGetApiVersion(_context: u64, version: Out<c_uint>) -> Status, or UNKNOWN; {
        version.put(3020);
        SUCCESS
    }
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> Status, or UNKNOWN; {
        runtime::cudaDeviceGetStreamPriorityRange(least, greatest)
    }
    fn cuCtxGetCacheConfig(config: Out<c_int>) -> Status, or UNKNOWN; {
        config.put(0);
        SUCCESS
    }
    fn cuCtxSetCacheConfig(_config: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Status, or UNKNOWN; {
        runtime::cudaThreadExchangeStreamCaptureMode(mode)
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
    fn cuOccupancyAvailableDynamicSMemPerBlock(out: Out<usize>, _function: u64, blocks: c_int, threads: c_int) -> Status, or UNKNOWN; {
        let Some(shared) = shared_for(blocks, threads) else { return INVALID_VALUE };
        out.put(shared);
        SUCCESS
    }
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out: Out<c_int>, _function: u64, threads: c_int, shared: usize, _flags: c_uint) -> Status, or UNKNOWN; {
        out.put(crate::kernels::occupancy(threads, shared));
        SUCCESS
    }
    fn cuFuncGetName(out: Out<*const c_char>, _function: u64) -> Status, or UNKNOWN; {
        out.put(c"kernel".as_ptr());
        SUCCESS
    }
    fn cuKernelGetName(out: Out<*const c_char>, _kernel: u64) -> Status, or UNKNOWN; {
        out.put(c"kernel".as_ptr());
        SUCCESS
    }
    fn cuFuncGetModule(out: Out<u64>, function: u64) -> Status, or UNKNOWN; {
        out.put(function);
        SUCCESS
    }
    fn cuKernelGetLibrary(out: Out<u64>, kernel: u64) -> Status, or UNKNOWN; {
        out.put(kernel);
        SUCCESS
    }
    fn cuFuncLoad(_function: u64) -> Status, or UNKNOWN; { SUCCESS }
    fn cuFuncIsLoaded(out: Out<c_int>, _function: u64) -> Status, or UNKNOWN; {
        out.put(1);
        SUCCESS
    }
    fn cuKernelSetCacheConfig(_kernel: u64, _config: c_int, _device: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuFuncSetSharedMemConfig(_function: u64, _config: c_int) -> Status, or UNKNOWN; { SUCCESS }
    fn cuLibraryGetGlobal(at: Out<u64>, size: Out<usize>, library: u64, name: Text) -> Status, or UNKNOWN; {
        let Some(name) = name.get() else { return INVALID_VALUE };
        let Some(address) = global(library, name.to_owned()) else { return MEMORY_ALLOCATION };
        at.put(address);
        size.put(GLOBAL_BYTES as usize);
        SUCCESS
    }
}

/// Address space for a variable of a library: more than any has, as its size is not known.
const GLOBAL_BYTES: u64 = 16 << 20;

/// Addresses of libraries' variables by library and name.
static GLOBALS: LazyLock<Mutex<HashMap<(u64, CString), u64>>> =
    LazyLock::new(|| Mutex::new(HashMap::new()));

fn global(library: u64, name: CString) -> Option<u64> {
    match GLOBALS.lock().entry((library, name)) {
        Entry::Occupied(found) => Some(*found.get()),
        Entry::Vacant(free) => Some(*free.insert(modules::place(GLOBAL_BYTES)?)),
    }
}

// ---- streams and events ----

export! {
    fn cuStreamCreate(out: Out<u64>, flags: c_uint) -> Status, or UNKNOWN; {
        runtime::cudaStreamCreateWithPriority(out, flags, 0)
    }
    fn cuStreamCreateWithPriority(out: Out<u64>, flags: c_uint, priority: c_int) -> Status, or UNKNOWN; {
        runtime::cudaStreamCreateWithPriority(out, flags, priority)
    }
    fn cuStreamDestroy_v2(stream: u64) -> Status, or UNKNOWN; { runtime::cudaStreamDestroy(stream) }
    fn cuStreamGetPriority(stream: u64, priority: Out<c_int>) -> Status, or UNKNOWN; {
        runtime::cudaStreamGetPriority(stream, priority)
    }
    fn cuStreamGetFlags(stream: u64, flags: Out<c_uint>) -> Status, or UNKNOWN; {
        runtime::cudaStreamGetFlags(stream, flags)
    }
    fn cuStreamGetDevice(stream: u64, device: Out<c_int>) -> Status, or UNKNOWN; {
        runtime::cudaStreamGetDevice(stream, device)
    }
    fn cuStreamGetId(stream: u64, id: Out<u64>) -> Status, or UNKNOWN; {
        id.put(stream);
        SUCCESS
    }
    fn cuStreamQuery(stream: u64) -> Status, or UNKNOWN; { runtime::cudaStreamQuery(stream) }
    fn cuStreamWaitEvent(stream: u64, event: u64, flags: c_uint) -> Status, or UNKNOWN; {
        runtime::cudaStreamWaitEvent(stream, event, flags)
    }
    fn cuStreamIsCapturing(stream: u64, status: Out<c_int>) -> Status, or UNKNOWN; {
        runtime::cudaStreamIsCapturing(stream, status)
    }
    fn cuStreamGetCaptureInfo_v2(stream: u64, status: Out<c_int>, id: Out<c_ulonglong>, graph: Out<u64>, nodes: Out<u64>, count: Out<usize>) -> Status, or UNKNOWN; {
        runtime::cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count)
    }
    fn cuStreamGetCaptureInfo_v3(stream: u64, status: Out<c_int>, id: Out<c_ulonglong>, graph: Out<u64>, nodes: Out<u64>, edges: Out<u64>, count: Out<usize>) -> Status, or UNKNOWN; {
        runtime::cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, edges, count)
    }
    fn cuStreamAttachMemAsync(_stream: u64, _at: u64, _size: usize, _flags: c_uint) -> Status, or UNKNOWN; { SUCCESS }
    fn cuStreamSetAttribute(_stream: u64, _which: c_int, _value: *const c_void) -> Status, or UNKNOWN; { SUCCESS }
    unsafe fn cuLaunchHostFunc(stream: u64, callback: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) -> Status, or UNKNOWN; {
        // SAFETY: the caller's function and what it takes.
        unsafe { runtime::cudaLaunchHostFunc(stream, callback, data) }
    }
    unsafe fn cuStreamAddCallback(stream: u64, callback: Option<StreamCallback>, data: *mut c_void, _flags: c_uint) -> Status, or UNKNOWN; {
        let Some(callback) = callback else { return INVALID_VALUE };
        // SAFETY: the caller's function and what it takes; what was on the stream before has ended.
        unsafe { callback(stream, SUCCESS, data) };
        SUCCESS
    }
    fn cuEventQuery(event: u64) -> Status, or UNKNOWN; { runtime::cudaEventQuery(event) }
    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: c_uint) -> Status, or UNKNOWN; {
        runtime::cudaEventRecordWithFlags(event, stream, flags)
    }
    fn cuEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) -> Status, or UNKNOWN; {
        runtime::cudaEventElapsedTime(out, start, end)
    }
}

// ---- memory ----

export! {
    fn cuMemAllocAsync(out: Out<*mut c_void>, size: usize, stream: u64) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return private(out, size);
        }
        pools::cudaMallocAsync(out, size, stream)
    }
    fn cuMemFreeAsync(at: *mut c_void, stream: u64) -> Status, or UNKNOWN; {
        if inner::free(at as u64) {
            return SUCCESS;
        }
        pools::cudaFreeAsync(at, stream)
    }
    fn cuMemAllocManaged(out: Out<*mut c_void>, size: usize, flags: c_uint) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return private(out, size);
        }
        runtime::cudaMallocManaged(out, size, flags)
    }
    fn cuMemHostRegister_v2(at: *mut c_void, size: usize, flags: c_uint) -> Status, or UNKNOWN; {
        runtime::cudaHostRegister(at, size, flags)
    }
    fn cuMemHostUnregister(at: *mut c_void) -> Status, or UNKNOWN; {
        runtime::cudaHostUnregister(at)
    }
    fn cuMemHostGetDevicePointer_v2(out: Out<*mut c_void>, at: *mut c_void, flags: c_uint) -> Status, or UNKNOWN; {
        runtime::cudaHostGetDevicePointer(out, at, flags)
    }
    fn cuMemHostGetFlags(flags: Out<c_uint>, _at: *mut c_void) -> Status, or UNKNOWN; {
        flags.put(0);
        SUCCESS
    }
    unsafe fn cuMemcpy(to: u64, from: u64, len: usize) -> Status, or UNKNOWN; {
        // SAFETY: the caller's ranges.
        unsafe { runtime::copy(to, from, len) };
        SUCCESS
    }
    unsafe fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: u64) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return SUCCESS;
        }
        // SAFETY: the caller's ranges, as the runtime's function wants them.
        unsafe { runtime::cudaMemcpyAsync(to, from, len, 4, stream) }
    }
    unsafe fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) -> Status, or UNKNOWN; {
        // SAFETY: the caller's ranges.
        unsafe { runtime::copy(to, from, len) };
        SUCCESS
    }
    unsafe fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: u64) -> Status, or UNKNOWN; {
        if inner::is_inside() {
            return SUCCESS;
        }
        // SAFETY: the caller's ranges, as the runtime's function wants them.
        unsafe { runtime::cudaMemcpyAsync(to, from, len, 3, stream) }
    }
    unsafe fn cuMemcpyPeerAsync(to: u64, _to_context: u64, from: u64, _from_context: u64, len: usize, stream: u64) -> Status, or UNKNOWN; {
        // SAFETY: the caller's ranges: an address says by itself whose it is.
        unsafe { cuMemcpyDtoDAsync_v2(to, from, len, stream) }
    }
    unsafe fn cuMemsetD8_v2(at: u64, value: u8, count: usize) -> Status, or UNKNOWN; {
        // SAFETY: the caller's range.
        unsafe { runtime::set(at, value, count) };
        SUCCESS
    }
    unsafe fn cuPointerGetAttributes(count: c_uint, which: *const c_int, outs: *const *mut c_void, at: u64) -> Status, or UNKNOWN; {
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
    fn cuCtxGetId(_context: u64, id: Out<u64>) -> Status, or UNKNOWN; {
        id.put(current_context());
        SUCCESS
    }
    fn cuCtxGetDevice_v2(out: Out<c_int>, _context: u64) -> Status, or UNKNOWN; {
        out.put(device::current() as c_int);
        SUCCESS
    }
    fn cuStreamGetCtx_v2(_stream: u64, out: Out<u64>, green: Out<u64>) -> Status, or UNKNOWN; {
        out.put(current_context());
        green.put(0);
        SUCCESS
    }
    fn cuProfilerStart() -> Status, or UNKNOWN; { SUCCESS }
    fn cuProfilerStop() -> Status, or UNKNOWN; { SUCCESS }
}

// ---- between processes ----

export! {
    fn cuIpcGetMemHandle(out: Out<IpcHandle>, at: *mut c_void) -> Status, or UNKNOWN; {
        runtime::cudaIpcGetMemHandle(out, at)
    }
    fn cuIpcOpenMemHandle(out: Out<*mut c_void>, handle: IpcHandle, flags: c_uint) -> Status, or UNKNOWN; {
        runtime::cudaIpcOpenMemHandle(out, handle, flags)
    }
    fn cuIpcOpenMemHandle_v2(out: Out<*mut c_void>, handle: IpcHandle, flags: c_uint) -> Status, or UNKNOWN; {
        runtime::cudaIpcOpenMemHandle(out, handle, flags)
    }
    fn cuIpcCloseMemHandle(at: *mut c_void) -> Status, or UNKNOWN; { runtime::cudaIpcCloseMemHandle(at) }
    fn cuIpcGetEventHandle(out: Out<IpcHandle>, event: u64) -> Status, or UNKNOWN; {
        runtime::cudaIpcGetEventHandle(out, event)
    }
    fn cuIpcOpenEventHandle(out: Out<u64>, handle: IpcHandle) -> Status, or UNKNOWN; {
        runtime::cudaIpcOpenEventHandle(out, handle)
    }
}

// ---- capture and graphs: cuBLASLt wants them to exist ----

export! {
    fn cuStreamBeginCapture_v2(stream: u64, mode: c_int) -> Status, or UNKNOWN; {
        runtime::cudaStreamBeginCapture(stream, mode)
    }
    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) -> Status, or UNKNOWN; {
        runtime::cudaStreamEndCapture(stream, graph)
    }
    unsafe fn cuGraphGetNodes(graph: u64, nodes: *mut u64, count: *mut usize) -> Status, or UNKNOWN; {
        // SAFETY: the caller's list, which has room for `count` nodes.
        unsafe { runtime::cudaGraphGetNodes(graph, nodes, count) }
    }
    fn cuGraphInstantiate(out: Out<u64>, graph: u64, flags: c_ulonglong) -> Status, or UNKNOWN; {
        runtime::cudaGraphInstantiate(out, graph, flags)
    }
    fn cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, flags: c_ulonglong) -> Status, or UNKNOWN; {
        runtime::cudaGraphInstantiate(out, graph, flags)
    }
    fn cuGraphLaunch(executable: u64, stream: u64) -> Status, or UNKNOWN; {
        runtime::cudaGraphLaunch(executable, stream)
    }
    fn cuGraphDestroy(graph: u64) -> Status, or UNKNOWN; { runtime::cudaGraphDestroy(graph) }
    fn cuGraphExecDestroy(executable: u64) -> Status, or UNKNOWN; {
        runtime::cudaGraphExecDestroy(executable)
    }
    fn cuGraphKernelNodeGetParams() -> Status, or UNKNOWN; { NOT_SUPPORTED }
    fn cuGraphExecKernelNodeSetParams() -> Status, or UNKNOWN; { NOT_SUPPORTED }
    fn cuStreamWaitValue32(_stream: u64, _at: u64, _value: c_uint, _flags: c_uint) -> Status, or UNKNOWN; { SUCCESS }
    fn cuStreamBatchMemOp() -> Status, or UNKNOWN; { NOT_SUPPORTED }
    unsafe fn cuMemcpy2DAsync_v2() -> Status, or UNKNOWN; { NOT_SUPPORTED }
    fn cuMemPrefetchAsync() -> Status, or UNKNOWN; { SUCCESS }
    fn cuCtxEnablePeerAccess(_context: u64, _flags: c_uint) -> Status, or UNKNOWN; { SUCCESS }
    fn cuCtxDisablePeerAccess(_context: u64) -> Status, or UNKNOWN; { SUCCESS }
    /// The driver's log stays empty.
    fn cuLogsRegisterCallback(_function: usize, _data: usize, out: Out<usize>) -> Status, or UNKNOWN; {
        out.put(1);
        SUCCESS
    }
    fn cuLogsUnregisterCallback(_registered: usize) -> Status, or UNKNOWN; { SUCCESS }
}

/// Parts of the driver that are not modelled. They are here, as PyTorch asks for all of them at once, when memory runs out at the
/// latest: only who calls one needs it.
macro_rules! lacking {
    ($($name:ident)*) => { export! {$(
        fn $name() -> Status, or UNKNOWN; {
            if let Ok(name) = CString::new(stringify!($name)) {
                ledger::missed(&name);
            }
            NOT_SUPPORTED
        }
    )*} };
}

lacking! {
    cuCtxFromGreenCtx cuDeviceGetDevResource cuDevResourceGenerateDesc cuDevSmResourceSplitByCount
    cuGreenCtxCreate cuGreenCtxDestroy cuGreenCtxStreamCreate cuMulticastCreate
}
