//! `chunked_cross_entropy`: the loss over a large vocabulary, a part of the rows at a time.
//!
//! Memory: copies of the logits (in fp32, log-probabilities, the gradients inside the loss) live for one
//! part of the rows at a time, and so do the logits themselves and their gradient where a linear layer
//! makes them; else those two remain. Time: some launches, as gradients are computed with the loss; where the script makes
//! something else of the logits, row by row, the backward pass makes them again. Results: to rounding.

use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::blocks::Edits;
use crate::by_hand::Script;
use crate::draft::{Draft, Load};
use crate::lever::{Facets, Group, Results, Stage};
use crate::model::{Event, Model, Tensor};
use crate::search::Options;

/// Operators of the loss.
const LOSS: [&str; 4] = ["_log_softmax", "nll_loss", "cross_entropy", "logsumexp"];
/// Operators of linear layers.
const LINEAR: [&str; 3] = ["::mm", "::addmm", "::linear"];
/// Operators that draw random numbers.
const RANDOM: [&str; 4] = ["::rand", "::uniform", "::exponential", "::normal"];
/// Smaller losses are not worth a change.
const LEAST_BYTES: u64 = 64 << 20;
/// How many parts: more save little and launch more.
const CHUNKS: u32 = 8;
/// A part of a function of logits is so many times smaller (`python/oomph/levers/_shared/row_functions.py`).
const FINER: u64 = 4;

/// The gradients of the head's weight, summed in fp32, and of what it is given are there from the loss on: its backward pass
/// makes no more than their multiples.
fn gradients_with_the_loss(
    draft: &mut Draft<'_>,
    head: u32,
    logits: u64,
    is_linear: impl Fn(&str) -> bool,
    widened: bool,
) {
    let (model, template) = (draft.model, &mut draft.template);
    let made: Vec<(usize, u32)> = (0..)
        .zip(&template.body)
        .filter_map(|(at, event)| match *event {
            Event::Alloc(number) => Some((at, number)),
            _ => None,
        })
        .collect();
    let tensor = |number: u32| template.tensors.get(number as usize);
    let is_logits = |tensor: &Tensor| LOSS.iter().any(|name| model.op(tensor).contains(name));
    let loss = made.iter().find(|(_, number)| {
        tensor(*number).is_some_and(|tensor| {
            tensor.phase == Phase::Forward && tensor.bytes >= logits && is_logits(tensor)
        })
    });
    let Some(&(loss, _)) = loss else { return };
    let gradients: Vec<(usize, Tensor)> = made
        .iter()
        .filter_map(|&(at, number)| Some((at, *tensor(number)?)))
        .filter(|(_, tensor)| {
            tensor.phase == Phase::Backward
                && tensor.call == head
                && tensor.bytes != logits
                && is_linear(model.op(tensor))
        })
        .collect();
    let weight = gradients.iter().filter(|(_, tensor)| !tensor.batched);
    let weight = weight.map(|(at, _)| *at).max();
    let mut edits = Edits::default();
    let mut add = |bytes: u64, like: &Tensor| {
        template.tensors.push(Tensor {
            bytes,
            phase: Phase::Forward,
            category: Category::Temporary,
            call: 0,
            ..*like
        });
        template.tensors.len() as u32 - 1
    };
    for (at, gradient) in gradients {
        let summed = widened && Some(at) == weight;
        let bytes = gradient.bytes * if summed { 2 } else { 1 };
        let early = add(bytes, &gradient);
        edits.insert(loss, Event::Alloc(early));
        // In fp32 it becomes the gradient itself.
        edits.insert(at + usize::from(widened), Event::Free(early));
        if summed {
            // A part's product, before it is added.
            let product = add(gradient.bytes, &gradient);
            edits.insert(loss, Event::Alloc(product));
            edits.insert(loss, Event::Free(product));
        }
    }
    template.body = edits.apply(&template.body);
}

/// Cross-entropy over a large vocabulary, a part of the rows at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChunkedCrossEntropy {
    /// How many parts.
    pub chunks: u32,
}

