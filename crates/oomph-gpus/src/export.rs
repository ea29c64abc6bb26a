//! A GPU's properties in the forms that other programs read.

use std::fmt::Write as _;

use crate::gpu::Gpu;

/// The CUDA version that the virtual driver claims to support, as `cudaDriverGetVersion` gives it.
const DRIVER_VERSION: u32 = 13_000;

/// Where the virtual GPU sits on the PCI bus. Nothing computes with it; it is the bus on which
/// the H200 sat whose properties are in the catalogue.
const PCI_BUS: u32 = 6;

/// First line of [`Gpu::to_key_values`]; a reader refuses another number.
const KEY_VALUES_VERSION: u32 = 1;

impl Gpu {
    /// cuDNN's device-property JSON (`CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION`), with which
    /// cuDNN's heuristics work without a device.
    pub fn cudnn_json(&self) -> String {
        self.cudnn_json_with_memory(self.memory.total_bytes)
    }

    /// [`Self::cudnn_json`] for a capacity other than its own.
    pub fn cudnn_json_with_memory(&self, total_bytes: u64) -> String {
        let limits = &self.limits;
        let [grid_x, grid_y, grid_z] = limits.grid_dim;
        let [block_x, block_y, block_z] = limits.block_dim;
        let (major, minor) = self.compute_capability;
        let numbers = [
            ("regsPerBlock", u64::from(limits.registers_per_block)),
            ("multiProcessorCount", u64::from(self.sms)),
            ("warpSize", u64::from(limits.warp_size)),
            (
                "maxSharedMemoryPerBlock",
                u64::from(limits.shared_per_block),
            ),
            (
                "maxSharedMemoryPerBlockOptin",
                u64::from(limits.shared_per_block_optin),
            ),
            (
                "reservedSharedMemoryPerBlock",
                u64::from(limits.shared_reserved_per_block),
            ),
            ("maxRegistersPerSM", u64::from(limits.registers_per_sm)),
            ("maxCtasPerSM", u64::from(limits.blocks_per_sm)),
            ("maxThreadsPerBlock", u64::from(limits.threads_per_block)),
            ("maxThreadsPerSM", u64::from(limits.threads_per_sm)),
            ("pciDeviceId", u64::from(PCI_BUS)),
            ("isTccDriver", 0),
            ("supportCoopLaunch", 1),
            ("totalGlobalMem", total_bytes),
            ("smClockRateKHz", u64::from(self.clocks.driver_mhz) * 1000),
            ("memClockRateKHz", u64::from(self.clocks.memory_mhz) * 1000),
            ("l2CacheSize", self.l2_bytes),
            ("cudaDeviceId", 0),
            ("deviceVer", u64::from(major * 100 + minor * 10)),
            ("driverVer", u64::from(DRIVER_VERSION)),
        ];
        let mut json = format!(
            "{{\"maxGridSize\":[{grid_x},{grid_y},{grid_z}],\"maxBlockSize\":[{block_x},{block_y},{block_z}]"
        );
        for (key, value) in numbers {
            let _ = write!(json, ",\"{key}\":{value}");
        }
        // Names are plain ASCII without quotes or backslashes (a test holds the catalogue to it).
        let _ = write!(json, ",\"deviceName\":\"{}\"}}", self.name);
        json
    }

    /// The properties as flat text for the preloaded virtual GPU, which has no parser for more.
    ///
    /// One `key=value` per line, `\n` ends each line, keys are `[a-z0-9_]+`, values run to the end
    /// of the line and are decimal integers except `id` and `name`. The first line is
    /// `oomph_gpu=1`; a reader refuses another version, ignores keys that it does not know, and
    /// must not rely on order after the first line. Keys follow `cudaDeviceProp`'s fields in snake
    /// case, and clocks are in kHz as there. Bandwidths and rates are per second; a rate that the
    /// hardware lacks is 0.
    pub fn to_key_values(&self) -> String {
        self.to_key_values_with_memory(self.memory.total_bytes)
    }

