//! `shard`: several GPUs train together, each with its part of every batch.
//!
//! Which ways there are to share a job is [`ways`]; each is run as one rank, which shows what it needs.
//! Time: what ranks wait for each other ([`crate::sharding`]). Results: to rounding; in 16 bits other
//! numerics.

use serde::{Deserialize, Serialize};

use crate::by_hand::{Script, Work, settings};
use crate::lever::{Dtype, Facets, Results, Stage};
use crate::levers::Lever;
use crate::model::Model;
use crate::sharding::{Fabric, Passes, Sharing, Volume};
use crate::units;

/// The lines that make a process group of the ranks.
const GROUP: [&str; 3] = [
    "rank = int(os.environ[\"LOCAL_RANK\"])",
    "torch.cuda.set_device(rank)  # and \"cuda\" in place of \"cuda:0\"",
    "torch.distributed.init_process_group(\"cpu:gloo,cuda:nccl\")",
];

/// Several GPUs train together, each with its part of every batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// How many, one rank each.
    pub gpus: u32,
    /// How many of them hold the model together: 1 is data parallelism, all of them full
    /// sharding, less are groups that are replicas of each other.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub shards: u32,
    /// The blocks whose parameters are gathered one at a time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<String>,
    /// Whether they are dropped again after their forward pass.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub reshard: bool,
    /// What parameters are gathered and computed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Whether parameters, gradients and optimizer state lie in host memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offload: bool,
    /// Whether some parameters get no gradient in some steps.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unused: bool,
}

const fn one() -> u32 {
    1
}

const fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_one(number: &u32) -> bool {
    *number == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_yes(value: &bool) -> bool {
    *value
}

impl Facets for Shard {
    fn results(&self) -> Results {
        match self.dtype {
            None => Results::Rounding,
            Some(_) => Results::Numerics,
        }
    }

    fn label(&self) -> String {
        let Self { gpus, shards, .. } = self;
        if *shards == 1 {
            return format!("{gpus} GPUs: data parallel");
        }
        let mut text = if shards == gpus {
            format!("{gpus} GPUs: sharded")
        } else {
            format!(
                "{gpus} GPUs: sharded over {shards}, {} replicas",
                gpus / shards
            )
        };
        if let Some(dtype) = self.dtype {
            text.push_str(" in ");
            text.push_str(dtype.name());
        }
        if !self.reshard {
            text.push_str(", kept gathered");
        }
        if self.offload {
            text.push_str(", on the CPU");
        }
        text
    }

    fn order() -> u32 {
        15
    }

    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        Some(&mut self.modules)
    }

    fn environment(&self, get: &dyn Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
        let local = get("LOCAL_RANK").and_then(|text| text.parse::<usize>().ok());
        let Some(local) = local else {
            // One process numbers the words of a set in some order; the ranks that this launcher starts
            // must in the same.
            let seeded = self.gpus < 2 || get("PYTHONHASHSEED").is_some();
            let seed = (!seeded).then(|| ("PYTHONHASHSEED", "0".to_owned()));
            return seed.into_iter().collect();
        };
        // A script for one GPU says "cuda:0": that is each rank's own.
        let seen = get("CUDA_VISIBLE_DEVICES").unwrap_or_default();
        let seen: Vec<&str> = seen.split(',').filter(|word| !word.is_empty()).collect();
        let own = if seen.is_empty() {
            Some(local.to_string())
        } else {
            seen.get(local).map(|word| (*word).to_owned())
        };
        own.map(|own| ("CUDA_VISIBLE_DEVICES", own))
            .into_iter()
            .collect()
    }

    fn stage() -> Stage {
        Stage::Asked
    }

    fn goes_with_sharing(&self, _sharing: Sharing) -> bool {
        false
    }

    fn taught_as(&self) -> Option<&'static str> {
        Some(match self {
            Self { shards: 1, .. } => "replicas",
            Self { offload: true, .. } => "shards on the CPU",
            Self { reshard: false, .. } => "shards kept gathered",
            Self { gpus, shards, .. } if gpus > shards => "shards and replicas",
            Self { dtype: Some(_), .. } => "narrow shards",
            Self { .. } => "shards",
        })
    }

    fn computes_in(&self) -> Option<Dtype> {
        self.dtype
    }

    fn sharing(&self) -> Option<Sharing> {
        Some(Sharing {
            gpus: self.gpus,
            shards: self.shards,
            dtype: self.dtype,
        })
    }

    fn waits(&self, fabric: &Fabric, volume: &Volume, passes: Passes, parts: f64) -> f64 {
        let Passes { forward, backward } = passes;
        let blocks = if self.modules.is_empty() {
            1.0
        } else {
            self.modules.len() as f64 + 1.0
        };
        let narrow = if self.dtype.is_some() { 0.5 } else { 1.0 };
        let one = 1.0 / blocks;
        if self.shards == 1 {
            // Buckets of 25 MB are averaged while the pass goes on; the last one is waited for.
            const BUCKET: f64 = 25e6;
            // One averaging is quicker than a reduction and a gathering: 326 GB/s there.
            const AT_ONCE: f64 = 268.0 / 326.0;
            let average = |bytes| {
                2.0 * AT_ONCE * fabric.gather(bytes, self.gpus, self.gpus <= fabric.per_host)
            };
            let buckets = (volume.gradients / BUCKET).ceil().max(1.0);
            let all = average(volume.gradients) * parts + fabric.latency_ns * buckets * parts;
            let last = average(volume.gradients.min(BUCKET)) + fabric.latency_ns;
            return (all - backward).max(0.0).max(last);
        }
        let gather = fabric.gather(volume.parameters * narrow, self.shards, true) * parts
            + fabric.latency_ns * blocks * parts;
        // Reduced in 32 bits.
        let mut reduce = fabric.gather(volume.gradients, self.shards, true) * parts
            + fabric.latency_ns * blocks * parts;
        let replicas = self.gpus / self.shards;
        if replicas > 1 {
            let own = volume.gradients / f64::from(self.shards);
            let neighbours = self.gpus <= fabric.per_host;
            reduce += 2.0 * fabric.gather(own, replicas, neighbours) * parts
                + fabric.latency_ns * blocks * parts;
        }
        let again = if self.reshard { gather } else { 0.0 };
        let first = gather * one / parts.max(1.0);
        let last = reduce * one / parts.max(1.0);
        first
            + last
            + (gather - first - forward).max(0.0)
            + (again + reduce - last - backward).max(0.0)
    }

    fn snippet(&self) -> String {
        let mut lines = vec!["after the imports:".to_owned()];
        lines.extend(GROUP.map(str::to_owned));
        lines.push("# before the optimizer is made:".to_owned());
        lines.extend(self.wrapping("model"));
        lines.join("\n")
    }

    /// A process group after the imports, the wrapping before the optimizer.
    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        work.edit(|script| {
            let (model, optimizer) = script.model()?;
            let mut edits = settings::after_imports(script, &GROUP)?;
            edits.push((script.module).insert_before(optimizer, &self.wrapping(&model))?);
            Some(edits)
        })?;
        work.import("import os");
        Some(())
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }

    /// What has no one place: the data, what is printed and saved, how it is started.
    fn rest(&self) -> Option<String> {
        let gpus = self.gpus;
        let mut text = format!(
            "start it with torchrun --nproc-per-node {gpus}. Where the data are loaded, with sampler.set_epoch(epoch) in each epoch:\n\
             sampler = torch.utils.data.distributed.DistributedSampler(dataset)\n\
             loader = DataLoader(dataset, batch_size=batch_size // {gpus}, sampler=sampler)\n\
             where it prints, logs or saves:\nif torch.distributed.get_rank() == 0:"
        );
        if self.shards > 1 {
            text.push_str(
                "\nwhat is saved is made whole on all ranks first:\nfrom torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\nstate = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))",
            );
        }
        if self.dtype == Some(Dtype::Fp16) {
            text.push_str("\ngradients are scaled by torch.amp.GradScaler");
        }
        Some(text)
    }
}

impl Shard {
    /// The lines that wrap the model.
    fn wrapping(&self, model: &str) -> Vec<String> {
        if self.shards == 1 {
            let more = if self.unused {
                ", find_unused_parameters=True"
            } else {
                ""
            };
            return vec![format!(
                "{model} = torch.nn.parallel.DistributedDataParallel({model}, device_ids=[rank]{more})"
            )];
        }
        let shape = if self.shards == self.gpus {
            format!("({},)", self.gpus)
        } else {
            format!("({}, {})", self.gpus / self.shards, self.shards)
        };
        let mut options = vec!["mesh=mesh".to_owned()];
        if !self.reshard {
            options.push("reshard_after_forward=False".to_owned());
        }
        if let Some(dtype) = self.dtype {
            options.push(format!(
                "mp_policy=MixedPrecisionPolicy(param_dtype={}, reduce_dtype=torch.float32)",
                dtype.torch()
            ));
        }
        if self.offload {
            options.push("offload_policy=CPUOffloadPolicy()".to_owned());
        }
        let mut lines = vec![
            "from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard"
                .to_owned(),
            format!("mesh = torch.distributed.device_mesh.init_device_mesh(\"cuda\", {shape})"),
            format!("options = dict({})", options.join(", ")),
            "for name in [".to_owned(),
        ];
        lines.extend(self.modules.iter().map(|module| {
            let path = module.split_once('.').map_or("", |(_, path)| path);
            format!("    \"{path}\",")
        }));
        lines.push("]:".to_owned());
        lines.push(format!(
            "    fully_shard({model}.get_submodule(name), **options)"
        ));
        lines.push(format!("fully_shard({model}, **options)"));
        lines
    }
}

