//! Replays snapshots and prints how exact and how fast that was.

use std::path::PathBuf;
use std::time::Instant;

use oomph_allocator::{Config, Device, Program, TorchVersion, replay};

fn main() {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let (trace, problems) = match oomph_trace::snapshot::read(&path) {
            Ok(read) => read,
            Err(error) => {
                println!("error: {error}");
                continue;
            }
        };
        let config = Config::from_settings(&trace.settings, TorchVersion::ASSUMED);
        for device in trace.used_devices() {
            let begin = Instant::now();
            let program = Program::new(&trace, device, &config);
            let prepared = begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            let exact = replay::recorded(&program, &config);
            let replayed = begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            let predicted = replay::predict(&program, &config, Device::UNLIMITED);
            let predicted_in = begin.elapsed().as_secs_f64();
            let rate = |seconds: f64| program.events as f64 / seconds / 1e6;
            println!(
                "{} device {device}: {} events, {} mismatches; reserved: recorded {} replayed {} predicted {}; \
                 prepare {:.1} M/s, replay {:.1} M/s, predict {:.1} M/s",
                path.display(),
                program.events,
                exact.mismatches,
                program.recorded_peak_reserved,
                exact.stats.reserved_peak,
                predicted.stats.reserved_peak,
                rate(prepared),
                rate(replayed),
                rate(predicted_in),
            );
            for mismatch in exact.examples.iter().take(4) {
                println!("  row {}: {}", mismatch.row, mismatch.what);
            }
            for problem in problems.iter().chain(&program.problems) {
                println!("  problem: {problem}");
            }
        }
    }
}