    /// [`Self::to_key_values`] for a capacity other than its own (`--memory`).
    pub fn to_key_values_with_memory(&self, total_bytes: u64) -> String {
        let limits = &self.limits;
        let (major, minor) = self.compute_capability;
        let rate = |rate: Option<f64>| rate.map_or(0, |rate| rate.round() as u64);
        let mut text = format!(
            "oomph_gpu={KEY_VALUES_VERSION}\nid={}\nname={}\n",
            self.id, self.name
        );
        let numbers = [
            ("total_global_mem", total_bytes),
            ("major", u64::from(major)),
            ("minor", u64::from(minor)),
            ("multi_processor_count", u64::from(self.sms)),
            ("warp_size", u64::from(limits.warp_size)),
            ("shared_mem_per_block", u64::from(limits.shared_per_block)),
            (
                "shared_mem_per_block_optin",
                u64::from(limits.shared_per_block_optin),
            ),
            (
                "shared_mem_per_multiprocessor",
                u64::from(limits.shared_per_sm),
            ),
            (
                "reserved_shared_mem_per_block",
                u64::from(limits.shared_reserved_per_block),
            ),
            ("regs_per_block", u64::from(limits.registers_per_block)),
            (
                "regs_per_multiprocessor",
                u64::from(limits.registers_per_sm),
            ),
            ("max_threads_per_block", u64::from(limits.threads_per_block)),
            (
                "max_threads_per_multi_processor",
                u64::from(limits.threads_per_sm),
            ),
            (
                "max_blocks_per_multi_processor",
                u64::from(limits.blocks_per_sm),
            ),
            ("max_threads_dim_x", u64::from(limits.block_dim[0])),
            ("max_threads_dim_y", u64::from(limits.block_dim[1])),
            ("max_threads_dim_z", u64::from(limits.block_dim[2])),
            ("max_grid_size_x", u64::from(limits.grid_dim[0])),
            ("max_grid_size_y", u64::from(limits.grid_dim[1])),
            ("max_grid_size_z", u64::from(limits.grid_dim[2])),
            ("total_const_mem", 65_536),
            ("l2_cache_size", self.l2_bytes),
            ("clock_rate", u64::from(self.clocks.driver_mhz) * 1000),
            (
                "memory_clock_rate",
                u64::from(self.clocks.memory_mhz) * 1000,
            ),
            ("memory_bus_width", u64::from(self.clocks.bus_bits)),
            ("async_engine_count", u64::from(limits.copy_engines)),
            ("ecc_enabled", u64::from(self.memory.ecc)),
            ("tcc_driver", 0),
            ("integrated", 0),
            ("concurrent_kernels", 1),
            ("cooperative_launch", 1),
            ("unified_addressing", 1),
            ("managed_memory", 1),
            ("compute_preemption_supported", 1),
            ("pci_bus_id", u64::from(PCI_BUS)),
            ("pci_device_id", 0),
            ("pci_domain_id", 0),
            ("driver_version", u64::from(DRIVER_VERSION)),
            ("context_base_bytes", self.context.base_bytes),
            (
                "context_first_kernel_bytes",
                self.context.first_kernel_bytes,
            ),
            ("context_matmul_bytes", self.context.matmul_bytes),
            ("context_convolution_bytes", self.context.convolution_bytes),
            ("bandwidth", self.bandwidth_bytes_per_s.round() as u64),
            ("host_link", self.link.host_bytes_per_s.round() as u64),
            ("nvlink", rate(self.link.nvlink_bytes_per_s)),
            ("rate_fp32", self.rates.fp32.round() as u64),
            ("rate_tf32", rate(self.rates.tf32)),
            ("rate_fp16", rate(self.rates.fp16)),
            ("rate_bf16", rate(self.rates.bf16)),
            ("rate_fp8", rate(self.rates.fp8)),
            ("rate_int8", rate(self.rates.int8)),
        ];
        for (key, value) in numbers {
            let _ = writeln!(text, "{key}={value}");
        }
        text
    }
}
