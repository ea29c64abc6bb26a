//! Several GPUs: ways to share a job among them, and what their talking costs.
//!
//! Volumes are those of ring collectives: gathering S bytes that n GPUs hold in parts moves
//! S·(n−1)/n through each GPU's link, and so does reducing gradients into parts; averaging them
//! everywhere does both. They run beside the computation: what is longer than the pass that hides it
//! is waited for, and so are the first block and the last.

use std::fmt::Write as _;

use oomph_gpus::Gpu;
use oomph_trace::Phase;

use crate::lever::{Dtype, Lever};
use crate::model::Model;
use crate::units;

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
    fn gather(&self, bytes: f64, gpus: u32, neighbours: bool) -> f64 {
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

/// Nanoseconds that a step waits for the other GPUs: `forward` and `backward` are what its passes
/// take meanwhile, of all `parts` micro-batches together.
pub fn waits(
    lever: &Lever,
    fabric: &Fabric,
    volume: &Volume,
    forward: f64,
    backward: f64,
    parts: f64,
) -> f64 {
    let Lever::Shard {
        gpus,
        shards,
        reshard,
        dtype,
        modules,
        ..
    } = lever
    else {
        return 0.0;
    };
    let blocks = if modules.is_empty() {
        1.0
    } else {
        modules.len() as f64 + 1.0
    };
    let narrow = if dtype.is_some() { 0.5 } else { 1.0 };
    let one = 1.0 / blocks;
    if *shards == 1 {
        // Buckets of 25 MB are averaged while the pass goes on; the last one is waited for.
        const BUCKET: f64 = 25e6;
        // One averaging is quicker than a reduction and a gathering: 326 GB/s there.
        const AT_ONCE: f64 = 268.0 / 326.0;
        let average = |bytes| 2.0 * AT_ONCE * fabric.gather(bytes, *gpus, *gpus <= fabric.per_host);
        let buckets = (volume.gradients / BUCKET).ceil().max(1.0);
        let all = average(volume.gradients) * parts + fabric.latency_ns * buckets * parts;
        let last = average(volume.gradients.min(BUCKET)) + fabric.latency_ns;
        return (all - backward).max(0.0).max(last);
    }
    let gather = fabric.gather(volume.parameters * narrow, *shards, true) * parts
        + fabric.latency_ns * blocks * parts;
    // Reduced in 32 bits.
    let mut reduce =
        fabric.gather(volume.gradients, *shards, true) * parts + fabric.latency_ns * blocks * parts;
    let replicas = gpus / shards;
    if replicas > 1 {
        let own = volume.gradients / f64::from(*shards);
        let neighbours = *gpus <= fabric.per_host;
        reduce += 2.0 * fabric.gather(own, replicas, neighbours) * parts
            + fabric.latency_ns * blocks * parts;
    }
    let again = if *reshard { gather } else { 0.0 };
    let first = gather * one / parts.max(1.0);
    let last = reduce * one / parts.max(1.0);
    first + last + (gather - first - forward).max(0.0) + (again + reduce - last - backward).max(0.0)
}

/// How many GPUs `levers` share a job among, if they do: one is none of several.
pub fn gpus(levers: &[Lever]) -> Option<u32> {
    levers.iter().find_map(|lever| match lever {
        Lever::Shard { gpus, .. } if *gpus > 1 => Some(*gpus),
        _ => None,
    })
}

/// What a lever is known by where runs of it teach of others: ways to share a job are unlike.
pub(crate) fn kind(lever: &Lever) -> &'static str {
    match lever {
        Lever::Shard { shards: 1, .. } => "replicas",
        Lever::Shard { offload: true, .. } => "shards on the CPU",
        Lever::Shard { reshard: false, .. } => "shards kept gathered",
        Lever::Shard { gpus, shards, .. } if gpus > shards => "shards and replicas",
        Lever::Shard { dtype: Some(_), .. } => "narrow shards",
        Lever::Shard { .. } => "shards",
        other => other.name(),
    }
}

/// What the passes of a job take, in nanoseconds of the GPU: forward, backward.
pub fn passes(model: &Model) -> (f64, f64) {
    let mut found = (0.0, 0.0);
    for work in &model.work {
        match work.phase {
            Phase::Forward => found.0 += work.busy,
            Phase::Backward => found.1 += work.busy,
            _ => {}
        }
    }
    found
}

/// Whether another lever goes together with sharding: what was seen to, not what might.
pub fn composes(applied: &[Lever], lever: &Lever) -> bool {
    let Some(Lever::Shard { shards, dtype, .. }) =
        applied.iter().find(|other| other.name() == "shard")
    else {
        return true;
    };
    match lever {
        // They read or replace gradients, parameters or state before ranks have averaged them, or know
        // of plain tensors only.
        Lever::StepInBackward {} | Lever::Compile {} | Lever::Shard { .. } => false,
        Lever::Optimizer8bit {} | Lever::OptimizerOnCpu {} | Lever::OffloadActivations { .. } => {
            *shards == 1
        }
        // Gathered weights would be kept a second time, cast, until the pass ends.
        Lever::MixedPrecision { dtype: kind } => {
            *shards == 1 && dtype.is_none() && *kind == Dtype::Bf16
        }
        _ => true,
    }
}

