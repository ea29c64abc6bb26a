//! Reads a snapshot and prints what it holds and how long that took.

use std::path::PathBuf;
use std::time::Instant;

fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let begin = Instant::now();
        match oomph_trace::snapshot::read(std::fs::File::open(&path)?, &path) {
            Ok((trace, problems)) => {
                println!(
                    "{}: {:.3} s, {} events, {} segments, {} blocks, {} stacks, {} frames, {} strings, {} annotations, devices {:?}",
                    path.display(),
                    begin.elapsed().as_secs_f64(),
                    trace.events.len(),
                    trace.segments.len(),
                    trace.blocks.len(),
                    trace.stacks.len(),
                    trace.stacks.frame_count(),
                    trace.strings.len(),
                    trace.annotations.len(),
                    trace.devices,
                );
                for problem in problems {
                    println!("  problem: {problem}");
                }
            }
            Err(error) => println!("error: {error}"),
        }
    }
    Ok(())
}
