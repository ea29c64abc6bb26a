//! NVML (`nvml*`): what opens `libnvidia-ml.so.1` gets this library. It shows all GPUs of the machine,
//! whatever `CUDA_VISIBLE_DEVICES` hides, and all processes of the run on them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};

use crate::arguments::{Out, put_text};
use crate::device::look;
use crate::{card, driver, export};

pub type Return = c_int;
const SUCCESS: Return = 0;
const INVALID_ARGUMENT: Return = 2;
const NOT_SUPPORTED: Return = 3;
const NOT_FOUND: Return = 6;
const INSUFFICIENT_SIZE: Return = 7;
const UNKNOWN: Return = 999;

/// Device handles are the index plus one.
fn index(handle: u64) -> Option<usize> {
    let index = usize::try_from(handle.checked_sub(1)?).ok()?;
    (index < look().count as usize).then_some(index)
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

/// Writes the handle of the GPU of which `is` is true.
fn find(out: Out<u64>, is: impl Fn(u32) -> bool) -> Return {
    let Some(found) = (0..look().count).find(|&index| is(index)) else {
        return NOT_FOUND;
    };
    out.put(u64::from(found) + 1);
    SUCCESS
}

/// As `nvmlDeviceGetUUID` writes it.
fn uuid(index: u32) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(driver::uuid(index as c_int)));
    let (first, rest) = hex.split_at(8);
    format!(
        "GPU-{first}-{}-{}-{}-{}",
        &rest[..4],
        &rest[4..8],
        &rest[8..12],
        &rest[12..]
    )
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FieldValue {
    field: c_uint,
    scope: c_uint,
    time: i64,
    latency: i64,
    kind: c_uint,
    status: Return,
    value: u64,
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Memory2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// What all processes hold of GPU `index`.
fn memory(index: usize) -> Memory {
    let total = look().properties.total_bytes;
    let own = look()
        .devices
        .iter()
        .map(|device| device.memory.lock())
        .find(|memory| memory.index() as usize == index)
        .map(|memory| memory.used());
    let used =
        own.unwrap_or_else(|| card::get().map_or(0, |cards| cards.held_by_others(index as u32)));
    Memory {
        total,
        free: total.saturating_sub(used),
        used: used.min(total),
    }
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Process {
    process: c_uint,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, whose instances are those of MIG: none.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Process2 {
    process: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Writes the processes of a GPU as `make` lays them out.
///
/// # Safety
/// `list` must be null or have room for `*count` entries.
unsafe fn list_processes<T>(
    handle: u64,
    count: *mut c_uint,
    list: *mut T,
    make: impl Fn((u32, u64)) -> T,
) -> Return {
    let (Some(index), false) = (index(handle), count.is_null()) else {
        return INVALID_ARGUMENT;
    };
    let found = card::get().map_or_else(Vec::new, |cards| cards.processes(index as u32));
    // SAFETY: not null, and C's own counter; `list` has as many entries as that says.
    unsafe {
        let room = count.read() as usize;
        count.write(found.len() as c_uint);
        if found.len() > room || (list.is_null() && !found.is_empty()) {
            return INSUFFICIENT_SIZE;
        }
        for (at, process) in found.into_iter().enumerate() {
            list.add(at).write_unaligned(make(process));
        }
    }
    SUCCESS
}

const fn process2((process, used): (u32, u64)) -> Process2 {
    Process2 {
        process,
        used,
        gpu_instance: c_uint::MAX,
        compute_instance: c_uint::MAX,
    }
}

/// `nvmlUtilization_t`: nothing is computed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Pci {
    short_address: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_and_vendor: c_uint,
    subsystem: c_uint,
    address: [u8; 32],
}

fn pci(index: usize) -> Pci {
    let [domain, bus, device] = driver::pci_address(index as c_int).map(|part| part as c_uint);
    let mut info = Pci {
        short_address: [0; 16],
        domain,
        bus,
        device,
        device_and_vendor: look().config.int("pci_device_id", 0x2335_10de) as c_uint,
        subsystem: 0,
        address: [0; 32],
    };
    let short = format!("{domain:04X}:{bus:02X}:{device:02X}.0");
    let long = format!("{domain:08X}:{bus:02X}:{device:02X}.0");
    info.short_address[..short.len()].copy_from_slice(short.as_bytes());
    info.address[..long.len()].copy_from_slice(long.as_bytes());
    info
}

export! {
    fn nvmlInit_v2() -> Return, or UNKNOWN; { SUCCESS }
    fn nvmlInit() -> Return, or UNKNOWN; { SUCCESS }
    fn nvmlInitWithFlags(_flags: c_uint) -> Return, or UNKNOWN; { SUCCESS }
    fn nvmlShutdown() -> Return, or UNKNOWN; { SUCCESS }
    fn nvmlErrorString(_status: Return) -> *const c_char, or std::ptr::null(); { c"virtual GPU".as_ptr() }
    unsafe fn nvmlSystemGetDriverVersion(out: *mut c_char, room: c_uint) -> Return, or UNKNOWN; {
        // SAFETY: `out` has `room` bytes by the vendor's header.
        unsafe { answer(out, room, look().config.text("driver_name", "580.159.04")) }
    }
    unsafe fn nvmlSystemGetNVMLVersion(out: *mut c_char, room: c_uint) -> Return, or UNKNOWN; {
        // SAFETY: `out` has `room` bytes by the vendor's header.
        unsafe { answer(out, room, "13.580.159.04") }
    }
    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) -> Return, or UNKNOWN; {
        version.put(crate::runtime::driver_version());
        SUCCESS
    }
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) -> Return, or UNKNOWN; {
        version.put(crate::runtime::driver_version());
        SUCCESS
    }
    fn nvmlDeviceGetCount(count: Out<c_uint>) -> Return, or UNKNOWN; { nvmlDeviceGetCount_v2(count) }
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> Return, or UNKNOWN; {
        count.put(look().count as c_uint);
        SUCCESS
    }
    fn nvmlDeviceGetHandleByIndex(which: c_uint, out: Out<u64>) -> Return, or UNKNOWN; {
        nvmlDeviceGetHandleByIndex_v2(which, out)
    }
    fn nvmlDeviceGetHandleByIndex_v2(which: c_uint, out: Out<u64>) -> Return, or UNKNOWN; {
        if which >= look().count {
            return INVALID_ARGUMENT;
        }
        out.put(u64::from(which) + 1);
        SUCCESS
    }
    unsafe fn nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, out: Out<u64>) -> Return, or UNKNOWN; {
        if bus.is_null() {
            return INVALID_ARGUMENT;
        }
        // SAFETY: not null, so a C string by the vendor's header.
        let text = unsafe { CStr::from_ptr(bus) }.to_string_lossy().into_owned();
        // `domain:bus:device.function`, each in hexadecimal digits, the domain in four or eight.
        let parts: Vec<c_int> = text
            .split([':', '.'])
            .filter_map(|part| c_int::from_str_radix(part, 16).ok())
            .collect();
        find(out, |index| parts.get(..3) == Some(&driver::pci_address(index as c_int)[..]))
    }
    unsafe fn nvmlDeviceGetHandleByUUID(text: *const c_char, out: Out<u64>) -> Return, or UNKNOWN; {
        if text.is_null() {
            return INVALID_ARGUMENT;
        }
        // SAFETY: not null, so a C string by the vendor's header.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        find(out, |index| uuid(index) == text)
    }
    fn nvmlDeviceGetIndex(handle: u64, out: Out<c_uint>) -> Return, or UNKNOWN; {
        let Some(index) = index(handle) else { return INVALID_ARGUMENT };
        out.put(index as c_uint);
        SUCCESS
    }
    unsafe fn nvmlDeviceGetUUID(handle: u64, out: *mut c_char, room: c_uint) -> Return, or UNKNOWN; {
        let Some(index) = index(handle) else { return INVALID_ARGUMENT };
        // SAFETY: `out` has `room` bytes by the vendor's header.
        unsafe { answer(out, room, &uuid(index as u32)) }
    }
    unsafe fn nvmlDeviceGetName(_handle: u64, out: *mut c_char, room: c_uint) -> Return, or UNKNOWN; {
        // SAFETY: `out` has `room` bytes by the vendor's header.
        unsafe { answer(out, room, &look().properties.name) }
    }
    fn nvmlDeviceGetPciInfo_v3(handle: u64, out: Out<Pci>) -> Return, or UNKNOWN; {
        let Some(index) = index(handle) else { return INVALID_ARGUMENT };
        out.put(pci(index));
        SUCCESS
    }
    fn nvmlDeviceGetCudaComputeCapability(_handle: u64, major: Out<c_int>, minor: Out<c_int>) -> Return, or UNKNOWN; {
        major.put(look().properties.major);
        minor.put(look().properties.minor);
        SUCCESS
    }
    fn nvmlDeviceGetMemoryInfo(handle: u64, out: Out<Memory>) -> Return, or UNKNOWN; {
        let Some(index) = index(handle) else { return INVALID_ARGUMENT };
        out.put(memory(index));
        SUCCESS
    }
    fn nvmlDeviceGetMemoryInfo_v2(handle: u64, out: Out<Memory2>) -> Return, or UNKNOWN; {
        /// The size of the struct, and its version in the highest byte.
        const VERSION: c_uint = size_of::<Memory2>() as c_uint | 2 << 24;
        let Some(index) = index(handle) else { return INVALID_ARGUMENT };
        let Memory { total, free, used } = memory(index);
        out.put(Memory2 { version: VERSION, total, reserved: 0, free, used });
        SUCCESS
    }
    /// As PyTorch asks for it.
    unsafe fn nvmlDeviceGetComputeRunningProcesses(handle: u64, count: *mut c_uint, list: *mut Process) -> Return, or UNKNOWN; {
        // SAFETY: `list` has room for `count` entries by the vendor's header.
        unsafe { list_processes(handle, count, list, |(process, used)| Process { process, used }) }
    }
    unsafe fn nvmlDeviceGetComputeRunningProcesses_v2(handle: u64, count: *mut c_uint, list: *mut Process2) -> Return, or UNKNOWN; {
        // SAFETY: `list` has room for `count` entries by the vendor's header.
        unsafe { list_processes(handle, count, list, process2) }
    }
    unsafe fn nvmlDeviceGetComputeRunningProcesses_v3(handle: u64, count: *mut c_uint, list: *mut Process2) -> Return, or UNKNOWN; {
        // SAFETY: `list` has room for `count` entries by the vendor's header.
        unsafe { list_processes(handle, count, list, process2) }
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(_handle: u64, count: Out<c_uint>, _list: *mut Process2) -> Return, or UNKNOWN; {
        count.put(0);
        SUCCESS
    }
    fn nvmlDeviceGetP2PStatus(_a: u64, _b: u64, _which: c_int, status: Out<c_int>) -> Return, or UNKNOWN; {
        status.put(0);
        SUCCESS
    }
    fn nvmlDeviceGetNvLinkRemoteDeviceType() -> Return, or UNKNOWN; { NOT_SUPPORTED }
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2() -> Return, or UNKNOWN; { NOT_SUPPORTED }
    /// The state stays what PyTorch puts there: not supported.
    fn nvmlDeviceGetGpuFabricInfoV() -> Return, or UNKNOWN; { SUCCESS }
    /// A virtual GPU is idle, and takes no power.
    fn nvmlDeviceGetUtilizationRates(_handle: u64, out: Out<Utilization>) -> Return, or UNKNOWN; {
        out.put(Utilization { gpu: 0, memory: 0 });
        SUCCESS
    }
    fn nvmlDeviceGetTemperature(_handle: u64, _sensor: c_int, out: Out<c_uint>) -> Return, or UNKNOWN; {
        out.put(0);
        SUCCESS
    }
    fn nvmlDeviceGetPowerUsage(_handle: u64, out: Out<c_uint>) -> Return, or UNKNOWN; {
        out.put(0);
        SUCCESS
    }
    fn nvmlDeviceGetClockInfo(_handle: u64, kind: c_int, out: Out<c_uint>) -> Return, or UNKNOWN; {
        /// `NVML_CLOCK_MEM`; the others are the processor's.
        const MEMORY: c_int = 2;
        let properties = &look().properties;
        let khz = if kind == MEMORY { properties.memory_clock_khz } else { properties.clock_khz };
        out.put((khz / 1000) as c_uint);
        SUCCESS
    }
    /// Links between GPUs: none. Nothing else is known.
    unsafe fn nvmlDeviceGetFieldValues(_handle: u64, count: c_int, values: *mut FieldValue) -> Return, or UNKNOWN; {
        /// `NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON`, `NVML_FI_DEV_NVLINK_LINK_COUNT`.
        const LINKS: [c_uint; 2] = [90, 91];
        const UNSIGNED: c_uint = 1;
        if values.is_null() {
            return INVALID_ARGUMENT;
        }
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: `count` values by the vendor's header.
            let value = unsafe { &mut *values.add(index) };
            let status = if LINKS.contains(&value.field) { SUCCESS } else { NOT_SUPPORTED };
            (value.kind, value.status, value.value) = (UNSIGNED, status, 0);
        }
        SUCCESS
    }
    fn nvmlDeviceGetMaxPcieLinkGeneration(_handle: u64, out: Out<c_uint>) -> Return, or UNKNOWN; {
        /// What 16 lanes of the third generation carry in a second; each generation doubles it.
        const THIRD: f64 = 15.75e9;
        let bytes = look().config.number("bandwidth.host_bytes_per_s", 61_000_000_000) as f64;
        out.put(3 + (bytes / THIRD).log2().round().max(0.0) as c_uint);
        SUCCESS
    }
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(handle: u64, out: Out<c_uint>) -> Return, or UNKNOWN; {
        nvmlDeviceGetMaxPcieLinkGeneration(handle, out)
    }
    fn nvmlDeviceGetCurrPcieLinkGeneration(handle: u64, out: Out<c_uint>) -> Return, or UNKNOWN; {
        nvmlDeviceGetMaxPcieLinkGeneration(handle, out)
    }
    fn nvmlDeviceGetMaxPcieLinkWidth(_handle: u64, out: Out<c_uint>) -> Return, or UNKNOWN; {
        out.put(16);
        SUCCESS
    }
    fn nvmlDeviceGetCurrPcieLinkWidth(handle: u64, out: Out<c_uint>) -> Return, or UNKNOWN; {
        nvmlDeviceGetMaxPcieLinkWidth(handle, out)
    }
    fn nvmlDeviceGetMaxClockInfo(handle: u64, kind: c_int, out: Out<c_uint>) -> Return, or UNKNOWN; {
        nvmlDeviceGetClockInfo(handle, kind, out)
    }
}

