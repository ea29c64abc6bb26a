//! GGUF: typed metadata, then the list of tensors, then their bytes.

use std::io::{Read, Seek};

use crate::config::{Attention, ModelConfig};
use crate::dtype::{DType, elements};
use crate::error::{EstimateError, show};
use crate::input::Input;
use crate::model::{Format, Model, Tensor};

const FORMAT: &str = "GGUF";
/// Real files have a few dozen metadata entries and up to some thousand tensors.
const MAX_ENTRIES: u64 = 1 << 20;
/// Tensor names and metadata keys; the format's own limit for keys.
const MAX_NAME: u64 = 65_535;
/// ggml has at most four dimensions.
const MAX_DIMENSIONS: u32 = 8;
/// Arrays of arrays; real files have none.
const MAX_DEPTH: u32 = 4;

/// Reads the header of a GGUF file.
pub fn read_gguf<R: Read + Seek>(reader: R) -> Result<Model, EstimateError> {
    read(Input::new(reader)?)
}

pub(crate) fn read<R: Read + Seek>(mut input: Input<R>) -> Result<Model, EstimateError> {
    let mut magic = [0; 4];
    input.exact(&mut magic, "the magic number")?;
    if &magic != b"GGUF" {
        return Err(EstimateError::Malformed {
            format: FORMAT,
            offset: 0,
            expected: "\"GGUF\"".to_owned(),
            found: show(&magic),
        });
    }
    let version = input.u32("the version")?;
    if !(2..=3).contains(&version) {
        let what = if version.swap_bytes() == 2 || version.swap_bytes() == 3 {
            "a big-endian file; only little-endian ones are read".to_owned()
        } else {
            format!("version {version}; versions 2 and 3 are read")
        };
        return Err(EstimateError::Unsupported {
            format: FORMAT,
            what,
        });
    }
    let tensor_count = count(&mut input, "the number of tensors")?;
    let entry_count = count(&mut input, "the number of metadata entries")?;
    let mut metadata = Metadata::default();
    for _ in 0..entry_count {
        let key = string(&mut input, "a metadata key")?;
        let kind = input.u32("a metadata type")?;
        let value = value(&mut input, kind, 0)?;
        metadata.note(&key, value);
    }
    let mut model = Model::new(Format::Gguf);
    let mut end_of_data = 0_u64;
    for _ in 0..tensor_count {
        let name = string(&mut input, "a tensor's name")?;
        let dimensions = input.u32("a tensor's dimensions")?;
        if dimensions > MAX_DIMENSIONS {
            return Err(EstimateError::Limit {
                format: FORMAT,
                what: "the number of a tensor's dimensions",
                value: u64::from(dimensions),
                limit: u64::from(MAX_DIMENSIONS),
            });
        }
        let mut shape = Vec::with_capacity(dimensions as usize);
        for _ in 0..dimensions {
            shape.push(input.u64("a tensor's shape")?);
        }
        let kind = input.u32("a tensor's type")?;
        let offset = input.u64("a tensor's offset")?;
        let Some(dtype) = ggml_type(kind) else {
            model.problem(format!(
                "tensor `{name}` has the unknown ggml type {kind}; ignored, so the weights are a lower bound"
            ));
            continue;
        };
        let sized = elements(&shape).and_then(|count| Some((count, dtype.bytes_for(count)?)));
        let Some((count, bytes)) = sized else {
            model.problem(format!("tensor `{name}` has an impossible shape; ignored"));
            continue;
        };
        end_of_data = end_of_data.max(offset.saturating_add(bytes));
        model.tensors.push(Tensor {
            name,
            dtype,
            elements: count,
            bytes,
        });
    }
    // The data begins at the next multiple of the alignment, which no real file sets above 4096.
    let present = input.remaining();
    if end_of_data > present {
        model.problem(format!(
            "the file has {present} of the {end_of_data} bytes of data that its header lists: an incomplete download? The figures are for the whole file"
        ));
    }
    model.config = metadata.config(model.elements());
    Ok(model)
}

