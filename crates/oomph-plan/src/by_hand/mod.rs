//! A plan as changes to the user's own script: a unified diff where each change has a clear place,
//! and words where it has none.
//!
//! The script is read line by line, with brackets and strings respected ([`script`]); what is not
//! written in the usual way is left alone and described instead.

mod diff;
mod places;
mod script;
mod shard;

use crate::lever::{Dtype, Int8, Lever, OptimizerStep};
use places::Places;
use script::{Edit, Script};

/// A plan by hand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ByHand {
    /// A unified diff of the script, for `patch -p1` and `git apply`; empty if nothing could be
    /// placed.
    pub diff: String,
    /// Lines that the diff adds or removes.
    pub changed: usize,
    /// Changes that could not be placed: where they go, and how they look.
    pub snippets: Vec<String>,
}

impl ByHand {
    /// The file: what could not be placed comes first, which `patch` and `git apply` skip.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for snippet in &self.snippets {
            text.push_str("# by hand: ");
            text.push_str(&snippet.replace('\n', "\n#   "));
            text.push_str("\n#\n");
        }
        text.push_str(&self.diff);
        text
    }
}

/// Writes `levers` as changes of `source`, the script at `path`.
pub fn by_hand(path: &str, source: &str, levers: &[Lever]) -> ByHand {
    let script = Script::new(source);
    let places = Places::find(&script);
    let mut edits: Vec<Edit> = Vec::new();
    let mut snippets = Vec::new();
    let mut imports: Vec<&str> = Vec::new();
    for lever in levers {
        snippets.extend(shard::rest(lever));
        match place(&script, &places, lever, &mut imports) {
            Some(found) => edits.extend(found),
            None => snippets.push(snippet(lever)),
        }
    }
    edits.extend(places.training(&script, levers, &mut snippets));
    if !imports.is_empty() {
        imports.sort_unstable();
        imports.dedup();
        // The environment is set before torch is imported, so torch's own come after the others.
        let (later, first): (Vec<String>, Vec<String>) = imports
            .into_iter()
            .filter(|line| !source.lines().any(|other| other == *line))
            .map(str::to_owned)
            .partition(|line| line.starts_with("from torch") || line.starts_with("import torch"));
        edits.insert(0, Edit::insert(places.imports, first));
        let end = places.after_imports.unwrap_or(places.imports);
        edits.push(Edit::insert(end, later));
    }
    let changed = script.apply(&mut edits);
    let (diff, count) = diff::unified(path, &script.lines, &changed);
    ByHand {
        diff,
        changed: count,
        snippets,
    }
}

/// The edits of a lever that has a place of its own; those of the training loop are made together.
fn place(
    script: &Script<'_>,
    places: &Places,
    lever: &Lever,
    imports: &mut Vec<&'static str>,
) -> Option<Vec<Edit>> {
    match lever {
        Lever::Allocator { conf } => {
            imports.push("import os");
            let at = places.torch?;
            Some(vec![Edit::insert(
                at,
                vec![format!(
                    "os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"{conf}\""
                )],
            )])
        }
        Lever::SetToNone {} => {
            let edits: Vec<Edit> = script.replace_all("set_to_none=False", "set_to_none=True");
            (!edits.is_empty()).then_some(edits)
        }
        Lever::OptimizerStep { kind } => {
            let argument = match kind {
                OptimizerStep::Fused => "fused=True",
                OptimizerStep::SingleTensor => "foreach=False",
            };
            let call = places.optimizer.as_ref().filter(|call| call.class)?;
            Some(vec![script.add_argument(call.line, argument)?])
        }
        Lever::Checkpoint { modules } => {
            let (at, indent) = places.after_model.clone()?;
            imports.push("import functools");
            // By its whole name: scripts have variables and functions called `checkpoint`.
            imports.push("import torch.utils.checkpoint");
            let model = places.model.clone()?;
            let [name, block] = ["name", "block"].map(|word| script.free_name(word));
            let mut lines = for_modules(&indent, &name, modules);
            lines.push(format!(
                "{indent}    # A BatchNorm inside updates its running statistics twice a step."
            ));
            lines.push(format!(
                "{indent}    {block} = {model}.get_submodule({name})"
            ));
            lines.push(format!(
                "{indent}    {block}.forward = functools.partial(torch.utils.checkpoint.checkpoint, {block}.forward, use_reentrant=False)"
            ));
            Some(vec![Edit::insert(at, lines)])
        }
        Lever::InplaceActivations { modules } => {
            let (at, indent) = places.after_model.clone()?;
            let model = places.model.clone()?;
            let name = script.free_name("name");
            let mut lines = for_modules(&indent, &name, modules);
            lines.push(format!(
                "{indent}    {model}.get_submodule({name}).inplace = True"
            ));
            Some(vec![Edit::insert(at, lines)])
        }
        Lever::Shard { .. } => shard::place(script, places, lever, imports),
        Lever::CudnnBenchmark { enabled } => {
            flag(script, places, "torch.backends.cudnn.benchmark", *enabled)
        }
        Lever::LoadOnCpu { dtype: None } => load_on_cpu(script),
        Lever::InferenceMode {} => {
            // From here on; a context around the loop would need its lines to move.
            let at = places.after_imports?;
            script.lines.contains(&"import torch").then(|| {
                let line = "torch.set_grad_enabled(False)".to_owned();
                vec![Edit::insert(at, vec![line])]
            })
        }
        Lever::Tf32 { enabled } => flag(
            script,
            places,
            "torch.backends.cuda.matmul.allow_tf32",
            *enabled,
        ),
        // Placed in the training loop, by `Places::training`.
        Lever::MixedPrecision { dtype: Dtype::Bf16 } | Lever::MicroBatch { .. } => Some(Vec::new()),
        _ => None,
    }
}

