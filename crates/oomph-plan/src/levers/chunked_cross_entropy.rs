//! `chunked_cross_entropy`: the loss over a large vocabulary, a part of the rows at a time.
//!
//! Memory: copies of the logits (in fp32, log-probabilities, the gradients inside the loss) live for one
//! part of the rows at a time, and so do the logits themselves and their gradient where a linear layer
//! makes them; else those two remain. Time: some launches, as gradients are computed with the loss. Results: to
//! rounding.

use serde::{Deserialize, Serialize};

use oomph_trace::Phase;

use crate::by_hand::Script;
use crate::draft::{Draft, Load};
use crate::lever::{Facets, Group, Results, Stage};
use crate::model::Model;
use crate::search::Options;

/// Operators of the loss.
const LOSS: [&str; 3] = ["_log_softmax", "nll_loss", "cross_entropy"];
/// Operators of linear layers.
const LINEAR: [&str; 3] = ["::mm", "::addmm", "::linear"];
/// Smaller losses are not worth a change.
const LEAST_BYTES: u64 = 64 << 20;
/// How many parts: more save little and launch more.
const CHUNKS: u32 = 8;

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
        // Logits of 16 bits are copied to 32 for the loss, and their gradient back.
        let widened = draft.template.tensors.iter().any(|tensor| {
            tensor.phase == Phase::Forward
                && tensor.bytes == largest
                && model.op(tensor).contains("_to_copy")
        });
        let logits = if widened { largest / 2 } else { largest };
        let is_linear = |op: &str| LINEAR.iter().any(|name| op.ends_with(name));
        let from_linear = draft.template.tensors.iter().any(|tensor| {
            tensor.phase == Phase::Forward && tensor.bytes == logits && is_linear(model.op(tensor))
        });
        let mut gradient_kept = from_linear;
        for tensor in &mut draft.template.tensors {
            if tensor.bytes < LEAST_BYTES || tensor.bytes * 2 < largest {
                continue;
            }
            let op = model.op(tensor);
            let copy = op.contains("_to_copy") || op.contains("clone") || op.contains("contiguous");
            let backward = op.contains("_log_softmax_backward");
            if backward && !gradient_kept {
                // The gradient of the logits is whole, in whatever type they have.
                gradient_kept = true;
                if widened {
                    tensor.bytes /= 2;
                }
            } else if is_loss(op) || copy || from_linear && is_linear(op) && tensor.bytes == logits
            {
                tensor.bytes = tensor.bytes.div_ceil(chunks);
            }
        }
        draft.body.add(Load {
            launches: chunks as f64 * 6.0,
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
