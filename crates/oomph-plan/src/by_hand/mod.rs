//! A plan as changes to the user's own script: a unified diff where each change has a clear place,
//! and words where it has none.
//!
//! The script is read line by line, with brackets and strings respected ([`script`]); what is not
//! written in the usual way is left alone and described instead.

mod diff;
mod modules;
mod optimizer;
mod places;
mod script;
mod settings;
mod shard;

use std::fmt::Write as _;

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
    let original = Script::new(source);
    let places = Places::find(&original);
    let mut work = Work {
        text: source.to_owned(),
        original: &original,
        imports: Vec::new(),
    };
    let mut snippets = Vec::new();
    for lever in levers {
        snippets.extend(shard::rest(lever));
        if place(&mut work, lever, levers).is_none() {
            let at = places.of(&original, lever);
            let at = at.map_or_else(String::new, |line| format!("{path}:{}: ", line + 1));
            let words = frameworks(lever, source);
            snippets.push(format!("{at}{}{words}", snippet(lever)));
        }
    }
    work.add_imports();
    let changed: Vec<String> = work.text.lines().map(str::to_owned).collect();
    let (diff, count) = diff::unified(path, source, &original.lines, &changed);
    ByHand {
        diff,
        changed: count,
        snippets,
    }
}

/// The script as changed so far: each lever reads it anew, so that none undoes another's lines.
struct Work<'a> {
    text: String,
    original: &'a Script<'a>,
    imports: Vec<&'static str>,
}

impl Work<'_> {
    fn script(&self) -> Script<'_> {
        Script::new(&self.text)
    }

    fn places(&self) -> Places {
        Places::find(&self.script())
    }

    fn apply(&mut self, mut edits: Vec<Edit>) {
        let mut text = self.script().apply(&mut edits).join("\n");
        text.push('\n');
        self.text = text;
    }

    /// A name like `word` that the user's script does not use.
    fn free_name(&self, word: &str) -> String {
        self.original.free_name(word)
    }

    /// Whether the script has `torch` by that name.
    fn has_torch(&self) -> bool {
        self.original.lines.contains(&"import torch")
    }

    /// A line to add to the imports, if it is not there.
    fn import(&mut self, line: &'static str) {
        self.imports.push(line);
    }

    fn add_imports(&mut self) {
        let mut lines = std::mem::take(&mut self.imports);
        lines.sort_unstable();
        lines.dedup();
        lines.retain(|line| !self.original.lines.contains(line));
        if lines.is_empty() {
            return;
        }
        // torch's own come after the others, as the environment is set before the first of them.
        let (later, first): (Vec<String>, Vec<String>) = lines
            .into_iter()
            .map(str::to_owned)
            .partition(|line| line.starts_with("from torch") || line.starts_with("import torch"));
        let places = self.places();
        let end = places.after_imports.unwrap_or(places.imports);
        self.apply(vec![
            Edit::insert(places.imports, first),
            Edit::insert(end, later),
        ]);
    }
}