fn count<R: Read + Seek>(input: &mut Input<R>, what: &'static str) -> Result<u64, EstimateError> {
    let value = input.u64(what)?;
    if value > MAX_ENTRIES {
        return Err(EstimateError::Limit {
            format: FORMAT,
            what,
            value,
            limit: MAX_ENTRIES,
        });
    }
    Ok(value)
}

fn string<R: Read + Seek>(
    input: &mut Input<R>,
    what: &'static str,
) -> Result<String, EstimateError> {
    let length = input.u64(what)?;
    let bytes = input.bytes(length, MAX_NAME, FORMAT, what)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The metadata that matters here; the rest is skipped.
enum Value {
    Number(u64),
    Numbers(Vec<u64>),
    Text(String),
    Skipped,
}

fn value<R: Read + Seek>(
    input: &mut Input<R>,
    kind: u32,
    depth: u32,
) -> Result<Value, EstimateError> {
    const WHAT: &str = "a metadata value";
    Ok(match kind {
        // u8, i8, bool
        0 | 1 | 7 => Value::Number(u64::from(input.byte(WHAT)?)),
        // u16, i16
        2 | 3 => Value::Number(u64::from(input.u16(WHAT)?)),
        // u32, i32
        4 | 5 => Value::Number(u64::from(input.u32(WHAT)?)),
        // f32
        6 => {
            input.skip(4, WHAT)?;
            Value::Skipped
        }
        8 => {
            let length = input.u64(WHAT)?;
            // Chat templates are long; names of architectures are not.
            if length <= MAX_NAME {
                let bytes = input.bytes(length, MAX_NAME, FORMAT, WHAT)?;
                Value::Text(String::from_utf8_lossy(&bytes).into_owned())
            } else {
                input.skip(length, WHAT)?;
                Value::Skipped
            }
        }
        9 => array(input, depth)?,
        // u64, i64
        10 | 11 => Value::Number(input.u64(WHAT)?),
        // f64
        12 => {
            input.skip(8, WHAT)?;
            Value::Skipped
        }
        _ => {
            return Err(EstimateError::Malformed {
                format: FORMAT,
                offset: input.position(),
                expected: "a metadata type from 0 to 12".to_owned(),
                found: kind.to_string(),
            });
        }
    })
}

fn array<R: Read + Seek>(input: &mut Input<R>, depth: u32) -> Result<Value, EstimateError> {
    const WHAT: &str = "a metadata array";
    /// Per-layer values; vocabularies are longer and of no interest.
    const MAX_KEPT: u64 = 4096;
    if depth >= MAX_DEPTH {
        return Err(EstimateError::Limit {
            format: FORMAT,
            what: "the depth of a metadata array",
            value: u64::from(depth),
            limit: u64::from(MAX_DEPTH),
        });
    }
    let kind = input.u32(WHAT)?;
    let length = input.u64(WHAT)?;
    let width = match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    };
    if let Some(width) = width
        && (length > MAX_KEPT || kind == 6 || kind == 12)
    {
        let bytes = length.checked_mul(width).ok_or(EstimateError::Limit {
            format: FORMAT,
            what: "the length of a metadata array",
            value: length,
            limit: u64::MAX / width,
        })?;
        input.skip(bytes, WHAT)?;
        return Ok(Value::Skipped);
    }
    // Each element takes at least a byte, so the file's length bounds the loop.
    if length > input.remaining() {
        return Err(EstimateError::Truncated {
            what: WHAT,
            length: input.length(),
        });
    }
    let mut numbers = Vec::new();
    for _ in 0..length {
        if kind == 8 {
            let length = input.u64(WHAT)?;
            input.skip(length, WHAT)?;
        } else if let Value::Number(number) = value(input, kind, depth + 1)? {
            numbers.push(number);
        }
    }
    Ok(Value::Numbers(numbers))
}

