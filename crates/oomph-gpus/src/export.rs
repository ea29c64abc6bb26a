//! A GPU's properties in the forms that other programs read.

use std::fmt::Write as _;

use crate::gpu::Gpu;

/// The CUDA version that the virtual driver claims to support, as `cudaDriverGetVersion` gives it.
const DRIVER_VERSION: u32 = 13_000;

/// Where the virtual GPU sits on the PCI bus. Nothing computes with it; it is the bus on which
/// the H200 sat whose properties are in the catalogue.
const PCI_BUS: u32 = 6;

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

    /// The properties as flat text, from which the preloaded virtual GPU takes them (it has no
    /// parser for more).
    ///
    /// One `key=value` per line; lines that begin with `#` are comments; order means nothing;
    /// readers ignore keys that they do not know. Values run to the end of the line and are
    /// decimal integers except `id`, `name` and `cudnn_json`. Clocks are in kHz, rates and
    /// bandwidths per second; a rate that the hardware lacks is 0.
    pub fn to_key_values(&self) -> String {
        self.to_key_values_with_memory(self.memory.total_bytes)
    }

    /// [`Self::to_key_values`] for a capacity other than its own.
    pub fn to_key_values_with_memory(&self, total_bytes: u64) -> String {
        let limits = &self.limits;
        let context = &self.context;
        let (major, minor) = self.compute_capability;
        let rate = |rate: Option<f64>| rate.map_or(0, |rate| rate.round() as u64);
        let mut text = format!(
            "# {}, from oomph's catalogue of GPUs\nid={}\nname={}\n",
            self.name, self.id, self.name
        );
        let numbers = [
            ("memory.total_bytes", total_bytes),
            ("memory.bus_bits", u64::from(self.clocks.bus_bits)),
            ("compute_capability.major", u64::from(major)),
            ("compute_capability.minor", u64::from(minor)),
            ("sm_count", u64::from(self.sms)),
            (
                "shared_memory.per_block_bytes",
                u64::from(limits.shared_per_block),
            ),
            (
                "shared_memory.per_block_optin_bytes",
                u64::from(limits.shared_per_block_optin),
            ),
            (
                "shared_memory.per_sm_bytes",
                u64::from(limits.shared_per_sm),
            ),
            (
                "shared_memory.reserved_per_block_bytes",
                u64::from(limits.shared_reserved_per_block),
            ),
            ("registers.per_block", u64::from(limits.registers_per_block)),
            ("registers.per_sm", u64::from(limits.registers_per_sm)),
            ("threads.max_per_sm", u64::from(limits.threads_per_sm)),
            ("blocks.max_per_sm", u64::from(limits.blocks_per_sm)),
            ("l2_bytes", self.l2_bytes),
            ("persisting_l2_bytes", self.persisting_l2_bytes()),
            ("clock.sm_khz", u64::from(self.clocks.driver_mhz) * 1000),
            ("clock.memory_khz", u64::from(self.clocks.memory_mhz) * 1000),
            ("copy_engines", u64::from(limits.copy_engines)),
            ("ecc", u64::from(self.memory.ecc)),
            ("context.base_bytes", context.base_bytes),
            ("context.first_kernel_bytes", context.first_kernel_bytes),
            ("context.cublas_handle_bytes", context.cublas_handle_bytes),
            ("context.first_matmul_bytes", context.first_matmul_bytes),
            ("context.cudnn_handle_bytes", context.cudnn_handle_bytes),
            ("context.first_fft_bytes", context.first_fft_bytes),
            ("context.stream_bytes", context.stream_bytes),
            (
                "context.cusolver_handle_bytes",
                context.cusolver_handle_bytes,
            ),
            (
                "context.cusparse_handle_bytes",
                context.cusparse_handle_bytes,
            ),
            (
                "context.nccl_communicator_bytes",
                context.nccl_communicator_bytes,
            ),
            (
                "bandwidth.memory_bytes_per_s",
                self.bandwidth_bytes_per_s.round() as u64,
            ),
            (
                "bandwidth.host_bytes_per_s",
                self.link.host_bytes_per_s.round() as u64,
            ),
            (
                "bandwidth.nvlink_bytes_per_s",
                rate(self.link.nvlink_bytes_per_s),
            ),
            ("rate.fp32", self.rates.fp32.round() as u64),
            ("rate.tf32", rate(self.rates.tf32)),
            ("rate.fp16", rate(self.rates.fp16)),
            ("rate.bf16", rate(self.rates.bf16)),
            ("rate.fp8", rate(self.rates.fp8)),
            ("rate.int8", rate(self.rates.int8)),
        ];
        for (key, value) in numbers {
            let _ = writeln!(text, "{key}={value}");
        }
        let _ = writeln!(
            text,
            "cudnn_json={}",
            self.cudnn_json_with_memory(total_bytes)
        );
        text
    }

    /// How much of the L2 may be set aside for persisting accesses: 5/8 of it on the H200, 3/4 on
    /// the A100, nothing before.
    fn persisting_l2_bytes(&self) -> u64 {
        match self.compute_capability {
            (major, _) if major >= 9 => self.l2_bytes / 8 * 5,
            (8, _) => self.l2_bytes / 4 * 3,
            _ => 0,
        }
    }
}
