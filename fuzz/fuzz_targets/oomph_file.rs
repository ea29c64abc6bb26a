//! Any bytes as an oomph trace.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = oomph_trace::oomph_file::read_from(data, Path::new("fuzz"));
});
