//! Replays of what was recorded on a real GPU.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::path::Path;

use oomph_allocator::{Config, Device, Program, TorchVersion, plan, replay, search};

fn program(name: &str) -> (Program, Config) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(name);
    let (trace, _) =
        oomph_trace::snapshot::read(std::fs::File::open(&path).unwrap(), &path).unwrap();
    let config = Config::from_settings(&trace.settings, TorchVersion::ASSUMED);
    (Program::new(&trace, 0, &config), config)
}

const COMPLETE: [&str; 3] = [
    "snapshots/gpt2_b8.pickle.xz",
    "snapshots/lstm_lm.pickle.xz",
    "snapshots/resnet50_b32.pickle.xz",
];

const FAILED: [&str; 9] = [
    "oom/adam_first_step.pickle.xz",
    "oom/batch_too_big.pickle.xz",
    "oom/eval_grad.pickle.xz",
    "oom/fragmentation.pickle.xz",
    "oom/long_tail.pickle.xz",
    "oom/loss_accumulate.pickle.xz",
    "oom/other_process.pickle.xz",
    "oom/preds_on_gpu.pickle.xz",
    "oom/vocab_logits.pickle.xz",
];

#[test]
fn every_event_is_at_its_recorded_address() {
    for name in COMPLETE.iter().chain(&FAILED) {
        let (program, config) = program(name);
        let replayed = replay::recorded(&program, &config);
        assert_eq!(replayed.mismatches, 0, "{name}: {:?}", replayed.examples);
        assert_eq!(
            replayed.stats.reserved_peak, program.recorded_peak_reserved,
            "{name}"
        );
    }
}

/// Recorded on the virtual GPU, one of them with expandable segments.
#[test]
fn traces_of_the_virtual_gpu_replay_exactly() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/variants");
    let mut replayed = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if Path::new(&name)
            .extension()
            .is_none_or(|extension| extension != "xz")
        {
            continue;
        }
        let (program, config) = program(&format!("variants/{name}"));
        let result = replay::recorded(&program, &config);
        assert_eq!(result.mismatches, 0, "{name}: {:?}", result.examples);
        replayed += 1;
    }
    assert!(replayed >= 22);
}

/// Recorded on the virtual GPU with torch 2.11, which writes no pool with an event: CUDA graphs and
/// `MemPool`s, expandable segments with a split limit, and histories that lost their beginning.
#[test]
fn pools_settings_and_cut_histories_replay_exactly() {
    const RECORDED: [(&str, bool); 11] = [
        ("graphs", true),
        ("graphs_cut", false),
        ("graphs_expandable_cut", false),
        ("pools_ended", true),
        ("pools_ended_expandable", true),
        ("stress_collected_pool", true),
        ("stress_cut", false),
        ("stress_expandable_cut", false),
        ("stress_expandable_split", true),
        ("stress_expandable_split20_pool", true),
        ("stress_pool", true),
    ];
    for (name, complete) in RECORDED {
        let (mut program, config) = program(&format!("allocator/{name}.pickle.xz"));
        assert_eq!(program.is_complete(), complete, "{name}");
        let result = replay::recorded_with_pools(&mut program, &config);
        assert_eq!(result.mismatches, 0, "{name}: {:?}", result.examples);
        assert_eq!(
            result.stats.reserved_peak, program.recorded_peak_reserved,
            "{name}"
        );
        let ended = name.starts_with("pools_ended");
        let inferred = program
            .problems
            .iter()
            .any(|problem| problem.message.contains("does not record pools"));
        assert!(!ended || inferred, "{name}: no snapshot names these pools");
    }
}

/// Recorded on the virtual GPU with torch 2.12.1, the only release that takes the oldest free block of a size.
#[test]
fn torch_2_12_takes_the_oldest_block_of_a_size() {
    let version = |minor| TorchVersion { major: 2, minor };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/allocator");
    for name in ["torch_2_12", "torch_2_12_expandable"] {
        let path = path.join(format!("{name}.pickle.xz"));
        let (trace, _) =
            oomph_trace::snapshot::read(std::fs::File::open(&path).unwrap(), &path).unwrap();
        let mismatches = |minor| {
            let config = Config::from_settings(&trace.settings, version(minor));
            replay::recorded(&Program::new(&trace, 0, &config), &config).mismatches
        };
        assert_eq!(mismatches(12), 0, "{name}");
        assert!(mismatches(11) > 0 && mismatches(13) > 0, "{name}");
    }
}