/// The head of a loop over modules of the model, by their names in it.
fn for_modules(indent: &str, name: &str, modules: &[String]) -> Vec<String> {
    let mut lines = vec![format!("{indent}for {name} in [")];
    lines.extend(modules.iter().map(|module| {
        let path = module.split_once('.').map_or("", |(_, path)| path);
        format!("{indent}    \"{path}\",")
    }));
    lines.push(format!("{indent}]:"));
    lines
}

/// A setting of torch: where the script sets it itself, or else after its imports.
fn flag(script: &Script<'_>, places: &Places, name: &str, enabled: bool) -> Option<Vec<Edit>> {
    let value = if enabled { "True" } else { "False" };
    // `cudnn.benchmark`, however `cudnn` was imported.
    let parts: Vec<&str> = name.rsplitn(3, '.').take(2).collect();
    let short = format!("{}.{}", parts.get(1)?, parts.first()?);
    let sets: Vec<Edit> = script
        .lines
        .iter()
        .enumerate()
        .filter_map(|(number, line)| {
            let (target, rest) = line.split_once('=')?;
            let target = target.trim_end();
            if rest.starts_with('=')
                || !(target.trim() == short || target.ends_with(&format!(".{short}")))
            {
                return None;
            }
            let line = format!("{target} = {value}");
            Some(Edit::replace(number, number, vec![line]))
        })
        .collect();
    if !sets.is_empty() {
        return Some(sets);
    }
    Some(vec![Edit::insert(
        places.after_imports?,
        vec![format!("{name} = {value}")],
    )])
}

/// Checkpoints to the CPU, where the script says to which device.
fn load_on_cpu(script: &Script<'_>) -> Option<Vec<Edit>> {
    let places = ["\"cuda\"", "'cuda'", "\"cuda:0\"", "'cuda:0'", "device"];
    let edits: Vec<Edit> = places
        .iter()
        .flat_map(|place| {
            script.replace_all(&format!("map_location={place}"), "map_location=\"cpu\"")
        })
        .collect();
    (!edits.is_empty()).then_some(edits)
}

