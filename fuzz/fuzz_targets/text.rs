//! Any bytes as a log.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/oomph-explain/tests/borne/mod.rs"]
mod borne;

fuzz_target!(|data: &[u8]| {
    if let Ok((messages, _)) = oomph_trace::text::read_from(data) {
        if let Some(found) = oomph_explain::explain_messages(&messages) {
            // Escapes, colours and other bytes hide figures from the check.
            if let Ok(text) = std::str::from_utf8(data)
                && !text.contains(['\\', '\u{1b}', '[', '\r'])
            {
                borne::is_borne_by(text, &found);
            }
        }
    }
});