/// Questions that many cards do not answer either.
macro_rules! unsupported {
    ($($name:ident)*) => { export! {$( fn $name() -> Return, or UNKNOWN; { NOT_SUPPORTED } )*} };
}

unsupported! {
    nvmlDeviceGetAPIRestriction nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingMode
    nvmlDeviceGetAccountingPids nvmlDeviceGetAccountingStats nvmlDeviceGetAccountingStats_v2 nvmlDeviceGetActiveVgpus
    nvmlDeviceGetAdaptiveClockInfoStatus nvmlDeviceGetAdaptiveTgpModeInfo_v1 nvmlDeviceGetAddressingMode
    nvmlDeviceGetApplicationsClock nvmlDeviceGetAttributes_v2 nvmlDeviceGetAutoBoostedClocksEnabled
    nvmlDeviceGetBAR1MemoryInfo nvmlDeviceGetBBXTimeData_v1 nvmlDeviceGetBankRemapperStatus_v1 nvmlDeviceGetBoardId
    nvmlDeviceGetBoardPartNumber nvmlDeviceGetBrand nvmlDeviceGetBridgeChipInfo nvmlDeviceGetBusType
    nvmlDeviceGetC2cModeInfoV nvmlDeviceGetCapabilities nvmlDeviceGetClkMonStatus nvmlDeviceGetClock
    nvmlDeviceGetClockOffsets nvmlDeviceGetComputeInstanceId nvmlDeviceGetConfComputeGpuAttestationReport
    nvmlDeviceGetConfComputeGpuCertificate nvmlDeviceGetConfComputeMemSizeInfo
    nvmlDeviceGetConfComputeProtectedMemoryUsage nvmlDeviceGetCoolerInfo nvmlDeviceGetCpuAffinity
    nvmlDeviceGetCpuAffinityWithinScope nvmlDeviceGetCreatableVgpus
    nvmlDeviceGetCurrentClockFreqs nvmlDeviceGetCurrentClocksEventReasons
    nvmlDeviceGetCurrentClocksThrottleReasons nvmlDeviceGetDecoderUtilization nvmlDeviceGetDefaultApplicationsClock
    nvmlDeviceGetDefaultEccMode nvmlDeviceGetDetailedEccErrors nvmlDeviceGetDeviceHandleFromMigDeviceHandle
    nvmlDeviceGetDramEncryptionMode nvmlDeviceGetDriverModel nvmlDeviceGetDriverModel_v2
    nvmlDeviceGetDynamicPstatesInfo nvmlDeviceGetEccMode nvmlDeviceGetEncoderCapacity nvmlDeviceGetEncoderSessions
    nvmlDeviceGetEncoderStats nvmlDeviceGetEncoderUtilization nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetFBCSessions
    nvmlDeviceGetFBCStats nvmlDeviceGetFanControlPolicy_v2 nvmlDeviceGetFanSpeed nvmlDeviceGetFanSpeedRPM
    nvmlDeviceGetFanSpeed_v2 nvmlDeviceGetGpcClkMinMaxVfOffset nvmlDeviceGetGpcClkVfOffset
    nvmlDeviceGetGpuFabricInfo nvmlDeviceGetGpuFabricInfo_v4 nvmlDeviceGetGpuInstanceById nvmlDeviceGetGpuInstanceId
    nvmlDeviceGetGpuInstancePossiblePlacements_v2 nvmlDeviceGetGpuInstanceProfileInfo
    nvmlDeviceGetGpuInstanceProfileInfoByIdV nvmlDeviceGetGpuInstanceProfileInfoV
    nvmlDeviceGetGpuInstanceRemainingCapacity nvmlDeviceGetGpuInstances
    nvmlDeviceGetGpuOperationMode nvmlDeviceGetGridLicensableFeatures_v4 nvmlDeviceGetGspFirmwareMode
    nvmlDeviceGetGspFirmwareVersion nvmlDeviceGetHandleBySerial nvmlDeviceGetHandleByUUIDV nvmlDeviceGetHostVgpuMode
    nvmlDeviceGetHostname_v1 nvmlDeviceGetInforomConfigurationChecksum nvmlDeviceGetInforomImageVersion
    nvmlDeviceGetInforomVersion nvmlDeviceGetIrqNum nvmlDeviceGetJpgUtilization nvmlDeviceGetLastBBXFlushTime
    nvmlDeviceGetMarginTemperature nvmlDeviceGetMaxCustomerBoostClock nvmlDeviceGetMaxMigDeviceCount
    nvmlDeviceGetMemClkMinMaxVfOffset
    nvmlDeviceGetMemClkVfOffset nvmlDeviceGetMemoryAffinity nvmlDeviceGetMemoryBusWidth
    nvmlDeviceGetMemoryErrorCounter nvmlDeviceGetMemoryLimits_v1 nvmlDeviceGetMigDeviceHandleByIndex
    nvmlDeviceGetMigMode nvmlDeviceGetMinMaxClockOfPState nvmlDeviceGetMinMaxFanSpeed nvmlDeviceGetModuleId
    nvmlDeviceGetMultiGpuBoard nvmlDeviceGetNumFans nvmlDeviceGetNumGpuCores nvmlDeviceGetNumaNodeId
    nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkErrorCounter nvmlDeviceGetNvLinkInfo nvmlDeviceGetNvLinkState
    nvmlDeviceGetNvLinkTelemetrySamples_v1 nvmlDeviceGetNvLinkUtilizationControl nvmlDeviceGetNvLinkUtilizationCounter
    nvmlDeviceGetNvLinkVersion nvmlDeviceGetNvlinkBwMode nvmlDeviceGetNvlinkSupportedBwModes
    nvmlDeviceGetOfaUtilization nvmlDeviceGetPciInfoExt nvmlDeviceGetPcieLinkMaxSpeed nvmlDeviceGetPcieReplayCounter
    nvmlDeviceGetPcieSpeed nvmlDeviceGetPcieThroughput nvmlDeviceGetPdi nvmlDeviceGetPerformanceModes
    nvmlDeviceGetPgpuMetadataString nvmlDeviceGetPlatformInfo nvmlDeviceGetPowerManagementDefaultLimit
    nvmlDeviceGetPowerManagementLimit nvmlDeviceGetPowerManagementLimitConstraints nvmlDeviceGetPowerManagementMode
    nvmlDeviceGetPowerMizerMode_v1 nvmlDeviceGetPowerSource nvmlDeviceGetProcessUtilization
    nvmlDeviceGetProcessesUtilizationInfo nvmlDeviceGetRemappedRows nvmlDeviceGetRemappedRows_v2
    nvmlDeviceGetRepairStatus nvmlDeviceGetRetiredPages nvmlDeviceGetRetiredPagesPendingStatus
    nvmlDeviceGetRetiredPages_v2 nvmlDeviceGetRowRemapperHistogram nvmlDeviceGetRunningProcessDetailList
    nvmlDeviceGetSamples nvmlDeviceGetSerial nvmlDeviceGetSramEccErrorStatus
    nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts nvmlDeviceGetSupportedClocksEventReasons
    nvmlDeviceGetSupportedClocksThrottleReasons nvmlDeviceGetSupportedEventTypes nvmlDeviceGetSupportedGraphicsClocks
    nvmlDeviceGetSupportedMemoryClocks nvmlDeviceGetSupportedPerformanceStates nvmlDeviceGetSupportedVgpus
    nvmlDeviceGetTargetFanSpeed nvmlDeviceGetTemperatureThreshold nvmlDeviceGetTemperatureV
    nvmlDeviceGetThermalSettings nvmlDeviceGetTopologyCommonAncestor nvmlDeviceGetTopologyNearestGpus
    nvmlDeviceGetTotalEccErrors nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetUnrepairableMemoryFlag_v1
    nvmlDeviceGetVbiosVersion nvmlDeviceGetVgpuCapabilities nvmlDeviceGetVgpuHeterogeneousMode
    nvmlDeviceGetVgpuInstancesUtilizationInfo nvmlDeviceGetVgpuMetadata nvmlDeviceGetVgpuProcessUtilization
    nvmlDeviceGetVgpuProcessesUtilizationInfo nvmlDeviceGetVgpuSchedulerCapabilities nvmlDeviceGetVgpuSchedulerLog
    nvmlDeviceGetVgpuSchedulerLog_v2 nvmlDeviceGetVgpuSchedulerState nvmlDeviceGetVgpuSchedulerState_v2
    nvmlDeviceGetVgpuTypeCreatablePlacements nvmlDeviceGetVgpuTypeSupportedPlacements nvmlDeviceGetVgpuUtilization
    nvmlDeviceGetViolationStatus nvmlDeviceGetVirtualizationMode nvmlDeviceIsMigDeviceHandle nvmlDeviceOnSameBoard
    nvmlDeviceQueryDrainState nvmlDeviceValidateInforom nvmlSystemGetCPER_v1 nvmlSystemGetConfComputeCapabilities
    nvmlSystemGetConfComputeGpusReadyState nvmlSystemGetConfComputeKeyRotationThresholdInfo
    nvmlSystemGetConfComputeSettings nvmlSystemGetConfComputeState nvmlSystemGetDriverBranch nvmlSystemGetHicVersion
    nvmlSystemGetNvlinkBwMode nvmlSystemGetTopologyGpuSet
}

