//! No input makes a reader panic, loop or claim more than the file can say.

#![expect(
    clippy::expect_used,
    reason = "a fixture that cannot be read is a failed test"
)]

use std::io::Cursor;
use std::path::Path;

use oomph_estimate::{OnnxOptions, Workload, needs, parse_config, read_any};
use proptest::prelude::*;

const FIXTURES: [(&str, &str); 10] = [
    ("small.safetensors", "safetensors"),
    ("small.gguf", "gguf"),
    ("conv.onnx", "onnx"),
    ("typed.onnx", "onnx"),
    ("state_dict.pt", "pt"),
    ("state_dict_legacy.pt", "pt"),
    ("checkpoint.pt", "pt"),
    ("module.pt", "pt"),
    ("fp8.pt", "pt"),
    ("parameters.pt", "pt"),
];

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(name),
    )
    .expect(name)
}

/// Reads, works out the needs, and shows any error: none of it may panic.
fn exercise(bytes: &[u8], extension: &str) {
    match read_any(Cursor::new(bytes), extension, &OnnxOptions::default()) {
        Ok(model) => {
            let _ = needs(&model, &Workload::default());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2000), which in 0..5_usize) {
        let extension = ["safetensors", "gguf", "onnx", "pt", "bin"][which];
        exercise(&bytes, extension);
    }

    #[test]
    fn any_bytes_after_the_magic(bytes in proptest::collection::vec(any::<u8>(), 0..500), which in 0..4_usize) {
        let magic: &[u8] = [
            b"GGUF\x03\0\0\0".as_slice(),
            b"PK\x03\x04",
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.",
            b"\x20\0\0\0\0\0\0\0{",
        ][which];
        exercise(&[magic, &bytes].concat(), "pt");
    }

    #[test]
    fn damaged_files(
        which in 0..FIXTURES.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let (name, extension) = FIXTURES[which];
        let mut bytes = fixture(name);
        // Headers are at the start, a zip's directory at the end: change both more than the data.
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
            let early = index.index(bytes.len().min(400));
            bytes[early] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        exercise(&bytes, extension);
    }

    #[test]
    fn any_config(text in "\\PC{0,200}") {
        let _ = parse_config(&text);
    }

    #[test]
    fn any_dimensions(
        layers in any::<u64>(), hidden in any::<u64>(), heads in any::<u64>(), kv in any::<u64>(),
        vocabulary in any::<u64>(), family in 0..6_usize, small in any::<bool>(),
    ) {
        let bound = |value: u64| if small { value % (1 << 31) } else { value };
        let family = ["llama", "gpt2", "opt", "vit", "t5", "mixtral"][family];
        let text = format!(
            r#"{{"model_type":"{family}","num_hidden_layers":{},"hidden_size":{},"num_attention_heads":{},"num_key_value_heads":{},"vocab_size":{},"num_local_experts":8}}"#,
            bound(layers), bound(hidden), bound(heads), bound(kv), bound(vocabulary)
        );
        if let Ok(config) = parse_config(&text) {
            let model = oomph_estimate::Model::from_config(config);
            let _ = needs(&model, &Workload { batch: bound(heads).max(1), ..Workload::default() });
        }
    }
}

/// `N` bytes of pickle must not cost more than a bounded amount of memory or time.
#[test]
fn bombs_are_refused_quickly() {
    let start = std::time::Instant::now();
    let preamble = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.\x80\x02";
    // A tuple of 100,000 numbers, called with again and again.
    let mut copies = preamble.to_vec();
    copies.push(b'(');
    copies.extend(b"K\x01".repeat(100_000));
    copies.extend(b"tq\x00cnone\nsuch\nq\x01");
    copies.extend(b"h\x01h\x00R".repeat(100_000));
    copies.push(b'.');
    // The same as the shape of a tensor.
    let mut shapes = preamble.to_vec();
    shapes.push(b'(');
    shapes.extend(b"K\x01".repeat(100_000));
    shapes.extend(b"tq\x00");
    shapes.extend(b"h\x00h\x00h\x00h\x00tctorch._utils\n_rebuild_tensor_v2\n".repeat(100));
    shapes.push(b'.');
    // Lists within lists within lists.
    let mut deep = preamble.to_vec();
    deep.extend(b"]".repeat(300_000));
    deep.extend(b"a".repeat(299_999));
    deep.push(b'.');
    for bytes in [copies, shapes, deep] {
        exercise(&bytes, "pt");
    }
    // A rank that would double with each `Gather(x, x)`.
    let mut gathers = Vec::new();
    let field = |number: u8, content: &[u8]| {
        let mut bytes = vec![number << 3 | 2];
        let mut length = content.len();
        while length > 127 {
            bytes.push((length & 127) as u8 | 128);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend_from_slice(content);
        bytes
    };
    let dimension = field(1, &[0x08, 2]);
    let shape = field(2, &dimension);
    let tensor = field(1, &[&[0x08, 1], shape.as_slice()].concat());
    let input = [field(1, b"v0"), field(2, &tensor)].concat();
    gathers.extend(field(11, &input));
    for index in 0..100 {
        let from = format!("v{index}");
        let to = format!("v{}", index + 1);
        let node = [
            field(1, from.as_bytes()),
            field(1, from.as_bytes()),
            field(2, to.as_bytes()),
            field(4, b"Gather"),
        ]
        .concat();
        gathers.extend(field(1, &node));
    }
    exercise(&field(7, &gathers), "onnx");
    // ONNX: nodes of two bytes.
    let nodes = b"\x0a\x00".repeat(1_000_000);
    exercise(&field(7, &nodes), "onnx");
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}