/// Places a lever; `None` if it has no clear place.
fn place(work: &mut Work<'_>, lever: &Lever, levers: &[Lever]) -> Option<()> {
    match lever {
        Lever::Allocator { conf } => {
            let at = work.places().torch?;
            let early = work
                .script()
                .lines
                .iter()
                .take(at)
                .any(|line| *line == "import os");
            let mut lines = vec![format!(
                "os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"{conf}\""
            )];
            if !early {
                lines.insert(0, "import os".to_owned());
            }
            work.apply(vec![Edit::insert(at, lines)]);
            Some(())
        }
        Lever::SetToNone {} => {
            let script = work.script();
            let mut edits = script.replace_all("set_to_none=False", "set_to_none=True");
            edits.extend(script.replace_all("zero_grad(False)", "zero_grad()"));
            if edits.is_empty() {
                return None;
            }
            work.apply(edits);
            Some(())
        }
        Lever::OptimizerStep { kind } => optimizer::step(work, *kind, levers),
        Lever::Optimizer8bit {} => optimizer::eight_bits(work),
        Lever::StepInBackward {} => {
            let on_cpu = levers.contains(&Lever::OptimizerOnCpu {});
            if is_accumulated(levers) {
                return None;
            }
            optimizer::by_parameter(work, true, on_cpu)
        }
        Lever::OptimizerOnCpu {} => {
            if levers.contains(&Lever::StepInBackward {}) && !is_accumulated(levers) {
                return Some(()); // the state moves in that lever's step
            }
            optimizer::by_parameter(work, false, true)
        }
        Lever::NoGradEval {} => settings::no_grad_eval(work),
        Lever::Checkpoint { .. }
        | Lever::Recompute { .. }
        | Lever::OffloadActivations { .. }
        | Lever::InplaceActivations { .. } => modules::place(work, lever, levers),
        Lever::Shard { .. } => {
            let script = work.script();
            let (edits, imports) = shard::place(&script, &work.places(), lever)?;
            for import in imports {
                work.import(import);
            }
            work.apply(edits);
            Some(())
        }
        Lever::CudnnBenchmark { enabled } => {
            settings::flag(work, "torch.backends.cudnn.benchmark", *enabled)
        }
        Lever::Tf32 { enabled } => settings::tf32(work, *enabled),
        Lever::LoadOnCpu { dtype: None } => {
            let edits = load_on_cpu(&work.script())?;
            work.apply(edits);
            Some(())
        }
        Lever::InferenceMode {} => {
            // From here on; a context around the loop would need its lines to move.
            let at = work.places().after_imports.filter(|_| work.has_torch())?;
            let line = "torch.set_grad_enabled(False)".to_owned();
            work.apply(vec![Edit::insert(at, vec![line])]);
            Some(())
        }
        // The three change the training loop, and are made together, when the last of them comes.
        Lever::MixedPrecision { dtype: Dtype::Bf16 }
        | Lever::Attention { .. }
        | Lever::MicroBatch { .. } => {
            let is_of_loop = |other: &&Lever| {
                matches!(
                    other,
                    Lever::MixedPrecision { dtype: Dtype::Bf16 }
                        | Lever::Attention { .. }
                        | Lever::MicroBatch { .. }
                )
            };
            let places = work.places();
            let parts = levers.iter().find_map(|other| match other {
                Lever::MicroBatch { parts } => Some(*parts),
                _ => None,
            });
            let contexts: Vec<String> = levers.iter().filter_map(places::context).collect();
            let is_split = matches!(lever, Lever::MicroBatch { .. });
            let mut edit = places.rewritten(&work.script(), &contexts, parts);
            if edit.is_none() && !is_split {
                // The batch cannot be split, which contexts do not mind.
                edit = places.rewritten(&work.script(), &contexts, None);
            }
            let edit = edit?;
            let is_last = levers.iter().rfind(is_of_loop) == Some(lever);
            let is_alone = parts.is_some() && !is_split && !places.can_split(&work.script());
            let last_context = levers
                .iter()
                .rfind(|other| places::context(other).is_some());
            if is_last || is_alone && last_context == Some(lever) {
                if levers
                    .iter()
                    .any(|other| matches!(other, Lever::Attention { .. }))
                {
                    work.import("import torch.nn.attention");
                }
                work.apply(vec![edit]);
            }
            Some(())
        }
        _ => None,
    }
}