/// Every GPU holds the whole model.
pub fn data_parallel(gpus: u32) -> Lever {
    Lever::from(Shard {
        gpus,
        shards: 1,
        modules: Vec::new(),
        reshard: true,
        dtype: None,
        offload: false,
        unused: false,
    })
}

/// Ways to share a job with `model` among `gpus`, those that wait least first. `dtype` is what
/// parameters may be gathered in.
pub fn ways(model: &Model, gpus: u32, per_host: u32, dtype: Option<Dtype>) -> Vec<Lever> {
    let modules = units::repeated(model);
    let shard = |shards: u32, reshard: bool, dtype: Option<Dtype>| {
        Lever::from(Shard {
            gpus,
            shards,
            modules: modules.clone(),
            reshard,
            dtype,
            offload: false,
            unused: false,
        })
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

/// The same way with parameters, gradients and state in host memory, if it deals them out.
pub fn on_the_cpu(way: &Lever) -> Option<Lever> {
    match way {
        Lever::Shard(way) if way.shards > 1 => Some(Lever::from(Shard {
            offload: true,
            ..way.clone()
        })),
        _ => None,
    }
}

/// The same way for a job of which some parameters get no gradient in some steps, if it is not that yet.
pub fn with_unused(way: &Lever) -> Option<Lever> {
    match way {
        Lever::Shard(way) if !way.unused => Some(Lever::from(Shard {
            unused: true,
            ..way.clone()
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{Checkpoint, Optimizer8bit, StepInBackward};
    use crate::sharding::composes;

    #[test]
    fn each_rank_sees_its_own_gpu_and_launchers_seed() {
        let lever = data_parallel(2);
        let with = |variables: &[(&str, &str)]| {
            lever.facets().environment(&|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        let devices = |value: &str| vec![("CUDA_VISIBLE_DEVICES", value.to_owned())];
        assert_eq!(with(&[("LOCAL_RANK", "1")]), devices("1"));
        let seen = ("CUDA_VISIBLE_DEVICES", "4,6");
        assert_eq!(with(&[("LOCAL_RANK", "1"), seen]), devices("6"));
        assert_eq!(with(&[("LOCAL_RANK", "2"), seen]), []);
        assert_eq!(with(&[]), [("PYTHONHASHSEED", "0".to_owned())]);
        assert_eq!(with(&[("PYTHONHASHSEED", "7")]), []);
    }

    fn shard(gpus: u32, shards: u32, reshard: bool, dtype: Option<Dtype>) -> Lever {
        Lever::from(Shard {
            gpus,
            shards,
            modules: vec!["Net.blocks.0".to_owned(); 9],
            reshard,
            dtype,
            offload: false,
            unused: false,
        })
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
        let of = |lever: &Lever, pass: f64| {
            let passes = Passes {
                forward: pass,
                backward: pass,
            };
            lever.facets().waits(&FABRIC, &VOLUME, passes, 1.0) / 1e6
        };
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
        assert!(!composes(&full, &Optimizer8bit {}.into()));
        assert!(composes(&replicas, &Optimizer8bit {}.into()));
        assert!(!composes(&replicas, &StepInBackward {}.into()));
        let checkpoint = Checkpoint { modules: vec![] }.into();
        assert!(composes(&full, &checkpoint) && composes(&[], &StepInBackward {}.into()));
    }

    #[test]
    fn ways_begin_with_whole_models_and_end_with_the_least_memory() {
        let found = ways(&Model::default(), 16, 8, Some(Dtype::Bf16));
        let of = |lever: &Lever| {
            let sharing = lever.sharing();
            sharing.map_or((0, false), |one| (one.shards, one.dtype.is_some()))
        };
        let all: Vec<_> = found.iter().map(of).collect();
        assert_eq!(
            all,
            [(1, false), (8, false), (16, false), (8, true), (16, true)]
        );
    }
}
