//! Any text as the record of a run: its summary, and what of it reaches a terminal.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use oomph_report::{run::run_report, terminal::harmless};
use oomph_run::{Record, summary::summarize};

fuzz_target!(|text: &str| {
    let Ok(record) = Record::parse(text, Path::new("fuzz")) else {
        return;
    };
    let summary = summarize(&record, None, Some(12 << 30));
    let report = run_report(&summary, None, &[], Path::new("report"), 80, true, None);
    for character in anstream::adapter::strip_str(&harmless(&report)).flat_map(str::chars) {
        assert!(character == '\n' || !character.is_control());
    }
});