/// Whether gradients wait for a step, of several backward passes.
fn is_accumulated(levers: &[Lever]) -> bool {
    levers
        .iter()
        .any(|lever| matches!(lever, Lever::MicroBatch { .. }))
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

/// What the framework that a script uses has of its own for a lever.
fn frameworks(lever: &Lever, source: &str) -> String {
    let mut words = String::new();
    if source.contains("TrainingArguments") {
        let argument = match lever {
            Lever::Checkpoint { .. } => "gradient_checkpointing=True (of all blocks)".to_owned(),
            Lever::MixedPrecision { dtype } => format!("{}=True", dtype.name()),
            Lever::MicroBatch { parts } => format!(
                "per_device_train_batch_size divided and gradient_accumulation_steps multiplied by {parts}"
            ),
            Lever::OptimizerStep {
                kind: OptimizerStep::Fused,
            } => "optim=\"adamw_torch_fused\"".to_owned(),
            Lever::Optimizer8bit {} => "optim=\"adamw_torch_8bit\"".to_owned(),
            Lever::StepInBackward {} => "max_grad_norm=0, as it clips gradients".to_owned(),
            Lever::Tf32 { enabled } => {
                format!("tf32={}", if *enabled { "True" } else { "False" })
            }
            _ => String::new(),
        };
        if !argument.is_empty() {
            let _ = write!(words, "\nin TrainingArguments: {argument}");
        }
    }
    if source.contains("lightning") {
        let argument = match lever {
            Lever::MixedPrecision { dtype } => {
                let short = if *dtype == Dtype::Bf16 { "bf16" } else { "16" };
                format!("precision=\"{short}-mixed\"")
            }
            Lever::MicroBatch { parts } => format!(
                "accumulate_grad_batches multiplied by {parts}, with the DataLoader's batch_size divided by it"
            ),
            Lever::CudnnBenchmark { enabled } => {
                format!("benchmark={}", if *enabled { "True" } else { "False" })
            }
            _ => String::new(),
        };
        if !argument.is_empty() {
            let _ = write!(words, "\nin lightning.Trainer: {argument}");
        }
    }
    words
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
            "around the call of the blocks that hold these modules, where all but products, convolutions and attention is computed again:\nfrom torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts\nkept = [{}]\ny = checkpoint(block, x, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, kept))\n{}",
            modules::KEPT.map(|operator| format!("torch.ops.aten.{operator}.default")).join(", "),
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
            "in the loop over batches, with the batch's tensors in {parts} parts (of a loss that is a mean over samples; a mean over tokens counts by targets not ignored):\noptimizer.zero_grad()\nfor part in parts_of(batch):\n    loss = loss_of(part) * len(part) / len(batch)\n    loss.backward()\noptimizer.step()"
        ),
        Lever::MixedPrecision { dtype } => match dtype {
            Dtype::Bf16 => "around the model's call and the loss:\nwith torch.autocast(\"cuda\", dtype=torch.bfloat16):".to_owned(),
            Dtype::Fp16 => "around the model's call and the loss, with a gradient scaler:\nscaler = torch.amp.GradScaler()\nwith torch.autocast(\"cuda\", dtype=torch.float16):\n    loss = …\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()".to_owned(),
        },
        Lever::Attention { backend } => format!(
            "around the model's call (Hugging Face models that write the scores themselves: attn_implementation=\"sdpa\" where they are made):\nimport torch.nn.attention\nwith {}:",
            places::attention(*backend)
        ),
        Lever::ChunkedCrossEntropy { chunks } => format!(
            "in place of the loss over the vocabulary, with the model's output before its head (`hidden`):\nfrom torch.utils.checkpoint import checkpoint\ndef part(h, y):\n    return F.cross_entropy(head(h).float(), y, reduction=\"sum\")\nhidden, target = hidden.flatten(0, -2), target.flatten()\npairs = zip(hidden.chunk({chunks}), target.chunk({chunks}))\nloss = sum(checkpoint(part, h, y, use_reentrant=False) for h, y in pairs) / (target != -100).sum()"
        ),
        Lever::ChunkedLogits {} => "where logits are used, the head on the positions that are needed, or on a part of the rows at a time:\nhidden = model.model(input_ids).last_hidden_state  # without the head\nlogits = model.lm_head(hidden[:, -1])\nchoices = torch.cat([model.lm_head(h).argmax(-1) for h in hidden.flatten(0, 1).split(256)])".to_owned(),
        Lever::StepInBackward {} => "after the optimizer is made, a step of each parameter as soon as its gradient is there; without clipping, and without optimizer.step() in the loop:\ndef step(index, p):\n    everything = [group[\"params\"] for group in optimizer.param_groups]\n    for number, group in enumerate(optimizer.param_groups):\n        group[\"params\"] = [p] if number == index else []\n    optimizer.step()\n    for group, params in zip(optimizer.param_groups, everything):\n        group[\"params\"] = params\n    p.grad = None\nfor index, group in enumerate(optimizer.param_groups):\n    for p in group[\"params\"]:\n        p.register_post_accumulate_grad_hook(functools.partial(step, index))".to_owned(),
        Lever::Optimizer8bit {} => "where the optimizer is made (pip install torchao; Adam and AdamW only):\nfrom torchao.optim import AdamW8bit\noptimizer = AdamW8bit(model.parameters(), …)".to_owned(),
        Lever::OptimizerOnCpu {} => "where the optimizer is made (pip install torchao; the CPU then makes the step):\nfrom torchao.optim import CPUOffloadOptimizer\noptimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, …)".to_owned(),
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
        Lever::Tf32 { enabled } => {
            let (value, precision) = if *enabled { ("True", "tf32") } else { ("False", "ieee") };
            format!("after the imports:\ntorch.backends.cuda.matmul.allow_tf32 = {value}\ntorch.backends.cudnn.allow_tf32 = {value}\nor, where the script sets fp32_precision: torch.backends.fp32_precision = \"{precision}\"")
        }
    }
}

#[cfg(test)]
mod tests;
