//! How long a step takes, in words.

use oomph_clock::{Bound, Estimate};
use oomph_run::time::StepTime;

/// Seconds as people read them, with three digits: `38.2 ms`.
pub fn seconds(value: f64) -> String {
    let (scaled, unit) = if value < 1e-3 {
        (value * 1e6, "µs")
    } else if value < 1.0 {
        (value * 1e3, "ms")
    } else if value < 120.0 {
        (value, "s")
    } else if value < 7200.0 {
        (value / 60.0, "min")
    } else {
        (value / 3600.0, "h")
    };
    let digits = if scaled >= 99.95 {
        0
    } else if scaled >= 9.995 {
        1
    } else {
        2
    };
    format!("{scaled:.digits$} {unit}")
}

/// A rate with its unit: `842 samples/s`, `1.3 million tokens/s`.
pub fn rate(value: f64, what: &str) -> String {
    if value >= 1e6 {
        format!("{:.1} million {what}/s", value / 1e6)
    } else if value >= 9.995 {
        format!("{value:.0} {what}/s")
    } else {
        format!("{value:.1} {what}/s")
    }
}

/// What decides how long a step takes.
pub const fn bound(bound: Bound) -> &'static str {
    match bound {
        Bound::Device => "the GPU",
        Bound::Host => "the host",
        Bound::Loading => "loading data",
        Bound::Communication => "communication",
    }
}

/// More than one `step` or `pass`.
pub fn several(unit: &str) -> String {
    let end = if unit.ends_with('s') { "es" } else { "s" };
    format!("{unit}{end}")
}

/// The lines about a step's time; `unit` is `step` or `pass`.
pub fn lines(time: &StepTime, unit: &str) -> Vec<String> {
    let found = &time.estimate;
    let mut first = format!(
        "{} a {unit} ({} to {} in nine of ten cases)",
        seconds(found.step_seconds),
        seconds(found.low),
        seconds(found.high)
    );
    if found.steps_differ {
        first = format!(
            "{} differ: {} to {}, half of them below {}",
            several(unit),
            seconds(found.low),
            seconds(found.high),
            seconds(found.step_seconds)
        );
    }
    for (value, what) in [
        (time.samples_per_second, "samples"),
        (time.tokens_per_second, "tokens"),
    ] {
        if let Some(value) = value {
            first.push_str(" · ");
            first.push_str(&rate(value, what));
        }
    }
    let mut lines = vec![first, decides(found)];
    if !found.unknown.is_empty() {
        let mut names: Vec<String> = found.unknown.iter().take(3).cloned().collect();
        if found.unknown.len() > 3 {
            names.push(format!("and {} more", found.unknown.len() - 3));
        }
        lines.push(format!(
            "timed roughly, by their launches alone: {}",
            names.join(", ")
        ));
    }
    lines
}

fn decides(found: &Estimate) -> String {
    let device = found.device_seconds;
    let most: Vec<String> = found
        .consumers
        .iter()
        .map(|one| format!("{} {:.0} %", one.name, 100.0 * one.seconds / device))
        .collect();
    format!(
        "{} decides ({:.0} % of it). GPU {}: {}. Host {}, as {}",
        bound(found.bound),
        100.0 * found.share,
        seconds(device),
        most.join(", "),
        seconds(found.host_seconds),
        found.host
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (value, text) in [
            (4.2e-5, "42.0 µs"),
            (0.0382, "38.2 ms"),
            (0.16, "160 ms"),
            (1.5, "1.50 s"),
            (300.0, "5.00 min"),
        ] {
            assert_eq!(seconds(value), text);
        }
        assert_eq!([several("step"), several("pass")], ["steps", "passes"]);
        assert_eq!(rate(842.3, "samples"), "842 samples/s");
        assert_eq!(rate(1_310_000.0, "tokens"), "1.3 million tokens/s");
    }
}
