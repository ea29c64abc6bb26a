//! The catalogue of GPUs: as a table, one in detail, and as JSON.

use std::fmt::Write as _;

use oomph_bytes::{format_bytes, format_gib};
use oomph_gpus::{Figure, Gpu, SourceKind};
use serde::Serialize;

use crate::table::{Align, Table};
use crate::terminal::{self, BOLD, DIM};

/// Version of the JSON. Adding fields keeps it; changing their meaning does not.
pub const FORMAT: &str = "oomph.gpus/1";

/// All of `gpus` in a table of at most `width` columns.
pub fn gpu_table(gpus: &[&Gpu], note: Option<&str>, width: usize) -> String {
    let column = |cell: fn(&Gpu) -> String| gpus.iter().map(move |gpu| cell(gpu));
    let mut text = Table::default()
        .column("gpu", Align::Left, 0, column(|gpu| gpu.id.clone()))
        .column("memory", Align::Right, 0, column(memory))
        .column(
            "sold as",
            Align::Right,
            7,
            column(|gpu| format!("{} GB", gpu.memory.nominal_gib)),
        )
        .column(
            "sm",
            Align::Right,
            2,
            column(|gpu| gpu.sm_name().replace("sm_", "")),
        )
        .column("SMs", Align::Right, 4, column(|gpu| gpu.sms.to_string()))
        .column(
            "GB/s",
            Align::Right,
            1,
            column(|gpu| format!("{:.0}", gpu.bandwidth_bytes_per_s / 1e9)),
        )
        .column(
            "fp32",
            Align::Right,
            3,
            column(|gpu| tera(Some(gpu.rates.fp32))),
        )
        .column("tf32", Align::Right, 6, column(|gpu| tera(gpu.rates.tf32)))
        .column("fp16", Align::Right, 2, column(|gpu| tera(gpu.rates.fp16)))
        .column("fp8", Align::Right, 5, column(|gpu| tera(gpu.rates.fp8)))
        .column(
            "L2",
            Align::Right,
            8,
            column(|gpu| format!("{:.0} MiB", gpu.l2_bytes as f64 / f64::from(1 << 20))),
        )
        .column(
            "context",
            Align::Right,
            6,
            column(|gpu| {
                format!(
                    "{:.0} MiB",
                    gpu.context.total_bytes() as f64 / f64::from(1 << 20)
                )
            }),
        )
        .column("link", Align::Left, 9, column(link))
        .column(
            "$/h",
            Align::Right,
            5,
            column(|gpu| {
                gpu.cost
                    .usd_per_hour
                    .map_or_else(|| "-".to_owned(), |usd| format!("{usd:.2}"))
            }),
        )
        .column(
            "name of the driver",
            Align::Left,
            10,
            column(|gpu| gpu.name.clone()),
        )
        .render(width);
    let legend = "memory: what CUDA can use, ~ estimated; rates: dense, 10^12 per second, fp16 with fp32 accumulation; $/h: indicative. `oomph gpus NAME` gives the source of each figure.";
    text.push('\n');
    for line in wrap(legend, width) {
        let _ = writeln!(text, "{DIM}{line}{DIM:#}");
    }
    if let Some(note) = note {
        for line in wrap(&format!("note: {note}"), width) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

fn memory(gpu: &Gpu) -> String {
    let estimated = gpu
        .source(Figure::Memory)
        .is_none_or(|source| source.kind == SourceKind::Estimated);
    let mark = if estimated { "~" } else { "" };
    format!("{mark}{}", format_gib(gpu.memory.total_bytes))
}

fn tera(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate < 99.95e12 => format!("{:.1}", rate / 1e12),
        Some(rate) => format!("{:.0}", rate / 1e12),
    }
}

fn link(gpu: &Gpu) -> String {
    let mut text = if gpu.link.pcie_generation == 0 {
        "NVLink-C2C".to_owned()
    } else {
        format!(
            "PCIe {}.0 x{}",
            gpu.link.pcie_generation, gpu.link.pcie_lanes
        )
    };
    if let Some(rate) = gpu.link.nvlink_bytes_per_s {
        let _ = write!(text, ", NVLink {:.0} GB/s", rate / 1e9);
    }
    text
}

/// Columns of a figure's name.
const LABEL: usize = 12;

/// One GPU in detail, with the source of each figure.
pub fn gpu_details(gpu: &Gpu, width: usize) -> String {
    let limits = &gpu.limits;
    let kib = |bytes: u32| format!("{} KiB", bytes / 1024);
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    let price = match (gpu.cost.usd_per_hour, &gpu.cost.as_of, gpu.cost.launch_usd) {
        (Some(usd), as_of, _) => format!(
            "about ${usd:.2} an hour to rent ({}, indicative)",
            as_of.as_deref().unwrap_or("undated")
        ),
        (None, _, Some(usd)) => format!("${usd} at launch"),
        (None, _, None) => "unknown".to_owned(),
    };
    let rates = [
        ("fp32", Some(gpu.rates.fp32)),
        ("tf32", gpu.rates.tf32),
        ("fp16", gpu.rates.fp16),
        ("bf16", gpu.rates.bf16),
        ("fp8", gpu.rates.fp8),
        ("int8", gpu.rates.int8),
    ]
    .into_iter()
    .filter(|(_, rate)| rate.is_some())
    .map(|(name, rate)| format!("{name} {}", tera(rate)))
    .collect::<Vec<_>>()
    .join(", ");
    let smi = gpu.memory.smi_bytes.map_or_else(String::new, |smi| {
        format!(", nvidia-smi shows {}", mib(smi))
    });
    let rows: [(Figure, &str, String); 10] = [
        (
            Figure::Memory,
            "memory",
            format!(
                "{} ({} bytes) for CUDA{smi}; sold as {} GB{}",
                format_gib(gpu.memory.total_bytes),
                gpu.memory.total_bytes,
                gpu.memory.nominal_gib,
                if gpu.memory.ecc { ", ECC" } else { "" }
            ),
        ),
        (
            Figure::Sms,
            "processors",
            format!(
                "{} SMs of {} FP32 lanes, compute capability {}.{}",
                gpu.sms, limits.cores_per_sm, gpu.compute_capability.0, gpu.compute_capability.1
            ),
        ),
        (
            Figure::Limits,
            "limits",
            format!(
                "shared memory {} per block ({} opted in), {} per SM; {} registers, {} threads, {} blocks per SM",
                kib(limits.shared_per_block),
                kib(limits.shared_per_block_optin),
                kib(limits.shared_per_sm),
                limits.registers_per_sm,
                limits.threads_per_sm,
                limits.blocks_per_sm
            ),
        ),
        (Figure::L2, "L2 cache", format_bytes(gpu.l2_bytes)),
        (
            Figure::Clocks,
            "clocks",
            format!(
                "{} MHz, boost {}, driver {}; memory {} MHz x {} bits",
                gpu.clocks.base_mhz,
                gpu.clocks.boost_mhz,
                gpu.clocks.driver_mhz,
                gpu.clocks.memory_mhz,
                gpu.clocks.bus_bits
            ),
        ),
        (
            Figure::Bandwidth,
            "bandwidth",
            format!("{:.0} GB/s", gpu.bandwidth_bytes_per_s / 1e9),
        ),
        (
            Figure::Rates,
            "rates",
            format!("{rates} (10^12 per second, dense)"),
        ),
        (
            Figure::Link,
            "link",
            format!(
                "{}; {:.1} GB/s to the host, one direction",
                link(gpu),
                gpu.link.host_bytes_per_s / 1e9
            ),
        ),
        (
            Figure::Context,
            "context",
            format!(
                "{} to start, {} with the first kernel, matrix product and convolution",
                mib(gpu.context.base_bytes),
                mib(gpu.context.total_bytes())
            ),
        ),
        (Figure::Cost, "price", price),
    ];
    let mut text = format!(
        "{BOLD}{}{BOLD:#}  {}, {}{}\n{DIM}--gpu {}{DIM:#}\n\n",
        gpu.name,
        gpu.architecture,
        gpu.class.as_str(),
        if gpu.laptop { ", laptop" } else { "" },
        gpu.id
    );
    for (figure, label, value) in rows {
        let value = terminal::wrap(&value, width.saturating_sub(LABEL), LABEL);
        let _ = writeln!(text, "{label:<LABEL$}{value}");
        if let Some(source) = gpu.source(figure) {
            let words = format!("{}: {}", source.kind, source.note);
            let words = terminal::wrap(&words, width.saturating_sub(LABEL), LABEL);
            let _ = writeln!(text, "{:<LABEL$}{DIM}{words}{DIM:#}", "");
        }
    }
    let usable = format!(
        "usable by PyTorch in a job with matrix products and convolutions: {}",
        format_gib(gpu.usable_bytes())
    );
    let _ = writeln!(text, "\n{}", terminal::wrap(&usable, width, 0));
    text
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// GPUs as JSON.
#[derive(Serialize, schemars::JsonSchema)]
pub struct GpuList<'a> {
    format: &'static str,
    version: &'static str,
    gpus: Vec<Entry<'a>>,
}

impl<'a> GpuList<'a> {
    /// The list of `gpus`.
    pub fn new(gpus: &[&'a Gpu]) -> Self {
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION"),
            gpus: gpus.iter().map(|gpu| Entry::new(gpu)).collect(),
        }
    }
}

/// One GPU as JSON: bytes, bytes per second and operations per second as integers.
#[derive(Serialize, schemars::JsonSchema)]
struct Entry<'a> {
    id: &'a str,
    name: &'a str,
    aliases: &'a [String],
    architecture: &'a str,
    class: &'static str,
    laptop: bool,
    compute_capability: String,
    sms: u32,
    memory_bytes: u64,
    memory_nvidia_smi_bytes: Option<u64>,
    memory_nominal_gib: u32,
    usable_bytes: u64,
    ecc: bool,
    shared_memory_per_block_bytes: u32,
    shared_memory_per_block_optin_bytes: u32,
    shared_memory_per_sm_bytes: u32,
    shared_memory_reserved_per_block_bytes: u32,
    registers_per_block: u32,
    registers_per_sm: u32,
    threads_per_block: u32,
    threads_per_sm: u32,
    blocks_per_sm: u32,
    l2_bytes: u64,
    base_mhz: u32,
    boost_mhz: u32,
    driver_mhz: u32,
    memory_mhz: u32,
    memory_bus_bits: u32,
    bandwidth_bytes_per_s: u64,
    rates_per_s: RateEntry,
    pcie_generation: u32,
    pcie_lanes: u32,
    host_link_bytes_per_s: u64,
    nvlink_bytes_per_s: Option<u64>,
    context_bytes: ContextEntry,
    usd_per_hour: Option<f64>,
    usd_per_hour_as_of: Option<&'a str>,
    launch_usd: Option<u32>,
    sources: std::collections::BTreeMap<&'static str, SourceEntry<'a>>,
}

