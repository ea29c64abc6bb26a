//! `cargo +nightly fuzz run lint crates/oomph-lint/tests/fixtures` from `crates/oomph-lint`.
//!
//! The first byte chooses the kind of file; the rest is the file. Nothing may panic, and what a fix
//! writes must parse and need no further fix.
#![no_main]

use libfuzzer_sys::fuzz_target;
use oomph_lint::{Applicability, Selection, Source, fix, lint};

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let name = if kind % 8 == 0 { "a.ipynb" } else { "a.py" };
    let Ok(source) = Source::from_bytes(name, rest.to_vec()) else {
        return;
    };
    let all = Selection::all();
    let linted = lint(&source, &all);
    assert!(
        !linted
            .problems
            .iter()
            .any(|problem| problem.message.contains("oomph failed"))
    );
    if let Some(fixed) = fix(&source, &all, Applicability::Unsafe) {
        assert_eq!(fixed.linted.problems.len(), linted.problems.len());
        assert!(fix(&fixed.source, &all, Applicability::Unsafe).is_none());
    }
});
