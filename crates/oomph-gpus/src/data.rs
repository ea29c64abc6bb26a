//! From the data files to [`Gpu`]s. The file format is private to this module and described in
//! `docs/gpus.md`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

use crate::gpu::{
    Class, Clocks, Context, Cost, Figure, Gpu, Limits, Link, Memory, Rates, Source, SourceKind,
};

const MIB: u64 = 1 << 20;

/// The data files, oldest architecture first, newest compute capability last.
const FILES: &[(&str, &str)] = &[
    ("pascal-sm60.toml", include_str!("../data/pascal-sm60.toml")),
    ("pascal-sm61.toml", include_str!("../data/pascal-sm61.toml")),
    ("volta-sm70.toml", include_str!("../data/volta-sm70.toml")),
    ("turing-sm75.toml", include_str!("../data/turing-sm75.toml")),
    ("ampere-sm80.toml", include_str!("../data/ampere-sm80.toml")),
    ("ampere-sm86.toml", include_str!("../data/ampere-sm86.toml")),
    ("ada-sm89.toml", include_str!("../data/ada-sm89.toml")),
    ("hopper-sm90.toml", include_str!("../data/hopper-sm90.toml")),
    (
        "blackwell-sm100.toml",
        include_str!("../data/blackwell-sm100.toml"),
    ),
    (
        "blackwell-sm120.toml",
        include_str!("../data/blackwell-sm120.toml"),
    ),
];

/// Every known GPU, by architecture and then in the order of its file.
///
/// # Panics
///
/// If the embedded data does not hold together, which is a broken build.
#[expect(
    clippy::panic,
    reason = "the data is part of the binary and a test parses it: a failure is a broken build, not bad input"
)]
pub fn catalogue() -> &'static [Gpu] {
    static CATALOGUE: OnceLock<Vec<Gpu>> = OnceLock::new();
    CATALOGUE.get_or_init(|| {
        let mut gpus = Vec::new();
        for (file, text) in FILES {
            match parse_data_file(file, text) {
                Ok(more) => gpus.extend(more),
                Err(error) => panic!("{error}"),
            }
        }
        gpus
    })
}

/// A data file that does not hold together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// Not TOML, or not of the file's form.
    #[error("{file}: {source}")]
    Syntax {
        /// The data file.
        file: String,
        /// What the TOML reader found.
        source: Box<toml::de::Error>,
    },
    /// A value that cannot be.
    #[error("{file}: {gpu}: {problem}")]
    Value {
        /// The data file.
        file: String,
        /// The entry.
        gpu: String,
        /// What was expected and found.
        problem: String,
    },
}

