//! safetensors: a length, a JSON object of tensors, then their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{Read, Seek};

use serde::Deserialize;
use serde::de::{self, MapAccess, Visitor};

use crate::dtype::{DType, elements};
use crate::error::{EstimateError, show};
use crate::input::Input;
use crate::model::{Format, Model, Tensor};

const FORMAT: &str = "safetensors";
/// The limit of the reference implementation.
const MAX_HEADER: u64 = 100_000_000;

/// Reads the header of a safetensors file.
pub fn read_safetensors<R: Read + Seek>(reader: R) -> Result<Model, EstimateError> {
    read(Input::new(reader)?)
}

pub(crate) fn read<R: Read + Seek>(mut input: Input<R>) -> Result<Model, EstimateError> {
    let header_length = input.u64("the header's length")?;
    let header = input.bytes(header_length, MAX_HEADER, FORMAT, "the header")?;
    let data_start = input.position();
    if header.first() != Some(&b'{') {
        return Err(EstimateError::Malformed {
            format: FORMAT,
            offset: 8,
            expected: "a JSON object".to_owned(),
            found: show(&header),
        });
    }
    let entries: Entries =
        serde_json::from_slice(&header).map_err(|error| EstimateError::Malformed {
            format: FORMAT,
            // JSON errors count columns from 1 within the (single-line) header.
            offset: 8 + (error.column() as u64).saturating_sub(1),
            expected: "tensors with dtype, shape and data_offsets".to_owned(),
            found: error.to_string(),
        })?;
    let mut model = Model::new(Format::Safetensors);
    let mut end_of_data = 0_u64;
    let mut ranges = Vec::with_capacity(entries.0.len());
    for (name, entry) in entries.0 {
        let [begin, end] = entry.data_offsets;
        let Some(bytes) = end.checked_sub(begin) else {
            model.problem(format!("tensor `{name}` ends before it begins; ignored"));
            continue;
        };
        let Some(dtype) = dtype(&entry.dtype) else {
            model.problem(format!(
                "tensor `{name}` has the unknown type {}; its {bytes} bytes are counted as u8",
                entry.dtype
            ));
            model.tensors.push(Tensor {
                name,
                dtype: DType::U8,
                elements: bytes,
                bytes,
            });
            continue;
        };
        let Some(count) = elements(&entry.shape) else {
            model.problem(format!("tensor `{name}` has an impossible shape; ignored"));
            continue;
        };
        if dtype.bytes_for(count) != Some(bytes) {
            model.problem(format!(
                "tensor `{name}` of shape {:?} takes {bytes} bytes, but {dtype} needs {}; oomph counts the bytes",
                entry.shape,
                dtype
                    .bytes_for(count)
                    .map_or_else(|| "more than there are".to_owned(), |bytes| bytes.to_string())
            ));
        }
        end_of_data = end_of_data.max(end);
        if bytes > 0 {
            ranges.push((begin, end));
        }
        model.tensors.push(Tensor {
            name,
            dtype,
            elements: count,
            bytes,
        });
    }
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        model.problem("tensors overlap in the file; each is counted in full".to_owned());
    }
    let present = input.length() - data_start;
    if end_of_data > present {
        model.problem(format!(
            "the file has {present} of the {end_of_data} bytes of data that its header lists: an incomplete download? The figures are for the whole file"
        ));
    }
    Ok(model)
}

/// The shard files that a `*.safetensors.index.json` (or PyTorch's `*.bin.index.json`) lists, in
/// alphabetical order.
pub fn parse_index(text: &str) -> Result<Vec<String>, EstimateError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let index: Index = serde_json::from_str(text).map_err(|error| EstimateError::Malformed {
        format: "index.json",
        offset: 0,
        expected: "an object with weight_map".to_owned(),
        found: error.to_string(),
    })?;
    let files: BTreeSet<String> = index.weight_map.into_values().collect();
    // A name with a separator could lead out of the model's directory.
    if let Some(file) = files
        .iter()
        .find(|file| file.contains(['/', '\\']) || *file == ".." || file.is_empty())
    {
        return Err(EstimateError::Malformed {
            format: "index.json",
            offset: 0,
            expected: "plain file names in weight_map".to_owned(),
            found: format!("{file:?}"),
        });
    }
    Ok(files.into_iter().collect())
}

fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "F64" => DType::F64,
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "F8_E4M3" => DType::F8_E4M3,
        "F8_E5M2" => DType::F8_E5M2,
        "F8_E8M0" => DType::F8_E8M0,
        "F6_E2M3" | "F6_E3M2" => DType::F6,
        "F4" => DType::F4,
        "I64" => DType::I64,
        "I32" => DType::I32,
        "I16" => DType::I16,
        "I8" => DType::I8,
        "U64" => DType::U64,
        "U32" => DType::U32,
        "U16" => DType::U16,
        "U8" => DType::U8,
        "BOOL" => DType::BOOL,
        "C64" => DType::C64,
        _ => return None,
    })
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header's tensors in order, `__metadata__` left out. Duplicate names are an error: readers
/// disagree about which one counts.
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                let mut seen = BTreeSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<de::IgnoredAny>()?;
                        continue;
                    }
                    if !seen.insert(name.clone()) {
                        return Err(de::Error::custom(format!("tensor `{name}` appears twice")));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(EntriesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    #[test]
    fn a_small_file() {
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"b":{"dtype":"F32","shape":[],"data_offsets":[12,16]}}"#;
        let model = read_safetensors(Cursor::new(file(header, 16))).expect("reads");
        assert_eq!(model.problems, Vec::<String>::new());
        assert_eq!(model.weight_bytes(), 16);
        assert_eq!(model.elements(), 7);
        assert_eq!(model.weight_bytes_as(DType::F32), 28);
        assert_eq!(model.weights()[&DType::BF16].tensors, 1);
    }

    #[test]
    fn the_header_alone_is_enough_but_said() {
        let header = r#"{"a":{"dtype":"F16","shape":[1024],"data_offsets":[0,2048]}}"#;
        let model = read_safetensors(Cursor::new(file(header, 100))).expect("reads");
        assert_eq!(model.weight_bytes(), 2048);
        assert!(
            model.problems[0].contains("100 of the 2048"),
            "{:?}",
            model.problems
        );
    }

    #[test]
    fn hostile_headers_are_refused_or_reported() {
        let huge = u64::MAX.to_le_bytes().to_vec();
        assert!(matches!(
            read_safetensors(Cursor::new(huge)),
            Err(EstimateError::Limit { .. })
        ));
        let long = 1000_u64.to_le_bytes().to_vec();
        assert!(matches!(
            read_safetensors(Cursor::new(long)),
            Err(EstimateError::Truncated { .. })
        ));
        for (header, problem) in [
            (
                r#"{"a":{"dtype":"F16","shape":[1],"data_offsets":[2,0]}}"#,
                "before it begins",
            ),
            (
                r#"{"a":{"dtype":"F16","shape":[18446744073709551615,2],"data_offsets":[0,2]}}"#,
                "impossible shape",
            ),
            (
                r#"{"a":{"dtype":"F16","shape":[3],"data_offsets":[0,2]}}"#,
                "f16 needs 6",
            ),
            (
                r#"{"a":{"dtype":"Q9","shape":[3],"data_offsets":[0,2]}}"#,
                "unknown type Q9",
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
                "overlap",
            ),
        ] {
            let model = read_safetensors(Cursor::new(file(header, 8))).expect(header);
            assert!(
                model.problems[0].contains(problem),
                "{header}: {:?}",
                model.problems
            );
        }
        for (header, message) in [
            ("[]", "JSON object"),
            ("{", "EOF"),
            (
                r#"{"a":{"dtype":"F16","shape":[-1],"data_offsets":[0,2]}}"#,
                "-1",
            ),
            (r#"{"a":3}"#, "invalid type"),
            (
                r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
                "appears twice",
            ),
        ] {
            let error = read_safetensors(Cursor::new(file(header, 8))).expect_err(header);
            assert!(error.to_string().contains(message), "{header}: {error}");
        }
    }

    #[test]
    fn an_index_stays_in_its_directory() {
        let index = r#"{"metadata":{},"weight_map":{"a":"model-2.safetensors","b":"model-1.safetensors","c":"model-2.safetensors"}}"#;
        assert_eq!(
            parse_index(index).expect("index"),
            ["model-1.safetensors", "model-2.safetensors"]
        );
        for bad in ["../x", "/etc/passwd", "a\\\\b", "", ".."] {
            let index = format!(r#"{{"weight_map":{{"a":"{bad}"}}}}"#);
            assert!(parse_index(&index).is_err(), "{bad}");
        }
    }
}
