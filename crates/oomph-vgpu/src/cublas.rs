//! cuBLAS and cuBLASLt: handles and modes are real, products do nothing.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};

use crate::context::Charge;
use crate::device::{self, machine};
use crate::streams::opaque_handle;
use crate::sync::Mutex;
use crate::{export, put};

pub type Status = c_int;
const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1;
const INTERNAL: Status = 14;

/// What a handle remembers and gives back.
#[derive(Debug, Clone, Copy, Default)]
struct Handle {
    stream: u64,
    math_mode: c_int,
    pointer_mode: c_int,
}

static HANDLES: std::sync::LazyLock<Mutex<HashMap<u64, Handle>>> =
    std::sync::LazyLock::new(|| Mutex::new(HashMap::new()));

fn edit(handle: u64, change: impl FnOnce(&mut Handle)) -> Status {
    HANDLES
        .lock()
        .get_mut(&handle)
        .map_or(NOT_INITIALIZED, |found| {
            change(found);
            SUCCESS
        })
}

/// Accounts one call that works on the GPU.
pub fn multiplied() {
    machine()
        .costs
        .charge(device::current(), Charge::FirstMatmul);
    crate::kernels::launched(0);
}

export! {
    fn cublasCreate_v2(out: *mut u64) -> Status, or INTERNAL; {
        if device::is_forked() || device::active().is_none() {
            return NOT_INITIALIZED;
        }
        machine().costs.charge(device::current(), Charge::CublasHandle);
        let handle = opaque_handle();
        HANDLES.lock().insert(handle, Handle::default());
        unsafe { put(out, handle) };
        SUCCESS
    }
    fn cublasDestroy_v2(handle: u64) -> Status, or INTERNAL; {
        if HANDLES.lock().remove(&handle).is_some() { SUCCESS } else { NOT_INITIALIZED }
    }
    fn cublasSetStream_v2(handle: u64, stream: u64) -> Status, or INTERNAL; {
        edit(handle, |found| found.stream = stream)
    }
    fn cublasGetStream_v2(handle: u64, stream: *mut u64) -> Status, or INTERNAL; {
        edit(handle, |found| unsafe { put(stream, found.stream) })
    }
    fn cublasSetMathMode(handle: u64, mode: c_int) -> Status, or INTERNAL; {
        edit(handle, |found| found.math_mode = mode)
    }
    fn cublasGetMathMode(handle: u64, mode: *mut c_int) -> Status, or INTERNAL; {
        edit(handle, |found| unsafe { put(mode, found.math_mode) })
    }
    fn cublasSetPointerMode_v2(handle: u64, mode: c_int) -> Status, or INTERNAL; {
        edit(handle, |found| found.pointer_mode = mode)
    }
    fn cublasGetPointerMode_v2(handle: u64, mode: *mut c_int) -> Status, or INTERNAL; {
        edit(handle, |found| unsafe { put(mode, found.pointer_mode) })
    }
    fn cublasSetWorkspace_v2(_handle: u64, _workspace: *mut c_void, _size: usize) -> Status, or INTERNAL; { SUCCESS }
    fn cublasGetVersion_v2(_handle: u64, version: *mut c_int) -> Status, or INTERNAL; {
        unsafe { put(version, 130_100) };
        SUCCESS
    }
}
