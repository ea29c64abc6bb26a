//! Several GPUs: ways to share a job among them, and what their talking costs.
//!
//! Volumes are those of ring collectives: gathering S bytes that n GPUs hold in parts moves
//! S·(n−1)/n through each GPU's link, and so does reducing gradients into parts; averaging them
//! everywhere does both. They run beside the computation: what is longer than the pass that hides it
//! is waited for, and so are the first block and the last.

use std::fmt::Write as _;

use oomph_gpus::Gpu;
use oomph_trace::Phase;

use crate::lever::Dtype;
use crate::levers::Lever;
use crate::model::Model;
use crate::units;

pub use crate::levers::{data_parallel, on_the_cpu, ways, with_unused};

/// GPUs of a host, where nobody says.
pub const USUAL_HOST: u32 = 8;

/// The links between GPUs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fabric {
    /// Bytes a second that a GPU sends to others of its host, while it receives as many.
    pub host_bytes_per_s: f64,
    /// The same to GPUs of other hosts.
    pub network_bytes_per_s: f64,
    /// GPUs of a host.
    pub per_host: u32,
    /// Nanoseconds that a collective takes however small it is.
    pub latency_ns: f64,
}

impl Fabric {
    /// The part of a link's published rate that long gatherings reach: 268 of 450 GB/s between two
    /// H200s (`bench/gpu/results/h200_x2_fit_sharded.jsonl`).
    const REACHED: f64 = 0.6;
    /// Of PCI Express, which GPUs of a host share with each other through its root: half.
    const SHARED: f64 = 0.5;
    /// A 400 Gbit/s port a GPU where GPUs are joined by NVLink, as their makers' servers have; else
    /// one of 100 Gbit/s a host.
    const PORT: f64 = 50e9;
    const HOST_PORT: f64 = 12.5e9;
    /// Of one MiB there.
    const LATENCY_NS: f64 = 26_000.0;

    /// The links of `gpu`, so many of which are in a host.
    pub fn new(gpu: &Gpu, per_host: u32) -> Self {
        let per_host = per_host.max(1);
        let (host, network) = match gpu.link.nvlink_bytes_per_s {
            Some(nvlink) => (nvlink * Self::REACHED, Self::PORT * Self::REACHED),
            None => (
                gpu.link.host_bytes_per_s * Self::REACHED * Self::SHARED,
                Self::HOST_PORT * Self::REACHED / f64::from(per_host),
            ),
        };
        Self {
            host_bytes_per_s: host.max(1e9),
            network_bytes_per_s: network.max(1e8),
            per_host,
            latency_ns: Self::LATENCY_NS,
        }
    }

    /// What the figures rest on.
    pub fn assumption(&self, gpu: &Gpu, gpus: u32) -> String {
        let link = if gpu.link.nvlink_bytes_per_s.is_some() {
            "NVLink"
        } else {
            "PCI Express"
        };
        let mut text = format!(
            "time of collectives: {:.0} GB/s a GPU over {link}",
            self.host_bytes_per_s / 1e9
        );
        if gpus > self.per_host {
            let _ = write!(
                text,
                ", {:.1} GB/s a GPU between hosts of {} GPUs",
                self.network_bytes_per_s / 1e9,
                self.per_host
            );
        }
        text
    }

    /// Nanoseconds to gather `bytes` on each of `gpus`, or to reduce them into parts; `neighbours`
    /// says whether those GPUs lie in one host as far as they can.
    pub(crate) fn gather(&self, bytes: f64, gpus: u32, neighbours: bool) -> f64 {
        if gpus < 2 {
            return 0.0;
        }
        let n = f64::from(gpus);
        let inside = neighbours && gpus <= self.per_host;
        let rate = if inside {
            self.host_bytes_per_s
        } else {
            self.network_bytes_per_s
        };
        bytes * (n - 1.0) / n / rate * 1e9
    }
}

/// What a job's ranks send each other in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Volume {
    /// Bytes of parameters as they are stored, all of them together.
    pub parameters: f64,
    /// Bytes of gradients.
    pub gradients: f64,
    /// Blocks that are gathered one at a time.
    pub blocks: f64,
}

impl Volume {
    /// Of a job as it ran on one GPU.
    pub fn new(model: &Model) -> Self {
        let sum = |category| {
            model
                .template
                .tensors
                .iter()
                .filter(|tensor| tensor.category == category)
                .map(|tensor| tensor.bytes as f64)
                .sum::<f64>()
        };
        let parameters: f64 = model.parameter_sizes.values().flatten().sum::<u64>() as f64;
        // A gradient that lives from one step to the next is there once; one a step otherwise.
        let gradients = sum(oomph_trace::Category::Gradient).min(parameters);
        Self {
            parameters,
            gradients,
            blocks: units::repeated(model).len() as f64,
        }
    }
}

/// How a job is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    /// Among how many GPUs.
    pub gpus: u32,
    /// How many of them hold the model together.
    pub shards: u32,
    /// What parameters are gathered and computed in, if not as they are.
    pub dtype: Option<Dtype>,
}

impl Sharing {
    /// How `levers` share a job, if they do.
    pub fn of(levers: &[Lever]) -> Option<Self> {
        levers.iter().find_map(Lever::sharing)
    }

    /// Whether each GPU holds the whole model.
    pub const fn is_whole(self) -> bool {
        self.shards == 1
    }
}

/// How many GPUs `levers` share a job among, if they do: one is none of several.
pub fn gpus(levers: &[Lever]) -> Option<u32> {
    Sharing::of(levers)
        .map(|sharing| sharing.gpus)
        .filter(|gpus| *gpus > 1)
}

/// What the passes of a job take, in nanoseconds of the GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Passes {
    /// The forward passes of a step.
    pub forward: f64,
    /// The backward passes.
    pub backward: f64,
}

impl Passes {
    /// Of a job.
    pub fn new(model: &Model) -> Self {
        let mut found = Self::default();
        for work in &model.work {
            match work.phase {
                Phase::Forward => found.forward += work.busy,
                Phase::Backward => found.backward += work.busy,
                _ => {}
            }
        }
        found
    }
}

/// Whether another lever goes together with how `applied` share the job.
pub fn composes(applied: &[Lever], lever: &Lever) -> bool {
    Sharing::of(applied).is_none_or(|sharing| lever.facets().goes_with_sharing(sharing))
}
