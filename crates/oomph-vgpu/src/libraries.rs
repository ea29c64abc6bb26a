//! Kernels that are loaded at run time through the runtime's own interface.

use std::ffi::{c_int, c_uint};

use crate::arguments::{Out, Text};
use crate::runtime::{Error, SUCCESS, UNKNOWN, fail};
use crate::streams::opaque_handle;
use crate::{export, ledger, modules};

/// `cudaErrorSymbolNotFound`.
const NOT_FOUND: Error = 500;
const ABSENT: &str = "a variable of a library loaded at run time is assumed to be absent";

export! {
    unsafe fn cudaLibraryLoadData(out: Out<u64>, code: *const u8) -> Error, or UNKNOWN; {
        // SAFETY: an image by the vendor's header.
        out.put(unsafe { modules::loaded(code) });
        SUCCESS
    }
    fn cudaLibraryLoadFromFile(out: Out<u64>, _path: Text) -> Error, or UNKNOWN; {
        out.put(opaque_handle());
        SUCCESS
    }
    fn cudaLibraryUnload(library: u64) -> Error, or UNKNOWN; {
        modules::unloaded(library);
        SUCCESS
    }
    fn cudaLibraryGetKernel(out: Out<u64>, library: u64, name: Text) -> Error, or UNKNOWN; {
        out.put(crate::kernels::named(library, name));
        SUCCESS
    }
    fn cudaLibraryGetKernelCount(count: Out<c_uint>, _library: u64) -> Error, or UNKNOWN; {
        count.put(0);
        SUCCESS
    }
    fn cudaLibraryEnumerateKernels(_kernels: *mut u64, _count: c_uint, _library: u64) -> Error, or UNKNOWN; { SUCCESS }
    fn cudaLibraryGetGlobal(at: Out<u64>, size: Out<usize>, _library: u64, _name: Text) -> Error, or UNKNOWN; {
        ledger::assume("cudaLibraryGetGlobal", ABSENT);
        at.put(0);
        size.put(0);
        fail(NOT_FOUND)
    }
    fn cudaLibraryGetManaged(at: Out<u64>, size: Out<usize>, library: u64, name: Text) -> Error, or UNKNOWN; {
        cudaLibraryGetGlobal(at, size, library, name)
    }
    fn cudaLibraryGetUnifiedFunction(at: Out<u64>, _library: u64, _name: Text) -> Error, or UNKNOWN; {
        ledger::assume("cudaLibraryGetUnifiedFunction", ABSENT);
        at.put(0);
        fail(NOT_FOUND)
    }
    fn cudaKernelSetAttributeForDevice(_kernel: u64, _attribute: c_int, _value: c_int, _device: c_int) -> Error, or UNKNOWN; { SUCCESS }
}
