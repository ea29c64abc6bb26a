//! Kernels that are loaded at run time through the runtime's own interface.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::runtime::{Error, SUCCESS, UNKNOWN, fail};
use crate::streams::opaque_handle;
use crate::{export, ledger, put};

/// `cudaErrorSymbolNotFound`.
const NOT_FOUND: Error = 500;
const ABSENT: &str = "a variable of a library loaded at run time is taken to be absent";

export! {
    fn cudaLibraryLoadData(out: *mut u64, _code: *const c_void) -> Error, or UNKNOWN; {
        unsafe { put(out, opaque_handle()) };
        SUCCESS
    }
    fn cudaLibraryLoadFromFile(out: *mut u64, _path: *const c_char) -> Error, or UNKNOWN; {
        unsafe { put(out, opaque_handle()) };
        SUCCESS
    }
    fn cudaLibraryUnload(_library: u64) -> Error, or UNKNOWN; { SUCCESS }
    fn cudaLibraryGetKernel(out: *mut u64, _library: u64, name: *const c_char) -> Error, or UNKNOWN; {
        unsafe { put(out, crate::kernels::named(name)) };
        SUCCESS
    }
    fn cudaLibraryGetKernelCount(count: *mut c_uint, _library: u64) -> Error, or UNKNOWN; {
        unsafe { put(count, 0) };
        SUCCESS
    }
    fn cudaLibraryEnumerateKernels(_kernels: *mut u64, _count: c_uint, _library: u64) -> Error, or UNKNOWN; { SUCCESS }
    fn cudaLibraryGetGlobal(at: *mut u64, size: *mut usize, _library: u64, _name: *const c_char) -> Error, or UNKNOWN; {
        ledger::assume("cudaLibraryGetGlobal", ABSENT);
        unsafe { put(at, 0); put(size, 0) };
        fail(NOT_FOUND)
    }
    fn cudaLibraryGetManaged(at: *mut u64, size: *mut usize, library: u64, name: *const c_char) -> Error, or UNKNOWN; {
        unsafe { cudaLibraryGetGlobal(at, size, library, name) }
    }
    fn cudaLibraryGetUnifiedFunction(at: *mut u64, _library: u64, _name: *const c_char) -> Error, or UNKNOWN; {
        ledger::assume("cudaLibraryGetUnifiedFunction", ABSENT);
        unsafe { put(at, 0) };
        fail(NOT_FOUND)
    }
    fn cudaKernelSetAttributeForDevice(_kernel: u64, _attribute: c_int, _value: c_int, _device: c_int) -> Error, or UNKNOWN; { SUCCESS }
}
