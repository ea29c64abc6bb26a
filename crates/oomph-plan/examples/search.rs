//! Plans for a recorded run at parts of its peak, as predicted, and how long planning takes:
//! `cargo run --release -p oomph-plan --example search -- oomph-report/train-1…`

use std::path::Path;

use anyhow::Context as _;
use oomph_allocator::Config;
use oomph_plan::Dtype;
use oomph_plan::draft::Pace;
use oomph_plan::model::Model;
use oomph_plan::search::{Base, Options, search};
use oomph_run::Record;

fn main() -> anyhow::Result<()> {
    for directory in std::env::args().skip(1) {
        let directory = Path::new(&directory);
        let path = directory.join("record.json");
        let record = Record::parse(&std::fs::read_to_string(&path)?, &path)?;
        let path = directory.join("trace.oomph");
        let (trace, _) = oomph_trace::oomph_file::read(std::fs::File::open(&path)?, &path)?;
        let device = record.busiest().context("no GPU was used")?;
        let config = Config::default();
        let model = Model::new(&trace, &record)?;
        let events = model.events;
        let base = Base::new(
            model,
            Vec::new(),
            device.peak_allocated_bytes,
            device.peak_reserved_bytes,
            &config,
        );
        println!(
            "{}: {} MiB, {events} events",
            directory.display(),
            device.peak_used_bytes >> 20
        );
        for share in [75, 50, 35, 25] {
            let options = Options {
                budget: device.peak_used_bytes * share / 100,
                keep_results: false,
                allow: None,
                forbid: Vec::new(),
                dtype: Dtype::Bf16,
                tf32: true,
                config: config.clone(),
                pace: Pace::default(),
                lessons: Vec::new(),
                evaluations: Vec::new(),
                failed: Vec::new(),
                clashes: Vec::new(),
                left: Vec::new(),
                cluster: None,
                stop: oomph_plan::Stop::default(),
            };
            let started = std::time::Instant::now();
            let found = search(std::slice::from_ref(&base), &options)?;
            println!(
                " {share} % = {} MiB in {:?}",
                options.budget >> 20,
                started.elapsed()
            );
            let listed = found
                .plans
                .iter()
                .chain(found.least.iter().filter(|_| found.plans.is_empty()));
            for plan in listed {
                let levers: Vec<String> = plan.levers.iter().map(ToString::to_string).collect();
                println!(
                    "   {:6} MiB {:.2}× {:?} {}",
                    plan.used >> 20,
                    plan.time_ratio,
                    plan.results,
                    levers.join(", ")
                );
            }
        }
    }
    Ok(())
}