/// An expandable segment that is older than the history goes on growing in place.
#[test]
fn an_older_expandable_segment_grows() {
    let (program, config) = program("allocator/stress_expandable_cut.pickle.xz");
    let older = program
        .initial
        .iter()
        .filter(|segment| segment.is_expandable)
        .count();
    assert!(older > 0);
    assert!(program.driver_events.iter().any(|event| {
        program.initial.iter().any(|segment| {
            let end = segment.blocks.last().map_or(0, |block| block.0 + block.1);
            segment.addr <= event.addr && event.addr <= end
        })
    }));
    let predicted = replay::predict(&program, &config, Device::UNLIMITED);
    assert!(predicted.fits());
}

/// What the simulator claims of expandable segments, the virtual GPU confirmed: the same job got
/// past the request that had failed, and the simulation of either run is exact.
#[test]
fn the_claimed_setting_was_tried() {
    let (before, config) = program("variants/growing_buffer.pickle.xz");
    let room = before.room(&config).unwrap();
    let device = Device {
        limit: Some(room.at_least),
        ..Device::UNLIMITED
    };
    let claimed = search::search(&before, TorchVersion::ASSUMED, device);
    assert_eq!(claimed[0].conf, "expandable_segments:True");
    assert!(claimed[0].predicted.serves_failed_request);
    let (after, _) = program("variants/growing_buffer_expandable.pickle.xz");
    let failed = before.failure().unwrap().requested;
    assert!(
        after
            .allocations
            .iter()
            .any(|a| !a.failed && a.requested >= failed)
    );
}

#[test]
fn only_the_full_ring_buffer_is_incomplete() {
    for name in COMPLETE.iter().chain(&FAILED) {
        let (program, _) = program(name);
        assert_eq!(
            program.is_complete(),
            *name != "oom/long_tail.pickle.xz",
            "{name}"
        );
    }
}

#[test]
fn peak_reserved_is_predicted_without_addresses() {
    for name in COMPLETE {
        let (program, config) = program(name);
        let predicted = replay::predict(&program, &config, Device::UNLIMITED);
        assert!(predicted.fits());
        assert_eq!(
            predicted.stats.reserved_peak, program.recorded_peak_reserved,
            "{name}"
        );
    }
}

/// With the limit that the record implies, the simulation fails at the very same request.
#[test]
fn failures_are_predicted_at_their_event() {
    for name in FAILED {
        let (program, config) = program(name);
        let room = program.room(&config).unwrap();
        let device = if room.by_device {
            Device::of(room.at_least)
        } else {
            Device {
                limit: Some(room.at_least),
                ..Device::UNLIMITED
            }
        };
        let predicted = replay::predict(&program, &config, device);
        let failure = program.failure().unwrap();
        assert_eq!(predicted.failed_row, Some(failure.alloc_row), "{name}");
    }
}

#[test]
fn bounds_are_in_order() {
    for name in COMPLETE {
        let (program, config) = program(name);
        let bounds = plan::bounds(&program, &config);
        let needs = search::smallest(&program, &config).unwrap();
        assert!(bounds.live_bytes <= bounds.static_plan, "{name}");
        assert!(bounds.live_bytes <= needs, "{name}");
        assert!(
            bounds.static_plan as f64 <= bounds.live_bytes as f64 * 1.02,
            "{name}: {bounds:?}"
        );
        assert!(needs <= program.recorded_peak_reserved, "{name}");
    }
}

#[test]
fn expandable_segments_end_the_planted_fragmentation() {
    let (program, config) = program("oom/fragmentation.pickle.xz");
    let room = program.room(&config).unwrap();
    let device = Device {
        limit: Some(room.at_least),
        ..Device::UNLIMITED
    };
    assert!(!replay::predict(&program, &config, device).fits());
    let found = search::search(&program, TorchVersion::ASSUMED, device);
    assert_eq!(found[0].conf, "expandable_segments:True");
    assert!(found[0].predicted.fits());
    assert!(found[0].predicted.serves_failed_request);
}
