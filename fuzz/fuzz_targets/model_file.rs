//! Any bytes as a model file, and what it would need.
//!
//! The first byte chooses the kind of file; the rest is the file.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use oomph_estimate::{OnnxOptions, Workload, needs, parse_config, read_any};

const KINDS: [&str; 4] = ["safetensors", "gguf", "onnx", "pt"];

fuzz_target!(|data: &[u8]| {
    let Some((&kind, rest)) = data.split_first() else {
        return;
    };
    let model = match KINDS.get(usize::from(kind) % 5) {
        Some(kind) => read_any(Cursor::new(rest), kind, &OnnxOptions::default()).ok(),
        None => std::str::from_utf8(rest)
            .ok()
            .and_then(|text| parse_config(text).ok())
            .map(oomph_estimate::Model::from_config),
    };
    if let Some(model) = model {
        let _ = needs(&model, &Workload::default());
    }
});
