//! What levers are predicted to do to a recorded run, beside the job as it is:
//! `cargo run --release -p oomph-plan --example predict -- RUN '[{"name": "micro_batch", "parts": 2}]'…`

use std::path::Path;

use anyhow::Context as _;
use oomph_allocator::Config;
use oomph_plan::Lever;
use oomph_plan::draft::{Draft, Pace};
use oomph_plan::model::Model;
use oomph_plan::search::{Base, Options, predict};
use oomph_run::Record;

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let directory = words.next().context("the directory of a run is missing")?;
    let directory = Path::new(&directory);
    let path = directory.join("record.json");
    let record = Record::parse(&std::fs::read_to_string(&path)?, &path)?;
    let path = directory.join("trace.oomph");
    let (trace, _) = oomph_trace::oomph_file::read(std::fs::File::open(&path)?, &path)?;
    let device = record.busiest().context("no GPU was used")?;
    let config = Config::default();
    let model = Model::new(&trace, &record)?;
    let gpu = oomph_gpus::catalogue()
        .iter()
        .find(|gpu| gpu.id == "h200")
        .context("the catalogue lacks the H200")?;
    let options = Options {
        budget: u64::MAX,
        config: config.clone(),
        pace: Pace::new(gpu),
        ..Options::default()
    };
    let base = Base::new(
        model,
        Vec::new(),
        device.peak_allocated_bytes,
        device.peak_reserved_bytes,
        &config,
    );
    for levers in std::iter::once("[]".to_owned()).chain(words) {
        let levers: Vec<Lever> = serde_json::from_str(&levers)?;
        let plan = predict(&base, &base, &levers, &options);
        let mut draft = Draft::new(&base.model, options.pace);
        for lever in &levers {
            draft.apply(lever);
        }
        let ms = |ns: f64| ns / 1e6;
        println!(
            "{:6} MiB allocated {:6} used {:.3}x: GPU {:.1} + {:.1} ms, host {:.1} + {:.1}, levers {:.1}, waits {:.1}, alone {:.1}  {}",
            plan.allocated >> 20,
            plan.used >> 20,
            plan.time_ratio,
            ms(draft.body.busy),
            ms(draft.tail.busy),
            ms(draft.body.host(draft.pace())),
            ms(draft.tail.host(draft.pace())),
            ms(draft.lever_time()),
            ms(draft.waits),
            ms(plan.host.alone_ns),
            levers
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        );
    }
    Ok(())
}
