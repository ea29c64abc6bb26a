//! Events per second of a replay on one core: prepares once, then repeats each kind of run.

use std::path::PathBuf;
use std::time::Instant;

use oomph_allocator::{Config, Device, Program, TorchVersion, replay};

const REPEATS: usize = 3;

fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let (trace, _) = match oomph_trace::snapshot::read(std::fs::File::open(&path)?, &path) {
            Ok(read) => read,
            Err(error) => {
                println!("error: {error}");
                continue;
            }
        };
        let config = Config::from_settings(&trace.settings, TorchVersion::ASSUMED);
        let begin = Instant::now();
        let program = Program::new(&trace, 0, &config);
        let prepare = begin.elapsed().as_secs_f64();
        let mut exact = Vec::new();
        let mut predict = Vec::new();
        let mut mismatches = 0;
        for _ in 0..REPEATS {
            let begin = Instant::now();
            mismatches = replay::recorded(&program, &config).mismatches;
            exact.push(begin.elapsed().as_secs_f64());
            let begin = Instant::now();
            replay::predict(&program, &config, Device::UNLIMITED);
            predict.push(begin.elapsed().as_secs_f64());
        }
        let rate = |seconds: f64| program.events as f64 / seconds / 1e6;
        let best = |runs: &[f64]| runs.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            "{}: {} events, {mismatches} mismatches; prepare {:.1} M/s, replay {:.1} M/s, \
             predict {:.1} M/s (best of {REPEATS})",
            path.display(),
            program.events,
            rate(prepare),
            rate(best(&exact)),
            rate(best(&predict)),
        );
    }
    Ok(())
}
