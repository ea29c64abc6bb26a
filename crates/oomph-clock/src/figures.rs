//! The figures of a GPU that decide how quick it is.

use oomph_gpus::Gpu;

use crate::work::Kind;

/// Rates and sizes, all as published.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Multiprocessors.
    pub sms: f64,
    /// Threads that a multiprocessor holds.
    pub threads_per_sm: f64,
    /// Boost clock, cycles a second.
    pub clock: f64,
    /// Device memory, bytes a second.
    pub memory: f64,
    /// L2 cache, bytes.
    pub l2: f64,
    /// The link to the host, bytes a second in one direction.
    pub link: f64,
    /// The part of its clock that it holds through products (`Clocks::held_mhz`).
    pub held: f64,
    /// How many times as long a cycle takes as on the GPU that fixed times were measured on.
    pub cycle: f64,
    /// Whether a scheduler has 16 lanes of fp32 (compute capability 7.0, 7.5 and 8.0), so that a multiplication takes two cycles and
    /// everything else is issued in every second one. With 32 lanes everything else takes time from the multiplications.
    pub spare: bool,
    /// Major number of its compute capability.
    pub generation: u32,
    /// How many times as long everything takes as the clocks say, where real runs taught that; else 1.
    pub slower: f64,
    /// Operations a second by type.
    fp32: f64,
    fp64: f64,
    tf32: f64,
    fp16: f64,
    bf16: f64,
    fp8: f64,
    int8: f64,
}

/// Cycles a second of an H200, of which the fixed times are.
pub const MEASURED_HZ: f64 = 1.98e9;

/// A figure without which there is no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoFigures(pub &'static str);

impl std::fmt::Display for NoFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the catalogue has no {} of it", self.0)
    }
}

impl std::error::Error for NoFigures {}

impl Figures {
    /// Those of a GPU of the catalogue. A type that it lacks is computed as a wider one.
    ///
    /// # Errors
    /// [`NoFigures`] names the figure that is missing.
    pub fn of(gpu: &Gpu) -> Result<Self, NoFigures> {
        let known = |value: f64, what: &'static str| {
            if value > 0.0 && value.is_finite() {
                Ok(value)
            } else {
                Err(NoFigures(what))
            }
        };
        let fp32 = known(gpu.rates.fp32, "fp32 rate")?;
        let tf32 = gpu.rates.tf32.unwrap_or(fp32);
        let fp16 = gpu.rates.fp16.unwrap_or(fp32);
        let (major, minor) = gpu.compute_capability;
        let fp64 = match major * 10 + minor {
            60 | 70 => fp32 / 2.0,
            80 | 90 | 100 | 103 => fp32,
            _ => fp32 / 32.0,
        };
        Ok(Self {
            sms: known(f64::from(gpu.sms), "number of multiprocessors")?,
            threads_per_sm: known(f64::from(gpu.limits.threads_per_sm), "number of threads")?,
            clock: known(f64::from(gpu.clocks.boost_mhz) * 1e6, "clock")?,
            memory: known(gpu.bandwidth_bytes_per_s, "memory bandwidth")?,
            l2: known(gpu.l2_bytes as f64, "L2 cache")?,
            link: known(gpu.link.host_bytes_per_s, "link to the host")?,
            held: f64::from(gpu.clocks.held_mhz) / f64::from(gpu.clocks.boost_mhz),
            cycle: MEASURED_HZ / (1e6 * f64::from(gpu.clocks.driver_mhz.max(1))),
            spare: matches!((major, minor), (7, _) | (8, 0)),
            generation: major,
            slower: 1.0,
            fp32,
            fp64,
            tf32,
            fp16,
            bf16: gpu.rates.bf16.unwrap_or(fp32),
            fp8: gpu.rates.fp8.unwrap_or(fp16),
            int8: gpu.rates.int8.unwrap_or(fp32),
        })
    }

    /// The same GPU if everything took it `factor` times as long.
    #[must_use]
    pub const fn slower(self, factor: f64) -> Self {
        Self {
            slower: factor,
            ..self
        }
    }

    /// Operations a second of products of this type.
    pub const fn rate(&self, kind: Kind) -> f64 {
        match kind {
            Kind::Fp64 | Kind::Complex128 => self.fp64,
            Kind::Fp32 | Kind::Complex64 => self.fp32,
            Kind::Tf32 => self.tf32,
            Kind::Fp16 => self.fp16,
            Kind::Bf16 => self.bf16,
            Kind::Fp8 => self.fp8,
            Kind::Int8 => self.int8,
        }
    }
}
