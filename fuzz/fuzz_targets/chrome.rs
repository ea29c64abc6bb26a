//! Any bytes as a profiler's trace, and whatever was read through the whole analysis.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((trace, _)) = oomph_trace::chrome::read_from(data, Path::new("fuzz")) {
        let _ = oomph_explain::explain(&trace, &oomph_explain::Options::default());
    }
});
