//! Any bytes as a log.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((messages, _)) = oomph_trace::text::read_from(data) {
        let _ = oomph_explain::explain_messages(&messages);
    }
});