/// Every GPU holds the whole model.
pub const fn data_parallel(gpus: u32) -> Lever {
    Lever::Shard {
        gpus,
        shards: 1,
        modules: Vec::new(),
        reshard: true,
        dtype: None,
        offload: false,
        unused: false,
    }
}

/// Ways to share a job with `model` among `gpus`, those that wait least first. `dtype` is what
/// parameters may be gathered in.
pub fn ways(model: &Model, gpus: u32, per_host: u32, dtype: Option<Dtype>) -> Vec<Lever> {
    let modules = units::repeated(model);
    let shard = |shards: u32, reshard: bool, dtype: Option<Dtype>| Lever::Shard {
        gpus,
        shards,
        modules: modules.clone(),
        reshard,
        dtype,
        offload: false,
        unused: false,
    };
    let mut found = vec![data_parallel(gpus)];
    let mut dtypes = vec![None];
    dtypes.extend(dtype.map(Some));
    for dtype in dtypes {
        // Within a host first; then over all, which needs the least memory.
        if gpus > per_host && gpus.is_multiple_of(per_host) {
            found.push(shard(per_host, true, dtype));
        } else if gpus >= 4 && gpus.is_multiple_of(2) {
            found.push(shard(gpus / 2, true, dtype));
        }
        if !modules.is_empty() {
            found.push(shard(gpus, false, dtype));
        }
        found.push(shard(gpus, true, dtype));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(gpus: u32, shards: u32, reshard: bool, dtype: Option<Dtype>) -> Lever {
        Lever::Shard {
            gpus,
            shards,
            modules: vec!["Net.blocks.0".to_owned(); 9],
            reshard,
            dtype,
            offload: false,
            unused: false,
        }
    }

    const FABRIC: Fabric = Fabric {
        host_bytes_per_s: 100e9,
        network_bytes_per_s: 10e9,
        per_host: 8,
        latency_ns: 0.0,
    };
    const VOLUME: Volume = Volume {
        parameters: 8e9,
        gradients: 8e9,
        blocks: 9.0,
    };

    #[test]
    fn waits_are_volumes_over_bandwidth_less_what_the_passes_hide() {
        let of = |lever: &Lever, pass: f64| waits(lever, &FABRIC, &VOLUME, pass, pass, 1.0) / 1e6;
        // 8 GB · 7/8 at 100 GB/s is 70 ms, twice for an average, at a better rate.
        assert!((of(&shard(8, 1, true, None), 0.0) - 140.0 * 268.0 / 326.0).abs() < 0.1);
        // Gathered twice and reduced once; kept, gathered once.
        assert!((of(&shard(8, 8, true, None), 0.0) - 210.0).abs() < 0.1);
        assert!((of(&shard(8, 8, false, None), 0.0) - 140.0).abs() < 0.1);
        // Half the bytes are gathered in 16 bits.
        assert!((of(&shard(8, 8, true, Some(Dtype::Bf16)), 0.0) - 140.0).abs() < 0.1);
        // Passes of 100 ms hide a gathering of 70, and 100 of the 140 of the other.
        let hidden = of(&shard(8, 8, true, None), 100e6);
        assert!(hidden > 40.0 && hidden < 60.0, "{hidden}");
        // Between hosts it is ten times slower, and groups in a host are faster than one over all.
        assert!(of(&shard(16, 16, true, None), 0.0) > 9.0 * 210.0);
        assert!(of(&shard(16, 8, true, None), 0.0) < of(&shard(16, 16, true, None), 0.0) / 3.0);
    }

    #[test]
    fn what_was_not_seen_together_is_not_combined() {
        let full = [shard(8, 8, true, None)];
        let replicas = [shard(8, 1, true, None)];
        assert!(!composes(&full, &Lever::Optimizer8bit {}));
        assert!(composes(&replicas, &Lever::Optimizer8bit {}));
        assert!(!composes(&replicas, &Lever::StepInBackward {}));
        let checkpoint = Lever::Checkpoint { modules: vec![] };
        assert!(composes(&full, &checkpoint) && composes(&[], &Lever::StepInBackward {}));
    }

    #[test]
    fn ways_begin_with_whole_models_and_end_with_the_least_memory() {
        let found = ways(&Model::default(), 16, 8, Some(Dtype::Bf16));
        let of = |lever: &Lever| match lever {
            Lever::Shard { shards, dtype, .. } => (*shards, dtype.is_some()),
            _ => (0, false),
        };
        let all: Vec<_> = found.iter().map(of).collect();
        assert_eq!(
            all,
            [(1, false), (8, false), (16, false), (8, true), (16, true)]
        );
    }
}
