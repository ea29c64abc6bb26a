//! What a model file contains, read from its headers alone.
//!
//! Readers for safetensors, GGUF, ONNX, PyTorch checkpoints and Hugging Face's `config.json`.
//! They take anything that reads and seeks, touch only headers (a checkpoint of 140 GB costs as
//! much as one of 140 MB), run nothing in a file, and limit everything that a file
//! can make them allocate. Imperfect input gives what could be read *and* a list of problems;
//! only input that yields nothing is an error.
//!
//! This crate opens no files; `oomph estimate` does.

mod adapter;
mod config;
mod dtype;
mod error;
mod fit;
mod gguf;
mod input;
mod model;
mod network;
mod onnx;
mod pickle;
mod safetensors;
mod shapes;
mod structure;
mod tape;
mod torch;
mod training;
mod zip;

pub use adapter::{Adapter, AdapterSettings};
pub use config::{Attention, ModelConfig, parse_config};
pub use dtype::DType;
pub use error::EstimateError;
pub use fit::{AskedGpu, Basis, Candidate, Needs, Workload, candidates, needs, workspace_bytes};
pub use gguf::read_gguf;
pub use model::{Activations, Format, Group, Model, Tensor};
pub use onnx::{OnnxOptions, read_onnx};
pub use safetensors::{parse_index, read_safetensors};
pub use structure::Structure;
pub use torch::read_torch;
pub use training::{Optimizer, Training};

use std::io::{Read, Seek};

/// Reads whichever of the binary formats the first bytes announce. `extension` (lower case, without
/// the dot) decides where they announce nothing: ONNX has no magic number.
pub fn read_any<R: Read + Seek>(
    reader: R,
    extension: &str,
    onnx: &OnnxOptions,
) -> Result<Model, EstimateError> {
    let mut input = input::Input::new(reader)?;
    let start = input.peek_start()?;
    if start.starts_with(b"GGUF") {
        return gguf::read(input);
    }
    if start.starts_with(b"PK\x03\x04") || torch::is_legacy(&start) {
        return torch::read(input);
    }
    // A safetensors header is JSON after its length.
    if extension == "safetensors" || start.get(8) == Some(&b'{') {
        return safetensors::read(input);
    }
    if extension == "onnx" {
        return onnx::read(input, onnx);
    }
    Err(EstimateError::UnknownFormat {
        found: error::show(&start),
    })
}
