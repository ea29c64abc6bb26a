//! Any bytes as a log.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok((messages, _)) = oomph_trace::text::read_from(data) {
        if let Some(found) = oomph_explain::explain_messages(&messages)
            && let Some(message) = found.message
        {
            assert!(message.memory != "host" || message.device.is_none());
            assert!(!found.next.is_empty());
        }
    }
});
