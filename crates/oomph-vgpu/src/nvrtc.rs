//! NVRTC: programs "compile" at once; their code is never run.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};

use crate::arguments::{In, Out, Text};
use crate::export;
use crate::streams::opaque_handle;
use crate::sync::Mutex;

pub type Status = c_int;
const SUCCESS: Status = 0;
const INVALID_PROGRAM: Status = 4;
const INTERNAL: Status = 11;
const NO_PRECOMPILED_HEADERS: Status = 13;

/// What stands for compiled code: one byte and the terminator that some callers count.
/// A caller asks for its size first and gives that much room.
const IMAGE: &[u8; 2] = b" \0";

static PROGRAMS: std::sync::LazyLock<Mutex<HashMap<u64, Vec<CString>>>> =
    std::sync::LazyLock::new(|| Mutex::new(HashMap::new()));

fn put_image(out: Out<[u8; IMAGE.len()]>) -> Status {
    out.put(*IMAGE);
    SUCCESS
}

fn put_image_size(out: Out<usize>) -> Status {
    out.put(IMAGE.len());
    SUCCESS
}

export! {
    fn nvrtcVersion(major: Out<c_int>, minor: Out<c_int>) -> Status, or INTERNAL; {
        let version = crate::device::machine().config.int("cuda_version", 13_000);
        major.put(version / 1000);
        minor.put(version % 1000 / 10);
        SUCCESS
    }
    fn nvrtcCreateProgram(out: Out<u64>) -> Status, or INTERNAL; {
        let handle = opaque_handle();
        PROGRAMS.lock().insert(handle, Vec::new());
        out.put(handle);
        SUCCESS
    }
    fn nvrtcDestroyProgram(program: In<u64>) -> Status, or INTERNAL; {
        if let Some(program) = program.get() {
            PROGRAMS.lock().remove(&program);
        }
        SUCCESS
    }
    fn nvrtcCompileProgram() -> Status, or INTERNAL; { SUCCESS }
    /// What cuDNN compiles with.
    fn __nvrtcCPEx() -> Status, or INTERNAL; { SUCCESS }
    fn nvrtcGetNumSupportedArchs(count: Out<c_int>) -> Status, or INTERNAL; {
        count.put(1);
        SUCCESS
    }
    fn nvrtcGetSupportedArchs(list: Out<c_int>) -> Status, or INTERNAL; {
        list.put(crate::device::machine().properties.capability());
        SUCCESS
    }
    fn nvrtcGetTileIRSize(_program: u64, size: Out<usize>) -> Status, or INTERNAL; { put_image_size(size) }
    fn nvrtcGetTileIR(_program: u64, out: Out<[u8; IMAGE.len()]>) -> Status, or INTERNAL; { put_image(out) }
    fn nvrtcGetPCHHeapSize(size: Out<usize>) -> Status, or INTERNAL; {
        size.put(0);
        SUCCESS
    }
    fn nvrtcSetPCHHeapSize(_size: usize) -> Status, or INTERNAL; { SUCCESS }
    fn nvrtcGetPCHHeapSizeRequired(_program: u64, size: Out<usize>) -> Status, or INTERNAL; {
        size.put(0);
        SUCCESS
    }
    fn nvrtcGetPCHCreateStatus(_program: u64) -> Status, or INTERNAL; { NO_PRECOMPILED_HEADERS }
    fn nvrtcSetFlowCallback(_program: u64, _call: u64, _payload: u64) -> Status, or INTERNAL; { SUCCESS }
    fn nvrtcGetLTOIRSize(_program: u64, size: Out<usize>) -> Status, or INTERNAL; { put_image_size(size) }
    fn nvrtcGetOptiXIRSize(_program: u64, size: Out<usize>) -> Status, or INTERNAL; { put_image_size(size) }
    fn nvrtcGetOptiXIR(_program: u64, out: Out<[u8; IMAGE.len()]>) -> Status, or INTERNAL; { put_image(out) }
    fn nvrtcGetLTOIR(_program: u64, out: Out<[u8; IMAGE.len()]>) -> Status, or INTERNAL; { put_image(out) }
    fn nvrtcAddNameExpression(program: u64, name: Text) -> Status, or INTERNAL; {
        if let Some(name) = name.get() && let Some(names) = PROGRAMS.lock().get_mut(&program) {
            names.push(name.to_owned());
        }
        SUCCESS
    }
    fn nvrtcGetLoweredName(program: u64, name: Text, out: Out<*const c_char>) -> Status, or INTERNAL; {
        // The name itself is enough: it is never looked up in real code.
        let programs = PROGRAMS.lock();
        let Some(names) = programs.get(&program) else { return INVALID_PROGRAM };
        let found = names.iter().find(|known| Some(known.as_c_str()) == name.get());
        out.put(found.map_or(std::ptr::null(), |known| known.as_ptr()));
        SUCCESS
    }
    fn nvrtcGetCUBINSize(_program: u64, size: Out<usize>) -> Status, or INTERNAL; { put_image_size(size) }
    fn nvrtcGetPTXSize(_program: u64, size: Out<usize>) -> Status, or INTERNAL; { put_image_size(size) }
    fn nvrtcGetProgramLogSize(_program: u64, size: Out<usize>) -> Status, or INTERNAL; { put_image_size(size) }
    fn nvrtcGetCUBIN(_program: u64, out: Out<[u8; IMAGE.len()]>) -> Status, or INTERNAL; { put_image(out) }
    fn nvrtcGetPTX(_program: u64, out: Out<[u8; IMAGE.len()]>) -> Status, or INTERNAL; { put_image(out) }
    fn nvrtcGetProgramLog(_program: u64, out: Out<[u8; IMAGE.len()]>) -> Status, or INTERNAL; { put_image(out) }
    fn nvrtcGetErrorString(_status: Status) -> *const c_char, or std::ptr::null(); { c"NVRTC_SUCCESS".as_ptr() }
}
