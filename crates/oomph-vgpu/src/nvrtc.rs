//! NVRTC: programs "compile" at once; their code is never run.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};

use crate::streams::opaque_handle;
use crate::sync::Mutex;
use crate::{export, put};

pub type Status = c_int;
const SUCCESS: Status = 0;
const INVALID_PROGRAM: Status = 4;
const INTERNAL: Status = 11;

/// What stands for compiled code: one byte and the terminator that some callers count.
const IMAGE: &CStr = c" ";

static PROGRAMS: std::sync::LazyLock<Mutex<HashMap<u64, Vec<CString>>>> =
    std::sync::LazyLock::new(|| Mutex::new(HashMap::new()));

unsafe fn put_image(out: *mut c_char) -> Status {
    for (index, &byte) in IMAGE.to_bytes_with_nul().iter().enumerate() {
        // SAFETY: the caller asked for the size first and gives that much room.
        unsafe { put(out.add(index), byte as c_char) };
    }
    SUCCESS
}

unsafe fn put_image_size(out: *mut usize) -> Status {
    unsafe { put(out, IMAGE.to_bytes_with_nul().len()) };
    SUCCESS
}

export! {
    fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> Status, or INTERNAL; {
        let version = crate::device::machine().config.int("cuda_version", 13_000);
        unsafe { put(major, version / 1000); put(minor, version % 1000 / 10) };
        SUCCESS
    }
    fn nvrtcCreateProgram(out: *mut u64) -> Status, or INTERNAL; {
        let handle = opaque_handle();
        PROGRAMS.lock().insert(handle, Vec::new());
        unsafe { put(out, handle) };
        SUCCESS
    }
    fn nvrtcDestroyProgram(program: *mut u64) -> Status, or INTERNAL; {
        if !program.is_null() {
            PROGRAMS.lock().remove(&unsafe { program.read() });
        }
        SUCCESS
    }
    fn nvrtcCompileProgram() -> Status, or INTERNAL; { SUCCESS }
    /// What cuDNN compiles with.
    fn __nvrtcCPEx() -> Status, or INTERNAL; { SUCCESS }
    fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> Status, or INTERNAL; {
        unsafe { put(count, 1) };
        SUCCESS
    }
    fn nvrtcGetSupportedArchs(list: *mut c_int) -> Status, or INTERNAL; {
        unsafe { put(list, crate::device::machine().properties.capability()) };
        SUCCESS
    }
    fn nvrtcGetLTOIRSize(_program: u64, size: *mut usize) -> Status, or INTERNAL; { unsafe { put_image_size(size) } }
    fn nvrtcGetLTOIR(_program: u64, out: *mut c_char) -> Status, or INTERNAL; { unsafe { put_image(out) } }
    fn nvrtcAddNameExpression(program: u64, name: *const c_char) -> Status, or INTERNAL; {
        if !name.is_null() && let Some(names) = PROGRAMS.lock().get_mut(&program) {
            // SAFETY: a C string by the vendor's header.
            names.push(unsafe { CStr::from_ptr(name) }.to_owned());
        }
        SUCCESS
    }
    fn nvrtcGetLoweredName(program: u64, name: *const c_char, out: *mut *const c_char) -> Status, or INTERNAL; {
        // The name itself will do: nobody looks it up in real code.
        let programs = PROGRAMS.lock();
        let Some(names) = programs.get(&program) else { return INVALID_PROGRAM };
        // SAFETY: as above.
        let wanted = unsafe { CStr::from_ptr(name) };
        let found = names.iter().find(|known| known.as_c_str() == wanted);
        unsafe { put(out, found.map_or(std::ptr::null(), |known| known.as_ptr())) };
        SUCCESS
    }
    fn nvrtcGetCUBINSize(_program: u64, size: *mut usize) -> Status, or INTERNAL; { unsafe { put_image_size(size) } }
    fn nvrtcGetPTXSize(_program: u64, size: *mut usize) -> Status, or INTERNAL; { unsafe { put_image_size(size) } }
    fn nvrtcGetProgramLogSize(_program: u64, size: *mut usize) -> Status, or INTERNAL; { unsafe { put_image_size(size) } }
    fn nvrtcGetCUBIN(_program: u64, out: *mut c_char) -> Status, or INTERNAL; { unsafe { put_image(out) } }
    fn nvrtcGetPTX(_program: u64, out: *mut c_char) -> Status, or INTERNAL; { unsafe { put_image(out) } }
    fn nvrtcGetProgramLog(_program: u64, out: *mut c_char) -> Status, or INTERNAL; { unsafe { put_image(out) } }
    fn nvrtcGetErrorString(_status: Status) -> *const c_char, or std::ptr::null(); { c"NVRTC_SUCCESS".as_ptr() }
}