/// What is the same for every virtual GPU.
macro_rules! constant {
    ($($name:ident = $value:expr;)*) => { export! {$(
        fn $name(_handle: u64, out: Out<c_uint>) -> Return, or UNKNOWN; {
            out.put($value);
            SUCCESS
        }
    )*} };
}

constant! {
    nvmlDeviceGetPersistenceMode = 0;
    nvmlDeviceGetDisplayMode = 0;
    nvmlDeviceGetDisplayActive = 0;
    nvmlDeviceGetComputeMode = 0;
    nvmlDeviceGetPerformanceState = 0;
    nvmlDeviceGetPowerState = 0;
    // Lists of processes: there are none of the kind.
    nvmlDeviceGetGraphicsRunningProcesses = 0;
    nvmlDeviceGetGraphicsRunningProcesses_v2 = 0;
    nvmlDeviceGetMPSComputeRunningProcesses = 0;
    nvmlDeviceGetMPSComputeRunningProcesses_v2 = 0;
    nvmlDeviceGetMPSComputeRunningProcesses_v3 = 0;
    nvmlDeviceGetArchitecture = architecture();
}

/// `nvmlDeviceArchitecture_t`.
fn architecture() -> c_uint {
    let properties = &look().properties;
    match (properties.major, properties.minor) {
        (3, _) => 2,
        (5, _) => 3,
        (6, _) => 4,
        (7, 0..5) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10.., _) => 10,
        _ => c_uint::MAX,
    }
}

export! {
    fn nvmlUnitGetCount(count: Out<c_uint>) -> Return, or UNKNOWN; {
        count.put(0);
        SUCCESS
    }
    fn nvmlDeviceGetMinorNumber(handle: u64, out: Out<c_uint>) -> Return, or UNKNOWN; {
        nvmlDeviceGetIndex(handle, out)
    }
    /// The program that a process runs.
    unsafe fn nvmlSystemGetProcessName(process: c_uint, out: *mut c_char, room: c_uint) -> Return, or UNKNOWN; {
        let Ok(line) = std::fs::read(format!("/proc/{process}/cmdline")) else { return NOT_FOUND };
        let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
        // SAFETY: `out` has `room` bytes by the vendor's header.
        unsafe { answer(out, room, &String::from_utf8_lossy(program)) }
    }
}
