//! Any bytes as a profile of JAX's memory, or as the chunks of an allocator's pool, and whatever was read explained and printed.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(profile) = oomph_trace::pprof::read_from(data, Path::new("fuzz")) {
        let options = oomph_explain::Options::default();
        if let Some(found) = oomph_explain::explain_profile(&profile, &options) {
            let _ = oomph_report::explanation::explanation(&found, 80);
        }
    }
    if let Ok(pool) = oomph_trace::bfc::read_from(data, Path::new("fuzz")) {
        let _ = oomph_report::explanation::explanation(&oomph_explain::explain_pool(&pool), 80);
    }
});
