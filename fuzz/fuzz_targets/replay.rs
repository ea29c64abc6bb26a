//! Any bytes as a snapshot, and whatever was read through the simulator: the replay with pools that
//! are inferred, other settings, and the bounds.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use oomph_allocator::{Config, Device, Program, TorchVersion, plan, replay};

fuzz_target!(|data: &[u8]| {
    let Ok((trace, _)) = oomph_trace::snapshot::read_from(data, Path::new("fuzz")) else {
        return;
    };
    let config = Config::from_settings(&trace.settings, TorchVersion::ASSUMED);
    for device in trace.used_devices() {
        let mut program = Program::new(&trace, device, &config);
        let _ = replay::recorded_with_pools(&mut program, &config);
        for conf in ["", "expandable_segments:True,max_split_size_mb:32"] {
            if let Ok(config) = Config::parse(conf, TorchVersion::ASSUMED) {
                let _ = replay::predict(&program, &config, Device::of(64 << 20));
            }
        }
        let _ = plan::bounds(&program, &config);
    }
});
