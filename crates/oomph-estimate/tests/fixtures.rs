//! The readers against files written by the libraries of each format, and the parameter formulas
//! against the models' own implementations. The fixtures lie beside the scripts that made them.

#![expect(
    clippy::expect_used,
    reason = "a fixture that cannot be read is a failed test"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use oomph_estimate::{
    Model, OnnxOptions, parse_config, read_any, read_gguf, read_onnx, read_torch,
};
use serde_json::Value;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

fn json(name: &str) -> Value {
    let text = std::fs::read_to_string(path(name)).expect(name);
    serde_json::from_str(&text).expect(name)
}

fn read(name: &str) -> Model {
    let extension = name.rsplit('.').next().expect("extension");
    read_any(
        File::open(path(name)).expect(name),
        extension,
        &OnnxOptions::default(),
    )
    .expect(name)
}

/// Everything in the file: weights and optimizer state.
fn bytes_by_type(model: &Model) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    for tensor in model.tensors.iter().chain(&model.optimizer_state) {
        *bytes.entry(tensor.dtype.name().to_owned()).or_default() += tensor.bytes;
    }
    bytes
}

fn expected_bytes(value: &Value) -> BTreeMap<String, u64> {
    let short = |name: &str| {
        match name {
            "float32" => "f32",
            "float16" => "f16",
            "bfloat16" => "bf16",
            "float8_e4m3fn" => "f8_e4m3",
            "int64" => "i64",
            other => other,
        }
        .to_owned()
    };
    value
        .as_object()
        .expect("object")
        .iter()
        .map(|(name, bytes)| (short(name), bytes.as_u64().expect("bytes")))
        .collect()
}

#[test]
fn torch_and_safetensors_files() {
    for (name, expected) in json("expected_bytes.json").as_object().expect("object") {
        let model = read(name);
        assert_eq!(bytes_by_type(&model), expected_bytes(expected), "{name}");
        if name == "view.pt" {
            continue;
        }
        assert_eq!(model.problems, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn tensors_have_the_names_of_the_state_dict() {
    let names = |file| -> Vec<String> {
        let model = read_torch(File::open(path(file)).expect(file)).expect(file);
        model
            .tensors
            .into_iter()
            .map(|tensor| tensor.name)
            .collect()
    };
    let state = names("state_dict.pt");
    // head.weight shares embed.weight's storage.
    assert_eq!(state[0], "embed.weight");
    assert!(state.contains(&"norm.running_mean".to_owned()), "{state:?}");
    assert!(!state.contains(&"head.weight".to_owned()), "{state:?}");
    let module = names("module.pt");
    assert!(module.contains(&"0.weight".to_owned()), "{module:?}");
    assert!(module.contains(&"1.running_var".to_owned()), "{module:?}");
    let checkpoint = read("checkpoint.pt");
    assert_eq!(
        checkpoint.weight_bytes(),
        read("state_dict.pt").weight_bytes()
    );
    assert!(
        checkpoint
            .optimizer_state
            .iter()
            .any(|tensor| tensor.name == "optimizer.state.0.exp_avg"),
        "{:?}",
        checkpoint.optimizer_state
    );
}

#[test]
fn onnx_files() {
    let expected = json("expected_onnx_gguf.json");
    for name in ["conv.onnx", "external.onnx", "typed.onnx"] {
        let model = read(name);
        assert_eq!(
            bytes_by_type(&model),
            expected_bytes(&expected[name]["weights"]),
            "{name}: {:?}",
            model.problems
        );
    }
    let model = read("conv.onnx");
    assert_eq!(model.problems, Vec::<String>::new());
    let peak = expected["conv.onnx"]["peak"].as_u64().expect("peak");
    assert_eq!(model.activations.expect("activations").peak_bytes, peak);
    let options = OnnxOptions {
        dimensions: [("batch".to_owned(), 8)].into(),
        ..OnnxOptions::default()
    };
    let model = read_onnx(File::open(path("conv.onnx")).expect("file"), &options).expect("model");
    assert_eq!(model.activations.expect("activations").peak_bytes, 8 * peak);
    // The same graph without stated shapes: ours are ONNX's.
    let bare = read("external.onnx");
    assert_eq!(bare.problems, Vec::<String>::new());
    assert_eq!(
        bare.activations.expect("activations"),
        read("conv.onnx").activations.expect("activations")
    );
    let typed = read("typed.onnx");
    assert!(
        typed.problems.iter().any(|p| p.contains("bodies")),
        "{:?}",
        typed.problems
    );
}

#[test]
fn gguf_files() {
    let expected = json("expected_onnx_gguf.json");
    let model = read("small.gguf");
    assert_eq!(model.problems, Vec::<String>::new());
    assert_eq!(
        bytes_by_type(&model),
        expected_bytes(&expected["small.gguf"]["weights"])
    );
    let attention = model.config.expect("config").attention.expect("attention");
    assert_eq!(
        Some(attention.elements_per_token),
        expected["small.gguf"]["kv_elements_per_token"].as_u64()
    );
}

/// Every type of ggml has the block that the gguf package gives it.
#[test]
fn ggml_block_sizes() {
    // Numbers of the types, as in ggml.h.
    const TYPES: [(u32, &str); 33] = [
        (0, "f32"),
        (1, "f16"),
        (2, "q4_0"),
        (3, "q4_1"),
        (6, "q5_0"),
        (7, "q5_1"),
        (8, "q8_0"),
        (10, "q2_k"),
        (11, "q3_k"),
        (12, "q4_k"),
        (13, "q5_k"),
        (14, "q6_k"),
        (15, "q8_k"),
        (16, "iq2_xxs"),
        (17, "iq2_xs"),
        (18, "iq3_xxs"),
        (19, "iq1_s"),
        (20, "iq4_nl"),
        (21, "iq3_s"),
        (22, "iq2_s"),
        (23, "iq4_xs"),
        (24, "i8"),
        (25, "i16"),
        (26, "i32"),
        (27, "i64"),
        (28, "f64"),
        (29, "iq1_m"),
        (30, "bf16"),
        (34, "tq1_0"),
        (35, "tq2_0"),
        (39, "mxfp4"),
        (40, "nvfp4"),
        (41, "q1_0"),
    ];
    let sizes = json("expected_onnx_gguf.json");
    for (number, name) in TYPES {
        let block = &sizes["ggml_types"][name];
        let (elements, bytes) = (
            block[0].as_u64().expect(name),
            block[1].as_u64().expect(name),
        );
        let mut file = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend(1_u64.to_le_bytes());
        file.extend(b"t");
        file.extend(1_u32.to_le_bytes());
        file.extend((elements * 3).to_le_bytes());
        file.extend(number.to_le_bytes());
        file.extend(0_u64.to_le_bytes());
        let model = read_gguf(std::io::Cursor::new(file)).expect(name);
        assert_eq!(model.weight_bytes(), bytes * 3, "{name}");
        assert_eq!(model.weights().keys().next().expect(name).name(), name);
    }
}

#[test]
fn parameter_counts() {
    let cases = json("configs.json");
    let cases = cases["cases"].as_array().expect("cases");
    assert!(cases.len() >= 35);
    let mut wrong = Vec::new();
    for case in cases {
        let config = parse_config(&case["config"].to_string()).expect("config");
        let expected = case["parameters"].as_u64();
        if config.parameters != expected {
            wrong.push(format!(
                "{}: {:?}, its implementation has {expected:?}",
                case["class"], config.parameters
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
