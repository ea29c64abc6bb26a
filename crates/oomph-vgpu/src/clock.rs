//! The virtual clock: how long work would take on the virtual GPU.
//!
//! Programs base decisions on times: a compiler pads a matrix or picks a kernel, benchmark mode picks a
//! plan, a user reads tokens per second. So every launch takes time on the clock of its stream
//! ([`crate::streams`]); the host's time never does, which makes all of this repeatable. The
//! estimates below follow `bench/gpu/results/h200_clock.json`: they rank kernels correctly, by about the right
//! factor, but are not exact.
//!
//! Configuration keys, as the catalogue writes them: `rate.*` (floating-point operations a second,
//! dense, as published; 0 for a type that the GPU lacks), `bandwidth.memory_bytes_per_s`,
//! `bandwidth.host_bytes_per_s`, `bandwidth.nvlink_bytes_per_s`. The catalogue has no `rate.fp64`;
//! without it, it follows from the compute capability. `clock.kernels_per_mille` is how long kernels take beside the estimates: what copies
//! hide behind depends on it.

use std::time::Duration;

use crate::config::Config;
use crate::device::{self, Properties, machine};
use crate::work::{self, Work};
use crate::{busy, driver, inner, runtime, streams};

/// From the launch of a kernel that does nothing to the next one's.
pub const LAUNCH: Duration = Duration::from_nanos(2_200);
/// Between two events with nothing between them.
pub const EVENT: Duration = Duration::from_nanos(1_280);
/// A copy across the link to the host, before its first byte.
const COPY: Duration = Duration::from_nanos(2_600);
/// The same from or to memory that is not pinned.
const PAGEABLE_COPY: Duration = Duration::from_micros(9);
/// What a collective takes among GPUs before its first byte.
const COLLECTIVE: Duration = Duration::from_micros(12);

/// The part of the published rates that large products reach.
const REACHED_RATE: f64 = 0.81;
/// The part of the published bandwidths that long copies reach.
const REACHED_BANDWIDTH: f64 = 0.9;
/// The part of the host link's bandwidth that is left without pinned memory.
const PAGEABLE: f64 = 0.44;
/// The part of a link's bandwidth that a ring over it reaches.
const REACHED_RING: f64 = 0.8;

/// The rates of a GPU: operations and bytes in a second.
#[derive(Debug, Clone)]
pub struct Rates {
    fp64: f64,
    fp32: f64,
    tf32: f64,
    fp16: f64,
    bf16: f64,
    fp8: f64,
    int8: f64,
    memory: f64,
    host: f64,
    link: f64,
    sm_count: f64,
    /// How many times as long kernels take as the estimates below say.
    pub slower: f64,
}

impl Rates {
    /// The rates of the configured GPU; those of an H200 by default.
    pub fn new(config: &Config, gpu: &Properties) -> Self {
        // A type that the GPU lacks is computed as a wider one.
        let rate = |key: &str, default: u64, wider: f64| match config.number(key, default) {
            0 => wider,
            rate => rate as f64 * REACHED_RATE,
        };
        let bandwidth =
            |key: &str, default: u64| config.number(key, default) as f64 * REACHED_BANDWIDTH;
        let fp32 = rate("rate.fp32", 62_000_000_000_000, 1e12);
        let tf32 = rate("rate.tf32", 494_700_000_000_000, fp32);
        let fp16 = rate("rate.fp16", 989_400_000_000_000, fp32);
        let fp64 = match gpu.capability() {
            // Half the rate of single precision, doubled by tensor cores in the later two.
            60 | 70 => fp32 / 2.0,
            80 | 90 | 100 | 103 => fp32,
            _ => fp32 / 32.0,
        };
        let host = bandwidth("bandwidth.host_bytes_per_s", 61_000_000_000).max(1e9);
        let link = bandwidth("bandwidth.nvlink_bytes_per_s", 450_000_000_000);
        Self {
            fp64: rate("rate.fp64", 0, fp64),
            fp32,
            tf32,
            fp16,
            bf16: rate("rate.bf16", 989_400_000_000_000, fp32),
            fp8: rate("rate.fp8", 1_978_900_000_000_000, fp16),
            int8: rate("rate.int8", 1_978_900_000_000_000, fp32),
            memory: bandwidth("bandwidth.memory_bytes_per_s", 4_800_000_000_000).max(1e9),
            host,
            link: if link > 0.0 { link } else { host },
            sm_count: f64::from(gpu.sm_count.max(1)),
            slower: config.number("clock.kernels_per_mille", 1000) as f64 / 1e3,
        }
    }

