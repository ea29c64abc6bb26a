//! `attention`: a kernel that never writes the matrix of scores.
//!
//! Offered where PyTorch's own attention ran on its plain kernel, which keeps the scores. Memory:
//! what that kernel made goes, but for its result. Time: less, not counted. Results: to rounding.

use serde::{Deserialize, Serialize};

use oomph_trace::Phase;

use crate::by_hand::{Context, Script, Work, loops};
use crate::draft::Draft;
use crate::lever::{Facets, Group, Results, Stage};
use crate::levers::Lever;
use crate::model::{Event, Model};
use crate::search::Options;

/// The operator of the plain kernel.
const PLAIN: &str = "_scaled_dot_product_attention_math";

/// A kernel of `scaled_dot_product_attention`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "PyTorch's own names")]
pub enum Backend {
    Flash,
    Efficient,
    Cudnn,
}

/// Attention that never writes the matrix of scores.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// The kernel to prefer.
    pub backend: Backend,
}

impl Facets for Attention {
    fn results(&self) -> Results {
        Results::Rounding
    }

    fn label(&self) -> String {
        match self.backend {
            Backend::Flash => "flash attention",
            Backend::Efficient => "memory-efficient attention",
            Backend::Cudnn => "cuDNN attention",
        }
        .to_owned()
    }

    fn is_only_on_gpu(&self) -> bool {
        true
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Attention)
    }

    /// Where the plain kernel ran.
    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let offered = model.ops.iter().any(|op| op.contains(PLAIN));
        let backend = Backend::Efficient;
        offered.then_some(Self { backend }).into_iter().collect()
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let Some(plain) = draft.model.ops.iter().position(|op| op.contains(PLAIN)) else {
            return;
        };
        // Scores are the largest that it makes in a call; the result is smaller.
        let scores: Vec<bool> = {
            let tensors = &draft.template.tensors;
            let largest = tensors
                .iter()
                .filter(|tensor| {
                    tensor.op == plain as u32
                        && matches!(tensor.phase, Phase::Forward | Phase::Inference)
                })
                .map(|tensor| tensor.bytes)
                .max()
                .unwrap_or(0);
            tensors
                .iter()
                .map(|tensor| tensor.op == plain as u32 && tensor.bytes == largest)
                .collect()
        };
        draft.template.body.retain(|event| match event {
            Event::Alloc(number) | Event::Free(number) | Event::FreePrevious(number) => {
                !scores.get(*number as usize).copied().unwrap_or(false)
            }
            Event::EmptyCache => true,
        });
    }

    fn snippet(&self) -> String {
        format!(
            "around the model's call (Hugging Face models that write the scores themselves: attn_implementation=\"sdpa\" where they are made):\nimport torch.nn.attention\nwith {}:\n    ...",
            self.kernels()
        )
    }

    fn place(&self, work: &mut Work<'_>, levers: &[Lever]) -> Option<()> {
        loops::place(work, &self.clone().into(), levers)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.training_line()
    }

    fn context(&self) -> Option<Context> {
        Some(Context {
            text: self.kernels(),
            import: Some("import torch.nn.attention"),
        })
    }
}

impl Attention {
    /// This kernel first, then the others.
    fn kernels(&self) -> String {
        let name = |backend| match backend {
            Backend::Flash => "FLASH_ATTENTION",
            Backend::Efficient => "EFFICIENT_ATTENTION",
            Backend::Cudnn => "CUDNN_ATTENTION",
        };
        let all = [Backend::Flash, Backend::Efficient, Backend::Cudnn];
        let others = all.into_iter().filter(|other| *other != self.backend);
        let names: Vec<String> = std::iter::once(self.backend)
            .chain(others)
            .map(name)
            .chain(["MATH"])
            .map(|name| format!("torch.nn.attention.SDPBackend.{name}"))
            .collect();
        format!(
            "torch.nn.attention.sdpa_kernel([{}], set_priority=True)",
            names.join(", ")
        )
    }
}
