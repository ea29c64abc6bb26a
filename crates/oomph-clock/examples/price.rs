//! Prices what steps do: `price GPU FILE.json…`; each file has `work` of a record. One JSON line for each file: the step, and
//! with `--lines` each line of the table with how often it occurs and what it takes, to compare with measured kernels.

use oomph_clock::{Figures, Host, Steps, play, took};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let lines = arguments.iter().any(|argument| argument == "--lines");
    arguments.retain(|argument| argument != "--lines");
    let gpu = oomph_gpus::find(&arguments[0])?;
    let figures = Figures::of(gpu)?;
    for path in &arguments[1..] {
        let mut record: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        let steps: Steps = serde_json::from_value(record["work"].take())?;
        let Some(last) = steps.steps.last() else {
            continue;
        };
        let played = play(&steps, &last.1, &figures, &Host::default());
        let priced: Vec<f64> = if lines {
            steps
                .table
                .iter()
                .map(|work| took(work, &steps, &figures).seconds * 1e6)
                .collect()
        } else {
            Vec::new()
        };
        println!(
            "{}",
            serde_json::json!({"file": path, "step": played.seconds, "device": played.device, "host": played.host, "us": priced})
        );
    }
    Ok(())
}