    /// The time of a kernel that moves `bytes` of device memory.
    pub fn moving(&self, bytes: f64) -> Duration {
        LAUNCH + seconds(bytes / self.memory)
    }

    /// The time of a matrix product.
    pub fn product(&self, product: &Product) -> Duration {
        /// Rows and columns of the result that one block computes, at most and at least.
        const TILE: f64 = 128.0;
        const SMALL_TILE: f64 = 64.0;
        /// A product with fewer rows or columns than this is a matrix read once.
        const THIN: u64 = 8;
        /// Long sums are split among blocks in pieces of at least this length.
        const SPLIT: f64 = 1024.0;

        let Product {
            m,
            n,
            k,
            batch,
            kind,
            ..
        } = *product;
        if m == 0 || n == 0 || batch == 0 {
            return LAUNCH;
        }
        let (rows, columns, depth, count) = (m as f64, n as f64, k as f64, batch as f64);
        let bytes = count * kind.bytes() * (rows * depth + depth * columns + rows * columns);
        let flat = seconds(bytes / self.memory);
        if m.min(n) <= THIN {
            return LAUNCH
                + flat
                + seconds(2.0 * count * rows * columns * depth * kind.operations() / self.fp32);
        }
        let padded = |length: f64| (length / SMALL_TILE).ceil() * SMALL_TILE;
        let tiles = count * (rows / TILE).ceil() * (columns / TILE).ceil();
        // Few tiles leave multiprocessors idle, unless the sum is long enough to be split.
        let pieces = (depth / SPLIT)
            .floor()
            .clamp(1.0, (self.sm_count / tiles).floor().max(1.0));
        let waves = (tiles * pieces / self.sm_count).ceil();
        let idle = waves * self.sm_count / (tiles * pieces);
        let work = 2.0 * count * padded(rows) * padded(columns) * depth * kind.operations();
        let slower = product.misalignment();
        let compute = seconds(work / self.rate(kind) * idle * slower);
        LAUNCH + compute.max(flat.mul_f64(slower.min(3.5)))
    }

    /// The time of the operations of a product whose matrices need not be fetched.
    pub fn computing(&self, product: &Product) -> Duration {
        let Product {
            m,
            n,
            k,
            batch,
            kind,
            ..
        } = *product;
        seconds(2.0 * (m * n) as f64 * (k * batch) as f64 * kind.operations() / self.rate(kind))
    }

    /// How often the GPU is filled by so many blocks of one to a multiprocessor.
    pub fn waves(&self, blocks: f64) -> f64 {
        (blocks / self.sm_count).ceil()
    }

    fn rate(&self, kind: Kind) -> f64 {
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

    /// The time of a copy of `len` bytes along `path`.
    pub fn copy(&self, path: Path, len: u64) -> Duration {
        let len = len as f64;
        match path {
            Path::Within => LAUNCH + seconds(2.0 * len / self.memory),
            Path::Between => COPY + seconds(len / self.link),
            Path::Pinned => COPY + seconds(len / self.host),
            Path::Pageable => PAGEABLE_COPY + seconds(len / (self.host * PAGEABLE)),
        }
    }

    /// The time of a collective in which each of `ranks` passes `bytes` on.
    pub fn collective(&self, ranks: u64, bytes: f64) -> Duration {
        if ranks < 2 {
            return self.moving(2.0 * bytes);
        }
        COLLECTIVE + seconds(bytes / (self.link * REACHED_RING))
    }
}

/// Seconds as a duration; nonsense as none.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

/// Where a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Path {
    /// From a device to itself.
    Within,
    /// From one device to another.
    Between,
    /// To or from pinned memory of the host.
    Pinned,
    /// To or from other memory of the host.
    Pageable,
}

/// Which way a copy goes over the link to the host: each is a queue of its own. The numbers are those of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// To the host.
    Out = 1,
    /// From the host.
    In = 2,
}

/// How a product computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Fp64,
    Fp32,
    Tf32,
    Fp16,
    Bf16,
    Fp8,
    Int8,
    Complex64,
    Complex128,
}