/// Where a change goes and how it looks, in words.
fn snippet(lever: &Lever) -> String {
    match lever {
        Lever::Allocator { conf } => {
            format!("set the environment of the script: PYTORCH_CUDA_ALLOC_CONF={conf}")
        }
        Lever::SetToNone {} => "where gradients are cleared:\noptimizer.zero_grad(set_to_none=True)".to_owned(),
        Lever::OptimizerStep { kind: OptimizerStep::Fused } => {
            "where the optimizer is made, add the argument fused=True".to_owned()
        }
        Lever::OptimizerStep { kind: OptimizerStep::SingleTensor } => {
            "where the optimizer is made, add the argument foreach=False".to_owned()
        }
        Lever::NoGradEval {} => "around the loop that evaluates:\nwith torch.no_grad():".to_owned(),
        Lever::Checkpoint { modules } | Lever::OffloadActivations { modules } => {
            let saved = matches!(lever, Lever::OffloadActivations { .. });
            let how = if saved {
                "inside the forward of these modules:\nwith torch.autograd.graph.save_on_cpu(pin_memory=True):"
            } else {
                "around the call of these modules:\ny = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)"
            };
            format!("{how}\n{}", modules.join("\n"))
        }
        Lever::Recompute { modules } => format!(
            "around the call of the blocks that hold these modules, where all but products, convolutions and attention is computed again:\nfrom torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts\naten = torch.ops.aten\nkept = [aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default, aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default]\ny = checkpoint(block, x, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, kept))\n{}",
            modules.join("\n")
        ),
        Lever::InplaceActivations { modules } => {
            format!("give these modules inplace=True:\n{}", modules.join("\n"))
        }
        Lever::FusedModules { modules } => format!(
            "in the forward of these modules, in place of what is written out:\nreturn torch.nn.functional.gelu(x, approximate=\"tanh\")  # activations by tanh; Hugging Face: config.hidden_act or activation_function = \"gelu_pytorch_tanh\"\nreturn torch.nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)  # RMSNorm\n{}",
            modules.join("\n")
        ),
        Lever::MicroBatch { parts } => format!(
            "in the loop over batches, before optimizer.step():\nfor part in batch.chunk({parts}):\n    loss = loss_of(part) * len(part) / len(batch)\n    loss.backward()"
        ),
        Lever::MixedPrecision { dtype } => match dtype {
            Dtype::Bf16 => "around the model's call and the loss:\nwith torch.autocast(\"cuda\", dtype=torch.bfloat16):".to_owned(),
            Dtype::Fp16 => "around the model's call and the loss, with a gradient scaler:\nscaler = torch.amp.GradScaler()\nwith torch.autocast(\"cuda\", dtype=torch.float16):\n    loss = …\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()".to_owned(),
        },
        Lever::Attention { backend } => format!(
            "around the model's call:\nwith torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.{}):",
            match backend {
                crate::lever::Attention::Flash => "FLASH_ATTENTION",
                crate::lever::Attention::Efficient => "EFFICIENT_ATTENTION",
                crate::lever::Attention::Cudnn => "CUDNN_ATTENTION",
            }
        ),
        Lever::ChunkedCrossEntropy { chunks } => format!(
            "where the loss over the vocabulary is computed: in {chunks} parts of the rows, each under torch.utils.checkpoint\nloss = sum(checkpoint(F.cross_entropy, l, t, reduction=\"sum\", use_reentrant=False) for l, t in zip(logits.chunk({chunks}), targets.chunk({chunks}))) / len(targets)"
        ),
        Lever::ChunkedLogits {} => "where logits are used, the head on the positions that are needed, or on a part of the rows at a time:\nhidden = model.model(input_ids).last_hidden_state  # without the head\nlogits = model.lm_head(hidden[:, -1])\nchoices = torch.cat([model.lm_head(h).argmax(-1) for h in hidden.flatten(0, 1).split(256)])".to_owned(),
        Lever::StepInBackward {} => "after the model is made, one optimizer for each parameter:\noptimizers = {p: Optimizer([p], …) for p in model.parameters()}\ndef step(p):\n    optimizers[p].step()\n    optimizers[p].zero_grad()\nfor p in model.parameters():\n    p.register_post_accumulate_grad_hook(step)".to_owned(),
        Lever::Optimizer8bit {} => "where the optimizer is made (pip install torchao):\nfrom torchao.optim import AdamW8bit\noptimizer = AdamW8bit(model.parameters(), …)".to_owned(),
        Lever::OptimizerOnCpu {} => "where the optimizer is made (pip install torchao):\nfrom torchao.optim import CPUOffloadOptimizer\noptimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, …)".to_owned(),
        Lever::InferenceMode {} => "around the loop that infers:\nwith torch.inference_mode():".to_owned(),
        Lever::HalfWeights { dtype } => format!(
            "where the model is made, before it goes to the GPU:\nmodel = model.to({0})\nand for what it is called with:\noutputs = model(inputs.to({0}))",
            dtype.torch()
        ),
        Lever::Int8Linear { kind } => {
            let config = match kind {
                Int8::WeightOnly => "Int8WeightOnlyConfig",
                Int8::Dynamic => "Int8DynamicActivationInt8WeightConfig",
            };
            format!("where the model is made, before it goes to the GPU (pip install torchao):\nfrom torchao.quantization import quantize_, {config}\nquantize_(model, {config}())")
        }
        Lever::SplitBatch { parts } => format!(
            "where the model is called:\noutputs = torch.cat([model(part) for part in inputs.chunk({parts})])"
        ),
        Lever::KvCache { bits } => format!(
            "where tokens are generated (pip install hqq):\nfrom transformers import QuantizedCache\ncache = QuantizedCache(backend=\"hqq\", config=model.config, nbits={bits})\nmodel.generate(**inputs, past_key_values=cache)"
        ),
        Lever::StreamWeights { modules } => format!(
            "instead of moving these modules to the GPU (pip install accelerate; it copies without overlap):\nfrom accelerate import cpu_offload\nfor name in names:\n    cpu_offload(model.get_submodule(name), execution_device=\"cuda\")\n{}",
            modules.join("\n")
        ),
        Lever::LoadOnCpu { dtype } => {
            let cast = dtype.map_or_else(String::new, |dtype| {
                format!("\nmodel = model.to({}).cuda()", dtype.torch())
            });
            format!("where weights are read:\nstate = torch.load(path, map_location=\"cpu\", mmap=True)\nmodel.load_state_dict(state){cast}")
        }
        Lever::Shard { .. } => shard::snippet(lever),
        Lever::Compile {} => "once the model is on the GPU:\nmodel.compile()".to_owned(),
        Lever::CudnnBenchmark { enabled } => {
            format!("after the imports:\ntorch.backends.cudnn.benchmark = {}", if *enabled { "True" } else { "False" })
        }
        Lever::Tf32 { enabled } => format!(
            "after the imports:\ntorch.backends.cuda.matmul.allow_tf32 = {}",
            if *enabled { "True" } else { "False" }
        ),
    }
}

#[cfg(test)]
mod tests;
