//! What passes between the command and the recorder, as `tests/protocol.json` has it: the Python side is
//! compared with the same file.

use oomph_job::RunFile;
use oomph_job::settings::{Drift, FORMAT, Fewer, Recording, Resize, Settings, variables};
use oomph_plan::Lever;
use oomph_run::black_box::{BOX_FORMAT, PARTS, PHASES, RING_LENGTH, WHY, WORDS};
use serde_json::{Map, Value, json};

fn settings(recording: Recording, all: bool) -> Settings {
    Settings {
        format: FORMAT,
        r#virtual: all,
        several: all,
        rehearsal: all,
        locked: all,
        recording,
    }
}

fn places(of: &[(&str, usize)]) -> Map<String, Value> {
    of.iter()
        .map(|(name, place)| ((*name).to_owned(), (*place).into()))
        .collect()
}

#[test]
fn the_protocol_is_as_it_is_written_down() {
    let files: Map<String, Value> = RunFile::ALL
        .iter()
        .map(|file| (format!("{file:?}"), file.name().into()))
        .collect();
    let all = Recording {
        steps: Some(3),
        fewer: Some(Fewer {
            steps: 2,
            bytes: 6,
            first_bytes: 7,
            seconds: 0.5,
        }),
        every_optimizer: true,
        levers: vec![Lever::Tf32(oomph_plan::parameters::Tf32 { enabled: true })],
        resize: Resize {
            batch: Some(1),
            length: Some(2),
            height: Some(3),
            layers: Some(0.5),
            width: Some(0.25),
            separable: Some(true),
            member: Some(4),
        },
        unknown: "all".to_owned(),
        compute: Some(5),
        unsupported: true,
        inference: true,
        fork: false,
        black_box: true,
        drift: Some(Drift {
            planned: true,
            calls: 4,
            on_cpu: true,
        }),
        text: Some("import torch\n".to_owned()),
    };
    let found = json!({
        "variables": {
            "RUN": variables::RUN,
            "RANKS": variables::RANKS,
            "LAUNCHER": variables::LAUNCHER,
            "FORKS": variables::FORKS,
            "FORKS_LOG": variables::FORKS_LOG,
            "NET": variables::NET,
            "OVERLAY": variables::OVERLAY,
            "PLAN": variables::PLAN,
            "TESTS": variables::TESTS,
            "VIRTUAL_GPU": variables::VIRTUAL_GPU,
        },
        "files": files,
        "black_box": {
            "format": BOX_FORMAT,
            "ring_length": RING_LENGTH,
            "words": places(WORDS),
            "parts": places(PARTS),
            "phases": PHASES,
            "why": WHY,
        },
        "settings": {
            "by_default": settings(Recording::default(), false),
            "all": settings(all, true),
        },
    });
    let text = serde_json::to_string_pretty(&found).unwrap_or_default();
    let written: Value = serde_json::from_str(include_str!("protocol.json")).unwrap_or_default();
    assert_eq!(
        found, written,
        "crates/oomph-job/tests/protocol.json would be:\n{text}"
    );
}