/// Ends of the keys that are kept, after `<architecture>.`.
const WANTED: [&str; 10] = [
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "context_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
];

#[derive(Default)]
struct Metadata {
    architecture: Option<String>,
    values: Vec<(String, Value)>,
}

impl Metadata {
    fn note(&mut self, key: &str, value: Value) {
        match (key, value) {
            (_, Value::Skipped) => {}
            ("general.architecture", Value::Text(name)) => self.architecture = Some(name),
            (key, value) if WANTED.iter().any(|suffix| key.ends_with(suffix)) => {
                self.values.push((key.to_owned(), value));
            }
            _ => {}
        }
    }

    fn get(&self, suffix: &str) -> Option<&Value> {
        let architecture = self.architecture.as_deref()?;
        self.values
            .iter()
            .find(|(key, _)| {
                key.strip_prefix(architecture)
                    .and_then(|rest| rest.strip_prefix('.'))
                    == Some(suffix)
            })
            .map(|(_, value)| value)
    }

    fn number(&self, suffix: &str) -> Option<u64> {
        match self.get(suffix)? {
            Value::Number(number) => Some(*number),
            Value::Numbers(numbers) => numbers.first().copied(),
            _ => None,
        }
    }

    fn config(&self, parameters: u64) -> Option<ModelConfig> {
        let layers = self.number("block_count")?;
        let hidden = self.number("embedding_length")?;
        let heads = self.number("attention.head_count");
        let attention = heads.filter(|heads| *heads > 0).and_then(|heads| {
            let key = self
                .number("attention.key_length")
                .or_else(|| hidden.checked_div(heads))?;
            let value = self.number("attention.value_length").unwrap_or(key);
            // One number for all layers, or one per layer.
            let kv_heads_of_all_layers = match self.get("attention.head_count_kv") {
                Some(Value::Numbers(per_layer)) if !per_layer.is_empty() => per_layer
                    .iter()
                    .fold(0_u64, |sum, heads| sum.saturating_add(*heads)),
                Some(Value::Number(heads)) => heads.saturating_mul(layers),
                _ => heads.saturating_mul(layers),
            };
            Some(Attention {
                elements_per_token: kv_heads_of_all_layers
                    .saturating_mul(key.saturating_add(value)),
                sliding_window: self.number("attention.sliding_window").filter(|w| *w > 0),
            })
        });
        Some(ModelConfig {
            structure: None,
            unknown: None,
            model_type: self.architecture.clone().unwrap_or_default(),
            parameters: Some(parameters),
            dtype: None,
            layers,
            hidden,
            intermediate: self.number("feed_forward_length"),
            vocabulary: self.number("vocab_size"),
            max_positions: self.number("context_length"),
            attention,
            notes: Vec::new(),
        })
    }
}

