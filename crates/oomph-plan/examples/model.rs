//! Prints what the model of a recorded run comes to beside what was measured:
//! `cargo run -p oomph-plan --example model -- oomph-report/train-1…`

use std::path::Path;

use anyhow::Context as _;
use oomph_allocator::{Config, Device};
use oomph_plan::model::Model;
use oomph_plan::play::play;
use oomph_run::Record;

fn main() -> anyhow::Result<()> {
    for directory in std::env::args().skip(1) {
        let directory = Path::new(&directory);
        let path = directory.join("record.json");
        let record = Record::parse(&std::fs::read_to_string(&path)?, &path)?;
        let path = directory.join("trace.oomph");
        let (trace, _) = oomph_trace::oomph_file::read(std::fs::File::open(&path)?, &path)?;
        let device = record.busiest().context("no GPU was used")?;
        let started = std::time::Instant::now();
        let model = Model::new(&trace, &record)?;
        let built = started.elapsed();
        let peak = play(&model.template, &Config::default(), Device::UNLIMITED);
        println!(
            "{}: allocated {} of {} ({:+.2} %), reserved {} of {} ({:+.2} %), {} events, built in {built:?}, played in {:?}",
            directory.display(),
            peak.allocated,
            device.peak_allocated_bytes,
            percent(peak.allocated, device.peak_allocated_bytes),
            peak.reserved,
            device.peak_reserved_bytes,
            percent(peak.reserved, device.peak_reserved_bytes),
            model.events,
            started.elapsed().saturating_sub(built),
        );
    }
    Ok(())
}

fn percent(found: u64, truth: u64) -> f64 {
    (found as f64 / truth.max(1) as f64 - 1.0) * 100.0
}
