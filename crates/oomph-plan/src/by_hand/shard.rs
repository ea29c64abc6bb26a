//! `shard` by hand: a process group after the imports, the wrapping before the optimizer; what the
//! script does with its data and its output is described.

use crate::by_hand::places::Places;
use crate::by_hand::script::{Edit, Script};
use crate::lever::{Dtype, Lever};

const GROUP: [&str; 3] = [
    "rank = int(os.environ[\"LOCAL_RANK\"])",
    "torch.cuda.set_device(rank)  # and \"cuda\" in place of \"cuda:0\"",
    "torch.distributed.init_process_group(\"cpu:gloo,cuda:nccl\")",
];

/// The edits, and imports that they need, where imports and model have a clear place.
pub(super) fn place(
    script: &Script<'_>,
    places: &Places,
    lever: &Lever,
) -> Option<(Vec<Edit>, Vec<&'static str>)> {
    let (at, indent) = places.after_model.clone()?;
    let model = places.model.clone()?;
    let after_imports = places.after_imports?;
    if !script.lines.contains(&"import torch") {
        return None;
    }
    let wrapped = wrapping(lever, &model)
        .into_iter()
        .map(|line| format!("{indent}{line}"))
        .collect();
    let edits = vec![
        Edit::insert(after_imports, GROUP.map(str::to_owned).to_vec()),
        Edit::insert(at, wrapped),
    ];
    Some((edits, vec!["import os"]))
}

/// The lines that wrap the model.
fn wrapping(lever: &Lever, model: &str) -> Vec<String> {
    let Lever::Shard {
        gpus,
        shards,
        modules,
        reshard,
        dtype,
        offload,
        unused,
    } = lever
    else {
        return Vec::new();
    };
    if *shards == 1 {
        let more = if *unused {
            ", find_unused_parameters=True"
        } else {
            ""
        };
        return vec![format!(
            "{model} = torch.nn.parallel.DistributedDataParallel({model}, device_ids=[rank]{more})"
        )];
    }
    let shape = if shards == gpus {
        format!("({gpus},)")
    } else {
        format!("({}, {shards})", gpus / shards)
    };
    let mut options = vec!["mesh=mesh".to_owned()];
    if !reshard {
        options.push("reshard_after_forward=False".to_owned());
    }
    if let Some(dtype) = dtype {
        options.push(format!(
            "mp_policy=MixedPrecisionPolicy(param_dtype={}, reduce_dtype=torch.float32)",
            dtype.torch()
        ));
    }
    if *offload {
        options.push("offload_policy=CPUOffloadPolicy()".to_owned());
    }
    let mut lines = vec![
        "from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard"
            .to_owned(),
        format!("mesh = torch.distributed.device_mesh.init_device_mesh(\"cuda\", {shape})"),
        format!("options = dict({})", options.join(", ")),
        "for name in [".to_owned(),
    ];
    lines.extend(modules.iter().map(|module| {
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

/// All of it in words.
pub(super) fn snippet(lever: &Lever) -> String {
    let mut lines = vec!["after the imports:".to_owned()];
    lines.extend(GROUP.map(str::to_owned));
    lines.push("before the optimizer is made:".to_owned());
    lines.extend(wrapping(lever, "model"));
    lines.join("\n")
}

/// What has no one place: the data, what is printed and saved, how it is started.
pub(super) fn rest(lever: &Lever) -> Option<String> {
    let Lever::Shard {
        gpus,
        shards,
        dtype,
        ..
    } = lever
    else {
        return None;
    };
    let mut text = format!(
        "start it with torchrun --nproc-per-node {gpus}. Where the data are loaded, with sampler.set_epoch(epoch) in each epoch:\n\
         sampler = torch.utils.data.distributed.DistributedSampler(dataset)\n\
         loader = DataLoader(dataset, batch_size=batch_size // {gpus}, sampler=sampler)\n\
         where it prints, logs or saves:\nif torch.distributed.get_rank() == 0:"
    );
    if *shards > 1 {
        text.push_str(
            "\nwhat is saved is made whole on all ranks first:\nfrom torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict\nstate = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))",
        );
    }
    if *dtype == Some(Dtype::Fp16) {
        text.push_str("\ngradients are scaled by torch.amp.GradScaler");
    }
    Some(text)
}