#[derive(Serialize, schemars::JsonSchema)]
struct RateEntry {
    fp32: u64,
    tf32: Option<u64>,
    fp16: Option<u64>,
    bf16: Option<u64>,
    fp8: Option<u64>,
    int8: Option<u64>,
}

#[derive(Serialize, schemars::JsonSchema)]
struct ContextEntry {
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

#[derive(Serialize, schemars::JsonSchema)]
struct SourceEntry<'a> {
    kind: &'static str,
    note: &'a str,
}

impl<'a> Entry<'a> {
    fn new(gpu: &'a Gpu) -> Self {
        let whole = |value: f64| value.round() as u64;
        Self {
            id: &gpu.id,
            name: &gpu.name,
            aliases: &gpu.aliases,
            architecture: &gpu.architecture,
            class: gpu.class.as_str(),
            laptop: gpu.laptop,
            compute_capability: format!(
                "{}.{}",
                gpu.compute_capability.0, gpu.compute_capability.1
            ),
            sms: gpu.sms,
            memory_bytes: gpu.memory.total_bytes,
            memory_nvidia_smi_bytes: gpu.memory.smi_bytes,
            memory_nominal_gib: gpu.memory.nominal_gib,
            usable_bytes: gpu.usable_bytes(),
            ecc: gpu.memory.ecc,
            shared_memory_per_block_bytes: gpu.limits.shared_per_block,
            shared_memory_per_block_optin_bytes: gpu.limits.shared_per_block_optin,
            shared_memory_per_sm_bytes: gpu.limits.shared_per_sm,
            shared_memory_reserved_per_block_bytes: gpu.limits.shared_reserved_per_block,
            registers_per_block: gpu.limits.registers_per_block,
            registers_per_sm: gpu.limits.registers_per_sm,
            threads_per_block: gpu.limits.threads_per_block,
            threads_per_sm: gpu.limits.threads_per_sm,
            blocks_per_sm: gpu.limits.blocks_per_sm,
            l2_bytes: gpu.l2_bytes,
            base_mhz: gpu.clocks.base_mhz,
            boost_mhz: gpu.clocks.boost_mhz,
            driver_mhz: gpu.clocks.driver_mhz,
            memory_mhz: gpu.clocks.memory_mhz,
            memory_bus_bits: gpu.clocks.bus_bits,
            bandwidth_bytes_per_s: whole(gpu.bandwidth_bytes_per_s),
            rates_per_s: RateEntry {
                fp32: whole(gpu.rates.fp32),
                tf32: gpu.rates.tf32.map(whole),
                fp16: gpu.rates.fp16.map(whole),
                bf16: gpu.rates.bf16.map(whole),
                fp8: gpu.rates.fp8.map(whole),
                int8: gpu.rates.int8.map(whole),
            },
            pcie_generation: gpu.link.pcie_generation,
            pcie_lanes: gpu.link.pcie_lanes,
            host_link_bytes_per_s: whole(gpu.link.host_bytes_per_s),
            nvlink_bytes_per_s: gpu.link.nvlink_bytes_per_s.map(whole),
            context_bytes: ContextEntry {
                base: gpu.context.base_bytes,
                first_kernel: gpu.context.first_kernel_bytes,
                cublas_handle: gpu.context.cublas_handle_bytes,
                first_matmul: gpu.context.first_matmul_bytes,
                cudnn_handle: gpu.context.cudnn_handle_bytes,
                first_fft: gpu.context.first_fft_bytes,
                stream: gpu.context.stream_bytes,
                cusolver_handle: gpu.context.cusolver_handle_bytes,
                cusparse_handle: gpu.context.cusparse_handle_bytes,
                nccl_communicator: gpu.context.nccl_communicator_bytes,
            },
            usd_per_hour: gpu.cost.usd_per_hour,
            usd_per_hour_as_of: gpu.cost.as_of.as_deref(),
            launch_usd: gpu.cost.launch_usd,
            sources: gpu
                .sources
                .iter()
                .map(|(figure, source)| {
                    (
                        figure.as_str(),
                        SourceEntry {
                            kind: source.kind.as_str(),
                            note: &source.note,
                        },
                    )
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use oomph_gpus::select;

    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn tables_at_several_widths() {
        let gpus = select("hopper").expect("hopper").gpus;
        for width in [60, 80, 100, 140, 200] {
            let text = plain(&gpu_table(&gpus, None, width));
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
            insta::assert_snapshot!(format!("hopper_{width}"), text);
        }
    }

    #[test]
    fn the_whole_table_fits_at_any_width() {
        let gpus = select("").expect("all").gpus;
        for width in 60..=200 {
            for line in plain(&gpu_table(&gpus, None, width)).lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn one_gpu_in_detail() {
        let gpus = select("h200").expect("h200").gpus;
        insta::assert_snapshot!(plain(&gpu_details(gpus[0], 100)));
    }

    #[test]
    fn json_names_its_format() {
        let gpus = select("").expect("all").gpus;
        let value = serde_json::to_value(GpuList::new(&gpus)).expect("JSON");
        assert_eq!(value["format"], "oomph.gpus/1");
        assert_eq!(value["gpus"].as_array().map(Vec::len), Some(gpus.len()));
        let h200 = value["gpus"]
            .as_array()
            .and_then(|gpus| gpus.iter().find(|gpu| gpu["id"] == "h200"))
            .expect("h200");
        assert_eq!(h200["memory_bytes"], 150_109_880_320_u64);
        assert_eq!(h200["sources"]["memory"]["kind"], "measured");
    }
}