impl Kind {
    /// From a `cudaDataType` and a `cublasComputeType_t`.
    pub const fn new(data: i32, compute: i32) -> Self {
        const FAST_TF32: i32 = 77;
        match data {
            1 => Self::Fp64,
            2 => Self::Fp16,
            14 => Self::Bf16,
            28..=33 => Self::Fp8,
            3 | 8 => Self::Int8,
            4 => Self::Complex64,
            5 => Self::Complex128,
            _ if compute == FAST_TF32 => Self::Tf32,
            _ => Self::Fp32,
        }
    }

    /// Bytes of an element.
    pub const fn bytes(self) -> f64 {
        match self {
            Self::Complex128 => 16.0,
            Self::Fp64 | Self::Complex64 => 8.0,
            Self::Fp32 | Self::Tf32 => 4.0,
            Self::Fp16 | Self::Bf16 => 2.0,
            Self::Fp8 | Self::Int8 => 1.0,
        }
    }

    /// Real multiplications in one product of elements.
    const fn operations(self) -> f64 {
        match self {
            Self::Complex64 | Self::Complex128 => 4.0,
            _ => 1.0,
        }
    }
}

/// A batch of matrix products: `m`×`k` times `k`×`n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Product {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub batch: u64,
    pub kind: Kind,
    /// The largest power of two, in bytes, that divides every address and leading dimension.
    pub alignment: u64,
}

/// The alignment that no kernel asks more than.
pub const ALIGNED: u64 = 16;

/// The largest power of two up to [`ALIGNED`] that divides `bytes`.
pub const fn alignment(bytes: u64) -> u64 {
    if bytes == 0 {
        ALIGNED
    } else {
        1 << min(bytes.trailing_zeros(), ALIGNED.trailing_zeros())
    }
}

const fn min(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

impl Product {
    /// How many times slower the product is for its alignment: tensor cores are fed in pieces of
    /// sixteen bytes, which smaller alignments cannot be read in.
    #[expect(
        clippy::match_same_arms,
        reason = "a table: equal values are no relation"
    )]
    fn misalignment(&self) -> f64 {
        match (self.kind, self.alignment) {
            (_, ALIGNED..) => 1.0,
            (Kind::Fp16 | Kind::Bf16, 4..) => 3.5,
            (Kind::Fp16 | Kind::Bf16, _) => 6.0,
            (Kind::Tf32, _) => 3.2,
            (Kind::Fp8 | Kind::Int8, _) => 4.0,
            (Kind::Fp32, _) => 1.1,
            (Kind::Fp64, _) => 1.3,
            (Kind::Complex64 | Kind::Complex128, _) => 1.0,
        }
    }
}

// ---- on the clocks of streams ----

/// Puts work of this length on a stream of the calling thread's device.
pub fn spend(stream: u64, time: Duration) {
    if inner::is_inside() {
        return;
    }
    busy::add_copy(time);
    streams::spend(device::current(), stream, time);
}

/// Puts a copy on a stream.
pub fn copied(stream: u64, to: u64, from: u64, len: u64) {
    let devices = (driver::device_of(to), driver::device_of(from));
    let path = match devices {
        (Some(to), Some(from)) if to == from => Path::Within,
        (Some(_), Some(_)) => Path::Between,
        (None, _) if runtime::is_pinned(to) => Path::Pinned,
        (_, None) if runtime::is_pinned(from) => Path::Pinned,
        _ => Path::Pageable,
    };
    work::note(Work::Copy {
        path,
        bytes: len,
        beside: (stream != 0 && path == Path::Pinned).then_some(match devices.0 {
            None => Way::Out,
            Some(_) => Way::In,
        }),
    });
    spend(stream, machine().rates.copy(path, len));
}

