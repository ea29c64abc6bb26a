//! NVML (`nvml*`), used when `libnvidia-ml.so.1` resolves to this library. One device per GPU,
//! with this process as the only one on it.

use std::ffi::{c_char, c_int, c_uint};

use crate::arguments::{Out, put_text};
use crate::device::{self, machine};
use crate::{driver, export};

pub type Return = c_int;
const SUCCESS: Return = 0;
const INVALID_ARGUMENT: Return = 2;
const NOT_SUPPORTED: Return = 3;
const UNKNOWN: Return = 999;

/// Device handles are the index plus one.
fn index(handle: u64) -> Option<usize> {
    let index = usize::try_from(handle.checked_sub(1)?).ok()?;
    (index < machine().count as usize).then_some(index)
}

/// # Safety
/// `out` must be null or valid for writes of `room` bytes.
unsafe fn answer(out: *mut c_char, room: c_uint, text: &str) -> Return {
    // SAFETY: the caller's contract.
    if room as usize > text.len() && unsafe { put_text(out, room as usize, text) } {
        SUCCESS
    } else {
        INVALID_ARGUMENT
    }
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

export! {
    fn nvmlInit_v2() -> Return, or UNKNOWN; { SUCCESS }
    fn nvmlInit() -> Return, or UNKNOWN; { SUCCESS }
    fn nvmlInitWithFlags(_flags: c_uint) -> Return, or UNKNOWN; { SUCCESS }
    fn nvmlShutdown() -> Return, or UNKNOWN; { SUCCESS }
    fn nvmlErrorString(_status: Return) -> *const c_char, or std::ptr::null(); { c"virtual GPU".as_ptr() }
    unsafe fn nvmlSystemGetDriverVersion(out: *mut c_char, room: c_uint) -> Return, or UNKNOWN; {
        // SAFETY: `out` has `room` bytes by the vendor's header.
        unsafe { answer(out, room, machine().config.text("driver_name", "580.159.04")) }
    }
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) -> Return, or UNKNOWN; {
        crate::runtime::cudaDriverGetVersion(version)
    }
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> Return, or UNKNOWN; {
        count.put(machine().count as c_uint);
        SUCCESS
    }
    fn nvmlDeviceGetHandleByIndex_v2(which: c_uint, out: Out<u64>) -> Return, or UNKNOWN; {
        if which >= machine().count {
            return INVALID_ARGUMENT;
        }
        out.put(u64::from(which) + 1);
        SUCCESS
    }
    fn nvmlDeviceGetHandleByPciBusId_v2(_bus: *const c_char, out: Out<u64>) -> Return, or UNKNOWN; {
        out.put(device::physical(device::current() as c_int) as u64 + 1);
        SUCCESS
    }
    fn nvmlDeviceGetHandleByUUID(_uuid: *const c_char, out: Out<u64>) -> Return, or UNKNOWN; {
        out.put(1);
        SUCCESS
    }
    unsafe fn nvmlDeviceGetUUID(handle: u64, out: *mut c_char, room: c_uint) -> Return, or UNKNOWN; {
        let Some(index) = index(handle) else { return INVALID_ARGUMENT };
        let hex = format!("{:032x}", u128::from_be_bytes(driver::uuid(index as c_int)));
        let text = format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        // SAFETY: `out` has `room` bytes by the vendor's header.
        unsafe { answer(out, room, &text) }
    }
    unsafe fn nvmlDeviceGetName(_handle: u64, out: *mut c_char, room: c_uint) -> Return, or UNKNOWN; {
        // SAFETY: `out` has `room` bytes by the vendor's header.
        unsafe { answer(out, room, &machine().properties.name) }
    }
    fn nvmlDeviceGetMemoryInfo(handle: u64, out: Out<Memory>) -> Return, or UNKNOWN; {
        let Some(which) = index(handle) else { return INVALID_ARGUMENT };
        // NVML also shows GPUs that CUDA_VISIBLE_DEVICES hides; to this process they look unused.
        let seen = machine().devices.iter().map(|device| device.memory.lock()).find(|memory| memory.index() as usize == which);
        let total = machine().properties.total_bytes;
        let memory = seen.map_or(Memory { total, free: total, used: 0 }, |memory| Memory {
            total: memory.total,
            free: memory.free(),
            used: memory.used(),
        });
        out.put(memory);
        SUCCESS
    }
    fn nvmlDeviceGetComputeRunningProcesses(_handle: u64, count: Out<c_uint>, _list: *mut u8) -> Return, or UNKNOWN; {
        count.put(0);
        SUCCESS
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(_handle: u64, count: Out<c_uint>, _list: *mut u8) -> Return, or UNKNOWN; {
        count.put(0);
        SUCCESS
    }
    fn nvmlDeviceGetP2PStatus(_a: u64, _b: u64, _which: c_int, status: Out<c_int>) -> Return, or UNKNOWN; {
        status.put(0);
        SUCCESS
    }
    fn nvmlDeviceGetNvLinkRemoteDeviceType() -> Return, or UNKNOWN; { NOT_SUPPORTED }
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2() -> Return, or UNKNOWN; { NOT_SUPPORTED }
    fn nvmlDeviceGetGpuFabricInfoV() -> Return, or UNKNOWN; { NOT_SUPPORTED }
    fn nvmlDeviceGetUtilizationRates() -> Return, or UNKNOWN; { NOT_SUPPORTED }
    fn nvmlDeviceGetTemperature() -> Return, or UNKNOWN; { NOT_SUPPORTED }
    fn nvmlDeviceGetPowerUsage() -> Return, or UNKNOWN; { NOT_SUPPORTED }
}
