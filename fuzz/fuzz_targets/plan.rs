//! Any text as a plan: what it says in words, as a file again, and as a patch of a script.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};

use libfuzzer_sys::fuzz_target;
use oomph_plan::{PlanFile, by_hand::by_hand};

const SCRIPT: &str = include_str!("../../examples/train_gpt.py");

fuzz_target!(|text: &str| {
    let Ok(plan) = PlanFile::parse(text) else {
        return;
    };
    let again = PlanFile::parse(&plan.to_toml()).expect("oomph reads what it writes");
    assert_eq!(plan.levers, again.levers);
    let _ = plan.levers.iter().map(ToString::to_string).count();
    let _ = by_hand("train_gpt.py", SCRIPT, &plan.levers, &BTreeSet::new(), &BTreeMap::new()).text();
});
