//! What the headers say about a model.

use std::collections::BTreeMap;

use crate::adapter::Adapter;
use crate::config::ModelConfig;
use crate::dtype::DType;

/// The most problems that a reader keeps; a file with more is damaged throughout.
const MAX_PROBLEMS: usize = 50;

/// A model file's contents.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Model {
    /// The format that it was read from.
    pub format: Format,
    /// Every weight, in the file's order.
    pub tensors: Vec<Tensor>,
    /// Tensors of a training checkpoint that are not weights: those under a key such as
    /// `optimizer`.
    pub optimizer_state: Vec<Tensor>,
    /// Size of the model's layers, where the file or its `config.json` says.
    pub config: Option<ModelConfig>,
    /// Memory of intermediate values, where their shapes are known.
    pub activations: Option<Activations>,
    /// An adapter that works beside the weights.
    pub adapter: Option<Adapter>,
    /// Assumptions.
    pub assumptions: Vec<String>,
    /// What was wrong with the input, and what that means for the figures.
    pub problems: Vec<String>,
}

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// `.safetensors`
    Safetensors,
    /// `.gguf`
    Gguf,
    /// `.onnx`
    Onnx,
    /// `.pt`, `.pth`, `.bin`, `.ckpt`
    Torch,
    /// `config.json` alone.
    Config,
}

impl Format {
    /// As shown to people and in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
            Self::Onnx => "onnx",
            Self::Torch => "torch",
            Self::Config => "config",
        }
    }
}

/// One weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// As the file names it; empty where the file gives none.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Elements.
    pub elements: u64,
    /// Bytes that it takes in memory.
    pub bytes: u64,
}

/// Tensors of one type together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Group {
    /// How many tensors.
    pub tensors: u64,
    /// Elements of all of them.
    pub elements: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Memory of intermediate values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activations {
    /// The most that values with a known shape take at one moment, executed in the file's order.
    pub peak_bytes: u64,
    /// Values with a known shape.
    pub known: u64,
    /// Values without: the peak is a lower bound where this is not zero.
    pub unknown: u64,
}

impl Model {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            tensors: Vec::new(),
            optimizer_state: Vec::new(),
            config: None,
            activations: None,
            adapter: None,
            assumptions: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// A model with only a `config.json`.
    pub fn from_config(config: ModelConfig) -> Self {
        let mut model = Self::new(Format::Config);
        if let Some(parameters) = config.parameters {
            let dtype = config.dtype.unwrap_or(DType::F32);
            if let Some(bytes) = dtype.bytes_for(parameters) {
                model.tensors.push(Tensor {
                    name: "all parameters".to_owned(),
                    dtype,
                    elements: parameters,
                    bytes,
                });
                model.assumptions.push(format!(
                    "{parameters} parameters computed from config.json for model_type `{}`; no weights were read",
                    config.model_type
                ));
            }
        }
        model.config = Some(config);
        model
    }

    /// Adds the weights of another part of the same model (a shard).
    pub fn extend(&mut self, other: Self) {
        self.tensors.extend(other.tensors);
        self.optimizer_state.extend(other.optimizer_state);
        for problem in other.problems {
            self.problem(problem);
        }
        for assumption in other.assumptions {
            if !self.assumptions.contains(&assumption) {
                self.assumptions.push(assumption);
            }
        }
        self.config = self.config.take().or(other.config);
        self.activations = self.activations.or(other.activations);
    }

    /// Notes that something was wrong; beyond a bound, only that there is more.
    pub fn problem(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        } else if self.problems.len() == MAX_PROBLEMS {
            self.problems.push("and more".to_owned());
        }
    }

    /// Weights by type; sums saturate, which no real model reaches.
    pub fn weights(&self) -> BTreeMap<DType, Group> {
        let mut groups = BTreeMap::new();
        for tensor in &self.tensors {
            let group: &mut Group = groups.entry(tensor.dtype).or_default();
            group.tensors += 1;
            group.elements = group.elements.saturating_add(tensor.elements);
            group.bytes = group.bytes.saturating_add(tensor.bytes);
        }
        groups
    }

    /// Whether all weights are of plain floating types, not quantized.
    pub fn is_floating(&self) -> bool {
        let floating = |tensor: &Tensor| tensor.dtype.is_float();
        let (floats, others): (Vec<&Tensor>, Vec<&Tensor>) =
            self.tensors.iter().partition(|tensor| floating(tensor));
        let sum = |tensors: &[&Tensor]| tensors.iter().map(|t| t.elements as f64).sum::<f64>();
        // Buffers of positions and the like are integers in any model.
        sum(&others) <= sum(&floats) / 100.0
    }

    /// Bytes of all weights as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors
            .iter()
            .fold(0, |sum: u64, tensor| sum.saturating_add(tensor.bytes))
    }

    /// Bytes of the optimizer's state in a training checkpoint.
    pub fn optimizer_bytes(&self) -> u64 {
        self.optimizer_state
            .iter()
            .fold(0, |sum: u64, tensor| sum.saturating_add(tensor.bytes))
    }

    /// Bytes of all weights after floating ones are cast to `dtype`.
    pub fn weight_bytes_as(&self, dtype: DType) -> u64 {
        self.tensors.iter().fold(0, |sum: u64, tensor| {
            let bytes = if tensor.dtype.is_float() {
                dtype.bytes_for(tensor.elements).unwrap_or(u64::MAX)
            } else {
                tensor.bytes
            };
            sum.saturating_add(bytes)
        })
    }

    /// Elements of all weights.
    pub fn elements(&self) -> u64 {
        self.tensors
            .iter()
            .fold(0, |sum: u64, tensor| sum.saturating_add(tensor.elements))
    }
}
