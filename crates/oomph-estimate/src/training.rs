//! What training adds to a model: gradients, the optimizer's state, and what its step needs.

use crate::model::Tensor;

/// How a model is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Training {
    /// Which optimizer steps.
    pub optimizer: Optimizer,
    /// Passes whose gradients are added before a step.
    pub accumulation: u64,
    /// Whether each layer is computed again in the backward pass.
    pub checkpointing: bool,
}

/// An optimizer, as PyTorch, transformers or bitsandbytes has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Optimizer {
    /// `torch.optim.AdamW` and `Adam`.
    AdamW,
    /// The same with `fused=True`.
    AdamWFused,
    /// bitsandbytes' `AdamW8bit`.
    AdamW8bit,
    /// transformers' `Adafactor`, without first moments.
    Adafactor,
    /// `torch.optim.SGD` without momentum.
    Sgd,
    /// `torch.optim.SGD` with momentum.
    Momentum,
}

/// bitsandbytes leaves smaller tensors in fp32, and scales blocks of 256 elements.
const EIGHT_BIT_LEAST: f64 = 4096.0;
const EIGHT_BIT_BLOCK: f64 = 256.0;

impl Optimizer {
    /// All, by the name that people give them.
    pub const ALL: [(&'static str, Self); 6] = [
        ("adamw", Self::AdamW),
        ("adamw_fused", Self::AdamWFused),
        ("adamw_8bit", Self::AdamW8bit),
        ("adafactor", Self::Adafactor),
        ("sgd", Self::Sgd),
        ("momentum", Self::Momentum),
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find_map(|&(name, optimizer)| (optimizer == self).then_some(name))
            .unwrap_or_default()
    }

    /// Bytes of the state of a tensor of weights of `size` bytes each.
    fn state(self, elements: f64, size: f64) -> f64 {
        match self {
            Self::AdamW | Self::AdamWFused => 2.0 * elements * size,
            Self::AdamW8bit if elements < EIGHT_BIT_LEAST => 8.0 * elements,
            Self::AdamW8bit => 2.0 * elements * (1.0 + 4.0 / EIGHT_BIT_BLOCK),
            // A row's and a column's means; of a vector all.
            Self::Adafactor if elements < EIGHT_BIT_LEAST => 4.0 * elements,
            Self::Adafactor => 8.0 * elements.sqrt(),
            Self::Sgd => 0.0,
            Self::Momentum => elements * size,
        }
    }
}

/// Bytes that the optimizer keeps, and those that are there only while it steps.
pub(crate) fn optimizer_bytes(optimizer: Optimizer, trained: &[Tensor], size: f64) -> (f64, f64) {
    let sizes = trained.iter().map(|tensor| tensor.elements as f64);
    let state = sizes
        .clone()
        .map(|elements| optimizer.state(elements, size))
        .sum();
    let scratch = match optimizer {
        // The square roots of all second moments at once.
        Optimizer::AdamW => sizes.sum::<f64>() * size,
        // One tensor at a time, in fp32: its update and the factors' product.
        Optimizer::Adafactor => 2.0 * 4.0 * sizes.fold(0.0, f64::max),
        _ => 0.0,
    };
    (state, scratch)
}
