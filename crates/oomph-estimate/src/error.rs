//! Why a file could not be read.

use std::io;

/// The input yields nothing useful.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EstimateError {
    /// The system could not read.
    #[error("cannot read at byte {offset}: {source}")]
    Io {
        /// Where.
        offset: u64,
        /// Why.
        source: io::Error,
    },
    /// The file ends too early.
    #[error("the file ends at byte {length}, inside {what}: an incomplete download?")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// The file's length.
        length: u64,
    },
    /// The bytes are not in this format.
    #[error("not a readable {format} file: at byte {offset}, expected {expected}, found {found}")]
    Malformed {
        /// The format that was tried.
        format: &'static str,
        /// Where.
        offset: u64,
        /// What should have been there.
        expected: String,
        /// What was there.
        found: String,
    },
    /// The file asks for more than any real one needs.
    #[error("{format}: {what} is {value}, beyond the limit of {limit}: a damaged or hostile file")]
    Limit {
        /// The format that was tried.
        format: &'static str,
        /// Which quantity.
        what: &'static str,
        /// What the file says.
        value: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// Something that this version cannot read.
    #[error("{format}: {what}")]
    Unsupported {
        /// The format.
        format: &'static str,
        /// What is not supported and what to do instead.
        what: String,
    },
    /// No known format.
    #[error(
        "unknown model format: it begins with {found}; expected .safetensors, .gguf, .onnx, .pt/.pth/.bin, or a Hugging Face config.json"
    )]
    UnknownFormat {
        /// The first bytes.
        found: String,
    },
    /// A `config.json` that describes no model.
    #[error("{problem}")]
    Config {
        /// What was expected and found.
        problem: String,
    },
}

/// Bytes as a message shows them.
pub(crate) fn show(bytes: &[u8]) -> String {
    const SHOWN: usize = 16;
    if bytes.is_empty() {
        return "nothing".to_owned();
    }
    let shown: String = bytes
        .iter()
        .take(SHOWN)
        .flat_map(|byte| std::ascii::escape_default(*byte))
        .map(char::from)
        .collect();
    format!("\"{shown}\"")
}