/// Puts the filling of `len` bytes on a stream.
pub fn filled(stream: u64, len: u64) {
    work::note(Work::Moving {
        bytes: len,
        what: "fill",
    });
    spend(stream, machine().rates.moving(len as f64));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str) -> Rates {
        let config = Config::parse(text);
        let gpu = Properties::new(&config);
        Rates::new(&config, &gpu)
    }

    fn product(kind: Kind, m: u64, k: u64, n: u64, alignment: u64) -> Product {
        Product {
            m,
            n,
            k,
            batch: 1,
            kind,
            alignment,
        }
    }

    fn microseconds(kind: Kind, m: u64, k: u64, n: u64, alignment: u64) -> f64 {
        rates("")
            .product(&product(kind, m, k, n, alignment))
            .as_secs_f64()
            * 1e6
    }

    /// Products as an H200 ran them: `bench/gpu/results/h200_clock.json`.
    #[test]
    fn products_take_about_what_they_took_on_an_h200() {
        let measured = [
            (Kind::Bf16, 4096, 4096, 4096, 16, 175.3),
            (Kind::Bf16, 8192, 8192, 8192, 16, 1372.0),
            (Kind::Bf16, 1024, 1024, 1024, 16, 9.3),
            (Kind::Bf16, 8192, 768, 3072, 16, 58.7),
            (Kind::Bf16, 128, 16384, 128, 16, 10.4),
            (Kind::Bf16, 8192, 768, 50264, 16, 925.8),
            (Kind::Bf16, 8192, 768, 50258, 4, 2795.1),
            (Kind::Bf16, 8192, 768, 50257, 2, 5253.2),
            (Kind::Bf16, 8192, 50257, 768, 2, 4940.0),
            (Kind::Fp32, 4096, 4096, 4096, 16, 2713.9),
            (Kind::Fp32, 1, 4096, 4096, 16, 24.0),
            (Kind::Tf32, 4096, 4096, 4096, 16, 341.9),
            (Kind::Tf32, 4098, 4098, 4098, 8, 1194.0),
            (Kind::Fp64, 4096, 4096, 4096, 16, 2350.4),
            (Kind::Complex64, 4096, 4096, 4096, 16, 10238.7),
        ];
        for (kind, m, k, n, alignment, truth) in measured {
            let estimate = microseconds(kind, m, k, n, alignment);
            let ratio = estimate / truth;
            assert!(
                (0.65..1.5).contains(&ratio),
                "{kind:?} {m}x{k}x{n} aligned to {alignment}: {estimate:.1} us, on an H200 {truth} us"
            );
        }
    }

    #[test]
    fn alignment_decides_whether_a_tensor_core_is_fed() {
        let aligned = microseconds(Kind::Bf16, 8192, 768, 50264, 16);
        let odd = microseconds(Kind::Bf16, 8192, 768, 50257, 2);
        assert!(odd > 4.0 * aligned);
        let even = microseconds(Kind::Bf16, 8192, 768, 50258, 4);
        assert!(even > 2.0 * aligned && even < odd);
        let fp32 = microseconds(Kind::Fp32, 4097, 4097, 4097, 4);
        assert!(fp32 < 1.3 * microseconds(Kind::Fp32, 4096, 4096, 4096, 16));
        assert_eq!(alignment(50_257 * 2), 2);
        assert_eq!(alignment(50_264 * 2), 16);
        assert_eq!(alignment(0), 16);
    }

    #[test]
    fn an_older_gpu_computes_missing_types_as_wider_ones() {
        let turing = rates(
            "rate.fp32=8000000000000\nrate.tf32=0\nrate.bf16=0\nrate.fp16=65000000000000\ncompute_capability.major=7\ncompute_capability.minor=5",
        );
        let time = |kind| turing.product(&product(kind, 4096, 4096, 4096, 16));
        assert_eq!(time(Kind::Tf32), time(Kind::Fp32));
        assert!(time(Kind::Bf16) > time(Kind::Fp16).mul_f64(5.0));
        assert!(time(Kind::Fp64) > time(Kind::Fp32).mul_f64(20.0));
    }

    #[test]
    fn kernels_may_take_longer_than_estimated() {
        assert!((rates("clock.kernels_per_mille=2140").slower - 2.14).abs() < 1e-9);
        assert!((rates("").slower - 1.0).abs() < 1e-9);
    }

    #[test]
    fn empty_work_takes_a_launch() {
        let rates = rates("");
        assert_eq!(rates.product(&product(Kind::Bf16, 0, 4, 4, 16)), LAUNCH);
        assert_eq!(
            rates.product(&product(Kind::Bf16, 4, 0, 4, 16)).as_micros(),
            2
        );
        assert_eq!(rates.moving(0.0), LAUNCH);
        assert_eq!(rates.moving(f64::NAN), LAUNCH);
    }

    #[test]
    fn copies_follow_their_link() {
        let rates = rates("");
        let time = |path| rates.copy(path, 268_435_456).as_secs_f64() * 1e6;
        assert!((time(Path::Pinned) / 4843.0 - 1.0).abs() < 0.1);
        assert!((time(Path::Pageable) / 10_989.0 - 1.0).abs() < 0.1);
        assert!(time(Path::Within) < time(Path::Between));
        assert!(time(Path::Between) < time(Path::Pinned));
    }
}