impl Facets for ChunkedCrossEntropy {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        format!("cross-entropy in {} chunks", self.chunks)
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Loss)
    }

    /// Where there is a loss over a large vocabulary.
    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = model.trains
            && model.template.tensors.iter().any(|tensor| {
                tensor.bytes >= LEAST_BYTES
                    && tensor.phase == Phase::Forward
                    && LOSS.iter().any(|op| model.op(tensor).contains(op))
            });
        let chunks = CHUNKS;
        offered.then_some(Self { chunks }).into_iter().collect()
    }

    fn lessens_evaluation(&self) -> bool {
        true
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let model = draft.model;
        let chunks = u64::from(self.chunks.max(1));
        let is_loss = |op: &str| LOSS.iter().any(|name| op.contains(name));
        let largest = draft
            .template
            .tensors
            .iter()
            .filter(|tensor| is_loss(model.op(tensor)))
            .map(|tensor| tensor.bytes)
            .max()
            .unwrap_or(0);
        // The script may leave out the last token of each sequence.
        let is_about = |bytes: u64, size: u64| bytes.abs_diff(size) <= size / 16;
        let is_copy =
            |op: &str| op.contains("_to_copy") || op.contains("clone") || op.contains("contiguous");
        let is_linear = |op: &str| LINEAR.iter().any(|name| op.ends_with(name));
        let forward = draft
            .template
            .tensors
            .iter()
            .filter(|tensor| tensor.phase == Phase::Forward);
        let linear = |size: u64| {
            let made =
                |tensor: &&Tensor| is_about(tensor.bytes, size) && is_linear(model.op(tensor));
            forward.clone().find(made)
        };
        // Logits of 16 bits are copied to 32 for the loss, or a bias of 32 is added to them, and their gradient goes back.
        let widened = forward
            .clone()
            .any(|tensor| tensor.bytes == largest && model.op(tensor).contains("_to_copy"))
            || linear(largest).is_none() && linear(largest / 2).is_some();
        let logits = if widened { largest / 2 } else { largest };
        let head = linear(logits);
        let head = head.map(|tensor| (tensor.call, tensor.op, tensor.bytes));
        // What else the script makes of the logits, as wide.
        let is_function = forward.clone().any(|tensor| {
            let op = model.op(tensor);
            is_about(tensor.bytes, largest) && !is_loss(op) && !is_copy(op) && !is_linear(op)
        }) || !model.ops.iter().any(|op| op.contains("nll_loss"));
        let from_linear = head.is_some();
        let mut parts = chunks;
        if let Some((call, op, bytes)) = head {
            if !is_function && call > 0 {
                gradients_with_the_loss(draft, call, logits.min(bytes), is_linear, widened);
            } else if is_function {
                parts *= FINER;
                let again = model
                    .forward_by_op
                    .get(&(call, op))
                    .copied()
                    .unwrap_or_default();
                draft.body.busy += again.busy;
            }
        }
        // Noise as wide as the logits (a sample of tokens) is drawn at once, and what is made of it there is as wide.
        let is_wide =
            |tensor: &Tensor| is_about(tensor.bytes, logits) || is_about(tensor.bytes, largest);
        let noise: Vec<(Phase, u32)> = (draft.template.tensors.iter())
            .filter(|tensor| {
                is_wide(tensor) && RANDOM.iter().any(|name| model.op(tensor).contains(name))
            })
            .map(|tensor| (tensor.phase, tensor.call))
            .collect();
        let mut gradient_kept = from_linear;
        for tensor in &mut draft.template.tensors {
            if tensor.bytes < LEAST_BYTES || tensor.bytes * 2 < largest {
                continue;
            }
            let op = model.op(tensor);
            let as_wide =
                is_wide(tensor) && (is_linear(op) || !noise.contains(&(tensor.phase, tensor.call)));
            let backward = op.contains("_log_softmax_backward");
            if backward && !gradient_kept {
                // The gradient of the logits is whole, in whatever type they have.
                gradient_kept = true;
                if widened {
                    tensor.bytes /= 2;
                }
            } else if is_loss(op) || is_copy(op) || from_linear && as_wide {
                tensor.bytes = tensor.bytes.div_ceil(parts);
            }
        }
        draft.body.add(Load {
            launches: parts as f64 * 6.0,
            ..Load::default()
        });
    }

    fn snippet(&self) -> String {
        let chunks = self.chunks;
        format!(
            "in place of the loss over the vocabulary, with the model's output before its head (`hidden`):\nfrom torch.utils.checkpoint import checkpoint\ndef part(h, y):\n    return F.cross_entropy(head(h).float(), y, reduction=\"sum\")\nhidden, target = hidden.flatten(0, -2), target.flatten()\npairs = zip(hidden.chunk({chunks}), target.chunk({chunks}))\nloss = sum(checkpoint(part, h, y, use_reentrant=False) for h, y in pairs) / (target != -100).sum()"
        )
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        let known = ["cross_entropy", "criterion", "loss_fn", "CrossEntropyLoss"];
        script
            .call(&known)
            .or_else(|| script.forward_line())
            .or_else(|| script.call(&["Trainer"]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::Pace;
    use crate::model::Call;

    const MIB: u64 = 1 << 20;

    /// A head in 16 bits: logits, their copy in fp32 and its log-softmax; back through all of them to the weight and to the rows.
    fn job() -> Model {
        let tensor = |op: u32, bytes: u64, phase: Phase, batched: bool| Tensor {
            bytes: bytes * MIB,
            stream: 0,
            category: Category::Temporary,
            phase,
            call: u32::from(op == 0),
            op,
            scope: 0,
            batched,
        };
        let ops = [
            "aten::mm",
            "aten::_to_copy",
            "aten::_log_softmax",
            "aten::nll_loss_forward",
        ];
        let mut model = Model {
            calls: vec![Call::default(), Call::default()],
            ops: ops.map(str::to_owned).to_vec(),
            trains: true,
            ..Model::default()
        };
        model.template.tensors = vec![
            tensor(0, 200, Phase::Forward, true),
            tensor(1, 400, Phase::Forward, true),
            tensor(2, 400, Phase::Forward, true),
            tensor(0, 50, Phase::Backward, false),
            tensor(0, 10, Phase::Backward, true),
        ];
        model.template.body = (0..5).map(Event::Alloc).collect();
        model
    }

    /// What is alive when each tensor of the job is made, in MiB, beside those tensors.
    fn beside(model: &Model) -> Vec<u64> {
        let mut draft = Draft::new(model, Pace::default());
        ChunkedCrossEntropy { chunks: 8 }.apply(&mut draft);
        let (mut held, mut found) = (0, Vec::new());
        for event in &draft.template.body {
            let bytes = |number: &u32| draft.template.tensors[*number as usize].bytes / MIB;
            match event {
                Event::Alloc(number) if *number < 5 => found.push(held),
                Event::Alloc(number) => held += bytes(number),
                Event::Free(number) => held -= bytes(number),
                _ => {}
            }
        }
        found
    }

    #[test]
    fn gradients_are_there_from_the_loss_on() {
        let mut model = job();
        // The sum of the weight's is of fp32, and each is copied to 16 bits.
        assert_eq!(beside(&model), [0, 0, 110, 110, 10]);
        let mut draft = Draft::new(&model, Pace::default());
        ChunkedCrossEntropy { chunks: 8 }.apply(&mut draft);
        assert_eq!(draft.template.tensors[0].bytes, 25 * MIB);
        // In fp32 they become the gradients.
        model.template.tensors.remove(1);
        model.template.tensors[1].bytes = 200 * MIB;
        model.template.body.pop();
        let mut draft = Draft::new(&model, Pace::default());
        ChunkedCrossEntropy { chunks: 8 }.apply(&mut draft);
        let made: Vec<u64> = draft.template.tensors[4..]
            .iter()
            .map(|tensor| tensor.bytes / MIB)
            .collect();
        assert_eq!(made, [50, 10]);
        // A temperature between the layer and the loss: all of it is made in smaller parts, and once more in the backward pass.
        let mut scaled = job();
        scaled.ops.push("aten::div".to_owned());
        scaled.template.tensors.push(Tensor {
            op: 4,
            bytes: 380 * MIB,
            ..scaled.template.tensors[1]
        });
        let mut draft = Draft::new(&scaled, Pace::default());
        ChunkedCrossEntropy { chunks: 8 }.apply(&mut draft);
        let made: Vec<u64> = draft
            .template
            .tensors
            .iter()
            .map(|tensor| tensor.bytes * 32 / MIB)
            .collect();
        assert_eq!(made, [200, 400, 400, 1600, 320, 380]);
        // A bias of fp32 makes them as wide as a copy would: what the head gave is of 16 bits all the same.
        scaled.ops[1] = "aten::add".to_owned();
        let mut draft = Draft::new(&scaled, Pace::default());
        ChunkedCrossEntropy { chunks: 8 }.apply(&mut draft);
        let whole = (draft.template.tensors.iter()).filter(|tensor| tensor.bytes >= 100 * MIB);
        assert_eq!(whole.count(), 0);
        // Noise that is added to sample tokens stays whole, and so does its logarithm.
        let mut sampled = job();
        for op in ["aten::rand_like", "aten::log"] {
            sampled.ops.push(op.to_owned());
            sampled.template.tensors.push(Tensor {
                op: sampled.ops.len() as u32 - 1,
                bytes: 400 * MIB,
                phase: Phase::Inference,
                ..sampled.template.tensors[1]
            });
        }
        let mut draft = Draft::new(&sampled, Pace::default());
        ChunkedCrossEntropy { chunks: 8 }.apply(&mut draft);
        let made: Vec<u64> = (draft.template.tensors[5..7].iter())
            .map(|tensor| tensor.bytes / MIB)
            .collect();
        assert_eq!(made, [400, 400]);
        // Frozen weights have none.
        model.template.body = (0..2).map(Event::Alloc).collect();
        let mut draft = Draft::new(&model, Pace::default());
        ChunkedCrossEntropy { chunks: 8 }.apply(&mut draft);
        assert_eq!(draft.template.tensors.len(), 4);
    }
}