/// Parses the text of one data file. `file` is used in messages only.
pub fn parse_data_file(file: &str, text: &str) -> Result<Vec<Gpu>, CatalogueError> {
    let raw: RawFile = toml::from_str(text).map_err(|error| CatalogueError::Syntax {
        file: file.to_owned(),
        source: Box::new(error),
    })?;
    raw.gpu
        .iter()
        .map(|gpu| {
            build(&raw.architecture, gpu).map_err(|problem| CatalogueError::Value {
                file: file.to_owned(),
                gpu: gpu.id.clone(),
                problem,
            })
        })
        .collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    architecture: RawArchitecture,
    gpu: Vec<RawGpu>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawArchitecture {
    name: String,
    compute_capability: [u32; 2],
    shared_per_block: u32,
    shared_per_block_optin: u32,
    shared_per_sm: u32,
    shared_reserved_per_block: u32,
    registers_per_block: u32,
    registers_per_sm: u32,
    threads_per_block: u32,
    threads_per_sm: u32,
    blocks_per_sm: u32,
    cores_per_sm: u32,
    copy_engines: u32,
    /// Operations per multiprocessor and cycle.
    ops_per_sm_cycle: RawOps,
    /// The same for GeForce parts, where they differ.
    ops_per_sm_cycle_geforce: Option<RawOps>,
    sources: BTreeMap<Figure, String>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(deny_unknown_fields)]
struct RawOps {
    fp32: u32,
    tf32: Option<u32>,
    fp16: Option<u32>,
    bf16: Option<u32>,
    fp8: Option<u32>,
    int8: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGpu {
    id: String,
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    class: Class,
    #[serde(default)]
    laptop: bool,
    sms: u32,
    memory_gib: u32,
    memory_bytes: u64,
    smi_mib: Option<u64>,
    #[serde(default)]
    ecc: bool,
    l2_bytes: u64,
    base_mhz: u32,
    boost_mhz: u32,
    driver_mhz: Option<u32>,
    held_mhz: Option<u32>,
    memory_mhz: u32,
    bus_bits: u32,
    bandwidth_gbs: Option<f64>,
    /// Runs tensor cores at the GeForce rate although it is none, or the other way round.
    geforce_rates: Option<bool>,
    /// Dense rates in units of 10^12 per second, where the datasheet's differ from the rule.
    rates: Option<RawRates>,
    /// `4x16`, or `c2c` for NVLink-C2C to a Grace CPU.
    host_link: String,
    /// Both directions together, as datasheets give it.
    nvlink_gbs: Option<f64>,
    context_bytes: Option<RawContext>,
    usd_per_hour: Option<f64>,
    as_of: Option<String>,
    launch_usd: Option<u32>,
    #[serde(default)]
    sources: BTreeMap<Figure, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRates {
    fp32: f64,
    tf32: Option<f64>,
    fp16: Option<f64>,
    bf16: Option<f64>,
    fp8: Option<f64>,
    int8: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawContext {
    base: u64,
    first_kernel: u64,
    cublas_handle: u64,
    first_matmul: u64,
    cudnn_handle: u64,
    first_fft: u64,
    stream: u64,
    cusolver_handle: u64,
    cusparse_handle: u64,
    nccl_communicator: u64,
}

fn build(architecture: &RawArchitecture, raw: &RawGpu) -> Result<Gpu, String> {
    let limits = Limits {
        shared_per_block: architecture.shared_per_block,
        shared_per_block_optin: architecture.shared_per_block_optin,
        shared_per_sm: architecture.shared_per_sm,
        shared_reserved_per_block: architecture.shared_reserved_per_block,
        registers_per_block: architecture.registers_per_block,
        registers_per_sm: architecture.registers_per_sm,
        threads_per_block: architecture.threads_per_block,
        threads_per_sm: architecture.threads_per_sm,
        blocks_per_sm: architecture.blocks_per_sm,
        warp_size: 32,
        block_dim: [1024, 1024, 64],
        grid_dim: [2_147_483_647, 65_535, 65_535],
        cores_per_sm: architecture.cores_per_sm,
        copy_engines: architecture.copy_engines,
    };
    Ok(Gpu {
        id: raw.id.clone(),
        name: raw.name.clone(),
        aliases: raw.aliases.clone(),
        architecture: architecture.name.clone(),
        class: raw.class,
        laptop: raw.laptop,
        compute_capability: architecture.compute_capability.into(),
        sms: raw.sms,
        memory: Memory {
            total_bytes: raw.memory_bytes,
            smi_bytes: raw.smi_mib.map(|mib| mib * MIB),
            nominal_gib: raw.memory_gib,
            ecc: raw.ecc,
        },
        limits,
        l2_bytes: raw.l2_bytes,
        clocks: Clocks {
            base_mhz: raw.base_mhz,
            boost_mhz: raw.boost_mhz,
            driver_mhz: raw.driver_mhz.unwrap_or(raw.boost_mhz),
            held_mhz: raw.held_mhz.unwrap_or(raw.boost_mhz),
            memory_mhz: raw.memory_mhz,
            bus_bits: raw.bus_bits,
        },
        bandwidth_bytes_per_s: raw.bandwidth_gbs.map_or_else(
            // Double data rate: two transfers per reported cycle.
            || 2.0 * f64::from(raw.memory_mhz) * 1e6 * f64::from(raw.bus_bits) / 8.0,
            |gbs| gbs * 1e9,
        ),
        rates: rates(architecture, raw),
        link: link(raw)?,
        context: context(raw, &limits),
        cost: Cost {
            usd_per_hour: raw.usd_per_hour,
            launch_usd: raw.launch_usd,
            as_of: raw.as_of.clone(),
        },
        sources: sources(architecture, raw)?,
    })
}

fn rates(architecture: &RawArchitecture, raw: &RawGpu) -> Rates {
    if let Some(given) = &raw.rates {
        let tera = |rate: Option<f64>| rate.map(|rate| rate * 1e12);
        return Rates {
            fp32: given.fp32 * 1e12,
            tf32: tera(given.tf32),
            fp16: tera(given.fp16),
            bf16: tera(given.bf16),
            fp8: tera(given.fp8),
            int8: tera(given.int8),
        };
    }
    let geforce = raw.geforce_rates.unwrap_or(raw.class == Class::Geforce);
    let ops = match architecture.ops_per_sm_cycle_geforce {
        Some(ops) if geforce => ops,
        _ => architecture.ops_per_sm_cycle,
    };
    let cycles = f64::from(raw.sms) * f64::from(raw.boost_mhz) * 1e6;
    let rate = |ops: u32| f64::from(ops) * cycles;
    Rates {
        fp32: rate(ops.fp32),
        tf32: ops.tf32.map(rate),
        fp16: ops.fp16.map(rate),
        bf16: ops.bf16.map(rate),
        fp8: ops.fp8.map(rate),
        int8: ops.int8.map(rate),
    }
}

fn link(raw: &RawGpu) -> Result<Link, String> {
    let (pcie_generation, pcie_lanes, host_bytes_per_s) = if raw.host_link == "c2c" {
        // NVLink-C2C between Grace and its GPU: 900 GB/s both ways.
        (0, 0, 450e9)
    } else {
        let parsed = raw
            .host_link
            .split_once('x')
            .and_then(|(generation, lanes)| {
                Some((generation.parse::<u32>().ok()?, lanes.parse::<u32>().ok()?))
            });
        let Some((generation, lanes)) = parsed else {
            return Err(format!(
                "host_link is `{}`; expected generation and lanes such as `4x16`, or `c2c`",
                raw.host_link
            ));
        };
        // Bytes per second and lane after 128b/130b coding.
        let per_lane = match generation {
            3 => 0.985e9,
            4 => 1.969e9,
            5 => 3.938e9,
            6 => 7.877e9,
            _ => {
                return Err(format!(
                    "host_link has PCI Express generation {generation}; expected 3 to 6"
                ));
            }
        };
        (generation, lanes, per_lane * f64::from(lanes))
    };
    Ok(Link {
        pcie_generation,
        pcie_lanes,
        host_bytes_per_s,
        nvlink_bytes_per_s: raw.nvlink_gbs.map(|gbs| gbs * 1e9 / 2.0),
    })
}

/// What the H200 measured (its entry says the same; a test compares), and the threads that it can
/// hold at once.
const MEASURED_CONTEXT: RawContext = RawContext {
    base: 552_402_944,
    first_kernel: 96_468_992,
    cublas_handle: 67_108_864,
    first_matmul: 2_097_152,
    cudnn_handle: 10_485_760,
    first_fft: 8_388_608,
    stream: 573_440,
    cusolver_handle: 100_663_296,
    cusparse_handle: 0,
    nccl_communicator: 807_403_520,
};
const MEASURED_THREADS: u64 = 132 * 2048;

/// The context by measurement, or by the rule in `docs/gpus.md`: the H200's in proportion to the
/// resident threads, by which the driver sizes what it allocates per multiprocessor. NCCL's
/// buffers go by channels and ranks and are taken as they are.
fn context(raw: &RawGpu, limits: &Limits) -> Context {
    /// Allocations of the driver come in pieces of this size.
    const PIECE: u64 = 64 << 10;
    let threads = u64::from(raw.sms) * u64::from(limits.threads_per_sm);
    let (measured, part, whole) = match &raw.context_bytes {
        Some(measured) => (measured, 1, 1),
        None => (&MEASURED_CONTEXT, threads, MEASURED_THREADS),
    };
    let scaled = |bytes: u64| {
        if part == whole {
            bytes
        } else {
            (bytes * part / whole).next_multiple_of(PIECE)
        }
    };
    Context {
        base_bytes: scaled(measured.base),
        first_kernel_bytes: scaled(measured.first_kernel),
        cublas_handle_bytes: scaled(measured.cublas_handle),
        first_matmul_bytes: scaled(measured.first_matmul),
        cudnn_handle_bytes: scaled(measured.cudnn_handle),
        first_fft_bytes: scaled(measured.first_fft),
        stream_bytes: scaled(measured.stream),
        cusolver_handle_bytes: scaled(measured.cusolver_handle),
        cusparse_handle_bytes: scaled(measured.cusparse_handle),
        nccl_communicator_bytes: measured.nccl_communicator,
    }
}

fn sources(
    architecture: &RawArchitecture,
    raw: &RawGpu,
) -> Result<BTreeMap<Figure, Source>, String> {
    let mut sources = BTreeMap::new();
    for figure in Figure::ALL {
        let text = raw
            .sources
            .get(&figure)
            .or_else(|| architecture.sources.get(&figure))
            .ok_or_else(|| format!("no source for `{figure}` here or in [architecture.sources]"))?;
        sources.insert(figure, source(text)?);
    }
    Ok(sources)
}

/// Reads `kind: note`.
fn source(text: &str) -> Result<Source, String> {
    let (kind, note) = text
        .split_once(": ")
        .ok_or_else(|| format!("source `{text}` is not of the form `kind: note`"))?;
    let kind = match kind {
        "measured" => SourceKind::Measured,
        "reported" => SourceKind::Reported,
        "published" => SourceKind::Published,
        "estimated" => SourceKind::Estimated,
        _ => {
            return Err(format!(
                "source kind `{kind}`; expected measured, reported, published or estimated"
            ));
        }
    };
    Ok(Source {
        kind,
        note: note.to_owned(),
    })
}
