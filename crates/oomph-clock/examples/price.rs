//! Prices what steps do: `price GPU FILE.json…`; each file has `work` of a record. One JSON line for each file: the estimate, and
//! with `--lines` what each line of the table takes, to compare with measured kernels; `--host F` has the host take F times as long,
//! `--levers S` and `--beside S` are seconds that levers and batches take it.

use oomph_clock::{Estimate, Figures, Host, Steps, took};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let lines = arguments.iter().any(|argument| argument == "--lines");
    arguments.retain(|argument| argument != "--lines");
    let mut host = Host::default();
    let mut number = |name: &str| -> Result<Option<f64>, std::num::ParseFloatError> {
        let Some(at) = arguments.iter().position(|argument| argument == name) else {
            return Ok(None);
        };
        let value = arguments[at + 1].parse()?;
        arguments.drain(at..at + 2);
        Ok(Some(value))
    };
    if let Some(factor) = number("--host")? {
        host = Host::slower(host.name, factor);
    }
    host.levers = number("--levers")?.unwrap_or_default();
    host.beside = number("--beside")?.unwrap_or_default();
    let gpu = oomph_gpus::find(&arguments[0])?;
    let figures = Figures::of(gpu)?;
    for path in &arguments[1..] {
        let mut record: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        let steps: Steps = serde_json::from_value(record["work"].take())?;
        let Some(found) = Estimate::new(&steps, &figures, &host) else {
            continue;
        };
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
            serde_json::json!({
                "file": path, "step": found.step_seconds, "low": found.low, "high": found.high, "bound": found.bound,
                "device": found.device_seconds, "host": found.host_seconds, "us": priced
            })
        );
    }
    Ok(())
}
