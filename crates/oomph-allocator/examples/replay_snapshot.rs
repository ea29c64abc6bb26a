//! Replays snapshots and prints how exact and how fast that was.

use std::path::PathBuf;
use std::time::Instant;

use oomph_allocator::{Config, Device, Program, TorchVersion, replay};

fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let (trace, problems) =
            match oomph_trace::snapshot::read(std::fs::File::open(&path)?, &path) {
                Ok(read) => read,
                Err(error) => {
                    println!("error: {error}");
                    continue;
                }
            };
        let config = Config::from_settings(&trace.settings, TorchVersion::ASSUMED);
        for device in trace.used_devices() {
            let begin = Instant::now();
            let mut program = Program::new(&trace, device, &config);
            let prepared = begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            let exact = replay::recorded_with_pools(&mut program, &config);
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
            let device = match program.room(&config) {
                Some(room) => Device {
                    limit: Some(room.at_least),
                    ..Device::UNLIMITED
                },
                None => Device::UNLIMITED,
            };
            let begin = Instant::now();
            let again = replay::predict(&program, &config, device);
            println!(
                "  room {:?}: fails at {:?} of {:?}, peak {}",
                program.room(&config),
                again.failed_row,
                program.failure().map(|f| f.alloc_row),
                again.stats.reserved_peak
            );
            println!(
                "  bounds {:?} in {:.2} s",
                oomph_allocator::plan::bounds(&program, &config),
                begin.elapsed().as_secs_f64()
            );
            let begin = Instant::now();
            for trial in oomph_allocator::search::search(&program, TorchVersion::ASSUMED, device)
                .iter()
                .take(3)
            {
                println!(
                    "  {} fits {} needs {:?} peak {}",
                    trial.conf,
                    trial.predicted.fits(),
                    trial.needs,
                    trial.predicted.stats.reserved_peak
                );
            }
            println!(
                "  default needs {:?}; search took {:.2} s",
                oomph_allocator::search::smallest(&program, &config),
                begin.elapsed().as_secs_f64()
            );
            for mismatch in exact.examples.iter().take(4) {
                println!("  row {}: {}", mismatch.row, mismatch.what);
            }
            for problem in problems.iter().chain(&program.problems) {
                println!("  problem: {problem}");
            }
        }
    }
    Ok(())
}