/// ggml's types: name, elements and bytes of a block.
fn ggml_type(kind: u32) -> Option<DType> {
    Some(match kind {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::blocks("q4_0", 32, 18),
        3 => DType::blocks("q4_1", 32, 20),
        6 => DType::blocks("q5_0", 32, 22),
        7 => DType::blocks("q5_1", 32, 24),
        8 => DType::blocks("q8_0", 32, 34),
        10 => DType::blocks("q2_k", 256, 84),
        11 => DType::blocks("q3_k", 256, 110),
        12 => DType::blocks("q4_k", 256, 144),
        13 => DType::blocks("q5_k", 256, 176),
        14 => DType::blocks("q6_k", 256, 210),
        15 => DType::blocks("q8_k", 256, 292),
        16 => DType::blocks("iq2_xxs", 256, 66),
        17 => DType::blocks("iq2_xs", 256, 74),
        18 => DType::blocks("iq3_xxs", 256, 98),
        19 => DType::blocks("iq1_s", 256, 50),
        20 => DType::blocks("iq4_nl", 32, 18),
        21 => DType::blocks("iq3_s", 256, 110),
        22 => DType::blocks("iq2_s", 256, 82),
        23 => DType::blocks("iq4_xs", 256, 136),
        24 => DType::I8,
        25 => DType::I16,
        26 => DType::I32,
        27 => DType::I64,
        28 => DType::F64,
        29 => DType::blocks("iq1_m", 256, 56),
        30 => DType::BF16,
        34 => DType::blocks("tq1_0", 256, 54),
        35 => DType::blocks("tq2_0", 256, 66),
        39 => DType::blocks("mxfp4", 32, 17),
        40 => DType::blocks("nvfp4", 64, 36),
        41 => DType::blocks("q1_0", 128, 18),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn number(out: &mut Vec<u8>, key: &str, value: u32) {
        text(out, key);
        out.extend(4_u32.to_le_bytes());
        out.extend(value.to_le_bytes());
    }

    fn tensor(out: &mut Vec<u8>, name: &str, shape: &[u64], kind: u32, offset: u64) {
        text(out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        for size in shape {
            out.extend(size.to_le_bytes());
        }
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }

    fn small() -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(2_u64.to_le_bytes());
        out.extend(7_u64.to_le_bytes());
        text(&mut out, "general.architecture");
        out.extend(8_u32.to_le_bytes());
        text(&mut out, "llama");
        number(&mut out, "llama.block_count", 2);
        number(&mut out, "llama.embedding_length", 256);
        number(&mut out, "llama.attention.head_count", 8);
        number(&mut out, "llama.attention.head_count_kv", 2);
        number(&mut out, "llama.context_length", 4096);
        text(&mut out, "tokenizer.ggml.tokens");
        out.extend(9_u32.to_le_bytes());
        out.extend(8_u32.to_le_bytes());
        out.extend(2_u64.to_le_bytes());
        text(&mut out, "<s>");
        text(&mut out, "</s>");
        tensor(&mut out, "token_embd.weight", &[256, 1000], 12, 0);
        tensor(&mut out, "output_norm.weight", &[256], 0, 144_000);
        out.resize(out.len() + 144_000 + 1024 + 32, 0);
        out
    }

    #[test]
    fn a_small_file() {
        let model = read_gguf(Cursor::new(small())).expect("reads");
        assert_eq!(model.problems, Vec::<String>::new());
        assert_eq!(model.elements(), 256_000 + 256);
        assert_eq!(model.weight_bytes(), 144_000 + 1024);
        let config = model.config.expect("config");
        assert_eq!(config.model_type, "llama");
        assert_eq!(config.max_positions, Some(4096));
        // 2 layers x 2 heads x (32 + 32)
        assert_eq!(config.attention.expect("attention").elements_per_token, 256);
    }

    #[test]
    fn every_truncation_is_an_error_or_a_problem() {
        let whole = small();
        for length in 0..whole.len() {
            match read_gguf(Cursor::new(&whole[..length])) {
                Err(EstimateError::Truncated { .. }) => {}
                Ok(model) => {
                    // The 32 bytes at the end are padding.
                    assert!(
                        !model.problems.is_empty() || length + 32 >= whole.len(),
                        "{length}"
                    );
                }
                Err(other) => panic!("{length}: {other}"),
            }
        }
    }

    #[test]
    fn hostile_counts_are_refused() {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(u64::MAX.to_le_bytes());
        out.extend(0_u64.to_le_bytes());
        assert!(matches!(
            read_gguf(Cursor::new(&out)),
            Err(EstimateError::Limit { .. })
        ));
        let mut out = b"GGUF".to_vec();
        out.extend(1_u32.to_le_bytes());
        let error = read_gguf(Cursor::new(&out)).expect_err("version");
        assert!(error.to_string().contains("version 1"), "{error}");
    }
}
